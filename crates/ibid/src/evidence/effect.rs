//! Applies webhook evidence to effects.
//!
//! `ibid_core::machine` decides what the evidence proves. The result is written through the effect's handler, because its
//! business rows belong to the same transaction. So only a process with a worker for that kind can apply the evidence.
//! Other processes leave it stored, and upkeep in a process with such a worker applies it.

use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ibid_core::change::{History, HistoryKind as Line};
use ibid_core::effect::StoredEffect;
use ibid_core::evidence::{EffectRef, EvidenceQuery, StoredEvidence};
use ibid_core::machine::{AttemptResponse, EffectEvent, EvidenceVerdict, Observation, judge_effect};
use ibid_core::sql::Database;
use ibid_core::store::{BoxFuture, Store, StoreError};
use metrics::counter;
use tokio::time::{Instant, timeout};

use super::{EvidenceResult, OF_SUBJECT_MAX};
use crate::ibid::Ibid;
use crate::outbox::dyn_handler::DynEffectHandler;
use crate::outbox::execute::count_move;
use crate::outbox::record_result::{EffectEnd, EffectResult, ResultWriter};
use crate::outbox::{CallResult, EffectCall, statements, store_tx};
use crate::record_sql;
use crate::telemetry;

/// Finds the effects that a provider names, all in one transaction.
pub(super) async fn find_all(ibid: &Ibid, named: Vec<EffectRef>) -> Result<Vec<EffectLookup>, StoreError> {
    // A store without an outbox has no effects.
    let Some(sql) = ibid.store().sql().filter(|_| !named.is_empty()) else {
        return Ok(named.iter().map(|_| EffectLookup::None).collect());
    };
    let now = sql.now();
    let find = store_tx::run(sql, move |tx| {
        Box::pin(async move {
            let mut all = Vec::with_capacity(named.len());
            for at in &named {
                all.push(EffectLookup::of(statements::find(tx, at, now).await?));
            }
            Ok(all)
        })
    });
    find.await
}

/// Finds the effect that a provider names.
pub(super) async fn find(ibid: &Ibid, at: EffectRef) -> Result<EffectLookup, StoreError> {
    Ok(find_all(ibid, vec![at]).await?.pop().unwrap_or(EffectLookup::None))
}

/// The effects that a provider's name leads to.
pub(super) enum EffectLookup {
    /// No effect, or not yet.
    None,
    /// Exactly one effect, as stored.
    One(Box<StoredEffect>),
    /// More than one, so it is not known which is meant.
    Several,
}

impl EffectLookup {
    fn of(mut effects: Vec<StoredEffect>) -> EffectLookup {
        match (effects.pop(), effects.is_empty()) {
            (None, _) => EffectLookup::None,
            (Some(effect), true) => EffectLookup::One(Box::new(effect)),
            (Some(_), false) => EffectLookup::Several,
        }
    }

    pub(super) fn judge(&self, kept: &StoredEvidence) -> EvidenceVerdict {
        match self {
            EffectLookup::None => judge_effect(None, kept),
            EffectLookup::One(effect) => judge_effect(Some(effect), kept),
            // The provider used one id for several calls: an operator must learn of it.
            EffectLookup::Several => EvidenceVerdict::Contradicts,
        }
    }
}

