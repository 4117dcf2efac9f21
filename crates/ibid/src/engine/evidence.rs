//! What was heard from outside, put to use: kept first, weighed against the record then, and again whenever a record
//! becomes unknown. What it proves is `ibid_core::machine`'s to say.

use std::sync::{Arc, Weak};
use std::time::Duration;

use ibid_core::change::Stored;
use ibid_core::evidence::{EventName, Evidence, Kept, Open};
use ibid_core::machine::{self, Bearing, Decision, Event, Found};
use ibid_core::record::State;
use ibid_core::scope::RecordId;
use ibid_core::store::StoreError;
use tokio::sync::mpsc;

use super::{Ibid, Inner};

/// What somebody outside says became of a record.
#[derive(Clone, Debug)]
pub struct Heard {
    /// Which event says it. Whoever tells it again names it so again.
    pub name: EventName,
    /// The record.
    pub record: RecordId,
    /// What became of it.
    pub what: Found,
    /// How long ago that was.
    pub age: Duration,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hearing {
    /// The record was unknown, and this settled it.
    Settled,
    /// It is kept, and settles the record should that become unknown.
    Early,
    /// It says "not executed" of an instant at which the Attempt could still execute it: it never settles anything.
    Premature,
    /// It speaks of an earlier Attempt, or of none: it never settles this one.
    Stale,
    /// The outcome was known already.
    Known,
    /// The outcome was known already, and this says something else.
    Contradicts,
    /// The event was used or put aside before.
    Duplicate,
}

impl Ibid {
    /// Hears what somebody outside says about a record. Who may say it is the caller's to check.
    ///
    /// Once this returns, it need not be said again: it is used, kept, or of no use. An error means that it may not have
    /// been kept.
    pub async fn hear(&self, heard: Heard) -> Result<Hearing, StoreError> {
        let stored = self.inner.load(heard.record).await?;
        let owner = stored.as_ref().map(|stored| stored.record.owner);
        let Heard { name, record, what, age } = heard;
        let evidence = Evidence { name, record, owner, what, age };
        // Most that is heard is about what is known: that leaves no row.
        if let Some(hearing) = stored.as_ref().and_then(|stored| of_no_use(stored, &evidence)) {
            return Ok(hearing);
        }
        let keep_for = if owner.is_some() { KEPT_FOR } else { EARLY_KEPT_FOR };
        let (kept, new) = self.inner.store.testify(evidence, keep_for).await?;
        if !new && !kept.open {
            return Ok(Hearing::Duplicate);
        }
        // Read after it was kept: a record that becomes unknown from here on is looked at by whoever made it so.
        self.inner.weigh(&kept).await
    }
}

impl Inner {
    /// Puts kept evidence to use, as far as it has any.
    pub(crate) async fn weigh(&self, kept: &Kept) -> Result<Hearing, StoreError> {
        let known = self.load(kept.evidence.record).await?;
        let settlement = self.settle_patiently(known, |nonce| Event::Told { nonce, kept }).await;
        let short = kept.evidence.record.short();
        let hearing = match settlement.decision {
            Decision::Settled => {
                tracing::info!(record = %short, source = kept.evidence.name.source, "settled by a webhook");
                return Ok(Hearing::Settled);
            }
            Decision::Later => return Ok(Hearing::Early),
            Decision::Superseded => {
                tracing::error!(
                    record = %short,
                    source = kept.evidence.name.source,
                    "a webhook contradicts what is stored"
                );
                Hearing::Contradicts
            }
            _ => {
                let record = settlement.stored.as_ref().map(|stored| &stored.record);
                match machine::bearing(record, kept) {
                    Bearing::Stale => Hearing::Stale,
                    Bearing::Premature => Hearing::Premature,
                    _ => Hearing::Known,
                }
            }
        };
        self.store.dismiss(vec![kept.seq]).await?;
        Ok(hearing)
    }

    /// The record was just written. If nobody knows what became of it, something may have been heard before.
    pub(super) fn wrote(&self, stored: Option<&Stored>) {
        if let Some(stored) = stored.filter(|stored| stored.record.state == State::Unknown) {
            // What finds no place is found by the next round of upkeep.
            let _ = self.doubts.try_send(stored.record.id);
        }
    }
}

/// Looks for evidence on records that became unknown, for as long as the engine lives.
pub(super) async fn settle_doubts(inner: Weak<Inner>, mut doubts: mpsc::Receiver<RecordId>) {
    while let Some(id) = doubts.recv().await {
        let Some(inner) = inner.upgrade() else { return };
        if let Err(error) = settle_doubt(&inner, id).await {
            tracing::debug!(error = &error as &dyn std::error::Error, "evidence is left to upkeep");
        }
    }
}

async fn settle_doubt(inner: &Arc<Inner>, id: RecordId) -> Result<(), StoreError> {
    for kept in inner.store.evidence(Open::Of(id), OF_RECORD_MAX).await? {
        inner.weigh(&kept).await?;
    }
    Ok(())
}

/// Evidence that the record as it stands has no use for, and never will.
fn of_no_use(stored: &Stored, evidence: &Evidence) -> Option<Hearing> {
    let as_of = stored.now.before(evidence.age);
    let kept = Kept { seq: 0, evidence: evidence.clone(), as_of, open: true };
    match machine::bearing(Some(&stored.record), &kept) {
        Bearing::Known => Some(Hearing::Known),
        Bearing::Stale => Some(Hearing::Stale),
        // A premature one leaves a row, so that the same event, told again, is no younger.
        Bearing::Settles | Bearing::Early | Bearing::Premature | Bearing::Contradicts => None,
    }
}

/// Records that may wait to be looked at. A crash of the upstream makes some thousands unknown at once.
pub(super) const DOUBTS_MAX: usize = 4096;

/// How long evidence on a record stays: longer than any run should take, so that it is there when the run is given up.
const KEPT_FOR: Duration = Duration::from_secs(24 * 3600);

/// How long evidence stays for which there is no record. A record is written before the call that it guards, so what is
/// not there yet is in an open transaction, or lost by a failover; most likely the call was not made through us.
const EARLY_KEPT_FOR: Duration = Duration::from_secs(3600);

/// Events about one record that are looked at: a payment has a handful in its life.
const OF_RECORD_MAX: u32 = 64;
