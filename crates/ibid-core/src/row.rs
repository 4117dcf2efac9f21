//! A record as a row: the columns that every store keeps, written and read in one place.
//!
//! [`RecordColumns`] turns a change into column values, and [`read_record`] turns column values into a record. A store adds
//! only its statements. A new column is added here, once.
//!
//! Several columns are null where they have their first value, because a null takes no room: `owner` (the nonce of the
//! insert), `attempt` (1), `point` (0) and `note` (all defaults).

#![expect(clippy::exhaustive_enums, reason = "every store has to handle every variant")]

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::change::{Change, Draft, INTERVAL_MAX, InstantChange};
use crate::fingerprint::Fingerprint;
use crate::policy::Policy;
use crate::record::{Flags, Nonce, Record, RecordDetails, State, Version};
use crate::response::{Response, SavedResponse};
use crate::scope::{Identity, RecordId};
use crate::sql::{Param, Type};
use crate::time::Timestamp;

/// The column values of a change that writes a record.
#[derive(Clone, Debug)]
pub struct RecordColumns<'a> {
    /// Id of the record.
    pub id: &'a RecordId,
    /// Version after the change.
    pub version: Version,
    /// The draft, for values that are stored as they are.
    pub draft: &'a Draft,
    /// Number of the policy in the store.
    pub policy: i64,
    /// Owner; `None` if it is the nonce of the insert.
    pub owner: Option<Nonce>,
    /// Number of attempts; `None` for 1.
    pub attempt: Option<u32>,
    /// Recovery point; `None` for 0.
    pub point: Option<u16>,
    /// Fingerprint as stores keep it.
    pub fingerprint: Option<[u8; Fingerprint::LEN]>,
    /// Details as JSON; `None` if they have their defaults.
    pub note: Option<String>,
    /// Change to the stored response.
    pub response: ResponseColumns<'a>,
}

/// The change to the columns of the response.
#[derive(Clone, Debug)]
pub enum ResponseColumns<'a> {
    /// They stay as they are, unless the row gets another generation.
    Keep,
    /// All of them become null.
    Clear,
    /// They get these values.
    Set {
        /// Header lines and trailers.
        lines: Vec<u8>,
        /// The body, if it is small enough for the row.
        inline: Option<&'a Bytes>,
        /// The body, if it has to be stored apart.
        apart: Option<&'a Bytes>,
    },
}

impl<'a> RecordColumns<'a> {
    /// Number of values of [`RecordColumns::params`].
    pub const COUNT: usize = 27;

