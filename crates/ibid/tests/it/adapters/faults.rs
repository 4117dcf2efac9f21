//! The meaning of a failure, as the real database reports it.

use std::time::Duration;

use ibid::transaction::{Database, IsolatedDatabase, Isolation, OwnedTx, SqlFault, SqlTx, TxError};
use ibid_core::sql::{Dialect, Param};

use super::{Adapter, execute, fault_of, number, with_table};
use crate::adapters::databases::TestDatabase;

/// Long enough to connect on a busy machine, short enough to wait for.
const IMPATIENT: Duration = Duration::from_secs(2);

const TOUCH: &str = "update thing set n = n + 1 where id = $1";

pub(super) async fn a_unique_violation_is_wrong<A: Adapter>(test_db: TestDatabase) {
    let pool = with_table::<A>(&test_db, 1).await;
    let mut tx = pool.begin().await.unwrap();
    let twice = execute(&mut tx, "insert into thing (id, n) values (1, 0)", &[]).await;
    assert_eq!(fault_of(twice), Some(SqlFault::Wrong));
}

pub(super) async fn a_callers_own_error_keeps_its_meaning<A: Adapter>(test_db: TestDatabase) {
    let pool = with_table::<A>(&test_db, 1).await;
    let mut tx = pool.begin().await.unwrap();
    let twice = A::by_caller(&mut tx, "insert into thing (id, n) values (1, 0)").await.unwrap_err();
    assert!(!twice.is_retryable(), "{twice:?}");
    let TxError::Sql(error) = twice else { panic!("{twice:?}") };
    assert_eq!(fault_of::<()>(Err(error)), Some(SqlFault::Wrong));
}

pub(super) async fn an_exhausted_pool_or_a_held_lock_is_told<A: Adapter>(test_db: TestDatabase) {
    drop(with_table::<A>(&test_db, 1).await);
    let pool = A::open(&test_db, 1, IMPATIENT).await;
    let tx = pool.begin().await.unwrap();
    match tx.dialect() {
        // A wait for a connection that timed out sent nothing, but looks the same as a lost connection.
        Dialect::Postgres | Dialect::Mysql => {
            assert_eq!(fault_of(pool.begin().await), Some(SqlFault::Lost));
        }
        // SQLite has one writer.
        Dialect::Sqlite => {
            let other = A::open(&test_db, 1, IMPATIENT).await;
            assert_eq!(fault_of(other.begin().await), Some(SqlFault::Serialization));
        }
    }
    tx.rollback().await.unwrap();
    pool.begin().await.unwrap().rollback().await.unwrap();
}

pub(super) async fn a_row_that_moved_means_again<A: Adapter>(test_db: TestDatabase) {
    let pool = IsolatedDatabase::new(with_table::<A>(&test_db, 2).await, Isolation::RepeatableRead);
    let (mut ann, mut bob) = (pool.begin().await.unwrap(), pool.begin().await.unwrap());
    for tx in [&mut ann, &mut bob] {
        assert_eq!(number(tx, "select n from thing where id = 1").await, 0);
    }
    execute(&mut ann, TOUCH, &[Param::I64(1)]).await.unwrap();
    ann.commit().await.unwrap();
    assert_eq!(fault_of(execute(&mut bob, TOUCH, &[Param::I64(1)]).await), Some(SqlFault::Serialization));
    bob.rollback().await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    assert_eq!(number(&mut tx, "select n from thing where id = 1").await, 1);
}

/// Each reads what the other writes. The second to commit is refused, in its last statement or its commit.
pub(super) async fn a_commit_that_would_not_serialize_means_again<A: Adapter>(test_db: TestDatabase) {
    let pool = IsolatedDatabase::new(with_table::<A>(&test_db, 2).await, Isolation::Serializable);
    let (mut ann, mut bob) = (pool.begin().await.unwrap(), pool.begin().await.unwrap());
    for (tx, id) in [(&mut ann, 1), (&mut bob, 2)] {
        assert_eq!(number(tx, "select count(*) from thing where n = 0").await, 2);
        execute(tx, TOUCH, &[Param::I64(id)]).await.unwrap();
    }
    ann.commit().await.unwrap();
    assert_eq!(fault_of(bob.commit().await), Some(SqlFault::Serialization));
    // Both connections are fit for the next transactions.
    let (mut ann, mut bob) = (pool.begin().await.unwrap(), pool.begin().await.unwrap());
    assert_eq!(number(&mut ann, "select n from thing where id = 2").await, 0);
    execute(&mut bob, TOUCH, &[Param::I64(2)]).await.unwrap();
    bob.commit().await.unwrap();
}

