//! The sweeper when it runs lapsed requests again: it runs exactly the request that it has read.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use ibid::Ibid;
use ibid::attempt::Attempt;
use ibid::store::clock::Clock;
use ibid::store::memory::MemoryStore;
use ibid::upkeep::{self, Resume, Schedule};
use ibid_core::change::{BodyKind, Change, Draft, HistoryKind, StoredBody};
use ibid_core::machine::BeginRequest;
use ibid_core::policy::{OnLapse, Policy};
use ibid_core::record::{Record, State};
use ibid_core::store::{BoxFuture, Store};
use ibid_testkit::contract::{TestRecord, draft, insert, load, put, replace};
use ibid_testkit::faults::{FaultyStore, StoreFault};

use crate::request_fixture::{ask, takes_over_at_start};

#[tokio::test]
async fn the_sweeper_never_runs_a_request_of_an_old_generation() {
    let store = FaultyStore::new(Arc::new(MemoryStore::new(Clock::system())));
    let node = Ibid::start(store.clone(), takes_over_at_start()).await.expect("it starts");
    let runs = Arc::new(Mutex::new(Vec::new()));
    node.resume_with(Arc::new(Runs { node: node.clone(), requests: runs.clone() }));
    let name = TestRecord::fresh();
    let first = put(&*store, &keeping(insert(&name, lapsed_draft(&name)), "five")).await.record;

    store.set(StoreFault::HoldsBodies);
    let sweep = tokio::spawn({
        let node = node.clone();
        async move { upkeep::sweep_once(&node).await.expect("the store answers") }
    });
    while store.bodies_read() == 0 {
        tokio::task::yield_now().await;
    }
    // The sweeper holds `five`. Since then its owner has finished, the response has expired, and the key has arrived with
    // another request, whose owner is silent too.
    let mut next = keeping(replace(&first, lapsed_draft(&name)), "six");
    let draft = next.draft.as_mut().expect("a draft");
    (draft.birth, draft.owner) = (next.nonce, next.nonce);
    let second = put(&*store, &next).await.record;
    assert_ne!(second.birth, first.birth, "another generation");
    store.set(StoreFault::None);
    assert_eq!(sweep.await.expect("no panic"), 1);

    assert!(runs.lock().unwrap().is_empty(), "nothing is run under the key of another");
    let left = load(&*store, name.id).await.expect("it is there").record;
    assert_eq!((left.birth, left.state), (second.birth, State::Retryable), "its next request runs it");
    let history =
        store.browse().expect("a store that can be browsed").history(name.id).await.expect("a history");
    assert!(history.iter().any(|line| line.what == HistoryKind::Takeover), "it was taken over: {history:?}");
}

#[tokio::test]
async fn a_sweeper_runs_a_lapsed_request_as_it_was_stored() {
    let store = Arc::new(MemoryStore::new(Clock::system()));
    let node = Ibid::start(store.clone(), takes_over_at_start()).await.expect("it starts");
    let runs = Arc::new(Mutex::new(Vec::new()));
    node.resume_with(Arc::new(Runs { node: node.clone(), requests: runs.clone() }));
    let name = TestRecord::fresh();
    put(&*store, &keeping(insert(&name, lapsed_draft(&name)), "five")).await;
    assert_eq!(upkeep::sweep_once(&node).await.expect("the store answers"), 1);
    assert_eq!(*runs.lock().unwrap(), ["five"]);
}

#[tokio::test]
async fn a_sweeper_resumes_a_locked_record_in_its_next_round() {
    let store = FaultyStore::new(Arc::new(MemoryStore::new(Clock::system())));
    let node = Ibid::start(store.clone(), takes_over_at_start()).await.expect("it starts");
    let runs = Arc::new(Mutex::new(Vec::new()));
    node.resume_with(Arc::new(Runs { node: node.clone(), requests: runs.clone() }));
    let name = TestRecord::fresh();
    put(&*store, &keeping(insert(&name, lapsed_draft(&name)), "five")).await;
    // The lock is gone before the sweeper could settle the record instead.
    store.set(StoreFault::LocksNextRow);
    assert_eq!(upkeep::sweep_once(&node).await.expect("the store answers"), 0);
    assert_eq!(load(&*store, name.id).await.expect("it is there").record.state, State::InProgress);
    assert_eq!(upkeep::sweep_once(&node).await.expect("the store answers"), 1);
    assert_eq!(*runs.lock().unwrap(), ["five"]);
}

