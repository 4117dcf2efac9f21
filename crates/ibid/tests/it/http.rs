//! The guard around a real axum router, on the memory store with a manual clock. Longer than most files, because it is
//! a list of independent tests over one small API.

mod policy_keys;
mod proof;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use axum::routing::{get, post, put};
use axum::{Router, response::IntoResponse};
use http_body_util::BodyExt;
use ibid::http::{
    GuardedRequest, IdempotencyLayer, IdempotencyService, MissingIdentityError, PrincipalSource, Routes,
    Rule, TenantSource,
};
use ibid::identity::StoreIdentity;
use ibid::store::clock::{Clock, ClockSetter};
use ibid::store::memory::MemoryStore;
use ibid::{Ibid, Settings};
use ibid_core::policy::{AfterExpiry, BindRule, InFlight, KeyRule, Policy};
use ibid_core::scope::Tenant;
use ibid_core::store::{RecordFilter, Store};
use ibid_core::time::Timestamp;
use ibid_testkit::faults::{FaultyStore, StoreFault};
use tokio::sync::{Notify, Semaphore};
use tower::{Layer, Service, ServiceExt};

/// An API that counts its runs and responds as the request's `x-do` field says.
#[derive(Clone, Default)]
struct Api {
    runs: Arc<AtomicUsize>,
    /// Notified when a run begins.
    begun: Arc<Notify>,
    /// A run with `x-do: gate` waits for a permit.
    gate: Option<Arc<Semaphore>>,
}

struct World {
    api: Api,
    app: IdempotencyService<Router>,
    ibid: Ibid,
    store: Arc<FaultyStore>,
    hands: ClockSetter,
}

async fn world(policy: Policy) -> World {
    world_with(policy, vec![], Settings::default()).await
}

async fn world_with(policy: Policy, rules: Vec<Rule>, settings: Settings) -> World {
    let (clock, hands) = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let store = FaultyStore::new(Arc::new(MemoryStore::new(clock)));
    let routes = Routes::new(policy, rules).expect("good routes");
    let settings = settings.with(|settings| settings.identity = routes.identity("a header"));
    let ibid = Ibid::start(store.clone(), settings).await.expect("it starts");
    let api = Api { gate: Some(Arc::new(Semaphore::new(0))), ..Api::default() };
    let router = Router::new()
        .route("/pay", post(handle).patch(handle).put(handle).get(handle).delete(handle))
        .route("/other", post(handle))
        .route(
            "/who",
            post(async |guarded: GuardedRequest| format!("{}:{}", guarded.key.as_str(), guarded.attempt)),
        )
        .route("/plain", get(async || "plain"))
        .route("/things/{id}", put(handle))
        .with_state(api.clone());
    let tenants = TenantSource::by(|head| match head.headers.get("x-tenant") {
        Some(name) => {
            Tenant::new(name.to_str().map_err(|_| MissingIdentityError)?).map_err(|_| MissingIdentityError)
        }
        None => Err(MissingIdentityError),
    });
    let app = IdempotencyLayer::with_routes(ibid.clone(), tenants, routes).layer(router);
    World { api, app, ibid, store, hands }
}

async fn handle(State(api): State<Api>, headers: HeaderMap, body: Bytes) -> Response<Body> {
    let run = api.runs.fetch_add(1, Ordering::SeqCst) + 1;
    api.begun.notify_one();
    let text = format!("run {run}: {}", String::from_utf8_lossy(&body));
    let wanted = headers.get("x-do").and_then(|value| value.to_str().ok()).unwrap_or("201").to_owned();
    if let Ok(status) = wanted.parse::<u16>() {
        let status = StatusCode::from_u16(status).unwrap();
        return match status {
            StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED => status.into_response(),
            _ => (status, [("location", format!("/things/{run}"))], text).into_response(),
        };
    }
    // `503; ibid-outcome: executed` is a status and field lines.
    if let Some((status, lines)) = wanted.split_once("; ") {
        let mut response = (StatusCode::from_bytes(status.as_bytes()).unwrap(), text).into_response();
        for (name, value) in lines.split("; ").map(|line| line.split_once(": ").unwrap()) {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            response.headers_mut().append(name, HeaderValue::from_str(value).unwrap());
        }
        return response;
    }
    match wanted.as_str() {
        "gate" => {
            let gate = api.gate.expect("a gate");
            gate.acquire().await.expect("an open gate").forget();
            (StatusCode::CREATED, text).into_response()
        }
        "panic" => panic!("the handler breaks down"),
        "retry-after" => (StatusCode::CONFLICT, [("retry-after", "1")], text).into_response(),
        "large" => (StatusCode::CREATED, vec![b'x'; 3000]).into_response(),
        "executed" => {
            let mut response = (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
            response.extensions_mut().insert(ibid::http::ExecutionHint::Executed);
            response
        }
        "large-not-executed" => {
            (StatusCode::CREATED, [("ibid-outcome", "not-executed")], vec![b'x'; 3000]).into_response()
        }
        "trailer" => {
            let mut trailers = HeaderMap::new();
            trailers.insert("ibid-outcome", HeaderValue::from_static("not-executed"));
            let body =
                http_body_util::Full::new(Bytes::from(text)).with_trailers(async { Some(Ok(trailers)) });
            (StatusCode::SERVICE_UNAVAILABLE, Body::new(body)).into_response()
        }
        "large-503" => (StatusCode::SERVICE_UNAVAILABLE, vec![b'x'; 3000]).into_response(),
        "stream" => (StatusCode::OK, [("content-type", "text/event-stream")], "data: 1\n\n").into_response(),
        "accepts" => headers
            .get("accept-encoding")
            .cloned()
            .map_or("none".into_response(), |v| (StatusCode::CREATED, v.as_bytes().to_vec()).into_response()),
        "cut" => {
            let broken =
                futures_util::stream::iter([Ok(Bytes::from("half")), Err(std::io::Error::other("cut"))]);
            Body::from_stream(broken).into_response()
        }
        "odd-headers" => {
            let mut response = (StatusCode::CREATED, text).into_response();
            let lines: [(&str, &[u8]); 12] = [
                ("link", b"<a>; rel=\"x, y\""),
                ("link", b"<b>"),
                ("x-raw", b"caf\xe9"),
                ("set-cookie", b"session=1"),
                ("www-authenticate", b"Basic"),
                ("access-control-allow-origin", b"https://a.example"),
                ("ratelimit", b"\"p\";r=1"),
                ("connection", b"x-mine"),
                ("x-mine", b"1"),
                ("dpop-nonce", b"1"),
                ("x-route", b"1"),
                ("cache-control", b"public, max-age=60"),
            ];
            for (name, value) in lines {
                let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
                response.headers_mut().append(name, HeaderValue::from_bytes(value).unwrap());
            }
            response
        }
        other => panic!("what is `{other}`?"),
    }
}

/// A response whose body is read to its end.
struct AttemptResponse {
    status: u16,
    headers: HeaderMap,
    body: Bytes,
}

impl AttemptResponse {
    fn text(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("text"))
    }

    fn problem(&self) -> String {
        let body: serde_json::Value = serde_json::from_slice(&self.body).expect("problem+json");
        assert_eq!(self.text("content-type"), Some("application/problem+json"));
        assert_eq!(self.text("cache-control"), Some("no-store"));
        assert_eq!(body["status"], self.status);
        body["type"].as_str().unwrap().strip_prefix("urn:ibid:problem:").unwrap().to_owned()
    }

    fn is_replay(&self) -> bool {
        self.text("idempotent-replayed") == Some("true")
    }
}

