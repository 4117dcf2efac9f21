//! What callers' transactions on the same database need of the store: its policies, and work in its own transactions.

use std::sync::Arc;

use bytes::Bytes;
use ibid_core::policy::Policy;
use ibid_core::record::Nonce;
use ibid_core::scope::RecordId;
use ibid_core::sql::{Dialect, Param, SqlError, SqlFault, SqlRow, SqlTx, Statement};
use ibid_core::store::{BoxFuture, SqlStore, StoreError, Work};
use ibid_core::time::Timestamp;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::columns::bits;
use super::connect;
use super::row;
use super::{KIND, PostgresStore};
use crate::transaction::pg_client;

impl SqlStore for PostgresStore {
    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    fn now(&self) -> Option<Timestamp> {
        None
    }

    fn must_be_durable(&self) -> bool {
        !self.place.options.accept_weak_durability
    }

    fn policy(&self, policy: Arc<Policy>) -> BoxFuture<'_, Result<i64, StoreError>> {
        Box::pin(async move {
            let connection = self.pools.any(OP_POLICY).await?;
            let (digest, data) = row::encoded(&policy);
            if !connection.unsure_policies([digest].into_iter()).is_empty() {
                let put = row::put(&connection, &[(digest, &data)]).await;
                put.map_err(|error| super::failure::store_error(OP_POLICY, error))?;
            }
            Ok(digest)
        })
    }

    fn transaction_mark(&self) -> BoxFuture<'_, Result<i64, StoreError>> {
        Box::pin(async move {
            let rows = self.ask(OP_MARK, include_str!("sql/transaction_mark.sql"), &[]).await?;
            let row = rows.first().ok_or_else(|| StoreError::transient(KIND, OP_MARK, "no answer"))?;
            super::ask::get(OP_MARK, row, 0)
        })
    }

    fn is_settled_before(&self, mark: i64) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move {
            let params: [connect::Param<'_>; 1] = [(&mark, Type::INT8)];
            let rows = self.ask(OP_MARK, include_str!("sql/transactions_before.sql"), &params).await?;
            let row = rows.first().ok_or_else(|| StoreError::transient(KIND, OP_MARK, "no answer"))?;
            super::ask::get(OP_MARK, row, 0)
        })
    }

    fn work(&self, work: Work) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let connection = self.pools.any(OP_WORK).await?;
            // Dropped half-way, it does not go back to the pool with a transaction open.
            connection.alone(false);
            let client = connection.client();
            let done = async {
                client.batch_execute(BEGIN).await.map_err(pg_client::failure)?;
                match work(&mut Joined(client)).await {
                    Ok(()) => {
                        connection.forget_warnings();
                        client.batch_execute("select 1; commit").await.map_err(pg_client::failure)
                    }
                    Err(error) => {
                        // Undone with the connection if this fails.
                        client.batch_execute("rollback").await.map_err(pg_client::failure)?;
                        connection.alone(true);
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
                    connection.alone(true);
                    Ok(())
                }
                Err(error) if error.fault() == SqlFault::Wrong => {
                    Err(StoreError::lasting(KIND, OP_WORK, error))
                }
                Err(error) => Err(StoreError::transient(KIND, OP_WORK, error)),
            }
        })
    }
}

impl PostgresStore {
    pub(super) async fn find_bodies(
        &self,
        id: RecordId,
        birth: Nonce,
    ) -> Result<Vec<(u32, Bytes)>, StoreError> {
        let connection = self.pools.any(OP_BODIES).await?;
        let (id, birth): (&[u8], i64) = (id.as_bytes(), bits(birth));
        let params: [connect::Param<'_>; 2] = [(&id, Type::BYTEA), (&birth, Type::INT8)];
        let rows = connection.query_once(include_str!("sql/bodies.sql"), &params).await;
        let rows = rows.map_err(|error| super::failure::store_error(OP_BODIES, error))?;
        let body = |row: &tokio_postgres::Row| -> Result<(u32, Bytes), tokio_postgres::Error> {
            let kind: i32 = row.try_get(0)?;
            Ok((kind.cast_unsigned(), Bytes::copy_from_slice(row.try_get(1)?)))
        };
        let read = rows.iter().map(body).collect::<Result<_, _>>();
        read.map_err(|error| StoreError::lasting(KIND, OP_BODIES, error))
    }
}

/// A transaction of the store's own, which ends it.
struct Joined<'c>(&'c Client);

impl SqlTx for Joined<'_> {
    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    fn execute<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<u64, SqlError>> {
        Box::pin(pg_client::run(self.0, statement, params))
    }

    fn query<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<Vec<SqlRow>, SqlError>> {
        Box::pin(pg_client::rows(self.0, statement, params))
    }
}

const OP_MARK: &str = "look at open transactions";
const OP_POLICY: &str = "keep a policy";
/// Whatever the database's default is: our statements look again at what they waited for.
const BEGIN: &str = "begin isolation level read committed";

const OP_WORK: &str = "work";
const OP_BODIES: &str = "read bodies";
