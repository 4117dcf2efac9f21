//! An application on any of the databases: a store, the application's own tables in the same database, and a provider whose
//! calls end as the test wants.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ibid::evidence::{EvidenceReport, EvidenceResult};
use ibid::operator::Operator;
use ibid::outbox::{
    BoxError, CallOutcome, CallResult, EffectCall, EffectHandler, NewEffect, RawPayload, SettledEffect,
    VerifyOutcome, Worker,
};
use ibid::outcome::Outcome;
use ibid::store::sqlite::{SqliteOptions, SqliteStore};
use ibid::transaction::Database;
use ibid::transaction::rusqlite::Rusqlite;
use ibid::{Ibid, Settings};
use ibid_core::change::HistoryKind;
use ibid_core::effect::{EffectFilter, EffectRules, StoredEffect};
use ibid_core::evidence::{EffectRef, EventName, EvidenceSubject};
use ibid_core::machine::{AttemptResponse, EffectState, Observation};
use ibid_core::record::Record;
use ibid_core::response::Response;
use ibid_core::sql::{OwnedTx as _, Param, SqlTx, Statement, Type};
use tokio::sync::Semaphore;

use super::harness::{ask, begin};

/// One node of an application.
pub(super) struct Site<D> {
    pub(super) ibid: Ibid,
    pub(super) database: D,
    /// The folder or server, dropped with the test.
    pub(super) _place: Box<dyn std::any::Any + Send + Sync>,
}

pub(super) async fn sqlite() -> Site<Rusqlite> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("app.db");
    let busy_timeout = Duration::from_secs(30);
    let options = SqliteOptions::default().with(|options| options.busy_timeout = busy_timeout);
    let store = SqliteStore::open(&file, options).unwrap();
    let ibid = Ibid::start(Arc::new(store), Settings::default()).await.unwrap();
    let connection = rusqlite::Connection::open(&file).unwrap();
    connection.busy_timeout(busy_timeout).unwrap();
    connection.execute_batch("create table line (id integer primary key, text text)").unwrap();
    Site { ibid, database: Rusqlite::new(connection), _place: Box::new(folder) }
}

#[cfg(all(feature = "postgres", feature = "sqlx-postgres"))]
pub(super) async fn postgres() -> Site<ibid::transaction::sqlx_postgres::SqlxPostgres> {
    use ibid::store::postgres::{PostgresOptions, PostgresStore};
    let server = ibid_testkit::postgres::Postgres::shared();
    let wait = Duration::from_secs(30);
    let options = PostgresOptions::default().with(|options| options.connection_wait = wait);
    let store = PostgresStore::open(&server.url(), options).await.unwrap();
    let ibid = Ibid::start(Arc::new(store), Settings::default()).await.unwrap();
    let pool = sqlx::postgres::PgPoolOptions::new().max_connections(8).acquire_timeout(wait);
    let database = ibid::transaction::sqlx_postgres::SqlxPostgres(pool.connect(&server.url()).await.unwrap());
    sqlx::raw_sql("create table line (id bigserial primary key, text text)")
        .execute(&database.0)
        .await
        .unwrap();
    Site { ibid, database, _place: Box::new(server) }
}

#[cfg(all(feature = "mysql", feature = "sqlx-mysql"))]
pub(super) async fn mysql() -> Site<ibid::transaction::sqlx_mysql::SqlxMysql> {
    use ibid::store::mysql::{MysqlOptions, MysqlStore};
    let server = ibid_testkit::mariadb::MariaDb::shared();
    let wait = Duration::from_secs(30);
    let options = MysqlOptions::default().with(|options| options.connection_wait = wait);
    let store = MysqlStore::open(&server.url(), options).await.unwrap();
    let ibid = Ibid::start(Arc::new(store), Settings::default()).await.unwrap();
    let pool = sqlx::mysql::MySqlPoolOptions::new().max_connections(8).acquire_timeout(wait);
    let database = ibid::transaction::sqlx_mysql::SqlxMysql(pool.connect(&server.url()).await.unwrap());
    sqlx::raw_sql("create table line (id bigint auto_increment primary key, text text)")
        .execute(&database.0)
        .await
        .unwrap();
    Site { ibid, database, _place: Box::new(server) }
}

