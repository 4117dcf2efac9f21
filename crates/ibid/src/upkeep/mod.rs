//! The chores. The sweeper settles lapsed leases, the reaper removes expired rows, the reconciler looks up unknown outcomes,
//! the evidence chore applies webhook evidence that was missed, and the deliverer runs accepted requests.
//!
//! Any number of nodes may run them at once: each write is a compare-and-set on the version that was read. One node at a
//! time sweeps, reaps and applies evidence (`election.rs`), so that a fleet does not read the same rows once per node.
//! Nodes that can do different things (resume requests, settle effects of some kinds) are elected independently, and a node
//! whose permits for resumed requests are used up resigns. Every node delivers accepted requests, because their number is
//! bounded per node, and looks up unknown records that are overdue, because the elected node may have no lookup for them.

mod chore_status;
mod deliverer;
mod election;
mod evidence;
mod expire_unsettled;
mod reaper;
mod reconciler;
mod stored_request;
mod sweeper;

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::FutureExt;
use ibid_core::store::{Cursor, StoreError};
use metrics::{counter, gauge};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use chore_status::ChoreLog;
pub use chore_status::ChoreStatus;
use deliverer::Deliveries;
use election::ElectionSlot;
pub use evidence::apply_evidence_once;
#[doc(hidden)]
pub use reaper::CLOCK_AHEAD_MAX;
use reaper::ReapCursors;
pub use reaper::{ReapPreview, ReapStats, Retention, reap_once, reap_preview, reap_store};
use reconciler::LookupSlot;
use reconciler::reconcile_overdue;
pub use reconciler::{
    LookupResult, OutcomeLookup, ReconcileStats, UnknownRequest, reconcile_once, reconcile_with_progress,
};
pub use stored_request::Resume;
use stored_request::Resumes;
use sweeper::SweepCursors;
pub use sweeper::{SweepStats, sweep_once, sweep_with_progress};

use crate::ibid::Ibid;
use crate::telemetry;

/// The state of upkeep in one process.
#[derive(Default)]
pub(crate) struct UpkeepState {
    /// Status of each chore's last run.
    log: ChoreLog,
    /// The service that runs lapsed and accepted requests.
    resumes: Resumes,
    /// Bounds the accepted requests that run at once, and wakes the deliverer when another is accepted.
    pub(crate) deliveries: Deliveries,
    /// The lookup that the reconciler asks about unknown records.
    lookup: LookupSlot,
    /// Cursors from which the reaper's next round continues.
    cursors: ReapCursors,
    /// Cursors from which the next sweep continues.
    sweep_cursors: SweepCursors,
    /// Sequence number behind which the next round of the evidence chore continues.
    evidence_cursor: Mutex<Option<Cursor>>,
    /// `true` if evidence about an effect could not be written since this was last read.
    is_evidence_stuck: AtomicBool,
    /// Instant at which this node last resigned because of such evidence.
    resigned_at: Mutex<Option<Instant>>,
}

impl UpkeepState {
    /// Returns whether this node leaves the evidence chore to another one, and notes that it does.
    ///
    /// The rows of an effect are in the application's database, and this node's connections to it may be used up. Another node may
    /// have some. It can't help an effect that no node can write, so the node resigns once in a while only.
    fn resigns_for_evidence(&self) -> bool {
        if !self.is_evidence_stuck.swap(false, Ordering::Relaxed) {
            return false;
        }
        let mut resigned_at = self.resigned_at.lock();
        let resigns = resigned_at.is_none_or(|at| at.elapsed() >= RESIGN_EVERY);
        if resigns {
            *resigned_at = Some(Instant::now());
        }
        resigns
    }
}

/// Intervals of the chores, and how long the reaper keeps rows.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Schedule {
    /// Time between two sweeps. It bounds how long a lapsed record goes unnoticed if no client retries.
    pub sweep_every: Duration,
    /// Time between two rounds of the reaper.
    pub reap_every: Duration,
    /// Time between two rounds of the reconciler, and of the evidence chore.
    pub reconcile_every: Duration,
    /// Retention of effects and history, which outlive their record.
    pub keep: Retention,
}

impl Schedule {
    /// Returns a copy in which `change` has set some fields.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Schedule)) -> Schedule {
        change(&mut self);
        self
    }
}

impl Default for Schedule {
    fn default() -> Self {
        Schedule {
            // A retry takes over its lapsed record at once. The sweep is for records whose client does not retry.
            sweep_every: Duration::from_secs(10),
            // An expired record counts as absent at once, so reaping only frees space.
            reap_every: Duration::from_secs(60),
            // A round is an index lookup. Each record stores when its next lookup is due.
            reconcile_every: Duration::from_secs(5),
            keep: Retention::default(),
        }
    }
}

