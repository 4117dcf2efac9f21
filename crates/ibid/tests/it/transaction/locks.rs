//! While a transaction is open on a database server, the lock on its record is its lease: no attempt takes it over, no session
//! waits for it forever, and the server ends a session that goes silent with the lock.

use ibid::outcome::{Begin, Outcome};
use ibid::transaction::{Database, OwnedTx, SqlFault, TxError};
use ibid::upkeep;
use ibid_core::record::State;
use ibid_core::store::RenewOutcome;

use super::harness::{NodeOnDatabase, answer, is_stored, pay_and_charge, until};
use crate::adapters::Adapter;
use crate::adapters::databases::{MysqlAsyncPools, SqlxMysqlPools, SqlxPostgresPools, TestDatabase};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_is_the_lease() {
    every_rule(&NodeOnDatabase::<SqlxPostgresPools>::new(TestDatabase::postgres()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_is_the_lease_on_mysql() {
    every_rule(&NodeOnDatabase::<SqlxMysqlPools>::new(TestDatabase::mariadb()).await).await;
    every_rule(&NodeOnDatabase::<MysqlAsyncPools>::new(TestDatabase::mariadb()).await).await;
}

async fn every_rule<A: Adapter>(world: &NodeOnDatabase<A>) {
    a_due_record_that_is_held_is_not_taken_over(world).await;
    who_was_cut_off_has_done_nothing(world).await;
    who_falls_silent_is_cut_off_after_a_lease(world).await;
}

async fn a_due_record_that_is_held_is_not_taken_over<A: Adapter>(world: &NodeOnDatabase<A>) {
    let bob = world.other_node().await;
    let mut attempt = world.begin("held").await;
    world.lapse("held").await;
    let mut inside = attempt.join_tx(world.tx().await).await.unwrap();
    pay_and_charge(&mut inside, "held", "ann").await.unwrap();

    let record = world.record("held").await.unwrap();
    for ibid in [&world.ibid, &bob] {
        assert!(matches!(
            ibid.begin(world.ask("held")).await.unwrap(),
            Begin::Skip(Outcome::InFlight { .. })
        ));
        assert_eq!(upkeep::sweep_once(ibid).await.unwrap(), 0);
        let renewed = ibid.store().renew(vec![(record.id, record.version)]).await.unwrap();
        assert_eq!(renewed, [RenewOutcome::Busy]);
    }
    assert_eq!(world.record("held").await.unwrap(), record, "it is untouched");
    assert!(is_stored(&inside.finish(answer(201)).await.unwrap(), 201));
    assert!(world.paid_by("held", "ann").await);
    assert_eq!(world.replay("held").await, answer(201));

    // Dropped without an end, the record may be taken over.
    let mut attempt = world.begin("let go").await;
    world.lapse("let go").await;
    let inside = attempt.join_tx(world.tx().await).await.unwrap();
    assert_eq!(upkeep::sweep_once(&bob).await.unwrap(), 0);
    drop(inside);
    while upkeep::sweep_once(&bob).await.unwrap() == 0 {}
    assert_eq!(world.record("let go").await.unwrap().state, State::Retryable);
    assert!(matches!(attempt.join_tx(world.tx().await).await, Err(TxError::LeaseLost)));
}

async fn who_was_cut_off_has_done_nothing<A: Adapter>(world: &NodeOnDatabase<A>) {
    let mut zombie = world.begin("cut off").await;
    let mut inside = zombie.join_tx(world.tx().await).await.unwrap();
    pay_and_charge(&mut inside, "cut off", "zombie").await.unwrap();
    // The server does the same by itself once the session was idle for a lease.
    end_silent_session(world).await;
    world.lapse("cut off").await;
    let bob = world.other_node().await;
    let mut taken = world.begin_on(&bob, "cut off").await;
    let mut bobs = taken.join_tx(world.tx().await).await.unwrap();
    pay_and_charge(&mut bobs, "cut off", "bob").await.unwrap();
    assert!(is_stored(&bobs.finish(answer(201)).await.unwrap(), 201));

    match inside.finish(answer(200)).await {
        Err(TxError::Sql(error)) => assert_eq!(error.fault(), SqlFault::Lost),
        other => panic!("a zombie's transaction is committed: {other:?}"),
    }
    assert!(matches!(zombie.join_tx(world.tx().await).await, Err(TxError::LeaseLost)));
    assert!(world.paid_by("cut off", "bob").await);
    assert_eq!((world.payments("cut off").await, world.effects("cut off").await.len()), (1, 1));
    assert_eq!(world.replay("cut off").await, answer(201));
}

async fn who_falls_silent_is_cut_off_after_a_lease<A: Adapter>(world: &NodeOnDatabase<A>) {
    // The limit, and its value outside ibid's transactions.
    let (setting, lease, usual) = match is_mysql(world) {
        true => ("select cast(@@session.wait_timeout as char)", "60", "28800"),
        false => ("select current_setting('idle_in_transaction_session_timeout')", "1min", "0"),
    };
    let mut attempt = world.begin("silent").await;
    let mut inside = attempt.join_tx(world.tx().await).await.unwrap();
    assert_eq!(NodeOnDatabase::<A>::text(&mut *inside, setting).await, lease);
    assert!(is_stored(&inside.finish(answer(201)).await.unwrap(), 201));
    let mut inside = world.begin_inside("silent with all inside").await;
    assert_eq!(NodeOnDatabase::<A>::text(&mut **inside, setting).await, lease);
    assert!(is_stored(&inside.finish(answer(201)).await.unwrap(), 201));
    let mut attempt = world.begin("silent and rolled back").await;
    let inside = attempt.join_tx(world.tx().await).await.unwrap();
    assert!(is_stored(&inside.finish(answer(409)).await.unwrap(), 409));
    let mut all = Vec::new();
    for _ in 0..POOL {
        all.push(world.db.begin().await.unwrap());
    }
    for mut tx in all {
        assert_eq!(NodeOnDatabase::<A>::text(&mut tx, setting).await, usual, "the session is as it was");
        tx.rollback().await.unwrap();
    }
}

fn is_mysql<A: Adapter>(world: &NodeOnDatabase<A>) -> bool {
    world.test_db.at.starts_with("mysql:")
}

/// Ends the one session whose transaction is open, and waits until it has ended.
async fn end_silent_session<A: Adapter>(world: &NodeOnDatabase<A>) {
    if !is_mysql(world) {
        let silent = "with silent as materialized (select pid from pg_stat_activity
                        where state = 'idle in transaction' and datname = current_database()
                          and pid <> pg_backend_pid())
                      select count(*) from silent where pg_terminate_backend(pid, 30000)";
        assert_eq!(world.number(silent).await, 1);
        return;
    }
    let open =
        "select cast(coalesce(max(t.trx_mysql_thread_id), 0) as signed) from information_schema.innodb_trx t
                join information_schema.processlist p on p.id = t.trx_mysql_thread_id
                where p.db = database() and p.command = 'Sleep' and t.trx_rows_modified > 0";
    // The server shows transactions as they were a moment ago.
    until(async || world.number(open).await > 0).await;
    world.sql(&format!("kill {}", world.number(open).await)).await;
    until(async || world.number(open).await == 0).await;
}

/// Connections of the application's pool.
const POOL: usize = 4;
