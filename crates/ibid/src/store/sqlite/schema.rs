//! ibid's tables in the file: whether they are there, which schema they have, and how they are made.
//!
//! The file may be the application's, so nothing here looks at other tables. The header (`application_id`) is read only to
//! recognise a file of the first builds, whose tables had no prefix.

use rusqlite::{Connection, OptionalExtension};

use super::StoreFile;
use super::open::{SqliteOpenError, failure, open_error};

/// The state of ibid's tables in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// There are none: a new file, an empty one, or another program's.
    Absent,
    /// They have this schema.
    Schema(u32),
}

/// Looks at the tables and touches nothing. Refuses a schema that this program does not know, tables of an earlier build,
/// and the lack of tables unless they may be made.
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
        true => match schema(file, connection)? {
            found if found > KNOWN => {
                Err(SqliteOpenError::FromTheFuture { path: path(), found, known: KNOWN })
            }
            found => Ok(Layout::Schema(found)),
        },
        false if file.options.create => Ok(Layout::Absent),
        false => Err(SqliteOpenError::NoTables { path: path() }),
    }
}

/// Runs the steps that are missing, in one transaction; a process that comes second finds them done.
pub(super) fn migrate(file: &StoreFile, connection: &Connection) -> Result<(), SqliteOpenError> {
    if look(file, connection)? == Layout::Schema(KNOWN) {
        return Ok(());
    }
    let failed = |error| open_error(&file.path, error);
    connection.execute_batch("begin immediate").map_err(failed)?;
    // The connection is dropped on an error, and the transaction with it.
    let schema = match look(file, connection)? {
        Layout::Absent => 0,
        Layout::Schema(schema) => schema,
    };
    for statements in STEPS[schema as usize..].iter().copied().flatten() {
        connection.execute_batch(statements).map_err(failed)?;
    }
    connection.execute(include_str!("sql/schema_set.sql"), [KNOWN]).map_err(failed)?;
    connection.execute_batch("commit").map_err(failed)
}

/// Returns the schema in ibid's own table. It is written with the tables, so without it they are not ours, or damaged.
fn schema(file: &StoreFile, connection: &Connection) -> Result<u32, SqliteOpenError> {
    let value =
        connection.query_row(include_str!("sql/setting.sql"), ["schema"], |row| row.get::<_, Vec<u8>>(0));
    let value = value.optional().map_err(|error| open_error(&file.path, error))?;
    let digits = value.as_deref().and_then(|value| std::str::from_utf8(value).ok());
    let schema = digits.and_then(|digits| digits.parse().ok()).filter(|schema| *schema > 0);
    schema.ok_or_else(|| failure(&file.path, "its table `ibid_meta` names no schema"))
}

/// The steps of the schema. Once a step is released, its files never change.
const STEPS: &[&[&str]] = &[&[
    include_str!("schema/records.sql"),
    include_str!("schema/outbox.sql"),
    include_str!("schema/evidence.sql"),
    include_str!("schema/views.sql"),
]];

/// The newest schema that this program knows.
pub(super) const KNOWN: u32 = STEPS.len() as u32;

/// "ibid" in ASCII: the header of a file of the first builds.
const EARLY_APPLICATION_ID: u32 = 0x6962_6964;
