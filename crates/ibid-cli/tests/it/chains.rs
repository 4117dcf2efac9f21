//! One chain per rule of `docs/concepts/outcomes.md`: the gateway, a real proxy with the operator's lines in its
//! configuration, an upstream. `scripts/chains` runs them all.

use std::net::SocketAddr;

use ibid_core::proof::PRESETS;
use ibid_testkit::client::{Client, TestRequest};
use ibid_testkit::hop::{Proxy, ProxyHop, ProxyHopOptions};
use ibid_testkit::upstream::{ReservedPort, Upstream};

use crate::harness::{Gateway, Setup, assert_problem, is_replay};

/// Starts a proxy with the operator's lines, and a gateway that is configured for it.
fn behind(proxy: Proxy, upstream: SocketAddr, options: ProxyHopOptions) -> (ProxyHop, Gateway) {
    let hop = ProxyHop::start(proxy, upstream, ProxyHopOptions { proves: true, ..options });
    let config = format!("[defaults]\nbehind = \"{}\"\n", proxy.name());
    let gateway = Setup::before(&hop.url()).config(&config).start();
    (hop, gateway)
}

fn pay(key: &str) -> TestRequest {
    TestRequest::post("/pay").key(key).body("amount=1")
}

/// Asserts that the response has this status and the outcome is unknown: the retry is not delivered.
async fn stays_unknown(gateway: &Gateway, request: &TestRequest, status: u16) {
    let answer = gateway.call(request).await;
    assert_eq!(answer.status, status, "{answer:?}");
    assert_eq!(answer.header("x-ibid-hop"), None, "the field is for ibid alone");
    assert_problem(&gateway.call(request).await, 409, "outcome-unknown");
}

