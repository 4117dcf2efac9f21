//! The plain path: one change is one transaction, through the statements that callers' transactions use as well.

use std::time::Duration;

use ibid_core::change::{Change, Commit, Expect, Stamp, StoredRecord};
use ibid_core::record::Record;
use ibid_core::row::micros;
use ibid_core::sql::{Param, SqlError, SqlTx, Statement};
use ibid_core::store::StoreError;

use super::connection::{MysqlConnection, MysqlStoreTx};
use super::error::{self, MysqlErrorScope};
use super::{KIND, MysqlCore, policies};
use crate::record_sql::{self, WriteOptions};
use crate::store::commit_queue::{LockWait, PlainOutcome};

/// The outcome of one try.
enum MysqlTryOutcome {
    Done(Stamp),
    /// Another row is stored than the change expects.
    Conflict(Option<Box<StoredRecord>>),
    /// The row that is stored cannot be read.
    Unreadable(&'static str),
    /// The row changed between two statements, or it is locked and the change must not wait.
    Missed(Option<Box<StoredRecord>>),
}

impl MysqlCore {
    /// Commits one change, or finds the record that keeps it from being written.
    pub(super) async fn commit_alone(&self, change: &Change, wait: LockWait) -> PlainOutcome {
        let mut connection = match self.pools.short(OP).await {
            Ok(connection) => connection,
            Err(error) => return PlainOutcome::Result(Err(error)),
        };
        if let Some(reason) = refusal(change, connection.server.literal_bytes_max()) {
            return PlainOutcome::Result(Err(StoreError::lasting(KIND, OP, reason).unwritten()));
        }
        match self.commit_on(&mut connection, change, wait).await {
            Ok(PlainOutcome::Contended) if wait == LockWait::Patient => {
                let error = StoreError::row_locked(KIND, OP, "the record is locked");
                PlainOutcome::Result(Err(error))
            }
            Ok(outcome) => outcome,
            Err(error) => match error::scope_of_sql(&error) {
                MysqlErrorScope::Contended if wait == LockWait::Prompt => PlainOutcome::Contended,
                // It was rolled back.
                MysqlErrorScope::Contended => {
                    PlainOutcome::Result(Err(StoreError::row_locked(KIND, OP, error)))
                }
                MysqlErrorScope::One => {
                    PlainOutcome::Result(Err(StoreError::lasting(KIND, OP, error).unwritten()))
                }
                MysqlErrorScope::Lasting => PlainOutcome::Result(Err(StoreError::lasting(KIND, OP, error))),
                MysqlErrorScope::Moment => PlainOutcome::Result(Err(StoreError::transient(KIND, OP, error))),
            },
        }
    }

    /// Tries until the change is written or a record is found that keeps it from that.
    async fn commit_on(
        &self,
        connection: &mut MysqlConnection,
        change: &Change,
        wait: LockWait,
    ) -> Result<PlainOutcome, SqlError> {
        let policy = match &change.draft {
            None => 0,
            Some(draft) => {
                let numbered = self.policies.number(&draft.policy);
                let stored = policies::ensure_stored(connection, std::slice::from_ref(&numbered)).await;
                stored.map_err(error::sql_error)?;
                numbered.digest
            }
        };
        for tries in 0..TRIES_MAX {
            if tries > 0 {
                tokio::time::sleep(PAUSE * (1 << tries)).await;
            }
            let is_last = tries + 1 == TRIES_MAX;
            connection.begin().await.map_err(error::sql_error)?;
            let tried = self.apply_all(connection, change, policy, wait).await;
            let end = if matches!(tried, Ok(MysqlTryOutcome::Done(_))) { "commit" } else { "rollback" };
            // After a failure the transaction is rolled back as well: a lock wait alone would leave it open, and the next
            // `start transaction` would commit its first half.
            let ended = connection.end(end).await;
            let result = match tried? {
                MysqlTryOutcome::Done(stamp) => {
                    ended.map_err(error::sql_error)?;
                    Ok(Commit::Done(stamp))
                }
                MysqlTryOutcome::Conflict(stored) => Ok(Commit::Conflict(stored)),
                MysqlTryOutcome::Unreadable(reason) => Err(StoreError::lasting(KIND, OP, reason).unwritten()),
                // The lock holder may still renew or finish. To a takeover that is a lost race, and its caller decides again.
                MysqlTryOutcome::Missed(Some(stored))
                    if is_last && matches!(change.expect, Expect::Due(_)) =>
                {
                    Ok(Commit::Conflict(Some(stored)))
                }
                MysqlTryOutcome::Missed(_) => continue,
            };
            return Ok(PlainOutcome::Result(result));
        }
        Ok(PlainOutcome::Contended)
    }