    /// Returns the column values of `change`; `None` if it leaves the record alone. `policy` is the number of its policy
    /// in the store.
    pub fn of(change: &'a Change, policy: i64) -> Option<RecordColumns<'a>> {
        let draft = change.draft.as_ref()?;
        let response = match &change.response {
            Some(response) => {
                let is_small = response.body.len() <= INLINE_BODY_MAX;
                ResponseColumns::Set {
                    lines: response.lines(),
                    inline: Some(&response.body).filter(|_| is_small),
                    apart: Some(&response.body).filter(|_| !is_small),
                }
            }
            None if change.clears_bodies || draft.created != InstantChange::Keep => ResponseColumns::Clear,
            None => ResponseColumns::Keep,
        };
        Some(RecordColumns {
            id: &change.id,
            version: change.version(),
            draft,
            policy,
            owner: Some(draft.owner).filter(|owner| *owner != draft.birth),
            attempt: Some(draft.attempt).filter(|attempt| *attempt != 1),
            point: Some(draft.point).filter(|point| *point != 0),
            fingerprint: draft.fingerprint.as_ref().map(Fingerprint::to_bytes),
            note: draft.note.to_json(),
            response,
        })
    }

    /// Returns the values as parameters, in the order in which every statement that writes a record takes them:
    ///
    /// id, count, nonce, birth, owner, attempt, state, flags, policy, point (1 to 10); created, ran, completed as
    /// [`InstantChange::code`] (11 to 13); due, expires, purge and retention as intervals in microseconds (14 to 17);
    /// fingerprint, tenant, method, path, key, note, status (18 to 24); response as 0 keep, 1 set, 2 clear (25), lines
    /// (26) and body (27).
    pub fn params(&self) -> [Param<'_>; RecordColumns::COUNT] {
        let draft = self.draft;
        let mark = |mark: InstantChange| Param::I64(mark.code().into());
        let (code, lines, body) = match &self.response {
            ResponseColumns::Keep => (0, None, None),
            ResponseColumns::Set { lines, inline, .. } => (1, Some(&lines[..]), inline.map(|body| &body[..])),
            ResponseColumns::Clear => (2, None, None),
        };
        [
            Param::Bytes(self.id.as_bytes()),
            Param::I64(i64::from(self.version.count)),
            Param::I64(bits(self.version.nonce)),
            Param::I64(bits(draft.birth)),
            Param::maybe_i64(self.owner.map(bits)),
            Param::maybe_i64(self.attempt.map(i64::from)),
            Param::I64(i64::from(draft.state.code())),
            Param::I64(i64::from(draft.flags.bits())),
            Param::I64(self.policy),
            Param::maybe_i64(self.point.map(i64::from)),
            mark(draft.created),
            mark(draft.ran),
            mark(draft.completed),
            Param::maybe_i64(draft.due_in.map(micros)),
            Param::maybe_i64(draft.expires_in.map(micros)),
            Param::maybe_i64(draft.purge_in.map(micros)),
            Param::I64(micros(draft.policy.retention)),
            Param::maybe_bytes(self.fingerprint.as_ref().map(|bytes| &bytes[..])),
            Param::Text(draft.identity.tenant.as_str()),
            Param::Text(&draft.identity.operation.method),
            Param::Text(&draft.identity.operation.path),
            Param::Text(draft.identity.key.as_str()),
            Param::maybe_text(self.note.as_deref()),
            Param::maybe_i64(draft.note.status.map(i64::from)),
            Param::I64(code),
            Param::maybe_bytes(lines),
            Param::maybe_bytes(body),
        ]
    }

    /// Returns the body of the response if it has to be stored apart, under [`BodyKind::RESPONSE`].
    ///
    /// [`BodyKind::RESPONSE`]: crate::change::BodyKind::RESPONSE
    pub fn body_apart(&self) -> Option<&'a Bytes> {
        match self.response {
            ResponseColumns::Set { apart, .. } => apart,
            ResponseColumns::Keep | ResponseColumns::Clear => None,
        }
    }
}

/// Columns of a row, read from left to right.
pub trait RowCells<'r> {
    /// Reads the next column, a number or null.
    ///
    /// # Errors
    ///
    /// Fails if the column is missing or has another type.
    fn integer(&mut self) -> Result<Option<i64>, UnreadableRowError>;

    /// Reads the next column, text or null.
    ///
    /// # Errors
    ///
    /// Fails if the column is missing or has another type.
    fn text(&mut self) -> Result<Option<Cow<'r, str>>, UnreadableRowError>;

    /// Reads the next column, bytes or null.
    ///
    /// # Errors
    ///
    /// Fails if the column is missing or has another type.
    fn bytes(&mut self) -> Result<Option<Cow<'r, [u8]>>, UnreadableRowError>;
}

/// Types of the columns that [`read_record`] reads, in their order:
///
/// id, count, nonce, birth, owner, attempt, state, flags, policy, point; the instants created, ran, completed, due, expires
/// and purge; fingerprint, tenant, method, path, key, note, status, lines, body, sealed_by.
pub const RECORD_COLUMNS: [Type; 26] = {
    use Type::{Bytes, I64, Text};
    [
        Bytes, I64, I64, I64, I64, I64, I64, I64, I64, I64, I64, I64, I64, I64, I64, I64, Bytes, Text, Text,
        Text, Text, Text, I64, Bytes, Bytes, Text,
    ]
};

