//! Fresh keys through the engine: many callers, each beginning and finishing one key after the other.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use ibid::Ibid;
use ibid::store::clock::Clock;
use ibid::store::memory::MemoryStore;
use ibid::store::sqlite::{SqliteOptions, SqliteStore};
use ibid_core::policy::Policy;
use ibid_core::store::Store;
use serde_json::json;
use tokio::task::JoinSet;

use crate::{Failed, StoreArgs, payment};

pub(crate) async fn run(args: &StoreArgs) -> Result<(), Failed> {
    let ibid = payment::engine(open(&args.store)?).await?;
    let policy = Arc::new(Policy::default());
    // Nobody used it before: keys of two runs on one file never meet.
    let run = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_nanos();
    let started = Instant::now();
    let until = started + Duration::from_secs(args.seconds);
    let mut callers = JoinSet::new();
    for caller in 0..args.callers.get() {
        let prefix = format!("{run:020x}-{caller:04x}");
        callers.spawn(call(ibid.clone(), policy.clone(), prefix, until));
    }
    let mut took = histogram()?;
    while let Some(called) = callers.join_next().await {
        took.add(called??)?;
    }
    let seconds = started.elapsed().as_secs_f64();
    let counts = ibid.counts();
    let mean_batch = counts.changes as f64 / counts.batches.max(1) as f64;
    let figures = json!({
        "what": "store",
        "store": ibid.store().kind(),
        "callers": args.callers,
        "keys": took.len(),
        "keys_per_second": (took.len() as f64 / seconds).round(),
        "p50": took.value_at_quantile(0.5),
        "p99": took.value_at_quantile(0.99),
        "commits": counts.batches,
        "mean_batch": (mean_batch * 10.0).round() / 10.0,
    });
    if !args.json {
        eprintln!(
            "{} callers, {} keys in {seconds:.1} s; p50 and p99 are microseconds",
            args.callers,
            took.len()
        );
    }
    println!("{figures}");
    Ok(())
}

/// One caller: key after key until the time is over.
async fn call(
    ibid: Ibid,
    policy: Arc<Policy>,
    prefix: String,
    until: Instant,
) -> Result<Histogram<u64>, Failed> {
    let mut took = histogram()?;
    for number in 0_u32.. {
        let started = Instant::now();
        if started >= until {
            break;
        }
        payment::pay(&ibid, &policy, &format!("{prefix}-{number:08x}")).await?;
        took.saturating_record(started.elapsed().as_micros() as u64);
    }
    Ok(took)
}

/// The store that a URL names.
fn open(url: &str) -> Result<Arc<dyn Store>, Failed> {
    match url.split_once(':') {
        Some(("sqlite", path)) if !path.is_empty() => {
            Ok(Arc::new(SqliteStore::open(Path::new(path), SqliteOptions::default())?))
        }
        Some(("memory", "")) => Ok(Arc::new(MemoryStore::new(Clock::system()))),
        _ => Err(format!("`{url}` is neither `sqlite:PATH` nor `memory:`").into()),
    }
}

/// Microseconds up to a minute, to three digits.
fn histogram() -> Result<Histogram<u64>, Failed> {
    Ok(Histogram::new_with_max(60_000_000, 3)?)
}