/// Runs each test on every database.
macro_rules! on_every_database {
    ($($story:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $story() {
                super::$story(super::super::every_database::sqlite().await).await;
            })*
        }
        #[cfg(all(feature = "postgres", feature = "sqlx-postgres"))]
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $story() {
                super::$story(super::super::every_database::postgres().await).await;
            })*
        }
        #[cfg(all(feature = "mysql", feature = "sqlx-mysql"))]
        mod mysql {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $story() {
                super::$story(super::super::every_database::mysql().await).await;
            })*
        }
    };
}

pub(super) use on_every_database;

impl<D: Database + Clone + 'static> Site<D> {
    /// Starts another process on the same database, without anything that this one has in memory.
    pub(super) async fn another_process(&self) -> Site<D> {
        let ibid = Ibid::start(self.ibid.store().clone(), Settings::default()).await.unwrap();
        Site { ibid, database: self.database.clone(), _place: Box::new(()) }
    }

    pub(super) async fn pay(&self, key: &str, effect: NewEffect) {
        let mut attempt = begin(&self.ibid, key).await;
        let mut inside = attempt.join_tx(self.database.begin().await.unwrap()).await.unwrap();
        inside.enqueue(effect).await.unwrap();
        let answer = Response::plain(201, "text/plain", "accepted".to_owned());
        assert!(matches!(inside.finish(answer).await.unwrap(), Outcome::Completed(_)));
    }

    /// Like [`Self::pay`], with the response owed by the effect.
    pub(super) async fn owe(&self, key: &str, effect: NewEffect) {
        let mut attempt = begin(&self.ibid, key).await;
        let mut inside = attempt.join_tx(self.database.begin().await.unwrap()).await.unwrap();
        inside.enqueue(effect.owing()).await.unwrap();
        assert!(matches!(inside.owe().await.unwrap(), Outcome::AwaitingEffect));
    }

    pub(super) fn worker(&self, psp: &Psp) -> Worker<D>
    where
        D::Tx: 'static,
    {
        Worker::builder(self.ibid.clone(), self.database.clone()).on("charge", psp.clone()).build().unwrap()
    }

    /// Returns the only effect of a key's record.
    pub(super) async fn effect(&self, key: &str) -> StoredEffect {
        let of = EffectFilter::default().with(|filter| filter.record = Some(ask(&self.ibid, key).id));
        let mut effects = Operator::new(&self.ibid).effects(of).await.unwrap().0;
        assert_eq!(effects.len(), 1);
        effects.remove(0)
    }

    /// Makes claims lapse and pauses end.
    pub(super) async fn lapse(&self) {
        let mut tx = self.database.begin().await.unwrap();
        tx.execute(&LAPSE, &[]).await.unwrap();
        tx.commit().await.unwrap();
    }

    /// Returns the only effect in the store.
    pub(super) async fn only_effect(&self) -> StoredEffect {
        let mut effects = Operator::new(&self.ibid).effects(EffectFilter::default()).await.unwrap().0;
        assert_eq!(effects.len(), 1);
        effects.remove(0)
    }

    /// Returns a reference by the key that the only effect is called under.
    pub(super) async fn by_key(&self) -> EffectRef {
        EffectRef::DownstreamKey(self.only_effect().await.downstream_key)
    }

    pub(super) async fn hear(&self, event: &str, at: &EffectRef, what: Observation) -> EvidenceResult {
        self.ibid.report_evidence(evidence_report(event, at, what, Duration::ZERO)).await.unwrap()
    }

    pub(super) async fn record(&self, key: &str) -> Arc<Record> {
        self.ibid.store().load(ask(&self.ibid, key).id).await.unwrap().unwrap().record
    }

    /// Returns the lines of this kind in the history of a key's record.
    pub(super) async fn history(&self, key: &str, what: HistoryKind) -> Vec<String> {
        let lines = self.ibid.store().browse().unwrap().history(ask(&self.ibid, key).id).await.unwrap();
        lines.into_iter().filter(|line| line.what == what).map(|line| line.detail).collect()
    }

    /// Returns the lines that handlers wrote, in order.
    pub(super) async fn lines(&self) -> Vec<String> {
        let mut tx = self.database.begin().await.unwrap();
        let rows = tx.query(&LINES, &[]).await.unwrap();
        tx.rollback().await.unwrap();
        rows.into_iter().map(|mut row| row.text().unwrap()).collect()
    }

    /// Waits until the only effect is in this state.
    pub(super) async fn until(&self, state: EffectState) {
        let there = async {
            while self.only_effect().await.state != state {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, there).await.expect("it comes to that state");
    }
}

