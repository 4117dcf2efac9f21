//! Takeovers whose first send got no reply: until its fate is known, a locked row says nothing.

use super::*;

/// Waits until the store was asked to commit `more` times than before.
async fn wait_for_commits(world: &NodeOnFaultyStore, before: usize, more: usize) {
    while world.store.commits() < before + more {
        tokio::task::yield_now().await;
    }
}

/// Returns a node with a record whose lease has lapsed, and a second one that has seen no clock jump.
async fn lapsed_record() -> (NodeOnFaultyStore, Ibid) {
    let world = world(Policy::default().with(|policy| policy.on_lapse = OnLapse::Retry)).await;
    std::mem::forget(world.run("k").await);
    world.hands.advance(world.policy.lease);
    let node = Ibid::start(world.store.clone(), takes_over_at_start()).await.expect("it starts");
    (world, node)
}

/// Starts `work` so that its takeover gets no reply, and then finds the row locked several times.
async fn lose_reply_and_lock<T: Send + 'static>(
    world: &NodeOnFaultyStore,
    work: impl Future<Output = T> + Send + 'static,
    sends: usize,
) -> tokio::task::JoinHandle<T> {
    let before = world.store.commits();
    world.store.set(StoreFault::LosesTakeovers);
    let work = tokio::spawn(work);
    wait_for_commits(world, before, sends).await;
    world.store.set(StoreFault::LocksRows);
    wait_for_commits(world, before, sends + 3).await;
    work
}

#[tokio::test]
async fn a_sweep_does_not_leave_a_row_that_its_own_send_may_hold() {
    let (world, node) = lapsed_record().await;
    let sweep = lose_reply_and_lock(&world, async move { upkeep::sweep_once(&node).await }, 1).await;
    assert!(!sweep.is_finished(), "the first send may still be committed");
    world.store.set(StoreFault::None);
    assert_eq!(sweep.await.expect("no panic").expect("the store answers"), 1);
    assert_eq!(world.state().await, State::Retryable);
}

#[tokio::test]
async fn a_locked_row_ends_a_sweep_whose_send_was_answered() {
    let (world, node) = lapsed_record().await;
    world.store.set(StoreFault::LocksRows);
    assert_eq!(upkeep::sweep_once(&node).await.expect("the store answers"), 0);
}

#[tokio::test]
async fn a_takeover_without_a_reply_is_given_up_and_written_over() {
    let (world, node) = lapsed_record().await;
    let (ask, begins) = (world.ask("k"), node.clone());
    // The insert that finds the record, and the takeover.
    let begin = lose_reply_and_lock(&world, async move { begins.begin(ask).await }, 2).await;
    assert!(!begin.is_finished(), "the takeover may still be committed");
    let outcome = begin.await.expect("no panic");
    assert!(outcome.is_err(), "{outcome:?}");
    let before = world.only_record().await.record.version;
    world.store.set(StoreFault::None);
    node.settled().await;
    assert_ne!(world.only_record().await.record.version, before, "the takeover loses if it arrives late");
}
