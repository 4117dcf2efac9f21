//! The queue of changes: which of them fly together, which go by the plain path, and which wait for another of their id.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use ibid_core::change::{Change, Commit, Expect};
use ibid_core::scope::RecordId;
use ibid_core::store::StoreError;
use tokio::sync::oneshot;

use super::begin_queues::{BeginQueue, TurnQueue};
use crate::store::send_deadline::SendDeadline;

/// A change that waits to be sent, and its caller.
#[derive(Debug)]
pub(in super::super) struct Item {
    pub(in super::super) change: Arc<Change>,
    pub(super) reply: oneshot::Sender<Result<Commit, StoreError>>,
    pub(super) queued_at: Instant,
    /// The change is dropped if it has not been sent by then: its client has given up.
    pub(super) limit: Option<SendDeadline>,
}

/// The way by which a change is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Path<P> {
    /// By a flight, as a new record.
    Begin,
    /// By a flight, as the finish of the record at this location.
    Finish(P),
    /// By its own transaction.
    Plain,
}

/// Changes that wait, and ids that are busy. `P` is the location of a row, where a store knows it.
///
/// At most one change of an id is queued or being written; further ones are parked until it is done, because a flight that has
/// an id twice would fail.
#[derive(Debug)]
pub(super) struct Queue<P> {
    /// Finishes go first, and are bounded by the number of attempts.
    finishes: VecDeque<(Item, P)>,
    begins: BeginQueue,
    /// Releases, late finishes and changes that a flight could not write. They go first: their number is bounded by the attempts
    /// and flights, and one tenant's begins must not delay the finishes of others.
    plain: VecDeque<Item>,
    /// Begins that take the plain path, such as accepted requests with their bodies. Their clients can give up.
    plain_begins: TurnQueue,
    /// Plain changes whose row was locked at their first try.
    contended: VecDeque<Item>,
    /// Busy ids, each with the changes that are parked behind it.
    busy: HashMap<RecordId, VecDeque<(Item, Path<P>)>, RandomState>,
    /// Flights in the air.
    flights: usize,
    /// Changes in these flights.
    flying: usize,
    /// `true` if the last flight left begins behind, so that the next one takes them along.
    are_begins_passed: bool,
    /// `true` while a lane waits until [`Self::waits_until`], so that no other has to.
    pub(super) is_timed: bool,
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
    /// Time for which these flights were in the air, added up.
    pub flown: Duration,
    /// Changes of these flights that were not written, and took the plain path.
    pub diverted: u64,
}

/// The changes of one flight, in the order of their ids.
pub(in super::super) type FlightBatch<P> = Vec<(Item, Option<P>)>;

impl<P> Default for Queue<P> {
    fn default() -> Queue<P> {
        Queue {
            finishes: VecDeque::new(),
            begins: BeginQueue::default(),
            plain: VecDeque::new(),
            plain_begins: TurnQueue::default(),
            contended: VecDeque::new(),
            busy: HashMap::default(),
            flights: 0,
            flying: 0,
            are_begins_passed: false,
            is_timed: false,
            waiting_workers: 0,
            counts: BatchCounts::default(),
            closed: false,
        }
    }
}

impl<P> Queue<P> {
    /// Adds a change that takes this path, or parks it behind another of its id.
    pub(super) fn push(&mut self, item: Item, path: Path<P>) {
        match self.busy.entry(item.change.id) {
            Entry::Occupied(mut busy) => busy.get_mut().push_back((item, path)),
            Entry::Vacant(free) => {
                free.insert(VecDeque::new());
                match path {
                    Path::Begin => self.begins.push_back(item),
                    Path::Finish(location) => self.finishes.push_back((item, location)),
                    Path::Plain if item.may_be_dropped() => self.plain_begins.push_back(item),
                    Path::Plain => self.plain.push_back(item),
                }
            }
        }
    }

    /// Returns whether `change` is a begin, and too many of those that take its path wait: of its tenant or of all, or behind
    /// its id.
    pub(super) fn is_full_for(&self, change: &Change, path: &Path<P>) -> bool {
        if change.expect != Expect::Absent {
            return false;
        }
        let tenant = change.draft.as_ref().map(|draft| &draft.identity.tenant);
        let is_full = match path {
            Path::Begin => self.begins.is_full_for(tenant, QUEUE_MAX),
            Path::Plain => self.plain_begins.is_full_for(tenant, QUEUE_MAX),
            Path::Finish(_) => false,
        };
        is_full || self.busy.get(&change.id).is_some_and(|parked| parked.len() >= PARKED_MAX)
    }

