//! The two orders of upkeep: indexes that are sharded, eventually consistent and therefore only hints.
//!
//! The index `due` has records by state and due instant, and open evidence by arrival. The index `reap` has records, lines
//! of history and evidence by the instant at which they may go. What an index says is a reason to load the item, never
//! proof: every write that follows has its condition on the item.

use ibid_core::record::State;
use ibid_core::scope::RecordId;
use ibid_core::store::{BoxFuture, Cursor, StoreError};
use ibid_core::time::Timestamp;

use crate::DynamoStore;
use crate::client::{run_all, send_one};
use crate::item::{get_bytes, get_number, get_text, number, string};

/// Number of partition keys over which each order is spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shards(u16);

impl Shards {
    /// One partition key of an index takes 1,000 writes a second, and each new key writes twice to the index `due`. So 256
    /// take about 128,000 new keys a second.
    pub const MAX: Shards = Shards(256);

    /// Creates a number of shards: 1 to 256.
    pub fn new(count: u16) -> Option<Shards> {
        (1..=Shards::MAX.0).contains(&count).then_some(Shards(count))
    }

    /// Returns the number of shards.
    pub fn count(self) -> u16 {
        self.0
    }

    /// Number of shards of orders in which there is little.
    fn few(self) -> Shards {
        Shards(self.0.min(FEW))
    }

    fn name(self, class: &str, id: &[u8]) -> String {
        let first = u16::from(id.first().copied().unwrap_or(0));
        format!("{class}#{:02x}", first % self.0)
    }

    pub(crate) fn due(self, state: State, id: &[u8]) -> String {
        let Order { class, shards, .. } = Order::due(state, self);
        shards.name(&class, id)
    }

    pub(crate) fn reap_records(self, id: &[u8]) -> String {
        self.name("r", id)
    }

    pub(crate) fn history(self, id: &[u8]) -> String {
        self.few().name("h", id)
    }

    pub(crate) fn open_evidence(self, id: &[u8]) -> String {
        self.few().name("o", id)
    }

    pub(crate) fn evidence(self, id: &[u8]) -> String {
        self.few().name("e", id)
    }
}

/// One of the orders.
pub(crate) struct Order {
    index: &'static str,
    hash: &'static str,
    range: &'static str,
    class: String,
    shards: Shards,
}

impl Order {
    pub(crate) fn due(state: State, shards: Shards) -> Order {
        // Every node looks for accepted requests once a second, and a look asks every shard.
        let shards = if State::WAITING.contains(&state) { shards.few() } else { shards };
        Order { class: state.code().to_string(), ..Order::of_due("", shards) }
    }

    pub(crate) fn open_evidence(shards: Shards) -> Order {
        Order::of_due("o", shards.few())
    }

    pub(crate) fn reap_records(shards: Shards) -> Order {
        Order::of_reap("r", shards)
    }

    pub(crate) fn history(shards: Shards) -> Order {
        Order::of_reap("h", shards.few())
    }

    pub(crate) fn evidence(shards: Shards) -> Order {
        Order::of_reap("e", shards.few())
    }

    fn of_due(class: &str, shards: Shards) -> Order {
        Order { index: "due", hash: "w", range: "d", class: class.to_owned(), shards }
    }

    fn of_reap(class: &str, shards: Shards) -> Order {
        Order { index: "reap", hash: "ro", range: "ra", class: class.to_owned(), shards }
    }
}

/// An entry of an order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OrderEntry {
    pub(crate) at: i64,
    pub(crate) id: [u8; RecordId::LEN],
    pub(crate) kind: String,
}

impl OrderEntry {
    pub(crate) fn cursor(&self) -> Cursor {
        Cursor([&self.at.to_be_bytes()[..], &self.id, self.kind.as_bytes()].concat().into())
    }

    pub(crate) fn of_cursor(cursor: &Cursor) -> Option<OrderEntry> {
        let (at, rest) = cursor.0.split_first_chunk()?;
        let (id, kind) = rest.split_first_chunk()?;
        let kind = std::str::from_utf8(kind).ok()?.to_owned();
        Some(OrderEntry { at: i64::from_be_bytes(*at), id: *id, kind })
    }

