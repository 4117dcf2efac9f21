//! The schema, step by step. `ibid migrate --print` shows the same statements that the store runs.
//!
//! `store/schema_steps.rs` has the rules by which an older program accepts a newer schema.

use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use super::PostgresOpenError;
use super::connection::PostgresConnection;
use super::open::open_error;
use super::target::PostgresTarget;
use crate::failpoint;
use crate::store::schema_steps::{SchemaState, StepKind, needs_at_least};

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
    #[cfg_attr(
        not(feature = "failpoints"),
        expect(dead_code, reason = "no released step builds an index yet")
    )]
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
    target: &PostgresTarget,
    connection: &PostgresConnection,
) -> Result<SchemaState, PostgresOpenError> {
    let failed = |error| open_error(target, error);
    let rows = connection.query_once(include_str!("sql/schema_tables.sql"), &[]).await.map_err(failed)?;
    // The query has no source of rows, so it returns exactly one.
    let row = rows.first().expect("one row");
    let (has_steps, is_earlier): (bool, bool) =
        (row.try_get(0).map_err(failed)?, row.try_get(1).map_err(failed)?);
    if is_earlier {
        return Err(PostgresOpenError::EarlierBuild { display_url: target.display_url() });
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
            return Err(PostgresOpenError::Altered { display_url: target.display_url(), number });
        }
        let needs = row.try_get::<_, i32>(2).map_err(failed)?.cast_unsigned();
        applied = SchemaState { step: applied.step.max(number), needs: applied.needs.max(needs) };
    }
    if applied.excludes(newest_known_step()) {
        let (found, known) = (applied.step, newest_known_step());
        return Err(PostgresOpenError::FromTheFuture { display_url: target.display_url(), found, known });
    }
    Ok(applied)
}

