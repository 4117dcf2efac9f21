//! W3C trace context through the gateway: continued if it can be read, started new if it cannot, and stored with the
//! record.

use std::path::Path;

use ibid_testkit::client::TestRequest;
use ibid_testkit::upstream::Upstream;

use crate::harness::{Setup, is_replay};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

fn pay(key: &str) -> TestRequest {
    TestRequest::post("/payments").key(key).body("five")
}

/// The cases of the W3C's own test suite.
fn cases() -> Vec<serde_json::Value> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/trace-context/traceparent.json");
    let text = std::fs::read(file).expect("the vectors travel with the crate");
    serde_json::from_slice(&text).expect("vector files are JSON")
}

#[tokio::test]
async fn every_published_traceparent_vector_is_handled() {
    let upstream = Upstream::start().await;
    let gateway = Setup::before(&upstream.url()).start();
    let cases = cases();
    assert!(cases.len() >= 37);
    for (n, case) in cases.iter().enumerate() {
        let key = format!("case-{n}");
        let lines: Vec<(&str, &str)> = case["headers"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|line| (line[0].as_str().expect("a name"), line[1].as_str().expect("a value")))
            .collect();
        let request = lines.iter().fold(pay(&key), |request, (name, value)| request.header(name, value));
        assert_eq!(gateway.call(&request).await.status, 200, "{case}");
        let delivered = upstream.requests().pop().expect("it was delivered");
        let sent = delivered.header_lines("traceparent");
        let named = lines.iter().any(|(name, _)| name.eq_ignore_ascii_case("traceparent"));
        // If the client sent no such field, the gateway adds none: the upstream starts its own trace.
        assert_eq!(sent.len(), usize::from(named), "{case}: {sent:?}");
        let Some(sent) = sent.first() else { continue };
        let parts: Vec<&str> = sent.split('-').collect();
        assert_eq!((parts.len(), parts[0], sent.len()), (4, "00", 55), "{case}: {sent}");
        let given: Vec<&str> = lines[0].1.trim().split('-').collect();
        match case["trace_id"].as_str() {
            Some("continue") => assert_eq!(parts[1], given[1], "{case}"),
            Some("restart") => {
                assert!(lines.iter().all(|(_, value)| !value.contains(parts[1])), "{case}: {sent}");
            }
            other => panic!("{other:?}"),
        }
        assert!(!lines[0].1.contains(parts[2]), "a new span id: {case}: {sent}");
    }
}

#[tokio::test]
async fn a_retry_keeps_the_trace_of_the_first_execution() {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url());
    let gateway = setup.start();
    let request =
        pay("k").header("Traceparent", PARENT).header("Tracestate", "a=1").header("Tracestate", "b=2");
    assert_eq!(gateway.call(&request).await.status, 200);
    let delivered = upstream.requests().pop().expect("it was delivered");
    assert_eq!(delivered.header_lines("tracestate"), ["a=1,b=2"]);
    let retry = pay("k").header("Traceparent", PARENT.replace("4bf9", "aaaa"));
    assert!(is_replay(&gateway.call(&retry).await));
    let shown = setup.ibid(&["keys", "list", "--json", "--store", &setup.store()]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains(&format!("\"{TRACE}\"")), "{shown}");
    assert!(!shown.contains("aaaa2f3577b3"), "{shown}");
}

#[tokio::test]
async fn unguarded_requests_keep_their_trace_fields_unchanged() {
    let upstream = Upstream::start().await;
    let gateway = Setup::before(&upstream.url()).start();
    for value in [PARENT, "not-a-traceparent"] {
        gateway
            .call(&TestRequest::get("/rides").header("traceparent", value).header("tracestate", "A=B,,"))
            .await;
        let delivered = upstream.requests().pop().expect("it was delivered");
        assert_eq!(delivered.header_lines("traceparent"), [value]);
        assert_eq!(delivered.header_lines("tracestate"), ["A=B,,"]);
    }
}
