//! The processor client: what each failure proves about a charge.

use std::net::SocketAddr;
use std::time::Duration;

use ibid_testkit::processor::{CardProcessor, ProcessorOptions, charge_request};
use payments::input::NewPayment;
use payments::processor::{CHARGE_WITHIN, Charge, ChargeError, ChargeRequest, ProcessorClient};

type ChargeResult = Result<Charge, ChargeError>;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket};

fn client_of(url: &str, timeout: Duration) -> ProcessorClient {
    ProcessorClient::new(&url.parse().unwrap(), timeout)
}

async fn charge(client: &ProcessorClient, key: &str, amount_cents: i64) -> ChargeResult {
    let payment = NewPayment { customer_id: "ann".into(), amount_cents, currency: "EUR".into() };
    client.charge(key, &ChargeRequest { reference: "pay_1".into(), payment }, true).await
}

async fn charge_with_faults(faults: &str, timeout: Duration) -> (ChargeResult, CardProcessor) {
    let processor = CardProcessor::with_faults(faults);
    let outcome = charge(&client_of(&processor.url(), timeout), "k", 500).await;
    (outcome, processor)
}

fn is_success(outcome: &ChargeResult) -> bool {
    matches!(outcome, Ok(Charge::Succeeded { .. }))
}

/// Starts a server that reads some of each request, responds with these bytes, and closes the connection.
async fn serve_bytes(bytes: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(bytes.as_bytes()).await;
        }
    });
    address
}

#[tokio::test]
async fn charges_are_made_declined_refused_and_found() {
    let processor = CardProcessor::with_faults("");
    let client = client_of(&processor.url(), CHARGE_WITHIN);
    assert_eq!(client.find("k").await, Ok(None));
    let first = charge(&client, "k", 500).await;
    assert!(is_success(&first), "{first:?}");
    assert_eq!(charge(&client, "k", 500).await, first);
    assert_eq!(client.find("k").await, first.map(Some));
    let declined = charge(&client, "l", 513).await;
    assert!(matches!(declined, Ok(Charge::Declined { .. })), "{declined:?}");
    assert_eq!(client.find("l").await, declined.map(Some));
    assert!(matches!(charge(&client, "k", 501).await, Err(ChargeError::Refused(_))));
    assert_eq!(processor.charges("idempotencyKey").await, ["k", "l"]);
}

#[tokio::test]
async fn a_refused_connection_proves_that_nothing_was_charged() {
    // The port is bound but not listening: no other program can get it, and connections are refused.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let client = client_of(&format!("http://{}", socket.local_addr().unwrap()), CHARGE_WITHIN);
    let outcome = charge(&client, "k", 500).await;
    assert!(matches!(outcome, Err(ChargeError::NotMade { after: None, .. })), "{outcome:?}");
    assert!(client.find("k").await.is_err());
}

#[tokio::test]
async fn a_busy_processor_has_charged_nothing() {
    let (outcome, processor) = charge_with_faults("busy=1:3s", CHARGE_WITHIN).await;
    let pause = Some(Duration::from_secs(3));
    assert!(matches!(&outcome, Err(ChargeError::NotMade { after, .. }) if *after == pause), "{outcome:?}");
    assert!(processor.charges("idempotencyKey").await.is_empty());
}

#[tokio::test]
async fn a_response_that_may_hide_a_charge_is_uncertain() {
    for faults in ["reset=1", "error=1", "refuse=1"] {
        let (outcome, _processor) = charge_with_faults(faults, CHARGE_WITHIN).await;
        assert!(matches!(outcome, Err(ChargeError::Uncertain(_))), "{faults}: {outcome:?}");
    }
}

#[tokio::test]
async fn after_a_time_out_the_same_key_finds_the_charge() {
    let (outcome, processor) = charge_with_faults("timeout=first", Duration::from_millis(300)).await;
    assert!(matches!(outcome, Err(ChargeError::Uncertain(_))), "{outcome:?}");
    let outcome = charge(&client_of(&processor.url(), CHARGE_WITHIN), "k", 500).await;
    assert!(is_success(&outcome), "{outcome:?}");
    assert_eq!(processor.charges("idempotencyKey").await, ["k"]);
}

#[tokio::test]
async fn a_response_that_breaks_off_is_uncertain() {
    for bytes in [
        "",
        "HTTP/1.1 201 Created\r\ncontent-le",
        "HTTP/1.1 201 Created\r\ncontent-length: 99\r\n\r\n{\"chargeId\":\"ch_1\"",
        "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 99\r\n\r\n",
        "no HTTP at all\r\n\r\n",
    ] {
        let address = serve_bytes(bytes).await;
        let outcome = charge(&client_of(&format!("http://{address}"), CHARGE_WITHIN), "k", 500).await;
        assert!(matches!(outcome, Err(ChargeError::Uncertain(_))), "{bytes:?}: {outcome:?}");
    }
}

#[tokio::test]
async fn a_dead_pooled_connection_is_never_taken_for_a_charge() {
    let folder = tempfile::tempdir().unwrap();
    let state = Some(folder.path().join("charges.jsonl"));
    let options = ProcessorOptions { state, ..ProcessorOptions::default() };
    let processor = CardProcessor::start(options.clone());
    let client = client_of(&processor.url(), CHARGE_WITHIN);
    assert!(is_success(&charge(&client, "k", 500).await));
    drop(processor);
    // The kernel decides whether the client notices before it writes. In both cases nothing may count as charged.
    let outcome = charge(&client, "l", 500).await;
    assert!(matches!(outcome, Err(ChargeError::NotMade { .. } | ChargeError::Uncertain(_))), "{outcome:?}");
    let processor = CardProcessor::start(options);
    // 422, because this request has another reference: the key belongs to the first charge.
    assert_eq!(processor.call(&charge_request("k", 500)).await.status, 422);
    assert_eq!(processor.charges("idempotencyKey").await, ["k"]);
}
