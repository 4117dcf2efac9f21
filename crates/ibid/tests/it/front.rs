//! Redis in front of a store: order of writes, the lock, and what one process asks.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use ibid::front::redis::{RedisFront, RedisFrontOptions};
use ibid::front::{SharedCache, SharedEntry};
use ibid::outcome::{Begin, Outcome};
use ibid::store::clock::Clock;
use ibid::store::memory::MemoryStore;
use ibid::{Ibid, Settings};
use ibid_core::change::{Change, Stamp};
use ibid_core::policy::Policy;
use ibid_core::record::Record;
use ibid_core::response::Response;
use ibid_core::scope::RecordId;
use ibid_core::time::Timestamp;
use ibid_testkit::contract::{TestRecord, finish_with, fresh};
use ibid_testkit::faults::{FaultyStore, StoreFault};
use ibid_testkit::program::{Launch, Program};
use ibid_testkit::redis::Redis;
use ibid_testkit::tcp_hop::TcpHop;

use crate::request_fixture::ask;

/// A server and two nodes of one store.
struct Nodes {
    server: Program,
    one: RedisFront,
    other: RedisFront,
}

impl Nodes {
    async fn start() -> Nodes {
        let server = Program::start(|_, port| {
            let port = port.to_string();
            Launch::new("redis-server", ["--port", &port, "--bind", "127.0.0.1", "--save", ""])
        });
        let store = MemoryStore::new(Clock::system());
        let url = format!("redis://{}/", server.addr());
        let open = async || {
            // Other tests keep the machine busy; that should not fail a test.
            let options =
                RedisFrontOptions::default().with(|options| options.timeout = Duration::from_secs(20));
            RedisFront::open(&url, &store, options).await.expect("it opens")
        };
        Nodes { one: open().await, other: open().await, server }
    }

    fn cli(&self, words: &[&str]) -> String {
        let port = self.server.addr().port().to_string();
        let output = Command::new("redis-cli").args(["-p", &port]).args(words).output();
        String::from_utf8(output.expect("redis-cli runs").stdout).expect("UTF-8")
    }

    /// Returns how often the server ran a command since the statistics were reset.
    fn calls(&self, command: &str) -> u32 {
        let stats = self.cli(&["info", "commandstats"]);
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        line.map_or(0, |rest| rest.split(',').next().expect("a number").parse().expect("a number"))
    }

    /// Takes the lock of a record for another node, and keeps it.
    fn lock(&self, id: RecordId) {
        let shown = format!("{:?}", self.one);
        let prefix = shown.split('"').nth(1).expect("a prefix");
        assert_eq!(self.cli(&["set", &format!("{prefix}{id}:lock"), "1"]).trim(), "OK");
    }
}

fn completed_record() -> Arc<Record> {
    let applied = |change: &Change, before| {
        change.apply(Stamp { now: Timestamp::from_micros(1) }, before).expect("a record")
    };
    let running = applied(&fresh(&TestRecord::fresh(), Duration::from_secs(9)), None);
    applied(&finish_with(&running, b"body"), Some(&running))
}

fn entry(record: &Arc<Record>, read_at: i64) -> SharedEntry {
    let response = Arc::new(Response::plain(200, "text/plain", read_at.to_string()));
    SharedEntry { record: record.clone(), response, read_at: Timestamp::from_micros(read_at) }
}

/// Waits until a record is shared, and returns the time of its read.
async fn until_shared(front: &RedisFront, id: RecordId) -> i64 {
    for _ in 0..10_000 {
        if let Some(found) = front.find(id).await {
            assert_eq!(found.response.body, found.read_at.as_micros().to_string());
            return found.read_at.as_micros();
        }
    }
    panic!("the entry is never shared");
}

#[tokio::test]
async fn a_late_write_never_replaces_a_newer_version() {
    let nodes = Nodes::start().await;
    let (record, marker) = (completed_record(), completed_record());
    nodes.one.put(entry(&record, 200), Duration::from_secs(60));
    assert_eq!(until_shared(&nodes.other, record.id).await, 200);
    nodes.other.put(entry(&record, 100), Duration::from_secs(60));
    // One after the other: when the second is there, the first has been dealt with.
    nodes.other.put(entry(&marker, 1), Duration::from_secs(60));
    until_shared(&nodes.one, marker.id).await;
    assert_eq!(until_shared(&nodes.one, record.id).await, 200);
    nodes.other.put(entry(&record, 300), Duration::from_secs(60));
    while until_shared(&nodes.one, record.id).await != 300 {}
    nodes.one.remove(record.id);
    while nodes.other.find(record.id).await.is_some() {}
}

