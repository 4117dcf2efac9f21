//! Opening: checks that the server takes writes and keeps commits, and that ibid's tables are there.

use std::sync::atomic::Ordering;
use std::time::Instant;

use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use super::connection::PostgresConnection;
use super::target::PostgresTarget;
use super::{checkup, migrate};
use crate::store::checkup::Pooler;

/// A store that could not be opened. No message contains a password or a user's name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostgresOpenError {
    /// The URL cannot be parsed.
    #[error(
        "not the URL of a PostgreSQL database: expected `postgres://user@host:port/database`; special characters in a \
         password are written as `%40` and the like"
    )]
    BadUrl,
    /// TLS was asked for and cannot be set up.
    #[error("cannot set up TLS to PostgreSQL")]
    Tls {
        /// Cause of the failure.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No server answers, or not yet.
    #[error("cannot reach PostgreSQL at `{display_url}`")]
    Unreachable {
        /// URL of the server, without user and password.
        display_url: String,
        /// Cause of the failure.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server refuses user, password or database.
    #[error("PostgreSQL at `{display_url}` refuses this user, password or database")]
    Refused {
        /// URL of the server, without user and password.
        display_url: String,
        /// Message of the server.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server takes no writes.
    #[error("PostgreSQL at `{display_url}` is a replica or read-only; ibid has to write")]
    ReadOnly {
        /// URL of the server, without user and password.
        display_url: String,
    },
    /// The server may lose commits.
    #[error("PostgreSQL at `{display_url}` runs with `{setting} = {value}`, so that a commit may be lost")]
    WeakDurability {
        /// URL of the server, without user and password.
        display_url: String,
        /// Name of the setting.
        setting: &'static str,
        /// Value of the setting.
        value: String,
    },
    /// The server is too old.
    #[error("PostgreSQL at `{display_url}` is version {found}; ibid needs {needed} or later")]
    TooOld {
        /// URL of the server, without user and password.
        display_url: String,
        /// Major version of the server.
        found: i64,
        /// Oldest major version that ibid supports.
        needed: i64,
    },
    /// A later ibid changed the tables, so that this one cannot use them.
    #[error(
        "the schema at `{display_url}` is number {found}, which excludes programs that know only {known}; use a later ibid"
    )]
    FromTheFuture {
        /// URL of the server, without user and password.
        display_url: String,
        /// Step of the schema.
        found: u32,
        /// Newest step that this program knows.
        known: u32,
    },
    /// The tables are missing or old, and the options do not allow to create or upgrade them.
    #[error(
        "the schema at `{display_url}` is number {found}, and this ibid needs {known}; run `ibid migrate`"
    )]
    NotMigrated {
        /// URL of the server, without user and password.
        display_url: String,
        /// Step of the schema; zero if there is none.
        found: u32,
        /// Newest step that this program knows.
        known: u32,
    },
    /// The tables are those of a build from before the first release.
    #[error(
        "the tables at `{display_url}` were made by a build of ibid from before its first release, whose format is not read any \
         more; drop its tables (`ibid_…`) or use another database or schema"
    )]
    EarlierBuild {
        /// URL of the server, without user and password.
        display_url: String,
    },
    /// A step with this number was taken, but it is not the one that this program knows.
    #[error("migration {number} at `{display_url}` is not the one that this ibid knows")]
    Altered {
        /// URL of the server, without user and password.
        display_url: String,
        /// Number of the step.
        number: u32,
    },
    /// Any other failure of the server.
    #[error("cannot use PostgreSQL at `{display_url}`")]
    Failed {
        /// URL of the server, without user and password.
        display_url: String,
        /// Cause of the failure.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl PostgresOpenError {
    /// Returns whether waiting does not help.
    pub(super) fn is_lasting(&self) -> bool {
        // A replica may be promoted at any moment, and another server may answer by then.
        !matches!(self, PostgresOpenError::Unreachable { .. } | PostgresOpenError::ReadOnly { .. })
    }
}

