//! Reads that may be slow: questions of operators and counts. They have their own connections and a time limit on the
//! server. If the caller gives up, the store cancels the statement on the server and closes the connection.

use std::sync::Arc;

use ibid_core::store::StoreError;
use tokio_postgres::{CancelToken, Error, Row};

use super::connection::Param;
use super::failure::{self, store_error};
use super::pool::PooledConnection;
use super::target::Target;
use super::{KIND, StoreCore};

/// A connection for slow reads.
pub(super) struct SlowReader {
    connection: PooledConnection,
    /// Cancels the statement if the reader is dropped while it runs.
    cancel: Option<CancelToken>,
    target: Arc<Target>,
}

impl StoreCore {
    /// Runs one statement that may be slow, for [`TIME_MAX`] at most.
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
        Ok(SlowReader { connection, cancel: None, target: self.target.clone() })
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
        self.connection.set_spoilt(true);
        let result = self.connection.transaction(OPEN, [(sql, params)]).await;
        self.cancel = None;
        let is_usable = result.as_ref().err().is_none_or(|error| !failure::spoils_connection(error));
        // After a time-out the session is as good as before.
        let is_usable = is_usable || result.as_ref().err().is_some_and(failure::is_timeout);
        self.connection.set_spoilt(!is_usable);
        let [rows] = result.map_err(|error| slow_error(op, error))?;
        Ok(rows)
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

/// A read that took too long.
#[derive(Debug, thiserror::Error)]
#[error(
    "reading the table took longer than {TIME_MAX}: list dead letters, or one of the states `pending`, `retryable` and \
     `unknown`, or give the first digits of an id"
)]
struct TooSlow;

fn slow_error(op: &'static str, error: Error) -> StoreError {
    match failure::is_timeout(&error) {
        true => StoreError::lasting(KIND, op, TooSlow),
        false => store_error(op, error),
    }
}

/// Begins the transaction of a slow read.
const OPEN: &str = include_str!("sql/open_slow.sql");

/// Time limit of one slow read, as `open_slow.sql` sets it. An operator waits no longer, and a longer snapshot would keep
/// vacuum from removing rows.
const TIME_MAX: &str = "8s";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_names_the_limit_of_the_statement() {
        assert!(OPEN.contains(&format!("statement_timeout = '{TIME_MAX}'")));
    }
}
