//! Evidence from outside about a record or an effect, stored until it can be used.
//!
//! A webhook may arrive before its record or effect is `unknown`, and its event must count once however often it is
//! delivered.

#![expect(clippy::exhaustive_enums, reason = "every store has to handle every variant")]

use std::sync::Arc;
use std::time::Duration;

use minicbor::{Decode, Encode};
use sha2::{Digest, Sha256};

use crate::machine::{AttemptResponse, Observation};
use crate::record::Nonce;
use crate::response::Response;
use crate::scope::RecordId;
use crate::store::{BoxFuture, Cursor, Page, StoreError};
use crate::time::Timestamp;

/// One event that reports the outcome of a record or an effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// Name of the event.
    pub name: EventName,
    /// Record or effect that the event is about.
    pub about: EvidenceSubject,
    /// Attempt that ran or had run last when the event arrived; `None` if there was no record yet, or for an effect.
    pub owner: Option<Nonce>,
    /// Reported outcome; never [`Observation::Nothing`].
    pub what: Observation,
    /// Age of the event at its arrival. An interval, because the store adds it to its own clock.
    pub age: Duration,
}

/// Record or effect that evidence is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvidenceSubject {
    /// A record, by its id.
    Record(RecordId),
    /// An effect, by a name that the provider knows.
    Effect(EffectRef),
}

/// A name by which an effect is found from outside. The effect need not exist yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EffectRef {
    /// Key that the provider was called under. It is unique, so it determines effect and tenant.
    DownstreamKey(String),
    /// The provider's own id of the result.
    ProviderId {
        /// Kind of effects that have ids of this provider: two providers may use the same id.
        kind: String,
        /// Id that the provider gave.
        id: String,
    },
}

impl EvidenceSubject {
    /// Returns the id by which open evidence about it is found ([`EvidenceQuery::Of`]).
    pub fn id(&self) -> RecordId {
        match self {
            EvidenceSubject::Record(id) => *id,
            EvidenceSubject::Effect(at) => at.id(),
        }
    }
}

impl EffectRef {
    /// Returns the id by which open evidence about it is found. It has the shape of a record's id, and is never one.
    pub fn id(&self) -> RecordId {
        let mut digest = Sha256::new();
        let mut add_part = |part: &str| {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        };
        match self {
            EffectRef::DownstreamKey(key) => ["ibid evidence 1 key", key].map(&mut add_part),
            EffectRef::ProviderId { kind, id } => {
                add_part("ibid evidence 1 id");
                [kind, id].map(|part| add_part(part))
            }
        };
        RecordId::of_digest(digest)
    }
}

/// The permanent name of one event: every redelivery carries the same one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventName {
    /// Source of the event.
    pub source: String,
    /// Id that the source gave the event.
    pub event: String,
}

/// Evidence as a store returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEvidence {
    /// The event. Its age is zero, because [`StoredEvidence::as_of`] includes it.
    pub evidence: Evidence,
    /// Instant that the event is about, by the store's clock: its arrival less its age.
    pub as_of: Timestamp,
    /// `true` if it was neither used nor dismissed.
    pub open: bool,
}

/// Filter for open evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvidenceQuery {
    /// Evidence about the record or effect with this id ([`EvidenceSubject::id`]).
    Of(RecordId),
    /// All evidence that is stored.
    All,
}

/// A store for evidence. It does not interpret what the evidence proves.
///
/// The change that evidence leads to marks it as used ([`crate::change::Change::uses`]), in the same commit.
pub trait EvidenceStore: Send + Sync {
    /// Stores the evidence for `keep_for` unless its event is known. Returns the stored evidence, and whether it is
    /// new.
    ///
    /// It is on disk when this returns.
    fn insert_evidence(
        &self,
        evidence: Evidence,
        keep_for: Duration,
    ) -> BoxFuture<'_, Result<(StoredEvidence, bool), StoreError>>;

