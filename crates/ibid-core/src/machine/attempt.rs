//! What an Attempt says about its own work, in time or late. It counts as long as the Attempt is the record's owner.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    AttemptResponse, Decision, PhaseStep, Verdict, change, completed, freed, kept_briefly, retained, same,
    unknown, with, write,
};
use crate::change::{BodyKind, Change, Draft, Expect, History, HistoryKind, InstantChange, StoredBody};
use crate::policy::ResponseClass;
use crate::proof::Proof;
use crate::record::{ErrorCode, Nonce, Record, RecoveryPoint, State};
use crate::time::Timestamp;

/// The Attempt has an answer.
pub(super) fn answered(
    record: Option<&Record>,
    begun: &Record,
    nonce: Nonce,
    answer: &AttemptResponse,
    now: Timestamp,
) -> Verdict {
    let mut class = class_of(begun, answer);
    // What the handler says of itself does not tell what became of its call.
    if class != ResponseClass::Stored && is_open(record, begun) {
        class = ResponseClass::Ambiguous;
    }
    let Some(record) = record else {
        // Lost by a failover: what was executed is written down all the same.
        return settled_by(None, begun, nonce, class, answer);
    };
    if record.owner != begun.owner {
        return superseded(record, begun, nonce, class, answer, now);
    }
    match (state_to_its_attempt(record), class) {
        (State::InProgress, _) => settled_by(Some(record), begun, nonce, class, answer),
        // Late, but nobody has run since: the answer is the outcome.
        (State::Unknown | State::Retryable, ResponseClass::Stored)
        | (State::Unknown, ResponseClass::Free { .. }) => {
            settled_by(Some(record), begun, nonce, class, answer)
        }
        (State::Unknown, ResponseClass::Ambiguous) => Verdict::Keep(Decision::Unsettled),
        (State::Retryable, _) => Verdict::Keep(Decision::Freed),
        (State::Completed | State::Pending, _) => superseded(record, begun, nonce, class, answer, now),
    }
}

/// The Attempt has proof that nothing was executed.
pub(super) fn not_executed(record: Option<&Record>, begun: &Record, nonce: Nonce, why: ErrorCode) -> Verdict {
    match record {
        None if is_open(None, begun) => uncertain(None, begun, nonce, why),
        // Absent is free.
        None => Verdict::Keep(Decision::Freed),
        Some(record) if record.owner != begun.owner => Verdict::Keep(Decision::Superseded),
        // It speaks of the work at hand. What became of a call before it nobody knows all the same.
        Some(record) if is_open(Some(record), begun) => uncertain(Some(record), begun, nonce, why),
        Some(record) => match state_to_its_attempt(record) {
            State::InProgress => {
                Verdict::Write(write(record, nonce, freed(told(record, begun), why)), Decision::Freed)
            }
            State::Unknown => {
                let change = write(record, nonce, freed(told(record, begun), why));
                Verdict::Write(
                    with(change, HistoryKind::Settled, "the attempt came back: not executed"),
                    Decision::Freed,
                )
            }
            State::Retryable => Verdict::Keep(Decision::Freed),
            State::Completed | State::Pending => Verdict::Keep(Decision::Superseded),
        },
    }
}

/// The Attempt can't know what became of its work.
pub(super) fn uncertain(record: Option<&Record>, begun: &Record, nonce: Nonce, why: ErrorCode) -> Verdict {
    match record {
        None => {
            let change = change(begun.id, Expect::Absent, nonce, unknown(anew(begun), why));
            Verdict::Write(with(change, HistoryKind::Unknown, why.name()), Decision::Unsettled)
        }
        Some(record) if record.owner != begun.owner => Verdict::Keep(Decision::Superseded),
        Some(record) => match state_to_its_attempt(record) {
            State::InProgress => {
                let change = write(record, nonce, unknown(told(record, begun), why));
                let detail = format!("attempt {}: {}", record.attempt, why.name());
                Verdict::Write(with(change, HistoryKind::Unknown, detail), Decision::Unsettled)
            }
            State::Unknown => Verdict::Keep(Decision::Unsettled),
            State::Retryable => Verdict::Keep(Decision::Freed),
            State::Completed | State::Pending => Verdict::Keep(Decision::Superseded),
        },
    }
}

/// The Attempt's transaction commits with an Effect that owes the answer: no lease is needed any more.
pub(super) fn owes(record: Option<&Record>, begun: &Record, nonce: Nonce) -> Verdict {
    match record {
        Some(record) if record.owner == begun.owner && record.state == State::InProgress => {
            let mut draft = same(record);
            draft.state = State::Pending;
            draft.flags.owed = true;
            Verdict::Write(write(record, nonce, draft), Decision::Owed)
        }
        _ => Verdict::Keep(Decision::Superseded),
    }
}

/// The Attempt is about to call the outside. From here to the Phase's end a lapse means that nobody knows.
pub(super) fn calling(
    record: Option<&Record>,
    begun: &Record,
    nonce: Nonce,
    point: Option<RecoveryPoint>,
) -> Verdict {
    match record {
        Some(record) if point.is_none_or(|point| is_next(record, point)) && is_running(record, begun) => {
            let mut draft = same(record);
            draft.note.calling = point;
            draft.due_in = Some(record.policy.lease);
            Verdict::Write(write(record, nonce, draft), Decision::Advanced)
        }
        _ => Verdict::Keep(Decision::Superseded),
    }
}

