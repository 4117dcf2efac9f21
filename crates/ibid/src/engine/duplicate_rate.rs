//! The duplicate rate of each tenant, as far as this process has seen. Metrics never name a tenant, so this is where an
//! operator finds the tenant behind a rising count.
//!
//! The number of tenants is bounded. A new tenant replaces the one with the fewest requests and inherits its weight, so a
//! crowd of quiet tenants never pushes out a busy one.

use std::collections::HashMap;
use std::time::Duration;

use ibid_core::scope::Tenant;
use parking_lot::Mutex;
use tokio::time::Instant;

/// The requests of one tenant within the last five to ten minutes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TenantRate {
    /// Tenant that sent the requests.
    pub tenant: Tenant,
    /// Guarded requests that the store or the cache answered.
    pub requests: u64,
    /// Requests whose key had been used before.
    pub duplicates: u64,
    /// Duplicates that sent a different request under the key.
    pub misused: u64,
}

impl TenantRate {
    /// Returns the share of duplicates among the requests, from 0 to 1.
    pub fn rate(&self) -> f64 {
        if self.requests == 0 { 0.0 } else { self.duplicates as f64 / self.requests as f64 }
    }
}

/// The kind of a request, for the duplicate rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The first request of its key.
    First,
    /// A request whose key had been used before.
    Duplicate,
    /// A different request under a key that had been used before.
    Misuse,
}

impl Arrival {
    /// Returns how a request counts that runs as this attempt of its key, from 1.
    pub(crate) fn of_run(attempt: u32) -> Arrival {
        if attempt == 1 { Arrival::First } else { Arrival::Duplicate }
    }
}

/// The duplicate rates of the tenants of one process.
#[derive(Debug)]
pub(crate) struct DuplicateRates {
    /// The rate that a tenant may have, from 0 to 1.
    allowed: f64,
    windows: Mutex<Windows>,
}

#[derive(Debug)]
struct Windows {
    since: Instant,
    current: HashMap<Tenant, Count>,
    /// Counts of the previous window.
    last: HashMap<Tenant, Count>,
}

impl Default for Windows {
    fn default() -> Self {
        Windows { since: Instant::now(), current: HashMap::new(), last: HashMap::new() }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    /// The tenant's requests and those of the tenant that it replaced. The lightest tenant is replaced next.
    weight: u64,
    requests: u64,
    duplicates: u64,
    misused: u64,
}

impl DuplicateRates {
    pub(super) fn new(allowed: f64) -> DuplicateRates {
        DuplicateRates { allowed, windows: Mutex::default() }
    }

    /// Counts a request that arrived at `now`.
    pub(crate) fn count_request(&self, tenant: &Tenant, arrival: Arrival, now: Instant) {
        let mut windows = self.windows.lock();
        windows.turn(now);
        let add = |count: &mut Count| {
            count.weight += 1;
            count.requests += 1;
            count.duplicates += u64::from(arrival != Arrival::First);
            count.misused += u64::from(arrival == Arrival::Misuse);
        };
        match windows.current.get_mut(tenant) {
            Some(count) => add(count),
            None => add(windows.admit(tenant)),
        }
    }

    /// Returns the tenants with the highest rates, at most `limit`. Those with fewer than [`REQUESTS_MIN`] requests come
    /// last.
    pub(crate) fn highest(&self, limit: usize) -> Vec<TenantRate> {
        let mut all = self.all(Instant::now());
        let order = |rate: &TenantRate| (rate.requests >= REQUESTS_MIN, rate.rate());
        all.sort_by(|one, other| {
            let ((one_counts, one_rate), (other_counts, other_rate)) = (order(one), order(other));
            let by_rate = other_counts.cmp(&one_counts).then(other_rate.total_cmp(&one_rate));
            by_rate.then(other.requests.cmp(&one.requests)).then(one.tenant.cmp(&other.tenant))
        });
        all.truncate(limit);
        all
    }

    /// Returns how many tenants are above the allowed rate.
    pub(crate) fn above_allowed(&self) -> usize {
        let is_above = |rate: &&TenantRate| rate.requests >= REQUESTS_MIN && rate.rate() > self.allowed;
        self.all(Instant::now()).iter().filter(is_above).count()
    }

    fn all(&self, now: Instant) -> Vec<TenantRate> {
        let mut windows = self.windows.lock();
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
    /// Starts a new window if the current one has ended.
    fn turn(&mut self, now: Instant) {
        let age = now.saturating_duration_since(self.since);
        if age >= WINDOW {
            let current = std::mem::take(&mut self.current);
            self.last = if age < 2 * WINDOW { current } else { HashMap::new() };
            self.since = now;
        }
    }

    /// Starts to count a tenant, in place of the lightest one if all slots are taken.
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

/// Length of a window: long enough for a rate to mean something, short enough to be about now.
const WINDOW: Duration = Duration::from_secs(300);

/// Tenants that are counted at once: a few hundred kilobytes, and one pass over all of them takes microseconds.
const TENANTS_MAX: usize = 512;

/// Requests that a rate needs: fewer say nothing about a tenant.
const REQUESTS_MIN: u64 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> Tenant {
        Tenant::new(name).unwrap()
    }

    #[test]
    fn quiet_tenants_never_push_out_a_busy_one() {
        let (tenants, now) = (DuplicateRates::new(0.5), Instant::now());
        for round in 0..10_000 {
            tenants.count_request(&tenant(&format!("quiet-{round}")), Arrival::First, now);
            if round % 4 == 0 {
                let arrival = if round % 8 == 0 { Arrival::Duplicate } else { Arrival::First };
                tenants.count_request(&tenant("busy"), arrival, now);
            }
        }
        let all = tenants.all(now);
        assert_eq!(all.len(), TENANTS_MAX);
        let busy = all.iter().find(|rate| rate.tenant == tenant("busy")).expect("it is followed");
        // It may have been replaced in the beginning, while all tenants were light.
        assert!(busy.requests > 2000, "{busy:?}");
        assert!((busy.rate() - 0.5).abs() < 0.01, "{busy:?}");
    }

    #[test]
    fn old_requests_no_longer_count() {
        let (tenants, now) = (DuplicateRates::new(0.5), Instant::now());
        tenants.count_request(&tenant("a"), Arrival::Misuse, now);
        tenants.count_request(&tenant("a"), Arrival::First, now + WINDOW);
        let both = TenantRate { tenant: tenant("a"), requests: 2, duplicates: 1, misused: 1 };
        assert_eq!(tenants.all(now + WINDOW), [both]);
        assert_eq!(tenants.all(now + 2 * WINDOW).iter().map(|rate| rate.duplicates).sum::<u64>(), 0);
        assert_eq!(tenants.all(now + 5 * WINDOW), []);
    }
}
