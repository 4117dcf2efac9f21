//! Names of all metrics and spans. No label is a key, a tenant or a path.

use ibid_core::change::Draft;
use ibid_core::record::ErrorCode;
use ibid_core::scope::RecordId;
use metrics::{Key, Level, Metadata, SharedString, counter, with_recorder};

/// Counts and logs an outcome that became unknown. The log names the record, its route and its trace, and never a key, a
/// tenant or a path.
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

/// Records the duration of a step, in seconds. Every request records some, so the keys are built once.
pub(crate) fn record_seconds(step: &'static Key, seconds: f64) {
    with_recorder(|recorder| recorder.register_histogram(step, &METADATA)).record(seconds);
}

/// The origin of these metrics, for the recorder.
pub(crate) static METADATA: Metadata<'static> =
    Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

/// Key of the histogram of begins.
pub(crate) static BEGIN_TOOK: Key = Key::from_static_name(BEGIN_SECONDS);
/// Key of the histogram of finishes.
pub(crate) static FINISH_TOOK: Key = Key::from_static_name(FINISH_SECONDS);
/// Key of the histogram of duplicates that wait.
pub(crate) static WAIT_TOOK: Key = Key::from_static_name(WAIT_SECONDS);

/// Span of a guarded request as a whole, in its client's trace.
pub const SPAN_REQUEST: &str = "ibid.request";
/// Span of the intake: tenant, key, body and fingerprint.
pub const SPAN_INTAKE: &str = "ibid.intake";
/// Span of the reservation of a key.
pub const SPAN_BEGIN: &str = "ibid.begin";
/// Span of the handler or upstream.
pub const SPAN_RUN: &str = "ibid.run";
/// Span of the write that ends the attempt.
pub const SPAN_FINISH: &str = "ibid.finish";
/// Span of the response to the client; that of a replay links to the first execution.
pub const SPAN_REPLY: &str = "ibid.reply";
/// Span of one try of an effect by a worker.
pub const SPAN_EFFECT: &str = "ibid.effect";

