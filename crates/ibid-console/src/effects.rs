//! Endpoints for effects and dead letters.

use axum::Json;
use axum::extract::State;
use ibid::operator::OperatorError;
use ibid::outbox::EffectFilter;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::AppState;
use crate::dto::{self, EffectWord, cursor, limit, record_id};
use crate::extract::{JsonBody, PathParam, QueryParams};
use crate::problem::{Problem, Refusals};
use crate::views::{EffectView, RecordView};

/// Filter for effects. An effect must match every given field.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct EffectQuery {
    /// Only effects in this state.
    #[param(nullable = false, inline)]
    state: Option<EffectWord>,
    /// Only effects of this record, by its full id.
    #[param(nullable = false, pattern = "^([0-9a-f]{2}){1,512}$")]
    record: Option<String>,
    /// Only effects after this one: `next` of the previous page.
    #[param(nullable = false, minimum = 0)]
    after: Option<i64>,
    /// Most effects per page; 100 by default.
    #[param(nullable = false, minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

/// Effects that match the filter, in outbox order.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EffectPage {
    effects: Vec<EffectView>,
    /// The `after` of the next page, if there is one.
    next: Option<i64>,
}

/// Lists the effects that match a filter
///
/// The list is empty if the store has no outbox.
#[utoipa::path(
    get,
    path = "/v1/effects",
    params(EffectQuery),
    responses((status = 200, description = "The matching effects", body = EffectPage), Refusals)
)]
pub(crate) async fn list(
    State(app): State<AppState>,
    QueryParams(query): QueryParams<EffectQuery>,
) -> Result<Json<EffectPage>, Problem> {
    let mut filter = EffectFilter::default();
    filter.state = query.state.map(|word| word.0);
    filter.record = query.record.as_deref().map(record_id).transpose()?;
    filter.after = outbox_position(query.after)?;
    filter.limit = limit(query.limit)?;
    let (effects, next) = match app.operator.effects(filter).await {
        Err(OperatorError::NoOutbox) => (Vec::new(), None),
        result => result?,
    };
    Ok(Json(EffectPage { effects: effects.iter().map(EffectView::of).collect(), next }))
}

/// Queues a dead or unknown effect for another call
///
/// The operator confirms that making the call, or repeating it, is right. Its tries start again from zero.
#[utoipa::path(
    post,
    path = "/v1/effects/{seq}/retry",
    params(("seq" = i64, Path, description = "Position of the effect in the outbox", minimum = 1)),
    request_body = EffectAct,
    responses((status = 200, description = "The queued effect", body = EffectView), Refusals)
)]
pub(crate) async fn retry(
    State(app): State<AppState>,
    PathParam(seq): PathParam<i64>,
    JsonBody(body): JsonBody<EffectAct>,
) -> Result<Json<EffectView>, Problem> {
    let act = body.read()?;
    match app.operator.retry(seq, &act).await {
        Ok(effect) => {
            tracing::info!(effect = seq, who = act.who(), "operator retried an effect");
            Ok(Json(EffectView::of(&effect)))
        }
        Err(error) => Err(effect_problem(&app, seq, error).await),
    }
}

/// Discards a dead or unknown effect
///
/// Its call will not be made. If it owes its record the response, the record becomes `unknown`. Later effects of its
/// aggregate continue.
#[utoipa::path(
    post,
    path = "/v1/effects/{seq}/discard",
    params(("seq" = i64, Path, description = "Position of the effect in the outbox", minimum = 1)),
    request_body = EffectAct,
    responses((status = 200, description = "The discarded effect", body = EffectView), Refusals)
)]
pub(crate) async fn discard(
    State(app): State<AppState>,
    PathParam(seq): PathParam<i64>,
    JsonBody(body): JsonBody<EffectAct>,
) -> Result<Json<EffectView>, Problem> {
    let act = body.read()?;
    match app.operator.discard(seq, &act).await {
        Ok(effect) => {
            tracing::info!(effect = seq, who = act.who(), "operator discarded an effect");
            Ok(Json(EffectView::of(&effect)))
        }
        Err(error) => Err(effect_problem(&app, seq, error).await),
    }
}

/// The operator who acts on an effect, and the reason.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EffectAct {
    /// Name of the operator, stored in the history of the effect's record.
    #[schema(schema_with = dto::who_schema)]
    who: String,
    /// Reason for the action, stored in the history of the effect's record.
    #[schema(schema_with = dto::reason_schema)]
    reason: String,
}

impl EffectAct {
    fn read(&self) -> Result<ibid::operator::OperatorAction, Problem> {
        dto::operator_action(&self.who, &self.reason)
    }
}

/// Cursors into the two lists of dead letters.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct DeadLetterQuery {
    /// Only records behind this cursor: `next_record` of the previous page.
    #[param(nullable = false, pattern = "^([0-9a-f]{2}){1,512}$")]
    records_after: Option<String>,
    /// Only effects after this one: `next_effect` of the previous page.
    #[param(nullable = false, minimum = 0)]
    effects_after: Option<i64>,
    /// Most records and most effects per page; 100 each by default.
    #[param(nullable = false, minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

/// All dead letters: records and effects that need an operator.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DeadLetters {
    records: Vec<RecordView>,
    /// Effects that are dead, or unknown with no verification due.
    effects: Vec<EffectView>,
    /// The `records_after` of the next page, if there is one.
    next_record: Option<String>,
    /// The `effects_after` of the next page, if there is one.
    next_effect: Option<i64>,
}

/// Lists all dead letters: records and effects that need an operator
#[utoipa::path(
    get,
    path = "/v1/dead-letters",
    params(DeadLetterQuery),
    responses((status = 200, description = "Records and effects", body = DeadLetters), Refusals)
)]
pub(crate) async fn dead_letters(
    State(app): State<AppState>,
    QueryParams(query): QueryParams<DeadLetterQuery>,
) -> Result<Json<DeadLetters>, Problem> {
    let after = query.records_after.as_deref().map(cursor).transpose()?;
    let effects_after = outbox_position(query.effects_after)?;
    let letters = app.operator.dead_letters(after, effects_after, limit(query.limit)?).await?;
    Ok(Json(DeadLetters {
        records: letters.records.records.iter().map(RecordView::of).collect(),
        effects: letters.effects.iter().map(EffectView::of).collect(),
        next_record: letters.records.next.map(|id| id.to_string()),
        next_effect: letters.next_effect,
    }))
}

/// Converts an error. If the effect has changed, adds the effect as it is now.
async fn effect_problem(app: &AppState, seq: i64, error: OperatorError) -> Problem {
    let late = matches!(error, OperatorError::EffectNotNow(_) | OperatorError::EffectChanged);
    let problem = Problem::from(error);
    match app.operator.effect(seq).await {
        Ok(effect) if late => problem.effect(EffectView::of(&effect)),
        _ => problem,
    }
}

fn outbox_position(after: Option<i64>) -> Result<i64, Problem> {
    match after.unwrap_or(0) {
        after @ 0.. => Ok(after),
        _ => Err(Problem::invalid("a position in the outbox is not negative")),
    }
}
