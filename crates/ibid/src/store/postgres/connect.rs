//! Connections: how one is made, what it remembers, and the pool that bounds their number.
//!
//! Most connections set nothing on their session, because behind a transaction pooler the next transaction may meet
//! another one. Those of the hot path ask for sessions that start with its settings, which only a server of our own gives:
//! a pooler refuses or ignores what it can't pass on. `flight.sql` looks whether it has them; whatever else runs there sets them
//! in its transaction.

use std::collections::HashMap;
use std::future::poll_fn;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use deadpool::managed::{
    self, Metrics, Object, PoolError, RecycleError, RecycleResult, TimeoutType, Timeouts,
};
use futures_util::future::{join_all, join3};
use ibid_core::store::StoreError;
use tokio::sync::OnceCell;
use tokio_postgres::config::{Host, TargetSessionAttrs};
use tokio_postgres::error::Severity;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::types::{Kind, ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config, Error, NoTls, Row, Socket, Statement};

use super::tls::{Tls, Wish};
use super::{KIND, PostgresOpenError, PostgresOptions, failure, open};

/// A value for a statement, with the type that the statement takes.
pub(super) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// Where the database is and how it is used.
#[derive(Debug)]
pub(super) struct Place {
    config: Config,
    tls: Tls,
    pub(super) options: PostgresOptions,
    /// Set once somebody refused to start a session with settings.
    refuses_settings: AtomicBool,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    client: Client,
    /// Whether statements are prepared once and named, or sent whole each time.
    prepares: bool,
    statements: Mutex<HashMap<usize, Statement>>,
    /// Whether the session has the settings of the hot path.
    has_settings: AtomicBool,
    /// The types of what `flight.sql` takes.
    row_types: OnceCell<[Type; 2]>,
    policies: Mutex<Trusted>,
    /// A warning came: a commit before it may not be as durable as it should be.
    warned: Arc<AtomicBool>,
    /// Set once its state is not known for sure.
    spoilt: AtomicBool,
}

impl Place {
    /// Where `url` leads. Nothing of the URL is in the error, for a password may be.
    pub(super) fn new(url: &str, mut options: PostgresOptions) -> Result<Place, PostgresOpenError> {
        let (mut config, wish) = parsed(url, &mut options)?;
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_WITHIN);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(SILENCE_MAX);
        }
        config.keepalives_idle(SILENCE_MAX).keepalives_interval(SILENCE_MAX / 4).keepalives_retries(4);
        // Of several hosts the one that takes writes, also after a failover.
        if config.get_hosts().len() > 1 && config.get_target_session_attrs() == TargetSessionAttrs::Any {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        if config.get_application_name().is_none() {
            config.application_name("ibid");
        }
        let tls = wish.fulfil(&mut config)?;
        Ok(Place { config, tls, options, refuses_settings: AtomicBool::new(false) })
    }

    /// The place as people may see it: no user, no password.
    pub(super) fn shown(&self) -> String {
        shown(&self.config)
    }

    /// A connection to a server that may be written to.
    pub(super) async fn connect(&self) -> Result<Connection, PostgresOpenError> {
        let connection = self.dial().await.map_err(|error| open::unreachable(self, error))?;
        open::check(self, &connection).await?;
        Ok(connection)
    }

    /// A connection for the hot path, whose session has its settings if that can be had.
    async fn connect_hot(&self) -> Result<Connection, PostgresOpenError> {
        if self.refuses_settings.load(Ordering::SeqCst) {
            return self.connect().await;
        }
        let mut config = self.config.clone();
        let own = self.config.get_options().map(|own| format!("{own} ")).unwrap_or_default();
        config.options(format!("{own}{SETTINGS}"));
        match self.dial_as(&config).await {
            Ok(connection) => {
                open::check(self, &connection).await?;
                Ok(connection)
            }
            Err(error) if failure::refuses_settings(&error) => {
                let connection = self.connect().await?;
                tracing::debug!("sessions can't start with settings here: each transaction sets them");
                self.refuses_settings.store(true, Ordering::SeqCst);
                Ok(connection)
            }
            Err(error) => Err(open::unreachable(self, error)),
        }
    }

    /// A connection to whatever answers.
    pub(super) async fn dial(&self) -> Result<Connection, Error> {
        self.dial_as(&self.config).await
    }

    async fn dial_as(&self, config: &Config) -> Result<Connection, Error> {
        match &self.tls {
            Tls::Off => self.dial_with(config, NoTls).await,
            #[cfg(feature = "postgres-tls")]
            Tls::On(connector) => self.dial_with(config, connector.clone()).await,
        }
    }

    async fn dial_with<T>(&self, config: &Config, tls: T) -> Result<Connection, Error>
    where
        T: MakeTlsConnect<Socket>,
        T::Stream: Send + 'static,
    {
        let (client, mut driver) = config.connect(tls).await?;
        let warned = Arc::new(AtomicBool::new(false));
        let told = warned.clone();
        // It ends when the client is dropped or the connection breaks.
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| driver.poll_message(context)).await {
                // It is seen here before the answer that it belongs to is handed on.
                if let AsyncMessage::Notice(notice) = message
                    && notice.parsed_severity() == Some(Severity::Warning)
                {
                    tracing::warn!(
                        code = notice.code().code(),
                        message = notice.message(),
                        "PostgreSQL warns"
                    );
                    told.store(true, Ordering::SeqCst);
                }
            }
        });
        Ok(Connection {
            client,
            prepares: self.options.prepare,
            statements: Mutex::default(),
            has_settings: AtomicBool::new(false),
            row_types: OnceCell::new(),
            policies: Mutex::default(),
            warned,
            spoilt: AtomicBool::new(false),
        })
    }
}