    /// Looks at the record, and applies the change if the record is what the change expects.
    async fn apply_all(
        &self,
        connection: &mut MysqlConnection,
        change: &Change,
        policy: i64,
        wait: LockWait,
    ) -> Result<MysqlTryOutcome, SqlError> {
        let before = match change.expect {
            Expect::Anything => None,
            _ => match self.load_on(connection, change.id).await.map_err(error::sql_error)? {
                Ok(stored) => stored,
                // The row that keeps it from being written cannot be read.
                Err(reason) => return Ok(MysqlTryOutcome::Unreadable(reason.0)),
            },
        };
        let before = before.map(Box::new);
        if !fits(change, before.as_deref()) {
            return Ok(MysqlTryOutcome::Conflict(before));
        }
        let mut tx = MysqlStoreTx(connection);
        if before.is_some() && wait == LockWait::Prompt && !is_free(&mut tx, change).await? {
            return Ok(MysqlTryOutcome::Missed(before));
        }
        let record = before.as_ref().map(|stored| &*stored.record);
        let stamp = match change.draft {
            Some(_) => record_sql::apply(&mut tx, change, record, policy, WriteOptions::of(self)).await?,
            None => apply_history(&mut tx, change, record).await?,
        };
        let Some(stamp) = stamp else { return Ok(MysqlTryOutcome::Missed(before)) };
        if let Some(name) = &change.uses {
            let params =
                [Param::Text(&name.source), Param::Text(&name.event), Param::I64(micros(USED_KEPT_FOR))];
            tx.execute(&EVIDENCE_USE, &params).await?;
        }
        Ok(MysqlTryOutcome::Done(stamp))
    }
}

/// Adds the history of a change without a draft, if its precondition holds.
async fn apply_history(
    tx: &mut MysqlStoreTx<'_>,
    change: &Change,
    before: Option<&Record>,
) -> Result<Option<Stamp>, SqlError> {
    if change.expect != Expect::Anything {
        // The lock keeps the record at its version until the commit.
        let locked = record_sql::lock(tx, &change.id, None, LOCK_IDLE_MAX).await?;
        let stored = locked.map(|locked| locked.stored);
        let is_due = stored.as_ref().is_some_and(|stored| stored.record.is_due(stored.now));
        let is_expected = stored.map(|stored| stored.record.version) == before.map(|record| record.version);
        if !is_expected || matches!(change.expect, Expect::Due(_)) && !is_due {
            return Ok(None);
        }
    }
    let now = now(tx).await?;
    for line in &change.history {
        record_sql::add_history(tx, &change.id, line, Some(now)).await?;
    }
    Ok(Some(Stamp { now }))
}

/// Returns the server's time.
async fn now(tx: &mut MysqlStoreTx<'_>) -> Result<ibid_core::time::Timestamp, SqlError> {
    let mut rows = tx.query(&NOW, &[]).await?;
    let mut row = rows.pop().ok_or_else(|| SqlError::mismatch("the time"))?;
    row.i64().map(ibid_core::time::Timestamp::from_micros)
}

/// Locks the record, unless another transaction has locked it.
async fn is_free(tx: &mut MysqlStoreTx<'_>, change: &Change) -> Result<bool, SqlError> {
    Ok(!tx.query(&LOCK_FREE, &[Param::Bytes(change.id.as_bytes())]).await?.is_empty())
}

/// Returns whether what is stored is what the change expects.
fn fits(change: &Change, stored: Option<&StoredRecord>) -> bool {
    match (change.expect, stored) {
        (Expect::Anything, _) | (Expect::Absent, None) => true,
        (Expect::Version(version), Some(stored)) => stored.record.version == version,
        (Expect::Due(version), Some(stored)) => {
            stored.record.version == version && stored.record.is_due(stored.now)
        }
        _ => false,
    }
}

/// Returns why a change cannot be sent at all. A body is one literal of one statement.
fn refusal(change: &Change, body_max: usize) -> Option<&'static str> {
    let bodies = change.bodies.iter().map(|body| body.data.len());
    let response = change.response.as_ref().map_or(0, |response| response.body.len());
    let largest = bodies.chain([response]).max().unwrap_or(0);
    if change.expect == Expect::Anything && change.draft.is_some() {
        Some("a change of a record must say what it expects")
    } else if largest > body_max {
        Some("a body is larger than half of the server's max_allowed_packet")
    } else {
        None
    }
}

const OP: &str = "commit";

static NOW: Statement = Statement {
    text: "select timestampdiff(microsecond, '1970-01-01', utc_timestamp(6))",
    columns: &[ibid_core::sql::Type::I64],
};
static LOCK_FREE: Statement =
    Statement { text: include_str!("sql/lock_free.sql"), columns: &[ibid_core::sql::Type::I64] };
static EVIDENCE_USE: Statement = Statement { text: include_str!("sql/evidence_use.sql"), columns: &[] };

use ibid_core::evidence::USED_KEPT_FOR;

/// Most tries of a change whose row moves under it or is locked: with the pauses about 30 ms, in which any commit ends except
/// one that waits for an operator or a network.
const TRIES_MAX: u32 = 5;

/// First pause, doubled each time.
const PAUSE: Duration = Duration::from_millis(1);

/// PostgreSQL's; MariaDB ends an idle transaction by a setting of the session.
const LOCK_IDLE_MAX: Duration = Duration::from_secs(10);
