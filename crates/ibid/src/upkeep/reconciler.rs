//! Settles what is unknown by asking whoever can know. It only asks: nothing is ever run again from here.
//!
//! Several processes may ask about the same record at once; the machine takes one look for one try, and whoever settles
//! first wins.

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
use ibid_core::store::{BoxFuture, StoreError};
use ibid_core::time::Timestamp;
use metrics::counter;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::engine::GiveUp;
use crate::ibid::Ibid;
use crate::random::jitter;
use crate::telemetry;

/// Knows how to find out what became of a request.
pub trait OutcomeLookup: Send + Sync {
    /// Whether it can ask about records under this rule. The others are left to whoever can, and no try is used up.
    fn asks(&self, rule: &Reconcile) -> bool {
        let _ = rule;
        true
    }

    /// Asks, once. It must change nothing. An error, a time-out and a doubt are all [`LookupResult::Nothing`]; what takes
    /// longer than the route's `upstream_timeout` is dropped and counts as that.
    fn find(&self, doubtful: UnknownRequest) -> BoxFuture<'static, LookupResult>;
}

/// A request whose outcome nobody knows, as one who asks about it sees it.
#[derive(Clone, Debug)]
pub struct UnknownRequest {
    /// Whose request it is. Whoever is asked must be asked about this tenant's, for another may use the same key.
    pub tenant: Tenant,
    /// Its method.
    pub method: String,
    /// Its path, as sent.
    pub path: String,
    /// Its key.
    pub key: Key,
    /// How many Attempts there were.
    pub attempt: u32,
    /// How often it was asked about before.
    pub asked: u32,
    /// When the first request came, by the store's clock.
    pub created_at: Timestamp,
    /// When the last Attempt began.
    pub ran_at: Option<Timestamp>,
    /// The provider's own id of what was done, if it is known.
    pub provider_id: Option<String>,
    /// The record's name in logs, which `ibid keys show` takes.
    pub short: String,
    /// The rules that it was begun with.
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

