//! Questions of operators: lists, history, and which secrets are still needed.

use std::time::{Duration, Instant};

use ibid_core::change::{HistoryKind, HistoryLine, StoredRecord};
use ibid_core::fingerprint::SecretId;
use ibid_core::reap::{ReapCount, ReapTarget};
use ibid_core::record::State;
use ibid_core::row::UnreadableRowError;
use ibid_core::scope::RecordId;
use ibid_core::store::{
    BoxFuture, BrowseStore, Page, PathPart, PathPattern, RecordCounts, RecordFilter, StoreError,
};
use ibid_core::time::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::connection::Param;
use super::count::{COUNTED_MAX, SMALL_TABLE};
use super::error::store_error;
use super::read::{get, next_position};
use super::row::{self, SqlId};
use super::{KIND, PostgresCore, policies};
use crate::store::record_pages::ListPosition;
use crate::store::server_pools::PoolTarget;

impl BrowseStore for PostgresCore {
    fn list(&self, filter: RecordFilter) -> BoxFuture<'_, Result<Page<StoredRecord>, StoreError>> {
        let piece_rows = if self.target.sizes().slow == 0 { SHARED_PIECE_ROWS } else { PIECE_ROWS };
        Box::pin(self.list_page(filter, LIST_FOR, piece_rows))
    }

    fn history(&self, id: RecordId) -> BoxFuture<'_, Result<Vec<HistoryLine>, StoreError>> {
        const OP: &str = "read the history";
        Box::pin(async move {
            let sql = include_str!("sql/history.sql");
            let rows = self.ask_slow(OP, sql, &[(&SqlId(id), Type::UUID)]).await?;
            let line = |row: &Row| {
                let what = HistoryKind::from_name(get(OP, row, 1)?);
                let at = Timestamp::from_micros(get(OP, row, 0)?);
                Ok(HistoryLine { at, what, detail: get(OP, row, 2)? })
            };
            rows.iter().map(line).collect()
        })
    }

    fn count(&self) -> BoxFuture<'_, Result<RecordCounts, StoreError>> {
        Box::pin(self.count_records(COUNTED_MAX, SMALL_TABLE))
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

    /// Returns the statement that finds where a piece ends.
    fn piece_sql(self) -> &'static str {
        match self {
            ListOrder::DeadLetters => include_str!("sql/list_piece_dead.sql"),
            ListOrder::Waiting => include_str!("sql/list_piece_waiting.sql"),
            ListOrder::Ids => include_str!("sql/list_piece.sql"),
        }
    }
}

/// The parameters of a list that a filter sets, those apart that are text in both.
struct FilterParams {
    low: SqlId,
    high: SqlId,
    state: Option<i64>,
    path: Option<String>,
    slashes: Option<i64>,
    created_from: Option<i64>,
    created_before: Option<i64>,
    age: Option<i64>,
}

impl FilterParams {
    fn of(filter: &RecordFilter) -> FilterParams {
        let (low, high) = filter.prefix.as_ref().map_or((ID_MIN, ID_MAX), |prefix| prefix.bounds());
        FilterParams {
            low: SqlId(low),
            high: SqlId(high),
            state: filter.state.map(|state| i64::from(state.code())),
            path: filter.path.as_ref().map(like),
            slashes: filter.path.as_ref().and_then(PathPattern::slashes).map(i64::from),
            created_from: filter.created_from.map(Timestamp::as_micros),
            created_before: filter.created_before.map(Timestamp::as_micros),
            // An age beyond all time fits nothing, and the difference must not overflow in the server.
            age: filter.older_than.map(|age| i64::try_from(age.as_micros()).unwrap_or(AGE_MAX).min(AGE_MAX)),
        }
    }
}

impl PostgresCore {
    /// Returns one page of a list. No index serves all of a filter, so it reads its order in pieces, and ends the page after
    /// the piece in which the time is over.
    async fn list_page(
        &self,
        filter: RecordFilter,
        time_max: Duration,
        piece_rows: i64,
    ) -> Result<Page<StoredRecord>, StoreError> {
        const OP: &str = "list";
        let order = ListOrder::of(&filter);
        let until = Instant::now() + time_max;
        let mut from = ListPosition::parse(KIND, OP, filter.after.as_ref())?;
        let FilterParams { low, high, state, path, slashes, created_from, created_before, age } =
            FilterParams::of(&filter);
        let mut reader = self.slow_reader(OP).await?;
        let mut records = Vec::new();
        loop {
            let (at, behind) = (from.at, SqlId(from.id));
            let piece: [Param<'_>; 6] = [
                (&low, Type::UUID),
                (&high, Type::UUID),
                (&state, Type::INT8),
                (&at, Type::INT8),
                (&behind, Type::UUID),
                (&piece_rows, Type::INT8),
            ];
            let ends = reader.query(OP, order.piece_sql(), &piece).await?;
            let end = ends.first().map(|row| read_position(OP, row)).transpose()?;
            let ListPosition { at: last_at, id: last } =
                end.unwrap_or(ListPosition { at: i64::MAX, id: ID_MAX });
            let last = SqlId(last);
            let missing = filter.limit - u32::try_from(records.len()).unwrap_or(filter.limit);
            // One too many tells that there is a next page.
            let limit = i64::from(missing) + 1;
            let params: [Param<'_>; 16] = [
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
                (&last_at, Type::INT8),
                (&last, Type::UUID),
            ];
            let rows = reader.query(OP, order.sql(), &params).await?;
            let learnt = policies::learn(&self.policies, reader.connection(), row::policies_of(&rows)).await;
            let policies = learnt.map_err(|error| store_error(OP, error))?;
            let next = next_position(OP, &rows, missing)?;
            records.extend(row::read_rows(OP, &policies, &rows, missing));
            // Full, or the last piece.
            let Some(end) = end.filter(|_| next.is_none()) else {
                return Ok(Page { items: records, next });
            };
            from = end;
            if records.len() >= filter.limit as usize || Instant::now() >= until {
                return Ok(Page { items: records, next: Some(from.cursor()) });
            }
        }
    }

