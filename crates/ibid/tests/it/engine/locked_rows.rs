//! Records whose row another transaction has locked: upkeep leaves them to its next round, and settles the others.

use ibid_core::policy::Reconcile;
use ibid_testkit::contract::{TestRecord, draft, insert, put};

use super::chores::report;
use super::*;
use crate::request_fixture::FindsAll;

/// Returns how many records are in `state`.
async fn count(world: &NodeOnFaultyStore, state: State) -> usize {
    let all = world.store.browse().expect("a store that can be browsed").list(RecordFilter::default()).await;
    all.expect("a list").items.iter().filter(|stored| stored.record.state == state).count()
}

/// Makes two records with lapsed leases. Returns one of them, and a node that has seen no clock jump.
async fn lapsed_pair(world: &NodeOnFaultyStore) -> (StoredRecord, Ibid) {
    for key in ["locked", "free"] {
        std::mem::forget(world.run(key).await);
    }
    world.hands.advance(world.policy.lease);
    let locked = world.store.due(State::InProgress, None, 1).await.expect("due is answered").items.remove(0);
    (locked, Ibid::for_upkeep(world.store.clone(), takes_over_at_start()))
}

#[tokio::test(start_paused = true)]
async fn a_contended_record_holds_up_no_sweep() {
    let world = world(Policy::default()).await;
    let (locked, node) = lapsed_pair(&world).await;
    world.store.set(StoreFault::LocksRecord(locked.record.id));
    assert_eq!(upkeep::sweep_once(&node).await.expect("the store answers"), 1, "the other one");
    world.store.set(StoreFault::None);
    assert_eq!(upkeep::sweep_once(&node).await.expect("the store answers"), 1, "the next round has it");
}

#[tokio::test(start_paused = true)]
async fn a_contended_record_is_no_outage() {
    let world = world(Policy::default().with(|policy| policy.on_lapse = OnLapse::Retry)).await;
    let (locked, node) = lapsed_pair(&world).await;
    let swept_at = tokio::time::Instant::now();
    world.store.set(StoreFault::LocksRecord(locked.record.id));
    assert_eq!(upkeep::sweep_once(&node).await.expect("the store answers"), 1);
    // After an outage neither might run again for one lease.
    let id = world.ask("locked").id;
    world.store.set(StoreFault::LocksRecord(id));
    for _ in 0..20 {
        assert!(world.ibid.begin(world.ask("locked")).await.is_err());
    }
    assert!(!world.ibid.is_breaker_open(), "one record says nothing about the store");
    world.store.set(StoreFault::None);
    // The begins have waited, and the store's clock must not seem to have stopped meanwhile.
    world.hands.advance(swept_at.elapsed());
    assert_eq!(upkeep::sweep_once(&node).await.expect("the store answers"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_contended_record_holds_up_no_lookup() {
    let rule = Reconcile::new(Duration::from_secs(10), 5);
    let world = world(Policy::default().with(|policy| policy.reconcile = Some(rule))).await;
    for key in ["locked", "free"] {
        let _ = world.run(key).await.unknown(ErrorCode::Broken).await;
    }
    world.hands.advance(Duration::from_secs(600));
    let locked = world.store.due(State::Unknown, None, 1).await.expect("due is answered").items.remove(0);
    let node = Ibid::for_upkeep(world.store.clone(), takes_over_at_start());
    node.reconcile_with(Arc::new(FindsAll));
    world.store.set(StoreFault::LocksRecord(locked.record.id));
    let stats = upkeep::reconcile_once(&node).await.expect("the store answers");
    assert_eq!((stats.asked, stats.settled), (2, 1));
    world.store.set(StoreFault::None);
    assert_eq!(upkeep::reconcile_once(&node).await.expect("the store answers").settled, 1);
}

#[tokio::test(start_paused = true)]
async fn a_contended_record_holds_up_no_evidence() {
    let world = world(Policy::default()).await;
    // As if their process had died before it looked for evidence.
    let names = [TestRecord::fresh(), TestRecord::fresh()];
    for (event, name) in names.iter().enumerate() {
        let record = put(&*world.store, &insert(name, draft(name, State::Unknown))).await.record;
        report(&world, record.id, Some(record.owner), event).await;
    }
    let node = Ibid::for_upkeep(world.store.clone(), takes_over_at_start());
    world.store.set(StoreFault::LocksRecord(names[0].id));
    assert_eq!(upkeep::apply_evidence_once(&node).await.expect("a round"), 1);
    world.store.set(StoreFault::None);
    assert_eq!(upkeep::apply_evidence_once(&node).await.expect("a round"), 1);
    assert_eq!(count(&world, State::Completed).await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_contended_record_holds_up_no_expiry() {
    let policy = Policy::default().with(|policy| policy.unknown_retention = Some(Duration::from_secs(600)));
    let world = world(policy).await;
    for key in ["locked", "free"] {
        drop(world.run(key).await.unknown(ErrorCode::Broken).await);
    }
    world.hands.advance(Duration::from_secs(600));
    let locked = world.store.due(State::Unknown, None, 1).await.expect("due is answered").items.remove(0);
    let node = Ibid::for_upkeep(world.store.clone(), takes_over_at_start());
    let settled = async || upkeep::reap_once(&node, Retention::default()).await.expect("a round").settled;
    world.store.set(StoreFault::LocksRecord(locked.record.id));
    assert_eq!(settled().await, 1, "the other one");
    world.store.set(StoreFault::None);
    assert_eq!(settled().await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_write_without_a_reply_is_found_behind_a_lock() {
    let world = world(Policy::default().with(|policy| policy.on_lapse = OnLapse::Retry)).await;
    let (locked, node) = lapsed_pair(&world).await;
    let before = world.store.commits();
    world.store.set(StoreFault::LosesReplies);
    let sweep = tokio::spawn(async move { upkeep::sweep_once(&node).await });
    while world.store.commits() < before + 2 {
        tokio::task::yield_now().await;
    }
    // Another transaction locks the row before the change is sent again.
    world.store.set(StoreFault::LocksRecord(locked.record.id));
    assert_eq!(sweep.await.expect("no panic").expect("the store answers"), 2, "it was written");
    assert_eq!(count(&world, State::Retryable).await, 2);
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_waited_out_by_upkeep() {
    let world = world(Policy::default()).await;
    let (_, node) = lapsed_pair(&world).await;
    let before = world.store.commits();
    world.store.set(StoreFault::Hangs);
    let sweep = tokio::spawn(async move { upkeep::sweep_once(&node).await });
    while world.store.commits() < before + 2 {
        tokio::task::yield_now().await;
    }
    world.store.set(StoreFault::Down);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(!sweep.is_finished(), "a write may have been made without a reply");
    world.store.set(StoreFault::None);
    assert_eq!(sweep.await.expect("no panic").expect("the store answers"), 2);
}
