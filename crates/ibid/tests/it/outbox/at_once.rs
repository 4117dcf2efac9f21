//! Several calls of one worker at the same time: how many, and how long each may take.

use super::*;

#[tokio::test]
async fn no_more_calls_are_under_way_at_once_than_the_worker_may_make() {
    let world = World::new().await;
    let gate = Gate::closed("w");
    world.pay("k", (0..7).map(|n| NewEffect::new(format!("e{n}"), "charge", ""))).await;
    let worker = world.building(&gate.provider).concurrency(3).build().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(async move { worker.run_until(async { drop(stopped.await) }).await });
    for _ in 0..3 {
        gate.reached().await;
    }
    // Each that is let go makes room for one.
    for calls in 3..7 {
        assert_eq!(gate.provider.calls().len(), calls);
        gate.open();
        gate.reached().await;
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
    let world = World::new().await;
    let provider = Provider::new("w", |_| made());
    world.pay("k", (0..4).map(|n| NewEffect::new(format!("e{n}"), "charge", ""))).await;
    let worker = world.building(&provider).concurrency(3).build().unwrap();
    assert_eq!(worker.run_once().await.unwrap().done, 3);
    assert_eq!(world.effects().await.iter().filter(|effect| effect.state == Queued).count(), 1);
    assert_eq!(worker.run_once().await.unwrap().done, 1);
}
