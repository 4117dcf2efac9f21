//! Natural batching: what arrives while a commit is in flight goes into the next one. No timer and no linger, so a
//! lone caller waits for nobody.
//!
//! It must not know what a Change means.

use std::collections::{HashSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

use futures_util::FutureExt;
use ibid_core::change::{Change, Commit, Expect};
use ibid_core::scope::RecordId;
use ibid_core::store::{Store, StoreError};
use tokio::sync::{Notify, oneshot};

/// Sends Changes to the store in batches.
#[derive(Clone)]
pub(crate) struct Batcher {
    owner: Arc<Owner>,
}

/// Ends the lanes when the last Batcher is gone.
struct Owner(Arc<Shared>);

/// Why a Change has no fate.
#[derive(Debug)]
pub(crate) enum Unsaid {
    /// It never left: it was certainly not written.
    Unsent,
    /// Too many wait already: it was turned away at once.
    Full {
        /// How long the oldest has waited: about what one that came now would wait.
        oldest: Duration,
    },
    /// It was sent; what came of it is not known.
    Store(StoreError),
}

struct Shared {
    store: Arc<dyn Store>,
    queue: Mutex<Queue>,
    /// For the lanes of each kind.
    work: [Notify; 2],
}

/// What a lane carries. Stores have a statement for each, with a price of its own; and one kind does not wait for the
/// other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Inserts = 0,
    Others = 1,
}

impl Kind {
    fn of(change: &Change) -> Kind {
        if change.expect == Expect::Absent { Kind::Inserts } else { Kind::Others }
    }
}

#[derive(Default)]
struct Queue {
    waiting: [VecDeque<Item>; 2],
    /// Ids under way: a second Change of the same id waits for the first one's fate.
    in_flight: HashSet<RecordId>,
    counts: Counts,
    closed: bool,
}

/// How much went through, for the benchmark.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Calls of the store's `commit`.
    pub batches: u64,
    /// Changes in them.
    pub changes: u64,
}

struct Item {
    change: Arc<Change>,
    queued_at: Instant,
    /// A begin that is still here by then is dropped: its client has given up.
    unsent_by: Option<Instant>,
    reply: oneshot::Sender<Result<Commit, Unsaid>>,
}

impl Batcher {
    /// Starts the lanes. They end when the last Batcher is gone.
    pub(crate) fn start(store: Arc<dyn Store>) -> Batcher {
        let shared =
            Arc::new(Shared { store, queue: Mutex::default(), work: [Notify::new(), Notify::new()] });
        for _ in 0..shared.store.lanes().max(1) {
            tokio::spawn(lane(shared.clone(), Kind::Inserts));
            tokio::spawn(lane(shared.clone(), Kind::Others));
        }
        Batcher { owner: Arc::new(Owner(shared)) }
    }

    /// Writes one Change. With `unsent_by` it is dropped if it has not been sent by then.
    pub(crate) async fn commit(
        &self,
        change: Arc<Change>,
        unsent_by: Option<Instant>,
    ) -> Result<Commit, Unsaid> {
        let (reply, fate) = oneshot::channel();
        let kind = Kind::of(&change) as usize;
        {
            let mut queue = self.owner.0.queue();
            // Only begins are turned away; a finish always has its place, bounded by the attempts that live.
            if unsent_by.is_some() && queue.waiting[kind].len() >= QUEUE_MAX {
                let oldest = queue.waiting[kind].front().map(|item| item.queued_at.elapsed());
                return Err(Unsaid::Full { oldest: oldest.unwrap_or_default() });
            }
            queue.waiting[kind].push_back(Item { change, queued_at: Instant::now(), unsent_by, reply });
        }
        self.owner.0.work[kind].notify_one();
        // The sender is dropped only with the runtime.
        fate.await.unwrap_or(Err(Unsaid::Unsent))
    }

    /// How much went through.
    pub(crate) fn counts(&self) -> Counts {
        self.owner.0.queue().counts
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.queue().closed = true;
        self.0.work.iter().for_each(Notify::notify_waiters);
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Nothing in here panics half-way through a change of the queue.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// The next batch of a kind: at most one Change per id, in the order of the ids, bounded by count and bytes.
    fn take(&mut self, kind: Kind, now: Instant) -> Vec<Item> {
        let waiting = &mut self.waiting[kind as usize];
        let (mut batch, mut bytes) = (Vec::new(), 0);
        let mut skipped = VecDeque::new();
        while let Some(item) = waiting.pop_front() {
            if item.unsent_by.is_some_and(|by| by <= now) {
                let _ = item.reply.send(Err(Unsaid::Unsent));
                continue;
            }
            if !self.in_flight.insert(item.change.id) {
                skipped.push_back(item);
                continue;
            }
            bytes += item.change.body_bytes();
            batch.push(item);
            if batch.len() >= BATCH_MAX || bytes >= BATCH_BYTES_MAX {
                break;
            }
        }
        // What had to wait goes first next time.
        while let Some(item) = skipped.pop_back() {
            waiting.push_front(item);
        }
        batch.sort_by_key(|item| item.change.id);
        batch
    }
}

/// One lane: takes a batch, commits it, tells each caller, again.
async fn lane(shared: Arc<Shared>, kind: Kind) {
    let work = &shared.work[kind as usize];
    loop {
        // Registered before the queue is looked at, so that no notice is lost.
        let news = work.notified();
        let batch = {
            let mut queue = shared.queue();
            if queue.closed {
                return;
            }
            let batch = queue.take(kind, Instant::now());
            if !batch.is_empty() {
                queue.counts.batches += 1;
                queue.counts.changes += batch.len() as u64;
                if !queue.waiting[kind as usize].is_empty() {
                    work.notify_one();
                }
            }
            batch
        };
        if batch.is_empty() {
            news.await;
            continue;
        }
        let changes: Vec<_> = batch.iter().map(|item| item.change.clone()).collect();
        let ids: Vec<_> = changes.iter().map(|change| change.id).collect();
        // A store that panics must not end the lane: its callers learn that the fate is not known.
        let fates = AssertUnwindSafe(shared.store.commit(changes)).catch_unwind().await.unwrap_or_default();
        {
            let mut queue = shared.queue();
            for id in ids {
                queue.in_flight.remove(&id);
            }
            // What waited for one of these ids may be of either kind.
            for (waiting, work) in queue.waiting.iter().zip(&shared.work) {
                if !waiting.is_empty() {
                    work.notify_one();
                }
            }
        }
        let mut fates = fates.into_iter();
        for item in batch {
            let fate = fates.next().unwrap_or_else(|| {
                Err(StoreError::transient(shared.store.kind(), "commit", "the store gave no answer"))
            });
            // A caller that has gone learns nothing; what is written stays written.
            let _ = item.reply.send(fate.map_err(Unsaid::Store));
        }
    }
}

/// Changes in one batch. At 256 the cost of a durable commit is spread thin, and one batch still takes only a few
/// milliseconds, which is what everybody else in the queue waits.
const BATCH_MAX: usize = 256;

/// Bytes of bodies in one batch, for the same reason: four answers of the largest default size.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// Begins that may wait. At 10,000 a second this is more than `begin_timeout` of work, so what comes later would be
/// dropped unsent anyway.
const QUEUE_MAX: usize = 20_000;
