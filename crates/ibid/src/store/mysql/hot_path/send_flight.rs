//! Sends one flight, and finds the outcome of each of its changes.

use std::collections::HashMap;
use std::sync::Arc;

use ibid_core::change::{Commit, Expect, Stamp, StoredRecord};
use ibid_core::row::{RecordColumns, UnreadableRowError, bits};
use ibid_core::scope::RecordId;
use ibid_core::sql::{Param, Type};
use ibid_core::store::StoreError;
use ibid_core::time::Timestamp;
use mysql_async::Error;

use super::super::connection::MysqlConnection;
use super::super::error::{self, MysqlErrorScope};
use super::super::row::DbRow;
use super::super::row_source;
use super::super::{KIND, MysqlCore, literal, policies, row};
use super::statement::{self, FlightColumn, FlightRow, RowList};
use crate::store::commit_queue::{FlightBatch, FlightOutcome, Item};
use crate::store::policy_cache::BatchPolicies;

/// Sends a flight, in parts if it is too large for one packet. Each change gets an outcome.
pub(super) async fn send(core: &MysqlCore, batch: FlightBatch<()>) -> Vec<(Item, FlightOutcome)> {
    let mut connection = match core.pools.hot(OP).await {
        Ok(connection) => connection,
        Err(error) => {
            let (is_transient, error) = (error.is_transient(), Arc::new(error));
            let failed = || match is_transient {
                true => StoreError::transient(KIND, OP, error.clone()).unwritten(),
                false => StoreError::lasting(KIND, OP, error.clone()).unwritten(),
            };
            return batch.into_iter().map(|(item, _)| (item, FlightOutcome::Reply(Err(failed())))).collect();
        }
    };
    let (mut landed, mut parts) = (Vec::with_capacity(batch.len()), vec![batch]);
    while let Some(part) = parts.pop() {
        match send_part(core, &mut connection, &part).await {
            Ok(outcomes) => {
                landed.extend(part.into_iter().zip(outcomes).map(|((item, _), outcome)| (item, outcome)))
            }
            Err(FlightError::TooLarge) if part.len() > 1 => {
                let mut first = part;
                let second = first.split_off(first.len() / 2);
                parts.extend([first, second]);
            }
            // The plain path has smaller packets, and tells which change can't be stored or has to wait.
            Err(FlightError::TooLarge) => {
                landed.extend(part.into_iter().map(|(item, _)| (item, FlightOutcome::Plain)))
            }
            Err(FlightError::Server(error)) => {
                let (scope, error) = (error::scope_of(&error), Arc::new(error));
                landed.extend(part.into_iter().map(|(item, _)| {
                    let outcome = match scope {
                        // Nothing was written: the transaction was rolled back.
                        MysqlErrorScope::Contended | MysqlErrorScope::One => FlightOutcome::Plain,
                        MysqlErrorScope::Moment => {
                            FlightOutcome::Reply(Err(StoreError::transient(KIND, OP, error.clone())))
                        }
                        MysqlErrorScope::Lasting => {
                            FlightOutcome::Reply(Err(StoreError::lasting(KIND, OP, error.clone())))
                        }
                    };
                    (item, outcome)
                }));
            }
        }
    }
    landed
}

/// A flight without a result.
enum FlightError {
    Server(Error),
    /// It does not fit into a packet.
    TooLarge,
}

impl From<Error> for FlightError {
    fn from(error: Error) -> FlightError {
        FlightError::Server(error)
    }
}

