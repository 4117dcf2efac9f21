//! Decides on the events of sweeper, reaper, worker, reconciler, webhook and operator.
//!
//! Each of them writes by compare-and-set on the version that it read. Only these paths, and the late owner itself,
//! leave `unknown`.

use std::sync::Arc;
use std::time::Duration;

use super::{
    AttemptResponse, Decision, Observation, ObservedBy, Verdict, backoff, change, draft_of,
    draft_with_time_left, mark_completed, mark_freed, mark_unknown, request::run_again, rewrite, spread,
    with_history, write,
};
use crate::change::{Change, Draft, Expect, HistoryKind, InstantChange};
use crate::effect::KEY_WINDOW;
use crate::operator_action::OperatorAction;
use crate::policy::{OnLapse, Profile};
use crate::record::{ErrorCode, Flags, Nonce, Record, State};
use crate::refusal::Refusal;
use crate::response::Response;
use crate::time::Timestamp;

/// The states in which the sweeper looks for due records: lapsed leases, and in-doubt calls whose client has not retried.
pub const SWEPT_STATES: [State; 2] = [State::InProgress, State::Retryable];

/// The state in which the deliverer looks for accepted requests.
pub const DELIVERED_STATE: State = State::Pending;

/// The states in which the reaper looks for records that nothing settled in their time: accepted requests that were never claimed,
/// and unknown outcomes.
pub const OVERDUE_STATES: [State; 2] = [State::Pending, State::Unknown];

