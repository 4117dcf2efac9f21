//! Client of the card processor.
//!
//! It sends each call at most once and never retries by itself. Its results distinguish "certainly not charged" from
//! "perhaps charged", because only ibid knows whether a repetition is safe.

use std::error::Error as _;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{Request, Response, StatusCode, Uri, request};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use ibid::prelude::TraceContext;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::input::NewPayment;

/// A client of one processor. Clones share its connections.
#[derive(Clone, Debug)]
pub struct ProcessorClient {
    base: String,
    client: Client<HttpConnector, Full<Bytes>>,
    timeout: Duration,
    trace: Option<TraceContext>,
}

/// The body of a request for a charge. It is also the payload of the effect that charges a payment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChargeRequest {
    /// Id of our payment or ride.
    pub reference: String,
    /// The payer and the amount.
    #[serde(flatten)]
    pub payment: NewPayment,
}

/// A charge that has ended, in the processor's format. Responses, webhooks and stored results are all in this format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Charge {
    /// The money was taken from the card.
    Succeeded {
        /// The processor's id of the charge.
        charge_id: String,
    },
    /// The bank declined, so no money was taken.
    Declined {
        /// The processor's id of the charge.
        charge_id: String,
    },
    /// The processor refused the request, and certainly made no charge. Only we store this, under a name that the processor
    /// does not send.
    #[serde(rename = "refused_without_charge")]
    Refused,
}

impl Charge {
    /// Returns the status for the payment or ride.
    pub fn status(&self) -> &'static str {
        match self {
            Charge::Succeeded { .. } => "succeeded",
            Charge::Declined { .. } | Charge::Refused => "failed",
        }
    }

    /// Returns the processor's id of the charge.
    pub fn id(&self) -> Option<&str> {
        match self {
            Charge::Succeeded { charge_id } | Charge::Declined { charge_id } => Some(charge_id),
            Charge::Refused => None,
        }
    }
}

/// A call that gave no charge, with the reason, for the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChargeError {
    /// The processor refuses the request. An earlier call under this key may still have charged.
    #[error("{0}")]
    Refused(String),
    /// This call certainly did not charge. It may be repeated.
    #[error("{why}")]
    NotMade {
        /// Reason, for the log.
        why: String,
        /// Pause that the processor asks for.
        after: Option<Duration>,
    },
    /// This call may have charged. It may be repeated only under the same key, and only if the processor deduplicates.
    #[error("{0}")]
    Uncertain(String),
}

impl ProcessorClient {
    /// Creates a client that waits at most `timeout` for each response.
    pub fn new(url: &Uri, timeout: Duration) -> ProcessorClient {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_WITHIN));
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_MAX)
            // Safe for charges: hyper repeats only requests of which nothing was sent, on a pooled connection that had
            // just been closed.
            .retry_canceled_requests(true)
            .build(connector);
        let base = url.to_string().trim_end_matches('/').to_owned();
        ProcessorClient { base, client, timeout, trace: None }
    }

    /// Returns a client that shares the connections of this one and adds its calls to `trace`.
    #[must_use]
    pub fn traced(&self, trace: Option<TraceContext>) -> ProcessorClient {
        ProcessorClient { trace, ..self.clone() }
    }

    /// Requests a charge, with one call.
    ///
    /// Use the same key for every call for the same charge. Pass `is_first` only if this is the first call with this key:
    /// then a refusal, together with a lookup that finds no charge, proves that there is none.
    pub async fn charge(
        &self,
        key: &str,
        request: &ChargeRequest,
        is_first: bool,
    ) -> Result<Charge, ChargeError> {
        let call = Request::post(format!("{}/charges", self.base)).header("idempotency-key", key);
        let response = self.call(call, json!(request).to_string()).await?;
        match read_charge(&response) {
            // A refusal proves something about this call only. An earlier call with this key may have charged, and the
            // refusal may have another reason, such as a revoked credential.
            Err(ChargeError::Refused(_)) if is_first && self.find(key).await == Ok(None) => {
                Ok(Charge::Refused)
            }
            charge => charge,
        }
    }

    /// Looks up the charge with this key.
    ///
    /// `None` means that there is none now; a call in flight may still make one. An error proves nothing: ask again.
    pub async fn find(&self, key: &str) -> Result<Option<Charge>, ChargeError> {
        // Downstream keys are a prefix and hex digits, so they need no escaping.
        let call = Request::get(format!("{}/charges?idempotency_key={key}", self.base));
        let response = self.call(call, String::new()).await?;
        match response.status() {
            StatusCode::NOT_FOUND => Ok(None),
            _ => read_charge(&response).map(Some),
        }
    }

    async fn call(&self, call: request::Builder, body: String) -> Result<Response<Bytes>, ChargeError> {
        let request = call.header(CONTENT_TYPE, "application/json").body(Full::from(body));
        let mut request =
            request.map_err(|error| ChargeError::NotMade { why: error.to_string(), after: None })?;
        if let Some(trace) = &self.trace {
            trace.next().write(request.headers_mut());
        }
        let exchange = async {
            let (head, body) = self.client.request(request).await.map_err(classify)?.into_parts();
            // A truncated body counts as no response, because the head alone does not say what was charged.
            let body = Limited::new(body, RESPONSE_BYTES_MAX).collect().await;
            let body =
                body.map_err(|error| ChargeError::Uncertain(format!("the response broke off: {error}")))?;
            Ok(Response::from_parts(head, body.to_bytes()))
        };
        let response = tokio::time::timeout(self.timeout, exchange).await;
        response.unwrap_or_else(|_| Err(ChargeError::Uncertain("no response in time".to_owned())))
    }
}

