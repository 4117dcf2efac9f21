//! Adapter for `mysql_async` on MySQL and MariaDB.
//!
//! The server rolls a whole transaction back after a deadlock, and commits it before a statement that changes the schema.
//! Later statements are then committed one by one. So the adapter looks at the server's status before each statement of
//! ibid, and refuses to continue outside the transaction. The status comes with every reply, so this costs no round trip. It
//! needs `autocommit` to be on, which is the default: otherwise the server would open another transaction by itself.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use ::mysql_async::consts::StatusFlags;
use ::mysql_async::prelude::Queryable;
use ::mysql_async::{Error, Pool, Transaction, TxOpts};
use ibid_core::sql::{Database, Param, SqlError, SqlFault, SqlRow, Statement};

use super::mysql_client::{failure, rows, run};
use super::mysql_tx::{AUTOCOMMIT_OFF, ENDED, MysqlDriver, MysqlTx};
use super::{DriverTx, TxError};

/// A pool of `mysql_async` connections.
#[derive(Clone, Debug)]
pub struct MysqlAsync {
    pool: Pool,
    wait_max: Duration,
}

impl MysqlAsync {
    /// Uses a pool. A transaction waits at most 30 seconds for a connection, because the pool itself has no limit.
    pub fn new(pool: Pool) -> MysqlAsync {
        MysqlAsync { pool, wait_max: WAIT_MAX }
    }

    /// Sets how long a transaction waits for a connection.
    #[must_use]
    pub fn with_wait_max(mut self, wait_max: Duration) -> MysqlAsync {
        self.wait_max = wait_max;
        self
    }
}

impl Database for MysqlAsync {
    type Tx = MysqlAsyncTx;

    async fn begin(&self) -> Result<MysqlAsyncTx, SqlError> {
        // If this future is dropped midway, the driver closes the connection or rolls back.
        let begin = self.pool.start_transaction(TxOpts::default());
        match tokio::time::timeout(self.wait_max, begin).await {
            Ok(open) => open.map(MysqlAsyncScopedTx::from).map_err(failure),
            // Nothing was sent, but it looks the same as a lost connection.
            Err(error) => Err(SqlError::new(SqlFault::Lost, error)),
        }
    }
}

/// A transaction that owns its connection. Your statements run on [`conn`](DriverTx::conn): `tx.conn().exec_drop(…)`.
pub type MysqlAsyncTx = MysqlAsyncScopedTx<'static>;

/// A transaction on a connection that is there for `'c`: one of your own that you have begun. [`MysqlAsyncTx`] has no
/// lifetime.
pub type MysqlAsyncScopedTx<'c> = MysqlTx<Transaction<'c>>;

impl<'c> From<Transaction<'c>> for MysqlAsyncScopedTx<'c> {
    fn from(open: Transaction<'c>) -> MysqlAsyncScopedTx<'c> {
        MysqlTx::new(open)
    }
}

impl MysqlDriver for Transaction<'_> {
    async fn check_open(&mut self) -> Result<(), SqlError> {
        if self.last_ok_packet().is_none() {
            // The last reply was an error, which comes without a status.
            self.query_drop("do 0").await.map_err(failure)?;
        }
        let status = self.last_ok_packet().map_or(StatusFlags::empty(), |ok| ok.status_flags());
        if !status.contains(StatusFlags::SERVER_STATUS_AUTOCOMMIT) {
            return Err(SqlError::new(SqlFault::Wrong, AUTOCOMMIT_OFF));
        }
        if !status.contains(StatusFlags::SERVER_STATUS_IN_TRANS) {
            return Err(SqlError::new(SqlFault::Wrong, ENDED));
        }
        Ok(())
    }

    /// The status has it.
    async fn check_autocommit(&mut self) -> Result<(), SqlError> {
        Ok(())
    }

    async fn run(&mut self, statement: &Statement, params: &[Param<'_>]) -> Result<(), SqlError> {
        run(self, statement, params).await
    }

    async fn rows(&mut self, statement: &Statement, params: &[Param<'_>]) -> Result<Vec<SqlRow>, SqlError> {
        rows(self, statement, params).await
    }

    async fn commit(self) -> Result<(), SqlError> {
        Transaction::commit(self).await.map_err(failure)
    }

    async fn rollback(self) -> Result<(), SqlError> {
        Transaction::rollback(self).await.map_err(failure)
    }
}

impl<'c> DriverTx for MysqlAsyncScopedTx<'c> {
    type Conn<'a>
        = &'a mut Transaction<'c>
    where
        Self: 'a;

    fn conn(&mut self) -> &mut Transaction<'c> {
        self
    }
}

impl<'c> Deref for MysqlAsyncScopedTx<'c> {
    type Target = Transaction<'c>;

    fn deref(&self) -> &Transaction<'c> {
        &self.driver
    }
}

impl<'c> DerefMut for MysqlAsyncScopedTx<'c> {
    fn deref_mut(&mut self) -> &mut Transaction<'c> {
        &mut self.driver
    }
}

/// Converts the error of a caller's statement.
impl From<Error> for TxError {
    fn from(error: Error) -> TxError {
        failure(error).into()
    }
}

/// Longest wait for a connection, as in sqlx. A caller that waited longer has given up.
const WAIT_MAX: Duration = Duration::from_secs(30);
