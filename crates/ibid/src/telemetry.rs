//! Every metric and span name, in one table. Labels are route, profile and outcome: never a key, a tenant or a path.

use std::sync::Arc;

use ibid_core::change::Draft;
use ibid_core::policy::Profile;
use ibid_core::proof::IgnoredProof;
use ibid_core::record::ErrorCode;
use ibid_core::scope::RecordId;
use metrics::{Key, Label, Level, Metadata, SharedString, counter, histogram, with_recorder};

/// What a request met, for the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReserveOutcome {
    /// A new key: the handler runs.
    Created,
    /// A stored answer.
    Replay,
    /// Somebody at work.
    InProgress,
    /// The key of another request.
    KeyMisuse,
    /// A free key: the handler runs again.
    FailedRetry,
    /// An unknown outcome.
    Unknown,
    /// A record that has expired or whose answer was not kept.
    Gone,
    /// A store that did not answer: nothing was reserved.
    Unavailable,
}

impl ReserveOutcome {
    /// In the order of their declaration.
    const ALL: [ReserveOutcome; 8] = [
        ReserveOutcome::Created,
        ReserveOutcome::Replay,
        ReserveOutcome::InProgress,
        ReserveOutcome::KeyMisuse,
        ReserveOutcome::FailedRetry,
        ReserveOutcome::Unknown,
        ReserveOutcome::Gone,
        ReserveOutcome::Unavailable,
    ];

    fn metric(self) -> &'static str {
        match self {
            ReserveOutcome::Created => RESERVE_CREATED,
            ReserveOutcome::Replay => RESERVE_REPLAY,
            ReserveOutcome::InProgress => RESERVE_IN_PROGRESS,
            ReserveOutcome::KeyMisuse => RESERVE_KEY_MISUSE,
            ReserveOutcome::FailedRetry => RESERVE_FAILED_RETRY,
            ReserveOutcome::Unknown => RESERVE_UNKNOWN,
            ReserveOutcome::Gone => RESERVE_GONE,
            ReserveOutcome::Unavailable => RESERVE_UNAVAILABLE,
        }
    }
}

/// The reserve counters of one route. Every request counts one of them, so their names and labels are made once.
#[derive(Clone, Debug)]
pub struct RouteCounters(Arc<[Key; ReserveOutcome::ALL.len()]>);

impl RouteCounters {
    /// Makes the counters of a route.
    pub fn new(route: &Arc<str>, profile: Profile) -> RouteCounters {
        let labels = || {
            let route = SharedString::from_shared(route.clone());
            vec![Label::new("route", route), Label::new("profile", profile_name(profile))]
        };
        RouteCounters(Arc::new(ReserveOutcome::ALL.map(|met| Key::from_parts(met.metric(), labels()))))
    }

    /// Counts a request of this route.
    pub fn count(&self, met: ReserveOutcome) {
        let key = &self.0[met as usize];
        with_recorder(|recorder| recorder.register_counter(key, &METADATA)).increment(1);
    }
}

/// Shows what has not happened yet as zero: to who watches a counter grow, one that begins at 1 has not grown.
pub fn init_reserve_counters<'a>(routes: impl Iterator<Item = (&'a Arc<str>, Profile)>) {
    for (route, profile) in routes {
        for met in ReserveOutcome::ALL {
            let route = SharedString::from_shared(route.clone());
            counter!(met.metric(), "route" => route, "profile" => profile_name(profile)).increment(0);
        }
    }
    for name in [STORE_ERRORS, ZOMBIE_KEYS, RETENTION_PRUNED, NOT_STORED, LATE_ANSWERS] {
        counter!(name).increment(0);
    }
}

/// Shows the routes on which keys are optional, and counts `requests` that passed one of them unguarded.
pub fn without_key(route: &Arc<str>, requests: u64) {
    let route = SharedString::from_shared(route.clone());
    counter!(WITHOUT_KEY, "route" => route).increment(requests);
}

/// How long the handler or upstream took, in seconds, and how it ended.
pub fn record_run(route: &Arc<str>, outcome: &'static str, seconds: f64) {
    let route = SharedString::from_shared(route.clone());
    histogram!(RUN_SECONDS, "route" => route, "outcome" => outcome).record(seconds);
}

