//! Applies evidence that was missed, because a process died between writing an unknown outcome and looking for evidence
//! about it, or had no worker for the effect. Deletes evidence that is no longer useful.

use ibid_core::evidence::{EvidenceQuery, EvidenceSubject};
use ibid_core::machine::EvidenceVerdict;
use ibid_core::store::StoreError;

use crate::evidence::{self, EvidenceResult};
use crate::ibid::Ibid;

/// Applies all open evidence. Returns how many records and effects were settled. An effect needs a worker for its kind in
/// this process, because its handler's rows are written too.
///
/// # Errors
///
/// Fails if the store does. The next round starts over.
pub async fn apply_evidence_once(ibid: &Ibid) -> Result<u64, StoreError> {
    let Some(store) = ibid.store().evidence() else { return Ok(0) };
    let (mut settled, mut after) = (0, None);
    for _ in 0..BATCHES_MAX {
        let page = store.open_evidence(EvidenceQuery::All, after, BATCH).await?;
        let batch = page.items;
        after = page.next;
        let mut useless = Vec::new();
        for (stored, verdict) in batch.iter().zip(evidence::judge_all(ibid, &batch).await?) {
            match verdict {
                EvidenceVerdict::Settles | EvidenceVerdict::Contradicts => {
                    match evidence::apply(ibid, stored).await {
                        Ok(result) => settled += u64::from(result == EvidenceResult::Settled),
                        // An effect that cannot be written must not hold up the others. The next round tries again.
                        Err(error) if matches!(stored.evidence.about, EvidenceSubject::Effect(_)) => {
                            tracing::warn!(
                                error = &error as &dyn std::error::Error,
                                "evidence not applied to effect; retried in the next round"
                            );
                        }
                        Err(error) => return Err(error),
                    }
                }
                EvidenceVerdict::Stale | EvidenceVerdict::Premature | EvidenceVerdict::Known => {
                    useless.push(stored.evidence.name.clone());
                }
                EvidenceVerdict::Early => {}
            }
        }
        if !useless.is_empty() {
            store.dismiss_evidence(useless).await?;
        }
        if after.is_none() {
            break;
        }
    }
    for _ in 0..BATCHES_MAX {
        if store.purge_evidence(PURGE_BATCH).await? < u64::from(PURGE_BATCH) {
            break;
        }
        // Lets requests run between two batches.
        tokio::task::yield_now().await;
    }
    Ok(settled)
}

/// Pieces of evidence that are read at once.
const BATCH: u32 = 256;

/// Batches in one round. Open evidence is about running requests, plus an hour of evidence without a record: some
/// thousands.
const BATCHES_MAX: u32 = 400;

/// Rows deleted in one transaction: a few milliseconds.
const PURGE_BATCH: u32 = 500;
