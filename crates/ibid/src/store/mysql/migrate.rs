//! The schema, step by step. `ibid migrate --print` shows the same statements that the store runs.
//!
//! `store/schema_steps.rs` has the rules by which an older program accepts a newer schema. MySQL commits each statement that changes a table by itself, so every statement of a step can be repeated.

use std::time::Duration;

use sha2::{Digest, Sha256};

use super::MysqlOpenError;
use super::connection::MysqlConnection;
use super::error;
use super::open::open_error;
use super::row;
use super::target::MysqlTarget;
use crate::failpoint;
use crate::store::schema_steps::{SchemaState, StepKind, needs_at_least};

/// One step of the schema. A step that was released never changes.
struct MysqlStep {
    kind: StepKind,
    /// Statements that can be repeated.
    sql: &'static str,
}

/// Returns the text that takes a schema from step `from` to the newest, for an operator to run.
pub(super) fn sql(from: u32) -> String {
    let steps = numbered_steps().skip(from as usize);
    steps.map(|(number, step)| format!("-- Step {number}.\n{}", text(number, step))).collect()
}

/// Returns the steps that a database has.
///
/// # Errors
///
/// Fails if a step is not the one that this program knows, or if a later step excludes this program.
pub(super) async fn read_schema(
    target: &MysqlTarget,
    connection: &mut MysqlConnection,
) -> Result<SchemaState, MysqlOpenError> {
    let failed = |error| open_error(target, error);
    if connection.run(include_str!("sql/schema_table.sql")).await.map_err(failed)?.is_empty() {
        return Ok(SchemaState::default());
    }
    let rows = connection.run(include_str!("sql/schema_steps.sql")).await.map_err(failed)?;
    let mut applied = SchemaState::default();
    for row in &rows {
        let unreadable =
            |source| MysqlOpenError::Failed { display_url: target.display_url(), source: Box::new(source) };
        let step = |column| row::number(OP, row, column).map_err(unreadable);
        let number = u32::try_from(step(0)?).unwrap_or(u32::MAX);
        let stored = row::bytes(OP, row, 1).map_err(unreadable)?;
        let known = numbered_steps().find(|(known, _)| *known == number);
        if known.is_some_and(|(_, step)| digest(step) != *stored) {
            return Err(MysqlOpenError::Altered { display_url: target.display_url(), number });
        }
        let needs = u32::try_from(step(2)?).unwrap_or(u32::MAX);
        applied = SchemaState { step: applied.step.max(number), needs: applied.needs.max(needs) };
    }
    if applied.excludes(newest_known_step()) {
        let (found, known) = (applied.step, newest_known_step());
        return Err(MysqlOpenError::FromTheFuture { display_url: target.display_url(), found, known });
    }
    Ok(applied)
}

/// Takes the steps that are missing. A process that comes second waits, and finds them taken.
pub(super) async fn run(
    target: &MysqlTarget,
    connection: &mut MysqlConnection,
) -> Result<(), MysqlOpenError> {
    let failed = |error| open_error(target, error);
    connection.wait_for_replies(REPLY_WAIT);
    // The session holds it until it ends: the connection is closed after the migration.
    connection.run(LOCK).await.map_err(failed)?;
    for (number, step) in numbered_steps() {
        if read_schema(target, connection).await?.step < number {
            run_step(target, connection, &text(number, step), TRIES_MAX).await?;
        }
    }
    Ok(())
}

/// Runs the statements of one step. It waits for locks only briefly, because all statements on the table queue behind it, and
/// tries again.
async fn run_step(
    target: &MysqlTarget,
    connection: &mut MysqlConnection,
    sql: &str,
    tries_max: u32,
) -> Result<(), MysqlOpenError> {
    let mut tries = 1;
    loop {
        match connection.run(sql).await {
            Ok(_) => return Ok(()),
            Err(error) if !error::is_lock_wait(&error) => return Err(open_error(target, error)),
            Err(_) if tries == tries_max => {
                let source = MysqlLockedOut { tries }.into();
                return Err(MysqlOpenError::Failed { display_url: target.display_url(), source });
            }
            // The statements before it stay, and are repeated.
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
        tries += 1;
    }
}

/// A migration that could not have a lock.
#[derive(Debug, thiserror::Error)]
#[error(
    "{tries} times another session held a lock on a table for more than {secs} s, such as a report or a backup",
    secs = LOCK_SECS
)]
struct MysqlLockedOut {
    tries: u32,
}

/// Returns the statements of a step. The last one notes that it was taken, so a migration that was cut off is repeated.
fn text(number: u32, step: &MysqlStep) -> String {
    let table = if number == 1 { include_str!("schema/steps.sql") } else { "" };
    let digest = ibid_core::hex::encode(&digest(step));
    let needs = needs_at_least(numbered_steps().take(number as usize).map(|(_, step)| step.kind));
    format!(
        "{table}{}insert into ibid_schema_step (number, digest, needs_at_least) values ({number}, x'{digest}', {needs}) \
         on duplicate key update number = number;\n",
        step.sql
    )
}

