//! Rows as Records. Every statement that gives records names the same columns first.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Buf, Bytes};
use ibid_core::change::StoredRecord;
use ibid_core::fingerprint::Fingerprint;
use ibid_core::policy::Policy;
use ibid_core::record::{Flags, Nonce, Record, RecordDetails, State, Version};
use ibid_core::scope::{Identity, RecordId};
use ibid_core::time::Timestamp;
use sha2::{Digest, Sha256};
use tokio_postgres::types::{FromSql, Type};
use tokio_postgres::{Error, Row};

use super::columns;
use super::connect::{Connection, Param};

/// The Record in a row, with its answer. Its policy must have been learnt.
///
/// What this program can't read is an error, never a default: a fingerprint taken for none would let another's
/// request through.
pub(super) fn stored(policies: &Policies, row: &Row) -> Result<StoredRecord, Unreadable> {
    let (record, answer) = read(policies, Cells { of: Of::Row(row), next: 0 })?;
    let now = row.try_get(NOW).map_err(|_| Unreadable("no instant"))?;
    Ok(StoredRecord { record: Arc::new(record), answer, now: Timestamp::from_micros(now) })
}

fn read(policies: &Policies, mut cells: Cells<'_>) -> Result<(Record, Option<Bytes>), Unreadable> {
    let id = cells.get::<&[u8]>()?.try_into().map_err(|_| Unreadable("not an id"))?;
    let version = Version { count: cells.small()?, nonce: cells.nonce()? };
    let (birth, owner) = (cells.nonce()?, cells.nonce()?);
    let attempt = cells.small()?;
    let state = u8::try_from(cells.get::<i16>()?).ok().and_then(State::from_code);
    let flags = u8::try_from(cells.get::<i16>()?).map_err(|_| Unreadable("unknown flags"))?;
    let policy = policies.get(cells.get()?).ok_or(Unreadable("a policy that is not there"))?;
    let point = u16::try_from(cells.get::<i32>()?).map_err(|_| Unreadable("not a recovery point"))?;
    let created_at = Timestamp::from_micros(cells.get()?);
    let (ran_at, completed_at) = (cells.instant()?, cells.instant()?);
    let (due_at, expires_at, purge_at) = (cells.instant()?, cells.instant()?, cells.instant()?);
    let fingerprint = match cells.get::<Option<&[u8]>>()? {
        None => None,
        Some(bytes) => {
            let known = Fingerprint::from_bytes(bytes);
            Some(known.ok_or(Unreadable("a fingerprint of an unknown version"))?)
        }
    };
    let identity = Identity::stored(cells.get()?, cells.get()?, cells.get()?, cells.get()?);
    let identity = identity.ok_or(Unreadable("not a tenant and a key"))?;
    let note = RecordDetails::from_bytes(cells.get()?).ok_or(Unreadable("not a note"))?;
    let answer = cells.get::<Option<&[u8]>>()?.map(Bytes::copy_from_slice);
    let record = Record {
        id: RecordId::from_bytes(id),
        identity: Arc::new(identity),
        version,
        birth,
        owner,
        attempt,
        state: state.ok_or(Unreadable("an unknown state"))?,
        flags: Flags::from_bits(flags),
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
    Ok((record, answer))
}

/// The column of `now`, behind those of the record and its answer.
pub(super) const NOW: usize = 23;

const ID: usize = 0;
const POLICY: usize = 8;

/// A row that this program can't read.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("a row can't be read: {0}")]
pub(super) struct Unreadable(pub(super) &'static str);

/// The columns of a record that came in one, as a row.
#[derive(Debug)]
pub(super) struct Standing<'r>(Vec<(Type, Option<&'r [u8]>)>);

impl Standing<'_> {
    /// The Record, as [`stored`] gives it, as of `now`.
    pub(super) fn stored(&self, policies: &Policies, now: Timestamp) -> Result<StoredRecord, Unreadable> {
        let (record, answer) = read(policies, Cells { of: Of::Standing(self), next: 0 })?;
        Ok(StoredRecord { record: Arc::new(record), answer, now })
    }

    /// The id that it has.
    pub(super) fn id(&self) -> Option<&[u8]> {
        Cells { of: Of::Standing(self), next: ID }.get().ok()
    }

    /// The policy that it names.
    pub(super) fn policy(&self) -> Option<i64> {
        Cells { of: Of::Standing(self), next: POLICY }.get().ok()
    }
}

