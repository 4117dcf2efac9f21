//! Changes to records and their outcome. A change carries intervals only; the store adds them to its own clock.

#![expect(clippy::exhaustive_enums, reason = "every store has to handle every variant")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::evidence::EventName;
use crate::fingerprint::Fingerprint;
use crate::policy::Policy;
use crate::record::{Flags, Nonce, Record, RecordDetails, RecoveryPoint, State, Version};
use crate::response::{Response, SavedResponse};
use crate::scope::{Identity, RecordId};
use crate::time::Timestamp;

/// A set of writes to one record that commit together or not at all.
#[derive(Clone, Debug)]
pub struct Change {
    /// Id of the record.
    pub id: RecordId,
    /// Precondition on the stored row.
    pub expect: Expect,
    /// Nonce of the new version; drawn before the first send and the same in every resend.
    pub nonce: Nonce,
    /// The new row; `None` leaves the record alone and only adds to its history.
    pub draft: Option<Draft>,
    /// Response to store with the record; `None` leaves the stored one as it is.
    pub response: Option<Arc<Response>>,
    /// Delete the response and the bodies that were stored with the record before this change.
    pub clears_bodies: bool,
    /// Bodies to store apart from the row.
    pub bodies: Vec<StoredBody>,
    /// Lines to add to the record's history.
    pub history: Vec<History>,
    /// The evidence that led to this change; its commit marks the evidence as used.
    pub uses: Option<EventName>,
}

/// Precondition on the stored row for a change to commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// No row is stored.
    Absent,
    /// A row at this version.
    Version(Version),
    /// A row at this version whose due instant has passed, tested inside the writing statement. Every takeover uses it.
    Due(Version),
    /// Anything, for a change without a draft.
    Anything,
}

/// The next content of a row, with intervals in place of instants.
#[derive(Clone, Debug, PartialEq)]
pub struct Draft {
    /// Tenant, operation and key; they never change within one id.
    pub identity: Arc<Identity>,
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
    /// Fingerprint of the request, if one holds the key.
    pub fingerprint: Option<Fingerprint>,
    /// Policy that the record was begun with.
    pub policy: Arc<Policy>,
    /// Number of the last committed phase.
    pub point: RecoveryPoint,
    /// Change to the instant of the first request.
    pub created: InstantChange,
    /// Change to the instant at which the last attempt began.
    pub ran: InstantChange,
    /// Change to the instant at which the response became final.
    pub completed: InstantChange,
    /// Time until the lease ends, the next lookup, or the next run by a worker.
    pub due_in: Option<Duration>,
    /// Time until replay ends.
    pub expires_in: Option<Duration>,
    /// Time until the row may be deleted.
    pub purge_in: Option<Duration>,
    /// Small fields that no query filters by.
    pub note: RecordDetails,
}

/// Change to an instant that the store's clock sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstantChange {
    /// The instant stays as it is (absent on an insert).
    Keep,
    /// The instant becomes the store's present time.
    Now,
    /// The instant is cleared.
    Clear,
}

/// Longest interval that is added to an instant, about a thousand years: "never" in practice, and no sum overflows.
pub const INTERVAL_MAX: Duration = Duration::from_secs(1000 * 365 * 24 * 3600);

impl InstantChange {
    /// Returns the code that the statements of every store use.
    pub fn code(self) -> i16 {
        match self {
            InstantChange::Keep => 0,
            InstantChange::Now => 1,
            InstantChange::Clear => 2,
        }
    }
}

/// Bytes that are stored apart from the row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBody {
    /// Kind of the body.
    pub kind: BodyKind,
    /// Bytes of the body.
    pub data: Bytes,
}

/// Kind of a body that is stored apart from the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyKind {
    /// The request, while an async or resumable route needs it.
    Request,
    /// The result of the phase that led to this recovery point.
    Phase(RecoveryPoint),
}

