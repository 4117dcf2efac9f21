//! Reserves the key inside the handler's transaction, so that reservation, rows and response are one commit. For handlers that
//! use only the database.
//!
//! The reservation is the first statement. A duplicate waits for the row, at most as long as the policy's `wait`. Duplicates
//! in the same process wait behind one lock, without a connection. Duplicates of another process's key make short tries, and
//! hold no connection between them. So new keys find a free connection however many duplicates wait.

use std::sync::Arc;
use std::time::Duration;

use ibid_core::change::{Change, StoredRecord};
use ibid_core::machine::{self, BeginRequest, Decision, Event, Verdict};
use ibid_core::sql::{Database, Dialect, OwnedTx, Param, SqlError, SqlFault, SqlTx, Type};
use ibid_core::time::Timestamp;
use tokio::time::Instant;

use super::attempt_tx::{AttemptTx, TxError, sql};
use super::mysql_limits;
use super::reserve_queue::ReserveQueue;
use crate::attempt::Attempt;
use crate::engine::{Arrival, DecidedRequest, Pass, ResolvedId, UnavailableError, apply_change};
use crate::failpoint::{self, Hit};
use crate::ibid::Ibid;
use crate::outcome::{Begin, Outcome};
use crate::random::nonce;
use crate::record_sql::{self, DialectSql, ReadRecord, WriteOptions, in_dialect};

/// Result of a reservation inside the caller's transaction. With [`Begin::Skip`], no transaction is open.
pub type BeginInside<T> = Begin<Box<AttemptTx<'static, T>>>;

impl Ibid {
    /// Reserves the key inside a new transaction of `database`, or returns the outcome that prevents it. Other transactions
    /// do not see the reservation until this one commits.
    ///
    /// A duplicate waits up to `wait` and then gets [`Outcome::InFlight`].
    ///
    /// # Errors
    ///
    /// Fails if the store is not an SQL store or belongs to another kind of database, if the engine refuses begins
    /// ([`TxError::Unavailable`]), or if the database fails. No transaction is left open.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future rolls its transaction back and leaves no reservation behind.
    pub async fn begin_inside<D: Database>(
        &self,
        ask: BeginRequest,
        database: &D,
        wait: Duration,
    ) -> Result<BeginInside<D::Tx>, TxError> {
        let identity = ask.identity.clone();
        let begin = self.try_inside(ask, database, wait).await;
        let arrival = match &begin {
            Ok(Begin::Skip(outcome)) => outcome.arrival(),
            Ok(Begin::Run(inside)) => Arrival::of_run(inside.begun_record().attempt),
            Err(_) => return begin,
        };
        self.count_request(&identity.tenant, arrival, Instant::now());
        begin
    }

