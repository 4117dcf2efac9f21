//! The database of a benchmark: a temporary one, or one that a URL names.

use std::path::PathBuf;
use std::sync::Arc;

use ibid::store::postgres::{PostgresOptions, PostgresStore};
use ibid::store::sqlite::{SqliteOptions, SqliteStore};
use ibid_core::store::Store;
use ibid_testkit::postgres::Postgres;
use rusqlite::{Connection, OpenFlags};
use tempfile::TempDir;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use crate::BenchError;

/// A database that lives at least as long as this handle.
pub(crate) enum Database {
    Sqlite {
        path: PathBuf,
        /// The folder of a temporary file, which is removed with this handle.
        _folder: Option<TempDir>,
    },
    Postgres {
        url: String,
        client: Box<Client>,
        /// The server that was started for this handle, and stops with it.
        server: Option<Box<Postgres>>,
    },
}

impl Database {
    /// Creates a temporary database (`sqlite`, `postgres`), or connects to one (`sqlite:PATH`, `postgres://…`).
    pub(crate) async fn open(name: &str) -> Result<Database, BenchError> {
        match name.split_once(':') {
            None if name == "sqlite" => {
                let folder = tempfile::tempdir()?;
                let path = folder.path().join("ibid.db");
                Ok(Database::Sqlite { path, _folder: Some(folder) })
            }
            None if name == "postgres" => {
                let server = tokio::task::spawn_blocking(|| Postgres::start_on_disk(SERVER_SETTINGS)).await?;
                let url = server.url();
                let client = connect(&url).await?;
                Ok(Database::Postgres { url, client, server: Some(Box::new(server)) })
            }
            Some(("sqlite", path)) if !path.is_empty() => {
                Ok(Database::Sqlite { path: path.into(), _folder: None })
            }
            Some(("postgres" | "postgresql", _)) => {
                let client = connect(name).await?;
                Ok(Database::Postgres { url: name.to_owned(), client, server: None })
            }
            _ => {
                Err("the store is `sqlite`, `postgres` (both temporary), `sqlite:PATH` or `postgres://…`"
                    .into())
            }
        }
    }

    /// Opens the store in it.
    pub(crate) async fn store(&self) -> Result<Arc<dyn Store>, BenchError> {
        match self {
            Database::Sqlite { path, .. } => Ok(Arc::new(SqliteStore::open(path, SqliteOptions::default())?)),
            Database::Postgres { url, .. } => {
                Ok(Arc::new(PostgresStore::open(url, PostgresOptions::default()).await?))
            }
        }
    }

    /// Returns the bytes of the file once its WAL is written back, or of ibid's tables with their indexes.
    pub(crate) async fn bytes(&self) -> Result<u64, BenchError> {
        match self {
            Database::Sqlite { .. } => self.number(FILE_BYTES).await,
            Database::Postgres { .. } => self.number(TABLE_BYTES).await,
        }
    }

    /// Counts the records one by one.
    pub(crate) async fn rows(&self) -> Result<u64, BenchError> {
        self.number("select count(*) from ibid_record").await
    }

    /// Runs a query that returns one number.
    pub(crate) async fn number(&self, sql: &str) -> Result<u64, BenchError> {
        match self {
            Database::Sqlite { path, .. } => {
                let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
                Ok(connection.query_row(sql, [], |row| row.get::<_, i64>(0))?.cast_unsigned())
            }
            Database::Postgres { client, .. } => {
                let messages = client.simple_query(sql).await?;
                let value = messages.iter().find_map(|message| match message {
                    SimpleQueryMessage::Row(row) => row.get(0),
                    _ => None,
                });
                Ok(value.ok_or("a query has no result")?.parse()?)
            }
        }
    }

    /// Runs statements on PostgreSQL.
    pub(crate) async fn execute(&self, sql: &str) -> Result<(), BenchError> {
        let Database::Postgres { client, .. } = self else { return Err("this is not PostgreSQL".into()) };
        client.simple_query(sql).await?;
        Ok(())
    }

    /// Returns whether it is empty and ends with this handle.
    pub(crate) fn is_temporary(&self) -> bool {
        match self {
            Database::Sqlite { _folder, .. } => _folder.is_some(),
            Database::Postgres { server, .. } => server.is_some(),
        }
    }

    /// Returns the name of its kind.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Database::Sqlite { .. } => "sqlite",
            Database::Postgres { .. } => "postgres",
        }
    }
}

async fn connect(url: &str) -> Result<Box<Client>, BenchError> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(Box::new(client))
}

const FILE_BYTES: &str = "select page_count * page_size from pragma_page_count, pragma_page_size";

const TABLE_BYTES: &str = "select coalesce(sum(pg_total_relation_size(c.oid)), 0)::int8
  from pg_class c where c.relkind = 'r' and c.relname like 'ibid\\_%'";

/// Settings of the PostgreSQL server of all benchmarks, as docs/operate/sizing.md asks for: tables and indexes fit into the
/// buffers, and no checkpoint comes within a run, because the page images after one would be most of the log.
pub(crate) const SERVER_SETTINGS: &[(&str, &str)] =
    &[("shared_buffers", "2GB"), ("max_wal_size", "8GB"), ("checkpoint_timeout", "30min")];
