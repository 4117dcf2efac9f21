//! Opening: checks that the server takes writes and keeps commits, and that ibid's tables are there.

use mysql_async::Error;

use super::connection::{MysqlConnection, ServerFacts, Variables};
use super::error::{self, MysqlErrorScope};
use super::migrate;
use super::row::DbRow;
use super::target::MysqlTarget;

/// A store that could not be opened. No message contains a password or a user's name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MysqlOpenError {
    /// The URL cannot be parsed.
    #[error(
        "not the URL of a MySQL or MariaDB database: expected `mysql://user@host:port/database`; special characters in a \
         password are written as `%40` and the like"
    )]
    BadUrl,
    /// TLS was asked for and cannot be set up.
    #[error("cannot set up TLS to MySQL")]
    Tls {
        /// Cause of the failure.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No server answers, or not yet.
    #[error("cannot reach MySQL at `{display_url}`")]
    Unreachable {
        /// URL of the server, without user and password.
        display_url: String,
        /// Cause of the failure.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server refuses user, password or database.
    #[error("MySQL at `{display_url}` refuses this user, password or database")]
    Refused {
        /// URL of the server, without user and password.
        display_url: String,
        /// Message of the server.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server takes no writes.
    #[error("MySQL at `{display_url}` is a replica or read-only; ibid has to write")]
    ReadOnly {
        /// URL of the server, without user and password.
        display_url: String,
    },
    /// The server is a node of a Galera cluster.
    #[error(
        "MySQL at `{display_url}` is a node of a Galera cluster (`wsrep_on` or `wsrep_provider` is set): its nodes take no row locks \
         from each other, so two of them could run one key"
    )]
    Galera {
        /// URL of the server, without user and password.
        display_url: String,
    },
    /// The server logs statements instead of rows.
    #[error(
        "MySQL at `{display_url}` runs with `binlog_format = STATEMENT`, which refuses the isolation level that ibid needs; set it \
         to `ROW`"
    )]
    StatementLog {
        /// URL of the server, without user and password.
        display_url: String,
    },
    /// A table of ibid has an engine without transactions.
    #[error("the table `{table}` at `{display_url}` has the engine `{engine}`; ibid needs InnoDB")]
    Engine {
        /// URL of the server, without user and password.
        display_url: String,
        /// Name of the table.
        table: String,
        /// Engine of the table.
        engine: String,
    },
    /// The server may lose commits.
    #[error("MySQL at `{display_url}` runs with `{setting} = {value}`, so that a commit may be lost")]
    WeakDurability {
        /// URL of the server, without user and password.
        display_url: String,
        /// Name of the setting.
        setting: &'static str,
        /// Value of the setting.
        value: String,
    },
    /// The server is too old.
    #[error("the server at `{display_url}` is {found}; ibid needs {needed} or later")]
    TooOld {
        /// URL of the server, without user and password.
        display_url: String,
        /// Name and version of the server.
        found: String,
        /// Oldest version that ibid supports.
        needed: &'static str,
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
    /// A step with this number was taken, but it is not the one that this program knows.
    #[error("migration {number} at `{display_url}` is not the one that this ibid knows")]
    Altered {
        /// URL of the server, without user and password.
        display_url: String,
        /// Number of the step.
        number: u32,
    },
    /// Any other failure of the server.
    #[error("cannot use MySQL at `{display_url}`")]
    Failed {
        /// URL of the server, without user and password.
        display_url: String,
        /// Cause of the failure.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl MysqlOpenError {
    /// Returns whether waiting does not help.
    pub(super) fn is_lasting(&self) -> bool {
        // A replica may be promoted at any moment, and another server may answer by then.
        !matches!(self, MysqlOpenError::Unreachable { .. } | MysqlOpenError::ReadOnly { .. })
    }
}

/// Checks that the server takes writes and keeps commits, and sets up the session. Every new connection is checked, because
/// after a failover another server answers.
pub(super) async fn check(
    target: &MysqlTarget,
    connection: &mut MysqlConnection,
) -> Result<(), MysqlOpenError> {
    let variables = variables(connection).await.map_err(|error| open_error(target, error))?;
    let server = MysqlVariables(&variables);
    connection.server = server.facts();
    let display_url = || target.display_url();
    if let Some(needed) = server.needs() {
        return Err(MysqlOpenError::TooOld { display_url: display_url(), found: server.software(), needed });
    }
    if server.is_galera() {
        return Err(MysqlOpenError::Galera { display_url: display_url() });
    }
    let follows = follows(connection).await.map_err(|error| open_error(target, error))?;
    // If this user may not see it, `read_only` alone decides.
    if server.is_read_only() || follows == Some(true) {
        return Err(MysqlOpenError::ReadOnly { display_url: display_url() });
    }
    if server.logs_statements() {
        return Err(MysqlOpenError::StatementLog { display_url: display_url() });
    }
    let weak = server.durability().into_iter().find(|(_, _, is_weak)| *is_weak);
    if let Some((setting, value, _)) = weak.filter(|_| !target.options.accept_weak_durability) {
        return Err(MysqlOpenError::WeakDurability { display_url: display_url(), setting, value });
    }
    set_up(connection).await.map_err(|error| open_error(target, error))
}

/// Gives the session the settings that every statement relies on, whatever the server's defaults are.
pub(super) async fn set_up(connection: &mut MysqlConnection) -> Result<(), Error> {
    let own = if connection.server.is_mariadb { FOR_MARIADB } else { FOR_MYSQL };
    connection.run(&format!("{};{own}", include_str!("sql/session.sql"))).await.map(drop)
}

/// The variables of a server that ibid looks at.
pub(super) struct MysqlVariables<'v>(pub(super) &'v Variables);

