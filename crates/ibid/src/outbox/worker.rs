//! Claims due effects and executes them, up to `concurrency` at a time. Any number of workers may run on one database.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use ibid_core::effect::{EffectClaim, EffectRules, StoredEffect};
use ibid_core::machine::{ClaimReason, EffectState};
use ibid_core::sql::{Database, OwnedTx, SqlError, SqlFault, SqlTx};
use metrics::counter;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tracing::Instrument;

use super::continue_trace;
use super::dyn_handler::DynEffectHandler;
use super::execute::ClaimedEffect;
use super::handler::EffectHandler;
use super::record_result::Ended;
use super::statements;
use crate::backoff::spread;
use crate::evidence::effect::{EffectSettler, KindHandler, WorkerHandlers};
use crate::failpoint::{self, Hit};
use crate::ibid::Ibid;
use crate::random::nonce;
use crate::telemetry;
use crate::transaction::TxError;
use crate::transaction::attempt_tx::sql;
use crate::transaction::statements::WriteOptions;

/// Executes effects. Built by [`Worker::builder`].
pub struct Worker<D: Database> {
    ibid: Ibid,
    handlers: Arc<WorkerHandlers<D>>,
    concurrency: usize,
    poll_every: Duration,
    stop_within: Duration,
}

/// Options of a [`Worker`].
pub struct WorkerBuilder<D: Database> {
    ibid: Ibid,
    database: D,
    handlers: Handlers<D::Tx>,
    /// Time limits of the kinds that have none of their own.
    within: HandlerLimits,
    concurrency: usize,
    poll_every: Duration,
    stop_within: Option<Duration>,
}

/// The handler of each kind, and its own time limits if it has any.
type Handlers<T> = HashMap<String, (Arc<dyn DynEffectHandler<T>>, Option<HandlerLimits>)>;

/// Time limits of one kind of effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandlerLimits {
    /// How long a call, a verification or the handler's rows may take.
    pub timeout: Duration,
    /// The shortest lease in the rules of these effects. A call under a shorter lease is broken off when that ends.
    pub lease: Duration,
}

/// Why a worker could not be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkerError {
    /// The store has no outbox.
    #[error("the store has no outbox: it is no SQL store")]
    NoSql,
    /// The worker would never have anything to do.
    #[error("the worker has no handler, or may do nothing at once")]
    Idle,
    /// A call could outlast its claim.
    #[error(
        "a call of `{kind}` may take {timeout:?}, and the claim that it is made under lasts only {lease:?}"
    )]
    OutlastsLease {
        /// The kind of effect.
        kind: String,
        /// How long a call may take.
        timeout: Duration,
        /// How long a claim lasts.
        lease: Duration,
    },
}

/// How many effects one round came to which end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerRound {
    /// Effects whose call was made.
    pub done: u32,
    /// Effects that will be tried or verified again.
    pub again: u32,
    /// Dead letters: effects that are dead, or unknown with no verification due.
    pub dead: u32,
    /// Claims that were lost to another process, and results that could not be written.
    pub lost: u32,
}

impl WorkerRound {
    /// Returns whether nothing was due.
    pub fn is_idle(&self) -> bool {
        *self == WorkerRound::default()
    }

    fn add(&mut self, ended: Ended) {
        let count = match ended {
            Ended::Moved { to: EffectState::Done, .. } => &mut self.done,
            Ended::Moved { to, due } if to.is_dead_letter(due) => &mut self.dead,
            Ended::Moved { .. } => &mut self.again,
            Ended::Lost | Ended::Unwritten => &mut self.lost,
        };
        *count += 1;
    }
}

