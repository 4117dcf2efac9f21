//! Duplicates that wait for an attempt.

use tokio::time::Instant;

use super::*;

#[tokio::test(start_paused = true)]
async fn a_wait_is_bounded_while_the_store_hangs() {
    let world = world(Policy::default()).await;
    let _attempt = world.run("k").await;
    world.store.set(StoreFault::HangsReads);
    // A wait that is shorter than `begin_timeout` still has that long for its last read.
    for (wait, bound) in [(5, 5), (1, 2)].map(|(wait, bound)| (secs(wait), secs(bound))) {
        let started = Instant::now();
        assert!(world.ibid.wait(world.ask("k"), wait).await.is_err(), "the store did not answer");
        let took = started.elapsed();
        assert!(took >= bound && took < bound + secs(1), "{took:?} for a wait of {wait:?}");
    }
}

/// The last look starts when the wait is over, and its answer is the outcome of the wait.
#[tokio::test(start_paused = true)]
async fn a_wait_that_ends_is_told_that_the_request_runs() {
    let world = world(Policy::default()).await;
    let _attempt = world.run("k").await;
    world.store.set(StoreFault::SlowReads);
    let waited = world.ibid.wait(world.ask("k"), secs(5)).await;
    assert!(matches!(waited, Ok(Outcome::InFlight { .. })), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_wait_outlasts_a_read_that_hangs_for_a_while() {
    let world = world(Policy::default()).await;
    let attempt = world.run("k").await;
    world.store.set(StoreFault::HangsReads);
    let waiting = world.ibid.wait(world.ask("k"), secs(5));
    let ending = async {
        tokio::time::sleep(secs(1)).await;
        world.store.set(StoreFault::None);
        attempt.finish(Response::plain(201, "text/plain", "paid".to_owned())).await
    };
    let (waited, _) = tokio::join!(waiting, ending);
    assert!(matches!(waited, Ok(Outcome::Completed(kept)) if kept.response.status == 201));
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}