/// Sends a part of a flight, and again after a deadlock, with the same nonces. Returns the outcome of each change.
async fn send_part(
    core: &MysqlCore,
    connection: &mut MysqlConnection,
    batch: &FlightBatch<()>,
) -> Result<Vec<FlightOutcome>, FlightError> {
    let numbers = core.policies.of(batch.iter().map(|(item, _)| &*item.change));
    policies::ensure_stored(connection, &numbers.0).await?;
    let has_returning = connection.server.is_mariadb && !core.target.options.portable_statements;
    let text = text_of(batch, &numbers, has_returning);
    if text.len() > connection.server.packet_max.saturating_sub(PACKET_ROOM) {
        return Err(FlightError::TooLarge);
    }
    let mut tries = 1;
    let rows = loop {
        match connection.run(&text).await {
            Ok(rows) => break rows,
            // A lock wait has cost a second already; the plain path waits for the one row that is locked.
            Err(error) if error::is_deadlock(&error) && tries < TRIES_MAX => tries += 1,
            Err(error) => return Err(error.into()),
        }
    };
    let mut outcomes: Vec<Option<FlightOutcome>> = batch.iter().map(|_| None).collect();
    let mut nonces: Vec<(i64, usize)> =
        batch.iter().enumerate().map(|(nth, (item, _))| (bits(item.change.nonce), nth)).collect();
    nonces.sort_unstable();
    for (nonce, now) in rows.iter().filter_map(written) {
        if let Ok(found) = nonces.binary_search_by_key(&nonce, |(nonce, _)| *nonce) {
            let stamp = Stamp { now: Timestamp::from_micros(now) };
            outcomes[nonces[found].1] = Some(FlightOutcome::Reply(Ok(Commit::Done(stamp))));
        }
    }
    if outcomes.iter().any(Option::is_none) {
        let lost = batch.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_none());
        let ids: Vec<RecordId> = lost.map(|((item, _), _)| item.change.id).collect();
        let mut stored = load(core, connection, &ids).await?;
        for ((item, _), outcome) in batch.iter().zip(&mut outcomes).filter(|(_, outcome)| outcome.is_none()) {
            *outcome = Some(lost_outcome(&item.change, stored.remove(&item.change.id)));
        }
    }
    Ok(outcomes.into_iter().map(|outcome| outcome.unwrap_or(FlightOutcome::Plain)).collect())
}

/// Reads a row of `returning.sql` or `written.sql`: the nonce of a record, and the instant of this flight if the flight has
/// written it.
fn written(row: &DbRow) -> Option<(i64, i64)> {
    let [nonce, now] = [0, 1].map(|column| row.get(column).and_then(row::integer));
    Some((nonce?, now?))
}

/// Returns the outcome of a change that was not written, by what is stored.
fn lost_outcome(
    change: &ibid_core::change::Change,
    stored: Option<Result<StoredRecord, UnreadableRowError>>,
) -> FlightOutcome {
    match (change.expect, stored) {
        // The row keeps this change from being written.
        (_, Some(Err(reason))) => {
            FlightOutcome::Reply(Err(StoreError::lasting(KIND, OP, reason).unwritten()))
        }
        // It went, or it is what the change expects, between two statements: ask again.
        (Expect::Absent, None) => FlightOutcome::Plain,
        (Expect::Version(version), Some(Ok(stored))) if stored.record.version == version => {
            FlightOutcome::Plain
        }
        (_, Some(Ok(stored))) => FlightOutcome::Reply(Ok(Commit::Conflict(Some(Box::new(stored))))),
        (_, None) => FlightOutcome::Reply(Ok(Commit::Conflict(None))),
    }
}

async fn load(
    core: &MysqlCore,
    connection: &mut MysqlConnection,
    ids: &[RecordId],
) -> Result<HashMap<RecordId, Result<StoredRecord, UnreadableRowError>>, Error> {
    let source = row_source::ids(ids.iter().map(|id| &id.as_bytes()[..]));
    let rows = connection.run(&source.within(include_str!("landed.sql"))).await?;
    let policies = policies::learn(&core.policies, connection, row::policies_of(&rows)).await?;
    Ok(rows.iter().filter_map(|row| Some((row::id_of(row)?, row::read_stored(&policies, row)))).collect())
}

/// Returns the statements of a flight: the inserts, the finishes, and the question which of them were written.
fn text_of(batch: &FlightBatch<()>, numbers: &BatchPolicies, has_returning: bool) -> String {
    let columns = batch.iter().filter_map(|(item, _)| {
        let draft = item.change.draft.as_ref()?;
        Some((item.change.expect, RecordColumns::of(&item.change, numbers.number(&draft.policy))?))
    });
    let columns: Vec<_> = columns.collect();
    let (mut begins, mut finishes) = (Vec::new(), Vec::new());
    for (expect, columns) in &columns {
        let mut row: FlightRow<'_> = [Param::Null(Type::I64); RecordColumns::COUNT + 2];
        row[..RecordColumns::COUNT].copy_from_slice(&columns.params());
        match expect {
            Expect::Version(was) => {
                row[WAS_COUNT] = Param::I64(i64::from(was.count));
                row[WAS_NONCE] = Param::I64(bits(was.nonce));
                finishes.push(row);
            }
            _ => begins.push(row),
        }
    }
    let (list, returning) = match has_returning {
        true => (RowList::Values, include_str!("returning.sql")),
        false => (RowList::Selects, ""),
    };
    // One transaction for both saves a flush. A single statement commits by itself.
    let is_one = begins.is_empty() || finishes.is_empty();
    let mut text = [include_str!("now.sql"), if is_one { "" } else { "start transaction;\n" }].concat();
    for (rows, columns, template) in [
        (begins, &BEGIN_COLUMNS[..], include_str!("begins.sql")),
        (finishes, &FINISH_COLUMNS[..], include_str!("finishes.sql")),
    ] {
        if !rows.is_empty() {
            statement::push(&mut text, template, columns, &rows, list);
            text.extend([returning, ";\n"]);
        }
    }
    text.push_str(if is_one { "" } else { "commit;\n" });
    if !has_returning {
        text.push_str(&include_str!("written.sql").replace("$ids", &ids(batch)));
    }
    text
}

