//! The chores: the sweeper deals with lapsed leases, the reaper removes what is past its time, the reconciler settles
//! what is unknown, by asking or by evidence, the deliverer runs what was accepted. Any number of nodes may run them at
//! once: each acts by compare-and-set on what it saw.

mod deliverer;
mod evidence;
mod ran;
mod reaper;
mod reconciler;
mod sweeper;
mod unknown;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ibid_core::store::StoreError;
use metrics::{counter, gauge};

use deliverer::Deliveries;
pub use evidence::weigh_once;
pub use ran::Chore;
use ran::Ran;
use reaper::Places;
pub use reaper::{Harvest, Keep, Outlook, reap_once, reap_outlook, reap_store};
use reconciler::Registered;
pub use reconciler::{Doubtful, Find, Finding, Reconciled, reconcile_once, reconcile_telling};
use sweeper::Resumes;
pub use sweeper::{Resume, sweep_once, sweep_telling};

use crate::ibid::Ibid;
use crate::telemetry;

/// The state of upkeep in one process.
#[derive(Default)]
pub(crate) struct UpkeepState {
    /// When each chore last ran.
    ran: Ran,
    /// The service that runs lapsed and accepted requests.
    resumes: Resumes,
    /// The bound of accepted requests that run at once, and the signal that another was accepted.
    pub(crate) deliveries: Deliveries,
    /// The lookup that the reconciler asks about unknown records.
    finder: Registered,
    /// Where the next round of the reaper continues.
    places: Places,
}

/// When the chores run.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    /// From one sweep to the next: how long a lapsed record may go unnoticed if nobody asks for it.
    pub sweep_every: Duration,
    /// From one reaping to the next.
    pub reap_every: Duration,
    /// From one round of questions about unknown records to the next, and of looks at what was heard of them.
    pub reconcile_every: Duration,
    /// How long the reaper keeps what outlives its record.
    pub keep: Keep,
}

impl Default for Schedule {
    fn default() -> Self {
        Schedule {
            sweep_every: Duration::from_secs(10),
            reap_every: Duration::from_secs(60),
            reconcile_every: Duration::from_secs(5),
            keep: Keep::default(),
        }
    }
}

/// Runs the chores until dropped. A failing chore is logged and tried again at its next time.
pub async fn run(ibid: Ibid, schedule: Schedule) {
    let ibid = &ibid;
    // Beside each other: an upstream that is slow to say what became of a request holds up no sweep, and a long sweep
    // no accepted request.
    tokio::join!(
        every(schedule.sweep_every, || async { done(ibid, "sweeper", sweep_once(ibid).await) }),
        every(schedule.reap_every, || async {
            done(ibid, "reaper", reap_once(ibid, schedule.keep).await.map(|did| did.removed))
        }),
        every(schedule.reconcile_every, || async { done(ibid, "evidence", weigh_once(ibid).await) }),
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
            tracing::warn!(chore, error = &error as &dyn std::error::Error, "a chore failed");
        }
    }
}
