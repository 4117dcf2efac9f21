//! Duplicates that arrive while the first request runs: they wait for its response, or are refused.

use ibid_core::policy::InFlight;

use super::*;

#[tokio::test]
async fn forty_at_once_run_once_and_get_equal_answers() {
    let world = world(Policy::default()).await;
    let all: Vec<_> = (0..40).map(|_| world.spawn_send(pay("k").does("gate"))).collect();
    world.api.begun.notified().await;
    world.open_gate(40);
    let mut replays = 0;
    for answer in all {
        let answer = answer.await.unwrap();
        assert_eq!((answer.status, &answer.body[..]), (201, &b"run 1: b"[..]));
        replays += usize::from(answer.is_replay());
    }
    assert_eq!((world.runs(), replays), (1, 39));
}

#[tokio::test]
async fn a_client_that_will_not_wait_gets_409_with_retry_after() {
    let world = world(Policy::default()).await;
    let running = world.spawn_send(pay("k/1").does("gate"));
    world.api.begun.notified().await;
    let refused = world.send(pay("k/1").does("gate").with("prefer", "wait=0")).await;
    assert_eq!((refused.status, refused.problem().as_str()), (409, "request-in-progress"));
    assert_eq!(refused.text("retry-after"), Some("1"));
    let links: Vec<_> = refused.headers.get_all("link").iter().map(|v| v.to_str().unwrap()).collect();
    assert!(links.contains(&"</.ibid/keys/k%2F1?method=POST&path=%2Fpay>; rel=\"monitor\""), "{links:?}");
    world.open_gate(1);
    running.await.unwrap();
}

#[tokio::test]
async fn in_flight_conflict_refuses_at_once() {
    let world = world(Policy::default().with(|policy| policy.in_flight = InFlight::Conflict)).await;
    let running = world.spawn_send(pay("k").does("gate"));
    world.api.begun.notified().await;
    assert_eq!(world.send(pay("k").does("gate")).await.status, 409);
    world.open_gate(1);
    assert_eq!(running.await.unwrap().status, 201);
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn forty_waiters_on_a_request_that_fails_never_run_it() {
    for (what, problem) in
        [("429", "request-in-progress"), ("500", "outcome-unknown"), ("503", "outcome-unknown")]
    {
        let world = world(Policy::default()).await;
        let gated = world.spawn_send(pay("k").does("gate"));
        world.api.begun.notified().await;
        drop(gated);
        let waiters: Vec<_> = (0..40).map(|_| world.spawn_send(pay("k").does("gate"))).collect();
        while world.ibid.waiting() < 40 {
            tokio::task::yield_now().await;
        }
        // The gate stays shut. The test ends the record itself, with the status in question.
        let stored = world
            .store
            .browse()
            .expect("a store that can be browsed")
            .list(RecordFilter::default())
            .await
            .unwrap()
            .items
            .remove(0);
        end_by_hand(&world, stored, what).await;
        for waiter in waiters {
            let refused = waiter.await.unwrap();
            assert_eq!((refused.status, refused.problem().as_str()), (409, problem));
        }
        assert_eq!(world.runs(), 1);
    }
}

/// Writes the end of a running record as its own attempt would.
async fn end_by_hand(world: &GuardedApp, stored: ibid_core::change::StoredRecord, status: &str) {
    use ibid_core::machine::{AttemptResponse, Event, Verdict, decide};
    // A stored response: a 5xx counts only if it was read to its end.
    let response = Arc::new(ibid_core::response::Response::plain(503, "text/plain", String::new()));
    let answer = AttemptResponse {
        status: status.parse().unwrap(),
        retry_after: false,
        kept: Some(response),
        provider_id: None,
        proof: None,
    };
    let nonce = ibid_core::record::Nonce(7);
    let event = Event::Answered { begun: &stored.record, nonce, answer: &answer };
    let Verdict::Write(change, _) = decide(Some(&stored.record), &event, stored.now) else {
        panic!("it writes")
    };
    let fate = world.store.commit(change, None).await;
    assert!(matches!(fate, Ok(ibid_core::change::Commit::Done(_))));
}

#[tokio::test]
async fn two_nodes_on_one_store_run_a_key_once() {
    let world = world(Policy::default()).await;
    let other = fresh_node(&world).await;
    let running = world.spawn_send(pay("k").does("gate"));
    world.api.begun.notified().await;
    let waiting = tokio::spawn({
        let call = other.clone().oneshot(pay("k").does("gate").build());
        async move { read(call.await).await }
    });
    world.open_gate(2);
    let (first, second) = (running.await.unwrap(), waiting.await.unwrap());
    assert_eq!((&first.body, second.is_replay()), (&second.body, true));
    assert_eq!(world.runs(), 1);
}
