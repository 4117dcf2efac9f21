//! Waiting for an attempt to end: a notification from this process, or a poll of the store for the results of other
//! nodes. It never runs anything.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use ibid_core::machine::{BeginRequest, Intent};
use ibid_core::scope::RecordId;
#[cfg(feature = "http")]
use ibid_core::{change::StoredRecord, scope::Tenant, store::StoreError};
use tokio::time::Instant;

use super::begin::DecidedRequest;
use super::previous_identity::ResolvedId;
use super::waiters::Waiter;
use super::{Engine, UnavailableError};
use crate::backoff::Backoff;

impl Engine {
    /// Looks again and again until a result is final or `until` has passed, and returns the last result.
    ///
    /// While the store answers, the last look starts at `until` and may take `begin_timeout`. While it hangs, the wait ends at
    /// `until`, or after `begin_timeout` if that is later, so that one look can be answered. A look that gets no reply by then
    /// counts as `no_reply`.
    pub(crate) async fn wait_until<T, E, F: Future<Output = Result<T, E>>>(
        &self,
        waiter: &Waiter,
        until: Instant,
        look: impl Fn() -> F,
        no_reply: impl Fn() -> E,
        is_final: impl Fn(&Result<T, E>) -> bool,
    ) -> Result<T, E> {
        let mut deadline = until.max(Instant::now() + self.begin_timeout);
        let mut backoff = Backoff::new(POLL_MIN, POLL_MAX);
        loop {
            // Registered before the look, so that an end which comes in between is not missed.
            let mut changed = pin!(waiter.changed.notified());
            changed.as_mut().enable();
            let looked = self.within(deadline, look()).await.unwrap_or_else(|| Err(no_reply()));
            let now = Instant::now();
            if now >= until || is_final(&looked) {
                return looked;
            }
            if looked.is_ok() {
                deadline = until + self.begin_timeout;
            }
            // Other nodes don't notify this process, so every pause ends with a look at the store.
            let _ = tokio::time::timeout(backoff.next().min(until - now), changed).await;
        }
    }

    /// Returns what the store holds for a request that never runs.
    pub(crate) async fn look(
        self: &Arc<Self>,
        ask: &Arc<BeginRequest>,
    ) -> Result<DecidedRequest, UnavailableError> {
        let at = Instant::now();
        if ask.previous.is_empty() {
            let loaded = self.load(ask.id).await.map_err(|_| UnavailableError::no_reply())?;
            return self.decide(ask, Intent::ReadOnly, loaded, at).await;
        }
        match self.resolve_id_to_read(ask, at + self.begin_timeout).await? {
            ResolvedId::Current(loaded) => self.decide(ask, Intent::ReadOnly, loaded, at).await,
            ResolvedId::Previous(under, stored) => {
                self.decide(&under, Intent::ReadOnly, Some(stored), at).await
            }
        }
    }

    /// Returns the id under which the request runs, if it does: its attempt notifies waiters under that id.
    pub(crate) async fn running_id(&self, ask: &Arc<BeginRequest>) -> Result<RecordId, UnavailableError> {
        if ask.previous.is_empty() {
            return Ok(ask.id);
        }
        match self.resolve_id_to_read(ask, Instant::now() + self.begin_timeout).await? {
            ResolvedId::Current(_) => Ok(ask.id),
            ResolvedId::Previous(under, _) => Ok(under.id),
        }
    }

    /// Waits, read-only, until no attempt runs a record and none will, for at most `up_to`, and returns what is stored then.
    #[cfg(feature = "http")]
    pub(crate) async fn watch(
        &self,
        id: RecordId,
        tenant: &Tenant,
        up_to: Duration,
    ) -> Result<Option<StoredRecord>, StoreError> {
        let until = Instant::now() + up_to;
        // Bounded like waiting duplicates: past the bound the record is returned as it is.
        let waiter = (!up_to.is_zero()).then(|| self.waiters.enter(id, tenant)).flatten();
        let Some(waiter) = waiter else { return self.load(id).await };
        let is_open =
            |stored: &StoredRecord| stored.record.identity.tenant == *tenant && stored.record.state.is_open();
        let is_final = |loaded: &Result<Option<StoredRecord>, StoreError>| match loaded {
            Ok(stored) => !stored.as_ref().is_some_and(is_open),
            Err(_) => true,
        };
        let no_reply = || super::no_reply(&*self.store, "load");
        self.wait_until(&waiter, until, || self.load(id), no_reply, is_final).await
    }
}

/// First pause of a waiter before it polls the store for what another node may have done.
const POLL_MIN: Duration = Duration::from_millis(50);

/// Longest pause between polls: how much longer than needed a client may wait for another node's result.
const POLL_MAX: Duration = Duration::from_millis(500);
