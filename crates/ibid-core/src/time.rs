//! Instants of the store's clock. Nothing here reads a clock: the caller always passes the time.

use std::fmt;
use std::time::Duration;

/// An instant of the store's clock, in microseconds since the Unix epoch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Creates the instant `micros` microseconds after the epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Returns microseconds since the epoch, the form that every store keeps.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Returns whole seconds since the epoch, rounded down: HTTP dates carry no more.
    pub const fn as_secs(self) -> i64 {
        self.0.div_euclid(1_000_000)
    }

    /// Returns the instant `by` later. Saturates: a sum past the year 294,000 is "never", not an overflow.
    pub fn after(self, by: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(by.as_micros()).unwrap_or(i64::MAX)))
    }

    /// Returns the instant `by` earlier. Saturates, too.
    pub fn before(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(by.as_micros()).unwrap_or(i64::MAX)))
    }

    /// Returns the time from `earlier` to this instant; zero if `earlier` is in fact later.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}µs", self.0)
    }
}
