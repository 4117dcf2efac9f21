//! A gateway on a DynamoDB table: responses are replayed, also after the gateway was killed; `migrate` and `doctor`.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use ibid_testkit::client::TestRequest;
use ibid_testkit::dynamodb::{DynamoDb, DynamoRequest, ProxyAction};
use ibid_testkit::upstream::Upstream;
use tokio::task::block_in_place;

use crate::harness::{Setup, is_replay, problem, until_async};

/// Sets up a gateway on a new table. A short lease and the least skew keep the wait for a lapse short.
fn setup(upstream: &str, server: &DynamoDb) -> Setup {
    setup_with(upstream, &server.url(), server.region(), "5s")
}

fn setup_with(upstream: &str, endpoint: &str, region: &str, skew_max: &str) -> Setup {
    let url = format!("dynamodb://ibid?region={region}&endpoint={endpoint}&skew_max={skew_max}&shards=4");
    Setup::before(upstream)
        .store_at(&url)
        .config("[defaults]\nlease = \"3s\"\n[upkeep]\nsweep_every = \"200ms\"\n")
        .variable("AWS_ACCESS_KEY_ID", "test")
        .variable("AWS_SECRET_ACCESS_KEY", "test")
}

fn pay(key: &str, fixture: &str) -> TestRequest {
    TestRequest::post("/payments").key(key).body("five").fixture(fixture)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_response_is_replayed_after_the_gateway_was_killed() {
    let (server, upstream) = (DynamoDb::shared(), Upstream::start().await);
    let setup = setup(&upstream.url(), &server);
    let mut gateway = block_in_place(|| setup.start());
    let paid = pay("key-1", "status=201;body=paid");
    let first = gateway.call(&paid).await;
    assert_eq!((first.status, text(&first.body)), (201, "paid".to_owned()), "{first:?}");
    let again = gateway.call(&paid).await;
    assert!(again.status == 201 && is_replay(&again), "{again:?}");
    let other = gateway.call(&pay("key-1", "status=201;body=paid").body("six")).await;
    assert_eq!(other.status, 422, "{other:?}");

    // The upstream has a second payment when the gateway dies, and its answer never arrives.
    let slow = pay("key-2", "gate;status=201;body=paid");
    let mut client = gateway.client().await;
    client.send(&slow).await;
    until_async("the payment is upstream", async || (upstream.executions("key-2") == 1).then_some(())).await;
    gateway.kill();
    let gateway = block_in_place(|| setup.start());
    let replay = gateway.call(&paid).await;
    assert!(replay.status == 201 && is_replay(&replay), "{replay:?}");
    // Its lease lapses, and the skew passes besides. A retry waits for that, as far as it may wait.
    until_async("its outcome is unknown", async || {
        (problem(&gateway.call(&slow).await) == "outcome-unknown").then_some(())
    })
    .await;
    assert_eq!((upstream.executions("key-1"), upstream.executions("key-2")), (1, 1), "nothing ran twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_throttles_executes_nothing_and_clients_get_503() {
    let (server, upstream) = (DynamoDb::shared(), Upstream::start().await);
    // A begin of the key `throttled` has the key in its item.
    let proxy = server.proxy(|request| match request.body.contains("throttled") {
        true => ProxyAction::error("ProvisionedThroughputExceededException"),
        false => ProxyAction::Pass,
    });
    let setup = setup_with(&upstream.url(), &proxy.url(), server.region(), "5s");
    let setup = setup.config("[store]\nbegin_timeout = \"3s\"\n");
    let gateway = block_in_place(|| setup.start());
    let refused = gateway.call(&pay("throttled", "status=201")).await;
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    assert_eq!(upstream.executions("throttled"), 0, "nothing was executed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_clock_is_off_replays_and_reserves_nothing() {
    let (server, upstream) = (DynamoDb::shared(), Upstream::start().await);
    let shift = Arc::new(AtomicI64::new(0));
    let of_proxy = shift.clone();
    let proxy = server.proxy(move |_| ProxyAction::date(of_proxy.load(Ordering::SeqCst)));
    // A busy machine answers slowly, and a slow reply proves little: the skew is large.
    let setup = setup_with(&upstream.url(), &proxy.url(), server.region(), "60s");
    let setup = setup.config("[store]\nbegin_timeout = \"8s\"\n");
    let gateway = block_in_place(|| setup.start());
    let other = block_in_place(|| setup_with(&upstream.url(), &server.url(), server.region(), "60s").start());
    let paid = pay("key-1", "status=201;body=paid");
    assert_eq!(other.call(&paid).await.status, 201);
    shift.store(120, Ordering::SeqCst);
    gateway.wait_for_log("no new reservations").await;
    // Replies that were sent before may still say that the clock is right.
    let mut number = 1;
    let refused = until_async("new keys are refused", async || {
        number += 1;
        let key = format!("key-{number}");
        let response = gateway.call(&pay(&key, "status=201")).await;
        (response.status == 503).then_some(key)
    })
    .await;
    assert_eq!(upstream.executions(&refused), 0, "nothing was executed");
    // More refusals than open the breaker, and still it replays a key that another process has begun.
    for number in 0..10 {
        let refused = gateway.call(&pay(&format!("refused-{number}"), "status=201")).await;
        assert!(refused.status == 503 && refused.header("retry-after").is_some(), "{refused:?}");
    }
    let replay = gateway.call(&paid).await;
    assert!(replay.status == 201 && is_replay(&replay), "{replay:?}");
    // A write that it made while its clock was right counts for some seconds.
    until_async("it is not ready", async || (gateway.page("/readyz").await.status == 503).then_some(()))
        .await;
    shift.store(0, Ordering::SeqCst);
    until_async("it is right again", async || {
        (gateway.call(&pay(&refused, "status=201")).await.status == 201).then_some(())
    })
    .await;
    shift.store(-120, Ordering::SeqCst);
    let refused = block_in_place(|| setup.expect_refusal());
    refused.assert_error(3, "cannot open the store", "clock may be", "time service");
}

#[test]
fn migrate_creates_the_table_once_or_prints_it() {
    let server = DynamoDb::shared();
    let setup = setup("", &server);
    let url = setup.store();
    for (format, start) in [("cloudformation", "AWSTemplateFormatVersion"), ("terraform", "resource ")] {
        let printed = setup.ibid(&["migrate", "--print", format, "--store", &url]);
        assert!(printed.status.success() && text(&printed.stdout).starts_with(start), "{printed:?}");
    }
    let which = setup.ibid(&["migrate", "--print", "--store", &url]);
    assert!(which.status.code() == Some(2) && text(&which.stderr).contains("terraform"), "{which:?}");
    let missing = setup.ibid(&["keys", "list", "--store", &url]);
    assert_eq!(missing.status.code(), Some(3), "{missing:?}");
    assert!(text(&missing.stderr).contains("hint: run `ibid migrate`"), "{missing:?}");
    let doctor = setup.ibid(&["doctor", "--store", &url]);
    assert_eq!(doctor.status.code(), Some(1), "{doctor:?}");
    for ending in ["made\n", "up to date\n"] {
        let made = setup.ibid(&["migrate", "--store", &url]);
        assert!(made.status.success() && text(&made.stdout).ends_with(ending), "{made:?}");
    }
    let doctor = setup.ibid(&["doctor", "--store", &url]);
    let table = text(&doctor.stdout);
    assert!(doctor.status.success(), "{doctor:?}");
    assert!(table.contains("both indexes") && table.contains("the service sends no `Date`"), "{table}");
    assert!(table.contains("time to live"), "{table}");
    let list = setup.ibid(&["keys", "list", "--store", &url]);
    assert!(list.status.success(), "{list:?}");
}

#[test]
fn doctor_finds_a_wrong_clock_and_a_global_table() {
    let server = DynamoDb::shared();
    let made = setup("", &server);
    let migrated = made.ibid(&["migrate", "--store", &made.store()]);
    assert!(migrated.status.success(), "{migrated:?}");
    let diagnose = |rule: fn(&DynamoRequest) -> ProxyAction| {
        let proxy = server.proxy(rule);
        let setup = setup_with("", &proxy.url(), server.region(), "60s");
        let doctor = setup.ibid(&["doctor", "--store", &setup.store()]);
        (doctor.status.code(), text(&doctor.stdout))
    };
    let (code, table) = diagnose(|_| ProxyAction::date(0));
    assert!(code == Some(0) && table.contains("ms from the service's"), "{table}");
    let (code, table) = diagnose(|_| ProxyAction::date(120));
    assert!(code == Some(1) && table.contains("no new reservations"), "{table}");
    // Two minutes behind, and a second of `Date` besides.
    let mut millis = table.split_whitespace().filter_map(|word| word.parse::<u32>().ok());
    assert!(millis.any(|millis| (120_000..180_000).contains(&millis)), "{table}");
    let (code, table) = diagnose(|request| match request.operation.as_str() {
        "DescribeTable" => ProxyAction::edit(|reply| {
            reply.replace(r#""TableName""#, r#""GlobalTableVersion":"2019.11.21","TableName""#)
        }),
        _ => ProxyAction::Pass,
    });
    assert!(code == Some(1) && table.contains("last writer wins"), "{table}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_file_that_outgrew_its_machine_is_copied_and_replayed() {
    let (server, upstream) = (DynamoDb::shared(), Upstream::start().await);
    let file = Setup::before(&upstream.url()).config("[store]\nidentity_valid_for = \"1s\"\n");
    let large = "x".repeat(2000);
    let paid = [pay("key-1", "status=201;body=paid"), pay("key-2", &format!("status=201;body={large}"))];
    let mut gateway = block_in_place(|| file.start());
    for request in &paid {
        assert_eq!(gateway.call(request).await.status, 201);
    }
    gateway.kill();
    let table = setup(&upstream.url(), &server);
    // It waits until running nodes would have read the mark: twice `identity_valid_for`.
    let copied = table.ibid(&["copy", "--from", &file.store(), "--to", &table.store()]);
    assert!(copied.status.success(), "{copied:?}");
    let gateway = block_in_place(|| table.start());
    let bodies = ["paid", &large];
    for (request, body) in paid.iter().zip(bodies) {
        let replay = gateway.call(request).await;
        assert!(replay.status == 201 && is_replay(&replay) && text(&replay.body) == body, "{replay:?}");
    }
    assert_eq!(upstream.total(), 2, "nothing ran twice");
}
