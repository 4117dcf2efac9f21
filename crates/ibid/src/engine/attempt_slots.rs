//! Counts the attempts that live in this process, each once, and says whether there is room for another.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use ibid_core::scope::Tenant;
use parking_lot::Mutex;

use super::drain::{Drain, DrainGuard};

/// The live attempts of one process.
pub(crate) struct AttemptSlots {
    attempts_max: usize,
    taken: Arc<Mutex<TakenSlots>>,
    drain: Drain,
}

#[derive(Default)]
struct TakenSlots {
    count: usize,
    by_tenant: HashMap<Tenant, usize, RandomState>,
    /// `true` since a begin was refused for lack of room, until one is not.
    is_crowded: bool,
}

/// The permit of one attempt. All parts of an attempt that may outlive the others share it: the attempt, its end that is
/// being written, its late answer.
pub(crate) struct AttemptPermit {
    taken: Arc<Mutex<TakenSlots>>,
    tenant: Tenant,
    /// Dropped last: a shutdown waits for it.
    _guard: DrainGuard,
}

/// The bound that leaves no room for another attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CrowdedBy {
    /// The process is full.
    Process,
    /// The tenant has its share.
    Tenant,
}

impl AttemptSlots {
    pub(super) fn new(attempts_max: usize, drain: Drain) -> AttemptSlots {
        AttemptSlots { attempts_max, taken: Arc::default(), drain }
    }

    /// Takes a slot for an attempt. Whether there is room was checked before its key was reserved: from then on it runs.
    pub(crate) fn take(&self, tenant: &Tenant) -> Arc<AttemptPermit> {
        let mut taken = self.taken.lock();
        taken.count += 1;
        match taken.by_tenant.get_mut(tenant) {
            Some(count) => *count += 1,
            None => drop(taken.by_tenant.insert(tenant.clone(), 1)),
        }
        let guard = self.drain.track_attempt();
        Arc::new(AttemptPermit { taken: self.taken.clone(), tenant: tenant.clone(), _guard: guard })
    }

    /// Returns the bound that leaves no room for another attempt of this tenant, or `None` if there is room.
    pub(super) fn crowded_by(&self, tenant: &Tenant) -> Option<CrowdedBy> {
        let mut taken = self.taken.lock();
        let of_tenant = taken.by_tenant.get(tenant).copied().unwrap_or(0);
        // In a deployment without tenants there is no other one to leave room for.
        let tenant_max = match *tenant == Tenant::only() {
            true => self.attempts_max,
            false => self.attempts_max.div_ceil(TENANT_PART),
        };
        let crowded = match taken.count >= self.attempts_max {
            true => Some(CrowdedBy::Process),
            false => (of_tenant >= tenant_max).then_some(CrowdedBy::Tenant),
        };
        // Logged once, not for each refused begin.
        if let Some(by) = crowded
            && !taken.is_crowded
        {
            tracing::warn!(
                attempts = taken.count,
                ?by,
                "too many attempts run; new keys are refused, stored records still answer"
            );
        }
        taken.is_crowded = crowded.is_some();
        crowded
    }
}

impl CrowdedBy {
    /// Returns the label of the bound in metrics.
    pub(super) fn label(self) -> &'static str {
        match self {
            CrowdedBy::Process => "process",
            CrowdedBy::Tenant => "tenant",
        }
    }
}

impl Drop for AttemptPermit {
    fn drop(&mut self) {
        let mut taken = self.taken.lock();
        taken.count -= 1;
        if let Some(count) = taken.by_tenant.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                taken.by_tenant.remove(&self.tenant);
            }
        }
    }
}

/// One tenant may have one slot in this many: half. A tenant whose upstream hangs must leave room for the others.
const TENANT_PART: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_tenant_has_at_most_half_of_the_slots() {
        let slots = AttemptSlots::new(4, Drain::default());
        let tenant = |name: &str| Tenant::new(name).expect("a good name");
        let (greedy, other) = (tenant("greedy"), tenant("other"));
        let first = slots.take(&greedy);
        assert_eq!(slots.crowded_by(&greedy), None);
        let _second = slots.take(&greedy);
        assert_eq!(slots.crowded_by(&greedy), Some(CrowdedBy::Tenant));
        assert_eq!(slots.crowded_by(&other), None);
        let _others = [slots.take(&other), slots.take(&other)];
        assert_eq!(slots.crowded_by(&tenant("third")), Some(CrowdedBy::Process));
        drop(first);
        assert_eq!(slots.crowded_by(&tenant("third")), None);
    }

    #[test]
    fn the_only_tenant_may_have_all_slots() {
        let slots = AttemptSlots::new(2, Drain::default());
        let _first = slots.take(&Tenant::only());
        assert_eq!(slots.crowded_by(&Tenant::only()), None);
        let second = slots.take(&Tenant::only());
        let _same = second.clone();
        drop(second);
        assert_eq!(slots.crowded_by(&Tenant::only()), Some(CrowdedBy::Process), "a part of it lives");
    }
}
