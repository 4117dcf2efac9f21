//! One connection: how statements are sent on it, and what it remembers.
//!
//! Most connections set nothing on their session, because behind a transaction pooler the next transaction may meet another
//! session. Hot connections ask for a session that starts with the settings of the hot path; a pooler refuses or ignores that.
//! `flight.sql` checks that the settings are there. All other statements set them in their transaction.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Instant;

use futures_util::future::{join_all, join3};
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio_postgres::types::{Kind, ToSql, Type};
use tokio_postgres::{CancelToken, Client, Error, Row, Statement};

use super::error;
use crate::store::policy_cache::TrustedPolicies;

/// A value for a statement, with the type that the statement takes.
pub(super) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// A connection to the server, with its prepared statements.
#[derive(Debug)]
pub(super) struct PostgresConnection {
    client: Client,
    /// `true` if statements are prepared once and named, `false` if they are sent whole each time.
    prepares: bool,
    statements: Mutex<HashMap<usize, Statement>>,
    /// `true` if the session has the settings of the hot path.
    has_settings: AtomicBool,
    /// Types of the arrays that `flight.sql` takes.
    row_types: OnceCell<[Type; 2]>,
    policies: Mutex<TrustedPolicies>,
    /// Time of the last check that the server keeps what it commits.
    checked_at: Mutex<Instant>,
    /// A warning came: a commit before it may not be as durable as it should be.
    warned: Arc<AtomicBool>,
    /// The pool must not hand this connection out again.
    spoilt: AtomicBool,
    /// Statements without a reply. If a caller gives up, its statement stays counted, and the pool closes the connection:
    /// the server may still work on it, and the next caller would wait behind it.
    unanswered: AtomicUsize,
    /// Not 0 if a step of the schema excludes this program.
    excluded_by: Arc<AtomicU32>,
}

impl PostgresConnection {
    pub(super) fn new(
        client: Client,
        prepares: bool,
        warned: Arc<AtomicBool>,
        excluded_by: Arc<AtomicU32>,
    ) -> PostgresConnection {
        PostgresConnection {
            client,
            prepares,
            statements: Mutex::default(),
            has_settings: AtomicBool::new(false),
            row_types: OnceCell::new(),
            policies: Mutex::default(),
            checked_at: Mutex::new(Instant::now()),
            warned,
            spoilt: AtomicBool::new(false),
            unanswered: AtomicUsize::new(0),
            excluded_by,
        }
    }

    /// Runs a statement that is seldom used: one round trip, nothing prepared.
    pub(super) async fn query_once(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Error> {
        self.reply(self.client.query_typed(sql, params)).await
    }

    /// Runs statements in one transaction that `open` begins: one round trip once they are prepared. Their writes are durable
    /// when this returns.
    ///
    /// All of them leave when the future is first polled after preparation, and nothing is ever cancelled.
    pub(super) async fn transaction<const N: usize>(
        &self,
        open: &str,
        statements: [(&'static str, &[Param<'_>]); N],
    ) -> Result<[Vec<Row>; N], Error> {
        for (sql, params) in &statements {
            self.prepare_statement(sql, params).await?;
        }
        // They are sent in the order in which they are first polled.
        let (opened, results, closed) = join3(
            self.run(open),
            join_all(statements.map(|(sql, params)| self.query_prepared(sql, params))),
            self.run("commit"),
        )
        .await;
        // The first failure is the cause of those behind it. If the opening failed, each statement was its own transaction:
        // its result is not known, and the caller asks again.
        opened?;
        let rows = results.into_iter().collect::<Result<Vec<_>, Error>>()?;
        closed?;
        // As many results as statements.
        Ok(rows.try_into().expect("one result per statement"))
    }

