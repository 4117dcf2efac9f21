//! Batches on a single server: new records and the ends of their attempts, many in one script.
//!
//! A script costs the server's one thread more than its commands do, so what arrives while one runs goes together in the next. In a
//! cluster the keys of a script are in one slot, and every change goes alone. So does a change that needs more keys than these have.

use std::fmt;

use futures_util::future::join_all;
use ibid_core::change::{Change, Commit, Expect, InstantChange, Stamp};
use ibid_core::record::State;
use ibid_core::row::INLINE_BODY_MAX;
use ibid_core::store::StoreError;
use ibid_core::time::Timestamp;
use redis::Value;

use super::error::Failure;
use super::key::{self, Bucket};
use super::records::RedisRecords;
use super::reply::time;
use super::script::{self, Script};
use super::{NAME, OP, error_of, record_bytes};
use crate::store::commit_queue::{Committer, FlightBatch, FlightOutcome, Item, LockWait, Path, PlainOutcome};

impl RedisRecords {
    /// Returns whether a change has no more keys than a batch declares, and may begin now if it begins.
    pub(super) fn may_fly(&self, change: &Change) -> bool {
        let Change { bodies, history, uses, clears_bodies, .. } = change;
        let Some(draft) = &change.draft else { return false };
        let is_plain = bodies.is_empty() && history.is_empty() && uses.is_none() && !clears_bodies;
        let is_inline = change.response.as_ref().map(|response| response.body.len() <= INLINE_BODY_MAX);
        let has_keys = match change.expect {
            Expect::Absent => is_inline != Some(false) && draft.created == InstantChange::Now,
            Expect::Version(_) => is_inline == Some(true) && draft.created == InstantChange::Keep,
            Expect::Due(_) | Expect::Anything => false,
        };
        let bucket = Bucket::of(&change.id);
        is_plain && has_keys && !draft.flags.dead_letter && self.nodes.refusal(bucket).is_none()
    }

    /// Inserts new records, many in one script.
    async fn send_begins(&self, items: Vec<Item>) -> Vec<(Item, FlightOutcome)> {
        let connection = self.nodes.connection_number().unwrap_or_default();
        // The first record of a bucket under its policy brings that along.
        let (items, alone): (Vec<Item>, Vec<Item>) =
            items.into_iter().partition(|Item { change, .. }| {
                self.policies.is_stored(connection, Bucket::of(&change.id), self.policy_number(change))
            });
        let (mut keys, mut drafts) = (Vec::with_capacity(3 * items.len()), Vec::with_capacity(items.len()));
        for Item { change, .. } in &items {
            keys.extend([key::record(&change.id), key::bodies(&change.id), order_of(change)]);
            drafts.push(record_bytes::draft(Vec::new(), change, self.policy_number(change)));
        }
        let sent = self.send_batch(&script::BEGIN, Some(connection), keys, drafts, items);
        let (mut landed, others) = tokio::join!(sent, self.commit_each(alone));
        landed.extend(others);
        landed
    }

    /// Ends attempts, many in one script.
    async fn send_finishes(&self, items: Vec<Item>) -> Vec<(Item, FlightOutcome)> {
        let (mut keys, mut arguments) =
            (Vec::with_capacity(4 * items.len()), Vec::with_capacity(items.len()));
        for Item { change, .. } in &items {
            let leased = Bucket::of(&change.id).order(State::LEASED);
            keys.extend([key::record(&change.id), key::bodies(&change.id), leased, order_of(change)]);
            let (_, version) = record_bytes::expectation(change.expect);
            let before = [&[State::LEASED.code()], &version[..]].concat();
            arguments.push(record_bytes::draft(before, change, self.policy_number(change)));
        }
        self.send_batch(&script::FINISH, None, keys, arguments, items).await
    }

