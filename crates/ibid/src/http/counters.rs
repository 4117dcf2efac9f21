//! Counts and times requests by route, and webhooks by source.

use std::sync::Arc;

use ibid_core::policy::Profile;
use ibid_core::proof::IgnoredProof;
use metrics::{Key, Label, SharedString, counter, histogram, with_recorder};

use crate::telemetry::{
    HOOKS, LATE_ANSWERS, METADATA, NOT_STORED, OUTCOME_IGNORED, RESERVE_CREATED, RESERVE_FAILED_RETRY,
    RESERVE_GONE, RESERVE_IN_PROGRESS, RESERVE_KEY_MISUSE, RESERVE_REPLAY, RESERVE_UNAVAILABLE,
    RESERVE_UNKNOWN, RETENTION_PRUNED, RUN_SECONDS, STORE_ERRORS, WITHOUT_KEY, ZOMBIE_KEYS,
};

/// The result of reserving a request's key, for the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReserveOutcome {
    /// The key is new, and the handler runs.
    Created,
    /// The response is stored, and is replayed.
    Replay,
    /// Another attempt runs the request.
    InProgress,
    /// The key was used with a different request.
    KeyMisuse,
    /// The key was released, and the handler runs again.
    FailedRetry,
    /// The outcome of the request is unknown.
    Unknown,
    /// The record has expired, or its response was not stored.
    Gone,
    /// The store did not answer, and nothing was reserved.
    Unavailable,
}

/// The reserve counters of one route. Every request increments one of them, so their names and labels are built once.
#[derive(Clone, Debug)]
pub(crate) struct RouteCounters(Arc<[Key; RESERVE_METRICS.len()]>);

impl RouteCounters {
    /// Builds the counters of a route.
    pub(crate) fn new(route: &Arc<str>, profile: Profile) -> RouteCounters {
        let labels = || {
            let route = SharedString::from_shared(route.clone());
            vec![Label::new("route", route), Label::new("profile", profile.name())]
        };
        RouteCounters(Arc::new(RESERVE_METRICS.map(|name| Key::from_parts(name, labels()))))
    }

    /// Counts a request of this route.
    pub(crate) fn count(&self, outcome: ReserveOutcome) {
        let key = &self.0[outcome as usize];
        with_recorder(|recorder| recorder.register_counter(key, &METADATA)).increment(1);
    }
}

/// Exports the counters of these routes as zero before the first event: `increase()` does not see a counter that first
/// appears as 1.
pub(crate) fn init_reserve_counters<'a>(routes: impl Iterator<Item = (&'a Arc<str>, Profile)>) {
    for (route, profile) in routes {
        for name in RESERVE_METRICS {
            let route = SharedString::from_shared(route.clone());
            counter!(name, "route" => route, "profile" => profile.name()).increment(0);
        }
    }
    for name in [STORE_ERRORS, ZOMBIE_KEYS, RETENTION_PRUNED, NOT_STORED, LATE_ANSWERS] {
        counter!(name).increment(0);
    }
}

/// Counts `requests` that passed a route with optional keys unguarded. With zero it only exports the counter.
pub(crate) fn without_key(route: &Arc<str>, requests: u64) {
    let route = SharedString::from_shared(route.clone());
    counter!(WITHOUT_KEY, "route" => route).increment(requests);
}

/// Records the run time of the handler or upstream, in seconds, and how it ended.
pub(crate) fn record_run(route: &Arc<str>, outcome: &'static str, seconds: f64) {
    let route = SharedString::from_shared(route.clone());
    histogram!(RUN_SECONDS, "route" => route, "outcome" => outcome).record(seconds);
}

/// Counts an `Ibid-Outcome` that was ignored.
pub(crate) fn outcome_ignored(route: &Arc<str>, why: IgnoredProof) {
    let route = SharedString::from_shared(route.clone());
    counter!(OUTCOME_IGNORED, "route" => route, "why" => why.name()).increment(1);
}

/// Counts a webhook. The source is a configured name, or `-`.
pub(crate) fn count_hook(source: &str, outcome: &'static str) {
    counter!(HOOKS, "source" => source.to_owned(), "outcome" => outcome).increment(1);
}

/// The counters of [`ReserveOutcome`], in the order of its variants.
const RESERVE_METRICS: [&str; 8] = [
    RESERVE_CREATED,
    RESERVE_REPLAY,
    RESERVE_IN_PROGRESS,
    RESERVE_KEY_MISUSE,
    RESERVE_FAILED_RETRY,
    RESERVE_UNKNOWN,
    RESERVE_GONE,
    RESERVE_UNAVAILABLE,
];
