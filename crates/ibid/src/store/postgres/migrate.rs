//! The schema, step by step. `ibid migrate --print` shows the same statements that the store runs.
//!
//! `store/schema_steps.rs` has the rules by which an older program accepts a newer schema.

use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio_postgres::error::SqlState;

use super::PostgresOpenError;
use super::connection::Connection;
use super::open::open_error;
use super::target::Target;
use crate::store::schema_steps::{SchemaState, StepKind, known_steps, needs_at_least};

/// One step of the schema. A step that was released never changes.
struct SchemaStep {
    kind: StepKind,
    parts: &'static [StepPart],
}

/// A part of a step.
enum StepPart {
    /// Statements that run in one transaction.
    Transaction(&'static str),
    /// An index that is built without blocking writers, outside a transaction.
    Index {
        name: &'static str,
        /// `create index concurrently …`
        sql: &'static str,
    },
}

/// Returns the text that takes a schema from step `from` to the newest, for an operator to run.
pub(super) fn sql(from: u32) -> String {
    let mut text = String::new();
    for (number, step) in numbered_steps().skip(from as usize) {
        text.push_str(&format!("-- Step {number}.\n"));
        for part in step.parts {
            text.push_str(&match part {
                StepPart::Transaction(sql) => {
                    let insert = insert_with(number, step, part);
                    format!("{};\n{}{sql}{insert}commit;\n", opening(), table(number))
                }
                StepPart::Index { name, sql } => {
                    let insert = insert_with(number, step, part);
                    format!("drop index concurrently if exists {name};\n{sql};\n{insert}")
                }
            });
        }
    }
    text
}

/// Returns the steps that a database has.
///
/// # Errors
///
/// Fails if the tables are those of an earlier build, if a step is not the one that this program knows, or if a later step
/// excludes this program.
pub(super) async fn read_schema(
    target: &Target,
    connection: &Connection,
) -> Result<SchemaState, PostgresOpenError> {
    let failed = |error| open_error(target, error);
    let rows = connection.query_once(include_str!("sql/schema_tables.sql"), &[]).await.map_err(failed)?;
    // The query has no source of rows, so it returns exactly one.
    let row = rows.first().expect("one row");
    let (has_steps, is_earlier): (bool, bool) =
        (row.try_get(0).map_err(failed)?, row.try_get(1).map_err(failed)?);
    if is_earlier {
        return Err(PostgresOpenError::EarlierBuild { place: target.shown() });
    }
    if !has_steps {
        return Ok(SchemaState::default());
    }
    let rows = connection.query_once(include_str!("sql/schema_steps.sql"), &[]).await.map_err(failed)?;
    let mut applied = SchemaState::default();
    for row in &rows {
        let number = row.try_get::<_, i32>(0).map_err(failed)?.cast_unsigned();
        let stored: &[u8] = row.try_get(1).map_err(failed)?;
        let known = numbered_steps().find(|(known, _)| *known == number);
        if known.is_some_and(|(_, step)| digest(step) != stored) {
            return Err(PostgresOpenError::Altered { place: target.shown(), number });
        }
        let needs = row.try_get::<_, i32>(2).map_err(failed)?.cast_unsigned();
        applied = SchemaState { step: applied.step.max(number), needs: applied.needs.max(needs) };
    }
    if applied.excludes(newest_known_step()) {
        let (found, known) = (applied.step, newest_known_step());
        return Err(PostgresOpenError::FromTheFuture { place: target.shown(), found, known });
    }
    Ok(applied)
}

/// Takes the steps that are missing, each in its own transaction. A process that comes second waits, and finds them taken.
pub(super) async fn run(target: &Target, connection: &Connection) -> Result<(), PostgresOpenError> {
    for (number, step) in numbered_steps() {
        if read_schema(target, connection).await?.step >= number {
            continue;
        }
        for part in step.parts {
            let insert = insert_with(number, step, part);
            match part {
                StepPart::Transaction(sql) => {
                    let text = format!("{}{sql}{insert}", table(number));
                    run_part(target, connection, number, &text).await?;
                }
                StepPart::Index { name, sql } => {
                    build_index(target, connection, name, sql).await?;
                    connection.run(&insert).await.map_err(|error| open_error(target, error))?;
                }
            }
        }
    }
    Ok(())
}

/// Runs one part in a transaction. It waits for locks only briefly, because all statements on the table queue behind it, and
/// tries again.
async fn run_part(
    target: &Target,
    connection: &Connection,
    number: u32,
    sql: &str,
) -> Result<(), PostgresOpenError> {
    for tries in 1.. {
        connection.run(&opening()).await.map_err(|error| open_error(target, error))?;
        // Another process may have taken the step while this one waited. On an error the connection is closed.
        if read_schema(target, connection).await?.step >= number {
            return connection.run("rollback").await.map_err(|error| open_error(target, error));
        }
        match connection.run(sql).await {
            Ok(()) => return connection.run("commit").await.map_err(|error| open_error(target, error)),
            Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) && tries < TRIES_MAX => {
                connection.run("rollback").await.map_err(|error| open_error(target, error))?;
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => return Err(open_error(target, error)),
        }
    }
    Ok(())
}

/// Builds an index without blocking writers. A build that was cut off left an invalid index, which is dropped first.
async fn build_index(
    target: &Target,
    connection: &Connection,
    name: &str,
    sql: &str,
) -> Result<(), PostgresOpenError> {
    let failed = |error| open_error(target, error);
    // Held by the session, because the build cannot be in a transaction. It ends with the connection.
    connection.run(&format!("select pg_advisory_lock({LOCK})")).await.map_err(failed)?;
    let is_built = format!(
        "select coalesce((select i.indisvalid from pg_index i where i.indexrelid = to_regclass('{name}')), false)"
    );
    let rows = connection.query_once(&is_built, &[]).await.map_err(failed)?;
    if rows.first().map(|row| row.try_get(0)).transpose().map_err(failed)? != Some(true) {
        connection.run(&format!("drop index concurrently if exists {name}")).await.map_err(failed)?;
        connection.run(sql).await.map_err(failed)?;
    }
    connection.run(&format!("select pg_advisory_unlock({LOCK})")).await.map_err(failed)
}

/// Returns the statement that makes the table of steps, for the first step.
fn table(number: u32) -> &'static str {
    if number == 1 { include_str!("schema/steps.sql") } else { "" }
}

