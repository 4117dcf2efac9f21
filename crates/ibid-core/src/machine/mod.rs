//! The one state machine: what happened to a Record in, what to do and what to write out. Nothing else changes a State.
//!
//! Pure: the time and every nonce are arguments. It must not know stores, HTTP or clocks.
//!
//! `docs/reference/states.md` is the whole table, made by running [`decide`] on every state and event.

mod attempt;
mod effect;
mod evidence;
mod request;
mod status;
mod upkeep;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sha2::{Digest, Sha256};

pub use effect::{
    ClaimReason, Doubt, Effect, EffectEvent, EffectState, EffectVerdict, change_effect, decide_effect,
};
pub use evidence::{EvidenceVerdict, judge_effect, judge_record};
pub use request::holds_key;
pub use status::{StatusView, describe};
pub use upkeep::may_be_looked_up;

use crate::change::{BodyKind, Change, Draft, Expect, History, HistoryKind, InstantChange, StoredBody};
use crate::effect::KEY_WINDOW;
use crate::evidence::StoredEvidence;
use crate::fingerprint::{Fingerprint, RequestView, Secrets};
use crate::operator_action::OperatorAction;
use crate::policy::{OnLapse, Policy};
use crate::proof::Proof;
use crate::record::{ErrorCode, Flags, Nonce, Record, RecoveryPoint, State};
use crate::scope::{Identity, RecordId};
use crate::time::Timestamp;

/// What to do about `event`, given what is stored and the store's time.
///
/// A [`Verdict::Write`]'s decision holds only once its Change has committed; on a lost race the caller decides again
/// with the newer record.
pub fn decide(record: Option<&Record>, event: &Event<'_>, now: Timestamp) -> Verdict {
    match event {
        Event::Request { ask, role } => request::decide(record, ask, *role, now),
        Event::GaveUp { ask, nonce } => request::gave_up(record, ask, *nonce, now),
        Event::Seal { nonce } => request::seal(record, *nonce, now),

        Event::Answered { begun, nonce, answer } => attempt::answered(record, begun, *nonce, answer, now),
        Event::NotExecuted { begun, nonce, why } => attempt::not_executed(record, begun, *nonce, *why),
        Event::Uncertain { begun, nonce, why } => attempt::uncertain(record, begun, *nonce, *why),
        Event::Owes { begun, nonce } => attempt::owes(record, begun, *nonce),
        Event::Calling { begun, nonce, point } => attempt::calling(record, begun, *nonce, *point),
        Event::Phase { begun, nonce, step, result } => attempt::phase(record, begun, *nonce, *step, result),

        Event::Claim { nonce } => upkeep::claim(record, *nonce, now),
        Event::Lapsed { nonce, careful } => upkeep::lapsed(record, *nonce, *careful, now),
        Event::Resume { nonce, careful } => upkeep::resume(record, *nonce, *careful, now),
        Event::NeverClaimed { nonce } => upkeep::never_claimed(record, *nonce, now),
        Event::Outlived { nonce } => upkeep::outlived(record, *nonce, now),
        Event::EffectDone { nonce, answer } => upkeep::effect_done(record, *nonce, answer),
        Event::EffectDead { nonce } => upkeep::effect_dead(record, *nonce),
        Event::Observed { nonce, by, what, as_of, jitter } => {
            upkeep::observed(record, *nonce, *by, what, *as_of, *jitter)
        }
        Event::Evidence { nonce, evidence: kept } => evidence::apply(record, *nonce, kept),
        Event::Forget { nonce, act } => upkeep::forget(record, *nonce, act, now),
        Event::Acknowledged { nonce, act } => upkeep::acknowledge(record, *nonce, act, now),
    }
}