impl BodyKind {
    /// Code under which a store keeps the body of a response that is too large for the row. It is part of the response, and
    /// [`BodyStore::bodies`](crate::store::BodyStore::bodies) does not return it.
    pub const RESPONSE: u32 = 1;

    /// Returns the code that stores keep.
    pub fn code(self) -> u32 {
        match self {
            BodyKind::Request => 2,
            BodyKind::Phase(point) => 16 + u32::from(point),
        }
    }
}

/// A line that a change adds to a record's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// Kind of the event.
    pub what: HistoryKind,
    /// Text for an operator; never contains a key, a credential or a body.
    pub detail: String,
}

/// A stored line of a record's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryLine {
    /// Instant of the change that added the line, by the store's clock.
    pub at: Timestamp,
    /// Kind of the event.
    pub what: HistoryKind,
    /// Text for an operator; never contains a key, a credential or a body.
    pub detail: String,
}

/// A stored body, as the store returns it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LoadedBody {
    /// Code of its kind ([`BodyKind::code`]). It may be one that this version does not know.
    pub kind: u32,
    /// The bytes of the body.
    pub data: Bytes,
}

/// Kind of a history line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HistoryKind {
    /// The lease of an attempt lapsed.
    Lapse,
    /// Another attempt took over.
    Takeover,
    /// The outcome became unknown.
    Unknown,
    /// A reconciler looked up the outcome.
    ReconcileTry,
    /// An attempt or a webhook reported a result late.
    LateAnswer,
    /// The outcome became known.
    Settled,
    /// An operator acted on the record.
    Operator,
    /// Another attempt resumed a record with an in-doubt call.
    Resumed,
    /// A newer version of ibid wrote a kind that this one does not know.
    Other,
}

impl HistoryKind {
    /// All kinds, in the order of their codes.
    pub const ALL: [HistoryKind; 9] = [
        HistoryKind::Lapse,
        HistoryKind::Takeover,
        HistoryKind::Unknown,
        HistoryKind::ReconcileTry,
        HistoryKind::LateAnswer,
        HistoryKind::Settled,
        HistoryKind::Operator,
        HistoryKind::Resumed,
        HistoryKind::Other,
    ];

    /// Returns the kind with this name; [`HistoryKind::Other`] if there is none.
    pub fn from_name(name: &str) -> HistoryKind {
        HistoryKind::ALL.into_iter().find(|kind| kind.name() == name).unwrap_or(HistoryKind::Other)
    }

    /// Returns the name that stores keep and `ibid keys show` prints.
    pub fn name(self) -> &'static str {
        match self {
            HistoryKind::Lapse => "lapse",
            HistoryKind::Takeover => "takeover",
            HistoryKind::Unknown => "unknown",
            HistoryKind::ReconcileTry => "reconcile try",
            HistoryKind::LateAnswer => "late answer",
            HistoryKind::Settled => "settled",
            HistoryKind::Operator => "operator",
            HistoryKind::Resumed => "resumed",
            HistoryKind::Other => "other",
        }
    }
}

/// Outcome of committing a change.
#[derive(Clone, Debug)]
pub enum Commit {
    /// The change is durable.
    Done(Stamp),
    /// The stored row does not meet the precondition. This is a value, not an error. `None`: there is no row.
    Conflict(Option<Box<StoredRecord>>),
}

/// Values that the store adds to a change that it commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The store's clock at the write; every interval counts from it.
    pub now: Timestamp,
}

/// A record as a store returns it.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredRecord {
    /// The row. Shared, because attempts, responses and queued writes refer to it, too.
    pub record: Arc<Record>,
    /// The response, if one is stored.
    pub response: Option<SavedResponse>,
    /// The store's clock at the read. If every node has its own, an instant that has passed on all of them
    /// ([`StoreClock::Node`](crate::store::StoreClock::Node)).
    pub now: Timestamp,
}

