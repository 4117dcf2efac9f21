//! A record as one packed value: the fields that scripts read at fixed positions, then the columns of `ibid_core::row` as CBOR.
//! `lua/record.lua` has the same layout.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use ibid_core::change::{BodyKind, Change, Expect, InstantChange, StoredRecord};
use ibid_core::fingerprint::Fingerprint;
use ibid_core::policy::Policy;
use ibid_core::record::{Nonce, Record, Version};
use ibid_core::response::SavedResponse;
use ibid_core::row::{
    INLINE_BODY_MAX, RecordColumns, ResponseColumns, RowCells, TOMBSTONE_FLAG, UnreadableRowError, bits,
    micros, read_record,
};
use ibid_core::scope::RecordId;
use ibid_core::sql::{Param, Type};
use ibid_core::store::copy::CopiedRecord;
use ibid_core::time::Timestamp;
use minicbor::{Decoder, Encoder, data};

use super::error::Failure;

/// Returns a version as scripts compare it.
pub(super) fn version(version: Version) -> Vec<u8> {
    [&version.count.to_be_bytes()[..], &version.nonce.0.to_be_bytes()].concat()
}

/// Returns an interval in microseconds as scripts add it.
pub(super) fn interval(micros: Option<i64>) -> [u8; 8] {
    // The largest number of seconds stands for no interval; `INTERVAL_MAX` is far below it.
    let micros = micros.map_or(SECONDS_NONE * MICROS, |micros| micros.max(0).cast_unsigned());
    pack_micros(micros)
}

/// Returns the instant that a script wrote; `None` for none.
pub(super) fn instant(bytes: [u8; 8]) -> Option<Timestamp> {
    let packed = u64::from_be_bytes(bytes);
    let micros = (packed >> 24) * MICROS + (packed & 0xff_ffff);
    (packed != 0).then(|| Timestamp::from_micros(i64::try_from(micros).unwrap_or(i64::MAX)))
}

/// Returns what a change expects of the stored record: the word that `commit.lua` knows it by, and a version.
pub(super) fn expectation(expect: Expect) -> (&'static [u8], Vec<u8>) {
    match expect {
        Expect::Absent => (b"absent", Vec::new()),
        Expect::Version(expected) => (b"version", version(expected)),
        Expect::Due(expected) => (b"due", version(expected)),
        Expect::Anything => (b"anything", Vec::new()),
    }
}

/// Returns the draft of a change as `lua/draft.lua` reads it, behind some bytes; only those if the change leaves the record alone.
pub(super) fn draft(mut bytes: Vec<u8>, change: &Change, policy: i64) -> Vec<u8> {
    let Some(columns) = RecordColumns::of(change, policy) else { return bytes };
    let (draft, params) = (columns.draft, columns.params());
    bytes.reserve(DRAFT_LEN);
    bytes.extend([draft.created, draft.ran, draft.completed].map(|mark: InstantChange| mark.code() as u8));
    for length in [draft.due_in, draft.expires_in, draft.purge_in] {
        bytes.extend(interval(length.map(micros)));
    }
    bytes.push(FORMAT);
    bytes.extend(version(columns.version));
    bytes.extend([draft.state.code(), draft.flags.bits()]);
    bytes.extend(draft.birth.0.to_be_bytes());
    bytes.extend(policy.to_be_bytes());
    bytes.extend(interval(Some(micros(draft.policy.lease))));
    bytes.push(match &columns.response {
        ResponseColumns::Keep => KEEP_RESPONSE,
        ResponseColumns::Set { apart: None, .. } => 1,
        ResponseColumns::Set { apart: Some(_), .. } => 2,
        ResponseColumns::Clear => 0,
    });
    bytes.extend(join_columns(encode(KEPT.map(|at| params[at])), encode(LOST.map(|at| params[at]))));
    if let ResponseColumns::Set { .. } = &columns.response {
        bytes.extend(encode(RESPONSE.map(|at| params[at])));
    }
    bytes
}

