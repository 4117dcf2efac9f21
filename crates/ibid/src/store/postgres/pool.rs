//! Pools of connections: one for flights, one for all other short statements, one for slow reads.
//!
//! The pools are separate, so that a slow read never holds up a renewal, and a plain commit that waits for a row lock never
//! holds up a flight.

use std::sync::Arc;
use std::time::Duration;

use deadpool::managed::{
    self, Metrics, Object, PoolError, RecycleError, RecycleResult, TimeoutType, Timeouts,
};
use ibid_core::store::StoreError;

use super::connection::Connection;
use super::target::Target;
use super::{KIND, PostgresOpenError};

/// A connection that goes back to its pool when it is dropped.
pub(super) type PooledConnection = Object<Manager>;

/// The pools of one store. Together they have as many connections as the options allow.
#[derive(Debug)]
pub(super) struct Pools {
    hot: Pool,
    short: Pool,
    slow: Pool,
}

impl Pools {
    pub(super) fn new(target: &Arc<Target>) -> Pools {
        let sizes = PoolSizes::of(target.options.connections_max, target.options.hot_path);
        let short = pool(target, false, sizes.short);
        let or_short = |size, is_hot| if size == 0 { short.clone() } else { pool(target, is_hot, size) };
        Pools { hot: or_short(sizes.hot, true), slow: or_short(sizes.slow, false), short }
    }

    /// Number of flights that may be in the air at once.
    pub(super) fn lanes(&self) -> usize {
        self.hot.status().max_size.min(LANES)
    }

    /// Number of plain commits at once. The pool keeps a connection for renewals and loads if it has two.
    pub(super) fn plain_commits(&self) -> usize {
        self.short.status().max_size.saturating_sub(1).clamp(1, PLAIN_MAX)
    }

    /// Returns a connection for a flight.
    pub(super) async fn hot(&self, op: &'static str) -> Result<PooledConnection, StoreError> {
        take(&self.hot, &self.short, op).await
    }

    /// Returns a connection for a short statement.
    pub(super) async fn short(&self, op: &'static str) -> Result<PooledConnection, StoreError> {
        take(&self.short, &self.hot, op).await
    }

    /// Returns a connection for a slow read. If the server has no more connections, it is one of those for short statements,
    /// but never a hot one.
    pub(super) async fn slow(&self, op: &'static str) -> Result<PooledConnection, StoreError> {
        take(&self.slow, &self.short, op).await
    }
}

/// Sizes of the pools. A pool of size 0 shares the connections for short statements.
struct PoolSizes {
    hot: usize,
    short: usize,
    slow: usize,
}

impl PoolSizes {
    fn of(max: usize, has_flights: bool) -> PoolSizes {
        let (hot, slow) = match max {
            0 | 1 => (0, 0),
            2 => (1, 0),
            3..=5 => (LANES.min(max - 2), 1),
            _ => (LANES, 2),
        };
        let hot = if has_flights { hot } else { 0 };
        PoolSizes { hot, slow, short: (max.max(1) - hot - slow).max(1) }
    }
}

fn pool(target: &Arc<Target>, is_hot: bool, size: usize) -> Pool {
    let pool = Pool::builder(Manager { target: target.clone(), is_hot })
        .max_size(size)
        .wait_timeout(Some(target.options.connection_wait))
        // Connecting has its own limits, in the configuration.
        .create_timeout(None)
        .runtime(deadpool::Runtime::Tokio1);
    // It fails only for timeouts without a runtime.
    pool.build().expect("a runtime was named")
}

/// Takes a connection from `first`; if the server has no more connections for it, from `second`.
///
/// # Errors
///
/// Nothing was sent, so every error is unwritten.
async fn take(first: &Pool, second: &Pool, op: &'static str) -> Result<PooledConnection, StoreError> {
    let error = match first.get().await {
        Ok(connection) => return Ok(connection),
        Err(error) => error,
    };
    if matches!(&error, PoolError::Backend(error) if !error.is_lasting()) && second.status().size > 0 {
        let wait = Timeouts { wait: Some(BORROW_WAIT), ..second.timeouts() };
        if let Ok(connection) = second.timeout_get(&wait).await {
            return Ok(connection);
        }
    }
    let error = match error {
        PoolError::Backend(error) if error.is_lasting() => StoreError::lasting(KIND, op, error),
        PoolError::Backend(error) => StoreError::transient(KIND, op, error),
        PoolError::Timeout(TimeoutType::Wait) => {
            StoreError::transient(KIND, op, "all connections are in use")
        }
        other => StoreError::transient(KIND, op, other.to_string()),
    };
    Err(error.unwritten())
}

/// Makes connections for a pool.
#[derive(Debug)]
pub(super) struct Manager {
    target: Arc<Target>,
    is_hot: bool,
}

impl managed::Manager for Manager {
    type Type = Connection;
    type Error = PostgresOpenError;

    async fn create(&self) -> Result<Connection, PostgresOpenError> {
        // Boxed: it is large, and a caller nearly always finds a connection.
        match self.is_hot {
            true => Box::pin(self.target.connect_hot()).await,
            false => Box::pin(self.target.connect()).await,
        }
    }

    async fn recycle(&self, connection: &mut Connection, _: &Metrics) -> RecycleResult<PostgresOpenError> {
        match connection.is_usable() {
            true => Ok(()),
            false => Err(RecycleError::message("closed")),
        }
    }
}

type Pool = managed::Pool<Manager>;

/// Flights in the air at once: one is sent while the other is flushed. With more, each is smaller, and a statement has a fixed
/// cost of about seven changes (docs/decisions/0006).
const LANES: usize = 2;

/// Plain commits at once. Each takes a few milliseconds, and few changes need one: eight in flight are several hundred to a
/// thousand per second.
const PLAIN_MAX: usize = 8;

/// Longest wait for a connection of another pool while the server refuses new ones.
const BORROW_WAIT: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_share_exactly_the_allowed_connections() {
        for max in 1..=64 {
            let PoolSizes { hot, short, slow } = PoolSizes::of(max, true);
            assert_eq!(hot + short + slow, max);
            assert!(short >= 1 && (hot >= 1 || max == 1), "{max}");
        }
    }
}
