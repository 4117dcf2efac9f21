//! Both modes behind the guard of a real router.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use ibid::http::{
    GuardedRequest, HeldAttempt, IdempotencyLayer, IdempotencyService, ReserveError, ReservedBy, Routes,
    Rule, TenantSource, UnreservedRequest,
};
use ibid::outbox::{CallOutcome, CallResult, EffectCall, EffectHandler, RawPayload, Worker};
use ibid::outcome::Outcome;
use ibid::transaction::{AttemptTx, OwnedTx, SqlTx, TxError};
use ibid_core::effect::NewEffect;
use ibid_core::policy::Policy;
use ibid_core::response::Response as Answer;
use tower::{Layer, ServiceExt};

use super::harness::{NodeOnDatabase, answer, pay, pay_and_charge};
use crate::adapters::{Adapter, PATIENT};

pub(super) fn policy() -> Policy {
    Policy::one_transaction().with(|policy| policy.wait = PATIENT)
}

struct Api<A: Adapter> {
    world: Arc<NodeOnDatabase<A>>,
    app: IdempotencyService<Router>,
    /// The router of `app`, behind a guard that soon gives up on a handler that hangs.
    hasty: IdempotencyService<Router>,
}

pub(super) async fn every_rule<A: Adapter>(world: NodeOnDatabase<A>) {
    let world = Arc::new(world);
    let router = Router::new()
        .route("/held/{what}", post(pay_held::<A>))
        .route("/unbegun/{what}", post(unbegun::<A>))
        .with_state(world.clone());
    let guarded = |upstream_timeout: Duration| {
        let policy = policy().with(|policy| policy.upstream_timeout = upstream_timeout);
        let rule = Rule::new(vec![Method::POST], "/unbegun/{what}", Some(policy.clone()))
            .with(|rule| rule.reserved_by = ReservedBy::Handler);
        let routes = Routes::new(policy, vec![rule]).unwrap();
        IdempotencyLayer::with_routes(world.ibid.clone(), TenantSource::only(), routes).layer(router.clone())
    };
    let (app, hasty) = (guarded(PATIENT), guarded(Duration::from_secs(1)));
    let api = Api { world: world.clone(), app, hasty };
    for mode in ["held", "unbegun"] {
        the_stored_answer_goes_out_and_is_repeated(&api, mode).await;
        what_fails_is_undone_and_the_key_is_free(&api, mode).await;
        an_answer_that_undoes_is_repeated(&api, mode).await;
        an_owed_answer_is_waited_for(&api, mode).await;
    }
}

async fn pay_held<A: Adapter>(
    State(world): State<Arc<NodeOnDatabase<A>>>,
    Path(what): Path<String>,
    guarded: GuardedRequest,
    mut held: HeldAttempt,
) -> Result<Response, TxError> {
    let key = guarded.key.as_str();
    let inside = held.join_tx(world.tx().await).await?;
    work(inside, &what, key, guarded.attempt > 1).await
}

async fn unbegun<A: Adapter>(
    State(world): State<Arc<NodeOnDatabase<A>>>,
    Path(what): Path<String>,
    unbegun: UnreservedRequest,
    headers: HeaderMap,
) -> Result<Response, ReserveError> {
    let inside = unbegun.begin(&world.db).await?;
    let again = headers.contains_key("x-again");
    Ok(work(*inside, &what, unbegun.key().as_str(), again).await?)
}

/// Fails at first as `what` says; the second run succeeds.
async fn work<T: OwnedTx>(
    mut inside: AttemptTx<'_, T>,
    what: &str,
    key: &str,
    again: bool,
) -> Result<Response, TxError> {
    if what == "owed" {
        pay(&mut *inside, key, what).await?;
        inside.enqueue(NewEffect::new("charge", "charge", "").owing()).await?;
        return Ok(inside.owe().await?.into_response());
    }
    pay_and_charge(&mut inside, key, what).await?;
    match what {
        "panic" if !again => panic!("with a transaction open"),
        "hang" if !again => std::future::pending().await,
        "error" if !again => Ok((StatusCode::INTERNAL_SERVER_ERROR, "no").into_response()),
        "503" if !again => Ok(inside.finish(answer(503)).await?.into_response()),
        "402" => Ok(inside.finish(answer(402)).await?.into_response()),
        _ => finish_created(inside).await,
    }
}

async fn finish_created<T: OwnedTx>(inside: AttemptTx<'_, T>) -> Result<Response, TxError> {
    let mut created = Answer::plain(201, "text/plain", "created".to_owned());
    created.headers.push(("location".to_owned(), "/payments/7".into()));
    let finished = inside.finish(created).await?;
    assert!(matches!(finished, Outcome::Completed(_)), "{finished:?}");
    Ok("the guard answers with what is stored".into_response())
}