struct Post {
    request: axum::http::request::Builder,
    body: Body,
}

fn post_to(path: &str) -> Post {
    Post { request: Request::post(path).header("x-tenant", "acme"), body: Body::from("b") }
}

fn pay(key: &str) -> Post {
    post_to("/pay").with("idempotency-key", key)
}

impl Post {
    fn with(mut self, name: &str, value: &str) -> Post {
        self.request = self.request.header(name, value);
        self
    }
    fn does(self, what: &str) -> Post {
        self.with("x-do", what)
    }
    fn body(mut self, body: impl Into<Body>) -> Post {
        self.body = body.into();
        self
    }
    fn build(self) -> Request<Body> {
        self.request.body(self.body).expect("a good request")
    }
}

impl World {
    async fn send(&self, post: Post) -> AttemptResponse {
        read(self.app.clone().oneshot(post.build()).await).await
    }

    fn spawn_send(&self, post: Post) -> tokio::task::JoinHandle<AttemptResponse> {
        let call = self.app.clone().oneshot(post.build());
        tokio::spawn(async move { read(call.await).await })
    }

    fn runs(&self) -> usize {
        self.api.runs.load(Ordering::SeqCst)
    }

    fn open_gate(&self, runs: usize) {
        self.api.gate.as_ref().expect("a gate").add_permits(runs);
    }

    async fn records(&self) -> usize {
        self.store
            .browse()
            .expect("a store that can be browsed")
            .list(RecordFilter::default())
            .await
            .unwrap()
            .items
            .len()
    }

    /// Returns the state of the only record.
    async fn state(&self) -> String {
        let records = self
            .store
            .browse()
            .expect("a store that can be browsed")
            .list(RecordFilter::default())
            .await
            .unwrap()
            .items;
        assert_eq!(records.len(), 1, "one record");
        records[0].record.state.name().to_owned()
    }
}

async fn read<B>(answer: Result<Response<B>, Infallible>) -> AttemptResponse
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    let Ok(answer) = answer;
    let (head, body) = answer.into_parts();
    let body = to_bytes(Body::new(body), 1 << 20).await.expect("a whole body");
    AttemptResponse { status: head.status.as_u16(), headers: head.headers, body }
}