impl Connection {
    /// The rows of a statement that is seldom asked: one round trip, nothing prepared.
    pub(super) async fn query_once(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Error> {
        self.client.query_typed(sql, params).await.inspect_err(|error| self.note(error))
    }

    /// The rows of statements of the hot path, in one transaction and one flight: one round trip once they were
    /// prepared. What was written is durable when this returns.
    ///
    /// All leave when the future is first polled after that, and nothing is ever cancelled.
    pub(super) async fn hot<const N: usize>(
        &self,
        open: &str,
        statements: [(&'static str, &[Param<'_>]); N],
    ) -> Result<[Vec<Row>; N], Error> {
        for (sql, params) in &statements {
            self.prepared(sql, params).await?;
        }
        // In the order in which they are polled first.
        let (opened, results, closed) = join3(
            self.run(open),
            join_all(statements.map(|(sql, params)| self.query(sql, params))),
            self.run("commit"),
        )
        .await;
        // The first failure is the cause of those behind it. Should the opening have failed, the statements ran by
        // themselves: that is as good, but it is not known which, and the caller asks again.
        opened?;
        let rows = results.into_iter().collect::<Result<Vec<_>, Error>>()?;
        closed?;
        // As many results as statements.
        Ok(rows.try_into().expect("one result per statement"))
    }

    /// The rows of one statement of the hot path that looks for the settings itself: without them it gives none. On a session
    /// that has them it is a transaction of its own.
    pub(super) async fn fly(
        &self,
        open: &str,
        sql: &'static str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, Error> {
        if open == OPEN_HOT && self.has_settings.load(Ordering::SeqCst) {
            return self.query(sql, params).await;
        }
        // In a box of its own: it is large, and a session of ours does not come here twice.
        let [rows] = Box::pin(self.hot(open, [(sql, params)])).await?;
        Ok(rows)
    }

    /// Whether the session has the settings of the hot path.
    pub(super) fn settings(&self, are_there: bool) {
        self.has_settings.store(are_there, Ordering::SeqCst);
    }

    /// The types of an array of fresh records and of one of finishes. They are of this database.
    pub(super) async fn row_types(&self) -> Result<&[Type; 2], Error> {
        let ask = async || {
            let rows = self.query_once(include_str!("sql/row_types.sql"), &[]).await?;
            // The query has no source of rows, so it gives exactly one.
            let row = rows.first().expect("one row");
            let ty = |name: &str, column| -> Result<Type, Error> {
                let row_ty = Kind::Composite(Vec::new());
                let member = Type::new(name.to_owned(), row.try_get(column + 1)?, row_ty, String::new());
                Ok(Type::new(format!("_{name}"), row.try_get(column)?, Kind::Array(member), String::new()))
            };
            Ok([ty("ibid_fresh_row", 0)?, ty("ibid_finish_row", 2)?])
        };
        self.row_types.get_or_try_init(ask).await
    }

