//! Many records at once: first what would be changed is shown, then the act names what it was shown.

use axum::Json;
use axum::extract::State;
use ibid::operator::{BULK_MAX, BulkAction, Observation, RecordFilter, SeenVersion};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::AppState;
use crate::dto::{self, DeedBody, RecordQuery};
use crate::extract::JsonBody;
use crate::problem::{Problem, Refusals};
use crate::views::RecordView;

/// What would be done to which records.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PreviewBody {
    /// Which records; `limit` is at most 500 here.
    filter: RecordQuery,
    /// What would be done.
    deed: DeedWord,
}

/// What would be done to each record.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DeedWord {
    Completed,
    NotExecuted,
    Seen,
    Forgotten,
}

/// What an act would change.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PreviewView {
    /// How many records would be changed.
    count: u64,
    /// How many more fit and can't be changed so.
    left_alone: u64,
    /// The records that would be changed: an act takes `id` and `version` of each.
    records: Vec<SeenView>,
    /// The `after` of the next preview, if more records fit.
    next: Option<String>,
}

/// A record as it was shown.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SeenView {
    /// Its id in full.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    id: String,
    /// Its version then.
    #[schema(pattern = "^[0-9]{1,9}:[0-9a-f]{16}$")]
    version: String,
}

/// Shows what an act on many records would change
///
/// Writes nothing.
#[utoipa::path(
    post,
    path = "/v1/records/preview",
    request_body = PreviewBody,
    responses((status = 200, description = "What would be changed", body = PreviewView), Refusals)
)]
pub(crate) async fn preview(
    State(desk): State<AppState>,
    JsonBody(body): JsonBody<PreviewBody>,
) -> Result<Json<PreviewView>, Problem> {
    let filter = body.filter.filter()?;
    let deed = match body.deed {
        DeedWord::Completed => {
            BulkAction::Resolve(Observation::Executed(ibid::operator::answer(200, "", "")))
        }
        DeedWord::NotExecuted => BulkAction::Resolve(Observation::NotExecuted),
        DeedWord::Seen => BulkAction::Acknowledge,
        DeedWord::Forgotten => BulkAction::Forget,
    };
    let shown =
        desk.operator.preview(RecordFilter { limit: filter.limit.min(BULK_MAX), ..filter }, &deed).await?;
    let seen = |stored: &ibid_core::change::StoredRecord| {
        let version = stored.record.version;
        SeenView {
            id: stored.record.id.to_string(),
            version: format!("{}:{:016x}", version.count, version.nonce.0),
        }
    };
    Ok(Json(PreviewView {
        count: shown.records.len() as u64,
        left_alone: shown.left_alone,
        records: shown.records.iter().map(seen).collect(),
        next: shown.next.map(|id| id.to_string()),
    }))
}

/// What is to be done to the records that a preview showed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BulkBody {
    /// Who acts: kept in the history of each record.
    #[schema(schema_with = dto::who_schema)]
    who: String,
    /// Why: kept in the history of each record.
    #[schema(schema_with = dto::reason_schema)]
    reason: String,
    /// What is done.
    deed: DeedBody,
    /// The records as they were shown; each is left alone if it has changed since.
    #[schema(min_items = 1, max_items = 500)]
    records: Vec<SeenView>,
}

/// What came of it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BulkView {
    /// How many records were changed.
    done: u64,
    /// Those that were not, and why.
    refused: Vec<NotDone>,
}

/// A record that was left alone.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NotDone {
    id: String,
    /// Why, and what last settled it.
    why: String,
    /// The record as it is now.
    record: Option<RecordView>,
}

/// Acts on the records that a preview showed
///
/// Only on those, and only where nothing has changed since: it can't hit more than was shown.
#[utoipa::path(
    post,
    path = "/v1/records/bulk",
    request_body = BulkBody,
    responses((status = 200, description = "What came of each", body = BulkView), Refusals)
)]
pub(crate) async fn act(
    State(desk): State<AppState>,
    JsonBody(body): JsonBody<BulkBody>,
) -> Result<Json<BulkView>, Problem> {
    let act = dto::checked(&body.who, &body.reason)?;
    if !(1..=BULK_MAX as usize).contains(&body.records.len()) {
        return Err(Problem::invalid(format!("`records` has 1 to {BULK_MAX} records")));
    }
    let seen = |seen: &SeenView| {
        let id =
            dto::cursor(&seen.id).map_err(|_| Problem::invalid("`id` is an id in full: 64 hex digits"))?;
        Ok(SeenVersion { id, version: dto::version(&seen.version)? })
    };
    let seen: Vec<SeenVersion> = body.records.iter().map(seen).collect::<Result<_, Problem>>()?;
    let deed = body.deed.read()?;
    if let BulkAction::Resolve(found) = &deed {
        dto::possible(found)?;
    }
    let results = desk.operator.apply(&seen, &deed, &act).await;
    let done = results.iter().filter(|(_, result)| result.is_ok()).count() as u64;
    tracing::info!(done, of = results.len(), who = act.who(), "an operator acted on many records");
    let refused = results.into_iter().filter_map(|(id, result)| {
        let refused = result.err()?;
        let why = refused.to_string();
        use ibid::operator::OperatorError::{Changed, NotNow};
        let record = match &refused {
            NotNow { stored, .. } | Changed { stored, .. } => Some(RecordView::of(stored)),
            _ => None,
        };
        Some(NotDone { id: id.to_string(), why, record })
    });
    Ok(Json(BulkView { done, refused: refused.collect() }))
}
