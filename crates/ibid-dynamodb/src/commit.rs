//! Commits: one conditional write, or one transaction if history, evidence or a stored request belongs to the change.
//!
//! The condition names the version that the change expects, so a change is applied once. After a lost reply the engine sends
//! the change again; the version has moved, and the conflict shows the writer its own nonce.

use std::time::Instant;

use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::operation::update_item::builders::UpdateItemFluentBuilder;
use aws_sdk_dynamodb::types::{
    AttributeValue, CancellationReason, ConditionCheck, Put, ReturnValue,
    ReturnValuesOnConditionCheckFailure, TransactWriteItem,
};
use ibid_core::change::{Change, Commit, Draft, Expect, Stamp};
use ibid_core::record::{Nonce, State};
use ibid_core::row::RecordColumns;
use ibid_core::scope::RecordId;
use ibid_core::store::{RenewOutcome, StoreError};
use ibid_core::time::Timestamp;

use crate::bodies::{PARTS_FRESH_FOR, named_parts, parts_of};
use crate::client::{Failure, is_transaction_throttled, send, send_if, send_one};
use crate::item::{
    Item, RECORD, Update, get_bytes, get_text, get_version, is_dead_letter, key, number, record_update,
    version,
};
use crate::{DynamoStore, NAME};

impl DynamoStore {
    pub(crate) async fn commit_change(
        &self,
        change: &Change,
        send_by: Option<Instant>,
    ) -> Result<Commit, StoreError> {
        if change.draft.is_some() && change.expect == Expect::Anything {
            let why = "a change of a record must say what it expects";
            return Err(StoreError::lasting(NAME, OP, why).unwritten());
        }
        if let Some(answer) = self.answer_refused(change, send_by).await? {
            return Ok(answer);
        }
        let started = Instant::now();
        let policy = match &change.draft {
            Some(draft) => self.policy_number(&draft.policy).await?,
            None => 0,
        };
        if keeps_bodies_as_dead_letter(change) {
            self.keep_stored_parts(change).await.map_err(StoreError::unwritten)?;
        }
        let needed = if needs_right_clock(change) { self.trusted_now(OP).await.map(Some) } else { Ok(None) };
        let now = match needed {
            Ok(trusted) => trusted.unwrap_or_else(|| self.watch.now_for_result()),
            Err(error) => return self.answer_untrusted(change, error).await,
        };
        let columns = RecordColumns::of(change, policy);
        let parts = columns.as_ref().map(|columns| parts_of(change, columns, now.time)).unwrap_or_default();
        let mut update = columns.map(|columns| self.update_of(change, &columns, now.time));
        let mut check = Update::default();
        self.add_condition(update.as_mut().unwrap_or(&mut check), change.expect);
        // The parts of a new record go with it: otherwise a crash would leave parts without a record.
        let has_parts = !parts.is_empty();
        let fits = parts.len() <= TRANSACTION_PARTS_MAX && change.body_bytes() <= TRANSACTION_BYTES_MAX;
        let mut write =
            RecordWrite { change, policy, update, check, parts: Vec::new(), now: now.time, send_by };
        let commit = if !has_parts || (change.expect == Expect::Absent && fits) {
            write.parts = parts;
            self.write(write).await?.0
        } else {
            let keys: Vec<Item> = parts.iter().filter_map(key_of).collect();
            self.put_parts(OP, parts).await?;
            if started.elapsed() > PARTS_FRESH_FOR {
                return Err(StoreError::transient(NAME, OP, "the bodies took too long").unwritten());
            }
            let (commit, stored) = self.write(write).await?;
            // If there is no record, an insert that is still on its way can name them.
            let may_be_named = stored.is_none() && change.expect == Expect::Absent;
            if matches!(commit, Commit::Conflict(_)) && !may_be_named {
                self.delete_refused_parts(OP, change.nonce, stored.as_ref(), keys).await;
            }
            // T1's finish was written, and its reply was lost; T2 made the record a dead letter; T1 has just put its parts
            // again, with their time to live.
            if let Some(letter) = stored.filter(is_dead_letter) {
                self.keep_parts(OP, change.id, &letter).await.map_err(after_write)?;
            }
            commit
        };
        match commit {
            Commit::Done(_) if gives_lease(change) && !self.watch.trusts(now) => Err(self.distrust(OP)),
            // The engine sends the change again, and both its parts and its record get later instants.
            Commit::Done(_) if self.watch.is_early(now) && has_parts => Err(self.distrust(OP)),
            Commit::Done(stamp) if self.watch.is_early(now) => {
                let restamped = self.restamp(change, policy).await.map_err(after_write)?;
                Ok(Commit::Done(restamped.map_or(stamp, |(_, stamp)| stamp)))
            }
            commit => Ok(commit),
        }
    }

