//! What was heard from outside, in its own table. The order of columns is that of the `evidence_….sql` that select.

use std::time::Duration;

use ibid_core::evidence::{
    self, EventName, Evidence, EvidenceQuery, EvidenceStore, StoredEvidence, USED_KEPT_FOR,
};
use ibid_core::record::Nonce;
use ibid_core::scope::RecordId;
use ibid_core::store::{BoxFuture, StoreError};
use ibid_core::time::Timestamp;
use rusqlite::{Connection, Row, params};

use super::failure::store_error;
use super::queue::Lane;
use super::reader::Ask;
use super::row::{bits, unreadable};
use super::writer::Job;
use super::{KIND, SqliteStore};

impl EvidenceStore for SqliteStore {
    fn insert_evidence(
        &self,
        evidence: Evidence,
        keep_for: Duration,
    ) -> BoxFuture<'_, Result<(StoredEvidence, bool), StoreError>> {
        const OP: &str = "keep evidence";
        Box::pin(async move {
            let Some(found) = evidence::encode_evidence(&evidence) else {
                return Err(StoreError::lasting(KIND, OP, "it says nothing").unwritten());
            };
            self.transact(OP, move |connection, now| add(connection, &evidence, &found, keep_for, now)).await
        })
    }

    fn open_evidence(
        &self,
        which: EvidenceQuery,
        limit: u32,
    ) -> BoxFuture<'_, Result<Vec<StoredEvidence>, StoreError>> {
        Box::pin(self.ask("find evidence", move |reply| Ask::Evidence { which, limit, reply }))
    }

    fn dismiss_evidence(&self, seqs: Vec<i64>) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.transact("dismiss evidence", move |connection, _| {
            let mut dismiss = connection.prepare_cached(include_str!("sql/evidence_dismiss.sql"))?;
            seqs.iter().try_for_each(|seq| dismiss.execute([seq]).map(drop))
        }))
    }

    fn purge_evidence(&self, limit: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(self.transact("purge evidence", move |connection, now| {
            let mut purge = connection.prepare_cached(include_str!("sql/evidence_purge.sql"))?;
            purge.execute(params![now.as_micros(), limit]).map(|gone| gone as u64)
        }))
    }
}

impl SqliteStore {
    /// Does some work in a transaction of its own on the writer.
    async fn transact<T: Send + 'static>(
        &self,
        op: &'static str,
        work: impl FnOnce(&Connection, Timestamp) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.write(op, Lane::Usual, |reply| {
            Job::Run(Box::new(move |writer| {
                let done = writer.transact(|connection, _, now| Ok(work(connection, now)?));
                // Whoever left no longer needs to know.
                let _ = reply.send(done.map_err(|stumble| store_error(op, stumble.error)));
            }))
        })
        .await?
    }
}

fn add(
    connection: &Connection,
    evidence: &Evidence,
    found: &[u8],
    keep_for: Duration,
    now: Timestamp,
) -> rusqlite::Result<(StoredEvidence, bool)> {
    let EventName { source, event } = &evidence.name;
    let mut add = connection.prepare_cached(include_str!("sql/evidence_add.sql"))?;
    let added = add.execute(params![
        source,
        event,
        evidence.about.id().as_bytes(),
        evidence.owner.map(bits),
        now.before(evidence.age).as_micros(),
        now.after(keep_for).as_micros(),
        found,
    ])?;
    let mut find = connection.prepare_cached(include_str!("sql/evidence_find.sql"))?;
    Ok((find.query_row(params![source, event], kept)?, added > 0))
}

/// Open evidence, for a reader.
pub(super) fn open(
    connection: &Connection,
    which: EvidenceQuery,
    limit: u32,
) -> rusqlite::Result<Vec<StoredEvidence>> {
    match which {
        EvidenceQuery::Of(id) => {
            let mut find = connection.prepare_cached(include_str!("sql/evidence_of.sql"))?;
            find.query_map(params![id.as_bytes(), limit], kept)?.collect()
        }
        EvidenceQuery::After(seq) => {
            let mut find = connection.prepare_cached(include_str!("sql/evidence_after.sql"))?;
            find.query_map(params![seq, limit], kept)?.collect()
        }
    }
}

/// Marks evidence as used, inside the transaction of the Change that it led to.
pub(super) fn mark_used(connection: &Connection, name: &EventName, now: Timestamp) -> rusqlite::Result<()> {
    let mut mark = connection.prepare_cached(include_str!("sql/evidence_use.sql"))?;
    mark.execute(params![name.source, name.event, now.after(USED_KEPT_FOR).as_micros()]).map(drop)
}

fn kept(row: &Row<'_>) -> rusqlite::Result<StoredEvidence> {
    let id = RecordId::from_bytes(row.get(3)?);
    let said = row.get_ref(7)?.as_blob().ok().and_then(|bytes| evidence::decode_evidence(id, bytes));
    let (about, what) = said.ok_or_else(|| unreadable(7, "not evidence"))?;
    Ok(StoredEvidence {
        seq: row.get(0)?,
        evidence: Evidence {
            name: EventName { source: row.get(1)?, event: row.get(2)? },
            about,
            owner: row.get::<_, Option<i64>>(4)?.map(|bits| Nonce(bits.cast_unsigned())),
            what,
            age: Duration::ZERO,
        },
        as_of: Timestamp::from_micros(row.get(5)?),
        open: row.get(6)?,
    })
}
