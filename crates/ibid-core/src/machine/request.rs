//! A request meets what is stored under its key. Read from the top: the order of the questions is the contract's.

use std::sync::Arc;
use std::time::Duration;

use super::{
    BeginRequest, Decision, Intent, StatusView, Verdict, as_it_is, change, describe, freed, kept_briefly,
    same, upkeep, write,
};
use crate::change::{BodyKind, Change, Draft, Expect, InstantChange, StoredBody};
use crate::policy::{AfterExpiry, OnLapse};
use crate::record::{ErrorCode, Flags, Nonce, Record, RecordDetails, State};
use crate::time::Timestamp;

/// A client sent a request.
pub(super) fn decide(record: Option<&Record>, ask: &BeginRequest, role: Intent, now: Timestamp) -> Verdict {
    let Some(record) = record else {
        return begin(ask, role, Expect::Absent);
    };
    // Expiry comes before every comparison.
    if is_as_absent(record, now) {
        return begin(ask, role, Expect::Version(record.version));
    }
    match describe(record, now) {
        StatusView::Expired => Verdict::Keep(Decision::Expired),
        // In every state, so that 422 wins over 409 and over `unknown`.
        _ if !ask.is_what_was_asked(record) => Verdict::Keep(Decision::Mismatch),
        StatusView::NotRetained => Verdict::Keep(Decision::NotRetained),
        StatusView::Stored => Verdict::Keep(Decision::Replay),
        StatusView::Unknown { settles_by } => Verdict::Keep(Decision::Unknown { until: settles_by }),
        // Another run could not settle it, and nothing else will.
        StatusView::Retryable if upkeep::is_past_key_window(record, now) => {
            written(record, upkeep::forgotten(record, ask.nonce), now)
        }
        // Nothing was executed, and no request holds the key. The next request may be another one and must not inherit
        // the downstream keys of the first: a new generation.
        StatusView::Retryable if record.fingerprint.is_none() => {
            begin(ask, role, Expect::Version(record.version))
        }
        StatusView::Retryable => match role {
            Intent::MayRun | Intent::MayRunNoTakeover if ask.later.is_some() => {
                let mut draft = same(record);
                draft.flags = Flags::default();
                let mut change = write(record, ask.nonce, accepted(draft));
                Arc::make_mut(&mut change).bodies.extend(request_of(ask));
                Verdict::Write(change, Decision::Accepted)
            }
            Intent::MayRun | Intent::MayRunNoTakeover => Verdict::Write(
                change(record.id, Expect::Version(record.version), ask.nonce, run_again(record, ask.nonce)),
                Decision::Run { after: record.point },
            ),
            Intent::ReadOnly => Verdict::Keep(Decision::Free),
        },
        StatusView::Open if record.state == State::Pending => {
            Verdict::Keep(Decision::Wait { overlong: false })
        }
        StatusView::Open if record.is_due(now) => lapsed(record, ask, role, now),
        StatusView::Open => {
            let left = record.due_at.map(|due| due.since(now));
            Verdict::Keep(Decision::Wait { overlong: left.is_some_and(|left| left > record.policy.lease) })
        }
    }
}

/// A begin whose reply never came was given up, and the client told that nothing was executed. Its write may still
/// be on the way, so something must stand in its place that makes it lose.
pub(super) fn gave_up(record: Option<&Record>, ask: &BeginRequest, nonce: Nonce, now: Timestamp) -> Verdict {
    let (gone, expect) = match record {
        None => (true, Expect::Absent),
        Some(record) => (is_as_absent(record, now), Expect::Version(record.version)),
    };
    match record {
        _ if gone => {
            // No fingerprint: nothing was accepted, so nobody's request holds the key.
            let draft =
                Draft { birth: nonce, fingerprint: None, attempt: 0, ran: InstantChange::Clear, ..new(ask) };
            let draft = freed(draft, ErrorCode::GivenUp);
            let mut change = change(ask.id, expect, nonce, draft);
            Arc::make_mut(&mut change).clears_bodies = expect != Expect::Absent;
            Verdict::Write(change, Decision::Freed)
        }
        // It had come. Nobody ran it, also if the lease has lapsed since.
        Some(record)
            if record.owner == ask.nonce && matches!(record.state, State::InProgress | State::Unknown) =>
        {
            Verdict::Write(write(record, nonce, freed(same(record), ErrorCode::GivenUp)), Decision::Freed)
        }
        // It was accepted, and nobody has taken it since: nobody will.
        Some(record) if record.state == State::Pending && record.version.nonce == ask.nonce => {
            let mut draft = freed(Draft { flags: Flags::default(), ..same(record) }, ErrorCode::GivenUp);
            draft.fingerprint = record.fingerprint.filter(|_| record.attempt > 0);
            Verdict::Write(write(record, nonce, draft), Decision::Freed)
        }
        // Still as it was before the write: a new Version is enough to make that lose. A tombstone stays one.
        Some(record) if record.state == State::Retryable && record.is_expired(now) => {
            Verdict::Write(change(record.id, expect, nonce, as_it_is(record, now)), Decision::Freed)
        }
        Some(record) if record.state == State::Retryable => {
            let why = record.note.last_error.unwrap_or(ErrorCode::GivenUp);
            let mut draft = freed(same(record), why);
            draft.flags.dead_letter = record.flags.dead_letter;
            if why == ErrorCode::Refused && record.fingerprint.is_none() {
                kept_briefly(&mut draft);
            }
            Verdict::Write(change(record.id, expect, nonce, draft), Decision::Freed)
        }
        // A takeover may be on its way. The record stays as it is, lapsed and its holder's, under a new Version.
        Some(record)
            if record.state == State::InProgress
                && record.is_due(now)
                && matches!(record.policy.on_lapse, OnLapse::Retry | OnLapse::Resume) =>
        {
            let draft = Draft { due_in: Some(Duration::ZERO), ..same(record) };
            Verdict::Write(change(record.id, Expect::Due(record.version), nonce, draft), Decision::Freed)
        }
        _ => Verdict::Keep(Decision::Ignored),
    }
}

