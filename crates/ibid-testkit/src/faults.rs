//! A store that fails on demand, around a real one: before the write, after it (a lost reply), or by hanging until it is
//! released. For tests of the code above a store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ibid_core::change::{Change, Commit, Expect, HistoryLine, LoadedBody, StoredRecord};
use ibid_core::evidence::{EventName, Evidence, EvidenceQuery, EvidenceStore, StoredEvidence};
use ibid_core::fingerprint::SecretId;
use ibid_core::reap::{ReapCount, ReapStep, ReapTarget};
use ibid_core::record::{Nonce, State, Version};
use ibid_core::scope::RecordId;
use ibid_core::store::{
    BodyStore, BoxFuture, BrowseStore, Cursor, Page, RecordCounts, RecordFilter, RenewOutcome, RowCount,
    SetOutcome, Store, StoreError, StoreFacts, Tiers,
};
use tokio::sync::watch;

/// A wrapper around a store that fails on demand.
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    mode: watch::Sender<StoreFault>,
    commits: AtomicUsize,
    bodies: AtomicUsize,
    renewals: AtomicUsize,
    loads: AtomicUsize,
    setting_writes: AtomicUsize,
    secret_searches: AtomicUsize,
    evidence_inserts: AtomicUsize,
    tiers: Tiers,
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
    /// Every begin waits in a queue until its time is over, and is dropped a moment later. Other changes are written.
    DropsBegins,
    /// Every takeover gets no reply, and is not written yet. Other changes are.
    LosesTakeovers,
    /// Every takeover finds its row locked: it is refused, and the record is still due. Other changes are written.
    LocksRows,
    /// The next takeover finds its row locked, and then the fault is over.
    LocksNextRow,
    /// Every change that begins an attempt is refused at once. Other changes are written.
    TakesNoBegins,
    /// Every renewal waits until another mode is set.
    HangsRenewals,
    /// Every load, and every read of due records, waits until another mode is set.
    HangsReads,
    /// Every load takes a millisecond, as one over a network.
    SlowReads,
    /// Every commit to this record finds its row locked: nothing is written, and the same call may succeed later.
    LocksRecord(RecordId),
    /// Every write of a setting waits until another mode is set.
    HangsSettings,
    /// Every write of a setting panics.
    PanicsOnSettings,
    /// Every insert of evidence waits until another mode is set.
    HangsEvidence,
    /// Every search for evidence about this record panics.
    PanicsOnEvidenceOf(RecordId),
    /// Every step of the reaper waits until another mode is set.
    HangsReaping,
    /// Every step of the reaper takes five seconds, as one over a very slow disk.
    SlowReaping,
    /// Bodies of every other record than this one can't be read.
    FailsBodiesExcept(RecordId),
    /// Every step of the reaper on this target fails.
    FailsOn(ReapTarget),
    /// Bodies are read at once and returned when another mode is set, as stale as they are by then.
    HoldsBodies,
    /// Counts are estimates, as those of a store with a large table.
    Estimates,
}

impl FaultyStore {
    /// Wraps `inner`, without a fault for now.
    pub fn new(inner: Arc<dyn Store>) -> Arc<FaultyStore> {
        FaultyStore::with_tiers(inner, Tiers::ALL)
    }

    /// Wraps `inner`, and hides its capabilities that are not among `tiers`.
    pub fn with_tiers(inner: Arc<dyn Store>, tiers: Tiers) -> Arc<FaultyStore> {
        Arc::new(FaultyStore {
            inner,
            mode: watch::channel(StoreFault::None).0,
            commits: AtomicUsize::new(0),
            bodies: AtomicUsize::new(0),
            renewals: AtomicUsize::new(0),
            loads: AtomicUsize::new(0),
            setting_writes: AtomicUsize::new(0),
            secret_searches: AtomicUsize::new(0),
            evidence_inserts: AtomicUsize::new(0),
            tiers,
        })
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

    /// Returns the number of `load` calls so far.
    pub fn loads(&self) -> usize {
        self.loads.load(Ordering::SeqCst)
    }

    /// Returns the number of `compare_and_set` calls so far.
    pub fn setting_writes(&self) -> usize {
        self.setting_writes.load(Ordering::SeqCst)
    }

    /// Returns how often records that name an unknown secret were searched so far.
    pub fn secret_searches(&self) -> usize {
        self.secret_searches.load(Ordering::SeqCst)
    }

    /// Returns the number of inserts of evidence so far, done or not.
    pub fn evidence_inserts(&self) -> usize {
        self.evidence_inserts.load(Ordering::SeqCst)
    }

    /// Returns how many reads of bodies were made so far, returned or not.
    pub fn bodies_read(&self) -> usize {
        self.bodies.load(Ordering::SeqCst)
    }

    async fn commit_around_locks(&self, change: Arc<Change>, mode: StoreFault) -> Result<Commit, StoreError> {
        if matches!(change.expect, Expect::Due(_)) {
            if mode == StoreFault::LosesTakeovers {
                return Err(StoreError::transient("faulty", "commit", "no answer"));
            }
            if mode == StoreFault::LocksNextRow {
                self.set(StoreFault::None);
            }
            let stored = self.inner.load(change.id).await?;
            return Ok(Commit::Conflict(stored.map(Box::new)));
        }
        self.inner.commit(change, None).await
    }

    /// Waits until the mode is another than `fault`. The sender lives as long as the store, so it waits for nothing else.
    async fn wait_out(&self, fault: StoreFault) {
        let _ = self.mode.subscribe().wait_for(|mode| *mode != fault).await;
    }

    fn check(&self, op: &'static str) -> Result<(), StoreError> {
        match *self.mode.borrow() {
            StoreFault::Down => Err(StoreError::transient("faulty", op, "it is down")),
            _ => Ok(()),
        }
    }
}

impl Store for FaultyStore {
    fn facts(&self) -> StoreFacts {
        StoreFacts { name: "faulty", ..self.inner.facts() }
    }