/// What happened to a Record. Where an Attempt speaks, the doubt that it has come into is in the note of `begun`.
#[derive(Clone, Debug)]
pub enum Event<'a> {
    /// A client sent a request.
    Request {
        /// What it asks for.
        ask: &'a BeginRequest,
        /// As what it comes.
        role: Intent,
    },
    /// A begin whose reply never came was given up (the client got 503): a late insert must lose.
    GaveUp {
        /// What was asked for.
        ask: &'a BeginRequest,
        /// Of this write.
        nonce: Nonce,
    },
    /// A request found that the record no longer holds its key, and is about to reserve the key under another id, because
    /// the store's identity has changed: writes that were decided before must lose.
    Seal {
        /// Of this write.
        nonce: Nonce,
    },
    /// The Attempt that began as `begun` has an answer.
    Answered {
        /// The record as the Attempt began it.
        begun: &'a Record,
        /// Of this write.
        nonce: Nonce,
        /// The answer.
        answer: &'a AttemptResponse,
    },
    /// The Attempt has proof that nothing was executed.
    NotExecuted {
        /// The record as the Attempt began it.
        begun: &'a Record,
        /// Of this write.
        nonce: Nonce,
        /// What stopped it.
        why: ErrorCode,
    },
    /// The Attempt can't know what became of its work.
    Uncertain {
        /// The record as the Attempt began it.
        begun: &'a Record,
        /// Of this write.
        nonce: Nonce,
        /// What hid the result.
        why: ErrorCode,
    },
    /// The Attempt's transaction commits with an Effect that owes the answer.
    Owes {
        /// The record as the Attempt began it.
        begun: &'a Record,
        /// Of this write.
        nonce: Nonce,
    },
    /// The Attempt is about to call the outside, and nothing could tell afterwards whether it did; or it certainly did
    /// not.
    Calling {
        /// The record as the Attempt began it.
        begun: &'a Record,
        /// Of this write.
        nonce: Nonce,
        /// The recovery point that the call leads to; none: no call is under way, and what was sent before under the
        /// Version until now comes too late.
        point: Option<RecoveryPoint>,
    },
    /// The Attempt finished one atomic piece of work.
    Phase {
        /// The record as the Attempt began it.
        begun: &'a Record,
        /// Of this write.
        nonce: Nonce,
        /// The Phase that is done.
        step: PhaseStep,
        /// What the Phase gives back on resume.
        result: &'a Bytes,
    },
    /// A worker takes a pending record.
    Claim {
        /// Of this write; becomes the owner.
        nonce: Nonce,
    },
    /// The sweeper found the lease run out.
    Lapsed {
        /// Of this write.
        nonce: Nonce,
        /// The store's clock has just jumped: what would run again is left alone.
        careful: bool,
    },
    /// A sweeper that can run the handler takes over a record that may be resumed: lapsed, or with a call in doubt.
    Resume {
        /// Of this write; becomes the owner.
        nonce: Nonce,
        /// The store's clock has just jumped: nothing is taken over.
        careful: bool,
    },
    /// The reaper found the pending deadline passed.
    NeverClaimed {
        /// Of this write.
        nonce: Nonce,
    },
    /// The reaper found that `unknown_retention` has passed, and no Effect of the record is open.
    Outlived {
        /// Of this write.
        nonce: Nonce,
    },
    /// The Effect that owes the answer is done.
    EffectDone {
        /// Of this write.
        nonce: Nonce,
        /// The answer.
        answer: &'a AttemptResponse,
    },
    /// The Effect that owes the answer is dead.
    EffectDead {
        /// Of this write.
        nonce: Nonce,
    },
    /// Somebody looked at what became of an unknown record.
    Observed {
        /// Of this write.
        nonce: Nonce,
        /// Who.
        by: ObservedBy<'a>,
        /// What was found.
        what: &'a Observation,
        /// The instant that the evidence speaks of.
        as_of: Timestamp,
        /// From 0 to 1, drawn by the caller: how much of the spread is added to the pause before the next look.
        jitter: f64,
    },
    /// Somebody outside said what became of the record, and it was kept.
    Evidence {
        /// Of this write.
        nonce: Nonce,
        /// What was said, and when.
        evidence: &'a StoredEvidence,
    },
    /// An operator has seen to a dead letter whose outcome is known.
    Acknowledged {
        /// Of this write.
        nonce: Nonce,
        /// Who and why, for the history.
        act: &'a OperatorAction,
    },
    /// An operator wants the answer gone.
    Forget {
        /// Of this write.
        nonce: Nonce,
        /// Who and why, for the history.
        act: &'a OperatorAction,
    },
}