/// Takes the steps that are missing, each in its own transaction. A process that comes second waits, and finds them taken.
pub(super) async fn run(
    target: &PostgresTarget,
    connection: &PostgresConnection,
) -> Result<(), PostgresOpenError> {
    for (number, step) in numbered_steps() {
        if read_schema(target, connection).await?.step >= number {
            continue;
        }
        for part in step.parts {
            let insert = insert_with(number, step, part);
            match part {
                StepPart::Transaction(sql) => {
                    let text = format!("{}{sql}{insert}", table(number));
                    run_part(target, connection, number, &text, TRIES_MAX).await?;
                }
                StepPart::Index { name, sql } => {
                    build_index(target, connection, name, sql, TRIES_MAX).await?;
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
    target: &PostgresTarget,
    connection: &PostgresConnection,
    number: u32,
    sql: &str,
    tries_max: u32,
) -> Result<(), PostgresOpenError> {
    let failed = |error| open_error(target, error);
    for _ in 0..tries_max {
        if try_run(connection, &opening()).await.map_err(failed)? {
            // Another process may have taken the step while this one waited. On an error the connection is closed.
            if read_schema(target, connection).await?.step >= number {
                return connection.run("rollback").await.map_err(failed);
            }
            if try_run(connection, sql).await.map_err(failed)? {
                return connection.run("commit").await.map_err(failed);
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
    Err(PostgresOpenError::Failed {
        display_url: target.display_url(),
        source: LockedOut { tries: tries_max }.into(),
    })
}

/// Runs statements in a transaction. Returns `false`, and ends the transaction, if another session held a lock for too long.
async fn try_run(connection: &PostgresConnection, sql: &str) -> Result<bool, Error> {
    match connection.run(sql).await {
        Ok(()) => Ok(true),
        Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
            connection.run("rollback").await?;
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Builds an index without blocking writers. A build that was cut off left an invalid index, which is dropped first.
async fn build_index(
    target: &PostgresTarget,
    connection: &PostgresConnection,
    name: &str,
    sql: &str,
    tries_max: u32,
) -> Result<(), PostgresOpenError> {
    let failed = |error| open_error(target, error);
    // Held by the session, because the build cannot be in a transaction. It ends with the connection.
    let lock = format!("begin; {LOCK_BRIEFLY}; select pg_advisory_lock({LOCK}); commit");
    for _ in 0..tries_max {
        if !try_run(connection, &lock).await.map_err(failed)? {
            tokio::time::sleep(PAUSE).await;
            continue;
        }
        let is_built = format!(
            "select coalesce((select i.indisvalid from pg_index i where i.indexrelid = to_regclass('{name}')), false)"
        );
        let rows = connection.query_once(&is_built, &[]).await.map_err(failed)?;
        if rows.first().map(|row| row.try_get(0)).transpose().map_err(failed)? != Some(true) {
            // Both wait for transactions that are open, however long that takes: no reader and no writer waits for them.
            connection.run(&format!("drop index concurrently if exists {name}")).await.map_err(failed)?;
            connection.run(sql).await.map_err(failed)?;
        }
        return connection.run(&format!("select pg_advisory_unlock({LOCK})")).await.map_err(failed);
    }
    Err(PostgresOpenError::Failed {
        display_url: target.display_url(),
        source: LockedOut { tries: tries_max }.into(),
    })
}

/// A migration that could not have a lock.
#[derive(Debug, thiserror::Error)]
#[error(
    "{tries} times another session held a lock for more than {secs} s: one on a table, such as a report or a backup, or \
     another migration",
    secs = LOCK_SECS
)]
struct LockedOut {
    tries: u32,
}

/// Returns the statement that makes the table of steps, for the first step.
fn table(number: u32) -> &'static str {
    if number == 1 { include_str!("schema/steps.sql") } else { "" }
}

/// Begins the transaction of a part. Migrations of one database wait for each other, as briefly as for a table.
fn opening() -> String {
    format!("begin; {LOCK_BRIEFLY}; select pg_advisory_xact_lock({LOCK})")
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
    (1..).zip(STEPS.iter().chain(next_step()))
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
const STEPS: &[SchemaStep] = &[SchemaStep {
    kind: StepKind::Expand,
    parts: &[StepPart::Transaction(concat!(
        include_str!("schema/records.sql"),
        include_str!("schema/outbox.sql"),
        include_str!("schema/evidence.sql"),
        include_str!("schema/views.sql")
    ))],
}];

/// Returns the step that a later release may have, in tests of two releases side by side.
fn next_step() -> Option<&'static SchemaStep> {
    NEXT_STEP.filter(|_| failpoint::knows_next_schema())
}

#[cfg(not(feature = "failpoints"))]
const NEXT_STEP: Option<&SchemaStep> = None;

#[cfg(feature = "failpoints")]
const NEXT_STEP: Option<&SchemaStep> = Some(&SchemaStep {
    kind: StepKind::Expand,
    parts: &[
        StepPart::Transaction("alter table ibid_record add column if not exists next_note text;\n"),
        StepPart::Index {
            name: "ibid_record_next",
            sql: "create index concurrently ibid_record_next on ibid_record (tenant, id)",
        },
    ],
});

/// Returns the number of the newest step that this program knows.
pub(super) fn newest_known_step() -> u32 {
    numbered_steps().map(|(number, _)| number).last().unwrap_or(0)
}

/// "ibid sch" in ASCII: migrations of one database wait for each other under this number.
const LOCK: i64 = 0x6962_6964_2073_6368;

/// Longest wait of one try for a lock, for all statements of its transaction.
const LOCK_BRIEFLY: &str = "set local lock_timeout = '2s'";
const LOCK_SECS: u32 = 2;

/// Tries for one part. With the pauses about a minute, in which reports and backups that hold a lock usually end.
const TRIES_MAX: u32 = 20;

/// Pause between two tries, in which statements that queued behind the first can run.
const PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ibid_testkit::postgres::Postgres;

    use super::super::PostgresOptions;
    use super::*;

    #[test]
    fn the_printed_statements_take_every_missing_step() {
        let all = sql(0);
        assert!(all.contains("create table ibid_schema_step") && all.contains("create table ibid_record"));
        assert_eq!(sql(newest_known_step()), "");
    }

    #[test]
    fn a_release_has_no_step_of_the_next_one() {
        assert_eq!(newest_known_step() as usize, STEPS.len());
        assert!(STEPS.iter().all(|step| NEXT_STEP.is_none_or(|next| digest(next) != digest(step))));
        assert!(!sql(0).contains("next_note"));
    }

    /// Returns a database with ibid's tables, and the server, which drops it at the end.
    async fn migrate_new_database() -> (Postgres, Arc<PostgresTarget>) {
        let server = Postgres::shared();
        let url = server.url_for(&server.create_database());
        let target = Arc::new(PostgresTarget::new(&url, PostgresOptions::default()).expect("a URL"));
        run(&target, &connect(&target).await).await.expect("the tables are made");
        (server, target)
    }

    async fn connect(target: &PostgresTarget) -> PostgresConnection {
        target.connect().await.expect("a connection")
    }

    async fn truth(connection: &PostgresConnection, sql: &str) -> bool {
        connection.query_once(sql, &[]).await.expect("a row")[0].get(0)
    }

    #[tokio::test]
    async fn a_migration_waits_for_a_lock_and_lets_others_pass() {
        let (_server, target) = migrate_new_database().await;
        let (reader, other) = (connect(&target).await, connect(&target).await);
        reader.run("begin; lock table ibid_record in access share mode").await.expect("a lock");
        let part = tokio::spawn({
            let target = target.clone();
            async move {
                let sql = "alter table ibid_record add column later text";
                run_part(&target, &connect(&target).await, 99, sql, TRIES_MAX).await
            }
        });
        let waits =
            "select exists (select from pg_locks where relation = 'ibid_record'::regclass and not granted)";
        while !truth(&other, waits).await {}
        // The reader stays, so this returns only because the migration gives up its place.
        let read = other.run("select from ibid_record");
        tokio::time::timeout(Duration::from_secs(60), read).await.expect("it passes").expect("it reads");
        assert!(!part.is_finished());
        reader.run("rollback").await.expect("the reader leaves");
        part.await.expect("it ends").expect("it has the lock now");
        let column = "select exists (select from pg_attribute where attrelid = 'ibid_record'::regclass and attname = 'later')";
        assert!(truth(&other, column).await);
    }

    #[tokio::test]
    async fn a_migration_that_can_not_have_a_lock_says_so() {
        let (_server, target) = migrate_new_database().await;
        let (holder, ours) = (connect(&target).await, connect(&target).await);
        let says_so = |result: Result<(), PostgresOpenError>| {
            let error = result.expect_err("it is held");
            let source = std::error::Error::source(&error).expect("a cause");
            assert!(source.is::<LockedOut>(), "{source}");
        };
        holder.run("begin; lock table ibid_record in access share mode").await.expect("a lock");
        says_so(run_part(&target, &ours, 99, "alter table ibid_record add column later text", 1).await);
        holder.run(&format!("rollback; select pg_advisory_lock({LOCK})")).await.expect("another migration");
        says_so(run_part(&target, &ours, 99, "select 1", 1).await);
        let index = "create index concurrently later on ibid_event (at)";
        says_so(build_index(&target, &ours, "later", index, 1).await);
        holder.run(&format!("select pg_advisory_unlock({LOCK})")).await.expect("it ends");
        build_index(&target, &ours, "later", index, 1).await.expect("the connection is as good as before");
    }

    #[tokio::test]
    async fn an_index_that_was_cut_off_is_built_again() {
        let (_server, target) = migrate_new_database().await;
        let connection = connect(&target).await;
        let lines = "insert into ibid_event (at, id, what, detail) select 1, gen_random_uuid(), 'same', '' from generate_series(1, 2)";
        connection.run(lines).await.expect("two lines");
        let unique = connection.run("create unique index concurrently later on ibid_event (what)").await;
        unique.expect_err("they are the same");
        let is_valid = "select i.indisvalid from pg_index i where i.indexrelid = 'later'::regclass";
        assert!(!truth(&connection, is_valid).await, "it was left behind");
        let sql = "create index concurrently later on ibid_event (what)";
        build_index(&target, &connection, "later", sql, 1).await.expect("it is built");
        assert!(truth(&connection, is_valid).await);
    }
}
