//! What was heard from outside, in its own table. The order of columns is that of the `evidence_….sql` that select.

use std::time::Duration;

use ibid_core::change::Change;
use ibid_core::evidence::{
    self, EventName, Evidence, EvidenceQuery, EvidenceStore, StoredEvidence, USED_KEPT_FOR,
};
use ibid_core::record::Nonce;
use ibid_core::scope::RecordId;
use ibid_core::store::{BoxFuture, StoreError};
use ibid_core::time::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::ask::get;
use super::columns::{bits, micros};
use super::connect::Param;
use super::row::Unreadable;
use super::{KIND, PostgresStore};

impl EvidenceStore for PostgresStore {
    fn insert_evidence(
        &self,
        evidence: Evidence,
        keep_for: Duration,
    ) -> BoxFuture<'_, Result<(StoredEvidence, bool), StoreError>> {
        Box::pin(async move {
            let Some(found) = evidence::encode_evidence(&evidence) else {
                return Err(StoreError::lasting(KIND, KEEP, "it says nothing").unwritten());
            };
            let EventName { source, event } = &evidence.name;
            let (id, owner) = (evidence.about.id(), evidence.owner.map(bits));
            let record: &[u8] = id.as_bytes();
            let (age, keep_for) = (micros(evidence.age), micros(keep_for));
            let name: [Param<'_>; 2] = [(source, Type::TEXT), (event, Type::TEXT)];
            let all: [Param<'_>; 7] = [
                (source, Type::TEXT),
                (event, Type::TEXT),
                (&record, Type::BYTEA),
                (&owner, Type::INT8),
                (&age, Type::INT8),
                (&keep_for, Type::INT8),
                (&found, Type::BYTEA),
            ];
            for _ in 0..TRIES {
                let added = self.ask(KEEP, include_str!("sql/evidence_add.sql"), &all).await?;
                if let Some(row) = added.first() {
                    return Ok((kept(KEEP, row)?, true));
                }
                let known = self.ask(KEEP, include_str!("sql/evidence_find.sql"), &name).await?;
                if let Some(row) = known.first() {
                    return Ok((kept(KEEP, row)?, false));
                }
            }
            Err(StoreError::transient(KIND, KEEP, "it comes and goes"))
        })
    }

    fn open_evidence(
        &self,
        which: EvidenceQuery,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<StoredEvidence>, StoreError>> {
        const OP: &str = "find evidence";
        Box::pin(async move {
            let limit = i64::from(limit);
            let rows = match which {
                EvidenceQuery::Of(id) => {
                    let id: &[u8] = id.as_bytes();
                    let params: [Param<'_>; 2] = [(&id, Type::BYTEA), (&limit, Type::INT8)];
                    self.ask(OP, include_str!("sql/evidence_of.sql"), &params).await?
                }
                EvidenceQuery::After(seq) => {
                    let params: [Param<'_>; 2] = [(&seq, Type::INT8), (&limit, Type::INT8)];
                    self.ask(OP, include_str!("sql/evidence_after.sql"), &params).await?
                }
            };
            rows.iter().map(|row| kept(OP, row)).collect()
        })
    }

    fn dismiss_evidence(&self, seqs: Vec<i64>) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let sql = include_str!("sql/evidence_dismiss.sql");
            self.ask("dismiss evidence", sql, &[(&seqs, Type::INT8_ARRAY)]).await.map(drop)
        })
    }

    fn purge_evidence(&self, limit: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            let limit = i64::from(limit);
            let sql = include_str!("sql/evidence_purge.sql");
            let gone = self.ask("purge evidence", sql, &[(&limit, Type::INT8)]).await?;
            Ok(gone.len() as u64)
        })
    }
}

/// The evidence that some Changes use up, as the arrays of `evidence_use.sql`.
#[derive(Default)]
pub(super) struct Uses<'a> {
    id: Vec<&'a [u8]>,
    count: Vec<i64>,
    nonce: Vec<i64>,
    source: Vec<&'a str>,
    event: Vec<&'a str>,
    kept_us: i64,
}

impl<'a> Uses<'a> {
    pub(super) fn of(changes: impl Iterator<Item = &'a Change>) -> Uses<'a> {
        let mut uses = Uses { kept_us: micros(USED_KEPT_FOR), ..Uses::default() };
        for change in changes {
            let Some(name) = &change.uses else { continue };
            uses.id.push(change.id.as_bytes());
            uses.count.push(change.version().count.into());
            uses.nonce.push(bits(change.nonce));
            uses.source.push(&name.source);
            uses.event.push(&name.event);
        }
        uses
    }

    pub(super) fn is_empty(&self) -> bool {
        self.id.is_empty()
    }

    /// In the order of `evidence_use.sql`.
    pub(super) fn params(&self) -> [Param<'_>; 6] {
        [
            (&self.id, Type::BYTEA_ARRAY),
            (&self.count, Type::INT8_ARRAY),
            (&self.nonce, Type::INT8_ARRAY),
            (&self.source, Type::TEXT_ARRAY),
            (&self.event, Type::TEXT_ARRAY),
            (&self.kept_us, Type::INT8),
        ]
    }
}

fn kept(op: &'static str, row: &Row) -> Result<StoredEvidence, StoreError> {
    let unreadable = |what| StoreError::lasting(KIND, op, Unreadable(what));
    let id: &[u8] = get(op, row, 3)?;
    let id = RecordId::from_bytes(id.try_into().map_err(|_| unreadable("not a record's id"))?);
    let said = evidence::decode_evidence(id, get(op, row, 7)?);
    let (about, what) = said.ok_or_else(|| unreadable("not evidence"))?;
    Ok(StoredEvidence {
        seq: get(op, row, 0)?,
        evidence: Evidence {
            name: EventName { source: get(op, row, 1)?, event: get(op, row, 2)? },
            about,
            owner: get::<Option<i64>>(op, row, 4)?.map(|bits| Nonce(bits.cast_unsigned())),
            what,
            age: Duration::ZERO,
        },
        as_of: Timestamp::from_micros(get(op, row, 5)?),
        open: get(op, row, 6)?,
    })
}

const KEEP: &str = "keep evidence";

/// Write, read, and once more: what is there is found at the latest by the second look.
const TRIES: u32 = 2;
