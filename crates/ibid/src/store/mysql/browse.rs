//! Questions of operators: lists, history, counts, and which secrets are still needed. The server limits their time.

use std::time::{Duration, Instant};

use ibid_core::change::{HistoryKind, HistoryLine, StoredRecord};
use ibid_core::fingerprint::SecretId;
use ibid_core::reap::{ReapCount, ReapTarget};
use ibid_core::record::State;
use ibid_core::row::UnreadableRowError;
use ibid_core::scope::RecordId;
use ibid_core::sql::Param;
use ibid_core::store::{
    BoxFuture, BrowseStore, Page, PathPart, PathPattern, RecordCounts, RecordFilter, RowCount, StoreError,
};
use ibid_core::time::Timestamp;

use super::connection::MysqlConnection;
use super::error::{self, store_error};
use super::read::{next_position, statement};
use super::row::{self, DbRow};
use super::{KIND, MysqlCore, policies};
use crate::store::record_pages::ListPosition;

impl BrowseStore for MysqlCore {
    fn list(&self, filter: RecordFilter) -> BoxFuture<'_, Result<Page<StoredRecord>, StoreError>> {
        Box::pin(self.list_page(filter, LIST_FOR))
    }

    fn history(&self, id: RecordId) -> BoxFuture<'_, Result<Vec<HistoryLine>, StoreError>> {
        const OP: &str = "read the history";
        Box::pin(async move {
            let rows =
                self.ask_slow(OP, include_str!("sql/history.sql"), &[Param::Bytes(id.as_bytes())]).await?;
            let line = |row: &DbRow| {
                let what = HistoryKind::from_name(&row::text(OP, row, 1)?);
                let detail = row::text(OP, row, 2)?;
                Ok(HistoryLine { at: Timestamp::from_micros(row::number(OP, row, 0)?), what, detail })
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

/// Returns the statement of a list: by the index of dead letters, by the order of due records for states that few records
/// have, or by id.
fn list_sql(filter: &RecordFilter) -> &'static str {
    let waits = filter.state.is_some_and(|state| State::WAITING.contains(&state));
    match (filter.dead_letter, waits) {
        (true, _) => include_str!("sql/list_dead.sql"),
        (false, true) => include_str!("sql/list_waiting.sql"),
        (false, false) => LIST_BY_ID,
    }
}

impl MysqlCore {
    /// Returns one page of a list. If no index serves its filter, it reads the table in pieces, and ends the page after the
    /// piece in which the time is over.
    async fn list_page(
        &self,
        filter: RecordFilter,
        time_max: Duration,
    ) -> Result<Page<StoredRecord>, StoreError> {
        const OP: &str = "list";
        let (sql, until) = (list_sql(&filter), Instant::now() + time_max);
        let (low, high) = filter.prefix.as_ref().map_or((ID_MIN, ID_MAX), |prefix| prefix.bounds());
        let mut from = ListPosition::parse(KIND, OP, filter.after.as_ref())?;
        let path = filter.path.as_ref().map(like);
        let slashes = filter.path.as_ref().and_then(PathPattern::slashes).map(i64::from);
        // An age beyond all time fits nothing, and the difference must not overflow in the server.
        let age = filter.older_than.map(|age| i64::try_from(age.as_micros()).unwrap_or(AGE_MAX).min(AGE_MAX));
        let mut connection = self.pools.slow(OP).await?;
        let mut records = Vec::new();
        loop {
            let end = match sql == LIST_BY_ID {
                true => piece_end(&mut connection, OP, low, high, from.id).await?,
                false => None,
            };
            let last = end.unwrap_or(high);
            let missing = filter.limit - u32::try_from(records.len()).unwrap_or(filter.limit);
            let params = [
                Param::Bytes(low.as_bytes()),
                Param::Bytes(last.as_bytes()),
                Param::maybe_i64(filter.state.map(|state| i64::from(state.code()))),
                Param::maybe_text(filter.tenant.as_deref()),
                Param::maybe_text(filter.key.as_deref()),
                Param::maybe_text(filter.method.as_deref()),
                Param::maybe_text(path.as_deref()),
                Param::maybe_i64(slashes),
                Param::maybe_i64(filter.created_from.map(Timestamp::as_micros)),
                Param::maybe_i64(filter.created_before.map(Timestamp::as_micros)),
                Param::maybe_i64(age),
                Param::I64(from.at),
                Param::Bytes(from.id.as_bytes()),
                // One too many tells that there is a next page.
                Param::I64(i64::from(missing) + 1),
            ];
            let rows = read_slowly(&mut connection, OP, &statement(OP, sql, &params)?).await?;
            let learnt = policies::learn(&self.policies, &mut connection, row::policies_of(&rows)).await;
            let policies = learnt.map_err(|error| store_error(OP, error))?;
            let next = next_position(OP, &rows, missing)?;
            records.extend(row::read_rows(OP, &policies, &rows, missing));
            // Full, or the last piece.
            let Some(end) = end.filter(|_| next.is_none()) else { return Ok(Page { items: records, next }) };
            from = ListPosition { at: 0, id: end };
            if records.len() >= filter.limit as usize || Instant::now() >= until {
                return Ok(Page { items: records, next: Some(from.cursor()) });
            }
        }
    }

    async fn count_records(&self) -> Result<RecordCounts, StoreError> {
        const OP: &str = "count";
        let mut connection = self.pools.slow(OP).await?;
        let sizes = read_slowly(&mut connection, OP, include_str!("sql/table_size.sql")).await?;
        let (rows, bytes) = match sizes.first() {
            Some(row) => (row::optional(OP, row, 0)?.unwrap_or(0), row::optional(OP, row, 1)?.unwrap_or(0)),
            None => (0, 0),
        };
        let is_small = bytes <= SMALL_TABLE;
        let [pending, retryable, unknown] = State::WAITING.map(|state| Param::I64(i64::from(state.code())));
        let leased = Param::I64(i64::from(State::LEASED.code()));
        let by_state = match is_small {
            true => include_str!("sql/count_small.sql").to_owned(),
            false => statement(OP, include_str!("sql/count.sql"), &[pending, retryable, unknown, leased])?,
        };
        let mut counts =
            RecordCounts { by_state: [RowCount::Exact(0); State::ALL.len()], ..RecordCounts::default() };
        let mut counted = 0;
        for row in read_slowly(&mut connection, OP, &by_state).await? {
            let (code, rows) = (row::number(OP, &row, 0)?, row::number(OP, &row, 1)?.cast_unsigned());
            counted += rows;
            match u8::try_from(code).ok().and_then(State::from_code) {
                Some(state) => counts.by_state[index(state)] = RowCount::Exact(rows),
                // A newer release wrote them. They must not hide the others.
                None => {
                    tracing::warn!(
                        code,
                        rows,
                        "records in a state that this program does not know are not counted"
                    );
                }
            }
        }
        if !is_small {
            // All others are completed; how many rows there are in all is an estimate of the server.
            counts.by_state[index(State::FINAL)] =
                RowCount::Estimated(rows.cast_unsigned().saturating_sub(counted));
        }
        let open =
            read_slowly(&mut connection, OP, &statement(OP, include_str!("sql/count_open.sql"), &[unknown])?)
                .await?;
        if let Some(row) = open.first() {
            let exact =
                |column| row::number(OP, row, column).map(|rows| RowCount::Exact(rows.cast_unsigned()));
            (counts.dead_letters, counts.dead_effects) = (exact(0)?, exact(1)?);
            let now = Timestamp::from_micros(row::number(OP, row, 3)?);
            let oldest = row::optional(OP, row, 2)?.map(Timestamp::from_micros);
            counts.oldest_unknown = oldest.map(|oldest| now.since(oldest));
        }
        Ok(counts)
    }

    /// Reads all records, page by page, however long that takes: a start must not go on without the answer.
    async fn search_secret(&self, known: Vec<SecretId>) -> Result<Option<SecretId>, StoreError> {
        const OP: &str = "look for secrets";
        let mut from = ID_MIN;
        loop {
            let params = [Param::Bytes(from.as_bytes()), Param::I64(SEARCH_PAGE)];
            let rows = self.ask_slow(OP, include_str!("sql/secret_page.sql"), &params).await?;
            for row in &rows {
                let Ok(secret) = row::bytes(OP, row, 1) else { continue };
                let id: [u8; SecretId::LEN] = secret
                    .as_ref()
                    .try_into()
                    .map_err(|_| StoreError::lasting(KIND, OP, UnreadableRowError("not a secret's id")))?;
                let secret = SecretId::from_bytes(id);
                if !known.contains(&secret) {
                    return Ok(Some(secret));
                }
            }
            match rows.iter().map(|row| row::id(OP, row, 0)).collect::<Result<Vec<_>, _>>()?.into_iter().max()
            {
                Some(last) => from = last,
                None => return Ok(None),
            }
        }
    }

    /// Runs one statement that may be slow, for [`TIME_MAX`] at most.
    pub(super) async fn ask_slow(
        &self,
        op: &'static str,
        sql: &'static str,
        params: &[Param<'_>],
    ) -> Result<Vec<DbRow>, StoreError> {
        let text = statement(op, sql, params)?;
        read_slowly(&mut *self.pools.slow(op).await?, op, &text).await
    }
}

/// Returns the last id of the next piece of a list; `None` if it is the last piece.
async fn piece_end(
    connection: &mut MysqlConnection,
    op: &'static str,
    low: RecordId,
    high: RecordId,
    behind: RecordId,
) -> Result<Option<RecordId>, StoreError> {
    let params = [
        Param::Bytes(low.as_bytes()),
        Param::Bytes(high.as_bytes()),
        Param::Bytes(behind.as_bytes()),
        Param::I64(PIECE_ROWS - 1),
    ];
    let text = statement(op, include_str!("sql/list_piece.sql"), &params)?;
    let rows = read_slowly(connection, op, &text).await?;
    rows.first().map(|row| row::id(op, row, 0)).transpose()
}

/// Runs one `select` within the time limit, which the server keeps.
pub(super) async fn read_slowly(
    connection: &mut MysqlConnection,
    op: &'static str,
    text: &str,
) -> Result<Vec<DbRow>, StoreError> {
    let text = limit_time(text, connection.server.is_mariadb);
    connection.run(&text).await.map_err(|error| match error::is_timeout(&error) {
        true => StoreError::lasting(KIND, op, MysqlTooSlow),
        false => store_error(op, error),
    })
}

/// Returns the statement with its time limit. Each server has its own word for it.
fn limit_time(text: &str, is_mariadb: bool) -> String {
    let seconds = TIME_MAX.as_secs();
    match is_mariadb {
        true => format!("set statement max_statement_time = {seconds} for {}", without_comments(text)),
        false => {
            let text = without_comments(text);
            let rest = text.strip_prefix("select").unwrap_or(&text);
            format!("select /*+ max_execution_time({}) */{rest}", 1000 * seconds)
        }
    }
}

fn without_comments(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.starts_with("--"));
    lines.collect::<Vec<_>>().join("\n").trim().to_owned()
}

/// A read that took too long.
#[derive(Debug, thiserror::Error)]
#[error(
    "reading the table took longer than {}s: list dead letters, or one of the states `pending`, `retryable` and \
     `unknown`, or give the first digits of an id",
    TIME_MAX.as_secs()
)]
struct MysqlTooSlow;

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

