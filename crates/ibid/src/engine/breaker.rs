//! A circuit breaker: stops asking a store that does not answer, so that clients get their 503 at once and the store gets
//! its rest. It gates begins only, never a finish, a renewal or a release.
//!
//! Closed → open after failures in a row → one probe after a pause → closed if the store answered, otherwise open again
//! for longer. A probe whose fate is unknown counts as failed: only an answer closes the breaker.

use std::time::Duration;

use metrics::gauge;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::backoff::shorten;
use crate::telemetry;

#[derive(Default)]
pub(crate) struct Breaker(Mutex<BreakerState>);

enum BreakerState {
    Closed {
        /// Begins without a reply in a row.
        failures: u32,
    },
    Open {
        /// Instant at which the next probe may start.
        until: Instant,
        /// Longest pause if the next probe fails.
        pause: Duration,
        /// `true` while a probe is in flight.
        probing: bool,
    },
}

impl Default for BreakerState {
    fn default() -> Self {
        BreakerState::Closed { failures: 0 }
    }
}

/// The right to ask the store once. Dropped without a verdict it counts as failed if its begin has panicked, and as unused
/// if it was cancelled: a client that hung up says nothing about the store.
pub(crate) struct Pass<'a> {
    breaker: &'a Breaker,
    /// `true` for the probe of an open breaker.
    probe: bool,
    used: bool,
}

impl Breaker {
    /// Returns the right to ask the store, or how long the breaker stays open. Once the pause is over one caller probes the
    /// store; until its probe has ended, all others are refused.
    pub(crate) fn enter(&self, now: Instant) -> Result<Pass<'_>, Duration> {
        let probe = match &mut *self.state() {
            BreakerState::Closed { .. } => false,
            BreakerState::Open { until, .. } if now < *until => return Err(*until - now),
            BreakerState::Open { probing: true, pause, .. } => return Err(*pause),
            BreakerState::Open { probing, .. } => {
                *probing = true;
                true
            }
        };
        Ok(Pass { breaker: self, probe, used: false })
    }

    /// Returns how long it is to the next probe, or `None` while the breaker is closed.
    pub(crate) fn pause_left(&self, now: Instant) -> Option<Duration> {
        match &*self.state() {
            BreakerState::Closed { .. } => None,
            BreakerState::Open { probing: true, pause, .. } => Some(*pause),
            BreakerState::Open { until, .. } => Some(until.saturating_duration_since(now)),
        }
    }

    /// Returns whether begins are being refused.
    pub(crate) fn is_open(&self) -> bool {
        matches!(&*self.state(), BreakerState::Open { .. })
    }

    /// Sets the gauge `ibid_breaker_open`.
    pub(crate) fn publish_gauge(&self) {
        gauge!(telemetry::BREAKER_OPEN).set(f64::from(u8::from(self.is_open())));
    }

    fn state(&self) -> MutexGuard<'_, BreakerState> {
        self.0.lock()
    }
}

impl Pass<'_> {
    /// Returns whether this is the probe of an open breaker.
    pub(crate) fn is_probe(&self) -> bool {
        self.probe
    }

    /// Reports that the store answered. That closes the breaker, also if this is not the probe.
    pub(crate) fn report_reply(mut self) {
        self.used = true;
        let before = std::mem::take(&mut *self.breaker.state());
        if matches!(before, BreakerState::Open { .. }) {
            tracing::info!("circuit breaker closed: the store answers again");
            self.breaker.publish_gauge();
        }
    }

    /// Reports that the begin got no reply.
    pub(crate) fn report_failure(mut self, now: Instant) {
        self.used = true;
        self.fail(now);
    }

    /// Reports that the store was not asked after all.
    pub(crate) fn cancel(mut self) {
        self.used = true;
        self.give_back();
    }

    /// Lets another caller probe.
    fn give_back(&self) {
        if let BreakerState::Open { probing, .. } = &mut *self.breaker.state()
            && self.probe
        {
            *probing = false;
        }
    }

    fn fail(&self, now: Instant) {
        let open = |pause: Duration| BreakerState::Open {
            // Spread, so that not all nodes probe at once, but never longer than the pause.
            until: now + shorten(pause),
            pause: (pause * 2).min(PAUSE_MAX),
            probing: false,
        };
        let opened = {
            let mut state = self.breaker.state();
            match &mut *state {
                BreakerState::Closed { failures } if *failures + 1 < FAILURES_MAX => {
                    *failures += 1;
                    false
                }
                BreakerState::Closed { .. } => {
                    *state = open(PAUSE_MIN);
                    true
                }
                // Begins that were in flight when the breaker opened say nothing new; only the probe does.
                BreakerState::Open { pause, .. } if self.probe => {
                    *state = open(*pause);
                    false
                }
                BreakerState::Open { .. } => false,
            }
        };
        if opened {
            tracing::error!("circuit breaker opened: store not answering, new keys are refused");
            self.breaker.publish_gauge();
        }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        match self.used {
            true => {}
            false if std::thread::panicking() => self.fail(Instant::now()),
            false => self.give_back(),
        }
    }
}

/// Begins without a reply in a row that open the breaker. With fewer, one slow disk flush would refuse all requests.
const FAILURES_MAX: u32 = 5;

