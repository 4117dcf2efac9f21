//! Records with their bodies: large bodies are in parts, each an item under the record's id.
//!
//! The parts of a change are written before the record that names them, under the change's nonce. So a reader never sees a
//! record without its body, and a change that loses its race overwrites nothing. A writer that dies in between leaves parts
//! that no record names; they go before the record does, and the parts of a final response have a time to live besides.

use std::collections::HashMap;
use std::time::Duration;

use aws_sdk_dynamodb::types::{KeysAndAttributes, ReturnConsumedCapacity};
use ibid_core::change::{BodyKind, Change, INTERVAL_MAX, LoadedBody, StoredRecord};
use ibid_core::record::{Flags, Nonce, State};
use ibid_core::row::{INLINE_BODY_MAX, RecordColumns, UnreadableRowError, read_record};
use ibid_core::scope::RecordId;
use ibid_core::store::{BodyStore, BoxFuture, StoreError};
use ibid_core::time::Timestamp;

use crate::client::{PAUSE_MAX, jitter, run_all, send_if, send_one};
use crate::item::{
    BodyLocation, Item, ItemCells, PART_MAX, RECORD, TTL_MARGIN, binary, body_locations, get_bytes, get_id,
    get_number, get_text, key, number, response_location, string,
};
use crate::{DynamoStore, NAME};

impl BodyStore for DynamoStore {
    fn bodies(&self, id: RecordId, birth: Nonce) -> BoxFuture<'_, Result<Vec<LoadedBody>, StoreError>> {
        const OP: &str = "load bodies";
        Box::pin(async move {
            for _ in 0..LOAD_TRIES_MAX {
                let Some(item) = self.get(OP, key(id.as_bytes(), RECORD)).await? else {
                    return Ok(Vec::new());
                };
                let own = body_locations(&item).filter(|(_, written_by, _)| *written_by == birth);
                let bodies = own.map(|(kind, _, location)| -> BoxFuture<'_, _> {
                    Box::pin(async move {
                        Ok(self
                            .body(OP, id, kind, location)
                            .await?
                            .map(|body| LoadedBody { kind, data: body.into() }))
                    })
                });
                let bodies: Option<Vec<LoadedBody>> =
                    run_all(bodies.collect(), AT_ONCE).await?.into_iter().collect();
                if let Some(mut bodies) = bodies {
                    bodies.sort_unstable_by_key(|body| body.kind);
                    return Ok(bodies);
                }
            }
            Err(StoreError::lasting(NAME, OP, "a part of a body is missing"))
        })
    }
}

impl DynamoStore {
    pub(crate) async fn load_record(
        &self,
        op: &'static str,
        id: RecordId,
    ) -> Result<Option<StoredRecord>, StoreError> {
        for _ in 0..LOAD_TRIES_MAX {
            let Some(item) = self.get(op, key(id.as_bytes(), RECORD)).await? else { return Ok(None) };
            if let Some(stored) = self.read(op, &item).await? {
                return Ok(Some(stored));
            }
        }
        Err(StoreError::lasting(NAME, op, "a part of the response is missing"))
    }

    /// Reads a record from its item, with its response. `None` if a part of the response is gone, because the record has
    /// changed since.
    ///
    /// An expired record whose parts are gone is read without a response, which is not replayed any more: operators and the
    /// next generation need the record.
    pub(crate) async fn read(
        &self,
        op: &'static str,
        item: &Item,
    ) -> Result<Option<StoredRecord>, StoreError> {
        let unreadable = |error: UnreadableRowError| StoreError::lasting(NAME, op, error);
        let policy = get_bytes(item, "q").and_then(|number| number.try_into().ok()).map(i64::from_be_bytes);
        let policy =
            self.policy(op, policy.ok_or_else(|| unreadable(UnreadableRowError("no policy")))?).await?;
        let body = match response_location(item) {
            None => None,
            Some(BodyLocation::Inline(_)) => Some(get_bytes(item, "b").unwrap_or_default().to_vec()),
            Some(location) => {
                let id = get_id(item).ok_or_else(|| unreadable(UnreadableRowError("not an id")))?;
                match self.body(op, id, BodyKind::RESPONSE, location).await? {
                    None if !self.is_expired(item) => return Ok(None),
                    body => body,
                }
            }
        };
        let (record, response) =
            read_record(&mut ItemCells::new(item, body), |_| Ok(policy)).map_err(unreadable)?;
        Ok(Some(StoredRecord { record: record.into(), response, now: self.watch.past() }))
    }

