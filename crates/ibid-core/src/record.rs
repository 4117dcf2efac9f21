//! The record: everything that is stored for one scope and key. Read-only here, because only `machine` writes a state.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::fingerprint::Fingerprint;
use crate::policy::Policy;
use crate::scope::{Identity, RecordId};
use crate::time::Timestamp;

/// A random number that a writer draws before it first sends its write, and by which it recognises its own commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nonce(pub u64);

/// Identifies one write of a record, and fences later writers.
///
/// The counter orders writes. The nonce makes a version unrepeatable, even after removal, restore or failover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    /// Number of writes to the row.
    pub count: u32,
    /// Nonce of the last write.
    pub nonce: Nonce,
}

/// The state of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[expect(clippy::exhaustive_enums, reason = "code that acts on a record has to handle every state")]
pub enum State {
    /// Accepted, and a worker will run it; or an effect owes its response.
    Pending = 1,
    /// An attempt holds the lease.
    InProgress = 2,
    /// The response is final and stored.
    Completed = 3,
    /// A retry of the request may run. Either it was proven not executed, or an in-doubt call can be repeated under the
    /// same key (`RecordDetails::doubt`).
    Retryable = 4,
    /// It is not known whether the request was executed.
    Unknown = 5,
}

impl State {
    /// All states, in the order of their codes.
    pub const ALL: [State; 5] =
        [State::Pending, State::InProgress, State::Completed, State::Retryable, State::Unknown];

    /// Names of the states, in the order of [`ALL`](Self::ALL).
    pub const NAMES: [&'static str; 5] = ["pending", "in_progress", "completed", "retryable", "unknown"];

    /// The state in which an attempt holds a lease: the only one with a first lease.
    pub const LEASED: State = State::InProgress;

    /// The state that only retention ends. Nearly all records are in it, so stores estimate their number.
    pub const FINAL: State = State::Completed;

    /// The state that only evidence, a lookup or an operator ends.
    pub const UNSETTLED: State = State::Unknown;

    /// The states in which a record waits for upkeep, a retry or an operator. Few records are in them, so stores index and
    /// count them.
    pub const WAITING: [State; 3] = [State::Pending, State::Retryable, State::Unknown];

    /// Returns whether a response will come without a retry: an attempt runs, a worker will run the request, or an effect owes the
    /// response.
    pub fn is_open(self) -> bool {
        matches!(self, State::Pending | State::InProgress)
    }

    /// Returns whether an attempt holds the lease.
    pub fn is_running(self) -> bool {
        self == State::InProgress
    }

    /// Returns whether the response is final and stored.
    pub fn is_completed(self) -> bool {
        self == State::Completed
    }

    /// Returns whether it is not known if the request was executed.
    pub fn is_unknown(self) -> bool {
        self == State::Unknown
    }

    /// Returns the code that stores keep.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Returns the state with this code.
    pub fn from_code(code: u8) -> Option<State> {
        State::ALL.into_iter().find(|state| state.code() == code)
    }

    /// Returns the state's name, as in the contract.
    pub fn name(self) -> &'static str {
        State::NAMES[self as usize - 1]
    }

    /// Returns the state with this name.
    pub fn from_name(name: &str) -> Option<State> {
        State::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Returns the label of [`Record::due_at`], whose meaning depends on the state.
    pub fn due_label(self) -> &'static str {
        match self {
            State::InProgress => "lease until",
            State::Pending => "claimed by",
            State::Unknown => "asked again",
            State::Completed | State::Retryable => "due",
        }
    }
}

/// Flags of a record besides its state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// An operator must look at the record. For an unknown outcome this holds only once the time of the last attempt is
    /// over: [`Record::is_dead_letter`].
    pub dead_letter: bool,
    /// `pending` because an effect owes the response.
    pub owed: bool,
    /// Accepted to be run without its client: if a run executed nothing, the record goes back to `pending`.
    pub asynchronous: bool,
    /// `completed`, but the response was too large, a stream or an upgrade, and is not stored.
    pub not_retained: bool,
}

impl Flags {
    /// Bit of a dead letter, by which stores search.
    pub const DEAD_LETTER: u8 = 1;

