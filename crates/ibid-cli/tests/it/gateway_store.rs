//! Failures of the store: before a request, nothing is delivered; after it, the response is not lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ibid_testkit::client::{TestRequest, TestResponse};
use ibid_testkit::mariadb::MariaDbSession;
use ibid_testkit::upstream::Upstream;
use rusqlite::Connection;
use tokio_postgres::NoTls;

use crate::harness::{Gateway, On, Setup, assert_problem, is_replay, on_every_store, until_async};
use crate::mount::Tmpfs;

fn pay(key: &str) -> TestRequest {
    TestRequest::post("/payments").key(key).body("five")
}

/// The write lock of the store, held until dropped, as a stalled disk, a careless backup or a migration would hold it.
pub(crate) enum WriteLock {
    File(Connection),
    /// A table lock that a transaction holds. It ends with the connection.
    Table(#[expect(dead_code, reason = "it is only dropped")] tokio_postgres::Client),
    /// A table lock that a session holds, as a backup's.
    Session(#[expect(dead_code, reason = "it is only dropped")] MariaDbSession),
}

impl WriteLock {
    pub(crate) async fn on(setup: &Setup) -> WriteLock {
        if setup.server().is_some() {
            let client = stranger(&setup.store()).await.expect("a connection");
            let lock = "begin; lock table ibid_record in exclusive mode";
            client.batch_execute(lock).await.expect("the lock can be had");
            return WriteLock::Table(client);
        }
        if let Some(server) = setup.mariadb() {
            return WriteLock::Session(server.session(server.database(), "lock tables ibid_record read"));
        }
        let connection = Connection::open(setup.database()).expect("the file is there");
        connection.busy_timeout(Duration::from_secs(10)).expect("a timeout can be set");
        connection.execute_batch("begin immediate").expect("the lock can be had");
        WriteLock::File(connection)
    }
}

impl Drop for WriteLock {
    fn drop(&mut self) {
        if let WriteLock::File(connection) = self {
            connection.execute_batch("rollback").expect("the lock can be given back");
        }
    }
}

/// Opens a connection to the store's server that is not the gateway's.
pub(crate) async fn stranger(url: &str) -> Result<tokio_postgres::Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

on_every_store!(a_response_the_store_missed_is_marked_and_stored_later and mysql);
async fn a_response_the_store_missed_is_marked_and_stored_later(on: On) {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url()).on(on).config("[store]\nfinish_wait = \"500ms\"\n");
    let gateway = setup.start();
    let request = pay("lost").fixture("gate;status=201;body=paid");
    let mut client = gateway.client().await;
    client.send(&request).await;
    upstream.until(|tally| tally.held == 1).await;
    let lock = WriteLock::on(&setup).await;
    upstream.gate().open();
    let answer = client.read().await.expect("the real answer");
    assert_eq!((answer.status, answer.text().as_str()), (201, "paid"));
    assert_eq!(answer.header("idempotency-stored").as_deref(), Some("false"), "{answer:?}");
    assert_eq!(answer.header("idempotency-expires"), None, "no promise is made: {answer:?}");
    drop(lock);
    let retry = gateway.retry_until_settled(&request).await;
    assert_eq!((retry.status, retry.text().as_str(), is_replay(&retry)), (201, "paid", true));
    assert_eq!(retry.header("idempotency-stored"), None);
    assert_eq!(upstream.deliveries_begun(), 1);
    assert_eq!(gateway.metric("ibid_answers_not_stored_total", "").await, 1.0);
}

on_every_store!(a_finish_delayed_past_its_lease_settles_the_record and mysql);
async fn a_finish_delayed_past_its_lease_settles_the_record(on: On) {
    let upstream = Upstream::start().await;
    let config =
        "[store]\nfinish_wait = \"200ms\"\n[defaults]\nlease = \"1s\"\n[upkeep]\nsweep_every = \"100ms\"\n";
    let setup = Setup::before(&upstream.url()).on(on).config(config);
    let (gateway, other) = (setup.start(), setup.start());
    let request = pay("lapsed").fixture("gate;status=201;body=paid");
    let mut client = gateway.client().await;
    client.send(&request).await;
    upstream.until(|tally| tally.held == 1).await;
    let lock = WriteLock::on(&setup).await;
    upstream.gate().open();
    let answer = client.read().await.expect("the real answer");
    assert_eq!(answer.header("idempotency-stored").as_deref(), Some("false"), "{answer:?}");
    // Hold the lock until the lease has lapsed by the store's clock, so that the other gateway's sweep may come first.
    let due = setup.number("select due_at from ibid_record");
    let lapsed = async || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        (now.as_micros() as i64 > due).then_some(())
    };
    until_async("the lease has lapsed", lapsed).await;
    drop(lock);
    for gateway in [&other, &gateway] {
        let retry = settled_as_replay(gateway, &request).await;
        assert_eq!((retry.status, retry.text().as_str()), (201, "paid"), "{retry:?}");
    }
    assert_eq!(upstream.deliveries_begun(), 1);
}

