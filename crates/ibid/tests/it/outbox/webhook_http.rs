//! Signed webhooks on calls of the outbox, through the guard: from the payload to the effect.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use ibid::http::hooks::{Hook, HookMapping, HookSecret, HookTarget, ProviderIdAt, SignatureScheme};
use ibid::http::{IdempotencyLayer, IdempotencyService, TenantSource};
use ibid::outbox::CallOutcome;
use ibid_core::effect::NewEffect;
use ibid_core::fingerprint::Pointer;
use ibid_core::machine::EffectState::{Done, Queued, Unknown};
use serde_json::{Value, json};
use standardwebhooks::Webhook;
use tower::{Layer, ServiceExt};

use super::harness::{NodeOnSqlite, Provider};

const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

fn pointer(text: &str) -> Pointer {
    Pointer::parse(text).unwrap()
}

fn hook() -> Hook {
    let provider_id = ProviderIdAt::new("charge", pointer("/data/id"));
    let target = HookTarget::Either { downstream_key: pointer("/data/key"), provider_id };
    let mapping = HookMapping::new(target, pointer("/type")).with(|mapping| {
        mapping.executed = vec![("paid".to_owned(), 201), ("declined".to_owned(), 402)];
        mapping.not_executed = vec!["void".to_owned()];
        mapping.body = pointer("/data");
        mapping.provider_id = Some(pointer("/data/id"));
        mapping.event_time = Some(pointer("/at"));
    });
    let secret = HookSecret::parse(&SignatureScheme::Standard, SECRET).unwrap();
    Hook::new("psp", SignatureScheme::Standard, vec![secret], mapping)
}

fn guard(world: &NodeOnSqlite) -> IdempotencyService<Router> {
    // No route has a rule: an effect is found without one.
    let layer = IdempotencyLayer::new(world.ibid.clone(), TenantSource::only()).hooks(vec![hook()]).unwrap();
    layer.layer(Router::new())
}

/// Sends a webhook, signed by the reference library, and returns status and result.
async fn send(app: &IdempotencyService<Router>, event: &str, kind: &str, data: Value) -> (u16, String) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
    let body = json!({ "type": kind, "at": now, "data": data }).to_string();
    let signature = Webhook::new(SECRET).unwrap().sign(event, now, body.as_bytes()).unwrap();
    let request = Request::post("/.ibid/hooks/psp")
        .header("webhook-id", event)
        .header("webhook-timestamp", now)
        .header("webhook-signature", signature)
        .body(Body::from(body));
    let answer = app.clone().oneshot(request.unwrap()).await.unwrap_or_else(|never| match never {});
    let status = answer.status().as_u16();
    let body = to_bytes(Body::new(answer.into_body()), usize::MAX).await.unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap();
    (status, body["result"].as_str().or(body["type"].as_str()).unwrap_or_default().to_owned())
}

fn word(status: u16, word: &str) -> (u16, String) {
    (status, word.to_owned())
}

#[tokio::test]
async fn a_payload_that_has_our_key_settles_the_call_made_under_it() {
    let world = NodeOnSqlite::new().await;
    let provider = Provider::new("w", |_| CallOutcome::Uncertain { why: "reset".into() });
    world.pay("k", [NewEffect::new("charge", "charge", "42")]).await;
    let (worker, app) = (world.worker(&provider), guard(&world));
    let key = world.only_effect().await.downstream_key;
    let paid = json!({ "key": key, "id": "ch_1", "amount": 42 });
    assert_eq!(send(&app, "evt_1", "paid", paid.clone()).await, word(202, "kept"), "it is not called yet");
    worker.run_once().await.unwrap();
    let settled = async {
        while world.only_effect().await.state != Done {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), settled).await.expect("it is used once the answer is lost");
    let done = world.only_effect().await;
    assert_eq!(serde_json::from_slice::<Value>(&done.result.unwrap()).unwrap(), paid);
    assert_eq!(done.provider_id.as_deref(), Some("ch_1"));
    assert_eq!(send(&app, "evt_1", "paid", paid).await, word(200, "settled already"));
    let never = json!({ "key": key, "id": "ch_1" });
    assert_eq!(send(&app, "evt_2", "void", never).await, word(200, "settled otherwise"));
    assert_eq!(provider.calls().len(), 1);
}

#[tokio::test]
async fn a_webhook_by_provider_id_settles_its_call() {
    let world = NodeOnSqlite::new().await;
    let provider = Provider::new("w", |_| CallOutcome::Accepted { provider_id: "ch_1".into() });
    world.pay("k", [NewEffect::new("charge", "charge", "42")]).await;
    let (worker, app) = (world.worker(&provider), guard(&world));
    worker.run_once().await.unwrap();
    let other = json!({ "key": "another", "id": "ch_2" });
    assert_eq!(send(&app, "evt_1", "paid", other).await, word(202, "kept"));
    assert_eq!(world.only_effect().await.state, Unknown);
    assert_eq!(send(&app, "evt_2", "declined", json!({ "id": "ch_1" })).await, word(200, "settled"));
    assert_eq!(world.only_effect().await.state, Done, "a decline is an answer");
    let nameless = send(&app, "evt_3", "paid", json!({})).await;
    assert_eq!(nameless, word(422, "urn:ibid:problem:hook-unreadable"));
    assert_eq!(send(&app, "evt_4", "created", json!({})).await, word(200, "ignored"));
}

#[tokio::test]
async fn a_call_reported_not_made_is_repeated_once_it_can_not_arrive() {
    let world = NodeOnSqlite::new().await;
    let provider = Provider::new("w", |_| CallOutcome::Uncertain { why: "reset".into() });
    world.pay("k", [NewEffect::new("charge", "charge", "42")]).await;
    let (worker, app) = (world.worker(&provider), guard(&world));
    worker.run_once().await.unwrap();
    let void = json!({ "key": world.only_effect().await.downstream_key });
    assert_eq!(send(&app, "evt_1", "void", void.clone()).await, word(200, "premature"));
    world.pass(120);
    assert_eq!(send(&app, "evt_1", "void", void.clone()).await, word(200, "duplicate"));
    assert_eq!(send(&app, "evt_2", "void", void.clone()).await, word(200, "settled"));
    assert_eq!(world.only_effect().await.state, Queued);
    assert_eq!(send(&app, "evt_2", "void", void).await, word(200, "duplicate"));
    assert_eq!(provider.calls().len(), 1);
}
