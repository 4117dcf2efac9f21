//! A caller's own transaction, whatever the driver: two verbs over a closed set of types. This module names no driver.
//!
//! An adapter is about thirty lines. All of ibid's SQL goes through it when a change is applied inside the caller's
//! transaction, so business rows, outbox rows and the record commit together or not at all.

#![expect(clippy::exhaustive_enums, reason = "every driver has to handle every variant")]

use bytes::Bytes;

use crate::store::BoxFuture;

/// One open transaction of the caller.
///
/// An error leaves a PostgreSQL transaction aborted; the caller's work must then be rolled back. MySQL undoes only the
/// statement after a lock timeout, and the whole transaction after a deadlock: it must be rolled back as well, because the
/// next statement would otherwise be committed by itself.
pub trait SqlTx: Send {
    /// Returns the dialect of the connection.
    fn dialect(&self) -> Dialect;

    /// Returns the most bytes that a text or bytes among the parameters of a statement may have.
    fn param_bytes_max(&self) -> usize {
        usize::MAX
    }

    /// Runs a statement that returns no rows. It does not tell how many rows were written: servers and clients count differently.
    ///
    /// # Errors
    ///
    /// [`SqlError::fault`] says whether the caller may run the transaction again.
    fn execute<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<(), SqlError>>;

    /// Runs a statement and collects its rows.
    ///
    /// # Errors
    ///
    /// [`SqlError::fault`] says whether the caller may run the transaction again.
    fn query<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<Vec<SqlRow>, SqlError>>;
}

/// A transaction that ibid owns and ends. The caller cannot commit it, so a refused change stays uncommitted.
pub trait OwnedTx: SqlTx + Sized {
    /// Commits the transaction, durably.
    ///
    /// # Errors
    ///
    /// With [`SqlFault::Lost`] the commit may have happened. With any other fault it did not.
    fn commit(self) -> impl Future<Output = Result<(), SqlError>> + Send;

    /// Rolls the transaction back. A dropped transaction is rolled back, too, but perhaps later.
    ///
    /// # Errors
    ///
    /// Fails if the connection is lost; the server rolls back then.
    fn rollback(self) -> impl Future<Output = Result<(), SqlError>> + Send;
}

/// A source of transactions: usually a pool of connections.
pub trait Database: Send + Sync {
    /// Type of its transactions. Each owns its connection, so that dropping one returns or closes the connection.
    type Tx: OwnedTx;

    /// Opens a transaction that is ready to write: on SQLite with `BEGIN IMMEDIATE`.
    ///
    /// # Errors
    ///
    /// Fails if no connection can be had. Nothing was written.
    fn begin(&self) -> impl Future<Output = Result<Self::Tx, SqlError>> + Send;
}

/// The SQL dialect of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// The dialect of PostgreSQL.
    Postgres,
    /// The dialect of SQLite.
    Sqlite,
    /// The common part of the dialects of MySQL and MariaDB.
    Mysql,
}

/// One SQL statement. It is `'static`, so that drivers can cache it by address or by text.
#[derive(Debug)]
pub struct Statement {
    /// Text with the parameters `$1`, `$2`, … on PostgreSQL and `?1`, `?2`, … on SQLite and MySQL.
    ///
    /// MySQL knows only `?`, which takes the next value. Its adapters send [`Statement::positional`].
    pub text: &'static str,
    /// Types of the columns that it returns, in order; empty if it returns no rows.
    pub columns: &'static [Type],
}

