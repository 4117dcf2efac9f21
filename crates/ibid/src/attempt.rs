//! [`Attempt`]: one run of a request under a lease. It renews the lease, ends once, and records what it knows even if dropped.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;

use bytes::Bytes;
use ibid_core::change::StoredRecord;
use ibid_core::machine::{AttemptResponse, BeginRequest, Decision, Event, PhaseStep};
use ibid_core::policy::{Policy, ResponseClass};
use ibid_core::proof::Proof;
use ibid_core::record::{ErrorCode, Record, RecoveryPoint};
use ibid_core::response::Response;
use ibid_core::scope::RecordId;
use ibid_core::store::RenewOutcome;
use metrics::counter;

use crate::engine::{AttemptPermit, GiveUp, LeasedAt, run_to_completion};
use crate::ibid::Ibid;
use crate::outcome::Outcome;
use crate::telemetry;

/// One run of the handler, under a lease.
///
/// `finish`, `release` and `unknown` take it by value, so a second end does not compile.
///
/// Its work begins with [`Attempt::ensure_lease`], with a phase, or in a transaction. Dropped without an end, the attempt releases its key if
/// `ensure_lease` has yet to succeed, or if all work was in a transaction, which was rolled back. In every other case its outcome becomes
/// unknown, also if none of the three was called: the work may have been done without them. So [release](Attempt::release) an attempt
/// whose work you don't begin.
pub struct Attempt {
    ibid: Ibid,
    ask: Arc<BeginRequest>,
    begun: Arc<Record>,
    after: RecoveryPoint,
    leased_at: LeasedAt,
    began_at: Instant,
    exposure: Exposure,
    /// Set while the identity that the record's id was made under has yet to be confirmed, before the first outside byte or
    /// business statement. After that every process finds the record, whichever identity the store has by then.
    checks_identity: AtomicBool,
    /// `true` if upkeep runs it, under whichever identity.
    is_of_upkeep: bool,
    ended: bool,
    /// The outcome, if the attempt ended in the caller's own transaction.
    outcome: Option<Outcome>,
    /// Called with that outcome.
    on_end: Option<EndCallback>,
    /// Proof of execution in the fields of its response.
    proof: Option<Proof>,
    /// The progress of this run through its phases.
    pub(crate) progress: Progress,
    /// Counts the attempt. Dropped last: a shutdown waits for it.
    permit: Arc<AttemptPermit>,
}

/// Says whether something that is not recorded yet may have been sent outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exposure {
    /// Nothing was sent: the attempt is in ibid's own hands, or its caller asks before it sends.
    None,
    /// A caller has the attempt and has not asked yet. It may send without asking, and then a release would run the work again.
    Unstated,
    /// A byte may have been sent.
    Sent,
}

/// Callback for the outcome of an attempt that ends in the caller's transaction.
type EndCallback = Box<dyn FnOnce(&Outcome) + Send + Sync>;

/// The progress of a run through its phases.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// The last phase that it passed, by running it or because it was committed before.
    pub(crate) at: PhaseStep,
    /// Results of earlier runs by body kind, once they were loaded.
    pub(crate) earlier_results: Option<HashMap<u32, Bytes>>,
    /// The phase whose call this run has made without learning the result.
    pub(crate) in_doubt: Option<PhaseStep>,
}

/// The lease expired or could not be renewed, or the identity of the store was retired: nothing may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("lease expired or could not be renewed; nothing may be sent")]
pub struct LeaseGoneError;

impl Attempt {
    pub(crate) fn new(
        permit: Arc<AttemptPermit>,
        ibid: Ibid,
        ask: Arc<BeginRequest>,
        begun: Arc<Record>,
        after: RecoveryPoint,
        leased_at: Instant,
    ) -> Attempt {
        Attempt {
            permit,
            ibid,
            ask,
            begun,
            after,
            leased_at: LeasedAt::new(leased_at),
            began_at: leased_at,
            checks_identity: AtomicBool::new(true),
            is_of_upkeep: false,
            exposure: Exposure::None,
            ended: false,
            outcome: None,
            on_end: None,
            proof: None,
            progress: Progress::default(),
        }
    }

