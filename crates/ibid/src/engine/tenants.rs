//! Which tenants send the most duplicates, as far as this process has seen. Metrics never name a tenant, so this is where
//! an operator finds out which one a rising count is about.
//!
//! Bounded: of more tenants than fit, those with the fewest requests give way, and who comes instead takes over their
//! weight. So a busy tenant is never pushed out by a crowd of quiet ones.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ibid_core::scope::Tenant;
use tokio::time::Instant;

use super::Ibid;
use crate::outcome::{Begin, Outcome};

/// What one tenant sent lately: within the last five to ten minutes.
#[derive(Clone, Debug, PartialEq)]
pub struct TenantRate {
    /// Whose.
    pub tenant: Tenant,
    /// Guarded requests that the store or the cache answered.
    pub requests: u64,
    /// Those of them whose key had come before.
    pub duplicates: u64,
    /// Those of the duplicates that came with another request.
    pub misused: u64,
}

impl TenantRate {
    /// Which part of its requests are duplicates, from 0 to 1.
    pub fn rate(&self) -> f64 {
        if self.requests == 0 { 0.0 } else { self.duplicates as f64 / self.requests as f64 }
    }
}

impl Ibid {
    /// The tenants that this process has seen lately, the highest duplicate rate first; at most `limit`.
    ///
    /// A tenant with fewer than twenty requests stands behind the others, whatever its rate: one retry of one request
    /// says nothing.
    pub fn tenants(&self, limit: usize) -> Vec<TenantRate> {
        let mut all = self.inner().tenants.all(Instant::now());
        let order = |rate: &TenantRate| (rate.requests >= REQUESTS_MIN, rate.rate());
        all.sort_by(|one, other| {
            let ((one_counts, one_rate), (other_counts, other_rate)) = (order(one), order(other));
            let by_rate = other_counts.cmp(&one_counts).then(other_rate.total_cmp(&one_rate));
            by_rate.then(other.requests.cmp(&one.requests)).then(one.tenant.cmp(&other.tenant))
        });
        all.truncate(limit);
        all
    }

    /// How many tenants sent more duplicates lately than [`Settings::duplicate_rate`](super::Settings) allows.
    pub fn tenants_above_duplicate_rate(&self) -> usize {
        let (all, allowed) = (self.inner().tenants.all(Instant::now()), self.inner().duplicate_rate);
        all.iter().filter(|rate| rate.requests >= REQUESTS_MIN && rate.rate() > allowed).count()
    }
}

#[derive(Debug, Default)]
pub(crate) struct Tenants(Mutex<Windows>);

#[derive(Debug)]
struct Windows {
    since: Instant,
    current: HashMap<Tenant, Count>,
    last: HashMap<Tenant, Count>,
}

impl Default for Windows {
    fn default() -> Self {
        Windows { since: Instant::now(), current: HashMap::new(), last: HashMap::new() }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    /// Its own requests and those of whom it replaced: who weighs least gives way.
    weight: u64,
    requests: u64,
    duplicates: u64,
    misused: u64,
}

impl Tenants {
    /// Counts a request of this tenant that arrived at `at`.
    pub(crate) fn count_begin(&self, tenant: &Tenant, begin: &Begin, at: Instant) {
        match begin {
            Begin::Run(attempt) => self.count(tenant, attempt.number() > 1, false, at),
            Begin::Skip(outcome) => self.count_outcome(tenant, outcome, at),
        }
    }

    /// Counts a request of this tenant that arrived at `at` and does not run.
    pub(crate) fn count_outcome(&self, tenant: &Tenant, outcome: &Outcome, at: Instant) {
        let is_duplicate = !matches!(outcome, Outcome::Accepted { new: true });
        self.count(tenant, is_duplicate, matches!(outcome, Outcome::Mismatch), at);
    }

    /// A request of this tenant runs, the first of its key or again.
    pub(crate) fn ran(&self, tenant: &Tenant, again: bool) {
        self.count(tenant, again, false, Instant::now());
    }

