//! Runs statements on a `tokio-postgres` client: each is parsed and run in one round trip and leaves no prepared statement.

use ::tokio_postgres::types::{ToSql, Type as PgType};
use ::tokio_postgres::{Client, Error, Row as PgRow};
use bytes::Bytes;
use ibid_core::sql::{Param, SqlError, SqlFault, SqlRow, Statement, Type, Value};

pub(crate) async fn run(
    client: &Client,
    statement: &Statement,
    params: &[Param<'_>],
) -> Result<(), SqlError> {
    client.execute_typed(statement.text, &with_types(params)).await.map(drop).map_err(failure)
}

pub(crate) async fn rows(
    client: &Client,
    statement: &Statement,
    params: &[Param<'_>],
) -> Result<Vec<SqlRow>, SqlError> {
    let rows = client.query_typed(statement.text, &with_types(params)).await.map_err(failure)?;
    rows.iter().map(|row| read(row, statement.columns)).collect()
}

fn with_types<'a>(params: &'a [Param<'a>]) -> Vec<(&'a (dyn ToSql + Sync), PgType)> {
    params
        .iter()
        .map(|param| match param {
            Param::Null(Type::Bool) => (&None::<bool> as &(dyn ToSql + Sync), PgType::BOOL),
            Param::Null(Type::I64) => (&None::<i64> as _, PgType::INT8),
            Param::Null(Type::Text) => (&None::<&str> as _, PgType::TEXT),
            Param::Null(Type::Bytes) => (&None::<&[u8]> as _, PgType::BYTEA),
            Param::Bool(value) => (value as _, PgType::BOOL),
            Param::I64(value) => (value as _, PgType::INT8),
            Param::Text(value) => (value as _, PgType::TEXT),
            Param::Bytes(value) => (value as _, PgType::BYTEA),
        })
        .collect()
}

fn read(row: &PgRow, columns: &[Type]) -> Result<SqlRow, SqlError> {
    let value = |(at, kind): (usize, &Type)| -> Result<Value, Error> {
        let value = match kind {
            Type::Bool => row.try_get::<_, Option<bool>>(at)?.map(Value::Bool),
            Type::I64 => row.try_get::<_, Option<i64>>(at)?.map(Value::I64),
            Type::Text => row.try_get::<_, Option<String>>(at)?.map(Value::Text),
            Type::Bytes => row.try_get::<_, Option<&[u8]>>(at)?.map(Bytes::copy_from_slice).map(Value::Bytes),
        };
        Ok(value.unwrap_or(Value::Null))
    };
    let values = columns.iter().enumerate().map(value).collect::<Result<_, _>>();
    values.map(SqlRow::new).map_err(|error| SqlError::new(SqlFault::Wrong, error))
}

pub(crate) fn failure(error: Error) -> SqlError {
    let state = error.code().cloned();
    SqlError::with_state(state.as_ref().map(|state| state.code()), error)
}
