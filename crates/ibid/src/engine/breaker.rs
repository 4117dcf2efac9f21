//! Stops asking a store that does not answer, so that clients get their 503 at once and the store gets its rest. It
//! gates begins only, never a finish, a renewal or a release.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

#[derive(Default)]
pub(crate) struct Breaker(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    failures: u32,
    open_until: Option<Instant>,
}

impl Breaker {
    /// Whether a begin may ask the store now. Once the pause is over one caller at a time finds out.
    pub(crate) fn lets_through(&self, now: Instant) -> bool {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match inner.open_until {
            Some(until) if now < until => false,
            Some(_) => {
                inner.open_until = Some(now + PAUSE);
                true
            }
            None => true,
        }
    }

    /// The store answered.
    pub(crate) fn success(&self) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *inner = Inner::default();
    }

    /// A begin was given up.
    pub(crate) fn failure(&self, now: Instant) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.failures = inner.failures.saturating_add(1);
        if inner.failures >= FAILURES_MAX {
            inner.open_until = Some(now + PAUSE);
        }
    }

    /// Whether begins are being turned away.
    pub(crate) fn is_open(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).open_until.is_some()
    }
}

/// Begins given up in a row before the rest is refused unasked. Fewer, and one slow disk flush would refuse everybody.
const FAILURES_MAX: u32 = 5;

/// How long nobody asks: the `Retry-After` that the refused were given.
const PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_after_failures_in_a_row_lets_one_find_out_and_closes_on_success() {
        let (breaker, start) = (Breaker::default(), Instant::now());
        for _ in 1..FAILURES_MAX {
            breaker.failure(start);
        }
        assert!(breaker.lets_through(start), "not yet");
        breaker.failure(start);
        assert!(!breaker.lets_through(start) && breaker.is_open());
        assert!(breaker.lets_through(start + PAUSE), "one finds out");
        assert!(!breaker.lets_through(start + PAUSE), "and only one");
        breaker.success();
        assert!(breaker.lets_through(start + PAUSE) && !breaker.is_open());
    }

    #[test]
    fn a_success_between_failures_keeps_it_closed() {
        let (breaker, start) = (Breaker::default(), Instant::now());
        for _ in 0..10 * FAILURES_MAX {
            breaker.failure(start);
            breaker.success();
        }
        assert!(breaker.lets_through(start));
    }
}