    /// Returns the bits that stores keep.
    pub fn bits(self) -> u8 {
        u8::from(self.dead_letter)
            | u8::from(self.owed) << 1
            | u8::from(self.asynchronous) << 2
            | u8::from(self.not_retained) << 3
    }

    /// Returns the flags of these bits; unknown bits are dropped.
    pub fn from_bits(bits: u8) -> Flags {
        Flags {
            dead_letter: bits & Flags::DEAD_LETTER != 0,
            owed: bits & 2 != 0,
            asynchronous: bits & 4 != 0,
            not_retained: bits & 8 != 0,
        }
    }
}

/// Number of the last committed phase; zero before the first.
pub type RecoveryPoint = u16;

/// Small fields of a record that no query filters by, kept as JSON in one column.
///
/// A field that has its default is left out, and a note of defaults only is null. A reader passes over fields that it does
/// not know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecordDetails {
    /// Status of the response, whether it is stored or not. It has its own column.
    #[serde(skip)]
    pub status: Option<u16>,
    /// Reason why the last attempt did not complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<ErrorCode>,
    /// The provider's own id of the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    /// Number of lapses since it was last found that nothing was executed.
    #[serde(skip_serializing_if = "is_zero")]
    pub lapses: u32,
    /// Number of lookups by a reconciler.
    #[serde(skip_serializing_if = "is_zero")]
    pub tries: u32,
    /// Instant at which a reconciler first found that nothing was executed, in µs of the store's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absent_at: Option<i64>,
    /// Trace of the first execution, as a W3C `traceparent`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// Names of the committed phases, in order: where a handler stopped.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<String>,
    /// Phase whose external call may be in flight and must not be repeated blindly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calling: Option<RecoveryPoint>,
    /// Phase of the in-doubt call: it may have been made, and may be repeated under its key or looked up.
    ///
    /// Until its result is recorded the generation does not end, because the next one would call under another key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub doubt: Option<RecoveryPoint>,
    /// Digest of the names of the phases up to that of the in-doubt call: a different call at its position would hide
    /// it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub doubted: Option<u64>,
    /// Status of the response that proved nothing, while the outcome is unknown because of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unproven: Option<u16>,
}

impl RecordDetails {
    /// Returns the id of the first execution's trace.
    pub fn trace_id(&self) -> Option<&str> {
        // A library caller may have stored the id alone.
        self.trace.as_deref().map(|trace| trace.split('-').nth(1).unwrap_or(trace))
    }

    /// Encodes the details as stores keep them, without the status; `None` if all of them have their defaults.
    pub fn to_json(&self) -> Option<String> {
        if *self == (RecordDetails { status: self.status, ..RecordDetails::default() }) {
            return None;
        }
        // Strings and numbers are always JSON.
        Some(serde_json::to_string(self).expect("the details of a record are JSON"))
    }

    /// Decodes stored details and adds the status from its column; `None` if the text is damaged.
    pub fn from_json(text: Option<&str>, status: Option<u16>) -> Option<RecordDetails> {
        let details = text.map_or_else(|| Ok(RecordDetails::default()), serde_json::from_str).ok()?;
        Some(RecordDetails { status, ..details })
    }
}

/// Lets a counter be left out of the JSON while it is zero.
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// Reason why an attempt did not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorCode {
    /// The lease of the attempt lapsed.
    Lapsed,
    /// No response came in time.
    TimedOut,
    /// The connection broke, or the response was cut off.
    Broken,
    /// The response proves nothing (5xx).
    ServerError,
    /// The handler panicked during the attempt.
    Panicked,
    /// Nothing was sent to the upstream.
    NotSent,
    /// The response said "not done".
    Refused,
    /// The client disconnected before anything was sent.
    ClientGone,
    /// The effect that owed the response is dead.
    EffectDead,
    /// The store did not answer the begin, so nothing was run.
    GivenUp,
    /// A newer version of ibid wrote a reason that this one does not know.
    #[serde(other)]
    Other,
}

impl ErrorCode {
    /// Returns the name that lists and the status page show.
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
            ErrorCode::Other => "other",
        }
    }
}

