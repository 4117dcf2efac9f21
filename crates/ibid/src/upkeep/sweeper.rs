//! Settles lapsed leases by the `on_lapse` rule that the record was begun with, and resumes records that have an in-doubt
//! call whose client has not retried. Each write is a compare-and-set on the version that was read.

use std::time::Duration;

use futures_util::future::join_all;
use ibid_core::change::StoredRecord;
use ibid_core::machine::{self, Decision, Event};
use ibid_core::policy::OnLapse;
use ibid_core::store::{Cursor, Page, StoreError};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::stored_request::{Resume, StoredRequest, release};
use crate::engine::GiveUp;
use crate::ibid::Ibid;

/// Counts of one sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SweepStats {
    /// Records that were settled or resumed.
    pub settled: u64,
    /// Time until another sweep may let the rest run again. This process has just started, or the store's clock has jumped,
    /// and their owners may be alive.
    pub held_back: Option<Duration>,
}

/// Settles every lapsed lease by the rule that its record was begun with, and resumes or gives up records with an in-doubt
/// call. Returns how many there were.
///
/// # Errors
///
/// Fails if the store cannot be read. The next sweep finds the rest.
///
/// # Cancel safety
///
/// Each record is written whole or not at all. If the future is dropped, the next sweep does the rest; a request that was about
/// to be resumed lapses first.
pub async fn sweep_once(ibid: &Ibid) -> Result<u64, StoreError> {
    sweep_with_progress(ibid, |_| {}).await.map(|stats| stats.settled)
}

/// Like [`sweep_once`], but returns more counts, and calls `on_batch` after every batch with the count so far.
///
/// # Errors
///
/// Fails as [`sweep_once`] does.
///
/// # Cancel safety
///
/// Each record is written whole or not at all. If the future is dropped, the next sweep does the rest; a request that was about
/// to be resumed lapses first.
pub async fn sweep_with_progress(
    ibid: &Ibid,
    mut on_batch: impl FnMut(u64),
) -> Result<SweepStats, StoreError> {
    let mut stats = SweepStats::default();
    let SweepCursors { in_progress, retryable } = &ibid.upkeep().sweep_cursors;
    for (state, cursor) in machine::SWEPT_STATES.into_iter().zip([in_progress, retryable]) {
        // Records that cannot be settled now stay due. The cursor goes past them to those behind, and the next sweep continues
        // there: otherwise records behind more of them than fit into one sweep would never be settled.
        let mut after = cursor.lock().take();
        for _ in 0..SWEEP_BATCHES_MAX {
            let Page { items: due, next } = ibid.engine().due(state, after, SWEEP_BATCH).await?;
            after = next;
            // All at once, so that they share commits.
            for swept in join_all(due.into_iter().map(|stored| sweep(ibid, stored))).await {
                match swept {
                    SweepOutcome::Settled => stats.settled += 1,
                    SweepOutcome::HeldBack(lease) => stats.held_back = stats.held_back.max(Some(lease)),
                    SweepOutcome::Left => {}
                }
            }
            on_batch(stats.settled);
            if after.is_none() {
                break;
            }
        }
        *cursor.lock() = after;
    }
    Ok(stats)
}

/// Cursors of the next sweep; `None`: it begins with the record that is due longest.
#[derive(Debug, Default)]
pub(crate) struct SweepCursors {
    in_progress: Mutex<Option<Cursor>>,
    retryable: Mutex<Option<Cursor>>,
}

/// Outcome of sweeping one record.
enum SweepOutcome {
    /// It was still due, and is settled or runs again.
    Settled,
    /// It may run again, but not before a lease of this length has passed: its owner may be alive.
    HeldBack(Duration),
    /// It was not due any more, or could not be written or resumed now.
    Left,
}

/// Settles or resumes one record.
async fn sweep(ibid: &Ibid, stored: StoredRecord) -> SweepOutcome {
    if stored.record.policy.on_lapse == OnLapse::Resume
        && let Some(runner) = ibid.upkeep().resumes.runner()
        && let Some(resumed) = resume(ibid, &stored, &*runner).await
    {
        return resumed;
    }
    let lease = stored.record.policy.lease;
    let lapsed = |nonce| Event::Lapsed { nonce, careful: ibid.engine().is_clock_unsure(lease) };
    let settlement = ibid.engine().write_until_done(Some(stored), GiveUp::Soon, lapsed).await;
    match settlement.decision {
        Decision::Settled => SweepOutcome::Settled,
        Decision::Wait { .. } => SweepOutcome::HeldBack(lease),
        _ => SweepOutcome::Left,
    }
}

/// Takes a record over and runs its request. Returns `None` if the record cannot be resumed here and has to be settled
/// instead.
async fn resume(ibid: &Ibid, stored: &StoredRecord, runner: &dyn Resume) -> Option<SweepOutcome> {
    if !machine::is_resumable(&stored.record, stored.now) {
        return None;
    }
    // Without a permit, the next sweep finds the record again, and this one continues behind it.
    let Ok(permit) = ibid.upkeep().resumes.slots.take(&stored.record.identity.tenant, 1) else {
        return Some(SweepOutcome::Left);
    };
    let Ok(request) = StoredRequest::load(ibid, runner, &stored.record).await else {
        return Some(SweepOutcome::Left);
    };
    let request = request?;
    let at = Instant::now();
    let lease = stored.record.policy.lease;
    let resumed = |nonce| Event::Resume { nonce, careful: ibid.engine().is_clock_unsure(lease) };
    let taken = ibid.engine().write_until_done(Some(stored.clone()), GiveUp::Soon, resumed).await;
    let (after, taken) = match (taken.decision, taken.stored) {
        (Decision::Run { after }, Some(taken)) => (after, taken),
        (Decision::Wait { .. }, _) => return Some(SweepOutcome::HeldBack(lease)),
        // Its row is locked, or has changed, or the store refuses it: the next sweep tries again. It must not be settled now: a
        // record that may run again is resumed only while its lease is lapsed.
        _ => return Some(SweepOutcome::Left),
    };
    if !request.is_of(&taken.record) {
        release(ibid, taken).await;
        return Some(SweepOutcome::Settled);
    }
    let run = request.run(ibid, runner, taken, after, at);
    tokio::spawn(async move {
        run.await;
        drop(permit);
    });
    Some(SweepOutcome::Settled)
}

/// Records read at once.
const SWEEP_BATCH: u32 = 256;

/// Batches of each state in one sweep. A crash leaves at most a few thousand requests behind. The next sweep continues behind
/// them.
const SWEEP_BATCHES_MAX: u32 = 40;
