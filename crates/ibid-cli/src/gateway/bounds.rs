//! The names of the gateway's bounds, as configuration and metrics have them.

use ibid::telemetry::{LIMIT_MAX, LIMIT_REACHED, LIMIT_USED};
use metrics::{counter, gauge};

/// A bound. Its name is the key that sets it.
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

    /// The key of `[server]` that sets it.
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

/// Counts that a bound refused or ended something.
pub(crate) fn reached(bound: Bound) {
    counter!(LIMIT_REACHED, "limit" => bound.key()).increment(1);
}

/// Shows every bound as not reached yet: a counter that begins at 1 has not grown to who watches it.
pub(crate) fn none_reached_yet() {
    for bound in Bound::ALL {
        counter!(LIMIT_REACHED, "limit" => bound.key()).increment(0);
    }
}

/// Shows how much of a bound is used.
pub(crate) fn show(bound: Bound, used: u64, max: u64) {
    gauge!(LIMIT_USED, "limit" => bound.key()).set(used as f64);
    gauge!(LIMIT_MAX, "limit" => bound.key()).set(max as f64);
}
