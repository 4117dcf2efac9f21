//! Several gateways on one PostgreSQL server, compared with one: the total number of callers stays the same.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use ibid_testkit::postgres::Postgres;
use ibid_testkit::program::{Launch, Program};
use serde_json::json;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::connections::pay;
use crate::database::SERVER_SETTINGS;
use crate::{BenchError, round_figure, rows};

/// Options of `ibid-bench nodes`.
#[derive(Debug, Args)]
pub(crate) struct NodesArgs {
    /// Numbers of gateways, smallest first
    #[arg(long, default_value = "1,2,4", value_delimiter = ',')]
    gateways: Vec<NonZeroU32>,
    /// Connections in all, spread over the gateways
    #[arg(long, default_value = "64")]
    callers: NonZeroU32,
    /// Duration of each measurement in seconds
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Path of the binary `ibid` that runs the gateways
    #[arg(long)]
    gateway_binary: PathBuf,
}

pub(crate) async fn run(args: &NodesArgs) -> Result<(), BenchError> {
    let binary = std::fs::canonicalize(&args.gateway_binary)?;
    let server = Postgres::start_on_disk(SERVER_SETTINGS);
    let upstream = Program::start(|_, port| {
        let exe = std::env::current_exe().expect("the running program has a path");
        Launch::new(exe, ["upstream".to_owned(), "--listen".to_owned(), format!("127.0.0.1:{port}")])
    });
    let mut one: Option<Figures> = None;
    for &count in &args.gateways {
        // Each number starts on an empty database, because the size of a table has an influence, too.
        let store = server.url_for(&server.create_database());
        // One after the other: the first one creates the tables.
        let gateways: Vec<Program> =
            (0..count.get()).map(|_| gateway(&binary, &upstream.url(), &store)).collect();
        let addrs: Vec<SocketAddr> = gateways.iter().map(Program::addr).collect();
        load(&addrs, args.callers.get(), WARM_UP).await?;
        let cpu = PostgresCpu::find(&server)?;
        let before = cpu.seconds()?;
        let mut figures = load(&addrs, args.callers.get(), Duration::from_secs(args.seconds)).await?;
        figures.cpu_us_per_key = (cpu.seconds()? - before) * 1e6 / figures.created.max(1) as f64;
        let base = one.get_or_insert_with(|| figures.clone());
        let ratio = figures.per_second / base.per_second;
        let line = json!({
            "what": "nodes", "gateways": count, "callers": args.callers, "keys": figures.created,
            "keys_per_second": figures.per_second.round(), "refused_503": figures.refused, "other_statuses": figures.others,
            "server_cpu_us_per_key": figures.cpu_us_per_key.round(),
            "rate_ratio": round_figure(ratio), "cpu_ratio": round_figure(figures.cpu_us_per_key / base.cpu_us_per_key),
            "ok": figures.refused == 0 && figures.others == 0 && ratio >= RATE_RATIO_MIN,
        });
        println!("{line}");
    }
    Ok(())
}

fn gateway(binary: &std::path::Path, upstream: &str, store: &str) -> Program {
    Program::start(|_, port| {
        let listen = format!("127.0.0.1:{port}");
        let args = ["gateway", "--upstream", upstream, "--tenant", "none", "--store", store];
        let addresses = ["--listen", &listen, "--admin-listen", "127.0.0.1:0"];
        Launch::new(binary, args.into_iter().chain(addresses))
    })
}

#[derive(Clone, Default)]
struct Figures {
    created: u64,
    refused: u64,
    others: u64,
    per_second: f64,
    cpu_us_per_key: f64,
}

/// Sends fresh keys over as many connections as there are callers, each to the next gateway.
async fn load(addrs: &[SocketAddr], callers: u32, length: Duration) -> Result<Figures, BenchError> {
    let (run, started) = (rows::now()?, Instant::now());
    let mut running = JoinSet::new();
    for (caller, addr) in (0..callers).zip(addrs.iter().copied().cycle()) {
        running.spawn(async move {
            let mut stream = TcpStream::connect(addr).await?;
            stream.set_nodelay(true)?;
            let mut figures = Figures::default();
            for number in 0_u32.. {
                if started.elapsed() >= length {
                    break;
                }
                match pay(&mut stream, &format!("{run:020x}-{caller:04x}-{number:08x}")).await?.as_str() {
                    "201" => figures.created += 1,
                    "503" => figures.refused += 1,
                    _ => figures.others += 1,
                }
            }
            Ok::<Figures, BenchError>(figures)
        });
    }
    let mut all = Figures::default();
    while let Some(ended) = running.join_next().await {
        let figures = ended??;
        all.created += figures.created;
        all.refused += figures.refused;
        all.others += figures.others;
    }
    all.per_second = all.created as f64 / started.elapsed().as_secs_f64();
    Ok(all)
}

/// CPU time of a server: its main process and all processes that this one started.
pub(crate) struct PostgresCpu {
    main: u32,
}

impl PostgresCpu {
    /// Finds the main process by one of its children, which is a session.
    pub(crate) fn find(server: &Postgres) -> Result<PostgresCpu, BenchError> {
        // The session ends with the query, so the session itself says who started it.
        let sql = "select split_part(split_part(pg_read_file('/proc/' || pg_backend_pid() || '/stat'), ') ', 2), ' ', 2)";
        Ok(PostgresCpu { main: server.sql("postgres", sql).trim().parse()? })
    }

    /// Returns the user and system time so far, with that of sessions that have ended.
    pub(crate) fn seconds(&self) -> Result<f64, BenchError> {
        let mut ticks = 0;
        for entry in std::fs::read_dir("/proc")? {
            let entry = entry?;
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            // A process that has just ended is in its parent's times.
            let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
            let stat = ProcessStat::parse(&stat);
            if pid == self.main {
                ticks += stat.own + stat.children;
            } else if stat.parent == u64::from(self.main) {
                ticks += stat.own;
            }
        }
        Ok(ticks as f64 / TICKS_PER_SECOND)
    }
}

/// Returns the user and system time of this process so far.
pub(crate) fn own_cpu_seconds() -> Result<f64, BenchError> {
    cpu_seconds("self")
}

/// Returns the user and system time so far of the process with this number, all of its threads included.
pub(crate) fn cpu_seconds(process: &str) -> Result<f64, BenchError> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    Ok(ProcessStat::parse(&stat).own as f64 / TICKS_PER_SECOND)
}

/// Parent and times of a process, in ticks.
struct ProcessStat {
    parent: u64,
    own: u64,
    /// Time of children that have ended.
    children: u64,
}

impl ProcessStat {
    fn parse(stat: &str) -> ProcessStat {
        // Fields after the name: state, ppid, …, utime (11), stime, cutime, cstime.
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        let field = |index: usize| fields.get(index).and_then(|value| value.parse::<u64>().ok()).unwrap_or(0);
        ProcessStat { parent: field(1), own: field(11) + field(12), children: field(13) + field(14) }
    }
}

/// Load before each measurement: connections are opened, statements prepared and pages allocated.
const WARM_UP: Duration = Duration::from_secs(1);

/// Lowest total rate of several gateways, as a part of the rate of one.
const RATE_RATIO_MIN: f64 = 0.75;

/// Unit of the times in `/proc/PID/stat` (`getconf CLK_TCK`): 100 on every Linux platform that ibid is built for.
const TICKS_PER_SECOND: f64 = 100.0;