/// New keys that ran.
pub const RESERVE_CREATED: &str = "ibid_reserve_created_total";
/// Retries that got the stored response.
pub const RESERVE_REPLAY: &str = "ibid_reserve_replay_total";
/// Duplicates of a running request.
pub const RESERVE_IN_PROGRESS: &str = "ibid_reserve_in_progress_total";
/// Keys that were used with a different request.
pub const RESERVE_KEY_MISUSE: &str = "ibid_reserve_key_misuse_total";
/// Released keys that ran again.
pub const RESERVE_FAILED_RETRY: &str = "ibid_reserve_failed_retry_total";
/// Retries of a request whose outcome is unknown.
pub const RESERVE_UNKNOWN: &str = "ibid_reserve_unknown_total";
/// Retries of an expired key, or of a request whose response was not stored.
pub const RESERVE_GONE: &str = "ibid_reserve_gone_total";
/// Requests that were refused because the store did not answer.
pub const RESERVE_UNAVAILABLE: &str = "ibid_reserve_unavailable_total";
/// Requests without a key that passed unguarded.
pub const WITHOUT_KEY: &str = "ibid_without_key_total";
/// Store calls that failed.
pub const STORE_ERRORS: &str = "ibid_store_errors_total";
/// Leases of attempts that lapsed.
pub const ZOMBIE_KEYS: &str = "ibid_zombie_keys_total";
/// Rows that the reaper removed.
pub const RETENTION_PRUNED: &str = "ibid_retention_pruned_total";
/// Responses sent although their record was not written in time.
pub const NOT_STORED: &str = "ibid_answers_not_stored_total";
/// Results that arrived after their record had changed without them.
pub const LATE_ANSWERS: &str = "ibid_late_answers_total";
/// Outcomes that became unknown.
pub const UNKNOWN: &str = "ibid_unknown_total";
/// Unknown outcomes that expired after `unknown_retention`.
pub const UNKNOWN_EXPIRED: &str = "ibid_unknown_expired_total";
/// `Ibid-Outcome` fields that were ignored.
pub const OUTCOME_IGNORED: &str = "ibid_outcome_ignored_total";
/// Effects put into the outbox.
pub const EFFECTS_ENQUEUED: &str = "ibid_effects_enqueued_total";
/// Effects that were carried out.
pub const EFFECTS_DONE: &str = "ibid_effects_done_total";
/// Tries of effects that are followed by another.
pub const EFFECTS_RETRIED: &str = "ibid_effects_retried_total";
/// Effects that became dead letters.
pub const EFFECTS_DEAD: &str = "ibid_effects_dead_total";
/// Claims on effects that were lost to another worker.
pub const EFFECTS_LOST: &str = "ibid_effects_lost_total";
/// Webhooks by source and outcome.
pub const HOOKS: &str = "ibid_hooks_total";
/// Lookups of unknown records.
pub const RECONCILE_SCHEDULED: &str = "ibid_reconcile_scheduled_total";
/// Lookups that settled their record.
pub const RECONCILE_RESOLVED: &str = "ibid_reconcile_resolved_total";
/// Lookups that gave no result.
pub const RECONCILE_FAILED: &str = "ibid_reconcile_failed_total";
/// Number of records by state.
pub const RECORDS: &str = "ibid_records";
/// Records and effects that need an operator, by kind.
pub const DEAD_LETTERS: &str = "ibid_dead_letters";
/// Age of the oldest row that the reaper could have removed: how far it is behind.
pub const REAP_BEHIND: &str = "ibid_reap_behind_seconds";
/// Age of the oldest unknown outcome.
pub const OLDEST_UNKNOWN: &str = "ibid_oldest_unknown_seconds";
/// State of the circuit breaker: 1 while begins are refused because the store does not answer.
pub const BREAKER_OPEN: &str = "ibid_breaker_open";
/// Tenants that send more duplicates than is allowed.
pub const TENANTS_ABOVE: &str = "ibid_tenants_above_duplicate_rate";
/// Unix time of a chore's last success.
pub const CHORE_LAST_RUN: &str = "ibid_chore_last_run_seconds";
/// Differences between our ledger and a provider's, as of the last comparison.
pub const LEDGER_DIFFERENCES: &str = "ibid_ledger_differences";
/// Used part of a gateway limit.
pub const LIMIT_USED: &str = "ibid_limit_used";
/// Value of a gateway limit.
pub const LIMIT_MAX: &str = "ibid_limit_max";
/// Number of times that a gateway limit was reached.
pub const LIMIT_REACHED: &str = "ibid_limit_reached_total";
/// Duration of a begin.
pub const BEGIN_SECONDS: &str = "ibid_begin_seconds";
/// Duration of a finish.
pub const FINISH_SECONDS: &str = "ibid_finish_seconds";
/// Duration of a duplicate's wait.
pub const WAIT_SECONDS: &str = "ibid_wait_seconds";
/// Run time of the handler or upstream.
pub const RUN_SECONDS: &str = "ibid_run_seconds";

