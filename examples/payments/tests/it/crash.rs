//! Killed nodes, and nodes that share a database: every key makes one payment, every payment settles, and the processor
//! charges exactly once for each.

use std::collections::HashMap;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use ibid_testkit::postgres::Postgres;
use serde_json::Value;

use crate::fixture::{DatabaseAndProcessor, Node, TestDatabase, json, on_both_databases, payment};

on_both_databases!(
    fifty_payments_in_flight_survive_a_kill,
    two_nodes_make_one_payment_of_one_key,
    a_node_completes_the_payments_of_a_killed_one,
);

#[cfg(feature = "mysql")]
#[tokio::test]
async fn fifty_payments_survive_a_kill_on_mariadb() {
    fifty_payments_in_flight_survive_a_kill(TestDatabase::mariadb()).await;
}

async fn fifty_payments_in_flight_survive_a_kill(database: TestDatabase) {
    // In addition, the first call for each payment charges and gets no response.
    let world = DatabaseAndProcessor::new(database, "reset=first");
    let node = world.node("2s");
    let answered = kill_after(10, 50, node).await;
    world.lapse().await;
    let node = world.node("2s");
    assert_one_payment_per_key(&world, &node, 50, &answered).await;
}

async fn a_node_completes_the_payments_of_a_killed_one(database: TestDatabase) {
    let world = DatabaseAndProcessor::new(database, "timeout=first");
    let (killed, node) = (world.node("2s"), world.node("2s"));
    let answered = kill_after(5, 20, killed).await;
    assert_one_payment_per_key(&world, &node, 20, &answered).await;
}

async fn two_nodes_make_one_payment_of_one_key(database: TestDatabase) {
    let world = DatabaseAndProcessor::new(database, "");
    let nodes = [world.node("10s"), world.node("10s")];
    let keys: Vec<String> = (0..10).map(key).collect();
    let body = payment("c", 500);
    let (nodes, body) = (&nodes, &body);
    let posts = keys.iter().flat_map(|key| {
        nodes
            .iter()
            .map(move |node| async move { (key.clone(), node.post("/payments", "ann", key, body).await) })
    });
    let mut answered: HashMap<String, Value> = HashMap::new();
    for (key, answer) in join_all(posts).await {
        assert_eq!(answer.status, 201, "{}", answer.text());
        let body = json(&answer);
        assert_eq!(answered.entry(key).or_insert_with(|| body.clone()), &body);
    }
    assert_one_payment_per_key(&world, &nodes[1], 10, &answered).await;
}

/// Under serializable isolation, PostgreSQL aborts conflicting transactions with 40001, and the application repeats them.
#[tokio::test]
async fn conflicting_transactions_are_repeated_until_they_commit() {
    let server = Postgres::shared();
    let database = server.database();
    let strict = format!("alter database {database} set default_transaction_isolation = 'serializable'");
    server.sql(database, &strict);
    let world = DatabaseAndProcessor::new(TestDatabase::Postgres(Box::new(server)), "");
    let nodes = [world.node("10s"), world.node("10s")];
    let body = &payment("c", 500);
    let posts = (0..40).map(|n| {
        let node = &nodes[n % 2];
        async move { (key(n), node.post_until_done("/payments", "ann", &key(n), body).await) }
    });
    let mut answered = HashMap::new();
    for (key, answer) in join_all(posts).await {
        assert_eq!(answer.status, 201, "{}", answer.text());
        answered.insert(key, json(&answer));
    }
    assert_one_payment_per_key(&world, &nodes[0], 40, &answered).await;
}

/// Sends so many payments at once, kills the node after so many responses, and returns the responses by key.
async fn kill_after(answers: usize, payments: usize, node: Node) -> HashMap<String, Value> {
    let mut answered = HashMap::new();
    let mut node = Some(node);
    let address = node.as_ref().map(|node| node.0.address).expect("it runs");
    let body = &payment("c", 500);
    let mut posts: FuturesUnordered<_> = (0..payments)
        .map(|n| async move {
            (key(n), crate::fixture::try_post_to(address, "/payments", "ann", &key(n), body).await)
        })
        .collect();
    while let Some((key, answer)) = posts.next().await {
        let Some(answer) = answer else { continue };
        // A busy node may ask for a retry, but must not respond with anything else.
        assert!(matches!(answer.status, 201 | 409 | 503), "{}", answer.text());
        if answer.status == 201 {
            answered.insert(key, json(&answer));
        }
        if answered.len() >= answers
            && let Some(node) = node.take()
        {
            node.0.kill();
        }
    }
    assert!(node.is_none(), "it was killed");
    answered
}

/// Sends every key again, and asserts that earlier responses are replayed and each key made one payment and one charge.
async fn assert_one_payment_per_key(
    world: &DatabaseAndProcessor,
    node: &Node,
    payments: usize,
    answered: &HashMap<String, Value>,
) {
    let keys: Vec<String> = (0..payments).map(key).collect();
    let body = payment("c", 500);
    let again = join_all(keys.iter().map(|key| node.post_until_done("/payments", "ann", key, &body))).await;
    let mut ids = Vec::new();
    for (key, answer) in keys.iter().zip(again) {
        assert_eq!(answer.status, 201, "{key}: {}", answer.text());
        let answer = json(&answer);
        assert!(
            answered.get(key).is_none_or(|before| *before == answer),
            "{key} had another response before"
        );
        ids.push(answer["paymentId"].as_str().expect("an id").to_owned());
    }
    for id in &ids {
        assert_eq!(node.wait_until_settled("ann", id).await["status"], "succeeded");
    }
    ids.sort();
    let mut listed: Vec<String> = node
        .payments("ann", "c")
        .await
        .iter()
        .map(|payment| payment["paymentId"].as_str().expect("an id").to_owned())
        .collect();
    listed.sort();
    assert_eq!(listed, ids);
    assert_eq!(world.charged_references().await, ids);
}

fn key(n: usize) -> String {
    format!("k{n}")
}
