//! PostgreSQL: compares the engine with the textbook solution, on one durable server that is started for it, and the
//! latency of a begin on a small table with that on a large one.
//!
//! The textbook solution takes three statements per request, each in a separate transaction: insert on conflict do update
//! returning, claim, complete; over a pool of connections.

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

use crate::store::{histogram, measure};
use crate::{Failed, PostgresArgs, fill, payment};

pub(crate) async fn run(args: &PostgresArgs) -> Result<(), Failed> {
    let server = Postgres::start_on_disk(&[("shared_buffers", "512MB"), ("max_wal_size", "4GB")]);
    let seconds = Duration::from_secs(args.seconds);
    for callers in [64, 256] {
        let (ours, theirs) = (server.create_database(), server.create_database());
        // The machine's speed changes from second to second, so each turn is compared with the one just before it.
        let mut turns = Vec::new();
        for _ in 0..args.rounds.get() {
            let plain = textbook(&server.url_for(&theirs), callers, seconds).await?;
            let store = PostgresStore::open(&server.url_for(&ours), PostgresOptions::default()).await?;
            let store = Arc::new(store);
            let ibid = payment::engine(store.clone()).await?;
            let (took, per_second) = measure(&ibid, callers, seconds).await?;
            eprintln!(
                "{callers} callers: p50 {} us, mean batch {:.1}",
                took.value_at_quantile(0.5),
                store.batch_counts().changes as f64 / store.batch_counts().batches.max(1) as f64
            );
            turns.push((per_second / plain, per_second, plain));
        }
        turns.sort_by(|one, other| one.0.total_cmp(&other.0));
        // There is at least one turn.
        let (middle, ours, plain) = turns[turns.len() / 2];
        let rounded = |ratio: f64| (ratio * 100.0).round() / 100.0;
        let figures = json!({
            "what": "postgres", "callers": callers, "keys_per_second": ours.round(),
            "textbook_per_second": plain.round(), "ratio": rounded(middle),
            "ratios": turns.iter().map(|turn| rounded(turn.0)).collect::<Vec<_>>(),
        });
        println!("{figures}");
    }
    let database = server.create_database();
    let store = PostgresStore::open(&server.url_for(&database), PostgresOptions::default()).await?;
    let ibid = payment::engine(Arc::new(store)).await?;
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

/// Measures the keys per second of the textbook solution.
async fn textbook(url: &str, callers: u32, seconds: Duration) -> Result<f64, Failed> {
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
            Ok::<u64, Failed>(keys)
        });
    }
    let mut keys = 0;
    while let Some(called) = running.join_next().await {
        keys += called??;
    }
    Ok(keys as f64 / started.elapsed().as_secs_f64())
}

struct Textbook {
    client: Client,
    statements: [Statement; 3],
}

impl Textbook {
    async fn connect(url: &str) -> Result<Textbook, Failed> {
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

    async fn pay(&self, key: &str) -> Result<(), Failed> {
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

/// Inserts completed keys from `from` to `to`, copied from one that the engine wrote.
fn fill(server: &Postgres, database: &str, from: u64, to: u64) {
    server.sql(database, &fill::postgres_sql(from..to, 0));
    // Vacuum and checkpoint now, so that neither runs while the begins are measured.
    server.sql(database, "vacuum analyze ibid_record");
    server.sql(database, "checkpoint");
}

/// Measures the duration of begins, one after the other.
async fn begins(ibid: &Ibid) -> Result<Histogram<u64>, Failed> {
    let (mut took, run, policy) = (histogram()?, run_number()?, Arc::new(Policy::default()));
    for number in 0..BEGINS {
        let key = payment::identity(&format!("{run:020x}-{number:08x}"))?;
        let ask = ibid.ask(key, policy.clone(), Arc::new(payment::Payment));
        let started = Instant::now();
        let outcome = ibid.begin(ask).await?;
        took.saturating_record(started.elapsed().as_micros() as u64);
        let Begin::Run(attempt) = outcome else { return Err("a fresh key was not fresh".into()) };
        attempt.finish(payment::answer()).await;
    }
    Ok(took)
}

/// Returns a number that no earlier run had.
fn run_number() -> Result<u128, Failed> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos())
}

/// Connections of the pool: fewer than the 100 that a server accepts by default.
const CONNECTIONS: usize = 64;

/// Number of begins: enough for a steady median.
const BEGINS: u32 = 2000;
