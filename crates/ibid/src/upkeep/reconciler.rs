//! Settles `unknown` records by looking up their outcome. It only reads: it never runs a request again.
//!
//! Several processes may look up the same record at once. The machine counts their lookups as one try, and the first process
//! to settle the record wins.

use std::collections::{HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt as _};
use ibid_core::change::StoredRecord;
use ibid_core::effect::downstream_key;
use ibid_core::key::Key;
use ibid_core::machine::{
    AttemptResponse, Decision, Event, LOOKUP_STATE, Observation, ObservedBy, may_be_looked_up,
};
use ibid_core::policy::{Policy, Reconcile};
use ibid_core::record::{Nonce, Record};
use ibid_core::response::Response;
use ibid_core::scope::{RecordId, Tenant};
use ibid_core::store::{BoxFuture, Cursor, StoreError};
use ibid_core::time::Timestamp;
use metrics::counter;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::engine::GiveUp;
use crate::ibid::Ibid;
use crate::random::jitter;
use crate::slot_shares::SlotShares;
use crate::telemetry;

/// Looks up the outcome of a request, at the upstream or the provider.
pub trait OutcomeLookup: Send + Sync {
    /// Returns whether this lookup can handle records with this rule. Other records are left to a process that can, and none
    /// of their tries is used up.
    fn asks(&self, rule: &Reconcile) -> bool {
        let _ = rule;
        true
    }

    /// Looks up the outcome once, without changing anything.
    ///
    /// Return [`LookupResult::Nothing`] on an error, on a timeout, and if you are not sure. A lookup that takes longer than
    /// the route's `upstream_timeout`, or longer than 30 s, is dropped and counts as `Nothing`.
    fn find(&self, request: UnknownRequest) -> BoxFuture<'static, LookupResult>;
}

/// A request whose outcome is unknown, as an [`OutcomeLookup`] sees it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UnknownRequest {
    /// Tenant of the request. Restrict the lookup to it, because another tenant may use the same key.
    pub tenant: Tenant,
    /// HTTP method of the request.
    pub method: String,
    /// Path of the request, as sent.
    pub path: String,
    /// Idempotency key of the request.
    pub key: Key,
    /// Number of attempts so far.
    pub attempt: u32,
    /// Number of earlier lookups.
    pub asked: u32,
    /// Time of the first request, by the store's clock.
    pub created_at: Timestamp,
    /// Start of the last attempt.
    pub ran_at: Option<Timestamp>,
    /// The provider's id of the operation, if it is known.
    pub provider_id: Option<String>,
    /// Short id of the record, as in logs. `ibid keys show` accepts it.
    pub short: String,
    /// Policy that the record was begun with.
    pub policy: Arc<Policy>,
    id: RecordId,
    birth: Nonce,
}

impl UnknownRequest {
    fn of(record: &Record) -> UnknownRequest {
        let operation = &record.identity.operation;
        UnknownRequest {
            tenant: record.identity.tenant.clone(),
            method: operation.method.to_string(),
            path: operation.path.to_string(),
            key: record.identity.key.clone(),
            attempt: record.attempt,
            asked: record.note.tries,
            created_at: record.created_at,
            ran_at: record.ran_at,
            provider_id: record.note.provider_id.clone(),
            short: record.id.short(),
            policy: record.policy.clone(),
            id: record.id,
            birth: record.birth,
        }
    }

    /// Returns the downstream key of the request's phase or effect with this name.
    pub fn downstream_key(&self, name: &str) -> String {
        downstream_key(&self.id, self.birth, name)
    }
}

/// Result of one lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LookupResult {
    /// The request was executed, with this response. A decline is a response too.
    Executed(Response),
    /// The request was executed, but its response, with this status, cannot be stored. Retries get an error that says so.
    ExecutedNotKept(u16),
    /// The request was not executed. Two such results are needed, `settle` apart, after the attempt's end.
    NotExecuted,
    /// The lookup did not find out.
    Nothing,
}

/// Counts of one round of the reconciler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReconcileStats {
    /// Lookups that were made.
    pub asked: u64,
    /// Records whose outcome is known now.
    pub settled: u64,
    /// Records that became dead letters: an operator has to settle them.
    pub dead_letters: u64,
    /// Time until another round may look up the rest. This process has just started, or the store's clock has jumped, and
    /// two lookups may be closer together than the stored times say.
    pub held_back: Option<Duration>,
}

