//! A request that lapsed or left an in-doubt call resumes behind the guard of a real router: by the sweeper, without a
//! client, and by the client's next request.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Request, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use ibid::http::{
    GuardedRequest, HeldAttempt, IdempotencyLayer, IdempotencyService, MissingIdentityError, Routes,
    TenantSource,
};
use ibid::phase::{Care, OutsideCallError, PhaseError};
use ibid::transaction::TxError;
use ibid::upkeep;
use ibid_core::record::State as RecordState;
use ibid_core::scope::Tenant;
use tokio::sync::{Notify, Semaphore};
use tower::{Layer, ServiceExt};

use crate::adapters::{Adapter, PATIENT};
use crate::transaction::harness::{NodeOnDatabase, pay, until};

/// An API whose handler works in three phases.
struct Api<A: Adapter> {
    world: NodeOnDatabase<A>,
    /// Runs that reached the charge, and what they saw of their request.
    came: Mutex<Vec<String>>,
    at_charge: Notify,
    /// A charge waits here for a permit.
    gate: Semaphore,
    charges: AtomicU32,
    /// Number of further charges whose responses are lost.
    lost: AtomicU32,
}

impl<A: Adapter> Api<A> {
    /// Checks that the resumed run, which has passed the charge, charged once.
    async fn charged_once(&self) {
        self.at_charge.notified().await;
        assert_eq!(self.charges.swap(0, Ordering::SeqCst), 1);
    }
}

pub(super) async fn every_rule<A: Adapter>(world: NodeOnDatabase<A>) {
    let api = Arc::new(Api {
        world,
        came: Mutex::default(),
        at_charge: Notify::new(),
        gate: Semaphore::new(0),
        charges: AtomicU32::new(0),
        lost: AtomicU32::new(0),
    });
    the_sweeper_goes_on_without_the_client(&api).await;
    the_next_request_goes_on(&api).await;
    a_nested_router_is_resumed_where_it_is(&api).await;
    the_sweeper_goes_on_after_a_call_in_doubt(&api).await;
    the_sweeper_gives_up_a_call_whose_key_may_be_forgotten(&api).await;
}

