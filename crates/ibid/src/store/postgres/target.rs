//! The server that a URL names: how the URL is read, and how a connection is dialled.

use std::fmt::Write as _;
use std::future::poll_fn;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio_postgres::config::{Host, TargetSessionAttrs};
use tokio_postgres::error::Severity;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{AsyncMessage, CancelToken, Config, Error, NoTls, Socket};

use super::connection::PostgresConnection;
use super::tls::{PostgresTlsOptions, Tls};
use super::{PostgresOpenError, PostgresOptions, error, migrate, open};

/// A server and the options it is used with.
#[derive(Debug)]
pub(super) struct PostgresTarget {
    config: Config,
    tls: Tls,
    pub(super) options: PostgresOptions,
    /// `true` if statements are prepared: not if the options forbid it, or if a pooler was found that mixes them up.
    pub(super) prepares: AtomicBool,
    /// Until then no session is asked to start with settings, because the last one was refused.
    plain_until: Mutex<Option<Instant>>,
    /// `synchronous_commit` of the session that was checked last.
    commit_setting: Mutex<Option<String>>,
    /// A step of the schema that excludes this program; 0: there is none. No connection is used any more then.
    excluded_by: Arc<AtomicU32>,
}

impl PostgresTarget {
    /// Parses `url`. The error has nothing of the URL, because a password may be in it.
    pub(super) fn new(url: &str, mut options: PostgresOptions) -> Result<PostgresTarget, PostgresOpenError> {
        let (mut config, tls_options) = parse_url(url, &mut options)?;
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
        let tls = tls_options.apply_to(&mut config)?;
        let prepares = AtomicBool::new(options.prepare);
        Ok(PostgresTarget {
            config,
            tls,
            options,
            prepares,
            plain_until: Mutex::default(),
            commit_setting: Mutex::default(),
            excluded_by: Arc::default(),
        })
    }

    /// Returns why this program cannot use a schema that needs this step, and closes all connections then.
    pub(super) fn exclude_if_needed(&self, needs: u32) -> Option<PostgresOpenError> {
        let known = migrate::newest_known_step();
        if needs > known {
            self.excluded_by.store(needs, Ordering::SeqCst);
        }
        match self.excluded_by.load(Ordering::SeqCst) {
            0 => None,
            found => Some(PostgresOpenError::FromTheFuture { display_url: self.display_url(), found, known }),
        }
    }

    /// Returns the URL without user and password, as it may be shown and logged.
    pub(super) fn display_url(&self) -> String {
        format_display_url(&self.config)
    }

    /// Connects to a server that may be written to.
    pub(super) async fn connect(&self) -> Result<PostgresConnection, PostgresOpenError> {
        let connection = self.dial().await.map_err(|error| open::unreachable(self, error))?;
        open::check(self, &connection).await?;
        Ok(connection)
    }

    /// Connects for the hot path. The session starts with its settings unless a pooler refuses that.
    pub(super) async fn connect_hot(&self) -> Result<PostgresConnection, PostgresOpenError> {
        if self.plain_until.lock().is_some_and(|until| Instant::now() < until) {
            return self.connect().await;
        }
        let mut config = self.config.clone();
        config.options(self.session_options());
        match self.dial_as(&config).await {
            Ok(connection) => {
                open::check(self, &connection).await?;
                Ok(connection)
            }
            Err(error) if error::refuses_settings(&error) => {
                let connection = self.connect().await?;
                tracing::debug!("sessions can't start with settings here: each transaction sets them");
                *self.plain_until.lock() = Some(Instant::now() + PLAIN_FOR);
                Ok(connection)
            }
            Err(error) => Err(open::unreachable(self, error)),
        }
    }

    /// Returns the start options of a hot session. `synchronous_commit` is set to the value that was checked: a value that
    /// the client sets survives a reload of the server's configuration, which could weaken it unnoticed.
    fn session_options(&self) -> String {
        let mut options = self.config.get_options().map(|own| format!("{own} ")).unwrap_or_default();
        options.push_str(SETTINGS);
        if let Some(setting) = &*self.commit_setting.lock() {
            // Writing into a string cannot fail.
            let _ = write!(options, " -c synchronous_commit={setting}");
        }
        options
    }