    pub(crate) fn record_id(&self) -> RecordId {
        RecordId::from_bytes(self.id)
    }
}

impl DynamoStore {
    /// Returns up to `limit` entries of an order up to the instant `until`, behind `after`, and whether there are more.
    ///
    /// Ids are spread evenly, so each shard is asked for twice its share. What lies behind the end of a shard's piece is
    /// not known, so the result ends at the first of these ends, and the next call continues there.
    pub(crate) async fn entries(
        &self,
        op: &'static str,
        order: &Order,
        until: Timestamp,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<(Vec<OrderEntry>, bool), StoreError> {
        let after = after.as_ref().and_then(OrderEntry::of_cursor);
        let from = after.as_ref().map_or(i64::MIN, |after| after.at);
        if limit == 0 || from > until.as_micros() {
            return Ok((Vec::new(), false));
        }
        let (after, limit) = (after.as_ref(), limit as usize);
        let share = limit.min(2 * limit.div_ceil(order.shards.0.into()) + SHARE_MIN) + 1;
        let shards = (0..order.shards.0).map(|shard| -> BoxFuture<'_, _> {
            let hash = format!("{}#{shard:02x}", order.class);
            Box::pin(self.entries_of_shard(op, order, hash, (from, until.as_micros()), after, share))
        });
        let pieces: Vec<Vec<OrderEntry>> = run_all(shards.collect(), QUERIES_AT_ONCE).await?;
        let ends = pieces.iter().filter(|piece| piece.len() >= share).filter_map(|piece| piece.last());
        let end = ends.min().cloned();
        let mut entries: Vec<OrderEntry> = pieces.into_iter().flatten().collect();
        entries.sort_unstable();
        let known = end.as_ref().map_or(entries.len(), |end| entries.partition_point(|entry| entry <= end));
        let has_more = end.is_some() || known > limit;
        entries.truncate(known.min(limit));
        Ok((entries, has_more))
    }

    async fn entries_of_shard(
        &self,
        op: &'static str,
        order: &Order,
        hash: String,
        (from, until): (i64, i64),
        after: Option<&OrderEntry>,
        limit: usize,
    ) -> Result<Vec<OrderEntry>, StoreError> {
        let mut entries = Vec::new();
        let mut start = None;
        loop {
            let query = self
                .request()
                .query()
                .table_name(&self.table)
                .index_name(order.index)
                .key_condition_expression(format!(
                    "{} = :h AND {} BETWEEN :from AND :until",
                    order.hash, order.range
                ))
                .expression_attribute_values(":h", string(&hash))
                .expression_attribute_values(":from", number(from))
                .expression_attribute_values(":until", number(until))
                .limit(i32::try_from(limit - entries.len()).unwrap_or(i32::MAX))
                .set_exclusive_start_key(start);
            let page = send_one(op, None, || query.clone().send())
                .await
                .map_err(|error| error.into_store_error(op))?;
            for item in page.items() {
                let (Some(at), Some(id), Some(kind)) = (
                    get_number(item, order.range),
                    get_bytes(item, "i").and_then(|id| id.try_into().ok()),
                    get_text(item, "k"),
                ) else {
                    continue;
                };
                let entry = OrderEntry { at, id, kind: kind.to_owned() };
                if after.is_none_or(|after| entry > *after) {
                    entries.push(entry);
                }
            }
            start = page.last_evaluated_key;
            if start.is_none() || entries.len() >= limit {
                return Ok(entries);
            }
        }
    }
}

/// Shards of orders in which there is little: accepted, released and unknown records, evidence, history. Fewer shards cost
/// upkeep fewer reads. They take about 8,000 accepted requests a second.
const FEW: u16 = 16;

/// Entries that a shard is asked for besides twice its share: a small share is less even.
const SHARE_MIN: usize = 8;

/// Queries of one look at an order that are in flight at once. All shards are asked within some round trips, and the
/// connections of requests stay few.
const QUERIES_AT_ONCE: usize = 32;
