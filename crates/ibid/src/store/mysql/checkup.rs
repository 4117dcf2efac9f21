//! Looks at a server and writes nothing, so that one which opening would refuse can still be described.

use std::time::Instant;

use bytes::Bytes;
use ibid_core::effect::OPERATOR_STATE_CODES;
use ibid_core::record::State;
use ibid_core::sql::Param;
use mysql_async::Error;

use super::connection::MysqlConnection;
use super::open::{self, MysqlVariables};
use super::row::{self, DbRow};
use super::target::MysqlTarget;
use super::{MysqlOpenError, error, literal, migrate};
use crate::store::checkup::{Checkup, ClockGap, OpenCases, Role, Schema, Setting, Standby, Standbys};
use crate::store::clock::Clock;
use crate::store::run_times::{POLICIES_MAX, RunRow, RunSampler, RunTimes, SAMPLE_MAX};

/// Describes the server that answers.
pub(super) async fn look(target: &MysqlTarget) -> Result<Checkup, MysqlOpenError> {
    let mut connection = target.dial().await.map_err(|error| open::unreachable(target, error))?;
    let failed = |error| open::open_error(target, error);
    let variables = open::variables(&mut connection).await.map_err(failed)?;
    let server = MysqlVariables(&variables);
    connection.server = server.facts();
    open::set_up(&mut connection).await.map_err(failed)?;
    let clock = clock_gap(&mut connection).await.map_err(failed)?;
    // A server that is too old to be used does not know the question, and is described all the same.
    let follows = match open::follows(&mut connection).await {
        Err(_) if server.needs().is_some() => connection.recover().await.map(|()| None),
        follows => follows,
    };
    let follows = follows.map_err(failed)?;
    let role = match follows {
        Some(true) => Role::Standby,
        _ if server.is_read_only() => Role::ReadOnly,
        _ => Role::Primary,
    };
    let standbys = standbys(&mut connection, follows.is_some()).await.map_err(failed)?;
    let schema = schema(target, &mut connection).await?;
    let is_current = schema.is_usable();
    let mut refusals = Vec::new();
    if server.is_galera() {
        refusals.push(MysqlOpenError::Galera { display_url: target.display_url() }.to_string());
    }
    if server.logs_statements() {
        refusals.push(MysqlOpenError::StatementLog { display_url: target.display_url() }.to_string());
    }
    if let Some((table, engine)) = open::other_engine(&mut connection).await.map_err(failed)? {
        refusals
            .push(MysqlOpenError::Engine { display_url: target.display_url(), table, engine }.to_string());
    }
    let (mut has_secret, mut identity, mut runs, mut open_cases) = (false, None, None, None);
    if is_current {
        has_secret = setting(&mut connection, "secret").await.map_err(failed)?.is_some();
        identity = setting(&mut connection, "identity").await.map_err(failed)?;
        runs = Some(self::runs(&mut connection).await.map_err(failed)?);
        open_cases = self::open_cases(&mut connection).await.ok();
    }
    Ok(Checkup {
        software: server.software(),
        needs: server.needs().map(str::to_owned),
        schema,
        clock: Some(clock),
        durability: server
            .durability()
            .into_iter()
            .map(|(name, value, is_weak)| Setting { name, value, is_weak })
            .collect(),
        weak_accepted: target.options.accept_weak_durability,
        role,
        standbys: Some(standbys),
        pooler: None,
        has_secret,
        identity,
        open_cases,
        runs,
        tuning: None,
        refusals,
        is_untested: !server.is_mariadb(),
    })
}

/// Compares the server's clock with this node's. The server read it between question and reply.
async fn clock_gap(connection: &mut MysqlConnection) -> Result<ClockGap, Error> {
    let (node, began) = (Clock::system().now(), Instant::now());
    let rows = connection.run(include_str!("sql/now.sql")).await?;
    let within = began.elapsed() / 2;
    let now = rows.first().and_then(|row| row.first()).and_then(row::integer).unwrap_or(0);
    Ok(ClockGap { ahead_us: now - node.after(within).as_micros(), within })
}