/// Several of them. The driver knows no arrays of rows without a name.
#[derive(Debug)]
pub(super) struct AllStanding<'r>(pub(super) Vec<Standing<'r>>);

impl<'r> FromSql<'r> for AllStanding<'r> {
    fn from_sql(_: &Type, mut raw: &'r [u8]) -> Result<AllStanding<'r>, Wrong> {
        let dimensions = raw.try_get_u32()?;
        let (_has_null, _type) = (raw.try_get_u32()?, raw.try_get_u32()?);
        // One without members has no dimension.
        let mut members = 0;
        for _ in 0..dimensions {
            members = raw.try_get_u32()?;
            let _from = raw.try_get_u32()?;
        }
        let member = |_| Standing::read(sized(&mut raw)?.ok_or("a row is missing")?);
        (0..members).map(member).collect::<Result<_, _>>().map(AllStanding)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::RECORD_ARRAY
    }
}

impl<'r> Standing<'r> {
    fn read(mut raw: &'r [u8]) -> Result<Standing<'r>, Wrong> {
        let fields = raw.try_get_u32()?;
        let field = |_| {
            let ty = Type::from_oid(raw.try_get_u32()?).ok_or("a type that is not known")?;
            Ok((ty, sized(&mut raw)?))
        };
        (0..fields).map(field).collect::<Result<_, _>>().map(Standing)
    }
}

type Wrong = Box<dyn std::error::Error + Sync + Send>;

/// What has its length before it. Less than nothing is null.
fn sized<'r>(raw: &mut &'r [u8]) -> Result<Option<&'r [u8]>, Wrong> {
    let Ok(len) = usize::try_from(raw.try_get_i32()?) else { return Ok(None) };
    let (value, rest) = raw.split_at_checked(len).ok_or("it is cut off")?;
    *raw = rest;
    Ok(Some(value))
}

/// Reads a record's columns from left to right.
struct Cells<'r> {
    of: Of<'r>,
    next: usize,
}

enum Of<'r> {
    Row(&'r Row),
    Standing(&'r Standing<'r>),
}

impl<'r> Cells<'r> {
    fn get<T: FromSql<'r>>(&mut self) -> Result<T, Unreadable> {
        self.next += 1;
        let read = match self.of {
            Of::Row(row) => row.try_get(self.next - 1).ok(),
            Of::Standing(Standing(fields)) => fields
                .get(self.next - 1)
                .filter(|(ty, _)| T::accepts(ty))
                .and_then(|(ty, raw)| T::from_sql_nullable(ty, *raw).ok()),
        };
        read.ok_or(Unreadable("a column of another type"))
    }

    fn small(&mut self) -> Result<u32, Unreadable> {
        u32::try_from(self.get::<i64>()?).map_err(|_| Unreadable("a number that is too large"))
    }

    fn nonce(&mut self) -> Result<Nonce, Unreadable> {
        self.get().map(|bits: i64| Nonce(bits.cast_unsigned()))
    }

    fn instant(&mut self) -> Result<Option<Timestamp>, Unreadable> {
        Ok(self.get::<Option<i64>>()?.map(Timestamp::from_micros))
    }
}

/// Policies by their digests. A digest never means anything else, on any server.
#[derive(Debug, Default)]
pub(super) struct Policies(Mutex<HashMap<i64, Arc<Policy>>>);

impl Policies {
    /// Asks for those of these policies that are not known yet.
    pub(super) async fn learn(
        &self,
        connection: &Connection,
        named: impl Iterator<Item = i64>,
    ) -> Result<(), Error> {
        let unknown: Vec<i64> = {
            let known = self.known();
            named.filter(|digest| !known.contains_key(digest)).collect()
        };
        if unknown.is_empty() {
            return Ok(());
        }
        let sql = include_str!("sql/policy_load.sql");
        let found = connection.query_once(sql, &[(&unknown, Type::INT8_ARRAY)]).await?;
        let mut known = self.known();
        if known.len() >= POLICIES_MAX {
            known.clear();
        }
        for row in found {
            // One that can't be read is as one that is not there: whoever needs it will say so.
            if let Some(policy) = Policy::from_bytes(row.try_get(1)?) {
                known.insert(row.try_get(0)?, Arc::new(policy));
            }
        }
        Ok(())
    }

