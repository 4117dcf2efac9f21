//! What was heard from outside, put to use: kept first, weighed against the Record or the Effect then, and again whenever
//! one becomes unknown. What it proves is `ibid_core::machine`'s to say.

use std::sync::Weak;
use std::time::Duration;

use ibid_core::evidence::{About, EventName, Evidence, Kept, Open};
use ibid_core::machine::{self, Bearing, Decision, Event, Found};
use ibid_core::scope::RecordId;
use ibid_core::store::StoreError;
use ibid_core::time::Timestamp;
use metrics::counter;
use tokio::sync::mpsc;

use crate::engine::GiveUp;
use crate::failpoint;
use crate::ibid::{Ibid, Shared};
use crate::outbox::told::{self, Sighting};
use crate::telemetry;

/// What somebody outside says became of a record or an Effect.
#[derive(Clone, Debug)]
pub struct Heard {
    /// Which event says it. Whoever tells it again names it so again.
    pub name: EventName,
    /// Of what.
    pub about: About,
    /// What became of it.
    pub what: Found,
    /// How long ago that was.
    pub age: Duration,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hearing {
    /// The outcome was unknown, and this settled it.
    Settled,
    /// It is kept, and settles the outcome should that become unknown, or once a process with a worker for that Effect
    /// finds it.
    Early,
    /// It says "not executed" of an instant at which it could still be executed: it never settles anything.
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
    /// Hears what somebody outside says about a record or an Effect. Who may say it is the caller's to check.
    ///
    /// Once this returns, it need not be said again: it is used, kept, or of no use. An error means that it may not have
    /// been kept.
    pub async fn hear(&self, heard: Heard) -> Result<Hearing, StoreError> {
        let Heard { name, about, what, age } = heard;
        let evidence = Evidence { name, about, owner: None, what, age };
        let (evidence, keep_for) = match &evidence.about {
            About::Record(id) => {
                let stored = self.engine().load(*id).await?;
                let owner = stored.as_ref().map(|stored| stored.record.owner);
                let evidence = Evidence { owner, ..evidence };
                let of_no_use = stored.as_ref().and_then(|stored| {
                    let kept = arriving(&evidence, stored.now);
                    of_no_use(machine::bearing(Some(&stored.record), &kept))
                });
                if let Some(hearing) = of_no_use {
                    return Ok(hearing);
                }
                (evidence, if stored.is_some() { KEPT_FOR } else { EARLY_KEPT_FOR })
            }
            About::Effect(at) => {
                let sighting = told::find(&**self.store(), vec![at.clone()]).await?.pop();
                let Some(Sighting::One(effect)) = sighting else {
                    return self.keep(evidence, EARLY_KEPT_FOR).await;
                };
                let kept = arriving(&evidence, effect.now);
                if let Some(hearing) = of_no_use(machine::bearing_on_effect(Some(&effect), &kept)) {
                    return Ok(hearing);
                }
                (evidence, KEPT_FOR)
            }
        };
        self.keep(evidence, keep_for).await
    }

    /// Keeps it, and weighs it then.
    async fn keep(&self, evidence: Evidence, keep_for: Duration) -> Result<Hearing, StoreError> {
        let (kept, new) = self.store().testify(evidence, keep_for).await?;
        if !new && !kept.open {
            return Ok(Hearing::Duplicate);
        }
        failpoint::at("hear.kept").await;
        // Read after it was kept: what becomes unknown from here on is looked at by whoever made it so.
        self.weigh(&kept).await
    }

    /// Puts kept evidence to use, as far as it has any.
    pub(crate) async fn weigh(&self, kept: &Kept) -> Result<Hearing, StoreError> {
        match &kept.evidence.about {
            About::Record(id) => self.weigh_record(kept, *id).await,
            About::Effect(at) => told::weigh(self, kept, at).await,
        }
    }
}

impl Ibid {
    /// What has this id ([`About::id`]) became unknown. Something may have been heard of it before.
    pub(crate) async fn weigh_all_of(&self, id: RecordId) {
        let weighed = async {
            for kept in self.store().evidence(Open::Of(id), OF_RECORD_MAX).await? {
                self.weigh(&kept).await?;
            }
            Ok::<_, StoreError>(())
        };
        if let Err(error) = weighed.await {
            tracing::debug!(error = &error as &dyn std::error::Error, "evidence is left to upkeep");
        }
    }
}

impl Ibid {
    async fn weigh_record(&self, kept: &Kept, id: RecordId) -> Result<Hearing, StoreError> {
        let known = self.engine().load(id).await?;
        let settlement =
            self.engine().write_until_done(known, GiveUp::Soon, |nonce| Event::Told { nonce, kept }).await;
        let short = id.short();
        let hearing = match settlement.decision {
            Decision::Settled => {
                tracing::info!(record = %short, source = kept.evidence.name.source, "settled by a webhook");
                return Ok(Hearing::Settled);
            }
            Decision::Later => return Ok(Hearing::Early),
            Decision::Superseded => {
                counter!(telemetry::LATE_ANSWERS).increment(1);
                tracing::error!(
                    record = %short,
                    source = kept.evidence.name.source,
                    "a webhook contradicts what is stored"
                );
                Hearing::Contradicts
            }
            _ => {
                let record = settlement.stored.as_ref().map(|stored| &*stored.record);
                match machine::bearing(record, kept) {
                    Bearing::Stale => Hearing::Stale,
                    Bearing::Premature => Hearing::Premature,
                    _ => Hearing::Known,
                }
            }
        };
        self.store().dismiss(vec![kept.seq]).await?;
        Ok(hearing)
    }
}

/// Looks for evidence on records that became unknown, for as long as the engine lives.
pub(crate) async fn settle_doubts(shared: Weak<Shared>, mut doubts: mpsc::Receiver<RecordId>) {
    while let Some(id) = doubts.recv().await {
        let Some(ibid) = Ibid::upgrade(&shared) else { return };
        ibid.weigh_all_of(id).await;
    }
}

/// Evidence as it will be kept, by the store's clock when what it speaks of was read.
fn arriving(evidence: &Evidence, now: Timestamp) -> Kept {
    Kept { seq: 0, evidence: evidence.clone(), as_of: now.before(evidence.age), open: true }
}

/// Evidence that what it speaks of has no use for as it stands, and never will. Most that is heard is about what is
/// known: that leaves no row.
fn of_no_use(bearing: Bearing) -> Option<Hearing> {
    match bearing {
        Bearing::Known => Some(Hearing::Known),
        Bearing::Stale => Some(Hearing::Stale),
        // A premature one leaves a row, so that the same event, told again, is no younger.
        Bearing::Settles | Bearing::Early | Bearing::Premature | Bearing::Contradicts => None,
    }
}

/// How long evidence on what is there stays: longer than any run should take, so that it is there when the run is given up,
/// and than a service whose worker must write what follows should be away.
const KEPT_FOR: Duration = Duration::from_secs(7 * 24 * 3600);

/// How long evidence stays for which there is no record or Effect. Both are written before the call, so what is not there
/// yet is in an open transaction, or lost by a failover; most likely the call was not made through us.
const EARLY_KEPT_FOR: Duration = Duration::from_secs(3600);

/// Events about one record that are looked at: a payment has a handful in its life.
const OF_RECORD_MAX: u32 = 64;
