//! The URL of a store. A URL with a password is never shown: not in a message, a log line or `{:?}`.

use std::fmt;
use std::path::PathBuf;

#[cfg(feature = "mysql")]
use ibid::store::mysql::MysqlStore;
use ibid::store::postgres::PostgresStore;
#[cfg(feature = "redis")]
use ibid::store::redis::RedisStore;
use ibid_core::store::Tiers;

use crate::output::Failure;

/// The URL of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreUrl {
    /// A SQLite database in one file.
    Sqlite(PathBuf),
    /// A PostgreSQL database on a server.
    Postgres(ServerUrl),
    /// A MySQL or MariaDB database on a server.
    #[cfg(feature = "mysql")]
    Mysql(ServerUrl),
    /// A DynamoDB table. The URL contains no secret.
    #[cfg(feature = "dynamodb")]
    Dynamodb(String),
    /// A Redis server or cluster.
    #[cfg(feature = "redis")]
    Redis(ServerUrl),
    /// Memory, until the process ends.
    Memory,
}

impl StoreUrl {
    /// Returns what a store of this kind can do.
    pub(crate) fn tiers(&self) -> Tiers {
        match self {
            StoreUrl::Sqlite(_) | StoreUrl::Postgres(_) => Tiers::ALL,
            #[cfg(feature = "mysql")]
            StoreUrl::Mysql(_) => Tiers::ALL,
            // DynamoDB, Redis and memory.
            _ => Tiers { sql: false, ..Tiers::ALL },
        }
    }

    /// Accepts a server that may lose commits, as `durability=weak` in the URL does.
    pub(crate) fn accept_weak_durability(&mut self) {
        let server = match self {
            StoreUrl::Postgres(url) => url,
            #[cfg(feature = "redis")]
            StoreUrl::Redis(url) => url,
            #[cfg(feature = "mysql")]
            StoreUrl::Mysql(url) => url,
            // A file, a table of the service, and memory have no such setting.
            _ => return,
        };
        server.add_parameter("durability=weak");
    }

    /// Parses the URL of a store. Messages never repeat the URL, because it may contain a password.
    pub(crate) fn parse(text: &str) -> Result<StoreUrl, Failure> {
        let form = "use `sqlite:PATH`, `postgres://USER@HOST/DATABASE`, `mysql://USER@HOST/DATABASE`, `dynamodb://TABLE`, \
                    `redis://HOST`, or `memory:` for tests";
        let Some((scheme, rest)) = text.split_once(':') else {
            return Err(Failure::usage("is not the URL of a store").hint(form));
        };
        match scheme {
            "sqlite" => {
                let path = rest.strip_prefix("//").unwrap_or(rest);
                match path {
                    "" => Err(Failure::usage("names no file").hint("write for example `sqlite:ibid.db`")),
                    ":memory:" => {
                        Err(Failure::usage("names no file").hint("write `memory:` for a store in memory"))
                    }
                    _ if path.contains('?') => {
                        Err(Failure::usage("has parameters after `?`, and a `sqlite:` store takes none"))
                    }
                    _ => Ok(StoreUrl::Sqlite(path.into())),
                }
            }
            "memory" if rest.is_empty() => Ok(StoreUrl::Memory),
            "mysql" if !cfg!(feature = "mysql") => Err(lacks(scheme, "mysql")),
            "dynamodb" if !cfg!(feature = "dynamodb") => Err(lacks(scheme, "dynamodb")),
            "redis" | "rediss" if !cfg!(feature = "redis") => Err(lacks(scheme, "redis")),
            "postgres" | "postgresql" => {
                let server =
                    ServerUrl::parse(text, PostgresStore::display_url_of(text), "a PostgreSQL database");
                server.map(StoreUrl::Postgres)
            }
            #[cfg(feature = "mysql")]
            "mysql" => {
                let server =
                    ServerUrl::parse(text, MysqlStore::display_url_of(text), "a MySQL or MariaDB database");
                server.map(StoreUrl::Mysql)
            }
            #[cfg(feature = "dynamodb")]
            "dynamodb" => match ibid_dynamodb::DynamoOptions::from_url(text) {
                Ok(_) => Ok(StoreUrl::Dynamodb(text.to_owned())),
                Err(error) => Err(Failure::usage("is not the URL of a DynamoDB table").because_of(&error)),
            },
            #[cfg(feature = "redis")]
            "redis" | "rediss" => {
                ServerUrl::parse(text, RedisStore::display_url_of(text), "a Redis store").map(StoreUrl::Redis)
            }
            _ => Err(Failure::usage("is not the URL of a store").hint(form)),
        }
    }
}

/// Explains that this build has no store for `scheme`.
pub(super) fn lacks(scheme: &str, feature: &str) -> Failure {
    Failure::usage(format!("names a `{scheme}` store, and this `ibid` was built without it"))
        .hint(format!("build it with `--features {feature}`, or with `all-stores`"))
}

/// The URL of a server, which may contain a password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ServerUrl {
    full: String,
    shown: String,
}

impl ServerUrl {
    /// Makes one of the complete URL and the part that may be shown.
    pub(super) fn new(full: String, shown: String) -> ServerUrl {
        ServerUrl { full, shown }
    }

    /// Makes one of the complete URL of a `kind` of store, and of what that store read as the part that may be shown.
    fn parse<E: std::error::Error + 'static>(
        full: &str,
        shown: Result<String, E>,
        kind: &str,
    ) -> Result<ServerUrl, Failure> {
        let shown =
            shown.map_err(|error| Failure::usage(format!("is not the URL of {kind}")).because_of(&error))?;
        Ok(ServerUrl::new(full.to_owned(), shown))
    }

    /// Returns the complete URL; meant only for connecting.
    pub(crate) fn reveal(&self) -> &str {
        &self.full
    }

    fn add_parameter(&mut self, parameter: &str) {
        let separator = if self.full.contains('?') { '&' } else { '?' };
        self.full.push(separator);
        self.full.push_str(parameter);
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl Default for StoreUrl {
    fn default() -> StoreUrl {
        StoreUrl::Sqlite("ibid.db".into())
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreUrl::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            StoreUrl::Postgres(url) => url.fmt(f),
            #[cfg(feature = "mysql")]
            StoreUrl::Mysql(url) => url.fmt(f),
            #[cfg(feature = "dynamodb")]
            StoreUrl::Dynamodb(url) => f.write_str(url),
            #[cfg(feature = "redis")]
            StoreUrl::Redis(url) => url.fmt(f),
            StoreUrl::Memory => f.write_str("memory:"),
        }
    }
}
