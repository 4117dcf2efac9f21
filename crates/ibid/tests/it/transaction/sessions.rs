//! The sessions of the application's database: which transactions are open during an external call, and what a duplicate
//! does to them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ibid::outbox::{
    CallOutcome, CallResult, EffectCall, EffectHandler, RawPayload, VerifyOutcome as Asked, Worker,
};
use ibid::outcome::{Begin, Outcome};
use ibid::phase::{CallVerification, Care, OutsideCallError, PhaseError};
use ibid::transaction::{Database as _, OwnedTx as _, SqlTx};
use ibid_core::effect::NewEffect;
use ibid_core::policy::{OnLapse, Policy};
use ibid_testkit::mariadb::MariaDb;
use ibid_testkit::postgres::Postgres;

use super::harness::{NodeOnDatabase, Tries, answer, is_stored, pay};
use crate::adapters::databases::{MysqlAsyncPools, SqlxMysqlPools, SqlxPostgresPools, TestDatabase};
use crate::adapters::{Adapter, PATIENT, number};

type Sqlx = NodeOnDatabase<SqlxPostgresPools>;

/// Counts transactions that wait for their client: one with a call inside it would be in this state meanwhile.
const OPEN: &str = "select count(*) from pg_stat_activity
                    where datname = current_database() and state like 'idle in transaction%'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_transaction_is_open_while_the_outside_is_called() {
    let policy = Policy::one_transaction().with(|policy| policy.on_lapse = OnLapse::Resume);
    let world = Arc::new(Sqlx::under(policy, TestDatabase::postgres()).await);
    let tx = world.tx().await;
    assert_eq!(world.number(OPEN).await, 1, "one that is open is seen");
    drop(tx);
    while world.number(OPEN).await != 0 {}

    // A handler under the guard: its key is reserved.
    let mut attempt = world.begin("calls").await;
    assert_eq!(world.number(OPEN).await, 0);
    // External calls of phases, after a phase in the database.
    let mut inside = attempt.join_tx(world.tx().await).await.unwrap();
    pay(&mut *inside, "calls", "phase").await.unwrap();
    inside.enqueue(NewEffect::new("charge", "charge", "").verified()).await.unwrap();
    assert_eq!(world.number(OPEN).await, 1);
    assert!(is_stored(&inside.finish(answer(201)).await.unwrap(), 201));
    for care in [Care::Repeatable, Care::Once] {
        let mut attempt = world.begin(&format!("{care:?}")).await;
        let open: Result<i64, PhaseError<&str>> = attempt
            .outside("charge", care, async |_| Ok::<_, OutsideCallError<&str>>(world.number(OPEN).await))
            .await;
        assert_eq!(open.unwrap(), 0, "{care:?}");
        assert!(is_stored(&attempt.finish(answer(201)).await, 201));
    }
    let mut attempt = world.begin("verified").await;
    let uncertain: Result<i64, _> = attempt
        .outside_verified(
            "charge",
            Duration::ZERO,
            async |_| CallVerification::Unsure,
            async |_| Err(OutsideCallError::Uncertain("lost")),
        )
        .await;
    assert!(matches!(uncertain, Err(PhaseError::Uncertain("lost"))));
    let asked: Result<i64, PhaseError<&str>> = attempt
        .outside_verified(
            "charge",
            Duration::ZERO,
            async |_| CallVerification::Made(world.number(OPEN).await),
            async |_| unreachable!("it was made"),
        )
        .await;
    assert_eq!(asked.unwrap(), 0);
    assert!(is_stored(&attempt.finish(answer(201)).await, 201));

    // Calls of a worker, and its lookups.
    let watching = Watching { world: world.clone(), open: Arc::default() };
    let db = SqlxPostgresPools::open(&world.test_db, 2, PATIENT).await;
    let worker = Worker::builder(world.ibid.clone(), db).on("charge", watching.clone()).build().unwrap();
    worker.run_once().await.unwrap();
    world.sql("update ibid_effect set due_at = 1").await;
    assert_eq!(worker.run_once().await.unwrap().done, 1);
    assert_eq!(*watching.open.lock().unwrap(), [0, 0], "a call and a question");
}

