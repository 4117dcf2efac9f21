//! The application on MySQL or MariaDB.

use std::sync::Arc;

use ibid::prelude::*;
use sqlx::mysql::MySqlPoolOptions;

use super::{Db, SERVER_CONNECTIONS_MAX, WAIT_MAX, schema};

/// Opens ibid's store and a pool, and creates the missing tables. The server itself lets one node at a time create a table.
pub(super) async fn open(url: &str) -> Result<(Arc<dyn Store>, Db), BoxError> {
    let store = MysqlStore::open(url, MysqlOptions::default()).await?;
    let pool = MySqlPoolOptions::new().max_connections(SERVER_CONNECTIONS_MAX).acquire_timeout(WAIT_MAX);
    let pool = pool.connect(url).await?;
    sqlx::raw_sql(schema("varchar(255) collate utf8mb4_bin", "binary(16)")).execute(&pool).await?;
    Ok((Arc::new(store), Db::Mysql(SqlxMysql(pool))))
}

/// Replaces the numbered parameters of a statement, which are in order.
pub(super) fn question_marks(sql: &str) -> String {
    let mut parts = sql.split('$');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + "?" + part.trim_start_matches(|c: char| c.is_ascii_digit()))
}
