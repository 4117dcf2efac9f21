//! The store traits: a versioned compare-and-set that does not interpret states. `machine` never imports this module.
//!
//! [`Store`] is the mandatory part. Everything else is a capability that a store may lack:
//!
//! | trait | without it |
//! | --- | --- |
//! | [`BodyStore`] | async routes, resume and phases are refused at start |
//! | [`BrowseStore`] | operators cannot list records, and see no history and no counts |
//! | [`EvidenceStore`] | webhooks are refused at start |
//! | [`SqlStore`] | one-transaction mode and the outbox are refused at start |
//! | [`CopyStore`] | `ibid copy` refuses it as source and as target |
//!
//! `ibid_testkit::contract` has a suite for each of them.

#![expect(clippy::exhaustive_enums, reason = "every store has to handle every variant")]

pub mod copy;
mod error;
mod filter;
mod tiers;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::change::{Change, Commit, HistoryLine, LoadedBody, StoredRecord};
use crate::evidence::EvidenceStore;
use crate::fingerprint::SecretId;
use crate::hex;
use crate::policy::Policy;
use crate::reap::{ReapCount, ReapStep, ReapTarget};
use crate::record::{Nonce, State, Version};
use crate::scope::RecordId;
use crate::sql::{Dialect, SqlError, SqlTx};
use crate::time::Timestamp;

pub use copy::CopyStore;
pub use error::StoreError;
pub use filter::{PathPart, PathPattern, RecordFilter};
pub use tiers::Tiers;

/// A boxed future: one box per round trip is free, a type parameter in every user's signature is not.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Longest wait for the reply to a begin after its `send_by`.
///
/// In an overloaded store the oldest begins of the queue are sent just before that. Without this wait most of them would be taken for
/// lost, each would be written over in the background, and the overload would double. A batch of begins takes milliseconds, and
/// PostgreSQL waits a quarter of a second for a locked row.
pub const REPLY_GRACE: Duration = Duration::from_millis(250);

