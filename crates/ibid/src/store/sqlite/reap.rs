//! The reaper's steps on the thread that writes, and the count of what they would remove.
//!
//! Records that were written once and finished once are found by ranges of neighbouring rows (`ibid_reap_range`), so that
//! their removal costs two operations on a b-tree. All others are found by `ibid_record_reap`.

use std::time::{Duration, Instant};

use ibid_core::reap::{ReapCount, ReapStep, ReapTarget};
use ibid_core::scope::RecordId;
use ibid_core::store::Cursor;
use ibid_core::time::Timestamp;
use rusqlite::{CachedStatement, Connection, OptionalExtension, params};

use super::chore::ChoreContext;
use super::error::{self, SqliteErrorScope};
use super::order;

/// Takes one step on `target`, in a transaction with `changes` changes.
pub(super) fn step(
    connection: &Connection,
    target: ReapTarget,
    after: Option<&Cursor>,
    limit: u32,
    ChoreContext { now, changes }: ChoreContext,
) -> rusqlite::Result<ReapStep> {
    if limit == 0 {
        return Ok(ReapStep::default());
    }
    // A key is two changes, so the reaper still removes two rows for each that is begun, and catches up. With more, keys
    // would wait for it: each row that goes dirties another page of the index of ids.
    let limit = if changes > 0 { limit.min(changes.max(SHARED_MIN)) } else { limit.min(STEP_MAX) };
    let started = Instant::now();
    let number = after.and_then(Cursor::as_i64).unwrap_or(0);
    let step = match target {
        ReapTarget::Records => records(connection, after, limit, now)?,
        ReapTarget::Effects { keep } => effects(connection, number, limit, before(now, keep))?,
        ReapTarget::History { keep } => {
            let look = include_str!("sql/reap_history_look.sql");
            let remove = include_str!("sql/reap_history.sql");
            lines(connection, look, remove, (number, limit), before(now, keep))?.0
        }
        ReapTarget::Policies => policies(connection, limit, now)?,
        ReapTarget::Room => free_pages(connection, limit)?,
    };
    Ok(ReapStep { took: started.elapsed(), ..step })
}

/// Counts what would go now.
pub(super) fn count(
    connection: &Connection,
    target: ReapTarget,
    now: Timestamp,
) -> rusqlite::Result<ReapCount> {
    let count = |row: &rusqlite::Row<'_>| {
        let number = |column| row.get::<_, i64>(column).map(i64::cast_unsigned);
        Ok(ReapCount { strip: number(0)?, remove: number(1)? })
    };
    let (sql, by) = match target {
        ReapTarget::Records => (include_str!("sql/ripe_index.sql"), now.as_micros()),
        ReapTarget::Effects { keep } => (include_str!("sql/ripe_effects.sql"), before(now, keep)),
        ReapTarget::History { keep } => (include_str!("sql/ripe_history.sql"), before(now, keep)),
        ReapTarget::Policies => {
            let mut policies = connection.prepare_cached(include_str!("sql/ripe_policies.sql"))?;
            return policies.query_row(params![now.as_micros(), NAMED_MAX], count);
        }
        ReapTarget::Room => return Ok(ReapCount::default()),
    };
    let mut total = connection.prepare_cached(sql)?.query_row([by], count)?;
    if target == ReapTarget::Records {
        let mut ranges = connection.prepare_cached(include_str!("sql/ripe_ranges.sql"))?;
        let mut ranges = ranges.query([now.as_micros()])?;
        let mut ripe = connection.prepare_cached(include_str!("sql/ripe_range.sql"))?;
        while let Some(range) = ranges.next()? {
            let (first, last): (i64, i64) = (range.get(0)?, range.get(1)?);
            let part = ripe.query_row([first, last, now.as_micros()], count)?;
            total = ReapCount { strip: total.strip + part.strip, remove: total.remove + part.remove };
        }
    }
    Ok(total)
}