    fn load(&self, id: RecordId) -> BoxFuture<'_, Result<Option<StoredRecord>, StoreError>> {
        Box::pin(async move {
            self.loads.fetch_add(1, Ordering::SeqCst);
            self.wait_out(StoreFault::HangsReads).await;
            if *self.mode.borrow() == StoreFault::SlowReads {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            self.check("load")?;
            self.inner.load(id).await
        })
    }

    fn commit(
        &self,
        change: Arc<Change>,
        send_by: Option<Instant>,
    ) -> BoxFuture<'_, Result<Commit, StoreError>> {
        Box::pin(async move {
            self.commits.fetch_add(1, Ordering::SeqCst);
            self.wait_out(StoreFault::Hangs).await;
            let mode = *self.mode.borrow();
            // A store that is not in memory always lets others run meanwhile.
            tokio::task::yield_now().await;
            let lost = || Err(StoreError::transient("faulty", "commit", "no answer"));
            match mode {
                StoreFault::Refuses => Err(StoreError::lasting("faulty", "commit", "permission denied")),
                StoreFault::Down => lost(),
                StoreFault::LocksRecord(id) if id == change.id => {
                    Err(StoreError::row_locked("faulty", "commit", "the row is locked"))
                }
                StoreFault::LosesReplies => {
                    let _ = self.inner.commit(change, send_by).await;
                    lost()
                }
                StoreFault::DropsBegins if let Some(send_by) = send_by => {
                    tokio::time::sleep_until(send_by.into()).await;
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    Err(StoreError::overloaded("faulty", "commit"))
                }
                StoreFault::TakesNoBegins if change.begins_attempt(send_by.is_some()) => {
                    Err(StoreError::no_room("faulty", "commit", "it is full"))
                }
                StoreFault::LosesTakeovers | StoreFault::LocksRows | StoreFault::LocksNextRow => {
                    self.commit_around_locks(change, mode).await
                }
                _ => self.inner.commit(change, send_by).await,
            }
        })
    }

    fn renew(
        &self,
        leases: Vec<(RecordId, Version)>,
    ) -> BoxFuture<'_, Result<Vec<RenewOutcome>, StoreError>> {
        Box::pin(async move {
            self.renewals.fetch_add(1, Ordering::SeqCst);
            self.wait_out(StoreFault::HangsRenewals).await;
            self.check("renew")?;
            self.inner.renew(leases).await
        })
    }

    fn due(
        &self,
        state: State,
        after: Option<Cursor>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Page<StoredRecord>, StoreError>> {
        Box::pin(async move {
            self.wait_out(StoreFault::HangsReads).await;
            self.check("due")?;
            self.inner.due(state, after, limit).await
        })
    }

    fn reap(
        &self,
        target: ReapTarget,
        after: Option<Cursor>,
        limit: u32,
    ) -> BoxFuture<'_, Result<ReapStep, StoreError>> {
        Box::pin(async move {
            self.wait_out(StoreFault::HangsReaping).await;
            if *self.mode.borrow() == StoreFault::SlowReaping {
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
            self.check("reap")?;
            if *self.mode.borrow() == StoreFault::FailsOn(target) {
                return Err(StoreError::lasting("faulty", "reap", "not this target"));
            }
            self.inner.reap(target, after, limit).await
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
            self.setting_writes.fetch_add(1, Ordering::SeqCst);
            self.wait_out(StoreFault::HangsSettings).await;
            self.check("write a setting")?;
            let mode = *self.mode.borrow();
            assert!(mode != StoreFault::PanicsOnSettings, "for a test");
            if mode == StoreFault::Refuses {
                return Err(StoreError::lasting("faulty", "write a setting", "permission denied"));
            }
            self.inner.compare_and_set(&name, expected, value).await
        })
    }

    fn bodies(&self) -> Option<&dyn BodyStore> {
        self.inner.bodies().filter(|_| self.tiers.bodies).map(|_| self as &dyn BodyStore)
    }

    fn browse(&self) -> Option<&dyn BrowseStore> {
        self.inner.browse().filter(|_| self.tiers.browse).map(|_| self as &dyn BrowseStore)
    }

    fn evidence(&self) -> Option<&dyn EvidenceStore> {
        self.inner.evidence().filter(|_| self.tiers.evidence).map(|_| self as &dyn EvidenceStore)
    }

    // No `sql`: a caller's transaction would pass the faults by.
}

