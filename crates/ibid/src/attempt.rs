//! A held lease: renews while it lives, finishes once, and says what it knows even when it is dropped.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;

use bytes::Bytes;
use ibid_core::change::Stored;
use ibid_core::machine::{Answer, Ask, Decision, Event, Step};
use ibid_core::policy::Class;
use ibid_core::proof::Proof;
use ibid_core::record::{ErrorCode, Record, RecoveryPoint};
use ibid_core::response::Response;
use ibid_core::scope::RecordId;
use ibid_core::store::Renewed;
use metrics::counter;
use parking_lot::Mutex;

use crate::engine::{DrainGuard, GiveUp, Kept, run_to_completion, still_owns};
use crate::ibid::{Begun, Ibid};
use crate::telemetry;

/// One run of the handler, under a lease.
///
/// `finish`, `release` and `unknown` take it by value: a second end does not compile. Dropped without an end it
/// releases the key if nothing was sent yet ([`Attempt::ready`]), and else says that nobody knows.
pub struct Attempt {
    ibid: Ibid,
    ask: Arc<Ask>,
    begun: Arc<Record>,
    after: RecoveryPoint,
    leased_at: LeasedAt,
    began_at: Instant,
    /// Whether the outside may have seen a byte.
    exposed: bool,
    /// Whether the identity that its record's id was made under still has to be confirmed, before the first outside byte or
    /// business statement. After that its record is found by every process, whatever the identity is then.
    checks_identity: AtomicBool,
    ended: bool,
    /// What came of an end that was written in the caller's own transaction.
    outcome: Option<Finished>,
    /// Who wants to hear of that.
    hears: Option<Hears>,
    /// What the fields of its answer prove.
    proof: Option<Proof>,
    /// How far this run has come in its Phases.
    pub(crate) progress: Progress,
    /// Dropped last: a shutdown waits for it.
    _guard: DrainGuard,
}

/// From when the lease counts: from before the write or the renewal that gave it. An Attempt and whoever keeps it alive
/// share one.
#[derive(Clone, Debug)]
struct LeasedAt(Arc<Mutex<Instant>>);

impl LeasedAt {
    fn new(at: Instant) -> LeasedAt {
        LeasedAt(Arc::new(Mutex::new(at)))
    }

    fn get(&self) -> Instant {
        *self.0.lock()
    }

    fn set(&self, at: Instant) {
        *self.0.lock() = at;
    }

    /// A renewal that was sent then is confirmed now. Whether it counts: past all of the lease none does, whatever the
    /// store says.
    fn renewed(&self, sent_at: Instant, lease: Duration) -> bool {
        let mut at = self.0.lock();
        let counts = at.elapsed() < lease;
        if counts {
            *at = sent_at.max(*at);
        }
        counts
    }
}

/// Told of an end.
type Hears = Box<dyn FnOnce(&Finished) + Send + Sync>;

/// How far a run has come in its Phases.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// The last Phase that it passed, by running it or by finding it done.
    pub(crate) at: Step,
    /// What earlier runs left, once it was looked for.
    pub(crate) left: Option<HashMap<u32, Bytes>>,
    /// The Phase whose call this run has made without knowing what came of it.
    pub(crate) in_doubt: Option<Step>,
}

/// The lease ran out before the first outside byte, or the identity of the store was retired: nothing may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the lease is gone")]
pub struct LeaseGone;

/// What came of an Attempt's end.
#[derive(Clone, Debug)]
pub enum Finished {
    /// The answer is final and durable.
    Stored(Kept),
    /// The answer is final and durable, but not kept for replay.
    StoredUnkept(Arc<Record>),
    /// The key is free again.
    Freed,
    /// The outcome is unknown, durably.
    Unsettled {
        /// How long to the next reconciliation; none: a person must look.
        settled_in: Option<Duration>,
    },
    /// The answer is owed by an Effect: whoever asks waits for it.
    Owed,
    /// The record could not be written in time. The write stays queued, unless the store refuses it for good: then the
    /// lease lapses.
    NotStored,
    /// The record went on without this Attempt; this is what counts now.
    Superseded(Arc<Begun>),
}

