//! Pauses between retries: doubling, bounded, and spread so that many callers do not retry at once.

use std::time::Duration;

use crate::random::jitter;

/// The pauses between the tries of one operation.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    pause: Duration,
    max: Duration,
}

impl Backoff {
    /// Starts at `min` and doubles up to `max`.
    pub(crate) const fn new(min: Duration, max: Duration) -> Backoff {
        Backoff { pause: min, max }
    }

    /// Returns the pause before the next try, give or take a quarter.
    pub(crate) fn next(&mut self) -> Duration {
        let pause = spread(self.pause);
        self.pause = (self.pause * 2).min(self.max);
        pause
    }
}

/// Returns `pause`, or up to a quarter less.
pub(crate) fn shorten(pause: Duration) -> Duration {
    pause.mul_f64(1.0 - 0.25 * jitter())
}

/// Returns `pause`, give or take a quarter.
pub(crate) fn spread(pause: Duration) -> Duration {
    pause.mul_f64(0.75 + 0.5 * jitter())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_maximum() {
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(50));
        for millis in [10, 20, 40, 50, 50] {
            let (pause, middle) = (backoff.next(), Duration::from_millis(millis));
            assert!(
                pause >= middle.mul_f64(0.75) && pause <= middle.mul_f64(1.25),
                "{pause:?} of {middle:?}"
            );
        }
    }
}