    /// Remembers the `synchronous_commit` of a session that was checked. A value that may lose commits is never asked for.
    pub(super) fn note_commit_setting(&self, setting: &str) {
        let is_strong = matches!(setting, "on" | "remote_apply");
        *self.commit_setting.lock() = is_strong.then(|| setting.to_owned());
    }

    /// Connects to whatever server answers.
    pub(super) async fn dial(&self) -> Result<PostgresConnection, Error> {
        self.dial_as(&self.config).await
    }

    async fn dial_as(&self, config: &Config) -> Result<PostgresConnection, Error> {
        match &self.tls {
            Tls::Off => self.dial_with(config, NoTls).await,
            #[cfg(feature = "postgres-tls")]
            Tls::On(connector) => self.dial_with(config, connector.clone()).await,
        }
    }

    async fn dial_with<T>(&self, config: &Config, tls: T) -> Result<PostgresConnection, Error>
    where
        T: MakeTlsConnect<Socket>,
        T::Stream: Send + 'static,
    {
        let (client, mut driver) = config.connect(tls).await?;
        let warned = Arc::new(AtomicBool::new(false));
        let noticed = warned.clone();
        // The task ends when the client is dropped or the connection breaks.
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| driver.poll_message(context)).await {
                // The notice is seen here before the reply that it belongs to is handed on.
                if let AsyncMessage::Notice(notice) = message
                    && notice.parsed_severity() == Some(Severity::Warning)
                {
                    let (code, message) = (notice.code().code(), notice.message());
                    tracing::warn!(code, message, "PostgreSQL warns");
                    noticed.store(true, Ordering::SeqCst);
                }
            }
        });
        Ok(PostgresConnection::new(
            client,
            self.prepares.load(Ordering::SeqCst),
            warned,
            self.excluded_by.clone(),
        ))
    }

    /// Asks the server to cancel the statement that a session runs. Best effort: the session's own time-out ends it otherwise.
    pub(super) async fn cancel(&self, token: CancelToken) {
        let sent = match &self.tls {
            Tls::Off => token.cancel_query(NoTls).await,
            #[cfg(feature = "postgres-tls")]
            Tls::On(connector) => token.cancel_query(connector.clone()).await,
        };
        if let Err(error) = sent {
            tracing::debug!(error = &error as &dyn std::error::Error, "a query could not be cancelled");
        }
    }
}

/// Returns `url` without user, password and parameters. It touches nothing but the text.
pub(super) fn display_url_of(url: &str) -> Result<String, PostgresOpenError> {
    let (config, _) = parse_url(url, &mut PostgresOptions::default())?;
    Ok(format_display_url(&config))
}

fn format_display_url(config: &Config) -> String {
    let ports = config.get_ports();
    let host = |(index, host): (usize, &Host)| {
        let port = ports.get(index).or(ports.first()).copied().unwrap_or(5432);
        match host {
            Host::Tcp(name) => format!("{name}:{port}"),
            Host::Unix(path) => format!("{}:{port}", path.display()),
        }
    };
    let hosts: Vec<String> = config.get_hosts().iter().enumerate().map(host).collect();
    let database = config.get_dbname().or(config.get_user()).unwrap_or_default();
    format!("postgres://{}/{database}", hosts.join(","))
}

fn parse_url(
    url: &str,
    options: &mut PostgresOptions,
) -> Result<(Config, PostgresTlsOptions), PostgresOpenError> {
    let mut tls_options = PostgresTlsOptions::default();
    let url = take_own_parameters(url, options, &mut tls_options)?;
    let config = Config::from_str(&url).map_err(|_| PostgresOpenError::BadUrl)?;
    match config.get_hosts().is_empty() {
        true => Err(PostgresOpenError::BadUrl),
        false => Ok((config, tls_options)),
    }
}

