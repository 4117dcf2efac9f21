//! Decides on what an attempt reports about its own work, in time or late.
//!
//! A report counts as long as the attempt is the record's owner.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    AttemptResponse, Decision, PhaseStep, Verdict, change, draft_of, mark_completed, mark_freed,
    mark_unknown, set_retention, shorten_retention, with_history, write,
};
use crate::change::{BodyKind, Change, Draft, Expect, History, HistoryKind, InstantChange, StoredBody};
use crate::policy::ResponseClass;
use crate::proof::Proof;
use crate::record::{ErrorCode, Nonce, Record, RecoveryPoint, State};
use crate::time::Timestamp;

/// Decides on [`Event::Answered`](super::Event::Answered): the attempt has a response.
pub(super) fn apply_response(
    record: Option<&Record>,
    begun: &Record,
    nonce: Nonce,
    answer: &AttemptResponse,
    now: Timestamp,
) -> Verdict {
    let mut class = classify(begun, answer);
    // The handler's response proves nothing about its external call, whose outcome is still open.
    if class != ResponseClass::Stored && is_call_open(record, begun) {
        class = ResponseClass::Ambiguous;
    }
    let Some(record) = record else {
        // A failover lost the record. The outcome is stored all the same.
        return settle_by_class(None, begun, nonce, class, answer);
    };
    if record.owner != begun.owner {
        return note_late_response(record, begun, nonce, class, answer, now);
    }
    match (state_to_its_attempt(record), class) {
        (State::InProgress, _) => settle_by_class(Some(record), begun, nonce, class, answer),
        // Late, but no other attempt has run since: the response is the outcome.
        (State::Unknown | State::Retryable, ResponseClass::Stored)
        | (State::Unknown, ResponseClass::Free { .. }) => {
            settle_by_class(Some(record), begun, nonce, class, answer)
        }
        (State::Unknown, ResponseClass::Ambiguous) => Verdict::Keep(Decision::Unsettled),
        (State::Retryable, _) => Verdict::Keep(Decision::Freed),
        (State::Completed | State::Pending, _) => {
            note_late_response(record, begun, nonce, class, answer, now)
        }
    }
}

/// Decides on [`Event::NotExecuted`](super::Event::NotExecuted): the attempt has proof that nothing was executed.
pub(super) fn not_executed(record: Option<&Record>, begun: &Record, nonce: Nonce, why: ErrorCode) -> Verdict {
    match record {
        None if is_call_open(None, begun) => uncertain(None, begun, nonce, why),
        // An absent record holds no key.
        None => Verdict::Keep(Decision::Freed),
        Some(record) if record.owner != begun.owner => Verdict::Keep(Decision::Superseded),
        // The proof is about the present work only. The outcome of an earlier call is still open.
        Some(record) if is_call_open(Some(record), begun) => uncertain(Some(record), begun, nonce, why),
        Some(record) => match state_to_its_attempt(record) {
            State::InProgress => Verdict::Write(
                write(record, nonce, mark_freed(draft_with_doubt(record, begun), why)),
                Decision::Freed,
            ),
            State::Unknown => {
                let change = write(record, nonce, mark_freed(draft_with_doubt(record, begun), why));
                Verdict::Write(
                    with_history(change, HistoryKind::Settled, "the attempt came back: not executed"),
                    Decision::Freed,
                )
            }
            State::Retryable => Verdict::Keep(Decision::Freed),
            State::Completed | State::Pending => Verdict::Keep(Decision::Superseded),
        },
    }
}

/// Decides on [`Event::Uncertain`](super::Event::Uncertain): the attempt cannot know the outcome of its work.
pub(super) fn uncertain(record: Option<&Record>, begun: &Record, nonce: Nonce, why: ErrorCode) -> Verdict {
    match record {
        None => {
            let change = change(begun.id, Expect::Absent, nonce, mark_unknown(reinsert(begun), why));
            Verdict::Write(with_history(change, HistoryKind::Unknown, why.name()), Decision::Unsettled)
        }
        Some(record) if record.owner != begun.owner => Verdict::Keep(Decision::Superseded),
        Some(record) => match state_to_its_attempt(record) {
            State::InProgress => {
                let change = write(record, nonce, mark_unknown(draft_with_doubt(record, begun), why));
                let detail = format!("attempt {}: {}", record.attempt, why.name());
                Verdict::Write(with_history(change, HistoryKind::Unknown, detail), Decision::Unsettled)
            }
            State::Unknown => Verdict::Keep(Decision::Unsettled),
            State::Retryable => Verdict::Keep(Decision::Freed),
            State::Completed | State::Pending => Verdict::Keep(Decision::Superseded),
        },
    }
}

