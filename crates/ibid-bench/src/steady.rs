//! A store under steady load: does the reaper keep up with the begins, and what does it cost them?
//!
//! Callers begin and finish keys at full rate. Keys are kept for a minute, so after two minutes as many must go as come.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use ibid::upkeep::{self, Schedule};
use ibid_core::policy::Policy;
use ibid_core::scope::Tenant;
use serde_json::{Value, json};

use crate::begin_load::{BeginLoad, in_histogram};
use crate::database::Database;
use crate::reaper_metrics::ReaperMetrics;
use crate::{BenchError, payment, round_figure, seconds};

/// Options of `ibid-bench steady`.
#[derive(Debug, Args)]
pub(crate) struct SteadyArgs {
    /// `sqlite` or `postgres` (temporary), `sqlite:PATH` or `postgres://…`
    #[arg(long)]
    store: String,
    /// Duration of a run in minutes, for example 0.2
    #[arg(long, default_value_t = 5.0)]
    minutes: f64,
    /// Retention of a key in seconds. The lease is a minute, or the retention if that is shorter
    #[arg(long, default_value = "61s", value_parser = seconds)]
    retention: Duration,
    /// Callers that begin and finish keys at once
    #[arg(long, default_value = "64")]
    callers: NonZeroU32,
    /// Time between two rounds of the reaper in seconds
    #[arg(long, default_value = "60s", value_parser = seconds)]
    reap_every: Duration,
    /// Run without the chores of upkeep, the reaper included
    #[arg(long)]
    no_reap: bool,
    /// Run once with upkeep and once without, each on a temporary store, and compare the p99 of begins
    #[arg(long, conflicts_with = "no_reap")]
    compare: bool,
}

pub(crate) async fn run(args: &SteadyArgs) -> Result<(), BenchError> {
    let metrics = ReaperMetrics::install()?;
    let mut verdict = run_once(args, &metrics, !args.no_reap).await?;
    if args.compare {
        let without = run_once(args, &metrics, false).await?;
        let p99 = |figures: &Value| figures["p99_begin_us"].as_f64().unwrap_or_default();
        let ratio = round_figure(p99(&verdict) / p99(&without));
        verdict["p99_begin_us_without"] = without["p99_begin_us"].clone();
        verdict["keys_per_second_without"] = without["keys_per_second"].clone();
        verdict["p99_ratio"] = json!(ratio);
        verdict["p99_ok"] = json!(ratio <= P99_RATIO_MAX);
        verdict["ok"] = json!(ratio <= P99_RATIO_MAX && verdict["rows_ok"] == json!(true));
    }
    println!("{verdict}");
    Ok(())
}