impl<D: Database + 'static> WorkerBuilder<D> {
    /// Executes effects of this kind. A second handler of one kind replaces the first.
    pub fn on(mut self, kind: impl Into<String>, handler: impl EffectHandler<D::Tx> + 'static) -> Self {
        self.handlers.insert(kind.into(), (Arc::new(handler), None));
        self
    }

    /// Like [`on`](Builder::on), with separate time limits: for a provider that is slower than others, or must not be
    /// waited for.
    pub fn on_with_limits(
        mut self,
        kind: impl Into<String>,
        within: HandlerLimits,
        handler: impl EffectHandler<D::Tx> + 'static,
    ) -> Self {
        self.handlers.insert(kind.into(), (Arc::new(handler), Some(within)));
        self
    }

    /// Sets how many effects are executed at once. Each needs a connection of the pool only to record its result.
    pub fn concurrency(mut self, effects: usize) -> Self {
        self.concurrency = effects;
        self
    }

    /// Sets how long a call, a verification or a handler's rows may take, for all kinds without
    /// [separate time limits](WorkerBuilder::on_with_limits).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.within.timeout = timeout;
        self
    }

    /// Sets the shortest lease in the rules of these kinds, if it is not the default one.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.within.lease = lease;
        self
    }

    /// Sets the time between two polls of the outbox, give or take a quarter. Effects that this process enqueues are seen
    /// at once; the poll finds those of other processes, the ends of pauses, and lapsed claims.
    pub fn poll_every(mut self, every: Duration) -> Self {
        self.poll_every = every;
        self
    }

    /// Sets how long a stopping worker waits for its running effects. By default as long as the slowest may take.
    pub fn stop_within(mut self, within: Duration) -> Self {
        self.stop_within = Some(within);
        self
    }

    /// Builds the worker.
    ///
    /// # Errors
    ///
    /// Fails if the store has no outbox, if there is nothing to do, or if a call could outlast its claim.
    pub fn build(self) -> Result<Worker<D>, WorkerError> {
        let WorkerBuilder { ibid, database, handlers, within, concurrency, poll_every, stop_within } = self;
        if ibid.store().sql().is_none() {
            return Err(WorkerError::NoSql);
        }
        if handlers.is_empty() || concurrency == 0 {
            return Err(WorkerError::Idle);
        }
        let mut by_kind = HashMap::new();
        for (kind, (handler, own)) in handlers {
            let HandlerLimits { timeout, lease } = own.unwrap_or(within);
            if timeout >= lease {
                return Err(WorkerError::OutlastsLease { kind, timeout, lease });
            }
            by_kind.insert(kind, KindHandler { handler, timeout });
        }
        let slowest = by_kind.values().map(|handler| handler.timeout).max().unwrap_or_default();
        let stop_within = stop_within.unwrap_or(slowest.saturating_add(END_WITHIN));
        let handlers = Arc::new(WorkerHandlers { database: Arc::new(database), by_kind });
        let settler: Arc<dyn EffectSettler> = handlers.clone();
        ibid.outbox().kinds.add(Arc::downgrade(&settler));
        Ok(Worker { ibid, handlers, concurrency, poll_every, stop_within })
    }
}

