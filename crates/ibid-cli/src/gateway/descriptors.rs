//! File descriptors: raises the soft limit at start, and fits the number of sockets to it.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Most sockets of each kind that may be open at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sockets {
    /// Connections of clients to the gateway.
    pub(crate) connections: u64,
    /// Connections to the upstream for guarded requests.
    pub(crate) upstream_guarded: u64,
    /// Connections to the upstream for unguarded requests.
    pub(crate) upstream_passed: u64,
}

impl Sockets {
    /// Reduces the numbers until they fit below the limit of open files, with [`RESERVE`] left over.
    ///
    /// Client connections and connections for guarded requests get seven sixteenths each of the rest, unguarded requests
    /// an eighth. No kind gets more than it asks for; what it leaves goes to the others.
    pub(crate) fn fit(self, limit: Option<u64>) -> Sockets {
        let Some(limit) = limit else { return self };
        let room = limit.saturating_sub(RESERVE.min(limit / 4));
        if self.connections + self.upstream_guarded + self.upstream_passed <= room {
            return self;
        }
        let upstream_passed = self.upstream_passed.min(room / 8);
        let rest = room - upstream_passed;
        let connections = self.connections.min((rest / 2).max(rest.saturating_sub(self.upstream_guarded)));
        let upstream_guarded = self.upstream_guarded.min(rest - connections);
        Sockets {
            connections: connections.max(1),
            upstream_guarded: upstream_guarded.max(1),
            upstream_passed: upstream_passed.max(1),
        }
    }
}

/// Raises the soft limit of open files to the hard one and returns it, or `None` if there is no limit.
pub(crate) fn raise_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return limit.current;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }) {
        Ok(()) => limit.maximum,
        Err(error) => {
            tracing::warn!(%error, "cannot raise the soft limit of open files");
            limit.current
        }
    }
}

/// Descriptors reserved for everything but clients and the upstream: the store, the log, the operator's listener with its
/// 64 connections, webhook deliveries, and the next connection that is accepted while all slots are taken.
pub(crate) const RESERVE: u64 = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_open_fits_below_the_limit_of_files() {
        let wanted = |connections, upstream_guarded, upstream_passed| Sockets {
            connections,
            upstream_guarded,
            upstream_passed,
        };
        let usual = wanted(4096, 8192, 1024);
        let table = [
            (usual, None, usual),
            (usual, Some(1_048_576), usual),
            (usual, Some(4096 + 8192 + 1024 + RESERVE), usual),
            (usual, Some(4096 + 8192 + 1024 + RESERVE - 1), wanted(4096, 8191, 1024)),
            (usual, Some(1024), wanted(392, 392, 112)),
            (wanted(100, 8192, 1024), Some(1024), wanted(100, 684, 112)),
            (wanted(4096, 100, 1024), Some(1024), wanted(684, 100, 112)),
            (wanted(4096, 8192, 10), Some(1024), wanted(443, 443, 10)),
            (usual, Some(64), wanted(21, 21, 6)),
            (usual, Some(4), wanted(1, 2, 1)),
        ];
        for (wanted, limit, fitted) in table {
            assert_eq!(wanted.fit(limit), fitted, "{wanted:?} of {limit:?}");
        }
    }
}