/// Like [`Gateway::retry_until_settled`], but also waits while `outcome-unknown` precedes the queued finish.
async fn settled_as_replay(gateway: &Gateway, request: &TestRequest) -> TestResponse {
    until_async("the queued finish comes", async || Some(gateway.call(request).await).filter(is_replay)).await
}

on_every_store!(while_no_key_can_be_reserved_nothing_is_delivered and mysql);
async fn while_no_key_can_be_reserved_nothing_is_delivered(on: On) {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url()).on(on).config("[store]\nbegin_timeout = \"300ms\"\n");
    let gateway = setup.start();
    assert_eq!(gateway.retry_until_settled(&pay("before").fixture("body=first")).await.text(), "first");
    let lock = WriteLock::on(&setup).await;
    for n in 0..8 {
        let refused = gateway.call(&pay(&format!("locked-{n}"))).await;
        assert_problem(&refused, 503, "store-unavailable");
        assert!(refused.header("retry-after").is_some(), "{refused:?}");
    }
    // A stored response needs no write.
    assert!(is_replay(&gateway.call(&pay("before")).await));
    assert_eq!(upstream.deliveries_begun(), 1);
    drop(lock);
    for n in 0..8 {
        let key = format!("locked-{n}");
        let answer = gateway.retry_until_settled(&pay(&key)).await;
        assert_eq!((answer.status, is_replay(&answer)), (200, false), "{answer:?}");
        assert!(is_replay(&gateway.call(&pay(&key)).await));
        assert_eq!(upstream.executions(&key), 1);
    }
}

/// A server refuses connections while a request is to begin and while another one is to finish. `take_connections` also ends those
/// of the gateways, and they may have new ones once its result is dropped.
pub(crate) async fn without_connections_nothing_is_lost<T>(
    setup: Setup,
    upstream: &Upstream,
    take_connections: impl AsyncFnOnce() -> T,
) {
    let paid = |key: &str| pay(key).fixture("status=201;body=paid");
    let patient = setup.clone().config("[store]\nfinish_wait = \"500ms\"\n").start();
    let hasty = setup.config("[store]\nbegin_timeout = \"500ms\"\n").start();
    assert_eq!(hasty.retry_until_settled(&paid("before")).await.status, 201);
    let gated = pay("held").fixture("gate;status=201;body=paid");
    let mut client = patient.client().await;
    client.send(&gated).await;
    upstream.until(|tally| tally.held == 1).await;

    let taken = take_connections().await;
    for n in 0..8 {
        let refused = hasty.call(&paid(&format!("none-{n}"))).await;
        assert_problem(&refused, 503, "store-unavailable");
        assert!(refused.header("retry-after").is_some(), "{refused:?}");
    }
    upstream.gate().open();
    let answer = client.read().await.expect("the real answer");
    assert_eq!((answer.status, answer.text().as_str()), (201, "paid"));
    assert_eq!(answer.header("idempotency-stored").as_deref(), Some("false"), "{answer:?}");
    assert!(is_replay(&hasty.call(&paid("before")).await), "what is known needs no connection");
    assert_eq!(upstream.deliveries_begun(), 2, "what was refused was not delivered");
    assert!(hasty.metric("ibid_store_errors_total", "").await > 0.0, "the server refused them");

    drop(taken);
    for n in 0..8 {
        let key = format!("none-{n}");
        let answer = hasty.retry_until_settled(&paid(&key)).await;
        assert_eq!((answer.status, is_replay(&answer)), (201, false), "{answer:?}");
        assert!(is_replay(&patient.retry_until_settled(&paid(&key)).await));
        assert_eq!(upstream.executions(&key), 1);
    }
    for gateway in [&hasty, &patient] {
        let retry = gateway.retry_until_settled(&gated).await;
        assert_eq!((retry.status, retry.text().as_str(), is_replay(&retry)), (201, "paid", true));
    }
    assert_eq!(upstream.executions("held"), 1);
}

