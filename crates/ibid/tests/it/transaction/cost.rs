//! Cost of each mode on PostgreSQL: the numbers of the documentation.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use ibid::outcome::Begin;
use ibid::phase::PhaseError;
use ibid::transaction::{Database, OwnedTx, SqlError, SqlTx, TxError};
use ibid_core::sql::{Dialect, Param, SqlRow, Statement};
use ibid_core::store::BoxFuture;
use ibid_testkit::postgres::Postgres;

use super::harness::{NodeOnDatabase, answer, is_stored, pay, until};
use crate::adapters::databases::{TestDatabase, TokioPostgresPools};
use crate::adapters::{Adapter, PATIENT};

#[derive(Clone, Copy, Debug)]
enum Mode {
    /// Business row alone, without a key: the application's own cost.
    Bare,
    /// Business row with a key around it, as in the layer and the gateway.
    Around,
    ReserveThenFinish,
    AllInside,
    /// The business row in one phase.
    Phase,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_mode_costs_what_the_documentation_says() {
    // A separate server without autovacuum: no other session commits.
    let server = Postgres::start_with(&[("autovacuum", "off")]);
    let bare = cost(&server, Mode::Bare).await;
    assert_eq!(bare, Cost { commits: 1, round_trips: 3 }, "begin, insert, commit");
    let around = cost(&server, Mode::Around).await;
    assert_eq!(around, Cost { commits: 1 + 2, round_trips: bare.round_trips });
    // The reservation, one commit and one round trip, is on the store's connection and not counted for the caller. Added
    // are lock and update; a small response is in the row.
    let first = cost(&server, Mode::ReserveThenFinish).await;
    assert_eq!(first, Cost { commits: 2, round_trips: bare.round_trips + 2 });
    // Added are: set the lock timeout, reserve, reset the timeout, a savepoint and update.
    let second = cost(&server, Mode::AllInside).await;
    assert_eq!(second, Cost { commits: 1, round_trips: bare.round_trips + 5 });
    // Reserved and finished as in `Around`; added are lock, recovery point and result.
    let phase = cost(&server, Mode::Phase).await;
    assert_eq!(phase, Cost { commits: 2 + 1, round_trips: bare.round_trips + 3 });
}

/// Cost of one request.
#[derive(Debug, PartialEq, Eq)]
struct Cost {
    /// Commits of all sessions.
    commits: i64,
    /// Round trips on the caller's connection.
    round_trips: i64,
}

/// Returns the cost per request, from the difference of two runs: one-time costs cancel out.
async fn cost(server: &Postgres, mode: Mode) -> Cost {
    let (few, many) = (total(server, mode, 3).await, total(server, mode, 13).await);
    let per_request = |more: i64| {
        assert_eq!(more % 10, 0, "{mode:?}: the same for each: {more}");
        more / 10
    };
    Cost {
        commits: per_request(many.commits - few.commits),
        round_trips: per_request(many.round_trips - few.round_trips),
    }
}

async fn total(server: &Postgres, mode: Mode, requests: i64) -> Cost {
    let database = server.create_database();
    let world = NodeOnDatabase::<TokioPostgresPools>::new(TestDatabase::at(server.url_for(&database))).await;
    let sent = Arc::new(AtomicI64::new(0));
    let pool = TokioPostgresPools::open(&world.test_db, 1, PATIENT).await;
    let db = CountingDatabase { inner: pool, sent: sent.clone() };
    for n in 0..requests {
        let key = format!("k{n}");
        match mode {
            Mode::Bare => {
                let mut tx = db.begin().await.unwrap();
                pay(&mut tx, &key, "x").await.unwrap();
                tx.commit().await.unwrap();
            }
            Mode::Around => {
                let attempt = world.begin(&key).await;
                let mut tx = db.begin().await.unwrap();
                pay(&mut tx, &key, "x").await.unwrap();
                tx.commit().await.unwrap();
                assert!(is_stored(&attempt.finish(answer(201)).await, 201));
            }
            Mode::ReserveThenFinish => {
                let mut attempt = world.begin(&key).await;
                let mut inside = attempt.join_tx(db.begin().await.unwrap()).await.unwrap();
                pay(&mut *inside, &key, "x").await.unwrap();
                assert!(is_stored(&inside.finish(answer(201)).await.unwrap(), 201));
            }
            Mode::AllInside => {
                let outcome = world.ibid.begin_inside(world.ask(&key), &db, PATIENT).await.unwrap();
                let Begin::Run(mut inside) = outcome else { panic!("{outcome:?}") };
                pay(&mut **inside, &key, "x").await.unwrap();
                assert!(is_stored(&inside.finish(answer(201)).await.unwrap(), 201));
            }
            Mode::Phase => {
                let (mut attempt, key) = (world.begin(&key).await, key.as_str());
                let paid: Result<(), PhaseError<TxError>> = attempt
                    .phase("paid", &db, async |mut inside| Ok(pay(&mut *inside, key, "x").await?))
                    .await;
                paid.unwrap();
                assert!(is_stored(&attempt.finish(answer(201)).await, 201));
            }
        }
    }
    world.ibid.settled().await;
    drop((world, db));
    // A session reports its counts when it ends.
    let gone = format!("select count(*) from pg_stat_activity where datname = '{database}'");
    until(async || server.sql("postgres", &gone) == "0").await;
    let commits = format!("select xact_commit from pg_stat_database where datname = '{database}'");
    let commits = server.sql("postgres", &commits).parse().unwrap();
    Cost { commits, round_trips: sent.load(Ordering::SeqCst) }
}

/// A database that counts round trips.
struct CountingDatabase<D> {
    inner: D,
    sent: Arc<AtomicI64>,
}

struct CountingTx<T> {
    inner: T,
    sent: Arc<AtomicI64>,
}

impl<D: Database> Database for CountingDatabase<D> {
    type Tx = CountingTx<D::Tx>;

    async fn begin(&self) -> Result<CountingTx<D::Tx>, SqlError> {
        self.sent.fetch_add(1, Ordering::SeqCst);
        Ok(CountingTx { inner: self.inner.begin().await?, sent: self.sent.clone() })
    }
}

impl<T: SqlTx> SqlTx for CountingTx<T> {
    fn dialect(&self) -> Dialect {
        self.inner.dialect()
    }

    fn execute<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<(), SqlError>> {
        self.sent.fetch_add(1, Ordering::SeqCst);
        self.inner.execute(statement, params)
    }

    fn query<'a>(
        &'a mut self,
        statement: &'static Statement,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<Vec<SqlRow>, SqlError>> {
        self.sent.fetch_add(1, Ordering::SeqCst);
        self.inner.query(statement, params)
    }
}

impl<T: OwnedTx> OwnedTx for CountingTx<T> {
    async fn commit(self) -> Result<(), SqlError> {
        self.sent.fetch_add(1, Ordering::SeqCst);
        self.inner.commit().await
    }

    async fn rollback(self) -> Result<(), SqlError> {
        self.inner.rollback().await
    }
}
