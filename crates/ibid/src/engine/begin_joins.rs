//! Joined begins: a begin of a record whose begin is already queued or in flight in this process waits for that one's
//! result, and sends nothing.
//!
//! A burst of duplicates then costs one write, whatever its size. Without this, one change per record and batch is in
//! flight, so each duplicate would wait for the commits of all before it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use ibid_core::change::StoredRecord;
use ibid_core::scope::RecordId;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

/// The begins of one process that are queued or in flight.
#[derive(Default)]
pub(crate) struct BeginJoins {
    leads: Mutex<HashMap<RecordId, watch::Receiver<Option<FoundRecord>>, RandomState>>,
    joined: Arc<AtomicUsize>,
}

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
    /// Too many begins wait for others already.
    Full,
}

/// The begin that sends its write. Dropped without a result, its joined begins learn that it failed.
pub(super) struct BeginLead<'a> {
    joins: &'a BeginJoins,
    id: RecordId,
    result: watch::Sender<Option<FoundRecord>>,
}

/// A begin that waits for another one's result.
pub(super) struct BeginJoin {
    result: watch::Receiver<Option<FoundRecord>>,
    joined: Arc<AtomicUsize>,
}

impl BeginJoins {
    /// Enters a begin of this record.
    pub(super) fn enter(&self, id: RecordId) -> BeginRole<'_> {
        let mut leads = self.leads.lock();
        if let Some(result) = leads.get(&id) {
            if self.joined.fetch_add(1, Ordering::SeqCst) >= JOINED_MAX {
                self.joined.fetch_sub(1, Ordering::SeqCst);
                return BeginRole::Full;
            }
            return BeginRole::Join(BeginJoin { result: result.clone(), joined: self.joined.clone() });
        }
        let (sender, receiver) = watch::channel(None);
        leads.insert(id, receiver);
        BeginRole::Lead(BeginLead { joins: self, id, result: sender })
    }
}

impl BeginLead<'_> {
    /// Gives the joined begins the record that they would have found.
    pub(super) fn publish(self, stored: Option<&StoredRecord>, sent_at: Instant) {
        self.result.send_replace(Some(FoundRecord { stored: stored.cloned(), sent_at }));
    }
}

impl Drop for BeginLead<'_> {
    fn drop(&mut self) {
        // Before the sender is dropped: a begin that learns of a failure must not join the failed one again.
        self.joins.leads.lock().remove(&self.id);
    }
}

impl BeginJoin {
    /// Waits for the other begin's result. Returns `None` if that begin failed or was dropped.
    pub(super) async fn result(&mut self) -> Option<FoundRecord> {
        self.result.wait_for(Option::is_some).await.ok()?.clone()
    }
}

impl Drop for BeginJoin {
    fn drop(&mut self) {
        self.joined.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Begins that may wait for others. A joined begin holds its request in memory, and this is as many as may be queued for
/// the store.
const JOINED_MAX: usize = 20_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u8) -> RecordId {
        RecordId::from_bytes([n; RecordId::LEN])
    }

    fn lead(joins: &BeginJoins, n: u8) -> BeginLead<'_> {
        match joins.enter(id(n)) {
            BeginRole::Lead(lead) => lead,
            _ => panic!("a begin of this record is on its way"),
        }
    }

    fn join(joins: &BeginJoins, n: u8) -> BeginJoin {
        match joins.enter(id(n)) {
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

    #[test]
    fn joined_begins_are_bounded() {
        let joins = BeginJoins::default();
        let _first = lead(&joins, 1);
        let mut joined: Vec<_> = (0..JOINED_MAX).map(|_| join(&joins, 1)).collect();
        assert!(matches!(joins.enter(id(1)), BeginRole::Full));
        assert!(matches!(joins.enter(id(2)), BeginRole::Lead(_)), "a begin that sends is not refused here");
        joined.pop();
        drop(join(&joins, 1));
    }
}
