//! Callers that begin and finish fresh keys until they are stopped, with the duration of each begin.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hdrhistogram::Histogram;
use ibid::Ibid;
use ibid::outcome::{Begin, Outcome};
use ibid_core::policy::Policy;
use ibid_core::scope::Tenant;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::store::histogram;
use crate::{BenchError, payment};

/// Callers that run until they are stopped.
pub(crate) struct BeginLoad {
    callers: JoinSet<Result<(), BenchError>>,
    counts: Arc<BeginCounts>,
}

#[derive(Default)]
struct BeginCounts {
    keys: AtomicU64,
    is_over: AtomicBool,
    /// Microseconds of each begin since they were last taken. Not a histogram per caller: it would touch more memory than
    /// the code that is measured.
    micros: Mutex<Vec<u32>>,
}

impl BeginLoad {
    /// Starts the callers. Their keys are those of `tenant`, and no other run has them.
    pub(crate) fn start(
        ibid: &Ibid,
        policy: &Arc<Policy>,
        tenant: &Tenant,
        callers: u32,
    ) -> Result<BeginLoad, BenchError> {
        let run = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
        let (mut running, counts) = (JoinSet::new(), Arc::new(BeginCounts::default()));
        for caller in 0..callers {
            let prefix = format!("{run:020x}-{caller:04x}");
            running.spawn(call(ibid.clone(), policy.clone(), tenant.clone(), prefix, counts.clone()));
        }
        Ok(BeginLoad { callers: running, counts })
    }

    /// Returns how many keys were begun and finished so far.
    pub(crate) fn keys(&self) -> u64 {
        self.counts.keys.load(Ordering::Relaxed)
    }

    /// Returns the durations of the begins since the last call, in microseconds.
    pub(crate) fn take(&self) -> Vec<u32> {
        std::mem::take(&mut *self.counts.micros.lock())
    }

    /// Ends the callers after their current keys.
    pub(crate) async fn stop(&mut self) -> Result<(), BenchError> {
        self.counts.is_over.store(true, Ordering::Relaxed);
        while let Some(ended) = self.callers.join_next().await {
            ended??;
        }
        Ok(())
    }
}

/// Figures of a load that has ended.
pub(crate) struct BeginFigures {
    /// Durations of all begins in microseconds, one per key.
    pub(crate) took: Histogram<u64>,
    /// Keys per second of all callers.
    pub(crate) per_second: f64,
}

/// Runs callers for this long.
pub(crate) async fn measure_begins(
    ibid: &Ibid,
    callers: u32,
    length: Duration,
) -> Result<BeginFigures, BenchError> {
    let started = Instant::now();
    let mut load = BeginLoad::start(ibid, &Arc::new(Policy::default()), &Tenant::only(), callers)?;
    tokio::time::sleep(length).await;
    load.stop().await?;
    let per_second = load.keys() as f64 / started.elapsed().as_secs_f64();
    Ok(BeginFigures { took: in_histogram(&load.take())?, per_second })
}

/// Returns the histogram of some durations.
pub(crate) fn in_histogram(micros: &[u32]) -> Result<Histogram<u64>, BenchError> {
    let mut took = histogram()?;
    micros.iter().for_each(|micros| took.saturating_record((*micros).into()));
    Ok(took)
}

async fn call(
    ibid: Ibid,
    policy: Arc<Policy>,
    tenant: Tenant,
    prefix: String,
    counts: Arc<BeginCounts>,
) -> Result<(), BenchError> {
    for number in 0_u32.. {
        if counts.is_over.load(Ordering::Relaxed) {
            break;
        }
        let identity = payment::identity_of(&tenant, &format!("{prefix}-{number:08x}"))?;
        let ask = ibid.ask(identity, policy.clone(), Arc::new(payment::Payment));
        let started = Instant::now();
        let Begin::Run(mut attempt) = ibid.begin(ask).await? else {
            return Err("a fresh key was not fresh".into());
        };
        let micros = u32::try_from(started.elapsed().as_micros()).unwrap_or(u32::MAX);
        counts.micros.lock().push(micros);
        attempt.ensure_lease().await?;
        match attempt.finish(payment::answer()).await {
            Outcome::Completed(_) => counts.keys.fetch_add(1, Ordering::Relaxed),
            other => return Err(format!("a finish came to {other:?}").into()),
        };
    }
    Ok(())
}
