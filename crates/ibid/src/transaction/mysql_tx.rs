//! A transaction on MySQL or MariaDB, whatever its driver. This file must not depend on one.

use ibid_core::sql::{Dialect, OwnedTx, Param, SqlError, SqlFault, SqlRow, SqlTx, Statement};
use ibid_core::store::BoxFuture;

use super::mysql_limits::{self, SETTINGS_RESTORE};

/// An open transaction on MySQL or MariaDB. The caller's statements run on the driver's type that it derefs to.
///
/// The server rolls a whole transaction back after a deadlock, and commits it before a statement that changes the schema.
/// Later statements would be committed one by one, so ibid's statements and the commit fail then.
#[derive(Debug)]
pub struct MysqlTx<D> {
    pub(super) driver: D,
    /// The first failure of a statement of ibid. Its change is perhaps half written.
    failure: Option<SqlFault>,
    /// `true` if a statement of ibid changed settings of the session.
    has_new_settings: bool,
}

/// The part of a [`MysqlTx`] that depends on its driver.
#[doc(hidden)]
pub trait MysqlDriver: Send {
    /// Fails if the server has ended the transaction.
    fn check_open(&mut self) -> impl Future<Output = Result<(), SqlError>> + Send;

    /// Fails if the session has `autocommit` off: the server would open another transaction by itself.
    fn check_autocommit(&mut self) -> impl Future<Output = Result<(), SqlError>> + Send;

    /// Runs a statement that returns no rows.
    fn run(
        &mut self,
        statement: &Statement,
        params: &[Param<'_>],
    ) -> impl Future<Output = Result<(), SqlError>> + Send;

    /// Runs a statement and returns its rows.
    fn rows(
        &mut self,
        statement: &Statement,
        params: &[Param<'_>],
    ) -> impl Future<Output = Result<Vec<SqlRow>, SqlError>> + Send;

    /// Commits the transaction, which ends it.
    fn commit(self) -> impl Future<Output = Result<(), SqlError>> + Send;

    /// Rolls the transaction back.
    fn rollback(self) -> impl Future<Output = Result<(), SqlError>> + Send;
}

impl<D: MysqlDriver> MysqlTx<D> {
    pub(super) fn new(driver: D) -> MysqlTx<D> {
        MysqlTx { driver, failure: None, has_new_settings: false }
    }

    /// Notes the failure of a statement of ibid.
    fn note_failure<T>(&mut self, result: Result<T, SqlError>) -> Result<T, SqlError> {
        if let Err(error) = &result {
            self.failure = self.failure.or(Some(error.fault()));
        }
        result
    }

    /// Restores the session's settings, if a statement of ibid changed them.
    async fn restore_settings(&mut self) -> Result<(), SqlError> {
        match std::mem::take(&mut self.has_new_settings) {
            true => self.driver.run(&SETTINGS_RESTORE, &[]).await,
            false => Ok(()),
        }
    }

    /// Prepares the commit. Fails if a part of the transaction is missing.
    async fn finish(&mut self) -> Result<(), SqlError> {
        match self.failure {
            // After most errors the server undoes only the statement, and would commit the rest.
            Some(SqlFault::Lost) => Err(SqlError::new(SqlFault::Lost, HALF_WRITTEN)),
            Some(_) => Err(SqlError::new(SqlFault::Wrong, HALF_WRITTEN)),
            None => {
                self.driver.check_open().await?;
                self.restore_settings().await
            }
        }
    }
}

impl<D: MysqlDriver> SqlTx for MysqlTx<D> {
    fn dialect(&self) -> Dialect {
        Dialect::Mysql
    }

    fn execute<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<(), SqlError>> {
        Box::pin(async move {
            self.driver.check_open().await?;
            if mysql_limits::changes_settings(statement) {
                // Every transaction of ibid begins with such a statement.
                self.driver.check_autocommit().await?;
                self.has_new_settings = true;
            }
            let done = self.driver.run(statement, params).await;
            if done.is_ok() && statement.text.starts_with("rollback to savepoint") {
                // It undoes what an earlier statement left half written.
                self.failure = None;
            }
            self.note_failure(done)
        })
    }

    fn query<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<Vec<SqlRow>, SqlError>> {
        Box::pin(async move {
            self.driver.check_open().await?;
            let rows = self.driver.rows(statement, params).await;
            self.note_failure(rows)
        })
    }
}

impl<D: MysqlDriver> OwnedTx for MysqlTx<D> {
    async fn commit(mut self) -> Result<(), SqlError> {
        match self.finish().await {
            Ok(()) => self.driver.commit().await,
            Err(error) => {
                let _ = self.restore_settings().await;
                // If this fails, the driver closes the connection.
                let _ = self.driver.rollback().await;
                Err(error)
            }
        }
    }

    async fn rollback(mut self) -> Result<(), SqlError> {
        self.restore_settings().await?;
        self.driver.rollback().await
    }
}

/// The server undid the transaction after a deadlock, or a statement of the caller ended it.
pub(super) const ENDED: &str = "the server has ended the transaction";

/// The server would open another transaction by itself.
pub(super) const AUTOCOMMIT_OFF: &str = "`autocommit` is off in the session";

const HALF_WRITTEN: &str = "a statement of ibid failed in the transaction";
