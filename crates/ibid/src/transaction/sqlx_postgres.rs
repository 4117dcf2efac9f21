//! Adapter for `sqlx` on PostgreSQL.

use std::ops::{Deref, DerefMut};

use bytes::Bytes;
use ibid_core::sql::{
    Database, Dialect, OwnedTx, Param, SqlError, SqlFault, SqlRow, SqlTx, Statement, Type, Value,
};
use ibid_core::store::BoxFuture;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::{Arguments, Error, PgConnection, PgPool, Postgres, Row as _, Transaction};

use super::DriverTx;
use super::sqlx_error::failure;

/// A `sqlx` pool of PostgreSQL connections.
#[derive(Clone, Debug)]
pub struct SqlxPostgres(pub PgPool);

impl Database for SqlxPostgres {
    type Tx = SqlxPostgresTx;

    async fn begin(&self) -> Result<SqlxPostgresTx, SqlError> {
        // On a separate task, because this future may be dropped between the server's BEGIN and its reply. sqlx would then
        // return the connection to the pool with an open transaction.
        let pool = self.0.clone();
        match tokio::spawn(async move { pool.begin().await }).await {
            Ok(open) => open.map(SqlxPostgresScopedTx::from).map_err(failure),
            Err(error) => Err(SqlError::new(SqlFault::Lost, error)),
        }
    }
}

/// A transaction that owns its connection. Your statements run on [`conn`](DriverTx::conn): `query.execute(tx.conn())`.
pub type SqlxPostgresTx = SqlxPostgresScopedTx<'static>;

/// A transaction on a connection that is there for `'c`: one of your own that you have begun. [`SqlxPostgresTx`] has no lifetime.
#[derive(Debug)]
pub struct SqlxPostgresScopedTx<'c> {
    open: Transaction<'c, Postgres>,
    /// `true` if the last statement was ibid's and succeeded, so the server has not aborted the transaction.
    proven: bool,
}

impl<'c> From<Transaction<'c, Postgres>> for SqlxPostgresScopedTx<'c> {
    fn from(open: Transaction<'c, Postgres>) -> SqlxPostgresScopedTx<'c> {
        SqlxPostgresScopedTx { open, proven: false }
    }
}

impl SqlTx for SqlxPostgresScopedTx<'_> {
    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    fn execute<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<(), SqlError>> {
        Box::pin(async move {
            self.proven = false;
            let query = sqlx::query_with(statement.text, arguments(params).map_err(failure)?);
            query.execute(&mut *self.open).await.map_err(failure)?;
            self.proven = true;
            Ok(())
        })
    }

    fn query<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<Vec<SqlRow>, SqlError>> {
        Box::pin(async move {
            self.proven = false;
            let query = sqlx::query_with(statement.text, arguments(params).map_err(failure)?);
            let rows = query.fetch_all(&mut *self.open).await.map_err(failure)?;
            self.proven = true;
            rows.iter().map(|row| read(row, statement.columns).map_err(failure)).collect()
        })
    }
}

impl OwnedTx for SqlxPostgresScopedTx<'_> {
    async fn commit(mut self) -> Result<(), SqlError> {
        if !self.proven {
            sqlx::query("select 1").execute(&mut *self.open).await.map_err(failure)?;
        }
        self.open.commit().await.map_err(failure)
    }

    async fn rollback(self) -> Result<(), SqlError> {
        self.open.rollback().await.map_err(failure)
    }
}

impl DriverTx for SqlxPostgresScopedTx<'_> {
    type Conn<'a>
        = &'a mut PgConnection
    where
        Self: 'a;

    fn conn(&mut self) -> &mut PgConnection {
        self
    }
}

impl Deref for SqlxPostgresScopedTx<'_> {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.open
    }
}

impl DerefMut for SqlxPostgresScopedTx<'_> {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.proven = false;
        &mut self.open
    }
}

fn arguments(params: &[Param<'_>]) -> Result<PgArguments, Error> {
    let mut arguments = PgArguments::default();
    for param in params {
        add(&mut arguments, *param).map_err(Error::Encode)?;
    }
    Ok(arguments)
}

fn add(arguments: &mut PgArguments, param: Param<'_>) -> Result<(), BoxDynError> {
    match param {
        Param::Null(Type::Bool) => Arguments::add(arguments, None::<bool>),
        Param::Null(Type::I64) => Arguments::add(arguments, None::<i64>),
        Param::Null(Type::Text) => Arguments::add(arguments, None::<&str>),
        Param::Null(Type::Bytes) => Arguments::add(arguments, None::<&[u8]>),
        Param::Bool(value) => Arguments::add(arguments, value),
        Param::I64(value) => Arguments::add(arguments, value),
        Param::Text(value) => Arguments::add(arguments, value),
        Param::Bytes(value) => Arguments::add(arguments, value),
    }
}

fn read(row: &PgRow, columns: &[Type]) -> Result<SqlRow, Error> {
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
