//! Sends one flight, and takes out the changes that would fail it.

use std::sync::Arc;

use ibid_core::change::{Commit, Stamp, StoredRecord};
use ibid_core::record::Version;
use ibid_core::row::{UnreadableRowError, bits};
use ibid_core::scope::RecordId;
use ibid_core::store::StoreError;
use ibid_core::time::Timestamp;
use tokio_postgres::types::{FromSql, Type};
use tokio_postgres::{Error, Row};

use super::super::connection::{Param, PostgresConnection};
use super::super::error::{self, PostgresErrorScope};
use super::super::row::{NestedRow, NestedRows, SqlId};
use super::super::{KIND, PostgresCore, policies};
use super::encode::{FinishRow, FreshRow};
use super::row_location::Tid;
use crate::store::commit_queue::{FlightBatch, FlightOutcome, Item};

/// The changes of a flight, the finishes with the locations of their rows.
type LocatedBatch = FlightBatch<Tid>;

/// Sends a flight, again without the changes that would fail it. Each change gets an outcome.
pub(super) async fn send_flight(core: &PostgresCore, batch: LocatedBatch) -> Vec<(Item, FlightOutcome)> {
    let mut landed = Vec::with_capacity(batch.len());
    let connection = match core.pools.hot(OP).await {
        Ok(connection) => connection,
        Err(error) => {
            fail_all(batch, &mut landed, share(error));
            return landed;
        }
    };
    let mut left = batch;
    let mut looks = core.taken_ids.may_be_met();
    let mut waits = 0;
    for _ in 0..TRIES_MAX {
        if left.is_empty() {
            return landed;
        }
        let sent = FlightRequest { core, connection: &connection, batch: &left, looks }.send().await;
        let error = match sent {
            Ok(results) => {
                landed.extend(left.into_iter().zip(results).map(|((item, _), outcome)| (item, outcome)));
                return landed;
            }
            Err(SendError::Doubt) => {
                let doubt = || StoreError::transient(KIND, OP, "the commit came with a warning");
                fail_all(left, &mut landed, doubt);
                return landed;
            }
            Err(SendError::Sql(error)) => error,
        };
        // Without a look, an insert also waits for a transaction that has changed the row of a taken id.
        let culprit = Culprit::of(&error);
        let has_waited =
            error::scope_of(&error) == PostgresErrorScope::Contended && !culprit.is_finish_of(&left);
        if !looks && (error::is_taken(&error) || has_waited) {
            // Nothing was written. The same flight finds the taken ids by a look.
            core.taken_ids.note(true);
            looks = true;
            continue;
        }
        match error::scope_of(&error) {
            PostgresErrorScope::Moment => {
                let error = Arc::new(error);
                fail_all(left, &mut landed, || StoreError::transient(KIND, OP, error.clone()));
                return landed;
            }
            PostgresErrorScope::Lasting => {
                let error = Arc::new(error);
                fail_all(left, &mut landed, || StoreError::lasting(KIND, OP, error.clone()));
                return landed;
            }
            PostgresErrorScope::Contended | PostgresErrorScope::One => {
                let is_lock = error::scope_of(&error) == PostgresErrorScope::Contended;
                waits += u32::from(is_lock);
                let (stays, goes) = split(left, culprit, is_lock, waits);
                landed.extend(goes.into_iter().map(|(item, _)| (item, FlightOutcome::Plain)));
                left = stays;
            }
        }
    }
    landed.extend(left.into_iter().map(|(item, _)| (item, FlightOutcome::Plain)));
    landed
}

/// Splits a flight that failed because of one of its changes: those that fly again, and those that go by the plain path.
/// `is_lock` says that it waited for a lock in vain, and `waits` how often this flight has done so.
fn split(batch: LocatedBatch, culprit: Culprit, is_lock: bool, waits: u32) -> (LocatedBatch, LocatedBatch) {
    let is_finish = |(_, tid): &(Item, Option<Tid>)| tid.is_some();
    if batch.iter().any(|change| culprit.is(change)) {
        // Each locked row costs another wait, and everyone else in the flight waits with it.
        let goes_all = waits >= LOCK_WAITS_MAX && culprit.is_finish_of(&batch);
        return batch.into_iter().partition(|change| !(culprit.is(change) || goes_all && is_finish(change)));
    }
    // Bad data may be anywhere; a lock that is not named is most likely that of an insert.
    match is_lock && !batch.iter().all(is_finish) {
        true => batch.into_iter().partition(is_finish),
        false => (Vec::new(), batch),
    }
}

/// The change that a flight failed for, as the server names it.
#[derive(Clone, Copy)]
enum Culprit {
    /// A begin, by its id.
    Id(RecordId),
    /// A finish, by its row location. For a begin that waits for another insert the server names the new row's, which is no finish's.
    Tid(Tid),
    Unnamed,
}

