//! The handle that users hold: it joins the engine with the state of the modules above it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use ibid_core::change::StoredRecord;
use ibid_core::fingerprint::RequestView;
use ibid_core::machine::{self, BeginRequest, Decision, Event, Intent, Verdict};
use ibid_core::policy::Policy;
use ibid_core::scope::{Identity, Tenant};
use ibid_core::store::Store;
use ibid_core::time::Timestamp;
use tokio::time::Instant;

use crate::attempt::Attempt;
use crate::engine::{
    Arrival, BecameUnknown, DecidedRequest, Engine, NotReadyError, RETRY_AFTER_MIN, Settings, StartError,
    TenantRate, UnavailableError, retry_after_for_duplicate, run_to_completion,
};
use crate::evidence;
use crate::identity::IdentitySetting;
use crate::outbox::OutboxState;
use crate::outcome::{Begin, Outcome};
use crate::telemetry;
use crate::transaction::reserve_queue::ReserveQueue;
use crate::upkeep::UpkeepState;

/// Makes retries safe: reserves keys in a store, lets one attempt run, and keeps its response. Cheap to clone.
#[derive(Clone)]
pub struct Ibid {
    shared: Arc<IbidState>,
}

/// The state of one process on one store. Each module owns its part.
pub(crate) struct IbidState {
    engine: Arc<Engine>,
    outbox: OutboxState,
    upkeep: UpkeepState,
    /// Keys that are being reserved inside callers' transactions.
    reserve_queue: ReserveQueue,
}

impl Ibid {
    /// Starts on a store: agrees with it on the identity and the fingerprint secret.
    ///
    /// # Errors
    ///
    /// Returns an error if the store does not answer, or if it was used with another identity or an unknown secret.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped midway, the store may have this process's secret, secret ids and identity, in this order,
    /// but nothing runs. The next start agrees with them; if its settings differ from those, it fails like any process with
    /// other settings.
    pub async fn start(store: Arc<dyn Store>, settings: Settings) -> Result<Ibid, StartError> {
        let reserve_queue = ReserveQueue::new(settings.reserve_tries_max);
        let (engine, became_unknown) = Engine::start(store, settings).await?;
        Ok(Ibid::join(engine, became_unknown, reserve_queue))
    }

    /// Starts for upkeep chores only, on an operator's command. It begins nothing, so it need not agree with the store on
    /// identity and secrets, and ignores the settings about requests.
    #[doc(hidden)]
    pub fn for_upkeep(store: Arc<dyn Store>, settings: Settings) -> Ibid {
        let reserve_queue = ReserveQueue::new(settings.reserve_tries_max);
        let (engine, became_unknown) = Engine::for_upkeep(store, settings);
        Ibid::join(engine, became_unknown, reserve_queue)
    }

    fn join(engine: Arc<Engine>, became_unknown: BecameUnknown, reserve_queue: ReserveQueue) -> Ibid {
        let shared = Arc::new(IbidState {
            engine,
            outbox: OutboxState::default(),
            upkeep: UpkeepState::default(),
            reserve_queue,
        });
        tokio::spawn(evidence::settle_doubts(Arc::downgrade(&shared), became_unknown));
        Ibid { shared }
    }

    /// Returns the handle for shared state, unless the last handle was dropped.
    pub(crate) fn upgrade(shared: &Weak<IbidState>) -> Option<Ibid> {
        Some(Ibid { shared: shared.upgrade()? })
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.shared.engine
    }

    pub(crate) fn outbox(&self) -> &OutboxState {
        &self.shared.outbox
    }

    pub(crate) fn upkeep(&self) -> &UpkeepState {
        &self.shared.upkeep
    }

    pub(crate) fn reserve_queue(&self) -> &ReserveQueue {
        &self.shared.reserve_queue
    }

