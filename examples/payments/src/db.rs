//! The application's tables, in the same database as ibid's records: only then can both commit in one transaction.
//!
//! Every statement runs on PostgreSQL and on SQLite. An application with one database writes `SqlxPostgres` (or
//! `SqlxSqlite`) where this one has `D: Backend`, and needs nothing below [`Db`].

use std::ops::DerefMut;
use std::sync::Arc;
use std::time::Duration;

use ibid::Store;
use ibid::store::postgres::{PostgresOptions, PostgresStore};
use ibid::store::sqlite::{SqliteOptions, SqliteStore};
use ibid::transaction::sqlx_postgres::SqlxPostgres;
use ibid::transaction::sqlx_sqlite::SqlxSqlite;
use ibid::transaction::{Database, TxError};
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{PgConnection, SqliteConnection};

use crate::serve::Failure;

/// A pool of connections. Clones share it.
#[derive(Clone, Debug)]
pub enum Db {
    /// Connections to a PostgreSQL server.
    Postgres(PgPool),
    /// Connections to an SQLite file.
    Sqlite(SqlitePool),
}

/// Opens ibid's store at `sqlite:PATH` or `postgres://…`, and creates its tables.
pub async fn open_store(url: &str) -> Result<Arc<dyn Store>, Failure> {
    match url.strip_prefix("sqlite:") {
        Some(path) => {
            let path = path.to_owned();
            let open = move || SqliteStore::open(path.as_ref(), SqliteOptions::default());
            Ok(Arc::new(tokio::task::spawn_blocking(open).await??))
        }
        None => Ok(Arc::new(PostgresStore::open(url, PostgresOptions::default()).await?)),
    }
}

impl Db {
    /// Connects to the database of an open store.
    pub async fn connect(url: &str) -> Result<Db, sqlx::Error> {
        let Some(path) = url.strip_prefix("sqlite:") else {
            let pool = PgPoolOptions::new().max_connections(PG_CONNECTIONS_MAX).acquire_timeout(WAIT_MAX);
            return pool.connect(url).await.map(Db::Postgres);
        };
        let options = SqliteConnectOptions::new()
            .filename(path)
            // With a weaker setting, a power cut can lose a payment whose response was already sent.
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(WAIT_MAX);
        let pool = SqlitePoolOptions::new().max_connections(SQLITE_CONNECTIONS_MAX).acquire_timeout(WAIT_MAX);
        pool.connect_with(options).await.map(Db::Sqlite)
    }

    /// Creates the tables that are missing. They reference ibid's tables, so open ibid's store first.
    ///
    /// Several nodes may call this at once. `create … if not exists` alone can then fail, so a lock comes first.
    pub async fn create_tables(&self) -> Result<(), sqlx::Error> {
        match self {
            Db::Postgres(pool) => {
                let mut tx = pool.begin().await?;
                let lock = sqlx::query("select pg_advisory_xact_lock($1)").bind(SCHEMA_LOCK);
                lock.execute(&mut *tx).await?;
                sqlx::raw_sql(include_str!("sql/postgres.sql")).execute(&mut *tx).await?;
                tx.commit().await
            }
            Db::Sqlite(pool) => {
                let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
                sqlx::raw_sql(include_str!("sql/sqlite.sql")).execute(&mut *tx).await?;
                tx.commit().await
            }
        }
    }

    /// Closes all connections, each after the statement that runs on it.
    pub async fn close(&self) {
        match self {
            Db::Postgres(pool) => pool.close().await,
            Db::Sqlite(pool) => pool.close().await,
        }
    }
}

/// Runs the same query on either pool. The drivers' types differ, the statements do not.
macro_rules! on_pool {
    ($db:expr, $pool:ident => $query:expr) => {
        match $db {
            $crate::db::Db::Postgres($pool) => $query,
            $crate::db::Db::Sqlite($pool) => $query,
        }
    };
}

pub(crate) use on_pool;

/// A database whose ibid transactions also run the application's [`Statements`].
pub trait Backend: Database<Tx: DerefMut<Target: Statements> + 'static> + Clone + 'static {}

impl Backend for SqlxPostgres {}
impl Backend for SqlxSqlite {}

/// A parameter of an SQL statement.
#[derive(Clone, Copy, Debug)]
pub enum SqlValue<'a> {
    /// A text, or null.
    Text(Option<&'a str>),
    /// A 64-bit signed integer.
    Integer(i64),
    /// A byte string, such as the id of a record.
    Bytes(&'a [u8]),
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
        impl Statements for $connection {
            async fn run(&mut self, sql: &'static str, values: &[SqlValue<'_>]) -> Result<u64, TxError> {
                let mut query = sqlx::query(sql);
                for value in values {
                    query = match *value {
                        SqlValue::Text(text) => query.bind(text),
                        SqlValue::Integer(number) => query.bind(number),
                        SqlValue::Bytes(bytes) => query.bind(bytes),
                    };
                }
                Ok(query.execute(self).await?.rows_affected())
            }
        }
    };
}

statements_on!(PgConnection);
statements_on!(SqliteConnection);

/// Enough connections to keep a small server busy. A large server is shared by several nodes, each with this many.
const PG_CONNECTIONS_MAX: u32 = 16;

/// SQLite has one writer at a time; the other connections read or wait for it.
const SQLITE_CONNECTIONS_MAX: u32 = 4;

/// Upper bound for the wait for a connection or for SQLite's write lock.
///
/// Transactions take milliseconds, and after about this long a client retries anyway.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// Key of the advisory lock around schema changes: `payments` in ASCII, so that no other program uses it by chance.
const SCHEMA_LOCK: i64 = 0x7061_796d_656e_7473;
