//! The routes, and the order of the layers around them.
//!
//! Outermost first: authentication ([`crate::account`]), validation ([`crate::input`]), ibid, the handler. `GET` needs no
//! key, because it changes nothing.

use axum::body::Body;
use axum::extract::State;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use ibid::http::hooks::{Hook, HookMapping, HookSecret, HookTarget, SignatureScheme};
use ibid::policy::Pointer;
use ibid::prelude::*;
use serde_json::{Value, json};

use crate::account::{Accounts, authenticate};
use crate::db::{Db, on_database};
use crate::input::{PAYMENTS, RIDES, validate};
use crate::problem::Problem;
use crate::processor::ProcessorClient;
use crate::{payments, rides};

/// State that is shared by all handlers.
#[derive(Clone, Debug)]
pub struct App {
    /// The database of payments, rides and records.
    pub db: Db,
    /// Client that charges rides. Payments are charged by the worker, with a separate client.
    pub processor: ProcessorClient,
    /// Rules for charges. Attempts have the same lease.
    pub charge_rules: EffectRules,
}

/// Builds the router with all layers.
pub fn router(
    app: App,
    ibid: Ibid,
    accounts: Option<Accounts>,
    hook: Option<HookSecret>,
) -> Result<Router, BoxError> {
    let guard = guard(ibid, app.charge_rules, hook)?;
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
    let health = Router::new().route("/health", get(health)).with_state(app);
    Ok(health.merge(routes).fallback(async || Problem::not_found()))
}

/// Answers 200 if the database does, for load balancers.
async fn health(State(App { db, .. }): State<App>) -> Result<Json<Value>, Problem> {
    on_database!(&db, |database| sqlx::query("select 1").execute(&database.0).await.map(drop)?);
    Ok(Json(json!({ "status": "ok" })))
}

/// Builds the idempotency layer, with separate policies for payments and rides.
fn guard(ibid: Ibid, charges: EffectRules, hook: Option<HookSecret>) -> Result<IdempotencyLayer, BoxError> {
    // Retries replay the response for a month. For a year after that, an old key is refused: running it again would charge
    // again.
    let money = Policy::payments().with(|policy| {
        policy.lease = charges.lease();
        // Safe for both routes: a payment that failed has committed nothing, and a ride continues after its last phase.
        policy.on_server_error = OnServerError::Retry;
    });
    // A payment is one transaction, which fails to commit if the attempt has lost its lease. So a lapsed attempt has
    // either committed everything or nothing, and the next one may simply run.
    let payments = money.clone().with(|policy| policy.on_lapse = OnLapse::Retry);
    let rides = money.with(|policy| policy.on_lapse = OnLapse::Resume);
    let routes = Routes::builder().post(PAYMENTS, payments).post(RIDES, rides).build()?;
    let hooks = hook.map(processor_hook).transpose()?;
    let guard = IdempotencyLayer::with_routes(ibid, TenantSource::from_extension(), routes);
    Ok(guard.hooks(hooks.into_iter().collect())?)
}

/// Describes the processor's webhook: how it is signed, and how its fields map to the outcome of a charge.
///
/// The processor names each charge by the downstream key that the worker sent. ibid derived that key from the record, so a
/// webhook needs no tenant.
fn processor_hook(secret: HookSecret) -> Result<Hook, BoxError> {
    let target = HookTarget::DownstreamKey(Pointer::parse("/data/idempotencyKey")?);
    let mut mapping = HookMapping::new(target, Pointer::parse("/type")?);
    mapping.executed = vec![("charge.succeeded".to_owned(), 201), ("charge.declined".to_owned(), 402)];
    mapping.body = Pointer::parse("/data")?;
    mapping.provider_id = Some(Pointer::parse("/data/chargeId")?);
    Ok(Hook::new("processor", SignatureScheme::Standard, vec![secret], mapping))
}
