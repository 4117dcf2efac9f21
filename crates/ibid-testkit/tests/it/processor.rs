//! The simulated card processor: its promises, each of its faults, and its webhooks.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ibid_testkit::client::{Client, TestRequest};
use ibid_testkit::processor::{CardProcessor, ChargeFaults, ProcessorOptions, WebhookSecret, charge_request};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

#[tokio::test]
async fn every_retry_of_a_key_gets_the_first_response() {
    let processor = CardProcessor::with_faults("");
    let first = processor.call(&charge_request("k1", 500)).await;
    assert_eq!(first.status, 201);
    let made: Value = serde_json::from_slice(&first.body).unwrap();
    assert_eq!(made["status"], "succeeded");
    let again = processor.call(&charge_request("\"k1\"", 500)).await;
    assert_eq!((again.status, again.body), (201, first.body));
    assert_eq!(processor.call(&charge_request("k1", 501)).await.status, 422);
    assert_eq!(processor.charges("idempotencyKey").await, ["k1"]);
    assert_eq!(processor.get("/charges?idempotency_key=k1").await, (200, made));
    assert_eq!(processor.get("/charges?idempotency_key=k2").await.0, 404);
    assert_eq!(processor.call(&TestRequest::get("/health")).await.status, 200);
}

#[tokio::test]
async fn malformed_charges_are_refused() {
    let processor = CardProcessor::with_faults("");
    let body = r#"{"amountCents":1,"currency":"EUR","customerId":"ann"}"#;
    assert_eq!(processor.call(&TestRequest::post("/charges").body(body)).await.status, 400);
    for body in ["", "{}", r#"{"amountCents":1.5,"currency":"EUR","customerId":"a"}"#] {
        let request = TestRequest::post("/charges").header("Idempotency-Key", "k").body(body);
        assert_eq!(processor.call(&request).await.status, 400, "{body}");
    }
    assert_eq!(processor.call(&charge_request("k", 0)).await.status, 400);
    assert!(processor.charges("idempotencyKey").await.is_empty());
}

#[tokio::test]
async fn amounts_that_end_in_13_are_declined() {
    let processor = CardProcessor::with_faults("");
    let first = processor.call(&charge_request("k", 1013)).await;
    let made: Value = serde_json::from_slice(&first.body).unwrap();
    assert_eq!((first.status, &made["status"]), (402, &"declined".into()));
    assert_eq!(processor.call(&charge_request("k", 1013)).await.body, first.body);
    assert_eq!(processor.call(&charge_request("l", 1014)).await.status, 201);
}

#[tokio::test]
async fn timeout_charges_and_never_answers() {
    let processor = CardProcessor::with_faults("timeout=first");
    let mut client = Client::connect(processor.address()).await;
    client.send(&charge_request("k", 500)).await;
    let charging = async { while processor.charges("idempotencyKey").await.is_empty() {} };
    tokio::time::timeout(PATIENCE, charging).await.expect("the charge is made");
    // A response would have arrived together with the charge.
    assert!(tokio::time::timeout(Duration::from_millis(200), client.read()).await.is_err());
    client.hang_up();
    assert_eq!(processor.call(&charge_request("k", 500)).await.status, 201);
    assert_eq!(processor.charges("idempotencyKey").await, ["k"]);
}

