//! The verbs of upkeep: renew, due, reap.

use std::time::Duration;

use aws_sdk_dynamodb::types::{AttributeValue, ReturnValue};
use futures_util::{StreamExt, stream};
use ibid_core::change::StoredRecord;
use ibid_core::reap::{ReapCount, ReapStep, ReapTarget};
use ibid_core::record::{State, Version};
use ibid_core::row::TOMBSTONE_FLAG;
use ibid_core::scope::RecordId;
use ibid_core::store::{BoxFuture, Cursor, Page, RenewOutcome, StoreError};
use ibid_core::time::Timestamp;

use crate::DynamoStore;
use crate::bodies::named_parts;
use crate::client::{run_all, send_if};
use crate::item::{
    Item, RECORD, RESPONSE, ReapInstants, Update, get_id, get_number, get_version, is_in_state, is_tombstone,
    key, number, version,
};
use crate::order::{Order, OrderEntry};

impl DynamoStore {
    /// While the clock is off, no lease moves: a clock that is slow would shorten it, and another node take it over.
    ///
    /// Each lease has its own fate: one that is throttled is tried again soon, and the others are renewed.
    pub(crate) async fn renew_leases(
        &self,
        leases: Vec<(RecordId, Version)>,
    ) -> Result<Vec<RenewOutcome>, StoreError> {
        let renewals = leases.into_iter().map(|(id, version)| self.renew_lease(id, version));
        let renewed: Vec<Result<RenewOutcome, StoreError>> =
            stream::iter(renewals).buffered(RENEWALS_AT_ONCE).collect().await;
        let has_renewed = renewed.iter().any(Result::is_ok);
        let or_busy = |renewed: Result<RenewOutcome, StoreError>| match renewed {
            Err(error) if has_renewed => {
                tracing::debug!(error = &error as &dyn std::error::Error, "a lease was not renewed");
                Ok(RenewOutcome::Busy)
            }
            renewed => renewed,
        };
        renewed.into_iter().map(or_busy).collect()
    }

    /// A renewal that arrives after a later one changes nothing. T1 renews, and its request is held up; T1 renews again; the
    /// first request arrives. It would set the lease back to an earlier end than T1 counts on.
    pub(crate) async fn renew_lease(&self, id: RecordId, was: Version) -> Result<RenewOutcome, StoreError> {
        let now = self.trusted_now(RENEW).await?;
        let request = self
            .request()
            .update_item()
            .table_name(&self.table)
            .set_key(Some(key(id.as_bytes(), RECORD)))
            .update_expression("SET d = :now + le, y = :now")
            .condition_expression(
                "v = :was AND attribute_exists(d) AND (attribute_not_exists(y) OR y <= :now)",
            )
            .expression_attribute_values(":was", version(was))
            .expression_attribute_values(":now", number(now.time.as_micros()))
            .return_values(ReturnValue::UpdatedNew);
        let item = match send_if(RENEW, || request.clone().send()).await? {
            // The reply shows that the clock was off: the lease may be too short.
            Some(_) if !self.watch.trusts(now) => return Ok(RenewOutcome::Busy),
            Some(reply) => reply.attributes,
            None => {
                let item = self.get(RENEW, key(id.as_bytes(), RECORD)).await?;
                item.filter(|item| get_version(item) == Some(was))
            }
        };
        let until = item.as_ref().and_then(|item| get_number(item, "d"));
        Ok(until.map_or(RenewOutcome::Lost, |until| RenewOutcome::Until(Timestamp::from_micros(until))))
    }

