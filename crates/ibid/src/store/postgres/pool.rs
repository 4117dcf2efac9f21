//! The pools of connections to PostgreSQL; `server_pools.rs` has the rules.

use std::time::Duration;

use super::connection::Connection;
use super::target::Target;
use super::{KIND, PostgresOpenError};
use crate::store::server_pools::{self, PoolSizes, PoolTarget};

pub(super) type Pools = server_pools::ServerPools<Target>;

/// A connection that goes back to its pool when it is dropped.
pub(super) type PooledConnection = server_pools::ServerConnection<Target>;

impl PoolTarget for Target {
    const KIND: &'static str = KIND;
    /// One flight is sent while the other is flushed. With more, each is smaller, and a statement has a fixed cost of about
    /// seven changes (docs/decisions/0006).
    const LANES: usize = 2;
    const TWO_SLOW_FROM: usize = 6;
    type Connection = Connection;
    type OpenError = PostgresOpenError;

    fn sizes(&self) -> PoolSizes {
        PoolSizes::of::<Target>(self.options.connections_max, self.options.hot_path)
    }

    fn connection_wait(&self) -> Duration {
        self.options.connection_wait
    }

    async fn connect_for_pool(&self, is_hot: bool) -> Result<Connection, PostgresOpenError> {
        if let Some(error) = self.exclude_if_needed(0) {
            return Err(error);
        }
        if is_hot { self.connect_hot().await } else { self.connect().await }
    }

    fn is_usable(connection: &Connection) -> bool {
        connection.is_usable()
    }

    fn is_lasting(error: &PostgresOpenError) -> bool {
        error.is_lasting()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_share_exactly_the_allowed_connections() {
        server_pools::assert_sizes_add_up::<Target>();
    }
}
