//! An Attempt inside the caller's own transaction: business rows, outbox rows and the Record's completion commit
//! together or not at all.
//!
//! The transaction is handed over by value and only ibid ends it, so that a refused completion can't be committed over.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use ibid_core::change::{Change, StoredRecord};
use ibid_core::effect::NewEffect;
use ibid_core::machine::{self, Decision, Event, Verdict};
use ibid_core::record::{ErrorCode, Record, State};
use ibid_core::response::Response;
use ibid_core::sql::{OwnedTx, SqlError, SqlFault};
use ibid_core::store::{SqlStore, StoreError};
use metrics::counter;
use tokio::time::Instant;

use super::driver_tx::DriverTx;
use super::reserve_queue::KeyLock;
use super::reserve_tx;
use super::statements::{self, Locked, WriteOptions};
use crate::attempt::{Attempt, into_answer};
use crate::engine::{GiveUp, Unavailable, apply_change, still_owns};
use crate::failpoint::{self, Hit};
use crate::ibid::Ibid;
use crate::outcome::Outcome;
use crate::random::nonce;
use crate::telemetry;

/// An Attempt and the caller's transaction, which holds its Record locked.
///
/// It derefs to the transaction, for the caller's own statements. [`AttemptTx::finish`] commits; dropping it undoes
/// everything, and the Attempt may try again with another transaction.
#[must_use = "dropped, the transaction is undone"]
pub struct AttemptTx<'a, T: OwnedTx> {
    pub(super) attempt: Holder<'a>,
    /// Taken out by the end.
    pub(super) tx: Option<T>,
    pub(super) held: Locked,
    /// The reservation is part of the transaction too.
    pub(super) reserves: bool,
    enqueued: u64,
    owes: bool,
    /// While it lives, duplicates in this process wait without a connection.
    _flight: Option<KeyLock>,
}

/// Whose Attempt it is.
pub(super) enum Holder<'a> {
    Lent(&'a mut Attempt),
    Own(Box<Attempt>),
}

/// Why a transaction was not committed. Nothing of it is stored.
#[derive(Debug, thiserror::Error)]
pub enum TxError {
    /// The store can't share a transaction: it is no SQL store.
    #[error("the store can't share a transaction")]
    NoSql,
    /// The transaction speaks another SQL than the store.
    #[error("the transaction is not one of the store's kind of database")]
    OtherDialect,
    /// The Attempt has ended.
    #[error("the attempt has ended already")]
    Ended,
    /// The Record is no longer this Attempt's, or not in this database.
    #[error("the lease is lost: the record is not this attempt's any more")]
    LeaseLost,
    /// The Record has an Effect of this name.
    #[error("the record has an effect `{0}` already")]
    EffectExists(String),
    /// An Effect owes the answer, and one was given all the same; or none does.
    #[error("who gives the answer is not clear: finish with one, or owe it with an effect that owes it")]
    AnswerConflict,
    /// The answer is larger than the policy keeps.
    #[error("the answer is larger than `max_response_body`: a retry could not be given it")]
    ResponseTooLarge,
    /// The commit got no reply, and turned out not to have happened.
    #[error("the transaction was not committed: its connection was lost")]
    NotCommitted,
    /// The commit got no reply, and the store none either: the Record tells once it answers again.
    #[error("nobody knows whether the transaction was committed: the store does not answer")]
    CommitUnknown,
    /// Begins are refused for now.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The store failed beside the transaction.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The work itself failed, for a reason of its own.
    #[error("the work in the transaction failed")]
    Work(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A statement failed in the transaction. The errors of every driver become this with `?`, so that the caller's own
    /// statements count as ibid's do.
    #[error(transparent)]
    Sql(#[from] SqlError),
}

impl TxError {
    /// An error of the work's own: the transaction is rolled back and does not run again.
    pub fn work(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> TxError {
        TxError::Work(error.into())
    }

    /// Whether another transaction was in the way: run the whole of it again.
    pub fn is_retryable(&self) -> bool {
        matches!(self, TxError::Sql(error) if error.fault() == SqlFault::Serialization)
    }
}

/// A payload or response of the work that can't be written as JSON.
impl From<serde_json::Error> for TxError {
    fn from(error: serde_json::Error) -> TxError {
        TxError::work(error)
    }
}

impl Attempt {
    /// Goes into the caller's transaction. It locks the Record first: a lost lease is refused before any work, and while
    /// the transaction is open nobody takes over.
    pub async fn inside<T: OwnedTx>(&mut self, mut tx: T) -> Result<AttemptTx<'_, T>, TxError> {
        match self.lock(&mut tx).await {
            Ok(held) => Ok(AttemptTx::holding(Holder::Lent(self), tx, held)),
            Err(error) => Err(give_back(tx, error).await),
        }
    }

    /// The same without a borrow of this Attempt, which goes on when the transaction has ended.
    pub(crate) async fn inside_owned<T: OwnedTx>(&self, mut tx: T) -> Result<AttemptTx<'static, T>, TxError> {
        match self.lock(&mut tx).await {
            Ok(held) => Ok(AttemptTx::holding(Holder::Own(Box::new(self.stand_in())), tx, held)),
            Err(error) => Err(give_back(tx, error).await),
        }
    }

    /// Locks the Record if it is still this Attempt's.
    async fn lock<T: OwnedTx>(&self, tx: &mut T) -> Result<Locked, TxError> {
        if self.has_ended() {
            return Err(TxError::Ended);
        }
        let store = sql(self.ibid())?;
        if store.dialect() != tx.dialect() {
            return Err(TxError::OtherDialect);
        }
        if !self.confirms_identity().await {
            return Err(self.ibid().engine().without_identity().into());
        }
        let begun = self.begun();
        let held = statements::lock(tx, &begun.id, store.now(), begun.policy.lease).await?;
        held.filter(|held| still_owns(&held.stored, begun)).ok_or(TxError::LeaseLost)
    }
}

/// Undoes a transaction that found its way barred.
async fn give_back<T: OwnedTx>(tx: T, why: TxError) -> TxError {
    // Undone with the connection if this fails.
    let _ = tx.rollback().await;
    why
}

impl<'a, T: OwnedTx> AttemptTx<'a, T> {
    fn holding(attempt: Holder<'a>, tx: T, held: Locked) -> AttemptTx<'a, T> {
        AttemptTx { attempt, tx: Some(tx), held, reserves: false, enqueued: 0, owes: false, _flight: None }
    }

    pub(super) fn reserving(attempt: Box<Attempt>, tx: T, held: Locked, flight: KeyLock) -> AttemptTx<'a, T> {
        let inside = AttemptTx::holding(Holder::Own(attempt), tx, held);
        AttemptTx { reserves: true, _flight: Some(flight), ..inside }
    }