#[tokio::test]
async fn a_retry_gets_the_first_answer_marked_and_nothing_runs_twice() {
    let world = world(Policy::default()).await;
    let first = world.send(pay("k1")).await;
    assert_eq!((first.status, &first.body[..]), (201, &b"run 1: b"[..]));
    assert!(!first.is_replay());
    for key in ["k1", "\"k1\"", "\"k1\";v=2", "k1"] {
        let again = world.send(pay(key)).await;
        assert_eq!((again.status, &again.body), (201, &first.body), "{key}");
        assert!(again.is_replay());
        assert_eq!(again.text("location"), Some("/things/1"));
        assert_eq!(again.text("idempotency-expires"), first.text("idempotency-expires"));
    }
    assert_eq!(first.text("idempotency-expires"), Some("Wed, 15 Nov 2023 22:13:20 GMT"));
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn every_stored_status_is_replayed_as_it_was() {
    let world = world(Policy::default()).await;
    for status in ["200", "201", "204", "301", "304", "400", "404", "409", "422"] {
        let first = world.send(pay(status).does(status)).await;
        let again = world.send(pay(status).does(status)).await;
        assert_eq!(first.status.to_string(), status);
        assert_eq!((again.status, &again.body), (first.status, &first.body), "{status}");
        assert!(again.is_replay(), "{status}");
        if status == "204" || status == "304" {
            assert!(again.body.is_empty() && again.text("content-length").is_none(), "{status}");
        }
    }
    assert_eq!(world.runs(), 9);
}

#[tokio::test]
async fn a_missing_or_unreadable_key_stores_nothing() {
    let world = world(Policy::default()).await;
    let missing = world.send(post_to("/pay")).await;
    assert_eq!((missing.status, missing.problem().as_str()), (400, "key-missing"));
    assert!(missing.text("link").unwrap().contains("rel=\"describedby\""));
    let too_long = "k".repeat(256);
    for bad in ["", "\"\"", "a b", "\"abc", "a,b", "a;b", "a\"b", "\"a\" x", too_long.as_str()] {
        let refused = world.send(pay(bad)).await;
        assert_eq!((refused.status, refused.problem().as_str()), (400, "key-invalid"), "{bad}");
    }
    let mut non_ascii = pay("k").build();
    non_ascii.headers_mut().insert("idempotency-key", HeaderValue::from_bytes(b"caf\xc3\xa9").unwrap());
    assert_eq!(read(world.app.clone().oneshot(non_ascii).await).await.status, 400);
    let twice = world.send(pay("a").with("idempotency-key", "a")).await;
    assert_eq!((twice.status, twice.problem().as_str()), (400, "key-invalid"));
    assert_eq!((world.runs(), world.records().await), (0, 0));
    assert_eq!(world.send(pay(&"k".repeat(255))).await.status, 201);
}

#[tokio::test]
async fn a_mismatch_is_refused_in_every_state_before_409() {
    let world = world(Policy::default().with(|policy| policy.wait = Duration::ZERO)).await;
    let running = world.spawn_send(pay("k").does("gate"));
    world.api.begun.notified().await;
    let other = || pay("k").does("gate").body("other");
    assert_eq!(world.send(other()).await.problem(), "key-reused");
    let same = world.send(pay("k").does("gate")).await;
    assert_eq!((same.status, same.problem().as_str()), (409, "request-in-progress"));
    world.open_gate(1);
    assert_eq!(running.await.unwrap().status, 201);
    for _ in 0..3 {
        let refused = world.send(other()).await;
        assert_eq!((refused.status, refused.problem().as_str()), (422, "key-reused"));
        assert!(!String::from_utf8_lossy(&refused.body).contains("run 1"), "no stored answer in it");
    }
    let query = post_to("/pay?to=mallory").with("idempotency-key", "k").does("gate");
    assert_eq!(world.send(query).await.status, 422);
    world.send(pay("u").does("500")).await;
    assert_eq!(world.send(pay("u").does("500").body("other")).await.status, 422, "unknown");
    world.send(pay("r").does("429")).await;
    assert_eq!(world.send(pay("r").body("other")).await.status, 422, "retryable");
    assert_eq!(world.runs(), 3);
}

#[tokio::test]
async fn forty_at_once_run_once_and_get_equal_answers() {
    let world = world(Policy::default()).await;
    let all: Vec<_> = (0..40).map(|_| world.spawn_send(pay("k").does("gate"))).collect();
    world.api.begun.notified().await;
    world.open_gate(40);
    let mut replays = 0;
    for answer in all {
        let answer = answer.await.unwrap();
        assert_eq!((answer.status, &answer.body[..]), (201, &b"run 1: b"[..]));
        replays += usize::from(answer.is_replay());
    }
    assert_eq!((world.runs(), replays), (1, 39));
}

#[tokio::test]
async fn a_client_that_will_not_wait_gets_409_with_retry_after() {
    let world = world(Policy::default()).await;
    let running = world.spawn_send(pay("k/1").does("gate"));
    world.api.begun.notified().await;
    let refused = world.send(pay("k/1").does("gate").with("prefer", "wait=0")).await;
    assert_eq!((refused.status, refused.problem().as_str()), (409, "request-in-progress"));
    assert_eq!(refused.text("retry-after"), Some("1"));
    let links: Vec<_> = refused.headers.get_all("link").iter().map(|v| v.to_str().unwrap()).collect();
    assert!(links.contains(&"</.ibid/keys/k%2F1?method=POST&path=%2Fpay>; rel=\"monitor\""), "{links:?}");
    world.open_gate(1);
    running.await.unwrap();
}

#[tokio::test]
async fn in_flight_conflict_refuses_at_once() {
    let world = world(Policy::default().with(|policy| policy.in_flight = InFlight::Conflict)).await;
    let running = world.spawn_send(pay("k").does("gate"));
    world.api.begun.notified().await;
    assert_eq!(world.send(pay("k").does("gate")).await.status, 409);
    world.open_gate(1);
    assert_eq!(running.await.unwrap().status, 201);
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_status_on_the_release_list_releases_the_key() {
    let world = world(Policy::default()).await;
    for free in ["425", "429", "501", "retry-after"] {
        let refused = world.send(pay(free).does(free)).await;
        assert!(refused.text("idempotency-expires").is_none());
        let again = world.send(pay(free)).await;
        assert_eq!((again.status, again.is_replay()), (201, false), "{free}");
        assert!(world.send(pay(free)).await.is_replay());
    }
    assert_eq!(world.runs(), 8);
}

#[tokio::test]
async fn after_401_and_403_the_key_may_come_back_with_another_request() {
    let world = world(Policy::default()).await;
    for status in ["401", "403"] {
        assert_eq!(world.send(pay(status).does(status)).await.status.to_string(), status);
        let other = world.send(pay(status).body("other")).await;
        assert_eq!((other.status, other.is_replay()), (201, false));
        assert_eq!(world.send(pay(status)).await.status, 422, "now it stands for the other request");
    }
}

#[tokio::test]
async fn a_server_error_panic_or_cut_response_never_runs_again() {
    let world = world(Policy::default()).await;
    for (what, status) in
        [("500", 500), ("503", 503), ("408", 408), ("504", 504), ("panic", 500), ("cut", 502)]
    {
        let runs = world.runs();
        assert_eq!(world.send(pay(what).does(what)).await.status, status, "{what}");
        for _ in 0..3 {
            let refused = world.send(pay(what).does(what)).await;
            assert_eq!((refused.status, refused.problem().as_str()), (409, "outcome-unknown"), "{what}");
            assert_eq!(refused.text("retry-after"), Some("60"), "a late answer may still come");
            assert!(String::from_utf8_lossy(&refused.body).contains("\"retry\":\"same-key\""));
        }
        world.hands.advance(Duration::from_secs(60));
        let refused = world.send(pay(what).does(what)).await;
        assert_eq!(refused.text("retry-after"), None, "a dead letter: a retry does not help");
        assert!(String::from_utf8_lossy(&refused.body).contains("\"retry\":\"never\""));
        assert_eq!(world.runs(), runs + 1, "{what}");
    }
}

#[tokio::test]
async fn forty_waiters_on_a_request_that_fails_never_run_it() {
    for (what, problem) in
        [("429", "request-in-progress"), ("500", "outcome-unknown"), ("503", "outcome-unknown")]
    {
        let world = world(Policy::default()).await;
        let gated = world.spawn_send(pay("k").does("gate"));
        world.api.begun.notified().await;
        drop(gated);
        let waiters: Vec<_> = (0..40).map(|_| world.spawn_send(pay("k").does("gate"))).collect();
        while world.ibid.waiting() < 40 {
            tokio::task::yield_now().await;
        }
        // The gate stays shut. The test ends the record itself, with the status in question.
        let stored = world
            .store
            .browse()
            .expect("a store that can be browsed")
            .list(RecordFilter::default())
            .await
            .unwrap()
            .items
            .remove(0);
        end_by_hand(&world, stored, what).await;
        for waiter in waiters {
            let refused = waiter.await.unwrap();
            assert_eq!((refused.status, refused.problem().as_str()), (409, problem));
        }
        assert_eq!(world.runs(), 1);
    }
}

/// Writes the end of a running record as its own attempt would.
async fn end_by_hand(world: &World, stored: ibid_core::change::StoredRecord, status: &str) {
    use ibid_core::machine::{AttemptResponse, Event, Verdict, decide};
    // A stored response: a 5xx counts only if it was read to its end.
    let response = Arc::new(ibid_core::response::Response::plain(503, "text/plain", String::new()));
    let answer = AttemptResponse {
        status: status.parse().unwrap(),
        retry_after: false,
        kept: Some(response),
        provider_id: None,
        proof: None,
    };
    let nonce = ibid_core::record::Nonce(7);
    let event = Event::Answered { begun: &stored.record, nonce, answer: &answer };
    let Verdict::Write(change, _) = decide(Some(&stored.record), &event, stored.now) else {
        panic!("it writes")
    };
    let fate = world.store.commit(change, None).await;
    assert!(matches!(fate, Ok(ibid_core::change::Commit::Done(_))));
}

#[tokio::test]
async fn a_client_that_hangs_up_finds_its_answer_stored() {
    let world = world(Policy::default()).await;
    let hung_up = world.spawn_send(pay("k").does("gate"));
    world.api.begun.notified().await;
    hung_up.abort();
    assert!(hung_up.await.is_err());
    world.open_gate(1);
    let retry = world.send(pay("k").does("gate")).await;
    assert_eq!((retry.status, retry.is_replay(), world.runs()), (201, true, 1));
}

/// On one thread, a task that the call has spawned does not run between the last poll and the drop. So one of the rounds
/// drops the client just after its begin was committed and its run was spawned.
#[tokio::test]
async fn a_client_that_left_before_the_run_releases_its_key() {
    let mut released = 0;
    for polls in 1.. {
        let world = world(Policy::default()).await;
        let mut call = Box::pin(world.app.clone().oneshot(pay("k").build()));
        for poll in 0..polls {
            if poll > 0 {
                tokio::task::yield_now().await;
            }
            if futures_util::poll!(&mut call).is_ready() {
                assert!(released > 0, "no round left a reserved key");
                return;
            }
        }
        let had_run = world.runs() > 0;
        drop(call);
        world.ibid.settled().await;
        if !had_run {
            assert_eq!(world.runs(), 0, "the handler ran for a client that left after {polls} polls");
            if world.records().await > 0 {
                assert_eq!(world.state().await, "retryable", "after {polls} polls");
                released += 1;
            }
        }
        // No lease has lapsed: the clock is manual and does not move.
        let retry = world.send(pay("k")).await;
        assert_eq!((retry.status, retry.is_replay(), world.runs()), (201, had_run, 1), "after {polls} polls");
    }
}

#[tokio::test]
async fn a_request_dropped_at_any_await_executes_at_most_once() {
    for polls in 1.. {
        let world = world(Policy::default()).await;
        let pieces = futures_util::stream::unfold(0, async |piece| {
            tokio::task::yield_now().await;
            (piece < 3).then(|| (Ok::<_, Infallible>(Bytes::from_static(b"b")), piece + 1))
        });
        let request = pay("k").body(Body::from_stream(Box::pin(pieces))).build();
        let mut call = Box::pin(world.app.clone().oneshot(request));
        let mut done = false;
        for _ in 0..polls {
            let polled =
                std::future::poll_fn(|cx| std::task::Poll::Ready(call.as_mut().poll(cx).is_ready())).await;
            if polled {
                done = true;
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(call);
        // The request that was begun ends by itself, by its run or by the release of its key. A retry before that end is a
        // duplicate, and a duplicate never runs. After it, the retry gets the response or runs for the first time.
        world.ibid.settled().await;
        let retry = world.send(pay("k").body("bbb")).await;
        assert_eq!((retry.status, &retry.body[..]), (201, &b"run 1: bbb"[..]), "dropped after {polls} polls");
        assert_eq!(
            (world.runs(), world.state().await.as_str()),
            (1, "completed"),
            "dropped after {polls} polls"
        );
        if done {
            assert!(polls > 5, "the call has several awaits");
            return;
        }
    }
}

#[tokio::test]
async fn a_body_over_the_limit_is_413_and_leaves_no_record() {
    let world = world(Policy::default().with(|policy| policy.max_request_body = 10)).await;
    let chunks = |n: usize| {
        let parts = (0..n).map(|_| Ok::<_, Infallible>(Bytes::from_static(b"12345")));
        Body::from_stream(futures_util::stream::iter(parts))
    };
    for body in [Body::from("12345678901"), chunks(3)] {
        let refused = world.send(pay("k").body(body)).await;
        assert_eq!((refused.status, refused.problem().as_str()), (413, "body-too-large"));
    }
    let declared = world.send(pay("k").with("content-length", "11").body(chunks(0))).await;
    assert_eq!(declared.status, 413);
    assert_eq!((world.runs(), world.records().await), (0, 0));
    assert_eq!(&world.send(pay("k").body(chunks(2))).await.body[..], b"run 1: 1234512345");
}

#[tokio::test]
async fn a_body_that_breaks_off_is_refused_and_leaves_no_record() {
    let world = world(Policy::default()).await;
    let parts = [Ok(Bytes::from_static(b"half")), Err(std::io::Error::other("gone"))];
    let refused = world.send(pay("k").body(Body::from_stream(futures_util::stream::iter(parts)))).await;
    assert_eq!((refused.status, refused.problem().as_str()), (400, "body-broken"));
    assert_eq!((world.runs(), world.records().await), (0, 0));
}

#[tokio::test]
async fn a_large_or_streamed_response_never_runs_again() {
    let world = world(Policy::default().with(|policy| policy.max_response_body = 2999)).await;
    for (what, length) in [("large", 3000), ("stream", 9)] {
        let runs = world.runs();
        let first = world.send(pay(what).does(what)).await;
        assert_eq!((first.body.len(), first.text("idempotency-stored")), (length, Some("false")));
        for _ in 0..2 {
            let again = world.send(pay(what).does(what)).await;
            assert_eq!((again.status, again.problem().as_str()), (410, "response-not-retained"));
        }
        assert_eq!(world.runs(), runs + 1);
    }
}

#[tokio::test]
async fn a_server_error_that_is_not_read_to_its_end_proves_nothing() {
    let world = world(Policy::default().with(|policy| policy.max_response_body = 2999)).await;
    let first = world.send(pay("k").does("large-503")).await;
    assert_eq!((first.status, first.body.len()), (503, 3000));
    assert_eq!(world.send(pay("k").does("large-503")).await.problem(), "outcome-unknown");
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_replay_drops_fields_of_one_caller_or_moment() {
    let world = world(Policy::default().with(|policy| policy.not_replayed = vec!["x-route".into()])).await;
    let first = world.send(pay("k").does("odd-headers")).await;
    assert_eq!(first.text("set-cookie"), Some("session=1"), "the first answer is unchanged");
    let again = world.send(pay("k").does("odd-headers")).await;
    assert!(again.is_replay());
    let lines: Vec<_> = again.headers.get_all("link").iter().map(|v| v.as_bytes()).collect();
    assert_eq!(lines, [&b"<a>; rel=\"x, y\""[..], b"<b>"]);
    assert_eq!(again.headers["x-raw"].as_bytes(), b"caf\xe9");
    for gone in [
        "set-cookie",
        "www-authenticate",
        "access-control-allow-origin",
        "ratelimit",
        "connection",
        "x-mine",
        "dpop-nonce",
        "x-route",
    ] {
        assert!(again.headers.get(gone).is_none(), "{gone}");
    }
    assert_eq!(again.text("cache-control"), Some("no-store"));
    let same_origin = world.send(pay("k").does("odd-headers").with("origin", "https://a.example")).await;
    assert_eq!(same_origin.text("access-control-allow-origin"), Some("https://a.example"));
}

#[tokio::test]
async fn an_answer_is_kept_uncoded_so_that_every_retry_can_read_it() {
    let world = world(Policy::default()).await;
    let first = world.send(pay("k").does("accepts").with("accept-encoding", "gzip, br")).await;
    assert_eq!(&first.body[..], b"identity");
}

#[tokio::test]
async fn with_the_store_down_nothing_runs_and_the_client_gets_503() {
    let settings = Settings::default().with(|settings| settings.begin_timeout = Duration::from_millis(50));
    let world = world_with(Policy::default(), vec![], settings).await;
    world.store.set(StoreFault::Down);
    for _ in 0..8 {
        let refused = world.send(pay("k")).await;
        assert_eq!((refused.status, refused.problem().as_str()), (503, "store-unavailable"));
        assert_eq!(refused.text("retry-after"), Some("1"));
        assert!(!String::from_utf8_lossy(&refused.body).contains("faulty"), "no store's name");
    }
    assert_eq!(world.runs(), 0);
    assert!(world.ibid.is_breaker_open());
    world.store.set(StoreFault::None);
    // The releases of the abandoned begins come first; then the next begin finds a healthy store.
    world.ibid.settled().await;
    loop {
        let answer = world.send(pay("k")).await;
        if answer.status == 201 {
            break;
        }
        assert_eq!(answer.status, 503, "the breaker's pause");
        tokio::task::yield_now().await;
    }
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_begin_whose_reply_is_lost_is_recognised_as_ones_own() {
    let world = world(Policy::default()).await;
    world.store.set(StoreFault::LosesReplies);
    let answer = world.spawn_send(pay("k"));
    while world.store.commits() == 0 {
        tokio::task::yield_now().await;
    }
    world.store.set(StoreFault::None);
    let answer = answer.await.unwrap();
    assert_eq!((answer.status, answer.is_replay(), world.runs()), (201, false, 1));
}

#[tokio::test]
async fn a_begin_given_up_is_released_and_the_key_stays_free() {
    let settings = Settings::default().with(|settings| settings.begin_timeout = Duration::from_millis(30));
    let world = world_with(Policy::default(), vec![], settings).await;
    world.store.set(StoreFault::LosesReplies);
    assert_eq!(world.send(pay("k")).await.status, 503);
    assert_ne!(world.records().await, 0, "it was written, and the reply was lost");
    world.store.set(StoreFault::None);
    world.ibid.settled().await;
    assert_eq!(world.state().await, "retryable");
    assert_eq!((world.send(pay("k").body("other")).await.status, world.runs()), (422, 0));
    assert_eq!((world.send(pay("k")).await.status, world.runs()), (201, 1));
}

#[tokio::test]
async fn a_response_not_stored_in_time_is_marked_and_stored_later() {
    let settings = Settings::default().with(|settings| settings.finish_wait = Duration::from_millis(30));
    let world = world_with(Policy::default(), vec![], settings).await;
    let running = world.spawn_send(pay("k").does("gate"));
    world.api.begun.notified().await;
    world.store.set(StoreFault::Down);
    world.open_gate(1);
    let first = running.await.unwrap();
    assert_eq!((first.status, first.text("idempotency-stored")), (201, Some("false")));
    assert_eq!(world.state().await, "in_progress");
    // After the lapse the record becomes unknown, and the queued finish still settles it.
    world.store.set(StoreFault::None);
    world.hands.advance(Duration::from_secs(61));
    world.ibid.settled().await;
    assert_eq!(world.state().await, "completed");
    let retry = world.send(pay("k").does("gate")).await;
    assert_eq!((retry.status, &retry.body, retry.is_replay()), (201, &first.body, true));
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_lapsed_attempts_late_response_settles_the_record() {
    let world = world(Policy::default()).await;
    let running = world.spawn_send(pay("k").does("gate"));
    world.api.begun.notified().await;
    world.hands.advance(Duration::from_secs(61));
    let refused = world.send(pay("k").does("gate")).await;
    assert_eq!((refused.status, refused.problem().as_str()), (409, "outcome-unknown"));
    world.open_gate(1);
    assert_eq!(running.await.unwrap().status, 201);
    assert!(world.send(pay("k").does("gate")).await.is_replay());
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn after_retention_only_a_tombstone_refuses_a_key() {
    let hour = Duration::from_secs(3600);
    let world = world(Policy::default().with(|policy| policy.retention = hour)).await;
    world.send(pay("k")).await;
    world.hands.advance(hour - Duration::from_secs(1));
    assert!(world.send(pay("k")).await.is_replay());
    world.hands.advance(Duration::from_secs(1));
    // The cache of this process uses its own clock; another node has an empty cache.
    let fresh = fresh_node(&world).await;
    let rerun = read(fresh.oneshot(pay("k").body("other").build()).await).await;
    assert_eq!((rerun.status, rerun.is_replay(), world.runs()), (201, false, 2));

    let refuse = Policy::default().with(|policy| {
        policy.retention = hour;
        policy.tombstone = hour;
        policy.after_expiry = AfterExpiry::Refuse;
    });
    let rule = Rule {
        methods: vec![axum::http::Method::POST],
        pattern: "/other".into(),
        policy: Some(refuse),
        reserved_by: Default::default(),
    };
    let world = world_with(Policy::default(), vec![rule], Settings::default()).await;
    let other = || post_to("/other").with("idempotency-key", "k");
    world.send(other()).await;
    world.hands.advance(hour);
    let fresh = fresh_node(&world).await;
    let refused = read(fresh.clone().oneshot(other().build()).await).await;
    assert_eq!((refused.status, refused.problem().as_str()), (410, "key-expired"));
    world.hands.advance(hour);
    assert_eq!(read(fresh.oneshot(other().build()).await).await.status, 201);
    assert_eq!(world.runs(), 2);
}

/// Builds a second guard on the same store, with an empty cache.
async fn fresh_node(world: &World) -> IdempotencyService<Router> {
    let settings = Settings::default().with(|settings| settings.identity = StoreIdentity::new("a header"));
    let ibid = Ibid::start(world.store.clone(), settings).await.expect("it starts");
    let router =
        Router::new().route("/pay", post(handle)).route("/other", post(handle)).with_state(world.api.clone());
    let tenants = TenantSource::by(|_| Tenant::new("acme").map_err(|_| MissingIdentityError));
    IdempotencyLayer::new(ibid, tenants).layer(router)
}

#[tokio::test]
async fn two_nodes_on_one_store_run_a_key_once() {
    let world = world(Policy::default()).await;
    let other = fresh_node(&world).await;
    let running = world.spawn_send(pay("k").does("gate"));
    world.api.begun.notified().await;
    let waiting = tokio::spawn({
        let call = other.clone().oneshot(pay("k").does("gate").build());
        async move { read(call.await).await }
    });
    world.open_gate(2);
    let (first, second) = (running.await.unwrap(), waiting.await.unwrap());
    assert_eq!((&first.body, second.is_replay()), (&second.body, true));
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn tenants_do_not_see_or_touch_each_others_keys() {
    let world = world(Policy::default()).await;
    let of = |tenant: &str| {
        let request = Request::post("/pay").header("x-tenant", tenant).header("idempotency-key", "k");
        Post { request, body: Body::from("b") }
    };
    assert_eq!(&world.send(of("a")).await.body[..], b"run 1: b");
    assert_eq!(&world.send(of("b")).await.body[..], b"run 2: b");
    assert_eq!(&world.send(of("a")).await.body[..], b"run 1: b");
    let nobody = Post { request: Request::post("/pay").header("idempotency-key", "k"), body: Body::empty() };
    let refused = world.send(nobody).await;
    assert_eq!((refused.status, refused.problem().as_str()), (401, "tenant-missing"));

    let page = |tenant: &str, key: &str| Post {
        request: Request::get(format!("/.ibid/keys/{key}?method=POST&path=/pay")).header("x-tenant", tenant),
        body: Body::empty(),
    };
    for (tenant, body) in [("a", b"run 1: b"), ("b", b"run 2: b")] {
        assert_eq!(world.send(page(tenant, "k")).await.status, 200);
        assert_eq!(&world.send(page(tenant, "k/response")).await.body[..], body);
    }
    for (tenant, key) in [("c", "k"), ("a", "x"), ("c", "k/response"), ("a", "x/response")] {
        assert_eq!(world.send(page(tenant, key)).await.status, 404, "{tenant} {key}");
    }
}

#[tokio::test]
async fn a_key_on_another_endpoint_mismatches_only_in_tenant_scope() {
    let world = world(Policy::default()).await;
    world.send(pay("k")).await;
    let elsewhere = || post_to("/other").with("idempotency-key", "k");
    assert!(!world.send(elsewhere()).await.is_replay());
    assert_eq!(world.runs(), 2);

    let stripe = world_with(Policy::stripe(), vec![], Settings::default()).await;
    stripe.send(pay("k")).await;
    let refused = stripe.send(elsewhere()).await;
    let body: serde_json::Value = serde_json::from_slice(&refused.body).unwrap();
    assert_eq!((refused.status, body["error"]["type"].as_str()), (400, Some("idempotency_error")));
    assert_eq!(stripe.runs(), 1);
}

#[tokio::test]
async fn the_stripe_profile_speaks_as_its_clients_expect() {
    let world = world(Policy::stripe().with(|policy| policy.wait = Duration::ZERO)).await;
    let first = world.send(pay("k").does("500")).await;
    assert_eq!(first.text("request-id"), first.text("original-request"));
    assert_eq!(
        (first.text("idempotency-key"), first.text("stripe-should-retry")),
        (Some("k"), Some("false"))
    );
    let again = world.send(pay("k").does("500")).await;
    assert_eq!((again.status, again.is_replay()), (500, true), "errors are replayed");
    assert_eq!(again.text("original-request"), first.text("request-id"));
    assert_ne!(again.text("request-id"), first.text("request-id"));
    assert_eq!(again.text("stripe-should-retry"), Some("false"));
    let freed = world.send(pay("f").does("429")).await;
    assert_eq!((freed.text("idempotency-key"), freed.text("stripe-should-retry")), (Some("f"), None));
    assert!(!world.send(pay("f")).await.is_replay(), "and it may be sent again");
    while futures_util::FutureExt::now_or_never(world.api.begun.notified()).is_some() {}
    let running = world.spawn_send(pay("g").does("gate"));
    world.api.begun.notified().await;
    let busy = world.send(pay("g").does("gate")).await;
    let body: serde_json::Value = serde_json::from_slice(&busy.body).unwrap();
    assert_eq!((busy.status, body["error"]["code"].as_str()), (409, Some("idempotency_key_in_use")));
    world.open_gate(1);
    running.await.unwrap();
}

#[tokio::test]
async fn what_is_not_guarded_passes_untouched() {
    let world = world(Policy::default()).await;
    for method in ["GET", "PUT", "DELETE"] {
        // The same good key twice: an unguarded request runs each time.
        for key in [None, Some("\"bad"), Some("\"good\""), Some("\"good\"")] {
            let mut request = Request::builder().method(method).uri("/pay");
            if let Some(key) = key {
                request = request.header("idempotency-key", key);
            }
            let answer = world.send(Post { request, body: Body::empty() }).await;
            assert_eq!((answer.status, answer.is_replay()), (201, false), "{method} {key:?}");
        }
    }
    assert_eq!((world.runs(), world.records().await), (12, 0));
}

#[tokio::test]
async fn a_rule_guards_put_makes_the_key_optional_or_exempts_a_route() {
    let method = |name: &str| vec![name.parse().unwrap()];
    let optional = Policy::default().with(|policy| policy.key = KeyRule::Optional);
    let rules = vec![
        Rule {
            methods: method("PUT"),
            pattern: "/things/{id}".into(),
            policy: Some(Policy::default()),
            reserved_by: Default::default(),
        },
        Rule {
            methods: method("POST"),
            pattern: "/pay".into(),
            policy: Some(optional),
            reserved_by: Default::default(),
        },
        Rule {
            methods: method("POST"),
            pattern: "/other".into(),
            policy: None,
            reserved_by: Default::default(),
        },
    ];
    let world = world_with(Policy::default(), rules, Settings::default()).await;
    let put = || Post {
        request: Request::put("/things/7").header("x-tenant", "acme").header("idempotency-key", "k"),
        body: Body::from("b"),
    };
    world.send(put()).await;
    assert!(world.send(put()).await.is_replay());
    for _ in 0..2 {
        assert_eq!(world.send(post_to("/pay")).await.status, 201, "no key, no record");
        assert!(!world.send(post_to("/other").with("idempotency-key", "k")).await.is_replay(), "exempt");
    }
    assert_eq!((world.runs(), world.records().await), (5, 1));
    let policy = world.send(Post { request: Request::get("/.ibid/policy"), body: Body::empty() }).await;
    let policy: serde_json::Value = serde_json::from_slice(&policy.body).unwrap();
    assert_eq!(policy["routes"][2]["guard"], "off");
    assert_eq!(policy["routes"][1]["key"], "optional");
    assert_eq!(policy["defaults"]["retention_seconds"], 86400);
    assert_eq!(policy["defaults"]["answer"], "sync");
}

#[tokio::test]
async fn a_key_bound_to_a_principal_is_separate_from_anothers() {
    let policy = Policy::default().with(|policy| policy.bind = BindRule::Principal);
    let world = world(policy.clone()).await;
    let routes = Routes::new(policy, vec![]).expect("good routes");
    let principals = PrincipalSource::by(|head| match head.headers.get("x-user") {
        Some(user) => Ok(user.to_str().map_err(|_| MissingIdentityError)?.to_owned()),
        None => Err(MissingIdentityError),
    });
    let layer = IdempotencyLayer::with_routes(world.ibid.clone(), TenantSource::only(), routes)
        .principals(principals);
    let router = Router::new().route("/pay", post(handle)).with_state(world.api.clone());
    let app = layer.layer(router);
    let send = async |post: Post| read(app.clone().oneshot(post.build()).await).await;
    assert_eq!(&send(pay("k").with("x-user", "ann")).await.body[..], b"run 1: b");
    assert_eq!(&send(pay("k").with("x-user", "bob")).await.body[..], b"run 2: b");
    assert!(send(pay("k").with("x-user", "ann")).await.is_replay());
    assert_eq!(send(pay("k")).await.status, 401, "no tenant");
    let page = |user: &str| Post {
        request: Request::get("/.ibid/keys/k?method=POST&path=/pay").header("x-user", user),
        body: Body::empty(),
    };
    assert_eq!((send(page("ann")).await.status, send(page("eve")).await.status), (200, 404));
}

#[tokio::test]
async fn early_data_is_refused() {
    let world = world(Policy::default()).await;
    // Only `1` is defined, and several lines count as one: any value of the field is believed.
    for value in ["1", "1, 1", "0", ""] {
        let refused = world.send(pay("k").with("early-data", value)).await;
        assert_eq!((refused.status, refused.problem().as_str()), (425, "too-early"), "{value}");
    }
    assert_eq!((world.runs(), world.records().await), (0, 0));
}

#[tokio::test]
async fn a_handler_learns_its_key_and_which_run_it_is() {
    let world = world(Policy::default()).await;
    assert_eq!(&world.send(post_to("/who").with("idempotency-key", "k")).await.body[..], b"k:1");
}

#[tokio::test(start_paused = true)]
async fn a_timed_out_handlers_late_response_settles_the_record() {
    let world = world(Policy::default()).await;
    let first = world.send(pay("k").does("gate")).await;
    assert_eq!((first.status, first.problem().as_str()), (504, "outcome-unknown"));
    assert_eq!(world.send(pay("k").does("gate")).await.problem(), "outcome-unknown");
    world.open_gate(1);
    let late = loop {
        let answer = world.send(pay("k").does("gate")).await;
        if answer.status != 409 {
            break answer;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!((late.status, late.is_replay(), world.runs()), (201, true, 1));
}

#[tokio::test]
async fn the_status_page_shows_the_state_and_the_stored_answer() {
    let world = world(Policy::default()).await;
    let page = |tail: &str| Post {
        request: Request::get(format!("/.ibid/keys/k{tail}?method=POST&path=%2Fpay"))
            .header("x-tenant", "acme"),
        body: Body::empty(),
    };
    let running = world.spawn_send(pay("k").does("gate"));
    world.api.begun.notified().await;
    let state = |answer: &AttemptResponse| serde_json::from_slice::<serde_json::Value>(&answer.body).unwrap();
    assert_eq!(state(&world.send(page("")).await)["state"], "in_progress");
    assert_eq!(world.send(page("/response")).await.status, 409);
    world.open_gate(1);
    let first = running.await.unwrap();
    let shown = state(&world.send(page("")).await);
    assert_eq!(
        (&shown["state"], &shown["outcome"], &shown["status"]),
        (&"completed".into(), &"success".into(), &201.into())
    );
    let again = world.send(page("/response")).await;
    assert_eq!((again.status, &again.body, again.is_replay()), (201, &first.body, true));
    let problem = Post { request: Request::get("/.ibid/problems/key-reused"), body: Body::empty() };
    assert_eq!(world.send(problem).await.status, 200);
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn nested_routers_do_not_take_each_others_records() {
    let world = world(Policy::default()).await;
    let guarded = || {
        let layer = IdempotencyLayer::new(world.ibid.clone(), TenantSource::only());
        Router::new().route("/pay", post(handle)).with_state(world.api.clone()).layer(layer)
    };
    let app = Router::new().nest("/a", guarded()).nest("/b", guarded());
    let send = async |path: &str| {
        let request = post_to(path).with("idempotency-key", "k").build();
        read(app.clone().oneshot(request).await).await
    };
    assert_eq!(&send("/a/pay").await.body[..], b"run 1: b");
    assert_eq!(&send("/b/pay").await.body[..], b"run 2: b");
    assert!(send("/a/pay").await.is_replay());
}

#[tokio::test]
async fn a_ready_service_is_the_one_that_is_called() {
    let world = world(Policy::default()).await;
    let mut app = world.app.clone();
    let answer = ServiceExt::<Request<Body>>::ready(&mut app).await.unwrap().call(pay("k").build()).await;
    assert_eq!(read(answer).await.status, 201);
}
