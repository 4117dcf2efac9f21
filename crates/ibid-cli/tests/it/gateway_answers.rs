//! Matching of requests to stored responses, and the parts of a response that a retry gets.

use ibid_testkit::client::TestRequest;
use ibid_testkit::upstream::Upstream;

use crate::harness::{Setup, assert_problem, is_replay};

fn pay(key: &str) -> TestRequest {
    TestRequest::post("/payments").key(key).body("{}").header("Content-Type", "application/json")
}

#[tokio::test]
async fn another_stripe_account_never_gets_the_first_ones_answer() {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url()).config("[defaults]\nprofile = \"stripe\"\n");
    let gateway = setup.start();
    let of = |account| pay("order-1").header("Stripe-Account", account).fixture("status=201;body=paid");
    assert_eq!(gateway.call(&of("acct_1")).await.status, 201);
    let other = gateway.call(&of("acct_2")).await;
    assert!(other.status == 400 && other.text().contains("idempotency_error"), "{other:?}");
    assert!(is_replay(&gateway.call(&of("acct_1")).await));
    assert_eq!(upstream.deliveries_begun(), 1);
}

#[tokio::test]
async fn a_field_that_names_another_operation_makes_another_request() {
    let upstream = Upstream::start().await;
    let gateway = Setup::before(&upstream.url()).start();
    let fields =
        ["X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override", "SOAPAction", "X-Amz-Target"];
    for name in fields {
        let of = |value| pay(name).header(name, value).fixture("status=201;body=done");
        assert_eq!(gateway.call(&of("PUT")).await.status, 201, "{name}");
        assert_problem(&gateway.call(&of("DELETE")).await, 422, "key-reused");
        assert_problem(&gateway.call(&pay(name)).await, 422, "key-reused");
        assert!(is_replay(&gateway.call(&of("PUT")).await), "{name}");
    }
    assert_eq!(upstream.deliveries_begun(), fields.len());
}

#[tokio::test]
async fn no_cache_may_keep_a_stored_answer() {
    let upstream = Upstream::start().await;
    let gateway = Setup::before(&upstream.url()).start();
    let request = pay("cached").fixture(
        "status=201;body=paid;header=Cache-Control: public, max-age=3600;header=CDN-Cache-Control: max-age=60;\
         header=Expires: Thu, 01 Dec 2994 16:00:00 GMT;header=ETag: \"v1\";header=Surrogate-Control: max-age=60;\
         header=Last-Modified: Tue, 17 Nov 2026 10:00:00 GMT",
    );
    let first = gateway.call(&request).await;
    assert_eq!(first.header("cache-control").as_deref(), Some("public, max-age=3600"), "as the API says");
    let replay = gateway.call(&request).await;
    assert_eq!(replay.header("etag").as_deref(), Some("\"v1\""), "it names what was made");
    let page = TestRequest::get("/.ibid/keys/cached/response?method=POST&path=/payments");
    let page = gateway.call(&page).await;
    assert_eq!((page.status, page.text().as_str()), (201, "paid"));
    for stored in [&replay, &page] {
        assert!(is_replay(stored), "{stored:?}");
        assert_eq!(stored.header_lines("cache-control"), ["no-store"], "{stored:?}");
        for name in ["expires", "cdn-cache-control", "surrogate-control"] {
            assert_eq!(stored.header(name), None, "{stored:?}");
        }
    }
    assert_eq!((page.header("etag"), page.header("last-modified")), (None, None), "{page:?}");
    // All other pages and refusals.
    for target in [
        "/.ibid/policy",
        "/.ibid/problems/key-reused",
        "/.ibid/keys/cached?method=POST&path=/payments",
        "/.ibid/keys/cached",
        "/.ibid/keys/none?method=POST&path=/payments",
        "/.ibid/none",
        "/.ibid/hooks/none",
    ] {
        for request in [TestRequest::get(target), TestRequest::post(target)] {
            let answer = gateway.call(&request).await;
            assert_eq!(answer.header_lines("cache-control"), ["no-store"], "{target} {answer:?}");
        }
    }
    for refused in [TestRequest::post("/payments"), pay("cached").header("SOAPAction", "x")] {
        let answer = gateway.call(&refused).await;
        assert!(answer.status >= 400 && answer.header_lines("cache-control") == ["no-store"], "{answer:?}");
    }
}

#[tokio::test]
async fn fields_of_one_client_or_moment_are_not_replayed() {
    let upstream = Upstream::start().await;
    let config = "[defaults]\nnot_replayed = [\"X-CSRF-Token\"]\n";
    let gateway = Setup::before(&upstream.url()).config(config).start();
    let gone = [
        "Set-Cookie",
        "Set-Cookie2",
        "Cookie",
        "Set-Login",
        "Clear-Site-Data",
        "DPoP-Nonce",
        "WWW-Authenticate",
        "Authentication-Info",
        "RateLimit",
        "RateLimit-Policy",
        "X-RateLimit-Remaining",
        "Retry-After",
        "Age",
        "Date",
        "Server-Timing",
        "Alt-Svc",
        "X-CSRF-Token",
        "Idempotency-Outcome",
    ];
    let fields: String = gone.iter().map(|name| format!(";header={name}: 1")).collect();
    let request = pay("moment").fixture(&format!("status=201;body=paid;header=X-Kept: 1{fields}"));
    let first = gateway.call(&request).await;
    assert_eq!(first.header("x-csrf-token").as_deref(), Some("1"), "{first:?}");
    let replay = gateway.call(&request).await;
    assert!(is_replay(&replay) && replay.header("x-kept").as_deref() == Some("1"), "{replay:?}");
    // The server that sends the replay sets its date.
    for name in gone.into_iter().filter(|name| *name != "Date") {
        assert_eq!(replay.header(name), None, "{name} {replay:?}");
    }
    assert_ne!(replay.header("date").as_deref(), Some("1"));
}