static LAPSE: Statement =
    Statement { text: "update ibid_effect set due_at = 0 where due_at is not null", columns: &[] };
static LINES: Statement = Statement { text: "select text from line order by id", columns: &[Type::Text] };
static LINE_ON_POSTGRES: Statement = Statement { text: "insert into line (text) values ($1)", columns: &[] };
static NUMBERED_LINE: Statement = Statement { text: "insert into line (text) values (?1)", columns: &[] };

/// A provider with a prepared outcome per call; after the last, it charges.
#[derive(Clone)]
pub(super) struct Psp(Arc<Inner>);

struct Inner {
    says: Mutex<VecDeque<CallOutcome>>,
    /// Downstream keys of its calls.
    calls: Mutex<Vec<String>>,
    verifies: bool,
    /// Calls wait here for a permit before they return.
    gate: Option<Semaphore>,
    reached: Semaphore,
    /// Number of further writes of its rows that fail.
    fails: Mutex<u32>,
    /// Makes the write of its rows hang.
    sticks: bool,
}

impl Psp {
    pub(super) fn new(says: impl IntoIterator<Item = CallOutcome>) -> Psp {
        Psp::with(says, false, None)
    }

    /// Makes a provider that, when it is looked up later, says that it charged.
    pub(super) fn that_can_be_asked(says: impl IntoIterator<Item = CallOutcome>) -> Psp {
        Psp::with(says, true, None)
    }

    /// Makes a provider that does not answer before the gate is opened.
    pub(super) fn behind_a_gate(says: impl IntoIterator<Item = CallOutcome>) -> Psp {
        Psp::with(says, false, Some(Semaphore::new(0)))
    }

    /// Makes a provider that charges, and then hangs while it writes its rows.
    pub(super) fn that_sticks() -> Psp {
        Psp(Arc::new(Inner { sticks: true, ..Psp::inner([], false, None) }))
    }

    fn with(says: impl IntoIterator<Item = CallOutcome>, verifies: bool, gate: Option<Semaphore>) -> Psp {
        Psp(Arc::new(Psp::inner(says, verifies, gate)))
    }

    fn inner(says: impl IntoIterator<Item = CallOutcome>, verifies: bool, gate: Option<Semaphore>) -> Inner {
        Inner {
            says: Mutex::new(says.into_iter().collect()),
            calls: Mutex::default(),
            verifies,
            gate,
            reached: Semaphore::new(0),
            fails: Mutex::default(),
            sticks: false,
        }
    }

    pub(super) fn calls(&self) -> u32 {
        self.keys().len() as u32
    }

    /// Returns the keys that it was called under.
    pub(super) fn keys(&self) -> Vec<String> {
        self.0.calls.lock().unwrap().clone()
    }

    pub(super) async fn until_reached(&self) {
        self.0.reached.acquire().await.unwrap().forget();
    }

