//! Questions of operators, answered bucket by bucket: there is no order of all ids across buckets.
//!
//! A list of all records reads the ids of a bucket at one moment, so that a record which changes its state meanwhile is neither
//! missed nor shown twice. A list of one state follows the order of that state, and may do both.

use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use ibid_core::change::{HistoryKind, HistoryLine, StoredRecord};
use ibid_core::fingerprint::SecretId;
use ibid_core::reap::{ReapCount, ReapTarget};
use ibid_core::record::State;
use ibid_core::row::micros;
use ibid_core::scope::RecordId;
use ibid_core::store::copy::{CopiedLine, CopyPart};
use ibid_core::store::{
    BoxFuture, BrowseStore, Cursor, Page, RecordCounts, RecordFilter, RowCount, StoreError,
};
use redis::Value;

use super::error::Failure;
use super::key::{self, Bucket};
use super::order::{Member, Order, OrderPosition, RangeEnd};
use super::reply::{bytes, number};
use super::{RedisStore, all_orders, error_of, history_orders, record_bytes, script, state_order};

impl BrowseStore for RedisStore {
    /// Lists state by state, bucket by bucket. A page ends early if few of many records match.
    fn list(&self, filter: RecordFilter) -> BoxFuture<'_, Result<Page<StoredRecord>, StoreError>> {
        Box::pin(async move { self.list_records(&filter).await.map_err(error_of("list records")) })
    }

    fn history(&self, id: RecordId) -> BoxFuture<'_, Result<Vec<HistoryLine>, StoreError>> {
        Box::pin(async move {
            let lines = self.load_lines(&id, HISTORY_MAX).await.map_err(error_of("read a history"))?;
            let lines = lines.iter().filter_map(read_line).map(|line| {
                let what = HistoryKind::from_name(&line.what);
                HistoryLine { at: line.at, what, detail: line.detail }
            });
            Ok(lines.collect())
        })
    }

    fn count(&self) -> BoxFuture<'_, Result<RecordCounts, StoreError>> {
        Box::pin(async move { self.count_records().await.map_err(error_of("count records")) })
    }

    fn count_reapable(&self, target: ReapTarget) -> BoxFuture<'_, Result<ReapCount, StoreError>> {
        Box::pin(async move { self.preview(target).await.map_err(error_of("count what may go")) })
    }

    fn find_unknown_secret(
        &self,
        known: Vec<SecretId>,
    ) -> BoxFuture<'_, Result<Option<SecretId>, StoreError>> {
        Box::pin(async move {
            let find = async || {
                for byte in 0..=u8::MAX {
                    let ids = self.members(CopyPart::Records, byte, false).await?;
                    for part in ids.chunks(LOADS_AT_A_TIME) {
                        let records = self.load_all(part.iter().copied()).await?;
                        // A tombstone's fingerprint is never compared.
                        let live = records.iter().filter(|stored| !stored.record.identity.is_forgotten());
                        let mut secrets = live.filter_map(|stored| Some(stored.record.fingerprint?.secret()));
                        if let Some(secret) = secrets.find(|secret| !known.contains(secret)) {
                            return Ok(Some(secret));
                        }
                    }
                }
                Ok(None)
            };
            find().await.map_err(error_of("look for secrets"))
        })
    }
}

impl RedisStore {
    /// Loads records. Fails if one of them can't be reached now.
    async fn load_all(&self, ids: impl IntoIterator<Item = RecordId>) -> Result<Vec<StoredRecord>, Failure> {
        self.load_members(ids).await.into_iter().filter_map(Result::transpose).collect()
    }

