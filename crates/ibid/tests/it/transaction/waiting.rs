//! Duplicates that wait cost the application nothing, and leave its sessions as they were.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::future::poll_immediate;
use ibid::engine::Begun;
use ibid::transaction::{BegunInside, Database, OwnedTx};

use super::world::{World, answer, is_stored, pay, until};
use crate::adapters::place::{Place, SqlxPostgresPools};
use crate::adapters::{Adapter, PATIENT};

type Sqlx = World<SqlxPostgresPools>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_duplicates_of_one_process_wait_without_a_connection() {
    let world = Arc::new(Sqlx::new(Place::postgres()).await);
    let db = Arc::new(SqlxPostgresPools::open(&world.place, 2, PATIENT).await);
    for ends in ["stored", "dropped"] {
        let first = world.ibid.begin_inside(world.ask(ends), &*db, PATIENT).await.unwrap();
        let BegunInside::Run(mut first) = first else { panic!("{first:?}") };
        pay(&mut **first, ends, "first").await.unwrap();
        let come = Arc::new(AtomicU32::new(0));
        let duplicates: Vec<_> = (0..20)
            .map(|_| {
                let (world, db, come) = (world.clone(), db.clone(), come.clone());
                tokio::spawn(async move {
                    come.fetch_add(1, Ordering::SeqCst);
                    let begun = world.ibid.begin_inside(world.ask(ends), &*db, PATIENT).await.unwrap();
                    match begun {
                        BegunInside::Already(Begun::Replay(kept)) => {
                            assert_eq!(*kept.response, answer(201));
                            0
                        }
                        BegunInside::Run(mut inside) => {
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
            let begun = world.ibid.begin_inside(world.ask(&key), &*db, PATIENT).await.unwrap();
            let BegunInside::Run(mut inside) = begun else { panic!("{begun:?}") };
            pay(&mut **inside, &key, "x").await.unwrap();
            assert!(is_stored(&inside.finish(answer(201)).await.unwrap(), 201));
        }
        let in_use = "select count(*) from pg_stat_activity where state = 'idle in transaction'";
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

#[tokio::test]
async fn clients_that_hang_up_while_their_key_is_being_reserved_do_not_open_the_breaker() {
    let world = Sqlx::new(Place::postgres()).await;
    let db = SqlxPostgresPools::open(&world.place, 1, PATIENT).await;
    let held = db.begin().await.unwrap();
    for n in 0..20 {
        let key = format!("hung up {n}");
        let begun = poll_immediate(world.ibid.begin_inside(world.ask(&key), &db, PATIENT)).await;
        assert!(begun.is_none(), "there is no connection for it");
    }
    assert!(!world.ibid.is_breaker_open());
    drop(held);
    let begun = world.ibid.begin_inside(world.ask("k"), &db, PATIENT).await.unwrap();
    assert!(matches!(begun, BegunInside::Run(_)), "{begun:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_waits_for_locks_as_before_once_the_key_is_reserved() {
    const SETTING: &str = "select current_setting('lock_timeout')";
    let world = Sqlx::new(Place::postgres()).await;
    world.sql("alter database postgres set lock_timeout = '7s'").await;
    let db = SqlxPostgresPools::open(&world.place, 1, PATIENT).await;
    let inside = world.ibid.begin_inside(world.ask("k"), &db, PATIENT).await.unwrap();
    let BegunInside::Run(mut inside) = inside else { panic!("{inside:?}") };
    assert_eq!(Sqlx::text(&mut **inside, SETTING).await, "7s");
    assert!(is_stored(&inside.finish(answer(201)).await.unwrap(), 201));
    let mut tx = db.begin().await.unwrap();
    assert_eq!(Sqlx::text(&mut tx, SETTING).await, "7s");
    tx.rollback().await.unwrap();
}
