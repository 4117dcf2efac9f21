//! What is written together, and what came of it. Intervals only: the store adds them to its own clock.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::evidence::EventName;
use crate::fingerprint::Fingerprint;
use crate::policy::Policy;
use crate::record::{Flags, Nonce, Record, RecordDetails, RecoveryPoint, State, Version};
use crate::scope::{Identity, RecordId};
use crate::time::Timestamp;

/// What is written together for one Record: all of it or nothing.
#[derive(Clone, Debug)]
pub struct Change {
    /// Which Record.
    pub id: RecordId,
    /// What must be stored now for the Change to count.
    pub expect: Expect,
    /// Becomes the nonce of the new Version; drawn before the first send and kept over every repetition.
    pub nonce: Nonce,
    /// The new row; none leaves the Record alone and only adds to its history.
    pub draft: Option<Draft>,
    /// Drop what is kept beside the record until now.
    pub clears_bodies: bool,
    /// What is kept apart from the row.
    pub bodies: Vec<StoredBody>,
    /// What a person will ask about.
    pub history: Vec<History>,
    /// The evidence that led to it, which is used up with it.
    pub uses: Option<EventName>,
}

/// What must be stored for a Change to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// No row.
    Absent,
    /// A row at this Version.
    Version(Version),
    /// A row at this Version whose due instant has passed, judged inside the writing statement: every takeover.
    Due(Version),
    /// Anything: for a Change without a draft.
    Anything,
}

/// A row to be, without instants.
#[derive(Clone, Debug, PartialEq)]
pub struct Draft {
    /// Tenant, operation and key; they never change within one id.
    pub identity: Arc<Identity>,
    /// One generation.
    pub birth: Nonce,
    /// The Attempt that runs or ran last.
    pub owner: Nonce,
    /// How many there were.
    pub attempt: u32,
    /// Where it will stand.
    pub state: State,
    /// What it carries besides.
    pub flags: Flags,
    /// What was asked.
    pub fingerprint: Option<Fingerprint>,
    /// The rules it was begun with.
    pub policy: Arc<Policy>,
    /// The last Phase committed.
    pub point: RecoveryPoint,
    /// When the first request came.
    pub created: InstantChange,
    /// When the last Attempt began.
    pub ran: InstantChange,
    /// When the answer became final.
    pub completed: InstantChange,
    /// From now to the lease's end, the next reconciliation or the next try of a worker.
    pub due_in: Option<Duration>,
    /// From now to the end of replay.
    pub expires_in: Option<Duration>,
    /// From now to the row's removal.
    pub purge_in: Option<Duration>,
    /// The rest.
    pub note: RecordDetails,
}

/// What happens to an instant that the store's clock sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstantChange {
    /// It stays as it is (absent on an insert).
    Keep,
    /// It becomes the store's now.
    Now,
    /// It goes.
    Clear,
}

impl InstantChange {
    /// How every statement of every store names it.
    pub fn code(self) -> i16 {
        match self {
            InstantChange::Keep => 0,
            InstantChange::Now => 1,
            InstantChange::Clear => 2,
        }
    }
}

/// Something kept apart from the row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBody {
    /// What it is.
    pub kind: BodyKind,
    /// Its bytes.
    pub data: Bytes,
}

/// What is kept apart from the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyKind {
    /// The Response.
    Answer,
    /// The request, while an async or resumable route needs it.
    Request,
    /// The result of the Phase that led to this recovery point.
    Phase(RecoveryPoint),
}

impl BodyKind {
    /// The code that stores keep.
    pub fn code(self) -> u32 {
        match self {
            BodyKind::Answer => 1,
            BodyKind::Request => 2,
            BodyKind::Phase(point) => 16 + u32::from(point),
        }
    }
}

/// One line of a Record's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// What happened.
    pub what: HistoryKind,
    /// In which words; never a key, a credential or a body.
    pub detail: String,
}

/// What a person will ask about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum HistoryKind {
    /// The lease ran out.
    Lapse = 1,
    /// Another Attempt took over.
    Takeover = 2,
    /// The outcome became unknown.
    Unknown = 3,
    /// A reconciler asked.
    ReconcileTry = 4,
    /// An Attempt came back after its record had gone on.
    LateAnswer = 5,
    /// The outcome became known.
    Settled = 6,
    /// A person acted.
    Operator = 7,
    /// Another Attempt goes on with a call in doubt.
    Resumed = 8,
}

impl HistoryKind {
    /// Every kind, in the order of its codes.
    pub const ALL: [HistoryKind; 8] = [
        HistoryKind::Lapse,
        HistoryKind::Takeover,
        HistoryKind::Unknown,
        HistoryKind::ReconcileTry,
        HistoryKind::LateAnswer,
        HistoryKind::Settled,
        HistoryKind::Operator,
        HistoryKind::Resumed,
    ];

    /// The code that stores keep.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The kind with this code.
    pub fn from_code(code: u8) -> Option<HistoryKind> {
        HistoryKind::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// The word for it in `ibid keys show`.
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
        }
    }
}

/// What came of a Change.
#[derive(Clone, Debug)]
pub enum Commit {
    /// It is durable.
    Done(Stamp),
    /// Something else was stored: a value, not an error. None: no row.
    Conflict(Option<Box<StoredRecord>>),
}

/// What the store added to a Change that it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The store's clock at the write: every interval counts from it.
    pub now: Timestamp,
}

/// A Record as a store holds it.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredRecord {
    /// The row. Shared: whoever holds an Attempt, an answer or a place in a queue has it too.
    pub record: Arc<Record>,
    /// The bytes of its Response, if one is kept.
    pub answer: Option<Bytes>,
    /// The store's clock when it was read.
    pub now: Timestamp,
}

impl Change {
    /// The Version that the Record has once this Change is in.
    pub fn version(&self) -> Version {
        let count = match self.expect {
            Expect::Absent | Expect::Anything => 0,
            Expect::Version(version) | Expect::Due(version) => version.count,
        };
        // A row that was written four thousand million times stays comparable by its nonce.
        Version { count: count.wrapping_add(1), nonce: self.nonce }
    }

    /// Whether what is stored is this very Change: a commit of ours whose reply was lost.
    pub fn is_stored_as(&self, stored: &StoredRecord) -> bool {
        stored.record.version == self.version()
    }

    /// Bytes that the Change carries besides the row, by which batches are bounded.
    pub fn body_bytes(&self) -> usize {
        self.bodies.iter().map(|body| body.data.len()).sum()
    }

    /// The Record as it stands once the store took this Change at `stamp`. `before` is what was stored until then.
    ///
    /// None for a Change without a draft.
    pub fn applied(&self, stamp: Stamp, before: Option<&Record>) -> Option<Arc<Record>> {
        let draft = self.draft.as_ref()?;
        let marked = |mark: InstantChange, was: Option<Timestamp>| match mark {
            InstantChange::Keep => was,
            InstantChange::Now => Some(stamp.now),
            InstantChange::Clear => None,
        };
        let at = |interval: Option<Duration>| interval.map(|interval| stamp.now.after(interval));
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
            created_at: marked(draft.created, before.map(|r| r.created_at)).unwrap_or(stamp.now),
            ran_at: marked(draft.ran, before.and_then(|r| r.ran_at)),
            completed_at: marked(draft.completed, before.and_then(|r| r.completed_at)),
            due_at: at(draft.due_in),
            expires_at: at(draft.expires_in),
            purge_at: at(draft.purge_in),
            note: draft.note.clone(),
        }))
    }
}
