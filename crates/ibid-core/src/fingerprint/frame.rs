//! Feeds a digest with parts that cannot run into each other.
//!
//! Each part is a tag, its length in eight bytes and its bytes. Without the lengths, `?a=&a=b&c=` could be read as
//! another query, split elsewhere. Without the tags, a raw body could pass for the JSON form of another.

use hmac::{Hmac, Mac};
use sha2::Sha256;

/// Tag of a part. The numbers go into stored fingerprints: never reuse one, never renumber.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(super) enum Part {
    Domain = 1,
    Method = 2,
    Path = 3,
    Query = 4,
    MediaType = 5,
    MediaParameter = 6,
    MediaValue = 7,
    MediaUnreadable = 8,
    HeaderName = 9,
    HeaderLine = 10,
    Raw = 11,
    Json = 12,
    JsonSelected = 13,
    Pointer = 14,
    Multipart = 15,
    MultipartField = 16,
    MultipartValue = 17,
    MultipartContent = 18,
}

/// A digest that is fed part by part.
pub(super) struct Framer(Hmac<Sha256>);

impl Framer {
    pub(super) fn new(mac: Hmac<Sha256>) -> Framer {
        Framer(mac)
    }

    pub(super) fn part(&mut self, part: Part, bytes: &[u8]) {
        let mut head = [part as u8; 9];
        head[1..].copy_from_slice(&(bytes.len() as u64).to_be_bytes());
        self.0.update(&head);
        self.0.update(bytes);
    }

    /// Adds a part that may be absent, which is not the same as empty.
    pub(super) fn optional(&mut self, part: Part, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.part(part, bytes),
            None => self.0.update(&[part as u8 | ABSENT]),
        }
    }

    pub(super) fn finish(self) -> [u8; 32] {
        self.0.finalize().into_bytes().into()
    }
}

/// Bit that is set in the tag of an absent part, which has no length and no bytes.
const ABSENT: u8 = 0x80;