/// Reads a record and its response from the columns of [`RECORD_COLUMNS`]. `policy` looks a policy up by its number.
///
/// # Errors
///
/// A value that this program does not know is an error, never a default: a fingerprint taken for none would let a
/// different request through.
pub fn read_record<'r>(
    cells: &mut impl RowCells<'r>,
    policy: impl FnOnce(i64) -> Result<Arc<Policy>, UnreadableRowError>,
) -> Result<(Record, Option<SavedResponse>), UnreadableRowError> {
    let id = cells
        .bytes()?
        .as_deref()
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or(UnreadableRowError("not an id"))?;
    let version = Version { count: number(cells)?, nonce: nonce(cells)? };
    let birth = nonce(cells)?;
    let owner = cells.integer()?.map_or(birth, |bits| Nonce(bits.cast_unsigned()));
    let attempt = optional(cells, "not a number of attempts")?.unwrap_or(1);
    let state = State::from_code(number(cells)?).ok_or(UnreadableRowError("an unknown state"))?;
    // Bits that this version does not know are dropped.
    let flags = Flags::from_bits(number::<u32>(cells)? as u8);
    let policy = policy(integer(cells)?)?;
    let point = optional(cells, "not a recovery point")?.unwrap_or(0);
    let created_at = Timestamp::from_micros(integer(cells)?);
    let mut instant = || Ok(cells.integer()?.map(Timestamp::from_micros));
    let (ran_at, completed_at, due_at) = (instant()?, instant()?, instant()?);
    let (expires_at, purge_at) = (instant()?, instant()?);
    let fingerprint = match cells.bytes()? {
        None => None,
        Some(bytes) => Some(
            Fingerprint::from_bytes(&bytes)
                .ok_or(UnreadableRowError("a fingerprint of an unknown version"))?,
        ),
    };
    let [tenant, method, path, key] = [text(cells)?, text(cells)?, text(cells)?, text(cells)?];
    let identity = Identity::stored(&tenant, &method, &path, &key);
    let identity = identity.ok_or(UnreadableRowError("not a tenant and a key"))?;
    let note = cells.text()?;
    let status = optional(cells, "not a status")?;
    let note = RecordDetails::from_json(note.as_deref(), status).ok_or(UnreadableRowError("not a note"))?;
    let response = read_response(cells, status)?;
    let record = Record {
        id: RecordId::from_bytes(id),
        identity: Arc::new(identity),
        version,
        birth,
        owner,
        attempt,
        state,
        flags,
        fingerprint,
        policy,
        point,
        created_at,
        ran_at,
        completed_at,
        due_at,
        expires_at,
        purge_at,
        note,
    };
    Ok((record, response))
}

/// Columns of a row, written from left to right.
pub trait RowWriter {
    /// Writes the next column, a number or null.
    fn integer(&mut self, value: Option<i64>);

    /// Writes the next column, text or null.
    fn text(&mut self, value: Option<&str>);

    /// Writes the next column, bytes or null.
    fn bytes(&mut self, value: Option<&[u8]>);
}

/// Writes a record and its response as the columns of [`RECORD_COLUMNS`], for [`read_record`]. `policy` is the number of
/// its policy.
pub fn write_record(record: &Record, response: Option<&Response>, policy: i64, row: &mut impl RowWriter) {
    row.bytes(Some(record.id.as_bytes()));
    for number in [
        Some(i64::from(record.version.count)),
        Some(bits(record.version.nonce)),
        Some(bits(record.birth)),
        Some(bits(record.owner)),
        Some(i64::from(record.attempt)),
        Some(i64::from(record.state.code())),
        Some(i64::from(record.flags.bits())),
        Some(policy),
        Some(i64::from(record.point)),
        Some(record.created_at.as_micros()),
    ] {
        row.integer(number);
    }
    let instants = [record.ran_at, record.completed_at, record.due_at, record.expires_at, record.purge_at];
    for instant in instants {
        row.integer(instant.map(Timestamp::as_micros));
    }
    row.bytes(record.fingerprint.as_ref().map(Fingerprint::to_bytes).as_ref().map(|bytes| &bytes[..]));
    let identity = &record.identity;
    for text in [
        identity.tenant.as_str(),
        &identity.operation.method,
        &identity.operation.path,
        identity.key.as_str(),
    ] {
        row.text(Some(text));
    }
    row.text(record.note.to_json().as_deref());
    row.integer(record.note.status.map(i64::from));
    row.bytes(response.map(Response::lines).as_deref());
    row.bytes(response.map(|response| &response.body[..]));
    row.text(None);
}

