//! The SQLite store's statements on one bare connection, without engine, threads or queues.
//!
//! Values that no benchmark varies are copied from a record that the engine wrote, so that rows have the same size and a
//! gateway can read them.

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use ibid::store::sqlite::{SqliteOptions, SqliteStore};
use ibid_core::policy::Policy;
use ibid_core::record::State;
use ibid_core::scope::{RecordId, ScopeRule};
use rusqlite::types::Value;
use rusqlite::{CachedStatement, Connection, params_from_iter};
use tokio::runtime::Runtime;

use crate::{BenchError, payment};

/// Opens a connection with the same settings as the store's.
pub(crate) fn open(path: &Path, runtime: &Runtime) -> Result<(Connection, Template), BenchError> {
    runtime.block_on(make(path))?;
    let connection = Connection::open(path)?;
    let settings =
        [("synchronous", "full"), ("mmap_size", "0"), ("temp_store", "memory"), ("foreign_keys", "on")];
    for (name, value) in settings {
        connection.pragma_update(None, name, value)?;
    }
    // The same values as in the store's `open.rs`.
    connection.pragma_update(None, "cache_size", -(4 << 10))?;
    connection.pragma_update(None, "wal_autocheckpoint", 16_384)?;
    connection.set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.pragma_update_and_check(None, "journal_size_limit", 64 << 20, |_| Ok(()))?;
    let template = Template::read(&connection)?;
    Ok((connection, template))
}

/// Creates the file and its first record through the engine, unless a gateway already has.
async fn make(path: &Path) -> Result<(), BenchError> {
    let store = Arc::new(SqliteStore::open(path, SqliteOptions::default())?);
    let ibid = payment::engine(store).await?;
    let request =
        ibid.ask(payment::identity("template")?, Arc::new(Policy::default()), Arc::new(payment::Payment));
    if ibid.store().load(request.id).await?.is_none() {
        payment::pay(&ibid, &Arc::new(Policy::default()), "template").await?;
    }
    Ok(())
}

/// Values that all rows have in common.
pub(crate) struct Template {
    policy: i64,
    lease_us: i64,
    flags: i64,
    fingerprint: Value,
    note: Value,
    status: Value,
    lines: Value,
    body: Value,
}

impl Template {
    fn read(connection: &Connection) -> Result<Template, BenchError> {
        let id = RecordId::of(&payment::identity("template")?, ScopeRule::Operation);
        let sql = "select r.policy, p.lease_us, r.flags, r.fingerprint, r.note, r.status, r.lines, r.body
                   from ibid_record r join ibid_policy p on p.id = r.policy where r.id = ?1";
        let template = connection.query_row(sql, [id.as_bytes()], |row| {
            Ok(Template {
                policy: row.get(0)?,
                lease_us: row.get(1)?,
                flags: row.get(2)?,
                fingerprint: row.get(3)?,
                note: row.get(4)?,
                status: row.get(5)?,
                lines: row.get(6)?,
                body: row.get(7)?,
            })
        })?;
        Ok(template)
    }
}

/// The statements of begin and finish, prepared.
pub(crate) struct Rows<'c> {
    insert: CachedStatement<'c>,
    update: CachedStatement<'c>,
    template: &'c Template,
}

