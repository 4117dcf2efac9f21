//! Signed webhooks at the guard: which settle an unknown record, which are stored, and which are refused.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Request, Response, StatusCode};
use axum::response::IntoResponse;
use axum::routing::post;
use ibid::http::hooks::{Hook, HookMapping, HookSecret, HookTarget, ProviderIdAt, SignatureScheme, TenantAt};
use ibid::http::{IdempotencyLayer, IdempotencyService, MissingIdentityError, Routes, TenantSource};
use ibid::store::clock::{Clock, ClockSetter};
use ibid::store::memory::MemoryStore;
use ibid::{Ibid, Settings, upkeep};
use ibid_core::change::HistoryKind;
use ibid_core::fingerprint::Pointer;
use ibid_core::policy::{BindRule, Policy};
use ibid_core::record::{Record, State as RecordState};
use ibid_core::scope::{Operation, Tenant};
use ibid_core::store::{RecordFilter, Store};
use ibid_core::time::Timestamp;
use ibid_testkit::faults::{FaultyStore, StoreFault};
use serde_json::{Value, json};
use standardwebhooks::Webhook;
use tokio::sync::Semaphore;
use tower::{Layer, ServiceExt};

mod missing_tiers;
mod races;

const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

/// An application behind the layer, with a webhook of its provider.
struct AppWithHooks {
    app: IdempotencyService<Router>,
    ibid: Ibid,
    store: Arc<FaultyStore>,
    hands: ClockSetter,
    gate: Arc<Semaphore>,
}

async fn world() -> AppWithHooks {
    let (clock, hands) = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let store = FaultyStore::new(Arc::new(MemoryStore::new(clock)));
    let ibid = Ibid::start(store.clone(), Settings::default()).await.expect("it starts");
    let gate = Arc::new(Semaphore::new(0));
    let router = Router::new().route("/pay", post(pay)).with_state(gate.clone());
    let tenants = TenantSource::by(|head| {
        let name = head.headers.get("x-tenant").and_then(|name| name.to_str().ok()).unwrap_or("ann");
        Tenant::new(name).map_err(|_| MissingIdentityError)
    });
    let layer = IdempotencyLayer::new(ibid.clone(), tenants).hooks(vec![hook()]).expect("a good hook");
    AppWithHooks { app: layer.layer(router), ibid, store, hands, gate }
}

/// Sends a response that breaks off, after a permit if the request asks for that.
async fn pay(State(gate): State<Arc<Semaphore>>, headers: HeaderMap, _: Bytes) -> Response<Body> {
    match headers.get("x-do").map(|value| value.as_bytes()) {
        Some(b"gate") => gate.acquire().await.expect("an open gate").forget(),
        Some(b"answer") => return (StatusCode::CREATED, "answered").into_response(),
        _ => {}
    }
    let broken = futures_util::stream::iter([Ok(Bytes::from("half")), Err(std::io::Error::other("cut"))]);
    Body::from_stream(broken).into_response()
}

fn pointer(text: &str) -> Pointer {
    Pointer::parse(text).expect("a pointer")
}

fn hook() -> Hook {
    let target = HookTarget::Record {
        tenant: TenantAt::Pointer(pointer("/data/tenant")),
        operation: Operation { method: "POST".into(), path: "/pay".into() },
        key: pointer("/data/key"),
    };
    let mapping = HookMapping::new(target, pointer("/type")).with(|mapping| {
        mapping.executed = vec![("paid".to_owned(), 201), ("declined".to_owned(), 402)];
        mapping.not_executed = vec!["void".to_owned()];
        mapping.body = pointer("/data/answer");
        mapping.provider_id = Some(pointer("/data/id"));
        mapping.event_time = Some(pointer("/at"));
    });
    let secret = HookSecret::parse(&SignatureScheme::Standard, SECRET).expect("a secret");
    Hook::new("psp", SignatureScheme::Standard, vec![secret], mapping)
}

/// One webhook, before it is signed.
#[derive(Clone)]
struct UnsignedWebhook {
    event: &'static str,
    body: String,
    source: &'static str,
    secret: &'static str,
    signed_at: i64,
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs() as i64
}

fn unsigned_webhook(event: &'static str, kind: &str, key: &str) -> UnsignedWebhook {
    let body = json!({ "type": kind, "at": now(), "data": { "tenant": "ann", "key": key, "id": "ch_1" } });
    // Inserted as text: the response must be replayed byte by byte, numbers and all.
    let body = body.to_string().replacen("\"data\":{", "\"data\":{\"answer\": {\"amount\" : 1.10},", 1);
    UnsignedWebhook { event, body, source: "psp", secret: SECRET, signed_at: now() }
}

