//! PostgreSQL: compares the engine with the textbook solution, on one durable server that is started for it, one caller with
//! two bare commits, and the latency of a begin on a small table with that on a large one.
//!
//! The textbook solution takes three statements per request, each in a separate transaction: insert on conflict do update
//! returning, claim, complete; over a pool of connections.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hdrhistogram::Histogram;
use ibid::Ibid;
use ibid::outcome::Begin;
use ibid::store::postgres::{PostgresOptions, PostgresStore};
use ibid_core::policy::Policy;
use ibid_testkit::postgres::Postgres;
use serde_json::json;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls, Statement};

use crate::database::SERVER_SETTINGS;
use crate::nodes::{PostgresCpu, own_cpu_seconds};
use crate::store::{histogram, measure};
use crate::{BenchError, PostgresArgs, fill, payment, round_figure};

pub(crate) async fn run(args: &PostgresArgs) -> Result<(), BenchError> {
    let settings = [SERVER_SETTINGS, &[("track_wal_io_timing", "on")]].concat();
    let server = Postgres::start_on_disk(&settings);
    let seconds = Duration::from_secs(args.seconds);
    for &callers in &args.callers {
        let callers = callers.get();
        let (ours, theirs) = (server.create_database(), server.create_database());
        // The machine's speed changes from second to second, so each turn is compared with the one just before it. The first
        // turn of both sides is not counted: it creates the tables and their first pages.
        let mut turns = Vec::new();
        for turn in 0..=args.rounds.get() {
            let plain =
                measure_turn(&server, async || textbook(&server.url_for(&theirs), callers, seconds).await);
            let plain = plain.await?;
            let store = PostgresStore::open(&server.url_for(&ours), PostgresOptions::default()).await?;
            let store = Arc::new(store);
            let ibid = payment::engine(store.clone()).await?;
            let measured = measure_turn(&server, async || {
                let (took, per_second) = measure(&ibid, callers, seconds).await?;
                Ok((took.len(), per_second))
            });
            let our = measured.await?;
            let flights = store.batch_counts();
            let count = flights.batches.max(1) as f64;
            let (batch, flight_us) =
                (flights.changes as f64 / count, flights.flown.as_micros() as f64 / count);
            eprintln!("{callers} callers, turn {turn}, textbook: {plain}");
            eprintln!(
                "{callers} callers, turn {turn}, ibid: {our}, mean batch {batch:.1}, mean flight {flight_us:.0} us"
            );
            if turn > 0 {
                turns.push((our.per_second / plain.per_second, our, plain, batch, flight_us));
            }
        }
        turns.sort_by(|one, other| one.0.total_cmp(&other.0));
        // There is at least one turn that counts.
        let (middle, our, plain, batch, flight_us) = &turns[turns.len() / 2];
        let figures = json!({
            "what": "postgres", "callers": callers, "keys_per_second": our.per_second.round(),
            "textbook_per_second": plain.per_second.round(), "ratio": round_figure(*middle),
            "ratios": turns.iter().map(|turn| round_figure(turn.0)).collect::<Vec<_>>(),
            "server_cpu_us_per_key": our.server_cpu_us.round(), "client_cpu_us_per_key": our.client_cpu_us.round(),
            "textbook_server_cpu_us_per_key": plain.server_cpu_us.round(),
            "textbook_client_cpu_us_per_key": plain.client_cpu_us.round(),
            "mean_batch": round_figure(*batch), "mean_flight_us": flight_us.round(), "flush_us": our.flush_us.round(),
            "flushes_per_key": round_figure(our.flushes), "uncounted_turns": 1,
        });
        println!("{figures}");
    }
    let database = server.create_database();
    let store = PostgresStore::open(&server.url_for(&database), PostgresOptions::default()).await?;
    let ibid = payment::engine(Arc::new(store)).await?;
    println!("{}", one_caller(&ibid, &server.url_for(&server.create_database())).await?);
    payment::pay(&ibid, &Arc::new(Policy::default()), "template").await?;
    let mut p50 = Vec::new();
    let mut stored = 0;
    for keys in [10_000, args.keys] {
        fill(&server, &database, stored, keys);
        stored = keys;
        p50.push(begins(&ibid).await?.value_at_quantile(0.5));
    }
    let ratio = p50[1] as f64 / p50[0] as f64;
    let figures = json!({
        "what": "begin", "keys": args.keys, "p50_us": p50[1], "p50_us_of_10000": p50[0],
        "ratio": (ratio * 100.0).round() / 100.0,
    });
    println!("{figures}");
    Ok(())
}