    /// Runs one script for many changes.
    async fn send_batch(
        &self,
        script: &Script,
        on: Option<u64>,
        keys: Vec<Vec<u8>>,
        arguments: Vec<Vec<u8>>,
        items: Vec<Item>,
    ) -> Vec<(Item, FlightOutcome)> {
        if items.is_empty() {
            return Vec::new();
        }
        let arguments: Vec<&[u8]> = arguments.iter().map(|argument| &argument[..]).collect();
        let reply = self.nodes.run_on(on, script, Bucket::SETTINGS, &keys, &arguments, None).await;
        let outcomes = reply.and_then(|reply| BatchReply::parse(reply, items.len()));
        let reply = match outcomes {
            Ok(reply) => reply,
            Err(Failure::Ambiguous(error)) => {
                let lost =
                    |item| (item, FlightOutcome::Reply(Err(StoreError::transient(NAME, OP, error.clone()))));
                return items.into_iter().map(lost).collect();
            }
            // A refusal of all says nothing about each: a full server still answers for a key that is taken. A change that
            // was written all the same meets its own nonce.
            Err(_) => return self.commit_each(items).await,
        };
        let (mut landed, mut alone) = (Vec::with_capacity(items.len()), Vec::new());
        for (item, left) in items.into_iter().zip(reply.left_alone) {
            match left.as_deref() {
                None => landed.push((item, FlightOutcome::Reply(Ok(Commit::Done(Stamp { now: reply.now }))))),
                Some([]) => alone.push(item),
                Some(stored) => {
                    let stored = self.read_stored(&item.change.id, reply.now, stored).await;
                    let conflict = stored.map(|stored| Commit::Conflict(stored.map(Box::new)));
                    landed.push((item, FlightOutcome::Reply(conflict.map_err(error_of(OP)))));
                }
            }
        }
        landed.extend(self.commit_each(alone).await);
        landed
    }

    /// Commits changes alone, all at the same time.
    async fn commit_each(&self, items: Vec<Item>) -> Vec<(Item, FlightOutcome)> {
        let commits = items.into_iter().map(async |item| {
            let committed = self.commit(&item.change, item.send_by()).await;
            (item, FlightOutcome::Reply(committed.map_err(error_of(OP))))
        });
        join_all(commits).await
    }

    fn policy_number(&self, change: &Change) -> i64 {
        change.draft.as_ref().map_or(0, |draft| self.policies.number(&draft.policy))
    }
}

impl Committer for RedisRecords {
    type RowLocation = ();

    const KIND: &'static str = NAME;

    fn path(&self, change: &Change) -> Path<()> {
        if change.expect == Expect::Absent { Path::Begin } else { Path::Finish(()) }
    }

    async fn send_flight(&self, batch: FlightBatch<()>) -> Vec<(Item, FlightOutcome)> {
        let (finishes, begins): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(|(_, location)| location.is_some());
        let items = |batch: Vec<(Item, Option<()>)>| batch.into_iter().map(|(item, _)| item).collect();
        // Both are in one write to the server.
        let (mut landed, others) =
            tokio::join!(self.send_finishes(items(finishes)), self.send_begins(items(begins)));
        landed.extend(others);
        landed
    }

    /// Commits one change alone. No flight leaves any for it.
    async fn commit_plain(&self, change: &Change, _: LockWait) -> PlainOutcome {
        PlainOutcome::Result(self.commit(change, None).await.map_err(error_of(OP)))
    }
}

/// The reply of a script that was sent for many changes.
struct BatchReply {
    now: Timestamp,
    /// For each change `None` if it was written; otherwise the stored record and the body of its response, or nothing if the
    /// script has not all keys that it needs.
    left_alone: Vec<Option<Vec<Value>>>,
}

impl BatchReply {
    fn parse(reply: Value, changes: usize) -> Result<BatchReply, Failure> {
        let Value::Array(parts) = reply else { return Err(Failure::reply()) };
        let now = time(&parts)?;
        let mut left_alone = vec![None; changes];
        for part in parts.into_iter().skip(2) {
            let Value::Array(mut part) = part else { return Err(Failure::reply()) };
            let stored = part.split_off(part.len().min(1));
            let [Value::Int(number)] = part[..] else { return Err(Failure::reply()) };
            // Lua counts from 1.
            let at = usize::try_from(number - 1).map_err(|_| Failure::reply())?;
            *left_alone.get_mut(at).ok_or_else(Failure::reply)? = Some(stored);
        }
        Ok(BatchReply { now, left_alone })
    }
}

/// Returns the order of the state that a change leads to.
fn order_of(change: &Change) -> Vec<u8> {
    let state = change.draft.as_ref().map_or(State::FINAL, |draft| draft.state);
    Bucket::of(&change.id).order(state)
}

impl fmt::Debug for RedisRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisRecords").finish_non_exhaustive()
    }
}
