//! What sweeper, reaper, worker, reconciler, webhook and operator do to a record. Each acts by compare-and-set on what
//! it saw; only these paths, and the late owner itself, leave `unknown`.

use std::sync::Arc;
use std::time::Duration;

use super::{
    AttemptResponse, Decision, Observation, ObservedBy, Verdict, as_it_is, backoff, change, completed, freed,
    request::run_again, rewrite, same, spread, unknown, with, write,
};
use crate::change::{Change, Draft, Expect, HistoryKind, InstantChange};
use crate::effect::KEY_WINDOW;
use crate::operator_action::OperatorAction;
use crate::policy::{OnLapse, Profile};
use crate::record::{ErrorCode, Flags, Nonce, Record, State};
use crate::refusal::Refusal;
use crate::response::Response;
use crate::time::Timestamp;

/// A worker takes a pending record. What nobody took in time is not begun after all: its client was told how long.
pub(super) fn claim(record: Option<&Record>, nonce: Nonce, now: Timestamp) -> Verdict {
    match record {
        Some(record) if is_overdue(record, now) => never_claimed(Some(record), nonce, now),
        Some(record) if record.state == State::Pending && !record.flags.owed && record.is_due(now) => {
            let mut draft = same(record);
            draft.state = State::InProgress;
            draft.owner = nonce;
            draft.attempt = record.attempt.saturating_add(1);
            draft.ran = InstantChange::Now;
            draft.due_in = Some(record.policy.lease);
            let change = rewrite(record, Expect::Due(record.version), nonce, draft);
            Verdict::Write(change, Decision::Run { after: record.point })
        }
        _ => Verdict::Keep(Decision::Ignored),
    }
}

/// Whether it was accepted to be run and nobody ever did, past the deadline.
fn is_overdue(record: &Record, now: Timestamp) -> bool {
    record.state == State::Pending
        && !record.flags.owed
        && record.attempt == 0
        && record.created_at.after(record.policy.pending_deadline) <= now
}

/// The sweeper found the lease run out, or a call in doubt that nobody has settled.
pub(super) fn lapsed(record: Option<&Record>, nonce: Nonce, careful: bool, now: Timestamp) -> Verdict {
    match record {
        Some(record) if record.state == State::InProgress && record.is_due(now) => {
            // After a jump of the store's clock a lapse may be none: nobody is let run for one lease.
            if careful && runs_again(record) {
                return Verdict::Keep(Decision::Wait { overlong: false });
            }
            Verdict::Write(lapse(record, nonce), Decision::Settled)
        }
        Some(record) if !careful && is_past_key_window(record, now) => {
            Verdict::Write(forgotten(record, nonce), Decision::Settled)
        }
        _ => Verdict::Keep(Decision::Ignored),
    }
}

/// Whether a call is in doubt that can't be made again: the provider may have forgotten its key. It counts from the first
/// request, for nobody notes when the key is first used.
pub(super) fn is_past_key_window(record: &Record, now: Timestamp) -> bool {
    record.state == State::Retryable
        && record.note.doubt.is_some()
        && record.created_at.after(KEY_WINDOW) <= now
}

/// What becomes of a call in doubt that can't be made again.
pub(super) fn forgotten(record: &Record, nonce: Nonce) -> Arc<Change> {
    let why = record.note.last_error.unwrap_or(ErrorCode::TimedOut);
    let change = write(record, nonce, unknown(same(record), why));
    let detail = format!("attempt {}: a call may have been made, and its key be forgotten", record.attempt);
    with(change, HistoryKind::Unknown, detail)
}

/// A sweeper that can run the handler takes over. What can't be resumed is left to [`lapsed`].
pub(super) fn resume(record: Option<&Record>, nonce: Nonce, careful: bool, now: Timestamp) -> Verdict {
    match record {
        Some(record)
            if !careful
                && record.state == State::InProgress
                && record.is_due(now)
                && record.policy.on_lapse == OnLapse::Resume
                && !record.flags.asynchronous
                && runs_again(record) =>
        {
            taken_over(record, nonce, "the sweeper")
        }
        // Freed in doubt, and its client has not come back.
        Some(record)
            if !careful
                && record.state == State::Retryable
                && record.note.doubt.is_some()
                && record.is_due(now)
                && record.policy.on_lapse == OnLapse::Resume
                && !is_past_key_window(record, now) =>
        {
            let change = rewrite(record, Expect::Due(record.version), nonce, run_again(record, nonce));
            let detail = format!("attempt {} left a call in doubt; resumed by the sweeper", record.attempt);
            Verdict::Write(with(change, HistoryKind::Resumed, detail), Decision::Run { after: record.point })
        }
        _ => Verdict::Keep(Decision::Ignored),
    }
}

