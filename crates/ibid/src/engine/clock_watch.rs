//! Compares the store's clock with this process's monotonic clock, and remembers store outages.
//!
//! After a clock jump or an outage a lapsed lease may belong to a live attempt, so no request takes over to run for one
//! lease period. A start counts as a jump: T1 (a live node) holds a lease; the store fails over to a server whose clock is
//! ahead; T2 (a node that has just started) reads the lease as lapsed and has no earlier reading that would show the jump.
//! The node's clock can only delay a takeover.

use std::time::Duration;
use tokio::time::Instant;

use ibid_core::time::Timestamp;
use parking_lot::Mutex;

pub(crate) struct ClockWatch {
    /// The first reading is believed, as if an earlier one agreed with it.
    trusts_first: bool,
    observed: Mutex<ClockReading>,
}

#[derive(Default)]
struct ClockReading {
    /// The last reading that others are compared with.
    last: Option<Reading>,
    /// Instant at which the clocks last disagreed, or the store came back after an outage.
    jumped_at: Option<Instant>,
    /// Instant and length of the last jump forward.
    leapt: Option<(Instant, Duration)>,
    /// Instant of the first failure since the store last answered.
    away_at: Option<Instant>,
}

/// The store's time, and the two instants between which the store read it.
#[derive(Clone, Copy)]
struct Reading {
    sent_at: Instant,
    arrived_at: Instant,
    now: Timestamp,
}

impl Reading {
    fn took(&self) -> Duration {
        self.arrived_at.saturating_duration_since(self.sent_at)
    }

    /// Returns by how much the store's clock moved too far since `last`, in microseconds; negative if it moved back or too
    /// little, and zero if some instants within both operations explain the two times.
    fn jump_since(&self, last: &Reading) -> i64 {
        let moved = self.now.as_micros().saturating_sub(last.now.as_micros());
        let least = micros_between(last.arrived_at, self.sent_at);
        let most = micros_between(last.sent_at, self.arrived_at);
        moved - moved.clamp(least.min(most), most)
    }
}

/// Returns the microseconds from one instant to another; negative if `to` is earlier.
fn micros_between(from: Instant, to: Instant) -> i64 {
    let micros = |length: Duration| i64::try_from(length.as_micros()).unwrap_or(i64::MAX);
    match to.checked_duration_since(from) {
        Some(length) => micros(length),
        None => -micros(from.saturating_duration_since(to)),
    }
}

impl ClockWatch {
    /// Watches from now on. Takeovers wait for one lease after the first reading, unless the caller `trusts_first`.
    pub(crate) fn new(trusts_first: bool) -> ClockWatch {
        ClockWatch { trusts_first, observed: Mutex::default() }
    }

    /// Notes that the store returned `now` for an operation that was sent at `sent_at` and answered at `arrived_at`.
    ///
    /// The store read its clock at some instant between the two. An operation that waited in a queue is no jump.
    pub(crate) fn observe(&self, sent_at: Instant, arrived_at: Instant, now: Timestamp) {
        let mut observed = self.observed.lock();
        let reading = Reading { sent_at, arrived_at, now };
        let Some(last) = observed.last else {
            observed.last = Some(reading);
            observed.jumped_at = (!self.trusts_first).then_some(arrived_at);
            return;
        };
        // One of many changes of one commit, and not sent later than the one observed last.
        if now == last.now && sent_at <= last.sent_at && observed.away_at.is_none() {
            return;
        }
        let since_last = sent_at.saturating_duration_since(last.sent_at);
        // Only an operation that was sent after the failure proves that the store is back.
        let is_back = observed.away_at.take_if(|away_at| sent_at >= *away_at).is_some();
        let jump = reading.jump_since(&last);
        let length = Duration::from_micros(jump.unsigned_abs());
        if length > JUMP_MAX || (is_back && since_last > AWAY_MAX) {
            observed.jumped_at = Some(arrived_at);
            observed.last = Some(reading);
            if length > JUMP_MAX {
                observed.leapt = (jump > 0).then_some((arrived_at, length));
            }
        } else if sent_at > last.sent_at && (reading.took() <= JUMP_MAX || since_last > READING_FOR_MAX) {
            // A slow operation would hide a jump of up to its length, so it is compared, and others not with it.
            observed.last = Some(reading);
        }
    }

    /// Returns the latest time that the store's clock can show at `at`; `None` if its last reading is too old to tell.
    pub(crate) fn latest_now(&self, at: Instant) -> Option<Timestamp> {
        let last = self.observed.lock().last?;
        let since = at.saturating_duration_since(last.sent_at);
        (since <= READING_FOR_MAX).then(|| last.now.after(since))
    }

    /// Returns whether the reaper must wait, because the store's clock has leapt forward.
    ///
    /// It waits for as long as the leap was, a day at most: until then it would remove what has not expired by any other
    /// clock, and could not take that back.
    pub(crate) fn is_ahead(&self, at: Instant) -> bool {
        let leapt = self.observed.lock().leapt;
        leapt.is_some_and(|(leapt_at, length)| {
            at.saturating_duration_since(leapt_at) < length.min(AHEAD_FOR_MAX)
        })
    }

