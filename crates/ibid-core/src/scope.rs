//! The scope of a key: tenant, operation, and the record id that is derived from them.
//!
//! The id is an unkeyed digest, so that rotating a secret loses no record. It must not know fingerprints.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

use crate::key::Key;

/// The owner of a key, taken from authentication and never from the body.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tenant(Box<str>);

impl Tenant {
    /// Longest tenant name, in bytes. Account ids and hashed credentials are far shorter; every row stores the name.
    pub const LEN_MAX: usize = 255;

    /// Creates a tenant by name: 1 to 255 bytes, no control characters (it is printed in tables).
    ///
    /// # Errors
    ///
    /// Returns an error if the name is empty, too long, or has a control character.
    pub fn new(name: &str) -> Result<Tenant, TenantError> {
        if name.is_empty() || name.len() > Self::LEN_MAX || name.chars().any(char::is_control) {
            return Err(TenantError);
        }
        Ok(Tenant(name.into()))
    }

    /// Returns the single tenant of a deployment without tenants (`--tenant none`).
    pub fn only() -> Tenant {
        Tenant(ONLY.into())
    }

    /// Returns whether this is the tenant of a deployment without tenants.
    pub fn is_only(&self) -> bool {
        &*self.0 == ONLY
    }

    /// Returns the name of the tenant.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Name of the single tenant of a deployment without tenants.
const ONLY: &str = "-";

impl fmt::Debug for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tenant({})", self.0)
    }
}

/// The name is empty, too long, or has control characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a tenant is 1 to 255 bytes without control characters")]
pub struct TenantError;

/// The operation that a key was used for: method and concrete path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Operation {
    /// HTTP method in upper case.
    pub method: Box<str>,
    /// Concrete path as sent, never a route's pattern.
    pub path: Box<str>,
}

/// The parts that identify a record: tenant, operation and key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Owner of the key.
    pub tenant: Tenant,
    /// Operation that the key was used for.
    pub operation: Operation,
    /// Key that the client sent.
    pub key: Key,
}

impl Identity {
    /// Returns the identity of a tombstone, which no longer stores tenant, operation and key. No request can have it.
    pub fn forgotten() -> Identity {
        let operation = Operation { method: "".into(), path: "".into() };
        Identity { tenant: Tenant("".into()), operation, key: Key::forgotten() }
    }

    /// Reads a stored identity, or that of a tombstone; `None` if it is neither.
    pub fn stored(tenant: &str, method: &str, path: &str, key: &str) -> Option<Identity> {
        if tenant.is_empty() && key.is_empty() {
            return Some(Identity::forgotten());
        }
        let operation = Operation { method: method.into(), path: path.into() };
        Some(Identity { tenant: Tenant::new(tenant).ok()?, operation, key: Key::stored(key).ok()? })
    }

    /// Returns whether this is the identity of a tombstone.
    pub fn is_forgotten(&self) -> bool {
        self.tenant.0.is_empty()
    }
}

/// Reach of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, minicbor::Encode, minicbor::Decode)]
#[cbor(index_only)]
#[non_exhaustive]
pub enum ScopeRule {
    /// Tenant, method and path: the same key on another endpoint is a separate record.
    #[n(0)]
    Operation,
    /// Tenant alone: the same key on another endpoint is a mismatch.
    #[n(1)]
    Tenant,
}

/// The fixed-width id of a record in every store.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RecordId([u8; RecordId::LEN]);

impl RecordId {
    /// Bytes of an id: the first half of a SHA-256, which fits a `uuid` and halves every index.
    ///
    /// Half is enough. To get another tenant's record, an attacker needs a second preimage: 2¹²⁸ tries. A tenant that
    /// looks for two keys of itself with one id needs 2⁶⁴ tries, and then gets 422 for the second one.
    pub const LEN: usize = 16;

    /// Returns the id of the record that `identity` names under `rule`.
    pub fn of(identity: &Identity, rule: ScopeRule) -> RecordId {
        RecordId::bound(identity, rule, None)
    }

    /// Returns the id of the record that `identity` names under `rule`, for one principal of the tenant if given (`bind
    /// = "principal"`).
    pub fn bound(identity: &Identity, rule: ScopeRule, principal: Option<&str>) -> RecordId {
        let mut digest = Sha256::new();
        let mut part = |bytes: &[u8]| {
            digest.update((bytes.len() as u64).to_be_bytes());
            digest.update(bytes);
        };
        part(b"ibid record 1");
        part(identity.tenant.as_str().as_bytes());
        match rule {
            ScopeRule::Operation => {
                part(identity.operation.method.as_bytes());
                part(identity.operation.path.as_bytes());
            }
            ScopeRule::Tenant => {}
        }
        part(identity.key.as_str().as_bytes());
        if let Some(principal) = principal {
            part(principal.as_bytes());
        }
        RecordId::of_digest(digest)
    }

    /// Returns the id that a digest leads to.
    pub(crate) fn of_digest(digest: Sha256) -> RecordId {
        let digest: [u8; 32] = digest.finalize().into();
        let mut id = [0; RecordId::LEN];
        id.copy_from_slice(&digest[..RecordId::LEN]);
        RecordId(id)
    }

    /// Creates the id with these bytes, as a store returned them.
    pub const fn from_bytes(bytes: [u8; RecordId::LEN]) -> RecordId {
        RecordId(bytes)
    }

    /// Returns the bytes, in the order in which stores sort.
    pub fn as_bytes(&self) -> &[u8; RecordId::LEN] {
        &self.0
    }