/// Time limit of one slow read. An operator waits no longer, and a longer snapshot would keep the server from removing old
/// versions of rows.
const TIME_MAX: Duration = Duration::from_secs(8);

/// Records in one page of the search for secrets: far below the time limit of a slow read.
const SEARCH_PAGE: i64 = 20_000;

const LIST_BY_ID: &str = include_str!("sql/list.sql");

/// Records in one piece of a list that no index serves: far below the time limit of a slow read, also from disk.
const PIECE_ROWS: i64 = 10_000;

/// Time after which a page of such a list ends with what was found: an operator waits for it.
const LIST_FOR: Duration = Duration::from_secs(4);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_gets_its_own_time_limit() {
        assert_eq!(
            limit_time("-- A list.\nselect 1\n", true),
            "set statement max_statement_time = 8 for select 1"
        );
        assert_eq!(limit_time("select 1", false), "select /*+ max_execution_time(8000) */ 1");
    }

    #[tokio::test]
    async fn a_list_without_an_index_returns_what_it_found_in_time() {
        use crate::store::mysql::{MysqlOptions, MysqlStore};
        use ibid_testkit::contract::{TestRecord, draft, insert, put};

        let server = ibid_testkit::mariadb::MariaDb::shared();
        let database = server.create_database();
        let store =
            MysqlStore::open(&server.url_for(&database), MysqlOptions::default()).await.expect("it opens");
        let name = TestRecord::fresh();
        put(&store, &insert(&name, draft(&name, State::Completed))).await;
        // Copies that fill three pieces and a bit. Two of them match, in the first piece and in the last.
        let columns =
            "birth, created_at, written_at, policy, nonce, count, state, flags, method, path, `key`";
        let copies = format!(
            "insert into ibid_record (id, tenant, {columns})
             select unhex(lpad(hex(n.seq), 32, '0')), if(n.seq in (5, {}), 'ours', r.tenant), {columns}
             from ibid_record r, seq_1_to_{} n;
             delete from ibid_record where id = x'{}'",
            3 * PIECE_ROWS + 50,
            3 * PIECE_ROWS + 100,
            name.id
        );
        server.sql(&database, &copies);
        let list = async |after, limit, time_max| {
            let filter = RecordFilter::default().with(|filter| {
                (filter.tenant, filter.after, filter.limit) = (Some("ours".to_owned()), after, limit);
            });
            store.core.list_page(filter, time_max).await.expect("a page")
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
        assert_eq!(found, [1, 0, 0, 1]);
        assert_eq!(list(None, 10, LIST_FOR).await.items.len(), 2, "one page if there is time");
        let first = list(None, 1, LIST_FOR).await;
        assert_eq!((first.items.len(), list(first.next, 1, LIST_FOR).await.items.len()), (1, 1));
    }

    #[test]
    fn a_list_uses_the_index_that_fits_its_filter() {
        let of = |state, dead_letter| {
            let filter = RecordFilter::default()
                .with(|filter| (filter.state, filter.dead_letter) = (state, dead_letter));
            list_sql(&filter)
                .split_once("force index (")
                .and_then(|(_, rest)| rest.split_once(')'))
                .map(|(name, _)| name)
        };
        assert_eq!(of(Some(State::Unknown), true), Some("ibid_record_reap"));
        assert_eq!(of(Some(State::Unknown), false), Some("ibid_record_due"));
        assert_eq!((of(Some(State::Completed), false), of(None, false)), (Some("primary"), Some("primary")));
    }
}
