//! The payload of an effect, as its handler gets it: parsed from JSON, or the bytes as they were enqueued.

use std::any::type_name;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::error::Category;

use super::handler::BoxError;

/// A type that the payload of an effect can be parsed into: every type that implements [`Deserialize`](serde::Deserialize), from
/// JSON, and [`RawPayload`]. Implement it yourself for another format.
///
/// ```
/// use ibid::outbox::{BoxError, EffectPayload};
///
/// struct Reference(u64);
///
/// impl EffectPayload for Reference {
///     fn from_bytes(payload: &bytes::Bytes) -> Result<Reference, BoxError> {
///         Ok(Reference(u64::from_be_bytes(payload[..].try_into()?)))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be the payload of an effect",
    note = "derive `serde::Deserialize` for it, or take the bytes as a `RawPayload`"
)]
pub trait EffectPayload: Sized + Send + Sync {
    /// Parses the bytes of a stored payload.
    ///
    /// # Errors
    ///
    /// Fails if it can't be parsed. The error is stored with the effect and shown to operators, so it must not contain the
    /// payload.
    fn from_bytes(payload: &Bytes) -> Result<Self, BoxError>;
}

impl<P: DeserializeOwned + Send + Sync> EffectPayload for P {
    fn from_bytes(payload: &Bytes) -> Result<P, BoxError> {
        serde_json::from_slice(payload).map_err(|error| {
            // The message of serde_json may quote the payload, so the text has only the kind of the error and its position.
            let what = match error.classify() {
                Category::Data => "a field is missing or has a value of another type",
                Category::Syntax | Category::Eof | Category::Io => "it is not JSON",
            };
            format!("{what}, at line {} column {}", error.line(), error.column()).into()
        })
    }
}

/// A payload as it was enqueued, for handlers that parse it themselves or need no more than its bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct RawPayload(pub Bytes);

impl EffectPayload for RawPayload {
    fn from_bytes(payload: &Bytes) -> Result<RawPayload, BoxError> {
        Ok(RawPayload(payload.clone()))
    }
}

impl Deref for RawPayload {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        &self.0
    }
}

/// Omits the bytes, because only the provider may see them.
impl std::fmt::Debug for RawPayload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RawPayload").field("len", &self.0.len()).finish_non_exhaustive()
    }
}

/// The handler's type does not fit the payload.
#[derive(Debug, thiserror::Error)]
#[error("the payload can't be parsed as `{payload_type}`: {why}")]
pub(crate) struct PayloadError {
    payload_type: &'static str,
    why: BoxError,
}

/// Parses a payload. A panic of its type counts as an error: the worker must continue.
pub(super) fn parse<P: EffectPayload>(payload: &RawPayload) -> Result<P, PayloadError> {
    let parsed = catch_unwind(AssertUnwindSafe(|| P::from_bytes(payload)));
    let parsed = parsed.unwrap_or_else(|_| Err("parsing it panicked".into()));
    parsed.map_err(|why| PayloadError { payload_type: type_name::<P>(), why })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[expect(dead_code, reason = "only parsed")]
    struct Payment {
        amount: i64,
    }

    fn why(payload: &'static str) -> String {
        parse::<Payment>(&RawPayload(payload.into())).unwrap_err().to_string()
    }

    #[test]
    fn the_reason_tells_type_and_position_but_not_the_payload() {
        let card = why(r#"{"amount": "4111 1111"}"#);
        assert!(card.contains("::Payment`") && card.contains("another type, at line 1 column 22"), "{card}");
        let unknown = why(r#"{"amuont": 7}"#);
        assert!(!card.contains("4111") && !unknown.contains("amuont"), "{card} {unknown}");
        assert!(why("card 4111").contains("not JSON"));
    }

    #[test]
    fn a_type_that_panics_does_not_stop_the_worker() {
        #[derive(Debug)]
        struct Panics;
        impl EffectPayload for Panics {
            fn from_bytes(_: &Bytes) -> Result<Panics, BoxError> {
                panic!("a bug")
            }
        }
        let error = parse::<Panics>(&RawPayload(Bytes::new())).unwrap_err();
        assert!(error.to_string().ends_with("parsing it panicked"), "{error}");
    }
}
