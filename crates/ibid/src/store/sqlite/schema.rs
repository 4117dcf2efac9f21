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
    look_for(file, connection, newest_known_step())
}

/// Looks at the tables for a program that knows the steps up to `known`.
fn look_for(file: &StoreFile, connection: &Connection, known: u32) -> Result<Layout, SqliteOpenError> {
    let path = || file.path.clone();
    let layout = connection.query_row(include_str!("sql/look.sql"), [], |row| {
        Ok((row.get::<_, bool>(0)?, row.get::<_, bool>(1)?, row.get::<_, i32>(2)?))
    });
    let (has_tables, is_early, application) = layout.map_err(|error| open_error(&file.path, error))?;
    if is_early || (!has_tables && application.cast_unsigned() == EARLY_APPLICATION_ID) {
        return Err(SqliteOpenError::EarlierBuild { path: path() });
    }
    match has_tables {
        true => match schema(file, connection)? {
            found if found.excludes(known) => {
                Err(SqliteOpenError::FromTheFuture { path: path(), found: found.step, known })
            }
            found if !found.is_usable(known) && !file.options.upgrade => {
                Err(SqliteOpenError::NotMigrated { path: path(), found: found.step, known })
            }
            found => Ok(Layout::Schema(found)),
        },
        false if file.options.create => Ok(Layout::Absent),
        false => Err(SqliteOpenError::NoTables { path: path() }),
    }
}

/// Runs the steps that are missing; a process that comes second finds them done. All other writers wait for a step: SQLite
/// builds no index in the background.
pub(super) fn migrate(file: &StoreFile, connection: &Connection) -> Result<(), SqliteOpenError> {
    take_steps(file, connection, &STEPS[..newest_known_step() as usize])
}

/// Runs those of `steps` that are missing, each in its own transaction: a step that fails keeps those before it, and other writers
/// have their turn in between. A file without tables gets all of them at once, because a process that opened it in between
/// would refuse tables that are half made.
fn take_steps(
    file: &StoreFile,
    connection: &Connection,
    steps: &[SqliteStep],
) -> Result<(), SqliteOpenError> {
    let known = u32::try_from(steps.len()).unwrap_or(u32::MAX);
    let is_usable = |layout| matches!(layout, Layout::Schema(state) if state.is_usable(known));
    let failed = |error| open_error(&file.path, error);
    if is_usable(look_for(file, connection, known)?) {
        return Ok(());
    }
    loop {
        // Processes that write all the time leave the lock free for moments only.
        writer::begin(connection, file.options.busy_timeout).map_err(failed)?;
        // The connection is dropped on an error, and the transaction with it.
        let layout = look_for(file, connection, known)?;
        if is_usable(layout) {
            return connection.execute_batch("rollback").map_err(failed);
        }
        let first = layout.step() as usize;
        let end = if layout == Layout::Absent { steps.len() } else { first + 1 };
        for statement in steps[first..end].iter().flat_map(|(_, statements)| *statements) {
            connection.execute_batch(statement).map_err(failed)?;
        }
        let needs = needs_at_least(steps[..end].iter().map(|(kind, _)| *kind));
        for (name, value) in [(SCHEMA, u32::try_from(end).unwrap_or(known)), (NEEDS, needs)] {
            connection.execute(include_str!("sql/schema_set.sql"), params![name, value]).map_err(failed)?;
        }
        connection.execute_batch("commit").map_err(failed)?;
        if end == steps.len() {
            return Ok(());
        }
    }
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

/// A step of the schema: its effect on older programs, and its statements.
type SqliteStep = (StepKind, &'static [&'static str]);

/// The steps of the schema. Once a step is released, its files never change.
const STEPS: &[SqliteStep] = &[
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

#[cfg(test)]
mod tests {
    use crate::store::sqlite::{SqliteOptions, open};

    use super::*;

    #[test]
    fn an_upgrade_that_fails_keeps_the_steps_before_it() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let options = SqliteOptions::default().with(|options| options.upgrade = true);
        let file = StoreFile::new(&directory.path().join("ibid.db"), options).expect("a path");
        let connect = || open::connect(&file).expect("the file opens");
        let has_table = |name: &str| {
            let find = "select exists (select 1 from sqlite_schema where name = ?1)";
            connect().query_row(find, [name], |row| row.get::<_, bool>(0)).expect("it is looked up")
        };
        take_steps(&file, &connect(), &STEPS[..1]).expect("a new file");
        let added: SqliteStep = (StepKind::Expand, &["create table added (n)"]);
        let broken: SqliteStep = (StepKind::Contract, &["create table halfway (n)", "drop table missing"]);
        take_steps(&file, &connect(), &[STEPS[0], added, broken]).expect_err("its last step fails");
        let state = schema(&file, &connect()).expect("it has a schema");
        assert_eq!((state.step, state.needs), (2, 1), "an older program may still use it");
        assert!(has_table("added") && !has_table("halfway"));
        let mended: SqliteStep = (StepKind::Contract, &["create table halfway (n)"]);
        take_steps(&file, &connect(), &[STEPS[0], added, mended]).expect("the rest of the steps");
        let done = schema(&file, &connect()).expect("it has a schema");
        assert_eq!((done.step, done.needs), (3, 3));
    }

    #[test]
    fn a_new_file_gets_all_steps_or_none() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file =
            StoreFile::new(&directory.path().join("ibid.db"), SqliteOptions::default()).expect("a path");
        let connect = || open::connect(&file).expect("the file opens");
        let broken: SqliteStep = (StepKind::Expand, &["drop table missing"]);
        take_steps(&file, &connect(), &[STEPS[0], broken]).expect_err("its last step fails");
        assert_eq!(look(&file, &connect()).expect("it may be made"), Layout::Absent);
        take_steps(&file, &connect(), STEPS).expect("a new file");
        assert_eq!(schema(&file, &connect()).expect("it has a schema").step as usize, STEPS.len());
    }
}