/// Packs a record of a copy, with its response. The body of a large response is stored apart, and returned besides.
pub(super) fn pack(row: &CopiedRecord, policy: i64) -> Result<(Vec<u8>, Option<&Bytes>), Failure> {
    let record = &*row.record;
    let Record { identity, note, .. } = record;
    let is_tombstone = identity.is_forgotten();
    let mut packed = vec![FORMAT];
    packed.extend(version(record.version));
    let tombstone_flag = if is_tombstone { TOMBSTONE_FLAG } else { 0 };
    packed.extend([record.state.code(), record.flags.bits() | tombstone_flag]);
    packed.extend(record.birth.0.to_be_bytes());
    packed.extend(policy.to_be_bytes());
    packed.extend(interval(Some(micros(record.policy.lease))));
    packed.extend(pack_instant(record.created_at)?);
    for at in [record.ran_at, record.completed_at, record.due_at, record.expires_at, record.purge_at] {
        packed.extend(at.map_or(Ok([0; 8]), pack_instant)?);
    }
    let (kind, response, apart) = match &row.response {
        None => (0, Vec::new(), None),
        Some(SavedResponse::Plain(response)) => {
            let is_small = response.body.len() <= INLINE_BODY_MAX;
            let (lines, body) = (response.lines(), Some(&response.body[..]).filter(|_| is_small));
            let columns = encode([Param::Bytes(&lines), Param::maybe_bytes(body)]);
            (if is_small { 1 } else { 2 }, columns, Some(&response.body).filter(|_| !is_small))
        }
        Some(SavedResponse::Sealed { key_id, data }) => {
            (3, encode([Param::Text(key_id), Param::Bytes(data)]), None)
        }
    };
    packed.push(kind);
    let fingerprint = record.fingerprint.as_ref().map(Fingerprint::to_bytes);
    let kept_columns = encode([
        Param::maybe_i64(Some(record.owner).filter(|owner| *owner != record.birth).map(bits)),
        Param::maybe_i64(Some(record.attempt).filter(|attempt| *attempt != 1).map(i64::from)),
        Param::maybe_i64(Some(record.point).filter(|point| *point != 0).map(i64::from)),
        Param::maybe_bytes(fingerprint.as_ref().map(|bytes| &bytes[..])),
    ]);
    let note_text = note.to_json();
    let lost_columns = match is_tombstone && note_text.is_none() && note.status.is_none() {
        true => Vec::new(),
        false => encode([
            Param::Text(identity.tenant.as_str()),
            Param::Text(&identity.operation.method),
            Param::Text(&identity.operation.path),
            Param::Text(identity.key.as_str()),
            Param::maybe_text(note_text.as_deref()),
            Param::maybe_i64(note.status.map(i64::from)),
        ]),
    };
    packed.extend(join_columns(kept_columns, lost_columns));
    packed.extend(response);
    Ok((packed, apart))
}

/// Returns an instant as scripts read it. They take the first second of 1970 for no instant.
pub(super) fn pack_instant(at: Timestamp) -> Result<[u8; 8], Failure> {
    pack_from(at, MICROS)
}

/// Returns the instant that evidence is about. That of a provider without a clock is the beginning of 1970.
pub(super) fn pack_as_of(at: Timestamp) -> Result<[u8; 8], Failure> {
    pack_from(at, 0)
}

fn pack_from(at: Timestamp, first: u64) -> Result<[u8; 8], Failure> {
    let fits = |micros: &u64| (first..SECONDS_NONE * MICROS).contains(micros);
    let micros = u64::try_from(at.as_micros()).ok().filter(fits);
    micros
        .map(pack_micros)
        .ok_or_else(|| Failure::Lasting("a row has an instant that a Redis store can't hold".into()))
}

fn pack_micros(micros: u64) -> [u8; 8] {
    (((micros / MICROS) << 24) | (micros % MICROS)).to_be_bytes()
}

/// Returns both lengths, then the columns.
fn join_columns(kept: Vec<u8>, lost: Vec<u8>) -> Vec<u8> {
    let mut data = u16::try_from(kept.len()).unwrap_or(u16::MAX).to_be_bytes().to_vec();
    data.extend(u32::try_from(lost.len()).unwrap_or(u32::MAX).to_be_bytes());
    data.extend(kept);
    data.extend(lost);
    data
}