/// Records and settings: the part that every store has.
///
/// # Cancel safety
///
/// A future that is dropped does not take its write back: a commit, a renewal or a step of the reaper that was already sent
/// may happen. Each of them happens whole or not at all.
pub trait Store: Send + Sync + 'static {
    /// Returns the store's name, clock and durability.
    fn facts(&self) -> StoreFacts;

    /// Loads one record, with its response.
    ///
    /// # Errors
    ///
    /// A record that this program cannot read is an error, never `None`: its key is taken.
    fn load(&self, id: RecordId) -> BoxFuture<'_, Result<Option<StoredRecord>, StoreError>>;

    /// Writes a change, or returns the record that does not meet its precondition. When it returns [`Commit::Done`], the
    /// change is on disk.
    ///
    /// A store that gains by it commits several changes together. One change's failure never touches another's. A change
    /// that has not been sent by `send_by` is dropped, and its error [is unwritten](StoreError::is_unwritten): its
    /// client has given up. The error comes as soon as the store reaches the change, or when the future is polled
    /// [`REPLY_GRACE`] after `send_by`: the caller polls it then, before it takes the change for written.
    ///
    /// # Errors
    ///
    /// Unless it is unwritten, an error may hide a write that happened. The caller sends the same change again and
    /// recognises its own nonce.
    fn commit(
        &self,
        change: Arc<Change>,
        send_by: Option<Instant>,
    ) -> BoxFuture<'_, Result<Commit, StoreError>>;

    /// Moves the due instant of each record that is still at its version to now + its lease, and nothing else. Returns
    /// one outcome per lease, in their order.
    fn renew(&self, leases: Vec<(RecordId, Version)>)
    -> BoxFuture<'_, Result<Vec<RenewOutcome>, StoreError>>;

    /// Returns one page of records in `state` whose due instant has passed, longest due first, from `after` on.
    ///
    /// A store passes over records that it cannot read, and logs them. If more records are due than fit, those that a
    /// store has yet to look for may be in a later answer.
    fn due(
        &self,
        state: State,
        after: Option<Cursor>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Page<StoredRecord>, StoreError>>;

    /// Takes one step of the reaper: removes what may go of the next `limit` rows or fewer from `after` on, oldest first.
    ///
    /// It names no version but an instant. A record that it strips has another version afterwards, so that a writer that
    /// read it before loses. A target that the store does not have is finished at once.
    fn reap(
        &self,
        target: ReapTarget,
        after: Option<Cursor>,
        limit: u32,
    ) -> BoxFuture<'_, Result<ReapStep, StoreError>>;

    /// Returns the value of the setting `name`; `None` if it was never set.
    fn setting(&self, name: &str) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>>;

    /// Sets `name` to `value` where its value is `expected` (`None`: it was never set). When it returns
    /// [`SetOutcome::Won`], the value is on disk.
    ///
    /// # Errors
    ///
    /// An error may hide a write that happened. The caller repeats the call: a setting that has `value` already counts as
    /// won, whichever process wrote it.
    fn compare_and_set(
        &self,
        name: &str,
        expected: Option<Bytes>,
        value: Bytes,
    ) -> BoxFuture<'_, Result<SetOutcome, StoreError>>;

    /// Sets `name` to `value` if it was never set, and returns the value it has now.
    fn put_if_absent<'a>(&'a self, name: &'a str, value: Bytes) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        Box::pin(async move {
            // Read first: a process that starts need not wait for the write lock of one that runs.
            if let Some(stored) = self.setting(name).await? {
                return Ok(stored);
            }
            match self.compare_and_set(name, None, value.clone()).await? {
                SetOutcome::Lost(Some(stored)) => Ok(stored),
                SetOutcome::Won | SetOutcome::Lost(None) => Ok(value),
            }
        })
    }

    /// Returns the store of bodies, if this store has one.
    fn bodies(&self) -> Option<&dyn BodyStore> {
        None
    }

    /// Returns what operators may ask of this store, if anything.
    fn browse(&self) -> Option<&dyn BrowseStore> {
        None
    }

    /// Returns the store of webhook evidence, if this store has one.
    fn evidence(&self) -> Option<&dyn EvidenceStore> {
        None
    }

    /// Returns what the store can do inside a caller's transaction, if anything.
    fn sql(&self) -> Option<&dyn SqlStore> {
        None
    }

    /// Returns the store as `ibid copy` reads and fills it, if it can be copied.
    fn copy(&self) -> Option<&dyn CopyStore> {
        None
    }
}

/// Facts about a store. They never change while it is open, but `skew_max` of [`StoreClock::Node`] may grow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreFacts {
    /// Name of the store's kind, for messages to operators; clients never see it.
    pub name: &'static str,
    /// The clock that sets every instant.
    pub clock: StoreClock,
    /// Failures that a commit survives.
    pub durability: Durability,
}

/// The clock that sets the instants of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreClock {
    /// One clock for all nodes.
    Shared,
    /// The clock of each node. Nodes differ by `skew_max` at most, so a lease counts as lapsed that much later: a write
    /// is stamped with the node's time, and what is read is judged by that time less `skew_max`
    /// ([`StoredRecord::now`](crate::change::StoredRecord::now)).
    Node {
        /// The largest difference between two nodes.
        skew_max: Duration,
    },
}

impl StoreClock {
    /// Returns the largest difference between two nodes: zero if they share one clock.
    pub fn skew_max(self) -> Duration {
        match self {
            StoreClock::Shared => Duration::ZERO,
            StoreClock::Node { skew_max } => skew_max,
        }
    }
}

/// The failures that a commit survives.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// A commit that was reported survives a crash of process, server and machine.
    Durable,
    /// A commit that was reported may be lost. The operator has accepted that.
    Weak {
        /// Reason why a commit may be lost, for operators.
        reason: String,
    },
}

/// A position to continue from, which only the store that returned it understands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(pub Bytes);

impl Cursor {
    /// Creates a cursor from a number, for stores that order by one.
    pub fn of_i64(number: i64) -> Cursor {
        Cursor(Bytes::copy_from_slice(&number.to_be_bytes()))
    }

    /// Returns the number of [`Cursor::of_i64`]; `None` if this is another cursor.
    pub fn as_i64(&self) -> Option<i64> {
        self.0.as_ref().try_into().ok().map(i64::from_be_bytes)
    }
}

/// Hexadecimal digits, as operators pass a cursor on.
impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(&self.0))
    }
}