impl<D: Database + 'static> Worker<D> {
    /// Starts to build a worker for the outbox of this store, in the application's database.
    pub fn builder(ibid: Ibid, database: D) -> WorkerBuilder<D> {
        WorkerBuilder {
            ibid,
            database,
            handlers: HashMap::new(),
            within: HandlerLimits { timeout: TIMEOUT, lease: EffectRules::default().lease() },
            concurrency: CONCURRENCY,
            poll_every: POLL_EVERY,
            stop_within: None,
        }
    }

    /// Works until dropped. Running effects are then broken off, and claimed again when their claims have lapsed;
    /// [`Worker::run_until`] finishes them.
    pub async fn run(&self) {
        self.run_until(std::future::pending()).await;
    }

    /// Works until `stop` resolves. Then it claims nothing more and waits for its running effects, for a bounded time
    /// ([`WorkerBuilder::stop_within`]).
    pub async fn run_until(&self, stop: impl Future<Output = ()>) {
        let mut stop = std::pin::pin!(stop);
        let mut in_hand = JoinSet::new();
        let (mut everything_at, mut more) = (Instant::now(), true);
        loop {
            // Registered before the poll, so that an effect enqueued in between is not missed.
            let mut enqueued = std::pin::pin!(self.ibid.outbox().enqueued.notified());
            enqueued.as_mut().enable();
            let free = self.concurrency - in_hand.len();
            if free > 0 && (more || Instant::now() >= everything_at) {
                let everything = Instant::now() >= everything_at;
                if everything {
                    everything_at = Instant::now() + spread(self.poll_every);
                }
                more = self.take(free, everything, &mut in_hand).await;
            }
            tokio::select! {
                () = &mut stop => break,
                () = enqueued => more = true,
                () = tokio::time::sleep_until(everything_at), if in_hand.len() < self.concurrency => {}
                Some(ended) = in_hand.join_next() => {
                    more |= in_order(ended);
                    while let Some(ended) = in_hand.try_join_next() {
                        more |= in_order(ended);
                    }
                }
            }
        }
        let finish = async { while in_hand.join_next().await.is_some() {} };
        if tokio::time::timeout(self.stop_within, finish).await.is_err() {
            tracing::warn!("worker stopped with calls in flight; their claims will lapse");
        }
    }

    /// Claims due effects, at most `concurrency` of them, executes them and returns the counts.
    ///
    /// # Errors
    ///
    /// Fails if the effects could not be claimed.
    pub async fn run_once(&self) -> Result<WorkerRound, TxError> {
        let mut in_hand = JoinSet::new();
        for taken in self.taken(self.concurrency, true).await? {
            self.begin(&mut in_hand, taken);
        }
        let mut round = WorkerRound::default();
        while let Some(ended) = in_hand.join_next().await {
            round.add(ended.map_or(Ended::Unwritten, |(ended, _)| ended));
        }
        Ok(round)
    }

    /// Claims and starts due effects. Returns whether more may be due.
    async fn take(&self, free: usize, everything: bool, in_hand: &mut JoinSet<(Ended, bool)>) -> bool {
        match self.taken(free, everything).await {
            Ok(taken) => {
                let full = taken.len() >= free;
                for taken in taken {
                    self.begin(in_hand, taken);
                }
                full
            }
            Err(error) => {
                // The next poll tries again.
                counter!(telemetry::STORE_ERRORS).increment(1);
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "effects could not be claimed; the next poll tries again"
                );
                false
            }
        }
    }

    fn begin(&self, in_hand: &mut JoinSet<(Ended, bool)>, taken: Taken) {
        let Taken { effect, reason, is_confirmed, at } = taken;
        // Only effects of kinds that have a handler are claimed.
        let Some(KindHandler { handler, timeout }) = self.handlers.by_kind.get(&effect.kind) else { return };
        let span = tracing::debug_span!(
            telemetry::SPAN_EFFECT,
            effect = effect.seq,
            kind = effect.kind,
            tries = effect.tries,
            trace = effect.trace.as_deref(),
        );
        if let Some(trace) = &effect.trace {
            continue_trace(&span, trace);
        }
        let in_order = effect.aggregate.is_some();
        let held = ClaimedEffect {
            ibid: self.ibid.clone(),
            database: self.handlers.database.clone(),
            handler: handler.clone(),
            timeout: *timeout,
            effect,
            reason,
            is_confirmed,
            at,
        };
        in_hand.spawn(async move { (held.execute().await, in_order) }.instrument(span));
    }

    /// Claims up to `limit` due effects: for every reason, or only those whose call has to be made.
    async fn taken(&self, limit: usize, everything: bool) -> Result<Vec<Taken>, TxError> {
        let mut tries = 0;
        loop {
            match self.taken_once(limit, everything).await {
                Err(error) if error.is_retryable() && tries < TAKE_TRIES_MAX => tries += 1,
                taken => return taken,
            }
        }
    }

    async fn taken_once(&self, limit: usize, everything: bool) -> Result<Vec<Taken>, TxError> {
        let at = Instant::now();
        let mut tx = self.handlers.database.begin().await?;
        let store = sql(&self.ibid)?;
        if store.dialect() != tx.dialect() {
            return Err(TxError::OtherDialect);
        }
        let terms = WriteOptions::of(store);
        let kinds: Vec<String> = self.handlers.by_kind.keys().cloned().collect();
        let mut taken = Vec::new();
        let reasons = ClaimReason::ALL.into_iter();
        for reason in reasons.filter(|reason| everything || *reason == ClaimReason::Call) {
            let left = u32::try_from(limit - taken.len()).unwrap_or(u32::MAX);
            if left == 0 {
                break;
            }
            let take = EffectClaim { kinds: kinds.clone(), reason, nonce: nonce(), limit: left };
            let effects = statements::take(&mut tx, &take, terms).await?;
            taken.extend(effects.into_iter().map(|effect| Taken { effect, reason, is_confirmed: true, at }));
        }
        if taken.is_empty() {
            // If this fails, the transaction is undone with its connection.
            let _ = tx.rollback().await;
            return Ok(taken);
        }
        if failpoint::at("claim.before").await == Hit::Error {
            return Err(SqlError::new(SqlFault::Serialization, "a failpoint").into());
        }
        let committed = match tx.commit().await {
            Ok(()) if failpoint::at("claim.after").await == Hit::Lost => {
                Err(SqlError::new(SqlFault::Lost, "a failpoint"))
            }
            committed => committed,
        };
        match committed {
            Ok(()) => Ok(taken),
            Err(error) if error.fault() == SqlFault::Lost => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "commit of a claim got no reply; giving the effects back"
                );
                // It is not known whether the claim was committed, and the result of a call under it might never be
                // recorded. Effects whose call was to be made certainly had none: they are given back. The others are
                // claimed again when their lease is over.
                taken.retain(|taken| taken.reason == ClaimReason::Call);
                taken.iter_mut().for_each(|taken| taken.is_confirmed = false);
                Ok(taken)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// An effect that this worker has claimed.
struct Taken {
    effect: StoredEffect,
    reason: ClaimReason,
    /// Whether the commit of the claim was acknowledged.
    is_confirmed: bool,
    /// From before the claim.
    at: Instant,
}

/// Returns whether the end of this effect may let the next one of its aggregate run.
fn in_order(ended: Result<(Ended, bool), JoinError>) -> bool {
    ended.is_ok_and(|(_, in_order)| in_order)
}

impl<D: Database> fmt::Debug for Worker<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds: Vec<_> = self.handlers.by_kind.keys().collect();
        f.debug_struct("Worker").field("kinds", &kinds).finish_non_exhaustive()
    }
}

impl<D: Database> fmt::Debug for WorkerBuilder<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds: Vec<_> = self.handlers.keys().collect();
        f.debug_struct("WorkerBuilder").field("kinds", &kinds).finish_non_exhaustive()
    }
}

/// Default concurrency. Calls wait for providers most of the time; whether more are welcome is up to the provider.
const CONCURRENCY: usize = 16;

/// Default time-out of a call: what most HTTP clients wait for, and half of the default lease. The other half is for
/// writing the result.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Default time between two polls. An idle poll costs the database less than a millisecond, and a second more does not
/// matter for work that happens later anyway.
const POLL_EVERY: Duration = Duration::from_secs(1);

/// A call that starts just before the stop may use all of its time, and writing its result takes up to this much more.
const END_WITHIN: Duration = Duration::from_secs(5);

/// How often a claim is retried after a conflict with another transaction; the next poll is never far.
const TAKE_TRIES_MAX: u32 = 4;
