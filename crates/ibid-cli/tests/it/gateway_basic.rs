//! The gateway without faults, as a client sees it: one execution, equal responses, and a status page per key.

use futures_util::future::join_all;
use ibid_testkit::client::{TestRequest, TestResponse};
use ibid_testkit::upstream::Upstream;

use crate::h2_client::H2Client;
use crate::harness::{Gateway, On, Setup, assert_problem, is_replay, on_every_store, until_async};

async fn world() -> (Upstream, Setup, Gateway) {
    world_on(On::Sqlite).await
}

async fn world_on(on: On) -> (Upstream, Setup, Gateway) {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url()).on(on);
    let gateway = setup.start();
    (upstream, setup, gateway)
}

fn pay(key: &str) -> TestRequest {
    TestRequest::post("/payments").key(key).body("{\"amount\": 5}").header("Content-Type", "application/json")
}

/// Asserts that of forty equal responses one is the first and the others are replays.
fn assert_equal(answers: &[TestResponse], body: &str) {
    assert_eq!(answers.len(), 40);
    for answer in answers {
        assert_eq!((answer.status, answer.text().as_str()), (201, body), "{answer:?}");
        assert!(answer.header("idempotency-expires").is_some(), "{answer:?}");
    }
    assert_eq!(answers.iter().filter(|answer| !is_replay(answer)).count(), 1);
}

