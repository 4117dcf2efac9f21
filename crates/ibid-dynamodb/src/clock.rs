//! The node's clock, and the watch over how far it is from the service's.
//!
//! DynamoDB has no clock that a condition could read, so each node writes and compares instants of its clock. That is safe
//! while two nodes differ by `skew_max` at most, because a lease counts as lapsed that much later. The watch compares the
//! clock with the `Date` of every reply: a node must stay within half of `skew_max` of the service.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ibid_core::time::Timestamp;
use parking_lot::Mutex;

/// The clock of this node: the machine's, and a shift that tests set. Clones share the shift.
#[derive(Clone, Debug, Default)]
pub struct NodeClock {
    shift: Arc<AtomicI64>,
    /// Time from which the shift counts, instead of the machine's.
    fixed: Option<Timestamp>,
}

impl NodeClock {
    /// Creates a clock that stands at `at` until a test shifts it.
    pub fn standing_at(at: Timestamp) -> NodeClock {
        NodeClock { fixed: Some(at), ..NodeClock::default() }
    }

    /// Shifts the clock from now on by so many microseconds from the machine's, forward or back.
    pub fn set_shift(&self, micros: i64) {
        self.shift.store(micros, Ordering::SeqCst);
    }

    /// Moves the clock on.
    pub fn advance(&self, by: Duration) {
        self.shift.fetch_add(micros(by), Ordering::SeqCst);
    }

    /// Returns the present time.
    pub fn now(&self) -> Timestamp {
        // A machine that claims a time before 1970 has no usable clock; the watch finds that it is off.
        let since = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let base = self.fixed.map_or_else(|| micros(since()), Timestamp::as_micros);
        Timestamp::from_micros(base.saturating_add(self.shift.load(Ordering::SeqCst)))
    }
}

/// The distance between the node's clock and the service's, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClockState {
    /// No reply had a `Date`, so nothing is known.
    Unknown,
    /// The clock is within half of `skew_max`. It is this far ahead at most, in microseconds; behind if negative.
    Within(i64),
    /// The clock is too far off, by up to so many microseconds: no lease is given and none counts as lapsed.
    Off(i64),
    /// The last reply that proved the clock right is too old to count.
    Unproven,
}

/// A time of the node's clock, and when it was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeTime {
    pub(crate) time: Timestamp,
    at: Instant,
}

/// A comparison with the service: at this moment the clock was ahead of it by `low` to `high` microseconds.
#[derive(Clone, Copy, Debug)]
struct ClockReading {
    moment: NodeTime,
    low: i64,
    high: i64,
}

impl ClockReading {
    /// Returns the two bounds for another moment. The monotonic clock tells by how much the clock was set in between.
    fn bounds_at(&self, moment: NodeTime) -> (i64, i64) {
        let passed = micros(moment.at.saturating_duration_since(self.moment.at))
            - micros(self.moment.at.saturating_duration_since(moment.at));
        let moved = moment.time.as_micros().saturating_sub(self.moment.time.as_micros());
        let step = moved.saturating_sub(passed);
        (self.low.saturating_add(step), self.high.saturating_add(step))
    }
}

/// The watch over a [`NodeClock`].
#[derive(Debug)]
pub(crate) struct ClockWatch {
    clock: NodeClock,
    /// Largest distance from the service, in microseconds: half of this node's `skew_max`.
    half: i64,
    /// Time for which a reply that proved the clock right counts.
    proof_for: Duration,
    /// The largest difference between two nodes on this table, in microseconds. It only grows.
    skew_max: AtomicI64,
    last: Mutex<Option<ClockReading>>,
}

impl ClockWatch {
    pub(crate) fn new(clock: NodeClock, skew_max: Duration, proof_for: Duration) -> ClockWatch {
        let (half, skew_max) = (micros(skew_max / 2), AtomicI64::new(micros(skew_max)));
        ClockWatch { clock, half, proof_for, skew_max, last: Mutex::new(None) }
    }

    /// Returns the node's time, whatever is known about it.
    pub(crate) fn now(&self) -> NodeTime {
        NodeTime { time: self.clock.now(), at: Instant::now() }
    }

    /// Returns an instant that has passed on every node.
    ///
    /// While the clock is not trusted, this counts from the service's time, by its earlier bound. A clock that is two hours
    /// fast would find a stored result expired, and the request would run again.
    pub(crate) fn past(&self) -> Timestamp {
        let now = self.now();
        let ahead = self.untrusted_bounds(now).map_or(0, |(_, high)| high);
        Timestamp::from_micros(now.time.as_micros().saturating_sub(ahead)).before(self.skew_max())
    }

    pub(crate) fn skew_max(&self) -> Duration {
        Duration::from_micros(self.skew_max.load(Ordering::SeqCst).unsigned_abs())
    }

