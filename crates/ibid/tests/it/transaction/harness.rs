//! A real database with the store's tables and an application's, for any driver.

use ibid::operator::Operator;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ibid::Ibid;
use ibid::attempt::Attempt;
use ibid::outcome::{Begin, Outcome};
use ibid::store::mysql::{MysqlOptions, MysqlStore};
use ibid::store::postgres::{PostgresOptions, PostgresStore};
use ibid::store::sqlite::{SqliteOptions, SqliteStore};
use ibid::transaction::{AttemptTx, Database, OwnedTx, SqlError, SqlTx, TxError};
use ibid_core::effect::{EffectFilter, NewEffect, StoredEffect};
use ibid_core::fingerprint::RequestView;
use ibid_core::key::Key;
use ibid_core::machine::BeginRequest;
use ibid_core::policy::Policy;
use ibid_core::record::Record;
use ibid_core::response::Response;
use ibid_core::scope::{Identity, Operation, Tenant};
use ibid_core::sql::{Dialect, Param, Type};
use ibid_core::store::Store;

use crate::adapters::databases::TestDatabase;
use crate::adapters::{Adapter, PATIENT, change_schema, execute, number, query};
use crate::request_fixture::takes_over_at_start;

/// A node on the database of an application, which uses one adapter.
pub(crate) struct NodeOnDatabase<A: Adapter> {
    pub(crate) ibid: Ibid,
    /// The pool of the application.
    pub(crate) db: A::Db,
    /// A separate connection. On SQLite it must not be used while a transaction is open: there is one writer.
    observer: A::Db,
    policy: Arc<Policy>,
    pub(crate) test_db: TestDatabase,
}

impl<A: Adapter> NodeOnDatabase<A> {
    pub(crate) async fn new(test_db: TestDatabase) -> NodeOnDatabase<A> {
        NodeOnDatabase::under(Policy::one_transaction(), test_db).await
    }

    pub(crate) async fn under(policy: Policy, test_db: TestDatabase) -> NodeOnDatabase<A> {
        let world = NodeOnDatabase::open(policy, test_db).await;
        change_schema(&world.observer, "create table payment (key text not null, by_whom text not null)")
            .await;
        world
    }

    /// Opens an existing database, as another process.
    #[cfg(feature = "failpoints")]
    pub(crate) async fn open_existing(test_db: TestDatabase) -> NodeOnDatabase<A> {
        NodeOnDatabase::open(Policy::one_transaction(), test_db).await
    }

    async fn open(policy: Policy, test_db: TestDatabase) -> NodeOnDatabase<A> {
        let ibid = node(&test_db).await;
        let (db, observer) = (A::open(&test_db, 4, PATIENT).await, A::open(&test_db, 1, PATIENT).await);
        NodeOnDatabase { ibid, db, observer, policy: Arc::new(policy), test_db }
    }

    /// Starts an engine of another process on the same database.
    pub(crate) async fn other_node(&self) -> Ibid {
        node(&self.test_db).await
    }

    pub(crate) fn ask(&self, key: &str) -> BeginRequest {
        self.ask_for(key, b"{}")
    }

    /// Builds a request with this body, under the same key.
    pub(crate) fn ask_for(&self, key: &str, body: &'static [u8]) -> BeginRequest {
        let identity = Identity {
            tenant: Tenant::only(),
            operation: Operation { method: "POST".into(), path: "/pay".into() },
            key: Key::stored(key).unwrap(),
        };
        self.ibid.ask(identity, self.policy.clone(), Arc::new(Body(body)))
    }

    pub(crate) async fn begin(&self, key: &str) -> Attempt {
        self.begin_on(&self.ibid, key).await
    }

    pub(crate) async fn begin_on(&self, ibid: &Ibid, key: &str) -> Attempt {
        match ibid.begin(self.ask(key)).await.unwrap() {
            Begin::Run(attempt) => *attempt,
            other => panic!("`{key}` is not to be run: {other:?}"),
        }
    }