/// Begins the transaction of a part. Migrations of one database wait for each other.
fn opening() -> String {
    format!("begin; select pg_advisory_xact_lock({LOCK}); set local lock_timeout = '2s'")
}

/// Returns the statement that notes the step with its last part; empty for other parts, which a migration that was cut off
/// runs again.
fn insert_with(number: u32, step: &SchemaStep, part: &StepPart) -> String {
    if step.parts.last().is_none_or(|last| !std::ptr::eq(last, part)) {
        return String::new();
    }
    let digest = ibid_core::hex::encode(&digest(step));
    let needs = needs_at_least(numbered_steps().take(number as usize).map(|(_, step)| step.kind));
    format!(
        "insert into ibid_schema_step (number, digest, needs_at_least) values ({number}, '\\x{digest}', {needs}) \
         on conflict do nothing;\n"
    )
}

fn numbered_steps() -> impl Iterator<Item = (u32, &'static SchemaStep)> {
    (1..=newest_known_step()).zip(STEPS)
}

fn digest(step: &SchemaStep) -> [u8; 32] {
    let mut digest = Sha256::new();
    for part in step.parts {
        match part {
            StepPart::Transaction(sql) | StepPart::Index { sql, .. } => digest.update(sql),
        }
    }
    digest.finalize().into()
}

/// The steps, in their order. Nothing was released before the first one.
const STEPS: &[SchemaStep] = &[
    SchemaStep {
        kind: StepKind::Expand,
        parts: &[StepPart::Transaction(concat!(
            include_str!("schema/records.sql"),
            include_str!("schema/outbox.sql"),
            include_str!("schema/evidence.sql"),
            include_str!("schema/views.sql")
        ))],
    },
    // A step as a later release may have: for tests of two versions side by side.
    SchemaStep {
        kind: StepKind::Expand,
        parts: &[
            StepPart::Transaction("alter table ibid_record add column if not exists next_note text;\n"),
            StepPart::Index {
                name: "ibid_record_next",
                sql: "create index concurrently ibid_record_next on ibid_record (tenant, id)",
            },
        ],
    },
];

/// Returns the number of the newest step that this program knows.
pub(super) fn newest_known_step() -> u32 {
    known_steps(STEPS.len())
}

/// "ibid sch" in ASCII: migrations of one database wait for each other under this number.
const LOCK: i64 = 0x6962_6964_2073_6368;

/// Tries for one part. With the pauses about a minute, in which reports and backups that hold a lock usually end.
const TRIES_MAX: u32 = 20;

/// Pause between two tries, in which statements that queued behind the first can run.
const PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_printed_statements_take_every_missing_step() {
        let all = sql(0);
        assert!(all.contains("create table ibid_schema_step") && all.contains("create table ibid_record"));
        assert_eq!(sql(newest_known_step()), "");
    }
}
