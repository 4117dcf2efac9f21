//! `POST /rides` from outside: three phases, resumed by whoever comes after a crash.

use crate::harness::Program;
use crate::world::{Node, Place, World, eventually, json, keyless_processor, on_both_databases, ride};

on_both_databases!(
    a_ride_is_booked_charged_and_receipted_once,
    a_declined_card_is_the_answer_and_stays_it,
    a_retry_goes_on_after_a_charge_that_got_no_answer,
    the_next_request_resumes_a_ride_whose_node_was_killed,
    the_sweeper_resumes_a_ride_whose_client_has_gone,
    the_sweeper_resumes_a_ride_whose_charge_got_no_answer,
    a_processor_without_keys_is_asked_what_became_of_a_ride_before_it_is_called_again,
    a_ride_that_nobody_can_ask_about_is_charged_once,
);

async fn a_ride_is_booked_charged_and_receipted_once(place: Place) {
    let world = World::new(place, "");
    let node = world.node("10s");
    let first = node.post("/rides", "ann", "k", &ride(900)).await;
    assert_eq!(first.status, 201, "{}", first.text());
    is_done_once(&world, &node, &json(&first)).await;
    let again = node.post("/rides", "ann", "k", &ride(900)).await;
    assert_eq!((again.status, &again.body), (201, &first.body));
    assert_eq!(again.header("idempotent-replayed").as_deref(), Some("true"));
    assert_eq!(again.header("location"), first.header("location"));
    assert_eq!(node.post("/rides", "ann", "k", &ride(901)).await.status, 422);
    is_done_once(&world, &node, &json(&first)).await;
}

async fn a_declined_card_is_the_answer_and_stays_it(place: Place) {
    let world = World::new(place, "");
    let node = world.node("10s");
    let first = node.post("/rides", "ann", "k", &ride(1013)).await;
    assert_eq!(first.status, 402, "{}", first.text());
    let again = node.post("/rides", "ann", "k", &ride(1013)).await;
    assert_eq!((again.status, &again.body), (402, &first.body));
    assert_eq!(again.header("idempotent-replayed").as_deref(), Some("true"));
    let (_, failed) = node.get(&first.header("location").expect("a place"), "ann").await;
    assert_eq!((&failed["status"], &failed["receiptId"]), (&"failed".into(), &serde_json::Value::Null));
}

async fn a_retry_goes_on_after_a_charge_that_got_no_answer(place: Place) {
    let world = World::new(place, "error=first");
    let node = world.node("10s");
    let first = node.post("/rides", "ann", "k", &ride(900)).await;
    assert_eq!(first.status, 503, "{}", first.text());
    assert!(first.header("retry-after").is_some());
    assert_eq!(world.texts("select status from ride").await, ["pending"]);
    let again = node.post("/rides", "ann", "k", &ride(900)).await;
    assert_eq!(again.status, 201, "{}", again.text());
    is_done_once(&world, &node, &json(&again)).await;
}

/// One whose processor charges and does not say so, whatever key it is given.
fn without_keys(place: Place, flags: &[&str]) -> (World, Node) {
    let provider = keyless_processor("reset=first");
    let world = World { place, provider };
    let mut command = world.serve("10s", "100ms", "100ms");
    command.args(flags);
    (world, Node(Program::of(command)))
}

async fn a_processor_without_keys_is_asked_what_became_of_a_ride_before_it_is_called_again(place: Place) {
    let (world, node) = without_keys(place, &["--verify-after", "50ms"]);
    for (key, amount, status) in [("k", 900, 201), ("declined", 1013, 402)] {
        let first = node.post("/rides", "ann", key, &ride(amount)).await;
        assert_eq!(first.status, 503, "{}", first.text());
        let again = node.post("/rides", "ann", key, &ride(amount)).await;
        assert_eq!(again.status, status, "{}", again.text());
    }
    let (_, list) = world.provider.get("/charges").await;
    assert_eq!((&list["requests"], &list["count"]), (&2.into(), &2.into()), "each was called for once");
}

async fn a_ride_that_nobody_can_ask_about_is_charged_once(place: Place) {
    let (world, node) = without_keys(place, &["--charge-once"]);
    let first = node.post("/rides", "ann", "k", &ride(900)).await;
    assert!(first.status >= 500, "{}", first.text());
    for _ in 0..2 {
        let again = node.post("/rides", "ann", "k", &ride(900)).await;
        assert_eq!(again.status, 409, "{}", again.text());
        assert!(again.text().contains("outcome-unknown"), "{}", again.text());
        // A late answer could still settle it: the time of its attempt is not over.
        assert!(again.header("retry-after").is_some(), "{}", again.text());
    }
    assert_eq!(world.texts("select status from ride").await, ["pending"]);
    let (_, list) = world.provider.get("/charges").await;
    assert_eq!((&list["requests"], &list["count"]), (&1.into(), &1.into()));
}

