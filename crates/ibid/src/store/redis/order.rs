//! Orders over all buckets: merged by score for chores, or walked one after the other for operators.
//!
//! An order is a reason to look at a record, never proof: the record's own instants decide.

use futures_util::future::join_all;
use ibid_core::scope::RecordId;
use ibid_core::store::Cursor;
use ibid_core::time::Timestamp;
use redis::Value;

use super::error::Failure;
use super::key::Bucket;
use super::nodes::Nodes;
use super::reply::{bytes, time};
use super::script::RANGE;

/// One order in one bucket.
#[derive(Clone)]
pub(super) struct Order {
    pub(super) bucket: Bucket,
    pub(super) key: Vec<u8>,
    /// Code of the state whose records it has; 0 for other orders.
    pub(super) state: u8,
}

/// A position in an order: behind a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OrderPosition {
    pub(super) score: i64,
    pub(super) member: RecordId,
}

/// A member of an order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) position: OrderPosition,
    /// Position of its order in the list of orders.
    pub(super) order: usize,
}

/// The end of a range of scores.
#[derive(Clone, Copy)]
pub(super) enum RangeEnd {
    /// The server's present time.
    Now,
    /// The server's present time less this many microseconds.
    Before(i64),
    /// No end of the range.
    Open,
}

/// Members of several orders, by score.
pub(super) struct MergedOrders {
    pub(super) members: Vec<Member>,
    /// Position that the next members are behind; `None` if there are no more.
    pub(super) next: Option<OrderPosition>,
    /// The latest time of a server that answered.
    pub(super) now: Timestamp,
}

/// A part of one order.
struct OrderPart {
    /// Position of the order in the list of orders.
    order: usize,
    now: Timestamp,
    positions: Vec<OrderPosition>,
    /// The last position that was read, if there may be more behind it.
    end: Option<OrderPosition>,
}

impl OrderPosition {
    /// Creates the cursor of what comes behind this position.
    pub(super) fn cursor(self) -> Cursor {
        Cursor([&self.score.to_be_bytes()[..], self.member.as_bytes()].concat().into())
    }

    /// Reads a cursor of [`OrderPosition::cursor`].
    pub(super) fn parse(cursor: &[u8]) -> Option<OrderPosition> {
        let (score, member) = cursor.split_first_chunk()?;
        Some(OrderPosition {
            score: i64::from_be_bytes(*score),
            member: RecordId::from_bytes(member.try_into().ok()?),
        })
    }
}

impl Nodes {
    /// Returns up to `limit` members of all orders, least score first, behind `after`. Orders that can't be reached are left out.
    pub(super) async fn merge(
        &self,
        orders: &[Order],
        after: Option<OrderPosition>,
        last: RangeEnd,
        limit: usize,
    ) -> Result<MergedOrders, Failure> {
        // A share of each order is enough where many have members: what lies behind the last member of a share that is
        // full is left for the next call.
        let share = limit.min(SHARE_MIN.max(limit / SHARE_PARTS));
        let parts = self.reachable(self.ranges(orders, after, last, share).await)?;
        let parts: Vec<OrderPart> = parts.into_iter().flatten().collect();
        let horizon = parts.iter().filter_map(|part| part.end).min();
        let mut members = Vec::new();
        for part in &parts {
            let known =
                part.positions.iter().filter(|position| horizon.is_none_or(|horizon| **position <= horizon));
            members.extend(known.map(|position| Member { position: *position, order: part.order }));
        }
        members.sort_unstable_by_key(|member| member.position);
        let has_more = horizon.is_some() || members.len() > limit;
        members.truncate(limit);
        let next = members.last().map(|member| member.position).filter(|_| has_more);
        let now = parts.iter().map(|part| part.now).max().unwrap_or_default();
        Ok(MergedOrders { members, next, now })
    }