    pub(crate) async fn due_records(
        &self,
        state: State,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Page<StoredRecord>, StoreError> {
        const OP: &str = "find due records";
        self.trusted_now(OP).await?;
        let past = self.watch.past();
        let order = Order::due(state, self.shards);
        let (entries, has_more) = self.entries(OP, &order, past, after, limit).await?;
        let next = entries.last().filter(|_| has_more).map(OrderEntry::cursor);
        let ids: Vec<RecordId> = entries.iter().map(OrderEntry::record_id).collect();
        let mut items = self.get_records(OP, &ids).await?;
        // The index may be behind: only what the item itself says counts.
        items.retain(|_, item| {
            is_in_state(item, state) && get_number(item, "d").is_some_and(|due| due <= past.as_micros())
        });
        let reads =
            items.values().map(|item| -> BoxFuture<'_, _> { Box::pin(self.read_or_pass_over(OP, item)) });
        let read: Vec<Option<StoredRecord>> = run_all(reads.collect(), READS_AT_ONCE).await?;
        let mut items: Vec<StoredRecord> = read.into_iter().flatten().collect();
        items.sort_by_key(|stored| (stored.record.due_at, stored.record.id));
        Ok(Page { items, next })
    }

    /// Reads a record from its item. One that this program can't read is logged and left out.
    pub(crate) async fn read_or_pass_over(
        &self,
        op: &'static str,
        item: &Item,
    ) -> Result<Option<StoredRecord>, StoreError> {
        match self.read(op, item).await {
            Err(error) if !error.is_transient() => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "record can't be read; passed over"
                );
                Ok(None)
            }
            read => read,
        }
    }