    fn is_expired(&self, item: &Item) -> bool {
        get_number(item, "e").is_some_and(|expires| expires <= self.watch.past().as_micros())
    }

    /// Loads the items of these records, consistently; those that are gone are left out.
    pub(crate) async fn get_records(
        &self,
        op: &'static str,
        ids: &[RecordId],
    ) -> Result<HashMap<RecordId, Item>, StoreError> {
        let batches =
            ids.chunks(BATCH_GET_MAX).map(|ids| -> BoxFuture<'_, _> { Box::pin(self.get_batch(op, ids)) });
        let batches = run_all(batches.collect(), AT_ONCE).await?;
        Ok(batches.into_iter().flatten().filter_map(|item| Some((get_id(&item)?, item))).collect())
    }

    async fn get_batch(&self, op: &'static str, ids: &[RecordId]) -> Result<Vec<Item>, StoreError> {
        let mut wanted: Vec<Item> = ids.iter().map(|id| key(id.as_bytes(), RECORD)).collect();
        let mut items = Vec::new();
        for tries in 0.. {
            let keys = KeysAndAttributes::builder().set_keys(Some(wanted)).consistent_read(true).build();
            let keys = keys.map_err(|error| StoreError::lasting(NAME, op, error))?;
            let get = self
                .request()
                .batch_get_item()
                .request_items(&self.table, keys)
                .return_consumed_capacity(ReturnConsumedCapacity::None);
            let reply = send_one(op, None, || get.clone().send()).await;
            let reply = reply.map_err(|error| error.into_store_error(op))?;
            items.extend(reply.responses.into_iter().flatten().flat_map(|(_, items)| items));
            // A reply has 16 MB at most, and the service may also leave keys out while it throttles.
            wanted = reply.unprocessed_keys.into_iter().flatten().flat_map(|(_, keys)| keys.keys).collect();
            if wanted.is_empty() {
                return Ok(items);
            }
            if tries == LEFT_OUT_TRIES_MAX {
                break;
            }
            tokio::time::sleep(jitter(PAUSE_MAX)).await;
        }
        Err(StoreError::transient(NAME, op, "the service leaves out items of a batch"))
    }

    /// Reads a body; `None` if a part of it is gone.
    async fn body(
        &self,
        op: &'static str,
        id: RecordId,
        kind: u32,
        location: BodyLocation<'_>,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let (nonce, count) = match location {
            BodyLocation::Inline(body) => return Ok(Some(body.to_vec())),
            BodyLocation::Parts { nonce, count } => (nonce, count),
        };
        let (mut body, mut parts) = (Vec::new(), 0);
        for item in self.query(op, id, &part_prefix(nonce, kind), None).await? {
            body.extend_from_slice(get_bytes(&item, "z").unwrap_or_default());
            parts += 1;
        }
        Ok((parts == count).then_some(body))
    }

    /// Reads all items under a record's id whose sort key has this prefix, consistently and in order.
    pub(crate) async fn query(
        &self,
        op: &'static str,
        id: RecordId,
        prefix: &str,
        projection: Option<&str>,
    ) -> Result<Vec<Item>, StoreError> {
        self.query_items(op, id, prefix, projection, true).await
    }

