//! MariaDB: compares the engine with the textbook solution, on one durable server that is started for it.
//!
//! The textbook solution takes three statements per request, each in a separate transaction: select, insert, update; over a
//! pool of connections.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ibid::store::mysql::{MysqlOptions, MysqlStore};
use ibid_testkit::mariadb::MariaDb;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, Row};
use serde_json::json;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::nodes::{cpu_seconds, own_cpu_seconds};
use crate::store::measure;
use crate::{BenchError, TextbookArgs, payment, round_figure};

pub(crate) async fn run(args: &TextbookArgs) -> Result<(), BenchError> {
    let server = MariaDb::start_on_disk(&[
        ("innodb_buffer_pool_size", "512M"),
        ("innodb_log_file_size", "512M"),
        // The textbook's and the store's.
        ("max_connections", "200"),
    ]);
    let seconds = Duration::from_secs(args.seconds);
    for callers in [64, 256] {
        let (ours, theirs) = (server.create_database(), server.create_database());
        server.sql(&theirs, include_str!("textbook_mysql.sql"));
        // The machine's speed changes from second to second, so each turn is compared with the one just before it. The first
        // turn of both sides is not counted: it creates the tables and their first pages.
        let mut turns = Vec::new();
        for turn in 0..=args.rounds.get() {
            let plain =
                measure_turn(&server, async || textbook(&server.url_for(&theirs), callers, seconds).await);
            let plain = plain.await?;
            let store = MysqlStore::open(&server.url_for(&ours), MysqlOptions::default()).await?;
            let store = Arc::new(store);
            let ibid = payment::engine(store.clone()).await?;
            let mut p50 = 0;
            let our = measure_turn(&server, async || {
                let (took, per_second) = measure(&ibid, callers, seconds).await?;
                p50 = took.value_at_quantile(0.5);
                Ok((took.len(), per_second))
            });
            let our = our.await?;
            let flights = store.batch_counts();
            let count = flights.batches.max(1) as f64;
            let (batch, flight_us) =
                (flights.changes as f64 / count, flights.flown.as_micros() as f64 / count);
            eprintln!("{callers} callers, turn {turn}, textbook: {plain}");
            eprintln!(
                "{callers} callers, turn {turn}, ibid: {our}, p50 {p50} us, mean batch {batch:.1}, mean flight {flight_us:.0} us"
            );
            if turn > 0 {
                turns.push((our.per_second / plain.per_second, our, plain, batch, flight_us));
            }
        }
        turns.sort_by(|one, other| one.0.total_cmp(&other.0));
        // There is at least one turn that counts.
        let (middle, our, plain, batch, flight_us) = &turns[turns.len() / 2];
        let figures = json!({
            "what": "mysql", "callers": callers, "keys_per_second": our.per_second.round(),
            "textbook_per_second": plain.per_second.round(), "ratio": round_figure(*middle),
            "ratios": turns.iter().map(|turn| round_figure(turn.0)).collect::<Vec<_>>(),
            "server_cpu_us_per_key": our.server_cpu_us.round(), "client_cpu_us_per_key": our.client_cpu_us.round(),
            "textbook_server_cpu_us_per_key": plain.server_cpu_us.round(),
            "textbook_client_cpu_us_per_key": plain.client_cpu_us.round(),
            "mean_batch": round_figure(*batch), "mean_flight_us": flight_us.round(),
            "flushes_per_key": round_figure(our.flushes), "disk_tables_per_key": round_figure(our.disk_tables),
            "uncounted_turns": 1,
        });
        println!("{figures}");
    }
    Ok(())
}

/// Figures of one turn of one side.
struct MysqlTurn {
    per_second: f64,
    /// CPU time per key, of the server and of this process.
    server_cpu_us: f64,
    client_cpu_us: f64,
    /// Groups of commits per key, each of which is one flush of the binary log.
    flushes: f64,
    /// Temporary tables on disk per key.
    disk_tables: f64,
}

