//! Transactions of `tokio-postgres`, and of `deadpool-postgres` pools of it.
//!
//! Statements are parsed and run in one round trip and leave no prepared statement behind, so that they work behind
//! a pooler of transactions too.

use std::ops::Deref;

use ::tokio_postgres::types::{ToSql, Type as PgType};
use ::tokio_postgres::{Client, Error, Row as PgRow, Transaction};
use bytes::Bytes;
use deadpool_postgres::{HookError, Object, Pool, PoolError};
use ibid_core::sql::{
    Database, Dialect, Fault, OwnedTx, Param, Row, SqlError, SqlTx, Statement, Type, Value,
};
use ibid_core::store::Pending;

/// A pool of connections.
#[derive(Clone, Debug)]
pub struct TokioPostgres(pub Pool);

impl Database for TokioPostgres {
    type Tx = PooledTx;

    async fn begin(&self) -> Result<PooledTx, SqlError> {
        // Held before the first byte is sent: dropped half-way, the connection is closed and not given back.
        let tx = PooledTx { held: Some(self.0.get().await.map_err(pool_failure)?) };
        tx.batch_execute("begin").await.map_err(failure)?;
        Ok(tx)
    }
}

/// An open transaction on a pooled connection. The caller's statements run on the [`Client`] that it derefs to.
///
/// Dropping it closes the connection, which undoes it: a connection with an open transaction never goes back to the
/// pool.
#[derive(Debug)]
pub struct PooledTx {
    /// None once it has ended.
    held: Option<Object>,
}

impl PooledTx {
    async fn end(&mut self, statements: &str) -> Result<(), SqlError> {
        self.batch_execute(statements).await.map_err(failure)?;
        self.held = None;
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
    ) -> Pending<'a, Result<u64, SqlError>> {
        Box::pin(run(self, statement, params))
    }

    fn query<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> Pending<'a, Result<Vec<Row>, SqlError>> {
        Box::pin(rows(self, statement, params))
    }
}

impl OwnedTx for PooledTx {
    async fn commit(mut self) -> Result<(), SqlError> {
        let ended = self.end(COMMIT).await;
        if ended.as_ref().is_err_and(|error| error.fault() != Fault::Lost) {
            // The server said no, so the connection is good; what remains of the transaction must go first.
            let _ = self.end("rollback").await;
        }
        ended
    }

    async fn rollback(mut self) -> Result<(), SqlError> {
        self.end("rollback").await
    }
}

impl Deref for PooledTx {
    type Target = Client;

    /// Shared only: a nested `transaction()` would need it mutably, and its end would be the end of ours.
    fn deref(&self) -> &Client {
        // Emptied only by `end`, after which `commit` and `rollback` use nothing of it and drop it.
        self.held.as_ref().expect("an open transaction holds its connection")
    }
}

impl Drop for PooledTx {
    fn drop(&mut self) {
        if let Some(object) = self.held.take() {
            drop(Object::take(object));
        }
    }
}

/// A transaction on a connection of the caller's own. The caller's statements run on the [`Transaction`] that it derefs to.
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
    ) -> Pending<'a, Result<u64, SqlError>> {
        Box::pin(run(self.0.client(), statement, params))
    }

    fn query<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> Pending<'a, Result<Vec<Row>, SqlError>> {
        Box::pin(rows(self.0.client(), statement, params))
    }
}

impl OwnedTx for BorrowedTx<'_> {
    async fn commit(self) -> Result<(), SqlError> {
        // A round trip of its own: only the driver's `commit` keeps its `drop` from a needless rollback.
        self.0.batch_execute("select 1").await.map_err(failure)?;
        self.0.commit().await.map_err(failure)
    }

    async fn rollback(self) -> Result<(), SqlError> {
        self.0.rollback().await.map_err(failure)
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

async fn run(client: &Client, statement: &Statement, params: &[Param<'_>]) -> Result<u64, SqlError> {
    client.execute_typed(statement.text, &typed(params)).await.map_err(failure)
}

async fn rows(client: &Client, statement: &Statement, params: &[Param<'_>]) -> Result<Vec<Row>, SqlError> {
    let found = client.query_typed(statement.text, &typed(params)).await.map_err(failure)?;
    found.iter().map(|row| read(row, statement.columns)).collect()
}

fn typed<'a>(params: &'a [Param<'a>]) -> Vec<(&'a (dyn ToSql + Sync), PgType)> {
    params
        .iter()
        .map(|param| match param {
            Param::Null(Type::Bool) => (&None::<bool> as &(dyn ToSql + Sync), PgType::BOOL),
            Param::Null(Type::I64) => (&None::<i64> as _, PgType::INT8),
            Param::Null(Type::Text) => (&None::<&str> as _, PgType::TEXT),
            Param::Null(Type::Bytes) => (&None::<&[u8]> as _, PgType::BYTEA),
            Param::Bool(value) => (value as _, PgType::BOOL),
            Param::I64(value) => (value as _, PgType::INT8),
            Param::Text(value) => (value as _, PgType::TEXT),
            Param::Bytes(value) => (value as _, PgType::BYTEA),
        })
        .collect()
}

fn read(row: &PgRow, columns: &[Type]) -> Result<Row, SqlError> {
    let value = |(at, kind): (usize, &Type)| -> Result<Value, Error> {
        let value = match kind {
            Type::Bool => row.try_get::<_, Option<bool>>(at)?.map(Value::Bool),
            Type::I64 => row.try_get::<_, Option<i64>>(at)?.map(Value::I64),
            Type::Text => row.try_get::<_, Option<String>>(at)?.map(Value::Text),
            Type::Bytes => row.try_get::<_, Option<&[u8]>>(at)?.map(Bytes::copy_from_slice).map(Value::Bytes),
        };
        Ok(value.unwrap_or(Value::Null))
    };
    let values = columns.iter().enumerate().map(value).collect::<Result<_, _>>();
    values.map(Row::new).map_err(|error| SqlError::new(Fault::Wrong, error))
}

fn failure(error: Error) -> SqlError {
    let state = error.code().cloned();
    SqlError::with_state(state.as_ref().map(|state| state.code()), error)
}

/// A pool that gave no connection in time is `Lost`, although nothing was sent.
fn pool_failure(error: PoolError) -> SqlError {
    let state = match &error {
        PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error)) => {
            error.code().cloned()
        }
        _ => None,
    };
    SqlError::with_state(state.as_ref().map(|state| state.code()), error)
}

/// In an aborted transaction the first statement fails and the second is not reached; alone, `commit` would roll back
/// and call that a success. One round trip.
const COMMIT: &str = "select 1; commit";
