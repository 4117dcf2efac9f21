//! `transact`: a handler's work and the end of its record in one transaction, which runs again after a serialization
//! failure.
//!
//! The work gets the transaction by value, as a [`TxHandle`] that gives it back when it is dropped. A parameter by
//! reference would need `for<'t> AsyncFnMut(&'t mut …)`, and the compiler can't prove that the future of such a
//! closure is `Send`, which an axum handler must be.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use ibid_core::effect::NewEffect;
use ibid_core::response::Response;
use ibid_core::scope::RecordId;
use ibid_core::sql::{Database, OwnedTx};
use parking_lot::Mutex;

use super::{AttemptTx, DriverTx, TxError};
use crate::attempt::Attempt;
use crate::backoff::Backoff;

/// The result of `transact`. An axum handler can return it.
pub type TxResult = Result<TxResponse, TxError>;

/// A committed transaction, or one that was rolled back because of its response.
///
/// The layer sends what is stored. It sends the response in here only if nothing is stored, that is, if the policy
/// releases the key after a response of this status.
#[derive(Clone, Debug)]
#[must_use = "return it from the handler, so that a response that is not stored reaches the client"]
pub struct TxResponse {
    response: Option<Response>,
}

impl TxResponse {
    /// The response of the work. None if an effect owes it, or if the request had one already and the work did not run.
    pub fn response(&self) -> Option<&Response> {
        self.response.as_ref()
    }

    /// The layer knows the response already.
    #[cfg(feature = "http")]
    pub(crate) fn known_to_layer() -> TxResponse {
        TxResponse { response: None }
    }

    #[cfg(feature = "axum")]
    pub(crate) fn into_inner(self) -> Option<Response> {
        self.response
    }
}

/// The way in which the work of a transaction completes its record. A [`Response`] converts into it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Completion {
    /// The response of the work itself.
    Response(Response),
    /// The response of an effect that the work enqueued with [`NewEffect::owing`].
    Owed,
}

impl From<Response> for Completion {
    fn from(response: Response) -> Completion {
        Completion::Response(response)
    }
}

impl Attempt {
    /// Runs `work` and completes the record in one transaction of `database`.
    ///
    /// The response that `work` returns is stored in the same commit as its rows and effects. A response with a status
    /// of 400 and above rolls the work back; it is stored, or the key is released, as the policy says. So does an
    /// error, and then nothing is stored.
    ///
    /// **`work` may run several times**, each time in a new transaction after the last one was rolled back: if another
    /// transaction was in the way ([`TxError::is_retryable`]) of a statement or of the commit, it runs again after a short
    /// pause, up to eight times in all. So calls to other services don't belong into it: [enqueue](TxHandle::enqueue) an
    /// effect instead.
    ///
    /// ```
    /// # use ibid::{Response, outbox::NewEffect};
    /// # use ibid::transaction::{TxResult, rusqlite::Rusqlite};
    /// # async fn pay(mut attempt: ibid::Attempt, db: Rusqlite) -> TxResult {
    /// attempt
    ///     .transact(&db, async |mut tx| {
    ///         tx.conn().execute("insert into payment (id, status) values ('p1', 'pending')", [])?;
    ///         tx.enqueue(NewEffect::new("charge", "charge", "p1").repeatable()).await?;
    ///         Ok(Response::plain(201, "text/plain", "p1".to_owned()))
    ///     })
    ///     .await
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the error of `work`, or why the transaction could not begin or commit. Nothing is stored then, except after
    /// [`TxError::CommitUnknown`].
    ///
    /// # Cancel safety
    ///
    /// Dropped before the commit was sent, the transaction is rolled back, and the attempt can run another one. Dropped later, the
    /// commit may have happened.
    pub async fn transact<D, R, W, F>(&mut self, database: &D, mut work: W) -> TxResult
    where
        D: Database,
        R: Into<Completion>,
        W: FnMut(TxHandle<D::Tx>) -> F,
        F: Future<Output = Result<R, TxError>>,
    {
        self.begin_work();
        let mut runs = RunLimit::new();
        loop {
            let run = async {
                let inside = self.join_tx_owned(database.begin().await?).await?;
                let (inside, completion) = inside.run(&mut work, TxError::from).await?;
                inside.held_by(self).complete(completion.into()).await
            };
            match run.await {
                Err(error) => runs.pause_after(error).await?,
                done => return done,
            }
        }
    }
}