    async fn query_items(
        &self,
        op: &'static str,
        id: RecordId,
        prefix: &str,
        projection: Option<&str>,
        is_consistent: bool,
    ) -> Result<Vec<Item>, StoreError> {
        let mut items = Vec::new();
        let mut start = None;
        loop {
            let query = self
                .request()
                .query()
                .table_name(&self.table)
                .consistent_read(is_consistent)
                .key_condition_expression("i = :i AND begins_with(k, :k)")
                .expression_attribute_values(":i", binary(&id.as_bytes()[..]))
                .expression_attribute_values(":k", string(prefix))
                .set_projection_expression(projection.map(str::to_owned))
                .set_exclusive_start_key(start);
            let page = send_one(op, None, || query.clone().send())
                .await
                .map_err(|error| error.into_store_error(op))?;
            items.extend(page.items.unwrap_or_default());
            start = page.last_evaluated_key;
            if start.is_none() {
                return Ok(items);
            }
        }
    }

    /// Writes the parts of a change.
    pub(crate) async fn put_parts(&self, op: &'static str, parts: Vec<Item>) -> Result<(), StoreError> {
        let puts = parts.into_iter().map(|part| -> BoxFuture<'_, _> {
            let put = self.request().put_item().table_name(&self.table).set_item(Some(part));
            Box::pin(async move {
                send_one(op, None, || put.clone().send()).await.map_err(|error| error.into_store_error(op))
            })
        });
        // No record names a part yet, so nothing of the change is written.
        run_all(puts.collect(), AT_ONCE).await.map(drop).map_err(StoreError::unwritten)
    }

    /// Takes the time to live off the parts that a record names. A part that is gone is not created again.
    pub(crate) async fn keep_parts(
        &self,
        op: &'static str,
        id: RecordId,
        item: &Item,
    ) -> Result<(), StoreError> {
        let updates = named_parts(item).map(|kind| -> BoxFuture<'_, _> {
            let update = self
                .request()
                .update_item()
                .table_name(&self.table)
                .set_key(Some(key(id.as_bytes(), &kind)))
                .update_expression("REMOVE ttl_s")
                .condition_expression("attribute_exists(k)");
            Box::pin(async move { send_if(op, || update.clone().send()).await })
        });
        run_all(updates.collect(), AT_ONCE).await.map(drop)
    }

    /// Deletes items. Returns whether all are gone; failures are left to the reaper.
    pub(crate) async fn delete_items(&self, op: &'static str, keys: impl IntoIterator<Item = Item>) -> bool {
        let deletes = keys.into_iter().map(|key| -> BoxFuture<'_, _> {
            let delete = self.request().delete_item().table_name(&self.table).set_key(Some(key));
            Box::pin(async move {
                let deleted = send_one(op, None, || delete.clone().send()).await;
                if let Err(error) = &deleted {
                    tracing::debug!(?error, "item not deleted; left to the reaper");
                }
                Ok(deleted.is_ok())
            })
        });
        let deleted: Result<Vec<bool>, StoreError> = run_all(deletes.collect(), AT_ONCE).await;
        deleted.is_ok_and(|deleted| deleted.into_iter().all(|is_gone| is_gone))
    }

    /// Deletes the parts under the id of a record that names none and is to be removed. Returns whether none is left.
    ///
    /// A young part stays, and the record with it. T1 (a writer of the next generation) has written a part, and its record
    /// does not name it yet; T2 (this reaper) would delete the part, and T1's record would lose its body.
    pub(crate) async fn delete_unnamed_parts(
        &self,
        op: &'static str,
        id: RecordId,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        // A part that is not visible yet is young, and its writer finds the record gone.
        let parts = self.query_items(op, id, "b#", Some("i, k, c"), false).await?;
        let is_old = |part: &Item| {
            let written_at = get_number(part, "c").map(Timestamp::from_micros);
            written_at.is_none_or(|written_at| now.since(written_at) > ORPHAN_AGE_MIN)
        };
        let (old, young): (Vec<Item>, Vec<Item>) = parts.into_iter().partition(is_old);
        let keys = old.iter().filter_map(|part| Some(key(id.as_bytes(), get_text(part, "k")?)));
        Ok(self.delete_items(op, keys.collect::<Vec<_>>()).await && young.is_empty())
    }
}

