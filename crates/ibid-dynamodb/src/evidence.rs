//! Evidence: an item under the id of the record that it is about, and a pointer to it under the name of its event.
//!
//! The pointer makes an event count once, whichever record it names. Both are written in one transaction.

use std::time::Duration;

use aws_sdk_dynamodb::types::{Delete, Put, TransactWriteItem};
use ibid_core::evidence::{
    EventName, Evidence, EvidenceQuery, EvidenceStore, StoredEvidence, USED_KEPT_FOR, decode_evidence,
    encode_evidence,
};
use ibid_core::machine::Observation;
use ibid_core::record::Nonce;
use ibid_core::scope::RecordId;
use ibid_core::store::{BoxFuture, Cursor, Page, StoreError};
use ibid_core::time::Timestamp;
use sha2::{Digest, Sha256};

use crate::client::{Failure, is_transaction_throttled, run_all, send, send_if};
use crate::item::{Item, Update, binary, get_bytes, get_number, get_text, key, number, string};
use crate::order::{Order, OrderEntry};
use crate::{DynamoStore, NAME};

impl EvidenceStore for DynamoStore {
    fn insert_evidence(
        &self,
        evidence: Evidence,
        keep_for: Duration,
    ) -> BoxFuture<'_, Result<(StoredEvidence, bool), StoreError>> {
        Box::pin(async move {
            for _ in 0..INSERT_TRIES_MAX {
                if let Some(known) = self.find_evidence(INSERT, &evidence.name).await? {
                    return Ok((known, false));
                }
                if let Some(stored) = self.add_evidence(&evidence, keep_for).await? {
                    return Ok((stored, true));
                }
            }
            Err(StoreError::transient(NAME, INSERT, "its event comes and goes"))
        })
    }

    fn open_evidence(
        &self,
        which: EvidenceQuery,
        after: Option<Cursor>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Page<StoredEvidence>, StoreError>> {
        const OP: &str = "find evidence";
        Box::pin(async move {
            let id = match which {
                EvidenceQuery::Of(id) => id,
                EvidenceQuery::All => {
                    let order = Order::open_evidence(self.shards);
                    let (entries, has_more) = self.entries(OP, &order, LATEST, after, limit).await?;
                    let next = entries.last().filter(|_| has_more).map(OrderEntry::cursor);
                    let gets = entries.iter().map(|entry| -> BoxFuture<'_, _> {
                        Box::pin(self.get(OP, key(&entry.id, &entry.kind)))
                    });
                    let items: Vec<Option<Item>> = run_all(gets.collect(), AT_ONCE).await?;
                    let stored =
                        items.iter().flatten().filter_map(read_evidence).filter(|stored| stored.open);
                    return Ok(Page { items: stored.collect(), next });
                }
            };
            let after = after.as_ref().and_then(OrderEntry::of_cursor);
            let items = self.query(OP, id, "e#", None).await?;
            let mut open: Vec<(OrderEntry, StoredEvidence)> = items
                .iter()
                .filter_map(|item| {
                    let entry = OrderEntry {
                        at: get_number(item, "c")?,
                        id: *id.as_bytes(),
                        kind: get_text(item, "k")?.to_owned(),
                    };
                    Some((entry, read_evidence(item)?))
                })
                .filter(|(entry, stored)| stored.open && after.as_ref().is_none_or(|after| entry > after))
                .collect();
            open.sort_by(|(one, _), (other, _)| one.cmp(other));
            let Page { items, next } = Page::new(open, limit, |(entry, _)| entry.cursor());
            Ok(Page { items: items.into_iter().map(|(_, stored)| stored).collect(), next })
        })
    }

    fn dismiss_evidence(&self, names: Vec<EventName>) -> BoxFuture<'_, Result<(), StoreError>> {
        const OP: &str = "dismiss evidence";
        Box::pin(async move {
            for name in &names {
                self.close_evidence(OP, name, None).await?;
            }
            Ok(())
        })
    }

    fn purge_evidence(&self, limit: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        const OP: &str = "purge evidence";
        Box::pin(async move {
            self.trusted_now(OP).await?;
            let order = Order::evidence(self.shards);
            let (entries, _) = self.entries(OP, &order, self.watch.past(), None, limit).await?;
            let purges =
                entries.iter().map(|entry| -> BoxFuture<'_, _> { Box::pin(self.purge_one(OP, entry)) });
            let purged: Vec<bool> = run_all(purges.collect(), AT_ONCE).await?;
            Ok(purged.into_iter().filter(|purged| *purged).count() as u64)
        })
    }
}