impl AppWithHooks {
    async fn send(&self, request: Request<Body>) -> (u16, HeaderMap, Vec<u8>) {
        let answer = self.app.clone().oneshot(request).await.unwrap_or_else(|never| match never {});
        let (head, body) = answer.into_parts();
        let body = to_bytes(Body::new(body), usize::MAX).await.expect("a whole body");
        (head.status.as_u16(), head.headers, body.to_vec())
    }

    async fn pay(&self, key: &str, how: &str) -> (u16, HeaderMap, Vec<u8>) {
        let request = Request::post("/pay").header("idempotency-key", key).header("x-do", how);
        self.send(request.body(Body::from("{}")).expect("a request")).await
    }

    /// Sends a webhook, signed by the reference library, and returns status and result.
    async fn hook(&self, webhook: &UnsignedWebhook) -> (u16, String) {
        let body = webhook.body.as_bytes();
        let signature =
            Webhook::new(webhook.secret).expect("a secret").sign(webhook.event, webhook.signed_at, body);
        let request = Request::post(format!("/.ibid/hooks/{}", webhook.source))
            .header("webhook-id", webhook.event)
            .header("webhook-timestamp", webhook.signed_at)
            .header("webhook-signature", signature.expect("a signature"))
            .body(Body::from(webhook.body.clone()));
        let (status, _, body) = self.send(request.expect("a request")).await;
        let body: Value = serde_json::from_slice(&body).expect("JSON");
        let word = body["result"].as_str().or(body["type"].as_str()).unwrap_or_default();
        (status, word.to_owned())
    }

    async fn record(&self, key: &str) -> Arc<Record> {
        let filter = RecordFilter::default().with(|filter| filter.key = Some(key.to_owned()));
        self.store
            .browse()
            .expect("a store that can be browsed")
            .list(filter)
            .await
            .expect("a list")
            .items
            .pop()
            .expect("a record")
            .record
    }

    /// Advances the clock past the end of all running attempts, so that later events postdate them.
    fn pass_the_attempts_end(&self) {
        // An event's age is counted in whole seconds, rounded up.
        self.hands.advance(Policy::default().over_in() + Duration::from_secs(30));
    }

    async fn unknown(&self, key: &str) {
        assert_eq!(self.pay(key, "break").await.0, 502);
        assert_eq!(self.record(key).await.state, RecordState::Unknown);
    }

    /// Returns the lines of this kind in a record's history.
    async fn history(&self, key: &str, what: HistoryKind) -> Vec<String> {
        let lines = self
            .store
            .browse()
            .expect("a store that can be browsed")
            .history(self.record(key).await.id)
            .await
            .expect("a history");
        lines.into_iter().filter(|line| line.what == what).map(|line| line.detail).collect()
    }

    /// Waits until the record is settled.
    async fn until_settled(&self, key: &str) {
        let settled = async {
            while self.record(key).await.state == RecordState::Unknown {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), settled).await.expect("it is settled");
    }
}

fn word(status: u16, word: &str) -> (u16, String) {
    (status, word.to_owned())
}

