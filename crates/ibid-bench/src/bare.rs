//! The limit of the disk and SQLite alone: the store's statements, a batch of begins and a batch of finishes in turn.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::runtime::Runtime;

use crate::rows::{self, Row, Rows};
use crate::{BareArgs, BenchError};

pub(crate) fn run(args: &BareArgs, runtime: &Runtime) -> Result<(), BenchError> {
    let (connection, template) = rows::open(&args.path, runtime)?;
    let mut rows = Rows::new(&connection, &template)?;
    let (run, batch) = (rows::now()?, u64::from(args.batch.get()));
    let (mut keys, mut commits) = (0, 0);
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(args.seconds) {
        let batch: Vec<Row> = (keys..keys + batch)
            .map(|key| Row::new(format!("{run:020x}-{key:013x}")))
            .collect::<Result<_, _>>()?;
        for finishes in [false, true] {
            connection.execute_batch("begin immediate")?;
            let now = rows::now()?;
            for row in &batch {
                if finishes { rows.finish(row, now)? } else { rows.begin(row, now)? }
            }
            connection.execute_batch("commit")?;
            commits += 1;
        }
        keys += batch.len() as u64;
    }
    let per_second = (keys as f64 / started.elapsed().as_secs_f64()).round();
    let figures = json!({ "what": "bare", "batch": args.batch, "keys": keys, "keys_per_second": per_second, "commits": commits });
    println!("{figures}");
    Ok(())
}
