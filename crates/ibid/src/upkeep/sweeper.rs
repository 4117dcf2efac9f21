//! Deals with lapsed leases: each by the rule that its record was begun with, by compare-and-set on what was seen. And with
//! calls in doubt whose client has not come back.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use ibid_core::change::{BodyKind, Stored};
use ibid_core::machine::{Ask, Decision, Event};
use ibid_core::policy::OnLapse;
use ibid_core::record::{ErrorCode, Record, State};
use ibid_core::store::{Pending, StoreError};
use metrics::gauge;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::attempt::Attempt;
use crate::engine::GiveUp;
use crate::ibid::Ibid;
use crate::telemetry;

/// Settles every lapsed lease by the rule that its record was begun with, and resumes or gives up what has a call in doubt.
/// How many there were.
pub async fn sweep_once(ibid: &Ibid) -> Result<u64, StoreError> {
    sweep_telling(ibid, |_| {}).await
}

/// The same; `told` hears after every batch how many there were so far.
pub async fn sweep_telling(ibid: &Ibid, mut told: impl FnMut(u64)) -> Result<u64, StoreError> {
    // Before anything can fail: a store that is away is when it matters.
    ibid.engine().breaker.publish_gauge();
    let mut swept = 0;
    for state in [State::InProgress, State::Retryable] {
        for _ in 0..SWEEP_BATCHES_MAX {
            let due = ibid.engine().due(state, SWEEP_BATCH).await?;
            let full = due.len() as u32 == SWEEP_BATCH;
            // At once, so that they share commits.
            let settled =
                join_all(due.into_iter().map(|stored| sweep(ibid, stored))).await.into_iter().sum::<u64>();
            swept += settled;
            told(swept);
            if !full || settled == 0 {
                break;
            }
        }
    }
    gauge!(telemetry::TENANTS_ABOVE).set(ibid.tenants_above_duplicate_rate() as f64);
    Ok(swept)
}

/// Runs requests without their clients: lapsed ones, and those that were accepted to be run later.
pub trait Resume: Send + Sync {
    /// What was asked for, from the record and the request that it kept; none if this can't be read.
    fn ask(&self, record: &Record, request: &Bytes) -> Option<Ask>;

    /// Runs the request to its end, after the last recovery point.
    fn run(&self, attempt: Attempt, ask: Arc<Ask>, request: Bytes) -> Pending<'static, ()>;
}

impl Ibid {
    /// Lets the chores of this process run requests of routes with `on_lapse = resume` that lapsed or left a call in doubt,
    /// and accepted ones.
    pub fn resume_with(&self, resumer: Arc<dyn Resume>) {
        self.upkeep().resumes.set(resumer);
    }
}

/// Who runs lapsed requests, and how many at once.
pub(crate) struct Resumes {
    resumer: Mutex<Option<Arc<dyn Resume>>>,
    places: Arc<Semaphore>,
}

impl Default for Resumes {
    fn default() -> Self {
        Resumes { resumer: Mutex::default(), places: Arc::new(Semaphore::new(RESUMES_MAX)) }
    }
}

impl Resumes {
    fn set(&self, resumer: Arc<dyn Resume>) {
        *self.resumer.lock() = Some(resumer);
    }

    pub(crate) fn get(&self) -> Option<Arc<dyn Resume>> {
        self.resumer.lock().clone()
    }
}

/// Settles one record. 1 if there was still something to settle.
async fn sweep(ibid: &Ibid, stored: Stored) -> u64 {
    if stored.record.policy.on_lapse == OnLapse::Resume
        && let Some(resumer) = ibid.upkeep().resumes.get()
        && let Some(resumed) = resume(ibid, &stored, &resumer).await
    {
        return resumed;
    }
    let lease = stored.record.policy.lease;
    let lapsed = |nonce| Event::Lapsed { nonce, careful: ibid.engine().is_clock_unsure(lease) };
    let settlement = ibid.engine().write_until_done(Some(stored), GiveUp::Soon, lapsed).await;
    u64::from(settlement.decision == Decision::Settled)
}

/// Takes a record over and lets its handler go on. None if it can't be resumed here, and is to be settled otherwise.
async fn resume(ibid: &Ibid, stored: &Stored, resumer: &Arc<dyn Resume>) -> Option<u64> {
    // What finds no place now is found again by the next sweep.
    let Ok(place) = ibid.upkeep().resumes.places.clone().try_acquire_owned() else { return Some(0) };
    let record = &stored.record;
    let Ok(bodies) = ibid.store().bodies(record.id, record.birth).await else { return Some(0) };
    let request = bodies.into_iter().find(|(kind, _)| *kind == BodyKind::Request.code())?.1;
    let ask = Arc::new(resumer.ask(record, &request)?);
    let at = Instant::now();
    let (lease, birth) = (record.policy.lease, record.birth);
    let resumed = |nonce| Event::Resume { nonce, careful: ibid.engine().is_clock_unsure(lease) };
    let taken = ibid.engine().write_until_done(Some(stored.clone()), GiveUp::Soon, resumed).await;
    let (Decision::Run { after }, Some(stored)) = (taken.decision, taken.stored) else { return None };
    if stored.record.birth != birth {
        // Another generation began and lapsed while this one was looked at: what was read is not its request.
        let begun = stored.record.clone();
        let event = |nonce| Event::NotExecuted { begun: &begun, nonce, why: ErrorCode::NotSent };
        ibid.engine().write_until_done(Some(stored), GiveUp::Late, event).await;
        return Some(1);
    }
    let attempt = Attempt::new(ibid.clone(), ask.clone(), stored.record, after, at).of_upkeep();
    let run = resumer.run(attempt, ask, request);
    tokio::spawn(async move {
        run.await;
        drop(place);
    });
    Some(1)
}

/// Records read at once.
const SWEEP_BATCH: u32 = 256;

/// Batches of each kind in one sweep: a crash leaves at most a few thousand requests behind; the rest waits for the next sweep.
const SWEEP_BATCHES_MAX: u32 = 40;

/// Lapsed requests that one process runs at once: a crash of its neighbour must not become its own.
const RESUMES_MAX: usize = 32;
