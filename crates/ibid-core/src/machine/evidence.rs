//! What evidence from outside does to a record: it settles what is unknown, and changes nothing else.

use std::sync::Arc;

use super::{Answer, Decision, Finder, Found, Verdict, settle};
use crate::change::{Change, Expect, Happened, History};
use crate::evidence::Kept;
use crate::record::{Nonce, Record, State};

/// What evidence means for a record, or an Effect, as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bearing {
    /// It is unknown, and this settles it.
    Settles,
    /// It may become unknown, and then this settles it.
    Early,
    /// It says "not executed" of an instant at which it could still be executed: it never settles anything.
    Premature,
    /// It speaks of an earlier Attempt, and never settles this one.
    Stale,
    /// The outcome is known already, and this says nothing else.
    Known,
    /// The outcome is known already, and this says something else: a person should hear of it.
    Contradicts,
}

/// What the evidence means for the record.
pub fn bearing(record: Option<&Record>, kept: &Kept) -> Bearing {
    let frees = kept.evidence.what == Found::NotExecuted;
    let Some(record) = record else { return of_open(frees) };
    // Two tests, for a store's clock may be set back: an Attempt that began after the arrival is another owner.
    let is_other = kept.evidence.owner.is_some_and(|owner| owner != record.owner);
    if is_other || record.ran_at.is_some_and(|ran_at| kept.as_of < ran_at) {
        return Bearing::Stale;
    }
    match record.state {
        State::Unknown if frees && !settle::is_over(record, kept.as_of) => Bearing::Premature,
        State::Unknown => Bearing::Settles,
        // It may be run again, which says nothing of what was done.
        State::Pending | State::Retryable if record.note.doubt.is_some() => of_open(frees),
        // What waits for its next run is what `retryable` is to others.
        State::Pending if record.attempt > 0 && !record.flags.owed => of_free(kept),
        State::InProgress | State::Pending => of_open(frees),
        State::Completed if contradicts(record, &kept.evidence.what) => Bearing::Contradicts,
        State::Completed => Bearing::Known,
        State::Retryable => of_free(kept),
    }
}

/// However long it has run: what it was not seen to do, it may be about to do.
fn of_open(frees: bool) -> Bearing {
    if frees { Bearing::Premature } else { Bearing::Early }
}

fn of_free(kept: &Kept) -> Bearing {
    match kept.evidence.what {
        Found::Executed(_) => Bearing::Contradicts,
        Found::NotExecuted | Found::Nothing => Bearing::Known,
    }
}

/// Somebody outside said what became of the record.
pub(super) fn told(record: Option<&Record>, nonce: Nonce, kept: &Kept) -> Verdict {
    match (bearing(record, kept), record) {
        (Bearing::Settles, Some(record)) => {
            let what = &kept.evidence.what;
            match settle::found(Some(record), nonce, Finder::Webhook, what, kept.as_of, 0.0) {
                Verdict::Write(mut change, decision) => {
                    let told = Arc::make_mut(&mut change);
                    told.history.iter_mut().for_each(|line| named(line, kept));
                    // Invariant: the event is used up by the very commit that it led to.
                    told.uses = Some(kept.evidence.name.clone());
                    Verdict::Write(change, decision)
                }
                nothing => nothing,
            }
        }
        (Bearing::Contradicts, Some(record)) => contradiction(record, nonce, kept),
        (Bearing::Early, _) => Verdict::Keep(Decision::Later),
        _ => Verdict::Keep(Decision::Ignored),
    }
}

/// Says in the history which event it was.
fn named(line: &mut History, kept: &Kept) {
    let name = &kept.evidence.name;
    line.detail = format!("{} (event `{}` of `{}`)", line.detail, name.event, name.source);
}

/// What is stored stays as it is: an answer never changes, and what is free may be run by somebody right now. So only
/// the history grows.
fn contradiction(record: &Record, nonce: Nonce, kept: &Kept) -> Verdict {
    let says = match &kept.evidence.what {
        Found::Executed(answer) => format!("executed with {}", answer.status),
        Found::NotExecuted | Found::Nothing => "not executed".to_owned(),
    };
    let detail = format!("webhook: {says}, although it is {}", record.state.name());
    let mut line = History { what: Happened::LateAnswer, detail };
    named(&mut line, kept);
    let change = Change {
        id: record.id,
        expect: Expect::Version(record.version),
        nonce,
        draft: None,
        clears_bodies: false,
        bodies: Vec::new(),
        history: vec![line],
        uses: None,
    };
    Verdict::Write(Arc::new(change), Decision::Superseded)
}

/// Whether a stored answer and the evidence can't both be true.
fn contradicts(record: &Record, what: &Found) -> bool {
    let failed = |status: u16| status >= 400;
    match (what, record.note.status) {
        (Found::Executed(Answer { status, .. }), Some(stored)) => failed(stored) != failed(*status),
        // A stored failure may well stand for something that was not executed.
        (Found::NotExecuted, Some(stored)) => !failed(stored),
        _ => false,
    }
}