impl Culprit {
    fn of(error: &Error) -> Culprit {
        let tid = || error::locked_tid(error).and_then(|text| Tid::parse(&text));
        let id = error::violated_id(error).map(Culprit::Id);
        id.or_else(|| tid().map(Culprit::Tid)).unwrap_or(Culprit::Unnamed)
    }

    fn is(self, (item, tid): &(Item, Option<Tid>)) -> bool {
        match self {
            Culprit::Id(id) => tid.is_none() && item.change.id == id,
            Culprit::Tid(at) => *tid == Some(at),
            Culprit::Unnamed => false,
        }
    }

    /// Returns whether it is a finish of this flight.
    fn is_finish_of(self, batch: &LocatedBatch) -> bool {
        matches!(self, Culprit::Tid(_)) && batch.iter().any(|change| self.is(change))
    }
}

/// A flight that is being sent.
struct FlightRequest<'a> {
    core: &'a PostgresCore,
    connection: &'a PostgresConnection,
    /// In the order of ids.
    batch: &'a [(Item, Option<Tid>)],
    /// `true` if begins look for taken ids first. Otherwise the statement gets no ids to look for.
    looks: bool,
}

/// A flight without a result.
enum SendError {
    Sql(Error),
    /// A warning came with the commit.
    Doubt,
}

impl From<Error> for SendError {
    fn from(error: Error) -> SendError {
        SendError::Sql(error)
    }
}

impl FlightRequest<'_> {
    /// Sends the flight and returns the outcome of each change, in their order.
    async fn send(&self) -> Result<Vec<FlightOutcome>, SendError> {
        let numbers = self.core.policies.of(self.batch.iter().map(|(item, _)| &*item.change));
        policies::ensure_stored(self.connection, &numbers.0).await?;
        let [fresh, finish] = self.connection.row_types().await?.clone();
        let (mut begins, mut finishes, mut ids) = (Vec::new(), Vec::new(), Vec::new());
        for (Item { change, .. }, tid) in self.batch {
            // Only changes with a draft fly.
            let Some(draft) = &change.draft else { continue };
            match (*tid, change.expect) {
                (Some(tid), ibid_core::change::Expect::Version(Version { nonce: was, .. })) => {
                    finishes.push(FinishRow { change, draft, was, tid });
                }
                _ => {
                    if self.looks {
                        ids.push(SqlId(change.id));
                    }
                    begins.push(FreshRow { change, draft, policy: numbers.number(&draft.policy) });
                }
            }
        }
        // Rows that were begun together are neighbours, so their pages are visited one after the other.
        finishes.sort_unstable_by_key(|row| row.tid.0);
        let has_bodies = finishes.iter().any(FinishRow::has_large_body);
        let (fresh, finish): (Param<'_>, Param<'_>) = ((&begins, fresh), (&finishes, finish));
        let ids: Param<'_> = (&ids, Type::UUID_ARRAY);
        let (sql, params) = match (begins.is_empty(), finishes.is_empty()) {
            (true, _) if !has_bodies => (FLIGHT_FINISH, vec![finish]),
            (_, true) if !self.looks => (FLIGHT_BEGIN, vec![fresh]),
            _ if has_bodies => (FLIGHT_BODIES, vec![fresh, finish, ids]),
            _ => (FLIGHT, vec![fresh, finish, ids]),
        };
        self.connection.forget_warnings();
        let rows = self.connection.query_hot(sql, &params).await?;
        if self.connection.was_warned() {
            return Err(SendError::Doubt);
        }
        let Some(row) = rows.first() else {
            // A pooler gave us another session than before.
            self.connection.set_has_settings(false);
            return Ok(self.batch.iter().map(|_| FlightOutcome::Plain).collect());
        };
        let now = Timestamp::from_micros(row.try_get(0)?);
        let (tids, done): (Vec<Tid>, Vec<i64>) = (column(row, 1)?, column(row, 2)?);
        let NestedRows(taken) = column(row, 3)?;
        if !begins.is_empty() {
            self.core.taken_ids.note(!taken.is_empty());
        }
        let named = taken.iter().filter_map(NestedRow::policy);
        let policies = policies::learn(&self.core.policies, self.connection, named).await?;
        let taken = taken.iter().filter_map(|row| Some((row.id()?, row.to_stored(&policies, now)))).collect();
        let results = Results { now, tids, done, taken, all_done: finishes.len(), begun: begins.len() };
        Ok(self.outcomes(results, &begins))
    }

    fn outcomes(&self, mut results: Results, begins: &[FreshRow<'_>]) -> Vec<FlightOutcome> {
        let stamp = Stamp { now: results.now };
        let all_done = results.done.len() == results.all_done;
        // All begins whose ids were free were inserted, in the order in which they were sent.
        let are_begun = results.tids.len() + results.taken.len() == results.begun;
        let mut tids = results.tids.iter();
        let mut begins = begins.iter();
        let outcome = |(item, tid): &(Item, Option<Tid>)| {
            let change = &item.change;
            if tid.is_some() {
                let is_done = all_done || results.done.contains(&bits(change.nonce));
                return if is_done {
                    FlightOutcome::Reply(Ok(Commit::Done(stamp)))
                } else {
                    FlightOutcome::Plain
                };
            }
            let begin = begins.next();
            if let Some(at) = results.taken.iter().position(|(id, _)| *id == change.id) {
                return match results.taken.swap_remove(at).1 {
                    Ok(stored) => FlightOutcome::Reply(Ok(Commit::Conflict(Some(Box::new(stored))))),
                    // The row keeps this change from being written.
                    Err(reason) => {
                        FlightOutcome::Reply(Err(StoreError::lasting(KIND, OP, reason).unwritten()))
                    }
                };
            }
            match (begin, tids.next()) {
                (Some(begin), Some(tid)) if are_begun => {
                    self.core.locations.insert(change, begin.draft, begin.policy, *tid);
                    FlightOutcome::Reply(Ok(Commit::Done(stamp)))
                }
                _ => FlightOutcome::Plain,
            }
        };
        self.batch.iter().map(outcome).collect()
    }
}

