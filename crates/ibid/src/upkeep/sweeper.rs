//! Settles lapsed leases by the `on_lapse` rule that the record was begun with, and resumes records that have an in-doubt
//! call whose client has not retried. Each write is a compare-and-set on the version that was read.

use futures_util::future::join_all;
use ibid_core::change::StoredRecord;
use ibid_core::machine::{Decision, Event};
use ibid_core::policy::OnLapse;
use ibid_core::record::State;
use ibid_core::store::StoreError;
use metrics::gauge;
use tokio::time::Instant;

use super::stored_request::{Resume, StoredRequest, release};
use crate::engine::GiveUp;
use crate::ibid::Ibid;
use crate::telemetry;

/// Settles every lapsed lease by the rule that its record was begun with, and resumes or gives up records with an in-doubt
/// call. Returns how many there were.
///
/// # Errors
///
/// Fails if the store cannot be read. The next sweep finds the rest.
pub async fn sweep_once(ibid: &Ibid) -> Result<u64, StoreError> {
    sweep_with_progress(ibid, |_| {}).await
}

/// Like [`sweep_once`], and calls `on_batch` after every batch with the count so far.
///
/// # Errors
///
/// Fails as [`sweep_once`] does.
pub async fn sweep_with_progress(ibid: &Ibid, mut on_batch: impl FnMut(u64)) -> Result<u64, StoreError> {
    // First, before anything can fail: the gauge matters most while the store does not answer.
    ibid.engine().breaker.publish_gauge();
    let mut swept = 0;
    for state in [State::InProgress, State::Retryable] {
        // Records that can't be settled now stay due, in the same order: a row is locked, or all permits to resume are taken.
        // The next batch continues behind them.
        let mut left = 0;
        for _ in 0..SWEEP_BATCHES_MAX {
            let due = ibid.engine().due(state, left, SWEEP_BATCH).await?;
            let batch_len = due.len() as u32;
            // All at once, so that they share commits.
            let settled =
                join_all(due.into_iter().map(|stored| sweep(ibid, stored))).await.into_iter().sum::<u64>();
            swept += settled;
            on_batch(swept);
            if batch_len < SWEEP_BATCH {
                break;
            }
            left += batch_len - settled as u32;
        }
    }
    gauge!(telemetry::TENANTS_ABOVE).set(ibid.tenants_above_duplicate_rate() as f64);
    Ok(swept)
}

/// Settles or resumes one record. Returns 1 if it was still due.
async fn sweep(ibid: &Ibid, stored: StoredRecord) -> u64 {
    if stored.record.policy.on_lapse == OnLapse::Resume
        && let Some(runner) = ibid.upkeep().resumes.runner()
        && let Some(resumed) = resume(ibid, &stored, &*runner).await
    {
        return resumed;
    }
    let lease = stored.record.policy.lease;
    let lapsed = |nonce| Event::Lapsed { nonce, careful: ibid.engine().is_clock_unsure(lease) };
    let settlement = ibid.engine().write_until_done(Some(stored), GiveUp::Soon, lapsed).await;
    u64::from(settlement.decision == Decision::Settled)
}

/// Takes a record over and runs its request. Returns `None` if the record cannot be resumed here and has to be settled
/// instead.
async fn resume(ibid: &Ibid, stored: &StoredRecord, runner: &dyn Resume) -> Option<u64> {
    // Without a permit, the next sweep finds the record again.
    let Ok(permit) = ibid.upkeep().resumes.permits.clone().try_acquire_owned() else { return Some(0) };
    let Ok(request) = StoredRequest::load(ibid, runner, &stored.record).await else { return Some(0) };
    let request = request?;
    let at = Instant::now();
    let lease = stored.record.policy.lease;
    let resumed = |nonce| Event::Resume { nonce, careful: ibid.engine().is_clock_unsure(lease) };
    let taken = ibid.engine().write_until_done(Some(stored.clone()), GiveUp::Soon, resumed).await;
    let (Decision::Run { after }, Some(taken)) = (taken.decision, taken.stored) else { return None };
    if !request.is_of(&taken.record) {
        release(ibid, taken).await;
        return Some(1);
    }
    let run = request.run(ibid, runner, taken, after, at);
    tokio::spawn(async move {
        run.await;
        drop(permit);
    });
    Some(1)
}

/// Records read at once.
const SWEEP_BATCH: u32 = 256;

/// Batches of each state in one sweep. A crash leaves at most a few thousand requests behind. The rest waits for the next
/// sweep.
const SWEEP_BATCHES_MAX: u32 = 40;
