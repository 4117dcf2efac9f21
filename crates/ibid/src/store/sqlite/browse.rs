//! Questions of operators, on a separate thread. Each reads bounded pieces of the file in separate snapshots, so that
//! the log can start over in between.

use std::time::{Duration, Instant};

use ibid_core::change::{HistoryKind, HistoryLine, StoredRecord};
use ibid_core::fingerprint::SecretId;
use ibid_core::reap::{ReapCount, ReapTarget};
use ibid_core::record::State;
use ibid_core::scope::RecordId;
use ibid_core::store::{
    BoxFuture, BrowseStore, Cursor, Page, RecordCounts, RecordFilter, RowCount, StoreError,
};
use ibid_core::time::Timestamp;
use rusqlite::{OptionalExtension, ToSql, params};

use super::reader::{FileSnapshot, ROWS_MAX, Reader, Scan, cursor_of, parse_cursor, position_cursor};
use super::{SqliteStore, reap};

impl BrowseStore for SqliteStore {
    fn list(&self, filter: RecordFilter) -> BoxFuture<'_, Result<Page<StoredRecord>, StoreError>> {
        Box::pin(async move {
            if filter.state.is_some() {
                self.order_rows().await;
            }
            self.ask_browser(move |reader| list(reader, &filter)).await
        })
    }

    fn history(&self, id: RecordId) -> BoxFuture<'_, Result<Vec<HistoryLine>, StoreError>> {
        Box::pin(self.ask_browser(move |reader| reader.read("read the history", |view| view.history(id))))
    }

    fn count(&self) -> BoxFuture<'_, Result<RecordCounts, StoreError>> {
        Box::pin(async move {
            self.order_rows().await;
            self.ask_browser(|reader| reader.read("count", |view| view.count())).await
        })
    }

    fn count_reapable(&self, target: ReapTarget) -> BoxFuture<'_, Result<ReapCount, StoreError>> {
        Box::pin(async move {
            self.order_rows().await;
            let count = move |view: &mut FileSnapshot<'_>| reap::count(view.connection, target, view.now);
            self.ask_browser(move |reader| reader.read("count what would go", count)).await
        })
    }

    fn find_unknown_secret(
        &self,
        known: Vec<SecretId>,
    ) -> BoxFuture<'_, Result<Option<SecretId>, StoreError>> {
        // Hex digits need no escapes.
        let known: Vec<String> = known.iter().map(|id| format!("\"{id}\"")).collect();
        let known = format!("[{}]", known.join(","));
        Box::pin(self.ask_browser(move |reader| {
            let mut after = 0;
            loop {
                let (secret, last) =
                    reader.read("look for secrets", |view| view.unknown_secret(&known, after))?;
                match (secret, last) {
                    (None, Some(last)) => after = last,
                    (secret, _) => return Ok(secret),
                }
            }
        }))
    }
}

/// Lists records: through an index where the filter allows it, and otherwise piece by piece in the order of begin.
fn list(reader: &mut Reader, filter: &RecordFilter) -> Result<Page<StoredRecord>, StoreError> {
    if filter.limit == 0 {
        return Ok(Page::default());
    }
    let is_open = filter.state.is_some_and(|state| state != State::FINAL);
    let scan = match (&filter.prefix, filter.dead_letter, is_open) {
        (Some(_), _, _) => reader.read(LIST, |view| view.list_ids(filter))?,
        (None, true, _) => reader.read(LIST, |view| view.list_dead_letters(filter))?,
        (None, false, true) => reader.read(LIST, |view| view.list_open(filter))?,
        (None, false, false) => return list_rows(reader, filter),
    };
    Ok(scan.page(filter.limit))
}

/// Scans the table in the order of begin. Returns the matches so far when the time is over.
fn list_rows(reader: &mut Reader, filter: &RecordFilter) -> Result<Page<StoredRecord>, StoreError> {
    let until = Instant::now() + LIST_FOR;
    let mut after = filter.after.as_ref().and_then(parse_cursor).map_or(0, |(_, row)| row);
    let mut records = Vec::new();
    loop {
        let (scan, last) = reader.read(LIST, |view| view.list_piece(filter, after))?;
        records.extend(scan.into_iter().flat_map(|scan| scan.records));
        let is_over = Instant::now() >= until;
        if records.len() > filter.limit as usize || last.is_none() || is_over {
            let page = Page::new(records, filter.limit, |(_, cursor)| cursor.clone());
            let items = page.items.into_iter().map(|(stored, _)| stored).collect();
            return Ok(Page { items, next: page.next.or(last.map(|row| cursor_of(0, row))) });
        }
        after = last.unwrap_or(after);
    }
}

