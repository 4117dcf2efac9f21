//! The SQL statements that write and read records, once per dialect, and a change applied through them.
//!
//! They run inside a caller's transaction (`transaction`, `outbox`, `operator`) and in the stores' own transactions.
//! `RecordColumns` has the values, and the `.sql` files in this folder name the columns. Like a store, these statements compare
//! versions and instants and do not interpret states. This module names no driver.

#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod column_limits;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub(crate) mod copy;
mod mysql;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use ibid_core::change::{BodyKind, Change, Expect, History, InstantChange, Stamp, StoredRecord};
use ibid_core::policy::Policy;
use ibid_core::record::{Nonce, Record, State, Version};
use ibid_core::row::{self, RECORD_COLUMNS, RecordColumns, RowCells, UnreadableRowError, bits, micros};
use ibid_core::scope::RecordId;
use ibid_core::sql::Type::{Bytes as Blob, I64};
use ibid_core::sql::{Dialect, Param, SqlError, SqlRow, SqlTx, Statement, Type, Value};
use ibid_core::store::{BoxFuture, SqlStore, StoreError, Work};
use ibid_core::time::Timestamp;
use parking_lot::Mutex;

/// A record as a transaction sees it.
#[derive(Debug)]
pub(crate) struct ReadRecord {
    pub(crate) stored: StoredRecord,
    /// The number of its policy: a change under the same rules names it again.
    pub(crate) policy: i64,
}

/// The store's demands on statements that write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteOptions {
    /// The store's clock, where statements can't read it themselves.
    pub(crate) now: Option<Timestamp>,
    /// `true` if the commit must survive a crash. The statement then raises the transaction's `synchronous_commit`, because
    /// the commit of the caller's session is what counts.
    must_be_durable: bool,
}

impl WriteOptions {
    pub(crate) fn of(store: &dyn SqlStore) -> WriteOptions {
        WriteOptions { now: store.now(), must_be_durable: store.must_be_durable() }
    }

    /// Returns the durability as the statements take it.
    pub(crate) fn lasts(self) -> Param<'static> {
        Param::Bool(self.must_be_durable)
    }
}

/// Runs `work` in one transaction and returns its result once the transaction has committed.
pub(crate) async fn run<T: Send + 'static>(
    store: &dyn SqlStore,
    work: impl for<'a> FnOnce(&'a mut dyn SqlTx) -> BoxFuture<'a, Result<T, SqlError>> + Send + 'static,
) -> Result<T, StoreError> {
    run_by(|work| store.work(work), work).await
}

/// Runs `work` that only reads and may be slow, and returns its result.
pub(crate) async fn run_read<T: Send + 'static>(
    store: &dyn SqlStore,
    work: impl for<'a> FnOnce(&'a mut dyn SqlTx) -> BoxFuture<'a, Result<T, SqlError>> + Send + 'static,
) -> Result<T, StoreError> {
    run_by(|work| store.read(work), work).await
}

async fn run_by<'s, T: Send + 'static>(
    run: impl FnOnce(Work) -> BoxFuture<'s, Result<(), StoreError>>,
    work: impl for<'a> FnOnce(&'a mut dyn SqlTx) -> BoxFuture<'a, Result<T, SqlError>> + Send + 'static,
) -> Result<T, StoreError> {
    let result = Arc::new(Mutex::new(None));
    let slot = result.clone();
    let work: Work = Box::new(move |tx| {
        Box::pin(async move {
            let value = work(tx).await?;
            *slot.lock() = Some(value);
            Ok(())
        })
    });
    run(work).await?;
    let value = result.lock().take();
    value.ok_or_else(|| StoreError::lasting("sql", "work", "the store did not run the work"))
}

/// Locks a record until the transaction ends; from then on the lock is the lease.
pub(crate) async fn lock(
    tx: &mut dyn SqlTx,
    id: &RecordId,
    now: Option<Timestamp>,
    lease: Duration,
) -> Result<Option<ReadRecord>, SqlError> {
    let statement = in_dialect(tx, &LOCK);
    let idle_ms = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX).min(IDLE_MS_MAX);
    let params = [Param::Bytes(id.as_bytes()), instant(now), Param::I64(idle_ms)];
    let rows = tx.query(statement, &params).await?;
    rows.into_iter().next().map(read_row).transpose()
}

/// Reads a record as the transaction sees it.
pub(crate) async fn read(
    tx: &mut dyn SqlTx,
    id: &RecordId,
    now: Option<Timestamp>,
) -> Result<Option<ReadRecord>, SqlError> {
    let statement = in_dialect(tx, &READ);
    let rows = tx.query(statement, &[Param::Bytes(id.as_bytes()), instant(now)]).await?;
    rows.into_iter().next().map(read_row).transpose()
}