#[tokio::test]
async fn reset_charges_and_resets_the_connection() {
    let processor = CardProcessor::with_faults("reset=first");
    let mut stream = TcpStream::connect(processor.address()).await.unwrap();
    stream.write_all(&charge_request("k", 500).to_bytes()).await.unwrap();
    let read = tokio::time::timeout(PATIENCE, stream.read(&mut [0; 1])).await.expect("the connection ends");
    assert_eq!(read.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(processor.charges("idempotencyKey").await, ["k"]);
    assert_eq!(processor.call(&charge_request("k", 500)).await.status, 201);
    assert_eq!(processor.charges("idempotencyKey").await, ["k"]);
}

#[tokio::test]
async fn error_and_refuse_look_the_same() {
    let processor = CardProcessor::with_faults("error=first");
    let charged = processor.call(&charge_request("k", 500)).await;
    assert_eq!(charged.status, 500);
    assert_eq!(processor.charges("idempotencyKey").await, ["k"]);
    let processor = CardProcessor::with_faults("refuse=first");
    let refused = processor.call(&charge_request("k", 500)).await;
    assert_eq!((refused.status, refused.body), (500, charged.body));
    assert!(processor.charges("idempotencyKey").await.is_empty());
    assert_eq!(processor.call(&charge_request("k", 500)).await.status, 201);
}

#[tokio::test]
async fn busy_charges_nothing_and_sends_retry_after() {
    let processor = CardProcessor::with_faults("busy=first:1500ms");
    for (key, status) in [("k", 503), ("l", 429)] {
        let answer = processor.call(&charge_request(key, 500)).await;
        assert_eq!((answer.status, answer.header("retry-after")), (status, Some("2".into())));
    }
    assert!(processor.charges("idempotencyKey").await.is_empty());
}

#[tokio::test]
async fn late_response_is_the_right_one() {
    let processor = CardProcessor::with_faults("late=1:150ms");
    let asked_at = Instant::now();
    assert_eq!(processor.call(&charge_request("k", 500)).await.status, 201);
    assert!(asked_at.elapsed() >= Duration::from_millis(150));
}

#[tokio::test]
async fn a_processor_that_ignores_keys_charges_again() {
    let processor =
        CardProcessor::start(ProcessorOptions { ignore_keys: true, ..ProcessorOptions::default() });
    let first = processor.call(&charge_request("k", 500)).await;
    let second = processor.call(&charge_request("k", 500)).await;
    assert_eq!((first.status, second.status), (201, 201));
    assert_ne!(first.body, second.body);
    assert_eq!(processor.charges("idempotencyKey").await, ["k", "k"]);
}

#[tokio::test]
async fn same_seed_breaks_the_same_requests() {
    let statuses = async |seed| {
        let faults = ChargeFaults::parse("error=0.3,busy=0.3").unwrap();
        let processor =
            CardProcessor::start(ProcessorOptions { faults, seed, ..ProcessorOptions::default() });
        let mut statuses = Vec::new();
        for n in 0..32 {
            statuses.push(processor.call(&charge_request(&format!("k{n}"), 500)).await.status);
        }
        statuses
    };
    let seven = statuses(7).await;
    assert_eq!(statuses(7).await, seven);
    assert_ne!(statuses(8).await, seven);
}

#[tokio::test]
async fn a_restarted_processor_remembers_its_charges() {
    let folder = tempfile::tempdir().unwrap();
    let state = Some(folder.path().join("charges.jsonl"));
    let options = ProcessorOptions { state, ..ProcessorOptions::default() };
    let processor = CardProcessor::start(options.clone());
    let first = processor.call(&charge_request("k", 500)).await;
    drop(processor);
    let processor = CardProcessor::start(options);
    assert_eq!(processor.call(&charge_request("k", 500)).await.body, first.body);
    assert_eq!(processor.charges("idempotencyKey").await, ["k"]);
}

#[tokio::test]
async fn concurrent_requests_of_a_key_charge_once() {
    let processor = CardProcessor::with_faults("");
    let request = charge_request("k", 500);
    let answers = futures_util::future::join_all((0..16).map(|_| processor.call(&request))).await;
    assert!(answers.iter().all(|answer| (answer.status, &answer.body) == (201, &answers[0].body)));
    assert_eq!(processor.charges("idempotencyKey").await, ["k"]);
}

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

struct Message {
    id: String,
    timestamp: u64,
    signature: String,
    body: String,
}

/// Receives one webhook and answers it.
async fn receive(listener: &TcpListener, answer: &str) -> Message {
    let receiving = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut text = Vec::new();
        loop {
            assert_ne!(stream.read_buf(&mut text).await.unwrap(), 0, "the message broke off");
            let whole = String::from_utf8_lossy(&text);
            let Some((head, body)) = whole.split_once("\r\n\r\n") else { continue };
            let field = |name: &str| {
                let mut fields = head.lines().filter_map(|line| line.split_once(": "));
                fields.find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned())
            };
            if body.len() < field("content-length").unwrap().parse().unwrap() {
                continue;
            }
            let answer = format!("HTTP/1.1 {answer}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
            return Message {
                id: field("webhook-id").unwrap(),
                timestamp: field("webhook-timestamp").unwrap().parse().unwrap(),
                signature: field("webhook-signature").unwrap(),
                body: body.to_owned(),
            };
        }
    };
    tokio::time::timeout(PATIENCE, receiving).await.expect("a webhook comes")
}

fn processor_with_webhook(address: SocketAddr) -> CardProcessor {
    let secret = WebhookSecret::parse(SECRET).unwrap();
    let webhook = Some((address, "/hooks".to_owned(), secret));
    CardProcessor::start(ProcessorOptions { webhook, ..ProcessorOptions::default() })
}

#[tokio::test]
async fn webhooks_are_signed_and_retried() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let processor = processor_with_webhook(listener.local_addr().unwrap());
    let made = processor.call(&charge_request("k", 500)).await;
    let first = receive(&listener, "500 Internal Server Error").await;
    let second = receive(&listener, "204 No Content").await;
    assert_eq!((&first.id, &first.body), (&second.id, &second.body));
    for message in [&first, &second] {
        let signed = WebhookSecret::parse(SECRET).unwrap().sign(
            &message.id,
            message.timestamp,
            message.body.as_bytes(),
        );
        assert_eq!(message.signature, signed);
    }
    let body: Value = serde_json::from_str(&second.body).unwrap();
    assert_eq!(body["type"], "charge.succeeded");
    assert_eq!(body["data"], serde_json::from_slice::<Value>(&made.body).unwrap());
}

#[tokio::test]
async fn webhooks_report_new_charges_only() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let processor = processor_with_webhook(listener.local_addr().unwrap());
    for (key, amount) in [("k", 500), ("k", 500), ("l", 613)] {
        processor.call(&charge_request(key, amount)).await;
    }
    let mut reported = Vec::new();
    for _ in 0..2 {
        let body: Value = serde_json::from_str(&receive(&listener, "200 OK").await.body).unwrap();
        reported.push((body["data"]["idempotencyKey"].clone(), body["type"].clone()));
    }
    assert_eq!(reported, [("k".into(), "charge.succeeded".into()), ("l".into(), "charge.declined".into())]);
}

/// Far above what a loaded machine needs.
const PATIENCE: Duration = Duration::from_secs(60);
