//! The fixture of most tests: a database, a card processor, and nodes of the API on them.

use std::future::Future;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use ibid::transaction::sqlx_postgres::SqlxPostgres;
use ibid::transaction::sqlx_sqlite::SqlxSqlite;
use ibid_testkit::client::{Client, TestRequest, TestResponse};
use ibid_testkit::postgres::Postgres;
use ibid_testkit::processor::{CardProcessor, ChargeFaults, ProcessorOptions};
use payments::db::Db;
use serde_json::{Value, json};
use sqlx::PgPool;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};
use tempfile::TempDir;

use crate::harness::{PATIENCE, Program};

#[cfg(feature = "mysql")]
use ibid::transaction::sqlx_mysql::SqlxMysql;

/// The database of one test, which is removed with the test.
pub(crate) enum TestDatabase {
    Sqlite(TempDir),
    Postgres(Box<Postgres>),
    #[cfg(feature = "mysql")]
    MariaDb(Box<ibid_testkit::mariadb::MariaDb>),
    /// One database of a server that other tests use, too.
    OnServer(Arc<Postgres>, String),
}

impl TestDatabase {
    pub(crate) fn sqlite() -> TestDatabase {
        TestDatabase::Sqlite(tempfile::tempdir().expect("a folder"))
    }

    pub(crate) fn postgres() -> TestDatabase {
        TestDatabase::Postgres(Box::new(Postgres::shared()))
    }

    #[cfg(feature = "mysql")]
    pub(crate) fn mariadb() -> TestDatabase {
        TestDatabase::MariaDb(Box::new(ibid_testkit::mariadb::MariaDb::shared()))
    }

    /// Starts a separate server, which the test may crash.
    pub(crate) fn own_postgres() -> TestDatabase {
        TestDatabase::Postgres(Box::new(Postgres::start()))
    }

    /// Starts a separate MariaDB server, which the test may crash.
    #[cfg(feature = "mysql")]
    pub(crate) fn own_mariadb() -> TestDatabase {
        TestDatabase::MariaDb(Box::new(ibid_testkit::mariadb::MariaDb::start()))
    }

    /// Kills the test's own server and starts it again.
    pub(crate) fn restart(&mut self) {
        match self {
            TestDatabase::Postgres(server) => server.restart(),
            #[cfg(feature = "mysql")]
            TestDatabase::MariaDb(server) => server.restart(),
            TestDatabase::Sqlite(_) | TestDatabase::OnServer(..) => {
                unreachable!("a server of the test's own")
            }
        }
    }

    pub(crate) fn url(&self) -> String {
        match self {
            TestDatabase::Sqlite(folder) => format!("sqlite:{}", folder.path().join("payments.db").display()),
            TestDatabase::Postgres(server) => server.url(),
            #[cfg(feature = "mysql")]
            TestDatabase::MariaDb(server) => server.url(),
            TestDatabase::OnServer(server, name) => server.url_for(name),
        }
    }

    /// Connects to the database. A node must have created the tables: to create them takes the write lock, which a stopped
    /// node may hold.
    pub(crate) async fn db(&self) -> Db {
        match self {
            TestDatabase::Sqlite(folder) => {
                let file = SqliteConnectOptions::new().filename(folder.path().join("payments.db"));
                let patient = file.busy_timeout(Duration::from_secs(10));
                let pool = SqlitePool::connect_with(patient).await.expect("the database answers");
                Db::Sqlite(SqlxSqlite(pool))
            }
            TestDatabase::Postgres(_) | TestDatabase::OnServer(..) => {
                let pool = PgPool::connect(&self.url()).await.expect("the database answers");
                Db::Postgres(SqlxPostgres(pool))
            }
            #[cfg(feature = "mysql")]
            TestDatabase::MariaDb(_) => {
                let pool = sqlx::MySqlPool::connect(&self.url()).await.expect("the database answers");
                Db::Mysql(SqlxMysql(pool))
            }
        }
    }
}

/// Makes two tests of each function: one on SQLite and one on PostgreSQL.
macro_rules! on_both_databases {
    ($($test:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test]
            async fn $test() {
                super::$test(crate::fixture::TestDatabase::sqlite()).await;
            })*
        }
        mod postgres {
            $(#[tokio::test]
            async fn $test() {
                super::$test(crate::fixture::TestDatabase::postgres()).await;
            })*
        }
    };
}

pub(crate) use on_both_databases;

/// Starts a processor that ignores keys, so that every call charges, with these faults.
pub(crate) fn keyless_processor(faults: &str) -> CardProcessor {
    let faults = ChargeFaults::parse(faults).expect("faults");
    CardProcessor::start(ProcessorOptions { faults, ignore_keys: true, ..ProcessorOptions::default() })
}

/// A database and a processor. The test starts and kills nodes on them.
pub(crate) struct DatabaseAndProcessor {
    pub(crate) database: TestDatabase,
    pub(crate) provider: CardProcessor,
}

