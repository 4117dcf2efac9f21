//! Two nodes on one PostgreSQL, all of them killed in an order that a seed decides, and a processor that misbehaves:
//! every key is one payment or ride, everything settles, and the processor charges exactly once for each.
//!
//! What breaks next depends on how far the clients have come, not on time. `PAYMENTS_SEED=… cargo nextest run …` breaks
//! the same things in the same order again.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use ibid_testkit::client::Response;
use tokio::sync::mpsc;
use tokio::task::block_in_place;

use crate::world::{Node, Place, World, eventually, json, payment, ride, try_post_to};

#[tokio::test(flavor = "multi_thread")]
async fn everything_settles_whatever_is_killed() {
    let seed = match std::env::var("PAYMENTS_SEED") {
        Ok(seed) => seed.parse().expect("a number"),
        Err(_) => RandomState::new().hash_one(0u8),
    };
    println!("PAYMENTS_SEED={seed}");
    let mut world = World::new(Place::postgres(), FAULTS);
    let mut nodes = [world.node(LEASE), world.node(LEASE)];
    let addresses = Arc::new(Mutex::new([nodes[0].0.address, nodes[1].0.address]));
    let (told, mut done) = mpsc::unbounded_channel();
    for client in 0..CLIENTS {
        tokio::spawn(clients_work(client, addresses.clone(), told.clone()));
    }
    drop(told);

    let mut plan = plan(seed).into_iter();
    let mut ids = Vec::new();
    while let Some(answer) = done.recv().await {
        assert_eq!(answer.status, 201, "{}", answer.text());
        let answer = json(&answer);
        let id = answer["paymentId"].as_str().or(answer["rideId"].as_str()).expect("an id");
        ids.push(id.to_owned());
        if !ids.len().is_multiple_of(BREAK_EVERY) {
            continue;
        }
        let breaks = plan.next();
        println!("after {} answers: {breaks:?}", ids.len());
        match breaks {
            Some(Break::Node(n)) => {
                let node = block_in_place(|| world.node(LEASE));
                addresses.lock().expect("nobody panics with it")[n] = node.0.address;
                std::mem::replace(&mut nodes[n], node).0.kill();
            }
            Some(Break::Database) => match &mut world.place {
                Place::Postgres(server) => block_in_place(|| server.restart()),
                Place::Sqlite(_) | Place::Database(..) => unreachable!("the place is a server of its own"),
            },
            None => {}
        }
    }
    assert_eq!((ids.len(), plan.next()), (CLIENTS * REQUESTS, None));
    all_settle(&world, &nodes[0], ids).await;
}

/// What is broken next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Break {
    /// SIGKILL, while another takes its place.
    Node(usize),
    /// A crash of the server, and its recovery.
    Database,
}

/// Each node twice and the database twice, shuffled.
fn plan(mut seed: u64) -> Vec<Break> {
    let mut plan = vec![Break::Node(0), Break::Node(1), Break::Database];
    plan.extend(plan.clone());
    for at in (1..plan.len()).rev() {
        // Knuth's constants: plenty for an order of six.
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        plan.swap(at, (seed >> 33) as usize % (at + 1));
    }
    plan
}

/// One client: payments and rides in turn, each sent under its key to one node and the other until it is done.
async fn clients_work(
    client: usize,
    addresses: Arc<Mutex<[SocketAddr; 2]>>,
    told: mpsc::UnboundedSender<Response>,
) {
    for request in 0..REQUESTS {
        let (target, body) = match request % 2 {
            0 => ("/payments", payment("c", 500)),
            _ => ("/rides", ride(900)),
        };
        let key = format!("k{client}-{request}");
        let mut tries = client;
        let answer = eventually("the request is carried out", || {
            tries += 1;
            let address = addresses.lock().expect("nobody panics with it")[tries % 2];
            let (key, body) = (&key, &body);
            async move {
                let answer = try_post_to(address, target, "ann", key, body).await?;
                (!matches!(answer.status, 409 | 503)).then_some(answer)
            }
        });
        // The test has failed if nobody listens any more.
        let _ = told.send(answer.await);
    }
}

async fn all_settle(world: &World, node: &Node, mut ids: Vec<String>) {
    ids.sort();
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len(), "two keys share a payment or a ride");
    world.comes_to("select id from payment where status <> 'succeeded'", &[]).await;
    world.comes_to("select id from ride where status <> 'succeeded' or receipt_id is null", &[]).await;
    let mut kept = world.texts("select id from payment union all select id from ride").await;
    kept.sort();
    assert_eq!(kept, ids);
    assert_eq!(world.charged().await, ids);
    assert_eq!(node.payments("ann", "c").await.len(), CLIENTS * REQUESTS / 2);
    // 2 is `in_progress`: no lease is left behind.
    world.comes_to("select cast(state as text) from ibid_record where state = 2", &[]).await;
}

/// One call in ten. More would make the pauses between an effect's tries longer than the test's patience.
const FAULTS: &str = "timeout=0.02,reset=0.04,error=0.04";

/// Short, so that what a killed node left is taken up soon.
const LEASE: &str = "2s";

const CLIENTS: usize = 8;

const REQUESTS: usize = 10;

/// Six breaks before the last request is answered.
const BREAK_EVERY: usize = 12;
