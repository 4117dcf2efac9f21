//! The invariants, checked after every decision and every write.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use ibid_core::change::Draft;
use ibid_core::machine::{Decision, Intent, Observation, ObservedBy, Verdict};
use ibid_core::record::{ErrorCode, Nonce, Record, State, Version};
use ibid_core::response::SavedResponse;
use ibid_core::time::Timestamp;

use super::operation::Op;
use super::policies::SETTLE;

/// History of the simulation to check against.
#[derive(Default)]
pub(super) struct Watch {
    pub(super) versions: HashMap<Version, Draft>,
    pub(super) answers: HashMap<Nonce, Option<SavedResponse>>,
    pub(super) given_up: HashSet<Nonce>,
    /// Latest time that the store's clock ever showed: a record that was read as expired stays so if the clock steps
    /// back.
    pub(super) furthest: Timestamp,
}

/// Checks a decision before anything is written.
pub(super) fn check_decision(op: &Op, row: Option<&Record>, now: Timestamp, verdict: &Verdict) {
    let (Verdict::Keep(decision) | Verdict::Write(_, decision)) = verdict;
    let Op::Request(ask, role) = op else { return };
    let runs = matches!(decision, Decision::Run { .. } | Decision::Accepted);
    assert!(!runs || *role != Intent::ReadOnly, "a waiter never starts an attempt");
    let Some(row) = row else { return };
    let takes_over = runs && row.state == State::InProgress;
    assert!(!takes_over || *role == Intent::MayRun, "a careful request takes nothing over");
    if row.is_expired(now) {
        let fits = runs || matches!(decision, Decision::Expired | Decision::Free);
        assert!(fits, "an expired record counts as absent: {decision:?}");
        return;
    }
    if row.fingerprint.as_ref().is_some_and(|stored| *stored != ask.fingerprint) {
        assert_eq!(*decision, Decision::Mismatch, "another fingerprint, in {:?}", row.state);
    }
    if row.state == State::Unknown {
        let fits = matches!(decision, Decision::Unknown { .. } | Decision::Mismatch);
        assert!(fits && matches!(verdict, Verdict::Keep(_)), "no request changes an unknown record");
    }
}

impl Watch {
    /// Checks the invariants of a committed write.
    pub(super) fn check(
        &mut self,
        before: Option<&Record>,
        after: &Record,
        response: Option<SavedResponse>,
        op: &Op,
        now: Timestamp,
    ) {
        let begins =
            matches!(op, Op::Request(..) | Op::Claim(_) | Op::Resume(..)) && after.state == State::InProgress;
        assert!(
            !(after.state == State::InProgress && self.given_up.contains(&after.owner)),
            "a begin that was given up holds the record"
        );
        if let Op::Request(ask, role) = op
            && begins
        {
            assert!(*role != Intent::ReadOnly && after.owner == ask.nonce);
            assert_eq!(after.fingerprint.as_ref(), Some(&ask.fingerprint), "it runs the request it was sent");
        }
        // Retention counts from here; an open record has none.
        let counts = after.expires_at.zip(after.purge_at);
        let tombstone = before.filter(|before| {
            matches!(op, Op::GaveUp(..)) && before.is_expired(now) && before.birth == after.birth
        });
        match after.state {
            State::Retryable if after.note.doubt.is_some() => {
                assert!(
                    counts.is_none() && after.due_at.is_some(),
                    "a record with an in-doubt call never expires"
                );
            }
            // Refused at its first run: no request holds the key, and the row is deleted within minutes.
            State::Retryable
                if after.fingerprint.is_none()
                    && after.note.last_error == Some(ErrorCode::Refused)
                    && !after.flags.dead_letter
                    && tombstone.is_none() =>
            {
                let ends = now.after(after.policy.retention.min(Duration::from_secs(600)));
                assert_eq!(counts, Some((ends, ends)));
            }
            State::Completed | State::Retryable if !matches!(op, Op::Forget(_)) => {
                // A tombstone is not revived: it has expired, and is deleted no later than one that is made now.
                let goes_by = now.after(after.policy.tombstone);
                let stays = tombstone.is_some()
                    && after.expires_at == Some(now)
                    && after.purge_at.is_some_and(|at| at <= goes_by);
                let ends = now.after(after.policy.retention);
                assert!(stays || counts == Some((ends, ends.after(after.policy.tombstone))), "{counts:?}");
            }
            State::Completed | State::Retryable => assert_eq!(counts, Some((now, now))),
            _ => assert!(after.expires_at.is_none() && after.purge_at.is_none(), "it never expires silently"),
        }
        if after.state == State::Completed {
            assert!(after.fingerprint.is_some(), "a response belongs to a request");
            assert_eq!(response.is_none(), after.flags.not_retained);
            let first = self.answers.entry(after.birth).or_insert_with(|| response.clone());
            assert_eq!(*first, response, "a stored response never changes");
        }
        if let Some(before) = before {
            check_step(before, after, op, now, self.furthest);
        }
    }
}

