//! Puts evidence to use that was missed, because a process died between writing a record or an Effect and looking for it,
//! or had no worker for that Effect; and removes what is of no more use.

use ibid_core::evidence::{About, Kept, Open};
use ibid_core::machine::{Bearing, bearing};
use ibid_core::store::StoreError;

use crate::evidence::Hearing;
use crate::ibid::Ibid;
use crate::outbox::told::{self, Sighting};

/// Weighs all open evidence against what it speaks of. How many records and Effects were settled. An Effect needs a worker
/// for its kind in this process: its rows are written too.
pub async fn weigh_once(ibid: &Ibid) -> Result<u64, StoreError> {
    let (mut settled, mut after) = (0, 0);
    for _ in 0..BATCHES_MAX {
        let batch = ibid.store().evidence(Open::After(after), BATCH).await?;
        let Some(last) = batch.last() else { break };
        after = last.seq;
        let full = batch.len() as u32 == BATCH;
        let mut useless = Vec::new();
        for (kept, bearing) in batch.iter().zip(bearings(ibid, &batch).await?) {
            match bearing {
                Bearing::Settles | Bearing::Contradicts => match ibid.weigh(kept).await {
                    Ok(hearing) => settled += u64::from(hearing == Hearing::Settled),
                    // One that can't be written must not keep the others from their end; it is tried again.
                    Err(error) if matches!(kept.evidence.about, About::Effect(_)) => {
                        tracing::warn!(
                            error = &error as &dyn std::error::Error,
                            "an effect could not be settled"
                        );
                    }
                    Err(error) => return Err(error),
                },
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

/// What each means, in two questions to the store.
async fn bearings(ibid: &Ibid, batch: &[Kept]) -> Result<Vec<Bearing>, StoreError> {
    let (mut ids, mut named) = (Vec::new(), Vec::new());
    for kept in batch {
        match &kept.evidence.about {
            About::Record(id) => ids.push(*id),
            About::Effect(at) => named.push(at.clone()),
        }
    }
    let records = if ids.is_empty() { Vec::new() } else { ibid.store().load(ids).await? };
    let effects = if named.is_empty() { Vec::new() } else { told::find(&**ibid.store(), named).await? };
    let (mut records, mut effects) = (records.into_iter(), effects.into_iter());
    Ok(batch
        .iter()
        .map(|kept| match &kept.evidence.about {
            About::Record(_) => {
                bearing(records.next().flatten().as_ref().map(|stored| &*stored.record), kept)
            }
            About::Effect(_) => effects.next().unwrap_or(Sighting::Nobody).bearing(kept),
        })
        .collect())
}

/// Evidence read at once.
const BATCH: u32 = 256;

/// Batches in one round. What is open is of runs under way, and an hour of what no record is for: some thousands.
const BATCHES_MAX: u32 = 400;

/// Rows removed in one transaction: a few milliseconds.
const PURGE_BATCH: u32 = 500;