    /// Creates an attempt whose record is written by the caller's transaction alone: dropping it releases nothing.
    pub(crate) fn unwritten(
        ibid: Ibid,
        ask: Arc<BeginRequest>,
        begun: Arc<Record>,
        leased_at: Instant,
    ) -> Attempt {
        let permit = ibid.engine().attempt_slots.take_beyond(&begun.identity.tenant);
        let mut attempt = Attempt::new(permit, ibid, ask, begun, 0, leased_at);
        attempt.ended = true;
        attempt
    }

    /// Creates a copy that ends nothing when it is dropped.
    pub(crate) fn detached_copy(&self) -> Attempt {
        let (ibid, ask, begun) = (self.ibid.clone(), self.ask.clone(), self.begun.clone());
        let mut copy = Attempt::new(self.permit.clone(), ibid, ask, begun, 0, self.leased_at.get());
        copy.ended = true;
        copy
    }

    /// Returns the number of this attempt, from 1.
    pub fn number(&self) -> u32 {
        self.begun.attempt
    }

    /// Returns the last phase that an earlier attempt committed; zero if none.
    pub fn after(&self) -> RecoveryPoint {
        self.after
    }

    /// Returns the short id of the record, as in logs.
    pub fn short_id(&self) -> String {
        self.begun.id.short()
    }

    /// Returns the id of the record in the store, for a foreign key in the caller's own rows.
    pub fn record_id(&self) -> RecordId {
        self.begun.id
    }

    /// Returns the outcome, once the attempt has ended in the caller's transaction.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// Takes the outcome out, to respond to the client with it.
    pub fn take_outcome(&mut self) -> Option<Outcome> {
        self.outcome.take()
    }

    /// Returns whether something that is not recorded yet may have been sent outside. If so, an end without a response makes
    /// the outcome unknown.
    pub fn is_exposed(&self) -> bool {
        self.exposure != Exposure::None
    }

    pub(crate) fn ibid(&self) -> &Ibid {
        &self.ibid
    }

    pub(crate) fn ask(&self) -> &Arc<BeginRequest> {
        &self.ask
    }

    pub(crate) fn begun_record(&self) -> &Arc<Record> {
        &self.begun
    }

    pub(crate) fn began_at(&self) -> Instant {
        self.began_at
    }

