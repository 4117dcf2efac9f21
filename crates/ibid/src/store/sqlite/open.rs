//! Opens the file and sets up every connection. `schema` creates and checks the tables.
//!
//! The file may be the application's own. The one lasting setting that we change in it is the journal mode, to WAL:
//! readers and a writer then leave each other alone. A file that we make is also made to shrink. All else is set on our
//! own connections.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::{StoreFile, schema};

/// The error of opening a file as a store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SqliteOpenError {
    /// There is no such file, and the options forbid to create it.
    #[error("there is no database at `{}`", path.display())]
    Missing {
        /// Path of the missing file.
        path: PathBuf,
    },
    /// The file holds something else than a database.
    #[error("`{}` is not a SQLite database", path.display())]
    NotADatabase {
        /// Path of the file.
        path: PathBuf,
    },
    /// The database has no tables of ibid, and the options forbid to create them.
    #[error("`{}` has no tables of ibid", path.display())]
    NoTables {
        /// Path of the file.
        path: PathBuf,
    },
    /// The tables are those of an earlier version, and the options do not allow to upgrade them.
    #[error("`{}` has schema {found}, and this program needs {known}; run `ibid migrate`", path.display())]
    NotMigrated {
        /// Path of the file.
        path: PathBuf,
        /// Schema of the file.
        found: u32,
        /// The newest schema that this program knows.
        known: u32,
    },
    /// A newer program has upgraded the database.
    #[error("`{}` has schema {found}, and this program knows {known}: it needs a newer ibid", path.display())]
    FromTheFuture {
        /// Path of the file.
        path: PathBuf,
        /// Schema of the file.
        found: u32,
        /// The newest schema that this program knows.
        known: u32,
    },
    /// An unreleased build of ibid made the tables, in another format.
    #[error(
        "`{}` was made by an unreleased build of ibid, and no release reads it: start with a new file", path.display()
    )]
    EarlierBuild {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file may be read and not written.
    #[error("`{}` cannot be written", path.display())]
    ReadOnly {
        /// Path of the file.
        path: PathBuf,
    },
    /// The linked SQLite can corrupt a file that two connections use.
    #[error(
        "SQLite {needed} or later is required, found {found}: older versions can lose writes when the WAL restarts"
    )]
    OldSqlite {
        /// The version that is linked.
        found: &'static str,
        /// The first version that will do.
        needed: &'static str,
    },
    /// The file can't be opened, read or prepared.
    #[error("cannot open the database at `{}`", path.display())]
    Failed {
        /// Path of the file.
        path: PathBuf,
        /// Cause of the failure.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Opens the file for writing, and creates ibid's tables in it or upgrades them, as the options allow. Also returns the schema
/// that it found (0: none).
pub(super) fn prepare(file: &StoreFile) -> Result<(Connection, u32), SqliteOpenError> {
    let path = &file.path;
    if rusqlite::version_number() < SQLITE_MIN.0 {
        return Err(SqliteOpenError::OldSqlite { found: rusqlite::version(), needed: SQLITE_MIN.1 });
    }
    if !file.options.create && matches!(path.try_exists(), Ok(false)) {
        return Err(SqliteOpenError::Missing { path: path.clone() });
    }
    if file.options.create {
        make_private(path);
    }
    let failed = |error| open_error(path, error);
    let connection = connect(file).map_err(failed)?;
    // Look before touching: a file that is refused must stay as it is, down to its journal mode.
    let layout = schema::look(file, &connection)?;
    if connection.is_readonly("main").map_err(failed)? {
        return Err(SqliteOpenError::ReadOnly { path: path.clone() });
    }
    shrinkable(&connection).map_err(failed)?;
    enter_wal(file, &connection)?;
    settings(file, &connection).map_err(failed)?;
    schema::migrate(file, &connection)?;
    Ok((connection, layout.step()))
}

/// Creates the file if it does not exist, readable only for its owner: it will hold responses of all tenants.
/// SQLite gives its log the same permissions. A failure here happens again, with its reason, when SQLite opens the file.
fn make_private(path: &Path) {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let _ = options.open(path);
}

/// Opens the file for writing again, after [`prepare`] once did.
pub(super) fn writer(file: &StoreFile) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    // Never created: a file that vanished took records with it, and an empty one would run them again.
    let connection = Connection::open_with_flags(&file.path, flags)?;
    connection.busy_timeout(file.options.busy_timeout)?;
    settings(file, &connection)?;
    Ok(connection)
}

/// Opens the file for reading, after [`prepare`] once did.
pub(super) fn reader(file: &StoreFile) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(&file.path, flags)?;
    connection.busy_timeout(file.options.busy_timeout)?;
    connection.pragma_update(None, "mmap_size", 0)?;
    stable_plans(&connection)?;
    Ok(connection)
}