/// Counts open transactions during its calls. Its calls stay uncertain until the lookup.
#[derive(Clone)]
struct Watching {
    world: Arc<Sqlx>,
    open: Arc<Mutex<Vec<i64>>>,
}

impl<T: SqlTx> EffectHandler<T> for Watching {
    type Payload = RawPayload;

    async fn call(&self, _: &EffectCall) -> CallOutcome {
        let open = self.world.number(OPEN).await;
        self.open.lock().unwrap().push(open);
        CallOutcome::Uncertain { why: "lost".to_owned() }
    }

    async fn verify(&self, _: &EffectCall) -> Asked {
        let open = self.world.number(OPEN).await;
        self.open.lock().unwrap().push(open);
        Asked::Made(CallResult::default())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_duplicate_violates_a_constraint_in_a_transaction() {
    let server = Postgres::start();
    let world = Arc::new(Sqlx::new(TestDatabase::at(server.url())).await);
    // Duplicates of a request that is still in its transaction at another node, and of one that has ended.
    let first = world.begin_inside("k").await;
    let bob = world.other_node().await;
    let bobs = Arc::new(Tries::at(SqlxPostgresPools::open(&world.test_db, 1, PATIENT).await));
    let second = tokio::spawn({
        let (bob, ask, bobs) = (bob.clone(), world.ask("k"), bobs.clone());
        async move { bob.begin_inside(ask, &*bobs, PATIENT).await }
    });
    bobs.reach(2).await;
    assert!(is_stored(&first.finish(answer(201)).await.unwrap(), 201));
    let cat = world.other_node().await.begin_inside(world.ask("k"), &world.db, PATIENT).await;
    for begun in [second.await.unwrap(), cat] {
        assert!(matches!(begun.unwrap(), Begin::Skip(Outcome::Completed(_))));
    }
    assert!(!server.log().contains("violates unique constraint"), "{}", server.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_waits_for_locks_as_before_the_reservation_on_mysql() {
    let server = MariaDb::start_with(&[("innodb_lock_wait_timeout", "7"), ("wait_timeout", "77")]);
    keeps_its_waits::<SqlxMysqlPools>(server.url()).await;
    keeps_its_waits::<MysqlAsyncPools>(server.url_for(&server.create_database())).await;
}

async fn keeps_its_waits<A: Adapter>(url: String) {
    const LOCK_WAIT: &str = "select @@session.innodb_lock_wait_timeout";
    let world = NodeOnDatabase::<A>::new(TestDatabase::at(url)).await;
    let db = A::open(&world.test_db, 1, PATIENT).await;
    let inside = world.ibid.begin_inside(world.ask("k"), &db, PATIENT).await.unwrap();
    let Begin::Run(mut inside) = inside else { panic!("{inside:?}") };
    assert_eq!(number(&mut **inside, LOCK_WAIT).await, 7, "the reservation's own limit is over");
    assert!(is_stored(&inside.finish(answer(201)).await.unwrap(), 201));
    let mut tx = db.begin().await.unwrap();
    assert_eq!(number(&mut tx, LOCK_WAIT).await, 7);
    assert_eq!(number(&mut tx, "select @@session.wait_timeout").await, 77);
    tx.rollback().await.unwrap();
}

/// The server would open a transaction by itself after the one that it ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_without_autocommit_is_refused_on_mysql() {
    refuses_a_session_without_autocommit::<SqlxMysqlPools>().await;
    refuses_a_session_without_autocommit::<MysqlAsyncPools>().await;
}

async fn refuses_a_session_without_autocommit<A: Adapter>() {
    let world = NodeOnDatabase::<A>::new(TestDatabase::mariadb()).await;
    let mut attempt = world.begin("k").await;
    let mut tx = world.db.begin().await.unwrap();
    A::by_caller(&mut tx, "set autocommit = 0").await.unwrap();
    let refused = attempt.join_tx(tx).await.unwrap_err();
    assert!(format!("{refused:?}").contains("`autocommit` is off"), "{refused:?}");
}
