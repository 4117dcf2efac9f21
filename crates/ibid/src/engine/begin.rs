//! The begin loop: decide, commit, and decide again with the newer record after a lost race.

use std::sync::Arc;
use std::time::Duration;

use ibid_core::change::{Change, Commit, StoredRecord};
use ibid_core::machine::{self, BeginRequest, Decision, Event, Intent, Verdict};
use ibid_core::policy::Policy;
use ibid_core::time::Timestamp;
use tokio::time::Instant;

use super::attempt_slots::{self, AttemptPermit};
use super::begin_joins::{BeginLead, BeginRole, FoundRecord};
use super::commit::{apply_change, count_lapses};
use super::previous_identity::ResolvedId;
use super::retry_after::RETRY_AFTER_MIN;
use super::tenant_bound::CrowdedBy;
use super::{Engine, StoredResponse, UnavailableError};
use crate::telemetry;

/// The machine's decision about a request, after its change has committed.
pub(crate) struct DecidedRequest {
    /// The request, under the id and with the nonce that it was decided with.
    pub(crate) ask: Arc<BeginRequest>,
    pub(crate) decision: Decision,
    /// The record that was decided on, as it is stored now.
    pub(crate) stored: Option<StoredRecord>,
    /// An instant from before `stored` was read or written.
    pub(crate) at: Instant,
    /// The slot of the attempt, if the request runs.
    pub(crate) permit: Option<Arc<AttemptPermit>>,
}

impl DecidedRequest {
    /// A decision after which nothing runs.
    pub(crate) fn without_run(
        ask: &Arc<BeginRequest>,
        decision: Decision,
        stored: Option<StoredRecord>,
        at: Instant,
    ) -> DecidedRequest {
        DecidedRequest { ask: ask.clone(), decision, stored, at, permit: None }
    }

    /// The decision on a record that has just changed too often: the request waits.
    fn contended(ask: &Arc<BeginRequest>) -> DecidedRequest {
        DecidedRequest::without_run(ask, Decision::Wait { overlong: false }, None, Instant::now())
    }
}

/// Outcome of one decision and its commit.
pub(super) enum Step {
    DecidedRequest(DecidedRequest),
    /// Nothing was sent. This is the record that the store has, read or written by another begin after the instant.
    Found(FoundRecord),
    /// Another write came first. This is the record that the store returned.
    Lost(FoundRecord),
}

impl Engine {
    /// Gives a request the nonce of one writer. The same [`BeginRequest`] begun twice, at once or after a refusal, is two writers.
    pub(crate) fn with_fresh_nonce(&self, mut ask: BeginRequest) -> Arc<BeginRequest> {
        ask.nonce = self.nonces.draw();
        Arc::new(ask)
    }

    /// Looks for the request's completed record in this process. Returns the decision, `Replay` or `Mismatch`, with the
    /// stored response, and `None` if the store has to be asked.
    pub(crate) fn find_cached(&self, ask: &BeginRequest) -> Option<(Decision, StoredResponse)> {
        let (cached, now) = self.cache.get(&ask.id)?;
        let event = Event::Request { ask, role: Intent::ReadOnly };
        match machine::decide(Some(&cached.record), &event, now) {
            Verdict::Keep(decision @ (Decision::Replay | Decision::Mismatch)) => {
                Some((decision, StoredResponse { record: cached.record, response: cached.response }))
            }
            _ => None,
        }
    }

    /// Reserves the key durably, or says what the store holds for it. `started` is now.
    ///
    /// The future must not be dropped before it ends: the caller uses [`run_to_completion`](super::run_to_completion) or
    /// runs on a task that is not aborted.
    pub(crate) async fn begin(
        self: &Arc<Self>,
        ask: &Arc<BeginRequest>,
        started: Instant,
    ) -> Result<DecidedRequest, UnavailableError> {
        if !self.identity.is_active() {
            // Whether the last read is recent is checked once the key is reserved: until then nothing is executed.
            return Err(self.without_identity());
        }
        // Before the breaker: it needs no store.
        if let Some(decided) = self.decide_shared(ask).await {
            return Ok(decided);
        }
        let pass = self.breaker.enter(started).map_err(UnavailableError::refused_early)?;
        let decided = match ask.previous.is_empty() {
            true => self.decide(ask, Intent::MayRun, None, started).await,
            false => self.decide_previous(ask, Intent::MayRun, started).await,
        };
        match &decided {
            Ok(_) => pass.report_reply(),
            Err(refused) if refused.is_overloaded() => pass.report_reply(),
            Err(refused) if refused.asked => pass.report_failure(Instant::now()),
            Err(_) => pass.cancel(),
        }
        telemetry::record_seconds(&telemetry::BEGIN_TOOK, started.elapsed().as_secs_f64());
        decided.map_err(|refused| refused.with_breaker_pause(self.breaker.pause_left(Instant::now())))
    }

