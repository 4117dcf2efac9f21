//! Opening: checks that the server takes writes, keeps what it confirmed, and evicts nothing.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, Value};
use tokio::time::Instant;

use crate::redis_target::{RedisTarget, RedisUrlError};
use crate::store::checkup::Setting;

/// A store that could not be opened. No message contains a password or a user's name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RedisOpenError {
    /// The URL cannot be parsed.
    #[error("not the URL of a Redis server (`redis://HOST:PORT`): {why}")]
    BadUrl {
        /// Mistake in the URL, without its text.
        why: String,
    },
    /// TLS was asked for and cannot be set up.
    #[error("cannot set up TLS to Redis")]
    Tls {
        /// Cause of the failure.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No server answers, or not yet.
    #[error("cannot reach Redis at `{display_url}`")]
    Unreachable {
        /// URL of the server, without user and password.
        display_url: String,
        /// Cause of the failure.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server refuses user or password.
    #[error("Redis at `{display_url}` refuses this user or password")]
    Refused {
        /// URL of the server, without user and password.
        display_url: String,
    },
    /// The server is too old.
    #[error("Redis at `{display_url}` is version {found}; ibid needs {needed} or later")]
    TooOld {
        /// URL of the server, without user and password.
        display_url: String,
        /// Version of the server.
        found: String,
        /// Oldest major version that ibid supports.
        needed: u32,
    },
    /// The server follows another one.
    #[error("Redis at `{display_url}` is a replica; ibid has to write")]
    Replica {
        /// URL of the server, without user and password.
        display_url: String,
    },
    /// The URL names several servers that are not in one cluster.
    #[error(
        "Redis at `{address}` is not in one cluster with the other servers of the URL, so that each would be another store"
    )]
    SeveralServers {
        /// URL of the server, without user and password.
        address: String,
    },
    /// The server deletes keys when its memory is full.
    #[error(
        "Redis at `{display_url}` runs with `maxmemory-policy {policy}`, so that it deletes records when its memory is full; ibid \
         needs `noeviction`"
    )]
    Evicts {
        /// URL of the server, without user and password.
        display_url: String,
        /// Value of the setting; `unknown` if it can't be read.
        policy: String,
    },
    /// The server may lose what it has confirmed.
    #[error("Redis at `{display_url}` may lose records that it has confirmed: {reason}")]
    WeakDurability {
        /// URL of the server, without user and password.
        display_url: String,
        /// Reason why a record may be lost.
        reason: String,
    },
    /// The server has no records of ibid, and the options do not allow to begin there.
    #[error("Redis at `{display_url}` has no records of ibid")]
    Empty {
        /// URL of the server, without user and password.
        display_url: String,
    },
    /// A later ibid wrote the records, or one with another number of buckets.
    #[error("the records at `{display_url}` are of layout `{found}`, and this ibid reads `{known}`")]
    OtherLayout {
        /// URL of the server, without user and password.
        display_url: String,
        /// Layout of the records.
        found: String,
        /// Layout that this program knows.
        known: String,
    },
    /// Any other failure of the server.
    #[error("cannot use Redis at `{display_url}`")]
    Failed {
        /// URL of the server, without user and password.
        display_url: String,
        /// Cause of the failure.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl From<RedisUrlError> for RedisOpenError {
    fn from(error: RedisUrlError) -> Self {
        match error {
            RedisUrlError::Wrong(why) => RedisOpenError::BadUrl { why },
            RedisUrlError::Tls(source) => RedisOpenError::Tls { source },
        }
    }
}

/// Version, role and settings of a server.
#[derive(Clone, Debug, Default)]
pub(super) struct Inspection {
    /// Version of the server, such as `7.0.15`.
    pub(super) version: String,
    /// The version of Valkey, which calls itself Redis 7.2 besides.
    pub(super) valkey: Option<String>,
    pub(super) is_cluster: bool,
    /// Role in replication; `None` if it can't be read.
    pub(super) is_primary: Option<bool>,
    /// Number of connected replicas; `None` if it can't be read.
    pub(super) replicas: Option<u32>,
    /// `true` if the server keeps a backlog for replicas: one has followed it, and may come back. `None` if it can't be read.
    pub(super) has_backlog: Option<bool>,
    /// `true` if the server was a replica itself, and took over. `None` if it can't be read.
    pub(super) was_replica: Option<bool>,
    /// `true` if a Sentinel watches the server.
    pub(super) has_sentinel: bool,
    /// Value of `maxmemory-policy`; `None` if it can't be read.
    pub(super) eviction: Option<String>,
    /// Values of [`NEEDED_SETTINGS`]; `None` if they can't be read.
    pub(super) configured: [Option<String>; NEEDED_SETTINGS.len()],
    /// Values of [`SIZE_SETTINGS`], in bytes; `None` if they can't be read.
    pub(super) sizes: [Option<usize>; SIZE_SETTINGS.len()],
    /// Clock of the server, in microseconds.
    pub(super) now_us: i64,
    /// The instants before and after the clock was read; `None` if it can't be read.
    pub(super) clock: Option<(Instant, Instant)>,
    /// `true` if the server writes its append-only file again, or is about to.
    pub(super) is_rewriting: bool,
    /// Reason why its data is not that of the store which was opened; `None` if it is, or that was not asked.
    pub(super) lost_data: Option<String>,
}