/// Name, kind and meaning of every metric, for the reference page and the exporter.
pub const METRICS: &[(&str, &str, &str)] = &[
    (RESERVE_CREATED, "counter", "new keys that ran"),
    (RESERVE_REPLAY, "counter", "retries that got the stored response"),
    (RESERVE_IN_PROGRESS, "counter", "duplicates of a running request that got 409 or 202"),
    (RESERVE_KEY_MISUSE, "counter", "keys that were used with a different request (422)"),
    (RESERVE_FAILED_RETRY, "counter", "released keys that ran again"),
    (RESERVE_UNKNOWN, "counter", "retries of a request whose outcome is unknown"),
    (RESERVE_GONE, "counter", "retries of an expired key, or of a request whose response was not stored"),
    (RESERVE_UNAVAILABLE, "counter", "requests refused because their key could not be reserved (503)"),
    (WITHOUT_KEY, "counter", "requests without a key that passed unguarded, by route"),
    (STORE_ERRORS, "counter", "store calls that failed"),
    (ZOMBIE_KEYS, "counter", "leases that lapsed"),
    (RETENTION_PRUNED, "counter", "rows removed after retention and tombstone"),
    (NOT_STORED, "counter", "responses sent although their record could not be written within finish_wait"),
    (
        LATE_ANSWERS,
        "counter",
        "results of an attempt, an effect or a webhook that arrived after their record had changed without them",
    ),
    (
        UNKNOWN,
        "counter",
        "outcomes that became unknown, by route and cause: timed_out, reset, status_500 and so on, lapsed, effect_dead",
    ),
    (UNKNOWN_EXPIRED, "counter", "unknown outcomes that expired after unknown_retention, by route"),
    (
        OUTCOME_IGNORED,
        "counter",
        "`Ibid-Outcome` fields of the upstream that were ignored, by route and why: unknown_value, repeated, retried, trailer",
    ),
    (EFFECTS_ENQUEUED, "counter", "effects put into the outbox"),
    (EFFECTS_DONE, "counter", "effects carried out"),
    (EFFECTS_RETRIED, "counter", "tries of an effect that did not carry it out and are followed by another"),
    (EFFECTS_DEAD, "counter", "effects that ended dead, or unknown with no lookup left"),
    (
        EFFECTS_LOST,
        "counter",
        "claims on an effect that were lost to another process; the result was not recorded",
    ),
    (
        HOOKS,
        "counter",
        "webhooks, by source and outcome: accepted, early, premature, stale, known, contradicts, duplicate, ignored, \
         unreadable, refused, failed",
    ),
    (RECONCILE_SCHEDULED, "counter", "lookups of the outcome of an unknown record"),
    (RECONCILE_RESOLVED, "counter", "lookups after which the outcome was known"),
    (
        RECONCILE_FAILED,
        "counter",
        "lookups without a result: no answer, or one that says neither executed nor not executed",
    ),
    (RECORDS, "gauge", "records, by state"),
    (
        DEAD_LETTERS,
        "gauge",
        "records and effects that need an operator, by kind: records, effects. A record counts from when its outcome \
         became unknown; lists show it once its attempt's time (upstream_timeout and linger) is over",
    ),
    (
        OLDEST_UNKNOWN,
        "gauge",
        "seconds since the run whose outcome is unknown for longest began, 0 if no outcome is unknown",
    ),
    (
        REAP_BEHIND,
        "gauge",
        "seconds by which the reaper is behind: the age of the oldest row that it could have removed",
    ),
    (BREAKER_OPEN, "gauge", "1 while begins are refused because the store does not answer"),
    (
        TENANTS_ABOVE,
        "gauge",
        "tenants whose share of duplicates is above the limit (`upkeep.duplicate_percent`), as seen by this process",
    ),
    (CHORE_LAST_RUN, "gauge", "Unix time at which a chore last succeeded, by chore"),
    (
        LEDGER_DIFFERENCES,
        "gauge",
        "differences from a provider's ledger in the last comparison, by source and kind",
    ),
    (LIMIT_USED, "gauge", "used part of a gateway limit, by limit: the key of `[server]` that sets it"),
    (LIMIT_MAX, "gauge", "value of a gateway limit, fitted to the limit of open files, by limit"),
    (
        LIMIT_REACHED,
        "counter",
        "how often a gateway limit refused or ended something or made it wait, by limit",
    ),
    (BEGIN_SECONDS, "histogram", "duration of a begin"),
    (FINISH_SECONDS, "histogram", "duration of a finish"),
    (WAIT_SECONDS, "histogram", "time that a duplicate waited"),
    (RUN_SECONDS, "histogram", "run time of the handler or upstream, by route and by how it ended"),
];