/// Applies one stored piece of evidence to the effect that it names.
///
/// Returns [`EvidenceResult::Early`] and leaves the evidence stored if the effect does not exist yet or may still become
/// unknown, if this process has no worker for its kind, or if the effect kept changing ([`TRIES_MAX`]). With any other
/// result the evidence has been used or dismissed.
///
/// # Errors
///
/// Fails if the store cannot be read or the result cannot be written within [`SETTLE_FOR`]. The evidence stays stored.
pub(super) async fn apply(
    ibid: &Ibid,
    kept: &StoredEvidence,
    at: &EffectRef,
) -> Result<EvidenceResult, StoreError> {
    let source = &kept.evidence.name.source;
    for _ in 0..TRIES_MAX {
        let lookup = find(ibid, at.clone()).await?;
        let result = match (lookup.judge(kept), lookup) {
            (EvidenceVerdict::Settles, EffectLookup::One(effect)) => {
                let Some(handlers) = ibid.outbox().kinds.handlers_of(&effect.kind) else {
                    return Ok(EvidenceResult::Early);
                };
                let seq = effect.seq;
                // On a separate task, because the caller may time out: a commit is never cancelled.
                let (ibid, kept) = (ibid.clone(), kept.clone());
                let settle = tokio::spawn(async move { handlers.settle(&ibid, &effect, &kept).await });
                let settled = match timeout(SETTLE_WAIT_MAX, settle).await {
                    Ok(settled) => settled.map_err(|error| StoreError::transient("sql", SETTLE, error))?,
                    // A statement or the commit hangs. The task runs on, and its outcome is found when the evidence is judged again.
                    Err(_) => return Err(StoreError::transient("sql", SETTLE, "no reply in time")),
                };
                match settled {
                    EffectEnd::Moved { .. } => {
                        tracing::info!(effect = seq, source, "effect settled by webhook");
                        return Ok(EvidenceResult::Settled);
                    }
                    EffectEnd::Lost => continue,
                    EffectEnd::Unwritten => {
                        return Err(StoreError::transient("sql", SETTLE, "its end could not be written"));
                    }
                }
            }
            (EvidenceVerdict::Settles | EvidenceVerdict::Early, _) => return Ok(EvidenceResult::Early),
            // If another process has used the evidence meanwhile, the effect looks as if it had been settled otherwise.
            _ if !is_open(&**ibid.store(), kept).await? => return Ok(EvidenceResult::Duplicate),
            (EvidenceVerdict::Contradicts, lookup) => {
                note_contradiction(ibid, kept, &lookup).await?;
                EvidenceResult::Contradicts
            }
            (EvidenceVerdict::Premature, _) => EvidenceResult::Premature,
            (EvidenceVerdict::Stale, _) => EvidenceResult::Stale,
            (EvidenceVerdict::Known, _) => EvidenceResult::Known,
        };
        ibid.store().require_evidence()?.dismiss_evidence(vec![kept.evidence.name.clone()]).await?;
        return Ok(result);
    }
    // The effect changed at every try, so another process is working on it. Upkeep tries again.
    Ok(EvidenceResult::Early)
}

/// Applies evidence that arrived before `effect` became unknown or was queued for another try.
///
/// Looks it up by downstream key and by provider id: `provider_id` if the provider has just returned one, otherwise the
/// id stored with the effect. Failures are left to upkeep.
pub(crate) async fn apply_earlier_evidence(ibid: &Ibid, effect: &StoredEffect, provider_id: Option<String>) {
    super::apply_earlier_evidence(ibid, EffectRef::DownstreamKey(effect.downstream_key.clone()).id()).await;
    if let Some(id) = provider_id.or_else(|| effect.provider_id.clone()) {
        let at = EffectRef::ProviderId { kind: effect.kind.clone(), id };
        super::apply_earlier_evidence(ibid, at.id()).await;
    }
}

async fn is_open(store: &dyn Store, kept: &StoredEvidence) -> Result<bool, StoreError> {
    let open = store
        .require_evidence()?
        .open_evidence(EvidenceQuery::Of(kept.evidence.about.id()), None, OF_SUBJECT_MAX)
        .await?
        .items;
    // If there are more than can be read, it is taken for open, and what it says is reported.
    Ok(open.len() as u32 == OF_SUBJECT_MAX
        || open.iter().any(|open| open.evidence.name == kept.evidence.name))
}

/// Logs and counts a contradiction, and adds it to the history. The effect stays as it is.
async fn note_contradiction(
    ibid: &Ibid,
    kept: &StoredEvidence,
    lookup: &EffectLookup,
) -> Result<(), StoreError> {
    let name = &kept.evidence.name;
    counter!(telemetry::LATE_ANSWERS).increment(1);
    let EffectLookup::One(effect) = lookup else {
        tracing::error!(source = name.source, "webhook names a provider id that several effects have");
        return Ok(());
    };
    tracing::error!(effect = effect.seq, source = name.source, "webhook contradicts the stored outcome");
    let says = match &kept.evidence.what {
        Observation::Executed(AttemptResponse { provider_id: Some(id), .. }) => format!("executed as `{id}`"),
        Observation::Executed(_) => "executed".to_owned(),
        Observation::NotExecuted | Observation::Nothing => "not executed".to_owned(),
    };
    let detail = format!(
        "webhook: effect `{}` {says}, although it is {} (event `{}` of `{}`)",
        effect.name,
        effect.state.name(),
        name.event,
        name.source
    );
    let (record, line) = (effect.record, History { what: Line::LateAnswer, detail });
    let Some(sql) = ibid.store().sql() else { return Ok(()) };
    let now = sql.now();
    store_tx::run(sql, move |tx| {
        Box::pin(async move { record_sql::add_history(tx, &record, &line, now).await })
    })
    .await
}

/// The kinds of effects that the workers of this process have handlers for.
#[derive(Default)]
pub(crate) struct KindRegistry(Mutex<Vec<Weak<dyn EffectSettler>>>);

impl KindRegistry {
    /// Adds the handlers of a worker, for as long as it lives.
    pub(crate) fn add(&self, handlers: Weak<dyn EffectSettler>) {
        let mut all = self.0.lock();
        all.retain(|handlers| handlers.strong_count() > 0);
        all.push(handlers);
    }

