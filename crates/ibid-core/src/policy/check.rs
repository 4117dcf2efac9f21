//! Checks that the rules of a policy can be applied together.

use std::time::Duration;

use super::status_class::{FREE_ON, FREE_WITH_RETRY_AFTER};
use super::{AfterExpiry, AnswerRule, Policy};
use crate::proof::NotExecutedWhen;

impl Policy {
    /// Checks that the rules can be applied together.
    ///
    /// # Errors
    ///
    /// Returns the first rule that cannot be applied, by its key in a configuration.
    pub fn check(&self) -> Result<(), PolicyError> {
        self.check_durations()?;
        self.check_expiry()?;
        if self.stream && self.answer != AnswerRule::Sync {
            return Err(PolicyError::new(
                "stream",
                "needs `answer = \"sync\"`: a stream is not retained, so it could not be fetched later",
            ));
        }
        if self.max_attempts == 0 {
            return Err(PolicyError::new("max_attempts", "must be at least 1"));
        }
        self.check_statuses()?;
        self.check_unknown()
    }

    /// Checks the durations, each alone and against the lease.
    fn check_durations(&self) -> Result<(), PolicyError> {
        let durations = [
            ("wait", self.wait, true),
            ("lease", self.lease, false),
            ("max_run", self.max_run, false),
            ("retention", self.retention, false),
            ("tombstone", self.tombstone, true),
            ("pending_deadline", self.pending_deadline, false),
            ("upstream_timeout", self.upstream_timeout, false),
            ("linger", self.linger, true),
        ];
        for (field, length, may_be_zero) in durations {
            if length.is_zero() && !may_be_zero {
                return Err(PolicyError::new(field, "must be longer than zero"));
            }
            if length > DURATION_MAX {
                return Err(PolicyError::new(field, "must be at most 100 years"));
            }
        }
        if self.lease < LEASE_MIN {
            return Err(PolicyError::new(
                "lease",
                "must be at least 100ms: it is renewed at a third of its length",
            ));
        }
        if self.retention < self.lease {
            return Err(PolicyError::new("retention", "must not be shorter than the lease"));
        }
        if self.max_run < self.lease {
            return Err(PolicyError::new("max_run", "must not be shorter than the lease"));
        }
        Ok(())
    }

    /// Checks how long keys are remembered against the rules that depend on it.
    fn check_expiry(&self) -> Result<(), PolicyError> {
        if self.after_expiry == AfterExpiry::Refuse && self.tombstone.is_zero() {
            return Err(PolicyError::new(
                "after_expiry",
                "`refuse` needs a tombstone: without one nothing is left to refuse by",
            ));
        }
        if let Some(age) = self.max_request_age {
            if age.is_zero() {
                return Err(PolicyError::new("max_request_age", "must be longer than zero"));
            }
            if age > self.remembered_for() {
                return Err(PolicyError::new(
                    "max_request_age",
                    "must not be longer than the key is remembered (retention, and the tombstone with \
                     `after_expiry = \"refuse\"`): an older request could run a second time",
                ));
            }
        }
        Ok(())
    }

    /// Checks the lists of statuses that release a key or are final.
    fn check_statuses(&self) -> Result<(), PolicyError> {
        if let Some(status) = self.free_on.iter().find(|status| !(400..600).contains(*status)) {
            return Err(PolicyError::new(
                "free_on",
                &format!("`{status}` is not an error status: a success is never free"),
            ));
        }
        if let Some(status) = self.store_on.iter().find(|status| self.free_on.contains(status)) {
            return Err(PolicyError::new("store_on", &format!("`{status}` is in `free_on`, too")));
        }
        let is_on_free_list =
            |status: &u16| FREE_ON.contains(status) || FREE_WITH_RETRY_AFTER.contains(status);
        if let Some(status) = self.store_on.iter().find(|status| !is_on_free_list(status)) {
            let problem = format!("`{status}` is not on the free list: 401, 403, 409, 423, 425, 429, 501");
            return Err(PolicyError::new("store_on", &problem));
        }
        self.not_executed_when.iter().try_for_each(NotExecutedWhen::check)
    }

    /// Checks how long an unknown outcome is kept and how it is reconciled.
    fn check_unknown(&self) -> Result<(), PolicyError> {
        if self.unknown_retention.is_some_and(|length| length > DURATION_MAX) {
            return Err(PolicyError::new("unknown_retention", "must be at most 100 years"));
        }
        if self.unknown_retention.is_some_and(|length| length <= self.settle_time_max()) {
            let problem = "must be longer than any run and its reconciliation can take: max_run, lease, upstream_timeout and \
                           linger, and attempts × settle";
            return Err(PolicyError::new("unknown_retention", problem));
        }
        match &self.reconcile {
            Some(reconcile) if reconcile.attempts == 0 => {
                Err(PolicyError::new("attempts", "must be at least 1"))
            }
            Some(reconcile) if reconcile.settle < 2 * self.upstream_timeout => Err(PolicyError::new(
                "settle",
                "must be at least 2 × upstream_timeout: before that a delivery may still run",
            )),
            _ => Ok(()),
        }
    }