impl StoredRecord {
    /// Returns the body of the stored response; `None` if there is no response, or it is sealed.
    pub fn body(&self) -> Option<&[u8]> {
        self.response.as_ref().and_then(SavedResponse::plain).map(|response| &response.body[..])
    }
}

impl Change {
    /// Returns the version that the record has after this change.
    pub fn version(&self) -> Version {
        let count = match self.expect {
            Expect::Absent | Expect::Anything => 0,
            Expect::Version(version) | Expect::Due(version) => version.count,
        };
        // After 2³² writes the counter wraps; the nonce still tells versions apart.
        Version { count: count.wrapping_add(1), nonce: self.nonce }
    }

    /// Returns whether `stored` was written by this very change: its commit succeeded, and the reply was lost.
    pub fn is_stored_as(&self, stored: &StoredRecord) -> bool {
        stored.record.version == self.version()
    }

    /// Returns whether this change begins an attempt or takes a new key, which a store refuses while nothing may begin there.
    ///
    /// `has_deadline` tells whether it was sent with a deadline. A finish that inserts its record again, because that was lost, has
    /// none, and neither has the end of a begin that was given up.
    pub fn begins_attempt(&self, has_deadline: bool) -> bool {
        let starts = |draft: &Draft| draft.created != InstantChange::Keep || draft.ran == InstantChange::Now;
        (has_deadline || self.expect != Expect::Absent) && self.draft.as_ref().is_some_and(starts)
    }

    /// Returns the size of the response and the bodies in bytes, by which batches are bounded.
    pub fn body_bytes(&self) -> usize {
        let response = self.response.as_ref().map_or(0, |response| response.body.len());
        response + self.bodies.iter().map(|body| body.data.len()).sum::<usize>()
    }

    /// Returns the record and its response after the store committed this change at `stamp`; `None` for a change without a
    /// draft.
    ///
    /// `before` is what was stored until then.
    pub fn stored_after(&self, stamp: Stamp, before: Option<&StoredRecord>) -> Option<StoredRecord> {
        let record = self.apply(stamp, before.map(|stored| &*stored.record))?;
        let is_same_generation = |before: &&StoredRecord| {
            let created = self.draft.as_ref().map(|draft| draft.created);
            before.record.birth == record.birth && created == Some(InstantChange::Keep)
        };
        let old = before.filter(is_same_generation).filter(|_| !self.clears_bodies);
        let new = self.response.clone().map(SavedResponse::Plain);
        let response = new.or_else(|| old.and_then(|stored| stored.response.clone()));
        Some(StoredRecord { record, response, now: stamp.now })
    }

    /// Returns the record after the store committed this change at `stamp`; `None` for a change without a draft.
    ///
    /// `before` is the record that was stored until then.
    pub fn apply(&self, stamp: Stamp, before: Option<&Record>) -> Option<Arc<Record>> {
        let draft = self.draft.as_ref()?;
        let instant = |mark: InstantChange, was: Option<Timestamp>| match mark {
            InstantChange::Keep => was,
            InstantChange::Now => Some(stamp.now),
            InstantChange::Clear => None,
        };
        let at =
            |interval: Option<Duration>| interval.map(|interval| stamp.now.after(interval.min(INTERVAL_MAX)));
        Some(Arc::new(Record {
            id: self.id,
            identity: draft.identity.clone(),
            version: self.version(),
            birth: draft.birth,
            owner: draft.owner,
            attempt: draft.attempt,
            state: draft.state,
            flags: draft.flags,
            fingerprint: draft.fingerprint,
            policy: draft.policy.clone(),
            point: draft.point,
            created_at: instant(draft.created, before.map(|r| r.created_at)).unwrap_or(stamp.now),
            ran_at: instant(draft.ran, before.and_then(|r| r.ran_at)),
            completed_at: instant(draft.completed, before.and_then(|r| r.completed_at)),
            due_at: at(draft.due_in),
            expires_at: at(draft.expires_in),
            purge_at: at(draft.purge_in),
            note: draft.note.clone(),
        }))
    }
}
