//! A signed webhook, a poll and an operator settle the same record at the same moment, on every store: one wins, and the
//! others learn of it. Each takes its own path: a socket, the reconciler, the operator's action.

use crate::request_fixture::takes_over_at_start;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use ibid::http::{IdempotencyLayer, TenantSource};
use ibid::operator::{Observation, Operator, OperatorAction, OperatorError, answer};
use ibid::store::clock::Clock;
use ibid::store::memory::MemoryStore;
use ibid::store::sqlite::{SqliteOptions, SqliteStore};
use ibid::upkeep::{self, LookupResult, OutcomeLookup, ReconcileStats, UnknownRequest};
use ibid::{Ibid, Settings};
use ibid_core::change::{HistoryKind, InstantChange, StoredRecord};
use ibid_core::key::Key;
use ibid_core::policy::{Policy, Reconcile};
use ibid_core::record::State;
use ibid_core::response::Response;
use ibid_core::scope::{Identity, Operation, RecordId, ScopeRule, Tenant};
use ibid_core::store::{BoxFuture, Store};
use ibid_testkit::client::{Client, TestRequest};
use ibid_testkit::contract::{LONG, TestRecord, draft, insert, nonce, put};
use ibid_testkit::faults::{FaultyStore, StoreFault};
use serde_json::Value;
use standardwebhooks::Webhook;
use tokio::net::TcpListener;
use tokio::sync::Barrier;
use tokio::task::JoinHandle;

