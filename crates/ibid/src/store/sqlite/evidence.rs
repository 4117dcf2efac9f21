//! Evidence from outside, in its own table. The order of columns is that of the `evidence_….sql` that select.

use std::time::Duration;

use ibid_core::evidence::{
    self, EventName, Evidence, EvidenceQuery, EvidenceStore, StoredEvidence, USED_KEPT_FOR,
};
use ibid_core::record::Nonce;
use ibid_core::row::{UnreadableRowError, bits};
use ibid_core::scope::RecordId;
use ibid_core::store::{BoxFuture, Cursor, Page, StoreError};
use ibid_core::time::Timestamp;
use rusqlite::{Connection, Row, params};

use super::chore::{ChoreContext, ChoreKind};
use super::row::{is_unreadable, unreadable};
use super::{NAME, SqliteStore};

impl EvidenceStore for SqliteStore {
    fn insert_evidence(
        &self,
        evidence: Evidence,
        keep_for: Duration,
    ) -> BoxFuture<'_, Result<(StoredEvidence, bool), StoreError>> {
        const OP: &str = "store evidence";
        Box::pin(async move {
            let Some(found) = evidence::encode_evidence(&evidence) else {
                return Err(StoreError::lasting(NAME, OP, "it says nothing").unwritten());
            };
            let add = move |connection: &Connection, context: ChoreContext| {
                add(connection, &evidence, &found, keep_for, context.now)
            };
            self.write_chore(OP, ChoreKind::Evidence, add).await
        })
    }

    fn open_evidence(
        &self,
        which: EvidenceQuery,
        after: Option<Cursor>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Page<StoredEvidence>, StoreError>> {
        let after = after.as_ref().and_then(Cursor::as_i64).unwrap_or(0);
        Box::pin(self.read("find evidence", move |view| open(view.connection, which, after, limit)))
    }

    fn dismiss_evidence(&self, names: Vec<EventName>) -> BoxFuture<'_, Result<(), StoreError>> {
        let dismiss = move |connection: &Connection, _| {
            let mut dismiss = connection.prepare_cached(include_str!("sql/evidence_dismiss.sql"))?;
            names.iter().try_for_each(|name| dismiss.execute([&name.source, &name.event]).map(drop))
        };
        Box::pin(self.write_chore("dismiss evidence", ChoreKind::Evidence, dismiss))
    }

    fn purge_evidence(&self, limit: u32) -> BoxFuture<'_, Result<u64, StoreError>> {
        let purge = move |connection: &Connection, context: ChoreContext| {
            let mut purge = connection.prepare_cached(include_str!("sql/evidence_purge.sql"))?;
            purge.execute(params![context.now.as_micros(), limit]).map(|removed| removed as u64)
        };
        Box::pin(self.write_chore("purge evidence", ChoreKind::Step, purge))
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
    Ok((find.query_row(params![source, event], read_evidence)?, added > 0))
}

/// Returns one page of open evidence. A row that cannot be read is logged and passed over, so that it does not hide those
/// behind it.
fn open(
    connection: &Connection,
    which: EvidenceQuery,
    after: i64,
    limit: u32,
) -> rusqlite::Result<Page<StoredEvidence>> {
    let most = i64::from(limit) + 1;
    let mut unread = Vec::new();
    let numbered = |row: &Row<'_>| {
        let number: i64 = row.get(0)?;
        match read_evidence(row) {
            Err(why) if is_unreadable(&why) => {
                unread.push((number, why));
                Ok((number, None))
            }
            read => Ok((number, Some(read?))),
        }
    };
    let rows: Vec<(i64, Option<StoredEvidence>)> = match which {
        EvidenceQuery::Of(id) => {
            let mut find = connection.prepare_cached(include_str!("sql/evidence_of.sql"))?;
            find.query_map(params![id.as_bytes(), after, most], numbered)?.collect::<rusqlite::Result<_>>()?
        }
        EvidenceQuery::All => {
            let mut find = connection.prepare_cached(include_str!("sql/evidence_open.sql"))?;
            find.query_map(params![after, most], numbered)?.collect::<rusqlite::Result<_>>()?
        }
    };
    if let Some((number, why)) = unread.first() {
        tracing::error!(count = unread.len(), number, %why, "evidence can't be read and is left out");
    }
    let page = Page::new(rows, limit, |(number, _)| Cursor::of_i64(*number));
    Ok(Page { items: page.items.into_iter().filter_map(|(_, evidence)| evidence).collect(), next: page.next })
}

/// Marks evidence as used, inside the transaction of the change that it led to.
pub(super) fn mark_used(connection: &Connection, name: &EventName, now: Timestamp) -> rusqlite::Result<()> {
    let mut mark = connection.prepare_cached(include_str!("sql/evidence_use.sql"))?;
    mark.execute(params![name.source, name.event, now.after(USED_KEPT_FOR).as_micros()]).map(drop)
}

fn read_evidence(row: &Row<'_>) -> rusqlite::Result<StoredEvidence> {
    let id = RecordId::from_bytes(row.get(3)?);
    let outcome = row.get_ref(7)?.as_blob().ok().and_then(|bytes| evidence::decode_evidence(id, bytes));
    let (about, what) = outcome.ok_or_else(|| unreadable(UnreadableRowError("not evidence")))?;
    Ok(StoredEvidence {
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