/// Returns the replicas that are connected.
async fn standbys(connection: &mut MysqlConnection, sees_following: bool) -> Result<Standbys, Error> {
    // Without the privilege `process` a user sees only its own sessions, and is not told so; this question is refused then.
    let sees_sessions = match connection.run(include_str!("sql/process_privilege.sql")).await {
        Ok(_) => true,
        Err(error) if error::is_forbidden(&error) => connection.recover().await.map(|()| false)?,
        Err(error) => return Err(error),
    };
    let monitor = if connection.server.is_mariadb { "slave monitor" } else { "replication client" };
    let missing = [(sees_following, monitor), (sees_sessions, "process")];
    let missing = missing.into_iter().filter(|(sees, _)| !sees).map(|(_, privilege)| privilege).collect();
    let rows = connection.run(include_str!("sql/replicas.sql")).await?;
    let replica = |row: &DbRow| Standby { name: row::text(OP, row, 0).ok(), is_synchronous: None };
    Ok(Standbys { awaited: String::new(), connected: rows.iter().map(replica).collect(), missing })
}

async fn schema(target: &MysqlTarget, connection: &mut MysqlConnection) -> Result<Schema, MysqlOpenError> {
    match migrate::read_schema(target, connection).await {
        Ok(applied) if applied.step == 0 => Ok(Schema::Absent),
        Ok(applied) => Ok(Schema::Step { found: applied.step, known: migrate::newest_known_step() }),
        Err(MysqlOpenError::FromTheFuture { found, known, .. }) => Ok(Schema::TooNew { found, known }),
        Err(MysqlOpenError::Altered { number, .. }) => Ok(Schema::Altered { number }),
        Err(other) => Err(other),
    }
}

async fn setting(connection: &mut MysqlConnection, name: &str) -> Result<Option<Bytes>, Error> {
    let rows = ask(connection, include_str!("sql/setting.sql"), &[Param::Text(name)]).await?;
    Ok(rows.first().and_then(|row| row::bytes(OP, row, 0).ok()))
}

/// Counts what waits for an operator, through indexes.
async fn open_cases(connection: &mut MysqlConnection) -> Result<OpenCases, Error> {
    let [effect_unknown, effect_dead] = OPERATOR_STATE_CODES.map(Param::I64);
    let [.., unknown] = State::WAITING.map(|state| Param::I64(i64::from(state.code())));
    let params = [effect_unknown, effect_dead, unknown];
    let rows = ask(connection, include_str!("sql/open_cases.sql"), &params).await?;
    let number = |column: usize| {
        let row = rows.first().and_then(|row| row.get(column));
        row.and_then(row::integer).map_or(0, i64::cast_unsigned)
    };
    Ok(OpenCases {
        unknown: number(0),
        dead_letters: number(1),
        effects_unknown: number(2),
        effects_dead: number(3),
    })
}

/// Reads some thousand rows by the index that the reaper uses.
async fn runs(connection: &mut MysqlConnection) -> Result<Vec<RunTimes>, Error> {
    let policies = ask(connection, include_str!("sql/policies.sql"), &[Param::I64(POLICIES_MAX)]).await?;
    let policy =
        |row: &DbRow| Some((row.first().and_then(row::integer)?, row::bytes(OP, row, 1).ok()?.to_vec()));
    let sampling = RunSampler::of(policies.iter().filter_map(policy));
    let rows = ask(connection, include_str!("sql/runs.sql"), &[Param::I64(SAMPLE_MAX)]).await?;
    let run = |row: &DbRow| {
        let number = |column: usize| row.get(column).and_then(row::integer);
        // What does not fit a byte is no state and no flags that we know; the figures leave it out.
        let byte = |column| number(column).and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX);
        Some(RunRow {
            policy: number(0)?,
            state: byte(1),
            flags: byte(2),
            ran_at: number(3),
            completed_at: number(4),
            method: row::text(OP, row, 5).ok()?,
            path: row::text(OP, row, 6).ok()?,
            note: row::text(OP, row, 7).ok(),
        })
    };
    Ok(sampling.figures(rows.iter().filter_map(run).collect()))
}

async fn ask(
    connection: &mut MysqlConnection,
    sql: &'static str,
    params: &[Param<'_>],
) -> Result<Vec<DbRow>, Error> {
    // Each statement is given the parameters that it names.
    connection.run(&literal::statement(sql, params).unwrap_or_default()).await
}

const OP: &str = "look at the store";