/// The holder went silent and another Attempt goes on after its last recovery point.
pub(super) fn taken_over(record: &Record, nonce: Nonce, by: &str) -> Verdict {
    let mut draft = run_again(record, nonce);
    draft.note.lapses += 1;
    draft.note.last_error = Some(ErrorCode::Lapsed);
    let change = rewrite(record, Expect::Due(record.version), nonce, draft);
    let detail = format!("attempt {} lapsed; taken over by {by}", record.attempt);
    Verdict::Write(with(change, HistoryKind::Takeover, detail), Decision::Run { after: record.point })
}

/// What a lapse makes of the record, by the rule that it was begun with. The due instant is tested again inside the
/// write: a lease that was renewed since is left alone.
pub(super) fn lapse(record: &Record, nonce: Nonce) -> Arc<Change> {
    let mut from = same(record);
    from.note.lapses += 1;
    let expect = Expect::Due(record.version);
    let detail = |fate: &str| format!("attempt {} lapsed: {fate}", record.attempt);
    match record.policy.on_lapse {
        OnLapse::Retry | OnLapse::Resume if runs_again(record) => {
            let change = rewrite(record, expect, nonce, freed(from, ErrorCode::Lapsed));
            with(change, HistoryKind::Lapse, detail("may run again"))
        }
        OnLapse::Fail => {
            let answer = own_answer(Refusal::Abandoned, record.policy.profile);
            let (mut draft, body) = completed(from, &answer);
            draft.flags.dead_letter = true;
            draft.note.last_error = Some(ErrorCode::Lapsed);
            let mut change = rewrite(record, expect, nonce, draft);
            Arc::make_mut(&mut change).bodies.extend(body);
            with(change, HistoryKind::Lapse, detail("failed for good"))
        }
        OnLapse::Unknown | OnLapse::Retry | OnLapse::Resume => {
            let mut draft = unknown(from, ErrorCode::Lapsed);
            // A request that lapses every time will lapse again: a person must look, whatever can be asked.
            draft.flags.dead_letter |= record.policy.on_lapse != OnLapse::Unknown && is_poison(record);
            with(rewrite(record, expect, nonce, draft), HistoryKind::Lapse, detail("outcome unknown"))
        }
    }
}

/// Whether a lapse lets the request run again: by its rule, and unless a call to the outside may be under way that must
/// not be made again blindly.
pub(super) fn runs_again(record: &Record) -> bool {
    matches!(record.policy.on_lapse, OnLapse::Retry | OnLapse::Resume)
        && record.note.calling.is_none()
        && !is_poison(record)
}

/// Whether another run would be one too many.
fn is_poison(record: &Record) -> bool {
    record.note.lapses.saturating_add(1) >= record.policy.max_attempts
}

/// The reaper found the pending deadline passed, and nobody ever ran it.
pub(super) fn never_claimed(record: Option<&Record>, nonce: Nonce, now: Timestamp) -> Verdict {
    match record {
        Some(record) if is_overdue(record, now) => {
            let answer = own_answer(Refusal::NeverStarted, record.policy.profile);
            let (draft, body) = completed(same(record), &answer);
            let mut change = rewrite(record, Expect::Due(record.version), nonce, draft);
            Arc::make_mut(&mut change).bodies.extend(body);
            Verdict::Write(
                with(change, HistoryKind::Settled, "never claimed: stored as 408"),
                Decision::Settled,
            )
        }
        _ => Verdict::Keep(Decision::Ignored),
    }
}

/// The reaper found that an unknown outcome was kept for `unknown_retention`, and nothing could settle it. From here on it
/// is like a completed record past its retention, and its history says so.
pub(super) fn outlived(record: Option<&Record>, nonce: Nonce, now: Timestamp) -> Verdict {
    match record {
        Some(record)
            if record.state == State::Unknown
                && record.flags.dead_letter
                && record.policy.unknown_retention.is_some()
                && !may_be_looked_up(record)
                && record.is_due(now) =>
        {
            let mut draft = same(record);
            draft.state = State::Completed;
            draft.flags = Flags { not_retained: true, ..Flags::default() };
            draft.completed = InstantChange::Now;
            draft.expires_in = Some(Duration::ZERO);
            draft.purge_in = Some(record.policy.tombstone);
            let change = rewrite(record, Expect::Due(record.version), nonce, draft);
            let detail = "its outcome was never known: expired after unknown_retention";
            Verdict::Write(with(change, HistoryKind::Settled, detail), Decision::Settled)
        }
        _ => Verdict::Keep(Decision::Ignored),
    }
}

