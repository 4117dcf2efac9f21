//! The simulated processor: what it promises, and each way in which it breaks off.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use ibid_testkit::client::{Client, Request};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::harness::{PATIENCE, Program, charge};

#[tokio::test]
async fn a_key_is_charged_once_and_every_retry_gets_the_first_answer() {
    let provider = Program::provider(&[]);
    let first = provider.call(&charge("k1", 500)).await;
    assert_eq!(first.status, 201);
    let made: Value = serde_json::from_slice(&first.body).unwrap();
    assert_eq!(made["status"], "succeeded");
    let again = provider.call(&charge("\"k1\"", 500)).await;
    assert_eq!((again.status, again.body), (201, first.body));
    assert_eq!(provider.call(&charge("k1", 501)).await.status, 422);
    assert_eq!(provider.charged_keys().await, ["k1"]);
    assert_eq!(provider.look("/charges?idempotency_key=k1").await, (200, made));
    assert_eq!(provider.look("/charges?idempotency_key=k2").await.0, 404);
    assert_eq!(provider.call(&Request::get("/health")).await.status, 200);
}

#[tokio::test]
async fn a_charge_without_a_key_or_with_an_odd_body_is_refused() {
    let provider = Program::provider(&[]);
    let body = r#"{"amountCents":1,"currency":"EUR","customerId":"ann"}"#;
    assert_eq!(provider.call(&Request::post("/charges").body(body)).await.status, 400);
    for body in ["", "{}", r#"{"amountCents":1.5,"currency":"EUR","customerId":"a"}"#] {
        let request = Request::post("/charges").header("Idempotency-Key", "k").body(body);
        assert_eq!(provider.call(&request).await.status, 400, "{body}");
    }
    assert_eq!(provider.call(&charge("k", 0)).await.status, 400);
    assert!(provider.charged_keys().await.is_empty());
}

#[tokio::test]
async fn amounts_that_end_in_13_are_declined_and_stay_so() {
    let provider = Program::provider(&[]);
    let first = provider.call(&charge("k", 1013)).await;
    let made: Value = serde_json::from_slice(&first.body).unwrap();
    assert_eq!((first.status, &made["status"]), (402, &"declined".into()));
    assert_eq!(provider.call(&charge("k", 1013)).await.body, first.body);
    assert_eq!(provider.call(&charge("l", 1014)).await.status, 201);
}

#[tokio::test]
async fn a_time_out_charges_and_never_answers() {
    let provider = Program::provider(&["--faults", "timeout=first"]);
    let mut client = Client::connect(provider.address).await;
    client.send(&charge("k", 500)).await;
    provider.charged("k").await;
    // An answer would have come with the charge.
    assert!(tokio::time::timeout(Duration::from_millis(200), client.read()).await.is_err());
    client.hang_up();
    assert_eq!(provider.call(&charge("k", 500)).await.status, 201);
    assert_eq!(provider.charged_keys().await, ["k"]);
}

#[tokio::test]
async fn a_reset_charges_and_tears_the_connection_down() {
    let provider = Program::provider(&["--faults", "reset=first"]);
    let mut stream = TcpStream::connect(provider.address).await.unwrap();
    stream.write_all(&charge("k", 500).to_bytes()).await.unwrap();
    let read = tokio::time::timeout(PATIENCE, stream.read(&mut [0; 1])).await.expect("the connection ends");
    assert_eq!(read.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(provider.charged_keys().await, ["k"]);
    assert_eq!(provider.call(&charge("k", 500)).await.status, 201);
    assert_eq!(provider.charged_keys().await, ["k"]);
}

#[tokio::test]
async fn an_error_may_hide_a_charge_or_none_and_looks_the_same() {
    let provider = Program::provider(&["--faults", "error=first"]);
    let charged = provider.call(&charge("k", 500)).await;
    assert_eq!(charged.status, 500);
    assert_eq!(provider.charged_keys().await, ["k"]);
    let provider = Program::provider(&["--faults", "refuse=first"]);
    let refused = provider.call(&charge("k", 500)).await;
    assert_eq!((refused.status, refused.body), (500, charged.body));
    assert!(provider.charged_keys().await.is_empty());
    assert_eq!(provider.call(&charge("k", 500)).await.status, 201);
}

#[tokio::test]
async fn a_busy_processor_charges_nothing_and_says_when_to_come_back() {
    let provider = Program::provider(&["--faults", "busy=first:1500ms"]);
    for (key, status) in [("k", 503), ("l", 429)] {
        let answer = provider.call(&charge(key, 500)).await;
        assert_eq!((answer.status, answer.header("retry-after")), (status, Some("2".into())));
    }
    assert!(provider.charged_keys().await.is_empty());
}

#[tokio::test]
async fn a_late_answer_is_the_right_one() {
    let provider = Program::provider(&["--faults", "late=1:150ms"]);
    let asked_at = Instant::now();
    assert_eq!(provider.call(&charge("k", 500)).await.status, 201);
    assert!(asked_at.elapsed() >= Duration::from_millis(150));
}

#[tokio::test]
async fn a_processor_that_ignores_keys_charges_again() {
    let provider = Program::provider(&["--ignore-keys"]);
    let first = provider.call(&charge("k", 500)).await;
    let second = provider.call(&charge("k", 500)).await;
    assert_eq!((first.status, second.status), (201, 201));
    assert_ne!(first.body, second.body);
    assert_eq!(provider.charged_keys().await, ["k", "k"]);
}

#[tokio::test]
async fn the_same_seed_breaks_the_same_requests() {
    let statuses = async |seed: &str| {
        let provider = Program::provider(&["--faults", "error=0.3,busy=0.3", "--seed", seed]);
        let mut statuses = Vec::new();
        for n in 0..32 {
            statuses.push(provider.call(&charge(&format!("k{n}"), 500)).await.status);
        }
        statuses
    };
    let seven = statuses("7").await;
    assert_eq!(statuses("7").await, seven);
    assert_ne!(statuses("8").await, seven);
}

#[tokio::test]
async fn a_killed_processor_remembers_its_charges() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("charges.jsonl");
    let args = ["--state", state.to_str().unwrap()];
    let provider = Program::provider(&args);
    let first = provider.call(&charge("k", 500)).await;
    provider.kill();
    let provider = Program::provider(&args);
    assert_eq!(provider.call(&charge("k", 500)).await.body, first.body);
    assert_eq!(provider.charged_keys().await, ["k"]);
}

#[tokio::test]
async fn a_key_that_is_charged_by_many_at_once_is_charged_once() {
    let provider = Program::provider(&[]);
    let request = charge("k", 500);
    let answers = futures_util::future::join_all((0..16).map(|_| provider.call(&request))).await;
    assert!(answers.iter().all(|answer| (answer.status, &answer.body) == (201, &answers[0].body)));
    assert_eq!(provider.charged_keys().await, ["k"]);
}
