//! Webhook evidence about records and effects: store it, judge it, apply it.
//!
//! Evidence is stored before it is judged, and looked for again whenever a record or an effect becomes unknown.
//! `ibid_core::machine` decides what it proves.

pub(crate) mod effect;

use std::panic::AssertUnwindSafe;
use std::sync::Weak;
use std::time::Duration;

use futures_util::FutureExt;
use ibid_core::change::StoredRecord;
use ibid_core::evidence::{EffectRef, EventName, Evidence, EvidenceQuery, EvidenceSubject, StoredEvidence};
use ibid_core::machine::{self, Decision, Event, EvidenceVerdict, Observation};
use ibid_core::record::Nonce;
use ibid_core::scope::RecordId;
use ibid_core::store::StoreError;
use ibid_core::time::Timestamp;
use metrics::counter;
use tokio::sync::mpsc;

use self::effect::EffectLookup;
use crate::engine::GiveUp;
use crate::failpoint;
use crate::ibid::Ibid;
use crate::ibid::IbidState;
use crate::telemetry;

/// A provider's report about the outcome of a record or an effect.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EvidenceReport {
    /// Name of the event. A second delivery of the event has the same name.
    pub name: EventName,
    /// The record or effect that it is about.
    pub about: EvidenceSubject,
    /// Reported outcome of the record or effect.
    pub what: Observation,
    /// Time since the reported outcome was observed.
    pub age: Duration,
}

impl EvidenceReport {
    /// Creates a report of an outcome that was observed just now.
    pub fn new(name: EventName, about: EvidenceSubject, what: Observation) -> EvidenceReport {
        EvidenceReport { name, about, what, age: Duration::ZERO }
    }

    /// Returns a copy in which `change` has set some fields.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut EvidenceReport)) -> EvidenceReport {
        change(&mut self);
        self
    }
}

/// Result of reporting a piece of evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "the result says whether the provider has to deliver again"]
pub enum EvidenceResult {
    /// The outcome was unknown, and the evidence settled it.
    Settled,
    /// The evidence is stored. It settles the outcome if that becomes unknown, or once a process with a worker for that
    /// kind of effect finds it.
    Early,
    /// It says "not executed" of an instant at which the call could still be made: it never settles anything.
    Premature,
    /// It is about an earlier attempt, or none: it never settles this one.
    Stale,
    /// The outcome was known already.
    Known,
    /// The outcome was known already, and the evidence says something else.
    Contradicts,
    /// The event was used or dismissed before.
    Duplicate,
}

impl Ibid {
    /// Stores and applies what a provider says about a record or an effect. The caller must have checked that it comes
    /// from the provider.
    ///
    /// Once this returns, the event need not be delivered again: it was used, is stored, or is of no use.
    ///
    /// # Errors
    ///
    /// Fails if the store does. The evidence may not be stored then, so the event must be delivered again.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the evidence may not be stored, so the event must be delivered again.
    pub async fn report_evidence(&self, report: EvidenceReport) -> Result<EvidenceResult, StoreError> {
        let EvidenceReport { name, about, what, age } = report;
        self.check_open_for_evidence().await.map_err(StoreError::unwritten)?;
        let subject = Subject::load(self, &about).await?;
        let evidence = Evidence { name, about, owner: subject.owner(), what, age };
        let keep_for = match subject.read_at() {
            None => EARLY_KEPT_FOR,
            Some(now) => {
                if let Some(result) =
                    useless(subject.judge(&arriving(&evidence, now, self.engine().skew_max())))
                {
                    return Ok(result);
                }
                KEPT_FOR
            }
        };
        let (kept, is_new) = self.store().require_evidence()?.insert_evidence(evidence, keep_for).await?;
        // T1 (this report) reads that the store is open, and stalls; T2 (a copy) closes the store, waits, and copies the evidence; T1
        // inserts its row, which is lost with the source. So the store has to be open after the insert, too: then the insert came
        // before the copy read the evidence. Otherwise the provider delivers the event again, to the process on the target.
        self.check_open_for_evidence().await?;
        if !is_new && !kept.open {
            return Ok(EvidenceResult::Duplicate);
        }
        failpoint::at("hear.kept").await;
        // The subject is read again, after the evidence was stored: a process that makes it unknown from here on looks
        // for the evidence itself.
        apply(self, &kept).await
    }

    async fn check_open_for_evidence(&self) -> Result<(), StoreError> {
        if self.engine().confirm_open().await {
            return Ok(());
        }
        let why = "a copy keeps the store closed: the event has to be delivered again";
        Err(StoreError::transient(self.store().facts().name, "store evidence", why))
    }
}

