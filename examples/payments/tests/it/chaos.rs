//! Two nodes on one database, which die where a seed decides, the database crashed too where it is a server, and a
//! processor that misbehaves: every key is one payment or ride, everything settles, the processor charges exactly once for
//! each, and no answer ever changes.
//!
//! Each life of a node ends at a place in its work, the nth time that it comes by, both drawn from the seed; the database
//! crashes after a number of answers, drawn too. Clients go on until all of it has happened. `scripts/soak` runs it;
//! `IBID_SEED=… cargo nextest run --profile soak …` draws the same again.

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

use crate::clients::{TOKEN, Told, Wish, is_later, wishes};
use crate::failpoints::places;
use crate::harness::Program;
use crate::world::{Place, World, eventually, posted};

#[tokio::test(flavor = "multi_thread")]
async fn everything_settles_whatever_is_killed_on_postgres() {
    everything_settles(Place::own_postgres()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_settles_whatever_is_killed_in_one_file() {
    everything_settles(Place::sqlite()).await;
}

/// What the test is told as it goes.
enum News {
    /// A client has an answer.
    Answered(Told),
    /// A node has killed itself there.
    Died(usize, String),
}

/// What clients and nodes share.
struct Scene {
    addresses: Mutex<[Option<SocketAddr>; 2]>,
    /// Held by whoever starts a node, or crashes the database that it would need.
    starting: tokio::sync::Mutex<()>,
    /// Lives that have not ended yet, of both nodes.
    lives: AtomicUsize,
    /// Requests that were sent and never answered.
    cut: AtomicUsize,
}

async fn everything_settles(place: Place) {
    let seed = match std::env::var("IBID_SEED") {
        Ok(seed) => seed.parse().expect("a number"),
        Err(_) => RandomState::new().hash_one(0u8),
    };
    println!("IBID_SEED={seed}");
    let provider = CardProcessor::start(ProcessorOptions {
        faults: ChargeFaults::parse(FAULTS).expect("faults"),
        seed,
        ..ProcessorOptions::default()
    });
    let mut world = World { place, provider };
    let mut dice = Dice(seed);
    let mut crashes: Vec<usize> = (0..CRASHES).map(|_| 1 + dice.below(CLIENTS * REQUESTS)).collect();
    if matches!(world.place, Place::Sqlite(_)) {
        crashes.clear();
    }
    let scene = Arc::new(Scene {
        addresses: Mutex::default(),
        starting: tokio::sync::Mutex::default(),
        lives: AtomicUsize::new(2 * LIVES),
        cut: AtomicUsize::new(0),
    });
    let (tell, mut told) = mpsc::unbounded_channel();
    let nodes = [0, 1].map(|n| {
        let ends = lives(&mut dice);
        let commands = ends.into_iter().map(|end| (world.serve(LEASE, "100ms", "100ms"), end)).collect();
        let last = world.serve(LEASE, "100ms", "100ms");
        tokio::spawn(nodes_lives(n, commands, last, scene.clone(), tell.clone()))
    });
    let clients = (0..CLIENTS).map(|client| tokio::spawn(clients_work(client, scene.clone(), tell.clone())));
    let clients: Vec<_> = clients.collect();
    drop(tell);

    let mut kept: HashMap<String, Told> = HashMap::new();
    let (mut answers, mut deaths) = (0, 0);
    while let Some(news) = told.recv().await {
        match news {
            News::Answered(answer) => {
                answers += 1;
                // The other client of this key has been given the same.
                let before = kept.get(&answer.wish.key).map(|before| before.body.clone());
                assert!(
                    before.is_none_or(|before| before == answer.body),
                    "{:?} has two answers",
                    answer.wish
                );
                kept.insert(answer.wish.key.clone(), answer);
                for _ in crashes.extract_if(.., |at| *at == answers) {
                    println!("after {answers} answers: the database");
                    let Place::Postgres(server) = &mut world.place else { unreachable!("a server") };
                    let _held = scene.starting.lock().await;
                    block_in_place(|| server.restart());
                }
            }
            News::Died(node, at) => {
                println!("after {answers} answers: node {node} at {at}");
                deaths += 1;
                world.has_a_payment_exactly_for_each_answer().await;
            }
        }
    }
    // Whoever panicked has not told everything.
    join_all(clients).await.into_iter().for_each(|client| client.expect("no client panics"));
    let nodes: Vec<_> =
        join_all(nodes).await.into_iter().map(|node| node.expect("nodes die as drawn")).collect();
    assert_eq!((deaths, crashes), (2 * LIVES, vec![]));
    assert!(answers >= CLIENTS * REQUESTS, "{answers}");
    world.has_kept_its_promise(nodes[0].address, kept.into_values().collect()).await;

    // None of it would be so if nothing had been broken.
    let cut = scene.cut.load(Ordering::Relaxed);
    let (_, list) = world.provider.get("/charges").await;
    let (asked, charged) = (list["requests"].as_u64().expect("a number"), list["count"].as_u64());
    println!("{answers} answers, {cut} requests cut, {asked} calls for {charged:?} charges");
    assert!(cut > 0, "a node died with a request in its hands");
    assert!(Some(asked) > charged, "a charge whose worker died was asked for again");
}

/// Where the lives of a node end, as in `IBID_FAILPOINTS`. The first has a client's request in its hands, of which nobody
/// else has heard; the second has called the processor and not written that down.
fn lives(dice: &mut Dice) -> Vec<String> {
    let all = places();
    let mut ends = vec![IN_A_REQUEST[dice.below(IN_A_REQUEST.len())], "call.after"];
    ends.extend((ends.len()..LIVES).map(|_| all[dice.below(all.len())]));
    ends.into_iter()
        .map(|place| format!("{place}={}*off->1*return(kill)", 1 + dice.below(PASSES_MAX)))
        .collect()
}

/// One node after the other in the same place, and the last, which stays.
async fn nodes_lives(
    node: usize,
    lives: Vec<(Command, String)>,
    last: Command,
    scene: Arc<Scene>,
    tell: mpsc::UnboundedSender<News>,
) -> Program {
    for (mut command, end) in lives {
        command.env("IBID_FAILPOINTS", &end);
        // It may die of what the one before has left, and never listen.
        let ended = match scene.start(node, command).await {
            Ok(mut program) => {
                eventually("the node kills itself", || std::future::ready(program.ended())).await
            }
            Err(ended) => ended,
        };
        assert_eq!(ended.signal(), Some(9), "{end}: {ended}");
        scene.lives.fetch_sub(1, Ordering::Relaxed);
        // The test has failed if nobody listens any more.
        let _ = tell.send(News::Died(node, end));
    }
    scene.start(node, last).await.expect("it listens")
}

impl Scene {
    async fn start(&self, node: usize, command: Command) -> Result<Program, std::process::ExitStatus> {
        let _held = self.starting.lock().await;
        let program = block_in_place(|| Program::try_of(command))?;
        self.addresses.lock().expect("nobody panics with it")[node] = Some(program.address);
        Ok(program)
    }

    /// Posts to a node that may be dying.
    async fn post(&self, node: usize, wish: &Wish) -> Option<TestResponse> {
        let address = self.addresses.lock().expect("nobody panics with it")[node]?;
        let mut client = Client::try_connect(address).await?;
        let answer = client.try_call(&posted(wish.target, TOKEN, &wish.key, &wish.body)).await;
        let answer = answer.filter(|answer| !answer.cut);
        if answer.is_none() {
            self.cut.fetch_add(1, Ordering::Relaxed);
        }
        answer
    }
}

/// One client: its requests one after the other, each to one node and the other until it is done. Another client has the
/// same keys, and begins with the other node. It goes on for as long as a node is yet to die.
async fn clients_work(client: usize, scene: Arc<Scene>, tell: mpsc::UnboundedSender<News>) {
    let mut own = wishes(REQUESTS_MAX / 2, REQUESTS_MAX / 2);
    // Payments and rides in turn.
    own.sort_by_key(|wish| (wish.key[1..].parse::<usize>().expect("a number"), wish.key.clone()));
    for (n, wish) in own.into_iter().enumerate() {
        if n >= REQUESTS && scene.lives.load(Ordering::Relaxed) == 0 {
            return;
        }
        let wish = Wish { key: format!("{}-{}", wish.key, client / CLIENTS_OF_A_KEY), ..wish };
        let mut tries = client;
        let answer = eventually("the request is carried out", || {
            tries += 1;
            let (scene, wish) = (&scene, &wish);
            async move { scene.post(tries % 2, wish).await.filter(|answer| !is_later(answer)) }
        })
        .await;
        assert_eq!(answer.status, 201, "{wish:?}: {}", answer.text());
        // The test has failed if nobody listens any more.
        let _ = tell.send(News::Answered(Told::new(wish, answer.body)));
    }
    panic!("the nodes live on");
}

/// Draws the same from the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        // Knuth's constants: plenty for some dozen draws.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

/// Places that only a request comes by.
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

/// Of each node that end early: often enough that some successors die of what was left to them.
const LIVES: usize = 4;

/// How often a place is passed before it is hit, at most. More would need more requests than the test's time has room for.
const PASSES_MAX: usize = 6;

/// Crashes of a database that is a server.
const CRASHES: usize = 2;

/// One call in six. More would make the pauses between an effect's tries longer than the test's patience.
const FAULTS: &str = "timeout=0.01,reset=0.04,error=0.04,refuse=0.02,busy=0.03:1s,late=0.03:300ms";

/// Short, so that what a killed node left is taken up soon.
const LEASE: &str = "2s";

const CLIENTS: usize = 8;

/// A client and its double: a user who presses twice, or a load balancer that sends again.
const CLIENTS_OF_A_KEY: usize = 2;

/// Of each client, at least.
const REQUESTS: usize = 20;

/// Of each client, at most: each life needs some requests to come to its end.
const REQUESTS_MAX: usize = 400;