/// Returns the error of a failure that has no separate variant.
pub(super) fn failure(
    path: &Path,
    error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> SqliteOpenError {
    SqliteOpenError::Failed { path: path.to_owned(), source: error.into() }
}

/// Opens the file and sets nothing lasting.
pub(super) fn connect(file: &StoreFile) -> rusqlite::Result<Connection> {
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    flags.set(OpenFlags::SQLITE_OPEN_CREATE, file.options.create);
    let connection = Connection::open_with_flags(&file.path, flags)?;
    connection.busy_timeout(file.options.busy_timeout)?;
    Ok(connection)
}

/// Lets a file that is still empty give room back later, step by step. In one that has tables this changes nothing: only
/// a whole VACUUM would, and that is its owner's to run.
fn shrinkable(connection: &Connection) -> rusqlite::Result<()> {
    let pages: u32 = connection.query_row("pragma page_count", [], |row| row.get(0))?;
    match pages {
        0 => connection.pragma_update(None, "auto_vacuum", "incremental"),
        _ => Ok(()),
    }
}

/// Two processes that make one file at once refuse each other here without waiting, so we wait ourselves.
fn enter_wal(file: &StoreFile, connection: &Connection) -> Result<(), SqliteOpenError> {
    let until = Instant::now() + file.options.busy_timeout;
    loop {
        let mode: rusqlite::Result<String> =
            connection.query_row("pragma journal_mode = wal", [], |row| row.get(0));
        match mode {
            Ok(mode) if mode == "wal" => return Ok(()),
            Ok(mode) => return Err(failure(&file.path, format!("the journal mode stays `{mode}`"))),
            Err(error) if is_busy(&error) && Instant::now() < until => std::thread::sleep(WAL_RETRY_AFTER),
            Err(error) => return Err(open_error(&file.path, error)),
        }
    }
}

/// Sets up a connection that writes.
pub(super) fn settings(file: &StoreFile, connection: &Connection) -> rusqlite::Result<()> {
    // Each commit is flushed: with NORMAL a power cut takes back commits that were reported.
    connection.pragma_update(None, "synchronous", "full")?;
    // A memory map turns a fault of the disk into a signal, and has amplified corruption elsewhere.
    connection.pragma_update(None, "mmap_size", 0)?;
    connection.pragma_update(None, "temp_store", "memory")?;
    // Enforced by the connection that deletes: without it a purge would leave an application's row, which refers to a
    // record, pointing nowhere.
    connection.pragma_update(None, "foreign_keys", true)?;
    stable_plans(connection)?;
    connection.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?;
    connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    // These two answer with the value, so they are queries.
    connection.pragma_update_and_check(None, "journal_size_limit", LOG_BYTES_KEPT, |_| Ok(()))?;
    if let Some(bytes) = file.options.file_bytes_max {
        let page: u64 = connection.query_row("pragma page_size", [], |row| row.get::<_, u32>(0))?.into();
        let pages = i64::try_from(bytes / page).unwrap_or(i64::MAX);
        connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))?;
    }
    Ok(())
}

/// One plan per statement, whatever is bound. Otherwise SQLite looks at the bound values to see whether a partial index
/// would do, and compiles each statement again for each record: more than half of the writer's time.
fn stable_plans(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(drop)
}

/// Converts an error of SQLite, to the variant that names its cause if there is one.
pub(super) fn open_error(path: &Path, error: rusqlite::Error) -> SqliteOpenError {
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => SqliteOpenError::NotADatabase { path: path.to_owned() },
        Some(ErrorCode::ReadOnly) => SqliteOpenError::ReadOnly { path: path.to_owned() },
        _ => failure(path, error),
    }
}

/// Returns whether another connection holds the lock.
pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Up to 3.51.2 a log that starts over while another connection checkpoints may lose writes.
pub(super) const SQLITE_MIN: (i32, &str) = (3_051_003, "3.51.3");

/// Pages in the log before a commit moves them into the file: 64 MiB. Ids are random, so every batch dirties many
/// pages of their index, and the longer they gather the fewer are moved twice: against 4 or 16 MiB, half as many
/// commits again per second with 250,000 records, and the slowest commit no slower. A quiet moment moves them sooner.
const CHECKPOINT_PAGES: u32 = 16 << 10;

/// Size that the log keeps when it starts over: twice what it should hold, so that it is not cut each time.
pub(super) const LOG_BYTES_KEPT: u32 = 128 << 20;

/// Page cache of the writer: room for the pages that a large group dirties.
///
/// SQLite walks the whole cache at each COMMIT. With 32 MiB that was a fifth of the writer's time per key; pages that are
/// not in the cache come from the system's at a microsecond each.
const WRITER_CACHE_KIB: i64 = 4 << 10;

/// Pause between tries while another process turns on the log.
const WAL_RETRY_AFTER: Duration = Duration::from_millis(5);
