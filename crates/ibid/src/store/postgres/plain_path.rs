//! The plain path: one change is one transaction, through the statements that callers' transactions use as well.
//!
//! A change that writes nothing but its row is one statement in one round trip.

use std::time::Duration;

use futures_util::future::join3;
use ibid_core::change::{Change, Commit, Expect, InstantChange, Stamp, StoredRecord};
use ibid_core::record::Record;
use ibid_core::row::INLINE_BODY_MAX;
use ibid_core::sql::{Dialect, Param, SqlError, SqlRow, SqlTx, Statement};
use ibid_core::store::{BoxFuture, StoreError};
use tokio_postgres::{Client, Error};

use super::connection::{OPEN_HOT, PostgresConnection};
use super::error::{self, PostgresErrorScope};
use super::{KIND, PostgresCore, evidence, policies, read, sql_store};
use crate::driver::pg_client;
use crate::record_sql::{self, WriteOptions};
use crate::store::commit_queue::{LockWait, PlainOutcome};

/// The outcome of one try.
enum TryOutcome {
    Done(Stamp),
    /// Another row is stored than the change expects, or its row is locked and the change must not wait.
    Missed,
}

impl PostgresCore {
    /// Commits one change, or finds the record that keeps it from being written.
    pub(super) async fn commit_alone(&self, change: &Change, wait: LockWait) -> PlainOutcome {
        if let Some(reason) = refusal(change) {
            return PlainOutcome::Result(Err(StoreError::lasting(KIND, OP, reason).unwritten()));
        }
        let connection = match self.pools.short(OP).await {
            Ok(connection) => connection,
            Err(error) => return PlainOutcome::Result(Err(error)),
        };
        match self.commit_on(&connection, change, wait).await {
            Ok(result) => PlainOutcome::Result(result),
            Err(error) => match error.scope() {
                PostgresErrorScope::Contended if wait == LockWait::Prompt => PlainOutcome::Contended,
                // The server has rolled back.
                PostgresErrorScope::Contended => {
                    PlainOutcome::Result(Err(StoreError::row_locked(KIND, OP, error)))
                }
                PostgresErrorScope::One => {
                    PlainOutcome::Result(Err(StoreError::lasting(KIND, OP, error).unwritten()))
                }
                scope => {
                    connection.set_spoilt(true);
                    PlainOutcome::Result(Err(match scope {
                        PostgresErrorScope::Lasting => StoreError::lasting(KIND, OP, error),
                        _ => StoreError::transient(KIND, OP, error),
                    }))
                }
            },
        }
    }

    /// Tries until the change is written or a record is found that keeps it from that.
    async fn commit_on(
        &self,
        connection: &PostgresConnection,
        change: &Change,
        wait: LockWait,
    ) -> Result<Result<Commit, StoreError>, PlainError> {
        let policy = match &change.draft {
            None => 0,
            Some(draft) => {
                let numbered = self.policies.number(&draft.policy);
                policies::ensure_stored(connection, std::slice::from_ref(&numbered)).await?;
                numbered.digest
            }
        };
        for tries in 0..TRIES_MAX {
            if tries > 0 {
                tokio::time::sleep(PAUSE * (1 << tries)).await;
            }
            connection.forget_warnings();
            let tried = self.try_once(connection, change, policy, wait).await?;
            if connection.was_warned() {
                return Ok(Err(StoreError::transient(KIND, OP, "the commit came with a warning")));
            }
            if let TryOutcome::Done(stamp) = tried {
                return Ok(Ok(Commit::Done(stamp)));
            }
            let is_last = tries + 1 == TRIES_MAX;
            match self.load_on(connection, change.id).await? {
                // The row that keeps it from being written cannot be read.
                Err(reason) => return Ok(Err(StoreError::lasting(KIND, OP, reason).unwritten())),
                // The row went or changed between the two statements, or another transaction has locked it.
                Ok(None) if change.expect == Expect::Absent => {}
                Ok(None) => return Ok(Ok(Commit::Conflict(None))),
                Ok(Some(stored)) if !still_fits(change, &stored) => {
                    return Ok(Ok(Commit::Conflict(Some(Box::new(stored)))));
                }
                // The lock holder may still renew or finish. To a takeover that is a lost race, and its caller decides again.
                Ok(Some(stored)) if is_last && matches!(change.expect, Expect::Due(_)) => {
                    return Ok(Ok(Commit::Conflict(Some(Box::new(stored)))));
                }
                Ok(Some(_)) => {}
            }
        }
        Ok(Err(StoreError::row_locked(KIND, OP, "the record changes too fast")))
    }