    /// Decides on what is known, commits, and decides again with the newer record after a lost race.
    ///
    /// `at` is from before anything was sent to the store. A lease counts from then: the store's clock starts it later,
    /// never sooner.
    pub(super) async fn decide(
        self: &Arc<Self>,
        ask: &Arc<BeginRequest>,
        role: Intent,
        mut known: Option<StoredRecord>,
        mut at: Instant,
    ) -> Result<DecidedRequest, UnavailableError> {
        let deadline = at + self.begin_timeout;
        let mut ask = ask.clone();
        for _ in 0..COMMIT_TRIES_MAX {
            match self.step(&ask, role, known, at, deadline).await? {
                Step::DecidedRequest(decided) => return Ok(decided),
                Step::Found(found) => (known, at) = (found.stored, found.sent_at),
                Step::Lost(newer) => {
                    (known, at) = (newer.stored, newer.sent_at);
                    // A nonce names one write, and is used again only to repeat that write.
                    Arc::make_mut(&mut ask).nonce = self.nonces.draw();
                }
            }
        }
        Ok(DecidedRequest::contended(&ask))
    }

    /// Like [`Engine::decide`], for a request whose record may be stored under a previous id.
    async fn decide_previous(
        self: &Arc<Self>,
        ask: &Arc<BeginRequest>,
        role: Intent,
        mut at: Instant,
    ) -> Result<DecidedRequest, UnavailableError> {
        let deadline = at + self.begin_timeout;
        for _ in 0..COMMIT_TRIES_MAX {
            match self.resolve_id_to_begin(ask, deadline).await? {
                Some(ResolvedId::Current(known)) => return self.decide(ask, role, known, at).await,
                Some(ResolvedId::Previous(ask, stored)) => {
                    // A nonce names one write, and is used again only to repeat that write.
                    let ask = self.with_fresh_nonce(BeginRequest::clone(&ask));
                    if let Step::DecidedRequest(decided) =
                        self.step(&ask, role, Some(stored), at, deadline).await?
                    {
                        return Ok(decided);
                    }
                }
                None => {}
            }
            // The record changed or was removed, so another id may hold the key now.
            at = Instant::now();
        }
        Ok(DecidedRequest::contended(ask))
    }

    /// Decides on what is known and commits that once. `at` is from before `known` was read.
    async fn step(
        self: &Arc<Self>,
        ask: &Arc<BeginRequest>,
        role: Intent,
        known: Option<StoredRecord>,
        at: Instant,
        deadline: Instant,
    ) -> Result<Step, UnavailableError> {
        let lease = known.as_ref().map_or(ask.policy.lease, |stored| stored.record.policy.lease);
        let role = match role {
            Intent::MayRun if self.clock.is_unsure(at, lease) => Intent::MayRunNoTakeover,
            role => role,
        };
        // A request that may run and knows no record always writes. It joins before it makes its change, because most of a burst
        // of duplicates never needs one.
        let mut lead = None;
        if known.is_none() && role != Intent::ReadOnly {
            match self.lead_or_join(ask, at, deadline).await? {
                LeadOrFound::Lead(entered) => lead = Some(entered),
                LeadOrFound::Found(found) => return Ok(Step::Found(found)),
            }
        }
        let now = known.as_ref().map_or(Timestamp::default(), |stored| stored.now);
        let event = Event::Request { ask, role };
        let (change, decision) = match machine::decide(known.as_ref().map(|s| &*s.record), &event, now) {
            Verdict::Keep(decision) => {
                return Ok(Step::DecidedRequest(DecidedRequest::without_run(ask, decision, known, at)));
            }
            Verdict::Write(change, decision) => (change, decision),
        };
        let lead = match lead {
            Some(lead) => lead,
            None => match self.lead_or_join(ask, at, deadline).await? {
                LeadOrFound::Lead(lead) => lead,
                LeadOrFound::Found(found) => return Ok(Step::Found(found)),
            },
        };
        self.write_begin(ask, BeginWrite { lead, known, change, decision }, at, deadline).await
    }

