//! Locks of other sessions, and deadlocks: each delays or fails only the record that it concerns.

use ibid_core::change::Draft;
use ibid_core::reap::ReapTarget;
use ibid_core::record::State;
use ibid_core::store::RenewOutcome;
use ibid_testkit::contract::{SHORT, TICK, draft, insert, load, take_over};
use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use tokio::task::JoinSet;

use super::*;

async fn lock(server: &MariaDb, database: &str, record: &Record) -> Conn {
    let mut stranger = stranger(server, database).await;
    let text =
        format!("start transaction; select nonce from ibid_record where id = x'{}' for update", record.id);
    stranger.query_drop(text).await.expect("it locks the row");
    stranger
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_locked_record_fails_only_its_own_change() {
    let server = MariaDb::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let records = begin_some(&store, 40, LONG).await;
    let mut stranger = lock(&server, &database, &records[0]).await;
    let locked_change = Arc::new(finish(&records[0]));
    let others: Vec<Change> = records[1..].iter().map(|record| finish(record)).collect();
    let (stuck, fates) = tokio::join!(store.commit(locked_change.clone(), None), commit_all(&*store, others));
    assert!(fates.values().all(|fate| matches!(fate, Commit::Done(_))), "{fates:?}");
    let error = stuck.expect_err("its row is locked");
    assert!(
        error.is_transient() && error.is_unwritten(),
        "a lock wait proves that nothing was written: {error:?}"
    );
    stranger.query_drop("rollback").await.expect("it goes");
    assert!(matches!(commit_patiently(&store, &locked_change).await, Commit::Done(_)));
    let open = "select count(*) from ibid_record where state <> 3";
    assert_eq!(server.sql(&database, open), "0", "no half of a batch is missing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn takeovers_and_renewals_never_wait_for_a_lock() {
    let server = MariaDb::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let records = begin_some(&store, 2, SHORT).await;
    tokio::time::sleep(TICK).await;
    let mut stranger = lock(&server, &database, &records[0]).await;
    let name = TestRecord { id: records[0].id, identity: records[0].identity.clone() };
    let takeover = take_over(&records[0], Draft { due_in: Some(LONG), ..draft(&name, State::InProgress) });
    let fate = store.commit(Arc::new(takeover.clone()), None).await.expect("an answer");
    let Commit::Conflict(Some(stored)) = fate else { panic!("the lock holder may still finish") };
    assert_eq!(stored.record, records[0]);
    let leases = records.iter().map(|record| (record.id, record.version)).collect();
    let renewed = store.renew(leases).await.expect("an answer");
    assert_eq!(renewed[0], RenewOutcome::Busy, "the lease may still be ours");
    assert!(matches!(renewed[1], RenewOutcome::Until(_)), "{renewed:?}");
    stranger.query_drop("rollback").await.expect("it goes");
    assert!(matches!(commit_patiently(&store, &Arc::new(takeover)).await, Commit::Done(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_uncommitted_insert_of_an_id_delays_only_its_rival() {
    let server = MariaDb::shared();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let name = TestRecord::fresh();
    let mut stranger = stranger(&server, &database).await;
    let text = format!(
        "start transaction; insert into ibid_record (id, birth, created_at, written_at, policy, nonce, count, state, flags, \
         tenant, method, path, `key`) values (x'{}', 1, 1, 1, 1, 1, 1, 2, 0, '', '', '', '')",
        name.id
    );
    stranger.query_drop(text).await.expect("it inserts the row");
    let mut begins: Vec<Change> = (0..20).map(|_| fresh(&TestRecord::fresh(), LONG)).collect();
    let rival = Arc::new(fresh(&name, LONG));
    begins.push(fresh(&TestRecord::fresh(), LONG));
    let (stuck, fates) = tokio::join!(store.commit(rival.clone(), None), commit_all(&*store, begins));
    assert!(fates.values().all(|fate| matches!(fate, Commit::Done(_))), "{fates:?}");
    let error = stuck.expect_err("its id is in doubt");
    assert!(error.is_transient() && error.is_unwritten(), "{error:?}");
    stranger.query_drop("rollback").await.expect("it goes");
    assert!(matches!(commit_patiently(&store, &rival).await, Commit::Done(_)));
}

/// T1 (the store) inserts A and waits for B, which T2 has inserted; T2 inserts A. The server ends T1, which wrote less.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_flight_that_meets_a_deadlock_is_sent_again() {
    let server = MariaDb::start();
    let database = server.create_database();
    let store = open(&server, &database).await;
    // The policy is stored before.
    begin_some(&store, 1, LONG).await;
    let mut names = [TestRecord::fresh(), TestRecord::fresh()];
    names.sort_by_key(|name| name.id);
    let mut stranger = stranger(&server, &database).await;
    let insert = |name: &TestRecord| {
        format!(
            "insert into ibid_record (id, birth, created_at, written_at, policy, nonce, count, state, flags, tenant, method, \
             path, `key`) values (x'{}', 1, 1, 1, 1, 1, 1, 2, 0, '', '', '', '')",
            name.id
        )
    };
    stranger.query_drop("start transaction").await.expect("a transaction");
    for _ in 0..20 {
        stranger.query_drop(insert(&TestRecord::fresh())).await.expect("it writes much");
    }
    stranger.query_drop(insert(&names[1])).await.expect("it inserts B");
    let begins = names.iter().map(|name| fresh(name, LONG)).collect();
    let flight = tokio::spawn({
        let store = store.clone();
        async move { commit_all(&*store, begins).await }
    });
    let waits = "select count(*) from information_schema.innodb_trx where trx_state = 'LOCK WAIT'";
    while server.sql("", waits) == "0" {}
    stranger.query_drop(insert(&names[0])).await.expect("the other one is the victim");
    stranger.query_drop("rollback").await.expect("it goes");
    let fates = flight.await.expect("no panic");
    assert!(fates.values().all(|fate| matches!(fate, Commit::Done(_))), "{fates:?}");
    assert_eq!(server.sql("", "select variable_value from information_schema.global_status where variable_name = 'innodb_deadlocks'"), "1");
}

/// Deletions and insertions of the same ids may wait for each other, even with sorted ids.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ids_that_are_reaped_and_begun_again_fail_no_caller() {
    let server = MariaDb::shared();
    let database = server.create_database();
    let names: Arc<Vec<TestRecord>> = Arc::new((0..60).map(|_| TestRecord::fresh()).collect());
    let mut tasks = JoinSet::new();
    for _ in 0..2 {
        let store = open(&server, &database).await;
        for _ in 0..2 {
            let (store, names) = (store.clone(), names.clone());
            tasks.spawn(async move {
                for _ in 0..15 {
                    let over = Duration::ZERO;
                    let gone = names.iter().map(|name| {
                        let ended = Draft {
                            expires_in: Some(over),
                            purge_in: Some(over),
                            ..draft(name, State::Completed)
                        };
                        insert(name, ended)
                    });
                    // `commit_all` panics if one fails.
                    commit_all(&*store, gone.collect()).await;
                    store.reap(ReapTarget::Records, None, 30).await.expect("a reaping succeeds");
                }
            });
        }
    }
    tasks.join_all().await;
    let store = open(&server, &database).await;
    contract::reap_all(&*store, ReapTarget::Records).await;
    for name in names.iter() {
        assert_eq!(load(&*store, name.id).await, None, "all of them are past their time");
    }
}