/// A node that is killed while it waits for the processor, which has charged: after the first phase, before the
/// second is recorded.
async fn killed_in_the_middle(world: &World, lease: &str) {
    let node = world.node(lease);
    let body = ride(900);
    let asking = node.try_post("/rides", "ann", "k", &body);
    let charged =
        eventually("the processor charges", async || (!world.charged().await.is_empty()).then_some(()));
    tokio::select! {
        answer = asking => panic!("the processor does not answer, but the node does: {answer:?}"),
        () = charged => {}
    }
    node.0.kill();
    assert_eq!(world.texts("select status from ride").await, ["pending"]);
}

async fn the_next_request_resumes_a_ride_whose_node_was_killed(place: Place) {
    let world = World::new(place, "timeout=first");
    killed_in_the_middle(&world, "5s").await;
    // It sweeps when it starts, before the lease has lapsed, and not again.
    let node = world.node_with("5s", "1h");
    let done = node.post_until_done("/rides", "ann", "k", &ride(900)).await;
    assert_eq!(done.status, 201, "{}", done.text());
    is_done_once(&world, &node, &json(&done)).await;
    let events = world.texts("select detail from ibid_event where detail like '%taken over%'").await;
    assert_eq!(events, ["attempt 1 lapsed; taken over by the next request"]);
}

async fn the_sweeper_resumes_a_ride_whose_client_has_gone(place: Place) {
    let world = World::new(place, "timeout=first");
    killed_in_the_middle(&world, "1s").await;
    let node = world.node("1s");
    world.comes_to("select status from ride", &["succeeded"]).await;
    let done = node.post_until_done("/rides", "ann", "k", &ride(900)).await;
    assert_eq!(done.status, 201, "{}", done.text());
    assert_eq!(done.header("idempotent-replayed").as_deref(), Some("true"));
    is_done_once(&world, &node, &json(&done)).await;
}

/// The processor charges and hangs up. The client is told to come again, and does not.
async fn the_sweeper_resumes_a_ride_whose_charge_got_no_answer(place: Place) {
    let world = World::new(place, "reset=first");
    let node = world.node("10s");
    let first = node.post("/rides", "ann", "k", &ride(900)).await;
    assert_eq!(first.status, 503, "{}", first.text());
    assert_eq!(world.charged().await.len(), 1);
    world.comes_to("select status from ride", &["succeeded"]).await;
    let done = node.post_until_done("/rides", "ann", "k", &ride(900)).await;
    assert_eq!(done.status, 201, "{}", done.text());
    assert_eq!(done.header("idempotent-replayed").as_deref(), Some("true"));
    is_done_once(&world, &node, &json(&done)).await;
    let events = world.texts("select detail from ibid_event where detail like '%resumed%'").await;
    assert_eq!(events, ["attempt 1 left a call in doubt; resumed by the sweeper"]);
}

/// On PostgreSQL only: a process that is paused in the middle of a write holds the whole of an SQLite file.
#[tokio::test]
async fn a_node_that_wakes_up_after_its_lease_changes_nothing() {
    let world = World::new(Place::postgres(), "late=first:2s");
    let zombie = world.node("1s");
    let body = ride(900);
    let asking = zombie.try_post("/rides", "ann", "k", &body);
    let meanwhile = async {
        eventually("the processor charges", async || (!world.charged().await.is_empty()).then_some(())).await;
        zombie.0.pause();
        let node = world.node("1s");
        world.comes_to("select status from ride", &["succeeded"]).await;
        zombie.0.wake();
        node
    };
    let (answer, node) = futures_util::future::join(asking, meanwhile).await;
    // Its own client is given what the other node has stored.
    let answer = answer.expect("it answers");
    let kept = node.post("/rides", "ann", "k", &body).await;
    assert_eq!((answer.status, &answer.body), (201, &kept.body), "{}", answer.text());
    assert_eq!(kept.header("idempotent-replayed").as_deref(), Some("true"));
    is_done_once(&world, &node, &json(&kept)).await;
}

/// One ride, one charge, one receipt, and all three belong together.
async fn is_done_once(world: &World, node: &Node, answer: &serde_json::Value) {
    let id = answer["rideId"].as_str().expect("an id");
    assert_eq!(answer["status"], "succeeded");
    let (_, ride) = node.get(&format!("/rides/{id}"), "ann").await;
    assert_eq!((&ride["status"], &ride["receiptId"]), (&"succeeded".into(), &answer["receiptId"]));
    assert!(ride["chargeId"].is_string() && ride["receiptId"].is_string(), "{ride}");
    assert_eq!(world.texts("select id from ride").await, [id]);
    assert_eq!(world.charged().await, [id]);
}