    /// Returns the kinds that have a handler, in order.
    pub(crate) fn names(&self) -> BTreeSet<String> {
        let all = self.0.lock();
        all.iter().filter_map(Weak::upgrade).flat_map(|handlers| handlers.kinds()).collect()
    }

    fn handlers_of(&self, kind: &str) -> Option<Arc<dyn EffectSettler>> {
        let all = self.0.lock();
        // As with two handlers of one worker: the later one counts.
        all.iter().rev().filter_map(Weak::upgrade).find(|handlers| handlers.serves(kind))
    }
}

/// Settles effects by evidence, through the handlers of one worker.
pub(crate) trait EffectSettler: Send + Sync {
    /// Returns the kinds that have a handler.
    fn kinds(&self) -> Vec<String>;

    /// Returns whether there is a handler for this kind.
    fn serves(&self, kind: &str) -> bool;

    /// Settles an effect that no worker holds, and uses up the evidence.
    fn settle<'a>(
        &'a self,
        ibid: &'a Ibid,
        effect: &'a StoredEffect,
        kept: &'a StoredEvidence,
    ) -> BoxFuture<'a, EffectEnd>;
}

/// The handlers of one worker, and the database that their rows are in.
pub(crate) struct WorkerHandlers<D: Database> {
    pub(crate) database: Arc<D>,
    pub(crate) by_kind: HashMap<String, KindHandler<D::Tx>>,
}

/// The handler of one kind of effect.
pub(crate) struct KindHandler<T> {
    pub(crate) handler: Arc<dyn DynEffectHandler<T>>,
    /// Longest time for a call, for a verification, and for writing the handler's rows.
    pub(crate) timeout: Duration,
}

impl<D: Database> EffectSettler for WorkerHandlers<D> {
    fn kinds(&self) -> Vec<String> {
        self.by_kind.keys().cloned().collect()
    }

    fn serves(&self, kind: &str) -> bool {
        self.by_kind.contains_key(kind)
    }

    fn settle<'a>(
        &'a self,
        ibid: &'a Ibid,
        effect: &'a StoredEffect,
        kept: &'a StoredEvidence,
    ) -> BoxFuture<'a, EffectEnd> {
        Box::pin(async move {
            // The caller asked `serves`.
            let Some(KindHandler { handler, timeout }) = self.by_kind.get(&effect.kind) else {
                return EffectEnd::Lost;
            };
            let until = Instant::now() + SETTLE_FOR;
            let call = EffectCall::of(effect, until);
            let mut result = match &kept.evidence.what {
                Observation::Executed(answer) => {
                    match handler.on_evidence(&call, reported_result(answer)) {
                        Ok(made) => EffectResult::made(EffectEvent::Verified(Some(true)), made),
                        Err(error) => {
                            // The evidence stays stored until a worker can parse the payload and write the rows.
                            tracing::error!(effect = effect.seq, %error, "webhook not applied to an effect");
                            return EffectEnd::Unwritten;
                        }
                    }
                }
                Observation::NotExecuted | Observation::Nothing => {
                    EffectResult::because(EffectEvent::Verified(Some(false)), "a webhook said: not made")
                }
            };
            result.evidence = Some(kept.evidence.name.clone());
            let writer = ResultWriter {
                ibid,
                database: &*self.database,
                handler: &**handler,
                call: &call,
                effect,
                timeout: (*timeout).min(SETTLE_FOR),
                until,
            };
            let ended = writer.write(result).await;
            if let EffectEnd::Moved { to, due } = ended {
                count_move(effect, to, due);
                // The next effect of its aggregate may run.
                ibid.outbox().enqueued.notify_waiters();
            }
            ended
        })
    }
}

/// Returns the result that a webhook reports, before the handler converts it ([`EffectHandler::on_evidence`]).
fn reported_result(answer: &AttemptResponse) -> CallResult {
    let response = answer.kept.as_deref().cloned();
    CallResult {
        result: response.as_ref().map(|response| response.body.clone()).unwrap_or_default(),
        provider_id: answer.provider_id.clone(),
        response,
    }
}

const SETTLE: &str = "settle an effect";

/// Times that one piece of evidence is judged while its effect keeps changing. An effect changes a handful of times in its
/// life.
const TRIES_MAX: u32 = 4;

/// Longest time for writing the result of an effect. Half of the time limit of a webhook request, so that the sender gets
/// a response in time. If the write fails, upkeep tries again.
const SETTLE_FOR: Duration = Duration::from_secs(5);

/// Longest wait for a task that settles an effect. It gives up by itself after [`SETTLE_FOR`], unless a statement of it hangs. Less
/// than the time limit of a webhook request, so that the sender is asked to deliver again.
const SETTLE_WAIT_MAX: Duration = Duration::from_secs(8);