impl Attempt {
    pub(crate) fn new(
        ibid: Ibid,
        ask: Arc<Ask>,
        begun: Arc<Record>,
        after: RecoveryPoint,
        leased_at: Instant,
    ) -> Attempt {
        let guard = ibid.engine().drain.track_attempt();
        Attempt {
            _guard: guard,
            ibid,
            ask,
            begun,
            after,
            leased_at: LeasedAt::new(leased_at),
            began_at: leased_at,
            checks_identity: AtomicBool::new(true),
            exposed: false,
            ended: false,
            outcome: None,
            hears: None,
            proof: None,
            progress: Progress::default(),
        }
    }

    /// One whose record is written by the caller's transaction alone: nothing to release if it is dropped.
    pub(crate) fn unwritten(ibid: Ibid, ask: Arc<Ask>, begun: Arc<Record>, leased_at: Instant) -> Attempt {
        let mut attempt = Attempt::new(ibid, ask, begun, 0, leased_at);
        attempt.ended = true;
        attempt
    }

    /// Knows what this one knows, and ends nothing.
    pub(crate) fn stand_in(&self) -> Attempt {
        Attempt::unwritten(self.ibid.clone(), self.ask.clone(), self.begun.clone(), self.leased_at.get())
    }

    /// Which run of this request it is, from 1.
    pub fn number(&self) -> u32 {
        self.begun.attempt
    }

    /// The last Phase that an earlier Attempt committed; zero if none.
    pub fn after(&self) -> RecoveryPoint {
        self.after
    }

    /// The record's name in logs.
    pub fn short_id(&self) -> String {
        self.begun.id.short()
    }

    /// The record's name in the store, for a foreign key of the caller's own rows.
    pub fn record_id(&self) -> RecordId {
        self.begun.id
    }

    /// What came of it, once it has ended inside the caller's transaction.
    pub fn outcome(&self) -> Option<&Finished> {
        self.outcome.as_ref()
    }

    /// The same, taken out: for whoever answers the client with it.
    pub fn take_outcome(&mut self) -> Option<Finished> {
        self.outcome.take()
    }

    /// Whether the outside may have seen something that is not recorded yet: then an end without an answer is unknown.
    pub fn is_exposed(&self) -> bool {
        self.exposed
    }

    pub(crate) fn ibid(&self) -> &Ibid {
        &self.ibid
    }

    pub(crate) fn ask(&self) -> &Arc<Ask> {
        &self.ask
    }

    pub(crate) fn begun(&self) -> &Arc<Record> {
        &self.begun
    }

    pub(crate) fn began_at(&self) -> Instant {
        self.began_at
    }

