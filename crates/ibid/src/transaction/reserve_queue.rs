//! Limits how many tries to reserve a key inside a transaction run at once: one per key, and a few in all.
//!
//! A request that waits for another node's row gets a permit for each try and holds nothing between two tries. This file must
//! not depend on SQL.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ibid_core::scope::RecordId;
use parking_lot::Mutex;
use tokio::sync::{OwnedMutexGuard, Semaphore, SemaphorePermit};
use tokio::time::Instant;

use crate::backoff::Backoff;

/// The keys that this process is about to reserve inside a transaction.
#[derive(Debug)]
pub(crate) struct ReserveQueue {
    key_locks: Mutex<HashMap<RecordId, Weak<tokio::sync::Mutex<()>>>>,
    /// Permits for the first try of each request. They leave connections for the rest of the application while requests find
    /// another node's rows.
    first_tries: Semaphore,
    /// Permits for later tries of requests that found another node's row. They are separate, so that a new key never queues
    /// behind waiting duplicates.
    later_tries: Semaphore,
}

/// Lock that only one request of this process holds per key.
pub(super) type KeyLock = OwnedMutexGuard<()>;

/// Permit to try once to reserve a key.
pub(super) type TryPermit<'a> = SemaphorePermit<'a>;

impl ReserveQueue {
    /// Creates a queue in which so many first tries run at once, at least one.
    pub(crate) fn new(first_tries_max: usize) -> ReserveQueue {
        ReserveQueue {
            key_locks: Mutex::default(),
            first_tries: Semaphore::new(first_tries_max.clamp(1, Semaphore::MAX_PERMITS)),
            later_tries: Semaphore::new(LATER_TRIES_MAX),
        }
    }

    /// Waits until no other request of this process holds the key.
    pub(super) async fn lock_key(&self, id: RecordId) -> KeyLock {
        let lock = {
            let mut key_locks = self.key_locks.lock();
            if key_locks.len() >= SWEEP_LOCKS_AT {
                key_locks.retain(|_, lock| lock.strong_count() > 0);
            }
            let lock = key_locks.get(&id).and_then(Weak::upgrade).unwrap_or_default();
            key_locks.insert(id, Arc::downgrade(&lock));
            lock
        };
        lock.lock_owned().await
    }

    /// Returns the pauses between the tries of one request.
    pub(super) fn backoff() -> Backoff {
        Backoff::new(PAUSE_MIN, PAUSE_MAX)
    }

    /// Waits for the permit of a first try. Returns `None` after `timeout`.
    pub(super) async fn first_permit(&self, timeout: Duration) -> Option<TryPermit<'_>> {
        tokio::time::timeout(timeout, self.first_tries.acquire()).await.ok()?.ok()
    }

    /// Pauses, then waits for the permit of another try for a key that another node holds. Returns `None` at `until`.
    pub(super) async fn next_permit(&self, until: Instant, backoff: &mut Backoff) -> Option<TryPermit<'_>> {
        let now = Instant::now();
        if now >= until {
            return None;
        }
        tokio::time::sleep_until(until.min(now + backoff.next())).await;
        tokio::time::timeout_at(until, self.later_tries.acquire()).await.ok()?.ok()
    }
}

/// Later tries that run at once. A duplicate that waits for another node is not urgent, and two short tries do not exhaust
/// even a small pool.
const LATER_TRIES_MAX: usize = 2;

/// First pause between two tries. A transaction that outlasts one try usually needs about as long again.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// Longest pause between two tries. A response that is stored is returned within a quarter of a second, unless many requests
/// wait for a permit.
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// Size of the map of key locks at which unused entries are removed.
const SWEEP_LOCKS_AT: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn so_many_first_tries_run_at_once_as_the_application_allows() {
        for (max, allowed) in [(0, 1), (1, 1), (3, 3), (usize::MAX, 5)] {
            let queue = ReserveQueue::new(max);
            let mut permits = Vec::new();
            for _ in 0..5 {
                permits.extend(queue.first_permit(PAUSE_MAX).await);
            }
            assert_eq!(permits.len(), allowed, "{max}");
        }
    }
}