impl FileSnapshot<'_> {
    fn list_ids(&mut self, filter: &RecordFilter) -> rusqlite::Result<Scan> {
        let all = (RecordId::from_bytes([0; RecordId::LEN]), RecordId::from_bytes([0xff; RecordId::LEN]));
        let (low, high) = filter.prefix.as_ref().map_or(all, |prefix| prefix.bounds());
        // Nothing sorts before the empty string of bytes.
        let after = filter.after.as_ref().map_or(&[][..], |cursor| &cursor.0[..]);
        let params = params![low.as_bytes(), high.as_bytes(), after, ROWS_MAX];
        self.fitting(include_str!("sql/list_ids.sql"), params, filter)
    }

    fn list_dead_letters(&mut self, filter: &RecordFilter) -> rusqlite::Result<Scan> {
        let after = filter.after.as_ref().and_then(parse_cursor).map_or(0, |(_, row)| row);
        self.fitting(include_str!("sql/list_dead_letters.sql"), params![after, ROWS_MAX], filter)
    }

    fn list_open(&mut self, filter: &RecordFilter) -> rusqlite::Result<Scan> {
        let (at, row) = filter.after.as_ref().and_then(parse_cursor).unwrap_or((i64::MIN, 0));
        let state = filter.state.map(State::code);
        self.fitting(include_str!("sql/list_open.sql"), params![state, at, row, ROWS_MAX], filter)
    }

    /// Returns the matches among the next rows after `after`, and the last of these rows.
    fn list_piece(
        &mut self,
        filter: &RecordFilter,
        after: i64,
    ) -> rusqlite::Result<(Option<Scan>, Option<i64>)> {
        let Some(last) = self.row_after(after)? else { return Ok((None, None)) };
        let params = params![
            after,
            last,
            filter.tenant,
            filter.key,
            filter.method,
            filter.state.map(State::code),
            filter.created_from.map(Timestamp::as_micros),
            filter.before(self.now).map(Timestamp::as_micros),
            ROWS_MAX
        ];
        Ok((Some(self.fitting(include_str!("sql/list_rows.sql"), params, filter)?), Some(last)))
    }

    fn fitting(
        &mut self,
        sql: &str,
        params: impl rusqlite::Params,
        filter: &RecordFilter,
    ) -> rusqlite::Result<Scan> {
        let (now, by_id) = (self.now, filter.prefix.is_some());
        let fits = |stored: &StoredRecord| filter.fits(&stored.record, now);
        self.scan(sql, params, filter.limit, fits, |row| match by_id {
            true => Ok(Cursor(row.get::<_, Vec<u8>>(0)?.into())),
            false => position_cursor(row),
        })
    }

    /// Returns the last of the next rows that one piece of a scan covers; `None`: there are none.
    fn row_after(&mut self, after: i64) -> rusqlite::Result<Option<i64>> {
        let mut last = self.connection.prepare_cached(include_str!("sql/row_after.sql"))?;
        last.query_row(params![after, PIECE_ROWS], |row| row.get(0))
    }

    fn history(&mut self, id: RecordId) -> rusqlite::Result<Vec<HistoryLine>> {
        let mut history = self.connection.prepare_cached(include_str!("sql/history.sql"))?;
        let lines = history.query_map([id.as_bytes()], |row| {
            let what = HistoryKind::from_name(row.get_ref(1)?.as_str()?);
            Ok(HistoryLine { at: Timestamp::from_micros(row.get(0)?), what, detail: row.get(2)? })
        })?;
        lines.collect()
    }

    fn unknown_secret(
        &mut self,
        known: &str,
        after: i64,
    ) -> rusqlite::Result<(Option<SecretId>, Option<i64>)> {
        let Some(last) = self.row_after(after)? else { return Ok((None, None)) };
        let mut find = self.connection.prepare_cached(include_str!("sql/unknown_secret.sql"))?;
        let secret = find.query_row(params![after, last, known], |row| row.get(0)).optional()?;
        Ok((secret.map(SecretId::from_bytes), Some(last)))
    }

    fn count(&mut self) -> rusqlite::Result<RecordCounts> {
        let (mut by_state, mut all_open) = ([0; State::ALL.len()], 0);
        let mut open = self.connection.prepare_cached(include_str!("sql/count_open.sql"))?;
        let mut rows = open.query([INDEXED_MAX])?;
        while let Some(row) = rows.next()? {
            let (code, count) = (row.get::<_, i64>(0)?, row.get::<_, i64>(1)?);
            all_open += count;
            let state = u8::try_from(code).ok().and_then(State::from_code);
            match State::ALL.iter().position(|known| Some(*known) == state) {
                Some(at) => by_state[at] = count,
                // A newer release wrote them. They must not hide the others.
                None => tracing::warn!(
                    code,
                    rows = count,
                    "records in a state that this program does not know are not counted"
                ),
            }
        }
        let number = |sql: &str, params: &[&dyn ToSql]| {
            let mut statement = self.connection.prepare_cached(sql)?;
            statement.query_row(params, |row| row.get::<_, i64>(0))
        };
        let completed = match self.count_small(State::FINAL)? {
            Some(completed) => RowCount::Exact(completed),
            None => {
                let others = number(include_str!("sql/count_estimate.sql"), &[])? - all_open;
                RowCount::Estimated(others.max(0).cast_unsigned())
            }
        };
        let letters = number(include_str!("sql/count_dead_letters.sql"), &[&INDEXED_MAX])?;
        let effects = number(include_str!("sql/count_effects.sql"), &[&INDEXED_MAX])?;
        let mut oldest = self.connection.prepare_cached(include_str!("sql/oldest_unknown.sql"))?;
        let unknown = params![State::UNSETTLED.code(), INDEXED_MAX];
        let oldest: Option<i64> = oldest.query_row(unknown, |row| row.get(0))?;
        Ok(RecordCounts {
            by_state: std::array::from_fn(|at| match State::ALL[at] {
                State::FINAL => completed,
                _ => bounded_count(by_state[at]),
            }),
            dead_letters: bounded_count(letters),
            dead_effects: bounded_count(effects),
            oldest_unknown: oldest.map(|at| self.now.since(Timestamp::from_micros(at))),
        })
    }

    /// Counts records in one state if the table is small; `None` if it is not.
    fn count_small(&self, state: State) -> rusqlite::Result<Option<u64>> {
        let mut count = self.connection.prepare_cached(include_str!("sql/count_small.sql"))?;
        let (in_state, rows): (i64, i64) = count
            .query_row([i64::from(COUNTED_MAX), i64::from(state.code())], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?;
        Ok((rows <= i64::from(COUNTED_MAX)).then_some(in_state.cast_unsigned()))
    }
}

