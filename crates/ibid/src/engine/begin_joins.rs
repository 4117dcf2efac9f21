//! Joined begins: a begin of a record whose begin is already queued or in flight in this process waits for that one's
//! result, and sends nothing.
//!
//! A burst of duplicates then costs one write, whatever its size. Without this, one change per record and batch is in
//! flight, so each duplicate would wait for the commits of all before it.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, OnceLock};

use foldhash::fast::RandomState;
use ibid_core::change::StoredRecord;
use ibid_core::scope::{RecordId, Tenant};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::tenant_bound::{TenantBound, TenantPermit};

/// The begins of one process that are queued or in flight.
pub(crate) struct BeginJoins {
    by_id: Mutex<HashMap<RecordId, BeginsOfId, RandomState>>,
    joined: TenantBound,
}

/// The begins of one record.
#[derive(Default)]
struct BeginsOfId {
    /// True while one of them sends its write.
    is_led: bool,
    /// The result of the begin that sends. Most are alone, so it is made for the first begin that joins.
    result: Option<Arc<SharedResult>>,
    /// Begins that wait for a result, this one or an earlier one.
    waiting: usize,
    /// The last result, while begins wait: one that is woken late knows an older result, and would write in vain.
    latest: Option<FoundRecord>,
}

/// The result of a begin, for those that have joined it.
///
/// They are woken a few at a time, each by the one before it. If 5,000 were woken at once, the requests of other tenants would
/// wait behind all of them for a thread of the runtime.
#[derive(Default)]
struct SharedResult {
    /// `None` if the begin failed or was dropped.
    found: OnceLock<Option<FoundRecord>>,
    wake: Notify,
}

impl SharedResult {
    fn publish(&self, found: Option<FoundRecord>) {
        // The lead publishes once: it leaves the map with the only right to do so.
        let _ = self.found.set(found);
        for _ in 0..WOKEN_AT_ONCE {
            self.wake.notify_one();
        }
    }

    async fn wait(&self) -> Option<FoundRecord> {
        let mut woken = pin!(self.wake.notified());
        // Registered before the result is looked at, so that no wake is lost. If this future is dropped after its wake, the wake goes to
        // another waiter. One that finds the result first needs none, and neither does any that comes later.
        woken.as_mut().enable();
        if let Some(found) = self.found.get() {
            return found.clone();
        }
        woken.await;
        self.wake.notify_one();
        self.found.get().cloned().flatten()
    }
}

/// The record that the store has after a begin, or that was in the begin's way.
#[derive(Clone, Debug)]
pub(super) struct FoundRecord {
    /// `None` if the store reported a conflict and returned no record.
    pub(super) stored: Option<StoredRecord>,
    /// An instant from before the begin was sent.
    pub(super) sent_at: Instant,
}

/// The role of a begin among those of its record.
pub(super) enum BeginRole<'a> {
    /// It is alone, and sends its write.
    Lead(BeginLead<'a>),
    /// Another begin of the record is on its way.
    Join(BeginJoin<'a>),
    /// Another begin of the record has ended since this one last looked, with this result.
    Found(FoundRecord),
    /// Too many begins wait for others already, in all or of this tenant.
    Full,
}

/// The begin that sends its write. Dropped without a result, its joined begins learn that it failed.
pub(super) struct BeginLead<'a> {
    joins: &'a BeginJoins,
    /// `None` once it has left.
    id: Option<RecordId>,
}

/// A begin that waits for another one's result.
pub(super) struct BeginJoin<'a> {
    joins: &'a BeginJoins,
    id: RecordId,
    result: Arc<SharedResult>,
    _permit: TenantPermit,
}

impl Default for BeginJoins {
    fn default() -> Self {
        BeginJoins { by_id: Mutex::default(), joined: TenantBound::new(JOINED_MAX) }
    }
}

impl BeginJoins {
    /// Enters a begin of this record. `at` is from before it read what it knows, or from its start if it knows nothing.
    pub(super) fn enter(&self, id: RecordId, tenant: &Tenant, at: Instant) -> BeginRole<'_> {
        let mut by_id = self.by_id.lock();
        let begins = by_id.entry(id).or_default();
        if !begins.is_led {
            if let Some(newer) = begins.latest.as_ref().filter(|latest| latest.sent_at > at) {
                return BeginRole::Found(newer.clone());
            }
            begins.is_led = true;
            return BeginRole::Lead(BeginLead { joins: self, id: Some(id) });
        }
        let Ok(permit) = self.joined.take(tenant, 1) else { return BeginRole::Full };
        begins.waiting += 1;
        let result = begins.result.get_or_insert_default().clone();
        BeginRole::Join(BeginJoin { joins: self, id, result, _permit: permit })
    }
}