impl Ibid {
    /// Registers the lookup that the reconciler of this process uses for records of routes with a reconcile rule.
    pub fn reconcile_with(&self, lookup: Arc<dyn OutcomeLookup>) {
        *self.upkeep().lookup.registered.lock() = Some(lookup);
    }
}

/// The lookup that is registered in this process, if any.
#[derive(Default)]
pub(crate) struct LookupSlot {
    registered: Mutex<Option<Arc<dyn OutcomeLookup>>>,
    /// Cursor of the next round; `None`: it begins with the record that is due longest.
    cursor: Mutex<Option<Cursor>>,
}

/// Looks up every unknown record whose next lookup is due. Does nothing if no lookup is registered
/// ([`Ibid::reconcile_with`]).
///
/// # Errors
///
/// Fails if the store cannot be read. The next round finds the rest.
///
/// # Cancel safety
///
/// Each record is written whole or not at all. If the future is dropped, lookups in flight are abandoned, and the next round
/// repeats them.
pub async fn reconcile_once(ibid: &Ibid) -> Result<ReconcileStats, StoreError> {
    reconcile_with_progress(ibid, |_| {}).await
}

/// Like [`reconcile_once`], and calls `on_lookup` after every lookup with the counts so far.
///
/// # Errors
///
/// Fails as [`reconcile_once`] does.
///
/// # Cancel safety
///
/// Each record is written whole or not at all. If the future is dropped, lookups in flight are abandoned, and the next round
/// repeats them.
pub async fn reconcile_with_progress(
    ibid: &Ibid,
    on_lookup: impl FnMut(&ReconcileStats),
) -> Result<ReconcileStats, StoreError> {
    reconcile(ibid, Duration::ZERO, on_lookup).await
}

/// Looks up records that have been due for `overdue_by`. Returns how many were settled.
///
/// Any process may be elected for the lookups, and it may be unable to look up some records: those are overdue for the
/// others.
pub(super) async fn reconcile_overdue(ibid: &Ibid, overdue_by: Duration) -> Result<u64, StoreError> {
    reconcile(ibid, overdue_by, |_| {}).await.map(|stats| stats.settled)
}

async fn reconcile(
    ibid: &Ibid,
    overdue_by: Duration,
    mut on_lookup: impl FnMut(&ReconcileStats),
) -> Result<ReconcileStats, StoreError> {
    let mut stats = ReconcileStats::default();
    let lookup = ibid.upkeep().lookup.registered.lock().clone();
    let Some(lookup) = lookup else { return Ok(stats) };
    let mut round = LookupRound::new(ibid, &*lookup, overdue_by);
    let mut running = FuturesUnordered::new();
    let mut failed = None;
    loop {
        // After a failed read the lookups in flight are waited for: they have used up a try of their records.
        while failed.is_none() {
            match round.next(&mut stats).await {
                Ok(Some(DueLookup { stored, route, at })) => {
                    running.push(look_up(ibid, &*lookup, stored, route, at));
                }
                Ok(None) => break,
                Err(error) => failed = Some(error),
            }
        }
        let Some(LookupEnd { step, tenant, route }) = running.next().await else { break };
        round.release(&tenant, &route);
        stats.asked += 1;
        stats.settled += u64::from(step == LookupStep::Settled);
        stats.dead_letters += u64::from(step == LookupStep::DeadLetter);
        on_lookup(&stats);
    }
    failed.map_or(Ok(stats), Err)
}

/// One round: reads the records that are due and says which one is looked up next.
///
/// Up to [`WINDOW`] lookups are in flight. A tenant or a route whose lookups hang has at most half of them, and its other
/// records wait here while those of others are looked up.
struct LookupRound<'a> {
    ibid: &'a Ibid,
    lookup: &'a dyn OutcomeLookup,
    overdue_by: Duration,
    began: Instant,
    /// Records that are due and have no place in the window yet, with their routes, in the order in which they are due.
    waiting: VecDeque<(StoredRecord, String)>,
    pages_left: u32,
    by_tenant: SlotShares,
    by_route: SlotShares,
    /// Earliest instant of the next lookup for each route.
    next_at: HashMap<String, Instant>,
}

