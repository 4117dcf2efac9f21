//! A database, a processor and nodes of the API around them: what every story of the API begins with.

use std::future::Future;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use ibid_testkit::client::{Client, TestRequest, TestResponse};
use ibid_testkit::postgres::Postgres;
use ibid_testkit::processor::{CardProcessor, ChargeFaults, ProcessorOptions};
use payments::db::Db;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{PATIENCE, Program};

/// Where a story's tables are; it goes with the story.
pub(crate) enum Place {
    Sqlite(TempDir),
    Postgres(Box<Postgres>),
    /// One database of a server that other stories use too.
    Database(Arc<Postgres>, String),
}

impl Place {
    pub(crate) fn sqlite() -> Place {
        Place::Sqlite(tempfile::tempdir().expect("a folder"))
    }

    pub(crate) fn postgres() -> Place {
        Place::Postgres(Box::new(Postgres::shared()))
    }

    /// On a server that the story may crash.
    pub(crate) fn own_postgres() -> Place {
        Place::Postgres(Box::new(Postgres::start()))
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Place::Sqlite(folder) => format!("sqlite:{}", folder.path().join("payments.db").display()),
            Place::Postgres(server) => server.url(),
            Place::Database(server, name) => server.url_for(name),
        }
    }

    /// Connects to the database of a node that has started.
    pub(crate) async fn db(&self) -> Db {
        Db::connect(&self.url()).await.expect("the database answers")
    }
}

/// Every story is told on both databases.
macro_rules! on_both_databases {
    ($($story:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test]
            async fn $story() {
                super::$story(crate::world::Place::sqlite()).await;
            })*
        }
        mod postgres {
            $(#[tokio::test]
            async fn $story() {
                super::$story(crate::world::Place::postgres()).await;
            })*
        }
    };
}

pub(crate) use on_both_databases;

/// A processor that charges again for the same key, with these faults.
pub(crate) fn keyless_processor(faults: &str) -> CardProcessor {
    let faults = ChargeFaults::parse(faults).expect("faults");
    CardProcessor::start(ProcessorOptions { faults, ignore_keys: true, ..ProcessorOptions::default() })
}

/// A database with a processor. Nodes are started on it and killed as the story wants.
pub(crate) struct World {
    pub(crate) place: Place,
    pub(crate) provider: CardProcessor,
}

impl World {
    pub(crate) fn new(place: Place, faults: &str) -> World {
        World { place, provider: CardProcessor::with_faults(faults) }
    }

    /// A node whose holders may be silent for so long, and whose chores do not keep a story waiting.
    pub(crate) fn node(&self, lease: &str) -> Node {
        self.node_with(lease, "100ms")
    }

    /// A node that looks for lapsed requests so often.
    pub(crate) fn node_with(&self, lease: &str, sweep_every: &str) -> Node {
        Node(Program::of(self.serve(lease, sweep_every, "100ms")))
    }

    /// The command of a node.
    pub(crate) fn serve(&self, lease: &str, sweep_every: &str, poll_every: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_payments"));
        command.args(["--store", &self.place.url(), "--provider", &self.provider.url()]);
        command.args(["--lease", lease, "--sweep-every", sweep_every, "--poll-every", poll_every]);
        command
    }

    /// The one column of a question to the database.
    pub(crate) async fn texts(&self, sql: &'static str) -> Vec<String> {
        let db = self.place.db().await;
        let found = match &db {
            Db::Postgres(pool) => sqlx::query_scalar(sql).fetch_all(pool).await,
            Db::Sqlite(pool) => sqlx::query_scalar(sql).fetch_all(pool).await,
        };
        db.close().await;
        found.expect("a list of texts")
    }

    /// Lets every lease of a request or effect lapse now. For when all nodes are killed or stopped: a live one would
    /// lose what it holds.
    pub(crate) async fn lapse(&self) {
        // 2 is `in_progress`, and `claimed`. What a stopped node has locked lapses in its own time.
        let lapse = match &self.place {
            Place::Sqlite(_) => {
                "update ibid_record set due_at = 1 where state = 2;
                 update ibid_effect set due_at = 1 where state = 2"
            }
            Place::Postgres(_) | Place::Database(..) => {
                "update ibid_record set due_at = 1, watch_state = state, watch_at = 1
                  where ctid in (select ctid from ibid_record where state = 2 for update skip locked);
                 update ibid_effect set due_at = 1
                  where ctid in (select ctid from ibid_effect where state = 2 for update skip locked)"
            }
        };
        self.write(lapse).await;
    }

