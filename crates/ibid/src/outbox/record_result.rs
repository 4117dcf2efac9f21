//! Writes the result of an effect in one transaction: the effect's new state, the record whose response it owes, and the
//! handler's rows. `ibid_core::machine` chooses the state; nothing here does.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use ibid_core::change::{Change, History, HistoryKind as Line, StoredRecord};
use ibid_core::effect::{ERROR_BYTES_MAX, EffectChange, StoredEffect, stored_text};
use ibid_core::evidence::EventName;
use ibid_core::machine::{self, AttemptResponse, EffectEvent, EffectState, Event, Verdict, change_effect};
use ibid_core::response::Response;
use ibid_core::sql::{Database, OwnedTx, SqlError, SqlFault, SqlTx};
use metrics::counter;
use tokio::time::Instant;

use super::dyn_handler::DynEffectHandler;
use super::handler::{BoxError, CallResult, EffectCall, SettledEffect};
use super::statements::{self, version_after};
use super::unrecorded_result::encode_unrecorded;
use crate::backoff::Backoff;
use crate::engine::{apply_change, count_lapses};
use crate::failpoint::{self, Hit};
use crate::ibid::Ibid;
use crate::random::{jitter, nonce};
use crate::record_sql::{self, WriteOptions};
use crate::telemetry;
use crate::transaction::attempt_tx::sql;

/// An event of an effect, with everything that is stored about it.
pub(crate) struct EffectResult {
    pub(crate) event: EffectEvent,
    pub(crate) made: Option<CallResult>,
    pub(crate) why: Option<String>,
    /// The provider's id, if `made` is `None`. Otherwise it is in `made`.
    pub(crate) provider_id: Option<String>,
    /// The evidence that proves the result, if a webhook did. The transaction that writes the result marks it as used.
    pub(crate) evidence: Option<EventName>,
}

impl EffectResult {
    pub(crate) fn made(event: EffectEvent, made: CallResult) -> EffectResult {
        EffectResult { event, made: Some(made), why: None, provider_id: None, evidence: None }
    }

    /// Creates the result of a call that failed. The reason is cleaned here, because the handler gets it, too, and may store it
    /// with its rows.
    pub(crate) fn because(event: EffectEvent, why: impl Into<String>) -> EffectResult {
        let why = Some(stored_text(&why.into(), ERROR_BYTES_MAX).into_owned());
        EffectResult { event, made: None, why, provider_id: None, evidence: None }
    }

    /// Returns the write that the machine decides on, or `None` if the effect stays as it is.
    pub(crate) fn change(&self, effect: &StoredEffect) -> Option<EffectChange> {
        let change = change_effect(effect, self.event, nonce(), jitter())?;
        Some(EffectChange {
            result: self.made.as_ref().map(|made| made.result.clone()),
            provider_id: self.provider_id(),
            last_error: self.why.clone(),
            ..change
        })
    }

    fn provider_id(&self) -> Option<String> {
        match &self.made {
            Some(made) => made.provider_id.clone(),
            None => self.provider_id.clone(),
        }
    }
}

/// The outcome of writing a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EffectEnd {
    /// The effect is in this state now; `due` says whether it is due again.
    Moved { to: EffectState, due: bool },
    /// Another process has changed the effect; nothing was written.
    Lost,
    /// The result could not be written before the lease ended. The claim lapses, and a worker claims the effect again.
    Unwritten,
}

/// Outcome of one transaction that was to write the result.
enum TxOutcome {
    /// This transaction wrote it, or an earlier try whose reply was lost.
    Yes,
    /// Nothing was written. Holds the effect as another process has changed it.
    No(Option<Box<StoredEffect>>),
}

/// Writes the result of one effect.
pub(crate) struct ResultWriter<'a, D: Database> {
    pub(crate) ibid: &'a Ibid,
    pub(crate) database: &'a D,
    pub(crate) handler: &'a dyn DynEffectHandler<D::Tx>,
    pub(crate) call: &'a EffectCall,
    pub(crate) effect: &'a StoredEffect,
    /// Longest time for writing the handler's rows.
    pub(crate) timeout: Duration,
    /// End of the lease.
    pub(crate) until: Instant,
}

