//! The processor as the API sees it: five things can come of a charge, and which one decides what may be done next.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, header};
use http_body_util::Full;
use ibid::http::TraceContext;
use serde::{Deserialize, Serialize};

use crate::outgoing::{Answer, CallError, HttpUrl, Outgoing};

/// A client of one processor. Clones share its connections.
#[derive(Clone, Debug)]
pub struct ProviderClient {
    url: HttpUrl,
    outgoing: Outgoing,
    answer_within: Duration,
    trace: Option<TraceContext>,
}

/// What is to be charged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChargeRequest {
    /// In the smallest unit of the currency.
    pub amount_cents: i64,
    /// ISO 4217.
    pub currency: String,
    /// Whose card.
    pub customer_id: String,
    /// Our own name for it: the payment's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
}

/// What came of a charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChargeOutcome {
    /// The money is taken.
    Charged {
        /// The processor's name for it.
        charge_id: String,
    },
    /// The bank said no. It is final.
    Declined {
        /// The processor's name for it.
        charge_id: String,
    },
    /// The processor does not take such a request: final, nothing was charged, and a person should look.
    Refused {
        /// What it answered.
        status: StatusCode,
    },
    /// Certainly not made. It may be asked for again.
    NotMade {
        /// How long the processor wants to be left alone.
        retry_after: Option<Duration>,
        /// For the log.
        why: String,
    },
    /// Perhaps made. It may be asked for again only under the same key, and only of a processor that deduplicates.
    Uncertain {
        /// For the log.
        why: String,
    },
}

/// A charge that the processor knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The money is taken.
    Charged {
        /// The processor's name for it.
        charge_id: String,
    },
    /// The bank said no.
    Declined {
        /// The processor's name for it.
        charge_id: String,
    },
}

/// The processor did not say whether it knows a charge. Asking again does no harm.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the processor did not say whether there is a charge: {why}")]
pub struct FindError {
    /// For the log.
    pub why: String,
    /// How long the processor wants to be left alone.
    pub retry_after: Option<Duration>,
}

/// A charge in the processor's books.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Listed {
    /// The processor's name for it.
    pub charge_id: String,
    /// How it ended, in the processor's word.
    pub status: String,
    /// In the smallest unit of the currency.
    pub amount_cents: i64,
    /// ISO 4217.
    pub currency: String,
    /// Our own name for it, if it was given one.
    pub reference: Option<String>,
    /// All of it, as it came.
    #[serde(skip)]
    pub whole: String,
}

impl ProviderClient {
    /// A client that waits so long for an answer.
    pub fn new(url: HttpUrl, answer_within: Duration) -> ProviderClient {
        ProviderClient { url, outgoing: Outgoing::new(), answer_within, trace: None }
    }

    /// The same client for calls that are part of this trace: the processor is told with each.
    pub fn traced(&self, trace: Option<TraceContext>) -> ProviderClient {
        ProviderClient { trace, ..self.clone() }
    }

    /// Asks for a charge, once. The key must be the same whenever the same charge is asked for.
    pub async fn charge(&self, key: &str, asked: &ChargeRequest) -> ChargeOutcome {
        let request = match self.charge_request(key, asked) {
            Ok(request) => request,
            Err(why) => return ChargeOutcome::NotMade { retry_after: None, why },
        };
        match self.call(request).await {
            Ok(answer) => outcome_of(&answer),
            Err(CallError::NotSent(why)) => ChargeOutcome::NotMade { retry_after: None, why },
            Err(CallError::Uncertain(why)) => ChargeOutcome::Uncertain { why },
        }
    }

    /// Asks whether there is a charge under this key. `None` is the processor's word that there is none now; a
    /// request that is still on its way may make one yet.
    pub async fn find(&self, key: &str) -> Result<Option<Found>, FindError> {
        let failed = |why: String| FindError { why, retry_after: None };
        let uri = self.url.join(&format!("/charges?idempotency_key={}", escaped(key)));
        let uri = uri.map_err(|error| failed(error.to_string()))?;
        let request = Request::get(uri).body(Full::new(Bytes::new()));
        let request = request.map_err(|error| failed(error.to_string()))?;
        let answer = self.call(request).await;
        let answer = answer.map_err(|error| failed(error.to_string()))?;
        match answer.status {
            StatusCode::OK => match read(&answer) {
                Some(Made { charge_id, status: Status::Succeeded }) => Ok(Some(Found::Charged { charge_id })),
                Some(Made { charge_id, status: Status::Declined }) => Ok(Some(Found::Declined { charge_id })),
                None => Err(failed("the answer can't be read".to_owned())),
            },
            StatusCode::NOT_FOUND => Ok(None),
            status => Err(FindError { why: status.to_string(), retry_after: retry_after(&answer.headers) }),
        }
    }

    /// All charges that the processor has made, in their order.
    pub async fn charges(&self) -> Result<Vec<Listed>, FindError> {
        #[derive(Deserialize)]
        struct Page {
            charges: Vec<serde_json::Value>,
        }
        let failed = |why: String| FindError { why, retry_after: None };
        let mut all: Vec<Listed> = Vec::new();
        loop {
            let uri = self.url.join(&format!("/charges?after={}&limit={PAGE}", all.len()));
            let uri = uri.map_err(|error| failed(error.to_string()))?;
            let request = Request::get(uri).body(Full::new(Bytes::new()));
            let request = request.map_err(|error| failed(error.to_string()))?;
            let answer = self.call(request).await;
            let answer = answer.map_err(|error| failed(error.to_string()))?;
            if answer.status != StatusCode::OK {
                let retry_after = retry_after(&answer.headers);
                return Err(FindError { why: answer.status.to_string(), retry_after });
            }
            let page: Page =
                serde_json::from_slice(&answer.body).map_err(|error| failed(error.to_string()))?;
            let count = page.charges.len();
            for charge in page.charges {
                let whole = charge.to_string();
                let listed: Listed =
                    serde_json::from_value(charge).map_err(|error| failed(error.to_string()))?;
                all.push(Listed { whole, ..listed });
            }
            if count < PAGE {
                return Ok(all);
            }
            if all.len() >= CHARGES_MAX {
                return Err(failed(format!("it has more than {CHARGES_MAX} charges")));
            }
        }
    }

