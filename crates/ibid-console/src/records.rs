//! Records: found, shown, resolved, forgotten.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::AppState;
use crate::dto::{ActBody, RecordQuery, ResolveBody, possible, prefix};
use crate::extract::{JsonBody, PathParam, QueryParams};
use crate::problem::{Problem, Refusals};
use crate::views::{HistoryView, RecordView};

/// Records that fit, in the order of their ids.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RecordPage {
    records: Vec<RecordView>,
    /// The `after` of the next page, if there is one.
    next: Option<String>,
}

/// Finds records
#[utoipa::path(
    get,
    path = "/v1/records",
    params(RecordQuery),
    responses((status = 200, description = "The records that fit", body = RecordPage), Refusals)
)]
pub(crate) async fn list(
    State(desk): State<AppState>,
    QueryParams(which): QueryParams<RecordQuery>,
) -> Result<Json<RecordPage>, Problem> {
    let page = desk.operator.find(which.filter()?).await?;
    let records = page.records.iter().map(RecordView::of).collect();
    Ok(Json(RecordPage { records, next: page.next.map(|id| id.to_string()) }))
}

/// A record and all that happened to it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Life {
    record: RecordView,
    /// How many bytes of an answer are kept.
    answer_bytes: Option<u64>,
    /// What happened to it, oldest first.
    history: Vec<HistoryView>,
}

/// Shows one record with its history
#[utoipa::path(
    get,
    path = "/v1/records/{id}",
    params(("id" = String, Path, description = "The first 4 to 64 hex digits of its id", pattern = "^[0-9a-f]{4,64}$")),
    responses((status = 200, description = "The record", body = Life), Refusals)
)]
pub(crate) async fn show(
    State(desk): State<AppState>,
    PathParam(id): PathParam<String>,
) -> Result<Json<Life>, Problem> {
    let found = desk.operator.get(&prefix(&id)?).await?;
    let life = desk.operator.history(found.record.id).await?;
    Ok(Json(Life {
        record: RecordView::of(&life.stored),
        answer_bytes: life.stored.answer.as_ref().map(|bytes| bytes.len() as u64),
        history: life.history.iter().map(HistoryView::of).collect(),
    }))
}

/// Settles an unknown record by what a person found out
///
/// Only an `unknown` record, or with `seen` a dead letter whose outcome is known: anything else, and whoever comes
/// second, gets 409 with the record as it is and what settled it.
#[utoipa::path(
    post,
    path = "/v1/records/{id}/resolve",
    params(("id" = String, Path, description = "The first 4 to 64 hex digits of its id", pattern = "^[0-9a-f]{4,64}$")),
    request_body = ResolveBody,
    responses((status = 200, description = "It is settled: the record as it is now", body = RecordView), Refusals)
)]
pub(crate) async fn resolve(
    State(desk): State<AppState>,
    PathParam(id): PathParam<String>,
    JsonBody(body): JsonBody<ResolveBody>,
) -> Result<Json<RecordView>, Problem> {
    let (act, seen, found) = body.read()?;
    let id = desk.operator.get(&prefix(&id)?).await?.record.id;
    let stored = match &found {
        None => desk.operator.acknowledge(id, seen, &act).await?,
        Some(found) => {
            possible(found)?;
            desk.operator.resolve(id, seen, found, &act).await?
        }
    };
    tracing::info!(record = %id.short(), who = act.who(), "an operator resolved a record");
    Ok(Json(RecordView::of(&stored)))
}

/// What is forgotten, and when that is final.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Forgotten {
    record: RecordView,
    /// Other nodes may replay the answer for so many seconds more (`cache_ttl`); on this one it is gone.
    final_everywhere_in_seconds: u64,
}

/// Forgets the answer of a completed or expired record
///
/// The next request under its key runs as new. An `unknown` record is resolved, never forgotten.
#[utoipa::path(
    post,
    path = "/v1/records/{id}/forget",
    params(("id" = String, Path, description = "The first 4 to 64 hex digits of its id", pattern = "^[0-9a-f]{4,64}$")),
    request_body = ActBody,
    responses((status = 200, description = "It is forgotten", body = Forgotten), Refusals)
)]
pub(crate) async fn forget(
    State(desk): State<AppState>,
    PathParam(id): PathParam<String>,
    JsonBody(body): JsonBody<ActBody>,
) -> Result<Json<Forgotten>, Problem> {
    let (act, seen) = body.read()?;
    let id = desk.operator.get(&prefix(&id)?).await?.record.id;
    let stored = desk.operator.forget(id, seen, &act).await?;
    tracing::info!(record = %id.short(), who = act.who(), "an operator forgot a record");
    let final_everywhere_in_seconds = desk.ibid.cache_ttl().as_secs();
    Ok(Json(Forgotten { record: RecordView::of(&stored), final_everywhere_in_seconds }))
}
