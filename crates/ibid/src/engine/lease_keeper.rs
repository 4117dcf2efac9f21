//! Renews the leases of all live attempts of one process, many in one call of the store.
//!
//! A renewal is a write, on SQLite with a separate flush. If each attempt renewed by itself, a slow upstream would become
//! a busy store: three hundred new keys a second make as many renewals a second as soon as they last a third of a lease.

use std::collections::{BTreeSet, HashMap};
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use ibid_core::record::{Record, Version};
use ibid_core::scope::RecordId;
use ibid_core::store::{RenewOutcome, StoreError};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

use super::Engine;
use super::commit::still_owns;

/// The leases that one process keeps. The keeper's task ends when this is dropped.
#[derive(Default)]
pub(crate) struct LeaseKeeper(Arc<SharedLeases>);

#[derive(Default)]
struct SharedLeases {
    leases: Mutex<Leases>,
    /// Wakes the keeper earlier than it planned.
    sooner: Notify,
}

#[derive(Default)]
struct Leases {
    kept: HashMap<u64, KeptLease>,
    /// The leases in the order of their next renewal. A lease whose renewal is in flight is not in here.
    order: BTreeSet<(Instant, u64)>,
    next_id: u64,
    /// Leases of any owner that end too late, because the store's clock stepped back.
    overlong: HashMap<RecordId, Version>,
    /// Instant at which the keeper wakes next. `None` while nothing is to be renewed.
    wakes_at: Option<Instant>,
    closed: bool,
}

/// The lease of one live attempt.
struct KeptLease {
    record: Arc<Record>,
    leased_at: LeasedAt,
    /// End of `max_run`: from then on the lease is not renewed.
    until: Instant,
    /// Instant of the next renewal, while none is in flight.
    next: Option<Instant>,
    /// `true` once the lease is not renewed any more.
    is_over: bool,
    /// Wakes the attempt's [`LeaseRenewal`].
    waker: Option<Waker>,
}

/// The instant from which a lease counts: just before the write or the renewal that gave it was sent. An attempt shares it
/// with the keeper.
#[derive(Clone, Debug)]
pub(crate) struct LeasedAt(Arc<Mutex<Instant>>);

impl LeasedAt {
    pub(crate) fn new(at: Instant) -> LeasedAt {
        LeasedAt(Arc::new(Mutex::new(at)))
    }

    pub(crate) fn get(&self) -> Instant {
        *self.0.lock()
    }

    pub(crate) fn set(&self, at: Instant) {
        *self.0.lock() = at;
    }

    /// Notes that the renewal sent at `sent_at` was confirmed, and returns whether it counts. After the lease has expired none
    /// does, whatever the store answers.
    pub(crate) fn confirm_renewal(&self, sent_at: Instant, lease: Duration) -> bool {
        let mut at = self.0.lock();
        let counts = at.elapsed() < lease;
        if counts {
            *at = sent_at.max(*at);
        }
        counts
    }
}

/// Keeps one lease renewed until it is dropped.
pub(crate) struct LeaseRenewal {
    shared: Arc<SharedLeases>,
    id: u64,
}

impl LeaseKeeper {
    /// Renews the lease of `record` after every third of it, until `until`, until another attempt owns the record, or until
    /// the result is dropped.
    pub(crate) fn keep(&self, record: Arc<Record>, leased_at: LeasedAt, until: Instant) -> LeaseRenewal {
        let next = leased_at.get() + record.policy.lease / RENEWALS_PER_LEASE;
        let id = {
            let mut leases = self.0.leases.lock();
            let id = leases.next_id;
            leases.next_id += 1;
            let lease = KeptLease { record, leased_at, until, next: None, is_over: false, waker: None };
            leases.kept.insert(id, lease);
            leases.renew_at(id, next);
            id
        };
        self.0.wake_for(next);
        LeaseRenewal { shared: self.0.clone(), id }
    }