    /// Returns members of the orders, one order after the other, from an order and a position in it on; and where the next
    /// ones begin. Fails if one of the orders can't be reached: a walk is complete.
    pub(super) async fn walk(
        &self,
        orders: &[Order],
        from: (usize, Option<OrderPosition>),
        last: RangeEnd,
    ) -> Result<(Vec<Member>, Option<(usize, Option<OrderPosition>)>), Failure> {
        let (first, after) = from;
        // Only the first order is read from a position on.
        let width = if after.is_some() { 1 } else { WALK_ORDERS };
        let window = orders.iter().skip(first).take(width).cloned().collect::<Vec<Order>>();
        let mut members = Vec::new();
        let mut next =
            Some(first + window.len()).filter(|next| *next < orders.len()).map(|next| (next, None));
        let parts: Result<Vec<_>, Failure> =
            self.ranges(&window, after, last, WALK_MEMBERS).await.into_iter().collect();
        for part in parts?.into_iter().flatten() {
            let order = first + part.order;
            members.extend(part.positions.into_iter().map(|position| Member { position, order }));
            if let Some(end) = part.end {
                next = Some((order, Some(end)));
                break;
            }
        }
        Ok((members, next))
    }

    /// Returns up to `limit` members of each order behind `after`, as one result for each script that reads some of the orders.
    async fn ranges(
        &self,
        orders: &[Order],
        after: Option<OrderPosition>,
        last: RangeEnd,
        limit: usize,
    ) -> Vec<Result<Vec<OrderPart>, Failure>> {
        // In a cluster the keys of a script are in one slot.
        let is_cluster = self.is_cluster();
        let groups = orders.chunk_by(|one, next| !is_cluster || one.bucket == next.bucket);
        let mut first = 0;
        let ranges = groups.flat_map(|group| group.chunks(SCRIPT_ORDERS)).map(|group| {
            let range = self.range(group, first, after, last, limit);
            first += group.len();
            range
        });
        join_all(ranges.collect::<Vec<_>>()).await
    }

    /// Reads some orders in one script. `first` is the position of the first one in the list of orders.
    async fn range(
        &self,
        orders: &[Order],
        first: usize,
        after: Option<OrderPosition>,
        last: RangeEnd,
        limit: usize,
    ) -> Result<Vec<OrderPart>, Failure> {
        let from = after.map_or("-inf".to_owned(), |after| after.score.to_string());
        let last = match last {
            RangeEnd::Now => "0".to_owned(),
            RangeEnd::Before(micros) => micros.to_string(),
            RangeEnd::Open => "+inf".to_owned(),
        };
        let behind = after.map(|after| after.member);
        let behind = behind.as_ref().map_or(&b""[..], |member| member.as_bytes());
        let most = limit.to_string();
        let arguments = [from.as_bytes(), last.as_bytes(), most.as_bytes(), behind];
        let Some(bucket) = orders.first().map(|order| order.bucket) else { return Ok(Vec::new()) };
        let keys: Vec<Vec<u8>> = orders.iter().map(|order| order.key.clone()).collect();
        let Value::Array(parts) = self.run(&RANGE, bucket, &keys, &arguments, None).await? else {
            return Err(Failure::reply());
        };
        let now = time(&parts)?;
        let ranges = (first..).zip(parts.get(2..).unwrap_or_default());
        let parts: Vec<OrderPart> =
            ranges.map(|(order, range)| read_part(order, range, limit, now)).collect::<Result<_, _>>()?;
        if parts.len() == orders.len() { Ok(parts) } else { Err(Failure::reply()) }
    }
}

fn read_part(order: usize, range: &Value, limit: usize, now: Timestamp) -> Result<OrderPart, Failure> {
    let Value::Array(range) = range else { return Err(Failure::reply()) };
    let position = |pair: &[Value]| {
        let member = RecordId::from_bytes(bytes(pair.first()?)?.try_into().ok()?);
        let score: f64 = std::str::from_utf8(bytes(pair.get(1)?)?).ok()?.parse().ok()?;
        // Scores are whole numbers below 2⁵³.
        Some(OrderPosition { score: score as i64, member })
    };
    let positions =
        range.chunks(2).map(position).collect::<Option<Vec<OrderPosition>>>().ok_or_else(Failure::reply)?;
    let end = positions.last().copied().filter(|_| positions.len() >= limit);
    Ok(OrderPart { order, now, positions, end })
}

/// Share of one order in a merge of few members, so that all of them are in the right order in one step.
const SHARE_MIN: usize = 64;

/// Part of a large merge that one order may fill: of 256 buckets, each has about a 256th of what is due.
const SHARE_PARTS: usize = 16;

/// Orders that a walk asks at a time: one round trip for a fifth of all.
const WALK_ORDERS: usize = 256;

/// Orders that one script reads: a script must be short, because the server runs nothing else meanwhile.
const SCRIPT_ORDERS: usize = 64;

/// Members of one order that a walk reads at a time.
const WALK_MEMBERS: usize = 100;
