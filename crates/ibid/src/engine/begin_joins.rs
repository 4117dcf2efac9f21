//! Joined begins: a begin of a record whose begin is already queued or in flight in this process waits for that one's
//! result, and sends nothing.
//!
//! A burst of duplicates then costs one write, whatever its size. Without this, one change per record and batch is in
//! flight, so each duplicate would wait for the commits of all before it.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use ibid_core::change::StoredRecord;
use ibid_core::scope::{RecordId, Tenant};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::tenant_bound::{TenantBound, TenantPermit};

/// The begins of one process that are queued or in flight.
pub(crate) struct BeginJoins {
    /// The begins that send their write. Most are alone, so a channel is made for the first begin that joins.
    leads: Mutex<HashMap<RecordId, Option<ResultSender>, RandomState>>,
    joined: TenantBound,
}

type ResultSender = watch::Sender<Option<FoundRecord>>;

/// The record that the store has after a begin, or that was in the begin's way.
#[derive(Clone, Debug)]
pub(super) struct FoundRecord {
    /// `None` if the store reported a conflict and returned no record.
    pub(super) stored: Option<StoredRecord>,
    /// An instant from before the begin was sent.
    pub(super) sent_at: Instant,
}

/// The role of a begin among those of its record.
pub(super) enum BeginRole<'a> {
    /// It is alone, and sends its write.
    Lead(BeginLead<'a>),
    /// Another begin of the record is on its way.
    Join(BeginJoin),
    /// Too many begins wait for others already, in all or of this tenant.
    Full,
}

/// The begin that sends its write. Dropped without a result, its joined begins learn that it failed.
pub(super) struct BeginLead<'a> {
    joins: &'a BeginJoins,
    /// `None` once it has left.
    id: Option<RecordId>,
}

/// A begin that waits for another one's result.
pub(super) struct BeginJoin {
    result: watch::Receiver<Option<FoundRecord>>,
    _permit: TenantPermit,
}

impl Default for BeginJoins {
    fn default() -> Self {
        BeginJoins { leads: Mutex::default(), joined: TenantBound::new(JOINED_MAX) }
    }
}

impl BeginJoins {
    /// Enters a begin of this record.
    pub(super) fn enter(&self, id: RecordId, tenant: &Tenant) -> BeginRole<'_> {
        let mut leads = self.leads.lock();
        let Some(lead) = leads.get_mut(&id) else {
            leads.insert(id, None);
            return BeginRole::Lead(BeginLead { joins: self, id: Some(id) });
        };
        let Ok(permit) = self.joined.take(tenant, 1) else { return BeginRole::Full };
        let result = lead.get_or_insert_with(|| watch::Sender::new(None)).subscribe();
        BeginRole::Join(BeginJoin { result, _permit: permit })
    }
}

impl BeginLead<'_> {
    /// Gives the joined begins the record that they would have found.
    pub(super) fn publish(mut self, stored: Option<&StoredRecord>, sent_at: Instant) {
        if let Some(result) = self.leave() {
            result.send_replace(Some(FoundRecord { stored: stored.cloned(), sent_at }));
        }
    }

    /// Makes way for the next begin, once. Returns the channel to those that have joined this one.
    fn leave(&mut self) -> Option<ResultSender> {
        self.joins.leads.lock().remove(&self.id.take()?).flatten()
    }
}

impl Drop for BeginLead<'_> {
    fn drop(&mut self) {
        // It leaves before the channel is closed: a begin that learns of a failure must not join the failed one again.
        drop(self.leave());
    }
}

impl BeginJoin {
    /// Waits for the other begin's result. Returns `None` if that begin failed or was dropped.
    pub(super) async fn result(&mut self) -> Option<FoundRecord> {
        self.result.wait_for(Option::is_some).await.ok()?.clone()
    }
}

/// Begins that may wait for others; one tenant may have half of them. A joined begin holds its request in memory, and this is as
/// many as may be queued for the store.
const JOINED_MAX: usize = 20_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u8) -> RecordId {
        RecordId::from_bytes([n; RecordId::LEN])
    }

    fn lead(joins: &BeginJoins, n: u8) -> BeginLead<'_> {
        match joins.enter(id(n), &Tenant::only()) {
            BeginRole::Lead(lead) => lead,
            _ => panic!("a begin of this record is on its way"),
        }
    }

    fn join(joins: &BeginJoins, n: u8) -> BeginJoin {
        match joins.enter(id(n), &Tenant::only()) {
            BeginRole::Join(join) => join,
            _ => panic!("no begin of this record is on its way"),
        }
    }

    #[tokio::test]
    async fn a_begin_joins_only_one_of_its_own_record() {
        let joins = BeginJoins::default();
        let first = lead(&joins, 1);
        let _other = lead(&joins, 2);
        let mut joined = join(&joins, 1);
        let sent_at = Instant::now();
        first.publish(None, sent_at);
        let result = joined.result().await.expect("a result");
        assert!(result.stored.is_none() && result.sent_at == sent_at);
        drop(lead(&joins, 1));
    }

    #[tokio::test]
    async fn a_dropped_begin_leaves_its_place_to_the_next() {
        let joins = BeginJoins::default();
        let first = lead(&joins, 1);
        let mut joined = join(&joins, 1);
        drop(first);
        assert!(joined.result().await.is_none());
        drop(lead(&joins, 1));
    }

    #[tokio::test]
    async fn a_published_begin_leaves_the_next_one_alone() {
        let joins = BeginJoins::default();
        let first = lead(&joins, 1);
        first.publish(None, Instant::now());
        let second = lead(&joins, 1);
        let mut joined = join(&joins, 1);
        second.publish(None, Instant::now());
        assert!(joined.result().await.is_some());
        assert!(joins.leads.lock().is_empty());
    }

    #[test]
    fn joined_begins_of_a_tenant_leave_room_for_others() {
        let joins = BeginJoins::default();
        let tenant = |name| Tenant::new(name).expect("a good name");
        let (noisy, other, third) = (tenant("noisy"), tenant("other"), tenant("third"));
        let (_first, _second) = (lead(&joins, 1), lead(&joins, 2));
        let enter = |n, tenant: &Tenant| match joins.enter(id(n), tenant) {
            BeginRole::Join(join) => Some(join),
            BeginRole::Full => None,
            BeginRole::Lead(_) => panic!("no begin of this record is on its way"),
        };
        let mut joined: Vec<_> = (0..JOINED_MAX / 2).map(|_| enter(1, &noisy).expect("room")).collect();
        assert!(enter(1, &noisy).is_none(), "it has its half");
        assert!(
            matches!(joins.enter(id(3), &noisy), BeginRole::Lead(_)),
            "a begin that sends is not refused here"
        );
        joined.extend((0..JOINED_MAX / 2).map(|_| enter(2, &other).expect("the other half")));
        assert!(enter(2, &third).is_none(), "the process is full");
        joined.pop();
        assert!(enter(2, &third).is_some());
    }
}
