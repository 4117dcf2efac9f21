//! The guard around an axum router whose answers come later, on the memory store with a clock that the test moves and the
//! chores beside it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Request, StatusCode};
use axum::routing::post;
use ibid::http::{Guard, GuardLayer, Guarded, Routes, Tenants};
use ibid::store::clock::{Clock, Hands};
use ibid::store::memory::MemoryStore;
use ibid::upkeep::{self, Keep, Schedule};
use ibid::{Ibid, Settings};
use ibid_core::policy::{AnswerRule, OnLapse, Policy};
use ibid_core::record::{Record, State as RecordState};
use ibid_core::store::{Browse, Filter, Store};
use ibid_core::time::Timestamp;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tower::{Layer, ServiceExt};

/// Answers 503 until it has been asked `busy` times, and once it has a permit.
#[derive(Clone)]
struct Api {
    runs: Arc<AtomicUsize>,
    busy: usize,
    gate: Arc<Semaphore>,
}

async fn handle(
    State(api): State<Api>,
    guarded: Guarded,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, String) {
    api.gate.acquire().await.expect("a gate").forget();
    if api.runs.fetch_add(1, Ordering::SeqCst) < api.busy {
        return (StatusCode::SERVICE_UNAVAILABLE, String::new());
    }
    let who = headers["authorization"].to_str().unwrap();
    let text = String::from_utf8_lossy(&body).into_owned();
    (StatusCode::CREATED, format!("{who} {} {text} in run {}", guarded.key.as_str(), guarded.attempt))
}

struct World {
    api: Api,
    app: Guard<Router>,
    ibid: Ibid,
    store: Arc<MemoryStore>,
    hands: Hands,
    chores: Option<JoinHandle<()>>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.chores.iter().for_each(JoinHandle::abort);
    }
}

/// A process that answers later; `delivers`: and also does what it promised.
async fn world(policy: Policy, busy: usize, delivers: bool) -> World {
    let (clock, hands) = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let store = Arc::new(MemoryStore::new(clock));
    let ibid = Ibid::start(store.clone(), Settings::default()).await.expect("it starts");
    let api = Api { runs: Arc::default(), busy, gate: Arc::new(Semaphore::new(0)) };
    let router = Router::new().route("/rides/{id}/pay", post(handle)).with_state(api.clone());
    let policy = Policy { answer: AnswerRule::Async, ..policy };
    let routes = Routes::new(policy, vec![]).expect("good routes");
    let mut layer = GuardLayer::with_routes(ibid.clone(), Tenants::only(), routes);
    let mut chores = None;
    if delivers {
        layer = layer.resumes::<_, Body, _>(router.clone());
        chores = Some(tokio::spawn(upkeep::run(ibid.clone(), Schedule::default())));
    }
    World { api, app: layer.layer(router), ibid, store, hands, chores }
}

