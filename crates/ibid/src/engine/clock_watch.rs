//! Compares the store's clock with this process's monotonic clock, and remembers store outages.
//!
//! After a clock jump or an outage a lapsed lease may belong to a live attempt, so no request takes over to run for one
//! lease period. The node's clock can only delay a takeover.

use std::time::Duration;
use tokio::time::Instant;

use ibid_core::time::Timestamp;
use parking_lot::Mutex;

#[derive(Default)]
pub(crate) struct ClockWatch(Mutex<ClockReading>);

#[derive(Default)]
struct ClockReading {
    /// The last time that the store returned, and when it was asked for.
    last: Option<(Instant, Timestamp)>,
    /// Instant at which the clocks last disagreed, or the store came back after an outage.
    jumped_at: Option<Instant>,
    /// Instant of the first failure since the store last answered.
    away_at: Option<Instant>,
}

impl ClockWatch {
    /// Notes that the store returned `now` for an operation that was sent at `at`.
    pub(crate) fn observe(&self, at: Instant, now: Timestamp) {
        let mut observed = self.0.lock();
        let Some((last_at, last_now)) = observed.last else {
            observed.last = Some((at, now));
            return;
        };
        // One of many changes of one commit, and not sent later than the one observed last.
        if now == last_now && at <= last_at && observed.away_at.is_none() {
            return;
        }
        let own = at.saturating_duration_since(last_at);
        let forward = now.since(last_now);
        let back = last_now.since(now);
        // Only an operation that was sent after the failure proves that the store is back.
        let is_back = observed.away_at.take_if(|away_at| at >= *away_at).is_some();
        if back > JUMP_MAX || forward.abs_diff(own) > JUMP_MAX || (is_back && own > AWAY_MAX) {
            observed.jumped_at = Some(at);
            observed.last = Some((at, now));
        } else if at > last_at {
            observed.last = Some((at, now));
        }
    }

    /// Notes that the store did not answer. Meanwhile no owner could renew its lease, and a failover may lose the last
    /// renewals.
    pub(crate) fn failed(&self, at: Instant) {
        let mut observed = self.0.lock();
        observed.away_at.get_or_insert(at);
    }

    /// Returns whether a takeover must wait, for a record with this lease.
    pub(crate) fn is_unsure(&self, at: Instant, lease: Duration) -> bool {
        let observed = self.0.lock();
        observed.jumped_at.is_some_and(|jumped_at| at.saturating_duration_since(jumped_at) < lease)
    }
}

/// Largest difference between the clocks that counts as none: more than a slow reply, less than any sensible lease.
const JUMP_MAX: Duration = Duration::from_secs(1);

/// Longest outage that counts as none: a failed renewal is retried within seconds, so no lease has lapsed by then.
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
    fn takeovers_wait_for_one_lease_after_an_outage_but_not_a_blip() {
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
    fn takeovers_wait_for_one_lease_after_a_jump_either_way() {
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
