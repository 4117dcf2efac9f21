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
        "outcome unknown; retries are refused until it is settled"
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

/// Declares each metric as a constant with its name, and all of them in [`METRICS`].
macro_rules! metrics {
    ($($id:ident = $name:literal, $kind:literal, $meaning:literal;)*) => {
        $(#[doc = $meaning] pub const $id: &str = $name;)*

        /// Name, kind and meaning of every metric, for the reference page and the exporter.
        pub const METRICS: &[(&str, &str, &str)] = &[$(($id, $kind, $meaning)),*];
    };
}

metrics! {
    RESERVE_CREATED = "ibid_reserve_created_total", "counter", "new keys that ran";
    RESERVE_REPLAY = "ibid_reserve_replay_total", "counter", "retries that got the stored response";
    RESERVE_IN_PROGRESS = "ibid_reserve_in_progress_total", "counter", "duplicates of a running request that got 409 or 202";
    RESERVE_KEY_MISUSE = "ibid_reserve_key_misuse_total", "counter", "keys that were used with a different request (422)";
    RESERVE_FAILED_RETRY = "ibid_reserve_failed_retry_total", "counter", "released keys that ran again";
    RESERVE_UNKNOWN = "ibid_reserve_unknown_total", "counter", "retries of a request whose outcome is unknown";
    RESERVE_GONE = "ibid_reserve_gone_total", "counter",
        "retries of an expired key, or of a request whose response was not stored";
    RESERVE_UNAVAILABLE = "ibid_reserve_unavailable_total", "counter",
        "requests refused because their key could not be reserved (503)";
    WITHOUT_KEY = "ibid_without_key_total", "counter", "requests without a key that passed unguarded, by route";
    STORE_ERRORS = "ibid_store_errors_total", "counter", "store calls that failed";
    ZOMBIE_KEYS = "ibid_zombie_keys_total", "counter", "leases that lapsed";
    RETENTION_PRUNED = "ibid_retention_pruned_total", "counter", "rows removed after retention and tombstone";
    NOT_STORED = "ibid_answers_not_stored_total", "counter",
        "responses sent although their record could not be written within finish_wait";
    LATE_ANSWERS = "ibid_late_answers_total", "counter",
        "results of an attempt, an effect or a webhook that arrived after their record had changed without them";
    UNKNOWN = "ibid_unknown_total", "counter",
        "outcomes that became unknown, by route and cause: timed_out, reset, status_500 and so on, lapsed, \
         effect_dead";
    UNKNOWN_EXPIRED = "ibid_unknown_expired_total", "counter",
        "unknown outcomes that expired after unknown_retention, by route";
    OUTCOME_IGNORED = "ibid_outcome_ignored_total", "counter",
        "`Ibid-Outcome` fields of the upstream that were ignored, by route and why: unknown_value, repeated, \
         retried, trailer";
    EFFECTS_ENQUEUED = "ibid_effects_enqueued_total", "counter", "effects put into the outbox";
    EFFECTS_DONE = "ibid_effects_done_total", "counter", "effects carried out";
    EFFECTS_RETRIED = "ibid_effects_retried_total", "counter",
        "tries of an effect that did not carry it out and are followed by another";
    EFFECTS_DEAD = "ibid_effects_dead_total", "counter", "effects that ended dead, or unknown with no lookup left";
    EFFECTS_LOST = "ibid_effects_lost_total", "counter",
        "claims on an effect that were lost to another process; the result was not recorded";
    HOOKS = "ibid_hooks_total", "counter",
        "webhooks, by source and outcome: accepted, early, premature, stale, known, contradicts, duplicate, \
         ignored, unreadable, refused, failed";
    RECONCILE_SCHEDULED = "ibid_reconcile_scheduled_total", "counter", "lookups of the outcome of an unknown record";
    RECONCILE_RESOLVED = "ibid_reconcile_resolved_total", "counter", "lookups after which the outcome was known";
    RECONCILE_FAILED = "ibid_reconcile_failed_total", "counter",
        "lookups without a result: no answer, or one that says neither executed nor not executed";
    FRONT_LOOKUPS = "ibid_front_lookups_total", "counter",
        "looks for a completed response in the cache that nodes share, by outcome: hit, miss (also while it does \
         not answer), stale";
    FRONT_IGNORED = "ibid_front_ignored_total", "counter",
        "entries of that cache that this store did not make, or that were changed";
    FRONT_UP = "ibid_front_up", "gauge", "1 while the server of that cache answers, else 0; absent without one";
    RECORDS = "ibid_records", "gauge", "records, by state";
    RECORDS_ESTIMATED = "ibid_records_estimated", "gauge", "1 if `ibid_records` of that state comes from the database's statistics, 0 if the rows were counted";
    DEAD_LETTERS = "ibid_dead_letters", "gauge",
        "records and effects that need an operator, by kind: records, effects. A record counts from when its \
         outcome became unknown; lists show it once its attempt's time (upstream_timeout and linger) is over";
    OLDEST_UNKNOWN = "ibid_oldest_unknown_seconds", "gauge",
        "seconds since the run whose outcome is unknown for longest began, 0 if no outcome is unknown";
    REAP_BEHIND = "ibid_reap_behind_seconds", "gauge",
        "seconds by which the reaper is behind: the age of the oldest row that it could have removed";
    ATTEMPTS_REFUSED = "ibid_attempts_refused_total", "counter",
        "new keys refused because the process or the tenant runs too many attempts, by bound";
    UPKEEP_ELECTED = "ibid_upkeep_elected", "gauge",
        "1 on the node that does a group of chores, by group: sweep (sweeper and evidence; first at lookups), reap";
    CHORE_PANICS = "ibid_chore_panics_total", "counter", "rounds of a chore that panicked, by chore";
    BREAKER_OPEN = "ibid_breaker_open", "gauge", "1 while begins are refused because the store does not answer";
    TENANTS_ABOVE = "ibid_tenants_above_duplicate_rate", "gauge",
        "tenants whose share of duplicates is above the limit (`upkeep.duplicate_percent`), as seen by this process";
    CHORE_LAST_RUN = "ibid_chore_last_run_seconds", "gauge", "Unix time at which a chore last succeeded, by chore";
    LEDGER_DIFFERENCES = "ibid_ledger_differences", "gauge",
        "differences from a provider's ledger in the last comparison, by source and kind";
    LIMIT_USED = "ibid_limit_used", "gauge", "used part of a gateway limit, by limit: the key of `[server]` that sets it";
    LIMIT_MAX = "ibid_limit_max", "gauge", "value of a gateway limit, fitted to the limit of open files, by limit";
    LIMIT_REACHED = "ibid_limit_reached_total", "counter",
        "how often a gateway limit refused or ended something or made it wait, by limit";
    BEGIN_SECONDS = "ibid_begin_seconds", "histogram", "duration of a begin";
    FINISH_SECONDS = "ibid_finish_seconds", "histogram", "duration of a finish";
    WAIT_SECONDS = "ibid_wait_seconds", "histogram", "time that a duplicate waited";
    RUN_SECONDS = "ibid_run_seconds", "histogram", "run time of the handler or upstream, by route and by how it ended";
}
