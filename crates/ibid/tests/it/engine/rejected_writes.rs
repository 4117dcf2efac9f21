//! Writes that the store rejects permanently, for example after a permission was revoked: they end, and report it.

use super::*;
use crate::request_fixture::takes_over_at_start;

#[tokio::test(start_paused = true)]
async fn a_permanently_rejected_finish_is_given_up_at_last() {
    let world = world(Policy::default()).await;
    let attempt = world.run("k").await;
    world.store.set(StoreFault::Refuses);
    assert!(matches!(attempt.finish(created_response()).await, Outcome::NotDurable), "the caller learns it");
    let queued = world.store.commits();
    world.ibid.settled().await;
    let sent = world.store.commits();
    assert!(sent > queued, "it was still sent after that");
    world.store.set(StoreFault::None);
    tokio::time::advance(Duration::from_secs(3600)).await;
    assert_eq!((world.store.commits(), world.state().await), (sent, State::InProgress), "it is given up");
    // The record lapses like that of any owner that went silent.
    world.hands.advance(world.policy.lease);
    upkeep::sweep_once(&Ibid::for_upkeep(world.store.clone(), takes_over_at_start()))
        .await
        .expect("the store answers");
    assert_eq!(world.state().await, State::Unknown);
}

#[tokio::test(start_paused = true)]
async fn an_end_outlasts_hours_of_refusal_and_any_outage() {
    let world = world(Policy::default()).await;
    let attempt = world.run("k").await;
    world.store.set(StoreFault::Refuses);
    assert!(matches!(attempt.finish(created_response()).await, Outcome::NotDurable));
    for fault in [StoreFault::Refuses, StoreFault::Down, StoreFault::Refuses] {
        world.store.set(fault);
        // Rejections for less than a day in total, and an outage that lasts longer than rejections may.
        let hours = if fault == StoreFault::Down { 25 } else { 11 };
        tokio::time::sleep(Duration::from_secs(hours * 3600)).await;
        assert_eq!(world.state().await, State::InProgress);
    }
    world.store.set(StoreFault::None);
    world.ibid.settled().await;
    let stored = world.only_record().await;
    assert_eq!((stored.record.state, stored.record.note.status), (State::Completed, Some(201)));
}

#[tokio::test(start_paused = true)]
async fn a_record_that_can_not_be_written_holds_up_no_sweep() {
    let world = world(Policy::default()).await;
    std::mem::forget(world.run("k").await);
    world.hands.advance(world.policy.lease);
    let node = Ibid::for_upkeep(world.store.clone(), takes_over_at_start());
    world.store.set(StoreFault::Refuses);
    let swept = tokio::time::timeout(Duration::from_secs(10), upkeep::sweep_once(&node)).await;
    assert_eq!(swept.expect("it ends").expect("the store answers"), 0, "and counts nothing");
    world.store.set(StoreFault::None);
    assert_eq!(upkeep::sweep_once(&node).await.expect("the store answers"), 1, "the next round has it");
}

#[tokio::test(start_paused = true)]
async fn a_permanently_rejected_begin_leaves_no_background_work() {
    let world = world(Policy::default()).await;
    world.store.set(StoreFault::Refuses);
    assert!(world.ibid.begin(world.ask("k")).await.is_err());
    world.ibid.settled().await;
    assert!(
        world
            .store
            .browse()
            .expect("a store that can be browsed")
            .list(RecordFilter::default())
            .await
            .expect("a list")
            .items
            .is_empty()
    );
}
