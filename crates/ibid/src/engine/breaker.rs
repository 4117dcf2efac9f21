//! Stops asking a store that does not answer, so that clients get their 503 at once and the store gets its rest. It
//! gates begins only, never a finish, a renewal or a release.
//!
//! Closed → open after failures in a row → one probe after a pause → closed if the store answered, else open again for
//! longer. A probe whose fate is not known is a failed one: nothing closes it but an answer.

use std::time::Duration;

use metrics::gauge;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::random::jitter;
use crate::telemetry;

#[derive(Default)]
pub(crate) struct Breaker(Mutex<Stand>);

enum Stand {
    Closed {
        /// Begins given up in a row.
        failures: u32,
    },
    Open {
        /// When one may find out.
        until: Instant,
        /// How long the next pause is at most.
        pause: Duration,
        /// Whether one is finding out.
        probing: bool,
    },
}

impl Default for Stand {
    fn default() -> Self {
        Stand::Closed { failures: 0 }
    }
}

/// The right to ask the store once. Dropped without a word it counts as failed if its begin has panicked, and as unused if
/// it was cancelled: that a client hung up says nothing about the store.
pub(crate) struct Pass<'a> {
    breaker: &'a Breaker,
    /// It finds out for all the others.
    probe: bool,
    used: bool,
}

impl Breaker {
    /// The right to ask the store, or how long to the next probe. Once the pause is over one caller finds out, and
    /// until it has, nobody else does.
    pub(crate) fn enter(&self, now: Instant) -> Result<Pass<'_>, Duration> {
        let probe = match &mut *self.stand() {
            Stand::Closed { .. } => false,
            Stand::Open { until, .. } if now < *until => return Err(*until - now),
            Stand::Open { probing: true, pause, .. } => return Err(*pause),
            Stand::Open { probing, .. } => {
                *probing = true;
                true
            }
        };
        Ok(Pass { breaker: self, probe, used: false })
    }

    /// How long to the next probe; none while it is closed.
    pub(crate) fn shut_for(&self, now: Instant) -> Option<Duration> {
        match &*self.stand() {
            Stand::Closed { .. } => None,
            Stand::Open { probing: true, pause, .. } => Some(*pause),
            Stand::Open { until, .. } => Some(until.saturating_duration_since(now)),
        }
    }

    /// Whether begins are being turned away.
    pub(crate) fn is_open(&self) -> bool {
        matches!(&*self.stand(), Stand::Open { .. })
    }

    /// Says how it stands, for the gauge.
    pub(crate) fn tell(&self) {
        gauge!(telemetry::BREAKER_OPEN).set(f64::from(u8::from(self.is_open())));
    }

    fn stand(&self) -> MutexGuard<'_, Stand> {
        // Replaced as a whole: nobody panics half-way.
        self.0.lock()
    }
}