/// Decides on [`Event::Claim`](super::Event::Claim): a worker claims a pending record.
///
/// A record past its pending deadline does not run any more, because its client knows the deadline.
pub(super) fn claim(record: Option<&Record>, nonce: Nonce, now: Timestamp) -> Verdict {
    match record {
        Some(record) if is_overdue(record, now) => time_out_pending(Some(record), nonce, now),
        Some(record) if record.state == State::Pending && !record.flags.owed && record.is_due(now) => {
            let mut draft = draft_of(record);
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

/// Returns whether the request was accepted and its deadline has passed before any worker claimed it.
fn is_overdue(record: &Record, now: Timestamp) -> bool {
    record.state == State::Pending
        && !record.flags.owed
        && record.attempt == 0
        && record.created_at.after(record.policy.pending_deadline) <= now
}

/// Decides on [`Event::Lapsed`](super::Event::Lapsed): the sweeper found a lapsed lease, or an in-doubt call that no
/// attempt has settled.
pub(super) fn sweep_lapsed(record: Option<&Record>, nonce: Nonce, careful: bool, now: Timestamp) -> Verdict {
    match record {
        Some(record) if record.state == State::InProgress && record.is_due(now) => {
            // After a jump of the store's clock the owner may still be alive, so nothing runs again for one lease.
            if careful && may_run_again(record) {
                return Verdict::Keep(Decision::Wait { overlong: false });
            }
            Verdict::Write(lapse(record, nonce), Decision::Settled)
        }
        Some(record) if is_past_key_window(record, now) => match careful {
            true => Verdict::Keep(Decision::Wait { overlong: false }),
            false => Verdict::Write(mark_key_forgotten(record, nonce), Decision::Settled),
        },
        _ => Verdict::Keep(Decision::Ignored),
    }
}

/// Returns whether the record has an in-doubt call that must not be repeated, because the provider may have forgotten
/// its key.
///
/// The window counts from the first request: the first use of the key is not recorded.
pub(super) fn is_past_key_window(record: &Record, now: Timestamp) -> bool {
    record.state == State::Retryable
        && record.note.doubt.is_some()
        && record.created_at.after(KEY_WINDOW) <= now
}

/// Makes a record unknown whose in-doubt call must not be repeated.
pub(super) fn mark_key_forgotten(record: &Record, nonce: Nonce) -> Arc<Change> {
    let why = record.note.last_error.unwrap_or(ErrorCode::TimedOut);
    let change = write(record, nonce, mark_unknown(draft_of(record), why));
    let detail = format!("attempt {}: a call may have been made, and its key be forgotten", record.attempt);
    with_history(change, HistoryKind::Unknown, detail)
}

/// Decides on [`Event::Resume`](super::Event::Resume): a sweeper that can run the handler takes the record over.
pub(super) fn resume(record: Option<&Record>, nonce: Nonce, careful: bool, now: Timestamp) -> Verdict {
    match record.filter(|record| is_resumable(record, now)) {
        None => Verdict::Keep(Decision::Ignored),
        Some(_) if careful => Verdict::Keep(Decision::Wait { overlong: false }),
        Some(record) if record.state == State::InProgress => take_over(record, nonce, "the sweeper"),
        Some(record) => {
            let change = rewrite(record, Expect::Due(record.version), nonce, run_again(record, nonce));
            let detail = format!("attempt {} left a call in doubt; resumed by the sweeper", record.attempt);
            Verdict::Write(
                with_history(change, HistoryKind::Resumed, detail),
                Decision::Run { after: record.point },
            )
        }
    }
}

/// Returns whether a sweeper that can run the handler may take the record over: its run lapsed, or was released with an in-doubt
/// call and its client has not retried.
///
/// A record that cannot be resumed is settled by [`Event::Lapsed`](super::Event::Lapsed).
pub fn is_resumable(record: &Record, now: Timestamp) -> bool {
    let rest = match record.state {
        State::InProgress => !record.flags.asynchronous && may_run_again(record),
        State::Retryable => record.note.doubt.is_some() && !is_past_key_window(record, now),
        _ => false,
    };
    rest && record.is_due(now) && record.policy.on_lapse == OnLapse::Resume
}

/// Takes over a lapsed record: the next attempt continues after the last recovery point.
pub(super) fn take_over(record: &Record, nonce: Nonce, by: &str) -> Verdict {
    let mut draft = run_again(record, nonce);
    draft.note.lapses += 1;
    draft.note.last_error = Some(ErrorCode::Lapsed);
    let change = rewrite(record, Expect::Due(record.version), nonce, draft);
    let detail = format!("attempt {} lapsed; taken over by {by}", record.attempt);
    Verdict::Write(with_history(change, HistoryKind::Takeover, detail), Decision::Run { after: record.point })
}

/// Ends a lapsed run by the `on_lapse` rule that the record was begun with.
///
/// The store tests the due instant again inside the write, so a lease that was renewed in the meantime is left alone.
pub(super) fn lapse(record: &Record, nonce: Nonce) -> Arc<Change> {
    let mut from = draft_of(record);
    from.note.lapses += 1;
    let expect = Expect::Due(record.version);
    let detail = |result: &str| format!("attempt {} lapsed: {result}", record.attempt);
    match record.policy.on_lapse {
        OnLapse::Retry | OnLapse::Resume if may_run_again(record) => {
            let change = rewrite(record, expect, nonce, mark_freed(from, ErrorCode::Lapsed));
            with_history(change, HistoryKind::Lapse, detail("may run again"))
        }
        OnLapse::Fail => {
            let answer = own_response(Refusal::Abandoned, record.policy.profile);
            let mut draft = mark_completed(from, &answer);
            draft.flags.dead_letter = true;
            draft.note.last_error = Some(ErrorCode::Lapsed);
            let mut change = rewrite(record, expect, nonce, draft);
            Arc::make_mut(&mut change).response = answer.kept;
            with_history(change, HistoryKind::Lapse, detail("failed permanently"))
        }
        OnLapse::Unknown | OnLapse::Retry | OnLapse::Resume => {
            let mut draft = mark_unknown(from, ErrorCode::Lapsed);
            // A request that lapses every time will lapse again: an operator must look, even if a reconciler could ask.
            draft.flags.dead_letter |= record.policy.on_lapse != OnLapse::Unknown && is_poison(record);
            with_history(rewrite(record, expect, nonce, draft), HistoryKind::Lapse, detail("outcome unknown"))
        }
    }
}

/// Returns whether a lapsed request may run again.
///
/// Its `on_lapse` rule must allow it, no external call may be in flight that must not be repeated blindly, and this
/// lapse must not use up `max_attempts`.
pub(super) fn may_run_again(record: &Record) -> bool {
    matches!(record.policy.on_lapse, OnLapse::Retry | OnLapse::Resume)
        && record.note.calling.is_none()
        && !is_poison(record)
}

/// Returns whether this lapse uses up `max_attempts`.
fn is_poison(record: &Record) -> bool {
    record.note.lapses.saturating_add(1) >= record.policy.max_attempts
}

/// Decides on [`Event::NeverClaimed`](super::Event::NeverClaimed): the pending deadline has passed, and no worker ever
/// ran the request.
pub(super) fn time_out_pending(record: Option<&Record>, nonce: Nonce, now: Timestamp) -> Verdict {
    match record {
        Some(record) if is_overdue(record, now) => {
            let answer = own_response(Refusal::NeverStarted, record.policy.profile);
            let draft = mark_completed(draft_of(record), &answer);
            let mut change = rewrite(record, Expect::Due(record.version), nonce, draft);
            Arc::make_mut(&mut change).response = answer.kept;
            Verdict::Write(
                with_history(change, HistoryKind::Settled, "never claimed: stored as 408"),
                Decision::Settled,
            )
        }
        _ => Verdict::Keep(Decision::Ignored),
    }
}

/// Decides on [`Event::Outlived`](super::Event::Outlived): an unknown outcome was kept for `unknown_retention`, and
/// nothing settled it.
///
/// The record becomes like a completed one past its retention. Its history says why.
pub(super) fn expire_unknown(record: Option<&Record>, nonce: Nonce, now: Timestamp) -> Verdict {
    match record {
        Some(record)
            if record.state == State::Unknown
                && record.flags.dead_letter
                && record.policy.unknown_retention.is_some()
                && !may_be_looked_up(record)
                && record.is_due(now) =>
        {
            let mut draft = draft_of(record);
            draft.state = State::Completed;
            draft.flags = Flags { not_retained: true, ..Flags::default() };
            draft.completed = InstantChange::Now;
            draft.expires_in = Some(Duration::ZERO);
            draft.purge_in = Some(record.policy.tombstone);
            let change = rewrite(record, Expect::Due(record.version), nonce, draft);
            let detail = "its outcome was never known: expired after unknown_retention";
            Verdict::Write(with_history(change, HistoryKind::Settled, detail), Decision::Settled)
        }
        _ => Verdict::Keep(Decision::Ignored),
    }
}

/// State of the records that a reconciler looks up, while it [may](may_be_looked_up).
pub const LOOKUP_STATE: State = State::Unknown;

/// Returns whether a reconciler may still look up an unknown record.
pub fn may_be_looked_up(record: &Record) -> bool {
    record.policy.reconcile.as_ref().is_some_and(|rule| record.note.tries < rule.attempts)
}

/// Decides on [`Event::EffectDone`](super::Event::EffectDone): the effect that owes the response is done.
pub(super) fn effect_done(record: Option<&Record>, nonce: Nonce, answer: &AttemptResponse) -> Verdict {
    match record {
        Some(record) if record.state == State::Pending && record.flags.owed => {
            settle(record, nonce, answer, HistoryKind::Settled, "answered by its effect")
        }
        // The effect was dead, and an operator retried it successfully.
        Some(record)
            if record.state == State::Unknown && record.note.last_error == Some(ErrorCode::EffectDead) =>
        {
            settle(record, nonce, answer, HistoryKind::Settled, "answered by its effect after all")
        }
        _ => Verdict::Keep(Decision::Ignored),
    }
}

/// Decides on [`Event::EffectDead`](super::Event::EffectDead): the effect that owes the response is dead.
pub(super) fn effect_dead(record: Option<&Record>, nonce: Nonce) -> Verdict {
    match record {
        Some(record) if record.state == State::Pending && record.flags.owed => {
            let change = write(record, nonce, mark_unknown(draft_of(record), ErrorCode::EffectDead));
            Verdict::Write(
                with_history(change, HistoryKind::Unknown, "its effect is dead"),
                Decision::Unsettled,
            )
        }
        _ => Verdict::Keep(Decision::Ignored),
    }
}

/// Decides on [`Event::Observed`](super::Event::Observed): a reconciler, a webhook or an operator reports the outcome
/// of an unknown record.
pub(super) fn apply_observation(
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
    // Evidence from before the last attempt proves nothing about it.
    if record.ran_at.is_some_and(|ran_at| as_of < ran_at) {
        return Verdict::Keep(Decision::Ignored);
    }
    match (what, by) {
        (Observation::Executed(answer), ObservedBy::Operator(act)) => {
            let detail = format!("resolved as executed ({}), unknown to completed, {act}", answer.status);
            settle(record, nonce, answer, HistoryKind::Operator, &detail)
        }
        (Observation::Executed(answer), ObservedBy::Reconciler) => {
            settle(record, nonce, answer, HistoryKind::Settled, "reconciler: executed")
        }
        (Observation::Executed(answer), ObservedBy::Webhook) => {
            settle(record, nonce, answer, HistoryKind::Settled, "webhook: executed")
        }
        (Observation::NotExecuted, ObservedBy::Operator(act)) => {
            let draft = release(record);
            let detail = format!("resolved as not executed, unknown to {}, {act}", draft.state.name());
            let change = with_history(write(record, nonce, draft), HistoryKind::Operator, detail);
            Verdict::Write(change, Decision::Settled)
        }
        // The request may have been delivered after the instant that the webhook reports.
        (Observation::NotExecuted, ObservedBy::Webhook) if !is_over(record, as_of) => {
            Verdict::Keep(Decision::Ignored)
        }
        (Observation::NotExecuted, ObservedBy::Webhook) => {
            let change = write(record, nonce, release(record));
            Verdict::Write(
                with_history(change, HistoryKind::Settled, "webhook: not executed"),
                Decision::Settled,
            )
        }
        // The lookup was too early, or another reconciler that asked at the same time reported first: one lookup is one
        // try.
        (_, ObservedBy::Reconciler) if !record.is_due(as_of) => Verdict::Keep(Decision::Ignored),
        // One lookup is no proof while the delivery may still run.
        (Observation::NotExecuted, ObservedBy::Reconciler) if was_absent(record, as_of) => {
            let change = write(record, nonce, release(record));
            Verdict::Write(
                with_history(change, HistoryKind::Settled, "reconciler: not executed"),
                Decision::Settled,
            )
        }
        (Observation::NotExecuted, ObservedBy::Reconciler) => look_again(record, nonce, Some(as_of), jitter),
        (Observation::Nothing, ObservedBy::Reconciler) => look_again(record, nonce, None, jitter),
        (Observation::Nothing, _) => Verdict::Keep(Decision::Ignored),
    }
}

/// Decides on [`Event::Acknowledged`](super::Event::Acknowledged): an operator has handled a dead letter whose outcome
/// is known.
///
/// Only the dead-letter flag is cleared. An unknown record has to be resolved instead, and a running one is left alone.
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
            let mut draft = draft_with_time_left(record, now);
            draft.flags.dead_letter = false;
            let change = change(record.id, Expect::Version(record.version), nonce, draft);
            let detail =
                format!("seen to, a dead letter no longer, {} as before, {act}", record.state.name());
            Verdict::Write(with_history(change, HistoryKind::Operator, detail), Decision::Settled)
        }
        _ => Verdict::Keep(Decision::Ignored),
    }
}

