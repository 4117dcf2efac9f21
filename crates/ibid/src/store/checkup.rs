//! What a store was found to be, for an operator: facts alone. What they mean is said by whoever asks.
//!
//! A store is looked at before it is opened, so that one which would be refused can still be described.

use std::time::Duration;

use bytes::Bytes;

use super::run_times::RunTimes;

/// What a store was found to be.
#[derive(Clone, Debug)]
pub struct Checkup {
    /// The server or library, with its version.
    pub software: String,
    /// The version that ibid needs, if this one is older.
    pub needs: Option<String>,
    /// ibid's tables.
    pub schema: Schema,
    /// The store's clock beside this node's; none if the store goes by the node's own.
    pub clock: Option<ClockGap>,
    /// The settings that a commit's durability hangs on, as a session of ibid has them.
    pub durability: Vec<Setting>,
    /// Whether settings that may lose a commit were accepted.
    pub weak_accepted: bool,
    /// Whether it takes writes.
    pub role: Role,
    /// Who follows it; none if that can't be asked here.
    pub standbys: Option<Standbys>,
    /// Whether somebody stands between; none if there is no server.
    pub pooler: Option<Pooler>,
    /// Whether a fingerprint secret was made and is kept in the store.
    pub has_secret: bool,
    /// The text of the store's identity ([`IdentitySetting`](crate::identity::IdentitySetting)); none if there is none yet.
    pub identity: Option<Bytes>,
    /// What waits for a person; none if the tables can't be read or counting took too long.
    pub open_cases: Option<OpenCases>,
    /// How long runs took lately, by policy; none if the tables can't be read or looking took too long.
    pub runs: Option<Vec<RunTimes>>,
    /// The server's settings that a large store depends on; `None` if there is no server, or no table of ours in it.
    pub tuning: Option<ServerTuning>,
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
    /// Whether autovacuum runs on the table of records.
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

/// ibid's tables in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schema {
    /// There are none.
    Absent,
    /// They are at this step.
    Step {
        /// Theirs.
        found: u32,
        /// The newest that this program knows.
        known: u32,
    },
    /// This step was taken, but another one than ours.
    Altered {
        /// Which.
        number: u32,
    },
}

/// How two clocks differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockGap {
    /// How far the store's clock is ahead of the node's, in microseconds; behind if negative.
    pub ahead_us: i64,
    /// How far off that may be: half of what the question took.
    pub within: Duration,
}

/// One setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its name, as the store's manual has it.
    pub name: &'static str,
    /// What it is set to.
    pub value: String,
    /// Whether a commit may be lost with it.
    pub is_weak: bool,
}

/// Whether a store takes writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It does.
    Primary,
    /// It follows another server.
    Standby,
    /// It only reads.
    ReadOnly,
}

/// Who follows a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standbys {
    /// Whom commits wait for, as it is set; empty if for nobody.
    pub awaited: String,
    /// Who is connected.
    pub connected: Vec<Standby>,
}

/// One that follows a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standby {
    /// The name that it gives itself; none if this user may not see it.
    pub name: Option<String>,
    /// Whether commits wait for it; none if this user may not see it.
    pub is_synchronous: Option<bool>,
}

/// Whether somebody hands each transaction to another session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooler {
    /// Nothing points to it.
    NotSeen,
    /// It does, and that is provided for.
    Seen,
    /// It does, and statements prepared by one session turn up in another's.
    MixesStatements,
    /// A second connection could not be had, and one alone tells too little.
    Undecided,
}

/// What waits for a person.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenCases {
    /// Records in `unknown`.
    pub unknown: u64,
    /// Records that are dead letters.
    pub dead_letters: u64,
    /// Effects in `unknown`.
    pub effects_unknown: u64,
    /// Effects in `dead`.
    pub effects_dead: u64,
}
