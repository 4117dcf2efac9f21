//! What somebody outside was heard to say about a Record, kept until it can be used: a webhook may come before the
//! record is `unknown`, and its event must count once however often it is delivered.

use std::time::Duration;

use bytes::Bytes;
use minicbor::{Decode, Encode};

use crate::machine::{Answer, Found};
use crate::record::Nonce;
use crate::scope::RecordId;
use crate::store::{Pending, StoreError};
use crate::time::Timestamp;

/// One event that says what became of a Record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// Which event it is.
    pub name: EventName,
    /// The Record that it speaks of.
    pub record: RecordId,
    /// The Attempt that ran or had run last when it arrived; none if there was no record yet.
    pub owner: Option<Nonce>,
    /// What it says; never [`Found::Nothing`].
    pub what: Found,
    /// How long ago the event was when it arrived: an interval, for the store adds it to its own clock.
    pub age: Duration,
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
    /// Of this Record.
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

/// What was found, as a store keeps it. None for [`Found::Nothing`], which proves nothing.
pub fn found_to_bytes(what: &Found) -> Option<Vec<u8>> {
    let stored = match what {
        Found::Executed(answer) => StoredFound {
            executed: true,
            status: answer.status,
            retry_after: answer.retry_after,
            kept: answer.kept.as_ref().map(|bytes| bytes.to_vec()),
            provider_id: answer.provider_id.clone(),
        },
        Found::NotExecuted => StoredFound::default(),
        Found::Nothing => return None,
    };
    // Writing into a Vec has no way to fail.
    Some(minicbor::to_vec(&stored).expect("a Vec takes every byte"))
}

/// What was found, out of a store's bytes.
pub fn found_from_bytes(bytes: &[u8]) -> Option<Found> {
    let stored: StoredFound = minicbor::decode(bytes).ok()?;
    Some(match stored.executed {
        true => Found::Executed(Answer {
            status: stored.status,
            retry_after: stored.retry_after,
            kept: stored.kept.map(Bytes::from),
            provider_id: stored.provider_id,
        }),
        false => Found::NotExecuted,
    })
}

#[derive(Default, Encode, Decode)]
struct StoredFound {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_is_read_as_it_was_written() {
        let answer = |kept| Answer { status: 402, retry_after: true, kept, provider_id: Some("ch_1".into()) };
        let found = [
            Found::Executed(answer(Some(Bytes::from_static(b"\x01body")))),
            Found::Executed(answer(None)),
            Found::NotExecuted,
        ];
        for what in found {
            let bytes = found_to_bytes(&what).expect("it says something");
            assert_eq!(found_from_bytes(&bytes), Some(what));
        }
        assert_eq!(found_to_bytes(&Found::Nothing), None);
        assert_eq!(found_from_bytes(b"damaged"), None);
    }
}