/// Applies all of a change to the record that was stored `before`. Returns `None` if something else is stored than the change
/// expects.
pub(crate) async fn apply(
    tx: &mut dyn SqlTx,
    change: &Change,
    before: Option<&Record>,
    policy: i64,
    options: WriteOptions,
) -> Result<Option<Stamp>, SqlError> {
    let Some(columns) = RecordColumns::of(change, policy) else {
        return Err(SqlError::mismatch("a change that writes the record"));
    };
    let draft = columns.draft;
    let is_new_generation =
        draft.created != InstantChange::Keep || before.is_none_or(|before| before.birth != draft.birth);
    let cleared = before.filter(|_| change.clears_bodies || is_new_generation);
    let kinds_on_mysql = match cleared {
        Some(before) if tx.dialect() == Dialect::Mysql => {
            Some(mysql::find_bodies(tx, &change.id, before).await?)
        }
        _ => None,
    };
    let Some(now) = write_row(tx, change, &columns, options).await? else { return Ok(None) };
    let created_at = match (before, draft.created) {
        (Some(before), InstantChange::Keep) => before.created_at,
        _ => now,
    };
    match (cleared, kinds_on_mysql) {
        (Some(before), Some(kinds)) => mysql::clear_bodies(tx, &change.id, before, kinds).await?,
        (Some(before), None) => clear_bodies(tx, &change.id, before.birth, before.created_at).await?,
        (None, _) => {}
    }
    if before.is_some() && is_new_generation {
        clear_payloads(tx, &change.id).await?;
    }
    // A body apart that a smaller response replaces stays until its generation goes: readers take the one in the row.
    let apart = columns.body_apart().map(|data| (BodyKind::RESPONSE, data));
    for (kind, data) in
        apart.into_iter().chain(change.bodies.iter().map(|body| (body.kind.code(), &body.data)))
    {
        let statement = in_dialect(tx, &BODY_PUT);
        let [id, birth, born_at] = body_key(&change.id, draft.birth, created_at);
        tx.execute(statement, &[id, birth, born_at, Param::I64(i64::from(kind)), Param::Bytes(data)]).await?;
    }
    for line in &change.history {
        // The line has the instant of the write that it belongs to.
        add_history(tx, &change.id, line, Some(now)).await?;
    }
    Ok(Some(Stamp { now }))
}

async fn write_row(
    tx: &mut dyn SqlTx,
    change: &Change,
    columns: &RecordColumns<'_>,
    options: WriteOptions,
) -> Result<Option<Timestamp>, SqlError> {
    let mut params = columns.params().to_vec();
    let state = columns.draft.state;
    params.push(instant(options.now));
    match tx.dialect() {
        Dialect::Postgres => {
            let watched = Param::Bool(is_watched(state, columns.draft.due_in.is_some()));
            params.extend([options.lasts(), watched]);
        }
        Dialect::Sqlite => params.push(Param::Bool(is_unfinished(state))),
        Dialect::Mysql => params.push(options.lasts()),
    }
    let (statement, expected) = match change.expect {
        Expect::Absent => (&INSERT, None),
        Expect::Version(version) => (&UPDATE, Some((version, false))),
        Expect::Due(version) => (&UPDATE, Some((version, true))),
        Expect::Anything => return Err(SqlError::mismatch("a change that says what it expects")),
    };
    if let Some((version, must_be_due)) = expected {
        let [count, nonce] = version_params(version);
        params.extend([count, nonce, Param::Bool(must_be_due)]);
    }
    let statement = in_dialect(tx, statement);
    if tx.dialect() != Dialect::Mysql {
        return written_at(tx.query(statement, &params).await?);
    }
    let key = |version| {
        let [count, nonce] = version_params(version);
        [Param::Bytes(change.id.as_bytes()), count, nonce]
    };
    if let Some((version, must_be_due)) = expected {
        let lock = if must_be_due { &LOCK_DUE_ON_MYSQL } else { &VERSION_LOCK_ON_MYSQL };
        if tx.query(lock, &key(version)).await?.is_empty() {
            return Ok(None);
        }
    }
    tx.execute(statement, &params).await?;
    written_at(tx.query(&WRITTEN_ON_MYSQL, &key(columns.version)).await?)
}

/// Returns whether a record is in the order of due records: something is due, or it waits for upkeep, a retry or an operator. The
/// statements take it as a value, so that none of them interprets a state.
pub(crate) fn is_watched(state: State, is_due_ever: bool) -> bool {
    is_due_ever || State::WAITING.contains(&state)
}

