//! Adapter for `tokio-postgres`, with or without a `deadpool-postgres` pool.
//!
//! Statements are parsed and run in one round trip and leave no prepared statement, so they also work behind a pooler in
//! transaction mode.

use std::ops::Deref;

use ::tokio_postgres::{Client, Error, Transaction};
use deadpool_postgres::{HookError, Object, Pool, PoolError};
use ibid_core::sql::{Database, Dialect, OwnedTx, Param, SqlError, SqlFault, SqlRow, SqlTx, Statement};
use ibid_core::store::BoxFuture;

use super::{DriverTx, TxError};
use crate::driver::pg_client::{failure, rows, run};

/// A pool of `tokio-postgres` connections.
#[derive(Clone, Debug)]
pub struct TokioPostgres(pub Pool);

impl Database for TokioPostgres {
    type Tx = PooledTx;

    async fn begin(&self) -> Result<PooledTx, SqlError> {
        // `PooledTx` owns the connection before the first byte is sent. If this future is dropped midway, the connection is
        // closed instead of going back to the pool.
        let tx = PooledTx { connection: Some(self.0.get().await.map_err(pool_failure)?) };
        tx.batch_execute("begin").await.map_err(failure)?;
        Ok(tx)
    }
}

/// An open transaction on a pooled connection. The caller's statements run on the [`Client`] that it derefs to.
///
/// Dropping it closes the connection, which rolls the transaction back: a connection with an open transaction never goes
/// back to the pool.
#[derive(Debug)]
pub struct PooledTx {
    /// `None` once the transaction has ended.
    connection: Option<Object>,
}

impl PooledTx {
    async fn end(&mut self, statements: &str) -> Result<(), SqlError> {
        self.batch_execute(statements).await.map_err(failure)?;
        self.connection = None;
        Ok(())
    }
}

impl SqlTx for PooledTx {
    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    fn execute<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<(), SqlError>> {
        Box::pin(run(self, statement, params))
    }

    fn query<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<Vec<SqlRow>, SqlError>> {
        Box::pin(rows(self, statement, params))
    }
}

impl OwnedTx for PooledTx {
    async fn commit(mut self) -> Result<(), SqlError> {
        let ended = self.end(COMMIT).await;
        if ended.as_ref().is_err_and(|error| error.fault() != SqlFault::Lost) {
            // The server answered, so the connection works. Roll back before it goes back to the pool.
            let _ = self.end("rollback").await;
        }
        ended
    }

    async fn rollback(mut self) -> Result<(), SqlError> {
        self.end("rollback").await
    }
}

impl DriverTx for PooledTx {
    type Conn<'a>
        = &'a Client
    where
        Self: 'a;

    fn conn(&mut self) -> &Client {
        self
    }
}

impl Deref for PooledTx {
    type Target = Client;

    /// Returns a shared reference only. A nested `transaction()` needs a mutable one, and its end would end ours.
    fn deref(&self) -> &Client {
        // Only `end` sets it to `None`, and `commit` and `rollback` do not use it afterwards.
        self.connection.as_ref().expect("an open transaction holds its connection")
    }
}

impl Drop for PooledTx {
    fn drop(&mut self) {
        if let Some(object) = self.connection.take() {
            drop(Object::take(object));
        }
    }
}

/// A transaction on a connection that the caller owns. The caller's statements run on the [`Transaction`] that it derefs to.
pub struct BorrowedTx<'c>(Transaction<'c>);

impl<'c> From<Transaction<'c>> for BorrowedTx<'c> {
    fn from(open: Transaction<'c>) -> BorrowedTx<'c> {
        BorrowedTx(open)
    }
}

impl SqlTx for BorrowedTx<'_> {
    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    fn execute<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<(), SqlError>> {
        Box::pin(run(self.0.client(), statement, params))
    }

    fn query<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<Vec<SqlRow>, SqlError>> {
        Box::pin(rows(self.0.client(), statement, params))
    }
}

impl OwnedTx for BorrowedTx<'_> {
    async fn commit(self) -> Result<(), SqlError> {
        // A separate round trip, because only the driver's `commit` keeps its `drop` from sending a needless rollback.
        self.0.batch_execute("select 1").await.map_err(failure)?;
        self.0.commit().await.map_err(failure)
    }

    async fn rollback(self) -> Result<(), SqlError> {
        self.0.rollback().await.map_err(failure)
    }
}

impl<'c> DriverTx for BorrowedTx<'c> {
    type Conn<'a>
        = &'a Transaction<'c>
    where
        Self: 'a;

    fn conn(&mut self) -> &Transaction<'c> {
        self
    }
}

impl<'c> Deref for BorrowedTx<'c> {
    type Target = Transaction<'c>;

    fn deref(&self) -> &Transaction<'c> {
        &self.0
    }
}

impl std::fmt::Debug for BorrowedTx<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BorrowedTx").finish_non_exhaustive()
    }
}

/// Converts the error of a caller's statement.
impl From<Error> for TxError {
    fn from(error: Error) -> TxError {
        failure(error).into()
    }
}

/// Classifies an error of the pool. A timeout is `Lost`, although nothing was sent.
fn pool_failure(error: PoolError) -> SqlError {
    let state = match &error {
        PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error)) => {
            error.code().cloned()
        }
        _ => None,
    };
    SqlError::with_state(state.as_ref().map(|state| state.code()), error)
}

/// Commits in one round trip, and fails in an aborted transaction: there the `select` fails, and `commit` is not reached. A
/// lone `commit` would roll back and report success.
const COMMIT: &str = "select 1; commit";