    /// Returns the longest time that a run and its reconciliation may take together.
    fn settle_time_max(&self) -> Duration {
        let run = (self.max_run + self.lease).max(self.over_in());
        let lookups = self.reconcile.as_ref().map_or(Duration::ZERO, |rule| {
            // A pause may be spread by a quarter. Where lookups get no result, it is at most five minutes.
            rule.settle.max(LOOKUP_PAUSE_MAX).saturating_mul(rule.attempts).mul_f64(1.25)
        });
        run.saturating_add(lookups)
    }
}

/// A rule that cannot be applied, and the key that names it in a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{field}` {problem}")]
pub struct PolicyError {
    /// Key of the rule in a configuration.
    pub field: &'static str,
    /// Description of the problem with its value.
    pub problem: String,
}

impl PolicyError {
    pub(crate) fn new(field: &'static str, problem: &str) -> Self {
        PolicyError { field, problem: problem.to_owned() }
    }
}

/// Longest duration of a policy. A longer one is more likely a typo than a wish, and sums stay far from overflow.
const DURATION_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Shortest lease: a renewal must fit into a third of it, and a disk may take tens of milliseconds.
const LEASE_MIN: Duration = Duration::from_millis(100);

/// Longest pause between two lookups of a reconciler that get no result.
const LOOKUP_PAUSE_MAX: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use super::super::{DAY, Reconcile};
    use super::*;

    fn invalid_field(change: impl FnOnce(&mut Policy)) -> &'static str {
        let mut policy = Policy::default();
        change(&mut policy);
        policy.check().expect_err("the policy is valid").field
    }

    #[test]
    fn only_wait_tombstone_and_linger_may_be_zero() {
        assert_eq!(invalid_field(|p| p.lease = Duration::ZERO), "lease");
        assert_eq!(invalid_field(|p| p.max_run = Duration::ZERO), "max_run");
        assert_eq!(invalid_field(|p| p.retention = Duration::ZERO), "retention");
        assert_eq!(invalid_field(|p| p.pending_deadline = Duration::ZERO), "pending_deadline");
        assert_eq!(invalid_field(|p| p.upstream_timeout = Duration::ZERO), "upstream_timeout");
        let zeros = Policy {
            wait: Duration::ZERO,
            tombstone: Duration::ZERO,
            linger: Duration::ZERO,
            ..Policy::default()
        };
        assert_eq!(zeros.check(), Ok(()));
    }

    #[test]
    fn rules_that_contradict_each_other_are_refused() {
        assert_eq!(invalid_field(|p| p.retention = Duration::from_secs(59)), "retention");
        assert_eq!(invalid_field(|p| p.max_run = Duration::from_secs(59)), "max_run");
        assert_eq!(invalid_field(|p| p.after_expiry = AfterExpiry::Refuse), "after_expiry");
        assert_eq!(invalid_field(|p| p.free_on.push(200)), "free_on");
        assert_eq!(invalid_field(|p| p.store_on.push(503)), "store_on");
        let hour = Some(Duration::from_secs(3600));
        assert_eq!(Policy { unknown_retention: hour, ..Policy::default() }.check(), Ok(()));
        assert_eq!(invalid_field(|p| p.unknown_retention = Some(p.max_run + p.lease)), "unknown_retention");
        assert_eq!(
            invalid_field(|p| (p.unknown_retention, p.reconcile) = (hour, Some(Reconcile::new(DAY, 2)))),
            "unknown_retention"
        );
        assert_eq!(invalid_field(|p| (p.free_on, p.store_on) = (vec![429], vec![429])), "store_on");
        for (status, header, value) in [
            (200, "x-a", "1"),
            (503, "x a", "1"),
            (503, "ibid-outcome", "1"),
            (503, "x-a", " 1"),
            (503, "x-a", ""),
        ] {
            let rule =
                NotExecutedWhen { status: vec![status], header: header.into(), values: vec![value.into()] };
            assert_eq!(invalid_field(|p| p.not_executed_when.push(rule)), "not_executed_when");
        }
        assert_eq!(invalid_field(|p| p.max_attempts = 0), "max_attempts");
        assert_eq!(invalid_field(|p| (p.stream, p.answer) = (true, AnswerRule::Async)), "stream");
        assert_eq!(invalid_field(|p| p.tombstone = DURATION_MAX + DAY), "tombstone");
        let reconcile = |settle| Some(Reconcile::new(Duration::from_secs(settle), 10));
        assert_eq!(invalid_field(|p| p.reconcile = reconcile(59)), "settle");
    }
}
