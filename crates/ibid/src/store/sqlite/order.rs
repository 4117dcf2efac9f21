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
    let (up_to, last) = ordered_and_last(connection)?;
    if up_to >= last {
        return Ok(true);
    }
    let mut look = connection.prepare_cached(include_str!("sql/order_look.sql"))?;
    let (last, count, new, at): (Option<i64>, u32, f64, Option<i64>) = look
        .query_row(params![up_to, RANGE_ROWS], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        })?;
    let Some(last) = last else { return Ok(true) };
    if new > 0.0 {
        connection.prepare_cached(include_str!("sql/order_watch.sql"))?.execute([up_to, last])?;
    }
    if let Some(at) = at {
        let mut add = connection.prepare_cached(include_str!("sql/order_range.sql"))?;
        add.execute([up_to + 1, last, at])?;
    }
    connection.prepare_cached(include_str!("sql/order_set.sql"))?.execute([last, count.into()])?;
    Ok(count < RANGE_ROWS)
}

/// Returns whether rows wait to be ordered, without the write lock.
pub(super) fn has_new_rows(connection: &Connection) -> rusqlite::Result<bool> {
    ordered_and_last(connection).map(|(up_to, last)| up_to < last)
}

/// Keeps `ibid_ordered` true after ordered rows were deleted.
pub(super) fn lower(connection: &Connection, removed: u64) -> rusqlite::Result<()> {
    connection.prepare_cached(include_str!("sql/order_lower.sql"))?.execute([removed.cast_signed()]).map(drop)
}

/// Returns the number of the last ordered row, and of the last row.
fn ordered_and_last(connection: &Connection) -> rusqlite::Result<(i64, i64)> {
    let mut select = connection.prepare_cached(include_str!("sql/order_position.sql"))?;
    select.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))
}

/// Rows of one range. The reaper reads a whole range to find the oldest of its rows, so it should be about one step of it.
const RANGE_ROWS: u32 = 1024;

/// Ranges that are ordered in one transaction: some milliseconds.
const RANGES_MAX: u32 = 8;
