//! Only a commit is durable, and however a transaction ends, its connection is fit for the next one.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use ibid::transaction::{Database, OwnedTx, SqlFault};
use ibid_core::sql::Param;

use super::{Adapter, PATIENT, execute, fault_of, number, with_table};
use crate::adapters::databases::TestDatabase;

const COUNT: &str = "select count(*) from thing";

pub(super) async fn a_commit_shows_elsewhere<A: Adapter>(test_db: TestDatabase) {
    let pool = with_table::<A>(&test_db, 1).await;
    let mut tx = pool.begin().await.unwrap();
    execute(&mut tx, "insert into thing (id, n) values ($1, 0)", &[Param::I64(3)]).await.unwrap();
    tx.commit().await.unwrap();
    let elsewhere = A::open(&test_db, 1, PATIENT).await;
    assert_eq!(number(&mut elsewhere.begin().await.unwrap(), COUNT).await, 3);
}

pub(super) async fn nothing_is_left_of_what_was_not_committed<A: Adapter>(test_db: TestDatabase) {
    let pool = with_table::<A>(&test_db, 1).await;
    let elsewhere = A::open(&test_db, 1, PATIENT).await;
    for drops in [false, true] {
        let mut tx = pool.begin().await.unwrap();
        execute(&mut tx, "insert into thing (id, n) values (3, 0)", &[]).await.unwrap();
        match drops {
            true => drop(tx),
            false => tx.rollback().await.unwrap(),
        }
        // The row's lock is gone too: this insert would wait for another of the same id, and fail if that was committed.
        let mut tx = elsewhere.begin().await.unwrap();
        execute(&mut tx, "insert into thing (id, n) values (3, 0)", &[]).await.unwrap();
        assert_eq!(number(&mut tx, COUNT).await, 3);
        tx.rollback().await.unwrap();
    }
}

pub(super) async fn an_abandoned_transaction_gives_the_pool_back<A: Adapter>(test_db: TestDatabase) {
    let pool = with_table::<A>(&test_db, 1).await;
    for _ in 0..3 {
        let mut tx = pool.begin().await.unwrap();
        execute(&mut tx, "update thing set n = n + 1", &[]).await.unwrap();
    }
    let mut tx = pool.begin().await.unwrap();
    assert_eq!(number(&mut tx, "select max(n) from thing").await, 0);
    // A failed transaction is rolled back too: a unique violation aborts it on PostgreSQL.
    assert!(execute(&mut tx, "insert into thing (id, n) values (1, 0)", &[]).await.is_err());
    drop(tx);
    let mut tx = pool.begin().await.unwrap();
    execute(&mut tx, "update thing set n = n + 1", &[]).await.unwrap();
    tx.commit().await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    assert_eq!(number(&mut tx, "select max(n) from thing").await, 1);
    tx.rollback().await.unwrap();
}

pub(super) async fn a_begin_that_was_given_up_leaves_the_pool_usable<A: Adapter>(test_db: TestDatabase) {
    let pool = with_table::<A>(&test_db, 1).await;
    give_up_begins(&pool).await;
    let mut tx = pool.begin().await.unwrap();
    execute(&mut tx, "insert into thing (id, n) values (3, 0)", &[]).await.unwrap();
    tx.commit().await.unwrap();
    let elsewhere = A::open(&test_db, 1, PATIENT).await;
    assert_eq!(number(&mut elsewhere.begin().await.unwrap(), COUNT).await, 3);
}

/// A connection that is returned with an open transaction would hold locks, and lose what its next users commit.
pub(super) async fn a_begin_that_was_given_up_leaves_no_transaction_open<A: Adapter>(test_db: TestDatabase) {
    let pool = A::open(&test_db, 4, PATIENT).await;
    drop((pool.begin().await.unwrap(), pool.begin().await.unwrap(), pool.begin().await.unwrap()));
    give_up_begins(&pool).await;
    let elsewhere = A::open(&test_db, 1, PATIENT).await;
    let mut tx = elsewhere.begin().await.unwrap();
    // Connections are closed or rolled back a moment later; if one stayed open, the test would not end.
    let open = "select count(*) from pg_stat_activity \
                where datname = current_database() and pid <> pg_backend_pid() and xact_start is not null";
    while number(&mut tx, open).await > 0 {
        // The statistics are a snapshot of the transaction.
        super::query(&mut tx, "select pg_stat_clear_snapshot()", &[], &[]).await.unwrap();
    }
}

