//! Opens the store that a URL names, and advises what to do if that fails.

use std::sync::Arc;

use ibid::store::clock::Clock;
use ibid::store::memory::MemoryStore;
#[cfg(feature = "mysql")]
use ibid::store::mysql::{MysqlOpenError, MysqlOptions, MysqlStore};
use ibid::store::postgres::{PostgresOpenError as PostgresError, PostgresOptions, PostgresStore};
#[cfg(feature = "redis")]
use ibid::store::redis::{RedisOpenError, RedisOptions, RedisStore};
use ibid::store::sqlite::{SqliteOpenError, SqliteOptions, SqliteStore};
use ibid_core::store::Store;

#[cfg(feature = "dynamodb")]
pub(crate) mod dynamodb;

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
            Ok(Arc::new(store.map_err(|error| cannot_open(url, &error))?))
        }
        StoreUrl::Postgres(address) => {
            let options = PostgresOptions::default().with(|options| options.migrate = create);
            let store = PostgresStore::open(address.reveal(), options).await;
            Ok(Arc::new(store.map_err(|error| cannot_open(url, &error))?))
        }
        #[cfg(feature = "mysql")]
        StoreUrl::Mysql(address) => {
            let options = MysqlOptions::default().with(|options| options.migrate = create);
            let store = MysqlStore::open(address.reveal(), options).await;
            Ok(Arc::new(store.map_err(|error| cannot_open(url, &error))?))
        }
        #[cfg(feature = "dynamodb")]
        StoreUrl::Dynamodb(text) => dynamodb::open(url, text, create).await,
        #[cfg(feature = "redis")]
        StoreUrl::Redis(address) => {
            let options = RedisOptions::default().with(|options| options.create = create);
            let store = RedisStore::open(address.reveal(), options).await;
            Ok(Arc::new(store.map_err(|error| cannot_open(url, &error))?))
        }
    }
}

/// Explains why a store can't be opened, with advice.
pub(crate) fn cannot_open(url: &StoreUrl, error: &impl OpenHint) -> Failure {
    Failure::world(format!("cannot open the store at `{url}`")).because_of(error).hint(error.hint())
}

/// An error of opening a store, and the advice for it.
pub(crate) trait OpenHint: std::error::Error + 'static {
    /// Returns what to do about the error.
    fn hint(&self) -> &'static str;
}

#[cfg(feature = "redis")]
impl OpenHint for RedisOpenError {
    fn hint(&self) -> &'static str {
        match self {
            RedisOpenError::Unreachable { .. } => "check host, port, TLS and that the server runs",
            RedisOpenError::Tls { .. } => {
                "name a file of certificates to trust with `sslrootcert=PATH` in the URL"
            }
            RedisOpenError::Refused { .. } => "check user and password, and that the user may run scripts",
            RedisOpenError::TooOld { .. } => "use Redis 7 or later",
            RedisOpenError::Replica { .. } => "name the primary",
            RedisOpenError::SeveralServers { .. } => "name one server, or servers of one cluster",
            RedisOpenError::Evicts { .. } => {
                "set `maxmemory-policy noeviction`: a cache's server can't be the store"
            }
            RedisOpenError::WeakDurability { .. } => {
                "use one server with `appendonly yes` and `appendfsync always`, or accept the loss with `store.durability = \
                 \"weak\"` or `?durability=weak` in the URL"
            }
            RedisOpenError::Empty { .. } => "name the server that the gateway uses with `--store`",
            RedisOpenError::OtherLayout { .. } => "use the ibid that wrote them, or a newer one",
            _ => "check that this user may run scripts and write keys that begin with `ibid`",
        }
    }
}

impl OpenHint for PostgresError {
    fn hint(&self) -> &'static str {
        match self {
            PostgresError::Unreachable { .. } => "check host, port, TLS and that the server runs",
            PostgresError::Tls { .. } => {
                "name a file of certificates to trust with `sslrootcert=PATH` in the URL"
            }
            PostgresError::Refused { .. } => "check user, password and the name of the database",
            PostgresError::ReadOnly { .. } => {
                "name the primary, or all hosts: `postgres://USER@A,B/DATABASE`"
            }
            PostgresError::WeakDurability { .. } => {
                "change the setting, or accept the loss with `store.durability = \"weak\"` or `?durability=weak` in the URL"
            }
            PostgresError::TooOld { .. } => "use a PostgreSQL version that is still supported",
            PostgresError::FromTheFuture { .. } => "use the ibid that upgraded it, or a newer one",
            PostgresError::NotMigrated { found: 0, .. } => "run `ibid migrate`, or start the gateway once",
            PostgresError::NotMigrated { .. } => "run `ibid migrate`",
            PostgresError::Altered { .. } => {
                "another build of ibid made these tables: use that one, or an empty database"
            }
            _ => {
                "check that this user may make tables, or let another run what `ibid migrate --print` prints"
            }
        }
    }
}

#[cfg(feature = "mysql")]
impl OpenHint for MysqlOpenError {
    fn hint(&self) -> &'static str {
        match self {
            MysqlOpenError::Unreachable { .. } => "check host, port, TLS and that the server runs",
            MysqlOpenError::Tls { .. } => {
                "name a file of certificates to trust with `ssl-ca=PATH` in the URL"
            }
            MysqlOpenError::Refused { .. } => "check user, password and the name of the database",
            MysqlOpenError::ReadOnly { .. } => "name the primary",
            MysqlOpenError::Galera { .. } => {
                "use a server that is not in a cluster, with replicas for a failover"
            }
            MysqlOpenError::StatementLog { .. } => "set `binlog_format = ROW` on the server",
            MysqlOpenError::Engine { .. } => "run `alter table … engine = InnoDB`",
            MysqlOpenError::WeakDurability { .. } => {
                "change the setting, or accept the loss with `store.durability = \"weak\"` or `?durability=weak` in the URL"
            }
            MysqlOpenError::TooOld { .. } => "use a version that is still supported",
            MysqlOpenError::FromTheFuture { .. } => "use the ibid that upgraded it, or a newer one",
            MysqlOpenError::NotMigrated { found: 0, .. } => "run `ibid migrate`, or start the gateway once",
            MysqlOpenError::NotMigrated { .. } => "run `ibid migrate`",
            MysqlOpenError::Altered { .. } => {
                "another build of ibid made these tables: use that one, or an empty database"
            }
            _ => {
                "check that this user may make tables and views, or let another run what `ibid migrate --print` prints"
            }
        }
    }
}

impl OpenHint for SqliteOpenError {
    fn hint(&self) -> &'static str {
        match self {
            SqliteOpenError::Missing { .. } | SqliteOpenError::NoTables { .. } => {
                "name the database that the gateway uses with `--store`"
            }
            SqliteOpenError::NotMigrated { .. } => {
                "run `ibid migrate`; until it is done, nothing else can write the file"
            }
            SqliteOpenError::NotADatabase { .. } => "give ibid a separate file with `--store sqlite:PATH`",
            SqliteOpenError::FromTheFuture { .. } => "use the ibid that upgraded it, or a newer one",
            SqliteOpenError::ReadOnly { .. } => {
                "ibid writes before every request: let it write the file and its folder"
            }
            SqliteOpenError::OldSqlite { .. } => "build with the bundled SQLite",
            _ => "check that the folder exists and may be written",
        }
    }
}
