//! `ibid identity`, and gateways while the identity of their store changes, with real processes: a gateway that was
//! stopped during a request and continues after the change must deliver nothing.

use std::process::Output;

use ibid_testkit::client::{TestRequest, TestResponse};
use ibid_testkit::upstream::Upstream;
use serde_json::Value;
use tokio::task::block_in_place;

use crate::harness::{Gateway, On, Setup, assert_problem, is_replay, on_every_store, until_async};

/// A gateway relies on the identity that it read for one second, so a change takes two.
const SOON: &str = "[store]\nidentity_valid_for = \"1s\"\n";

fn soon(rest: &str) -> String {
    format!("{rest}\n{SOON}")
}

fn pay(key: &str) -> TestRequest {
    TestRequest::post("/pay").key(key).body("{}")
}

fn identity(setup: &Setup, words: &[&str]) -> Output {
    let store = setup.store();
    let words: Vec<&str> = ["identity"].iter().chain(words).copied().chain(["--store", &store]).collect();
    block_in_place(|| setup.ibid(&words))
}

fn change(setup: &Setup, words: &[&str]) -> Output {
    let words: Vec<&str> = ["change", "--yes"].iter().chain(words).copied().collect();
    let done = identity(setup, &words);
    assert!(done.status.success(), "{done:?}");
    done
}

fn shown(setup: &Setup) -> Value {
    let done = identity(setup, &["show", "--json"]);
    serde_json::from_slice(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done:?}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_identity_is_refused_with_the_difference() {
    let setup = Setup::before("http://127.0.0.1:9");
    block_in_place(|| setup.start().kill());
    for (config, difference) in [
        ("[defaults]\nscope = \"tenant\"\n", "the defaults: scope `operation` → `tenant`"),
        ("[defaults]\nbind = \"principal\"\n", "the defaults: bind `tenant` → `principal`"),
        (
            "[defaults]\nkey_from = \"header:X-Request-Key\"\n",
            "the defaults: key_from `header:idempotency-key` → `header:x-request-key`",
        ),
        ("[defaults]\npath = \"as-sent\"\n", "the defaults: path `strict` → `as-sent`"),
        (
            "[[route]]\nmatch = \"POST /pay\"\nprofile = \"stripe\"\n",
            "`POST /pay`: scope `operation` → `tenant`",
        ),
    ] {
        let refused = block_in_place(|| setup.clone().config(config).expect_refusal());
        refused.assert_error(2, "other identity settings", difference, "ibid identity change");
    }
    // A route whose records keep their ids may change freely.
    let free = setup.config("[[route]]\nmatch = \"POST /pay\"\npreset = \"payments\"\n");
    block_in_place(|| free.start().kill());
}

on_every_store!(after_a_change_a_retry_is_not_delivered_again and mysql);
async fn after_a_change_a_retry_is_not_delivered_again(on: On) {
    let upstream = Upstream::start().await;
    let before = Setup::before(&upstream.url()).config(&soon("")).alone_on(on);
    let after = before.clone().config(&soon("[defaults]\nscope = \"tenant\"\n"));
    let mut old = block_in_place(|| before.start());
    let first = old.call(&pay("k")).await;

    let asked = identity(&before, &["change"]);
    assert_eq!(asked.status.code(), Some(1), "nothing without `--yes`: {asked:?}");
    assert_eq!(shown(&before)["state"], "active");
    change(&before, &[]);
    assert_problem(&old.call(&pay("new")).await, 503, "store-unavailable");
    old.kill();

    let new = block_in_place(|| after.start());
    let retried = new.call(&pay("k")).await;
    assert!(is_replay(&retried), "{retried:?}");
    assert_eq!((retried.status, retried.body), (first.status, first.body));
    assert_eq!((upstream.executions("k"), upstream.executions("new")), (1, 0));

    let known = shown(&after);
    assert_eq!((&known["generation"], &known["current"]["defaults"]["scope"]), (&2.into(), &"tenant".into()));
    assert_eq!(known["previous"][0]["defaults"]["scope"], "operation");
    let left = identity(&after, &["change", "--forget-previous", "--yes"]);
    assert_eq!(left.status.code(), Some(1), "{left:?}");
    assert!(String::from_utf8_lossy(&left.stderr).contains("1 records from before the change"), "{left:?}");
}

/// T1 (new) looks up the old id, finds nothing and runs; T2 (old) was stopped just before it reserved the old id.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_stopped_before_its_reservation_delivers_nothing() {
    let mut world = StoppedNodes::at("begin.before").await;
    assert_eq!(world.new.call(&pay("k")).await.status, 200);
    assert_problem(&world.go_on().await, 503, "store-unavailable");
    assert!(is_replay(&world.new.call(&pay("k")).await));
    assert_eq!(world.upstream.executions("k"), 1);
}