/// Checks the invariants from one row to the next.
fn check_step(before: &Record, after: &Record, op: &Op, now: Timestamp, furthest: Timestamp) {
    let same_generation = before.birth == after.birth;
    let by_its_owner = match op {
        Op::Answered(begun, ..)
        | Op::NotExecuted(begun, _)
        | Op::Uncertain(begun, _)
        | Op::Owes(begun, _)
        | Op::Phase(begun, ..) => begun.owner == before.owner,
        Op::GaveUp(ask, _) => ask.nonce == before.owner,
        _ => false,
    };
    if before.state == State::InProgress && !by_its_owner {
        assert!(before.is_due(now), "a live lease was taken away");
    }
    if let Op::Found(_, by, what, as_of) = op {
        assert!(before.ran_at.is_none_or(|ran_at| ran_at <= *as_of), "evidence older than the attempt");
        let first =
            before.note.absent_at.map(|at| Timestamp::from_micros(at).after(Duration::from_secs(SETTLE)));
        let over_at = before.ran_at.map(|ran_at| ran_at.after(before.policy.over_in()));
        let proven = match by {
            ObservedBy::Reconciler => first.is_some_and(|first| first <= *as_of),
            ObservedBy::Webhook => over_at.is_some_and(|over_at| over_at <= *as_of),
            ObservedBy::Operator(_) => true,
        };
        let frees = *what == Observation::NotExecuted && after.state != State::Unknown;
        assert!(!frees || proven, "a request that may still be executed was released");
    }
    if before.state == State::Unknown {
        assert!(same_generation, "an unknown record never begins a new generation");
        let may = by_its_owner || matches!(op, Op::Found(..));
        assert!(may || after.state == State::Unknown, "only its owner or an observation leaves unknown");
    }
    check_doubt(before, after, op, by_its_owner);
    if !same_generation {
        let free = before.is_expired(furthest) || before.fingerprint.is_none();
        assert!(free, "a generation ends by expiry, or if no request holds the key");
        return;
    }
    assert_eq!(before.policy, after.policy, "a record keeps its policy");
    if before.state == State::Completed {
        assert_eq!(after.state, State::Completed, "a completed record stays completed");
        assert_eq!((before.note.status, before.completed_at), (after.note.status, after.completed_at));
    }
    assert!(
        after.attempt >= before.attempt && after.point >= before.point && after.point <= before.point + 1
    );
    if after.owner != before.owner {
        assert!(after.state == State::InProgress && after.attempt == before.attempt + 1);
    }
    let is_unchanged = after.fingerprint == before.fingerprint;
    assert!(is_unchanged || after.fingerprint.is_none(), "a fingerprint is kept or cleared, never changed");
    assert!(is_unchanged || after.state == State::Retryable, "only a released key has no fingerprint");
}

/// Checks the invariants of an in-doubt call.
fn check_doubt(before: &Record, after: &Record, op: &Op, by_its_owner: bool) {
    let settles = after.state == State::Completed || matches!(op, Op::Phase(..) | Op::Found(..));
    if before.note.doubt.is_some() {
        assert_eq!(before.birth, after.birth, "the next generation would call under another key");
        assert!(
            settles || after.note.doubt == before.note.doubt,
            "an in-doubt call stays until it is settled"
        );
    }
    if let Op::Answered(begun, ..) | Op::NotExecuted(begun, _) | Op::Uncertain(begun, _) = op
        && by_its_owner
        && begun.note.doubt.is_some_and(|point| point > before.point)
    {
        assert!(settles || after.note.doubt.is_some(), "the end of an attempt stores its in-doubt call");
    }
}
