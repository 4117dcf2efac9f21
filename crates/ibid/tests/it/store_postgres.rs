//! The PostgreSQL store against the contract, and against what only a server can do to it.

use std::sync::Arc;
use std::time::Duration;

use ibid::store::postgres::{PostgresOptions, PostgresStore};
use ibid_core::store::{Pending, Store};
use ibid_testkit::contract::{self, Subject};
use ibid_testkit::postgres::Postgres;

struct Subjected(Arc<PostgresStore>);

impl Subject for Subjected {
    fn store(&self) -> Arc<dyn Store> {
        self.0.clone()
    }

    /// The clock is the server's own.
    fn advance(&self, by: Duration) -> Pending<'_, ()> {
        Box::pin(tokio::time::sleep(by))
    }
}

#[allow(dead_code)]
async fn open(server: &Postgres, database: &str) -> Arc<PostgresStore> {
    open_with(server, database, |_| {}).await
}

async fn open_with(
    server: &Postgres,
    database: &str,
    change: impl FnOnce(&mut PostgresOptions),
) -> Arc<PostgresStore> {
    let mut options =
        PostgresOptions { connection_wait: Duration::from_secs(30), ..PostgresOptions::default() };
    change(&mut options);
    let store = PostgresStore::open(&server.url_for(database), options).await;
    Arc::new(store.expect("the store opens"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_postgres_store_keeps_the_contract() {
    let server = Postgres::start();
    for prepare in [true, false] {
        let database = server.create_database();
        let store = open_with(&server, &database, |options| options.prepare = prepare).await;
        contract::exercise(&Subjected(store)).await;
    }
}
