//! The store as callers' transactions on the same database need it: its policies, and work in its own transactions.

use std::sync::Arc;
use std::time::Duration;

use ibid_core::policy::Policy;
use ibid_core::sql::{Dialect, Param, SqlFault};
use ibid_core::store::{BoxFuture, SqlStore, StoreError, Work};
use ibid_core::time::Timestamp;

use super::connection::MysqlStoreTx;
use super::error::{self, store_error};
use super::read::retrying;
use super::row;
use super::{KIND, MysqlCore, policies};
use crate::backoff::spread;

impl SqlStore for MysqlCore {
    fn dialect(&self) -> Dialect {
        Dialect::Mysql
    }

    fn now(&self) -> Option<Timestamp> {
        None
    }

    fn must_be_durable(&self) -> bool {
        !self.target.options.accept_weak_durability
    }

    fn policy(&self, policy: Arc<Policy>) -> BoxFuture<'_, Result<i64, StoreError>> {
        Box::pin(async move {
            let numbered = self.policies.number(&policy);
            let policies = std::slice::from_ref(&numbered);
            let stored: Result<(), StoreError> =
                retrying!(self, "store a policy", |connection| policies::ensure_stored(connection, policies));
            stored?;
            Ok(numbered.digest)
        })
    }

    /// Returns the number just below that of a new transaction, once the server lists it. The list may be old, and an old
    /// one may lack transactions that run; one that has this transaction is younger than the call.
    fn transaction_mark(&self) -> BoxFuture<'_, Result<i64, StoreError>> {
        Box::pin(async move {
            let mut connection = self.pools.short(OP_MARK).await?;
            // If this is dropped midway, the pool closes the connection and its open transaction.
            let started = connection.begin_with(include_str!("sql/transaction_number.sql")).await;
            started.map_err(|error| store_error(OP_MARK, error))?;
            let mut number = None;
            for _ in 0..MARK_TRIES_MAX {
                tokio::time::sleep(spread(COPY_IDLE_MIN)).await;
                let listed = connection.run(include_str!("sql/transaction_mark.sql")).await;
                let listed = listed.map_err(|error| store_error(OP_MARK, error))?;
                number = listed.first().map(|row| row::number(OP_MARK, row, 0)).transpose()?;
                if number.is_some() {
                    break;
                }
            }
            connection.end("rollback").await.map_err(|error| store_error(OP_MARK, error))?;
            let number: i64 = number.ok_or_else(|| StoreError::transient(KIND, OP_MARK, "an old list"))?;
            Ok(number - 1)
        })
    }

    fn is_settled_before(&self, mark: i64) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move {
            tokio::time::sleep(spread(COPY_IDLE_MIN)).await;
            let before = include_str!("sql/transactions_before.sql");
            let rows = self.ask(OP_MARK, before, &[Param::I64(mark)]).await?;
            Ok(rows.is_empty())
        })
    }

    fn work(&self, work: Work) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let mut connection = self.pools.short(OP_WORK).await?;
            // If this is dropped midway, the pool closes the connection and its open transaction.
            connection.begin().await.map_err(|error| store_error(OP_WORK, error))?;
            let done = work(&mut MysqlStoreTx(&mut connection)).await;
            let end = if done.is_ok() { "commit" } else { "rollback" };
            let ended = connection.end(end).await;
            let result = done.and_then(|()| ended.map(drop).map_err(error::sql_error));
            result.map_err(|error| match error.fault() {
                SqlFault::Wrong => StoreError::lasting(KIND, OP_WORK, error),
                // It was rolled back.
                SqlFault::Serialization | SqlFault::LockTimeout => {
                    StoreError::transient(KIND, OP_WORK, error).unwritten()
                }
                SqlFault::Lost => StoreError::transient(KIND, OP_WORK, error),
            })
        })
    }
}

const OP_MARK: &str = "look at open transactions";
const OP_WORK: &str = "work";

/// Time between questions for open transactions. The server answers from a copy, which it renews only after no session has asked for
/// 100 ms. Callers that ask again and again would all get the same old answer, so each question waits longer than that; not all for
/// the same time, because several processes may ask.
const COPY_IDLE_MIN: Duration = Duration::from_millis(200);

/// Questions until a transaction must be listed, some seconds after its begin: less than the ten seconds for which a transaction may
/// stay idle.
const MARK_TRIES_MAX: u32 = 25;
