//! Rows as records, and parameters as SQLite binds them. The columns are those of `ibid_core::row`.

use std::borrow::Cow;
use std::sync::Arc;

use ibid_core::change::StoredRecord;
use ibid_core::row::{RECORD_COLUMNS, RowCells, UnreadableRowError, read_record};
use ibid_core::scope::RecordId;
use ibid_core::sql::Param;
use ibid_core::time::Timestamp;
use rusqlite::types::{ToSqlOutput, Type, ValueRef};
use rusqlite::{Connection, Error, Row, Statement};

use super::policies::Policies;

/// Reads the record in a row, with its response.
///
/// # Errors
///
/// A row that this program cannot read is an error that [`is_unreadable`] recognises.
pub(super) fn read_stored(
    connection: &Connection,
    policies: &mut Policies,
    row: &Row<'_>,
    now: Timestamp,
) -> rusqlite::Result<StoredRecord> {
    // A failure of the file while the policy is loaded is not the row's.
    let mut failure = None;
    let policy = |number| match policies.load(connection, number) {
        Ok(policy) => policy,
        Err(error) => {
            failure = Some(error);
            Err(UnreadableRowError("its policy can't be loaded"))
        }
    };
    let read = read_record(&mut Cells { row, next: 0 }, policy);
    match (read, failure) {
        (_, Some(error)) => Err(error),
        (Err(why), None) => Err(unreadable(why)),
        (Ok((record, response)), None) => Ok(StoredRecord { record: Arc::new(record), response, now }),
    }
}

/// Converts an unreadable row to an error of the driver.
pub(super) fn unreadable(why: UnreadableRowError) -> Error {
    Error::FromSqlConversionFailure(0, Type::Blob, Box::new(why))
}

/// Returns whether the error is a row that this program cannot read.
pub(super) fn is_unreadable(error: &Error) -> bool {
    matches!(
        error,
        Error::FromSqlConversionFailure(..)
            | Error::IntegralValueOutOfRange(..)
            | Error::InvalidColumnType(..)
    )
}

/// Returns the id of a row's record, as logs have it.
pub(super) fn short_id(row: &Row<'_>) -> String {
    row.get(0).map_or_else(|_| "?".to_owned(), |id| RecordId::from_bytes(id).short().to_string())
}

/// Columns behind those of the record: the position of the row in its list.
pub(super) fn position(row: &Row<'_>) -> rusqlite::Result<(i64, i64)> {
    Ok((row.get(RECORD_COLUMNS.len())?, row.get(RECORD_COLUMNS.len() + 1)?))
}

/// Binds `params` to a statement, in their order.
pub(super) fn bind<'a>(
    statement: &mut Statement<'_>,
    params: impl IntoIterator<Item = Param<'a>>,
) -> rusqlite::Result<()> {
    for (at, param) in params.into_iter().enumerate() {
        let value = match param {
            Param::Null(_) => ValueRef::Null,
            Param::Bool(value) => ValueRef::Integer(i64::from(value)),
            Param::I64(value) => ValueRef::Integer(value),
            Param::Text(value) => ValueRef::Text(value.as_bytes()),
            Param::Bytes(value) => ValueRef::Blob(value),
        };
        statement.raw_bind_parameter(at + 1, ToSqlOutput::Borrowed(value))?;
    }
    Ok(())
}

/// Reads a row from left to right.
struct Cells<'r, 's> {
    row: &'r Row<'s>,
    next: usize,
}

impl<'r> Cells<'r, '_> {
    fn value(&mut self) -> Result<ValueRef<'r>, UnreadableRowError> {
        self.next += 1;
        self.row.get_ref(self.next - 1).map_err(|_| UnreadableRowError("a column is missing"))
    }
}

impl<'r> RowCells<'r> for Cells<'r, '_> {
    fn integer(&mut self) -> Result<Option<i64>, UnreadableRowError> {
        self.value()?.as_i64_or_null().map_err(|_| UnreadableRowError("not a number"))
    }

    fn text(&mut self) -> Result<Option<Cow<'r, str>>, UnreadableRowError> {
        let text = self.value()?.as_str_or_null().map_err(|_| UnreadableRowError("not text"))?;
        Ok(text.map(Cow::Borrowed))
    }

    fn bytes(&mut self) -> Result<Option<Cow<'r, [u8]>>, UnreadableRowError> {
        let bytes = self.value()?.as_blob_or_null().map_err(|_| UnreadableRowError("not bytes"))?;
        Ok(bytes.map(Cow::Borrowed))
    }
}

#[cfg(test)]
mod tests {
    use ibid_core::change::BodyKind;

    #[test]
    fn all_queries_of_records_select_the_same_columns() {
        let columns = |sql: &'static str| {
            let (_, list) = sql.split_once("select").expect("a query selects");
            list.split_once("r.lines").or_else(|| list.split_once("null,")).expect("the response is last").0
        };
        let load = columns(include_str!("../../record_sql/sqlite/load.sql"));
        for sql in [
            include_str!("../../record_sql/sqlite/read.sql"),
            include_str!("../../record_sql/sqlite/lock.sql"),
            include_str!("sql/due.sql"),
            include_str!("sql/list_dead_letters.sql"),
            include_str!("sql/list_ids.sql"),
            include_str!("sql/list_open.sql"),
            include_str!("sql/list_rows.sql"),
        ] {
            assert_eq!(columns(sql), load);
        }
    }

    #[test]
    fn kinds_of_bodies_fit_into_a_slot() {
        assert_eq!(BodyKind::RESPONSE, 1, "the statements name slot + 1");
        assert!(BodyKind::Phase(u16::MAX).code() < 131_072, "slots of two records would overlap");
    }
}