/// Returns the sort keys of the parts that a record names.
pub(crate) fn named_parts(item: &Item) -> impl Iterator<Item = String> {
    let response = response_location(item).map(|location| (BodyKind::RESPONSE, location));
    let all = body_locations(item).map(|(kind, _, location)| (kind, location)).chain(response);
    all.flat_map(|(kind, location)| match location {
        BodyLocation::Parts { nonce, count } => (0..count).map(|part| part_key(nonce, kind, part)).collect(),
        BodyLocation::Inline(_) => Vec::new(),
    })
}

/// Returns the items of all large bodies of a change.
pub(crate) fn parts_of(change: &Change, columns: &RecordColumns<'_>, now: Timestamp) -> Vec<Item> {
    let response = columns.body_apart().map(|body| (BodyKind::RESPONSE, body));
    let bodies = change.bodies.iter().map(|body| (body.kind.code(), &body.data)).chain(response);
    let parts = bodies.flat_map(|(kind, body)| body_parts(change.id, change.nonce, kind, body, now));
    let purge_at = columns.draft.purge_in.map(|purge_in| now.after(purge_in.min(INTERVAL_MAX)));
    with_ttl(parts, columns.draft.state, columns.draft.flags, purge_at)
}

/// Gives the parts of a final record a time to live. A record in any other state may yet live longer than it says now, with the
/// parts that it has, and a dead letter stays until an operator has seen it.
pub(crate) fn with_ttl(
    parts: impl IntoIterator<Item = Item>,
    state: State,
    flags: Flags,
    purge_at: Option<Timestamp>,
) -> Vec<Item> {
    let purge_at = purge_at.filter(|_| state == State::FINAL && !flags.dead_letter);
    let ttl = purge_at.map(|purge_at| purge_at.after(PARTS_TTL_MARGIN));
    let ttl = ttl.map(|ttl| ("ttl_s".to_owned(), number(ttl.as_secs())));
    parts.into_iter().map(|part| part.into_iter().chain(ttl.clone()).collect()).collect()
}

/// Returns the items of a body; none if it is small enough for the record's item.
pub(crate) fn body_parts(id: RecordId, nonce: Nonce, kind: u32, body: &[u8], now: Timestamp) -> Vec<Item> {
    let large = Some(body).filter(|body| body.len() > INLINE_BODY_MAX).into_iter();
    let parts = (0..).zip(large.flat_map(|body| body.chunks(PART_MAX))).map(|(index, part)| {
        let mut item = key(id.as_bytes(), &part_key(nonce, kind, index));
        item.insert("z".to_owned(), binary(part));
        item.insert("c".to_owned(), number(now.as_micros()));
        item
    });
    parts.collect()
}

fn part_prefix(nonce: Nonce, kind: u32) -> String {
    format!("b#{:016x}#{kind:08x}#", nonce.0)
}

fn part_key(nonce: Nonce, kind: u32, index: u32) -> String {
    format!("{}{index:08x}", part_prefix(nonce, kind))
}

/// Age from which a part that no record names is an orphan. A commit that writes parts gives up long before
/// ([`PARTS_FRESH_FOR`]).
const ORPHAN_AGE_MIN: Duration = Duration::from_secs(3600);

/// Time after the purge instant from which DynamoDB itself may delete the parts of a final response: a day after it may
/// delete the record, so that no record outlives its parts.
const PARTS_TTL_MARGIN: Duration = Duration::from_secs(TTL_MARGIN.as_secs() + 24 * 3600);

/// Longest time from the first part of a change to the write of its record.
pub(crate) const PARTS_FRESH_FOR: Duration = Duration::from_secs(300);

/// Keys in one batch of the service.
const BATCH_GET_MAX: usize = 100;

/// Rounds for keys that a batch left out. A round gets at least 40 of the largest items.
const LEFT_OUT_TRIES_MAX: u32 = 8;

/// Requests of one call that are in flight at once: large bodies need bandwidth, not more connections.
const AT_ONCE: usize = 8;

/// Loads of a record whose parts went while they were read. A record changes a handful of times in its life.
const LOAD_TRIES_MAX: u32 = 4;