    /// Notes that nodes on this table may differ by this much.
    pub(crate) fn raise_skew(&self, skew_max: Duration) {
        self.skew_max.fetch_max(micros(skew_max), Ordering::SeqCst);
    }

    /// Returns what is known about the clock at this moment.
    pub(crate) fn state(&self) -> ClockState {
        self.judge(self.now())
    }

    /// Returns whether leases may be given and judged at this moment.
    pub(crate) fn trusts(&self, moment: NodeTime) -> bool {
        matches!(self.judge(moment), ClockState::Within(_) | ClockState::Unknown)
    }

    /// Returns the time for a write that needs no right clock, because it gives no lease: a result is always stored.
    ///
    /// While the clock is not trusted, this is the service's time: the last `Date` and what has passed since by the
    /// monotonic clock. A clock that was set back by the retention would store a result that has expired already, and the
    /// next retry would run again. A result that is kept a second longer does no harm, so the later bound is taken.
    pub(crate) fn now_for_result(&self) -> NodeTime {
        let now = self.now();
        let ahead = self.untrusted_bounds(now).map_or(0, |(low, _)| low);
        NodeTime { time: Timestamp::from_micros(now.time.as_micros().saturating_sub(ahead)), ..now }
    }

    /// Returns by how much the clock is ahead of the service, at least and at most, if it is known and the clock is not
    /// trusted.
    fn untrusted_bounds(&self, now: NodeTime) -> Option<(i64, i64)> {
        let last = *self.last.lock();
        last.filter(|_| !self.trusts(now)).map(|reading| reading.bounds_at(now))
    }

    /// Returns whether a write was certainly stamped too early by more than the bound: the machine was suspended, and the
    /// reply to the write was the first to show it.
    pub(crate) fn is_early(&self, stamp: NodeTime) -> bool {
        self.last.lock().is_some_and(|reading| reading.bounds_at(stamp).1 < -self.half)
    }

    /// Compares a moment, perhaps of the past, with the last reading.
    ///
    /// A step of the clock since then counts against the bound at once: T1 (its clock just set back by an hour) would
    /// begin a lease that ends in the past of T2, and T2 would take it over while T1 runs. A machine that was suspended
    /// has no such step, because its monotonic clock stood still as well: the reply to the next request shows it.
    fn judge(&self, moment: NodeTime) -> ClockState {
        let Some(reading) = *self.last.lock() else { return ClockState::Unknown };
        let (low, high) = reading.bounds_at(moment);
        let worst = if high.saturating_abs() >= low.saturating_abs() { high } else { low };
        match worst.saturating_abs() <= self.half {
            false => ClockState::Off(worst),
            true if moment.at.saturating_duration_since(reading.moment.at) > self.proof_for => {
                ClockState::Unproven
            }
            true => ClockState::Within(worst),
        }
    }

    /// Compares the clock with the `Date` of a reply that has just arrived, `took` after its request was sent.
    pub(crate) fn observe(&self, took: Duration, date: SystemTime) {
        self.observe_at(self.now(), took, date);
    }

    /// The service read its clock at some instant between request and reply, and `Date` has whole seconds. So the distance
    /// lies between two bounds, and both must be within half of `skew_max`.
    fn observe_at(&self, arrived: NodeTime, took: Duration, date: SystemTime) {
        let date = micros(date.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO));
        let high = arrived.time.as_micros().saturating_sub(date);
        let low = high.saturating_sub(micros(took + DATE_STEP));
        let before = self.judge(arrived);
        let is_right = low >= -self.half && high <= self.half;
        let is_wrong = low > self.half || high < -self.half;
        if !is_right && !is_wrong && matches!(before, ClockState::Within(_)) {
            return; // The reply was too slow to tell, and an earlier one has told.
        }
        *self.last.lock() = Some(ClockReading { moment: arrived, low, high });
        match (before, self.judge(arrived)) {
            (ClockState::Off(_), ClockState::Within(_)) => tracing::info!("this node's clock is right again"),
            (ClockState::Off(_), _) => {}
            (_, ClockState::Off(by)) => tracing::error!(
                by_ms = by / 1000,
                limit_ms = self.half / 1000,
                "this node's clock may be too far off; no new reservations"
            ),
            _ => {}
        }
    }
}

fn micros(length: Duration) -> i64 {
    i64::try_from(length.as_micros()).unwrap_or(i64::MAX)
}

/// `Date` has whole seconds.
const DATE_STEP: Duration = Duration::from_secs(1);

