//! A store that fails on demand, around a real one: before the write, after it (a lost reply), or by hanging until it is
//! released. For tests of the code above a store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use ibid_core::change::{Change, Commit, Expect, History, StoredRecord};
use ibid_core::evidence::{Evidence, EvidenceQuery, EvidenceStore, StoredEvidence};
use ibid_core::fingerprint::SecretId;
use ibid_core::reap::{ReapCount, ReapStep, ReapTarget};
use ibid_core::record::{Nonce, State, Version};
use ibid_core::scope::RecordId;
use ibid_core::store::{
    BoxFuture, Browse, RecordCounts, RecordFilter, RenewOutcome, SetOutcome, Store, StoreError,
};
use ibid_core::time::Timestamp;
use tokio::sync::watch;

/// A wrapper around a store that fails on demand.
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    mode: watch::Sender<StoreFault>,
    commits: AtomicUsize,
    bodies: AtomicUsize,
    renewals: AtomicUsize,
    apart: AtomicBool,
}

/// The current behaviour of a [`FaultyStore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFault {
    /// Every call reaches the inner store.
    None,
    /// Every call fails, and nothing is written.
    Down,
    /// Every commit and every write of a setting is refused permanently, and nothing is written.
    Refuses,
    /// Every commit is written, and its reply is lost.
    LosesReplies,
    /// Every commit waits until another mode is set.
    Hangs,
    /// Every takeover gets no reply, and is not written yet. Other changes are.
    LosesTakeovers,
    /// Every takeover finds its row locked: it is refused, and the record is still due. Other changes are written.
    LocksRows,
    /// Every renewal waits until another mode is set.
    HangsRenewals,
    /// Every load waits until another mode is set.
    HangsReads,
    /// Every step of the reaper on this target fails.
    FailsOn(ReapTarget),
    /// Bodies are read at once and returned when another mode is set, as stale as they are by then.
    HoldsBodies,
}

impl FaultyStore {
    /// Wraps `inner`, without a fault for now.
    pub fn new(inner: Arc<dyn Store>) -> Arc<FaultyStore> {
        let mode = watch::channel(StoreFault::None).0;
        let (commits, bodies) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (renewals, apart) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(FaultyStore { inner, mode, commits, bodies, renewals, apart })
    }

    /// Makes each batch a separate commit from now on.
    pub fn commit_apart(&self) {
        self.apart.store(true, Ordering::SeqCst);
    }

    /// Sets the behaviour from now on.
    pub fn set(&self, fault: StoreFault) {
        self.mode.send_replace(fault);
    }

    /// Returns the number of `commit` calls so far.
    pub fn commits(&self) -> usize {
        self.commits.load(Ordering::SeqCst)
    }

    /// Returns the number of `renew` calls so far.
    pub fn renewals(&self) -> usize {
        self.renewals.load(Ordering::SeqCst)
    }

    /// Returns how many reads of bodies were made so far, returned or not.
    pub fn bodies_read(&self) -> usize {
        self.bodies.load(Ordering::SeqCst)
    }

    async fn commit_around_locks(&self, change: Arc<Change>) -> Result<Commit, StoreError> {
        if matches!(change.expect, Expect::Due(_)) {
            if *self.mode.borrow() == StoreFault::LosesTakeovers {
                return Err(StoreError::transient("faulty", "commit", "no answer"));
            }
            let stored = self.inner.load(vec![change.id]).await?.pop().flatten();
            return Ok(Commit::Conflict(stored.map(Box::new)));
        }
        self.inner.commit(vec![change]).await.remove(0)
    }

    fn check(&self, op: &'static str) -> Result<(), StoreError> {
        match *self.mode.borrow() {
            StoreFault::Down => Err(StoreError::transient("faulty", op, "it is down")),
            _ => Ok(()),
        }
    }
}

