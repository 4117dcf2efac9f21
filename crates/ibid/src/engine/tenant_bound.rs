//! A bound of one process that no tenant can fill alone: one tenant may have half of it.
//!
//! Attempts, joined begins, background writes, deliveries and resumed requests are bounded by it. Whatever one tenant does,
//! by a hot key, by large responses or by an upstream that hangs, the others have the other half.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use ibid_core::scope::Tenant;
use parking_lot::Mutex;

/// A number of units, slots or bytes, that the tenants of one process share. Clones share them.
#[derive(Clone)]
pub(crate) struct TenantBound(Arc<SharedUnits>);

struct SharedUnits {
    max: usize,
    taken: Mutex<TakenUnits>,
}

#[derive(Default)]
struct TakenUnits {
    total: usize,
    by_tenant: HashMap<Tenant, usize, RandomState>,
}

/// Units that one tenant has taken. They are free again when this is dropped.
pub(crate) struct TenantPermit {
    bound: TenantBound,
    tenant: Tenant,
    units: usize,
}

/// The bound that leaves no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CrowdedBy {
    /// The process is full.
    Process,
    /// The tenant has its share.
    Tenant,
}

impl TenantBound {
    pub(crate) fn new(max: usize) -> TenantBound {
        TenantBound(Arc::new(SharedUnits { max, taken: Mutex::default() }))
    }

    /// Takes `units` for a tenant, or returns the bound that leaves no room for them.
    pub(crate) fn take(&self, tenant: &Tenant, units: usize) -> Result<TenantPermit, CrowdedBy> {
        let mut taken = self.0.taken.lock();
        let of_tenant = taken.by_tenant.get(tenant).copied().unwrap_or(0);
        if taken.total + units > self.0.max {
            return Err(CrowdedBy::Process);
        }
        if of_tenant + units > self.tenant_max(tenant) {
            return Err(CrowdedBy::Tenant);
        }
        taken.add(tenant, units);
        Ok(TenantPermit { bound: self.clone(), tenant: tenant.clone(), units })
    }

    /// Takes `units` for a tenant, whether or not there is room.
    pub(crate) fn take_beyond(&self, tenant: &Tenant, units: usize) -> TenantPermit {
        self.0.taken.lock().add(tenant, units);
        TenantPermit { bound: self.clone(), tenant: tenant.clone(), units }
    }

    /// Returns how many units are taken.
    pub(crate) fn units_taken(&self) -> usize {
        self.0.taken.lock().total
    }

    /// Returns how many units are free. One tenant may be unable to take them.
    pub(crate) fn free(&self) -> usize {
        self.0.max.saturating_sub(self.units_taken())
    }

    /// Returns whether another unit is refused: to every tenant, or to one that has its share.
    pub(crate) fn refuses_any(&self) -> bool {
        let taken = self.0.taken.lock();
        let has_share = |(tenant, count): (&Tenant, &usize)| *count >= self.tenant_max(tenant);
        taken.total >= self.0.max || taken.by_tenant.iter().any(has_share)
    }

    fn tenant_max(&self, tenant: &Tenant) -> usize {
        // In a deployment without tenants there is no other one to leave room for.
        if tenant.is_only() { self.0.max } else { self.0.max.div_ceil(TENANT_PART) }
    }
}

impl TakenUnits {
    fn add(&mut self, tenant: &Tenant, units: usize) {
        self.total += units;
        match self.by_tenant.get_mut(tenant) {
            Some(count) => *count += units,
            None => drop(self.by_tenant.insert(tenant.clone(), units)),
        }
    }
}

impl Drop for TenantPermit {
    fn drop(&mut self) {
        let mut taken = self.bound.0.taken.lock();
        taken.total -= self.units;
        if let Some(count) = taken.by_tenant.get_mut(&self.tenant) {
            *count -= self.units;
            if *count == 0 {
                taken.by_tenant.remove(&self.tenant);
            }
        }
    }
}

/// One tenant may have one unit in this many: half. A tenant whose upstream hangs must leave room for the others.
const TENANT_PART: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> Tenant {
        Tenant::new(name).expect("a good name")
    }

    #[test]
    fn one_tenant_has_at_most_half() {
        let bound = TenantBound::new(4);
        let (greedy, other) = (tenant("greedy"), tenant("other"));
        let first = bound.take(&greedy, 1).expect("room");
        let _second = bound.take(&greedy, 1).expect("room");
        assert_eq!(bound.take(&greedy, 1).err(), Some(CrowdedBy::Tenant));
        assert!(bound.refuses_any() && bound.free() == 2);
        let _others = bound.take(&other, 2).expect("the other half");
        assert_eq!(bound.take(&tenant("third"), 1).err(), Some(CrowdedBy::Process));
        drop(first);
        assert!(bound.take(&tenant("third"), 1).is_ok());
    }

    #[test]
    fn the_only_tenant_may_have_all() {
        let bound = TenantBound::new(4);
        assert_eq!(bound.take(&Tenant::only(), 5).err(), Some(CrowdedBy::Process));
        let all = bound.take(&Tenant::only(), 4).expect("room");
        assert_eq!(bound.take(&Tenant::only(), 1).err(), Some(CrowdedBy::Process));
        let _beyond = bound.take_beyond(&Tenant::only(), 1);
        assert_eq!((bound.units_taken(), bound.free()), (5, 0));
        drop(all);
        assert_eq!(bound.free(), 3);
    }
}
