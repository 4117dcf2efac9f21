//! Adapter for `sqlx` on SQLite.
//!
//! After some errors (a full disk, a failed read) SQLite ends a transaction by itself, and sqlx does not notice. If you run
//! more statements after such an error, they may be written outside any transaction. The commit then fails.

use std::ops::{Deref, DerefMut};

use bytes::Bytes;
use ibid_core::sql::{Database, Dialect, OwnedTx, Param, SqlError, SqlRow, SqlTx, Statement, Type, Value};
use ibid_core::store::BoxFuture;
use sqlx::error::BoxDynError;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Arguments, Error, Row as _, Sqlite, SqliteConnection, SqlitePool, Transaction};

use super::DriverTx;
use super::sqlx_error::failure;

/// A pool of connections to one file.
#[derive(Clone, Debug)]
pub struct SqlxSqlite(pub SqlitePool);

impl Database for SqlxSqlite {
    type Tx = SqlxSqliteTx;

    async fn begin(&self) -> Result<SqlxSqliteTx, SqlError> {
        self.0.begin_with("BEGIN IMMEDIATE").await.map(SqlxSqliteScopedTx).map_err(failure)
    }
}

/// A transaction that owns its connection. Your statements run on [`conn`](DriverTx::conn): `query.execute(tx.conn())`.
pub type SqlxSqliteTx = SqlxSqliteScopedTx<'static>;

/// A transaction on a connection that is there for `'c`: one of your own that you have begun. [`SqlxSqliteTx`] has no lifetime.
#[derive(Debug)]
pub struct SqlxSqliteScopedTx<'c>(Transaction<'c, Sqlite>);

impl<'c> From<Transaction<'c, Sqlite>> for SqlxSqliteScopedTx<'c> {
    fn from(open: Transaction<'c, Sqlite>) -> SqlxSqliteScopedTx<'c> {
        SqlxSqliteScopedTx(open)
    }
}

impl SqlTx for SqlxSqliteScopedTx<'_> {
    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }

    fn execute<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<(), SqlError>> {
        Box::pin(async move {
            let query = sqlx::query_with(statement.text, arguments(params).map_err(failure)?);
            query.execute(&mut *self.0).await.map(drop).map_err(failure)
        })
    }

    fn query<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<Vec<SqlRow>, SqlError>> {
        Box::pin(async move {
            let query = sqlx::query_with(statement.text, arguments(params).map_err(failure)?);
            let rows = query.fetch_all(&mut *self.0).await.map_err(failure)?;
            rows.iter().map(|row| read(row, statement.columns).map_err(failure)).collect()
        })
    }
}

impl OwnedTx for SqlxSqliteScopedTx<'_> {
    async fn commit(self) -> Result<(), SqlError> {
        self.0.commit().await.map_err(failure)
    }

    async fn rollback(self) -> Result<(), SqlError> {
        self.0.rollback().await.map_err(failure)
    }
}

impl DriverTx for SqlxSqliteScopedTx<'_> {
    type Conn<'a>
        = &'a mut SqliteConnection
    where
        Self: 'a;

    fn conn(&mut self) -> &mut SqliteConnection {
        self
    }
}

impl Deref for SqlxSqliteScopedTx<'_> {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.0
    }
}

impl DerefMut for SqlxSqliteScopedTx<'_> {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.0
    }
}

fn arguments(params: &[Param<'_>]) -> Result<SqliteArguments, Error> {
    let mut arguments = SqliteArguments::default();
    for param in params {
        add(&mut arguments, *param).map_err(Error::Encode)?;
    }
    Ok(arguments)
}

fn add(arguments: &mut SqliteArguments, param: Param<'_>) -> Result<(), BoxDynError> {
    match param {
        // SQLite's null has no type.
        Param::Null(_) => Arguments::add(arguments, None::<i64>),
        Param::Bool(value) => Arguments::add(arguments, value),
        Param::I64(value) => Arguments::add(arguments, value),
        Param::Text(value) => Arguments::add(arguments, value),
        Param::Bytes(value) => Arguments::add(arguments, value),
    }
}

fn read(row: &SqliteRow, columns: &[Type]) -> Result<SqlRow, Error> {
    let value = |(at, kind): (usize, &Type)| -> Result<Value, Error> {
        let value = match kind {
            Type::Bool => row.try_get::<Option<bool>, _>(at)?.map(Value::Bool),
            Type::I64 => row.try_get::<Option<i64>, _>(at)?.map(Value::I64),
            Type::Text => row.try_get::<Option<String>, _>(at)?.map(Value::Text),
            Type::Bytes => row.try_get::<Option<Vec<u8>>, _>(at)?.map(Bytes::from).map(Value::Bytes),
        };
        Ok(value.unwrap_or(Value::Null))
    };
    Ok(SqlRow::new(columns.iter().enumerate().map(value).collect::<Result<_, _>>()?))
}
