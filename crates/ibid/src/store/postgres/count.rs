//! Counts of records: exact where there are few, estimated by the server's statistics where there are many.

use ibid_core::record::State;
use ibid_core::store::{RecordCounts, RowCount, StoreError};
use ibid_core::time::Timestamp;
use tokio_postgres::types::Type;

use super::PostgresCore;
use super::connection::Param;
use super::lease_scan::SCANNED_AFTER_US;
use super::read::get;
use super::slow_read::{SlowReader, is_too_slow};

/// The statement that counts through indexes: records in the states of [`WAITING_CODES`] in their order, dead letters, the
/// instant of the oldest unknown record, and now.
pub(super) const COUNT_WAITING: &str = include_str!("sql/count_waiting.sql");

/// Returns the codes of the states that [`COUNT_WAITING`] takes.
pub(super) fn waiting_codes() -> [i64; 4] {
    let [pending, retryable, unknown] = State::WAITING;
    [pending, retryable, unknown, State::LEASED].map(|state| i64::from(state.code()))
}

/// Returns the parameters of [`COUNT_WAITING`].
pub(super) fn waiting_params<'a>(codes: &'a [i64; 4], most: &'a i64) -> [Param<'a>; 5] {
    let [pending, retryable, unknown, running] = codes;
    [pending, retryable, unknown, running, most].map(|number| (number as _, Type::INT8))
}

impl PostgresCore {
    /// Counts at most `most` rows of a kind one by one, and all of them if the table has no more than `small` bytes.
    pub(super) async fn count_records(&self, most: i64, small: i64) -> Result<RecordCounts, StoreError> {
        let mut reader = self.slow_reader(OP).await?;
        let table = TableSize::read(&mut reader).await?;
        let mut counts =
            RecordCounts { by_state: State::ALL.map(|state| table.estimate(state)), ..Default::default() };
        let watched = within_time(count_waiting(&mut reader, &table, &mut counts, most).await)?;
        if table.bytes <= small {
            count_small(&mut reader, &mut counts).await?;
        } else if let Some(watched) = watched
            && let Some((running, looked)) = within_time(count_first_leases(&mut reader, most).await)?
        {
            let is_whole = watched < most && looked < most;
            counts.by_state[index(State::LEASED)] =
                or_estimate(watched + running, is_whole, table.estimate(State::LEASED));
        }
        let rows = reader.query(OP, include_str!("sql/count_effects.sql"), &[(&most, Type::INT8)]).await;
        if let Some(rows) = within_time(rows)? {
            let dead: i64 = rows.first().map_or(Ok(0), |row| get(OP, row, 0))?;
            counts.dead_effects = or_estimate(dead, dead < most, RowCount::Unknown);
        }
        Ok(counts)
    }
}

/// Counts what waits, in the order of due records. Returns how many records in progress are in that order.
async fn count_waiting(
    reader: &mut SlowReader,
    table: &TableSize,
    counts: &mut RecordCounts,
    most: i64,
) -> Result<i64, StoreError> {
    let codes = waiting_codes();
    let rows = reader.query(OP, COUNT_WAITING, &waiting_params(&codes, &most)).await?;
    let Some(row) = rows.first() else { return Ok(0) };
    let counted = |column| get::<i64>(OP, row, column);
    for (column, state) in State::WAITING.into_iter().enumerate() {
        let rows = counted(column)?;
        counts.by_state[index(state)] = or_estimate(rows, rows < most, table.estimate(state));
    }
    let dead = counted(4)?;
    counts.dead_letters = or_estimate(dead, dead < most, RowCount::Unknown);
    let (oldest, now): (Option<i64>, i64) = (get(OP, row, 5)?, counted(6)?);
    counts.oldest_unknown =
        oldest.map(|oldest| Timestamp::from_micros(now).since(Timestamp::from_micros(oldest)));
    counted(3)
}

