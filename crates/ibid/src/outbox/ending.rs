//! How what happened to an Effect is written: its new state, the Record that it owes an answer and the handler's own
//! rows, in one transaction. It never chooses a state: `ibid_core::machine` does.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use ibid_core::change::{Change, Happened as Line, History, Mark, Stored};
use ibid_core::effect::{EffectChange, StoredEffect};
use ibid_core::evidence::EventName;
use ibid_core::machine::{self, Answer, EffectEvent, EffectState, Event, Verdict, decide_effect};
use ibid_core::response::Response;
use ibid_core::sql::{Database, Fault, OwnedTx, SqlError, SqlTx};
use metrics::counter;
use tokio::time::Instant;

use super::handler::{BoxError, Call, Handler, Made, Settled};
use super::kept::to_keep;
use super::statements::{self, version_after};
use crate::engine::{Ibid, after, jitter, nonce, noticed};
use crate::failpoint::{self, Hit};
use crate::telemetry;
use crate::transaction::inside::sql;
use crate::transaction::statements::{self as records, Terms};

/// What happened to an Effect, with all that is to be kept of it.
pub(super) struct Happened {
    pub(super) event: EffectEvent,
    pub(super) made: Option<Made>,
    pub(super) why: Option<String>,
    /// The provider's own id, where what was made is not known.
    pub(super) provider_id: Option<String>,
    /// The evidence that it is known by, to be used up with it.
    pub(super) told: Option<EventName>,
}

impl Happened {
    pub(super) fn made(event: EffectEvent, made: Made) -> Happened {
        Happened { event, made: Some(made), why: None, provider_id: None, told: None }
    }

    pub(super) fn because(event: EffectEvent, why: impl Into<String>) -> Happened {
        let why = Some(bounded(why.into()));
        Happened { event, made: None, why, provider_id: None, told: None }
    }

    /// What the machine makes of it; none leaves the Effect alone.
    pub(super) fn change(&self, effect: &StoredEffect) -> Option<EffectChange> {
        let (state, pause) = decide_effect(&effect.to_decide(), self.event)?;
        let wanted = match self.event {
            EffectEvent::NotMade { after } => after.unwrap_or_default(),
            // A call may be under way for the whole of this pause, so it is never shortened.
            EffectEvent::Uncertain | EffectEvent::Lapsed if state == EffectState::Unknown => {
                pause.unwrap_or_default()
            }
            _ => Duration::ZERO,
        };
        let called = match self.event {
            // No call was made, or a person answers for it: the provider's memory counts from the next.
            EffectEvent::Verified(Some(false)) | EffectEvent::Retry => Mark::Clear,
            _ => Mark::Keep,
        };
        let ended = match (effect.state, state) {
            (EffectState::Unknown, EffectState::Unknown) => Mark::Keep,
            (_, EffectState::Unknown) => Mark::Now,
            _ => Mark::Clear,
        };
        Some(EffectChange {
            seq: effect.seq,
            expect: effect.version,
            nonce: nonce(),
            state,
            tries: if self.event == EffectEvent::Retry { 0 } else { effect.tries },
            due_in: pause.map(|pause| pause.mul_f64(0.75 + 0.5 * jitter()).max(wanted)),
            called,
            ended,
            result: self.made.as_ref().map(|made| made.result.clone()),
            provider_id: match &self.made {
                Some(made) => made.provider_id.clone(),
                None => self.provider_id.clone(),
            },
            last_error: self.why.clone(),
        })
    }
}

/// What came of writing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The Effect stands there now, due again or not.
    Moved { to: EffectState, due: bool },
    /// Somebody else has it.
    Lost,
    /// It could not be written while the lease lasted; the claim lapses and the Effect is looked at again.
    Unwritten,
}

/// Whether a transaction wrote its end.
enum Written {
    /// It did, or had before.
    Yes,
    /// The Effect is somebody else's, who left it like this, and nothing was committed.
    No(Option<Box<StoredEffect>>),
}

/// Where an Effect's end is written.
pub(super) struct Ending<'a, D: Database> {
    pub(super) ibid: &'a Ibid,
    pub(super) database: &'a D,
    pub(super) handler: &'a dyn Handler<D::Tx>,
    pub(super) call: &'a Call,
    pub(super) effect: &'a StoredEffect,
    /// How long the handler's rows may take.
    pub(super) timeout: Duration,
    /// When the lease is over.
    pub(super) until: Instant,
}

