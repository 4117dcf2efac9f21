//! Validation of request bodies, before ibid reserves the key.
//!
//! A request that cannot be executed as written must not use up its key: the client may correct it and send it again under
//! the same key. Retries are validated, too. Stricter rules would therefore refuse the retry of a request that was accepted
//! before, so they need a new path or version.

use std::fmt;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{FromRequest, Request};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::{Method, StatusCode};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::{Map, Value};

use crate::problem::Problem;

/// A valid request for a payment.
#[derive(Clone, Debug, PartialEq, Eq)]
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

/// Extractor that gives a handler the parsed body.
pub struct Valid<T>(pub T);

/// A request that is read from a JSON object, field by field.
pub trait Input: Sized {
    /// Reads the fields. Returns `None` if one is invalid; `fields` then has the errors.
    fn read(fields: &mut InputFields) -> Option<Self>;
}

impl Input for NewPayment {
    fn read(fields: &mut InputFields) -> Option<NewPayment> {
        // All fields are read before the first `?`, so that every mistake is reported at once.
        let (customer_id, amount_cents) = (fields.text("customerId", 255), fields.amount("amountCents"));
        let currency = fields.currency("currency");
        Some(NewPayment { customer_id: customer_id?, amount_cents: amount_cents?, currency: currency? })
    }
}

impl Input for NewRide {
    fn read(fields: &mut InputFields) -> Option<NewRide> {
        let payment = NewPayment::read(fields);
        let (origin, destination) = (fields.text("origin", 512), fields.text("destination", 512));
        Some(NewRide { payment: payment?, origin: origin?, destination: destination? })
    }
}

/// Parses a body, or returns a problem that lists every invalid field.
pub fn parse<T: Input>(body: &[u8]) -> Result<T, Problem> {
    let object = serde_json::from_slice(body);
    let UniqueFields(left) =
        object.map_err(|error| Problem::new(StatusCode::BAD_REQUEST, error.to_string()))?;
    let mut fields = InputFields { left, errors: Vec::new() };
    let input = T::read(&mut fields);
    // An unknown field is most likely a misspelt one. Ignoring it would execute another request than the client meant.
    let unknown =
        fields.left.into_iter().map(|(name, _)| (name, "is not a field of this request".to_owned()));
    fields.errors.extend(unknown);
    input.filter(|_| fields.errors.is_empty()).ok_or_else(|| Problem::invalid(fields.errors))
}

/// The fields of a JSON object, each of which occurs once.
///
/// `serde_json` would silently keep the last of two equal names. Other parsers keep the first, so a proxy or an audit log
/// could see another amount than the one that is charged.
struct UniqueFields(Map<String, Value>);

impl<'de> Deserialize<'de> for UniqueFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<UniqueFields, D::Error> {
        struct FieldVisitor;

        impl<'de> Visitor<'de> for FieldVisitor {
            type Value = UniqueFields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<UniqueFields, A::Error> {
                let mut fields = Map::new();
                while let Some((name, value)) = map.next_entry::<String, Value>()? {
                    if fields.contains_key(&name) {
                        return Err(A::Error::custom(format_args!("the field `{name}` occurs twice")));
                    }
                    fields.insert(name, value);
                }
                Ok(UniqueFields(fields))
            }
        }

        deserializer.deserialize_map(FieldVisitor)
    }
}

/// The fields that are still unread, and the errors so far.
pub struct InputFields {
    left: Map<String, Value>,
    errors: Vec<(String, String)>,
}

impl InputFields {
    fn text(&mut self, name: &str, bytes_max: usize) -> Option<String> {
        let is_valid = |text: &String| {
            // PostgreSQL cannot store a NUL, and no name or address needs another control character.
            (1..=bytes_max).contains(&text.len())
                && !text.trim().is_empty()
                && !text.contains(char::is_control)
        };
        let text =
            self.left.remove(name).and_then(|value| value.as_str().map(str::to_owned)).filter(is_valid);
        self.check(name, text, || format!("must be a text of at most {bytes_max} bytes on one line"))
    }

    /// Reads an amount in cents. Refuses `10.0` and `1e3`, because a rule that accepts these has to say how it rounds
    /// `10.005`.
    fn amount(&mut self, name: &str) -> Option<i64> {
        let amount = self.left.remove(name).and_then(|value| value.as_i64()).filter(|amount| *amount > 0);
        self.check(name, amount, || {
            "must be a whole number of cents, more than 0 and less than 2^63".to_owned()
        })
    }

    fn currency(&mut self, name: &str) -> Option<String> {
        let code = self.left.remove(name).and_then(|value| value.as_str().map(str::to_owned));
        let code = code.filter(|code| CURRENCIES.contains(&code.as_str()));
        self.check(name, code, || format!("must be one of {}", CURRENCIES.join(", ")))
    }

    fn check<T>(&mut self, name: &str, value: Option<T>, must: impl FnOnce() -> String) -> Option<T> {
        if value.is_none() {
            self.errors.push((name.to_owned(), must()));
        }
        value
    }
}

/// Middleware that validates the bodies of the two `POST` routes.
///
/// It passes the original bytes on, not the parsed value: ibid compares the fingerprint of a retry with that of the first
/// request.
pub async fn validate(request: Request, next: Next) -> Response {
    let check: fn(&[u8]) -> Result<(), Problem> = match (request.method(), request.uri().path()) {
        (&Method::POST, PAYMENTS) => |body| parse::<NewPayment>(body).map(drop),
        (&Method::POST, RIDES) => |body| parse::<NewRide>(body).map(drop),
        _ => return next.run(request).await,
    };
    let (head, body) = request.into_parts();
    let body = match tokio::time::timeout(BODY_WITHIN, to_bytes(body, BODY_BYTES_MAX)).await {
        Ok(Ok(body)) => body,
        Ok(Err(error)) => {
            return Problem::new(StatusCode::PAYLOAD_TOO_LARGE, error.to_string()).into_response();
        }
        Err(_) => return Problem::new(StatusCode::REQUEST_TIMEOUT, "the body took too long").into_response(),
    };
    match check(&body) {
        Ok(()) => next.run(Request::from_parts(head, Body::from(body))).await,
        Err(problem) => problem.into_response(),
    }
}

impl<T: Input, S: Sync> FromRequest<S> for Valid<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Valid<T>, Problem> {
        let body = to_bytes(request.into_body(), BODY_BYTES_MAX).await;
        let body = body.map_err(|error| Problem::new(StatusCode::BAD_REQUEST, error.to_string()))?;
        parse(&body).map(Valid)
    }
}

/// Path of the payments collection.
pub const PAYMENTS: &str = "/payments";

/// Path of the rides collection.
pub const RIDES: &str = "/rides";

/// Currencies that the processor can charge.
const CURRENCIES: [&str; 8] = ["AUD", "CAD", "CHF", "EUR", "GBP", "JPY", "SEK", "USD"];

/// Largest request body: five fields of at most 512 bytes each, with room for JSON escapes.
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
