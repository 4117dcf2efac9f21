//! The application's tables, in the same database as ibid's records: only then can both commit in one transaction.
//!
//! Every statement runs on PostgreSQL and on SQLite. An application with one database writes `SqlxPostgres` (or
//! `SqlxSqlite`) where this one has `D: Backend`, and needs nothing below [`Db`].

#[cfg(feature = "postgres")]
mod postgres;

use std::ops::DerefMut;
use std::sync::Arc;
use std::time::Duration;

use ibid::Store;
use ibid::store::sqlite::{SqliteOptions, SqliteStore};
use ibid::transaction::sqlx_sqlite::SqlxSqlite;
use ibid::transaction::{Database, TxError};
use sqlx::SqliteConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions, SqliteSynchronous};
use uuid::Uuid;

use crate::serve::Failure;

/// A pool of connections. Clones share it.
#[derive(Clone, Debug)]
pub enum Db {
    /// Connections to a PostgreSQL server.
    #[cfg(feature = "postgres")]
    Postgres(sqlx::PgPool),
    /// Connections to an SQLite file.
    Sqlite(SqlitePool),
}

/// Runs the same query on either pool. The drivers' types differ, the statements do not.
macro_rules! on_pool {
    ($db:expr, $pool:ident => $query:expr) => {
        match $db {
            #[cfg(feature = "postgres")]
            $crate::db::Db::Postgres($pool) => $query,
            $crate::db::Db::Sqlite($pool) => $query,
        }
    };
}

pub(crate) use on_pool;

impl Db {
    /// Opens ibid's store and the application's pool at `sqlite:PATH` or `postgres://…`, and creates the missing tables.
    /// Ours reference ibid's.
    pub async fn open(url: &str) -> Result<(Arc<dyn Store>, Db), Failure> {
        match url.strip_prefix("sqlite:") {
            Some(path) => open_sqlite(path.to_owned()).await,
            #[cfg(feature = "postgres")]
            None => postgres::open(url).await,
            #[cfg(not(feature = "postgres"))]
            None => Err("this build has SQLite only: use `sqlite:PATH`".into()),
        }
    }

    /// Closes all connections, each after the statement that runs on it.
    pub async fn close(&self) {
        on_pool!(self, pool => pool.close().await);
    }
}

async fn open_sqlite(path: String) -> Result<(Arc<dyn Store>, Db), Failure> {
    let options = SqliteConnectOptions::new()
        .filename(&path)
        // With a weaker setting, a power cut can lose a payment whose response was already sent.
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .busy_timeout(WAIT_MAX);
    let open = move || SqliteStore::open(path.as_ref(), SqliteOptions::default());
    let store = tokio::task::spawn_blocking(open).await??;
    let pool = SqlitePoolOptions::new().max_connections(SQLITE_CONNECTIONS_MAX).acquire_timeout(WAIT_MAX);
    let pool = pool.connect_with(options).await?;
    // Several processes may do this at once. `create … if not exists` alone can then fail, so the write lock comes first.
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
    sqlx::raw_sql(include_str!("sql/sqlite.sql")).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok((Arc::new(store), Db::Sqlite(pool)))
}

/// A database whose ibid transactions also run the application's [`Statements`].
pub trait Backend: Database<Tx: DerefMut<Target: Statements> + 'static> + Clone + 'static {}

impl Backend for SqlxSqlite {}

/// A parameter of an SQL statement.
#[derive(Clone, Copy, Debug)]
pub enum SqlValue<'a> {
    /// A text, or null.
    Text(Option<&'a str>),
    /// A 64-bit signed integer.
    Integer(i64),
    /// The id of a record: `uuid` on PostgreSQL, a blob on SQLite.
    Id(Uuid),
}

impl<'a> From<&'a str> for SqlValue<'a> {
    fn from(text: &'a str) -> SqlValue<'a> {
        SqlValue::Text(Some(text))
    }
}

/// The connection of an open transaction.
pub trait Statements: Send {
    /// Runs one statement and returns the number of rows that it changed.
    fn run(
        &mut self,
        sql: &'static str,
        values: &[SqlValue<'_>],
    ) -> impl Future<Output = Result<u64, TxError>> + Send;
}

macro_rules! statements_on {
    ($connection:ty) => {
        impl $crate::db::Statements for $connection {
            async fn run(&mut self, sql: &'static str, values: &[SqlValue<'_>]) -> Result<u64, TxError> {
                let mut query = sqlx::query(sql);
                for value in values {
                    query = match *value {
                        SqlValue::Text(text) => query.bind(text),
                        SqlValue::Integer(number) => query.bind(number),
                        SqlValue::Id(id) => query.bind(id),
                    };
                }
                Ok(query.execute(self).await?.rows_affected())
            }
        }
    };
}

#[cfg(feature = "postgres")]
pub(crate) use statements_on;

statements_on!(SqliteConnection);

/// SQLite has one writer at a time; the other connections read or wait for it.
const SQLITE_CONNECTIONS_MAX: u32 = 4;

/// Upper bound for the wait for a connection or for SQLite's write lock.
///
/// Transactions take milliseconds, and after about this long a client retries anyway.
const WAIT_MAX: Duration = Duration::from_secs(5);
