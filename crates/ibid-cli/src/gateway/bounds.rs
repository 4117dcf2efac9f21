//! The names of the gateway's bounds, as used in the configuration and in metrics.

use ibid::telemetry::{LIMIT_MAX, LIMIT_REACHED, LIMIT_USED};
use metrics::{counter, gauge};

/// A bound of the gateway, named by the key that sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    Connections,
    Guarded,
    GuardedPerConnection,
    Passed,
    UpstreamConnections,
    BufferedBytes,
    ReplyBytes,
    Resets,
    Stall,
    Idle,
}

impl Bound {
    pub(crate) const ALL: [Bound; 10] = [
        Bound::Connections,
        Bound::Guarded,
        Bound::GuardedPerConnection,
        Bound::Passed,
        Bound::UpstreamConnections,
        Bound::BufferedBytes,
        Bound::ReplyBytes,
        Bound::Resets,
        Bound::Stall,
        Bound::Idle,
    ];

    /// Returns the key of `[server]` that sets this bound.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Bound::Connections => "max_connections",
            Bound::Guarded => "max_guarded",
            Bound::GuardedPerConnection => "max_guarded_per_connection",
            Bound::Passed => "max_passed",
            Bound::UpstreamConnections => "max_upstream_connections",
            Bound::BufferedBytes => "max_buffered_bytes",
            Bound::ReplyBytes => "max_reply_bytes",
            Bound::Resets => "max_resets",
            Bound::Stall => "stall_timeout",
            Bound::Idle => "idle_timeout",
        }
    }
}

/// Counts one request or connection that a bound refused or ended.
pub(crate) fn count_reached(bound: Bound) {
    counter!(LIMIT_REACHED, "limit" => bound.key()).increment(1);
}

/// Sets the counter of every bound to zero: monitoring sees no increase in a counter that first appears as 1.
pub(crate) fn init_counters() {
    for bound in Bound::ALL {
        counter!(LIMIT_REACHED, "limit" => bound.key()).increment(0);
    }
}

/// Sets the gauges of a bound: how much of it is used, and its maximum.
pub(crate) fn show(bound: Bound, used: u64, max: u64) {
    gauge!(LIMIT_USED, "limit" => bound.key()).set(used as f64);
    gauge!(LIMIT_MAX, "limit" => bound.key()).set(max as f64);
}
