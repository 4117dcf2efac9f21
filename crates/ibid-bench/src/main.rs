//! `ibid-bench`: benchmarks of ibid and of the peers to compare it with. `scripts/bench` runs all of them side by side.
//!
//! Messages go to stderr, figures to stdout: one JSON object per line.

mod bare;
mod begin_load;
mod burst;
mod connections;
mod database;
mod dynamodb;
mod fill;
mod front;
mod grow;
mod mysql;
mod nodes;
mod payment;
mod postgres;
mod reap;
mod reaper_metrics;
mod redis_store;
mod rows;
mod steady;
mod store;
mod upstream;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

// The gateway's allocator, so that figures of the engine apply to the gateway too.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Benchmarks of ibid and its peers
#[derive(Debug, Parser)]
#[command(name = "ibid-bench", color = clap::ColorChoice::Never)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Begin and finish fresh keys through the engine
    Store(StoreArgs),
    /// Run the store's statements in batches on one bare connection: the limit of the disk and SQLite alone
    Bare(BareArgs),
    /// Compare the engine on PostgreSQL with the textbook solution, on a server started for it
    Postgres(PostgresArgs),
    /// Compare the engine on MariaDB with the textbook solution, on a server started for it
    Mysql(TextbookArgs),
    /// Compare the engine on DynamoDB with a conditional put and an update, on a DynamoDB Local started for it
    Dynamodb(TextbookArgs),
    /// Compare the engine on Redis with `SET NX` and `SET`, on a server started for it
    Redis(TextbookArgs),
    /// Reap expired keys under load, compared with the same load alone
    Reap(ReapArgs),
    /// Begin and finish keys for minutes with a short retention: does the reaper keep up?
    Steady(steady::SteadyArgs),
    /// Fill a store to several sizes and compare latency, start-up, gauges, lists, reaping, bytes and log
    Grow(grow::GrowArgs),
    /// Compare several gateways on one PostgreSQL server with one gateway
    Nodes(nodes::NodesArgs),
    /// Compare two gateways on one PostgreSQL server with and without Redis in front of it
    Front(front::FrontArgs),
    /// Send bursts of duplicates of one running key, compared with replays of a completed one
    Burst(burst::BurstArgs),
    /// Fill a store with completed keys
    Fill(FillArgs),
    /// Serve a fast API as the upstream of a gateway
    Upstream(UpstreamArgs),
    /// Hold many connections, each after one request
    Connections(ConnectionsArgs),
}

#[derive(Debug, Args)]
struct StoreArgs {
    /// `sqlite:PATH`, `postgres://…` or `memory:`
    #[arg(long)]
    store: String,
    /// Callers that begin and finish keys at once
    #[arg(long, default_value = "64")]
    callers: NonZeroU32,
    /// Duration of the measurement in seconds
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Print only the JSON line
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct BareArgs {
    /// The file, created if it does not exist
    #[arg(long)]
    path: PathBuf,
    /// Begins in one transaction, and then finishes in one
    #[arg(long, default_value = "256")]
    batch: NonZeroU32,
    /// Duration of the measurement in seconds
    #[arg(long, default_value_t = 5)]
    seconds: u64,
}

#[derive(Debug, Args)]
struct PostgresArgs {
    /// Numbers of callers, each measured in turn
    #[arg(long, default_value = "64,256", value_delimiter = ',')]
    callers: Vec<NonZeroU32>,
    /// Duration of each measurement in seconds
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Number of measurements of each, in turn, after one that does not count; the median pair counts
    #[arg(long, default_value = "3")]
    rounds: NonZeroU32,
    /// Number of stored keys in the large table
    #[arg(long, default_value_t = 5_000_000)]
    keys: u64,
}

#[derive(Debug, Args)]
struct TextbookArgs {
    /// Duration of each measurement in seconds
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Number of measurements of each, in turn; the median pair counts
    #[arg(long, default_value = "3")]
    rounds: NonZeroU32,
}

#[derive(Debug, Args)]
struct ReapArgs {
    /// The file of a new `sqlite:` store; without it, a PostgreSQL server is started
    #[arg(long)]
    path: Option<PathBuf>,
    /// Number of expired keys
    #[arg(long, default_value_t = 1_000_000)]
    expired: u64,
    /// Number of live keys
    #[arg(long, default_value_t = 100_000)]
    live: u64,
    /// Callers that begin and finish keys at once
    #[arg(long, default_value_t = 32)]
    callers: u32,
    /// Duration of a turn in seconds: turns without and with the reaper alternate
    #[arg(long, default_value_t = 4)]
    seconds: u64,
    /// Number of turns of each kind; after that the reaper continues to the end under load
    #[arg(long, default_value_t = 4)]
    rounds: u32,
}

#[derive(Debug, Args)]
struct FillArgs {
    /// The file of a `sqlite:` store, created if it does not exist
    #[arg(long)]
    store: PathBuf,
    /// Number of keys, named `fill-0`, `fill-1` and so on
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,
}

#[derive(Debug, Args)]
struct UpstreamArgs {
    /// The address to listen on
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Bytes of the response's body [default: a small payment]
    #[arg(long)]
    bytes: Option<usize>,
}

#[derive(Debug, Args)]
struct ConnectionsArgs {
    /// The address to connect to
    #[arg(long)]
    to: SocketAddr,
    /// Number of connections to open
    #[arg(long, default_value_t = 1000)]
    count: u32,
    /// Keep them open until the process ends
    #[arg(long)]
    hold: bool,
}

/// Any error: a benchmark does not recover from one.
type BenchError = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return report(&error.into()),
    };
    let done = match Cli::parse().command {
        Command::Store(args) => runtime.block_on(store::run(&args)),
        Command::Bare(args) => bare::run(&args, &runtime),
        Command::Postgres(args) => runtime.block_on(postgres::run(&args)),
        Command::Mysql(args) => runtime.block_on(mysql::run(&args)),
        Command::Dynamodb(args) => runtime.block_on(dynamodb::run(&args)),
        Command::Redis(args) => runtime.block_on(redis_store::run(&args)),
        Command::Reap(args) => reap::run(&args, &runtime),
        Command::Steady(args) => runtime.block_on(steady::run(&args)),
        Command::Grow(args) => grow::run(&args, &runtime),
        Command::Nodes(args) => runtime.block_on(nodes::run(&args)),
        Command::Front(args) => runtime.block_on(front::run(&args)),
        Command::Burst(args) => runtime.block_on(burst::run(&args)),
        Command::Fill(args) => fill::run(&args, &runtime),
        Command::Upstream(args) => runtime.block_on(upstream::run(&args)),
        Command::Connections(args) => runtime.block_on(connections::run(&args)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error),
    }
}

/// Reads a duration in whole seconds, such as `61s` or `61`.
fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.strip_suffix('s').unwrap_or(text);
    number.parse().map(Duration::from_secs).map_err(|_| format!("`{text}` is not a number of seconds"))
}

/// Rounds a figure to two decimal places.
fn round_figure(figure: f64) -> f64 {
    (figure * 100.0).round() / 100.0
}

fn report(error: &BenchError) -> ExitCode {
    let chain = std::iter::successors(error.source(), |error| error.source());
    eprintln!("error: {error}");
    chain.for_each(|cause| eprintln!("  cause: {cause}"));
    ExitCode::FAILURE
}
