//! The gateway settles unknown outcomes by a lookup at the upstream, which executed the request and then cut the
//! connection.
//!
//! The `x-fixture` header of a client's request says how the upstream treats it. The upstream treats lookups by its
//! default fixture, or by the header that the rule adds.

use std::io::{BufRead, BufReader};
use std::process::Command;

use ibid_testkit::client::{TestRequest, TestResponse};
use ibid_testkit::upstream::{SeenRequest, Upstream};
use serde_json::Value;

use crate::harness::{Gateway, On, Setup, assert_problem, is_replay, on_every_store, until_async};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_looked_up_result_is_replayed() {
    let upstream = Upstream::start().await;
    upstream.behave("status=200;body=paid;header=x-payment: 7;header=set-cookie: a=b");
    let setup = setup(&upstream, "status = 201");
    let gateway = setup.start();
    let lost = gateway.call(&lost("k")).await;
    assert_problem(&lost, 502, "outcome-unknown");
    let early = gateway.call(&pay("k")).await;
    assert_problem(&early, 409, "outcome-unknown");
    let wait: u64 = early.header("retry-after").expect("a next look").parse().expect("seconds");
    assert!((1..=2).contains(&wait), "until the question, which is due in a second: {wait}");

    let known = until_known(&gateway, "k").await;
    assert_eq!((known.status, known.text().as_str()), (201, "paid"));
    assert_eq!(known.header("x-payment").as_deref(), Some("7"));
    assert_eq!(known.header("set-cookie"), None, "what no retry may have is not kept");
    assert!(is_replay(&known));
    assert_eq!(upstream.executions("k"), 1);
    let asked = questions(&upstream);
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].target, "/payments/by-key/k");
    assert_eq!(asked[0].header("accept-encoding").as_deref(), Some("identity"));
    until_async("it is counted", async || (counts(&gateway).await == (1.0, 1.0, 0.0)).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_request_absent_in_two_lookups_runs_on_the_next_retry() {
    let upstream = Upstream::start().await;
    upstream.behave("status=404");
    let setup = setup(&upstream, "");
    let gateway = setup.start();
    assert_problem(&gateway.call(&lost("k")).await, 502, "outcome-unknown");
    let ran = until_known(&gateway, "k").await;
    assert_eq!((ran.status, is_replay(&ran)), (201, false));
    assert_eq!(upstream.executions("k"), 2, "the first, which left no trace, and one more");
    assert_eq!(questions(&upstream).len(), 2);
    assert!(is_replay(&gateway.call(&pay("k")).await));
    until_async("it is counted", async || (counts(&gateway).await == (2.0, 1.0, 0.0)).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_request_found_by_the_second_lookup_is_completed() {
    let upstream = Upstream::start().await;
    upstream.behave("status=404");
    let gateway = setup(&upstream, "").start();
    gateway.call(&lost("k")).await;
    until_async("it is asked once", async || (questions(&upstream).len() == 1).then_some(())).await;
    upstream.behave("status=200;body=paid");
    let known = until_known(&gateway, "k").await;
    assert_eq!((known.text().as_str(), is_replay(&known)), ("paid", true));
    assert_eq!(upstream.executions("k"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn inconclusive_lookups_end_as_dead_letters() {
    let upstream = Upstream::start().await;
    // An error, a reset, both possible answers cut short, and silence.
    let ways = [
        ("a", "status=500"),
        ("b", "cut=read;rst"),
        ("c", "status=404;body=gone;cut=body"),
        ("d", "status=200;body=paid;cut=body"),
        ("e", "gate"),
        ("f", "status=302;header=location: /payments"),
    ];
    let routes: String = ways
        .iter()
        .map(|(route, way)| {
            format!(
                "[[route]]\nmatch = \"POST /{route}\"\n[route.reconcile]\nrequest = \"GET /found/{{key}}\"\n\
                 settle = \"1s\"\nattempts = 2\nheaders = {{ \"x-fixture\" = \"{way}\" }}\n"
            )
        })
        .collect();
    let gateway = Setup::before(&upstream.url()).config(&format!("{QUICK}{routes}")).start();
    let post =
        |route: &str| TestRequest::post(&format!("/{route}")).key(route).fixture("cut=read").body("{}");
    for (route, _) in ways {
        assert_problem(&gateway.call(&post(route)).await, 502, "outcome-unknown");
    }
    for (route, way) in ways {
        let response = until_async("the lookups have ended", async || {
            let response = gateway.call(&post(route)).await;
            assert_problem(&response, 409, "outcome-unknown");
            response.header("retry-after").is_none().then_some(response)
        })
        .await;
        let body: Value = serde_json::from_slice(&response.body).expect("a problem is JSON");
        assert_eq!(body["retry"], "never", "{way}");
        assert_eq!(upstream.executions(route), 1, "{way}");
        let failed = gateway.metric("ibid_reconcile_failed_total", &format!("route=\"/{route}\"")).await;
        assert_eq!(failed, 2.0, "{way}");
    }
    assert_eq!(gateway.metric("ibid_reconcile_resolved_total", "").await, 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_tenants_record_is_settled_by_that_tenants_answer() {
    let upstream = Upstream::start().await;
    let rule = "headers = { \"x-tenant-id\" = \"{tenant}\", \"x-fixture\" = \"body=paid by {tenant}\" }";
    let gateway = setup(&upstream, rule).tenant("header:x-tenant-id").start();
    for tenant in ["ann", "bob"] {
        gateway.call(&lost("same").header("x-tenant-id", tenant)).await;
    }
    for tenant in ["ann", "bob"] {
        let known = until(&gateway, &pay("same").header("x-tenant-id", tenant)).await;
        assert_eq!((known.text(), is_replay(&known)), (format!("paid by {tenant}"), true));
    }
    let asked: Vec<_> =
        questions(&upstream).iter().filter_map(|request| request.header("x-tenant-id")).collect();
    assert_eq!(asked.len(), 2, "each question says for whom: {asked:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_looked_up_response_that_is_too_large_is_not_kept() {
    let upstream = Upstream::start().await;
    upstream.behave("bytes=5000");
    let config = format!("{QUICK}max_response_body = \"1KiB\"\n{}", rule(""));
    let gateway = Setup::before(&upstream.url()).config(&config).start();
    gateway.call(&lost("k")).await;
    assert_problem(&until_known(&gateway, "k").await, 410, "response-not-retained");
    assert_eq!(upstream.executions("k"), 1);
}

on_every_store!(of_two_gateways_on_one_store_one_settles_each_record and mysql);
async fn of_two_gateways_on_one_store_one_settles_each_record(on: On) {
    let upstream = Upstream::start().await;
    upstream.behave("body=paid");
    let setup = setup(&upstream, "").on(on);
    let (one, other) = (setup.start(), setup.start());
    let keys: Vec<String> = (0..12).map(|n| format!("k{n}")).collect();
    for (n, key) in keys.iter().enumerate() {
        let gateway = if n % 2 == 0 { &one } else { &other };
        assert_problem(&gateway.call(&lost(key)).await, 502, "outcome-unknown");
    }
    for key in &keys {
        for gateway in [&one, &other] {
            let known = until_known(gateway, key).await;
            assert_eq!((known.text().as_str(), is_replay(&known)), ("paid", true));
        }
        assert_eq!(upstream.executions(key), 1);
    }
    // A gateway may still look up a record that the other has settled. Its lookup is counted once it has the response.
    let (first, second) = until_async("every question is counted", async || {
        let (first, second) = (counts(&one).await, counts(&other).await);
        let all = first.1 + second.1 >= 12.0 && first.0 + second.0 == questions(&upstream).len() as f64;
        all.then_some((first, second))
    })
    .await;
    assert_eq!(first.1 + second.1, 12.0, "each settled once: {first:?}, {second:?}");
}

on_every_store!(a_gateway_killed_during_a_lookup_loses_nothing and mysql);
async fn a_gateway_killed_during_a_lookup_loses_nothing(on: On) {
    let upstream = Upstream::start().await;
    upstream.behave("gate");
    let config = QUICK.replace("500ms", "2s") + &rule("").replace("\"1s\"", "\"4s\"");
    let setup = Setup::before(&upstream.url()).config(&config).on(on);
    let mut first = setup.start();
    assert_problem(&first.call(&lost("k")).await, 502, "outcome-unknown");
    upstream.until(|tally| tally.held == 1).await;
    first.kill();
    upstream.behave("body=paid");
    upstream.gate().open();
    let known = until_known(&setup.start(), "k").await;
    assert_eq!((known.text().as_str(), is_replay(&known)), ("paid", true));
    assert_eq!(upstream.executions("k"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_late_response_settles_its_record_before_a_lookup() {
    let upstream = Upstream::start().await;
    upstream.behave("status=404");
    let config = QUICK.replace("linger = \"0s\"", "linger = \"30s\"") + &rule("");
    let gateway = Setup::before(&upstream.url()).config(&config).start();
    let slow = TestRequest::post("/payments").key("k").fixture("status=201;body=late;gate").body("{}");
    assert_problem(&gateway.call(&slow).await, 504, "outcome-unknown");
    upstream.gate().open();
    let known = until_known(&gateway, "k").await;
    assert_eq!((known.status, known.text().as_str(), is_replay(&known)), (201, "late", true));
    assert_eq!((upstream.executions("k"), questions(&upstream).len()), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_record_is_looked_up_by_the_rule_it_was_begun_with() {
    let upstream = Upstream::start().await;
    upstream.behave("body=paid");
    let patient = QUICK.replace("reconcile_every = \"100ms\"", "reconcile_every = \"1h\"");
    let old = "[[route]]\nmatch = \"POST /shops/{shop}/payments\"\n[route.reconcile]\nsettle = \"1s\"\n\
               request = \"GET /old/{shop}?key={key}\"\n";
    let setup = Setup::before(&upstream.url());
    let mut first = setup.clone().config(&format!("{patient}{old}")).start();
    let post =
        |fixture: &str| TestRequest::post("/shops/a%20b/payments").key("k/1").fixture(fixture).body("{}");
    assert_problem(&first.call(&post("cut=read")).await, 502, "outcome-unknown");
    first.kill();
    // The new configuration has neither this route nor its rule.
    let second = setup.config(QUICK).start();
    let known = until(&second, &post("status=201")).await;
    assert_eq!((known.text().as_str(), is_replay(&known)), ("paid", true));
    assert_eq!(questions(&upstream)[0].target, "/old/a%20b?key=k%2F1");
    second.wait_for_log("no reconcile rule for every other guarded request").await;
}

on_every_store!(an_operator_sweeps_and_reconciles_without_a_gateway and mysql);
async fn an_operator_sweeps_and_reconciles_without_a_gateway(on: On) {
    let upstream = Upstream::start().await;
    upstream.behave("body=paid");
    let config = QUICK.replace("[defaults]", "[defaults]\nlease = \"1s\"") + &rule("");
    let setup = Setup::before(&upstream.url()).config(&config).on(on);
    let mut gateway = setup.start();
    let gated = TestRequest::post("/payments").key("k").fixture("gate").body("{}");
    let mut client = gateway.client().await;
    client.send(&gated).await;
    upstream.until(|tally| tally.held == 1).await;
    gateway.kill();
    let (store, url) = (setup.store(), upstream.url());
    let count = |words: &[&str], field: &str| {
        let output = setup.ibid(words);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let summary: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        summary[field].as_u64().expect("a number")
    };
    let sweep = ["sweep", "--json", "--store", &store];
    until_async("its lease has lapsed", async || (count(&sweep, "swept") == 1).then_some(())).await;
    assert_eq!(count(&sweep, "swept"), 0);
    let reconcile = ["reconcile", "--json", "--store", &store, "--upstream", &url];
    until_async("its question is due", async || (count(&reconcile, "settled") == 1).then_some(())).await;
    assert_eq!(count(&reconcile, "asked"), 0);
    let again = setup.start().call(&pay("k")).await;
    assert_eq!((again.text().as_str(), is_replay(&again)), ("paid", true));
    assert_eq!(upstream.executions("k"), 1);

    let output = setup.ibid(&["reconcile", "--store", &store, "--config", "/dev/null"]);
    assert_eq!(output.status.code(), Some(2), "it needs an upstream to ask");
    let output = setup.ibid(&["sweep", "--store", &store, "--every", "0s"]);
    assert_eq!(output.status.code(), Some(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_chore_with_an_interval_runs_until_sigterm() {
    let upstream = Upstream::start().await;
    let setup = setup(&upstream, "");
    setup.start().kill();
    let (store, url) = (setup.store(), upstream.url());
    for (words, line) in [
        (vec!["sweep"], "{\"swept\":0}"),
        (vec!["reconcile", "--upstream", &url], "{\"asked\":0,\"dead_letters\":0,\"settled\":0}"),
    ] {
        let more = ["--every", "20ms", "--json", "--store", &store];
        let mut child = setup.spawn(&[&words[..], &more].concat());
        let lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        let printed: Vec<String> = lines.take(3).map(|line| line.expect("text")).collect();
        assert_eq!(printed, [line; 3]);
        let signal = Command::new("kill").args(["-s", "TERM", &child.id().to_string()]).status();
        assert!(signal.expect("`kill` can be run").success());
        assert_eq!(child.wait().expect("it ends").code(), Some(0));
    }
}

/// A request that the upstream executes, and whose response is lost.
fn lost(key: &str) -> TestRequest {
    TestRequest::post("/payments").key(key).fixture("cut=read").body("{}")
}

/// A retry of [`lost`], with a working upstream.
fn pay(key: &str) -> TestRequest {
    TestRequest::post("/payments").key(key).fixture("status=201").body("{}")
}

/// Sets up a gateway that looks up soon, with these lines in its rule.
fn setup(upstream: &Upstream, lines: &str) -> Setup {
    Setup::before(&upstream.url()).config(&format!("{QUICK}{}", rule(lines)))
}

fn rule(lines: &str) -> String {
    format!(
        "[[route]]\nmatch = \"POST /payments\"\n[route.reconcile]\nrequest = \"GET /payments/by-key/{{key}}\"\n\
         settle = \"1s\"\n{lines}\n"
    )
}

async fn until_known(gateway: &Gateway, key: &str) -> TestResponse {
    until(gateway, &pay(key)).await
}

/// Retries until the outcome is known.
async fn until(gateway: &Gateway, request: &TestRequest) -> TestResponse {
    until_async("the outcome is known", async || {
        let answer = gateway.call(request).await;
        (answer.status != 409).then_some(answer)
    })
    .await
}

/// Returns the lookups that the upstream got, oldest first.
fn questions(upstream: &Upstream) -> Vec<SeenRequest> {
    upstream.requests().into_iter().filter(|request| request.method == "GET").collect()
}

/// Returns the number of lookups, of outcomes that they settled, and of inconclusive lookups.
async fn counts(gateway: &Gateway) -> (f64, f64, f64) {
    let count = async |what: &str| {
        gateway.metric(&format!("ibid_reconcile_{what}_total"), "route=\"/payments\"").await
    };
    (count("scheduled").await, count("resolved").await, count("failed").await)
}

/// Times as short as the rules allow: `settle` is twice the time-out.
const QUICK: &str = "[upkeep]\nreconcile_every = \"100ms\"\nsweep_every = \"100ms\"\n\
                     [defaults]\nupstream_timeout = \"500ms\"\nlinger = \"0s\"\n";