impl MysqlVariables<'_> {
    fn get(&self, name: &str) -> &str {
        self.0.get(name).map(String::as_str).unwrap_or_default()
    }

    fn is_on(&self, name: &str) -> bool {
        matches!(self.get(name), "ON" | "1")
    }

    pub(super) fn facts(&self) -> ServerFacts {
        let packet_max = self.get("max_allowed_packet").parse().unwrap_or(PACKET_MAX_DEFAULT);
        ServerFacts { is_mariadb: self.is_mariadb(), packet_max }
    }

    pub(super) fn is_mariadb(&self) -> bool {
        self.get("version").contains("MariaDB") || self.get("version_comment").contains("MariaDB")
    }

    pub(super) fn software(&self) -> String {
        let name = if self.is_mariadb() { "MariaDB" } else { "MySQL" };
        let version = self.get("version");
        format!("{name} {}", version.split('-').next().unwrap_or(version))
    }

    /// Returns the oldest version that ibid supports, if this one is older.
    pub(super) fn needs(&self) -> Option<&'static str> {
        let mut parts = self.get("version").split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
        let mut next = || parts.next().unwrap_or(0);
        let version = (next(), next(), next());
        let (least, text) =
            if self.is_mariadb() { ((10, 6, 0), "MariaDB 10.6") } else { ((8, 0, 22), "MySQL 8.0.22") };
        (version < least).then_some(text)
    }

    /// Returns whether the server is, or may become, a node of a Galera cluster. On Percona XtraDB Cluster 8 only sessions have
    /// `wsrep_on`, so the global variables show nothing but the provider.
    pub(super) fn is_galera(&self) -> bool {
        self.is_on("wsrep_on") || !matches!(self.get("wsrep_provider"), "" | "none")
    }

    /// Returns whether the server takes no writes of ibid. Newer versions of MariaDB have further values of `read_only` besides `ON`.
    pub(super) fn is_read_only(&self) -> bool {
        let names = ["read_only", "super_read_only", "innodb_read_only"];
        names.into_iter().any(|name| !matches!(self.get(name), "" | "OFF" | "0"))
    }

    pub(super) fn logs_statements(&self) -> bool {
        self.is_on("log_bin") && self.get("binlog_format") == "STATEMENT"
    }

    /// Returns the settings that a commit's durability depends on: name, value, and whether a commit may be lost with it.
    pub(super) fn durability(&self) -> Vec<(&'static str, String, bool)> {
        let flush = "innodb_flush_log_at_trx_commit";
        let mut settings = vec![(flush, self.get(flush).to_owned(), self.get(flush) != "1")];
        if self.is_on("log_bin") {
            // After a crash, InnoDB follows the binary log: a commit that is not in it is rolled back.
            settings.push((
                "sync_binlog",
                self.get("sync_binlog").to_owned(),
                self.get("sync_binlog") != "1",
            ));
        }
        settings
    }
}