    async fn try_once(
        &self,
        connection: &PostgresConnection,
        change: &Change,
        policy: i64,
        wait: LockWait,
    ) -> Result<TryOutcome, PlainError> {
        let (open, client) = (opening(wait), connection.client());
        let options = WriteOptions::of(self);
        if is_row_only(change) {
            let mut tx = PostgresStoreTx(client);
            // The three are sent together, in this order.
            let (opened, applied, closed) = join3(
                connection.run(open),
                record_sql::apply(&mut tx, change, None, policy, options),
                connection.run("commit"),
            )
            .await;
            opened?;
            let applied = applied?;
            closed?;
            return Ok(applied.map_or(TryOutcome::Missed, TryOutcome::Done));
        }
        // Until it is done, an error or a panic leaves a transaction open.
        connection.set_spoilt(true);
        connection.run(&format!("{open}; {CUT_OFF_IDLE}")).await?;
        let tried = self.apply_all(connection, change, policy, options).await;
        // If the rollback fails, the connection is closed, and the server rolls back.
        let end = if matches!(tried, Ok(TryOutcome::Done(_))) { "commit" } else { "rollback" };
        connection.run(end).await?;
        connection.set_spoilt(false);
        tried
    }

    /// Applies a change that writes more than its row.
    async fn apply_all(
        &self,
        connection: &PostgresConnection,
        change: &Change,
        policy: i64,
        options: WriteOptions,
    ) -> Result<TryOutcome, PlainError> {
        let mut tx = PostgresStoreTx(connection.client());
        let before = match change.expect {
            Expect::Absent | Expect::Anything => None,
            // The write names this version, so what is read here is what it replaces.
            Expect::Version(version) | Expect::Due(version) => {
                match self.load_within(connection, change.id).await? {
                    Ok(Some(stored)) if stored.record.version == version => Some(stored.record),
                    _ => return Ok(TryOutcome::Missed),
                }
            }
        };
        let stamp = match change.draft {
            Some(_) => record_sql::apply(&mut tx, change, before.as_deref(), policy, options).await?,
            None => self.apply_history(connection, change, before.as_deref()).await?,
        };
        let Some(stamp) = stamp else { return Ok(TryOutcome::Missed) };
        if let Some(name) = &change.uses {
            evidence::mark_used(connection, name).await?;
        }
        Ok(TryOutcome::Done(stamp))
    }

    /// Adds the history of a change without a draft, if its precondition holds.
    async fn apply_history(
        &self,
        connection: &PostgresConnection,
        change: &Change,
        before: Option<&Record>,
    ) -> Result<Option<Stamp>, PlainError> {
        let mut tx = PostgresStoreTx(connection.client());
        let expected = before.map(|record| record.version);
        if change.expect != Expect::Anything {
            // The lock keeps the record at its version until the commit.
            let locked = record_sql::lock(&mut tx, &change.id, None, LOCK_IDLE_MAX).await?;
            let stored = locked.map(|locked| locked.stored);
            let is_due = stored.as_ref().is_some_and(|stored| stored.record.is_due(stored.now));
            let is_expected = stored.map(|stored| stored.record.version) == expected;
            if !is_expected || matches!(change.expect, Expect::Due(_)) && !is_due {
                return Ok(None);
            }
        }
        let now = read::now(connection).await?;
        for line in &change.history {
            record_sql::add_history(&mut tx, &change.id, line, Some(now)).await?;
        }
        Ok(Some(Stamp { now }))
    }
}

