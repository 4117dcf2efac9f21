//! Pools of connections to a database server: one for flights, one for all other short statements, one for slow reads.
//!
//! The pools are separate, so that a slow read never holds up a renewal, and a plain commit that waits for a row lock never
//! holds up a flight.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use deadpool::managed::{
    self, Metrics, Object, PoolError, QueueMode, RecycleError, RecycleResult, TimeoutType, Timeouts,
};
use ibid_core::store::StoreError;

/// A server that pools connect to.
pub(super) trait PoolTarget: Debug + Send + Sync + 'static {
    /// Name of the store, for errors.
    const KIND: &'static str;
    /// Flights in the air at once.
    const LANES: usize;
    /// Connections from which on two of them are for slow reads.
    const TWO_SLOW_FROM: usize;
    type Connection: Debug + Send;
    type OpenError: std::error::Error + Send + Sync + 'static;

    fn sizes(&self) -> PoolSizes;

    /// Longest wait for a connection.
    fn connection_wait(&self) -> Duration;

    /// Opens a connection, for flights if `is_hot`.
    fn connect_for_pool(
        &self,
        is_hot: bool,
    ) -> impl Future<Output = Result<Self::Connection, Self::OpenError>> + Send;

    /// Returns whether a connection may be handed out again.
    fn is_usable(connection: &Self::Connection) -> bool;

    /// Looks again from time to time whether the server still keeps what it commits, and returns whether the connection may be
    /// handed out. If not, the pool opens another one, which fails with the reason.
    fn recheck(&self, _connection: &Self::Connection) -> impl Future<Output = bool> + Send {
        std::future::ready(true)
    }

    /// Returns whether opening a connection again would fail in the same way.
    fn is_lasting(error: &Self::OpenError) -> bool;
}

/// A connection that goes back to its pool when it is dropped.
pub(super) type ServerConnection<T> = Object<Manager<T>>;

/// The pools of one store. Together they have as many connections as the options allow.
#[derive(Debug)]
pub(super) struct ServerPools<T: PoolTarget> {
    hot: Pool<T>,
    short: Pool<T>,
    slow: Pool<T>,
}

impl<T: PoolTarget> ServerPools<T> {
    pub(super) fn new(target: &Arc<T>) -> ServerPools<T> {
        let sizes = target.sizes();
        let short = pool(target, false, sizes.short);
        let or_short = |size, is_hot| if size == 0 { short.clone() } else { pool(target, is_hot, size) };
        ServerPools { hot: or_short(sizes.hot, true), slow: or_short(sizes.slow, false), short }
    }

    /// Number of flights that may be in the air at once.
    pub(super) fn lanes(&self) -> usize {
        self.hot.status().max_size.min(T::LANES)
    }

    /// Number of plain commits at once. The pool keeps a connection for renewals and loads if it has two.
    pub(super) fn plain_commits(&self) -> usize {
        self.short.status().max_size.saturating_sub(1).clamp(1, PLAIN_MAX)
    }

    /// Returns a connection for a flight.
    pub(super) async fn hot(&self, op: &'static str) -> Result<ServerConnection<T>, StoreError> {
        take(&self.hot, Some(&self.short), op).await
    }

    /// Returns a connection for a short statement.
    pub(super) async fn short(&self, op: &'static str) -> Result<ServerConnection<T>, StoreError> {
        take(&self.short, Some(&self.hot), op).await
    }

    /// Returns a connection for a slow read. If the server has no more connections, the read fails: on another connection it
    /// would hold up renewals.
    pub(super) async fn slow(&self, op: &'static str) -> Result<ServerConnection<T>, StoreError> {
        take(&self.slow, None, op).await
    }
}

/// Sizes of the pools. A pool of size 0 shares the connections for short statements.
pub(super) struct PoolSizes {
    hot: usize,
    short: usize,
    pub(super) slow: usize,
}

impl PoolSizes {
    /// Divides at most `max` connections among the three pools.
    pub(super) fn of<T: PoolTarget>(max: usize, has_flights: bool) -> PoolSizes {
        let (hot, slow) = match max {
            0 | 1 => (0, 0),
            2 => (1, 0),
            _ if max < T::TWO_SLOW_FROM => (T::LANES.min(max - 2), 1),
            _ => (T::LANES, 2),
        };
        let hot = if has_flights { hot } else { 0 };
        PoolSizes { hot, slow, short: (max.max(1) - hot - slow).max(1) }
    }
}

