//! The reaper's steps on the thread that writes, each in a transaction of its own; and what it would find.

use std::time::{Duration, Instant};

use ibid_core::reap::{ReapCount, ReapStep, ReapTarget};
use ibid_core::record::{Flags, RecordDetails};
use ibid_core::store::StoreError;
use ibid_core::time::Timestamp;
use rusqlite::{Connection, params, params_from_iter};

use super::failure::{self, Reach, store_error};
use super::writer::Writer;

impl Writer {
    /// One step on a course.
    pub(super) fn reap(&mut self, course: ReapTarget, from: i64, limit: u32) -> Result<ReapStep, StoreError> {
        if limit == 0 {
            return Ok(ReapStep::default());
        }
        let limit = limit.min(STEP_MAX);
        let started = Instant::now();
        let reaped = self.transact(|connection, _, now| {
            Ok(match course {
                ReapTarget::Records => records(connection, from, limit, now)?,
                ReapTarget::Effects { keep } => effects(connection, from, limit, now, keep)?,
                ReapTarget::History { keep } => {
                    let look = include_str!("sql/reap_history_look.sql");
                    places(connection, look, include_str!("sql/reap_history.sql"), from, limit, now, keep)?
                }
                ReapTarget::Room => give_back(connection, limit)?,
            })
        });
        let reaped = reaped.map_err(|stumble| store_error(OP, stumble.error))?;
        Ok(ReapStep { took: started.elapsed(), ..reaped })
    }
}

/// What would go now.
pub(super) fn ripe(
    connection: &Connection,
    course: ReapTarget,
    now: Timestamp,
) -> rusqlite::Result<ReapCount> {
    let (sql, by) = match course {
        ReapTarget::Records => {
            (include_str!("sql/ripe_records.sql"), vec![now.as_micros(), DEAD_LETTER.into()])
        }
        ReapTarget::Effects { keep } => (include_str!("sql/ripe_effects.sql"), vec![before(now, keep)]),
        ReapTarget::History { keep } => (include_str!("sql/ripe_history.sql"), vec![before(now, keep)]),
        ReapTarget::Room => return Ok(ReapCount::default()),
    };
    connection.prepare_cached(sql)?.query_row(params_from_iter(by), |row| {
        let count = |column| row.get::<_, i64>(column).map(i64::cast_unsigned);
        Ok(ReapCount { strip: count(0)?, remove: count(1)? })
    })
}

fn records(connection: &Connection, from: i64, limit: u32, now: Timestamp) -> rusqlite::Result<ReapStep> {
    let mut look = limit;
    loop {
        let (reaped, stuck) = records_among(connection, from, look, limit, now)?;
        if !stuck || look >= STEP_MAX {
            return Ok(reaped);
        }
        // Others at the same instant may come after those that are held.
        look = look.saturating_mul(2).min(STEP_MAX);
    }
}

/// What goes, `limit` at most, of the next `look` records; and whether all of them are held, at one instant.
fn records_among(
    connection: &Connection,
    from: i64,
    look: u32,
    limit: u32,
    now: Timestamp,
) -> rusqlite::Result<(ReapStep, bool)> {
    let mut pick = connection.prepare_cached(include_str!("sql/reap_pick.sql"))?;
    let picked = pick.query_map(params![now.as_micros(), from, look, DEAD_LETTER], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, bool>(2)?, row.get::<_, Vec<u8>>(3)?))
    })?;
    let rows: Vec<(i64, i64, bool, Vec<u8>)> = picked.collect::<rusqlite::Result<_>>()?;
    let mut remove = connection.prepare_cached(include_str!("sql/reap_row.sql"))?;
    let mut strip = connection.prepare_cached(include_str!("sql/reap_strip.sql"))?;
    let mut bodies = connection.prepare_cached(include_str!("sql/reap_bodies.sql"))?;
    let mut payloads = connection.prepare_cached(include_str!("sql/reap_payloads.sql"))?;
    let note = RecordDetails::default().to_bytes();
    // Of the held ones, those at `at`.
    let (mut reaped, mut at, mut held_here) = (ReapStep::default(), from, 0);
    let mut more = rows.len() == look as usize;
    for (its, row, goes, id) in &rows {
        if reaped.removed + reaped.stripped == u64::from(limit) {
            more = true;
            break;
        }
        held_here = if *its == at { held_here } else { 0 };
        at = *its;
        let done = if *goes { remove.execute([row]) } else { strip.execute(params![row, note]) };
        match done {
            Ok(_) => {
                bodies.execute([row])?;
                payloads.execute([id])?;
                *(if *goes { &mut reaped.removed } else { &mut reaped.stripped }) += 1;
            }
            // A row of the application refers to it and forbids that it goes. That is the application's right, and no
            // reason to keep all those behind it.
            Err(error) if failure::reach(&error) == Reach::One => {
                tracing::debug!(%error, row, "a record that is past its time is held");
                reaped.held += 1;
                held_here += 1;
            }
            Err(error) => return Err(error),
        }
    }
    if !more {
        return Ok((reaped, false));
    }
    // Those that are left at the last instant come first in the next step, and are counted there; unless all of this one
    // are held, for then it would never get past them.
    let stuck = at == from && reaped.removed + reaped.stripped == 0;
    if !stuck {
        reaped.held -= held_here;
    }
    reaped.next = Some(at.saturating_add(i64::from(stuck)));
    Ok((reaped, stuck))
}