/// The record holds its key no longer, and the next request reserves the key under another id. A write at the Version that
/// was read when it still held the key would run the request a second time, so the record gets a new one.
pub(super) fn seal(record: Option<&Record>, nonce: Nonce, now: Timestamp) -> Verdict {
    match record {
        None => Verdict::Keep(Decision::Freed),
        Some(record) if holds_key(record, now) => Verdict::Keep(Decision::Ignored),
        Some(record) => {
            let expect = Expect::Version(record.version);
            Verdict::Write(change(record.id, expect, nonce, as_it_is(record, now)), Decision::Freed)
        }
    }
}

/// Whether a request with the record's key is decided on this record. If not, it begins a new generation: the record's time
/// is over, or nothing was done and no request holds the key.
pub fn holds_key(record: &Record, now: Timestamp) -> bool {
    let is_unclaimed = record.state == State::Retryable
        && record.fingerprint.is_none()
        && !upkeep::is_past_key_window(record, now);
    !is_as_absent(record, now) && !is_unclaimed
}

/// Whether the record's time is over and a new request may begin: an expired record is as absent, whether or not the
/// reaper has come, unless its tombstone stands to refuse by.
fn is_as_absent(record: &Record, now: Timestamp) -> bool {
    match record.policy.after_expiry {
        AfterExpiry::Refuse => record.is_purgeable(now),
        AfterExpiry::Execute => record.is_expired(now),
    }
}

/// The first request of a generation.
fn begin(ask: &BeginRequest, role: Intent, expect: Expect) -> Verdict {
    if role == Intent::ReadOnly {
        // What it waited for is gone; its own retry may begin anew.
        return Verdict::Keep(Decision::Free);
    }
    let (draft, decision) = match ask.later {
        Some(_) => {
            (accepted(Draft { attempt: 0, ran: InstantChange::Clear, ..new(ask) }), Decision::Accepted)
        }
        None => (new(ask), Decision::Run { after: 0 }),
    };
    let mut begun = change(ask.id, expect, ask.nonce, draft);
    let Change { clears_bodies, bodies, .. } = Arc::make_mut(&mut begun);
    *clears_bodies = expect != Expect::Absent;
    bodies.extend(request_of(ask));
    Verdict::Write(begun, decision)
}

/// It waits for a worker, which may come at once.
fn accepted(mut draft: Draft) -> Draft {
    draft.state = State::Pending;
    draft.flags.asynchronous = true;
    draft.due_in = Some(Duration::ZERO);
    draft
}

/// The request, for whoever runs it without its client.
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

/// The next Attempt at the same request, under the rules that the record was begun with.
pub(super) fn run_again(record: &Record, owner: Nonce) -> Draft {
    let mut draft = same(record);
    draft.state = State::InProgress;
    draft.owner = owner;
    draft.attempt = record.attempt.saturating_add(1);
    draft.flags = Flags { asynchronous: record.flags.asynchronous, ..Flags::default() };
    draft.ran = InstantChange::Now;
    draft.due_in = Some(record.policy.lease);
    draft
}

/// The holder went silent, and a request is the first to notice.
fn lapsed(record: &Record, ask: &BeginRequest, role: Intent, now: Timestamp) -> Verdict {
    let runs_again = upkeep::runs_again(record);
    match role {
        // After a jump of the store's clock a lapse may be none: nobody runs for one lease, at once or by a worker.
        Intent::MayRunNoTakeover if runs_again => Verdict::Keep(Decision::Wait { overlong: false }),
        // It does not know whether the clock jumped, and gains nothing by a release: it would not run.
        Intent::ReadOnly if runs_again && record.flags.asynchronous => {
            Verdict::Keep(Decision::Wait { overlong: false })
        }
        Intent::ReadOnly if runs_again => Verdict::Keep(Decision::Free),
        Intent::MayRun if runs_again && !record.flags.asynchronous => {
            upkeep::taken_over(record, ask.nonce, "the next request")
        }
        _ => written(record, upkeep::lapse(record, ask.nonce), now),
    }
}

/// What a request gets that was the first to notice that a record's run is over.
fn written(record: &Record, change: Arc<Change>, now: Timestamp) -> Verdict {
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
