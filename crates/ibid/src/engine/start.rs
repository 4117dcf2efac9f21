//! Starting an engine: its settings, and what it agrees on with the store.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ibid_core::fingerprint::{Secret, SecretError, SecretId, Secrets};
use ibid_core::scope::RecordId;
use ibid_core::store::{Durability, Store, StoreError, StoreFacts};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::Engine;
use super::attempt_slots::AttemptSlots;
use super::background::BackgroundWrites;
use super::begin_joins::BeginJoins;
use super::breaker::Breaker;
use super::cache::{self, Cache};
use super::clock_watch::ClockWatch;
use super::commit::BECAME_UNKNOWN_MAX;
use super::deadlines::Deadlines;
use super::drain::Drain;
use super::duplicate_rate::DuplicateRates;
use super::identity_watch::{self, IdentityWatch};
use super::lease_keeper::{self, LeaseKeeper};
use super::readiness::Readiness;
use super::registered_secrets;
use super::waiters::Waiters;
use crate::failpoint;
use crate::front::SharedCache;
use crate::identity::{self, IdentityError, StoreIdentity};
use crate::random::{Nonces, random};

/// Settings of an [`Ibid`](crate::Ibid); the defaults are the contract's.
#[derive(Debug)]
#[non_exhaustive]
pub struct Settings {
    /// Fingerprint secrets, newest first. If there are none, one is drawn once and stored.
    pub secrets: Vec<Secret>,
    /// The rules that make up the ids of the store's records. The store keeps the first identity it was used with, and a
    /// start with another one is refused, because a retry would not find its record. `Routes::identity` makes it from the
    /// routes and a name for the tenant source; `ibid identity change` changes it.
    pub identity: StoreIdentity,
    /// Validity of this process's last read of the store's identity; it reads three times as often, and
    /// `ibid identity change` waits twice as long. The value that the identity was stored with counts for all processes.
    pub identity_valid_for: Duration,
    /// Longest time until a begin is sent. One that is sent just before gets its reply within a quarter of a second, or is refused
    /// like one that was not sent. A quick 503 serves the clients of a slow store better.
    pub begin_timeout: Duration,
    /// Longest time that a response is held back for its record to become durable.
    pub finish_wait: Duration,
    /// Bytes of completed records that this process caches.
    pub cache_bytes: u64,
    /// Time that a cached record is used without asking the store: an operator's `forget` is final after that.
    pub cache_ttl: Duration,
    /// A cache of completed responses that all nodes share, asked before the store. It needs `cache_ttl`, too.
    pub front: Option<Arc<dyn SharedCache>>,
    /// Attempts that live in this process at once; one tenant may have half of them. A client that hangs up leaves its
    /// attempt running, so connections do not bound them. Past this, new keys are refused
    /// ([`UnavailableError::is_overloaded`](super::UnavailableError::is_overloaded)), and stored records still answer.
    pub attempts_max: usize,
    /// Requests of this process that look for their key inside a transaction at once (`reserve_tx`), each with a connection of the
    /// application's pool. At most half of that pool, so that running transactions get the other half; at least one is used.
    pub reserve_tries_max: usize,
    /// Lets a lapsed request run again as soon as this process has started. By default it waits for one lease from
    /// the store's first answer: the store may have failed over to a server whose clock is ahead, or may have been away,
    /// and then the owner of a lapsed lease may be alive. Set it only if the process is the only one that uses the store,
    /// so that no attempt of an earlier process can be alive.
    pub may_take_over_at_start: bool,
    /// The share of a tenant's requests that may be duplicates, from 0 to 1. The gauge
    /// `ibid_tenants_above_duplicate_rate` counts the tenants above it; nothing else happens to them.
    pub duplicate_rate: f64,
}

impl Settings {
    /// Returns a copy in which `change` has set some fields.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Settings)) -> Settings {
        change(&mut self);
        self
    }
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            secrets: Vec::new(),
            identity: StoreIdentity::default(),
            // A read lost to a failover or a full pool refuses nothing, and a change of identity ends within a minute.
            identity_valid_for: Duration::from_secs(15),
            // Clients wait 10 s and more, so a refusal after 2 s leaves time for their retry.
            begin_timeout: Duration::from_secs(2),
            // Longer than a store's failover usually takes, shorter than most clients' patience.
            finish_wait: Duration::from_secs(10),
            // Some ten thousand responses of an ordinary API.
            cache_bytes: 32 << 20,
            // Most retries arrive within a minute.
            cache_ttl: Duration::from_secs(60),
            front: None,
            // Twice the gateway's connections, and at a few kilobytes each far from any machine's memory.
            attempts_max: 8192,
            // Half of a usual pool.
            reserve_tries_max: 8,
            // A crash leaves records that lapse after one lease anyway, so the wait adds the time from the crash to the start.
            may_take_over_at_start: false,
            // Clients on a healthy network retry a few requests in a thousand. A client that sends every second request
            // again has a broken retry loop, or loses our responses.
            duplicate_rate: 0.5,
        }
    }
}

