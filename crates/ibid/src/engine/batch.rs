//! Natural batching: what arrives while a commit is in flight goes into the next one. A lone caller waits for nobody; beside
//! a batch under way a small one waits for it, [`PATIENCE`] at most.
//!
//! It must not know what a Change means.

use std::collections::{HashSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

use foldhash::fast::RandomState;
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
    work: Notify,
}

#[derive(Default)]
struct Queue {
    /// What ends an attempt, renews or settles: it goes first, and is bounded by the attempts that live.
    others: VecDeque<Item>,
    inserts: VecDeque<Item>,
    /// Ids under way: a second Change of the same id waits for the first one's fate.
    in_flight: HashSet<RecordId, RandomState>,
    counts: BatchCounts,
    closed: bool,
}

/// How much went through, for the benchmark.
#[derive(Clone, Copy, Debug, Default)]
pub struct BatchCounts {
    /// Calls of the store's `commit`.
    pub batches: u64,
    /// Changes in them.
    pub changes: u64,
}

struct Item {
    sent: Sent,
    queued_at: Instant,
    /// A begin that is still here by then is dropped: its client has given up.
    unsent_by: Option<Instant>,
}

/// What is left of an Item once it is in a batch, which is put in order.
struct Sent {
    change: Arc<Change>,
    reply: oneshot::Sender<Result<Commit, Unsaid>>,
}

impl Batcher {
    /// Starts the lanes. They end when the last Batcher is gone.
    pub(crate) fn start(store: Arc<dyn Store>) -> Batcher {
        let shared = Arc::new(Shared { store, queue: Mutex::default(), work: Notify::new() });
        for _ in 0..shared.store.parallel_batches().max(1) {
            tokio::spawn(lane(shared.clone()));
        }
        Batcher { owner: Arc::new(Owner(shared)) }
    }

    /// Writes one Change; `now` is about when it came. With `unsent_by` it is dropped if it has not been sent by then.
    pub(crate) async fn commit(
        &self,
        change: Arc<Change>,
        now: Instant,
        unsent_by: Option<Instant>,
    ) -> Result<Commit, Unsaid> {
        let (reply, fate) = oneshot::channel();
        {
            let mut queue = self.owner.0.queue();
            let waiting = match change.expect {
                Expect::Absent => &mut queue.inserts,
                _ => &mut queue.others,
            };
            // Only begins are turned away; a finish always has its place.
            if unsent_by.is_some() && waiting.len() >= QUEUE_MAX {
                let oldest = waiting.front().map(|item| item.queued_at.elapsed());
                return Err(Unsaid::Full { oldest: oldest.unwrap_or_default() });
            }
            waiting.push_back(Item { sent: Sent { change, reply }, queued_at: now, unsent_by });
        }
        self.owner.0.work.notify_one();
        // The sender is dropped only with the runtime.
        fate.await.unwrap_or(Err(Unsaid::Unsent))
    }

    /// How much went through.
    pub(crate) fn counts(&self) -> BatchCounts {
        self.owner.0.queue().counts
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.queue().closed = true;
        self.0.work.notify_waiters();
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Nothing in here panics half-way through a change of the queue.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Until when what waits had better wait for what is under way, if it is little beside that: it goes with what comes
    /// when that is back. What is under way may be stuck behind a row that somebody holds, so this is bounded.
    fn waits_until(&self) -> Option<Instant> {
        let is_little = (self.others.len() + self.inserts.len()) * BESIDE < self.in_flight.len();
        let oldest =
            [&self.others, &self.inserts].into_iter().filter_map(VecDeque::front).map(|item| item.queued_at);
        oldest.min().filter(|_| is_little).map(|oldest| oldest + PATIENCE)
    }

    /// The next batch: at most one Change per id, in the order of the ids, bounded by count and bytes.
    fn take(&mut self, now: Instant) -> Vec<Sent> {
        let waiting = self.others.len() + self.inserts.len();
        let (mut batch, mut bytes) = (Vec::with_capacity(waiting.min(BATCH_MAX)), 0);
        for waiting in [&mut self.others, &mut self.inserts] {
            let mut skipped = VecDeque::new();
            while batch.len() < BATCH_MAX && bytes < BATCH_BYTES_MAX {
                let Some(item) = waiting.pop_front() else { break };
                if item.unsent_by.is_some_and(|by| by <= now) {
                    let _ = item.sent.reply.send(Err(Unsaid::Unsent));
                } else if self.in_flight.insert(item.sent.change.id) {
                    bytes += item.sent.change.body_bytes();
                    batch.push(item.sent);
                } else {
                    skipped.push_back(item);
                }
            }
            // What had to wait goes first next time.
            while let Some(item) = skipped.pop_back() {
                waiting.push_front(item);
            }
        }
        batch.sort_unstable_by_key(|sent| sent.change.id);
        batch
    }

    fn is_empty(&self) -> bool {
        self.others.is_empty() && self.inserts.is_empty()
    }
}

/// One lane: takes a batch, commits it, tells each caller, again.
async fn lane(shared: Arc<Shared>) {
    loop {
        // Whoever was just told of a fate, or is about to ask, goes first and comes along. A lone caller waits for nobody.
        tokio::task::yield_now().await;
        // Registered before the queue is looked at, so that no notice is lost.
        let news = shared.work.notified();
        let (batch, until) = {
            let mut queue = shared.queue();
            if queue.closed {
                return;
            }
            let now = Instant::now();
            let until = queue.waits_until().filter(|until| *until > now && !shared.store.shares_commits());
            let batch = if until.is_some() { Vec::new() } else { queue.take(now) };
            if !batch.is_empty() {
                queue.counts.batches += 1;
                queue.counts.changes += batch.len() as u64;
                if !queue.is_empty() {
                    shared.work.notify_one();
                }
            }
            (batch, until)
        };
        if batch.is_empty() {
            match until {
                Some(until) => drop(timeout_at(until, news).await),
                None => news.await,
            }
            continue;
        }
        let changes: Vec<_> = batch.iter().map(|sent| sent.change.clone()).collect();
        // A store that panics must not end the lane: its callers learn that the fate is not known.
        let fates = AssertUnwindSafe(shared.store.commit(changes)).catch_unwind().await.unwrap_or_default();
        {
            // What waited for one of these ids is taken when this comes round.
            let mut queue = shared.queue();
            for sent in &batch {
                queue.in_flight.remove(&sent.change.id);
            }
        }
        let mut fates = fates.into_iter();
        for sent in batch {
            let fate = fates.next().unwrap_or_else(|| {
                Err(StoreError::transient(shared.store.kind(), "commit", "the store gave no answer"))
            });
            // A caller that has gone learns nothing; what is written stays written.
            let _ = sent.reply.send(fate.map_err(Unsaid::Store));
        }
    }
}

/// Changes in one batch. At 256 the cost of a durable commit is spread thin, and one batch still takes only a few
/// milliseconds, which is what everybody else in the queue waits.
const BATCH_MAX: usize = 256;

/// A batch goes beside those under way if it has at least this part of what they have: half. Without it one that is on
/// its way with most callers' changes would be followed by many with a few each, at the price of a commit each.
const BESIDE: usize = 2;

/// How long what is too little waits for what is under way: several times what a commit takes.
const PATIENCE: Duration = Duration::from_millis(25);

/// Bytes of bodies in one batch, for the same reason: four answers of the largest default size.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// Begins that may wait. At 10,000 a second this is the default `begin_timeout` of work, so what comes later would be
/// dropped unsent anyway.
const QUEUE_MAX: usize = 20_000;
