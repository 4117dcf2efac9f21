//! Adapter for SeaORM on PostgreSQL and, through sqlx, on SQLite.
//!
//! A nested transaction (`begin` on the one that the adapter derefs to) must have ended before `commit`. Otherwise SeaORM only
//! releases its savepoint, and reports success.

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

/// A SeaORM connection, usually a pool.
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
        // On a separate task, because this future may be dropped between the server's BEGIN and its reply. The connection
        // would then go back to the pool with an open transaction.
        match tokio::spawn(async move { pool.begin_with_options(options).await }).await {
            Ok(open) => open.map(|open| SeaOrmTx { open, dialect }).map_err(failure),
            Err(error) => Err(SqlError::new(SqlFault::Lost, error)),
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

    /// Fails unless the backend is PostgreSQL or SQLite.
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
    ) -> BoxFuture<'a, Result<(), SqlError>> {
        Box::pin(async move {
            let done = self.open.execute_raw(self.bound(statement, params)).await;
            done.map(drop).map_err(failure)
        })
    }

    fn query<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<Vec<SqlRow>, SqlError>> {
        Box::pin(async move {
            let rows = self.open.query_all_raw(self.bound(statement, params)).await;
            let rows = rows.map_err(failure)?;
            rows.iter().map(|row| read(row, statement.columns)).collect()
        })
    }
}

impl OwnedTx for SeaOrmTx {
    async fn commit(self) -> Result<(), SqlError> {
        let SeaOrmTx { open, dialect } = self;
        if dialect == Dialect::Postgres {
            // Always, because SeaORM shares transactions: the adapter cannot know whether another statement came after ours.
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
        _ => Err(SqlError::mismatch("PostgreSQL or SQLite")),
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

/// Converts the error of a caller's statement.
impl From<DbErr> for TxError {
    fn from(error: DbErr) -> TxError {
        failure(error).into()
    }
}

/// Classifies an error by the sqlx error that SeaORM wraps. A timeout of the pool is `Lost`, although nothing was sent.
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