#[tokio::test]
async fn own_answers_carry_cors_fields_by_configuration_alone() {
    let upstream = Upstream::start().await;
    let cors = "[cors]\norigins = [\"https://a.example\"]\ncredentials = true\nmax_age = \"5m\"\n";
    let start = |cors: &str| {
        let config = format!("{cors}[defaults]\nanswer = \"prefer\"\n");
        Setup::before(&upstream.url()).config(&config).start()
    };
    let (with, without) = (start(cors), start(""));
    let later = pay("later").header("Prefer", "respond-async").fixture("gate;status=201");
    let requests = [
        TestRequest::post("/payments"),
        later,
        TestRequest::get("/.ibid/policy"),
        TestRequest::get("/.ibid/none"),
    ];
    for request in requests {
        let of = |origin: &str| request.clone().header("Origin", origin);
        let allowed = with.call(&of("https://a.example")).await;
        assert_eq!(allowed.header_lines("access-control-allow-origin"), ["https://a.example"], "{allowed:?}");
        assert_eq!(allowed.header("access-control-allow-credentials").as_deref(), Some("true"));
        let exposed = allowed.header("access-control-expose-headers").unwrap_or_default();
        for name in [
            "Idempotent-Replayed",
            "Idempotency-Outcome",
            "Idempotency-Stored",
            "Retry-After",
            "Location",
            "Link",
        ] {
            assert!(exposed.contains(name), "{name} in {exposed}");
        }
        for answer in [with.call(&of("https://b.example")).await, with.call(&request).await] {
            assert_eq!(answer.header("access-control-allow-origin"), None, "{answer:?}");
            assert_eq!(answer.header("vary").as_deref(), Some("Origin"), "{answer:?}");
        }
        let off = without.call(&of("https://a.example")).await;
        assert_eq!((off.header("access-control-allow-origin"), off.header("vary")), (None, None), "{off:?}");
    }
    let preflight = |origin: &str| {
        TestRequest::new("OPTIONS", "/.ibid/keys/k?method=POST&path=/payments")
            .header("Origin", origin)
            .header("Access-Control-Request-Method", "GET")
            .header("Access-Control-Request-Headers", "x-tenant-id")
    };
    let allowed = with.call(&preflight("https://a.example")).await;
    assert_eq!(allowed.status, 204, "{allowed:?}");
    for (name, value) in [
        ("access-control-allow-origin", "https://a.example"),
        ("access-control-allow-methods", "GET"),
        ("access-control-allow-headers", "x-tenant-id"),
        ("access-control-allow-credentials", "true"),
        ("access-control-max-age", "300"),
    ] {
        assert_eq!(allowed.header(name).as_deref(), Some(value), "{allowed:?}");
    }
    for refused in [
        with.call(&preflight("https://b.example")).await,
        without.call(&preflight("https://a.example")).await,
    ] {
        assert!(
            refused.status == 405 && refused.header("access-control-allow-origin").is_none(),
            "{refused:?}"
        );
    }
}

#[tokio::test]
async fn a_replay_repeats_cors_fields_for_the_same_origin_only() {
    let upstream = Upstream::start().await;
    // The other origin is only in the gateway's own list, which says nothing about the API's responses.
    let config = "[cors]\norigins = [\"https://b.example\"]\n";
    let gateway = Setup::before(&upstream.url()).config(config).start();
    let of = |origin: &str| {
        pay("shared").header("Origin", origin).fixture(
            "status=201;body=paid;header=Access-Control-Allow-Origin: https://a.example;\
             header=Access-Control-Allow-Credentials: true;header=Access-Control-Expose-Headers: X-Mine",
        )
    };
    let first = gateway.call(&of("https://a.example")).await;
    assert!(
        !is_replay(&first) && first.header_lines("access-control-expose-headers").len() == 2,
        "{first:?}"
    );
    let same = gateway.call(&of("https://a.example")).await;
    assert!(is_replay(&same));
    assert_eq!(same.header_lines("access-control-allow-origin"), ["https://a.example"], "{same:?}");
    assert_eq!(same.header("access-control-allow-credentials").as_deref(), Some("true"));
    let exposed = same.header_lines("access-control-expose-headers").join(", ");
    assert!(exposed.starts_with("X-Mine, Idempotent-Replayed"), "{exposed}");
    let other = gateway.call(&of("https://b.example")).await;
    assert!(is_replay(&other));
    assert!(!format!("{other:?}").to_lowercase().contains("access-control"), "{other:?}");
    for replay in [same, other] {
        assert_eq!(replay.header("vary").as_deref(), Some("Origin"), "{replay:?}");
    }
}