    /// Answers a change that needs a right clock while it is not: a key that is taken is replayed all the same.
    async fn answer_untrusted(&self, change: &Change, error: StoreError) -> Result<Commit, StoreError> {
        if change.expect != Expect::Absent || !error.is_unsent() {
            return Err(error);
        }
        match self.load_record(OP, change.id).await.map_err(StoreError::unwritten)? {
            None => Err(error),
            // An earlier send was written, and its lease may be too short.
            Some(stored) if change.is_stored_as(&stored) => Err(self.distrust(OP)),
            Some(stored) => Ok(Commit::Conflict(Some(Box::new(stored)))),
        }
    }

    /// Answers a begin while nothing may begin: a key that is taken is replayed all the same. Returns `None` for a change that
    /// begins nothing, or that an earlier send has written.
    async fn answer_refused(
        &self,
        change: &Change,
        send_by: Option<Instant>,
    ) -> Result<Option<Commit>, StoreError> {
        let refusal = self.table_watch.refusal().filter(|_| change.begins_attempt(send_by.is_some()));
        let Some(why) = refusal else { return Ok(None) };
        let stored = match change.expect {
            Expect::Absent => self.load_record(OP, change.id).await.map_err(StoreError::unwritten)?,
            _ => None,
        };
        match stored {
            None => Err(StoreError::no_room(NAME, OP, why)),
            Some(stored) if change.is_stored_as(&stored) => Ok(None),
            Some(stored) => Ok(Some(Commit::Conflict(Some(Box::new(stored))))),
        }
    }

    fn update_of(&self, change: &Change, columns: &RecordColumns<'_>, now: Timestamp) -> Update {
        record_update(change, columns, now, now.before(self.watch.skew_max()), self.shards)
    }

    fn add_condition(&self, update: &mut Update, expect: Expect) {
        let was = match expect {
            Expect::Absent => {
                update.condition = "attribute_not_exists(i)".to_owned();
                return;
            }
            Expect::Anything => return,
            Expect::Version(was) | Expect::Due(was) => was,
        };
        update.condition = "v = :was".to_owned();
        update.value(":was", version(was));
        if let Expect::Due(_) = expect {
            update.condition.push_str(" AND d <= :past");
            update.value(":past", number(self.watch.past().as_micros()));
        }
    }

    /// Sends the change. With a conflict it also returns the item that is stored.
    async fn write(&self, write: RecordWrite<'_>) -> Result<(Commit, Option<Item>), StoreError> {
        let change = write.change;
        let is_alone = change.history.is_empty() && change.uses.is_none() && write.parts.is_empty();
        match is_alone {
            true if write.update.is_none() => Ok((Commit::Done(Stamp { now: write.now }), None)),
            true => self.write_alone(write).await,
            false => self.write_together(write).await,
        }
    }

    async fn write_alone(&self, write: RecordWrite<'_>) -> Result<(Commit, Option<Item>), StoreError> {
        let RecordWrite { change, policy, update, now, send_by, .. } = write;
        let update = update.unwrap_or_default();
        let request = self
            .update_item(key(change.id.as_bytes(), RECORD), update)
            .return_values(ReturnValue::UpdatedOld)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        match send_one(OP, send_by, || request.clone().send()).await {
            Ok(reply) => {
                self.delete_replaced_parts(OP, change.id, reply.attributes).await;
                Ok((Commit::Done(Stamp { now }), None))
            }
            Err(failure) if failure.is_refused() => {
                self.conflict(change, policy, returned_item(&failure)).await
            }
            Err(failure) => Err(failure.into_store_error(OP)),
        }
    }

