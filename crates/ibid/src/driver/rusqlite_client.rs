//! Runs statements on a `rusqlite` connection, synchronously on the thread that polls.

use ::rusqlite::types::{ToSqlOutput, ValueRef};
use ::rusqlite::{Connection, Error, Row as SqliteRow, Statement as Prepared};
use bytes::Bytes;
use ibid_core::sql::{Dialect, Param, SqlError, SqlFault, SqlRow, SqlTx, Statement, Type, Value};
use ibid_core::store::BoxFuture;

use super::sqlite_error;

/// A borrowed transaction. The caller that opened it also ends it.
pub(crate) struct JoinedTx<'a>(pub(crate) &'a mut Connection);

impl SqlTx for JoinedTx<'_> {
    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }

    fn execute<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<(), SqlError>> {
        Box::pin(async move { run(self.0, statement, params) })
    }

    fn query<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<Vec<SqlRow>, SqlError>> {
        Box::pin(async move { rows(self.0, statement, params) })
    }
}

pub(crate) fn run(
    connection: &Connection,
    statement: &'static Statement,
    params: &[Param<'_>],
) -> Result<(), SqlError> {
    let mut prepared = connection.prepare_cached(statement.text).map_err(failure)?;
    bind(&mut prepared, params)?;
    prepared.raw_execute().map(drop).map_err(failure)
}

pub(crate) fn rows(
    connection: &Connection,
    statement: &'static Statement,
    params: &[Param<'_>],
) -> Result<Vec<SqlRow>, SqlError> {
    let mut prepared = connection.prepare_cached(statement.text).map_err(failure)?;
    bind(&mut prepared, params)?;
    let mut cursor = prepared.raw_query();
    let mut rows = Vec::new();
    while let Some(row) = cursor.next().map_err(failure)? {
        let values = statement.columns.iter().enumerate().map(|(at, kind)| value(row, at, *kind));
        rows.push(SqlRow::new(values.collect::<Result<_, _>>()?));
    }
    Ok(rows)
}

fn bind(prepared: &mut Prepared<'_>, params: &[Param<'_>]) -> Result<(), SqlError> {
    for (at, param) in params.iter().enumerate() {
        let value = match *param {
            Param::Null(_) => ValueRef::Null,
            Param::Bool(value) => ValueRef::Integer(i64::from(value)),
            Param::I64(value) => ValueRef::Integer(value),
            Param::Text(value) => ValueRef::Text(value.as_bytes()),
            Param::Bytes(value) => ValueRef::Blob(value),
        };
        prepared.raw_bind_parameter(at + 1, ToSqlOutput::Borrowed(value)).map_err(failure)?;
    }
    Ok(())
}

fn value(row: &SqliteRow<'_>, at: usize, kind: Type) -> Result<Value, SqlError> {
    let stored = row.get_ref(at).map_err(failure)?;
    let value = match (kind, stored) {
        (_, ValueRef::Null) => Some(Value::Null),
        (Type::Bool, ValueRef::Integer(value)) => Some(Value::Bool(value != 0)),
        (Type::I64, ValueRef::Integer(value)) => Some(Value::I64(value)),
        (Type::Text, ValueRef::Text(value)) => {
            std::str::from_utf8(value).ok().map(|text| Value::Text(text.to_owned()))
        }
        (Type::Bytes, ValueRef::Blob(value)) => Some(Value::Bytes(Bytes::copy_from_slice(value))),
        _ => None,
    };
    value.ok_or_else(|| SqlError::mismatch(&format!("{kind:?} in column {at}, found {}", stored.data_type())))
}

pub(crate) fn failure(error: Error) -> SqlError {
    let fault = match &error {
        Error::SqliteFailure(reported, _) => sqlite_error::fault(reported.extended_code),
        Error::SqlInputError { error: reported, .. } => sqlite_error::fault(reported.extended_code),
        _ => SqlFault::Wrong,
    };
    SqlError::new(fault, error)
}