impl BodyStore for FaultyStore {
    fn bodies(&self, id: RecordId, birth: Nonce) -> BoxFuture<'_, Result<Vec<LoadedBody>, StoreError>> {
        Box::pin(async move {
            self.check("read bodies")?;
            let mode = *self.mode.borrow();
            if matches!(mode, StoreFault::FailsBodiesExcept(except) if except != id) {
                return Err(StoreError::lasting("faulty", "read bodies", "not of this record"));
            }
            let read = self.inner.bodies().expect("it was asked for").bodies(id, birth).await;
            self.bodies.fetch_add(1, Ordering::SeqCst);
            self.wait_out(StoreFault::HoldsBodies).await;
            read
        })
    }
}

impl FaultyStore {
    fn inner_browse(&self) -> &dyn BrowseStore {
        self.inner.browse().expect("it was asked for")
    }

    fn inner_evidence(&self, op: &'static str) -> Result<&dyn EvidenceStore, StoreError> {
        self.check(op)?;
        Ok(self.inner.evidence().expect("it was asked for"))
    }
}

/// An operator's view of the inner store, faults or not.
impl BrowseStore for FaultyStore {
    fn list(&self, filter: RecordFilter) -> BoxFuture<'_, Result<Page<StoredRecord>, StoreError>> {
        self.inner_browse().list(filter)
    }

    fn history(&self, id: RecordId) -> BoxFuture<'_, Result<Vec<HistoryLine>, StoreError>> {
        self.inner_browse().history(id)
    }

    fn count(&self) -> BoxFuture<'_, Result<RecordCounts, StoreError>> {
        Box::pin(async move {
            let counts = self.inner_browse().count().await?;
            let estimate = |count: RowCount| count.value().map_or(RowCount::Unknown, RowCount::Estimated);
            match *self.mode.borrow() == StoreFault::Estimates {
                true => Ok(RecordCounts { by_state: counts.by_state.map(estimate), ..counts }),
                false => Ok(counts),
            }
        })
    }

    fn count_reapable(&self, target: ReapTarget) -> BoxFuture<'_, Result<ReapCount, StoreError>> {
        self.inner_browse().count_reapable(target)
    }

    fn find_unknown_secret(
        &self,
        known: Vec<SecretId>,
    ) -> BoxFuture<'_, Result<Option<SecretId>, StoreError>> {
        self.secret_searches.fetch_add(1, Ordering::SeqCst);
        self.inner_browse().find_unknown_secret(known)
    }
}

impl EvidenceStore for FaultyStore {
    fn insert_evidence(
        &self,
        evidence: Evidence,
        keep_for: Duration,
    ) -> BoxFuture<'_, Result<(StoredEvidence, bool), StoreError>> {
        Box::pin(async move {
            self.evidence_inserts.fetch_add(1, Ordering::SeqCst);
            self.wait_out(StoreFault::HangsEvidence).await;
            self.inner_evidence("keep evidence")?.insert_evidence(evidence, keep_for).await
        })
    }

    fn open_evidence(
        &self,
        which: EvidenceQuery,
        after: Option<Cursor>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Page<StoredEvidence>, StoreError>> {
        Box::pin(async move {
            if let (StoreFault::PanicsOnEvidenceOf(panics), EvidenceQuery::Of(id)) =
                (*self.mode.borrow(), which)
            {
                assert!(panics != id, "for a test");
            }
            self.inner_evidence("find evidence")?.open_evidence(which, after, limit).await
        })
    }

    fn dismiss_evidence(&self, names: Vec<EventName>) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move { self.inner_evidence("dismiss evidence")?.dismiss_evidence(names).await })
    }

    fn purge_evidence(&self, limit: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move { self.inner_evidence("purge evidence")?.purge_evidence(limit).await })
    }
}