    /// Returns the first 8 hex digits, by which logs name a record: they must not show its key.
    pub fn short(&self) -> String {
        self.to_string()[..8].to_owned()
    }
}

/// Parses all hex digits of an id, in lower case.
impl FromStr for RecordId {
    type Err = IdPrefixError;

    fn from_str(text: &str) -> Result<RecordId, IdPrefixError> {
        let is_whole = text.len() == 2 * RecordId::LEN && !text.bytes().any(|byte| byte.is_ascii_uppercase());
        let prefix: IdPrefix = text.parse()?;
        Some(prefix.bounds().0).filter(|_| is_whole).ok_or(IdPrefixError)
    }
}

/// Orders ids by their bytes. Two digests almost always differ in their first eight bytes, and those compare as one
/// number.
impl Ord for RecordId {
    fn cmp(&self, other: &RecordId) -> Ordering {
        let head = |id: &RecordId| id.0.first_chunk().map(|head| u64::from_be_bytes(*head));
        head(self).cmp(&head(other)).then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for RecordId {
    fn partial_cmp(&self, other: &RecordId) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::hex::encode(&self.0))
    }
}

impl fmt::Debug for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.short())
    }
}

/// The first hex digits of a record id, as an operator types them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdPrefix(String);

impl IdPrefix {
    /// Returns the smallest and the largest id with this prefix.
    pub fn bounds(&self) -> (RecordId, RecordId) {
        let fill = |digit: char| {
            let hex: String =
                self.0.chars().chain(std::iter::repeat(digit)).take(2 * RecordId::LEN).collect();
            let mut bytes = [0; RecordId::LEN];
            for (byte, pair) in bytes.iter_mut().zip(hex.as_bytes().chunks(2)) {
                // Both digits were checked when the prefix was parsed, so this cannot fail.
                *byte =
                    std::str::from_utf8(pair).ok().and_then(|p| u8::from_str_radix(p, 16).ok()).unwrap_or(0);
            }
            RecordId(bytes)
        };
        (fill('0'), fill('f'))
    }
}

impl FromStr for IdPrefix {
    type Err = IdPrefixError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fits = (4..=2 * RecordId::LEN).contains(&text.len());
        if !fits || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(IdPrefixError);
        }
        Ok(IdPrefix(text.to_ascii_lowercase()))
    }
}

/// The text is not the beginning of a record id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a record id is 4 to 32 hex digits")]
pub struct IdPrefixError;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::KeyForm;

    fn identity(tenant: &str, method: &str, path: &str, key: &str) -> Identity {
        Identity {
            tenant: Tenant::new(tenant).unwrap(),
            operation: Operation { method: method.into(), path: path.into() },
            key: Key::parse(key.as_bytes(), KeyForm::QuotedOrBare).unwrap(),
        }
    }

    #[test]
    fn tenant_method_path_and_key_each_make_another_record() {
        let all = [
            identity("a", "POST", "/p", "k"),
            identity("b", "POST", "/p", "k"),
            identity("a", "PATCH", "/p", "k"),
            identity("a", "POST", "/q", "k"),
            identity("a", "POST", "/p", "l"),
            // The same letters cut elsewhere: framing keeps them apart.
            identity("aP", "OST", "/p", "k"),
            identity("a", "POST", "/pk", "k"),
        ];
        let ids: std::collections::BTreeSet<_> =
            all.iter().map(|i| RecordId::of(i, ScopeRule::Operation)).collect();
        assert_eq!(ids.len(), all.len());
    }

    #[test]
    fn tenant_scope_ignores_the_endpoint() {
        let of = |i: &Identity| RecordId::of(i, ScopeRule::Tenant);
        assert_eq!(of(&identity("a", "POST", "/p", "k")), of(&identity("a", "PATCH", "/q", "k")));
        assert_ne!(of(&identity("a", "POST", "/p", "k")), of(&identity("b", "POST", "/p", "k")));
        assert_ne!(
            of(&identity("a", "POST", "/p", "k")),
            RecordId::of(&identity("a", "POST", "/p", "k"), ScopeRule::Operation)
        );
    }

    #[test]
    fn each_principal_has_separate_records() {
        let one = identity("a", "POST", "/p", "k");
        let of = |principal| RecordId::bound(&one, ScopeRule::Operation, principal);
        let ids: std::collections::BTreeSet<_> =
            [of(None), of(Some("ann")), of(Some("bob")), of(Some(""))].into();
        assert_eq!(ids.len(), 4);
    }

    #[test]
    fn ids_are_in_the_order_of_their_bytes() {
        let all = [[0; RecordId::LEN], [255; RecordId::LEN]]
            .map(|same| (0..RecordId::LEN).map(move |at| (same, at)));
        let mut ids = Vec::new();
        for (mut bytes, at) in all.into_iter().flatten() {
            for byte in [1, 127, 128] {
                bytes[at] = byte;
                ids.push(bytes);
            }
        }
        for (a, b) in ids.iter().flat_map(|a| ids.iter().map(move |b| (a, b))) {
            assert_eq!(RecordId(*a).cmp(&RecordId(*b)), a.cmp(b), "{a:?} {b:?}");
        }
    }

    #[test]
    fn a_prefix_of_hex_digits_bounds_the_ids_that_begin_so() {
        let id = RecordId::of(&identity("a", "POST", "/p", "k"), ScopeRule::Operation);
        let (low, high) = id.short().parse::<IdPrefix>().unwrap().bounds();
        assert!(low <= id && id <= high);
        assert!("abc".parse::<IdPrefix>().is_err());
        assert!("xyzxyzxy".parse::<IdPrefix>().is_err());
    }
}
