//! The gateway's bounds, one by one: a request beyond a bound is refused or ended, and reserves nothing.

use ibid_testkit::client::{Client, TestRequest};
use ibid_testkit::upstream::Upstream;

use crate::h2_client::H2Client;
use crate::harness::{Gateway, Setup, assert_problem, until_async};

#[tokio::test]
async fn a_guarded_request_over_the_bound_reserves_nothing() {
    let upstream = Upstream::start().await;
    let gateway = Setup::before(&upstream.url()).config("[server]\nmax_guarded = 1\n").start();
    let mut first = gateway.client().await;
    first.send(&TestRequest::post("/pay").key("a").fixture("gate")).await;
    upstream.until(|tally| tally.total == 1).await;

    let second = TestRequest::post("/pay").key("b");
    let refused = gateway.call(&second).await;
    assert_problem(&refused, 503, "overloaded");
    assert_eq!(refused.header("retry-after").as_deref(), Some("1"));
    assert_eq!(gateway.call(&TestRequest::get("/")).await.status, 200, "what passes is apart");
    assert_eq!(shown(&gateway, "max_guarded").await, (1.0, 1.0, 1.0));

    upstream.gate().open();
    assert_eq!(first.read().await.unwrap().status, 200);
    assert_eq!(gateway.call(&second).await.status, 200);
    assert_eq!(upstream.executions("b"), 1);
}

#[tokio::test]
async fn a_body_that_finds_no_room_in_memory_is_refused() {
    let upstream = Upstream::start().await;
    let config = "[server]\nmax_buffered_bytes = \"1MiB\"\nmax_reply_bytes = \"512KiB\"\n";
    let gateway = Setup::before(&upstream.url()).config(config).start();
    let large = TestRequest::post("/pay").key("a").body(vec![b'x'; MIB - ROOM]);
    let (head, body) = (large.head(), large.payload());
    let mut first = gateway.client().await;
    first.send_bytes(&head).await;
    first.send_bytes(&body[..MIB - ROOM - 1]).await;
    let buffered =
        async || (shown(&gateway, "max_buffered_bytes").await.0 as usize == MIB - ROOM - 1).then_some(());
    until_async("the body is in memory but for its last byte", buffered).await;

    let second = TestRequest::post("/pay").key("b").body(vec![b'y'; 2 * ROOM]);
    assert_problem(&gateway.call(&second).await, 503, "overloaded");
    first.send_bytes(&body[MIB - ROOM - 1..]).await;
    assert_eq!(first.read().await.unwrap().status, 200);
    let freed = async || (shown(&gateway, "max_buffered_bytes").await.0 == 0.0).then_some(());
    until_async("the memory is free", freed).await;
    assert_eq!(gateway.call(&second).await.status, 200);
    assert_eq!((upstream.executions("a"), upstream.executions("b")), (1, 1));
}

#[tokio::test]
async fn the_longest_unguarded_wait_for_a_head_makes_room() {
    let upstream = Upstream::start().await;
    let gateway = Setup::before(&upstream.url()).config("[server]\nmax_passed = 2\n").start();
    let mut waiting = Vec::new();
    for n in 1..=2 {
        let mut client = gateway.client().await;
        client.send(&TestRequest::get("/").fixture("gate")).await;
        upstream.until(|tally| tally.total == n).await;
        waiting.push(client);
    }
    // Guarded requests have separate slots and connections.
    assert_eq!(gateway.call(&TestRequest::post("/pay").key("a")).await.status, 200);
    assert_eq!(gateway.call(&TestRequest::get("/")).await.status, 200);
    assert_eq!(waiting.remove(0).read().await.unwrap().status, 504);

    // Requests whose response head has arrived are not ended, so the next one is refused.
    let mut streams = Vec::new();
    for _ in 0..2 {
        let mut client = gateway.client().await;
        client.send(&TestRequest::get("/").fixture("events")).await;
        assert_eq!(client.read_head().await.unwrap().status, 200);
        streams.push(client);
    }
    assert_eq!(waiting.remove(0).read().await.unwrap().status, 504);
    let refused = gateway.call(&TestRequest::get("/")).await;
    assert_problem(&refused, 503, "overloaded");
    assert_eq!(refused.header("retry-after").as_deref(), Some("1"));
    assert_eq!(gateway.call(&TestRequest::post("/pay").key("b")).await.status, 200);
    let (used, max, reached) = shown(&gateway, "max_passed").await;
    assert_eq!((used, max), (2.0, 2.0));
    assert!(reached >= 3.0, "{reached}");
}

#[tokio::test]
async fn a_tunnel_keeps_its_slot_for_unguarded_requests() {
    let upstream = Upstream::start().await;
    let gateway = Setup::before(&upstream.url()).config("[server]\nmax_passed = 1\n").start();
    let mut tunnel = gateway.client().await;
    let upgrade =
        TestRequest::get("/").header("connection", "upgrade").header("upgrade", "echo").fixture("upgrade");
    tunnel.send(&upgrade).await;
    assert_eq!(tunnel.read_head().await.unwrap().status, 101);
    assert_problem(&gateway.call(&TestRequest::get("/")).await, 503, "overloaded");
    assert_eq!(gateway.call(&TestRequest::post("/pay").key("a")).await.status, 200);

    tunnel.hang_up();
    let passes = async || (gateway.call(&TestRequest::get("/")).await.status == 200).then_some(());
    until_async("the slot is free again", passes).await;
}

