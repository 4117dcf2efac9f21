//! How things stand in this process: tenants by duplicate rate, and the chores.

use std::time::SystemTime;

use axum::Json;
use axum::extract::State;
use ibid::engine::TenantRate;
use ibid::upkeep::ChoreStatus;
use ibid_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::AppState;
use crate::dto::limit;
use crate::extract::QueryParams;
use crate::problem::{Problem, Refusals};
use crate::views::rfc3339;

/// How many tenants.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct LimitQuery {
    /// How many at most; 100 unless said.
    #[param(nullable = false, minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

/// Tenants, the highest duplicate rate first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TenantsView {
    tenants: Vec<TenantView>,
    /// How many are above the configured duplicate rate.
    above: u64,
}

/// What one tenant sent to this process in the last five to ten minutes.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Tenant)]
pub(crate) struct TenantView {
    tenant: String,
    /// Guarded requests that were decided on.
    requests: u64,
    /// Those whose key had come before.
    duplicates: u64,
    /// Those of the duplicates that came with another request.
    misused: u64,
    /// Duplicates by requests, from 0 to 1.
    rate: f64,
}

impl TenantView {
    fn of(rate: &TenantRate) -> TenantView {
        TenantView {
            tenant: rate.tenant.as_str().to_owned(),
            requests: rate.requests,
            duplicates: rate.duplicates,
            misused: rate.misused,
            rate: rate.rate(),
        }
    }
}

/// Shows tenants by duplicate rate
///
/// As this process saw them. Of very many tenants only the busiest are followed; those with fewer than 20 requests stand
/// last.
#[utoipa::path(
    get,
    path = "/v1/tenants",
    params(LimitQuery),
    responses((status = 200, description = "Tenants", body = TenantsView), Refusals)
)]
pub(crate) async fn tenants(
    State(desk): State<AppState>,
    QueryParams(many): QueryParams<LimitQuery>,
) -> Result<Json<TenantsView>, Problem> {
    let rates = desk.ibid.tenants(limit(many.limit)? as usize);
    let above = desk.ibid.tenants_above_duplicate_rate() as u64;
    Ok(Json(TenantsView { tenants: rates.iter().map(TenantView::of).collect(), above }))
}

/// How this process looks after the store.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct UpkeepView {
    /// Every chore that has run in this process.
    chores: Vec<ChoreView>,
    /// Whether new keys are refused because the store does not answer.
    breaker_open: bool,
    /// How many duplicates wait for an answer.
    waiting: u64,
}

/// One chore.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Chore)]
pub(crate) struct ChoreView {
    name: &'static str,
    /// When it last succeeded, by this node's clock.
    succeeded_at: Option<String>,
    /// How much it did then.
    did: u64,
    failed_at: Option<String>,
    /// Why it failed; gone once it succeeds.
    error: Option<String>,
}

impl ChoreView {
    fn of(chore: &ChoreStatus) -> ChoreView {
        let at = |at: SystemTime| {
            let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            rfc3339(Timestamp::default().after(since))
        };
        ChoreView {
            name: chore.name,
            succeeded_at: chore.succeeded_at.map(at),
            did: chore.did,
            failed_at: chore.failed_at.map(at),
            error: chore.error.clone(),
        }
    }
}

/// Parameters that are not there: so that unknown ones are refused.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NoParams {}

/// Shows when each chore last ran
#[utoipa::path(
    get,
    path = "/v1/upkeep",
    responses((status = 200, description = "The chores of this process", body = UpkeepView), Refusals)
)]
pub(crate) async fn upkeep(
    State(desk): State<AppState>,
    QueryParams(NoParams {}): QueryParams<NoParams>,
) -> Result<Json<UpkeepView>, Problem> {
    Ok(Json(UpkeepView {
        chores: desk.ibid.chores().iter().map(ChoreView::of).collect(),
        breaker_open: desk.ibid.is_breaker_open(),
        waiting: desk.ibid.waiting() as u64,
    }))
}