    /// Reads all records, page by page, however long that takes: a start must not go on without the answer.
    async fn search_secret(&self, known: Vec<SecretId>) -> Result<Option<SecretId>, StoreError> {
        const OP: &str = "look for secrets";
        let known: Vec<Vec<u8>> = known.iter().map(|id| id.to_bytes().to_vec()).collect();
        let mut from = SqlId(ID_MIN);
        loop {
            let params: [Param<'_>; 3] =
                [(&known, Type::BYTEA_ARRAY), (&from, Type::UUID), (&SEARCH_PAGE, Type::INT8)];
            let rows = self.ask_slow(OP, include_str!("sql/secret_page.sql"), &params).await?;
            let Some(row) = rows.first() else { return Ok(None) };
            if let Some(id) = get::<Option<&[u8]>>(OP, row, 1)? {
                let id = id
                    .try_into()
                    .map_err(|_| StoreError::lasting(KIND, OP, UnreadableRowError("not a secret's id")))?;
                return Ok(Some(SecretId::from_bytes(id)));
            }
            let Some(last) = get::<Option<SqlId>>(OP, row, 0)? else { return Ok(None) };
            from = last;
        }
    }
}

/// Reads the position at which a piece of a list ends.
fn read_position(op: &'static str, row: &Row) -> Result<ListPosition, StoreError> {
    let SqlId(id) = get(op, row, 1)?;
    Ok(ListPosition { at: get(op, row, 0)?, id })
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

/// Records in one page of the search for secrets: far below the time limit of a slow read.
const SEARCH_PAGE: i64 = 20_000;

/// Records in one piece of a list: far below the time limit of a slow read, also from disk.
const PIECE_ROWS: i64 = 10_000;

/// Records in one piece of a list where slow reads share their connection. Their time limit is an eighth there, and a
/// server that is busy otherwise was seen to need longer for [`PIECE_ROWS`].
const SHARED_PIECE_ROWS: i64 = 1000;

/// Time after which a page of a list ends with what was found: an operator waits for it.
const LIST_FOR: Duration = Duration::from_secs(4);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_list_returns_what_it_found_in_time() {
        use crate::store::postgres::{PostgresOptions, PostgresStore};
        use ibid_testkit::contract::{TestRecord, draft, insert, put};

        const PIECE: i64 = 100;
        let server = ibid_testkit::postgres::Postgres::shared();
        // One for each order of a list: of ids, of dead letters, and of records that wait.
        for (state, flags, chosen) in [
            (State::Completed, 0, None),
            (State::Completed, 1, None),
            (State::Unknown, 0, Some(State::Unknown)),
        ] {
            let database = server.create_database();
            let url = server.url_for(&database);
            let store = PostgresStore::open(&url, PostgresOptions::default()).await.expect("it opens");
            let name = TestRecord::fresh();
            put(&store, &insert(&name, draft(&name, state))).await;
            // Copies that fill three pieces and a bit, all at one instant. Two of them match, in the first piece and in the last.
            let copies = format!(
                "create temp table copy as select r.*, n from ibid_record r, generate_series(1, {}) n;
                 update copy set id = lpad(to_hex(n), 32, '0')::uuid, key = n, flags = {flags};
                 update copy set tenant = 'ours' where n in (5, {});
                 alter table copy drop column n;
                 delete from ibid_record;
                 insert into ibid_record select * from copy",
                3 * PIECE + 10,
                3 * PIECE + 5
            );
            server.sql(&database, &copies);
            let list = async |after, limit, time_max| {
                let filter = RecordFilter::default().with(|filter| {
                    (filter.tenant, filter.after, filter.limit) = (Some("ours".to_owned()), after, limit);
                    (filter.dead_letter, filter.state) = (flags == 1, chosen);
                });
                store.core.list_page(filter, time_max, PIECE).await.expect("a page")
            };
            // One piece in each page if there is no time at all.
            let (mut found, mut after) = (Vec::new(), None);
            loop {
                let page = list(after, 10, Duration::ZERO).await;
                found.push(page.items.len());
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(found, [1, 0, 0, 1], "{state:?}");
            assert_eq!(list(None, 10, LIST_FOR).await.items.len(), 2, "one page if there is time");
            let first = list(None, 1, LIST_FOR).await;
            assert_eq!((first.items.len(), list(first.next, 1, LIST_FOR).await.items.len()), (1, 1));
        }
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