#[tokio::test]
async fn only_a_node_without_the_lock_looks_again() {
    let nodes = Nodes::start().await;
    let (free, locked) = (completed_record(), completed_record());
    nodes.cli(&["config", "resetstat"]);
    assert!(nodes.one.find(free.id).await.is_none());
    assert_eq!((nodes.calls("getrange"), nodes.calls("set")), (1, 1), "one round trip");
    nodes.lock(locked.id);
    nodes.cli(&["config", "resetstat"]);
    assert!(nodes.one.find(locked.id).await.is_none(), "it waits in vain, and asks the store");
    assert!(nodes.calls("getrange") > 1, "it looked for the entry of the node that has the lock");
}

#[tokio::test]
async fn a_burst_in_one_process_asks_once() {
    let nodes = Nodes::start().await;
    let record = completed_record();
    nodes.one.put(entry(&record, 5), Duration::from_secs(60));
    until_shared(&nodes.other, record.id).await;
    nodes.cli(&["config", "resetstat"]);
    let entries = join_all((0..100).map(|_| nodes.one.find(record.id))).await;
    assert!(entries.iter().all(Option::is_some));
    assert_eq!(nodes.calls("getrange"), 1);
}

#[tokio::test]
async fn a_server_that_hangs_is_left_alone() {
    let nodes = Nodes::start().await;
    let url = format!("redis://{}/", nodes.server.addr());
    let store = MemoryStore::new(Clock::system());
    let front = RedisFront::open(&url, &store, RedisFrontOptions::default()).await.expect("it opens");
    let id = completed_record().id;
    nodes.cli(&["config", "resetstat"]);
    // Redis holds every command back until the pause ends, and runs what it got by then.
    nodes.cli(&["client", "pause", "500", "all"]);
    for _ in 0..200 {
        assert!(front.find(id).await.is_none());
    }
    assert!(nodes.calls("getrange") < 20, "most of 200 lookups did not wait for it");
}

/// T1 (a node) has the lock and reads the store, which is slow; T2 (another node) waits for T1's entry instead of asking the store.
#[tokio::test(flavor = "multi_thread")]
async fn a_burst_on_two_nodes_reads_the_store_once() {
    let nodes = Nodes::start().await;
    let store = FaultyStore::new(Arc::new(MemoryStore::new(Clock::system())));
    let start = async || {
        let options = RedisFrontOptions::default()
            .with(|options| (options.timeout, options.lock_wait) = (PATIENCE, PATIENCE));
        let url = format!("redis://{}/", nodes.server.addr());
        let front = RedisFront::open(&url, &*store, options).await.expect("it opens");
        let settings = Settings::default().with(|settings| {
            settings.front = Some(Arc::new(front));
            settings.begin_timeout = PATIENCE;
        });
        Ibid::start(store.clone(), settings).await.expect("it starts")
    };
    let plain = Ibid::start(store.clone(), Settings::default()).await.expect("it starts");
    let policy = || Policy::default();
    let Ok(Begin::Run(attempt)) = plain.begin(ask(&plain, "t", "burst", policy())).await else {
        panic!("new")
    };
    let _ = attempt.finish(Response::plain(201, "text/plain", "paid".to_owned())).await;
    let both = [start().await, start().await];
    for (number, ibid) in both.iter().enumerate() {
        // A node takes the age of entries by the store's clock, which it has not read yet.
        let begin = ibid.begin(ask(ibid, "t", &format!("clock-{number}"), policy())).await;
        let Ok(Begin::Run(attempt)) = begin else { panic!("it runs") };
        let _ = attempt.finish(Response::plain(201, "text/plain", "read".to_owned())).await;
    }
    store.set(StoreFault::Hangs);
    let before = store.commits();
    nodes.cli(&["config", "resetstat"]);
    let burst =
        both.iter().flat_map(|ibid| (0..8).map(move |_| ibid.begin(ask(ibid, "t", "burst", policy()))));
    let release = async {
        // One lookup of each node, and then some more of the one that waits.
        while nodes.calls("getrange") < 10 || store.commits() == before {
            tokio::task::yield_now().await;
        }
        store.set(StoreFault::None);
    };
    let (outcomes, ()) = tokio::join!(join_all(burst.collect::<Vec<_>>()), release);
    for outcome in outcomes {
        assert!(matches!(outcome, Ok(Begin::Skip(Outcome::Completed(_)))), "it is replayed");
    }
    assert_eq!(store.commits() - before, 1, "sixteen duplicates");
}

