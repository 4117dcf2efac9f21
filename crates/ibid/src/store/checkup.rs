//! The findings of a checkup of a store: facts only. `ibid doctor` interprets them.
//!
//! A checkup does not open the store, so that a store which would be refused can still be described.

use std::time::Duration;

use bytes::Bytes;

use super::run_times::RunTimes;

/// Facts about a store, for an operator.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Checkup {
    /// The server or library, with its version.
    pub software: String,
    /// The version that ibid needs, if this one is older.
    pub needs: Option<String>,
    /// State of ibid's tables in the store.
    pub schema: Schema,
    /// Difference of the store's clock from this node's; `None` if the store uses the node's own.
    pub clock: Option<ClockGap>,
    /// The settings that a commit's durability depends on, as a session of ibid has them.
    pub durability: Vec<Setting>,
    /// `true` if the options accept settings that may lose a commit.
    pub weak_accepted: bool,
    /// Role of the server: it takes writes, or it only reads.
    pub role: Role,
    /// Standbys of the server; `None` if it cannot have any, or cannot be asked.
    pub standbys: Option<Standbys>,
    /// Pooler between this process and the server; `None` if there is no server.
    pub pooler: Option<Pooler>,
    /// `true` if the store has a generated fingerprint secret.
    pub has_secret: bool,
    /// The text of the store's identity ([`IdentitySetting`](crate::identity::IdentitySetting)); `None` if there is none yet.
    pub identity: Option<Bytes>,
    /// Cases that wait for an operator; `None` if the tables can't be read or counting took too long.
    pub open_cases: Option<OpenCases>,
    /// Run times of recent requests, by policy; `None` if the tables can't be read or reading took too long.
    pub runs: Option<Vec<RunTimes>>,
    /// The server's settings that a large store depends on; `None` if there is no server, or no table of ours in it.
    pub tuning: Option<ServerTuning>,
    /// Further reasons why opening refuses the store, each a sentence.
    pub refusals: Vec<String>,
    /// `true` if ibid was built for this software and not tested on it.
    pub is_untested: bool,
}

impl Checkup {
    /// Creates the facts about a server of which nothing else is known.
    pub fn new(software: impl Into<String>, schema: Schema, role: Role) -> Checkup {
        Checkup {
            software: software.into(),
            needs: None,
            schema,
            clock: None,
            durability: Vec::new(),
            weak_accepted: false,
            role,
            standbys: None,
            pooler: None,
            has_secret: false,
            identity: None,
            open_cases: None,
            runs: None,
            tuning: None,
            refusals: Vec::new(),
            is_untested: false,
        }
    }

    /// Returns a copy in which `change` has set some fields.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Checkup)) -> Checkup {
        change(&mut self);
        self
    }
}

/// Settings of a server that a large store depends on, and the sizes to compare them with.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct ServerTuning {
    /// Longest time between two checkpoints.
    pub checkpoint_timeout: Duration,
    /// Size of the log at which a checkpoint comes earlier.
    pub max_wal_bytes: u64,
    /// The server's page cache.
    pub shared_buffer_bytes: u64,
    /// `true` if autovacuum runs on the table of records.
    pub has_autovacuum: bool,
    /// Pause of autovacuum after it has used up its cost limit, in milliseconds; 0: it never pauses.
    pub vacuum_cost_delay_ms: f64,
    /// The cost limit of autovacuum.
    pub vacuum_cost_limit: u64,
    /// Estimated number of records.
    pub records: u64,
    /// Bytes of the indexes on records.
    pub index_bytes: u64,
}

impl Default for ServerTuning {
    /// The settings of a new server, with no records.
    fn default() -> Self {
        ServerTuning {
            checkpoint_timeout: Duration::from_secs(300),
            max_wal_bytes: 1 << 30,
            shared_buffer_bytes: 128 << 20,
            has_autovacuum: true,
            vacuum_cost_delay_ms: 2.0,
            vacuum_cost_limit: 200,
            records: 0,
            index_bytes: 0,
        }
    }
}

impl ServerTuning {
    /// Returns a copy in which `change` has set some fields.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut ServerTuning)) -> ServerTuning {
        change(&mut self);
        self
    }
}

/// State of ibid's tables in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a tool that reports facts has to report all of them")]
pub enum Schema {
    /// The store has no tables of ibid.
    Absent,
    /// The tables are at this step of the schema. A newer one than this program knows only added something to it.
    Step {
        /// Step of the tables in this store.
        found: u32,
        /// The newest that this program knows.
        known: u32,
    },
    /// The tables are at a step that excludes this program.
    TooNew {
        /// Step of the tables in this store.
        found: u32,
        /// The newest that this program knows.
        known: u32,
    },
    /// This step was taken with other statements than this program has.
    Altered {
        /// Number of the step.
        number: u32,
    },
}

impl Schema {
    /// Returns whether this program can use the tables as they are.
    pub(super) fn is_usable(self) -> bool {
        matches!(self, Schema::Step { found, known } if found >= known)
    }
}

/// The difference of two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockGap {
    /// Lead of the store's clock over the node's in microseconds; negative if it is behind.
    pub ahead_us: i64,
    /// Largest error of `ahead_us`: half of the round trip.
    pub within: Duration,
}

/// One setting of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Name of the setting in the database's manual.
    pub name: &'static str,
    /// Value of the setting, as text.
    pub value: String,
    /// `true` if a commit may be lost with this value.
    pub is_weak: bool,
}

/// Name of the setting that says by how much the clocks of a store's servers differ.
pub const SERVER_CLOCKS: &str = "clocks of the servers";

/// The role of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a tool that reports facts has to report all of them")]
pub enum Role {
    /// The server takes writes.
    Primary,
    /// The server follows another one and only reads.
    Standby,
    /// The server or the database is read-only.
    ReadOnly,
}

/// The standbys of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standbys {
    /// Value of the setting that names the standbys which commits wait for; empty if commits wait for none.
    pub awaited: String,
    /// Standbys that are connected now.
    pub connected: Vec<Standby>,
    /// Privileges without which this user does not see all standbys, or whether the server is one itself.
    pub missing: Vec<&'static str>,
}

/// A standby of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standby {
    /// Name that the standby reports; `None` if this user may not see it.
    pub name: Option<String>,
    /// `true` if commits wait for it; `None` if this user may not see it.
    pub is_synchronous: Option<bool>,
}

/// A transaction pooler, which may run each transaction in another session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a tool that reports facts has to report all of them")]
pub enum Pooler {
    /// Nothing indicates a pooler.
    NotSeen,
    /// There is a pooler, and ibid works with it.
    Seen,
    /// There is a pooler, and a statement that one session prepared is seen by another.
    MixesStatements,
    /// No second connection could be opened, and one alone shows too little.
    Undecided,
}

/// Numbers of cases that wait for an operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenCases {
    /// Records in the state `unknown`.
    pub unknown: u64,
    /// Records that are dead letters.
    pub dead_letters: u64,
    /// Effects in the state `unknown`.
    pub effects_unknown: u64,
    /// Effects in the state `dead`.
    pub effects_dead: u64,
}
