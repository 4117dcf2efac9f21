//! The worker: takes what is due and has it carried out, so many at once. Any number may run on one database.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use ibid_core::effect::{Rules, StoredEffect, Take};
use ibid_core::machine::EffectState;
use ibid_core::sql::{Database, Fault, OwnedTx, SqlError, SqlTx};
use metrics::counter;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tracing::Instrument;

use super::carry::{Errand, Held};
use super::ending::Ended;
use super::handler::Handler;
use super::statements;
use super::told::{Desk, Served, Settle};
use super::traced::go_on;
use crate::backoff::spread;
use crate::failpoint::{self, Hit};
use crate::ibid::Ibid;
use crate::random::nonce;
use crate::telemetry;
use crate::transaction::TxError;
use crate::transaction::inside::sql;
use crate::transaction::statements::Terms;

/// Carries out Effects. Made by [`Worker::builder`].
pub struct Worker<D: Database> {
    ibid: Ibid,
    desk: Arc<Desk<D>>,
    concurrency: usize,
    poll_every: Duration,
    stop_within: Duration,
}

/// How a [`Worker`] is to work.
pub struct Builder<D: Database> {
    ibid: Ibid,
    database: D,
    handlers: Handlers<D::Tx>,
    /// Of those that have no bounds of their own.
    within: Within,
    concurrency: usize,
    poll_every: Duration,
    stop_within: Option<Duration>,
}

/// By kind, and the bounds that it has of its own.
type Handlers<T> = HashMap<String, (Arc<dyn Handler<T>>, Option<Within>)>;

/// How long one kind of Effect may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Within {
    /// A call, a look at the provider, or a handler's rows.
    pub timeout: Duration,
    /// The shortest lease in the rules of these Effects. What is claimed under a shorter one is broken off when that
    /// ends.
    pub lease: Duration,
}

/// Why there is no such worker.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkerError {
    /// The store has no outbox.
    #[error("the store has no outbox: it is no SQL store")]
    NoSql,
    /// It would never have anything to do.
    #[error("the worker has no handler, or may do nothing at once")]
    Idle,
    /// A call could outlast the claim that it is made under.
    #[error(
        "a call of `{kind}` may take {timeout:?}, and the claim that it is made under lasts only {lease:?}"
    )]
    OutlastsLease {
        /// Of which kind.
        kind: String,
        /// How long a call may take.
        timeout: Duration,
        /// How long a claim lasts.
        lease: Duration,
    },
}

/// What one look at the outbox came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Effects that were done.
    pub done: u32,
    /// Those that are to be tried or asked about again.
    pub again: u32,
    /// Those that are a person's now: dead, or unknown with nobody left to ask.
    pub dead: u32,
    /// Claims that were lost to another worker, and ends that could not be written.
    pub lost: u32,
}

impl Round {
    /// Whether nothing was due.
    pub fn is_idle(&self) -> bool {
        *self == Round::default()
    }

    fn add(&mut self, ended: Ended) {
        let count = match ended {
            Ended::Moved { to: EffectState::Done, .. } => &mut self.done,
            Ended::Moved { due: true, .. } => &mut self.again,
            Ended::Moved { .. } => &mut self.dead,
            Ended::Lost | Ended::Unwritten => &mut self.lost,
        };
        *count += 1;
    }
}

impl<D: Database + 'static> Builder<D> {
    /// Carries out Effects of this kind; a second handler of one kind replaces the first.
    pub fn on(mut self, kind: impl Into<String>, handler: impl Handler<D::Tx> + 'static) -> Self {
        self.handlers.insert(kind.into(), (Arc::new(handler), None));
        self
    }

    /// The same for a kind with bounds of its own: a provider that is slower than others, or must not be waited for.
    pub fn on_within(
        mut self,
        kind: impl Into<String>,
        within: Within,
        handler: impl Handler<D::Tx> + 'static,
    ) -> Self {
        self.handlers.insert(kind.into(), (Arc::new(handler), Some(within)));
        self
    }

    /// How many Effects are carried out at once. Each needs a connection of the pool only to be ended.
    pub fn concurrency(mut self, effects: usize) -> Self {
        self.concurrency = effects;
        self
    }

    /// How long a call, a look at the provider, or a handler's rows may take, of all kinds that are not
    /// [given bounds of their own](Builder::on_within).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.within.timeout = timeout;
        self
    }

    /// The shortest lease in the rules of their Effects, if it is not the usual one.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.within.lease = lease;
        self
    }

    /// From one look at the outbox to the next, give or take a quarter. Effects that this process enqueues are seen at
    /// once; this is for those of others, for pauses and for lapsed claims.
    pub fn poll_every(mut self, every: Duration) -> Self {
        self.poll_every = every;
        self
    }

    /// How long a stopping worker waits for what it has in hand: unless told, for as long as the slowest may take.
    pub fn stop_within(mut self, within: Duration) -> Self {
        self.stop_within = Some(within);
        self
    }

    /// The worker, unless what it is told can't be kept.
    pub fn build(self) -> Result<Worker<D>, WorkerError> {
        let Builder { ibid, database, handlers, within, concurrency, poll_every, stop_within } = self;
        if ibid.store().sql().is_none() {
            return Err(WorkerError::NoSql);
        }
        if handlers.is_empty() || concurrency == 0 {
            return Err(WorkerError::Idle);
        }
        let mut served = HashMap::new();
        for (kind, (handler, own)) in handlers {
            let Within { timeout, lease } = own.unwrap_or(within);
            if timeout >= lease {
                return Err(WorkerError::OutlastsLease { kind, timeout, lease });
            }
            served.insert(kind, Served { handler, timeout });
        }
        let slowest = served.values().map(|served| served.timeout).max().unwrap_or_default();
        let stop_within = stop_within.unwrap_or(slowest.saturating_add(END_WITHIN));
        let desk = Arc::new(Desk { database: Arc::new(database), served });
        let settles: Arc<dyn Settle> = desk.clone();
        ibid.outbox().desks.add(Arc::downgrade(&settles));
        Ok(Worker { ibid, desk, concurrency, poll_every, stop_within })
    }
}

