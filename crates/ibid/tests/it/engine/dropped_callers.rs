//! Callers that are dropped during a begin or a finish, and attempts that are dropped without an end.

use super::*;

#[tokio::test]
async fn a_caller_dropped_during_begin_leaves_no_reservation() {
    let world = world(Policy::default()).await;
    world.store.set(StoreFault::Hangs);
    let begin = tokio::spawn({
        let (ibid, ask) = (world.ibid.clone(), world.ask("k"));
        async move { ibid.begin(ask).await }
    });
    while world.store.commits() == 0 {
        tokio::task::yield_now().await;
    }
    begin.abort();
    assert!(begin.await.is_err());
    world.store.set(StoreFault::None);
    loop {
        match world.begin("k").await {
            Begin::Run(attempt) => {
                let _ = attempt.finish(created_response()).await;
                break;
            }
            Begin::Skip(Outcome::InFlight { .. }) => tokio::task::yield_now().await,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(world.state().await, State::Completed);
}

#[tokio::test]
async fn a_caller_dropped_during_finish_still_stores_its_response() {
    let world = world(Policy::default()).await;
    let (attempt, begun) = (world.run("k").await, world.store.commits());
    world.store.set(StoreFault::Hangs);
    let finish = tokio::spawn(async move { attempt.finish(created_response()).await });
    while world.store.commits() == begun {
        tokio::task::yield_now().await;
    }
    finish.abort();
    assert!(finish.await.is_err());
    world.store.set(StoreFault::Down);
    while world.store.commits() == begun + 1 {
        tokio::task::yield_now().await;
    }
    world.store.set(StoreFault::None);
    world.ibid.settled().await;
    assert_eq!(world.state().await, State::Completed);
}

#[tokio::test]
async fn a_finish_whose_caller_leaves_is_written_all_the_same() {
    let world = world(Policy::default()).await;
    let mut attempt = world.run("k").await;
    attempt.ensure_lease().await.expect("a fresh lease");
    world.store.set(StoreFault::Hangs);
    let before = world.store.commits();
    let finish = tokio::spawn(attempt.finish(created_response()));
    while world.store.commits() == before {
        tokio::task::yield_now().await;
    }
    finish.abort();
    assert!(finish.await.is_err());
    world.store.set(StoreFault::Down);
    tokio::task::yield_now().await;
    world.store.set(StoreFault::None);
    world.ibid.settled().await;
    assert_eq!(world.state().await, State::Completed);
}

#[tokio::test]
async fn an_attempt_dropped_after_its_first_byte_is_unknown() {
    let world = world(Policy::default()).await;
    let mut attempt = world.run("k").await;
    attempt.ensure_lease().await.expect("a fresh lease");
    drop(attempt);
    world.ibid.settled().await;
    assert_eq!(world.state().await, State::Unknown);
}

#[tokio::test]
async fn an_attempt_dropped_without_a_word_is_unknown() {
    let world = world(Policy::default()).await;
    // Its caller may have done the work and forgotten to ask before.
    drop(world.run("k").await);
    world.ibid.settled().await;
    assert_eq!(world.state().await, State::Unknown);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_may_not_send_is_released_when_dropped() {
    let world = world(Policy::default()).await;
    let mut attempt = world.run("k").await;
    world.store.set(StoreFault::HangsRenewals);
    tokio::time::advance(world.policy.lease / 2).await;
    // The client leaves while the attempt asks.
    let asked = tokio::time::timeout(Duration::from_secs(1), attempt.ensure_lease()).await;
    assert!(asked.is_err(), "the store does not answer");
    drop(attempt);
    world.ibid.settled().await;
    assert_eq!(world.state().await, State::Retryable);
}
