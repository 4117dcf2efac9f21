//! Failures of the upstream: a failure that proves nothing is never sent again, and one that proves that nothing was
//! executed releases the key.

use futures_util::future::join_all;
use ibid_testkit::client::TestRequest;
use ibid_testkit::upstream::{ReservedPort, Upstream};
use ibid_testkit::upstream_h2::UpstreamH2;

use crate::harness::{
    Gateway, On, Setup, assert_problem, connections_to, is_replay, on_every_store, until_async,
};

fn pay(key: &str, fixture: &str) -> TestRequest {
    TestRequest::post("/payments").key(key).body("five").fixture(fixture)
}

/// Asserts that every retry of an unknown record gets 409, with `Retry-After` while a late response may settle it.
async fn stays_unknown(gateway: &Gateway, request: &TestRequest) {
    for _ in 0..3 {
        let retry = gateway.call(request).await;
        assert_problem(&retry, 409, "outcome-unknown");
        assert!(retry.text().contains("\"retry\":\"same-key\""), "{retry:?}");
        assert!(retry.header("retry-after").is_some(), "{retry:?}");
    }
}

on_every_store!(a_response_lost_after_sending_leaves_the_outcome_unknown and mysql);
async fn a_response_lost_after_sending_leaves_the_outcome_unknown(on: On) {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url()).on(on);
    let mut gateway = setup.start();
    let faults =
        ["cut=read", "cut=read;rst", "cut=head", "cut=body", "cut=body;rst", "cut=chunk", "cut=unread"];
    for fault in faults {
        let request = pay(fault, fault);
        assert_problem(&gateway.call(&request).await, 502, "outcome-unknown");
        stays_unknown(&gateway, &request).await;
    }
    gateway.kill();
    let gateway = setup.start();
    for fault in faults {
        // The retry stays unknown, whatever the upstream would respond with now.
        stays_unknown(&gateway, &pay(fault, "status=201")).await;
    }
    assert_eq!(upstream.deliveries_begun(), faults.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_server_error_is_forwarded_and_then_stays_unknown() {
    let upstream = Upstream::start().await;
    let gateway = Setup::before(&upstream.url()).start();
    for status in [408, 500, 502, 503, 504, 507] {
        let request = pay(&format!("s{status}"), &format!("status={status};body=oops"));
        let first = gateway.call(&request).await;
        assert_eq!((first.status, first.text().as_str()), (status, "oops"), "{first:?}");
        assert_eq!(first.header("idempotency-outcome"), Some("unknown".to_owned()), "{first:?}");
        stays_unknown(&gateway, &request).await;
        assert_eq!(upstream.executions(&format!("s{status}")), 1);
    }
    // An error response that is cut off is no response at all.
    let cut = pay("cut503", "status=503;cut=body");
    assert_problem(&gateway.call(&cut).await, 502, "outcome-unknown");
    stays_unknown(&gateway, &cut).await;
    assert_eq!(upstream.deliveries_begun(), 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn forty_waiters_on_an_unknown_outcome_cause_no_delivery() {
    let upstream = Upstream::start().await;
    // The wait is longer than the test, so that no waiter gives up before the outcome is known.
    let gateway = Setup::before(&upstream.url()).config("[defaults]\nwait = \"25s\"\n").start();
    for fault in ["gate;cut=read;rst", "gate;status=500"] {
        let request = pay(fault, fault);
        let mut clients = Vec::new();
        for _ in 0..41 {
            let mut client = gateway.client().await;
            client.send(&request).await;
            clients.push(client);
        }
        upstream.until(|tally| tally.held == 1).await;
        upstream.gate().release(1);
        let answers =
            join_all(clients.iter_mut().map(async |client| client.read().await.expect("an answer"))).await;
        let first = answers.iter().filter(|answer| answer.status >= 500).count();
        let unknown = answers.iter().filter(|answer| crate::harness::problem(answer) == "outcome-unknown");
        assert_eq!(first, 1, "one client gets the upstream's failure: {answers:?}");
        assert!(unknown.count() >= 40, "the others get an unknown outcome: {answers:?}");
        stays_unknown(&gateway, &request).await;
        assert_eq!(upstream.executions(fault), 1);
    }
    assert_eq!(upstream.deliveries_begun(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn forty_waiters_on_a_key_that_turns_free_do_not_run_it_in_turn() {
    let upstream = Upstream::start().await;
    let gateway = Setup::before(&upstream.url()).start();
    let request = pay("turns", "gate;status=429");
    let mut clients = Vec::new();
    let mut first = gateway.client().await;
    first.send(&request).await;
    upstream.until(|tally| tally.held == 1).await;
    for _ in 0..40 {
        let mut client = gateway.client().await;
        client.send(&request).await;
        clients.push(client);
    }
    until_async("all forty wait", async || {
        (gateway.metric("ibid_begin_seconds_count", "").await >= 41.0).then_some(())
    })
    .await;
    let refused = gateway.call(&request.clone().header("Prefer", "wait=0")).await;
    assert_problem(&refused, 409, "request-in-progress");
    upstream.gate().open();
    assert_eq!(first.read().await.expect("an answer").status, 429);
    for client in &mut clients {
        let answer = client.read().await.expect("an answer");
        assert_problem(&answer, 409, "request-in-progress");
        assert!(answer.header("retry-after").is_some(), "{answer:?}");
    }
    assert_eq!(upstream.executions("turns"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_time_out_is_unknown_until_the_late_answer_settles_it() {
    let upstream = Upstream::start().await;
    let gateway = Setup::before(&upstream.url()).config("[defaults]\nupstream_timeout = \"300ms\"\n").start();
    let request = pay("late", "gate;status=201;body=paid late");
    assert_problem(&gateway.call(&request).await, 504, "outcome-unknown");
    assert_problem(&gateway.call(&request).await, 409, "outcome-unknown");
    upstream.gate().open();
    let settled = until_async("the late answer settles the record", async || {
        Some(gateway.call(&request).await).filter(|answer| answer.status != 409)
    })
    .await;
    assert_eq!((settled.status, settled.text().as_str(), is_replay(&settled)), (201, "paid late", true));
    assert_eq!(upstream.deliveries_begun(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_time_out_without_a_late_answer_stays_unknown() {
    let upstream = Upstream::start().await;
    let config = "[defaults]\nupstream_timeout = \"200ms\"\nlinger = \"0s\"\n";
    let gateway = Setup::before(&upstream.url()).config(config).start();
    let request = pay("never", "gate;status=201");
    let first = gateway.call(&request).await;
    assert_problem(&first, 504, "outcome-unknown");
    // The gateway stops reading, so it closes the connection.
    let closed = async || (connections_to(upstream.addr()) == 0).then_some(());
    until_async("the connection to the upstream is closed", closed).await;
    upstream.gate().open();
    upstream.until(|tally| tally.held == 0).await;
    // No late response can settle it any more, and the first response says so, too.
    let retry = gateway.call(&request).await;
    assert_problem(&retry, 409, "outcome-unknown");
    for response in [first, retry] {
        assert!(response.text().contains("\"retry\":\"never\""), "{response:?}");
        assert!(response.header("retry-after").is_none(), "{response:?}");
    }
    assert_eq!(upstream.deliveries_begun(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_refused_connection_releases_the_key() {
    let reserved = ReservedPort::port();
    let gateway = Setup::before(&reserved.url()).start();
    let request = pay("patient", "status=201;body=paid");
    for _ in 0..3 {
        let refused = gateway.call(&request).await;
        assert_problem(&refused, 503, "upstream-unavailable");
        assert!(refused.header("retry-after").is_some(), "{refused:?}");
    }
    let upstream = reserved.start();
    let answer = gateway.call(&request).await;
    assert_eq!((answer.status, is_replay(&answer)), (201, false), "{answer:?}");
    assert!(is_replay(&gateway.call(&request).await));
    assert_eq!(upstream.deliveries_begun(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_status_on_the_release_list_releases_the_key() {
    let upstream = Upstream::start().await;
    let gateway = Setup::before(&upstream.url()).start();
    let free =
        ["status=501", "status=429;retry-after=3", "status=409;retry-after=1", "status=425", "status=401"];
    for fixture in free {
        let first = gateway.call(&pay(fixture, fixture)).await;
        assert!(fixture.contains(&first.status.to_string()) && first.text() == "done", "{first:?}");
        let second = gateway.call(&pay(fixture, "status=201;body=paid")).await;
        assert_eq!((second.status, is_replay(&second)), (201, false), "{fixture}");
        let third = gateway.call(&pay(fixture, fixture)).await;
        assert_eq!((third.status, is_replay(&third)), (201, true), "{fixture}");
        assert_eq!(upstream.executions(fixture), 2);
    }
    // A 409 without `Retry-After` is a final response like others.
    assert_eq!(gateway.call(&pay("final", "status=409")).await.text(), "done");
    assert!(is_replay(&gateway.call(&pay("final", "status=201")).await));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn silently_closed_idle_connections_cause_no_double_send() {
    let upstream = Upstream::start().await;
    let gateway = Setup::before(&upstream.url()).start();
    for n in 0..50 {
        let answer = gateway.call(&pay(&format!("idle-{n}"), "cut=after;status=201")).await;
        assert_eq!((answer.status, is_replay(&answer)), (201, false));
        // Wait until the gateway has noticed the close: otherwise the next request meets a connection that is about to
        // close.
        upstream.until(|tally| tally.closed > n).await;
    }
    let tally = upstream.tally();
    assert_eq!((tally.total, tally.begun, tally.repeated_keys().len()), (50, 50, 0));
    for n in 0..50 {
        assert!(is_replay(&gateway.call(&pay(&format!("idle-{n}"), "")).await));
    }
}

#[tokio::test]
async fn an_outcome_that_becomes_unknown_is_logged_and_counted() {
    let upstream = Upstream::start().await;
    let route = "[[route]]\nmatch = \"POST /payments\"\n";
    let gateway = Setup::before(&upstream.url()).config(route).start();
    assert_eq!(gateway.call(&pay("k1", "status=503")).await.status, 503);
    assert_problem(&gateway.call(&pay("k2", "cut=read")).await, 502, "outcome-unknown");
    gateway.wait_for_log("cause=reset").await;
    let log = gateway.log();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("outcome unknown;")).collect();
    assert_eq!(lines.len(), 2, "{log}");
    for (line, cause) in lines.iter().zip(["cause=status_503", "cause=reset"]) {
        assert!(line.contains("WARN") && line.contains(cause) && line.contains("method=POST"), "{line}");
        assert!(line.contains("record=") && line.contains("route=/payments"), "{line}");
    }
    for cause in ["status_503", "reset"] {
        let labels = format!("cause=\"{cause}\"");
        assert_eq!(gateway.metric("ibid_unknown_total", &labels).await, 1.0, "{cause}");
    }
}

#[tokio::test]
async fn no_connection_is_used_again_after_a_server_error() {
    let upstream = Upstream::start().await;
    let gateway = Setup::before(&upstream.url()).start();
    for n in 0..10 {
        // Like uvicorn: send the error, then close without announcing it.
        let failed = gateway.call(&pay(&format!("fails-{n}"), "cut=next;status=500")).await;
        assert_eq!(failed.status, 500);
        let innocent = gateway.call(&pay(&format!("innocent-{n}"), "status=201")).await;
        assert_eq!(innocent.status, 201, "{innocent:?}");
    }
    assert_eq!(upstream.tally().repeated_keys(), Vec::<&str>::new());
}

#[tokio::test]
async fn a_dying_pooled_connection_never_sends_a_request_twice() {
    let upstream = Upstream::start().await;
    let gateway = Setup::before(&upstream.url()).start();
    let (mut uncertain, mut fine) = (0, 0);
    for n in 0..50 {
        let request = pay(&format!("dying-{n}"), "cut=next;status=201");
        match gateway.call(&request).await.status {
            201 => fine += 1,
            // The upstream may have read some bytes, so the outcome is unknown and the gateway does not try again.
            502 => uncertain += 1,
            503 => {
                let retry = gateway.call(&request).await;
                assert!(matches!(retry.status, 201 | 502), "{retry:?}");
            }
            other => panic!("{other}"),
        }
    }
    assert!(fine > 0 && uncertain > 0, "both were met: {fine} and {uncertain}");
    assert_eq!(upstream.tally().repeated_keys(), Vec::<&str>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn only_a_refused_http2_stream_may_run_again() {
    let upstream = UpstreamH2::start().await;
    let gateway = Setup::before(&upstream.url()).config("upstream_http2 = true\n").start();
    for fault in ["refuse", "goaway=below"] {
        let refused = gateway.call(&pay(fault, fault)).await;
        assert_problem(&refused, 503, "upstream-unavailable");
        assert_eq!(upstream.executions(fault), 0);
        let answer = gateway.call(&pay(fault, "status=201;body=paid")).await;
        assert_eq!((answer.status, is_replay(&answer)), (201, false), "{fault}: {answer:?}");
        assert!(is_replay(&gateway.call(&pay(fault, fault)).await), "{fault}");
        assert_eq!(upstream.executions(fault), 1);
    }
    for fault in ["reset=internal", "reset=cancel", "goaway=at"] {
        assert_problem(&gateway.call(&pay(fault, fault)).await, 502, "outcome-unknown");
        stays_unknown(&gateway, &pay(fault, "status=201")).await;
        assert_eq!(upstream.executions(fault), 1, "{fault}");
    }
}