/// Orders new rows, then visits the index with a part of `limit`, then ranges, and with what is left the index again.
///
/// Under full load a range is always due, so an index that waited for the last of them would never be visited, and what is
/// in it (202s, retries, settled unknowns) would stay forever.
fn records(
    connection: &Connection,
    after: Option<&Cursor>,
    limit: u32,
    now: Timestamp,
) -> rusqlite::Result<ReapStep> {
    let mut position = after.and_then(IndexPosition::of).unwrap_or_else(|| IndexPosition::start(now));
    let is_ordered = order::order_rows(connection)?;
    let mut remover = Remover::new(connection)?;
    let share_is_over = index(connection, &mut remover, &mut position, limit / INDEX_PART, now)?;
    let ranges_left = ranges(connection, &mut remover, position, limit, now)?;
    let left = limit.saturating_sub(remover.count());
    let is_over =
        !ranges_left && is_ordered && left > 0 && index(connection, &mut remover, &mut position, left, now)?;
    if share_is_over && !is_over && now.since(position.started) >= REVISIT_AFTER {
        position = IndexPosition::start(now);
    }
    let step = remover.step;
    if step.removed > 0 {
        order::lower(connection, step.removed)?;
    }
    Ok(ReapStep { next: (!is_over).then(|| position.cursor()), ..step })
}

/// Visits ranges whose instant has come. Returns whether some are left.
fn ranges(
    connection: &Connection,
    remover: &mut Remover<'_>,
    position: IndexPosition,
    limit: u32,
    now: Timestamp,
) -> rusqlite::Result<bool> {
    let mut next = connection.prepare_cached(include_str!("sql/reap_range.sql"))?;
    let mut rows = connection.prepare_cached(include_str!("sql/reap_range_rows.sql"))?;
    let mut keep = connection.prepare_cached(include_str!("sql/reap_keep.sql"))?;
    for _ in 0..RANGES_MAX {
        let range = next.query_row([now.as_micros()], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
        });
        let Some((first, last, at)) = range.optional()? else { return Ok(false) };
        remover.looked_at(at, now);
        let left = limit.saturating_sub(remover.count());
        if left == 0 {
            return Ok(true);
        }
        let ripe = rows.query_map(params![first, last, now.as_micros(), left + SORTED_AHEAD], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, bool>(2)?, row.get::<_, bool>(3)?))
        })?;
        let mut ripe: Vec<(i64, i64, bool, bool)> = ripe.collect::<rusqlite::Result<_>>()?;
        ripe.sort_by_key(|(_, at, ..)| *at);
        for (row, at, may_go, is_purged) in ripe.iter().take(left as usize) {
            let is_held = *may_go && !remover.remove(*row, *is_purged)?;
            // Rows that must stay move to the index, which passes over them.
            if !may_go || is_held {
                keep.execute([row, at])?;
            }
            // The index counts those that the application holds, if it still comes to them.
            if is_held && (*at, *row) <= (position.at, position.row) {
                remover.step.held += 1;
            }
        }
        if ripe.len() <= left as usize {
            leave_range(connection, first, last)?;
        }
    }
    Ok(true)
}

/// Sets when the range is visited again, or deletes it if no row is left.
fn leave_range(connection: &Connection, first: i64, last: i64) -> rusqlite::Result<()> {
    let mut left = connection.prepare_cached(include_str!("sql/reap_range_left.sql"))?;
    match left.query_row([first, last], |row| row.get::<_, Option<i64>>(0))? {
        Some(at) => {
            let mut move_on = connection.prepare_cached(include_str!("sql/reap_range_move.sql"))?;
            move_on.execute([first, at]).map(drop)
        }
        None => {
            connection.prepare_cached(include_str!("sql/reap_range_drop.sql"))?.execute([first]).map(drop)
        }
    }
}

/// Looks at up to `limit` rows of the index behind a position, removes them, and moves the position on. Returns whether no row
/// is left.
fn index(
    connection: &Connection,
    remover: &mut Remover<'_>,
    position: &mut IndexPosition,
    limit: u32,
    now: Timestamp,
) -> rusqlite::Result<bool> {
    let mut pick = connection.prepare_cached(include_str!("sql/reap_pick.sql"))?;
    let rows = pick.query_map(params![now.as_micros(), position.at, position.row, limit], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, bool>(2)?))
    })?;
    let rows: Vec<(i64, i64, bool)> = rows.collect::<rusqlite::Result<_>>()?;
    for (row, at, is_purged) in &rows {
        remover.looked_at(*at, now);
        if !remover.remove(*row, *is_purged)? {
            remover.step.held += 1;
        }
        (position.at, position.row) = (*at, *row);
    }
    Ok(rows.len() < limit as usize)
}