    async fn try_inside<D: Database>(
        &self,
        ask: BeginRequest,
        database: &D,
        wait: Duration,
    ) -> Result<BeginInside<D::Tx>, TxError> {
        let store = sql(self)?;
        if !self.is_identity_active() {
            return Err(self.engine().without_identity().into());
        }
        let until = Instant::now() + wait;
        let mut ask = ask;
        let queue = self.reserve_queue();
        let Ok(key_lock) = tokio::time::timeout_at(until, queue.lock_key(ask.id)).await else {
            return Ok(Begin::Skip(in_flight(wait)));
        };
        // Not `wait`, which bounds the wait for a duplicate: this key may be free.
        let timeout = self.engine().begin_timeout;
        let mut permit =
            queue.first_permit(timeout).await.ok_or_else(|| UnavailableError::refused_early(timeout))?;
        let mut gate =
            Some(self.engine().breaker.enter(Instant::now()).map_err(UnavailableError::refused_early)?);
        let policy = store.policy(ask.policy.clone()).await?;
        let (mut lost_races, mut backoff) = (0, ReserveQueue::backoff());
        while lost_races < RESERVE_TRIES_MAX {
            if let Some(outcome) = self.find_cached(&ask) {
                if let Some(pass) = gate.take() {
                    pass.cancel();
                }
                return Ok(Begin::Skip(outcome));
            }
            // Each write needs a new nonce.
            ask.nonce = nonce();
            let left = until.saturating_duration_since(Instant::now());
            let Some((resolved, is_current)) = self.resolve_id(&ask).await? else {
                lost_races += 1;
                continue;
            };
            let wait = left.min(LOCK_WAIT_MAX);
            let reserved = self.reserve(&resolved, is_current, database, policy, wait).await;
            if let Some(pass) = gate.take() {
                report(pass, &reserved);
            }
            match reserved {
                Ok(ReserveTry::Run(run)) => {
                    drop(permit);
                    let (attempt, tx, locked) = *run;
                    return Ok(Begin::Run(Box::new(AttemptTx::reserving(
                        Box::new(attempt),
                        tx,
                        locked,
                        key_lock,
                    ))));
                }
                Ok(ReserveTry::Skip(outcome)) => return Ok(Begin::Skip(outcome)),
                Ok(ReserveTry::Moved) => lost_races += 1,
                Err(TxError::Sql(error)) if error.fault() == SqlFault::LockTimeout => {
                    drop(permit);
                    match queue.next_permit(until, &mut backoff).await {
                        Some(next) => permit = next,
                        None => break,
                    }
                }
                Err(error) if error.is_retryable() => lost_races += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(Begin::Skip(in_flight(wait)))
    }

    /// Returns the request under the record id that is in force, and whether that is the current one. Returns `None` if the
    /// id changed meanwhile.
    async fn resolve_id(&self, ask: &BeginRequest) -> Result<Option<(Arc<BeginRequest>, bool)>, TxError> {
        let ask = Arc::new(ask.clone());
        if ask.previous.is_empty() {
            return Ok(Some((ask, true)));
        }
        let deadline = Instant::now() + self.engine().begin_timeout;
        let resolved = self.engine().resolve_id_to_begin(&ask, deadline).await?;
        Ok(resolved.map(|resolved| match resolved {
            ResolvedId::Current(_) => (ask, true),
            ResolvedId::Previous(previous, _) => (previous, false),
        }))
    }

    /// Tries to reserve in one transaction. Under a previous id it continues an existing record and inserts none.
    async fn reserve<D: Database>(
        &self,
        ask: &Arc<BeginRequest>,
        is_current: bool,
        database: &D,
        policy: i64,
        wait: Duration,
    ) -> Result<ReserveTry<D::Tx>, TxError> {
        let mut tx = database.begin().await?;
        let at = Instant::now();
        let why = match self.write(ask, is_current, &mut tx, policy, wait).await {
            Ok(ReserveWrite::New(decision, locked)) => {
                return self.start_or_commit(ask, decision, locked, tx, at).await;
            }
            Ok(ReserveWrite::Nothing(decision, stored)) => {
                let decided = DecidedRequest::without_run(ask, decision, Some(*stored), at);
                Ok(ReserveTry::Skip(self.to_caller_outcome(decided).into_outcome()))
            }
            Ok(ReserveWrite::Late) => Ok(ReserveTry::Moved),
            Err(error) => Err(error),
        };
        if !matches!(&why, Err(TxError::Sql(error)) if error.fault() == SqlFault::Lost) {
            // The connection still works, so return it to the pool. If this fails, the database rolls back when it closes.
            let _ = tx.rollback().await;
        }
        why
    }

    /// Writes the reservation, or finds the record that prevents it.
    async fn write(
        &self,
        ask: &Arc<BeginRequest>,
        is_current: bool,
        tx: &mut dyn SqlTx,
        policy: i64,
        wait: Duration,
    ) -> Result<ReserveWrite, TxError> {
        let store = sql(self)?;
        if store.dialect() != tx.dialect() {
            return Err(TxError::OtherDialect);
        }
        let terms = WriteOptions::of(store);
        let event = Event::Request { ask, role: self.engine().role(&ask.policy) };
        let Verdict::Write(change, decision) = machine::decide(None, &event, Timestamp::default()) else {
            return Err(TxError::Ended);
        };
        // Zero would mean to wait without a limit.
        let wait_ms = wait.as_millis().max(1).to_string();
        let old_wait = set_lock_wait(tx, &wait_ms, ask.policy.lease).await?;
        if is_current && let Some(stamp) = record_sql::apply(tx, &change, None, policy, terms).await? {
            set_lock_wait(tx, &old_wait, ask.policy.lease).await?;
            let stored = apply_change(&change, stamp, None).ok_or(TxError::LeaseLost)?;
            return Ok(ReserveWrite::New(decision, ReadRecord { stored, policy }));
        }
        // Another transaction's row is there, committed. Or it was removed since, and then this statement finds nothing.
        let Some(ReadRecord { stored, policy: stored_policy }) =
            record_sql::read(tx, &ask.id, terms.now).await?
        else {
            return Ok(ReserveWrite::Late);
        };
        if !is_current && !machine::holds_key(&stored.record, stored.now) {
            return Ok(ReserveWrite::Late);
        }
        let (change, decision) = match machine::decide(Some(&stored.record), &event, stored.now) {
            Verdict::Keep(decision) => return Ok(ReserveWrite::Nothing(decision, Box::new(stored))),
            Verdict::Write(change, decision) => (change, decision),
        };
        let policy = if names_same_policy(&change, &stored) { stored_policy } else { policy };
        let Some(stamp) = record_sql::apply(tx, &change, Some(&stored.record), policy, terms).await? else {
            return Ok(ReserveWrite::Late);
        };
        set_lock_wait(tx, &old_wait, ask.policy.lease).await?;
        let stored = apply_change(&change, stamp, Some(&stored)).ok_or(TxError::LeaseLost)?;
        Ok(ReserveWrite::New(decision, ReadRecord { stored, policy }))
    }

    /// Starts the attempt in the transaction that has just written the record. If the machine decided otherwise, the write
    /// only settled a lapse: commits it and returns the outcome.
    async fn start_or_commit<T: OwnedTx>(
        &self,
        ask: &Arc<BeginRequest>,
        decision: Decision,
        locked: ReadRecord,
        mut tx: T,
        at: Instant,
    ) -> Result<ReserveTry<T>, TxError> {
        if !matches!(decision, Decision::Run { .. }) {
            tx.commit().await?;
            let decided = DecidedRequest::without_run(ask, decision, Some(locked.stored), at);
            return Ok(ReserveTry::Skip(self.to_caller_outcome(decided).into_outcome()));
        }
        if failpoint::at("reserve.after").await == Hit::Error {
            return Err(SqlError::new(SqlFault::Serialization, "a failpoint").into());
        }
        if !self.engine().confirm_identity().await {
            // If this fails, the database rolls back when the connection closes.
            let _ = tx.rollback().await;
            return Err(self.engine().without_identity().into());
        }
        tx.execute(in_dialect(&tx, &SAVEPOINT), &[]).await?;
        let attempt = Attempt::unwritten(self.clone(), ask.clone(), locked.stored.record.clone(), at);
        Ok(ReserveTry::Run(Box::new((attempt, tx, locked))))
    }
}

/// Returns the outcome for a duplicate that has waited in vain. The other transaction held the key for all of the wait, so
/// the client should wait that long again.
/// Tells the breaker whether the store answered the first reservation of a request.
fn report<T>(pass: Pass<'_>, reserved: &Result<ReserveTry<T>, TxError>) {
    match reserved {
        Err(TxError::Sql(error)) if error.fault() == SqlFault::Lost => pass.report_failure(Instant::now()),
        _ => pass.report_reply(),
    }
}

fn in_flight(waited: Duration) -> Outcome {
    Outcome::InFlight { retry_in: waited }
}

enum ReserveTry<T> {
    Run(Box<(Attempt, T, ReadRecord)>),
    Skip(Outcome),
    /// Another process changed or removed the record during this try.
    Moved,
}

/// Result of the first statements of a transaction.
enum ReserveWrite {
    /// The record is written as decided.
    New(Decision, ReadRecord),
    /// The record was left as it was.
    Nothing(Decision, Box<StoredRecord>),
    /// Another process changed or removed the record first.
    Late,
}

fn names_same_policy(change: &Change, stored: &StoredRecord) -> bool {
    change.draft.as_ref().is_some_and(|draft| draft.policy == stored.record.policy)
}

/// Rolls back the caller's rows and keeps the reservation.
pub(super) async fn back_to_reservation(tx: &mut dyn SqlTx) -> Result<(), SqlError> {
    let statement = in_dialect(tx, &ROLLBACK_TO);
    tx.execute(statement, &[]).await
}

/// Sets how long the transaction waits for a lock, and bounds its idle time by the lease. Returns the previous lock wait.
async fn set_lock_wait(tx: &mut dyn SqlTx, wait: &str, lease: Duration) -> Result<String, SqlError> {
    match tx.dialect() {
        Dialect::Postgres => {}
        // A SQLite transaction has held the file's only write lock since it began.
        Dialect::Sqlite => return Ok(String::new()),
        // The session keeps the previous wait.
        Dialect::Mysql if wait.is_empty() => {
            return mysql_limits::restore_lock_wait(tx).await.map(|()| String::new());
        }
        Dialect::Mysql => return mysql_limits::limit_waits(tx, lease).await.map(|()| String::new()),
    }
    let idle_ms = lease.as_millis().clamp(1, WAIT_MS_MAX).to_string();
    let statement = in_dialect(tx, &LOCK_WAIT);
    let rows = tx.query(statement, &[Param::Text(wait), Param::Text(&idle_ms)]).await?;
    rows.into_iter().next().ok_or_else(|| SqlError::mismatch("a setting"))?.text()
}

static SAVEPOINT: DialectSql = DialectSql::same("savepoint ibid_reserved", &[]);
static ROLLBACK_TO: DialectSql = DialectSql::same("rollback to savepoint ibid_reserved", &[]);
static LOCK_WAIT: DialectSql =
    DialectSql::new(include_str!("sql/postgres/lock_wait.sql"), "", "", &[Type::Text]);

/// Tries of one request that may lose a race. As for every begin, a record that wins four times is changing too fast.
const RESERVE_TRIES_MAX: u32 = 4;

/// Longest time that one try waits inside the database for another transaction's row. Most transactions are shorter, so most
/// duplicates need no second try. Eight duplicates in a row still delay a new key only briefly.
const LOCK_WAIT_MAX: Duration = Duration::from_millis(20);

/// Longest idle time of a transaction that is sent to the server, in milliseconds: a day.
const WAIT_MS_MAX: u128 = 86_400_000;
