//! Rows as records, read by `ibid_core::row`. Every statement that returns records has the columns of `RECORD_COLUMNS` first,
//! then `now`.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use ibid_core::change::StoredRecord;
use ibid_core::row::{RECORD_COLUMNS, RowCells, UnreadableRowError, read_record};
use ibid_core::scope::RecordId;
use ibid_core::store::StoreError;
use ibid_core::time::Timestamp;
use mysql_async::Value;

use super::KIND;
use crate::store::policy_cache::RowPolicies;
use crate::store::record_pages;

/// The values of one row. The text protocol returns numbers as digits.
pub(super) type DbRow = Vec<Value>;

/// Reads the record of a row, with its response.
pub(super) fn read_stored(policies: &RowPolicies, row: &DbRow) -> Result<StoredRecord, UnreadableRowError> {
    let now = row.get(NOW).and_then(integer).ok_or(UnreadableRowError("no instant"))?;
    let policy = |digest| policies.get(digest).ok_or(UnreadableRowError("a policy that is not there"));
    let (record, response) = read_record(&mut MysqlCells(row.iter()), policy)?;
    Ok(StoredRecord { record: Arc::new(record), response, now: Timestamp::from_micros(now) })
}

/// Reads the records of the first `limit` rows that can be read, and logs that others cannot.
pub(super) fn read_rows(
    op: &'static str,
    policies: &RowPolicies,
    rows: &[DbRow],
    limit: u32,
) -> Vec<StoredRecord> {
    record_pages::read_rows(op, rows, limit, |row| read_stored(policies, row), id_of)
}

/// Returns the id in the first column.
pub(super) fn id_of(row: &DbRow) -> Option<RecordId> {
    let Some(Value::Bytes(bytes)) = row.first() else { return None };
    bytes.as_slice().try_into().ok().map(RecordId::from_bytes)
}

/// Returns the numbers of the policies that rows name.
pub(super) fn policies_of(rows: &[DbRow]) -> impl Iterator<Item = i64> {
    rows.iter().filter_map(|row| row.get(POLICY).and_then(integer))
}

/// Reads a number; `None` if it is null or none.
pub(super) fn integer(value: &Value) -> Option<i64> {
    match value {
        Value::Bytes(digits) => std::str::from_utf8(digits).ok()?.parse().ok(),
        Value::Int(value) => Some(*value),
        Value::UInt(value) => i64::try_from(*value).ok(),
        _ => None,
    }
}

/// Reads a column that is a number.
pub(super) fn number(op: &'static str, row: &DbRow, column: usize) -> Result<i64, StoreError> {
    row.get(column).and_then(integer).ok_or_else(|| unreadable(op))
}

/// Reads a column that is a number or null.
pub(super) fn optional(op: &'static str, row: &DbRow, column: usize) -> Result<Option<i64>, StoreError> {
    match row.get(column) {
        Some(Value::NULL) => Ok(None),
        _ => number(op, row, column).map(Some),
    }
}

/// Reads a column that is bytes.
pub(super) fn bytes(op: &'static str, row: &DbRow, column: usize) -> Result<Bytes, StoreError> {
    match row.get(column) {
        Some(Value::Bytes(bytes)) => Ok(Bytes::copy_from_slice(bytes)),
        _ => Err(unreadable(op)),
    }
}

/// Reads a column that is text.
pub(super) fn text(op: &'static str, row: &DbRow, column: usize) -> Result<String, StoreError> {
    String::from_utf8(bytes(op, row, column)?.into()).map_err(|_| unreadable(op))
}

/// Reads a column that is an id.
pub(super) fn id(op: &'static str, row: &DbRow, column: usize) -> Result<RecordId, StoreError> {
    let bytes = bytes(op, row, column)?;
    bytes.as_ref().try_into().map(RecordId::from_bytes).map_err(|_| unreadable(op))
}

fn unreadable(op: &'static str) -> StoreError {
    StoreError::lasting(KIND, op, UnreadableRowError("a column of another type"))
}

/// Index of the column `now`, behind those of the record.
pub(super) const NOW: usize = RECORD_COLUMNS.len();

const POLICY: usize = 8;

/// Reads the columns of a record from left to right.
struct MysqlCells<'r>(std::slice::Iter<'r, Value>);

impl<'r> MysqlCells<'r> {
    fn value(&mut self) -> Result<&'r Value, UnreadableRowError> {
        self.0.next().ok_or(UnreadableRowError("a column is missing"))
    }
}

impl<'r> RowCells<'r> for MysqlCells<'r> {
    fn integer(&mut self) -> Result<Option<i64>, UnreadableRowError> {
        match self.value()? {
            Value::NULL => Ok(None),
            value => integer(value).map(Some).ok_or(UnreadableRowError("not a number")),
        }
    }

    fn text(&mut self) -> Result<Option<Cow<'r, str>>, UnreadableRowError> {
        let Some(bytes) = self.bytes()? else { return Ok(None) };
        match bytes {
            Cow::Borrowed(bytes) => std::str::from_utf8(bytes)
                .map(|text| Some(Cow::Borrowed(text)))
                .map_err(|_| UnreadableRowError("not text")),
            Cow::Owned(_) => Err(UnreadableRowError("not text")),
        }
    }

    fn bytes(&mut self) -> Result<Option<Cow<'r, [u8]>>, UnreadableRowError> {
        match self.value()? {
            Value::NULL => Ok(None),
            Value::Bytes(bytes) => Ok(Some(Cow::Borrowed(bytes))),
            _ => Err(UnreadableRowError("not bytes")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the names of the columns that a statement takes from the record `r`.
    fn columns(sql: &str) -> Vec<&str> {
        let (list, _) = sql.split_once("r.status").expect("it returns records");
        let (_, list) = list.rsplit_once("r.id").expect("the id is first");
        list.split("r.").skip(1).map(|name| name.split([',', '\n', ' ']).next().unwrap_or("")).collect()
    }

    #[test]
    fn all_statements_that_return_records_name_the_same_columns() {
        let load = columns(include_str!("../../record_sql/mysql/load.sql"));
        assert_eq!(load.len() + 1 + 1 + 3, RECORD_COLUMNS.len(), "id, status, and three of the response");
        for sql in [
            include_str!("../../record_sql/mysql/read.sql"),
            include_str!("../../record_sql/mysql/lock.sql"),
            include_str!("hot_path/landed.sql"),
            include_str!("sql/due.sql"),
            include_str!("sql/list.sql"),
            include_str!("sql/list_dead.sql"),
            include_str!("sql/list_waiting.sql"),
        ] {
            assert_eq!(columns(sql), load);
        }
    }
}