    /// Renews the lease of a running record of any owner: after the store's clock has stepped back it ends too late, and
    /// any process that sees that corrects it.
    pub(crate) fn shorten(&self, record: &Record) {
        {
            let mut leases = self.0.leases.lock();
            // Past the bound the next request that sees the record corrects it.
            if leases.overlong.len() >= BATCH_MAX {
                return;
            }
            leases.overlong.insert(record.id, record.version);
        }
        self.0.wake_for(Instant::now());
    }
}

impl Drop for LeaseKeeper {
    fn drop(&mut self) {
        let mut leases = self.0.leases.lock();
        leases.closed = true;
        leases.kept.values_mut().for_each(KeptLease::end);
        drop(leases);
        self.0.sooner.notify_one();
    }
}

impl SharedLeases {
    fn wake_for(&self, next: Instant) {
        let mut leases = self.leases.lock();
        if leases.wakes_at.is_none_or(|wakes_at| next < wakes_at) {
            leases.wakes_at = Some(next);
            drop(leases);
            self.sooner.notify_one();
        }
    }
}

impl Leases {
    /// Plans the next renewal of a lease, or ends it if its `max_run` is over by then.
    fn renew_at(&mut self, id: u64, next: Instant) {
        let Some(lease) = self.kept.get_mut(&id) else { return };
        if next < lease.until {
            lease.next = Some(next);
            self.order.insert((next, id));
        } else {
            lease.end();
        }
    }

    /// Takes the next call: the leases whose renewal is due, and those that are due soon, at most [`BATCH_MAX`].
    fn take(&mut self, now: Instant) -> Option<RenewalCall> {
        let mut call = RenewalCall { sent_at: now, patience: PATIENCE_MAX, leases: Vec::new() };
        for (id, version) in self.overlong.drain() {
            call.leases.push(CalledLease { id: None, record: id, version });
        }
        let is_due = self.next().is_some_and(|next| next <= now);
        while is_due && call.leases.len() < BATCH_MAX {
            let Some(&(next, id)) = self.order.first() else { break };
            let lease = self.kept.get_mut(&id).expect("a lease leaves the order when it is dropped");
            let length = lease.record.policy.lease;
            // A renewal that is due soon comes along, so that there are a few calls in each lease, however many leases.
            if next > now + length / EARLY_PART {
                break;
            }
            self.order.pop_first();
            lease.next = None;
            call.patience = call.patience.min(length / PATIENCE_PART);
            let (record, version) = (lease.record.id, lease.record.version);
            call.leases.push(CalledLease { id: Some(id), record, version });
        }
        (!call.leases.is_empty()).then_some(call)
    }

    /// Returns the instant of the next renewal.
    fn next(&self) -> Option<Instant> {
        self.order.first().map(|(next, _)| *next)
    }

    /// Notes the outcome of the renewal of one lease. Returns the record if it has to be looked at.
    fn record_outcome(
        &mut self,
        id: u64,
        sent_at: Instant,
        outcome: Option<RenewOutcome>,
    ) -> Option<Arc<Record>> {
        let lease = self.kept.get(&id)?;
        let length = lease.record.policy.lease;
        let next = match outcome {
            Some(RenewOutcome::Until(_)) => {
                lease.leased_at.confirm_renewal(sent_at, length);
                sent_at + length / RENEWALS_PER_LEASE
            }
            // A write holds the row at this moment, or the store does not answer: retry soon.
            Some(RenewOutcome::Busy) | None => Instant::now() + length / RETRY_PART,
            Some(RenewOutcome::Lost) => return Some(lease.record.clone()),
        };
        self.renew_at(id, next);
        None
    }

    /// Continues with a lease whose record was changed: with `newer` if its attempt still owns it, otherwise not at all.
    fn continue_with(&mut self, id: u64, newer: Option<Arc<Record>>) {
        let Some(lease) = self.kept.get_mut(&id) else { return };
        match newer {
            Some(newer) => {
                lease.record = newer;
                self.renew_at(id, Instant::now());
            }
            None => lease.end(),
        }
    }
}

