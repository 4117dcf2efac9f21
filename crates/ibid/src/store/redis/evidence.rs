//! Evidence from outside, in the bucket of the record that it is about, so that a change uses it up in the same script.
//!
//! An event counts once in the whole store. Its name leads to a pointer, in the bucket of the name, which has the id that the
//! event is about: the first delivery decides that. The pointer is written before the evidence and deleted before it, so after a
//! crash in between the next delivery or purge completes the step. If there is none, the pointer expires.

use std::time::Duration;

use futures_util::future::join_all;
use ibid_core::evidence::{self, EventName, Evidence, EvidenceQuery, EvidenceStore, StoredEvidence};
use ibid_core::record::Nonce;
use ibid_core::row::{UnreadableRowError, bits, micros};
use ibid_core::scope::RecordId;
use ibid_core::sql::Param;
use ibid_core::store::{BoxFuture, Cursor, Page, StoreError};
use redis::Value;
use sha2::{Digest, Sha256};

use super::error::Failure;
use super::key::{self, Bucket};
use super::order::{Order, OrderPosition, RangeEnd};
use super::reply::{bytes, number};
use super::{NAME, RedisStore, error_of, record_bytes, script};

impl EvidenceStore for RedisStore {
    fn insert_evidence(
        &self,
        evidence: Evidence,
        keep_for: Duration,
    ) -> BoxFuture<'_, Result<(StoredEvidence, bool), StoreError>> {
        const OP: &str = "store evidence";
        Box::pin(async move {
            let Some(found) = evidence::encode_evidence(&evidence) else {
                return Err(StoreError::lasting(NAME, OP, "it says nothing").unwritten());
            };
            self.add_evidence(&evidence, &found, keep_for).await.map_err(error_of(OP))
        })
    }

    fn open_evidence(
        &self,
        which: EvidenceQuery,
        after: Option<Cursor>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Page<StoredEvidence>, StoreError>> {
        Box::pin(async move {
            let after = after.and_then(|cursor| OrderPosition::parse(&cursor.0));
            self.find_open(which, after, limit).await.map_err(error_of("find evidence"))
        })
    }

    fn dismiss_evidence(&self, names: Vec<EventName>) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let dismissals = names.iter().map(async |name| {
                let event = event_id(name);
                let Some(about) = self.subject(&event).await? else { return Ok(()) };
                let [evidence, _, open, own] = keys(&about, &event);
                let keys = [evidence, open, own];
                let (bucket, arguments) = (Bucket::of(&about), [&event.as_bytes()[..]]);
                self.nodes.run(&script::EVIDENCE_DISMISS, bucket, &keys, &arguments, None).await.map(drop)
            });
            let dismissed: Result<Vec<()>, Failure> = join_all(dismissals).await.into_iter().collect();
            dismissed.map(drop).map_err(error_of("dismiss evidence"))
        })
    }

    fn purge_evidence(&self, limit: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move { self.purge(limit).await.map_err(error_of("purge evidence")) })
    }
}

impl RedisStore {
    async fn add_evidence(
        &self,
        evidence: &Evidence,
        found: &[u8],
        keep_for: Duration,
    ) -> Result<(StoredEvidence, bool), Failure> {
        let event = event_id(&evidence.name);
        // Evidence is purged some time after it was used, and purging may be late.
        let lives = keep_for.saturating_add(evidence::USED_KEPT_FOR).saturating_add(PURGE_LATE_MAX);
        let about = self.note_subject(&event, &evidence.about.id(), lives).await?;
        let columns = encode_columns(&about, evidence, found);
        let age = record_bytes::interval(Some(micros(evidence.age)));
        let keep_for = record_bytes::interval(Some(micros(keep_for)));
        let arguments = [&event.as_bytes()[..], &age, &keep_for, &columns];
        let (bucket, keys) = (Bucket::of(&about), keys(&about, &event));
        let reply = self.nodes.run(&script::EVIDENCE_ADD, bucket, &keys, &arguments, None).await?;
        match reply {
            Value::Array(parts) => match &parts[..] {
                [is_new, Value::BulkString(stored)] => Ok((read_evidence(stored)?, number(is_new)? == 1)),
                _ => Err(Failure::reply()),
            },
            _ => Err(Failure::reply()),
        }
    }

    async fn find_open(
        &self,
        which: EvidenceQuery,
        after: Option<OrderPosition>,
        limit: u32,
    ) -> Result<Page<StoredEvidence>, Failure> {
        let of_bucket = |bucket: Bucket| Order { bucket, key: bucket.evidence_open(), state: 0 };
        let orders: Vec<Order> = match which {
            EvidenceQuery::Of(id) => {
                vec![Order { bucket: Bucket::of(&id), key: key::evidence_about(&id), state: 0 }]
            }
            EvidenceQuery::All => Bucket::all().map(of_bucket).collect(),
        };
        let open = self.nodes.merge(&orders, after, RangeEnd::Open, limit as usize).await?;
        let loads = open.members.iter().map(async |member| {
            let bucket = orders[member.order].bucket;
            let keys = [bucket.key('e', member.position.member.as_bytes())];
            self.nodes.run(&script::VALUE, bucket, &keys, &[], None).await
        });
        let stored = self.nodes.reachable(join_all(loads).await)?;
        let items = stored.iter().filter_map(bytes).map(read_evidence);
        let items = items.filter(|item| item.as_ref().map_or(true, |evidence| evidence.open));
        Ok(Page { items: items.collect::<Result<_, _>>()?, next: open.next.map(OrderPosition::cursor) })
    }