    /// Returns whether the record's generation is at least `age` old by the store's clock: the store's instant when this run
    /// began, plus the time that has passed here since that write was sent. It may seem older than it is, never younger.
    pub(crate) fn is_as_old_as(&self, age: Duration) -> bool {
        let ran_at = self.begun.ran_at.unwrap_or(self.begun.created_at);
        self.begun.created_at.after(age) <= ran_at.after(self.began_at.elapsed())
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Sets a callback that gets the outcome, if the attempt ends in the caller's transaction.
    pub fn on_end(&mut self, callback: impl FnOnce(&Outcome) + Send + Sync + 'static) {
        self.on_end = Some(Box::new(callback));
    }

    /// Notes that the attempt ended in the caller's transaction, or was given up with it.
    pub(crate) fn ended_with(&mut self, outcome: Outcome) -> Outcome {
        self.ended = true;
        if let Some(on_end) = self.on_end.take() {
            on_end(&outcome);
        }
        self.outcome.insert(outcome).clone()
    }

    /// Continues with the record as this attempt has just written it. The lease counts from before that write.
    pub(crate) fn continue_with(&mut self, record: Arc<Record>, leased_at: Instant) {
        let in_doubt = self.in_doubt_call().filter(|call| call.point > record.point);
        self.begun = record;
        self.leased_at.set(leased_at);
        self.set_in_doubt_call(in_doubt);
    }

    /// Sets the phase whose call is in doubt: it may have been made, and may be repeated. The write that ends the attempt stores it.
    pub(crate) fn set_in_doubt_call(&mut self, call: Option<PhaseStep>) {
        if self.in_doubt_call() != call {
            let note = &mut Arc::make_mut(&mut self.begun).note;
            (note.doubt, note.doubted) = (call.map(|call| call.point), call.map(|call| call.phases));
        }
    }

    /// Returns the phase whose call is in doubt, from this run or an earlier one.
    pub(crate) fn in_doubt_call(&self) -> Option<PhaseStep> {
        let note = &self.begun.note;
        note.doubt.map(|point| PhaseStep { point, phases: note.doubted.unwrap_or_default() })
    }

    /// Notes that something may have been sent outside: dropped from here on, the outcome becomes unknown.
    pub(crate) fn mark_exposed(&mut self) {
        self.exposure = Exposure::Sent;
    }

    /// Notes that a caller has the attempt, which may now do its work in whichever way.
    pub(crate) fn hand_over(&mut self) {
        self.exposure = Exposure::Unstated;
    }

    /// Notes that the caller does its work in the ways that record it, so nothing was sent before.
    pub(crate) fn begin_work(&mut self) {
        if self.exposure == Exposure::Unstated {
            self.exposure = Exposure::None;
        }
    }

    /// Notes that nothing is sent outside from here on until [`Attempt::ensure_lease`] is called again: for a handler that works in the
    /// store's own database.
    pub(crate) fn mark_clean(&mut self) {
        // Except for a call whose result can never be learned.
        self.exposure = if self.begun.note.calling.is_some() { Exposure::Sent } else { Exposure::None };
    }

    /// Ends the attempt with a response after the caller's transaction was rolled back.
    pub(crate) async fn finish_undone(&mut self, response: Response) -> Outcome {
        // From here on the write completes even if this future is dropped.
        self.ended = true;
        let outcome = self.end_with(response).await;
        self.ended_with(outcome)
    }

    /// Ends with a response. If nothing was sent outside, the rollback proves that an ambiguous response executed nothing.
    async fn end_with(&self, response: Response) -> Outcome {
        let policy = &self.begun.policy;
        let class = policy.classify(response.status, has_retry_after(&response), self.proof);
        if class == ResponseClass::Ambiguous && !self.is_exposed() {
            return self.end(End::NotExecuted(ErrorCode::ServerError), None).await;
        }
        let (answer, response) = into_answer(response, policy);
        let answer = AttemptResponse { proof: self.proof, ..answer };
        self.end(End::Answered(answer), Some(response)).await
    }

    /// Makes sure that the attempt may send its first byte outside. Call it before that byte.
    ///
    /// Renews the lease if more than half of it has passed, and waits for the store's answer.
    ///
    /// # Errors
    ///
    /// Fails if the lease has expired or could not be renewed, or if the store's identity is no longer the one that this process
    /// started with. Nothing may be sent then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future is safe: the attempt may send nothing yet, and `ensure_lease` can be called again.
    pub async fn ensure_lease(&mut self) -> Result<(), LeaseGoneError> {
        self.begin_work();
        let lease = self.begun.policy.lease;
        if self.leased_at.get().elapsed() >= lease / 2 {
            let sent_at = Instant::now();
            let renewed = tokio::time::timeout(lease, self.ibid.engine().renew(&self.begun)).await;
            match renewed {
                Ok(Some(RenewOutcome::Until(_))) if self.leased_at.confirm_renewal(sent_at, lease) => {}
                _ => return Err(LeaseGoneError),
            }
        }
        if !self.confirms_identity().await {
            return Err(LeaseGoneError);
        }
        self.mark_exposed();
        Ok(())
    }

    /// Returns whether the attempt may do its first work. T1 (new identity) finds nothing under a key's old id and runs under the
    /// new one; this attempt's reservation under the old id, sent before a long pause, arrives after that. It must not run as well.
    pub(crate) async fn confirms_identity(&self) -> bool {
        let engine = self.ibid.engine();
        let is_confirmed = !self.checks_identity.load(Ordering::SeqCst)
            || match self.is_of_upkeep {
                true => engine.confirm_open().await,
                false => engine.confirm_identity().await,
            };
        if is_confirmed {
            self.checks_identity.store(false, Ordering::SeqCst);
        }
        is_confirmed
    }

    /// Marks an attempt that upkeep runs. Its record is stored, so every process finds it, whichever identity that process has.
    /// Only a copy can keep it from running: the record may be in another store by then, and run there.
    pub(crate) fn of_upkeep(mut self) -> Attempt {
        self.is_of_upkeep = true;
        self
    }

    /// Renews the lease after every third of it, until `max_run` is over, another attempt owns the record, or the returned
    /// future is dropped. The future ends with the first two. It need not be polled: the engine renews all leases together.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the renewals. A renewal that was already sent may still arrive.
    pub fn keep_alive(&self) -> impl Future<Output = ()> + Send + use<> {
        let until = self.began_at + self.begun.policy.max_run;
        let renewal = self.ibid.engine().leases.keep(self.begun.clone(), self.leased_at.clone(), until);
        renewal.wait_until_over()
    }

    /// Sets what the fields of the response prove, for the `finish` that follows. Proof goes before the status.
    #[must_use]
    pub fn proven(mut self, proof: Option<Proof>) -> Attempt {
        self.proof = proof;
        self
    }

    /// Ends the attempt with `response`, and returns once the outcome is durable or `finish_wait` is over.
    ///
    /// The policy decides by status and `Retry-After` whether the response is stored for replay, the key is released, or the
    /// outcome is unknown. Header lines that no retry may get, such as `Set-Cookie`, are not stored.
    ///
    /// # Cancel safety
    ///
    /// Once the future was polled, dropping it does not stop the write: it continues on the runtime. Dropped before that, the
    /// attempt was dropped without an end: its key is released, or its outcome becomes unknown if something may have been sent.
    pub async fn finish(mut self, response: Response) -> Outcome {
        self.ended = true;
        self.end_with(response).await
    }

    /// Like [`Attempt::finish`], but stores the status only: the body is too large, a stream or an upgrade. The body of `head`
    /// is ignored.
    ///
    /// # Cancel safety
    ///
    /// As for [`Attempt::finish`].
    pub async fn finish_unretained(mut self, head: &Response) -> Outcome {
        self.ended = true;
        self.end(End::Answered(unretained_answer(head, self.proof)), None).await
    }

    /// Releases the key: nothing was executed, and that is certain.
    ///
    /// # Cancel safety
    ///
    /// As for [`Attempt::finish`].
    pub async fn release(mut self, why: ErrorCode) -> Outcome {
        self.ended = true;
        self.end(End::NotExecuted(why), None).await
    }

    /// Ends the attempt without knowing whether it was executed. A later [`LateAnswer::finish`] may still settle the record.
    ///
    /// # Cancel safety
    ///
    /// As for [`Attempt::finish`]. The [`LateAnswer`] is lost with the future, and the record waits for a lookup, a webhook or an
    /// operator.
    pub async fn unknown(mut self, why: ErrorCode) -> (Outcome, LateAnswer) {
        self.ended = true;
        let late = LateAnswer {
            ibid: self.ibid.clone(),
            ask: self.ask.clone(),
            begun: self.begun.clone(),
            proof: None,
            permit: self.permit.clone(),
        };
        (self.end(End::Uncertain(why), None).await, late)
    }

    async fn end(&self, end: End, response: Option<Arc<Response>>) -> Outcome {
        end_of(&self.ibid, &self.ask, &self.begun, &self.permit, end, response).await
    }
}

/// The right of an attempt that ended as `unknown` to settle its record, should a response arrive later.
#[must_use = "dropping it gives up the right to settle the record"]
pub struct LateAnswer {
    ibid: Ibid,
    ask: Arc<BeginRequest>,
    begun: Arc<Record>,
    proof: Option<Proof>,
    /// The permit of the attempt: a shutdown waits for handlers whose late response is still read.
    permit: Arc<AttemptPermit>,
}

impl LateAnswer {
    /// Sets what the fields of the response prove, for the `finish` that follows. Proof goes before the status.
    pub fn proven(mut self, proof: Option<Proof>) -> LateAnswer {
        self.proof = proof;
        self
    }

