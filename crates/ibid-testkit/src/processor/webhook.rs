//! Reports charges to the merchant by webhook, signed as standardwebhooks.com specifies, with a few retries.

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::json;
use sha2::Sha256;
use tokio::sync::mpsc;

use super::charge_book::{ChargeStatus, RecordedCharge};
use crate::client::{Client, TestRequest};

/// The secret that webhooks are signed with. `Debug` does not show it.
#[derive(Clone)]
pub struct WebhookSecret(Vec<u8>);

impl WebhookSecret {
    /// Parses `whsec_` and base64, or takes any other text as it is.
    ///
    /// # Errors
    ///
    /// Fails if the secret is empty or not base64.
    pub fn parse(text: &str) -> Result<WebhookSecret, &'static str> {
        let bytes = match text.strip_prefix("whsec_") {
            Some(base64) => STANDARD.decode(base64).map_err(|_| "is not base64 after `whsec_`")?,
            None => text.as_bytes().to_vec(),
        };
        if bytes.is_empty() { Err("is empty") } else { Ok(WebhookSecret(bytes)) }
    }

    /// Returns the header `webhook-signature` of a message.
    pub fn sign(&self, id: &str, timestamp: u64, body: &[u8]) -> String {
        // HMAC takes a key of any length.
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key of any length");
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(body);
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    }
}

impl fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebhookSecret(…)")
    }
}

/// Queue of charges to report.
#[derive(Clone, Debug)]
pub(super) struct Webhooks(mpsc::Sender<RecordedCharge>);

impl Webhooks {
    /// Reports charges one after the other, for as long as a clone of this exists.
    pub(super) fn start(to: SocketAddr, path: String, secret: WebhookSecret) -> Webhooks {
        let (sender, mut queue) = mpsc::channel(QUEUE_MAX);
        tokio::spawn(async move {
            while let Some(charge) = queue.recv().await {
                deliver(to, &path, &secret, &charge).await;
            }
        });
        Webhooks(sender)
    }

    /// Queues a charge. If the queue is full, the webhook is dropped: a merchant must also be able to ask.
    pub(super) fn send(&self, charge: RecordedCharge) {
        let _ = self.0.try_send(charge);
    }
}

async fn deliver(to: SocketAddr, path: &str, secret: &WebhookSecret, charge: &RecordedCharge) {
    // The same for all tries, so that the merchant recognises a second delivery.
    let id = format!("msg_{}", charge.charge_id);
    let kind = match charge.status {
        ChargeStatus::Succeeded => "charge.succeeded",
        ChargeStatus::Declined => "charge.declined",
    };
    let body = json!({ "type": kind, "data": charge }).to_string();
    let mut pause = PAUSE_FIRST;
    for _ in 0..TRIES_MAX {
        let timestamp = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let request = TestRequest::post(path)
            .header("Content-Type", "application/json")
            .header("webhook-id", &id)
            .header("webhook-timestamp", timestamp.to_string())
            .header("webhook-signature", secret.sign(&id, timestamp, body.as_bytes()))
            .body(&body);
        let call = async { Client::try_connect(to).await?.try_call(&request).await };
        let answer = tokio::time::timeout(ANSWER_WITHIN, call).await.ok().flatten();
        if answer.is_some_and(|answer| (200..300).contains(&answer.status)) {
            return;
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
}

/// A few hundred kilobytes.
const QUEUE_MAX: usize = 1024;

/// With pauses that double from 200 ms: a merchant may restart for about 6 seconds.
const TRIES_MAX: u32 = 6;

/// First of the pauses described at [`TRIES_MAX`].
const PAUSE_FIRST: Duration = Duration::from_millis(200);

/// A merchant stores the webhook and answers.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signature_matches_the_published_example() {
        let secret = WebhookSecret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signed = secret.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn debug_does_not_show_the_secret() {
        let secret = WebhookSecret::parse("hunter2").unwrap();
        assert!(!format!("{secret:?}").contains("hunter2"));
        assert!(WebhookSecret::parse("").is_err() && WebhookSecret::parse("whsec_!").is_err());
    }
}
