//! Status of the store and this process: counts of records, tenants by duplicate rate, and the chores.

use std::collections::BTreeMap;
use std::time::SystemTime;

use axum::Json;
use axum::extract::State;
use ibid::State as RecordState;
use ibid::engine::TenantRate;
use ibid::operator::{RecordCounts, RowCount};
use ibid::upkeep::ChoreStatus;
use ibid_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::AppState;
use crate::dto::limit;
use crate::extract::QueryParams;
use crate::problem::{Problem, Refusals};
use crate::views::rfc3339;

/// Number of tenants to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct LimitQuery {
    /// Most tenants to list; 100 by default.
    #[param(nullable = false, minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

/// Tenants, the highest duplicate rate first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TenantsView {
    tenants: Vec<TenantView>,
    /// Number of tenants above the configured duplicate rate.
    above: u64,
}

/// Requests of one tenant to this process in the last five to ten minutes.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Tenant)]
pub(crate) struct TenantView {
    tenant: String,
    /// Guarded requests that were decided.
    requests: u64,
    /// Requests whose key had been used before.
    duplicates: u64,
    /// Duplicates whose request differs from the first one with that key.
    misused: u64,
    /// Share of duplicates among the requests, from 0 to 1.
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
/// Counts only requests to this process. If there are very many tenants, only the busiest are tracked. Tenants with fewer
/// than 20 requests are listed last.
#[utoipa::path(
    get,
    path = "/v1/tenants",
    params(LimitQuery),
    responses((status = 200, description = "Tenants", body = TenantsView), Refusals)
)]
pub(crate) async fn tenants(
    State(app): State<AppState>,
    QueryParams(query): QueryParams<LimitQuery>,
) -> Result<Json<TenantsView>, Problem> {
    let rates = app.ibid.tenants(limit(query.limit)? as usize);
    let above = app.ibid.tenants_above_duplicate_rate() as u64;
    Ok(Json(TenantsView { tenants: rates.iter().map(TenantView::of).collect(), above }))
}

/// Status of the chores and the engine of this process.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct UpkeepView {
    /// Every chore that has run in this process.
    chores: Vec<ChoreView>,
    /// `true` while new keys are refused because the store does not answer.
    breaker_open: bool,
    /// Number of duplicates that wait for a response.
    waiting: u64,
}

/// Status of one chore.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Chore)]
pub(crate) struct ChoreView {
    name: &'static str,
    /// Time of the last success, by this node's clock.
    succeeded_at: Option<String>,
    /// Number of items that the last successful run handled.
    did: u64,
    failed_at: Option<String>,
    /// Error of the last failure, cleared by the next success.
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

/// Numbers of records and dead letters.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Counts)]
pub struct CountsView {
    /// Numbers of records, by state.
    records: BTreeMap<&'static str, CountView>,
    /// Records that an operator must look at.
    dead_letters: CountView,
    /// Effects that an operator must look at.
    dead_effects: CountView,
    /// Time since the unknown record that ran longest ago; null if no record is unknown.
    oldest_unknown_seconds: Option<u64>,
}

/// A number of rows.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Count)]
struct CountView {
    /// The number; null if the store cannot tell.
    count: Option<u64>,
    /// `true` if the number comes from the database's statistics.
    estimated: bool,
}

impl CountView {
    fn of(count: RowCount) -> CountView {
        CountView { count: count.value(), estimated: count.is_estimated() }
    }
}

impl CountsView {
    /// Returns the counts as the API shows them.
    pub fn of(counts: &RecordCounts) -> CountsView {
        let by_state = RecordState::ALL.into_iter().zip(counts.by_state);
        CountsView {
            records: by_state.map(|(state, count)| (state.name(), CountView::of(count))).collect(),
            dead_letters: CountView::of(counts.dead_letters),
            dead_effects: CountView::of(counts.dead_effects),
            oldest_unknown_seconds: counts.oldest_unknown.map(|age| age.as_secs()),
        }
    }
}

/// Counts records by state, and dead letters
///
/// A store with a large table returns estimates.
#[utoipa::path(
    get,
    path = "/v1/counts",
    responses((status = 200, description = "The counts", body = CountsView), Refusals)
)]
pub(crate) async fn counts(
    State(app): State<AppState>,
    QueryParams(NoParams {}): QueryParams<NoParams>,
) -> Result<Json<CountsView>, Problem> {
    let counts = app.operator.count().await?;
    Ok(Json(CountsView::of(&counts)))
}

/// An empty set of parameters, so that unknown ones are refused.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NoParams {}

/// Shows the last run of each chore
#[utoipa::path(
    get,
    path = "/v1/upkeep",
    responses((status = 200, description = "The chores of this process", body = UpkeepView), Refusals)
)]
pub(crate) async fn upkeep(
    State(app): State<AppState>,
    QueryParams(NoParams {}): QueryParams<NoParams>,
) -> Result<Json<UpkeepView>, Problem> {
    Ok(Json(UpkeepView {
        chores: app.ibid.chores().iter().map(ChoreView::of).collect(),
        breaker_open: app.ibid.is_breaker_open(),
        waiting: app.ibid.waiting() as u64,
    }))
}