/// One Phase of a handler's list; the default stands before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseStep {
    /// The recovery point that it leads to, one after the last.
    pub point: RecoveryPoint,
    /// A digest of the names of all Phases up to this one, in order.
    pub phases: u64,
}

impl PhaseStep {
    /// The Phase of this name that follows; none past the last point that can be counted.
    pub fn next(self, name: &str) -> Option<PhaseStep> {
        let mut digest = Sha256::new();
        digest.update(self.phases.to_be_bytes());
        digest.update(name.as_bytes());
        let digest: [u8; 32] = digest.finalize().into();
        let mut phases = [0; 8];
        phases.copy_from_slice(&digest[..8]);
        Some(PhaseStep { point: self.point.checked_add(1)?, phases: u64::from_be_bytes(phases) })
    }
}

/// As what a request comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// It may start an Attempt.
    MayRun,
    /// It may start one, but not take over a lapsed lease to run: the store's clock has just jumped.
    MayRunNoTakeover,
    /// It waited for somebody else's answer and never starts an Attempt: forty waiters on a `retryable` record would
    /// run it forty times in turn.
    ReadOnly,
}

/// What a client asks for: identity, rules and fingerprint of one request.
#[derive(Clone)]
pub struct BeginRequest {
    /// The record's name.
    pub id: RecordId,
    /// Tenant, operation and key.
    pub identity: Arc<Identity>,
    /// The rules of the route as configured now.
    pub policy: Arc<Policy>,
    /// What is asked, under the newest secret and the route's recipe.
    pub fingerprint: Fingerprint,
    /// Drawn for this request; becomes the owner if it runs.
    pub nonce: Nonce,
    /// The request's trace, as a W3C `traceparent`.
    pub trace: Option<String>,
    /// Accept now and run later, with these bytes of the request.
    pub later: Option<Bytes>,
    /// The request, kept so that it can be resumed without its client.
    pub request: Option<Bytes>,
    /// The names that its record would have under previous identities of the store, newest first.
    pub previous: Vec<PreviousName>,
    secrets: Arc<Secrets>,
    asked: Arc<dyn RequestView>,
}

/// The name of a request's record under a previous identity of the store.
#[derive(Clone)]
pub struct PreviousName {
    /// The record's id.
    pub id: RecordId,
    /// Tenant, operation and key, as they were read under that identity.
    pub identity: Arc<Identity>,
    /// The request as it was fingerprinted under that identity.
    pub asked: Arc<dyn RequestView>,
}

impl std::fmt::Debug for PreviousName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PreviousName").field("id", &self.id).finish_non_exhaustive()
    }
}

impl BeginRequest {
    /// What `asked` asks for under `policy`.
    pub fn new(
        identity: Identity,
        policy: Arc<Policy>,
        secrets: Arc<Secrets>,
        asked: Arc<dyn RequestView>,
        nonce: Nonce,
    ) -> BeginRequest {
        let id = RecordId::of(&identity, policy.scope);
        let fingerprint = secrets.fingerprint(&policy.recipe, policy.profile, &*asked);
        BeginRequest {
            id,
            identity: Arc::new(identity),
            policy,
            fingerprint,
            nonce,
            trace: None,
            later: None,
            request: None,
            previous: Vec::new(),
            secrets,
            asked,
        }
    }

    /// The same for one principal of the tenant alone: another's same key is a record of its own.
    pub fn bound_to(mut self, principal: &str) -> BeginRequest {
        self.id = RecordId::bound(&self.identity, self.policy.scope, Some(principal));
        self
    }

