//! Validation of request bodies, before ibid reserves the key.
//!
//! A request that cannot be executed as written must not use up its key: the client may correct it and send it again under
//! the same key. Retries are validated, too. Stricter rules would therefore refuse the retry of a request that was accepted
//! before, so they need a new path or version.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http::{Method, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::problem::Problem;

/// A valid request for a payment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NewPayment {
    /// Customer whose card is charged.
    pub customer_id: String,
    /// Amount in the smallest unit of the currency; more than zero.
    pub amount_cents: i64,
    /// Currency code of ISO 4217.
    pub currency: String,
}

/// A valid request to book and pay a ride.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRide {
    /// The payer and the amount.
    pub payment: NewPayment,
    /// Start of the ride.
    pub origin: String,
    /// End of the ride.
    pub destination: String,
}

/// The fields of both requests, as they were sent.
///
/// serde refuses a field that occurs twice. Parsers that keep the first or the last of two would let a proxy or an audit log
/// see another amount than the one that is charged.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SentFields {
    customer_id: Option<Value>,
    amount_cents: Option<Value>,
    currency: Option<Value>,
    origin: Option<Value>,
    destination: Option<Value>,
    #[serde(flatten)]
    unknown: Map<String, Value>,
    /// Each invalid field, and what it must be.
    #[serde(skip)]
    errors: Vec<Value>,
}

/// A request that is read from its fields.
pub trait Input: Sized {
    /// Takes the fields of this request. Returns `None` if one is invalid; `sent.errors` then has all invalid ones.
    fn read(sent: &mut SentFields) -> Option<Self>;
}

impl Input for NewPayment {
    fn read(sent: &mut SentFields) -> Option<NewPayment> {
        let customer_id = text(sent.customer_id.take());
        // `10.0` and `1e3` are refused, because a rule that accepts these has to say how it rounds `10.005`.
        let amount_cents = sent.amount_cents.take().and_then(|sent| sent.as_i64()).filter(|cents| *cents > 0);
        let currency = text(sent.currency.take()).filter(|code| CURRENCIES.contains(&code.as_str()));
        // All fields are checked before the first `?`, so that every mistake is reported at once.
        sent.check("customerId", &customer_id, TEXT_RULE);
        sent.check("amountCents", &amount_cents, "must be a whole number of cents, from 1 to 2^63 - 1");
        sent.check("currency", &currency, &format!("must be one of {}", CURRENCIES.join(", ")));
        Some(NewPayment { customer_id: customer_id?, amount_cents: amount_cents?, currency: currency? })
    }
}

impl Input for NewRide {
    fn read(sent: &mut SentFields) -> Option<NewRide> {
        let payment = NewPayment::read(sent);
        let (origin, destination) = (text(sent.origin.take()), text(sent.destination.take()));
        sent.check("origin", &origin, TEXT_RULE);
        sent.check("destination", &destination, TEXT_RULE);
        Some(NewRide { payment: payment?, origin: origin?, destination: destination? })
    }
}

impl SentFields {
    fn check<T>(&mut self, field: &str, value: &Option<T>, rule: &str) {
        if value.is_none() {
            self.errors.push(json!({ "field": field, "detail": rule }));
        }
    }
}

/// Returns a text that satisfies [`TEXT_RULE`].
fn text(sent: Option<Value>) -> Option<String> {
    let text = sent?.as_str()?.to_owned();
    // PostgreSQL cannot store a NUL, and no name or address needs another control character.
    let is_printable = !text.trim().is_empty() && !text.contains(char::is_control);
    (is_printable && text.len() <= TEXT_BYTES_MAX).then_some(text)
}

/// Parses a body, or returns a problem that lists every invalid field.
pub fn parse<T: Input>(body: &[u8]) -> Result<T, Problem> {
    let mut sent: SentFields = serde_json::from_slice(body)
        .map_err(|error| Problem::new(StatusCode::BAD_REQUEST, &error.to_string()))?;
    let input = T::read(&mut sent);
    // An unknown field is most likely a misspelt one. Ignoring it would execute another request than the client meant.
    for (field, left) in [("origin", &sent.origin), ("destination", &sent.destination)] {
        if left.is_some() {
            sent.unknown.insert(field.to_owned(), Value::Null);
        }
    }
    for field in std::mem::take(&mut sent.unknown).keys() {
        sent.check::<()>(field, &None, "is not a field of this request");
    }
    input.filter(|_| sent.errors.is_empty()).ok_or_else(|| Problem::invalid(sent.errors))
}

