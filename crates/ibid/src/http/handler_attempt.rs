//! The handler's access to its attempt: for handlers that finish in their own transaction or work in phases.
//!
//! The layer lends the attempt through the request's extensions and gets it back when the handler drops it. If the handler ended
//! it in a transaction, what that stored is the response; otherwise the handler's response ends it.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use http::Extensions;
use ibid_core::key::Key;
use ibid_core::machine::BeginRequest;
use ibid_core::scope::Tenant;
use ibid_core::sql::Database;
use parking_lot::Mutex;

use crate::attempt::Attempt;
use crate::ibid::Ibid;
use crate::outcome::{Begin, Outcome};
use crate::transaction::{AttemptTx, TxError};

/// The attempt of a guarded request, taken from the request's extensions by its handler. Dropping it gives it back to the layer.
pub struct HeldAttempt {
    attempt: Option<Attempt>,
    slot: AttemptSlot,
}

impl HeldAttempt {
    /// Takes the attempt of this request. `None` if the request is not behind the layer, or if the attempt was taken before.
    pub fn take(extensions: &Extensions) -> Option<HeldAttempt> {
        let slot = extensions.get::<AttemptSlot>()?.clone();
        let mut attempt = slot.take()?;
        // The handler has just started, and nothing was sent outside yet.
        attempt.mark_clean();
        Some(HeldAttempt { attempt: Some(attempt), slot })
    }
}

impl Deref for HeldAttempt {
    type Target = Attempt;

    fn deref(&self) -> &Attempt {
        self.attempt.as_ref().expect(UNTIL_DROPPED)
    }
}

impl DerefMut for HeldAttempt {
    fn deref_mut(&mut self) -> &mut Attempt {
        self.attempt.as_mut().expect(UNTIL_DROPPED)
    }
}

impl Drop for HeldAttempt {
    fn drop(&mut self) {
        if let Some(attempt) = self.attempt.take() {
            self.slot.put(attempt);
        }
    }
}

impl std::fmt::Debug for HeldAttempt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("HeldAttempt").field(&self.attempt).finish()
    }
}

/// The attempt of a run while its handler does not hold it.
#[derive(Clone, Debug)]
pub(super) struct AttemptSlot(Arc<Mutex<Option<Attempt>>>);

impl AttemptSlot {
    pub(super) fn new(attempt: Attempt) -> AttemptSlot {
        AttemptSlot(Arc::new(Mutex::new(Some(attempt))))
    }

    pub(super) fn take(&self) -> Option<Attempt> {
        self.0.lock().take()
    }

    fn put(&self, attempt: Attempt) {
        *self.0.lock() = Some(attempt);
    }
}

/// A guarded request whose key is not reserved yet: on a route where the handler reserves it in its own transaction.
#[derive(Clone)]
pub struct UnreservedRequest {
    ibid: Ibid,
    ask: BeginRequest,
    wait: Duration,
    outcome: Arc<Mutex<Option<HandlerOutcome>>>,
}

/// The outcome for a handler that reserves its key itself.
#[derive(Clone, Debug)]
pub(super) enum HandlerOutcome {
    /// The request does not run.
    Skipped(Outcome),
    /// The handler's transaction ended the attempt.
    Ended(Outcome),
}

/// A handler could not reserve its key, and has no transaction to run in.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// The request has an outcome already: completed, in flight, unknown or misused. The layer sends the response for it,
    /// whatever the handler returns.
    #[error("the request has its response already")]
    Answered,
    /// The transaction could not be opened, or the key could not be reserved in it.
    #[error(transparent)]
    Failed(TxError),
}

impl ReserveError {
    /// Returns whether another transaction was in the way. If so, run the whole transaction again.
    pub fn is_retryable(&self) -> bool {
        matches!(self, ReserveError::Failed(error) if error.is_retryable())
    }
}

/// Every error that makes a transaction fail, the driver's included.
impl<E> From<E> for ReserveError
where
    TxError: From<E>,
{
    fn from(error: E) -> ReserveError {
        ReserveError::Failed(error.into())
    }
}

impl UnreservedRequest {
    pub(super) fn new(ibid: Ibid, ask: BeginRequest, wait: Duration) -> UnreservedRequest {
        UnreservedRequest { ibid, ask, wait, outcome: Arc::new(Mutex::new(None)) }
    }

    /// The tenant that sent the request.
    pub fn tenant(&self) -> &Tenant {
        &self.ask.identity.tenant
    }

    /// The key of the request.
    pub fn key(&self) -> &Key {
        &self.ask.identity.key
    }

    /// Reserves the key as the first statement of a transaction, to be finished in it. The layer waits for its end.
    ///
    /// # Errors
    ///
    /// Fails with [`ReserveError::Answered`] if the request must not run, and with [`ReserveError::Failed`] if the transaction
    /// failed. Nothing is reserved then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future rolls its transaction back and leaves no reservation behind.
    pub async fn begin<D: Database>(
        &self,
        database: &D,
    ) -> Result<Box<AttemptTx<'static, D::Tx>>, ReserveError> {
        match self.ibid.begin_inside(self.ask.clone(), database, self.wait).await? {
            Begin::Run(mut inside) => {
                let cell = self.outcome.clone();
                inside.on_end(move |outcome| set(&cell, HandlerOutcome::Ended(outcome.clone())));
                Ok(inside)
            }
            Begin::Skip(outcome) => {
                set(&self.outcome, HandlerOutcome::Skipped(outcome));
                Err(ReserveError::Answered)
            }
        }
    }

    pub(super) fn outcome(&self) -> Option<HandlerOutcome> {
        self.outcome.lock().clone()
    }
}

impl std::fmt::Debug for UnreservedRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UnreservedRequest").field("ask", &self.ask).finish_non_exhaustive()
    }
}

fn set(cell: &Mutex<Option<HandlerOutcome>>, outcome: HandlerOutcome) {
    *cell.lock() = Some(outcome);
}

const UNTIL_DROPPED: &str = "the attempt is given back only when dropped";
