//! Adapter for `sqlx` on MySQL and MariaDB.
//!
//! The server rolls a whole transaction back after a deadlock, and commits it before a statement that changes the schema.
//! Later statements are then committed one by one. So the adapter checks, in one round trip after statements of the caller,
//! that the transaction is still open. It needs `autocommit` to be on, which is the default: otherwise the server would open
//! another transaction by itself.

use std::ops::{Deref, DerefMut};

use bytes::Bytes;
use ibid_core::sql::{Database, Param, SqlError, SqlFault, SqlRow, Statement, Type, Value};
use sqlx::mysql::{MySqlArguments, MySqlRow};
use sqlx::{
    Acquire, Arguments, AssertSqlSafe, Column, Error, MySql, MySqlConnection, MySqlPool, Row as _,
    Transaction, TypeInfo as _,
};

use super::DriverTx;
use super::mysql_tx::{AUTOCOMMIT_OFF, ENDED, MysqlDriver, MysqlTx};
use super::sqlx_error::failure;

/// A `sqlx` pool of MySQL or MariaDB connections.
#[derive(Clone, Debug)]
pub struct SqlxMysql(pub MySqlPool);

impl Database for SqlxMysql {
    type Tx = SqlxMysqlTx;

    async fn begin(&self) -> Result<SqlxMysqlTx, SqlError> {
        // On a separate task, because this future may be dropped between the server's BEGIN and its reply. sqlx would then
        // return the connection to the pool with an open transaction.
        let pool = self.0.clone();
        match tokio::spawn(async move { pool.begin().await }).await {
            Ok(open) => open
                .map(|open| MysqlTx::new(SqlxMysqlDriver { open, is_proven: true, has_ended: false }))
                .map_err(failure),
            Err(error) => Err(SqlError::new(SqlFault::Lost, error)),
        }
    }
}

/// A transaction that owns its connection. Your statements run on [`conn`](DriverTx::conn): `query.execute(tx.conn())`.
pub type SqlxMysqlTx = SqlxMysqlScopedTx<'static>;

/// A transaction on a connection that is there for `'c`: one of your own that you have begun. [`SqlxMysqlTx`] has no lifetime.
pub type SqlxMysqlScopedTx<'c> = MysqlTx<SqlxMysqlDriver<'c>>;

/// The driver's part of a [`SqlxMysqlScopedTx`].
#[doc(hidden)]
#[derive(Debug)]
pub struct SqlxMysqlDriver<'c> {
    open: Transaction<'c, MySql>,
    /// `true` if the last statement was ibid's and succeeded, so the server has not ended the transaction.
    is_proven: bool,
    /// `true` if the server has ended the transaction.
    has_ended: bool,
}

impl<'c> From<Transaction<'c, MySql>> for SqlxMysqlScopedTx<'c> {
    fn from(open: Transaction<'c, MySql>) -> SqlxMysqlScopedTx<'c> {
        MysqlTx::new(SqlxMysqlDriver { open, is_proven: false, has_ended: false })
    }
}

impl MysqlDriver for SqlxMysqlDriver<'_> {
    async fn check_open(&mut self) -> Result<(), SqlError> {
        if self.has_ended {
            // sqlx takes no part in the transaction any more: it would begin another one.
            return Err(SqlError::new(SqlFault::Wrong, ENDED));
        }
        if !self.is_proven {
            // A savepoint fails outside a transaction, because sqlx looks at the server's status then. Dropping it sends its
            // rollback together with the next statement.
            match self.open.begin().await {
                Ok(savepoint) => drop(savepoint),
                Err(Error::BeginFailed) => {
                    self.has_ended = true;
                    return Err(SqlError::new(SqlFault::Wrong, ENDED));
                }
                Err(error) => return Err(failure(error)),
            }
        }
        Ok(())
    }

    /// One round trip: sqlx does not pass on the server's status.
    async fn check_autocommit(&mut self) -> Result<(), SqlError> {
        let mut rows = self.rows(&AUTOCOMMIT, &[]).await?;
        match rows.pop().ok_or_else(|| SqlError::mismatch("a setting"))?.i64()? {
            1 => Ok(()),
            _ => Err(SqlError::new(SqlFault::Wrong, AUTOCOMMIT_OFF)),
        }
    }

    async fn run(&mut self, statement: &Statement, params: &[Param<'_>]) -> Result<(), SqlError> {
        self.is_proven = false;
        let done = run(&mut self.open, statement, params).await;
        self.is_proven = done.is_ok();
        done
    }

    async fn rows(&mut self, statement: &Statement, params: &[Param<'_>]) -> Result<Vec<SqlRow>, SqlError> {
        self.is_proven = false;
        let read_rows = rows(&mut self.open, statement, params).await;
        self.is_proven = read_rows.is_ok();
        read_rows
    }

    async fn commit(self) -> Result<(), SqlError> {
        self.open.commit().await.map_err(failure)
    }

    async fn rollback(self) -> Result<(), SqlError> {
        self.open.rollback().await.map_err(failure)
    }
}

static AUTOCOMMIT: Statement = Statement { text: "select @@session.autocommit", columns: &[Type::I64] };

impl DriverTx for SqlxMysqlScopedTx<'_> {
    type Conn<'a>
        = &'a mut MySqlConnection
    where
        Self: 'a;

    fn conn(&mut self) -> &mut MySqlConnection {
        self
    }
}