/// Figures of one turn of one side.
struct PostgresTurn {
    per_second: f64,
    /// CPU time per key, of the server and of this process.
    server_cpu_us: f64,
    client_cpu_us: f64,
    /// Mean duration of a flush of the log, and flushes per key.
    flush_us: f64,
    flushes: f64,
}

impl Display for PostgresTurn {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let PostgresTurn { per_second, server_cpu_us, client_cpu_us, flush_us, flushes } = self;
        write!(
            out,
            "{per_second:.0} keys/s, CPU per key {server_cpu_us:.0} us (server) and {client_cpu_us:.0} us (client), \
             {flushes:.3} flushes per key of {flush_us:.0} us"
        )
    }
}

/// Measures one turn, which returns its number of keys and keys per second.
async fn measure_turn(
    server: &Postgres,
    turn: impl AsyncFnOnce() -> Result<(u64, f64), BenchError>,
) -> Result<PostgresTurn, BenchError> {
    let cpu = PostgresCpu::find(server)?;
    let (server_cpu, client_cpu, (syncs, sync_ms)) = (cpu.seconds()?, own_cpu_seconds()?, flushes(server)?);
    let (keys, per_second) = turn().await?;
    let per_key = |seconds: f64| seconds * 1e6 / keys.max(1) as f64;
    let (server_cpu_us, client_cpu_us) =
        (per_key(cpu.seconds()? - server_cpu), per_key(own_cpu_seconds()? - client_cpu));
    let (syncs_after, sync_ms_after) = flushes(server)?;
    let syncs = syncs_after - syncs;
    let flush_us = (sync_ms_after - sync_ms) * 1e3 / syncs.max(1.0);
    Ok(PostgresTurn {
        per_second,
        server_cpu_us,
        client_cpu_us,
        flush_us,
        flushes: syncs / keys.max(1) as f64,
    })
}

/// Returns the number of flushes of the log so far, and the milliseconds that they took. Sessions report at most once a second.
fn flushes(server: &Postgres) -> Result<(f64, f64), BenchError> {
    let row = server.sql("postgres", "select wal_sync, wal_sync_time from pg_stat_wal");
    let (count, time) = row.trim().split_once('|').ok_or("a query has two results")?;
    Ok((count.parse()?, time.parse()?))
}