    /// Whether its generation is as old as that by the store's clock: the store's instant when this run began, and what has
    /// passed here since it was sent. It may be taken for older than it is, never for younger.
    pub(crate) fn is_as_old_as(&self, age: Duration) -> bool {
        let ran_at = self.begun.ran_at.unwrap_or(self.begun.created_at);
        self.begun.created_at.after(age) <= ran_at.after(self.began_at.elapsed())
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Tells `hears` once it has ended in the caller's transaction.
    pub fn when_ended(&mut self, hears: impl FnOnce(&Finished) + Send + Sync + 'static) {
        self.hears = Some(Box::new(hears));
    }

    /// It ended in the caller's transaction, or was given up with it.
    pub(crate) fn ended_with(&mut self, outcome: Finished) -> Finished {
        self.ended = true;
        if let Some(hears) = self.hears.take() {
            hears(&outcome);
        }
        self.outcome.insert(outcome).clone()
    }

    /// The record as this Attempt has just written it. The lease counts from before that write.
    pub(crate) fn goes_on_as(&mut self, record: Arc<Record>, leased_at: Instant) {
        let doubt = self.doubt().filter(|call| call.point > record.point);
        self.begun = record;
        self.leased_at.set(leased_at);
        self.doubts(doubt);
    }

    /// The Phase whose call may have been made, and may be made again. It is written by the end alone, whichever that is.
    pub(crate) fn doubts(&mut self, call: Option<Step>) {
        if self.doubt() != call {
            let note = &mut Arc::make_mut(&mut self.begun).note;
            (note.doubt, note.doubted) = (call.map(|call| call.point), call.map(|call| call.phases));
        }
    }

    /// The same, of this run or one before.
    pub(crate) fn doubt(&self) -> Option<Step> {
        let note = &self.begun.note;
        note.doubt.map(|point| Step { point, phases: note.doubted.unwrap_or_default() })
    }

    /// Something of it may have been seen outside: dropped, it says that nobody knows.
    pub(crate) fn expose(&mut self) {
        self.exposed = true;
    }

    /// Nothing of what it does from here on is seen outside, until it is [`Attempt::ready`] again: for a handler that
    /// works in the store's own database.
    pub(crate) fn conceal(&mut self) {
        // But for a call that nobody can tell about.
        self.exposed = self.begun.note.calling.is_some();
    }

    /// The end of a caller's transaction that undid all work, but has an answer.
    pub(crate) async fn finish_undone(&mut self, response: Response) -> Finished {
        let retry_after = says_when(&response);
        let response = response.repeatable(&self.begun.policy);
        // Written by a task of its own from here on, whether or not anybody waits for it.
        self.ended = true;
        let finished = self.end_with(response, retry_after).await;
        self.ended_with(finished)
    }

    /// Ends with an answer. Where nothing was seen outside, the rollback proves that an ambiguous one executed nothing.
    async fn end_with(&self, response: Response, retry_after: bool) -> Finished {
        let class = self.begun.policy.classify(response.status, retry_after, self.proof);
        if class == Class::Ambiguous && !self.exposed {
            return self.end(End::NotExecuted(ErrorCode::ServerError), None).await;
        }
        let answer = Answer { proof: self.proof, ..kept_answer(&response, retry_after) };
        self.end(End::Answered(answer), Some(Arc::new(response))).await
    }

    /// To be called before the first outside byte. Past half of the lease it renews and waits for the answer; past
    /// all of it, it says no. So it does if the store's identity is no longer the one that this process started with.
    pub async fn ready(&mut self) -> Result<(), LeaseGone> {
        let lease = self.begun.policy.lease;
        if self.leased_at.get().elapsed() >= lease / 2 {
            let sent_at = Instant::now();
            let renewed = tokio::time::timeout(lease, self.ibid.engine().renew(&self.begun)).await;
            match renewed {
                Ok(Some(Renewed::Until(_))) if self.leased_at.renewed(sent_at, lease) => {}
                _ => return Err(LeaseGone),
            }
        }
        if !self.confirms_identity().await {
            return Err(LeaseGone);
        }
        self.exposed = true;
        Ok(())
    }

    /// Whether it may do its first work. T1 (new identity) finds nothing under a key's old id and runs under the new one; this
    /// Attempt's reservation under the old id, sent before a long pause, arrives after that. It must not run as well.
    pub(crate) async fn confirms_identity(&self) -> bool {
        let is_confirmed =
            !self.checks_identity.load(Ordering::SeqCst) || self.ibid.engine().confirm_identity().await;
        if is_confirmed {
            self.checks_identity.store(false, Ordering::SeqCst);
        }
        is_confirmed
    }

    /// An Attempt that upkeep takes on: its record is stored and every process finds it, whatever its own identity is.
    pub(crate) fn of_upkeep(self) -> Attempt {
        self.checks_identity.store(false, Ordering::SeqCst);
        self
    }

    /// Renews the lease at every third of it, until `max_run` or until the record is somebody else's. Never returns
    /// before that: run it beside the handler.
    pub fn keep_alive(&self) -> impl Future<Output = ()> + Send + use<> {
        let (ibid, mut record) = (self.ibid.clone(), self.begun.clone());
        let (lease, until) = (record.policy.lease, self.began_at + record.policy.max_run);
        let leased_at = self.leased_at.clone();
        let mut next = leased_at.get() + lease / 3;
        async move {
            while next < until {
                tokio::time::sleep_until(next).await;
                let sent_at = Instant::now();
                match ibid.engine().renew(&record).await {
                    Some(Renewed::Until(_)) => {
                        leased_at.renewed(sent_at, lease);
                        next += lease / 3;
                    }
                    // Held by a write at this moment, or the store is away: soon again.
                    Some(Renewed::Busy) | None => next = Instant::now() + lease / 12,
                    Some(Renewed::Lost) => match ibid.engine().load(record.id).await {
                        // Written to by somebody who did not take it over: it goes on at its new Version.
                        Ok(Some(stored))
                            if still_owns(&stored, &record) && stored.record.version != record.version =>
                        {
                            record = stored.record;
                        }
                        Ok(_) => return,
                        Err(_) => next = Instant::now() + lease / 12,
                    },
                }
            }
        }
    }

    /// Sets what the fields of its answer prove, for the `finish` that follows. Proof goes before the status.
    #[must_use]
    pub fn proven(mut self, proof: Option<Proof>) -> Attempt {
        self.proof = proof;
        self
    }

    /// The work has an answer: it is classed by the policy, made durable, and only then returned.
    pub async fn finish(mut self, response: Response, retry_after: bool) -> Finished {
        self.ended = true;
        self.end_with(response, retry_after).await
    }

    /// The work has an answer that is too large, a stream or an upgrade: done, and not kept.
    pub async fn finish_unkept(mut self, status: u16, retry_after: bool) -> Finished {
        self.ended = true;
        self.end(End::Answered(unkept_answer(status, retry_after, self.proof)), None).await
    }

    /// Nothing was executed, and that is certain.
    pub async fn release(mut self, why: ErrorCode) -> Finished {
        self.ended = true;
        self.end(End::NotExecuted(why), None).await
    }

    /// Nobody can know whether it was executed. A later [`Late::finish`] may still settle it.
    pub async fn unknown(mut self, why: ErrorCode) -> (Finished, Late) {
        self.ended = true;
        let guard = self.ibid.engine().drain.track_attempt();
        let late = Late {
            ibid: self.ibid.clone(),
            ask: self.ask.clone(),
            begun: self.begun.clone(),
            proof: None,
            _guard: guard,
        };
        (self.end(End::Uncertain(why), None).await, late)
    }

    async fn end(&self, end: End, response: Option<Arc<Response>>) -> Finished {
        end_of(&self.ibid, &self.ask, &self.begun, end, response).await
    }
}

/// The right to settle one's own `unknown`, should an answer come after all.
pub struct Late {
    ibid: Ibid,
    ask: Arc<Ask>,
    begun: Arc<Record>,
    proof: Option<Proof>,
    /// Keeps a handler that may still respond counted as a live attempt.
    _guard: DrainGuard,
}

impl Late {
    /// Sets what the fields of its answer prove, for the `finish` that follows. Proof goes before the status.
    #[must_use]
    pub fn proven(mut self, proof: Option<Proof>) -> Late {
        self.proof = proof;
        self
    }

