//! The store of the records, in the database that holds the application's own tables.

use std::error::Error;
use std::sync::Arc;

use ibid::core::store::Store;
use ibid::store::postgres::{PostgresOptions, PostgresStore};
use ibid::store::sqlite::{SqliteOptions, SqliteStore};

use crate::db::StoreUrl;

/// Opens it and makes its tables. To be done before our own are made, which refer to them.
pub async fn open(url: &StoreUrl) -> Result<Arc<dyn Store>, Box<dyn Error + Send + Sync>> {
    match url {
        StoreUrl::Postgres(url) => Ok(Arc::new(PostgresStore::open(url, PostgresOptions::default()).await?)),
        StoreUrl::Sqlite(path) => {
            let path = path.clone();
            let open = move || SqliteStore::open(&path, SqliteOptions::default());
            Ok(Arc::new(tokio::task::spawn_blocking(open).await??))
        }
    }
}
