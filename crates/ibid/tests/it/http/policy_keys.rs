//! Policy settings that decide which key counts, what releases it, and which request counts as the same: each tested
//! through the layer.

use ibid_core::fingerprint::{BodyRule, Pointer, Recipe};

use super::*;

#[tokio::test]
async fn a_strict_key_is_quoted() {
    let world = world(Policy::default().with(|policy| policy.strict_key = true)).await;
    for (key, status) in [("k", 400), ("\"k\"", 201), ("k", 400), ("\"k\"", 201)] {
        assert_eq!(world.send(pay(key)).await.status, status, "{key}");
    }
    assert_eq!((world.runs(), world.records().await), (1, 1));
}

#[tokio::test]
async fn free_on_and_store_on_say_what_a_status_means() {
    let policy = Policy::default().with(|policy| {
        policy.free_on = vec![503, 418];
        policy.store_on = vec![429];
    });
    let world = world(policy).await;
    for (status, retried) in [
        ("503", (201, false)),
        ("418", (201, false)),
        ("429", (429, true)),
        ("403", (201, false)),
        ("500", (409, false)),
        ("404", (404, true)),
    ] {
        assert_eq!(world.send(pay(status).does(status)).await.status.to_string(), status);
        let retry = world.send(pay(status)).await;
        assert_eq!((retry.status, retry.is_replay()), retried, "{status}");
    }
}

#[tokio::test]
async fn what_counts_makes_it_another_request_and_nothing_else() {
    let pointer = |text| Pointer::parse(text).expect("a pointer");
    let whole = r#"{"amount":5,"at":"12:00"}"#;
    let later = r#"{"amount":5,"at":"12:01"}"#;
    let dearer = r#"{"amount":6,"at":"12:00"}"#;
    let spaced = r#"{ "at": "12:00", "amount": 5 }"#;
    let cases = [
        (
            "none",
            Recipe::default(),
            [(later, "1", 422), (dearer, "1", 422), (spaced, "1", 201), (whole, "2", 201)],
        ),
        (
            "fingerprint_headers",
            Recipe::default().with_header("X-Version"),
            [(later, "1", 422), (dearer, "1", 422), (spaced, "1", 201), (whole, "2", 422)],
        ),
        (
            "include",
            Recipe::default().with_include(pointer("/amount")),
            [(later, "1", 201), (dearer, "1", 422), (spaced, "1", 201), (whole, "2", 201)],
        ),
        (
            "exclude",
            Recipe::default().with_exclude(pointer("/at")),
            [(later, "1", 201), (dearer, "1", 422), (spaced, "1", 201), (whole, "2", 201)],
        ),
        (
            "body = \"raw\"",
            Recipe::default().with_body(BodyRule::Raw),
            [(later, "1", 422), (dearer, "1", 422), (spaced, "1", 422), (whole, "2", 201)],
        ),
    ];
    for (key, recipe, retries) in cases {
        let world = world(Policy::default().with(|policy| policy.recipe = recipe)).await;
        let send = async |body: &'static str, version: &str| {
            let post = pay("k").with("content-type", "application/json").with("x-version", version);
            world.send(post.body(body)).await
        };
        let first = send(whole, "1").await;
        assert_eq!(first.status, 201, "{key}");
        for (body, version, status) in retries {
            let retry = send(body, version).await;
            assert_eq!((retry.status, retry.is_replay()), (status, status == 201), "{key}: {body} {version}");
        }
        assert_eq!(world.runs(), 1, "{key}");
    }
}

#[tokio::test]
async fn an_answer_is_kept_with_the_routes_response_version() {
    for version in [1, 7] {
        let world = world(Policy::default().with(|policy| policy.response_version = version)).await;
        world.send(pay("k").does("404")).await;
        let records = world
            .store
            .browse()
            .expect("a store that can be browsed")
            .list(RecordFilter::default())
            .await
            .unwrap()
            .items;
        let id = records[0].record.id;
        let stored = world.store.load(id).await.unwrap().expect("a record");
        assert_eq!((stored.record.note.status, stored.body()), (Some(404), Some(&b"run 1: b"[..])));
        assert_eq!(stored.record.policy.response_version, version, "the rules travel with the record");
    }
}

#[tokio::test(start_paused = true)]
async fn stripes_clients_get_the_advice_of_the_other_profiles() {
    // Until the attempt's time (60 s) is over, a late response may settle it; after that only an operator can.
    for (passed, advice) in [(0, "true"), (61, "false")] {
        let world = world(Policy::stripe()).await;
        let running = world.spawn_send(pay("k").does("gate"));
        world.api.begun.notified().await;
        world.hands.advance(Duration::from_secs(passed));
        let lost = running.await.unwrap();
        assert_eq!((lost.status, lost.text("stripe-should-retry")), (504, Some(advice)), "after {passed} s");
    }
}
