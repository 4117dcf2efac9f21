//! Lapsed leases: the sweeper and the next request settle each once, and none after a clock jump or an outage.

use metrics_exporter_prometheus::PrometheusBuilder;

use super::*;

#[tokio::test]
async fn the_sweeper_applies_the_rule_of_the_records_begin() {
    let rules = [
        (OnLapse::Unknown, State::Unknown),
        (OnLapse::Retry, State::Retryable),
        (OnLapse::Resume, State::Retryable),
        (OnLapse::Fail, State::Completed),
    ];
    for (on_lapse, settled) in rules {
        let world = world(Policy::default().with(|policy| policy.on_lapse = on_lapse)).await;
        let attempt = world.run("k").await;
        assert_eq!(upkeep::sweep_once(&world.ibid).await.unwrap(), 0, "a live lease is left alone");
        // Small steps, which the clock watch does not take for a jump, would be too slow. A fresh node has seen no jump.
        world.hands.advance(Duration::from_secs(61));
        let sweeper = Ibid::start(world.store.clone(), takes_over_at_start()).await.expect("it starts");
        assert_eq!(upkeep::sweep_once(&sweeper).await.unwrap(), 1);
        assert_eq!(world.state().await, settled, "{on_lapse:?}");
        assert_eq!(upkeep::sweep_once(&sweeper).await.unwrap(), 0);
        drop(attempt);
    }
}

#[tokio::test]
async fn many_sweepers_at_once_settle_each_lapse_once() {
    let world = world(Policy::default().with(|policy| policy.on_lapse = OnLapse::Unknown)).await;
    let mut attempts = Vec::new();
    for n in 0..50 {
        attempts.push(world.run(&format!("k{n}")).await);
    }
    world.hands.advance(Duration::from_secs(61));
    let sweepers: Vec<Ibid> =
        (0..8).map(|_| Ibid::for_upkeep(world.store.clone(), takes_over_at_start())).collect();
    let sweeps = sweepers.iter().map(|sweeper| async move { upkeep::sweep_once(sweeper).await.unwrap() });
    let swept: u64 = futures_util::future::join_all(sweeps).await.into_iter().sum();
    assert_eq!(swept, 50);
    for stored in world
        .store
        .browse()
        .expect("a store that can be browsed")
        .list(RecordFilter::default())
        .await
        .unwrap()
        .items
    {
        assert_eq!((stored.record.state, stored.record.note.lapses), (State::Unknown, 1));
    }
    drop(attempts);
}

#[tokio::test]
async fn every_lapse_is_counted_once() {
    // A recorder for this thread only, on which all tasks of this test run.
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let _counts = metrics::set_default_local_recorder(&recorder);
    let counted = || {
        let page = page.render();
        let line = page.lines().find_map(|line| line.strip_prefix("ibid_zombie_keys_total "));
        line.map_or(0, |count| count.parse::<u64>().expect("a counter"))
    };
    let mut lapses = 0;
    for on_lapse in [OnLapse::Unknown, OnLapse::Retry, OnLapse::Fail] {
        let world = world(Policy::default().with(|policy| policy.on_lapse = on_lapse)).await;
        for (key, by_request) in [("request", true), ("sweeper", false)] {
            // Its process is gone: nothing renews or ends it.
            std::mem::forget(world.run(key).await);
            world.hands.advance(world.policy.lease);
            assert_eq!(counted(), lapses, "{on_lapse:?}: not noticed yet");
            lapses += 1;
            // A node that has seen no clock jump.
            let node = Ibid::start(world.store.clone(), takes_over_at_start()).await.expect("it starts");
            if by_request {
                let outcome = node.begin(world.ask(key)).await.expect("the store answers");
                assert!(
                    !matches!(outcome, Begin::Skip(Outcome::InFlight { .. })),
                    "{on_lapse:?}: {outcome:?}"
                );
                assert_eq!(counted(), lapses, "{on_lapse:?}: by the request");
                if let Begin::Run(attempt) = outcome {
                    let _ = attempt.finish(created_response()).await;
                }
            }
            upkeep::sweep_once(&node).await.expect("the store answers");
            assert_eq!(counted(), lapses, "{on_lapse:?}: once, by {key}");
            let _ = node.begin(world.ask(key)).await.expect("the store answers");
            assert_eq!(counted(), lapses, "{on_lapse:?}: it is not counted again");
            node.settled().await;
        }
    }
}