/// The settings on which the durability of a single server depends, and the values that it needs. A server that wants replicas for
/// a write is meant to have some.
pub(super) const NEEDED_SETTINGS: [(&str, &str); 4] = [
    ("appendonly", "yes"),
    ("appendfsync", "always"),
    ("no-appendfsync-on-rewrite", "no"),
    ("min-replicas-to-write", "0"),
];

/// Position of the append-only file in [`NEEDED_SETTINGS`].
const APPEND_ONLY: usize = 0;

/// The settings that bound one argument of a command: the server closes the connection at a longer one.
const SIZE_SETTINGS: [&str; 2] = ["proto-max-bulk-len", "client-query-buffer-limit"];

impl Inspection {
    /// Returns the longest argument of a script that the server takes; `None` if its settings can't be read.
    pub(super) fn argument_max(&self) -> Option<usize> {
        let [bulk, buffer] = self.sizes;
        // An argument is in the buffer together with what arrived just before it.
        let buffer = buffer.map(|bytes| bytes.saturating_sub(BUFFER_RESERVE));
        bulk.into_iter().chain(buffer).min()
    }

    /// Returns everything on which the durability of records depends.
    pub(super) fn settings(&self) -> Vec<Setting> {
        let yes_or_no = |is: bool| if is { "yes" } else { "no" }.to_owned();
        let unread = || "not readable".to_owned();
        let role =
            self.is_primary.map(|is_primary| if is_primary { "primary" } else { "replica" }.to_owned());
        let replicas = self.replicas.map(|count| count.to_string());
        let past = [("repl_backlog_active", self.has_backlog), ("master_replid2", self.was_replica)];
        let mut settings = vec![
            Setting { name: "cluster", value: yes_or_no(self.is_cluster), is_weak: self.is_cluster },
            Setting { name: "role", is_weak: role.is_none(), value: role.unwrap_or_else(unread) },
            Setting {
                name: "replicas",
                is_weak: self.replicas != Some(0),
                value: replicas.unwrap_or_else(unread),
            },
            Setting { name: "sentinel", value: yes_or_no(self.has_sentinel), is_weak: self.has_sentinel },
        ];
        for (name, is_set) in past {
            let value =
                is_set.map_or_else(unread, |is_set| if is_set { "set" } else { "not set" }.to_owned());
            settings.push(Setting { name, value, is_weak: is_set != Some(false) });
        }
        for ((name, needed), found) in NEEDED_SETTINGS.iter().zip(&self.configured) {
            let is_weak = found.as_deref() != Some(needed);
            settings.push(Setting { name, value: found.clone().unwrap_or_else(unread), is_weak });
        }
        settings
    }

    /// Returns the reason why a confirmed record may be lost; `None` if none may.
    pub(super) fn weakness(&self) -> Option<String> {
        let weak = self.settings().into_iter().find(|setting| setting.is_weak)?;
        Some(match (weak.name, &weak.value[..]) {
            ("cluster", _) => {
                "it is in a cluster, where a replica that lacks records can take over".to_owned()
            }
            ("sentinel", _) => "a Sentinel may replace it by a replica that lacks records".to_owned(),
            (name, "not readable") => format!("its setting `{name}` can't be read"),
            ("replicas", _) => "it has replicas, and one that lacks records can take over".to_owned(),
            ("repl_backlog_active", _) => {
                "it has had replicas, and one that lacks records can take over; without any, restart it"
                    .to_owned()
            }
            ("master_replid2", _) => {
                "it was a replica and took over, so another may take over from it; without any, restart it"
                    .to_owned()
            }
            (name, value) => format!("it runs with `{name} {value}`"),
        })
    }

