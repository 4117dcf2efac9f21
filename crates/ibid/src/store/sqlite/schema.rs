//! Our tables in the file: whether they are there, which schema they have, and how they are made.
//!
//! The file may be the application's, so nothing here looks at other tables, and the header (`application_id`,
//! `user_version`) is read only to know a file of the first layout.

use rusqlite::{Connection, OptionalExtension};

use super::Place;
use super::open::{SqliteOpenError, failed, named};

/// What of ours is in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// Nothing: a new file, an empty one, or another program's.
    Absent,
    /// Tables without our prefix, and a schema number in the header: the first layout.
    Unprefixed,
    /// Our tables with this schema.
    Schema(u32),
}

/// Looks and touches nothing. Refuses a schema that this program does not know, and the lack of one unless tables may
/// be made.
///
/// These are two statements, and another process may make or upgrade the tables in between. That only ever leads
/// forward, and [`migrate`] looks again once the write lock is ours.
pub(super) fn look(place: &Place, connection: &Connection) -> Result<Layout, SqliteOpenError> {
    let path = || place.path.clone();
    let seen = connection.query_row(include_str!("sql/look.sql"), [], |row| {
        Ok((row.get::<_, bool>(0)?, row.get::<_, i32>(1)?, row.get::<_, i32>(2)?))
    });
    let (ours, application, version) = seen.map_err(|error| named(&place.path, error))?;
    let future = |found, known| Err(SqliteOpenError::FromTheFuture { path: path(), found, known });
    match (ours, application.cast_unsigned(), version.cast_unsigned()) {
        (true, _, _) => match schema(place, connection)? {
            found if found > KNOWN => future(found, KNOWN),
            found => Ok(Layout::Schema(found)),
        },
        (false, APPLICATION_ID, UNPREFIXED) => Ok(Layout::Unprefixed),
        (false, APPLICATION_ID, found) if found > UNPREFIXED => future(found, KNOWN),
        (false, _, _) if place.options.create => Ok(Layout::Absent),
        (false, _, _) => Err(SqliteOpenError::NoTables { path: path() }),
    }
}

/// Runs what is missing, in one transaction; whoever comes second finds it done.
pub(super) fn migrate(place: &Place, connection: &Connection) -> Result<(), SqliteOpenError> {
    if look(place, connection)? == Layout::Schema(KNOWN) {
        return Ok(());
    }
    let failed = |error| named(&place.path, error);
    connection.execute_batch("begin immediate").map_err(failed)?;
    // The connection is dropped on an error, and the transaction with it.
    let schema = match look(place, connection)? {
        Layout::Absent => 0,
        Layout::Unprefixed => {
            connection.execute_batch(include_str!("migrations/unprefixed.sql")).map_err(failed)?;
            UNPREFIXED
        }
        Layout::Schema(schema) => schema,
    };
    for step in &MIGRATIONS[schema as usize..] {
        connection.execute_batch(step).map_err(failed)?;
    }
    connection.execute(include_str!("sql/schema_set.sql"), [KNOWN]).map_err(failed)?;
    connection.execute_batch("commit").map_err(failed)
}

/// The schema as our own table has it. It is written with the tables, so without it they are not ours, or spoilt.
fn schema(place: &Place, connection: &Connection) -> Result<u32, SqliteOpenError> {
    let kept =
        connection.query_row(include_str!("sql/setting.sql"), ["schema"], |row| row.get::<_, Vec<u8>>(0));
    let kept = kept.optional().map_err(|error| named(&place.path, error))?;
    let digits = kept.as_deref().and_then(|kept| std::str::from_utf8(kept).ok());
    let schema = digits.and_then(|digits| digits.parse().ok()).filter(|schema| *schema > 0);
    schema.ok_or_else(|| failed(&place.path, "its table `ibid_meta` names no schema"))
}

/// One file per schema; a file that was released never changes.
const MIGRATIONS: &[&str] = &[
    include_str!("migrations/0001_records.sql"),
    include_str!("migrations/0002_evidence.sql"),
    include_str!("migrations/0003_tombstones.sql"),
    include_str!("schema/outbox.sql"),
];

/// The newest schema that this program knows.
pub(super) const KNOWN: u32 = MIGRATIONS.len() as u32;

/// "ibid" in ASCII: what the header of a file of the first layout says.
const APPLICATION_ID: u32 = 0x6962_6964;

/// The only schema of the first layout. Renamed, it is that of the first migration.
pub(super) const UNPREFIXED: u32 = 1;