impl Statement {
    /// Returns the text with a plain `?` for each numbered parameter, and the parameter that each of them takes.
    ///
    /// A parameter may be used several times, or not at all. Comments are left out. Text in single quotes stays as it is;
    /// it must not contain a backslash, whose meaning depends on the session.
    pub fn positional(&self) -> PositionalSql {
        let mut text = String::with_capacity(self.text.len());
        let mut order = Vec::new();
        let mut rest = self.text;
        while let Some(at) = rest.find(['?', '\'', '-']) {
            let (before, special) = rest.split_at(at);
            text.push_str(before);
            let (kept, after) = match special.as_bytes() {
                [b'-', b'-', ..] => ("", special.find('\n').map_or("", |end| &special[end..])),
                [b'\'', ..] => {
                    let end = special[1..].find('\'').map_or(special.len(), |end| end + 2);
                    special.split_at(end)
                }
                [b'?', digit, ..] if digit.is_ascii_digit() => {
                    let digits =
                        special[1..].find(|c: char| !c.is_ascii_digit()).map_or(special.len(), |end| end + 1);
                    // The digits of a parameter's number fit, and numbers begin with 1.
                    order.push(special[1..digits].parse::<usize>().unwrap_or(usize::MAX).saturating_sub(1));
                    ("?", &special[digits..])
                }
                _ => special.split_at(1),
            };
            text.push_str(kept);
            rest = after;
        }
        text.push_str(rest);
        PositionalSql { text: text.trim().to_owned(), order }
    }
}

/// A statement for a driver that binds values by position only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PositionalSql {
    /// Text with a `?` for each value.
    pub text: String,
    /// For each `?`, the index of its parameter.
    pub order: Vec<usize>,
}

impl PositionalSql {
    /// Returns the values in the order of the text.
    ///
    /// # Errors
    ///
    /// Fails if the text names a parameter that is not there.
    pub fn arrange<'a>(&self, params: &[Param<'a>]) -> Result<Vec<Param<'a>>, SqlError> {
        let param = |at: &usize| params.get(*at).copied().ok_or_else(|| SqlError::mismatch("a parameter"));
        self.order.iter().map(param).collect()
    }
}

/// Type of a column or parameter. These four suffice: an instant is microseconds, a nonce is 64 bits, an id is bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// A `boolean`; an integer on SQLite and MySQL.
    Bool,
    /// A signed 64-bit integer (`int8`).
    I64,
    /// A string of characters (`text`); bytes of UTF-8 on MySQL, where a collation could take different texts for equal.
    Text,
    /// A string of bytes (`bytea` or `blob`).
    Bytes,
}

/// A value to bind to a parameter. PostgreSQL wants the type of each parameter, so a null has one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Param<'a> {
    /// A null of this type.
    Null(Type),
    /// A value of [`Type::Bool`].
    Bool(bool),
    /// A value of [`Type::I64`].
    I64(i64),
    /// A value of [`Type::Text`].
    Text(&'a str),
    /// A value of [`Type::Bytes`].
    Bytes(&'a [u8]),
}

impl Param<'_> {
    /// Returns the type of the value.
    pub fn kind(&self) -> Type {
        match self {
            Param::Null(kind) => *kind,
            Param::Bool(_) => Type::Bool,
            Param::I64(_) => Type::I64,
            Param::Text(_) => Type::Text,
            Param::Bytes(_) => Type::Bytes,
        }
    }

    /// Creates a number, or a null for `None`.
    pub fn maybe_i64(value: Option<i64>) -> Param<'static> {
        value.map_or(Param::Null(Type::I64), Param::I64)
    }
}

impl<'a> Param<'a> {
    /// Creates a text, or a null for `None`.
    pub fn maybe_text(value: Option<&'a str>) -> Param<'a> {
        value.map_or(Param::Null(Type::Text), Param::Text)
    }

    /// Creates a string of bytes, or a null for `None`.
    pub fn maybe_bytes(value: Option<&'a [u8]>) -> Param<'a> {
        value.map_or(Param::Null(Type::Bytes), Param::Bytes)
    }
}

/// A value that a statement returned.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A null of any type.
    Null,
    /// A value of [`Type::Bool`].
    Bool(bool),
    /// A value of [`Type::I64`].
    I64(i64),
    /// A value of [`Type::Text`].
    Text(String),
    /// A value of [`Type::Bytes`].
    Bytes(Bytes),
}

/// One row of a statement, with the types of [`Statement::columns`]. Values are read from left to right.
#[derive(Clone, Debug)]
pub struct SqlRow {
    values: std::vec::IntoIter<Value>,
}

impl SqlRow {
    /// Creates a row of these values.
    pub fn new(values: Vec<Value>) -> SqlRow {
        SqlRow { values: values.into_iter() }
    }

