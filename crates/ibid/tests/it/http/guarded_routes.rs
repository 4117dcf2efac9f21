//! Routes: which are guarded, what a guarded handler learns, and the pages of the guard itself.

use ibid_core::policy::KeyRule;
use tower::Service;

use super::*;

#[tokio::test]
async fn what_is_not_guarded_passes_untouched() {
    let world = world(Policy::default()).await;
    for method in ["GET", "PUT", "DELETE"] {
        // The same good key twice: an unguarded request runs each time.
        for key in [None, Some("\"bad"), Some("\"good\""), Some("\"good\"")] {
            let mut request = Request::builder().method(method).uri("/pay");
            if let Some(key) = key {
                request = request.header("idempotency-key", key);
            }
            let answer = world.send(Post { request, body: Body::empty() }).await;
            assert_eq!((answer.status, answer.is_replay()), (201, false), "{method} {key:?}");
        }
    }
    assert_eq!((world.runs(), world.records().await), (12, 0));
}

#[tokio::test]
async fn a_rule_guards_put_makes_the_key_optional_or_exempts_a_route() {
    let method = |name: &str| vec![name.parse().unwrap()];
    let optional = Policy::default().with(|policy| policy.key = KeyRule::Optional);
    let rules = vec![
        Rule::new(method("PUT"), "/things/{id}", Some(Policy::default())),
        Rule::new(method("POST"), "/pay", Some(optional)),
        Rule::new(method("POST"), "/other", None),
    ];
    let world = world_with(Policy::default(), rules, Settings::default()).await;
    let put = || Post {
        request: Request::put("/things/7").header("x-tenant", "acme").header("idempotency-key", "k"),
        body: Body::from("b"),
    };
    world.send(put()).await;
    assert!(world.send(put()).await.is_replay());
    for _ in 0..2 {
        assert_eq!(world.send(post_to("/pay")).await.status, 201, "no key, no record");
        assert!(!world.send(post_to("/other").with("idempotency-key", "k")).await.is_replay(), "exempt");
    }
    assert_eq!((world.runs(), world.records().await), (5, 1));
    let policy = world.send(Post { request: Request::get("/.ibid/policy"), body: Body::empty() }).await;
    let policy: serde_json::Value = serde_json::from_slice(&policy.body).unwrap();
    assert_eq!(policy["routes"][2]["guard"], "off");
    assert_eq!(policy["routes"][1]["key"], "optional");
    assert_eq!(policy["defaults"]["retention_seconds"], 86400);
    assert_eq!(policy["defaults"]["answer"], "sync");
}

#[tokio::test]
async fn a_handler_learns_its_key_and_which_run_it_is() {
    let world = world(Policy::default()).await;
    assert_eq!(&world.send(post_to("/who").with("idempotency-key", "k")).await.body[..], b"k:1");
}

#[tokio::test]
async fn the_status_page_shows_the_state_and_the_stored_answer() {
    let world = world(Policy::default()).await;
    let page = |tail: &str| Post {
        request: Request::get(format!("/.ibid/keys/k{tail}?method=POST&path=%2Fpay"))
            .header("x-tenant", "acme"),
        body: Body::empty(),
    };
    let running = world.spawn_send(pay("k").does("gate"));
    world.api.begun.notified().await;
    let state = |answer: &AttemptResponse| serde_json::from_slice::<serde_json::Value>(&answer.body).unwrap();
    assert_eq!(state(&world.send(page("")).await)["state"], "in_progress");
    assert_eq!(world.send(page("/response")).await.status, 409);
    world.open_gate(1);
    let first = running.await.unwrap();
    let shown = state(&world.send(page("")).await);
    assert_eq!(
        (&shown["state"], &shown["outcome"], &shown["status"]),
        (&"completed".into(), &"success".into(), &201.into())
    );
    let again = world.send(page("/response")).await;
    assert_eq!((again.status, &again.body, again.is_replay()), (201, &first.body, true));
    let problem = Post { request: Request::get("/.ibid/problems/key-reused"), body: Body::empty() };
    assert_eq!(world.send(problem).await.status, 200);
    assert_eq!(world.runs(), 1);
}

#[tokio::test]
async fn a_ready_service_is_the_one_that_is_called() {
    let world = world(Policy::default()).await;
    let mut app = world.app.clone();
    let answer = ServiceExt::<Request<Body>>::ready(&mut app).await.unwrap().call(pay("k").build()).await;
    assert_eq!(read(answer).await.status, 201);
}
