//! Counts the attempts that live in this process, each once, and bounds them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ibid_core::scope::Tenant;
use metrics::counter;

use super::UnavailableError;
use super::drain::{Drain, DrainGuard};
use super::tenant_bound::{CrowdedBy, TenantBound, TenantPermit};
use crate::telemetry;

/// The live attempts of one process.
pub(crate) struct AttemptSlots {
    bound: TenantBound,
    /// `true` since a begin was refused for lack of room, until one is not.
    is_crowded: AtomicBool,
    drain: Drain,
}

/// The permit of one attempt. All parts of an attempt that may outlive the others share it: the attempt, its end that is
/// being written, its late answer.
pub(crate) struct AttemptPermit {
    _units: TenantPermit,
    /// Dropped last: a shutdown waits for it.
    _guard: DrainGuard,
}

impl AttemptSlots {
    pub(super) fn new(attempts_max: usize, drain: Drain) -> AttemptSlots {
        AttemptSlots { bound: TenantBound::new(attempts_max), is_crowded: AtomicBool::new(false), drain }
    }

    /// Takes a slot for an attempt whose key is about to be reserved. If there is none, the key must not be reserved: from then
    /// on the attempt runs.
    pub(super) fn take(&self, tenant: &Tenant) -> Result<Arc<AttemptPermit>, CrowdedBy> {
        let taken = self.bound.take(tenant, 1);
        // Logged once, not for each refused begin.
        let is_crowded = taken.is_err();
        if is_crowded != self.is_crowded.load(Ordering::Relaxed)
            && !self.is_crowded.swap(is_crowded, Ordering::Relaxed)
        {
            let (attempts, by) = (self.bound.units_taken(), taken.as_ref().err());
            tracing::warn!(
                attempts,
                ?by,
                "too many attempts run; new keys are refused, stored records still answer"
            );
        }
        taken.map(|units| self.permit(units))
    }

    /// Takes a slot for an attempt that runs in any case: upkeep has its own bounds, and a caller's transaction has its
    /// connection.
    pub(crate) fn take_beyond(&self, tenant: &Tenant) -> Arc<AttemptPermit> {
        self.permit(self.bound.take_beyond(tenant, 1))
    }

    fn permit(&self, units: TenantPermit) -> Arc<AttemptPermit> {
        Arc::new(AttemptPermit { _units: units, _guard: self.drain.track() })
    }
}

/// Counts a refused begin, and returns its error.
pub(super) fn refuse(by: CrowdedBy) -> UnavailableError {
    let by = match by {
        CrowdedBy::Process => "process",
        CrowdedBy::Tenant => "tenant",
    };
    counter!(telemetry::ATTEMPTS_REFUSED, "by" => by).increment(1);
    UnavailableError::no_room()
}
