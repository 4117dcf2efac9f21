//! Opens the store that a URL names, and advises what to do if that fails.

use std::sync::Arc;

use ibid::store::clock::Clock;
use ibid::store::memory::MemoryStore;
use ibid::store::postgres::{PostgresOpenError as PostgresError, PostgresOptions, PostgresStore};
use ibid::store::sqlite::{SqliteOpenError, SqliteOptions, SqliteStore};
use ibid_core::store::Store;

use crate::config::StoreUrl;
use crate::output::Failure;

/// Opens a store. With `create`, a missing database and missing tables of ibid are created. Without it, a mistyped name
/// changes nothing.
pub(crate) async fn open_store(url: &StoreUrl, create: bool) -> Result<Arc<dyn Store>, Failure> {
    match url {
        StoreUrl::Memory => Ok(Arc::new(MemoryStore::new(Clock::system()))),
        StoreUrl::Sqlite(path) => {
            let options = SqliteOptions::default().with(|options| options.create = create);
            let store = SqliteStore::open(path, options);
            Ok(Arc::new(store.map_err(|error| cannot_open_sqlite(url, &error))?))
        }
        StoreUrl::Postgres(address) => {
            let options = PostgresOptions::default().with(|options| options.migrate = create);
            let store = PostgresStore::open(address.reveal(), options).await;
            Ok(Arc::new(store.map_err(|error| cannot_open_postgres(url, &error))?))
        }
    }
}

/// Explains why a PostgreSQL store can't be opened, with advice.
pub(crate) fn cannot_open_postgres(url: &StoreUrl, error: &PostgresError) -> Failure {
    let hint = match error {
        PostgresError::Unreachable { .. } => "check host, port, TLS and that the server runs",
        PostgresError::Tls { .. } => {
            "name a file of certificates to trust with `sslrootcert=PATH` in the URL"
        }
        PostgresError::Refused { .. } => "check user, password and the name of the database",
        PostgresError::ReadOnly { .. } => "name the primary, or all hosts: `postgres://USER@A,B/DATABASE`",
        PostgresError::WeakDurability { .. } => {
            "change the setting, or accept the loss with `?accept_weak_durability=true` in the URL"
        }
        PostgresError::TooOld { .. } => "use a PostgreSQL version that is still supported",
        PostgresError::FromTheFuture { .. } => "use the ibid that upgraded it, or a newer one",
        PostgresError::NotMigrated { .. } => "run `ibid migrate`, or start the gateway once",
        PostgresError::Altered { .. } => {
            "another build of ibid made these tables: use that one, or an empty database"
        }
        _ => "check that this user may make tables, or let another run what `ibid migrate --print` prints",
    };
    Failure::world(format!("cannot open the store at `{url}`")).because_of(error).hint(hint)
}

/// Explains why a SQLite store can't be opened, with advice.
pub(crate) fn cannot_open_sqlite(url: &StoreUrl, error: &SqliteOpenError) -> Failure {
    let hint = match error {
        SqliteOpenError::Missing { .. } | SqliteOpenError::NoTables { .. } => {
            "name the database that the gateway uses with `--store`"
        }
        SqliteOpenError::NotADatabase { .. } => "give ibid a file of its own with `--store sqlite:PATH`",
        SqliteOpenError::FromTheFuture { .. } => "use the ibid that upgraded it, or a newer one",
        SqliteOpenError::ReadOnly { .. } => {
            "ibid writes before every request: let it write the file and its folder"
        }
        SqliteOpenError::OldSqlite { .. } => "build with the bundled SQLite",
        _ => "check that the folder exists and may be written",
    };
    Failure::world(format!("cannot open the store at `{url}`")).because_of(error).hint(hint)
}