    /// Settles the record with a response that arrived late. Like [`Attempt::finish`].
    ///
    /// # Cancel safety
    ///
    /// Once the future was polled, dropping it does not stop the write. Dropped before that, the record stays unknown.
    pub async fn finish(self, response: Response) -> Outcome {
        let (answer, response) = into_answer(response, &self.begun.policy);
        let answer = AttemptResponse { proof: self.proof, ..answer };
        self.end(End::Answered(answer), Some(response)).await
    }

    /// Settles the record with the status of a late response that is not stored. Like [`Attempt::finish_unretained`].
    ///
    /// # Cancel safety
    ///
    /// As for [`LateAnswer::finish`].
    pub async fn finish_unretained(self, head: &Response) -> Outcome {
        self.end(End::Answered(unretained_answer(head, self.proof)), None).await
    }

    /// Releases the key, on late proof that nothing was executed.
    ///
    /// # Cancel safety
    ///
    /// As for [`LateAnswer::finish`].
    pub async fn release(self, why: ErrorCode) -> Outcome {
        self.end(End::NotExecuted(why), None).await
    }

    async fn end(&self, end: End, response: Option<Arc<Response>>) -> Outcome {
        end_of(&self.ibid, &self.ask, &self.begun, &self.permit, end, response).await
    }
}

/// Splits a response into the answer that the machine decides on and the response that retries get.
///
/// Only this function reads `Retry-After`: the machine needs to know of it, and no retry gets that line.
pub(crate) fn into_answer(response: Response, policy: &Policy) -> (AttemptResponse, Arc<Response>) {
    let retry_after = has_retry_after(&response);
    let response = Arc::new(response.repeatable(policy));
    let answer = AttemptResponse {
        status: response.status,
        retry_after,
        kept: Some(response.clone()),
        provider_id: None,
        proof: None,
    };
    (answer, response)
}

fn unretained_answer(head: &Response, proof: Option<Proof>) -> AttemptResponse {
    let retry_after = has_retry_after(head);
    AttemptResponse { status: head.status, retry_after, kept: None, provider_id: None, proof }
}

fn has_retry_after(response: &Response) -> bool {
    response.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("retry-after"))
}

