//! Batching for the stores on a database server: changes that arrive while a flight is in the air go into the next one. A lone
//! caller waits for no other; a small flight waits for a large one in the air, at most 25 ms.
//!
//! New records and their finishes fly. Every other change goes by the plain path, one transaction each, on other connections
//! and a bounded number at a time. So a record that is locked, unreadable or refused delays and fails only itself.

mod begin_queues;
mod queue;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt;
use ibid_core::change::{Change, Commit};
use ibid_core::scope::RecordId;
use ibid_core::store::StoreError;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout_at;

use self::queue::Queue;
use super::send_deadline::{SendDeadline, reply_or_withdraw};

pub use self::queue::BatchCounts;
pub(super) use self::queue::{FlightBatch, Item, LockWait, Path};

/// A store that writes what the queue hands it.
pub(super) trait Committer: std::fmt::Debug + Send + Sync + 'static {
    /// Location of a row, where the store knows it.
    type RowLocation: std::fmt::Debug + Send;

    /// Name of the store's kind.
    const KIND: &'static str;

    /// Chooses the path of a change.
    fn path(&self, change: &Change) -> Path<Self::RowLocation>;

    /// Sends a flight. Each change gets an outcome.
    fn send_flight(
        &self,
        batch: FlightBatch<Self::RowLocation>,
    ) -> impl Future<Output = Vec<(Item, FlightOutcome)>> + Send;

    /// Commits one change in its own transaction.
    fn commit_plain(&self, change: &Change, wait: LockWait) -> impl Future<Output = PlainOutcome> + Send;
}

/// The outcome of a flight for one of its changes.
pub(super) enum FlightOutcome {
    /// The caller can be answered.
    Reply(Result<Commit, StoreError>),
    /// The change was not written, and goes by the plain path.
    Plain,
}

/// The outcome of one plain commit.
pub(super) enum PlainOutcome {
    /// The caller can be answered.
    Result(Result<Commit, StoreError>),
    /// The row is locked, and nothing was written: try again, and wait for it.
    Contended,
}

/// Hands changes to the lanes and plain workers of a store, which end when it is dropped.
#[derive(Debug)]
pub(super) struct CommitQueue<C: Committer>(Arc<CommitLanes<C>>);

#[derive(Debug)]
struct CommitLanes<C: Committer> {
    core: Arc<C>,
    queue: Mutex<Queue<C::RowLocation>>,
    flights: Notify,
    plain: Notify,
    /// Plain workers that may wait for row locks at once.
    waiting_max: usize,
}

impl<C: Committer> CommitQueue<C> {
    /// Starts so many lanes and plain workers.
    pub(super) fn start(core: Arc<C>, lanes: usize, workers: usize) -> CommitQueue<C> {
        let shared = Arc::new(CommitLanes {
            core,
            queue: Mutex::default(),
            flights: Notify::new(),
            plain: Notify::new(),
            waiting_max: (workers / 2).max(1),
        });
        for _ in 0..lanes.max(1) {
            tokio::spawn(run_lane(shared.clone()));
        }
        for _ in 0..workers {
            tokio::spawn(run_worker(shared.clone()));
        }
        CommitQueue(shared)
    }

    /// Writes one change. If the caller is dropped, it is written all the same. If it is polled after `send_by`, a change that
    /// still waits is given up.
    pub(super) async fn commit(
        &self,
        change: Arc<Change>,
        send_by: Option<Instant>,
    ) -> Result<Commit, StoreError> {
        let (reply, result) = oneshot::channel();
        let now = Instant::now();
        // Before the queue is locked, because it looks into the store's own memory.
        let path = self.0.core.path(&change);
        let limit = send_by.map(SendDeadline::new);
        {
            let mut queue = self.0.queue.lock();
            // Only begins whose client can give up are refused; a finish always gets in.
            if limit.is_some() && queue.is_full_for(&change, &path) {
                tracing::debug!("a begin was refused: too many wait, of its tenant or of all");
                return Err(StoreError::overloaded(C::KIND, OP));
            }
            let item = Item { change, reply, queued_at: now, limit: limit.clone() };
            queue.push(item, path);
            self.0.wake(&queue);
        }
        // The sender is dropped without a reply only by a panic, or with the runtime.
        let no_answer = || Err(StoreError::transient(C::KIND, OP, "the store gave no answer"));
        reply_or_withdraw(result, limit, (C::KIND, OP)).await.unwrap_or_else(no_answer)
    }

    /// Returns how much was sent by flights.
    pub(super) fn counts(&self) -> BatchCounts {
        self.0.queue.lock().counts
    }
}

impl<C: Committer> Drop for CommitQueue<C> {
    fn drop(&mut self) {
        self.0.queue.lock().closed = true;
        self.0.flights.notify_waiters();
        self.0.plain.notify_waiters();
    }
}

impl<C: Committer> CommitLanes<C> {
    /// Wakes a lane or a worker for whatever is queued.
    fn wake(&self, queue: &Queue<C::RowLocation>) {
        // A lane that waits for more to come is woken only when they are enough.
        if queue.has_flights() && (!queue.is_timed || queue.waits_until().is_none()) {
            self.flights.notify_one();
        }
        if queue.has_plain() {
            self.plain.notify_one();
        }
    }

