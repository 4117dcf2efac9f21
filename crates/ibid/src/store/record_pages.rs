//! Pages of records from the rows of a database server: their positions, and rows that can't be read.

use ibid_core::change::StoredRecord;
use ibid_core::row::UnreadableRowError;
use ibid_core::scope::RecordId;
use ibid_core::store::{Cursor, StoreError};

/// A position in the order of due records, or in that of a list: behind a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ListPosition {
    pub(super) at: i64,
    pub(super) id: RecordId,
}

impl ListPosition {
    /// The position before all records.
    pub(super) const START: ListPosition =
        ListPosition { at: i64::MIN, id: RecordId::from_bytes([0; RecordId::LEN]) };

    pub(super) fn cursor(self) -> Cursor {
        Cursor([&self.at.to_be_bytes()[..], self.id.as_bytes()].concat().into())
    }

    /// Reads a cursor of [`Self::cursor`]; without one, the list begins at its start.
    pub(super) fn parse(
        kind: &'static str,
        op: &'static str,
        cursor: Option<&Cursor>,
    ) -> Result<ListPosition, StoreError> {
        let Some(cursor) = cursor else { return Ok(ListPosition::START) };
        let position = cursor.0.split_first_chunk::<8>().and_then(|(at, id)| {
            let id = RecordId::from_bytes(id.try_into().ok()?);
            Some(ListPosition { at: i64::from_be_bytes(*at), id })
        });
        position.ok_or_else(|| StoreError::lasting(kind, op, "not a cursor of this list"))
    }
}

/// Reads the records of the first `limit` rows that can be read, and logs that others cannot.
pub(super) fn read_rows<R>(
    op: &'static str,
    rows: &[R],
    limit: u32,
    read: impl Fn(&R) -> Result<StoredRecord, UnreadableRowError>,
    id_of: impl Fn(&R) -> Option<RecordId>,
) -> Vec<StoredRecord> {
    let rows = &rows[..rows.len().min(limit as usize)];
    let (mut records, mut unreadable) = (Vec::with_capacity(rows.len()), None);
    for row in rows {
        match read(row) {
            Ok(stored) => records.push(stored),
            Err(reason) => drop(unreadable.get_or_insert_with(|| (id_of(row), reason))),
        }
    }
    if let Some((id, reason)) = unreadable {
        let record = id.map_or_else(|| "?".to_owned(), |id| id.short().to_string());
        let count = rows.len() - records.len();
        tracing::error!(op, count, %record, reason = reason.0, "records can't be read and are left out");
    }
    records
}