/// Returns the ids of a flight, as a list of literals.
fn ids(batch: &FlightBatch<()>) -> String {
    let mut ids = String::new();
    for (item, _) in batch {
        ids.push_str(if ids.is_empty() { "" } else { "," });
        literal::push_bytes(&mut ids, item.change.id.as_bytes());
    }
    ids
}

/// Columns of a [`FlightRow`] with the version that its change expects.
const WAS_COUNT: usize = RecordColumns::COUNT;
const WAS_NONCE: usize = RecordColumns::COUNT + 1;

/// The columns of the rows of `begins.sql`, with their indexes in [`RecordColumns::params`].
const BEGIN_COLUMNS: [FlightColumn; 21] = [
    FlightColumn::unique("id", 0),
    FlightColumn::shared("count", 1),
    FlightColumn::unique("nonce", 2),
    FlightColumn::shared("owner", 4),
    FlightColumn::shared("attempt", 5),
    FlightColumn::shared("state", 6),
    FlightColumn::shared("flags", 7),
    FlightColumn::shared("policy", 8),
    FlightColumn::shared("point", 9),
    FlightColumn::shared("ran", 11),
    FlightColumn::shared("completed", 12),
    FlightColumn::shared("due", 13),
    FlightColumn::shared("expires", 14),
    FlightColumn::shared("purge", 15),
    FlightColumn::unique("fingerprint", 17),
    FlightColumn::shared("tenant", 18),
    FlightColumn::shared("method", 19),
    FlightColumn::shared("path", 20),
    FlightColumn::unique("key", 21),
    FlightColumn::shared("note", 22),
    FlightColumn::shared("status", 23),
];

/// The columns of the rows of `finishes.sql`, with their indexes in a [`FlightRow`].
const FINISH_COLUMNS: [FlightColumn; 18] = [
    FlightColumn::shared("was_count", WAS_COUNT),
    FlightColumn::unique("was_nonce", WAS_NONCE),
    FlightColumn::unique("id", 0),
    FlightColumn::shared("count", 1),
    FlightColumn::unique("nonce", 2),
    FlightColumn::shared("owner", 4),
    FlightColumn::shared("attempt", 5),
    FlightColumn::shared("state", 6),
    FlightColumn::shared("flags", 7),
    FlightColumn::shared("policy", 8),
    FlightColumn::shared("point", 9),
    FlightColumn::shared("expires", 14),
    FlightColumn::shared("purge", 15),
    FlightColumn::unique("fingerprint", 17),
    FlightColumn::shared("note", 22),
    FlightColumn::shared("status", 23),
    FlightColumn::shared("lines", 25),
    FlightColumn::unique("body", 26),
];

const OP: &str = "commit";

/// Sends of a flight that meets deadlocks. They come while a reaper deletes ids that are inserted again.
const TRIES_MAX: u32 = 3;

/// Bytes of a packet that are left free: its header and the driver's own.
const PACKET_ROOM: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_of_a_flight_is_used() {
        for (columns, sql) in [
            (&BEGIN_COLUMNS[..], include_str!("begins.sql")),
            (&FINISH_COLUMNS[..], include_str!("finishes.sql")),
        ] {
            for FlightColumn { name, .. } in columns {
                let is_used = sql
                    .split(|c: char| !c.is_ascii_alphanumeric() && !"_.".contains(c))
                    .any(|word| word.strip_prefix("w.") == Some(name));
                assert!(is_used, "{name}");
            }
        }
    }
}