/// The row that a flight returned.
struct Results {
    now: Timestamp,
    /// Locations of the begun records.
    tids: Vec<Tid>,
    /// Nonces of the finished records.
    done: Vec<i64>,
    /// Stored records whose ids were taken.
    taken: Vec<(RecordId, Result<StoredRecord, UnreadableRowError>)>,
    /// Number of finishes that were sent.
    all_done: usize,
    /// Number of begins that were sent.
    begun: usize,
}

/// Reads a column of a flight's row: empty if the statement does not return it.
fn column<'r, T: FromSql<'r> + Default>(row: &'r Row, index: usize) -> Result<T, Error> {
    match index < row.len() {
        true => Ok(row.try_get::<_, Option<T>>(index)?.unwrap_or_default()),
        false => Ok(T::default()),
    }
}

fn fail_all(
    batch: LocatedBatch,
    landed: &mut Vec<(Item, FlightOutcome)>,
    mut error: impl FnMut() -> StoreError,
) {
    landed.extend(batch.into_iter().map(|(item, _)| (item, FlightOutcome::Reply(Err(error())))));
}

/// Returns a function that gives each change of a flight the same error.
fn share(error: StoreError) -> impl FnMut() -> StoreError {
    let (is_transient, is_unwritten) = (error.is_transient(), error.is_unwritten());
    let error = Arc::new(error);
    move || {
        let shared = match is_transient {
            true => StoreError::transient(KIND, OP, error.clone()),
            false => StoreError::lasting(KIND, OP, error.clone()),
        };
        if is_unwritten { shared.unwritten() } else { shared }
    }
}

const OP: &str = "commit";
const FLIGHT: &str = include_str!("flight.sql");
const FLIGHT_BODIES: &str = include_str!("flight_bodies.sql");
const FLIGHT_BEGIN: &str = include_str!("flight_begin.sql");
const FLIGHT_FINISH: &str = include_str!("flight_finish.sql");

/// Most sends of a flight, each without the changes that failed the one before. Two gateways that begin the same keys at the same moment
/// take out a few; with more, the plain path is cheaper than rows that are rolled back.
const TRIES_MAX: u32 = 8;

/// Waits for locks of finished rows (250 ms each) before all finishes of a flight go by the plain path. One locked row is an
/// accident; two are a transaction that holds many, and each would delay all other changes of the flight again.
const LOCK_WAITS_MAX: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_flights_are_made_of_the_same_parts() {
        let statement =
            |sql: &str| sql.lines().skip_while(|line| line.starts_with("--")).collect::<Vec<_>>().join("\n");
        let flight = statement(FLIGHT);
        let bodies = "  returning r.nonce, r.created_at, r.birth, v.apart
),
bodies as (
  insert into ibid_body (born_at, birth, kind, data)
  select created_at, birth, 1, apart from done where apart is not null";
        let with_bodies = statement(FLIGHT_BODIES);
        assert!(with_bodies.contains(bodies), "the bodies are inserted as this test expects");
        assert_eq!(with_bodies.replace(bodies, "  returning r.nonce"), flight);
        // The others leave out whole parts.
        let part = |from: &str, to: &str| {
            let start = flight.find(from).expect("it begins here");
            &flight[start..start + flight[start..].find(to).expect("it ends here")]
        };
        let (clock, end) = (part("with clock", "taken as"), "\nfrom clock c");
        let begin_part = part("begun as", ",\ndone as");
        let look = "  where w.id <> all (array(select id from taken))\n";
        assert!(begin_part.contains(look), "begins look for taken ids as this test expects");
        let done = part("done as", "select c.now").replace("$2", "$1");
        assert_eq!(
            [FLIGHT_BEGIN, FLIGHT_FINISH].map(statement),
            [
                format!(
                    "{clock}{}\nselect c.now, array(select tid from begun){end}",
                    begin_part.replace(look, "")
                ),
                format!("{clock}{done}select c.now, null::tid[], array(select nonce from done){end}"),
            ]
        );
    }
}
