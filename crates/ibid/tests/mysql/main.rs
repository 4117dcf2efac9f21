//! The MySQL store on a real MariaDB: the contract suite, and what only a server can do to it.

use std::sync::Arc;
use std::time::Duration;

use ibid::store::mysql::{MysqlOptions, MysqlStore};
use ibid_core::change::{Change, Commit};
use ibid_core::record::Record;
use ibid_core::store::{BoxFuture, Store};
use ibid_testkit::contract::{self, LONG, StoreUnderTest, TestRecord, commit_all, finish_with, fresh};
use ibid_testkit::mariadb::MariaDb;

mod copy;
mod crash;
mod faults;
mod insert_race;
mod locks;
mod open;
mod open_transactions;
mod plans;
mod reap;
mod tls;
mod unreadable_rows;
mod values;

struct MysqlUnderTest(Arc<MysqlStore>);

impl StoreUnderTest for MysqlUnderTest {
    fn store(&self) -> Arc<dyn Store> {
        self.0.clone()
    }

    /// Waits, because the clock is the server's.
    fn advance(&self, by: Duration) -> BoxFuture<'_, ()> {
        Box::pin(tokio::time::sleep(by))
    }
}

fn options() -> MysqlOptions {
    // Other tests keep the machine busy; that should not fail a test.
    MysqlOptions::default().with(|options| options.connection_wait = Duration::from_secs(30))
}

async fn open(server: &MariaDb, database: &str) -> Arc<MysqlStore> {
    open_with(server, database, |_| {}).await
}

async fn open_with(
    server: &MariaDb,
    database: &str,
    change: impl FnOnce(&mut MysqlOptions),
) -> Arc<MysqlStore> {
    let mut options = options();
    change(&mut options);
    let store = MysqlStore::open(&server.url_for(database), options).await;
    Arc::new(store.unwrap_or_else(|error| panic!("the store opens: {error:?}")))
}

/// A finish of the record that was read, as the engine writes it.
fn finish(record: &Record) -> Change {
    finish_with(record, b"done")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_contract_holds_with_the_hot_path() {
    let server = MariaDb::shared();
    let store = open(&server, server.database()).await;
    contract::exercise(&MysqlUnderTest(store.clone())).await;
    let counts = store.batch_counts();
    assert!(counts.batches > 0 && counts.changes > counts.batches, "changes flew together: {counts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_contract_holds_with_the_statements_for_mysql() {
    let server = MariaDb::shared();
    let store = open_with(&server, server.database(), |options| options.portable_statements = true).await;
    contract::exercise(&MysqlUnderTest(store.clone())).await;
    assert!(store.batch_counts().batches > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_contract_holds_without_the_hot_path() {
    let server = MariaDb::shared();
    let store = open_with(&server, server.database(), |options| options.hot_path = false).await;
    contract::exercise(&MysqlUnderTest(store.clone())).await;
    assert_eq!(store.batch_counts().batches, 0);
}

/// Commits a change as the engine does: retries with the same nonce while its fate is unknown.
async fn commit_patiently(store: &MysqlStore, change: &Arc<Change>) -> Commit {
    loop {
        match store.commit(change.clone(), None).await {
            Ok(commit) => return commit,
            Err(error) => {
                assert!(error.is_transient(), "an outage is no lasting error: {error:?}");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
}

/// Begins records under fresh names and returns them.
async fn begin_some(store: &MysqlStore, count: usize, lease: Duration) -> Vec<Arc<Record>> {
    let begins: Vec<Change> = (0..count).map(|_| fresh(&TestRecord::fresh(), lease)).collect();
    let fates = commit_all(store, begins.clone()).await;
    let record = |begin: Change| match fates[&begin.id] {
        Commit::Done(stamp) => begin.apply(stamp, None).expect("it writes a record"),
        Commit::Conflict(_) => panic!("a fresh name is free"),
    };
    begins.into_iter().map(record).collect()
}

/// Opens a separate session on the same database.
async fn stranger(server: &MariaDb, database: &str) -> mysql_async::Conn {
    let url = format!("{}?prefer_socket=false", server.url_for(database));
    mysql_async::Conn::from_url(url).await.expect("a connection")
}