impl<D: Database + 'static> Worker<D> {
    /// A worker for the outbox of this store, in this database of the application.
    pub fn builder(ibid: Ibid, database: D) -> Builder<D> {
        Builder {
            ibid,
            database,
            handlers: HashMap::new(),
            within: Within { timeout: TIMEOUT, lease: Rules::default().lease() },
            concurrency: CONCURRENCY,
            poll_every: POLL_EVERY,
            stop_within: None,
        }
    }

    /// Works until dropped. What is in hand then is broken off, and taken up again when its claim has lapsed;
    /// [`Worker::run_until`] finishes it.
    pub async fn run(&self) {
        self.run_until(std::future::pending()).await;
    }

    /// Works until `stop`. Then it takes nothing more and finishes what it has in hand, for a bounded time.
    pub async fn run_until(&self, stop: impl Future<Output = ()>) {
        let mut stop = std::pin::pin!(stop);
        let mut in_hand = JoinSet::new();
        let (mut everything_at, mut more) = (Instant::now(), true);
        loop {
            // Registered before the look, so that what is enqueued in between is not missed.
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
            tracing::warn!("a stopping worker broke off calls; their claims lapse");
        }
    }

    /// Takes what is due, as much as the worker may have in hand at once, carries it out and says what came of it.
    pub async fn run_once(&self) -> Result<Round, TxError> {
        let mut in_hand = JoinSet::new();
        for (effect, errand, at) in self.taken(self.concurrency, true).await? {
            self.begin(&mut in_hand, effect, errand, at);
        }
        let mut round = Round::default();
        while let Some(ended) = in_hand.join_next().await {
            round.add(ended.map_or(Ended::Unwritten, |(ended, _)| ended));
        }
        Ok(round)
    }

    /// Takes and begins what is due. Whether more may be.
    async fn take(&self, free: usize, everything: bool, in_hand: &mut JoinSet<(Ended, bool)>) -> bool {
        match self.taken(free, everything).await {
            Ok(taken) => {
                let full = taken.len() >= free;
                for (effect, errand, at) in taken {
                    self.begin(in_hand, effect, errand, at);
                }
                full
            }
            Err(error) => {
                // Tried again at the next look.
                counter!(telemetry::STORE_ERRORS).increment(1);
                tracing::warn!(error = &error as &dyn std::error::Error, "no effects could be taken");
                false
            }
        }
    }

    fn begin(&self, in_hand: &mut JoinSet<(Ended, bool)>, effect: StoredEffect, errand: Errand, at: Instant) {
        // Only kinds that have a handler are taken.
        let Some(Served { handler, timeout }) = self.desk.served.get(&effect.kind) else { return };
        let span = tracing::debug_span!(
            telemetry::SPAN_EFFECT,
            effect = effect.seq,
            kind = effect.kind,
            tries = effect.tries,
            trace = effect.trace.as_deref(),
        );
        if let Some(trace) = &effect.trace {
            go_on(&span, trace);
        }
        let in_order = effect.aggregate.is_some();
        let held = Held {
            ibid: self.ibid.clone(),
            database: self.desk.database.clone(),
            handler: handler.clone(),
            timeout: *timeout,
            effect,
            errand,
            at,
        };
        in_hand.spawn(async move { (held.carry_out().await, in_order) }.instrument(span));
    }

    /// Takes up to `limit`. Lapsed claims and open questions first: they are few, and a full queue must not starve them.
    async fn taken(
        &self,
        limit: usize,
        everything: bool,
    ) -> Result<Vec<(StoredEffect, Errand, Instant)>, TxError> {
        let mut tries = 0;
        loop {
            match self.taken_once(limit, everything).await {
                Err(error) if error.is_again() && tries < TAKE_TRIES_MAX => tries += 1,
                taken => return taken,
            }
        }
    }

    async fn taken_once(
        &self,
        limit: usize,
        everything: bool,
    ) -> Result<Vec<(StoredEffect, Errand, Instant)>, TxError> {
        let at = Instant::now();
        let mut tx = self.desk.database.begin().await?;
        let store = sql(&self.ibid)?;
        if store.dialect() != tx.dialect() {
            return Err(TxError::OtherDialect);
        }
        let terms = Terms::of(store);
        let kinds: Vec<String> = self.desk.served.keys().cloned().collect();
        let mut taken = Vec::new();
        for (errand, from, to, counts) in if everything { &LOOKS[..] } else { &LOOKS[2..] } {
            let left = u32::try_from(limit - taken.len()).unwrap_or(u32::MAX);
            if left == 0 {
                break;
            }
            let take = Take {
                kinds: kinds.clone(),
                from: *from,
                to: *to,
                nonce: nonce(),
                counts: *counts,
                limit: left,
            };
            let found = statements::take(&mut tx, &take, terms).await?;
            taken.extend(found.into_iter().map(|effect| (effect, *errand, at)));
        }
        if taken.is_empty() {
            // Undone with the connection if this fails.
            let _ = tx.rollback().await;
            return Ok(taken);
        }
        if failpoint::at("claim.before").await == Hit::Error {
            return Err(SqlError::new(Fault::Again, "a failpoint").into());
        }
        let committed = match tx.commit().await {
            Ok(()) if failpoint::at("claim.after").await == Hit::Lost => {
                Err(SqlError::new(Fault::Lost, "a failpoint"))
            }
            committed => committed,
        };
        match committed {
            Ok(()) => Ok(taken),
            Err(error) if error.fault() == Fault::Lost => {
                tracing::warn!(error = &error as &dyn std::error::Error, "a claim got no reply");
                // Whether it came is not known; a call under it might never be recorded. What was claimed to be called
                // certainly was not, and is given back; the rest is taken again when its lease is over.
                let unsure = taken.into_iter().filter(|(_, errand, _)| *errand == Errand::Call);
                Ok(unsure.map(|(effect, _, at)| (effect, Errand::GiveBack, at)).collect())
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Whether the end of this one lets another of its aggregate go.
fn in_order(ended: Result<(Ended, bool), JoinError>) -> bool {
    ended.is_ok_and(|(_, in_order)| in_order)
}

impl<D: Database> fmt::Debug for Worker<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds: Vec<_> = self.desk.served.keys().collect();
        f.debug_struct("Worker").field("kinds", &kinds).finish_non_exhaustive()
    }
}

impl<D: Database> fmt::Debug for Builder<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds: Vec<_> = self.handlers.keys().collect();
        f.debug_struct("Builder").field("kinds", &kinds).finish_non_exhaustive()
    }
}

