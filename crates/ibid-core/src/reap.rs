//! The reaper's view of a store: targets, steps and counts.
//!
//! A store compares instants here, as everywhere. Why something may be removed is decided by the reaper.

#![expect(clippy::exhaustive_enums, reason = "every store has to handle every variant")]

use std::time::Duration;

use crate::store::Cursor;

/// A kind of rows that the reaper removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReapTarget {
    /// Records. Past `expires_at` a record is stripped to a tombstone: its response and bodies are deleted, and id,
    /// fingerprint, state and instants stay. Past `purge_at` the row is deleted. A record with an open effect and a dead
    /// letter stay as they are.
    Records,
    /// Effects that were done or discarded longer than `keep` ago, and whose record is gone.
    Effects {
        /// Retention, from the end of the effect.
        keep: Duration,
    },
    /// Lines of history older than `keep`, of records that are gone.
    History {
        /// Retention, from the instant at which the line was written.
        keep: Duration,
    },
    /// Policies that no record can name any more, with what the store keeps for each policy.
    Policies,
    /// Unused pages of the database file, where a store can return them step by step.
    Room,
}

/// The outcome of one step of the reaper.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReapStep {
    /// Records that became tombstones.
    pub stripped: u64,
    /// Rows that were deleted: records, effects, lines or policies; for [`ReapTarget::Room`] pages of the file.
    pub removed: u64,
    /// Records that are past their time and stay, because a row of the application refers to them and forbids it.
    pub held: u64,
    /// Cursor of the next step; `None`: nothing is left for now.
    pub next: Option<Cursor>,
    /// Time for which the step kept other writers waiting.
    pub took: Duration,
    /// Time since the oldest row of this step could have been removed, so how far the reaper is behind.
    pub behind: Option<Duration>,
}

/// Rows that the reaper would strip or delete now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReapCount {
    /// Records that would become tombstones.
    pub strip: u64,
    /// Rows that would be deleted.
    pub remove: u64,
}