    async fn list_records(&self, filter: &RecordFilter) -> Result<Page<StoredRecord>, Failure> {
        let bounds = filter.prefix.as_ref().map(|prefix| prefix.bounds());
        let orders = orders_of(filter, bounds.map(|(low, _)| Bucket::of(&low)));
        let mut next = match &filter.after {
            Some(cursor) => parse_cursor(cursor),
            None => Some((0, None)),
        };
        let (mut items, mut last_item, mut read) = (Vec::new(), None, 0);
        while let Some(from) = next.filter(|_| filter.limit > 0) {
            let (members, then) = match filter.dead_letter || filter.state.is_some() {
                true => self.nodes.walk(&orders, from, RangeEnd::Open).await?,
                false => self.walk_ids(&orders, from).await?,
            };
            next = then;
            for part in members.chunks(LOADS_AT_A_TIME) {
                let ids = part.iter().map(|member| member.position.member);
                let ids = ids.filter(|id| bounds.is_none_or(|(low, high)| (low..=high).contains(id)));
                let records = self.load_all(ids).await?;
                for stored in records.into_iter().filter(|stored| filter.fits(&stored.record, stored.now)) {
                    if items.len() == filter.limit as usize {
                        return Ok(Page { items, next: last_item.as_ref().map(list_cursor) });
                    }
                    let position = part.iter().find(|member| member.position.member == stored.record.id);
                    last_item = position.copied();
                    items.push(stored);
                }
                read += part.len();
                if read >= LIST_READ_MAX {
                    return Ok(Page { items, next: part.last().map(list_cursor) });
                }
            }
        }
        Ok(Page { items, next: None })
    }

    /// Returns the ids of the records of one bucket behind a position, and where the next ones begin.
    async fn walk_ids(
        &self,
        buckets: &[Order],
        (order, after): (usize, Option<OrderPosition>),
    ) -> Result<(Vec<Member>, Option<(usize, Option<OrderPosition>)>), Failure> {
        let Some(Order { bucket, .. }) = buckets.get(order) else { return Ok((Vec::new(), None)) };
        // A bucket is one byte of the ids.
        let byte = u8::try_from(bucket.index()).unwrap_or(u8::MAX);
        let ids = self.members(CopyPart::Records, byte, after.is_some()).await?;
        let behind = ids.iter().filter(|id| after.is_none_or(|after| **id > after.member));
        let member = |id: &RecordId| Member { position: OrderPosition { score: 0, member: *id }, order };
        let next = Some(order + 1).filter(|next| *next < buckets.len()).map(|next| (next, None));
        Ok((behind.map(member).collect(), next))
    }

    /// Loads the last lines of a record's history, at most `most`, oldest first.
    pub(super) async fn load_lines(&self, id: &RecordId, most: u32) -> Result<Vec<Value>, Failure> {
        let most = most.to_string();
        let (keys, arguments) = ([key::history(id)], [most.as_bytes()]);
        match self.nodes.run(&script::HISTORY, Bucket::of(id), &keys, &arguments, None).await? {
            Value::Array(lines) => Ok(lines),
            _ => Err(Failure::reply()),
        }
    }

    async fn count_records(&self) -> Result<RecordCounts, Failure> {
        let counts = Bucket::all().map(async |bucket| {
            let keys: Vec<Vec<u8>> = [bucket.letter_order()].into_iter().chain(bucket.orders()).collect();
            let reply = self.nodes.run(&script::COUNT, bucket, &keys, &[], None).await?;
            let Value::Array(counts) = reply else { return Err(Failure::reply()) };
            counts.iter().map(number).collect::<Result<Vec<i64>, Failure>>()
        });
        let counts = self.nodes.reachable(join_all(counts).await)?;
        let known = match counts.len() == usize::from(key::BUCKETS) {
            true => RowCount::Exact,
            false => RowCount::Estimated,
        };
        let (mut dead_letters, mut by_state) = (0, [0; State::ALL.len()]);
        for counts in counts {
            let [letters, states @ ..] = &counts[..] else { return Err(Failure::reply()) };
            dead_letters += letters.cast_unsigned();
            by_state.iter_mut().zip(states).for_each(|(sum, count)| *sum += count.cast_unsigned());
        }
        Ok(RecordCounts {
            by_state: by_state.map(known),
            dead_letters: known(dead_letters),
            dead_effects: RowCount::Exact(0),
            oldest_unknown: self.oldest_unknown().await?,
        })
    }

