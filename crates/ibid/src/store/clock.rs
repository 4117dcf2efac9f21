//! The clock of a store on this machine.
//!
//! A store on a server has the server's clock and does not need this one.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ibid_core::time::Timestamp;

/// The source of a store's time. Clones return the same time.
#[derive(Clone, Debug)]
pub struct Clock(Source);

/// The setter of a [`Clock::manual`]. Clones set the same clock.
#[derive(Clone, Debug)]
pub struct ClockSetter(Arc<AtomicI64>);

#[derive(Clone, Debug)]
enum Source {
    System,
    Manual(Arc<AtomicI64>),
}

impl Clock {
    /// Creates a clock that reads the machine's. It may be set back; code that compares leases allows for that, the clock does
    /// not.
    pub fn system() -> Clock {
        Clock(Source::System)
    }

    /// Creates a clock that does not advance until a test sets it, so that the test can be any day.
    pub fn manual(start: Timestamp) -> (Clock, ClockSetter) {
        let at = Arc::new(AtomicI64::new(start.as_micros()));
        (Clock(Source::Manual(at.clone())), ClockSetter(at))
    }

    /// Returns the current time.
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::System => Timestamp::from_micros(system_micros()),
            Source::Manual(at) => Timestamp::from_micros(at.load(Ordering::SeqCst)),
        }
    }
}

impl Default for Clock {
    fn default() -> Self {
        Clock::system()
    }
}

impl ClockSetter {
    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        let moved = |at| Some(Timestamp::from_micros(at).after(by).as_micros());
        // The closure always returns a value, so the update cannot fail.
        let _ = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, moved);
    }

    /// Sets the clock, forward or back.
    pub fn set(&self, at: Timestamp) {
        self.0.store(at.as_micros(), Ordering::SeqCst);
    }
}

/// Returns the microseconds since the epoch; zero before it, because a machine that claims 1969 has no usable clock.
fn system_micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Timestamp::default().after(since).as_micros()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_stands_still_until_it_is_set() {
        let (clock, hands) = Clock::manual(Timestamp::from_micros(10));
        let copy = clock.clone();
        assert_eq!(clock.now(), clock.now());
        hands.advance(Duration::from_micros(5));
        assert_eq!(copy.now(), Timestamp::from_micros(15));
        hands.set(Timestamp::from_micros(3));
        assert_eq!(clock.now(), Timestamp::from_micros(3));
    }

    #[test]
    fn the_system_clock_tells_a_time_of_this_century() {
        assert!(Clock::system().now() > Timestamp::from_micros(1_700_000_000_000_000));
    }
}
