//! Decides what a client's request may do, given the record that is stored under its key.
//!
//! Read from the top: the order of the checks is part of the contract.

use std::sync::Arc;
use std::time::Duration;

use super::{
    BeginRequest, ClientView, Decision, Intent, Verdict, change, describe, draft_of, draft_with_time_left,
    mark_freed, shorten_retention, upkeep, write,
};
use crate::change::{BodyKind, Change, Draft, Expect, InstantChange, StoredBody};
use crate::policy::{AfterExpiry, OnLapse};
use crate::record::{ErrorCode, Flags, Nonce, Record, RecordDetails, State};
use crate::time::Timestamp;

/// Decides on [`Event::Request`](super::Event::Request): a client sent a request.
pub(super) fn decide(record: Option<&Record>, ask: &BeginRequest, role: Intent, now: Timestamp) -> Verdict {
    let Some(record) = record else {
        return begin(ask, role, Expect::Absent);
    };
    // Expiry comes before every comparison.
    if counts_as_absent(record, now) {
        return begin(ask, role, Expect::Version(record.version));
    }
    match describe(record, now) {
        ClientView::Expired => Verdict::Keep(Decision::Expired),
        // In every state, so that 422 wins over 409 and over `unknown`.
        _ if !ask.matches_request_of(record) => Verdict::Keep(Decision::Mismatch),
        ClientView::NotRetained => Verdict::Keep(Decision::NotRetained),
        ClientView::Stored => Verdict::Keep(Decision::Replay),
        ClientView::Unknown { settles_by } => Verdict::Keep(Decision::Unknown { until: settles_by }),
        // The provider may have forgotten the key of the in-doubt call, so another run could not settle it.
        ClientView::Retryable if upkeep::is_past_key_window(record, now) => {
            end_run(record, upkeep::mark_key_forgotten(record, ask.nonce), now)
        }
        // Nothing was executed, and no request holds the key. The next request may be a different one and must not
        // inherit the downstream keys of the first, so it begins a new generation.
        ClientView::Retryable if record.fingerprint.is_none() => {
            begin(ask, role, Expect::Version(record.version))
        }
        ClientView::Retryable => match role {
            Intent::MayRun | Intent::MayRunNoTakeover if ask.later.is_some() => {
                let mut draft = draft_of(record);
                draft.flags = Flags::default();
                let mut change = write(record, ask.nonce, mark_accepted(draft));
                Arc::make_mut(&mut change).bodies.extend(request_of(ask));
                Verdict::Write(change, Decision::Accepted)
            }
            Intent::MayRun | Intent::MayRunNoTakeover => Verdict::Write(
                change(record.id, Expect::Version(record.version), ask.nonce, run_again(record, ask.nonce)),
                Decision::Run { after: record.point },
            ),
            Intent::ReadOnly => Verdict::Keep(Decision::Free),
        },
        ClientView::Open if record.state == State::Pending => {
            Verdict::Keep(Decision::Wait { overlong: false })
        }
        ClientView::Open if record.is_due(now) => decide_lapsed(record, ask, role, now),
        ClientView::Open => {
            let left = record.due_at.map(|due| due.since(now));
            Verdict::Keep(Decision::Wait { overlong: left.is_some_and(|left| left > record.policy.lease) })
        }
    }
}