impl<D: Database> ResultWriter<'_, D> {
    /// Writes the result, and retries until the lease ends.
    ///
    /// Each try sends the same change with the same nonce. So a commit whose reply was lost is recognised, and one that
    /// never arrived is sent again. After the end of the lease there are no more tries. The claim lapses, and the effect's
    /// rules decide what follows: a worker makes the call again under the same key, a worker verifies it, or the effect
    /// becomes `unknown`. The version check rejects a late writer, and its transaction rolls back with all of its rows.
    pub(crate) async fn write(&self, result: EffectResult) -> EffectEnd {
        let Some(change) = result.change(self.effect) else { return EffectEnd::Lost };
        let settled = settled_effect(&change, &result);
        let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
        loop {
            let error = match self.try_write(&change, &result, settled.as_ref()).await {
                Ok(TxOutcome::Yes) => {
                    return EffectEnd::Moved { to: change.state, due: change.due_in.is_some() };
                }
                Ok(TxOutcome::No(stored)) => {
                    log_lost_result(&result, stored.as_deref());
                    return EffectEnd::Lost;
                }
                Err(error) => error,
            };
            let next = Instant::now() + backoff.next();
            tracing::warn!(effect = self.effect.seq, %error, "result of an effect could not be written");
            if next >= self.until {
                // Evidence is already stored, and there is no claim that could lapse.
                if result.evidence.is_none() {
                    self.store_unrecorded(&result, &error).await;
                }
                return EffectEnd::Unwritten;
            }
            tokio::time::sleep_until(next).await;
        }
    }

    /// Tries to write the result, in one transaction.
    async fn try_write(
        &self,
        change: &EffectChange,
        result: &EffectResult,
        settled: Option<&SettledEffect>,
    ) -> Result<TxOutcome, BoxError> {
        let sent_at = Instant::now();
        // A result that comes after the lease is still written, if no other worker has claimed the effect since.
        let mut tx = self.begin(self.until.max(sent_at + LATE_BEGIN_MAX)).await?;
        let terms = WriteOptions::of(sql(self.ibid)?);
        let now = terms.now;
        // Effect first, then record. A lost claim is then noticed before any work, and every writer locks in this order.
        if statements::commit(&mut tx, change, terms).await?.is_none() {
            let stored = statements::load(&mut tx, change.seq, now).await?;
            if let Some(stored) = stored.as_ref().filter(|stored| stored.version.count < change.expect.count)
            {
                return write_fence(tx, stored, terms).await;
            }
            let _ = tx.rollback().await;
            return Ok(match stored {
                Some(stored) if stored.version == version_after(change) => TxOutcome::Yes,
                stored => TxOutcome::No(stored.map(Box::new)),
            });
        }
        let owed = match settled {
            Some(settled) if self.effect.owes => settle_record(&mut tx, self.effect, settled, terms).await?,
            _ => None,
        };
        if let Some(settled) = settled {
            self.record(settled, &mut tx).await?;
        }
        if let Some(event) = &result.evidence {
            // Invariant: the commit that applies the evidence also marks it as used.
            statements::use_evidence(&mut tx, event, now).await?;
            record_sql::add_history(
                &mut tx,
                &self.effect.record,
                &history_line(self.effect, change, event),
                now,
            )
            .await?;
        }
        if failpoint::at("record.before").await == Hit::Error {
            return Err("a failpoint".into());
        }
        tx.commit().await?;
        if failpoint::at("done.after").await == Hit::Lost {
            return Err("a failpoint".into());
        }
        if let Some(owed) = owed {
            owed.publish(self.ibid, sent_at);
        }
        Ok(TxOutcome::Yes)
    }

    /// Begins a transaction, unless the application's connections are all in use until then. Nothing was sent by then that could be
    /// written later.
    async fn begin(&self, until: Instant) -> Result<D::Tx, BoxError> {
        match tokio::time::timeout_at(until, self.database.begin()).await {
            Ok(begun) => Ok(begun?),
            Err(_) => Err("no connection was free in time".into()),
        }
    }

    async fn record(&self, settled: &SettledEffect, tx: &mut D::Tx) -> Result<(), BoxError> {
        let rows = AssertUnwindSafe(async { self.handler.record(self.call, settled, tx).await });
        match tokio::time::timeout(self.timeout, rows.catch_unwind()).await {
            Ok(Ok(recorded)) => recorded,
            Ok(Err(_)) => Err("the handler panicked while it recorded".into()),
            Err(_) => Err("the handler took too long to record".into()),
        }
    }

    /// Stores a result that could not be recorded, without changing the effect's state. The worker that claims the effect
    /// after the lapse uses the stored result, and operators see the error. If this write fails too, the claim lapses
    /// without a stored result, as after a crash.
    async fn store_unrecorded(&self, result: &EffectResult, error: &BoxError) {
        let change = EffectChange {
            due_in: Some(self.effect.rules.lease()),
            result: result.made.as_ref().map(|made| encode_unrecorded(self.effect, made)),
            provider_id: result.provider_id(),
            last_error: Some(format!("its end could not be written: {error}")),
            ..EffectChange::touch(self.effect, nonce())
        };
        let write = async {
            let mut tx = self.begin(Instant::now() + LATE_BEGIN_MAX).await?;
            let terms = WriteOptions::of(sql(self.ibid)?);
            match statements::commit(&mut tx, &change, terms).await? {
                Some(_) => tx.commit().await?,
                None => tx.rollback().await?,
            }
            Ok::<_, BoxError>(())
        };
        if let Err(error) = write.await {
            tracing::warn!(effect = change.seq, %error, "unrecorded result of an effect could not be stored");
        }
    }
}