    async fn query(&self, sql: &'static str, params: &[Param<'_>]) -> Result<Vec<Row>, Error> {
        match self.prepared(sql, params).await? {
            None => self.query_once(sql, params).await,
            Some(statement) => {
                let values: Vec<_> = params.iter().map(|(value, _)| *value).collect();
                self.client.query(&statement, &values).await.inspect_err(|error| self.note(error))
            }
        }
    }

    /// The statement, prepared; none if statements are sent whole.
    pub(super) async fn prepared(
        &self,
        sql: &'static str,
        params: &[Param<'_>],
    ) -> Result<Option<Statement>, Error> {
        if !self.prepares {
            return Ok(None);
        }
        // Each text is one constant of this crate, so its address names it.
        let name = sql.as_ptr().addr();
        if let Some(statement) = lock(&self.statements).get(&name) {
            return Ok(Some(statement.clone()));
        }
        let types: Vec<Type> = params.iter().map(|(_, ty)| ty.clone()).collect();
        let statement = self.client.prepare_typed(sql, &types).await.inspect_err(|error| self.note(error))?;
        lock(&self.statements).insert(name, statement.clone());
        Ok(Some(statement))
    }

    /// Statements without parameters, as they stand.
    pub(super) async fn run(&self, sql: &str) -> Result<(), Error> {
        self.client.batch_execute(sql).await.inspect_err(|error| self.note(error))
    }

    /// Which of these policies are not surely stored.
    pub(super) fn unsure_policies(&self, digests: impl Iterator<Item = i64>) -> Vec<i64> {
        lock(&self.policies).unsure(digests, Instant::now())
    }

    /// These policies are stored.
    pub(super) fn trust_policies(&self, digests: impl IntoIterator<Item = i64>) {
        lock(&self.policies).trust(digests, Instant::now());
    }

    /// What was warned of before has nothing to do with what comes next.
    pub(super) fn forget_warnings(&self) {
        self.warned.store(false, Ordering::SeqCst);
    }

    /// Whether a warning came with what was just written. Then it is as if the reply were lost: a synchronous standby
    /// may not have it.
    pub(super) fn was_warned(&self) -> bool {
        let warned = self.warned.swap(false, Ordering::SeqCst);
        if warned {
            self.spoilt.store(true, Ordering::SeqCst);
        }
        warned
    }

    /// For statements of callers, inside a transaction that [`Connection::alone`] guards.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// From here on it is not used again, unless what it was used for came to its end.
    pub(super) fn alone(&self, ended: bool) {
        self.spoilt.store(!ended, Ordering::SeqCst);
    }

    fn note(&self, error: &Error) {
        if failure::spoils_connection(error) {
            self.spoilt.store(true, Ordering::SeqCst);
        }
    }
}

/// Policies that were stored, and when. They may be gone although the connection is not: behind a pooler it outlives a
/// failover, and a table may be restored under it. A record that names one that is not there can't be read, so nobody is
/// trusted for long.
#[derive(Debug, Default)]
struct Trusted(HashMap<i64, Instant>);

impl Trusted {
    /// Which of these are not to be trusted at this instant.
    fn unsure(&self, digests: impl Iterator<Item = i64>, at: Instant) -> Vec<i64> {
        let is_fresh = |digest: &i64| self.0.get(digest).is_some_and(|since| at < *since + TRUSTED_FOR);
        digests.filter(|digest| !is_fresh(digest)).collect()
    }

    fn trust(&mut self, digests: impl IntoIterator<Item = i64>, at: Instant) {
        self.0.extend(digests.into_iter().map(|digest| (digest, at)));
    }
}

/// Where `url` leads, as people may see it. It touches nothing but the text.
pub(super) fn shown_url(url: &str) -> Result<String, PostgresOpenError> {
    let (config, _) = parsed(url, &mut PostgresOptions::default())?;
    Ok(shown(&config))
}

fn shown(config: &Config) -> String {
    let ports = config.get_ports();
    let host = |(place, host): (usize, &Host)| {
        let port = ports.get(place).or(ports.first()).copied().unwrap_or(5432);
        match host {
            Host::Tcp(name) => format!("{name}:{port}"),
            Host::Unix(path) => format!("{}:{port}", path.display()),
        }
    };
    let hosts: Vec<String> = config.get_hosts().iter().enumerate().map(host).collect();
    let database = config.get_dbname().or(config.get_user()).unwrap_or_default();
    format!("postgres://{}/{database}", hosts.join(","))
}

fn parsed(url: &str, options: &mut PostgresOptions) -> Result<(Config, Wish), PostgresOpenError> {
    let mut wish = Wish::default();
    let url = take_ours(url, options, &mut wish)?;
    let config = Config::from_str(&url).map_err(|_| PostgresOpenError::BadUrl)?;
    match config.get_hosts().is_empty() {
        true => Err(PostgresOpenError::BadUrl),
        false => Ok((config, wish)),
    }
}