/// Reads the variables. A server does not list those that it does not have.
pub(super) async fn variables(connection: &mut MysqlConnection) -> Result<Variables, Error> {
    let rows = connection.run(include_str!("sql/variables.sql")).await?;
    Ok(rows.iter().map(|row| (text(row, 0).to_lowercase(), text(row, 1))).collect())
}

/// Returns whether the server follows another one; `None` if this user may not ask.
pub(super) async fn follows(connection: &mut MysqlConnection) -> Result<Option<bool>, Error> {
    // MariaDB would show only the connection without a name.
    let all = if connection.server.is_mariadb { "all replicas" } else { "replica" };
    match connection.run(&format!("show {all} status")).await {
        Ok(rows) => Ok(Some(!rows.is_empty())),
        Err(error) if error::is_forbidden(&error) => connection.recover().await.map(|()| None),
        Err(error) => Err(error),
    }
}

/// Creates or upgrades the tables where the options allow it, and checks their engine.
pub(super) async fn prepare(target: &MysqlTarget) -> Result<(), MysqlOpenError> {
    let mut connection = target.connect().await?;
    let applied = migrate::read_schema(target, &mut connection).await?;
    let (found, known) = (applied.step, migrate::newest_known_step());
    if !applied.is_usable(known) {
        let may_change = if found == 0 { target.options.migrate } else { target.options.upgrade };
        if !may_change {
            return Err(MysqlOpenError::NotMigrated { display_url: target.display_url(), found, known });
        }
        migrate::run(target, &mut connection).await?;
    }
    match other_engine(&mut connection).await.map_err(|error| open_error(target, error))? {
        Some((table, engine)) => {
            Err(MysqlOpenError::Engine { display_url: target.display_url(), table, engine })
        }
        None => Ok(()),
    }
}

/// Returns a table of ibid's that is not InnoDB's, with its engine.
pub(super) async fn other_engine(
    connection: &mut MysqlConnection,
) -> Result<Option<(String, String)>, Error> {
    let rows = connection.run(include_str!("sql/engines.sql")).await?;
    Ok(rows.first().map(|row| (text(row, 0), text(row, 1))))
}

