//! Metrics equal what happened: a known mix of requests, then every line of `/metrics`.

use std::collections::BTreeMap;

use ibid_testkit::client::TestRequest;
use ibid_testkit::upstream::Upstream;

use crate::gateway_store::WriteLock;
use crate::harness::{Gateway, On, Setup, assert_problem, is_replay, on_every_store, problem, until_async};

const CONFIG: &str = r#"
[upkeep]
sweep_every = "100ms"
reap_every = "100ms"
[[route]]
match = "POST /payments/{id}"
[[route]]
match = "POST /short"
lease = "1s"
max_run = "1s"
[[route]]
match = "POST /stripe"
profile = "stripe"
"#;

/// All samples of a page: values by name and labels.
type Samples = BTreeMap<String, f64>;

async fn samples(gateway: &Gateway) -> Samples {
    let page = gateway.page("/metrics").await.text();
    let lines = page.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').expect("a sample has a value");
            (name.to_owned(), value.parse().expect("a number"))
        })
        .collect()
}

/// Returns the samples of one metric that are not zero, as `labels value`.
fn of(samples: &Samples, name: &str) -> Vec<String> {
    let of = samples.iter().filter(|(sample, value)| {
        sample.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('{'))
            && **value != 0.0
    });
    of.map(|(sample, value)| format!("{} {value}", &sample[name.len()..])).collect()
}

fn pay(key: &str) -> TestRequest {
    TestRequest::post(&format!("/payments/{key}")).key(key).body("five")
}

async fn metrics_equal_what_happened(on: On) {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url()).on(on).config(CONFIG);
    let gateway = setup.start();
    let fresh = samples(&gateway).await;
    assert_eq!(fresh.get("ibid_zombie_keys_total"), Some(&0.0), "zero is shown as zero");
    assert_eq!(fresh.get("ibid_breaker_open"), Some(&0.0));

    create_replay_and_misuse(&gateway).await;
    duplicate_a_held_request(&gateway, &upstream).await;
    release_lose_and_change_routes(&gateway).await;
    outlive_a_lease(&gateway, &upstream).await;

    // A round of the gauges counts states and dead letters one after the other, so a record that is settled in between is in one of
    // the counts until the next round. No lookup settles the unknown record.
    let quiet = until_async("all records are counted", async || {
        let now = samples(&gateway).await;
        let are_counted = of(&now, "ibid_records") == ["{state=\"completed\"} 10", "{state=\"unknown\"} 1"]
            && of(&now, "ibid_dead_letters") == ["{kind=\"records\"} 1"];
        are_counted.then_some(now)
    })
    .await;
    assert_reserve_counts(&quiet);
    assert_eq!(of(&quiet, "ibid_zombie_keys_total"), [" 1"], "the late answer is no second lapse");
    assert_eq!(gateway.log().matches("lease lapsed").count(), 1, "one line");
    assert_run_counts(&quiet);
    assert_eq!(upstream.deliveries_begun(), 12, "one run, one delivery");
    for chore in ["sweeper", "reaper"] {
        let ran_at = quiet[&format!("ibid_chore_last_run_seconds{{chore=\"{chore}\"}}")];
        assert!(ran_at > 1.7e9, "{chore} ran at {ran_at}");
    }
    assert_no_secret_is_a_label(&quiet);
}
on_every_store!(metrics_equal_what_happened and mysql and redis);

async fn create_replay_and_misuse(gateway: &Gateway) {
    // Five records are created; three requests are replayed from memory.
    for n in 0..5 {
        assert_eq!(gateway.call(&pay(&format!("a{n}")).fixture("status=201")).await.status, 201);
    }
    for n in 0..3 {
        assert!(is_replay(&gateway.call(&pay(&format!("a{n}"))).await));
    }
    // Two keys are misused. A request without a key or with a bad one begins nothing.
    for n in 0..2 {
        assert_problem(&gateway.call(&pay(&format!("a{n}")).body("six")).await, 422, "key-reused");
    }
    assert_problem(&gateway.call(&TestRequest::post("/payments/x").body("five")).await, 400, "key-missing");
}

/// Duplicates a request that the upstream holds: one duplicate does not wait, another one does.
async fn duplicate_a_held_request(gateway: &Gateway, upstream: &Upstream) {
    let gated = pay("held").fixture("gate;status=201");
    let mut first = gateway.client().await;
    first.send(&gated).await;
    upstream.until(|tally| tally.held == 1).await;
    let hurried = gateway.call(&gated.clone().header("Prefer", "wait=0")).await;
    assert_problem(&hurried, 409, "request-in-progress");
    let mut patient = gateway.client().await;
    patient.send(&gated).await;
    until_async("the duplicate has begun to wait", async || {
        (samples(gateway).await["ibid_begin_seconds_count"] >= 8.0).then_some(())
    })
    .await;
    upstream.gate().release(1);
    assert_eq!(first.read().await.expect("an answer").status, 201);
    assert!(is_replay(&patient.read().await.expect("an answer")));
}

