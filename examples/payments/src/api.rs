//! The routes, and the order in which a request meets the layers.
//!
//! Outermost first: authentication ([`crate::account`]), validation ([`crate::input`]), ibid, the handler. `GET` needs no
//! key and changes nothing.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRef, State};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use http::Method;
use ibid::Ibid;
use ibid::core::fingerprint::Pointer;
use ibid::core::policy::{OnLapse, OnServerError, Policy};
use ibid::http::hooks::{Hook, HookMapping, HookSecret, HookTarget, SignatureScheme};
use ibid::http::{IdempotencyLayer, ReservedBy, Routes, Rule, TenantSource};
use serde_json::{Value, json};

use crate::account::{Accounts, authenticate, tenant};
use crate::db::{Backend, Db, on_pool};
use crate::input::{PAYMENTS, RIDES, validate};
use crate::problem::Problem;
use crate::processor::ProcessorClient;
use crate::serve::Failure;
use crate::worker::InDoubt;
use crate::{payments, rides};

/// What the handlers work with.
#[derive(Clone, Debug)]
pub struct App<D> {
    /// For reads.
    pub db: Db,
    /// For writes, in one transaction with the record.
    pub database: D,
    /// The processor, for rides.
    pub processor: ProcessorClient,
    /// Lease of attempts and effects.
    pub lease: Duration,
    /// What to do about a charge whose response was lost.
    pub in_doubt: InDoubt,
}

impl<D> FromRef<App<D>> for Db {
    fn from_ref(app: &App<D>) -> Db {
        app.db.clone()
    }
}

/// Builds the router.
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
        // ibid answers its own pages (the status of a key, webhooks) before the request gets here.
        .route("/.ibid/{*page}", any(async || Problem::not_found()))
        .with_state(app.clone());
    // The sweeper resumes lapsed rides on the handlers themselves: it has no token, and the key is reserved already.
    let guard = guard.resumes::<_, Body, _>(routes.clone());
    // The last layer is outermost. ibid is inside the other two, so that no unknown client and no invalid body uses a key.
    let routes =
        routes.layer(guard).layer(from_fn(validate)).layer(from_fn_with_state(accounts, authenticate));
    let health = Router::new().route("/health", get(health)).with_state(app.db);
    Ok(health.merge(routes).fallback(async || Problem::not_found()))
}

/// Tells a load balancer whether the database answers.
async fn health(State(db): State<Db>) -> Result<Json<Value>, Problem> {
    on_pool!(&db, pool => sqlx::query("select 1").execute(pool).await.map(drop))?;
    Ok(Json(json!({ "status": "ok" })))
}

/// Guards every `POST`, with separate policies for payments and rides.
fn guard(ibid: Ibid, lease: Duration, hook: Option<HookSecret>) -> Result<IdempotencyLayer, Failure> {
    // Replays for a month. For a year after that, an old key is refused instead of charged again.
    let money = Policy { lease, ..Policy::payments() };
    // The handler of a payment does everything in one transaction, which fences out an attempt that lost its lease.
    let one = Policy::one_transaction();
    let payments = Policy { on_lapse: one.on_lapse, on_server_error: one.on_server_error, ..money.clone() };
    // A ride continues after its last committed phase, so a server error is safe to retry, too.
    let rides = Policy { on_lapse: OnLapse::Resume, on_server_error: OnServerError::Retry, ..money.clone() };
    let rule = |pattern: &str, policy| Rule {
        methods: vec![Method::POST],
        pattern: pattern.to_owned(),
        policy: Some(policy),
        reserved_by: ReservedBy::Layer,
    };
    let routes = Routes::new(money, vec![rule(PAYMENTS, payments), rule(RIDES, rides)])?;
    let hooks = hook.map(processor_hook).transpose()?;
    Ok(IdempotencyLayer::with_routes(ibid, TenantSource::by(tenant), routes)
        .hooks(hooks.into_iter().collect())?)
}

/// The processor reports every charge, and names it by the key that the worker sent. So a webhook needs no tenant.
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
