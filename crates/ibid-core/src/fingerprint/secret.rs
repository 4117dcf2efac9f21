//! Secrets that key fingerprints. Without one, a stored fingerprint of a short body could be guessed by trying all
//! bodies.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// A secret, ready for use. The bytes themselves are not kept, and `Debug` shows only the id.
#[derive(Clone)]
pub struct Secret {
    id: SecretId,
    keyed: Hmac<Sha256>,
}

/// Identifies a secret without revealing it. Stored in every fingerprint made under it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecretId([u8; 4]);

/// The secrets in use: the newest makes fingerprints, and all of them can verify.
#[derive(Clone, Debug)]
pub struct Secrets(Vec<Secret>);

/// Reason why secrets were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// The secret has fewer bytes than [`Secret::LEN_MIN`].
    #[error("a fingerprint secret has at least {min} bytes", min = Secret::LEN_MIN)]
    TooShort,
    /// The list is empty, so there is none to write with.
    #[error("there is no fingerprint secret")]
    NoSecret,
    /// A secret is listed twice, or by rare chance two have one id.
    #[error("two fingerprint secrets have the id `{0}`: list each once, or replace one")]
    SameId(SecretId),
}

impl Secret {
    /// Shortest secret, in bytes. 128 bits cannot be searched; a shorter one is more likely a word than a secret.
    pub const LEN_MIN: usize = 16;

    /// Creates a secret from at least [`Secret::LEN_MIN`] bytes.
    ///
    /// # Errors
    ///
    /// Returns [`SecretError::TooShort`] for fewer bytes.
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Secret, SecretError> {
        let bytes = bytes.as_ref();
        if bytes.len() < Secret::LEN_MIN {
            return Err(SecretError::TooShort);
        }
        let keyed = Hmac::<Sha256>::new_from_slice(bytes).expect("HMAC takes a key of any length");
        let digest = keyed.clone().chain_update(ID_DOMAIN).finalize().into_bytes();
        let mut id = [0; SecretId::LEN];
        id.copy_from_slice(&digest[..SecretId::LEN]);
        Ok(Secret { id: SecretId(id), keyed })
    }

    /// Returns the id of the secret.
    pub fn id(&self) -> SecretId {
        self.id
    }

    /// Returns a digest of these parts, keyed with this secret. Each part is framed, so that the same bytes split
    /// differently have another digest.
    pub fn digest(&self, parts: &[&[u8]]) -> [u8; 32] {
        let framed = parts.iter().fold(self.mac(), |mac, part| {
            mac.chain_update((part.len() as u64).to_be_bytes()).chain_update(part)
        });
        framed.finalize().into_bytes().into()
    }

    /// Returns a MAC keyed with this secret, with the key's own blocks already hashed.
    pub(super) fn mac(&self) -> Hmac<Sha256> {
        self.keyed.clone()
    }
}

impl Secrets {
    /// Creates the list of secrets, newest first.
    ///
    /// # Errors
    ///
    /// Returns an error if the list is empty, or if two secrets have one id.
    pub fn new(secrets: Vec<Secret>) -> Result<Secrets, SecretError> {
        if secrets.is_empty() {
            return Err(SecretError::NoSecret);
        }
        for (at, secret) in secrets.iter().enumerate() {
            if secrets[..at].iter().any(|newer| newer.id == secret.id) {
                return Err(SecretError::SameId(secret.id));
            }
        }
        Ok(Secrets(secrets))
    }

    /// Returns the id of the secret that new fingerprints are made with.
    pub fn newest_id(&self) -> SecretId {
        self.newest().id
    }

    pub(super) fn newest(&self) -> &Secret {
        // `new` refuses an empty list, and nothing removes from it.
        &self.0[0]
    }

    pub(super) fn get(&self, id: SecretId) -> Option<&Secret> {
        self.0.iter().find(|secret| secret.id == id)
    }
}

impl SecretId {
    /// Bytes of an id. Four distinguish a deployment's handful of secrets and reveal nothing useful about them.
    pub const LEN: usize = 4;

    /// Returns the id as it is stored.
    pub fn to_bytes(self) -> [u8; SecretId::LEN] {
        self.0
    }

    /// Creates the id from its stored bytes.
    pub fn from_bytes(bytes: [u8; SecretId::LEN]) -> SecretId {
        SecretId(bytes)
    }
}

impl fmt::Display for SecretId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", u32::from_be_bytes(self.0))
    }
}

impl FromStr for SecretId {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<SecretId, ParseIntError> {
        u32::from_str_radix(text, 16).map(|id| SecretId(id.to_be_bytes()))
    }
}

impl fmt::Debug for SecretId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretId({self})")
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Prefix that separates the id from every fingerprint made under the same secret.
const ID_DOMAIN: &[u8] = b"ibid secret id 1";