/// Runs the chores until dropped. A failed chore is logged and runs again after its interval.
///
/// Any number of processes may call this on one store. One of them sweeps and applies evidence, and one reaps, at a time; if
/// it ends or dies, another replaces it within one interval. If a round of it takes three intervals and more than a minute, or its
/// connections don't suffice to apply evidence, it leaves the chores to another as well. All of them deliver accepted requests, and
/// look up unknown records that are overdue.
///
/// # Cancel safety
///
/// Made to be dropped: each write is whole or absent, and the chores of any node do the rest. Another node is elected within one
/// interval.
pub async fn run(ibid: Ibid, schedule: Schedule) {
    let ibid = &ibid;
    let (sweeps, reaps) = (&ElectionSlot::default(), &ElectionSlot::default());
    let sweep_group = || sweep_role(ibid);
    let sweep_group_every = schedule.sweep_every.min(schedule.reconcile_every);
    // Concurrently: a slow lookup at an upstream must not hold up a sweep, nor a long sweep an accepted request.
    tokio::join!(
        sweeps.campaign(ibid, "sweep", sweep_group, sweep_group_every),
        while_elected(sweeps, schedule.sweep_every, || {
            run_round(ibid, "sweeper", sweep_once(ibid)).inspect(|_| {
                if ibid.upkeep().resumes.are_full() {
                    sweeps.resign();
                }
            })
        }),
        while_elected(sweeps, schedule.reconcile_every, || {
            run_round(ibid, "evidence", apply_evidence_once(ibid)).inspect(|_| {
                if ibid.upkeep().resigns_for_evidence() {
                    tracing::warn!("evidence could not be written here; leaving the chore to another node");
                    sweeps.resign();
                }
            })
        }),
        every(schedule.reconcile_every, || {
            let late = schedule.reconcile_every.saturating_mul(2);
            let overdue_by = if sweeps.is_elected() { Duration::ZERO } else { late };
            run_round(ibid, "reconciler", reconcile_overdue(ibid, overdue_by))
        }),
        reaps.campaign(ibid, "reap", || "reap".to_owned(), schedule.reap_every),
        reaper::run(ibid, reaps, schedule.reap_every, schedule.keep),
        every(schedule.sweep_every, || async { publish_process_gauges(ibid) }),
        deliverer::run(ibid),
    );
}

/// Returns the role under which this process sweeps and applies evidence.
///
/// A process that can resume requests, or has workers for certain effects, is elected among those that can do the same:
/// otherwise records and evidence that only some processes can settle would wait while another one is elected.
fn sweep_role(ibid: &Ibid) -> String {
    let resumes = if ibid.upkeep().resumes.runner().is_some() { ":resume" } else { "" };
    let kinds: String = ibid.outbox().kinds.names().iter().map(|kind| format!(":{kind}")).collect();
    format!("sweep{resumes}{kinds}")
}

/// Publishes the gauges that each process has for itself.
fn publish_process_gauges(ibid: &Ibid) {
    ibid.engine().breaker.publish_gauge();
    gauge!(telemetry::TENANTS_ABOVE).set(ibid.tenants_above_duplicate_rate() as f64);
}

/// Runs a chore at intervals while this node is elected, and at once when it becomes so.
async fn while_elected<F: Future>(slot: &ElectionSlot, pause: Duration, mut chore: impl FnMut() -> F) {
    let mut ticker = tokio::time::interval(pause);
    ticker.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        slot.wait_until_elected().await;
        ticker.tick().await;
        if slot.is_elected() {
            finish_round(slot, pause, chore()).await;
        }
    }
}

/// Runs one round to its end, and resigns each time that it takes too long.
///
/// The heartbeat runs while the round does, so without this a node whose round hangs would stay elected, and no node would do
/// the chore. The round itself continues: a write in it may have been sent.
async fn finish_round<F: Future>(slot: &ElectionSlot, pause: Duration, round: F) -> F::Output {
    let patience = pause.saturating_mul(ROUND_INTERVALS_MAX).max(ROUND_PATIENCE_MIN);
    let mut round = pin!(round);
    loop {
        if let Ok(done) = timeout(patience, &mut round).await {
            return done;
        }
        if slot.is_elected() {
            tracing::warn!(after = ?patience, "round of a chore takes too long; leaving it to another node");
            slot.resign();
        }
    }
}

async fn every<F: Future>(pause: Duration, mut chore: impl FnMut() -> F) {
    let mut ticker = tokio::time::interval(pause);
    ticker.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticker.tick().await;
        chore().await;
    }
}

/// Runs one round of a chore and records its result, unless a copy keeps the store closed. A round that panics ends neither this
/// chore nor the others. Returns what the round handled; zero if it failed.
async fn run_round(
    ibid: &Ibid,
    chore: &'static str,
    round: impl Future<Output = Result<u64, StoreError>>,
) -> u64 {
    if ibid.engine().is_closed().await {
        // The records are being copied, or are in another store, whose processes run the chores there.
        return 0;
    }
    // Unwind safety: a round leaves nothing behind but cursors, each written in one step.
    match AssertUnwindSafe(round).catch_unwind().await {
        Ok(result) => {
            let count = *result.as_ref().unwrap_or(&0);
            log_run(ibid, chore, result);
            count
        }
        Err(_) => {
            counter!(telemetry::CHORE_PANICS, "chore" => chore).increment(1);
            ibid.upkeep().log.record_failure(chore, "the round panicked".to_owned());
            tracing::error!(chore, "round of a chore panicked; the next round runs as usual");
            0
        }
    }
}

fn log_run(ibid: &Ibid, chore: &'static str, result: Result<u64, StoreError>) {
    match result {
        Ok(count) => {
            let now = SystemTime::now();
            let seconds = now.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
            gauge!(telemetry::CHORE_LAST_RUN, "chore" => chore).set(seconds);
            ibid.upkeep().log.record_success(chore, count, now);
        }
        Err(error) => {
            counter!(telemetry::STORE_ERRORS).increment(1);
            ibid.upkeep().log.record_failure(chore, error.to_string());
            tracing::warn!(chore, error = &error as &dyn std::error::Error, "chore failed");
        }
    }
}

/// Intervals that a round of an elected node may take before the node resigns. A round that takes longer than one interval catches
/// up; one that takes three hangs, or is too much for this node.
const ROUND_INTERVALS_MAX: u32 = 3;

/// Shortest time after which a round counts as hanging: twice the longest read of a chore, and a full round of the reaper.
const ROUND_PATIENCE_MIN: Duration = Duration::from_secs(60);

/// Shortest time between two resignations because of evidence that can't be written. Each one pauses the sweeps for a moment.
const RESIGN_EVERY: Duration = Duration::from_secs(60);
