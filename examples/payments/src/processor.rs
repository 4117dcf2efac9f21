//! Client of the card processor.
//!
//! It sends each call at most once and never retries by itself. Its results distinguish "certainly not charged" from
//! "perhaps charged", because only ibid knows whether a repetition is safe.

use std::error::Error as _;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use ibid::http::TraceContext;
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

/// The body of a request for a charge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChargeRequest {
    amount_cents: i64,
    currency: String,
    customer_id: String,
    reference: String,
}

impl ChargeRequest {
    /// Creates the request for a payment or a ride, whose id is `reference`.
    pub fn new(payment: &NewPayment, reference: &str) -> ChargeRequest {
        let NewPayment { customer_id, amount_cents, currency } = payment.clone();
        ChargeRequest { amount_cents, currency, customer_id, reference: reference.to_owned() }
    }
}

/// A finished charge, in the form that is stored with an effect or a phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Charge {
    /// True if the money was taken, false if the charge was declined or refused.
    pub succeeded: bool,
    /// The processor's id of the charge. A request that was refused outright has none.
    pub charge_id: Option<String>,
}

impl Charge {
    /// Parses a charge in the processor's format, which is the same in responses and webhooks.
    pub fn parse(body: &[u8]) -> Option<Charge> {
        let body: serde_json::Value = serde_json::from_slice(body).ok()?;
        let succeeded = match body["status"].as_str()? {
            "succeeded" => true,
            "declined" => false,
            _ => return None,
        };
        Some(Charge { succeeded, charge_id: Some(body["chargeId"].as_str()?.to_owned()) })
    }

    /// Returns the status for the payment or ride.
    pub fn status(&self) -> &'static str {
        if self.succeeded { "succeeded" } else { "failed" }
    }
}

/// Result of a request for a charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChargeOutcome {
    /// The charge has ended, and its result is certain.
    Ended(Charge),
    /// The processor refuses the request. An earlier call under this key may still have charged.
    Refused {
        /// Reason, for the log.
        why: String,
    },
    /// This call certainly did not charge. It may be repeated.
    NotMade {
        /// Reason, for the log.
        why: String,
        /// Pause that the processor asks for.
        after: Option<Duration>,
    },
    /// This call may have charged. It may be repeated only under the same key, and only if the processor deduplicates.
    Uncertain {
        /// Reason, for the log.
        why: String,
    },
}

impl ProcessorClient {
    /// Creates a client that waits at most `timeout` for each response.
    pub fn new(url: &Uri, timeout: Duration) -> ProcessorClient {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_WITHIN));
        let client = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_MAX)
            // Safe for charges: hyper repeats only requests of which nothing was sent, on a pooled connection that had
            // just been closed.
            .retry_canceled_requests(true)
            .build(connector);
        ProcessorClient {
            base: url.to_string().trim_end_matches('/').to_owned(),
            client,
            timeout,
            trace: None,
        }
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
    pub async fn charge(&self, key: &str, request: &ChargeRequest, is_first: bool) -> ChargeOutcome {
        let body = json!(request).to_string();
        let (status, headers, body) = match self.call(Method::POST, "/charges", Some(key), body).await {
            Ok(response) => response,
            Err(CallError::NotSent(why)) => return ChargeOutcome::NotMade { why, after: None },
            Err(CallError::Uncertain(why)) => return ChargeOutcome::Uncertain { why },
        };
        match outcome(status, &headers, &body) {
            // A refusal proves something about this call only. An earlier call with this key may have charged, and the
            // refusal may have another reason, such as a revoked credential.
            ChargeOutcome::Refused { .. } if is_first && self.find(key).await == Ok(None) => {
                ChargeOutcome::Ended(Charge { succeeded: false, charge_id: None })
            }
            outcome => outcome,
        }
    }

    /// Looks up the charge with this key.
    ///
    /// `None` means that there is none now; a call in flight may still make one. An error proves nothing: ask again.
    pub async fn find(&self, key: &str) -> Result<Option<Charge>, CallError> {
        // Downstream keys are a prefix and hex digits, so they need no escaping.
        let path = format!("/charges?idempotency_key={key}");
        let (status, _, body) = self.call(Method::GET, &path, None, String::new()).await?;
        match (status, Charge::parse(&body)) {
            (StatusCode::OK, Some(charge)) => Ok(Some(charge)),
            (StatusCode::NOT_FOUND, _) => Ok(None),
            _ => Err(CallError::Uncertain(format!("{status} does not say whether there is a charge"))),
        }
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        key: Option<&str>,
        body: String,
    ) -> Result<(StatusCode, HeaderMap, Bytes), CallError> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header(CONTENT_TYPE, "application/json");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let mut request =
            request.body(Full::from(body)).map_err(|error| CallError::NotSent(error.to_string()))?;
        if let Some(trace) = &self.trace {
            trace.next().write(request.headers_mut());
        }
        let exchange = async {
            let response = self.client.request(request).await.map_err(|error| CallError::new(&error))?;
            let (head, body) = response.into_parts();
            // A truncated body counts as no response, because the head alone does not say what was charged.
            let body = Limited::new(body, RESPONSE_BYTES_MAX).collect().await;
            let body =
                body.map_err(|error| CallError::Uncertain(format!("the response broke off: {error}")))?;
            Ok((head.status, head.headers, body.to_bytes()))
        };
        let timeout = |_| Err(CallError::Uncertain("no response in time".to_owned()));
        tokio::time::timeout(self.timeout, exchange).await.unwrap_or_else(timeout)
    }
}

