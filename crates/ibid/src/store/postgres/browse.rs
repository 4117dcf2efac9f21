//! Questions of operators: lists, history, counts, and which secrets are still needed.

use std::time::{Duration, Instant};

use ibid_core::change::{History, HistoryKind, StoredRecord};
use ibid_core::fingerprint::SecretId;
use ibid_core::reap::{ReapCount, ReapTarget};
use ibid_core::record::State;
use ibid_core::row::UnreadableRow;
use ibid_core::scope::RecordId;
use ibid_core::store::{
    BoxFuture, BrowseStore, Page, PathPart, PathPattern, RecordCounts, RecordFilter, RowCount, StoreError,
};
use ibid_core::time::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::connection::Param;
use super::failure::store_error;
use super::read::{DuePosition, get, next_position};
use super::row::{self, SqlId};
use super::slow_read::SlowReader;
use super::{KIND, StoreCore};

impl BrowseStore for StoreCore {
    fn list(&self, filter: RecordFilter) -> BoxFuture<'_, Result<Page<StoredRecord>, StoreError>> {
        Box::pin(self.list_page(filter))
    }

    fn history(&self, id: RecordId) -> BoxFuture<'_, Result<Vec<(Timestamp, History)>, StoreError>> {
        const OP: &str = "read the history";
        Box::pin(async move {
            let sql = include_str!("sql/history.sql");
            let rows = self.ask_slow(OP, sql, &[(&SqlId(id), Type::UUID)]).await?;
            let line = |row: &Row| {
                let what = HistoryKind::from_name(get(OP, row, 1)?);
                Ok((Timestamp::from_micros(get(OP, row, 0)?), History { what, detail: get(OP, row, 2)? }))
            };
            rows.iter().map(line).collect()
        })
    }

    fn count(&self) -> BoxFuture<'_, Result<RecordCounts, StoreError>> {
        Box::pin(self.count_records())
    }

    fn count_reapable(&self, target: ReapTarget) -> BoxFuture<'_, Result<ReapCount, StoreError>> {
        Box::pin(self.count_reap_target(target))
    }

    fn find_unknown_secret(
        &self,
        known: Vec<SecretId>,
    ) -> BoxFuture<'_, Result<Option<SecretId>, StoreError>> {
        Box::pin(self.search_secret(known))
    }
}

/// The order that a list is read in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListOrder {
    /// Dead letters by id, through their own index.
    DeadLetters,
    /// Records that are pending, retryable or unknown, through the order of due records.
    Waiting,
    /// All records by id.
    Ids,
}

/// The statement that counts through indexes. Its columns are those of [`State::WAITING`], in their order.
pub(super) const COUNT: &str = include_str!("sql/count.sql");

/// Returns the codes of [`State::WAITING`], as [`COUNT`] takes them.
pub(super) fn waiting_codes() -> [i64; 3] {
    State::WAITING.map(|state| i64::from(state.code()))
}

/// Returns the parameters of [`COUNT`].
pub(super) fn waiting_params(codes: &[i64; 3]) -> [Param<'_>; 3] {
    let [pending, retryable, unknown] = codes;
    [(pending, Type::INT8), (retryable, Type::INT8), (unknown, Type::INT8)]
}

impl ListOrder {
    fn of(filter: &RecordFilter) -> ListOrder {
        let waits = filter.state.is_some_and(|state| State::WAITING.contains(&state));
        match (filter.dead_letter, waits) {
            (true, _) => ListOrder::DeadLetters,
            (false, true) => ListOrder::Waiting,
            (false, false) => ListOrder::Ids,
        }
    }

    fn sql(self) -> &'static str {
        match self {
            ListOrder::DeadLetters => include_str!("sql/list_dead.sql"),
            ListOrder::Waiting => include_str!("sql/list_waiting.sql"),
            ListOrder::Ids => include_str!("sql/list.sql"),
        }
    }
}

