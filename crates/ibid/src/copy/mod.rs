//! Copies a store onto another one, so that a service that started on an embedded store can grow onto a server.
//!
//! First all rows are checked, while the source is open. Then the source is closed: no process begins, delivers, calls or settles
//! anything on it any more. Its rows are copied and compared, and the target is opened. [`copy`] can be stopped at any moment: the
//! next call continues, or [`cancel`] opens the source again.
//!
//! At no time may both stores be open. The decision is one compare-and-set on the target's mark (`marks.rs`), and
//! `docs/decisions/0012-copy.md` has the interleavings.

mod marks;
mod retry;
mod rows;
mod transfer;

use std::sync::Arc;
use std::time::Duration;

use ibid_core::store::copy::{ClockShift, RowTotals};
use ibid_core::store::{Store, StoreError};

use crate::failpoint;
use crate::identity::change::{RetireWait, check_can_wait, wait_for_processes};
use crate::identity::{CopyMark, IdentityError};

use marks::{SourceMark, TargetMark};
use retry::retry;
pub use rows::CopiedPart;

/// One of the two stores of a copy.
#[derive(Clone)]
#[non_exhaustive]
pub struct CopyEnd {
    /// The store that is read or filled.
    pub store: Arc<dyn Store>,
    /// URL of the store without a password, as operators read it.
    pub display_url: String,
}

impl CopyEnd {
    /// Creates one end of a copy. `display_url` is the store's URL without a password.
    pub fn new(store: Arc<dyn Store>, display_url: impl Into<String>) -> CopyEnd {
        CopyEnd { store, display_url: display_url.into() }
    }
}

impl std::fmt::Debug for CopyEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CopyEnd").field("display_url", &self.display_url).finish_non_exhaustive()
    }
}

/// A step of a copy, as it is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CopyStep {
    /// So many rows of this part were read from the open source, and the target can hold them.
    Checked {
        /// Part that the rows belong to.
        part: CopiedPart,
        /// Its rows so far.
        rows: u64,
    },
    /// The source is being closed; this is waited for.
    Closing(RetireWait),
    /// Requests or calls are still running on the source: their leases are waited for.
    Running {
        /// Number of them that the next page has.
        leases: usize,
    },
    /// So many rows of this part are in the target.
    Copied {
        /// Part that the rows belong to.
        part: CopiedPart,
        /// Its rows so far.
        rows: u64,
    },
    /// So many rows of this part were read back from the target.
    Compared {
        /// Part that the rows belong to.
        part: CopiedPart,
        /// Its rows so far.
        rows: u64,
    },
}

/// The result of a copy: rows in the target.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopyReport {
    /// Rows of each part that the target can hold, in the order in which they were copied.
    pub rows: Vec<(CopiedPart, u64)>,
    /// Ended effects and used evidence that the target cannot hold, and that were left behind.
    pub left_behind: u64,
    /// Difference of the two clocks, by which instants were moved, in microseconds.
    pub shift_us: i64,
    /// `true` if the target had been opened before this call.
    pub was_open: bool,
}

/// The source was not copied, or not opened again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// No process has started on the source yet.
    #[error("the source has no identity yet: no process has used it, and there is nothing to copy")]
    SourceUnused,
    /// The source takes part in another copy.
    #[error("the source takes part in another copy: {0}")]
    SourceBusy(Box<CopyMark>),
    /// The target was used by itself, or has rows.
    #[error("the target is in use: a copy needs an empty store")]
    TargetUsed,
    /// The target takes part in another copy.
    #[error("the target takes part in another copy: {0}")]
    TargetBusy(Box<CopyMark>),
    /// The target is not the one that the source is being copied to.
    #[error("this is not the target of the copy: {0}")]
    OtherTarget(Box<CopyMark>),
    /// There is nothing to cancel.
    #[error("neither store takes part in a copy from one to the other")]
    NoCopy,
    /// The copy was cancelled, and the source is open again.
    #[error("the copy was cancelled, and the source is open again")]
    Cancelled,
    /// The target was opened, so the copy can't be cancelled.
    #[error("the copy has ended and the target is open: it can't be cancelled any more")]
    Ended,
    /// Another process is at work on the same copy.
    #[error("another process is at work on this copy")]
    AnotherProcess,
    /// The source has rows that the target cannot hold.
    #[error("the target can't hold {what}, and the source has {count} of them")]
    Unsupported {
        /// The rows, in plural.
        what: &'static str,
        /// Their number, or that of the first page.
        count: usize,
    },
    /// A clock was set while the rows were copied.
    #[error("the difference of the two clocks was {was_us} µs when the copy began, and is {is_us} µs now")]
    ClockMoved {
        /// The difference when the copy began.
        was_us: i64,
        /// The difference of the clocks now.
        is_us: i64,
    },
    /// The clocks can't be compared.
    #[error("the clocks of the two stores can't be compared: one of them was just set")]
    ClockUnsure,
    /// The target holds something else than what was copied.
    #[error("{part} differ: {} were copied, and {} are in the target{}", .copied.count, .found.count,
        if .copied.count == .found.count { ", with other contents" } else { "" })]
    Differs {
        /// Part that the rows belong to.
        part: CopiedPart,
        /// The rows that were copied.
        copied: RowTotals,
        /// The rows in the target.
        found: RowTotals,
    },
    /// An identity setting can't be read.
    #[error(transparent)]
    Identity(IdentityError),
    /// One of the stores failed.
    #[error("a store failed")]
    Store(#[from] StoreError),
}