/// Decides on [`Event::Owes`](super::Event::Owes): the attempt's transaction commits with an effect that owes the
/// response.
///
/// The record needs no lease any more.
pub(super) fn owes(record: Option<&Record>, begun: &Record, nonce: Nonce) -> Verdict {
    match record {
        Some(record) if record.owner == begun.owner && record.state == State::InProgress => {
            let mut draft = draft_of(record);
            draft.state = State::Pending;
            draft.flags.owed = true;
            Verdict::Write(write(record, nonce, draft), Decision::Owed)
        }
        _ => Verdict::Keep(Decision::Superseded),
    }
}

/// Decides on [`Event::Calling`](super::Event::Calling): the attempt is about to make an external call.
///
/// From here to the end of the phase, a lapse makes the outcome unknown.
pub(super) fn calling(
    record: Option<&Record>,
    begun: &Record,
    nonce: Nonce,
    point: Option<RecoveryPoint>,
) -> Verdict {
    match record {
        Some(record) if point.is_none_or(|point| is_next(record, point)) && is_running(record, begun) => {
            let mut draft = draft_of(record);
            draft.note.calling = point;
            draft.due_in = Some(record.policy.lease);
            Verdict::Write(write(record, nonce, draft), Decision::Advanced)
        }
        _ => Verdict::Keep(Decision::Superseded),
    }
}

/// Decides on [`Event::Phase`](super::Event::Phase): the attempt finished one phase.
///
/// The recovery point moves forward by one, never back.
pub(super) fn phase(
    record: Option<&Record>,
    begun: &Record,
    nonce: Nonce,
    step: PhaseStep,
    name: &str,
    result: &Bytes,
) -> Verdict {
    match record {
        Some(record) if is_next(record, step.point) && is_running(record, begun) => {
            let mut draft = draft_of(record);
            draft.point = step.point;
            draft.note.phases.push(name.to_owned());
            draft.note.calling = None;
            draft.note.doubt = None;
            draft.due_in = Some(record.policy.lease);
            let mut change = write(record, nonce, draft);
            Arc::make_mut(&mut change)
                .bodies
                .push(StoredBody { kind: BodyKind::Phase(step.point), data: result.clone() });
            Verdict::Write(change, Decision::Advanced)
        }
        _ => Verdict::Keep(Decision::Superseded),
    }
}

/// Returns whether the outcome of an external call is open and no run may repeat the call.
///
/// An in-doubt call may be repeated under its key. But if the record is lost, the age of that key is not known any
/// more.
fn is_call_open(record: Option<&Record>, begun: &Record) -> bool {
    match record {
        Some(record) => record.note.calling.is_some(),
        None => begun.note.calling.is_some() || begun.note.doubt.is_some(),
    }
}

/// Returns an unchanged draft of `record` with the in-doubt call that its attempt began with or came into, unless the
/// result of that call was recorded.
fn draft_with_doubt(record: &Record, begun: &Record) -> Draft {
    let mut draft = draft_of(record);
    // A call whose result has been recorded since is not in doubt any more.
    draft.note.doubt = begun.note.doubt.filter(|point| *point > record.point);
    draft.note.doubted = begun.note.doubted;
    draft
}

/// Returns whether `point` directly follows the last recovery point of `record`.
fn is_next(record: &Record, point: RecoveryPoint) -> bool {
    Some(point) == record.point.checked_add(1)
}

/// Returns whether the attempt that began as `begun` still runs `record`.
fn is_running(record: &Record, begun: &Record) -> bool {
    record.owner == begun.owner && record.state == State::InProgress
}

/// Returns the record's state from the view of its last attempt.
///
/// An async record that waits for its next run counts as `retryable`: no attempt has run since, so a late response is
/// the outcome.
fn state_to_its_attempt(record: &Record) -> State {
    match record.state {
        State::Pending if !record.flags.owed => State::Retryable,
        state => state,
    }
}

/// Classifies the response by the policy that the record was begun with.
///
/// A 5xx and a proof count only if the response was read to its end. A response without bytes to store was not.
fn classify(begun: &Record, answer: &AttemptResponse) -> ResponseClass {
    let proof = answer.proof.filter(|_| answer.kept.is_some());
    if answer.kept.is_none() && (answer.status >= 500 || answer.proof == Some(Proof::NotExecuted)) {
        return ResponseClass::Ambiguous;
    }
    begun.policy.classify(answer.status, answer.retry_after, proof)
}

