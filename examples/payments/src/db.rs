//! The application's tables, in the same database as ibid's records: only then can both commit in one transaction.
//!
//! Every statement runs on PostgreSQL, on MySQL and MariaDB, and on SQLite. With one database, use its `SqlxPostgres`,
//! `SqlxMysql` or `SqlxSqlite` instead of [`Db`], and write statements without `on_database!` and [`Db::sql`].

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use ibid::prelude::*;
use sqlx::AssertSqlSafe;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions, SqliteSynchronous};

/// The database, with a pool of connections. Clones share it.
#[derive(Clone, Debug)]
pub enum Db {
    /// Connections to a PostgreSQL server.
    #[cfg(feature = "postgres")]
    Postgres(SqlxPostgres),
    /// Connections to a MySQL or MariaDB server.
    #[cfg(feature = "mysql")]
    Mysql(SqlxMysql),
    /// Connections to an SQLite file.
    Sqlite(SqlxSqlite),
}

/// Compiles an expression for each of the databases, and runs it on the one that is in use. Their drivers have different
/// types, but the code for them is the same.
macro_rules! on_database {
    ($db:expr, |$database:ident| $code:expr) => {
        match $db {
            #[cfg(feature = "postgres")]
            $crate::db::Db::Postgres($database) => $code,
            #[cfg(feature = "mysql")]
            $crate::db::Db::Mysql($database) => $code,
            $crate::db::Db::Sqlite($database) => $code,
        }
    };
}

pub(crate) use on_database;

impl Db {
    /// Opens ibid's store and the application's pool at `sqlite:PATH`, `postgres://…` or `mysql://…`, and creates the missing
    /// tables. Ours reference ibid's.
    pub async fn open(url: &str) -> Result<(Arc<dyn Store>, Db), BoxError> {
        match url.split_once(':') {
            Some(("sqlite", path)) => open_sqlite(path.to_owned()).await,
            #[cfg(feature = "postgres")]
            Some(("postgres" | "postgresql", _)) => postgres::open(url).await,
            #[cfg(feature = "mysql")]
            Some(("mysql", _)) => mysql::open(url).await,
            _ => Err("this build has no such database: use `sqlite:PATH`".into()),
        }
    }

    /// Returns the text of a statement for this database. Its parameters `$1`, `$2`, … must be in this order: MySQL knows
    /// only `?`.
    pub fn sql(&self, text: &'static str) -> AssertSqlSafe<Cow<'static, str>> {
        match self {
            #[cfg(feature = "mysql")]
            Db::Mysql(_) => AssertSqlSafe(mysql::question_marks(text).into()),
            _ => AssertSqlSafe(text.into()),
        }
    }

    /// Closes all connections, each after the statement that runs on it.
    pub async fn close(&self) {
        on_database!(self, |database| database.0.close().await);
    }
}

async fn open_sqlite(path: String) -> Result<(Arc<dyn Store>, Db), BoxError> {
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
    sqlx::raw_sql(schema("text", "blob")).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok((Arc::new(store), Db::Sqlite(SqlxSqlite(pool))))
}

/// Returns the statements that create the tables. The database must compare the type `text` byte by byte, so that `ann` and
/// `Ann` are two accounts, and must store the 16 bytes of a record's id as the type `record_id`.
fn schema(text: &str, record_id: &str) -> AssertSqlSafe<String> {
    AssertSqlSafe(include_str!("schema.sql").replace("{text}", text).replace("{record_id}", record_id))
}

/// SQLite has one writer at a time; the other connections read or wait for it.
const SQLITE_CONNECTIONS_MAX: u32 = 4;

/// Connections of a node to a database server: enough to keep a small server busy. A large one is shared by several nodes.
#[cfg(any(feature = "postgres", feature = "mysql"))]
const SERVER_CONNECTIONS_MAX: u32 = 16;

/// Upper bound for the wait for a connection or for SQLite's write lock.
///
/// Transactions take milliseconds, and after about this long a client retries anyway.
const WAIT_MAX: Duration = Duration::from_secs(5);
