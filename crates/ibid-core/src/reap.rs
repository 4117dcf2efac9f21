//! What the reaper asks of a store: what may go, how much of it went, and where to go on.
//!
//! A store compares instants here, as everywhere; why something may go is the reaper's business.

use std::time::Duration;

/// What is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReapTarget {
    /// Records. Past `expires_at` one is stripped: its bodies go, and of the row stay id, fingerprint, state and
    /// instants, a tombstone. Past `purge_at` all of it goes. One with an open Effect and a
    /// dead letter are left alone.
    Records,
    /// Effects that are done or discarded for longer than `keep`, and whose record is gone.
    Effects {
        /// How long after they ended.
        keep: Duration,
    },
    /// Lines of history older than `keep`, of records that are gone.
    History {
        /// How long after they were written.
        keep: Duration,
    },
    /// Room in the file that nothing has used since, where a store can give it back step by step.
    Room,
}

/// What one step of a [`ReapTarget`] came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReapStep {
    /// Records that became tombstones.
    pub stripped: u64,
    /// What went for good: records, Effects, lines, or pages of the file.
    pub removed: u64,
    /// Records that are past their time and stay, because a row of the application refers to them and forbids it.
    pub held: u64,
    /// Where the next step goes on; none: there is nothing more for now.
    pub next: Option<i64>,
    /// How long others had to wait for it: the work, without the time that it waited itself.
    pub took: Duration,
}

/// What would go now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReapCount {
    /// Records that would become tombstones.
    pub strip: u64,
    /// What would go for good.
    pub remove: u64,
}

/// Where every course begins.
pub const CURSOR_START: i64 = i64::MIN;