    /// Commits what was decided. `at` is from before the known record was read.
    async fn write_begin(
        self: &Arc<Self>,
        ask: &Arc<BeginRequest>,
        write: BeginWrite<'_>,
        at: Instant,
        deadline: Instant,
    ) -> Result<Step, UnavailableError> {
        let BeginWrite { lead, known, change, decision } = write;
        // Taken before the key is reserved, so that begins at the same moment can't exceed the bound together.
        let permit = match decision {
            Decision::Run { .. } => match self.attempt_slots.take(&ask.identity.tenant) {
                Ok(permit) => Some(permit),
                Err(by) if known.is_none() => return self.look_without_room(ask, lead, by, deadline).await,
                Err(by) => return Err(attempt_slots::refuse(by)),
            },
            _ => None,
        };
        // The lease counts from just before the write that gives it.
        let at = if known.is_some() { Instant::now() } else { at };
        // On an error the lead is dropped, and a joined begin sends its own write.
        let stored = match self.commit_begin(ask, &change, at, deadline).await? {
            Commit::Done(stamp) => {
                let stored = apply_change(&change, stamp, known.as_ref()).expect("a begin writes the record");
                self.waiters.notify(&ask.id);
                self.queue_evidence_check(Some(&stored));
                stored
            }
            Commit::Conflict(Some(stored)) if change.is_stored_as(&stored) => *stored,
            Commit::Conflict(newer) => {
                let newer = newer.map(|stored| *stored);
                lead.publish(newer.as_ref(), at);
                self.share_stored(newer.as_ref());
                return Ok(Step::Lost(FoundRecord { stored: newer, sent_at: at }));
            }
        };
        lead.publish(Some(&stored), at);
        count_lapses(&change);
        if decision == Decision::Accepted && !self.confirm_identity().await {
            // The record was written late, perhaps after a pause, and the deliverer that finds it runs the request. It
            // is taken back before that.
            self.abandon_begin(ask.clone());
            return Err(self.without_identity());
        }
        let stored = Some(stored);
        Ok(Step::DecidedRequest(DecidedRequest { ask: ask.clone(), decision, stored, at, permit }))
    }

    /// Finds the record of a request that would run if it had none, while there is no room for another attempt. A request
    /// without a record is refused.
    ///
    /// Attempts pile up when an upstream hangs, and that is when clients retry: stored records still answer.
    async fn look_without_room(
        &self,
        ask: &BeginRequest,
        lead: BeginLead<'_>,
        by: CrowdedBy,
        deadline: Instant,
    ) -> Result<Step, UnavailableError> {
        let sent_at = Instant::now();
        let Some(Ok(stored)) = self.within(deadline, self.load(ask.id)).await else {
            return Err(UnavailableError::no_reply());
        };
        if stored.is_none() {
            return Err(attempt_slots::refuse(by));
        }
        lead.publish(stored.as_ref(), sent_at);
        Ok(Step::Found(FoundRecord { stored, sent_at }))
    }

    /// Waits for the begin of this record that is on its way in this process, if there is one. Returns its result, or the
    /// right to send.
    ///
    /// A joined begin has sent nothing: it never runs, has nothing to abandon, and its refusal says nothing about the
    /// store. It decides on the result with its own fingerprint, like a begin that lost a race.
    async fn lead_or_join(
        &self,
        ask: &BeginRequest,
        at: Instant,
        deadline: Instant,
    ) -> Result<LeadOrFound<'_>, UnavailableError> {
        let refused = UnavailableError::refused_early(RETRY_AFTER_MIN);
        for _ in 0..JOINS_MAX {
            let join = match self.begin_joins.enter(ask.id, &ask.identity.tenant, at) {
                BeginRole::Lead(lead) => return Ok(LeadOrFound::Lead(lead)),
                BeginRole::Found(found) => return Ok(LeadOrFound::Found(found)),
                BeginRole::Join(join) => join,
                BeginRole::Full => return Err(refused),
            };
            match self.within(deadline, join.result()).await {
                Some(Some(found)) => return Ok(LeadOrFound::Found(found)),
                // The other begin failed, and may have been sent. Its writer makes sure that it loses.
                Some(None) if Instant::now() < deadline => {}
                Some(None) | None => break,
            }
        }
        Err(refused)
    }

    /// Returns what a request under `policy` may do: after a clock jump it takes over no lapsed attempt.
    pub(crate) fn role(&self, policy: &Policy) -> Intent {
        if self.is_clock_unsure(policy.lease) { Intent::MayRunNoTakeover } else { Intent::MayRun }
    }

    /// Returns whether the reaper must wait, because the store's clock has leapt forward.
    pub(crate) fn is_clock_ahead(&self) -> bool {
        self.clock.is_ahead(Instant::now())
    }

    /// Returns whether takeovers of records with this lease must wait because the store's clock has just jumped.
    pub(crate) fn is_clock_unsure(&self, lease: Duration) -> bool {
        self.clock.is_unsure(Instant::now(), lease)
    }
}

/// A decision whose change has yet to be committed.
struct BeginWrite<'a> {
    lead: BeginLead<'a>,
    /// The record that was decided on.
    known: Option<StoredRecord>,
    change: Arc<Change>,
    decision: Decision,
}

/// The right to send a begin, or the result of another begin of the same record.
enum LeadOrFound<'a> {
    Lead(BeginLead<'a>),
    Found(FoundRecord),
}

/// Begins that one request joins while each of them fails. The second failure is not bad luck, and with a thousand
/// duplicates each further one would wake them all again.
const JOINS_MAX: u32 = 2;

/// Decisions of one request on a contended record before it is answered as in progress.
///
/// A record changes a handful of times in its life, so after four lost races it is moving fast and the client's own
/// retry is cheaper than ours.
const COMMIT_TRIES_MAX: u32 = 4;
