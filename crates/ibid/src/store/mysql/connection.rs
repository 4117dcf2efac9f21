//! One connection: how texts are sent on it, and when it must not be used again.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use ibid_core::sql::{Dialect, Param, SqlError, SqlRow, SqlTx, Statement, Type, Value as SqlValue};
use ibid_core::store::BoxFuture;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, IoError, Row};
use tokio::time::timeout;

use super::row::DbRow;
use super::{error, literal};
use crate::store::policy_cache::TrustedPolicies;

/// A connection whose session has ibid's settings.
#[derive(Debug)]
pub(super) struct MysqlConnection {
    conn: Conn,
    /// Facts about the server that answered.
    pub(super) server: ServerFacts,
    pub(super) policies: TrustedPolicies,
    /// Time without an answer after which the connection counts as broken.
    reply_wait: Duration,
    /// `false` while a text is on its way, and after a failure that leaves the session in doubt.
    is_sound: bool,
    /// A text was sent whose reply was not read to its end. The next read would take that reply for its own, and every later
    /// one would be off by one, so nothing is sent any more. Only a complete reply clears it.
    is_reply_owed: bool,
    /// A transaction is open.
    is_open: bool,
}

/// Facts about a server that statements depend on.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerFacts {
    pub(super) is_mariadb: bool,
    /// Largest packet that the server takes, in bytes.
    pub(super) packet_max: usize,
}

impl ServerFacts {
    /// Returns the most bytes of one literal: it has two digits for each byte.
    pub(super) fn literal_bytes_max(self) -> usize {
        self.packet_max.saturating_sub(STATEMENT_ROOM) / 2
    }
}

impl MysqlConnection {
    pub(super) fn new(conn: Conn, reply_wait: Duration) -> MysqlConnection {
        MysqlConnection {
            conn,
            server: ServerFacts { is_mariadb: true, packet_max: PACKET_MIN },
            policies: TrustedPolicies::default(),
            reply_wait,
            is_sound: true,
            is_reply_owed: false,
            is_open: false,
        }
    }

    /// Sends statements in one packet and returns the rows of all of them.
    ///
    /// After an error nothing is left open: the transaction is rolled back, or the pool closes the connection.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the statements may run to their end, and the pool closes the connection.
    pub(super) async fn run(&mut self, text: &str) -> Result<Vec<DbRow>, Error> {
        let result = self.send(text).await;
        if let Err(error) = &result
            && error::is_session_sound(error)
            // The first failure counts. If the rollback fails, the connection stays unsound.
            && self.send("rollback").await.is_ok()
        {
            self.is_open = false;
        }
        result
    }

    /// Begins a transaction. Until [`MysqlConnection::end`], a dropped future makes the pool close the connection.
    pub(super) async fn begin(&mut self) -> Result<(), Error> {
        self.is_open = true;
        self.run("start transaction").await.map(drop)
    }

    /// Begins a transaction with `text`, in one round trip, and returns its rows.
    pub(super) async fn begin_with(&mut self, text: &str) -> Result<Vec<DbRow>, Error> {
        self.is_open = true;
        self.run(&format!("start transaction;\n{text}")).await
    }

    /// Ends the transaction with `commit` or `rollback`, and statements before it, in one round trip. Returns their rows.
    pub(super) async fn end(&mut self, how: &str) -> Result<Vec<DbRow>, Error> {
        let rows = self.run(how).await?;
        self.is_open = false;
        Ok(rows)
    }

    /// Makes the session usable after a statement that the server refused outside a transaction.
    pub(super) async fn recover(&mut self) -> Result<(), Error> {
        self.send("rollback").await.map(drop)
    }

    /// Sets how long later texts wait for their replies.
    pub(super) fn wait_for_replies(&mut self, at_most: Duration) {
        self.reply_wait = at_most;
    }

    /// Returns whether the pool may hand the connection out.
    pub(super) fn is_usable(&self) -> bool {
        self.is_sound && !self.is_reply_owed && !self.is_open && !self.conn.is_disconnected()
    }

