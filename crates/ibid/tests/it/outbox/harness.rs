//! A SQLite file with a store and an application's own tables, and providers that answer as the test wants.

use std::collections::VecDeque;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::lossy_database::{Lossy, Reply};
use ibid::attempt::Attempt;
use ibid::operator::Operator;
use ibid::outbox::{
    BoxError, CallOutcome, CallResult, EffectCall, EffectHandler, RawPayload, SettledEffect, VerifyOutcome,
    Worker, WorkerBuilder, WorkerRound,
};
use ibid::outcome::{Begin, Outcome};
use ibid::store::clock::{Clock, ClockSetter};
use ibid::store::sqlite::{SqliteOptions, SqliteStore};
use ibid::transaction::Database;
use ibid::transaction::rusqlite::{Rusqlite, RusqliteTx};
use ibid::{Ibid, Settings};
use ibid_core::effect::{EffectFilter, NewEffect, StoredEffect};
use ibid_core::fingerprint::RequestView;
use ibid_core::key::Key;
use ibid_core::machine::BeginRequest;
use ibid_core::operator_action::OperatorAction;
use ibid_core::policy::Policy;
use ibid_core::record::Record;
use ibid_core::response::Response;
use ibid_core::scope::{Identity, Operation, Tenant};
use ibid_core::time::Timestamp;
use rusqlite::Connection;
use tempfile::TempDir;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// Returns a statement of the outbox on SQLite that returns effects, as a whole.
macro_rules! effects_sql {
    ($file:literal) => {
        concat!(
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/outbox/sql/sqlite/", $file)),
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/outbox/sql/sqlite/effect.sql")),
        )
    };
}

pub(super) use effects_sql;

/// A node on a SQLite file, with the tables of an application.
pub(super) struct NodeOnSqlite {
    pub(super) ibid: Ibid,
    clock: Clock,
    hands: ClockSetter,
    directory: Arc<TempDir>,
}

impl NodeOnSqlite {
    pub(super) async fn new() -> NodeOnSqlite {
        let (clock, hands) = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
        let world = NodeOnSqlite::open(Arc::new(tempfile::tempdir().unwrap()), clock, hands).await;
        world.create_tables();
        world
    }

    fn create_tables(&self) {
        self.sql("create table payment (key text primary key)");
        self.sql("create table ledger (line text not null, name text not null, payload blob not null)");
    }

    pub(super) fn clock(&self) -> Clock {
        self.clock.clone()
    }

    /// Makes another file with the same clock, on which no process has started yet.
    pub(super) async fn empty_beside(&self) -> EmptyDatabase {
        let directory = Arc::new(tempfile::tempdir().unwrap());
        EmptyDatabase { clock: self.clock.clone(), hands: self.hands.clone(), directory }
    }

    /// Starts another store and engine on the same file.
    pub(super) async fn another_process(&self) -> NodeOnSqlite {
        NodeOnSqlite::open(self.directory.clone(), self.clock.clone(), self.hands.clone()).await
    }

    async fn open(directory: Arc<TempDir>, clock: Clock, hands: ClockSetter) -> NodeOnSqlite {
        let store = open(&directory, &clock);
        // A copy waits twice as long.
        let settings =
            Settings::default().with(|settings| settings.identity_valid_for = Duration::from_secs(1));
        let ibid = Ibid::start(store, settings).await.unwrap();
        NodeOnSqlite { ibid, clock, hands, directory }
    }

    pub(super) fn file(&self) -> PathBuf {
        self.directory.path().join("app.db")
    }

    pub(super) fn ask(&self, key: &str) -> BeginRequest {
        ask(&self.ibid, key)
    }

    pub(super) async fn begin(&self, key: &str) -> Attempt {
        begin(&self.ibid, key).await
    }