impl FromStr for Cursor {
    type Err = CursorError;

    fn from_str(text: &str) -> Result<Cursor, CursorError> {
        if text.len() > CURSOR_TEXT_MAX {
            return Err(CursorError);
        }
        hex::decode(text).map(|bytes| Cursor(Bytes::from(bytes))).ok_or(CursorError)
    }
}

/// The text is not a cursor that a list has printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a cursor is the value that an earlier page ended with")]
pub struct CursorError;

/// Longest text of a cursor. Those of ibid's stores have at most 80 digits; a larger text is a mistake.
const CURSOR_TEXT_MAX: usize = 1024;

/// Some items, and the cursor of the next ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    /// The items, in their order.
    pub items: Vec<T>,
    /// Cursor of the next page; `None`: this was the last one.
    pub next: Option<Cursor>,
}

impl<T> Page<T> {
    /// Creates a page of `limit` items from up to `limit` + 1 items that were read: the one too many tells that there is a
    /// next page, which begins behind the last item of this one.
    pub fn new(mut items: Vec<T>, limit: u32, cursor: impl FnOnce(&T) -> Cursor) -> Page<T> {
        let has_more = items.len() > limit as usize;
        items.truncate(limit as usize);
        let next = items.last().filter(|_| has_more).map(cursor);
        Page { items, next }
    }
}

impl<T> Default for Page<T> {
    fn default() -> Self {
        Page { items: Vec::new(), next: None }
    }
}

/// Bodies that are stored apart from their record, besides the response: requests and results of phases.
pub trait BodyStore: Send + Sync {
    /// Returns the bodies of one generation of a record.
    fn bodies(&self, id: RecordId, birth: Nonce) -> BoxFuture<'_, Result<Vec<LoadedBody>, StoreError>>;
}

/// The result of a compare-and-set on a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum SetOutcome {
    /// The setting has the new value.
    Won,
    /// The setting had another value than expected, and still has it.
    Lost(Option<Bytes>),
}

impl SetOutcome {
    /// Judges a write by the value that is stored after it.
    pub fn of(stored: Option<Bytes>, value: &Bytes) -> SetOutcome {
        match stored {
            Some(stored) if stored == *value => SetOutcome::Won,
            other => SetOutcome::Lost(other),
        }
    }
}

/// A store whose changes can be applied inside a caller's own transaction on the same database, with an outbox.
pub trait SqlStore: Send + Sync {
    /// Returns the dialect that the caller's transactions must speak.
    fn dialect(&self) -> Dialect;

    /// Returns the store's time where statements cannot read it themselves; `None`: each reads the server's own.
    fn now(&self) -> Option<Timestamp>;

    /// Returns whether a caller's commit must survive a crash of the server, whatever the caller's session is set to. Not
    /// where less was accepted for the store itself.
    fn must_be_durable(&self) -> bool {
        true
    }

    /// Returns the number under which rows name `policy`, once the policy is on disk.
    ///
    /// It is stored apart from the caller's transaction, because that may roll back.
    fn policy(&self, policy: Arc<Policy>) -> BoxFuture<'_, Result<i64, StoreError>>;

    /// Returns a mark of this moment: every transaction that has written by now is before it.
    fn transaction_mark(&self) -> BoxFuture<'_, Result<i64, StoreError>> {
        // One writer at a time: what has written by now has ended when the next write begins.
        Box::pin(std::future::ready(Ok(0)))
    }

    /// Returns whether every transaction before the mark has ended.
    fn is_settled_before(&self, mark: i64) -> BoxFuture<'_, Result<bool, StoreError>> {
        let _ = mark;
        Box::pin(std::future::ready(Ok(true)))
    }

    /// Runs `work` in a separate transaction, and commits it unless the work fails. The work may wait for nothing but the
    /// transaction that it is given.
    fn work(&self, work: Work) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Runs `work` that only reads, for lists of operators. A store whose requests must not wait for a slow read runs it on
    /// separate connections and within a time limit.
    fn read(&self, work: Work) -> BoxFuture<'_, Result<(), StoreError>> {
        self.work(work)
    }
}

