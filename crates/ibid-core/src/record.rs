//! All that is kept for one Scope and Key. Read-only here: only `machine` writes a State.

use std::sync::Arc;

use minicbor::{Decode, Encode};

use crate::fingerprint::Fingerprint;
use crate::policy::Policy;
use crate::scope::{Identity, RecordId};
use crate::time::Timestamp;

/// A number drawn at random by a writer before it first sends its write. It recognises its own commit by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nonce(pub u64);

/// Names one write of a Record: the fence.
///
/// The counter orders writes; the nonce makes a Version unrepeatable, even after removal, restore or failover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    /// How many writes the row has seen.
    pub count: u32,
    /// Who wrote last.
    pub nonce: Nonce,
}

/// Where a Record stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum State {
    /// Accepted, to be run by a worker; or its answer is owed by an Effect.
    Pending = 1,
    /// An Attempt holds the lease.
    InProgress = 2,
    /// The answer is final.
    Completed = 3,
    /// The same request may run again: proven not executed, or what it may have done outside can be done again under the
    /// same key (`RecordDetails::doubt`).
    Retryable = 4,
    /// Nobody knows whether it was executed.
    Unknown = 5,
}

impl State {
    /// Every state, in the order of its codes.
    pub const ALL: [State; 5] =
        [State::Pending, State::InProgress, State::Completed, State::Retryable, State::Unknown];

    /// The word for each state, in the order of [`ALL`](Self::ALL).
    pub const NAMES: [&'static str; 5] = ["pending", "in_progress", "completed", "retryable", "unknown"];

    /// The code that stores keep.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The state with this code.
    pub fn from_code(code: u8) -> Option<State> {
        State::ALL.into_iter().find(|state| state.code() == code)
    }

    /// The word for it, as in the contract.
    pub fn name(self) -> &'static str {
        State::NAMES[self as usize - 1]
    }

    /// The state with this name.
    pub fn from_name(name: &str) -> Option<State> {
        State::ALL.into_iter().find(|state| state.name() == name)
    }
}

/// What a Record carries besides its State.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// An operator must look at it. Of an unknown outcome this is true only once its last Attempt's time is over:
    /// [`Record::is_dead_letter`].
    pub dead_letter: bool,
    /// `pending` because an Effect owes the answer.
    pub owed: bool,
    /// Accepted to be run without its client: what was not executed goes back to `pending`.
    pub asynchronous: bool,
    /// `completed`, but the answer was too large, a stream or an upgrade, and is not kept.
    pub not_retained: bool,
}

impl Flags {
    /// The bit of a dead letter, for a store that looks for it.
    pub const DEAD_LETTER: u8 = 1;

    /// The bits that stores keep.
    pub fn bits(self) -> u8 {
        u8::from(self.dead_letter)
            | u8::from(self.owed) << 1
            | u8::from(self.asynchronous) << 2
            | u8::from(self.not_retained) << 3
    }

    /// The flags of these bits; unknown ones are dropped.
    pub fn from_bits(bits: u8) -> Flags {
        Flags {
            dead_letter: bits & Flags::DEAD_LETTER != 0,
            owed: bits & 2 != 0,
            asynchronous: bits & 4 != 0,
            not_retained: bits & 8 != 0,
        }
    }
}

/// The last Phase committed; zero before the first.
pub type RecoveryPoint = u16;

/// The small things beside a Record that no query asks for, kept as one column.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct RecordDetails {
    /// The stored answer's status, so that a list need not open the body.
    #[n(0)]
    pub status: Option<u16>,
    /// Why the last Attempt did not complete.
    #[n(1)]
    pub last_error: Option<ErrorCode>,
    /// The provider's own id of what was done.
    #[n(2)]
    pub provider_id: Option<String>,
    /// How often the record lapsed, since anybody found last that nothing was executed.
    #[n(3)]
    pub lapses: u32,
    /// How often a reconciler has asked.
    #[n(4)]
    pub tries: u32,
    /// When a reconciler first saw that nothing was executed, in µs of the store's clock.
    #[n(5)]
    pub absent_at: Option<i64>,
    /// The trace of the first execution, as a W3C `traceparent`.
    #[n(6)]
    pub trace: Option<String>,
    /// A digest of the names of the Phases committed, in order, so that a redeploy which reordered them is refused.
    #[n(7)]
    pub phases: Option<u64>,
    /// The Phase whose call to the outside may be under way and must not be made again blindly.
    #[n(8)]
    pub calling: Option<RecoveryPoint>,
    /// The Phase whose call to the outside may have been made, and may be made again under its key, or be asked about.
    /// Until it is recorded the generation does not end: the next one would call under another key.
    #[n(9)]
    pub doubt: Option<RecoveryPoint>,
    /// A digest of the names of the Phases up to that one: another call in its place would hide it.
    #[n(10)]
    pub doubted: Option<u64>,
    /// The status of the answer that proved nothing, while the outcome is unknown because of it.
    #[n(11)]
    pub unproven: Option<u16>,
}

impl RecordDetails {
    /// The id of the first execution's trace.
    pub fn trace_id(&self) -> Option<&str> {
        // Older records hold the id alone.
        self.trace.as_deref().map(|trace| trace.split('-').nth(1).unwrap_or(trace))
    }

