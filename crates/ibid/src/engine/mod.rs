//! The engine: load, decide, commit. It acts on a decision only after the decision's change has committed.
//!
//! It knows `ibid_core` and leaf modules (`backoff`, `random`, `telemetry`, `failpoint`, `identity`, `front`), and nothing of what
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
//! | `attempt_slots.rs` | Bounds live attempts. |
//! | `tenant_bound.rs` | A bound of the process of which one tenant may have half. |
//! | `background.rs`, `drain.rs` | Bounds writes that outlive their caller; counts what a shutdown waits for. |
//! | `cache.rs` | Caches completed records, bounded by bytes. |
//! | `shared_cache.rs` | Asks the cache that all nodes share, and fills it. |
//! | `breaker.rs` | Refuses new begins while the store does not answer. |
//! | `lease_keeper.rs` | Renews the leases of all live attempts, many in one call. |
//! | `readiness.rs` | Checks that the store takes writes, for orchestrators. |
//! | `clock_watch.rs` | Delays takeovers after a start, a clock jump or an outage. |
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
mod shared_cache;
mod start;
mod tenant_bound;
mod wait;
mod waiters;

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use ibid_core::change::{LoadedBody, StoredRecord};
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
use tokio::time::{Instant, timeout};

pub use duplicate_rate::TenantRate;
pub use readiness::NotReadyError;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub(crate) use registered_secrets::SETTING as SECRETS_SETTING;
pub use retry_after::UnavailableError;
pub(crate) use start::BecameUnknown;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub(crate) use start::SECRET_SETTING;
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
pub(crate) use tenant_bound::{TenantBound, TenantPermit};

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

use crate::front::SharedCache;
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
    front: Option<Arc<dyn SharedCache>>,
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
#[non_exhaustive]
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
        self.share(&record, &response, now);
        self.notify_waiters(&record.id);
        StoredResponse { record, response }
    }

    /// Drops a record from the caches, because an operator has written it.
    pub(crate) fn forget(&self, id: &RecordId) {
        self.cache.forget(id);
        if let Some(front) = &self.front {
            front.remove(*id);
        }
    }

    /// Wakes the requests of this process that wait for a record.
    pub(crate) fn notify_waiters(&self, id: &RecordId) {
        self.waiters.notify(id);
    }

    /// Runs `work` until `deadline`. Returns `None` if it has not ended by then.
    pub(crate) async fn within<F: Future>(&self, deadline: Instant, work: F) -> Option<F::Output> {
        self.deadlines.within(Some(deadline), work).await
    }

    /// Runs a read of a chore for at most [`CHORE_READ_MAX`].
    pub(crate) async fn read_for_chore<T>(
        &self,
        op: &'static str,
        read: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.read(op, CHORE_READ_MAX, read).await
    }

    /// Runs a read of the store for at most `patience`. Every read has a deadline: a store that is frozen, but whose machine
    /// acknowledges, would otherwise hold a client or a chore for as long as it likes.
    async fn read<T>(
        &self,
        op: &'static str,
        patience: Duration,
        read: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let read = self.within(Instant::now() + patience, read).await;
        read.unwrap_or_else(|| Err(no_reply(&*self.store, op)))
    }

    /// Loads one record from the store, for at most `begin_timeout`.
    pub(crate) async fn load(&self, id: RecordId) -> Result<Option<StoredRecord>, StoreError> {
        let at = Instant::now();
        let loaded = self.read("load", self.begin_timeout, self.store.load(id)).await;
        let loaded = loaded.inspect_err(|error| self.count_error(error))?;
        if let Some(stored) = &loaded {
            self.observe_read(at, stored.now);
        }
        Ok(loaded)
    }

    /// Loads the bodies of one generation of a record. They may be large, so it takes as long as a begin or a finish may.
    pub(crate) async fn bodies(&self, id: RecordId, birth: Nonce) -> Result<Vec<LoadedBody>, StoreError> {
        let bodies = self.store.require_bodies()?.bodies(id, birth);
        let timeout = self.finish_wait.max(self.begin_timeout);
        self.read("read bodies", timeout, bodies).await.inspect_err(|error| self.count_error(error))
    }

    /// Loads several records, in the order of their ids, a few at once.
    pub(crate) async fn load_all(&self, ids: Vec<RecordId>) -> Result<Vec<Option<StoredRecord>>, StoreError> {
        stream::iter(ids).map(|id| self.load(id)).buffered(LOADS_AT_ONCE).try_collect().await
    }

    /// Loads a page of records in `state` whose due time has passed, for at most [`CHORE_READ_MAX`]. Upkeep may be the first to
    /// see that the clock has jumped.
    pub(crate) async fn due(
        &self,
        state: State,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Page<StoredRecord>, StoreError> {
        let at = Instant::now();
        let due = read_due(&*self.store, state, after, limit).await;
        let due = due.inspect_err(|error| self.watch_error(error))?;
        if let Some(first) = due.items.first() {
            self.observe_read(at, first.now);
        }
        Ok(due)
    }

    /// Returns the largest difference between the clocks of two nodes; zero if the store has one clock.
    pub(crate) fn skew_max(&self) -> Duration {
        self.store.facts().clock.skew_max()
    }

    /// Notes the time of a read. It is behind that of a write by the largest difference between two nodes.
    fn observe_read(&self, at: Instant, now: Timestamp) {
        self.clock.observe(at, Instant::now(), now.after(self.skew_max()));
    }

    /// Returns whether a lease ends later than its policy allows, whichever node gave it.
    ///
    /// The reading node is behind by `skew_max` on purpose, and the owner's clock may be ahead of it by as much.
    pub(crate) fn is_overlong(&self, stored: &StoredRecord) -> bool {
        let longest = stored.record.policy.lease + 2 * self.skew_max();
        stored.record.due_at.is_some_and(|due_at| due_at.since(stored.now) > longest)
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

/// Loads a page of records in `state` whose due time has passed, for at most [`CHORE_READ_MAX`].
pub(crate) async fn read_due(
    store: &dyn Store,
    state: State,
    after: Option<Cursor>,
    limit: u32,
) -> Result<Page<StoredRecord>, StoreError> {
    match timeout(CHORE_READ_MAX, store.due(state, after, limit)).await {
        Ok(due) => due,
        Err(_) => Err(no_reply(store, "find due records")),
    }
}

/// Returns the error of a call that the store did not answer in time.
pub(crate) fn no_reply(store: &dyn Store, op: &'static str) -> StoreError {
    StoreError::transient(store.facts().name, op, "no reply in time")
}

/// Records of one caller that are loaded at once: all ids of a request, and of the evidence chore no more than leave the store's
/// connections to requests.
const LOADS_AT_ONCE: usize = 4;

/// Longest read of a chore. The stores bound a slow read themselves and sooner; this is for one that does not answer at all.
const CHORE_READ_MAX: Duration = Duration::from_secs(30);