/// Logs a result that was not written because another process had changed the effect.
///
/// A call that was made is an error, because an operator may have to act on it. A verification that found the call made is
/// only information if the effect is already done.
fn log_lost_result(result: &EffectResult, stored: Option<&StoredEffect>) {
    let Some(made) = result.made.as_ref().filter(|_| result.evidence.is_none()) else { return };
    let (effect, provider_id) = (stored.map(|stored| stored.seq), made.provider_id.as_deref());
    match (result.event, stored) {
        (EffectEvent::Verified(_), Some(stored)) if stored.state.is_done() => {
            tracing::info!(effect, provider_id, "effect was already settled by another process");
        }
        _ => tracing::error!(
            effect,
            provider_id,
            "call succeeded, but the claim was lost; result not recorded"
        ),
    }
}

/// Returns the history line for an effect that a webhook settled.
fn history_line(effect: &StoredEffect, change: &EffectChange, event: &EventName) -> History {
    let EventName { source, event } = event;
    let (name, before, after) = (&effect.name, effect.state.name(), change.state.name());
    let detail = format!("effect `{name}` by a webhook, {before} to {after} (event `{event}` of `{source}`)");
    History { what: Line::Settled, detail }
}

/// Makes sure that a claim that is being released can no longer commit.
///
/// The stored effect has the version from before the claim, but the claim's commit may still be in flight. If it is, its
/// transaction holds the row lock, and a write that expects the stored version waits for it. `TxOutcome::No` means that the
/// claim was not committed and no longer can be. An error means that it was committed meanwhile: the caller tries again,
/// and then releases it.
async fn write_fence<T: OwnedTx>(
    mut tx: T,
    stored: &StoredEffect,
    terms: WriteOptions,
) -> Result<TxOutcome, BoxError> {
    match statements::commit(&mut tx, &EffectChange::touch(stored, nonce()), terms).await? {
        Some(_) => {
            tx.commit().await?;
            Ok(TxOutcome::No(None))
        }
        None => {
            let _ = tx.rollback().await;
            Err("the claim was committed after all".into())
        }
    }
}

/// A record that has just got its response, or has become `unknown`.
pub(crate) struct OwedResponse {
    change: Arc<Change>,
    stored: Option<StoredRecord>,
    response: Option<Arc<Response>>,
}

impl OwedResponse {
    /// Puts the response into the cache and wakes the duplicates of this process that wait for it.
    pub(crate) fn publish(self, ibid: &Ibid, sent_at: Instant) {
        let engine = ibid.engine();
        count_lapses(&self.change);
        if let (Some(stored), Some(response)) = (self.stored, self.response) {
            engine.remember(stored.record, response, sent_at, stored.now);
        }
        engine.notify_waiters(&self.change.id);
    }
}

/// Completes the record with its response, or makes it `unknown` if the effect ended without one.
///
/// Returns `None` if the record no longer waits for this effect.
pub(crate) async fn settle_record(
    tx: &mut dyn SqlTx,
    effect: &StoredEffect,
    settled: &SettledEffect,
    terms: WriteOptions,
) -> Result<Option<OwedResponse>, SqlError> {
    let now = terms.now;
    let locked = record_sql::lock(tx, &effect.record, now, effect.rules.lease()).await?;
    // A later generation of the record does not wait for this effect.
    let Some(locked) = locked.filter(|locked| locked.stored.record.birth == effect.birth) else {
        return Ok(None);
    };
    let response = match settled {
        SettledEffect::Done(CallResult { response: Some(response), .. }) => Some(response),
        SettledEffect::Done(_) => {
            tracing::error!(effect = effect.seq, "effect owes a response, but its handler returned none");
            None
        }
        SettledEffect::Dead { .. } | SettledEffect::Unknown { .. } => None,
    };
    let answer = response.map(|response| {
        let fits = response.body.len() as u64 <= locked.stored.record.policy.max_response_body;
        AttemptResponse {
            status: response.status,
            retry_after: false,
            kept: fits.then(|| Arc::new(response.clone())),
            provider_id: None,
            proof: None,
        }
    });
    let event = match &answer {
        Some(answer) => Event::EffectDone { nonce: nonce(), answer },
        None => Event::EffectDead { nonce: nonce() },
    };
    let Verdict::Write(change, _) = machine::decide(Some(&locked.stored.record), &event, locked.stored.now)
    else {
        if answer.is_some() {
            // Another process has settled the record meanwhile. An operator must learn that the call was made.
            tracing::error!(
                effect = effect.seq,
                "effect done, but its record no longer waits for the response"
            );
            counter!(telemetry::LATE_ANSWERS).increment(1);
            let detail = format!("effect `{}` was done after the record had changed", effect.name);
            let line = History { what: Line::LateAnswer, detail };
            record_sql::add_history(tx, &effect.record, &line, now).await?;
        }
        return Ok(None);
    };
    let Some(stamp) =
        record_sql::apply(tx, &change, Some(&locked.stored.record), locked.policy, terms).await?
    else {
        // The record is locked, so this cannot happen. If it does, the next transaction reads the record again.
        return Err(SqlError::new(SqlFault::Serialization, "a locked record has changed"));
    };
    let is_stored = answer.is_some_and(|answer| answer.kept.is_some());
    Ok(Some(OwedResponse {
        stored: apply_change(&change, stamp, Some(&locked.stored)),
        response: response.filter(|_| is_stored).cloned().map(Arc::new),
        change,
    }))
}