/// The error of [`Ibid::start`](crate::Ibid::start).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The store did not answer.
    #[error("the store does not answer")]
    Store(#[from] StoreError),
    /// The store may not be used under this process's identity.
    #[error(transparent)]
    Identity(IdentityError),
    /// A stored fingerprint was made with a secret that is not among those given.
    #[error(
        "records were made with the secret `{0}`, which is not among those given: their retries would be refused"
    )]
    MissingSecret(SecretId),
    /// The secrets can't be used.
    #[error("the fingerprint secrets can't be used")]
    Secrets(#[from] SecretError),
}

/// Receives the ids of records that were just written as `unknown`.
pub(crate) type BecameUnknown = mpsc::Receiver<RecordId>;

impl Engine {
    /// Starts on a store: agrees on the identity and the fingerprint secrets.
    pub(crate) async fn start(
        store: Arc<dyn Store>,
        mut settings: Settings,
    ) -> Result<(Arc<Engine>, BecameUnknown), StartError> {
        failpoint::announce();
        // Before anything is written: a copy may be filling the store.
        identity::check_open(&*store).await.map_err(start_error)?;
        let mut secrets = std::mem::take(&mut settings.secrets);
        if secrets.is_empty() {
            // All nodes on one store must make the same fingerprints, so the secret of the first one counts.
            let secret = store.put_if_absent(SECRET_SETTING, Bytes::copy_from_slice(&random::<32>())).await?;
            secrets.push(Secret::new(&secret)?);
        }
        let known: Vec<SecretId> = secrets.iter().map(Secret::id).collect();
        if let Some(missing) = registered_secrets::agree(&*store, known).await? {
            return Err(StartError::MissingSecret(missing));
        }
        let secrets = Secrets::new(secrets)?;
        // Last: a process that is refused for its secrets must not have written its identity.
        let agreement = identity::agree(&*store, &settings.identity, settings.identity_valid_for).await;
        let agreement = agreement.map_err(start_error)?;
        if let StoreFacts { name, durability: Durability::Weak { reason }, .. } = store.facts() {
            tracing::warn!(
                store = name,
                reason,
                "weak durability: a request may run again after the store lost its record"
            );
        }
        Ok(Engine::new(store, secrets, IdentityWatch::holding(agreement), settings))
    }

    /// Starts an engine for upkeep only. It begins nothing, so it need not agree with the store on identity and secrets.
    pub(crate) fn for_upkeep(store: Arc<dyn Store>, settings: Settings) -> (Arc<Engine>, BecameUnknown) {
        let secret = Secret::new(random::<32>()).expect("32 bytes are long enough");
        let secrets = Secrets::new(vec![secret]).expect("one secret is there once");
        let settings = Settings { attempts_max: 0, cache_bytes: 0, ..settings };
        Engine::new(store, secrets, IdentityWatch::default(), settings)
    }

    fn new(
        store: Arc<dyn Store>,
        secrets: Secrets,
        identity: IdentityWatch,
        settings: Settings,
    ) -> (Arc<Engine>, BecameUnknown) {
        let (became_unknown, receiver) = mpsc::channel(BECAME_UNKNOWN_MAX);
        let drain = Drain::default();
        let engine = Engine {
            runtime: Handle::current(),
            store,
            secrets: Arc::new(secrets),
            identity,
            begin_joins: BeginJoins::default(),
            cache: Cache::new(settings.cache_bytes, settings.cache_ttl),
            front: settings.front,
            waiters: Waiters::default(),
            breaker: Breaker::default(),
            readiness: Readiness::default(),
            clock: ClockWatch::new(settings.may_take_over_at_start),
            leases: LeaseKeeper::default(),
            deadlines: Deadlines::start(),
            nonces: Nonces::default(),
            begin_timeout: settings.begin_timeout.min(FOREVER),
            finish_wait: settings.finish_wait.min(FOREVER),
            attempt_slots: AttemptSlots::new(settings.attempts_max, drain.clone()),
            duplicates: DuplicateRates::new(settings.duplicate_rate),
            background: BackgroundWrites::new(Handle::current(), drain.clone()),
            drain,
            became_unknown,
        };
        engine.breaker.publish_gauge();
        let engine = Arc::new(engine);
        tokio::spawn(identity_watch::keep_reading(Arc::downgrade(&engine)));
        tokio::spawn(cache::keep_fresh(Arc::downgrade(&engine)));
        tokio::spawn(lease_keeper::keep_leases(Arc::downgrade(&engine)));
        (engine, receiver)
    }
}

fn start_error(error: IdentityError) -> StartError {
    match error {
        IdentityError::Store(error) => StartError::Store(error),
        other => StartError::Identity(other),
    }
}

/// Longest time-out: an instant plus this does not overflow.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Name of the setting with the secret that the store draws where none is configured.
pub(crate) const SECRET_SETTING: &str = "secret";