impl DynamoStore {
    /// Returns the update that marks evidence about `id` as used, for the transaction of the change that it led to.
    pub(crate) fn use_of_evidence(&self, id: RecordId, name: &EventName, now: Timestamp) -> (Item, Update) {
        (key(id.as_bytes(), &kind_of(name)), closing(Some(now.after(USED_KEPT_FOR))))
    }

    /// Closes evidence, and keeps its event known until `until`.
    pub(crate) async fn close_evidence(
        &self,
        op: &'static str,
        name: &EventName,
        until: Option<Timestamp>,
    ) -> Result<(), StoreError> {
        let Some(item_key) = self.key_of(op, name).await? else { return Ok(()) };
        let request = self.update_item(item_key, closing(until));
        // If its condition is not met, it is gone.
        send_if(op, || request.clone().send()).await.map(drop)
    }

    async fn find_evidence(
        &self,
        op: &'static str,
        name: &EventName,
    ) -> Result<Option<StoredEvidence>, StoreError> {
        let Some(item_key) = self.key_of(op, name).await? else { return Ok(None) };
        let Some(item) = self.get(op, item_key).await? else { return Ok(None) };
        let stored = read_evidence(&item);
        stored.map(Some).ok_or_else(|| StoreError::lasting(NAME, op, "evidence of an unknown version"))
    }

    /// Returns the key of the evidence of this event.
    async fn key_of(&self, op: &'static str, name: &EventName) -> Result<Option<Item>, StoreError> {
        let pointer = self.get(op, key(&digest(name), POINTER)).await?;
        Ok(pointer.as_ref().and_then(|pointer| get_bytes(pointer, "o")).map(|id| key(id, &kind_of(name))))
    }

    /// Adds evidence; `None` if its event is known.
    async fn add_evidence(
        &self,
        evidence: &Evidence,
        keep_for: Duration,
    ) -> Result<Option<StoredEvidence>, StoreError> {
        let now = self.trusted_now(INSERT).await?.time;
        // Nodes differ. "Not executed" counts from an instant that has certainly passed, and "executed" is not taken for
        // stale while it may be fresh.
        let arrived = if evidence.what == Observation::NotExecuted { self.watch.past() } else { now };
        let as_of = arrived.before(evidence.age);
        let evidence = Evidence { age: Duration::ZERO, ..evidence.clone() };
        let stored = StoredEvidence { evidence, as_of, open: true };
        let is_new = self.put_evidence(&stored, now, now.after(keep_for)).await?;
        Ok(is_new.then_some(stored))
    }

    /// Returns the item of evidence.
    pub(crate) fn evidence_item(
        &self,
        stored: &StoredEvidence,
        arrived: Timestamp,
        purge_at: Timestamp,
    ) -> Result<Item, StoreError> {
        let evidence = &stored.evidence;
        let id = evidence.about.id();
        let Some(encoded) = encode_evidence(evidence) else {
            return Err(StoreError::lasting(NAME, INSERT, "evidence that says nothing").unwritten());
        };
        let mut item = key(id.as_bytes(), &kind_of(&evidence.name));
        let texts = [("s", &evidence.name.source), ("n", &evidence.name.event)];
        item.extend(texts.map(|(name, text)| (name.to_owned(), string(format!("-{text}")))));
        item.extend(evidence.owner.map(|owner| ("o".to_owned(), binary(owner.0.to_be_bytes()))));
        item.extend([
            ("z".to_owned(), binary(encoded)),
            ("f".to_owned(), number(stored.as_of.as_micros())),
            ("c".to_owned(), number(arrived.as_micros())),
            ("ra".to_owned(), number(purge_at.as_micros())),
            ("ro".to_owned(), string(self.shards.evidence(id.as_bytes()))),
        ]);
        if stored.open {
            item.insert("d".to_owned(), number(arrived.as_micros()));
            item.insert("w".to_owned(), string(self.shards.open_evidence(id.as_bytes())));
        }
        Ok(item)
    }

