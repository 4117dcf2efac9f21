//! Phases: a handler's work in atomic pieces, each with a recovery point. A resumed attempt skips the committed phases and
//! gets their stored results back.
//!
//! A phase either works in the database, in one transaction, or calls the outside, with no transaction open. Its result is
//! stored as JSON, with a digest of the names of all phases so far. If a redeploy renamed or reordered committed phases, the
//! record is refused, not misread. Phases after the last committed one may be added or changed freely.

use std::fmt;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use ibid_core::change::{BodyKind, StoredRecord};
use ibid_core::effect::{KEY_WINDOW, downstream_key};
use ibid_core::machine::{Decision, Event, PhaseStep};
use ibid_core::record::RecoveryPoint;
use ibid_core::sql::Database;
use ibid_core::store::StoreError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::attempt::Attempt;
use crate::engine::{GiveUp, Settlement};
use crate::failpoint::{self, Hit};
use crate::random::nonce;
use crate::transaction::attempt_tx::CommitResult;
use crate::transaction::{TxError, TxHandle};

/// The idempotency key for one call to a provider. It cannot be cloned: a phase makes at most one call.
#[derive(Debug)]
pub struct DownstreamKey(String);

impl DownstreamKey {
    /// Returns the key as text, for the provider's `Idempotency-Key`.
    pub fn into_string(self) -> String {
        self.0
    }
}

impl fmt::Display for DownstreamKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The provider's protection against executing a call twice. It decides whether a call may be repeated if its result is not
/// known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Care {
    /// The provider deduplicates by our key and remembers it for [`KEY_WINDOW`]. Until then the call is repeated. After
    /// that a repeated call could execute a second time, so it is not made, and the record becomes `unknown`.
    Repeatable,
    /// Like [`Care::Repeatable`], but the provider remembers the key only for this long. More than [`KEY_WINDOW`] counts as
    /// [`KEY_WINDOW`].
    RepeatableFor(Duration),
    /// The provider does not deduplicate. A crash between the call and the commit of its result makes the record `unknown`.
    Once,
}

impl Care {
    /// Returns how long after the key was first used the call may be repeated; `None` if never.
    fn key_window(self) -> Option<Duration> {
        match self {
            Care::Repeatable => Some(KEY_WINDOW),
            Care::RepeatableFor(window) => Some(window.min(KEY_WINDOW)),
            Care::Once => None,
        }
    }
}

