//! The reaper under load: how much reaping a million expired keys slows begins and finishes down, and whether it frees
//! their space.
//!
//! Turns without the reaper and turns with it alternate, so that both run under the same conditions. After that the reaper
//! continues to the end under load.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use ibid::Ibid;
use ibid::store::postgres::{PostgresOptions, PostgresStore};
use ibid::store::sqlite::{SqliteOptions, SqliteStore};
use ibid::upkeep::{Retention, reap_preview, reap_store};
use ibid_core::policy::Policy;
use ibid_testkit::postgres::Postgres;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::database::SERVER_SETTINGS;
use crate::rows::{self, Row, Rows};
use crate::store::{histogram, measure};
use crate::{BenchError, ReapArgs, fill, payment};

pub(crate) fn run(args: &ReapArgs, runtime: &Runtime) -> Result<(), BenchError> {
    let (store, sizes, mut figures) = match &args.path {
        Some(path) => {
            fill_sqlite(path, args, runtime)?;
            let before = std::fs::metadata(path)?.len();
            let store = SqliteStore::open(path, SqliteOptions::default())?;
            let figures = runtime
                .block_on(async { measure_load(payment::engine(Arc::new(store)).await?, args).await })?;
            // The store is closed by now, so the WAL has been written to the file.
            ("sqlite", json!({ "before": before, "after": std::fs::metadata(path)?.len() }), figures)
        }
        None => {
            let (sizes, figures) = runtime.block_on(on_postgres(args))?;
            ("postgres", sizes, figures)
        }
    };
    figures["what"] = json!("reap");
    figures["store"] = json!(store);
    figures["bytes"] = sizes;
    println!("{figures}");
    Ok(())
}

/// Measures the load without the reaper and with it, in turn.
async fn measure_load(ibid: Ibid, args: &ReapArgs) -> Result<Value, BenchError> {
    let turn = Duration::from_secs(args.seconds);
    let (mut without, mut with) = (histogram()?, histogram()?);
    let mut reaping = Duration::ZERO;
    let mut left = count_expired(&ibid).await?;
    let expired = left;
    let mut turns = 0;
    let p99 = |took: &Histogram<u64>| took.value_at_quantile(0.99);
    while left > 0 {
        if turns < args.rounds {
            without.add(measure(&ibid, args.callers, turn).await?.0)?;
        }
        turns += 1;
        let started = Instant::now();
        let load = tokio::spawn({
            let (ibid, callers) = (ibid.clone(), args.callers);
            async move { measure(&ibid, callers, turn).await }
        });
        let ended = tokio::time::timeout(turn, reap_all(&ibid)).await;
        reaping += started.elapsed().min(turn);
        let (took, _): (Histogram<u64>, f64) = load.await??;
        // Only turns that have a counterpart are compared, because the table grows with the load.
        if turns <= args.rounds {
            with.add(took)?;
        }
        left = match ended {
            Ok(done) => done.map(|()| 0)?,
            Err(_) => count_expired(&ibid).await?,
        };
        eprintln!("{left} left after {:.0} s of reaping", reaping.as_secs_f64());
        if turns == args.rounds {
            eprintln!("p99 in {turns} turns: {} us with it, {} us without", p99(&with), p99(&without));
        }
    }
    Ok(json!({
        "expired": expired, "live": args.live, "callers": args.callers,
        "reap_seconds": reaping.as_secs_f64().round(),
        "rows_per_second": (expired as f64 / reaping.as_secs_f64()).round(),
        "keys_without": without.len(), "keys_with": with.len(),
        "p50_without": without.value_at_quantile(0.5), "p50_with": with.value_at_quantile(0.5),
        "p99_without": p99(&without), "p99_with": p99(&with),
        "ratio": (p99(&with) as f64 / p99(&without) as f64 * 100.0).round() / 100.0,
    }))
}

async fn reap_all(ibid: &Ibid) -> Result<(), BenchError> {
    reap_store(&**ibid.store(), Retention::default(), |_| {}).await?;
    Ok(())
}

async fn count_expired(ibid: &Ibid) -> Result<u64, BenchError> {
    Ok(reap_preview(&**ibid.store(), Retention::default()).await?.records.remove)
}

fn fill_sqlite(path: &Path, args: &ReapArgs, runtime: &Runtime) -> Result<(), BenchError> {
    let (connection, template) = rows::open(path, runtime)?;
    // A fill that is interrupted by a power loss is repeated from scratch.
    connection.pragma_update(None, "synchronous", "off")?;
    connection.pragma_update(None, "cache_size", -(256 << 10))?;
    let mut rows = Rows::new(&connection, &template)?;
    let all = args.expired + args.live;
    for first in (0..all).step_by(BATCH as usize) {
        connection.execute_batch("begin immediate")?;
        let now = rows::now()?;
        for key in first..(first + BATCH).min(all) {
            // The older keys first, as in a real store.
            let completed_at = if key < args.expired { now - TWO_DAYS_US } else { now };
            rows.write_completed(&Row::new(format!("fill-{key}"))?, completed_at)?;
        }
        connection.execute_batch("commit")?;
    }
    drop(rows);
    connection.query_row("pragma wal_checkpoint(truncate)", [], |_| Ok(()))?;
    Ok(())
}

async fn on_postgres(args: &ReapArgs) -> Result<(Value, Value), BenchError> {
    let server = Postgres::start_on_disk(SERVER_SETTINGS);
    let database = server.create_database();
    let store = PostgresStore::open(&server.url_for(&database), PostgresOptions::default()).await?;
    let ibid = payment::engine(Arc::new(store)).await?;
    payment::pay(&ibid, &Arc::new(Policy::default()), "template").await?;
    let fill = |numbers, age_us| drop(server.sql(&database, &fill::postgres_sql(numbers, age_us)));
    let all = args.expired + args.live;
    fill(0..args.expired, TWO_DAYS_US);
    fill(args.expired..all, 0);
    server.sql(&database, "vacuum analyze");
    server.sql(&database, "checkpoint");
    let bytes = || -> Result<u64, BenchError> {
        let sql = "select pg_total_relation_size('ibid_record') + pg_total_relation_size('ibid_body')";
        Ok(server.sql(&database, sql).parse()?)
    };
    let before = bytes()?;
    let figures = measure_load(ibid, args).await?;
    server.sql(&database, "vacuum");
    let after = bytes()?;
    // The server reuses the freed space: as many new keys as were removed need next to no additional space.
    fill(all..all + args.expired, 0);
    Ok((json!({ "before": before, "after": after, "refilled": bytes()? }), figures))
}

/// Keys per transaction: few enough that the log stays in memory.
const BATCH: u64 = 10_000;

/// Twice the retention, in microseconds: keys that were completed this long ago expired a day ago.
const TWO_DAYS_US: i64 = 2 * 24 * 3600 * 1_000_000;