/// What is looked for: for which errand, in which state, held in which, and whether that counts as a try. Questions
/// count, so that they end.
const LOOKS: [(Errand, EffectState, EffectState, bool); 3] = [
    (Errand::Lapsed, EffectState::Claimed, EffectState::Claimed, false),
    (Errand::Verify, EffectState::Unknown, EffectState::Unknown, true),
    (Errand::Call, EffectState::Queued, EffectState::Claimed, true),
];

/// Calls wait for providers most of the time; more at once than this is a question to the provider.
const CONCURRENCY: usize = 16;

/// What most HTTP clients wait for, and half of the usual lease: the other half is for writing the end.
const TIMEOUT: Duration = Duration::from_secs(30);

/// An idle look costs less than a millisecond of the database, and a second is not noticed in what happens later anyway.
const POLL_EVERY: Duration = Duration::from_secs(1);

/// A call begun just before the stop may take all of its time, and its end this much more.
const END_WITHIN: Duration = Duration::from_secs(5);

/// How often a look is tried anew when another transaction was in its way; the next look is never far.
const TAKE_TRIES_MAX: u32 = 4;

#[cfg(test)]
mod tests {
    use ibid_core::machine::{Doubt, Effect, EffectEvent, decide_effect};

    use super::*;

    #[test]
    fn a_claim_is_what_the_machine_says_it_is() {
        let queued = Effect { state: EffectState::Queued, tries: 0, tries_max: 1, doubt: Doubt::Stop };
        let (_, from, to, _) = LOOKS[2];
        assert_eq!(from, queued.state);
        assert_eq!(decide_effect(&queued, EffectEvent::Claim), Some((to, None)));
        assert!(LOOKS[..2].iter().all(|(_, from, to, _)| from == to), "a look for the rest changes no state");
    }
}