    /// Frees the id of a change that was written or given up, and queues the change that is parked behind it.
    ///
    /// Its path was chosen before it was parked. A finish whose row has moved since misses it, and takes the plain path then.
    pub(super) fn release(&mut self, id: RecordId) {
        let Some(mut parked) = self.busy.remove(&id) else { return };
        let Some((item, path)) = parked.pop_front() else { return };
        match path {
            Path::Begin => self.begins.push_front(item),
            Path::Finish(location) => self.finishes.push_front((item, location)),
            Path::Plain if item.may_be_dropped() => self.plain_begins.push_front(item),
            Path::Plain => self.plain.push_front(item),
        }
        self.busy.insert(id, parked);
    }

    /// Puts a change of a flight into the queue of the plain path. Its id stays busy.
    pub(super) fn divert(&mut self, item: Item) {
        self.counts.diverted += 1;
        self.plain.push_back(item);
    }

    /// Puts a plain change whose row is locked into the queue of those that may wait. Its id stays busy.
    pub(super) fn defer(&mut self, item: Item) {
        self.contended.push_back(item);
    }

    /// Returns until when waiting changes should wait for flights in the air, if they are few in comparison with one of those:
    /// then they go together with changes that arrive meanwhile. A flight may be stuck, so the wait is bounded.
    pub(super) fn waits_until(&self) -> Option<Instant> {
        if (self.finishes.len() + self.begins.len()) * BESIDE * self.flights >= self.flying {
            return None;
        }
        let finish = self.finishes.front().map(|(item, _)| item.queued_at);
        let begin = self.begins.front().map(|item| item.queued_at);
        finish.into_iter().chain(begin).min().map(|oldest| oldest + PATIENCE)
    }

    /// Takes the next flight, bounded by count and bytes. If enough of both kinds wait, it has one kind: finishes first, and
    /// begins if the flight before passed them over. Otherwise it has both. Changes that are too late are added to `late`.
    pub(super) fn take_flight(&mut self, now: Instant, late: &mut Vec<Item>) -> FlightBatch<P> {
        let waiting = self.finishes.len() + self.begins.len();
        let has_begins = self.finishes.len() < ALONE_MIN || self.are_begins_passed;
        let has_finishes = !(self.are_begins_passed && self.begins.len() >= ALONE_MIN);
        let mut batch: FlightBatch<P> = Vec::with_capacity(waiting.min(BATCH_MAX));
        let mut bytes = 0;
        while batch.len() < BATCH_MAX && bytes < BATCH_BYTES_MAX {
            let finish = if has_finishes { self.finishes.pop_front() } else { None };
            let Some((mut item, location)) =
                finish.map(|(item, location)| (item, Some(location))).or_else(|| {
                    let begin = if has_begins { self.begins.pop_front() } else { None };
                    begin.map(|item| (item, None))
                })
            else {
                break;
            };
            if !item.claim(now) {
                late.push(item);
                continue;
            }
            bytes += item.change.body_bytes();
            batch.push((item, location));
        }
        if !batch.is_empty() {
            self.are_begins_passed = !has_begins && !self.begins.is_empty();
            self.counts.batches += 1;
            self.counts.changes += batch.len() as u64;
            self.flights += 1;
            self.flying += batch.len();
        }
        batch.sort_unstable_by_key(|(item, _)| item.change.id);
        batch
    }

    /// Notes that a flight with so many changes has landed.
    pub(super) fn land(&mut self, changes: usize, flown: Duration) {
        self.flights = self.flights.saturating_sub(1);
        self.flying = self.flying.saturating_sub(changes);
        self.counts.flown += flown;
    }

    /// Takes the next change of the plain path. At most `waiting_max` workers wait for row locks at once, so that others are
    /// left for changes that need not wait. Begins that are too late are added to `late`.
    pub(super) fn take_plain(
        &mut self,
        waiting_max: usize,
        now: Instant,
        late: &mut Vec<Item>,
    ) -> Option<(Item, LockWait)> {
        self.plain_begins.take_late(now, late);
        if self.waiting_workers < waiting_max
            && let Some(item) = self.contended.pop_front()
        {
            self.waiting_workers += 1;
            return Some((item, LockWait::Patient));
        }
        let next = self.plain.pop_front().or_else(|| self.plain_begins.pop_front());
        next.map(|item| (item, LockWait::Prompt))
    }

