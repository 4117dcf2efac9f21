//! Orders new rows for upkeep. Until then a record is in no index but that of its id.
//!
//! A begin would enter the index of open records and its finish would leave it again and enter the reaper's: three of
//! eight operations on a b-tree for orders that are asked for much later, if at all. Rows are in the order of their begin,
//! so one pass over the new ones, every few seconds, does the same for thousands at once. By then most have
//! completed, and only those that still run enter the index of open records.

use rusqlite::{Connection, params};

/// Orders some thousand new rows. Returns whether all rows are ordered now.
pub(super) fn order_rows(connection: &Connection) -> rusqlite::Result<bool> {
    for _ in 0..RANGES_MAX {
        if order_range(connection)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Orders the rows of one range. Returns whether it was the last.
fn order_range(connection: &Connection) -> rusqlite::Result<bool> {
    let (up_to, last) = place(connection)?;
    if up_to >= last {
        return Ok(true);
    }
    let mut look = connection.prepare_cached(include_str!("sql/order_look.sql"))?;
    let (last, count, new, at, to_reap) = look.query_row(params![up_to, RANGE_ROWS], |row| {
        let (last, count, new): (Option<i64>, u32, f64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let (at, to_reap): (Option<i64>, i64) = (row.get(3)?, row.get(4)?);
        Ok((last, count, new, at, to_reap))
    })?;
    let Some(last) = last else { return Ok(true) };
    if new > 0.0 {
        connection.prepare_cached(include_str!("sql/order_watch.sql"))?.execute([up_to, last])?;
    }
    if let Some(at) = at {
        let mut add = connection.prepare_cached(include_str!("sql/order_range.sql"))?;
        add.execute([up_to + 1, last, at, to_reap])?;
    }
    connection.prepare_cached(include_str!("sql/order_set.sql"))?.execute([last])?;
    Ok(count < RANGE_ROWS)
}

/// Returns whether rows wait to be ordered, without the write lock.
pub(super) fn has_new_rows(connection: &Connection) -> rusqlite::Result<bool> {
    place(connection).map(|(up_to, last)| up_to < last)
}

/// Keeps the invariant of `ibid_ordered` after rows were deleted.
pub(super) fn lower(connection: &Connection) -> rusqlite::Result<()> {
    connection.prepare_cached(include_str!("sql/order_lower.sql"))?.execute([]).map(drop)
}

fn place(connection: &Connection) -> rusqlite::Result<(i64, i64)> {
    let mut place = connection.prepare_cached(include_str!("sql/order_place.sql"))?;
    place.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))
}

/// Rows of one range. The reaper reads a whole range to find the oldest of its rows, so it should be about one step of it.
const RANGE_ROWS: u32 = 1024;

/// Ranges that are ordered in one transaction: some milliseconds.
const RANGES_MAX: u32 = 8;
