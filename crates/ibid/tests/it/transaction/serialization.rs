//! Serialization conflicts: a transaction that PostgreSQL refuses to serialize runs again, and then succeeds.

use std::sync::Arc;

use ibid::outcome::{Begin, Outcome};
use ibid::transaction::{Database, IsolatedDatabase, Isolation, TxError};
use tokio::sync::Barrier;

use super::harness::{NodeOnDatabase, Tries, answer, is_stored, pay};
use crate::adapters::databases::{
    MysqlAsyncPools, SqlxMysqlPools, SqlxPostgresPools, TestDatabase, TokioPostgresPools,
};
use crate::adapters::{Adapter, PATIENT, number};

const LEVELS: [Isolation; 3] = [Isolation::ReadCommitted, Isolation::RepeatableRead, Isolation::Serializable];

const ADD: [&str; 2] =
    ["update account set n = n + 1 where id = 1", "update account set n = n + 1 where id = 2"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_may_retry_a_serialization_failure() {
    let world = NodeOnDatabase::<SqlxPostgresPools>::new(TestDatabase::postgres()).await;
    for level in [Isolation::RepeatableRead, Isolation::Serializable] {
        a_lease_that_moved_since_the_snapshot_means_again(&world, level).await;
    }
    a_commit_that_would_not_serialize_means_again(&world).await;
}

async fn a_lease_that_moved_since_the_snapshot_means_again<A: Adapter>(
    world: &NodeOnDatabase<A>,
    level: Isolation,
) {
    let key = format!("{level:?}");
    let isolated = IsolatedDatabase::new(A::open(&world.test_db, 2, PATIENT).await, level);
    let mut attempt = world.begin(&key).await;
    let mut tx = isolated.begin().await.unwrap();
    assert_eq!(number(&mut tx, "select count(*) from payment where by_whom = 'nobody'").await, 0);
    let record = world.record(&key).await.unwrap();
    world.ibid.store().renew(vec![(record.id, record.version)]).await.unwrap();
    let refused = attempt.join_tx(tx).await.unwrap_err();
    assert!(refused.is_retryable(), "{refused:?}");
    let mut inside = attempt.join_tx(isolated.begin().await.unwrap()).await.unwrap();
    pay(&mut *inside, &key, "ann").await.unwrap();
    assert!(is_stored(&inside.finish(answer(201)).await.unwrap(), 201));
    assert_eq!(world.payments(&key).await, 1);
}

/// Each transaction reads what the other writes.
async fn a_commit_that_would_not_serialize_means_again<A: Adapter>(world: &NodeOnDatabase<A>) {
    let isolated = IsolatedDatabase::new(A::open(&world.test_db, 4, PATIENT).await, Isolation::Serializable);
    let (mut ann, mut bob) = (world.begin("ann").await, world.begin("bob").await);
    let mut anns = ann.join_tx(isolated.begin().await.unwrap()).await.unwrap();
    let mut bobs = bob.join_tx(isolated.begin().await.unwrap()).await.unwrap();
    for (inside, key) in [(&mut anns, "ann"), (&mut bobs, "bob")] {
        number(&mut **inside, "select count(*) from payment").await;
        pay(&mut **inside, key, key).await.unwrap();
    }
    assert!(is_stored(&anns.finish(answer(201)).await.unwrap(), 201));
    let refused = bobs.finish(answer(201)).await.unwrap_err();
    assert!(refused.is_retryable(), "{refused:?}");
    assert_eq!(world.payments("bob").await, 0);
    let mut bobs = bob.join_tx(isolated.begin().await.unwrap()).await.unwrap();
    pay(&mut *bobs, "bob", "bob").await.unwrap();
    assert!(is_stored(&bobs.finish(answer(201)).await.unwrap(), 201));
    assert_eq!((world.payments("ann").await, world.payments("bob").await), (1, 1));
}

/// The conflict is in the caller's own statements, as the driver runs them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadlock_costs_one_of_two_keys_a_second_run() {
    transfers::<TokioPostgresPools>().await;
    transfers::<SqlxPostgresPools>().await;
}

