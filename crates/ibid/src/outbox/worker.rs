//! Claims due effects and executes them, up to `concurrency` at a time. Any number of workers may run on one database.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use ibid_core::sql::Database;
use metrics::counter;
use parking_lot::Mutex;
use tokio::task::{self, JoinError, JoinSet};
use tokio::time::Instant;
use tracing::Instrument;

use super::claim_due::{Claim, Look, TenantWalks};
use super::continue_trace;
use super::dyn_handler::DynEffectHandler;
use super::execute::ClaimedEffect;
use super::handler::EffectHandler;
use super::handler_limits::HandlerLimits;
use super::record_result::EffectEnd;
use crate::backoff::spread;
use crate::evidence::effect::{EffectSettler, KindHandler, WorkerHandlers};
use crate::ibid::Ibid;
use crate::slot_shares::SlotShares;
use crate::telemetry;
use crate::transaction::TxError;

/// Executes effects. Built by [`Worker::builder`].
pub struct Worker<D: Database> {
    pub(super) ibid: Ibid,
    pub(super) handlers: Arc<WorkerHandlers<D>>,
    concurrency: usize,
    poll_every: Duration,
    stop_within: Duration,
    pub(super) walks: Mutex<TenantWalks>,
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
#[non_exhaustive]
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
    /// Returns a copy in which `change` has set some fields: to compare it with, in a test.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut WorkerRound)) -> WorkerRound {
        change(&mut self);
        self
    }

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
    ///
    /// One tenant gets at most half of them, and a tenant that has none comes before one that has some: a tenant whose
    /// provider hangs, or one with a backlog, delays no other. A deployment without tenants uses all.
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
        Ok(Worker { ibid, handlers, concurrency, poll_every, stop_within, walks: Mutex::default() })
    }
}

impl<D: Database + 'static> Worker<D> {
    /// Starts to build a worker for the outbox of this store, in the application's database.
    pub fn builder(ibid: Ibid, database: D) -> WorkerBuilder<D> {
        WorkerBuilder {
            ibid,
            database,
            handlers: HashMap::new(),
            within: HandlerLimits::default(),
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
        let mut running = RunningEffects::default();
        let mut next_poll = Instant::now();
        let mut next = NextLook { more_due: true, is_refused: false };
        loop {
            // Registered before the poll, so that an effect enqueued in between is not missed.
            let mut enqueued = std::pin::pin!(self.ibid.outbox().enqueued.notified());
            enqueued.as_mut().enable();
            let has_free = running.len() < self.concurrency;
            if has_free && (next.more_due || Instant::now() >= next_poll) {
                let all_reasons = Instant::now() >= next_poll;
                if all_reasons {
                    next_poll = Instant::now() + spread(self.poll_every);
                }
                next = self.claim_and_start(next, all_reasons, &mut running).await;
            }
            tokio::select! {
                () = &mut stop => break,
                () = enqueued => next.more_due = true,
                () = tokio::time::sleep_until(next_poll), if running.len() < self.concurrency => {}
                Some(ended) = running.join_next() => {
                    next.more_due |= next.is_refused || ended.may_unblock_next();
                    while let Some(ended) = running.try_join_next() {
                        next.more_due |= next.is_refused || ended.may_unblock_next();
                    }
                }
            }
        }
        let finish = async { while running.join_next().await.is_some() {} };
        if tokio::time::timeout(self.stop_within, finish).await.is_err() {
            tracing::warn!("worker stopped with calls in flight; their claims will lapse");
        }
    }

    /// Claims due effects, at most `concurrency` of them and half of that for one tenant, executes them and returns the counts.
    ///
    /// # Errors
    ///
    /// Fails if the effects could not be claimed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, it ends like [`Worker::run`].
    pub async fn run_once(&self) -> Result<WorkerRound, TxError> {
        let mut running = RunningEffects::default();
        for claim in self.look(running.shares(self.concurrency), true).await?.claims {
            self.start(&mut running, claim);
        }
        let mut round = WorkerRound::default();
        while let Some(ended) = running.join_next().await {
            round.add(ended.end);
        }
        Ok(round)
    }

    /// Claims and starts due effects. Returns what the next look is for.
    async fn claim_and_start(
        &self,
        last: NextLook,
        all_reasons: bool,
        running: &mut RunningEffects,
    ) -> NextLook {
        let shares = running.shares(self.concurrency);
        let free = shares.free();
        match self.look(shares, all_reasons).await {
            Ok(Look { claims, more_turns, is_refused }) => {
                let is_full = claims.len() >= free;
                for claim in claims {
                    self.start(running, claim);
                }
                NextLook { more_due: is_full || more_turns, is_refused }
            }
            Err(error) => {
                // The next poll tries again.
                counter!(telemetry::STORE_ERRORS).increment(1);
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "effects could not be claimed; the next poll tries again"
                );
                NextLook { more_due: false, ..last }
            }
        }
    }

    fn start(&self, running: &mut RunningEffects, claim: Claim) {
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
        let slot = WorkerSlot { tenant: effect.tenant.clone(), is_ordered: effect.aggregate.is_some() };
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
        running.spawn(slot, claimed.execute().instrument(span));
    }
}

