//! Gateways that share a Redis in front of their store: replays come from it, and nothing depends on it.

use std::process::Command;

use ibid_testkit::client::{TestRequest, TestResponse};
use ibid_testkit::program::{Launch, Program};
use ibid_testkit::redis::Redis;
use ibid_testkit::upstream::Upstream;

use crate::harness::{Gateway, On, Setup, assert_problem, is_replay, until_async};

/// A Redis server without persistence: it is a cache.
struct Front(Program);

impl Front {
    fn start() -> Front {
        Front(Program::start(|_, port| {
            let port = port.to_string();
            Launch::new("redis-server", ["--port", &port, "--bind", "127.0.0.1", "--save", ""])
        }))
    }

    fn url(&self) -> String {
        format!("redis://{}/", self.0.addr())
    }

    /// Runs a command of Redis and returns the lines of its reply.
    fn run(&self, words: &[&str]) -> Vec<String> {
        let port = self.0.addr().port().to_string();
        let output = Command::new("redis-cli").args(["-p", &port]).args(words).output();
        let output = output.expect("redis-cli runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("UTF-8").lines().map(str::to_owned).collect()
    }

    /// Waits until there are so many entries, and returns their names.
    async fn entries(&self, count: usize) -> Vec<String> {
        until_async(&format!("{count} entries are shared"), async || {
            let mut names = self.run(&["--scan", "--pattern", "ibid:front:*"]);
            names.retain(|name| !name.ends_with(":lock"));
            (names.len() == count).then_some(names)
        })
        .await
    }
}

/// Two gateways on one store, and a client's requests.
struct TwoGateways {
    upstream: Upstream,
    front: Front,
    setup: Setup,
    first: Gateway,
    second: Gateway,
}

impl TwoGateways {
    async fn start(cache_ttl: &str) -> TwoGateways {
        let (upstream, front) = (Upstream::start().await, Front::start());
        let setup = Setup::before(&upstream.url()).on(On::Postgres).config(&config(&front.url(), cache_ttl));
        let (first, second) = (setup.start(), setup.start());
        TwoGateways { upstream, front, setup, first, second }
    }