impl StoreCore {
    async fn list_page(&self, filter: RecordFilter) -> Result<Page<StoredRecord>, StoreError> {
        const OP: &str = "list";
        let order = ListOrder::of(&filter);
        let (low, high) = match filter.prefix.as_ref().map(|prefix| prefix.bounds()) {
            Some((low, high)) => (SqlId(low), SqlId(high)),
            None => (SqlId(ID_MIN), SqlId(ID_MAX)),
        };
        let from =
            filter.after.as_ref().map_or(Ok(DuePosition::START), |cursor| DuePosition::parse(OP, cursor))?;
        let (at, behind) = (Some(from.at).filter(|_| order == ListOrder::Waiting), SqlId(from.id));
        let state = filter.state.map(|state| i64::from(state.code()));
        let path = filter.path.as_ref().map(like);
        let slashes = filter.path.as_ref().and_then(PathPattern::slashes).map(i64::from);
        let created_from = filter.created_from.map(Timestamp::as_micros);
        let created_before = filter.created_before.map(Timestamp::as_micros);
        // An age beyond all time fits nothing, and the difference must not overflow in the server.
        let age = filter.older_than.map(|age| i64::try_from(age.as_micros()).unwrap_or(AGE_MAX).min(AGE_MAX));
        // One too many tells that there is a next page.
        let limit = i64::from(filter.limit) + 1;
        let params: [Param<'_>; 14] = [
            (&low, Type::UUID),
            (&high, Type::UUID),
            (&state, Type::INT8),
            (&filter.tenant, Type::TEXT),
            (&filter.key, Type::TEXT),
            (&filter.method, Type::TEXT),
            (&path, Type::TEXT),
            (&slashes, Type::INT8),
            (&created_from, Type::INT8),
            (&created_before, Type::INT8),
            (&age, Type::INT8),
            (&at, Type::INT8),
            (&behind, Type::UUID),
            (&limit, Type::INT8),
        ];
        let mut reader = self.slow_reader(OP).await?;
        let rows = reader.query(OP, order.sql(), &params).await?;
        let learnt = self.policies.learn(reader.connection(), row::policies_of(&rows)).await;
        learnt.map_err(|error| store_error(OP, error))?;
        let next = next_position(OP, &rows, filter.limit)?;
        Ok(Page { items: self.read_rows_of(OP, &rows, filter.limit), next })
    }

    async fn count_records(&self) -> Result<RecordCounts, StoreError> {
        const OP: &str = "count";
        let mut reader = self.slow_reader(OP).await?;
        let codes = waiting_codes();
        let rows = reader.query(OP, COUNT, &waiting_params(&codes)).await?;
        let Some(row) = rows.first() else { return Ok(RecordCounts::default()) };
        let counted = |column| get::<i64>(OP, row, column).map(i64::cast_unsigned);
        let waiting = [counted(0)?, counted(1)?, counted(2)?];
        let mut counts =
            RecordCounts { dead_letters: RowCount::Exact(counted(4)?), ..RecordCounts::default() };
        let oldest: Option<i64> = get(OP, row, 3)?;
        let now = Timestamp::from_micros(get(OP, row, 5)?);
        counts.oldest_unknown = oldest.map(|oldest| now.since(Timestamp::from_micros(oldest)));
        if get::<i64>(OP, row, 6)? <= SMALL_TABLE {
            counts.by_state = [RowCount::Exact(0); State::ALL.len()];
            for row in reader.query(OP, include_str!("sql/count_small.sql"), &[]).await? {
                let (code, rows): (i16, i64) = (get(OP, &row, 0)?, get(OP, &row, 1)?);
                let state = u8::try_from(code).ok().and_then(State::from_code);
                let state =
                    state.ok_or_else(|| StoreError::lasting(KIND, OP, UnreadableRow("an unknown state")))?;
                counts.by_state[index(state)] = RowCount::Exact(rows.cast_unsigned());
            }
        } else {
            let (codes, shares): (Option<Vec<i64>>, Option<Vec<f64>>) = (get(OP, row, 8)?, get(OP, row, 9)?);
            let total: Option<f64> = get(OP, row, 7)?;
            let estimate = estimates(total, codes.unwrap_or_default(), shares.unwrap_or_default());
            for state in [State::LEASED, State::FINAL] {
                counts.by_state[index(state)] = estimate(state);
            }
            for (state, rows) in State::WAITING.into_iter().zip(waiting) {
                counts.by_state[index(state)] = RowCount::Exact(rows);
            }
        }
        counts.dead_effects = RowCount::Exact(count_dead_effects(&mut reader, OP).await?);
        Ok(counts)
    }

