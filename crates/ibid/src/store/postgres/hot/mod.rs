//! Batching: changes that arrive while a flight is in the air go into the next one. A lone caller waits for no other; a small
//! flight waits for a large one in the air, at most 25 ms.
//!
//! New records and their finishes fly. Every other change goes by the plain path, one transaction each, on other connections
//! and a bounded number at a time. So a record that is locked, unreadable or refused delays and fails only itself.

mod encode;
mod queue;
mod row_location;
mod send_flight;

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures_util::FutureExt;
use ibid_core::change::{Change, Commit};
use ibid_core::scope::RecordId;
use ibid_core::store::StoreError;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout_at;

use self::queue::{FlightBatch, Item, Path, Queue};
use self::send_flight::{Landing, send_flight};
use super::plain::PlainOutcome;
use super::{KIND, StoreCore};

pub use self::queue::BatchCounts;
pub(super) use self::queue::LockWait;
pub(super) use self::row_location::RowLocations;

/// ClockSetter changes to the lanes and plain workers of a store, which end when it is dropped.
#[derive(Debug)]
pub(super) struct CommitQueue(Arc<CommitLanes>);

#[derive(Debug)]
struct CommitLanes {
    core: Arc<StoreCore>,
    queue: Mutex<Queue>,
    flights: Notify,
    plain: Notify,
    /// Plain workers that may wait for row locks at once.
    waiting_max: usize,
}

impl CommitQueue {
    /// Starts the lanes and the plain workers.
    pub(super) fn start(core: Arc<StoreCore>) -> CommitQueue {
        let (lanes, workers) = (core.pools.lanes(), core.pools.plain_commits());
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

    /// Writes one change. If the caller is dropped, it is written all the same.
    pub(super) async fn commit(
        &self,
        change: Arc<Change>,
        send_by: Option<Instant>,
    ) -> Result<Commit, StoreError> {
        let (reply, result) = oneshot::channel();
        let now = Instant::now();
        {
            let mut queue = self.0.queue();
            // Only begins whose client can give up are refused; a finish always gets in.
            if send_by.is_some()
                && let Some(oldest) = queue.full_since(&change, now)
            {
                tracing::debug!(oldest_ms = oldest.as_millis(), "a begin was refused: too many wait");
                return Err(StoreError::overloaded(KIND, OP));
            }
            queue.push(Item { change, reply, queued_at: now, send_by }, |change| self.0.path(change));
            self.0.wake(&queue);
        }
        // The sender is dropped without a reply only by a panic, or with the runtime.
        result.await.unwrap_or_else(|_| Err(StoreError::transient(KIND, OP, "the store gave no answer")))
    }

    /// Returns how much was sent by flights.
    pub(super) fn counts(&self) -> BatchCounts {
        self.0.queue().counts
    }
}

impl Drop for CommitQueue {
    fn drop(&mut self) {
        self.0.queue().closed = true;
        self.0.flights.notify_waiters();
        self.0.plain.notify_waiters();
    }
}

impl CommitLanes {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // No code that holds it can panic.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Chooses the path of a change that can be sent now.
    fn path(&self, change: &Change) -> Path {
        if !self.core.target.options.hot_path {
            return Path::Plain;
        }
        if row_location::is_fresh(change) {
            return Path::Begin;
        }
        let policy = |draft: &ibid_core::change::Draft| self.core.policies.number(&draft.policy).digest;
        self.core.locations.take(change, policy).map_or(Path::Plain, Path::Finish)
    }

    /// Wakes a lane or a worker for whatever is queued.
    fn wake(&self, queue: &Queue) {
        if queue.has_flights() {
            self.flights.notify_one();
        }
        if queue.has_plain() {
            self.plain.notify_one();
        }
    }

    /// Frees an id, so that the next change of it can be sent.
    fn release(&self, queue: &mut Queue, id: RecordId) {
        queue.release(id, |change| self.path(change));
    }