impl KeptLease {
    fn end(&mut self) {
        self.is_over = true;
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl LeaseRenewal {
    /// Waits until the lease is not renewed any more.
    pub(crate) async fn wait_until_over(self) {
        poll_fn(|context| {
            let mut leases = self.shared.leases.lock();
            match leases.kept.get_mut(&self.id) {
                Some(lease) if !lease.is_over => {
                    lease.waker = Some(context.waker().clone());
                    Poll::Pending
                }
                _ => Poll::Ready(()),
            }
        })
        .await;
    }
}

impl Drop for LeaseRenewal {
    fn drop(&mut self) {
        let mut leases = self.shared.leases.lock();
        if let Some(next) = leases.kept.remove(&self.id).and_then(|lease| lease.next) {
            leases.order.remove(&(next, self.id));
        }
    }
}

/// One call of the store's `renew`.
struct RenewalCall {
    sent_at: Instant,
    /// Time after which the call counts as unanswered.
    patience: Duration,
    leases: Vec<CalledLease>,
}

struct CalledLease {
    /// `None` for a lease that is only shortened.
    id: Option<u64>,
    record: RecordId,
    version: Version,
}

impl RenewalCall {
    /// Renews the leases, and looks at those that are lost.
    async fn run(self, engine: &Engine, shared: &SharedLeases) {
        let leases = self.leases.iter().map(|lease| (lease.record, lease.version)).collect();
        let renewed = match timeout(self.patience, engine.store.renew(leases)).await {
            Ok(renewed) => renewed,
            Err(_) => Err(StoreError::transient(engine.store.facts().name, "renew", "no reply in time")),
        };
        let outcomes = renewed.inspect_err(|error| engine.count_error(error)).unwrap_or_default();
        let mut outcomes = outcomes.into_iter();
        let mut lost = Vec::new();
        for lease in &self.leases {
            let outcome = outcomes.next();
            if let Some(id) = lease.id
                && let Some(record) = shared.leases.lock().record_outcome(id, self.sent_at, outcome)
            {
                lost.push((id, record));
            }
        }
        let looks = lost.into_iter().map(async |(id, record)| {
            let loaded = timeout(self.patience, engine.load(record.id)).await;
            let mut leases = shared.leases.lock();
            match loaded {
                // Another write did not take it over: continue with the new version.
                Ok(Ok(Some(stored)))
                    if still_owns(&stored, &record) && stored.record.version != record.version =>
                {
                    leases.continue_with(id, Some(stored.record));
                }
                Ok(Ok(_)) => leases.continue_with(id, None),
                Ok(Err(_)) | Err(_) => drop(leases.record_outcome(id, self.sent_at, None)),
            }
        });
        join_all(looks).await;
    }

    /// Like [`RenewalCall::run`], but a store that panics only delays the renewals.
    async fn run_caught(self, engine: Arc<Engine>, shared: Arc<SharedLeases>) {
        let (ids, sent_at) =
            (self.leases.iter().filter_map(|lease| lease.id).collect::<Vec<_>>(), self.sent_at);
        if AssertUnwindSafe(self.run(&engine, &shared)).catch_unwind().await.is_err() {
            tracing::error!(leases = ids.len(), "renewal of leases panicked; retrying");
            let mut leases = shared.leases.lock();
            for id in ids {
                if leases.kept.get(&id).is_some_and(|lease| lease.next.is_none() && !lease.is_over) {
                    leases.record_outcome(id, sent_at, None);
                }
            }
        }
    }
}

/// Renews leases for as long as the engine lives.
pub(super) async fn keep_leases(engine: Weak<Engine>) {
    let Some(shared) = engine.upgrade().map(|live| live.leases.0.clone()) else { return };
    let mut calls = FuturesUnordered::new();
    loop {
        // Created before the leases are looked at, so that no wake-up is missed.
        let sooner = shared.sooner.notified();
        let wakes_at = {
            let mut leases = shared.leases.lock();
            if leases.closed {
                return;
            }
            while calls.len() < CALLS_MAX
                && let Some(call) = leases.take(Instant::now())
            {
                let Some(live) = engine.upgrade() else { return };
                calls.push(call.run_caught(live, shared.clone()));
            }
            leases.wakes_at = leases.next();
            leases.wakes_at.filter(|_| calls.len() < CALLS_MAX)
        };
        let wait = async {
            match wakes_at {
                Some(wakes_at) => drop(timeout_at(wakes_at, sooner).await),
                None => sooner.await,
            }
        };
        tokio::select! {
            () = wait => {}
            Some(()) = calls.next() => {}
        }
    }
}

/// A lease is renewed after every third of it: two renewals may fail before it lapses.
const RENEWALS_PER_LEASE: u32 = 3;

/// A renewal that failed is repeated after a twelfth of the lease.
const RETRY_PART: u32 = 12;

/// A renewal that is due within a twelfth of the lease comes along with one that is due now.
const EARLY_PART: u32 = 12;

/// A renewal counts as unanswered after a sixth of the lease, so that two more tries fit before the lease lapses.
const PATIENCE_PART: u32 = 6;

/// Longest time that any renewal may take: a sixth of the default lease.
const PATIENCE_MAX: Duration = Duration::from_secs(10);

/// Leases in one call: at a few hundred the cost of the commit is spread thin, and other writes do not wait long for it.
const BATCH_MAX: usize = 256;

/// Calls in flight at once: a call that hangs must not hold up the other leases, and the renewals of all attempts at the
/// default cap are sent within some round trips.
const CALLS_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use ibid_core::change::{Draft, Stamp};
    use ibid_core::policy::Policy;
    use ibid_core::record::State;
    use ibid_core::time::Timestamp;
    use ibid_testkit::contract;

    fn record(lease: Duration) -> Arc<Record> {
        let name = contract::TestRecord::fresh();
        let policy = Arc::new(Policy::default().with(|policy| policy.lease = lease));
        let draft = Draft { policy, ..contract::draft(&name, State::InProgress) };
        let change = contract::insert(&name, draft);
        change.apply(Stamp { now: Timestamp::default() }, None).expect("a record")
    }

    #[test]
    fn one_call_takes_what_is_due_and_what_is_due_soon() {
        let (keeper, start) = (LeaseKeeper::default(), Instant::now());
        let (minute, second) = (Duration::from_secs(60), Duration::from_secs(1));
        let keep = |begun: u32| {
            let leased_at = LeasedAt::new(start + second * begun);
            keeper.keep(record(minute), leased_at, start + minute * 100)
        };
        let renewals = [keep(0), keep(4), keep(5), keep(6)];
        let mut leases = keeper.0.leases.lock();
        assert!(leases.take(start + second * 19).is_none(), "none is past a third");
        let call = leases.take(start + second * 20).expect("one is past a third");
        assert_eq!((call.leases.len(), call.patience), (3, Duration::from_secs(10)));
        assert_eq!(leases.next(), Some(start + second * 26));
        drop(leases);
        drop(renewals);
        let leases = keeper.0.leases.lock();
        assert!(leases.kept.is_empty() && leases.order.is_empty());
    }

    #[test]
    fn a_call_is_bounded_and_renewal_ends_at_max_run() {
        let (keeper, start, minute) = (LeaseKeeper::default(), Instant::now(), Duration::from_secs(60));
        let keep = |until| keeper.keep(record(minute), LeasedAt::new(start), until);
        let renewals: Vec<_> = (0..BATCH_MAX + 1).map(|_| keep(start + minute)).collect();
        let over = keep(start + minute / 3);
        let mut leases = keeper.0.leases.lock();
        assert!(leases.kept[&over.id].is_over, "its first renewal would be at the end of `max_run`");
        let call = leases.take(start + minute).expect("all are due");
        assert_eq!(call.leases.len(), BATCH_MAX);
        assert_eq!(leases.take(start + minute).expect("one is left").leases.len(), 1);
        drop(leases);
        drop(renewals);
    }
}