    /// Returns whether everything that the server holds is in its append-only file, as far as its settings tell.
    pub(super) fn has_whole_file(&self) -> bool {
        self.configured[APPEND_ONLY].as_deref() == Some(NEEDED_SETTINGS[APPEND_ONLY].1)
    }

    /// Notes that the append-only file was switched on, and does not have everything yet.
    pub(super) fn doubt_file(&mut self) {
        self.configured[APPEND_ONLY] = Some("yes, but its file is not complete yet".to_owned());
    }

    /// Returns whether the server is older than ibid needs, or does not tell its version.
    pub(super) fn is_too_old(&self) -> bool {
        let major = self.version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        major.is_none_or(|major| major < VERSION_MIN)
    }
}

/// Asks a server for its version, role and settings.
pub(super) async fn inspect(
    target: &RedisTarget,
    address: &str,
    mut connection: MultiplexedConnection,
) -> Result<Inspection, RedisOpenError> {
    let mut ask = async |words: &[&str]| {
        let mut command = Cmd::new();
        for word in words {
            command.arg(*word);
        }
        match connection.send_packed_command(&command).await.and_then(Value::extract_error) {
            Ok(value) => Ok(Some(value)),
            // A managed service closes some commands; what can't be read counts as weak.
            Err(error) if matches!(error.code(), Some("NOPERM" | "ERR")) => Ok(None),
            Err(error) => Err(open_error(target, address, error)),
        }
    };
    let mut info = String::new();
    for section in ["server", "replication", "memory", "persistence"] {
        if let Some(Value::BulkString(text)) = ask(&["INFO", section]).await? {
            info.push_str(&String::from_utf8_lossy(&text));
            info.push('\n');
        }
    }
    let line = |name: &str| {
        info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::to_owned))
    };
    let mut inspection = Inspection {
        version: line("redis_version").unwrap_or_default(),
        valkey: line("valkey_version"),
        is_cluster: line("redis_mode").is_some_and(|mode| mode == "cluster"),
        is_primary: line("role").map(|role| role == "master"),
        replicas: line("connected_slaves").and_then(|count| count.parse().ok()),
        has_backlog: line("repl_backlog_active").map(|active| active != "0"),
        was_replica: line("master_replid2").map(|id| id.bytes().any(|digit| digit != b'0')),
        eviction: line("maxmemory_policy"),
        is_rewriting: ["aof_rewrite_in_progress", "aof_rewrite_scheduled"]
            .iter()
            .any(|name| line(name).is_some_and(|is_so| is_so != "0")),
        ..Inspection::default()
    };
    // Each Sentinel subscribes to this channel of the servers that it watches.
    if let Some(Value::Array(counts)) = ask(&["PUBSUB", "NUMSUB", "__sentinel__:hello"]).await? {
        inspection.has_sentinel = matches!(counts[..], [_, Value::Int(count)] if count > 0);
    }
    for (index, (name, _)) in NEEDED_SETTINGS.iter().enumerate() {
        if let Some(Value::Array(pair)) = ask(&["CONFIG", "GET", name]).await?
            && let [_, Value::BulkString(value)] = &pair[..]
        {
            inspection.configured[index] = Some(String::from_utf8_lossy(value).into_owned());
        }
    }
    for (index, name) in SIZE_SETTINGS.iter().enumerate() {
        if let Some(Value::Array(pair)) = ask(&["CONFIG", "GET", name]).await?
            && let [_, Value::BulkString(value)] = &pair[..]
        {
            inspection.sizes[index] = String::from_utf8_lossy(value).parse().ok();
        }
    }
    let asked = Instant::now();
    if let Some(Value::Array(time)) = ask(&["TIME"]).await? {
        inspection.clock = Some((asked, Instant::now()));
        let part = |index: usize| match time.get(index) {
            Some(Value::BulkString(text)) => String::from_utf8_lossy(text).parse().unwrap_or(0),
            _ => 0,
        };
        inspection.now_us = part(0) * 1_000_000 + part(1);
    }
    Ok(inspection)
}

/// Refuses a server to which no script can be sent.
pub(super) fn check_usable(
    target: &RedisTarget,
    address: &str,
    found: &Inspection,
) -> Result<(), RedisOpenError> {
    if target.only_looks {
        return Ok(());
    }
    if found.is_too_old() {
        let version = found.version.clone();
        return Err(RedisOpenError::TooOld {
            display_url: display_url_at(target, address),
            found: version,
            needed: VERSION_MIN,
        });
    }
    // One of a cluster names the primary instead.
    if found.is_primary == Some(false) && !found.is_cluster {
        return Err(RedisOpenError::Replica { display_url: display_url_at(target, address) });
    }
    Ok(())
}

