//! Two nodes on one database, killed in an order that a seed decides, the database crashed too where it is a server, and
//! a processor that misbehaves: every key is one payment or ride, everything settles, the processor charges exactly once
//! for each, and no answer ever changes.
//!
//! What breaks next depends on how far the clients have come, not on time. `IBID_SEED=… cargo nextest run …` breaks the
//! same things in the same order again.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::sync::mpsc;
use tokio::task::block_in_place;

use crate::clients::{Told, Wish, is_later, wishes};
use crate::harness::Program;
use crate::world::{Node, Place, World, eventually, try_post_to};

#[tokio::test(flavor = "multi_thread")]
async fn everything_settles_whatever_is_killed_on_postgres() {
    let crashes = [Break::Database; 2];
    everything_settles(Place::postgres(), [&KILLS[..], &crashes[..]].concat()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_settles_whatever_is_killed_in_one_file() {
    everything_settles(Place::sqlite(), KILLS.to_vec()).await;
}

/// What is broken next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Break {
    /// SIGKILL, and another in its place.
    Node(usize),
    /// A crash of the server, and its recovery.
    Database,
}

async fn everything_settles(place: Place, breaks: Vec<Break>) {
    let seed = match std::env::var("IBID_SEED") {
        Ok(seed) => seed.parse().expect("a number"),
        Err(_) => RandomState::new().hash_one(0u8),
    };
    println!("IBID_SEED={seed}");
    let provider = Program::provider(&["--faults", FAULTS, "--seed", &seed.to_string()]);
    let mut world = World { place, provider };
    let mut nodes = [Some(world.node(LEASE)), Some(world.node(LEASE))];
    let addresses = nodes.each_ref().map(|node| node.as_ref().expect("it has started").0.address);
    let addresses = Arc::new(Mutex::new(addresses));
    let (tell, mut told) = mpsc::unbounded_channel();
    for client in 0..CLIENTS {
        tokio::spawn(clients_work(client, addresses.clone(), tell.clone()));
    }
    drop(tell);

    let break_every = CLIENTS * REQUESTS / (breaks.len() + 1);
    let mut plan = shuffled(breaks, seed).into_iter();
    let mut kept: HashMap<String, Told> = HashMap::new();
    let mut answers = 0;
    while let Some(answer) = told.recv().await {
        answers += 1;
        // The other client of this key has been given the same.
        let before = kept.get(&answer.wish.key).map(|before| before.body.clone());
        assert!(before.is_none_or(|before| before == answer.body), "{:?} has two answers", answer.wish);
        kept.insert(answer.wish.key.clone(), answer);
        if answers % break_every == 0
            && let Some(next) = plan.next()
        {
            println!("after {answers} answers: {next:?}");
            block_in_place(|| breaks_now(next, &mut world, &mut nodes, &addresses));
            world.has_a_payment_exactly_for_each_answer().await;
        }
    }
    // Whoever panicked has not told everything.
    assert_eq!((answers, plan.next()), (CLIENTS * REQUESTS, None));
    assert_eq!(kept.len(), CLIENTS * REQUESTS / CLIENTS_OF_A_KEY);
    let node = addresses.lock().expect("nobody panics with it")[0];
    world.has_kept_its_promise(node, kept.into_values().collect()).await;
}

fn breaks_now(
    next: Break,
    world: &mut World,
    nodes: &mut [Option<Node>; 2],
    addresses: &Mutex<[SocketAddr; 2]>,
) {
    match (next, &mut world.place) {
        (Break::Node(n), _) => {
            nodes[n].take().expect("it runs").0.kill();
            let node = world.node(LEASE);
            addresses.lock().expect("nobody panics with it")[n] = node.0.address;
            nodes[n] = Some(node);
        }
        (Break::Database, Place::Postgres(server)) => server.restart(),
        (Break::Database, _) => unreachable!("no server to crash"),
    }
}

fn shuffled(mut plan: Vec<Break>, mut seed: u64) -> Vec<Break> {
    for at in (1..plan.len()).rev() {
        // Knuth's constants: plenty for an order of ten.
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        plan.swap(at, (seed >> 33) as usize % (at + 1));
    }
    plan
}

/// One client: its requests one after the other, each to one node and the other until it is done. Another client has the
/// same keys, and begins with the other node.
async fn clients_work(
    client: usize,
    addresses: Arc<Mutex<[SocketAddr; 2]>>,
    told: mpsc::UnboundedSender<Told>,
) {
    let mut own = wishes(REQUESTS / 2, REQUESTS / 2);
    // Payments and rides in turn.
    own.sort_by(|a, b| a.key[1..].cmp(&b.key[1..]));
    for wish in own {
        let wish = Wish { key: format!("{}-{}", wish.key, client / CLIENTS_OF_A_KEY), ..wish };
        let mut tries = client;
        let answer = eventually("the request is carried out", || {
            tries += 1;
            let address = addresses.lock().expect("nobody panics with it")[tries % 2];
            let Wish { target, key, body } = &wish;
            async move {
                let answer = try_post_to(address, target, crate::clients::TOKEN, key, body).await?;
                (!is_later(&answer)).then_some(answer)
            }
        })
        .await;
        assert_eq!(answer.status, 201, "{wish:?}: {}", answer.text());
        // The test has failed if nobody listens any more.
        let _ = told.send(Told::new(wish, answer.body));
    }
}

/// Each node, often enough that some of its successors are killed too.
const KILLS: [Break; 8] = {
    let (a, b) = (Break::Node(0), Break::Node(1));
    [a, b, a, b, a, b, a, b]
};

/// One call in six. More would make the pauses between an effect's tries longer than the test's patience.
const FAULTS: &str = "timeout=0.01,reset=0.04,error=0.04,refuse=0.02,busy=0.03:1s,late=0.03:300ms";

/// Short, so that what a killed node left is taken up soon.
const LEASE: &str = "2s";

const CLIENTS: usize = 8;

/// A client and its double: a user who presses twice, or a load balancer that sends again.
const CLIENTS_OF_A_KEY: usize = 2;

const REQUESTS: usize = 20;