async fn ride<A: Adapter>(
    State(api): State<Arc<Api<A>>>,
    guarded: GuardedRequest,
    mut held: HeldAttempt,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, HandlerError> {
    let key = guarded.key.as_str();
    let id: String = held
        .phase("ride", &api.world.db, async |mut inside| {
            pay(&mut *inside, key, "ride").await?;
            Ok::<_, TxError>(format!("ride {}", inside.number()))
        })
        .await
        .map_err(|error| HandlerError(format!("{error:?}")))?;
    api.came.lock().unwrap().push(format!(
        "{} {} {} {} auth: {} tenant: {}",
        guarded.attempt,
        uri,
        headers["x-trace"].to_str().unwrap(),
        String::from_utf8_lossy(&body),
        headers.contains_key("authorization"),
        guarded.tenant.as_str(),
    ));
    let charge: Result<String, PhaseError<()>> = held
        .outside("charge", Care::Repeatable, async |key| {
            if api.lost.load(Ordering::SeqCst) > 0 {
                api.lost.fetch_sub(1, Ordering::SeqCst);
                return Err(OutsideCallError::Uncertain(()));
            }
            api.at_charge.notify_one();
            let permit = api.gate.acquire().await.map_err(|_| OutsideCallError::Uncertain(()))?;
            permit.forget();
            api.charges.fetch_add(1, Ordering::SeqCst);
            Ok(key.into_string())
        })
        .await;
    charge.map_err(|error| HandlerError(format!("{error:?}")))?;
    let receipt = held.phase("receipt", &api.world.db, async |mut inside| {
        pay(&mut *inside, key, "receipt").await?;
        Ok::<_, TxError>(format!("receipt {}", inside.number()))
    });
    let receipt = receipt.await.map_err(|error| HandlerError(format!("{error:?}")))?;
    Ok((StatusCode::CREATED, format!("{id}, {receipt}")).into_response())
}

struct HandlerError(String);

impl IntoResponse for HandlerError {
    fn into_response(self) -> Response {
        (StatusCode::INTERNAL_SERVER_ERROR, self.0).into_response()
    }
}

/// Starts a process: a separate engine and a guard in front of the API. The credential names the tenant.
async fn process<A: Adapter>(api: &Arc<Api<A>>) -> (ibid::Ibid, IdempotencyService<Router>) {
    let ibid = api.world.other_node().await;
    let router = Router::new().route("/rides", post(ride::<A>)).with_state(api.clone());
    (ibid.clone(), layer(ibid).resumes::<_, Body, _>(router.clone()).layer(router))
}

fn layer(ibid: ibid::Ibid) -> IdempotencyLayer {
    let tenants = TenantSource::by(|head| match head.headers.get("authorization") {
        Some(token) => {
            Tenant::new(token.to_str().map_err(|_| MissingIdentityError)?).map_err(|_| MissingIdentityError)
        }
        None => Err(MissingIdentityError),
    });
    IdempotencyLayer::with_routes(ibid, tenants, Routes::new(super::policy(), vec![]).unwrap())
}

fn request(path: &str, key: &str) -> Request<Body> {
    let request = Request::post(path).header("idempotency-key", key).header("authorization", "tina");
    request.header("x-trace", "t1").body(Body::from("{\"to\":\"x\"}")).unwrap()
}

/// Sends a request whose process dies at the charge: the ride is committed, and the lease lapses.
async fn dies_at_the_charge<A: Adapter, S>(api: &Arc<Api<A>>, service: S, path: &str, key: &str)
where
    S: tower::Service<Request<Body>, Error = std::convert::Infallible> + Send + 'static,
    S::Future: Send,
    S::Response: Send,
{
    // A separate runtime represents the process: every task ends with it, and nothing is released.
    let request = request(path, key);
    let (done, api_) = (Arc::new(Notify::new()), api.clone());
    let ended = done.clone();
    let process = std::thread::spawn(move || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.spawn(service.oneshot(request));
        runtime.block_on(api_.at_charge.notified());
        runtime.shutdown_timeout(PATIENT);
        ended.notify_one();
    });
    done.notified().await;
    process.join().unwrap();
    api.world.lapse(key).await;
}

async fn the_sweeper_goes_on_without_the_client<A: Adapter>(api: &Arc<Api<A>>) {
    let (_, first) = process(api).await;
    dies_at_the_charge(api, first, "/rides", "swept").await;
    assert_eq!(api.world.payments("swept").await, 1);
    let (bob, second) = process(api).await;
    api.gate.add_permits(1);
    until(async || upkeep::sweep_once(&bob).await.unwrap() == 1).await;
    bob.settled().await;

    let answer = second.oneshot(request("/rides", "swept")).await.unwrap();
    assert_eq!(answer.headers()["idempotent-replayed"], "true");
    assert_eq!(text(answer).await, "201 ride 1, receipt 2");
    assert_eq!(api.world.payments("swept").await, 2);
    api.charged_once().await;
    let came = std::mem::take(&mut *api.came.lock().unwrap());
    assert_eq!(
        came,
        [
            "1 /rides t1 {\"to\":\"x\"} auth: true tenant: tina",
            "2 /rides t1 {\"to\":\"x\"} auth: false tenant: tina"
        ]
    );
}

async fn the_next_request_goes_on<A: Adapter>(api: &Arc<Api<A>>) {
    let (_, first) = process(api).await;
    dies_at_the_charge(api, first, "/rides", "asked").await;
    let (_, second) = process(api).await;
    api.gate.add_permits(1);
    let answer = second.clone().oneshot(request("/rides", "asked")).await.unwrap();
    assert!(!answer.headers().contains_key("idempotent-replayed"));
    assert_eq!(text(answer).await, "201 ride 1, receipt 2");
    let answer = second.oneshot(request("/rides", "asked")).await.unwrap();
    assert_eq!(answer.headers()["idempotent-replayed"], "true");
    assert_eq!(text(answer).await, "201 ride 1, receipt 2");
    assert_eq!(api.world.payments("asked").await, 2);
    api.charged_once().await;
}