    /// Notes that the store did not answer. Meanwhile no owner could renew its lease, and a failover may lose the last
    /// renewals.
    pub(crate) fn note_outage(&self, at: Instant) {
        let mut observed = self.observed.lock();
        observed.away_at.get_or_insert(at);
    }

    /// Returns whether a takeover must wait, for a record with this lease.
    pub(crate) fn is_unsure(&self, at: Instant, lease: Duration) -> bool {
        let observed = self.observed.lock();
        match observed.jumped_at {
            Some(jumped_at) => at.saturating_duration_since(jumped_at) < lease,
            None => observed.last.is_none() && !self.trusts_first,
        }
    }
}

/// Largest difference between the clocks that counts as none: more than a slow reply, less than any sensible lease.
const JUMP_MAX: Duration = Duration::from_secs(1);

/// Longest time that one reading is compared with others. Over a quarter of an hour two sound clocks drift apart by far less
/// than [`JUMP_MAX`].
const READING_FOR_MAX: Duration = Duration::from_secs(900);

/// Longest time that the reaper waits after a leap: an operator who sets the clock right does so within a day.
const AHEAD_FOR_MAX: Duration = Duration::from_secs(24 * 3600);

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
        let (watch, start) = (ClockWatch::new(true), Instant::now());
        for secs in [0, 1, 5, 600] {
            let (own, store) = at(start, secs);
            watch.observe(own, own, store);
            assert!(!watch.is_unsure(own, Duration::from_secs(60)));
        }
    }

    #[test]
    fn takeovers_wait_for_one_lease_after_the_first_reading() {
        let (watch, start, lease) = (ClockWatch::new(false), Instant::now(), Duration::from_secs(60));
        assert!(watch.is_unsure(start, lease), "nothing was read yet");
        for secs in [100, 101, 159] {
            let (own, store) = at(start, secs);
            watch.observe(own, own, store);
            assert!(watch.is_unsure(own, lease), "{secs} s");
        }
        assert!(!watch.is_unsure(start + Duration::from_secs(160), lease));
    }

    #[test]
    fn takeovers_wait_for_one_lease_after_an_outage_but_not_a_blip() {
        let (watch, start, lease) = (ClockWatch::new(true), Instant::now(), Duration::from_secs(60));
        let answered = |secs| watch.observe(at(start, secs).0, at(start, secs).0, at(start, secs).1);
        answered(100);
        watch.note_outage(start + Duration::from_secs(101));
        answered(100);
        assert!(!watch.is_unsure(start + Duration::from_secs(101), lease), "asked before the failure");
        watch.note_outage(start + Duration::from_secs(110));
        answered(120);
        assert!(watch.is_unsure(start + Duration::from_secs(179), lease));
        assert!(!watch.is_unsure(start + Duration::from_secs(180), lease));
        watch.note_outage(start + Duration::from_millis(120_500));
        answered(121);
        assert!(!watch.is_unsure(start + Duration::from_secs(180), lease));
    }

    #[test]
    fn takeovers_wait_for_one_lease_after_a_jump_either_way() {
        for shift in [3_600_000_000i64, -3_600_000_000] {
            let (watch, start) = (ClockWatch::new(true), Instant::now());
            let (own, store) = at(start, 10_000);
            watch.observe(own, own, store);
            watch.observe(own, own, Timestamp::from_micros(store.as_micros() + shift));
            assert!(watch.is_unsure(own + Duration::from_secs(59), Duration::from_secs(60)));
            assert!(!watch.is_unsure(own + Duration::from_secs(60), Duration::from_secs(60)));
        }
    }

    #[test]
    fn an_operation_that_took_long_is_no_jump() {
        let (watch, start) = (ClockWatch::new(true), Instant::now());
        let secs = |secs| at(start, secs).0;
        // Sent at 10 s, read by the store at 10 s or at 15 s, and answered at 15 s.
        for (read_at, next_at) in [(10, 16), (25, 36)] {
            watch.observe(secs(read_at - 1), secs(read_at - 1), at(start, read_at - 1).1);
            watch.observe(secs(10), secs(read_at.max(15)), at(start, read_at).1);
            assert!(!watch.is_unsure(secs(next_at), Duration::from_secs(60)), "read at {read_at} s");
        }
        // It hides no jump, either: the reading before it is compared with the one after it.
        watch.observe(secs(40), secs(50), at(start, 46).1);
        watch.observe(secs(51), secs(51), at(start, 56).1);
        assert!(watch.is_unsure(secs(51), Duration::from_secs(60)));
    }

    #[test]
    fn the_reaper_waits_as_long_as_the_clock_leapt_forward() {
        let (watch, start, hour) = (ClockWatch::new(true), Instant::now(), Duration::from_secs(3600));
        let micros = |hours: i64| Timestamp::from_micros(hours * 3_600_000_000);
        watch.observe(start, start, micros(100));
        assert!(!watch.is_ahead(start));
        watch.observe(start, start, micros(103));
        assert!(watch.is_ahead(start + 2 * hour) && !watch.is_ahead(start + 3 * hour));
        watch.observe(start, start, micros(10_000));
        assert!(watch.is_ahead(start + 23 * hour) && !watch.is_ahead(start + 24 * hour));
        watch.observe(start, start, micros(100));
        assert!(!watch.is_ahead(start), "it was set back");
    }
}