impl World {
    async fn pay(&self) -> (StatusCode, HeaderMap, String) {
        let request = Request::post("/rides/7/pay")
            .header("idempotency-key", "k")
            .header("authorization", "ann")
            .body(Body::from("five"))
            .unwrap();
        let Ok(answer) = self.app.clone().oneshot(request).await;
        let (head, body) = answer.into_parts();
        let body = to_bytes(Body::new(body), 1 << 20).await.unwrap();
        (head.status, head.headers, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn record(&self) -> Record {
        self.store.list(Filter::default()).await.unwrap().pop().expect("one record").record
    }

    /// The key's page, once it is in one of these states.
    async fn until(&self, states: &[RecordState]) -> Record {
        for _ in 0..100 {
            let page = Request::get("/.ibid/keys/k?method=POST&path=/rides/7/pay").header("prefer", "wait=5");
            let Ok(answer) = self.app.clone().oneshot(page.body(Body::empty()).unwrap()).await;
            assert_eq!(answer.status(), 200);
            let record = self.record().await;
            if states.contains(&record.state) {
                return record;
            }
            tokio::task::yield_now().await;
        }
        panic!("it is still {:?}", self.record().await);
    }

    async fn bodies(&self) -> Vec<(u32, Bytes)> {
        let record = self.record().await;
        self.store.bodies(record.id, record.birth).await.unwrap()
    }
}

#[tokio::test]
async fn an_accepted_request_runs_without_its_client_and_every_retry_gets_its_answer() {
    let world = world(Policy::default(), 0, true).await;
    let (status, headers, body) = world.pay().await;
    assert_eq!(status, 202);
    assert_eq!(headers["location"], "/.ibid/keys/k?method=POST&path=%2Frides%2F7%2Fpay");
    // The same while it waits or runs.
    let again = world.pay().await;
    assert_eq!((again.0, again.2), (status, body));
    assert_eq!(world.bodies().await.len(), 1, "the request is kept");
    world.api.gate.add_permits(1);
    world.until(&[RecordState::Completed]).await;
    let (status, headers, body) = world.pay().await;
    assert_eq!((status, body.as_str()), (StatusCode::CREATED, "ann k five in run 1"));
    assert_eq!(headers["idempotent-replayed"], "true");
    assert_eq!(world.api.runs.load(Ordering::SeqCst), 1);
    let bodies = world.bodies().await;
    assert!(bodies.len() == 1 && !bodies[0].1.windows(4).any(|window| window == b"auth"), "{bodies:?}");
}

#[tokio::test]
async fn what_was_not_executed_is_run_again_after_a_pause() {
    let world = world(Policy::default(), 1, true).await;
    world.api.gate.add_permits(2);
    assert_eq!(world.pay().await.0, 202);
    while world.record().await.note.last_error.is_none() {
        tokio::task::yield_now().await;
    }
    let waiting = world.record().await;
    assert_eq!((waiting.state, waiting.attempt), (RecordState::Pending, 1));
    world.hands.advance(Duration::from_secs(2));
    let done = world.until(&[RecordState::Completed]).await;
    assert_eq!(done.attempt, 2);
    assert_eq!(world.pay().await.2, "ann k five in run 2");
}

#[tokio::test]
async fn a_process_that_only_accepts_leaves_the_rest_to_others_or_to_the_deadline() {
    let world = world(Policy::default(), 0, false).await;
    assert_eq!(world.pay().await.0, 202);
    upkeep::reap_once(&world.ibid, Keep::default()).await.unwrap();
    assert_eq!(world.record().await.state, RecordState::Pending);
    world.hands.advance(Duration::from_secs(3600));
    upkeep::reap_once(&world.ibid, Keep::default()).await.unwrap();
    let (status, headers, body) = world.pay().await;
    assert_eq!((status.as_u16(), headers["idempotent-replayed"].to_str().unwrap()), (408, "true"));
    assert!(body.contains("never-started"), "{body}");
    assert_eq!(world.bodies().await.len(), 1, "the answer alone");
    assert_eq!(world.api.runs.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn the_deliverer_begins_nothing_past_the_deadline() {
    let mut world = world(Policy::default(), 0, false).await;
    assert_eq!(world.pay().await.0, 202);
    world.hands.advance(Duration::from_secs(3600));
    let layer = GuardLayer::new(world.ibid.clone(), Tenants::only());
    let router = Router::new().route("/rides/{id}/pay", post(handle)).with_state(world.api.clone());
    let _ = layer.resumes::<Router, Body, _>(router);
    let never = Schedule {
        sweep_every: Duration::from_secs(3600),
        reap_every: Duration::from_secs(3600),
        ..Schedule::default()
    };
    world.chores = Some(tokio::spawn(upkeep::run(world.ibid.clone(), never)));
    world.until(&[RecordState::Completed]).await;
    assert_eq!(world.pay().await.0.as_u16(), 408);
    assert_eq!(world.api.runs.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn more_than_run_at_once_are_all_run_in_the_end() {
    let world = world(Policy { on_lapse: OnLapse::Resume, ..Policy::default() }, 0, true).await;
    let keys: Vec<String> = (0..600).map(|n| format!("k{n}")).collect();
    for key in &keys {
        let request =
            Request::post("/rides/7/pay").header("idempotency-key", key).header("authorization", "ann");
        let Ok(answer) = world.app.clone().oneshot(request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status(), 202);
    }
    let running = || async { world.store.count().await.unwrap().by_state[1] };
    while running().await < 256 {
        tokio::task::yield_now().await;
    }
    assert_eq!(world.api.runs.load(Ordering::SeqCst), 0, "the gate is closed");
    world.api.gate.add_permits(keys.len());
    while world.store.count().await.unwrap().by_state[2] < 600 {
        assert!(running().await <= 256, "so many at once");
        tokio::task::yield_now().await;
    }
    assert_eq!(world.api.runs.load(Ordering::SeqCst), 600);
}
