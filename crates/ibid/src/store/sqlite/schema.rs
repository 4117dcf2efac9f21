//! ibid's tables in the file: whether they are there, which schema they have, and how they are made.
//!
//! The file may be the application's, so nothing here looks at other tables. The header (`application_id`) is read only to
//! recognise a file of the first builds, whose tables had no prefix.

use rusqlite::{Connection, OptionalExtension, params};

use super::open::{SqliteOpenError, failure, open_error};
use super::{StoreFile, writer};
use crate::store::schema_steps::{SchemaState, StepKind, known_steps, needs_at_least};

/// The state of ibid's tables in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// There are none: a new file, an empty one, or another program's.
    Absent,
    /// They have this schema, and this program can read it.
    Schema(SchemaState),
}

impl Layout {
    /// Returns the number of the last step; zero if there are no tables.
    pub(super) fn step(self) -> u32 {
        match self {
            Layout::Absent => 0,
            Layout::Schema(state) => state.step,
        }
    }
}

/// Looks at the tables and touches nothing. Refuses a schema that this program does not know, tables of an earlier build, old
/// tables unless they may be upgraded, and the lack of tables unless they may be made.
///
/// These are two statements, and another process may make or upgrade the tables in between. That only ever leads
/// forward, and [`migrate`] looks again once the write lock is ours.
pub(super) fn look(file: &StoreFile, connection: &Connection) -> Result<Layout, SqliteOpenError> {
    let path = || file.path.clone();
    let layout = connection.query_row(include_str!("sql/look.sql"), [], |row| {
        Ok((row.get::<_, bool>(0)?, row.get::<_, bool>(1)?, row.get::<_, i32>(2)?))
    });
    let (has_tables, is_early, application) = layout.map_err(|error| open_error(&file.path, error))?;
    if is_early || (!has_tables && application.cast_unsigned() == EARLY_APPLICATION_ID) {
        return Err(SqliteOpenError::EarlierBuild { path: path() });
    }
    match has_tables {
        true => match (schema(file, connection)?, newest_known_step()) {
            (found, known) if found.excludes(known) => {
                Err(SqliteOpenError::FromTheFuture { path: path(), found: found.step, known })
            }
            (found, known) if !found.is_usable(known) && !file.options.upgrade => {
                Err(SqliteOpenError::NotMigrated { path: path(), found: found.step, known })
            }
            (found, _) => Ok(Layout::Schema(found)),
        },
        false if file.options.create => Ok(Layout::Absent),
        false => Err(SqliteOpenError::NoTables { path: path() }),
    }
}

/// Runs the steps that are missing, in one transaction; a process that comes second finds them done. All other writers wait
/// for it: SQLite builds no index in the background.
pub(super) fn migrate(file: &StoreFile, connection: &Connection) -> Result<(), SqliteOpenError> {
    let is_usable = |layout| matches!(layout, Layout::Schema(state) if state.is_usable(newest_known_step()));
    if is_usable(look(file, connection)?) {
        return Ok(());
    }
    let failed = |error| open_error(&file.path, error);
    // Processes that write all the time leave the lock free for moments only.
    writer::begin(connection, file.options.busy_timeout).map_err(failed)?;
    // The connection is dropped on an error, and the transaction with it.
    let layout = look(file, connection)?;
    if is_usable(layout) {
        return connection.execute_batch("rollback").map_err(failed);
    }
    for (_, statements) in &STEPS[layout.step() as usize..newest_known_step() as usize] {
        for statement in *statements {
            connection.execute_batch(statement).map_err(failed)?;
        }
    }
    let needs = needs_at_least(STEPS.iter().take(newest_known_step() as usize).map(|(kind, _)| *kind));
    for (name, value) in [(SCHEMA, newest_known_step()), (NEEDS, needs)] {
        connection.execute(include_str!("sql/schema_set.sql"), params![name, value]).map_err(failed)?;
    }
    connection.execute_batch("commit").map_err(failed)
}

/// Returns the schema in ibid's own table. It is written with the tables, so without it they are not ours, or damaged.
fn schema(file: &StoreFile, connection: &Connection) -> Result<SchemaState, SqliteOpenError> {
    let number = |name| {
        let value =
            connection.query_row(include_str!("sql/setting.sql"), [name], |row| row.get::<_, Vec<u8>>(0));
        let value = value.optional().map_err(|error| open_error(&file.path, error))?;
        let digits = value.as_deref().and_then(|value| std::str::from_utf8(value).ok());
        Ok(digits.and_then(|digits| digits.parse().ok()).filter(|schema| *schema > 0))
    };
    let step = number(SCHEMA)?;
    let step = step.ok_or_else(|| failure(&file.path, "its table `ibid_meta` names no schema"))?;
    // Without it, no older program is known to work on these tables.
    Ok(SchemaState { step, needs: number(NEEDS)?.unwrap_or(step) })
}

/// The steps of the schema. Once a step is released, its files never change.
const STEPS: &[(StepKind, &[&str])] = &[
    (
        StepKind::Expand,
        &[
            include_str!("schema/records.sql"),
            include_str!("schema/outbox.sql"),
            include_str!("schema/evidence.sql"),
            include_str!("schema/views.sql"),
        ],
    ),
    // A step as a later release may have: for tests of two versions side by side.
    (
        StepKind::Expand,
        &[
            "alter table ibid_record add column next_note text",
            "create index ibid_record_next on ibid_record (next_note) where next_note is not null",
        ],
    ),
];

/// Returns the newest schema that this program knows.
pub(super) fn newest_known_step() -> u32 {
    known_steps(STEPS.len())
}

/// Names of the rows of `ibid_meta` with the schema, and with the step that a program must know at least.
const SCHEMA: &str = "schema";
const NEEDS: &str = "schema_needs";

/// "ibid" in ASCII: the header of a file of the first builds.
const EARLY_APPLICATION_ID: u32 = 0x6962_6964;
