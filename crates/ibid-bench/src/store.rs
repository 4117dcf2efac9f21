//! Fresh keys through the engine: many callers, each of which begins and finishes one key after the other.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use ibid::Ibid;
use ibid::store::clock::Clock;
use ibid::store::memory::MemoryStore;
use ibid::store::postgres::{PostgresOptions, PostgresStore};
use ibid::store::sqlite::{SqliteOptions, SqliteStore};
use ibid_core::policy::Policy;
use ibid_core::store::Store;
use serde_json::json;
use tokio::task::JoinSet;

use crate::{BenchError, StoreArgs, payment};

pub(crate) async fn run(args: &StoreArgs) -> Result<(), BenchError> {
    let (store, counts) = open(&args.store).await?;
    let ibid = payment::engine(store).await?;
    let (took, per_second) = measure(&ibid, args.callers.get(), Duration::from_secs(args.seconds)).await?;
    let figures = json!({
        "what": "store",
        "store": ibid.store().facts().name,
        "callers": args.callers,
        "keys": took.len(),
        "keys_per_second": per_second.round(),
        "p50": took.value_at_quantile(0.5),
        "p99": took.value_at_quantile(0.99),
        "commits": counts().0,
        "mean_batch": mean(counts()),
    });
    if !args.json {
        eprintln!("{} callers, {} keys; p50 and p99 are microseconds", args.callers, took.len());
    }
    println!("{figures}");
    Ok(())
}

/// Measures the duration of each fresh key with this many callers, and the keys per second of all.
pub(crate) async fn measure(
    ibid: &Ibid,
    callers: u32,
    seconds: Duration,
) -> Result<(Histogram<u64>, f64), BenchError> {
    let policy = Arc::new(Policy::default());
    // A number that no earlier run used, so that keys of two runs on one store never collide.
    let run = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_nanos();
    let started = Instant::now();
    let mut running = JoinSet::new();
    for caller in 0..callers {
        let prefix = format!("{run:020x}-{caller:04x}");
        running.spawn(call(ibid.clone(), policy.clone(), prefix, started + seconds));
    }
    let mut called = Vec::new();
    while let Some(one) = running.join_next().await {
        called.push(one??);
    }
    let lasted = started.elapsed();
    let mut took = histogram()?;
    called.iter().flatten().for_each(|micros| took.saturating_record((*micros).into()));
    let per_second = took.len() as f64 / lasted.as_secs_f64();
    Ok((took, per_second))
}

/// Runs one caller: key after key until the time is over. Returns the microseconds of each.
///
/// Not a histogram per caller: it would touch more memory than the code that is measured.
async fn call(
    ibid: Ibid,
    policy: Arc<Policy>,
    prefix: String,
    until: Instant,
) -> Result<Vec<u32>, BenchError> {
    let mut took = Vec::new();
    for number in 0_u32.. {
        let started = Instant::now();
        if started >= until {
            break;
        }
        payment::pay(&ibid, &policy, &format!("{prefix}-{number:08x}")).await?;
        took.push(u32::try_from(started.elapsed().as_micros()).unwrap_or(u32::MAX));
    }
    Ok(took)
}

/// Returns how many transactions a store has committed, and how many changes were in them.
type Counts = Box<dyn Fn() -> (u64, u64)>;

/// Returns the mean number of changes in a transaction, with one digit.
fn mean((commits, changes): (u64, u64)) -> f64 {
    (changes as f64 / commits.max(1) as f64 * 10.0).round() / 10.0
}

/// Opens the store that a URL names.
async fn open(url: &str) -> Result<(Arc<dyn Store>, Counts), BenchError> {
    match url.split_once(':') {
        Some(("sqlite", path)) if !path.is_empty() => {
            let store = Arc::new(SqliteStore::open(Path::new(path), SqliteOptions::default())?);
            let counted = store.clone();
            let counts = move || (counted.commit_counts().commits, counted.commit_counts().changes);
            Ok((store, Box::new(counts)))
        }
        Some(("postgres" | "postgresql", _)) => {
            let store = Arc::new(PostgresStore::open(url, PostgresOptions::default()).await?);
            let counted = store.clone();
            let counts = move || (counted.batch_counts().batches, counted.batch_counts().changes);
            Ok((store, Box::new(counts)))
        }
        Some(("memory", "")) => Ok((Arc::new(MemoryStore::new(Clock::system())), Box::new(|| (0, 0)))),
        _ => Err("the store is neither `sqlite:PATH` nor `postgres://…` nor `memory:`".into()),
    }
}

/// Returns a histogram of microseconds up to a minute, with three significant digits.
pub(crate) fn histogram() -> Result<Histogram<u64>, BenchError> {
    Ok(Histogram::new_with_max(60_000_000, 3)?)
}
