//! An attempt inside the caller's transaction: your rows, the enqueued effects and the response commit together or not at
//! all.
//!
//! `AttemptTx` owns the transaction, and only ibid ends it. So the caller cannot commit its rows after ibid has refused the
//! response.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use ibid_core::change::{Change, StoredRecord};
use ibid_core::effect::{InvalidEffectError, NewEffect};
use ibid_core::machine::{self, Decision, Event, Verdict};
use ibid_core::record::{ErrorCode, Record, State};
use ibid_core::response::Response;
use ibid_core::sql::{OwnedTx, SqlError, SqlFault};
use ibid_core::store::{SqlStore, StoreError};
use metrics::counter;
use tokio::time::Instant;

use super::driver_tx::DriverTx;
use super::mysql_limits::limit_idle_time;
use super::reserve_queue::KeyLock;
use super::reserve_tx;
use crate::attempt::{Attempt, into_answer};
use crate::engine::{GiveUp, UnavailableError, apply_change, still_owns};
use crate::failpoint::{self, Hit};
use crate::ibid::Ibid;
use crate::outbox;
use crate::outcome::Outcome;
use crate::random::nonce;
use crate::record_sql::{self, ReadRecord, WriteOptions};
use crate::telemetry;

/// An attempt with the caller's transaction, which holds the lock on the attempt's record.
///
/// It derefs to the transaction, for your statements. [`AttemptTx::finish`] commits. Dropping it rolls everything back, and
/// the attempt may start another transaction.
#[must_use = "if dropped, the transaction is rolled back"]
pub struct AttemptTx<'a, T: OwnedTx> {
    pub(super) attempt: Holder<'a>,
    /// `None` once the transaction has ended.
    pub(super) tx: Option<T>,
    pub(super) held: ReadRecord,
    /// `true` if the transaction also reserved the key.
    pub(super) reserves: bool,
    enqueued: u64,
    owes: bool,
    /// Makes duplicates of this process wait without a connection, until it is dropped.
    _flight: Option<KeyLock>,
}

/// The attempt, borrowed from the caller or owned.
pub(super) enum Holder<'a> {
    Lent(&'a mut Attempt),
    Own(Box<Attempt>),
}