/// Whether a reconciler has questions left about an unknown record.
pub fn may_be_looked_up(record: &Record) -> bool {
    record.policy.reconcile.as_ref().is_some_and(|rule| record.note.tries < rule.attempts)
}

/// The Effect that owes the answer is done.
pub(super) fn effect_done(record: Option<&Record>, nonce: Nonce, answer: &AttemptResponse) -> Verdict {
    match record {
        Some(record) if record.state == State::Pending && record.flags.owed => {
            settled(record, nonce, answer, HistoryKind::Settled, "answered by its effect")
        }
        // It was dead, and an operator had it made after all.
        Some(record)
            if record.state == State::Unknown && record.note.last_error == Some(ErrorCode::EffectDead) =>
        {
            settled(record, nonce, answer, HistoryKind::Settled, "answered by its effect after all")
        }
        _ => Verdict::Keep(Decision::Ignored),
    }
}

/// The Effect that owes the answer is dead.
pub(super) fn effect_dead(record: Option<&Record>, nonce: Nonce) -> Verdict {
    match record {
        Some(record) if record.state == State::Pending && record.flags.owed => {
            let change = write(record, nonce, unknown(same(record), ErrorCode::EffectDead));
            Verdict::Write(with(change, HistoryKind::Unknown, "its effect is dead"), Decision::Unsettled)
        }
        _ => Verdict::Keep(Decision::Ignored),
    }
}

/// Somebody looked at what became of an unknown record.
pub(super) fn observed(
    record: Option<&Record>,
    nonce: Nonce,
    by: ObservedBy<'_>,
    what: &Observation,
    as_of: Timestamp,
    jitter: f64,
) -> Verdict {
    let Some(record) = record.filter(|record| record.state == State::Unknown) else {
        return Verdict::Keep(Decision::Ignored);
    };
    // Evidence from before the last Attempt says nothing about it.
    if record.ran_at.is_some_and(|ran_at| as_of < ran_at) {
        return Verdict::Keep(Decision::Ignored);
    }
    match (what, by) {
        (Observation::Executed(answer), ObservedBy::Operator(act)) => {
            let detail = format!("resolved as executed ({}), unknown to completed, {act}", answer.status);
            settled(record, nonce, answer, HistoryKind::Operator, &detail)
        }
        (Observation::Executed(answer), ObservedBy::Reconciler) => {
            settled(record, nonce, answer, HistoryKind::Settled, "reconciler: executed")
        }
        (Observation::Executed(answer), ObservedBy::Webhook) => {
            settled(record, nonce, answer, HistoryKind::Settled, "webhook: executed")
        }
        (Observation::NotExecuted, ObservedBy::Operator(act)) => {
            let draft = released(record);
            let detail = format!("resolved as not executed, unknown to {}, {act}", draft.state.name());
            let change = with(write(record, nonce, draft), HistoryKind::Operator, detail);
            Verdict::Write(change, Decision::Settled)
        }
        // The delivery may have come after what it tells of.
        (Observation::NotExecuted, ObservedBy::Webhook) if !is_over(record, as_of) => {
            Verdict::Keep(Decision::Ignored)
        }
        (Observation::NotExecuted, ObservedBy::Webhook) => {
            let change = write(record, nonce, released(record));
            Verdict::Write(with(change, HistoryKind::Settled, "webhook: not executed"), Decision::Settled)
        }
        // Asked too early, or of several who asked at once another was first to say so: one look is one try.
        (_, ObservedBy::Reconciler) if !record.is_due(as_of) => Verdict::Keep(Decision::Ignored),
        // One look is no proof while the delivery may still run.
        (Observation::NotExecuted, ObservedBy::Reconciler) if was_absent(record, as_of) => {
            let change = write(record, nonce, released(record));
            Verdict::Write(with(change, HistoryKind::Settled, "reconciler: not executed"), Decision::Settled)
        }
        (Observation::NotExecuted, ObservedBy::Reconciler) => look_again(record, nonce, Some(as_of), jitter),
        (Observation::Nothing, ObservedBy::Reconciler) => look_again(record, nonce, None, jitter),
        (Observation::Nothing, _) => Verdict::Keep(Decision::Ignored),
    }
}

