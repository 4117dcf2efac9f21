//! The reaper's steps: one statement each, on the clock and the rows of the server.

use std::time::{Duration, Instant};

use ibid_core::reap::{Course, Reaped, Ripe};
use ibid_core::record::{Flags, Note};
use ibid_core::store::StoreError;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::PostgresStore;
use super::ask::get;
use super::connect::Param;

impl PostgresStore {
    pub(super) async fn reap_step(
        &self,
        course: Course,
        from: i64,
        limit: u32,
    ) -> Result<Reaped, StoreError> {
        if limit == 0 {
            return Ok(Reaped::default());
        }
        let limit = i64::from(limit.min(STEP_MAX));
        let started = Instant::now();
        let reaped = match course {
            Course::Records => self.reap_records(from, limit).await?,
            Course::Effects { keep } => {
                self.reap_places(include_str!("sql/reap_effects.sql"), from, keep, limit).await?
            }
            Course::History { keep } => {
                self.reap_places(include_str!("sql/reap_history.sql"), from, keep, limit).await?
            }
            // The server's own vacuum makes room for others.
            Course::Room => Reaped::default(),
        };
        Ok(Reaped { took: started.elapsed(), ..reaped })
    }

    async fn reap_records(&self, from: i64, limit: i64) -> Result<Reaped, StoreError> {
        let note = Note::default().to_bytes();
        let params: [Param<'_>; 4] =
            [(&from, Type::INT8), (&limit, Type::INT8), (&note, Type::BYTEA), (&DEAD_LETTER, Type::INT8)];
        let rows = self.ask_hot(OP, include_str!("sql/reap_records.sql"), &params).await?;
        let Some(row) = rows.first() else { return Ok(Reaped::default()) };
        let (stripped, removed) = (count(row, 0)?, count(row, 1)?);
        let (last, looked): (Option<i64>, i64) = (get(OP, row, 2)?, get(OP, row, 3)?);
        // Those that are left at the last instant come first in the next step.
        Ok(Reaped { stripped, removed, next: last.filter(|_| looked == limit), took: Duration::ZERO })
    }

    /// A step along places, which are in the order of time.
    async fn reap_places(
        &self,
        sql: &'static str,
        from: i64,
        keep: Duration,
        limit: i64,
    ) -> Result<Reaped, StoreError> {
        let keep = micros(keep);
        let params: [Param<'_>; 3] = [(&from, Type::INT8), (&keep, Type::INT8), (&limit, Type::INT8)];
        let rows = self.ask_hot(OP, sql, &params).await?;
        let Some(row) = rows.first() else { return Ok(Reaped::default()) };
        let (last, looked): (Option<i64>, i64) = (get(OP, row, 1)?, get(OP, row, 2)?);
        let old: Option<bool> = get(OP, row, 3)?;
        let next = last.filter(|_| looked == limit && old == Some(true));
        Ok(Reaped { stripped: 0, removed: count(row, 0)?, next, took: Duration::ZERO })
    }

    pub(super) async fn count_ripe(&self, course: Course) -> Result<Ripe, StoreError> {
        let rows = match course {
            Course::Records => {
                self.ask(OP, include_str!("sql/ripe_records.sql"), &[(&DEAD_LETTER, Type::INT8)]).await?
            }
            Course::Effects { keep } => {
                self.ask(OP, include_str!("sql/ripe_effects.sql"), &[(&micros(keep), Type::INT8)]).await?
            }
            Course::History { keep } => {
                self.ask(OP, include_str!("sql/ripe_history.sql"), &[(&micros(keep), Type::INT8)]).await?
            }
            Course::Room => return Ok(Ripe::default()),
        };
        let Some(row) = rows.first() else { return Ok(Ripe::default()) };
        Ok(Ripe { strip: count(row, 0)?, remove: count(row, 1)? })
    }
}

fn count(row: &Row, column: usize) -> Result<u64, StoreError> {
    Ok(get::<i64>(OP, row, column)?.cast_unsigned())
}

/// Longer than there was time is for ever: then nothing is old enough.
fn micros(keep: Duration) -> i64 {
    i64::try_from(keep.as_micros()).unwrap_or(i64::MAX).min(KEEP_MAX_US)
}

const OP: &str = "reap";

/// What a person must look at stays until one did.
const DEAD_LETTER: i64 = Flags::DEAD_LETTER as i64;

/// Rows in one statement at most, whatever is asked: some tens of milliseconds, and far below the time for which others
/// wait for a lock.
const STEP_MAX: u32 = 2000;

/// Two hundred thousand years: an instant of today minus this is still a number.
const KEEP_MAX_US: i64 = i64::MAX / 2;
