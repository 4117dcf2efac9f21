//! What a store must do: a versioned compare-and-set that holds no opinion on states. `machine` never imports this.
//!
//! Every store passes `ibid_testkit::contract::exercise`.

mod filter;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::change::{Change, Commit, History, StoredRecord};
use crate::evidence::EvidenceStore;
use crate::fingerprint::SecretId;
use crate::policy::Policy;
use crate::reap::{ReapCount, ReapStep, ReapTarget};
use crate::record::{Nonce, State, Version};
use crate::scope::RecordId;
use crate::sql::{Dialect, SqlError, SqlTx};
use crate::time::Timestamp;

pub use filter::{PathPart, PathPattern, RecordFilter};

/// A boxed future: one box per round trip is free, a type parameter in every user's signature is not.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Where Records live.
///
/// A future that is dropped does not take its write back: a commit is never cancelled.
pub trait Store: Browse + EvidenceStore + Send + Sync + 'static {
    /// The store's kind, for messages to operators; clients never see it.
    fn kind(&self) -> &'static str;

    /// The records with these ids, each at the place of its id.
    fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Result<Vec<Option<StoredRecord>>, StoreError>>;

    /// Writes each Change or says what stood in its way, at its place. When it returns, what is `Done` is on disk.
    ///
    /// The caller sends at most one Change per id, sorted by id. One Change's fate never touches another's. An error
    /// may hide a write that happened: the caller sends the same Change again and recognises its own nonce.
    fn commit(&self, changes: Vec<Arc<Change>>) -> BoxFuture<'_, Vec<Result<Commit, StoreError>>>;

    /// Moves the due instant of each record that is still at its Version to now + its lease, and nothing else.
    fn renew(&self, leases: Vec<(RecordId, Version)>)
    -> BoxFuture<'_, Result<Vec<RenewOutcome>, StoreError>>;

    /// Records in `state` whose due instant has passed, longest due first. If more are due than fit, those that a store has yet to
    /// look for may come another time.
    fn due(&self, state: State, limit: u32) -> BoxFuture<'_, Result<Vec<StoredRecord>, StoreError>>;

    /// Takes one step on a course, oldest first: what may go of the next `limit` rows or fewer from `from` on. It names
    /// no Version but an instant; what it strips has another Version afterwards, so that whoever read it before comes too late.
    fn reap(&self, course: ReapTarget, from: i64, limit: u32) -> BoxFuture<'_, Result<ReapStep, StoreError>>;

    /// What `reap` would find on a course if it went to its end now. Read-only.
    fn count_reapable(&self, course: ReapTarget) -> BoxFuture<'_, Result<ReapCount, StoreError>>;

    /// A secret that some record's fingerprint names and that is not among `known`.
    fn find_unknown_secret(
        &self,
        known: Vec<SecretId>,
    ) -> BoxFuture<'_, Result<Option<SecretId>, StoreError>>;

    /// How many batches it is best given at once.
    fn parallel_batches(&self) -> usize {
        // A store that commits together whatever waits: with fewer, what arrives behind them would wait outside for a whole
        // commit. With more, each batch is so small that handing it over costs more than it saves.
        4
    }

    /// Whether batches that are given at the same time share a commit, so that a small one has no price of its own.
    fn shares_commits(&self) -> bool {
        true
    }

    /// What is kept beside one generation of a record: the code of each kind, and its bytes.
    fn bodies(&self, id: RecordId, birth: Nonce) -> BoxFuture<'_, Result<Vec<(u32, Bytes)>, StoreError>>;

    /// What a SQL store can do beyond the verbs of every store; none for others.
    fn sql(&self) -> Option<&dyn SqlStore> {
        None
    }

    /// Returns the value of the setting `name`; none if it was never set.
    fn setting(&self, name: &str) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>>;

    /// Sets `name` to `value` where its value is `expected` (none: it was never set). When it returns
    /// [`SetOutcome::Won`], the value is on disk.
    ///
    /// An error may hide a write that happened. The caller repeats the call: a setting that has `value` already counts as
    /// won, whoever wrote it.
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
            if let Some(kept) = self.setting(name).await? {
                return Ok(kept);
            }
            match self.compare_and_set(name, None, value.clone()).await? {
                SetOutcome::Lost(Some(kept)) => Ok(kept),
                SetOutcome::Won | SetOutcome::Lost(None) => Ok(value),
            }
        })
    }
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

