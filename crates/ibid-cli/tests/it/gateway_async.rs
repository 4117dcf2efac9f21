//! Asynchronous responses: a request is accepted with 202 and delivered once without its client, despite outages,
//! kills and other gateways.

use futures_util::future::join_all;
use ibid_testkit::client::{TestRequest, TestResponse};
use ibid_testkit::upstream::{ReservedPort, Upstream};
use serde_json::Value;

use crate::harness::{Gateway, On, Setup, assert_problem, is_replay, on_every_store, until_async};

fn pay(key: &str) -> TestRequest {
    TestRequest::post("/payments").key(key).body("five")
}

fn paid(key: &str) -> TestRequest {
    pay(key).fixture("status=201;body=paid")
}

/// Panics unless it is a 202 of the gateway itself. Returns the path of the status page.
#[track_caller]
fn status_page(answer: &TestResponse) -> String {
    assert_eq!(answer.status, 202, "{answer:?}");
    assert_eq!(answer.header("retry-after").as_deref(), Some("1"), "{answer:?}");
    assert_eq!(answer.header("cache-control").as_deref(), Some("no-store"), "{answer:?}");
    let page = answer.header("location").expect("a place to look");
    assert_eq!(answer.header("link"), Some(format!("<{page}>; rel=\"monitor\"")));
    let body: Value = serde_json::from_slice(&answer.body).expect("JSON");
    assert_eq!(body, serde_json::json!({ "accepted": true, "monitor": page }));
    page
}

/// Gets the key's status page, which waits until the request is done, at most for the route's `wait`.
async fn wait_for_page(gateway: &Gateway, page: &str) -> Value {
    let answer = gateway.retry_until_settled(&TestRequest::get(page).header("Prefer", "wait=5")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    serde_json::from_slice(&answer.body).expect("JSON")
}

/// Waits until the key's status page satisfies `is`.
async fn until_page(gateway: &Gateway, page: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    until_async(what, async || Some(wait_for_page(gateway, page).await).filter(|status| is(status))).await
}

async fn until_state(gateway: &Gateway, page: &str, state: &str) -> Value {
    until_page(gateway, page, &format!("the record is `{state}`"), |status| status["state"] == state).await
}

const ASYNC: &str = "[defaults]\nanswer = \"async\"\nlease = \"1s\"\n[upkeep]\nsweep_every = \"200ms\"\n";

on_every_store!(an_accepted_request_is_delivered_once and mysql);
async fn an_accepted_request_is_delivered_once(on: On) {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url()).on(on).config(ASYNC);
    let gateway = setup.start();
    let request = pay("k").fixture("gate;status=201;body=paid;header=X-Own: 1");
    let first = gateway.call(&request).await;
    let page = status_page(&first);
    assert_eq!(page, "/.ibid/keys/k?method=POST&path=%2Fpayments");
    assert_eq!(first.header("preference-applied"), None);
    upstream.until(|tally| tally.held == 1).await;

    let again = gateway.call(&request).await;
    status_page(&again);
    assert_eq!(again.body, first.body);
    assert_problem(&gateway.call(&pay("k").body("six")).await, 422, "key-reused");
    let running = gateway.call(&TestRequest::get(&page)).await;
    assert_eq!(running.header("retry-after").as_deref(), Some("1"));
    assert!(running.text().contains("\"state\":\"in_progress\""), "{running:?}");
    let response = page.replacen("?", "/response?", 1);
    assert_problem(&gateway.call(&TestRequest::get(&response)).await, 409, "request-in-progress");

    upstream.gate().open();
    let done = until_state(&gateway, &page, "completed").await;
    assert_eq!(
        (&done["outcome"], &done["status"], &done["attempts"]),
        (&"success".into(), &201.into(), &1.into())
    );
    for request in [request, TestRequest::get(&response)] {
        let answer = gateway.call(&request).await;
        assert_eq!((answer.status, answer.text().as_str(), is_replay(&answer)), (201, "paid", true));
        assert_eq!(answer.header("x-own").as_deref(), Some("1"));
    }
    assert_eq!((upstream.executions("k"), upstream.deliveries_begun()), (1, 1));
    assert_eq!(gateway.metric("ibid_reserve_created_total", "").await, 1.0);
}