    /// Prepares and runs one statement, and passes its rows on with the names of their columns, until `on_row` returns `false`.
    pub(super) async fn rows_with_names(
        &mut self,
        text: &str,
        on_row: &mut (dyn FnMut(&[String], DbRow) -> bool + Send),
    ) -> Result<Vec<String>, Error> {
        (self.is_sound, self.is_reply_owed) = (false, true);
        let mut result = self.conn.exec_iter(text, ()).await?;
        let columns = result.columns();
        let columns = columns.iter().flat_map(|columns| columns.iter());
        let names: Vec<String> = columns.map(|column| column.name_str().into_owned()).collect();
        while let Some(row) = result.next().await? {
            if !on_row(&names, row.unwrap()) {
                break;
            }
        }
        Ok(names)
    }

    async fn send(&mut self, text: &str) -> Result<Vec<DbRow>, Error> {
        if self.is_reply_owed {
            return Err(broken(io::ErrorKind::NotConnected, "an earlier reply was not read"));
        }
        (self.is_sound, self.is_reply_owed) = (false, true);
        let result = match timeout(self.reply_wait, collect(&mut self.conn, text)).await {
            Ok(result) => result,
            Err(_) => return Err(broken(io::ErrorKind::TimedOut, "the server does not answer")),
        };
        // An error of the server is its whole reply. After any other, part of a reply may be unread.
        self.is_reply_owed = !matches!(result, Ok(_) | Err(Error::Server(_)));
        self.is_sound = result.is_ok() || result.as_ref().is_err_and(error::is_session_sound);
        result
    }
}

/// Returns the error of a connection that can't be used any more.
pub(super) fn broken(kind: io::ErrorKind, reason: &'static str) -> Error {
    Error::Io(IoError::Io(io::Error::new(kind, reason)))
}

async fn collect(conn: &mut Conn, text: &str) -> Result<Vec<DbRow>, Error> {
    let mut result = conn.query_iter(text).await?;
    let mut rows = Vec::new();
    while !result.is_empty() {
        result.for_each(|row: Row| rows.push(row.unwrap())).await?;
    }
    result.drop_result().await?;
    Ok(rows)
}

/// A transaction of the store's own.
pub(super) struct MysqlStoreTx<'c>(pub(super) &'c mut MysqlConnection);

impl MysqlStoreTx<'_> {
    async fn rows(&mut self, statement: &Statement, params: &[Param<'_>]) -> Result<Vec<DbRow>, SqlError> {
        let text = literal::statement(statement.text, params)?;
        // Not `run`: the owner of the transaction rolls it back.
        self.0.send(&text).await.map_err(error::sql_error)
    }
}

impl SqlTx for MysqlStoreTx<'_> {
    fn dialect(&self) -> Dialect {
        Dialect::Mysql
    }

    fn param_bytes_max(&self) -> usize {
        self.0.server.literal_bytes_max()
    }

    fn execute<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<(), SqlError>> {
        Box::pin(async move { self.rows(statement, params).await.map(drop) })
    }

    fn query<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<Vec<SqlRow>, SqlError>> {
        Box::pin(async move {
            let rows = self.rows(statement, params).await?;
            rows.into_iter().map(|row| sql_row(statement.columns, row)).collect()
        })
    }
}

fn sql_row(columns: &[Type], row: DbRow) -> Result<SqlRow, SqlError> {
    if row.len() != columns.len() {
        return Err(SqlError::mismatch("as many columns as the statement promises"));
    }
    let value = |(kind, value): (&Type, mysql_async::Value)| {
        Ok(match (kind, value) {
            (_, mysql_async::Value::NULL) => SqlValue::Null,
            (Type::Bool | Type::I64, value) => {
                SqlValue::I64(super::row::integer(&value).ok_or_else(|| SqlError::mismatch("a number"))?)
            }
            (Type::Text, mysql_async::Value::Bytes(bytes)) => {
                SqlValue::Text(String::from_utf8(bytes).map_err(|_| SqlError::mismatch("text"))?)
            }
            (Type::Bytes, mysql_async::Value::Bytes(bytes)) => SqlValue::Bytes(bytes.into()),
            _ => return Err(SqlError::mismatch("text or bytes")),
        })
    };
    columns.iter().zip(row).map(value).collect::<Result<_, _>>().map(SqlRow::new)
}

/// Values of a server's variables, by name.
pub(super) type Variables = HashMap<String, String>;

/// The least that MySQL allows, until the server was asked.
const PACKET_MIN: usize = 1024;

/// Bytes of a statement besides its largest literal: identity, note and header lines, which are far smaller.
const STATEMENT_ROOM: usize = 256 << 10;
