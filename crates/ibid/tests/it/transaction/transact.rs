//! `transact` in real axum handlers, by two drivers and in both modes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, Request};
use axum::routing::{MethodRouter, post};
use axum::{Json, Router};
use ibid::http::{
    HeldAttempt, IdempotencyLayer, IdempotencyService, ReservedBy, Routes, Rule, TenantSource,
    UnreservedRequest,
};
use ibid::transaction::{Completion, IsolatedDatabase, Isolation, TxError, TxHandle, TxResult};
use ibid_core::effect::NewEffect;
use ibid_core::response::Response;
use serde::{Deserialize, Serialize};
use tower::{Layer, ServiceExt};

use super::harness::NodeOnDatabase;
use super::http_layer::policy;
use crate::adapters::Adapter;
use crate::adapters::databases::{
    MysqlAsyncPools, RusqliteConnections, SqlxMysqlPools, SqlxPostgresPools, TestDatabase, TokioPostgresPools,
};

#[derive(Clone, Serialize, Deserialize)]
struct Payment {
    key: String,
    /// Response that the handler returns.
    status: u16,
}

/// The state of the handlers.
struct Shop<A: Adapter> {
    world: NodeOnDatabase<A>,
    db: IsolatedDatabase<A::Db>,
    runs: AtomicU32,
    /// Number of the next runs that meet a concurrent update.
    conflicts: AtomicU32,
}

type Shared<A> = State<Arc<Shop<A>>>;

impl<A: Adapter> Shop<A> {
    async fn new(test_db: TestDatabase) -> Arc<Shop<A>> {
        let world = NodeOnDatabase::<A>::under(policy(), test_db).await;
        world.change_schema("create table account (id int8 primary key, n int8 not null)").await;
        world.sql("insert into account values (1, 0)").await;
        let db = IsolatedDatabase::new(
            A::open(&world.test_db, 4, crate::adapters::PATIENT).await,
            Isolation::RepeatableRead,
        );
        Arc::new(Shop { world, db, runs: AtomicU32::new(0), conflicts: AtomicU32::new(0) })
    }

    /// Counts a run whose snapshot is taken, and updates the row that it is about to update.
    async fn run(&self) {
        self.runs.fetch_add(1, Ordering::SeqCst);
        let left =
            self.conflicts.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if left.is_ok() {
            self.world.sql("update account set n = n + 1 where id = 1").await;
        }
    }
}

fn charge(payment: &Payment) -> Result<NewEffect, serde_json::Error> {
    Ok(NewEffect::json("charge", payment)?.repeatable())
}

fn respond(payment: &Payment) -> Result<Response, TxError> {
    match payment.status {
        0 => Err(TxError::work("no such card")),
        status => Ok(Response::json(status, payment)),
    }
}

mod by_sqlx {
    use super::*;

    pub(super) async fn pay_reserved(
        State(shop): Shared<SqlxPostgresPools>,
        mut attempt: HeldAttempt,
        Json(payment): Json<Payment>,
    ) -> TxResult {
        attempt
            .transact(&shop.db, async |mut tx| {
                let insert = sqlx::query("insert into payment (key, by_whom) values ($1, 'sqlx')");
                insert.bind(&payment.key).execute(tx.conn()).await?;
                tx.enqueue(charge(&payment)?).await?;
                shop.run().await;
                sqlx::query("update account set n = n + 1 where id = 1").execute(tx.conn()).await?;
                respond(&payment)
            })
            .await
    }

    pub(super) async fn pay_unreserved(
        State(shop): Shared<SqlxPostgresPools>,
        request: UnreservedRequest,
        Json(payment): Json<Payment>,
    ) -> TxResult {
        request
            .transact(&shop.db, async |mut tx| {
                let insert = sqlx::query("insert into payment (key, by_whom) values ($1, 'sqlx')");
                insert.bind(&payment.key).execute(tx.conn()).await?;
                tx.enqueue(charge(&payment)?).await?;
                shop.run().await;
                sqlx::query("update account set n = n + 1 where id = 1").execute(tx.conn()).await?;
                respond(&payment)
            })
            .await
    }
}

mod by_tokio_postgres {
    use super::*;