    /// The answer came after all.
    pub async fn finish(self, response: Response, retry_after: bool) -> Finished {
        let answer = Answer { proof: self.proof, ..kept_answer(&response, retry_after) };
        self.end(End::Answered(answer), Some(Arc::new(response))).await
    }

    /// An answer came after all that is not kept.
    pub async fn finish_unkept(self, status: u16, retry_after: bool) -> Finished {
        self.end(End::Answered(unkept_answer(status, retry_after, self.proof)), None).await
    }

    /// Proof came after all that nothing was executed.
    pub async fn release(self, why: ErrorCode) -> Finished {
        self.end(End::NotExecuted(why), None).await
    }

    async fn end(&self, end: End, response: Option<Arc<Response>>) -> Finished {
        end_of(&self.ibid, &self.ask, &self.begun, end, response).await
    }
}

pub(crate) fn kept_answer(response: &Response, retry_after: bool) -> Answer {
    Answer {
        status: response.status,
        retry_after,
        kept: Some(response.to_bytes()),
        provider_id: None,
        proof: None,
    }
}

fn unkept_answer(status: u16, retry_after: bool, proof: Option<Proof>) -> Answer {
    Answer { status, retry_after, kept: None, provider_id: None, proof }
}

/// Whether an answer of the handler's own says when to come again.
pub(crate) fn says_when(response: &Response) -> bool {
    response.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("retry-after"))
}

enum End {
    Answered(Answer),
    NotExecuted(ErrorCode),
    Uncertain(ErrorCode),
}

