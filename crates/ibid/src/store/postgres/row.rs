//! Rows as records, read by `ibid_core::row`. Every statement that returns records has the columns of `RECORD_COLUMNS` first.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use ibid_core::change::StoredRecord;
use ibid_core::row::{RECORD_COLUMNS, RowCells, UnreadableRowError, read_record};
use ibid_core::scope::RecordId;
use ibid_core::time::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use crate::store::policy_cache::RowPolicies;
use crate::store::record_pages;

/// Reads the record of a row, with its response.
pub(super) fn read_stored(policies: &RowPolicies, row: &Row) -> Result<StoredRecord, UnreadableRowError> {
    let now = row.try_get(NOW).map_err(|_| UnreadableRowError("no instant"))?;
    read(policies, &mut PgCells { source: CellSource::Row(row), next: 0 }, Timestamp::from_micros(now))
}

fn read(
    policies: &RowPolicies,
    cells: &mut PgCells<'_>,
    now: Timestamp,
) -> Result<StoredRecord, UnreadableRowError> {
    let policy = |digest| policies.get(digest).ok_or(UnreadableRowError("a policy that is not there"));
    let (record, response) = read_record(cells, policy)?;
    Ok(StoredRecord { record: Arc::new(record), response, now })
}

/// Reads the records of the first `limit` rows that can be read, and logs that others cannot.
pub(super) fn read_rows(
    op: &'static str,
    policies: &RowPolicies,
    rows: &[Row],
    limit: u32,
) -> Vec<StoredRecord> {
    record_pages::read_rows(op, rows, limit, |row| read_stored(policies, row), id_of)
}

fn id_of(row: &Row) -> Option<RecordId> {
    row.try_get(ID).ok().map(|SqlId(id)| id)
}

/// Returns the numbers of the policies that rows name.
pub(super) fn policies_of(rows: &[Row]) -> impl Iterator<Item = i64> {
    rows.iter().filter_map(|row| row.try_get::<_, Option<i64>>(POLICY).ok().flatten())
}

/// Index of the column `now`, behind those of the record.
pub(super) const NOW: usize = RECORD_COLUMNS.len();

const ID: usize = 0;
const POLICY: usize = 8;

/// A record's id as a `uuid`.
#[derive(Clone, Copy, Debug)]
pub(super) struct SqlId(pub(super) RecordId);

impl ToSql for SqlId {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, SqlTypeError> {
        out.extend_from_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::UUID
    }

    to_sql_checked!();
}

impl FromSql<'_> for SqlId {
    fn from_sql(_: &Type, raw: &[u8]) -> Result<SqlId, SqlTypeError> {
        Ok(SqlId(RecordId::from_bytes(raw.try_into()?)))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::UUID
    }
}

/// A record that came in one column, as a row without a name.
#[derive(Debug)]
pub(super) struct NestedRow<'r>(Vec<(Type, Option<&'r [u8]>)>);

impl NestedRow<'_> {
    /// Reads the record, as of `now`.
    pub(super) fn to_stored(
        &self,
        policies: &RowPolicies,
        now: Timestamp,
    ) -> Result<StoredRecord, UnreadableRowError> {
        read(policies, &mut PgCells { source: CellSource::Nested(self), next: 0 }, now)
    }

    /// Returns the id of the record.
    pub(super) fn id(&self) -> Option<RecordId> {
        PgCells { source: CellSource::Nested(self), next: ID }.get().ok().map(|SqlId(id)| id)
    }

    /// Returns the number of the policy.
    pub(super) fn policy(&self) -> Option<i64> {
        PgCells { source: CellSource::Nested(self), next: POLICY }.get().ok()
    }
}

/// An array of nested rows, which the driver does not know.
#[derive(Debug, Default)]
pub(super) struct NestedRows<'r>(pub(super) Vec<NestedRow<'r>>);

impl<'r> FromSql<'r> for NestedRows<'r> {
    fn from_sql(_: &Type, mut raw: &'r [u8]) -> Result<NestedRows<'r>, SqlTypeError> {
        let dimensions = raw.try_get_u32()?;
        let (_has_null, _type) = (raw.try_get_u32()?, raw.try_get_u32()?);
        // An empty array has no dimension.
        let mut members = 0;
        for _ in 0..dimensions {
            members = raw.try_get_u32()?;
            let _lower_bound = raw.try_get_u32()?;
        }
        let member = |_| NestedRow::read(take_sized(&mut raw)?.ok_or("a row is missing")?);
        (0..members).map(member).collect::<Result<_, _>>().map(NestedRows)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::RECORD_ARRAY
    }
}