    async fn purge(&self, limit: u32) -> Result<u64, Failure> {
        let order = |bucket: Bucket| Order { bucket, key: bucket.evidence_purge(), state: 0 };
        let orders: Vec<Order> = Bucket::all().map(order).collect();
        let over = self.nodes.merge(&orders, None, RangeEnd::Now, limit as usize).await?;
        let purges = over.members.iter().map(async |member| {
            let event = member.position.member;
            let bucket = orders[member.order].bucket;
            let value = [bucket.key('e', event.as_bytes())];
            let stored = self.nodes.run(&script::VALUE, bucket, &value, &[], None).await?;
            // After a purge that ended midway, a later delivery may have set another pointer, which stays.
            let Some(about) = bytes(&stored).map(read_subject).transpose()? else { return Ok(0) };
            let pointer = [key::evidence_pointer(&event)];
            let own = [&about.as_bytes()[..]];
            self.nodes.run(&script::REMOVE, Bucket::of(&event), &pointer, &own, None).await?;
            let (keys, arguments) = (keys(&about, &event), [&event.as_bytes()[..]]);
            number(&self.nodes.run(&script::EVIDENCE_PURGE, bucket, &keys, &arguments, None).await?)
        });
        let purged = self.nodes.reachable(join_all(purges).await)?;
        Ok(purged.into_iter().sum::<i64>().cast_unsigned())
    }

    /// Notes the id that an event is about for so long, unless another one is noted. Returns the noted id.
    async fn note_subject(
        &self,
        event: &RecordId,
        about: &RecordId,
        lives: Duration,
    ) -> Result<RecordId, Failure> {
        let lives = (micros(lives) / 1000).max(1).to_string();
        let (pointer, arguments) =
            ([key::evidence_pointer(event)], [&about.as_bytes()[..], lives.as_bytes()]);
        let run = self.nodes.run(&script::EVIDENCE_POINT, Bucket::of(event), &pointer, &arguments, None);
        id_of(&run.await?).ok_or_else(Failure::reply)
    }

    /// Returns the id that a known event is about.
    async fn subject(&self, event: &RecordId) -> Result<Option<RecordId>, Failure> {
        let pointer = [key::evidence_pointer(event)];
        let noted = self.nodes.run(&script::VALUE, Bucket::of(event), &pointer, &[], None).await?;
        Ok(id_of(&noted))
    }
}

/// Returns the digest of an event's name, which has the shape of a record's id.
pub(super) fn event_id(name: &EventName) -> RecordId {
    let mut digest = Sha256::new();
    for part in [&name.source, &name.event] {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    let digest: [u8; 32] = digest.finalize().into();
    RecordId::from_bytes(*digest.first_chunk().expect("a digest is longer"))
}

/// Returns the keys of one piece of evidence and of the orders that it is in, as the scripts take them.
pub(super) fn keys(about: &RecordId, event: &RecordId) -> [Vec<u8>; 4] {
    let bucket = Bucket::of(about);
    [key::evidence(about, event), bucket.evidence_purge(), bucket.evidence_open(), key::evidence_about(about)]
}

/// Encodes evidence under the id that it is stored under. `found` is the encoded observation.
pub(super) fn encode_columns(about: &RecordId, evidence: &Evidence, found: &[u8]) -> Vec<u8> {
    record_bytes::encode([
        Param::Bytes(about.as_bytes()),
        Param::maybe_i64(evidence.owner.map(bits)),
        Param::Text(&evidence.name.source),
        Param::Text(&evidence.name.event),
        Param::Bytes(found),
    ])
}

fn id_of(value: &Value) -> Option<RecordId> {
    bytes(value)?.try_into().ok().map(RecordId::from_bytes)
}

/// Reads the id under which evidence is stored.
fn read_subject(stored: &[u8]) -> Result<RecordId, Failure> {
    let unreadable = || Failure::Lasting(Box::new(UnreadableRowError("not evidence")));
    let columns = stored.get(9..).ok_or_else(unreadable)?;
    match record_bytes::decode(columns) {
        Ok([Param::Bytes(about)]) => about.try_into().map(RecordId::from_bytes).map_err(|_| unreadable()),
        _ => Err(unreadable()),
    }
}

/// Reads evidence as a script returns it.
pub(super) fn read_evidence(stored: &[u8]) -> Result<StoredEvidence, Failure> {
    let unreadable = |why| Failure::Lasting(Box::new(UnreadableRowError(why)));
    let Some(([open, as_of @ ..], columns)) = stored.split_first_chunk::<9>() else {
        return Err(unreadable("evidence is cut off"));
    };
    let columns = record_bytes::decode(columns).map_err(|why| unreadable(why.0))?;
    let [Param::Bytes(about), owner, Param::Text(source), Param::Text(event), Param::Bytes(found)] = columns
    else {
        return Err(unreadable("not evidence"));
    };
    let about = about.try_into().map(RecordId::from_bytes).map_err(|_| unreadable("not an id"))?;
    let (about, what) = evidence::decode_evidence(about, found).ok_or_else(|| unreadable("not evidence"))?;
    let owner = match owner {
        Param::I64(bits) => Some(Nonce(bits.cast_unsigned())),
        _ => None,
    };
    Ok(StoredEvidence {
        evidence: Evidence {
            name: EventName { source: source.to_owned(), event: event.to_owned() },
            about,
            owner,
            what,
            age: Duration::ZERO,
        },
        as_of: record_bytes::instant(*as_of).unwrap_or_default(),
        open: *open == 1,
    })
}

/// Time that upkeep may be late with purging evidence: after a longer outage an event may count twice.
const PURGE_LATE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