/// Writes the end of an Attempt, although the caller may go. If it can't be made durable within `finish_wait`, the caller
/// goes on and the write stays queued.
async fn end_of(
    ibid: &Ibid,
    ask: &Arc<Ask>,
    begun: &Arc<Record>,
    end: End,
    response: Option<Arc<Response>>,
) -> Finished {
    let runtime = &ibid.engine().runtime;
    let (ibid, ask, begun) = (ibid.clone(), ask.clone(), begun.clone());
    let guard = ibid.engine().drain.track_attempt();
    let ended = run_to_completion(runtime, async move {
        let (started, engine, record) = (Instant::now(), ibid.engine().clone(), begun.id);
        let bytes = response.as_ref().map_or(0, |response| response.body.len());
        let mut write = Box::pin(async move { write_end(&ibid, &ask, &begun, end, response, started).await });
        let deadline = started.checked_add(engine.finish_wait);
        let finished = engine.deadlines.within(deadline, &mut write).await;
        telemetry::took(&telemetry::FINISH_TOOK, started.elapsed().as_secs_f64());
        let finished = finished.unwrap_or_else(|| {
            tracing::warn!(record = %record.short(), "the store did not take the end of an attempt in time; it stays queued");
            // Counted before the caller continues, so that a shutdown does not miss it.
            engine.background.spawn(bytes, async move { drop(write.await) });
            Finished::NotStored
        });
        drop(guard);
        if matches!(finished, Finished::NotStored) {
            counter!(telemetry::NOT_STORED).increment(1);
        }
        finished
    });
    ended.await.unwrap_or(Finished::NotStored)
}

async fn write_end(
    ibid: &Ibid,
    ask: &Arc<Ask>,
    begun: &Arc<Record>,
    end: End,
    response: Option<Arc<Response>>,
    sent_at: Instant,
) -> Finished {
    // What was begun is what is most likely still stored: no read before the write.
    let known = Stored { record: begun.clone(), answer: None, now: begun.ran_at.unwrap_or(begun.created_at) };
    let settlement = ibid
        .engine()
        .write_until_done(Some(known), GiveUp::Late, |nonce| match &end {
            End::Answered(answer) => Event::Answered { begun, nonce, answer },
            End::NotExecuted(why) => Event::NotExecuted { begun, nonce, why: *why },
            End::Uncertain(why) => Event::Uncertain { begun, nonce, why: *why },
        })
        .await;
    if settlement.refused.is_some() {
        return Finished::NotStored;
    }
    match (settlement.decision, settlement.stored, response) {
        (Decision::Stored, Some(stored), Some(response)) => {
            Finished::Stored(ibid.engine().remember(stored.record, response, sent_at, stored.now))
        }
        (Decision::Stored, Some(stored), None) => Finished::StoredUnkept(stored.record),
        (Decision::Freed, _, _) => Finished::Freed,
        (Decision::Unsettled, stored, _) => Finished::Unsettled { settled_in: stored.and_then(settled_in) },
        (_, Some(stored), _) => {
            counter!(telemetry::LATE_ANSWERS).increment(1);
            tracing::error!(record = %begun.id.short(), "an attempt ended after its record had gone on");
            Finished::Superseded(Arc::new(ibid.current_outcome(ask, stored, sent_at)))
        }
        (_, None, _) => Finished::Freed,
    }
}

fn settled_in(stored: Stored) -> Option<Duration> {
    stored.record.settles_by(stored.now).map(|at| at.since(stored.now))
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let end = match self.exposed {
            true => End::Uncertain(ErrorCode::Broken),
            false => End::NotExecuted(ErrorCode::ClientGone),
        };
        let (ibid, ask, begun) = (self.ibid.clone(), self.ask.clone(), self.begun.clone());
        // Without a runtime the process is ending: the lease lapses instead.
        if tokio::runtime::Handle::try_current().is_ok() {
            ibid.engine().clone().background.spawn(0, async move {
                write_end(&ibid, &ask, &begun, end, None, Instant::now()).await;
            });
        }
    }
}

impl std::fmt::Debug for Attempt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attempt")
            .field("record", &self.begun.id)
            .field("number", &self.number())
            .finish_non_exhaustive()
    }
}