/// A step along places, which are in the order of time.
fn places(
    connection: &Connection,
    look: &str,
    remove: &str,
    from: i64,
    limit: u32,
    now: Timestamp,
    keep: Duration,
) -> rusqlite::Result<ReapStep> {
    let mut look = connection.prepare_cached(look)?;
    let (last, looked, youngest): (Option<i64>, u32, Option<i64>) =
        look.query_row(params![from, limit], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let (Some(last), Some(youngest)) = (last, youngest) else { return Ok(ReapStep::default()) };
    let by = before(now, keep);
    let removed = connection.prepare_cached(remove)?.execute(params![from, last, by])? as u64;
    let next = (looked == limit && youngest <= by).then_some(last);
    Ok(ReapStep { removed, next, ..ReapStep::default() })
}

/// Takes one step over effects: removes those that are old enough, with their calls, and drops payloads of old letters.
fn effects(
    connection: &Connection,
    from: i64,
    limit: u32,
    now: Timestamp,
    keep: Duration,
) -> rusqlite::Result<ReapStep> {
    let mut look = connection.prepare_cached(include_str!("sql/reap_effects_look.sql"))?;
    let (last, looked, youngest): (Option<i64>, u32, Option<i64>) =
        look.query_row(params![from, limit], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let (Some(last), Some(youngest)) = (last, youngest) else { return Ok(ReapStep::default()) };
    let by = before(now, keep);
    let run = |sql, params: &[i64]| connection.prepare_cached(sql)?.execute(params_from_iter(params));
    let removed = run(include_str!("sql/reap_effects.sql"), &[from, last, by])? as u64;
    run(include_str!("sql/reap_calls.sql"), &[from, last])?;
    run(include_str!("sql/reap_letters.sql"), &[from, last, by])?;
    let next = (looked == limit && youngest <= by).then_some(last);
    Ok(ReapStep { removed, next, ..ReapStep::default() })
}

/// Gives unused pages at the end of the file back to the system, if it was made for that. Some are kept, because what is
/// written next would only have to ask for them again.
fn give_back(connection: &Connection, limit: u32) -> rusqlite::Result<ReapStep> {
    let ask = |pragma: &str| connection.query_row(pragma, [], |row| row.get::<_, u32>(0));
    if ask("pragma auto_vacuum")? != INCREMENTAL {
        return Ok(ReapStep::default());
    }
    let (free, all) = (ask("pragma freelist_count")?, ask("pragma page_count")?);
    let spare = ((all - free) / SPARE_PART).max(SPARE_PAGES_MIN);
    let step = free.saturating_sub(spare).min(limit);
    if step == 0 {
        return Ok(ReapStep::default());
    }
    // It gives a row per page, and does nothing unless they are asked for.
    let mut vacuum = connection.prepare(&format!("pragma incremental_vacuum({step})"))?;
    let mut pages = vacuum.query([])?;
    while pages.next()?.is_some() {}
    let next = (free - step > spare).then_some(0);
    Ok(ReapStep { removed: step.into(), next, ..ReapStep::default() })
}

fn before(now: Timestamp, keep: Duration) -> i64 {
    now.as_micros().saturating_sub(i64::try_from(keep.as_micros()).unwrap_or(i64::MAX))
}

const OP: &str = "reap";

/// What a person must look at stays until one did.
const DEAD_LETTER: u8 = Flags::DEAD_LETTER;

/// Rows in one transaction at most, whatever is asked: every other write waits for it.
const STEP_MAX: u32 = 2000;

/// What `pragma auto_vacuum` says of a file that can give pages back step by step.
const INCREMENTAL: u32 = 2;

/// A tenth of what is in use stays free: minutes of new records on a busy file.
const SPARE_PART: u32 = 10;

/// Pages that are never worth giving back: 4 MiB.
const SPARE_PAGES_MIN: u32 = 1024;