/// Decides on [`Event::Forget`](super::Event::Forget): an operator wants the response gone.
///
/// An unknown record has to be resolved instead, and a running one is left alone.
pub(super) fn forget(record: Option<&Record>, nonce: Nonce, act: &OperatorAction, now: Timestamp) -> Verdict {
    match record {
        Some(record) if record.state == State::Completed || record.is_expired(now) => {
            let mut draft = draft_of(record);
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
            Verdict::Write(with_history(change, HistoryKind::Operator, detail), Decision::Forgotten)
        }
        _ => Verdict::Keep(Decision::Ignored),
    }
}

fn settle(
    record: &Record,
    nonce: Nonce,
    answer: &AttemptResponse,
    what: HistoryKind,
    detail: &str,
) -> Verdict {
    let mut change = write(record, nonce, mark_completed(draft_of(record), answer));
    Arc::make_mut(&mut change).response = answer.kept.clone();
    Verdict::Write(with_history(change, what, detail), Decision::Settled)
}

fn release(record: &Record) -> Draft {
    let mut draft = draft_of(record);
    // Nothing was executed by any earlier run, so the next run is as good as the first.
    (draft.note.doubt, draft.note.lapses) = (None, 0);
    mark_freed(draft, record.note.last_error.unwrap_or(ErrorCode::NotSent))
}