enum End {
    Answered(AttemptResponse),
    NotExecuted(ErrorCode),
    Uncertain(ErrorCode),
}

/// Writes the end of an attempt, even if the caller is dropped midway. If it is not durable within `finish_wait`, the caller
/// continues and the write is retried in the background.
async fn end_of(
    ibid: &Ibid,
    ask: &Arc<BeginRequest>,
    begun: &Arc<Record>,
    permit: &Arc<AttemptPermit>,
    end: End,
    response: Option<Arc<Response>>,
) -> Outcome {
    let runtime = &ibid.engine().runtime;
    let (ibid, ask, begun, permit) = (ibid.clone(), ask.clone(), begun.clone(), permit.clone());
    let ended = run_to_completion(runtime, async move {
        let (started, engine, record) = (Instant::now(), ibid.engine().clone(), begun.id);
        // The end refers to the same response.
        let bytes = response.as_ref().map_or(0, |response| response.body.len());
        // It does not hold the request, which may be many times larger than the response.
        let writer = ibid.clone();
        let identity = begun.identity.clone();
        let mut write = Box::pin(async move { write_end(&writer, &begun, end, response, started).await });
        let written = engine.within(started + engine.finish_wait, &mut write).await;
        telemetry::record_seconds(&telemetry::FINISH_TOOK, started.elapsed().as_secs_f64());
        let finished = match written {
            Some(WrittenEnd::Outcome(outcome)) => outcome,
            Some(WrittenEnd::Superseded(stored)) => {
                Outcome::Superseded(Box::new(ibid.current_outcome(&ask, *stored, started)))
            }
            None => {
                tracing::warn!(record = %record.short(), "outcome not durable within `finish_wait`; still retrying in the background");
                // Counted before the caller continues, so that a shutdown does not miss it.
                engine.background.spawn_end(&identity.tenant, bytes, async move { drop(write.await) });
                Outcome::NotDurable
            }
        };
        drop(permit);
        if matches!(finished, Outcome::NotDurable) {
            counter!(telemetry::NOT_STORED).increment(1);
        }
        finished
    });
    ended.await.unwrap_or(Outcome::NotDurable)
}

