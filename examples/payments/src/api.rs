//! The routes, and the order of the layers around them.
//!
//! Outermost first: authentication ([`crate::account`]), validation ([`crate::input`]), ibid, the handler. `GET` needs no
//! key, because it changes nothing.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRef, State};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use ibid::Ibid;
use ibid::http::hooks::{Hook, HookMapping, HookSecret, HookTarget, SignatureScheme};
use ibid::http::{IdempotencyLayer, Routes, TenantSource};
use ibid::policy::{OnLapse, OnServerError, Pointer, Policy};
use serde_json::{Value, json};

use crate::account::{Accounts, authenticate, tenant};
use crate::db::{Backend, Db, on_pool};
use crate::input::{PAYMENTS, RIDES, validate};
use crate::problem::Problem;
use crate::processor::ProcessorClient;
use crate::serve::Failure;
use crate::worker::InDoubt;
use crate::{payments, rides};

/// State that is shared by all handlers.
#[derive(Clone, Debug)]
pub struct App<D> {
    /// Connection pool for reads.
    pub db: Db,
    /// Database for writes, which commit in one transaction with ibid's record.
    pub database: D,
    /// Client that charges rides. Payments are charged by the worker, with a separate client.
    pub processor: ProcessorClient,
    /// Lease of attempts and effects.
    pub lease: Duration,
    /// Handling of charges whose response was lost.
    pub in_doubt: InDoubt,
}

impl<D> FromRef<App<D>> for Db {
    fn from_ref(app: &App<D>) -> Db {
        app.db.clone()
    }
}

/// Builds the router with all layers.
pub fn router<D: Backend>(
    app: App<D>,
    ibid: Ibid,
    accounts: Option<Accounts>,
    hook: Option<HookSecret>,
) -> Result<Router, Failure> {
    let guard = guard(ibid, app.lease, hook)?;
    let routes = Router::new()
        .route(PAYMENTS, get(payments::list).post(payments::create))
        .route("/payments/{id}", get(payments::show))
        .route(RIDES, post(rides::create))
        .route("/rides/{id}", get(rides::show))
        // Without this route axum would not run the layers for ibid's own pages (the status of a key, webhooks). ibid answers
        // these itself, so a request that gets to this handler asks for a page that does not exist.
        .route("/.ibid/{*page}", any(async || Problem::not_found()))
        .with_state(app.clone());
    // The sweeper resumes lapsed rides on the bare routes, without the layers: it has no token, and the key is already
    // reserved.
    let guard = guard.resumes::<_, Body, _>(routes.clone());
    // The layer added last is outermost. ibid is inside the other two, so that neither an unknown client nor an invalid body
    // uses up a key.
    let routes =
        routes.layer(guard).layer(from_fn(validate)).layer(from_fn_with_state(accounts, authenticate));
    let health = Router::new().route("/health", get(health)).with_state(app.db);
    Ok(health.merge(routes).fallback(async || Problem::not_found()))
}

/// Answers 200 if the database does, for load balancers.
async fn health(State(db): State<Db>) -> Result<Json<Value>, Problem> {
    on_pool!(&db, pool => sqlx::query("select 1").execute(pool).await.map(drop))?;
    Ok(Json(json!({ "status": "ok" })))
}

/// Builds the idempotency layer: it guards every `POST`, with separate policies for payments and rides.
fn guard(ibid: Ibid, lease: Duration, hook: Option<HookSecret>) -> Result<IdempotencyLayer, Failure> {
    // Retries replay the response for a month. For a year after that, an old key is refused: running it again would charge
    // again.
    let money = Policy::payments().with(|policy| policy.lease = lease);
    // A payment is one transaction, which fails to commit if the attempt has lost its lease. So a lapsed attempt has
    // either committed everything or nothing, and the next one may simply run.
    let payments = money.clone().with(|policy| {
        policy.on_lapse = OnLapse::Retry;
        policy.on_server_error = OnServerError::Retry;
    });
    // A ride continues after its last committed phase, so it is also safe to retry after a server error.
    let rides = money.clone().with(|policy| {
        policy.on_lapse = OnLapse::Resume;
        policy.on_server_error = OnServerError::Retry;
    });
    let routes =
        Routes::builder().default_policy(money).post(PAYMENTS, payments).post(RIDES, rides).build()?;
    let hooks = hook.map(processor_hook).transpose()?;
    Ok(IdempotencyLayer::with_routes(ibid, TenantSource::by(tenant), routes)
        .hooks(hooks.into_iter().collect())?)
}

/// Describes the processor's webhook: how it is signed, and how its fields map to the outcome of a charge.
///
/// The processor names each charge by the downstream key that the worker sent. ibid derived that key from the record, so a
/// webhook needs no tenant.
fn processor_hook(secret: HookSecret) -> Result<Hook, Failure> {
    let mapping = HookMapping {
        target: HookTarget::DownstreamKey(Pointer::parse("/data/idempotencyKey")?),
        outcome: Pointer::parse("/type")?,
        executed: vec![("charge.succeeded".to_owned(), 201), ("charge.declined".to_owned(), 402)],
        not_executed: vec![],
        body: Pointer::parse("/data")?,
        provider_id: Some(Pointer::parse("/data/chargeId")?),
        event: None,
        event_time: None,
    };
    Ok(Hook {
        name: "processor".to_owned(),
        scheme: SignatureScheme::Standard,
        secrets: vec![secret],
        mapping,
    })
}