    /// The same request under the name of a previous identity.
    #[must_use]
    pub fn under(&self, name: &PreviousName) -> BeginRequest {
        BeginRequest {
            id: name.id,
            identity: name.identity.clone(),
            fingerprint: self.secrets.fingerprint(&self.policy.recipe, self.policy.profile, &*name.asked),
            asked: name.asked.clone(),
            previous: Vec::new(),
            ..self.clone()
        }
    }

    /// Whether this is the request that `record` was begun for, judged by the rules that the record carries.
    fn is_what_was_asked(&self, record: &Record) -> bool {
        // The id is a digest of both; a row that says otherwise is not this client's, whatever the digest says.
        if record.identity.tenant != self.identity.tenant || record.identity.key != self.identity.key {
            return false;
        }
        match &record.fingerprint {
            // Cleared after an answer that meant "not you": nobody's request holds the key.
            None => true,
            // Made in the same way: the digest at hand is the one that would be made again.
            Some(stored)
                if (stored.version(), stored.secret())
                    == (self.fingerprint.version(), self.fingerprint.secret())
                    && record.policy.profile == self.policy.profile
                    && record.policy.recipe == self.policy.recipe =>
            {
                *stored == self.fingerprint
            }
            Some(stored) => {
                let policy = &record.policy;
                self.secrets.matches(stored, &policy.recipe, policy.profile, &*self.asked)
            }
        }
    }
}

impl std::fmt::Debug for BeginRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BeginRequest")
            .field("id", &self.id)
            .field("nonce", &self.nonce)
            .finish_non_exhaustive()
    }
}

/// An answer that an Attempt got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptResponse {
    /// Its HTTP status.
    pub status: u16,
    /// Whether it says when to come again.
    pub retry_after: bool,
    /// The bytes to keep (`Response::to_bytes`); none if it is too large, a stream or an upgrade.
    pub kept: Option<Bytes>,
    /// The provider's own id of what was done.
    pub provider_id: Option<String>,
    /// What its fields prove about the work; it goes before the status.
    pub proof: Option<Proof>,
}

/// Who looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObservedBy<'a> {
    /// By asking the upstream or provider.
    Reconciler,
    /// By being told, with a signature.
    Webhook,
    /// By knowing, and answering for it.
    Operator(&'a OperatorAction),
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    /// It was executed, with this answer (a decline is an answer).
    Executed(AttemptResponse),
    /// It was not executed.
    NotExecuted,
    /// No word either way.
    Nothing,
}

/// A decision, and the Change it depends on.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// Nothing to write.
    Keep(Decision),
    /// The decision holds only if the Change commits.
    Write(Arc<Change>, Decision),
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Run the handler, after the recovery point if it is not zero.
    Run {
        /// The last Phase committed.
        after: RecoveryPoint,
    },
    /// It is accepted and will be run.
    Accepted,
    /// Answer with what is stored.
    Replay,
    /// Executed once, its answer not kept.
    NotRetained,
    /// Somebody is at it.
    Wait {
        /// More of the lease is left than its whole length: the clock stepped back, and a renewal sets it right.
        overlong: bool,
    },
    /// It may be sent again, but not by one who waited.
    Free,
    /// Nobody knows, until the instant given; none: a person must look.
    Unknown {
        /// The next reconciliation.
        until: Option<Timestamp>,
    },
    /// The key was used for another request.
    Mismatch,
    /// The key's retention is over.
    Expired,

    /// The answer is final.
    Stored,
    /// The key is free again.
    Freed,
    /// The outcome is unknown.
    Unsettled,
    /// The answer is owed by an Effect.
    Owed,
    /// The recovery point is reached.
    Advanced,
    /// The record has gone on without this Attempt; what is stored counts.
    Superseded,
    /// The outcome is known.
    Settled,
    /// The next look is due later.
    Later,
    /// The answer is gone.
    Forgotten,
    /// The event does not fit the record; nothing changes.
    Ignored,
}

/// A Change to `record` as `draft` says, under the Version that was read.
fn write(record: &Record, nonce: Nonce, draft: Draft) -> Arc<Change> {
    rewrite(record, Expect::Version(record.version), nonce, draft)
}