    /// Reads the next value, whatever its type.
    ///
    /// # Errors
    ///
    /// Fails if no value is left.
    pub fn value(&mut self) -> Result<Value, SqlError> {
        self.values.next().ok_or_else(|| SqlError::mismatch("a row with more columns"))
    }

    /// Removes and returns the last value, whatever its type: for columns behind those that another function reads.
    ///
    /// # Errors
    ///
    /// Fails if no value is left.
    pub fn last(&mut self) -> Result<Value, SqlError> {
        self.values.next_back().ok_or_else(|| SqlError::mismatch("a row with more columns"))
    }

    /// Reads the next value, which must be a number.
    ///
    /// # Errors
    ///
    /// Fails if no value is left, or it has another type.
    pub fn i64(&mut self) -> Result<i64, SqlError> {
        self.maybe_i64()?.ok_or_else(|| SqlError::mismatch("a number"))
    }

    /// Reads the next value, a number or null.
    ///
    /// # Errors
    ///
    /// Fails if no value is left, or it has another type.
    pub fn maybe_i64(&mut self) -> Result<Option<i64>, SqlError> {
        match self.value()? {
            Value::Null => Ok(None),
            Value::I64(value) => Ok(Some(value)),
            _ => Err(SqlError::mismatch("a number")),
        }
    }

    /// Reads the next value, a truth value. Those of SQLite and MySQL are numbers.
    ///
    /// # Errors
    ///
    /// Fails if no value is left, or it has another type.
    pub fn bool(&mut self) -> Result<bool, SqlError> {
        match self.value()? {
            Value::Bool(value) => Ok(value),
            Value::I64(value) => Ok(value != 0),
            _ => Err(SqlError::mismatch("a truth value")),
        }
    }

    /// Reads the next value, which must be text.
    ///
    /// # Errors
    ///
    /// Fails if no value is left, or it has another type.
    pub fn text(&mut self) -> Result<String, SqlError> {
        self.maybe_text()?.ok_or_else(|| SqlError::mismatch("text"))
    }

    /// Reads the next value, text or null.
    ///
    /// # Errors
    ///
    /// Fails if no value is left, or it has another type.
    pub fn maybe_text(&mut self) -> Result<Option<String>, SqlError> {
        match self.value()? {
            Value::Null => Ok(None),
            Value::Text(value) => Ok(Some(value)),
            _ => Err(SqlError::mismatch("text")),
        }
    }

    /// Reads the next value, which must be bytes.
    ///
    /// # Errors
    ///
    /// Fails if no value is left, or it has another type.
    pub fn bytes(&mut self) -> Result<Bytes, SqlError> {
        self.maybe_bytes()?.ok_or_else(|| SqlError::mismatch("bytes"))
    }

    /// Reads the next value, bytes or null.
    ///
    /// # Errors
    ///
    /// Fails if no value is left, or it has another type.
    pub fn maybe_bytes(&mut self) -> Result<Option<Bytes>, SqlError> {
        match self.value()? {
            Value::Null => Ok(None),
            Value::Bytes(value) => Ok(Some(value)),
            _ => Err(SqlError::mismatch("bytes")),
        }
    }
}

/// The error of a statement in the caller's transaction, ibid's or the caller's own.
#[derive(Debug, thiserror::Error)]
#[error("a statement failed in the caller's transaction ({fault:?})")]
pub struct SqlError {
    fault: SqlFault,
    #[source]
    source: Box<dyn std::error::Error + Send + Sync>,
}

/// The meaning of a failure to a caller that may run the transaction again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SqlFault {
    /// Another transaction was in the way (40001, 40P01, SQLITE_BUSY, 1213): run the whole transaction again.
    Serialization,
    /// The statement waited for a lock longer than `lock_timeout` (55P03) or `innodb_lock_wait_timeout` (1205).
    LockTimeout,
    /// The connection or the server is lost: a statement or commit that was sent may have happened.
    Lost,
    /// Any other failure. Running the transaction again does not help.
    Wrong,
}