impl Display for MysqlTurn {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let MysqlTurn { per_second, server_cpu_us, client_cpu_us, flushes, disk_tables } = self;
        write!(
            out,
            "{per_second:.0} keys/s, CPU per key {server_cpu_us:.0} us (server) and {client_cpu_us:.0} us (client), \
             {flushes:.3} flushes and {disk_tables:.3} temporary tables on disk per key"
        )
    }
}

/// Measures one turn, which returns its number of keys and keys per second.
async fn measure_turn(
    server: &MariaDb,
    turn: impl AsyncFnOnce() -> Result<(u64, f64), BenchError>,
) -> Result<MysqlTurn, BenchError> {
    let process = std::fs::read_to_string(server.sql("", "select @@pid_file"))?;
    let cpu = || cpu_seconds(process.trim());
    let (server_cpu, client_cpu) = (cpu()?, own_cpu_seconds()?);
    let (flushes, disk_tables) =
        (counter(server, "Binlog_group_commits")?, counter(server, "Created_tmp_disk_tables")?);
    let (keys, per_second) = turn().await?;
    let per_key = |figure: f64| figure / keys.max(1) as f64;
    Ok(MysqlTurn {
        per_second,
        server_cpu_us: per_key((cpu()? - server_cpu) * 1e6),
        client_cpu_us: per_key((own_cpu_seconds()? - client_cpu) * 1e6),
        flushes: per_key(counter(server, "Binlog_group_commits")? - flushes),
        disk_tables: per_key(counter(server, "Created_tmp_disk_tables")? - disk_tables),
    })
}

/// Returns a counter of the server.
fn counter(server: &MariaDb, name: &str) -> Result<f64, BenchError> {
    let row = server.sql("", &format!("show global status like '{name}'"));
    let (_, value) = row.trim().split_once('|').ok_or("a counter has a name and a value")?;
    Ok(value.parse()?)
}

/// Measures the textbook solution. Returns its number of keys and keys per second.
async fn textbook(url: &str, callers: u32, seconds: Duration) -> Result<(u64, f64), BenchError> {
    let opts: Opts = OptsBuilder::from_opts(Opts::from_url(url)?).prefer_socket(false).into();
    let mut pool = Vec::new();
    for _ in 0..CONNECTIONS {
        pool.push(Arc::new(Mutex::new(Conn::new(opts.clone()).await?)));
    }
    let run = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let started = Instant::now();
    let mut running = JoinSet::new();
    for caller in 0..callers {
        let connection = pool[caller as usize % CONNECTIONS].clone();
        running.spawn(async move {
            let mut keys = 0_u64;
            while started.elapsed() < seconds {
                let key = format!("{run:020x}-{caller:04x}-{keys:08x}");
                pay(&mut *connection.lock().await, &key).await?;
                keys += 1;
            }
            Ok::<u64, BenchError>(keys)
        });
    }
    let mut keys = 0;
    while let Some(called) = running.join_next().await {
        keys += called??;
    }
    Ok((keys, keys as f64 / started.elapsed().as_secs_f64()))
}

async fn pay(conn: &mut Conn, key: &str) -> Result<(), BenchError> {
    let row: Option<Row> = conn.exec_first(SELECT, ("-", key)).await?;
    if row.is_some() {
        return Err("a fresh key was there".into());
    }
    conn.exec_drop(INSERT, ("-", key, [7_u8; 32].as_slice())).await?;
    conn.exec_drop(UPDATE, (payment::ANSWER.as_bytes(), "-", key)).await?;
    Ok(())
}

const SELECT: &str =
    "select request_hash, state, response from idempotency_key where tenant = ? and `key` = ?";
const INSERT: &str =
    "insert into idempotency_key (tenant, `key`, request_hash, state) values (?, ?, ?, 'processing')";
const UPDATE: &str =
    "update idempotency_key set state = 'complete', response = ? where tenant = ? and `key` = ?";

/// Connections of the pool: fewer than the 151 that a server accepts by default.
const CONNECTIONS: usize = 64;
