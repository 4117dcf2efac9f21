//! Steps of the reaper: one statement each unless a row stays, by the server's clock.

use std::time::{Duration, Instant};

use ibid_core::reap::{ReapCount, ReapStep, ReapTarget};
use ibid_core::row::micros;
use ibid_core::store::{Cursor, StoreError};
use tokio_postgres::types::Type;
use tokio_postgres::{Error, Row};

use super::PostgresCore;
use super::connection::Param;
use super::error::{self, PostgresErrorScope};
use super::read::get;
use super::row::SqlId;

impl PostgresCore {
    pub(super) async fn reap_step(
        &self,
        target: ReapTarget,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<ReapStep, StoreError> {
        if limit == 0 {
            return Ok(ReapStep::default());
        }
        let from = after.and_then(|cursor| cursor.as_i64()).unwrap_or(i64::MIN);
        let limit = i64::from(limit.min(STEP_MAX));
        let started = Instant::now();
        let step = match target {
            ReapTarget::Records => self.reap_records(from, limit.min(RECORDS_MAX)).await?,
            ReapTarget::Effects { keep } => {
                self.reap_in_order(include_str!("sql/reap_effects.sql"), from, keep, limit).await?
            }
            ReapTarget::History { keep } => {
                self.reap_in_order(include_str!("sql/reap_history.sql"), from, keep, limit).await?
            }
            ReapTarget::Policies => self.reap_policies(from, limit).await?,
            // The server's own vacuum makes room.
            ReapTarget::Room => ReapStep::default(),
        };
        Ok(ReapStep { took: started.elapsed(), ..step })
    }

    /// Reaps records with one statement. If a row of the application refers to a record and forbids its deletion, or is locked,
    /// only that record stays: parts of the step are tried, down to one record, which is skipped.
    async fn reap_records(&self, from: i64, limit: i64) -> Result<ReapStep, StoreError> {
        let (mut reaped, mut held) = (ReapStep::default(), Vec::<SqlId>::new());
        // `suspects`: among so many next records one is held. `stride`: how many to try while nothing is known of them.
        let (mut at, mut left, mut stride, mut suspects) = (from, limit, limit, 0);
        // Number of held records at the instant `at`.
        let mut held_here = 0;
        // A step that began at an instant does not end there while others may come after those that are held.
        while left > 0 && held.len() < if at == from { HELD_AT_ONCE_MAX } else { HELD_MAX } {
            let part = if suspects > 0 { (suspects / 2).max(1) } else { stride.min(left) };
            match self.reap_part(at, part, &held).await {
                Ok(done) => {
                    reaped.stripped += done.stripped;
                    reaped.removed += done.removed;
                    reaped.behind = reaped.behind.max(done.behind);
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
                Err(error) if !is_of_one_row(&error) => return Err(error),
                Err(_) if part > 1 => suspects = part,
                Err(error) => {
                    let Some((id, its)) = self.reap_first(at, &held).await? else { return Ok(reaped) };
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        "a record past its time stays: a row of the application refers to it"
                    );
                    held.push(id);
                    reaped.held += 1;
                    held_here = if its == at { held_here + 1 } else { 1 };
                    at = its;
                    // Neighbours of a held record are often held, too: a few small steps cost less than large ones in vain.
                    (stride, suspects) = (1, 0);
                }
            }
        }
        // Held records at the last instant come first in the next step and are counted there, unless all records of this step
        // are held: then it would never get past them.
        let stuck = at == from && left == limit;
        if !stuck {
            reaped.held -= held_here;
        }
        reaped.next = Some(Cursor::of_i64(at.saturating_add(i64::from(stuck))));
        Ok(reaped)
    }

    async fn reap_part(&self, from: i64, limit: i64, held: &[SqlId]) -> Result<ReapPart, StoreError> {
        let params: [Param<'_>; 3] = [(&from, Type::INT8), (&limit, Type::INT8), (&held, Type::UUID_ARRAY)];
        let rows = self.ask(OP, include_str!("sql/reap_records.sql"), &params).await?;
        let Some(row) = rows.first() else { return Ok(ReapPart::default()) };
        let behind: Option<i64> = get(OP, row, 4)?;
        Ok(ReapPart {
            stripped: count(row, 0)?,
            removed: count(row, 1)?,
            last: get(OP, row, 2)?,
            looked: get(OP, row, 3)?,
            behind: behind.and_then(|behind| u64::try_from(behind).ok()).map(Duration::from_micros),
        })
    }

    /// Returns the record that the next part comes to first. If that is another one by now than the one that failed, it waits
    /// for the next round, and the one that failed is met again.
    async fn reap_first(&self, from: i64, held: &[SqlId]) -> Result<Option<(SqlId, i64)>, StoreError> {
        let params: [Param<'_>; 2] = [(&from, Type::INT8), (&held, Type::UUID_ARRAY)];
        let rows = self.ask(OP, include_str!("sql/reap_first.sql"), &params).await?;
        rows.first().map(|row| Ok((get(OP, row, 0)?, get(OP, row, 1)?))).transpose()
    }

    /// Takes one step over rows whose numbers are in the order of time.
    async fn reap_in_order(
        &self,
        sql: &'static str,
        from: i64,
        keep: Duration,
        limit: i64,
    ) -> Result<ReapStep, StoreError> {
        let keep = micros(keep);
        let params: [Param<'_>; 3] = [(&from, Type::INT8), (&keep, Type::INT8), (&limit, Type::INT8)];
        let rows = self.ask(OP, sql, &params).await?;
        let Some(row) = rows.first() else { return Ok(ReapStep::default()) };
        let (last, looked): (Option<i64>, i64) = (get(OP, row, 1)?, get(OP, row, 2)?);
        let is_old: Option<bool> = get(OP, row, 3)?;
        let next = last.filter(|_| looked == limit && is_old == Some(true)).map(Cursor::of_i64);
        Ok(ReapStep { removed: count(row, 0)?, next, ..ReapStep::default() })
    }

    async fn reap_policies(&self, from: i64, limit: i64) -> Result<ReapStep, StoreError> {
        let params: [Param<'_>; 3] = [(&from, Type::INT8), (&limit, Type::INT8), (&OVERDUE_MAX, Type::INT8)];
        let rows = self.ask(OP, include_str!("sql/reap_policies.sql"), &params).await?;
        let Some(row) = rows.first() else { return Ok(ReapStep::default()) };
        let (last, looked): (Option<i64>, i64) = (get(OP, row, 1)?, get(OP, row, 2)?);
        let next = last.filter(|_| looked == limit).map(Cursor::of_i64);
        Ok(ReapStep { removed: count(row, 0)?, next, ..ReapStep::default() })
    }

    pub(super) async fn count_reap_target(&self, target: ReapTarget) -> Result<ReapCount, StoreError> {
        let (sql, bound) = match target {
            ReapTarget::Records => (include_str!("sql/count_reapable_records.sql"), None),
            ReapTarget::Effects { keep } => {
                (include_str!("sql/count_reapable_effects.sql"), Some(micros(keep)))
            }
            ReapTarget::History { keep } => {
                (include_str!("sql/count_reapable_history.sql"), Some(micros(keep)))
            }
            ReapTarget::Policies => (include_str!("sql/count_reapable_policies.sql"), Some(OVERDUE_MAX)),
            ReapTarget::Room => return Ok(ReapCount::default()),
        };
        let params: &[Param<'_>] = if bound.is_some() { &[(&bound, Type::INT8)] } else { &[] };
        let rows = self.ask_slow(OP, sql, params).await?;
        let Some(row) = rows.first() else { return Ok(ReapCount::default()) };
        Ok(ReapCount { strip: count(row, 0)?, remove: count(row, 1)? })
    }
}

/// The result of a part of a step over records.
#[derive(Default)]
struct ReapPart {
    stripped: u64,
    removed: u64,
    last: Option<i64>,
    looked: i64,
    behind: Option<Duration>,
}

/// Returns whether it failed because of one of its rows, so that others may go. That a row of the application is locked counts,
/// too: the foreign key has to look at it.
fn is_of_one_row(error: &StoreError) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<Error>());
    source.is_some_and(|error| {
        matches!(error::scope_of(error), PostgresErrorScope::One | PostgresErrorScope::Contended)
    })
}

fn count(row: &Row, column: usize) -> Result<u64, StoreError> {
    Ok(get::<i64>(OP, row, column)?.cast_unsigned())
}

const OP: &str = "reap";

/// Rows in one statement at most, whatever is asked: some tens of milliseconds, and far below the time for which others
/// wait for a lock.
const STEP_MAX: u32 = 2000;

/// Records in one step at most: about a millisecond, in which a begin may wait for the processor. While the reaper used a fifth of the
/// server's time, the p99 of begins was 5.4 ms with 400 records in a step, 3.0 with 100, and 2.4 without it (two cores, both busy).
const RECORDS_MAX: i64 = 100;

/// Records overdue by 22 hours that a step over policies reads, from the index alone: some tens of milliseconds. With more, the
/// reaper is far behind, or as many dead letters wait for an operator, and policies are the least of it.
const OVERDUE_MAX: i64 = 500_000;

/// Held records that one step skips: each costs two round trips, and the next step continues behind them.
const HELD_MAX: usize = 32;

/// Held records of one instant that one step skips, because only a step that skips all of them gets past them. Records that
/// were written together share an instant, and those are a few hundred at most.
const HELD_AT_ONCE_MAX: usize = 1000;