impl<'a> LookupRound<'a> {
    fn new(ibid: &'a Ibid, lookup: &'a dyn OutcomeLookup, overdue_by: Duration) -> LookupRound<'a> {
        LookupRound {
            ibid,
            lookup,
            overdue_by,
            began: Instant::now(),
            waiting: VecDeque::new(),
            pages_left: PAGES_MAX,
            by_tenant: SlotShares::of_tenants(WINDOW),
            by_route: SlotShares::new(WINDOW),
            next_at: HashMap::new(),
        }
    }

    /// Returns the next lookup that may start now. `None`: none may before one ends, or the round is over.
    async fn next(&mut self, stats: &mut ReconcileStats) -> Result<Option<DueLookup>, StoreError> {
        loop {
            if self.by_tenant.free() == 0 || self.began.elapsed() >= STARTS_FOR {
                return Ok(None);
            }
            let (by_tenant, by_route) = (&self.by_tenant, &self.by_route);
            let next = self.waiting.iter().position(|(stored, route)| {
                let tenant = stored.record.identity.tenant.as_str();
                by_tenant.room(tenant) > 0 && by_route.room(route) > 0
            });
            if let Some((stored, route)) = next.and_then(|next| self.waiting.remove(next)) {
                return Ok(Some(self.admit(stored, route)));
            }
            // The records that wait belong to tenants or routes that have their share, so others may be behind them.
            if self.pages_left == 0 {
                return Ok(None);
            }
            self.read(stats).await?;
        }
    }

    fn admit(&mut self, stored: StoredRecord, route: String) -> DueLookup {
        self.by_tenant.hold(stored.record.identity.tenant.as_str());
        self.by_route.hold(&route);
        let now = Instant::now();
        let next_at = self.next_at.entry(route.clone()).or_insert(now);
        let at = now.max(*next_at);
        *next_at = at + PACE;
        DueLookup { stored, route, at }
    }

    fn release(&mut self, tenant: &Tenant, route: &str) {
        self.by_tenant.release(tenant.as_str());
        self.by_route.release(route);
    }

    /// Reads the next page of due records.
    ///
    /// Records that this process cannot look up stay due. The cursor goes past them to those behind, and the next round
    /// continues there: otherwise records behind more of them than fit into one round would never be looked up.
    async fn read(&mut self, stats: &mut ReconcileStats) -> Result<(), StoreError> {
        let cursor = &self.ibid.upkeep().lookup.cursor;
        let after = cursor.lock().take();
        let page = self.ibid.engine().due(LOOKUP_STATE, after, PAGE).await?;
        // After the last record the next round starts over.
        self.pages_left = if page.next.is_none() { 0 } else { self.pages_left - 1 };
        *cursor.lock() = page.next;
        for stored in page.items {
            let rule = stored.record.policy.reconcile.as_ref().filter(|_| may_be_looked_up(&stored.record));
            let Some(rule) = rule.filter(|rule| self.lookup.asks(rule)) else { continue };
            if stored.record.due_at.is_some_and(|due_at| stored.now < due_at.after(self.overdue_by)) {
                continue;
            }
            // After a jump of the store's clock, two lookups may be closer together than their times say. All wait.
            if self.ibid.engine().is_clock_unsure(rule.settle) {
                stats.held_back = stats.held_back.max(Some(rule.settle));
                continue;
            }
            let route = rule.route.clone().unwrap_or_else(|| "*".to_owned());
            self.waiting.push_back((stored, route));
        }
        Ok(())
    }
}

/// A record that is to be looked up at the instant `at`.
struct DueLookup {
    stored: StoredRecord,
    route: String,
    at: Instant,
}

/// A record that was looked up.
struct LookupEnd {
    step: LookupStep,
    tenant: Tenant,
    route: String,
}

/// Result of looking up one record.
#[derive(PartialEq, Eq)]
enum LookupStep {
    Settled,
    Later,
    DeadLetter,
}