    /// Answers changes that were not sent in time.
    fn drop_late(&self, late: Vec<Item>) {
        if late.is_empty() {
            return;
        }
        let mut queue = self.queue.lock();
        for item in &late {
            queue.release(item.change.id);
        }
        self.wake(&queue);
        drop(queue);
        for item in late {
            // A caller that has gone learns nothing.
            let _ = item.reply.send(Err(unsent::<C>()));
        }
    }
}

/// Runs one lane: takes a flight, sends it, answers its callers, again.
async fn run_lane<C: Committer>(shared: Arc<CommitLanes<C>>) {
    loop {
        // A caller that was just answered, or is about to ask, runs first and comes along.
        tokio::task::yield_now().await;
        // Registered before the queue is looked at, so that no notice is lost.
        let news = shared.flights.notified();
        let mut late = Vec::new();
        let (batch, until, is_timing) = {
            let mut queue = shared.queue.lock();
            if queue.closed {
                return;
            }
            let now = Instant::now();
            let until = queue.waits_until().filter(|until| *until > now);
            // One lane is enough to wait for the end of the patience.
            let is_timing = until.is_some() && !queue.is_timed;
            queue.is_timed |= is_timing;
            let batch = if until.is_some() { Vec::new() } else { queue.take_flight(now, &mut late) };
            if !batch.is_empty() && queue.has_flights() {
                shared.flights.notify_one();
            }
            (batch, until.filter(|_| is_timing), is_timing)
        };
        let has_late = !late.is_empty();
        shared.drop_late(late);
        if batch.is_empty() {
            match until {
                _ if has_late => {}
                Some(until) => drop(timeout_at(until.into(), news).await),
                None => news.await,
            }
            if is_timing {
                shared.queue.lock().is_timed = false;
            }
            continue;
        }
        land(&shared, batch).await;
    }
}

/// Sends one flight and answers its callers.
async fn land<C: Committer>(shared: &CommitLanes<C>, batch: FlightBatch<C::RowLocation>) {
    let ids: Vec<RecordId> = batch.iter().map(|(item, _)| item.change.id).collect();
    // A panic must not end the lane. The callers' senders are dropped then, so they learn that the outcome is not known.
    let left = Instant::now();
    let landed = AssertUnwindSafe(shared.core.send_flight(batch)).catch_unwind().await;
    let mut replies = Vec::with_capacity(ids.len());
    {
        let mut queue = shared.queue.lock();
        queue.land(ids.len(), left.elapsed());
        match landed {
            Ok(landed) => {
                for (item, outcome) in landed {
                    match outcome {
                        FlightOutcome::Plain => queue.divert(item),
                        FlightOutcome::Reply(result) => {
                            queue.release(item.change.id);
                            replies.push((item.reply, result));
                        }
                    }
                }
            }
            Err(_) => {
                tracing::error!("a flight panicked; its callers ask again");
                ids.into_iter().for_each(|id| queue.release(id));
            }
        }
        shared.wake(&queue);
    }
    for (reply, result) in replies {
        // A caller that has gone learns nothing; the write stays.
        let _ = reply.send(result);
    }
}

/// Runs one plain worker: takes a change, commits it, answers its caller, again.
async fn run_worker<C: Committer>(shared: Arc<CommitLanes<C>>) {
    loop {
        let news = shared.plain.notified();
        let mut late = Vec::new();
        let taken = {
            let mut queue = shared.queue.lock();
            if queue.closed {
                return;
            }
            let taken = queue.take_plain(shared.waiting_max, Instant::now(), &mut late);
            if taken.is_some() && queue.has_plain() {
                shared.plain.notify_one();
            }
            taken
        };
        let has_late = !late.is_empty();
        shared.drop_late(late);
        match taken {
            Some((item, wait)) => commit_plain(&shared, item, wait).await,
            // Changes that were parked behind those that came too late may be queued now.
            None if has_late => {}
            None => news.await,
        }
    }
}

/// Commits one change by the plain path and answers its caller.
async fn commit_plain<C: Committer>(shared: &CommitLanes<C>, mut item: Item, wait: LockWait) {
    let id = item.change.id;
    let outcome = match item.claim(Instant::now()) {
        true => AssertUnwindSafe(shared.core.commit_plain(&item.change, wait)).catch_unwind().await,
        false => Ok(PlainOutcome::Result(Err(unsent::<C>()))),
    };
    let mut queue = shared.queue.lock();
    if wait == LockWait::Patient {
        queue.waiting_workers -= 1;
    }
    match outcome {
        Ok(PlainOutcome::Contended) => {
            queue.defer(item);
            shared.wake(&queue);
        }
        Ok(PlainOutcome::Result(result)) => {
            queue.release(id);
            shared.wake(&queue);
            drop(queue);
            let _ = item.reply.send(result);
        }
        Err(_) => {
            tracing::error!("a plain commit panicked; its caller asks again");
            queue.release(id);
            shared.wake(&queue);
        }
    }
}

fn unsent<C: Committer>() -> StoreError {
    StoreError::overloaded(C::KIND, OP)
}

const OP: &str = "commit";
