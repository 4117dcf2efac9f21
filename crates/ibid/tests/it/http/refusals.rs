//! Requests that are refused before anything runs: their key, fingerprint, body or early data.

use super::*;

#[tokio::test]
async fn a_missing_or_unreadable_key_stores_nothing() {
    let world = world(Policy::default()).await;
    let missing = world.send(post_to("/pay")).await;
    assert_eq!((missing.status, missing.problem().as_str()), (400, "key-missing"));
    assert!(missing.text("link").unwrap().contains("rel=\"describedby\""));
    let too_long = "k".repeat(256);
    for bad in ["", "\"\"", "a b", "\"abc", "a,b", "a;b", "a\"b", "\"a\" x", too_long.as_str()] {
        let refused = world.send(pay(bad)).await;
        assert_eq!((refused.status, refused.problem().as_str()), (400, "key-invalid"), "{bad}");
    }
    let mut non_ascii = pay("k").build();
    non_ascii.headers_mut().insert("idempotency-key", HeaderValue::from_bytes(b"caf\xc3\xa9").unwrap());
    assert_eq!(read(world.app.clone().oneshot(non_ascii).await).await.status, 400);
    let twice = world.send(pay("a").with("idempotency-key", "a")).await;
    assert_eq!((twice.status, twice.problem().as_str()), (400, "key-invalid"));
    assert_eq!((world.runs(), world.records().await), (0, 0));
    assert_eq!(world.send(pay(&"k".repeat(255))).await.status, 201);
}

#[tokio::test]
async fn a_mismatch_is_refused_in_every_state_before_409() {
    let world = world(Policy::default().with(|policy| policy.wait = Duration::ZERO)).await;
    let running = world.spawn_send(pay("k").does("gate"));
    world.api.begun.notified().await;
    let other = || pay("k").does("gate").body("other");
    assert_eq!(world.send(other()).await.problem(), "key-reused");
    let same = world.send(pay("k").does("gate")).await;
    assert_eq!((same.status, same.problem().as_str()), (409, "request-in-progress"));
    world.open_gate(1);
    assert_eq!(running.await.unwrap().status, 201);
    for _ in 0..3 {
        let refused = world.send(other()).await;
        assert_eq!((refused.status, refused.problem().as_str()), (422, "key-reused"));
        assert!(!String::from_utf8_lossy(&refused.body).contains("run 1"), "no stored answer in it");
    }
    let query = post_to("/pay?to=mallory").with("idempotency-key", "k").does("gate");
    assert_eq!(world.send(query).await.status, 422);
    world.send(pay("u").does("500")).await;
    assert_eq!(world.send(pay("u").does("500").body("other")).await.status, 422, "unknown");
    world.send(pay("r").does("429")).await;
    assert_eq!(world.send(pay("r").body("other")).await.status, 422, "retryable");
    assert_eq!(world.runs(), 3);
}

#[tokio::test]
async fn a_body_over_the_limit_is_413_and_leaves_no_record() {
    let world = world(Policy::default().with(|policy| policy.max_request_body = 10)).await;
    let chunks = |n: usize| {
        let parts = (0..n).map(|_| Ok::<_, Infallible>(Bytes::from_static(b"12345")));
        Body::from_stream(futures_util::stream::iter(parts))
    };
    for body in [Body::from("12345678901"), chunks(3)] {
        let refused = world.send(pay("k").body(body)).await;
        assert_eq!((refused.status, refused.problem().as_str()), (413, "body-too-large"));
    }
    let declared = world.send(pay("k").with("content-length", "11").body(chunks(0))).await;
    assert_eq!(declared.status, 413);
    assert_eq!((world.runs(), world.records().await), (0, 0));
    assert_eq!(&world.send(pay("k").body(chunks(2))).await.body[..], b"run 1: 1234512345");
}

#[tokio::test]
async fn a_body_that_breaks_off_is_refused_and_leaves_no_record() {
    let world = world(Policy::default()).await;
    let parts = [Ok(Bytes::from_static(b"half")), Err(std::io::Error::other("gone"))];
    let refused = world.send(pay("k").body(Body::from_stream(futures_util::stream::iter(parts)))).await;
    assert_eq!((refused.status, refused.problem().as_str()), (400, "body-broken"));
    assert_eq!((world.runs(), world.records().await), (0, 0));
}

#[tokio::test]
async fn early_data_is_refused() {
    let world = world(Policy::default()).await;
    // Only `1` is defined, and several lines count as one: any value of the field is believed.
    for value in ["1", "1, 1", "0", ""] {
        let refused = world.send(pay("k").with("early-data", value)).await;
        assert_eq!((refused.status, refused.problem().as_str()), (425, "too-early"), "{value}");
    }
    assert_eq!((world.runs(), world.records().await), (0, 0));
}