async fn run_once(args: &SteadyArgs, metrics: &ReaperMetrics, has_reaper: bool) -> Result<Value, BenchError> {
    let database = Database::open(&args.store).await?;
    if args.compare && !database.is_temporary() {
        return Err("`--compare` needs an empty store for each run: `--store sqlite` or `postgres`".into());
    }
    let ibid = payment::engine(database.store().await?).await?;
    let mut policy = Policy::default();
    policy.retention = args.retention;
    policy.lease = policy.lease.min(args.retention);
    let schedule = Schedule::default().with(|schedule| schedule.reap_every = args.reap_every);
    let chores = has_reaper.then(|| tokio::spawn(upkeep::run(ibid.clone(), schedule)));
    let (removed_before, rows_before) = (metrics.count_removed(), database.rows().await?);
    let mut load = BeginLoad::start(&ibid, &Arc::new(policy), &Tenant::only(), args.callers.get())?;
    let started = Instant::now();
    let length = Duration::from_secs_f64(args.minutes * 60.0);
    let (mut samples, mut window, mut steady) = (Vec::new(), Vec::new(), Vec::new());
    let mut second = 0;
    while started.elapsed() < length {
        second += 1;
        tokio::time::sleep_until((started + Duration::from_secs(second)).into()).await;
        let (keys, removed) = (load.keys(), metrics.count_removed() - removed_before);
        let rows = (rows_before + keys).saturating_sub(removed);
        let mut line = json!({
            "what": "steady_second", "second": second, "reaps": has_reaper, "keys": keys, "removed": removed,
            "rows": rows, "bytes": database.bytes().await?, "behind_s": has_reaper.then(|| round_figure(metrics.behind())),
        });
        samples.push(rows);
        window.extend(load.take());
        if second % WINDOW_SECONDS == 0 {
            line["p99_begin_us"] = json!(in_histogram(&window)?.value_at_quantile(0.99));
            // From here on keys also expire, so that both runs are compared under the same load.
            if started.elapsed() > steady_from(length) {
                steady.append(&mut window);
            }
            window.clear();
        }
        println!("{line}");
    }
    load.stop().await?;
    let (keys, lasted) = (load.keys(), started.elapsed());
    steady.append(&mut window);
    if let Some(chores) = chores {
        chores.abort();
    }
    let rows = RowMeans::of(&samples, steady_from(length), args.reap_every);
    let took = in_histogram(&steady)?;
    Ok(json!({
        "what": "steady", "store": database.kind(), "reaps": has_reaper, "minutes": args.minutes,
        "retention_s": args.retention.as_secs(), "callers": args.callers,
        "keys": keys, "keys_per_second": (keys as f64 / lasted.as_secs_f64()).round(),
        "removed": metrics.count_removed() - removed_before, "behind_s": has_reaper.then(|| round_figure(metrics.behind())),
        "rows_at_third_minute": rows.at_mark, "rows_at_end": rows.at_end, "rows_counted": database.rows().await?,
        "rows_ratio": round_figure(rows.ratio()), "rows_ok": rows.ratio() <= ROWS_RATIO_MAX,
        "bytes": database.bytes().await?,
        "p50_begin_us": took.value_at_quantile(0.5), "p99_begin_us": took.value_at_quantile(0.99),
    }))
}

/// Returns when the number of rows has to be steady: after three minutes, or three fifths of a shorter run.
fn steady_from(length: Duration) -> Duration {
    Duration::from_secs(180).min(length.mul_f64(0.6))
}

/// Numbers of rows, each the mean over one period of the reaper, because the number rises and falls with its rounds.
struct RowMeans {
    at_mark: u64,
    at_end: u64,
}

impl RowMeans {
    /// Reads the numbers from one sample per second.
    fn of(samples: &[u64], mark: Duration, period: Duration) -> RowMeans {
        let period = usize::try_from(period.as_secs()).unwrap_or(usize::MAX).max(1);
        let mean_up_to = |end: usize| {
            let part = &samples[end.saturating_sub(period)..end];
            part.iter().sum::<u64>() / part.len().max(1) as u64
        };
        let mark = usize::try_from(mark.as_secs()).unwrap_or(usize::MAX);
        RowMeans { at_mark: mean_up_to(mark.clamp(1, samples.len())), at_end: mean_up_to(samples.len()) }
    }

    fn ratio(&self) -> f64 {
        self.at_end as f64 / self.at_mark.max(1) as f64
    }
}

/// Seconds over which a p99 is taken: some hundred thousand begins.
const WINDOW_SECONDS: u64 = 10;

/// Largest growth of the number of rows after the third minute. More means that the reaper does not keep up.
const ROWS_RATIO_MAX: f64 = 1.2;

/// Largest p99 of begins while rows are reaped, against the run without.
const P99_RATIO_MAX: f64 = 1.5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_compared_over_whole_rounds_of_the_reaper() {
        let saw: Vec<u64> = (0..40).map(|second| 100 + second % 10).collect();
        let rows = RowMeans::of(&saw, Duration::from_secs(20), Duration::from_secs(10));
        assert_eq!((rows.at_mark, rows.at_end, round_figure(rows.ratio())), (104, 104, 1.0));
    }
}