pub(super) async fn a_deadlock_means_again<A: Adapter>(test_db: TestDatabase) {
    let pool = with_table::<A>(&test_db, 2).await;
    let (mut ann, mut bob) = (pool.begin().await.unwrap(), pool.begin().await.unwrap());
    execute(&mut ann, TOUCH, &[Param::I64(1)]).await.unwrap();
    execute(&mut bob, TOUCH, &[Param::I64(2)]).await.unwrap();
    // Each rolls back as soon as it knows, because the other waits for that.
    let cross = async |mut tx: <A::Db as Database>::Tx, id| {
        let crossed = fault_of(execute(&mut tx, TOUCH, &[Param::I64(id)]).await);
        tx.rollback().await.unwrap();
        crossed
    };
    let (ann, bob) = tokio::join!(cross(ann, 2), cross(bob, 1));
    assert!(
        matches!((ann, bob), (Some(SqlFault::Serialization), None) | (None, Some(SqlFault::Serialization))),
        "one is the victim: {ann:?}, {bob:?}"
    );
}

pub(super) async fn a_deadlock_of_the_callers_own_statements_means_again<A: Adapter>(test_db: TestDatabase) {
    const FIRST: &str = "update thing set n = n + 1 where id = 1";
    const SECOND: &str = "update thing set n = n + 1 where id = 2";
    let pool = with_table::<A>(&test_db, 2).await;
    let (mut ann, mut bob) = (pool.begin().await.unwrap(), pool.begin().await.unwrap());
    A::by_caller(&mut ann, FIRST).await.unwrap();
    A::by_caller(&mut bob, SECOND).await.unwrap();
    let cross = async |mut tx: <A::Db as Database>::Tx, sql| {
        let crossed = A::by_caller(&mut tx, sql).await.map_err(|error| error.is_retryable());
        tx.rollback().await.unwrap();
        crossed
    };
    let crossed = tokio::join!(cross(ann, SECOND), cross(bob, FIRST));
    assert!(matches!(crossed, (Err(true), Ok(())) | (Ok(()), Err(true))), "one is the victim: {crossed:?}");
}

pub(super) async fn a_lock_waited_for_in_vain_is_told<A: Adapter>(test_db: TestDatabase) {
    let pool = with_table::<A>(&test_db, 2).await;
    let (mut ann, mut bob) = (pool.begin().await.unwrap(), pool.begin().await.unwrap());
    execute(&mut ann, TOUCH, &[Param::I64(1)]).await.unwrap();
    let limit = match bob.dialect() {
        Dialect::Mysql => "set innodb_lock_wait_timeout = 1",
        Dialect::Postgres | Dialect::Sqlite => "set local lock_timeout = '50ms'",
    };
    execute(&mut bob, limit, &[]).await.unwrap();
    assert_eq!(fault_of(execute(&mut bob, TOUCH, &[Param::I64(1)]).await), Some(SqlFault::LockTimeout));
    bob.rollback().await.unwrap();
    let mut bob = pool.begin().await.unwrap();
    let nowait = "select id from thing where id = 1 for update nowait";
    assert_eq!(fault_of(super::query(&mut bob, nowait, &[], &[]).await), Some(SqlFault::LockTimeout));
}

pub(super) async fn a_terminated_connection_is_lost_and_the_pool_is_not<A: Adapter>(test_db: TestDatabase) {
    let pool = with_table::<A>(&test_db, 1).await;
    let operator = A::open(&test_db, 1, super::PATIENT).await;
    for at_commit in [false, true] {
        let mut tx = pool.begin().await.unwrap();
        let backend = match tx.dialect() {
            Dialect::Mysql => number(&mut tx, "select connection_id()").await,
            Dialect::Postgres | Dialect::Sqlite => number(&mut tx, "select pg_backend_pid()::int8").await,
        };
        execute(&mut tx, TOUCH, &[Param::I64(1)]).await.unwrap();
        let mut admin = operator.begin().await.unwrap();
        terminate(&mut admin, backend).await;
        admin.rollback().await.unwrap();
        let lost = match at_commit {
            true => fault_of(tx.commit().await),
            false => {
                let touched = fault_of(execute(&mut tx, TOUCH, &[Param::I64(1)]).await);
                drop(tx);
                touched
            }
        };
        assert_eq!(lost, Some(SqlFault::Lost));
        let mut tx = pool.begin().await.unwrap();
        assert_eq!(number(&mut tx, "select n from thing where id = 1").await, 0);
        tx.rollback().await.unwrap();
    }
}

