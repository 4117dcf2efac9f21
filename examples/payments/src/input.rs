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
use serde::de::DeserializeOwned;
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
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct NewRide {
    /// The payer and the amount.
    #[serde(flatten)]
    pub payment: NewPayment,
    /// Start of the ride.
    pub origin: String,
    /// End of the ride.
    pub destination: String,
}

/// A request that is read from the JSON object in a body.
pub trait Input: DeserializeOwned {
    /// The fields of the request; all are required.
    const FIELDS: &'static [Field];
}

impl Input for NewPayment {
    const FIELDS: &'static [Field] = &[CUSTOMER_ID, AMOUNT_CENTS, CURRENCY];
}

impl Input for NewRide {
    const FIELDS: &'static [Field] = &[CUSTOMER_ID, AMOUNT_CENTS, CURRENCY, ORIGIN, DESTINATION];
}

/// The name of a field, what its value must be, and whether a value is that.
type Field = (&'static str, &'static str, fn(&Value) -> bool);

/// Returns whether the value satisfies [`AMOUNT_RULE`]. `10.0` and `1e3` do not, because a rule that accepts these has to say
/// how it rounds `10.005`.
fn is_amount(sent: &Value) -> bool {
    sent.as_i64().is_some_and(|cents| cents > 0)
}

/// Returns whether the value satisfies [`CURRENCY_RULE`].
fn is_currency(sent: &Value) -> bool {
    matches!(sent.as_str(), Some("AUD" | "CAD" | "CHF" | "EUR" | "GBP" | "JPY" | "SEK" | "USD"))
}

/// Returns whether the value satisfies [`TEXT_RULE`].
fn is_short_text(sent: &Value) -> bool {
    // PostgreSQL cannot store a NUL, and no name or address needs another control character.
    sent.as_str().is_some_and(|text| {
        !text.trim().is_empty() && !text.contains(char::is_control) && text.len() <= TEXT_BYTES_MAX
    })
}

/// Parses a body, or returns a problem that lists every invalid field.
pub fn parse<T: Input>(body: &[u8]) -> Result<T, Problem> {
    let unreadable = |error: serde_json::Error| Problem::new(StatusCode::BAD_REQUEST, &error.to_string());
    let mut sent: Map<String, Value> = serde_json::from_slice(body).map_err(unreadable)?;
    let mut errors = Vec::new();
    for (field, rule, is_valid) in T::FIELDS {
        if !sent.remove(*field).is_some_and(|value| is_valid(&value)) {
            errors.push(json!({ "field": field, "detail": rule }));
        }
    }
    // An unknown field is most likely a misspelt one. Ignoring it would execute another request than the client meant.
    for field in sent.keys() {
        errors.push(json!({ "field": field, "detail": "is not a field of this request" }));
    }
    if !errors.is_empty() {
        return Err(Problem::invalid(errors));
    }
    // serde refuses a field that occurs twice. Parsers that keep the first or the last of two would let a proxy or an audit
    // log see another amount than the one that is charged.
    serde_json::from_slice(body).map_err(unreadable)
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

const CUSTOMER_ID: Field = ("customerId", TEXT_RULE, is_short_text);
const AMOUNT_CENTS: Field = ("amountCents", AMOUNT_RULE, is_amount);
const CURRENCY: Field = ("currency", CURRENCY_RULE, is_currency);
const ORIGIN: Field = ("origin", TEXT_RULE, is_short_text);
const DESTINATION: Field = ("destination", TEXT_RULE, is_short_text);

/// Largest text in a request: an id or an address on one line. Every database can store and index as much.
const TEXT_BYTES_MAX: usize = 255;

const TEXT_RULE: &str = "must be a text of at most 255 bytes on one line";

const AMOUNT_RULE: &str = "must be a whole number of cents, from 1 to 2^63 - 1";

/// Currencies that the processor can charge.
const CURRENCY_RULE: &str = "must be one of AUD, CAD, CHF, EUR, GBP, JPY, SEK, USD";

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
        for twice in [r#""amountCents":1"#, r#""origin":"a""#] {
            let fields =
                r#""customerId":"ann","amountCents":1,"currency":"EUR","origin":"a","destination":"b""#;
            let body = format!("{{{fields},{twice}}}");
            assert!(parse::<NewRide>(body.as_bytes()).is_err(), "{body}");
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
