//! The queue of changes: which of them fly together, which go by the plain path, and which wait for another of their id.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use ibid_core::change::{Change, Commit, Expect};
use ibid_core::scope::RecordId;
use ibid_core::store::StoreError;
use tokio::sync::oneshot;

use super::row_location::Tid;

/// A change that waits to be sent, and its caller.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) change: Arc<Change>,
    pub(super) reply: oneshot::Sender<Result<Commit, StoreError>>,
    pub(super) queued_at: Instant,
    /// The change is dropped if it has not been sent by then: its client has given up.
    pub(super) send_by: Option<Instant>,
}

/// The way by which a change is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    /// By a flight, as a new record.
    Begin,
    /// By a flight, as the finish of the record at this location.
    Finish(Tid),
    /// By its own transaction.
    Plain,
}

/// Changes that wait, and ids that are busy. At most one change of an id is queued or being written; further ones are parked
/// until it is done, because a flight that has an id twice would fail.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Finishes go first, and are bounded by the number of attempts.
    finishes: VecDeque<(Item, Tid)>,
    begins: VecDeque<Item>,
    plain: VecDeque<Item>,
    /// Plain changes whose row was locked at their first try.
    contended: VecDeque<Item>,
    /// Busy ids, each with the changes that are parked behind it.
    busy: HashMap<RecordId, VecDeque<Item>, RandomState>,
    /// Changes in the air.
    flying: usize,
    /// Workers that may wait for a row lock now.
    pub(super) waiting_workers: usize,
    pub(super) counts: BatchCounts,
    pub(super) closed: bool,
}

/// Numbers of flights and of changes in them, for benchmarks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchCounts {
    /// Flights that were sent.
    pub batches: u64,
    /// Changes in these flights.
    pub changes: u64,
}

/// The changes of one flight, in the order of their ids.
pub(super) type FlightBatch = Vec<(Item, Option<Tid>)>;

impl Queue {
    /// Adds a change, or parks it behind another of its id. `path` is asked when the change can be sent.
    pub(super) fn push(&mut self, item: Item, path: impl FnOnce(&Change) -> Path) {
        if let Some(parked) = self.busy.get_mut(&item.change.id) {
            parked.push_back(item);
            return;
        }
        self.busy.insert(item.change.id, VecDeque::new());
        match path(&item.change) {
            Path::Begin => self.begins.push_back(item),
            Path::Finish(tid) => self.finishes.push_back((item, tid)),
            Path::Plain => self.plain.push_back(item),
        }
    }

    /// Returns how long the oldest begin has waited, if `change` is a begin and too many of them wait.
    pub(super) fn full_since(&self, change: &Change, now: Instant) -> Option<Duration> {
        if change.expect != Expect::Absent {
            return None;
        }
        let parked = self.busy.get(&change.id).and_then(|parked| too_many(parked, PARKED_MAX));
        let oldest =
            too_many(&self.begins, QUEUE_MAX).or_else(|| too_many(&self.plain, QUEUE_MAX)).or(parked)?;
        Some(now.saturating_duration_since(oldest.queued_at))
    }

    /// Frees the id of a change that was written or given up, and queues the change that is parked behind it.
    pub(super) fn release(&mut self, id: RecordId, path: impl FnOnce(&Change) -> Path) {
        let Some(mut parked) = self.busy.remove(&id) else { return };
        let Some(item) = parked.pop_front() else { return };
        match path(&item.change) {
            Path::Begin => self.begins.push_front(item),
            Path::Finish(tid) => self.finishes.push_front((item, tid)),
            Path::Plain => self.plain.push_front(item),
        }
        self.busy.insert(id, parked);
    }

    /// Puts a change of a flight into the queue of the plain path. Its id stays busy.
    pub(super) fn divert(&mut self, item: Item) {
        self.plain.push_back(item);
    }

    /// Puts a plain change whose row is locked into the queue of those that may wait. Its id stays busy.
    pub(super) fn defer(&mut self, item: Item) {
        self.contended.push_back(item);
    }

