//! Endpoints that find, show, resolve and forget records.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::AppState;
use crate::dto::{ActBody, RecordQuery, ResolveBody, check_body_allowed, prefix};
use crate::extract::{JsonBody, PathParam, QueryParams};
use crate::problem::{Problem, Refusals};
use crate::views::{HistoryView, RecordView};

/// Records that match the filter, in the order of their ids.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RecordPage {
    records: Vec<RecordView>,
    /// The `after` of the next page, if there is one.
    next: Option<String>,
}

/// Lists the records that match a filter
#[utoipa::path(
    get,
    path = "/v1/records",
    params(RecordQuery),
    responses((status = 200, description = "The matching records", body = RecordPage), Refusals)
)]
pub(crate) async fn list(
    State(app): State<AppState>,
    QueryParams(query): QueryParams<RecordQuery>,
) -> Result<Json<RecordPage>, Problem> {
    let page = app.operator.find(query.filter()?).await?;
    let records = page.records.iter().map(RecordView::of).collect();
    Ok(Json(RecordPage { records, next: page.next.map(|id| id.to_string()) }))
}

/// A record with its history.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RecordHistoryPage {
    record: RecordView,
    /// Size of the stored response, in bytes.
    answer_bytes: Option<u64>,
    /// History of the record, oldest line first.
    history: Vec<HistoryView>,
}

/// Shows one record with its history
#[utoipa::path(
    get,
    path = "/v1/records/{id}",
    params(("id" = String, Path, description = "The first 4 to 32 hex digits of the record's id", pattern = "^[0-9a-f]{4,32}$")),
    responses((status = 200, description = "The record", body = RecordHistoryPage), Refusals)
)]
pub(crate) async fn show(
    State(app): State<AppState>,
    PathParam(id): PathParam<String>,
) -> Result<Json<RecordHistoryPage>, Problem> {
    let stored = app.operator.get(&prefix(&id)?).await?;
    let life = app.operator.history(stored.record.id).await?;
    Ok(Json(RecordHistoryPage {
        record: RecordView::of(&life.stored),
        answer_bytes: life.stored.body().map(|body| body.len() as u64),
        history: life.history.iter().map(HistoryView::of).collect(),
    }))
}

/// Settles an unknown record with the outcome that an operator found
///
/// Works only for an `unknown` record, or with `seen` for a dead letter whose outcome is known. For any other record, and if
/// another process was first, the response is 409 with the record as it is now and what settled it.
#[utoipa::path(
    post,
    path = "/v1/records/{id}/resolve",
    params(("id" = String, Path, description = "The first 4 to 32 hex digits of the record's id", pattern = "^[0-9a-f]{4,32}$")),
    request_body = ResolveBody,
    responses((status = 200, description = "The settled record", body = RecordView), Refusals)
)]
pub(crate) async fn resolve(
    State(app): State<AppState>,
    PathParam(id): PathParam<String>,
    JsonBody(body): JsonBody<ResolveBody>,
) -> Result<Json<RecordView>, Problem> {
    let (act, version, observation) = body.read()?;
    let id = app.operator.get(&prefix(&id)?).await?.record.id;
    let stored = match &observation {
        None => app.operator.acknowledge(id, version, &act).await?,
        Some(observation) => {
            check_body_allowed(observation)?;
            app.operator.resolve(id, version, observation, &act).await?
        }
    };
    tracing::info!(record = %id.short(), who = act.who(), "operator resolved a record");
    Ok(Json(RecordView::of(&stored)))
}

/// The forgotten record, and when the change is final on every node.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Forgotten {
    record: RecordView,
    /// Seconds for which other nodes may still replay the response (`cache_ttl`). On this node it is gone.
    final_everywhere_in_seconds: u64,
}

/// Forgets the response of a completed or expired record
///
/// The next request with its key runs as a new one. An `unknown` record can be resolved, never forgotten.
#[utoipa::path(
    post,
    path = "/v1/records/{id}/forget",
    params(("id" = String, Path, description = "The first 4 to 32 hex digits of the record's id", pattern = "^[0-9a-f]{4,32}$")),
    request_body = ActBody,
    responses((status = 200, description = "The forgotten record", body = Forgotten), Refusals)
)]
pub(crate) async fn forget(
    State(app): State<AppState>,
    PathParam(id): PathParam<String>,
    JsonBody(body): JsonBody<ActBody>,
) -> Result<Json<Forgotten>, Problem> {
    let (act, version) = body.read()?;
    let id = app.operator.get(&prefix(&id)?).await?.record.id;
    let stored = app.operator.forget(id, version, &act).await?;
    tracing::info!(record = %id.short(), who = act.who(), "operator forgot a record");
    let final_everywhere_in_seconds = app.ibid.cache_ttl().as_secs();
    Ok(Json(Forgotten { record: RecordView::of(&stored), final_everywhere_in_seconds }))
}