/// Result of writing the end of an attempt.
enum WrittenEnd {
    Outcome(Outcome),
    /// The record was changed without the attempt, and is stored like this.
    Superseded(Box<StoredRecord>),
}

async fn write_end(
    ibid: &Ibid,
    begun: &Arc<Record>,
    end: End,
    response: Option<Arc<Response>>,
    sent_at: Instant,
) -> WrittenEnd {
    // The record is most likely still as it was begun, so no read before the write.
    let known =
        StoredRecord { record: begun.clone(), response: None, now: begun.ran_at.unwrap_or(begun.created_at) };
    let settlement = ibid
        .engine()
        .write_until_done(Some(known), GiveUp::Late, |nonce| match &end {
            End::Answered(answer) => Event::Answered { begun, nonce, answer },
            End::NotExecuted(why) => Event::NotExecuted { begun, nonce, why: *why },
            End::Uncertain(why) => Event::Uncertain { begun, nonce, why: *why },
        })
        .await;
    if settlement.refused.is_some() {
        return WrittenEnd::Outcome(Outcome::NotDurable);
    }
    WrittenEnd::Outcome(match (settlement.decision, settlement.stored, response) {
        (Decision::Stored, Some(stored), Some(response)) => {
            Outcome::Completed(ibid.engine().remember(stored.record, response, sent_at, stored.now))
        }
        (Decision::Stored, Some(stored), None) => Outcome::NotRetained(stored.record),
        (Decision::Freed, _, _) => Outcome::Released,
        (Decision::Unsettled, stored, _) => Outcome::Unknown { settled_in: stored.and_then(settled_in) },
        (_, Some(stored), _) => {
            counter!(telemetry::LATE_ANSWERS).increment(1);
            tracing::error!(record = %begun.id.short(), "attempt ended after its record was changed without it; its end is not written");
            return WrittenEnd::Superseded(Box::new(stored));
        }
        (_, None, _) => Outcome::Released,
    })
}

fn settled_in(stored: StoredRecord) -> Option<Duration> {
    stored.record.settles_by(stored.now).map(|at| at.since(stored.now))
}

impl std::fmt::Debug for LateAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LateAnswer").field("record", &self.begun.id).finish_non_exhaustive()
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let end = match self.is_exposed() {
            true => End::Uncertain(ErrorCode::Broken),
            false => End::NotExecuted(ErrorCode::ClientGone),
        };
        let (ibid, begun) = (self.ibid.clone(), self.begun.clone());
        // On the engine's runtime: the dropping thread may be outside of every runtime.
        self.ibid.engine().background.spawn_end(&self.begun.identity.tenant, 0, async move {
            write_end(&ibid, &begun, end, None, Instant::now()).await;
        });
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
