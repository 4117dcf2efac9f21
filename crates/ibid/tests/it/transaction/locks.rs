//! While a transaction is open on PostgreSQL, the lock on its record is its lease: no attempt takes it over, no session
//! waits for it forever, and the server ends a session that goes silent with the lock.

use ibid::outcome::{Begin, Outcome};
use ibid::transaction::{Database, OwnedTx, SqlFault, TxError};
use ibid::upkeep;
use ibid_core::record::State;
use ibid_core::store::RenewOutcome;

use super::harness::{World, answer, is_stored, pay_and_charge};
use crate::adapters::databases::{SqlxPostgresPools, TestDatabase};

type Sqlx = World<SqlxPostgresPools>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_is_the_lease() {
    let world = Sqlx::new(TestDatabase::postgres()).await;
    a_due_record_that_is_held_is_not_taken_over(&world).await;
    who_was_cut_off_has_done_nothing(&world).await;
    who_falls_silent_is_cut_off_after_a_lease(&world).await;
}

async fn a_due_record_that_is_held_is_not_taken_over(world: &Sqlx) {
    let bob = world.other_node().await;
    let mut attempt = world.begin("held").await;
    world.lapse("held").await;
    let mut inside = attempt.inside(world.tx().await).await.unwrap();
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
    let inside = attempt.inside(world.tx().await).await.unwrap();
    assert_eq!(upkeep::sweep_once(&bob).await.unwrap(), 0);
    drop(inside);
    while upkeep::sweep_once(&bob).await.unwrap() == 0 {}
    assert_eq!(world.record("let go").await.unwrap().state, State::Retryable);
    assert!(matches!(attempt.inside(world.tx().await).await, Err(TxError::LeaseLost)));
}

async fn who_was_cut_off_has_done_nothing(world: &Sqlx) {
    let mut zombie = world.begin("cut off").await;
    let mut inside = zombie.inside(world.tx().await).await.unwrap();
    pay_and_charge(&mut inside, "cut off", "zombie").await.unwrap();
    // The server does the same by itself once the session was idle for a lease.
    let silent = "with silent as materialized (select pid from pg_stat_activity
                    where state = 'idle in transaction' and datname = current_database()
                      and pid <> pg_backend_pid())
                  select count(*) from silent where pg_terminate_backend(pid, 30000)";
    assert_eq!(world.number(silent).await, 1);
    world.lapse("cut off").await;
    let bob = world.other_node().await;
    let mut taken = world.begin_on(&bob, "cut off").await;
    let mut bobs = taken.inside(world.tx().await).await.unwrap();
    pay_and_charge(&mut bobs, "cut off", "bob").await.unwrap();
    assert!(is_stored(&bobs.finish(answer(201)).await.unwrap(), 201));

    match inside.finish(answer(200)).await {
        Err(TxError::Sql(error)) => assert_eq!(error.fault(), SqlFault::Lost),
        other => panic!("a zombie's transaction is committed: {other:?}"),
    }
    assert!(matches!(zombie.inside(world.tx().await).await, Err(TxError::LeaseLost)));
    assert!(world.paid_by("cut off", "bob").await);
    assert_eq!((world.payments("cut off").await, world.effects("cut off").await.len()), (1, 1));
    assert_eq!(world.replay("cut off").await, answer(201));
}

async fn who_falls_silent_is_cut_off_after_a_lease(world: &Sqlx) {
    const SETTING: &str = "select current_setting('idle_in_transaction_session_timeout')";
    let mut attempt = world.begin("silent").await;
    let mut inside = attempt.inside(world.tx().await).await.unwrap();
    assert_eq!(Sqlx::text(&mut *inside, SETTING).await, "1min");
    assert!(is_stored(&inside.finish(answer(201)).await.unwrap(), 201));
    let mut inside = world.begin_inside("silent with all inside").await;
    assert_eq!(Sqlx::text(&mut **inside, SETTING).await, "1min");
    assert!(is_stored(&inside.finish(answer(201)).await.unwrap(), 201));
    let mut tx = world.db.begin().await.unwrap();
    assert_eq!(Sqlx::text(&mut tx, SETTING).await, "0", "the session is as it was");
    tx.rollback().await.unwrap();
}