    /// Returns until when waiting changes should wait for flights in the air, if they are few in comparison: then they go
    /// together with changes that arrive meanwhile. A flight may be stuck, so the wait is bounded.
    pub(super) fn waits_until(&self) -> Option<Instant> {
        if (self.finishes.len() + self.begins.len()) * BESIDE >= self.flying {
            return None;
        }
        let finish = self.finishes.front().map(|(item, _)| item.queued_at);
        let begin = self.begins.front().map(|item| item.queued_at);
        finish.into_iter().chain(begin).min().map(|oldest| oldest + PATIENCE)
    }

    /// Takes the next flight, bounded by count and bytes. Changes that are too late are added to `late`.
    pub(super) fn take_flight(&mut self, now: Instant, late: &mut Vec<Item>) -> FlightBatch {
        let waiting = self.finishes.len() + self.begins.len();
        let mut batch: FlightBatch = Vec::with_capacity(waiting.min(BATCH_MAX));
        let mut bytes = 0;
        while batch.len() < BATCH_MAX && bytes < BATCH_BYTES_MAX {
            let next = self.finishes.pop_front().map(|(item, tid)| (item, Some(tid)));
            let Some((item, tid)) = next.or_else(|| Some((self.begins.pop_front()?, None))) else { break };
            if item.is_late(now) {
                late.push(item);
                continue;
            }
            bytes += item.change.body_bytes();
            batch.push((item, tid));
        }
        if !batch.is_empty() {
            self.counts.batches += 1;
            self.counts.changes += batch.len() as u64;
            self.flying += batch.len();
        }
        batch.sort_unstable_by_key(|(item, _)| item.change.id);
        batch
    }

    /// Notes that so many changes are no longer in the air.
    pub(super) fn land(&mut self, changes: usize) {
        self.flying = self.flying.saturating_sub(changes);
    }

    /// Takes the next change of the plain path. At most `waiting_max` workers wait for row locks at once, so that others are
    /// left for changes that need not wait.
    pub(super) fn take_plain(&mut self, waiting_max: usize) -> Option<(Item, LockWait)> {
        if self.waiting_workers < waiting_max
            && let Some(item) = self.contended.pop_front()
        {
            self.waiting_workers += 1;
            return Some((item, LockWait::Patient));
        }
        self.plain.pop_front().map(|item| (item, LockWait::Prompt))
    }

    pub(super) fn has_flights(&self) -> bool {
        !self.finishes.is_empty() || !self.begins.is_empty()
    }

    pub(super) fn has_plain(&self) -> bool {
        !self.plain.is_empty() || !self.contended.is_empty()
    }
}

/// Returns the first item of a queue that has `max` or more.
fn too_many(queue: &VecDeque<Item>, max: usize) -> Option<&Item> {
    queue.front().filter(|_| queue.len() >= max)
}

impl Item {
    /// Returns whether the client of an unsent change has given up.
    pub(super) fn is_late(&self, now: Instant) -> bool {
        self.send_by.is_some_and(|by| by <= now)
    }
}

/// The wait of a plain change for a row that another transaction has locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum LockWait {
    /// First try: hardly at all, because other changes are behind it.
    Prompt,
    /// Second try: as long as the session's `lock_timeout`.
    Patient,
}

/// Changes in one flight. At 256 the cost of a durable commit is spread thin, and one flight still takes only a few
/// milliseconds, which is what all others in the queue wait.
const BATCH_MAX: usize = 256;

/// A flight leaves next to those in the air if it has at least this part of their changes: half. Without it, a flight with
/// most callers' changes would be followed by many with a few each, at the price of a commit each.
const BESIDE: usize = 2;

/// Longest wait of a flight that is too small for those in the air: several times what a commit takes.
const PATIENCE: Duration = Duration::from_millis(25);

