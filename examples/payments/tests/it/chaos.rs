//! Randomized crashes: two nodes on one database die at failpoints, a database server crashes, too, and the processor
//! injects faults. Still every key makes one payment or ride, everything settles, the processor charges exactly once for
//! each, and no response ever changes.
//!
//! The seed decides at which failpoint, and at which hit of it, each life of a node ends, and after how many responses the
//! server crashes. Clients send requests until all of it has happened. `scripts/soak` runs this test;
//! `IBID_SEED=… cargo nextest run --profile soak …` makes the same draws again.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::future::join_all;
use ibid_testkit::client::{Client, TestResponse};
use ibid_testkit::processor::{CardProcessor, ChargeFaults, ProcessorOptions};
use tokio::sync::mpsc;
use tokio::task::block_in_place;

use crate::clients::{CompletedRequest, PlannedRequest, TOKEN, is_later, plan_requests};
use crate::failpoints::failpoint_names;
use crate::fixture::{DatabaseAndProcessor, TestDatabase, post_request, wait_for};
use crate::harness::Program;

#[tokio::test(flavor = "multi_thread")]
async fn everything_settles_whatever_is_killed_on_postgres() {
    everything_settles(TestDatabase::own_postgres()).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn everything_settles_whatever_is_killed_on_mariadb() {
    everything_settles(TestDatabase::own_mariadb()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_settles_whatever_is_killed_in_one_file() {
    everything_settles(TestDatabase::sqlite()).await;
}

/// An event that a client or a node reports to the test.
enum News {
    /// A client got a 201 response.
    Answered(CompletedRequest),
    /// A node has killed itself at this failpoint.
    Died(usize, String),
}

/// State that clients and nodes share.
struct Scene {
    addresses: Mutex<[Option<SocketAddr>; 2]>,
    /// Held while a node starts and while the database crashes, because a starting node needs the database.
    starting: tokio::sync::Mutex<()>,
    /// Number of lives that have not ended yet, of both nodes together.
    lives: AtomicUsize,
    /// Number of requests that were sent and got no response.
    cut: AtomicUsize,
}

async fn everything_settles(database: TestDatabase) {
    let seed = draw_seed();
    println!("IBID_SEED={seed}");
    let provider = CardProcessor::start(ProcessorOptions {
        faults: ChargeFaults::parse(FAULTS).expect("faults"),
        seed,
        ..ProcessorOptions::default()
    });
    let mut world = DatabaseAndProcessor { database, provider };
    let mut dice = Dice(seed);
    let mut crashes: Vec<usize> = (0..CRASHES).map(|_| 1 + dice.below(CLIENTS * REQUESTS)).collect();
    if matches!(world.database, TestDatabase::Sqlite(_)) {
        crashes.clear();
    }
    let scene = Arc::new(Scene {
        addresses: Mutex::default(),
        starting: tokio::sync::Mutex::default(),
        lives: AtomicUsize::new(2 * LIVES),
        cut: AtomicUsize::new(0),
    });
    let (sender, mut events) = mpsc::unbounded_channel();
    let nodes = [0, 1].map(|n| {
        let ends = lives(&mut dice);
        let commands = ends.into_iter().map(|end| (world.serve(LEASE, "100ms", "100ms"), end)).collect();
        let last = world.serve(LEASE, "100ms", "100ms");
        tokio::spawn(run_node(n, commands, last, scene.clone(), sender.clone()))
    });
    let clients = (0..CLIENTS).map(|client| tokio::spawn(run_client(client, scene.clone(), sender.clone())));
    let clients: Vec<_> = clients.collect();
    drop(sender);

    let mut completed: HashMap<String, CompletedRequest> = HashMap::new();
    let (mut answers, mut deaths) = (0, 0);
    while let Some(event) = events.recv().await {
        match event {
            News::Answered(answer) => {
                answers += 1;
                record_response(&mut completed, answer);
                for _ in crashes.extract_if(.., |at| *at == answers) {
                    println!("after {answers} responses: the database crashes");
                    let _guard = scene.starting.lock().await;
                    block_in_place(|| world.database.restart());
                }
            }
            News::Died(node, at) => {
                println!("after {answers} responses: node {node} dies at {at}");
                deaths += 1;
                world.assert_payments_match_responses().await;
            }
        }
    }
    // A client that panicked has not reported all its responses.
    join_all(clients).await.into_iter().for_each(|client| client.expect("no client panics"));
    let nodes: Vec<_> =
        join_all(nodes).await.into_iter().map(|node| node.expect("nodes die as drawn")).collect();
    assert_eq!((deaths, crashes), (2 * LIVES, vec![]));
    assert!(answers >= CLIENTS * REQUESTS, "{answers}");
    world.assert_each_ran_once(nodes[0].address, completed.into_values().collect()).await;
    assert_faults_happened(&world, &scene, answers).await;
}

/// Returns the seed that `IBID_SEED` sets, or else a random one.
fn draw_seed() -> u64 {
    match std::env::var("IBID_SEED") {
        Ok(seed) => seed.parse().expect("a number"),
        Err(_) => RandomState::new().hash_one(0u8),
    }
}

/// Stores a response under its key. Two clients use each key, and both must get the same response.
fn record_response(completed: &mut HashMap<String, CompletedRequest>, answer: CompletedRequest) {
    let before = completed.get(&answer.request.key).map(|before| before.body.clone());
    assert!(
        before.is_none_or(|before| before == answer.body),
        "{:?} has two different responses",
        answer.request
    );
    completed.insert(answer.request.key.clone(), answer);
}

/// Proves that the faults happened: without them, the other assertions would hold trivially.
async fn assert_faults_happened(world: &DatabaseAndProcessor, scene: &Scene, answers: usize) {
    let cut = scene.cut.load(Ordering::Relaxed);
    let (_, list) = world.provider.get("/charges").await;
    let (asked, charged) = (list["requests"].as_u64().expect("a number"), list["count"].as_u64());
    println!("{answers} responses, {cut} requests cut, {asked} calls for {charged:?} charges");
    assert!(cut > 0, "a node died with a request in flight");
    assert!(Some(asked) > charged, "a charge whose worker died was requested again");
}

/// Draws where the lives of a node end, in the syntax of `IBID_FAILPOINTS`.
///
/// The first life always ends during a client's request, and the second after a call to the processor whose result is not
/// yet written: the test needs both to prove something.
fn lives(dice: &mut Dice) -> Vec<String> {
    let all = failpoint_names();
    let mut ends = vec![IN_A_REQUEST[dice.below(IN_A_REQUEST.len())], "call.after"];
    ends.extend((ends.len()..LIVES).map(|_| all[dice.below(all.len())]));
    ends.into_iter()
        .map(|point| format!("{point}={}*off->1*return(kill)", 1 + dice.below(PASSES_MAX)))
        .collect()
}

/// Runs one process after the other as this node, and returns the last, which does not die.
async fn run_node(
    node: usize,
    lives: Vec<(Command, String)>,
    last: Command,
    scene: Arc<Scene>,
    sender: mpsc::UnboundedSender<News>,
) -> Program {
    for (mut command, end) in lives {
        command.env("IBID_FAILPOINTS", &end);
        // It may hit its failpoint in work that its predecessor left, and die before it listens.
        let status = match scene.start(node, command).await {
            Ok(mut program) => {
                wait_for("the node kills itself", || std::future::ready(program.exit_status())).await
            }
            Err(status) => status,
        };
        assert_eq!(status.signal(), Some(9), "{end}: {status}");
        scene.lives.fetch_sub(1, Ordering::Relaxed);
        // Sending fails only if the test has already failed.
        let _ = sender.send(News::Died(node, end));
    }
    scene.start(node, last).await.expect("it listens")
}

impl Scene {
    async fn start(&self, node: usize, command: Command) -> Result<Program, std::process::ExitStatus> {
        let _guard = self.starting.lock().await;
        let program = block_in_place(|| Program::try_from_command(command))?;
        self.addresses.lock().expect("no panic under the lock")[node] = Some(program.address);
        Ok(program)
    }

    /// Posts to a node that may be dying.
    async fn post(&self, node: usize, request: &PlannedRequest) -> Option<TestResponse> {
        let address = self.addresses.lock().expect("no panic under the lock")[node]?;
        let mut client = Client::try_connect(address).await?;
        let answer = client.try_call(&post_request(request.target, TOKEN, &request.key, &request.body)).await;
        let answer = answer.filter(|answer| !answer.cut);
        if answer.is_none() {
            self.cut.fetch_add(1, Ordering::Relaxed);
        }
        answer
    }
}

/// Runs one client until all lives have ended: it sends its requests one after the other, each to both nodes in turn until
/// it is done.
///
/// Another client has the same keys and begins with the other node.
async fn run_client(client: usize, scene: Arc<Scene>, sender: mpsc::UnboundedSender<News>) {
    let mut planned = plan_requests(REQUESTS_MAX / 2, REQUESTS_MAX / 2);
    // Payments and rides in turn.
    planned
        .sort_by_key(|request| (request.key[1..].parse::<usize>().expect("a number"), request.key.clone()));
    for (n, request) in planned.into_iter().enumerate() {
        if n >= REQUESTS && scene.lives.load(Ordering::Relaxed) == 0 {
            return;
        }
        let request =
            PlannedRequest { key: format!("{}-{}", request.key, client / CLIENTS_OF_A_KEY), ..request };
        let mut tries = client;
        let answer = wait_for("the request is done", || {
            tries += 1;
            let (scene, request) = (&scene, &request);
            async move { scene.post(tries % 2, request).await.filter(|answer| !is_later(answer)) }
        })
        .await;
        assert_eq!(answer.status, 201, "{request:?}: {}", answer.text());
        // Sending fails only if the test has already failed.
        let _ = sender.send(News::Answered(CompletedRequest::new(request, answer.body)));
    }
    panic!("a node did not die");
}

/// A random number generator that makes the same draws from the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        // Knuth's constants: plenty for some dozen draws.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

/// Failpoints that only a client's request hits.
const IN_A_REQUEST: [&str; 10] = [
    "begin.before",
    "begin.after",
    "phase.before",
    "phase.after",
    "outside.after",
    "tell.before",
    "tell.after",
    "enqueue.after",
    "finish.before",
    "finish.after",
];

/// Lives of each node that end early. With four, some nodes die in work that their predecessor left.
const LIVES: usize = 4;

/// Largest number of passes before a failpoint acts. More would need more requests than the test has time for.
const PASSES_MAX: usize = 6;

/// Crashes of the PostgreSQL server.
const CRASHES: usize = 2;

/// Faults in one call of six. With more, the pauses between an effect's tries would exceed the test's patience.
const FAULTS: &str = "timeout=0.01,reset=0.04,error=0.04,refuse=0.02,busy=0.03:1s,late=0.03:300ms";

/// Short, so that another node soon takes over the work of a killed one.
const LEASE: &str = "2s";

const CLIENTS: usize = 8;

/// Clients that share their keys, like a user who clicks twice or a load balancer that sends a request again.
const CLIENTS_OF_A_KEY: usize = 2;

/// Smallest number of requests per client.
const REQUESTS: usize = 20;

/// Largest number of requests per client. Each life needs some requests until its failpoint acts.
const REQUESTS_MAX: usize = 400;
