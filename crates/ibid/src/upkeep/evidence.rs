//! Applies evidence that was missed, because a process died between writing an unknown outcome and looking for evidence
//! about it, or had no worker for the effect. Deletes evidence that is no longer useful.

use std::sync::atomic::Ordering;

use ibid_core::evidence::{EvidenceQuery, EvidenceSubject, StoredEvidence};
use ibid_core::machine::EvidenceVerdict;
use ibid_core::store::StoreError;

use crate::evidence::{self, EvidenceResult};
use crate::ibid::Ibid;

/// Applies open evidence, some thousand pieces in one round. Returns how many records and effects were settled. The next
/// round continues behind the last piece, and starts over after the newest. An effect needs a worker for its kind in this
/// process, because its handler's rows are written too.
///
/// # Errors
///
/// Fails if the store does not answer. The next round tries the same evidence again.
pub async fn apply_evidence_once(ibid: &Ibid) -> Result<u64, StoreError> {
    // First, so that the table shrinks even if something below fails in every round.
    purge(ibid).await?;
    let (mut settled, cursor) = (0, &ibid.upkeep().evidence_cursor);
    for _ in 0..BATCHES_MAX {
        let after = cursor.load(Ordering::Relaxed);
        let batch = ibid.store().open_evidence(EvidenceQuery::After(after), BATCH).await?;
        settled += apply_batch(ibid, &batch).await?;
        match batch.last().filter(|_| batch.len() as u32 == BATCH) {
            Some(last) => cursor.store(last.seq, Ordering::Relaxed),
            None => {
                cursor.store(0, Ordering::Relaxed);
                break;
            }
        }
    }
    Ok(settled)
}

async fn purge(ibid: &Ibid) -> Result<(), StoreError> {
    for _ in 0..PURGES_MAX {
        if ibid.store().purge_evidence(PURGE_BATCH).await? < u64::from(PURGE_BATCH) {
            break;
        }
        // Lets requests run between two batches.
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// Applies each piece of evidence that settles something, and dismisses those that never will.
async fn apply_batch(ibid: &Ibid, batch: &[StoredEvidence]) -> Result<u64, StoreError> {
    let (mut settled, mut useless) = (0, Vec::new());
    for (stored, verdict) in batch.iter().zip(evidence::judge_all(ibid, batch).await?) {
        match verdict {
            Some(EvidenceVerdict::Settles | EvidenceVerdict::Contradicts) => {
                match evidence::apply(ibid, stored).await {
                    Ok(result) => settled += u64::from(result == EvidenceResult::Settled),
                    // A record or effect that can't be written must not hold up the others. The next pass tries again.
                    Err(error) if is_of_one(stored, &error) => {
                        tracing::warn!(
                            subject = %stored.evidence.about.id().short(),
                            error = &error as &dyn std::error::Error,
                            "evidence not applied; retried later"
                        );
                    }
                    Err(error) => return Err(error),
                }
            }
            Some(EvidenceVerdict::Stale | EvidenceVerdict::Premature | EvidenceVerdict::Known) => {
                useless.push(stored.seq);
            }
            Some(EvidenceVerdict::Early) | None => {}
        }
    }
    if !useless.is_empty() {
        ibid.store().dismiss_evidence(useless).await?;
    }
    Ok(settled)
}

/// Returns whether an error may be about this one piece of evidence. An effect's handler may fail for its own reasons.
fn is_of_one(stored: &StoredEvidence, error: &StoreError) -> bool {
    matches!(stored.evidence.about, EvidenceSubject::Effect(_)) || !error.is_transient()
}

/// Pieces of evidence that are read at once.
const BATCH: u32 = 256;

/// Batches in one round: some thousand pieces. Every process that writes an unknown outcome looks for its evidence at once,
/// so the rounds only cover crashes, and a hundred thousand pieces may take some minutes.
const BATCHES_MAX: u32 = 16;

/// Batches of deletions in one round: more than an hour of a busy webhook.
const PURGES_MAX: u32 = 400;

/// Rows deleted in one transaction: a few milliseconds.
const PURGE_BATCH: u32 = 500;
