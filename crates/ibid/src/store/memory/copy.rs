//! Rows of a copy, out of memory and into it.

use std::collections::BTreeSet;

use bytes::Bytes;
use ibid_core::change::{HistoryKind, HistoryLine, LoadedBody, StoredRecord};
use ibid_core::scope::RecordId;
use ibid_core::store::copy::{
    CopiedEvidence, CopiedHistory, CopiedLine, CopiedRecord, CopyPart, CopyRow, SettingFence,
};
use ibid_core::store::{BoxFuture, CopyStore, Cursor, Page, StoreError};
use ibid_core::time::Timestamp;

use super::{MemoryStore, NAME, Row, Tables, ready};

impl CopyStore for MemoryStore {
    fn clock(&self) -> BoxFuture<'_, Result<Timestamp, StoreError>> {
        ready(Ok(self.lock().1))
    }

    /// Returns records and history in the order of ids, evidence in the order of arrival.
    fn export(
        &self,
        part: CopyPart,
        after: Option<Cursor>,
        limit: u32,
    ) -> BoxFuture<'_, Result<Page<CopyRow>, StoreError>> {
        let tables = self.lock().0;
        let is_later = |key: &[u8]| after.as_ref().is_none_or(|after| key > &after.0[..]);
        let take = limit as usize + 1;
        let rows: Vec<(Bytes, CopyRow)> = match part {
            CopyPart::Records => {
                let later = tables.rows.iter().filter(|(id, _)| is_later(id.as_bytes())).take(take);
                later.map(|(id, row)| (key(id), CopyRow::Record(Box::new(row.to_copied())))).collect()
            }
            CopyPart::History => {
                let ids: BTreeSet<&RecordId> = tables.history.keys().collect();
                let later = ids.into_iter().filter(|id| is_later(id.as_bytes())).take(take);
                later.map(|id| (key(id), CopyRow::History(tables.read_history(id)))).collect()
            }
            CopyPart::Evidence => {
                let keyed = tables.evidence.iter().map(|(seq, row)| (Cursor::of_i64(*seq).0, row));
                let later = keyed.filter(|(seq, _)| is_later(seq)).take(take);
                let to_row = |(seq, (stored, purge_at)): (Bytes, &(_, Timestamp))| {
                    let row = CopiedEvidence { stored: Clone::clone(stored), purge_at: *purge_at };
                    (seq, CopyRow::Evidence(Box::new(row)))
                };
                later.map(to_row).collect()
            }
        };
        let Page { items, next } = Page::new(rows, limit, |(key, _)| Cursor(key.clone()));
        ready(Ok(Page { items: items.into_iter().map(|(_, row)| row).collect(), next }))
    }

    fn import(&self, fence: SettingFence, rows: Vec<CopyRow>) -> BoxFuture<'_, Result<(), StoreError>> {
        let (mut tables, now) = self.lock();
        if tables.settings.get(fence.name) != Some(&fence.value) {
            let why = "the mark of the copy has changed";
            return ready(Err(StoreError::lasting(NAME, "import", why).unwritten()));
        }
        for row in rows {
            tables.import(row, now);
        }
        ready(Ok(()))
    }
}

impl Row {
    fn to_copied(&self) -> CopiedRecord {
        let StoredRecord { record, response, .. } = self.stored.clone();
        let own = self.bodies.iter().filter(|(_, (written_by, _))| *written_by == record.birth);
        let bodies = own.map(|(kind, (_, data))| LoadedBody { kind: *kind, data: data.clone() }).collect();
        CopiedRecord { record, response, bodies }
    }
}

impl Tables {
    fn read_history(&self, id: &RecordId) -> CopiedHistory {
        let line = |line: &HistoryLine| CopiedLine {
            at: line.at,
            what: line.what.name().to_owned(),
            detail: line.detail.clone(),
        };
        let lines = self.history.get(id).into_iter().flatten().map(line).collect();
        CopiedHistory { id: *id, lines }
    }

    fn import(&mut self, row: CopyRow, now: Timestamp) {
        match row {
            CopyRow::Record(row) => {
                let CopiedRecord { record, response, bodies } = *row;
                let bodies = bodies.into_iter().map(|body| (body.kind, (record.birth, body.data))).collect();
                let is_tombstone = record.identity.is_forgotten();
                self.take(&record.id);
                self.insert(Row { stored: StoredRecord { record, response, now }, is_tombstone, bodies });
            }
            CopyRow::History(CopiedHistory { id, lines }) => {
                let line = |CopiedLine { at, what, detail }| HistoryLine {
                    at,
                    what: HistoryKind::from_name(&what),
                    detail,
                };
                self.history.insert(id, lines.into_iter().map(line).collect());
            }
            CopyRow::Evidence(row) => {
                let name = &row.stored.evidence.name;
                let known = self.evidence.iter().find(|(_, (stored, _))| stored.evidence.name == *name);
                let next = || self.evidence.last_key_value().map_or(1, |(last, _)| last + 1);
                let seq = known.map_or_else(next, |(seq, _)| *seq);
                self.evidence.insert(seq, (row.stored, row.purge_at));
            }
        }
    }
}

fn key(id: &RecordId) -> Bytes {
    Bytes::copy_from_slice(id.as_bytes())
}