use super::{SECRET, hook, now, unsigned_webhook};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn exactly_one_of_three_settlers_settles_a_record_on_memory() {
    one_wins(Arc::new(MemoryStore::new(Clock::system()))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn exactly_one_of_three_settlers_settles_a_record_on_sqlite() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = SqliteStore::open(&folder.path().join("ibid.db"), SqliteOptions::default());
    one_wins(Arc::new(store.expect("it opens"))).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn exactly_one_of_three_settlers_settles_a_record_on_postgres() {
    use ibid::store::postgres::{PostgresOptions, PostgresStore};
    let server = ibid_testkit::postgres::Postgres::shared();
    let store = PostgresStore::open(&server.url(), PostgresOptions::default()).await.expect("it opens");
    one_wins(Arc::new(store)).await;
}

/// Statuses that tell which racer settled a record. The first is what [`hook`] makes of `paid`.
const BY_WEBHOOK: u16 = 201;
const BY_POLL: u16 = 202;
const BY_OPERATOR: u16 = 203;

/// Number of racers: two webhooks, each at a separate node, a poll and an operator.
const RACERS: usize = 4;

async fn one_wins(store: Arc<dyn Store>) {
    let store = FaultyStore::new(store);
    let nodes = [Node::start(store.clone()).await, Node::start(store.clone()).await];
    for round in 0..ROUNDS {
        let name = unknown(&*store).await;
        let together = Arc::new(Barrier::new(RACERS));
        // Every other round all four hold their write until the last of them has decided on one. Otherwise the first to
        // begin would win most of the time.
        let before = store.commits();
        if round % 2 == 1 {
            store.set(StoreFault::Hangs);
        }
        let webhooks = [nodes[0].send_webhook(&name, &together), nodes[1].send_webhook(&name, &together)];
        let poll = spawn_poll(store.clone(), together.clone());
        let operator = spawn_resolve(store.clone(), name.id, together);
        if round % 2 == 1 {
            while store.commits() < before + RACERS {
                tokio::task::yield_now().await;
            }
            store.set(StoreFault::None);
        }

        let mut won = Vec::new();
        for webhook in webhooks {
            match webhook.await.expect("no panic") {
                (200, word) if word == "settled" => won.push(BY_WEBHOOK),
                other => assert_eq!(other, (200, "settled already".to_owned()), "round {round}"),
            }
        }
        let polled = poll.await.expect("no panic");
        assert_eq!((polled.asked, polled.dead_letters, polled.held_back), (1, 0, None));
        won.extend((0..polled.settled).map(|_| BY_POLL));
        let resolved = operator.await.expect("no panic");
        if resolved.is_ok() {
            won.push(BY_OPERATOR);
        }
        let [winner] = won[..] else { panic!("round {round}: settled by {won:?}") };

        // The history names only the winner, and so does the operator's error.
        let lines =
            store.browse().expect("a store that can be browsed").history(name.id).await.expect("a history");
        let mut lines = lines.into_iter();
        let line = lines.next().expect("a line");
        assert!(lines.next().is_none(), "round {round}: {line:?} and more");
        let (what, begins) = match winner {
            BY_WEBHOOK => (HistoryKind::Settled, "webhook: executed (event `"),
            BY_POLL => (HistoryKind::Settled, "reconciler: executed"),
            _ => (HistoryKind::Operator, "resolved as executed (203), unknown to completed, by ann: "),
        };
        assert!(line.what == what && line.detail.starts_with(begins), "round {round}: {line:?}");
        match resolved {
            Ok(stored) => assert_eq!(stored.record.note.status, Some(winner)),
            Err(OperatorError::NotNow { stored, last }) => {
                let stands = (stored.record.state, stored.record.note.status);
                assert_eq!(stands, (State::Completed, Some(winner)), "round {round}");
                assert_eq!(*last.expect("who won"), line, "round {round}");
            }
            Err(other) => panic!("round {round}: {other:?}"),
        }
        for node in &nodes {
            assert_eq!(
                node.replay_status(&name).await,
                winner,
                "round {round}: every retry gets the winner's answer"
            );
        }
    }
}

/// Inserts a record as a crash left it: sent, with an unknown outcome, and due for a lookup.
async fn unknown(store: &dyn Store) -> TestRecord {
    let identity = Arc::new(Identity {
        tenant: Tenant::new("ann").expect("a good name"),
        // The operation that the hook's mapping names.
        operation: Operation { method: "POST".into(), path: "/pay".into() },
        key: Key::stored(&format!("key-{:016x}", nonce().0)).expect("a good key"),
    });
    let name = TestRecord { id: RecordId::of(&identity, ScopeRule::Operation), identity };
    let policy = Policy::default().with(|policy| policy.reconcile = Some(Reconcile::new(LONG, 10)));
    let mut draft = draft(&name, State::Unknown);
    (draft.policy, draft.ran, draft.due_in) = (Arc::new(policy), InstantChange::Now, Some(Duration::ZERO));
    put(store, &insert(&name, draft)).await;
    name
}

/// A process that serves requests and webhooks.
struct Node {
    at: SocketAddr,
    serving: JoinHandle<()>,
}

impl Node {
    async fn start(store: Arc<FaultyStore>) -> Node {
        let ibid = Ibid::start(store, Settings::default()).await.expect("it starts");
        let tenants = TenantSource::by(|_| Ok(Tenant::new("ann").expect("a good name")));
        let guard = IdempotencyLayer::new(ibid, tenants).hooks(vec![hook()]).expect("a good hook");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let at = listener.local_addr().expect("an address");
        let serving = tokio::spawn(async move {
            axum::serve(listener, Router::new().layer(guard)).await.expect("it serves");
        });
        Node { at, serving }
    }

    /// Sends a webhook that reports the request as executed, and returns status and result.
    fn send_webhook(&self, name: &TestRecord, together: &Arc<Barrier>) -> JoinHandle<(u16, String)> {
        let (at, together) = (self.at, together.clone());
        let body = unsigned_webhook("", "paid", name.identity.key.as_str()).body;
        let (event, signed_at) = (format!("evt-{}-{}", at.port(), name.id.short()), now());
        let signature = Webhook::new(SECRET).expect("a secret").sign(&event, signed_at, body.as_bytes());
        let request = TestRequest::post("/.ibid/hooks/psp")
            .header("webhook-id", event)
            .header("webhook-timestamp", signed_at.to_string())
            .header("webhook-signature", signature.expect("a signature"))
            .body(body);
        tokio::spawn(async move {
            let mut client = Client::connect(at).await;
            together.wait().await;
            let answer = client.call(&request).await;
            let body: Value = serde_json::from_slice(&answer.body).expect("JSON");
            (answer.status, body["result"].as_str().unwrap_or_default().to_owned())
        })
    }

    /// Returns the status that a client's retry gets by replay.
    async fn replay_status(&self, name: &TestRecord) -> u16 {
        let operation = &name.identity.operation;
        let retry = TestRequest::new(&operation.method, &operation.path).key(name.identity.key.as_str());
        let answer = Client::connect(self.at).await.call(&retry.body("{}")).await;
        assert_eq!(answer.header("idempotent-replayed").as_deref(), Some("true"), "{}", answer.text());
        answer.status
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Runs one round of the reconciler, whose lookup answers once all racers have arrived.
fn spawn_poll(store: Arc<FaultyStore>, together: Arc<Barrier>) -> JoinHandle<ReconcileStats> {
    let node = Ibid::for_upkeep(store, takes_over_at_start());
    node.reconcile_with(Arc::new(BarrierLookup(together)));
    tokio::spawn(async move { upkeep::reconcile_once(&node).await.expect("the store answers") })
}

struct BarrierLookup(Arc<Barrier>);

impl OutcomeLookup for BarrierLookup {
    fn find(&self, _: UnknownRequest) -> BoxFuture<'static, LookupResult> {
        let together = self.0.clone();
        Box::pin(async move {
            together.wait().await;
            LookupResult::Executed(Response::plain(BY_POLL, "text/plain", "found".to_owned()))
        })
    }
}

/// Resolves the record as an operator in a separate process.
fn spawn_resolve(
    store: Arc<FaultyStore>,
    id: RecordId,
    together: Arc<Barrier>,
) -> JoinHandle<Result<StoredRecord, OperatorError>> {
    tokio::spawn(async move {
        let act = OperatorAction::new("ann", "the bank said so").expect("a name and a reason");
        let observation = Observation::Executed(answer(BY_OPERATOR, "text/plain", "by hand"));
        together.wait().await;
        Operator::on_store(store).resolve(id, None, &observation, &act).await
    })
}

/// Rounds on each store: enough for each racer to win some, and about a second of work.
const ROUNDS: u32 = 30;
