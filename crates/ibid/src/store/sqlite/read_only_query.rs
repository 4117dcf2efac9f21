//! Runs one read-only statement on a connection that cannot write.

use rusqlite::ffi::ErrorCode;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Error};

use super::StoreFile;
use super::open::{self, SqliteOpenError, open_error};
use crate::store::read_only_query::{ReadOnlyQueryError, RowCallback};

/// Passes each row of `sql` to `on_row` and returns the column names.
pub(super) fn read(
    file: &StoreFile,
    sql: &str,
    on_row: RowCallback<'_>,
) -> Result<Vec<String>, ReadOnlyQueryError<SqliteOpenError>> {
    if matches!(file.path.try_exists(), Ok(false)) {
        return Err(ReadOnlyQueryError::Open(SqliteOpenError::Missing { path: file.path.clone() }));
    }
    let opened = open::reader(file).and_then(|connection| {
        connection.pragma_update(None, "query_only", true)?;
        Ok(connection)
    });
    let connection = opened.map_err(|error| ReadOnlyQueryError::Open(open_error(&file.path, error)))?;
    rows(&connection, sql, on_row).map_err(|error| match &error {
        // The authors of the statement can mend these; the rest is the file's.
        Error::MultipleStatement | Error::InvalidQuery => ReadOnlyQueryError::Refused(error.to_string()),
        Error::SqliteFailure(code, text) if matches!(code.code, ErrorCode::Unknown | ErrorCode::ReadOnly) => {
            ReadOnlyQueryError::Refused(text.clone().unwrap_or_else(|| error.to_string()))
        }
        Error::SqlInputError { msg, .. } => ReadOnlyQueryError::Refused(msg.clone()),
        _ => ReadOnlyQueryError::Failed(error.into()),
    })
}

fn rows(connection: &Connection, sql: &str, on_row: RowCallback<'_>) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare(sql)?;
    // What writes would be refused anyway; a `begin` or a `pragma` would be let through.
    if !statement.readonly() || statement.column_count() == 0 {
        return Err(Error::InvalidQuery);
    }
    let columns: Vec<String> = statement.column_names().into_iter().map(str::to_owned).collect();
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let mut cells = Vec::with_capacity(columns.len());
        for at in 0..columns.len() {
            cells.push(text(row.get_ref(at)?)?);
        }
        if on_row(&columns, cells).is_break() {
            break;
        }
    }
    Ok(columns)
}

fn text(value: ValueRef<'_>) -> rusqlite::Result<Option<String>> {
    Ok(match value {
        ValueRef::Null => None,
        ValueRef::Integer(number) => Some(number.to_string()),
        ValueRef::Real(number) => Some(number.to_string()),
        ValueRef::Text(bytes) => {
            Some(std::str::from_utf8(bytes).map_err(|error| Error::Utf8Error(0, error))?.to_owned())
        }
        // As PostgreSQL writes them.
        ValueRef::Blob(bytes) => Some(format!("\\x{}", ibid_core::hex::encode(bytes))),
    })
}