    pub(super) fn open(&self) {
        self.0.gate.as_ref().unwrap().add_permits(1);
    }

    /// Makes the next `times` writes of its rows fail.
    pub(super) fn fails(&self, times: u32) {
        *self.0.fails.lock().unwrap() = times;
    }

    fn must_fail(&self) -> bool {
        let mut fails = self.0.fails.lock().unwrap();
        let fail = *fails > 0;
        *fails = fails.saturating_sub(1);
        fail
    }
}

impl<T: SqlTx> EffectHandler<T> for Psp {
    type Payload = RawPayload;

    async fn call(&self, call: &EffectCall) -> CallOutcome {
        self.0.calls.lock().unwrap().push(call.downstream_key.clone());
        self.0.reached.add_permits(1);
        if let Some(gate) = &self.0.gate {
            gate.acquire().await.unwrap().forget();
        }
        let outcome = self.0.says.lock().unwrap().pop_front();
        outcome.unwrap_or_else(|| CallOutcome::Made(charge_result()))
    }

    async fn verify(&self, _: &EffectCall) -> VerifyOutcome {
        if self.0.verifies { VerifyOutcome::Made(charge_result()) } else { VerifyOutcome::Unsure }
    }

    async fn record(&self, _: &EffectCall, settled: &SettledEffect, tx: &mut T) -> Result<(), BoxError> {
        let line = match settled {
            SettledEffect::Done(made) => format!("done: {}", String::from_utf8_lossy(&made.result)),
            SettledEffect::Dead { why } => format!("dead: {why}"),
            SettledEffect::Unknown { why } => format!("unknown: {why}"),
        };
        let statement = match tx.dialect() {
            ibid_core::sql::Dialect::Postgres => &LINE_ON_POSTGRES,
            ibid_core::sql::Dialect::Sqlite | ibid_core::sql::Dialect::Mysql => &NUMBERED_LINE,
        };
        tx.execute(statement, &[Param::Text(&line)]).await?;
        if self.0.sticks {
            self.0.reached.add_permits(1);
            std::future::pending::<()>().await;
        }
        // After the insert, so that the row must be rolled back.
        if self.must_fail() { Err("the table is full".into()) } else { Ok(()) }
    }
}

/// The provider's result of a call that was made.
fn charge_result() -> CallResult {
    CallResult::default().with(|made| {
        made.result = "answer".into();
        made.provider_id = Some("ch_1".into());
        made.response = Some(Response::plain(201, "text/plain", "paid".to_owned()));
    })
}

pub(super) fn lost() -> CallOutcome {
    CallOutcome::Uncertain { why: "reset".into() }
}

/// A charge that is never repeated without a lookup.
pub(super) fn charge() -> NewEffect {
    NewEffect::new("charge", "charge", "")
}

/// A charge whose provider settles at once, without a settle pause.
pub(super) fn settled_at_once() -> NewEffect {
    let rules = EffectRules::default().with(|rules| rules.settle_ms = 0);
    charge().rules(rules)
}

/// A webhook's report that the call was executed.
pub(super) fn executed_observation(status: u16, id: &str) -> Observation {
    let response = Response::plain(status, "application/json", format!("{{\"charge\":\"{id}\"}}"));
    Observation::Executed(AttemptResponse {
        status,
        retry_after: false,
        kept: Some(Arc::new(response)),
        provider_id: Some(id.to_owned()),
        proof: None,
    })
}

pub(super) fn name(event: &str) -> EventName {
    EventName { source: "psp".to_owned(), event: event.to_owned() }
}

pub(super) fn evidence_report(
    event: &str,
    at: &EffectRef,
    what: Observation,
    age: Duration,
) -> EvidenceReport {
    let about = EvidenceSubject::Effect(at.clone());
    EvidenceReport::new(name(event), about, what).with(|report| report.age = age)
}

/// Longest wait for something that must happen.
const PATIENCE: Duration = Duration::from_secs(60);
