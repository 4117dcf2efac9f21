//! Verifies that a webhook was signed with one of the source's secrets, and recently. Nothing here reads the payload.
//!
//! The schemes differ in the bytes that are signed. The digest is HMAC-SHA-256 in all of them, computed once per secret and
//! compared in constant time with every signature of the webhook.

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{HeaderMap, HeaderName};
use ibid_core::hex;
use ibid_core::time::Timestamp;
use sha2::Sha256;
use subtle::ConstantTimeEq as _;

/// The signature scheme of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SignatureScheme {
    /// Standard Webhooks 1.0: `webhook-id`, `webhook-timestamp`, `webhook-signature`.
    Standard,
    /// Stripe's scheme: `Stripe-Signature: t=…,v1=…`.
    Stripe,
    /// An HMAC-SHA-256 in a field that the source chose.
    Hmac(PlainSignature),
}

/// A signature in a field that the source chose.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlainSignature {
    /// The field with the signature.
    pub header: HeaderName,
    /// The text before the digest, such as `sha256=`.
    pub prefix: String,
    /// The encoding of the digest.
    pub encoding: SignatureEncoding,
    /// The content that is signed.
    pub signed: SignedContent,
}

impl PlainSignature {
    /// Creates a signature of `signed` in the field `header`, in hex and without a prefix.
    pub fn new(header: HeaderName, signed: SignedContent) -> PlainSignature {
        PlainSignature { header, prefix: String::new(), encoding: SignatureEncoding::Hex, signed }
    }

    /// Returns a copy in which `change` has set some fields.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut PlainSignature)) -> PlainSignature {
        change(&mut self);
        self
    }
}

/// The encoding of a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SignatureEncoding {
    /// Two hexadecimal digits per byte, in upper or lower case.
    Hex,
    /// Standard base64 with padding.
    Base64,
}

/// The content that a plain signature covers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SignedContent {
    /// The body alone. An intercepted webhook can be replayed at any time: only the id of its event stops it, and only for as
    /// long as that id is stored.
    BodyAlone,
    /// A timestamp, and the body after it.
    Timestamped {
        /// The field with the timestamp, in seconds since the epoch.
        header: HeaderName,
        /// The text before the timestamp: `v0:` in `v0:1700000000:{…}`.
        before: String,
        /// The text between timestamp and body.
        between: String,
    },
}

/// A secret that a source signs its webhooks with. Its `Debug` output does not show it.
#[derive(Clone)]
pub struct HookSecret(Hmac<Sha256>);

/// A secret that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HookSecretError {
    /// The text after `whsec_` is not base64.
    #[error("is not base64 after `whsec_`")]
    NotBase64,
    /// The secret has fewer bytes than [`HookSecret::LEN_MIN`].
    #[error("has fewer than {min} bytes", min = HookSecret::LEN_MIN)]
    TooShort,
}

impl HookSecret {
    /// Fewest bytes of a secret, as for every other secret of ibid: 128 bits cannot be searched.
    pub const LEN_MIN: usize = 16;

    /// Parses a secret as sources hand it out for this scheme: for `standard`, base64 with or without `whsec_`; for the
    /// others, the text itself.
    ///
    /// # Errors
    ///
    /// Fails if the text is not base64 where it has to be, or if the secret is shorter than [`HookSecret::LEN_MIN`].
    pub fn parse(scheme: &SignatureScheme, text: &str) -> Result<HookSecret, HookSecretError> {
        let bytes = match scheme {
            SignatureScheme::Standard => {
                let digits = text.strip_prefix("whsec_").unwrap_or(text);
                STANDARD.decode(digits).map_err(|_| HookSecretError::NotBase64)?
            }
            // Stripe keys with the text itself, `whsec_` included.
            SignatureScheme::Stripe | SignatureScheme::Hmac(_) => text.as_bytes().to_vec(),
        };
        if bytes.len() < HookSecret::LEN_MIN {
            return Err(HookSecretError::TooShort);
        }
        Ok(HookSecret(Hmac::new_from_slice(&bytes).expect("HMAC takes a key of any length")))
    }
}

impl fmt::Debug for HookSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HookSecret(…)")
    }
}

/// The facts that a valid signature covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VerifiedHook {
    /// Time of the signature, in seconds since the epoch by the source's clock; `None` if the scheme signs none.
    pub(super) signed_at: Option<i64>,
    /// The id of the event, if the signature covers one.
    pub(super) event: Option<String>,
}

