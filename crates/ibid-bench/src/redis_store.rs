//! Redis: compares the engine with the textbook solution, on one server that flushes every write, and counts bytes per key.
//!
//! The textbook solution takes two commands per request: `SET key NX` before the work, `SET key response` after it. Its callers
//! have a connection each and send one command at a time; for comparison, they also share one connection, which pipelines.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ibid::store::redis::{RedisOptions, RedisStore};
use ibid_testkit::redis::Redis;
use redis::Client;
use redis::aio::MultiplexedConnection;
use serde_json::json;
use tokio::task::JoinSet;

use crate::store::measure;
use crate::{BenchError, TextbookArgs, payment, round_figure};

pub(crate) async fn run(args: &TextbookArgs) -> Result<(), BenchError> {
    let seconds = Duration::from_secs(args.seconds);
    for callers in [1, 64, 256] {
        let server = Redis::start();
        let client = Client::open(server.url())?;
        let ibid = payment::engine(Arc::new(RedisStore::open(&server.url(), RedisOptions::default()).await?))
            .await?;
        // The machine's speed changes from second to second, so each turn is compared with the one just before it.
        let mut turns = Vec::new();
        for _ in 0..args.rounds.get() {
            let single = textbook(&client, callers, callers, seconds).await?;
            let (took, ours) = measure(&ibid, callers, seconds).await?;
            let pipelined = textbook(&client, callers, 1, seconds).await?;
            eprintln!("{callers} callers: p50 {} us", took.value_at_quantile(0.5));
            turns.push((ours / single, ours, single, pipelined));
        }
        turns.sort_by(|one, other| one.0.total_cmp(&other.0));
        // There is at least one turn.
        let (ratio, ours, single, pipelined) = turns[turns.len() / 2];
        let figures = json!({
            "what": "redis", "callers": callers, "keys_per_second": ours.round(),
            "textbook_per_second": single.round(), "ratio": round_figure(ratio),
            "pipelined_per_second": pipelined.round(), "pipelined_ratio": round_figure(ours / pipelined),
            "ratios": turns.iter().map(|turn| round_figure(turn.0)).collect::<Vec<_>>(),
        });
        println!("{figures}");
    }
    println!("{}", bytes_per_key().await?);
    Ok(())
}

/// Measures the keys per second of the textbook solution over this many connections.
async fn textbook(
    client: &Client,
    callers: u32,
    connections: u32,
    seconds: Duration,
) -> Result<f64, BenchError> {
    let mut pool: Vec<MultiplexedConnection> = Vec::new();
    for _ in 0..connections {
        pool.push(client.get_multiplexed_async_connection().await?);
    }
    let run = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let started = Instant::now();
    let mut running = JoinSet::new();
    for caller in 0..callers {
        let mut connection = pool[(caller % connections) as usize].clone();
        running.spawn(async move {
            let mut keys = 0_u64;
            while started.elapsed() < seconds {
                let key = format!("textbook-{run:020x}-{caller:04x}-{keys:08x}");
                let mut reserve = redis::cmd("SET");
                reserve.arg(&key).arg("running").arg("NX").arg("EX").arg(86_400);
                let taken: Option<String> = reserve.query_async(&mut connection).await?;
                if taken.is_none() {
                    return Err("a fresh key was not fresh".into());
                }
                let mut complete = redis::cmd("SET");
                complete.arg(&key).arg(payment::ANSWER).arg("EX").arg(86_400);
                complete.exec_async(&mut connection).await?;
                keys += 1;
            }
            Ok::<u64, BenchError>(keys)
        });
    }
    let mut keys = 0;
    while let Some(called) = running.join_next().await {
        keys += called??;
    }
    Ok(keys as f64 / started.elapsed().as_secs_f64())
}

/// Counts the bytes of the server's memory for each completed key.
async fn bytes_per_key() -> Result<serde_json::Value, BenchError> {
    let server = Redis::start();
    let ibid =
        payment::engine(Arc::new(RedisStore::open(&server.url(), RedisOptions::default()).await?)).await?;
    let used = || -> Result<f64, BenchError> { Ok(server.info("used_memory").parse()?) };
    // The first key of a bucket brings the policy along.
    let (policy, mut before) = (Arc::new(ibid_core::policy::Policy::default()), 0.0);
    for number in 0..WARM_KEYS + MEASURED_KEYS {
        if number == WARM_KEYS {
            before = used()?;
        }
        payment::pay(&ibid, &policy, &format!("order-{number:012}")).await?;
    }
    let bytes = (used()? - before) / f64::from(MEASURED_KEYS);
    Ok(json!({
        "what": "redis memory", "bytes_per_key": bytes.round(), "response_bytes": payment::ANSWER.len(),
    }))
}

/// Keys until every bucket has its policy and its orders.
const WARM_KEYS: u32 = 5_000;

/// Enough for a steady mean, because tables grow in steps.
const MEASURED_KEYS: u32 = 20_000;