    /// A charge as the processor writes it, in answers and webhooks: whether the money is taken, and its name for it.
    pub fn read_charge(body: &[u8]) -> Option<(bool, String)> {
        let made: Made = serde_json::from_slice(body).ok()?;
        Some((matches!(made.status, Status::Succeeded), made.charge_id))
    }

    async fn call(&self, mut request: Request<Full<Bytes>>) -> Result<Answer, CallError> {
        if let Some(trace) = &self.trace {
            trace.next().write(request.headers_mut());
        }
        self.outgoing.call(request, self.answer_within).await
    }

    fn charge_request(&self, key: &str, asked: &ChargeRequest) -> Result<Request<Full<Bytes>>, String> {
        let body = serde_json::to_vec(asked).map_err(|error| error.to_string())?;
        let uri = self.url.join("/charges").map_err(|error| error.to_string())?;
        Request::post(uri)
            .header("idempotency-key", key)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| error.to_string())
    }
}

fn outcome_of(answer: &Answer) -> ChargeOutcome {
    let uncertain = |why: String| ChargeOutcome::Uncertain { why };
    match answer.status {
        StatusCode::OK | StatusCode::CREATED | StatusCode::PAYMENT_REQUIRED => match read(answer) {
            Some(Made { charge_id, status: Status::Succeeded }) => ChargeOutcome::Charged { charge_id },
            Some(Made { charge_id, status: Status::Declined }) => ChargeOutcome::Declined { charge_id },
            None => uncertain(format!("{} with an answer that can't be read", answer.status)),
        },
        // The processor documents these two as given before it looks at the charge.
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => ChargeOutcome::NotMade {
            retry_after: retry_after(&answer.headers),
            why: answer.status.to_string(),
        },
        // Somebody on the way gave up waiting, or another request with this key is at work.
        StatusCode::REQUEST_TIMEOUT | StatusCode::CONFLICT => uncertain(answer.status.to_string()),
        status if status.is_client_error() => ChargeOutcome::Refused { status },
        status => uncertain(status.to_string()),
    }
}

/// The part of a charge that we rely on.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Made {
    charge_id: String,
    status: Status,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Succeeded,
    Declined,
}

fn read(answer: &Answer) -> Option<Made> {
    serde_json::from_slice(&answer.body).ok()
}

/// Seconds or a date, no longer than an hour.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    let asked = match text.parse().map(Duration::from_secs) {
        Ok(length) => length,
        Err(_) => httpdate::parse_http_date(text).ok()?.duration_since(SystemTime::now()).unwrap_or_default(),
    };
    Some(asked.min(RETRY_AFTER_MAX))
}

/// Everything but unreserved characters (RFC 3986) in percent signs.
fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// A processor that wants to be left alone for longer has a wrong clock or a bad day; asking hourly hurts nobody.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// How long a charge may take: card networks answer within seconds, and some banks ask for a confirmation first.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// Charges in one answer: some twenty kilobytes.
const PAGE: usize = 100;

/// A processor whose list never ends is not one that we can compare with.
const CHARGES_MAX: usize = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &'static str) -> Answer {
        let status = StatusCode::from_u16(status).unwrap();
        Answer { status, headers: HeaderMap::new(), body: Bytes::from_static(body.as_bytes()) }
    }

    #[test]
    fn every_status_proves_what_it_proves() {
        let made = r#"{"chargeId":"ch_1","status":"succeeded","new":"field"}"#;
        let charge_id = "ch_1".to_owned();
        assert_eq!(outcome_of(&answer(201, made)), ChargeOutcome::Charged { charge_id: charge_id.clone() });
        let declined = r#"{"chargeId":"ch_1","status":"declined"}"#;
        assert_eq!(outcome_of(&answer(402, declined)), ChargeOutcome::Declined { charge_id });
        for status in [429, 503] {
            assert!(matches!(outcome_of(&answer(status, "")), ChargeOutcome::NotMade { .. }), "{status}");
        }
        for status in [400, 401, 404, 422] {
            assert!(matches!(outcome_of(&answer(status, "")), ChargeOutcome::Refused { .. }), "{status}");
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
            assert!(matches!(outcome_of(&answer(status, body)), ChargeOutcome::Uncertain { .. }), "{status}");
        }
    }

    #[test]
    fn retry_after_is_read_in_both_forms_and_bounded() {
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::RETRY_AFTER, text.parse().unwrap());
            retry_after(&headers)
        };
        assert_eq!(read("7"), Some(Duration::from_secs(7)));
        assert_eq!(read("99999999"), Some(RETRY_AFTER_MAX));
        assert_eq!(read("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        assert_eq!(read("Tue, 31 Dec 2999 23:59:59 GMT"), Some(RETRY_AFTER_MAX));
        assert_eq!(read("soon"), None);
    }

    #[test]
    fn a_key_stays_one_value_of_the_query() {
        assert_eq!(escaped("a&b=c d/é"), "a%26b%3Dc%20d%2F%C3%A9");
    }
}
