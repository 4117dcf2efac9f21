//! The guard around an axum router that responds later, on the memory store with a manual clock and with upkeep in the
//! same process.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Request, StatusCode};
use axum::routing::post;
use ibid::engine::TenantRate;
use ibid::http::{GuardedRequest, IdempotencyLayer, IdempotencyService, Routes, TenantSource};
use ibid::operator::{Operator, OperatorAction};
use ibid::store::clock::{Clock, ClockSetter};
use ibid::store::memory::MemoryStore;
use ibid::upkeep::{self, Retention, Schedule};
use ibid::{Ibid, Settings};
use ibid_core::change::LoadedBody;
use ibid_core::policy::{AnswerRule, OnLapse, Policy};
use ibid_core::record::{Record, State as RecordState};
use ibid_core::store::{RecordFilter, Store};
use ibid_core::time::Timestamp;
use ibid_testkit::faults::{FaultyStore, StoreFault};
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tower::{Layer, ServiceExt};

/// Responds once it has a permit, with 429 to the first `busy` requests.
#[derive(Clone)]
struct Api {
    runs: Arc<AtomicUsize>,
    busy: usize,
    gate: Arc<Semaphore>,
}

async fn handle(
    State(api): State<Api>,
    guarded: GuardedRequest,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, String) {
    api.gate.acquire().await.expect("a gate").forget();
    if api.runs.fetch_add(1, Ordering::SeqCst) < api.busy {
        return (StatusCode::TOO_MANY_REQUESTS, String::new());
    }
    let who = headers["authorization"].to_str().unwrap();
    let text = String::from_utf8_lossy(&body).into_owned();
    (StatusCode::CREATED, format!("{who} {} {text} in run {}", guarded.key.as_str(), guarded.attempt))
}

/// An application whose requests are accepted and run later.
struct AsyncApp {
    api: Api,
    app: IdempotencyService<Router>,
    ibid: Ibid,
    store: Arc<MemoryStore>,
    faults: Arc<FaultyStore>,
    hands: ClockSetter,
    chores: Option<JoinHandle<()>>,
}

impl Drop for AsyncApp {
    fn drop(&mut self) {
        self.chores.iter().for_each(JoinHandle::abort);
    }
}

/// Builds a process that accepts requests for later; with `delivers` it also runs them.
async fn world(policy: Policy, busy: usize, delivers: bool) -> AsyncApp {
    let (clock, hands) = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let store = Arc::new(MemoryStore::new(clock));
    let faults = FaultyStore::new(store.clone());
    let ibid = Ibid::start(faults.clone(), Settings::default()).await.expect("it starts");
    let api = Api { runs: Arc::default(), busy, gate: Arc::new(Semaphore::new(0)) };
    let router = Router::new().route("/rides/{id}/pay", post(handle)).with_state(api.clone());
    let policy = policy.with(|policy| policy.answer = AnswerRule::Async);
    let routes = Routes::new(policy, vec![]).expect("good routes");
    let mut layer = IdempotencyLayer::with_routes(ibid.clone(), TenantSource::only(), routes);
    let mut chores = None;
    if delivers {
        layer = layer.resumes::<_, Body, _>(router.clone());
        chores = Some(tokio::spawn(upkeep::run(ibid.clone(), Schedule::default())));
    }
    AsyncApp { api, app: layer.layer(router), ibid, store, faults, hands, chores }
}

impl AsyncApp {
    async fn pay(&self) -> (StatusCode, HeaderMap, String) {
        self.send("five", "").await
    }

