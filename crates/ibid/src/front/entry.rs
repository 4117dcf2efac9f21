//! One entry as bytes: the store's time of the read, policy, record and response, and a keyed digest over all of it.
//!
//! The digest binds the entry to its record's id, and with the record's columns to its version and fingerprint. So an entry
//! that was made without the store's secret, changed, or moved to another id is not opened.

use std::borrow::Cow;
use std::sync::Arc;

use hmac::{Hmac, KeyInit as _, Mac as _};
use ibid_core::policy::Policy;
use ibid_core::response::SavedResponse;
use ibid_core::row::{RowCells, RowWriter, UnreadableRowError, read_record, write_record};
use ibid_core::scope::RecordId;
use ibid_core::time::Timestamp;
use minicbor::data::Type;
use minicbor::{Decoder, Encoder};
use sha2::Sha256;

use super::SharedEntry;

/// A secret that all nodes on one store have, and the keyed digests made with it.
#[derive(Clone)]
pub(super) struct EntryKey(Hmac<Sha256>);

impl EntryKey {
    pub(super) fn new(secret: &[u8]) -> EntryKey {
        EntryKey(Hmac::new_from_slice(secret).expect("HMAC takes a key of any length"))
    }

    /// Returns a name for the store, so that several stores may use one server. It tells nothing about the secret.
    pub(super) fn store_name(&self) -> String {
        let mut digest = self.0.clone();
        digest.update(STORE_NAME);
        let digest = digest.finalize().into_bytes();
        ibid_core::hex::encode(&digest[..STORE_NAME_LEN])
    }

    fn digest(&self, id: RecordId, sealed: &[u8]) -> Hmac<Sha256> {
        let mut digest = self.0.clone();
        digest.update(FORMAT);
        digest.update(id.as_bytes());
        digest.update(sealed);
        digest
    }

    /// Encodes an entry. It begins with the eight bytes of the read's time, which the server compares.
    pub(super) fn seal(&self, entry: &SharedEntry) -> Vec<u8> {
        let mut row = CborRow(Encoder::new(entry.read_at.as_micros().to_be_bytes().to_vec()));
        row.bytes(Some(&entry.record.policy.to_bytes()));
        write_record(&entry.record, Some(&entry.response), 0, &mut row);
        let mut bytes = row.0.into_writer();
        let digest = self.digest(entry.record.id, &bytes).finalize().into_bytes();
        bytes.extend_from_slice(&digest);
        bytes
    }

    /// Decodes the entry of a record; `None` if it was not made with this secret for this record.
    pub(super) fn open(&self, id: RecordId, bytes: &[u8]) -> Option<SharedEntry> {
        let (sealed, digest) = bytes.split_last_chunk::<DIGEST_LEN>()?;
        self.digest(id, sealed).verify_slice(digest).ok()?;
        let (read_at, row) = sealed.split_first_chunk::<8>()?;
        let mut cells = CborCells(Decoder::new(row));
        let policy = Policy::from_bytes(&cells.bytes().ok()??)?;
        let (record, response) = read_record(&mut cells, |_| Ok(Arc::new(policy))).ok()?;
        let response = response.as_ref().and_then(SavedResponse::plain)?.clone();
        let read_at = Timestamp::from_micros(i64::from_be_bytes(*read_at));
        (record.id == id).then(|| SharedEntry { record: Arc::new(record), response, read_at })
    }
}

/// Columns as a sequence of CBOR values.
struct CborRow(Encoder<Vec<u8>>);

impl CborRow {
    fn write<T: minicbor::Encode<()>>(&mut self, value: Option<T>) {
        self.0.encode(value).expect("a Vec takes every byte");
    }
}

impl RowWriter for CborRow {
    fn integer(&mut self, value: Option<i64>) {
        self.write(value);
    }

    fn text(&mut self, value: Option<&str>) {
        self.write(value);
    }