/// Takes the parameters that are ours out of a URL; the driver refuses what it does not know.
fn take_ours(url: &str, options: &mut PostgresOptions, tls: &mut Wish) -> Result<String, PostgresOpenError> {
    let Some((base, query)) = url.split_once('?') else { return Ok(url.to_owned()) };
    let mut theirs = Vec::new();
    for parameter in query.split('&') {
        let bad = |_| PostgresOpenError::BadUrl;
        match parameter.split_once('=') {
            Some(("prepare", value)) => options.prepare = value.parse().map_err(bad)?,
            Some(("accept_weak_durability", value)) => {
                options.accept_weak_durability = value.parse().map_err(bad)?;
            }
            Some(("connections_max", value)) => {
                options.connections_max = value.parse().map_err(|_| PostgresOpenError::BadUrl)?;
            }
            Some((name, value)) if tls.take(name, value)? => {}
            _ => theirs.push(parameter),
        }
    }
    Ok(if theirs.is_empty() { base.to_owned() } else { format!("{base}?{}", theirs.join("&")) })
}

/// Makes connections for a pool.
#[derive(Debug)]
pub(super) struct Manager {
    place: Arc<Place>,
    hot: bool,
}

impl managed::Manager for Manager {
    type Type = Connection;
    type Error = PostgresOpenError;

    async fn create(&self) -> Result<Connection, PostgresOpenError> {
        // In a box of its own: it is large, and whoever asks for a connection nearly always finds one.
        match self.hot {
            true => Box::pin(self.place.connect_hot()).await,
            false => Box::pin(self.place.connect()).await,
        }
    }

    async fn recycle(&self, connection: &mut Connection, _: &Metrics) -> RecycleResult<PostgresOpenError> {
        if connection.client.is_closed() || connection.spoilt.load(Ordering::SeqCst) {
            return Err(RecycleError::message("closed"));
        }
        Ok(())
    }
}

pub(super) type Pool = managed::Pool<Manager>;

/// The connections to a place, as many as its options allow.
#[derive(Debug)]
pub(super) struct Pools {
    /// For the batches of the engine.
    hot: Pool,
    /// For everything else, which has no need of settings.
    any: Pool,
}

impl Pools {
    pub(super) fn new(place: &Arc<Place>) -> Pools {
        let max = place.options.connections_max.max(1);
        let any = pool(place, false, max - max.div_ceil(2).min(HOT_MAX).min(max - 1));
        // A single connection serves both.
        let hot = if max == 1 { any.clone() } else { pool(place, true, max - any.status().max_size) };
        Pools { hot, any }
    }

    /// A connection for a batch.
    pub(super) async fn hot(&self, op: &'static str) -> Result<Object<Manager>, StoreError> {
        take(&self.hot, &self.any, op).await
    }

    /// A connection for anything else.
    pub(super) async fn any(&self, op: &'static str) -> Result<Object<Manager>, StoreError> {
        take(&self.any, &self.hot, op).await
    }
}

fn pool(place: &Arc<Place>, hot: bool, size: usize) -> Pool {
    let pool = Pool::builder(Manager { place: place.clone(), hot })
        .max_size(size)
        .wait_timeout(Some(place.options.connection_wait))
        // Connecting has limits of its own, in the configuration.
        .create_timeout(None)
        .runtime(deadpool::Runtime::Tokio1);
    // It fails only for timeouts without a runtime.
    pool.build().expect("a runtime was named")
}