    /// The bytes that a store keeps.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(NOTE_BYTES);
        // Writing into a Vec has no way to fail.
        minicbor::encode(self, &mut bytes).expect("a Vec takes every byte");
        bytes
    }

    /// The note in these bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<RecordDetails> {
        minicbor::decode(bytes).ok()
    }
}

/// Why an Attempt did not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum ErrorCode {
    /// The lease ran out.
    #[n(0)]
    Lapsed,
    /// No answer in time.
    #[n(1)]
    TimedOut,
    /// The connection broke, or the answer was cut.
    #[n(2)]
    Broken,
    /// The answer proves nothing (5xx).
    #[n(3)]
    ServerError,
    /// The handler panicked.
    #[n(4)]
    Panicked,
    /// Nothing was sent.
    #[n(5)]
    NotSent,
    /// The answer said "not done".
    #[n(6)]
    Refused,
    /// The client had left before anything was sent.
    #[n(7)]
    ClientGone,
    /// The Effect that owed the answer is dead.
    #[n(8)]
    EffectDead,
    /// The store did not answer at begin, so nothing was run.
    #[n(9)]
    GivenUp,
}

impl ErrorCode {
    /// The word for it in lists and on the status page.
    pub fn name(self) -> &'static str {
        match self {
            ErrorCode::Lapsed => "lapsed",
            ErrorCode::TimedOut => "timed_out",
            ErrorCode::Broken => "broken",
            ErrorCode::ServerError => "server_error",
            ErrorCode::Panicked => "panicked",
            ErrorCode::NotSent => "not_sent",
            ErrorCode::Refused => "refused",
            ErrorCode::ClientGone => "client_gone",
            ErrorCode::EffectDead => "effect_dead",
            ErrorCode::GivenUp => "given_up",
        }
    }
}

/// All that is kept for one Scope and Key, but for the Response.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Its name in the store.
    pub id: RecordId,
    /// Tenant, operation and key.
    pub identity: Arc<Identity>,
    /// The last write.
    pub version: Version,
    /// The nonce of the insert: one generation.
    pub birth: Nonce,
    /// The nonce of the Attempt that runs or ran last.
    pub owner: Nonce,
    /// How many Attempts there were.
    pub attempt: u32,
    /// Where it stands.
    pub state: State,
    /// What it carries besides.
    pub flags: Flags,
    /// What was asked; none after an answer that said "not you" (401, 403).
    pub fingerprint: Option<Fingerprint>,
    /// The rules it was begun with.
    pub policy: Arc<Policy>,
    /// The last Phase committed.
    pub point: RecoveryPoint,
    /// When the first request came.
    pub created_at: Timestamp,
    /// When the last Attempt began.
    pub ran_at: Option<Timestamp>,
    /// When the answer became final.
    pub completed_at: Option<Timestamp>,
    /// Lease end, next reconciliation or next try of a worker, by State.
    pub due_at: Option<Timestamp>,
    /// When replay ends.
    pub expires_at: Option<Timestamp>,
    /// When the row goes.
    pub purge_at: Option<Timestamp>,
    /// The rest.
    pub note: RecordDetails,
}

impl Record {
    /// Whether its retention is over: then it is as absent, whether or not the reaper has come. What the reaper has
    /// stripped stays so, also if the store's clock is set back.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|at| at <= now) || self.identity.is_forgotten()
    }

    /// Whether the row itself should be gone.
    pub fn is_purgeable(&self, now: Timestamp) -> bool {
        self.purge_at.is_some_and(|at| at <= now)
    }

    /// Whether its due instant has passed. No due instant: held, never abandoned.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.due_at.is_some_and(|at| at <= now)
    }

    /// When the time of the last Attempt is over: until then its late answer may settle an unknown outcome.
    pub fn over_at(&self) -> Timestamp {
        self.ran_at.unwrap_or(self.created_at).after(self.policy.over_in())
    }

    /// Until when an unknown outcome may settle by itself: by a late answer, or at the next look of a reconciler. None: only
    /// an operator can settle it.
    pub fn settles_by(&self, now: Timestamp) -> Option<Timestamp> {
        let next_look = self.due_at.filter(|_| !self.flags.dead_letter);
        next_look.or_else(|| Some(self.over_at()).filter(|over_at| *over_at > now))
    }

    /// Whether only an operator can settle it. The flag is set when the outcome becomes unknown and counts once the last
    /// Attempt's time is over.
    pub fn is_dead_letter(&self, now: Timestamp) -> bool {
        self.flags.dead_letter && (self.state != State::Unknown || self.over_at() <= now)
    }

    /// `success` or `error`, once completed and kept.
    pub fn outcome(&self) -> Option<&'static str> {
        match (self.state, self.note.status) {
            (State::Completed, Some(status)) => Some(if status < 400 { "success" } else { "error" }),
            _ => None,
        }
    }
}

/// What the note of a record takes that has nothing special about it, rounded up; with a trace or a provider's id it grows.
const NOTE_BYTES: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_has_its_name() {
        for (state, name) in State::ALL.into_iter().zip(State::NAMES) {
            assert_eq!(state.name(), name);
            assert_eq!(format!("{state:?}").to_lowercase(), name.replace('_', ""));
            assert_eq!(State::from_name(name), Some(state));
        }
        assert_eq!(State::from_name("lost"), None);
    }
}