    /// Returns the store underneath.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.engine().store
    }

    /// Prepares a request for [`begin`](Ibid::begin) or [`wait`](Ibid::wait), under `policy`.
    pub fn ask(&self, identity: Identity, policy: Arc<Policy>, asked: Arc<dyn RequestView>) -> BeginRequest {
        self.engine().ask(identity, policy, asked)
    }

    /// Reserves the key durably before any work, or returns the outcome because of which the request does not run.
    ///
    /// # Errors
    ///
    /// Returns [`UnavailableError`] if the store did not answer in time. Nothing was executed then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves no reservation behind.
    pub async fn begin(&self, ask: BeginRequest) -> Result<Begin, UnavailableError> {
        if let Some(outcome) = self.replay_cached(&ask) {
            return Ok(Begin::Skip(outcome));
        }
        let mut begin = self.begin_uncached(self.engine().with_fresh_nonce(ask)).await?;
        if let Begin::Run(attempt) = &mut begin {
            attempt.hand_over();
        }
        Ok(begin)
    }

    /// Answers a request from this process's cache, and counts it. Returns `None` if the store has to be asked
    /// ([`Ibid::begin_uncached`]).
    pub(crate) fn replay_cached(&self, ask: &BeginRequest) -> Option<Outcome> {
        let outcome = self.find_cached(ask)?;
        self.count_request(&ask.identity.tenant, outcome.arrival(), Instant::now());
        Some(outcome)
    }

    /// Like [`Ibid::begin`], but for a request that is not in the cache, and for callers that call [`Attempt::ensure_lease`] before they
    /// do anything with an attempt. `ask` has a fresh nonce.
    pub(crate) async fn begin_uncached(&self, ask: Arc<BeginRequest>) -> Result<Begin, UnavailableError> {
        let engine = self.engine();
        let (ibid, guard) = (self.clone(), engine.drain.track());
        // If the caller is gone by the end, the attempt is dropped, which releases the key.
        let completion = run_to_completion(&engine.runtime, async move {
            let started = Instant::now();
            let decided = ibid.engine().begin(&ask, started).await;
            let result = decided.map(|decided| ibid.to_caller_outcome(decided));
            if let Ok(begin) = &result {
                ibid.count_request(&ask.identity.tenant, begin.arrival(), started);
            }
            drop(guard);
            result
        });
        completion.await.unwrap_or(Err(UnavailableError::no_reply()))
    }

    /// Counts a request for the duplicate rate of its tenant.
    pub(crate) fn count_request(&self, tenant: &Tenant, arrival: Arrival, at: Instant) {
        self.engine().duplicates.count_request(tenant, arrival, at);
    }

    /// Returns what the cache holds for a request.
    pub(crate) fn find_cached(&self, ask: &BeginRequest) -> Option<Outcome> {
        match self.engine().find_cached(ask)? {
            (Decision::Replay, stored) => Some(Outcome::Completed(stored)),
            _ => Some(Outcome::Mismatch),
        }
    }

    /// Waits for the response of another attempt, for at most `up_to`. Never runs anything: the key may turn out
    /// [`Outcome::Released`], and then a new request may run.
    ///
    /// # Errors
    ///
    /// Returns [`UnavailableError`] if the store does not answer at the end of the wait. An outage within the wait is waited out.
    /// While the store hangs, the wait takes at most `begin_timeout` longer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future is safe: it only reads.
    pub async fn wait(&self, ask: BeginRequest, up_to: Duration) -> Result<Outcome, UnavailableError> {
        let engine = self.engine();
        let ask = engine.with_fresh_nonce(ask);
        let started = Instant::now();
        let running = engine.running_id(&ask).await?;
        let Some(waiter) = engine.waiters.enter(running, &ask.identity.tenant) else {
            // There are too many waiters. The client gets the same delay as if it had waited.
            return Ok(Outcome::InFlight { retry_in: up_to.max(RETRY_AFTER_MIN) });
        };
        let is_final = |looked: &Result<Outcome, UnavailableError>| match looked {
            Ok(outcome) => !matches!(outcome, Outcome::InFlight { .. } | Outcome::Accepted { .. }),
            Err(_) => false,
        };
        let look = || self.look(&ask);
        let waited =
            engine.wait_until(&waiter, started + up_to, look, UnavailableError::no_reply, is_final).await;
        telemetry::record_seconds(&telemetry::WAIT_TOOK, started.elapsed().as_secs_f64());
        waited
    }

    async fn look(&self, ask: &Arc<BeginRequest>) -> Result<Outcome, UnavailableError> {
        match self.find_cached(ask) {
            Some(outcome) => Ok(outcome),
            None => Ok(self.to_caller_outcome(self.engine().look(ask).await?).into_outcome()),
        }
    }

    /// Puts a decision into the caller's terms.
    pub(crate) fn to_caller_outcome(&self, decided: DecidedRequest) -> Begin {
        let DecidedRequest { ask, decision, stored, at, permit } = decided;
        let outcome = match (decision, stored) {
            (Decision::Run { after }, Some(stored)) => {
                let take = || self.engine().attempt_slots.take_beyond(&stored.record.identity.tenant);
                let permit = permit.unwrap_or_else(take);
                let attempt = Attempt::new(permit, self.clone(), ask, stored.record, after, at);
                return Begin::Run(Box::new(attempt));
            }
            (Decision::Accepted, _) => {
                self.upkeep().deliveries.wake();
                Outcome::Accepted { new: true }
            }
            (Decision::Replay, Some(stored)) => {
                let record = stored.record.clone();
                self.engine().replay(stored, at).map_or(Outcome::NotRetained(record), Outcome::Completed)
            }
            (Decision::NotRetained, Some(stored)) => Outcome::NotRetained(stored.record),
            (Decision::Wait { overlong }, Some(stored)) => {
                if overlong && self.engine().is_overlong(&stored) {
                    self.engine().leases.shorten(&stored.record);
                }
                match stored.record.flags.asynchronous {
                    true => Outcome::Accepted { new: false },
                    false => {
                        let retry_in = retry_after_for_duplicate(&stored.record, stored.now);
                        Outcome::InFlight { retry_in }
                    }
                }
            }
            (Decision::Unknown { until }, stored) => {
                let now = stored.map_or(Timestamp::default(), |stored| stored.now);
                Outcome::Unknown { settled_in: until.map(|until| until.since(now)) }
            }
            (Decision::Mismatch, _) => Outcome::Mismatch,
            (Decision::Expired, _) => Outcome::Expired,
            (Decision::Free, _) => Outcome::Released,
            _ => Outcome::InFlight { retry_in: RETRY_AFTER_MIN },
        };
        Begin::Skip(outcome)
    }

    /// Returns what is stored, as a duplicate would see it: for the client of an attempt whose finish was refused.
    pub(crate) fn current_outcome(
        &self,
        ask: &Arc<BeginRequest>,
        stored: StoredRecord,
        at: Instant,
    ) -> Outcome {
        let event = Event::Request { ask, role: Intent::ReadOnly };
        let decision = match machine::decide(Some(&stored.record), &event, stored.now) {
            Verdict::Keep(decision) | Verdict::Write(_, decision) => decision,
        };
        self.to_caller_outcome(DecidedRequest::without_run(ask, decision, Some(stored), at)).into_outcome()
    }

    /// Returns whether begins are being refused because the store does not answer.
    pub fn is_breaker_open(&self) -> bool {
        self.engine().breaker.is_open()
    }

    /// Checks that the store takes writes and that begins are not refused, for the readiness probe of an orchestrator. Writes
    /// at most once in some seconds.
    ///
    /// # Errors
    ///
    /// Returns why begins would be refused now. A store that does not answer in `within` takes no writes.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped midway, the write may still happen. It changes nothing but the setting that exists for this
    /// check.
    pub async fn check_ready(&self, within: Duration) -> Result<(), NotReadyError> {
        self.engine().check_ready(within).await
    }

    /// Returns whether the identity that this process started with was active when it was last read. If not, begins are
    /// refused until the process is restarted with the store's new identity.
    pub fn is_identity_active(&self) -> bool {
        self.engine().identity.is_active()
    }

    /// Returns the identity that this process agreed on with its store, or `None` for upkeep only.
    pub fn identity(&self) -> Option<&IdentitySetting> {
        self.engine().identity.setting()
    }

    /// Returns the identities before this one whose ids are still looked up, newest first.
    #[cfg(feature = "http")]
    pub(crate) fn previous_identities(&self) -> &[crate::identity::PreviousIdentity] {
        self.engine().identity.previous()
    }

    /// Returns how long a completed record is used without asking the store.
    pub fn cache_ttl(&self) -> Duration {
        self.engine().cache.ttl()
    }

    /// Returns how many duplicates wait for a response now.
    pub fn waiting(&self) -> usize {
        self.engine().waiters.count()
    }

    /// Returns the tenants that this process has seen lately, highest duplicate rate first; at most `limit`.
    ///
    /// A tenant with fewer than twenty requests comes after the others, whatever its rate: one retry of one request says
    /// nothing.
    pub fn tenants(&self, limit: usize) -> Vec<TenantRate> {
        self.engine().duplicates.highest(limit)
    }

    /// Returns how many tenants sent more duplicates lately than [`Settings::duplicate_rate`] allows.
    pub fn tenants_above_duplicate_rate(&self) -> usize {
        self.engine().duplicates.above_allowed()
    }

    /// Waits until no begin is in flight, no attempt lives and no queued finish or release is left. The caller bounds the
    /// wait.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future is safe: the writes that it waits for continue.
    pub async fn settled(&self) {
        self.engine().wait_until_drained().await;
    }
}

impl std::fmt::Debug for Ibid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ibid").field("store", &self.store().facts().name).finish_non_exhaustive()
    }
}
