//! The admin API of a running gateway, over real sockets.

use futures_util::future::join_all;
use ibid_testkit::client::{TestRequest, TestResponse};
use ibid_testkit::upstream::Upstream;
use serde_json::{Value, json};

use crate::harness::{Gateway, On, Setup, assert_problem, is_replay, on_every_store, problem, until_async};
use crate::resolve::{FAILS, HASTY, dead_effect};

const TOKEN: &str = "an-admin-token-of-the-tests";

fn pay(key: &str, fixture: &str) -> TestRequest {
    TestRequest::post("/payments").key(key).body("five").fixture(fixture)
}

fn with_token(setup: Setup) -> Setup {
    setup.variable("IBID_ADMIN_TOKEN", TOKEN)
}

async fn get(gateway: &Gateway, path: &str) -> TestResponse {
    gateway.admin(&TestRequest::get(path).header("authorization", format!("Bearer {TOKEN}"))).await
}

async fn post(gateway: &Gateway, path: &str, body: &Value) -> TestResponse {
    let request = TestRequest::post(path)
        .header("authorization", format!("Bearer {TOKEN}"))
        .header("content-type", "application/json")
        .body(body.to_string());
    gateway.admin(&request).await
}

fn json_of(response: &TestResponse) -> Value {
    assert_eq!(response.status, 200, "{response:?}");
    serde_json::from_slice(&response.body).expect("JSON")
}

/// Returns the only record that matches the query.
async fn only_record(gateway: &Gateway, query: &str) -> Value {
    let page = json_of(&get(gateway, &format!("/v1/records?{query}")).await);
    let records = page["records"].as_array().expect("records");
    assert_eq!(records.len(), 1, "{page}");
    records[0].clone()
}

fn id(record: &Value) -> String {
    record["id"].as_str().expect("an id").to_owned()
}

/// Makes a record whose response was lost, and returns it.
async fn unknown(gateway: &Gateway, key: &str) -> Value {
    assert_problem(&gateway.call(&pay(key, "cut=read")).await, 502, "outcome-unknown");
    only_record(gateway, &format!("state=unknown&key={key}")).await
}

fn acts(life: &Value) -> Vec<&str> {
    let lines = life["history"].as_array().expect("a history").iter();
    lines.filter(|line| line["what"] == "operator").filter_map(|line| line["detail"].as_str()).collect()
}

#[tokio::test]
async fn without_a_token_the_admin_api_is_off() {
    let upstream = Upstream::start().await;
    let gateway = Setup::before(&upstream.url()).start();
    gateway.wait_for_log("no admin API: `IBID_ADMIN_TOKEN` is not set").await;
    for path in ["/v1/records", "/v1/openapi.json", "/v1/nothing"] {
        assert_problem(&get(&gateway, path).await, 403, "no-admin-api");
    }
    assert_eq!(gateway.page("/healthz").await.status, 200, "probes need none");
    let refused = Setup::before(&upstream.url()).variable("IBID_ADMIN_TOKEN", "short").expect_refusal();
    refused.assert_error(2, "`IBID_ADMIN_TOKEN` can't be used", "at least 16 characters", "openssl rand");
}