/// Ends a session, and waits until it has ended.
async fn terminate(admin: &mut impl SqlTx, session: i64) {
    if admin.dialect() == Dialect::Mysql {
        execute(admin, &format!("kill connection {session}"), &[]).await.unwrap();
        let left = format!("select count(*) from information_schema.processlist where id = {session}");
        while number(admin, &left).await > 0 {
            tokio::task::yield_now().await;
        }
        return;
    }
    let end = "select pg_terminate_backend($1::int4, 60000)::int4::int8";
    let ended = super::query(admin, end, &[ibid_core::sql::Type::I64], &[Param::I64(session)]).await;
    assert_eq!(ended.unwrap()[0].i64().unwrap(), 1);
}

/// MariaDB does this under `innodb_snapshot_isolation`, which newer versions turn on by default.
pub(super) async fn a_row_that_changed_since_the_snapshot_means_again<A: Adapter>(test_db: TestDatabase) {
    let pool = IsolatedDatabase::new(with_table::<A>(&test_db, 2).await, Isolation::RepeatableRead);
    let (mut ann, mut bob) = (pool.begin().await.unwrap(), pool.begin().await.unwrap());
    execute(&mut bob, "set innodb_snapshot_isolation = on", &[]).await.unwrap();
    assert_eq!(number(&mut bob, "select n from thing where id = 1").await, 0);
    execute(&mut ann, TOUCH, &[Param::I64(1)]).await.unwrap();
    ann.commit().await.unwrap();
    assert_eq!(fault_of(execute(&mut bob, TOUCH, &[Param::I64(1)]).await), Some(SqlFault::Serialization));
}

/// A rebuilt table has no older versions of its rows, after `optimize table` or some changes of a schema.
pub(super) async fn a_table_rebuilt_since_the_snapshot_means_again<A: Adapter>(test_db: TestDatabase) {
    let pool = IsolatedDatabase::new(with_table::<A>(&test_db, 2).await, Isolation::RepeatableRead);
    super::change_schema(&pool, "create table other (id int primary key)").await;
    let mut bob = pool.begin().await.unwrap();
    assert_eq!(number(&mut bob, "select count(*) from other").await, 0);
    super::change_schema(&pool, "alter table thing force").await;
    let look = super::query(&mut bob, "select n from thing", &[ibid_core::sql::Type::I64], &[]).await;
    assert_eq!(fault_of(look), Some(SqlFault::Serialization));
    bob.rollback().await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    assert_eq!(number(&mut tx, "select n from thing where id = 1").await, 0);
}

pub(super) async fn a_transaction_runs_at_the_chosen_level<A: Adapter>(test_db: TestDatabase) {
    let pool = with_table::<A>(&test_db, 2).await;
    for (level, seen) in [(Isolation::ReadCommitted, 1), (Isolation::RepeatableRead, 0)] {
        let isolated = IsolatedDatabase::new(A::open(&test_db, 1, super::PATIENT).await, level);
        let mut tx = isolated.begin().await.unwrap();
        let before = number(&mut tx, "select n from thing where id = 1").await;
        let mut other = pool.begin().await.unwrap();
        execute(&mut other, TOUCH, &[Param::I64(1)]).await.unwrap();
        other.commit().await.unwrap();
        let added = number(&mut tx, "select n from thing where id = 1").await - before;
        assert_eq!(added, seen, "{level:?}");
        tx.rollback().await.unwrap();
    }
}

pub(super) async fn a_server_that_is_gone_is_lost<A: Adapter>(mut test_db: TestDatabase) {
    drop(with_table::<A>(&test_db, 1).await);
    let pool = A::open(&test_db, 1, IMPATIENT).await;
    let mut tx = pool.begin().await.unwrap();
    test_db.stop();
    assert_eq!(fault_of(execute(&mut tx, TOUCH, &[Param::I64(1)]).await), Some(SqlFault::Lost));
    assert_eq!(fault_of(tx.commit().await), Some(SqlFault::Lost));
    assert_eq!(fault_of(pool.begin().await), Some(SqlFault::Lost));
}
