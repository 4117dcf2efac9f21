//! One node at a time does the chores that any node could do, and another replaces it when it ends or dies.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ibid::store::clock::Clock;
use ibid::store::memory::MemoryStore;
use ibid::store::sqlite::{SqliteOptions, SqliteStore};
use ibid::upkeep::{self, Schedule};
use ibid::{Ibid, Settings};
use ibid_core::store::{SetOutcome, Store};
use ibid_testkit::faults::{FaultyStore, StoreFault};
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// The chores that one node does.
const ELECTED: [&str; 3] = ["evidence", "reaper", "sweeper"];

/// A node with its own faults on a store that others use too.
struct Node {
    ibid: Ibid,
    store: Arc<FaultyStore>,
    chores: JoinHandle<()>,
}

impl Node {
    async fn start(store: &Arc<dyn Store>, schedule: Schedule) -> Node {
        let store = FaultyStore::new(store.clone());
        let ibid = Ibid::start(store.clone(), Settings::default()).await.expect("it starts");
        let chores = tokio::spawn(upkeep::run(ibid.clone(), schedule));
        Node { ibid, store, chores }
    }

    /// Returns which of the elected chores this node has done.
    fn done(&self) -> Vec<&'static str> {
        done(&self.ibid)
    }

    /// Ends the chores as a crash would: nothing is released.
    fn die(&self) {
        self.store.set(StoreFault::Down);
        self.chores.abort();
    }
}

fn done(node: &Ibid) -> Vec<&'static str> {
    let did = node.chores().into_iter().filter(|chore| chore.succeeded_at.is_some()).map(|chore| chore.name);
    did.filter(|name| ELECTED.contains(name)).collect()
}

fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(Clock::system()))
}