#[tokio::test]
async fn a_sweep_that_is_the_first_to_see_a_clock_jump_frees_nothing() {
    let world = world(Policy::default().with(|policy| policy.on_lapse = OnLapse::Retry)).await;
    let attempt = world.run("k").await;
    world.hands.advance(Duration::from_secs(3600));
    assert_eq!(upkeep::sweep_once(&world.ibid).await.unwrap(), 0);
    assert_eq!(world.state().await, State::InProgress);
    drop(attempt);
}

#[tokio::test]
async fn after_a_clock_jump_no_lapsed_request_runs_again() {
    let world = world(Policy::default().with(|policy| policy.on_lapse = OnLapse::Retry)).await;
    let attempt = world.run("k").await;
    world.hands.advance(Duration::from_secs(3600));
    // The first look shows the jump. From then on the lapse may not be real.
    assert!(matches!(world.begin("other").await, Begin::Run(_)));
    assert!(matches!(world.begin("k").await, Begin::Skip(Outcome::InFlight { .. })));
    assert_eq!(upkeep::sweep_once(&world.ibid).await.unwrap(), 0);
    assert_eq!(world.store.due(State::InProgress, None, 10).await.unwrap().items.len(), 1);
    assert!(matches!(attempt.finish(created_response()).await, Outcome::Completed(_)));
}

#[tokio::test(start_paused = true)]
async fn after_the_store_was_away_a_lapse_is_left_alone_for_one_lease() {
    let world = world(Policy::default().with(|policy| policy.on_lapse = OnLapse::Retry)).await;
    let attempt = world.run("k").await;
    // Both clocks advance together, so neither jumps.
    let pass = async |length| {
        world.hands.advance(length);
        tokio::time::sleep(length).await;
    };
    world.store.set(StoreFault::Down);
    pass(Duration::from_secs(30)).await;
    assert!(upkeep::sweep_once(&world.ibid).await.is_err());
    pass(Duration::from_secs(31)).await;
    world.store.set(StoreFault::None);
    assert_eq!(upkeep::sweep_once(&world.ibid).await.unwrap(), 0, "its holder could not renew");
    assert!(matches!(world.begin("k").await, Begin::Skip(Outcome::InFlight { .. })));
    pass(Duration::from_secs(59)).await;
    assert_eq!(upkeep::sweep_once(&world.ibid).await.unwrap(), 0);
    pass(Duration::from_secs(1)).await;
    assert_eq!(upkeep::sweep_once(&world.ibid).await.unwrap(), 1);
    assert_eq!(world.state().await, State::Retryable);
    drop(attempt);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_has_just_started_takes_over_after_one_lease() {
    let world = world(Policy::default().with(|policy| policy.on_lapse = OnLapse::Retry)).await;
    let attempt = world.run("k").await;
    // The owner is cut off: it runs, and can't renew.
    world.store.set(StoreFault::HangsRenewals);
    // The store fails over to a server whose clock is ahead of the old one by more than a lease. The next
    // node starts only now, so it can't see the jump.
    world.hands.advance(Duration::from_secs(3600));
    let store: Arc<dyn Store> = world.store.clone();
    let sweeper = Ibid::for_upkeep(store.clone(), Settings::default());
    let node = Ibid::start(store, Settings::default()).await.expect("it starts");
    let begin = async || node.begin(world.ask("k")).await.expect("the store answers");
    let pass = async |length| {
        world.hands.advance(length);
        tokio::time::sleep(length).await;
    };
    let lease = world.policy.lease;
    for wait in [Duration::ZERO, lease - Duration::from_secs(1)] {
        pass(wait).await;
        assert!(matches!(begin().await, Begin::Skip(Outcome::InFlight { .. })));
        let swept = upkeep::sweep_with_progress(&sweeper, |_| {}).await.expect("the store answers");
        assert_eq!((swept.settled, swept.held_back), (0, Some(lease)));
    }
    // In a whole lease the owner neither renewed nor ended its attempt.
    pass(Duration::from_secs(1)).await;
    assert!(matches!(begin().await, Begin::Run(_)));
    drop(attempt);
}

#[tokio::test]
async fn an_overlong_lease_after_a_clock_step_is_corrected() {
    let world = world(Policy::default()).await;
    let attempt = world.run("k").await;
    let start = world.only_record().await.now;
    world.hands.set(Timestamp::from_micros(start.as_micros() - 3_600_000_000));
    assert!(matches!(world.begin("k").await, Begin::Skip(Outcome::InFlight { .. })));
    loop {
        let stored = world.only_record().await;
        if stored.record.due_at.expect("a lease").since(stored.now) <= Duration::from_secs(60) {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert!(matches!(attempt.finish(created_response()).await, Outcome::Completed(_)));
}