/// Returns a body that is stored apart as it is stored: it begins with its generation.
pub(super) fn join_body(birth: Nonce, data: &[u8]) -> Vec<u8> {
    [&birth.0.to_be_bytes()[..], data].concat()
}

/// Returns kinds and bytes of the bodies that a change stores apart, in turn. Each begins with its generation.
pub(super) fn bodies_apart(change: &Change) -> Vec<Vec<u8>> {
    let Some(draft) = &change.draft else { return Vec::new() };
    let columns = RecordColumns::of(change, 0);
    let response =
        columns.as_ref().and_then(RecordColumns::body_apart).map(|data| (BodyKind::RESPONSE, data));
    let others = change.bodies.iter().map(|body| (body.kind.code(), &body.data));
    let apart = response.into_iter().chain(others);
    apart.flat_map(|(kind, data)| [kind.to_string().into_bytes(), join_body(draft.birth, data)]).collect()
}

/// Splits a body that is stored apart from the generation that wrote it.
pub(super) fn split_body(stored: &[u8]) -> Option<(Nonce, &[u8])> {
    let (birth, data) = stored.split_first_chunk()?;
    Some((Nonce(u64::from_be_bytes(*birth)), data))
}

/// Returns the number of the policy that a packed record names.
pub(super) fn policy_number(packed: &[u8]) -> Result<i64, UnreadableRowError> {
    match packed.first() {
        Some(&FORMAT) => Ok(i64::from_be_bytes(array(packed, 23)?)),
        _ => Err(UnreadableRowError("a record of an unknown format")),
    }
}

/// Reads a packed record, with the body of its response if that is stored apart.
pub(super) fn read(
    id: &RecordId,
    packed: &[u8],
    body: Option<&[u8]>,
    policy: Arc<Policy>,
    now: Timestamp,
) -> Result<StoredRecord, UnreadableRowError> {
    let number = policy_number(packed)?;
    let birth = i64::from_be_bytes(array(packed, 15)?);
    let lengths = (u16::from_be_bytes(array(packed, 88)?), u32::from_be_bytes(array(packed, 90)?));
    let rest = packed.get(94..).ok_or(CUT_OFF)?;
    let (kept, rest) = rest.split_at_checked(usize::from(lengths.0)).ok_or(CUT_OFF)?;
    let (lost, response) = rest.split_at_checked(lengths.1 as usize).ok_or(CUT_OFF)?;
    let [owner, attempt, point, fingerprint] = decode(kept)?;
    // A tombstone has lost them.
    let [tenant, method, path, key, note, status] = match lost {
        [] => [Param::Text(""), Param::Text(""), Param::Text(""), Param::Text(""), NULL, NULL],
        _ => decode(lost)?,
    };
    let own_body = || body.and_then(split_body).filter(|(of, _)| of.0.cast_signed() == birth);
    let [lines, body, sealed_by] = match packed[87] {
        0 => [NULL; 3],
        1 => decode(response).map(|[lines, body]| [lines, body, NULL])?,
        2 => {
            let [lines, _] = decode(response)?;
            [lines, Param::maybe_bytes(own_body().map(|(_, data)| data)), NULL]
        }
        3 => decode(response).map(|[key_id, data]| [NULL, data, key_id])?,
        _ => return Err(UnreadableRowError("a response of an unknown kind")),
    };
    let number_at = |at| array(packed, at).map(|bytes| Param::I64(i64::from_be_bytes(bytes)));
    let instant_at =
        |at| array(packed, at).map(|bytes| Param::maybe_i64(instant(bytes).map(Timestamp::as_micros)));
    let cells = [
        Param::Bytes(id.as_bytes()),
        Param::I64(i64::from(u32::from_be_bytes(array(packed, 1)?))),
        number_at(5)?,
        Param::I64(birth),
        owner,
        attempt,
        Param::I64(i64::from(packed[13])),
        Param::I64(i64::from(packed[14])),
        Param::I64(number),
        point,
        instant_at(39)?,
        instant_at(47)?,
        instant_at(55)?,
        instant_at(63)?,
        instant_at(71)?,
        instant_at(79)?,
        fingerprint,
        tenant,
        method,
        path,
        key,
        note,
        status,
        lines,
        body,
        sealed_by,
    ];
    let (record, response) = read_record(&mut RecordCells(cells.into_iter()), |_| Ok(policy))?;
    Ok(StoredRecord { record: Arc::new(record), response, now })
}