/// Counts records in their first lease. Returns also how many were read for that.
async fn count_first_leases(reader: &mut SlowReader, most: i64) -> Result<(i64, i64), StoreError> {
    let leased = i64::from(State::LEASED.code());
    let params: [Param<'_>; 3] =
        [(&leased, Type::INT8), (&most, Type::INT8), (&SCANNED_AFTER_US, Type::INT8)];
    let rows = reader.query(OP, include_str!("sql/count_first_leases.sql"), &params).await?;
    rows.first().map_or(Ok((0, 0)), |row| Ok((get(OP, row, 0)?, get(OP, row, 1)?)))
}

/// Counts the records of a small table, by all states.
async fn count_small(reader: &mut SlowReader, counts: &mut RecordCounts) -> Result<(), StoreError> {
    counts.by_state = [RowCount::Exact(0); State::ALL.len()];
    for row in reader.query(OP, include_str!("sql/count_small.sql"), &[]).await? {
        let (code, rows): (i16, i64) = (get(OP, &row, 0)?, get(OP, &row, 1)?);
        match u8::try_from(code).ok().and_then(State::from_code) {
            Some(state) => counts.by_state[index(state)] = RowCount::Exact(rows.cast_unsigned()),
            // A newer release wrote them. They must not hide the others.
            None => tracing::warn!(
                code,
                rows,
                "records in a state that this program does not know are not counted"
            ),
        }
    }
    Ok(())
}

/// Returns a count that stopped at a bound: exact below it, otherwise what the statistics say, but not less than was counted.
fn or_estimate(counted: i64, is_whole: bool, estimate: RowCount) -> RowCount {
    let counted = counted.cast_unsigned();
    match is_whole {
        true => RowCount::Exact(counted),
        false => RowCount::Estimated(estimate.value().unwrap_or(0).max(counted)),
    }
}

/// Returns `None` for a count that took too long, so that an estimate takes its place.
fn within_time<T>(counted: Result<T, StoreError>) -> Result<Option<T>, StoreError> {
    match counted {
        Ok(counted) => Ok(Some(counted)),
        Err(error) if is_too_slow(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The size of the table of records, and the server's statistics about it.
struct TableSize {
    bytes: i64,
    rows: Option<f64>,
    /// Codes of states, each with its share of the rows.
    shares: Vec<(i64, f64)>,
}

impl TableSize {
    async fn read(reader: &mut SlowReader) -> Result<TableSize, StoreError> {
        let rows = reader.query(OP, include_str!("sql/table_size.sql"), &[]).await?;
        let Some(row) = rows.first() else {
            return Ok(TableSize { bytes: 0, rows: None, shares: Vec::new() });
        };
        let (codes, shares): (Option<Vec<i64>>, Option<Vec<f64>>) = (get(OP, row, 2)?, get(OP, row, 3)?);
        let shares = codes.unwrap_or_default().into_iter().zip(shares.unwrap_or_default()).collect();
        Ok(TableSize { bytes: get(OP, row, 0)?, rows: get(OP, row, 1)?, shares })
    }

    /// Estimates how many records are in a state. A state that the statistics do not list is rarer than they can see.
    fn estimate(&self, state: State) -> RowCount {
        let Some(rows) = self.rows.filter(|_| !self.shares.is_empty()) else { return RowCount::Unknown };
        let share = self.shares.iter().find(|(code, _)| *code == i64::from(state.code()));
        RowCount::Estimated((rows * share.map_or(0.0, |(_, share)| *share)).round() as u64)
    }
}

fn index(state: State) -> usize {
    State::ALL.iter().position(|one| *one == state).unwrap_or_default()
}

const OP: &str = "count";

/// Rows up to which a state or the dead letters are counted one by one: far below the time limit of a slow read.
pub(super) const COUNTED_MAX: i64 = 100_000;

/// Bytes up to which a table is counted: some ten milliseconds.
pub(super) const SMALL_TABLE: i64 = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_come_from_the_statistics() {
        let table = |rows, shares: &[(i64, f64)]| TableSize { bytes: 0, rows, shares: shares.to_vec() };
        let usual = table(Some(1000.0), &[(3, 0.9), (2, 0.05)]);
        assert_eq!(usual.estimate(State::Completed), RowCount::Estimated(900));
        assert_eq!(usual.estimate(State::InProgress), RowCount::Estimated(50));
        assert_eq!(table(Some(1000.0), &[(3, 1.0)]).estimate(State::InProgress), RowCount::Estimated(0));
        assert_eq!(table(None, &[]).estimate(State::Completed), RowCount::Unknown);
    }

    #[tokio::test]
    async fn what_is_rare_in_a_large_table_is_counted_exactly() {
        use std::time::Duration;

        use ibid_core::change::Draft;
        use ibid_testkit::contract::{LONG, TestRecord, draft, finish_with, fresh, insert, put};

        use crate::store::postgres::{PostgresOptions, PostgresStore};

        let server = ibid_testkit::postgres::Postgres::shared();
        let url = server.url_for(&server.create_database());
        let store = PostgresStore::open(&url, PostgresOptions::default()).await.expect("it opens");
        // In a first lease, renewed, ended and finished.
        for index in 0..9 {
            let lease = if index == 2 { Duration::ZERO } else { LONG };
            let running = put(&store, &fresh(&TestRecord::fresh(), lease)).await.record;
            match index {
                0 | 1 => {
                    drop(store.core.renew_leases(&[(running.id, running.version)]).await.expect("renewed"))
                }
                3..6 => drop(put(&store, &finish_with(&running, b"done")).await),
                _ => {}
            }
        }
        for state in [State::Retryable; 12].into_iter().chain([State::Unknown; 4]) {
            let name = TestRecord::fresh();
            // Not among those that were begun lately, in the order of the reaper.
            let (expires_in, purge_in) = (Some(LONG), Some(LONG));
            put(&store, &insert(&name, Draft { expires_in, purge_in, ..draft(&name, state) })).await;
        }
        // With and without the lease scan.
        for _ in 0..2 {
            let counts = store.core.count_records(10, 0).await.expect("it is counted");
            let of = |state| counts.by_state[index(state)];
            assert_eq!((of(State::InProgress), of(State::Unknown)), (RowCount::Exact(6), RowCount::Exact(4)));
            assert_eq!(of(State::Retryable), RowCount::Estimated(10), "at least");
            assert_eq!(of(State::Completed), RowCount::Unknown, "there are no statistics");
            store.core.find_due(State::InProgress, None, 100).await.expect("due is answered");
        }
        let counts = store.core.count_records(5, 0).await.expect("it is counted");
        assert_eq!(counts.by_state[index(State::InProgress)], RowCount::Estimated(6), "too many were begun");
    }

    #[test]
    fn a_count_that_stopped_at_its_bound_is_an_estimate() {
        let estimate = RowCount::Estimated(7);
        assert_eq!(or_estimate(5, true, estimate), RowCount::Exact(5));
        assert_eq!(or_estimate(5, false, estimate), RowCount::Estimated(7));
        assert_eq!(or_estimate(5, false, RowCount::Unknown), RowCount::Estimated(5));
    }
}