/// Counts and logs an outcome that became unknown. The log names the record and its trace, and never a key, a tenant or a
/// path.
pub(crate) fn became_unknown(id: &RecordId, draft: &Draft) {
    let route = draft.policy.route.clone().unwrap_or_else(|| "*".to_owned());
    let cause = match (draft.note.last_error, draft.note.unproven) {
        (_, Some(status)) => SharedString::from(format!("status_{status}")),
        (Some(ErrorCode::Broken), None) => "reset".into(),
        (Some(error), None) => error.name().into(),
        (None, None) => "lapsed".into(),
    };
    tracing::warn!(
        record = %id.short(),
        %route,
        method = %draft.identity.operation.method,
        %cause,
        dead_letter = draft.flags.dead_letter,
        trace = draft.note.trace_id(),
        "an outcome is unknown"
    );
    counter!(UNKNOWN, "route" => route, "cause" => cause).increment(1);
}

/// Counts an `Ibid-Outcome` that was not believed.
pub fn outcome_ignored(route: &Arc<str>, why: IgnoredProof) {
    let route = SharedString::from_shared(route.clone());
    counter!(OUTCOME_IGNORED, "route" => route, "why" => why.name()).increment(1);
}

/// Counts a webhook. The source is a configured name, or `-`.
pub fn count_hook(source: &str, outcome: &'static str) {
    counter!(HOOKS, "source" => source.to_owned(), "outcome" => outcome).increment(1);
}

/// How long a step took, in seconds. It happens to each request, so the key of each step is made beforehand.
pub fn record_seconds(step: &'static Key, seconds: f64) {
    with_recorder(|recorder| recorder.register_histogram(step, &METADATA)).record(seconds);
}

/// Where these metrics are recorded from.
static METADATA: Metadata<'static> = Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

/// A begin.
pub static BEGIN_TOOK: Key = Key::from_static_name(BEGIN_SECONDS);
/// A finish.
pub static FINISH_TOOK: Key = Key::from_static_name(FINISH_SECONDS);
/// The wait of a duplicate.
pub static WAIT_TOOK: Key = Key::from_static_name(WAIT_SECONDS);

/// The word for a profile in labels and configuration.
pub fn profile_name(profile: Profile) -> &'static str {
    match profile {
        Profile::Ietf => "ietf",
        Profile::Stripe => "stripe",
        Profile::Repeatability => "repeatability",
    }
}

/// Span of a guarded request as a whole, in its client's trace.
pub const SPAN_REQUEST: &str = "ibid.request";
/// Span of stop 2: tenant, key, body and fingerprint.
pub const SPAN_INTAKE: &str = "ibid.intake";
/// Span of stops 3 and 4: the reservation.
pub const SPAN_BEGIN: &str = "ibid.begin";
/// Span of the handler or upstream.
pub const SPAN_RUN: &str = "ibid.run";
/// Span of stop 5: the end of the Attempt.
pub const SPAN_FINISH: &str = "ibid.finish";
/// Span of what the client is told; a replay's links to the first execution.
pub const SPAN_REPLY: &str = "ibid.reply";
/// Span of one try of an Effect by a worker.
pub const SPAN_EFFECT: &str = "ibid.effect";

