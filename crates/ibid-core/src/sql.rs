//! A caller's own transaction, whatever the driver: two verbs over a closed set of types. It must not know any driver.
//!
//! An adapter is about thirty lines. All of ibid's SQL goes through it when a Change is applied inside the caller's
//! transaction, so business rows, outbox rows and the Record commit together or not at all.

use bytes::Bytes;

use crate::store::BoxFuture;

/// One open transaction of the caller.
///
/// An error leaves a PostgreSQL transaction aborted; the caller's work must then be rolled back.
pub trait SqlTx: Send {
    /// Whose SQL it speaks.
    fn dialect(&self) -> Dialect;

    /// Runs a statement that gives no rows; how many rows it touched.
    fn execute<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<u64, SqlError>>;

    /// Runs a statement and collects its rows.
    fn query<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<Vec<SqlRow>, SqlError>>;
}

/// A transaction that ibid ends: only it can commit, so that a refused Change can't be committed over.
pub trait OwnedTx: SqlTx + Sized {
    /// Makes it durable. On error the outcome may be hidden.
    fn commit(self) -> impl Future<Output = Result<(), SqlError>> + Send;

    /// Undoes it. Dropping it does the same, sooner or later.
    fn rollback(self) -> impl Future<Output = Result<(), SqlError>> + Send;
}

/// Where transactions come from: a pool.
pub trait Database: Send + Sync {
    /// Its transactions. They own their connection, so that dropping one gives it back or closes it.
    type Tx: OwnedTx;

    /// Opens one, ready to write: on SQLite with `BEGIN IMMEDIATE`.
    fn begin(&self) -> impl Future<Output = Result<Self::Tx, SqlError>> + Send;
}

/// Whose SQL a transaction speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// PostgreSQL.
    Postgres,
    /// SQLite.
    Sqlite,
}

/// One statement. `'static`, so that drivers can cache it by address or text.
#[derive(Debug)]
pub struct Statement {
    /// With `$1`, `$2`, … on PostgreSQL and `?1`, `?2`, … on SQLite.
    pub text: &'static str,
    /// What its rows hold, in order; empty for one that gives none.
    pub columns: &'static [Type],
}

/// Everything ibid keeps fits: an instant is microseconds, a nonce 64 bits, an id bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// `boolean`; an integer on SQLite.
    Bool,
    /// `int8`.
    I64,
    /// `text`.
    Text,
    /// `bytea` or `blob`.
    Bytes,
}

/// A value to bind. PostgreSQL binds types, so a null has one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Param<'a> {
    /// No value of this type.
    Null(Type),
    /// A truth value.
    Bool(bool),
    /// A number.
    I64(i64),
    /// Text.
    Text(&'a str),
    /// Bytes.
    Bytes(&'a [u8]),
}

impl Param<'_> {
    /// Its type.
    pub fn kind(&self) -> Type {
        match self {
            Param::Null(kind) => *kind,
            Param::Bool(_) => Type::Bool,
            Param::I64(_) => Type::I64,
            Param::Text(_) => Type::Text,
            Param::Bytes(_) => Type::Bytes,
        }
    }

    /// A number, or none.
    pub fn maybe_i64(value: Option<i64>) -> Param<'static> {
        value.map_or(Param::Null(Type::I64), Param::I64)
    }
}

impl<'a> Param<'a> {
    /// Text, or none.
    pub fn maybe_text(value: Option<&'a str>) -> Param<'a> {
        value.map_or(Param::Null(Type::Text), Param::Text)
    }

    /// Bytes, or none.
    pub fn maybe_bytes(value: Option<&'a [u8]>) -> Param<'a> {
        value.map_or(Param::Null(Type::Bytes), Param::Bytes)
    }
}

/// A value that was read.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// None.
    Null,
    /// A truth value.
    Bool(bool),
    /// A number.
    I64(i64),
    /// Text.
    Text(String),
    /// Bytes.
    Bytes(Bytes),
}

/// One row, as its statement's columns say. Values are taken from left to right.
#[derive(Clone, Debug)]
pub struct SqlRow {
    values: std::vec::IntoIter<Value>,
}

impl SqlRow {
    /// A row of these values.
    pub fn new(values: Vec<Value>) -> SqlRow {
        SqlRow { values: values.into_iter() }
    }

    /// The next value, whatever it is.
    pub fn value(&mut self) -> Result<Value, SqlError> {
        self.values.next().ok_or_else(|| SqlError::wrong("a row with more columns"))
    }

    /// Takes the last value, whatever it is: for columns behind those that another function reads.
    ///
    /// # Errors
    ///
    /// Fails if no value is left.
    pub fn last(&mut self) -> Result<Value, SqlError> {
        self.values.next_back().ok_or_else(|| SqlError::wrong("a row with more columns"))
    }

