//! The application on PostgreSQL.

use std::sync::Arc;

use ibid::Store;
use ibid::store::postgres::{PostgresOptions, PostgresStore};
use ibid::transaction::TxError;
use ibid::transaction::sqlx_postgres::SqlxPostgres;
use sqlx::PgConnection;
use sqlx::postgres::PgPoolOptions;

use super::{Backend, Db, SqlValue, WAIT_MAX, statements_on};
use crate::serve::Failure;

impl Backend for SqlxPostgres {}

statements_on!(PgConnection);

/// Opens ibid's store and a pool, and creates the missing tables.
pub(super) async fn open(url: &str) -> Result<(Arc<dyn Store>, Db), Failure> {
    let store = PostgresStore::open(url, PostgresOptions::default()).await?;
    let pool = PgPoolOptions::new().max_connections(CONNECTIONS_MAX).acquire_timeout(WAIT_MAX);
    let pool = pool.connect(url).await?;
    // Several nodes may do this at once. `create … if not exists` alone can then fail, so a lock comes first.
    let mut tx = pool.begin().await?;
    sqlx::query("select pg_advisory_xact_lock($1)").bind(SCHEMA_LOCK).execute(&mut *tx).await?;
    sqlx::raw_sql(include_str!("../sql/postgres.sql")).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok((Arc::new(store), Db::Postgres(pool)))
}

/// Enough connections to keep a small server busy. A large server is shared by several nodes, each with this many.
const CONNECTIONS_MAX: u32 = 16;

/// Key of the advisory lock around schema changes: `payments` in ASCII, so that no other program uses it by chance.
const SCHEMA_LOCK: i64 = 0x7061_796d_656e_7473;
