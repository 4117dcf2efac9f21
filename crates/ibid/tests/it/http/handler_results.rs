//! Results of a handler that release the key or leave the outcome unknown, and late responses that settle it.

use super::*;

#[tokio::test]
async fn a_status_on_the_release_list_releases_the_key() {
    let world = world(Policy::default()).await;
    for free in ["425", "429", "501", "retry-after"] {
        let refused = world.send(pay(free).does(free)).await;
        assert!(refused.text("idempotency-expires").is_none());
        let again = world.send(pay(free)).await;
        assert_eq!((again.status, again.is_replay()), (201, false), "{free}");
        assert!(world.send(pay(free)).await.is_replay());
    }
    assert_eq!(world.runs(), 8);
}

#[tokio::test]
async fn after_401_and_403_the_key_may_come_back_with_another_request() {
    let world = world(Policy::default()).await;
    for status in ["401", "403"] {
        assert_eq!(world.send(pay(status).does(status)).await.status.to_string(), status);
        let other = world.send(pay(status).body("other")).await;
        assert_eq!((other.status, other.is_replay()), (201, false));
        assert_eq!(world.send(pay(status)).await.status, 422, "now it stands for the other request");
    }
}

#[tokio::test]
async fn a_server_error_panic_or_cut_response_never_runs_again() {
    let world = world(Policy::default()).await;
    for (what, status) in
        [("500", 500), ("503", 503), ("408", 408), ("504", 504), ("panic", 500), ("cut", 502)]
    {
        let runs = world.runs();
        assert_eq!(world.send(pay(what).does(what)).await.status, status, "{what}");
        for _ in 0..3 {
            let refused = world.send(pay(what).does(what)).await;
            assert_eq!((refused.status, refused.problem().as_str()), (409, "outcome-unknown"), "{what}");
            assert_eq!(refused.text("retry-after"), Some("60"), "a late answer may still come");
            assert!(String::from_utf8_lossy(&refused.body).contains("\"retry\":\"same-key\""));
        }
        world.hands.advance(Duration::from_secs(60));
        let refused = world.send(pay(what).does(what)).await;
        assert_eq!(refused.text("retry-after"), None, "a dead letter: a retry does not help");
        assert!(String::from_utf8_lossy(&refused.body).contains("\"retry\":\"never\""));
        assert_eq!(world.runs(), runs + 1, "{what}");
    }
}

#[tokio::test]
async fn a_server_error_that_is_not_read_to_its_end_proves_nothing() {
    let world = world(Policy::default().with(|policy| policy.max_response_body = 2999)).await;
    let first = world.send(pay("k").does("large-503")).await;
    assert_eq!((first.status, first.body.len()), (503, 3000));
    assert_eq!(world.send(pay("k").does("large-503")).await.problem(), "outcome-unknown");
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_lapsed_attempts_late_response_settles_the_record() {
    let world = world(Policy::default()).await;
    let running = world.spawn_send(pay("k").does("gate"));
    world.api.begun.notified().await;
    world.hands.advance(Duration::from_secs(61));
    let refused = world.send(pay("k").does("gate")).await;
    assert_eq!((refused.status, refused.problem().as_str()), (409, "outcome-unknown"));
    world.open_gate(1);
    assert_eq!(running.await.unwrap().status, 201);
    assert!(world.send(pay("k").does("gate")).await.is_replay());
    assert_eq!(world.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_timed_out_handlers_late_response_settles_the_record() {
    let world = world(Policy::default()).await;
    let first = world.send(pay("k").does("gate")).await;
    assert_eq!((first.status, first.problem().as_str()), (504, "outcome-unknown"));
    assert_eq!(world.send(pay("k").does("gate")).await.problem(), "outcome-unknown");
    world.open_gate(1);
    let late = loop {
        let answer = world.send(pay("k").does("gate")).await;
        if answer.status != 409 {
            break answer;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!((late.status, late.is_replay(), world.runs()), (201, true, 1));
}
