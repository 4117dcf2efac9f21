//! `POST /rides`: three phases, which a retry or the sweeper resumes after a crash.

use crate::fixture::{
    DatabaseAndProcessor, Node, TestDatabase, json, keyless_processor, on_both_databases, ride, wait_for,
};
use crate::harness::Program;

on_both_databases!(
    a_ride_is_booked_charged_and_receipted_once,
    a_declined_card_is_replayed_as_402,
    a_retry_resumes_after_an_uncertain_charge,
    the_next_request_resumes_a_ride_whose_node_was_killed,
    the_sweeper_resumes_a_ride_whose_client_has_gone,
    the_sweeper_resumes_a_ride_with_an_in_doubt_charge,
    verify_mode_looks_a_charge_up_before_another_call,
    charge_once_mode_never_repeats_a_charge,
);

#[cfg(feature = "mysql")]
mod mysql {
    use crate::fixture::TestDatabase;

    #[tokio::test]
    async fn a_ride_is_resumed_and_charged_once_on_mariadb() {
        super::a_ride_is_booked_charged_and_receipted_once(TestDatabase::mariadb()).await;
        super::a_declined_card_is_replayed_as_402(TestDatabase::mariadb()).await;
        super::a_retry_resumes_after_an_uncertain_charge(TestDatabase::mariadb()).await;
    }

    #[tokio::test]
    async fn a_ride_survives_its_node_on_mariadb() {
        super::the_next_request_resumes_a_ride_whose_node_was_killed(TestDatabase::mariadb()).await;
        super::the_sweeper_resumes_a_ride_whose_client_has_gone(TestDatabase::mariadb()).await;
        super::the_sweeper_resumes_a_ride_with_an_in_doubt_charge(TestDatabase::mariadb()).await;
    }
}

async fn a_ride_is_booked_charged_and_receipted_once(database: TestDatabase) {
    let world = DatabaseAndProcessor::new(database, "");
    let node = world.node("10s");
    let first = node.post("/rides", "ann", "k", &ride(900)).await;
    assert_eq!(first.status, 201, "{}", first.text());
    assert_done_once(&world, &node, &json(&first)).await;
    let again = node.post("/rides", "ann", "k", &ride(900)).await;
    assert_eq!((again.status, &again.body), (201, &first.body));
    assert_eq!(again.header("idempotent-replayed").as_deref(), Some("true"));
    assert_eq!(again.header("location"), first.header("location"));
    assert_eq!(node.post("/rides", "ann", "k", &ride(901)).await.status, 422);
    assert_done_once(&world, &node, &json(&first)).await;
}

async fn a_declined_card_is_replayed_as_402(database: TestDatabase) {
    let world = DatabaseAndProcessor::new(database, "");
    let node = world.node("10s");
    let first = node.post("/rides", "ann", "k", &ride(1013)).await;
    assert_eq!(first.status, 402, "{}", first.text());
    let again = node.post("/rides", "ann", "k", &ride(1013)).await;
    assert_eq!((again.status, &again.body), (402, &first.body));
    assert_eq!(again.header("idempotent-replayed").as_deref(), Some("true"));
    let (_, failed) = node.get(&first.header("location").expect("a location"), "ann").await;
    assert_eq!((&failed["status"], &failed["receiptId"]), (&"failed".into(), &serde_json::Value::Null));
}

async fn a_retry_resumes_after_an_uncertain_charge(database: TestDatabase) {
    let world = DatabaseAndProcessor::new(database, "error=first");
    let node = world.node("10s");
    let first = node.post("/rides", "ann", "k", &ride(900)).await;
    assert_eq!(first.status, 503, "{}", first.text());
    assert!(first.header("retry-after").is_some());
    assert_eq!(world.texts("select status from ride").await, ["pending"]);
    let again = node.post("/rides", "ann", "k", &ride(900)).await;
    assert_eq!(again.status, 201, "{}", again.text());
    assert_done_once(&world, &node, &json(&again)).await;
}

/// Starts a node whose processor ignores keys, and charges at the first call for each ride without a response.
fn start_keyless(database: TestDatabase, flags: &[&str]) -> (DatabaseAndProcessor, Node) {
    let provider = keyless_processor("reset=first");
    let world = DatabaseAndProcessor { database, provider };
    let mut command = world.serve("10s", "100ms", "100ms");
    command.args(flags);
    (world, Node(Program::from_command(command)))
}

async fn verify_mode_looks_a_charge_up_before_another_call(database: TestDatabase) {
    let (world, node) = start_keyless(database, &["--verify-after", "50ms"]);
    for (key, amount, status) in [("k", 900, 201), ("declined", 1013, 402)] {
        let first = node.post("/rides", "ann", key, &ride(amount)).await;
        assert_eq!(first.status, 503, "{}", first.text());
        let again = node.post("/rides", "ann", key, &ride(amount)).await;
        assert_eq!(again.status, status, "{}", again.text());
    }
    let (_, list) = world.provider.get("/charges").await;
    assert_eq!((&list["requests"], &list["count"]), (&2.into(), &2.into()), "one call per ride");
}

