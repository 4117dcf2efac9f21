//! The schema, step by step. What is printed for a person to run is what the store runs itself.

use sha2::{Digest, Sha256};

use super::PostgresOpenError;
use super::connect::{Connection, Place};
use super::open::failed;

/// The text that takes a schema from step `from` to the newest, whole and in one transaction.
pub(super) fn sql(from: u32) -> String {
    let mut text = format!("begin;\nselect pg_advisory_xact_lock({LOCK});\n");
    text.push_str(&steps(from));
    text.push_str("commit;\n");
    text
}

fn steps(from: u32) -> String {
    let mut text = String::new();
    if from == 0 {
        text.push_str(include_str!("sql/migration_table.sql"));
    }
    for (number, step) in (1..).zip(MIGRATIONS).skip(from as usize) {
        let digest: String = digest(step).iter().map(|byte| format!("{byte:02x}")).collect();
        text.push_str(&format!("\n-- Step {number}.\n{step}"));
        text.push_str(&format!(
            "insert into ibid_migration (number, digest) values ({number}, '\\x{digest}');\n"
        ));
    }
    text
}

/// How many steps were taken; zero if there is no schema. Refuses what is not ours.
pub(super) async fn applied(place: &Place, connection: &Connection) -> Result<u32, PostgresOpenError> {
    let failed = |error| failed(place, error);
    let look = connection.query_once(include_str!("sql/look.sql"), &[]).await.map_err(failed)?;
    let is_there = look.first().map(|row| row.try_get::<_, bool>(5)).transpose().map_err(failed)?;
    if is_there != Some(true) {
        return Ok(0);
    }
    let rows = connection.query_once(include_str!("sql/migrations.sql"), &[]).await.map_err(failed)?;
    let found = rows.len() as u32;
    for ((number, step), row) in (1..).zip(MIGRATIONS).zip(rows) {
        let same = row.try_get::<_, i32>(0).map_err(failed)? == number as i32
            && row.try_get::<_, &[u8]>(1).map_err(failed)? == digest(step);
        if !same {
            return Err(PostgresOpenError::Altered { place: place.shown(), number });
        }
    }
    if found > KNOWN {
        return Err(PostgresOpenError::FromTheFuture { place: place.shown(), found, known: KNOWN });
    }
    Ok(found)
}

/// Takes the steps that are missing. Whoever comes second waits, and finds them taken.
pub(super) async fn run(place: &Place, connection: &Connection) -> Result<(), PostgresOpenError> {
    let failed = |error| failed(place, error);
    connection.run(&format!("begin; select pg_advisory_xact_lock({LOCK})")).await.map_err(failed)?;
    // On an error the connection is dropped, and the transaction with it.
    let found = applied(place, connection).await?;
    connection.run(&format!("{}commit", steps(found))).await.map_err(failed)
}

fn digest(step: &str) -> [u8; 32] {
    Sha256::digest(step.as_bytes()).into()
}

/// One file per step; a file that was released never changes.
const MIGRATIONS: &[&str] = &[
    include_str!("migrations/0001_records.sql"),
    include_str!("migrations/0002_evidence.sql"),
    include_str!("migrations/0003_flight.sql"),
    include_str!("schema/outbox.sql"),
];

/// The newest step that this program knows.
pub(super) const KNOWN: u32 = MIGRATIONS.len() as u32;

/// "ibid sch" in ASCII: migrations of one database wait for each other under this number.
const LOCK: i64 = 0x6962_6964_2073_6368;