impl SignatureScheme {
    /// Checks the signature of a webhook that arrived at `now`. Returns `None` whatever is wrong, so that an attacker who
    /// guesses learns nothing.
    pub(super) fn verify(
        &self,
        secrets: &[HookSecret],
        headers: &HeaderMap,
        body: &[u8],
        now: Timestamp,
    ) -> Option<VerifiedHook> {
        let message = match self {
            SignatureScheme::Standard => standard(headers)?,
            SignatureScheme::Stripe => stripe(headers)?,
            SignatureScheme::Hmac(plain) => plain.read(headers)?,
        };
        if message.signed_at.is_some_and(|at| now.as_secs().abs_diff(at) > TOLERANCE.as_secs()) {
            return None;
        }
        let is_signed = secrets.iter().any(|secret| {
            let mut mac = secret.0.clone();
            mac.update(message.before_body.as_bytes());
            mac.update(body);
            let digest = mac.finalize().into_bytes();
            message.signatures.iter().any(|given| bool::from(digest[..].ct_eq(given)))
        });
        is_signed.then_some(VerifiedHook { signed_at: message.signed_at, event: message.event })
    }
}

/// The fields of a webhook that its signature needs.
struct SignedMessage {
    before_body: String,
    signed_at: Option<i64>,
    event: Option<String>,
    signatures: Vec<Vec<u8>>,
}

fn standard(headers: &HeaderMap) -> Option<SignedMessage> {
    let (id, at) = (field(headers, "webhook-id")?, field(headers, "webhook-timestamp")?);
    // A full stop in the id could move the border between id, timestamp and body.
    if id.is_empty() || id.contains('.') {
        return None;
    }
    let signed_at = seconds(at)?;
    let given = field(headers, "webhook-signature")?.split(' ');
    let of_version_1 = given.filter_map(|part| STANDARD.decode(part.strip_prefix("v1,")?).ok());
    Some(SignedMessage {
        before_body: format!("{id}.{at}."),
        signed_at: Some(signed_at),
        event: Some(id.to_owned()),
        signatures: of_version_1.take(SIGNATURES_MAX).collect(),
    })
}

fn stripe(headers: &HeaderMap) -> Option<SignedMessage> {
    let line = field(headers, "stripe-signature")?;
    let pairs = || line.split(',').filter_map(|pair| pair.trim().split_once('='));
    let mut instants = pairs().filter(|(name, _)| *name == "t").map(|(_, at)| at);
    let (Some(at), None) = (instants.next(), instants.next()) else { return None };
    let of_version_1 =
        pairs().filter(|(name, _)| *name == "v1").filter_map(|(_, digits)| hex::decode(digits));
    Some(SignedMessage {
        before_body: format!("{at}."),
        signed_at: Some(seconds(at)?),
        event: None,
        signatures: of_version_1.take(SIGNATURES_MAX).collect(),
    })
}

impl PlainSignature {
    fn read(&self, headers: &HeaderMap) -> Option<SignedMessage> {
        let digest = field(headers, self.header.as_str())?.strip_prefix(self.prefix.as_str())?;
        let signature = match self.encoding {
            SignatureEncoding::Hex => hex::decode(digest)?,
            SignatureEncoding::Base64 => STANDARD.decode(digest).ok()?,
        };
        let (before_body, signed_at) = match &self.signed {
            SignedContent::BodyAlone => (String::new(), None),
            SignedContent::Timestamped { header, before, between } => {
                let at = field(headers, header.as_str())?;
                (format!("{before}{at}{between}"), Some(seconds(at)?))
            }
        };
        Some(SignedMessage { before_body, signed_at, event: None, signatures: vec![signature] })
    }
}

/// Returns the only line of a field. Two lines could be read in two ways, so they count as none.
fn field<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let mut lines = headers.get_all(name).iter();
    let (Some(line), None) = (lines.next(), lines.next()) else { return None };
    line.to_str().ok()
}

/// Parses whole seconds as they were signed: digits and nothing else.
fn seconds(text: &str) -> Option<i64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Largest difference between the time of the signature and our clock: for clocks that disagree, and for the time of
/// delivery. The published libraries use the same value.
const TOLERANCE: Duration = Duration::from_secs(300);

/// Most signatures of one webhook that are compared. A source that changes its secret sends two.
const SIGNATURES_MAX: usize = 16;

#[cfg(test)]
mod tests;