    /// The same transaction, to be ended by this Attempt.
    pub(super) fn held_by<'b>(self, attempt: &'b mut Attempt) -> AttemptTx<'b, T> {
        let AttemptTx { tx, held, reserves, enqueued, owes, _flight, .. } = self;
        AttemptTx { attempt: Holder::Lent(attempt), tx, held, reserves, enqueued, owes, _flight }
    }

    /// What the driver's statements run on: `query.execute(tx.conn())`.
    pub fn conn(&mut self) -> T::Conn<'_>
    where
        T: DriverTx,
    {
        self.tx.as_mut().expect(OPEN).conn()
    }

    /// Which run of this request it is, from 1.
    pub fn number(&self) -> u32 {
        self.held.stored.record.attempt
    }

    /// The record's name in the store, for a foreign key of the caller's own rows.
    pub fn record_id(&self) -> ibid_core::scope::RecordId {
        self.held.stored.record.id
    }

    /// Tells `hears` once it has ended: for whoever answers the client.
    pub fn when_ended(&mut self, hears: impl FnOnce(&Outcome) + Send + Sync + 'static) {
        self.attempt.when_ended(hears);
    }

    /// Puts an Effect into the outbox, to be carried out once the transaction has committed.
    pub async fn enqueue(&mut self, mut effect: NewEffect) -> Result<(), TxError> {
        let now = self.terms()?.now;
        if effect.trace.is_none() {
            effect.trace.clone_from(&self.attempt.ask().trace);
        }
        let record = &self.held.stored.record;
        let tx = self.tx.as_mut().ok_or(TxError::Ended)?;
        if !statements::enqueue(tx, record, &effect, nonce(), now).await? {
            return Err(TxError::EffectExists(effect.name));
        }
        if failpoint::at("enqueue.after").await == Hit::Error {
            return Err(SqlError::new(SqlFault::Serialization, "a failpoint").into());
        }
        self.enqueued += 1;
        self.owes |= effect.owes;
        Ok(())
    }

    /// The work has an answer: it is stored in the same commit as the work. An answer that is no success undoes the work
    /// and is stored, or leaves the key free, as the policy says.
    ///
    /// There is one end: nobody can commit after it, or twice.
    ///
    /// ```compile_fail,E0382
    /// # use ibid::core::response::Response;
    /// # use ibid::transaction::{AttemptTx, OwnedTx, TxError};
    /// async fn twice<T: OwnedTx>(inside: AttemptTx<'_, T>, answer: Response) -> Result<(), TxError> {
    ///     inside.finish(answer.clone()).await?;
    ///     inside.finish(answer).await?; // it is used up
    ///     Ok(())
    /// }
    /// ```
    pub async fn finish(self, response: Response) -> Result<Outcome, TxError> {
        if self.owes {
            return Err(TxError::AnswerConflict);
        }
        if response.body.len() as u64 > self.held.stored.record.policy.max_response_body {
            return Err(TxError::ResponseTooLarge);
        }
        if response.status >= FAILURES_FROM {
            return self.undo(response).await;
        }
        let (answer, response) = into_answer(response, &self.held.stored.record.policy);
        match self.says(&Event::Answered { begun: &self.begun(), nonce: nonce(), answer: &answer }) {
            Some((change, Decision::Stored)) => self.write(change, Some(Arc::new(response))).await,
            // Not a success to the policy: then its work does not stand.
            _ => self.undo(response).await,
        }
    }

    /// The answer is owed by an Effect that was enqueued here as owing: whoever asks waits for it.
    pub async fn owe(self) -> Result<Outcome, TxError> {
        if !self.owes {
            return Err(TxError::AnswerConflict);
        }
        match self.says(&Event::Owes { begun: &self.begun(), nonce: nonce() }) {
            Some((change, Decision::Owed)) => self.write(change, None).await,
            _ => Err(TxError::LeaseLost),
        }
    }

    /// Undoes the work. What is left is the answer, if the policy stores it.
    async fn undo(mut self, response: Response) -> Result<Outcome, TxError> {
        if !self.reserves {
            self.roll_back().await;
            return Ok(self.attempt.finish_undone(response).await);
        }
        reserve_tx::back_to_reservation(&mut *self).await?;
        let (answer, response) = into_answer(response, &self.held.stored.record.policy);
        match self.says(&Event::Answered { begun: &self.begun(), nonce: nonce(), answer: &answer }) {
            Some((change, Decision::Stored)) => {
                self.owes = false;
                self.enqueued = 0;
                self.write(change, Some(Arc::new(response))).await
            }
            // The reservation goes with the rest, and was never seen.
            _ => {
                self.roll_back().await;
                Ok(self.attempt.ended_with(Outcome::Released))
            }
        }
    }

    pub(crate) async fn roll_back(&mut self) {
        if let Some(tx) = self.tx.take() {
            // Undone with the connection if this fails.
            let _ = tx.rollback().await;
        }
    }

    /// Writes the end into the transaction and commits both.
    async fn write(
        mut self,
        change: Arc<Change>,
        response: Option<Arc<Response>>,
    ) -> Result<Outcome, TxError> {
        let sent_at = Instant::now();
        let stored = match self.commit(&change).await? {
            Committed::Yes(stored) => *stored,
            Committed::Unsure => self.settle(&change).await?,
        };
        self.tell_worker();
        let engine = self.attempt.ibid().engine().clone();
        engine.notify_waiters(&change.id);
        let finished = match response {
            Some(response) => {
                Outcome::Completed(engine.remember(stored.record, response, sent_at, stored.now))
            }
            None => Outcome::AwaitingEffect,
        };
        Ok(self.attempt.ended_with(finished))
    }

    /// The transaction is committed: this process's worker need not wait for its next look.
    pub(crate) fn tell_worker(&self) {
        if self.enqueued > 0 {
            counter!(telemetry::EFFECTS_ENQUEUED).increment(self.enqueued);
            self.attempt.ibid().outbox().enqueued.notify_waiters();
        }
    }

    /// Applies a Change of this record and commits the transaction, which is used up by it.
    pub(crate) async fn commit(&mut self, change: &Change) -> Result<Committed, TxError> {
        let terms = self.terms()?;
        let tx = self.tx.as_mut().ok_or(TxError::Ended)?;
        let before = Some(&*self.held.stored.record);
        let Some(stamp) = statements::apply(tx, change, before, self.held.policy, terms).await? else {
            return Err(TxError::LeaseLost);
        };
        let goes_on = change.draft.as_ref().is_some_and(|draft| draft.state == State::InProgress);
        let (before, done) =
            if goes_on { ("phase.before", "phase.after") } else { ("finish.before", "finish.after") };
        if failpoint::at(before).await == Hit::Error {
            return Err(SqlError::new(SqlFault::Serialization, "a failpoint").into());
        }
        if self.reserves && !self.attempt.ibid().engine().confirm_identity().await {
            // Nobody else sees the reservation before this commit. T1 (new identity) looks up the key's old id, finds
            // nothing, reserves the new id and runs; this commit, held up until then, would be the second execution.
            // `ibid identity change` waits for commits that were sent in time (`change::retire`), not for this one.
            self.roll_back().await;
            self.attempt.ended_with(Outcome::NotDurable);
            return Err(self.attempt.ibid().engine().without_identity().into());
        }
        let tx = self.tx.take().ok_or(TxError::Ended)?;
        match tx.commit().await {
            Ok(()) if failpoint::at(done).await == Hit::Lost => Ok(Committed::Unsure),
            Ok(()) => {
                let stored = apply_change(change, stamp, Some(&self.held.stored));
                Ok(Committed::Yes(Box::new(stored.ok_or(TxError::LeaseLost)?)))
            }
            Err(error) if error.fault() == SqlFault::Lost => Ok(Committed::Unsure),
            Err(error) => Err(error.into()),
        }
    }

    /// The commit got no reply. A read would prove nothing while it may still run; a write at the Version from before
    /// waits for it, and then either wins, and the commit never comes, or finds it.
    async fn settle(&mut self, change: &Change) -> Result<StoredRecord, TxError> {
        let engine = self.attempt.ibid().engine().clone();
        let (begun, ask) = (self.begun(), self.attempt.ask().clone());
        let known = self.held.stored.clone();
        let reserves = self.reserves;
        let settle = async {
            if reserves {
                let known = engine.load_until_done(ask.id, GiveUp::Late).await.ok()?;
                Some(
                    engine
                        .write_until_done(known, GiveUp::Late, |nonce| Event::GaveUp { ask: &ask, nonce })
                        .await,
                )
            } else {
                let not_executed =
                    |nonce| Event::NotExecuted { begun: &begun, nonce, why: ErrorCode::Broken };
                Some(engine.write_until_done(Some(known), GiveUp::Late, not_executed).await)
            }
        };
        let settled = tokio::time::timeout(engine.finish_wait, settle).await.ok().flatten();
        let Some(settlement) = settled.filter(|settlement| settlement.refused.is_none()) else {
            self.attempt.ended_with(Outcome::NotDurable);
            return Err(TxError::CommitUnknown);
        };
        match settlement.stored {
            Some(stored) if change.is_stored_as(&stored) => Ok(stored),
            _ => {
                self.attempt.ended_with(Outcome::Released);
                Err(TxError::NotCommitted)
            }
        }
    }

    /// What the machine says to an event of this Attempt's, on the record as the transaction holds it.
    pub(crate) fn says(&self, event: &Event<'_>) -> Option<(Arc<Change>, Decision)> {
        match machine::decide(Some(&self.held.stored.record), event, self.held.stored.now) {
            Verdict::Write(change, decision) => Some((change, decision)),
            Verdict::Keep(_) => None,
        }
    }

    pub(crate) fn begun(&self) -> Arc<Record> {
        self.attempt.begun().clone()
    }

    fn terms(&self) -> Result<WriteOptions, TxError> {
        Ok(WriteOptions::of(sql(self.attempt.ibid())?))
    }
}

