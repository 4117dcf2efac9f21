//! A gateway on Redis: replays, kills of gateway and server, refusals to start, and the word `weak` wherever an operator looks.

use ibid_testkit::client::TestRequest;
use ibid_testkit::redis::{Redis, RedisCluster};
use ibid_testkit::tcp_hop::TcpHop;
use ibid_testkit::upstream::Upstream;

use crate::harness::{Setup, assert_problem, is_replay, until_async};

fn pay(key: &str) -> TestRequest {
    pay_with(key, "status=201;body=paid")
}

/// A payment that the upstream answers as the fixture says.
fn pay_with(key: &str, fixture: &str) -> TestRequest {
    TestRequest::post("/payments").key(key).body("five").fixture(fixture)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_on_redis_survives_kills_of_gateway_and_server() {
    let upstream = Upstream::start().await;
    let mut server = Redis::start();
    let setup = Setup::before(&upstream.url()).store_at(&server.url());
    let setup = setup.config("[store]\nbegin_timeout = \"500ms\"\n");
    let mut gateway = setup.start();
    let first = gateway.call(&pay("one")).await;
    assert_eq!((first.status, first.text().as_str()), (201, "paid"));
    assert!(is_replay(&gateway.call(&pay("one")).await));
    let other = gateway.call(&pay("one").body("six")).await;
    assert_eq!(other.status, 422, "another request under the same key");

    gateway.kill();
    let gateway = setup.start();
    let again = gateway.call(&pay("one")).await;
    assert!(is_replay(&again) && again.text() == "paid", "{again:?}");

    server.kill();
    assert_problem(&gateway.call(&pay("during")).await, 503, "store-unavailable");
    server.start_again();
    until_async("the gateway takes requests again", async || {
        (gateway.call(&pay("after")).await.status == 201).then_some(())
    })
    .await;
    // Its own cache would answer, too, so another gateway asks the server.
    let fresh = setup.start();
    let again = fresh.call(&pay("one")).await;
    assert!(is_replay(&again) && again.text() == "paid", "{again:?}");
    assert_eq!(upstream.total(), 2, "each key ran once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_weak_redis_is_called_weak_wherever_one_looks() {
    let upstream = Upstream::start().await;
    let server = Redis::start_with(&[("appendfsync", "everysec")]);
    let setup = Setup::before(&upstream.url());
    let refused = setup.clone().store_at(&server.url()).expect_refusal();
    refused.assert_error(3, "cannot open the store at `redis://", "appendfsync everysec", "durability=weak");
    let doctor = setup.ibid(&["doctor", "--store", &server.url()]);
    assert_eq!(doctor.status.code(), Some(1), "{doctor:?}");
    assert!(text(&doctor.stdout).contains("ibid refuses to start"), "{doctor:?}");

    let weak = format!("{}?durability=weak", server.url());
    let setup = setup.store_at(&weak);
    let gateway = setup.start();
    assert_eq!(gateway.call(&pay("one")).await.status, 201);
    let policy = gateway.call(&TestRequest::get("/.ibid/policy")).await;
    let policy: serde_json::Value = serde_json::from_slice(&policy.body).expect("JSON");
    assert_eq!(policy["durability"], "weak");
    gateway.wait_for_log("weak durability").await;
    gateway.wait_for_log("appendfsync everysec").await;
    let doctor = setup.ibid(&["doctor", "--store", &weak]);
    let report = text(&doctor.stdout);
    assert!(report.contains("weak: a crash or a failover may lose"), "{report}");
    assert!(report.contains("appendfsync = everysec"), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_on_a_cluster_replays() {
    let upstream = Upstream::start().await;
    let cluster = RedisCluster::start();
    let setup = Setup::before(&upstream.url()).store_at(&format!("{}?durability=weak", cluster.url()));
    let gateway = setup.start();
    for key in 0..20 {
        assert_eq!(gateway.call(&pay(&format!("key-{key}"))).await.status, 201);
    }
    let other = setup.start();
    for key in 0..20 {
        assert!(is_replay(&other.call(&pay(&format!("key-{key}"))).await));
    }
    assert_eq!(upstream.total(), 20);
    let listed = setup.ibid(&["keys", "list", "--store", &setup.store()]);
    assert_eq!(text(&listed.stdout).matches("key-").count(), 20, "{listed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_redis_refuses_new_keys_and_answers_stored_ones() {
    let upstream = Upstream::start().await;
    let server = Redis::start();
    let setup = Setup::before(&upstream.url()).store_at(&server.url());
    let (first, second) = (setup.start(), setup.start());
    assert_eq!(first.call(&pay("stored")).await.status, 201);
    let slow = pay_with("running", "gate;status=201;body=late");
    let (ended, ()) = tokio::join!(second.call(&slow), async {
        upstream.until(|tally| tally.held == 1).await;
        server.set("maxmemory", "1mb");
        // More than the failures that open a breaker.
        for key in 0..10 {
            assert_problem(&second.call(&pay(&format!("new-{key}"))).await, 503, "store-unavailable");
        }
        assert_eq!(second.metric("ibid_breaker_open", "").await, 0.0);
        // An orchestrator would send it no retries of stored keys otherwise.
        assert_eq!(second.page("/readyz").await.text(), "ready\n");
        let again = second.call(&pay("stored")).await;
        assert!(is_replay(&again) && again.text() == "paid", "its own cache has never had it: {again:?}");
        upstream.gate().open();
    });
    assert_eq!((ended.status, ended.text().as_str()), (201, "late"));
    let fresh = first.call(&slow).await;
    assert!(is_replay(&fresh) && fresh.text() == "late", "its response is stored: {fresh:?}");
    assert_eq!(upstream.total(), 2);
    server.set("maxmemory", "0");
    assert_eq!(second.call(&pay("new-0")).await.status, 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_became_weaker_begins_nothing_and_is_called_weak() {
    let upstream = Upstream::start().await;
    let server = Redis::start();
    let setup = Setup::before(&upstream.url()).store_at(&server.url());
    let (first, second) = (setup.start(), setup.start());
    assert_eq!(first.call(&pay("stored")).await.status, 201);
    server.set("appendfsync", "everysec");
    // A server is looked at again every minute, and on every new connection.
    server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    assert_problem(&second.call(&pay("new")).await, 503, "store-unavailable");
    second.wait_for_log("Redis is weaker than the URL accepts").await;
    let policy = second.call(&TestRequest::get("/.ibid/policy")).await;
    let policy: serde_json::Value = serde_json::from_slice(&policy.body).expect("JSON");
    assert_eq!(policy["durability"], "weak");
    assert!(is_replay(&second.call(&pay("stored")).await), "a stored key is answered");
    assert_eq!(upstream.total(), 1);
}

/// A failover loses what the replica lacks, which `durability=weak` accepts. Everything else runs once, through the same URL.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_promoted_redis_runs_only_lost_keys_again() {
    let upstream = Upstream::start().await;
    let mut primary = Redis::start();
    let replica = primary.replica();
    let name = TcpHop::start(primary.port()).await;
    let setup = Setup::before(&upstream.url())
        .store_at(&format!("redis://127.0.0.1:{}?durability=weak", name.port()))
        .config("[store]\nbegin_timeout = \"2s\"\n");
    let gateway = setup.start();
    let keys = |kind: &str| -> Vec<String> { (0..20).map(|number| format!("{kind}-{number}")).collect() };
    let (copied, lagging) = (keys("copied"), keys("lagging"));
    for key in &copied {
        assert_eq!(gateway.call(&pay(key)).await.status, 201);
    }
    let offset = |server: &Redis, name| server.info(name).parse::<u64>().expect("an offset");
    let written = offset(&primary, "master_repl_offset");
    until_async("the replica has them", async || {
        (offset(&replica, "slave_repl_offset") >= written).then_some(())
    })
    .await;
    // The replica loses sight of its primary, which confirms more.
    assert_eq!(replica.cli(&["REPLICAOF", "127.0.0.1", "1"]), "OK");
    for key in &lagging {
        assert_eq!(gateway.call(&pay(key)).await.status, 201);
    }
    primary.kill();
    assert_eq!(replica.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    name.lead_to(replica.port());
    until_async("the gateway uses the promoted server", async || {
        (gateway.call(&pay("after")).await.status == 201).then_some(())
    })
    .await;
    // The first gateway has the responses in its cache; this one asks the promoted server.
    let fresh = setup.start();
    for key in copied.iter().chain(&lagging) {
        for gateway in [&fresh, &gateway] {
            assert_eq!(gateway.call(&pay(key)).await.status, 201, "{key}");
        }
    }
    let executions = |keys: &[String]| keys.iter().map(|key| upstream.executions(key)).collect::<Vec<_>>();
    assert_eq!(executions(&copied), [1; 20], "what the replica had ran once");
    assert_eq!(executions(&lagging), [2; 20], "what it lacked ran once more, and not for each gateway");
    assert_eq!(upstream.executions("after"), 1);
    let policy = fresh.call(&TestRequest::get("/.ibid/policy")).await;
    let policy: serde_json::Value = serde_json::from_slice(&policy.body).expect("JSON");
    assert_eq!(policy["durability"], "weak", "the loss is declared");
}

#[test]
fn doctor_and_migrate_describe_a_redis_server() {
    let server = Redis::start();
    let setup = Setup::before("");
    let url = server.url().replace("redis://", "redis://:hunter2@");
    server.set("requirepass", "hunter2");
    let empty = setup.ibid(&["doctor", "--store", &url]);
    assert!(text(&empty.stdout).contains("no tables of ibid"), "{empty:?}");
    let listed = setup.ibid(&["keys", "list", "--store", &url]);
    assert_eq!(listed.status.code(), Some(3), "a look makes no store: {listed:?}");
    let made = setup.ibid(&["migrate", "--store", &url]);
    assert!(text(&made.stdout).contains("nothing to make"), "{made:?}");
    let doctor = setup.ibid(&["doctor", "--store", &url]);
    let report = text(&doctor.stdout);
    assert!(doctor.status.success() && report.contains("Redis 7"), "{doctor:?}");
    assert!(report.contains("appendfsync = always"), "{report}");
    let evicts = Redis::start_with(&[("maxmemory-policy", "allkeys-lru")]);
    let bad = setup.ibid(&["doctor", "--store", &evicts.url()]);
    assert!(text(&bad.stdout).contains("`maxmemory-policy allkeys-lru`"), "{bad:?}");
    for output in [empty, listed, made, doctor] {
        let all = text(&output.stdout) + &text(&output.stderr);
        assert!(!all.contains("hunter2"), "{all}");
    }
}
