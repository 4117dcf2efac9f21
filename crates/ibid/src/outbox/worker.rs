//! Claims due effects and executes them, up to `concurrency` at a time. Any number of workers may run on one database.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use ibid_core::effect::{EffectClaim, EffectRules, StoredEffect};
use ibid_core::machine::ClaimReason;
use ibid_core::sql::{Database, OwnedTx, SqlError, SqlFault, SqlTx};
use metrics::counter;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tracing::Instrument;

use super::continue_trace;
use super::dyn_handler::DynEffectHandler;
use super::execute::ClaimedEffect;
use super::handler::EffectHandler;
use super::record_result::EffectEnd;
use super::statements;
use crate::backoff::spread;
use crate::evidence::effect::{EffectSettler, KindHandler, WorkerHandlers};
use crate::failpoint::{self, Hit};
use crate::ibid::Ibid;
use crate::random::nonce;
use crate::record_sql::WriteOptions;
use crate::telemetry;
use crate::transaction::TxError;
use crate::transaction::attempt_tx::sql;
use crate::transaction::isolation::lock_rows_only;

/// Executes effects. Built by [`Worker::builder`].
pub struct Worker<D: Database> {
    ibid: Ibid,
    handlers: Arc<WorkerHandlers<D>>,
    concurrency: usize,
    poll_every: Duration,
    stop_within: Duration,
}

/// Options of a [`Worker`].
#[must_use = "a builder does nothing until `build`"]
pub struct WorkerBuilder<D: Database> {
    ibid: Ibid,
    database: D,
    handlers: Handlers<D::Tx>,
    /// Time limits of kinds that set none themselves.
    within: HandlerLimits,
    concurrency: usize,
    poll_every: Duration,
    stop_within: Option<Duration>,
}

/// The handler of each kind, and its time limits if it sets any.
type Handlers<T> = HashMap<String, (Arc<dyn DynEffectHandler<T>>, Option<HandlerLimits>)>;

/// Time limits of one kind of effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandlerLimits {
    /// Longest time for a call, for a verification, and for writing the handler's rows.
    pub timeout: Duration,
    /// The shortest lease in the rules of these effects. A call under a shorter lease is cancelled when that lease ends.
    pub lease: Duration,
}

/// Error of [`WorkerBuilder::build`] for options that do not work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The store has no outbox.
    #[error("the store has no outbox: it is no SQL store")]
    NoSql,
    /// The worker would never have anything to do.
    #[error("the worker has no handler, or its concurrency is 0")]
    Idle,
    /// A call could outlast its claim.
    #[error(
        "a call of `{kind}` may take {timeout:?}, but its claim lasts only {lease:?}: shorten the timeout"
    )]
    OutlastsLease {
        /// The kind of effect.
        kind: String,
        /// Longest time for a call.
        timeout: Duration,
        /// Duration of a claim.
        lease: Duration,
    },
}