/// Drops `begin` after many polls, when it is complete, and then ever earlier: a complete one would end a transaction
/// that an earlier one left open on the same connection.
async fn give_up_begins<D: Database>(pool: &D) {
    for looks in (1..LOOKS_MAX).rev() {
        let mut begin = pin!(pool.begin());
        for _ in 0..looks {
            if poll_fn(|context| Poll::Ready(begin.as_mut().poll(context))).await.is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
}

/// Each poll lets the runtime run one round, which also fetches socket events: enough to catch a BEGIN on the loopback
/// interface at every stage.
const LOOKS_MAX: u32 = 60;

pub(super) async fn the_callers_own_statements_share_its_fate<A: Adapter>(test_db: TestDatabase) {
    let pool = with_table::<A>(&test_db, 1).await;
    let mut tx = pool.begin().await.unwrap();
    A::by_caller(&mut tx, "insert into thing (id, n) values (3, 0)").await.unwrap();
    assert_eq!(number(&mut tx, COUNT).await, 3);
    tx.rollback().await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    assert_eq!(number(&mut tx, COUNT).await, 2);
    execute(&mut tx, "insert into thing (id, n) values (4, 0)", &[]).await.unwrap();
    A::by_caller(&mut tx, "insert into thing (id, n) values (5, 0)").await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(number(&mut pool.begin().await.unwrap(), COUNT).await, 4);
}

/// PostgreSQL then answers COMMIT with success, and rolls back.
pub(super) async fn what_the_server_aborted_is_not_committed<A: Adapter>(test_db: TestDatabase) {
    let pool = with_table::<A>(&test_db, 1).await;
    let insert = "insert into thing (id, n) values (3, 0)";

    // A caller that ignores the error of a statement.
    let mut tx = pool.begin().await.unwrap();
    execute(&mut tx, insert, &[]).await.unwrap();
    assert!(A::by_caller(&mut tx, "select 1 / (n * 0) from thing").await.is_err());
    assert_eq!(fault_of(tx.commit().await), Some(SqlFault::Wrong));

    // A statement of ours that failed.
    let mut tx = pool.begin().await.unwrap();
    execute(&mut tx, insert, &[]).await.unwrap();
    assert!(execute(&mut tx, "insert into thing (id, n) values (1, 0)", &[]).await.is_err());
    assert_eq!(fault_of(tx.commit().await), Some(SqlFault::Wrong));

    assert_eq!(number(&mut pool.begin().await.unwrap(), COUNT).await, 2);
}

/// After a deadlock MySQL has rolled back, and before a change of the schema it has committed. In both cases later statements
/// would be committed one by one.
pub(super) async fn what_the_server_ended_is_not_committed<A: Adapter>(test_db: TestDatabase) {
    let pool = with_table::<A>(&test_db, 2).await;
    let insert = "insert into thing (id, n) values (3, 0)";

    // A caller that ignores a deadlock, as the victim: its transaction wrote less.
    let (mut ann, mut bob) = (pool.begin().await.unwrap(), pool.begin().await.unwrap());
    A::by_caller(&mut ann, "insert into thing (id, n) values (4, 0)").await.unwrap();
    A::by_caller(&mut bob, "insert into thing (id, n) values (5, 0), (6, 0), (7, 0)").await.unwrap();
    A::by_caller(&mut bob, "update thing set n = 1 where id = 2").await.unwrap();
    let crossed = tokio::join!(
        A::by_caller(&mut ann, "update thing set n = 1 where id in (1, 2)"),
        A::by_caller(&mut bob, "update thing set n = 1 where id = 4"),
    );
    assert!(matches!(crossed, (Err(_), Ok(()))), "{crossed:?}");
    assert_eq!(fault_of(execute(&mut ann, insert, &[]).await), Some(SqlFault::Wrong));
    assert_eq!(fault_of(ann.commit().await), Some(SqlFault::Wrong));
    bob.rollback().await.unwrap();

    let mut ann = pool.begin().await.unwrap();
    A::by_caller(&mut ann, "create table other (id int)").await.unwrap();
    assert_eq!(fault_of(execute(&mut ann, insert, &[]).await), Some(SqlFault::Wrong));
    assert_eq!(fault_of(ann.commit().await), Some(SqlFault::Wrong));

    // A caller's error that ended nothing is the caller's own business.
    let mut ann = pool.begin().await.unwrap();
    assert!(A::by_caller(&mut ann, "insert into thing (id, n) values (1, 0)").await.is_err());
    execute(&mut ann, insert, &[]).await.unwrap();
    ann.commit().await.unwrap();
    assert_eq!(number(&mut pool.begin().await.unwrap(), COUNT).await, 3);
}

/// MySQL undoes only the statement that failed, and would commit those before it.
pub(super) async fn what_is_half_written_is_not_committed<A: Adapter>(test_db: TestDatabase) {
    let pool = with_table::<A>(&test_db, 1).await;
    let (insert, again) =
        ("insert into thing (id, n) values (3, 0)", "insert into thing (id, n) values (1, 0)");
    let mut tx = pool.begin().await.unwrap();
    execute(&mut tx, insert, &[]).await.unwrap();
    assert!(execute(&mut tx, again, &[]).await.is_err());
    assert_eq!(fault_of(tx.commit().await), Some(SqlFault::Wrong));

    let mut tx = pool.begin().await.unwrap();
    execute(&mut tx, "savepoint early", &[]).await.unwrap();
    assert!(execute(&mut tx, again, &[]).await.is_err());
    execute(&mut tx, "rollback to savepoint early", &[]).await.unwrap();
    execute(&mut tx, "insert into thing (id, n) values (4, 0)", &[]).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(number(&mut pool.begin().await.unwrap(), "select max(id) from thing where id <> 3").await, 4);
}
