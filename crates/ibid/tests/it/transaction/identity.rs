//! A transaction that reserves its key is open while the identity of the store is changed.

use std::sync::Arc;
use std::time::Duration;

use ibid::identity::change::{self, RetireWait};
use ibid::identity::{IdentityPhase, StoreIdentity};
use ibid::outcome::Begin;
use ibid::store::mysql::{MysqlOptions, MysqlStore};
use ibid::store::postgres::{PostgresOptions, PostgresStore};
use ibid::transaction::{AttemptTx, Database, TxError};
use ibid::{Ibid, Settings};
use ibid_core::store::Store;
use tokio::sync::mpsc;

use super::harness::{NodeOnDatabase, answer, is_stored, pay};
use crate::adapters::databases::{SqlxMysqlPools, TestDatabase, TokioPostgresPools};
use crate::adapters::{Adapter, PATIENT};

// Separate servers, because the change waits for every transaction of the server.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_transaction_never_commits_under_the_old_identity() {
    never_commits_under_the_old_identity::<TokioPostgresPools>(TestDatabase::own_postgres()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mysql_transaction_never_commits_under_the_old_identity() {
    never_commits_under_the_old_identity::<SqlxMysqlPools>(TestDatabase::own_mariadb()).await;
}

async fn never_commits_under_the_old_identity<A: Adapter>(test_db: TestDatabase) {
    // The first process sets for all how long a read of the identity is valid.
    node(&test_db, StoreIdentity::default()).await;
    let world = NodeOnDatabase::<A>::new(test_db).await;
    let open_tx = open(&world, &world.ibid, "held").await;

    let store = world.ibid.store().clone();
    let (told, mut heard) = mpsc::unbounded_channel();
    let changing =
        tokio::spawn(
            async move { change::retire(&*store, true, |waiting| told.send(waiting).unwrap()).await },
        );
    // By now no process may act on the old identity, and the change waits only for this transaction.
    while heard.recv().await.expect("it waits for the transaction") != RetireWait::ForTransactions {}
    let refused = open_tx.finish(answer(201)).await;
    assert!(matches!(refused, Err(TxError::Unavailable(_))), "{refused:?}");
    let retired = changing.await.expect("no panic").expect("it is retired");
    assert_eq!(retired.phase, IdentityPhase::Retired);
    world.nothing_of("held").await;

    let refused = world.ibid.begin_inside(world.ask("late"), &world.db, PATIENT).await;
    assert!(matches!(refused, Err(TxError::Unavailable(_))), "{refused:?}");
    let new = node(&world.test_db, StoreIdentity::new("new")).await;
    assert!(is_stored(&open(&world, &new, "held").await.finish(answer(201)).await.unwrap(), 201));
    assert_eq!(world.payments("held").await, 1);
}

type OpenAttempt<A> = Box<AttemptTx<'static, <<A as Adapter>::Db as Database>::Tx>>;

/// Reserves a key and does the work, in a transaction that stays open.
async fn open<A: Adapter>(world: &NodeOnDatabase<A>, ibid: &Ibid, key: &str) -> OpenAttempt<A> {
    let outcome = ibid.begin_inside(world.ask(key), &world.db, PATIENT).await.unwrap();
    let Begin::Run(mut inside) = outcome else { panic!("`{key}` is not to be run: {outcome:?}") };
    pay(&mut **inside, key, "app").await.unwrap();
    inside
}

/// Starts a process whose reads of the identity are valid for a second, so that a change takes two.
async fn node(test_db: &TestDatabase, identity: StoreIdentity) -> Ibid {
    let store: Arc<dyn Store> = match test_db.at.starts_with("mysql:") {
        true => Arc::new(MysqlStore::open(&test_db.at, MysqlOptions::default()).await.unwrap()),
        false => Arc::new(PostgresStore::open(&test_db.at, PostgresOptions::default()).await.unwrap()),
    };
    let settings = Settings::default().with(|settings| {
        settings.identity = identity;
        settings.identity_valid_for = Duration::from_secs(1);
        settings.begin_timeout = PATIENT;
    });
    Ibid::start(store, settings).await.unwrap()
}
