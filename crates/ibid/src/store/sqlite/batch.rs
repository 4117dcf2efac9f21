//! Applies changes inside one open transaction. It compares versions and instants and does not interpret states.

use ibid_core::change::{BodyKind, Change, Commit, Expect, InstantChange, Stamp, StoredRecord};
use ibid_core::record::Version;
use ibid_core::row::{RecordColumns, bits};
use ibid_core::sql::Param;
use ibid_core::store::StoreError;
use ibid_core::time::Timestamp;
use rusqlite::{CachedStatement, Connection, OptionalExtension, params};

use super::error::{self, SqliteErrorScope, store_error};
use super::policies::Policies;
use super::{evidence, row};
use crate::record_sql::is_unfinished;

/// The changes of one transaction: statements prepared once, one instant for all.
pub(super) struct ChangeGroup<'c> {
    connection: &'c Connection,
    policies: &'c mut Policies,
    now: Timestamp,
    insert: CachedStatement<'c>,
    update: CachedStatement<'c>,
}

impl<'c> ChangeGroup<'c> {
    pub(super) fn new(
        connection: &'c Connection,
        policies: &'c mut Policies,
        now: Timestamp,
    ) -> rusqlite::Result<ChangeGroup<'c>> {
        Ok(ChangeGroup {
            connection,
            policies,
            now,
            insert: connection.prepare_cached(before_returning(INSERT))?,
            update: connection.prepare_cached(before_returning(UPDATE))?,
        })
    }

    /// Applies a change, all of it or nothing. The inner error is this change's own, and nothing of it was written.
    ///
    /// # Errors
    ///
    /// After an outer error the whole transaction must be rolled back.
    pub(super) fn apply(&mut self, change: &Change) -> rusqlite::Result<Result<Commit, StoreError>> {
        // SQLite undoes a statement that fails. Only a change of several statements needs a savepoint for that.
        let has_parts = !change.bodies.is_empty()
            || !change.history.is_empty()
            || change.clears_bodies
            || change.uses.is_some()
            || change.body_bytes() > ibid_core::row::INLINE_BODY_MAX;
        if has_parts {
            run(self.connection, "savepoint change")?;
        }
        let applied = self.apply_parts(change);
        // SQLite ends the transaction by itself after some errors; then every change of it is gone.
        if let Err(error) = &applied
            && (error::scope_of(error) != SqliteErrorScope::One || self.connection.is_autocommit())
        {
            return Err(applied.expect_err("it is an error"));
        }
        if has_parts {
            if applied.is_err() {
                run(self.connection, "rollback to change")?;
                // A policy that this change was the first to name went with it.
                self.policies.clear();
            }
            run(self.connection, "release change")?;
        }
        Ok(applied.map_err(|error| store_error("commit", error).unwritten()))
    }

    fn apply_parts(&mut self, change: &Change) -> rusqlite::Result<Commit> {
        let is_written = match change.expect {
            _ if change.draft.is_none() => self.is_met(change)?,
            Expect::Absent => self.write(change, None)?,
            Expect::Version(version) => self.write(change, Some((version, false)))?,
            Expect::Due(version) => self.write(change, Some((version, true)))?,
            Expect::Anything => {
                let mistake = "a change of a record must have a precondition";
                return Err(rusqlite::Error::ToSqlConversionFailure(mistake.into()));
            }
        };
        if !is_written {
            return Ok(Commit::Conflict(self.load(change)?.map(Box::new)));
        }
        for body in &change.bodies {
            self.put_body(change, body.kind.code(), &body.data)?;
        }
        for line in &change.history {
            let mut add =
                self.connection.prepare_cached(include_str!("../../record_sql/sqlite/history_add.sql"))?;
            let now = self.now.as_micros();
            add.execute(params![change.id.as_bytes(), now, line.what.name(), line.detail])?;
        }
        if let Some(name) = &change.uses {
            evidence::mark_used(self.connection, name, self.now)?;
        }
        Ok(Commit::Done(Stamp { now: self.now }))
    }

    /// Inserts or updates the row. Returns whether it met its precondition.
    fn write(&mut self, change: &Change, expected: Option<(Version, bool)>) -> rusqlite::Result<bool> {
        let Some(draft) = &change.draft else { return Ok(false) };
        let policy = self.policies.number(self.connection, &draft.policy, self.now)?;
        let Some(columns) = RecordColumns::of(change, policy) else { return Ok(false) };
        let now = [Param::I64(self.now.as_micros()), Param::Bool(is_unfinished(draft.state))];
        let params = columns.params().into_iter().chain(now);
        let statement = match expected {
            None => {
                row::bind(&mut self.insert, params)?;
                &mut self.insert
            }
            Some((version, is_due)) => {
                let expected =
                    [Param::I64(version.count.into()), Param::I64(bits(version.nonce)), Param::Bool(is_due)];
                row::bind(&mut self.update, params.chain(expected))?;
                &mut self.update
            }
        };
        let is_written = statement.raw_execute()? > 0;
        if is_written && change.clears_bodies {
            let clear = include_str!("../../record_sql/sqlite/body_clear.sql");
            self.connection.prepare_cached(clear)?.execute(params![change.id.as_bytes(), 0, 0])?;
            if draft.created != InstantChange::Keep {
                let clear = include_str!("../../record_sql/sqlite/payload_clear.sql");
                self.connection.prepare_cached(clear)?.execute([change.id.as_bytes()])?;
            }
        }
        // A large response is part of the record, and stored with it.
        if let (true, Some(body)) = (is_written, columns.body_apart()) {
            self.put_body(change, BodyKind::RESPONSE, body)?;
        }
        Ok(is_written)
    }

    /// Returns whether a change without a draft meets its precondition. The write lock is ours, so it stays true.
    fn is_met(&mut self, change: &Change) -> rusqlite::Result<bool> {
        if change.expect == Expect::Anything {
            return Ok(true);
        }
        let record = self.load(change)?.map(|stored| stored.record);
        Ok(match (change.expect, record) {
            (Expect::Version(version), Some(record)) => record.version == version,
            (Expect::Due(version), Some(record)) => record.version == version && record.is_due(self.now),
            (expect, record) => expect == Expect::Absent && record.is_none(),
        })
    }

    fn put_body(&mut self, change: &Change, kind: u32, data: &[u8]) -> rusqlite::Result<()> {
        let Some(draft) = &change.draft else { return Ok(()) };
        let mut put = self.connection.prepare_cached(include_str!("../../record_sql/sqlite/body_put.sql"))?;
        put.execute(params![change.id.as_bytes(), bits(draft.birth), 0, kind, data]).map(drop)
    }

    fn load(&mut self, change: &Change) -> rusqlite::Result<Option<StoredRecord>> {
        let mut load = self.connection.prepare_cached(include_str!("../../record_sql/sqlite/load.sql"))?;
        let params = params![change.id.as_bytes(), self.now.as_micros()];
        load.query_row(params, |row| row::read_stored(self.connection, self.policies, row, self.now))
            .optional()
    }
}

/// Returns a statement without the clause that returns rows. SQLite collects such rows in a temporary table and keeps a journal
/// of the pages that the statement writes, which costs a quarter of the writer's time. On this connection the number of
/// written rows says the same.
fn before_returning(statement: &'static str) -> &'static str {
    statement.rsplit_once("\nreturning ").map_or(statement, |(before, _)| before)
}

/// Runs a statement without parameters.
pub(super) fn run(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(drop)
}

const INSERT: &str = include_str!("../../record_sql/sqlite/insert.sql");
const UPDATE: &str = include_str!("../../record_sql/sqlite/update.sql");