/// A piece of work in one transaction. It returns its results by itself.
pub type Work = Box<dyn for<'a> FnOnce(&'a mut dyn SqlTx) -> BoxFuture<'a, Result<(), SqlError>> + Send>;

/// Questions of operators. Read-only, bounded in time, and never in the way of begin and finish.
pub trait BrowseStore: Send + Sync {
    /// Returns one page of records that match, in an order that the store chooses.
    ///
    /// A page may be short, or empty, and still have a next one: a list that no index serves ends after some seconds, and
    /// records that this program can't read are left out.
    fn list(&self, filter: RecordFilter) -> BoxFuture<'_, Result<Page<StoredRecord>, StoreError>>;

    /// Returns the history of one record, oldest first.
    fn history(&self, id: RecordId) -> BoxFuture<'_, Result<Vec<HistoryLine>, StoreError>>;

    /// Returns how many records are in each state, and how many dead letters there are.
    fn count(&self) -> BoxFuture<'_, Result<RecordCounts, StoreError>>;

    /// Returns how much `reap` would remove if it went to its end now.
    fn count_reapable(&self, target: ReapTarget) -> BoxFuture<'_, Result<ReapCount, StoreError>>;

    /// Returns a secret that some record's fingerprint names and that is not among `known`.
    ///
    /// This reads the whole table. It is asked only after a secret was taken out of the configuration.
    fn find_unknown_secret(
        &self,
        known: Vec<SecretId>,
    ) -> BoxFuture<'_, Result<Option<SecretId>, StoreError>>;
}

/// A number of rows, and how well it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RowCount {
    /// The rows were counted.
    Exact(u64),
    /// The number comes from the database's statistics.
    Estimated(u64),
    /// The store cannot tell.
    #[default]
    Unknown,
}

impl RowCount {
    /// Returns the number, however well it is known.
    pub fn value(self) -> Option<u64> {
        match self {
            RowCount::Exact(count) | RowCount::Estimated(count) => Some(count),
            RowCount::Unknown => None,
        }
    }

    /// Returns whether the number comes from the database's statistics.
    pub fn is_estimated(self) -> bool {
        matches!(self, RowCount::Estimated(_))
    }
}

/// Numbers of records and dead letters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordCounts {
    /// Records by state, in the order of [`State::ALL`].
    pub by_state: [RowCount; State::ALL.len()],
    /// Records that an operator must look at.
    pub dead_letters: RowCount,
    /// Effects that an operator must look at: dead, or unknown with no lookup left. Where there is an outbox.
    pub dead_effects: RowCount,
    /// Time since the last run of the unknown record that ran longest ago; `None` if no record is unknown.
    pub oldest_unknown: Option<Duration>,
}

/// The outcome of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewOutcome {
    /// The lease now ends here.
    Until(Timestamp),
    /// Another transaction has locked the row; the lease may still be ours.
    Busy,
    /// The record is at another version, or gone.
    Lost,
}

impl dyn Store {
    /// Returns the store of bodies.
    ///
    /// # Errors
    ///
    /// Fails permanently if the store has none.
    pub fn require_bodies(&self) -> Result<&dyn BodyStore, StoreError> {
        self.bodies().ok_or_else(|| self.lacks("store requests and results of phases"))
    }

    /// Returns what operators may ask of the store.
    ///
    /// # Errors
    ///
    /// Fails permanently if the store answers no such questions.
    pub fn require_browse(&self) -> Result<&dyn BrowseStore, StoreError> {
        self.browse().ok_or_else(|| self.lacks("list records"))
    }

    /// Returns the store of webhook evidence.
    ///
    /// # Errors
    ///
    /// Fails permanently if the store has none.
    pub fn require_evidence(&self) -> Result<&dyn EvidenceStore, StoreError> {
        self.evidence().ok_or_else(|| self.lacks("store webhook evidence"))
    }

    /// Returns the store as a copy reads and fills it.
    ///
    /// # Errors
    ///
    /// Fails permanently if the store can't be copied.
    pub fn require_copy(&self) -> Result<&dyn CopyStore, StoreError> {
        self.copy().ok_or_else(|| self.lacks("copy rows"))
    }

    fn lacks(&self, op: &'static str) -> StoreError {
        StoreError::lasting(self.facts().name, op, "this store cannot do it").unwritten()
    }
}
