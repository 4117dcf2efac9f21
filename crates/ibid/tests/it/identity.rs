//! The identity of a store: a start with another one is refused, and after a change every retry finds its record. Tokio's
//! time is paused, so waits of half a minute take no time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, StatusCode};
use ibid::engine::StartError;
use ibid::http::{
    IdempotencyLayer, IdempotencyService, MissingIdentityError, PrincipalSource, Routes, Rule, TenantSource,
};
use ibid::identity::change::{self, ChangeError, RetireWait};
use ibid::identity::{IdentityError, IdentityPhase, StoreIdentity};
use ibid::outcome::Begin;
use ibid::store::clock::{Clock, ClockSetter};
use ibid::store::memory::MemoryStore;
use ibid::upkeep::Retention;
use ibid::{Ibid, Settings, upkeep};
use ibid_core::key_source::KeyFrom;
use ibid_core::policy::{AnswerRule, BindRule, KeyRule, PathRule, Policy};
use ibid_core::record::{State, Version};
use ibid_core::scope::{RecordId, ScopeRule, Tenant};
use ibid_core::store::{RecordFilter, Store};
use ibid_core::time::Timestamp;
use ibid_testkit::faults::{FaultyStore, StoreFault};
use tower::{Layer, ServiceExt};

/// The store that all nodes of a test share.
#[derive(Clone)]
struct SharedStore {
    store: Arc<FaultyStore>,
    hands: ClockSetter,
    runs: Arc<AtomicUsize>,
}

/// One process on the store.
struct Node {
    ibid: Ibid,
    app: IdempotencyService<Router>,
}

impl SharedStore {
    fn new() -> SharedStore {
        let (clock, hands) = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
        SharedStore {
            store: FaultyStore::new(Arc::new(MemoryStore::new(clock))),
            hands,
            runs: Arc::default(),
        }
    }

    async fn try_start(&self, routes: Routes, tenant: &str) -> Result<Node, StartError> {
        let settings = Settings::default().with(|settings| {
            settings.identity = routes.identity(tenant);
            settings.cache_ttl = Duration::ZERO;
        });
        let ibid = Ibid::start(self.store.clone(), settings).await?;
        let runs = self.runs.clone();
        let handler = async move |body: String| {
            let run = runs.fetch_add(1, Ordering::SeqCst) + 1;
            match body.as_str() {
                "again" if run == 1 => (StatusCode::TOO_MANY_REQUESTS, String::new()),
                "broken" => (StatusCode::INTERNAL_SERVER_ERROR, String::new()),
                _ => (StatusCode::CREATED, format!("run {run}")),
            }
        };
        let tenants = TenantSource::by(|_| Tenant::new("acme").map_err(|_| MissingIdentityError));
        let principals = PrincipalSource::by(|head| {
            let user = head.headers.get("x-user").and_then(|user| user.to_str().ok());
            user.map(str::to_owned).ok_or(MissingIdentityError)
        });
        let layer = IdempotencyLayer::with_routes(ibid.clone(), tenants, routes).principals(principals);
        Ok(Node { ibid, app: layer.layer(Router::new().fallback(handler)) })
    }

    async fn start(&self, routes: Routes) -> Node {
        self.try_start(routes, "t").await.expect("it starts")
    }

