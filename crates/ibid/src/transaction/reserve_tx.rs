//! Reservation and completion in the handler's single transaction: one commit in all, for handlers that touch only the
//! database.
//!
//! The reservation is the first statement. A duplicate waits for the row, no longer than the policy's `wait`: those of this
//! process behind one lock and without a connection; those of others by short tries, and without a connection between
//! them, so that however many wait, there is room for a key that nobody has.

use std::sync::Arc;
use std::time::Duration;

use ibid_core::change::{Change, StoredRecord};
use ibid_core::machine::{self, BeginRequest, Decision, Event, Verdict};
use ibid_core::sql::{Database, Dialect, OwnedTx, Param, SqlError, SqlFault, SqlTx, Type};
use ibid_core::time::Timestamp;
use tokio::time::Instant;

use super::attempt_tx::{AttemptTx, TxError, sql};
use super::reserve_queue::ReserveQueue;
use super::statements::{self, DialectSql, Locked, WriteOptions, of};
use crate::attempt::Attempt;
use crate::engine::{Arrival, Decided, ResolvedId, Unavailable, apply_change};
use crate::failpoint::{self, Hit};
use crate::ibid::Ibid;
use crate::outcome::{Begin, Outcome};
use crate::random::nonce;

/// Result of a reservation inside the caller's transaction. With [`Begin::Skip`], no transaction is open.
pub type BeginInside<T> = Begin<Box<AttemptTx<'static, T>>>;

impl Ibid {
    /// Reserves the key inside a transaction of `database`, or says what stands in its way. The transaction is the first
    /// to know: until it commits, nobody else sees the reservation.
    ///
    /// A duplicate waits up to `wait` and is then [`Outcome::InFlight`].
    pub async fn begin_inside<D: Database>(
        &self,
        ask: BeginRequest,
        database: &D,
        wait: Duration,
    ) -> Result<BeginInside<D::Tx>, TxError> {
        let identity = ask.identity.clone();
        let begun = self.try_inside(ask, database, wait).await;
        let arrival = match &begun {
            Ok(Begin::Skip(outcome)) => outcome.arrival(),
            Ok(Begin::Run(inside)) => Arrival::of_run(inside.begun().attempt),
            Err(_) => return begun,
        };
        self.count_request(&identity.tenant, arrival, Instant::now());
        begun
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
        let flights = self.reserve_queue();
        let Ok(flight) = tokio::time::timeout_at(until, flights.enter(ask.id)).await else {
            return Ok(Begin::Skip(in_flight(wait)));
        };
        // Not the client's patience with a duplicate: nobody may have this key.
        let patience = self.engine().begin_timeout;
        let mut permit =
            flights.first_turn(patience).await.ok_or_else(|| Unavailable::refused_early(patience))?;
        let mut gate = Some(self.engine().breaker.enter(Instant::now()).map_err(Unavailable::refused_early)?);
        let policy = store.policy(ask.policy.clone()).await?;
        let (mut moved, mut backoff) = (0, ReserveQueue::backoff());
        while moved < RESERVE_TRIES_MAX {
            if let Some(outcome) = self.cached(&ask) {
                if let Some(pass) = gate.take() {
                    pass.unused();
                }
                return Ok(Begin::Skip(outcome));
            }
            // One nonce names one write.
            ask.nonce = nonce();
            let left = until.saturating_duration_since(Instant::now());
            let Some((tried, is_current)) = self.named_inside(&ask).await? else {
                moved += 1;
                continue;
            };
            let wait = left.min(LOCK_WAIT_MAX);
            let reserved = self.reserve(&tried, is_current, database, policy, wait).await;
            if let Some(pass) = gate.take() {
                match &reserved {
                    Err(TxError::Sql(error)) if error.fault() == SqlFault::Lost => {
                        pass.failed(Instant::now())
                    }
                    _ => pass.answered(),
                }
            }
            match reserved {
                Ok(ReserveTry::Run(entered)) => {
                    drop(permit);
                    let (attempt, tx, held) = *entered;
                    return Ok(Begin::Run(Box::new(AttemptTx::reserving(
                        Box::new(attempt),
                        tx,
                        held,
                        flight,
                    ))));
                }
                Ok(ReserveTry::Skip(outcome)) => return Ok(Begin::Skip(outcome)),
                Ok(ReserveTry::Moved) => moved += 1,
                Err(TxError::Sql(error)) if error.fault() == SqlFault::LockTimeout => {
                    drop(permit);
                    match flights.another_turn(until, &mut backoff).await {
                        Some(turn) => permit = turn,
                        None => break,
                    }
                }
                Err(error) if error.is_retryable() => moved += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(Begin::Skip(in_flight(wait)))
    }

    /// The request under the name that counts, and whether that is its current one; none if that changed meanwhile.
    async fn named_inside(&self, ask: &BeginRequest) -> Result<Option<(Arc<BeginRequest>, bool)>, TxError> {
        let ask = Arc::new(ask.clone());
        if ask.previous.is_empty() {
            return Ok(Some((ask, true)));
        }
        let deadline = Instant::now() + self.engine().begin_timeout;
        let named = self.engine().resolve_id_to_begin(&ask, deadline).await?;
        Ok(named.map(|named| match named {
            ResolvedId::Current(_) => (ask, true),
            ResolvedId::Previous(under, _) => (under, false),
        }))
    }

    /// One transaction's try. Under a previous id a record goes on and none is inserted.
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
            Ok(ReserveWrite::New(decision, held)) => return self.entered(ask, decision, held, tx, at).await,
            Ok(ReserveWrite::Nothing(decision, stored)) => {
                let decided = Decided { ask: ask.clone(), decision, stored: Some(*stored), at };
                Ok(ReserveTry::Skip(self.to_caller_outcome(decided).into_outcome()))
            }
            Ok(ReserveWrite::Late) => Ok(ReserveTry::Moved),
            Err(error) => Err(error),
        };
        if !matches!(&why, Err(TxError::Sql(error)) if error.fault() == SqlFault::Lost) {
            // The connection is good, and whoever comes next needs one. Undone with it if this fails.
            let _ = tx.rollback().await;
        }
        why
    }

