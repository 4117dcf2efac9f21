//! Duplicates that wait for an answer of this process or another. Bounded per key and per tenant, because a wait is a
//! held connection and a guessed key must not become a way to exhaust them.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use ibid_core::scope::{RecordId, Tenant};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

#[derive(Clone, Default)]
pub(crate) struct Waiters(Arc<Mutex<Rooms>>);

#[derive(Default)]
struct Rooms {
    by_id: HashMap<RecordId, Room, RandomState>,
    by_tenant: HashMap<Tenant, usize>,
}

struct Room {
    news: Arc<Notify>,
    waiting: usize,
}

/// One waiter's place; given back when dropped.
pub(crate) struct Place {
    waiters: Waiters,
    id: RecordId,
    tenant: Tenant,
    pub(crate) news: Arc<Notify>,
}

impl Waiters {
    /// A place to wait for news of this record; none if too many wait already.
    pub(crate) fn enter(&self, id: RecordId, tenant: &Tenant) -> Option<Place> {
        let mut rooms = self.rooms();
        let of_tenant = rooms.by_tenant.get(tenant).copied().unwrap_or(0);
        if of_tenant >= PER_TENANT_MAX || rooms.by_id.get(&id).is_some_and(|room| room.waiting >= PER_KEY_MAX)
        {
            return None;
        }
        rooms.by_tenant.insert(tenant.clone(), of_tenant + 1);
        let room = rooms.by_id.entry(id).or_insert_with(|| Room { news: Arc::default(), waiting: 0 });
        room.waiting += 1;
        let news = room.news.clone();
        Some(Place { waiters: self.clone(), id, tenant: tenant.clone(), news })
    }

    /// Wakes all who wait for this record in this process.
    pub(crate) fn tell(&self, id: &RecordId) {
        if let Some(room) = self.rooms().by_id.get(id) {
            room.news.notify_waiters();
        }
    }

    /// How many wait now.
    pub(crate) fn count(&self) -> usize {
        self.rooms().by_tenant.values().sum()
    }

    fn rooms(&self) -> MutexGuard<'_, Rooms> {
        // Counters only; nothing in here panics half-way.
        self.0.lock()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut rooms = self.waiters.rooms();
        if let Some(room) = rooms.by_id.get_mut(&self.id) {
            room.waiting -= 1;
            if room.waiting == 0 {
                rooms.by_id.remove(&self.id);
            }
        }
        if let Some(count) = rooms.by_tenant.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                rooms.by_tenant.remove(&self.tenant);
            }
        }
    }
}

/// Waiters on one key. A client that retries in parallel has a handful; past a hundred it is a storm, and 409 with
/// `Retry-After` is the better answer.
const PER_KEY_MAX: usize = 128;

/// Waiters of one tenant: half of the gateway's default connections, so that one tenant's storm leaves room for others.
const PER_TENANT_MAX: usize = 2048;

#[cfg(test)]
mod tests {
    use super::*;
    use ibid_core::scope::RecordId;

    #[test]
    fn places_are_bounded_per_key_and_given_back() {
        let waiters = Waiters::default();
        let (id, tenant) = (RecordId::from_bytes([1; 32]), Tenant::only());
        let places: Vec<_> = (0..PER_KEY_MAX).map(|_| waiters.enter(id, &tenant).expect("room")).collect();
        assert!(waiters.enter(id, &tenant).is_none());
        assert!(waiters.enter(RecordId::from_bytes([2; 32]), &tenant).is_some());
        drop(places);
        assert!(waiters.enter(id, &tenant).is_some());
        assert!(waiters.rooms().by_id.is_empty() && waiters.rooms().by_tenant.is_empty());
    }

    #[test]
    fn one_tenants_waiters_do_not_take_anothers_places() {
        let waiters = Waiters::default();
        let (greedy, other) = (Tenant::new("greedy").unwrap(), Tenant::new("other").unwrap());
        let mut id = [0; 32];
        let mut places = Vec::new();
        for n in 0..PER_TENANT_MAX {
            id[..8].copy_from_slice(&n.to_be_bytes());
            places.push(waiters.enter(RecordId::from_bytes(id), &greedy).expect("room"));
        }
        assert!(waiters.enter(RecordId::from_bytes([255; 32]), &greedy).is_none());
        assert!(waiters.enter(RecordId::from_bytes([255; 32]), &other).is_some());
    }
}