/// A call to the outside that gave no result. It is an [`Error`](std::error::Error) if `E` is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutsideCallError<E> {
    /// The call certainly had no effect.
    #[error("the call was not made")]
    NotMade(#[source] E),
    /// The call may have had an effect.
    #[error("the result of the call is uncertain")]
    Uncertain(#[source] E),
}

/// The provider's answer about a call that may have been made.
#[derive(Debug)]
#[non_exhaustive]
pub enum CallVerification<R> {
    /// The call was made, with this result.
    Made(R),
    /// The call was not made.
    NotMade,
    /// The provider cannot tell.
    Unsure,
}

/// A phase that gave no result. It is an [`Error`](std::error::Error) if `E` is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PhaseError<E> {
    /// The work returned an error. Its transaction is rolled back.
    #[error("the work of the phase failed")]
    Work(#[source] E),
    /// The call certainly had no effect.
    #[error("the phase's call was not made")]
    NotMade(#[source] E),
    /// The call may have had an effect.
    #[error("the result of the phase's call is uncertain")]
    Uncertain(#[source] E),
    /// An earlier call, of this attempt or another, may have had an effect, and must not be repeated.
    #[error("an earlier call may have been made, and its result is not known")]
    Unsure,
    /// An earlier attempt committed different phases up to this point.
    #[error(
        "phase {point} is `{name}`, but this record committed a different phase there: keep the names and order of committed phases"
    )]
    Reordered {
        /// The name that the handler uses now.
        name: String,
        /// The recovery point of the phase, from 1.
        point: u16,
    },
    /// The result cannot be written as JSON, or the stored result is not of this type.
    #[error("the result of the phase cannot be stored as JSON or read back")]
    Result(#[source] serde_json::Error),
    /// The record is no longer this attempt's.
    #[error("the lease is lost: the record is not this attempt's any more")]
    LeaseLost,
    /// A write did not become durable within `finish_wait`: the result of a call that was made, the marker before a
    /// [`Care::Once`] call, or the check after a commit that got no reply.
    #[error("the result of the phase's call could not be stored")]
    NotStored,
    /// The transaction of the phase failed.
    #[error(transparent)]
    Tx(TxError),
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl<E> PhaseError<E> {
    /// Returns whether nothing was done because another transaction was in the way, so that a retry may help.
    pub fn is_retryable(&self) -> bool {
        matches!(self, PhaseError::Tx(error) if error.is_retryable())
    }
}

impl<E> From<TxError> for PhaseError<E> {
    fn from(error: TxError) -> Self {
        match error {
            TxError::LeaseLost => PhaseError::LeaseLost,
            error => PhaseError::Tx(error),
        }
    }
}

impl Attempt {
    /// Runs `work` in one transaction and commits its rows, its result and the recovery point together. If an earlier
    /// attempt has committed this phase, nothing runs, and the stored result is returned.
    ///
    /// If another transaction is in the way, `work` runs again in a new transaction, at most eight times in all. An error
    /// that `work` itself returns is not retried: the transaction is rolled back, and the call fails with
    /// [`PhaseError::Work`].
    ///
    /// # Errors
    ///
    /// - [`Work`](PhaseError::Work): `work` returned an error.
    /// - [`Tx`](PhaseError::Tx): the transaction failed, or other transactions were in its way eight times. It is not
    ///   committed.
    /// - [`NotStored`](PhaseError::NotStored): the commit got no reply, and the store could not be reached within
    ///   `finish_wait` to check. It is not known whether it was committed; the next attempt sees it.
    /// - [`Unsure`](PhaseError::Unsure): a call at this point is in doubt, and this phase would hide it.
    /// - [`Reordered`](PhaseError::Reordered), [`Result`](PhaseError::Result): the phases or result types of the handler have
    ///   changed since this record committed its phases.
    /// - [`LeaseLost`](PhaseError::LeaseLost): the record is no longer this attempt's.
    /// - [`Store`](PhaseError::Store): the results of earlier attempts could not be loaded.
    ///
    /// # Cancel safety
    ///
    /// Dropped before the commit was sent, the transaction is rolled back, and the phase can run again. Dropped later, the
    /// commit may have happened; if so, this attempt can write nothing more, and the next one continues after the phase.
    ///
    /// ```
    /// # use ibid::Attempt;
    /// # use ibid::phase::PhaseError;
    /// # use ibid::transaction::{Database, TxError};
    /// # use ibid::outbox::NewEffect;
    /// # async fn ride<D: Database>(attempt: &mut Attempt, pool: &D, to: &str) -> Result<u64, PhaseError<TxError>> {
    /// attempt
    ///     .phase("ride", pool, async |mut tx| {
    ///         tx.enqueue(NewEffect::json("mail", &to)?).await?;
    ///         Ok(7)
    ///     })
    ///     .await
    /// # }
    /// ```
    pub async fn phase<D, R, E, W, F>(
        &mut self,
        name: &str,
        database: &D,
        mut work: W,
    ) -> Result<R, PhaseError<E>>
    where
        D: Database,
        R: Serialize + DeserializeOwned,
        W: FnMut(TxHandle<D::Tx>) -> F,
        F: Future<Output = Result<R, E>>,
    {
        let step = match self.look_up(name).await? {
            PhaseLookup::With(result) => return Ok(result),
            // A database phase makes no call. Its recovery point would make the call in doubt look recorded.
            PhaseLookup::NotYet(step) if self.in_doubt_call() == Some(step) => {
                return Err(PhaseError::Unsure);
            }
            PhaseLookup::NotYet(step) => step,
        };
        let mut last_error = TxError::NotCommitted;
        for _ in 0..PHASE_TRIES_MAX {
            let sent_at = Instant::now();
            let tx = database.begin().await.map_err(TxError::from)?;
            let inside = match self.join_tx_owned(tx).await {
                Err(error) if error.is_retryable() => {
                    last_error = error;
                    continue;
                }
                inside => inside?,
            };
            let (mut inside, result) = inside.run(&mut work, PhaseError::Work).await?;
            let body = encode_result(step, &result)?;
            let record = inside.begun_record();
            let event = Event::Phase { begun: &record, nonce: nonce(), step, name, result: &body };
            let Some((change, Decision::Advanced)) = inside.decide(&event) else {
                return Err(PhaseError::LeaseLost);
            };
            let stored = match inside.commit(&change).await {
                Ok(CommitResult::Yes(stored)) => {
                    inside.tell_worker();
                    *stored
                }
                Ok(CommitResult::Unsure) => match self.was_committed(step).await? {
                    Some(stored) => stored,
                    None => {
                        last_error = TxError::NotCommitted;
                        continue;
                    }
                },
                Err(error) if error.is_retryable() => {
                    last_error = error;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            self.continue_with(stored.record, sent_at);
            self.progress.at = step;
            return Ok(result);
        }
        Err(last_error.into())
    }

    /// Makes one call to the outside with no transaction open, and stores its result. If an earlier attempt has stored the
    /// result of this phase, nothing is called, and that result is returned.
    ///
    /// After an uncertain result, a [`Care::Once`] call is not made again, and a repeatable one is not made again once the
    /// provider may have forgotten its key. The call then fails with [`PhaseError::Unsure`].
    ///
    /// # Errors
    ///
    /// - [`NotMade`](PhaseError::NotMade), [`Uncertain`](PhaseError::Uncertain): `call` returned that error.
    /// - [`Unsure`](PhaseError::Unsure): an earlier call may have had an effect. It must not be repeated, or it is a different
    ///   call, which this one would hide.
    /// - [`NotStored`](PhaseError::NotStored): the result, or the marker before a [`Care::Once`] call, could not be stored.
    /// - [`LeaseLost`](PhaseError::LeaseLost): the record is no longer this attempt's. If the lease was lost before the call,
    ///   the call is not made.
    /// - [`Reordered`](PhaseError::Reordered), [`Result`](PhaseError::Result) and [`Store`](PhaseError::Store), as for
    ///   [`Attempt::phase`].
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: if the future is dropped during the call, the call may have been made. The attempt remembers it. Running
    /// the phase again repeats a repeatable call under the same key, and fails with [`PhaseError::Unsure`] for [`Care::Once`].
    pub async fn outside<R, E, F>(
        &mut self,
        name: &str,
        care: Care,
        call: impl FnOnce(DownstreamKey) -> F,
    ) -> Result<R, PhaseError<E>>
    where
        R: Serialize + DeserializeOwned,
        F: Future<Output = Result<R, OutsideCallError<E>>>,
    {
        match self.look_up(name).await? {
            PhaseLookup::With(result) => Ok(result),
            PhaseLookup::NotYet(step) if self.may_be_second(step, care) => Err(self.mark_unsure(step).await),
            PhaseLookup::NotYet(step) => self.call(name, step, care, call).await,
        }
    }

    /// Like [`Attempt::outside`], but for a provider that does not deduplicate and can be asked about a call.
    ///
    /// If an earlier attempt may have made the call, `verify` asks the provider first, `settle` after this attempt began: until
    /// then that call may still be in flight. If this attempt has made the call and does not know its result, `verify` asks
    /// `settle` from now.
    ///
    /// # Errors
    ///
    /// Fails like [`Attempt::outside`], and with [`PhaseError::Unsure`] if the provider cannot tell.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: if the future is dropped during the call, the call may have been made. Running the phase again asks
    /// `verify` first.
    pub async fn outside_verified<R, E, V, F>(
        &mut self,
        name: &str,
        settle: Duration,
        verify: impl FnOnce(DownstreamKey) -> V,
        call: impl FnOnce(DownstreamKey) -> F,
    ) -> Result<R, PhaseError<E>>
    where
        R: Serialize + DeserializeOwned,
        V: Future<Output = CallVerification<R>>,
        F: Future<Output = Result<R, OutsideCallError<E>>>,
    {
        let step = match self.look_up(name).await? {
            PhaseLookup::With(result) => return Ok(result),
            PhaseLookup::NotYet(step) => step,
        };
        let in_doubt = self.progress.in_doubt == Some(step);
        if in_doubt || self.number() > 1 {
            let since = if in_doubt { Instant::now() } else { self.began_at() };
            tokio::time::sleep_until(since + settle).await;
            match verify(self.downstream_key(name)).await {
                CallVerification::Made(result) => return self.record(step, name, result).await,
                CallVerification::NotMade => {
                    self.progress.in_doubt = None;
                    self.set_in_doubt_call(None);
                }
                CallVerification::Unsure => return Err(self.mark_unsure(step).await),
            }
        }
        // No marker is needed: the next attempt asks the provider before it calls.
        self.call(name, step, Care::Repeatable, call).await
    }

    /// Returns whether a call now may execute a second time: an earlier one may have been made, and the provider ignores its
    /// key or may have forgotten it. The age of the key counts from the first request, because its first use is not recorded.
    fn may_be_second(&self, step: PhaseStep, care: Care) -> bool {
        // From this run or an earlier one.
        let in_doubt = self.in_doubt_call() == Some(step);
        match care.key_window() {
            None => in_doubt,
            // An attempt that ended has reported whether it called; one that lapsed has not.
            Some(window) => (in_doubt || self.begun_record().note.lapses > 0) && self.is_as_old_as(window),
        }
    }

    /// Records that only an operator or a reconciler can tell whether the call was made. This holds even if the attempt is
    /// dropped.
    async fn mark_unsure<E>(&mut self, step: PhaseStep) -> PhaseError<E> {
        self.mark_exposed();
        match self.write_report(PhaseReport::Calling(Some(step.point))).await {
            Ok(_) => PhaseError::Unsure,
            Err(error) => error,
        }
    }

    async fn call<R, E, F>(
        &mut self,
        name: &str,
        step: PhaseStep,
        care: Care,
        call: impl FnOnce(DownstreamKey) -> F,
    ) -> Result<R, PhaseError<E>>
    where
        R: Serialize + DeserializeOwned,
        F: Future<Output = Result<R, OutsideCallError<E>>>,
    {
        if care == Care::Once {
            self.write_report(PhaseReport::Calling(Some(step.point))).await?;
        }
        if self.ensure_lease().await.is_err() {
            return Err(PhaseError::LeaseLost);
        }
        let before = (self.progress.in_doubt, self.in_doubt_call());
        if care != Care::Once {
            // If this future is dropped during the call, the next attempt can repeat it.
            self.mark_clean();
            self.set_in_doubt_call(Some(step));
        }
        self.progress.in_doubt = Some(step);
        let result = call(self.downstream_key(name)).await;
        failpoint::at("outside.after").await;
        match result {
            Ok(result) => self.record(step, name, result).await,
            Err(OutsideCallError::Uncertain(error)) => Err(PhaseError::Uncertain(error)),
            Err(OutsideCallError::NotMade(error)) => {
                // This call was certainly not made, but an earlier one may have been.
                self.progress.in_doubt = before.0;
                self.set_in_doubt_call(before.1);
                if care == Care::Once {
                    self.write_report(PhaseReport::Calling(None)).await?;
                }
                self.mark_clean();
                Err(PhaseError::NotMade(error))
            }
        }
    }

    /// Stores the result of a call, with its recovery point.
    async fn record<R: Serialize, E>(
        &mut self,
        step: PhaseStep,
        name: &str,
        result: R,
    ) -> Result<R, PhaseError<E>> {
        let body = encode_result(step, &result)?;
        self.write_report(PhaseReport::Done { step, name: name.to_owned(), result: body }).await?;
        self.mark_clean();
        self.progress.at = step;
        Ok(result)
    }

    /// Writes a report to the record, and continues under the new version.
    async fn write_report<E>(&mut self, report: PhaseReport) -> Result<StoredRecord, PhaseError<E>> {
        let (engine, begun) = (self.ibid().engine().clone(), self.begun_record().clone());
        let known = StoredRecord { record: begun.clone(), response: None, now: begun.created_at };
        let sent_at = Instant::now();
        if failpoint::at("tell.before").await == Hit::Error {
            return Err(PhaseError::NotStored);
        }
        let written = engine.write_until_done(Some(known), GiveUp::Late, |nonce| match &report {
            PhaseReport::Calling(point) => Event::Calling { begun: &begun, nonce, point: *point },
            PhaseReport::Done { step, name, result } => {
                Event::Phase { begun: &begun, nonce, step: *step, name, result }
            }
        });
        let written = tokio::time::timeout(engine.finish_wait, written).await;
        if failpoint::at("tell.after").await == Hit::Lost {
            return Err(PhaseError::NotStored);
        }
        let Ok(Settlement { decision, stored, refused: None }) = written else {
            return Err(PhaseError::NotStored);
        };
        match (decision, stored) {
            (Decision::Advanced, Some(stored)) => {
                self.continue_with(stored.record.clone(), sent_at);
                Ok(stored)
            }
            _ => Err(PhaseError::LeaseLost),
        }
    }

    /// Finds out whether a commit of `step` that got no reply has happened. Returns the record if it has. If it has not, it
    /// can no longer happen, because this writes a new version.
    async fn was_committed<E>(&mut self, step: PhaseStep) -> Result<Option<StoredRecord>, PhaseError<E>> {
        let stored = self.write_report(PhaseReport::Calling(None)).await?;
        Ok(Some(stored).filter(|stored| stored.record.point == step.point))
    }

    /// Looks up the result of the next phase, which an earlier attempt may have stored.
    async fn look_up<R: DeserializeOwned, E>(&mut self, name: &str) -> Result<PhaseLookup<R>, PhaseError<E>> {
        self.begin_work();
        let step = self.progress.at.next(name).ok_or(PhaseError::LeaseLost)?;
        if step.point > self.begun_record().point {
            // A different call at this point is in doubt, from this run or an earlier one. Committing this phase would
            // hide it.
            let hides =
                |call: Option<PhaseStep>| call.is_some_and(|call| call.point == step.point && call != step);
            if hides(self.progress.in_doubt)
                || hides(self.in_doubt_call())
                || self.begun_record().note.calling.is_some()
            {
                return Err(PhaseError::Unsure);
            }
            return Ok(PhaseLookup::NotYet(step));
        }
        if self.progress.earlier_results.is_none() {
            let (id, birth) = (self.begun_record().id, self.begun_record().birth);
            let bodies = self.ibid().engine().bodies(id, birth).await?;
            self.progress.earlier_results =
                Some(bodies.into_iter().map(|body| (body.kind, body.data)).collect());
        }
        let results = self.progress.earlier_results.as_ref();
        let body = results.and_then(|results| results.get(&BodyKind::Phase(step.point).code()));
        let Some((digest, result)) = body.and_then(|body| body.split_first_chunk::<8>()) else {
            return Err(PhaseError::Reordered { name: name.to_owned(), point: step.point });
        };
        if u64::from_be_bytes(*digest) != step.phases {
            return Err(PhaseError::Reordered { name: name.to_owned(), point: step.point });
        }
        let result = serde_json::from_slice(result).map_err(PhaseError::Result)?;
        self.progress.at = step;
        Ok(PhaseLookup::With(result))
    }

    fn downstream_key(&self, name: &str) -> DownstreamKey {
        DownstreamKey(downstream_key(&self.begun_record().id, self.begun_record().birth, name))
    }
}

/// The progress of an attempt, as it is written to the record.
enum PhaseReport {
    /// The point of a call that may be in flight and must not be repeated; `None` if there is none.
    Calling(Option<RecoveryPoint>),
    /// The encoded result of a call, with the name of its phase.
    Done { step: PhaseStep, name: String, result: Bytes },
}

/// The stored result of a phase, or the step that has yet to run.
enum PhaseLookup<R> {
    With(R),
    NotYet(PhaseStep),
}

/// Encodes a result for the store: the digest of all names up to its phase, then JSON.
fn encode_result<R: Serialize, E>(step: PhaseStep, result: &R) -> Result<Bytes, PhaseError<E>> {
    let mut body = BytesMut::new();
    body.put_u64(step.phases);
    serde_json::to_writer((&mut body).writer(), result).map_err(PhaseError::Result)?;
    Ok(body.freeze())
}

/// Most runs of a phase's transaction while other transactions are in its way. Each lost run means that another one has
/// committed, so more than a few mean that something is wrong with the work.
const PHASE_TRIES_MAX: u32 = 8;
