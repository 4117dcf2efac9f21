//! SIGTERM: running requests are finished, no new ones begin, and the process ends in time.

use ibid_testkit::client::TestRequest;
use ibid_testkit::upstream::Upstream;
use tokio::net::TcpStream;

use crate::harness::{On, Setup, is_replay, on_every_store, until_async};

fn pay(key: &str) -> TestRequest {
    TestRequest::post("/payments").key(key).body("five")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_drain_answers_running_requests_and_refuses_new_ones() {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url());
    let mut gateway = setup.start();
    let mut idle = gateway.client().await;
    assert_eq!(idle.call(&pay("idle")).await.status, 200);
    let mut running = gateway.client().await;
    running.send(&pay("running").fixture("gate;status=201;body=paid")).await;
    upstream.until(|tally| tally.held == 1).await;
    assert_eq!(gateway.page("/readyz").await.text(), "ready\n");
    gateway.signal("TERM");
    let ready = until_async("it says that it drains", async || {
        Some(gateway.page("/readyz").await).filter(|page| page.status != 200)
    })
    .await;
    assert_eq!((ready.status, ready.text().as_str()), (503, "draining\n"));
    until_async("new connections are refused", async || TcpStream::connect(gateway.addr()).await.err()).await;
    idle.closed().await;
    upstream.gate().open();
    let answer = running.read().await.expect("the answer");
    assert_eq!((answer.status, answer.text().as_str()), (201, "paid"));
    let status = gateway.wait_for_exit().await;
    assert_eq!(status.code(), Some(0), "{}", gateway.log());
    assert!(gateway.log().contains("stopped"), "{}", gateway.log());
    let retry = setup.start().call(&pay("running")).await;
    assert!(is_replay(&retry) && retry.text() == "paid", "{retry:?}");
    assert_eq!(upstream.executions("running"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_request_cut_by_the_drain_still_stores_its_response() {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url()).config("[server]\ndrain_for = \"500ms\"\n");
    let mut gateway = setup.start();
    let mut client = gateway.client().await;
    client.send(&pay("slow").fixture("gate;status=201;body=paid")).await;
    upstream.until(|tally| tally.held == 1).await;
    gateway.signal("TERM");
    // The connection is cut, without a response.
    assert!(client.read().await.is_none());
    // The request keeps running without its client, and the process waits for it a little longer.
    upstream.gate().open();
    assert_eq!(gateway.wait_for_exit().await.code(), Some(0), "{}", gateway.log());
    let retry = setup.start().call(&pay("slow")).await;
    assert_eq!((retry.status, retry.text().as_str(), is_replay(&retry)), (201, "paid", true));
    assert_eq!(upstream.executions("slow"), 1);
}

#[tokio::test]
async fn a_request_that_never_ends_does_not_keep_the_process() {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url()).config(
        "[server]\ndrain_for = \"300ms\"\n[defaults]\nlease = \"1s\"\n[upkeep]\nsweep_every = \"200ms\"\n",
    );
    let mut gateway = setup.start();
    let mut client = gateway.client().await;
    let request = pay("hung").fixture("gate");
    client.send(&request).await;
    upstream.until(|tally| tally.held == 1).await;
    gateway.signal("TERM");
    assert_eq!(gateway.wait_for_exit().await.code(), Some(0), "{}", gateway.log());
    assert!(gateway.log().contains("cut=1 quiet=false"), "it ran to the end: {}", gateway.log());
    // The outcome is unknown, and no gateway tries again.
    let gateway = setup.start();
    let response = until_async("its lease has lapsed", async || {
        let answer = gateway.call(&request.clone().header("Prefer", "wait=0")).await;
        (crate::harness::problem(&answer) == "outcome-unknown").then_some(answer)
    })
    .await;
    assert_eq!(response.status, 409);
    assert_eq!(upstream.deliveries_begun(), 1);
}

on_every_store!(a_paused_gateway_continues_where_it_stopped and mysql);
async fn a_paused_gateway_continues_where_it_stopped(on: On) {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url())
        .on(on)
        .config("[defaults]\nlease = \"1s\"\n[upkeep]\nsweep_every = \"200ms\"\n");
    let (frozen, awake) = (setup.start(), setup.start());
    let request = pay("frozen").fixture("gate;status=201;body=paid");
    let mut client = frozen.client().await;
    client.send(&request).await;
    upstream.until(|tally| tally.held == 1).await;
    // Stop the gateway past its lease, which it cannot notice. The other one then reports the outcome as unknown.
    frozen.signal("STOP");
    until_async("the lease has lapsed", async || {
        let answer = awake.call(&request.clone().header("Prefer", "wait=0")).await;
        (crate::harness::problem(&answer) == "outcome-unknown").then_some(())
    })
    .await;
    upstream.gate().open();
    frozen.signal("CONT");
    // The gateway wakes up with the response, still owns the record, and settles it.
    let answer = client.read().await.expect("the answer");
    assert_eq!((answer.status, answer.text().as_str()), (201, "paid"));
    for gateway in [&awake, &frozen] {
        let retry = gateway.call(&request).await;
        assert_eq!((retry.status, retry.text().as_str(), is_replay(&retry)), (201, "paid", true));
    }
    assert_eq!(upstream.deliveries_begun(), 1);
}