async fn release_lose_and_change_routes(gateway: &Gateway) {
    // A response that releases the key, and the retry that runs again.
    assert_eq!(gateway.call(&pay("free").fixture("status=429")).await.status, 429);
    assert_eq!(gateway.call(&pay("free").fixture("status=201")).await.status, 201);
    // A response that broke off: the outcome is unknown, also for the retry.
    assert_problem(&gateway.call(&pay("cut").fixture("cut=read")).await, 502, "outcome-unknown");
    assert_problem(&gateway.call(&pay("cut")).await, 409, "outcome-unknown");
    // Another profile, and a path without a rule.
    let stripe = TestRequest::post("/stripe").key("s").body("five");
    assert_eq!(gateway.call(&stripe).await.status, 200);
    assert_eq!(gateway.call(&TestRequest::post("/else/secret-path").key("d").body("five")).await.status, 200);
}

/// Lets a lease lapse under its owner, whose late response still counts.
async fn outlive_a_lease(gateway: &Gateway, upstream: &Upstream) {
    let short = TestRequest::post("/short").key("late").body("five").fixture("gate;status=201");
    let mut late = gateway.client().await;
    late.send(&short).await;
    upstream.until(|tally| tally.held == 1).await;
    until_async("the lease lapses", async || {
        (samples(gateway).await["ibid_zombie_keys_total"] == 1.0).then_some(())
    })
    .await;
    upstream.gate().release(1);
    assert_eq!(late.read().await.expect("an answer").status, 201);
    gateway.wait_for_log("lease lapsed").await;
}

/// Compares the counts of reservations by their result, and those that must be zero.
fn assert_reserve_counts(quiet: &Samples) {
    let (payments, stripe) =
        ("{route=\"/payments/{id}\",profile=\"ietf\"}", "{route=\"/stripe\",profile=\"stripe\"}");
    let (short, other) = ("{route=\"/short\",profile=\"ietf\"}", "{route=\"*\",profile=\"ietf\"}");
    let created = [(other, 1), (payments, 8), (short, 1), (stripe, 1)]
        .map(|(labels, count)| format!("{labels} {count}"));
    assert_eq!(of(quiet, "ibid_reserve_created_total"), created);
    for (name, count) in [
        ("ibid_reserve_replay_total", 4),
        ("ibid_reserve_in_progress_total", 1),
        ("ibid_reserve_key_misuse_total", 2),
        ("ibid_reserve_failed_retry_total", 1),
        ("ibid_reserve_unknown_total", 1),
    ] {
        assert_eq!(of(quiet, name), [format!("{payments} {count}")], "{name}");
    }
    let none: [&str; 0] = [];
    for name in [
        "ibid_reserve_gone_total",
        "ibid_reserve_unavailable_total",
        "ibid_store_errors_total",
        "ibid_answers_not_stored_total",
        "ibid_late_answers_total",
        "ibid_breaker_open",
    ] {
        assert_eq!(of(quiet, name), none, "{name}");
    }
}

/// Compares the counts of begins, finishes, waits and runs.
fn assert_run_counts(quiet: &Samples) {
    // 11 first runs, the released key's second one, two duplicates of `held`, and the retry of `cut`.
    assert_eq!(of(quiet, "ibid_begin_seconds_count"), [" 15"]);
    assert_eq!(of(quiet, "ibid_finish_seconds_count"), [" 12"]);
    assert_eq!(of(quiet, "ibid_wait_seconds_count"), [" 1"]);
    let ran = of(quiet, "ibid_run_seconds_count");
    let runs = [
        "{route=\"*\",outcome=\"answered\"} 1",
        "{route=\"/payments/{id}\",outcome=\"answered\"} 8",
        "{route=\"/payments/{id}\",outcome=\"broken\"} 1",
        "{route=\"/short\",outcome=\"answered\"} 1",
        "{route=\"/stripe\",outcome=\"answered\"} 1",
    ];
    assert_eq!(ran, runs);
}

