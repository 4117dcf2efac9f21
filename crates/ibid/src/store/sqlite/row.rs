//! Rows as Records. The order of columns is that of `load.sql`, `due.sql` and `list.sql`.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use ibid_core::change::StoredRecord;
use ibid_core::fingerprint::Fingerprint;
use ibid_core::policy::Policy;
use ibid_core::record::{Flags, Nonce, Record, RecordDetails, State, Version};
use ibid_core::scope::{Identity, RecordId};
use ibid_core::time::Timestamp;
use rusqlite::types::{FromSql, Type};
use rusqlite::{Connection, Error, OptionalExtension, Row};

/// The Record in a row, with its answer.
///
/// What this program can't read is an error, never a default: a fingerprint taken for none would let another's
/// request through.
pub(super) fn stored(
    connection: &Connection,
    policies: &mut Policies,
    row: &Row<'_>,
    now: Timestamp,
) -> rusqlite::Result<StoredRecord> {
    let mut cells = Cells { row, next: 0 };
    let id = RecordId::from_bytes(cells.get()?);
    let version = Version { count: cells.get()?, nonce: cells.nonce()? };
    let (birth, owner) = (cells.nonce()?, cells.nonce()?);
    let attempt = cells.get()?;
    let state = cells.get().map(State::from_code)?.ok_or_else(|| cells.unreadable("an unknown state"))?;
    let flags = Flags::from_bits(cells.get()?);
    let policy = policies.load(connection, cells.get()?)?;
    let point = cells.get()?;
    let created_at = Timestamp::from_micros(cells.get()?);
    let (ran_at, completed_at) = (cells.instant()?, cells.instant()?);
    let (due_at, expires_at, purge_at) = (cells.instant()?, cells.instant()?, cells.instant()?);
    let fingerprint = match cells.bytes()? {
        None => None,
        Some(bytes) => {
            let known = Fingerprint::from_bytes(bytes);
            Some(known.ok_or_else(|| cells.unreadable("a fingerprint of an unknown version"))?)
        }
    };
    let identity = Identity::stored(cells.text()?, cells.text()?, cells.text()?, cells.text()?);
    let identity = identity.ok_or_else(|| cells.unreadable("not a tenant and a key"))?;
    let note =
        cells.bytes()?.and_then(RecordDetails::from_bytes).ok_or_else(|| cells.unreadable("not a note"))?;
    let answer = cells.bytes()?.map(Bytes::copy_from_slice);
    let record = Record {
        id,
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
    Ok(StoredRecord { record: Arc::new(record), answer, now })
}

/// A nonce with the same bits in the type that SQLite has.
pub(super) fn bits(nonce: Nonce) -> i64 {
    nonce.0.cast_signed()
}

/// A row that this program can't read.
pub(super) fn unreadable(column: usize, what: &'static str) -> Error {
    Error::FromSqlConversionFailure(column, Type::Blob, what.into())
}

/// Whether it is a row that this program can't read.
pub(super) fn is_unreadable(error: &Error) -> bool {
    matches!(
        error,
        Error::FromSqlConversionFailure(..)
            | Error::IntegralValueOutOfRange(..)
            | Error::InvalidColumnType(..)
    )
}

/// The id of a row's record, as logs have it.
pub(super) fn short(row: &Row<'_>) -> String {
    row.get(0).map_or_else(|_| "?".to_owned(), |id| RecordId::from_bytes(id).short().to_string())
}

/// Reads a row from left to right.
struct Cells<'r, 's> {
    row: &'r Row<'s>,
    next: usize,
}

impl<'r> Cells<'r, '_> {
    fn get<T: FromSql>(&mut self) -> rusqlite::Result<T> {
        self.next += 1;
        self.row.get(self.next - 1)
    }

    fn nonce(&mut self) -> rusqlite::Result<Nonce> {
        self.get().map(|bits: i64| Nonce(bits.cast_unsigned()))
    }

    fn instant(&mut self) -> rusqlite::Result<Option<Timestamp>> {
        Ok(self.get::<Option<i64>>()?.map(Timestamp::from_micros))
    }

    fn text(&mut self) -> rusqlite::Result<&'r str> {
        self.next += 1;
        self.row.get_ref(self.next - 1)?.as_str().map_err(|_| self.unreadable("not text"))
    }

    fn bytes(&mut self) -> rusqlite::Result<Option<&'r [u8]>> {
        self.next += 1;
        self.row.get_ref(self.next - 1)?.as_blob_or_null().map_err(|_| self.unreadable("not bytes"))
    }

    /// The cell that was read last is not what it should be.
    fn unreadable(&self, what: &'static str) -> Error {
        unreadable(self.next - 1, what)
    }
}