    pub(super) fn has_flights(&self) -> bool {
        !self.finishes.is_empty() || !self.begins.is_empty()
    }

    pub(super) fn has_plain(&self) -> bool {
        !self.plain.is_empty() || !self.plain_begins.is_empty() || !self.contended.is_empty()
    }
}

impl Item {
    /// Returns whether the change is a begin whose client can give up.
    fn may_be_dropped(&self) -> bool {
        self.limit.is_some()
    }

    /// Returns whether the time of an unsent change is over.
    pub(super) fn is_late(&self, now: Instant) -> bool {
        self.limit.as_ref().is_some_and(|limit| limit.is_over(now))
    }

    /// Claims the change for sending. Returns `false` if it must not be sent, because it is too late for its client.
    pub(super) fn claim(&mut self, now: Instant) -> bool {
        self.limit.as_mut().is_none_or(|limit| limit.claim(now))
    }

    /// Returns the instant after which the change is not sent.
    #[cfg(feature = "redis")]
    pub(in super::super) fn send_by(&self) -> Option<Instant> {
        self.limit.as_ref().map(SendDeadline::send_by)
    }
}

/// The wait of a plain change for a row that another transaction has locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum LockWait {
    /// First try: hardly at all, because other changes are behind it.
    Prompt,
    /// Second try: as long as the session waits for a lock.
    Patient,
}

/// Changes in one flight. At 256 the cost of a durable commit is spread thin, and one flight still takes only a few
/// milliseconds, which is what all others in the queue wait.
const BATCH_MAX: usize = 256;

/// Changes of one kind that fly without the other. A statement for one kind costs the server less, and the other kind goes with the
/// next flight; with fewer changes that flight would cost more than it saves.
const ALONE_MIN: usize = 8;

/// A flight leaves next to those in the air if it has at least this part of their mean number of changes: half. Without it, a flight with
/// most callers' changes would be followed by many with a few each, at the price of a commit each.
const BESIDE: usize = 2;

/// Longest wait of a flight that is too small for those in the air: several times what a commit takes.
const PATIENCE: Duration = Duration::from_millis(25);

/// Bytes of bodies in one flight, for the same reason as [`BATCH_MAX`]: four responses of the largest default size.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// Begins of one path that may wait, of all tenants. At 10,000 a second this is the default `begin_timeout` of work, so a later
/// one would be dropped unsent anyway.
const QUEUE_MAX: usize = 20_000;

/// Begins that may be parked behind one id. Each gets the record of the one before it, so a thousand take seconds.
const PARKED_MAX: usize = 1000;

#[cfg(test)]
mod tests {
    use ibid_core::scope::{Identity, Tenant};
    use ibid_testkit::contract::{TestRecord, fresh};

    use super::*;

    fn item(change: &Arc<Change>, send_by: Option<Instant>) -> Item {
        let (reply, _) = oneshot::channel();
        let limit = send_by.map(SendDeadline::new);
        Item { change: change.clone(), reply, queued_at: Instant::now(), limit }
    }

    fn begin() -> Arc<Change> {
        Arc::new(fresh(&TestRecord::fresh(), Duration::from_secs(60)))
    }

    fn ids(batch: &FlightBatch<()>) -> Vec<RecordId> {
        batch.iter().map(|(item, _)| item.change.id).collect()
    }

    #[test]
    fn a_flight_has_each_id_once() {
        let (mut queue, mut late, change, other) = (Queue::<()>::default(), Vec::new(), begin(), begin());
        for change in [&change, &change, &other] {
            queue.push(item(change, None), Path::Begin);
        }
        assert_eq!(queue.take_flight(Instant::now(), &mut late).len(), 2);
        queue.push(item(&change, None), Path::Plain);
        assert!(queue.take_flight(Instant::now(), &mut late).is_empty(), "both wait for the first one");
        queue.release(change.id);
        assert_eq!(ids(&queue.take_flight(Instant::now(), &mut late)), [change.id]);
        queue.release(change.id);
        assert!(queue.has_plain() && !queue.has_flights(), "a parked change gets its own path");
    }

    #[test]
    fn finishes_leave_before_begins() {
        let (mut queue, mut late) = (Queue::<()>::default(), Vec::new());
        for _ in 0..BATCH_MAX {
            queue.push(item(&begin(), None), Path::Begin);
        }
        let finish = begin();
        queue.push(item(&finish, None), Path::Finish(()));
        assert!(ids(&queue.take_flight(Instant::now(), &mut late)).contains(&finish.id));
        assert!(queue.has_flights(), "one begin is left");
    }

