//! The Attempt in a handler's own hands: for handlers that finish inside their transaction or work in Phases.
//!
//! The guard lends it out. Whatever the handler does with it, it comes back: ended inside a transaction, and then that is
//! the answer; or not, and then the handler's answer ends it as usual.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::Extensions;
use ibid_core::key::Key;
use ibid_core::machine::Ask;
use ibid_core::scope::Tenant;
use ibid_core::sql::Database;

use crate::attempt::{Attempt, Finished};
use crate::ibid::{Begun, Ibid};
use crate::transaction::{BegunInside, Inside, TxError};

/// The Attempt of a guarded request, taken out of the request's extensions by its handler. Given back when dropped.
pub struct Held {
    attempt: Option<Attempt>,
    slot: Slot,
}

impl Held {
    /// The Attempt of this request; none without a guard, or if somebody took it already.
    pub fn take(extensions: &Extensions) -> Option<Held> {
        let slot = extensions.get::<Slot>()?.clone();
        let mut attempt = slot.take()?;
        // What the handler has sent so far is its own business; it has just begun.
        attempt.conceal();
        Some(Held { attempt: Some(attempt), slot })
    }
}

impl Deref for Held {
    type Target = Attempt;

    fn deref(&self) -> &Attempt {
        self.attempt.as_ref().expect(UNTIL_DROPPED)
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut Attempt {
        self.attempt.as_mut().expect(UNTIL_DROPPED)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(attempt) = self.attempt.take() {
            self.slot.put(attempt);
        }
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Held").field(&self.attempt).finish()
    }
}

/// Where the Attempt is while nobody holds it.
#[derive(Clone, Debug)]
pub(super) struct Slot(Arc<Mutex<Option<Attempt>>>);

impl Slot {
    pub(super) fn new(attempt: Attempt) -> Slot {
        Slot(Arc::new(Mutex::new(Some(attempt))))
    }

    pub(super) fn take(&self) -> Option<Attempt> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn put(&self, attempt: Attempt) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(attempt);
    }
}

/// A guarded request on a route that is reserved inside the handler's own transaction: nothing is reserved yet.
#[derive(Clone)]
pub struct Unbegun {
    pub(super) ibid: Ibid,
    pub(super) ask: Ask,
    pub(super) wait: Duration,
    pub(super) told: Arc<Mutex<Option<Told>>>,
}

/// What the guard is to answer with.
#[derive(Clone, Debug)]
pub(super) enum Told {
    Begun(Arc<Begun>),
    Finished(Finished),
}

/// The request has its answer already; the guard gives it, whatever the handler returns.
#[derive(Debug, thiserror::Error)]
pub enum NotRun {
    /// It was here before: replayed, in flight, unknown or misused.
    #[error("the request has its answer already")]
    Answered,
    /// The transaction could not be opened or the key not be reserved in it.
    #[error(transparent)]
    Failed(TxError),
}

impl NotRun {
    /// Whether another transaction was in the way: run the whole of it again.
    pub fn is_again(&self) -> bool {
        matches!(self, NotRun::Failed(error) if error.is_again())
    }
}

/// Whatever makes a transaction fail, the errors of the driver among it.
impl<E> From<E> for NotRun
where
    TxError: From<E>,
{
    fn from(error: E) -> NotRun {
        NotRun::Failed(error.into())
    }
}

impl Unbegun {
    /// Whose request it is.
    pub fn tenant(&self) -> &Tenant {
        &self.ask.identity.tenant
    }

    /// Its key.
    pub fn key(&self) -> &Key {
        &self.ask.identity.key
    }

    /// Reserves the key as the first statement of a transaction, to be finished in it. The guard waits for it to end.
    pub async fn begin<D: Database>(&self, database: &D) -> Result<Box<Inside<'static, D::Tx>>, NotRun> {
        match self.ibid.begin_inside(self.ask.clone(), database, self.wait).await? {
            BegunInside::Run(mut inside) => {
                let told = self.told.clone();
                inside.when_ended(move |finished| tell(&told, Told::Finished(finished.clone())));
                Ok(inside)
            }
            BegunInside::Already(begun) => {
                tell(&self.told, Told::Begun(Arc::new(begun)));
                Err(NotRun::Answered)
            }
        }
    }

    pub(super) fn told(&self) -> Option<Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl std::fmt::Debug for Unbegun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unbegun").field("ask", &self.ask).finish_non_exhaustive()
    }
}

fn tell(told: &Mutex<Option<Told>>, what: Told) {
    *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(what);
}

const UNTIL_DROPPED: &str = "it is given back only when dropped";
