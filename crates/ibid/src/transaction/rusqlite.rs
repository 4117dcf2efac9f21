//! Adapter for `rusqlite` on SQLite.
//!
//! Statements run synchronously on the thread that polls. Each future is ready at its first poll, so a plain thread can drive
//! it too. On an async runtime, waiting for a lock (`busy_timeout`) and flushing to disk block that thread.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use ::rusqlite::{Connection, Error};
use ibid_core::sql::{Database, Dialect, OwnedTx, Param, SqlError, SqlFault, SqlRow, SqlTx, Statement};
use ibid_core::store::BoxFuture;
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::{DriverTx, TxError};
use crate::driver::rusqlite_client::{failure, rows, run};

/// One connection that transactions share, one after the other.
#[derive(Clone, Debug)]
pub struct Rusqlite(Arc<Mutex<Connection>>);

impl Rusqlite {
    /// Wraps a connection on which transactions run one after the other.
    pub fn new(connection: Connection) -> Rusqlite {
        Rusqlite(Arc::new(Mutex::new(connection)))
    }
}

impl From<Arc<Mutex<Connection>>> for Rusqlite {
    fn from(shared: Arc<Mutex<Connection>>) -> Rusqlite {
        Rusqlite(shared)
    }
}

impl Database for Rusqlite {
    type Tx = RusqliteTx;

    async fn begin(&self) -> Result<RusqliteTx, SqlError> {
        RusqliteScopedTx::open(RusqliteHandle::Shared(self.0.clone().lock_owned().await))
    }
}

/// A transaction that owns its connection. Your statements run on [`conn`](DriverTx::conn): `tx.conn().execute(…)`. Dropping it
/// rolls it back.
pub type RusqliteTx = RusqliteScopedTx<'static>;

/// A transaction on a connection that is there for `'a`, such as one that you [lend](RusqliteScopedTx::begin).
/// [`RusqliteTx`] has no lifetime.
pub struct RusqliteScopedTx<'a> {
    handle: RusqliteHandle<'a>,
}

enum RusqliteHandle<'a> {
    Lent(&'a mut Connection),
    Shared(OwnedMutexGuard<Connection>),
}

impl<'a> RusqliteScopedTx<'a> {
    /// Begins a transaction on the caller's connection, with the write lock (`begin immediate`).
    ///
    /// # Errors
    ///
    /// Fails if the connection already has an open transaction, or if SQLite fails or is busy.
    pub fn begin(connection: &'a mut Connection) -> Result<RusqliteScopedTx<'a>, SqlError> {
        RusqliteScopedTx::open(RusqliteHandle::Lent(connection))
    }

    fn open(handle: RusqliteHandle<'a>) -> Result<RusqliteScopedTx<'a>, SqlError> {
        // Before the transaction exists, because its drop rolls back: a transaction that was already open is not ours to end.
        handle.connection().execute_batch("begin immediate").map_err(failure)?;
        Ok(RusqliteScopedTx { handle })
    }

    /// Returns the connection, or an error if the transaction is no longer open.
    ///
    /// SQLite ends a transaction by itself after some errors (a full disk, a failed read). A statement after that would commit
    /// at once, alone.
    fn still_open(&self) -> Result<&Connection, SqlError> {
        match self.is_autocommit() {
            false => Ok(self),
            true => Err(SqlError::new(SqlFault::Wrong, "the transaction has already ended")),
        }
    }

    fn end(self, statement: &str) -> Result<(), SqlError> {
        // After an error the transaction may still be open. The drop then rolls it back.
        self.still_open()?.execute_batch(statement).map_err(failure)
    }
}

impl SqlTx for RusqliteScopedTx<'_> {
    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }

    fn execute<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<(), SqlError>> {
        Box::pin(async move { run(self.still_open()?, statement, params) })
    }

    fn query<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<Vec<SqlRow>, SqlError>> {
        Box::pin(async move { rows(self.still_open()?, statement, params) })
    }
}

impl OwnedTx for RusqliteScopedTx<'_> {
    async fn commit(self) -> Result<(), SqlError> {
        self.end("commit")
    }

    async fn rollback(self) -> Result<(), SqlError> {
        self.end("rollback")
    }
}

impl DriverTx for RusqliteScopedTx<'_> {
    type Conn<'a>
        = &'a Connection
    where
        Self: 'a;

    fn conn(&mut self) -> &Connection {
        self
    }
}

impl Deref for RusqliteScopedTx<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.handle.connection()
    }
}

impl Drop for RusqliteScopedTx<'_> {
    fn drop(&mut self) {
        if !self.is_autocommit() {
            // If this fails too, the next `begin` reports it.
            let _ = self.execute_batch("rollback");
        }
    }
}

impl fmt::Debug for RusqliteScopedTx<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RusqliteScopedTx").finish_non_exhaustive()
    }
}

impl RusqliteHandle<'_> {
    fn connection(&self) -> &Connection {
        match self {
            RusqliteHandle::Lent(connection) => connection,
            RusqliteHandle::Shared(guard) => guard,
        }
    }
}

/// Converts the error of a caller's statement.
impl From<Error> for TxError {
    fn from(error: Error) -> TxError {
        failure(error).into()
    }
}