    pub(crate) async fn reap_records(
        &self,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<ReapStep, StoreError> {
        self.trusted_now(REAP).await?;
        let past = self.watch.past();
        let order = Order::reap_records(self.shards);
        let (entries, has_more) = self.entries(REAP, &order, past, after, limit).await?;
        let ids: Vec<RecordId> = entries.iter().map(OrderEntry::record_id).collect();
        let items = self.get_records(REAP, &ids).await?;
        let steps = items.values().map(|item| -> BoxFuture<'_, _> { Box::pin(self.reap_record(item, past)) });
        let steps: Vec<ReapAction> = run_all(steps.collect(), REAPS_AT_ONCE).await?;
        let count = |what: ReapAction| steps.iter().filter(|step| **step == what).count() as u64;
        Ok(ReapStep {
            stripped: count(ReapAction::Stripped),
            removed: count(ReapAction::Removed),
            next: entries.last().filter(|_| has_more).map(OrderEntry::cursor),
            behind: entries.first().map(|first| past.since(Timestamp::from_micros(first.at))),
            // `took` stays zero: no other writer waits for a step.
            ..ReapStep::default()
        })
    }

    /// Strips or removes a record as it was read, if it is past its time.
    ///
    /// The parts of its bodies go before the record: with the record gone, nothing would lead to them after a crash. And
    /// they go after the record has ceased to name them, so that no reader misses one.
    async fn reap_record(&self, item: &Item, past: Timestamp) -> Result<ReapAction, StoreError> {
        let (Some(id), Some(mut was)) = (get_id(item), get_version(item)) else {
            return Ok(ReapAction::Kept);
        };
        let what = next_step(item, past);
        let parts: Vec<Item> = named_parts(item).map(|kind| key(id.as_bytes(), &kind)).collect();
        if what == ReapAction::Stripped || (what == ReapAction::Removed && !parts.is_empty()) {
            match self.strip(item, id, was).await? {
                Some(stripped) => was = stripped,
                None => return Ok(ReapAction::Kept),
            }
            if !self.delete_items(REAP, parts).await && what == ReapAction::Removed {
                return Ok(ReapAction::Stripped);
            }
        }
        if what != ReapAction::Removed {
            return Ok(what);
        }
        if !self.delete_unnamed_parts(REAP, id, past).await? {
            return Ok(ReapAction::Kept);
        }
        let delete = self
            .request()
            .delete_item()
            .table_name(&self.table)
            .set_key(Some(key(id.as_bytes(), RECORD)))
            .condition_expression("v = :was")
            .expression_attribute_values(":was", version(was));
        let deleted = send_if(REAP, || delete.clone().send()).await?;
        Ok(deleted.map_or(ReapAction::Kept, |_| what))
    }

    /// Stripping is a write like any other: a writer that read the record before loses. Returns the new version; `None` if
    /// the record has changed.
    async fn strip(&self, item: &Item, id: RecordId, was: Version) -> Result<Option<Version>, StoreError> {
        let stripped = Version { count: was.count.wrapping_add(1), ..was };
        let mut update = Update::default();
        update.put("v", Some(version(stripped)));
        let flags = get_number(item, "g").unwrap_or_default() | i64::from(TOMBSTONE_FLAG);
        update.put("g", Some(number(flags)));
        for name in ["t", "m", "u", "j", "x", "st"].into_iter().chain(RESPONSE) {
            update.put(name, None);
        }
        update.put("bo", Some(AttributeValue::M(Item::new())));
        let instant = |name: &str| get_number(item, name).map(Timestamp::from_micros);
        let (expires, purge) = (instant("e"), instant("p"));
        let reap = ReapInstants { expires, purge, is_dead_letter: false, is_tombstone: true };
        reap.put(&mut update, &id, self.shards);
        update.condition = "v = :was".to_owned();
        update.value(":was", version(was));
        let request = self.update_item(key(id.as_bytes(), RECORD), update);
        Ok(send_if(REAP, || request.clone().send()).await?.map(|_| stripped))
    }

    /// Removes old lines of records that are gone.
    pub(crate) async fn reap_history(
        &self,
        keep: Duration,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<ReapStep, StoreError> {
        self.trusted_now(REAP).await?;
        let (orphans, next) = self.orphaned_history(keep, after, limit).await?;
        let keys: Vec<Item> = orphans.iter().map(|entry| key(&entry.id, &entry.kind)).collect();
        let removed = keys.len() as u64;
        self.delete_items(REAP, keys).await;
        Ok(ReapStep { removed, next, ..ReapStep::default() })
    }

    async fn orphaned_history(
        &self,
        keep: Duration,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<(Vec<OrderEntry>, Option<Cursor>), StoreError> {
        let order = Order::history(self.shards);
        let (mut entries, has_more) =
            self.entries(REAP, &order, self.watch.past().before(keep), after, limit).await?;
        let next = entries.last().filter(|_| has_more).map(OrderEntry::cursor);
        let mut ids: Vec<RecordId> = entries.iter().map(OrderEntry::record_id).collect();
        ids.sort_unstable();
        ids.dedup();
        let live = self.get_records(REAP, &ids).await?;
        entries.retain(|entry| !live.contains_key(&entry.record_id()));
        Ok((entries, next))
    }

    pub(crate) async fn count_ripe(&self, target: ReapTarget) -> Result<ReapCount, StoreError> {
        let (mut count, mut after) = (ReapCount::default(), None);
        let past = self.watch.past();
        loop {
            match target {
                ReapTarget::Records => {
                    let order = Order::reap_records(self.shards);
                    let (entries, has_more) = self.entries(REAP, &order, past, after, PREVIEW_PAGE).await?;
                    let ids: Vec<RecordId> = entries.iter().map(OrderEntry::record_id).collect();
                    for item in self.get_records(REAP, &ids).await?.values() {
                        match next_step(item, past) {
                            ReapAction::Kept => {}
                            ReapAction::Stripped => count.strip += 1,
                            ReapAction::Removed => count.remove += 1,
                        }
                    }
                    after = entries.last().filter(|_| has_more).map(OrderEntry::cursor);
                }
                ReapTarget::History { keep } => {
                    let (orphans, next) = self.orphaned_history(keep, after, PREVIEW_PAGE).await?;
                    count.remove += orphans.len() as u64;
                    after = next;
                }
                ReapTarget::Effects { .. } | ReapTarget::Policies | ReapTarget::Room => {}
            }
            if after.is_none() {
                return Ok(count);
            }
        }
    }
}

/// An action of the reaper on a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReapAction {
    Kept,
    Stripped,
    Removed,
}

fn next_step(item: &Item, past: Timestamp) -> ReapAction {
    let is_past = |name: &str| get_number(item, name).is_some_and(|at| at <= past.as_micros());
    // `ra` is there exactly if the record may go at all.
    match is_past("ra") {
        false => ReapAction::Kept,
        true if is_past("p") => ReapAction::Removed,
        true if is_past("e") && !is_tombstone(item) => ReapAction::Stripped,
        true => ReapAction::Kept,
    }
}

const RENEW: &str = "renew";
const REAP: &str = "reap";

/// Leases that one call renews at once: its 256 take 8 round trips.
const RENEWALS_AT_ONCE: usize = 32;

/// Records whose large responses one call reads at once.
const READS_AT_ONCE: usize = 32;

/// Records that one step of the reaper strips or removes at once. At some milliseconds each, one node removes about ten
/// thousand a second. Time to live takes the rest.
const REAPS_AT_ONCE: usize = 128;

/// Entries that a preview reads at once.
const PREVIEW_PAGE: u32 = 1000;
