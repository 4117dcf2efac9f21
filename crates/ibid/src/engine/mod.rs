//! The engine: load → decide → commit, the one loop. It acts on a Decision only after its Change has committed.
//!
//! It must not know HTTP, and it never chooses a State: `ibid_core::machine` does.

mod again;
mod apart;
mod batch;
mod breaker;
mod cache;
mod clock_watch;
mod deadlines;
mod evidence;
mod identity_watch;
mod nonces;
mod previous;
mod tenants;
mod waiters;
#[cfg(feature = "http")]
mod watch;
mod writes;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

use bytes::Bytes;
use ibid_core::change::{Commit, Stored};
use ibid_core::fingerprint::{Asked, Secret, SecretId, Secrets};
use ibid_core::machine::{self, Ask, Decision, Event, Role, Verdict};
use ibid_core::policy::Policy;
use ibid_core::record::Nonce;
use ibid_core::scope::Identity;
use ibid_core::store::{Store, StoreError};
use ibid_core::time::Timestamp;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};

use crate::attempt::Attempt;
use crate::failpoint;
use crate::identity::{self, IdentityError, StoreIdentity};
use crate::outbox::told::Desks;
use crate::outcome::{Begin, Outcome, StoredResponse};
use crate::telemetry;
use crate::transaction::flights::Flights;
use crate::upkeep::{Deliveries, Places, Ran, Registered, Resumes};
use again::AGAIN_MIN;
use batch::Batcher;
use breaker::Breaker;
use cache::Cache;
use clock_watch::ClockWatch;
use deadlines::Deadlines;
use identity_watch::IdentityWatch;
use nonces::Nonces;
pub(crate) use previous::Named;
use tenants::Tenants;
use waiters::{Place, Waiters};

pub use again::Unavailable;
pub(crate) use again::come_again;
pub(crate) use apart::apart;
pub use batch::Counts;
pub use evidence::{Heard, Hearing};
pub use tenants::TenantRate;
use writes::Loose;
pub(crate) use writes::{Inner, Living, Settlement, after, jitter, nonce, noticed, random, still_owns};

/// Makes retries safe: reserves keys in a store, lets one Attempt run, keeps its answer. Cheap to clone.
#[derive(Clone)]
pub struct Ibid {
    inner: Arc<Inner>,
}

/// What an [`Ibid`] needs besides its store; the defaults are the contract's.
#[derive(Debug)]
pub struct Settings {
    /// Fingerprint secrets, the newest first. None: one is made once and kept in the store.
    pub secrets: Vec<Secret>,
    /// What makes up the ids of the store's records. The store keeps the first identity it was used with, and a start with
    /// another one is refused: a retry would not find its record. `Routes::identity` makes it from the routes and a name for
    /// the tenant source; `ibid identity change` changes it.
    pub identity: StoreIdentity,
    /// How long this process acts on its last read of the store's identity; it reads three times as often, and
    /// `ibid identity change` waits twice as long. The value that the identity was stored with counts for all processes.
    pub identity_valid_for: Duration,
    /// How long a begin may take. Clients of a slow store are better served by a quick 503.
    pub begin_timeout: Duration,
    /// How long an answer is held back for its record to become durable.
    pub finish_wait: Duration,
    /// Bytes of completed records kept in this process.
    pub cache_bytes: u64,
    /// How long a completed record is trusted without asking the store: an operator's `forget` is final after that.
    pub cache_ttl: Duration,
    /// Attempts that live in this process at once. A client that hangs up leaves its Attempt running, so connections
    /// do not bound them; past this, begins are refused as if the store were away.
    pub attempts_max: usize,
    /// Which part of a tenant's requests may be duplicates, from 0 to 1. A tenant above it is counted by the gauge
    /// `ibid_tenants_above_duplicate_rate`, and nothing else happens to it.
    pub duplicate_rate: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            secrets: Vec::new(),
            identity: StoreIdentity::default(),
            // A read lost to a failover or a full pool refuses nothing, and a change of identity ends within a minute.
            identity_valid_for: Duration::from_secs(15),
            begin_timeout: Duration::from_secs(2),
            finish_wait: Duration::from_secs(10),
            cache_bytes: 32 << 20,
            cache_ttl: Duration::from_secs(60),
            // Twice the gateway's connections, and at a few kilobytes each far from any machine's memory.
            attempts_max: 8192,
            // Clients of a healthy network retry a few requests in a thousand; who sends every second one again has a
            // broken retry loop or loses our answers.
            duplicate_rate: 0.5,
        }
    }
}