    pub(super) async fn pay_reserved(
        State(shop): Shared<TokioPostgresPools>,
        mut attempt: HeldAttempt,
        Json(payment): Json<Payment>,
    ) -> TxResult {
        attempt
            .transact(&shop.db, async |mut tx| {
                let insert = "insert into payment (key, by_whom) values ($1, 'tokio-postgres')";
                tx.conn().execute(insert, &[&payment.key]).await?;
                tx.enqueue(charge(&payment)?).await?;
                shop.run().await;
                tx.conn().execute("update account set n = n + 1 where id = 1", &[]).await?;
                respond(&payment)
            })
            .await
    }

    pub(super) async fn pay_unreserved(
        State(shop): Shared<TokioPostgresPools>,
        request: UnreservedRequest,
        Json(payment): Json<Payment>,
    ) -> TxResult {
        request
            .transact(&shop.db, async |mut tx| {
                let insert = "insert into payment (key, by_whom) values ($1, 'tokio-postgres')";
                tx.conn().execute(insert, &[&payment.key]).await?;
                tx.enqueue(charge(&payment)?).await?;
                shop.run().await;
                tx.conn().execute("update account set n = n + 1 where id = 1", &[]).await?;
                respond(&payment)
            })
            .await
    }
}

/// MariaDB refuses to update a row that changed since the snapshot only with this setting, which newer versions turn on.
const TAKE_SNAPSHOT: [&str; 2] =
    ["set session innodb_snapshot_isolation = on", "select n from account where id = 1"];

mod by_sqlx_on_mysql {
    use super::*;

    pub(super) async fn pay_reserved(
        State(shop): Shared<SqlxMysqlPools>,
        mut attempt: HeldAttempt,
        Json(payment): Json<Payment>,
    ) -> TxResult {
        attempt
            .transact(&shop.db, async |mut tx| {
                for statement in TAKE_SNAPSHOT {
                    sqlx::query(statement).execute(tx.conn()).await?;
                }
                let insert = sqlx::query("insert into payment (`key`, by_whom) values (?, 'sqlx')");
                insert.bind(&payment.key).execute(tx.conn()).await?;
                tx.enqueue(charge(&payment)?).await?;
                shop.run().await;
                sqlx::query("update account set n = n + 1 where id = 1").execute(tx.conn()).await?;
                respond(&payment)
            })
            .await
    }

    pub(super) async fn pay_unreserved(
        State(shop): Shared<SqlxMysqlPools>,
        request: UnreservedRequest,
        Json(payment): Json<Payment>,
    ) -> TxResult {
        request
            .transact(&shop.db, async |mut tx| {
                for statement in TAKE_SNAPSHOT {
                    sqlx::query(statement).execute(tx.conn()).await?;
                }
                let insert = sqlx::query("insert into payment (`key`, by_whom) values (?, 'sqlx')");
                insert.bind(&payment.key).execute(tx.conn()).await?;
                tx.enqueue(charge(&payment)?).await?;
                shop.run().await;
                sqlx::query("update account set n = n + 1 where id = 1").execute(tx.conn()).await?;
                respond(&payment)
            })
            .await
    }
}

mod by_mysql_async {
    use ::mysql_async::prelude::Queryable;

    use super::*;

    pub(super) async fn pay_reserved(
        State(shop): Shared<MysqlAsyncPools>,
        mut attempt: HeldAttempt,
        Json(payment): Json<Payment>,
    ) -> TxResult {
        attempt
            .transact(&shop.db, async |mut tx| {
                for statement in TAKE_SNAPSHOT {
                    tx.conn().query_drop(statement).await?;
                }
                let insert = "insert into payment (`key`, by_whom) values (?, 'mysql_async')";
                tx.conn().exec_drop(insert, (&payment.key,)).await?;
                tx.enqueue(charge(&payment)?).await?;
                shop.run().await;
                tx.conn().query_drop("update account set n = n + 1 where id = 1").await?;
                respond(&payment)
            })
            .await
    }

