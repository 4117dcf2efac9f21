//! The worker itself: how it is built, when it looks for effects, and how it stops.

use std::sync::Arc;

use ibid::Ibid;
use ibid::outbox::WorkerError;
use ibid::store::clock::Clock;
use ibid::store::memory::MemoryStore;
use ibid::transaction::DriverTx;

use super::harness::Gate;
use super::*;

#[tokio::test]
async fn a_stopping_worker_finishes_an_effect_enqueued_here() {
    let world = NodeOnSqlite::new().await;
    let gate = Gate::closed("w");
    let hour = Duration::from_secs(3600);
    let worker = world.building(&gate.provider).poll_every(hour).build().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(async move { worker.run_until(async { drop(stopped.await) }).await });
    world.pay("k", [NewEffect::new("charge", "charge", "")]).await;
    gate.until_reached().await;
    stop.send(()).unwrap();
    gate.open();
    running.await.unwrap();
    assert_eq!(world.only_effect().await.state, Done);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effect_of_another_process_is_seen_at_the_next_poll() {
    let world = NodeOnSqlite::new().await;
    let gate = Gate::closed("w");
    let worker = world.building(&gate.provider).poll_every(Duration::from_millis(20)).build().unwrap();
    let running = tokio::spawn(async move { worker.run().await });
    let other = world.another_process().await;
    other.pay("k", [NewEffect::new("charge", "charge", "")]).await;
    gate.until_reached().await;
    // An aborted worker leaves a claim that lapses.
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    assert_eq!(world.only_effect().await.state, Claimed);
}

#[cfg(feature = "sqlx-sqlite")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_goes_through_any_driver() {
    use ibid::transaction::sqlx_sqlite::{SqlxSqlite, SqlxSqliteTx};

    struct Charge;
    impl outbox::EffectHandler<SqlxSqliteTx> for Charge {
        type Payload = outbox::RawPayload;

        async fn call(&self, _: &outbox::EffectCall) -> CallOutcome {
            made_outcome()
        }
        async fn record(
            &self,
            call: &outbox::EffectCall,
            _: &outbox::SettledEffect,
            tx: &mut SqlxSqliteTx,
        ) -> Result<(), outbox::BoxError> {
            let add = sqlx::query("insert into ledger values ('sqlx', ?1, ?2)").bind(&call.name);
            add.bind(&call.payload[..]).execute(tx.conn()).await?;
            Ok(())
        }
    }

    let world = NodeOnSqlite::new().await;
    world.owe("k", NewEffect::new("charge", "charge", "").owing()).await;
    let file = sqlx::sqlite::SqliteConnectOptions::new().filename(world.file());
    let pool = sqlx::SqlitePool::connect_with(file.busy_timeout(Duration::from_secs(30))).await.unwrap();
    let builder = outbox::Worker::builder(world.ibid.clone(), SqlxSqlite(pool)).on("charge", Charge);
    assert_eq!(builder.build().unwrap().run_once().await.unwrap().done, 1);
    assert_eq!((world.record("k").await.state, world.ledger()), (State::Completed, vec!["sqlx".to_owned()]));
}

#[tokio::test]
async fn a_worker_that_can_not_keep_its_promises_is_not_built() {
    let world = NodeOnSqlite::new().await;
    let provider = Provider::new("w", |_| made_outcome());
    let long = world.building(&provider).timeout(Duration::from_secs(60)).build();
    assert!(matches!(long, Err(WorkerError::OutlastsLease { .. })), "{long:?}");
    assert_eq!(world.building(&provider).concurrency(0).build().unwrap_err(), WorkerError::Idle);
    let memory = Ibid::start(Arc::new(MemoryStore::new(Clock::system())), ibid::Settings::default()).await;
    let none =
        ibid::outbox::Worker::builder(memory.unwrap(), world.database()).on("charge", provider).build();
    assert_eq!(none.unwrap_err(), WorkerError::NoSql);
}

#[tokio::test]
async fn takes_go_by_their_indexes() {
    let world = NodeOnSqlite::new().await;
    let plans = [
        (
            include_str!("../../../src/outbox/sql/sqlite/pick_due.sql"),
            "ibid_effect_due (kind=? AND state=? AND due_at<?)",
        ),
        (
            include_str!("../../../src/outbox/sql/sqlite/pick_tenant_due.sql"),
            "ibid_effect_tenant (kind=? AND state=? AND tenant=? AND due_at<?)",
        ),
        (
            include_str!("../../../src/outbox/sql/sqlite/next_tenants.sql"),
            "ibid_effect_tenant (kind=? AND state=? AND tenant>?)",
        ),
        (include_str!("../../../src/outbox/sql/sqlite/take.sql"), "INTEGER PRIMARY KEY (rowid=?)"),
        (
            include_str!("../../../src/outbox/sql/sqlite/unblock.sql"),
            "ibid_effect_order (tenant=? AND aggregate=?)",
        ),
        (include_str!("../../../src/outbox/sql/sqlite/commit.sql"), "INTEGER PRIMARY KEY (rowid=?)"),
    ];
    for (sql, index) in plans {
        let plan = world.plan(sql);
        assert!(plan.contains(index), "{plan}");
        for scan in ["SCAN x", "SCAN e", "SCAN n\n", "SCAN ibid_effect"] {
            assert!(!plan.contains(scan), "{plan}");
        }
    }
}
