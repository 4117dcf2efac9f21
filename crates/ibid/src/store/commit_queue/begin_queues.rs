//! Begins that wait, counted by tenant: no tenant can fill a queue alone, or delay the accepted requests of another.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use foldhash::fast::RandomState;
use ibid_core::scope::Tenant;

use super::queue::Item;

/// Begins in the order in which they came. Flights take many at a time, so the order among tenants matters little.
#[derive(Debug, Default)]
pub(super) struct BeginQueue {
    items: VecDeque<Item>,
    by_tenant: HashMap<Tenant, usize, RandomState>,
}

impl BeginQueue {
    pub(super) fn push_back(&mut self, item: Item) {
        self.count(&item);
        self.items.push_back(item);
    }

    pub(super) fn push_front(&mut self, item: Item) {
        self.count(&item);
        self.items.push_front(item);
    }

    pub(super) fn pop_front(&mut self) -> Option<Item> {
        let item = self.items.pop_front()?;
        if let Some(tenant) = tenant_of(&item)
            && let Some(count) = self.by_tenant.get_mut(tenant)
        {
            *count -= 1;
            if *count == 0 {
                self.by_tenant.remove(tenant);
            }
        }
        Some(item)
    }

    pub(super) fn front(&self) -> Option<&Item> {
        self.items.front()
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns whether another begin of this tenant is too many.
    pub(super) fn is_full_for(&self, tenant: Option<&Tenant>, max: usize) -> bool {
        let of_tenant = tenant.and_then(|tenant| self.by_tenant.get(tenant)).copied().unwrap_or(0);
        self.len() >= max || tenant.is_some_and(|tenant| of_tenant >= tenant_max(tenant, max))
    }

    fn count(&mut self, item: &Item) {
        let Some(tenant) = tenant_of(item) else { return };
        match self.by_tenant.get_mut(tenant) {
            Some(count) => *count += 1,
            None => drop(self.by_tenant.insert(tenant.clone(), 1)),
        }
    }
}

/// Begins that are written one by one: the tenants take turns. Each takes some milliseconds of one of a few workers, so in the
/// order of their arrival the flood of one tenant would delay all others by minutes.
#[derive(Debug, Default)]
pub(super) struct TurnQueue {
    /// Each tenant that has a begin here, once.
    turns: VecDeque<Option<Tenant>>,
    by_tenant: HashMap<Option<Tenant>, VecDeque<Item>, RandomState>,
    len: usize,
}

impl TurnQueue {
    pub(super) fn push_back(&mut self, item: Item) {
        self.queue_of(&item).push_back(item);
        self.len += 1;
    }

    /// Adds a begin that goes before the others of its tenant.
    pub(super) fn push_front(&mut self, item: Item) {
        self.queue_of(&item).push_front(item);
        self.len += 1;
    }

    pub(super) fn pop_front(&mut self) -> Option<Item> {
        let tenant = self.turns.pop_front()?;
        let Entry::Occupied(mut queue) = self.by_tenant.entry(tenant) else { return None };
        let item = queue.get_mut().pop_front();
        if queue.get().is_empty() {
            queue.remove();
        } else {
            self.turns.push_back(queue.key().clone());
        }
        self.len -= usize::from(item.is_some());
        item
    }

    /// Moves begins whose time is over to `late`. All wait equally long, so they are the first of their tenants. The tenants
    /// whose turn comes next are looked at, a bounded number of them.
    pub(super) fn take_late(&mut self, now: Instant, late: &mut Vec<Item>) {
        let mut looked = 0;
        while looked < LATE_LOOKS_MAX
            && let Some(tenant) = self.turns.get(looked)
            && let Some(queue) = self.by_tenant.get_mut(tenant)
        {
            let waiting = queue.len();
            while let Some(item) = queue.pop_front_if(|item| item.is_late(now)) {
                late.push(item);
            }
            self.len -= waiting - queue.len();
            if queue.is_empty() {
                self.by_tenant.remove(tenant);
                self.turns.remove(looked);
            } else {
                looked += 1;
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether another begin of this tenant is too many.
    pub(super) fn is_full_for(&self, tenant: Option<&Tenant>, max: usize) -> bool {
        // Only a queue that is half full can have as many of one tenant, so few calls need the key.
        let of_tenant = || self.by_tenant.get(&tenant.cloned()).map_or(0, VecDeque::len);
        self.len >= max
            || tenant.is_some_and(|tenant| {
                let tenant_max = tenant_max(tenant, max);
                self.len >= tenant_max && of_tenant() >= tenant_max
            })
    }

    fn queue_of(&mut self, item: &Item) -> &mut VecDeque<Item> {
        match self.by_tenant.entry(tenant_of(item).cloned()) {
            Entry::Occupied(queue) => queue.into_mut(),
            Entry::Vacant(free) => {
                self.turns.push_back(free.key().clone());
                free.insert(VecDeque::new())
            }
        }
    }
}

/// Returns the tenant of a change that writes a record.
fn tenant_of(item: &Item) -> Option<&Tenant> {
    item.change.draft.as_ref().map(|draft| &draft.identity.tenant)
}

/// Returns how many begins of one tenant may wait where `max` of all tenants may.
fn tenant_max(tenant: &Tenant, max: usize) -> usize {
    // In a deployment without tenants there is no other one to leave room for.
    if tenant.is_only() { max } else { max.div_ceil(TENANT_PART) }
}

/// One tenant may have one place in this many: half, as with the other bounds of a process. A flood of one tenant must leave
/// room for the others.
const TENANT_PART: usize = 2;

/// Tenants whose begins are checked for lateness at one look. A tenant that is left out comes nearer with each turn, and its
/// begins are checked once more before they are sent.
const LATE_LOOKS_MAX: usize = 64;
