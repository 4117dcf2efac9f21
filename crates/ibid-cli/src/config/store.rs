//! The URL of a store. A URL with a password is never shown: not in a message, a log line or `{:?}`.

use std::fmt;
use std::path::PathBuf;

use ibid::store::postgres::PostgresStore;
use ibid_core::store::Tiers;

use crate::output::Failure;

/// The URL of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreUrl {
    /// A SQLite database in one file.
    Sqlite(PathBuf),
    /// A PostgreSQL database on a server.
    Postgres(PostgresUrl),
    /// Memory, until the process ends.
    Memory,
}

impl StoreUrl {
    /// Returns what a store of this kind can do.
    pub(crate) fn tiers(&self) -> Tiers {
        match self {
            StoreUrl::Sqlite(_) | StoreUrl::Postgres(_) => Tiers::ALL,
            StoreUrl::Memory => Tiers { sql: false, ..Tiers::ALL },
        }
    }

    /// Parses the URL of a store. Messages never repeat the URL, because it may contain a password.
    pub(crate) fn parse(text: &str) -> Result<StoreUrl, Failure> {
        let form = "use `sqlite:PATH`, `postgres://USER@HOST/DATABASE`, or `memory:` for tests";
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
            "postgres" | "postgresql" => {
                let shown = PostgresStore::place_of(text).map_err(|error| {
                    Failure::usage("is not the URL of a PostgreSQL database").because_of(&error)
                })?;
                Ok(StoreUrl::Postgres(PostgresUrl { full: text.to_owned(), shown }))
            }
            "mysql" | "redis" | "rediss" | "dynamodb" => {
                Err(Failure::usage(format!("names a `{scheme}` store, which is not in this release"))
                    .hint(form))
            }
            _ => Err(Failure::usage("is not the URL of a store").hint(form)),
        }
    }
}

/// The URL of a PostgreSQL database, which may contain a password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PostgresUrl {
    full: String,
    shown: String,
}

impl PostgresUrl {
    /// Returns the complete URL; meant only for opening the store.
    pub(crate) fn reveal(&self) -> &str {
        &self.full
    }
}

impl fmt::Debug for PostgresUrl {
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
            StoreUrl::Postgres(url) => f.write_str(&url.shown),
            StoreUrl::Memory => f.write_str("memory:"),
        }
    }
}