/// A Change to `record` as `draft` says, where it is as `expect` says. The request that is kept to be run without its
/// client goes with the need for it, in the same commit: it may hold credentials.
fn rewrite(record: &Record, expect: Expect, nonce: Nonce, draft: Draft) -> Arc<Change> {
    let (state, given_up) = (draft.state, draft.flags.dead_letter);
    let mut change = change(record.id, expect, nonce, draft);
    let resumes = record.policy.on_lapse == OnLapse::Resume;
    match state {
        State::Completed if record.state != State::Completed => {
            Arc::make_mut(&mut change).clears_bodies = record.flags.asynchronous || resumes;
        }
        State::Retryable if record.flags.asynchronous => {
            let Change { clears_bodies, bodies, .. } = Arc::make_mut(&mut change);
            // What the Phases left is needed by whoever goes on after them.
            *clears_bodies = record.point == 0;
            if record.point > 0 {
                bodies.push(StoredBody { kind: BodyKind::Request, data: Bytes::new() });
            }
            if given_up {
                let detail = format!("not executed in {} attempts: given up", record.attempt);
                change = with(change, HistoryKind::Settled, detail);
            }
        }
        _ => {}
    }
    change
}

/// A Change to whatever `expect` names.
fn change(id: RecordId, expect: Expect, nonce: Nonce, draft: Draft) -> Arc<Change> {
    Arc::new(Change {
        id,
        expect,
        nonce,
        draft: Some(draft),
        clears_bodies: false,
        bodies: Vec::new(),
        history: Vec::new(),
        uses: None,
    })
}

/// Adds one line to a Change's history.
fn with(mut change: Arc<Change>, what: HistoryKind, detail: impl Into<String>) -> Arc<Change> {
    Arc::make_mut(&mut change).history.push(History { what, detail: detail.into() });
    change
}

/// The row as it is, to be changed from.
fn same(record: &Record) -> Draft {
    Draft {
        identity: record.identity.clone(),
        birth: record.birth,
        owner: record.owner,
        attempt: record.attempt,
        state: record.state,
        flags: record.flags,
        fingerprint: record.fingerprint,
        policy: record.policy.clone(),
        point: record.point,
        created: InstantChange::Keep,
        ran: InstantChange::Keep,
        completed: InstantChange::Keep,
        due_in: None,
        expires_in: None,
        purge_in: None,
        note: record.note.clone(),
    }
}

/// The row as it is, with what is left until its instants: to be written under a new Version and nothing else. They move
/// on by as long as the write takes to arrive.
fn as_it_is(record: &Record, now: Timestamp) -> Draft {
    let left = |at: Option<Timestamp>| at.map(|at| at.since(now));
    Draft {
        due_in: left(record.due_at),
        expires_in: left(record.expires_at),
        purge_in: left(record.purge_at),
        ..same(record)
    }
}

/// The answer is final. Retention counts from here, not from the beginning.
fn completed(mut draft: Draft, answer: &AttemptResponse) -> (Draft, Option<StoredBody>) {
    draft.state = State::Completed;
    draft.flags = Flags { not_retained: answer.kept.is_none(), ..Flags::default() };
    draft.completed = InstantChange::Now;
    draft.note.status = Some(answer.status);
    draft.note.last_error = None;
    draft.note.unproven = None;
    draft.note.calling = None;
    draft.note.doubt = None;
    draft.note.provider_id = answer.provider_id.clone().or(draft.note.provider_id);
    retained(&mut draft);
    (draft, answer.kept.clone().map(|data| StoredBody { kind: BodyKind::Answer, data }))
}