/// A call that got no response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The processor certainly received nothing.
    NotSent(String),
    /// The processor may have executed it.
    Uncertain(String),
}

impl CallError {
    /// Classifies an error of hyper's client.
    ///
    /// Only a request that got no connection, or that hyper reports as canceled, was certainly not sent. The processor may
    /// have received any other.
    fn new(error: &Error) -> CallError {
        let source = error.source().and_then(|source| source.downcast_ref::<hyper::Error>());
        let is_canceled = source.is_some_and(hyper::Error::is_canceled);
        let why = source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}"));
        match error.is_connect() || error.connect_info().is_none() || is_canceled {
            true => CallError::NotSent(why),
            false => CallError::Uncertain(why),
        }
    }
}

/// Returns what a complete response proves about the charge.
fn outcome(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> ChargeOutcome {
    let why = status.to_string();
    match status {
        StatusCode::OK | StatusCode::CREATED | StatusCode::PAYMENT_REQUIRED => match Charge::parse(body) {
            Some(charge) => ChargeOutcome::Ended(charge),
            None => ChargeOutcome::Uncertain { why: format!("{why} with an unreadable body") },
        },
        // The processor documents that it sends these two before it looks at the charge. Without such a promise, they would
        // be uncertain.
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            let seconds = headers.get(RETRY_AFTER).and_then(|line| line.to_str().ok()?.parse().ok());
            ChargeOutcome::NotMade {
                why,
                after: seconds.map(Duration::from_secs).map(|s| s.min(RETRY_AFTER_MAX)),
            }
        }
        // 408: a proxy stopped waiting, but the processor may not have. 409: another request with this key is running.
        StatusCode::REQUEST_TIMEOUT | StatusCode::CONFLICT => ChargeOutcome::Uncertain { why },
        status if status.is_client_error() => ChargeOutcome::Refused { why },
        _ => ChargeOutcome::Uncertain { why },
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

    fn outcome_of(status: u16, body: &str) -> ChargeOutcome {
        outcome(StatusCode::from_u16(status).unwrap(), &HeaderMap::new(), body.as_bytes())
    }

    #[test]
    fn each_status_proves_what_the_processor_documents() {
        let charge_id = Some("ch_1".to_owned());
        let made = r#"{"chargeId":"ch_1","status":"succeeded","new":"field"}"#;
        let succeeded = Charge { succeeded: true, charge_id: charge_id.clone() };
        assert_eq!(outcome_of(201, made), ChargeOutcome::Ended(succeeded));
        let declined = r#"{"chargeId":"ch_1","status":"declined"}"#;
        assert_eq!(outcome_of(402, declined), ChargeOutcome::Ended(Charge { succeeded: false, charge_id }));
        for status in [429, 503] {
            assert!(matches!(outcome_of(status, ""), ChargeOutcome::NotMade { .. }), "{status}");
        }
        for status in [400, 401, 404, 422] {
            assert!(matches!(outcome_of(status, ""), ChargeOutcome::Refused { .. }), "{status}");
        }
        for (status, body) in [
            (500, ""),
            (502, ""),
            (504, ""),
            (408, ""),
            (409, ""),
            (302, ""),
            (204, ""),
            (201, ""),
            (201, "{}"),
        ] {
            assert!(matches!(outcome_of(status, body), ChargeOutcome::Uncertain { .. }), "{status}");
        }
    }

    #[test]
    fn retry_after_is_bounded() {
        let after = |text: &str| {
            let headers = [(RETRY_AFTER, text.parse().unwrap())].into_iter().collect();
            match outcome(StatusCode::SERVICE_UNAVAILABLE, &headers, b"") {
                ChargeOutcome::NotMade { after, .. } => after,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(after("7"), Some(Duration::from_secs(7)));
        assert_eq!(after("99999999"), Some(RETRY_AFTER_MAX));
        assert_eq!(after("soon"), None);
    }
}