fn read_response<'r>(
    cells: &mut impl RowCells<'r>,
    status: Option<u16>,
) -> Result<Option<SavedResponse>, UnreadableRowError> {
    let (lines, body, sealed_by) = (cells.bytes()?, cells.bytes()?, cells.text()?);
    let body = body.map(|body| Bytes::from(body.into_owned()));
    match (sealed_by, lines) {
        (Some(key_id), _) => {
            let data = body.ok_or(UnreadableRowError("a sealed response without its value"))?;
            Ok(Some(SavedResponse::Sealed { key_id: key_id.into_owned(), data }))
        }
        (None, None) => Ok(None),
        (None, Some(lines)) => {
            let body = body.ok_or(UnreadableRowError("a response without its body"))?;
            let status = status.ok_or(UnreadableRowError("a response without a status"))?;
            let response = Response::from_columns(status, &lines, body);
            let response = response.ok_or(UnreadableRowError("header lines that can't be read"))?;
            Ok(Some(SavedResponse::Plain(Arc::new(response))))
        }
    }
}

/// A row that this program cannot read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a row can't be read: {0}")]
pub struct UnreadableRowError(pub &'static str);

fn integer<'r>(cells: &mut impl RowCells<'r>) -> Result<i64, UnreadableRowError> {
    cells.integer()?.ok_or(UnreadableRowError("a number is missing"))
}

/// Reads an unsigned number. Databases without such types store the same bits in a signed one.
fn number<'r, T: TryFrom<u32>>(cells: &mut impl RowCells<'r>) -> Result<T, UnreadableRowError> {
    to_unsigned(integer(cells)?).ok_or(UnreadableRowError("a number out of range"))
}

fn optional<'r, T: TryFrom<u32>>(
    cells: &mut impl RowCells<'r>,
    what: &'static str,
) -> Result<Option<T>, UnreadableRowError> {
    cells.integer()?.map(|value| to_unsigned(value).ok_or(UnreadableRowError(what))).transpose()
}

fn to_unsigned<T: TryFrom<u32>>(value: i64) -> Option<T> {
    let value = u32::try_from(value).or_else(|_| i32::try_from(value).map(i32::cast_unsigned)).ok()?;
    T::try_from(value).ok()
}

fn nonce<'r>(cells: &mut impl RowCells<'r>) -> Result<Nonce, UnreadableRowError> {
    integer(cells).map(|bits| Nonce(bits.cast_unsigned()))
}

fn text<'r>(cells: &mut impl RowCells<'r>) -> Result<Cow<'r, str>, UnreadableRowError> {
    cells.text()?.ok_or(UnreadableRowError("a text is missing"))
}

/// Returns a nonce with the same bits in the signed type that databases have.
pub fn bits(nonce: Nonce) -> i64 {
    nonce.0.cast_signed()
}

/// Returns an interval in microseconds, bounded by [`INTERVAL_MAX`].
pub fn micros(interval: Duration) -> i64 {
    i64::try_from(interval.min(INTERVAL_MAX).as_micros()).unwrap_or(i64::MAX)
}

/// Bit of `flags` in a row that the reaper has stripped to a tombstone. It is the store's own, and not part of [`Flags`].
pub const TOMBSTONE_FLAG: u8 = 0x80;

/// Largest body of a response that is stored in the row. Most responses of APIs that move money or stock are smaller.
/// A larger one would push neighbours off the page and cost every scan of the table.
pub const INLINE_BODY_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsigned_numbers_survive_signed_columns() {
        assert_eq!(to_unsigned::<u32>(i64::from(u32::MAX)), Some(u32::MAX));
        assert_eq!(to_unsigned::<u32>(-1), Some(u32::MAX));
        assert_eq!(to_unsigned::<u16>(65_536), None);
        assert_eq!(to_unsigned::<u32>(i64::MIN), None);
    }

    #[test]
    fn no_interval_is_longer_than_a_thousand_years() {
        assert_eq!(micros(Duration::MAX), micros(INTERVAL_MAX));
        assert_eq!(micros(Duration::from_secs(1)), 1_000_000);
    }
}
