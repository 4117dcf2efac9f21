//! Concurrent calls of one worker: how many, and how long each may take.

use ibid::outbox::{HandlerLimits, WorkerError};

use super::harness::Gate;
use super::*;

#[tokio::test]
async fn no_more_calls_are_under_way_at_once_than_the_worker_may_make() {
    let world = NodeOnSqlite::new().await;
    let gate = Gate::closed("w");
    world.pay("k", (0..7).map(|n| NewEffect::new(format!("e{n}"), "charge", ""))).await;
    let worker = world.building(&gate.provider).concurrency(3).build().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(async move { worker.run_until(async { drop(stopped.await) }).await });
    for _ in 0..3 {
        gate.until_reached().await;
    }
    // Each call that ends makes room for one.
    for calls in 3..7 {
        assert_eq!(gate.provider.calls().len(), calls);
        gate.open();
        gate.until_reached().await;
    }
    for _ in 0..3 {
        gate.open();
    }
    stop.send(()).unwrap();
    running.await.unwrap();
    assert_eq!((gate.provider.calls().len(), gate.provider.at_once_max()), (7, 3));
    assert!(world.effects().await.iter().all(|effect| effect.state == Done));
}

#[tokio::test]
async fn one_round_takes_no_more_than_the_worker_may_make_at_once() {
    let world = NodeOnSqlite::new().await;
    let provider = Provider::new("w", |_| made_outcome());
    world.pay("k", (0..4).map(|n| NewEffect::new(format!("e{n}"), "charge", ""))).await;
    let worker = world.building(&provider).concurrency(3).build().unwrap();
    assert_eq!(worker.run_once().await.unwrap().done, 3);
    assert_eq!(world.effects().await.iter().filter(|effect| effect.state == Queued).count(), 1);
    assert_eq!(worker.run_once().await.unwrap().done, 1);
}

#[tokio::test]
async fn each_kind_has_its_own_time_and_the_others_that_of_the_worker() {
    let of = |kind: &str, lease_ms| {
        NewEffect::new(kind, kind, "").rules(EffectRules::default().with(|rules| rules.lease_ms = lease_ms))
    };
    let (brief, long) = (Duration::from_millis(100), Duration::from_secs(300));
    for quick_is_usual in [true, false] {
        let world = NodeOnSqlite::new().await;
        let (quick, slow) = (Gate::closed("quick"), Gate::closed("slow"));
        world.pay("k", [of("quick", 60_000), of("slow", 600_000)]).await;
        let builder = outbox::Worker::builder(world.ibid.clone(), world.database());
        let quick_within = within(brief, Duration::from_secs(60));
        let slow_within = within(long, Duration::from_secs(600));
        let builder = if quick_is_usual {
            let builder = builder.timeout(brief).on("quick", quick.provider.clone());
            builder.on_with_limits("slow", slow_within, slow.provider.clone())
        } else {
            let builder = builder.timeout(long).lease(slow_within.lease).on("slow", slow.provider.clone());
            builder.on_with_limits("quick", quick_within, quick.provider.clone())
        };
        let worker = builder.build().unwrap();
        let running = tokio::spawn(async move { worker.run_once().await.unwrap() });
        slow.until_reached().await;
        let states = async || world.effects().await.iter().map(|effect| effect.state).collect::<Vec<_>>();
        while states().await[0] != Unknown {
            assert!(!running.is_finished());
            tokio::task::yield_now().await;
        }
        assert_eq!(world.effects().await[0].last_error.as_deref(), Some("the call took too long"));
        // A claim lasts as its own effect says: no other worker takes the slow one over meanwhile.
        world.pass(61);
        let other = outbox::Worker::builder(world.ibid.clone(), world.database())
            .on_with_limits("slow", slow_within, slow.provider.clone())
            .build()
            .unwrap();
        assert!(other.run_once().await.unwrap().is_idle());
        assert_eq!(states().await, [Unknown, Claimed]);
        slow.open();
        assert_eq!(
            running.await.unwrap(),
            WorkerRound::default().with(|round| (round.done, round.dead) = (1, 1))
        );
        assert_eq!(states().await, [Unknown, Done]);
    }
}

#[tokio::test]
async fn a_kind_whose_call_may_outlast_its_claim_has_no_worker() {
    let world = NodeOnSqlite::new().await;
    let provider = Provider::new("w", |_| made_outcome());
    let within = |timeout, lease| within(Duration::from_secs(timeout), Duration::from_secs(lease));
    let built =
        |within| world.building(&provider).on_with_limits("slow", within, provider.clone()).build().map(drop);
    let (kind, timeout, lease) = ("slow".to_owned(), Duration::from_secs(90), Duration::from_secs(90));
    assert_eq!(built(within(90, 90)), Err(WorkerError::OutlastsLease { kind, timeout, lease }));
    // This is allowed although it is longer than the claims of the others.
    assert_eq!(built(within(90, 91)), Ok(()));
}

fn within(timeout: Duration, lease: Duration) -> HandlerLimits {
    HandlerLimits::default().with(|limits| (limits.timeout, limits.lease) = (timeout, lease))
}