async fn transfers<A: Adapter>() {
    let world = NodeOnDatabase::<A>::new(TestDatabase::postgres()).await;
    world.sql("create table account (id int8 primary key, n int8 not null)").await;
    world.sql("insert into account values (1, 0), (2, 0)").await;
    for level in LEVELS {
        let (meet, ann, bob) = (Barrier::new(2), format!("{level:?} ann"), format!("{level:?} bob"));
        let (anns, bobs) = tokio::join!(
            transfer(&world, level, &ann, [ADD[0], ADD[1]], &meet),
            transfer(&world, level, &bob, [ADD[1], ADD[0]], &meet),
        );
        assert!(anns + bobs >= 3, "one of them was in the other's way");
        for key in [ann, bob] {
            assert_eq!(world.payments(&key).await, 1, "{key}");
            assert_eq!(world.replay(&key).await, answer(201));
        }
    }
    assert_eq!(world.number("select sum(n)::int8 from account").await, 12);
}

/// Returns how often the work ran.
async fn transfer<A: Adapter>(
    world: &NodeOnDatabase<A>,
    level: Isolation,
    key: &str,
    order: [&'static str; 2],
    meet: &Barrier,
) -> u32 {
    let isolated = IsolatedDatabase::new(A::open(&world.test_db, 1, PATIENT).await, level);
    for run in 1.. {
        let work = async {
            let outcome = world.ibid.begin_inside(world.ask(key), &isolated, PATIENT).await?;
            let Begin::Run(mut inside) = outcome else { panic!("{outcome:?}") };
            pay(&mut **inside, key, "x").await?;
            for (index, add) in order.into_iter().enumerate() {
                A::by_caller(&mut **inside, add).await?;
                if run == 1 && index == 0 {
                    meet.wait().await;
                }
            }
            inside.finish(answer(201)).await
        };
        let done: Result<Outcome, TxError> = work.await;
        match done {
            Ok(finished) => {
                assert!(is_stored(&finished, 201));
                return run;
            }
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
    }
    unreachable!("it runs until it is stored")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duplicate_on_another_node_waits_for_the_row_at_every_level() {
    a_duplicate_waits_for_the_row::<SqlxPostgresPools>(TestDatabase::postgres()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duplicate_on_another_node_waits_for_the_row_on_mysql() {
    a_duplicate_waits_for_the_row::<SqlxMysqlPools>(TestDatabase::mariadb()).await;
    a_duplicate_waits_for_the_row::<MysqlAsyncPools>(TestDatabase::mariadb()).await;
}

/// The second request waits for the row of the first, in another process.
async fn a_duplicate_waits_for_the_row<A: Adapter>(test_db: TestDatabase) {
    let world = Arc::new(NodeOnDatabase::<A>::new(test_db).await);
    let bob = world.other_node().await;
    for level in LEVELS {
        for ends in ["stored", "refused", "dropped", "in time"] {
            let key = format!("{level:?} {ends}");
            let pool = A::open(&world.test_db, 2, PATIENT).await;
            let db = Arc::new(Tries::at(IsolatedDatabase::new(pool, level)));
            let first = world.ibid.begin_inside(world.ask(&key), &*db, PATIENT).await.unwrap();
            let Begin::Run(mut first) = first else { panic!("{first:?}") };
            pay(&mut **first, &key, "ann").await.unwrap();
            let wait = if ends == "in time" { std::time::Duration::from_millis(50) } else { PATIENT };
            let second = tokio::spawn({
                let (bob, ask, db) = (bob.clone(), world.ask(&key), db.clone());
                async move { bob.begin_inside(ask, &*db, wait).await }
            });
            if ends == "in time" {
                let second = second.await.unwrap().unwrap();
                assert!(matches!(second, Begin::Skip(Outcome::InFlight { .. })), "{key}: {second:?}");
                assert!(is_stored(&first.finish(answer(201)).await.unwrap(), 201));
                continue;
            }
            // The first request's transaction, one try of the second that found its row, and another try.
            db.reach(3).await;
            let status = match ends {
                "stored" => 201,
                "refused" => 402,
                _ => {
                    drop(first);
                    let second = second.await.unwrap().unwrap();
                    let Begin::Run(mut second) = second else { panic!("{key}: {second:?}") };
                    pay(&mut **second, &key, "bob").await.unwrap();
                    assert!(is_stored(&second.finish(answer(201)).await.unwrap(), 201));
                    assert!(world.paid_by(&key, "bob").await);
                    continue;
                }
            };
            assert!(is_stored(&first.finish(answer(status)).await.unwrap(), status));
            let second = second.await.unwrap().unwrap();
            let Begin::Skip(Outcome::Completed(kept)) = second else { panic!("{key}: {second:?}") };
            assert_eq!(*kept.response, answer(status));
            assert_eq!(world.payments(&key).await, i64::from(status == 201));
        }
    }
}
