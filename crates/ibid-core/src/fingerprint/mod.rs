//! Tells a retry from a different request under the same key, by a keyed digest over the request.
//!
//! A false match silently replays a wrong response; a false mismatch costs a visible refusal. So in every doubtful case
//! (a repeated name, a broken surrogate, a stray boundary) the raw bytes count, and nothing is repaired. There are no
//! HTTP types here: the HTTP layer implements [`RequestView`] over the request as the client sent it, before any
//! rewriting.

use std::fmt;

use subtle::ConstantTimeEq;

use crate::policy::Profile;

mod frame;
pub mod json_exact;
pub(crate) mod media;
pub(crate) mod multipart;
mod number;
pub(crate) mod pointer;
mod recipe;
mod secret;

pub use pointer::{Pointer, PointerError};
pub use recipe::{BodyRule, Recipe};
pub use secret::{Secret, SecretError, SecretId, Secrets};

use frame::{Framer, Part};
use media::Media;

/// A request as the fingerprint sees it.
pub trait RequestView: Send + Sync {
    /// Returns the method as sent; methods are case-sensitive.
    fn method(&self) -> &str;
    /// Returns the path of the target as sent, not decoded.
    fn path(&self) -> &str;
    /// Returns the query as sent, without its `?`; `None` if there was no `?`.
    fn query(&self) -> Option<&str>;
    /// Passes every line of the named field to `each`, in order. `name` is in lower case.
    fn header_lines(&self, name: &str, each: &mut dyn FnMut(&[u8]));
    /// Returns the whole content as sent, still coded if it was.
    fn body(&self) -> &[u8];
}

/// A digest of a request, keyed with a secret.
///
/// Two are equal only if method, path, query, media type, the [fields that always count](counted_fields), the
/// configured headers and the body are.
#[derive(Clone, Copy)]
pub struct Fingerprint {
    version: u8,
    secret: SecretId,
    mac: [u8; MAC_LEN],
}

impl Fingerprint {
    /// Length of [`Fingerprint::to_bytes`]: version, secret, digest.
    pub const LEN: usize = 1 + SecretId::LEN + MAC_LEN;

    /// Returns the version of the algorithm that made it.
    pub fn version(&self) -> u8 {
        self.version
    }

    /// Returns the id of the secret that keyed it.
    pub fn secret(&self) -> SecretId {
        self.secret
    }

    /// Encodes the fingerprint as stores keep it.
    pub fn to_bytes(&self) -> [u8; Fingerprint::LEN] {
        let mut bytes = [0; Fingerprint::LEN];
        bytes[0] = self.version;
        bytes[1..1 + SecretId::LEN].copy_from_slice(&self.secret.to_bytes());
        bytes[1 + SecretId::LEN..].copy_from_slice(&self.mac);
        bytes
    }

    /// Decodes what [`Fingerprint::to_bytes`] wrote; `None` for a version or a length that this program does not know,
    /// which the caller must treat as a mismatch.
    pub fn from_bytes(bytes: &[u8]) -> Option<Fingerprint> {
        let (&version, rest) = bytes.split_first()?;
        let (secret, mac) = rest.split_at_checked(SecretId::LEN)?;
        domain(version)?;
        let secret = SecretId::from_bytes(secret.try_into().ok()?);
        Some(Fingerprint { version, secret, mac: mac.try_into().ok()? })
    }
}

/// Compares in constant time, because a stored fingerprint is compared with one that an attacker can choose.
impl PartialEq for Fingerprint {
    fn eq(&self, other: &Fingerprint) -> bool {
        self.to_bytes().ct_eq(&other.to_bytes()).into()
    }
}

impl Eq for Fingerprint {}

/// Leaves out the digest: it would confirm a guess at a small body to anyone who has the secret.
impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fingerprint")
            .field("version", &self.version)
            .field("secret", &self.secret)
            .finish_non_exhaustive()
    }
}

impl Secrets {
    /// Digests a request under the newest secret and the newest version.
    pub fn fingerprint(&self, recipe: &Recipe, profile: Profile, asked: &dyn RequestView) -> Fingerprint {
        let mac = digest(self.newest(), VERSION, recipe, profile, asked);
        Fingerprint { version: VERSION, secret: self.newest().id(), mac }
    }

    /// Returns whether `asked` is the request that `stored` was made from.
    ///
    /// The digest is made again by the version and under the secret of `stored`. `recipe` and `profile` must be those
    /// stored with it, not the ones configured today. A secret or version that this process does not have never
    /// matches.
    pub fn matches(
        &self,
        stored: &Fingerprint,
        recipe: &Recipe,
        profile: Profile,
        asked: &dyn RequestView,
    ) -> bool {
        match (self.get(stored.secret), domain(stored.version)) {
            (Some(secret), Some(_)) => {
                let mac = digest(secret, stored.version, recipe, profile, asked);
                Fingerprint { mac, ..*stored } == *stored
            }
            _ => false,
        }
    }

    /// Returns whether fingerprints made under this secret can still be compared.
    pub fn holds(&self, id: SecretId) -> bool {
        self.get(id).is_some()
    }
}

