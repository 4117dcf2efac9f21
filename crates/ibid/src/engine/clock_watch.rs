//! Compares the store's clock with this process's monotonic one, and remembers when the store was away. After either a
//! lapse may be none, so nobody takes over to run for one lease. Node time may only delay.

use std::time::Duration;
use tokio::time::Instant;

use ibid_core::time::Timestamp;
use parking_lot::Mutex;

#[derive(Default)]
pub(crate) struct ClockWatch(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    last: Option<(Instant, Timestamp)>,
    jumped_at: Option<Instant>,
    /// The first failure since the store last answered.
    away_at: Option<Instant>,
}

impl ClockWatch {
    /// The store said `now` in an answer that arrived at `at`.
    pub(crate) fn observe(&self, at: Instant, now: Timestamp) {
        let mut inner = self.0.lock();
        let Some((last_at, last_now)) = inner.last else {
            inner.last = Some((at, now));
            return;
        };
        // One of many that were written together, and asked for before the one that was seen last.
        if now == last_now && at <= last_at && inner.away_at.is_none() {
            return;
        }
        let own = at.saturating_duration_since(last_at);
        let forward = now.since(last_now);
        let back = last_now.since(now);
        // Only an answer to what was asked after the failure tells that the store is back.
        let is_back = inner.away_at.take_if(|away_at| at >= *away_at).is_some();
        if back > JUMP_MAX || forward.abs_diff(own) > JUMP_MAX || (is_back && own > AWAY_MAX) {
            inner.jumped_at = Some(at);
            inner.last = Some((at, now));
        } else if at > last_at {
            inner.last = Some((at, now));
        }
    }

    /// The store did not answer. Whoever holds a lease could not renew it meanwhile, and after a failover what was
    /// renewed last may be lost.
    pub(crate) fn failed(&self, at: Instant) {
        let mut inner = self.0.lock();
        inner.away_at.get_or_insert(at);
    }

    /// Whether a takeover to run must wait, for a record with this lease.
    pub(crate) fn is_unsure(&self, at: Instant, lease: Duration) -> bool {
        let inner = self.0.lock();
        inner.jumped_at.is_some_and(|jumped_at| at.saturating_duration_since(jumped_at) < lease)
    }
}

/// More than a slow answer, less than any sensible lease.
const JUMP_MAX: Duration = Duration::from_secs(1);

/// A renewal that failed is tried again within seconds: a store that was away for less has made nobody lapse.
const AWAY_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: Instant, secs: u64) -> (Instant, Timestamp) {
        (start + Duration::from_secs(secs), Timestamp::from_micros(0).after(Duration::from_secs(secs)))
    }

    #[test]
    fn clocks_that_agree_leave_takeovers_alone() {
        let (watch, start) = (ClockWatch::default(), Instant::now());
        for secs in [0, 1, 5, 600] {
            let (own, store) = at(start, secs);
            watch.observe(own, store);
            assert!(!watch.is_unsure(own, Duration::from_secs(60)));
        }
    }

    #[test]
    fn after_the_store_was_away_takeovers_wait_for_one_lease_and_a_blip_changes_nothing() {
        let (watch, start, lease) = (ClockWatch::default(), Instant::now(), Duration::from_secs(60));
        let answered = |secs| watch.observe(at(start, secs).0, at(start, secs).1);
        answered(100);
        watch.failed(start + Duration::from_secs(101));
        answered(100);
        assert!(!watch.is_unsure(start + Duration::from_secs(101), lease), "asked before the failure");
        watch.failed(start + Duration::from_secs(110));
        answered(120);
        assert!(watch.is_unsure(start + Duration::from_secs(179), lease));
        assert!(!watch.is_unsure(start + Duration::from_secs(180), lease));
        watch.failed(start + Duration::from_millis(120_500));
        answered(121);
        assert!(!watch.is_unsure(start + Duration::from_secs(180), lease));
    }

    #[test]
    fn after_a_jump_in_either_direction_takeovers_wait_for_one_lease() {
        for shift in [3_600_000_000i64, -3_600_000_000] {
            let (watch, start) = (ClockWatch::default(), Instant::now());
            let (own, store) = at(start, 10_000);
            watch.observe(own, store);
            watch.observe(own, Timestamp::from_micros(store.as_micros() + shift));
            assert!(watch.is_unsure(own + Duration::from_secs(59), Duration::from_secs(60)));
            assert!(!watch.is_unsure(own + Duration::from_secs(60), Duration::from_secs(60)));
        }
    }
}