/// Applies one stored piece of evidence to the record or effect that it names.
pub(crate) async fn apply(ibid: &Ibid, kept: &StoredEvidence) -> Result<EvidenceResult, StoreError> {
    match &kept.evidence.about {
        EvidenceSubject::Record(id) => apply_to_record(ibid, kept, *id).await,
        EvidenceSubject::Effect(at) => effect::apply(ibid, kept, at).await,
    }
}

/// Applies evidence that arrived before the record or effect with this id ([`EvidenceSubject::id`]) became unknown. Failures are
/// left to upkeep.
pub(crate) async fn apply_earlier_evidence(ibid: &Ibid, id: RecordId) {
    let apply_all = async {
        let open =
            ibid.store().require_evidence()?.open_evidence(EvidenceQuery::Of(id), None, OF_SUBJECT_MAX);
        for kept in ibid.engine().read_for_chore("find evidence", open).await?.items {
            let _ = apply(ibid, &kept).await?;
        }
        Ok::<_, StoreError>(())
    };
    if let Err(error) = apply_all.await {
        tracing::debug!(error = &error as &dyn std::error::Error, "evidence not applied; left to upkeep");
    }
}

/// Judges a batch of evidence with two reads of the store. If one subject can't be read, each is read by itself, and only
/// that one has no verdict.
///
/// # Errors
///
/// Fails if the store does not answer.
pub(crate) async fn judge_all(
    ibid: &Ibid,
    batch: &[StoredEvidence],
) -> Result<Vec<Option<EvidenceVerdict>>, StoreError> {
    let subjects = match Subject::load_all(ibid, batch.iter().map(|kept| &kept.evidence.about)).await {
        Err(error) if error.is_transient() => return Err(error),
        Ok(subjects) => subjects,
        Err(_) => return judge_one_by_one(ibid, batch).await,
    };
    Ok(batch.iter().zip(subjects).map(|(kept, subject)| Some(subject.judge(kept))).collect())
}

async fn judge_one_by_one(
    ibid: &Ibid,
    batch: &[StoredEvidence],
) -> Result<Vec<Option<EvidenceVerdict>>, StoreError> {
    let mut verdicts = Vec::with_capacity(batch.len());
    for kept in batch {
        verdicts.push(match Subject::load(ibid, &kept.evidence.about).await {
            Ok(subject) => Some(subject.judge(kept)),
            Err(error) if error.is_transient() => return Err(error),
            Err(error) => {
                let (subject, error) = (kept.evidence.about.id().short(), &error as &dyn std::error::Error);
                tracing::warn!(%subject, error, "evidence not judged: its record or effect can't be read");
                None
            }
        });
    }
    Ok(verdicts)
}

/// A record or an effect as it was read to judge evidence about it.
enum Subject {
    Record(Option<StoredRecord>),
    Effect(EffectLookup),
}

impl Subject {
    async fn load(ibid: &Ibid, about: &EvidenceSubject) -> Result<Subject, StoreError> {
        Ok(match about {
            EvidenceSubject::Record(id) => Subject::Record(ibid.engine().load(*id).await?),
            EvidenceSubject::Effect(at) => Subject::Effect(effect::find(ibid, at.clone()).await?),
        })
    }

    /// Loads all of them, in their order.
    async fn load_all<'a>(
        ibid: &Ibid,
        all: impl Iterator<Item = &'a EvidenceSubject> + Clone,
    ) -> Result<Vec<Subject>, StoreError> {
        let (mut ids, mut named) = (Vec::new(), Vec::<EffectRef>::new());
        for about in all.clone() {
            match about {
                EvidenceSubject::Record(id) => ids.push(*id),
                EvidenceSubject::Effect(at) => named.push(at.clone()),
            }
        }
        let records = if ids.is_empty() { Vec::new() } else { ibid.engine().load_all(ids).await? };
        let effects = effect::find_all(ibid, named).await?;
        let (mut records, mut effects) = (records.into_iter(), effects.into_iter());
        let subjects = all.map(|about| match about {
            EvidenceSubject::Record(_) => Subject::Record(records.next().flatten()),
            EvidenceSubject::Effect(_) => Subject::Effect(effects.next().unwrap_or(EffectLookup::None)),
        });
        Ok(subjects.collect())
    }

    fn judge(&self, kept: &StoredEvidence) -> EvidenceVerdict {
        match self {
            Subject::Record(stored) => {
                machine::judge_record(stored.as_ref().map(|stored| &*stored.record), kept)
            }
            Subject::Effect(lookup) => lookup.judge(kept),
        }
    }

    /// The store's clock when it was read; none if there is no such record, or not exactly one such effect.
    fn read_at(&self) -> Option<Timestamp> {
        match self {
            Subject::Record(stored) => stored.as_ref().map(|stored| stored.now),
            Subject::Effect(EffectLookup::One(effect)) => Some(effect.now),
            Subject::Effect(EffectLookup::None | EffectLookup::Several) => None,
        }
    }

    /// The attempt that runs the record or ran it last.
    fn owner(&self) -> Option<Nonce> {
        match self {
            Subject::Record(stored) => stored.as_ref().map(|stored| stored.record.owner),
            Subject::Effect(_) => None,
        }
    }
}