    /// Runs a request on the first gateway, and returns the name of its entry.
    async fn complete(&self, request: &TestRequest) -> String {
        let before = self.front.entries(0).await;
        assert!(before.is_empty());
        let response = self.first.call(request).await;
        assert_eq!((response.status, is_replay(&response)), (201, false), "{response:?}");
        self.front.entries(1).await.remove(0)
    }
}

fn config(url: &str, cache_ttl: &str) -> String {
    // None of these tests is about time, so a slow machine must not turn a hit into a miss.
    format!(
        "[store]\ncache_ttl = \"{cache_ttl}\"\nbegin_timeout = \"80s\"\n[front]\nurl = \"{url}\"\ntimeout = \"20s\"\n"
    )
}

fn pay(key: &str, body: &str) -> TestRequest {
    TestRequest::post("/payments").key(key).body(body).fixture(&format!("status=201;body=paid {body}"))
}

/// Lets a gateway read the store's clock, by which it takes the age of entries: a key that does not run leaves no entry.
async fn read_clock(gateway: &Gateway) {
    let response = gateway.call(&TestRequest::post("/clock").key("clock").fixture("status=429")).await;
    assert_eq!(response.status, 429);
}

async fn begins(gateway: &Gateway) -> f64 {
    gateway.metric("ibid_begin_seconds_count", "").await
}

async fn lookups(gateway: &Gateway, outcome: &str) -> f64 {
    gateway.metric("ibid_front_lookups_total", &format!("outcome=\"{outcome}\"")).await
}

fn assert_replays(response: &TestResponse, body: &str) {
    let text = response.text();
    assert_eq!((response.status, text.as_str(), is_replay(response)), (201, body, true), "{response:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn another_gateway_replays_without_asking_the_store() {
    let world = TwoGateways::start("60s").await;
    let name = world.complete(&pay("k", "5")).await;
    let left: u64 = world.front.run(&["pttl", &name])[0].parse().expect("a number");
    assert!(left > 0 && left <= 60_000, "it lives for cache_ttl: {left}");
    read_clock(&world.second).await;
    let before = begins(&world.second).await;
    assert_replays(&world.second.call(&pay("k", "5")).await, "paid 5");
    assert_eq!(lookups(&world.second, "hit").await, 1.0);
    // It is in the process's own cache now.
    assert_replays(&world.second.call(&pay("k", "5")).await, "paid 5");
    assert_eq!((lookups(&world.second, "hit").await, begins(&world.second).await), (1.0, before));
    assert_eq!(world.second.metric("ibid_front_up", "").await, 1.0);
    assert_eq!(world.upstream.executions("k"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_shared_entry_refuses_a_different_request() {
    let world = TwoGateways::start("60s").await;
    world.complete(&pay("k", "5")).await;
    read_clock(&world.second).await;
    let before = begins(&world.second).await;
    let response = world.second.call(&pay("k", "6")).await;
    assert_problem(&response, 422, "key-reused");
    assert_eq!((lookups(&world.second, "hit").await, begins(&world.second).await), (1.0, before));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_forged_entry_is_ignored_and_removed() {
    let world = TwoGateways::start("60s").await;
    let name = world.complete(&pay("k", "5")).await;
    read_clock(&world.second).await;
    // One byte of the response.
    let length: usize = world.front.run(&["strlen", &name])[0].parse().expect("a number");
    world.front.run(&["setrange", &name, &(length - 40).to_string(), "9"]);
    assert_replays(&world.second.call(&pay("k", "5")).await, "paid 5");
    assert_eq!(world.second.metric("ibid_front_ignored_total", "").await, 1.0);
    assert_eq!(lookups(&world.second, "hit").await, 0.0);
    let third = world.setup.start();
    read_clock(&third).await;
    // The second gateway has read it from the store and shares it again.
    let names = world.front.entries(1).await;
    let other = third.call(&pay("other", "7")).await;
    assert_eq!(other.status, 201);
    let mut both = world.front.entries(2).await;
    both.retain(|name| *name != names[0]);
    // An authentic entry of another record.
    world.front.run(&["copy", &names[0], &both[0], "replace"]);
    assert_replays(&world.second.call(&pay("other", "7")).await, "paid 7");
    assert_eq!(world.second.metric("ibid_front_ignored_total", "").await, 2.0);
    assert_eq!(world.upstream.executions("other"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn requests_continue_when_the_front_is_killed() {
    let world = TwoGateways::start("60s").await;
    world.complete(&pay("k", "5")).await;
    let TwoGateways { upstream, front, setup, first, second } = world;
    // Dropped is killed with -9.
    drop(front);
    assert_replays(&second.call(&pay("k", "5")).await, "paid 5");
    for gateway in [&first, &second] {
        let key = format!("new-{}", gateway.pid());
        let response = gateway.call(&pay(&key, "6")).await;
        assert_eq!((response.status, upstream.executions(&key)), (201, 1));
    }
    assert_eq!(second.metric("ibid_front_up", "").await, 0.0);
    second.wait_for_log("Redis in front of the store does not answer").await;
    assert_eq!(second.log().matches("Redis in front of the store").count(), 1, "said once");
    let late = setup.start();
    assert_replays(&late.call(&pay("k", "5")).await, "paid 5");
    assert_eq!(late.metric("ibid_front_up", "").await, 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_forgotten_key_runs_again_although_it_was_shared() {
    let world = TwoGateways::start("2s").await;
    let name = world.complete(&pay("k", "5")).await;
    // A copy that does not expire, as an attacker or a restored server may have it.
    world.front.run(&["copy", &name, "saved"]);
    world.front.run(&["persist", "saved"]);
    let store = world.setup.store();
    let listed = world.setup.ibid(&["keys", "list", "--json", "--store", &store]);
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).expect("JSON");
    let id = listed[0]["id"].as_str().expect("an id");
    let words = ["keys", "forget", id, "--reason", "a test", "--who", "ann", "--yes", "--store", &store];
    let forgotten = world.setup.ibid(&words);
    assert!(forgotten.status.success(), "{forgotten:?}");
    read_clock(&world.second).await;
    // Until then the old record answers. That doesn't prolong it, neither in the front nor in the gateways' own caches.
    let again = pay("k", "6");
    until_async("the forgotten key runs again", async || {
        let response = world.second.call(&again).await;
        if response.status != 201 {
            assert_problem(&response, 422, "key-reused");
        }
        (response.status == 201).then_some(())
    })
    .await;
    let TwoGateways { upstream, front, setup, first, second } = world;
    assert_eq!(upstream.executions("k"), 2);
    // Neither shares anything from here on.
    drop((first, second));
    front.run(&["copy", "saved", &name, "replace"]);
    let third = setup.start();
    read_clock(&third).await;
    let response = third.call(&again).await;
    assert_replays(&response, "paid 6");
    assert_eq!(lookups(&third, "stale").await, 1.0, "the older version is too old to be used");
    assert_eq!(upstream.executions("k"), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_entry_lives_no_longer_than_its_record() {
    let (upstream, front) = (Upstream::start().await, Front::start());
    let rules = "[defaults]\nretention = \"61s\"\n";
    let setup = Setup::before(&upstream.url()).config(&format!("{rules}{}", config(&front.url(), "10m")));
    let gateway = setup.start();
    assert_eq!(gateway.call(&pay("k", "5")).await.status, 201);
    let name = front.entries(1).await.remove(0);
    let left: u64 = front.run(&["pttl", &name])[0].parse().expect("a number");
    assert!(left <= 61_000, "{left}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn gateways_of_different_stores_share_one_front() {
    let front = Front::start();
    let mut worlds = Vec::new();
    for body in ["5", "6"] {
        let upstream = Upstream::start().await;
        let setup = Setup::before(&upstream.url()).config(&config(&front.url(), "60s"));
        let gateway = setup.start();
        let response = gateway.call(&pay("k", body)).await;
        assert_eq!((response.status, is_replay(&response)), (201, false));
        // It shares the entry after it has responded, so it must live on.
        worlds.push((upstream, setup, gateway));
    }
    front.entries(2).await;
    for ((_, setup, _), body) in worlds.iter().zip(["5", "6"]) {
        let gateway = setup.start();
        read_clock(&gateway).await;
        assert_replays(&gateway.call(&pay("k", body)).await, &format!("paid {body}"));
        assert_eq!(lookups(&gateway, "hit").await, 1.0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_gauge_falls_while_the_front_refuses_everything() {
    let world = TwoGateways::start("60s").await;
    world.complete(&pay("k", "5")).await;
    assert_eq!(world.second.metric("ibid_front_up", "").await, 1.0);
    world.front.run(&["acl", "setuser", "default", "-getrange"]);
    assert_replays(&world.second.call(&pay("k", "5")).await, "paid 5");
    assert_eq!(world.second.metric("ibid_front_up", "").await, 0.0);
    world.front.run(&["acl", "setuser", "default", "+getrange"]);
    assert_eq!(world.second.call(&pay("new", "6")).await.status, 201);
    assert_eq!(world.second.metric("ibid_front_up", "").await, 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_front_that_could_use_up_a_begin_is_refused() {
    let config =
        "[store]\nbegin_timeout = \"1s\"\n[front]\nurl = \"redis://127.0.0.1/\"\ntimeout = \"251ms\"\n";
    let refused = Setup::before("http://127.0.0.1:1").config(config).expect_refusal();
    refused.assert_error(2, "`timeout`", "begin_timeout", "250ms");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_looks_at_the_front() {
    let mut front = Redis::start_with(&[("maxmemory", "100mb"), ("maxmemory-policy", "allkeys-lru")]);
    let setup = Setup::before("");
    std::fs::write(setup.folder().join("ibid.toml"), config(&front.url(), "60s")).expect("it is written");
    assert!(setup.ibid(&["migrate", "--store", &setup.store()]).status.success());
    let finding = || {
        let output = setup.ibid(&["doctor", "--store", &setup.store(), "--json"]);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let checks = report["checks"].as_array().expect("a list");
        checks.iter().find(|check| check["check"] == "front").expect("it is looked at").clone()
    };
    let good = finding();
    assert_eq!(good["result"], "ok", "{good}");
    assert!(good["found"].as_str().is_some_and(|found| found.contains("allkeys-lru")), "{good}");
    front.set("maxmemory-policy", "noeviction");
    let full = finding();
    assert_eq!(full["result"], "warning", "{full}");
    front.kill();
    let away = finding();
    assert_eq!(away["result"], "warning", "{away}");
    assert!(away["found"].as_str().is_some_and(|found| found.contains("no answer")), "{away}");
}