impl DatabaseAndProcessor {
    pub(crate) fn new(database: TestDatabase, faults: &str) -> DatabaseAndProcessor {
        DatabaseAndProcessor { database, provider: CardProcessor::with_faults(faults) }
    }

    /// Starts a node with this lease. Its chores run every 100 ms, so that tests need not wait for them.
    pub(crate) fn node(&self, lease: &str) -> Node {
        self.node_with(lease, "100ms")
    }

    /// Starts a node with this lease and this interval between sweeps.
    pub(crate) fn node_with(&self, lease: &str, sweep_every: &str) -> Node {
        Node(Program::from_command(self.serve(lease, sweep_every, "100ms")))
    }

    /// Returns the command line of a node.
    pub(crate) fn serve(&self, lease: &str, sweep_every: &str, poll_every: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_payments"));
        command.args(["--store", &self.database.url(), "--provider", &self.provider.url()]);
        command.args(["--lease", lease, "--sweep-every", sweep_every, "--poll-every", poll_every]);
        command
    }

    /// Runs a query whose only column is text.
    pub(crate) async fn texts(&self, sql: &'static str) -> Vec<String> {
        let db = self.database.db().await;
        let rows = match &db {
            Db::Postgres(SqlxPostgres(pool)) => sqlx::query_scalar(sql).fetch_all(pool).await,
            #[cfg(feature = "mysql")]
            Db::Mysql(SqlxMysql(pool)) => {
                // The store's texts are bytes of UTF-8.
                let rows = sqlx::query_scalar::<_, Vec<u8>>(sql).fetch_all(pool).await;
                let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
                rows.map(|rows| rows.into_iter().map(text).collect())
            }
            Db::Sqlite(SqlxSqlite(pool)) => sqlx::query_scalar(sql).fetch_all(pool).await,
        };
        db.close().await;
        rows.expect("a list of texts")
    }

    /// Lets every lease of a request or effect lapse now.
    ///
    /// Call it only while all nodes are killed or stopped: a running node would lose the leases it holds.
    pub(crate) async fn lapse(&self) {
        // 2 is `in_progress` for a record and `claimed` for an effect. Rows that a stopped node has locked are skipped; their
        // leases lapse by time.
        let lapse = match &self.database {
            TestDatabase::Sqlite(_) => {
                "update ibid_record set due_at = 1, watch_at = 1 where state = 2;
                 update ibid_effect set due_at = 1 where state = 2"
            }
            TestDatabase::Postgres(_) | TestDatabase::OnServer(..) => {
                "update ibid_record set due_at = 1, watch_state = state, watch_at = 1
                  where ctid in (select ctid from ibid_record where state = 2 for update skip locked);
                 update ibid_effect set due_at = 1
                  where ctid in (select ctid from ibid_effect where state = 2 for update skip locked)"
            }
            #[cfg(feature = "mysql")]
            TestDatabase::MariaDb(_) => return self.lapse_on_mariadb().await,
        };
        self.write(lapse).await;
    }

    /// An update has no `skip locked` there.
    #[cfg(feature = "mysql")]
    async fn lapse_on_mariadb(&self) {
        let Db::Mysql(SqlxMysql(pool)) = &self.database.db().await else { unreachable!("it is MariaDB") };
        for (find, lapse) in [
            (
                "select hex(id) from ibid_record where state = 2 for update skip locked",
                "update ibid_record set due_at = 1 where id = unhex(?)",
            ),
            (
                "select concat(seq) from ibid_effect where state = 2 for update skip locked",
                "update ibid_effect set due_at = 1 where seq = ?",
            ),
        ] {
            let mut tx = pool.begin().await.expect("the database answers");
            let keys: Vec<String> =
                sqlx::query_scalar(find).fetch_all(&mut *tx).await.expect("a list of rows");
            for row in keys {
                sqlx::query(lapse).bind(row).execute(&mut *tx).await.expect("the row is ours");
            }
            tx.commit().await.expect("the rows can be written");
        }
        pool.close().await;
    }

    /// Makes all effects due that wait for their next try.
    pub(crate) async fn hurry(&self) {
        // 1 is `queued`.
        self.write("update ibid_effect set due_at = 1 where state = 1 and due_at > 1").await;
    }

    async fn write(&self, sql: &'static str) {
        let db = self.database.db().await;
        let result = match &db {
            Db::Postgres(SqlxPostgres(pool)) => sqlx::raw_sql(sql).execute(pool).await.map(drop),
            #[cfg(feature = "mysql")]
            Db::Mysql(SqlxMysql(pool)) => sqlx::raw_sql(sql).execute(pool).await.map(drop),
            Db::Sqlite(SqlxSqlite(pool)) => sqlx::raw_sql(sql).execute(pool).await.map(drop),
        };
        db.close().await;
        result.expect("the rows can be written");
    }