fn assert_no_secret_is_a_label(quiet: &Samples) {
    for sample in quiet.keys() {
        for secret in ["secret-path", "a0", "held", "free", "cut"] {
            assert!(!sample.contains(secret), "{sample}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_lapse_first_seen_by_a_request_is_counted_once() {
    let upstream = Upstream::start().await;
    // The sweeper runs once before anything lapses, and not again during this test.
    let config = CONFIG.replace("sweep_every = \"100ms\"", "sweep_every = \"1h\"");
    let setup = Setup::before(&upstream.url()).config(&config);
    let gateway = setup.start();
    until_async("the sweeper has had its turn", async || {
        let ran = samples(&gateway).await;
        ran.contains_key("ibid_chore_last_run_seconds{chore=\"sweeper\"}").then_some(())
    })
    .await;
    let short = TestRequest::post("/short").key("late").body("five").fixture("gate;status=201");
    let mut late = gateway.client().await;
    late.send(&short).await;
    upstream.until(|tally| tally.held == 1).await;
    let hurried = short.clone().header("Prefer", "wait=0");
    until_async("a request notices", async || {
        let response = gateway.call(&hurried).await;
        (problem(&response) == "outcome-unknown").then_some(())
    })
    .await;
    for _ in 0..2 {
        assert_problem(&gateway.call(&hurried).await, 409, "outcome-unknown");
    }
    gateway.wait_for_log("lease lapsed").await;
    upstream.gate().release(1);
    assert_eq!(late.read().await.expect("an answer").status, 201);
    assert_eq!(of(&samples(&gateway).await, "ibid_zombie_keys_total"), [" 1"]);
    assert_eq!(gateway.log().matches("lease lapsed").count(), 1);
}

#[tokio::test]
async fn store_failures_and_their_refusals_are_counted() {
    let upstream = Upstream::start().await;
    // Chores also call the store and would be counted, so they do not run during this test.
    let config = "[store]\nbegin_timeout = \"300ms\"\n[upkeep]\nsweep_every = \"1h\"\nreap_every = \"1h\"\n\
                  reconcile_every = \"1h\"\n";
    let setup = Setup::before(&upstream.url()).config(config).variable("IBID_LOG", "ibid=debug");
    let gateway = setup.start();
    until_async("the chores have had their first turn", async || {
        (of(&samples(&gateway).await, "ibid_chore_last_run_seconds").len() == 5).then_some(())
    })
    .await;
    let lock = WriteLock::on(&setup).await;
    for n in 0..8 {
        let refused = gateway.call(&pay(&format!("locked-{n}"))).await;
        assert_problem(&refused, 503, "store-unavailable");
        let after: u64 = refused.header("retry-after").expect("a time").parse().expect("seconds");
        assert!((1..=2).contains(&after), "the first pause is a second, the next two: {after}");
    }
    let during = samples(&gateway).await;
    assert_eq!(of(&during, "ibid_reserve_unavailable_total"), ["{route=\"*\",profile=\"ietf\"} 8"]);
    assert_eq!(of(&during, "ibid_breaker_open"), [" 1"]);
    drop(lock);
    until_async("the gateway takes requests again", async || {
        (gateway.call(&pay("after")).await.status == 200).then_some(())
    })
    .await;
    until_async("every failure that the log knows is counted", async || {
        let now = samples(&gateway).await;
        let logged = gateway.log().matches("the store failed").count() as f64;
        (now["ibid_store_errors_total"] == logged && of(&now, "ibid_breaker_open").is_empty()).then_some(())
    })
    .await;
    assert_eq!(upstream.total(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_breaker_refuses_at_once_while_the_server_is_stopped() {
    let upstream = Upstream::start().await;
    let mut server = ibid_testkit::postgres::Postgres::start();
    let setup = Setup::before(&upstream.url()).store_at(&server.url());
    let gateway = setup.config("[store]\nbegin_timeout = \"300ms\"\n").start();
    assert_eq!(gateway.retry_until_settled(&pay("before")).await.status, 200);
    server.stop_immediate();
    until_async("the breaker opens", async || {
        assert_problem(&gateway.call(&pay("during")).await, 503, "store-unavailable");
        (samples(&gateway).await["ibid_breaker_open"] == 1.0).then_some(())
    })
    .await;
    let asked = samples(&gateway).await["ibid_begin_seconds_count"];
    for n in 0..50 {
        let refused = gateway.call(&pay(&format!("during-{n}"))).await;
        let after: u64 = refused.header("retry-after").expect("a time").parse().expect("seconds");
        assert!(refused.status == 503 && (1..=8).contains(&after), "{refused:?}");
    }
    // Only probes asked the store during this loop: one at a time, each given up after `begin_timeout`.
    let probes = samples(&gateway).await["ibid_begin_seconds_count"] - asked;
    assert!(probes < 10.0, "{probes} of 50 asked");
    assert_eq!(upstream.total(), 1, "nothing was executed");
    server.start_again();
    until_async("the gateway takes requests again", async || {
        (gateway.call(&pay("after")).await.status == 200).then_some(())
    })
    .await;
    assert_eq!(samples(&gateway).await["ibid_breaker_open"], 0.0);
    gateway.wait_for_log("the store answers again").await;
}