impl From<IdentityError> for CopyError {
    fn from(error: IdentityError) -> CopyError {
        match error {
            IdentityError::Store(error) => CopyError::Store(error),
            other => CopyError::Identity(other),
        }
    }
}

/// Copies `source` onto `target` and opens the target, or continues a copy that was stopped. `on_step` is called with each step.
///
/// # Errors
///
/// Fails if one of the stores can't take part, if they differ in the end, or if a store does not answer for about a minute. Once
/// the source is closed, call it again until it succeeds, or [`cancel`].
///
/// # Cancel safety
///
/// If it is dropped midway, the next call continues from the last page.
pub async fn copy(
    source: &CopyEnd,
    target: &CopyEnd,
    mut on_step: impl FnMut(CopyStep),
) -> Result<CopyReport, CopyError> {
    for end in [source, target] {
        end.store.require_copy()?;
    }
    // The order of the steps: a target is marked before its source is closed, so that a closed source has a target on which
    // the copy can be cancelled.
    let mut to = match marks::join(source, target).await? {
        marks::JoinOutcome::Ended(report) => return Ok(report),
        marks::JoinOutcome::Filling(to) => to,
    };
    to.take_over(source, target).await?;
    failpoint::at("copy.joined").await;
    if !marks::is_source_closed(source, &to).await? {
        rehearse(source, target, &mut on_step).await?;
    }
    let from = marks::close_source(source, target, &to).await?;
    failpoint::at("copy.closed").await;
    let from = retire(source, from, &mut on_step).await?;
    failpoint::at("copy.retired").await;
    let shift = agree_on_shift(source, target, &mut to).await?;
    let left_behind = transfer::check_left_behind(source, target).await?;
    transfer::copy_rows(source, target, &mut to, shift, &mut on_step).await?;
    failpoint::at("copy.copied").await;
    transfer::compare_rows(target, &to, shift, &mut on_step).await?;
    failpoint::at("copy.compared").await;
    // The last step. Until here no row of the target has been used.
    agree_on_shift(source, target, &mut to).await?;
    marks::copy_settings(source, target, &to).await?;
    marks::open_target(source, target, &to, &from, shift).await?;
    failpoint::at("copy.opened").await;
    marks::note_moved(source, to.id()).await?;
    Ok(CopyReport { left_behind, ..to.report(false) })
}

/// Cancels a copy that has not ended and opens the source again, with the identity that it had. Running processes continue.
///
/// # Errors
///
/// Fails if there is no such copy, or if it has ended.
///
/// # Cancel safety
///
/// If it is dropped midway, call it again.
pub async fn cancel(source: &CopyEnd, target: &CopyEnd) -> Result<(), CopyError> {
    let id = marks::cancel_target(source, target).await?;
    failpoint::at("copy.cancelled").await;
    marks::reopen_source(source, &id).await
}

/// Does all that a copy does and that changes nothing, before anything is closed: what would fail later fails now.
async fn rehearse(
    source: &CopyEnd,
    target: &CopyEnd,
    on_step: &mut impl FnMut(CopyStep),
) -> Result<(), CopyError> {
    retry(async || check_can_wait(&*source.store).await).await?;
    measure_shift(&*source.store, &*target.store).await?;
    transfer::check_left_behind(source, target).await?;
    transfer::check_rows(source, target, on_step).await
}

/// Waits until no process can act on the source any more. A resumed copy waits again, unless the wait was over.
async fn retire(
    source: &CopyEnd,
    from: SourceMark,
    on_step: &mut impl FnMut(CopyStep),
) -> Result<SourceMark, CopyError> {
    if from.is_retired() {
        return Ok(from);
    }
    let wait = async || {
        let on_wait = |wait| on_step(CopyStep::Closing(wait));
        wait_for_processes(&*source.store, from.valid_for(), on_wait).await
    };
    let retired_at = retry(wait).await?;
    marks::note_retired(source, from, retired_at).await
}

/// Returns the difference of the clocks that the copy began with, or measures it. Fails if it has changed by more than
/// [`SHIFT_CHANGE_MAX`].
async fn agree_on_shift(
    source: &CopyEnd,
    target: &CopyEnd,
    to: &mut TargetMark,
) -> Result<ClockShift, CopyError> {
    let measured = measure_shift(&*source.store, &*target.store).await?;
    let Some(was) = to.progress().shift_us else {
        to.write_progress(source, target, |progress| progress.shift_us = Some(measured.0)).await?;
        return Ok(measured);
    };
    match Duration::from_micros(was.abs_diff(measured.0)) <= SHIFT_CHANGE_MAX {
        true => Ok(ClockShift(was)),
        false => Err(CopyError::ClockMoved { was_us: was, is_us: measured.0 }),
    }
}

async fn measure_shift(source: &dyn Store, target: &dyn Store) -> Result<ClockShift, CopyError> {
    let (source, target) = (source.require_copy()?, target.require_copy()?);
    let mut readings = Vec::new();
    for _ in 0..READINGS {
        let read = async || {
            Ok::<_, StoreError>((source.clock().await?, target.clock().await?, source.clock().await?))
        };
        readings.push(retry(read).await?);
    }
    ClockShift::of_readings(&readings).ok_or(CopyError::ClockUnsure)
}

/// Readings of both clocks. The shortest round trip counts, and one of a few is short.
const READINGS: usize = 5;

/// Largest change of the clocks' difference during a copy. Clocks that drift or are corrected stay far below; a clock that was set
/// wrongly would let records expire early.
const SHIFT_CHANGE_MAX: Duration = Duration::from_secs(10);