/// A refused connection and a full hop release the key. The application's own 503 does not, with or without a forged
/// field.
async fn proves_what_it_did_not_send(proxy: Proxy) {
    let port = ReservedPort::port();
    let (_hop, gateway) = behind(proxy, port.addr(), ProxyHopOptions::default());
    let refused = gateway.call(&pay("refused")).await;
    assert!(matches!(refused.status, 502 | 503), "{refused:?}");
    assert_eq!(refused.header("x-ibid-hop"), None, "the field is for ibid alone");
    let upstream = port.start();
    let retried = gateway.call(&pay("refused")).await;
    assert_eq!((retried.status, is_replay(&retried)), (200, false), "{retried:?}");
    assert_eq!(upstream.executions("refused"), 1);

    stays_unknown(&gateway, &pay("own").fixture("status=503"), 503).await;
    let forged = format!("status=503;header=X-Ibid-Hop: {}", proxy.proof());
    stays_unknown(&gateway, &pay("forged").fixture(&forged), 503).await;
    assert_eq!((upstream.executions("own"), upstream.executions("forged")), (1, 1));

    let upstream = Upstream::start().await;
    let (hop, gateway) =
        behind(proxy, upstream.addr(), ProxyHopOptions { one_at_a_time: true, ..ProxyHopOptions::default() });
    let addr = hop.addr();
    let busy =
        tokio::spawn(async move { Client::connect(addr).await.call(&pay("busy").fixture("gate")).await });
    upstream.until(|tally| tally.held == 1).await;
    assert_eq!(gateway.call(&pay("full")).await.status, 503);
    assert_eq!(upstream.executions("full"), 0);
    upstream.gate().open();
    assert_eq!(busy.await.expect("it ends").status, 200);
    assert_eq!(gateway.call(&pay("full")).await.status, 200);
    assert_eq!(upstream.executions("full"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn nginx_proves_what_it_did_not_send() {
    proves_what_it_did_not_send(Proxy::Nginx).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn haproxy_proves_what_it_did_not_send() {
    proves_what_it_did_not_send(Proxy::Haproxy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn envoy_proves_what_it_did_not_send() {
    proves_what_it_did_not_send(Proxy::Envoy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn apache_proves_what_it_did_not_send() {
    proves_what_it_did_not_send(Proxy::Apache).await;
}

/// Without a preset and with one: Envoy responds with 503 after the upstream took the request and died.
#[tokio::test(flavor = "multi_thread")]
async fn a_503_after_a_reset_is_delivered_once() {
    let upstream = Upstream::start().await;
    let (hop, gateway) = behind(Proxy::Envoy, upstream.addr(), ProxyHopOptions::default());
    let plain = Setup::before(&hop.url()).start();
    for (gateway, key) in [(&gateway, "preset"), (&plain, "plain")] {
        let answer = gateway.call(&pay(key).fixture("cut=read;rst")).await;
        assert_eq!(answer.status, 503);
        assert_problem(&gateway.call(&pay(key).fixture("cut=read;rst")).await, 409, "outcome-unknown");
        assert_eq!(upstream.executions(key), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hop_that_tried_twice_is_not_believed() {
    // nginx: the application executed the request and responded with 503, and the second try was refused.
    let (upstream, dead) = (Upstream::start().await, ReservedPort::port());
    let again = |other| ProxyHopOptions { tries_again: Some(other), ..ProxyHopOptions::default() };
    let (_nginx, gateway) = behind(Proxy::Nginx, upstream.addr(), again(dead.addr()));
    stays_unknown(&gateway, &pay("nginx").fixture("status=503"), 502).await;
    assert_eq!(upstream.executions("nginx"), 1);

    // Envoy and HAProxy: both tries were refused, which they report as `URX,UF/2` and `own/2`.
    let (_envoy, gateway) = behind(Proxy::Envoy, dead.addr(), again(dead.addr()));
    stays_unknown(&gateway, &pay("envoy"), 503).await;
    let (_haproxy, gateway) = behind(Proxy::Haproxy, dead.addr(), again(dead.addr()));
    stays_unknown(&gateway, &pay("haproxy"), 503).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn not_executed_is_ignored_after_a_second_try() {
    let (first, second) = (Upstream::start().await, Upstream::start().await);
    first.behave("status=503");
    second.behave("status=503;header=Ibid-Outcome: not-executed");
    let options = ProxyHopOptions { tries_again: Some(second.addr()), ..ProxyHopOptions::default() };
    let (_hop, gateway) = behind(Proxy::Nginx, first.addr(), options);
    stays_unknown(&gateway, &pay("k"), 503).await;
    assert_eq!((first.executions("k"), second.executions("k")), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_word_on_a_broken_answer_proves_nothing() {
    let upstream = Upstream::start().await;
    let (_hop, gateway) = behind(Proxy::Nginx, upstream.addr(), ProxyHopOptions::default());
    let broken =
        pay("k").fixture("status=503;header=Ibid-Outcome: not-executed;bytes=1000;cut=body;pause=50");
    assert_problem(&gateway.call(&broken).await, 502, "outcome-unknown");
    assert_problem(&gateway.call(&broken).await, 409, "outcome-unknown");
    assert_eq!(upstream.executions("k"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_names_the_hop_once() {
    let upstream = Upstream::start().await;
    let hop = ProxyHop::start(Proxy::Nginx, upstream.addr(), ProxyHopOptions::default());
    let gateway = Setup::before(&hop.url()).start();
    for key in ["a", "b"] {
        assert_eq!(gateway.call(&pay(key)).await.status, 200);
    }
    gateway.wait_for_log("with `behind = \"nginx\"`").await;
    assert_eq!(gateway.log().matches("answers through nginx").count(), 1, "{}", gateway.log());

    let (_hop, told) = behind(Proxy::Nginx, upstream.addr(), ProxyHopOptions::default());
    assert_eq!(told.call(&pay("c")).await.status, 200);
    told.wait_for_log("listening on").await;
    assert!(!told.log().contains("answers through nginx"), "{}", told.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_names_the_hop() {
    let upstream = Upstream::start().await;
    let hop = ProxyHop::start(Proxy::Nginx, upstream.addr(), ProxyHopOptions::default());
    let setup = Setup::before("");
    assert!(setup.ibid(&["migrate", "--store", &setup.store()]).status.success());
    for (url, found, meaning) in
        [(hop.url(), "ok", "`behind = \"nginx\"`"), (upstream.url(), "unseen", "no proxy is named")]
    {
        let output = setup.ibid(&["doctor", "--store", &setup.store(), "--upstream", &url]);
        let table = String::from_utf8_lossy(&output.stdout);
        let line = table.lines().find_map(|line| line.strip_prefix("next hop")).unwrap_or_default();
        assert!(line.trim_start().starts_with(found) && line.contains(meaning), "{table}");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
    assert!(upstream.requests().iter().all(|request| request.method == "HEAD"), "it changes nothing");
}

#[test]
fn the_page_shows_the_lines_of_every_preset() {
    let page = include_str!("../../../../docs/concepts/outcomes.md");
    for preset in PRESETS.iter().filter(|preset| !preset.lines.is_empty()) {
        assert!(page.contains(preset.lines), "`{}`:\n{}", preset.name, preset.lines);
    }
    for proxy in Proxy::ALL {
        assert!(page.contains(&format!("| {} |", proxy.name())), "`{}`", proxy.name());
    }
}