    #[test]
    fn begins_are_passed_over_once() {
        let (mut queue, mut late) = (Queue::<()>::default(), Vec::new());
        let first = begin();
        queue.push(item(&first, None), Path::Begin);
        for has_begin in [false, true] {
            for _ in 0..ALONE_MIN {
                queue.push(item(&begin(), None), Path::Finish(()));
            }
            let flight = ids(&queue.take_flight(Instant::now(), &mut late));
            assert_eq!(flight.contains(&first.id), has_begin, "{} changes", flight.len());
        }
    }

    #[test]
    fn a_flight_has_one_kind_if_enough_of_both_wait() {
        let (mut queue, mut late) = (Queue::<()>::default(), Vec::new());
        for _ in 0..2 * ALONE_MIN {
            queue.push(item(&begin(), None), Path::Begin);
        }
        for finishes in [ALONE_MIN, 0, ALONE_MIN] {
            // The second flight would have finishes, too, if the first had not passed the begins over.
            for _ in 0..ALONE_MIN {
                queue.push(item(&begin(), None), Path::Finish(()));
            }
            let flight = queue.take_flight(Instant::now(), &mut late);
            let sent = flight.iter().filter(|(_, location)| location.is_some()).count();
            assert!(sent == flight.len() || sent == 0, "{sent} finishes of {}", flight.len());
            assert_eq!(sent >= finishes && sent > 0, finishes > 0, "{sent} finishes");
        }
    }

    #[test]
    fn a_late_change_is_not_sent() {
        let (mut queue, mut late, now) = (Queue::<()>::default(), Vec::new(), Instant::now());
        queue.push(item(&begin(), Some(now)), Path::Begin);
        assert!(queue.take_flight(now, &mut late).is_empty());
        assert_eq!(late.len(), 1);
    }

    #[test]
    fn late_begins_do_not_wait_behind_plain_changes() {
        let (mut queue, mut late, now) = (Queue::<()>::default(), Vec::new(), Instant::now());
        let (first, second) = (begin(), begin());
        for change in [&first, &second] {
            queue.push(item(change, None), Path::Plain);
            queue.push(item(&begin(), Some(now)), Path::Plain);
        }
        let (taken, _) = queue.take_plain(1, now, &mut late).expect("a change");
        assert_eq!((taken.change.id, late.len()), (first.id, 2));
        let (taken, _) = queue.take_plain(1, now, &mut late).expect("a change");
        assert_eq!((taken.change.id, late.len()), (second.id, 2));
        assert!(queue.take_plain(1, now, &mut late).is_none());
    }

    #[test]
    fn few_changes_wait_for_a_large_flight() {
        let (mut queue, mut late) = (Queue::<()>::default(), Vec::new());
        for _ in 0..9 {
            queue.push(item(&begin(), None), Path::Begin);
        }
        assert_eq!(queue.waits_until(), None, "nothing is in the air");
        queue.take_flight(Instant::now(), &mut late);
        for few in 1..=5 {
            queue.push(item(&begin(), None), Path::Begin);
            assert_eq!(queue.waits_until().is_some(), few < 5, "{few}");
        }
        queue.land(9, Duration::ZERO);
        assert_eq!(queue.waits_until(), None);
    }

    #[test]
    fn some_workers_are_left_for_changes_that_need_not_wait() {
        let mut queue = Queue::<()>::default();
        for _ in 0..3 {
            queue.defer(item(&begin(), None));
        }
        queue.push(item(&begin(), None), Path::Plain);
        let mut wait = || queue.take_plain(2, Instant::now(), &mut Vec::new()).map(|(_, wait)| wait);
        let waits = [wait(), wait(), wait(), wait()];
        let (patient, prompt) = (Some(LockWait::Patient), Some(LockWait::Prompt));
        assert_eq!(waits, [patient, patient, prompt, None]);
    }

    /// A begin of a tenant.
    fn begin_of(tenant: &str) -> Arc<Change> {
        let mut change = Change::clone(&begin());
        let draft = change.draft.as_mut().expect("a begin writes");
        let tenant = Tenant::new(tenant).expect("a good name");
        draft.identity = Arc::new(Identity { tenant, ..Identity::clone(&draft.identity) });
        Arc::new(change)
    }