/// Middleware that validates the bodies of the two `POST` routes.
///
/// It passes the original bytes on, not the parsed value: ibid compares the fingerprint of a retry with that of the first
/// request.
pub async fn validate(request: Request, next: Next) -> Result<Response, Problem> {
    // PostgreSQL refuses a NUL in a parameter, and no id contains one.
    if request.uri().to_string().contains("%00") {
        return Err(Problem::not_found());
    }
    let check: fn(&[u8]) -> Result<(), Problem> = match (request.method(), request.uri().path()) {
        (&Method::POST, PAYMENTS) => |body| parse::<NewPayment>(body).map(drop),
        (&Method::POST, RIDES) => |body| parse::<NewRide>(body).map(drop),
        _ => return Ok(next.run(request).await),
    };
    let (head, body) = request.into_parts();
    let body = tokio::time::timeout(BODY_WITHIN, to_bytes(body, BODY_BYTES_MAX)).await;
    let body = body.map_err(|_| Problem::new(StatusCode::REQUEST_TIMEOUT, "the body took too long"))?;
    let body = body.map_err(|error| Problem::new(StatusCode::PAYLOAD_TOO_LARGE, &error.to_string()))?;
    check(&body)?;
    Ok(next.run(Request::from_parts(head, Body::from(body))).await)
}

/// Path of the payments collection.
pub const PAYMENTS: &str = "/payments";

/// Path of the rides collection.
pub const RIDES: &str = "/rides";

/// Currencies that the processor can charge.
const CURRENCIES: [&str; 8] = ["AUD", "CAD", "CHF", "EUR", "GBP", "JPY", "SEK", "USD"];

/// Largest text in a request: an id or an address on one line. Every database can store and index as much.
const TEXT_BYTES_MAX: usize = 255;

const TEXT_RULE: &str = "must be a text of at most 255 bytes on one line";

/// Largest request body: five fields of at most 255 bytes each, with room for JSON escapes.
const BODY_BYTES_MAX: usize = 16 << 10;

/// Time for a body to arrive. A few kilobytes take one round trip; on a connection that needs 10 s for them, the client is
/// better off with a new connection.
const BODY_WITHIN: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(json: &str) -> Option<i64> {
        let body = format!(r#"{{"customerId":"ann","amountCents":{json},"currency":"EUR"}}"#);
        parse::<NewPayment>(body.as_bytes()).ok().map(|payment| payment.amount_cents)
    }

    #[test]
    fn an_amount_is_a_positive_64_bit_integer() {
        assert_eq!((amount("1"), amount("9223372036854775807")), (Some(1), Some(i64::MAX)));
        for json in ["9223372036854775808", "18446744073709551616", "1e30", "0", "-1", "-0", "-1.5"] {
            assert_eq!(amount(json), None, "{json}");
        }
        for json in ["1.5", "10.0", "1e3", "\"100\"", "null", "true", "[1]", "{}"] {
            assert_eq!(amount(json), None, "{json}");
        }
    }

    #[test]
    fn a_field_occurs_once() {
        for twice in [r#""amountCents":1,"amountCents":100"#, r#""amountCents":1,"amount\u0043ents":1"#] {
            let body = format!(r#"{{"customerId":"ann",{twice},"currency":"EUR"}}"#);
            assert!(parse::<NewPayment>(body.as_bytes()).is_err(), "{body}");
        }
    }

    #[test]
    fn each_request_has_its_own_fields() {
        let body = r#"{"customerId":"ann","amountCents":1,"currency":"EUR","origin":"a","destination":"b"}"#;
        assert!(parse::<NewRide>(body.as_bytes()).is_ok());
        assert!(parse::<NewPayment>(body.as_bytes()).is_err());
        for body in ["[]", "null", r#"["ann",1,"EUR"]"#, "7"] {
            assert!(parse::<NewPayment>(body.as_bytes()).is_err(), "{body}");
        }
    }

    #[test]
    fn texts_are_short_and_printable() {
        let customer = |text: &str| {
            let body = serde_json::json!({ "customerId": text, "amountCents": 1, "currency": "EUR" });
            parse::<NewPayment>(body.to_string().as_bytes())
        };
        assert!(customer(&"a".repeat(255)).is_ok() && customer("Zoë ✓").is_ok());
        for text in ["", " ", "a\0b", "a\nb", "a\u{85}b", &"a".repeat(256), &"é".repeat(128)] {
            assert!(customer(text).is_err(), "{text:?}");
        }
    }
}