async fn charge_once_mode_never_repeats_a_charge(database: TestDatabase) {
    let (world, node) = start_keyless(database, &["--charge-once"]);
    let first = node.post("/rides", "ann", "k", &ride(900)).await;
    assert!(first.status >= 500, "{}", first.text());
    for _ in 0..2 {
        let again = node.post("/rides", "ann", "k", &ride(900)).await;
        assert_eq!(again.status, 409, "{}", again.text());
        assert!(again.text().contains("outcome-unknown"), "{}", again.text());
        // The attempt's time is not over, so a late response could still settle the record.
        assert!(again.header("retry-after").is_some(), "{}", again.text());
    }
    assert_eq!(world.texts("select status from ride").await, ["pending"]);
    let (_, list) = world.provider.get("/charges").await;
    assert_eq!((&list["requests"], &list["count"]), (&1.into(), &1.into()));
}

/// Kills a node while it waits for the response of the processor, which has charged. So the first phase is committed and
/// the second is not.
async fn kill_during_charge(world: &DatabaseAndProcessor, lease: &str) {
    let node = world.node(lease);
    let body = ride(900);
    let asking = node.try_post("/rides", "ann", "k", &body);
    let charged = wait_for("the processor charges", async || {
        (!world.charged_references().await.is_empty()).then_some(())
    });
    tokio::select! {
        answer = asking => panic!("the processor sends no response, but the node does: {answer:?}"),
        () = charged => {}
    }
    node.0.kill();
    assert_eq!(world.texts("select status from ride").await, ["pending"]);
}

async fn the_next_request_resumes_a_ride_whose_node_was_killed(database: TestDatabase) {
    let world = DatabaseAndProcessor::new(database, "timeout=first");
    kill_during_charge(&world, "5s").await;
    // This node sweeps only at its start, before the lease lapses, so only the request can resume the ride.
    let node = world.node_with("5s", "1h");
    let done = node.post_until_done("/rides", "ann", "k", &ride(900)).await;
    assert_eq!(done.status, 201, "{}", done.text());
    assert_done_once(&world, &node, &json(&done)).await;
    let events = world.texts("select detail from ibid_event where detail like '%taken over%'").await;
    assert_eq!(events, ["attempt 1 lapsed; taken over by the next request"]);
}

async fn the_sweeper_resumes_a_ride_whose_client_has_gone(database: TestDatabase) {
    let world = DatabaseAndProcessor::new(database, "timeout=first");
    kill_during_charge(&world, "1s").await;
    let node = world.node("1s");
    world.wait_for_rows("select status from ride", &["succeeded"]).await;
    let done = node.post_until_done("/rides", "ann", "k", &ride(900)).await;
    assert_eq!(done.status, 201, "{}", done.text());
    assert_eq!(done.header("idempotent-replayed").as_deref(), Some("true"));
    assert_done_once(&world, &node, &json(&done)).await;
}

/// The processor charges and closes the connection. The node asks the client to retry, but the client does not.
async fn the_sweeper_resumes_a_ride_with_an_in_doubt_charge(database: TestDatabase) {
    let world = DatabaseAndProcessor::new(database, "reset=first");
    let node = world.node("10s");
    let first = node.post("/rides", "ann", "k", &ride(900)).await;
    assert_eq!(first.status, 503, "{}", first.text());
    assert_eq!(world.charged_references().await.len(), 1);
    world.wait_for_rows("select status from ride", &["succeeded"]).await;
    let done = node.post_until_done("/rides", "ann", "k", &ride(900)).await;
    assert_eq!(done.status, 201, "{}", done.text());
    assert_eq!(done.header("idempotent-replayed").as_deref(), Some("true"));
    assert_done_once(&world, &node, &json(&done)).await;
    let events = world.texts("select detail from ibid_event where detail like '%resumed%'").await;
    assert_eq!(events, ["attempt 1 left a call in doubt; resumed by the sweeper"]);
}

/// Runs on PostgreSQL only: a process that is paused during a write holds the lock of a whole SQLite file.
#[tokio::test]
async fn a_node_that_wakes_up_after_its_lease_changes_nothing() {
    let world = DatabaseAndProcessor::new(TestDatabase::postgres(), "late=first:2s");
    let zombie = world.node("1s");
    let body = ride(900);
    let asking = zombie.try_post("/rides", "ann", "k", &body);
    let meanwhile = async {
        wait_for("the processor charges", async || {
            (!world.charged_references().await.is_empty()).then_some(())
        })
        .await;
        zombie.0.pause();
        let node = world.node("1s");
        world.wait_for_rows("select status from ride", &["succeeded"]).await;
        zombie.0.wake();
        node
    };
    let (answer, node) = futures_util::future::join(asking, meanwhile).await;
    // The zombie's own client gets the response that the other node stored.
    let answer = answer.expect("a response");
    let replay = node.post("/rides", "ann", "k", &body).await;
    assert_eq!((answer.status, &answer.body), (201, &replay.body), "{}", answer.text());
    assert_eq!(replay.header("idempotent-replayed").as_deref(), Some("true"));
    assert_done_once(&world, &node, &json(&replay)).await;
}

/// Asserts that there is one ride with one charge and one receipt, and that all three belong together.
async fn assert_done_once(world: &DatabaseAndProcessor, node: &Node, answer: &serde_json::Value) {
    let id = answer["rideId"].as_str().expect("an id");
    assert_eq!(answer["status"], "succeeded");
    let (_, ride) = node.get(&format!("/rides/{id}"), "ann").await;
    assert_eq!((&ride["status"], &ride["receiptId"]), (&"succeeded".into(), &answer["receiptId"]));
    assert!(ride["chargeId"].is_string() && ride["receiptId"].is_string(), "{ride}");
    assert_eq!(world.texts("select id from ride").await, [id]);
    assert_eq!(world.charged_references().await, [id]);
}
