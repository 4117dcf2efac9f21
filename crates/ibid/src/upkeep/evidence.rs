//! Applies evidence that was missed, because a process died between writing an unknown outcome and looking for evidence
//! about it, or had no worker for the effect. Deletes evidence that is no longer useful.

use std::sync::atomic::Ordering;

use ibid_core::evidence::{EvidenceQuery, EvidenceStore, EvidenceSubject, StoredEvidence};
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
///
/// # Cancel safety
///
/// Evidence is marked as used in the commit that applies it. If the future is dropped, the next round does the rest.
pub async fn apply_evidence_once(ibid: &Ibid) -> Result<u64, StoreError> {
    let Some(store) = ibid.store().evidence() else { return Ok(0) };
    // First, so that the table shrinks even if something below fails in every round.
    purge(store).await?;
    let (mut settled, cursor) = (0, &ibid.upkeep().evidence_cursor);
    for _ in 0..BATCHES_MAX {
        let after = cursor.lock().clone();
        let open = store.open_evidence(EvidenceQuery::All, after, BATCH);
        let page = ibid.engine().read_for_chore("find evidence", open).await?;
        settled += apply_batch(ibid, store, &page.items).await?;
        let is_last = page.next.is_none();
        *cursor.lock() = page.next;
        if is_last {
            break;
        }
    }
    Ok(settled)
}

async fn purge(store: &dyn EvidenceStore) -> Result<(), StoreError> {
    for _ in 0..PURGES_MAX {
        if store.purge_evidence(PURGE_BATCH).await? < u64::from(PURGE_BATCH) {
            break;
        }
        // Lets requests run between two batches.
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// Applies each piece of evidence that settles something, and dismisses those that never will.
async fn apply_batch(
    ibid: &Ibid,
    store: &dyn EvidenceStore,
    batch: &[StoredEvidence],
) -> Result<u64, StoreError> {
    let (mut settled, mut useless) = (0, Vec::new());
    for (stored, verdict) in batch.iter().zip(evidence::judge_all(ibid, batch).await?) {
        match verdict {
            Some(EvidenceVerdict::Settles | EvidenceVerdict::Contradicts) => {
                match evidence::apply(ibid, stored).await {
                    Ok(result) => settled += u64::from(result == EvidenceResult::Settled),
                    // A record or effect that can't be written must not hold up the others. The next pass tries again.
                    Err(error) if is_of_one(stored, &error) => {
                        if error.is_transient() {
                            ibid.upkeep().is_evidence_stuck.store(true, Ordering::Relaxed);
                        }
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
                useless.push(stored.evidence.name.clone());
            }
            Some(EvidenceVerdict::Early) | None => {}
        }
    }
    if !useless.is_empty() {
        store.dismiss_evidence(useless).await?;
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
