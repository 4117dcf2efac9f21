//! The pools of connections to MySQL; `server_pools.rs` has the rules.

use std::time::Duration;

use super::connection::MysqlConnection;
use super::target::MysqlTarget;
use super::{KIND, MysqlOpenError};
use crate::store::server_pools::{self, PoolSizes, PoolTarget};

pub(super) type MysqlPools = server_pools::ServerPools<MysqlTarget>;

impl PoolTarget for MysqlTarget {
    const KIND: &'static str = KIND;
    /// Of 2, 4 and 8 lanes, four were fastest with 256 callers: the server commits their flushes together, and with more of
    /// them each flight is smaller.
    const LANES: usize = 4;
    const TWO_SLOW_FROM: usize = 10;
    type Connection = MysqlConnection;
    type OpenError = MysqlOpenError;

    fn sizes(&self) -> PoolSizes {
        PoolSizes::of::<MysqlTarget>(self.options.connections_max, self.options.hot_path)
    }

    fn connection_wait(&self) -> Duration {
        self.options.connection_wait
    }

    async fn connect_for_pool(&self, _is_hot: bool) -> Result<MysqlConnection, MysqlOpenError> {
        self.connect().await
    }

    fn is_usable(connection: &MysqlConnection) -> bool {
        connection.is_usable()
    }

    fn is_lasting(error: &MysqlOpenError) -> bool {
        error.is_lasting()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_share_exactly_the_allowed_connections() {
        server_pools::assert_sizes_add_up::<MysqlTarget>();
    }
}