/// First pause: about a failover's connection reset.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// Longest pause. A probe costs the store next to nothing, and with every second more a store that is back stays unused.
const PAUSE_MAX: Duration = Duration::from_secs(8);

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(breaker: &Breaker, at: Instant) -> Pass<'_> {
        breaker.enter(at).unwrap_or_else(|left| panic!("the breaker is open for {left:?}"))
    }

    fn open_breaker(at: Instant) -> Breaker {
        let breaker = Breaker::default();
        for _ in 0..FAILURES_MAX {
            assert!(!breaker.is_open());
            pass(&breaker, at).report_failure(at);
        }
        assert!(breaker.is_open());
        breaker
    }

    #[tokio::test]
    async fn breaker_opens_after_failures_and_closes_after_a_probe() {
        let start = Instant::now();
        let breaker = open_breaker(start);
        let left = breaker.enter(start).err().expect("it is open");
        assert!(left > PAUSE_MIN / 2 && left <= PAUSE_MIN, "{left:?}");
        let later = start + left;
        let probe = pass(&breaker, later);
        for long in 0..100 {
            assert!(breaker.enter(later + PAUSE_MAX * long).is_err(), "one probe at a time");
        }
        probe.report_reply();
        assert!(breaker.enter(later).is_ok() && breaker.enter(later).is_ok() && !breaker.is_open());
    }

    #[tokio::test]
    async fn each_failed_probe_lengthens_the_pause_up_to_a_bound() {
        let mut now = Instant::now();
        let breaker = open_breaker(now);
        let mut pauses = Vec::new();
        for _ in 0..6 {
            let left = breaker.enter(now).err().expect("it is open");
            assert_eq!(breaker.pause_left(now), Some(left));
            pauses.push(left);
            now += left;
            pass(&breaker, now).report_failure(now);
        }
        for (n, left) in pauses.iter().enumerate() {
            let longest = (PAUSE_MIN * 2u32.pow(n as u32)).min(PAUSE_MAX);
            assert!(*left >= longest.mul_f64(0.75) && *left <= longest, "{pauses:?}");
        }
        now += PAUSE_MAX;
        pass(&breaker, now).report_reply();
        for _ in 0..FAILURES_MAX {
            pass(&breaker, now).report_failure(now);
        }
        assert!(
            breaker.enter(now).err().expect("it is open") <= PAUSE_MIN,
            "the pause starts at its minimum again"
        );
    }

    #[tokio::test]
    async fn begins_in_flight_when_it_opens_do_not_prolong_the_pause() {
        let start = Instant::now();
        let breaker = Breaker::default();
        let in_flight: Vec<_> = (0..20).map(|_| pass(&breaker, start)).collect();
        for _ in 0..FAILURES_MAX {
            pass(&breaker, start).report_failure(start);
        }
        let left = breaker.enter(start).err().expect("it is open");
        let mut in_flight = in_flight.into_iter();
        in_flight.next().expect("one").report_failure(start + left / 2);
        assert_eq!(breaker.enter(start).err(), Some(left));
        let probe = pass(&breaker, start + left);
        in_flight.next().expect("one").report_failure(start + left);
        assert!(breaker.enter(start + left).is_err(), "the probe is still out");
        in_flight.next().expect("one").report_reply();
        assert!(!breaker.is_open(), "an answer is an answer");
        probe.report_reply();
    }

    #[tokio::test]
    async fn a_panicked_or_unused_probe_lets_another_caller_probe() {
        let start = Instant::now();
        let breaker = open_breaker(start);
        let later = start + PAUSE_MIN;
        pass(&breaker, later).cancel();
        panics_with(pass(&breaker, later));
        let left = breaker.enter(later).err().expect("a panic is no answer");
        assert!(left <= 2 * PAUSE_MIN + PAUSE_MIN);
        pass(&breaker, later + 3 * PAUSE_MIN).report_reply();
    }

    #[tokio::test]
    async fn a_cancelled_begin_counts_neither_way() {
        let start = Instant::now();
        let breaker = Breaker::default();
        for _ in 0..2 * FAILURES_MAX {
            drop(pass(&breaker, start));
        }
        assert!(!breaker.is_open(), "clients that hung up are no failures");
        let breaker = open_breaker(start);
        let later = start + PAUSE_MIN;
        drop(pass(&breaker, later));
        assert!(breaker.is_open(), "nor an answer");
        pass(&breaker, later).report_reply();
        for _ in 0..FAILURES_MAX {
            panics_with(pass(&breaker, start));
        }
        assert!(breaker.is_open(), "begins that panicked are failures");
    }

    fn panics_with(pass: Pass<'_>) {
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _held = pass;
            std::panic::resume_unwind(Box::new("a begin"));
        }));
        assert!(caught.is_err());
    }

    #[test]
    fn a_success_between_failures_keeps_the_breaker_closed() {
        let (breaker, start) = (Breaker::default(), Instant::now());
        for _ in 0..10 * FAILURES_MAX {
            pass(&breaker, start).report_failure(start);
            pass(&breaker, start).report_reply();
        }
        assert!(!breaker.is_open());
    }
}
