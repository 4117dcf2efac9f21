//! Runs one read-only statement in a read-only transaction, through a cursor, so that the server keeps the rest.

use tokio_postgres::{Error, SimpleQueryMessage};

use super::target::PostgresTarget;
use super::{PostgresOpenError, open};
use crate::store::read_only_query::{ReadOnlyQueryError, RowCallback};

/// Passes each row of `sql` to `on_row` and returns the column names.
pub(super) async fn read(
    target: &PostgresTarget,
    sql: &str,
    on_row: RowCallback<'_>,
) -> Result<Vec<String>, ReadOnlyQueryError<PostgresOpenError>> {
    let dialled = target.dial().await;
    let connection = dialled.map_err(|error| ReadOnlyQueryError::Open(open::unreachable(target, error)))?;
    connection.run(include_str!("sql/rows_begin.sql")).await.map_err(query_error)?;
    // Not as a simple query: that would take several statements, and one of them could end the transaction.
    let declare = format!("{}{sql}", include_str!("sql/rows_declare.sql"));
    connection.query_once(&declare, &[]).await.map_err(query_error)?;
    let mut columns: Vec<String> = Vec::new();
    loop {
        let fetched = connection.client().simple_query(include_str!("sql/rows_fetch.sql")).await;
        let mut any = false;
        for message in fetched.map_err(query_error)? {
            match message {
                SimpleQueryMessage::RowDescription(described) if columns.is_empty() => {
                    columns = described.iter().map(|column| column.name().to_owned()).collect();
                }
                SimpleQueryMessage::Row(row) => {
                    any = true;
                    let cells = (0..row.len()).map(|at| row.get(at).map(str::to_owned)).collect();
                    if on_row(&columns, cells).is_break() {
                        return Ok(columns);
                    }
                }
                _ => {}
            }
        }
        if !any {
            return Ok(columns);
        }
    }
}

/// Class 42 is a wrong statement, 22 wrong values in it, 25 one that writes or would like to; 0A000 a cursor over what is
/// no query.
fn query_error(error: Error) -> ReadOnlyQueryError<PostgresOpenError> {
    match (error.code().map(|code| code.code()), error.as_db_error()) {
        (Some(code), Some(told)) if code == "0A000" || matches!(&code[..2], "22" | "25" | "42") => {
            ReadOnlyQueryError::Refused(told.message().to_owned())
        }
        _ => ReadOnlyQueryError::Failed(error.into()),
    }
}
