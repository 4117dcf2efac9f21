//! The bounded queue between the async side and the thread that writes. It decides what shares a transaction.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use ibid_core::change::{Change, Commit};
use ibid_core::record::Version;
use ibid_core::scope::{RecordId, Tenant};
use ibid_core::store::{RenewOutcome, StoreError};
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::oneshot::Sender;

use super::NAME;
use super::chore::{Chore, ChoreKind};
use super::writer::Writer;
use crate::store::send_deadline::SendDeadline;

/// A change that waits for its commit.
pub(super) struct CommitJob {
    pub(super) change: Arc<Change>,
    /// Instant at which its client gives up. The change is not sent after that.
    pub(super) limit: Option<SendDeadline>,
    pub(super) reply: Sender<Result<Commit, StoreError>>,
}

/// Leases that wait for their renewal.
pub(super) struct RenewJob {
    pub(super) leases: Vec<(RecordId, Version)>,
    pub(super) reply: Sender<Result<Vec<RenewOutcome>, StoreError>>,
}

/// A caller's closure, which has a transaction for itself and sends its own reply.
pub(super) type Closure = Box<dyn FnOnce(&mut Writer) + Send>;

/// A piece of work for the writer.
pub(super) enum Job {
    Commit(CommitJob),
    Renew(RenewJob),
    Chore(Box<dyn Chore>),
    Closure(Closure),
}

/// Jobs that share one transaction: renewals first, because a lease that lapses in a queue costs an `unknown`.
#[derive(Default)]
pub(super) struct Group {
    pub(super) renewals: Vec<RenewJob>,
    pub(super) commits: Vec<CommitJob>,
    /// Settings, then evidence, then a step.
    pub(super) chores: Vec<Box<dyn Chore>>,
}

impl Group {
    pub(super) fn is_empty(&self) -> bool {
        self.renewals.is_empty() && self.commits.is_empty() && self.chores.is_empty()
    }

    /// Returns whether its commit has to be on disk before the replies.
    pub(super) fn must_flush(&self) -> bool {
        let has_writes = !self.renewals.is_empty() || !self.commits.is_empty();
        has_writes || self.chores.iter().any(|chore| chore.kind() != ChoreKind::Step)
    }
}

/// The next work of the writer.
pub(super) enum NextWork {
    Group(Group),
    Closure(Closure),
    /// No job came for as long as the writer wanted to wait.
    Idle,
    /// The queue is closed and empty.
    Closed,
}

/// Jobs in lanes, each in the order in which they came.
pub(super) struct JobQueue {
    lanes: Mutex<Lanes>,
    filled: Condvar,
}

#[derive(Default)]
struct Lanes {
    renewals: VecDeque<RenewJob>,
    commits: VecDeque<CommitJob>,
    settings: VecDeque<Box<dyn Chore>>,
    evidence: VecDeque<Box<dyn Chore>>,
    steps: VecDeque<Box<dyn Chore>>,
    closures: VecDeque<Closure>,
    /// Groups and closures take turns, so that neither waits for the whole of the other.
    is_closures_turn: bool,
    weight: QueuedWeight,
    /// Changes that the writer gathers. It is woken once, by the last of them; zero: it is woken by any job.
    gathering: usize,
    closed: bool,
}

/// A job that the queue did not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum QueueError {
    /// Too much is waiting.
    #[error("too many requests are waiting for the disk")]
    Full,
    /// The thread at the other end is gone.
    #[error("the store is closed")]
    Closed,
}

impl QueueError {
    /// Converts the refusal to an error that proves that nothing was written.
    pub(super) fn store_error(self, op: &'static str) -> StoreError {
        match self {
            QueueError::Full => StoreError::overloaded(NAME, op),
            QueueError::Closed => StoreError::transient(NAME, op, self).unwritten(),
        }
    }
}

impl JobQueue {
    pub(super) fn new() -> Arc<JobQueue> {
        Arc::new(JobQueue { lanes: Mutex::default(), filled: Condvar::new() })
    }