/// The guard is inside a nested router, whose services see only the rest of the path.
async fn a_nested_router_is_resumed_where_it_is<A: Adapter>(api: &Arc<Api<A>>) {
    let nested = async || {
        let ibid = api.world.other_node().await;
        let router = Router::new().route("/rides", post(ride::<A>)).with_state(api.clone());
        let guard = layer(ibid.clone()).resumes::<_, Body, _>(router.clone());
        (ibid, Router::new().nest_service("/v1", guard.layer(router)))
    };
    let (_, first) = nested().await;
    dies_at_the_charge(api, first, "/v1/rides", "nested").await;
    let (bob, second) = nested().await;
    api.gate.add_permits(1);
    until(async || upkeep::sweep_once(&bob).await.unwrap() == 1).await;
    bob.settled().await;
    let answer = second.oneshot(request("/v1/rides", "nested")).await.unwrap();
    assert_eq!(answer.headers()["idempotent-replayed"], "true");
    assert_eq!(text(answer).await, "201 ride 1, receipt 2");
    api.charged_once().await;
    assert_eq!(api.world.payments("nested").await, 2);
}

/// Counts the records under this key that are in this state, dead letters or not.
async fn standing<A: Adapter>(api: &Arc<Api<A>>, key: &str, state: RecordState, dead_letter: bool) -> i64 {
    let (state, flags) = (state.code(), u8::from(dead_letter));
    let sql = format!(
        "select count(*) from ibid_record where key = '{key}' and state = {state} and flags & 1 = {flags}"
    );
    api.world.number(&sql).await
}

/// The client got an error and does not retry. The responses to the first two charges are lost.
async fn the_sweeper_goes_on_after_a_call_in_doubt<A: Adapter>(api: &Arc<Api<A>>) {
    let (bob, guard) = process(api).await;
    api.lost.store(2, Ordering::SeqCst);
    let answer = guard.clone().oneshot(request("/rides", "in-doubt")).await.unwrap();
    assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
    for run in 2..=3 {
        until(async || standing(api, "in-doubt", RecordState::Retryable, false).await == 1).await;
        // The sweeper does nothing before the record is due.
        assert_eq!(upkeep::sweep_once(&bob).await.unwrap(), 0);
        api.world.lapse("in-doubt").await;
        api.gate.add_permits(usize::from(run == 3));
        assert_eq!(upkeep::sweep_once(&bob).await.unwrap(), 1);
        bob.settled().await;
    }
    let answer = guard.oneshot(request("/rides", "in-doubt")).await.unwrap();
    assert_eq!(answer.headers()["idempotent-replayed"], "true");
    assert_eq!(text(answer).await, "201 ride 1, receipt 3");
    api.charged_once().await;
    assert_eq!(api.world.payments("in-doubt").await, 2);
}

async fn the_sweeper_gives_up_a_call_whose_key_may_be_forgotten<A: Adapter>(api: &Arc<Api<A>>) {
    let (bob, guard) = process(api).await;
    api.lost.store(1, Ordering::SeqCst);
    let answer = guard.oneshot(request("/rides", "forgotten")).await.unwrap();
    assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
    until(async || standing(api, "forgotten", RecordState::Retryable, false).await == 1).await;
    api.world.grow_older("forgotten", 25).await;
    api.world.lapse("forgotten").await;
    assert_eq!(upkeep::sweep_once(&bob).await.unwrap(), 1);
    bob.settled().await;
    assert_eq!(standing(api, "forgotten", RecordState::Unknown, true).await, 1, "it is a dead letter");
    assert_eq!(api.charges.load(Ordering::SeqCst), 0, "no second call was made");
}

async fn text<B>(answer: axum::http::Response<B>) -> String
where
    B: axum::body::HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let status = answer.status().as_u16();
    let body = to_bytes(Body::new(answer.into_body()), 1 << 20).await.unwrap();
    format!("{status} {}", String::from_utf8_lossy(&body))
}