/// Waits until `node` has done `chores`, and returns how long that took.
async fn until_done(node: &Node, chores: &[&str]) -> Duration {
    let start = Instant::now();
    while !chores.iter().all(|chore| node.done().contains(chore)) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn one_node_does_the_chores_that_any_node_could_do() {
    let (store, schedule) = (memory(), Schedule::default());
    let first = Node::start(&store, schedule).await;
    until_done(&first, &ELECTED).await;
    let others = [Node::start(&store, schedule).await, Node::start(&store, schedule).await];
    tokio::time::sleep(10 * schedule.reap_every).await;
    for other in &others {
        assert_eq!(other.done(), [""; 0]);
        assert!(
            other.ibid.chores().iter().any(|chore| chore.name == "reconciler"),
            "it looks for overdue records"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_node_is_replaced_within_one_interval() {
    let (store, schedule) = (memory(), Schedule::default());
    // At whichever moment between two heartbeats it dies.
    for extra in [0, 400, 800, 1_200, 1_600] {
        let first = Node::start(&store, schedule).await;
        until_done(&first, &ELECTED).await;
        let second = Node::start(&store, schedule).await;
        tokio::time::sleep(schedule.reap_every + Duration::from_millis(extra)).await;
        assert_eq!(second.done(), [""; 0]);
        first.die();
        assert!(
            until_done(&second, &["sweeper", "evidence"]).await <= schedule.reconcile_every,
            "{extra} ms"
        );
        assert!(until_done(&second, &ELECTED).await <= schedule.reap_every, "{extra} ms");
        second.die();
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_stops_releases_its_chores() {
    let (store, schedule) = (memory(), Schedule::default());
    let first = Node::start(&store, schedule).await;
    until_done(&first, &ELECTED).await;
    let second = Node::start(&store, schedule).await;
    tokio::time::sleep(schedule.sweep_every).await;
    first.chores.abort();
    // The next look finds the role free. A silent node would be replaced half an interval after that.
    assert!(until_done(&second, &["sweeper"]).await <= schedule.reconcile_every / 3);
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_round_hangs_is_replaced() {
    let (store, schedule) = (memory(), Schedule::default());
    let first = Node::start(&store, schedule).await;
    until_done(&first, &ELECTED).await;
    let second = Node::start(&store, schedule).await;
    tokio::time::sleep(schedule.reap_every).await;
    assert_eq!(second.done(), [""; 0]);
    // Its heartbeats go on.
    first.store.set(StoreFault::HangsReaping);
    let replaced = tokio::time::timeout(5 * schedule.reap_every, until_done(&second, &["reaper"])).await;
    replaced.expect("the other node reaps");
    // The round that hung has ended, and the other node keeps the chore.
    first.store.set(StoreFault::None);
    tokio::time::sleep(schedule.reap_every).await;
    let before = reaper_ran_at(&first.ibid);
    tokio::time::sleep(5 * schedule.reap_every).await;
    assert_eq!(reaper_ran_at(&first.ibid), before);
}

#[tokio::test(start_paused = true)]
async fn without_an_election_every_node_does_the_chores() {
    let (store, schedule) = (memory(), Schedule::default());
    let nodes = [Node::start(&store, schedule).await, Node::start(&store, schedule).await];
    for node in &nodes {
        // A setting can't be written, so no heartbeat is.
        node.store.set(StoreFault::Refuses);
    }
    for node in &nodes {
        until_done(node, &["sweeper", "evidence"]).await;
    }
    // Once the store answers again, one of them stands down.
    for node in &nodes {
        node.store.set(StoreFault::None);
    }
    tokio::time::sleep(schedule.reap_every).await;
    let before = nodes.each_ref().map(|node| sweeper_ran_at(&node.ibid));
    tokio::time::sleep(10 * schedule.sweep_every).await;
    let idle = (0..2).filter(|&n| sweeper_ran_at(&nodes[n].ibid) == before[n]).count();
    assert_eq!(idle, 1);
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_store_hangs_sends_one_heartbeat() {
    let (store, schedule) = (memory(), Schedule::default());
    let node = Node::start(&store, schedule).await;
    until_done(&node, &ELECTED).await;
    node.store.set(StoreFault::HangsSettings);
    tokio::time::sleep(schedule.reap_every).await;
    let sent = node.store.setting_writes();
    let before = sweeper_ran_at(&node.ibid);
    tokio::time::sleep(10 * schedule.reap_every).await;
    assert_eq!(node.store.setting_writes(), sent, "the same ones, for as long as it takes");
    assert!(sweeper_ran_at(&node.ibid) > before, "meanwhile it does the chores");
    node.store.set(StoreFault::None);
    tokio::time::sleep(schedule.reap_every).await;
    assert!(node.store.setting_writes() > sent);
}

#[tokio::test(start_paused = true)]
async fn an_election_that_panics_ends_no_chore() {
    let (store, schedule) = (memory(), Schedule::default());
    let node = Node::start(&store, schedule).await;
    node.store.set(StoreFault::PanicsOnSettings);
    until_done(&node, &ELECTED).await;
    let before = sweeper_ran_at(&node.ibid);
    tokio::time::sleep(10 * schedule.sweep_every).await;
    assert!(sweeper_ran_at(&node.ibid) > before && !node.chores.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_replaced_node_exports_no_numbers() {
    // A recorder for this thread only, on which all tasks of this test run.
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let _numbers = metrics::set_default_local_recorder(&recorder);
    let exported = |value: &str| {
        let page = page.render();
        let mut values = page.lines().filter(|line| line.starts_with("ibid_records{"));
        values.next().is_some() && values.all(|line| line.ends_with(value))
    };
    let (store, schedule) = (memory(), Schedule::default());
    let node = Node::start(&store, schedule).await;
    until_done(&node, &ELECTED).await;
    assert!(exported(" 0"), "{}", page.render());
    // Its next round takes long, and another node is elected meanwhile.
    node.store.set(StoreFault::HangsReaping);
    tokio::time::sleep(2 * schedule.reap_every).await;
    let role = "upkeep:reap";
    loop {
        let stored = store.setting(role).await.expect("it is read");
        let other = Bytes::from_static(b"0123456789abcdef 1");
        if store.compare_and_set(role, stored, other).await.expect("it is written") == SetOutcome::Won {
            break;
        }
    }
    while !exported(" NaN") {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let before = reaper_ran_at(&node.ibid);
    node.store.set(StoreFault::None);
    while reaper_ran_at(&node.ibid) == before {
        tokio::task::yield_now().await;
    }
    assert!(exported(" NaN"), "{}", page.render());
}

fn sweeper_ran_at(node: &Ibid) -> Option<std::time::SystemTime> {
    node.chores().into_iter().find(|chore| chore.name == "sweeper")?.succeeded_at
}

fn reaper_ran_at(node: &Ibid) -> Option<std::time::SystemTime> {
    node.chores().into_iter().find(|chore| chore.name == "reaper")?.succeeded_at
}

/// Two nodes with a runtime each. The first one's runtime ends as in a crash: no task runs on, so nothing is released.
fn a_survivor_takes_over(open: impl AsyncFn() -> Arc<dyn Store>) {
    // Short, and long enough that a slow disk is not taken for a dead node while the test waits.
    let schedule = Schedule::default().with(|schedule| {
        schedule.sweep_every = Duration::from_secs(2);
        schedule.reconcile_every = Duration::from_secs(2);
        schedule.reap_every = Duration::from_secs(2);
    });
    let runtimes = [(); 2].map(|()| Runtime::new().expect("a runtime"));
    let start = |runtime: &Runtime| {
        runtime.block_on(async {
            let ibid = Ibid::start(open().await, Settings::default()).await.expect("it starts");
            tokio::spawn(upkeep::run(ibid.clone(), schedule));
            ibid
        })
    };
    let [first, second] = runtimes;
    let until_done = |node: &Ibid| {
        while done(node) != ELECTED {
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let one = start(&first);
    until_done(&one);
    let other = start(&second);
    first.shutdown_background();
    until_done(&other);
}

#[test]
fn a_survivor_takes_over_on_sqlite() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("ibid.db");
    a_survivor_takes_over(async || {
        Arc::new(SqliteStore::open(&path, SqliteOptions::default()).expect("it opens")) as Arc<dyn Store>
    });
}

#[cfg(feature = "postgres")]
#[test]
fn a_survivor_takes_over_on_postgres() {
    use ibid::store::postgres::{PostgresOptions, PostgresStore};

    let server = ibid_testkit::postgres::Postgres::shared();
    let url = server.url_for(&server.create_database());
    a_survivor_takes_over(async || {
        let store = PostgresStore::open(&url, PostgresOptions::default()).await;
        Arc::new(store.expect("it opens")) as Arc<dyn Store>
    });
}