    async fn write_together(&self, write: RecordWrite<'_>) -> Result<(Commit, Option<Item>), StoreError> {
        let RecordWrite { change, policy, update, check, parts, now, send_by } = write;
        let replaced = self.bodies_to_replace(change).await.map_err(StoreError::unwritten)?;
        let record_key = key(change.id.as_bytes(), RECORD);
        let mut writes = Vec::new();
        match (update, check.condition.is_empty()) {
            (Some(update), _) => writes.push(self.transact_update(record_key, update)?),
            (None, false) => writes.push(self.transact_check(record_key, check)?),
            (None, true) => {}
        }
        let has_condition = !writes.is_empty();
        for item in parts.into_iter().chain(self.history_item(change, now)) {
            let put = Put::builder().table_name(&self.table).set_item(Some(item)).build();
            let put = put.map_err(|error| StoreError::lasting(NAME, OP, error).unwritten())?;
            writes.push(TransactWriteItem::builder().put(put).build());
        }
        if let Some(name) = &change.uses {
            let (key, update) = self.use_of_evidence(change.id, name, now);
            writes.push(self.transact_update(key, update)?);
        }
        while !writes.is_empty() {
            let request = self.request().transact_write_items().set_transact_items(Some(writes.clone()));
            let error = match send(OP, send_by, is_transaction_throttled, || request.clone().send()).await {
                Ok(_) => break,
                Err(Failure::Sdk(error)) => error,
                Err(failure) => return Err(failure.into_store_error(OP)),
            };
            if change.draft.is_none() {
                self.lines_in_doubt.note(change.nonce, now);
            }
            let reasons = match error.as_service_error() {
                Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) => {
                    cancelled.cancellation_reasons()
                }
                _ => return Err(Failure::Sdk(error).into_store_error(OP)),
            };
            let is_refused = |reason: &CancellationReason| reason.code() == Some("ConditionalCheckFailed");
            if let Some(reason) = reasons.first().filter(|reason| has_condition && is_refused(reason)) {
                return self.conflict(change, policy, reason.item().cloned()).await;
            }
            // Only the evidence has a condition besides the record. It is gone, and the change stands without it.
            if !reasons.last().is_some_and(is_refused) {
                return Err(Failure::Sdk(error).into_store_error(OP));
            }
            writes.pop();
        }
        if change.draft.is_none() {
            self.lines_in_doubt.forget(change.nonce);
        }
        self.delete_replaced_parts(OP, change.id, replaced).await;
        Ok((Commit::Done(Stamp { now }), None))
    }

    /// Returns the request for an update.
    pub(crate) fn update_item(&self, key: Item, update: Update) -> UpdateItemFluentBuilder {
        self.request()
            .update_item()
            .table_name(&self.table)
            .set_key(Some(key))
            .update_expression(update.expression())
            .condition_expression(&update.condition)
            .set_expression_attribute_names(Some(update.names).filter(|names| !names.is_empty()))
            .set_expression_attribute_values(Some(update.values).filter(|values| !values.is_empty()))
    }

    pub(crate) fn transact_update(&self, key: Item, update: Update) -> Result<TransactWriteItem, StoreError> {
        let built = aws_sdk_dynamodb::types::Update::builder()
            .table_name(&self.table)
            .set_key(Some(key))
            .update_expression(update.expression())
            .condition_expression(&update.condition)
            .set_expression_attribute_names(Some(update.names).filter(|names| !names.is_empty()))
            .set_expression_attribute_values(Some(update.values).filter(|values| !values.is_empty()))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .build();
        let update = built.map_err(|error| StoreError::lasting(NAME, OP, error).unwritten())?;
        Ok(TransactWriteItem::builder().update(update).build())
    }

    fn transact_check(&self, key: Item, check: Update) -> Result<TransactWriteItem, StoreError> {
        let built = ConditionCheck::builder()
            .table_name(&self.table)
            .set_key(Some(key))
            .condition_expression(&check.condition)
            .set_expression_attribute_values(Some(check.values).filter(|values| !values.is_empty()))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .build();
        let check = built.map_err(|error| StoreError::lasting(NAME, OP, error).unwritten())?;
        Ok(TransactWriteItem::builder().condition_check(check).build())
    }

    /// Returns the conflict with the item that is stored. DynamoDB Local returns none with a failed condition, so it is read.
    async fn conflict(
        &self,
        change: &Change,
        policy: i64,
        item: Option<Item>,
    ) -> Result<(Commit, Option<Item>), StoreError> {
        let item = match item {
            Some(item) if get_bytes(&item, "v").is_some() => Some(item),
            _ => self.get(OP, key(change.id.as_bytes(), RECORD)).await?,
        };
        let item = match item {
            Some(item) if change.draft.is_some() && get_version(&item) == Some(change.version()) => {
                self.confirm_own(change, policy, item).await.map_err(after_write)?
            }
            other => other,
        };
        let Some(item) = item else { return Ok((Commit::Conflict(None), None)) };
        let stored = match self.read(OP, &item).await? {
            Some(stored) => Some(stored),
            None => self.load_record(OP, change.id).await?,
        };
        Ok((Commit::Conflict(stored.map(Box::new)), Some(item)))
    }

    /// An earlier send of this change was written, and its reply was lost or showed that the clock was off. Its instants
    /// count from that send, so they are set again: a lease by a renewal, all others by the same write.
    async fn confirm_own(
        &self,
        change: &Change,
        policy: i64,
        mut item: Item,
    ) -> Result<Option<Item>, StoreError> {
        if !gives_lease(change) {
            return Ok(Some(self.restamp(change, policy).await?.map_or(item, |(item, _)| item)));
        }
        match self.renew_lease(change.id, change.version()).await? {
            RenewOutcome::Until(until) => {
                item.insert("d".to_owned(), number(until.as_micros()));
                Ok(Some(item))
            }
            RenewOutcome::Busy => Err(self.distrust(OP)),
            RenewOutcome::Lost => self.get(OP, key(change.id.as_bytes(), RECORD)).await,
        }
    }

    /// Writes the record of a change that was written already once more, with instants that count from now. Returns `None`
    /// if the record has changed since, or has later instants.
    ///
    /// The condition names the version that the change gave the record, so no other write is lost. The writer's time in it
    /// keeps a send that arrives late from setting the instants back.
    async fn restamp(&self, change: &Change, policy: i64) -> Result<Option<(Item, Stamp)>, StoreError> {
        let now = self.watch.now_for_result().time;
        let Some(columns) = RecordColumns::of(change, policy) else { return Ok(None) };
        let mut update = self.update_of(change, &columns, now);
        update.condition = "v = :v AND y < :y".to_owned();
        let request = self.update_item(key(change.id.as_bytes(), RECORD), update);
        let request = request.return_values(ReturnValue::AllNew);
        let reply = send_if(OP, || request.clone().send()).await?;
        Ok(reply.and_then(|reply| reply.attributes).map(|item| (item, Stamp { now })))
    }

    /// Keeps the parts of a final record that the change makes a dead letter: the record loses its time to live, and would
    /// outlive them. This precedes the write, so that no crash leaves a dead letter whose parts go.
    async fn keep_stored_parts(&self, change: &Change) -> Result<(), StoreError> {
        let (Expect::Version(was) | Expect::Due(was)) = change.expect else { return Ok(()) };
        let item = self.get(OP, key(change.id.as_bytes(), RECORD)).await?;
        match item.filter(|item| get_version(item) == Some(was)) {
            Some(item) => self.keep_parts(OP, change.id, &item).await,
            None => Ok(()),
        }
    }

    /// Deletes the parts of a write that was refused, unless the stored record names them: then an earlier send of the same
    /// write was committed, and its reply was lost.
    pub(crate) async fn delete_refused_parts(
        &self,
        op: &'static str,
        nonce: Nonce,
        stored: Option<&Item>,
        keys: Vec<Item>,
    ) {
        let own = format!("b#{:016x}#", nonce.0);
        let is_named = stored.is_some_and(|item| named_parts(item).any(|kind| kind.starts_with(&own)));
        if !is_named {
            self.delete_items(op, keys).await;
        }
    }

    /// Returns the bodies that the change will replace or clear, for a transaction: it returns no former values.
    async fn bodies_to_replace(&self, change: &Change) -> Result<Option<Item>, StoreError> {
        let (Expect::Version(was) | Expect::Due(was)) = change.expect else { return Ok(None) };
        if !change.clears_bodies && change.response.is_none() && change.bodies.is_empty() {
            return Ok(None);
        }
        let item = self.get(OP, key(change.id.as_bytes(), RECORD)).await?;
        let Some(mut item) = item.filter(|item| get_version(item) == Some(was)) else { return Ok(None) };
        if !change.clears_bodies {
            if change.response.is_none() {
                item.remove("rb");
            }
            if let Some(AttributeValue::M(bodies)) = item.get_mut("bo") {
                let is_replaced =
                    |kind: &str| change.bodies.iter().any(|body| body.kind.code().to_string() == kind);
                bodies.retain(|kind, _| is_replaced(kind));
            }
        }
        Ok(Some(item))
    }

    /// Deletes the parts of bodies that a write has replaced or cleared. `replaced` has the former values of the attributes
    /// that it wrote.
    pub(crate) async fn delete_replaced_parts(&self, op: &'static str, id: RecordId, replaced: Option<Item>) {
        let kinds = replaced.iter().flat_map(named_parts);
        let keys: Vec<Item> = kinds.map(|kind| key(id.as_bytes(), &kind)).collect();
        self.delete_items(op, keys).await;
    }
}