struct Got {
    status: u16,
    headers: HeaderMap,
    body: Bytes,
}

async fn send(app: &IdempotencyService<Router>, path: &str, key: &str, again: bool) -> Got {
    let mut request = Request::post(path).header("idempotency-key", key);
    if again {
        request = request.header("x-again", "1");
    }
    let answer = app.clone().oneshot(request.body(Body::from("{}")).unwrap()).await.unwrap();
    let (head, body) = answer.into_parts();
    let body = to_bytes(Body::new(body), 1 << 20).await.unwrap();
    Got { status: head.status.as_u16(), headers: head.headers, body }
}

async fn the_stored_answer_goes_out_and_is_repeated<A: Adapter>(api: &Api<A>, mode: &str) {
    let (path, key) = (format!("/{mode}/well"), format!("{mode}-well"));
    let app = &api.app;
    let first = send(app, &path, &key, false).await;
    assert_eq!((first.status, &first.body[..]), (201, &b"created"[..]), "{mode}");
    assert_eq!(first.headers["location"], "/payments/7");
    assert!(first.headers.contains_key("idempotency-expires"));
    assert!(!first.headers.contains_key("idempotent-replayed"));
    let mut again = send(app, &path, &key, false).await;
    assert_eq!(again.headers.remove("idempotent-replayed").unwrap(), "true");
    assert_eq!(again.headers.remove("cache-control").unwrap(), "no-store");
    assert_eq!((again.status, again.headers, again.body), (first.status, first.headers, first.body));
    assert_eq!(api.world.payments(&key).await, 1);
}

async fn what_fails_is_undone_and_the_key_is_free<A: Adapter>(api: &Api<A>, mode: &str) {
    let app = &api.app;
    for (what, status) in [("panic", 500), ("error", 500), ("503", 503), ("hang", 0)] {
        let (path, key) = (format!("/{mode}/{what}"), format!("{mode}-{what}"));
        let failed = send(if what == "hang" { &api.hasty } else { app }, &path, &key, false).await;
        match (what, mode) {
            // The key is free, and the client may retry; no reservation was visible.
            ("hang", "held") => assert_eq!(failed.status, 503),
            ("hang", _) => {
                assert_eq!((failed.status, &failed.headers["retry-after"]), (409, &"1".parse().unwrap()))
            }
            _ => assert_eq!(failed.status, status, "{key}"),
        }
        assert!(!failed.headers.contains_key("idempotency-expires"), "{key}");
        assert_eq!(api.world.payments(&key).await, 0, "{key}");
        let retried = send(app, &path, &key, true).await;
        assert_eq!(retried.status, 201, "{key}: {:?}", retried.body);
        assert!(!retried.headers.contains_key("idempotent-replayed"), "{key}");
        assert_eq!(api.world.payments(&key).await, 1, "{key}");
    }
}

async fn an_answer_that_undoes_is_repeated<A: Adapter>(api: &Api<A>, mode: &str) {
    let (path, key) = (format!("/{mode}/402"), format!("{mode}-402"));
    let app = &api.app;
    let first = send(app, &path, &key, false).await;
    assert_eq!((first.status, &first.body[..]), (402, &b"answer 402"[..]), "{mode}");
    assert!(first.headers.contains_key("idempotency-expires"));
    let again = send(app, &path, &key, false).await;
    assert_eq!((again.status, &again.headers["idempotent-replayed"]), (402, &"true".parse().unwrap()));
    assert_eq!(again.body, first.body);
    assert_eq!(api.world.payments(&key).await, 0);
}

struct Provider;

impl<T: SqlTx> EffectHandler<T> for Provider {
    type Payload = RawPayload;

    async fn call(&self, _: &EffectCall) -> CallOutcome {
        let paid = Answer::plain(201, "text/plain", "paid".to_owned());
        CallOutcome::Made(
            CallResult::default().with(|made| (made.result, made.response) = ("receipt".into(), Some(paid))),
        )
    }
}

async fn an_owed_answer_is_waited_for<A: Adapter>(api: &Api<A>, mode: &str) {
    let (path, key) = (format!("/{mode}/owed"), format!("{mode}-owed"));
    let client = tokio::spawn({
        let (app, path, key) = (api.app.clone(), path.clone(), key.clone());
        async move { send(&app, &path, &key, false).await }
    });
    let database = A::open(&api.world.test_db, 1, PATIENT).await;
    let worker = Worker::builder(api.world.ibid.clone(), database).on("charge", Provider).build().unwrap();
    while !client.is_finished() {
        worker.run_once().await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let response = client.await.unwrap();
    assert_eq!((response.status, &response.body[..]), (201, &b"paid"[..]), "{mode}");
    assert_eq!(send(&api.app, &path, &key, false).await.body, response.body);
    assert_eq!(api.world.payments(&key).await, 1);
}