/// Returns the request fields that always count, in lower case, in the order in which they are digested.
///
/// Each makes a different request for every API that reads it: the method that an override field names, the operation
/// that SOAP and AWS name in a field, and in profile stripe the account that the request acts for.
pub fn counted_fields(profile: Profile) -> impl Iterator<Item = &'static str> {
    let profile_fields: &[&str] = match profile {
        Profile::Stripe => &STRIPE_COUNTED_FIELDS,
        _ => &[],
    };
    COUNTED_FIELDS.iter().chain(profile_fields).copied()
}

fn digest(
    secret: &Secret,
    version: u8,
    recipe: &Recipe,
    profile: Profile,
    asked: &dyn RequestView,
) -> [u8; MAC_LEN] {
    let mut frames = Framer::new(secret.mac());
    frames.part(Part::Domain, domain(version).unwrap_or_default());
    frames.part(Part::Method, asked.method().as_bytes());
    frames.part(Part::Path, asked.path().as_bytes());
    frames.optional(Part::Query, asked.query().map(str::as_bytes));
    let media = Media::of(asked);
    media.write(&mut frames);
    let coded = write_lines(&mut frames, "content-encoding", asked);
    if version >= VERSION_WITH_COUNTED_FIELDS {
        counted_fields(profile).for_each(|name| write_present_lines(&mut frames, name, asked));
    }
    for name in recipe.headers() {
        write_lines(&mut frames, name, asked);
    }
    // A coded body cannot be read as JSON or as parts, and decoding it would need a bound against decompression bombs.
    if coded || recipe.body() == BodyRule::Raw {
        frames.part(Part::Raw, asked.body());
    } else {
        write_body(&mut frames, recipe, &media, asked.body());
    }
    frames.finish()
}

/// Writes each line of a field after the field's name, and nothing if there is no line: nearly every request has none
/// of these fields.
///
/// The configured headers that follow are a fixed number of names, so the end of these fields is unambiguous.
fn write_present_lines(frames: &mut Framer, name: &str, asked: &dyn RequestView) {
    asked.header_lines(name, &mut |line| {
        frames.part(Part::HeaderName, name.as_bytes());
        frames.part(Part::HeaderLine, line);
    });
}

/// Writes a field's name and each of its lines, so that absent, empty and repeated are three different things. Returns
/// whether there was a line.
fn write_lines(frames: &mut Framer, name: &str, asked: &dyn RequestView) -> bool {
    frames.part(Part::HeaderName, name.as_bytes());
    let mut any = false;
    asked.header_lines(name, &mut |line| {
        any = true;
        frames.part(Part::HeaderLine, line);
    });
    any
}

fn write_body(frames: &mut Framer, recipe: &Recipe, media: &Media, body: &[u8]) {
    let written = if media.is_json() {
        write_json(frames, recipe, body)
    } else if let Some(boundary) = media.form_boundary() {
        multipart::write(frames, boundary, body)
    } else {
        false
    };
    if !written {
        frames.part(Part::Raw, body);
    }
}

/// Writes the body as JSON. Returns `false`, and writes nothing, if it cannot be read as JSON.
fn write_json(frames: &mut Framer, recipe: &Recipe, body: &[u8]) -> bool {
    if recipe.include().is_empty() && recipe.exclude().is_empty() {
        return write_whole_json(frames, body);
    }
    let Ok(selected) = json_exact::select(body, recipe.include(), recipe.exclude()) else { return false };
    if recipe.include().is_empty() {
        frames.part(Part::JsonSelected, &selected.rest);
        return true;
    }
    if selected.included.iter().all(Option::is_none) {
        // The body has none of the included values. An empty selection would make all such bodies equal, so the whole
        // body counts, including the excluded parts.
        return write_whole_json(frames, body);
    }
    for (pointer, value) in recipe.include().iter().zip(&selected.included) {
        frames.part(Part::Pointer, pointer.as_str().as_bytes());
        frames.optional(Part::JsonSelected, value.as_deref());
    }
    true
}

fn write_whole_json(frames: &mut Framer, body: &[u8]) -> bool {
    match json_exact::canonical(body) {
        Ok(canonical) => {
            frames.part(Part::Json, &canonical);
            true
        }
        Err(_not_exact) => false,
    }
}

/// Returns the prefix that separates the digests of this version from those of others and from any other use of the
/// same secret; `None` for a version that this program does not know.
fn domain(version: u8) -> Option<&'static [u8]> {
    match version {
        1 => Some(b"ibid fingerprint 1"),
        2 => Some(b"ibid fingerprint 2"),
        _ => None,
    }
}

/// Algorithm of new fingerprints: these frames, `json-exact` and HMAC-SHA-256.
///
/// Any change to the digest of any request needs a new version, or old records would refuse their own retries. So does
/// every change to the fields that always count.
const VERSION: u8 = 2;

/// First version with fields that always count. Version 1 counted only configured fields.
const VERSION_WITH_COUNTED_FIELDS: u8 = 2;

/// Fields that make a different request in every profile.
const COUNTED_FIELDS: [&str; 5] =
    ["x-http-method-override", "x-http-method", "x-method-override", "soapaction", "x-amz-target"];

/// Fields that count in profile stripe: Stripe scopes a key by the account that the request acts for.
const STRIPE_COUNTED_FIELDS: [&str; 2] = ["stripe-account", "stripe-context"];

/// Bytes of an HMAC-SHA-256, not truncated.
const MAC_LEN: usize = 32;

#[cfg(test)]
mod tests;