/// Encodes columns, one after the other.
pub(super) fn encode<const N: usize>(params: [Param<'_>; N]) -> Vec<u8> {
    let mut encoder = Encoder::new(Vec::new());
    for param in params {
        // Writing into a `Vec` cannot fail.
        let written = match param {
            Param::Null(_) => encoder.null(),
            Param::Bool(value) => encoder.bool(value),
            Param::I64(value) => encoder.i64(value),
            Param::Text(value) => encoder.str(value),
            Param::Bytes(value) => encoder.bytes(value),
        };
        written.expect("a Vec takes every byte");
    }
    encoder.into_writer()
}

/// Decodes columns, one after the other.
pub(super) fn decode<const N: usize>(bytes: &[u8]) -> Result<[Param<'_>; N], UnreadableRowError> {
    let mut decoder = Decoder::new(bytes);
    let mut params = [NULL; N];
    for param in &mut params {
        *param = decode_one(&mut decoder).map_err(|_| CUT_OFF)?;
    }
    Ok(params)
}

fn decode_one<'b>(decoder: &mut Decoder<'b>) -> Result<Param<'b>, minicbor::decode::Error> {
    match decoder.datatype()? {
        data::Type::Null => decoder.null().map(|()| NULL),
        data::Type::Bool => decoder.bool().map(Param::Bool),
        data::Type::String => decoder.str().map(Param::Text),
        data::Type::Bytes => decoder.bytes().map(Param::Bytes),
        _ => decoder.i64().map(Param::I64),
    }
}

fn array<const N: usize>(packed: &[u8], at: usize) -> Result<[u8; N], UnreadableRowError> {
    packed.get(at..).and_then(<[u8]>::first_chunk).copied().ok_or(CUT_OFF)
}

/// Columns in the order of `read_record`.
struct RecordCells<'r>(std::array::IntoIter<Param<'r>, 26>);

impl<'r> RecordCells<'r> {
    fn next(&mut self) -> Result<Param<'r>, UnreadableRowError> {
        self.0.next().ok_or(UnreadableRowError("a column is missing"))
    }
}

impl<'r> RowCells<'r> for RecordCells<'r> {
    fn integer(&mut self) -> Result<Option<i64>, UnreadableRowError> {
        match self.next()? {
            Param::Null(_) => Ok(None),
            Param::I64(value) => Ok(Some(value)),
            _ => Err(UnreadableRowError("not a number")),
        }
    }

    fn text(&mut self) -> Result<Option<Cow<'r, str>>, UnreadableRowError> {
        match self.next()? {
            Param::Null(_) => Ok(None),
            Param::Text(value) => Ok(Some(Cow::Borrowed(value))),
            _ => Err(UnreadableRowError("not text")),
        }
    }

    fn bytes(&mut self) -> Result<Option<Cow<'r, [u8]>>, UnreadableRowError> {
        match self.next()? {
            Param::Null(_) => Ok(None),
            Param::Bytes(value) => Ok(Some(Cow::Borrowed(value))),
            _ => Err(UnreadableRowError("not bytes")),
        }
    }
}

/// Places of columns in [`RecordColumns::params`]: owner, attempt, point and fingerprint, which a tombstone keeps.
const KEPT: [usize; 4] = [4, 5, 9, 17];

/// Tenant, method, path, key, note and status, which a tombstone loses.
const LOST: [usize; 6] = [18, 19, 20, 21, 22, 23];

/// Lines and body of the response.
const RESPONSE: [usize; 2] = [25, 26];

/// First byte of every record.
const FORMAT: u8 = 1;

/// Kind of response in a draft that keeps the one before.
const KEEP_RESPONSE: u8 = 255;

/// Usual length of a draft with a small response.
const DRAFT_LEN: usize = 512;

const MICROS: u64 = 1_000_000;
const SECONDS_NONE: u64 = (1 << 40) - 1;
const NULL: Param<'static> = Param::Null(Type::I64);
const CUT_OFF: UnreadableRowError = UnreadableRowError("it is cut off or damaged");
