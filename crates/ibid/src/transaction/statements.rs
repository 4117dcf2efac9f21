//! A Change applied through a caller's transaction: ibid's own statements, in the dialect of that transaction.
//!
//! Like a store it compares versions and instants and holds no opinion on states. It must not know any driver.

use std::sync::Arc;
use std::time::Duration;

use ibid_core::change::{Change, Draft, Expect, History, InstantChange, Stamp, StoredRecord};
use ibid_core::fingerprint::Fingerprint;
use ibid_core::policy::Policy;
use ibid_core::record::{Flags, Nonce, Record, RecordDetails, State, Version};
use ibid_core::scope::{Identity, RecordId};
use ibid_core::sql::Type::{Bytes as Blob, I64, Text};
use ibid_core::sql::{Dialect, Param, SqlError, SqlRow, SqlTx, Statement, Type};
use ibid_core::store::SqlStore;
use ibid_core::time::Timestamp;

/// A record as a caller's transaction holds it.
#[derive(Debug)]
pub(crate) struct Locked {
    pub(crate) stored: StoredRecord,
    /// The number of its policy: a change under the same rules names it again.
    pub(crate) policy: i64,
}

/// What a store asks of the statements that write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteOptions {
    /// Its clock, where statements can't read it themselves.
    pub(crate) now: Option<Timestamp>,
    /// Whether the commit must survive a crash. Whoever writes raises the transaction's `synchronous_commit` then, for it
    /// is the commit of the caller's session that counts.
    lasts: bool,
}

impl WriteOptions {
    pub(crate) fn of(store: &dyn SqlStore) -> WriteOptions {
        WriteOptions { now: store.now(), lasts: store.must_be_durable() }
    }

    /// As the statements take it.
    pub(crate) fn lasts(self) -> Param<'static> {
        Param::Bool(self.lasts)
    }
}

/// Locks a record until the transaction ends; from then on the lock is the lease.
pub(crate) async fn lock(
    tx: &mut dyn SqlTx,
    id: &RecordId,
    now: Option<Timestamp>,
    lease: Duration,
) -> Result<Option<Locked>, SqlError> {
    let statement = of(tx, &LOCK);
    let idle_ms = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX).min(IDLE_MS_MAX);
    let params = [Param::Bytes(id.as_bytes()), instant(now), Param::I64(idle_ms)];
    let rows = tx.query(statement, &params).await?;
    rows.into_iter().next().map(|row| locked(*id, row)).transpose()
}

/// Reads a record as the transaction sees it.
pub(crate) async fn read(
    tx: &mut dyn SqlTx,
    id: &RecordId,
    now: Option<Timestamp>,
) -> Result<Option<Locked>, SqlError> {
    let statement = of(tx, &READ);
    let rows = tx.query(statement, &[Param::Bytes(id.as_bytes()), instant(now)]).await?;
    rows.into_iter().next().map(|row| locked(*id, row)).transpose()
}

/// Writes a Change of what stood `before`, all of it; none if something else is stored than it expects.
pub(crate) async fn apply(
    tx: &mut dyn SqlTx,
    change: &Change,
    before: Option<&Record>,
    policy: i64,
    terms: WriteOptions,
) -> Result<Option<Stamp>, SqlError> {
    let Some(draft) = &change.draft else {
        return Err(SqlError::wrong("a change that writes the record"));
    };
    let written = match change.expect {
        Expect::Absent => insert(tx, change, draft, policy, terms).await?,
        Expect::Version(version) => update(tx, change, draft, policy, (version, false), terms).await?,
        Expect::Due(version) => update(tx, change, draft, policy, (version, true), terms).await?,
        Expect::Anything => return Err(SqlError::wrong("a change that says what it expects")),
    };
    let Some(at) = written else { return Ok(None) };
    // SQLite keeps bodies by the record's row, PostgreSQL by the generation; its schema says why.
    let dialect = tx.dialect();
    let whose = |created_at: Timestamp| match dialect {
        Dialect::Sqlite => Param::Bytes(change.id.as_bytes()),
        Dialect::Postgres => Param::I64(created_at.as_micros()),
    };
    let old = before.map(|before| (whose(before.created_at), bits(before.birth)));
    let another =
        before.is_some_and(|before| before.birth != draft.birth) || draft.created != InstantChange::Keep;
    let born_at =
        before.filter(|_| draft.created == InstantChange::Keep).map_or(at, |before| before.created_at);
    let whose = whose(born_at);
    if let Some((whose, birth)) = old.filter(|_| change.clears_bodies || another) {
        let statement = of(tx, &BODY_CLEAR);
        tx.execute(statement, &[whose, birth]).await?;
    }
    for body in &change.bodies {
        let statement = of(tx, &BODY_PUT);
        let kind = Param::I64(i64::from(body.kind.code()));
        tx.execute(statement, &[whose, bits(draft.birth), kind, Param::Bytes(&body.data)]).await?;
    }
    for line in &change.history {
        note(tx, &change.id, line, terms.now).await?;
    }
    Ok(Some(Stamp { now: at }))
}