#[tokio::test]
async fn the_gateway_recovers_from_a_full_disk() {
    let disk = Tmpfs::mount("4m");
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url())
        .database_at(&disk.path().join("ibid.db"))
        .config("[store]\nbegin_timeout = \"500ms\"\n");
    let gateway = setup.start();
    assert_eq!(gateway.retry_until_settled(&pay("before").fixture("body=first")).await.text(), "first");
    let ballast = disk.fill();
    // The log has some room left in its last page; after that, no key can be reserved.
    let mut delivered = 1;
    let refused = until_async("the disk is full for the store too", async || {
        let answer = gateway.call(&pay(&format!("room-{delivered}")).fixture("bytes=4000")).await;
        if answer.status == 200 {
            delivered += 1;
        }
        (answer.status != 200).then_some(answer)
    })
    .await;
    assert_problem(&refused, 503, "store-unavailable");
    for n in 0..8 {
        assert_problem(&gateway.call(&pay(&format!("full-{n}"))).await, 503, "store-unavailable");
    }
    assert_eq!(upstream.total(), delivered, "what was refused was not delivered");
    assert!(is_replay(&gateway.call(&pay("before")).await), "what is stored is still replayed");
    drop(ballast);
    for n in 0..8 {
        let key = format!("full-{n}");
        let answer = gateway.retry_until_settled(&pay(&key)).await;
        assert_eq!((answer.status, is_replay(&answer)), (200, false), "{answer:?}");
        assert!(is_replay(&gateway.call(&pay(&key)).await));
        assert_eq!(upstream.executions(&key), 1);
    }
}

#[tokio::test]
async fn a_disk_that_fills_up_behind_a_delivery_loses_no_answer() {
    let disk = Tmpfs::mount("4m");
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url())
        .database_at(&disk.path().join("ibid.db"))
        .config("[store]\nfinish_wait = \"500ms\"\n");
    let gateway = setup.start();
    let request = pay("filled").fixture("gate;status=201;bytes=500000");
    let mut client = gateway.client().await;
    client.send(&request).await;
    upstream.until(|tally| tally.held == 1).await;
    let ballast = disk.fill();
    upstream.gate().open();
    let answer = client.read().await.expect("the real answer");
    assert_eq!((answer.status, answer.body.len()), (201, 500_000));
    assert_eq!(answer.header("idempotency-stored").as_deref(), Some("false"), "{:?}", answer.headers);
    drop(ballast);
    let retry = gateway.retry_until_settled(&request).await;
    assert_eq!((retry.status, is_replay(&retry)), (201, true), "{:?}", retry.headers);
    assert!(retry.body == answer.body);
    assert_eq!(upstream.deliveries_begun(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_busy_gateways_on_one_file_let_each_other_write() {
    let upstream = Upstream::start().await;
    // The test measures the wait of one request in responses that others got meanwhile.
    let setup = Setup::before(&upstream.url());
    let gateways = [setup.start(), setup.start()];
    let answers = Arc::new(AtomicUsize::new(0));
    let mut clients = tokio::task::JoinSet::new();
    for n in 0..32 {
        let mut client = gateways[n % 2].client().await;
        let answers = Arc::clone(&answers);
        clients.spawn(async move {
            let mut most = 0;
            for k in 0..60 {
                let before = answers.load(Ordering::Relaxed);
                let answer = client.call(&pay(&format!("busy-{n}-{k}"))).await;
                assert_eq!(answer.status, 200, "{}", answer.text());
                most = most.max(answers.fetch_add(1, Ordering::Relaxed) - before);
            }
            most
        });
    }
    let overtaken = clients.join_all().await.into_iter().max().expect("32 clients");
    assert!(overtaken < 32 * 60 / 4, "a client waited while {overtaken} others got their responses");
    assert_eq!((upstream.total(), upstream.tally().repeated_keys().len()), (32 * 60, 0));
}

on_every_store!(a_gateway_starts_while_another_process_holds_the_write_lock and mysql);
async fn a_gateway_starts_while_another_process_holds_the_write_lock(on: On) {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url()).on(on);
    let first = setup.start();
    assert_eq!(first.call(&pay("before")).await.status, 200);
    let lock = WriteLock::on(&setup).await;
    let second = setup.start();
    assert_eq!(second.page("/healthz").await.status, 200);
    drop(lock);
    // Not before: while the lock is held on SQLite, no key can be reserved.
    assert_eq!(second.page("/readyz").await.status, 200);
    assert!(is_replay(&second.call(&pay("before")).await));
}