/// Deletes and strips rows, and counts them.
struct Remover<'c> {
    delete: CachedStatement<'c>,
    strip: CachedStatement<'c>,
    bodies: CachedStatement<'c>,
    payloads: CachedStatement<'c>,
    step: ReapStep,
}

impl<'c> Remover<'c> {
    fn new(connection: &'c Connection) -> rusqlite::Result<Remover<'c>> {
        Ok(Remover {
            delete: connection.prepare_cached(include_str!("sql/reap_row.sql"))?,
            strip: connection.prepare_cached(include_str!("sql/reap_strip.sql"))?,
            bodies: connection.prepare_cached(include_str!("sql/reap_bodies.sql"))?,
            payloads: connection.prepare_cached(include_str!("sql/reap_payloads.sql"))?,
            step: ReapStep::default(),
        })
    }

    /// Deletes a row that is past its purge instant, or strips it. Returns `false` if the application forbids it.
    fn remove(&mut self, row: i64, is_purged: bool) -> rusqlite::Result<bool> {
        let statement = if is_purged { &mut self.delete } else { &mut self.strip };
        match statement.query_row([row], |row| row.get::<_, [u8; RecordId::LEN]>(0)) {
            Ok(id) => {
                self.bodies.execute([row])?;
                self.payloads.execute([id])?;
                *(if is_purged { &mut self.step.removed } else { &mut self.step.stripped }) += 1;
                Ok(true)
            }
            // A row of the application refers to the record and forbids it. That is its right, and no reason to keep the
            // rows behind it.
            Err(error) if error::scope_of(&error) == SqliteErrorScope::One => {
                tracing::debug!(%error, row, "expired record kept: an application row references it");
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn looked_at(&mut self, at: i64, now: Timestamp) {
        let behind = now.since(Timestamp::from_micros(at));
        self.step.behind = self.step.behind.max(Some(behind));
    }

    fn count(&self) -> u32 {
        u32::try_from(self.step.removed + self.step.stripped).unwrap_or(u32::MAX)
    }
}

/// A position in the reaper's index.
#[derive(Clone, Copy)]
struct IndexPosition {
    at: i64,
    row: i64,
    /// Instant at which this pass over the index started.
    started: Timestamp,
}

impl IndexPosition {
    fn start(now: Timestamp) -> IndexPosition {
        IndexPosition { at: i64::MIN, row: 0, started: now }
    }

    fn of(cursor: &Cursor) -> Option<IndexPosition> {
        let (started, position) = cursor.0.split_first_chunk::<8>()?;
        let (at, row) = super::reader::parse_position(position)?;
        Some(IndexPosition { at, row, started: Timestamp::from_micros(i64::from_be_bytes(*started)) })
    }

    fn cursor(self) -> Cursor {
        let numbers = [self.started.as_micros(), self.at, self.row];
        Cursor(numbers.map(i64::to_be_bytes).concat().into())
    }
}

/// Takes a step along rows whose numbers are in the order of time: effects and history lines. Also returns the number of the
/// last row that it looked at.
fn lines(
    connection: &Connection,
    look: &str,
    remove: &str,
    (from, limit): (i64, u32),
    written_by: i64,
) -> rusqlite::Result<(ReapStep, i64)> {
    let mut look = connection.prepare_cached(look)?;
    let (last, looked, youngest): (Option<i64>, u32, Option<i64>) =
        look.query_row(params![from, limit], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let (Some(last), Some(youngest)) = (last, youngest) else { return Ok((ReapStep::default(), from)) };
    let removed = connection.prepare_cached(remove)?.execute(params![from, last, written_by])? as u64;
    let next = (looked == limit && youngest <= written_by).then_some(Cursor::of_i64(last));
    Ok((ReapStep { removed, next, ..ReapStep::default() }, last))
}

/// Takes one step over effects: removes those that are old enough, with their calls, and drops payloads of old letters.
fn effects(connection: &Connection, from: i64, limit: u32, by: i64) -> rusqlite::Result<ReapStep> {
    let (look, remove) = (include_str!("sql/reap_effects_look.sql"), include_str!("sql/reap_effects.sql"));
    let (step, last) = lines(connection, look, remove, (from, limit), by)?;
    connection.prepare_cached(include_str!("sql/reap_calls.sql"))?.execute([from, last])?;
    connection.prepare_cached(include_str!("sql/reap_letters.sql"))?.execute([from, last, by])?;
    Ok(step)
}

/// Deletes policies that no record can name any more. New rows are ordered first, because an open record that is not
/// ordered yet cannot be found.
fn policies(connection: &Connection, limit: u32, now: Timestamp) -> rusqlite::Result<ReapStep> {
    if !order::order_rows(connection)? {
        return Ok(ReapStep { next: Some(Cursor::of_i64(0)), ..ReapStep::default() });
    }
    let mut look = connection.prepare_cached(include_str!("sql/reap_policies_look.sql"))?;
    if !look.query_row([now.as_micros()], |row| row.get::<_, bool>(0))? {
        return Ok(ReapStep::default());
    }
    let mut remove = connection.prepare_cached(include_str!("sql/reap_policies.sql"))?;
    let removed = remove.execute(params![now.as_micros(), limit, NAMED_MAX])? as u64;
    let next = (removed == u64::from(limit)).then_some(Cursor::of_i64(0));
    Ok(ReapStep { removed, next, ..ReapStep::default() })
}

/// Returns unused pages at the end of the file to the system, if the file was made for that. Some are kept, because the next
/// records would only have to ask for them again.
fn free_pages(connection: &Connection, limit: u32) -> rusqlite::Result<ReapStep> {
    let ask = |pragma: &str| connection.query_row(pragma, [], |row| row.get::<_, u32>(0));
    if ask("pragma auto_vacuum")? != INCREMENTAL {
        return Ok(ReapStep::default());
    }
    let (free, all) = (ask("pragma freelist_count")?, ask("pragma page_count")?);
    let spare = ((all - free) / SPARE_PART).max(SPARE_PAGES_MIN);
    let step = free.saturating_sub(spare).min(limit).min(PAGES_MAX);
    if step == 0 {
        return Ok(ReapStep::default());
    }
    // It returns a row per page, and does nothing unless the rows are read.
    let mut vacuum = connection.prepare(&format!("pragma incremental_vacuum({step})"))?;
    let mut pages = vacuum.query([])?;
    while pages.next()?.is_some() {}
    let next = (free - step > spare).then_some(Cursor::of_i64(0));
    Ok(ReapStep { removed: step.into(), next, ..ReapStep::default() })
}

fn before(now: Timestamp, keep: Duration) -> i64 {
    now.before(keep).as_micros()
}

/// Rows in one step at most, whatever is asked: changes that come meanwhile wait for it.
const STEP_MAX: u32 = 2000;

/// Rows of a step that shares its transaction with few changes: less than a millisecond.
const SHARED_MIN: u32 = 64;

/// The part of a step that the index has, whether or not ranges are due: one row in four. Most keys are in ranges.
const INDEX_PART: u32 = 4;

/// Time after which a pass over the index that reached the end starts over although ranges are due. Rows that had to stay may go
/// since then. It is as long as a round of the reaper, and a pass reads every row that stays.
const REVISIT_AFTER: Duration = Duration::from_secs(60);

/// Rows of a range that are read beyond the limit of a step, so that the oldest of them go first. Rows of one policy are
/// in their order already.
const SORTED_AHEAD: u32 = 64;

/// Ranges in one step at most. A range costs a pass over its rows even if only few of them go.
const RANGES_MAX: u32 = 16;

/// Open records, and records that are long overdue, that a step over policies reads at most: ten milliseconds, and commits wait.
/// With more no policy goes, because one of those that were not read may name it. A policy that stays costs a row.
const NAMED_MAX: u32 = 10_000;

/// Pages that one step returns at most: moving them takes some milliseconds, and commits wait.
const PAGES_MAX: u32 = 512;

/// The value of `pragma auto_vacuum` for a file that can return pages step by step.
const INCREMENTAL: u32 = 2;

/// A tenth of what is in use stays free: minutes of new records on a busy file.
const SPARE_PART: u32 = 10;

/// Pages that are never worth returning: 4 MiB.
const SPARE_PAGES_MIN: u32 = 1024;
