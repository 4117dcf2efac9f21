//! Writes the result of an effect in one transaction: its new state, the record whose response it owes, and the handler's
//! rows. It never chooses a state: `ibid_core::machine` does.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use ibid_core::change::{Change, History, HistoryKind as Line, StoredRecord};
use ibid_core::effect::{EffectChange, StoredEffect};
use ibid_core::evidence::EventName;
use ibid_core::machine::{self, AttemptResponse, EffectEvent, EffectState, Event, Verdict, change_effect};
use ibid_core::response::Response;
use ibid_core::sql::{Database, OwnedTx, SqlError, SqlFault, SqlTx};
use metrics::counter;
use tokio::time::Instant;

use super::dyn_handler::DynEffectHandler;
use super::handler::{BoxError, CallResult, EffectCall, SettledEffect};
use super::statements::{self, version_after};
use super::unrecorded::encode_unrecorded;
use crate::backoff::Backoff;
use crate::engine::{apply_change, count_lapses};
use crate::failpoint::{self, Hit};
use crate::ibid::Ibid;
use crate::random::{jitter, nonce};
use crate::telemetry;
use crate::transaction::attempt_tx::sql;
use crate::transaction::statements::{self as records, WriteOptions};

/// What happened to an effect, with everything that is stored about it.
pub(crate) struct EffectResult {
    pub(crate) event: EffectEvent,
    pub(crate) made: Option<CallResult>,
    pub(crate) why: Option<String>,
    /// The provider's own id, if it is not known what was made.
    pub(crate) provider_id: Option<String>,
    /// The evidence that says so. It is marked as used in the same transaction.
    pub(crate) told: Option<EventName>,
}

impl EffectResult {
    pub(crate) fn made(event: EffectEvent, made: CallResult) -> EffectResult {
        EffectResult { event, made: Some(made), why: None, provider_id: None, told: None }
    }

    pub(crate) fn because(event: EffectEvent, why: impl Into<String>) -> EffectResult {
        let why = Some(bounded(why.into()));
        EffectResult { event, made: None, why, provider_id: None, told: None }
    }

    /// The write that the machine makes of it; none leaves the effect alone.
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
pub(crate) enum Ended {
    /// The effect is in this state now, due again or not.
    Moved { to: EffectState, due: bool },
    /// Another process has changed the effect; nothing was written.
    Lost,
    /// It could not be written before the lease ended. The claim lapses, and a worker claims the effect again.
    Unwritten,
}

/// Whether a transaction wrote the result.
enum TxOutcome {
    /// This one did, or an earlier try whose reply was lost.
    Yes,
    /// Another process has changed the effect to this; nothing was committed.
    No(Option<Box<StoredEffect>>),
}

/// Writes the result of one effect.
pub(crate) struct ResultWriter<'a, D: Database> {
    pub(crate) ibid: &'a Ibid,
    pub(crate) database: &'a D,
    pub(crate) handler: &'a dyn DynEffectHandler<D::Tx>,
    pub(crate) call: &'a EffectCall,
    pub(crate) effect: &'a StoredEffect,
    /// How long writing the handler's rows may take.
    pub(crate) timeout: Duration,
    /// When the lease ends.
    pub(crate) until: Instant,
}