    /// Begins inside a transaction; panics unless this request is to run.
    pub(crate) async fn begin_inside(&self, key: &str) -> Box<AttemptTx<'static, <A::Db as Database>::Tx>> {
        match self.ibid.begin_inside(self.ask(key), &self.db, PATIENT).await.unwrap() {
            Begin::Run(inside) => inside,
            Begin::Skip(begun) => panic!("`{key}` is not to be run: {begun:?}"),
        }
    }

    pub(crate) async fn tx(&self) -> <A::Db as Database>::Tx {
        self.db.begin().await.unwrap()
    }

    /// Runs a statement on the separate connection.
    pub(crate) async fn sql(&self, sql: &str) {
        let mut tx = self.observer.begin().await.unwrap();
        execute(&mut tx, sql, &[]).await.unwrap();
        tx.commit().await.unwrap();
    }

    /// Changes the schema on the separate connection.
    pub(crate) async fn change_schema(&self, sql: &str) {
        change_schema(&self.observer, sql).await;
    }

    /// Queries a number on the separate connection.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        let mut tx = self.observer.begin().await.unwrap();
        let number = number(&mut tx, sql).await;
        tx.rollback().await.unwrap();
        number
    }

    /// Queries a text within a transaction.
    pub(crate) async fn text<T: SqlTx>(tx: &mut T, sql: &str) -> String {
        query(tx, sql, &[Type::Text], &[]).await.unwrap().remove(0).text().unwrap()
    }

    pub(crate) async fn payments(&self, key: &str) -> i64 {
        self.number(&format!("select count(*) from payment where key = '{key}'")).await
    }

    /// Returns whether the one payment is by `whom`.
    pub(crate) async fn paid_by(&self, key: &str, whom: &str) -> bool {
        let sql = format!("select count(*) from payment where key = '{key}' and by_whom = '{whom}'");
        self.number(&sql).await == 1
    }

    pub(crate) async fn effects(&self, key: &str) -> Vec<StoredEffect> {
        let filter = EffectFilter::default().with(|filter| filter.record = Some(self.ask(key).id));
        Operator::new(&self.ibid).effects(filter).await.unwrap().0
    }

    pub(crate) async fn record(&self, key: &str) -> Option<Arc<Record>> {
        let id = self.ask(key).id;
        self.ibid.store().load(id).await.unwrap().map(|stored| stored.record)
    }

    /// Makes the lease lapse. The clock is not moved, because engines would notice the jump and take nothing over.
    pub(crate) async fn lapse(&self, key: &str) {
        self.set("due_at = 1, watch_at = 1", "watch_state = state", &format!("key = '{key}'")).await;
    }

    /// Makes some records and their tombstones removable.
    pub(crate) async fn age(&self, which: &str) {
        self.set("expires_at = 1, purge_at = 1, reap_at = 1", "", which).await;
    }

    /// Moves the first request back in time. PostgreSQL and MySQL find the bodies of a record by that instant, so they move too.
    pub(crate) async fn grow_older(&self, key: &str, hours: i64) {
        let mut tx = self.observer.begin().await.unwrap();
        let (micros, which) = (hours * 3_600_000_000, format!("r.key = '{key}'"));
        let of_the_record = format!("{which} and b.born_at = r.created_at and b.birth = r.birth");
        let bodies = match tx.dialect() {
            Dialect::Postgres => Some(format!(
                "update ibid_body b set born_at = b.born_at - {micros} from ibid_record r where {of_the_record}"
            )),
            Dialect::Mysql => Some(format!(
                "update ibid_body b, ibid_record r set b.born_at = b.born_at - {micros} where {of_the_record}"
            )),
            Dialect::Sqlite => None,
        };
        if let Some(bodies) = bodies {
            execute(&mut tx, &bodies, &[]).await.unwrap();
        }
        let record = format!("update ibid_record as r set created_at = created_at - {micros} where {which}");
        execute(&mut tx, &record, &[]).await.unwrap();
        tx.commit().await.unwrap();
    }

    /// Updates records, with a column that only PostgreSQL has.
    async fn set(&self, columns: &str, on_postgres: &str, which: &str) {
        let mut tx = self.observer.begin().await.unwrap();
        let columns = match tx.dialect() {
            Dialect::Postgres if !on_postgres.is_empty() => format!("{columns}, {on_postgres}"),
            Dialect::Postgres | Dialect::Sqlite => columns.to_owned(),
            Dialect::Mysql => columns.replace(", watch_at = 1", ""),
        };
        execute(&mut tx, &format!("update ibid_record set {columns} where {which}"), &[]).await.unwrap();
        tx.commit().await.unwrap();
    }

    /// Checks that nothing is left of a transaction.
    pub(crate) async fn nothing_of(&self, key: &str) {
        assert_eq!(self.payments(key).await, 0, "no payment of `{key}`");
        assert!(self.effects(key).await.is_empty(), "no effect of `{key}`");
    }

    /// Returns the response that a retry gets.
    pub(crate) async fn replay(&self, key: &str) -> Response {
        // At a node with an empty cache.
        match self.other_node().await.begin(self.ask(key)).await.unwrap() {
            Begin::Skip(Outcome::Completed(kept)) => (*kept.response).clone(),
            other => panic!("`{key}` is not replayed: {other:?}"),
        }
    }
}

