//! The chores: the sweeper deals with lapsed leases, the reaper removes what is past its time, the deliverer runs what was
//! accepted. Any number of nodes may run them at once: each acts by compare-and-set on what it saw.

mod deliverer;
mod evidence;
mod reaper;
mod sweeper;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ibid_core::store::StoreError;
use metrics::{counter, gauge};

pub(crate) use deliverer::Deliveries;
pub use evidence::weigh_once;
pub use reaper::reap_once;
pub(crate) use sweeper::Resumes;
pub use sweeper::{Resume, sweep_once};

use crate::engine::Ibid;
use crate::telemetry;

/// When the chores run.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    /// From one sweep to the next: how long a lapsed record may go unnoticed if nobody asks for it.
    pub sweep_every: Duration,
    /// From one reaping to the next.
    pub reap_every: Duration,
}

impl Default for Schedule {
    fn default() -> Self {
        Schedule { sweep_every: Duration::from_secs(10), reap_every: Duration::from_secs(60) }
    }
}

/// Runs the chores until dropped. A failing chore is logged and tried again at its next time.
pub async fn run(ibid: Ibid, schedule: Schedule) {
    // Beside each other: a long sweep must not keep accepted requests waiting.
    tokio::join!(run_chores(&ibid, schedule), deliverer::run(&ibid));
}

async fn run_chores(ibid: &Ibid, schedule: Schedule) {
    let mut sweeps = ticker(schedule.sweep_every);
    let mut reaps = ticker(schedule.reap_every);
    loop {
        tokio::select! {
            _ = sweeps.tick() => done("sweeper", sweep_once(ibid).await),
            _ = reaps.tick() => {
                done("reaper", reap_once(ibid).await);
                done("evidence", weigh_once(ibid).await);
            }
        }
    }
}

fn ticker(every: Duration) -> tokio::time::Interval {
    let mut ticker = tokio::time::interval(every);
    ticker.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticker
}

fn done(chore: &'static str, result: Result<u64, StoreError>) {
    match result {
        Ok(_) => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
            gauge!(telemetry::CHORE_LAST_RUN, "chore" => chore).set(now);
        }
        Err(error) => {
            counter!(telemetry::STORE_ERRORS).increment(1);
            tracing::warn!(chore, error = &error as &dyn std::error::Error, "a chore failed");
        }
    }
}
