//! Telling a merchant of a charge: signed as standardwebhooks.com says, sent again a few times.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{Request, header};
use http_body_util::Full;
use serde_json::json;
use sha2::Sha256;
use tokio::sync::mpsc;

use super::ledger::{Charge, ChargeStatus};
use crate::outgoing::{HttpUrl, Outgoing};

/// What webhooks are signed with. It never shows itself.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// `whsec_` and base64, as secrets are handed out, or any other text as it stands.
    pub fn parse(text: &str) -> Result<Secret, &'static str> {
        let bytes = match text.strip_prefix("whsec_") {
            Some(base64) => STANDARD.decode(base64).map_err(|_| "is not base64 after `whsec_`")?,
            None => text.as_bytes().to_vec(),
        };
        if bytes.is_empty() { Err("is empty") } else { Ok(Secret(bytes)) }
    }

    /// The field `webhook-signature` of a message.
    pub fn sign(&self, id: &str, timestamp: u64, body: &[u8]) -> String {
        // HMAC takes a key of any length.
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key of any length");
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(body);
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Where charges go to be told.
#[derive(Clone, Debug)]
pub struct Webhooks(mpsc::Sender<Charge>);

impl Webhooks {
    /// Starts telling `url` of what comes, one after the other, for as long as a clone of this is held.
    pub fn start(url: HttpUrl, secret: Secret) -> Webhooks {
        let (sender, mut queue) = mpsc::channel(QUEUE_MAX);
        tokio::spawn(async move {
            let outgoing = Outgoing::new();
            while let Some(charge) = queue.recv().await {
                tell(&outgoing, &url, &secret, &charge).await;
            }
        });
        Webhooks(sender)
    }

    /// Puts a charge in line. A merchant that is far behind misses some: it must ask, too.
    pub fn send(&self, charge: Charge) {
        if self.0.try_send(charge).is_err() {
            tracing::warn!("a webhook is dropped: the merchant is too far behind");
        }
    }
}

async fn tell(outgoing: &Outgoing, url: &HttpUrl, secret: &Secret, charge: &Charge) {
    // The same over all tries: by it the merchant knows a second delivery.
    let id = format!("msg_{}", charge.charge_id);
    let kind = match charge.status {
        ChargeStatus::Succeeded => "charge.succeeded",
        ChargeStatus::Declined => "charge.declined",
    };
    let body = Bytes::from(json!({ "type": kind, "data": charge }).to_string());
    let mut pause = PAUSE_FIRST;
    for _ in 0..TRIES_MAX {
        let timestamp = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let request = Request::post(url.uri().clone())
            .header(header::CONTENT_TYPE, "application/json")
            .header("webhook-id", &id)
            .header("webhook-timestamp", timestamp)
            .header("webhook-signature", secret.sign(&id, timestamp, &body))
            .body(Full::new(body.clone()))
            // Ids and signatures are plain ASCII, and the URL was parsed.
            .expect("a request of checked parts");
        match outgoing.call(request, TELL_FOR).await {
            Ok(answer) if answer.status.is_success() => return,
            Ok(answer) => tracing::warn!(status = answer.status.as_u16(), "the webhook was not taken"),
            Err(error) => tracing::warn!(%error, "the webhook was not delivered"),
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    tracing::warn!(id, "a webhook is given up");
}

/// Bounds memory at some hundred kilobytes.
const QUEUE_MAX: usize = 1024;

/// With pauses that double from 200 ms: a merchant may restart for about 6 seconds.
const TRIES_MAX: u32 = 6;

/// See [`TRIES_MAX`].
const PAUSE_FIRST: Duration = Duration::from_millis(200);

/// Merchants are to store a webhook and answer, no more.
const TELL_FOR: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_is_that_of_the_published_example() {
        let secret = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signed = secret.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_secret_does_not_show_itself() {
        let secret = Secret::parse("hunter2").unwrap();
        assert!(!format!("{secret:?}").contains("hunter2"));
        assert!(Secret::parse("").is_err() && Secret::parse("whsec_!").is_err());
    }
}
