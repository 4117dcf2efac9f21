//! The mark of a copy: the part that a store plays in an `ibid copy`, kept in its identity setting.
//!
//! It is in that setting and not in a separate one because a start decides by one compare-and-set: T1 (a start) reads that no
//! copy is running; T2 (a copy) marks the store; T1 writes its identity as active. With one setting T1 loses.

use std::fmt;

use ibid_core::store::copy::RowTotals;
use serde::{Deserialize, Serialize};

use super::IdentityPhase;

/// The part that a store plays in a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyMark {
    /// Id of the copy, drawn when its target was marked. Source and target belong together if they have the same.
    pub id: String,
    /// Role of the store in the copy.
    #[serde(flatten)]
    pub role: CopyRole,
}

/// Source or target of a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "lowercase")]
#[expect(clippy::exhaustive_enums, reason = "who reads a mark has to handle both roles")]
pub enum CopyRole {
    /// The records go to another store. No process may use this one until the copy is cancelled.
    Source {
        /// The target, as operators write it.
        to: String,
        /// `true` once the target was opened: the copy can't be cancelled any more.
        moved: bool,
        /// Phase of the identity before the copy, which a cancellation gives back.
        before: IdentityPhase,
    },
    /// The records of another store come here.
    Target {
        /// Id of the source's store.
        from: String,
        /// The source, as operators write it.
        // The name in stored marks.
        #[serde(rename = "place")]
        source_url: String,
        /// The phase, which decides whether processes may use this store.
        phase: TargetPhase,
        /// Progress of the copy.
        progress: CopyProgress,
    },
}

/// The phase of a target. Only [`TargetPhase::Filling`] ever changes, so of an opening and a cancellation one wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum TargetPhase {
    /// Rows are being copied.
    Filling,
    /// All rows are here: the store is open, and the source stays closed.
    Opened,
    /// The source may be opened again. The store holds some of the rows, and is not used.
    Cancelled,
}

/// The progress of a copy, from which the next run continues.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyProgress {
    /// Drawn by the process that copies, when it begins or takes over: of two processes only one has the mark.
    pub holder: String,
    /// Difference of the two clocks in microseconds, by which all instants are moved; `None` before it was measured.
    pub shift_us: Option<i64>,
    /// Rows so far, part by part; the last one is not complete.
    pub parts: Vec<RowTotals>,
    /// Cursor in the last part, as text; `None` at its start.
    pub after: Option<String>,
    /// `true` once the last part is complete.
    pub is_complete: bool,
}

impl CopyMark {
    /// Returns whether the mark keeps processes from using the store.
    pub fn closes(&self) -> bool {
        !matches!(self.role, CopyRole::Target { phase: TargetPhase::Opened, .. })
    }
}

/// Says what the store is used for.
impl fmt::Display for CopyMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.role {
            CopyRole::Source { to, moved: false, .. } => write!(f, "this store is being copied to `{to}`"),
            CopyRole::Source { to, moved: true, .. } => {
                write!(f, "this store was copied to `{to}`, and is closed")
            }
            CopyRole::Target { source_url, phase: TargetPhase::Filling, .. } => {
                write!(f, "this store is being filled from `{source_url}`")
            }
            CopyRole::Target { source_url, phase: TargetPhase::Opened, .. } => {
                write!(f, "this store was filled from `{source_url}`")
            }
            CopyRole::Target { source_url, phase: TargetPhase::Cancelled, .. } => {
                write!(f, "this store holds a part of `{source_url}`, left by a copy that was cancelled")
            }
        }
    }
}