    /// Answers changes that were not sent in time.
    fn drop_late(&self, late: Vec<Item>) {
        if late.is_empty() {
            return;
        }
        let mut queue = self.queue();
        for item in &late {
            self.release(&mut queue, item.change.id);
        }
        self.wake(&queue);
        drop(queue);
        for item in late {
            // A caller that has gone learns nothing.
            let _ = item.reply.send(Err(unsent()));
        }
    }
}

/// Runs one lane: takes a flight, sends it, answers its callers, again.
async fn run_lane(shared: Arc<CommitLanes>) {
    loop {
        // A caller that was just answered, or is about to ask, runs first and comes along.
        tokio::task::yield_now().await;
        // Registered before the queue is looked at, so that no notice is lost.
        let news = shared.flights.notified();
        let mut late = Vec::new();
        let (batch, until) = {
            let mut queue = shared.queue();
            if queue.closed {
                return;
            }
            let now = Instant::now();
            let until = queue.waits_until().filter(|until| *until > now);
            let batch = if until.is_some() { Vec::new() } else { queue.take_flight(now, &mut late) };
            if !batch.is_empty() && queue.has_flights() {
                shared.flights.notify_one();
            }
            (batch, until)
        };
        let has_late = !late.is_empty();
        shared.drop_late(late);
        if batch.is_empty() {
            match until {
                _ if has_late => {}
                Some(until) => drop(timeout_at(until.into(), news).await),
                None => news.await,
            }
            continue;
        }
        land(&shared, batch).await;
    }
}

/// Sends one flight and answers its callers.
async fn land(shared: &CommitLanes, batch: FlightBatch) {
    let ids: Vec<RecordId> = batch.iter().map(|(item, _)| item.change.id).collect();
    // A panic must not end the lane. The callers' senders are dropped then, so they learn that the outcome is not known.
    let landed = AssertUnwindSafe(send_flight(&shared.core, batch)).catch_unwind().await;
    let mut replies = Vec::with_capacity(ids.len());
    {
        let mut queue = shared.queue();
        queue.land(ids.len());
        match landed {
            Ok(landed) => {
                for (item, landing) in landed {
                    match landing {
                        Landing::Plain => queue.divert(item),
                        Landing::Reply(result) => {
                            shared.release(&mut queue, item.change.id);
                            replies.push((item.reply, result));
                        }
                    }
                }
            }
            Err(_) => {
                tracing::error!("a flight panicked; its callers ask again");
                ids.into_iter().for_each(|id| shared.release(&mut queue, id));
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
async fn run_worker(shared: Arc<CommitLanes>) {
    loop {
        let news = shared.plain.notified();
        let taken = {
            let mut queue = shared.queue();
            if queue.closed {
                return;
            }
            let taken = queue.take_plain(shared.waiting_max);
            if taken.is_some() && queue.has_plain() {
                shared.plain.notify_one();
            }
            taken
        };
        match taken {
            Some((item, wait)) => commit_plain(&shared, item, wait).await,
            None => news.await,
        }
    }
}

/// Commits one change by the plain path and answers its caller.
async fn commit_plain(shared: &CommitLanes, item: Item, wait: LockWait) {
    let id = item.change.id;
    let outcome = match item.is_late(Instant::now()) {
        true => Ok(PlainOutcome::Result(Err(unsent()))),
        false => AssertUnwindSafe(shared.core.commit_plain(&item.change, wait)).catch_unwind().await,
    };
    let mut queue = shared.queue();
    if wait == LockWait::Patient {
        queue.waiting_workers -= 1;
    }
    match outcome {
        Ok(PlainOutcome::Contended) => {
            queue.defer(item);
            shared.wake(&queue);
        }
        Ok(PlainOutcome::Result(result)) => {
            shared.release(&mut queue, id);
            shared.wake(&queue);
            drop(queue);
            let _ = item.reply.send(result);
        }
        Err(_) => {
            tracing::error!("a plain commit panicked; its caller asks again");
            shared.release(&mut queue, id);
            shared.wake(&queue);
        }
    }
}

fn unsent() -> StoreError {
    StoreError::overloaded(KIND, OP)
}

const OP: &str = "commit";