    /// Reads all records, page by page.
    async fn search_secret(&self, known: Vec<SecretId>) -> Result<Option<SecretId>, StoreError> {
        const OP: &str = "look for secrets";
        let known: Vec<Vec<u8>> = known.iter().map(|id| id.to_bytes().to_vec()).collect();
        let (mut from, until) = (SqlId(ID_MIN), Instant::now() + SEARCH_MAX);
        while Instant::now() < until {
            let params: [Param<'_>; 3] =
                [(&known, Type::BYTEA_ARRAY), (&from, Type::UUID), (&SEARCH_PAGE, Type::INT8)];
            let rows = self.ask_slow(OP, include_str!("sql/secret_page.sql"), &params).await?;
            let Some(row) = rows.first() else { return Ok(None) };
            if let Some(id) = get::<Option<&[u8]>>(OP, row, 1)? {
                let id = id
                    .try_into()
                    .map_err(|_| StoreError::lasting(KIND, OP, UnreadableRow("not a secret's id")))?;
                return Ok(Some(SecretId::from_bytes(id)));
            }
            let Some(last) = get::<Option<SqlId>>(OP, row, 0)? else { return Ok(None) };
            from = last;
        }
        Err(StoreError::transient(KIND, OP, "the table is too large to look through in time"))
    }
}

async fn count_dead_effects(reader: &mut SlowReader, op: &'static str) -> Result<u64, StoreError> {
    let rows = reader.query(op, include_str!("sql/count_effects.sql"), &[]).await?;
    rows.first().map_or(Ok(0), |row| get::<i64>(op, row, 0).map(i64::cast_unsigned))
}

/// Estimates how many records are in a state: the share by the server's statistics, of all rows. A state that the statistics do
/// not list is rarer than they can see.
fn estimates(total: Option<f64>, codes: Vec<i64>, shares: Vec<f64>) -> impl Fn(State) -> RowCount {
    let listed: Vec<(i64, f64)> = codes.into_iter().zip(shares).collect();
    move |state| match (total, listed.is_empty()) {
        (Some(total), false) => {
            let share = listed.iter().find(|(code, _)| *code == i64::from(state.code()));
            RowCount::Estimated((total * share.map_or(0.0, |(_, share)| *share)).round() as u64)
        }
        _ => RowCount::Unknown,
    }
}

fn index(state: State) -> usize {
    State::ALL.iter().position(|one| *one == state).unwrap_or_default()
}

/// Returns the pattern as LIKE takes it.
fn like(pattern: &PathPattern) -> String {
    let mut like = String::new();
    for part in pattern.parts() {
        match part {
            PathPart::Some => like.push_str("_%"),
            PathPart::Text(text) => text.chars().for_each(|char| match char {
                '%' | '_' | '\\' => like.extend(['\\', char]),
                char => like.push(char),
            }),
        }
    }
    like
}

const ID_MIN: RecordId = RecordId::from_bytes([0; RecordId::LEN]);
const ID_MAX: RecordId = RecordId::from_bytes([0xff; RecordId::LEN]);

/// A hundred years in microseconds: no record is older.
const AGE_MAX: i64 = 100 * 366 * 86_400_000_000;

/// Bytes up to which a table is counted: some ten milliseconds.
const SMALL_TABLE: i64 = 16 << 20;

/// Records in one page of the search for secrets: far below the time limit of a slow read.
const SEARCH_PAGE: i64 = 20_000;

/// Time for the whole search: it is asked once, after a secret was taken out of the configuration.
const SEARCH_MAX: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_come_from_the_statistics() {
        let estimate = estimates(Some(1000.0), vec![3, 2], vec![0.9, 0.05]);
        assert_eq!(estimate(State::Completed), RowCount::Estimated(900));
        assert_eq!(estimate(State::InProgress), RowCount::Estimated(50));
        assert_eq!(estimates(Some(1000.0), vec![3], vec![1.0])(State::InProgress), RowCount::Estimated(0));
        assert_eq!(estimates(None, vec![], vec![])(State::Completed), RowCount::Unknown);
    }

    #[test]
    fn a_list_uses_the_index_that_fits_its_filter() {
        let dead = RecordFilter::default()
            .with(|filter| (filter.dead_letter, filter.state) = (true, Some(State::Unknown)));
        assert_eq!(ListOrder::of(&dead), ListOrder::DeadLetters);
        let of = |state| ListOrder::of(&RecordFilter::default().with(|filter| filter.state = state));
        assert_eq!(of(Some(State::Unknown)), ListOrder::Waiting);
        assert_eq!((of(Some(State::Completed)), of(None)), (ListOrder::Ids, ListOrder::Ids));
    }
}