/// Adds a line to a record's history.
pub(crate) async fn note(
    tx: &mut dyn SqlTx,
    id: &RecordId,
    line: &History,
    now: Option<Timestamp>,
) -> Result<(), SqlError> {
    let statement = of(tx, &EVENT_ADD);
    let what = Param::I64(i64::from(line.what.code()));
    let params = [Param::Bytes(id.as_bytes()), instant(now), what, Param::Text(&line.detail)];
    tx.execute(statement, &params).await.map(drop)
}

async fn insert(
    tx: &mut dyn SqlTx,
    change: &Change,
    draft: &Draft,
    policy: i64,
    terms: WriteOptions,
) -> Result<Option<Timestamp>, SqlError> {
    let statement = of(tx, &INSERT);
    let (version, note) = (change.version(), draft.note.to_bytes());
    let fingerprint = draft.fingerprint.as_ref().map(Fingerprint::to_bytes);
    let params = [
        Param::Bytes(change.id.as_bytes()),
        instant(terms.now),
        Param::I64(i64::from(version.count)),
        bits(version.nonce),
        bits(draft.birth),
        bits(draft.owner),
        Param::I64(i64::from(draft.attempt)),
        Param::I64(micros(draft.policy.lease)),
        Param::I64(i64::from(draft.state.code())),
        Param::I64(i64::from(draft.flags.bits())),
        Param::I64(policy),
        Param::I64(i64::from(draft.point)),
        Param::Bool(draft.ran == InstantChange::Now),
        Param::Bool(draft.completed == InstantChange::Now),
        interval(draft.due_in),
        interval(draft.expires_in),
        interval(draft.purge_in),
        Param::maybe_bytes(fingerprint.as_ref().map(|bytes| &bytes[..])),
        Param::Text(draft.identity.tenant.as_str()),
        Param::Text(&draft.identity.operation.method),
        Param::Text(&draft.identity.operation.path),
        Param::Text(draft.identity.key.as_str()),
        Param::Bytes(&note),
        terms.lasts(),
    ];
    written_at(tx.query(statement, &params).await?)
}

async fn update(
    tx: &mut dyn SqlTx,
    change: &Change,
    draft: &Draft,
    policy: i64,
    (expected, due): (Version, bool),
    terms: WriteOptions,
) -> Result<Option<Timestamp>, SqlError> {
    let statement = of(tx, &UPDATE);
    let (version, note) = (change.version(), draft.note.to_bytes());
    let fingerprint = draft.fingerprint.as_ref().map(Fingerprint::to_bytes);
    let params = [
        Param::Bytes(change.id.as_bytes()),
        instant(terms.now),
        Param::I64(i64::from(expected.count)),
        bits(expected.nonce),
        Param::Bool(due),
        Param::I64(i64::from(version.count)),
        bits(version.nonce),
        bits(draft.birth),
        bits(draft.owner),
        Param::I64(i64::from(draft.attempt)),
        Param::I64(micros(draft.policy.lease)),
        Param::I64(i64::from(draft.state.code())),
        Param::I64(i64::from(draft.flags.bits())),
        Param::I64(policy),
        Param::I64(i64::from(draft.point)),
        mark(draft.created),
        mark(draft.ran),
        mark(draft.completed),
        interval(draft.due_in),
        interval(draft.expires_in),
        interval(draft.purge_in),
        Param::maybe_bytes(fingerprint.as_ref().map(|bytes| &bytes[..])),
        Param::Text(&draft.identity.operation.method),
        Param::Text(&draft.identity.operation.path),
        Param::Bytes(&note),
        Param::Text(draft.identity.tenant.as_str()),
        Param::Text(draft.identity.key.as_str()),
        terms.lasts(),
    ];
    written_at(tx.query(statement, &params).await?)
}

fn written_at(rows: Vec<SqlRow>) -> Result<Option<Timestamp>, SqlError> {
    rows.into_iter().next().map(|mut row| row.i64().map(Timestamp::from_micros)).transpose()
}

