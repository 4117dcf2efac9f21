//! Steps of the reaper, by the server's clock: a look that locks what may go, then the removal, in one transaction.

use std::time::{Duration, Instant};

use ibid_core::reap::{ReapCount, ReapStep, ReapTarget};
use ibid_core::row::micros;
use ibid_core::sql::Param;
use ibid_core::store::{Cursor, StoreError};
use mysql_async::Error;

use super::connection::MysqlConnection;
use super::error::{self, MysqlErrorScope};
use super::read::{retrying, statement};
use super::row::{self, DbRow};
use super::row_source::{self, RowSource};
use super::{KIND, MysqlCore, literal};
use crate::store::record_pages::ListPosition;

impl MysqlCore {
    pub(super) async fn reap_step(
        &self,
        target: ReapTarget,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<ReapStep, StoreError> {
        if limit == 0 {
            return Ok(ReapStep::default());
        }
        let limit = i64::from(limit.min(STEP_MAX));
        let started = Instant::now();
        let step = match target {
            ReapTarget::Records => self.reap_records(after, limit).await?,
            ReapTarget::Effects { keep } => self.reap_in_order(&EFFECTS, after, Some(keep), limit).await?,
            ReapTarget::History { keep } => self.reap_in_order(&HISTORY, after, Some(keep), limit).await?,
            ReapTarget::Policies => self.reap_in_order(&POLICIES, after, None, limit).await?,
            // InnoDB reuses the pages.
            ReapTarget::Room => ReapStep::default(),
        };
        Ok(ReapStep { took: started.elapsed(), ..step })
    }

    /// Reaps records. If a row of the application refers to one of them and forbids its deletion, or deadlocks stay, each
    /// is reaped in a separate transaction, and only those that can't go stay.
    async fn reap_records(&self, after: Option<Cursor>, limit: i64) -> Result<ReapStep, StoreError> {
        let from = ListPosition::parse(KIND, OP, after.as_ref())?;
        let mut step = ReapStep::default();
        match self.reap_part(from, limit).await {
            Ok(part) => part.add_to(&mut step, limit),
            Err(error) if !is_of_one_row(&error) => return Err(error),
            Err(_) => {
                let mut at = from;
                for _ in 0..limit {
                    match self.reap_part(at, 1).await {
                        Ok(part) => {
                            let next = part.last;
                            part.add_to(&mut step, 1);
                            match next {
                                Some(next) => at = next,
                                None => break,
                            }
                        }
                        Err(error) if !is_of_one_row(&error) => return Err(error),
                        Err(error) => {
                            let params = records_params(&at, 1);
                            let text = statement(OP, include_str!("sql/reap_records.sql"), &params)?;
                            let rows = retrying!(self, OP, |connection| look(connection, &text))?;
                            let Some(next) = rows.first().map(position).transpose()? else { break };
                            tracing::debug!(
                                error = &error as &dyn std::error::Error,
                                "a record past its time stays: a row of the application refers to it"
                            );
                            step.held += 1;
                            at = next;
                            step.next = Some(next.cursor());
                        }
                    }
                }
            }
        }
        Ok(step)
    }

    async fn reap_part(&self, from: ListPosition, limit: i64) -> Result<MysqlReapPart, StoreError> {
        let text = statement(OP, include_str!("sql/reap_records.sql"), &records_params(&from, limit))?;
        let rows = retrying!(self, OP, |connection| reap_once(connection, &text))?;
        let mut part =
            MysqlReapPart { last: rows.last().map(position).transpose()?, ..MysqlReapPart::default() };
        for row in &rows {
            part.looked += 1;
            match row::number(OP, row, 4)? {
                0 => part.stripped += 1,
                _ => part.removed += 1,
            }
            let behind = u64::try_from(row::number(OP, row, 5)?).unwrap_or(0);
            part.behind = part.behind.max(Some(Duration::from_micros(behind)));
        }
        Ok(part)
    }

    /// Takes one step over rows in the order of their numbers. A statement finds those that may go; others remove them.
    async fn reap_in_order(
        &self,
        plan: &'static ReapPlan,
        after: Option<Cursor>,
        keep: Option<Duration>,
        limit: i64,
    ) -> Result<ReapStep, StoreError> {
        let from = after.and_then(|cursor| cursor.as_i64()).unwrap_or(i64::MIN);
        let params = [Param::I64(from), Param::I64(limit), Param::maybe_i64(keep.map(micros))];
        let looked = self.ask(OP, plan.look, &params).await?;
        let (mut going, mut letters) = (Vec::new(), Vec::new());
        for row in &looked {
            match row::number(OP, row, 1)? {
                0 => {}
                1 => going.push(row::number(OP, row, 0)?),
                _ => letters.push(row::number(OP, row, 0)?),
            }
        }
        for (numbers, statements) in [(&going, plan.remove), (&letters, plan.blank)] {
            if !numbers.is_empty() {
                let source = row_source::numbers(numbers.iter().copied());
                let text = source.within(statements);
                retrying!(self, OP, |connection| connection.run(&text))?;
            }
        }
        let last =
            looked.last().map(|row| Ok((row::number(OP, row, 0)?, row::number(OP, row, 2)?))).transpose()?;
        let is_full = looked.len() as i64 == limit;
        let next = last.filter(|(_, is_old)| is_full && *is_old == 1).map(|(last, _)| Cursor::of_i64(last));
        Ok(ReapStep { removed: going.len() as u64, next, ..ReapStep::default() })
    }

    pub(super) async fn count_reap_target(&self, target: ReapTarget) -> Result<ReapCount, StoreError> {
        let (sql, keep) = match target {
            ReapTarget::Records => (include_str!("sql/count_reapable_records.sql"), None),
            ReapTarget::Effects { keep } => (include_str!("sql/count_reapable_effects.sql"), Some(keep)),
            ReapTarget::History { keep } => (include_str!("sql/count_reapable_history.sql"), Some(keep)),
            ReapTarget::Policies => (include_str!("sql/count_reapable_policies.sql"), None),
            ReapTarget::Room => return Ok(ReapCount::default()),
        };
        let rows = self.ask_slow(OP, sql, &[Param::maybe_i64(keep.map(micros))]).await?;
        let Some(row) = rows.first() else { return Ok(ReapCount::default()) };
        let count = |column| row::number(OP, row, column).map(i64::cast_unsigned);
        Ok(ReapCount { strip: count(0)?, remove: count(1)? })
    }
}

/// Locks the records that may go, and removes or strips them.
async fn reap_once(connection: &mut MysqlConnection, text: &str) -> Result<Vec<DbRow>, Error> {
    let rows = connection.begin_with(text).await?;
    if !rows.is_empty() {
        let mut source = RowSource::new(&["id", "birth", "born_at", "goes"]);
        let mut by_id: Vec<&DbRow> = rows.iter().collect();
        by_id.sort_unstable_by_key(|row| row::id_of(row));
        for row in by_id {
            source.push(|text, column| match column {
                0 => literal::push_bytes(text, row::id_of(row).unwrap_or(NO_ID).as_bytes()),
                column => {
                    literal::push_i64(text, row.get(REAP_COLUMNS[column]).and_then(row::integer).unwrap_or(0))
                }
            });
        }
        for statement in REMOVALS {
            connection.run(&source.within(statement)).await?;
        }
    }
    connection.end("commit").await?;
    Ok(rows)
}

/// Returns the records that may go and locks none of them for long.
async fn look(connection: &mut MysqlConnection, text: &str) -> Result<Vec<DbRow>, Error> {
    let rows = connection.begin_with(text).await?;
    connection.end("rollback").await?;
    Ok(rows)
}

fn records_params(from: &ListPosition, limit: i64) -> [Param<'_>; 3] {
    [Param::I64(from.at), Param::Bytes(from.id.as_bytes()), Param::I64(limit)]
}

fn position(row: &DbRow) -> Result<ListPosition, StoreError> {
    Ok(ListPosition { at: row::number(OP, row, 3)?, id: row::id(OP, row, 0)? })
}

/// The result of a part of a step over records.
#[derive(Default)]
struct MysqlReapPart {
    stripped: u64,
    removed: u64,
    last: Option<ListPosition>,
    looked: i64,
    behind: Option<Duration>,
}

impl MysqlReapPart {
    fn add_to(self, step: &mut ReapStep, limit: i64) {
        step.stripped += self.stripped;
        step.removed += self.removed;
        step.behind = step.behind.max(self.behind);
        step.next = self.last.filter(|_| self.looked == limit).map(ListPosition::cursor);
    }
}

/// Statements of a step over numbered rows.
struct ReapPlan {
    /// Returns the number of each row, whether it goes (1) or only loses its content (2), and whether it is old.
    look: &'static str,
    remove: &'static str,
    blank: &'static str,
}

static EFFECTS: ReapPlan = ReapPlan {
    look: include_str!("sql/reap_effects.sql"),
    remove: include_str!("sql/reap_effects_remove.sql"),
    blank: include_str!("sql/reap_effects_blank.sql"),
};
static HISTORY: ReapPlan = ReapPlan {
    look: include_str!("sql/reap_history.sql"),
    remove: include_str!("sql/reap_history_remove.sql"),
    blank: "",
};
static POLICIES: ReapPlan = ReapPlan {
    look: include_str!("sql/reap_policies.sql"),
    remove: include_str!("sql/reap_policies_remove.sql"),
    blank: "",
};

/// Statements that remove or strip the locked records, in their order.
const REMOVALS: [&str; 4] = [
    include_str!("sql/reap_bodies.sql"),
    include_str!("sql/reap_payloads.sql"),
    include_str!("sql/reap_strip.sql"),
    include_str!("sql/reap_delete.sql"),
];

/// Columns of reap_records.sql for those of the source of rows: id, birth, born_at, goes.
const REAP_COLUMNS: [usize; 4] = [0, 1, 2, 4];

const NO_ID: ibid_core::scope::RecordId = ListPosition::START.id;

/// Returns whether it failed because of one of its rows, so that others may go.
fn is_of_one_row(error: &StoreError) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<Error>());
    source.is_some_and(|error| error::is_held(error) || error::scope_of(error) == MysqlErrorScope::Contended)
}

const OP: &str = "reap";

/// Rows in one transaction at most, whatever is asked: some tens of milliseconds, and far below the time for which others
/// wait for a lock.
const STEP_MAX: u32 = 1000;
