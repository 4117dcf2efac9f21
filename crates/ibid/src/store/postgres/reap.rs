//! The reaper's steps: one statement each unless a row is in the way, on the clock and the rows of the server.

use std::time::{Duration, Instant};

use ibid_core::reap::{ReapCount, ReapStep, ReapTarget};
use ibid_core::record::{Flags, RecordDetails};
use ibid_core::store::StoreError;
use tokio_postgres::types::Type;
use tokio_postgres::{Error, Row};

use super::PostgresStore;
use super::ask::get;
use super::columns;
use super::connect::Param;
use super::failure::{self, Reach};

impl PostgresStore {
    pub(super) async fn reap_step(
        &self,
        course: ReapTarget,
        from: i64,
        limit: u32,
    ) -> Result<ReapStep, StoreError> {
        if limit == 0 {
            return Ok(ReapStep::default());
        }
        let limit = i64::from(limit.min(STEP_MAX));
        let started = Instant::now();
        let reaped = match course {
            ReapTarget::Records => self.reap_records(from, limit).await?,
            ReapTarget::Effects { keep } => {
                self.reap_places(include_str!("sql/reap_effects.sql"), from, keep, limit).await?
            }
            ReapTarget::History { keep } => {
                self.reap_places(include_str!("sql/reap_history.sql"), from, keep, limit).await?
            }
            // The server's own vacuum makes room for others.
            ReapTarget::Room => ReapStep::default(),
        };
        Ok(ReapStep { took: started.elapsed(), ..reaped })
    }