    /// Returns the time since the last run of the unknown record that ran longest ago, among those that are due first.
    async fn oldest_unknown(&self) -> Result<Option<Duration>, Failure> {
        let orders: Vec<Order> = Bucket::all().map(|bucket| state_order(bucket, State::UNSETTLED)).collect();
        let first = self.nodes.merge(&orders, None, RangeEnd::Open, UNKNOWN_READ_MAX).await?;
        let loads = self.load_members(first.members.iter().map(|member| member.position.member)).await;
        let records = self.nodes.reachable(loads)?.into_iter().flatten();
        let ages = records.map(|stored| {
            let ran_at = stored.record.ran_at.unwrap_or(stored.record.created_at);
            stored.now.since(ran_at)
        });
        Ok(ages.max())
    }

    async fn preview(&self, target: ReapTarget) -> Result<ReapCount, Failure> {
        let (orders, last) = match target {
            ReapTarget::Records => (all_orders(), RangeEnd::Now),
            ReapTarget::History { keep } => (history_orders(), RangeEnd::Before(micros(keep))),
            ReapTarget::Effects { .. } | ReapTarget::Policies | ReapTarget::Room => {
                return Ok(ReapCount::default());
            }
        };
        let (mut next, mut count) = (Some((0, None)), ReapCount::default());
        while let Some(from) = next {
            let (members, then) = self.nodes.walk(&orders, from, last).await?;
            next = then;
            for part in members.chunks(LOADS_AT_A_TIME) {
                if let ReapTarget::History { keep } = target {
                    let looks =
                        part.iter().map(|member| self.reap_lines(&member.position.member, keep, true));
                    count.remove += try_join_all(looks).await?.into_iter().sum::<i64>().cast_unsigned();
                    continue;
                }
                let looks = part.iter().map(|member| {
                    self.reap_record(&member.position.member, orders[member.order].state, true)
                });
                for outcome in try_join_all(looks).await? {
                    count.strip += u64::from(outcome == 1);
                    count.remove += u64::from(outcome == 2);
                }
            }
        }
        Ok(count)
    }
}

/// Returns the orders that can have records which match: those of one state, or the dead letters, or one for each bucket; of one
/// bucket if the beginning of the id is known.
fn orders_of(filter: &RecordFilter, bucket: Option<Bucket>) -> Vec<Order> {
    let orders = match (filter.dead_letter, filter.state) {
        (true, _) => {
            Bucket::all().map(|bucket| Order { bucket, key: bucket.letter_order(), state: 0 }).collect()
        }
        (false, Some(state)) => Bucket::all().map(|bucket| state_order(bucket, state)).collect(),
        // Only the buckets count.
        (false, None) => history_orders(),
    };
    orders.into_iter().filter(|order| bucket.is_none_or(|bucket| order.bucket == bucket)).collect()
}

fn list_cursor(last: &Member) -> Cursor {
    // There is an order for each of 256 buckets.
    let order = u16::try_from(last.order).unwrap_or(u16::MAX);
    Cursor([&order.to_be_bytes()[..], &last.position.cursor().0].concat().into())
}

fn parse_cursor(cursor: &Cursor) -> Option<(usize, Option<OrderPosition>)> {
    let (order, position) = cursor.0.split_first_chunk()?;
    Some((usize::from(u16::from_be_bytes(*order)), Some(OrderPosition::parse(position)?)))
}

/// Reads a line of history; `None` if it can't be read.
pub(super) fn read_line(line: &Value) -> Option<CopiedLine> {
    let (at, text) = bytes(line)?.split_first_chunk()?;
    let (what, detail) = std::str::from_utf8(text).ok()?.split_once('\0')?;
    let at = record_bytes::instant(*at)?;
    Some(CopiedLine { at, what: what.to_owned(), detail: detail.to_owned() })
}

/// Records that are loaded at a time: enough to fill a connection, few enough for other callers' replies in between.
const LOADS_AT_A_TIME: usize = 128;

/// Records that one page of a list reads at most: on a server that other callers use, a second or two.
const LIST_READ_MAX: usize = 20_000;

/// Unknown records that are read for the age of the oldest one, some times a minute. An operator who has more needs no exact age.
const UNKNOWN_READ_MAX: usize = 256;

/// Lines of one record's history that are read, the newest ones. A record has a handful.
const HISTORY_MAX: u32 = 10_000;
