//! Policies by number: the first bytes of a policy's digest. A bucket has the policies that its records name, so that both are
//! lost or kept together.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use foldhash::fast::RandomState;
use ibid_core::policy::Policy;
use parking_lot::{Mutex, RwLock};
use sha2::{Digest, Sha256};

use super::key::Bucket;

/// A cache of policies by number, and of numbers by policy. A number never means another policy, so nothing is ever stale.
#[derive(Default)]
pub(super) struct RedisPolicies {
    by_number: RwLock<HashMap<i64, Arc<Policy>>>,
    /// By the address of the policy, which stays taken while the entry holds it.
    by_address: RwLock<HashMap<usize, (Arc<Policy>, i64)>>,
    stored: Mutex<StoredPolicies>,
}

/// Buckets and numbers of policies that the server is known to have.
///
/// Known for one connection only: behind the next one may be a server that was restored from an earlier state.
#[derive(Default)]
struct StoredPolicies {
    connection: u64,
    places: HashSet<(Bucket, i64), RandomState>,
}

impl RedisPolicies {
    /// Returns the number of a policy.
    pub(super) fn number(&self, policy: &Arc<Policy>) -> i64 {
        let address = Arc::as_ptr(policy).addr();
        if let Some((_, number)) = self.by_address.read().get(&address) {
            return *number;
        }
        let digest: [u8; 32] = Sha256::digest(policy.to_bytes()).into();
        let number = i64::from_be_bytes(*digest.first_chunk().expect("a digest is longer"));
        insert(&mut self.by_address.write(), address, (policy.clone(), number));
        self.put(number, policy.clone());
        number
    }

    /// Returns the policy with this number, if it is known.
    pub(super) fn get(&self, number: i64) -> Option<Arc<Policy>> {
        self.by_number.read().get(&number).cloned()
    }

    /// Returns whether the server behind a connection has a policy in this bucket, as far as this process knows.
    pub(super) fn is_stored(&self, connection: u64, bucket: Bucket, number: i64) -> bool {
        let stored = self.stored.lock();
        stored.connection == connection && stored.places.contains(&(bucket, number))
    }

    /// Notes that the server behind a connection has a policy in this bucket.
    pub(super) fn note_stored(&self, connection: u64, bucket: Bucket, number: i64) {
        let mut stored = self.stored.lock();
        if stored.connection != connection || stored.places.len() >= STORED_MAX {
            *stored = StoredPolicies { connection, ..StoredPolicies::default() };
        }
        stored.places.insert((bucket, number));
    }

    /// Remembers the policy with this number.
    pub(super) fn put(&self, number: i64, policy: Arc<Policy>) {
        insert(&mut self.by_number.write(), number, policy);
    }
}

fn insert<K: Eq + std::hash::Hash, V>(entries: &mut HashMap<K, V>, key: K, value: V) {
    if entries.len() >= POLICIES_MAX {
        entries.clear();
    }
    entries.insert(key, value);
}

/// Policies come from routes, and a gateway has dozens. A program with more generates them, and pays with a lookup.
const POLICIES_MAX: usize = 1024;

/// Places of policies that are remembered: a hundred policies in every bucket.
const STORED_MAX: usize = 100 * 256;
