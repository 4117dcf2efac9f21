//! The store as callers' transactions on the same database need it: its policies, and work in its own transactions.

use std::sync::Arc;

use ibid_core::policy::Policy;
use ibid_core::sql::{Dialect, SqlError, SqlFault};
use ibid_core::store::{BoxFuture, SqlStore, StoreError, Work};
use ibid_core::time::Timestamp;
use tokio_postgres::types::Type;

use super::connection::Param;
use super::error::store_error;
use super::plain_path::PostgresStoreTx;
use super::read::get;
use super::{KIND, PostgresCore, policies};
use crate::driver::pg_client;

impl SqlStore for PostgresCore {
    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    fn now(&self) -> Option<Timestamp> {
        None
    }

    fn must_be_durable(&self) -> bool {
        !self.target.options.accept_weak_durability
    }

    fn policy(&self, policy: Arc<Policy>) -> BoxFuture<'_, Result<i64, StoreError>> {
        Box::pin(async move {
            let connection = self.pools.short(OP_POLICY).await?;
            let numbered = self.policies.number(&policy);
            let stored = policies::ensure_stored(&connection, std::slice::from_ref(&numbered)).await;
            stored.map_err(|error| store_error(OP_POLICY, error))?;
            Ok(numbered.digest)
        })
    }

    fn transaction_mark(&self) -> BoxFuture<'_, Result<i64, StoreError>> {
        Box::pin(async move {
            let rows = self.ask(OP_MARK, include_str!("sql/transaction_mark.sql"), &[]).await?;
            let row = rows.first().ok_or_else(|| StoreError::transient(KIND, OP_MARK, "no answer"))?;
            get(OP_MARK, row, 0)
        })
    }

    fn is_settled_before(&self, mark: i64) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move {
            let params: [Param<'_>; 1] = [(&mark, Type::INT8)];
            let rows = self.ask(OP_MARK, include_str!("sql/transactions_before.sql"), &params).await?;
            let row = rows.first().ok_or_else(|| StoreError::transient(KIND, OP_MARK, "no answer"))?;
            get(OP_MARK, row, 0)
        })
    }

    fn work(&self, work: Work) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let connection = self.pools.short(OP_WORK).await?;
            // If this is dropped midway, the pool closes the connection and its open transaction.
            connection.set_spoilt(true);
            let client = connection.client();
            let done = async {
                client.batch_execute(BEGIN_WORK).await.map_err(pg_client::failure)?;
                match work(&mut PostgresStoreTx(client)).await {
                    Ok(()) => {
                        connection.forget_warnings();
                        client.batch_execute("select 1; commit").await.map_err(pg_client::failure)
                    }
                    Err(error) => {
                        // If it fails, the transaction ends with the connection.
                        client.batch_execute("rollback").await.map_err(pg_client::failure)?;
                        connection.set_spoilt(false);
                        Err(error)
                    }
                }
            };
            let done: Result<(), SqlError> = done.await;
            match done {
                Ok(()) if connection.was_warned() => {
                    Err(StoreError::transient(KIND, OP_WORK, "the commit came with a warning"))
                }
                Ok(()) => {
                    connection.set_spoilt(false);
                    Ok(())
                }
                Err(error) => Err(work_error(OP_WORK, error)),
            }
        })
    }

    fn read(&self, work: Work) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move { self.slow_reader(OP_READ).await?.run(OP_READ, work).await })
    }
}

/// Returns the error of work that failed.
pub(super) fn work_error(op: &'static str, error: SqlError) -> StoreError {
    match error.fault() {
        SqlFault::Wrong => StoreError::lasting(KIND, op, error),
        // The server has rolled back.
        SqlFault::LockTimeout => StoreError::row_locked(KIND, op, error),
        _ => StoreError::transient(KIND, op, error),
    }
}

/// Returns the driver's error that is the cause of another.
pub(super) fn driver_error(error: &SqlError) -> Option<&tokio_postgres::Error> {
    std::error::Error::source(error)?.downcast_ref()
}

const OP_MARK: &str = "look at open transactions";
const OP_POLICY: &str = "store a policy";
const OP_READ: &str = "read";
const OP_WORK: &str = "work";

/// Begins a transaction in read committed, whatever the database's default is: ibid's statements look again at rows that
/// they waited for.
///
/// Work holds one of the few connections that renewals and loads need, so it waits for a lock no longer than an operator or a
/// copy would notice; a worker may hold the row of an effect for half a minute. The server also ends a transaction whose process
/// stopped between two statements. There is no limit on a statement: it could end the wait of a commit for its standby.
const BEGIN_WORK: &str = "begin isolation level read committed; set local lock_timeout = '1s'; \
    set local idle_in_transaction_session_timeout = '10s'";
