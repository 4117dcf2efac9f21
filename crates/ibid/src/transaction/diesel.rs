//! Adapter for `diesel-async` on PostgreSQL.
//!
//! Diesel reports a SQLSTATE only if it has a kind for it. A deadlock, a lock timeout and a terminated connection are
//! recognised by the server's message, so only in English (`lc_messages`). In another language they are `Wrong`, and the
//! transaction is not retried.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

use ::diesel::QueryableByName;
use ::diesel::pg::Pg;
use ::diesel::query_builder::{BoxedSqlQuery, SqlQuery};
use ::diesel::result::{DatabaseErrorKind, Error};
use ::diesel::row::{Field, NamedRow};
use ::diesel::sql_types::{BigInt, Binary, Bool, Nullable, Text};
use bytes::Bytes;
use diesel_async::pooled_connection::deadpool::{Object, Pool};
use diesel_async::{
    AnsiTransactionManager, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection, TransactionManager,
};
use ibid_core::sql::{
    Database, Dialect, OwnedTx, Param, SqlError, SqlFault, SqlRow, SqlTx, Statement, Type, Value,
};
use ibid_core::store::BoxFuture;

use super::{DriverTx, TxError};

/// A pool of `diesel-async` connections.
#[derive(Clone)]
pub struct Diesel(pub Pool<AsyncPgConnection>);

impl fmt::Debug for Diesel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Diesel").field(&self.0.status()).finish()
    }
}

impl Database for Diesel {
    type Tx = DieselTx;

    async fn begin(&self) -> Result<DieselTx, SqlError> {
        // A timeout of the pool is `Lost`, although nothing was sent.
        let object = self.0.get().await.map_err(|error| SqlError::with_state(None, error))?;
        // `DieselTx` owns the connection before the first byte is sent. If this future is dropped midway, the connection is
        // closed instead of going back to the pool.
        let mut tx = DieselTx { object: Some(object), proven: AtomicBool::new(false) };
        // Through Diesel's transaction manager, so that the caller's `transaction` inside becomes a savepoint.
        AnsiTransactionManager::begin_transaction(tx.connection()).await.map_err(failure)?;
        Ok(tx)
    }
}

/// An open transaction. The caller's statements run on the connection that it derefs to: `query.load(&mut tx)`.
///
/// Dropping it closes the connection, which rolls the transaction back: a connection with an open transaction never goes
/// back to the pool.
pub struct DieselTx {
    /// `None` once the transaction has ended.
    object: Option<Object<AsyncPgConnection>>,
    /// `true` if the last statement was ibid's and succeeded, so the server has not aborted the transaction.
    proven: AtomicBool,
}

impl DieselTx {
    fn connection(&mut self) -> &mut AsyncPgConnection {
        // Only the ends of `commit` and `rollback` set it to `None`, and neither uses it afterwards.
        self.object.as_mut().expect(NOT_ENDED)
    }

    async fn try_commit(&mut self) -> Result<(), SqlError> {
        if !*self.proven.get_mut() {
            self.connection().batch_execute("select 1").await.map_err(failure)?;
        }
        // Otherwise Diesel would only release the innermost savepoint, and report success.
        let status = AnsiTransactionManager::transaction_manager_status_mut(self.connection());
        if status.transaction_depth().map_err(failure)?.map(u32::from) != Some(1) {
            return Err(SqlError::mismatch("a transaction without open ones inside"));
        }
        AnsiTransactionManager::commit_transaction(self.connection()).await.map_err(failure)
    }

    async fn try_rollback(&mut self) -> Result<(), SqlError> {
        // One level at a time. The outermost rollback undoes the savepoints inside too.
        while AnsiTransactionManager::transaction_manager_status_mut(self.connection())
            .transaction_depth()
            .map_err(failure)?
            .is_some()
        {
            AnsiTransactionManager::rollback_transaction(self.connection()).await.map_err(failure)?;
        }
        self.object = None;
        Ok(())
    }
}

impl SqlTx for DieselTx {
    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    fn execute<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<(), SqlError>> {
        Box::pin(async move {
            *self.proven.get_mut() = false;
            bound(statement, params).execute(self.connection()).await.map_err(failure)?;
            *self.proven.get_mut() = true;
            Ok(())
        })
    }

    fn query<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<Vec<SqlRow>, SqlError>> {
        Box::pin(async move {
            *self.proven.get_mut() = false;
            let rows: Vec<Raw> = bound(statement, params).load(self.connection()).await.map_err(failure)?;
            *self.proven.get_mut() = true;
            rows.into_iter().map(|row| row.read(statement.columns)).collect()
        })
    }
}

impl OwnedTx for DieselTx {
    async fn commit(mut self) -> Result<(), SqlError> {
        let ended = self.try_commit().await;
        match &ended {
            Ok(()) => self.object = None,
            Err(error) if error.fault() == SqlFault::Lost => {}
            // The server answered, so the connection works. Roll back before it goes back to the pool.
            Err(_) => drop(self.try_rollback().await),
        }
        ended
    }

    async fn rollback(mut self) -> Result<(), SqlError> {
        self.try_rollback().await
    }
}

impl DriverTx for DieselTx {
    type Conn<'a>
        = &'a mut AsyncPgConnection
    where
        Self: 'a;

    fn conn(&mut self) -> &mut AsyncPgConnection {
        self
    }
}

impl Deref for DieselTx {
    type Target = AsyncPgConnection;

