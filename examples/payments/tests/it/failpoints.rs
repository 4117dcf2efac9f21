//! Every failpoint with every action (kill, error, stop, doze, lost reply) on both databases. After each, every request
//! must have run exactly once.
//!
//! One node has a failpoint armed for one hit. Clients retry until they have a response. A killed node is replaced by
//! another one; a stopped node is woken after another one has done its work.

use std::fmt::Debug;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{join, join_all};
use ibid_testkit::postgres::Postgres;
use tokio::sync::watch;

use crate::armed_node::ArmedNode;
use crate::clients::{CompletedRequest, PlannedRequest, plan_requests, send_until_done};
use crate::fixture::{DatabaseAndProcessor, Node, TestDatabase};
use crate::harness::Program;

use self::matrix::{Action, Case, Proof};

pub(crate) use self::matrix::failpoint_names;

mod keyless;
mod keyless_rides;
mod matrix;

#[tokio::test(flavor = "multi_thread")]
async fn requests_survive_kills_and_stops_on_sqlite() {
    on_sqlite(&[Action::Kill, Action::Stop]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_survive_faults_of_a_running_node_on_sqlite() {
    on_sqlite(&[Action::Error, Action::Lost, Action::Doze]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_survive_kills_and_stops_on_postgres() {
    on_postgres(&[Action::Kill, Action::Stop]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_survive_faults_of_a_running_node_on_postgres() {
    on_postgres(&[Action::Error, Action::Lost, Action::Doze]).await;
}

/// Run by the soak profile: they take the whole machine for most of a minute.
#[cfg(feature = "mysql")]
mod mysql {
    use super::{Action, CASES_AT_ONCE, all_on_mariadb, matrix, run};

    #[tokio::test(flavor = "multi_thread")]
    async fn requests_survive_kills_and_stops_on_mariadb() {
        all_on_mariadb(CASES_AT_ONCE, matrix::cases(&[Action::Kill, Action::Stop]), run).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn requests_survive_faults_of_a_running_node_on_mariadb() {
        let faults = [Action::Error, Action::Lost, Action::Doze];
        all_on_mariadb(CASES_AT_ONCE, matrix::cases(&faults), run).await;
    }
}

async fn on_sqlite(actions: &[Action]) {
    all_on_sqlite(CASES_AT_ONCE, matrix::cases(actions), run).await;
}

async fn on_postgres(actions: &[Action]) {
    all_on_postgres(CASES_AT_ONCE, matrix::cases(actions), run).await;
}

async fn all_on_sqlite<C, F>(
    at_once: usize,
    cases: Vec<C>,
    run: impl Fn(C, TestDatabase) -> F + Copy + Send + 'static,
) where
    C: Copy + Debug + Send + 'static,
    F: Future<Output = usize> + Send,
{
    all(at_once, cases, run, || TestDatabase::sqlite).await;
}

async fn all_on_postgres<C, F>(
    at_once: usize,
    cases: Vec<C>,
    run: impl Fn(C, TestDatabase) -> F + Copy + Send + 'static,
) where
    C: Copy + Debug + Send + 'static,
    F: Future<Output = usize> + Send,
{
    let server = Arc::new(Postgres::shared());
    let lane = || {
        let (server, database) = (server.clone(), server.create_database());
        move || {
            // Cheaper than another database, and safe: all nodes of the previous case have ended.
            server.sql(&database, "drop schema public cascade; create schema public");
            TestDatabase::OnServer(server.clone(), database.clone())
        }
    };
    all(at_once, cases, run, lane).await;
}

#[cfg(feature = "mysql")]
async fn all_on_mariadb<C, F>(
    at_once: usize,
    cases: Vec<C>,
    run: impl Fn(C, TestDatabase) -> F + Copy + Send + 'static,
) where
    C: Copy + Debug + Send + 'static,
    F: Future<Output = usize> + Send,
{
    all(at_once, cases, run, || TestDatabase::mariadb).await;
}

/// Runs the cases in parallel lanes, each with a separate database: most of a case is waiting for a lease to lapse.
async fn all<C, F, P>(
    at_once: usize,
    cases: Vec<C>,
    run: impl Fn(C, TestDatabase) -> F + Copy + Send + 'static,
    lane: impl Fn() -> P,
) where
    C: Copy + Debug + Send + 'static,
    F: Future<Output = usize> + Send,
    P: Fn() -> TestDatabase + Send + 'static,
{
    let count = cases.len();
    let cases = Arc::new(Mutex::new(cases.into_iter()));
    let lanes = (0..at_once).map(|_| {
        let (cases, new_database) = (cases.clone(), lane());
        tokio::spawn(async move {
            let next = || cases.lock().expect("no panic under the lock").next();
            let mut requests = 0;
            while let Some(case) = next() {
                println!("{case:?} …");
                requests += run(case, tokio::task::block_in_place(&new_database)).await;
                println!("{case:?} passed");
            }
            requests
        })
    });
    let requests = join_all(lanes).await.into_iter().map(|lane| lane.expect("every case passes"));
    let requests: usize = requests.sum();
    println!("{count} cases, {requests} requests, each of them one row and one charge");
}

/// Runs one case and returns the number of its requests.
async fn run(case: Case, database: TestDatabase) -> usize {
    let is_sqlite = matches!(database, TestDatabase::Sqlite(_));
    let world = DatabaseAndProcessor::new(database, "");
    match case.action {
        Action::Kill => run_kill(case, &world).await,
        Action::Stop if !is_sqlite => run_stop(case, &world, plan_requests(3, case.rides())).await,
        Action::Stop if case.is_in_transaction() => run_stop_in_transaction(case, &world).await,
        Action::Stop => run_stop_on_sqlite(case, world).await,
        Action::Error | Action::Lost | Action::Doze => run_fault(case, &world).await,
    }
}

/// The node is killed, and another one takes over.
async fn run_kill(case: Case, world: &DatabaseAndProcessor) -> usize {
    let mut armed = ArmedNode::start(world, LEASE, &case.failpoint(0, case.rides())).await;
    let (turn_to, node) = watch::channel(armed.node.0.address);
    let breaking = async {
        armed.wait_until_killed().await;
        world.assert_payments_match_responses().await;
        world.lapse().await;
        let next = world.node(LEASE);
        turn_to.send_replace(next.0.address);
        next
    };
    let (completed, next) = join(send_until_done(plan_requests(3, case.rides()), &node), breaking).await;
    let requests = completed.len();
    world.assert_each_ran_once(next.0.address, completed).await;
    requests
}

/// The node survives the fault and recovers from it without another node.
async fn run_fault(case: Case, world: &DatabaseAndProcessor) -> usize {
    let armed = ArmedNode::start(world, LEASE, &case.failpoint(0, case.rides())).await;
    let (_turn_to, node) = watch::channel(armed.node.0.address);
    let hit = armed.wait_for_log("a failpoint is hit");
    let (completed, ()) = join(send_until_done(plan_requests(3, case.rides()), &node), hit).await;
    let requests = completed.len();
    world.assert_each_ran_once(armed.node.0.address, completed).await;
    requests
}

/// The whole node stops and becomes a zombie: another node does its work, then the zombie continues where it stopped.
async fn run_stop(case: Case, world: &DatabaseAndProcessor, planned: Vec<PlannedRequest>) -> usize {
    let armed = ArmedNode::start(world, LEASE, &case.failpoint(0, case.rides())).await;
    let requests = run_zombie(case, world, armed, planned, Vec::new()).await;
    requests.expect("a server always accepts writes")
}

/// Like [`run_stop`], on SQLite at a failpoint outside a transaction.
///
/// Another node can write the file only if no thread of the zombie was writing when it stopped. If one was, the case
/// starts over with another file.
async fn run_stop_on_sqlite(case: Case, mut world: DatabaseAndProcessor) -> usize {
    for _ in 0..STOPS_MAX {
        let armed = ArmedNode::from_command(world.serve(LEASE, NEVER, NEVER), &case.failpoint(1, 1)).await;
        let (_turn_to, node) = watch::channel(armed.node.0.address);
        // Once this payment is settled, the work at the node's start is mostly done, and its chores never run again. So it
        // is unlikely to be writing when it stops.
        let first = plan_requests(2, 0).remove(1);
        let completed = send_until_done(vec![first], &node).await;
        world.wait_for_rows("select status from payment", &["succeeded"]).await;
        let planned = if case.rides() > 0 { plan_requests(0, 1) } else { plan_requests(1, 0) };
        if let Some(requests) = run_zombie(case, &world, armed, planned, completed).await {
            return requests;
        }
        world = DatabaseAndProcessor::new(TestDatabase::sqlite(), "");
    }
    panic!("{case:?}: the node was writing at each of {STOPS_MAX} stops");
}

/// Stops the armed node, lets another do its work, and wakes it. Returns the number of requests, or `None` if the stopped
/// node holds the write lock of the database.
async fn run_zombie(
    case: Case,
    world: &DatabaseAndProcessor,
    armed: ArmedNode,
    planned: Vec<PlannedRequest>,
    before: Vec<CompletedRequest>,
) -> Option<usize> {
    let (turn_to, node) = watch::channel(armed.node.0.address);
    let asking = tokio::spawn(async move { send_until_done(planned, &node).await });
    armed.wait_until_stopped().await;
    if !world.can_be_written().await {
        asking.abort();
        return None;
    }
    world.lapse().await;
    let next = world.node(LEASE);
    turn_to.send_replace(next.0.address);
    let mut completed = asking.await.expect("no panic");
    completed.extend(before);
    world.wait_for_rows("select id from payment where status <> 'succeeded'", &[]).await;
    world.assert_payments_match_responses().await;
    match case.proof() {
        Proof::None => {}
        Proof::Lapse => {
            let lapses = world.texts("select detail from ibid_event where detail like '%lapsed%'").await;
            assert!(!lapses.is_empty(), "no other node took over");
        }
        Proof::SecondTry => {
            let repeated = world.texts("select name from ibid_effects where tries > 1").await;
            assert!(!repeated.is_empty(), "no other worker made the call");
        }
    }
    armed.node.0.wake();
    if let Some(line) = case.zombie_log() {
        armed.wait_for_log(line).await;
    }
    // SIGTERM lets the zombie finish all its work first.
    assert!(armed.node.0.stop(), "the zombie exits with 0");
    let requests = completed.len();
    world.assert_each_ran_once(next.0.address, completed).await;
    Some(requests)
}

/// Like [`run_stop`], on SQLite inside a transaction.
///
/// The stopped node holds SQLite's write lock. So no other node can take over, and the zombie's own work is committed.
async fn run_stop_in_transaction(case: Case, world: &DatabaseAndProcessor) -> usize {
    // This node must not run the effects that are meant to stop the other one. Its worker polls only at the start, which is
    // over once this payment is settled.
    let next = Node(Program::from_command(world.serve(LEASE, "100ms", NEVER)));
    let (_turn_to, node) = watch::channel(next.0.address);
    let before = send_until_done(vec![plan_requests(4, 0).remove(3)], &node).await;
    world.wait_for_rows("select status from payment", &["succeeded"]).await;
    let armed = ArmedNode::start(world, LEASE, &case.failpoint(0, case.rides())).await;
    let (_turn_to, node) = watch::channel(armed.node.0.address);
    let breaking = async {
        armed.wait_until_stopped().await;
        tokio::time::sleep(PAST_THE_LEASE).await;
        world.assert_payments_match_responses().await;
        armed.node.0.wake();
    };
    let (mut completed, ()) = join(send_until_done(plan_requests(3, case.rides()), &node), breaking).await;
    completed.extend(before);
    let requests = completed.len();
    world.assert_each_ran_once(next.0.address, completed).await;
    requests
}

/// The shortest lease that works on a machine that is busy with other tests.
const LEASE: &str = "1s";

/// Time that a node stays stopped, or a task dozes, where no event shows that the lease has lapsed.
///
/// It is not a synchronisation: a shorter time would prove less, but the test would still pass.
pub(crate) const PAST_THE_LEASE: Duration = Duration::from_millis(1500);

/// Tries of [`run_stop_on_sqlite`]. A start and a payment take some tens of milliseconds, of which a node writes for a few,
/// so five unlucky stops in a row are a bug.
const STOPS_MAX: usize = 5;

/// An interval that is longer than any test.
const NEVER: &str = "1h";

/// Cases that run in parallel: twice the cores, because half of the cases wait at any time.
const CASES_AT_ONCE: usize = 4;