    fn count(&self, tenant: &Tenant, duplicate: bool, misused: bool, now: Instant) {
        let mut windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        windows.turn(now);
        let add = |count: &mut Count| {
            count.weight += 1;
            count.requests += 1;
            count.duplicates += u64::from(duplicate);
            count.misused += u64::from(misused);
        };
        match windows.current.get_mut(tenant) {
            Some(count) => add(count),
            None => add(windows.admit(tenant)),
        }
    }

    fn all(&self, now: Instant) -> Vec<TenantRate> {
        let mut windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        windows.turn(now);
        let mut sums = windows.last.clone();
        for (tenant, count) in &windows.current {
            let sum = sums.entry(tenant.clone()).or_default();
            sum.requests += count.requests;
            sum.duplicates += count.duplicates;
            sum.misused += count.misused;
        }
        let rate = |(tenant, count): (Tenant, Count)| TenantRate {
            tenant,
            requests: count.requests,
            duplicates: count.duplicates,
            misused: count.misused,
        };
        sums.into_iter().map(rate).collect()
    }
}

impl Windows {
    /// Lets what is too old go.
    fn turn(&mut self, now: Instant) {
        let age = now.saturating_duration_since(self.since);
        if age >= WINDOW {
            let current = std::mem::take(&mut self.current);
            self.last = if age < 2 * WINDOW { current } else { HashMap::new() };
            self.since = now;
        }
    }

    /// A place for a tenant that has none: a free one, or that of who weighs least.
    fn admit(&mut self, tenant: &Tenant) -> &mut Count {
        let mut weight = 0;
        if self.current.len() >= TENANTS_MAX {
            let least = self.current.iter().min_by_key(|(_, count)| count.weight);
            if let Some((lightest, count)) = least.map(|(tenant, count)| (tenant.clone(), *count)) {
                self.current.remove(&lightest);
                weight = count.weight;
            }
        }
        self.current.entry(tenant.clone()).or_insert(Count { weight, ..Count::default() })
    }
}

/// What is counted together: long enough for a rate to mean something, short enough to be about now.
const WINDOW: Duration = Duration::from_secs(300);

/// Tenants that are followed at once: a few hundred kilobytes, and a look at all of them takes microseconds.
const TENANTS_MAX: usize = 512;

/// Fewer requests than this say nothing about a tenant.
const REQUESTS_MIN: u64 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> Tenant {
        Tenant::new(name).unwrap()
    }

    #[test]
    fn a_busy_tenant_is_not_pushed_out_by_a_crowd_of_quiet_ones() {
        let (tenants, now) = (Tenants::default(), Instant::now());
        for round in 0..10_000 {
            tenants.count(&tenant(&format!("quiet-{round}")), false, false, now);
            if round % 4 == 0 {
                tenants.count(&tenant("busy"), round % 8 == 0, false, now);
            }
        }
        let all = tenants.all(now);
        assert_eq!(all.len(), TENANTS_MAX);
        let busy = all.iter().find(|rate| rate.tenant == tenant("busy")).expect("it is followed");
        // It may have been pushed out in the beginning, while nobody weighed much.
        assert!(busy.requests > 2000, "{busy:?}");
        assert!((busy.rate() - 0.5).abs() < 0.01, "{busy:?}");
    }

    #[test]
    fn the_first_request_that_is_accepted_to_be_run_later_is_no_duplicate() {
        let tenants = Tenants::default();
        for new in [true, false, false] {
            tenants.count_outcome(&tenant("a"), &Outcome::Accepted { new }, Instant::now());
        }
        let rate = TenantRate { tenant: tenant("a"), requests: 3, duplicates: 2, misused: 0 };
        assert_eq!(tenants.all(Instant::now()), [rate]);
    }

    #[test]
    fn what_was_counted_long_ago_no_longer_counts() {
        let (tenants, now) = (Tenants::default(), Instant::now());
        tenants.count(&tenant("a"), true, true, now);
        tenants.count(&tenant("a"), false, false, now + WINDOW);
        let both = TenantRate { tenant: tenant("a"), requests: 2, duplicates: 1, misused: 1 };
        assert_eq!(tenants.all(now + WINDOW), [both]);
        assert_eq!(tenants.all(now + 2 * WINDOW).iter().map(|rate| rate.duplicates).sum::<u64>(), 0);
        assert_eq!(tenants.all(now + 5 * WINDOW), []);
    }
}
