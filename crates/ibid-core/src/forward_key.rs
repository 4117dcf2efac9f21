//! How a gateway passes the key on to the upstream.

use std::fmt;

use minicbor::{Decode, Encode};

use crate::key_source::{KeySource, KeySourceError};

/// How a gateway passes the key of a guarded request on to the upstream.
///
/// Go's HTTP client, and so Caddy, Traefik and every `httputil.ReverseProxy`, takes `Idempotency-Key` or
/// `X-Idempotency-Key` on a request without a body as leave to send it a second time by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub enum ForwardKey {
    /// As sent if the request has a body. Without a body the fields that give such leave are renamed to
    /// [`FORWARDED_KEY`].
    #[default]
    #[n(0)]
    Auto,
    /// As the client sent it: the operator's word that no hop sends a request again.
    #[n(1)]
    AsSent,
    /// Not at all in a header field.
    #[n(2)]
    Off,
    /// In this field alone, by its name in lower case.
    #[n(3)]
    Header(#[n(0)] String),
}

impl ForwardKey {
    /// Reads a rule as a configuration writes it.
    ///
    /// # Errors
    ///
    /// If it is none of `auto`, `as-sent`, `off` and `header:NAME`, or if NAME can't carry a key.
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

    /// The field that it names, if it names one.
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

/// The field that carries the key of a request without a body, unless the operator names another.
pub const FORWARDED_KEY: &str = "ibid-key";

/// Fields that Go's HTTP client takes as leave to send a request without a body again.
pub const LEAVE_TO_RESEND: [&str; 2] = ["idempotency-key", "x-idempotency-key"];
