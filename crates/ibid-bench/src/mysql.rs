//! MariaDB: compares the engine with the textbook solution, on one durable server that is started for it.
//!
//! The textbook solution takes three statements per request, each in a separate transaction: select, insert, update; over a
//! pool of connections.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ibid::store::mysql::{MysqlOptions, MysqlStore};
use ibid_testkit::mariadb::MariaDb;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, Row};
use serde_json::json;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::store::measure;
use crate::{BenchError, TextbookArgs, payment};

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
        // The machine's speed changes from second to second, so each turn is compared with the one just before it.
        let mut turns = Vec::new();
        for _ in 0..args.rounds.get() {
            let plain = textbook(&server.url_for(&theirs), callers, seconds).await?;
            let store = MysqlStore::open(&server.url_for(&ours), MysqlOptions::default()).await?;
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
            "what": "mysql", "callers": callers, "keys_per_second": ours.round(),
            "textbook_per_second": plain.round(), "ratio": rounded(middle),
            "ratios": turns.iter().map(|turn| rounded(turn.0)).collect::<Vec<_>>(),
        });
        println!("{figures}");
    }
    Ok(())
}

/// Measures the keys per second of the textbook solution.
async fn textbook(url: &str, callers: u32, seconds: Duration) -> Result<f64, BenchError> {
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
    Ok(keys as f64 / started.elapsed().as_secs_f64())
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
