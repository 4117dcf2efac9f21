//! Changes as the rows of `flight.sql`, encoded without the driver's look-up of each field's type.

use bytes::{BufMut, BytesMut};
use ibid_core::change::{Change, Draft};
use ibid_core::record::Nonce;
use ibid_core::row::{INLINE_BODY_MAX, bits, micros};
use tokio_postgres::types::{IsNull, Kind, ToSql, Type, to_sql_checked};

use super::super::row::SqlTypeError;
use super::row_location::Tid;

/// A new record as an `ibid_fresh_row`.
#[derive(Debug)]
pub(super) struct FreshRow<'a> {
    pub(super) change: &'a Change,
    pub(super) draft: &'a Draft,
    pub(super) policy: i64,
}

/// A finish as an `ibid_finish_row`.
#[derive(Debug)]
pub(super) struct FinishRow<'a> {
    pub(super) change: &'a Change,
    pub(super) draft: &'a Draft,
    pub(super) was: Nonce,
    pub(super) tid: Tid,
}

impl FinishRow<'_> {
    /// Returns whether the body of the response has to be stored apart from the row.
    pub(super) fn has_large_body(&self) -> bool {
        self.change.response.as_ref().is_some_and(|response| response.body.len() > INLINE_BODY_MAX)
    }
}

impl ToSql for FreshRow<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, SqlTypeError> {
        let FreshRow { change, draft, policy } = self;
        let mut row = RowWriter::start(out, FRESH_FIELDS);
        row.put_sized(UUID, change.id.as_bytes())?;
        row.int8(bits(change.nonce));
        row.int8(micros(draft.policy.lease));
        row.int8(micros(draft.policy.retention));
        row.int8(*policy);
        row.int2(draft.flags.bits().into());
        match &draft.fingerprint {
            Some(fingerprint) => row.put_sized(BYTEA, &fingerprint.to_bytes())?,
            None => row.null(BYTEA),
        }
        row.text(draft.identity.tenant.as_str())?;
        row.text(&draft.identity.operation.method)?;
        row.text(&draft.identity.operation.path)?;
        row.text(draft.identity.key.as_str())?;
        row.maybe(TEXT, draft.note.to_json().as_deref().map(str::as_bytes))?;
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        is_row(ty, "ibid_fresh_row")
    }

    to_sql_checked!();
}

impl ToSql for FinishRow<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, SqlTypeError> {
        let FinishRow { change, draft, was, tid } = self;
        let mut row = RowWriter::start(out, FINISH_FIELDS);
        row.put_sized(TID, &tid.0)?;
        row.put_sized(UUID, change.id.as_bytes())?;
        row.int8(bits(*was));
        row.int8(bits(change.nonce));
        row.int8(draft.expires_in.map_or(0, micros));
        row.int8(draft.purge_in.map_or(0, micros));
        match draft.note.status {
            Some(status) => row.int4(status.into()),
            None => row.null(INT4),
        }
        row.int2(draft.state.code().into());
        row.int2(draft.flags.bits().into());
        row.maybe(TEXT, draft.note.to_json().as_deref().map(str::as_bytes))?;
        let response = change.response.as_deref();
        row.maybe(BYTEA, response.map(|response| response.lines()).as_deref())?;
        let body = response.map(|response| &response.body[..]);
        let is_large = self.has_large_body();
        row.maybe(BYTEA, body.filter(|_| !is_large))?;
        row.maybe(BYTEA, body.filter(|_| is_large))?;
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        is_row(ty, "ibid_finish_row")
    }

    to_sql_checked!();
}

/// Writes one row of a composite type: each field with its type and its length.
struct RowWriter<'o>(&'o mut BytesMut);

impl<'o> RowWriter<'o> {
    fn start(out: &'o mut BytesMut, fields: i32) -> RowWriter<'o> {
        out.put_i32(fields);
        RowWriter(out)
    }

    fn text(&mut self, value: &str) -> Result<(), SqlTypeError> {
        self.put_sized(TEXT, value.as_bytes())
    }

    fn put_sized(&mut self, ty: u32, value: &[u8]) -> Result<(), SqlTypeError> {
        self.head(ty, i32::try_from(value.len())?);
        self.0.put_slice(value);
        Ok(())
    }

    fn maybe(&mut self, ty: u32, value: Option<&[u8]>) -> Result<(), SqlTypeError> {
        match value {
            Some(value) => self.put_sized(ty, value),
            None => {
                self.null(ty);
                Ok(())
            }
        }
    }

    fn int8(&mut self, value: i64) {
        self.head(INT8, 8);
        self.0.put_i64(value);
    }

    fn int4(&mut self, value: i32) {
        self.head(INT4, 4);
        self.0.put_i32(value);
    }

    fn int2(&mut self, value: i16) {
        self.head(INT2, 2);
        self.0.put_i16(value);
    }

    fn null(&mut self, ty: u32) {
        self.head(ty, -1);
    }

    /// Writes type and length, four bytes each, in one piece.
    fn head(&mut self, ty: u32, len: i32) {
        self.0.put_u64(u64::from(ty) << 32 | u64::from(len.cast_unsigned()));
    }
}

fn is_row(ty: &Type, name: &str) -> bool {
    matches!(ty.kind(), Kind::Composite(_)) && ty.name() == name
}

const FRESH_FIELDS: i32 = 12;
const FINISH_FIELDS: i32 = 13;

// Numbers of the types, the same on every server.
const BYTEA: u32 = 17;
const INT8: u32 = 20;
const INT2: u32 = 21;
const INT4: u32 = 23;
const TEXT: u32 = 25;
const TID: u32 = 27;
const UUID: u32 = 2950;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_numbers_are_those_of_the_driver() {
        let types = [Type::BYTEA, Type::INT8, Type::INT2, Type::INT4, Type::TEXT, Type::TID, Type::UUID];
        assert_eq!(types.map(|ty| ty.oid()), [BYTEA, INT8, INT2, INT4, TEXT, TID, UUID]);
    }
}
