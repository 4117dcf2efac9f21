//! Removes what is past its time, in batches small enough for the foreground not to feel.

use ibid_core::machine::Event;
use ibid_core::record::State;
use ibid_core::store::StoreError;
use metrics::{counter, gauge};

use crate::engine::Ibid;
use crate::telemetry;

/// Removes rows past their `purge_at`, and answers what was accepted and never claimed. How many rows went.
pub async fn reap_once(ibid: &Ibid) -> Result<u64, StoreError> {
    for stored in ibid.store().due(State::Pending, PENDING_BATCH).await? {
        ibid.inner().settle_patiently(Some(stored), |nonce| Event::NeverClaimed { nonce }).await;
    }
    let mut gone = 0;
    for _ in 0..REAP_BATCHES_MAX {
        let batch = ibid.store().purge(REAP_BATCH).await?;
        counter!(telemetry::RETENTION_PRUNED).increment(batch);
        gone += batch;
        if batch < u64::from(REAP_BATCH) {
            break;
        }
        // The foreground goes between two batches.
        tokio::task::yield_now().await;
    }
    // Counting walks the whole table on some stores, so it goes with the rarer chore.
    count_records(ibid).await?;
    Ok(gone)
}

async fn count_records(ibid: &Ibid) -> Result<(), StoreError> {
    let counts = ibid.store().count().await?;
    for (state, count) in State::ALL.into_iter().zip(counts.by_state) {
        gauge!(telemetry::RECORDS, "state" => state.name()).set(count as f64);
    }
    let unknown = State::ALL.into_iter().zip(counts.oldest).find(|(state, _)| *state == State::Unknown);
    let since = unknown.and_then(|(_, since)| since).unwrap_or_default();
    gauge!(telemetry::OLDEST_UNKNOWN).set(since.as_secs_f64());
    gauge!(telemetry::DEAD_LETTERS).set(counts.dead_letters as f64);
    Ok(())
}

/// Accepted records read at once.
const PENDING_BATCH: u32 = 256;

/// Rows removed in one transaction: a few milliseconds, so that begins do not feel it.
const REAP_BATCH: u32 = 500;

/// Batches in one reaping; at one a minute this keeps up with 3,000 keys a second.
const REAP_BATCHES_MAX: u32 = 400;
