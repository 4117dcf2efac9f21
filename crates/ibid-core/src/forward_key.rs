//! The rule by which a gateway passes the key on to the upstream.

use std::fmt;

use minicbor::{Decode, Encode};

use crate::key_source::{KeySource, KeySourceError};

/// The rule by which a gateway passes the key of a guarded request on to the upstream.
///
/// Go's HTTP client, and so Caddy, Traefik and every `httputil.ReverseProxy`, treats `Idempotency-Key` or
/// `X-Idempotency-Key` on a request without a body as permission to resend the request by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[expect(clippy::exhaustive_enums, reason = "the gateway has to obey every rule")]
pub enum ForwardKey {
    /// As sent if the request has a body. Without a body, the fields that permit a resend are renamed to
    /// [`FORWARDED_KEY`].
    #[default]
    #[n(0)]
    Auto,
    /// As the client sent it: the operator vouches that no hop resends a request.
    #[n(1)]
    AsSent,
    /// In no header field at all.
    #[n(2)]
    Off,
    /// Only in this field, by its name in lower case.
    #[n(3)]
    Header(#[n(0)] String),
}

impl ForwardKey {
    /// Parses a rule as a configuration writes it.
    ///
    /// # Errors
    ///
    /// Fails if the text is none of `auto`, `as-sent`, `off` and `header:NAME`, or if NAME cannot carry a key.
    pub fn parse(text: &str) -> Result<ForwardKey, KeySourceError> {
        match text {
            "auto" => Ok(ForwardKey::Auto),
            "as-sent" => Ok(ForwardKey::AsSent),
            "off" => Ok(ForwardKey::Off),
            text => match KeySource::parse(text) {
                Ok(KeySource::Header(name)) => Ok(ForwardKey::Header(name)),
                Err(error @ (KeySourceError::HeaderName(_) | KeySourceError::HeaderTaken(_))) => Err(error),
                _ => Err(KeySourceError::Unknown(text.to_owned())),
            },
        }
    }

    /// Returns the header field that the rule names, if any.
    pub fn header(&self) -> Option<&str> {
        match self {
            ForwardKey::Header(name) => Some(name),
            ForwardKey::Auto | ForwardKey::AsSent | ForwardKey::Off => None,
        }
    }
}

impl fmt::Display for ForwardKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ForwardKey::Auto => f.write_str("auto"),
            ForwardKey::AsSent => f.write_str("as-sent"),
            ForwardKey::Off => f.write_str("off"),
            ForwardKey::Header(name) => write!(f, "header:{name}"),
        }
    }
}

/// Field that carries the key of a request without a body, unless the operator names another.
pub const FORWARDED_KEY: &str = "ibid-key";

/// Fields that Go's HTTP client treats as permission to resend a request without a body.
pub const LEAVE_TO_RESEND: [&str; 2] = ["idempotency-key", "x-idempotency-key"];
