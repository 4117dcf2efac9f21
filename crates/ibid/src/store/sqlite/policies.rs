//! Policies and their numbers, cached so that a write or a read seldom has to ask the file.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ibid_core::policy::Policy;
use ibid_core::row::{UnreadableRowError, micros};
use ibid_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};

/// A cache of policies by number, and of numbers by policy.
///
/// A number once committed never means another policy. Invariant: after a rollback the cache is emptied, because it may
/// have numbers that the rollback took back.
#[derive(Default)]
pub(super) struct Policies {
    by_number: HashMap<i64, Arc<Policy>>,
    /// By the address of the policy, which stays taken while the entry holds it.
    by_address: HashMap<usize, PolicyNumber>,
}

struct PolicyNumber {
    /// Keeps the address taken.
    _policy: Arc<Policy>,
    number: i64,
    seen_at: Timestamp,
}

impl Policies {
    /// Returns the number of a policy, and stores the policy if it has none.
    pub(super) fn number(
        &mut self,
        connection: &Connection,
        policy: &Arc<Policy>,
        now: Timestamp,
    ) -> rusqlite::Result<i64> {
        let address = Arc::as_ptr(policy).addr();
        if let Some(known) = self.by_address.get(&address)
            && now.since(known.seen_at) < SEEN_EVERY
        {
            return Ok(known.number);
        }
        let number = put(connection, policy, now)?;
        if self.by_address.len() >= POLICIES_MAX {
            self.by_address.clear();
        }
        let known = PolicyNumber { _policy: policy.clone(), number, seen_at: now };
        self.by_address.insert(address, known);
        Ok(number)
    }

    /// Loads the policy with this number. The inner error is a policy that is missing or cannot be read.
    pub(super) fn load(
        &mut self,
        connection: &Connection,
        number: i64,
    ) -> rusqlite::Result<Result<Arc<Policy>, UnreadableRowError>> {
        if let Some(policy) = self.by_number.get(&number) {
            return Ok(Ok(policy.clone()));
        }
        let mut load = connection.prepare_cached(include_str!("sql/policy_load.sql"))?;
        let Some(data) = load.query_row([number], |row| row.get::<_, Vec<u8>>(0)).optional()? else {
            return Ok(Err(UnreadableRowError("a policy that is not there")));
        };
        let Some(policy) = Policy::from_bytes(&data).map(Arc::new) else {
            return Ok(Err(UnreadableRowError("a policy of an unknown version")));
        };
        if self.by_number.len() >= POLICIES_MAX {
            self.by_number.clear();
        }
        self.by_number.insert(number, policy.clone());
        Ok(Ok(policy))
    }

    /// Removes all entries from the cache.
    pub(super) fn clear(&mut self) {
        self.by_number.clear();
        self.by_address.clear();
    }
}

/// Stores a policy unless it is stored, and marks it as seen. Returns its number.
pub(super) fn put(connection: &Connection, policy: &Policy, now: Timestamp) -> rusqlite::Result<i64> {
    let mut put = connection.prepare_cached(include_str!("sql/policy_put.sql"))?;
    let (lease, life) = (micros(policy.lease), micros(policy_lifetime(policy)));
    put.query_row(params![policy.to_bytes(), lease, life, now.as_micros()], |row| row.get(0))
}

/// Returns how long after a write under this policy its row is purged at the latest, with room to spare: only open
/// records live longer, and those are looked up before a policy is deleted.
fn policy_lifetime(policy: &Policy) -> Duration {
    let retained = policy.retention.saturating_add(policy.tombstone);
    let unknown = policy.unknown_retention.unwrap_or_default();
    retained.saturating_add(retained).saturating_add(unknown).saturating_add(LIFE_MARGIN)
}

/// Added to the life of every policy. Longer than [`SEEN_EVERY`] and than any transaction of a caller that has the number.
const LIFE_MARGIN: Duration = Duration::from_secs(24 * 3600);

/// Interval at which a policy that is in use is marked as seen.
///
/// T1 (idle for the policy's life) knows its number; T2 (a reaper) deletes the policy; T1 would write a record that
/// names nothing. Therefore a number older than this is looked up again, in the transaction that uses it.
pub(super) const SEEN_EVERY: Duration = Duration::from_secs(3600);

/// Policies come from routes, and a gateway has dozens. A program with more generates them, and pays with a lookup in the
/// file.
const POLICIES_MAX: usize = 1024;