/// It may run again. What was begun to be run later goes back to wait for its next run. After the last of these it is
/// its client's again: it may be sent once more, and a person hears that nobody tries any longer.
///
/// With a call in doubt it does not expire: whoever comes then would begin anew and call under another key. When the
/// provider may have forgotten this one, it is unknown.
fn freed(mut draft: Draft, why: ErrorCode) -> Draft {
    let accepted = draft.flags.asynchronous;
    draft.note.last_error = Some(why);
    draft.note.unproven = None;
    draft.note.calling = None;
    if accepted && draft.attempt < draft.policy.max_attempts {
        draft.flags = Flags { asynchronous: true, ..Flags::default() };
        draft.state = State::Pending;
        draft.due_in = Some(backoff(draft.attempt));
        (draft.expires_in, draft.purge_in) = (None, None);
    } else {
        draft.flags = Flags { dead_letter: accepted, ..Flags::default() };
        draft.state = State::Retryable;
        retained(&mut draft);
        if draft.note.doubt.is_some() {
            // Where the sweeper may run it, it need not wait for its client. Of what was accepted no request is left to run.
            let resumes = draft.policy.on_lapse == OnLapse::Resume && !accepted;
            draft.due_in = Some(if resumes { backoff(draft.attempt) } else { KEY_WINDOW });
            (draft.expires_in, draft.purge_in) = (None, None);
        }
    }
    draft
}

/// Nobody knows. Without a way to ask it is an operator's, once its Attempt's time is over.
fn unknown(mut draft: Draft, why: ErrorCode) -> Draft {
    draft.state = State::Unknown;
    draft.note.last_error = Some(why);
    draft.note.unproven = None;
    draft.note.tries = 0;
    draft.note.absent_at = None;
    // The first look comes when the Attempt is over, also one that lost its lease with the delivery just made: until
    // its time-out and its linger have passed, "not there" proves nothing and its own late answer may settle the record.
    let over_in = draft.policy.over_in();
    draft.due_in = draft.policy.reconcile.as_ref().map(|reconcile| reconcile.settle.max(over_in));
    draft.flags.dead_letter = draft.due_in.is_none();
    draft.due_in = draft.due_in.or(draft.policy.unknown_retention);
    draft.flags.owed = false;
    (draft.expires_in, draft.purge_in) = (None, None);
    draft
}

/// Replay ends after the retention, the row goes after the tombstone.
fn retained(draft: &mut Draft) {
    draft.due_in = None;
    draft.expires_in = Some(draft.policy.retention);
    draft.purge_in = Some(draft.policy.retention + draft.policy.tombstone);
}

/// Shortens how long the row stays after a first attempt that the handler refused with 401 or 403. No request holds
/// its key any more, so the row has little left to say, and anyone who can make up a credential can make such rows.
/// It leaves no tombstone either: nothing was carried out that an old key could repeat.
fn kept_briefly(draft: &mut Draft) {
    // An operator has yet to see a dead letter.
    if !draft.flags.dead_letter {
        let stays = REFUSED_STAYS_FOR.min(draft.policy.retention);
        (draft.expires_in, draft.purge_in) = (Some(stays), Some(stays));
    }
}

/// The pause after so many tries: 2 s after the first, doubling, so that a short outage costs little, up to five minutes,
/// so that the end of a long one is noticed.
fn backoff(tries: u32) -> Duration {
    BACKOFF_MIN.saturating_mul(1u32.checked_shl(tries.min(16)).unwrap_or(u32::MAX)).min(BACKOFF_MAX)
}

/// A pause made longer, never shorter, so that what became unknown together is not asked about together for ever.
fn spread(pause: Duration, jitter: f64) -> Duration {
    pause.saturating_add(pause.min(SPREAD_MAX).mul_f64(SPREAD * jitter.clamp(0.0, 1.0)))
}

/// How long a row stays after a first attempt's 401 or 403, unless the retention is shorter: long enough for a client
/// to renew its token and retry while `ibid keys show` still tells what happened, and so short that made-up
/// credentials fill the store with minutes of requests, not with a day's.
const REFUSED_STAYS_FOR: Duration = Duration::from_secs(10 * 60);

const BACKOFF_MIN: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(300);

/// How much of a pause is added at most: enough to part a crowd within a few tries, little to a client that waits.
const SPREAD: f64 = 0.25;

/// Longest pause that is spread in proportion; past a day there is no crowd left to part.
const SPREAD_MAX: Duration = Duration::from_secs(24 * 3600);