/// The Attempt finished one atomic piece of work. The point moves forward by one, never back.
pub(super) fn phase(
    record: Option<&Record>,
    begun: &Record,
    nonce: Nonce,
    step: PhaseStep,
    result: &Bytes,
) -> Verdict {
    match record {
        Some(record) if is_next(record, step.point) && is_running(record, begun) => {
            let mut draft = same(record);
            draft.point = step.point;
            draft.note.phases = Some(step.phases);
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

/// Whether nobody can tell what became of a call, and no run may make it again. What is in doubt could be called again,
/// but of a record that is lost nobody knows any more how old its key is.
fn is_open(record: Option<&Record>, begun: &Record) -> bool {
    match record {
        Some(record) => record.note.calling.is_some(),
        None => begun.note.calling.is_some() || begun.note.doubt.is_some(),
    }
}

/// The row as it is, with the doubt that its Attempt began with or has come into, unless it could settle it.
fn told(record: &Record, begun: &Record) -> Draft {
    let mut draft = same(record);
    // What is recorded meanwhile is in doubt no longer.
    draft.note.doubt = begun.note.doubt.filter(|point| *point > record.point);
    draft.note.doubted = begun.note.doubted;
    draft
}

/// Whether `point` follows on the last one reached.
fn is_next(record: &Record, point: RecoveryPoint) -> bool {
    Some(point) == record.point.checked_add(1)
}

/// Whether the record is still the Attempt's to work on.
fn is_running(record: &Record, begun: &Record) -> bool {
    record.owner == begun.owner && record.state == State::InProgress
}

/// The record's state as its last Attempt must take it: an async record that waits for its next run is what
/// `retryable` is to others. Nobody has run since, so a late answer is the outcome.
fn state_to_its_attempt(record: &Record) -> State {
    match record.state {
        State::Pending if !record.flags.owed => State::Retryable,
        state => state,
    }
}

/// What the answer says about the work. A 5xx and a proof count only when the answer was read to its end, and what is not
/// kept was not.
fn class_of(begun: &Record, answer: &AttemptResponse) -> ResponseClass {
    let proof = answer.proof.filter(|_| answer.kept.is_some());
    if answer.kept.is_none() && (answer.status >= 500 || answer.proof == Some(Proof::NotExecuted)) {
        return ResponseClass::Ambiguous;
    }
    begun.policy.classify(answer.status, answer.retry_after, proof)
}

/// What the answer makes of a record that is still this Attempt's.
fn settled_by(
    record: Option<&Record>,
    begun: &Record,
    nonce: Nonce,
    class: ResponseClass,
    answer: &AttemptResponse,
) -> Verdict {
    // The reaper may have come meanwhile; whose it is the Attempt still knows.
    let from = record.map_or_else(
        || anew(begun),
        |record| Draft { identity: begun.identity.clone(), ..told(record, begun) },
    );
    let to = |draft| match record {
        Some(record) => write(record, nonce, draft),
        None => change(begun.id, Expect::Absent, nonce, draft),
    };
    let late = record.is_some_and(|record| record.state != State::InProgress);
    let (mut change, decision) = match class {
        ResponseClass::Stored => {
            let (draft, body) = completed(from, answer);
            let mut change = to(draft);
            let bodies = &mut Arc::make_mut(&mut change).bodies;
            // At most one: by itself it would make room for four.
            bodies.reserve_exact(1);
            bodies.extend(body);
            (change, Decision::Stored)
        }
        ResponseClass::Free { forget_fingerprint } => {
            let mut draft = freed(from, ErrorCode::Refused);
            // What was done for this request, or will run again by itself, is nobody else's.
            // Nor is what an earlier run may have begun outside, under a key of this generation.
            let begun_outside = draft.point > 0 || draft.attempt > 1 || draft.note.doubt.is_some();
            if forget_fingerprint && draft.state == State::Retryable && !begun_outside {
                draft.fingerprint = None;
                kept_briefly(&mut draft);
            }
            (to(draft), Decision::Freed)
        }
        ResponseClass::Ambiguous => {
            let mut draft = unknown(from, ErrorCode::ServerError);
            draft.note.unproven = Some(answer.status);
            let detail = format!("attempt {}: answered {}", begun.attempt, answer.status);
            (with(to(draft), HistoryKind::Unknown, detail), Decision::Unsettled)
        }
    };
    if late {
        change = with(
            change,
            HistoryKind::LateAnswer,
            format!("attempt {} answered {}", begun.attempt, answer.status),
        );
    }
    Verdict::Write(change, decision)
}

/// The record went on without this Attempt. If its answer means that work was done twice, or done where a failure is
/// stored, a person must hear of it.
fn superseded(
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
    let detail = format!("attempt {} answered {} after the record had gone on", begun.attempt, answer.status);
    if record.state == State::Completed && !record.is_expired(now) {
        // The stored answer stays as it is. Its retention begins again, for a person needs time to look.
        let mut draft = same(record);
        retained(&mut draft);
        draft.flags.dead_letter = true;
        return Verdict::Write(
            with(write(record, nonce, draft), HistoryKind::LateAnswer, detail),
            Decision::Superseded,
        );
    }
    // Another Attempt is at it, or its outcome is open: its lease and Version are not to be touched. Or it is expired,
    // perhaps forgotten, and must not come back. So only the history grows.
    let change = Change {
        id: record.id,
        expect: Expect::Anything,
        nonce,
        draft: None,
        clears_bodies: false,
        bodies: Vec::new(),
        history: vec![History { what: HistoryKind::LateAnswer, detail }],
        uses: None,
    };
    Verdict::Write(Arc::new(change), Decision::Superseded)
}

/// The record as the Attempt began it, to be inserted again.
fn anew(begun: &Record) -> Draft {
    Draft { created: InstantChange::Now, ran: InstantChange::Now, ..same(begun) }
}
