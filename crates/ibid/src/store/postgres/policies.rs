//! Policies in the database: numbered by a digest of their bytes, stored before the first record that names them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ibid_core::change::Change;
use ibid_core::policy::Policy;
use ibid_core::row::micros;
use sha2::{Digest, Sha256};
use tokio_postgres::Error;
use tokio_postgres::types::Type;

use super::connection::{Connection, Param};

/// Policies that this process knows: those it writes, and those it has read.
#[derive(Debug, Default)]
pub(super) struct PolicyCache {
    /// Policies that this process writes, each encoded once. All records of a route share one `Arc`.
    written: Mutex<Vec<Arc<NumberedPolicy>>>,
    /// Policies that were read, by number. A number never means another policy, on any server.
    read: Mutex<HashMap<i64, Arc<Policy>>>,
}

/// A policy as it is stored. It holds the policy, so that the address of the `Arc` is not reused.
#[derive(Debug)]
pub(super) struct NumberedPolicy {
    policy: Arc<Policy>,
    pub(super) digest: i64,
    data: Vec<u8>,
}

impl PolicyCache {
    /// Returns the policy with its number.
    pub(super) fn number(&self, policy: &Arc<Policy>) -> Arc<NumberedPolicy> {
        let mut written = lock(&self.written);
        if let Some(numbered) = find(&written, policy) {
            return numbered.clone();
        }
        let numbered = Arc::new(NumberedPolicy::new(policy.clone()));
        if written.len() >= WRITTEN_MAX {
            written.clear();
        }
        written.push(numbered.clone());
        numbered
    }

    /// Returns the policies of some changes, each once; most batches have one.
    pub(super) fn of<'a>(&self, changes: impl Iterator<Item = &'a Change>) -> BatchPolicies {
        let mut policies = BatchPolicies(Vec::new());
        for policy in changes.filter_map(|change| change.draft.as_ref()).map(|draft| &draft.policy) {
            if find(&policies.0, policy).is_none() {
                policies.0.push(self.number(policy));
            }
        }
        policies
    }

    /// Returns the policy with this number, if it was read before.
    pub(super) fn get(&self, digest: i64) -> Option<Arc<Policy>> {
        lock(&self.read).get(&digest).cloned()
    }

    /// Reads those of the policies that are not known yet.
    pub(super) async fn learn(
        &self,
        connection: &Connection,
        named: impl Iterator<Item = i64>,
    ) -> Result<(), Error> {
        let named: HashSet<i64> = named.collect();
        let unknown: Vec<i64> = {
            let read = lock(&self.read);
            named.iter().copied().filter(|digest| !read.contains_key(digest)).collect()
        };
        if unknown.is_empty() {
            return Ok(());
        }
        let sql = include_str!("sql/policy_load.sql");
        let rows = connection.query_once(sql, &[(&unknown, Type::INT8_ARRAY)]).await?;
        let mut read = lock(&self.read);
        if read.len() >= READ_MAX {
            // The rows at hand still need theirs.
            read.retain(|digest, _| named.contains(digest));
        }
        for row in rows {
            // A policy that cannot be read is like one that is missing: the row that names it is unreadable.
            if let Some(policy) = Policy::from_bytes(row.try_get(1)?) {
                read.insert(row.try_get(0)?, Arc::new(policy));
            }
        }
        Ok(())
    }
}

/// The policies of one batch.
pub(super) struct BatchPolicies(Vec<Arc<NumberedPolicy>>);

impl BatchPolicies {
    /// Returns the number of a policy of the batch.
    pub(super) fn number(&self, policy: &Arc<Policy>) -> i64 {
        // Each draft's policy was numbered when the batch was made.
        find(&self.0, policy).map_or(0, |numbered| numbered.digest)
    }

    /// Stores the policies that `connection` does not know to be stored, in their own transaction.
    pub(super) async fn ensure_stored(&self, connection: &Connection) -> Result<(), Error> {
        ensure_stored(connection, &self.0).await
    }
}

/// Stores those of `policies` that `connection` does not know to be stored, in their own transaction. A record that names a
/// policy is written after that.
pub(super) async fn ensure_stored(
    connection: &Connection,
    policies: &[Arc<NumberedPolicy>],
) -> Result<(), Error> {
    let unsure = connection.unsure_policies(policies.iter().map(|policy| policy.digest));
    if unsure.is_empty() {
        return Ok(());
    }
    // Two Arcs may have one content.
    let by_digest: HashMap<i64, &NumberedPolicy> = policies
        .iter()
        .filter(|policy| unsure.contains(&policy.digest))
        .map(|policy| (policy.digest, &**policy))
        .collect();
    let all = || by_digest.values().copied();
    let digests: Vec<i64> = all().map(|policy| policy.digest).collect();
    let data: Vec<&[u8]> = all().map(|policy| &policy.data[..]).collect();
    let lease: Vec<i64> = all().map(|policy| micros(policy.policy.lease)).collect();
    let ahead: Vec<i64> =
        all().map(|policy| micros(policy.policy.retention) - micros(policy.policy.lease)).collect();
    let keep: Vec<i64> =
        all().map(|policy| micros(policy.policy.retention.saturating_add(policy.policy.tombstone))).collect();
    let params: [Param<'_>; 5] = [
        (&digests, Type::INT8_ARRAY),
        (&data, Type::BYTEA_ARRAY),
        (&lease, Type::INT8_ARRAY),
        (&ahead, Type::INT8_ARRAY),
        (&keep, Type::INT8_ARRAY),
    ];
    connection.query_once(include_str!("sql/policy_put.sql"), &params).await?;
    connection.trust_policies(digests);
    Ok(())
}

impl NumberedPolicy {
    fn new(policy: Arc<Policy>) -> NumberedPolicy {
        let data = policy.to_bytes();
        let digest = Sha256::digest(&data);
        let (first, _) = digest.split_first_chunk().expect("a digest has 32 bytes");
        NumberedPolicy { policy, digest: i64::from_be_bytes(*first), data }
    }
}

fn find<'n>(among: &'n [Arc<NumberedPolicy>], policy: &Arc<Policy>) -> Option<&'n Arc<NumberedPolicy>> {
    among.iter().find(|numbered| Arc::ptr_eq(&numbered.policy, policy))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code that holds it can panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Policies to write that are remembered: a gateway has dozens. With more, searching takes longer than encoding.
const WRITTEN_MAX: usize = 128;

/// Policies that were read and are remembered. A program that makes more of them pays with another read.
const READ_MAX: usize = 1024;
