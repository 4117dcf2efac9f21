//! A store that fails on demand, around a real one: before the write, after it (a lost reply), or not at all until it is
//! let go. For tests of what stands on a store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use ibid_core::change::{Change, Commit, History, Stored};
use ibid_core::evidence::{Evidence, Kept, Open, Witness};
use ibid_core::fingerprint::SecretId;
use ibid_core::reap::{Course, Reaped, Ripe};
use ibid_core::record::{Nonce, State, Version};
use ibid_core::scope::RecordId;
use ibid_core::store::{Browse, Counts, Filter, Pending, Renewed, SetOutcome, Store, StoreError};
use ibid_core::time::Timestamp;
use tokio::sync::watch;

/// A store that fails on demand.
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    mode: watch::Sender<Fault>,
    commits: AtomicUsize,
    bodies: AtomicUsize,
    apart: AtomicBool,
}

/// How the store behaves now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// As it should.
    None,
    /// Every call fails, and nothing is written.
    Down,
    /// Every commit is refused for good, and nothing is written.
    Refuses,
    /// Every commit is written, and its reply lost.
    LosesReplies,
    /// Every commit waits until another mode is set.
    Hangs,
    /// Every load waits until another mode is set.
    HangsReads,
    /// Every step of the reaper on this course fails.
    FailsOn(Course),
    /// What was read of bodies comes once another mode is set: as old as it is by then.
    HoldsBodies,
}

impl FaultyStore {
    /// Around `inner`, without a fault for now.
    pub fn new(inner: Arc<dyn Store>) -> Arc<FaultyStore> {
        let mode = watch::channel(Fault::None).0;
        let (commits, bodies) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(FaultyStore { inner, mode, commits, bodies, apart: AtomicBool::new(false) })
    }

    /// From now on each batch has a commit of its own.
    pub fn commit_apart(&self) {
        self.apart.store(true, Ordering::SeqCst);
    }

    /// Behave like this from now on.
    pub fn set(&self, fault: Fault) {
        self.mode.send_replace(fault);
    }

    /// Calls of `commit` so far.
    pub fn commits(&self) -> usize {
        self.commits.load(Ordering::SeqCst)
    }

    /// Bodies that were read so far, whether or not they have come.
    pub fn bodies_read(&self) -> usize {
        self.bodies.load(Ordering::SeqCst)
    }

    fn check(&self, op: &'static str) -> Result<(), StoreError> {
        match *self.mode.borrow() {
            Fault::Down => Err(StoreError::transient("faulty", op, "it is down")),
            _ => Ok(()),
        }
    }
}

impl Store for FaultyStore {
    fn kind(&self) -> &'static str {
        "faulty"
    }

    fn load(&self, ids: Vec<RecordId>) -> Pending<'_, Result<Vec<Option<Stored>>, StoreError>> {
        Box::pin(async move {
            let mut mode = self.mode.subscribe();
            let _ = mode.wait_for(|fault| *fault != Fault::HangsReads).await;
            self.check("load")?;
            self.inner.load(ids).await
        })
    }

    fn commit(&self, changes: Vec<Arc<Change>>) -> Pending<'_, Vec<Result<Commit, StoreError>>> {
        Box::pin(async move {
            self.commits.fetch_add(1, Ordering::SeqCst);
            let mut mode = self.mode.subscribe();
            // The sender lives as long as the store, so this waits only for another mode.
            let _ = mode.wait_for(|fault| *fault != Fault::Hangs).await;
            let count = changes.len();
            let lost = |_| Err(StoreError::transient("faulty", "commit", "no answer"));
            let no = |_| Err(StoreError::lasting("faulty", "commit", "permission denied"));
            if *self.mode.borrow() == Fault::Refuses {
                return (0..count).map(no).collect();
            }
            match self.check("commit") {
                Err(_) => (0..count).map(lost).collect(),
                Ok(()) => {
                    let loses = *self.mode.borrow() == Fault::LosesReplies;
                    let fates = self.inner.commit(changes).await;
                    if loses { (0..count).map(lost).collect() } else { fates }
                }
            }
        })
    }

    fn renew(&self, leases: Vec<(RecordId, Version)>) -> Pending<'_, Result<Vec<Renewed>, StoreError>> {
        Box::pin(async move {
            self.check("renew")?;
            self.inner.renew(leases).await
        })
    }

    fn due(&self, state: State, limit: u32) -> Pending<'_, Result<Vec<Stored>, StoreError>> {
        Box::pin(async move {
            self.check("due")?;
            self.inner.due(state, limit).await
        })
    }

    fn reap(&self, course: Course, from: i64, limit: u32) -> Pending<'_, Result<Reaped, StoreError>> {
        Box::pin(async move {
            self.check("reap")?;
            if *self.mode.borrow() == Fault::FailsOn(course) {
                return Err(StoreError::lasting("faulty", "reap", "not this course"));
            }
            self.inner.reap(course, from, limit).await
        })
    }

    fn ripe(&self, course: Course) -> Pending<'_, Result<Ripe, StoreError>> {
        self.inner.ripe(course)
    }

    fn other_secret(&self, known: Vec<SecretId>) -> Pending<'_, Result<Option<SecretId>, StoreError>> {
        self.inner.other_secret(known)
    }

    fn lanes(&self) -> usize {
        self.inner.lanes()
    }

    fn shares_commits(&self) -> bool {
        self.inner.shares_commits() && !self.apart.load(Ordering::SeqCst)
    }

    fn bodies(&self, id: RecordId, birth: Nonce) -> Pending<'_, Result<Vec<(u32, Bytes)>, StoreError>> {
        Box::pin(async move {
            self.check("read bodies")?;
            let read = self.inner.bodies(id, birth).await;
            self.bodies.fetch_add(1, Ordering::SeqCst);
            let _ = self.mode.subscribe().wait_for(|fault| *fault != Fault::HoldsBodies).await;
            read
        })
    }

    fn setting(&self, name: &str) -> Pending<'_, Result<Option<Bytes>, StoreError>> {
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
    ) -> Pending<'_, Result<SetOutcome, StoreError>> {
        let name = name.to_owned();
        Box::pin(async move {
            self.check("write a setting")?;
            self.inner.compare_and_set(&name, expected, value).await
        })
    }
}

impl Browse for FaultyStore {
    fn list(&self, filter: Filter) -> Pending<'_, Result<Vec<Stored>, StoreError>> {
        self.inner.list(filter)
    }

    fn history(&self, id: RecordId) -> Pending<'_, Result<Vec<(Timestamp, History)>, StoreError>> {
        self.inner.history(id)
    }

    fn count(&self) -> Pending<'_, Result<Counts, StoreError>> {
        self.inner.count()
    }
}

impl Witness for FaultyStore {
    fn testify(
        &self,
        evidence: Evidence,
        keep_for: Duration,
    ) -> Pending<'_, Result<(Kept, bool), StoreError>> {
        Box::pin(async move {
            self.check("keep evidence")?;
            self.inner.testify(evidence, keep_for).await
        })
    }

    fn evidence(&self, which: Open, limit: u32) -> Pending<'_, Result<Vec<Kept>, StoreError>> {
        Box::pin(async move {
            self.check("find evidence")?;
            self.inner.evidence(which, limit).await
        })
    }

    fn dismiss(&self, seqs: Vec<i64>) -> Pending<'_, Result<(), StoreError>> {
        self.inner.dismiss(seqs)
    }

    fn purge_evidence(&self, limit: u32) -> Pending<'_, Result<u64, StoreError>> {
        self.inner.purge_evidence(limit)
    }
}