    fn deref(&self) -> &AsyncPgConnection {
        // Diesel can also run statements on a shared reference.
        self.proven.store(false, Ordering::Relaxed);
        self.object.as_ref().expect(NOT_ENDED)
    }
}

impl DerefMut for DieselTx {
    fn deref_mut(&mut self) -> &mut AsyncPgConnection {
        *self.proven.get_mut() = false;
        self.connection()
    }
}

impl Drop for DieselTx {
    fn drop(&mut self) {
        if let Some(object) = self.object.take() {
            drop(Object::<AsyncPgConnection>::take(object));
        }
    }
}

impl fmt::Debug for DieselTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DieselTx").finish_non_exhaustive()
    }
}

fn bound<'a>(statement: &'static Statement, params: &'a [Param<'a>]) -> BoxedSqlQuery<'a, Pg, SqlQuery> {
    params.iter().fold(::diesel::sql_query(statement.text).into_boxed(), |query, param| match *param {
        Param::Null(Type::Bool) => query.bind::<Nullable<Bool>, _>(None::<bool>),
        Param::Null(Type::I64) => query.bind::<Nullable<BigInt>, _>(None::<i64>),
        Param::Null(Type::Text) => query.bind::<Nullable<Text>, _>(None::<&str>),
        Param::Null(Type::Bytes) => query.bind::<Nullable<Binary>, _>(None::<&[u8]>),
        Param::Bool(value) => query.bind::<Bool, _>(value),
        Param::I64(value) => query.bind::<BigInt, _>(value),
        Param::Text(value) => query.bind::<Text, _>(value),
        Param::Bytes(value) => query.bind::<Binary, _>(value),
    })
}

/// A row in PostgreSQL's binary format. Diesel reads rows of plain SQL by column name; ibid reads them by index.
struct Raw(Vec<Option<(u32, Bytes)>>);

impl QueryableByName<Pg> for Raw {
    fn build<'a>(row: &impl NamedRow<'a, Pg>) -> ::diesel::deserialize::Result<Raw> {
        let cell = |at| -> ::diesel::deserialize::Result<Option<(u32, Bytes)>> {
            let field = ::diesel::row::Row::get(row, at).ok_or("a column is missing")?;
            let value = field.value();
            Ok(value.map(|value| (value.get_oid().get(), Bytes::copy_from_slice(value.as_bytes()))))
        };
        (0..row.field_count()).map(cell).collect::<Result<_, _>>().map(Raw)
    }
}

impl Raw {
    fn read(self, columns: &[Type]) -> Result<SqlRow, SqlError> {
        if self.0.len() != columns.len() {
            return Err(SqlError::mismatch("as many columns as promised"));
        }
        let values = self.0.into_iter().zip(columns).map(|(cell, kind)| match cell {
            None => Ok(Value::Null),
            Some((oid, bytes)) => decode(oid, bytes, *kind)
                .ok_or_else(|| SqlError::mismatch(&format!("{kind:?}, found type {oid}"))),
        });
        values.collect::<Result<_, _>>().map(SqlRow::new)
    }
}

fn decode(oid: u32, bytes: Bytes, kind: Type) -> Option<Value> {
    match (kind, oid) {
        (Type::Bool, OID_BOOL) => Some(Value::Bool(bytes[..] != [0])),
        (Type::I64, OID_INT8) => Some(Value::I64(i64::from_be_bytes(bytes.as_ref().try_into().ok()?))),
        (Type::Text, OID_TEXT) => Some(Value::Text(String::from_utf8(bytes.into()).ok()?)),
        (Type::Bytes, OID_BYTEA) => Some(Value::Bytes(bytes)),
        _ => None,
    }
}

/// Converts the error of a caller's statement.
impl From<Error> for TxError {
    fn from(error: Error) -> TxError {
        failure(error).into()
    }
}

fn failure(error: Error) -> SqlError {
    let fault = match &error {
        Error::DatabaseError(kind, info) => match kind {
            DatabaseErrorKind::SerializationFailure => SqlFault::Serialization,
            DatabaseErrorKind::ClosedConnection | DatabaseErrorKind::UnableToSendCommand => SqlFault::Lost,
            DatabaseErrorKind::Unknown => fault_by_message(info.message()),
            _ => SqlFault::Wrong,
        },
        Error::BrokenTransactionManager | Error::RollbackErrorOnCommit { .. } => SqlFault::Lost,
        _ => SqlFault::Wrong,
    };
    SqlError::new(fault, error)
}

fn fault_by_message(message: &str) -> SqlFault {
    MESSAGES.iter().find(|(start, _)| message.starts_with(start)).map_or(SqlFault::Wrong, |(_, fault)| *fault)
}

/// Prefixes of the server's English messages, for errors that have no kind in Diesel.
const MESSAGES: &[(&str, SqlFault)] = &[
    ("deadlock detected", SqlFault::Serialization), // 40P01
    ("canceling statement due to lock timeout", SqlFault::LockTimeout), // 55P03
    ("could not obtain lock on", SqlFault::LockTimeout), // 55P03, of NOWAIT
    ("terminating connection", SqlFault::Lost),     // 57P01, 57P02, 57P05, 25P03
    ("the database system is", SqlFault::Lost),     // 57P03: starting up, shutting down, in recovery
];

const OID_BOOL: u32 = 16;
const OID_BYTEA: u32 = 17;
const OID_INT8: u32 = 20;
const OID_TEXT: u32 = 25;

const NOT_ENDED: &str = "an open transaction holds its connection";
