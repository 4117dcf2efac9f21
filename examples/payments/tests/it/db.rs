//! Creation of the tables, on every database.

use futures_util::future::join_all;
use payments::db::Db;

use crate::fixture::{TestDatabase, on_both_databases};

on_both_databases!(nodes_that_start_at_once_create_the_tables_once);

#[cfg(feature = "mysql")]
#[tokio::test]
async fn nodes_that_start_at_once_create_the_tables_on_mariadb() {
    nodes_that_start_at_once_create_the_tables_once(TestDatabase::mariadb()).await;
}

async fn nodes_that_start_at_once_create_the_tables_once(database: TestDatabase) {
    let url = database.url();
    let nodes = join_all((0..6).map(|_| async { Db::open(&url).await.unwrap() })).await;
    let (_, late) = Db::open(&url).await.unwrap();
    for db in nodes.into_iter().map(|(_, db)| db).chain([late]) {
        db.close().await;
    }
}