/// The record in a row. What this program can't read is an error, never a default.
fn locked(id: RecordId, mut row: SqlRow) -> Result<Locked, SqlError> {
    let row = &mut row;
    let now = Timestamp::from_micros(row.i64()?);
    let version = Version { count: number(row)?, nonce: nonce(row)? };
    let (birth, owner, attempt) = (nonce(row)?, nonce(row)?, number(row)?);
    let state = State::from_code(number(row)?).ok_or_else(|| SqlError::wrong("a known state"))?;
    let flags = Flags::from_bits(number(row)?);
    let number_of_policy = row.i64()?;
    let policy = Policy::from_bytes(&row.bytes()?).ok_or_else(|| SqlError::wrong("a readable policy"))?;
    let point = number(row)?;
    let created_at = Timestamp::from_micros(row.i64()?);
    let mut at = || Ok::<_, SqlError>(row.maybe_i64()?.map(Timestamp::from_micros));
    let (ran_at, completed_at, due_at, expires_at, purge_at) = (at()?, at()?, at()?, at()?, at()?);
    let fingerprint = match row.maybe_bytes()? {
        None => None,
        Some(bytes) => Some(
            Fingerprint::from_bytes(&bytes)
                .ok_or_else(|| SqlError::wrong("a fingerprint of a known version"))?,
        ),
    };
    let identity = Identity::stored(&row.text()?, &row.text()?, &row.text()?, &row.text()?);
    let identity = identity.ok_or_else(|| SqlError::wrong("a tenant and a key"))?;
    let note = RecordDetails::from_bytes(&row.bytes()?).ok_or_else(|| SqlError::wrong("a note"))?;
    let answer = row.maybe_bytes()?;
    let record = Record {
        id,
        identity: Arc::new(identity),
        version,
        birth,
        owner,
        attempt,
        state,
        flags,
        fingerprint,
        policy: Arc::new(policy),
        point,
        created_at,
        ran_at,
        completed_at,
        due_at,
        expires_at,
        purge_at,
        note,
    };
    Ok(Locked { stored: StoredRecord { record: Arc::new(record), answer, now }, policy: number_of_policy })
}

/// A number that fits its type; PostgreSQL keeps unsigned 32 bits in signed ones.
pub(crate) fn number<T: TryFrom<u64>>(row: &mut SqlRow) -> Result<T, SqlError> {
    let value = row.i64()?;
    let unsigned = match u64::try_from(value) {
        Ok(value) => value,
        Err(_) => {
            u64::from(i32::try_from(value).map_err(|_| SqlError::wrong("a number in range"))?.cast_unsigned())
        }
    };
    T::try_from(unsigned).map_err(|_| SqlError::wrong("a number in range"))
}

pub(crate) fn nonce(row: &mut SqlRow) -> Result<Nonce, SqlError> {
    row.i64().map(|bits| Nonce(bits.cast_unsigned()))
}

/// A nonce with the same bits in the type that databases have.
pub(crate) fn bits(nonce: Nonce) -> Param<'static> {
    Param::I64(nonce.0.cast_signed())
}

/// The store's clock where a statement can't read it.
pub(crate) fn instant(now: Option<Timestamp>) -> Param<'static> {
    Param::maybe_i64(now.map(Timestamp::as_micros))
}

pub(crate) fn interval(interval: Option<Duration>) -> Param<'static> {
    Param::maybe_i64(interval.map(micros))
}

pub(crate) fn micros(interval: Duration) -> i64 {
    i64::try_from(interval.as_micros()).unwrap_or(i64::MAX).min(INTERVAL_MAX_US)
}

pub(crate) fn mark(mark: InstantChange) -> Param<'static> {
    Param::I64(mark.code().into())
}

/// One statement in both dialects.
pub(crate) struct DialectSql {
    pub(crate) postgres: Statement,
    pub(crate) sqlite: Statement,
}

impl DialectSql {
    pub(crate) const fn new(
        postgres: &'static str,
        sqlite: &'static str,
        columns: &'static [Type],
    ) -> DialectSql {
        DialectSql {
            postgres: Statement { text: postgres, columns },
            sqlite: Statement { text: sqlite, columns },
        }
    }

    pub(crate) const fn same(text: &'static str, columns: &'static [Type]) -> DialectSql {
        DialectSql::new(text, text, columns)
    }
}

/// The statement in the transaction's dialect.
pub(crate) fn of(tx: &dyn SqlTx, both: &'static DialectSql) -> &'static Statement {
    match tx.dialect() {
        Dialect::Postgres => &both.postgres,
        Dialect::Sqlite => &both.sqlite,
    }
}

/// The same file of each dialect.
macro_rules! both {
    ($file:literal, $columns:expr) => {
        $crate::transaction::statements::DialectSql::new(
            include_str!(concat!("sql/postgres/", $file)),
            include_str!(concat!("sql/sqlite/", $file)),
            $columns,
        )
    };
}

pub(crate) use both;

/// As `locked` reads them.
const RECORD: &[Type] = &[
    I64, I64, I64, I64, I64, I64, I64, I64, I64, Blob, I64, I64, I64, I64, I64, I64, I64, Blob, Text, Text,
    Text, Text, Blob, Blob,
];

static LOCK: DialectSql = both!("lock.sql", RECORD);
static READ: DialectSql = both!("read.sql", RECORD);
static INSERT: DialectSql = both!("insert.sql", &[I64]);
static UPDATE: DialectSql = both!("update.sql", &[I64]);
static BODY_PUT: DialectSql = both!("body_put.sql", &[]);
static BODY_CLEAR: DialectSql = both!("body_clear.sql", &[]);
static EVENT_ADD: DialectSql = both!("event_add.sql", &[]);

/// Longest interval that is added to an instant: a thousand years, so that no sum overflows.
const INTERVAL_MAX_US: i64 = 1000 * 365 * 24 * 3600 * 1_000_000;

/// PostgreSQL keeps the setting as 32 bits of milliseconds.
const IDLE_MS_MAX: i64 = i32::MAX as i64;