#[tokio::test]
async fn an_unguarded_body_that_stops_before_the_head_is_ended() {
    let upstream = Upstream::start().await;
    let gateway = Setup::before(&upstream.url()).config("[server]\nstall_timeout = \"500ms\"\n").start();
    // The whole request was sent, and the upstream is slow: that is not a stall.
    let mut patient = gateway.client().await;
    patient.send(&TestRequest::new("PUT", "/").body("whole").fixture("gate")).await;
    upstream.until(|tally| tally.total == 1).await;

    let mut stalls = gateway.client().await;
    let request = TestRequest::new("PUT", "/").body("never sent to its end");
    stalls.send_bytes(&request.head()).await;
    stalls.send_bytes(b"never").await;
    assert_problem(&stalls.read().await.unwrap(), 408, "body-timeout");
    upstream.gate().open();
    assert_eq!(patient.read().await.unwrap().status, 200);
}

#[tokio::test]
async fn runs_of_reset_streams_count_for_their_connection() {
    let upstream = Upstream::start().await;
    let config = "[server]\nmax_streams = 4\nmax_guarded_per_connection = 4\n";
    let gateway = Setup::before(&upstream.url()).config(config).start();
    let client = H2Client::connect(gateway.addr()).await;
    let mut refused = 0;
    for n in 0..20 {
        let key = format!("reset-{n}");
        let lines = [("idempotency-key", key.as_str()), ("x-fixture", "gate")];
        let (answer, mut body) = client.open("POST", "/pay", &lines).await;
        body.send_data(Default::default(), true).expect("the body ends");
        tokio::select! {
            // The request keeps running without its client.
            _ = upstream.until(|tally| tally.total > n) => body.send_reset(h2::Reason::CANCEL),
            answer = answer => {
                assert_eq!(answer.expect("an answer").status(), 503);
                refused += 1;
            }
        }
    }
    assert_eq!((upstream.total(), refused), (4, 16));
    assert_eq!(shown(&gateway, "max_guarded_per_connection").await.2, 16.0);
    assert_eq!(gateway.call(&TestRequest::post("/pay").key("honest")).await.status, 200);

    // Once the runs are over, the connection may be used again.
    upstream.gate().open();
    let goes_on = async || {
        let answer = client.post("/pay", &[("idempotency-key", "later")], "").await.await;
        (answer.status == 200).then_some(())
    };
    until_async("the connection may run again", goes_on).await;
}

#[tokio::test]
async fn the_file_limit_is_raised_up_to_the_hard_limit() {
    let upstream = Upstream::start().await;
    let gateway = Setup::before(&upstream.url()).files(256).start();
    gateway.wait_for_log("the limit of open files is too low for `[server]`").await;
    let max = async |limit| shown(&gateway, limit).await.1;
    let (clients, guarded) = (max("max_connections").await, max("max_upstream_connections").await);
    let passed = max("max_passed").await;
    assert_eq!(
        (clients, guarded, passed),
        (84.0, 84.0, 24.0),
        "three quarters of 256, a quarter is kept back"
    );

    let gateway = Setup::before(&upstream.url()).start();
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", gateway.pid())).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let numbers: Vec<&str> = files.split_whitespace().skip(3).take(2).collect();
    assert_eq!(numbers[0], numbers[1], "soft and hard: {files}");
}

#[tokio::test]
async fn a_slow_head_of_many_connections_leaves_room_for_others() {
    let upstream = Upstream::start().await;
    let config = "[server]\nmax_connections = 4\nmax_passed = 100\n";
    let gateway = Setup::before(&upstream.url()).config(config).start();
    let mut slow = Vec::new();
    for n in 1..=4 {
        let mut client = Client::connect(gateway.addr()).await;
        client.send(&TestRequest::get("/").fixture("gate")).await;
        upstream.until(|tally| tally.total == n).await;
        slow.push(client);
    }
    // Every connection is busy with an unguarded request. After a wait of one second, one of them is ended for the
    // guarded one.
    assert_eq!(gateway.call(&TestRequest::post("/pay").key("a")).await.status, 200);
    assert_eq!(slow.remove(0).read().await.unwrap().status, 504);
}

/// Returns the used part of a bound, the bound itself, and how often it was reached.
async fn shown(gateway: &Gateway, limit: &str) -> (f64, f64, f64) {
    let label = format!("limit=\"{limit}\"");
    let used = gateway.metric("ibid_limit_used", &label).await;
    let max = gateway.metric("ibid_limit_max", &label).await;
    (used, max, gateway.metric("ibid_limit_reached_total", &label).await)
}

const MIB: usize = 1 << 20;

/// Memory that is left below the bound; the refusal itself takes some of it.
const ROOM: usize = 4096;