on_every_store!(a_later_delivery_sends_the_original_request and mysql);
async fn a_later_delivery_sends_the_original_request(on: On) {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url())
        .on(on)
        .config(ASYNC)
        .variable("IBID_LOG", "ibid=trace,ibid_core=trace");
    let gateway = setup.start();
    let request = TestRequest::post("/payments?fast=1")
        .key("canary-key")
        .body("canary-body")
        .header("Authorization", "Bearer canary-token")
        .header("Cookie", "session=canary-cookie")
        .header("X-Odd", b"caf\xe9")
        .header("X-Hop", "1")
        .header("Connection", "x-hop")
        .fixture("gate;status=201;body=paid");
    let page = status_page(&gateway.call(&request).await);
    upstream.until(|tally| tally.held == 1).await;
    assert_eq!(
        count_attachments(&setup, "canary-token"),
        1,
        "it is kept while it is needed, or this test proves nothing"
    );
    upstream.gate().open();
    until_state(&gateway, &page, "completed").await;

    let delivered = upstream.requests().pop().expect("one");
    assert_eq!((delivered.method.as_str(), delivered.target.as_str()), ("POST", "/payments?fast=1"));
    assert_eq!(delivered.body, b"canary-body");
    assert_eq!(delivered.header("authorization").as_deref(), Some("Bearer canary-token"));
    assert_eq!(delivered.header("cookie").as_deref(), Some("session=canary-cookie"));
    assert_eq!(delivered.header("x-forwarded-for").as_deref(), Some("127.0.0.1"));
    assert_eq!(delivered.key().as_deref(), Some("canary-key"));
    assert!(delivered.headers.iter().any(|(_, value)| value == b"caf\xe9"), "{delivered:?}");
    assert_eq!(delivered.header("x-hop"), None);

    assert_eq!((count_attachments(&setup, "canary-token"), count_attachments(&setup, "canary-body")), (0, 0));
    assert!(is_replay(&gateway.call(&request).await), "the answer stays");
    for secret in ["canary-token", "canary-cookie", "canary-body", "canary-key"] {
        assert!(!gateway.log().contains(secret), "`{secret}` in the log: {}", gateway.log());
    }
}

/// Returns how many attachments of records contain this text.
fn count_attachments(setup: &Setup, text: &str) -> i64 {
    let position = if setup.server().is_some() {
        format!("position('{text}'::bytea in data)")
    } else if setup.is_on_file() {
        format!("instr(data, cast('{text}' as blob))")
    } else {
        format!("instr(data, '{text}')")
    };
    setup.number(&format!("select count(*) from ibid_body where {position} > 0"))
}

