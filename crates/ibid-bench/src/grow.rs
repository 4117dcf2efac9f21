//! A store of several sizes: which figures grow with the number of stored keys?
//!
//! The store is filled with completed keys, written directly in the format that the engine leaves. A part of them is
//! expired, for the reaper. At each size the same figures are measured, and the last size is compared with the first.

use std::num::NonZeroU32;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use ibid::Ibid;
use ibid::outcome::Begin;
use ibid::upkeep::{Retention, reap_store, sweep_once};
use ibid_core::policy::Policy;
use ibid_core::record::ErrorCode;
use ibid_core::store::RecordFilter;
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;

use crate::begin_load::measure_begins;
use crate::database::Database;
use crate::rows::{self, Row, Rows};
use crate::{BenchError, fill, payment, round_figure};

/// Options of `ibid-bench grow`.
#[derive(Debug, Args)]
pub(crate) struct GrowArgs {
    /// The kind of store; a temporary one is made
    #[arg(long)]
    store: StoreKind,
    /// Numbers of stored keys, smallest first
    #[arg(long, default_value = "1000000,20000000", value_delimiter = ',')]
    keys: Vec<u64>,
    /// Number of expired keys at each size, for the reaper
    #[arg(long, default_value_t = 200_000)]
    expired: u64,
    /// Callers of the measurement with many
    #[arg(long, default_value = "64")]
    callers: NonZeroU32,
    /// Duration of each measurement in seconds
    #[arg(long, default_value_t = 5)]
    seconds: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum StoreKind {
    Sqlite,
    Postgres,
}

pub(crate) fn run(args: &GrowArgs, runtime: &Runtime) -> Result<(), BenchError> {
    let name = match args.store {
        StoreKind::Sqlite => "sqlite",
        StoreKind::Postgres => "postgres",
    };
    let database = runtime.block_on(Database::open(name))?;
    runtime.block_on(write_template(&database))?;
    let bytes = runtime.block_on(engine_bytes(&database, args))?;
    println!("{}", json!({ "what": "grow_engine", "store": name, "bytes_per_key": bytes.round() }));
    let mut filled = 0;
    let mut sizes: Vec<Map<String, Value>> = Vec::new();
    for &keys in &args.keys {
        let started = Instant::now();
        fill_keys(&database, runtime, filled..keys, Age::Live)?;
        filled = filled.max(keys);
        // Numbers that no live key has, and no other size.
        let first = EXPIRED_FROM + sizes.len() as u64 * args.expired;
        fill_keys(&database, runtime, first..first + args.expired, Age::Expired)?;
        runtime.block_on(settle(&database))?;
        eprintln!("filled to {keys} keys in {:.0} s", started.elapsed().as_secs_f64());
        let figures = runtime.block_on(measure(&database, args, keys))?;
        let mut line = json!({ "what": "grow_size", "store": name, "keys": keys });
        line["figures"] = Value::Object(figures.clone());
        println!("{line}");
        sizes.push(figures);
    }
    let (Some(small), Some(large)) = (sizes.first(), sizes.last()) else { return Err("no sizes".into()) };
    println!("{}", compare(name, small, large));
    Ok(())
}

/// Divides each figure of the large store by that of the small one; a rate is divided the other way.
fn compare(store: &str, small: &Map<String, Value>, large: &Map<String, Value>) -> Value {
    let mut ratios = Map::new();
    for (name, figure) in large {
        let (large, small) =
            (figure.as_f64().unwrap_or(0.0), small.get(name).and_then(Value::as_f64).unwrap_or(0.0));
        let ratio = if name.ends_with("_per_second") { small / large } else { large / small };
        if ratio.is_finite() {
            ratios.insert(name.clone(), json!(round_figure(ratio)));
        }
    }
    let is_judged = |name: &str| !NOT_JUDGED.contains(&name);
    let worse =
        ratios.iter().filter(|(name, ratio)| is_judged(name) && ratio.as_f64().unwrap_or(0.0) > RATIO_MAX);
    let worse: Vec<_> = worse.map(|(name, _)| name.clone()).collect();
    json!({
        "what": "grow", "store": store, "ratios": ratios, "above_1.3": worse, "not_judged": NOT_JUDGED,
        "ok": worse.is_empty(),
    })
}

/// Measures all figures at one size.
async fn measure(database: &Database, args: &GrowArgs, keys: u64) -> Result<Map<String, Value>, BenchError> {
    let length = Duration::from_secs(args.seconds);
    let mut figures = Map::new();
    let mut put = |name: &str, value: f64| drop(figures.insert(name.to_owned(), json!(round_figure(value))));
    let bytes = database.bytes().await?;
    put("bytes_per_key", bytes as f64 / database.rows().await?.max(1) as f64);
    put("start_ms", median_ms(|| async { engine(database).await.map(drop) }).await?);
    let ibid = engine(database).await?;
    let browse = ibid.store().require_browse()?;
    put("gauges_ms", median_ms(|| async { Ok(browse.count().await.map(|_| ())?) }).await?);
    let dead = || RecordFilter::default().with(|filter| (filter.dead_letter, filter.limit) = (true, PAGE));
    put("dead_letters_ms", median_ms(|| async { Ok(browse.list(dead()).await.map(|_| ())?) }).await?);
    put("sweep_ms", median_ms(|| async { Ok(sweep_once(&ibid).await.map(|_| ())?) }).await?);
    put("begin_p50_us_1", measure_begins(&ibid, 1, length).await?.took.value_at_quantile(0.5) as f64);
    // The first load after a fill reads and logs pages that stay in memory afterwards.
    measure_begins(&ibid, args.callers.get(), length).await?;
    let begins = measure_begins(&ibid, args.callers.get(), length).await?;
    put("begin_p50_us_many", begins.took.value_at_quantile(0.5) as f64);
    put("keys_per_second", begins.per_second);
    // Right after a checkpoint the first change of each page logs the page, too.
    checkpoint(database).await?;
    let before = LogPosition::read(database).await?;
    let written = measure_begins(&ibid, args.callers.get(), length).await?.took.len().max(1) as f64;
    if let (Some(before), Some(after)) = (before, LogPosition::read(database).await?) {
        put("wal_bytes_per_key", (after.bytes - before.bytes) as f64 / written);
        put("wal_page_images_per_key", (after.page_images - before.page_images) as f64 / written);
        put("wal_bytes_per_key_without_images", bytes_without_images(database, &ibid, args).await?);
    }
    put("reaped_per_second", reap_rate(&ibid, length).await?);
    eprintln!("{keys} keys are measured");
    Ok(figures)
}

/// Returns the log of a key in a run without page images: what is left as checkpoints become rare.
async fn bytes_without_images(database: &Database, ibid: &Ibid, args: &GrowArgs) -> Result<f64, BenchError> {
    set(database, "full_page_writes", "off").await?;
    let before = LogPosition::read(database).await?;
    let took = measure_begins(ibid, args.callers.get(), Duration::from_secs(args.seconds)).await?.took;
    let after = LogPosition::read(database).await?;
    set(database, "full_page_writes", "on").await?;
    let bytes = |position: Option<LogPosition>| position.map_or(0, |position| position.bytes);
    Ok((bytes(after) - bytes(before)) as f64 / took.len().max(1) as f64)
}

async fn reap_rate(ibid: &Ibid, length: Duration) -> Result<f64, BenchError> {
    let (started, mut removed, mut last) = (Instant::now(), 0, Instant::now());
    let on_step = |stats: &ibid::upkeep::ReapStats| {
        if stats.removed > removed {
            (removed, last) = (stats.removed, Instant::now());
        }
    };
    // Cut off in the middle, if there is more than the time is enough for.
    if let Ok(ended) =
        tokio::time::timeout(length, reap_store(&**ibid.store(), Retention::default(), on_step)).await
    {
        ended?;
    }
    // Steps after the last expired row look for other things.
    Ok(removed as f64 / (last - started).as_secs_f64().max(1e-3))
}

/// The position in the server's log.
struct LogPosition {
    bytes: u64,
    page_images: u64,
}

impl LogPosition {
    /// Reads it; `None` where there is no server.
    async fn read(database: &Database) -> Result<Option<LogPosition>, BenchError> {
        if matches!(database, Database::Sqlite { .. }) {
            return Ok(None);
        }
        // Sessions report their counts with a delay of up to a second.
        tokio::time::sleep(Duration::from_millis(1100)).await;
        let bytes = database.number("select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::int8").await?;
        let page_images = database.number("select wal_fpi from pg_stat_wal").await?;
        Ok(Some(LogPosition { bytes, page_images }))
    }
}

async fn engine(database: &Database) -> Result<Ibid, BenchError> {
    payment::engine(database.store().await?).await
}

/// Returns the median duration of five calls, in milliseconds.
async fn median_ms<F: Future<Output = Result<(), BenchError>>>(
    mut call: impl FnMut() -> F,
) -> Result<f64, BenchError> {
    let mut all = Vec::new();
    for _ in 0..5 {
        let started = Instant::now();
        call().await?;
        all.push(started.elapsed().as_secs_f64() * 1e3);
    }
    all.sort_by(f64::total_cmp);
    Ok(all[2])
}

/// Returns the bytes of a key that the engine itself wrote, to compare with those of keys that are filled in.
async fn engine_bytes(database: &Database, args: &GrowArgs) -> Result<f64, BenchError> {
    let (ibid, before) = (engine(database).await?, database.bytes().await?);
    let length = Duration::from_secs(args.seconds);
    let keys = measure_begins(&ibid, args.callers.get(), length).await?.took.len();
    settle(database).await?;
    Ok(database.bytes().await?.saturating_sub(before) as f64 / keys.max(1) as f64)
}

/// Writes the record that all others are copied from, and some dead letters.
async fn write_template(database: &Database) -> Result<(), BenchError> {
    let (ibid, policy) = (engine(database).await?, Arc::new(Policy::default()));
    payment::pay(&ibid, &policy, "template").await?;
    for number in 0..DEAD_LETTERS {
        let identity = payment::identity(&format!("dead-{number}"))?;
        let ask = ibid.ask(identity, policy.clone(), Arc::new(payment::Payment));
        let Begin::Run(mut attempt) = ibid.begin(ask).await? else { return Err("not a fresh key".into()) };
        attempt.ensure_lease().await?;
        drop(attempt.unknown(ErrorCode::Broken).await);
    }
    Ok(())
}

/// The age of keys to write.
#[derive(Clone, Copy)]
enum Age {
    Live,
    Expired,
}

/// Writes the keys of these numbers.
fn fill_keys(
    database: &Database,
    runtime: &Runtime,
    numbers: Range<u64>,
    age: Age,
) -> Result<(), BenchError> {
    match database {
        Database::Sqlite { path, .. } => fill_sqlite(path, runtime, numbers, age),
        Database::Postgres { .. } => runtime.block_on(fill_postgres(database, numbers, age)),
    }
}

async fn fill_postgres(database: &Database, numbers: Range<u64>, age: Age) -> Result<(), BenchError> {
    let age_us = match age {
        Age::Live => AN_HOUR_US,
        Age::Expired => TWO_DAYS_US,
    };
    for first in numbers.clone().step_by(BATCH_POSTGRES) {
        let last = (first + BATCH_POSTGRES as u64).min(numbers.end);
        database.execute(&fill::postgres_sql(first..last, age_us)).await?;
    }
    Ok(())
}

fn fill_sqlite(path: &Path, runtime: &Runtime, numbers: Range<u64>, age: Age) -> Result<(), BenchError> {
    let (connection, template) = rows::open(path, runtime)?;
    // A fill that is interrupted by a power loss is repeated from scratch.
    connection.pragma_update(None, "synchronous", "off")?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    let mut rows = Rows::new(&connection, &template)?;
    for first in numbers.clone().step_by(BATCH_SQLITE) {
        connection.execute_batch("begin immediate")?;
        let now = match age {
            Age::Live => rows::now()?,
            Age::Expired => rows::now()? - TWO_DAYS_US,
        };
        for number in first..(first + BATCH_SQLITE as u64).min(numbers.end) {
            rows.write_completed(&Row::new(format!("fill-{number:031}"))?, now)?;
        }
        connection.execute_batch("commit")?;
    }
    drop(rows);
    connection.query_row("pragma wal_checkpoint(truncate)", [], |_| Ok(()))?;
    Ok(())
}

/// Does what a store of this age has done long ago: vacuum and checkpoint, or the ordering of new rows.
async fn settle(database: &Database) -> Result<(), BenchError> {
    match database {
        Database::Postgres { .. } => {
            database.execute("vacuum analyze").await?;
            checkpoint(database).await
        }
        Database::Sqlite { .. } => {
            let ibid = engine(database).await?;
            let left = "select (select coalesce(max(row), 0) from ibid_record) - up_to from ibid_ordered";
            while database.number(left).await? > 0 {
                // The sweeper orders new rows first.
                sweep_once(&ibid).await?;
            }
            Ok(())
        }
    }
}

async fn checkpoint(database: &Database) -> Result<(), BenchError> {
    match database {
        Database::Postgres { .. } => database.execute("checkpoint").await,
        Database::Sqlite { .. } => Ok(()),
    }
}

async fn set(database: &Database, name: &str, value: &str) -> Result<(), BenchError> {
    database.execute(&format!("alter system set {name} = {value}")).await?;
    database.execute("select pg_reload_conf()").await?;
    // The server reads its configuration a moment later.
    tokio::time::sleep(Duration::from_millis(500)).await;
    Ok(())
}

/// Largest ratio of the large store to the small one.
const RATIO_MAX: f64 = 1.3;

/// Figures without a verdict. Right after a checkpoint the log has an image of nearly every page of the index that a begin
/// changes, and a larger index has more pages. How much that is per key depends on the time between checkpoints.
const NOT_JUDGED: &[&str] = &["wal_bytes_per_key", "wal_page_images_per_key"];

/// Items of a page, as in `ibid keys list`.
const PAGE: u32 = 50;

const DEAD_LETTERS: u32 = 100;

/// First number of expired keys, above any number of live ones.
const EXPIRED_FROM: u64 = 10_000_000_000;

/// Keys per statement: some seconds.
const BATCH_POSTGRES: usize = 200_000;

/// Keys per transaction: few enough that the log stays in memory.
const BATCH_SQLITE: usize = 10_000;

/// Page cache that holds the index of some million random ids, because every row touches a random page of it.
const CACHE_KIB: i64 = 512 << 10;

const AN_HOUR_US: i64 = 3600 * 1_000_000;

/// Twice the retention: keys that were completed this long ago expired a day ago.
const TWO_DAYS_US: i64 = 2 * 24 * AN_HOUR_US;