impl<'r> NestedRow<'r> {
    fn read(mut raw: &'r [u8]) -> Result<NestedRow<'r>, SqlTypeError> {
        let fields = raw.try_get_u32()?;
        let field = |_| {
            let ty = Type::from_oid(raw.try_get_u32()?).ok_or("a type that is not known")?;
            Ok((ty, take_sized(&mut raw)?))
        };
        (0..fields).map(field).collect::<Result<_, _>>().map(NestedRow)
    }
}

pub(super) type SqlTypeError = Box<dyn std::error::Error + Sync + Send>;

/// Reads a value that has its length before it; a negative length is null.
fn take_sized<'r>(raw: &mut &'r [u8]) -> Result<Option<&'r [u8]>, SqlTypeError> {
    let Ok(len) = usize::try_from(raw.try_get_i32()?) else { return Ok(None) };
    let (value, rest) = raw.split_at_checked(len).ok_or("it is cut off")?;
    *raw = rest;
    Ok(Some(value))
}

/// Reads the columns of a record from left to right.
struct PgCells<'r> {
    source: CellSource<'r>,
    next: usize,
}

enum CellSource<'r> {
    Row(&'r Row),
    Nested(&'r NestedRow<'r>),
}

impl<'r> PgCells<'r> {
    fn get<T: FromSql<'r>>(&mut self) -> Result<T, UnreadableRowError> {
        self.next += 1;
        let read = match self.source {
            CellSource::Row(row) => row.try_get(self.next - 1).ok(),
            CellSource::Nested(NestedRow(fields)) => fields
                .get(self.next - 1)
                .filter(|(ty, _)| T::accepts(ty))
                .and_then(|(ty, raw)| T::from_sql_nullable(ty, *raw).ok()),
        };
        read.ok_or(UnreadableRowError("a column of another type"))
    }
}

impl<'r> RowCells<'r> for PgCells<'r> {
    fn integer(&mut self) -> Result<Option<i64>, UnreadableRowError> {
        Ok(self.get::<Option<AnyInteger>>()?.map(|AnyInteger(value)| value))
    }

    fn text(&mut self) -> Result<Option<Cow<'r, str>>, UnreadableRowError> {
        Ok(self.get::<Option<&'r str>>()?.map(Cow::Borrowed))
    }

    fn bytes(&mut self) -> Result<Option<Cow<'r, [u8]>>, UnreadableRowError> {
        Ok(self.get::<Option<AnyBytes<'r>>>()?.map(|AnyBytes(value)| Cow::Borrowed(value)))
    }
}

/// An integer of any width: statements of the hot path return columns as they are.
struct AnyInteger(i64);

impl FromSql<'_> for AnyInteger {
    fn from_sql(_: &Type, mut raw: &[u8]) -> Result<AnyInteger, SqlTypeError> {
        Ok(AnyInteger(match raw.len() {
            2 => raw.get_i16().into(),
            4 => raw.get_i32().into(),
            8 => raw.get_i64(),
            _ => return Err("not an integer".into()),
        }))
    }

    fn accepts(ty: &Type) -> bool {
        matches!(*ty, Type::INT2 | Type::INT4 | Type::INT8)
    }
}

/// Bytes, or a `uuid` as its bytes.
struct AnyBytes<'r>(&'r [u8]);

impl<'r> FromSql<'r> for AnyBytes<'r> {
    fn from_sql(_: &Type, raw: &'r [u8]) -> Result<AnyBytes<'r>, SqlTypeError> {
        Ok(AnyBytes(raw))
    }

    fn accepts(ty: &Type) -> bool {
        matches!(*ty, Type::BYTEA | Type::UUID)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ibid_core::change::BodyKind;

    /// Returns the names of the columns that a statement takes from the record `r`.
    fn columns(sql: &str) -> Vec<&str> {
        let (list, _) = sql.split_once("r.status").expect("it returns records");
        let (_, list) = list.rsplit_once("r.id").expect("the id is first");
        list.split("r.").skip(1).map(|name| name.split([',', ':', '\n', ' ']).next().unwrap_or("")).collect()
    }

    #[test]
    fn all_statements_that_return_records_name_the_same_columns() {
        let load = columns(include_str!("../../record_sql/postgres/load.sql"));
        assert_eq!(load.len() + 1 + 1 + 3, RECORD_COLUMNS.len(), "id, status, and three of the response");
        for sql in [
            include_str!("../../record_sql/postgres/read.sql"),
            include_str!("../../record_sql/postgres/lock.sql"),
            include_str!("hot_path/flight.sql"),
            include_str!("hot_path/flight_bodies.sql"),
            include_str!("sql/due.sql"),
            include_str!("sql/list.sql"),
            include_str!("sql/list_dead.sql"),
            include_str!("sql/list_waiting.sql"),
        ] {
            assert_eq!(columns(sql), load);
        }
    }

    #[test]
    fn the_kind_of_a_response_is_the_one_in_the_sql() {
        assert_eq!(BodyKind::RESPONSE, 1);
    }

    #[test]
    fn integers_of_any_width_are_read() {
        let read = |raw: &[u8]| AnyInteger::from_sql(&Type::INT8, raw).map(|AnyInteger(value)| value);
        assert_eq!(read(&(-2i16).to_be_bytes()).unwrap(), -2);
        assert_eq!(read(&7i32.to_be_bytes()).unwrap(), 7);
        assert_eq!(read(&i64::MIN.to_be_bytes()).unwrap(), i64::MIN);
        assert!(read(&[1, 2, 3]).is_err());
    }
}
