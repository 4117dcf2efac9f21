//! Two gateways on one PostgreSQL server, with and without Redis in front of it: replays of completed keys, and new keys.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use hdrhistogram::Histogram;
use ibid_testkit::postgres::Postgres;
use ibid_testkit::program::{Launch, Program};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::connections::pay;
use crate::database::SERVER_SETTINGS;
use crate::nodes::PostgresCpu;
use crate::{BenchError, round_figure, rows};

/// Options of `ibid-bench front`.
#[derive(Debug, Args)]
pub(crate) struct FrontArgs {
    /// Completed keys that are replayed, in random order
    #[arg(long, default_value = "1000")]
    keys: NonZeroU32,
    /// Bytes of each response
    #[arg(long, default_value_t = 100_000)]
    bytes: usize,
    /// Connections in all, half to each gateway
    #[arg(long, default_value = "16")]
    callers: NonZeroU32,
    /// Duration of each measurement in seconds
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// `front.timeout` of the gateways
    #[arg(long, default_value = "10ms")]
    timeout: String,
    /// Path of the binary `ibid` that runs the gateways, with its feature `redis`
    #[arg(long)]
    gateway_binary: PathBuf,
}

pub(crate) async fn run(args: &FrontArgs) -> Result<(), BenchError> {
    let binary = std::fs::canonicalize(&args.gateway_binary)?;
    let server = Postgres::start_on_disk(SERVER_SETTINGS);
    let redis = Program::start(|_, port| {
        let port = port.to_string();
        Launch::new("redis-server", ["--port", &port, "--bind", "127.0.0.1", "--save", ""])
    });
    let upstream = Program::start(|_, port| {
        let exe = std::env::current_exe().expect("the running program has a path");
        let (listen, bytes) = (format!("127.0.0.1:{port}"), args.bytes.to_string());
        Launch::new(exe, ["upstream", "--listen", &listen, "--bytes", &bytes])
    });
    let config = format!("[front]\nurl = \"redis://{}/\"\ntimeout = \"{}\"\n", redis.addr(), args.timeout);
    for front in [None, Some(config)] {
        let store = server.url_for(&server.create_database());
        let gateways = [(); 2].map(|()| gateway(&binary, &upstream.url(), &store, front.as_deref()));
        let addrs = gateways.each_ref().map(Program::addr);
        let length = Duration::from_secs(args.seconds);
        let cpu = PostgresCpu::find(&server)?;
        complete(addrs[0], args.keys.get()).await?;
        let (before, hits_before) = (cpu.seconds()?, redis_hits(redis.addr()).await?);
        let keys = args.keys.get();
        let replays = load(&addrs, args.callers.get(), length, move |dice| {
            *dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            key((*dice >> 33) as u32 % keys)
        });
        let replays = replays.await?;
        let replay_cpu = (cpu.seconds()? - before) * 1e6 / replays.len().max(1) as f64;
        let hits = (redis_hits(redis.addr()).await? - hits_before) as f64 / replays.len().max(1) as f64;
        let run = rows::now()?;
        let fresh = load(&addrs, args.callers.get(), length, move |number| {
            *number += 1;
            format!("{run:x}-{number:x}")
        });
        let fresh = fresh.await?;
        let line = json!({
            "what": "front", "front": front.is_some(), "bytes": args.bytes, "keys": args.keys, "callers": args.callers,
            "replays_per_second": (replays.len() as f64 / length.as_secs_f64()).round(),
            "replay_p50_ms": millis(&replays, 0.5), "replay_p99_ms": millis(&replays, 0.99),
            "postgres_cpu_us_per_replay": replay_cpu.round(), "redis_hits_per_replay": round_figure(hits),
            "new_keys_per_second": (fresh.len() as f64 / length.as_secs_f64()).round(),
            "new_key_p50_ms": millis(&fresh, 0.5), "new_key_p99_ms": millis(&fresh, 0.99),
        });
        println!("{line}");
    }
    Ok(())
}

fn gateway(binary: &Path, upstream: &str, store: &str, config: Option<&str>) -> Program {
    Program::start(|folder, port| {
        std::fs::write(folder.join("ibid.toml"), config.unwrap_or_default())
            .expect("a file in an empty folder");
        let listen = format!("127.0.0.1:{port}");
        let args = ["gateway", "--upstream", upstream, "--tenant", "none", "--store", store];
        let addresses = ["--listen", &listen, "--admin-listen", "127.0.0.1:0"];
        Launch::new(binary, args.into_iter().chain(addresses))
    })
}

/// Returns the number of entries that the server has found so far.
async fn redis_hits(addr: SocketAddr) -> Result<u64, BenchError> {
    let mut stream = TcpStream::connect(addr).await?;
    stream.write_all(b"INFO stats\r\nQUIT\r\n").await?;
    let mut stats = String::new();
    stream.read_to_string(&mut stats).await?;
    let hits = stats.lines().find_map(|line| line.strip_prefix("keyspace_hits:"));
    Ok(hits.ok_or("Redis says nothing about hits")?.trim().parse()?)
}

fn key(number: u32) -> String {
    format!("done-{number}")
}

fn millis(times: &Histogram<u64>, quantile: f64) -> f64 {
    round_figure(times.value_at_quantile(quantile) as f64 / 1e3)
}

/// Runs every key once.
async fn complete(addr: SocketAddr, keys: u32) -> Result<(), BenchError> {
    let mut stream = TcpStream::connect(addr).await?;
    for number in 0..keys {
        let status = pay(&mut stream, &key(number)).await?;
        if status != "201" {
            return Err(format!("key {number} was answered {status}").into());
        }
    }
    Ok(())
}

/// Sends requests over as many connections as there are callers, each to the next gateway, and returns their times in
/// microseconds. `next` makes the next key of a caller from the caller's own number.
async fn load(
    addrs: &[SocketAddr],
    callers: u32,
    length: Duration,
    next: impl Fn(&mut u64) -> String + Clone + Send + 'static,
) -> Result<Histogram<u64>, BenchError> {
    let started = Instant::now();
    let mut running = JoinSet::new();
    for (caller, addr) in (0..callers).zip(addrs.iter().copied().cycle()) {
        let next = next.clone();
        running.spawn(async move {
            let mut stream = TcpStream::connect(addr).await?;
            stream.set_nodelay(true)?;
            let mut times = Histogram::<u64>::new(3)?;
            let mut number = u64::from(caller) << 32;
            while started.elapsed() < length {
                let key = next(&mut number);
                let sent = Instant::now();
                let status = pay(&mut stream, &key).await?;
                if status != "201" {
                    return Err(format!("a request was answered {status}").into());
                }
                times.record(sent.elapsed().as_micros() as u64)?;
            }
            Ok::<_, BenchError>(times)
        });
    }
    let mut all = Histogram::<u64>::new(3)?;
    while let Some(ended) = running.join_next().await {
        all.add(ended??)?;
    }
    Ok(all)
}