on_every_store!(forty_connections_with_one_key_execute_once and mysql);
async fn forty_connections_with_one_key_execute_once(on: On) {
    let (upstream, _setup, gateway) = world_on(on).await;
    let request = pay("forty").fixture("gate;status=201;body=paid");
    let mut clients = Vec::new();
    for _ in 0..40 {
        let mut client = gateway.client().await;
        client.send(&request).await;
        clients.push(client);
    }
    upstream.until(|tally| tally.held == 1).await;
    upstream.gate().open();
    let answers =
        join_all(clients.iter_mut().map(async |client| client.read().await.expect("an answer"))).await;
    assert_equal(&answers, "paid");
    assert_eq!((upstream.executions("forty"), upstream.deliveries_begun()), (1, 1));
    assert_eq!(gateway.metric("ibid_reserve_created_total", "").await, 1.0);
    assert_eq!(gateway.metric("ibid_reserve_replay_total", "").await, 39.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn impatient_duplicates_get_retry_after_and_a_status_page() {
    let (upstream, _setup, gateway) = world().await;
    let request = pay("impatient").fixture("gate;status=201;body=paid").header("Prefer", "wait=0");
    let mut first = gateway.client().await;
    first.send(&request).await;
    upstream.until(|tally| tally.held == 1).await;
    let refused = join_all((0..39).map(async |_| gateway.call(&request).await)).await;
    for answer in &refused {
        assert_problem(answer, 409, "request-in-progress");
        let seconds: u64 = answer.header("retry-after").and_then(|s| s.parse().ok()).expect("Retry-After");
        assert!((1..=60).contains(&seconds), "{answer:?}");
        let links = answer.header_lines("link").join(", ");
        assert!(links.contains("/.ibid/keys/impatient?") && links.contains("rel=\"monitor\""), "{links}");
    }
    upstream.gate().open();
    assert_eq!(first.read().await.expect("an answer").text(), "paid");
    let later = gateway.call(&request).await;
    assert!(later.status == 201 && is_replay(&later), "{later:?}");
    assert_eq!((upstream.executions("impatient"), upstream.deliveries_begun()), (1, 1));
}

#[tokio::test]
async fn forty_http2_connections_are_executed_once_and_answered_alike() {
    let (upstream, _setup, gateway) = world().await;
    let lines = [("idempotency-key", "forty"), ("x-fixture", "gate;status=201;body=paid")];
    let mut clients = Vec::new();
    let mut pending = Vec::new();
    for _ in 0..40 {
        let client = H2Client::connect(gateway.addr()).await;
        pending.push(client.post("/payments", &lines, "five").await);
        clients.push(client);
    }
    upstream.until(|tally| tally.held == 1).await;
    upstream.gate().open();
    assert_equal(&join_all(pending).await, "paid");
    assert_eq!((upstream.executions("forty"), upstream.deliveries_begun()), (1, 1));
}

#[tokio::test]
async fn forty_http2_streams_with_one_key_execute_once() {
    let (upstream, _setup, gateway) = world().await;
    let client = H2Client::connect(gateway.addr()).await;
    let lines = [("idempotency-key", "streams"), ("x-fixture", "gate;status=201;body=paid")];
    let mut pending = Vec::new();
    for _ in 0..40 {
        pending.push(client.post("/payments", &lines, "five").await);
    }
    upstream.until(|tally| tally.held == 1).await;
    let now = [lines[0], lines[1], ("prefer", "wait=0")];
    let refused = client.post("/payments", &now, "five").await.await;
    assert_problem(&refused, 409, "request-in-progress");
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    assert!(refused.header_lines("link").join(",").contains("rel=\"monitor\""), "{refused:?}");
    upstream.gate().open();
    assert_equal(&join_all(pending).await, "paid");
    assert_eq!((upstream.executions("streams"), upstream.deliveries_begun()), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_mismatch_is_refused_even_while_the_first_runs() {
    let (upstream, _setup, gateway) = world().await;
    let mut first = gateway.client().await;
    first.send(&pay("mine").fixture("gate")).await;
    upstream.until(|tally| tally.held == 1).await;
    let other = pay("mine").body("{\"amount\": 6}");
    assert_problem(&gateway.call(&other).await, 422, "key-reused");
    upstream.gate().open();
    first.read().await.expect("an answer");
    assert_problem(&gateway.call(&other).await, 422, "key-reused");
    // Equal JSON in different bytes is the same request.
    let respelt = gateway.call(&pay("mine").body("{ \"amount\" : 5.0 }")).await;
    assert!(is_replay(&respelt), "{respelt:?}");
    assert_eq!(upstream.total(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_client_that_hangs_up_gets_its_response_on_retry() {
    let (upstream, _setup, gateway) = world().await;
    for (n, how) in ["fin", "rst"].into_iter().enumerate() {
        let request = pay(how).fixture(&format!("gate;status=201;body=paid by {how}"));
        let mut client = gateway.client().await;
        client.send(&request).await;
        upstream.until(|tally| tally.held == 1).await;
        match how {
            "fin" => client.hang_up(),
            _ => client.reset(),
        }
        upstream.gate().release(1);
        upstream.until(|tally| tally.held == 0).await;
        let retry = gateway.call(&request).await;
        assert_eq!((retry.status, retry.text()), (201, format!("paid by {how}")));
        assert!(is_replay(&retry), "{retry:?}");
        assert_eq!((upstream.executions(how), upstream.total()), (1, n + 1));
    }
}

#[tokio::test]
async fn a_client_that_leaves_mid_body_leaves_no_record() {
    let (upstream, setup, gateway) = world().await;
    let sockets = gateway.sockets();
    for (how, reset) in [("fin-early", false), ("rst-early", true)] {
        let request = pay(how);
        let bytes = request.to_bytes();
        let mut client = gateway.client().await;
        client.send_bytes(&bytes[..bytes.len() - 3]).await;
        if reset { client.reset() } else { client.hang_up() }
    }
    let chunked = pay("chunk-early").chunked();
    let bytes = chunked.to_bytes();
    let mut client = gateway.client().await;
    client.send_bytes(&bytes[..bytes.len() - 5]).await;
    client.finish_sending().await;
    // Whatever response arrives, the gateway closes the connection; after that, nothing of the request is in flight.
    while !client.read_some(4096).await.is_empty() {}
    gateway.until_sockets(sockets).await;
    assert_eq!((upstream.deliveries_begun(), upstream.total()), (0, 0));
    let listed = setup.ibid(&["keys", "list", "--json", "--store", &setup.store()]);
    assert!(!String::from_utf8_lossy(&listed.stdout).contains("-early"), "{listed:?}");
    // The key is still unused, so the whole request runs as new.
    assert!(!is_replay(&gateway.call(&pay("fin-early")).await));
    assert_eq!(upstream.executions("fin-early"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_status_page_follows_a_key_and_the_policy_is_published() {
    let (upstream, _setup, gateway) = world().await;
    let page = "/.ibid/keys/watched?method=POST&path=/payments";
    assert_eq!(gateway.call(&TestRequest::get(page)).await.status, 404);
    let mut client = gateway.client().await;
    client.send(&pay("watched").fixture("gate;status=201;body=paid")).await;
    upstream.until(|tally| tally.held == 1).await;
    let state = async || {
        let answer = gateway.call(&TestRequest::get(page)).await;
        serde_json::from_slice::<serde_json::Value>(&answer.body).expect("JSON")
    };
    assert_eq!(state().await["state"], "in_progress");
    let early =
        gateway.call(&TestRequest::get("/.ibid/keys/watched/response?method=POST&path=/payments")).await;
    assert_problem(&early, 409, "request-in-progress");
    upstream.gate().open();
    client.read().await.expect("an answer");
    let done = state().await;
    assert_eq!(
        (&done["state"], &done["outcome"], &done["status"]),
        (&"completed".into(), &"success".into(), &201.into())
    );
    let replay =
        gateway.call(&TestRequest::get("/.ibid/keys/watched/response?method=POST&path=/payments")).await;
    assert_eq!((replay.status, replay.text().as_str(), is_replay(&replay)), (201, "paid", true));
    let policy = gateway.call(&TestRequest::get("/.ibid/policy")).await;
    let policy: serde_json::Value = serde_json::from_slice(&policy.body).expect("JSON");
    assert_eq!(policy["defaults"]["key_from"], serde_json::json!(["header:idempotency-key"]));
    assert_eq!(policy["defaults"]["retention_seconds"], 86_400);
    assert_eq!(policy["durability"], "durable");
    assert_eq!(upstream.total(), 1, "ibid's own pages are not forwarded");
}

on_every_store!(keys_are_listed_and_shown_while_a_gateway_runs and mysql);
async fn keys_are_listed_and_shown_while_a_gateway_runs(on: On) {
    let (upstream, setup, gateway) = world_on(on).await;
    let mut busy = gateway.client().await;
    busy.send(&pay("running").fixture("gate")).await;
    upstream.until(|tally| tally.held == 1).await;
    gateway.call(&pay("done").fixture("status=201;body=paid")).await;
    gateway.call(&pay("odd").fixture("status=500")).await;
    let run = |words: &[&str]| {
        let store = setup.store();
        let words = [words, &["--store", store.as_str()]].concat();
        let output = setup.ibid(&words);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("output is UTF-8")
    };
    let table = run(&["keys", "list"]);
    for word in ["running", "in_progress", "done", "completed", "odd", "unknown"] {
        assert!(table.contains(word), "{word} in {table}");
    }
    let json: serde_json::Value = serde_json::from_str(&run(&["keys", "list", "--json"])).expect("JSON");
    let records = json.as_array().or_else(|| json["records"].as_array()).expect("a list of records");
    assert_eq!(records.len(), 3, "{json}");
    let done = records.iter().find(|record| record["key"] == "done").expect("the record is listed");
    let id = done["id"].as_str().expect("an id");
    let shown: serde_json::Value =
        serde_json::from_str(&run(&["keys", "show", &id[..8], "--json"])).expect("JSON");
    assert_eq!((&shown["key"], &shown["state"]), (&"done".into(), &"completed".into()), "{shown}");
    assert_eq!(shown["response_bytes"], "paid".len(), "{shown}");
    let shown = run(&["keys", "show", &id[..8]]);
    assert!(shown.contains("completed") && shown.contains("201, 4 bytes kept"), "{shown}");
    // The commands did not disturb the running gateway.
    upstream.gate().open();
    assert_eq!(busy.read().await.expect("an answer").status, 200);
    assert!(is_replay(&gateway.call(&pay("done")).await));
}

on_every_store!(a_generated_secret_is_shared_by_every_gateway and mysql);
async fn a_generated_secret_is_shared_by_every_gateway(on: On) {
    let (upstream, setup, mut first) = world_on(on).await;
    let asked = pay("kept").fixture("status=201;body=paid");
    let answer = first.call(&asked).await;
    let second = setup.start();
    for gateway in [&first, &second] {
        let retry = gateway.call(&asked).await;
        assert!(is_replay(&retry) && retry.body == answer.body, "{retry:?}");
        assert_problem(&gateway.call(&pay("kept").body("another")).await, 422, "key-reused");
    }
    first.kill();
    drop(second);
    let again = setup.start();
    let retry = again.call(&asked).await;
    assert!(is_replay(&retry) && retry.body == answer.body, "{retry:?}");
    assert_problem(&again.call(&pay("kept").body("another")).await, 422, "key-reused");
    assert_eq!(upstream.total(), 1);
}

on_every_store!(duplicates_at_two_gateways_at_once_are_delivered_once and mysql and redis);
async fn duplicates_at_two_gateways_at_once_are_delivered_once(on: On) {
    let (upstream, setup, first) = world_on(on).await;
    let second = setup.start();
    for round in 0..5 {
        let key = format!("both-{round}");
        let request = pay(&key).fixture("gate;status=201;body=paid");
        let mut clients = Vec::new();
        for n in 0..40 {
            let gateway = if n % 2 == 0 { &first } else { &second };
            clients.push(gateway.client().await);
        }
        for client in &mut clients {
            client.send(&request).await;
        }
        upstream.until(|tally| tally.held == 1).await;
        upstream.gate().release(1);
        let answers =
            join_all(clients.iter_mut().map(async |client| client.read().await.expect("an answer"))).await;
        assert_equal(&answers, "paid");
        assert_eq!(upstream.executions(&key), 1);
    }
    assert_eq!(upstream.deliveries_begun(), 5);
}

#[tokio::test]
async fn the_admin_listener_serves_health_readiness_and_metrics() {
    let (_upstream, _setup, gateway) = world().await;
    assert_eq!(gateway.page("/healthz").await.text(), "ok\n");
    assert_eq!(gateway.page("/readyz").await.text(), "ready\n");
    gateway.call(&pay("one")).await;
    gateway.call(&pay("one")).await;
    assert_eq!(gateway.metric("ibid_reserve_created_total", "").await, 1.0);
    assert_eq!(gateway.metric("ibid_reserve_replay_total", "profile=\"ietf\"").await, 1.0);
    let page = gateway.page("/metrics").await;
    assert!(!page.text().contains("payments"), "labels never name a path: {}", page.text());
    // The gauges appear with the first sweep.
    until_async("records are counted", async || {
        gateway.page("/metrics").await.text().contains("ibid_records").then_some(())
    })
    .await;
}