/// Measures the textbook solution. Returns its number of keys and keys per second.
async fn textbook(url: &str, callers: u32, seconds: Duration) -> Result<(u64, f64), BenchError> {
    let mut pool = Vec::new();
    for _ in 0..CONNECTIONS {
        pool.push(Arc::new(Mutex::new(Textbook::connect(url).await?)));
    }
    let (run, started) = (run_number()?, Instant::now());
    let mut running = JoinSet::new();
    for caller in 0..callers {
        let connection = pool[caller as usize % CONNECTIONS].clone();
        running.spawn(async move {
            let mut keys = 0_u64;
            while started.elapsed() < seconds {
                let key = format!("{run:020x}-{caller:04x}-{keys:08x}");
                connection.lock().await.pay(&key).await?;
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

struct Textbook {
    client: Client,
    statements: [Statement; 3],
}

impl Textbook {
    async fn connect(url: &str) -> Result<Textbook, BenchError> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        client.batch_execute(include_str!("textbook.sql")).await?;
        let statements = [
            client
                .prepare(
                    "insert into idempotency_key (tenant, key, request_hash) values ($1, $2, $3)
                     on conflict (tenant, key) do update set last_seen_at = now()
                     returning id, (xmax = 0) as inserted, request_hash, state, response",
                )
                .await?,
            client
                .prepare(
                    "update idempotency_key set state = 'processing', locked_until = now() + interval '60 s'
                     where id = $1 and (state = 'new' or locked_until < now()) returning id",
                )
                .await?,
            client
                .prepare(
                    "update idempotency_key set state = 'complete', response = $2, locked_until = null
                     where id = $1 and state = 'processing'",
                )
                .await?,
        ];
        Ok(Textbook { client, statements })
    }

    async fn pay(&self, key: &str) -> Result<(), BenchError> {
        let [reserve, claim, complete] = &self.statements;
        let hash: &[u8] = &[7; 32];
        let row = self.client.query_one(reserve, &[&"-", &key, &hash]).await?;
        let id: i64 = row.get(0);
        if self.client.query(claim, &[&id]).await?.len() != 1 {
            return Err("a fresh key was claimed by another".into());
        }
        self.client.execute(complete, &[&id, &payment::ANSWER.as_bytes()]).await?;
        Ok(())
    }
}

/// Compares one caller's begin and finish with two bare commits: the insert of a row by its key, and an update of it.
async fn one_caller(ibid: &Ibid, bare_url: &str) -> Result<serde_json::Value, BenchError> {
    let (client, connection) = tokio_postgres::connect(bare_url, NoTls).await?;
    tokio::spawn(connection);
    client.batch_execute("create table bare (key text primary key, response bytea)").await?;
    let insert = client.prepare("insert into bare (key) values ($1)").await?;
    let update = client.prepare("update bare set response = $2 where key = $1").await?;
    let (mut ours, mut bare) = (histogram()?, histogram()?);
    let (run, policy) = (run_number()?, Arc::new(Policy::default()));
    for number in 0..BEGINS {
        let key = format!("{run:020x}-{number:08x}");
        let started = Instant::now();
        payment::pay(ibid, &policy, &key).await?;
        ours.saturating_record(started.elapsed().as_micros() as u64);
        let started = Instant::now();
        client.execute(&insert, &[&key]).await?;
        client.execute(&update, &[&key, &payment::ANSWER.as_bytes()]).await?;
        bare.saturating_record(started.elapsed().as_micros() as u64);
    }
    let (ours, bare) = (ours.value_at_quantile(0.5), bare.value_at_quantile(0.5));
    let ratio = round_figure(ours as f64 / bare as f64);
    Ok(json!({ "what": "one caller", "p50_us": ours, "p50_us_of_two_commits": bare, "ratio": ratio }))
}

/// Inserts completed keys from `from` to `to`, copied from one that the engine wrote.
fn fill(server: &Postgres, database: &str, from: u64, to: u64) {
    server.sql(database, &fill::postgres_sql(from..to, 0));
    // Vacuum and checkpoint now, so that neither runs while the begins are measured.
    server.sql(database, "vacuum analyze ibid_record");
    server.sql(database, "checkpoint");
}

/// Measures the duration of begins, one after the other.
async fn begins(ibid: &Ibid) -> Result<Histogram<u64>, BenchError> {
    let (mut took, run, policy) = (histogram()?, run_number()?, Arc::new(Policy::default()));
    for number in 0..BEGINS {
        let key = payment::identity(&format!("{run:020x}-{number:08x}"))?;
        let ask = ibid.ask(key, policy.clone(), Arc::new(payment::Payment));
        let started = Instant::now();
        let outcome = ibid.begin(ask).await?;
        took.saturating_record(started.elapsed().as_micros() as u64);
        let Begin::Run(attempt) = outcome else { return Err("a fresh key was not fresh".into()) };
        let _ = attempt.finish(payment::answer()).await;
    }
    Ok(took)
}

/// Returns a number that no earlier run had.
fn run_number() -> Result<u128, BenchError> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos())
}

/// Connections of the pool: fewer than the 100 that a server accepts by default.
const CONNECTIONS: usize = 64;

/// Number of begins: enough for a steady median.
const BEGINS: u32 = 2000;
