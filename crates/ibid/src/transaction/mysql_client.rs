//! Runs statements on a `mysql_async` connection: with parameters as prepared statements, which the driver caches, and without
//! as plain text, because MySQL can't prepare every statement.

use ::mysql_async::prelude::Queryable;
use ::mysql_async::{DriverError, Error, Params, Row as MysqlRow, Value as MysqlValue};
use bytes::Bytes;
use ibid_core::sql::{Param, SqlError, SqlFault, SqlRow, Statement, Type, Value};

pub(super) async fn run(
    client: &mut impl Queryable,
    statement: &Statement,
    params: &[Param<'_>],
) -> Result<(), SqlError> {
    let positional = statement.positional();
    if params.is_empty() {
        return client.query_drop(positional.text).await.map_err(failure);
    }
    let params = positional.arrange(params)?;
    client.exec_drop(positional.text, values(&params)).await.map_err(failure)
}

pub(super) async fn rows(
    client: &mut impl Queryable,
    statement: &Statement,
    params: &[Param<'_>],
) -> Result<Vec<SqlRow>, SqlError> {
    let positional = statement.positional();
    let rows: Vec<MysqlRow> = if params.is_empty() {
        client.query(positional.text).await.map_err(failure)?
    } else {
        let params = positional.arrange(params)?;
        client.exec(positional.text, values(&params)).await.map_err(failure)?
    };
    rows.into_iter().map(|row| read(row, statement.columns)).collect()
}

/// Classifies an error of the driver.
pub(super) fn failure(error: Error) -> SqlError {
    match &error {
        Error::Server(reported) => SqlError::with_mysql_number(reported.code, error),
        // A value, a parameter or a URL that does not fit is a programming error.
        Error::Url(_)
        | Error::Driver(
            DriverError::FromValue { .. }
            | DriverError::FromRow { .. }
            | DriverError::Params(_)
            | DriverError::MixedParams
            | DriverError::NestedTransaction
            | DriverError::StmtParamsMismatch { .. },
        ) => SqlError::new(SqlFault::Wrong, error),
        // All other errors are about the connection.
        _ => SqlError::new(SqlFault::Lost, error),
    }
}

fn values(params: &[Param<'_>]) -> Params {
    if params.is_empty() {
        return Params::Empty;
    }
    let value = |param: &Param<'_>| match *param {
        Param::Null(_) => MysqlValue::NULL,
        Param::Bool(value) => MysqlValue::Int(value.into()),
        Param::I64(value) => MysqlValue::Int(value),
        Param::Text(value) => MysqlValue::Bytes(value.into()),
        Param::Bytes(value) => MysqlValue::Bytes(value.into()),
    };
    Params::Positional(params.iter().map(value).collect())
}

fn read(row: MysqlRow, columns: &[Type]) -> Result<SqlRow, SqlError> {
    let cells = row.unwrap();
    if cells.len() < columns.len() {
        return Err(SqlError::mismatch("a row with more columns"));
    }
    let values = cells.into_iter().zip(columns).map(|(value, kind)| match (value, kind) {
        (MysqlValue::NULL, _) => Ok(Value::Null),
        (value, Type::Bool) => Ok(Value::Bool(integer(value)? != 0)),
        (value, Type::I64) => Ok(Value::I64(integer(value)?)),
        (MysqlValue::Bytes(bytes), Type::Bytes) => Ok(Value::Bytes(Bytes::from(bytes))),
        (MysqlValue::Bytes(bytes), Type::Text) => {
            Ok(Value::Text(String::from_utf8(bytes).map_err(|_| SqlError::mismatch("text"))?))
        }
        (_, Type::Text) => Err(SqlError::mismatch("text")),
        (_, Type::Bytes) => Err(SqlError::mismatch("bytes")),
    });
    Ok(SqlRow::new(values.collect::<Result<_, _>>()?))
}

/// Reads a number, which comes as digits in the result of a plain text.
fn integer(value: MysqlValue) -> Result<i64, SqlError> {
    let number = match value {
        MysqlValue::Int(number) => Some(number),
        MysqlValue::UInt(number) => i64::try_from(number).ok(),
        MysqlValue::Bytes(digits) => str::from_utf8(&digits).ok().and_then(|digits| digits.parse().ok()),
        _ => None,
    };
    number.ok_or_else(|| SqlError::mismatch("a number"))
}
