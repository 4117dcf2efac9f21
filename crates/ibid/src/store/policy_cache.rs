//! Policies of the stores on a database server: numbered by a digest of their bytes, and those that a process knows.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ibid_core::change::Change;
use ibid_core::policy::Policy;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

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
    pub(super) policy: Arc<Policy>,
    pub(super) digest: i64,
    pub(super) data: Vec<u8>,
}

impl PolicyCache {
    /// Returns the policy with its number.
    pub(super) fn number(&self, policy: &Arc<Policy>) -> Arc<NumberedPolicy> {
        let mut written = self.written.lock();
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

    /// Returns those of the policies `named` that were read before, and the numbers of the others.
    pub(super) fn look_up(&self, named: impl Iterator<Item = i64>) -> (RowPolicies, Vec<i64>) {
        let named: HashSet<i64> = named.collect();
        let (mut found, mut unread) = (RowPolicies::default(), Vec::new());
        let read = self.read.lock();
        for digest in named {
            match read.get(&digest) {
                Some(policy) => drop(found.0.insert(digest, policy.clone())),
                None => unread.push(digest),
            }
        }
        (found, unread)
    }

    /// Remembers policies that were read, and adds them to those of the rows at hand.
    pub(super) fn learn(&self, rows: &mut RowPolicies, policies: impl Iterator<Item = (i64, Policy)>) {
        let mut read = self.read.lock();
        if read.len() >= READ_MAX {
            read.clear();
        }
        for (digest, policy) in policies {
            let policy = Arc::new(policy);
            rows.0.insert(digest, policy.clone());
            read.insert(digest, policy);
        }
    }
}

/// The policies that some rows name, by number.
///
/// Rows are read with these and not with the cache, which forgets. T1 learns the policy of its row; T2 learns another one and
/// finds the cache full; therefore T1 would find no policy for its row, although the database has it.
#[derive(Debug, Default)]
pub(super) struct RowPolicies(HashMap<i64, Arc<Policy>>);

impl RowPolicies {
    /// Returns the policy with this number, if the database has it.
    pub(super) fn get(&self, digest: i64) -> Option<Arc<Policy>> {
        self.0.get(&digest).cloned()
    }
}

/// The policies of one batch.
pub(super) struct BatchPolicies(pub(super) Vec<Arc<NumberedPolicy>>);

impl BatchPolicies {
    /// Returns the number of a policy of the batch.
    pub(super) fn number(&self, policy: &Arc<Policy>) -> i64 {
        // Each draft's policy was numbered when the batch was made.
        find(&self.0, policy).map_or(0, |numbered| numbered.digest)
    }
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

/// Policies that were stored through a connection, and when. A policy may be gone although the connection is not: behind a
/// pooler the connection outlives a failover, and a table may be restored under it. A record whose policy is missing cannot
/// be read, so the trust ends soon.
#[derive(Debug, Default)]
pub(super) struct TrustedPolicies(HashMap<i64, Instant>);

impl TrustedPolicies {
    /// Returns those of `digests` that are not trusted at this instant.
    pub(super) fn unsure(&self, digests: impl Iterator<Item = i64>, at: Instant) -> Vec<i64> {
        let is_fresh = |digest: &i64| self.0.get(digest).is_some_and(|since| at < *since + TRUSTED_FOR);
        digests.filter(|digest| !is_fresh(digest)).collect()
    }

    pub(super) fn trust(&mut self, digests: impl IntoIterator<Item = i64>, at: Instant) {
        if self.0.len() >= TRUSTED_MAX {
            self.0.retain(|_, since| at < *since + TRUSTED_FOR);
        }
        self.0.extend(digests.into_iter().map(|digest| (digest, at)));
    }
}

/// Policies to write that are remembered: a gateway has dozens. With more, searching takes longer than encoding.
const WRITTEN_MAX: usize = 128;

/// Policies that were read and are remembered. A program that makes more of them pays with another read.
const READ_MAX: usize = 1024;

/// Time for which a policy counts as stored after it was seen. Asking again is one short round trip. Records under a policy that
/// was lost are found once it is stored again, before a usual lease is over.
const TRUSTED_FOR: Duration = Duration::from_secs(10);

/// Trusted policies after which old ones are dropped. A gateway has dozens.
const TRUSTED_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the policies of rows that name `named`, as a store does.
    fn read(cache: &PolicyCache, named: std::ops::Range<i64>) -> RowPolicies {
        let (mut policies, unread) = cache.look_up(named);
        cache.learn(&mut policies, unread.into_iter().map(|digest| (digest, Policy::default())));
        policies
    }

    #[test]
    fn a_full_cache_takes_no_policy_from_rows_at_hand() {
        let cache = PolicyCache::default();
        let bound = READ_MAX as i64;
        read(&cache, 0..bound);
        let (mut ours, unread) = cache.look_up([0, bound].into_iter());
        assert_eq!(unread, [bound]);
        // Another caller finds the cache full, between this one's two questions and after both.
        read(&cache, bound + 1..bound + 2);
        cache.learn(&mut ours, [(bound, Policy::default())].into_iter());
        read(&cache, bound + 2..2 * bound + 2);
        read(&cache, 3 * bound..3 * bound + 1);
        assert_eq!(cache.look_up([0, bound].into_iter()).1.len(), 2, "the cache has forgotten both");
        assert!(ours.get(0).is_some() && ours.get(bound).is_some());
    }

    #[test]
    fn a_trusted_policy_is_stored_again_after_a_while() {
        let (mut trusted, at) = (TrustedPolicies::default(), Instant::now());
        trusted.trust([1, 2], at);
        let soon = at + TRUSTED_FOR - Duration::from_micros(1);
        assert_eq!(trusted.unsure([1, 2, 3].into_iter(), soon), [3]);
        trusted.trust([2, 3], soon);
        assert_eq!(trusted.unsure([1, 2, 3].into_iter(), at + TRUSTED_FOR), [1]);
    }
}
