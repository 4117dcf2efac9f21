//! `ibid-bench`: figures of ibid, and the peers to hold them against. `scripts/bench` runs all of it side by side.
//!
//! Talk goes to stderr, figures to stdout: one JSON object a line.

mod bare;
mod connections;
mod fill;
mod payment;
mod postgres;
mod reap;
mod rows;
mod store;
mod upstream;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

// The gateway's, so that figures of the engine are the gateway's too.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Benchmarks of ibid beside its peers
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
    /// The store's statements in batches on one bare connection: what the disk and SQLite alone can do
    Bare(BareArgs),
    /// The engine on PostgreSQL beside the textbook's way, on a server of its own
    Postgres(PostgresArgs),
    /// Reap expired keys while others are begun and finished, beside the same load alone
    Reap(ReapArgs),
    /// Fill a store with completed keys
    Fill(FillArgs),
    /// A fast API for a gateway to stand before
    Upstream(UpstreamArgs),
    /// Hold many connections, each after one request
    Connections(ConnectionsArgs),
}

#[derive(Debug, Args)]
struct StoreArgs {
    /// `sqlite:PATH`, `postgres://…` or `memory:`
    #[arg(long)]
    store: String,
    /// How many begin and finish at once
    #[arg(long, default_value = "64")]
    callers: NonZeroU32,
    /// For how long
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Nothing but the JSON line
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct BareArgs {
    /// The file, made if it is not there
    #[arg(long)]
    path: PathBuf,
    /// Begins in one transaction, and then finishes in one
    #[arg(long, default_value = "256")]
    batch: NonZeroU32,
    /// For how long
    #[arg(long, default_value_t = 5)]
    seconds: u64,
}

#[derive(Debug, Args)]
struct PostgresArgs {
    /// For how long each
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// How often each, in turn; the middle pair counts
    #[arg(long, default_value = "3")]
    rounds: NonZeroU32,
    /// Stored keys of the large table
    #[arg(long, default_value_t = 5_000_000)]
    keys: u64,
}

#[derive(Debug, Args)]
struct ReapArgs {
    /// The file of a new `sqlite:` store; without it, a PostgreSQL server of its own
    #[arg(long)]
    path: Option<PathBuf>,
    /// Keys that are past their time
    #[arg(long, default_value_t = 1_000_000)]
    expired: u64,
    /// Keys that are not
    #[arg(long, default_value_t = 100_000)]
    live: u64,
    /// How many begin and finish at once
    #[arg(long, default_value_t = 32)]
    callers: u32,
    /// How long a turn takes: one without the reaper, one with it, and so on
    #[arg(long, default_value_t = 4)]
    seconds: u64,
    /// Turns of each kind; then the reaper goes on to the end beside the load
    #[arg(long, default_value_t = 4)]
    rounds: u32,
}

#[derive(Debug, Args)]
struct FillArgs {
    /// The file of a `sqlite:` store, made if it is not there
    #[arg(long)]
    store: PathBuf,
    /// How many keys: `fill-0`, `fill-1` and so on
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,
}

#[derive(Debug, Args)]
struct UpstreamArgs {
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
}

#[derive(Debug, Args)]
struct ConnectionsArgs {
    /// Where to connect
    #[arg(long)]
    to: SocketAddr,
    /// How many
    #[arg(long, default_value_t = 1000)]
    count: u32,
    /// Keep them open until the process is ended
    #[arg(long)]
    hold: bool,
}

/// Whatever went wrong: a benchmark has no second plan.
type Failed = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.into()),
    };
    let done = match Cli::parse().command {
        Command::Store(args) => runtime.block_on(store::run(&args)),
        Command::Bare(args) => bare::run(&args, &runtime),
        Command::Postgres(args) => runtime.block_on(postgres::run(&args)),
        Command::Reap(args) => reap::run(&args, &runtime),
        Command::Fill(args) => fill::run(&args, &runtime),
        Command::Upstream(args) => runtime.block_on(upstream::run(&args)),
        Command::Connections(args) => runtime.block_on(connections::run(&args)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn failed(error: &Failed) -> ExitCode {
    let chain = std::iter::successors(error.source(), |error| error.source());
    eprintln!("error: {error}");
    chain.for_each(|cause| eprintln!("  cause: {cause}"));
    ExitCode::FAILURE
}