    /// Writes the reservation, or finds what stands in its way.
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
        // Zero would mean to wait for ever.
        let wait_ms = wait.as_millis().max(1).to_string();
        let was = wait_for_locks(tx, &wait_ms, ask.policy.lease).await?;
        if is_current && let Some(stamp) = statements::apply(tx, &change, None, policy, terms).await? {
            wait_for_locks(tx, &was, ask.policy.lease).await?;
            let stored = apply_change(&change, stamp, None).ok_or(TxError::LeaseLost)?;
            return Ok(ReserveWrite::New(decision, Locked { stored, policy }));
        }
        // Somebody's row is there, committed; or it was removed since, and one statement sees nothing.
        let Some(Locked { stored, policy: kept }) = statements::read(tx, &ask.id, terms.now).await? else {
            return Ok(ReserveWrite::Late);
        };
        if !is_current && !machine::holds_key(&stored.record, stored.now) {
            return Ok(ReserveWrite::Late);
        }
        let (change, decision) = match machine::decide(Some(&stored.record), &event, stored.now) {
            Verdict::Keep(decision) => return Ok(ReserveWrite::Nothing(decision, Box::new(stored))),
            Verdict::Write(change, decision) => (change, decision),
        };
        let policy = if names_same_policy(&change, &stored) { kept } else { policy };
        let Some(stamp) = statements::apply(tx, &change, Some(&stored.record), policy, terms).await? else {
            return Ok(ReserveWrite::Late);
        };
        wait_for_locks(tx, &was, ask.policy.lease).await?;
        let stored = apply_change(&change, stamp, Some(&stored)).ok_or(TxError::LeaseLost)?;
        Ok(ReserveWrite::New(decision, Locked { stored, policy }))
    }

    /// The record is written in the transaction: to be run there, or it was only a lapse that had to be noticed.
    async fn entered<T: OwnedTx>(
        &self,
        ask: &Arc<BeginRequest>,
        decision: Decision,
        held: Locked,
        mut tx: T,
        at: Instant,
    ) -> Result<ReserveTry<T>, TxError> {
        if !matches!(decision, Decision::Run { .. }) {
            tx.commit().await?;
            let stored = Some(held.stored);
            let decided = Decided { ask: ask.clone(), decision, stored, at };
            return Ok(ReserveTry::Skip(self.to_caller_outcome(decided).into_outcome()));
        }
        if failpoint::at("reserve.after").await == Hit::Error {
            return Err(SqlError::new(SqlFault::Serialization, "a failpoint").into());
        }
        if !self.engine().confirm_identity().await {
            // Undone with the connection if this fails.
            let _ = tx.rollback().await;
            return Err(self.engine().without_identity().into());
        }
        tx.execute(of(&tx, &SAVEPOINT), &[]).await?;
        let attempt = Attempt::unwritten(self.clone(), ask.clone(), held.stored.record.clone(), at);
        Ok(ReserveTry::Run(Box::new((attempt, tx, held))))
    }
}

