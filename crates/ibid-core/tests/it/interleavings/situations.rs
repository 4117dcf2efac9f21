//! The situations that a run must reach, and how they are counted.

use ibid_core::change::{Change, Expect};
use ibid_core::machine::{Decision, Intent, Observation, ObservedBy};
use ibid_core::policy::OnLapse;
use ibid_core::record::{Record, State};

use super::operation::Op;
use super::simulation::Simulation;

impl Simulation {
    pub(super) fn count(&mut self, situation: &'static str) {
        *self.situation_counts.entry(situation).or_default() += 1;
    }

    pub(super) fn count_request(&mut self, role: Intent, decision: &Decision, row: Option<&Record>) {
        let state = row.map(|row| row.state);
        match decision {
            Decision::Free if role == Intent::ReadOnly && state == Some(State::Retryable) => {
                self.count("a waiter was refused on a retryable record");
            }
            Decision::Wait { .. }
                if role == Intent::MayRunNoTakeover && row.is_some_and(|row| row.is_due(self.shelf.now)) =>
            {
                self.count("a careful request did not take over");
            }
            Decision::Mismatch => self.count("a request met another fingerprint"),
            Decision::Unknown { .. } => self.count("a request met an unknown record"),
            Decision::Expired => self.count("an expired key was refused"),
            Decision::Replay => self.count("a response was replayed"),
            _ => {}
        }
    }

    /// Counts the situations that a committed change shows.
    pub(super) fn count_commit(
        &mut self,
        op: &Op,
        change: &Change,
        decision: &Decision,
        before: Option<&Record>,
    ) {
        let state = before.map(|before| before.state);
        let expired = before.is_some_and(|before| before.is_expired(self.shelf.now));
        let draft = change.draft.as_ref();
        if before.is_some_and(|before| before.state == State::Retryable && before.note.doubt.is_some()) {
            match draft.map(|draft| draft.state) {
                Some(State::InProgress) if matches!(op, Op::Resume(..)) => {
                    self.count("a sweeper resumed a record with an in-doubt call");
                }
                Some(State::InProgress | State::Pending) => {
                    self.count("a record with an in-doubt call was run again");
                }
                Some(State::Unknown) => self.count("a record with an in-doubt call became unknown"),
                _ => {}
            }
        }
        match (op, decision) {
            (Op::Request(..), Decision::Run { .. } | Decision::Accepted) => match state {
                None if *decision == Decision::Accepted => {
                    self.count("a first request was accepted to run later");
                }
                None => self.count("a first request ran"),
                Some(_) if expired => self.count("an expired key began a new generation"),
                Some(State::Retryable) => self.count("a retryable record was run again"),
                Some(_) => self.count("a takeover ran"),
            },
            (Op::GaveUp(..), Decision::Freed) if before.is_none() => {
                self.count("a given-up begin was replaced by a placeholder");
            }
            (Op::GaveUp(ask, _), Decision::Freed) if before.is_some_and(|b| b.owner == ask.nonce) => {
                self.count("a given-up begin was released");
            }
            (Op::Answered(..), Decision::Stored) => match state {
                None => self.count("a finish found no record"),
                Some(State::InProgress) => {}
                Some(_) => self.count("a late finish was accepted"),
            },
            (Op::Phase(..), _) => self.count("a phase was committed"),
            (Op::Lapsed(..), _) => {
                self.count("a sweep settled");
                if draft.is_some_and(|d| d.state == State::Unknown && d.policy.on_lapse == OnLapse::Retry) {
                    self.count("a lapse was poison");
                }
            }
            (Op::NeverClaimed(_), _) => self.count("an unclaimed request was timed out"),
            (Op::EffectDone(..), _) => self.count("an effect settled an owed response"),
            (Op::Found(_, ObservedBy::Reconciler, Observation::Executed(_), _), Decision::Settled) => {
                self.count("a reconciler settled as executed");
            }
            (Op::Found(_, ObservedBy::Reconciler, Observation::NotExecuted, _), Decision::Settled) => {
                self.count("a reconciler settled as not executed");
            }
            (Op::Forget(_), _) => self.count("an operator forgot a response"),
            _ => {}
        }
    }

    /// Counts the situations that a refused change shows.
    pub(super) fn count_lost_race(&mut self, op: &Op, change: &Change, newer: Option<&Record>) {
        match (op, change.expect, newer) {
            (Op::Request(..), Expect::Absent, Some(_)) => self.count("an insert lost to another"),
            (Op::Request(..) | Op::Lapsed(..), Expect::Due(version), Some(newer))
                if newer.version == version =>
            {
                self.count("a takeover was refused because the lease was renewed");
            }
            (Op::Request(..), Expect::Version(_), Some(newer)) => match change.draft.as_ref() {
                Some(draft) if draft.birth != newer.birth => self.count("a new generation lost to another"),
                _ => self.count("a run again lost to another"),
            },
            (Op::GaveUp(..), Expect::Absent, _) => {
                self.count("a given-up placeholder was beaten by the begin");
            }
            (Op::Lapsed(..), ..) => self.count("a sweep was refused"),
            (Op::Found(_, ObservedBy::Reconciler, ..), _, Some(newer)) if newer.state == State::Completed => {
                self.count("a reconciler lost to the late owner");
            }
            _ => {}
        }
    }
}

/// Situations that a run must reach to prove anything.
pub(super) const SITUATIONS: [&str; 40] = [
    "a first request ran",
    "a first request was accepted to run later",
    "an insert lost to another",
    "a retryable record was run again",
    "a run again lost to another",
    "a takeover ran",
    "a takeover was refused because the lease was renewed",
    "a careful request did not take over",
    "a waiter was refused on a retryable record",
    "a request met another fingerprint",
    "a request met an unknown record",
    "an expired key began a new generation",
    "a new generation lost to another",
    "an expired key was refused",
    "a response was replayed",
    "an own lost reply was recognised",
    "a late write came after its sender had given up",
    "a given-up begin was replaced by a placeholder",
    "a given-up placeholder was beaten by the begin",
    "a given-up begin was released",
    "a late finish was accepted",
    "a late finish found another owner",
    "a late finish found a stored response",
    "a finish found no record",
    "a sweep settled",
    "a sweep was refused",
    "a lapse was poison",
    "a reconciler settled as executed",
    "a reconciler settled as not executed",
    "a reconciler lost to the late owner",
    "old evidence was ignored",
    "an operator forgot a response",
    "an effect settled an owed response",
    "a phase was committed",
    "a phase of a lost lease was refused",
    "an unclaimed request was timed out",
    "a row was purged and its key begun again",
    "a record with an in-doubt call was run again",
    "a record with an in-doubt call became unknown",
    "a sweeper resumed a record with an in-doubt call",
];