#[tokio::test]
async fn a_response_too_large_for_the_timeout_is_not_shared() {
    let nodes = Nodes::start().await;
    let url = format!("redis://{}/", nodes.server.addr());
    let store = MemoryStore::new(Clock::system());
    let front = RedisFront::open(&url, &store, RedisFrontOptions::default()).await.expect("it opens");
    let sized = |bytes: usize| {
        let response = Arc::new(Response::plain(200, "text/plain", "x".repeat(bytes)));
        SharedEntry { response, ..entry(&completed_record(), 1) }
    };
    let (small, large, marker) = (sized(400 << 10), sized(600 << 10), completed_record());
    for entry in [&small, &large] {
        front.put(entry.clone(), Duration::from_secs(60));
    }
    front.put(entry(&marker, 1), Duration::from_secs(60));
    // The nodes' own store has another secret, so the names are read from the server.
    let names = || nodes.cli(&["--scan", "--pattern", "ibid:front:*"]);
    while !names().contains(&marker.id.to_string()) {
        tokio::task::yield_now().await;
    }
    assert!(names().contains(&small.record.id.to_string()));
    assert!(!names().contains(&large.record.id.to_string()), "its reply would be late");
}

/// Another program, or a mistake, put 64 MB under the name of an entry.
#[tokio::test]
async fn a_lookup_reads_no_more_than_an_entry_can_have() {
    let nodes = Nodes::start().await;
    let id = completed_record().id;
    let shown = format!("{:?}", nodes.one);
    let prefix = shown.split('"').nth(1).expect("a prefix");
    nodes.cli(&["setrange", &format!("{prefix}{id}"), &(64 << 20).to_string(), "x"]);
    let sent = || -> u64 {
        let stats = nodes.cli(&["info", "stats"]);
        let line = stats.lines().find_map(|line| line.strip_prefix("total_net_output_bytes:"));
        line.expect("it is counted").trim().parse().expect("a number")
    };
    let before = sent();
    assert!(nodes.one.find(id).await.is_none(), "it is no entry");
    let read = sent() - before;
    assert!(read > 1 << 20 && read < 16 << 20, "{read} bytes");
}

/// A planned failover: the primary becomes a replica and keeps its connections, and the name in the URL leads to the promoted one.
#[tokio::test(flavor = "multi_thread")]
async fn a_demoted_server_is_left_for_the_promoted_one() {
    let (demoted, promoted) = (Redis::start(), Redis::start());
    let proxy = TcpHop::start(demoted.port()).await;
    let store = MemoryStore::new(Clock::system());
    let options = RedisFrontOptions::default().with(|options| options.timeout = PATIENCE);
    let url = format!("redis://127.0.0.1:{}/", proxy.port());
    let front = RedisFront::open(&url, &store, options).await.expect("it opens");
    let first = completed_record();
    front.put(entry(&first, 1), PATIENCE);
    until_shared(&front, first.id).await;
    assert_eq!(demoted.cli(&["REPLICAOF", "127.0.0.1", &promoted.port().to_string()]), "OK");
    proxy.lead_to(promoted.port());
    let after = completed_record();
    let names = || promoted.cli(&["--scan", "--pattern", "ibid:front:*"]);
    while !names().contains(&after.id.to_string()) {
        front.put(entry(&after, 2), PATIENCE);
        tokio::task::yield_now().await;
    }
    // Lookups have their own connection, and it moves as well.
    while front.find(after.id).await.is_none() {}
}

#[tokio::test]
async fn a_server_that_was_killed_is_used_again() {
    let mut server = Redis::start();
    let store = MemoryStore::new(Clock::system());
    let front =
        RedisFront::open(&server.url(), &store, RedisFrontOptions::default()).await.expect("it opens");
    let (before, after) = (completed_record(), completed_record());
    front.put(entry(&before, 1), PATIENCE);
    until_shared(&front, before.id).await;
    server.kill();
    assert!(front.find(before.id).await.is_none(), "the store is asked instead");
    server.start_again();
    while front.find(after.id).await.is_none() {
        front.put(entry(&after, 2), PATIENCE);
        tokio::task::yield_now().await;
    }
}

/// Longer than any step takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