impl BeginLead<'_> {
    /// Gives the joined begins the record that they would have found.
    pub(super) fn publish(mut self, stored: Option<&StoredRecord>, sent_at: Instant) {
        self.leave(|| Some(FoundRecord { stored: stored.cloned(), sent_at }));
    }

    /// Makes way for the next begin, once, and gives the result to those who have joined this one.
    fn leave(&mut self, found: impl FnOnce() -> Option<FoundRecord>) {
        let Some(id) = self.id.take() else { return };
        let mut by_id = self.joins.by_id.lock();
        let begins = by_id.get_mut(&id).expect("its begin is led");
        if begins.waiting == 0 {
            by_id.remove(&id);
            return;
        }
        let (result, found) = (begins.result.take(), found());
        (begins.is_led, begins.latest) = (false, found.clone());
        drop(by_id);
        if let Some(result) = result {
            result.publish(found);
        }
    }
}

impl Drop for BeginLead<'_> {
    fn drop(&mut self) {
        // It leaves before the failure is known: a begin that learns of it must not join the failed one again.
        self.leave(|| None);
    }
}

impl BeginJoin<'_> {
    /// Waits for the other begin's result. Returns `None` if that begin failed or was dropped.
    pub(super) async fn result(&self) -> Option<FoundRecord> {
        self.result.wait().await
    }
}

impl Drop for BeginJoin<'_> {
    fn drop(&mut self) {
        let mut by_id = self.joins.by_id.lock();
        let begins = by_id.get_mut(&self.id).expect("a begin waits");
        begins.waiting -= 1;
        if begins.waiting == 0 && !begins.is_led {
            by_id.remove(&self.id);
        }
    }
}

/// Begins that may wait for others; one tenant may have half of them. A joined begin holds its request in memory, and this is as
/// many as may be queued for the store.
const JOINED_MAX: usize = 20_000;

