//! Fills a store with completed keys, as after months of use, as fast as possible.

use std::time::Instant;

use serde_json::json;
use tokio::runtime::Runtime;

use crate::rows::{self, Row, Rows};
use crate::{Failed, FillArgs};

pub(crate) fn run(args: &FillArgs, runtime: &Runtime) -> Result<(), Failed> {
    let (connection, template) = rows::open(&args.store, runtime)?;
    // A fill that is interrupted by a power loss is repeated from scratch.
    connection.pragma_update(None, "synchronous", "off")?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    let mut rows = Rows::new(&connection, &template)?;
    let started = Instant::now();
    for first in (0..args.keys).step_by(BATCH as usize) {
        connection.execute_batch("begin immediate")?;
        let now = rows::now()?;
        for key in first..(first + BATCH).min(args.keys) {
            rows.write_completed(&Row::new(format!("fill-{key}"))?, now)?;
        }
        connection.execute_batch("commit")?;
    }
    drop(rows);
    connection.query_row("pragma wal_checkpoint(truncate)", [], |_| Ok(()))?;
    let seconds = started.elapsed().as_secs_f64();
    println!("{}", json!({ "what": "fill", "keys": args.keys, "seconds": (seconds * 10.0).round() / 10.0 }));
    Ok(())
}

/// Keys per transaction: few enough that the log stays in memory.
const BATCH: u64 = 10_000;

/// Page cache that holds the index of a million random ids, because every row touches a random page of it.
const CACHE_KIB: i64 = 256 << 10;