/// Why an [`Ibid`] does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store did not answer.
    #[error("the store does not answer")]
    Store(#[from] StoreError),
    /// The store may not be used under this process's identity.
    #[error(transparent)]
    Identity(IdentityError),
    /// Some record's fingerprint was made with a secret that is not among those given.
    #[error(
        "records were made with the secret `{0}`, which is not among those given: their retries would be refused"
    )]
    MissingSecret(SecretId),
    /// The secrets can't be used.
    #[error("the fingerprint secrets can't be used: {0}")]
    Secrets(String),
}

impl Ibid {
    /// Starts on a store: agrees on the identity and the fingerprint secret, and begins to batch.
    pub async fn start(store: Arc<dyn Store>, mut settings: Settings) -> Result<Ibid, StartError> {
        failpoint::announce();
        let mut secrets = std::mem::take(&mut settings.secrets);
        if secrets.is_empty() {
            // Every node of this store must draw the same fingerprints, so the first one's secret counts.
            let kept = store.keep("secret", Bytes::copy_from_slice(&random::<32>())).await?;
            secrets.push(Secret::new(&kept).map_err(|error| StartError::Secrets(error.to_string()))?);
        }
        // Some stores walk all records for this, a second for millions: better than refusing their retries for a day.
        let known: Vec<SecretId> = secrets.iter().map(Secret::id).collect();
        if let Some(missing) = store.other_secret(known).await? {
            return Err(StartError::MissingSecret(missing));
        }
        let secrets = Secrets::new(secrets).map_err(|error| StartError::Secrets(error.to_string()))?;
        // Last: what is refused for its secrets must not have written its identity.
        let agreement = identity::agree(&*store, &settings.identity, settings.identity_valid_for).await;
        let agreement = agreement.map_err(|error| match error {
            IdentityError::Store(error) => StartError::Store(error),
            other => StartError::Identity(other),
        })?;
        Ok(Ibid::on(store, secrets, IdentityWatch::holding(agreement), settings))
    }

    /// For chores alone, by an operator's hand: it begins nothing, and so need not agree with the store on identity and
    /// secrets.
    pub fn for_upkeep(store: Arc<dyn Store>) -> Ibid {
        let secret = Secret::new(random::<32>()).expect("32 bytes are long enough");
        let secrets = Secrets::new(vec![secret]).expect("one secret is there once");
        let settings = Settings { attempts_max: 0, cache_bytes: 0, ..Settings::default() };
        Ibid::on(store, secrets, IdentityWatch::default(), settings)
    }

    fn on(store: Arc<dyn Store>, secrets: Secrets, identity: IdentityWatch, settings: Settings) -> Ibid {
        let (doubts, doubted) = mpsc::channel(evidence::DOUBTS_MAX);
        let inner = Inner {
            runtime: Handle::current(),
            batcher: Batcher::start(store.clone()),
            store,
            secrets: Arc::new(secrets),
            identity,
            cache: Cache::new(settings.cache_bytes, settings.cache_ttl),
            waiters: Waiters::default(),
            breaker: Breaker::default(),
            clock: ClockWatch::default(),
            deadlines: Deadlines::start(),
            nonces: Nonces::default(),
            begin_timeout: settings.begin_timeout,
            finish_wait: settings.finish_wait,
            attempts_max: settings.attempts_max,
            flights: Flights::default(),
            resumes: Resumes::default(),
            deliveries: Deliveries::default(),
            finder: Registered::default(),
            tenants: Tenants::default(),
            duplicate_rate: settings.duplicate_rate,
            ran: Ran::default(),
            places: Places::default(),
            enqueued: Notify::new(),
            desks: Desks::default(),
            doubts,
            loose: Loose::default(),
        };
        inner.breaker.tell();
        let inner = Arc::new(inner);
        tokio::spawn(evidence::settle_doubts(Arc::downgrade(&inner), doubted));
        tokio::spawn(identity_watch::keep_reading(Arc::downgrade(&inner)));
        Ibid { inner }
    }