#[tokio::test]
async fn a_client_may_choose_async_where_the_route_allows_it() {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url()).config(
        "[[route]]\nmatch = \"POST /payments\"\nanswer = \"prefer\"\n[[route]]\nmatch = \"POST /always\"\nanswer = \"async\"\n",
    );
    let gateway = setup.start();
    let at_once = gateway.call(&paid("a")).await;
    assert_eq!((at_once.status, at_once.text().as_str(), is_replay(&at_once)), (201, "paid", false));

    let later = gateway.call(&paid("b").header("Prefer", "respond-async")).await;
    assert_eq!(later.header("preference-applied").as_deref(), Some("respond-async"));
    let page = status_page(&later);
    until_state(&gateway, &page, "completed").await;
    // The request is done, so the preference no longer matters.
    let answer = gateway.call(&paid("b")).await;
    assert!(answer.status == 201 && is_replay(&answer), "{answer:?}");
    let answer = gateway.call(&paid("b").header("Prefer", "respond-async")).await;
    assert!(is_replay(&answer) && answer.header("preference-applied").is_none(), "{answer:?}");

    // A preference for an asynchronous response with a wait: if the request is done in time, the client gets the
    // response itself.
    let answer = gateway.call(&paid("c").header("Prefer", "respond-async, wait=5")).await;
    assert_eq!((answer.status, answer.text().as_str()), (201, "paid"), "{answer:?}");

    let elsewhere =
        TestRequest::post("/other").key("d").fixture("status=201").header("Prefer", "respond-async");
    assert_eq!(gateway.call(&elsewhere).await.status, 201);
    let always = TestRequest::post("/always").key("e").header("Prefer", "respond-async");
    let always = gateway.call(&always).await;
    status_page(&always);
    assert_eq!(always.header("preference-applied").as_deref(), Some("respond-async"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_duplicate_of_a_running_request_may_be_shown_where_to_look() {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url()).config("[defaults]\nin_flight = \"accepted\"\n");
    let gateway = setup.start();
    let request = pay("k").fixture("gate;status=201;body=paid");
    let mut first = gateway.client().await;
    first.send(&request).await;
    upstream.until(|tally| tally.held == 1).await;
    let page = status_page(&gateway.call(&request).await);
    upstream.gate().open();
    let answer = first.read().await.expect("the answer");
    assert_eq!((answer.status, answer.text().as_str(), is_replay(&answer)), (201, "paid", false));
    until_state(&gateway, &page, "completed").await;
    assert!(is_replay(&gateway.call(&request).await));
    assert_eq!(upstream.executions("k"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_delivery_is_retried_until_the_upstream_is_back() {
    let nobody = ReservedPort::port();
    let setup = Setup::before(&nobody.url()).config(ASYNC);
    let gateway = setup.start();
    let page = status_page(&gateway.call(&paid("k")).await);
    let refused = |status: &Value| status["state"] == "pending" && status["last_error"] == "not_sent";
    until_page(&gateway, &page, "a try has failed", refused).await;
    status_page(&gateway.call(&paid("k")).await);
    let upstream = nobody.start();
    let done = until_state(&gateway, &page, "completed").await;
    assert!(done["attempts"].as_u64() > Some(1), "{done}");
    assert_eq!((upstream.executions("k"), upstream.deliveries_begun()), (1, 1));
}

#[tokio::test]
async fn an_undeliverable_request_becomes_a_retryable_dead_letter() {
    let nobody = ReservedPort::port();
    let setup = Setup::before(&nobody.url())
        .config(&format!("{ASYNC}[[route]]\nmatch = \"POST /payments\"\nmax_attempts = 1\n"));
    let gateway = setup.start();
    let page = status_page(&gateway.call(&paid("k")).await);
    let given_back = until_state(&gateway, &page, "retryable").await;
    assert_eq!((&given_back["needs_a_person"], &given_back["attempts"]), (&true.into(), &1.into()));
    assert_eq!(count_attachments(&setup, "five"), 0, "the request is not needed any more");
    let upstream = nobody.start();
    status_page(&gateway.call(&paid("k")).await);
    let done = until_state(&gateway, &page, "completed").await;
    assert_eq!((&done["needs_a_person"], &done["attempts"]), (&false.into(), &2.into()));
    assert_eq!(upstream.executions("k"), 1);
}

#[tokio::test]
async fn a_delivery_with_a_lost_response_is_not_repeated() {
    let upstream = Upstream::start().await;
    let short = format!(
        "{ASYNC}[[route]]\nmatch = \"POST /payments\"\nupstream_timeout = \"500ms\"\nlinger = \"0s\"\n"
    );
    let gateway = Setup::before(&upstream.url()).config(&short).start();
    let page = status_page(&gateway.call(&pay("k").fixture("cut=read")).await);
    // Once the attempt's time is over, only an operator can settle it.
    let given_up = |status: &Value| status["state"] == "unknown" && status["needs_a_person"] == true;
    until_page(&gateway, &page, "the record is a dead letter", given_up).await;
    assert_problem(&gateway.call(&pay("k").fixture("cut=read")).await, 409, "outcome-unknown");
    assert_eq!((upstream.executions("k"), upstream.deliveries_begun()), (1, 1));
}

on_every_store!(a_kill_between_202_and_delivery_loses_nothing and mysql);
async fn a_kill_between_202_and_delivery_loses_nothing(on: On) {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url()).on(on).config(ASYNC);
    // The gateway has claimed the record and pauses for longer than this test.
    let mut gateway =
        setup.clone().variable("IBID_FAILPOINTS", "deliver.before=return(pause:600000)").start();
    let page = status_page(&gateway.call(&paid("k")).await);
    gateway.wait_for_log("a failpoint is hit").await;
    gateway.kill();
    assert_eq!(upstream.deliveries_begun(), 0);
    let gateway = setup.start();
    let done = until_state(&gateway, &page, "completed").await;
    assert_eq!(done["attempts"], 1);
    let answer = gateway.call(&paid("k")).await;
    assert!(is_replay(&answer) && answer.text() == "paid", "{answer:?}");
    assert_eq!((upstream.executions("k"), upstream.deliveries_begun()), (1, 1));
}

on_every_store!(a_kill_during_delivery_is_unknown_and_nothing_is_done_twice and mysql and redis);
async fn a_kill_during_delivery_is_unknown_and_nothing_is_done_twice(on: On) {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url()).on(on).config(ASYNC);
    let request = pay("k").fixture("gate;status=201;body=paid");
    let mut gateway = setup.start();
    let page = status_page(&gateway.call(&request).await);
    // The upstream has executed the request, and its response is still in flight.
    upstream.until(|tally| tally.held == 1).await;
    gateway.kill();
    upstream.gate().open();
    let gateway = setup.start();
    let status = until_state(&gateway, &page, "unknown").await;
    assert_eq!(status["last_error"], "lapsed");
    assert_problem(&gateway.call(&request).await, 409, "outcome-unknown");
    assert_eq!((upstream.executions("k"), upstream.deliveries_begun()), (1, 1));
}

on_every_store!(a_kill_before_the_first_byte_may_be_delivered_again and mysql);
async fn a_kill_before_the_first_byte_may_be_delivered_again(on: On) {
    let upstream = Upstream::start().await;
    let config = ASYNC.replace("lease", "on_lapse = \"retry\"\nlease");
    let setup = Setup::before(&upstream.url()).on(on).config(&config);
    // The gateway pauses there until the test kills it. If it killed itself, it could do so before its client has the
    // 202.
    let mut gateway = setup.clone().variable("IBID_FAILPOINTS", "deliver.after=return(pause:600000)").start();
    let page = status_page(&gateway.call(&paid("k")).await);
    gateway.wait_for_log("a failpoint is hit").await;
    gateway.kill();
    let gateway = setup.start();
    let done = until_state(&gateway, &page, "completed").await;
    assert_eq!(done["attempts"], 2);
    assert_eq!((upstream.executions("k"), upstream.deliveries_begun()), (1, 1));
}

on_every_store!(of_two_gateways_on_one_store_exactly_one_delivers and mysql);
async fn of_two_gateways_on_one_store_exactly_one_delivers(on: On) {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url()).on(on).config(&ASYNC.replace("lease = \"1s\"", ""));
    let gateways = [setup.start(), setup.start()];
    let keys: Vec<String> = (0..200).map(|n| format!("k{n}")).collect();
    let sent =
        keys.iter().enumerate().map(async |(n, key)| status_page(&gateways[n % 2].call(&paid(key)).await));
    let pages = join_all(sent).await;
    // Ask the other gateway for each status page.
    join_all(
        pages.iter().enumerate().map(|(n, page)| until_state(&gateways[(n + 1) % 2], page, "completed")),
    )
    .await;
    let tally = upstream.tally();
    assert_eq!((tally.total, tally.begun, tally.repeated_keys()), (200, 200, vec![]));
    for (n, key) in keys.iter().enumerate() {
        assert!(is_replay(&gateways[(n + 1) % 2].call(&paid(key)).await), "{key}");
    }
}

on_every_store!(kills_under_load_lose_nothing_and_do_nothing_twice and mysql);
async fn kills_under_load_lose_nothing_and_do_nothing_twice(on: On) {
    let upstream = Upstream::start().await;
    upstream.behave("delay=100;status=201;body=paid");
    let setup = Setup::before(&upstream.url()).on(on).config(ASYNC);
    let mut gateways = [setup.start(), setup.start()];
    let (mut pages, mut lost) = (Vec::new(), 0);
    for round in 0..KILLS {
        let sent = (0..20).map(async |n| {
            let key = format!("k-{round}-{n}");
            let answer = gateways[n % 2].call(&pay(&key)).await;
            (key, status_page(&answer))
        });
        pages.extend(join_all(sent).await);
        // Kill it during the round's deliveries, at a different moment each time.
        upstream.until(|tally| tally.total >= pages.len() - 20 - lost + round % 10).await;
        gateways[round % 2].kill();
        lost = pages.len() - upstream.total();
        gateways[round % 2] = setup.start();
    }
    let mut unknown = 0;
    for (key, page) in &pages {
        let ended = |status: &Value| status["state"] == "completed" || status["state"] == "unknown";
        let status = until_page(&gateways[0], page, &format!("`{key}` has come to an end"), ended).await;
        match status["state"] == "completed" {
            true => assert_eq!((upstream.executions(key), &status["status"]), (1, &201.into()), "{key}"),
            false => unknown += 1,
        }
    }
    assert_eq!(upstream.tally().repeated_keys(), Vec::<&str>::new(), "nothing is done twice");
    assert!(unknown > 0 && unknown < pages.len(), "{unknown} of {}: the kills met some", pages.len());
}

const KILLS: usize = 8;

on_every_store!(another_gateway_delivers_after_a_kill and mysql);
async fn another_gateway_delivers_after_a_kill(on: On) {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url()).on(on).config(ASYNC);
    let mut first = setup.clone().variable("IBID_FAILPOINTS", "deliver.before=return(pause:600000)").start();
    let second = setup.start();
    let page = status_page(&first.call(&paid("k")).await);
    first.wait_for_log("a failpoint is hit").await;
    first.kill();
    until_state(&second, &page, "completed").await;
    assert_eq!((upstream.executions("k"), upstream.deliveries_begun()), (1, 1));
}

