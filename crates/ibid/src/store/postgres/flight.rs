//! Changes as the rows that `flight.sql` takes: one array of begins and one of replacements.

use bytes::{BufMut, BytesMut};
use ibid_core::change::{Change, Draft, Expect, Mark};
use ibid_core::record::{Nonce, Version};
use tokio_postgres::types::{IsNull, Kind, ToSql, Type, to_sql_checked};

use super::columns::{Numbers, bits, mark_code, micros};

/// Some plain Changes, in the order in which they are sent.
#[derive(Debug, Default)]
pub(super) struct Flight<'a> {
    pub(super) begins: Vec<Begin<'a>>,
    pub(super) replacements: Vec<Replacement<'a>>,
}

/// One `ibid_begin_row`.
#[derive(Debug)]
pub(super) struct Begin<'a>(Plain<'a>);

/// One `ibid_replace_row`.
#[derive(Debug)]
pub(super) struct Replacement<'a>(Plain<'a>, Version);

/// A Change that `flight.sql` can write.
#[derive(Debug)]
struct Plain<'a> {
    change: &'a Change,
    draft: &'a Draft,
    policy: i64,
}

/// Whether `flight.sql` can write the Change: nothing told, nothing dropped, nothing kept that it has no place for.
pub(super) fn is_plain(change: &Change) -> bool {
    let room = match change.expect {
        Expect::Absent => 0,
        Expect::Version(_) => 1,
        Expect::Due(_) | Expect::Anything => return false,
    };
    change.draft.is_some()
        && change.bodies.len() <= room
        && !change.clears_bodies
        && change.history.is_empty()
        && change.uses.is_none()
}

impl<'a> Flight<'a> {
    /// Those of `changes` that are plain.
    pub(super) fn of(changes: impl Iterator<Item = &'a Change>, numbers: &Numbers) -> Flight<'a> {
        let mut flight = Flight::default();
        for change in changes.filter(|change| is_plain(change)) {
            let Some(draft) = &change.draft else { continue };
            let plain = Plain { change, draft, policy: numbers.of(&draft.policy) };
            match change.expect {
                Expect::Version(was) => flight.replacements.push(Replacement(plain, was)),
                _ => flight.begins.push(Begin(plain)),
            }
        }
        flight
    }
}

impl ToSql for Begin<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Wrong> {
        let Begin(Plain { change, draft, .. }) = self;
        let mut row = Row::open(out, BEGIN_FIELDS);
        row.bytes(change.id.as_bytes())?;
        row.nonce(change.nonce);
        self.0.put_numbers(&mut row);
        row.mark(draft.ran);
        row.mark(draft.completed);
        self.0.put_fingerprint(&mut row)?;
        row.text(draft.identity.tenant.as_str())?;
        row.text(&draft.identity.operation.method)?;
        row.text(&draft.identity.operation.path)?;
        row.text(draft.identity.key.as_str())?;
        row.bytes(&draft.note.to_bytes())?;
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        is_row(ty, "ibid_begin_row")
    }

    to_sql_checked!();
}

impl ToSql for Replacement<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Wrong> {
        let Replacement(Plain { change, draft, .. }, was) = self;
        let mut row = Row::open(out, REPLACE_FIELDS);
        row.bytes(change.id.as_bytes())?;
        row.int8(Some(was.count.into()));
        row.nonce(was.nonce);
        row.nonce(change.nonce);
        self.0.put_numbers(&mut row);
        row.mark(draft.created);
        row.mark(draft.ran);
        row.mark(draft.completed);
        self.0.put_fingerprint(&mut row)?;
        row.text(&draft.identity.operation.method)?;
        row.text(&draft.identity.operation.path)?;
        row.bytes(&draft.note.to_bytes())?;
        match change.bodies.first() {
            Some(body) => {
                row.int4(body.kind.code().cast_signed());
                row.bytes(&body.data)?;
            }
            None => {
                row.null(&Type::INT4);
                row.null(&Type::BYTEA);
            }
        }
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        is_row(ty, "ibid_replace_row")
    }

    to_sql_checked!();
}

impl Plain<'_> {
    /// What both rows have from `birth` to `flags`.
    fn put_numbers(&self, row: &mut Row<'_>) {
        let draft = self.draft;
        row.nonce(draft.birth);
        row.nonce(draft.owner);
        row.int8(Some(draft.attempt.into()));
        row.int8(Some(micros(draft.policy.lease)));
        row.int8(Some(self.policy));
        row.int8(draft.due_in.map(micros));
        row.int8(draft.expires_in.map(micros));
        row.int8(draft.purge_in.map(micros));
        row.int4(draft.point.into());
        row.int2(draft.state.code().into());
        row.int2(draft.flags.bits().into());
    }

    fn put_fingerprint(&self, row: &mut Row<'_>) -> Result<(), Wrong> {
        match &self.draft.fingerprint {
            Some(fingerprint) => row.bytes(&fingerprint.to_bytes()),
            None => {
                row.null(&Type::BYTEA);
                Ok(())
            }
        }
    }
}

/// Writes one row of a composite type: each field with its type and its length.
struct Row<'o>(&'o mut BytesMut);

type Wrong = Box<dyn std::error::Error + Sync + Send>;

impl<'o> Row<'o> {
    fn open(out: &'o mut BytesMut, fields: i32) -> Row<'o> {
        out.put_i32(fields);
        Row(out)
    }

    fn bytes(&mut self, value: &[u8]) -> Result<(), Wrong> {
        self.sized(&Type::BYTEA, value)
    }

    fn text(&mut self, value: &str) -> Result<(), Wrong> {
        self.sized(&Type::TEXT, value.as_bytes())
    }

    fn sized(&mut self, ty: &Type, value: &[u8]) -> Result<(), Wrong> {
        self.head(ty, i32::try_from(value.len())?);
        self.0.put_slice(value);
        Ok(())
    }

    fn nonce(&mut self, nonce: Nonce) {
        self.int8(Some(bits(nonce)));
    }

    fn mark(&mut self, mark: Mark) {
        self.int2(mark_code(mark));
    }

    fn int8(&mut self, value: Option<i64>) {
        let Some(value) = value else { return self.null(&Type::INT8) };
        self.head(&Type::INT8, 8);
        self.0.put_i64(value);
    }

    fn int4(&mut self, value: i32) {
        self.head(&Type::INT4, 4);
        self.0.put_i32(value);
    }

    fn int2(&mut self, value: i16) {
        self.head(&Type::INT2, 2);
        self.0.put_i16(value);
    }

    fn null(&mut self, ty: &Type) {
        self.head(ty, -1);
    }

    fn head(&mut self, ty: &Type, len: i32) {
        self.0.put_u32(ty.oid());
        self.0.put_i32(len);
    }
}

fn is_row(ty: &Type, name: &str) -> bool {
    matches!(ty.kind(), Kind::Composite(_)) && ty.name() == name
}

const BEGIN_FIELDS: i32 = 21;
const REPLACE_FIELDS: i32 = 24;
