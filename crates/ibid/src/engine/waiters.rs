//! Duplicates that wait for a result of this process or another. Bounded per key and per tenant, because a wait is a
//! held connection and a guessed key must not become a way to exhaust them.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use ibid_core::scope::{RecordId, Tenant};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The waiting requests of one process. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Waiters(Arc<Mutex<Waiting>>);

#[derive(Default)]
struct Waiting {
    by_key: HashMap<RecordId, KeyWaiters, RandomState>,
    by_tenant: HashMap<Tenant, usize>,
}

/// The requests that wait for one record.
struct KeyWaiters {
    changed: Arc<Notify>,
    count: usize,
}

/// One waiting request; its slot is free again when this is dropped.
pub(crate) struct Waiter {
    waiters: Waiters,
    id: RecordId,
    tenant: Tenant,
    /// Notified when this process has written the record.
    pub(crate) changed: Arc<Notify>,
}

impl Waiters {
    /// Registers a waiter for a record. Returns `None` if too many wait already.
    pub(crate) fn enter(&self, id: RecordId, tenant: &Tenant) -> Option<Waiter> {
        let mut waiting = self.0.lock();
        let of_tenant = waiting.by_tenant.get(tenant).copied().unwrap_or(0);
        if of_tenant >= PER_TENANT_MAX || waiting.by_key.get(&id).is_some_and(|key| key.count >= PER_KEY_MAX)
        {
            return None;
        }
        waiting.by_tenant.insert(tenant.clone(), of_tenant + 1);
        let new = || KeyWaiters { changed: Arc::default(), count: 0 };
        let key = waiting.by_key.entry(id).or_insert_with(new);
        key.count += 1;
        let changed = key.changed.clone();
        Some(Waiter { waiters: self.clone(), id, tenant: tenant.clone(), changed })
    }

    /// Wakes all requests of this process that wait for a record.
    pub(crate) fn notify(&self, id: &RecordId) {
        if let Some(key) = self.0.lock().by_key.get(id) {
            key.changed.notify_waiters();
        }
    }

    /// Returns how many requests wait now.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().by_tenant.values().sum()
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut waiting = self.waiters.0.lock();
        if let Some(key) = waiting.by_key.get_mut(&self.id) {
            key.count -= 1;
            if key.count == 0 {
                waiting.by_key.remove(&self.id);
            }
        }
        if let Some(count) = waiting.by_tenant.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                waiting.by_tenant.remove(&self.tenant);
            }
        }
    }
}

/// Waiters on one key. A client that retries in parallel has a handful; past a hundred it is a storm, and 409 with
/// `Retry-After` is the better response.
const PER_KEY_MAX: usize = 128;

/// Waiters of one tenant: half of the gateway's default connections, so that one tenant's storm leaves room for others.
const PER_TENANT_MAX: usize = 2048;

#[cfg(test)]
mod tests {
    use super::*;
    use ibid_core::scope::RecordId;

    #[test]
    fn waiters_are_bounded_per_key_and_leave_when_dropped() {
        let waiters = Waiters::default();
        let (id, tenant) = (RecordId::from_bytes([1; RecordId::LEN]), Tenant::only());
        let entered: Vec<_> = (0..PER_KEY_MAX).map(|_| waiters.enter(id, &tenant).expect("room")).collect();
        assert!(waiters.enter(id, &tenant).is_none());
        assert!(waiters.enter(RecordId::from_bytes([2; RecordId::LEN]), &tenant).is_some());
        drop(entered);
        assert!(waiters.enter(id, &tenant).is_some());
        assert!(waiters.0.lock().by_key.is_empty() && waiters.0.lock().by_tenant.is_empty());
    }

    #[test]
    fn one_tenants_waiters_leave_room_for_another_tenant() {
        let waiters = Waiters::default();
        let (greedy, other) = (Tenant::new("greedy").unwrap(), Tenant::new("other").unwrap());
        let mut id = [0; RecordId::LEN];
        let mut entered = Vec::new();
        for n in 0..PER_TENANT_MAX {
            id[..8].copy_from_slice(&n.to_be_bytes());
            entered.push(waiters.enter(RecordId::from_bytes(id), &greedy).expect("room"));
        }
        assert!(waiters.enter(RecordId::from_bytes([255; RecordId::LEN]), &greedy).is_none());
        assert!(waiters.enter(RecordId::from_bytes([255; RecordId::LEN]), &other).is_some());
    }
}