/// T2 (old) was stopped just after it reserved the old id; T1 (new) finds that record, and runs it once it is
/// released.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_stopped_after_its_reservation_delivers_nothing() {
    let mut world = StoppedNodes::at("begin.after").await;
    assert_problem(&world.new.call(&pay("k")).await, 409, "request-in-progress");
    assert_eq!(world.upstream.executions("k"), 0);
    assert_problem(&world.go_on().await, 503, "store-unavailable");
    assert_eq!(world.upstream.executions("k"), 0);
    assert_eq!(world.new.retry_until_settled(&pay("k")).await.status, 200);
    assert_eq!(world.upstream.executions("k"), 1);
}

/// An old node that was stopped during a request, and a new one that was started after a change.
struct StoppedNodes {
    upstream: Upstream,
    old: Gateway,
    new: Gateway,
    asked: tokio::task::JoinHandle<TestResponse>,
}

impl StoppedNodes {
    async fn at(failpoint: &str) -> StoppedNodes {
        let upstream = Upstream::start().await;
        let defaults = "[defaults]\nin_flight = \"conflict\"\n";
        let before = Setup::before(&upstream.url()).config(&soon(defaults));
        let after = before.clone().config(&soon(&format!("{defaults}scope = \"tenant\"\n")));
        // Without upkeep: a node that is stopped while it writes would keep SQLite's only write lock.
        let quiet = before.clone().config(&soon(&format!("{defaults}[upkeep]\nrun = false\n")));
        let armed = quiet.variable("IBID_FAILPOINTS", &format!("{failpoint}=1*return(stop)"));
        let old = block_in_place(|| armed.start());
        let addr = old.addr();
        let asked =
            tokio::spawn(
                async move { ibid_testkit::client::Client::connect(addr).await.call(&pay("k")).await },
            );
        until_async("the node is stopped", async || is_stopped(&old).then_some(())).await;
        change(&before, &[]);
        let new = block_in_place(|| after.start());
        StoppedNodes { upstream, old, new, asked }
    }

    /// Lets the old node continue and respond to its client.
    async fn go_on(&mut self) -> TestResponse {
        self.old.signal("CONT");
        (&mut self.asked).await.expect("no client panics")
    }
}

fn is_stopped(gateway: &Gateway) -> bool {
    let stat =
        std::fs::read_to_string(format!("/proc/{}/stat", gateway.pid())).expect("/proc shows our child");
    // The format is `pid (name) state …`.
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_tenant_source_needs_an_empty_store_or_a_word() {
    let upstream = Upstream::start().await;
    let one = Setup::before(&upstream.url()).config(&soon(""));
    let many = one.clone().tenant("authorization");
    let mut gateway = block_in_place(|| one.start());
    gateway.call(&pay("k")).await;
    gateway.kill();
    block_in_place(|| many.expect_refusal()).assert_error(
        2,
        "other identity settings",
        "the tenant: source `none` → `authorization`",
        "ibid identity change",
    );
    change(&one, &[]);
    block_in_place(|| many.expect_refusal()).assert_error(2, "another tenant source", "`none", "--abandon");
    let abandoned = change(&one, &["--abandon"]);
    assert!(String::from_utf8_lossy(&abandoned.stderr).contains("1 keys could run again"), "{abandoned:?}");
    block_in_place(|| many.start().kill());

    let empty = Setup::before(&upstream.url()).config(&soon(""));
    block_in_place(|| empty.start().kill());
    change(&empty, &[]);
    block_in_place(|| empty.clone().tenant("authorization").start().kill());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_was_stopped_is_run_again_to_its_end() {
    let setup = Setup::before("http://127.0.0.1:9").config(&soon(""));
    block_in_place(|| setup.start().kill());
    let store = setup.store();
    let mut stopped = setup.spawn(&["identity", "change", "--yes", "--store", &store]);
    until_async("it waits", async || (shown(&setup)["state"] == "retiring").then_some(())).await;
    stopped.kill().expect("a child can be killed");
    stopped.wait().expect("a killed child ends");
    block_in_place(|| setup.expect_refusal()).assert_error(
        1,
        "is being changed",
        "the old one",
        "run it again",
    );
    change(&setup, &[]);
    assert_eq!(shown(&setup)["state"], "retired");
    block_in_place(|| setup.start().kill());
    assert_eq!(shown(&setup)["state"], "active", "with the same identity as before");
}
