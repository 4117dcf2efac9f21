//! Reads that may be slow: questions of operators and counts. They have their own connections and a time limit on the
//! server. If the caller gives up, the store cancels the statement on the server and closes the connection.

use std::sync::Arc;

use ibid_core::store::{StoreError, Work};
use tokio_postgres::{CancelToken, Error, Row};

use super::connection::Param;
use super::error::{self, store_error};
use super::plain_path::PostgresStoreTx;
use super::pool::PooledConnection;
use super::target::PostgresTarget;
use super::{KIND, PostgresCore, sql_store};
use crate::driver::pg_client;
use crate::store::server_pools::PoolTarget;

/// A connection for slow reads.
pub(super) struct SlowReader {
    connection: PooledConnection,
    /// Cancels the statement if the reader is dropped while it runs.
    cancel: Option<CancelToken>,
    target: Arc<PostgresTarget>,
    limit: TimeLimit,
}

/// The time limit of each statement of a slow read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TimeLimit {
    /// On a connection for slow reads.
    Separate,
    /// On a connection that renewals and loads wait for, because the store has too few.
    Shared,
}

impl TimeLimit {
    /// Returns the statements that begin the transaction.
    fn opening(self) -> &'static str {
        match self {
            TimeLimit::Separate => OPEN,
            TimeLimit::Shared => OPEN_SHARED,
        }
    }

    fn name(self) -> &'static str {
        match self {
            TimeLimit::Separate => TIME_MAX,
            TimeLimit::Shared => SHARED_TIME_MAX,
        }
    }
}

impl PostgresCore {
    /// Runs one statement that may be slow, within the time limit.
    pub(super) async fn ask_slow(
        &self,
        op: &'static str,
        sql: &'static str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        self.slow_reader(op).await?.query(op, sql, params).await
    }

    /// Returns a connection for several slow reads.
    pub(super) async fn slow_reader(&self, op: &'static str) -> Result<SlowReader, StoreError> {
        let connection = self.pools.slow(op).await?;
        let limit = if self.target.sizes().slow == 0 { TimeLimit::Shared } else { TimeLimit::Separate };
        Ok(SlowReader { connection, cancel: None, target: self.target.clone(), limit })
    }
}

impl SlowReader {
    /// Runs one statement within the time limit.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the store cancels the statement on the server and closes the connection.
    pub(super) async fn query(
        &mut self,
        op: &'static str,
        sql: &'static str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        self.cancel = Some(self.connection.cancel_token());
        let result = self.connection.transaction(self.limit.opening(), [(sql, params)]).await;
        self.cancel = None;
        let [rows] = result.map_err(|error| self.error(op, error))?;
        Ok(rows)
    }

    /// Runs work that only reads in one transaction. Each of its statements has the time limit.
    ///
    /// # Cancel safety
    ///
    /// As that of [`Self::query`].
    pub(super) async fn run(mut self, op: &'static str, work: Work) -> Result<(), StoreError> {
        self.cancel = Some(self.connection.cancel_token());
        self.connection.set_spoilt(true);
        let worked = async {
            self.connection.run(self.limit.opening()).await.map_err(pg_client::failure)?;
            let worked = work(&mut PostgresStoreTx(self.connection.client())).await;
            self.connection.run("rollback").await.map_err(pg_client::failure)?;
            self.connection.set_spoilt(false);
            worked
        };
        let worked = worked.await;
        self.cancel = None;
        worked.map_err(|error| match sql_store::driver_error(&error) {
            Some(driver) if error::is_timeout(driver) => {
                StoreError::lasting(KIND, op, TooSlow(self.limit.name()))
            }
            _ => sql_store::work_error(op, error),
        })
    }

    fn error(&self, op: &'static str, error: Error) -> StoreError {
        match error::is_timeout(&error) {
            true => StoreError::lasting(KIND, op, TooSlow(self.limit.name())),
            false => store_error(op, error),
        }
    }

    /// Returns the connection, for policies of the rows that were read.
    pub(super) fn connection(&self) -> &PooledConnection {
        &self.connection
    }
}

impl Drop for SlowReader {
    fn drop(&mut self) {
        let Some(token) = self.cancel.take() else { return };
        let target = self.target.clone();
        // Without a runtime the process is about to end, and its connections with it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { target.cancel(token).await });
        }
    }
}

/// A read that took longer than its limit.
#[derive(Debug, thiserror::Error)]
#[error(
    "reading the table took longer than {0}: list dead letters, or one of the states `pending`, `retryable` and \
     `unknown`, or give the first digits of an id"
)]
struct TooSlow(&'static str);

/// Returns whether a read failed because of its time limit.
pub(super) fn is_too_slow(error: &StoreError) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.is::<TooSlow>())
}

/// Begins the transaction of a slow read.
const OPEN: &str = include_str!("sql/open_slow.sql");

/// Begins the transaction of a slow read on a connection that others wait for.
const OPEN_SHARED: &str = concat!(include_str!("sql/open_slow.sql"), "; set local statement_timeout = '1s'");

/// Time limit of one slow read, as `open_slow.sql` sets it. An operator waits no longer, and a longer snapshot would keep
/// vacuum from removing rows.
const TIME_MAX: &str = "8s";

/// Time limit where a slow read has no separate connection: as long as a call waits for a connection, and far below the time
/// between two renewals.
const SHARED_TIME_MAX: &str = "1s";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_names_the_limit_of_the_statement() {
        for limit in [TimeLimit::Separate, TimeLimit::Shared] {
            let (_, last) = limit.opening().rsplit_once("statement_timeout = ").expect("a limit");
            assert!(last.starts_with(&format!("'{}'", limit.name())), "{last}");
        }
    }
}
