//! Hashes a RecordId by looking at a piece of it: it is a digest already, and the standard hasher would go over all of it
//! again, several times a request.
//!
//! Only for maps by RecordId. The piece is mixed with numbers that this process alone knows: whoever picks keys picks ids,
//! and could else pick many that meet in one place.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

#[derive(Clone, Debug)]
pub(crate) struct ById {
    added: u64,
    factor: u64,
}

impl Default for ById {
    fn default() -> Self {
        let random = RandomState::new();
        // An odd factor keeps apart what differs.
        ById { added: random.hash_one(1), factor: random.hash_one(2) | 1 }
    }
}

impl BuildHasher for ById {
    type Hasher = IdHasher;

    fn build_hasher(&self) -> IdHasher {
        IdHasher { by: self.clone(), piece: 0 }
    }
}

pub(crate) struct IdHasher {
    by: ById,
    piece: u64,
}

impl Hasher for IdHasher {
    fn write(&mut self, id: &[u8]) {
        if let Some((piece, _)) = id.split_first_chunk() {
            self.piece = u64::from_ne_bytes(*piece);
        }
    }

    /// How long an id is, which tells nothing.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        let product = u128::from(self.piece ^ self.by.added) * u128::from(self.by.factor);
        // Maps take the place from one end and a tag from the other: each is to depend on all of the piece.
        (product >> 64) as u64 ^ product as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ibid_core::scope::RecordId;
    use std::collections::HashSet;

    #[test]
    fn ids_that_were_picked_to_agree_in_some_bytes_do_not_meet() {
        let by = ById::default();
        for at in [0, 2, 5] {
            let picked = (0..1024_u64).map(|n| {
                let mut piece = RandomState::new().hash_one(n).to_ne_bytes();
                piece[at..at + 3].fill(0);
                let mut bytes = [0; RecordId::LEN];
                bytes[..8].copy_from_slice(&piece);
                RecordId::from_bytes(bytes)
            });
            // Thrown at random into as many places, they are in 647 of them.
            let places: HashSet<u64> = picked.map(|id| by.hash_one(id) % 1024).collect();
            assert!(places.len() > 500, "{} places from byte {at} under {by:?}", places.len());
        }
    }
}
