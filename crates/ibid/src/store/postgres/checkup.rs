//! Looks at a server and writes nothing, so that one which opening would refuse can still be described.

use std::time::{Duration, Instant};

use bytes::Bytes;
use ibid_core::effect::OPERATOR_STATE_CODES;
use tokio_postgres::types::{FromSqlOwned, Type};
use tokio_postgres::{Error, Row};

use super::connection::{Param, PostgresConnection};
use super::count::{COUNT_WAITING, waiting_codes, waiting_params};
use super::target::PostgresTarget;
use super::{PostgresOpenError, migrate, open};
use crate::store::checkup::{
    Checkup, ClockGap, OpenCases, Pooler, Role, Schema, ServerTuning, Setting, Standby, Standbys,
};
use crate::store::clock::Clock;
use crate::store::run_times::{POLICIES_MAX, RunRow, RunSampler, RunTimes, SAMPLE_MAX};

/// Describes the server that answers.
pub(super) async fn look(target: &PostgresTarget) -> Result<Checkup, PostgresOpenError> {
    let connection = target.dial().await.map_err(|error| open::unreachable(target, error))?;
    let failed = |error| open::open_error(target, error);
    let (row, clock) = ask(&connection).await.map_err(failed)?;
    let text = |column: usize| row.try_get::<_, String>(column).map_err(failed);
    let flag = |column: usize| row.try_get::<_, bool>(column).map_err(failed);
    let old = row.try_get::<_, i64>(1).map_err(failed)? / 10_000 < open::VERSION_MIN;
    let role = match (flag(2)?, flag(3)?) {
        (true, _) => Role::Standby,
        (false, true) => Role::ReadOnly,
        (false, false) => Role::Primary,
    };
    let awaited = text(7)?;
    let durability = durability(text(4)?, text(5)?, text(6)?, &awaited);
    let schema = schema(target, &connection).await?;
    let is_current = schema.is_usable();
    let standbys = match role {
        // Those that follow a standby are not the ones that its primary's commits wait for.
        Role::Standby => None,
        _ => {
            let connected = standbys(&connection).await.map_err(failed)?;
            Some(Standbys { awaited, connected, ..Standbys::default() })
        }
    };
    let pooler = pooler(target, &connection).await.map_err(failed)?;
    let has_secret = is_current && setting(&connection, "secret").await.map_err(failed)?.is_some();
    let identity = match is_current {
        true => setting(&connection, "identity").await.map_err(failed)?,
        false => None,
    };
    let tuning = if is_current { Some(tuning(&connection).await.map_err(failed)?) } else { None };
    let runs = if is_current { Some(runs(&connection).await.map_err(failed)?) } else { None };
    // Last, because it may spoil the connection.
    let open_cases = if is_current { open_cases(&connection).await.ok() } else { None };
    Ok(Checkup {
        software: format!("PostgreSQL {}", text(0)?),
        needs: old.then(|| open::VERSION_MIN.to_string()),
        schema,
        clock: Some(clock),
        durability,
        weak_accepted: target.options.accept_weak_durability,
        role,
        standbys,
        pooler: Some(pooler),
        has_secret,
        identity,
        open_cases,
        runs,
        tuning,
        refusals: Vec::new(),
        is_untested: false,
    })
}

/// Reads the server's facts and compares its clock with this node's. The server read it between question and reply.
async fn ask(connection: &PostgresConnection) -> Result<(Row, ClockGap), Error> {
    let (node, began) = (Clock::system().now(), Instant::now());
    let mut rows = connection.query_once(include_str!("sql/checkup.sql"), &[]).await?;
    let within = began.elapsed() / 2;
    // The query has no source of rows, so it gives exactly one.
    let row = rows.pop().expect("one row");
    let ahead_us = row.try_get::<_, i64>(8)? - node.after(within).as_micros();
    Ok((row, ClockGap { ahead_us, within }))
}

fn durability(fsync: String, commit: String, pages: String, awaited: &str) -> Vec<Setting> {
    let weak =
        [open::is_weak_fsync(&fsync), open::is_weak_commit(&commit, awaited), pages != "on" && fsync == "on"];
    let settings =
        [("fsync", fsync), ("synchronous_commit", commit), ("full_page_writes", pages)].into_iter().zip(weak);
    settings.map(|((name, value), is_weak)| Setting { name, value, is_weak }).collect()
}

async fn schema(
    target: &PostgresTarget,
    connection: &PostgresConnection,
) -> Result<Schema, PostgresOpenError> {
    match migrate::read_schema(target, connection).await {
        Ok(applied) if applied.step == 0 => Ok(Schema::Absent),
        Ok(applied) => Ok(Schema::Step { found: applied.step, known: migrate::newest_known_step() }),
        Err(PostgresOpenError::FromTheFuture { found, known, .. }) => Ok(Schema::TooNew { found, known }),
        Err(PostgresOpenError::Altered { number, .. }) => Ok(Schema::Altered { number }),
        Err(other) => Err(other),
    }
}

async fn standbys(connection: &PostgresConnection) -> Result<Vec<Standby>, Error> {
    let rows = connection.query_once(include_str!("sql/standbys.sql"), &[]).await?;
    let one = |row: &Row| {
        let waits: Option<String> = row.try_get(1)?;
        let is_synchronous = waits.map(|state| matches!(state.as_str(), "sync" | "quorum"));
        Ok(Standby { name: row.try_get(0)?, is_synchronous })
    };
    rows.iter().map(one).collect()
}