/// Somebody held it for the whole of this wait, so the next one is worth as much.
fn in_flight(waited: Duration) -> Outcome {
    Outcome::InFlight { retry_in: waited }
}

enum ReserveTry<T> {
    Run(Box<(Attempt, T, Locked)>),
    Skip(Outcome),
    /// It changed in between.
    Moved,
}

/// What a transaction's first statements came to.
enum ReserveWrite {
    /// The record is written as decided.
    New(Decision, Locked),
    /// The record stands as it was.
    Nothing(Decision, Box<StoredRecord>),
    /// Somebody was faster.
    Late,
}

fn names_same_policy(change: &Change, stored: &StoredRecord) -> bool {
    change.draft.as_ref().is_some_and(|draft| draft.policy == stored.record.policy)
}

/// Undoes the work and keeps the reservation.
pub(super) async fn back_to_reservation(tx: &mut dyn SqlTx) -> Result<(), SqlError> {
    let statement = of(tx, &ROLLBACK_TO);
    tx.execute(statement, &[]).await.map(drop)
}

/// From here on the transaction waits so long for a lock, and the server so long for the transaction; how long it waited
/// for locks before.
async fn wait_for_locks(tx: &mut dyn SqlTx, wait: &str, lease: Duration) -> Result<String, SqlError> {
    if tx.dialect() == Dialect::Sqlite {
        // It has the file's only write lock since it began.
        return Ok(String::new());
    }
    let idle_ms = lease.as_millis().clamp(1, WAIT_MS_MAX).to_string();
    let statement = of(tx, &LOCK_WAIT);
    let rows = tx.query(statement, &[Param::Text(wait), Param::Text(&idle_ms)]).await?;
    rows.into_iter().next().ok_or_else(|| SqlError::wrong("a setting"))?.text()
}

static SAVEPOINT: DialectSql = DialectSql::same("savepoint ibid_reserved", &[]);
static ROLLBACK_TO: DialectSql = DialectSql::same("rollback to savepoint ibid_reserved", &[]);
static LOCK_WAIT: DialectSql = DialectSql::new(include_str!("sql/postgres/lock_wait.sql"), "", &[Type::Text]);

/// How often one request tries anew after a lost race. As for every begin: after four it is moving fast.
const RESERVE_TRIES_MAX: u32 = 4;

/// How long one try waits inside the database for another's row: longer than most transactions take, so that most
/// duplicates need no second try; so short that eight of them hold a fresh key up for a moment only.
const LOCK_WAIT_MAX: Duration = Duration::from_millis(20);

/// A longer wait than a day is no wait.
const WAIT_MS_MAX: u128 = 86_400_000;
