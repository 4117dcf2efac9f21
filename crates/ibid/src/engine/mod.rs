//! The engine: load, decide, commit. It acts on a decision only after the decision's change has committed.
//!
//! It knows `ibid_core` and leaf modules (`backoff`, `random`, `telemetry`, `failpoint`, `identity`), and nothing of what
//! is built on it: HTTP, transactions, the outbox, upkeep. It never chooses a state: `ibid_core::machine` does.
//! [`Ibid`](crate::Ibid) is the handle that joins the engine with the modules above it.
//!
//! | file | responsibility |
//! | --- | --- |
//! | `begin.rs` | The begin loop: decide, commit, decide again after a lost race. |
//! | `begin_joins.rs` | Lets duplicates of a begin that is on its way wait for its result, and send nothing. |
//! | `commit.rs` | Retries a write until the store answers, or abandons what it rejects permanently. |
//! | `wait.rs`, `waiters.rs` | Wakes duplicates that wait in this process; polls the store for results of other nodes. |
//! | `detach.rs` | Runs `begin` and `finish` on the caller's task, and spawns the rest if the caller is dropped. |
//! | `attempt_slots.rs` | Counts live attempts, in all and per tenant. |
//! | `background.rs`, `drain.rs` | Bounds writes that outlive their caller; counts what a shutdown waits for. |
//! | `cache.rs` | Caches completed records, bounded by bytes. |
//! | `breaker.rs` | Refuses new begins while the store does not answer. |
//! | `lease_keeper.rs` | Renews the leases of all live attempts, many in one call. |
//! | `readiness.rs` | Checks that the store takes writes, for orchestrators. |
//! | `clock_watch.rs` | Delays takeovers after a clock jump or an outage. |
//! | `identity_watch.rs`, `previous_identity.rs` | Confirms the store's identity; finds records of previous ones. |
//! | `retry_after.rs`, `deadlines.rs`, `duplicate_rate.rs` | `Retry-After` estimates; one timer for all deadlines; duplicates per tenant. |

mod attempt_slots;
mod background;
mod begin;
mod begin_joins;
mod breaker;
mod cache;
mod clock_watch;
mod commit;
mod deadlines;
mod detach;
mod drain;
mod duplicate_rate;
mod identity_watch;
mod lease_keeper;
mod previous_identity;
mod readiness;
mod registered_secrets;
mod retry_after;
mod start;
mod wait;
mod waiters;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use ibid_core::change::StoredRecord;
use ibid_core::fingerprint::{RequestView, Secrets};
use ibid_core::machine::BeginRequest;
use ibid_core::policy::Policy;
use ibid_core::record::{Nonce, Record, State};
use ibid_core::response::{Response, SavedResponse};
use ibid_core::scope::{Identity, RecordId};
use ibid_core::store::{Cursor, Page, RenewOutcome, Store, StoreError};
use ibid_core::time::Timestamp;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::Instant;

pub use duplicate_rate::TenantRate;
pub use readiness::NotReadyError;
pub use retry_after::UnavailableError;
pub(crate) use start::BecameUnknown;
pub use start::{Settings, StartError};

pub(crate) use attempt_slots::AttemptPermit;
pub(crate) use begin::DecidedRequest;
pub(crate) use breaker::Pass;
pub(crate) use commit::{GiveUp, Settlement, apply_change, count_lapses, still_owns};
pub(crate) use detach::run_to_completion;
pub(crate) use duplicate_rate::Arrival;
pub(crate) use lease_keeper::LeasedAt;
pub(crate) use previous_identity::ResolvedId;
pub(crate) use retry_after::{RETRY_AFTER_MIN, retry_after_for_duplicate};

use attempt_slots::AttemptSlots;
use background::BackgroundWrites;
use begin_joins::BeginJoins;
use breaker::Breaker;
use cache::Cache;
use clock_watch::ClockWatch;
use deadlines::Deadlines;
use drain::Drain;
use duplicate_rate::DuplicateRates;
use identity_watch::IdentityWatch;
use lease_keeper::LeaseKeeper;
use readiness::Readiness;
use waiters::Waiters;

use crate::random::Nonces;