    fn get(&self, digest: i64) -> Option<Arc<Policy>> {
        self.known().get(&digest).cloned()
    }

    fn known(&self) -> MutexGuard<'_, HashMap<i64, Arc<Policy>>> {
        // Nothing in here panics half-way through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A policy as it is stored, and its number.
pub(super) fn encoded(policy: &Policy) -> (i64, Vec<u8>) {
    // Writing into a Vec has no way to fail.
    let data = policy.to_bytes();
    let digest = Sha256::digest(&data);
    let (first, _) = digest.split_first_chunk().expect("a digest has 32 bytes");
    (i64::from_be_bytes(*first), data)
}

/// Stores policies, by their digests, in a transaction of its own. A record that names one comes after it.
pub(super) async fn put(connection: &Connection, policies: &[(i64, &[u8])]) -> Result<(), Error> {
    let digests: Vec<i64> = policies.iter().map(|(digest, _)| *digest).collect();
    let data: Vec<&[u8]> = policies.iter().map(|(_, data)| *data).collect();
    // Each was encoded just now.
    let ahead: Vec<Option<i64>> =
        data.iter().map(|data| Policy::from_bytes(data).as_ref().and_then(columns::ahead)).collect();
    let params: [Param<'_>; 3] =
        [(&digests, Type::INT8_ARRAY), (&data, Type::BYTEA_ARRAY), (&ahead, Type::INT8_ARRAY)];
    connection.query_once(include_str!("sql/policy_put.sql"), &params).await?;
    connection.trust_policies(digests);
    Ok(())
}

/// The records in rows that have nothing else.
pub(super) fn all(policies: &Policies, rows: &[Row]) -> Result<Vec<StoredRecord>, Unreadable> {
    rows.iter().map(|row| stored(policies, row)).collect()
}

/// The records in such rows that can be read; and which can't, and why.
pub(super) fn legible(policies: &Policies, rows: &[Row]) -> (Vec<StoredRecord>, Vec<(String, Unreadable)>) {
    let (mut read, mut unread) = (Vec::with_capacity(rows.len()), Vec::new());
    for row in rows {
        match stored(policies, row) {
            Ok(stored) => read.push(stored),
            Err(why) => unread.push((short(row), why)),
        }
    }
    (read, unread)
}

/// The id of a row's record, as logs have it.
fn short(row: &Row) -> String {
    let id = row.try_get::<_, &[u8]>(ID).ok().and_then(|id| id.try_into().ok());
    id.map_or_else(|| "?".to_owned(), |id| RecordId::from_bytes(id).short().to_string())
}

/// The policies that rows name.
pub(super) fn policies_of(rows: &[Row]) -> impl Iterator<Item = i64> {
    rows.iter().filter_map(|row| row.try_get::<_, Option<i64>>(POLICY).ok().flatten())
}

/// Whether a row of a left join has a record.
pub(super) fn has_record(row: &Row) -> bool {
    matches!(row.try_get::<_, Option<&[u8]>>(ID), Ok(Some(_)))
}

/// Policies come from routes, and a gateway has dozens. Past this many somebody makes them up, and asking again is the
/// price.
const POLICIES_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use ibid_core::change::BodyKind;

    #[test]
    fn all_statements_that_give_records_name_the_same_columns() {
        let columns = |sql: &'static str| {
            let (_, list) = sql.rsplit_once("r.id, r.count").expect("it gives records");
            list.split_once("r.note").map(|(before, _)| before).expect("the note is last")
        };
        let load = columns(include_str!("sql/load.sql"));
        assert_eq!(load.matches(',').count() + 2, NOW - 1, "the answer follows, then now");
        for sql in [
            include_str!("sql/begin.sql"),
            include_str!("sql/commit.sql"),
            include_str!("sql/flight.sql"),
            include_str!("sql/due.sql"),
            include_str!("sql/list.sql"),
        ] {
            assert_eq!(columns(sql), load);
        }
    }

    #[test]
    fn the_answers_kind_is_the_one_that_the_sql_joins() {
        assert_eq!(BodyKind::Answer.code(), 1);
    }
}