    async fn send(&self, body: &'static str, prefer: &str) -> (StatusCode, HeaderMap, String) {
        let request = Request::post("/rides/7/pay")
            .header("idempotency-key", "k")
            .header("authorization", "ann")
            .header("prefer", prefer)
            .body(Body::from(body))
            .unwrap();
        let Ok(answer) = self.app.clone().oneshot(request).await;
        let (head, body) = answer.into_parts();
        let body = to_bytes(Body::new(body), 1 << 20).await.unwrap();
        (head.status, head.headers, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn record(&self) -> Arc<Record> {
        self.store
            .browse()
            .expect("a store that can be browsed")
            .list(RecordFilter::default())
            .await
            .unwrap()
            .items
            .pop()
            .expect("one record")
            .record
    }

    /// Returns the key's record once it is in one of these states.
    async fn until(&self, states: &[RecordState]) -> Arc<Record> {
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

    async fn bodies(&self) -> Vec<LoadedBody> {
        let record = self.record().await;
        self.store.bodies().unwrap().bodies(record.id, record.birth).await.unwrap()
    }
}

#[tokio::test]
async fn an_accepted_request_runs_without_its_client() {
    let world = world(Policy::default(), 0, true).await;
    let (status, headers, body) = world.pay().await;
    assert_eq!(status, 202);
    assert_eq!(headers["location"], "/.ibid/keys/k?method=POST&path=%2Frides%2F7%2Fpay");
    // A duplicate gets the same while the request waits or runs.
    let again = world.pay().await;
    assert_eq!((again.0, again.2), (status, body));
    assert_eq!(world.bodies().await.len(), 1, "the request is kept");
    world.api.gate.add_permits(1);
    world.until(&[RecordState::Completed]).await;
    let (status, headers, body) = world.pay().await;
    assert_eq!((status, body.as_str()), (StatusCode::CREATED, "ann k five in run 1"));
    assert_eq!(headers["idempotent-replayed"], "true");
    assert_eq!(world.api.runs.load(Ordering::SeqCst), 1);
    assert_eq!(world.bodies().await, [], "the request is gone, with its credentials");
}

#[tokio::test]
async fn a_request_that_was_not_executed_runs_again_after_a_pause() {
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
async fn a_process_may_accept_requests_without_running_them() {
    let world = world(Policy::default(), 0, false).await;
    assert_eq!(world.pay().await.0, 202);
    upkeep::reap_once(&world.ibid, Retention::default()).await.unwrap();
    assert_eq!(world.record().await.state, RecordState::Pending);
    world.hands.advance(Duration::from_secs(3600));
    upkeep::reap_once(&world.ibid, Retention::default()).await.unwrap();
    let (status, headers, body) = world.pay().await;
    assert_eq!((status.as_u16(), headers["idempotent-replayed"].to_str().unwrap()), (408, "true"));
    assert!(body.contains("never-started"), "{body}");
    assert_eq!(world.bodies().await.len(), 0, "the request is gone");
    assert_eq!(world.api.runs.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn the_deliverer_begins_nothing_past_the_deadline() {
    let mut world = world(Policy::default(), 0, false).await;
    assert_eq!(world.pay().await.0, 202);
    world.hands.advance(Duration::from_secs(3600));
    let layer = IdempotencyLayer::new(world.ibid.clone(), TenantSource::only());
    let router = Router::new().route("/rides/{id}/pay", post(handle)).with_state(world.api.clone());
    let _ = layer.resumes::<Router, Body, _>(router);
    let never = Schedule::default().with(|schedule| {
        schedule.sweep_every = Duration::from_secs(3600);
        schedule.reap_every = Duration::from_secs(3600);
    });
    world.chores = Some(tokio::spawn(upkeep::run(world.ibid.clone(), never)));
    world.until(&[RecordState::Completed]).await;
    assert_eq!(world.pay().await.0.as_u16(), 408);
    assert_eq!(world.api.runs.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn more_than_run_at_once_are_all_run_in_the_end() {
    let world = world(Policy::default().with(|policy| policy.on_lapse = OnLapse::Resume), 0, true).await;
    let keys: Vec<String> = (0..600).map(|n| format!("k{n}")).collect();
    for key in &keys {
        let request =
            Request::post("/rides/7/pay").header("idempotency-key", key).header("authorization", "ann");
        let Ok(answer) = world.app.clone().oneshot(request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status(), 202);
    }
    let count = async |state: usize| {
        let counts = world.store.browse().expect("a store that can be browsed").count().await.unwrap();
        counts.by_state[state].value().expect("memory counts")
    };
    let running = async || count(1).await;
    while running().await < 256 {
        tokio::task::yield_now().await;
    }
    assert_eq!(world.api.runs.load(Ordering::SeqCst), 0, "the gate is closed");
    world.api.gate.add_permits(keys.len());
    while count(2).await < 600 {
        assert!(running().await <= 256, "so many at once");
        tokio::task::yield_now().await;
    }
    assert_eq!(world.api.runs.load(Ordering::SeqCst), 600);
}

#[tokio::test]
async fn a_worker_runs_the_request_of_the_generation_it_claimed() {
    let world = world(Policy::default(), 0, true).await;
    world.api.gate.add_permits(2);
    world.faults.set(StoreFault::HoldsBodies);
    assert_eq!(world.send("five", "").await.0, 202);
    while world.faults.bodies_read() == 0 {
        tokio::task::yield_now().await;
    }
    // The worker holds `five`. Its time ends, an operator forgets the record, and the key arrives with another request.
    world.hands.advance(Duration::from_secs(3600));
    upkeep::reap_once(&world.ibid, Retention::default()).await.unwrap();
    let first = world.record().await;
    assert_eq!((first.state, first.note.status), (RecordState::Completed, Some(408)));
    let act = OperatorAction::new("ann", "once more").unwrap();
    Operator::new(&world.ibid).forget(first.id, None, &act).await.expect("it is forgotten");
    assert_eq!(world.send("six", "").await.0, 202);
    let second = world.record().await;
    assert!(second.id == first.id && second.birth != first.birth, "another generation");
    world.faults.set(StoreFault::None);
    // The request was put back and waits for its next try.
    loop {
        let record = world.record().await;
        assert_ne!(record.state, RecordState::Completed, "with the answer to another request");
        if record.note.last_error.is_some() {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(world.api.runs.load(Ordering::SeqCst), 0);
    world.hands.advance(Duration::from_secs(2));
    world.until(&[RecordState::Completed]).await;
    let (status, headers, body) = world.send("six", "").await;
    assert_eq!((status, body.as_str()), (StatusCode::CREATED, "ann k six in run 2"));
    assert_eq!(headers["idempotent-replayed"], "true");
    assert_eq!(world.api.runs.load(Ordering::SeqCst), 1, "the second one, once");
    assert_eq!(world.record().await.birth, second.birth);
}

#[tokio::test]
async fn waiting_for_an_own_accepted_request_is_no_replay() {
    // A recorder for this thread only, on which all tasks of this test run.
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let _counts = metrics::set_default_local_recorder(&recorder);
    let counted = || {
        let page = page.render();
        let mut events: Vec<String> = page
            .lines()
            .filter(|line| line.starts_with("ibid_reserve_") && !line.ends_with(" 0"))
            .map(|line| format!("{}{}", &line[..line.find('{').unwrap()], &line[line.rfind(' ').unwrap()..]))
            .collect();
        events.sort();
        events
    };
    let world = world(Policy::default(), 0, true).await;
    let rates = || {
        world.ibid.tenants(1).first().map(|TenantRate { requests, duplicates, .. }| (*requests, *duplicates))
    };
    world.api.gate.add_permits(1);
    let (status, headers, body) = world.send("five", "respond-async, wait=60").await;
    assert_eq!((status, body.as_str()), (StatusCode::CREATED, "ann k five in run 1"));
    assert!(!headers.contains_key("idempotent-replayed"), "{headers:?}");
    assert_eq!(counted(), ["ibid_reserve_created_total 1"]);
    assert_eq!(rates(), Some((1, 0)), "the first of its key is no duplicate");

    let (status, headers, again) = world.send("five", "respond-async, wait=60").await;
    assert_eq!((status, again), (StatusCode::CREATED, body));
    assert_eq!(headers["idempotent-replayed"], "true");
    assert_eq!(counted(), ["ibid_reserve_created_total 1", "ibid_reserve_replay_total 1"]);
    assert_eq!(rates(), Some((2, 1)));
    assert_eq!(world.api.runs.load(Ordering::SeqCst), 1);
}