/// A connection from one pool, or from the other where that is sooner: if all of this one are in use and the other has one to
/// spare, or if the server has no more for this one. What is there serves for all.
async fn take(first: &Pool, second: &Pool, op: &'static str) -> Result<Object<Manager>, StoreError> {
    let at_once = Timeouts { wait: Some(Duration::ZERO), ..first.timeouts() };
    let mut got = first.timeout_get(&at_once).await;
    if matches!(got, Err(PoolError::Timeout(TimeoutType::Wait))) {
        if second.status().available > 0
            && let Ok(connection) = second.timeout_get(&at_once).await
        {
            return Ok(connection);
        }
        got = first.get().await;
    }
    let error = match got {
        Ok(connection) => return Ok(connection),
        Err(error) => error,
    };
    if matches!(&error, PoolError::Backend(error) if !error.is_lasting())
        && second.status().size > 0
        && let Ok(connection) = second.get().await
    {
        return Ok(connection);
    }
    Err(match error {
        PoolError::Backend(error) if error.is_lasting() => StoreError::lasting(KIND, op, error),
        PoolError::Backend(error) => StoreError::transient(KIND, op, error),
        PoolError::Timeout(TimeoutType::Wait) => {
            StoreError::transient(KIND, op, "all connections are in use")
        }
        other => StoreError::transient(KIND, op, other.to_string()),
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing in here panics half-way through a change.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens the transaction of [`Connection::hot`].
pub(super) const OPEN_HOT: &str = include_str!("sql/open_hot.sql");

/// What a session of the hot path starts with: `open_hot.sql` says why.
const SETTINGS: &str = "-c default_transaction_isolation=read\\ committed -c plan_cache_mode=force_generic_plan \
    -c enable_seqscan=off -c enable_bitmapscan=off -c enable_tidscan=on -c enable_nestloop=on -c jit=off -c lock_timeout=250ms -c ibid.settings=on";

/// Connections of the hot path: one for each batch under way, and two for what goes by itself.
const HOT_MAX: usize = 4;

/// How long a stored policy is taken for granted. Asking again is one short round trip; and what a lost one hid is found once
/// it is stored again, before a usual lease is over.
const TRUSTED_FOR: Duration = Duration::from_secs(10);

/// A server that takes longer is as good as down; a begin waits no longer than 2 s in all.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// After this long without a sign of the other side a connection counts as broken.
const SILENCE_MAX: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn place(url: &str) -> Result<Place, PostgresOpenError> {
        Place::new(url, PostgresOptions::default())
    }

    #[test]
    fn our_url_parameters_are_split_from_the_drivers() {
        let url = "postgres://u:p@h/d?prepare=false&connect_timeout=3&connections_max=3&accept_weak_durability=true";
        let place = place(url).expect("a URL");
        let options = &place.options;
        assert_eq!(
            (options.prepare, options.connections_max, options.accept_weak_durability),
            (false, 3, true)
        );
        assert_eq!(place.config.get_connect_timeout(), Some(&Duration::from_secs(3)));
        for wrong in
            ["postgres://h/d?prepare=perhaps", "postgres://h/d?connections_max=-1", "postgres://h/d?x=y"]
        {
            assert!(matches!(self::place(wrong), Err(PostgresOpenError::BadUrl)), "{wrong}");
        }
    }

    #[test]
    fn a_cached_policy_is_stored_again_after_a_while() {
        let (mut trusted, at) = (Trusted::default(), Instant::now());
        trusted.trust([1, 2], at);
        let soon = at + TRUSTED_FOR - Duration::from_micros(1);
        assert_eq!(trusted.unsure([1, 2, 3].into_iter(), soon), [3]);
        trusted.trust([2, 3], soon);
        assert_eq!(trusted.unsure([1, 2, 3].into_iter(), at + TRUSTED_FOR), [1]);
    }

    #[test]
    fn a_hot_path_session_starts_with_its_settings() {
        let pair = |text: &str, between: &str| {
            let (name, value) = text.split_once(between).unwrap_or_else(|| panic!("no value in `{text}`"));
            (name.to_owned(), value.trim_matches('\'').to_owned())
        };
        let session: BTreeSet<_> = SETTINGS
            .split("-c ")
            .skip(1)
            .map(|setting| pair(&setting.trim_end().replace("\\ ", " "), "="))
            .collect();
        let sql: String = OPEN_HOT.lines().filter(|line| !line.starts_with("--")).collect();
        let transaction: BTreeSet<_> = sql
            .split(';')
            .map(|statement| match statement.strip_prefix("begin isolation level ") {
                Some(level) => ("default_transaction_isolation".to_owned(), level.to_owned()),
                None => pair(statement.strip_prefix("set local ").expect("a setting"), " = "),
            })
            .collect();
        assert_eq!(session, transaction);
    }

    #[test]
    fn a_place_is_shown_without_user_and_password() {
        let shown = |url: &str| place(url).expect("a URL").shown();
        assert_eq!(shown("postgres://u:p%40ss@db.example:6432/pay"), "postgres://db.example:6432/pay");
        assert_eq!(shown("postgresql://u:p@a,b:5433/pay"), "postgres://a:5432,b:5433/pay");
        assert!(!format!("{:?}", place("postgres://u:hunter2@h/d")).contains("hunter2"));
    }
}
