//! The pools of connections to PostgreSQL; `server_pools.rs` has the rules.

use std::time::Duration;

use tokio::time::timeout;

use super::connection::PostgresConnection;
use super::target::PostgresTarget;
use super::{KIND, PostgresOpenError, open};
use crate::store::server_pools::{self, PoolSizes, PoolTarget};

pub(super) type PostgresPools = server_pools::ServerPools<PostgresTarget>;

/// A connection that goes back to its pool when it is dropped.
pub(super) type PooledConnection = server_pools::ServerConnection<PostgresTarget>;

impl PoolTarget for PostgresTarget {
    const KIND: &'static str = KIND;
    /// One flight is sent while the other is flushed. With more, each is smaller, and a statement has a fixed cost of about
    /// seven changes (docs/decisions/0006).
    const LANES: usize = 2;
    const TWO_SLOW_FROM: usize = 6;
    type Connection = PostgresConnection;
    type OpenError = PostgresOpenError;

    fn sizes(&self) -> PoolSizes {
        PoolSizes::of::<PostgresTarget>(self.options.connections_max, self.options.hot_path)
    }

    fn connection_wait(&self) -> Duration {
        self.options.connection_wait
    }

    async fn connect_for_pool(&self, is_hot: bool) -> Result<PostgresConnection, PostgresOpenError> {
        if let Some(error) = self.exclude_if_needed(0) {
            return Err(error);
        }
        if is_hot { self.connect_hot().await } else { self.connect().await }
    }

    fn is_usable(connection: &PostgresConnection) -> bool {
        connection.is_usable()
    }

    async fn recheck(&self, connection: &PostgresConnection) -> bool {
        if connection.checked_at().elapsed() < CHECKED_FOR {
            return true;
        }
        let checked = timeout(self.options.connection_wait, open::check(self, connection)).await;
        matches!(checked, Ok(Ok(())))
    }

    fn is_lasting(error: &PostgresOpenError) -> bool {
        error.is_lasting()
    }
}

/// Time for which a connection counts as one to a server that keeps what it commits. `fsync` can be turned off by a reload, under
/// connections that stay. Asking once a minute is one short round trip.
const CHECKED_FOR: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use ibid_testkit::postgres::Postgres;

    use super::super::PostgresOptions;
    use super::*;

    #[tokio::test]
    async fn a_server_that_stops_flushing_is_left_within_a_minute() {
        let server = Postgres::start();
        let target = PostgresTarget::new(&server.url(), PostgresOptions::default()).expect("a URL");
        let pools = PostgresPools::new(&Arc::new(target));
        let connection = pools.short("test").await.expect("it flushes");
        server.set("fsync", "off");
        // The running session learns of it a moment later.
        loop {
            let shown = connection.query_once("show fsync", &[]).await.expect("a row");
            if shown[0].get::<_, &str>(0) == "off" {
                break;
            }
        }
        drop(connection);
        let connection = pools.short("test").await.expect("it was checked a moment ago");
        let long_ago = Instant::now().checked_sub(CHECKED_FOR).expect("the machine runs for a minute");
        connection.set_checked_at(long_ago);
        drop(connection);
        let refused = pools.short("test").await.expect_err("it may lose commits");
        assert!(!refused.is_transient() && refused.is_unwritten(), "{refused:?}");
        server.set("fsync", "on");
        drop(pools.short("test").await.expect("it flushes again"));
    }

    #[test]
    fn pools_share_exactly_the_allowed_connections() {
        server_pools::assert_sizes_add_up::<PostgresTarget>();
    }
}
