//! Settles `unknown` records by looking up their outcome. It only reads: it never runs a request again.
//!
//! Several processes may look up the same record at once. The machine counts their lookups as one try, and the first process
//! to settle the record wins.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use ibid_core::change::StoredRecord;
use ibid_core::effect::downstream_key;
use ibid_core::key::Key;
use ibid_core::machine::{AttemptResponse, Decision, Event, Observation, ObservedBy, may_be_looked_up};
use ibid_core::policy::{Policy, Reconcile};
use ibid_core::record::{Nonce, Record, State};
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

/// Like [`reconcile_once`], and calls `on_batch` after every batch of lookups with the counts so far.
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
    on_batch: impl FnMut(&ReconcileStats),
) -> Result<ReconcileStats, StoreError> {
    reconcile(ibid, Duration::ZERO, on_batch).await
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
    mut on_batch: impl FnMut(&ReconcileStats),
) -> Result<ReconcileStats, StoreError> {
    let mut stats = ReconcileStats::default();
    let lookup = ibid.upkeep().lookup.registered.lock().clone();
    let Some(lookup) = lookup else { return Ok(stats) };
    // Records that this process cannot look up stay due. The cursor goes past them to those behind, and the next round
    // continues there: otherwise records behind more of them than fit into one round would never be looked up.
    let cursor = &ibid.upkeep().lookup.cursor;
    for _ in 0..BATCHES_MAX {
        let after = cursor.lock().take();
        let page = ibid.engine().due(State::Unknown, after, BATCH).await?;
        let is_last = page.next.is_none();
        *cursor.lock() = page.next;
        let (mut turns, mut lookups) = (HashMap::new(), Vec::new());
        for stored in page.items {
            let rule = stored.record.policy.reconcile.as_ref().filter(|_| may_be_looked_up(&stored.record));
            let Some(rule) = rule.filter(|rule| lookup.asks(rule)) else { continue };
            if stored.record.due_at.is_some_and(|due_at| stored.now < due_at.after(overdue_by)) {
                continue;
            }
            // After a jump of the store's clock, two lookups may be closer together than their times say. All wait.
            if ibid.engine().is_clock_unsure(rule.settle) {
                stats.held_back = stats.held_back.max(Some(rule.settle));
                continue;
            }
            let route = rule.route.clone().unwrap_or_else(|| "*".to_owned());
            let turn: &mut u32 = turns.entry(route.clone()).or_default();
            let at = Instant::now() + PACE * *turn;
            *turn += 1;
            lookups.push(look_up(ibid, &*lookup, stored, route, at));
        }
        let asked = lookups.len() as u64;
        for step in join_all(lookups).await {
            stats.settled += u64::from(step == LookupStep::Settled);
            stats.dead_letters += u64::from(step == LookupStep::DeadLetter);
        }
        stats.asked += asked;
        on_batch(&stats);
        // After the last record the next round starts over.
        if is_last {
            break;
        }
    }
    Ok(stats)
}

/// Result of looking up one record.
#[derive(PartialEq, Eq)]
enum LookupStep {
    Settled,
    Later,
    DeadLetter,
}

/// Looks up one record at the instant `at` and writes the result, by compare-and-set on the version that was read.
async fn look_up(
    ibid: &Ibid,
    lookup: &dyn OutcomeLookup,
    stored: StoredRecord,
    route: String,
    at: Instant,
) -> LookupStep {
    tokio::time::sleep_until(at).await;
    let (record, policy) = (stored.record.id.short(), stored.record.policy.clone());
    counter!(telemetry::RECONCILE_SCHEDULED, "route" => route.clone()).increment(1);
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
        counter!(telemetry::RECONCILE_FAILED, "route" => route.clone()).increment(1);
    }
    match settlement.decision {
        // The store refused the write: the next round looks the record up again.
        _ if settlement.refused.is_some() => LookupStep::Later,
        Decision::Settled => {
            let state = settlement.stored.map(|stored| stored.record.state.name());
            tracing::info!(%record, state, "unknown outcome found by lookup");
            counter!(telemetry::RECONCILE_RESOLVED, "route" => route).increment(1);
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
const BATCH: u32 = 64;

/// Batches in one round, so that a round ends. The next round starts seconds later.
const BATCHES_MAX: u32 = 16;

/// Time between two lookups for one route: fifty a second, which is little compared with the route's traffic.
const PACE: Duration = Duration::from_millis(20);

/// Longest duration of one lookup, however slow the route itself is: a lookup only reads.
const LOOKUP_FOR_MAX: Duration = Duration::from_secs(30);
