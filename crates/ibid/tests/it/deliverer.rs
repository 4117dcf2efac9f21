//! The deliverer and the sweeper when one tenant's requests hang: the others' requests still run.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use ibid::Ibid;
use ibid::attempt::Attempt;
use ibid::store::clock::Clock;
use ibid::store::memory::MemoryStore;
use ibid::upkeep::{self, Resume, Schedule};
use ibid_core::change::{BodyKind, Draft, StoredBody};
use ibid_core::machine::BeginRequest;
use ibid_core::policy::{OnLapse, Policy};
use ibid_core::record::{Record, State};
use ibid_core::scope::RecordId;
use ibid_core::store::BoxFuture;
use ibid_testkit::contract::{TestRecord, commit, draft, insert};
use ibid_testkit::faults::{FaultyStore, StoreFault};

use crate::request_fixture::{ask, takes_over_at_start};

/// A process whose requests never end.
struct HangingNode {
    node: Ibid,
    store: Arc<FaultyStore>,
    runs: Arc<Mutex<Vec<String>>>,
}

impl HangingNode {
    async fn new() -> HangingNode {
        let store = FaultyStore::new(Arc::new(MemoryStore::new(Clock::system())));
        let node = Ibid::start(store.clone(), takes_over_at_start()).await.expect("it starts");
        let runs = Arc::default();
        node.resume_with(Arc::new(Hangs { node: node.clone(), tenants: Arc::clone(&runs) }));
        HangingNode { node, store, runs }
    }

    /// Stores a record of `tenant` that is due, with its request.
    async fn put(&self, tenant: &str, key: usize, state: State) -> RecordId {
        let name = TestRecord::of(tenant, &key.to_string());
        let policy = Policy::default().with(|policy| policy.on_lapse = OnLapse::Resume);
        let due_in = Some(Duration::ZERO);
        let mut change = insert(&name, Draft { policy: Arc::new(policy), due_in, ..draft(&name, state) });
        change.bodies.push(StoredBody { kind: BodyKind::Request, data: Bytes::from_static(b"a request") });
        commit(&*self.store, &change).await;
        name.id
    }

    /// Returns how many requests of `tenant` run.
    fn running(&self, tenant: &str) -> usize {
        self.runs.lock().unwrap().iter().filter(|run| *run == tenant).count()
    }

    /// Runs the chores until `tenant` has this many running requests.
    async fn run_until(&self, tenant: &str, count: usize) {
        let chores = tokio::spawn(upkeep::run(self.node.clone(), Schedule::default()));
        while self.running(tenant) < count {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        chores.abort();
    }
}

/// Runs requests that never end, and notes their tenants.
struct Hangs {
    node: Ibid,
    tenants: Arc<Mutex<Vec<String>>>,
}

impl Resume for Hangs {
    fn ask(&self, record: &Record, _: &Bytes) -> Option<BeginRequest> {
        let (tenant, key) = (record.identity.tenant.as_str(), record.identity.key.as_str());
        Some(ask(&self.node, tenant, key, Policy::clone(&record.policy)))
    }

    fn run(&self, attempt: Attempt, ask: Arc<BeginRequest>, _: Bytes) -> BoxFuture<'static, ()> {
        self.tenants.lock().unwrap().push(ask.identity.tenant.as_str().to_owned());
        Box::pin(async move {
            let _attempt = attempt;
            std::future::pending().await
        })
    }
}

#[tokio::test(start_paused = true)]
async fn accepted_requests_of_one_tenant_hold_up_no_other() {
    let world = HangingNode::new().await;
    for key in 0..10_000 {
        world.put("greedy", key, State::Pending).await;
    }
    for key in 0..10 {
        world.put("other", key, State::Pending).await;
    }
    world.run_until("other", 10).await;
    assert_eq!(world.running("greedy"), 128, "half of what may run at once");
}

#[tokio::test(start_paused = true)]
async fn lapsed_requests_of_one_tenant_hold_up_no_other() {
    let world = HangingNode::new().await;
    // More than one sweep reads.
    for key in 0..11_000 {
        world.put("greedy", key, State::InProgress).await;
    }
    world.put("other", 0, State::InProgress).await;
    for _ in 0..2 {
        upkeep::sweep_once(&world.node).await.expect("the store answers");
    }
    assert_eq!((world.running("greedy"), world.running("other")), (16, 1), "half of what may run at once");
}

#[tokio::test(start_paused = true)]
async fn requests_that_can_not_be_loaded_hold_up_no_other() {
    let world = HangingNode::new().await;
    for key in 0..1_000 {
        world.put("unreadable", key, State::Pending).await;
    }
    let readable = world.put("other", 0, State::Pending).await;
    world.store.set(StoreFault::FailsBodiesExcept(readable));
    world.run_until("other", 1).await;
    assert_eq!(world.running("unreadable"), 0);
}
