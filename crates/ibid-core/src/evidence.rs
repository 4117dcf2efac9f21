//! What somebody outside was heard to say about a Record or an Effect, kept until it can be used: a webhook may come
//! before what it speaks of is `unknown`, and its event must count once however often it is delivered.

use std::time::Duration;

use bytes::Bytes;
use minicbor::{Decode, Encode};
use sha2::{Digest, Sha256};

use crate::machine::{AttemptResponse, Observation};
use crate::record::Nonce;
use crate::scope::RecordId;
use crate::store::{BoxFuture, StoreError};
use crate::time::Timestamp;

/// One event that says what became of a Record or an Effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// Which event it is.
    pub name: EventName,
    /// What it speaks of.
    pub about: EvidenceSubject,
    /// The Attempt that ran or had run last when it arrived; none if there was no record yet, or it is an Effect's.
    pub owner: Option<Nonce>,
    /// What it says; never [`Observation::Nothing`].
    pub what: Observation,
    /// How long ago the event was when it arrived: an interval, for the store adds it to its own clock.
    pub age: Duration,
}

/// What evidence speaks of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvidenceSubject {
    /// A Record.
    Record(RecordId),
    /// An Effect, by a name that the provider knows.
    Effect(EffectRef),
}

/// A name by which an Effect is found from outside. It need not be there yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EffectRef {
    /// The key that the provider was called under: nobody else's, so it names Effect and tenant.
    DownstreamKey(String),
    /// The provider's own id.
    ProviderId {
        /// Which Effects have ids of this provider: two providers may well use one id.
        kind: String,
        /// The id.
        id: String,
    },
}

impl EvidenceSubject {
    /// What open evidence on it is found by ([`EvidenceQuery::Of`]).
    pub fn id(&self) -> RecordId {
        match self {
            EvidenceSubject::Record(id) => *id,
            EvidenceSubject::Effect(at) => at.id(),
        }
    }
}

impl EffectRef {
    /// What open evidence on it is found by: of the shape of a Record's id, and never one.
    pub fn id(&self) -> RecordId {
        let mut digest = Sha256::new();
        let mut framed = |part: &str| {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        };
        match self {
            EffectRef::DownstreamKey(key) => ["ibid evidence 1 key", key].map(&mut framed),
            EffectRef::ProviderId { kind, id } => {
                framed("ibid evidence 1 id");
                [kind, id].map(|part| framed(part))
            }
        };
        RecordId::from_bytes(digest.finalize().into())
    }
}

/// Names one event for ever: whoever delivers it again names it so again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventName {
    /// Who says it.
    pub source: String,
    /// The source's own id of the event.
    pub event: String,
}

/// Evidence as a store holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEvidence {
    /// Its number in the store, in the order of arrival.
    pub seq: i64,
    /// The event. Its age is zero: it is in [`StoredEvidence::as_of`].
    pub evidence: Evidence,
    /// The instant that it speaks of, by the store's clock: its arrival less its age.
    pub as_of: Timestamp,
    /// Neither used nor dismissed.
    pub open: bool,
}

/// Which open evidence to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvidenceQuery {
    /// Of what has this id ([`EvidenceSubject::id`]).
    Of(RecordId),
    /// Of any, after this number: the cursor.
    After(i64),
}

/// Where evidence is kept. The store holds no opinion on what it proves.
///
/// That it was used is written by the Change that it led to ([`crate::change::Change::uses`]), in the same commit.
pub trait EvidenceStore: Send + Sync {
    /// Keeps the evidence for `keep_for` unless its event is known; gives what is kept, and whether it is new. When it
    /// returns, it is on disk.
    fn insert_evidence(
        &self,
        evidence: Evidence,
        keep_for: Duration,
    ) -> BoxFuture<'_, Result<(StoredEvidence, bool), StoreError>>;

    /// Open evidence, oldest first.
    fn open_evidence(
        &self,
        which: EvidenceQuery,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<StoredEvidence>, StoreError>>;

    /// These can't be used any more. Their events stay known until their time.
    fn dismiss_evidence(&self, seqs: Vec<i64>) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Removes up to `limit` whose time is over. How many went.
    fn purge_evidence(&self, limit: u32) -> BoxFuture<'_, Result<u64, StoreError>>;
}

/// How long an event that was used stays known, from its use. Providers deliver again for three days at most; a week
/// leaves room for a person who has an old one sent again.
pub const USED_KEPT_FOR: Duration = Duration::from_secs(7 * 24 * 3600);

/// What was found and of what, as a store keeps it beside [`EvidenceSubject::id`]. None for [`Observation::Nothing`], which proves
/// nothing.
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
            kept: answer.kept.as_ref().map(|bytes| bytes.to_vec()),
            provider_id: answer.provider_id.clone(),
            ..about
        },
        Observation::NotExecuted => about,
        Observation::Nothing => return None,
    };
    // Writing into a Vec has no way to fail.
    Some(minicbor::to_vec(&stored).expect("a Vec takes every byte"))
}

/// What was found and of what, out of a store's bytes and the id beside them.
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
            kept: stored.kept.map(Bytes::from),
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
    fn what_was_said_is_read_as_it_was_written() {
        let answer = |kept| AttemptResponse {
            status: 402,
            retry_after: true,
            kept,
            provider_id: Some("ch_1".into()),
            proof: None,
        };
        let found = [
            Observation::Executed(answer(Some(Bytes::from_static(b"\x01body")))),
            Observation::Executed(answer(None)),
            Observation::NotExecuted,
        ];
        for about in subjects() {
            for what in &found {
                let evidence = said(about.clone(), what.clone());
                let bytes = encode_evidence(&evidence).expect("it says something");
                assert_eq!(decode_evidence(about.id(), &bytes), Some((about.clone(), what.clone())));
            }
        }
        assert_eq!(
            encode_evidence(&said(
                EvidenceSubject::Record(RecordId::from_bytes([7; 32])),
                Observation::Nothing
            )),
            None
        );
        assert_eq!(decode_evidence(RecordId::from_bytes([7; 32]), b"damaged"), None);
    }

    #[test]
    fn no_two_names_have_one_id() {
        let ids: std::collections::HashSet<_> = subjects().iter().map(EvidenceSubject::id).collect();
        assert_eq!(ids.len(), 5);
    }

    fn subjects() -> [EvidenceSubject; 5] {
        let id = |kind: &str, id: &str| EffectRef::ProviderId { kind: kind.into(), id: id.into() };
        [
            EvidenceSubject::Record(RecordId::from_bytes([7; 32])),
            EvidenceSubject::Effect(EffectRef::DownstreamKey("ch_1".into())),
            EvidenceSubject::Effect(id("charge", "ch_1")),
            EvidenceSubject::Effect(id("chargech", "_1")),
            EvidenceSubject::Effect(id("", "ch_1")),
        ]
    }

    fn said(about: EvidenceSubject, what: Observation) -> Evidence {
        let name = EventName { source: "psp".into(), event: "evt".into() };
        Evidence { name, about, owner: None, what, age: Duration::ZERO }
    }
}