    /// The identities before this one whose ids are still looked up, newest first.
    #[cfg(feature = "http")]
    pub(crate) fn previous_identities(&self) -> &[identity::PreviousIdentity] {
        self.inner.identity.previous()
    }

    /// The store underneath.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.inner.store
    }

    /// Builds the request that `asked` makes under `policy`, ready to be begun. `begin` and `wait` draw its nonce.
    pub fn ask(&self, identity: Identity, policy: Arc<Policy>, asked: Arc<dyn Asked>) -> Ask {
        Ask::new(identity, policy, self.inner.secrets.clone(), asked, Nonce(0))
    }

    /// Reserves the key durably, or returns the outcome that makes running unnecessary or unsafe.
    ///
    /// # Errors
    ///
    /// Fails if the key could not be reserved. Nothing was executed, and nothing will be.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the write of a `begin` that is dropped midway completes in the background, and its key is released.
    pub async fn begin(&self, ask: Ask) -> Result<Begin, Unavailable> {
        match self.replay_cached(&ask) {
            Some(outcome) => Ok(Begin::Skip(outcome)),
            None => self.begin_uncached(self.one_writers(ask)).await,
        }
    }

    /// Returns the outcome of a completed request that is in the cache, and counts the duplicate.
    pub(crate) fn replay_cached(&self, ask: &Ask) -> Option<Outcome> {
        let outcome = self.cached(ask)?;
        self.inner.tenants.count_outcome(&ask.identity.tenant, &outcome, Instant::now());
        Some(outcome)
    }

    /// Like [`Ibid::begin`], for a request that is not in the cache. `ask` has its own nonce ([`Ibid::one_writers`]).
    pub(crate) async fn begin_uncached(&self, ask: Arc<Ask>) -> Result<Begin, Unavailable> {
        let (ibid, begins) = (self.clone(), self.inner.begins());
        // If the caller is gone by the end, the attempt is dropped, and that releases the key.
        let begin = apart(&self.inner.runtime, async move {
            let started = Instant::now();
            let begin = ibid.begin_stored(&ask, started).await;
            if let Ok(begin) = &begin {
                ibid.inner.tenants.count_begin(&ask.identity.tenant, begin, started);
            }
            drop(begins);
            begin
        });
        begin.await.unwrap_or(Err(Unavailable::unanswered()))
    }

    /// Draws a fresh nonce, so that beginning the same request twice counts as two writers.
    pub(crate) fn one_writers(&self, mut ask: Ask) -> Arc<Ask> {
        ask.nonce = self.inner.nonces.draw();
        Arc::new(ask)
    }

    async fn begin_stored(&self, ask: &Arc<Ask>, started: Instant) -> Result<Begin, Unavailable> {
        let crowded = self.inner.loose.attempts.load(Ordering::SeqCst) >= self.inner.attempts_max;
        if crowded {
            // One of them ends every moment; nobody knows which.
            return Err(Unavailable::unasked(AGAIN_MIN));
        }
        if !self.is_identity_active() {
            // Whether the last look is recent is asked once the key is reserved: until then nothing is done.
            return Err(self.inner.without_identity());
        }
        let breaker = &self.inner.breaker;
        let pass = breaker.enter(started).map_err(Unavailable::unasked)?;
        let begun = match ask.previous.is_empty() {
            true => self.decide(ask, Role::Caller, None, started).await,
            false => self.decide_previous(ask, Role::Caller, started).await,
        };
        match &begun {
            Ok(_) => pass.answered(),
            Err(refused) if refused.asked => pass.failed(Instant::now()),
            Err(_) => pass.unused(),
        }
        telemetry::took(&telemetry::BEGIN_TOOK, started.elapsed().as_secs_f64());
        begun.map_err(|refused| refused.shut_for(breaker.shut_for(Instant::now())))
    }

    /// What this process already knows of a completed record; the store need not be asked.
    pub(crate) fn cached(&self, ask: &Ask) -> Option<Outcome> {
        let (cached, now) = self.inner.cache.get(&ask.id)?;
        match machine::decide(Some(&cached.record), &Event::Request { ask, role: Role::Waiter }, now) {
            Verdict::Keep(Decision::Replay) => Some(Outcome::Completed(cached.into())),
            Verdict::Keep(Decision::Mismatch) => Some(Outcome::Mismatch),
            _ => None,
        }
    }

    /// Waits for somebody else's answer, for `up_to` at most. Never runs anything: what it waited for may turn out
    /// [`Outcome::Released`], and then a new request may run.
    pub async fn wait(&self, mut ask: Ask, up_to: Duration) -> Result<Outcome, Unavailable> {
        ask.nonce = self.inner.nonces.draw();
        let ask = Arc::new(ask);
        let started = Instant::now();
        // Whoever runs it tells those who wait under the id that it runs under.
        let running = match ask.previous.is_empty() {
            true => ask.id,
            false => match self.named_to_look(&ask).await? {
                Named::Current(_) => ask.id,
                Named::Previous(under, _) => under.id,
            },
        };
        let Some(place) = self.inner.waiters.enter(running, &ask.identity.tenant) else {
            // As if it had been held: those who are make the same wait.
            return Ok(Outcome::InFlight { retry_in: up_to.max(AGAIN_MIN) });
        };
        let waited = self.wait_in(&place, &ask, started + up_to).await;
        telemetry::took(&telemetry::WAIT_TOOK, started.elapsed().as_secs_f64());
        waited
    }

    /// Whether begins are being refused because the store does not answer.
    pub fn is_breaker_open(&self) -> bool {
        self.inner.breaker.is_open()
    }

    /// How long a completed record is trusted without asking the store.
    pub fn cache_ttl(&self) -> Duration {
        self.inner.cache.ttl()
    }

    /// How many duplicates wait for an answer now.
    pub fn waiting(&self) -> usize {
        self.inner.waiters.count()
    }

    /// How much went to the store so far.
    pub fn counts(&self) -> Counts {
        self.inner.batcher.counts()
    }

    /// Waits until no begin is under way, no Attempt lives and no queued finish or release is left; the caller bounds the wait.
    pub async fn settled(&self) {
        loop {
            let changed = self.inner.loose.changed.notified();
            let loose = &self.inner.loose;
            let counts = [&loose.count, &loose.begins, &loose.attempts];
            if counts.iter().all(|count| count.load(Ordering::SeqCst) == 0) {
                return;
            }
            changed.await;
        }
    }

    async fn wait_in(&self, place: &Place, ask: &Arc<Ask>, until: Instant) -> Result<Outcome, Unavailable> {
        let mut pause = POLL_MIN;
        let mut last = Outcome::InFlight { retry_in: AGAIN_MIN };
        loop {
            // Registered before the look, so that an answer which comes in between is not missed.
            let mut news = std::pin::pin!(place.news.notified());
            news.as_mut().enable();
            match self.look(ask).await {
                Ok(open @ (Outcome::InFlight { .. } | Outcome::Accepted { .. })) => last = open,
                Ok(outcome) => return Ok(outcome),
                // The wait is the client's patience: an outage within it is waited out.
                Err(_) if Instant::now() < until => {}
                Err(refused) => return Err(refused),
            }
            let now = Instant::now();
            if now >= until {
                return Ok(last);
            }
            // Other nodes do not call here, so a look from time to time stands in for their news.
            let nap = pause.mul_f64(0.75 + 0.5 * jitter()).min(until - now);
            let _ = tokio::time::timeout(nap, news).await;
            pause = (pause * 2).min(POLL_MAX);
        }
    }

    /// What is stored now, to one who never runs.
    async fn look(&self, ask: &Arc<Ask>) -> Result<Outcome, Unavailable> {
        if let Some(outcome) = self.cached(ask) {
            return Ok(outcome);
        }
        let asked_at = Instant::now();
        if ask.previous.is_empty() {
            let loaded = self.inner.load(ask.id).await.map_err(|_| Unavailable::unanswered())?;
            return Ok(self.decide(ask, Role::Waiter, loaded, asked_at).await?.into_outcome());
        }
        let begin = match self.named_to_look(ask).await? {
            Named::Current(loaded) => self.decide(ask, Role::Waiter, loaded, asked_at).await?,
            Named::Previous(under, stored) => {
                self.decide(&under, Role::Waiter, Some(stored), asked_at).await?
            }
        };
        Ok(begin.into_outcome())
    }

    /// The loop of a begin: decide on what is known, commit, and decide again with the newer record on a lost race. `at`
    /// is from before anything was asked of the store. A lease counts from then: the store's clock starts it later, never
    /// sooner.
    async fn decide(
        &self,
        ask: &Arc<Ask>,
        role: Role,
        mut known: Option<Stored>,
        mut at: Instant,
    ) -> Result<Begin, Unavailable> {
        let deadline = at + self.inner.begin_timeout;
        let mut ask = ask.clone();
        for _ in 0..COMMIT_TRIES_MAX {
            match self.step(&ask, role, known, at, deadline).await? {
                Step::Begun(begun) => return Ok(begun),
                Step::Lost(newer, sent_at) => {
                    (known, at) = (newer, sent_at);
                    // Another write needs another nonce: one names one write, and is kept only to repeat it.
                    Arc::make_mut(&mut ask).nonce = self.inner.nonces.draw();
                }
            }
        }
        // It is moving fast: the client's own retry is cheaper than ours.
        Ok(Begin::Skip(Outcome::InFlight { retry_in: AGAIN_MIN }))
    }

    /// Decides on what is known and commits that once. `at` is from before that was read.
    async fn step(
        &self,
        ask: &Arc<Ask>,
        role: Role,
        known: Option<Stored>,
        at: Instant,
        deadline: Instant,
    ) -> Result<Step, Unavailable> {
        let lease = known.as_ref().map_or(ask.policy.lease, |stored| stored.record.policy.lease);
        let role = match role {
            Role::Caller if self.inner.clock.is_unsure(at, lease) => Role::Careful,
            role => role,
        };
        let now = known.as_ref().map_or(Timestamp::default(), |stored| stored.now);
        let event = Event::Request { ask, role };
        let (change, decision) = match machine::decide(known.as_ref().map(|s| &*s.record), &event, now) {
            Verdict::Keep(decision) => return Ok(Step::Begun(self.begun(ask, decision, known, at))),
            Verdict::Write(change, decision) => (change, decision),
        };
        // The lease counts from just before the write that gives it.
        let at = if known.is_some() { Instant::now() } else { at };
        let stored = match self.inner.commit_begin(ask, &change, at, deadline).await? {
            Commit::Done(stamp) => {
                let stored =
                    writes::after(&change, stamp, known.as_ref()).expect("a begin writes the record");
                self.inner.waiters.tell(&ask.id);
                self.inner.wrote(Some(&stored));
                stored
            }
            Commit::Conflict(Some(stored)) if change.is_stored_as(&stored) => *stored,
            Commit::Conflict(newer) => return Ok(Step::Lost(newer.map(|stored| *stored), at)),
        };
        writes::noticed(&change);
        if decision == Decision::Accepted && !self.inner.confirm_identity().await {
            // It was written late, perhaps after a pause, and is delivered by whoever finds it: taken back before that.
            self.inner.give_up(ask.clone());
            return Err(self.inner.without_identity());
        }
        Ok(Step::Begun(self.begun(ask, decision, Some(stored), at)))
    }

    /// A decision as the caller sees it. `at` is from before `stored` was read or written.
    pub(crate) fn begun(
        &self,
        ask: &Arc<Ask>,
        decision: Decision,
        stored: Option<Stored>,
        at: Instant,
    ) -> Begin {
        let outcome = match (decision, stored) {
            (Decision::Run { after }, Some(stored)) => {
                let attempt = Attempt::new(self.clone(), ask.clone(), stored.record, after, at);
                return Begin::Run(Box::new(attempt));
            }
            (Decision::Accepted, _) => {
                self.inner.deliveries.wake();
                Outcome::Accepted { new: true }
            }
            (Decision::Replay, Some(stored)) => {
                let record = stored.record.clone();
                self.inner.replay(stored, at).map_or(Outcome::NotRetained(record), Outcome::Completed)
            }
            (Decision::NotRetained, Some(stored)) => Outcome::NotRetained(stored.record),
            (Decision::Wait { overlong }, Some(stored)) => {
                if overlong {
                    let (inner, lease) = (self.inner.clone(), (stored.record.id, stored.record.version));
                    // A clock that stepped back left the lease too long; whoever sees it sets it right.
                    tokio::spawn(async move { inner.store.renew(vec![lease]).await.ok() });
                }
                match stored.record.flags.asynchronous {
                    true => Outcome::Accepted { new: false },
                    false => Outcome::InFlight { retry_in: come_again(&stored.record, stored.now) },
                }
            }
            (Decision::Unknown { until }, stored) => {
                let now = stored.map_or(Timestamp::default(), |stored| stored.now);
                Outcome::Unknown { settled_in: until.map(|until| until.since(now)) }
            }
            (Decision::Mismatch, _) => Outcome::Mismatch,
            (Decision::Expired, _) => Outcome::Expired,
            (Decision::Free, _) => Outcome::Released,
            _ => Outcome::InFlight { retry_in: AGAIN_MIN },
        };
        Begin::Skip(outcome)
    }

    /// What is stored, as the client of a refused finish sees it.
    pub(crate) fn instead(&self, ask: &Arc<Ask>, stored: Stored, at: Instant) -> Outcome {
        let event = Event::Request { ask, role: Role::Waiter };
        let decision = match machine::decide(Some(&stored.record), &event, stored.now) {
            Verdict::Keep(decision) | Verdict::Write(_, decision) => decision,
        };
        self.begun(ask, decision, Some(stored), at).into_outcome()
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }
}

/// What came of one decision and its commit.
enum Step {
    Begun(Begin),
    /// Another write came first; this is stored now, as an answer to what was sent then.
    Lost(Option<Stored>, Instant),
}

impl std::fmt::Debug for Ibid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ibid").field("store", &self.inner.store.kind()).finish_non_exhaustive()
    }
}

impl From<cache::Cached> for StoredResponse {
    fn from(cached: cache::Cached) -> StoredResponse {
        StoredResponse { record: cached.record, response: cached.response }
    }
}

/// How often one request re-decides on a contended record before it is answered as in progress.
///
/// A record changes a handful of times in its life, so after four lost races it is moving fast and the client's own
/// retry is cheaper than ours.
const COMMIT_TRIES_MAX: u32 = 4;

/// First look of a waiter at what another node may have done.
const POLL_MIN: Duration = Duration::from_millis(50);

/// Longest pause between looks: what a client of another node waits too long at worst.
const POLL_MAX: Duration = Duration::from_millis(500);
