//! Clients that hang up, at any moment of their request.

use super::*;

#[tokio::test]
async fn a_client_that_hangs_up_finds_its_answer_stored() {
    let world = world(Policy::default()).await;
    let hung_up = world.spawn_send(pay("k").does("gate"));
    world.api.begun.notified().await;
    hung_up.abort();
    assert!(hung_up.await.is_err());
    world.open_gate(1);
    let retry = world.send(pay("k").does("gate")).await;
    assert_eq!((retry.status, retry.is_replay(), world.runs()), (201, true, 1));
}

/// On one thread, a task that the call has spawned does not run between the last poll and the drop. So one of the rounds
/// drops the client just after its begin was committed and its run was spawned.
#[tokio::test]
async fn a_client_that_left_before_the_run_releases_its_key() {
    let mut released = 0;
    for polls in 1.. {
        let world = world(Policy::default()).await;
        let mut call = Box::pin(world.app.clone().oneshot(pay("k").build()));
        for poll in 0..polls {
            if poll > 0 {
                tokio::task::yield_now().await;
            }
            if futures_util::poll!(&mut call).is_ready() {
                assert!(released > 0, "no round left a reserved key");
                return;
            }
        }
        let had_run = world.runs() > 0;
        drop(call);
        world.ibid.settled().await;
        if !had_run {
            assert_eq!(world.runs(), 0, "the handler ran for a client that left after {polls} polls");
            if world.records().await > 0 {
                assert_eq!(world.state().await, "retryable", "after {polls} polls");
                released += 1;
            }
        }
        // No lease has lapsed: the clock is manual and does not move.
        let retry = world.send(pay("k")).await;
        assert_eq!((retry.status, retry.is_replay(), world.runs()), (201, had_run, 1), "after {polls} polls");
    }
}

#[tokio::test]
async fn a_request_dropped_at_any_await_executes_at_most_once() {
    for polls in 1.. {
        let world = world(Policy::default()).await;
        let pieces = futures_util::stream::unfold(0, async |piece| {
            tokio::task::yield_now().await;
            (piece < 3).then(|| (Ok::<_, Infallible>(Bytes::from_static(b"b")), piece + 1))
        });
        let request = pay("k").body(Body::from_stream(Box::pin(pieces))).build();
        let mut call = Box::pin(world.app.clone().oneshot(request));
        let mut done = false;
        for _ in 0..polls {
            let polled =
                std::future::poll_fn(|cx| std::task::Poll::Ready(call.as_mut().poll(cx).is_ready())).await;
            if polled {
                done = true;
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(call);
        // The request that was begun ends by itself, by its run or by the release of its key. A retry before that end is a
        // duplicate, and a duplicate never runs. After it, the retry gets the response or runs for the first time.
        world.ibid.settled().await;
        let retry = world.send(pay("k").body("bbb")).await;
        assert_eq!((retry.status, &retry.body[..]), (201, &b"run 1: bbb"[..]), "dropped after {polls} polls");
        assert_eq!(
            (world.runs(), world.state().await.as_str()),
            (1, "completed"),
            "dropped after {polls} polls"
        );
        if done {
            assert!(polls > 5, "the call has several awaits");
            return;
        }
    }
}