/// A transaction of the store's own.
pub(super) struct PostgresStoreTx<'c>(pub(super) &'c Client);

impl SqlTx for PostgresStoreTx<'_> {
    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    fn execute<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<(), SqlError>> {
        Box::pin(pg_client::run(self.0, statement, params))
    }

    fn query<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<Vec<SqlRow>, SqlError>> {
        Box::pin(pg_client::rows(self.0, statement, params))
    }
}

/// A failure of the driver, or of a statement that callers' transactions share.
#[derive(Debug, thiserror::Error)]
enum PlainError {
    #[error(transparent)]
    Driver(#[from] Error),
    #[error(transparent)]
    Sql(#[from] SqlError),
}

impl PlainError {
    fn scope(&self) -> PostgresErrorScope {
        match self {
            PlainError::Driver(error) => error::scope_of(error),
            // Without one, the row is not what its statement promises.
            PlainError::Sql(error) => {
                sql_store::driver_error(error).map_or(PostgresErrorScope::One, error::scope_of)
            }
        }
    }
}

/// Returns whether the change writes one row of `ibid_record` and nothing else: no history, no bodies, none to delete.
fn is_row_only(change: &Change) -> bool {
    let Some(draft) = &change.draft else { return false };
    let is_small = change.response.as_ref().is_none_or(|response| response.body.len() <= INLINE_BODY_MAX);
    let keeps_generation = draft.created == InstantChange::Keep && draft.birth != change.nonce;
    change.history.is_empty()
        && change.bodies.is_empty()
        && change.uses.is_none()
        && is_small
        && (change.expect == Expect::Absent || keeps_generation && !change.clears_bodies)
}

/// Returns why a change cannot be sent at all.
fn refusal(change: &Change) -> Option<&'static str> {
    if change.expect == Expect::Anything && change.draft.is_some() {
        Some("a change of a record must say what it expects")
    } else if change.body_bytes() > BODY_BYTES_MAX {
        Some("the bodies of a record are too large")
    } else {
        None
    }
}

/// Returns whether the stored record is what the change expects, although the change missed it.
fn still_fits(change: &Change, stored: &StoredRecord) -> bool {
    match change.expect {
        Expect::Version(version) => stored.record.version == version,
        Expect::Due(version) => stored.record.version == version && stored.record.is_due(stored.now),
        Expect::Absent | Expect::Anything => false,
    }
}

fn opening(wait: LockWait) -> &'static str {
    match wait {
        LockWait::Prompt => OPEN_PROMPT,
        LockWait::Patient => OPEN_HOT,
    }
}

const OP: &str = "commit";

/// Begins the transaction of a first try. Most locks are held for a commit's time; a change that meets a longer one must not
/// hold up those behind it.
const OPEN_PROMPT: &str = concat!(include_str!("sql/open_hot.sql"), "; set local lock_timeout = '25ms'");

/// Lets the server end a transaction whose process stopped between two statements. Otherwise a process that is suspended, or
/// cut off by the network, would keep the row locked until the connection is found dead.
const CUT_OFF_IDLE: &str = "set local idle_in_transaction_session_timeout = '10s'";

/// Most tries of a change whose row moves under it: with the pauses about 30 ms, in which any commit ends except
/// one that waits for an operator or a network.
const TRIES_MAX: u32 = 5;

/// First pause, doubled each time.
const PAUSE: Duration = Duration::from_millis(1);

/// Longest time between two statements of a transaction that holds a lock here. They follow each other at once.
const LOCK_IDLE_MAX: Duration = Duration::from_secs(10);

/// Most bytes of bodies with one record: a quarter of what the server takes in one message.
const BODY_BYTES_MAX: usize = 256 << 20;