#[tokio::test]
async fn a_running_delivery_is_finished_at_shutdown() {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url()).config(ASYNC);
    let request = pay("k").fixture("gate;status=201;body=paid");
    let mut gateway = setup.start();
    status_page(&gateway.call(&request).await);
    upstream.until(|tally| tally.held == 1).await;
    gateway.signal("TERM");
    gateway.wait_for_log("draining").await;
    upstream.gate().open();
    assert_eq!(gateway.wait_for_exit().await.code(), Some(0), "{}", gateway.log());
    let answer = setup.start().call(&request).await;
    assert_eq!((answer.status, answer.text().as_str(), is_replay(&answer)), (201, "paid", true));
    assert_eq!(upstream.executions("k"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn with_upkeep_off_a_gateway_leaves_the_chores_to_another() {
    let upstream = Upstream::start().await;
    let off = "[defaults]\nanswer = \"async\"\n[upkeep]\nrun = false\n";
    let setup = Setup::before(&upstream.url()).config(off);
    let idle = setup.start();
    let page = status_page(&idle.call(&paid("k")).await);
    let chores = idle.page("/metrics").await.text();
    assert!(!chores.contains("ibid_chore_last_run_seconds{"), "{chores}");
    assert_eq!(wait_for_page(&idle, &page).await["state"], "pending", "held for as long as the page waits");
    assert_eq!(upstream.deliveries_begun(), 0);

    let _busy = setup.clone().config(ASYNC).start();
    until_state(&idle, &page, "completed").await;
    assert_eq!(upstream.executions("k"), 1);
}