/// Takes ibid's own parameters out of a URL, because the driver refuses parameters that it does not know.
fn take_own_parameters(
    url: &str,
    options: &mut PostgresOptions,
    tls_options: &mut PostgresTlsOptions,
) -> Result<String, PostgresOpenError> {
    let Some((base, query)) = url.split_once('?') else { return Ok(url.to_owned()) };
    let mut others = Vec::new();
    for parameter in query.split('&') {
        let bad = |_| PostgresOpenError::BadUrl;
        match parameter.split_once('=') {
            Some(("prepare", value)) => options.prepare = value.parse().map_err(bad)?,
            Some(("hot_path", value)) => options.hot_path = value.parse().map_err(bad)?,
            Some(("durability", "weak")) => options.accept_weak_durability = true,
            Some(("connections_max", value)) => {
                options.connections_max = value.parse().map_err(|_| PostgresOpenError::BadUrl)?;
            }
            Some((name, value)) if tls_options.take(name, value)? => {}
            _ => others.push(parameter),
        }
    }
    Ok(if others.is_empty() { base.to_owned() } else { format!("{base}?{}", others.join("&")) })
}

/// Settings that a hot session starts with; `open_hot.sql` says why.
const SETTINGS: &str = "-c default_transaction_isolation=read\\ committed -c plan_cache_mode=force_generic_plan \
    -c enable_seqscan=off -c enable_bitmapscan=off -c enable_tidscan=on -c enable_nestloop=on -c jit=off -c lock_timeout=250ms -c ibid.settings=on";

/// Time for which sessions start without settings after one was refused. A pooler refuses each one, so asking once a minute costs
/// nothing; a server that failed at the wrong moment gets its settings back.
const PLAIN_FOR: Duration = Duration::from_secs(60);

/// Longest wait for a connection. A slower server is as good as down; a begin waits no longer than 2 s in all.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Time without a sign of the other side after which a connection counts as broken.
const SILENCE_MAX: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::connection::OPEN_HOT;
    use super::*;

    fn target(url: &str) -> Result<PostgresTarget, PostgresOpenError> {
        PostgresTarget::new(url, PostgresOptions::default())
    }

    #[test]
    fn our_url_parameters_are_split_from_the_drivers() {
        let url = "postgres://u:p@h/d?prepare=false&connect_timeout=3&connections_max=3&hot_path=false\
                   &durability=weak";
        let target = target(url).expect("a URL");
        let options = &target.options;
        assert_eq!(
            (options.prepare, options.connections_max, options.accept_weak_durability, options.hot_path),
            (false, 3, true, false)
        );
        assert_eq!(target.config.get_connect_timeout(), Some(&Duration::from_secs(3)));
        for wrong in ["prepare=perhaps", "hot_path=1", "connections_max=-1", "durability=none", "x=y"] {
            let url = format!("postgres://h/d?{wrong}");
            assert!(matches!(self::target(&url), Err(PostgresOpenError::BadUrl)), "{wrong}");
        }
    }

    #[test]
    fn a_hot_session_starts_with_the_settings_of_a_hot_transaction() {
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
    fn a_session_asks_only_for_a_strong_commit_setting() {
        let target = target("postgres://h/d").expect("a URL");
        target.note_commit_setting("remote_apply");
        assert!(target.session_options().ends_with("-c synchronous_commit=remote_apply"));
        target.note_commit_setting("off");
        assert!(!target.session_options().contains("synchronous_commit"));
    }

    #[test]
    fn a_target_is_shown_without_user_and_password() {
        let display_url = |url: &str| target(url).expect("a URL").display_url();
        assert_eq!(display_url("postgres://u:p%40ss@db.example:6432/pay"), "postgres://db.example:6432/pay");
        assert_eq!(display_url("postgresql://u:p@a,b:5433/pay"), "postgres://a:5432,b:5433/pay");
        assert!(!format!("{:?}", target("postgres://u:hunter2@h/d")).contains("hunter2"));
    }
}
