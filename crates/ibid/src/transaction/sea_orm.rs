//! Transactions of SeaORM on PostgreSQL and, through sqlx, on SQLite.
//!
//! A nested transaction (`begin` on the one that the adapter derefs to) must have ended before `commit`: SeaORM would
//! release its savepoint only, and call that a success.

use std::ops::Deref;

use ::sea_orm::{
    ConnectionTrait, DatabaseConnection, DatabaseTransaction, DbBackend, DbErr, QueryResult, RuntimeErr,
    SqliteTransactionMode, Statement as SeaStatement, TransactionOptions, TransactionTrait,
    Value as SeaValue,
};
use bytes::Bytes;
use ibid_core::sql::{
    Database, Dialect, OwnedTx, Param, SqlError, SqlFault, SqlRow, SqlTx, Statement, Type, Value,
};
use ibid_core::store::BoxFuture;

use super::{DriverTx, TxError, sqlx_error};

/// A pool of connections, or whatever SeaORM is connected with.
#[derive(Clone, Debug)]
pub struct SeaOrm(pub DatabaseConnection);

impl Database for SeaOrm {
    type Tx = SeaOrmTx;

    async fn begin(&self) -> Result<SeaOrmTx, SqlError> {
        let pool = self.0.clone();
        let dialect = dialect(pool.get_database_backend())?;
        let options = TransactionOptions {
            sqlite_transaction_mode: (dialect == Dialect::Sqlite).then_some(SqliteTransactionMode::Immediate),
            ..TransactionOptions::default()
        };
        // In a task of its own: dropped between the server's BEGIN and its reply, the connection would go back to the
        // pool with a transaction open.
        match tokio::spawn(async move { pool.begin_with_options(options).await }).await {
            Ok(begun) => begun.map(|open| SeaOrmTx { open, dialect }).map_err(failure),
            Err(ended) => Err(SqlError::new(SqlFault::Lost, ended)),
        }
    }
}

/// An open transaction. The caller's statements run on the [`DatabaseTransaction`] that it derefs to.
#[derive(Debug)]
pub struct SeaOrmTx {
    open: DatabaseTransaction,
    dialect: Dialect,
}

impl TryFrom<DatabaseTransaction> for SeaOrmTx {
    type Error = SqlError;

    /// Refused on MySQL.
    fn try_from(open: DatabaseTransaction) -> Result<SeaOrmTx, SqlError> {
        Ok(SeaOrmTx { dialect: dialect(open.get_database_backend())?, open })
    }
}

impl SeaOrmTx {
    fn bound(&self, statement: &Statement, params: &[Param<'_>]) -> SeaStatement {
        let values = params.iter().map(|param| match *param {
            Param::Null(Type::Bool) => SeaValue::Bool(None),
            Param::Null(Type::I64) => SeaValue::BigInt(None),
            Param::Null(Type::Text) => SeaValue::String(None),
            Param::Null(Type::Bytes) => SeaValue::Bytes(None),
            Param::Bool(value) => SeaValue::Bool(Some(value)),
            Param::I64(value) => SeaValue::BigInt(Some(value)),
            Param::Text(value) => SeaValue::String(Some(value.to_owned())),
            Param::Bytes(value) => SeaValue::Bytes(Some(value.to_owned())),
        });
        SeaStatement::from_sql_and_values(self.open.get_database_backend(), statement.text, values)
    }
}

impl SqlTx for SeaOrmTx {
    fn dialect(&self) -> Dialect {
        self.dialect
    }

    fn execute<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<u64, SqlError>> {
        Box::pin(async move {
            let done = self.open.execute_raw(self.bound(statement, params)).await;
            done.map(|done| done.rows_affected()).map_err(failure)
        })
    }

    fn query<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<Vec<SqlRow>, SqlError>> {
        Box::pin(async move {
            let found = self.open.query_all_raw(self.bound(statement, params)).await;
            let found = found.map_err(failure)?;
            found.iter().map(|row| read(row, statement.columns)).collect()
        })
    }
}

impl OwnedTx for SeaOrmTx {
    async fn commit(self) -> Result<(), SqlError> {
        let SeaOrmTx { open, dialect } = self;
        if dialect == Dialect::Postgres {
            // Always, for SeaORM shares transactions: whether another statement came after our last one can't be known.
            open.execute_unprepared("select 1").await.map_err(failure)?;
        }
        open.commit().await.map_err(failure)
    }

    async fn rollback(self) -> Result<(), SqlError> {
        self.open.rollback().await.map_err(failure)
    }
}

impl DriverTx for SeaOrmTx {
    type Conn<'a>
        = &'a DatabaseTransaction
    where
        Self: 'a;

    fn conn(&mut self) -> &DatabaseTransaction {
        self
    }
}

impl Deref for SeaOrmTx {
    type Target = DatabaseTransaction;

    fn deref(&self) -> &DatabaseTransaction {
        &self.open
    }
}

fn dialect(backend: DbBackend) -> Result<Dialect, SqlError> {
    match backend {
        DbBackend::Postgres => Ok(Dialect::Postgres),
        DbBackend::Sqlite => Ok(Dialect::Sqlite),
        _ => Err(SqlError::wrong("PostgreSQL or SQLite")),
    }
}

fn read(row: &QueryResult, columns: &[Type]) -> Result<SqlRow, SqlError> {
    let value = |(at, kind): (usize, &Type)| -> Result<Value, DbErr> {
        let value = match kind {
            Type::Bool => row.try_get_by_index::<Option<bool>>(at)?.map(Value::Bool),
            Type::I64 => row.try_get_by_index::<Option<i64>>(at)?.map(Value::I64),
            Type::Text => row.try_get_by_index::<Option<String>>(at)?.map(Value::Text),
            Type::Bytes => row.try_get_by_index::<Option<Vec<u8>>>(at)?.map(Bytes::from).map(Value::Bytes),
        };
        Ok(value.unwrap_or(Value::Null))
    };
    let values = columns.iter().enumerate().map(value).collect::<Result<_, _>>();
    values.map(SqlRow::new).map_err(|error| SqlError::new(SqlFault::Wrong, error))
}

/// A caller's own statement.
impl From<DbErr> for TxError {
    fn from(error: DbErr) -> TxError {
        failure(error).into()
    }
}

/// SeaORM wraps sqlx's error. A pool that gave no connection in time is `Lost`, although nothing was sent.
fn failure(error: DbErr) -> SqlError {
    let fault = match &error {
        DbErr::Conn(RuntimeErr::SqlxError(wrapped))
        | DbErr::Exec(RuntimeErr::SqlxError(wrapped))
        | DbErr::Query(RuntimeErr::SqlxError(wrapped)) => sqlx_error::fault(wrapped),
        DbErr::Conn(_) | DbErr::ConnectionAcquire(_) => SqlFault::Lost,
        _ => SqlFault::Wrong,
    };
    SqlError::new(fault, error)
}