/// Decides on a response to a record that still belongs to this attempt.
fn settle_by_class(
    record: Option<&Record>,
    begun: &Record,
    nonce: Nonce,
    class: ResponseClass,
    answer: &AttemptResponse,
) -> Verdict {
    // The reaper may have stripped the identity in the meantime; the attempt still has it.
    let from = record.map_or_else(
        || reinsert(begun),
        |record| Draft { identity: begun.identity.clone(), ..draft_with_doubt(record, begun) },
    );
    let to = |draft| match record {
        Some(record) => write(record, nonce, draft),
        None => change(begun.id, Expect::Absent, nonce, draft),
    };
    let late = record.is_some_and(|record| record.state != State::InProgress);
    let (mut change, decision) = match class {
        ResponseClass::Stored => {
            let mut change = to(mark_completed(from, answer));
            Arc::make_mut(&mut change).response = answer.kept.clone();
            (change, Decision::Stored)
        }
        ResponseClass::Free { forget_fingerprint } => {
            let mut draft = mark_freed(from, ErrorCode::Refused);
            // The key stays with this request if phases were committed for it or it will run again. It also stays if an
            // earlier run may have made an external call under a key of this generation.
            let is_bound = draft.point > 0 || draft.attempt > 1 || draft.note.doubt.is_some();
            if forget_fingerprint && draft.state == State::Retryable && !is_bound {
                draft.fingerprint = None;
                shorten_retention(&mut draft);
            }
            (to(draft), Decision::Freed)
        }
        ResponseClass::Ambiguous => {
            let mut draft = mark_unknown(from, ErrorCode::ServerError);
            draft.note.unproven = Some(answer.status);
            let detail = format!("attempt {}: answered {}", begun.attempt, answer.status);
            (with_history(to(draft), HistoryKind::Unknown, detail), Decision::Unsettled)
        }
    };
    if late {
        change = with_history(
            change,
            HistoryKind::LateAnswer,
            format!("attempt {} answered {}", begun.attempt, answer.status),
        );
    }
    Verdict::Write(change, decision)
}

/// Decides on a response of an attempt that no longer owns the record, or came too late to change it.
///
/// If the response means that work was done twice, or was done although a failure is stored, an operator must learn of
/// it.
fn note_late_response(
    record: &Record,
    begun: &Record,
    nonce: Nonce,
    class: ResponseClass,
    answer: &AttemptResponse,
    now: Timestamp,
) -> Verdict {
    let same_attempt = record.owner == begun.owner;
    let failed = record.note.status.is_some_and(|status| status >= 400);
    let contradicts = match class {
        ResponseClass::Free { .. } => false,
        ResponseClass::Stored if same_attempt => {
            record.state == State::Completed && failed && answer.status < 400
        }
        ResponseClass::Ambiguous if same_attempt => false,
        ResponseClass::Stored | ResponseClass::Ambiguous => true,
    };
    if !contradicts {
        return Verdict::Keep(Decision::Superseded);
    }
    let detail = format!("attempt {} answered {} after the record had changed", begun.attempt, answer.status);
    if record.state == State::Completed && !record.is_expired(now) {
        // The stored response stays. Its retention starts over, because an operator needs time to look.
        let mut draft = draft_of(record);
        set_retention(&mut draft);
        draft.flags.dead_letter = true;
        return Verdict::Write(
            with_history(write(record, nonce, draft), HistoryKind::LateAnswer, detail),
            Decision::Superseded,
        );
    }
    // Only the history grows. If another attempt runs or the outcome is open, the lease and the version must stay. If
    // the record is expired, perhaps forgotten, it must not come back.
    let change = Change {
        id: record.id,
        expect: Expect::Anything,
        nonce,
        draft: None,
        response: None,
        clears_bodies: false,
        bodies: Vec::new(),
        history: vec![History { what: HistoryKind::LateAnswer, detail }],
        uses: None,
    };
    Verdict::Write(Arc::new(change), Decision::Superseded)
}

/// Returns a draft that inserts the lost record again, as the attempt began it.
fn reinsert(begun: &Record) -> Draft {
    Draft { created: InstantChange::Now, ran: InstantChange::Now, ..draft_of(begun) }
}
