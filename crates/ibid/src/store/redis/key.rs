//! Names of keys: a record and all that belongs to it are in one bucket, whose tag puts them into one slot of a cluster.

use std::sync::LazyLock;

use ibid_core::record::State;
use ibid_core::scope::RecordId;

/// A part of the key space: 256 buckets of records by the first byte of their ids, and one more for settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Bucket(u16);

impl Bucket {
    /// The bucket of the settings.
    pub(super) const SETTINGS: Bucket = Bucket(BUCKETS);

    /// Number of all buckets.
    pub(super) const COUNT: usize = BUCKETS as usize + 1;

    /// Returns the bucket of a record.
    pub(super) fn of(id: &RecordId) -> Bucket {
        Bucket::of_byte(id.as_bytes()[0])
    }

    /// Returns all buckets of records.
    pub(super) fn all() -> impl Iterator<Item = Bucket> {
        (0..BUCKETS).map(Bucket)
    }

    /// Returns the bucket of records whose ids begin with this byte.
    pub(super) fn of_byte(byte: u8) -> Bucket {
        Bucket(u16::from(byte))
    }

    /// Returns the position of the bucket in a table of [`Bucket::COUNT`] entries.
    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Returns the slot of its keys in a cluster.
    pub(super) fn slot(self) -> u16 {
        crc16(self.tag().as_bytes()) % SLOTS
    }

    fn tag(self) -> &'static str {
        static TAGS: LazyLock<[String; BUCKETS as usize]> =
            LazyLock::new(|| std::array::from_fn(|bucket| format!("{bucket:02x}")));
        TAGS.get(self.index()).map_or("m", String::as_str)
    }

    /// Returns a key of this bucket: one letter for its kind, then the id that it belongs to, if any.
    pub(super) fn key(self, kind: char, id: &[u8]) -> Vec<u8> {
        let mut key = Vec::with_capacity(KEY_LEN);
        key.extend_from_slice(b"ibid{");
        key.extend_from_slice(self.tag().as_bytes());
        key.extend([b'}', kind as u8]);
        key.extend_from_slice(id);
        key
    }

    /// Returns the key of the order of a state.
    pub(super) fn order(self, state: State) -> Vec<u8> {
        self.key('s', &[b'0' + state.code()])
    }

    /// Returns the keys of the orders of all states.
    pub(super) fn orders(self) -> impl Iterator<Item = Vec<u8>> {
        State::ALL.into_iter().map(move |state| self.order(state))
    }

    /// Returns the key of the dead letters, an order as well.
    pub(super) fn letter_order(self) -> Vec<u8> {
        self.key('l', b"")
    }

    /// Returns the key of the policies that records of this bucket name.
    pub(super) fn policies(self) -> Vec<u8> {
        self.key('p', b"")
    }

    /// Returns the key of the order of histories, by their oldest line.
    pub(super) fn histories(self) -> Vec<u8> {
        self.key('H', b"")
    }

    /// Returns the key of the order of evidence, by the instant at which it is purged.
    pub(super) fn evidence_purge(self) -> Vec<u8> {
        self.key('E', b"")
    }

    /// Returns the key of the order of open evidence, by its arrival.
    pub(super) fn evidence_open(self) -> Vec<u8> {
        self.key('O', b"")
    }

    /// Returns the key of the hash that has the random id of the bucket's data.
    pub(super) fn data_id(self) -> Vec<u8> {
        if self == Bucket::SETTINGS { settings() } else { self.key('i', b"") }
    }
}

/// Returns the key of a record.
pub(super) fn record(id: &RecordId) -> Vec<u8> {
    Bucket::of(id).key('r', id.as_bytes())
}

/// Returns the key of the bodies that are stored apart from a record.
pub(super) fn bodies(id: &RecordId) -> Vec<u8> {
    Bucket::of(id).key('b', id.as_bytes())
}

/// Returns the key of a record's history.
pub(super) fn history(id: &RecordId) -> Vec<u8> {
    Bucket::of(id).key('h', id.as_bytes())
}

/// Returns the key of one piece of evidence about a record.
pub(super) fn evidence(about: &RecordId, event: &RecordId) -> Vec<u8> {
    Bucket::of(about).key('e', event.as_bytes())
}

/// Returns the key of the order of open evidence about one record.
pub(super) fn evidence_about(about: &RecordId) -> Vec<u8> {
    Bucket::of(about).key('a', about.as_bytes())
}

/// Returns the key that has the id which an event is about. It is in the bucket of the event's own digest.
pub(super) fn evidence_pointer(event: &RecordId) -> Vec<u8> {
    Bucket::of(event).key('n', event.as_bytes())
}

/// Returns the key of the settings.
pub(super) fn settings() -> Vec<u8> {
    Bucket::SETTINGS.key('s', b"")
}

/// CRC-16/XMODEM, by which a cluster assigns keys to slots.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        (0..8).fold(
            crc ^ u16::from(*byte) << 8,
            |crc, _| {
                if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
            },
        )
    })
}

/// Number of buckets of records. While a slot of a cluster moves, its bucket waits, so small buckets are better; chores ask
/// every bucket, so few are better. The number can't change later, and is stored.
pub(super) const BUCKETS: u16 = 256;

/// Length of the key of a record.
const KEY_LEN: usize = "ibid{xx}r".len() + RecordId::LEN;

/// Slots of a cluster.
const SLOTS: u16 = 16_384;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_record_are_in_one_slot() {
        let id = RecordId::from_bytes([0xab; RecordId::LEN]);
        for key in [record(&id), bodies(&id), history(&id), Bucket::of(&id).policies()] {
            assert!(key.starts_with(b"ibid{ab}"), "{key:?}");
        }
        let slots: std::collections::HashSet<u16> = Bucket::all().map(Bucket::slot).collect();
        assert_eq!(slots.len(), usize::from(BUCKETS), "each bucket has its own slot");
    }

    #[test]
    fn slots_are_those_of_redis() {
        // `CLUSTER KEYSLOT 123456789`
        assert_eq!(crc16(b"123456789") % SLOTS, 12_739);
    }
}