impl Pass<'_> {
    /// The store answered, whoever asked.
    pub(crate) fn answered(mut self) {
        self.used = true;
        let before = std::mem::take(&mut *self.breaker.stand());
        if matches!(before, Stand::Open { .. }) {
            tracing::info!("the store answers again");
            self.breaker.tell();
        }
    }

    /// The begin was given up without an answer.
    pub(crate) fn failed(mut self, now: Instant) {
        self.used = true;
        self.fail(now);
    }

    /// The store was not asked after all: nothing was found out.
    pub(crate) fn unused(mut self) {
        self.used = true;
        self.give_back();
    }

    /// Another may find out.
    fn give_back(&self) {
        if let Stand::Open { probing, .. } = &mut *self.breaker.stand()
            && self.probe
        {
            *probing = false;
        }
    }

    fn fail(&self, now: Instant) {
        let open = |pause: Duration| Stand::Open {
            // Not all nodes at once, and never past the pause.
            until: now + pause.mul_f64(0.75 + 0.25 * jitter()),
            pause: (pause * 2).min(PAUSE_MAX),
            probing: false,
        };
        let opened = {
            let mut stand = self.breaker.stand();
            match &mut *stand {
                Stand::Closed { failures } if *failures + 1 < FAILURES_MAX => {
                    *failures += 1;
                    false
                }
                Stand::Closed { .. } => {
                    *stand = open(PAUSE_MIN);
                    true
                }
                // What was under way when it opened says nothing new; only the probe does.
                Stand::Open { pause, .. } if self.probe => {
                    *stand = open(*pause);
                    false
                }
                Stand::Open { .. } => false,
            }
        };
        if opened {
            tracing::error!("the store does not answer: keys are not reserved for now");
            self.breaker.tell();
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

/// Begins given up in a row before the rest is refused unasked. Fewer, and one slow disk flush would refuse everybody.
const FAILURES_MAX: u32 = 5;

/// How long nobody asks at first: about a failover's connection reset.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// How long nobody asks at most. A probe costs the store next to nothing, and every second more is one in which a store
/// that is back is not used.
const PAUSE_MAX: Duration = Duration::from_secs(8);

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(breaker: &Breaker, at: Instant) -> Pass<'_> {
        breaker.enter(at).unwrap_or_else(|left| panic!("it is shut for {left:?}"))
    }

    fn opened(at: Instant) -> Breaker {
        let breaker = Breaker::default();
        for _ in 0..FAILURES_MAX {
            assert!(!breaker.is_open());
            pass(&breaker, at).failed(at);
        }
        assert!(breaker.is_open());
        breaker
    }

    #[tokio::test]
    async fn it_opens_after_failures_in_a_row_lets_one_find_out_and_closes_on_success() {
        let start = Instant::now();
        let breaker = opened(start);
        let left = breaker.enter(start).err().expect("shut");
        assert!(left > PAUSE_MIN / 2 && left <= PAUSE_MIN, "{left:?}");
        let later = start + left;
        let probe = pass(&breaker, later);
        for long in 0..100 {
            assert!(breaker.enter(later + PAUSE_MAX * long).is_err(), "one finds out, and only one");
        }
        probe.answered();
        assert!(breaker.enter(later).is_ok() && breaker.enter(later).is_ok() && !breaker.is_open());
    }

    #[tokio::test]
    async fn a_probe_without_an_answer_keeps_it_open_for_longer_each_time_up_to_a_bound() {
        let mut now = Instant::now();
        let breaker = opened(now);
        let mut pauses = Vec::new();
        for _ in 0..6 {
            let left = breaker.enter(now).err().expect("shut");
            assert_eq!(breaker.shut_for(now), Some(left));
            pauses.push(left);
            now += left;
            pass(&breaker, now).failed(now);
        }
        for (n, left) in pauses.iter().enumerate() {
            let longest = (PAUSE_MIN * 2u32.pow(n as u32)).min(PAUSE_MAX);
            assert!(*left >= longest.mul_f64(0.75) && *left <= longest, "{pauses:?}");
        }
        now += PAUSE_MAX;
        pass(&breaker, now).answered();
        for _ in 0..FAILURES_MAX {
            pass(&breaker, now).failed(now);
        }
        assert!(breaker.enter(now).err().expect("shut") <= PAUSE_MIN, "the pause begins anew");
    }

    #[tokio::test]
    async fn what_was_under_way_when_it_opened_neither_prolongs_it_nor_ends_the_probe() {
        let start = Instant::now();
        let breaker = Breaker::default();
        let under_way: Vec<_> = (0..20).map(|_| pass(&breaker, start)).collect();
        for _ in 0..FAILURES_MAX {
            pass(&breaker, start).failed(start);
        }
        let left = breaker.enter(start).err().expect("shut");
        let mut under_way = under_way.into_iter();
        under_way.next().expect("one").failed(start + left / 2);
        assert_eq!(breaker.enter(start).err(), Some(left));
        let probe = pass(&breaker, start + left);
        under_way.next().expect("one").failed(start + left);
        assert!(breaker.enter(start + left).is_err(), "the probe is still out");
        under_way.next().expect("one").answered();
        assert!(!breaker.is_open(), "an answer is an answer");
        probe.answered();
    }

    #[tokio::test]
    async fn a_probe_that_panics_or_is_not_sent_gives_its_place_to_another() {
        let start = Instant::now();
        let breaker = opened(start);
        let later = start + PAUSE_MIN;
        pass(&breaker, later).unused();
        panics_with(pass(&breaker, later));
        let left = breaker.enter(later).err().expect("a panic is no answer");
        assert!(left <= 2 * PAUSE_MIN + PAUSE_MIN);
        pass(&breaker, later + 3 * PAUSE_MIN).answered();
    }

    #[tokio::test]
    async fn a_begin_that_is_cancelled_says_nothing_and_gives_its_place_to_another() {
        let start = Instant::now();
        let breaker = Breaker::default();
        for _ in 0..2 * FAILURES_MAX {
            drop(pass(&breaker, start));
        }
        assert!(!breaker.is_open(), "clients that hung up are no failures");
        let breaker = opened(start);
        let later = start + PAUSE_MIN;
        drop(pass(&breaker, later));
        assert!(breaker.is_open(), "nor an answer");
        pass(&breaker, later).answered();
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
    fn a_success_between_failures_keeps_it_closed() {
        let (breaker, start) = (Breaker::default(), Instant::now());
        for _ in 0..10 * FAILURES_MAX {
            pass(&breaker, start).failed(start);
            pass(&breaker, start).answered();
        }
        assert!(!breaker.is_open());
    }
}