/// Refuses a server that keeps records less surely than the options accept.
pub(super) fn check_trusted(
    target: &RedisTarget,
    address: &str,
    found: &Inspection,
) -> Result<(), RedisOpenError> {
    if target.only_looks {
        return Ok(());
    }
    let display_url = display_url_at(target, address);
    if found.eviction.as_deref() != Some("noeviction") {
        let policy = found.eviction.clone().unwrap_or_else(|| "unknown".to_owned());
        return Err(RedisOpenError::Evicts { display_url, policy });
    }
    match found.weakness() {
        Some(reason) if !target.accept_weak_durability => {
            Err(RedisOpenError::WeakDurability { display_url, reason })
        }
        _ => Ok(()),
    }
}

/// Returns why a connection could not be used.
pub(super) fn open_error(target: &RedisTarget, address: &str, error: RedisError) -> RedisOpenError {
    let display_url = display_url_at(target, address);
    match error.code() {
        Some("WRONGPASS" | "NOAUTH" | "NOPERM") => return RedisOpenError::Refused { display_url },
        Some("LOADING" | "BUSY" | "MASTERDOWN") => {
            return RedisOpenError::Unreachable { display_url, source: Box::new(error) };
        }
        _ => {}
    }
    match error.kind() {
        redis::ErrorKind::AuthenticationFailed => RedisOpenError::Refused { display_url },
        redis::ErrorKind::Io => RedisOpenError::Unreachable { display_url, source: Box::new(error) },
        _ => RedisOpenError::Failed { display_url, source: Box::new(error) },
    }
}

/// Returns the URL of a server as messages show it, with its address if the URL does not name it.
fn display_url_at(target: &RedisTarget, address: &str) -> String {
    let is_named = target.addresses().any(|named| named == address);
    if is_named { target.to_string() } else { format!("{address} of {target}") }
}

/// Bytes of the server's query buffer that other commands on the connection may take: it reads 16 KiB at a time.
const BUFFER_RESERVE: usize = 64 << 10;

/// Oldest version: earlier ones don't know the first line of the scripts, by which a replica refuses them.
pub(super) const VERSION_MIN: u32 = 7;

#[cfg(test)]
mod tests {
    use super::*;

    fn durable() -> Inspection {
        Inspection {
            version: "7.0.15".to_owned(),
            is_primary: Some(true),
            replicas: Some(0),
            has_backlog: Some(false),
            was_replica: Some(false),
            eviction: Some("noeviction".to_owned()),
            configured: NEEDED_SETTINGS.map(|(_, needed)| Some(needed.to_owned())),
            ..Inspection::default()
        }
    }

    #[test]
    fn what_is_unknown_or_can_fail_over_is_weak() {
        assert_eq!(durable().weakness(), None);
        let cases = [
            Inspection { is_cluster: true, ..durable() },
            Inspection { is_primary: None, ..durable() },
            Inspection { replicas: None, ..durable() },
            Inspection { replicas: Some(1), ..durable() },
            Inspection { has_backlog: None, ..durable() },
            Inspection { has_backlog: Some(true), ..durable() },
            Inspection { was_replica: None, ..durable() },
            Inspection { was_replica: Some(true), ..durable() },
            Inspection { has_sentinel: true, ..durable() },
            Inspection { configured: [const { None }; NEEDED_SETTINGS.len()], ..durable() },
        ];
        for case in cases {
            assert!(case.weakness().is_some(), "{case:?}");
        }
    }

    #[test]
    fn an_old_server_is_refused() {
        let target = RedisTarget::parse("redis://a?durability=weak").expect("a URL");
        for version in ["6.2.14", "", "x"] {
            let old = Inspection { version: version.to_owned(), ..durable() };
            let refused = check_usable(&target, "a:6379", &old);
            assert!(matches!(refused, Err(RedisOpenError::TooOld { .. })), "{version}");
        }
        assert!(check_usable(&target, "a:6379", &durable()).is_ok());
    }

    #[test]
    fn an_unknown_eviction_policy_is_refused() {
        let target = RedisTarget::parse("redis://a?durability=weak").expect("a URL");
        let unknown = Inspection { eviction: None, ..durable() };
        assert!(matches!(check_trusted(&target, "a:6379", &unknown), Err(RedisOpenError::Evicts { .. })));
    }
}
