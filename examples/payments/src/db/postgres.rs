//! The application on PostgreSQL.

use std::sync::Arc;

use ibid::prelude::*;
use sqlx::postgres::PgPoolOptions;

use super::{Db, SERVER_CONNECTIONS_MAX, WAIT_MAX, schema};

/// Opens ibid's store and a pool, and creates the missing tables.
pub(super) async fn open(url: &str) -> Result<(Arc<dyn Store>, Db), BoxError> {
    let store = PostgresStore::open(url, PostgresOptions::default()).await?;
    let pool = PgPoolOptions::new().max_connections(SERVER_CONNECTIONS_MAX).acquire_timeout(WAIT_MAX);
    let pool = pool.connect(url).await?;
    // Several nodes may do this at once. `create … if not exists` alone can then fail, so a lock comes first.
    let mut tx = pool.begin().await?;
    sqlx::query("select pg_advisory_xact_lock($1)").bind(SCHEMA_LOCK).execute(&mut *tx).await?;
    sqlx::raw_sql(schema("text", "uuid")).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok((Arc::new(store), Db::Postgres(SqlxPostgres(pool))))
}

/// Key of the advisory lock around schema changes: `payments` in ASCII, so that no other program uses it by chance.
const SCHEMA_LOCK: i64 = 0x7061_796d_656e_7473;