impl<'c> Rows<'c> {
    pub(crate) fn new(connection: &'c Connection, template: &'c Template) -> Result<Rows<'c>, BenchError> {
        let insert = include_str!("../../ibid/src/record_sql/sqlite/insert.sql");
        let update = include_str!("../../ibid/src/record_sql/sqlite/update.sql");
        let (insert, update) = (connection.prepare_cached(insert)?, connection.prepare_cached(update)?);
        Ok(Rows { insert, update, template })
    }

    /// Writes the begin of a key.
    pub(crate) fn begin(&mut self, row: &Row, now: i64) -> Result<(), BenchError> {
        let values = RowValues {
            count: 1,
            nonce: row.nonce,
            state: State::InProgress,
            instants: [SET, SET, KEEP],
            due_in: Some(self.template.lease_us),
            kept_for: None,
        };
        write(&mut self.insert, self.template, row, &values, now, None)
    }

    /// Writes the finish of a key that was begun.
    pub(crate) fn finish(&mut self, row: &Row, now: i64) -> Result<(), BenchError> {
        let values = RowValues {
            count: 2,
            nonce: row.nonce ^ 1,
            state: State::Completed,
            instants: [KEEP, KEEP, SET],
            due_in: None,
            kept_for: Some(DAY_US),
        };
        write(&mut self.update, self.template, row, &values, now, Some(row.nonce))
    }

    /// Writes a completed key at once, to fill a store without measuring it.
    pub(crate) fn write_completed(&mut self, row: &Row, now: i64) -> Result<(), BenchError> {
        let values = RowValues {
            count: 1,
            nonce: row.nonce,
            state: State::Completed,
            instants: [SET, SET, SET],
            due_in: None,
            kept_for: Some(DAY_US),
        };
        write(&mut self.insert, self.template, row, &values, now, None)
    }
}

/// Values that differ between a begin and a finish.
struct RowValues {
    count: i64,
    nonce: i64,
    state: State,
    /// Changes to the instants created, ran and completed.
    instants: [i64; 3],
    due_in: Option<i64>,
    kept_for: Option<i64>,
}

/// Runs a statement with the parameters of `RecordColumns::params`, and those behind them.
fn write(
    statement: &mut CachedStatement<'_>,
    template: &Template,
    row: &Row,
    values: &RowValues,
    now: i64,
    expected: Option<i64>,
) -> Result<(), BenchError> {
    let has_response = values.state == State::Completed;
    let response = |value: &Value| if has_response { value.clone() } else { Value::Null };
    let [created, ran, completed] = values.instants;
    let mut params: Vec<Value> = vec![
        row.id.as_bytes().to_vec().into(),
        values.count.into(),
        values.nonce.into(),
        row.nonce.into(),
        Value::Null,
        Value::Null,
        i64::from(values.state.code()).into(),
        template.flags.into(),
        template.policy.into(),
        Value::Null,
        created.into(),
        ran.into(),
        completed.into(),
        values.due_in.into(),
        values.kept_for.into(),
        values.kept_for.into(),
        DAY_US.into(),
        template.fingerprint.clone(),
        "-".to_owned().into(),
        payment::METHOD.to_owned().into(),
        payment::PATH.to_owned().into(),
        row.key.clone().into(),
        template.note.clone(),
        response(&template.status),
        i64::from(has_response).into(),
        response(&template.lines),
        response(&template.body),
        now.into(),
        values.due_in.is_some().into(),
    ];
    if let Some(nonce) = expected {
        params.extend([1_i64.into(), nonce.into(), false.into()]);
    }
    if statement.query(params_from_iter(params))?.next()?.is_none() {
        return Err("a key is there already, or a finish found no begin".into());
    }
    Ok(())
}

/// Codes of an instant that stays, and of one that becomes the present.
const KEEP: i64 = 0;
const SET: i64 = 1;

/// One record to write.
pub(crate) struct Row {
    id: RecordId,
    key: String,
    nonce: i64,
}

impl Row {
    pub(crate) fn new(key: String) -> Result<Row, BenchError> {
        let id = RecordId::of(&payment::identity(&key)?, ScopeRule::Operation);
        // Derived from the digest, so as good as random and of the same size.
        let nonce = id.as_bytes()[..8].iter().fold(0_i64, |nonce, byte| nonce << 8 | i64::from(*byte));
        Ok(Row { id, key, nonce })
    }
}

/// Returns the time in microseconds since the epoch.
pub(crate) fn now() -> Result<i64, BenchError> {
    Ok(i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros())?)
}

/// The default retention, in microseconds.
const DAY_US: i64 = 24 * 3600 * 1_000_000;