    /// Returns one page of open evidence, about in the order of arrival, from `after` on.
    ///
    /// A store passes over evidence that it cannot read, and logs it: one such row must not hide the others.
    fn open_evidence(
        &self,
        which: EvidenceQuery,
        after: Option<Cursor>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Page<StoredEvidence>, StoreError>>;

    /// Marks evidence that cannot be used any more. The store still remembers its events until their time is over.
    fn dismiss_evidence(&self, names: Vec<EventName>) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Deletes up to `limit` pieces of evidence whose time is over. Returns how many.
    fn purge_evidence(&self, limit: u32) -> BoxFuture<'_, Result<u64, StoreError>>;
}

/// Time for which a used event is remembered, from its use. Providers redeliver for three days at most; a week leaves
/// room for an operator who has an old event sent again.
pub const USED_KEPT_FOR: Duration = Duration::from_secs(7 * 24 * 3600);

/// Encodes subject and outcome as a store keeps them with [`EvidenceSubject::id`]. Returns `None` for
/// [`Observation::Nothing`], which proves nothing.
pub fn encode_evidence(evidence: &Evidence) -> Option<Vec<u8>> {
    let (downstream_key, provider) = match &evidence.about {
        EvidenceSubject::Record(_) => (None, None),
        EvidenceSubject::Effect(EffectRef::DownstreamKey(key)) => (Some(key.clone()), None),
        EvidenceSubject::Effect(EffectRef::ProviderId { kind, id }) => {
            (None, Some((kind.clone(), id.clone())))
        }
    };
    let (effect_kind, effect_provider_id) = provider.unzip();
    let about =
        EncodedEvidence { downstream_key, effect_kind, effect_provider_id, ..EncodedEvidence::default() };
    let stored = match &evidence.what {
        Observation::Executed(answer) => EncodedEvidence {
            executed: true,
            status: answer.status,
            retry_after: answer.retry_after,
            kept: answer.kept.as_ref().map(|response| response.to_bytes().to_vec()),
            provider_id: answer.provider_id.clone(),
            ..about
        },
        Observation::NotExecuted => about,
        Observation::Nothing => return None,
    };
    // Writing into a `Vec` cannot fail.
    Some(minicbor::to_vec(&stored).expect("a Vec takes every byte"))
}

/// Decodes subject and outcome from a store's bytes and the id stored with them.
pub fn decode_evidence(id: RecordId, bytes: &[u8]) -> Option<(EvidenceSubject, Observation)> {
    let stored: EncodedEvidence = minicbor::decode(bytes).ok()?;
    let about = match (stored.downstream_key, stored.effect_kind, stored.effect_provider_id) {
        (None, None, None) => EvidenceSubject::Record(id),
        (Some(key), None, None) => EvidenceSubject::Effect(EffectRef::DownstreamKey(key)),
        (None, Some(kind), Some(id)) => EvidenceSubject::Effect(EffectRef::ProviderId { kind, id }),
        _ => return None,
    };
    let what = match stored.executed {
        true => Observation::Executed(AttemptResponse {
            status: stored.status,
            retry_after: stored.retry_after,
            kept: stored.kept.map(|bytes| Response::from_bytes(&bytes).map(Arc::new)).transpose().ok()?,
            provider_id: stored.provider_id,
            proof: None,
        }),
        false => Observation::NotExecuted,
    };
    Some((about, what))
}

#[derive(Default, Encode, Decode)]
struct EncodedEvidence {
    #[n(0)]
    executed: bool,
    #[n(1)]
    status: u16,
    #[n(2)]
    retry_after: bool,
    #[cbor(n(3), with = "minicbor::bytes")]
    kept: Option<Vec<u8>>,
    #[n(4)]
    provider_id: Option<String>,
    #[n(5)]
    downstream_key: Option<String>,
    #[n(6)]
    effect_kind: Option<String>,
    #[n(7)]
    effect_provider_id: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_survives_its_encoding() {
        let answer = |kept| AttemptResponse {
            status: 402,
            retry_after: true,
            kept,
            provider_id: Some("ch_1".into()),
            proof: None,
        };
        let observations = [
            Observation::Executed(answer(Some(Arc::new(Response::json(402, &"no"))))),
            Observation::Executed(answer(None)),
            Observation::NotExecuted,
        ];
        for about in subjects() {
            for what in &observations {
                let evidence = evidence_about(about.clone(), what.clone());
                let bytes = encode_evidence(&evidence).expect("it says something");
                assert_eq!(decode_evidence(about.id(), &bytes), Some((about.clone(), what.clone())));
            }
        }
        assert_eq!(
            encode_evidence(&evidence_about(
                EvidenceSubject::Record(RecordId::from_bytes([7; RecordId::LEN])),
                Observation::Nothing
            )),
            None
        );
        assert_eq!(decode_evidence(RecordId::from_bytes([7; RecordId::LEN]), b"damaged"), None);
    }

    #[test]
    fn no_two_names_have_one_id() {
        let ids: std::collections::HashSet<_> = subjects().iter().map(EvidenceSubject::id).collect();
        assert_eq!(ids.len(), 5);
    }

    fn subjects() -> [EvidenceSubject; 5] {
        let id = |kind: &str, id: &str| EffectRef::ProviderId { kind: kind.into(), id: id.into() };
        [
            EvidenceSubject::Record(RecordId::from_bytes([7; RecordId::LEN])),
            EvidenceSubject::Effect(EffectRef::DownstreamKey("ch_1".into())),
            EvidenceSubject::Effect(id("charge", "ch_1")),
            EvidenceSubject::Effect(id("chargech", "_1")),
            EvidenceSubject::Effect(id("", "ch_1")),
        ]
    }

    fn evidence_about(about: EvidenceSubject, what: Observation) -> Evidence {
        let name = EventName { source: "psp".into(), event: "evt".into() };
        Evidence { name, about, owner: None, what, age: Duration::ZERO }
    }
}
