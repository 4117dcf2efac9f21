//! Whether a webhook is signed by whoever knows the secret, and recently. Nothing here reads the payload.
//!
//! Each scheme names what is signed; the digest is HMAC-SHA-256 in all of them, made once per secret and compared in
//! constant time with every signature that came.

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{HeaderMap, HeaderName};
use ibid_core::time::Timestamp;
use sha2::Sha256;
use subtle::ConstantTimeEq as _;

use crate::http::trace;

/// How a source signs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignatureScheme {
    /// Standard Webhooks 1.0: `webhook-id`, `webhook-timestamp`, `webhook-signature`.
    Standard,
    /// Stripe: `Stripe-Signature: t=…,v1=…`.
    Stripe,
    /// An HMAC-SHA-256 in a field of the source's own.
    Hmac(PlainSignature),
}

/// A signature in a field of the source's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainSignature {
    /// The field.
    pub header: HeaderName,
    /// What stands before the digest, such as `sha256=`.
    pub prefix: String,
    /// How the digest is written.
    pub encoding: SignatureEncoding,
    /// What is signed, and when.
    pub signed: SignedContent,
}

/// How a digest is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignatureEncoding {
    /// Two digits a byte, of either case.
    Hex,
    /// With padding.
    Base64,
}

/// What a plain signature covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignedContent {
    /// The body alone. A webhook that somebody caught can be sent again at any time: only its event's id stops it, and
    /// only for as long as that is known.
    BodyAlone,
    /// An instant, and the body after it.
    Timestamped {
        /// The field with the instant, in seconds since the epoch.
        header: HeaderName,
        /// What stands before the instant: `v0:` in `v0:1700000000:{…}`.
        before: String,
        /// What stands between instant and body.
        between: String,
    },
}

/// What webhooks of a source are signed with. It never shows itself.
#[derive(Clone)]
pub struct HookSecret(Hmac<Sha256>);

/// A secret that can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HookSecretError {
    /// `whsec_` is followed by base64.
    #[error("is not base64 after `whsec_`")]
    NotBase64,
    /// Fewer bytes than [`HookSecret::LEN_MIN`].
    #[error("has fewer than {min} bytes", min = HookSecret::LEN_MIN)]
    TooShort,
}

impl HookSecret {
    /// Fewest bytes we take, as of every other secret of ours: 128 bits can't be searched.
    pub const LEN_MIN: usize = 16;

    /// A secret as sources hand them out for this scheme: `standard` in base64 with or without `whsec_`, others as text.
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

/// A signature that holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VerifiedHook {
    /// When it was signed, in seconds since the epoch by the source's clock; none where nothing says so.
    pub(super) signed_at: Option<i64>,
    /// The id of the event, where the signature covers one.
    pub(super) event: Option<String>,
}

impl SignatureScheme {
    /// Checks the signature of a webhook that came at `now`. None whatever is wrong: who guesses learns nothing.
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

/// What the fields of a webhook say.
struct SignedMessage {
    before_body: String,
    signed_at: Option<i64>,
    event: Option<String>,
    signatures: Vec<Vec<u8>>,
}

fn standard(headers: &HeaderMap) -> Option<SignedMessage> {
    let (id, at) = (field(headers, "webhook-id")?, field(headers, "webhook-timestamp")?);
    // A full stop in the id could move the border between id, instant and body.
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
    let of_version_1 = pairs().filter(|(name, _)| *name == "v1").filter_map(|(_, digits)| hex(digits));
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
            SignatureEncoding::Hex => hex(digest)?,
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

/// The one line of a field. Two of them could be read in two ways.
fn field<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let mut lines = headers.get_all(name).iter();
    let (Some(line), None) = (lines.next(), lines.next()) else { return None };
    line.to_str().ok()
}

/// Whole seconds, as they were signed: digits and nothing else.
fn seconds(text: &str) -> Option<i64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn hex(digits: &str) -> Option<Vec<u8>> {
    let digits = digits.to_ascii_lowercase();
    let byte = |pair: &[u8]| trace::hex(pair).filter(|_| pair.len() == 2).map(|byte| byte as u8);
    digits.as_bytes().chunks(2).map(byte).collect()
}

/// How far the source's clock and ours may be apart, and how long a webhook may be under way. What the published
/// libraries use.
const TOLERANCE: Duration = Duration::from_secs(300);

/// Signatures of one webhook that are compared. A source that changes its secret sends two.
const SIGNATURES_MAX: usize = 16;

#[cfg(test)]
mod tests;