    /// The next value, a number.
    pub fn i64(&mut self) -> Result<i64, SqlError> {
        self.maybe_i64()?.ok_or_else(|| SqlError::wrong("a number"))
    }

    /// The next value, a number or none.
    pub fn maybe_i64(&mut self) -> Result<Option<i64>, SqlError> {
        match self.value()? {
            Value::Null => Ok(None),
            Value::I64(value) => Ok(Some(value)),
            _ => Err(SqlError::wrong("a number")),
        }
    }

    /// The next value, a truth value (SQLite's are numbers).
    pub fn bool(&mut self) -> Result<bool, SqlError> {
        match self.value()? {
            Value::Bool(value) => Ok(value),
            Value::I64(value) => Ok(value != 0),
            _ => Err(SqlError::wrong("a truth value")),
        }
    }

    /// The next value, text.
    pub fn text(&mut self) -> Result<String, SqlError> {
        self.maybe_text()?.ok_or_else(|| SqlError::wrong("text"))
    }

    /// The next value, text or none.
    pub fn maybe_text(&mut self) -> Result<Option<String>, SqlError> {
        match self.value()? {
            Value::Null => Ok(None),
            Value::Text(value) => Ok(Some(value)),
            _ => Err(SqlError::wrong("text")),
        }
    }

    /// The next value, bytes.
    pub fn bytes(&mut self) -> Result<Bytes, SqlError> {
        self.maybe_bytes()?.ok_or_else(|| SqlError::wrong("bytes"))
    }

    /// The next value, bytes or none.
    pub fn maybe_bytes(&mut self) -> Result<Option<Bytes>, SqlError> {
        match self.value()? {
            Value::Null => Ok(None),
            Value::Bytes(value) => Ok(Some(value)),
            _ => Err(SqlError::wrong("bytes")),
        }
    }
}

/// A statement that failed in the caller's transaction: ours, or the caller's own.
#[derive(Debug, thiserror::Error)]
#[error("a statement failed in the caller's transaction ({fault:?})")]
pub struct SqlError {
    fault: SqlFault,
    #[source]
    source: Box<dyn std::error::Error + Send + Sync>,
}

/// What a failure means to the one who may run the transaction again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SqlFault {
    /// Somebody else's transaction was in the way (40001, 40P01, SQLITE_BUSY): run the whole transaction again.
    Serialization,
    /// A lock was waited for in vain (55P03).
    LockTimeout,
    /// The connection is gone, or the server is: what was sent may have happened.
    Lost,
    /// Anything else: repetition won't mend it.
    Wrong,
}

impl SqlError {
    /// A failure with its meaning.
    pub fn new(fault: SqlFault, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> SqlError {
        SqlError { fault, source: source.into() }
    }

    /// By its SQLSTATE, where the driver tells it; `None` is a failure that the server did not report itself.
    pub fn with_state(
        state: Option<&str>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> SqlError {
        let fault = match state {
            Some("40001" | "40P01") => SqlFault::Serialization,
            Some("55P03") => SqlFault::LockTimeout,
            // Class 08: connection; 57P0x: shut down or terminated by an administrator; 25P03: idle for a whole lease.
            Some("57P01" | "57P02" | "57P03" | "57P05" | "25P03" | "53300") => SqlFault::Lost,
            Some(state) if state.starts_with("08") => SqlFault::Lost,
            Some(_) => SqlFault::Wrong,
            None => SqlFault::Lost,
        };
        SqlError::new(fault, source)
    }

    /// A row that is not what its statement promises.
    pub fn wrong(expected: &str) -> SqlError {
        SqlError::new(SqlFault::Wrong, format!("expected {expected}"))
    }

    /// What it means.
    pub fn fault(&self) -> SqlFault {
        self.fault
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_says_decides_whether_to_run_again() {
        let fault = |state| SqlError::with_state(state, "x").fault();
        assert_eq!(
            (fault(Some("40001")), fault(Some("40P01"))),
            (SqlFault::Serialization, SqlFault::Serialization)
        );
        assert_eq!(fault(Some("55P03")), SqlFault::LockTimeout);
        assert_eq!(
            (fault(Some("57P01")), fault(Some("08006")), fault(None)),
            (SqlFault::Lost, SqlFault::Lost, SqlFault::Lost)
        );
        assert_eq!(fault(Some("23505")), SqlFault::Wrong);
    }

    #[test]
    fn a_row_reports_a_value_of_an_unexpected_type() {
        let mut row = SqlRow::new(vec![Value::I64(7), Value::Null, Value::I64(1), Value::Text("x".into())]);
        assert_eq!(row.i64().unwrap(), 7);
        assert_eq!(row.maybe_bytes().unwrap(), None);
        assert!(row.bool().unwrap());
        assert!(row.bytes().is_err());
        assert!(row.value().is_err());
    }
}
