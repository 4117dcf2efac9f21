//! Fills a store with completed keys, as after months of use, as fast as possible.

use std::ops::Range;
use std::time::Instant;

use serde_json::json;
use tokio::runtime::Runtime;

use crate::rows::{self, Row, Rows};
use crate::{BenchError, FillArgs};

pub(crate) fn run(args: &FillArgs, runtime: &Runtime) -> Result<(), BenchError> {
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

/// Returns the statements that insert completed keys of these numbers on PostgreSQL, copied from the key `template`. Their
/// first request came `age_us` microseconds before that one; they expire a day after it.
pub(crate) fn postgres_sql(numbers: Range<u64>, age_us: i64) -> String {
    let age_us = i128::from(age_us) + i128::from(numbers.start);
    let insert = include_str!("fill_postgres.sql").replace("$1", &numbers.start.to_string());
    let insert = insert.replace("$2", &numbers.end.to_string()).replace("$3", &age_us.to_string());
    format!(
        "alter table ibid_record set (fillfactor = {FILLED_PERCENT});\n{insert};\nalter table ibid_record set (fillfactor = 28)"
    )
}

/// Fill of a page of records with a response of 200 bytes, as the engine leaves it. The engine inserts a short row and makes
/// it longer in the same page; complete rows would fill a page only to the table's own fillfactor, which is for short ones. The
/// line `grow_engine` of `ibid-bench grow` checks it: both kinds of keys have about the same number of bytes.
const FILLED_PERCENT: u32 = 57;

/// Keys per transaction: few enough that the log stays in memory.
const BATCH: u64 = 10_000;

/// Page cache that holds the index of a million random ids, because every row touches a random page of it.
const CACHE_KIB: i64 = 256 << 10;
