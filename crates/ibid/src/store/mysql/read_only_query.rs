//! Runs one read-only statement in a read-only transaction.

use mysql_async::{Error, Value};

use super::target::MysqlTarget;
use super::{MysqlOpenError, error, open};
use crate::store::read_only_query::{ReadOnlyQueryError, RowCallback};

/// Passes each row of `sql` to `on_row` and returns the column names.
pub(super) async fn read(
    target: &MysqlTarget,
    sql: &str,
    on_row: RowCallback<'_>,
) -> Result<Vec<String>, ReadOnlyQueryError<MysqlOpenError>> {
    let dialled = target.dial().await;
    let mut connection =
        dialled.map_err(|error| ReadOnlyQueryError::Open(open::unreachable(target, error)))?;
    connection.run(include_str!("sql/rows_begin.sql")).await.map_err(query_error)?;
    // Prepared, and so one statement only: a second one could end the transaction.
    let mut pass =
        |names: &[String], row: Vec<Value>| on_row(names, row.iter().map(text).collect()).is_continue();
    connection.rows_with_names(sql, &mut pass).await.map_err(query_error)
}

/// Returns a value as the client programs show it.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::NULL => None,
        Value::Bytes(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::Int(value) => Some(value.to_string()),
        Value::UInt(value) => Some(value.to_string()),
        Value::Float(value) => Some(value.to_string()),
        Value::Double(value) => Some(value.to_string()),
        Value::Date(year, month, day, hour, minute, second, micros) => {
            Some(format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{micros:06}"))
        }
        Value::Time(..) => Some(value.as_sql(true).trim_matches('\'').to_owned()),
    }
}

fn query_error(error: Error) -> ReadOnlyQueryError<MysqlOpenError> {
    match &error {
        Error::Server(server)
            if error::scope_of(&error) != error::MysqlErrorScope::Moment || server.code == 1792 =>
        {
            ReadOnlyQueryError::Refused(server.message.clone())
        }
        _ => ReadOnlyQueryError::Failed(error.into()),
    }
}
