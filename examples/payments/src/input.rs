//! Validation of request bodies, before ibid reserves the key.
//!
//! A request that cannot be executed as written must not use up its key, so that the client may correct it and send it
//! under the same key. A retry is validated like the first request: stricter rules also refuse retries of requests that
//! were accepted before, so they need a new path or version.

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

/// A payment to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewPayment {
    /// Customer whose card is charged.
    pub customer_id: String,
    /// More than zero, in the smallest unit of the currency.
    pub amount_cents: i64,
    /// ISO 4217.
    pub currency: String,
}

/// A ride to book and pay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRide {
    /// Who pays, and how much.
    pub payment: NewPayment,
    /// Start of the ride.
    pub origin: String,
    /// End of the ride.
    pub destination: String,
}

/// A valid body, as an argument of a handler.
pub struct Valid<T>(pub T);

/// A body that can be read field by field.
pub trait Input: Sized {
    /// Reads the fields; `None` if one is invalid.
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

/// Parses a body, or reports everything that is wrong with it.
pub fn parse<T: Input>(body: &[u8]) -> Result<T, Problem> {
    let object = serde_json::from_slice(body);
    let UniqueFields(left) =
        object.map_err(|error| Problem::new(StatusCode::BAD_REQUEST, error.to_string()))?;
    let mut fields = InputFields { left, errors: Vec::new() };
    let input = T::read(&mut fields);
    // An unknown field is most likely a misspelt one, and must not be ignored.
    let unknown =
        fields.left.into_iter().map(|(name, _)| (name, "is not a field of this request".to_owned()));
    fields.errors.extend(unknown);
    input.filter(|_| fields.errors.is_empty()).ok_or_else(|| Problem::invalid(fields.errors))
}

/// The fields of a JSON object. A name that occurs twice is refused: parsers disagree on which value counts, and one of
/// them may be the amount.
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

/// The fields that are still to be read, and the errors so far.
pub struct InputFields {
    left: Map<String, Value>,
    errors: Vec<(String, String)>,
}

impl InputFields {
    fn text(&mut self, name: &str, bytes_max: usize) -> Option<String> {
        let is_valid = |text: &String| {
            // PostgreSQL cannot store a NUL, and a name has no other control characters either.
            (1..=bytes_max).contains(&text.len())
                && !text.trim().is_empty()
                && !text.contains(char::is_control)
        };
        let text =
            self.left.remove(name).and_then(|value| value.as_str().map(str::to_owned)).filter(is_valid);
        self.check(name, text, || format!("must be a text of at most {bytes_max} bytes on one line"))
    }

    /// `10.0` and `1e3` are refused: a parser that rounds these to 10 might round `10.005` as well.
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

/// The middleware: validates bodies of the two `POST` routes. The bytes are passed on unchanged, because ibid takes their
/// fingerprint.
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

/// Path of payments.
pub const PAYMENTS: &str = "/payments";

/// Path of rides.
pub const RIDES: &str = "/rides";

/// Currencies with a processor behind them.
const CURRENCIES: [&str; 8] = ["AUD", "CAD", "CHF", "EUR", "GBP", "JPY", "SEK", "USD"];

/// Five fields of at most 512 bytes each, with room for escapes.
const BODY_BYTES_MAX: usize = 16 << 10;

/// A few kilobytes arrive at once, or the connection is so bad that a new one is the better try.
const BODY_WITHIN: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(json: &str) -> Option<i64> {
        let body = format!(r#"{{"customerId":"ann","amountCents":{json},"currency":"EUR"}}"#);
        parse::<NewPayment>(body.as_bytes()).ok().map(|payment| payment.amount_cents)
    }

    #[test]
    fn an_amount_is_a_whole_number_from_1_to_2_to_the_63_less_1() {
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