/// Everything that is stored for one scope and key, except the response.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Id of the record in the store.
    pub id: RecordId,
    /// Tenant, operation and key of the request.
    pub identity: Arc<Identity>,
    /// Version of the last write.
    pub version: Version,
    /// Nonce of the insert; it identifies the generation.
    pub birth: Nonce,
    /// Nonce of the attempt that runs or ran last.
    pub owner: Nonce,
    /// Number of attempts so far.
    pub attempt: u32,
    /// State of the record.
    pub state: State,
    /// Flags besides the state.
    pub flags: Flags,
    /// Fingerprint of the request; `None` after a 401 or 403, or if a begin was given up.
    pub fingerprint: Option<Fingerprint>,
    /// Policy that the record was begun with.
    pub policy: Arc<Policy>,
    /// Number of the last committed phase.
    pub point: RecoveryPoint,
    /// Instant of the first request.
    pub created_at: Timestamp,
    /// Instant at which the last attempt began.
    pub ran_at: Option<Timestamp>,
    /// Instant at which the response became final.
    pub completed_at: Option<Timestamp>,
    /// End of the lease, next lookup or next run by a worker, depending on the state.
    pub due_at: Option<Timestamp>,
    /// Instant at which replay ends.
    pub expires_at: Option<Timestamp>,
    /// Instant at which the row may be deleted.
    pub purge_at: Option<Timestamp>,
    /// Small fields that no query filters by.
    pub note: RecordDetails,
}

impl Record {
    /// Returns whether the retention is over. An expired record counts as absent, even if the reaper has not removed it
    /// yet.
    ///
    /// A record that the reaper has stripped stays expired, even if the store's clock is set back.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|at| at <= now) || self.identity.is_forgotten()
    }

    /// Returns whether the row itself may be deleted.
    pub fn is_purgeable(&self, now: Timestamp) -> bool {
        self.purge_at.is_some_and(|at| at <= now)
    }

    /// Returns whether the due instant has passed. A record without one never lapses.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.due_at.is_some_and(|at| at <= now)
    }

    /// Returns the instant at which the last attempt is over. Until then its late response may settle an unknown
    /// outcome.
    pub fn over_at(&self) -> Timestamp {
        self.ran_at.unwrap_or(self.created_at).after(self.policy.over_in())
    }

    /// Returns the instant until which an unknown outcome may settle without an operator: by a late response, or at the
    /// next lookup. `None`: only an operator can settle it.
    pub fn settles_by(&self, now: Timestamp) -> Option<Timestamp> {
        let next_look = self.due_at.filter(|_| !self.flags.dead_letter);
        next_look.or_else(|| Some(self.over_at()).filter(|over_at| *over_at > now))
    }

    /// Returns whether only an operator can settle the record.
    ///
    /// The flag is set when the outcome becomes unknown, and counts once the time of the last attempt is over.
    pub fn is_dead_letter(&self, now: Timestamp) -> bool {
        self.flags.dead_letter && (self.state != State::Unknown || self.over_at() <= now)
    }

    /// Returns `success` or `error` once the record is completed with a known status.
    pub fn outcome(&self) -> Option<&'static str> {
        match (self.state, self.note.status) {
            (State::Completed, Some(status)) => Some(if status < 400 { "success" } else { "error" }),
            _ => None,
        }
    }
}

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
    #[test]
    fn details_are_json_and_defaults_are_left_out() {
        let plain = RecordDetails { status: Some(201), ..RecordDetails::default() };
        assert_eq!(plain.to_json(), None);
        assert_eq!(RecordDetails::from_json(None, Some(201)), Some(plain));
        let late = RecordDetails {
            last_error: Some(ErrorCode::TimedOut),
            phases: vec!["reserve".to_owned(), "charge".to_owned()],
            ..RecordDetails::default()
        };
        let text = late.to_json().expect("it differs from the defaults");
        assert_eq!(text, r#"{"last_error":"timed_out","phases":["reserve","charge"]}"#);
        assert_eq!(RecordDetails::from_json(Some(&text), None), Some(late));
    }

    #[test]
    fn details_of_a_newer_version_can_be_read() {
        let newer = r#"{"last_error":"eaten_by_a_dog","colour":"red","tries":2}"#;
        let read = RecordDetails::from_json(Some(newer), None).expect("it is JSON");
        assert_eq!((read.last_error, read.tries), (Some(ErrorCode::Other), 2));
        assert_eq!(RecordDetails::from_json(Some("{"), None), None);
    }
}