    pub(super) async fn pay_unreserved(
        State(shop): Shared<MysqlAsyncPools>,
        request: UnreservedRequest,
        Json(payment): Json<Payment>,
    ) -> TxResult {
        request
            .transact(&shop.db, async |mut tx| {
                for statement in TAKE_SNAPSHOT {
                    tx.conn().query_drop(statement).await?;
                }
                let insert = "insert into payment (`key`, by_whom) values (?, 'mysql_async')";
                tx.conn().exec_drop(insert, (&payment.key,)).await?;
                tx.enqueue(charge(&payment)?).await?;
                shop.run().await;
                tx.conn().query_drop("update account set n = n + 1 where id = 1").await?;
                respond(&payment)
            })
            .await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sqlx_handler_runs_its_transaction_again() {
    every_rule(
        Shop::<SqlxPostgresPools>::new(TestDatabase::postgres()).await,
        post(by_sqlx::pay_reserved),
        post(by_sqlx::pay_unreserved),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tokio_postgres_handler_runs_its_transaction_again() {
    let shop = Shop::<TokioPostgresPools>::new(TestDatabase::postgres()).await;
    every_rule(shop, post(by_tokio_postgres::pay_reserved), post(by_tokio_postgres::pay_unreserved)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sqlx_handler_on_mysql_runs_its_transaction_again() {
    let shop = Shop::<SqlxMysqlPools>::new(TestDatabase::mariadb()).await;
    every_rule(shop, post(by_sqlx_on_mysql::pay_reserved), post(by_sqlx_on_mysql::pay_unreserved)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mysql_async_handler_runs_its_transaction_again() {
    let shop = Shop::<MysqlAsyncPools>::new(TestDatabase::mariadb()).await;
    every_rule(shop, post(by_mysql_async::pay_reserved), post(by_mysql_async::pay_unreserved)).await;
}

async fn every_rule<A: Adapter>(
    shop: Arc<Shop<A>>,
    held: MethodRouter<Arc<Shop<A>>>,
    unreserved: MethodRouter<Arc<Shop<A>>>,
) {
    let router = Router::new().route("/held", held).route("/unreserved", unreserved).with_state(shop.clone());
    let rule = Rule::new(vec![Method::POST], "/unreserved", Some(policy()))
        .with(|rule| rule.reserved_by = ReservedBy::Handler);
    let routes = Routes::new(policy(), vec![rule]).unwrap();
    let app =
        IdempotencyLayer::with_routes(shop.world.ibid.clone(), TenantSource::only(), routes).layer(router);
    for mode in ["held", "unreserved"] {
        a_conflict_costs_another_run(&shop, &app, mode).await;
        runs_are_bounded(&shop, &app, mode).await;
        a_refusal_is_stored_without_the_work(&shop, &app, mode).await;
        a_failure_reaches_the_client_and_frees_the_key(&shop, &app, mode).await;
    }
}

async fn a_conflict_costs_another_run<A: Adapter>(
    shop: &Shop<A>,
    app: &IdempotencyService<Router>,
    mode: &str,
) {
    let payment = Payment { key: format!("{mode}-conflict"), status: 201 };
    shop.conflicts.store(2, Ordering::SeqCst);
    shop.runs.store(0, Ordering::SeqCst);
    let first = send(app, mode, &payment).await;
    assert_eq!((first.0, &first.2), (201, &serde_json::to_string(&payment).unwrap()), "{mode}");
    assert_eq!(shop.runs.load(Ordering::SeqCst), 3, "{mode}");
    assert_eq!(shop.world.payments(&payment.key).await, 1, "{mode}");
    let replay = send(app, mode, &payment).await;
    assert_eq!((replay.0, replay.2), (first.0, first.2), "{mode}");
    assert_eq!(replay.1["idempotent-replayed"], "true", "{mode}");
    assert_eq!(shop.runs.load(Ordering::SeqCst), 3, "{mode}");
}

async fn runs_are_bounded<A: Adapter>(shop: &Shop<A>, app: &IdempotencyService<Router>, mode: &str) {
    let payment = Payment { key: format!("{mode}-bound"), status: 201 };
    shop.conflicts.store(u32::MAX, Ordering::SeqCst);
    shop.runs.store(0, Ordering::SeqCst);
    let (status, headers, _) = send(app, mode, &payment).await;
    assert_eq!((status, &headers["retry-after"]), (503, &"1".parse().unwrap()), "{mode}");
    assert_eq!(shop.runs.load(Ordering::SeqCst), 8, "{mode}");
    assert_eq!(shop.world.payments(&payment.key).await, 0, "{mode}");
    shop.conflicts.store(0, Ordering::SeqCst);
    assert_eq!(send(app, mode, &payment).await.0, 201, "{mode}: the key was released");
    assert_eq!(shop.world.payments(&payment.key).await, 1, "{mode}");
}

async fn a_refusal_is_stored_without_the_work<A: Adapter>(
    shop: &Shop<A>,
    app: &IdempotencyService<Router>,
    mode: &str,
) {
    let payment = Payment { key: format!("{mode}-refusal"), status: 402 };
    let first = send(app, mode, &payment).await;
    assert_eq!((first.0, &first.2), (402, &serde_json::to_string(&payment).unwrap()), "{mode}");
    assert_eq!(shop.world.payments(&payment.key).await, 0, "{mode}");
    let replay = send(app, mode, &payment).await;
    assert_eq!((replay.0, replay.2), (first.0, first.2), "{mode}");
    assert_eq!(replay.1["idempotent-replayed"], "true", "{mode}");
}

async fn a_failure_reaches_the_client_and_frees_the_key<A: Adapter>(
    shop: &Shop<A>,
    app: &IdempotencyService<Router>,
    mode: &str,
) {
    // A response that is not stored, and an error of the work's own.
    for (status, sent) in [(503, 503), (0, 500)] {
        let payment = Payment { key: format!("{mode}-failure-{status}"), status };
        for _ in 0..2 {
            let (got, headers, body) = send(app, mode, &payment).await;
            assert_eq!(got, sent, "{mode} {status}");
            assert!(!headers.contains_key("idempotent-replayed"), "{mode} {status}");
            if status == 503 {
                assert_eq!(body, serde_json::to_string(&payment).unwrap(), "{mode}");
            }
            assert_eq!(shop.world.payments(&payment.key).await, 0, "{mode} {status}");
        }
    }
}

/// Status, headers and body of the response.
async fn send(app: &IdempotencyService<Router>, mode: &str, payment: &Payment) -> (u16, HeaderMap, String) {
    let request = Request::post(format!("/{mode}"))
        .header("idempotency-key", &payment.key)
        .header("content-type", "application/json")
        .body(Body::from(serde_json::to_vec(payment).unwrap()));
    let (head, body) = app.clone().oneshot(request.unwrap()).await.unwrap().into_parts();
    let body = to_bytes(Body::new(body), 1 << 20).await.unwrap();
    (head.status.as_u16(), head.headers, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn an_owed_response_leaves_the_record_pending() {
    let world = NodeOnDatabase::<RusqliteConnections>::new(TestDatabase::sqlite()).await;
    let mut attempt = world.begin("owed").await;
    let done = attempt.transact(&world.db, async |mut tx| {
        tx.enqueue(NewEffect::new("charge", "charge", "").owing()).await?;
        Ok(Completion::Owed)
    });
    assert!(done.await.unwrap().response().is_none());
    assert!(matches!(attempt.outcome(), Some(ibid::outcome::Outcome::AwaitingEffect)));
    assert_eq!(world.effects("owed").await.len(), 1);
}

#[tokio::test]
async fn a_handle_that_outlives_its_work_commits_nothing() {
    let world = NodeOnDatabase::<RusqliteConnections>::new(TestDatabase::sqlite()).await;
    let mut attempt = world.begin("elsewhere").await;
    let elsewhere = std::sync::Mutex::new(None);
    let done = attempt.transact(&world.db, async |mut tx: TxHandle<_>| {
        tx.conn().execute("insert into payment values ('elsewhere', 'ann')", [])?;
        *elsewhere.lock().unwrap() = Some(tx);
        Ok(Response::json(201, &()))
    });
    assert!(matches!(done.await, Err(TxError::Ended)));
    drop(elsewhere.into_inner().unwrap());
    world.nothing_of("elsewhere").await;
    let again = attempt.transact(&world.db, async |_| Ok(Response::json(201, &())));
    assert_eq!(again.await.unwrap().response().unwrap().status, 201);
}