/// Bytes of bodies in one flight, for the same reason as [`BATCH_MAX`]: four responses of the largest default size.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// Begins that may wait. At 10,000 a second this is the default `begin_timeout` of work, so a later one would be dropped
/// unsent anyway.
const QUEUE_MAX: usize = 20_000;

/// Begins that may be parked behind one id. Each gets the record of the one before it, so a thousand take seconds.
const PARKED_MAX: usize = 1000;

#[cfg(test)]
mod tests {
    use ibid_testkit::contract::{TestRecord, fresh};

    use super::*;

    fn item(change: &Arc<Change>, send_by: Option<Instant>) -> Item {
        let (reply, _) = oneshot::channel();
        Item { change: change.clone(), reply, queued_at: Instant::now(), send_by }
    }

    fn begin() -> Arc<Change> {
        Arc::new(fresh(&TestRecord::fresh(), Duration::from_secs(60)))
    }

    fn ids(batch: &FlightBatch) -> Vec<RecordId> {
        batch.iter().map(|(item, _)| item.change.id).collect()
    }

    #[test]
    fn a_flight_has_each_id_once() {
        let (mut queue, mut late, change, other) = (Queue::default(), Vec::new(), begin(), begin());
        for change in [&change, &change, &other] {
            queue.push(item(change, None), |_| Path::Begin);
        }
        assert_eq!(queue.take_flight(Instant::now(), &mut late).len(), 2);
        queue.push(item(&change, None), |_| Path::Begin);
        assert!(queue.take_flight(Instant::now(), &mut late).is_empty(), "both wait for the first one");
        queue.release(change.id, |_| Path::Begin);
        assert_eq!(ids(&queue.take_flight(Instant::now(), &mut late)), [change.id]);
        queue.release(change.id, |_| Path::Plain);
        assert!(queue.has_plain() && !queue.has_flights(), "a parked change gets its own path");
    }

    #[test]
    fn finishes_leave_before_begins() {
        let (mut queue, mut late) = (Queue::default(), Vec::new());
        for _ in 0..BATCH_MAX {
            queue.push(item(&begin(), None), |_| Path::Begin);
        }
        let finish = begin();
        queue.push(item(&finish, None), |_| Path::Finish(Tid([0; 6])));
        assert!(ids(&queue.take_flight(Instant::now(), &mut late)).contains(&finish.id));
        assert!(queue.has_flights(), "one begin is left");
    }

    #[test]
    fn a_late_change_is_not_sent() {
        let (mut queue, mut late, now) = (Queue::default(), Vec::new(), Instant::now());
        queue.push(item(&begin(), Some(now)), |_| Path::Begin);
        assert!(queue.take_flight(now, &mut late).is_empty());
        assert_eq!(late.len(), 1);
    }

    #[test]
    fn few_changes_wait_for_a_large_flight() {
        let (mut queue, mut late) = (Queue::default(), Vec::new());
        for _ in 0..9 {
            queue.push(item(&begin(), None), |_| Path::Begin);
        }
        assert_eq!(queue.waits_until(), None, "nothing is in the air");
        queue.take_flight(Instant::now(), &mut late);
        for few in 1..=5 {
            queue.push(item(&begin(), None), |_| Path::Begin);
            assert_eq!(queue.waits_until().is_some(), few < 5, "{few}");
        }
        queue.land(9);
        assert_eq!(queue.waits_until(), None);
    }

    #[test]
    fn some_workers_are_left_for_changes_that_need_not_wait() {
        let mut queue = Queue::default();
        for _ in 0..3 {
            queue.defer(item(&begin(), None));
        }
        queue.push(item(&begin(), None), |_| Path::Plain);
        let waits = |taken: Option<(Item, LockWait)>| taken.map(|(_, wait)| wait);
        assert_eq!(waits(queue.take_plain(2)), Some(LockWait::Patient));
        assert_eq!(waits(queue.take_plain(2)), Some(LockWait::Patient));
        assert_eq!(waits(queue.take_plain(2)), Some(LockWait::Prompt));
        assert_eq!(waits(queue.take_plain(2)), None);
    }
}