/// Returns whether a record is in SQLite's order of open records, even if nothing of it is ever due.
pub(crate) fn is_unfinished(state: State) -> bool {
    state != State::FINAL
}

fn version_params(version: Version) -> [Param<'static>; 2] {
    [Param::I64(i64::from(version.count)), Param::I64(bits(version.nonce))]
}

/// Deletes all bodies of one generation.
async fn clear_bodies(
    tx: &mut dyn SqlTx,
    id: &RecordId,
    birth: Nonce,
    created_at: Timestamp,
) -> Result<(), SqlError> {
    let statement = in_dialect(tx, &BODY_CLEAR);
    tx.execute(statement, &body_key(id, birth, created_at)).await
}

/// Drops payload and result of the ended effects of a record that gets another generation.
async fn clear_payloads(tx: &mut dyn SqlTx, id: &RecordId) -> Result<(), SqlError> {
    if tx.dialect() == Dialect::Mysql {
        return mysql::clear_payloads(tx, id).await;
    }
    tx.execute(in_dialect(tx, &PAYLOAD_CLEAR), &[Param::Bytes(id.as_bytes())]).await
}

/// SQLite keys bodies by the record, PostgreSQL and MySQL by the generation and its first instant; the schemas say why.
fn body_key(id: &RecordId, birth: Nonce, created_at: Timestamp) -> [Param<'_>; 3] {
    [Param::Bytes(id.as_bytes()), Param::I64(bits(birth)), Param::I64(created_at.as_micros())]
}

/// Adds a line to a record's history.
pub(crate) async fn add_history(
    tx: &mut dyn SqlTx,
    id: &RecordId,
    line: &History,
    now: Option<Timestamp>,
) -> Result<(), SqlError> {
    let statement = in_dialect(tx, &HISTORY_ADD);
    let params =
        [Param::Bytes(id.as_bytes()), instant(now), Param::Text(line.what.name()), Param::Text(&line.detail)];
    tx.execute(statement, &params).await
}

fn written_at(rows: Vec<SqlRow>) -> Result<Option<Timestamp>, SqlError> {
    rows.into_iter().next().map(|mut row| row.i64().map(Timestamp::from_micros)).transpose()
}

/// Reads the columns of a record; behind them are the store's time and the policy.
fn read_row(mut row: SqlRow) -> Result<ReadRecord, SqlError> {
    let (policy, now) = (row.last()?, row.last()?);
    let (Value::Bytes(policy), Value::I64(now)) = (policy, now) else {
        return Err(SqlError::mismatch("the store's time and a policy"));
    };
    let policy = Policy::from_bytes(&policy).ok_or_else(|| SqlError::mismatch("a readable policy"))?;
    let mut number = 0;
    let read = row::read_record(&mut SqlCells { row: &mut row }, |named| {
        number = named;
        Ok(Arc::new(policy))
    });
    let (record, response) = read.map_err(|error| SqlError::mismatch(error.0))?;
    let now = Timestamp::from_micros(now);
    Ok(ReadRecord { stored: StoredRecord { record: Arc::new(record), response, now }, policy: number })
}

struct SqlCells<'a> {
    row: &'a mut SqlRow,
}

impl SqlCells<'_> {
    fn value(&mut self) -> Result<Value, UnreadableRowError> {
        self.row.value().map_err(|_| UnreadableRowError("a column is missing"))
    }
}

impl RowCells<'static> for SqlCells<'_> {
    fn integer(&mut self) -> Result<Option<i64>, UnreadableRowError> {
        match self.value()? {
            Value::Null => Ok(None),
            Value::I64(value) => Ok(Some(value)),
            _ => Err(UnreadableRowError("not a number")),
        }
    }

    fn text(&mut self) -> Result<Option<Cow<'static, str>>, UnreadableRowError> {
        match self.value()? {
            Value::Null => Ok(None),
            Value::Text(value) => Ok(Some(value.into())),
            _ => Err(UnreadableRowError("not text")),
        }
    }

    fn bytes(&mut self) -> Result<Option<Cow<'static, [u8]>>, UnreadableRowError> {
        match self.value()? {
            Value::Null => Ok(None),
            Value::Bytes(value) => Ok(Some(Cow::Owned(value.into()))),
            _ => Err(UnreadableRowError("not bytes")),
        }
    }
}

/// Reads a number that fits its type; PostgreSQL keeps unsigned 32 bits in signed ones.
pub(crate) fn number<T: TryFrom<u64>>(row: &mut SqlRow) -> Result<T, SqlError> {
    let value = row.i64()?;
    let unsigned = match u64::try_from(value) {
        Ok(value) => value,
        Err(_) => u64::from(
            i32::try_from(value).map_err(|_| SqlError::mismatch("a number in range"))?.cast_unsigned(),
        ),
    };
    T::try_from(unsigned).map_err(|_| SqlError::mismatch("a number in range"))
}

