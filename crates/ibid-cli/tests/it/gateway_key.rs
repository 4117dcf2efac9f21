//! The places where the gateway looks for a key, and the log lines about requests without one.

use ibid_testkit::client::TestRequest;
use ibid_testkit::upstream::Upstream;

use crate::harness::{Setup, assert_problem, is_replay};

fn json(path: &str, body: &str) -> TestRequest {
    TestRequest::post(path).header("Content-Type", "application/json").body(body)
}

#[tokio::test]
async fn a_key_in_the_body_is_found_and_the_body_passed_on_whole() {
    let upstream = Upstream::start().await;
    let config = "[defaults]\nkey_from = [\"header:X-Key\", \"square\"]\nkey = \"optional\"\n";
    let gateway = Setup::before(&upstream.url()).config(config).start();
    let keyed = r#"{"idempotency_key":"k-1","amount":5}"#;
    assert!(!is_replay(&gateway.call(&json("/pay", keyed)).await));
    assert!(is_replay(&gateway.call(&json("/pay", keyed)).await));
    assert_problem(&gateway.call(&json("/pay", "{")).await, 400, "key-invalid");
    // The gateway reads the body to search it, and then forwards it unchanged.
    let plain = r#"{"amount":5}"#;
    assert_eq!(gateway.call(&json("/pay", plain)).await.status, 200);
    let chunked =
        b"POST /pay HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\
                    \r\n5\r\n{\"amo\r\n7\r\nunt\":5}\r\n0\r\n\r\n";
    let mut client = gateway.client().await;
    client.send_bytes(chunked).await;
    assert_eq!(client.read().await.expect("an answer").status, 200);
    let bodies: Vec<String> = upstream
        .requests()
        .iter()
        .map(|request| String::from_utf8_lossy(&request.body).into_owned())
        .collect();
    assert_eq!(bodies, [keyed, plain, plain]);
}

#[tokio::test]
async fn requests_without_a_key_are_counted() {
    let upstream = Upstream::start().await;
    let config = "[[route]]\nmatch = \"POST /orders\"\nkey = \"optional\"\n[[route]]\nmatch = \"POST /strict\"\nkey = \"required\"\n";
    let gateway = Setup::before(&upstream.url()).config(config).flag("--key").flag("optional").start();
    let count =
        async |route: &str| gateway.metric("ibid_without_key_total", &format!("route=\"{route}\"")).await;
    let page = gateway.page("/metrics").await.text();
    assert!(page.contains("ibid_without_key_total{route=\"*\"} 0"), "{page}");
    assert!(!page.contains("ibid_without_key_total{route=\"/strict\"}"), "{page}");
    assert_eq!(gateway.call(&json("/tasks", r#"{"a":1}"#)).await.status, 200);
    assert!(!gateway.log().contains("carries one elsewhere"), "{}", gateway.log());
    for _ in 0..2 {
        let tokened = json("/tasks", r#"{"clientToken":"canary-1","a":1}"#);
        assert_eq!(gateway.call(&tokened).await.status, 200);
        gateway.wait_for_log("source=body:/clientToken").await;
        let paypal = json("/orders", "{}").header("PayPal-Request-Id", "canary-2");
        assert_eq!(gateway.call(&paypal).await.status, 200);
        gateway.wait_for_log("source=header:paypal-request-id").await;
    }
    assert_eq!(gateway.call(&json("/tasks", "{}").key("k")).await.status, 200);
    assert_eq!((count("*").await, count("/orders").await), (3.0, 2.0));
    let log = gateway.log();
    assert_eq!(log.matches("carries one elsewhere").count(), 2, "once for each route: {log}");
    assert!(!log.contains("canary"), "{log}");
    assert_problem(&gateway.call(&json("/strict", "{}")).await, 400, "key-missing");
    assert_eq!(upstream.total(), 6);
}