/// Decides on [`Event::GaveUp`](super::Event::GaveUp): the store did not reply to a begin in time, and the client got
/// 503, which means that nothing was executed.
///
/// The begin's write may still be in flight. This write changes what that one expects to find, so that it loses.
pub(super) fn decide_gave_up(
    record: Option<&Record>,
    ask: &BeginRequest,
    nonce: Nonce,
    now: Timestamp,
) -> Verdict {
    let (gone, expect) = match record {
        None => (true, Expect::Absent),
        Some(record) => (counts_as_absent(record, now), Expect::Version(record.version)),
    };
    match record {
        _ if gone => {
            // No fingerprint: nothing was accepted, so no request holds the key.
            let draft =
                Draft { birth: nonce, fingerprint: None, attempt: 0, ran: InstantChange::Clear, ..new(ask) };
            let draft = mark_freed(draft, ErrorCode::GivenUp);
            let mut change = change(ask.id, expect, nonce, draft);
            Arc::make_mut(&mut change).clears_bodies = expect != Expect::Absent;
            Verdict::Write(change, Decision::Freed)
        }
        // The begin was committed, but its reply was lost. No attempt ran it, even if the lease has lapsed since.
        Some(record)
            if record.owner == ask.nonce && matches!(record.state, State::InProgress | State::Unknown) =>
        {
            Verdict::Write(
                write(record, nonce, mark_freed(draft_of(record), ErrorCode::GivenUp)),
                Decision::Freed,
            )
        }
        // The request was accepted, and no worker has claimed it. After this write none will.
        Some(record) if record.state == State::Pending && record.version.nonce == ask.nonce => {
            let mut draft =
                mark_freed(Draft { flags: Flags::default(), ..draft_of(record) }, ErrorCode::GivenUp);
            draft.fingerprint = record.fingerprint.filter(|_| record.attempt > 0);
            Verdict::Write(write(record, nonce, draft), Decision::Freed)
        }
        // The begin has not arrived: a new version is enough to make it lose. A tombstone stays a tombstone.
        Some(record) if record.state == State::Retryable && record.is_expired(now) => Verdict::Write(
            change(record.id, expect, nonce, draft_with_time_left(record, now)),
            Decision::Freed,
        ),
        Some(record) if record.state == State::Retryable => {
            let why = record.note.last_error.unwrap_or(ErrorCode::GivenUp);
            let mut draft = mark_freed(draft_of(record), why);
            draft.flags.dead_letter = record.flags.dead_letter;
            if why == ErrorCode::Refused && record.fingerprint.is_none() {
                shorten_retention(&mut draft);
            }
            Verdict::Write(change(record.id, expect, nonce, draft), Decision::Freed)
        }
        // A takeover may be in flight. The record stays lapsed and keeps its owner, under a new version.
        Some(record)
            if record.state == State::InProgress
                && record.is_due(now)
                && matches!(record.policy.on_lapse, OnLapse::Retry | OnLapse::Resume) =>
        {
            let draft = Draft { due_in: Some(Duration::ZERO), ..draft_of(record) };
            Verdict::Write(change(record.id, Expect::Due(record.version), nonce, draft), Decision::Freed)
        }
        _ => Verdict::Keep(Decision::Ignored),
    }
}

/// Decides on [`Event::Seal`](super::Event::Seal): gives a record that no longer holds its key a new version.
///
/// The next request reserves the key under another id. A write decided on the version from when the record still held
/// the key would run the request a second time; the new version makes it lose.
pub(super) fn seal(record: Option<&Record>, nonce: Nonce, now: Timestamp) -> Verdict {
    match record {
        None => Verdict::Keep(Decision::Freed),
        Some(record) if holds_key(record, now) => Verdict::Keep(Decision::Ignored),
        Some(record) => {
            let expect = Expect::Version(record.version);
            Verdict::Write(
                change(record.id, expect, nonce, draft_with_time_left(record, now)),
                Decision::Freed,
            )
        }
    }
}

/// Returns whether a request with the record's key is decided on this record.
///
/// If not, the request begins a new generation: the record is expired, or nothing was executed and no request holds the
/// key.
pub fn holds_key(record: &Record, now: Timestamp) -> bool {
    let is_unclaimed = record.state == State::Retryable
        && record.fingerprint.is_none()
        && !upkeep::is_past_key_window(record, now);
    !counts_as_absent(record, now) && !is_unclaimed
}

/// Returns whether a new request treats the record as absent.
///
/// An expired record counts as absent even if the reaper has not removed it yet. With `after_expiry = "refuse"` its
/// tombstone refuses requests until it is purged.
fn counts_as_absent(record: &Record, now: Timestamp) -> bool {
    match record.policy.after_expiry {
        AfterExpiry::Refuse => record.is_purgeable(now),
        AfterExpiry::Execute => record.is_expired(now),
    }
}