/// Reads a column as text that is shown or compared; empty if it is null.
fn text(row: &DbRow, column: usize) -> String {
    match row.get(column) {
        Some(mysql_async::Value::Bytes(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    }
}

/// Returns the step of the schema; zero if there is none.
pub(super) async fn schema(target: &MysqlTarget) -> Result<u32, MysqlOpenError> {
    let mut connection = target.connect().await?;
    migrate::read_schema(target, &mut connection).await.map(|applied| applied.step)
}

/// Returns the error for a connection that failed.
pub(super) fn unreachable(target: &MysqlTarget, error: Error) -> MysqlOpenError {
    let display_url = target.display_url();
    match error::is_refusal(&error) {
        true => MysqlOpenError::Refused { display_url, source: error.into() },
        false => MysqlOpenError::Unreachable { display_url, source: error.into() },
    }
}

/// Returns the error for a statement that failed while opening.
pub(super) fn open_error(target: &MysqlTarget, error: Error) -> MysqlOpenError {
    match error::scope_of(&error) {
        MysqlErrorScope::Moment => unreachable(target, error),
        _ => MysqlOpenError::Failed { display_url: target.display_url(), source: error.into() },
    }
}

/// MariaDB ends a transaction whose process stopped between two statements, so that its locks do not stay.
const FOR_MARIADB: &str = "set session idle_transaction_timeout = 10";

/// Statistics are read as they are, not as they were a day ago.
const FOR_MYSQL: &str = "set session information_schema_stats_expiry = 0";

/// The server's default, for one that does not tell.
const PACKET_MAX_DEFAULT: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> Variables {
        pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    #[test]
    fn versions_are_compared_by_product() {
        let needs =
            |version: &str| MysqlVariables(&variables(&[("version", version)])).needs().map(str::to_owned);
        for (version, needed) in [
            ("10.11.19-MariaDB-0+deb12u1-log", None),
            ("10.5.29-MariaDB", Some("MariaDB 10.6")),
            ("11.4.2-MariaDB", None),
            ("8.0.21", Some("MySQL 8.0.22")),
            ("8.4.3-log", None),
            ("9.1.0", None),
            ("5.7.44", Some("MySQL 8.0.22")),
        ] {
            assert_eq!(needs(version).as_deref(), needed, "{version}");
        }
        let server = variables(&[("version", "8.0.40-31")]);
        assert_eq!(MysqlVariables(&server).software(), "MySQL 8.0.40");
    }

    #[test]
    fn a_cluster_node_is_known_by_its_global_variables() {
        for (pairs, is_node) in [
            (&[][..], false),
            // MariaDB without a cluster.
            (&[("wsrep_on", "OFF"), ("wsrep_provider", "none")], false),
            (&[("wsrep_on", "ON"), ("wsrep_provider", "none")], true),
            (&[("wsrep_provider", "")], false),
            // Percona XtraDB Cluster 8 lists no global `wsrep_on`.
            (&[("wsrep_provider", "/usr/lib/galera4/libgalera_smm.so")], true),
        ] {
            assert_eq!(MysqlVariables(&variables(pairs)).is_galera(), is_node, "{pairs:?}");
        }
    }

    #[test]
    fn a_server_takes_writes_only_with_read_only_off() {
        for (value, is_read_only) in [
            ("OFF", false),
            ("0", false),
            ("", false),
            ("ON", true),
            ("1", true),
            ("NO_LOCK", true),
            ("NO_LOCK_NO_ADMIN", true),
        ] {
            for name in ["read_only", "super_read_only", "innodb_read_only"] {
                let server = variables(&[(name, value)]);
                assert_eq!(MysqlVariables(&server).is_read_only(), is_read_only, "{name} = {value}");
            }
        }
    }

    #[test]
    fn a_commit_is_durable_with_both_flushes() {
        let weak = |pairs: &[(&str, &str)]| {
            let variables = variables(pairs);
            MysqlVariables(&variables)
                .durability()
                .into_iter()
                .filter(|(_, _, is_weak)| *is_weak)
                .map(|(name, ..)| name)
                .collect::<Vec<_>>()
        };
        let flush = ("innodb_flush_log_at_trx_commit", "1");
        assert_eq!(weak(&[flush, ("log_bin", "ON"), ("sync_binlog", "1")]), [""; 0]);
        assert_eq!(
            weak(&[flush, ("log_bin", "OFF"), ("sync_binlog", "0")]),
            [""; 0],
            "there is no binary log"
        );
        assert_eq!(weak(&[flush, ("log_bin", "ON"), ("sync_binlog", "1000")]), ["sync_binlog"]);
        assert_eq!(weak(&[("innodb_flush_log_at_trx_commit", "2")]), ["innodb_flush_log_at_trx_commit"]);
    }
}