    /// Queues so many begins of a tenant, whose clients can give up.
    fn flood(queue: &mut Queue<()>, tenant: &str, path: Path<()>, begins: usize) {
        let begin = begin_of(tenant);
        for _ in 0..begins {
            let id = RecordId::from_bytes((queue.busy.len() as u128).to_be_bytes());
            let change = Arc::new(Change { id, ..Change::clone(&begin) });
            queue.push(item(&change, Some(Instant::now() + PATIENCE)), path);
        }
    }

    #[test]
    fn a_tenant_fills_half_of_a_queue_and_only_its_own() {
        for (path, other_path) in [(Path::Begin, Path::Plain), (Path::Plain, Path::Begin)] {
            let mut queue = Queue::<()>::default();
            flood(&mut queue, "loud", path, QUEUE_MAX / 2 - 1);
            assert!(!queue.is_full_for(&begin_of("loud"), &path));
            flood(&mut queue, "loud", path, 1);
            assert!(queue.is_full_for(&begin_of("loud"), &path));
            assert!(!queue.is_full_for(&begin_of("calm"), &path), "half is left to others");
            assert!(!queue.is_full_for(&begin_of("loud"), &other_path), "the paths are separate");
            flood(&mut queue, "other", path, QUEUE_MAX / 2);
            assert!(queue.is_full_for(&begin_of("calm"), &path), "the queue is full");
            assert!(!queue.is_full_for(&begin_of("calm"), &other_path));
            let release = Change { expect: Expect::Anything, ..Change::clone(&begin_of("loud")) };
            assert!(!queue.is_full_for(&release, &path), "only begins are refused");
        }
    }

    #[test]
    fn a_tenant_has_room_again_once_its_begins_left() {
        let (mut queue, mut late) = (Queue::<()>::default(), Vec::new());
        flood(&mut queue, "loud", Path::Begin, QUEUE_MAX / 2);
        flood(&mut queue, "loud", Path::Plain, QUEUE_MAX / 2);
        for path in [Path::Begin, Path::Plain] {
            assert!(queue.is_full_for(&begin_of("loud"), &path));
        }
        queue.take_flight(Instant::now(), &mut late);
        queue.take_plain(1, Instant::now(), &mut late);
        for path in [Path::Begin, Path::Plain] {
            assert!(!queue.is_full_for(&begin_of("loud"), &path));
        }
    }

    #[test]
    fn an_only_tenant_may_fill_a_queue() {
        let mut queue = Queue::<()>::default();
        let only = Tenant::only();
        for path in [Path::Begin, Path::Plain] {
            flood(&mut queue, only.as_str(), path, QUEUE_MAX - 1);
            assert!(!queue.is_full_for(&begin_of(only.as_str()), &path));
            flood(&mut queue, only.as_str(), path, 1);
            assert!(queue.is_full_for(&begin_of(only.as_str()), &path));
        }
    }

    #[test]
    fn tenants_take_turns_with_plain_begins() {
        let mut queue = Queue::<()>::default();
        flood(&mut queue, "loud", Path::Plain, 100);
        let calm = [begin_of("calm"), begin_of("calm")];
        for change in &calm {
            queue.push(item(change, Some(Instant::now() + PATIENCE)), Path::Plain);
        }
        let taken: Vec<RecordId> = (0..102)
            .filter_map(|_| queue.take_plain(1, Instant::now(), &mut Vec::new()))
            .map(|(item, _)| item.change.id)
            .collect();
        let indexes = calm.map(|change| taken.iter().position(|id| *id == change.id));
        assert_eq!(indexes, [Some(1), Some(3)]);
        assert_eq!(taken.len(), 102);
        assert!(!queue.has_plain());
    }

    #[test]
    fn a_flood_of_plain_begins_delays_no_finish() {
        let (mut queue, now) = (Queue::<()>::default(), Instant::now());
        for _ in 0..100 {
            queue.push(item(&begin(), Some(now + PATIENCE)), Path::Plain);
        }
        let (release, diverted, contended) = (begin(), begin(), begin());
        queue.push(item(&release, None), Path::Plain);
        queue.divert(item(&diverted, Some(now + PATIENCE)));
        queue.defer(item(&contended, None));
        let mut take = || queue.take_plain(1, now, &mut Vec::new()).map(|(item, _)| item.change.id);
        for next in [&contended, &release, &diverted] {
            assert_eq!(take(), Some(next.id));
        }
        assert!(take().is_some() && queue.has_plain(), "then the begins");
    }
}