/// A new key ran.
pub const RESERVE_CREATED: &str = "ibid_reserve_created_total";
/// A stored answer was given.
pub const RESERVE_REPLAY: &str = "ibid_reserve_replay_total";
/// A duplicate met a running request.
pub const RESERVE_IN_PROGRESS: &str = "ibid_reserve_in_progress_total";
/// A key came with another request.
pub const RESERVE_KEY_MISUSE: &str = "ibid_reserve_key_misuse_total";
/// A free key ran again.
pub const RESERVE_FAILED_RETRY: &str = "ibid_reserve_failed_retry_total";
/// A retry met an unknown outcome.
pub const RESERVE_UNKNOWN: &str = "ibid_reserve_unknown_total";
/// A retry met an expired record or an answer that was not kept.
pub const RESERVE_GONE: &str = "ibid_reserve_gone_total";
/// The store did not answer, and the request was refused.
pub const RESERVE_UNAVAILABLE: &str = "ibid_reserve_unavailable_total";
/// A request without a key passed unguarded.
pub const WITHOUT_KEY: &str = "ibid_without_key_total";
/// The store failed.
pub const STORE_ERRORS: &str = "ibid_store_errors_total";
/// Leases that lapsed.
pub const ZOMBIE_KEYS: &str = "ibid_zombie_keys_total";
/// Rows removed after their time.
pub const RETENTION_PRUNED: &str = "ibid_retention_pruned_total";
/// Answers given although their record could not be written in time.
pub const NOT_STORED: &str = "ibid_answers_not_stored_total";
/// Answers that came after their record had gone on.
pub const LATE_ANSWERS: &str = "ibid_late_answers_total";
/// Outcomes that became unknown.
pub const UNKNOWN: &str = "ibid_unknown_total";
/// Unknown outcomes that expired after `unknown_retention`.
pub const UNKNOWN_EXPIRED: &str = "ibid_unknown_expired_total";
/// `Ibid-Outcome` fields that were not believed.
pub const OUTCOME_IGNORED: &str = "ibid_outcome_ignored_total";
/// Effects put into the outbox.
pub const EFFECTS_ENQUEUED: &str = "ibid_effects_enqueued_total";
/// Effects carried out.
pub const EFFECTS_DONE: &str = "ibid_effects_done_total";
/// Effects that are tried again.
pub const EFFECTS_RETRIED: &str = "ibid_effects_retried_total";
/// Effects that a person must look at.
pub const EFFECTS_DEAD: &str = "ibid_effects_dead_total";
/// Claims on Effects that were lost to another worker.
pub const EFFECTS_LOST: &str = "ibid_effects_lost_total";
/// Webhooks by source and outcome.
pub const HOOKS: &str = "ibid_hooks_total";
/// Questions about unknown records.
pub const RECONCILE_SCHEDULED: &str = "ibid_reconcile_scheduled_total";
/// Questions that settled their record.
pub const RECONCILE_RESOLVED: &str = "ibid_reconcile_resolved_total";
/// Questions that taught nothing.
pub const RECONCILE_FAILED: &str = "ibid_reconcile_failed_total";
/// Records by state.
pub const RECORDS: &str = "ibid_records";
/// Records and Effects that a person must look at, by kind.
pub const DEAD_LETTERS: &str = "ibid_dead_letters";
/// Age of the oldest unknown outcome.
pub const OLDEST_UNKNOWN: &str = "ibid_oldest_unknown_seconds";
/// Whether begins are refused because the store does not answer.
pub const BREAKER_OPEN: &str = "ibid_breaker_open";
/// Tenants that send more duplicates than is allowed.
pub const TENANTS_ABOVE: &str = "ibid_tenants_above_duplicate_rate";
/// Unix time of a chore's last success.
pub const CHORE_LAST_RUN: &str = "ibid_chore_last_run_seconds";
/// Differences between our books and a provider's, as of the last comparison.
pub const LEDGER_DIFFERENCES: &str = "ibid_ledger_differences";
/// Used part of a bound of the gateway.
pub const LIMIT_USED: &str = "ibid_limit_used";
/// A bound of the gateway.
pub const LIMIT_MAX: &str = "ibid_limit_max";
/// How often a bound of the gateway was reached.
pub const LIMIT_REACHED: &str = "ibid_limit_reached_total";
/// Time of a begin.
pub const BEGIN_SECONDS: &str = "ibid_begin_seconds";
/// Time of a finish.
pub const FINISH_SECONDS: &str = "ibid_finish_seconds";
/// Time that a duplicate was held.
pub const WAIT_SECONDS: &str = "ibid_wait_seconds";
/// Time of the handler or upstream.
pub const RUN_SECONDS: &str = "ibid_run_seconds";

