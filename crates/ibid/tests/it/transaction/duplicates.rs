//! Waiting duplicates cost the application nothing, and leave its sessions unchanged.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::poll_immediate;
use ibid::outcome::{Begin, Outcome};
use ibid::transaction::{Database, OwnedTx};

use super::harness::{NodeOnDatabase, Tries, answer, is_stored, pay, until};
use crate::adapters::databases::{SqlxPostgresPools, TestDatabase, TokioPostgresPools};
use crate::adapters::{Adapter, PATIENT, number};

type Sqlx = NodeOnDatabase<SqlxPostgresPools>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_duplicates_of_one_process_wait_without_a_connection() {
    let world = Arc::new(Sqlx::new(TestDatabase::postgres()).await);
    let db = Arc::new(SqlxPostgresPools::open(&world.test_db, 2, PATIENT).await);
    for ends in ["stored", "dropped"] {
        let first = world.ibid.begin_inside(world.ask(ends), &*db, PATIENT).await.unwrap();
        let Begin::Run(mut first) = first else { panic!("{first:?}") };
        pay(&mut **first, ends, "first").await.unwrap();
        let come = Arc::new(AtomicU32::new(0));
        let duplicates: Vec<_> = (0..20)
            .map(|_| {
                let (world, db, come) = (world.clone(), db.clone(), come.clone());
                tokio::spawn(async move {
                    come.fetch_add(1, Ordering::SeqCst);
                    let outcome = world.ibid.begin_inside(world.ask(ends), &*db, PATIENT).await.unwrap();
                    match outcome {
                        Begin::Skip(Outcome::Completed(kept)) => {
                            assert_eq!(*kept.response, answer(201));
                            0
                        }
                        Begin::Run(mut inside) => {
                            pay(&mut **inside, ends, "second").await.unwrap();
                            assert!(is_stored(&inside.finish(answer(201)).await.unwrap(), 201));
                            1
                        }
                        other => panic!("{other:?}"),
                    }
                })
            })
            .collect();
        until(async || come.load(Ordering::SeqCst) == 20).await;
        for n in 0..5 {
            let key = format!("{ends}: meanwhile {n}");
            let outcome = world.ibid.begin_inside(world.ask(&key), &*db, PATIENT).await.unwrap();
            let Begin::Run(mut inside) = outcome else { panic!("{outcome:?}") };
            pay(&mut **inside, &key, "x").await.unwrap();
            assert!(is_stored(&inside.finish(answer(201)).await.unwrap(), 201));
        }
        let in_use = "select count(*) from pg_stat_activity
                      where state = 'idle in transaction' and datname = current_database()";
        assert_eq!(world.number(in_use).await, 1, "the first alone is at work");
        if ends == "stored" {
            assert!(is_stored(&first.finish(answer(201)).await.unwrap(), 201));
        } else {
            drop(first);
        }
        let mut ran = 0;
        for duplicate in duplicates {
            ran += duplicate.await.unwrap();
        }
        assert_eq!(ran, u32::from(ends == "dropped"));
        assert_eq!(world.payments(ends).await, 1);
    }
}

/// No transaction ends before the fresh key has its response.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicates_of_another_nodes_keys_leave_room_for_a_fresh_one() {
    let world = Arc::new(Sqlx::new(TestDatabase::postgres()).await);
    let anns = SqlxPostgresPools::open(&world.test_db, HELD, PATIENT).await;
    let mut transactions = Vec::new();
    for n in 0..HELD {
        let key = format!("held {n}");
        let outcome = world.ibid.begin_inside(world.ask(&key), &anns, PATIENT).await.unwrap();
        let Begin::Run(mut inside) = outcome else { panic!("{outcome:?}") };
        pay(&mut **inside, &key, "ann").await.unwrap();
        transactions.push(inside);
    }

    let bob = world.other_node().await;
    let bobs = Arc::new(Tries::at(SqlxPostgresPools::open(&world.test_db, 2, PATIENT).await));
    let duplicate = |n: usize| {
        let (bob, ask, bobs) = (bob.clone(), world.ask(&format!("held {n}")), bobs.clone());
        tokio::spawn(async move { bob.begin_inside(ask, &*bobs, HOUR).await })
    };
    let duplicates: Vec<_> = (0..HELD).map(duplicate).collect();
    bobs.reach(8).await;
    let outcome = bob.begin_inside(world.ask("fresh"), &*bobs, PATIENT).await.unwrap();
    let Begin::Run(mut inside) = outcome else { panic!("{outcome:?}") };
    pay(&mut **inside, "fresh", "bob").await.unwrap();
    assert!(is_stored(&inside.finish(answer(201)).await.unwrap(), 201));
    assert!(duplicates.iter().all(|duplicate| !duplicate.is_finished()), "they wait for what ann has");

    for inside in transactions {
        assert!(is_stored(&inside.finish(answer(201)).await.unwrap(), 201));
    }
    for duplicate in duplicates {
        let outcome = duplicate.await.unwrap().unwrap();
        assert!(matches!(outcome, Begin::Skip(Outcome::Completed(_))), "{outcome:?}");
    }
    assert_eq!(world.number("select count(*) from payment").await, HELD as i64 + 1);
}

