//! Creation of the tables, on both databases.

use futures_util::future::join_all;
use payments::db::{Db, open_store};

use crate::world::{TestDatabase, on_both_databases};

on_both_databases!(nodes_that_start_at_once_create_the_tables_once);

async fn nodes_that_start_at_once_create_the_tables_once(database: TestDatabase) {
    let url = database.url();
    let nodes = join_all((0..6).map(|_| async {
        open_store(&url).await.unwrap();
        let db = Db::connect(&url).await.unwrap();
        db.create_tables().await.unwrap();
        db
    }));
    for node in nodes.await {
        node.create_tables().await.unwrap();
        node.close().await;
    }
}