    /// Makes a payment with its effects and its response, in one transaction.
    pub(super) async fn pay(&self, key: &str, effects: impl IntoIterator<Item = NewEffect>) {
        let mut attempt = self.begin(key).await;
        let mut inside = attempt.join_tx(self.tx().await).await.unwrap();
        inside.execute("insert into payment values (?1)", [key]).unwrap();
        for effect in effects {
            inside.enqueue(effect).await.unwrap();
        }
        let answer = Response::plain(201, "text/plain", "accepted".to_owned());
        assert!(matches!(inside.finish(answer).await.unwrap(), Outcome::Completed(_)));
    }

    /// Like [`Self::pay`], with the response owed by the effect.
    pub(super) async fn owe(&self, key: &str, effect: NewEffect) {
        let mut attempt = self.begin(key).await;
        let mut inside = attempt.join_tx(self.tx().await).await.unwrap();
        inside.enqueue(effect).await.unwrap();
        assert!(matches!(inside.owe().await.unwrap(), Outcome::AwaitingEffect));
    }

    pub(super) fn building(&self, provider: &Provider) -> WorkerBuilder<Rusqlite> {
        Worker::builder(self.ibid.clone(), self.database()).on("charge", provider.clone())
    }

    /// Builds a worker whose commits get these replies.
    pub(super) fn lossy_worker(&self, provider: &Provider, replies: &[Reply]) -> Worker<Lossy<Rusqlite>> {
        let database = Lossy::new(self.database(), replies);
        Worker::builder(self.ibid.clone(), database).on("charge", provider.clone()).build().unwrap()
    }

    pub(super) fn worker(&self, provider: &Provider) -> Worker<Rusqlite> {
        self.building(provider).build().unwrap()
    }