/// A try that found another node's row gives its connection back: a waiting client needs no new ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_try_in_vain_keeps_its_connection() {
    let world = Arc::new(NodeOnDatabase::<TokioPostgresPools>::new(TestDatabase::postgres()).await);
    let first = world.begin_inside("k").await;
    let bob = world.other_node().await;
    let bobs = Arc::new(Tries::at(TokioPostgresPools::open(&world.test_db, 1, PATIENT).await));
    let mut tx = bobs.begin().await.unwrap();
    const SESSION: &str = "select pg_backend_pid()::int8";
    let session = number(&mut tx, SESSION).await;
    tx.rollback().await.unwrap();
    let second = tokio::spawn({
        let (bob, ask, bobs) = (bob.clone(), world.ask("k"), bobs.clone());
        async move { bob.begin_inside(ask, &*bobs, HOUR).await }
    });
    bobs.reach(4).await;
    assert!(is_stored(&first.finish(answer(201)).await.unwrap(), 201));
    let second = second.await.unwrap().unwrap();
    assert!(matches!(second, Begin::Skip(Outcome::Completed(_))), "{second:?}");
    let mut tx = bobs.begin().await.unwrap();
    assert_eq!(number(&mut tx, SESSION).await, session);
    tx.rollback().await.unwrap();
}

#[tokio::test]
async fn clients_that_hang_up_do_not_open_the_breaker() {
    let world = Sqlx::new(TestDatabase::postgres()).await;
    let db = SqlxPostgresPools::open(&world.test_db, 1, PATIENT).await;
    let tx = db.begin().await.unwrap();
    for n in 0..20 {
        let key = format!("hung up {n}");
        let outcome = poll_immediate(world.ibid.begin_inside(world.ask(&key), &db, PATIENT)).await;
        assert!(outcome.is_none(), "there is no connection for it");
    }
    assert!(!world.ibid.is_breaker_open());
    drop(tx);
    let outcome = world.ibid.begin_inside(world.ask("k"), &db, PATIENT).await.unwrap();
    assert!(matches!(outcome, Begin::Run(_)), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_waits_for_locks_as_before_once_the_key_is_reserved() {
    const SETTING: &str = "select current_setting('lock_timeout')";
    let world = Sqlx::new(TestDatabase::postgres()).await;
    let database = world.test_db.at.rsplit('/').next().unwrap();
    world.sql(&format!("alter database {database} set lock_timeout = '7s'")).await;
    let db = SqlxPostgresPools::open(&world.test_db, 1, PATIENT).await;
    let inside = world.ibid.begin_inside(world.ask("k"), &db, PATIENT).await.unwrap();
    let Begin::Run(mut inside) = inside else { panic!("{inside:?}") };
    assert_eq!(Sqlx::text(&mut **inside, SETTING).await, "7s");
    assert!(is_stored(&inside.finish(answer(201)).await.unwrap(), 201));
    let mut tx = db.begin().await.unwrap();
    assert_eq!(Sqlx::text(&mut tx, SETTING).await, "7s");
    tx.rollback().await.unwrap();
}

/// More than may try to reserve at once.
const HELD: usize = 12;

/// Longer than a test may take.
const HOUR: Duration = Duration::from_secs(3600);