    /// Runs one statement of the hot path, which checks for the settings of the hot path itself: without them it returns no row. In a session
    /// that has them it is its own transaction.
    pub(super) async fn query_hot(&self, sql: &'static str, params: &[Param<'_>]) -> Result<Vec<Row>, Error> {
        if self.has_settings.load(Ordering::SeqCst) {
            return self.query_prepared(sql, params).await;
        }
        // Boxed: it is large, and a session that has the settings never comes here.
        let [rows] = Box::pin(self.transaction(OPEN_HOT, [(sql, params)])).await?;
        Ok(rows)
    }

    /// Notes whether the session has the settings of the hot path.
    pub(super) fn set_has_settings(&self, has_settings: bool) {
        self.has_settings.store(has_settings, Ordering::SeqCst);
    }

    /// Returns the types of an array of new records and of an array of finishes. Their numbers differ between databases.
    pub(super) async fn row_types(&self) -> Result<&[Type; 2], Error> {
        let ask = async || {
            let rows = self.query_once(include_str!("sql/row_types.sql"), &[]).await?;
            // The query has no source of rows, so it returns exactly one.
            let row = rows.first().expect("one row");
            let ty = |name: &str, column| -> Result<Type, Error> {
                let row_ty = Kind::Composite(Vec::new());
                let member = Type::new(name.to_owned(), row.try_get(column + 1)?, row_ty, String::new());
                Ok(Type::new(format!("_{name}"), row.try_get(column)?, Kind::Array(member), String::new()))
            };
            Ok([ty("ibid_fresh_row", 0)?, ty("ibid_finish_row", 2)?])
        };
        self.row_types.get_or_try_init(ask).await
    }

    /// Runs a statement, prepared if this connection prepares statements.
    async fn query_prepared(&self, sql: &'static str, params: &[Param<'_>]) -> Result<Vec<Row>, Error> {
        match self.prepare_statement(sql, params).await? {
            None => self.query_once(sql, params).await,
            Some(statement) => {
                let values: Vec<_> = params.iter().map(|(value, _)| *value).collect();
                self.reply(self.client.query(&statement, &values)).await
            }
        }
    }

    /// Returns the prepared statement; `None` if statements are sent whole.
    pub(super) async fn prepare_statement(
        &self,
        sql: &'static str,
        params: &[Param<'_>],
    ) -> Result<Option<Statement>, Error> {
        if !self.prepares {
            return Ok(None);
        }
        // Each text is one constant of this crate, so its address identifies it.
        let address = sql.as_ptr().addr();
        if let Some(statement) = self.statements.lock().get(&address) {
            return Ok(Some(statement.clone()));
        }
        let types: Vec<Type> = params.iter().map(|(_, ty)| ty.clone()).collect();
        let statement = self.reply(self.client.prepare_typed(sql, &types)).await?;
        self.statements.lock().insert(address, statement.clone());
        Ok(Some(statement))
    }

    /// Runs statements without parameters, as they are.
    pub(super) async fn run(&self, sql: &str) -> Result<(), Error> {
        self.reply(self.client.batch_execute(sql)).await
    }

    /// Returns the policies among `digests` that are not certainly stored.
    pub(super) fn unsure_policies(&self, digests: impl Iterator<Item = i64>) -> Vec<i64> {
        self.policies.lock().unsure(digests, Instant::now())
    }

    /// Notes that these policies are stored.
    pub(super) fn trust_policies(&self, digests: impl IntoIterator<Item = i64>) {
        self.policies.lock().trust(digests, Instant::now());
    }

    /// Returns when the server was last seen to keep what it commits.
    pub(super) fn checked_at(&self) -> Instant {
        *self.checked_at.lock()
    }

    /// Notes that the server was seen to keep what it commits.
    pub(super) fn set_checked_at(&self, at: Instant) {
        *self.checked_at.lock() = at;
    }

    /// Forgets warnings of earlier statements.
    pub(super) fn forget_warnings(&self) {
        self.warned.store(false, Ordering::SeqCst);
    }

    /// Returns whether a warning came with the last write. Then the write counts as a lost reply: a synchronous standby may
    /// not have it.
    pub(super) fn was_warned(&self) -> bool {
        let warned = self.warned.swap(false, Ordering::SeqCst);
        if warned {
            self.set_spoilt(true);
        }
        warned
    }

    /// Returns the driver's client, for callers that mark the connection as spoilt while they use it.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the token by which the running statement can be cancelled.
    pub(super) fn cancel_token(&self) -> CancelToken {
        self.client.cancel_token()
    }

    /// Marks the connection, so that the pool closes it instead of handing it out again. A caller that leaves a transaction
    /// open if it is dropped midway marks it first, and clears the mark when it is done.
    pub(super) fn set_spoilt(&self, is_spoilt: bool) {
        self.spoilt.store(is_spoilt, Ordering::SeqCst);
    }

    /// Returns whether the pool may hand the connection out.
    pub(super) fn is_usable(&self) -> bool {
        !self.client.is_closed()
            && !self.spoilt.load(Ordering::SeqCst)
            && self.unanswered.load(Ordering::SeqCst) == 0
            && self.excluded_by.load(Ordering::SeqCst) == 0
    }

    /// Sends a statement and waits for its reply.
    async fn reply<T>(&self, sent: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.unanswered.fetch_add(1, Ordering::SeqCst);
        let result = sent.await;
        self.unanswered.fetch_sub(1, Ordering::SeqCst);
        result.inspect_err(|error| {
            if error::spoils_connection(error) {
                self.set_spoilt(true);
            }
        })
    }
}

/// Begins a transaction with the settings of the hot path.
pub(super) const OPEN_HOT: &str = include_str!("sql/open_hot.sql");

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use crate::store::postgres::PostgresOptions;
    use crate::store::postgres::target::PostgresTarget;

    #[tokio::test]
    async fn a_statement_that_its_caller_gave_up_closes_the_connection() {
        let server = ibid_testkit::postgres::Postgres::shared();
        let url = server.url_for(&server.create_database());
        let target = PostgresTarget::new(&url, PostgresOptions::default()).expect("a URL");
        for given_up in [true, false] {
            let connection = target.connect().await.expect("a connection");
            assert!(connection.is_usable());
            let mut asked = Box::pin(connection.query_once("select 1", &[]));
            assert!((&mut asked).now_or_never().is_none(), "it was sent");
            assert!(!connection.is_usable(), "the server works for this caller");
            if !given_up {
                asked.await.expect("a reply");
            }
            assert_eq!(connection.is_usable(), !given_up);
        }
    }
}
