//! The log as a machine reads it: every line is a JSON object, no line has a secret, and each misuse is a security
//! event.

use ibid_testkit::client::TestRequest;
use ibid_testkit::upstream::Upstream;
use serde_json::Value;

use crate::gateway_store::WriteLock;
use crate::harness::{Gateway, On, Setup, assert_problem, is_replay, on_every_store, problem, until_async};

/// Texts that must never be in a log. The secret is that of fingerprints, in hex.
const CANARIES: [&str; 7] = [
    "canary-key",
    "canary-credential",
    "canary-body",
    "canary-answer",
    "canary-password",
    "canary-token",
    "63616e6172792d7365637265742d63616e6172792d7365637265742d30303030",
];

const CONFIG: &str = "[store]\nbegin_timeout = \"300ms\"\nfinish_wait = \"300ms\"\n\
    [upkeep]\nsweep_every = \"50ms\"\nreap_every = \"50ms\"\n\
    [defaults]\nlease = \"1s\"\nupstream_timeout = \"300ms\"\nlinger = \"0s\"\nmax_request_body = \"1KiB\"\n";

fn pay(key: &str) -> TestRequest {
    TestRequest::post("/payments")
        .key(&format!("canary-key-{key}"))
        .header("Authorization", "Bearer canary-credential")
        .body("canary-body")
}

async fn no_line_holds_a_secret_and_every_misuse_is_a_security_event(on: On) {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url()).config(CONFIG).tenant("authorization");
    // PostgreSQL's own user takes any password here. A user of MySQL with one belongs to a whole server.
    let setup = if on == On::Postgres { setup.on(on) } else { setup.alone_on(on) };
    if let Some(server) = setup.mariadb() {
        server.sql("", "create user app identified by 'canary-password'; grant all on *.* to app");
    }
    let url = setup.store().replace("postgres@", "postgres:canary-password@");
    let url = url.replace("root@", "app:canary-password@");
    let setup = setup
        .store_at(&url)
        .variable("IBID_LOG", "trace")
        .variable("IBID_LOG_FORMAT", "json")
        .variable("IBID_SECRETS", CANARIES[6])
        .variable("IBID_ADMIN_TOKEN", "canary-token-0123456789");
    let mut gateway = setup.start();
    call_with_every_fault(&gateway).await;
    let mut misused = 0;
    for n in [0, 2, 3] {
        assert_problem(&gateway.call(&pay(&n.to_string()).body("canary-body six")).await, 422, "key-reused");
        misused += 1;
    }
    send_refused_requests(&gateway).await;
    fail_the_store(&gateway, &upstream, &setup).await;
    assert!(is_replay(&gateway.call(&pay("0")).await));
    drop(upstream);
    call_without_upstream(&gateway).await;
    gateway.signal("TERM");
    assert!(gateway.wait_for_exit().await.success());

    let log = gateway.log();
    assert_no_canary(&log);
    let lines: Vec<Value> = log
        .lines()
        .filter(|line| !line.starts_with("ibid: "))
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    assert_security_events(&lines, misused);
    let outage = |line: &Value| {
        line["fields"]["message"].as_str().is_some_and(|text| text.starts_with("circuit breaker opened"))
    };
    assert!(lines.iter().any(outage), "the outage is in it");
    assert!(
        lines.iter().any(|line| line["span"]["name"] == "ibid.reply"),
        "and spans, which only debug shows"
    );
}
on_every_store!(no_line_holds_a_secret_and_every_misuse_is_a_security_event and mysql);

/// Sends a request and its retry for each kind of response and fault.
async fn call_with_every_fault(gateway: &Gateway) {
    let answers =
        ["status=201;body=canary-answer", "status=503;body=canary-answer", "status=500;body=canary-answer"];
    let faults = ["cut=read", "cut=head", "cut=body;body=canary-answer", "gate"];
    for (n, fault) in answers.iter().chain(&faults).enumerate() {
        let request = pay(&n.to_string()).fixture(fault);
        until_async("the store takes the request", async || {
            (problem(&gateway.call(&request).await) != "store-unavailable").then_some(())
        })
        .await;
        gateway.call(&request).await;
    }
}

/// Sends requests that are refused before they are begun, each for a different reason, and asks for a key's status.
async fn send_refused_requests(gateway: &Gateway) {
    let bare = TestRequest::post("/payments").body("canary-body");
    assert_problem(&gateway.call(&bare).await, 400, "key-missing");
    assert_problem(
        &gateway.call(&bare.clone().header("Idempotency-Key", "\"canary-key")).await,
        400,
        "key-invalid",
    );
    assert_problem(&gateway.call(&bare.key("canary-key")).await, 401, "tenant-missing");
    let large = "canary-body".repeat(200);
    assert_problem(&gateway.call(&pay("large").body(&large)).await, 413, "body-too-large");
    let page = "/.ibid/keys/canary-key-0?method=POST&path=/payments";
    let status = TestRequest::get(page).header("Authorization", "Bearer canary-credential");
    assert_eq!(gateway.call(&status).await.status, 200);
}

/// Lets the store fail, once before a run and once after it, until the gateway takes requests again.
async fn fail_the_store(gateway: &Gateway, upstream: &Upstream, setup: &Setup) {
    let (mut held, before) = (gateway.client().await, upstream.tally().begun);
    held.send(&pay("held").fixture("gate;status=201;body=canary-answer")).await;
    upstream.until(|tally| tally.begun > before).await;
    let mut lock = None;
    match setup.is_on_file() {
        true => lock = Some(WriteLock::on(setup).await),
        false => setup.sql("alter table ibid_record rename to ibid_record_away"),
    }
    for n in 0..7 {
        assert_problem(&gateway.call(&pay(&format!("away-{n}"))).await, 503, "store-unavailable");
    }
    upstream.gate().open();
    assert!(held.read().await.is_some());
    drop(lock);
    if !setup.is_on_file() {
        setup.sql("alter table ibid_record_away rename to ibid_record");
    }
    until_async("the gateway takes requests again", async || {
        (gateway.call(&pay("back").fixture("status=201")).await.status == 201).then_some(())
    })
    .await;
}

/// Calls until no connection to the stopped upstream is left over.
async fn call_without_upstream(gateway: &Gateway) {
    let mut asked = 0;
    until_async("no connection to it is left over", async || {
        asked += 1;
        // On a connection that has just died, the gateway cannot tell what was sent.
        let answer = gateway.call(&pay(&format!("nobody-{asked}"))).await;
        assert!(matches!(answer.status, 502 | 503), "{answer:?}");
        (answer.status == 503).then_some(())
    })
    .await;
}

/// Checks that no canary is in the log: as it is, as numbers, in capitals.
fn assert_no_canary(log: &str) {
    for canary in CANARIES {
        let as_numbers = canary.bytes().map(|byte| byte.to_string()).collect::<Vec<_>>().join(", ");
        for text in [canary, &as_numbers, &canary.to_uppercase()] {
            let leak = log.lines().find(|line| line.contains(text));
            assert_eq!(leak, None, "{canary}");
        }
    }
}

/// Checks that each misuse is one security event, with its record and route.
fn assert_security_events(lines: &[Value], misused: usize) {
    let events: Vec<&Value> = lines.iter().filter(|line| line["target"] == "ibid::security").collect();
    assert_eq!(events.len(), misused, "{events:?}");
    for event in events {
        let record = event["fields"]["record"].as_str().expect("the record's short name");
        assert!(record.len() == 8 && event["fields"]["route"] == "*" && event["level"] == "WARN", "{event}");
    }
}