    /// Adds a job, or refuses it at once: no caller waits for room.
    ///
    /// A finish and a renewal are never refused: the one would lose a response, the other would cost an `unknown`, and both
    /// are bounded by the attempts that live.
    pub(super) fn push(&self, job: Job) -> Result<(), QueueError> {
        let mut lanes = self.lock();
        if lanes.closed {
            return Err(QueueError::Closed);
        }
        match job {
            Job::Commit(job) if job.limit.is_some() && lanes.weight.is_full_for(&job.change) => {
                return Err(QueueError::Full);
            }
            Job::Commit(job) => {
                lanes.weight.add(&job.change);
                lanes.commits.push_back(job);
            }
            Job::Renew(job) => lanes.renewals.push_back(job),
            Job::Chore(chore) => {
                let lane = lanes.lane_of(chore.kind());
                if lane.len() >= CHORES_WAITING_MAX {
                    return Err(QueueError::Full);
                }
                lane.push_back(chore);
            }
            Job::Closure(_) if lanes.closures.len() >= CLOSURES_MAX => return Err(QueueError::Full),
            Job::Closure(closure) => lanes.closures.push_back(closure),
        }
        // A wake for each change that is gathered would cost its caller a system call, and the processor of the next caller.
        let is_gathered = lanes.commits.len() >= lanes.gathering;
        drop(lanes);
        if is_gathered {
            self.filled.notify_one();
        }
        Ok(())
    }

    /// Waits for work, at most `patience`. If fewer than `expected` changes wait, waits up to `gather` for more.
    pub(super) fn take(&self, patience: Option<Duration>, expected: usize, gather: Duration) -> NextWork {
        let mut lanes = self.lock();
        while lanes.is_empty() && !lanes.closed {
            match patience {
                None => self.filled.wait(&mut lanes),
                Some(patience) => {
                    let waited = self.filled.wait_for(&mut lanes, patience);
                    if waited.timed_out() && lanes.is_empty() && !lanes.closed {
                        return NextWork::Idle;
                    }
                }
            }
        }
        if !lanes.commits.is_empty() && lanes.commits.len() < expected {
            self.gather(&mut lanes, expected, gather);
        }
        lanes.next()
    }

    /// Waits until `expected` changes are queued, or `gather` is over.
    fn gather(&self, lanes: &mut MutexGuard<'_, Lanes>, expected: usize, gather: Duration) {
        let until = Instant::now() + gather;
        lanes.gathering = expected;
        while lanes.commits.len() < expected && !lanes.closed {
            if self.filled.wait_until(lanes, until).timed_out() {
                break;
            }
        }
        lanes.gathering = 0;
    }

    /// Takes no more jobs; those that are queued are still done.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock()
    }
}

impl Lanes {
    fn is_empty(&self) -> bool {
        self.has_no_group() && self.closures.is_empty()
    }

    fn has_no_group(&self) -> bool {
        let has_chores = [&self.settings, &self.evidence, &self.steps].iter().any(|lane| !lane.is_empty());
        self.renewals.is_empty() && self.commits.is_empty() && !has_chores
    }

    fn lane_of(&mut self, kind: ChoreKind) -> &mut VecDeque<Box<dyn Chore>> {
        match kind {
            ChoreKind::Setting => &mut self.settings,
            ChoreKind::Evidence => &mut self.evidence,
            ChoreKind::Step => &mut self.steps,
        }
    }

    fn next(&mut self) -> NextWork {
        if self.is_empty() {
            return NextWork::Closed;
        }
        if (self.is_closures_turn || self.has_no_group())
            && let Some(closure) = self.closures.pop_front()
        {
            self.is_closures_turn = false;
            return NextWork::Closure(closure);
        }
        self.is_closures_turn = true;
        let renewals = self.renewals.drain(..).collect();
        let mut commits = Vec::new();
        let mut bytes = 0;
        while commits.len() < CHANGES_MAX
            && let Some(job) = self.commits.front()
        {
            bytes += weight(&job.change);
            if bytes > GROUP_BYTES_MAX && !commits.is_empty() {
                break;
            }
            self.weight.subtract(&job.change);
            commits.extend(self.commits.pop_front());
        }
        NextWork::Group(Group { renewals, commits, chores: self.next_chores() })
    }

