//! What somebody outside was heard to say about a Record or an Effect, kept until it can be used: a webhook may come
//! before what it speaks of is `unknown`, and its event must count once however often it is delivered.

use std::time::Duration;

use bytes::Bytes;
use minicbor::{Decode, Encode};
use sha2::{Digest, Sha256};

use crate::machine::{Answer, Found};
use crate::record::Nonce;
use crate::scope::RecordId;
use crate::store::{Pending, StoreError};
use crate::time::Timestamp;

/// One event that says what became of a Record or an Effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// Which event it is.
    pub name: EventName,
    /// What it speaks of.
    pub about: About,
    /// The Attempt that ran or had run last when it arrived; none if there was no record yet, or it is an Effect's.
    pub owner: Option<Nonce>,
    /// What it says; never [`Found::Nothing`].
    pub what: Found,
    /// How long ago the event was when it arrived: an interval, for the store adds it to its own clock.
    pub age: Duration,
}

/// What evidence speaks of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum About {
    /// A Record.
    Record(RecordId),
    /// An Effect, by a name that the provider knows.
    Effect(EffectAt),
}

/// A name by which an Effect is found from outside. It need not be there yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EffectAt {
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

impl About {
    /// What open evidence on it is found by ([`Open::Of`]).
    pub fn id(&self) -> RecordId {
        match self {
            About::Record(id) => *id,
            About::Effect(at) => at.id(),
        }
    }
}

impl EffectAt {
    /// What open evidence on it is found by: of the shape of a Record's id, and never one.
    pub fn id(&self) -> RecordId {
        let mut digest = Sha256::new();
        let mut framed = |part: &str| {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        };
        match self {
            EffectAt::DownstreamKey(key) => ["ibid evidence 1 key", key].map(&mut framed),
            EffectAt::ProviderId { kind, id } => {
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
pub struct Kept {
    /// Its number in the store, in the order of arrival.
    pub seq: i64,
    /// The event. Its age is zero: it is in [`Kept::as_of`].
    pub evidence: Evidence,
    /// The instant that it speaks of, by the store's clock: its arrival less its age.
    pub as_of: Timestamp,
    /// Neither used nor dismissed.
    pub open: bool,
}

/// Which open evidence to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// Of what has this id ([`About::id`]).
    Of(RecordId),
    /// Of any, after this number: the cursor.
    After(i64),
}

/// Where evidence is kept. The store holds no opinion on what it proves.
///
/// That it was used is written by the Change that it led to ([`crate::change::Change::uses`]), in the same commit.
pub trait Witness: Send + Sync {
    /// Keeps the evidence for `keep_for` unless its event is known; gives what is kept, and whether it is new. When it
    /// returns, it is on disk.
    fn testify(
        &self,
        evidence: Evidence,
        keep_for: Duration,
    ) -> Pending<'_, Result<(Kept, bool), StoreError>>;

    /// Open evidence, oldest first.
    fn evidence(&self, which: Open, limit: u32) -> Pending<'_, Result<Vec<Kept>, StoreError>>;

    /// These can't be used any more. Their events stay known until their time.
    fn dismiss(&self, seqs: Vec<i64>) -> Pending<'_, Result<(), StoreError>>;

    /// Removes up to `limit` whose time is over. How many went.
    fn purge_evidence(&self, limit: u32) -> Pending<'_, Result<u64, StoreError>>;
}

/// How long an event that was used stays known, from its use. Providers deliver again for three days at most; a week
/// leaves room for a person who has an old one sent again.
pub const USED_KEPT_FOR: Duration = Duration::from_secs(7 * 24 * 3600);

/// What was found and of what, as a store keeps it beside [`About::id`]. None for [`Found::Nothing`], which proves
/// nothing.
pub fn said_to_bytes(evidence: &Evidence) -> Option<Vec<u8>> {
    let (downstream_key, provider) = match &evidence.about {
        About::Record(_) => (None, None),
        About::Effect(EffectAt::DownstreamKey(key)) => (Some(key.clone()), None),
        About::Effect(EffectAt::ProviderId { kind, id }) => (None, Some((kind.clone(), id.clone()))),
    };
    let (effect_kind, effect_provider_id) = provider.unzip();
    let about = StoredSaid { downstream_key, effect_kind, effect_provider_id, ..StoredSaid::default() };
    let stored = match &evidence.what {
        Found::Executed(answer) => StoredSaid {
            executed: true,
            status: answer.status,
            retry_after: answer.retry_after,
            kept: answer.kept.as_ref().map(|bytes| bytes.to_vec()),
            provider_id: answer.provider_id.clone(),
            ..about
        },
        Found::NotExecuted => about,
        Found::Nothing => return None,
    };
    // Writing into a Vec has no way to fail.
    Some(minicbor::to_vec(&stored).expect("a Vec takes every byte"))
}

/// What was found and of what, out of a store's bytes and the id beside them.
pub fn said_from_bytes(id: RecordId, bytes: &[u8]) -> Option<(About, Found)> {
    let stored: StoredSaid = minicbor::decode(bytes).ok()?;
    let about = match (stored.downstream_key, stored.effect_kind, stored.effect_provider_id) {
        (None, None, None) => About::Record(id),
        (Some(key), None, None) => About::Effect(EffectAt::DownstreamKey(key)),
        (None, Some(kind), Some(id)) => About::Effect(EffectAt::ProviderId { kind, id }),
        _ => return None,
    };
    let what = match stored.executed {
        true => Found::Executed(Answer {
            status: stored.status,
            retry_after: stored.retry_after,
            kept: stored.kept.map(Bytes::from),
            provider_id: stored.provider_id,
            proof: None,
        }),
        false => Found::NotExecuted,
    };
    Some((about, what))
}

#[derive(Default, Encode, Decode)]
struct StoredSaid {
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
        let answer = |kept| Answer {
            status: 402,
            retry_after: true,
            kept,
            provider_id: Some("ch_1".into()),
            proof: None,
        };
        let found = [
            Found::Executed(answer(Some(Bytes::from_static(b"\x01body")))),
            Found::Executed(answer(None)),
            Found::NotExecuted,
        ];
        for about in subjects() {
            for what in &found {
                let evidence = said(about.clone(), what.clone());
                let bytes = said_to_bytes(&evidence).expect("it says something");
                assert_eq!(said_from_bytes(about.id(), &bytes), Some((about.clone(), what.clone())));
            }
        }
        assert_eq!(said_to_bytes(&said(About::Record(RecordId::from_bytes([7; 32])), Found::Nothing)), None);
        assert_eq!(said_from_bytes(RecordId::from_bytes([7; 32]), b"damaged"), None);
    }

    #[test]
    fn no_two_names_have_one_id() {
        let ids: std::collections::HashSet<_> = subjects().iter().map(About::id).collect();
        assert_eq!(ids.len(), 5);
    }

    fn subjects() -> [About; 5] {
        let id = |kind: &str, id: &str| EffectAt::ProviderId { kind: kind.into(), id: id.into() };
        [
            About::Record(RecordId::from_bytes([7; 32])),
            About::Effect(EffectAt::DownstreamKey("ch_1".into())),
            About::Effect(id("charge", "ch_1")),
            About::Effect(id("chargech", "_1")),
            About::Effect(id("", "ch_1")),
        ]
    }

    fn said(about: About, what: Found) -> Evidence {
        let name = EventName { source: "psp".into(), event: "evt".into() };
        Evidence { name, about, owner: None, what, age: Duration::ZERO }
    }
}