/// Two connections that meet one session, or one that meets two, have a transaction pooler before them. That neither is
/// seen proves little under load, and nothing about a pooler that keeps sessions: that one does no harm.
pub(super) async fn pooler(
    target: &PostgresTarget,
    connection: &PostgresConnection,
) -> Result<Pooler, Error> {
    const SESSION: &str = include_str!("sql/session.sql");
    let Ok(second) = target.dial().await else { return Ok(Pooler::Undecided) };
    let first: i32 = one(connection, SESSION, &[]).await?;
    let other: i32 = one(&second, SESSION, &[]).await?;
    let again: i32 = one(connection, SESSION, &[]).await?;
    if first == again && first != other {
        return Ok(Pooler::NotSeen);
    }
    if connection.prepare_statement(SESSION, &[]).await?.is_none() {
        return Ok(Pooler::Seen);
    }
    let mixed: bool = one(&second, include_str!("sql/mixed.sql"), &[(&SESSION, Type::TEXT)]).await?;
    Ok(if mixed { Pooler::MixesStatements } else { Pooler::Seen })
}

async fn setting(connection: &PostgresConnection, name: &str) -> Result<Option<Bytes>, Error> {
    let rows = connection.query_once(include_str!("sql/setting.sql"), &[(&name, Type::TEXT)]).await?;
    let value = rows.first().map(|row| row.try_get::<_, Option<&[u8]>>(0)).transpose()?.flatten();
    Ok(value.map(Bytes::copy_from_slice))
}

/// Counts what waits for an operator, through indexes and within the time limit of a slow read.
async fn open_cases(connection: &PostgresConnection) -> Result<OpenCases, Error> {
    connection.run(include_str!("sql/open_slow.sql")).await?;
    let waiting = waiting_codes();
    let records = connection.query_once(COUNT_WAITING, &waiting_params(&waiting, &i64::MAX)).await?;
    let [unknown, dead] = OPERATOR_STATE_CODES;
    let params: [Param<'_>; 2] = [(&unknown, Type::INT8), (&dead, Type::INT8)];
    let effects = connection.query_once(include_str!("sql/effects.sql"), &params).await?;
    connection.run("commit").await?;
    let mut cases = OpenCases::default();
    if let Some(row) = records.first() {
        (cases.unknown, cases.dead_letters) = (number(row, 2)?, number(row, 4)?);
    }
    if let Some(row) = effects.first() {
        (cases.effects_unknown, cases.effects_dead) = (number(row, 0)?, number(row, 1)?);
    }
    Ok(cases)
}

async fn tuning(connection: &PostgresConnection) -> Result<ServerTuning, Error> {
    let rows = connection.query_once(include_str!("sql/tuning.sql"), &[]).await?;
    let Some(row) = rows.first() else { return Ok(ServerTuning::default()) };
    // A negative number is an estimate that was never made.
    let number =
        |column: usize| row.try_get::<_, i64>(column).map(|number| u64::try_from(number).unwrap_or(0));
    Ok(ServerTuning {
        checkpoint_timeout: Duration::from_secs(number(0)?),
        max_wal_bytes: number(1)?,
        shared_buffer_bytes: number(2)?,
        has_autovacuum: row.try_get(3)?,
        vacuum_cost_delay_ms: row.try_get(4)?,
        vacuum_cost_limit: number(5)?,
        records: number(6)?,
        index_bytes: number(7)?,
    })
}

/// Reads some thousand rows by the index that the reaper uses.
async fn runs(connection: &PostgresConnection) -> Result<Vec<RunTimes>, Error> {
    let limit: [Param<'_>; 1] = [(&POLICIES_MAX, Type::INT8)];
    let policies = connection.query_once(include_str!("sql/policies.sql"), &limit).await?;
    let policies: Result<Vec<(i64, Vec<u8>)>, Error> =
        policies.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect();
    let sampling = RunSampler::of(policies?);
    let mut all = Vec::new();
    for kept_for in sampling.retentions() {
        let params: [Param<'_>; 2] = [(&kept_for, Type::INT8), (&SAMPLE_MAX, Type::INT8)];
        for row in connection.query_once(include_str!("sql/runs.sql"), &params).await? {
            // What does not fit a byte is no state and no flags that we know; the figures leave it out.
            let byte = |column: usize| {
                row.try_get::<_, i16>(column).map(|code| u8::try_from(code).unwrap_or(u8::MAX))
            };
            all.push(RunRow {
                policy: row.try_get(0)?,
                state: byte(1)?,
                flags: byte(2)?,
                ran_at: row.try_get(3)?,
                completed_at: row.try_get(4)?,
                method: row.try_get(5)?,
                path: row.try_get(6)?,
                note: row.try_get(7)?,
            });
        }
    }
    Ok(sampling.figures(all))
}

fn number(row: &Row, column: usize) -> Result<u64, Error> {
    row.try_get::<_, i64>(column).map(i64::cast_unsigned)
}

/// The only value of a statement that has no source of rows, and so gives exactly one.
async fn one<T: FromSqlOwned>(
    connection: &PostgresConnection,
    sql: &str,
    params: &[Param<'_>],
) -> Result<T, Error> {
    let rows = connection.query_once(sql, params).await?;
    rows.first().expect("one row").try_get(0)
}
