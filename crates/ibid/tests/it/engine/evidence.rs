//! Evidence and operator actions on a store that fails, or that a copy closes meanwhile.

use ibid::copy::{CopyEnd, copy};
use ibid::evidence::{EvidenceReport, EvidenceResult};
use ibid::operator::{Observation, Operator, OperatorAction, OperatorError, answer};
use ibid_core::evidence::{EventName, EvidenceSubject};
use ibid_core::scope::RecordId;

use super::*;

fn report(event: &str, about: RecordId) -> EvidenceReport {
    let name = EventName { source: "psp".to_owned(), event: event.to_owned() };
    EvidenceReport::new(
        name,
        EvidenceSubject::Record(about),
        Observation::Executed(answer(201, "text/plain", "done")),
    )
}

/// A node on a store that fails on demand, and the store itself, which a copy reads.
async fn node_on_copied_store() -> (NodeOnFaultyStore, Arc<MemoryStore>) {
    let (clock, hands) = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let source = Arc::new(MemoryStore::new(clock));
    let store = FaultyStore::new(source.clone());
    let ibid = Ibid::start(store.clone(), takes_over_at_start()).await.expect("it starts");
    (NodeOnFaultyStore { ibid, store, hands, policy: Arc::new(Policy::default()) }, source)
}

/// Copies the whole store, and returns the target.
async fn copy_all(source: Arc<MemoryStore>) -> Arc<MemoryStore> {
    let (clock, _) = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let target = Arc::new(MemoryStore::new(clock));
    let end = |store: &Arc<MemoryStore>, display_url: &str| CopyEnd::new(store.clone(), display_url);
    copy(&end(&source, "memory:a"), &end(&target, "memory:b"), |_| {}).await.expect("it is copied");
    target
}

#[tokio::test(start_paused = true)]
async fn a_look_for_evidence_that_panics_ends_no_later_one() {
    let world = world(Policy::default()).await;
    let (first, second) = (world.run("first").await, world.run("second").await);
    let id = world.ask("second").id;
    let reported = world.ibid.report_evidence(report("evt", id)).await;
    assert_eq!(reported.expect("the store answers"), EvidenceResult::Early);
    world.store.set(StoreFault::PanicsOnEvidenceOf(world.ask("first").id));
    // In this order they are looked at.
    drop(first.unknown(ErrorCode::Broken).await);
    drop(second.unknown(ErrorCode::Broken).await);
    let settled = async {
        while world.store.load(id).await.expect("a read").expect("a record").record.state != State::Completed
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), settled).await.expect("its evidence is found");
}

#[tokio::test(start_paused = true)]
async fn evidence_inserted_behind_a_copy_is_delivered_again() {
    let (world, source) = node_on_copied_store().await;
    let about = world.ask("not begun yet").id;
    world.store.set(StoreFault::HangsEvidence);
    let reporting = tokio::spawn({
        let ibid = world.ibid.clone();
        async move { ibid.report_evidence(report("evt", about)).await }
    });
    while world.store.evidence_inserts() == 0 {
        tokio::task::yield_now().await;
    }
    let target = copy_all(source).await;
    world.store.set(StoreFault::None);
    let reported = reporting.await.expect("no panic");
    assert!(reported.as_ref().is_err_and(|error| error.is_transient()), "{reported:?}");
    let after = Ibid::start(target, takes_over_at_start()).await.expect("it starts");
    let again = after.report_evidence(report("evt", about)).await;
    assert_eq!(again.expect("the store answers"), EvidenceResult::Early, "it was not copied");
}

#[tokio::test(start_paused = true)]
async fn an_action_written_behind_a_copy_is_not_reported_as_done() {
    let (world, source) = node_on_copied_store().await;
    drop(world.run("k").await.unknown(ErrorCode::Broken).await);
    let id = world.ask("k").id;
    let before = world.store.commits();
    world.store.set(StoreFault::Hangs);
    let acting = tokio::spawn({
        let operator = Operator::on_store(world.store.clone());
        async move {
            let act = OperatorAction::new("ann", "the provider never saw it").expect("a name and a reason");
            operator.resolve(id, None, &Observation::NotExecuted, &act).await
        }
    });
    while world.store.commits() == before {
        tokio::task::yield_now().await;
    }
    let target = copy_all(source).await;
    world.store.set(StoreFault::None);
    let acted = acting.await.expect("no panic");
    assert!(
        matches!(&acted, Err(OperatorError::Store(error)) if !error.is_transient() && !error.is_unwritten()),
        "{acted:?}"
    );
    let copied = target.load(id).await.expect("a read").expect("it is copied");
    assert_eq!(copied.record.state, State::Unknown, "the action is to be repeated there");
}