impl<T: OwnedTx> AttemptTx<'static, T> {
    /// Runs `work` in the transaction. After an error the transaction is rolled back, and the error is `wrap`ped.
    pub(crate) async fn run<R, E, X, W, F>(
        self,
        work: &mut W,
        wrap: impl FnOnce(E) -> X,
    ) -> Result<(AttemptTx<'static, T>, R), X>
    where
        X: From<TxError>,
        W: FnMut(TxHandle<T>) -> F,
        F: Future<Output = Result<R, E>>,
    {
        let returned = Arc::new(Mutex::new(None));
        let done = work(TxHandle { inside: Some(self), returned: returned.clone() }).await;
        let inside = returned.lock().take();
        match (done, inside) {
            (Ok(result), Some(inside)) => Ok((inside, result)),
            // The work has put its handle elsewhere, and may still use the transaction there.
            (Ok(_), None) => Err(TxError::Ended.into()),
            (Err(error), None) => Err(wrap(error)),
            (Err(error), Some(mut inside)) => {
                inside.roll_back().await;
                Err(wrap(error))
            }
        }
    }
}

impl<T: OwnedTx> AttemptTx<'_, T> {
    pub(crate) async fn complete(self, completion: Completion) -> TxResult {
        let response = match completion {
            Completion::Response(response) => {
                let _ = self.finish(response.clone()).await?;
                Some(response)
            }
            Completion::Owed => {
                let _ = self.owe().await?;
                None
            }
        };
        Ok(TxResponse { response })
    }
}

/// The transaction as the work of a `transact` or of a phase sees it: for the work's statements and effects. ibid commits
/// it.
///
/// It derefs to the adapter's transaction, for code that is generic over drivers.
pub struct TxHandle<T: OwnedTx> {
    /// None only while it is dropped.
    inside: Option<AttemptTx<'static, T>>,
    /// Takes the transaction when the handle is dropped.
    returned: Arc<Mutex<Option<AttemptTx<'static, T>>>>,
}

impl<T: OwnedTx> TxHandle<T> {
    /// Returns the driver's connection, to run statements on: `query.execute(tx.conn())`.
    pub fn conn(&mut self) -> T::Conn<'_>
    where
        T: DriverTx,
    {
        self.open_tx_mut().conn()
    }

    /// Puts an effect into the outbox. A worker carries it out once the transaction has committed.
    ///
    /// # Errors
    ///
    /// Fails with [`TxError::EffectExists`] if the record has an effect of this name, with [`TxError::InvalidEffect`] if its
    /// name, kind or aggregate can't be stored, and otherwise with the error of the statement.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: the effect may be in the transaction or not. Return an error, so that it is rolled back.
    pub async fn enqueue(&mut self, effect: NewEffect) -> Result<(), TxError> {
        self.open_tx_mut().enqueue(effect).await
    }

    /// Returns the number of this attempt of the request, from 1.
    pub fn number(&self) -> u32 {
        self.open_tx().number()
    }

    /// Returns the record's id in the store, for a foreign key of the work's own rows.
    pub fn record_id(&self) -> RecordId {
        self.open_tx().record_id()
    }

    fn open_tx(&self) -> &AttemptTx<'static, T> {
        self.inside.as_ref().expect(UNTIL_DROPPED)
    }

    fn open_tx_mut(&mut self) -> &mut AttemptTx<'static, T> {
        self.inside.as_mut().expect(UNTIL_DROPPED)
    }
}

impl<T: OwnedTx> Deref for TxHandle<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.open_tx()
    }
}

impl<T: OwnedTx> DerefMut for TxHandle<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.open_tx_mut()
    }
}

impl<T: OwnedTx> Drop for TxHandle<T> {
    fn drop(&mut self) {
        *self.returned.lock() = self.inside.take();
    }
}

impl<T: OwnedTx> std::fmt::Debug for TxHandle<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TxHandle").field("record", &self.record_id()).finish_non_exhaustive()
    }
}

/// Counts the runs of one transaction and pauses between them.
pub(crate) struct RunLimit {
    left: u32,
    backoff: Backoff,
}

impl RunLimit {
    pub(crate) fn new() -> RunLimit {
        RunLimit { left: RUNS_MAX, backoff: Backoff::new(PAUSE_MIN, PAUSE_MAX) }
    }

    /// Waits before the next run, or returns the error if there is none.
    pub(crate) async fn pause_after(&mut self, error: TxError) -> Result<(), TxError> {
        self.left -= 1;
        if self.left == 0 || !error.is_retryable() {
            return Err(error);
        }
        tokio::time::sleep(self.backoff.next()).await;
        Ok(())
    }
}

/// Limit on the runs of one transaction that others are in the way of.
///
/// With the pauses that is about half a second. Contention that lasts longer is no accident, and the client's own retry
/// is the better pause.
const RUNS_MAX: u32 = 8;

/// Longer than most transactions that could be in the way.
const PAUSE_MIN: Duration = Duration::from_millis(5);

/// So short that a client does not notice one pause.
const PAUSE_MAX: Duration = Duration::from_millis(160);

const UNTIL_DROPPED: &str = "the handle gives the transaction back only when it is dropped";