fn numbered_steps() -> impl Iterator<Item = (u32, &'static MysqlStep)> {
    (1..).zip(STEPS.iter().chain(next_step()))
}

fn digest(step: &MysqlStep) -> [u8; 32] {
    Sha256::digest(step.sql).into()
}

/// The steps, in their order. Nothing was released before the first one.
const STEPS: &[MysqlStep] = &[MysqlStep {
    kind: StepKind::Expand,
    sql: concat!(
        include_str!("schema/records.sql"),
        include_str!("schema/outbox.sql"),
        include_str!("schema/evidence.sql"),
        include_str!("schema/views.sql")
    ),
}];

/// Returns the step that a later release may have, in tests of two releases side by side.
fn next_step() -> Option<&'static MysqlStep> {
    NEXT_STEP.filter(|_| failpoint::knows_next_schema())
}

#[cfg(not(feature = "failpoints"))]
const NEXT_STEP: Option<&MysqlStep> = None;

/// Only MariaDB knows this `if not exists`.
#[cfg(feature = "failpoints")]
const NEXT_STEP: Option<&MysqlStep> = Some(&MysqlStep {
    kind: StepKind::Expand,
    sql: "alter table ibid_record add column if not exists next_note mediumblob;\n\
          create index if not exists ibid_record_next on ibid_record (tenant, id);\n",
});

/// Returns the number of the newest step that this program knows.
pub(super) fn newest_known_step() -> u32 {
    numbered_steps().map(|(number, _)| number).last().unwrap_or(0)
}

const OP: &str = "read the schema";

/// Migrations of one database wait for each other: for a minute at most, which is enough unless a step waits for locks. Without the lock
/// they would run the same statements, each of which can be repeated.
const LOCK: &str =
    "set session lock_wait_timeout = 2; do get_lock(concat('ibid schema ', left(database(), 40)), 60)";

/// Longest wait of one try for a lock on a table. Statements that queue behind it wait for five seconds before they fail.
const LOCK_SECS: u32 = 2;

/// Tries for one step. With the pauses about a minute, in which reports and backups that hold a lock usually end.
const TRIES_MAX: u32 = 20;

/// Pause between two tries, in which statements that queued behind the first can run.
const PAUSE: Duration = Duration::from_secs(1);

/// Longest wait for the reply to a step: it may rebuild a large table.
const REPLY_WAIT: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ibid_testkit::mariadb::MariaDb;

    use super::super::MysqlOptions;
    use super::*;

    #[test]
    fn the_printed_statements_take_every_missing_step() {
        let all = sql(0);
        assert!(all.contains("create table if not exists ibid_schema_step") && all.contains("ibid_record ("));
        assert_eq!(sql(newest_known_step()), "");
    }

    #[test]
    fn a_release_has_no_step_of_the_next_one() {
        assert_eq!(newest_known_step() as usize, STEPS.len());
        assert!(STEPS.iter().all(|step| NEXT_STEP.is_none_or(|next| digest(next) != digest(step))));
        assert!(!sql(0).contains("next_note"));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_migration_waits_for_a_lock_and_lets_others_pass() {
        let server = MariaDb::shared();
        let database = server.database();
        let target = Arc::new(MysqlTarget::new(&server.url(), MysqlOptions::default()).expect("a URL"));
        let mut ours = target.connect().await.expect("a connection");
        run(&target, &mut ours).await.expect("the tables are made");
        let reader = server.session(database, "start transaction; select count(*) from ibid_record");
        let sql = "alter table ibid_record add column if not exists later blob";
        let refused = run_step(&target, &mut ours, sql, 1).await.expect_err("the reader holds it");
        let source = std::error::Error::source(&refused).expect("a cause");
        assert!(source.is::<MysqlLockedOut>(), "{source}");

        let step = tokio::spawn({
            let target = target.clone();
            async move { run_step(&target, &mut ours, sql, TRIES_MAX).await }
        });
        let waits = format!(
            "select count(*) from information_schema.processlist
             where db = '{database}' and state = 'Waiting for table metadata lock'"
        );
        while server.sql("", &waits) == "0" {}
        // The reader stays, so this returns only because the migration gives up its place.
        server.sql(database, "set lock_wait_timeout = 60; select count(*) from ibid_record");
        assert!(!step.is_finished());
        drop(reader);
        step.await.expect("it ends").expect("it has the lock now");
        server.sql(database, "select later from ibid_record");
    }

    #[test]
    fn every_statement_of_a_step_can_be_repeated() {
        let lines = sql(0);
        let creates = lines.lines().filter(|line| line.starts_with("create "));
        for line in creates {
            assert!(line.contains("if not exists") || line.contains("or replace"), "{line}");
        }
    }
}