async fn apply_to_record(
    ibid: &Ibid,
    kept: &StoredEvidence,
    id: RecordId,
) -> Result<EvidenceResult, StoreError> {
    let known = ibid.engine().load(id).await?;
    let settlement = ibid
        .engine()
        .write_until_done(known, GiveUp::Soon, |nonce| Event::Evidence { nonce, evidence: kept })
        .await;
    let (short, source) = (id.short(), &kept.evidence.name.source);
    let result = match settlement.decision {
        Decision::Settled => {
            tracing::info!(record = %short, source, "record settled by webhook");
            return Ok(EvidenceResult::Settled);
        }
        Decision::Later => return Ok(EvidenceResult::Early),
        Decision::Superseded => {
            counter!(telemetry::LATE_ANSWERS).increment(1);
            tracing::error!(record = %short, source, "webhook contradicts the stored outcome");
            EvidenceResult::Contradicts
        }
        _ => {
            let record = settlement.stored.as_ref().map(|stored| &*stored.record);
            match machine::judge_record(record, kept) {
                EvidenceVerdict::Stale => EvidenceResult::Stale,
                EvidenceVerdict::Premature => EvidenceResult::Premature,
                _ => EvidenceResult::Known,
            }
        }
    };
    ibid.store().require_evidence()?.dismiss_evidence(vec![kept.evidence.name.clone()]).await?;
    Ok(result)
}

/// Looks for evidence about records that became unknown, for as long as the engine lives. A look that panics ends only itself: upkeep
/// finds its evidence.
pub(crate) async fn settle_doubts(shared: Weak<IbidState>, mut doubts: mpsc::Receiver<RecordId>) {
    while let Some(id) = doubts.recv().await {
        let Some(ibid) = Ibid::upgrade(&shared) else { return };
        // Unwind safety: a look changes nothing but the store, by whole commits.
        let look = AssertUnwindSafe(apply_earlier_evidence(&ibid, id)).catch_unwind();
        if look.await.is_err() {
            counter!(telemetry::CHORE_PANICS, "chore" => "evidence").increment(1);
            tracing::error!(record = %id.short(), "look for evidence panicked; left to upkeep");
        }
    }
}

/// Evidence as it will be stored, by the store's clock when its subject was read.
///
/// Where nodes have their own clocks, a read gives an instant that has certainly passed. "Not executed" counts from
/// there. "Executed" would look stale for as long as nodes may differ, so it counts from the node's own time.
fn arriving(evidence: &Evidence, now: Timestamp, skew_max: Duration) -> StoredEvidence {
    let arrived = if evidence.what == Observation::NotExecuted { now } else { now.after(skew_max) };
    StoredEvidence { evidence: evidence.clone(), as_of: arrived.before(evidence.age), open: true }
}

/// Returns the result of evidence that its subject has no use for, now or later. Most evidence is about a known outcome:
/// it leaves no row.
fn useless(verdict: EvidenceVerdict) -> Option<EvidenceResult> {
    match verdict {
        EvidenceVerdict::Known => Some(EvidenceResult::Known),
        EvidenceVerdict::Stale => Some(EvidenceResult::Stale),
        // Premature evidence leaves a row, so that a second delivery of the same event is no younger.
        EvidenceVerdict::Settles
        | EvidenceVerdict::Early
        | EvidenceVerdict::Premature
        | EvidenceVerdict::Contradicts => None,
    }
}

/// Retention of evidence about an existing record or effect: longer than any run should take, so that it is there when the
/// run is given up, and longer than a service whose worker must apply it should be down.
const KEPT_FOR: Duration = Duration::from_secs(7 * 24 * 3600);

/// Retention of evidence without a record or effect. Both are written before the call, so a missing one is in an open
/// transaction, or was lost by a failover. Most likely the call was not made through ibid.
const EARLY_KEPT_FOR: Duration = Duration::from_secs(3600);

/// Events about one record or effect that are read: a payment has a handful in its life.
const OF_SUBJECT_MAX: u32 = 64;