/// An operator has seen to a dead letter whose outcome is known: it is one no longer, and nothing else changes. What is
/// unknown is resolved instead, and what runs is left alone.
pub(super) fn acknowledge(
    record: Option<&Record>,
    nonce: Nonce,
    act: &OperatorAction,
    now: Timestamp,
) -> Verdict {
    match record {
        Some(record)
            if record.flags.dead_letter && matches!(record.state, State::Completed | State::Retryable) =>
        {
            let mut draft = as_it_is(record, now);
            draft.flags.dead_letter = false;
            let change = change(record.id, Expect::Version(record.version), nonce, draft);
            let detail =
                format!("seen to, a dead letter no longer, {} as before, {act}", record.state.name());
            Verdict::Write(with(change, HistoryKind::Operator, detail), Decision::Settled)
        }
        _ => Verdict::Keep(Decision::Ignored),
    }
}

/// An operator wants the answer gone. What is unknown is resolved, never forgotten; what runs is left alone.
pub(super) fn forget(record: Option<&Record>, nonce: Nonce, act: &OperatorAction, now: Timestamp) -> Verdict {
    match record {
        Some(record) if record.state == State::Completed || record.is_expired(now) => {
            let mut draft = same(record);
            draft.flags.dead_letter = false;
            draft.expires_in = Some(std::time::Duration::ZERO);
            draft.purge_in = Some(std::time::Duration::ZERO);
            let before = match (record.is_expired(now), record.note.status) {
                (true, _) => format!("expired {}", record.state.name()),
                (false, Some(status)) => format!("{} ({status})", record.state.name()),
                (false, None) => record.state.name().to_owned(),
            };
            let change = write(record, nonce, draft);
            let detail = format!("forgotten, {before} to absent, {act}");
            Verdict::Write(with(change, HistoryKind::Operator, detail), Decision::Forgotten)
        }
        _ => Verdict::Keep(Decision::Ignored),
    }
}

fn settled(
    record: &Record,
    nonce: Nonce,
    answer: &AttemptResponse,
    what: HistoryKind,
    detail: &str,
) -> Verdict {
    let (draft, body) = completed(same(record), answer);
    let mut change = write(record, nonce, draft);
    Arc::make_mut(&mut change).bodies.extend(body);
    Verdict::Write(with(change, what, detail), Decision::Settled)
}

fn released(record: &Record) -> Draft {
    let mut draft = same(record);
    // Whatever was begun before, nothing came of it: the next run is as good as the first.
    (draft.note.doubt, draft.note.lapses) = (None, 0);
    freed(draft, record.note.last_error.unwrap_or(ErrorCode::NotSent))
}

/// One more try is used up. After the last, a person must look.
fn look_again(record: &Record, nonce: Nonce, absent: Option<Timestamp>, jitter: f64) -> Verdict {
    let mut draft = same(record);
    draft.note.tries += 1;
    // Where somebody saw nothing at all, an earlier "not there" no longer counts as the first of two.
    draft.note.absent_at = absent.map(|at| record.note.absent_at.unwrap_or(at.as_micros()));
    let rule = record.policy.reconcile.as_ref();
    let left = rule.is_some_and(|rule| draft.note.tries < rule.attempts);
    // Once a person must look, that stays so until the outcome is known.
    draft.flags.dead_letter |= !left;
    draft.due_in = match rule {
        Some(rule) if left && absent.is_some() => Some(spread(rule.settle, jitter)),
        Some(_) if left => Some(spread(backoff(draft.note.tries), jitter)),
        _ => record.policy.unknown_retention,
    };
    let detail =
        format!("try {}: {}", draft.note.tries, if absent.is_some() { "not there" } else { "no word" });
    Verdict::Write(with(write(record, nonce, draft), HistoryKind::ReconcileTry, detail), Decision::Later)
}

/// Whether the last Attempt was over at that instant: until then "not executed" may be followed by its execution.
pub(super) fn is_over(record: &Record, as_of: Timestamp) -> bool {
    record.over_at() <= as_of
}

/// Whether a look at least `settle` before this one already found nothing. When the looks were made counts, not when
/// they were told: of two that looked together, the slower one adds nothing.
fn was_absent(record: &Record, as_of: Timestamp) -> bool {
    match (&record.policy.reconcile, record.note.absent_at) {
        (Some(rule), Some(at)) => Timestamp::from_micros(at).after(rule.settle) <= as_of,
        _ => false,
    }
}

/// An answer of ibid's own, kept like any other.
fn own_answer(refusal: Refusal, profile: Profile) -> AttemptResponse {
    let rendered = refusal.render(profile);
    let response = Response::plain(rendered.status, rendered.content_type, rendered.body);
    AttemptResponse {
        status: rendered.status,
        retry_after: false,
        kept: Some(response.to_bytes()),
        provider_id: None,
        proof: None,
    }
}
