//! Puts evidence to use that was missed, because a process died between writing a record and looking for it, and removes
//! what is of no more use.

use ibid_core::evidence::Open;
use ibid_core::machine::{Bearing, bearing};
use ibid_core::store::StoreError;

use crate::engine::{Hearing, Ibid};

/// Weighs all open evidence against its records. How many records were settled.
pub async fn weigh_once(ibid: &Ibid) -> Result<u64, StoreError> {
    let (mut settled, mut after) = (0, 0);
    for _ in 0..BATCHES_MAX {
        let batch = ibid.store().evidence(Open::After(after), BATCH).await?;
        let Some(last) = batch.last() else { break };
        after = last.seq;
        let full = batch.len() as u32 == BATCH;
        let records = ibid.store().load(batch.iter().map(|kept| kept.evidence.record).collect()).await?;
        let mut useless = Vec::new();
        for (kept, stored) in batch.iter().zip(records) {
            match bearing(stored.as_ref().map(|stored| &stored.record), kept) {
                Bearing::Settles | Bearing::Contradicts => {
                    settled += u64::from(ibid.inner().weigh(kept).await? == Hearing::Settled);
                }
                Bearing::Stale | Bearing::Premature | Bearing::Known => useless.push(kept.seq),
                Bearing::Early => {}
            }
        }
        if !useless.is_empty() {
            ibid.store().dismiss(useless).await?;
        }
        if !full {
            break;
        }
    }
    for _ in 0..BATCHES_MAX {
        if ibid.store().purge_evidence(PURGE_BATCH).await? < u64::from(PURGE_BATCH) {
            break;
        }
        // The foreground goes between two batches.
        tokio::task::yield_now().await;
    }
    Ok(settled)
}

/// Evidence read at once.
const BATCH: u32 = 256;

/// Batches in one round. What is open is of runs under way, and an hour of what no record is for: some thousands.
const BATCHES_MAX: u32 = 400;

/// Rows removed in one transaction: a few milliseconds.
const PURGE_BATCH: u32 = 500;
