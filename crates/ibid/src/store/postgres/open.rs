//! Opening: is this a server that we may write to, does it keep what it commits, and are our tables there.

use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use super::connect::{Connection, Place};
use super::migrate;

/// Why a store could not be opened. No message holds a password or a user's name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostgresOpenError {
    /// The URL can't be read.
    #[error(
        "not the URL of a PostgreSQL database: expected `postgres://user@host:port/database`; special characters in a \
         password are written as `%40` and the like"
    )]
    BadUrl,
    /// TLS was asked for and can't be had.
    #[error("cannot set up TLS to PostgreSQL")]
    Tls {
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Nobody answers there, or not yet.
    #[error("cannot reach PostgreSQL at `{place}`")]
    Unreachable {
        /// Where.
        place: String,
        /// Why not.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server does not let us in.
    #[error("PostgreSQL at `{place}` refuses this user, password or database")]
    Refused {
        /// Where.
        place: String,
        /// In the server's words.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// It can only be read.
    #[error("PostgreSQL at `{place}` is a replica or read-only; ibid has to write")]
    ReadOnly {
        /// Where.
        place: String,
    },
    /// Commits may be lost.
    #[error("PostgreSQL at `{place}` runs with `{setting} = {value}`, so that a commit may be lost")]
    WeakDurability {
        /// Where.
        place: String,
        /// Which setting.
        setting: &'static str,
        /// What it is set to.
        value: String,
    },
    /// The server is older than what we use of it.
    #[error("PostgreSQL at `{place}` is version {found}; ibid needs {needed} or later")]
    TooOld {
        /// Where.
        place: String,
        /// Its major version.
        found: i64,
        /// What we need.
        needed: i64,
    },
    /// The tables were made by a later ibid.
    #[error("the schema at `{place}` is number {found}, and this ibid knows up to {known}; use a later ibid")]
    FromTheFuture {
        /// Where.
        place: String,
        /// Its number.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// The tables are not there or old, and we were told not to make them.
    #[error("the schema at `{place}` is number {found}, and this ibid needs {known}; run `ibid migrate`")]
    NotMigrated {
        /// Where.
        place: String,
        /// Its number; zero if there is none.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// A migration with this number was applied, but another one than ours.
    #[error("migration {number} at `{place}` is not the one that this ibid knows")]
    Altered {
        /// Where.
        place: String,
        /// Which.
        number: u32,
    },
    /// What has no variant of its own.
    #[error("cannot use PostgreSQL at `{place}`")]
    Failed {
        /// Where.
        place: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl PostgresOpenError {
    /// Whether waiting won't mend it.
    pub(super) fn is_lasting(&self) -> bool {
        // A replica may be promoted at any moment, and what answers there may be another server by then.
        !matches!(self, PostgresOpenError::Unreachable { .. } | PostgresOpenError::ReadOnly { .. })
    }
}

/// Looks whether the server is one that we may trust with records. Every new connection is checked: after a failover
/// another server answers.
pub(super) async fn check(place: &Place, connection: &Connection) -> Result<(), PostgresOpenError> {
    let failed = |error| self::failed(place, error);
    let rows = connection.query_once(include_str!("sql/look.sql"), &[]).await.map_err(failed)?;
    // The query has no source of rows, so it gives exactly one.
    let row = rows.first().expect("one row");
    let text = |column: usize| row.try_get::<_, String>(column).map_err(failed);
    let version = row.try_get::<_, i64>(0).map_err(failed)? / 10_000;
    if version < VERSION_MIN {
        return Err(PostgresOpenError::TooOld { place: place.shown(), found: version, needed: VERSION_MIN });
    }
    if row.try_get::<_, bool>(1).map_err(failed)? {
        return Err(PostgresOpenError::ReadOnly { place: place.shown() });
    }
    connection.settings(row.try_get(6).map_err(failed)?);
    let (fsync, commit, standbys) = (text(2)?, text(3)?, text(4)?);
    let weak =
        |setting, value| Err(PostgresOpenError::WeakDurability { place: place.shown(), setting, value });
    match place.options.accept_weak_durability {
        true => Ok(()),
        false if is_weak_fsync(&fsync) => weak("fsync", fsync),
        false if is_weak_commit(&commit, &standbys) => weak("synchronous_commit", commit),
        false => Ok(()),
    }
}

/// Whether a commit may be lost with this `fsync`.
pub(super) fn is_weak_fsync(fsync: &str) -> bool {
    fsync != "on"
}

/// Whether a commit may be lost with this `synchronous_commit`, with these `synchronous_standby_names`.
pub(super) fn is_weak_commit(commit: &str, standbys: &str) -> bool {
    match commit {
        "off" => true,
        // Without synchronous standbys both are as good as `on`; with them a failover may lose what was answered.
        "local" | "remote_write" => !standbys.is_empty(),
        _ => false,
    }
}

/// Makes or upgrades the tables, or finds them as they should be.
pub(super) async fn prepare(place: &Place) -> Result<(), PostgresOpenError> {
    let connection = place.connect().await?;
    let (found, known) = (migrate::applied(place, &connection).await?, migrate::KNOWN);
    if found == known {
        return Ok(());
    }
    if !place.options.migrate {
        return Err(PostgresOpenError::NotMigrated { place: place.shown(), found, known });
    }
    migrate::run(place, &connection).await
}

/// The step that the tables are at; zero if there are none.
pub(super) async fn schema(place: &Place) -> Result<u32, PostgresOpenError> {
    let connection = place.connect().await?;
    migrate::applied(place, &connection).await
}

/// Why no connection came about.
pub(super) fn unreachable(place: &Place, error: Error) -> PostgresOpenError {
    let shown = place.shown();
    let refused = [
        SqlState::INVALID_PASSWORD,
        SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
        SqlState::UNDEFINED_DATABASE,
        SqlState::INSUFFICIENT_PRIVILEGE,
    ];
    match error.code() {
        Some(code) if refused.contains(code) => {
            PostgresOpenError::Refused { place: shown, source: error.into() }
        }
        _ => PostgresOpenError::Unreachable { place: shown, source: error.into() },
    }
}

/// A failure that has no variant of its own.
pub(super) fn failed(place: &Place, error: Error) -> PostgresOpenError {
    if error.is_closed() || super::failure::reach(&error) == super::failure::Reach::Moment {
        return unreachable(place, error);
    }
    PostgresOpenError::Failed { place: place.shown(), source: error.into() }
}

/// The oldest version that its makers still mend.
pub(super) const VERSION_MIN: i64 = 14;
