//! Phases: a handler's work in atomic pieces, each with a recovery point. What is committed is not run again on resume;
//! its stored result is returned.
//!
//! A Phase either works in the database, in one transaction, or calls the outside, with no transaction open. Results are
//! kept as JSON together with a digest of the Phases' names so far: after a redeploy that reordered them a record is
//! refused, not misread. Phases after the last one committed may be added or changed freely.

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
use crate::transaction::attempt_tx::Committed;
use crate::transaction::{TxError, TxHandle};

/// The key that the outside is given for one call. It is used up by the call: at most one per Phase.
#[derive(Debug)]
pub struct DownstreamKey(String);

impl DownstreamKey {
    /// The key, for the provider's `Idempotency-Key`.
    pub fn into_string(self) -> String {
        self.0
    }
}

impl fmt::Display for DownstreamKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What makes a call to the outside safe when its result is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Care {
    /// The provider deduplicates by our key, and remembers it for [`KEY_WINDOW`]: until then the call is made again. After
    /// that it may be a second one, so it is not made, and the record ends `unknown`.
    Repeatable,
    /// The same, where the provider remembers it for so long only; more than [`KEY_WINDOW`] counts as that.
    RepeatableFor(Duration),
    /// Nothing: a lapse between call and record is `unknown`.
    Once,
}

impl Care {
    /// How long after the key was first used the call may be made again.
    fn key_window(self) -> Option<Duration> {
        match self {
            Care::Repeatable => Some(KEY_WINDOW),
            Care::RepeatableFor(window) => Some(window.min(KEY_WINDOW)),
            Care::Once => None,
        }
    }
}

/// Why a call to the outside gave no result.
#[derive(Debug)]
pub enum OutsideCallError<E> {
    /// It certainly had no effect.
    NotMade(E),
    /// It may have had one.
    Uncertain(E),
}

/// What was found out about a call that may have been made.
#[derive(Debug)]
pub enum CallVerification<R> {
    /// It was made, with this result.
    Made(R),
    /// It was not made.
    NotMade,
    /// Nobody can tell.
    Unsure,
}

