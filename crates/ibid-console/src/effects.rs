//! Effects, and all that waits for a person.

use axum::Json;
use axum::extract::State;
use ibid::operator::OperatorError;
use ibid::outbox::EffectFilter;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::AppState;
use crate::dto::{self, EffectWord, cursor, limit};
use crate::extract::{JsonBody, PathParam, QueryParams};
use crate::problem::{Problem, Refusals};
use crate::views::{EffectView, RecordView};

/// Which effects. All that is given must fit.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct EffectQuery {
    /// Only in this state.
    #[param(nullable = false, inline)]
    state: Option<EffectWord>,
    /// Only this record's: its id in full.
    #[param(nullable = false, pattern = "^[0-9a-f]{64}$")]
    record: Option<String>,
    /// Only after this place: `next` of the page before.
    #[param(nullable = false, minimum = 0)]
    after: Option<i64>,
    /// How many at most; 100 unless said.
    #[param(nullable = false, minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

/// Effects that fit, in the order of their places.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EffectPage {
    effects: Vec<EffectView>,
    /// The `after` of the next page, if there is one.
    next: Option<i64>,
}

/// Finds effects
///
/// A store without an outbox has none.
#[utoipa::path(
    get,
    path = "/v1/effects",
    params(EffectQuery),
    responses((status = 200, description = "The effects that fit", body = EffectPage), Refusals)
)]
pub(crate) async fn list(
    State(desk): State<AppState>,
    QueryParams(which): QueryParams<EffectQuery>,
) -> Result<Json<EffectPage>, Problem> {
    let filter = EffectFilter {
        state: which.state.map(|word| word.0),
        record: which.record.as_deref().map(cursor).transpose()?,
        dead_letter: false,
        after: place(which.after)?,
        limit: limit(which.limit)?,
    };
    let (effects, next) = match desk.operator.effects(filter).await {
        Err(OperatorError::NoOutbox) => (Vec::new(), None),
        found => found?,
    };
    Ok(Json(EffectPage { effects: effects.iter().map(EffectView::of).collect(), next }))
}

/// Has a dead or unknown effect made
///
/// The operator's word that making it, or making it again, is right. Its tries count anew.
#[utoipa::path(
    post,
    path = "/v1/effects/{seq}/retry",
    params(("seq" = i64, Path, description = "Its place in the outbox", minimum = 1)),
    request_body = EffectAct,
    responses((status = 200, description = "It is queued", body = EffectView), Refusals)
)]
pub(crate) async fn retry(
    State(desk): State<AppState>,
    PathParam(seq): PathParam<i64>,
    JsonBody(body): JsonBody<EffectAct>,
) -> Result<Json<EffectView>, Problem> {
    let act = body.read()?;
    match desk.operator.retry(seq, &act).await {
        Ok(effect) => {
            tracing::info!(effect = seq, who = act.who(), "an operator retried an effect");
            Ok(Json(EffectView::of(&effect)))
        }
        Err(error) => Err(told(&desk, seq, error).await),
    }
}

/// Lets a dead or unknown effect go
///
/// It will not be made. A record that it owes its answer becomes `unknown`, and others of its aggregate go on.
#[utoipa::path(
    post,
    path = "/v1/effects/{seq}/discard",
    params(("seq" = i64, Path, description = "Its place in the outbox", minimum = 1)),
    request_body = EffectAct,
    responses((status = 200, description = "It is discarded", body = EffectView), Refusals)
)]
pub(crate) async fn discard(
    State(desk): State<AppState>,
    PathParam(seq): PathParam<i64>,
    JsonBody(body): JsonBody<EffectAct>,
) -> Result<Json<EffectView>, Problem> {
    let act = body.read()?;
    match desk.operator.discard(seq, &act).await {
        Ok(effect) => {
            tracing::info!(effect = seq, who = act.who(), "an operator discarded an effect");
            Ok(Json(EffectView::of(&effect)))
        }
        Err(error) => Err(told(&desk, seq, error).await),
    }
}

/// Who acts on an effect and why.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EffectAct {
    /// Who acts: kept in the history of its record.
    #[schema(schema_with = dto::who_schema)]
    who: String,
    /// Why: kept in the history of its record.
    #[schema(schema_with = dto::reason_schema)]
    reason: String,
}

impl EffectAct {
    fn read(&self) -> Result<ibid::operator::OperatorAction, Problem> {
        dto::checked(&self.who, &self.reason)
    }
}

/// Where to go on in either list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct DeadLetterQuery {
    /// Only records after this id: `next_record` of the page before.
    #[param(nullable = false, pattern = "^[0-9a-f]{64}$")]
    records_after: Option<String>,
    /// Only effects after this place: `next_effect` of the page before.
    #[param(nullable = false, minimum = 0)]
    effects_after: Option<i64>,
    /// How many of each at most; 100 unless said.
    #[param(nullable = false, minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

/// All that waits for a person.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DeadLetters {
    records: Vec<RecordView>,
    /// Dead, or unknown with nobody left to ask.
    effects: Vec<EffectView>,
    /// The `records_after` of the next page, if there is one.
    next_record: Option<String>,
    /// The `effects_after` of the next page, if there is one.
    next_effect: Option<i64>,
}

/// Shows all that waits for a person
#[utoipa::path(
    get,
    path = "/v1/dead-letters",
    params(DeadLetterQuery),
    responses((status = 200, description = "Records and effects", body = DeadLetters), Refusals)
)]
pub(crate) async fn dead_letters(
    State(desk): State<AppState>,
    QueryParams(which): QueryParams<DeadLetterQuery>,
) -> Result<Json<DeadLetters>, Problem> {
    let after = which.records_after.as_deref().map(cursor).transpose()?;
    let effects_after = place(which.effects_after)?;
    let letters = desk.operator.dead_letters(after, effects_after, limit(which.limit)?).await?;
    Ok(Json(DeadLetters {
        records: letters.records.records.iter().map(RecordView::of).collect(),
        effects: letters.effects.iter().map(EffectView::of).collect(),
        next_record: letters.records.next.map(|id| id.to_string()),
        next_effect: letters.next_effect,
    }))
}

/// With the effect as it is now, for whoever came too late.
async fn told(desk: &AppState, seq: i64, error: OperatorError) -> Problem {
    let late = matches!(error, OperatorError::EffectNotNow(_) | OperatorError::EffectChanged);
    let problem = Problem::from(error);
    match desk.operator.effect(seq).await {
        Ok(effect) if late => problem.effect(EffectView::of(&effect)),
        _ => problem,
    }
}

fn place(after: Option<i64>) -> Result<i64, Problem> {
    match after.unwrap_or(0) {
        after @ 0.. => Ok(after),
        _ => Err(Problem::invalid("a place in the outbox is not negative")),
    }
}
