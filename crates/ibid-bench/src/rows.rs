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
use rusqlite::{CachedStatement, Connection, params};
use tokio::runtime::Runtime;

use crate::{Failed, payment};

/// Opens a connection with the same settings as the store's.
pub(crate) fn open(path: &Path, runtime: &Runtime) -> Result<(Connection, Template), Failed> {
    runtime.block_on(make(path))?;
    let connection = Connection::open(path)?;
    let settings =
        [("synchronous", "full"), ("mmap_size", "0"), ("temp_store", "memory"), ("foreign_keys", "on")];
    for (name, value) in settings {
        connection.pragma_update(None, name, value)?;
    }
    // The same values as in the store's `open.rs`.
    connection.pragma_update(None, "cache_size", -(32 << 10))?;
    connection.pragma_update(None, "wal_autocheckpoint", 16_384)?;
    connection.set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.pragma_update_and_check(None, "journal_size_limit", 64 << 20, |_| Ok(()))?;
    let template = Template::read(&connection)?;
    Ok((connection, template))
}

/// Creates the file and its first record through the engine, unless a gateway already has.
async fn make(path: &Path) -> Result<(), Failed> {
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
    answer: Value,
}

impl Template {
    fn read(connection: &Connection) -> Result<Template, Failed> {
        let id = RecordId::of(&payment::identity("template")?, ScopeRule::Operation);
        let sql = "select r.policy, r.lease_us, r.flags, r.fingerprint, r.note, b.data
                   from ibid_record r join ibid_body b on b.slot = r.row * 131072 + 1 where r.id = ?1";
        let template = connection.query_row(sql, [id.as_bytes()], |row| {
            Ok(Template {
                policy: row.get(0)?,
                lease_us: row.get(1)?,
                flags: row.get(2)?,
                fingerprint: row.get(3)?,
                note: row.get(4)?,
                answer: row.get(5)?,
            })
        })?;
        Ok(template)
    }
}

/// The statements of begin and finish, prepared.
pub(crate) struct Rows<'c> {
    insert: CachedStatement<'c>,
    update: CachedStatement<'c>,
    put_body: CachedStatement<'c>,
    template: &'c Template,
}

impl<'c> Rows<'c> {
    pub(crate) fn new(connection: &'c Connection, template: &'c Template) -> Result<Rows<'c>, Failed> {
        Ok(Rows {
            insert: connection
                .prepare_cached(include_str!("../../ibid/src/store/sqlite/sql/commit_insert.sql"))?,
            update: connection
                .prepare_cached(include_str!("../../ibid/src/store/sqlite/sql/commit_update.sql"))?,
            put_body: connection
                .prepare_cached(include_str!("../../ibid/src/store/sqlite/sql/body_put.sql"))?,
            template,
        })
    }

    /// Writes the begin of a key.
    pub(crate) fn begin(&mut self, row: &Row, now: i64) -> Result<(), Failed> {
        let due = now + self.template.lease_us;
        self.put(row, now, State::InProgress, [None, Some(due), None])
    }

    /// Writes the finish of a key that was begun.
    pub(crate) fn finish(&mut self, row: &Row, now: i64) -> Result<(), Failed> {
        let (template, gone) = (self.template, now + DAY_US);
        let (none, keep, mark) = (None::<i64>, 0, 1);
        let rows = self.update.execute(params![
            row.id.as_bytes(),
            1,
            row.nonce,
            none,
            2,
            row.nonce ^ 1,
            row.nonce,
            row.nonce,
            1,
            template.lease_us,
            State::Completed.code(),
            template.flags,
            template.policy,
            0,
            now,
            keep,
            keep,
            mark,
            none,
            gone,
            gone,
            template.fingerprint,
            payment::METHOD,
            payment::PATH,
            template.note,
            "-",
            row.key,
        ])?;
        if rows != 1 {
            return Err("a finish found no begin".into());
        }
        self.put_answer(row)
    }

    /// Writes a completed key at once, to fill a store without measuring it.
    pub(crate) fn write_completed(&mut self, row: &Row, now: i64) -> Result<(), Failed> {
        self.put(row, now, State::Completed, [Some(now), None, Some(now + DAY_US)])?;
        self.put_answer(row)
    }

    fn put(&mut self, row: &Row, now: i64, state: State, instants: [Option<i64>; 3]) -> Result<(), Failed> {
        let [completed, due, gone] = instants;
        let template = self.template;
        self.insert.execute(params![
            row.id.as_bytes(),
            1,
            row.nonce,
            row.nonce,
            row.nonce,
            1,
            template.lease_us,
            state.code(),
            template.flags,
            template.policy,
            0,
            now,
            now,
            completed,
            due,
            gone,
            gone,
            template.fingerprint,
            "-",
            payment::METHOD,
            payment::PATH,
            row.key,
            template.note,
        ])?;
        Ok(())
    }

    fn put_answer(&mut self, row: &Row) -> Result<(), Failed> {
        self.put_body.execute(params![row.id.as_bytes(), 1, row.nonce, self.template.answer])?;
        Ok(())
    }
}

/// One record to write.
pub(crate) struct Row {
    id: RecordId,
    key: String,
    nonce: i64,
}

impl Row {
    pub(crate) fn new(key: String) -> Result<Row, Failed> {
        let id = RecordId::of(&payment::identity(&key)?, ScopeRule::Operation);
        // Derived from the digest, so as good as random and of the same size.
        let nonce = id.as_bytes()[..8].iter().fold(0_i64, |nonce, byte| nonce << 8 | i64::from(*byte));
        Ok(Row { id, key, nonce })
    }
}

/// Returns the time in microseconds since the epoch.
pub(crate) fn now() -> Result<i64, Failed> {
    Ok(i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros())?)
}

/// The default retention, in microseconds.
const DAY_US: i64 = 24 * 3600 * 1_000_000;