    /// Stores evidence unless its event is known. Returns whether it is new.
    pub(crate) async fn put_evidence(
        &self,
        stored: &StoredEvidence,
        arrived: Timestamp,
        purge_at: Timestamp,
    ) -> Result<bool, StoreError> {
        let item = self.evidence_item(stored, arrived, purge_at)?;
        let (name, id) = (&stored.evidence.name, stored.evidence.about.id());
        let mut pointer = key(&digest(name), POINTER);
        pointer.insert("o".to_owned(), binary(&id.as_bytes()[..]));
        let put = |item: Item| {
            let put = Put::builder().table_name(&self.table).set_item(Some(item));
            let put = put.condition_expression("attribute_not_exists(i)").build();
            put.map(|put| TransactWriteItem::builder().put(put).build())
        };
        let writes = [put(pointer), put(item)].into_iter().collect::<Result<Vec<_>, _>>();
        let writes = writes.map_err(|error| StoreError::lasting(NAME, INSERT, error).unwritten())?;
        self.transact(INSERT, writes).await
    }

    /// Removes evidence whose time is over, with its pointer. Returns whether it was still there.
    async fn purge_one(&self, op: &'static str, entry: &OrderEntry) -> Result<bool, StoreError> {
        let item = self.get(op, key(&entry.id, &entry.kind)).await?;
        let Some(stored) =
            item.as_ref().filter(|item| get_number(item, "ra") == Some(entry.at)).and_then(read_evidence)
        else {
            return Ok(false);
        };
        let delete = |key: Item| Delete::builder().table_name(&self.table).set_key(Some(key));
        let evidence = delete(key(&entry.id, &entry.kind)).condition_expression("ra = :ra");
        let evidence = evidence.expression_attribute_values(":ra", number(entry.at)).build();
        let pointer = delete(key(&digest(&stored.evidence.name), POINTER)).build();
        let writes = [evidence, pointer]
            .map(|delete| delete.map(|delete| TransactWriteItem::builder().delete(delete).build()));
        let writes = writes.into_iter().collect::<Result<Vec<_>, _>>();
        self.transact(op, writes.map_err(|error| StoreError::lasting(NAME, op, error).unwritten())?).await
    }

    /// Writes all or nothing. Returns whether the conditions were met.
    async fn transact(&self, op: &'static str, writes: Vec<TransactWriteItem>) -> Result<bool, StoreError> {
        let request = self.request().transact_write_items().set_transact_items(Some(writes));
        match send(op, None, is_transaction_throttled, || request.clone().send()).await {
            Ok(_) => Ok(true),
            Err(Failure::Sdk(error))
                if error.as_service_error().is_some_and(|e| e.is_transaction_canceled_exception()) =>
            {
                Ok(false)
            }
            Err(error) => Err(error.into_store_error(op)),
        }
    }
}

/// Returns the update that closes evidence, and keeps its event known until `until`.
fn closing(until: Option<Timestamp>) -> Update {
    let mut update = Update::default();
    update.condition = "attribute_exists(i)".to_owned();
    update.put("w", None);
    update.put("d", None);
    if let Some(until) = until {
        update.put("ra", Some(number(until.as_micros())));
    }
    update
}

pub(crate) fn read_evidence(item: &Item) -> Option<StoredEvidence> {
    let id = RecordId::from_bytes(get_bytes(item, "i")?.try_into().ok()?);
    let (about, what) = decode_evidence(id, get_bytes(item, "z")?)?;
    let text = |name: &str| Some(get_text(item, name)?.strip_prefix('-')?.to_owned());
    let owner = match get_bytes(item, "o") {
        None => None,
        Some(owner) => Some(Nonce(u64::from_be_bytes(owner.try_into().ok()?))),
    };
    let name = EventName { source: text("s")?, event: text("n")? };
    let evidence = Evidence { name, about, owner, what, age: Duration::ZERO };
    let as_of = Timestamp::from_micros(get_number(item, "f")?);
    Some(StoredEvidence { evidence, as_of, open: item.contains_key("w") })
}

fn kind_of(name: &EventName) -> String {
    format!("e#{}", ibid_core::hex::encode(&digest(name)))
}

fn digest(name: &EventName) -> [u8; 32] {
    let mut digest = Sha256::new_with_prefix(b"ibid event ");
    for part in [&name.source, &name.event] {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    digest.finalize().into()
}

const INSERT: &str = "store evidence";

/// Sort key of a pointer.
const POINTER: &str = "e";

/// Requests of one call that are in flight at once.
const AT_ONCE: usize = 8;

/// Tries of an insert whose event is removed and added at the same time by others.
const INSERT_TRIES_MAX: u32 = 4;

const LATEST: Timestamp = Timestamp::from_micros(i64::MAX);
