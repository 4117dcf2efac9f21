//! One connection: how statements are sent on it, and what it remembers.
//!
//! Most connections set nothing on their session, because behind a transaction pooler the next transaction may meet another
//! session. Hot connections ask for a session that starts with the settings of the hot path; a pooler refuses or ignores that.
//! `flight.sql` checks that the settings are there. All other statements set them in their transaction.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::{join_all, join3};
use tokio::sync::OnceCell;
use tokio_postgres::types::{Kind, ToSql, Type};
use tokio_postgres::{CancelToken, Client, Error, Row, Statement};

use super::failure;

/// A value for a statement, with the type that the statement takes.
pub(super) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// A connection to the server, with its prepared statements.
#[derive(Debug)]
pub(super) struct Connection {
    client: Client,
    /// `true` if statements are prepared once and named, `false` if they are sent whole each time.
    prepares: bool,
    statements: Mutex<HashMap<usize, Statement>>,
    /// `true` if the session has the settings of the hot path.
    has_settings: AtomicBool,
    /// Types of the arrays that `flight.sql` takes.
    row_types: OnceCell<[Type; 2]>,
    policies: Mutex<TrustedPolicies>,
    /// A warning came: a commit before it may not be as durable as it should be.
    warned: Arc<AtomicBool>,
    /// The pool must not hand this connection out again.
    spoilt: AtomicBool,
}

impl Connection {
    pub(super) fn new(client: Client, prepares: bool, warned: Arc<AtomicBool>) -> Connection {
        Connection {
            client,
            prepares,
            statements: Mutex::default(),
            has_settings: AtomicBool::new(false),
            row_types: OnceCell::new(),
            policies: Mutex::default(),
            warned,
            spoilt: AtomicBool::new(false),
        }
    }

    /// Runs a statement that is seldom used: one round trip, nothing prepared.
    pub(super) async fn query_once(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Error> {
        self.client.query_typed(sql, params).await.inspect_err(|error| self.note(error))
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
                self.client.query(&statement, &values).await.inspect_err(|error| self.note(error))
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
        if let Some(statement) = lock(&self.statements).get(&address) {
            return Ok(Some(statement.clone()));
        }
        let types: Vec<Type> = params.iter().map(|(_, ty)| ty.clone()).collect();
        let statement = self.client.prepare_typed(sql, &types).await.inspect_err(|error| self.note(error))?;
        lock(&self.statements).insert(address, statement.clone());
        Ok(Some(statement))
    }

    /// Runs statements without parameters, as they are.
    pub(super) async fn run(&self, sql: &str) -> Result<(), Error> {
        self.client.batch_execute(sql).await.inspect_err(|error| self.note(error))
    }

    /// Returns the policies among `digests` that are not certainly stored.
    pub(super) fn unsure_policies(&self, digests: impl Iterator<Item = i64>) -> Vec<i64> {
        lock(&self.policies).unsure(digests, Instant::now())
    }

    /// Notes that these policies are stored.
    pub(super) fn trust_policies(&self, digests: impl IntoIterator<Item = i64>) {
        lock(&self.policies).trust(digests, Instant::now());
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

    /// Marks the connection, so that the pool closes it instead of handing it out again. A caller whose future may be
    /// dropped midway marks it first, and clears the mark when it is done.
    pub(super) fn set_spoilt(&self, is_spoilt: bool) {
        self.spoilt.store(is_spoilt, Ordering::SeqCst);
    }

    /// Returns whether the pool may hand the connection out.
    pub(super) fn is_usable(&self) -> bool {
        !self.client.is_closed() && !self.spoilt.load(Ordering::SeqCst)
    }

    fn note(&self, error: &Error) {
        if failure::spoils_connection(error) {
            self.set_spoilt(true);
        }
    }
}

/// Policies that were stored through a connection, and when. A policy may be gone although the connection is not: behind a
/// pooler the connection outlives a failover, and a table may be restored under it. A record whose policy is missing cannot
/// be read, so the trust ends soon.
#[derive(Debug, Default)]
struct TrustedPolicies(HashMap<i64, Instant>);

impl TrustedPolicies {
    /// Returns those of `digests` that are not trusted at this instant.
    fn unsure(&self, digests: impl Iterator<Item = i64>, at: Instant) -> Vec<i64> {
        let is_fresh = |digest: &i64| self.0.get(digest).is_some_and(|since| at < *since + TRUSTED_FOR);
        digests.filter(|digest| !is_fresh(digest)).collect()
    }

    fn trust(&mut self, digests: impl IntoIterator<Item = i64>, at: Instant) {
        if self.0.len() >= TRUSTED_MAX {
            self.0.retain(|_, since| at < *since + TRUSTED_FOR);
        }
        self.0.extend(digests.into_iter().map(|digest| (digest, at)));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code that holds it can panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins a transaction with the settings of the hot path.
pub(super) const OPEN_HOT: &str = include_str!("sql/open_hot.sql");

/// Time for which a policy counts as stored after it was seen. Asking again is one short round trip. Records under a policy that
/// was lost are found once it is stored again, before a usual lease is over.
const TRUSTED_FOR: Duration = Duration::from_secs(10);

/// Trusted policies after which old ones are dropped. A gateway has dozens.
const TRUSTED_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trusted_policy_is_stored_again_after_a_while() {
        let (mut trusted, at) = (TrustedPolicies::default(), Instant::now());
        trusted.trust([1, 2], at);
        let soon = at + TRUSTED_FOR - Duration::from_micros(1);
        assert_eq!(trusted.unsure([1, 2, 3].into_iter(), soon), [3]);
        trusted.trust([2, 3], soon);
        assert_eq!(trusted.unsure([1, 2, 3].into_iter(), at + TRUSTED_FOR), [1]);
    }
}
