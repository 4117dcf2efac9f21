//! The chores. The sweeper settles lapsed leases, the reaper removes expired rows, the reconciler looks up unknown outcomes,
//! the evidence chore applies webhook evidence that was missed, and the deliverer runs accepted requests. Any number of nodes
//! may run them at once: each write is a compare-and-set on the version that was read.

mod chore_status;
mod deliverer;
mod evidence;
mod reaper;
mod reconciler;
mod stored_request;
mod sweeper;
mod unknown;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ibid_core::store::StoreError;
use metrics::{counter, gauge};

use chore_status::ChoreLog;
pub use chore_status::ChoreStatus;
use deliverer::Deliveries;
pub use evidence::apply_evidence_once;
use reaper::ReapCursors;
pub use reaper::{ReapPreview, ReapStats, Retention, reap_once, reap_preview, reap_store};
use reconciler::LookupSlot;
pub use reconciler::{
    LookupResult, OutcomeLookup, ReconcileStats, UnknownRequest, reconcile_once, reconcile_with_progress,
};
pub use stored_request::Resume;
use stored_request::Resumes;
pub use sweeper::{sweep_once, sweep_with_progress};

use crate::ibid::Ibid;
use crate::telemetry;

/// The state of upkeep in one process.
#[derive(Default)]
pub(crate) struct UpkeepState {
    /// When each chore last ran.
    ran: ChoreLog,
    /// The service that runs lapsed and accepted requests.
    resumes: Resumes,
    /// The bound of accepted requests that run at once, and the signal that another was accepted.
    pub(crate) deliveries: Deliveries,
    /// The lookup that the reconciler asks about unknown records.
    finder: LookupSlot,
    /// Where the next round of the reaper continues.
    places: ReapCursors,
}

/// When the chores run.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    /// From one sweep to the next: how long a lapsed record may go unnoticed if no client retries.
    pub sweep_every: Duration,
    /// From one reaping to the next.
    pub reap_every: Duration,
    /// From one round of the reconciler and of the evidence chore to the next.
    pub reconcile_every: Duration,
    /// How long the reaper keeps effects and history, which outlive their record.
    pub keep: Retention,
}

impl Default for Schedule {
    fn default() -> Self {
        Schedule {
            // A request takes over its own lapsed record at once; the sweep is for records without a retry.
            sweep_every: Duration::from_secs(10),
            // An expired record counts as absent at once, so reaping only frees space.
            reap_every: Duration::from_secs(60),
            // An index look-up; the record itself says when its next question is due.
            reconcile_every: Duration::from_secs(5),
            keep: Retention::default(),
        }
    }
}

/// Runs the chores until dropped. A chore that fails is logged and runs again at its next time.
pub async fn run(ibid: Ibid, schedule: Schedule) {
    let ibid = &ibid;
    // Concurrently: a slow lookup at an upstream must not hold up a sweep, nor a long sweep an accepted request.
    tokio::join!(
        every(schedule.sweep_every, || async { done(ibid, "sweeper", sweep_once(ibid).await) }),
        every(schedule.reap_every, || async {
            done(ibid, "reaper", reap_once(ibid, schedule.keep).await.map(|did| did.removed))
        }),
        every(schedule.reconcile_every, || async { done(ibid, "evidence", apply_evidence_once(ibid).await) }),
        every(schedule.reconcile_every, || async {
            done(ibid, "reconciler", reconcile_once(ibid).await.map(|did| did.settled));
        }),
        deliverer::run(ibid),
    );
}

async fn every<F: Future<Output = ()>>(pause: Duration, mut chore: impl FnMut() -> F) {
    let mut ticker = tokio::time::interval(pause);
    ticker.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticker.tick().await;
        chore().await;
    }
}

fn done(ibid: &Ibid, chore: &'static str, result: Result<u64, StoreError>) {
    match result {
        Ok(did) => {
            let now = SystemTime::now();
            let seconds = now.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
            gauge!(telemetry::CHORE_LAST_RUN, "chore" => chore).set(seconds);
            ibid.upkeep().ran.succeeded(chore, did, now);
        }
        Err(error) => {
            counter!(telemetry::STORE_ERRORS).increment(1);
            ibid.upkeep().ran.failed(chore, error.to_string());
            tracing::warn!(chore, error = &error as &dyn std::error::Error, "chore failed");
        }
    }
}