fn pool<T: PoolTarget>(target: &Arc<T>, is_hot: bool, size: usize) -> Pool<T> {
    let pool = Pool::builder(Manager { target: target.clone(), is_hot })
        .max_size(size)
        .wait_timeout(Some(target.connection_wait()))
        // A lone caller stays with one session of the server, whose caches are warm.
        .queue_mode(QueueMode::Lifo)
        // Connecting has its own limits, in the configuration.
        .create_timeout(None)
        .runtime(deadpool::Runtime::Tokio1);
    // It fails only for timeouts without a runtime.
    pool.build().expect("a runtime was named")
}

/// Takes a connection from `first`; if the server has no more connections for it, from `second` if there is one.
///
/// # Errors
///
/// Nothing was sent, so every error is unwritten.
async fn take<T: PoolTarget>(
    first: &Pool<T>,
    second: Option<&Pool<T>>,
    op: &'static str,
) -> Result<ServerConnection<T>, StoreError> {
    let error = match first.get().await {
        Ok(connection) => return Ok(connection),
        Err(error) => error,
    };
    if matches!(&error, PoolError::Backend(error) if !T::is_lasting(error))
        && let Some(second) = second.filter(|second| second.status().size > 0)
    {
        let wait = Timeouts { wait: Some(BORROW_WAIT), ..second.timeouts() };
        if let Ok(connection) = second.timeout_get(&wait).await {
            return Ok(connection);
        }
    }
    let error = match error {
        PoolError::Backend(error) if T::is_lasting(&error) => StoreError::lasting(T::KIND, op, error),
        PoolError::Backend(error) => StoreError::transient(T::KIND, op, error),
        PoolError::Timeout(TimeoutType::Wait) => {
            StoreError::transient(T::KIND, op, "all connections are in use")
        }
        other => StoreError::transient(T::KIND, op, other.to_string()),
    };
    Err(error.unwritten())
}

/// Makes connections for a pool.
#[derive(Debug)]
pub(super) struct Manager<T> {
    target: Arc<T>,
    is_hot: bool,
}

impl<T: PoolTarget> managed::Manager for Manager<T> {
    type Type = T::Connection;
    type Error = T::OpenError;

    async fn create(&self) -> Result<T::Connection, T::OpenError> {
        // Boxed: it is large, and a caller nearly always finds a connection.
        Box::pin(self.target.connect_for_pool(self.is_hot)).await
    }

    async fn recycle(&self, connection: &mut T::Connection, _: &Metrics) -> RecycleResult<T::OpenError> {
        match T::is_usable(connection) && self.target.recheck(connection).await {
            true => Ok(()),
            false => Err(RecycleError::message("closed")),
        }
    }
}

type Pool<T> = managed::Pool<Manager<T>>;

/// Plain commits at once. Each takes a few milliseconds, and few changes need one: eight in flight are several hundred to a
/// thousand per second.
const PLAIN_MAX: usize = 8;

/// Longest wait for a connection of another pool while the server refuses new ones.
const BORROW_WAIT: Duration = Duration::from_millis(250);

/// Fails unless the pools of a store share exactly the allowed connections.
#[cfg(test)]
pub(super) fn assert_sizes_add_up<T: PoolTarget>() {
    for max in 1..=64 {
        let PoolSizes { hot, short, slow } = PoolSizes::of::<T>(max, true);
        assert_eq!(hot + short + slow, max);
        assert!(short >= 1 && (hot >= 1 || max == 1), "{max}");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A server that takes so many connections.
    #[derive(Debug)]
    struct FullServer(AtomicUsize);

    impl PoolTarget for FullServer {
        const KIND: &'static str = "test";
        const LANES: usize = 1;
        const TWO_SLOW_FROM: usize = 6;
        type Connection = ();
        type OpenError = std::io::Error;

        fn sizes(&self) -> PoolSizes {
            PoolSizes::of::<FullServer>(3, true)
        }

        fn connection_wait(&self) -> Duration {
            Duration::from_secs(1)
        }

        async fn connect_for_pool(&self, _: bool) -> Result<(), std::io::Error> {
            let left = |left: usize| left.checked_sub(1);
            match self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left) {
                Ok(_) => Ok(()),
                Err(_) => Err(std::io::Error::other("too many connections")),
            }
        }

        fn is_usable((): &()) -> bool {
            true
        }

        fn is_lasting(_: &std::io::Error) -> bool {
            false
        }
    }

    #[tokio::test]
    async fn a_slow_read_never_takes_a_connection_of_others() {
        let pools = ServerPools::new(&Arc::new(FullServer(AtomicUsize::new(1))));
        let short = pools.short("test").await.expect("the server takes one");
        drop(short);
        assert!(pools.slow("test").await.is_err_and(|error| error.is_transient()));
        drop(pools.hot("test").await.expect("a flight borrows it"));
    }
}