async fn node(test_db: &TestDatabase) -> Ibid {
    let store: Arc<dyn Store> = if test_db.at.starts_with("postgres:") {
        let options = PostgresOptions::default().with(|options| options.connection_wait = PATIENT);
        Arc::new(PostgresStore::open(&test_db.at, options).await.unwrap())
    } else if test_db.at.starts_with("mysql:") {
        let options = MysqlOptions::default().with(|options| options.connection_wait = PATIENT);
        Arc::new(MysqlStore::open(&test_db.at, options).await.unwrap())
    } else {
        let options = SqliteOptions::default().with(|options| options.busy_timeout = PATIENT);
        Arc::new(SqliteStore::open(test_db.at.as_ref(), options).unwrap())
    };
    let patient = takes_over_at_start().with(|settings| {
        settings.begin_timeout = PATIENT;
        settings.finish_wait = PATIENT;
    });
    Ibid::start(store, patient).await.unwrap()
}

/// Inserts a business row, in the caller's own transaction.
pub(crate) async fn pay<T: SqlTx>(tx: &mut T, key: &str, whom: &str) -> Result<(), SqlError> {
    let sql = "insert into payment (key, by_whom) values ($1, $2)";
    execute(tx, sql, &[Param::Text(key), Param::Text(whom)]).await.map(drop)
}

/// Inserts a business row and enqueues an effect.
pub(crate) async fn pay_and_charge<T: OwnedTx>(
    inside: &mut AttemptTx<'_, T>,
    key: &str,
    whom: &str,
) -> Result<(), TxError> {
    pay(&mut **inside, key, whom).await?;
    inside.enqueue(NewEffect::new("charge", "charge", "42")).await
}

pub(crate) fn answer(status: u16) -> Response {
    Response::plain(status, "text/plain", format!("answer {status}"))
}

pub(crate) fn is_stored(finished: &Outcome, status: u16) -> bool {
    matches!(finished, Outcome::Completed(kept) if kept.response.status == status)
}

/// Waits until the condition holds; the test runner ends a test that waits in vain.
pub(crate) async fn until<F: Future<Output = bool>>(mut is_so: impl FnMut() -> F) {
    while !is_so().await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A database that counts how often a transaction is opened.
pub(crate) struct Tries<D> {
    inner: D,
    begun: AtomicU32,
}

impl<D> Tries<D> {
    pub(crate) fn at(inner: D) -> Tries<D> {
        Tries { inner, begun: AtomicU32::new(0) }
    }

    /// Waits until that many transactions were opened.
    pub(crate) async fn reach(&self, tries: u32) {
        until(async || self.begun.load(Ordering::SeqCst) >= tries).await;
    }
}

impl<D: Database> Database for Tries<D> {
    type Tx = D::Tx;

    async fn begin(&self) -> Result<D::Tx, SqlError> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        self.inner.begin().await
    }
}

struct Body(&'static [u8]);

impl RequestView for Body {
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
        self.0
    }
}
