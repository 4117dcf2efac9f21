//! Actions on many records at once. A preview lists the records that would change; the action then names those records.

use axum::Json;
use axum::extract::State;
use ibid::operator::{BULK_MAX, BulkAction, Observation, SeenVersion};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::AppState;
use crate::dto::{self, DeedBody, RecordQuery};
use crate::extract::JsonBody;
use crate::problem::{Problem, Refusals};
use crate::views::RecordView;

/// Filter and action of a preview.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PreviewBody {
    /// Filter for the records; `limit` is at most 500 here.
    filter: RecordQuery,
    /// Action that would be applied.
    deed: DeedWord,
}

/// Action that would be applied to each record.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DeedWord {
    Completed,
    NotExecuted,
    Seen,
    Forgotten,
}

/// Records that an action would change.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PreviewView {
    /// Number of records that would change.
    count: u64,
    /// Number of matching records that the action cannot change.
    left_alone: u64,
    /// Records that would change. Pass the `id` and `version` of each to the action.
    records: Vec<SeenView>,
    /// The `after` of the next preview, if more records match.
    next: Option<String>,
}

/// A record as the preview showed it.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SeenView {
    /// Full id of the record.
    #[schema(pattern = "^[0-9a-f]{64}$")]
    id: String,
    /// Version of the record in the preview.
    #[schema(pattern = "^[0-9]{1,9}:[0-9a-f]{16}$")]
    version: String,
}

/// Shows what an action on many records would change
///
/// Writes nothing.
#[utoipa::path(
    post,
    path = "/v1/records/preview",
    request_body = PreviewBody,
    responses((status = 200, description = "The records that would change", body = PreviewView), Refusals)
)]
pub(crate) async fn preview(
    State(app): State<AppState>,
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
    let preview =
        app.operator.preview(filter.with(|filter| filter.limit = filter.limit.min(BULK_MAX)), &deed).await?;
    let view = |stored: &ibid_core::change::StoredRecord| {
        let version = stored.record.version;
        SeenView {
            id: stored.record.id.to_string(),
            version: format!("{}:{:016x}", version.count, version.nonce.0),
        }
    };
    Ok(Json(PreviewView {
        count: preview.records.len() as u64,
        left_alone: preview.left_alone,
        records: preview.records.iter().map(view).collect(),
        next: preview.next.map(|id| id.to_string()),
    }))
}

/// Action on the records that a preview showed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BulkBody {
    /// Name of the operator, stored in the history of each record.
    #[schema(schema_with = dto::who_schema)]
    who: String,
    /// Reason for the action, stored in the history of each record.
    #[schema(schema_with = dto::reason_schema)]
    reason: String,
    /// Action to apply to each record.
    deed: DeedBody,
    /// The records as the preview showed them. A record that has changed since is left alone.
    #[schema(min_items = 1, max_items = 500)]
    records: Vec<SeenView>,
}

/// Result of an action on many records.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BulkView {
    /// Number of records that were changed.
    done: u64,
    /// Records that were not changed, and why.
    refused: Vec<NotDone>,
}

/// A record that was left alone.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NotDone {
    id: String,
    /// Reason, and what last settled the record.
    why: String,
    /// The record as it is now.
    record: Option<RecordView>,
}

/// Applies an action to the records that a preview showed
///
/// Changes only these records, and only those that have not changed since the preview.
#[utoipa::path(
    post,
    path = "/v1/records/bulk",
    request_body = BulkBody,
    responses((status = 200, description = "Result for each record", body = BulkView), Refusals)
)]
pub(crate) async fn act(
    State(app): State<AppState>,
    JsonBody(body): JsonBody<BulkBody>,
) -> Result<Json<BulkView>, Problem> {
    let act = dto::operator_action(&body.who, &body.reason)?;
    if !(1..=BULK_MAX as usize).contains(&body.records.len()) {
        return Err(Problem::invalid(format!("`records` has 1 to {BULK_MAX} records")));
    }
    let parse = |view: &SeenView| {
        let id = dto::record_id(&view.id)?;
        Ok(SeenVersion { id, version: dto::version(&view.version)? })
    };
    let versions: Vec<SeenVersion> = body.records.iter().map(parse).collect::<Result<_, Problem>>()?;
    let deed = body.deed.read()?;
    if let BulkAction::Resolve(observation) = &deed {
        dto::check_body_allowed(observation)?;
    }
    let results = app.operator.apply(&versions, &deed, &act).await;
    let done = results.iter().filter(|(_, result)| result.is_ok()).count() as u64;
    tracing::info!(done, of = results.len(), who = act.who(), "operator acted on many records");
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
