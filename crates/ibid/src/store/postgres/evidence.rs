//! Evidence from outside, in its own table. The order of columns is that of the `evidence_….sql` statements.

use std::time::Duration;

use ibid_core::evidence::{
    self, EventName, Evidence, EvidenceQuery, EvidenceStore, StoredEvidence, USED_KEPT_FOR,
};
use ibid_core::record::Nonce;
use ibid_core::row::{UnreadableRowError, bits, micros};
use ibid_core::store::{BoxFuture, Cursor, Page, SqlStore, StoreError};
use ibid_core::time::Timestamp;
use tokio_postgres::types::Type;
use tokio_postgres::{Error, Row};

use super::connection::{Param, PostgresConnection};
use super::read::get;
use super::row::SqlId;
use super::{KIND, PostgresCore};

impl EvidenceStore for PostgresCore {
    fn insert_evidence(
        &self,
        evidence: Evidence,
        keep_for: Duration,
    ) -> BoxFuture<'_, Result<(StoredEvidence, bool), StoreError>> {
        Box::pin(async move {
            let Some(found) = evidence::encode_evidence(&evidence) else {
                return Err(StoreError::lasting(KIND, OP_INSERT, "it proves nothing").unwritten());
            };
            let EventName { source, event } = &evidence.name;
            let (id, owner) = (SqlId(evidence.about.id()), evidence.owner.map(bits));
            let (age, keep_for) = (micros(evidence.age), micros(keep_for));
            let name: [Param<'_>; 2] = [(source, Type::TEXT), (event, Type::TEXT)];
            let lasts = self.must_be_durable();
            let all: [Param<'_>; 8] = [
                (source, Type::TEXT),
                (event, Type::TEXT),
                (&id, Type::UUID),
                (&owner, Type::INT8),
                (&age, Type::INT8),
                (&keep_for, Type::INT8),
                (&found, Type::BYTEA),
                (&lasts, Type::BOOL),
            ];
            for _ in 0..TRIES {
                let added = self.ask(OP_INSERT, include_str!("sql/evidence_add.sql"), &all).await?;
                if let Some(row) = added.first() {
                    return Ok((read_evidence(OP_INSERT, row)?, true));
                }
                let known = self.ask(OP_INSERT, include_str!("sql/evidence_find.sql"), &name).await?;
                if let Some(row) = known.first() {
                    return Ok((read_evidence(OP_INSERT, row)?, false));
                }
            }
            Err(StoreError::transient(KIND, OP_INSERT, "it comes and goes"))
        })
    }

    fn open_evidence(
        &self,
        which: EvidenceQuery,
        after: Option<Cursor>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Page<StoredEvidence>, StoreError>> {
        const OP: &str = "find evidence";
        Box::pin(async move {
            // One too many tells that there is a next page.
            let (after, most) = (after.and_then(|cursor| cursor.as_i64()).unwrap_or(0), i64::from(limit) + 1);
            let rows = match which {
                EvidenceQuery::Of(id) => {
                    let params: [Param<'_>; 3] =
                        [(&SqlId(id), Type::UUID), (&after, Type::INT8), (&most, Type::INT8)];
                    self.ask(OP, include_str!("sql/evidence_of.sql"), &params).await?
                }
                EvidenceQuery::All => {
                    let params: [Param<'_>; 2] = [(&after, Type::INT8), (&most, Type::INT8)];
                    self.ask(OP, include_str!("sql/evidence_after.sql"), &params).await?
                }
            };
            let shown = &rows[..rows.len().min(limit as usize)];
            let next = shown.last().filter(|_| rows.len() > shown.len());
            let next = next.map(|row| get(OP, row, 0).map(Cursor::of_i64)).transpose()?;
            Ok(Page { items: readable(OP, shown), next })
        })
    }

    fn dismiss_evidence(&self, names: Vec<EventName>) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let (sources, events): (Vec<String>, Vec<String>) =
                names.into_iter().map(|name| (name.source, name.event)).unzip();
            let sql = include_str!("sql/evidence_dismiss.sql");
            let params: [Param<'_>; 2] = [(&sources, Type::TEXT_ARRAY), (&events, Type::TEXT_ARRAY)];
            self.ask("dismiss evidence", sql, &params).await.map(drop)
        })
    }

    fn purge_evidence(&self, limit: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            let limit = i64::from(limit);
            let sql = include_str!("sql/evidence_purge.sql");
            let rows = self.ask("purge evidence", sql, &[(&limit, Type::INT8)]).await?;
            Ok(rows.len() as u64)
        })
    }
}

/// Marks the evidence that led to a change as used, in the transaction of the change.
pub(super) async fn mark_used(connection: &PostgresConnection, name: &EventName) -> Result<(), Error> {
    let kept_for = micros(USED_KEPT_FOR);
    let params: [Param<'_>; 3] =
        [(&name.source, Type::TEXT), (&name.event, Type::TEXT), (&kept_for, Type::INT8)];
    connection.query_once(include_str!("sql/evidence_use.sql"), &params).await.map(drop)
}

/// Reads the evidence that this program can read, and logs that other evidence cannot. A later ibid may have written it, and it
/// must not hide what is behind it.
fn readable(op: &'static str, rows: &[Row]) -> Vec<StoredEvidence> {
    let read = |row: &Row| match read_evidence(op, row) {
        Ok(evidence) => Some(evidence),
        Err(error) => {
            let seq = row.try_get::<_, i64>(0).ok();
            tracing::error!(
                op,
                seq,
                error = &error as &dyn std::error::Error,
                "evidence can't be read and is left out"
            );
            None
        }
    };
    rows.iter().filter_map(read).collect()
}

fn read_evidence(op: &'static str, row: &Row) -> Result<StoredEvidence, StoreError> {
    let SqlId(id) = get(op, row, 3)?;
    let decoded = evidence::decode_evidence(id, get(op, row, 7)?);
    let (about, what) =
        decoded.ok_or_else(|| StoreError::lasting(KIND, op, UnreadableRowError("not evidence")))?;
    let evidence = Evidence {
        name: EventName { source: get(op, row, 1)?, event: get(op, row, 2)? },
        about,
        owner: get::<Option<i64>>(op, row, 4)?.map(|bits| Nonce(bits.cast_unsigned())),
        what,
        age: Duration::ZERO,
    };
    let as_of = Timestamp::from_micros(get(op, row, 5)?);
    Ok(StoredEvidence { evidence, as_of, open: get(op, row, 6)? })
}

const OP_INSERT: &str = "store evidence";

/// Write, read, and once more: an event that is stored is found at the latest by the second read.
const TRIES: u32 = 2;