#[tokio::test]
async fn only_the_token_opens_the_api_and_only_on_the_admin_listener() {
    let upstream = Upstream::start().await;
    let gateway = with_token(Setup::before(&upstream.url())).start();
    let record = id(&unknown(&gateway, "k").await);
    let wrong = [
        None,
        Some("Bearer".to_owned()),
        Some(format!("Bearer {TOKEN}x")),
        Some(format!("Bearer {}", &TOKEN[1..])),
        Some(format!("Basic {TOKEN}")),
        Some(TOKEN.to_owned()),
    ];
    for credential in wrong {
        let signed = |request: TestRequest| match &credential {
            Some(line) => request.header("authorization", line),
            None => request,
        };
        for path in ["/v1/records", "/v1/openapi.json", "/v1/upkeep", "/v1/nothing"] {
            let refused = gateway.admin(&signed(TestRequest::get(path))).await;
            assert_problem(&refused, 401, "unauthorized");
            assert_eq!(refused.header("www-authenticate").as_deref(), Some("Bearer"));
        }
        let act = TestRequest::post(&format!("/v1/records/{record}/forget")).body("{}");
        assert_problem(&gateway.admin(&signed(act)).await, 401, "unauthorized");
    }
    assert!(!gateway.log().contains(TOKEN), "the log does not hold it");
    // On the public listener, such a path belongs to the API behind the gateway.
    let delivered = upstream.requests().len();
    let request = TestRequest::get("/v1/records").header("authorization", format!("Bearer {TOKEN}"));
    assert!(!gateway.call(&request).await.text().contains(&record), "no record on the public listener");
    assert_eq!(upstream.requests().len(), delivered + 1, "it went upstream");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_retry_gets_the_response_of_the_operator() {
    let upstream = Upstream::start().await;
    let setup = with_token(Setup::before(&upstream.url()));
    let gateway = setup.start();
    let record = unknown(&gateway, "k").await;
    assert_eq!((&record["state"], &record["dead_letter"]), (&json!("unknown"), &json!(false)));
    let path = format!("/v1/records/{}/resolve", &id(&record)[..8]);
    let answer = json!({ "status": 201, "content_type": "text/plain", "body": "paid by hand" });
    let resolve = json!({
        "who": "ann", "reason": "the bank has it", "version": record["version"],
        "found": { "completed": answer },
    });
    let settled = json_of(&post(&gateway, &path, &resolve).await);
    assert_eq!((&settled["state"], &settled["status"]), (&json!("completed"), &json!(201)));
    let retry = gateway.call(&pay("k", "status=500")).await;
    assert_eq!((retry.status, retry.text().as_str()), (201, "paid by hand"), "{retry:?}");
    assert!(is_replay(&retry));
    assert_eq!(retry.header("content-type").as_deref(), Some("text/plain"));
    assert_eq!(upstream.executions("k"), 1, "it ran once, before");

    let life = json_of(&get(&gateway, &format!("/v1/records/{}", id(&record))).await);
    assert_eq!(acts(&life), ["resolved as executed (201), unknown to completed, by ann: the bank has it"]);
    let late =
        post(&gateway, &path, &json!({ "who": "bob", "reason": "me too", "found": "not_executed" })).await;
    assert_problem(&late, 409, "not-now");
    let body: Value = serde_json::from_slice(&late.body).expect("JSON");
    assert_eq!(body["record"]["state"], "completed");
    assert!(
        body["detail"].as_str().is_some_and(|detail| detail.contains("by ann: the bank has it")),
        "{body}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_request_found_not_executed_runs_once_on_retry() {
    let upstream = Upstream::start().await;
    let setup = with_token(Setup::before(&upstream.url()));
    let gateway = setup.start();
    let record = unknown(&gateway, "k").await;
    let path = format!("/v1/records/{}/resolve", id(&record));
    let resolve = json!({ "who": "ann", "reason": "they never saw it", "found": "not_executed" });
    assert_eq!(json_of(&post(&gateway, &path, &resolve).await)["state"], "retryable");
    let before = upstream.executions("k");
    let first = gateway.call(&pay("k", "status=201;body=done")).await;
    let second = gateway.call(&pay("k", "status=201;body=done")).await;
    assert_eq!((first.status, is_replay(&first), is_replay(&second)), (201, false, true));
    assert_eq!(upstream.executions("k"), before + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn acknowledging_a_dead_letter_changes_nothing_else() {
    let upstream = Upstream::start().await;
    let setup = with_token(Setup::before(&upstream.url()).config(FAILS));
    let gateway = setup.start();
    let mut holder = gateway.client().await;
    holder.send(&pay("k", "gate;status=201")).await;
    upstream.until(|tally| tally.held == 1).await;
    let letters = async || {
        let page = json_of(&get(&gateway, "/v1/records?dead_letter=true").await);
        page["records"].as_array().expect("records").clone()
    };
    let letter = until_async("its lease lapses", async || letters().await.pop()).await;
    assert_eq!(letter["state"], "completed");
    let path = format!("/v1/records/{}/resolve", id(&letter));
    let note = json!({
        "who": "ann", "reason": "the bank has none of it", "version": letter["version"], "found": "seen",
    });
    let settled = json_of(&post(&gateway, &path, &note).await);
    assert_eq!(settled["dead_letter"], false);
    assert_eq!((&settled["state"], &settled["status"]), (&letter["state"], &letter["status"]));
    let expires_at = |record: &Value| record["expires_at"].as_str().expect("an instant").to_owned();
    assert!(expires_at(&settled) >= expires_at(&letter), "no sooner: {settled}");
    assert_eq!(letters().await, Vec::<Value>::new());
    let life = json_of(&get(&gateway, &format!("/v1/records/{}", id(&letter))).await);
    let line = "seen to, a dead letter no longer, completed as before, by ann: the bank has none of it";
    assert_eq!(acts(&life), [line]);
    let twice = json!({ "who": "bob", "reason": "me too", "found": "seen" });
    assert_problem(&post(&gateway, &path, &twice).await, 409, "not-now");
    let unknown = unknown_elsewhere(&gateway).await;
    let path = format!("/v1/records/{}/resolve", id(&unknown));
    assert_problem(&post(&gateway, &path, &twice).await, 409, "not-now");
    upstream.gate().release(1);
}

/// Makes an unknown record on a route without a `[[route]]` section.
async fn unknown_elsewhere(gateway: &Gateway) -> Value {
    let lost = TestRequest::post("/refunds").key("u").body("five").fixture("cut=read");
    assert_problem(&gateway.call(&lost).await, 502, "outcome-unknown");
    only_record(gateway, "state=unknown&key=u").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_forgotten_key_runs_as_new() {
    let upstream = Upstream::start().await;
    let setup = with_token(Setup::before(&upstream.url()));
    let gateway = setup.start();
    gateway.call(&pay("k", "status=201;body=first")).await;
    assert!(is_replay(&gateway.call(&pay("k", "status=201;body=second")).await));
    let record = only_record(&gateway, "key=k&state=completed").await;
    let path = format!("/v1/records/{}/forget", id(&record));
    let forgotten = json_of(&post(&gateway, &path, &json!({ "who": "ann", "reason": "a test" })).await);
    assert_eq!(forgotten["final_everywhere_in_seconds"], 60);
    let again = gateway.call(&pay("k", "status=201;body=second")).await;
    assert_eq!((again.text().as_str(), is_replay(&again)), ("second", false));
    assert_eq!(upstream.executions("k"), 2);
    let life = json_of(&get(&gateway, &format!("/v1/records/{}", id(&record))).await);
    assert_eq!(acts(&life), ["forgotten, completed (201) to absent, by ann: a test"]);
    let unknown = id(&unknown(&gateway, "lost").await);
    let refused =
        post(&gateway, &format!("/v1/records/{unknown}/forget"), &json!({ "who": "a", "reason": "b" })).await;
    assert_problem(&refused, 409, "not-now");
}

async fn only_one_of_two_operators_settles_a_record(on: On) {
    let upstream = Upstream::start().await;
    let setup = with_token(Setup::before(&upstream.url()).on(on));
    let gateway = setup.start();
    for round in 0..5 {
        let record = id(&unknown(&gateway, &format!("k{round}")).await);
        let path = format!("/v1/records/{record}/resolve");
        let outcomes = [json!({ "completed": { "status": 402 } }), json!("not_executed")];
        let act = async |index: usize| {
            let who = ["ann", "bob"][index];
            post(&gateway, &path, &json!({ "who": who, "reason": "knows", "found": outcomes[index] })).await
        };
        let both = join_all([act(0), act(1)]).await;
        let won = both.iter().position(|response| response.status == 200).expect("one wins");
        let lost = &both[1 - won];
        assert_problem(lost, 409, "not-now");
        let winner = format!("by {}: knows", ["ann", "bob"][won]);
        assert!(lost.text().contains(&winner), "{lost:?}");
        let life = json_of(&get(&gateway, &format!("/v1/records/{record}")).await);
        assert_eq!(acts(&life).len(), 1, "{life}");
    }
}
on_every_store!(only_one_of_two_operators_settles_a_record and mysql);

async fn a_bulk_act_settles_only_previewed_records(on: On) {
    let upstream = Upstream::start().await;
    let setup = with_token(Setup::before(&upstream.url()).on(on));
    let gateway = setup.start();
    for n in 0..4 {
        unknown(&gateway, &format!("k{n}")).await;
    }
    gateway.call(&pay("done", "status=201")).await;
    let preview = json!({ "filter": { "route": "/payments", "older_than": "0s" }, "deed": "not_executed" });
    let shown = json_of(&post(&gateway, "/v1/records/preview", &preview).await);
    assert_eq!((&shown["count"], &shown["left_alone"]), (&json!(4), &json!(1)), "{shown}");
    // One of the shown records is settled meanwhile, and a new one is added.
    let first = shown["records"][0]["id"].as_str().expect("an id");
    let one = json!({ "who": "bob", "reason": "sooner", "found": { "completed": { "status": 200 } } });
    json_of(&post(&gateway, &format!("/v1/records/{first}/resolve"), &one).await);
    unknown(&gateway, "newcomer").await;
    let act = json!({
        "who": "ann", "reason": "outage of Monday", "deed": "not_executed", "records": shown["records"],
    });
    let done = json_of(&post(&gateway, "/v1/records/bulk", &act).await);
    assert_eq!(done["done"], 3, "{done}");
    assert_eq!(done["refused"].as_array().map(Vec::len), Some(1));
    assert!(done["refused"][0]["why"].as_str().is_some_and(|why| why.contains("by bob: sooner")), "{done}");
    only_record(&gateway, "state=unknown").await;
    let retryable = json_of(&get(&gateway, "/v1/records?state=retryable").await);
    assert_eq!(retryable["records"].as_array().map(Vec::len), Some(3));
}
on_every_store!(a_bulk_act_settles_only_previewed_records and mysql);

#[tokio::test]
async fn lists_take_filters_and_pages_and_refuse_unknown_parameters() {
    let upstream = Upstream::start().await;
    let gateway = with_token(Setup::before(&upstream.url())).start();
    for n in 0..5 {
        gateway.call(&pay(&format!("k{n}"), "status=201")).await;
    }
    let mut ids = list_in_pages(&gateway).await;
    assert_eq!(ids.len(), 5, "every record once");
    ids.dedup();
    assert_eq!(ids.len(), 5);
    assert_filters_count(&gateway).await;
    assert_queries_are_refused(&gateway).await;
    let path = format!("/v1/records/{}/resolve", ids[0]);
    assert_bodies_are_refused(&gateway, &path).await;
    let unknown = id(&unknown(&gateway, "lost").await);
    let bodied =
        json!({ "who": "a", "reason": "r", "found": { "completed": { "status": 204, "body": "x" } } });
    assert_problem(
        &post(&gateway, &format!("/v1/records/{unknown}/resolve"), &bodied).await,
        422,
        "answer-impossible",
    );
    let large = json!({ "who": "a", "reason": "r", "found": { "completed": { "status": 200, "body": "x".repeat(3 << 20) } } });
    assert_problem(&post(&gateway, &path, &large).await, 413, "too-large");
    let plain = TestRequest::post(&path).header("authorization", format!("Bearer {TOKEN}")).body("{}");
    assert_problem(&gateway.admin(&plain).await, 415, "unsupported-media-type");
    assert_problem(&post(&gateway, "/v1/records", &json!({})).await, 405, "method-not-allowed");
    assert_problem(&get(&gateway, "/v1/nothing").await, 404, "not-found");
}

/// Lists the records, two per page and at most three pages, and returns their ids.
async fn list_in_pages(gateway: &Gateway) -> Vec<String> {
    let mut ids = Vec::new();
    let mut after = String::new();
    for _ in 0..3 {
        let page = json_of(&get(gateway, &format!("/v1/records?limit=2{after}")).await);
        ids.extend(page["records"].as_array().expect("records").iter().map(id));
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    ids
}

async fn assert_filters_count(gateway: &Gateway) {
    let count = async |query: &str| {
        json_of(&get(gateway, &format!("/v1/records?{query}")).await)["records"].as_array().map(Vec::len)
    };
    assert_eq!(count("method=POST&path=/payments&state=completed&tenant=-").await, Some(5));
    assert_eq!(count("path=/paymentsx").await, Some(0));
    assert_eq!(count("route=/%7Bany%7D&older_than=0s&created_from=2020-01-01T00:00:00Z").await, Some(5));
    assert_eq!(count("created_before=2020-01-01T00:00:00Z").await, Some(0));
    assert_eq!(count("dead_letter=true").await, Some(0));
    assert_eq!(count("path=/payments&route=/%7Bany%7D").await, Some(5));
    assert_eq!(count("path=/payments&route=/other").await, Some(0));
}

async fn assert_queries_are_refused(gateway: &Gateway) {
    let refused = [
        "stat=unknown",
        "state=unknwon",
        "limit=0",
        "limit=1001",
        "after=abc",
        "older_than=5y",
        "created_from=yesterday",
        "path=payments",
        "method=post",
        "tenant=",
        "state=unknown&state=unknown",
    ];
    for query in refused {
        assert_problem(&get(gateway, &format!("/v1/records?{query}")).await, 400, "invalid-input");
    }
    assert_problem(&get(gateway, "/v1/records/zz").await, 400, "invalid-input");
    assert_problem(&get(gateway, "/v1/records/00000000").await, 404, "no-such-record");
    assert_problem(&get(gateway, "/v1/upkeep?x=1").await, 400, "invalid-input");
}

/// Checks that resolutions with a fault in their body are refused.
async fn assert_bodies_are_refused(gateway: &Gateway, path: &str) {
    let bodies = [
        json!({ "who": "ann", "reason": "r" }),
        json!({ "who": "", "reason": "r", "found": "not_executed" }),
        json!({ "who": "ann", "reason": " ", "found": "not_executed" }),
        json!({ "who": "ann", "reason": "x".repeat(501), "found": "not_executed" }),
        json!({ "who": "ann", "reason": "r", "found": "executed" }),
        json!({ "who": "ann", "reason": "r", "found": { "completed": { "status": 101 } } }),
        json!({ "who": "ann", "reason": "r", "found": { "completed": { "status": 600 } } }),
        json!({ "who": "ann", "reason": "r", "found": "not_executed", "extra": 1 }),
        json!(["ann", "r", null, "not_executed"]),
        json!({ "who": "ann", "reason": "r", "found": "not_executed", "version": "1" }),
    ];
    for body in bodies {
        let refused = post(gateway, path, &body).await;
        assert_eq!((refused.status, problem(&refused).as_str()), (400, "invalid-input"), "{body}");
    }
}

#[tokio::test]
async fn effects_and_dead_letters_are_shown_and_settled() {
    let upstream = Upstream::start().await;
    let setup = with_token(Setup::before(&upstream.url()).config(HASTY));
    let gateway = setup.start();
    let record = id(&unknown(&gateway, "k").await);
    let (first, second) = (dead_effect(&setup, &record, "charge"), dead_effect(&setup, &record, "mail"));
    let letters = until_async("its attempt's time is over", async || {
        let letters = json_of(&get(&gateway, "/v1/dead-letters").await);
        (letters["records"].as_array().map(Vec::len) == Some(1)).then_some(letters)
    })
    .await;
    assert_eq!(letters["effects"].as_array().map(Vec::len), Some(2), "{letters}");
    let act = json!({ "who": "ann", "reason": "their outage is over" });
    let retried = json_of(&post(&gateway, &format!("/v1/effects/{first}/retry"), &act).await);
    assert_eq!(retried["state"], "queued");
    let discarded = json_of(&post(&gateway, &format!("/v1/effects/{second}/discard"), &act).await);
    assert_eq!(discarded["state"], "discarded");
    let late = post(&gateway, &format!("/v1/effects/{second}/retry"), &act).await;
    assert_problem(&late, 409, "not-now");
    assert!(late.text().contains("\"state\":\"discarded\""), "as it is now: {late:?}");
    assert_problem(&post(&gateway, "/v1/effects/999/retry", &act).await, 404, "no-such-effect");
    let life = json_of(&get(&gateway, &format!("/v1/records/{record}")).await);
    let expected = [
        "effect `charge` retried, dead to queued, by ann: their outage is over",
        "effect `mail` discarded, dead to discarded, by ann: their outage is over",
    ];
    assert_eq!(acts(&life), expected);
    let queued = json_of(&get(&gateway, &format!("/v1/effects?state=queued&record={record}")).await);
    assert_eq!(queued["effects"][0]["seq"], first);
    let page = json_of(&get(&gateway, "/v1/effects?limit=1").await);
    let rest = json_of(&get(&gateway, &format!("/v1/effects?after={}", page["next"])).await);
    assert_eq!(rest["effects"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn only_the_admin_api_names_a_noisy_tenant() {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url()).tenant("header:x-tenant-id");
    let gateway = with_token(setup).config("[upkeep]\nsweep_every = \"50ms\"\n").start();
    for round in 0..25 {
        let noisy = pay("always", "status=201").header("x-tenant-id", "noisy-tenant");
        gateway.call(&noisy).await;
        let calm = pay(&format!("calm-{round}"), "status=201").header("x-tenant-id", "calm-tenant");
        gateway.call(&calm).await;
    }
    let tenants = json_of(&get(&gateway, "/v1/tenants").await);
    assert_eq!(tenants["above"], 1, "{tenants}");
    let first = &tenants["tenants"][0];
    assert_eq!((&first["tenant"], &first["duplicates"]), (&json!("noisy-tenant"), &json!(24)), "{tenants}");
    let counted =
        async || (gateway.metric("ibid_tenants_above_duplicate_rate", "").await == 1.0).then_some(());
    until_async("the gauge counts it", counted).await;
    assert!(!gateway.page("/metrics").await.text().contains("noisy-tenant"), "never by name");
    let ran = async || {
        let upkeep = json_of(&get(&gateway, "/v1/upkeep").await);
        let chores = upkeep["chores"].as_array().expect("chores").clone();
        let done = |name: &str| {
            chores.iter().any(|chore| chore["name"] == name && chore["succeeded_at"].is_string())
        };
        (done("sweeper") && done("reaper")).then_some(())
    };
    until_async("every chore has run", ran).await;
}