/// Reads a nonce from the signed type that databases have.
pub(crate) fn nonce(row: &mut SqlRow) -> Result<Nonce, SqlError> {
    row.i64().map(|bits| Nonce(bits.cast_unsigned()))
}

/// Returns a nonce as a parameter, with the same bits in the signed type that databases have.
pub(crate) fn nonce_param(nonce: Nonce) -> Param<'static> {
    Param::I64(bits(nonce))
}

/// Returns the store's time as a parameter: null where the statement reads the server's clock.
pub(crate) fn instant(now: Option<Timestamp>) -> Param<'static> {
    Param::maybe_i64(now.map(Timestamp::as_micros))
}

/// Returns an interval as a parameter, in microseconds: null for none.
pub(crate) fn interval(interval: Option<Duration>) -> Param<'static> {
    Param::maybe_i64(interval.map(micros))
}

/// Returns the code of a change to an instant as a parameter.
pub(crate) fn mark(mark: InstantChange) -> Param<'static> {
    Param::I64(mark.code().into())
}

/// One statement in each dialect.
pub(crate) struct DialectSql {
    pub(crate) postgres: Statement,
    pub(crate) sqlite: Statement,
    pub(crate) mysql: Statement,
}

impl DialectSql {
    pub(crate) const fn new(
        postgres: &'static str,
        sqlite: &'static str,
        mysql: &'static str,
        columns: &'static [Type],
    ) -> DialectSql {
        DialectSql {
            postgres: Statement { text: postgres, columns },
            sqlite: Statement { text: sqlite, columns },
            mysql: Statement { text: mysql, columns },
        }
    }

    pub(crate) const fn same(text: &'static str, columns: &'static [Type]) -> DialectSql {
        DialectSql::new(text, text, text, columns)
    }
}

/// Returns the statement in the transaction's dialect.
pub(crate) fn in_dialect(tx: &dyn SqlTx, both: &'static DialectSql) -> &'static Statement {
    match tx.dialect() {
        Dialect::Postgres => &both.postgres,
        Dialect::Sqlite => &both.sqlite,
        Dialect::Mysql => &both.mysql,
    }
}

/// Makes a [`DialectSql`] of three files with one name, in the folders `postgres`, `sqlite` and `mysql` under `$folder`. The
/// path is relative to the file that uses the macro.
macro_rules! in_all_dialects {
    ($folder:literal, $file:literal, $columns:expr) => {
        $crate::record_sql::DialectSql::new(
            include_str!(concat!($folder, "postgres/", $file)),
            include_str!(concat!($folder, "sqlite/", $file)),
            include_str!(concat!($folder, "mysql/", $file)),
            $columns,
        )
    };
}

pub(crate) use in_all_dialects;

/// The columns of [`read_row`].
const READ_COLUMNS: &[Type] = &{
    let mut columns = [Blob; RECORD_COLUMNS.len() + 2];
    let mut index = 0;
    while index < RECORD_COLUMNS.len() {
        columns[index] = RECORD_COLUMNS[index];
        index += 1;
    }
    columns[RECORD_COLUMNS.len()] = I64;
    columns
};

static LOCK: DialectSql = in_all_dialects!("", "lock.sql", READ_COLUMNS);
static READ: DialectSql = in_all_dialects!("", "read.sql", READ_COLUMNS);
static INSERT: DialectSql = in_all_dialects!("", "insert.sql", &[I64]);
static UPDATE: DialectSql = in_all_dialects!("", "update.sql", &[I64]);
static BODY_PUT: DialectSql = in_all_dialects!("", "body_put.sql", &[]);
static BODY_CLEAR: DialectSql = in_all_dialects!("", "body_clear.sql", &[]);
static PAYLOAD_CLEAR: DialectSql = in_all_dialects!("", "payload_clear.sql", &[]);
static HISTORY_ADD: DialectSql = in_all_dialects!("", "history_add.sql", &[]);

/// MySQL returns nothing from a statement that writes, so the row tells afterwards whether it was written.
static WRITTEN_ON_MYSQL: Statement = Statement { text: include_str!("mysql/written.sql"), columns: &[I64] };
static VERSION_LOCK_ON_MYSQL: Statement =
    Statement { text: include_str!("mysql/version_lock.sql"), columns: &[I64] };
static LOCK_DUE_ON_MYSQL: Statement = Statement { text: include_str!("mysql/lock_due.sql"), columns: &[I64] };

/// PostgreSQL keeps the setting as 32 bits of milliseconds.
const IDLE_MS_MAX: i64 = i32::MAX as i64;