/// A store whose Changes can be applied inside a caller's own transaction on the same database, with an outbox beside.
pub trait SqlStore: Send + Sync {
    /// Whose SQL it speaks; the caller's transactions must speak the same.
    fn dialect(&self) -> Dialect;

    /// The store's clock, where statements can't read it themselves; none: the server's own is read inside each.
    fn now(&self) -> Option<Timestamp>;

    /// Whether a caller's commit must survive a crash of the server, whatever the caller's session is set to. Not where
    /// less was accepted for the store itself.
    fn must_be_durable(&self) -> bool {
        true
    }

    /// The number under which rows name `policy`, once it is on disk: a caller's transaction must not be what makes it
    /// so, for it may roll back.
    fn policy(&self, policy: Arc<Policy>) -> BoxFuture<'_, Result<i64, StoreError>>;

    /// A mark of this moment: every transaction that has written by now is before it.
    fn transaction_mark(&self) -> BoxFuture<'_, Result<i64, StoreError>> {
        // One writer at a time: what has written by now has ended when the next write begins.
        Box::pin(std::future::ready(Ok(0)))
    }

    /// Whether every transaction before the mark has ended.
    fn is_settled_before(&self, mark: i64) -> BoxFuture<'_, Result<bool, StoreError>> {
        let _ = mark;
        Box::pin(std::future::ready(Ok(true)))
    }

    /// Does a piece of work in a transaction of the store's own, and commits it unless the work fails. The work may
    /// wait for nothing but the transaction that it is given.
    fn work(&self, work: Work) -> BoxFuture<'_, Result<(), StoreError>>;
}

/// A piece of work in one transaction. What it finds it hands out by itself.
pub type Work = Box<dyn for<'a> FnOnce(&'a mut dyn SqlTx) -> BoxFuture<'a, Result<(), SqlError>> + Send>;

/// What an operator asks of a store. Read-only.
pub trait Browse: Send + Sync {
    /// Records that fit, in the order of their ids.
    fn list(&self, filter: RecordFilter) -> BoxFuture<'_, Result<Vec<StoredRecord>, StoreError>>;

    /// The history of one record, oldest first.
    fn history(&self, id: RecordId) -> BoxFuture<'_, Result<Vec<(Timestamp, History)>, StoreError>>;

    /// How many records are in each state, and how many are dead letters, Effects among them.
    fn count(&self) -> BoxFuture<'_, Result<RecordCounts, StoreError>>;
}

/// How many records there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordCounts {
    /// By state, in the order of [`State::ALL`].
    pub by_state: [u64; State::ALL.len()],
    /// Those that a person must look at.
    pub dead_letters: u64,
    /// Effects that a person must look at: dead, or unknown with nobody left to ask. Where there is an outbox.
    pub dead_effects: u64,
    /// How long ago the one whose last run began first did so, by state and by the store's clock; what never ran counts
    /// from when it came.
    pub oldest: [Option<Duration>; State::ALL.len()],
}

/// What came of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewOutcome {
    /// The lease now ends here.
    Until(Timestamp),
    /// Somebody holds the row right now; it may still be ours.
    Busy,
    /// The record is at another Version, or gone.
    Lost,
}

/// A store that could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[error("could not {op} in the {store} store")]
pub struct StoreError {
    op: &'static str,
    store: &'static str,
    transient: bool,
    unwritten: bool,
    #[source]
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl StoreError {
    /// A failure that may be gone when the same call is repeated.
    pub fn transient(
        store: &'static str,
        op: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        StoreError { op, store, transient: true, unwritten: false, source: source.into() }
    }

    /// A failure that repetition won't mend: this one Change can't be stored, or the store is not ours.
    pub fn lasting(
        store: &'static str,
        op: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        StoreError { op, store, transient: false, unwritten: false, source: source.into() }
    }

    /// The same failure, with proof that nothing was written.
    #[must_use]
    pub fn unwritten(self) -> Self {
        StoreError { unwritten: true, ..self }
    }

    /// Whether the same call may succeed if repeated.
    pub fn is_transient(&self) -> bool {
        self.transient
    }

    /// Whether it is proven that nothing was written. Without the proof an error may hide a write that happened.
    pub fn is_unwritten(&self) -> bool {
        self.unwritten
    }
}