/// Joined begins that are awake at once: enough for every thread of a large machine, and few enough that another tenant's request
/// waits for well under a millisecond behind them.
const WOKEN_AT_ONCE: usize = 32;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Poll, Wake, Waker};
    use std::time::Duration;

    use futures_util::FutureExt;
    use futures_util::future::BoxFuture;

    use super::*;

    fn id(n: u8) -> RecordId {
        RecordId::from_bytes([n; RecordId::LEN])
    }

    fn lead(joins: &BeginJoins, n: u8) -> BeginLead<'_> {
        match joins.enter(id(n), &Tenant::only(), Instant::now()) {
            BeginRole::Lead(lead) => lead,
            _ => panic!("a begin of this record is on its way"),
        }
    }

    fn join(joins: &BeginJoins, n: u8) -> BeginJoin<'_> {
        match joins.enter(id(n), &Tenant::only(), Instant::now()) {
            BeginRole::Join(join) => join,
            _ => panic!("no begin of this record is on its way"),
        }
    }

    #[tokio::test]
    async fn a_begin_joins_only_one_of_its_own_record() {
        let joins = BeginJoins::default();
        let first = lead(&joins, 1);
        let _other = lead(&joins, 2);
        let joined = join(&joins, 1);
        let sent_at = Instant::now();
        first.publish(None, sent_at);
        let result = joined.result().await.expect("a result");
        assert!(result.stored.is_none() && result.sent_at == sent_at);
        drop(lead(&joins, 1));
    }

    #[tokio::test]
    async fn a_dropped_begin_leaves_its_place_to_the_next() {
        let joins = BeginJoins::default();
        let first = lead(&joins, 1);
        let joined = join(&joins, 1);
        drop(first);
        assert!(joined.result().await.is_none());
        drop(lead(&joins, 1));
    }

    #[tokio::test]
    async fn a_published_begin_leaves_the_next_one_alone() {
        let joins = BeginJoins::default();
        let first = lead(&joins, 1);
        first.publish(None, Instant::now());
        let second = lead(&joins, 1);
        let joined = join(&joins, 1);
        second.publish(None, Instant::now());
        assert!(joined.result().await.is_some());
        drop(joined);
        assert!(joins.by_id.lock().is_empty());
    }

    #[tokio::test]
    async fn a_begin_that_is_woken_late_takes_the_newest_result() {
        let joins = BeginJoins::default();
        let first = lead(&joins, 1);
        let [early, late] = [join(&joins, 1), join(&joins, 1)];
        let sent_at = Instant::now();
        first.publish(None, sent_at);
        assert!(early.result().await.is_some());
        let BeginRole::Lead(second) = joins.enter(id(1), &Tenant::only(), sent_at) else {
            panic!("it knows the newest result");
        };
        let sent_at_2 = sent_at + Duration::from_micros(1);
        second.publish(None, sent_at_2);
        let known_at = late.result().await.expect("a result").sent_at;
        match joins.enter(id(1), &Tenant::only(), known_at) {
            BeginRole::Found(found) => assert_eq!((known_at, found.sent_at), (sent_at, sent_at_2)),
            _ => panic!("it knows less than the second begin found"),
        }
        drop((early, late));
        assert!(joins.by_id.lock().is_empty());
    }

    /// A joined begin that is polled by hand.
    struct PolledJoin<'a> {
        result: BoxFuture<'a, Option<FoundRecord>>,
        is_woken: Arc<AtomicBool>,
    }

    impl PolledJoin<'_> {
        fn is_woken(&self) -> bool {
            self.is_woken.load(Ordering::Relaxed)
        }

        fn poll(&mut self) -> Poll<Option<FoundRecord>> {
            let is_woken = self.is_woken.clone();
            let waker = waker_fn(move || is_woken.store(true, Ordering::Relaxed));
            self.result.poll_unpin(&mut Context::from_waker(&waker))
        }
    }

    fn waker_fn(wake: impl Fn() + Send + Sync + 'static) -> Waker {
        struct WakeBy<F>(F);
        impl<F: Fn() + Send + Sync> Wake for WakeBy<F> {
            fn wake(self: Arc<Self>) {
                self.0();
            }
        }
        Arc::new(WakeBy(wake)).into()
    }

    #[test]
    fn joined_begins_are_woken_a_few_at_a_time() {
        let joins = BeginJoins::default();
        let first = lead(&joins, 1);
        let mut waiting: Vec<PolledJoin<'_>> = (0..1000)
            .map(|_| {
                let joined = join(&joins, 1);
                PolledJoin { result: async move { joined.result().await }.boxed(), is_woken: Arc::default() }
            })
            .collect();
        assert!(waiting.iter_mut().all(|joined| joined.poll().is_pending()));
        first.publish(None, Instant::now());
        assert_eq!(waiting.iter().filter(|joined| joined.is_woken()).count(), WOKEN_AT_ONCE);
        // One of the woken ones is dropped; its wake is not lost.
        let dropped = waiting.iter().position(PolledJoin::is_woken).expect("some are awake");
        drop(waiting.remove(dropped));
        while let Some(next) = waiting.iter().position(PolledJoin::is_woken) {
            assert!(waiting.iter().filter(|joined| joined.is_woken()).count() <= WOKEN_AT_ONCE);
            assert!(matches!(waiting.remove(next).poll(), Poll::Ready(Some(_))));
        }
        assert!(waiting.is_empty(), "{} were never woken", waiting.len());
    }

    #[test]
    fn joined_begins_of_a_tenant_leave_room_for_others() {
        let joins = BeginJoins::default();
        let tenant = |name| Tenant::new(name).expect("a good name");
        let (noisy, other, third) = (tenant("noisy"), tenant("other"), tenant("third"));
        let (_first, _second) = (lead(&joins, 1), lead(&joins, 2));
        let enter = |n, tenant: &Tenant| match joins.enter(id(n), tenant, Instant::now()) {
            BeginRole::Join(join) => Some(join),
            BeginRole::Full => None,
            BeginRole::Lead(_) | BeginRole::Found(_) => panic!("no begin of this record is on its way"),
        };
        let mut joined: Vec<_> = (0..JOINED_MAX / 2).map(|_| enter(1, &noisy).expect("room")).collect();
        assert!(enter(1, &noisy).is_none(), "it has its half");
        assert!(
            matches!(joins.enter(id(3), &noisy, Instant::now()), BeginRole::Lead(_)),
            "a begin that sends is not refused here"
        );
        joined.extend((0..JOINED_MAX / 2).map(|_| enter(2, &other).expect("the other half")));
        assert!(enter(2, &third).is_none(), "the process is full");
        joined.pop();
        assert!(enter(2, &third).is_some());
    }
}
