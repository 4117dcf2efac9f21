//! Where the guard finds a request's key, and what it does with requests that carry none.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use axum::routing::any;
use ibid::http::{Begins, Guard, GuardLayer, NoTenant, Routes, Rule, Tenants};
use ibid::store::clock::Clock;
use ibid::store::memory::MemoryStore;
use ibid::{Ibid, Settings};
use ibid_core::key_source::KeyFrom;
use ibid_core::policy::{KeyRule, Policy};
use ibid_core::scope::Tenant;
use tower::{Layer, ServiceExt};

/// An API that echoes the body, and counts its runs.
struct Api {
    runs: Arc<AtomicUsize>,
    app: Guard<Router>,
}

impl Api {
    async fn under(policy: Policy) -> Api {
        Api::with_rules(policy, Vec::new()).await
    }

    async fn with_rules(policy: Policy, rules: Vec<Rule>) -> Api {
        let store = Arc::new(MemoryStore::new(Clock::system()));
        let ibid = Ibid::start(store, Settings::default()).await.expect("it starts");
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = runs.clone();
        let handle = any(move |headers: HeaderMap, body: Bytes| {
            let run = counted.fetch_add(1, Ordering::SeqCst) + 1;
            let length = headers.get("content-length").and_then(|value| value.to_str().ok()).unwrap_or("-");
            let text = format!("run {run}, length {length}: {}", String::from_utf8_lossy(&body));
            async move { (StatusCode::CREATED, text) }
        });
        let router = Router::new().fallback(handle);
        let tenants = Tenants::by(|head| match head.headers.contains_key("x-nobody") {
            true => Err(NoTenant),
            false => Ok(Tenant::only()),
        });
        let routes = Routes::new(policy, rules).expect("good routes");
        Api { runs, app: GuardLayer::with_routes(ibid, tenants, routes).layer(router) }
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

    /// Status and problem, such as `400 key-invalid`.
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
    Policy { key_from, key, ..Policy::default() }
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
async fn a_body_that_can_not_be_searched_is_refused_also_where_keys_are_optional() {
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
        let large = Policy { max_request_body: 8, ..keyed_by(&["body:/k"], rule) };
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
async fn a_request_without_a_key_passes_whole_where_keys_are_optional() {
    let api = Api::under(keyed_by(&["body:/k", "header:x-key"], KeyRule::Optional)).await;
    // It has no tenant either, and needs none.
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
    let rule = Rule {
        methods: vec![Method::POST],
        pattern: "/orders".to_owned(),
        policy: Some(policy),
        begins: Begins::Guard,
    };
    let api = Api::with_rules(Policy::default(), vec![rule]).await;
    let paypal = [("PayPal-Request-Id", "k")];
    assert_eq!(api.post_to("/orders", &paypal, "").await.status, 201);
    assert!(api.post_to("/orders", &paypal, "").await.is_replay());
    assert_eq!(api.post(&paypal, "").await.problem(), "400 key-missing");
    assert_eq!(api.post(&[("idempotency-key", "k")], "").await.status, 201);
    assert_eq!(api.runs(), 2);
}