    /// The key under which its Phase or Effect of this name called the outside.
    pub fn downstream_key(&self, name: &str) -> String {
        downstream_key(&self.id, self.birth, name)
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookupResult {
    /// It was executed, with this answer. A decline is an answer.
    Executed(Response),
    /// It was executed, and its answer, of this status, can't be kept: retries are told so.
    ExecutedNotKept(u16),
    /// It was not executed. Believed when found twice, `settle` apart, after the Attempt's end.
    NotExecuted,
    /// No word either way.
    Nothing,
}

/// What one round of questions came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReconcileStats {
    /// Questions asked.
    pub asked: u64,
    /// Records whose outcome is known now.
    pub settled: u64,
    /// Records that a person must look at now.
    pub dead_letters: u64,
}

impl Ibid {
    /// Lets the reconciler of this process ask about records of routes with a reconcile rule.
    pub fn reconcile_with(&self, finder: Arc<dyn OutcomeLookup>) {
        *self.upkeep().finder.0.lock() = Some(finder);
    }
}

/// Who asks in this process.
#[derive(Default)]
pub(crate) struct LookupSlot(Mutex<Option<Arc<dyn OutcomeLookup>>>);

/// Asks about every unknown record whose next look is due. Without somebody to ask ([`Ibid::reconcile_with`]) it does
/// nothing.
pub async fn reconcile_once(ibid: &Ibid) -> Result<ReconcileStats, StoreError> {
    reconcile_with_progress(ibid, |_| {}).await
}

/// The same; `told` hears after every batch of questions what they came to so far.
pub async fn reconcile_with_progress(
    ibid: &Ibid,
    mut told: impl FnMut(&ReconcileStats),
) -> Result<ReconcileStats, StoreError> {
    let mut all = ReconcileStats::default();
    let finder = ibid.upkeep().finder.0.lock().clone();
    let Some(finder) = finder else { return Ok(all) };
    // Those that somebody else must ask about stand in the same order, and stay there: to look behind them.
    let mut not_ours = 0;
    for _ in 0..BATCHES_MAX {
        let due = ibid.engine().due(State::Unknown, BATCH + not_ours).await?;
        let full = due.len() as u32 == BATCH + not_ours;
        not_ours = 0;
        let (mut paces, mut looks) = (HashMap::new(), Vec::new());
        for stored in due {
            let rule = stored.record.policy.reconcile.as_ref().filter(|_| may_be_looked_up(&stored.record));
            let rule = rule.filter(|rule| {
                // After a jump of the store's clock two looks may be nearer than they seem: all wait.
                finder.asks(rule) && !ibid.engine().is_clock_unsure(rule.settle)
            });
            let Some(rule) = rule else {
                not_ours += 1;
                continue;
            };
            let route = rule.route.clone().unwrap_or_else(|| "*".to_owned());
            let turn: &mut u32 = paces.entry(route.clone()).or_default();
            let at = Instant::now() + PACE * *turn;
            *turn += 1;
            looks.push(look(ibid, &*finder, stored, route, at));
            if looks.len() as u32 == BATCH {
                break;
            }
        }
        let asked = looks.len() as u64;
        for what in join_all(looks).await {
            all.settled += u64::from(what == LookupStep::Settled);
            all.dead_letters += u64::from(what == LookupStep::DeadLetter);
        }
        all.asked += asked;
        told(&all);
        // What was asked about is due later, so a round comes to an end.
        if !full {
            break;
        }
    }
    Ok(all)
}

/// What came of one question.
#[derive(PartialEq, Eq)]
enum LookupStep {
    Settled,
    Later,
    DeadLetter,
}

/// Asks about one record and writes down what was found, by compare-and-set on what was seen.
async fn look(
    ibid: &Ibid,
    finder: &dyn OutcomeLookup,
    stored: StoredRecord,
    route: String,
    at: Instant,
) -> LookupStep {
    tokio::time::sleep_until(at).await;
    let (record, policy) = (stored.record.id.short(), stored.record.policy.clone());
    counter!(telemetry::RECONCILE_SCHEDULED, "route" => route.clone()).increment(1);
    // From before the question: what happens from then on, the answer may or may not know.
    let as_of = stored.now;
    let found = ask(finder, &stored.record, &policy).await;
    let event =
        |nonce| Event::Observed { nonce, by: ObservedBy::Reconciler, what: &found, as_of, jitter: jitter() };
    let settlement = ibid.engine().write_until_done(Some(stored), GiveUp::Soon, event).await;
    if found == Observation::Nothing {
        counter!(telemetry::RECONCILE_FAILED, "route" => route.clone()).increment(1);
    }
    match settlement.decision {
        // What was found is not written down: the next round asks again.
        _ if settlement.refused.is_some() => LookupStep::Later,
        Decision::Settled => {
            let state = settlement.stored.map(|stored| stored.record.state.name());
            tracing::info!(%record, state, "an unknown outcome is known now");
            counter!(telemetry::RECONCILE_RESOLVED, "route" => route).increment(1);
            LookupStep::Settled
        }
        Decision::Later if settlement.stored.is_some_and(|stored| !may_be_looked_up(&stored.record)) => {
            tracing::error!(%record, "an outcome stays unknown: the last question is asked, a person must look");
            LookupStep::DeadLetter
        }
        _ => LookupStep::Later,
    }
}

async fn ask(finder: &dyn OutcomeLookup, record: &Record, policy: &Policy) -> Observation {
    let asking = async { finder.find(UnknownRequest::of(record)).await };
    let limit = policy.upstream_timeout.min(QUESTION_FOR_MAX);
    // A finder that panics has found nothing, and must not end the chore.
    let finding = match tokio::time::timeout(limit, AssertUnwindSafe(asking).catch_unwind()).await {
        Ok(Ok(finding)) => finding,
        Ok(Err(_)) => {
            tracing::error!(record = %record.id.short(), "whoever was to ask panicked");
            LookupResult::Nothing
        }
        Err(_) => LookupResult::Nothing,
    };
    let executed =
        |status, kept| AttemptResponse { status, retry_after: false, kept, provider_id: None, proof: None };
    match finding {
        LookupResult::Executed(response) if response.body.len() as u64 > policy.max_response_body => {
            Observation::Executed(executed(response.status, None))
        }
        LookupResult::Executed(response) => {
            let response = response.repeatable(policy);
            Observation::Executed(executed(response.status, Some(response.to_bytes())))
        }
        LookupResult::ExecutedNotKept(status) => Observation::Executed(executed(status, None)),
        LookupResult::NotExecuted => Observation::NotExecuted,
        LookupResult::Nothing => Observation::Nothing,
    }
}

/// Questions under way at once: an upstream that has just come back is not to be knocked over by those who ask after it.
const BATCH: u32 = 64;

/// Batches in one round, so that a round has an end; the next one is seconds away.
const BATCHES_MAX: u32 = 16;

/// From one question about a route to the next: fifty a second, next to nothing for what carries the route's traffic.
const PACE: Duration = Duration::from_millis(20);

/// Longest that one question may take, however slow the route's own work is: asking is reading.
const QUESTION_FOR_MAX: Duration = Duration::from_secs(30);