    /// Returns whether the database accepts writes: a stopped process may hold the write lock of a whole SQLite file.
    pub(crate) async fn can_be_written(&self) -> bool {
        let db = self.database.db().await;
        let is_writable = match &db {
            Db::Postgres(_) => true,
            #[cfg(feature = "mysql")]
            Db::Mysql(_) => true,
            Db::Sqlite(SqlxSqlite(pool)) => pool.begin_with("BEGIN IMMEDIATE").await.is_ok(),
        };
        db.close().await;
        is_writable
    }

    /// Repeats a query until it returns these rows.
    pub(crate) async fn wait_for_rows(&self, sql: &'static str, rows: &[&str]) {
        wait_for(sql, async || (self.texts(sql).await == rows).then_some(())).await;
    }

    /// Returns the reference of every charge, sorted.
    pub(crate) async fn charged_references(&self) -> Vec<String> {
        let mut references = self.provider.charges("reference").await;
        references.sort();
        references
    }
}

/// One process that serves the API.
pub(crate) struct Node(pub(crate) Program);

impl Node {
    /// Posts with this token under this key.
    pub(crate) async fn post(&self, target: &str, token: &str, key: &str, body: &Value) -> TestResponse {
        self.0.call(&post_request(target, token, key, body)).await
    }

    /// Like [`Node::post`], on a node that may be killed meanwhile; it then returns `None`.
    pub(crate) async fn try_post(
        &self,
        target: &str,
        token: &str,
        key: &str,
        body: &Value,
    ) -> Option<TestResponse> {
        try_post_to(self.0.address, target, token, key, body).await
    }

    /// Repeats the request until the response is neither 409 nor 503, which ask for a retry.
    pub(crate) async fn post_until_done(
        &self,
        target: &str,
        token: &str,
        key: &str,
        body: &Value,
    ) -> TestResponse {
        wait_for("the request is done", async || {
            let answer = self.try_post(target, token, key, body).await?;
            (!matches!(answer.status, 409 | 503)).then_some(answer)
        })
        .await
    }

    pub(crate) async fn get(&self, target: &str, token: &str) -> (u16, Value) {
        let request = TestRequest::get(target).header("Authorization", format!("Bearer {token}"));
        let answer = self.0.call(&request).await;
        (answer.status, json(&answer))
    }

    /// Gets a payment repeatedly until it is no longer `pending`.
    pub(crate) async fn wait_until_settled(&self, token: &str, payment_id: &str) -> Value {
        let target = format!("/payments/{payment_id}");
        wait_for("the payment ends", async || {
            let (status, payment) = self.get(&target, token).await;
            assert_eq!(status, 200, "{payment}");
            (payment["status"] != "pending").then_some(payment)
        })
        .await
    }

    /// Lists the payments of a customer.
    pub(crate) async fn payments(&self, token: &str, customer: &str) -> Vec<Value> {
        let (status, page) = self.get(&format!("/payments?customerId={customer}"), token).await;
        assert_eq!(status, 200, "{page}");
        page["payments"].as_array().expect("a list").clone()
    }
}

/// Posts to a node that may be killed meanwhile. Returns `None` without a complete response.
pub(crate) async fn try_post_to(
    address: SocketAddr,
    target: &str,
    token: &str,
    key: &str,
    body: &Value,
) -> Option<TestResponse> {
    let mut client = Client::try_connect(address).await?;
    client.try_call(&post_request(target, token, key, body)).await.filter(|answer| !answer.cut)
}

/// Builds a `POST` with this token and this key.
pub(crate) fn post_request(target: &str, token: &str, key: &str, body: &Value) -> TestRequest {
    TestRequest::post(target)
        .header("Authorization", format!("Bearer {token}"))
        .header("Content-Type", "application/json")
        .key(key)
        .body(body.to_string())
}

pub(crate) fn json(answer: &TestResponse) -> Value {
    serde_json::from_slice(&answer.body).unwrap_or_default()
}

/// Builds the body of a payment.
pub(crate) fn payment(customer: &str, amount_cents: i64) -> Value {
    json!({ "customerId": customer, "amountCents": amount_cents, "currency": "EUR" })
}

/// Builds the body of a ride.
pub(crate) fn ride(amount_cents: i64) -> Value {
    let mut body = payment("c", amount_cents);
    body["origin"] = "home".into();
    body["destination"] = "work".into();
    body
}

/// Calls `ask` until it returns a value, and panics with `what` after [`PATIENCE`].
pub(crate) async fn wait_for<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let asking = async {
        loop {
            if let Some(value) = ask().await {
                return value;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    tokio::time::timeout(PATIENCE, asking).await.unwrap_or_else(|_| panic!("did not happen in time: {what}"))
}

/// Pause between two looks, so that polling does not slow down what it waits for.
const LOOK_EVERY: Duration = Duration::from_millis(25);