/// A change as it is sent.
struct RecordWrite<'a> {
    change: &'a Change,
    /// Number of the draft's policy.
    policy: i64,
    /// `None` if the change leaves the record alone; then `check` has its condition.
    update: Option<Update>,
    check: Update,
    /// Parts that are written together with the record.
    parts: Vec<Item>,
    now: Timestamp,
    send_by: Option<Instant>,
}

/// Returns whether the change needs a clock that is right: it begins a generation, gives a lease, or takes one that has
/// lapsed.
fn needs_right_clock(change: &Change) -> bool {
    let is_new = |draft: &Draft| change.expect == Expect::Absent || draft.birth == change.nonce;
    let begins = change.draft.as_ref().is_some_and(|draft| draft.due_in.is_some() && is_new(draft));
    matches!(change.expect, Expect::Due(_)) || begins || gives_lease(change)
}

/// Returns whether the change makes a final record a dead letter, with the bodies that are stored.
fn keeps_bodies_as_dead_letter(change: &Change) -> bool {
    let is_letter = |draft: &Draft| draft.state == State::FINAL && draft.flags.dead_letter;
    change.response.is_none() && !change.clears_bodies && change.draft.as_ref().is_some_and(is_letter)
}

fn gives_lease(change: &Change) -> bool {
    change.draft.as_ref().is_some_and(|draft| draft.state == State::LEASED && draft.due_in.is_some())
}

/// Turns the error of a request that followed the write of a change into the error of the change: it is written.
fn after_write(error: StoreError) -> StoreError {
    match error.is_transient() {
        true => StoreError::transient(NAME, OP, error),
        false => StoreError::lasting(NAME, OP, error),
    }
}

pub(crate) fn key_of(item: &Item) -> Option<Item> {
    Some(key(get_bytes(item, "i")?, get_text(item, "k")?))
}

/// Returns the stored item that came with a failed condition.
fn returned_item(failure: &Failure<UpdateItemError>) -> Option<Item> {
    let Failure::Sdk(error) = failure else { return None };
    match error.as_service_error() {
        Some(UpdateItemError::ConditionalCheckFailedException(refused)) => refused.item().cloned(),
        _ => None,
    }
}

const OP: &str = "commit";

/// Parts in one transaction, which takes 100 writes: the others are the record, its history and its evidence.
const TRANSACTION_PARTS_MAX: usize = 90;

/// Bytes of bodies in one transaction, which takes 4 MB in all.
const TRANSACTION_BYTES_MAX: usize = 3_500_000;