impl Deref for SqlxMysqlScopedTx<'_> {
    type Target = MySqlConnection;

    fn deref(&self) -> &MySqlConnection {
        &self.driver.open
    }
}

impl DerefMut for SqlxMysqlScopedTx<'_> {
    fn deref_mut(&mut self) -> &mut MySqlConnection {
        self.driver.is_proven = false;
        &mut self.driver.open
    }
}

async fn run(
    connection: &mut MySqlConnection,
    statement: &Statement,
    params: &[Param<'_>],
) -> Result<(), SqlError> {
    let positional = statement.positional();
    // MySQL can't prepare every statement, so one without parameters is sent as plain text.
    let done = if params.is_empty() {
        sqlx::raw_sql(AssertSqlSafe(positional.text)).execute(connection).await
    } else {
        let arguments = arguments(&positional.arrange(params)?).map_err(failure)?;
        sqlx::query_with(AssertSqlSafe(positional.text), arguments).execute(connection).await
    };
    done.map(drop).map_err(failure)
}

async fn rows(
    connection: &mut MySqlConnection,
    statement: &Statement,
    params: &[Param<'_>],
) -> Result<Vec<SqlRow>, SqlError> {
    let positional = statement.positional();
    let rows = if params.is_empty() {
        sqlx::raw_sql(AssertSqlSafe(positional.text)).fetch_all(connection).await
    } else {
        let arguments = arguments(&positional.arrange(params)?).map_err(failure)?;
        sqlx::query_with(AssertSqlSafe(positional.text), arguments).fetch_all(connection).await
    };
    rows.map_err(failure)?.iter().map(|row| read(row, statement.columns).map_err(failure)).collect()
}

fn arguments(params: &[Param<'_>]) -> Result<MySqlArguments, Error> {
    let mut arguments = MySqlArguments::default();
    for param in params {
        let added = match *param {
            Param::Null(Type::Bool) => Arguments::add(&mut arguments, None::<bool>),
            Param::Null(Type::I64) => Arguments::add(&mut arguments, None::<i64>),
            Param::Null(Type::Text) => Arguments::add(&mut arguments, None::<&str>),
            Param::Null(Type::Bytes) => Arguments::add(&mut arguments, None::<&[u8]>),
            Param::Bool(value) => Arguments::add(&mut arguments, value),
            Param::I64(value) => Arguments::add(&mut arguments, value),
            Param::Text(value) => Arguments::add(&mut arguments, value),
            Param::Bytes(value) => Arguments::add(&mut arguments, value),
        };
        added.map_err(Error::Encode)?;
    }
    Ok(arguments)
}

/// Reads a row without sqlx's check of types: `boolean` is a number on MySQL, and ibid's texts are bytes.
fn read(row: &MySqlRow, columns: &[Type]) -> Result<SqlRow, Error> {
    let value = |(at, kind): (usize, &Type)| -> Result<Value, Error> {
        let value = match kind {
            Type::Bool => integer(row, at)?.map(|value| Value::Bool(value != 0)),
            Type::I64 => integer(row, at)?.map(Value::I64),
            Type::Text => row.try_get_unchecked::<Option<String>, _>(at)?.map(Value::Text),
            Type::Bytes => {
                row.try_get_unchecked::<Option<Vec<u8>>, _>(at)?.map(Bytes::from).map(Value::Bytes)
            }
        };
        Ok(value.unwrap_or(Value::Null))
    };
    Ok(SqlRow::new(columns.iter().enumerate().map(value).collect::<Result<_, _>>()?))
}

fn integer(row: &MySqlRow, at: usize) -> Result<Option<i64>, Error> {
    let column = row.try_column(at)?;
    let kind = column.type_info();
    if !["INT", "BOOLEAN"].iter().any(|name| kind.name().contains(name)) && kind.name() != "NULL" {
        return Err(Error::ColumnDecode { index: at.to_string(), source: "expected a number".into() });
    }
    if kind.name().ends_with("UNSIGNED") {
        let value = row.try_get_unchecked::<Option<u64>, _>(at)?;
        return value.map(i64::try_from).transpose().map_err(|error| Error::Decode(error.into()));
    }
    row.try_get_unchecked(at)
}
