//! A store that is down or loses replies, as clients of the guard see it.

use ibid_testkit::faults::StoreFault;

use super::*;

#[tokio::test]
async fn with_the_store_down_nothing_runs_and_the_client_gets_503() {
    let settings = Settings::default().with(|settings| settings.begin_timeout = Duration::from_millis(50));
    let world = world_with(Policy::default(), vec![], settings).await;
    world.store.set(StoreFault::Down);
    for _ in 0..8 {
        let refused = world.send(pay("k")).await;
        assert_eq!((refused.status, refused.problem().as_str()), (503, "store-unavailable"));
        assert_eq!(refused.text("retry-after"), Some("1"));
        assert!(!String::from_utf8_lossy(&refused.body).contains("faulty"), "no store's name");
    }
    assert_eq!(world.runs(), 0);
    assert!(world.ibid.is_breaker_open());
    world.store.set(StoreFault::None);
    // The releases of the abandoned begins come first; then the next begin finds a healthy store.
    world.ibid.settled().await;
    loop {
        let answer = world.send(pay("k")).await;
        if answer.status == 201 {
            break;
        }
        assert_eq!(answer.status, 503, "the breaker's pause");
        tokio::task::yield_now().await;
    }
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_begin_whose_reply_is_lost_is_recognised_as_ones_own() {
    let world = world(Policy::default()).await;
    world.store.set(StoreFault::LosesReplies);
    let answer = world.spawn_send(pay("k"));
    while world.store.commits() == 0 {
        tokio::task::yield_now().await;
    }
    world.store.set(StoreFault::None);
    let answer = answer.await.unwrap();
    assert_eq!((answer.status, answer.is_replay(), world.runs()), (201, false, 1));
}

#[tokio::test]
async fn a_begin_given_up_is_released_and_the_key_stays_free() {
    let settings = Settings::default().with(|settings| settings.begin_timeout = Duration::from_millis(30));
    let world = world_with(Policy::default(), vec![], settings).await;
    world.store.set(StoreFault::LosesReplies);
    assert_eq!(world.send(pay("k")).await.status, 503);
    assert_ne!(world.records().await, 0, "it was written, and the reply was lost");
    world.store.set(StoreFault::None);
    world.ibid.settled().await;
    assert_eq!(world.state().await, "retryable");
    assert_eq!((world.send(pay("k").body("other")).await.status, world.runs()), (422, 0));
    assert_eq!((world.send(pay("k")).await.status, world.runs()), (201, 1));
}

#[tokio::test]
async fn a_response_not_stored_in_time_is_marked_and_stored_later() {
    let settings = Settings::default().with(|settings| settings.finish_wait = Duration::from_millis(30));
    let world = world_with(Policy::default(), vec![], settings).await;
    let running = world.spawn_send(pay("k").does("gate"));
    world.api.begun.notified().await;
    world.store.set(StoreFault::Down);
    world.open_gate(1);
    let first = running.await.unwrap();
    assert_eq!((first.status, first.text("idempotency-stored")), (201, Some("false")));
    assert_eq!(world.state().await, "in_progress");
    // After the lapse the record becomes unknown, and the queued finish still settles it.
    world.store.set(StoreFault::None);
    world.hands.advance(Duration::from_secs(61));
    world.ibid.settled().await;
    assert_eq!(world.state().await, "completed");
    let retry = world.send(pay("k").does("gate")).await;
    assert_eq!((retry.status, &retry.body, retry.is_replay()), (201, &first.body, true));
    assert_eq!(world.runs(), 1);
}