/// Error of a transaction that carries an attempt.
///
/// With every error except [`TxError::CommitUnknown`], nothing of the transaction is stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TxError {
    /// The store is not an SQL store, so it has no transactions to share.
    #[error("the store cannot share a transaction: it is not an SQL store")]
    NoSql,
    /// The transaction has another SQL dialect than the store.
    #[error("the transaction belongs to another kind of database than the store")]
    OtherDialect,
    /// The attempt has already ended.
    #[error("the attempt has already ended")]
    Ended,
    /// The record no longer belongs to this attempt, or it is not in this database.
    #[error("the lease is lost: the record is not this attempt's any more")]
    LeaseLost,
    /// The record already has an effect with this name.
    #[error("the record already has an effect `{0}`")]
    EffectExists(String),
    /// The effect's name, kind or aggregate is too long or contains a NUL.
    #[error(transparent)]
    InvalidEffect(#[from] InvalidEffectError),
    /// `finish` was called although an enqueued effect owes the response, or `owe` although none does.
    #[error("call `finish` with a response, or `owe` if an enqueued effect owes it, not both")]
    AnswerConflict,
    /// The response body exceeds the policy's `max_response_body`.
    #[error("the response is larger than `max_response_body`, so a retry could not get it")]
    ResponseTooLarge,
    /// The connection was lost during the commit, and the commit is proven not to have happened. The attempt has ended.
    #[error("the transaction was not committed: its connection was lost")]
    NotCommitted,
    /// The connection was lost during the commit, and the store could not be reached within `finish_wait` to check. The
    /// attempt has ended; the record shows the result once the store answers.
    #[error("commit result unknown: connection lost, and the store could not be reached to check")]
    CommitUnknown,
    /// The engine refuses new begins for now.
    #[error(transparent)]
    Unavailable(#[from] UnavailableError),
    /// The store failed outside the transaction.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The work itself failed for its own reason. The transaction is rolled back and does not run again.
    #[error("the work in the transaction failed")]
    Work(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A statement of yours or of ibid failed in the transaction. `?` converts the errors of every driver into this.
    #[error(transparent)]
    Sql(#[from] SqlError),
}

impl TxError {
    /// Wraps an error of the work itself: the transaction is rolled back and does not run again.
    pub fn work(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> TxError {
        TxError::Work(error.into())
    }

    /// Returns whether the transaction conflicted with another one. If so, run the whole transaction again.
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
    /// Continues this attempt inside the caller's transaction.
    ///
    /// Locks the record first. A lost lease is noticed before any work is done, and no other attempt can take the record
    /// over while the transaction is open.
    ///
    /// # Errors
    ///
    /// Fails with [`TxError::LeaseLost`] if the record no longer belongs to this attempt, and with the other errors as their
    /// docs say. The transaction is rolled back.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `tx`, which rolls it back. The attempt continues and can use another transaction.
    pub async fn join_tx<T: OwnedTx>(&mut self, mut tx: T) -> Result<AttemptTx<'_, T>, TxError> {
        self.begin_work();
        match self.lock(&mut tx).await {
            Ok(held) => Ok(AttemptTx::holding(Holder::Lent(self), tx, held)),
            Err(error) => Err(give_back(tx, error).await),
        }
    }

    /// Like [`Attempt::join_tx`], but it does not borrow the attempt, which continues after the transaction.
    pub(crate) async fn join_tx_owned<T: OwnedTx>(
        &self,
        mut tx: T,
    ) -> Result<AttemptTx<'static, T>, TxError> {
        match self.lock(&mut tx).await {
            Ok(held) => Ok(AttemptTx::holding(Holder::Own(Box::new(self.detached_copy())), tx, held)),
            Err(error) => Err(give_back(tx, error).await),
        }
    }

    /// Locks the record, if it still belongs to this attempt.
    async fn lock<T: OwnedTx>(&self, tx: &mut T) -> Result<ReadRecord, TxError> {
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
        let own = self.begun_record();
        limit_idle_time(tx, own.policy.lease).await?;
        let locked = record_sql::lock(tx, &own.id, store.now(), own.policy.lease).await?;
        locked.filter(|locked| still_owns(&locked.stored, own)).ok_or(TxError::LeaseLost)
    }
}

/// Rolls back a transaction that cannot be used, and returns the reason.
async fn give_back<T: OwnedTx>(tx: T, why: TxError) -> TxError {
    // If this fails, the database rolls back when the connection closes.
    let _ = tx.rollback().await;
    why
}

impl<'a, T: OwnedTx> AttemptTx<'a, T> {
    fn holding(attempt: Holder<'a>, tx: T, held: ReadRecord) -> AttemptTx<'a, T> {
        AttemptTx { attempt, tx: Some(tx), held, reserves: false, enqueued: 0, owes: false, _flight: None }
    }

    pub(super) fn reserving(
        attempt: Box<Attempt>,
        tx: T,
        held: ReadRecord,
        flight: KeyLock,
    ) -> AttemptTx<'a, T> {
        let inside = AttemptTx::holding(Holder::Own(attempt), tx, held);
        AttemptTx { reserves: true, _flight: Some(flight), ..inside }
    }

    /// Returns the same transaction, to be ended by this attempt.
    pub(super) fn held_by<'b>(self, attempt: &'b mut Attempt) -> AttemptTx<'b, T> {
        let AttemptTx { tx, held, reserves, enqueued, owes, _flight, .. } = self;
        AttemptTx { attempt: Holder::Lent(attempt), tx, held, reserves, enqueued, owes, _flight }
    }

    /// Returns the driver's connection, to run statements on: `query.execute(tx.conn())`.
    pub fn conn(&mut self) -> T::Conn<'_>
    where
        T: DriverTx,
    {
        self.tx.as_mut().expect(OPEN).conn()
    }

    /// Returns the number of this attempt, from 1.
    pub fn number(&self) -> u32 {
        self.held.stored.record.attempt
    }

    /// Returns the record's id, for a foreign key in your rows.
    pub fn record_id(&self) -> ibid_core::scope::RecordId {
        self.held.stored.record.id
    }

    /// Registers a callback that gets the outcome when the attempt ends. The code that responds to the client uses it.
    pub fn on_end(&mut self, callback: impl FnOnce(&Outcome) + Send + Sync + 'static) {
        self.attempt.on_end(callback);
    }

    /// Enqueues an effect in the outbox. A worker executes it after the transaction has committed.
    ///
    /// # Errors
    ///
    /// Fails with [`TxError::EffectExists`] if the record already has an effect with this name, with
    /// [`TxError::InvalidEffect`] if its name, kind or aggregate can't be stored, and with [`TxError::Sql`] if the statement
    /// fails.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: the effect may be in the transaction or not. Roll the transaction back.
    pub async fn enqueue(&mut self, mut effect: NewEffect) -> Result<(), TxError> {
        effect.check()?;
        let now = self.terms()?.now;
        if effect.trace.is_none() {
            effect.trace.clone_from(&self.attempt.ask().trace);
        }
        let record = &self.held.stored.record;
        let tx = self.tx.as_mut().ok_or(TxError::Ended)?;
        if !outbox::statements::enqueue(tx, record, &effect, nonce(), now).await? {
            return Err(TxError::EffectExists(effect.name));
        }
        if failpoint::at("enqueue.after").await == Hit::Error {
            return Err(SqlError::new(SqlFault::Serialization, "a failpoint").into());
        }
        self.enqueued += 1;
        self.owes |= effect.owes;
        Ok(())
    }

    /// Stores `response` as the outcome of this attempt and commits the transaction.
    ///
    /// On success (a status below 400 that the policy stores), your rows, the enqueued effects and the response become
    /// durable in one commit, and retries replay the response. For any other status, your rows and effects are rolled back
    /// first. The policy then decides whether the response is stored for replay or the key is released, so that a retry
    /// runs.
    ///
    /// `finish` takes the transaction by value, so a second call does not compile:
    ///
    /// ```compile_fail,E0382
    /// # use ibid::Response;
    /// # use ibid::transaction::{AttemptTx, OwnedTx, TxError};
    /// async fn twice<T: OwnedTx>(inside: AttemptTx<'_, T>, answer: Response) -> Result<(), TxError> {
    ///     inside.finish(answer.clone()).await?;
    ///     inside.finish(answer).await?; // moved by the first call
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// With every error except [`TxError::CommitUnknown`], nothing of this transaction is stored.
    ///
    /// - [`AnswerConflict`](TxError::AnswerConflict): an effect in this transaction owes the response; call [`Self::owe`].
    /// - [`ResponseTooLarge`](TxError::ResponseTooLarge): the body exceeds the policy's `max_response_body`.
    /// - [`LeaseLost`](TxError::LeaseLost): the record no longer belongs to this attempt.
    /// - [`Sql`](TxError::Sql): a statement or the commit failed. If [`TxError::is_retryable`], run the whole transaction
    ///   again.
    /// - [`NotCommitted`](TxError::NotCommitted): the connection was lost during the commit, and the commit is proven not to
    ///   have happened. Ends the attempt.
    /// - [`CommitUnknown`](TxError::CommitUnknown): the connection was lost during the commit, and the store could not be
    ///   reached within `finish_wait` to check. Ends the attempt; the record shows the result once the store answers.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe. Dropping the future before `COMMIT` is sent rolls everything back. Dropping it later leaves the
    /// result to the database, all or nothing; if it was committed, a later transaction on this attempt fails with
    /// `LeaseLost`. A client that disconnects does not cancel a handler behind the layer: handlers run on their own task.
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
        match self.decide(&Event::Answered { begun: &self.begun_record(), nonce: nonce(), answer: &answer }) {
            Some((change, Decision::Stored)) => self.write(change, Some(response)).await,
            // The policy does not count this status as a success, so the rows are rolled back.
            _ => self.undo(Arc::unwrap_or_clone(response)).await,
        }
    }

    /// Commits the transaction without a response. An effect that was enqueued here owes the response, and duplicates wait
    /// for it.
    ///
    /// # Errors
    ///
    /// Fails with [`TxError::AnswerConflict`] if no effect of this transaction owes the response; otherwise as
    /// [`Self::finish`] does.
    ///
    /// # Cancel safety
    ///
    /// As for [`Self::finish`].
    pub async fn owe(self) -> Result<Outcome, TxError> {
        if !self.owes {
            return Err(TxError::AnswerConflict);
        }
        match self.decide(&Event::Owes { begun: &self.begun_record(), nonce: nonce() }) {
            Some((change, Decision::Owed)) => self.write(change, None).await,
            _ => Err(TxError::LeaseLost),
        }
    }

    /// Rolls back your rows and effects, and stores the response if the policy says so.
    async fn undo(mut self, response: Response) -> Result<Outcome, TxError> {
        if !self.reserves {
            self.roll_back().await;
            return Ok(self.attempt.finish_undone(response).await);
        }
        reserve_tx::back_to_reservation(&mut *self).await?;
        let (answer, response) = into_answer(response, &self.held.stored.record.policy);
        match self.decide(&Event::Answered { begun: &self.begun_record(), nonce: nonce(), answer: &answer }) {
            Some((change, Decision::Stored)) => {
                self.owes = false;
                self.enqueued = 0;
                self.write(change, Some(response)).await
            }
            // The reservation is rolled back too. No other transaction has seen it.
            _ => {
                self.roll_back().await;
                Ok(self.attempt.ended_with(Outcome::Released))
            }
        }
    }

    pub(crate) async fn roll_back(&mut self) {
        if let Some(tx) = self.tx.take() {
            // If this fails, the database rolls back when the connection closes.
            let _ = tx.rollback().await;
        }
    }

    /// Writes the outcome into the transaction and commits it.
    async fn write(
        mut self,
        change: Arc<Change>,
        response: Option<Arc<Response>>,
    ) -> Result<Outcome, TxError> {
        let sent_at = Instant::now();
        let stored = match self.commit(&change).await? {
            CommitResult::Yes(stored) => *stored,
            CommitResult::Unsure => self.settle(&change).await?,
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

    /// Counts the enqueued effects after the commit, and wakes the worker of this process before its next poll.
    pub(crate) fn tell_worker(&self) {
        if self.enqueued > 0 {
            counter!(telemetry::EFFECTS_ENQUEUED).increment(self.enqueued);
            self.attempt.ibid().outbox().enqueued.notify_waiters();
        }
    }

    /// Applies a change to this record and commits the transaction. The transaction cannot be used afterwards.
    pub(crate) async fn commit(&mut self, change: &Change) -> Result<CommitResult, TxError> {
        let terms = self.terms()?;
        let tx = self.tx.as_mut().ok_or(TxError::Ended)?;
        let before = Some(&*self.held.stored.record);
        let Some(stamp) = record_sql::apply(tx, change, before, self.held.policy, terms).await? else {
            return Err(TxError::LeaseLost);
        };
        let stays_in_progress = change.draft.as_ref().is_some_and(|draft| draft.state == State::LEASED);
        let (before, done) = if stays_in_progress {
            ("phase.before", "phase.after")
        } else {
            ("finish.before", "finish.after")
        };
        if failpoint::at(before).await == Hit::Error {
            return Err(SqlError::new(SqlFault::Serialization, "a failpoint").into());
        }
        if self.reserves && !self.attempt.ibid().engine().confirm_identity().await {
            // No other transaction sees the reservation before this commit. T1 (new identity) looks up the key's old id,
            // finds nothing, reserves the new id and runs. If this commit came after that, it would be a second execution.
            // `ibid identity change` waits for commits that were sent in time (`change::retire`), not for this one.
            self.roll_back().await;
            let _ = self.attempt.ended_with(Outcome::NotDurable);
            return Err(self.attempt.ibid().engine().without_identity().into());
        }
        let tx = self.tx.take().ok_or(TxError::Ended)?;
        match tx.commit().await {
            Ok(()) if failpoint::at(done).await == Hit::Lost => Ok(CommitResult::Unsure),
            Ok(()) => {
                let stored = apply_change(change, stamp, Some(&self.held.stored));
                Ok(CommitResult::Yes(Box::new(stored.ok_or(TxError::LeaseLost)?)))
            }
            Err(error) if error.fault() == SqlFault::Lost => Ok(CommitResult::Unsure),
            Err(error) => Err(error.into()),
        }
    }

    /// Finds out whether a commit without a reply happened.
    ///
    /// A read would prove nothing, because the commit may still be in flight. So this writes at the version from before the
    /// commit. That write waits for the row lock. Then it either succeeds, and the commit can no longer happen, or conflicts
    /// with the committed change.
    async fn settle(&mut self, change: &Change) -> Result<StoredRecord, TxError> {
        let engine = self.attempt.ibid().engine().clone();
        let (begun, ask) = (self.begun_record(), self.attempt.ask().clone());
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
            let _ = self.attempt.ended_with(Outcome::NotDurable);
            return Err(TxError::CommitUnknown);
        };
        match settlement.stored {
            Some(stored) if change.is_stored_as(&stored) => Ok(stored),
            _ => {
                let _ = self.attempt.ended_with(Outcome::Released);
                Err(TxError::NotCommitted)
            }
        }
    }

    /// Returns the machine's decision on an event of this attempt, for the record as the transaction has locked it.
    pub(crate) fn decide(&self, event: &Event<'_>) -> Option<(Arc<Change>, Decision)> {
        match machine::decide(Some(&self.held.stored.record), event, self.held.stored.now) {
            Verdict::Write(change, decision) => Some((change, decision)),
            Verdict::Keep(_) => None,
        }
    }

    pub(crate) fn begun_record(&self) -> Arc<Record> {
        self.attempt.begun_record().clone()
    }

    fn terms(&self) -> Result<WriteOptions, TxError> {
        Ok(WriteOptions::of(sql(self.attempt.ibid())?))
    }
}

/// Outcome of a commit.
pub(crate) enum CommitResult {
    Yes(Box<StoredRecord>),
    /// The commit got no reply.
    Unsure,
}

/// Returns the SQL side of the store.
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

/// Panic message for a transaction that has ended. Callers cannot reach it, because `finish` and `owe` take `AttemptTx` by
/// value.
const OPEN: &str = "the transaction is open until the end, which consumes its holder";

/// First status that is not a success: rows of an attempt that ends with it are rolled back.
const FAILURES_FROM: u16 = 400;
