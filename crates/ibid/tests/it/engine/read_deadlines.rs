//! Reads of a store that does not answer: each of them ends, and what it held is free again.

use std::sync::Mutex;

use ibid::phase::{Care, OutsideCallError, PhaseError};
use ibid::upkeep::{Resume, Schedule};
use ibid_core::change::{BodyKind, Draft, StoredBody};
use ibid_core::record::Record;
use ibid_core::store::BoxFuture;
use ibid_testkit::contract::{TestRecord, draft, insert, put};

use super::*;

/// Notes the keys that it is given to run.
#[derive(Clone, Default)]
struct Runs(Arc<Mutex<Vec<String>>>);

impl Runs {
    fn on(self, node: &Ibid) -> Arc<dyn Resume> {
        Arc::new(ResumeOn { node: node.clone(), runs: self })
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

struct ResumeOn {
    node: Ibid,
    runs: Runs,
}

impl Resume for ResumeOn {
    fn ask(&self, record: &Record, _: &Bytes) -> Option<BeginRequest> {
        let (tenant, key) = (record.identity.tenant.as_str(), record.identity.key.as_str());
        Some(crate::request_fixture::ask(&self.node, tenant, key, Policy::clone(&record.policy)))
    }

    fn run(&self, attempt: Attempt, ask: Arc<BeginRequest>, _: Bytes) -> BoxFuture<'static, ()> {
        self.runs.0.lock().unwrap().push(ask.identity.key.as_str().to_owned());
        Box::pin(async move { drop(attempt.finish(created_response()).await) })
    }
}

/// Stores a record in `state` that is due, with its request.
async fn put_due(world: &NodeOnFaultyStore, state: State) {
    let name = TestRecord::fresh();
    let policy = Policy::default().with(|policy| policy.on_lapse = OnLapse::Resume);
    let draft = Draft { policy: Arc::new(policy), due_in: Some(Duration::ZERO), ..draft(&name, state) };
    let mut change = insert(&name, draft);
    change.bodies.push(StoredBody { kind: BodyKind::Request, data: Bytes::from_static(b"a request") });
    put(&*world.store, &change).await;
}

#[tokio::test(start_paused = true)]
async fn a_sweep_ends_while_the_store_hangs() {
    let world = world(Policy::default()).await;
    let runs = Runs::default();
    world.ibid.resume_with(runs.clone().on(&world.ibid));
    put_due(&world, State::InProgress).await;
    world.store.set(StoreFault::HangsReads);
    assert!(upkeep::sweep_once(&world.ibid).await.is_err(), "due records");
    world.store.set(StoreFault::HoldsBodies);
    assert_eq!(upkeep::sweep_once(&world.ibid).await.expect("due is answered"), 0, "the stored request");
    world.store.set(StoreFault::None);
    // A node that has seen no outage: after one, a live owner would have its lease to come back.
    let node = Ibid::for_upkeep(world.store.clone(), takes_over_at_start());
    node.resume_with(runs.clone().on(&world.ibid));
    assert_eq!(upkeep::sweep_once(&node).await.expect("the store answers"), 1);
    assert_eq!(runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn deliveries_return_their_slots_while_the_store_hangs() {
    let world = world(Policy::default()).await;
    let runs = Runs::default();
    world.ibid.resume_with(runs.clone().on(&world.ibid));
    // More than may run at once.
    for _ in 0..300 {
        put_due(&world, State::Pending).await;
    }
    world.store.set(StoreFault::HoldsBodies);
    let chores = tokio::spawn(upkeep::run(world.ibid.clone(), Schedule::default()));
    while world.store.bodies_read() < 300 {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    world.store.set(StoreFault::HangsReads);
    let failed =
        || world.ibid.chores().iter().any(|chore| chore.name == "deliverer" && chore.error.is_some());
    while !failed() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    world.store.set(StoreFault::None);
    while runs.count() < 300 {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    chores.abort();
}

#[tokio::test(start_paused = true)]
async fn a_phase_ends_while_the_store_hangs() {
    let world = world(Policy::default()).await;
    let mut first = world.run("k").await;
    let call = async |_| Ok::<_, OutsideCallError<()>>("charged".to_owned());
    first.outside("charge", Care::Repeatable, call).await.expect("it is stored");
    let _ = first.release(ErrorCode::NotSent).await;
    let mut second = world.run("k").await;
    world.store.set(StoreFault::HoldsBodies);
    let outcome: Result<String, _> = second.outside("charge", Care::Repeatable, call).await;
    assert!(matches!(outcome, Err(PhaseError::Store(_))), "{outcome:?}");
    world.store.set(StoreFault::None);
    assert_eq!(second.outside("charge", Care::Repeatable, call).await.expect("it is read"), "charged");
}