/// Looks up one record at the instant `at` and writes the result, by compare-and-set on the version that was read.
///
/// The record may have been read some seconds before. Its next lookup is due by the write of this one, so two lookups are
/// never closer together than `settle`.
async fn look_up(
    ibid: &Ibid,
    lookup: &dyn OutcomeLookup,
    stored: StoredRecord,
    route: String,
    at: Instant,
) -> LookupEnd {
    tokio::time::sleep_until(at).await;
    let tenant = stored.record.identity.tenant.clone();
    let step = write_result(ibid, lookup, stored, &route).await;
    LookupEnd { step, tenant, route }
}

async fn write_result(
    ibid: &Ibid,
    lookup: &dyn OutcomeLookup,
    stored: StoredRecord,
    route: &str,
) -> LookupStep {
    let (record, policy) = (stored.record.id.short(), stored.record.policy.clone());
    counter!(telemetry::RECONCILE_SCHEDULED, "route" => route.to_owned()).increment(1);
    // The time before the lookup: its result may or may not include what happens later.
    let as_of = stored.now;
    let observation = ask(lookup, &stored.record, &policy).await;
    let event = |nonce| Event::Observed {
        nonce,
        by: ObservedBy::Reconciler,
        what: &observation,
        as_of,
        jitter: jitter(),
    };
    let settlement = ibid.engine().write_until_done(Some(stored), GiveUp::Soon, event).await;
    if observation == Observation::Nothing {
        counter!(telemetry::RECONCILE_FAILED, "route" => route.to_owned()).increment(1);
    }
    match settlement.decision {
        // The store refused the write: the next round looks the record up again.
        _ if settlement.refused.is_some() => LookupStep::Later,
        Decision::Settled => {
            let state = settlement.stored.map(|stored| stored.record.state.name());
            tracing::info!(%record, state, "unknown outcome found by lookup");
            counter!(telemetry::RECONCILE_RESOLVED, "route" => route.to_owned()).increment(1);
            LookupStep::Settled
        }
        Decision::Later if settlement.stored.is_some_and(|stored| !may_be_looked_up(&stored.record)) => {
            tracing::error!(%record, "outcome still unknown after the last lookup; record needs manual attention");
            LookupStep::DeadLetter
        }
        _ => LookupStep::Later,
    }
}

async fn ask(lookup: &dyn OutcomeLookup, record: &Record, policy: &Policy) -> Observation {
    let find = async { lookup.find(UnknownRequest::of(record)).await };
    let limit = policy.upstream_timeout.min(LOOKUP_FOR_MAX);
    // A lookup that panics has found nothing, and must not end the chore.
    let result = match tokio::time::timeout(limit, AssertUnwindSafe(find).catch_unwind()).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => {
            tracing::error!(record = %record.id.short(), "outcome lookup panicked");
            LookupResult::Nothing
        }
        Err(_) => LookupResult::Nothing,
    };
    let executed =
        |status, kept| AttemptResponse { status, retry_after: false, kept, provider_id: None, proof: None };
    match result {
        LookupResult::Executed(response) if response.body.len() as u64 > policy.max_response_body => {
            Observation::Executed(executed(response.status, None))
        }
        LookupResult::Executed(response) => {
            let response = response.repeatable(policy);
            Observation::Executed(executed(response.status, Some(Arc::new(response))))
        }
        LookupResult::ExecutedNotKept(status) => Observation::Executed(executed(status, None)),
        LookupResult::NotExecuted => Observation::NotExecuted,
        LookupResult::Nothing => Observation::Nothing,
    }
}

/// Lookups in flight at once. An upstream that has just recovered must not be overloaded by lookups.
const WINDOW: usize = 64;

/// Records in one page: enough to fill the window.
const PAGE: u32 = 64;

/// Pages in one round, so that a round ends. The next round starts seconds later.
const PAGES_MAX: u32 = 16;

/// Time after which a round starts no more lookups: it has time for all records of a round at the pace of one route, and
/// with the last lookups it ends within a minute, however many hang. The records that still wait stay due.
const STARTS_FOR: Duration = Duration::from_secs(30);

/// Time between two lookups for one route: fifty a second, which is little compared with the route's traffic.
const PACE: Duration = Duration::from_millis(20);

/// Longest duration of one lookup, however slow the route itself is: a lookup only reads.
const LOOKUP_FOR_MAX: Duration = Duration::from_secs(30);