/// Counts of one round, by result.
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

    fn add(&mut self, ended: EffectEnd) {
        let count = match ended {
            EffectEnd::Moved { to, .. } if to.is_done() => &mut self.done,
            EffectEnd::Moved { to, due } if to.is_dead_letter(due) => &mut self.dead,
            EffectEnd::Moved { .. } => &mut self.again,
            EffectEnd::Lost | EffectEnd::Unwritten => &mut self.lost,
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

    /// Like [`on`](WorkerBuilder::on), with separate time limits: for a provider that is slower than the others, or one
    /// that the worker must not wait for.
    pub fn on_with_limits(
        mut self,
        kind: impl Into<String>,
        within: HandlerLimits,
        handler: impl EffectHandler<D::Tx> + 'static,
    ) -> Self {
        self.handlers.insert(kind.into(), (Arc::new(handler), Some(within)));
        self
    }

    /// Sets how many effects are executed at once. An effect uses a connection of the pool only while its result is
    /// recorded.
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

    /// Sets the time between two polls of the outbox, give or take a quarter. The worker sees effects that this process
    /// enqueues at once. The poll finds effects of other processes, effects whose pause is over, and lapsed claims.
    pub fn poll_every(mut self, every: Duration) -> Self {
        self.poll_every = every;
        self
    }

    /// Sets how long a stopping worker waits for its running effects. The default is the longest timeout of any kind, plus
    /// 5 s to write the result.
    pub fn stop_within(mut self, within: Duration) -> Self {
        self.stop_within = Some(within);
        self
    }

    /// Builds the worker and registers its kinds with `ibid`, so that webhook evidence about them can be applied.
    ///
    /// # Errors
    ///
    /// Fails if the store has no outbox, if there is no handler or the concurrency is 0, or if a call could outlast its
    /// claim.
    pub fn build(self) -> Result<Worker<D>, WorkerError> {
        let WorkerBuilder { ibid, database, handlers, within, concurrency, poll_every, stop_within } = self;
        if ibid.store().sql().is_none() {
            return Err(WorkerError::NoSql);
        }
        if handlers.is_empty() || concurrency == 0 {
            return Err(WorkerError::Idle);
        }
        let mut by_kind = HashMap::new();
        for (kind, (handler, limits)) in handlers {
            let HandlerLimits { timeout, lease } = limits.unwrap_or(within);
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

    /// Runs until dropped. [`Worker::run_until`] finishes its running effects first.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels the running effects, also calls in flight. Their claims lapse, and a worker claims them
    /// again, by the rules of an uncertain call.
    pub async fn run(&self) {
        self.run_until(std::future::pending()).await;
    }

    /// Runs until `stop` resolves. Then it claims nothing more and waits for its running effects, for a bounded time
    /// ([`WorkerBuilder::stop_within`]).
    ///
    /// # Cancel safety
    ///
    /// Dropped before `stop` resolves, it ends like [`Worker::run`].
    pub async fn run_until(&self, stop: impl Future<Output = ()>) {
        let mut stop = std::pin::pin!(stop);
        let mut running = JoinSet::new();
        let (mut next_poll, mut more_due) = (Instant::now(), true);
        loop {
            // Registered before the poll, so that an effect enqueued in between is not missed.
            let mut enqueued = std::pin::pin!(self.ibid.outbox().enqueued.notified());
            enqueued.as_mut().enable();
            let free = self.concurrency - running.len();
            if free > 0 && (more_due || Instant::now() >= next_poll) {
                let all_reasons = Instant::now() >= next_poll;
                if all_reasons {
                    next_poll = Instant::now() + spread(self.poll_every);
                }
                more_due = self.claim_and_start(free, all_reasons, &mut running).await;
            }
            tokio::select! {
                () = &mut stop => break,
                () = enqueued => more_due = true,
                () = tokio::time::sleep_until(next_poll), if running.len() < self.concurrency => {}
                Some(ended) = running.join_next() => {
                    more_due |= may_unblock_next(ended);
                    while let Some(ended) = running.try_join_next() {
                        more_due |= may_unblock_next(ended);
                    }
                }
            }
        }
        let finish = async { while running.join_next().await.is_some() {} };
        if tokio::time::timeout(self.stop_within, finish).await.is_err() {
            tracing::warn!("worker stopped with calls in flight; their claims will lapse");
        }
    }

    /// Claims due effects, at most `concurrency` of them, executes them and returns the counts.
    ///
    /// # Errors
    ///
    /// Fails if the effects could not be claimed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, it ends like [`Worker::run`].
    pub async fn run_once(&self) -> Result<WorkerRound, TxError> {
        let mut running = JoinSet::new();
        for claim in self.claim(self.concurrency, true).await?.claims {
            self.start(&mut running, claim);
        }
        let mut round = WorkerRound::default();
        while let Some(ended) = running.join_next().await {
            round.add(ended.map_or(EffectEnd::Unwritten, |(ended, _)| ended));
        }
        Ok(round)
    }

    /// Claims and starts due effects. Returns whether more may be due.
    async fn claim_and_start(
        &self,
        free: usize,
        all_reasons: bool,
        running: &mut JoinSet<(EffectEnd, bool)>,
    ) -> bool {
        match self.claim(free, all_reasons).await {
            Ok(Look { claims, more_turns }) => {
                let full = claims.len() >= free;
                for claim in claims {
                    self.start(running, claim);
                }
                full || more_turns
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

    fn start(&self, running: &mut JoinSet<(EffectEnd, bool)>, claim: Claim) {
        let Claim { effect, reason, is_confirmed, at } = claim;
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
        let is_ordered = effect.aggregate.is_some();
        let claimed = ClaimedEffect {
            ibid: self.ibid.clone(),
            database: self.handlers.database.clone(),
            handler: handler.clone(),
            timeout: *timeout,
            effect,
            reason,
            is_confirmed,
            at,
        };
        running.spawn(async move { (claimed.execute().await, is_ordered) }.instrument(span));
    }

    /// Gives turns to aggregates and claims up to `limit` due effects: for every reason, or only those whose call has to be
    /// made.
    async fn claim(&self, limit: usize, all_reasons: bool) -> Result<Look, TxError> {
        let mut tries = 0;
        loop {
            match self.claim_once(limit, all_reasons).await {
                Err(error) if error.is_retryable() && tries < CLAIM_TRIES_MAX => tries += 1,
                result => return result,
            }
        }
    }

    async fn claim_once(&self, limit: usize, all_reasons: bool) -> Result<Look, TxError> {
        if self.ibid.engine().is_closed().await {
            // The effects are in another store, or on their way there.
            return Ok(Look { claims: Vec::new(), more_turns: false });
        }
        let at = Instant::now();
        let mut tx = self.handlers.database.begin().await?;
        let store = sql(&self.ibid)?;
        if store.dialect() != tx.dialect() {
            return Err(TxError::OtherDialect);
        }
        let terms = WriteOptions::of(store);
        lock_rows_only(&mut tx).await?;
        let kinds: Vec<String> = self.handlers.by_kind.keys().cloned().collect();
        // First, so that an effect that gets its turn now is claimed by this look.
        let turns = statements::give_turns(&mut tx).await?;
        let more_turns = turns.more;
        let mut claims = Vec::new();
        let reasons = ClaimReason::ALL.into_iter();
        for reason in reasons.filter(|reason| all_reasons || *reason == ClaimReason::Call) {
            let left = u32::try_from(limit - claims.len()).unwrap_or(u32::MAX);
            if left == 0 {
                break;
            }
            let query = EffectClaim { kinds: kinds.clone(), reason, nonce: nonce(), limit: left };
            let effects = statements::take(&mut tx, &query, terms).await?;
            claims.extend(effects.into_iter().map(|effect| Claim { effect, reason, is_confirmed: true, at }));
        }
        if claims.is_empty() {
            if turns.any {
                // If the commit gets no reply, the turns are given or still stored; a later look handles what is left.
                tx.commit().await?;
            } else {
                // If the rollback fails, the database rolls back when the connection closes.
                let _ = tx.rollback().await;
            }
            return Ok(Look { claims, more_turns });
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
            Ok(()) => Ok(Look { claims, more_turns }),
            Err(error) if error.fault() == SqlFault::Lost => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "commit of a claim got no reply; releasing the effects"
                );
                // The claim may not be committed, and then the result of a call under it could not be recorded. So no call
                // is made. Effects that were claimed for a call are released, because none was made. The others stay
                // claimed, if they are, until their lease lapses.
                claims.retain(|claim| claim.reason == ClaimReason::Call);
                claims.iter_mut().for_each(|claim| claim.is_confirmed = false);
                Ok(Look { claims, more_turns })
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Result of one look at the outbox.
struct Look {
    claims: Vec<Claim>,
    /// `true` if there may be more turns of aggregates than this look has handled.
    more_turns: bool,
}

/// An effect that this worker has claimed.
struct Claim {
    effect: StoredEffect,
    reason: ClaimReason,
    /// `true` if the commit of the claim was acknowledged.
    is_confirmed: bool,
    /// Instant before the claim was sent.
    at: Instant,
}

/// Returns whether the end of this effect may let the next one of its aggregate run.
fn may_unblock_next(ended: Result<(EffectEnd, bool), JoinError>) -> bool {
    ended.is_ok_and(|(_, is_ordered)| is_ordered)
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

/// Default concurrency. Calls wait for providers most of the time, so the worker could run more. How many a provider
/// accepts is for the application to say.
const CONCURRENCY: usize = 16;

/// Default timeout of a call: as long as most HTTP clients wait, and half of the default lease. The other half is for
/// writing the result.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Default time between two polls. An idle poll costs the database less than a millisecond, and work that is deferred
/// anyway can wait a second more.
const POLL_EVERY: Duration = Duration::from_secs(1);

/// Time to write a result while the worker stops, on top of the call's timeout: a call that starts just before the stop
/// may use all of that.
const END_WITHIN: Duration = Duration::from_secs(5);

/// Retries of a claim after a conflict with another transaction. Few are enough, because the next poll comes soon.
const CLAIM_TRIES_MAX: u32 = 4;