    /// One statement; unless a row of the application refers to a record and forbids that it goes. That is the
    /// application's right, and no reason to keep the others: then parts of the step are tried, down to one record,
    /// which is passed over as it is.
    async fn reap_records(&self, from: i64, limit: i64) -> Result<ReapStep, StoreError> {
        let (mut reaped, mut held) = (ReapStep::default(), Vec::<Vec<u8>>::new());
        // `suspects`: one of so many that come next is held. `stride`: how many to try while nothing is known of them.
        let (mut at, mut left, mut stride, mut suspects) = (from, limit, limit, 0);
        // Of the held ones, those at `at`.
        let mut held_here = 0;
        // A step that began at an instant does not end there while others may come after those that are held.
        while left > 0 && held.len() < if at == from { HELD_AT_ONCE_MAX } else { HELD_MAX } {
            let part = if suspects > 0 { (suspects / 2).max(1) } else { stride.min(left) };
            match self.reap_part(at, part, &held).await {
                Ok(done) => {
                    reaped.stripped += done.stripped;
                    reaped.removed += done.removed;
                    let last = done.last.unwrap_or(at);
                    held_here = if last == at { held_here } else { 0 };
                    at = last;
                    if done.looked < part {
                        return Ok(reaped);
                    }
                    left -= done.looked;
                    suspects = (suspects - done.looked).max(0);
                    stride *= 2;
                }
                Err(error) if !is_of_one(&error) => return Err(error),
                Err(_) if part > 1 => suspects = part,
                Err(error) => {
                    let Some((id, its)) = self.reap_first(at, &held).await? else { return Ok(reaped) };
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        "a record that is past its time is held"
                    );
                    held.push(id);
                    reaped.held += 1;
                    held_here = if its == at { held_here + 1 } else { 1 };
                    at = its;
                    // Where one is held its neighbours often are: rather a few small steps than half a table in vain.
                    (stride, suspects) = (1, 0);
                }
            }
        }
        // Those that are left at the last instant come first in the next step, and are counted there; unless all of this one
        // are held, for then it would never get past them. Of the others each has moved, if only to a later place.
        let stuck = at == from && left == limit;
        if !stuck {
            reaped.held -= held_here;
        }
        reaped.next = Some(at.saturating_add(i64::from(stuck)));
        Ok(reaped)
    }

    async fn reap_part(&self, from: i64, limit: i64, held: &[Vec<u8>]) -> Result<Part, StoreError> {
        let note = RecordDetails::default().to_bytes();
        let params: [Param<'_>; 5] = [
            (&from, Type::INT8),
            (&limit, Type::INT8),
            (&note, Type::BYTEA),
            (&DEAD_LETTER, Type::INT8),
            (&held, Type::BYTEA_ARRAY),
        ];
        let rows = self.ask_hot(OP, include_str!("sql/reap_records.sql"), &params).await?;
        let Some(row) = rows.first() else { return Ok(Part::default()) };
        let (stripped, removed) = (count(row, 0)?, count(row, 1)?);
        Ok(Part { stripped, removed, last: get(OP, row, 2)?, looked: get(OP, row, 3)? })
    }

    /// What the next part comes to first. Should that be another by now than the one that was in the way, it waits for
    /// the next round, and the one in the way is met again.
    async fn reap_first(&self, from: i64, held: &[Vec<u8>]) -> Result<Option<(Vec<u8>, i64)>, StoreError> {
        let params: [Param<'_>; 3] =
            [(&from, Type::INT8), (&held, Type::BYTEA_ARRAY), (&DEAD_LETTER, Type::INT8)];
        let rows = self.ask_hot(OP, include_str!("sql/reap_first.sql"), &params).await?;
        rows.first().map(|row| Ok((get(OP, row, 0)?, get(OP, row, 1)?))).transpose()
    }

    /// A step along places, which are in the order of time.
    async fn reap_places(
        &self,
        sql: &'static str,
        from: i64,
        keep: Duration,
        limit: i64,
    ) -> Result<ReapStep, StoreError> {
        let keep = micros(keep);
        let params: [Param<'_>; 3] = [(&from, Type::INT8), (&keep, Type::INT8), (&limit, Type::INT8)];
        let rows = self.ask_hot(OP, sql, &params).await?;
        let Some(row) = rows.first() else { return Ok(ReapStep::default()) };
        let (last, looked): (Option<i64>, i64) = (get(OP, row, 1)?, get(OP, row, 2)?);
        let old: Option<bool> = get(OP, row, 3)?;
        let next = last.filter(|_| looked == limit && old == Some(true));
        Ok(ReapStep { removed: count(row, 0)?, next, ..ReapStep::default() })
    }

    pub(super) async fn count_ripe(&self, course: ReapTarget) -> Result<ReapCount, StoreError> {
        let rows = match course {
            ReapTarget::Records => {
                self.ask(OP, include_str!("sql/ripe_records.sql"), &[(&DEAD_LETTER, Type::INT8)]).await?
            }
            ReapTarget::Effects { keep } => {
                self.ask(OP, include_str!("sql/ripe_effects.sql"), &[(&micros(keep), Type::INT8)]).await?
            }
            ReapTarget::History { keep } => {
                self.ask(OP, include_str!("sql/ripe_history.sql"), &[(&micros(keep), Type::INT8)]).await?
            }
            ReapTarget::Room => return Ok(ReapCount::default()),
        };
        let Some(row) = rows.first() else { return Ok(ReapCount::default()) };
        Ok(ReapCount { strip: count(row, 0)?, remove: count(row, 1)? })
    }
}

/// What a part of a step over records came to.
#[derive(Default)]
struct Part {
    stripped: u64,
    removed: u64,
    last: Option<i64>,
    looked: i64,
}

/// Whether it failed for one of its rows, and others may go.
fn is_of_one(error: &StoreError) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<Error>());
    source.is_some_and(|error| failure::reach(error) == Reach::One)
}

fn count(row: &Row, column: usize) -> Result<u64, StoreError> {
    Ok(get::<i64>(OP, row, column)?.cast_unsigned())
}

/// Longer than there was time is for ever: then nothing is old enough.
fn micros(keep: Duration) -> i64 {
    columns::micros(keep).min(columns::INTERVAL_MAX)
}

const OP: &str = "reap";

/// What a person must look at stays until one did.
const DEAD_LETTER: i64 = Flags::DEAD_LETTER as i64;

/// Rows in one statement at most, whatever is asked: some tens of milliseconds, and far below the time for which others
/// wait for a lock.
const STEP_MAX: u32 = 2000;

/// Held records that one step passes over: each costs two round trips, and the next step goes on behind them.
const HELD_MAX: usize = 32;

/// The same among records of one instant, which only a step that passes all of them over gets behind. What was written
/// together shares an instant, and that is a few hundred at most.
const HELD_AT_ONCE_MAX: usize = 1000;