/// Why a Phase has no result.
#[derive(Debug, thiserror::Error)]
pub enum PhaseError<E> {
    /// The work failed; its transaction is undone.
    #[error("the work of the phase failed")]
    Work(E),
    /// The call certainly had no effect.
    #[error("the phase's call was not made")]
    NotMade(E),
    /// The call may have had an effect.
    #[error("the result of the phase's call is uncertain")]
    Uncertain(E),
    /// Nobody can tell whether an earlier call had an effect.
    #[error("nobody can tell whether the call of an earlier attempt was made")]
    Unsure,
    /// An earlier Attempt committed other Phases in this place.
    #[error(
        "phase {point} was another than `{name}` when the record was begun: a later version of the handler must keep the order of phases"
    )]
    Reordered {
        /// The name that came now.
        name: String,
        /// Its place.
        point: u16,
    },
    /// The result can't be kept as JSON, or what is kept is none of this type.
    #[error("the result of the phase can't be kept or read")]
    Result(#[source] serde_json::Error),
    /// The Record is no longer this Attempt's.
    #[error("the lease is lost: the record is not this attempt's any more")]
    LeaseLost,
    /// The call was made, and its result could not be made durable in time.
    #[error("the result of the phase's call could not be stored")]
    NotStored,
    /// The transaction failed.
    #[error(transparent)]
    Tx(TxError),
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
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
    /// Runs one piece of work in one transaction, keeps its result, and advances the recovery point, all in one commit.
    /// If an earlier Attempt did it already, nothing runs and its result is returned.
    ///
    /// The work may be run more than once, in a new transaction each time, when its commit finds others in its way.
    /// What its own statements meet with it returns, and that is the end of this call.
    ///
    /// ```
    /// # use ibid::Attempt;
    /// # use ibid::phase::PhaseError;
    /// # use ibid::transaction::{Database, TxError};
    /// # use ibid::core::effect::NewEffect;
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
        let step = match self.passed(name).await? {
            PhaseLookup::With(result) => return Ok(result),
            // It is no call: the one in doubt would be taken for recorded.
            PhaseLookup::NotYet(step) if self.doubt() == Some(step) => {
                return Err(PhaseError::Unsure);
            }
            PhaseLookup::NotYet(step) => step,
        };
        let mut failed = TxError::NotCommitted;
        for _ in 0..PHASE_TRIES_MAX {
            let sent_at = Instant::now();
            let tx = database.begin().await.map_err(TxError::from)?;
            let inside = match self.inside_owned(tx).await {
                Err(error) if error.is_retryable() => {
                    failed = error;
                    continue;
                }
                inside => inside?,
            };
            let (result, mut inside) = match inside.lend_to(&mut work).await {
                (Ok(result), Some(inside)) => (result, inside),
                // The work has put its handle elsewhere, and may still use the transaction there.
                (Ok(_), None) => return Err(TxError::Ended.into()),
                (Err(error), returned) => {
                    if let Some(mut inside) = returned {
                        inside.roll_back().await;
                    }
                    return Err(PhaseError::Work(error));
                }
            };
            let kept = kept(step, &result)?;
            let begun = inside.begun();
            let event = Event::Phase { begun: &begun, nonce: nonce(), step, result: &kept };
            let Some((change, Decision::Advanced)) = inside.says(&event) else {
                return Err(PhaseError::LeaseLost);
            };
            let stored = match inside.commit(&change).await {
                Ok(Committed::Yes(stored)) => {
                    inside.tell_worker();
                    *stored
                }
                Ok(Committed::Unsure) => match self.was_committed(step).await? {
                    Some(stored) => stored,
                    None => {
                        failed = TxError::NotCommitted;
                        continue;
                    }
                },
                Err(error) if error.is_retryable() => {
                    failed = error;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            self.goes_on_as(stored.record, sent_at);
            self.progress.at = step;
            return Ok(result);
        }
        Err(failed.into())
    }

    /// Makes one call to the outside with no transaction open, and keeps its result. If an earlier Attempt did it
    /// already, nothing is called and its result is returned. What must be called only once is not called again after
    /// an uncertain result; nor is what may be repeated, once the provider may have forgotten its key.
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
        match self.passed(name).await? {
            PhaseLookup::With(result) => Ok(result),
            PhaseLookup::NotYet(step) if self.may_be_second(step, care) => Err(self.unsure(step).await),
            PhaseLookup::NotYet(step) => self.call(name, step, care, call).await,
        }
    }

    /// As [`Attempt::outside`], for a provider that does not deduplicate but can be asked. Where an earlier Attempt may
    /// have called, it is asked first, `settle` after this one began: so long that call may still be under way. So it is
    /// if this one called and does not know what came of it, `settle` from now.
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
        let step = match self.passed(name).await? {
            PhaseLookup::With(result) => return Ok(result),
            PhaseLookup::NotYet(step) => step,
        };
        let in_doubt = self.progress.in_doubt == Some(step);
        if in_doubt || self.number() > 1 {
            let since = if in_doubt { Instant::now() } else { self.began_at() };
            tokio::time::sleep_until(since + settle).await;
            match verify(self.downstream_key(name)).await {
                CallVerification::Made(result) => return self.record(step, result).await,
                CallVerification::NotMade => {
                    self.progress.in_doubt = None;
                    self.doubts(None);
                }
                CallVerification::Unsure => return Err(self.unsure(step).await),
            }
        }
        // Whoever comes after asks before it calls.
        self.call(name, step, Care::Repeatable, call).await
    }

    /// Whether a call now may do it a second time: one may have been made before, and the provider does not look at its
    /// key, or may have forgotten it. The key counts from the first request, for nobody notes when it is first used.
    fn may_be_second(&self, step: PhaseStep, care: Care) -> bool {
        // By this run or one before.
        let in_doubt = self.doubt() == Some(step);
        match care.key_window() {
            None => in_doubt,
            // Who came to an end has said whether it called; who lapsed has not.
            Some(window) => (in_doubt || self.begun().note.lapses > 0) && self.is_as_old_as(window),
        }
    }

    /// From here on only a person or a reconciler can tell whether the call was made, also if this Attempt is dropped.
    async fn unsure<E>(&mut self, step: PhaseStep) -> PhaseError<E> {
        self.expose();
        match self.tell(PhaseReport::Calling(Some(step.point))).await {
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
            self.tell(PhaseReport::Calling(Some(step.point))).await?;
        }
        if self.ready().await.is_err() {
            return Err(PhaseError::LeaseLost);
        }
        let before = (self.progress.in_doubt, self.doubt());
        if care != Care::Once {
            // Dropped half-way it leaves nothing that the next Attempt could not make good.
            self.conceal();
            self.doubts(Some(step));
        }
        self.progress.in_doubt = Some(step);
        let called = call(self.downstream_key(name)).await;
        failpoint::at("outside.after").await;
        match called {
            Ok(result) => self.record(step, result).await,
            Err(OutsideCallError::Uncertain(error)) => Err(PhaseError::Uncertain(error)),
            Err(OutsideCallError::NotMade(error)) => {
                // Of this call it is certain; not of one before.
                self.progress.in_doubt = before.0;
                self.doubts(before.1);
                if care == Care::Once {
                    self.tell(PhaseReport::Calling(None)).await?;
                }
                self.conceal();
                Err(PhaseError::NotMade(error))
            }
        }
    }

    /// The call gave a result: it becomes durable, with its recovery point.
    async fn record<R: Serialize, E>(&mut self, step: PhaseStep, result: R) -> Result<R, PhaseError<E>> {
        let kept = kept(step, &result)?;
        self.tell(PhaseReport::Done(step, kept)).await?;
        self.conceal();
        self.progress.at = step;
        Ok(result)
    }

    /// Writes what this Attempt has to say of its Phases, and goes on under the new Version.
    async fn tell<E>(&mut self, said: PhaseReport) -> Result<StoredRecord, PhaseError<E>> {
        let (engine, begun) = (self.ibid().engine().clone(), self.begun().clone());
        let known = StoredRecord { record: begun.clone(), answer: None, now: begun.created_at };
        let sent_at = Instant::now();
        if failpoint::at("tell.before").await == Hit::Error {
            return Err(PhaseError::NotStored);
        }
        let written = engine.write_until_done(Some(known), GiveUp::Late, |nonce| match &said {
            PhaseReport::Calling(point) => Event::Calling { begun: &begun, nonce, point: *point },
            PhaseReport::Done(step, result) => Event::Phase { begun: &begun, nonce, step: *step, result },
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
                self.goes_on_as(stored.record.clone(), sent_at);
                Ok(stored)
            }
            _ => Err(PhaseError::LeaseLost),
        }
    }

    /// Whether a commit of `step` that got no reply has happened. A new Version makes it lose if it has not.
    async fn was_committed<E>(&mut self, step: PhaseStep) -> Result<Option<StoredRecord>, PhaseError<E>> {
        let stored = self.tell(PhaseReport::Calling(None)).await?;
        Ok(Some(stored).filter(|stored| stored.record.point == step.point))
    }

    /// The result of the Phase that is next, if an earlier Attempt left it.
    async fn passed<R: DeserializeOwned, E>(&mut self, name: &str) -> Result<PhaseLookup<R>, PhaseError<E>> {
        let step = self.progress.at.next(name).ok_or(PhaseError::LeaseLost)?;
        if step.point > self.begun().point {
            // A call that nobody can tell about, of this run or one before: whatever came next would hide it.
            let hides =
                |call: Option<PhaseStep>| call.is_some_and(|call| call.point == step.point && call != step);
            if hides(self.progress.in_doubt) || hides(self.doubt()) || self.begun().note.calling.is_some() {
                return Err(PhaseError::Unsure);
            }
            return Ok(PhaseLookup::NotYet(step));
        }
        if self.progress.left.is_none() {
            let (id, birth) = (self.begun().id, self.begun().birth);
            let bodies = self.ibid().engine().store.bodies(id, birth).await?;
            self.progress.left = Some(bodies.into_iter().collect());
        }
        let left = self.progress.left.as_ref().and_then(|left| left.get(&BodyKind::Phase(step.point).code()));
        let Some((digest, result)) = left.and_then(|kept| kept.split_first_chunk::<8>()) else {
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
        DownstreamKey(downstream_key(&self.begun().id, self.begun().birth, name))
    }
}

/// What an Attempt has to say of its Phases.
enum PhaseReport {
    Calling(Option<RecoveryPoint>),
    Done(PhaseStep, Bytes),
}

enum PhaseLookup<R> {
    With(R),
    NotYet(PhaseStep),
}

/// A result as it is kept: the digest of all names up to its Phase, then JSON.
fn kept<R: Serialize, E>(step: PhaseStep, result: &R) -> Result<Bytes, PhaseError<E>> {
    let mut kept = BytesMut::new();
    kept.put_u64(step.phases);
    serde_json::to_writer((&mut kept).writer(), result).map_err(PhaseError::Result)?;
    Ok(kept.freeze())
}

/// How often a Phase's transaction is run when others are in its way. Each time one of them has gone on, so more than a
/// few mean that something is wrong with the work.
const PHASE_TRIES_MAX: u32 = 8;