/// Returns the settled state for the handler and the record, or `None` if the effect will be tried or verified again.
fn settled_effect(change: &EffectChange, result: &EffectResult) -> Option<SettledEffect> {
    let why = result.why.clone().unwrap_or_default();
    match change.state {
        state if state.is_done() => Some(SettledEffect::Done(result.made.clone().unwrap_or_default())),
        state if !state.is_dead_letter(change.due_in.is_some()) => None,
        state if state.is_unknown() => Some(SettledEffect::Unknown { why }),
        _ => Some(SettledEffect::Dead { why }),
    }
}

/// Longest wait for a connection once the lease is over, for a late result or for one that could not be recorded. The worker's
/// slot is needed.
const LATE_BEGIN_MAX: Duration = Duration::from_secs(5);

/// First pause between two tries: about as long as one commit on a healthy disk.
const PAUSE_MIN: Duration = Duration::from_millis(20);

/// Longest pause between two tries: short enough to notice the end of an outage well within a lease.
const PAUSE_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
pub(super) mod tests {
    use bytes::Bytes;
    use ibid_core::effect::{EffectRules, Safety};
    use ibid_core::machine::decide_effect;
    use ibid_core::record::{Nonce, Version};
    use ibid_core::scope::RecordId;
    use ibid_core::time::Timestamp;

    use super::*;

    #[test]
    fn pauses_spread_around_the_backoff_above_the_minimum() {
        // Effects that failed together must not retry together.
        let (least, most) = spread(Safety::Once, EffectEvent::NotMade { after: None });
        assert!((0.75..0.9).contains(&least) && (1.1..=1.25).contains(&most), "{least} to {most}");
        // A pause is never shortened if the provider asked for it, or if the call may still be in flight.
        let wanted = EffectEvent::NotMade { after: Some(Duration::from_secs(90)) };
        for (safety, event) in [(Safety::Once, wanted), (Safety::Verified, EffectEvent::Uncertain)] {
            let (least, most) = spread(safety, event);
            assert!((1.0..1.1).contains(&least) && (1.1..=1.25).contains(&most), "{least} to {most}");
        }
    }

    /// Returns the shortest and the longest of 500 pauses, relative to the pause that the machine returns.
    ///
    /// With 500 of them, it practically never happens that none is below 0.9 or none above 1.1.
    fn spread(safety: Safety, event: EffectEvent) -> (f64, f64) {
        let effect = claimed_effect(EffectRules::default().with(|rules| rules.safety = safety));
        let (_, due_in) = decide_effect(&effect.to_decide(), event).expect("a change");
        let base = due_in.expect("it is due again").as_secs_f64();
        let result = EffectResult::because(event, "");
        let pause = || result.change(&effect).and_then(|change| change.due_in).expect("it is due again");
        let all = std::iter::repeat_with(|| pause().as_secs_f64() / base).take(500);
        all.fold((f64::MAX, 0.0), |(least, most), part| (part.min(least), part.max(most)))
    }

    /// Returns a claimed effect at its fifth try.
    pub(in crate::outbox) fn claimed_effect(rules: EffectRules) -> StoredEffect {
        StoredEffect {
            seq: 1,
            record: RecordId::from_bytes([0; RecordId::LEN]),
            birth: Nonce(1),
            tenant: String::new(),
            name: String::new(),
            kind: String::new(),
            version: Version { count: 2, nonce: Nonce(2) },
            state: EffectState::Claimed,
            tries: 5,
            due_at: None,
            created_at: Timestamp::from_micros(0),
            called_at: Some(Timestamp::from_micros(0)),
            ended_at: None,
            done_at: None,
            aggregate: None,
            downstream_key: String::new(),
            rules,
            owes: false,
            is_letter: false,
            trace: None,
            payload: Bytes::new(),
            result: None,
            provider_id: None,
            last_error: None,
            now: Timestamp::from_micros(1),
        }
    }
}