/// Time for which a reply that proved the clock right counts. Within a minute a sound clock drifts by milliseconds, and a
/// process that begins attempts gets a reply every few seconds, because it reads its identity.
pub(crate) const PROOF_FOR: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(shift_secs: i64) -> (ClockWatch, NodeClock) {
        let clock = NodeClock::default();
        clock.set_shift(shift_secs * 1_000_000);
        (ClockWatch::new(clock.clone(), Duration::from_secs(10), PROOF_FOR), clock)
    }

    /// The present as `Date` gives it: cut to seconds.
    fn date() -> SystemTime {
        let secs = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        UNIX_EPOCH + Duration::from_secs(secs)
    }

    #[test]
    fn a_clock_within_half_of_the_skew_is_right() {
        for (shift, is_right) in [(0, true), (3, true), (-3, true), (7, false), (-7, false), (3600, false)] {
            let (watch, _) = watch(shift);
            assert_eq!(watch.state(), ClockState::Unknown);
            watch.observe(Duration::ZERO, date());
            assert_eq!(
                matches!(watch.state(), ClockState::Within(_)),
                is_right,
                "{shift}: {:?}",
                watch.state()
            );
        }
    }

    #[test]
    fn the_distance_is_the_worse_of_the_two_bounds() {
        let (watch, _) = watch(0);
        let start = watch.now();
        let slow = NodeTime { time: start.time.before(Duration::from_secs(3)), ..start };
        let date = UNIX_EPOCH + Duration::from_micros(start.time.as_micros().unsigned_abs());
        watch.observe_at(slow, Duration::from_millis(200), date);
        assert_eq!(
            watch.judge(slow),
            ClockState::Within(-4_200_000),
            "3 s, a second of `Date`, the round trip"
        );
    }

    #[test]
    fn a_slow_reply_proves_nothing_and_takes_no_proof_back() {
        let (watch, _) = watch(0);
        watch.observe(Duration::from_secs(8), date());
        assert!(matches!(watch.state(), ClockState::Off(_)), "it was never proven right");
        watch.observe(Duration::ZERO, date());
        watch.observe(Duration::from_secs(8), date());
        assert!(matches!(watch.state(), ClockState::Within(_)));
    }

    #[test]
    fn a_step_of_the_clock_counts_against_its_bound() {
        for (shift, step, is_right) in [(0, -2, true), (0, 3, true), (3, 3, false), (-3, -2, false)] {
            let (watch, clock) = watch(shift);
            watch.observe(Duration::ZERO, date());
            assert!(matches!(watch.state(), ClockState::Within(_)), "{shift}");
            clock.set_shift((shift + step) * 1_000_000);
            assert_eq!(watch.trusts(watch.now()), is_right, "{shift} {step}: {:?}", watch.state());
            clock.set_shift(shift * 1_000_000);
            assert!(watch.trusts(watch.now()), "it was set back");
        }
    }

    #[test]
    fn a_proof_counts_for_a_minute() {
        let (watch, _) = watch(0);
        watch.observe(Duration::ZERO, date());
        let now = watch.now();
        let later = |by: Duration| NodeTime { time: now.time.after(by), at: now.at + by };
        assert!(watch.trusts(later(PROOF_FOR / 2)));
        assert_eq!(watch.judge(later(PROOF_FOR * 2)), ClockState::Unproven);
    }

    #[test]
    fn the_time_of_a_result_is_the_services_while_the_clock_is_off() {
        for shift in [-3600, 3600] {
            let (watch, clock) = watch(0);
            let right = clock.now();
            watch.observe(Duration::ZERO, date());
            // Once a reply has shown it, once it was set since the last reply.
            for shown in [false, true] {
                clock.set_shift(shift * 1_000_000);
                if shown {
                    watch.observe(Duration::ZERO, date());
                }
                let stamp = watch.now_for_result();
                let late = stamp.time.as_micros() - right.as_micros();
                assert!((0..60_000_000).contains(&late), "{shift} {shown}: {late}");
                assert!(!watch.is_early(stamp));
            }
        }
    }

    #[test]
    fn the_past_is_the_services_while_the_clock_is_off() {
        for shift in [-3600, 3600] {
            let (watch, clock) = watch(0);
            let right = NodeClock::default();
            watch.observe(Duration::ZERO, date());
            // Once it was set since the last reply, once a reply has shown it.
            for shown in [false, true] {
                clock.set_shift(shift * 1_000_000);
                if shown {
                    watch.observe(Duration::ZERO, date());
                }
                let past = watch.past();
                let early = right.now().as_micros() - past.as_micros();
                assert!((10_000_000..60_000_000).contains(&early), "{shift} {shown}: {early}");
            }
        }
    }

    #[test]
    fn a_stamp_of_a_suspended_machine_is_early() {
        let (watch, _) = watch(0);
        watch.observe(Duration::ZERO, date());
        let stamp = watch.now();
        assert!(watch.trusts(stamp) && !watch.is_early(stamp));
        watch.observe(Duration::ZERO, date() + Duration::from_secs(300));
        assert!(!watch.trusts(stamp) && watch.is_early(stamp), "the reply to the write showed it");
    }
}