/// Decides on the first request of a generation.
fn begin(ask: &BeginRequest, role: Intent, expect: Expect) -> Verdict {
    if role == Intent::ReadOnly {
        // The record that it waited for is gone. Its client's next retry may begin again.
        return Verdict::Keep(Decision::Free);
    }
    let (draft, decision) = match ask.later {
        Some(_) => {
            (mark_accepted(Draft { attempt: 0, ran: InstantChange::Clear, ..new(ask) }), Decision::Accepted)
        }
        None => (new(ask), Decision::Run { after: 0 }),
    };
    let mut change = change(ask.id, expect, ask.nonce, draft);
    let Change { clears_bodies, bodies, .. } = Arc::make_mut(&mut change);
    *clears_bodies = expect != Expect::Absent;
    bodies.extend(request_of(ask));
    Verdict::Write(change, decision)
}

/// Turns `draft` into an accepted request that a worker may claim at once.
fn mark_accepted(mut draft: Draft) -> Draft {
    draft.state = State::Pending;
    draft.flags.asynchronous = true;
    draft.due_in = Some(Duration::ZERO);
    draft
}

/// Returns the request as a body to store, for a run without its client.
fn request_of(ask: &BeginRequest) -> Option<StoredBody> {
    let data = ask.later.as_ref().or(ask.request.as_ref())?.clone();
    Some(StoredBody { kind: BodyKind::Request, data })
}

fn new(ask: &BeginRequest) -> Draft {
    Draft {
        identity: ask.identity.clone(),
        birth: ask.nonce,
        owner: ask.nonce,
        attempt: 1,
        state: State::InProgress,
        flags: Flags::default(),
        fingerprint: Some(ask.fingerprint),
        policy: ask.policy.clone(),
        point: 0,
        created: InstantChange::Now,
        ran: InstantChange::Now,
        completed: InstantChange::Clear,
        due_in: Some(ask.policy.lease),
        expires_in: None,
        purge_in: None,
        note: RecordDetails { trace: ask.trace.clone(), ..RecordDetails::default() },
    }
}

/// Returns the draft of the next attempt at the same request, under the policy that the record was begun with.
pub(super) fn run_again(record: &Record, owner: Nonce) -> Draft {
    let mut draft = draft_of(record);
    draft.state = State::InProgress;
    draft.owner = owner;
    draft.attempt = record.attempt.saturating_add(1);
    draft.flags = Flags { asynchronous: record.flags.asynchronous, ..Flags::default() };
    draft.ran = InstantChange::Now;
    draft.due_in = Some(record.policy.lease);
    draft
}

/// Decides on a request that finds the record's lease lapsed.
fn decide_lapsed(record: &Record, ask: &BeginRequest, role: Intent, now: Timestamp) -> Verdict {
    let runs_again = upkeep::may_run_again(record);
    match role {
        // After a jump of the store's clock the owner may still be alive. So for one lease neither this request nor a
        // worker runs it again.
        Intent::MayRunNoTakeover if runs_again => Verdict::Keep(Decision::Wait { overlong: false }),
        // A waiter does not know whether the clock jumped, and it gains nothing from a release, because it would not
        // run.
        Intent::ReadOnly if runs_again && record.flags.asynchronous => {
            Verdict::Keep(Decision::Wait { overlong: false })
        }
        Intent::ReadOnly if runs_again => Verdict::Keep(Decision::Free),
        Intent::MayRun if runs_again && !record.flags.asynchronous => {
            upkeep::take_over(record, ask.nonce, "the next request")
        }
        _ => end_run(record, upkeep::lapse(record, ask.nonce), now),
    }
}

/// Returns the verdict for a request that ends a record's run by `change`.
fn end_run(record: &Record, change: Arc<Change>, now: Timestamp) -> Verdict {
    let draft = change.draft.as_ref().expect("the end of a run is written to the record");
    let decision = match draft.state {
        State::Completed => Decision::Replay,
        State::Unknown => {
            let next_look = draft.due_in.filter(|_| !draft.flags.dead_letter).map(|due_in| now.after(due_in));
            let late = || Some(record.over_at()).filter(|over_at| *over_at > now);
            Decision::Unknown { until: next_look.or_else(late) }
        }
        State::Pending => Decision::Wait { overlong: false },
        State::Retryable | State::InProgress => Decision::Free,
    };
    Verdict::Write(change, decision)
}