/// Policies by number and numbers by Policy, so that a write or a read seldom has to ask the file.
///
/// A number once committed never means anything else. Invariant: after a rollback this is emptied, for it may know
/// numbers that the rollback took back.
#[derive(Default)]
pub(super) struct Policies {
    by_number: HashMap<i64, Arc<Policy>>,
    /// By the address of the policy, which stays taken while we hold it.
    by_address: HashMap<usize, (Arc<Policy>, i64)>,
}

impl Policies {
    /// The number of a policy, given out now if it has none.
    pub(super) fn number(&mut self, connection: &Connection, policy: &Arc<Policy>) -> rusqlite::Result<i64> {
        let address = Arc::as_ptr(policy).addr();
        if let Some((_, number)) = self.by_address.get(&address) {
            return Ok(*number);
        }
        // Writing into a Vec has no way to fail.
        let data = minicbor::to_vec(&**policy).expect("a Vec takes every byte");
        let mut find = connection.prepare_cached(include_str!("sql/policy_find.sql"))?;
        let number = match find.query_row([&data], |row| row.get(0)).optional()? {
            Some(number) => number,
            None => connection.prepare_cached(include_str!("sql/policy_add.sql"))?.insert([&data])?,
        };
        self.make_room();
        self.by_address.insert(address, (policy.clone(), number));
        Ok(number)
    }

    /// The policy with this number.
    fn load(&mut self, connection: &Connection, number: i64) -> rusqlite::Result<Arc<Policy>> {
        if let Some(policy) = self.by_number.get(&number) {
            return Ok(policy.clone());
        }
        let mut load = connection.prepare_cached(include_str!("sql/policy_load.sql"))?;
        let data: Option<Vec<u8>> = load.query_row([number], |row| row.get(0)).optional()?;
        let data = data.ok_or_else(|| unreadable(0, "a policy that is not there"))?;
        let policy: Policy =
            minicbor::decode(&data).map_err(|_| unreadable(0, "a policy of an unknown version"))?;
        let policy = Arc::new(policy);
        self.make_room();
        self.by_number.insert(number, policy.clone());
        Ok(policy)
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.by_number.clear();
        self.by_address.clear();
    }

    fn make_room(&mut self) {
        if self.by_number.len().max(self.by_address.len()) >= POLICIES_MAX {
            self.clear();
        }
    }
}

/// Policies come from routes, and a gateway has dozens. Past this many somebody makes them up, and a lookup in the
/// file is the price.
const POLICIES_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use ibid_core::change::BodyKind;

    #[test]
    fn all_queries_that_give_records_name_the_same_columns() {
        let columns = |sql: &'static str| {
            let (_, list) = sql.split_once("select").expect("a query selects");
            list.split_once("r.note").map(|(before, _)| before).expect("the note is last")
        };
        let load = columns(include_str!("sql/load.sql"));
        assert_eq!(columns(include_str!("sql/due.sql")), load);
        assert_eq!(columns(include_str!("sql/list.sql")), load);
    }

    #[test]
    fn the_kinds_of_bodies_are_those_that_the_sql_counts_on() {
        assert_eq!(BodyKind::Answer.code(), 1, "load.sql and due.sql join slot + 1");
        assert!(BodyKind::Phase(u16::MAX).code() < 131_072, "slots of two records would overlap");
    }
}