    /// Runs workers until every effect is done.
    pub(super) async fn drain(&self, provider: &Provider) {
        let worker = self.building(provider).concurrency(7).build().unwrap();
        loop {
            let idle = worker.run_once().await.unwrap().is_idle();
            let open: i64 = self
                .connection()
                .query_row("select count(*) from ibid_effect where done_at is null", [], |row| row.get(0))
                .unwrap();
            if idle && open == 0 {
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Starts a worker whose call of the only effect does not return until the gate is opened.
    pub(super) async fn silent_worker(&self) -> (Gate, JoinHandle<WorkerRound>) {
        let gate = Gate::closed("zombie");
        let worker = self.worker(&gate.provider);
        let running = tokio::spawn(async move { worker.run_once().await.unwrap() });
        gate.until_reached().await;
        (gate, running)
    }

    pub(super) fn pass(&self, seconds: u64) {
        self.hands.advance(Duration::from_secs(seconds));
    }

    pub(super) async fn effects(&self) -> Vec<StoredEffect> {
        Operator::new(&self.ibid).effects(EffectFilter::default()).await.unwrap().0
    }

    pub(super) async fn only_effect(&self) -> StoredEffect {
        let mut effects = self.effects().await;
        assert_eq!(effects.len(), 1);
        effects.remove(0)
    }

    pub(super) async fn record(&self, key: &str) -> Arc<Record> {
        self.ibid.store().load(self.ask(key).id).await.unwrap().unwrap().record
    }

    pub(super) async fn tx(&self) -> RusqliteTx {
        self.database().begin().await.unwrap()
    }

    pub(super) fn database(&self) -> Rusqlite {
        Rusqlite::new(self.connection())
    }

    fn connection(&self) -> Connection {
        let connection = Connection::open(self.file()).unwrap();
        connection.busy_timeout(Duration::from_secs(30)).unwrap();
        connection
    }

    pub(super) fn sql(&self, sql: &str) {
        self.connection().execute_batch(sql).unwrap();
    }

    /// Returns the lines that handlers wrote.
    pub(super) fn ledger(&self) -> Vec<String> {
        self.texts("select line from ledger order by rowid", [])
    }

    /// Returns the payloads of the effects of this name, in the order in which they were recorded.
    pub(super) fn payloads(&self, name: &str) -> Vec<String> {
        self.texts("select cast(payload as text) from ledger where name = ?1 order by rowid", [name])
    }

    /// Returns the query plan of a statement.
    pub(super) fn plan(&self, sql: &str) -> String {
        let connection = self.connection();
        let mut explain = connection.prepare(&format!("explain query plan {sql}")).unwrap();
        let mut rows = explain.raw_query();
        let mut plan = String::new();
        while let Some(row) = rows.next().unwrap() {
            plan += &(row.get::<_, String>(3).unwrap() + "\n");
        }
        plan
    }

    /// Runs a statement in a transaction that is rolled back. Returns the number of rows, and of steps of SQLite's machine.
    pub(super) fn steps(&self, sql: &str, params: &[&dyn rusqlite::ToSql]) -> (usize, i32) {
        let connection = self.connection();
        connection.execute_batch("begin immediate").unwrap();
        let mut statement = connection.prepare(sql).unwrap();
        let rows = statement.query_map(params, |_| Ok(())).unwrap().count();
        let steps = statement.get_status(rusqlite::StatementStatus::VmStep);
        (rows, steps)
    }

    fn texts<P: rusqlite::Params>(&self, sql: &str, params: P) -> Vec<String> {
        let connection = self.connection();
        let mut query = connection.prepare(sql).unwrap();
        query.query_map(params, |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
    }
}

fn open(directory: &TempDir, clock: &Clock) -> Arc<SqliteStore> {
    let options = SqliteOptions::default().with(|options| {
        options.clock = clock.clone();
        options.busy_timeout = Duration::from_secs(30);
    });
    Arc::new(SqliteStore::open(&directory.path().join("app.db"), options).unwrap())
}

/// A file on which no process has started yet.
pub(super) struct EmptyDatabase {
    clock: Clock,
    hands: ClockSetter,
    directory: Arc<TempDir>,
}

impl EmptyDatabase {
    pub(super) fn store(&self) -> Arc<SqliteStore> {
        open(&self.directory, &self.clock)
    }

    /// Starts an engine on it, with the application's tables.
    pub(super) async fn start(self) -> NodeOnSqlite {
        let world = NodeOnSqlite::open(self.directory, self.clock, self.hands).await;
        world.create_tables();
        world
    }
}

/// A provider that answers as the test wants, and records its calls.
#[derive(Clone)]
pub(super) struct Provider(Arc<Inner>);

struct Inner {
    name: &'static str,
    says: Box<dyn Fn(&EffectCall) -> CallOutcome + Send + Sync>,
    calls: Mutex<Vec<EffectCall>>,
    verifies: Mutex<VecDeque<VerifyOutcome>>,
    asked: Mutex<u32>,
    /// Calls in flight, and the most that ever were.
    at_once: Mutex<(u32, u32)>,
    /// Calls wait here for a permit before they return.
    gate: Option<Semaphore>,
    reached: Semaphore,
}

impl Provider {
    pub(super) fn new(
        name: &'static str,
        says: impl Fn(&EffectCall) -> CallOutcome + Send + Sync + 'static,
    ) -> Provider {
        Provider::with(name, says, None)
    }

    fn with(
        name: &'static str,
        says: impl Fn(&EffectCall) -> CallOutcome + Send + Sync + 'static,
        gate: Option<Semaphore>,
    ) -> Provider {
        Provider(Arc::new(Inner {
            name,
            says: Box::new(says),
            calls: Mutex::default(),
            verifies: Mutex::default(),
            asked: Mutex::default(),
            at_once: Mutex::default(),
            gate,
            reached: Semaphore::new(0),
        }))
    }

    pub(super) fn will_verify(&self, says: impl IntoIterator<Item = VerifyOutcome>) {
        self.0.verifies.lock().unwrap().extend(says);
    }

    /// Returns the line that it writes about an end.
    pub(super) fn line(&self, call: &EffectCall, settled: &SettledEffect) -> String {
        let what = match settled {
            SettledEffect::Done(_) => "done".to_owned(),
            SettledEffect::Dead { why } => format!("dead: {why}"),
            SettledEffect::Unknown { why } => format!("unknown: {why}"),
        };
        format!("{} {} {what}", self.0.name, call.name)
    }

    pub(super) fn calls(&self) -> Vec<EffectCall> {
        self.0.calls.lock().unwrap().clone()
    }

    /// Returns how often a call was looked up.
    pub(super) fn verify_count(&self) -> u32 {
        *self.0.asked.lock().unwrap()
    }

    /// Returns the most calls that were ever in flight at once.
    pub(super) fn at_once_max(&self) -> u32 {
        self.0.at_once.lock().unwrap().1
    }

    fn count_under_way(&self, change: i32) {
        let mut at_once = self.0.at_once.lock().unwrap();
        at_once.0 = at_once.0.checked_add_signed(change).unwrap();
        at_once.1 = at_once.1.max(at_once.0);
    }
}

impl<T: Deref<Target = Connection> + Send> EffectHandler<T> for Provider {
    type Payload = RawPayload;

    async fn call(&self, call: &EffectCall) -> CallOutcome {
        self.0.calls.lock().unwrap().push(call.clone());
        self.count_under_way(1);
        self.0.reached.add_permits(1);
        if let Some(gate) = &self.0.gate {
            gate.acquire().await.unwrap().forget();
        }
        self.count_under_way(-1);
        (self.0.says)(call)
    }

    async fn verify(&self, _: &EffectCall) -> VerifyOutcome {
        *self.0.asked.lock().unwrap() += 1;
        self.0.verifies.lock().unwrap().pop_front().unwrap_or(VerifyOutcome::Unsure)
    }

    async fn record(&self, call: &EffectCall, settled: &SettledEffect, tx: &mut T) -> Result<(), BoxError> {
        let line = self.line(call, settled);
        tx.execute("insert into ledger values (?1, ?2, ?3)", (line, &call.name, &call.payload[..]))?;
        Ok(())
    }
}

/// A provider that does not answer until the gate is opened.
pub(super) struct Gate {
    pub(super) provider: Provider,
}

impl Gate {
    pub(super) fn closed(name: &'static str) -> Gate {
        Gate { provider: Provider::with(name, |_| made_outcome(), Some(Semaphore::new(0))) }
    }

    /// Waits until a call is at the gate.
    pub(super) async fn until_reached(&self) {
        self.provider.0.reached.acquire().await.unwrap().forget();
    }

    pub(super) fn open(&self) {
        self.provider.0.gate.as_ref().unwrap().add_permits(1);
    }
}

pub(super) fn ask(ibid: &Ibid, key: &str) -> BeginRequest {
    let identity = Identity {
        tenant: Tenant::only(),
        operation: Operation { method: "POST".into(), path: "/pay".into() },
        key: Key::stored(key).unwrap(),
    };
    ibid.ask(identity, Arc::new(Policy::default()), Arc::new(Nothing))
}

pub(super) async fn begin(ibid: &Ibid, key: &str) -> Attempt {
    match ibid.begin(ask(ibid, key)).await.unwrap() {
        Begin::Run(attempt) => *attempt,
        other => panic!("not to be run: {other:?}"),
    }
}

pub(super) fn a_charge() -> CallResult {
    CallResult::default().with(|made| {
        made.result = "receipt".into();
        made.provider_id = Some("ch_1".into());
        made.response = Some(Response::plain(201, "text/plain", "paid".to_owned()));
    })
}

pub(super) fn made_outcome() -> CallOutcome {
    CallOutcome::Made(a_charge())
}

pub(super) fn not_made(why: &str) -> CallOutcome {
    CallOutcome::NotMade { why: why.into(), after: None }
}

pub(super) struct Nothing;

impl RequestView for Nothing {
    fn method(&self) -> &str {
        "POST"
    }
    fn path(&self) -> &str {
        "/pay"
    }
    fn query(&self) -> Option<&str> {
        None
    }
    fn header_lines(&self, _: &str, _: &mut dyn FnMut(&[u8])) {}
    fn body(&self) -> &[u8] {
        b"{}"
    }
}

/// An operator action with this reason.
pub(crate) fn because(reason: &str) -> OperatorAction {
    OperatorAction::new("ann", reason).expect("a name and a reason")
}