/// Checks that the server takes writes and keeps commits. Every new connection is checked, because after a failover another
/// server answers, and once a minute each that is in use, because a reload can change the settings of a running server.
pub(super) async fn check(
    target: &PostgresTarget,
    connection: &PostgresConnection,
) -> Result<(), PostgresOpenError> {
    let failed = |error| open_error(target, error);
    let rows = connection.query_once(include_str!("sql/look.sql"), &[]).await.map_err(failed)?;
    // The query has no source of rows, so it returns exactly one.
    let row = rows.first().expect("one row");
    let text = |column: usize| row.try_get::<_, String>(column).map_err(failed);
    let version = row.try_get::<_, i64>(0).map_err(failed)? / 10_000;
    if version < VERSION_MIN {
        return Err(PostgresOpenError::TooOld {
            display_url: target.display_url(),
            found: version,
            needed: VERSION_MIN,
        });
    }
    if row.try_get::<_, bool>(1).map_err(failed)? {
        return Err(PostgresOpenError::ReadOnly { display_url: target.display_url() });
    }
    connection.set_has_settings(row.try_get(5).map_err(failed)?);
    connection.set_checked_at(Instant::now());
    let (fsync, commit, standbys) = (text(2)?, text(3)?, text(4)?);
    target.note_commit_setting(&commit);
    let weak = |setting, value| {
        Err(PostgresOpenError::WeakDurability { display_url: target.display_url(), setting, value })
    };
    match target.options.accept_weak_durability {
        true => Ok(()),
        false if is_weak_fsync(&fsync) => weak("fsync", fsync),
        false if is_weak_commit(&commit, &standbys) => weak("synchronous_commit", commit),
        false => Ok(()),
    }
}

/// Returns whether a commit may be lost with this `fsync`.
pub(super) fn is_weak_fsync(fsync: &str) -> bool {
    fsync != "on"
}

/// Returns whether a commit may be lost with this `synchronous_commit` and these `synchronous_standby_names`.
pub(super) fn is_weak_commit(commit: &str, standbys: &str) -> bool {
    match commit {
        "off" => true,
        // Without synchronous standbys both are as good as `on`; with them a failover may lose reported commits.
        "local" | "remote_write" => !standbys.is_empty(),
        _ => false,
    }
}

/// Creates or upgrades the tables where the options allow it, and looks for a pooler that mixes up prepared statements.
pub(super) async fn prepare(target: &PostgresTarget) -> Result<(), PostgresOpenError> {
    let connection = target.connect().await?;
    let applied = migrate::read_schema(target, &connection).await?;
    let (found, known) = (applied.step, migrate::newest_known_step());
    if !applied.is_usable(known) {
        let may_change = if found == 0 { target.options.migrate } else { target.options.upgrade };
        if !may_change {
            return Err(PostgresOpenError::NotMigrated { display_url: target.display_url(), found, known });
        }
        migrate::run(target, &connection).await?;
    }
    if target.options.prepare {
        let pooler = checkup::pooler(target, &connection).await;
        if pooler.map_err(|error| open_error(target, error))? == Pooler::MixesStatements {
            tracing::warn!("a pooler mixes up prepared statements: they are not used (set `prepare=false`)");
            target.prepares.store(false, Ordering::SeqCst);
        }
    }
    Ok(())
}

/// Returns the step of the schema; zero if there is none.
pub(super) async fn schema(target: &PostgresTarget) -> Result<u32, PostgresOpenError> {
    let connection = target.connect().await?;
    migrate::read_schema(target, &connection).await.map(|applied| applied.step)
}

/// Returns the error for a connection that failed.
pub(super) fn unreachable(target: &PostgresTarget, error: Error) -> PostgresOpenError {
    let display_url = target.display_url();
    let refused = [
        SqlState::INVALID_PASSWORD,
        SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
        SqlState::UNDEFINED_DATABASE,
        SqlState::INSUFFICIENT_PRIVILEGE,
    ];
    match error.code() {
        Some(code) if refused.contains(code) => {
            PostgresOpenError::Refused { display_url, source: error.into() }
        }
        _ => PostgresOpenError::Unreachable { display_url, source: error.into() },
    }
}

/// Returns the error for a statement that failed while opening.
pub(super) fn open_error(target: &PostgresTarget, error: Error) -> PostgresOpenError {
    if error.is_closed() || super::error::scope_of(&error) == super::error::PostgresErrorScope::Moment {
        return unreachable(target, error);
    }
    PostgresOpenError::Failed { display_url: target.display_url(), source: error.into() }
}

/// The oldest major version that the PostgreSQL project still maintains.
pub(super) const VERSION_MIN: i64 = 14;