    fn bytes(&mut self, value: Option<&[u8]>) {
        self.write(value.map(<&minicbor::bytes::ByteSlice>::from));
    }
}

struct CborCells<'b>(Decoder<'b>);

impl<'b> CborCells<'b> {
    fn read<T>(
        &mut self,
        value: impl FnOnce(&mut Decoder<'b>) -> Result<T, minicbor::decode::Error>,
    ) -> Result<Option<T>, UnreadableRowError> {
        let read = match self.0.datatype() {
            Ok(Type::Null) => self.0.null().map(|()| None),
            Ok(_) => value(&mut self.0).map(Some),
            Err(error) => Err(error),
        };
        read.map_err(|_| UnreadableRowError("a column is missing or has another type"))
    }
}

impl<'b> RowCells<'b> for CborCells<'b> {
    fn integer(&mut self) -> Result<Option<i64>, UnreadableRowError> {
        self.read(Decoder::i64)
    }

    fn text(&mut self) -> Result<Option<Cow<'b, str>>, UnreadableRowError> {
        Ok(self.read(Decoder::str)?.map(Cow::Borrowed))
    }

    fn bytes(&mut self) -> Result<Option<Cow<'b, [u8]>>, UnreadableRowError> {
        Ok(self.read(Decoder::bytes)?.map(Cow::Borrowed))
    }
}

/// Names the format in the digest: an entry of another format is not opened.
const FORMAT: &[u8] = b"ibid front entry 1";

const STORE_NAME: &[u8] = b"ibid front store name 1";

/// Enough that two stores on one server don't share a name.
const STORE_NAME_LEN: usize = 8;

const DIGEST_LEN: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use ibid_core::change::{Change, Stamp};
    use ibid_core::response::Response;
    use ibid_testkit::contract::{TestRecord, finish_with, fresh};
    use std::time::Duration;

    fn entry() -> SharedEntry {
        let applied =
            |change: &Change, before| change.apply(Stamp { now: Timestamp::from_micros(7) }, before);
        let running = applied(&fresh(&TestRecord::fresh(), Duration::from_secs(9)), None).expect("a record");
        let record = applied(&finish_with(&running, b"body"), Some(&running)).expect("a record");
        let response = Response::plain(201, "text/plain", "paid".to_owned()).with_header("x-a", &b"\xff"[..]);
        let mut record = Arc::unwrap_or_clone(record);
        record.note.status = Some(201);
        SharedEntry {
            record: Arc::new(record),
            response: Arc::new(response),
            read_at: Timestamp::from_micros(1 << 50),
        }
    }

    #[test]
    fn an_entry_is_read_as_it_was_written() {
        let (key, entry) = (EntryKey::new(b"secret"), entry());
        let opened = key.open(entry.record.id, &key.seal(&entry)).expect("it opens");
        assert_eq!(opened.record, entry.record);
        assert_eq!((opened.response, opened.read_at), (entry.response, entry.read_at));
    }

    #[test]
    fn no_byte_of_an_entry_can_be_changed() {
        let (key, entry) = (EntryKey::new(b"secret"), entry());
        let sealed = key.seal(&entry);
        for at in 0..sealed.len() {
            let mut tampered = sealed.clone();
            tampered[at] ^= 1;
            assert!(key.open(entry.record.id, &tampered).is_none(), "byte {at}");
        }
        for cut in 0..sealed.len() {
            assert!(key.open(entry.record.id, &sealed[..cut]).is_none(), "{cut} bytes");
        }
    }

    #[test]
    fn an_entry_belongs_to_one_record_and_one_store() {
        let (key, entry) = (EntryKey::new(b"secret"), entry());
        let sealed = key.seal(&entry);
        assert!(key.open(TestRecord::fresh().id, &sealed).is_none());
        let other = EntryKey::new(b"another");
        assert!(other.open(entry.record.id, &sealed).is_none());
        assert_ne!(other.store_name(), key.store_name());
    }
}
