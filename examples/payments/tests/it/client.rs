//! The API's client of the processor: what each failure proves.

use std::net::SocketAddr;
use std::time::Duration;

use payments::outgoing::HttpUrl;
use payments::provider_client::{ANSWER_WITHIN, ChargeOutcome, ChargeRequest, Found, ProviderClient};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket};

use crate::harness::{Program, charge};

fn client_of(url: &str, answer_within: Duration) -> ProviderClient {
    ProviderClient::new(HttpUrl::parse(url).unwrap(), answer_within)
}

fn asked(amount_cents: i64) -> ChargeRequest {
    ChargeRequest { amount_cents, currency: "EUR".into(), customer_id: "ann".into(), reference: None }
}

async fn charged_with(faults: &str, answer_within: Duration) -> (ChargeOutcome, Program) {
    let provider = Program::provider(&["--faults", faults]);
    let outcome = client_of(&provider.url(), answer_within).charge("k", &asked(500)).await;
    (outcome, provider)
}

/// Answers every connection with these bytes, after it has read of the request, and closes.
async fn saying(bytes: &'static str) -> SocketAddr {
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
async fn a_charge_is_made_declined_refused_and_found_again() {
    let provider = Program::provider(&[]);
    let client = client_of(&provider.url(), ANSWER_WITHIN);
    assert_eq!(client.find("k").await, Ok(None));
    let ChargeOutcome::Charged { charge_id } = client.charge("k", &asked(500)).await else {
        panic!("no charge")
    };
    assert_eq!(
        client.charge("k", &asked(500)).await,
        ChargeOutcome::Charged { charge_id: charge_id.clone() }
    );
    assert_eq!(client.find("k").await, Ok(Some(Found::Charged { charge_id })));
    let ChargeOutcome::Declined { charge_id } = client.charge("l", &asked(513)).await else {
        panic!("not declined")
    };
    assert_eq!(client.find("l").await, Ok(Some(Found::Declined { charge_id })));
    assert!(
        matches!(client.charge("k", &asked(501)).await, ChargeOutcome::Refused { status } if status == 422)
    );
    assert_eq!(provider.charged_keys().await, ["k", "l"]);
}

#[tokio::test]
async fn a_refused_connection_proves_that_nothing_was_made() {
    // Bound and not listening: nobody else gets the port, and nobody answers on it.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let client = client_of(&format!("http://{}", socket.local_addr().unwrap()), ANSWER_WITHIN);
    let outcome = client.charge("k", &asked(500)).await;
    assert!(matches!(outcome, ChargeOutcome::NotMade { retry_after: None, .. }), "{outcome:?}");
    assert!(client.find("k").await.is_err());
}

#[tokio::test]
async fn a_busy_processor_has_made_nothing_and_is_left_alone() {
    let (outcome, provider) = charged_with("busy=1:3s", ANSWER_WITHIN).await;
    let retry_after = Some(Duration::from_secs(3));
    assert!(matches!(&outcome, ChargeOutcome::NotMade { retry_after: after, .. } if *after == retry_after));
    assert!(provider.charged_keys().await.is_empty());
}

#[tokio::test]
async fn whatever_may_hide_a_charge_is_uncertain() {
    for faults in ["reset=1", "error=1", "refuse=1"] {
        let (outcome, _provider) = charged_with(faults, ANSWER_WITHIN).await;
        assert!(matches!(outcome, ChargeOutcome::Uncertain { .. }), "{faults}: {outcome:?}");
    }
}

#[tokio::test]
async fn a_time_out_is_uncertain_and_the_same_key_settles_it() {
    let (outcome, provider) = charged_with("timeout=first", Duration::from_millis(300)).await;
    assert!(matches!(outcome, ChargeOutcome::Uncertain { .. }), "{outcome:?}");
    provider.charged("k").await;
    let outcome = client_of(&provider.url(), ANSWER_WITHIN).charge("k", &asked(500)).await;
    assert!(matches!(outcome, ChargeOutcome::Charged { .. }), "{outcome:?}");
    assert_eq!(provider.charged_keys().await, ["k"]);
}

#[tokio::test]
async fn a_connection_that_closes_or_an_answer_that_is_cut_is_uncertain() {
    for bytes in [
        "",
        "HTTP/1.1 201 Created\r\ncontent-le",
        "HTTP/1.1 201 Created\r\ncontent-length: 99\r\n\r\n{\"chargeId\":\"ch_1\"",
        "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 99\r\n\r\n",
        "no HTTP at all\r\n\r\n",
    ] {
        let address = saying(bytes).await;
        let outcome = client_of(&format!("http://{address}"), ANSWER_WITHIN).charge("k", &asked(500)).await;
        assert!(matches!(outcome, ChargeOutcome::Uncertain { .. }), "{bytes:?}: {outcome:?}");
    }
}

#[tokio::test]
async fn a_processor_that_was_restarted_is_charged_through_a_new_connection() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("charges.jsonl");
    let provider = Program::provider(&["--state", state.to_str().unwrap()]);
    let client = client_of(&provider.url(), ANSWER_WITHIN);
    assert!(matches!(client.charge("k", &asked(500)).await, ChargeOutcome::Charged { .. }));
    provider.kill();
    // The pooled connection is gone with the process. Whether the client notices before it writes is the kernel's
    // to say, but nothing may be taken for made.
    let outcome = client.charge("l", &asked(500)).await;
    assert!(
        matches!(outcome, ChargeOutcome::NotMade { .. } | ChargeOutcome::Uncertain { .. }),
        "{outcome:?}"
    );
    let provider = Program::provider(&["--state", state.to_str().unwrap()]);
    assert_eq!(provider.call(&charge("k", 500)).await.status, 201);
    assert_eq!(provider.charged_keys().await, ["k"]);
}
