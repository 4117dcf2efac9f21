//! Where the tables live, by URL.

use std::fmt;
use std::path::PathBuf;

/// Where the tables live.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// On a server, by its whole URL.
    Postgres(String),
    /// In one file.
    Sqlite(PathBuf),
}

/// A URL that names no database. It is not repeated: it may hold a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be `sqlite:PATH` or `postgres://…`")]
pub struct BadStoreUrl;

impl StoreUrl {
    /// Reads a URL.
    pub fn parse(text: &str) -> Result<StoreUrl, BadStoreUrl> {
        match text.split_once(':') {
            Some(("postgres" | "postgresql", rest)) if rest.starts_with("//") => {
                Ok(StoreUrl::Postgres(text.to_owned()))
            }
            Some(("sqlite", rest)) => {
                let path = rest.strip_prefix("//").unwrap_or(rest);
                let is_file = !path.is_empty() && !path.contains('?') && path != ":memory:";
                is_file.then(|| StoreUrl::Sqlite(path.into())).ok_or(BadStoreUrl)
            }
            _ => Err(BadStoreUrl),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreUrl::Postgres(_) => f.write_str("postgres://…"),
            StoreUrl::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_server_or_a_file_and_never_shows_a_password() {
        assert_eq!(StoreUrl::parse("sqlite:a.db"), Ok(StoreUrl::Sqlite("a.db".into())));
        assert_eq!(StoreUrl::parse("sqlite:///tmp/a.db"), Ok(StoreUrl::Sqlite("/tmp/a.db".into())));
        let url = StoreUrl::parse("postgres://a:hunter2@b/c").unwrap();
        assert!(!format!("{url:?}").contains("hunter2"));
        assert!(StoreUrl::parse("postgresql://b").is_ok());
        for text in ["", "a.db", "sqlite:", "sqlite::memory:", "sqlite:a?b", "mysql://a", "postgres:a"] {
            assert_eq!(StoreUrl::parse(text), Err(BadStoreUrl), "{text}");
        }
    }
}