/// Name, kind and meaning of every metric, for the reference page and the exporter.
pub const METRICS: &[(&str, &str, &str)] = &[
    (RESERVE_CREATED, "counter", "new keys that were run"),
    (RESERVE_REPLAY, "counter", "retries answered with the stored answer"),
    (RESERVE_IN_PROGRESS, "counter", "duplicates of a running request that were refused"),
    (RESERVE_KEY_MISUSE, "counter", "keys that came with another request (422)"),
    (RESERVE_FAILED_RETRY, "counter", "free keys that were run again"),
    (RESERVE_UNKNOWN, "counter", "retries that met an unknown outcome"),
    (RESERVE_GONE, "counter", "retries that met an expired key or an answer that was not kept"),
    (RESERVE_UNAVAILABLE, "counter", "requests refused because their key could not be reserved (503)"),
    (WITHOUT_KEY, "counter", "requests without a key that passed unguarded, by route"),
    (STORE_ERRORS, "counter", "calls of the store that failed"),
    (ZOMBIE_KEYS, "counter", "leases that lapsed"),
    (RETENTION_PRUNED, "counter", "rows removed after retention and tombstone"),
    (NOT_STORED, "counter", "answers given although their record could not be written within finish_wait"),
    (LATE_ANSWERS, "counter", "answers that came after their record had gone on"),
    (
        UNKNOWN,
        "counter",
        "outcomes that became unknown, by route and cause: timed_out, reset, status_500 and so on, lapsed, effect_dead",
    ),
    (UNKNOWN_EXPIRED, "counter", "unknown outcomes that expired after unknown_retention, by route"),
    (
        OUTCOME_IGNORED,
        "counter",
        "`Ibid-Outcome` fields of the upstream that were not believed, by route and why: unknown_value, repeated, retried, \
         trailer",
    ),
    (EFFECTS_ENQUEUED, "counter", "effects put into the outbox"),
    (EFFECTS_DONE, "counter", "effects carried out"),
    (EFFECTS_RETRIED, "counter", "tries of an effect that did not carry it out and are followed by another"),
    (EFFECTS_DEAD, "counter", "effects that ended dead, or unknown with nobody left to ask"),
    (
        EFFECTS_LOST,
        "counter",
        "claims on an effect that were lost to another worker, with all that was to be written",
    ),
    (
        HOOKS,
        "counter",
        "webhooks, by source and outcome: accepted, early, premature, stale, known, contradicts, duplicate, ignored, \
         unreadable, refused, failed",
    ),
    (RECONCILE_SCHEDULED, "counter", "questions about the outcome of an unknown record"),
    (RECONCILE_RESOLVED, "counter", "questions after which the outcome was known"),
    (
        RECONCILE_FAILED,
        "counter",
        "questions that taught nothing: no answer, or one that says neither executed nor not executed",
    ),
    (RECORDS, "gauge", "records, by state"),
    (
        DEAD_LETTERS,
        "gauge",
        "what an operator must look at, by kind: records, effects. A record counts from when its outcome became unknown; \
         lists show it once its attempt's time (upstream_timeout and linger) is over",
    ),
    (
        OLDEST_UNKNOWN,
        "gauge",
        "seconds since the run whose outcome is unknown for longest began, 0 if no outcome is unknown",
    ),
    (BREAKER_OPEN, "gauge", "1 while begins are refused because the store does not answer"),
    (
        TENANTS_ABOVE,
        "gauge",
        "tenants whose part of duplicates is above the limit (`upkeep.duplicate_percent`), as this process saw them",
    ),
    (CHORE_LAST_RUN, "gauge", "Unix time at which a chore last succeeded, by chore"),
    (
        LEDGER_DIFFERENCES,
        "gauge",
        "differences from a provider's books in the last comparison, by source and kind",
    ),
    (
        LIMIT_USED,
        "gauge",
        "how much of a bound of the gateway is in use, by limit: the key of `[server]` that sets it",
    ),
    (LIMIT_MAX, "gauge", "a bound of the gateway as it is kept, fitted to the limit of open files, by limit"),
    (
        LIMIT_REACHED,
        "counter",
        "how often a bound of the gateway refused or ended something or made it wait, by limit",
    ),
    (BEGIN_SECONDS, "histogram", "time of a begin"),
    (FINISH_SECONDS, "histogram", "time of a finish"),
    (WAIT_SECONDS, "histogram", "time that a duplicate was held"),
    (RUN_SECONDS, "histogram", "time of the handler or upstream, by route and by how it ended"),
];