impl<D: Database> ResultWriter<'_, D> {
    /// Writes the result, and retries until the lease ends.
    ///
    /// Each try sends the same change with the same nonce: a commit whose reply was lost is recognised, and one that never
    /// arrived is made again. After the end of the lease nothing is tried. The claim lapses, and the effect's rules say what
    /// happens then: the call is made again under the same key, verified, or the effect is `unknown`. A late writer is
    /// refused by the version, with all of its rows.
    pub(crate) async fn write(&self, happened: EffectResult) -> Ended {
        let Some(change) = happened.change(self.effect) else { return Ended::Lost };
        let settled = settled(&change, &happened);
        let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
        loop {
            let error = match self.once(&change, &happened, settled.as_ref()).await {
                Ok(TxOutcome::Yes) => return Ended::Moved { to: change.state, due: change.due_in.is_some() },
                Ok(TxOutcome::No(stored)) => {
                    tell_of_loss(&happened, stored.as_deref());
                    return Ended::Lost;
                }
                Err(error) => error,
            };
            let next = Instant::now() + backoff.next();
            tracing::warn!(effect = self.effect.seq, %error, "result of an effect could not be written");
            if next >= self.until {
                // Evidence is stored already, and no claim lapses.
                if happened.told.is_none() {
                    self.keep(&happened, &error).await;
                }
                return Ended::Unwritten;
            }
            tokio::time::sleep_until(next).await;
        }
    }

    /// Tries it in one transaction.
    async fn once(
        &self,
        change: &EffectChange,
        happened: &EffectResult,
        settled: Option<&SettledEffect>,
    ) -> Result<TxOutcome, BoxError> {
        let sent_at = Instant::now();
        let mut tx = self.database.begin().await?;
        let terms = WriteOptions::of(sql(self.ibid)?);
        let now = terms.now;
        // The effect comes first, so that a lost claim is refused before any work; then the record. Every writer keeps
        // this order.
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
        let answered = match settled {
            Some(settled) if self.effect.owes => answer(&mut tx, self.effect, settled, terms).await?,
            _ => None,
        };
        if let Some(settled) = settled {
            self.record(settled, &mut tx).await?;
        }
        if let Some(event) = &happened.told {
            // Invariant: the evidence is used up by the very commit that it led to.
            statements::use_evidence(&mut tx, event, now).await?;
            records::note(&mut tx, &self.effect.record, &line(self.effect, change, event), now).await?;
        }
        if failpoint::at("record.before").await == Hit::Error {
            return Err("a failpoint".into());
        }
        tx.commit().await?;
        if failpoint::at("done.after").await == Hit::Lost {
            return Err("a failpoint".into());
        }
        if let Some(answered) = answered {
            answered.tell(self.ibid, sent_at);
        }
        Ok(TxOutcome::Yes)
    }

    async fn record(&self, settled: &SettledEffect, tx: &mut D::Tx) -> Result<(), BoxError> {
        let rows = AssertUnwindSafe(async { self.handler.record(self.call, settled, tx).await });
        match tokio::time::timeout(self.timeout, rows.catch_unwind()).await {
            Ok(Ok(recorded)) => recorded,
            Ok(Err(_)) => Err("the handler panicked while it recorded".into()),
            Err(_) => Err("the handler took too long to record".into()),
        }
    }

    /// Stores a result that could not be recorded, without changing the effect's state: the worker that claims it after the
    /// lapse uses what was made, and operators see the error. If this fails too, nothing is worse than before.
    async fn keep(&self, happened: &EffectResult, error: &BoxError) {
        let change = EffectChange {
            due_in: Some(self.effect.rules.lease()),
            result: happened.made.as_ref().map(|made| encode_unrecorded(self.effect, made)),
            provider_id: happened.provider_id(),
            last_error: Some(bounded(format!("its end could not be written: {error}"))),
            ..EffectChange::touch(self.effect, nonce())
        };
        let keep = async {
            let mut tx = self.database.begin().await?;
            let terms = WriteOptions::of(sql(self.ibid)?);
            match statements::commit(&mut tx, &change, terms).await? {
                Some(_) => tx.commit().await?,
                None => tx.rollback().await?,
            }
            Ok::<_, BoxError>(())
        };
        if let Err(error) = keep.await {
            tracing::warn!(effect = change.seq, %error, "unrecorded result of an effect could not be stored");
        }
    }
}

/// Logs a result that was not written because the effect had changed. An operator will want to know of a call that was
/// made; the answer of a verification is nothing new if another process got it too.
fn tell_of_loss(happened: &EffectResult, stored: Option<&StoredEffect>) {
    let Some(made) = happened.made.as_ref().filter(|_| happened.told.is_none()) else { return };
    let (effect, provider_id) = (stored.map(|stored| stored.seq), made.provider_id.as_deref());
    match (happened.event, stored) {
        (EffectEvent::Verified(_), Some(stored)) if stored.state == EffectState::Done => {
            tracing::info!(effect, provider_id, "effect was already settled by another process");
        }
        _ => tracing::error!(effect, provider_id, "a call was made, and came too late"),
    }
}

/// The line of history for an effect that a webhook settled.
fn line(effect: &StoredEffect, change: &EffectChange, event: &EventName) -> History {
    let EventName { source, event } = event;
    let (name, before, after) = (&effect.name, effect.state.name(), change.state.name());
    let detail = format!("effect `{name}` by a webhook, {before} to {after} (event `{event}` of `{source}`)");
    History { what: Line::Settled, detail }
}

/// Makes sure that a claim which is given back can no longer commit.
///
/// The effect is at the version from before that claim, and the claim's commit may still be in flight: then it holds the
/// row, and a write at the version that was read waits for it. `TxOutcome::No`: the claim was not committed, and cannot be any
/// more. An error: it was committed meanwhile, and has to be given back after all.
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

/// A record that was just given its response, or became unknown.
pub(crate) struct Answered {
    change: Arc<Change>,
    stored: Option<StoredRecord>,
    response: Option<Arc<Response>>,
}

impl Answered {
    /// Puts the response into the cache and wakes the duplicates that wait for it.
    pub(crate) fn tell(self, ibid: &Ibid, sent_at: Instant) {
        let engine = ibid.engine();
        count_lapses(&self.change);
        if let (Some(stored), Some(response)) = (self.stored, self.response) {
            engine.remember(stored.record, response, sent_at, stored.now);
        }
        engine.notify_waiters(&self.change.id);
    }
}

