//! The guard around a real axum router with one small API, on the memory store with a manual clock.

mod dropped_clients;
mod duplicates;
mod guarded_routes;
mod handler_results;
mod key_scopes;
mod policy_keys;
mod proof;
mod refusals;
mod store_faults;
mod stored_responses;

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
    GuardedRequest, IdempotencyLayer, IdempotencyService, MissingIdentityError, Routes, Rule, TenantSource,
};
use ibid::identity::StoreIdentity;
use ibid::store::clock::{Clock, ClockSetter};
use ibid::store::memory::MemoryStore;
use ibid::{Ibid, Settings};
use ibid_core::policy::Policy;
use ibid_core::scope::Tenant;
use ibid_core::store::{RecordFilter, Store};
use ibid_core::time::Timestamp;
use ibid_testkit::faults::FaultyStore;
use tokio::sync::{Notify, Semaphore};
use tower::{Layer, ServiceExt};

/// An API that counts its runs and responds as the request's `x-do` field says.
#[derive(Clone, Default)]
struct Api {
    runs: Arc<AtomicUsize>,
    /// Notified when a run begins.
    begun: Arc<Notify>,
    /// A run with `x-do: gate` waits for a permit.
    gate: Option<Arc<Semaphore>>,
}

/// An application behind the layer, on a store that the test can make fail.
struct GuardedApp {
    api: Api,
    app: IdempotencyService<Router>,
    ibid: Ibid,
    store: Arc<FaultyStore>,
    hands: ClockSetter,
}

async fn world(policy: Policy) -> GuardedApp {
    world_with(policy, vec![], Settings::default()).await
}

async fn world_with(policy: Policy, rules: Vec<Rule>, settings: Settings) -> GuardedApp {
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
    GuardedApp { api, app, ibid, store, hands }
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
        let response = (StatusCode::from_bytes(status.as_bytes()).unwrap(), text).into_response();
        let lines = lines.split("; ").map(|line| line.split_once(": ").unwrap());
        return with_fields(response, lines.map(|(name, value)| (name, value.as_bytes())));
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
        "odd-headers" => with_fields((StatusCode::CREATED, text).into_response(), ODD_FIELDS),
        other => panic!("what is `{other}`?"),
    }
}

/// Appends field lines to a response.
fn with_fields<'a>(
    mut response: Response<Body>,
    lines: impl IntoIterator<Item = (&'a str, &'a [u8])>,
) -> Response<Body> {
    for (name, value) in lines {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        response.headers_mut().append(name, HeaderValue::from_bytes(value).unwrap());
    }
    response
}

/// Fields that occur twice, are no text, or belong to one caller or moment.
const ODD_FIELDS: [(&str, &[u8]); 12] = [
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

impl GuardedApp {
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

/// Builds a second guard on the same store, with an empty cache.
async fn fresh_node(world: &GuardedApp) -> IdempotencyService<Router> {
    let settings = Settings::default().with(|settings| settings.identity = StoreIdentity::new("a header"));
    let ibid = Ibid::start(world.store.clone(), settings).await.expect("it starts");
    let router =
        Router::new().route("/pay", post(handle)).route("/other", post(handle)).with_state(world.api.clone());
    let tenants = TenantSource::by(|_| Tenant::new("acme").map_err(|_| MissingIdentityError));
    IdempotencyLayer::new(ibid, tenants).layer(router)
}