/// Reasons for the next look of a running worker.
#[derive(Clone, Copy)]
struct NextLook {
    /// `true` if more effects may be due than the last look has claimed: the worker looks as soon as it has a free slot.
    more_due: bool,
    /// `true` if the last look left due effects of a tenant that has its share of the slots: they may wait for the end of any
    /// running effect.
    is_refused: bool,
}

/// The effects that a worker executes now, each in one of its slots.
#[derive(Default)]
struct RunningEffects {
    tasks: JoinSet<EffectEnd>,
    slots: HashMap<task::Id, WorkerSlot>,
}

/// A slot of a worker, taken by one effect.
struct WorkerSlot {
    /// Tenant of the effect.
    tenant: String,
    /// `true` if the effect belongs to an aggregate.
    is_ordered: bool,
}

/// An effect whose execution has ended.
struct EndedEffect {
    end: EffectEnd,
    is_ordered: bool,
}

impl EndedEffect {
    /// Returns whether the end of this effect may let the next one of its aggregate run.
    fn may_unblock_next(&self) -> bool {
        self.is_ordered
    }
}

impl RunningEffects {
    fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Returns the slots as they are now.
    fn shares(&self, total: usize) -> SlotShares {
        let mut shares = SlotShares::of_tenants(total);
        self.slots.values().for_each(|slot| shares.hold(&slot.tenant));
        shares
    }

    fn spawn(&mut self, slot: WorkerSlot, execution: impl Future<Output = EffectEnd> + Send + 'static) {
        let id = self.tasks.spawn(execution).id();
        self.slots.insert(id, slot);
    }

    async fn join_next(&mut self) -> Option<EndedEffect> {
        let ended = self.tasks.join_next_with_id().await?;
        Some(self.free(ended))
    }

    fn try_join_next(&mut self) -> Option<EndedEffect> {
        let ended = self.tasks.try_join_next_with_id()?;
        Some(self.free(ended))
    }

    /// Frees the slot of an execution that has ended. One that panicked has written nothing.
    fn free(&mut self, ended: Result<(task::Id, EffectEnd), JoinError>) -> EndedEffect {
        let (id, end) = ended.unwrap_or_else(|error| (error.id(), EffectEnd::Unwritten));
        let slot = self.slots.remove(&id);
        EndedEffect { end, is_ordered: slot.is_some_and(|slot| slot.is_ordered) }
    }
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

/// Default time between two polls. An idle poll costs the database less than a millisecond, and work that is deferred
/// anyway can wait a second more.
const POLL_EVERY: Duration = Duration::from_secs(1);

/// Time to write a result while the worker stops, on top of the call's timeout: a call that starts just before the stop
/// may use all of that.
const END_WITHIN: Duration = Duration::from_secs(5);