/// What came of a commit.
pub(crate) enum Committed {
    Yes(Box<StoredRecord>),
    /// No reply.
    Unsure,
}

/// The store's SQL side.
pub(crate) fn sql(ibid: &Ibid) -> Result<&dyn SqlStore, TxError> {
    ibid.engine().store.sql().ok_or(TxError::NoSql)
}

impl Deref for Holder<'_> {
    type Target = Attempt;

    fn deref(&self) -> &Attempt {
        match self {
            Holder::Lent(attempt) => attempt,
            Holder::Own(attempt) => attempt,
        }
    }
}

impl DerefMut for Holder<'_> {
    fn deref_mut(&mut self) -> &mut Attempt {
        match self {
            Holder::Lent(attempt) => attempt,
            Holder::Own(attempt) => attempt,
        }
    }
}

impl<T: OwnedTx> Deref for AttemptTx<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.tx.as_ref().expect(OPEN)
    }
}

impl<T: OwnedTx> DerefMut for AttemptTx<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.tx.as_mut().expect(OPEN)
    }
}

impl<T: OwnedTx> std::fmt::Debug for AttemptTx<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AttemptTx").field("record", &self.record_id()).finish_non_exhaustive()
    }
}

/// Every end takes the transaction out and the whole by value, so nobody is left to ask for it.
const OPEN: &str = "the transaction is open until the end, which consumes its holder";

/// The first status that is no success: work that ends so is undone.
const FAILURES_FROM: u16 = 400;
