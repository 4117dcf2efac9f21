//! Proof in a handler's response, besides its status.

use ibid_core::proof::{Hop, NotExecutedWhen};

use super::*;

/// Sends a first request that the handler answers with `what`, and a retry that it would answer with 201. Returns both
/// responses.
async fn send_twice(world: &GuardedApp, what: &str) -> (AttemptResponse, AttemptResponse) {
    let key = format!("\"{what}\"");
    let first = world.send(pay(&key).does(what)).await;
    let retry = world.send(pay(&key)).await;
    (first, retry)
}

#[tokio::test]
async fn the_upstreams_word_frees_or_stores_and_is_not_passed_on() {
    let world = world(Policy::default()).await;
    let (first, retry) = send_twice(&world, "503; ibid-outcome: not-executed; x-mine: 1").await;
    assert_eq!((first.status, retry.status, retry.is_replay()), (503, 201, false));
    assert_eq!((first.text("ibid-outcome"), first.text("x-mine")), (None, Some("1")));
    for executed in ["503; ibid-outcome: executed", "executed"] {
        let (first, retry) = send_twice(&world, executed).await;
        assert_eq!((first.status, retry.status, retry.is_replay()), (503, 503, true), "{executed}");
        assert_eq!((first.text("ibid-outcome"), retry.text("ibid-outcome")), (None, None));
        assert_eq!(first.body, retry.body);
    }
}

#[tokio::test]
async fn a_word_that_does_not_count_leaves_the_outcome_unknown() {
    let policy = Policy::default().with(|policy| {
        policy.max_response_body = 2000;
        policy.behind = Some(Hop::Envoy);
    });
    let world = world(policy).await;
    for what in [
        "503; ibid-outcome: perhaps",
        "503; ibid-outcome: not-executed; ibid-outcome: not-executed",
        "503; ibid-outcome: not-executed; x-ibid-hop: -/2",
        "trailer",
        "large-not-executed",
    ] {
        let (first, retry) = send_twice(&world, what).await;
        assert_eq!((retry.status, retry.problem().as_str()), (409, "outcome-unknown"), "{what}");
        assert_eq!(first.text("ibid-outcome"), None, "{what}");
    }
}

#[tokio::test]
async fn a_rule_and_a_preset_prove_that_nothing_was_executed() {
    let rule = NotExecutedWhen { status: vec![503], header: "x-sent".into(), values: vec!["no".into()] };
    let policy = Policy::default().with(|policy| {
        policy.not_executed_when = vec![rule];
        policy.behind = Some(Hop::Nginx);
    });
    let world = world(policy).await;
    for proven in ["503; x-sent: no", "502; x-ibid-hop: [-]"] {
        let (first, retry) = send_twice(&world, proven).await;
        assert_eq!((retry.status, retry.is_replay()), (201, false), "{proven}");
        assert_eq!(first.text("x-ibid-hop"), None, "the preset's field is for ibid alone");
    }
    for unproven in
        ["503; x-sent: yes", "502; x-sent: no", "502; x-ibid-hop: [0.001]", "503; x-sent: no; x-sent: no"]
    {
        let (_, retry) = send_twice(&world, unproven).await;
        assert_eq!(retry.problem(), "outcome-unknown", "{unproven}");
    }
    let (first, retry) = send_twice(&world, "201; x-ibid-hop: [0.001]; x-sent: yes").await;
    assert!(retry.is_replay());
    for answer in [first, retry] {
        assert_eq!((answer.text("x-ibid-hop"), answer.text("x-sent")), (None, Some("yes")));
    }
}

#[tokio::test]
async fn the_first_answer_of_an_unknown_outcome_says_so() {
    let world = world(Policy::default()).await;
    for what in ["500", "503", "408"] {
        let first = world.send(pay(what).does(what)).await;
        assert_eq!(first.text("idempotency-outcome"), Some("unknown"), "{what}");
        let monitor = format!("</.ibid/keys/{what}?method=POST&path=%2Fpay>; rel=\"monitor\"");
        assert_eq!(first.text("link"), Some(monitor.as_str()), "{what}");
    }
    for what in ["201", "404", "429"] {
        assert_eq!(world.send(pay(what).does(what)).await.text("idempotency-outcome"), None, "{what}");
    }
}

#[tokio::test]
async fn retry_and_status_page_give_the_same_advice() {
    let world = world(Policy::default()).await;
    assert_eq!(world.send(pay("k").does("503")).await.status, 503);
    for (after, advice, retry_after) in
        [(0, "same-key", Some("60")), (59, "same-key", Some("1")), (1, "never", None)]
    {
        world.hands.advance(Duration::from_secs(after));
        let retry = world.send(pay("k")).await;
        let page = Request::get("/.ibid/keys/k?method=POST&path=/pay").header("x-tenant", "acme");
        let page = world.send(Post { request: page, body: Body::empty() }).await;
        for answer in [retry, page] {
            let body = String::from_utf8_lossy(&answer.body).into_owned();
            assert!(body.contains(&format!("\"retry\":\"{advice}\"")), "{body}");
            assert_eq!(answer.text("retry-after"), retry_after, "{body}");
        }
    }
}