    /// Changes the identity, to the end of the procedure.
    async fn change(&self) {
        change::retire(&*self.store, false, |_| {}).await.expect("it is retired");
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    async fn versions(&self) -> Vec<Version> {
        let all = self
            .store
            .browse()
            .expect("a store that can be browsed")
            .list(RecordFilter::default())
            .await
            .expect("the store answers")
            .items;
        all.iter().map(|stored| stored.record.version).collect()
    }

    async fn records(&self) -> Vec<(RecordId, State)> {
        let all = self
            .store
            .browse()
            .expect("a store that can be browsed")
            .list(RecordFilter::default())
            .await
            .expect("the store answers")
            .items;
        all.iter().map(|stored| (stored.record.id, stored.record.state)).collect()
    }
}

impl Node {
    /// Sends a body under the key `k`, which is in every field that may carry a key.
    async fn pay(&self, body: &str) -> (StatusCode, bool, String) {
        // Two spellings of one path, as far as the path mode treats them as one.
        let request = Request::post("/%70ay")
            .header("idempotency-key", "k")
            .header("x-request-key", "k2")
            .header("x-user", "ann")
            .body(Body::from(body.to_owned()))
            .expect("a request");
        let (head, body) = self.app.clone().oneshot(request).await.expect("it never fails").into_parts();
        let body = to_bytes(Body::new(body), usize::MAX).await.expect("a whole body");
        let is_replay = head.headers.contains_key("idempotent-replayed");
        (head.status, is_replay, String::from_utf8_lossy(&body).into_owned())
    }
}

fn routes(defaults: Policy) -> Routes {
    Routes::new(defaults, vec![]).expect("good routes")
}

fn plain() -> Routes {
    routes(Policy::default())
}

fn wide() -> Policy {
    Policy::default().with(|policy| policy.scope = ScopeRule::Tenant)
}

fn with_route(pattern: &str, policy: Policy) -> Routes {
    let rule = Rule::new(vec![Method::POST], pattern, Some(policy));
    Routes::new(Policy::default(), vec![rule]).expect("good routes")
}

/// Returns every other identity, with the text of its refusal.
fn others() -> Vec<(Routes, &'static str)> {
    let key_from = KeyFrom::parse(["header:x-request-key"]).expect("a place");
    vec![
        (routes(wide()), "the defaults: scope `operation` → `tenant`"),
        (
            routes(Policy::default().with(|policy| policy.bind = BindRule::Principal)),
            "the defaults: bind `tenant` → `principal`",
        ),
        (
            routes(Policy::default().with(|policy| policy.key_from = key_from)),
            "the defaults: key_from `header:idempotency-key` → `header:x-request-key`",
        ),
        (
            routes(Policy::default().with(|policy| policy.path = PathRule::AsSent)),
            "the defaults: path `strict` → `as-sent`",
        ),
        (with_route("/pay", wide()), "`POST /pay`: scope `operation` → `tenant`"),
    ]
}

#[tokio::test(start_paused = true)]
async fn another_identity_is_refused_with_the_difference() {
    let world = SharedStore::new();
    world.start(plain()).await;
    for (other, difference) in others() {
        let refused = world.try_start(other, "t").await.err().expect(difference).to_string();
        assert!(refused.contains(difference), "{refused}");
    }
    let refused = world.try_start(plain(), "u").await.err().expect("another tenant source").to_string();
    assert!(refused.contains("the tenant: source `t` → `u`"), "{refused}");
    world.start(with_route("/pay", Policy::payments())).await;
    let asked = change::load_setting(&*world.store).await.expect("it can be read").expect("it is set");
    assert_eq!((asked.phase, asked.generation), (IdentityPhase::Active, 1));
}

#[tokio::test(start_paused = true)]
async fn after_a_change_a_retry_finds_its_record() {
    for (next, difference) in others() {
        for (before, after) in [(plain(), next.clone()), (next, plain())] {
            let world = SharedStore::new();
            let first = world.start(before).await.pay("b").await;
            world.change().await;
            let node = world.start(after).await;
            let (status, is_replay, body) = node.pay("b").await;
            assert_eq!((status, is_replay, body), (first.0, true, first.2), "{difference}");
            assert_eq!(node.pay("another").await.0, StatusCode::UNPROCESSABLE_ENTITY, "{difference}");
            assert_eq!(world.runs(), 1, "{difference}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_retryable_record_runs_again_under_its_old_id() {
    let world = SharedStore::new();
    assert_eq!(world.start(plain()).await.pay("again").await.0, StatusCode::TOO_MANY_REQUESTS);
    let before = world.records().await;
    world.change().await;
    let node = world.start(routes(wide())).await;
    assert_eq!(node.pay("again").await.2, "run 2");
    assert!(node.pay("again").await.1);
    let ids = |records: Vec<(RecordId, State)>| records.iter().map(|(id, _)| *id).collect::<Vec<_>>();
    assert_eq!(ids(world.records().await), ids(before), "no second record");
}

#[tokio::test(start_paused = true)]
async fn an_unknown_record_is_not_passed_by() {
    let world = SharedStore::new();
    world.start(plain()).await.pay("broken").await;
    for (generation, next) in [routes(wide()), plain(), routes(wide())].into_iter().enumerate() {
        world.change().await;
        let node = world.start(next).await;
        assert_eq!(node.pay("broken").await.0, StatusCode::CONFLICT, "generation {generation}");
    }
    assert_eq!(world.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_expired_record_is_sealed_before_its_key_moves() {
    let world = SharedStore::new();
    world.start(plain()).await.pay("b").await;
    let before = world.versions().await;
    world.hands.advance(Policy::default().retention * 2);
    world.change().await;
    let node = world.start(routes(wide())).await;
    assert_eq!(node.pay("b").await.2, "run 2", "its time is over");
    assert!(node.pay("b").await.1);
    assert_eq!(world.records().await.len(), 2, "the new one is under the new id");
    let after = world.versions().await;
    assert!(before.iter().all(|old| !after.contains(old)), "a write decided before loses");
}

#[tokio::test(start_paused = true)]
async fn a_key_in_its_old_place_is_not_run_unguarded() {
    let optional = |place: &str| {
        let key_from = KeyFrom::parse([place]).expect("a place");
        routes(Policy::default().with(|policy| {
            policy.key_from = key_from;
            policy.key = KeyRule::Optional;
        }))
    };
    let world = SharedStore::new();
    world.start(optional("header:x-request-key")).await.pay("b").await;
    world.change().await;
    let node = world.start(optional("header:x-other")).await;
    assert_eq!(node.pay("b").await.0, StatusCode::BAD_REQUEST);
    assert_eq!(world.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_retired_identity_begins_and_delivers_nothing() {
    let world = SharedStore::new();
    let node = world.start(plain()).await;
    let ask = crate::request_fixture::ask(&node.ibid, "acme", "reserved", Policy::default());
    let Ok(Begin::Run(mut attempt)) = node.ibid.begin(ask).await else { panic!("it is new") };
    world.change().await;
    assert!(!node.ibid.is_identity_active());
    assert_eq!(node.pay("b").await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert!(attempt.ensure_lease().await.is_err(), "its reservation was made before");
    assert_eq!(world.runs(), 0);
    // The same identity may continue: no other one was in use in between.
    world.start(plain()).await;
    tokio::time::sleep(Settings::default().identity_valid_for).await;
    assert_eq!(node.pay("b").await.0, StatusCode::CREATED);
}

#[tokio::test(start_paused = true)]
async fn an_identity_that_was_not_read_for_too_long_delivers_nothing() {
    let world = SharedStore::new();
    let node = world.start(plain()).await;
    let ask = crate::request_fixture::ask(&node.ibid, "acme", "reserved", Policy::default());
    let Ok(Begin::Run(mut attempt)) = node.ibid.begin(ask).await else { panic!("it is new") };
    world.store.set(StoreFault::Down);
    tokio::time::sleep(Settings::default().identity_valid_for).await;
    assert!(attempt.ensure_lease().await.is_err(), "whether it is retired is not known");
    world.store.set(StoreFault::None);
    assert!(attempt.ensure_lease().await.is_ok(), "one read is enough");
}

#[tokio::test(start_paused = true)]
async fn a_request_accepted_before_a_change_is_delivered_after_it() {
    let later = Policy::default().with(|policy| policy.answer = AnswerRule::Async);
    let world = SharedStore::new();
    let node = world.start(routes(later.clone())).await;
    assert_eq!(node.pay("b").await.0, StatusCode::ACCEPTED);
    world.change().await;
    let next = world.start(routes(later.with(|policy| policy.scope = ScopeRule::Tenant))).await;
    assert_eq!(next.pay("b").await.0, StatusCode::ACCEPTED, "the record of before");
    assert_eq!(world.records().await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn no_process_starts_while_the_identity_is_being_changed() {
    let world = SharedStore::new();
    world.start(plain()).await;
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let store = world.store.clone();
    let changing = tokio::spawn(async move {
        change::retire(&*store, false, |waiting| told.send(waiting).expect("the test listens")).await
    });
    assert_eq!(heard.recv().await, Some(RetireWait::ForReaders(Duration::from_secs(30))));
    for next in [plain(), routes(wide())] {
        let refused = world.try_start(next, "t").await.err();
        assert!(matches!(refused, Some(StartError::Identity(IdentityError::Changing))), "{refused:?}");
    }
    changing.await.expect("no panic").expect("it is retired");
    world.start(routes(wide())).await;
}

#[tokio::test(start_paused = true)]
async fn previous_ids_are_forgotten_once_their_records_have_gone() {
    let world = SharedStore::new();
    world.start(plain()).await.pay("b").await;
    world.change().await;
    let node = world.start(routes(wide())).await;
    let left = change::forget_previous(&*world.store).await.expect("the store answers");
    assert_eq!((left.forgotten, left.kept, left.records), (0, 1, 1));
    assert!(left.gone_by.is_some());
    assert!(node.pay("b").await.1, "it is still found");
    world.hands.advance(Policy::default().retention * 2);
    upkeep::reap_once(&node.ibid, Retention::default()).await.expect("the store answers");
    let left = change::forget_previous(&*world.store).await.expect("the store answers");
    assert_eq!((left.forgotten, left.kept, left.records), (1, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn at_most_two_previous_identities_are_looked_up() {
    let world = SharedStore::new();
    world.start(plain()).await.pay("b").await;
    let bound = Policy::default().with(|policy| policy.bind = BindRule::Principal);
    for next in [routes(wide()), routes(bound)] {
        world.hands.advance(Duration::from_secs(1));
        world.change().await;
        assert!(world.start(next).await.pay("b").await.1);
    }
    let refused = change::retire(&*world.store, false, |_| {}).await;
    assert!(matches!(refused, Err(ChangeError::TooManyPrevious)), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn another_tenant_source_needs_an_empty_store_or_a_word() {
    let world = SharedStore::new();
    world.start(plain()).await;
    world.change().await;
    world.try_start(plain(), "u").await.expect("the store has no records").pay("b").await;
    world.change().await;
    let refused = world.try_start(plain(), "v").await.err();
    assert!(matches!(refused, Some(StartError::Identity(IdentityError::OtherTenant { .. }))), "{refused:?}");
    assert_eq!(change::live_records(&*world.store).await.expect("the store answers"), 1);
    change::retire(&*world.store, true, |_| {}).await.expect("it is abandoned");
    let node = world.try_start(plain(), "v").await.expect("it was abandoned");
    assert_eq!(node.ibid.identity().map(|identity| identity.previous.len()), Some(0));
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "the defaults: scope `operation` → `tenant`")]
async fn a_guard_with_other_routes_than_it_was_started_with_panics() {
    let world = SharedStore::new();
    let settings = Settings::default().with(|settings| settings.identity = StoreIdentity::new("t"));
    let ibid = Ibid::start(world.store.clone(), settings).await.expect("it starts");
    let _ = IdempotencyLayer::with_routes(ibid, TenantSource::only(), routes(wide()));
}