    /// Takes the chores of the next group: small ones up to a bound, settings first, and at most one step.
    fn next_chores(&mut self) -> Vec<Box<dyn Chore>> {
        let settings = self.settings.len().min(CHORES_MAX);
        let evidence = self.evidence.len().min(CHORES_MAX - settings);
        let small = self.settings.drain(..settings).chain(self.evidence.drain(..evidence));
        small.chain(self.steps.pop_front()).collect()
    }
}

impl fmt::Debug for JobQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobQueue")
    }
}

/// Held by the thread that serves the queue: when the thread ends, even by a panic, no caller waits any more.
pub(super) struct JobQueueGuard(pub(super) Arc<JobQueue>);

impl Drop for JobQueueGuard {
    fn drop(&mut self) {
        let left = std::mem::replace(&mut *self.0.lock(), Lanes { closed: true, ..Lanes::default() });
        // Dropping a job drops its reply, which its caller sees. Not under the lock: a closure holds what its caller gave
        // it, perhaps the store itself.
        drop(left);
    }
}

/// Bytes of the queued commits, about. One tenant may fill half of the bound.
///
/// T1 (a tenant) sends 64 requests with bodies of a megabyte at once; without a share for each tenant, the begins of all
/// others would be refused until the disk has taken them.
#[derive(Default)]
struct QueuedWeight {
    total: usize,
    by_tenant: HashMap<Tenant, usize, RandomState>,
}

impl QueuedWeight {
    /// Returns whether another begin has to be refused.
    fn is_full_for(&self, change: &Change) -> bool {
        let queued = tenant(change).and_then(|tenant| self.by_tenant.get(tenant));
        self.total >= WEIGHT_MAX || queued.is_some_and(|queued| *queued >= WEIGHT_MAX / TENANT_PART)
    }

    fn add(&mut self, change: &Change) {
        let weight = weight(change);
        self.total += weight;
        let Some(tenant) = tenant(change) else { return };
        match self.by_tenant.get_mut(tenant) {
            Some(queued) => *queued += weight,
            None => drop(self.by_tenant.insert(tenant.clone(), weight)),
        }
    }

    fn subtract(&mut self, change: &Change) {
        let weight = weight(change);
        self.total -= weight;
        let Some(tenant) = tenant(change) else { return };
        if let Some(queued) = self.by_tenant.get_mut(tenant) {
            *queued -= weight;
            if *queued == 0 {
                self.by_tenant.remove(tenant);
            }
        }
    }
}

/// Returns the tenant that a change counts for; `None` if it writes no record, so that it is no begin, and in a deployment without
/// tenants, where there is no other one to leave room for.
fn tenant(change: &Change) -> Option<&Tenant> {
    change.draft.as_ref().map(|draft| &draft.identity.tenant).filter(|tenant| !tenant.is_only())
}

/// Returns about how many bytes a change takes in memory and on disk.
fn weight(change: &Change) -> usize {
    ROW_BYTES + change.body_bytes()
}

/// About the size of a record without its bodies.
const ROW_BYTES: usize = 1 << 10;

/// Largest weight of queued changes before begins are refused. At a kilobyte for a small change this is over a second of
/// a fast disk's work; a change that waits longer is past its client's patience.
const WEIGHT_MAX: usize = 64 << 20;

/// One tenant may have one byte in this many of [`WEIGHT_MAX`], as of all bounds that tenants share.
const TENANT_PART: usize = 2;

/// Most closures that wait. Each takes a flush, so the last of them waits for seconds.
const CLOSURES_MAX: usize = 4096;

/// Most chores that wait in each lane: under a second of flushes for small ones. A webhook that is refused is sent again by
/// its source; the other callers are this process's own chores and operators.
const CHORES_WAITING_MAX: usize = 4096;

/// Most settings and pieces of evidence in one transaction. At about 20 µs each, changes wait 2.5 ms for them, half as long
/// as for other changes.
const CHORES_MAX: usize = 128;