impl SqlError {
    /// Creates an error with this meaning.
    pub fn new(fault: SqlFault, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> SqlError {
        SqlError { fault, source: source.into() }
    }

    /// Creates an error and takes its meaning from the SQLSTATE. `None`: the server reported none, so the connection is lost.
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

    /// Creates an error and takes its meaning from the error number of MySQL or MariaDB.
    pub fn with_mysql_number(
        number: u16,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> SqlError {
        let fault = match number {
            // 1213: deadlock; 1020: the row changed since the snapshot; 1614: the same in an XA transaction; 3101: group
            // replication refused the commit. The server has rolled the transaction back. 1412: a table was rebuilt after the
            // snapshot; the transaction is still open, and sees the table only once it is run again.
            1020 | 1213 | 1412 | 1614 | 3101 => SqlFault::Serialization,
            // 3572: MySQL's word for `nowait`; MariaDB says 1205 there as well.
            1205 | 3572 => SqlFault::LockTimeout,
            // 1040, 1203, 1226: too many connections; 1047: a cluster node that is not ready; 1053: shutdown; 1152 and 1158 to
            // 1161: the network; 1026 and 1180: a log that can't be written, perhaps after the commit was done; 1927 and 4031:
            // ended by an administrator or by a time limit; 2000 and above: the client's side.
            1026
            | 1040
            | 1047
            | 1053
            | 1152
            | 1158..=1161
            | 1180
            | 1184
            | 1203
            | 1226
            | 1927
            | 2000..=2999
            | 4031 => SqlFault::Lost,
            _ => SqlFault::Wrong,
        };
        SqlError::new(fault, source)
    }

    /// Creates the error of a row or value that is not what the statement promises.
    pub fn mismatch(expected: &str) -> SqlError {
        SqlError::new(SqlFault::Wrong, format!("expected {expected}"))
    }

    /// Returns the meaning of this error.
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
    fn mysql_error_numbers_decide_whether_to_run_again() {
        let fault = |number| SqlError::with_mysql_number(number, "x").fault();
        for refused in [1213, 1020, 1412, 3101] {
            assert_eq!(fault(refused), SqlFault::Serialization, "{refused}");
        }
        assert_eq!((fault(1205), fault(3572)), (SqlFault::LockTimeout, SqlFault::LockTimeout));
        for in_doubt in [2013, 1053, 1927, 1026, 1180] {
            assert_eq!(fault(in_doubt), SqlFault::Lost, "{in_doubt}");
        }
        assert_eq!(
            (fault(1062), fault(1153), fault(1064)),
            (SqlFault::Wrong, SqlFault::Wrong, SqlFault::Wrong)
        );
    }

    #[test]
    fn numbered_parameters_become_positional_ones() {
        let text = "-- Sets ?2; it's `?9`.\nupdate t set a = ?10 - ?2 -- not ?3\nwhere b = ?2 and c = '?1 -- x' and d->'$.e' = 1";
        let statement = Statement { text, columns: &[] };
        let positional = statement.positional();
        let expected = "update t set a = ? - ? \nwhere b = ? and c = '?1 -- x' and d->'$.e' = 1";
        assert_eq!((positional.text.as_str(), positional.order.as_slice()), (expected, &[9, 1, 1][..]));
        assert!(positional.arrange(&[Param::I64(1), Param::I64(2)]).is_err(), "parameter 10 is missing");
        let params: Vec<_> = (1..=10).map(Param::I64).collect();
        assert_eq!(positional.arrange(&params).unwrap(), [Param::I64(10), Param::I64(2), Param::I64(2)]);
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