/// Returns a count that stopped at [`INDEXED_MAX`]: there are as many at least.
fn bounded_count(rows: i64) -> RowCount {
    match rows < INDEXED_MAX {
        true => RowCount::Exact(rows.cast_unsigned()),
        false => RowCount::Estimated(rows.cast_unsigned()),
    }
}

/// Rows up to which open records of a state, dead letters and dead effects are counted: some milliseconds of an index, and some
/// hundred for the unknown ones, whose rows are read. Gauges ask every minute, and operators wait for the same thread.
const INDEXED_MAX: i64 = 100_000;

/// Largest table whose completed records are counted: a millisecond. With more an estimate is good enough.
const COUNTED_MAX: u32 = 10_000;

const LIST: &str = "list";

/// Longest time for which a list without an index scans the table: an operator waits for it.
const LIST_FOR: Duration = Duration::from_secs(2);

/// Rows of one piece of a scan: some milliseconds, so that no snapshot keeps the log from starting over.
const PIECE_ROWS: u32 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_stopped_at_its_bound_is_an_estimate() {
        assert_eq!(bounded_count(0), RowCount::Exact(0));
        assert_eq!(bounded_count(INDEXED_MAX - 1), RowCount::Exact(99_999));
        assert_eq!(bounded_count(INDEXED_MAX), RowCount::Estimated(100_000), "or more");
    }
}
