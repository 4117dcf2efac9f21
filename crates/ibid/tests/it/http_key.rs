//! Sources of a request's key at the guard, and its treatment of requests without one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use axum::routing::any;
use ibid::http::{IdempotencyLayer, IdempotencyService, MissingIdentityError, Routes, Rule, TenantSource};
use ibid::store::clock::Clock;
use ibid::store::memory::MemoryStore;
use ibid::{Ibid, Settings};
use ibid_core::key_source::KeyFrom;
use ibid_core::policy::{KeyRule, Policy, Profile};
use ibid_core::scope::Tenant;
use ibid_testkit::faults::{FaultyStore, StoreFault};
use tower::{Layer, ServiceExt};

/// An API that echoes the body, and counts its runs.
struct Api {
    runs: Arc<AtomicUsize>,
    app: IdempotencyService<Router>,
    faults: Arc<FaultyStore>,
}

impl Api {
    async fn under(policy: Policy) -> Api {
        Api::with_rules(policy, Vec::new()).await
    }

    async fn with_rules(policy: Policy, rules: Vec<Rule>) -> Api {
        let faults = FaultyStore::new(Arc::new(MemoryStore::new(Clock::system())));
        let routes = Routes::new(policy, rules).expect("good routes");
        let settings = Settings::default().with(|settings| settings.identity = routes.identity("one"));
        let ibid = Ibid::start(faults.clone(), settings).await.expect("it starts");
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = runs.clone();
        let handle = any(move |headers: HeaderMap, body: Bytes| {
            let run = counted.fetch_add(1, Ordering::SeqCst) + 1;
            let length = headers.get("content-length").and_then(|value| value.to_str().ok()).unwrap_or("-");
            let text = format!("run {run}, length {length}: {}", String::from_utf8_lossy(&body));
            let wanted = headers.get("x-do").and_then(|value| value.to_str().ok()?.parse().ok());
            let status = StatusCode::from_u16(wanted.unwrap_or(201)).expect("a status");
            async move { (status, [("repeatability-result", "the handler's own")], text) }
        });
        let router = Router::new().fallback(handle);
        let tenants = TenantSource::by(|head| match head.headers.contains_key("x-nobody") {
            true => Err(MissingIdentityError),
            false => Ok(Tenant::only()),
        });
        Api { runs, app: IdempotencyLayer::with_routes(ibid, tenants, routes).layer(router), faults }
    }

    async fn post(&self, lines: &[(&str, &str)], body: impl Into<Body>) -> Answer {
        self.post_to("/pay", lines, body).await
    }

