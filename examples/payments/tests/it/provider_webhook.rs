//! The processor's webhooks, received on a real socket.

use std::net::SocketAddr;

use payments::provider::webhook::Secret;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::harness::{PATIENCE, Program, charge};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

struct Message {
    id: String,
    timestamp: u64,
    signature: String,
    body: String,
}

/// Takes one message and answers it.
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

fn provider_telling(address: SocketAddr) -> Program {
    let url = format!("http://{address}/hooks");
    Program::provider(&["--webhook", &url, "--webhook-secret", SECRET])
}

#[tokio::test]
async fn a_charge_is_told_of_signed_and_again_until_it_is_taken() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let provider = provider_telling(listener.local_addr().unwrap());
    let made = provider.call(&charge("k", 500)).await;
    let first = receive(&listener, "500 Internal Server Error").await;
    let second = receive(&listener, "204 No Content").await;
    assert_eq!((&first.id, &first.body), (&second.id, &second.body));
    for message in [&first, &second] {
        let signed =
            Secret::parse(SECRET).unwrap().sign(&message.id, message.timestamp, message.body.as_bytes());
        assert_eq!(message.signature, signed);
    }
    let body: Value = serde_json::from_str(&second.body).unwrap();
    assert_eq!(body["type"], "charge.succeeded");
    assert_eq!(body["data"], serde_json::from_slice::<Value>(&made.body).unwrap());
}

#[tokio::test]
async fn a_replay_is_not_told_of() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let provider = provider_telling(listener.local_addr().unwrap());
    for (key, amount) in [("k", 500), ("k", 500), ("l", 613)] {
        provider.call(&charge(key, amount)).await;
    }
    let mut told = Vec::new();
    for _ in 0..2 {
        let body: Value = serde_json::from_str(&receive(&listener, "200 OK").await.body).unwrap();
        told.push((body["data"]["idempotencyKey"].clone(), body["type"].clone()));
    }
    assert_eq!(told, [("k".into(), "charge.succeeded".into()), ("l".into(), "charge.declined".into())]);
}