/// Returns what an error of hyper's client proves.
///
/// Only a request that got no connection, or that hyper reports as canceled, was certainly not sent. The processor may have
/// received any other.
fn classify(error: Error) -> ChargeError {
    let source = error.source().and_then(|source| source.downcast_ref::<hyper::Error>());
    let is_canceled = source.is_some_and(hyper::Error::is_canceled);
    let why = source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}"));
    match error.is_connect() || error.connect_info().is_none() || is_canceled {
        true => ChargeError::NotMade { why, after: None },
        false => ChargeError::Uncertain(why),
    }
}

/// Returns what a complete response proves about the charge.
fn read_charge(response: &Response<Bytes>) -> Result<Charge, ChargeError> {
    let why = response.status().to_string();
    match response.status() {
        StatusCode::OK | StatusCode::CREATED | StatusCode::PAYMENT_REQUIRED => {
            serde_json::from_slice(response.body())
                .map_err(|_| ChargeError::Uncertain(format!("{why} with an unreadable body")))
        }
        // The processor documents that it sends these two before it looks at the charge. Without such a promise, they would
        // be uncertain.
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            let line = response.headers().get(RETRY_AFTER);
            let seconds = line.and_then(|line| line.to_str().ok()?.parse().ok());
            let after = seconds.map(|seconds| Duration::from_secs(seconds).min(RETRY_AFTER_MAX));
            Err(ChargeError::NotMade { why, after })
        }
        // 408: a proxy stopped waiting, but the processor may not have. 409: another request with this key is running.
        StatusCode::REQUEST_TIMEOUT | StatusCode::CONFLICT => Err(ChargeError::Uncertain(why)),
        status if status.is_client_error() => Err(ChargeError::Refused(why)),
        _ => Err(ChargeError::Uncertain(why)),
    }
}

/// Time for one charge. Card networks answer within seconds, but some banks ask the cardholder for a confirmation first.
pub const CHARGE_WITHIN: Duration = Duration::from_secs(20);

/// Time to connect. A processor on the same continent accepts within a few round trips, and two lost SYNs (1 s and 2 s)
/// still fit in.
const CONNECT_WITHIN: Duration = Duration::from_secs(4);

/// Time that an idle connection stays in the pool. Load balancers keep one for 60 s or more, so we close first and do not
/// send a charge on a connection that is about to be closed.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// Longest pause that the processor may ask for. A longer one is most likely a mistake, and one call per hour does no harm.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// Largest response body. A charge is a few hundred bytes; the rest is room for a proxy's error page.
const RESPONSE_BYTES_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn charge_in(status: u16, body: impl Into<Bytes>) -> Result<Charge, ChargeError> {
        let response = Response::builder().status(status).body(body.into());
        read_charge(&response.unwrap())
    }

    #[test]
    fn each_status_proves_what_the_processor_documents() {
        let charge_id = "ch_1".to_owned();
        let made = r#"{"chargeId":"ch_1","status":"succeeded","new":"field"}"#;
        assert_eq!(charge_in(201, made), Ok(Charge::Succeeded { charge_id: charge_id.clone() }));
        let declined = r#"{"chargeId":"ch_1","status":"declined"}"#;
        assert_eq!(charge_in(402, declined), Ok(Charge::Declined { charge_id }));
        for status in [429, 503] {
            assert!(matches!(charge_in(status, ""), Err(ChargeError::NotMade { .. })), "{status}");
        }
        for status in [400, 401, 404, 422] {
            assert!(matches!(charge_in(status, ""), Err(ChargeError::Refused(_))), "{status}");
        }
        for status in [500, 502, 504, 408, 409, 302, 204] {
            assert!(matches!(charge_in(status, ""), Err(ChargeError::Uncertain(_))), "{status}");
        }
        for status in ["succeeded", "declined", "refused", "pending"] {
            let body = format!(r#"{{"status":"{status}"}}"#);
            assert!(matches!(charge_in(201, body), Err(ChargeError::Uncertain(_))), "{status} without an id");
        }
        for body in ["", "{}", r#"{"chargeId":"ch_1","status":"pending"}"#] {
            assert!(matches!(charge_in(201, body), Err(ChargeError::Uncertain(_))), "{body}");
        }
    }

    #[test]
    fn retry_after_is_bounded() {
        let after = |text: &str| {
            let response = Response::builder().status(503).header(RETRY_AFTER, text).body(Bytes::new());
            match read_charge(&response.unwrap()) {
                Err(ChargeError::NotMade { after, .. }) => after,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(after("7"), Some(Duration::from_secs(7)));
        assert_eq!(after("99999999"), Some(RETRY_AFTER_MAX));
        assert_eq!(after("soon"), None);
    }
}