    async fn post_to(&self, path: &str, lines: &[(&str, &str)], body: impl Into<Body>) -> Answer {
        let mut request = Request::builder().method(Method::POST).uri(path);
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        let request = request.body(body.into()).expect("a request");
        let (head, body) = self.app.clone().oneshot(request).await.expect("it never fails").into_parts();
        let body = to_bytes(Body::new(body), 1 << 20).await.expect("a body");
        Answer {
            status: head.status.as_u16(),
            headers: head.headers,
            text: String::from_utf8_lossy(&body).into_owned(),
        }
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

struct Answer {
    status: u16,
    headers: HeaderMap,
    text: String,
}

impl Answer {
    fn field(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("text"))
    }

    /// Returns status and problem, such as `400 key-invalid`.
    fn problem(&self) -> String {
        let body: serde_json::Value = serde_json::from_str(&self.text).expect("problem+json");
        let kind = body["type"].as_str().expect("a type").trim_start_matches("urn:ibid:problem:");
        format!("{} {kind}", self.status)
    }

    fn is_replay(&self) -> bool {
        self.field("idempotent-replayed") == Some("true")
    }
}

fn keyed_by(places: &[&str], key: KeyRule) -> Policy {
    let key_from = KeyFrom::parse(places.iter().copied()).expect("good places");
    Policy::default().with(|policy| {
        policy.key_from = key_from;
        policy.key = key;
    })
}

const JSON: (&str, &str) = ("content-type", "application/json");

#[tokio::test]
async fn a_key_in_the_body_guards_the_request() {
    let api = Api::under(keyed_by(&["square"], KeyRule::Required)).await;
    let body = r#"{"idempotency_key":"k-1","amount":5}"#;
    let first = api.post(&[JSON], body).await;
    assert_eq!((first.status, first.is_replay()), (201, false), "{}", first.text);
    let again = api.post(&[JSON], r#"{"amount":5, "idempotency_key":"k-1"}"#).await;
    assert!(again.is_replay() && again.text == first.text, "{}", again.text);
    let other = api.post(&[JSON], r#"{"idempotency_key":"k-1","amount":6}"#).await;
    assert_eq!(other.problem(), "422 key-reused");
    assert_eq!(api.post(&[JSON], r#"{"amount":5}"#).await.problem(), "400 key-missing");
    assert_eq!(api.post(&[JSON, ("idempotency-key", "k")], "{}").await.problem(), "400 key-missing");
    let form = ("content-type", "application/x-www-form-urlencoded");
    assert_eq!(api.post(&[form], "idempotency_key=k-2&amount=5").await.status, 201);
    assert!(api.post(&[form], "idempotency_key=k-2&amount=5").await.is_replay());
    assert_eq!(api.runs(), 2);
}

#[tokio::test]
async fn an_unsearchable_body_is_refused_even_with_optional_keys() {
    for rule in [KeyRule::Required, KeyRule::Optional] {
        let api = Api::under(keyed_by(&["header:x-key", "body:/k"], rule)).await;
        for (lines, body) in [
            (vec![JSON, ("content-encoding", "gzip")], r#"{"k":"v"}"#),
            (vec![JSON], r#"{"k":"v""#),
            (vec![JSON], r#"{"k":"v","k":"v"}"#),
            (vec![JSON], r#"{"k":17}"#),
            (vec![("content-type", "text/plain")], r#"{"k":"v"}"#),
            (vec![JSON, ("x-key", "")], "{}"),
        ] {
            assert_eq!(
                api.post(&lines, body).await.problem(),
                "400 key-invalid",
                "{rule:?} {lines:?} {body}"
            );
        }
        let large = keyed_by(&["body:/k"], rule).with(|policy| policy.max_request_body = 8);
        let large = Api::under(large).await;
        assert_eq!(large.post(&[JSON], r#"{"a":"bcdef"}"#).await.problem(), "413 body-too-large");
        let unsized_body = Body::from_stream(futures_util::stream::iter(
            ["{\"a\":", "\"bcdef\"}"].map(|part| Ok::<_, std::io::Error>(Bytes::from(part))),
        ));
        assert_eq!(large.post(&[JSON], unsized_body).await.problem(), "413 body-too-large");
        assert_eq!((api.runs(), large.runs()), (0, 0));
    }
}

#[tokio::test]
async fn a_caller_without_a_tenant_is_refused_before_its_body_is_read() {
    let api = Api::under(keyed_by(&["body:/k"], KeyRule::Required)).await;
    let endless = Body::from_stream(futures_util::stream::pending::<Result<Bytes, std::io::Error>>());
    assert_eq!(api.post(&[JSON, ("x-nobody", "1")], endless).await.problem(), "401 tenant-missing");
    assert_eq!(api.runs(), 0);
}

#[tokio::test]
async fn a_request_without_a_key_passes_whole_where_keys_are_optional() {
    let api = Api::under(keyed_by(&["body:/k", "header:x-key"], KeyRule::Optional)).await;
    // The request has no tenant either, and needs none.
    let nobody = [JSON, ("x-nobody", "1")];
    assert_eq!(api.post(&nobody, r#"{"a":1}"#).await.text, r#"run 1, length -: {"a":1}"#);
    let chunks = ["{\"a\"", ":", "2}"].map(|part| Ok::<_, std::io::Error>(Bytes::from(part)));
    let chunked = Body::from_stream(futures_util::stream::iter(chunks));
    let lines = [JSON, ("x-nobody", "1"), ("transfer-encoding", "chunked")];
    assert_eq!(api.post(&lines, chunked).await.text, r#"run 2, length 7: {"a":2}"#);
    assert_eq!(api.post(&nobody, "").await.status, 201, "no body, no key");
    assert_eq!(api.post(&nobody, r#"{"k":"v"}"#).await.problem(), "401 tenant-missing");
    assert_eq!(api.post(&[JSON, ("x-key", "v")], "{}").await.status, 201);
    assert!(api.post(&[JSON, ("x-key", "v")], "{}").await.is_replay());
    assert_eq!(api.runs(), 4);
}

#[tokio::test]
async fn a_route_says_for_itself_where_its_key_is() {
    let policy = keyed_by(&["paypal"], KeyRule::Required);
    let rule = Rule::new(vec![Method::POST], "/orders", Some(policy));
    let api = Api::with_rules(Policy::default(), vec![rule]).await;
    let paypal = [("PayPal-Request-Id", "k")];
    assert_eq!(api.post_to("/orders", &paypal, "").await.status, 201);
    assert!(api.post_to("/orders", &paypal, "").await.is_replay());
    assert_eq!(api.post(&paypal, "").await.problem(), "400 key-missing");
    assert_eq!(api.post(&[("idempotency-key", "k")], "").await.status, 201);
    assert_eq!(api.runs(), 2);
}

/// Returns the date of this many seconds ago.
fn ago(seconds: u64) -> String {
    httpdate::fmt_http_date(SystemTime::now() - Duration::from_secs(seconds))
}

const REQUEST_ID: &str = "Repeatability-Request-ID";
const FIRST_SENT: &str = "Repeatability-First-Sent";

/// Returns the `repeatability-result` that every response of the profile must carry.
fn result_of(answer: &Answer) -> &str {
    answer.field("repeatability-result").expect("every answer says it")
}

#[tokio::test]
async fn a_repeatable_request_needs_both_of_its_fields() {
    for key in [KeyRule::Required, KeyRule::Optional] {
        let api = Api::under(Policy::repeatability().with(|policy| policy.key = key)).await;
        let now = ago(0);
        for (lines, problem) in [
            (vec![(REQUEST_ID, "k")], "400 first-sent-invalid"),
            (vec![(FIRST_SENT, now.as_str())], "400 key-missing"),
            (vec![(REQUEST_ID, "k"), (FIRST_SENT, "yesterday")], "400 first-sent-invalid"),
            (vec![(REQUEST_ID, "k"), (FIRST_SENT, &now), (FIRST_SENT, &now)], "400 first-sent-invalid"),
            (vec![(REQUEST_ID, "k"), (REQUEST_ID, "k"), (FIRST_SENT, &now)], "400 key-invalid"),
        ] {
            let answer = api.post(&lines, "").await;
            assert_eq!((answer.problem().as_str(), result_of(&answer)), (problem, "rejected"), "{lines:?}");
        }
        assert_eq!(api.runs(), 0);
        let neither = api.post(&[], "").await;
        match key {
            KeyRule::Required => assert_eq!(neither.problem(), "400 key-missing"),
            // The request did not use the profile, so the handler's response passes unchanged.
            KeyRule::Optional => assert_eq!(neither.field("repeatability-result"), Some("the handler's own")),
        }
    }
}

#[tokio::test]
async fn a_repeatable_request_is_accepted_and_repeated_by_its_id() {
    let api = Api::under(Policy::repeatability()).await;
    let (sent, id) = (ago(1), "0C9AE5EA-980F-4EBD-A027-04529942B95E");
    let first = api.post(&[(REQUEST_ID, id), (FIRST_SENT, &sent)], "").await;
    assert_eq!((first.status, result_of(&first)), (201, "accepted"));
    let again = api.post(&[(REQUEST_ID, &id.to_lowercase()), (FIRST_SENT, &sent)], "").await;
    assert!(again.is_replay() && again.text == first.text, "{}", again.text);
    assert_eq!(result_of(&again), "accepted");
    for (path, body) in [("/other", ""), ("/pay?x=1", ""), ("/pay", "else")] {
        let other = api.post_to(path, &[(REQUEST_ID, id), (FIRST_SENT, &sent)], body).await;
        assert_eq!((other.problem().as_str(), result_of(&other)), ("400 key-reused", "rejected"));
    }
    // The handler says that nothing was executed: the key stays free.
    let busy = api.post(&[(REQUEST_ID, "b"), (FIRST_SENT, &sent), ("x-do", "429")], "").await;
    assert_eq!((busy.status, result_of(&busy)), (429, "rejected"));
    let broken = api.post(&[(REQUEST_ID, "c"), (FIRST_SENT, &sent), ("x-do", "500")], "").await;
    assert_eq!((broken.status, result_of(&broken)), (500, "accepted"));
    let unknown = api.post(&[(REQUEST_ID, "c"), (FIRST_SENT, &sent)], "").await;
    assert_eq!((unknown.problem().as_str(), result_of(&unknown)), ("409 outcome-unknown", "accepted"));
    assert_eq!(api.runs(), 3);
}

#[tokio::test(start_paused = true)]
async fn an_old_request_is_answered_while_the_store_hangs() {
    let api = Api::under(Policy::repeatability()).await;
    api.faults.set(StoreFault::HangsReads);
    let answer = api.post(&[(REQUEST_ID, "old"), (FIRST_SENT, &ago(25 * 3600))], "").await;
    assert_eq!((answer.problem().as_str(), api.runs()), ("503 store-unavailable", 0));
}

#[tokio::test]
async fn a_request_first_sent_too_long_ago_runs_under_no_new_key() {
    let aged = |policy: Policy| policy.with(|policy| policy.max_request_age = Some(Duration::from_secs(300)));
    let api = Api::under(aged(Policy::repeatability())).await;
    let late = api.post(&[(REQUEST_ID, "old"), (FIRST_SENT, &ago(330))], "").await;
    assert_eq!((late.problem().as_str(), result_of(&late)), ("412 request-too-old", "rejected"));
    assert_eq!(api.runs(), 0);
    let (young, future) = (ago(200), httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(3600)));
    assert_eq!(api.post(&[(REQUEST_ID, "young"), (FIRST_SENT, &young)], "").await.status, 201);
    assert_eq!(api.post(&[(REQUEST_ID, "ahead"), (FIRST_SENT, &future)], "").await.status, 201);
    // A known key gets its response, however old the request is.
    let again = api.post(&[(REQUEST_ID, "young"), (FIRST_SENT, &ago(4000))], "").await;
    assert!(again.is_replay(), "{}", again.text);
    // By default the limit is the retention of records.
    let usual = Api::under(Policy::repeatability()).await;
    let lines = |age| [(REQUEST_ID.to_owned(), format!("k{age}")), (FIRST_SENT.to_owned(), ago(age))];
    for (age, status) in [(23 * 3600, 201), (25 * 3600, 412)] {
        let lines = lines(age);
        let lines: Vec<_> = lines.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(usual.post(&lines, "").await.status, status, "{age}");
    }
    // Another profile reads the field that its policy names, and only if the request has it.
    let named = aged(Policy::default()).with(|policy| policy.first_sent = Some("x-first-sent".into()));
    let ietf = Api::under(named).await;
    let old = ietf.post(&[("idempotency-key", "a"), ("x-first-sent", &ago(330))], "").await;
    assert_eq!((old.problem().as_str(), old.field("repeatability-result")), ("412 request-too-old", None));
    let odd = ietf.post(&[("idempotency-key", "a"), ("x-first-sent", "soon")], "").await;
    assert_eq!(odd.problem(), "400 first-sent-invalid");
    assert_eq!(ietf.post(&[("idempotency-key", "a"), ("x-first-sent", &ago(200))], "").await.status, 201);
    assert_eq!(ietf.post(&[("idempotency-key", "b"), (FIRST_SENT, "soon")], "").await.status, 201);
}

#[tokio::test]
async fn an_operation_that_can_not_be_repeated_refuses_the_fields() {
    let single = |profile| {
        let policy = Policy::repeatability().with(|policy| {
            policy.profile = profile;
            policy.repeatable = false;
        });
        let (methods, pattern) = (vec![Method::POST], "/single".to_owned());
        vec![Rule::new(methods, pattern, Some(policy))]
    };
    let api = Api::with_rules(Policy::repeatability(), single(Profile::Repeatability)).await;
    let now = ago(0);
    for lines in [
        vec![(REQUEST_ID, "k"), (FIRST_SENT, now.as_str())],
        vec![(REQUEST_ID, "k")],
        vec![(FIRST_SENT, "x")],
    ] {
        let refused = api.post_to("/single", &lines, "").await;
        assert_eq!((refused.problem().as_str(), result_of(&refused)), ("501 not-repeatable", "rejected"));
    }
    assert_eq!(api.runs(), 0);
    assert_eq!(api.post_to("/single", &[], "").await.status, 201);
    // Under another profile the route is exempt.
    let ietf = Api::with_rules(Policy::default(), single(Profile::Ietf)).await;
    for run in 1..=2 {
        let passed = ietf.post_to("/single", &[("idempotency-key", "k")], "").await;
        assert_eq!((passed.status, ietf.runs()), (201, run));
    }
    let defaults = Policy::default().with(|policy| policy.repeatable = false);
    assert!(Routes::new(defaults, Vec::new()).is_err(), "that would exempt everything");
}