/// The parts of a started engine, shared by all handles.
pub(crate) struct Engine {
    /// The runtime that the engine was started in. Work whose caller was dropped continues there.
    pub(crate) runtime: Handle,
    pub(crate) store: Arc<dyn Store>,
    secrets: Arc<Secrets>,
    pub(crate) identity: IdentityWatch,
    begin_joins: BeginJoins,
    pub(crate) cache: Cache,
    pub(crate) waiters: Waiters,
    pub(crate) breaker: Breaker,
    readiness: Readiness,
    clock: ClockWatch,
    pub(crate) leases: LeaseKeeper,
    pub(crate) deadlines: Deadlines,
    nonces: Nonces,
    pub(crate) begin_timeout: Duration,
    pub(crate) finish_wait: Duration,
    pub(crate) attempt_slots: AttemptSlots,
    pub(crate) duplicates: DuplicateRates,
    pub(crate) background: BackgroundWrites,
    pub(crate) drain: Drain,
    /// Records that were just written as `unknown`. The receiver looks for evidence that arrived before.
    became_unknown: mpsc::Sender<RecordId>,
}

/// A stored response and its record.
#[derive(Clone, Debug)]
pub struct StoredResponse {
    /// The completed record of the response.
    pub record: Arc<Record>,
    /// The response that retries get.
    pub response: Arc<Response>,
}

impl Engine {
    /// Prepares a request. Its nonce is drawn by each begin and each wait ([`Engine::with_fresh_nonce`]).
    pub(crate) fn ask(
        &self,
        identity: Identity,
        policy: Arc<Policy>,
        asked: Arc<dyn RequestView>,
    ) -> BeginRequest {
        BeginRequest::new(identity, policy, self.secrets.clone(), asked, Nonce(0))
    }

    /// Caches the response of a completed record. Returns `None` if there is no response, or it is sealed.
    ///
    /// `read_at` is from before the record was read, so that its age is never taken for less than it is.
    pub(crate) fn replay(&self, stored: StoredRecord, read_at: Instant) -> Option<StoredResponse> {
        let response = match stored.response? {
            SavedResponse::Plain(response) => response,
            SavedResponse::Sealed { key_id, .. } => {
                tracing::error!(record = %stored.record.id.short(), key_id, "stored response is encrypted under a key that this process does not have");
                return None;
            }
        };
        let record = stored.record;
        self.cache.put(&record, &response, read_at, stored.now);
        Some(StoredResponse { record, response })
    }

    /// Caches a record that this process has just completed, and wakes its waiters.
    pub(crate) fn remember(
        &self,
        record: Arc<Record>,
        response: Arc<Response>,
        read_at: Instant,
        now: Timestamp,
    ) -> StoredResponse {
        self.cache.put(&record, &response, read_at, now);
        self.notify_waiters(&record.id);
        StoredResponse { record, response }
    }

    /// Drops a record from the cache, because an operator has written it.
    pub(crate) fn forget(&self, id: &RecordId) {
        self.cache.forget(id);
    }

    /// Wakes the requests of this process that wait for a record.
    pub(crate) fn notify_waiters(&self, id: &RecordId) {
        self.waiters.notify(id);
    }

    /// Loads one record from the store.
    pub(crate) async fn load(&self, id: RecordId) -> Result<Option<StoredRecord>, StoreError> {
        let at = Instant::now();
        let loaded = self.store.load(id).await.inspect_err(|error| self.count_error(error))?;
        if let Some(stored) = &loaded {
            self.clock.observe(at, Instant::now(), stored.now);
        }
        Ok(loaded)
    }

    /// Loads several records, in the order of their ids.
    pub(crate) async fn load_all(&self, ids: Vec<RecordId>) -> Result<Vec<Option<StoredRecord>>, StoreError> {
        try_join_all(ids.into_iter().map(|id| self.load(id))).await
    }

    /// Loads a page of records in `state` whose due time has passed. Upkeep may be the first to see that the clock has jumped.
    pub(crate) async fn due(
        &self,
        state: State,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Page<StoredRecord>, StoreError> {
        let at = Instant::now();
        let due = self.store.due(state, after, limit).await.inspect_err(|error| self.watch_error(error))?;
        if let Some(first) = due.items.first() {
            self.clock.observe(at, Instant::now(), first.now);
        }
        Ok(due)
    }

    /// Renews one lease now, for an attempt that waits for it. Returns `None` if the store did not answer.
    pub(crate) async fn renew(&self, record: &Record) -> Option<RenewOutcome> {
        let renewed = self.store.renew(vec![(record.id, record.version)]).await;
        renewed.inspect_err(|error| self.count_error(error)).ok()?.pop()
    }

    /// Waits until no begin is in flight, no attempt lives and no background write is left. The caller bounds the wait.
    pub(crate) async fn wait_until_drained(&self) {
        self.drain.wait_until_empty().await;
    }
}