/// Gives the record its response, or makes it unknown if no response will come.
pub(crate) async fn answer(
    tx: &mut dyn SqlTx,
    effect: &StoredEffect,
    settled: &SettledEffect,
    terms: WriteOptions,
) -> Result<Option<Answered>, SqlError> {
    let now = terms.now;
    let held = records::lock(tx, &effect.record, now, effect.rules.lease()).await?;
    // A later generation of the record does not wait for this effect.
    let Some(held) = held.filter(|held| held.stored.record.birth == effect.birth) else { return Ok(None) };
    let response = match settled {
        SettledEffect::Done(CallResult { answer: Some(response), .. }) => Some(response),
        SettledEffect::Done(_) => {
            tracing::error!(effect = effect.seq, "effect owes a response, and its handler gave none");
            None
        }
        SettledEffect::Dead { .. } | SettledEffect::Unknown { .. } => None,
    };
    let answer = response.map(|response| {
        let fits = response.body.len() as u64 <= held.stored.record.policy.max_response_body;
        AttemptResponse {
            status: response.status,
            retry_after: false,
            kept: fits.then(|| response.to_bytes()),
            provider_id: None,
            proof: None,
        }
    });
    let event = match &answer {
        Some(answer) => Event::EffectDone { nonce: nonce(), answer },
        None => Event::EffectDead { nonce: nonce() },
    };
    let Verdict::Write(change, _) = machine::decide(Some(&held.stored.record), &event, held.stored.now)
    else {
        if answer.is_some() {
            // The record was settled otherwise meanwhile: an operator must learn that the call was made.
            tracing::error!(
                effect = effect.seq,
                "effect done, but its record no longer waits for the response"
            );
            counter!(telemetry::LATE_ANSWERS).increment(1);
            let detail = format!("effect `{}` was done after the record had gone on", effect.name);
            let line = History { what: Line::LateAnswer, detail };
            records::note(tx, &effect.record, &line, now).await?;
        }
        return Ok(None);
    };
    let Some(stamp) = records::apply(tx, &change, Some(&held.stored.record), held.policy, terms).await?
    else {
        // The record is locked, so this cannot happen; the next transaction reads it again.
        return Err(SqlError::new(SqlFault::Serialization, "a locked record has changed"));
    };
    let kept = answer.is_some_and(|answer| answer.kept.is_some());
    Ok(Some(Answered {
        stored: apply_change(&change, stamp, Some(&held.stored)),
        response: response.filter(|_| kept).cloned().map(Arc::new),
        change,
    }))
}

/// What the handler and the record get to know; none while the effect is tried or verified again.
fn settled(change: &EffectChange, happened: &EffectResult) -> Option<SettledEffect> {
    let why = happened.why.clone().unwrap_or_default();
    match change.state {
        EffectState::Done => Some(SettledEffect::Done(happened.made.clone().unwrap_or_default())),
        state if !state.is_dead_letter(change.due_in.is_some()) => None,
        EffectState::Unknown => Some(SettledEffect::Unknown { why }),
        _ => Some(SettledEffect::Dead { why }),
    }
}

/// Cuts a text to [`ERROR_BYTES_MAX`].
pub(crate) fn bounded(mut text: String) -> String {
    if text.len() > ERROR_BYTES_MAX {
        text.truncate(text.floor_char_boundary(ERROR_BYTES_MAX));
        text.push('…');
    }
    text
}

/// First pause before the next try: about one commit of a healthy disk.
const PAUSE_MIN: Duration = Duration::from_millis(20);

/// Longest pause: short enough to notice the end of an outage well within a lease.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How much of a handler's error is stored: a provider's message fits, a page of HTML does not.
const ERROR_BYTES_MAX: usize = 1024;

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
        // Those who failed together must not come back together.
        let (least, most) = spread(Safety::Once, EffectEvent::NotMade { after: None });
        assert!((0.75..0.9).contains(&least) && (1.1..=1.25).contains(&most), "{least} to {most}");
        // What the provider asks for, and what a call may still be under way for, is not shortened.
        let wanted = EffectEvent::NotMade { after: Some(Duration::from_secs(90)) };
        for (safety, event) in [(Safety::Once, wanted), (Safety::Verified, EffectEvent::Uncertain)] {
            let (least, most) = spread(safety, event);
            assert!((1.0..1.1).contains(&least) && (1.1..=1.25).contains(&most), "{least} to {most}");
        }
    }

    /// The shortest and the longest of many pauses, as parts of the one that the machine gives. That none of so many is
    /// below 0.9 or above 1.1 of it happens once in more runs than there will be.
    fn spread(safety: Safety, event: EffectEvent) -> (f64, f64) {
        let effect = claimed(EffectRules { safety, ..EffectRules::default() });
        let (_, given) = decide_effect(&effect.to_decide(), event).expect("it goes on");
        let given = given.expect("it is due again").as_secs_f64();
        let happened = EffectResult::because(event, "");
        let pause = || happened.change(&effect).and_then(|change| change.due_in).expect("it is due again");
        let all = std::iter::repeat_with(|| pause().as_secs_f64() / given).take(500);
        all.fold((f64::MAX, 0.0), |(least, most), part| (part.min(least), part.max(most)))
    }

    /// At its fifth try.
    pub(in crate::outbox) fn claimed(rules: EffectRules) -> StoredEffect {
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
            trace: None,
            payload: Bytes::new(),
            result: None,
            provider_id: None,
            last_error: None,
            now: Timestamp::from_micros(1),
        }
    }
}