impl Store for FaultyStore {
    fn kind(&self) -> &'static str {
        "faulty"
    }

    fn load(&self, ids: Vec<RecordId>) -> BoxFuture<'_, Result<Vec<Option<StoredRecord>>, StoreError>> {
        Box::pin(async move {
            let mut mode = self.mode.subscribe();
            let _ = mode.wait_for(|fault| *fault != StoreFault::HangsReads).await;
            self.check("load")?;
            self.inner.load(ids).await
        })
    }

    fn commit(&self, changes: Vec<Arc<Change>>) -> BoxFuture<'_, Vec<Result<Commit, StoreError>>> {
        Box::pin(async move {
            self.commits.fetch_add(1, Ordering::SeqCst);
            let mut mode = self.mode.subscribe();
            // The sender lives as long as the store, so this waits only for another mode.
            let _ = mode.wait_for(|fault| *fault != StoreFault::Hangs).await;
            let count = changes.len();
            let lost = |_| Err(StoreError::transient("faulty", "commit", "no answer"));
            let no = |_| Err(StoreError::lasting("faulty", "commit", "permission denied"));
            if *self.mode.borrow() == StoreFault::Refuses {
                return (0..count).map(no).collect();
            }
            if matches!(*self.mode.borrow(), StoreFault::LosesTakeovers | StoreFault::LocksRows) {
                let mut fates = Vec::new();
                for change in changes {
                    fates.push(self.commit_around_locks(change).await);
                }
                return fates;
            }
            match self.check("commit") {
                Err(_) => (0..count).map(lost).collect(),
                Ok(()) => {
                    let loses = *self.mode.borrow() == StoreFault::LosesReplies;
                    let fates = self.inner.commit(changes).await;
                    if loses { (0..count).map(lost).collect() } else { fates }
                }
            }
        })
    }

    fn renew(
        &self,
        leases: Vec<(RecordId, Version)>,
    ) -> BoxFuture<'_, Result<Vec<RenewOutcome>, StoreError>> {
        Box::pin(async move {
            self.renewals.fetch_add(1, Ordering::SeqCst);
            let mut mode = self.mode.subscribe();
            let _ = mode.wait_for(|fault| *fault != StoreFault::HangsRenewals).await;
            self.check("renew")?;
            self.inner.renew(leases).await
        })
    }

    fn due(&self, state: State, limit: u32) -> BoxFuture<'_, Result<Vec<StoredRecord>, StoreError>> {
        Box::pin(async move {
            self.check("due")?;
            self.inner.due(state, limit).await
        })
    }

    fn reap(&self, course: ReapTarget, from: i64, limit: u32) -> BoxFuture<'_, Result<ReapStep, StoreError>> {
        Box::pin(async move {
            self.check("reap")?;
            if *self.mode.borrow() == StoreFault::FailsOn(course) {
                return Err(StoreError::lasting("faulty", "reap", "not this course"));
            }
            self.inner.reap(course, from, limit).await
        })
    }

    fn count_reapable(&self, course: ReapTarget) -> BoxFuture<'_, Result<ReapCount, StoreError>> {
        self.inner.count_reapable(course)
    }

    fn find_unknown_secret(
        &self,
        known: Vec<SecretId>,
    ) -> BoxFuture<'_, Result<Option<SecretId>, StoreError>> {
        self.inner.find_unknown_secret(known)
    }

    fn parallel_batches(&self) -> usize {
        self.inner.parallel_batches()
    }

    fn shares_commits(&self) -> bool {
        self.inner.shares_commits() && !self.apart.load(Ordering::SeqCst)
    }

    fn bodies(&self, id: RecordId, birth: Nonce) -> BoxFuture<'_, Result<Vec<(u32, Bytes)>, StoreError>> {
        Box::pin(async move {
            self.check("read bodies")?;
            let read = self.inner.bodies(id, birth).await;
            self.bodies.fetch_add(1, Ordering::SeqCst);
            let _ = self.mode.subscribe().wait_for(|fault| *fault != StoreFault::HoldsBodies).await;
            read
        })
    }

    fn setting(&self, name: &str) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>> {
        let name = name.to_owned();
        Box::pin(async move {
            self.check("read a setting")?;
            self.inner.setting(&name).await
        })
    }

    fn compare_and_set(
        &self,
        name: &str,
        expected: Option<Bytes>,
        value: Bytes,
    ) -> BoxFuture<'_, Result<SetOutcome, StoreError>> {
        let name = name.to_owned();
        Box::pin(async move {
            self.check("write a setting")?;
            if *self.mode.borrow() == StoreFault::Refuses {
                return Err(StoreError::lasting("faulty", "write a setting", "permission denied"));
            }
            self.inner.compare_and_set(&name, expected, value).await
        })
    }
}

impl Browse for FaultyStore {
    fn list(&self, filter: RecordFilter) -> BoxFuture<'_, Result<Vec<StoredRecord>, StoreError>> {
        self.inner.list(filter)
    }

    fn history(&self, id: RecordId) -> BoxFuture<'_, Result<Vec<(Timestamp, History)>, StoreError>> {
        self.inner.history(id)
    }

    fn count(&self) -> BoxFuture<'_, Result<RecordCounts, StoreError>> {
        self.inner.count()
    }
}

impl EvidenceStore for FaultyStore {
    fn insert_evidence(
        &self,
        evidence: Evidence,
        keep_for: Duration,
    ) -> BoxFuture<'_, Result<(StoredEvidence, bool), StoreError>> {
        Box::pin(async move {
            self.check("keep evidence")?;
            self.inner.insert_evidence(evidence, keep_for).await
        })
    }

    fn open_evidence(
        &self,
        which: EvidenceQuery,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<StoredEvidence>, StoreError>> {
        Box::pin(async move {
            self.check("find evidence")?;
            self.inner.open_evidence(which, limit).await
        })
    }

    fn dismiss_evidence(&self, seqs: Vec<i64>) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.dismiss_evidence(seqs)
    }

    fn purge_evidence(&self, limit: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        self.inner.purge_evidence(limit)
    }
}