/// Uses up one lookup. After the last one an operator must look.
fn look_again(record: &Record, nonce: Nonce, absent: Option<Timestamp>, jitter: f64) -> Verdict {
    let mut draft = draft_of(record);
    draft.note.tries += 1;
    // After a lookup without a result, an earlier "not there" no longer counts as the first of two.
    draft.note.absent_at = absent.map(|at| record.note.absent_at.unwrap_or(at.as_micros()));
    let rule = record.policy.reconcile.as_ref();
    let left = rule.is_some_and(|rule| draft.note.tries < rule.attempts);
    // A dead letter stays one until its outcome is known.
    draft.flags.dead_letter |= !left;
    draft.due_in = match rule {
        Some(rule) if left && absent.is_some() => Some(spread(rule.settle, jitter)),
        Some(_) if left => Some(spread(backoff(draft.note.tries), jitter)),
        _ => record.policy.unknown_retention,
    };
    let detail =
        format!("try {}: {}", draft.note.tries, if absent.is_some() { "not there" } else { "no word" });
    Verdict::Write(
        with_history(write(record, nonce, draft), HistoryKind::ReconcileTry, detail),
        Decision::Later,
    )
}

/// Returns whether the last attempt was over at `as_of`. Before that, "not executed" may still be followed by its
/// execution.
pub(super) fn is_over(record: &Record, as_of: Timestamp) -> bool {
    record.over_at() <= as_of
}

/// Returns whether a lookup at least `settle` before `as_of` already found nothing.
///
/// The instants of the lookups count, not of their reports: of two lookups at the same time, the slower report adds
/// nothing.
fn was_absent(record: &Record, as_of: Timestamp) -> bool {
    match (&record.policy.reconcile, record.note.absent_at) {
        (Some(rule), Some(at)) => Timestamp::from_micros(at).after(rule.settle) <= as_of,
        _ => false,
    }
}

/// Builds a response that ibid itself gives. It is stored like any other.
fn own_response(refusal: Refusal, profile: Profile) -> AttemptResponse {
    let rendered = refusal.render(profile);
    let response = Response::plain(rendered.status, rendered.content_type, rendered.body);
    AttemptResponse {
        status: rendered.status,
        retry_after: false,
        kept: Some(Arc::new(response)),
        provider_id: None,
        proof: None,
    }
}