impl<D: Database> Ending<'_, D> {
    /// Writes it, again while something is in the way and the lease lasts.
    ///
    /// The same change with the same nonce each time: a commit whose reply was lost is recognised, and one that never
    /// came is made up for. Past the lease it is left alone. Then the claim lapses, and what that means was declared with
    /// the Effect: made again under the same key, asked about, or `unknown`. Whoever comes too late is refused by the
    /// version, rows and all.
    pub(super) async fn write(&self, happened: Happened) -> Ended {
        let Some(change) = happened.change(self.effect) else { return Ended::Lost };
        let settled = settled(&change, &happened);
        let mut pause = PAUSE_MIN;
        loop {
            let error = match self.once(&change, &happened, settled.as_ref()).await {
                Ok(Written::Yes) => return Ended::Moved { to: change.state, due: change.due_in.is_some() },
                Ok(Written::No(stored)) => {
                    tell_of_loss(&happened, stored.as_deref());
                    return Ended::Lost;
                }
                Err(error) => error,
            };
            let next = Instant::now() + pause.mul_f64(0.75 + 0.5 * jitter());
            tracing::warn!(effect = self.effect.seq, %error, "the end of an effect could not be written");
            if next >= self.until {
                // Evidence is kept already, and nobody's claim lapses.
                if happened.told.is_none() {
                    self.keep(&happened, &error).await;
                }
                return Ended::Unwritten;
            }
            tokio::time::sleep_until(next).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// One transaction.
    async fn once(
        &self,
        change: &EffectChange,
        happened: &Happened,
        settled: Option<&Settled>,
    ) -> Result<Written, BoxError> {
        let sent_at = Instant::now();
        let mut tx = self.database.begin().await?;
        let terms = Terms::of(sql(self.ibid)?);
        let now = terms.now;
        // First, so that a lost claim is refused before any work; then the Record, an order that all keep.
        if statements::commit(&mut tx, change, terms).await?.is_none() {
            let stored = statements::load(&mut tx, change.seq, now).await?;
            if let Some(stored) = stored.as_ref().filter(|stored| stored.version.count < change.expect.count)
            {
                return forestall(tx, stored, terms).await;
            }
            let _ = tx.rollback().await;
            return Ok(match stored {
                Some(stored) if stored.version == version_after(change) => Written::Yes,
                stored => Written::No(stored.map(Box::new)),
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
            // Invariant: the event is used up by the very commit that it led to.
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
        Ok(Written::Yes)
    }

    async fn record(&self, settled: &Settled, tx: &mut D::Tx) -> Result<(), BoxError> {
        let rows = AssertUnwindSafe(async { self.handler.record(self.call, settled, tx).await });
        match tokio::time::timeout(self.timeout, rows.catch_unwind()).await {
            Ok(Ok(recorded)) => recorded,
            Ok(Err(_)) => Err("the handler panicked while it recorded".into()),
            Err(_) => Err("the handler took too long to record".into()),
        }
    }

    /// Keeps what is known of an end that could not be written, in the state that the Effect is in: what was made is used
    /// once the claim has lapsed, and its error seen. If this fails too, nothing is worse than before.
    async fn keep(&self, happened: &Happened, error: &BoxError) {
        let change = EffectChange {
            seq: self.effect.seq,
            expect: self.effect.version,
            nonce: nonce(),
            state: self.effect.state,
            tries: self.effect.tries,
            due_in: Some(self.effect.rules.lease()),
            called: Mark::Keep,
            ended: Mark::Keep,
            result: happened.made.as_ref().map(|made| to_keep(self.effect, made)),
            provider_id: match &happened.made {
                Some(made) => made.provider_id.clone(),
                None => happened.provider_id.clone(),
            },
            last_error: Some(bounded(format!("its end could not be written: {error}"))),
        };
        let keep = async {
            let mut tx = self.database.begin().await?;
            let terms = Terms::of(sql(self.ibid)?);
            match statements::commit(&mut tx, &change, terms).await? {
                Some(_) => tx.commit().await?,
                None => tx.rollback().await?,
            }
            Ok::<_, BoxError>(())
        };
        if let Err(error) = keep.await {
            tracing::warn!(effect = change.seq, %error, "what came of an effect could not be kept");
        }
    }
}

/// Somebody else was faster. Whoever looks at what became of the Effect will want to know of a call that was made; an
/// answer to a question is nothing new where somebody else had it too.
fn tell_of_loss(happened: &Happened, stored: Option<&StoredEffect>) {
    let Some(made) = happened.made.as_ref().filter(|_| happened.told.is_none()) else { return };
    let (effect, provider_id) = (stored.map(|stored| stored.seq), made.provider_id.as_deref());
    match (happened.event, stored) {
        (EffectEvent::Verified(_), Some(stored)) if stored.state == EffectState::Done => {
            tracing::info!(effect, provider_id, "somebody else has settled the effect");
        }
        _ => tracing::error!(effect, provider_id, "a call was made, and came too late"),
    }
}

/// A line of history: who settled it, and how.
fn line(effect: &StoredEffect, change: &EffectChange, event: &EventName) -> History {
    let EventName { source, event } = event;
    let (name, before, after) = (&effect.name, effect.state.name(), change.state.name());
    let detail = format!("effect `{name}` by a webhook, {before} to {after} (event `{event}` of `{source}`)");
    History { what: Line::Settled, detail }
}

/// The Effect stands where it stood before the claim that is given back, and that claim's commit may still be under way:
/// then it holds the row, and a write at what is seen waits for it. Not written: the claim never came, and can't any more.
/// An error: it came meanwhile, and is to be given back after all.
async fn forestall<T: OwnedTx>(mut tx: T, stored: &StoredEffect, terms: Terms) -> Result<Written, BoxError> {
    let as_it_stands = EffectChange {
        seq: stored.seq,
        expect: stored.version,
        nonce: nonce(),
        state: stored.state,
        tries: stored.tries,
        due_in: stored.due_at.map(|due_at| due_at.since(stored.now)),
        called: Mark::Keep,
        ended: Mark::Keep,
        result: None,
        provider_id: None,
        last_error: None,
    };
    match statements::commit(&mut tx, &as_it_stands, terms).await? {
        Some(_) => {
            tx.commit().await?;
            Ok(Written::No(None))
        }
        None => {
            let _ = tx.rollback().await;
            Err("the claim has come after all".into())
        }
    }
}

/// A Record that was given its answer, or none.
pub(super) struct Answered {
    change: Arc<Change>,
    stored: Option<Stored>,
    response: Option<Arc<Response>>,
}

impl Answered {
    /// Wakes those who wait for it.
    pub(super) fn tell(self, ibid: &Ibid, sent_at: Instant) {
        let inner = ibid.inner();
        noticed(&self.change);
        if let (Some(stored), Some(response)) = (self.stored, self.response) {
            inner.remember(stored.record, response, sent_at, stored.now);
        }
        inner.tell(&self.change.id);
    }
}

/// Gives the Record its answer, or says that none will come by itself.
pub(super) async fn answer(
    tx: &mut dyn SqlTx,
    effect: &StoredEffect,
    settled: &Settled,
    terms: Terms,
) -> Result<Option<Answered>, SqlError> {
    let now = terms.now;
    let held = records::lock(tx, &effect.record, now, effect.rules.lease()).await?;
    // Another generation is none of this Effect's business.
    let Some(held) = held.filter(|held| held.stored.record.birth == effect.birth) else { return Ok(None) };
    let response = match settled {
        Settled::Done(Made { answer: Some(response), .. }) => Some(response),
        Settled::Done(_) => {
            tracing::error!(effect = effect.seq, "an effect that owes an answer was done without one");
            None
        }
        Settled::Dead { .. } | Settled::Unknown { .. } => None,
    };
    let answer = response.map(|response| {
        let fits = response.body.len() as u64 <= held.stored.record.policy.max_response_body;
        Answer {
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
            // Somebody settled the record otherwise meanwhile: a person must hear that it was done.
            tracing::error!(
                effect = effect.seq,
                "an effect was done, and its record waits for no answer any more"
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
        // It is locked, so this can't be; whatever it was is gone with another transaction.
        return Err(SqlError::new(Fault::Again, "a locked record has changed"));
    };
    let kept = answer.is_some_and(|answer| answer.kept.is_some());
    Ok(Some(Answered {
        stored: after(&change, stamp, Some(&held.stored)),
        response: response.filter(|_| kept).cloned().map(Arc::new),
        change,
    }))
}

/// What the handler and the Record are told; none while the Effect goes on.
fn settled(change: &EffectChange, happened: &Happened) -> Option<Settled> {
    let why = happened.why.clone().unwrap_or_default();
    match (change.state, change.due_in) {
        (EffectState::Done, _) => Some(Settled::Done(happened.made.clone().unwrap_or_default())),
        (EffectState::Dead, _) => Some(Settled::Dead { why }),
        (EffectState::Unknown, None) => Some(Settled::Unknown { why }),
        _ => None,
    }
}

/// Cuts a text to what is kept of it.
pub(super) fn bounded(mut text: String) -> String {
    if text.len() > ERROR_BYTES_MAX {
        text.truncate(text.floor_char_boundary(ERROR_BYTES_MAX));
        text.push('…');
    }
    text
}

/// First pause before an end is written again: about one commit of a healthy disk.
const PAUSE_MIN: Duration = Duration::from_millis(20);

/// Longest pause: the end of an outage is noticed well within a lease.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// What is kept of a handler's words: a provider's message fits, a page of HTML does not.
const ERROR_BYTES_MAX: usize = 1024;

#[cfg(test)]
pub(super) mod tests {
    use bytes::Bytes;
    use ibid_core::effect::{Rules, Safety};
    use ibid_core::record::{Nonce, Version};
    use ibid_core::scope::RecordId;
    use ibid_core::time::Timestamp;

    use super::*;

    #[test]
    fn pauses_are_spread_around_the_backoff_and_never_below_what_is_wanted() {
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
        let effect = claimed(Rules { safety, ..Rules::default() });
        let (_, given) = decide_effect(&effect.to_decide(), event).expect("it goes on");
        let given = given.expect("it is due again").as_secs_f64();
        let happened = Happened::because(event, "");
        let pause = || happened.change(&effect).and_then(|change| change.due_in).expect("it is due again");
        let all = std::iter::repeat_with(|| pause().as_secs_f64() / given).take(500);
        all.fold((f64::MAX, 0.0), |(least, most), part| (part.min(least), part.max(most)))
    }

    /// At its fifth try.
    pub(in crate::outbox) fn claimed(rules: Rules) -> StoredEffect {
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