/// Most changes in one transaction. At about 10 µs each the last waits 5 ms for the first, as long as the flush that they
/// share.
const CHANGES_MAX: usize = 512;

/// Most bytes in one transaction, so that a few large responses do not hold up many small ones.
const GROUP_BYTES_MAX: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use ibid_core::change::{BodyKind, Expect, StoredBody};
    use ibid_core::record::{Nonce, State};
    use ibid_testkit::contract::{TestRecord, draft, insert};
    use rusqlite::Connection;
    use tokio::sync::oneshot;

    use crate::store::sqlite::chore::ChoreContext;

    use super::*;

    fn change(nonce: u64, send_by: Option<Instant>) -> Job {
        let change = Change {
            id: RecordId::from_bytes([7; RecordId::LEN]),
            expect: Expect::Absent,
            nonce: Nonce(nonce),
            draft: None,
            response: None,
            clears_bodies: false,
            bodies: Vec::new(),
            history: Vec::new(),
            uses: None,
        };
        let limit = send_by.map(SendDeadline::new);
        let reply = oneshot::channel().0;
        Job::Commit(CommitJob { change: Arc::new(change), limit, reply })
    }

    fn renewal() -> Job {
        Job::Renew(RenewJob { leases: Vec::new(), reply: oneshot::channel().0 })
    }

    fn take(queue: &JobQueue) -> (usize, Vec<u64>) {
        match queue.take(Some(Duration::ZERO), 0, Duration::ZERO) {
            NextWork::Group(group) => {
                let nonces = group.commits.iter().map(|job| job.change.nonce.0).collect();
                (group.renewals.len(), nonces)
            }
            NextWork::Closure(_) => (0, vec![u64::MAX]),
            NextWork::Idle | NextWork::Closed => (0, Vec::new()),
        }
    }

    #[test]
    fn renewals_share_the_transaction_of_the_changes() {
        let queue = JobQueue::new();
        for job in [change(1, None), renewal(), change(2, None), renewal()] {
            queue.push(job).expect("there is room");
        }
        assert_eq!(take(&queue), (2, vec![1, 2]));
    }

    #[test]
    fn closures_and_groups_take_turns() {
        let queue = JobQueue::new();
        for nonce in 0..2 {
            queue.push(Job::Closure(Box::new(|_| {}))).expect("there is room");
            queue.push(change(nonce, None)).expect("there is room");
        }
        assert_eq!(take(&queue), (0, vec![0, 1]));
        assert_eq!(take(&queue), (0, vec![u64::MAX]));
        assert_eq!(take(&queue), (0, vec![u64::MAX]));
    }

    struct NoWork(ChoreKind);

    impl Chore for NoWork {
        fn kind(&self) -> ChoreKind {
            self.0
        }

        fn run(&mut self, _: &Connection, _: ChoreContext) -> rusqlite::Result<()> {
            Ok(())
        }

        fn done(self: Box<Self>) {}

        fn fail(self: Box<Self>, _: StoreError) {}
    }

    fn take_chores(queue: &JobQueue) -> Vec<ChoreKind> {
        match queue.take(Some(Duration::ZERO), 0, Duration::ZERO) {
            NextWork::Group(group) => group.chores.iter().map(|chore| chore.kind()).collect(),
            NextWork::Closure(_) | NextWork::Idle | NextWork::Closed => Vec::new(),
        }
    }

    #[test]
    fn a_flood_of_evidence_delays_no_setting_and_no_step() {
        let queue = JobQueue::new();
        let push = |kind| queue.push(Job::Chore(Box::new(NoWork(kind))));
        for _ in 0..CHORES_WAITING_MAX {
            push(ChoreKind::Evidence).expect("there is room");
        }
        assert_eq!(push(ChoreKind::Evidence), Err(QueueError::Full));
        for kind in [ChoreKind::Step, ChoreKind::Step, ChoreKind::Setting] {
            push(kind).expect("each kind has its own lane");
        }
        let first = take_chores(&queue);
        assert_eq!(first.len(), CHORES_MAX + 1);
        assert_eq!(first.first(), Some(&ChoreKind::Setting));
        assert_eq!(first.last(), Some(&ChoreKind::Step));
        assert!(first[1..CHORES_MAX].iter().all(|kind| *kind == ChoreKind::Evidence));
        assert_eq!(take_chores(&queue).last(), Some(&ChoreKind::Step), "one step in each group");
    }

    #[test]
    fn a_full_queue_refuses_begins_only() {
        let queue = JobQueue::new();
        for nonce in 0..(WEIGHT_MAX / ROW_BYTES) as u64 {
            queue.push(change(nonce, None)).expect("there is room");
        }
        assert_eq!(queue.push(change(1, Some(Instant::now()))), Err(QueueError::Full));
        queue.push(change(2, None)).expect("a finish is never refused");
        queue.push(renewal()).expect("a renewal is never refused");
        assert_eq!(take(&queue).1.len(), CHANGES_MAX);
    }

    #[test]
    fn one_tenant_leaves_room_for_the_begins_of_others() {
        let begin = |name: &str| {
            let name = TestRecord::of(name, "key-1");
            let request = StoredBody { kind: BodyKind::Request, data: vec![7; 1 << 20].into() };
            let change = Change { bodies: vec![request], ..insert(&name, draft(&name, State::InProgress)) };
            Job::Commit(CommitJob {
                change: Arc::new(change),
                limit: Some(SendDeadline::new(Instant::now())),
                reply: oneshot::channel().0,
            })
        };
        let push_all = |queue: &JobQueue, tenant| {
            (0..WEIGHT_MAX >> 20).take_while(|_| queue.push(begin(tenant)).is_ok()).count()
        };
        let queue = JobQueue::new();
        assert_eq!(push_all(&queue, "greedy"), 32, "half");
        assert_eq!(push_all(&queue, "other"), 32, "the other half");
        assert_eq!(queue.push(begin("third")), Err(QueueError::Full), "the bound of all");
        while !take(&queue).1.is_empty() {}
        assert_eq!(push_all(&queue, "greedy"), 32, "what is taken out is free again");
        assert!(queue.lock().weight.by_tenant.len() == 1, "and no other tenant is remembered");
        let queue = JobQueue::new();
        assert_eq!(push_all(&queue, Tenant::only().as_str()), 64, "the only tenant may have all");
    }

    #[test]
    fn a_gathering_ends_with_the_last_change_it_expects() {
        let queue = JobQueue::new();
        let taker = queue.clone();
        queue.push(change(1, None)).expect("there is room");
        // It would wait for a day.
        let thread = std::thread::spawn(move || match taker.take(None, 3, Duration::from_secs(86_400)) {
            NextWork::Group(group) => (group.renewals.len(), group.commits.len()),
            NextWork::Closure(_) | NextWork::Idle | NextWork::Closed => (0, 0),
        });
        for job in [renewal(), change(2, None), change(3, None)] {
            queue.push(job).expect("there is room");
        }
        assert_eq!(thread.join().expect("it returns"), (1, 3));
        queue.push(change(4, None)).expect("there is room");
        assert_eq!(take(&queue), (0, vec![4]), "and what comes next gathers nothing");
    }

    #[test]
    fn a_closed_queue_still_returns_what_it_has() {
        let queue = JobQueue::new();
        queue.push(change(1, None)).expect("there is room");
        queue.close();
        assert_eq!(queue.push(change(2, None)), Err(QueueError::Closed));
        assert_eq!(take(&queue), (0, vec![1]));
        assert!(matches!(queue.take(None, 0, Duration::ZERO), NextWork::Closed));
    }

    #[test]
    fn a_thread_that_dies_leaves_no_caller_waiting() {
        let queue = JobQueue::new();
        let (reply, mut answer) = oneshot::channel();
        queue.push(Job::Renew(RenewJob { leases: Vec::new(), reply })).expect("there is room");
        let guard = JobQueueGuard(queue.clone());
        let thread = std::thread::spawn(move || {
            let _guard = guard;
            panic!("the thread dies");
        });
        thread.join().expect_err("it panicked");
        assert!(answer.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Closed));
        assert_eq!(queue.push(renewal()), Err(QueueError::Closed));
    }
}
