//! The application's own tables, in the database that holds the records, too: only so can both commit together.
//!
//! Statements are in `sql/`, written so that PostgreSQL and SQLite take the same ones; only the tables differ.

pub mod ledger;
pub mod payments;
pub mod rides;
mod schema;
mod url;
mod writes;

pub use url::{BadStoreUrl, StoreUrl};
pub use writes::Writes;

use std::ops::DerefMut;
use std::time::Duration;

use ibid::transaction::sqlx_postgres::SqlxPostgres;
use ibid::transaction::sqlx_sqlite::SqlxSqlite;
use ibid::transaction::{Database, TxError};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};

/// A database, to read from. Clones share its connections.
#[derive(Clone, Debug)]
pub enum Db {
    /// A server.
    Postgres(PgPool),
    /// A file.
    Sqlite(SqlitePool),
}

/// The same database, to write to: ibid opens the transactions, and our statements run in them.
///
/// An application with one database needs neither this trait nor its generics: `SqlxPostgres` itself takes their place.
pub trait Backend: Database<Tx: DerefMut<Target: Writes> + 'static> + Clone + 'static {}

impl Backend for SqlxPostgres {}
impl Backend for SqlxSqlite {}

/// A database that did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[error("could not {op}")]
pub struct DbError {
    op: &'static str,
    source: TxError,
}

impl DbError {
    fn of<E>(op: &'static str) -> impl FnOnce(E) -> DbError
    where
        TxError: From<E>,
    {
        move |error| DbError { op, source: error.into() }
    }

    /// Whether another transaction was in the way: the same work may succeed in a new one.
    pub fn is_again(&self) -> bool {
        self.source.is_again()
    }
}

impl Db {
    /// Connects, and sees that the database answers.
    pub async fn connect(url: &StoreUrl) -> Result<Db, DbError> {
        let db = match url {
            StoreUrl::Postgres(url) => Db::Postgres(postgres(url).await.map_err(DbError::of("connect"))?),
            StoreUrl::Sqlite(path) => {
                let options = SqliteConnectOptions::new().filename(path).create_if_missing(true);
                Db::Sqlite(sqlite(options).await.map_err(DbError::of("open the database"))?)
            }
        };
        db.ping().await?;
        Ok(db)
    }

    /// Makes the tables that are not there yet. Any number of nodes may do so at once.
    pub async fn make_tables(&self) -> Result<(), DbError> {
        let made = match self {
            Db::Postgres(pool) => schema::postgres(pool).await,
            Db::Sqlite(pool) => schema::sqlite(pool).await,
        };
        made.map_err(DbError::of("make the tables"))
    }

    /// Does it answer?
    pub async fn ping(&self) -> Result<(), DbError> {
        let sql = include_str!("sql/ping.sql");
        let answered = match self {
            Db::Postgres(pool) => sqlx::query(sql).execute(pool).await.map(drop),
            Db::Sqlite(pool) => sqlx::query(sql).execute(pool).await.map(drop),
        };
        answered.map_err(DbError::of("ask the database"))
    }

    /// Waits for what is in use and closes all connections.
    pub async fn close(&self) {
        match self {
            Db::Postgres(pool) => pool.close().await,
            Db::Sqlite(pool) => pool.close().await,
        }
    }
}

async fn postgres(url: &str) -> Result<PgPool, sqlx::Error> {
    let options: PgConnectOptions = url.parse()?;
    let options = options.application_name("payments");
    PgPoolOptions::new()
        .max_connections(PG_CONNECTIONS_MAX)
        .acquire_timeout(ACQUIRE_FOR)
        .connect_with(options)
        .await
}

async fn sqlite(options: SqliteConnectOptions) -> Result<SqlitePool, TxError> {
    let options = options
        .journal_mode(SqliteJournalMode::Wal)
        // With less, a payment that was answered for can be gone after a power cut.
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .busy_timeout(BUSY_FOR);
    let pool = SqlitePoolOptions::new().max_connections(SQLITE_CONNECTIONS_MAX).acquire_timeout(ACQUIRE_FOR);
    let mut tries = 0;
    loop {
        tries += 1;
        match pool.clone().connect_with(options.clone()).await.map_err(TxError::from) {
            // Only the first to open a new file switches its journal, and SQLite does not wait for that one.
            Err(error) if tries < OPEN_TRIES_MAX && error.is_again() => {
                tokio::time::sleep(OPEN_AGAIN_AFTER).await;
            }
            opened => return opened,
        }
    }
}

/// A prefix and a UUID as 32 lower-case hex digits.
fn is_id(text: &str, prefix: &str) -> bool {
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.strip_prefix(prefix).is_some_and(|rest| rest.len() == 32 && rest.bytes().all(hex))
}

/// The same words to either database: the driver's types differ, the statement does not.
macro_rules! on_db {
    ($db:expr, $pool:ident => $ask:expr) => {
        match $db {
            $crate::db::Db::Postgres($pool) => $ask,
            $crate::db::Db::Sqlite($pool) => $ask,
        }
    };
}

use on_db;

/// Enough to keep a small server busy; a large one is shared with other nodes.
const PG_CONNECTIONS_MAX: u32 = 16;

/// One writes at a time, the others read or wait.
const SQLITE_CONNECTIONS_MAX: u32 = 4;

/// A client waits about so long before it retries, so waiting longer serves nobody.
const ACQUIRE_FOR: Duration = Duration::from_secs(5);

/// How long a writer waits for another's transaction: those take milliseconds. Below a third of any sane lease.
const BUSY_FOR: Duration = Duration::from_secs(5);

/// With the pause below: two seconds, for a step that takes milliseconds.
const OPEN_TRIES_MAX: u32 = 40;

/// See [`OPEN_TRIES_MAX`].
const OPEN_AGAIN_AFTER: Duration = Duration::from_millis(50);
