//! Stored responses: replayed as they were, without the fields of one caller or moment.

use ibid_core::policy::AfterExpiry;

use super::*;

#[tokio::test]
async fn a_retry_gets_the_first_answer_marked_and_nothing_runs_twice() {
    let world = world(Policy::default()).await;
    let first = world.send(pay("k1")).await;
    assert_eq!((first.status, &first.body[..]), (201, &b"run 1: b"[..]));
    assert!(!first.is_replay());
    for key in ["k1", "\"k1\"", "\"k1\";v=2", "k1"] {
        let again = world.send(pay(key)).await;
        assert_eq!((again.status, &again.body), (201, &first.body), "{key}");
        assert!(again.is_replay());
        assert_eq!(again.text("location"), Some("/things/1"));
        assert_eq!(again.text("idempotency-expires"), first.text("idempotency-expires"));
    }
    assert_eq!(first.text("idempotency-expires"), Some("Wed, 15 Nov 2023 22:13:20 GMT"));
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn every_stored_status_is_replayed_as_it_was() {
    let world = world(Policy::default()).await;
    for status in ["200", "201", "204", "301", "304", "400", "404", "409", "422"] {
        let first = world.send(pay(status).does(status)).await;
        let again = world.send(pay(status).does(status)).await;
        assert_eq!(first.status.to_string(), status);
        assert_eq!((again.status, &again.body), (first.status, &first.body), "{status}");
        assert!(again.is_replay(), "{status}");
        if status == "204" || status == "304" {
            assert!(again.body.is_empty() && again.text("content-length").is_none(), "{status}");
        }
    }
    assert_eq!(world.runs(), 9);
}

#[tokio::test]
async fn a_large_or_streamed_response_never_runs_again() {
    let world = world(Policy::default().with(|policy| policy.max_response_body = 2999)).await;
    for (what, length) in [("large", 3000), ("stream", 9)] {
        let runs = world.runs();
        let first = world.send(pay(what).does(what)).await;
        assert_eq!((first.body.len(), first.text("idempotency-stored")), (length, Some("false")));
        for _ in 0..2 {
            let again = world.send(pay(what).does(what)).await;
            assert_eq!((again.status, again.problem().as_str()), (410, "response-not-retained"));
        }
        assert_eq!(world.runs(), runs + 1);
    }
}

#[tokio::test]
async fn a_replay_drops_fields_of_one_caller_or_moment() {
    let world = world(Policy::default().with(|policy| policy.not_replayed = vec!["x-route".into()])).await;
    let first = world.send(pay("k").does("odd-headers")).await;
    assert_eq!(first.text("set-cookie"), Some("session=1"), "the first answer is unchanged");
    let again = world.send(pay("k").does("odd-headers")).await;
    assert!(again.is_replay());
    let lines: Vec<_> = again.headers.get_all("link").iter().map(|v| v.as_bytes()).collect();
    assert_eq!(lines, [&b"<a>; rel=\"x, y\""[..], b"<b>"]);
    assert_eq!(again.headers["x-raw"].as_bytes(), b"caf\xe9");
    for gone in [
        "set-cookie",
        "www-authenticate",
        "access-control-allow-origin",
        "ratelimit",
        "connection",
        "x-mine",
        "dpop-nonce",
        "x-route",
    ] {
        assert!(again.headers.get(gone).is_none(), "{gone}");
    }
    assert_eq!(again.text("cache-control"), Some("no-store"));
    let same_origin = world.send(pay("k").does("odd-headers").with("origin", "https://a.example")).await;
    assert_eq!(same_origin.text("access-control-allow-origin"), Some("https://a.example"));
}

#[tokio::test]
async fn an_answer_is_kept_uncoded_so_that_every_retry_can_read_it() {
    let world = world(Policy::default()).await;
    let first = world.send(pay("k").does("accepts").with("accept-encoding", "gzip, br")).await;
    assert_eq!(&first.body[..], b"identity");
}

#[tokio::test]
async fn the_stripe_profile_speaks_as_its_clients_expect() {
    let world = world(Policy::stripe().with(|policy| policy.wait = Duration::ZERO)).await;
    let first = world.send(pay("k").does("500")).await;
    assert_eq!(first.text("request-id"), first.text("original-request"));
    assert_eq!(
        (first.text("idempotency-key"), first.text("stripe-should-retry")),
        (Some("k"), Some("false"))
    );
    let again = world.send(pay("k").does("500")).await;
    assert_eq!((again.status, again.is_replay()), (500, true), "errors are replayed");
    assert_eq!(again.text("original-request"), first.text("request-id"));
    assert_ne!(again.text("request-id"), first.text("request-id"));
    assert_eq!(again.text("stripe-should-retry"), Some("false"));
    let freed = world.send(pay("f").does("429")).await;
    assert_eq!((freed.text("idempotency-key"), freed.text("stripe-should-retry")), (Some("f"), None));
    assert!(!world.send(pay("f")).await.is_replay(), "and it may be sent again");
    while futures_util::FutureExt::now_or_never(world.api.begun.notified()).is_some() {}
    let running = world.spawn_send(pay("g").does("gate"));
    world.api.begun.notified().await;
    let busy = world.send(pay("g").does("gate")).await;
    let body: serde_json::Value = serde_json::from_slice(&busy.body).unwrap();
    assert_eq!((busy.status, body["error"]["code"].as_str()), (409, Some("idempotency_key_in_use")));
    world.open_gate(1);
    running.await.unwrap();
}

#[tokio::test]
async fn after_retention_only_a_tombstone_refuses_a_key() {
    let hour = Duration::from_secs(3600);
    let world = world(Policy::default().with(|policy| policy.retention = hour)).await;
    world.send(pay("k")).await;
    world.hands.advance(hour - Duration::from_secs(1));
    assert!(world.send(pay("k")).await.is_replay());
    world.hands.advance(Duration::from_secs(1));
    // The cache of this process uses its own clock; another node has an empty cache.
    let fresh = fresh_node(&world).await;
    let rerun = read(fresh.oneshot(pay("k").body("other").build()).await).await;
    assert_eq!((rerun.status, rerun.is_replay(), world.runs()), (201, false, 2));

    let refuse = Policy::default().with(|policy| {
        policy.retention = hour;
        policy.tombstone = hour;
        policy.after_expiry = AfterExpiry::Refuse;
    });
    let rule = Rule::new(vec![axum::http::Method::POST], "/other", Some(refuse));
    let world = world_with(Policy::default(), vec![rule], Settings::default()).await;
    let other = || post_to("/other").with("idempotency-key", "k");
    world.send(other()).await;
    world.hands.advance(hour);
    let fresh = fresh_node(&world).await;
    let refused = read(fresh.clone().oneshot(other().build()).await).await;
    assert_eq!((refused.status, refused.problem().as_str()), (410, "key-expired"));
    world.hands.advance(hour);
    assert_eq!(read(fresh.oneshot(other().build()).await).await.status, 201);
    assert_eq!(world.runs(), 2);
}