    /// Makes effects that wait for their next try due now.
    pub(crate) async fn hurry(&self) {
        // 1 is `queued`.
        self.write("update ibid_effect set due_at = 1 where state = 1 and due_at > 1").await;
    }

    async fn write(&self, sql: &'static str) {
        let db = self.place.db().await;
        let written = match &db {
            Db::Postgres(pool) => sqlx::raw_sql(sql).execute(pool).await.map(drop),
            Db::Sqlite(pool) => sqlx::raw_sql(sql).execute(pool).await.map(drop),
        };
        db.close().await;
        written.expect("the rows can be written");
    }

    /// Whether nobody holds a whole file.
    pub(crate) async fn can_be_written(&self) -> bool {
        let db = self.place.db().await;
        let free = match &db {
            Db::Postgres(_) => true,
            Db::Sqlite(pool) => pool.begin_with("BEGIN IMMEDIATE").await.is_ok(),
        };
        db.close().await;
        free
    }

    /// Asks until the answer is this.
    pub(crate) async fn comes_to(&self, sql: &'static str, wanted: &[&str]) {
        eventually(sql, async || (self.texts(sql).await == wanted).then_some(())).await;
    }

    /// Returns the reference of every charge, sorted.
    pub(crate) async fn charged(&self) -> Vec<String> {
        let mut references = self.provider.charges("reference").await;
        references.sort();
        references
    }
}

/// One process of the API.
pub(crate) struct Node(pub(crate) Program);

impl Node {
    /// Posts as this account, under this key.
    pub(crate) async fn post(&self, target: &str, token: &str, key: &str, body: &Value) -> TestResponse {
        self.0.call(&posted(target, token, key, body)).await
    }

    /// The same on a node that may be killed meanwhile.
    pub(crate) async fn try_post(
        &self,
        target: &str,
        token: &str,
        key: &str,
        body: &Value,
    ) -> Option<TestResponse> {
        try_post_to(self.0.address, target, token, key, body).await
    }

    /// Posts until it is carried out: 409 and 503 say "the same again, later".
    pub(crate) async fn post_until_done(
        &self,
        target: &str,
        token: &str,
        key: &str,
        body: &Value,
    ) -> TestResponse {
        eventually("the request is carried out", async || {
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

    /// Looks at a payment until it has ended.
    pub(crate) async fn settled(&self, token: &str, payment_id: &str) -> Value {
        let target = format!("/payments/{payment_id}");
        eventually("the payment ends", async || {
            let (status, payment) = self.get(&target, token).await;
            assert_eq!(status, 200, "{payment}");
            (payment["status"] != "pending").then_some(payment)
        })
        .await
    }

    /// All payments of a customer.
    pub(crate) async fn payments(&self, token: &str, customer: &str) -> Vec<Value> {
        let (status, page) = self.get(&format!("/payments?customerId={customer}"), token).await;
        assert_eq!(status, 200, "{page}");
        page["payments"].as_array().expect("a list").clone()
    }
}

/// Posts to a node that may be killed meanwhile, and then gives no answer.
pub(crate) async fn try_post_to(
    address: SocketAddr,
    target: &str,
    token: &str,
    key: &str,
    body: &Value,
) -> Option<TestResponse> {
    let mut client = Client::try_connect(address).await?;
    client.try_call(&posted(target, token, key, body)).await.filter(|answer| !answer.cut)
}

/// A request as this account, under this key.
pub(crate) fn posted(target: &str, token: &str, key: &str, body: &Value) -> TestRequest {
    TestRequest::post(target)
        .header("Authorization", format!("Bearer {token}"))
        .header("Content-Type", "application/json")
        .key(key)
        .body(body.to_string())
}

pub(crate) fn json(answer: &TestResponse) -> Value {
    serde_json::from_slice(&answer.body).unwrap_or_default()
}

/// A payment's body.
pub(crate) fn payment(customer: &str, amount_cents: i64) -> Value {
    json!({ "customerId": customer, "amountCents": amount_cents, "currency": "EUR" })
}

/// A ride's body.
pub(crate) fn ride(amount_cents: i64) -> Value {
    let mut body = payment("c", amount_cents);
    body["origin"] = "home".into();
    body["destination"] = "work".into();
    body
}

/// Asks again and again until there is an answer. It may take as long as a slow machine needs, and no longer.
pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut ask: impl FnMut() -> F,
) -> T {
    let asking = async {
        loop {
            if let Some(found) = ask().await {
                return found;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    tokio::time::timeout(PATIENCE, asking).await.unwrap_or_else(|_| panic!("in vain: {what}"))
}

/// So that looking does not slow down what is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(25);
