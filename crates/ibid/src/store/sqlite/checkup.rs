//! Looks at a file and writes nothing, so that one which opening would refuse can still be described.

use ibid_core::effect::OPERATOR_STATE_CODES;
use ibid_core::record::State;
use rusqlite::Connection;

use super::open::{self, SqliteOpenError, open_error};
use super::schema::{self, Layout};
use super::{StoreFile, reader};
use crate::store::checkup::{Checkup, OpenCases, Role, Schema, Setting};
use crate::store::run_times::{POLICIES_MAX, RunRow, RunSampler, RunTimes, SAMPLE_MAX};
use crate::store::schema_steps::SchemaState;

/// Describes the file at `file`.
pub(super) fn look(file: &StoreFile) -> Result<Checkup, SqliteOpenError> {
    let path = &file.path;
    if matches!(path.try_exists(), Ok(false)) {
        return Err(SqliteOpenError::Missing { path: path.clone() });
    }
    let failed = |error| open_error(path, error);
    let connection = open::connect(file).map_err(failed)?;
    let schema = schema(file, &connection)?;
    let is_current = schema.is_usable();
    open::settings(file, &connection).map_err(failed)?;
    let read_only = connection.is_readonly("main").map_err(failed)?;
    let (needed, needs) = open::SQLITE_MIN;
    let setting = |name| match is_current {
        true => reader::setting(&connection, name).map_err(failed),
        false => Ok(None),
    };
    Ok(Checkup {
        software: format!("SQLite {}", rusqlite::version()),
        needs: (rusqlite::version_number() < needed).then(|| needs.to_owned()),
        schema,
        clock: None,
        durability: durability(&connection).map_err(failed)?,
        weak_accepted: false,
        role: if read_only { Role::ReadOnly } else { Role::Primary },
        standbys: None,
        pooler: None,
        has_secret: setting("secret")?.is_some(),
        identity: setting("identity")?,
        open_cases: is_current.then(|| open_cases(&connection)).transpose().map_err(failed)?,
        runs: is_current.then(|| run_times(&connection)).transpose().map_err(failed)?,
        tuning: None,
        refusals: Vec::new(),
        is_untested: false,
    })
}

fn schema(file: &StoreFile, connection: &Connection) -> Result<Schema, SqliteOpenError> {
    let known = schema::newest_known_step();
    match schema::look(file, connection) {
        Ok(Layout::Absent) | Err(SqliteOpenError::NoTables { .. }) => Ok(Schema::Absent),
        Ok(Layout::Schema(SchemaState { step: found, .. }))
        | Err(SqliteOpenError::NotMigrated { found, .. }) => Ok(Schema::Step { found, known }),
        Err(SqliteOpenError::FromTheFuture { found, .. }) => Ok(Schema::TooNew { found, known }),
        Err(other) => Err(other),
    }
}

fn durability(connection: &Connection) -> rusqlite::Result<Vec<Setting>> {
    let synchronous: u32 = connection.query_row("pragma synchronous", [], |row| row.get(0))?;
    let journal: String = connection.query_row("pragma journal_mode", [], |row| row.get(0))?;
    Ok(vec![
        Setting {
            name: "synchronous",
            value: if synchronous == SYNCHRONOUS_FULL { "full".to_owned() } else { synchronous.to_string() },
            is_weak: synchronous < SYNCHRONOUS_FULL,
        },
        // The store turns to `wal` when it opens the file; the others that last in a file are as durable.
        Setting { name: "journal_mode", value: journal, is_weak: false },
    ])
}

fn open_cases(connection: &Connection) -> rusqlite::Result<OpenCases> {
    let mut cases = OpenCases::default();
    // An operator asks once, and wants all of them counted.
    let mut open = connection.prepare(include_str!("sql/count_open.sql"))?;
    let mut rows = open.query([i64::MAX])?;
    while let Some(row) = rows.next()? {
        if row.get::<_, u8>(0)? == State::UNSETTLED.code() {
            cases.unknown = row.get::<_, i64>(1)?.cast_unsigned();
        }
    }
    let letters = include_str!("sql/count_dead_letters.sql");
    cases.dead_letters =
        connection.query_row(letters, [i64::MAX], |row| row.get::<_, i64>(0))?.cast_unsigned();
    let effects = connection.query_row(include_str!("sql/effects.sql"), OPERATOR_STATE_CODES, |row| {
        Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get::<_, i64>(1)?.cast_unsigned()))
    });
    (cases.effects_unknown, cases.effects_dead) = effects?;
    Ok(cases)
}

fn run_times(connection: &Connection) -> rusqlite::Result<Vec<RunTimes>> {
    let mut policies = connection.prepare(include_str!("sql/policies.sql"))?;
    let policies = policies.query_map([POLICIES_MAX], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let sampler = RunSampler::of(policies.collect::<rusqlite::Result<Vec<_>>>()?);
    let mut last = connection.prepare(include_str!("sql/last_runs.sql"))?;
    let rows = last.query_map([SAMPLE_MAX], |row| {
        Ok(RunRow {
            policy: row.get(0)?,
            state: row.get(1)?,
            flags: row.get(2)?,
            ran_at: row.get(3)?,
            completed_at: row.get(4)?,
            method: row.get(5)?,
            path: row.get(6)?,
            note: row.get(7)?,
        })
    })?;
    Ok(sampler.figures(rows.collect::<rusqlite::Result<_>>()?))
}

/// Value of `pragma synchronous` that SQLite calls FULL.
const SYNCHRONOUS_FULL: u32 = 2;