#[tokio::test]
async fn a_signed_webhook_settles_an_unknown_record() {
    let world = world().await;
    world.unknown("k").await;
    assert_eq!(world.hook(&unsigned_webhook("evt_1", "paid", "k")).await, word(200, "settled"));
    let (status, headers, body) = world.pay("k", "break").await;
    assert_eq!((status, &body[..]), (201, &br#"{"amount" : 1.10}"#[..]));
    assert_eq!(headers["content-type"], "application/json");
    assert_eq!(headers["idempotent-replayed"], "true");
    let record = world.record("k").await;
    assert_eq!(record.note.provider_id.as_deref(), Some("ch_1"));
    assert!(!record.flags.dead_letter, "no person is needed any more");
    let history = world.history("k", HistoryKind::Settled).await;
    assert_eq!(history, ["webhook: executed (event `evt_1` of `psp`)"]);
    assert_eq!(world.hook(&unsigned_webhook("evt_1", "paid", "k")).await, word(200, "settled already"));
    assert_eq!(world.history("k", HistoryKind::Settled).await.len(), 1);
}

#[tokio::test]
async fn a_decline_is_an_answer_and_what_was_never_made_may_be_made() {
    let world = world().await;
    world.unknown("declined").await;
    assert_eq!(world.hook(&unsigned_webhook("evt_1", "declined", "declined")).await.0, 200);
    assert_eq!(world.pay("declined", "answer").await.0, 402, "the decline is replayed, nothing runs");
    world.unknown("void").await;
    world.pass_the_attempts_end();
    assert_eq!(world.hook(&unsigned_webhook("evt_2", "void", "void")).await, word(200, "settled"));
    assert_eq!(world.record("void").await.state, RecordState::Retryable);
    assert_eq!(world.pay("void", "answer").await.0, 201, "it is run again");
}

#[tokio::test]
async fn not_executed_is_ignored_while_it_could_still_execute() {
    let world = world().await;
    let paying = tokio::spawn({
        let app = world.app.clone();
        let request = Request::post("/pay").header("idempotency-key", "k").header("x-do", "gate");
        app.oneshot(request.body(Body::from("{}")).expect("a request"))
    });
    while world
        .store
        .browse()
        .expect("a store that can be browsed")
        .list(RecordFilter::default())
        .await
        .expect("a list")
        .items
        .is_empty()
    {
        tokio::task::yield_now().await;
    }
    world.hands.advance(Duration::from_secs(10));
    let void = unsigned_webhook("evt_1", "void", "k");
    assert_eq!(world.hook(&void).await, word(200, "premature"), "it runs");
    world.gate.add_permits(1);
    assert_eq!(paying.await.expect("no panic").expect("an answer").status(), 502);
    assert_eq!(
        world.hook(&unsigned_webhook("evt_2", "void", "k")).await,
        word(200, "premature"),
        "it has just run"
    );
    world.pass_the_attempts_end();
    assert_eq!(
        upkeep::apply_evidence_once(&world.ibid).await.expect("a round"),
        0,
        "it does not count later, either"
    );
    assert_eq!(world.hook(&void).await, word(200, "duplicate"), "told again it is no younger");
    let mut late = unsigned_webhook("evt_3", "void", "k");
    late.body = late.body.replacen("\"at\":", &format!("\"at\":{},\"then\":", late.signed_at - 60), 1);
    assert_eq!(world.hook(&late).await, word(200, "premature"), "it is from before the attempt's end");
    assert_eq!(world.pay("k", "answer").await.0, 409, "no second run while the first may still run");
    assert_eq!(world.hook(&unsigned_webhook("evt_4", "void", "k")).await, word(200, "settled"));
    assert_eq!(world.pay("k", "answer").await.0, 201);
}

#[tokio::test]
async fn an_early_webhook_is_applied_once_the_record_is_unknown() {
    let world = world().await;
    let paying = tokio::spawn({
        let app = world.app.clone();
        let request = Request::post("/pay").header("idempotency-key", "k").header("x-do", "gate");
        app.oneshot(request.body(Body::from("{}")).expect("a request"))
    });
    while world
        .store
        .browse()
        .expect("a store that can be browsed")
        .list(RecordFilter::default())
        .await
        .expect("a list")
        .items
        .is_empty()
    {
        tokio::task::yield_now().await;
    }
    assert_eq!(world.hook(&unsigned_webhook("evt_1", "declined", "k")).await, word(202, "kept"));
    assert_eq!(
        world.hook(&unsigned_webhook("evt_1", "declined", "k")).await,
        word(202, "kept"),
        "it may be delivered again"
    );
    assert_eq!(world.record("k").await.state, RecordState::InProgress, "nothing changes before");
    world.gate.add_permits(1);
    assert_eq!(paying.await.expect("no panic").expect("an answer").status(), 502);
    world.until_settled("k").await;
    assert_eq!(world.pay("k", "answer").await.0, 402, "settled without asking");
    assert_eq!(
        upkeep::apply_evidence_once(&world.ibid).await.expect("a round"),
        0,
        "the evidence is used up"
    );
}

#[tokio::test]
async fn upkeep_applies_evidence_that_a_crash_left_unused() {
    let world = world().await;
    world.unknown("k").await;
    world.pass_the_attempts_end();
    let record = world.record("k").await;
    // As if the process had died between storing the evidence and applying it.
    let evidence = ibid_core::evidence::Evidence {
        name: ibid_core::evidence::EventName { source: "psp".into(), event: "evt_1".into() },
        about: ibid_core::evidence::EvidenceSubject::Record(record.id),
        owner: Some(record.owner),
        what: ibid_core::machine::Observation::NotExecuted,
        age: Duration::ZERO,
    };
    let retention = Duration::from_secs(3600);
    ibid_core::evidence::EvidenceStore::insert_evidence(&*world.store, evidence, retention)
        .await
        .expect("kept");
    assert_eq!(upkeep::apply_evidence_once(&world.ibid).await.expect("a round"), 1);
    assert_eq!(world.record("k").await.state, RecordState::Retryable);
    assert_eq!(upkeep::apply_evidence_once(&world.ibid).await.expect("a round"), 0);
}

#[tokio::test]
async fn a_used_event_never_settles_a_later_attempt() {
    let world = world().await;
    world.unknown("k").await;
    world.pass_the_attempts_end();
    let void = unsigned_webhook("evt_1", "void", "k");
    assert_eq!(world.hook(&void).await, word(200, "settled"));
    world.hands.advance(Duration::from_secs(1));
    world.unknown("k").await;
    assert_eq!(world.record("k").await.attempt, 2);
    world.pass_the_attempts_end();
    assert_eq!(world.hook(&void).await, word(200, "duplicate"), "it spoke of the first attempt");
    assert_eq!(world.record("k").await.state, RecordState::Unknown);
    assert_eq!(world.hook(&unsigned_webhook("evt_2", "paid", "k")).await, word(200, "settled"));
}

#[tokio::test]
async fn an_event_from_before_the_attempt_never_settles_it() {
    let world = world().await;
    world.unknown("k").await;
    let mut old = unsigned_webhook("evt_1", "paid", "k");
    old.body = old.body.replacen("\"at\":", &format!("\"at\":{},\"then\":", old.signed_at - 60), 1);
    assert_eq!(world.hook(&old).await, word(200, "stale"));
    assert_eq!(world.record("k").await.state, RecordState::Unknown);
    // The provider's clock may differ from the store's, so the provider's own two instants are compared.
    world.hands.advance(Duration::from_secs(120));
    assert_eq!(world.hook(&old).await, word(200, "settled"), "by now it is from after the attempt's begin");
}

#[tokio::test]
async fn an_unsigned_webhook_learns_nothing() {
    let world = world().await;
    world.unknown("k").await;
    let good = unsigned_webhook("evt_1", "paid", "k");
    let other = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let wrong = [
        UnsignedWebhook { secret: other, ..good.clone() },
        UnsignedWebhook { source: "unknown", ..good.clone() },
        UnsignedWebhook { source: "psp/", ..good.clone() },
        UnsignedWebhook { signed_at: now() - 310, ..good.clone() },
        UnsignedWebhook { signed_at: now() + 310, ..good.clone() },
    ];
    for webhook in &wrong {
        assert_eq!(
            world.hook(webhook).await,
            word(401, "urn:ibid:problem:hook-refused"),
            "{}",
            webhook.source
        );
    }
    let bare = Request::post("/.ibid/hooks/psp").body(Body::from(good.body.clone())).expect("a request");
    let unknown =
        Request::post("/.ibid/hooks/unknown").body(Body::from(good.body.clone())).expect("a request");
    let (bare, unknown) = (world.send(bare).await, world.send(unknown).await);
    assert_eq!(bare.0, 401);
    assert_eq!((bare.0, &bare.1, &bare.2), (unknown.0, &unknown.1, &unknown.2), "byte by byte the same");
    let large =
        Request::post("/.ibid/hooks/unknown").body(Body::from(vec![b' '; 300 << 10])).expect("a request");
    assert_eq!(world.send(large).await.0, 413);
    assert_eq!(world.record("k").await.state, RecordState::Unknown);
    assert!(
        world
            .store
            .browse()
            .expect("a store that can be browsed")
            .list(RecordFilter::default())
            .await
            .expect("a list")
            .items
            .len()
            == 1,
        "no record was made"
    );
}

#[tokio::test]
async fn a_webhook_speaks_of_its_own_tenants_record_alone() {
    let world = world().await;
    world.unknown("k").await;
    let mut other = unsigned_webhook("evt_1", "paid", "k");
    other.body = other.body.replacen("\"tenant\":\"ann\"", "\"tenant\":\"bob\"", 1);
    assert_eq!(world.hook(&other).await, word(202, "kept"), "bob has no such record");
    assert_eq!(world.record("k").await.state, RecordState::Unknown);
    assert_eq!(world.pay("k", "answer").await.0, 409);
}

#[tokio::test]
async fn an_unmapped_event_is_ignored_but_an_unreadable_one_refused() {
    let world = world().await;
    world.unknown("k").await;
    assert_eq!(world.hook(&unsigned_webhook("evt_1", "created", "k")).await, word(200, "ignored"));
    let paid = unsigned_webhook("evt_2", "paid", "k");
    for (what, instead) in [("\"type\"", "\"kind\""), ("\"key\"", "\"kee\""), ("\"at\"", "\"ta\""), ("}", "")]
    {
        let body = paid.body.replacen(what, instead, 1);
        let lacking = UnsignedWebhook { body, ..paid.clone() };
        assert_eq!(world.hook(&lacking).await, word(422, "urn:ibid:problem:hook-unreadable"), "{what}");
    }
    assert_eq!(world.record("k").await.state, RecordState::Unknown);
}

#[tokio::test]
async fn a_webhook_that_could_not_be_kept_is_to_be_sent_again() {
    let world = world().await;
    world.unknown("k").await;
    world.store.set(StoreFault::Down);
    assert_eq!(world.hook(&unsigned_webhook("evt_1", "paid", "k")).await.0, 503);
    world.store.set(StoreFault::None);
    assert_eq!(world.hook(&unsigned_webhook("evt_1", "paid", "k")).await, word(200, "settled"));
}

#[tokio::test]
async fn a_contradicting_webhook_changes_no_stored_response() {
    let world = world().await;
    assert_eq!(world.pay("k", "answer").await.0, 201);
    assert_eq!(world.hook(&unsigned_webhook("evt_1", "paid", "k")).await, word(200, "settled already"));
    assert!(world.history("k", HistoryKind::LateAnswer).await.is_empty(), "it says the same");
    for _ in 0..2 {
        world.hook(&unsigned_webhook("evt_2", "declined", "k")).await;
    }
    let history = world.history("k", HistoryKind::LateAnswer).await;
    assert_eq!(history, ["webhook: executed with 402, although it is completed (event `evt_2` of `psp`)"]);
    assert_eq!(world.pay("k", "break").await.2, b"answered");
}

#[tokio::test]
async fn a_hook_that_can_not_be_used_is_refused_at_the_start() {
    let world = world().await;
    let bound = Policy::default().with(|policy| policy.bind = BindRule::Principal);
    let routes = Routes::new(bound.clone(), vec![]).expect("good routes");
    let settings = Settings::default().with(|settings| settings.identity = routes.identity("one"));
    let store = Arc::new(MemoryStore::new(Clock::system()));
    let by_principal = Ibid::start(store, settings).await.expect("it starts");
    let layer = |policy: Policy| {
        let ibid = if policy.bind == BindRule::Principal { &by_principal } else { &world.ibid };
        let routes = Routes::new(policy, vec![]).expect("good routes");
        IdempotencyLayer::with_routes(ibid.clone(), TenantSource::only(), routes)
    };
    let refused = |policy: Policy, change: fn(&mut Hook)| {
        let mut hook = hook();
        change(&mut hook);
        layer(policy).hooks(vec![hook]).err().map(|error| error.to_string()).unwrap_or_default()
    };
    let plain = Policy::default;
    assert!(refused(plain(), |hook| hook.name = "a/b".into()).contains("must be named by"));
    assert!(refused(plain(), |hook| hook.secrets.clear()).contains("needs 1 to 8 secrets"));
    assert!(
        refused(plain(), |hook| hook.scheme = SignatureScheme::Stripe).contains("pointer to the event's id")
    );
    assert!(refused(plain(), |hook| hook.mapping.not_executed.push("paid".into())).contains("twice"));
    assert!(refused(plain(), |hook| hook.mapping.event_time = None).contains("(`event_time`)"));
    let only_executed = |hook: &mut Hook| {
        hook.mapping.not_executed.clear();
        hook.mapping.event_time = None;
    };
    assert_eq!(refused(plain(), only_executed), "", "an execution is final, whenever it is reported");
    let elsewhere = |hook: &mut Hook| {
        if let HookTarget::Record { operation, .. } = &mut hook.mapping.target {
            operation.method = "PUT".into();
        }
    };
    assert!(refused(plain(), elsewhere).contains("not guarded"));
    let by_key = |hook: &mut Hook| hook.mapping.target = HookTarget::DownstreamKey(pointer("/data/key"));
    assert!(refused(plain(), by_key).contains("no outbox"), "this store has no effects");
    let of_no_kind = |hook: &mut Hook| {
        let id = pointer("/data/id");
        hook.mapping.target = HookTarget::ProviderId(ProviderIdAt::new("", id));
    };
    assert!(refused(plain(), of_no_kind).contains("must name their kind"));
    assert!(refused(bound, |_| {}).contains("names no principal"));
    assert!(layer(plain()).hooks(vec![hook(), hook()]).is_err(), "one name, one source");
}