#[tokio::test(start_paused = true)]
async fn a_sweep_settles_records_while_the_store_takes_no_begins() {
    let store = FaultyStore::new(Arc::new(MemoryStore::new(Clock::system())));
    let node = Ibid::start(store.clone(), takes_over_at_start()).await.expect("it starts");
    node.resume_with(Arc::new(Runs { node: node.clone(), requests: Arc::default() }));
    let (resumable, failing) = (TestRecord::fresh(), TestRecord::fresh());
    put(&*store, &keeping(insert(&resumable, lapsed_draft(&resumable)), "five")).await;
    let policy = Policy::default().with(|policy| policy.on_lapse = OnLapse::Fail);
    let draft = Draft { policy: Arc::new(policy), ..lapsed_draft(&failing) };
    put(&*store, &insert(&failing, draft)).await;
    store.set(StoreFault::TakesNoBegins);
    let sweep = tokio::time::timeout(Duration::from_secs(60), upkeep::sweep_once(&node)).await;
    assert_eq!(sweep.expect("one record does not hold up the others").expect("the store answers"), 1);
    let state = async |name: &TestRecord| load(&*store, name.id).await.expect("it is there").record.state;
    assert_eq!(state(&failing).await, State::Completed);
    assert_eq!(state(&resumable).await, State::InProgress, "the next sweep tries again");
}

#[tokio::test(start_paused = true)]
async fn a_sweeper_without_permits_leaves_the_rest_to_another_node() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(Clock::system()));
    // More than one node resumes at once, and no request ends.
    for n in 0..40 {
        let name = TestRecord::of(["one", "two"][n % 2], &n.to_string());
        put(&*store, &keeping(insert(&name, lapsed_draft(&name)), "five")).await;
    }
    let runs = [(); 2].map(|()| Arc::new(Mutex::new(Vec::new())));
    for requests in &runs {
        let node = Ibid::start(store.clone(), takes_over_at_start()).await.expect("it starts");
        node.resume_with(Arc::new(Hangs(Runs { node: node.clone(), requests: requests.clone() })));
        tokio::spawn(upkeep::run(node, Schedule::default()));
    }
    let counts = || runs.each_ref().map(|requests| requests.lock().unwrap().len());
    while counts().iter().sum::<usize>() < 40 {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(counts().iter().all(|count| *count > 0), "{:?}", counts());
}

/// Runs requests that never end.
struct Hangs(Runs);

impl Resume for Hangs {
    fn ask(&self, record: &Record, request: &Bytes) -> Option<BeginRequest> {
        self.0.ask(record, request)
    }

    fn run(&self, attempt: Attempt, ask: Arc<BeginRequest>, request: Bytes) -> BoxFuture<'static, ()> {
        std::mem::forget(self.0.run(attempt, ask, request));
        Box::pin(std::future::pending())
    }
}

/// A draft of a record whose owner went silent, with the policy to resume it.
fn lapsed_draft(name: &TestRecord) -> Draft {
    let policy = Policy::default().with(|policy| policy.on_lapse = OnLapse::Resume);
    let due_in = Some(Duration::ZERO);
    Draft { policy: Arc::new(policy), due_in, ..draft(name, State::InProgress) }
}

fn keeping(mut change: Change, request: &'static str) -> Change {
    change.bodies.push(StoredBody { kind: BodyKind::Request, data: Bytes::from_static(request.as_bytes()) });
    change
}

/// Records the requests that it is given to run.
struct Runs {
    node: Ibid,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Resume for Runs {
    fn ask(&self, record: &Record, _: &Bytes) -> Option<BeginRequest> {
        let policy = Policy::clone(&record.policy);
        Some(ask(&self.node, record.identity.tenant.as_str(), record.identity.key.as_str(), policy))
    }

    fn run(&self, _: Attempt, _: Arc<BeginRequest>, request: Bytes) -> BoxFuture<'static, ()> {
        self.requests.lock().unwrap().push(String::from_utf8_lossy(&request).into_owned());
        Box::pin(async {})
    }
}
