//! Records, effects and history as the API shows them. Payloads and bodies are not shown, because they belong to the clients.

use ibid_core::change::{HistoryLine, StoredRecord};
use ibid_core::effect::StoredEffect;
use ibid_core::time::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::dto::{EffectWord, StateWord};

/// A record with its details.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Record)]
pub(crate) struct RecordView {
    /// Full id, 32 hex digits. Requests may use the first 4 or more.
    id: String,
    /// State of the record.
    state: StateWord,
    /// `true` if the record needs an operator.
    dead_letter: bool,
    /// `success` or `error`, once the record is completed.
    outcome: Option<&'static str>,
    /// HTTP status of the response.
    status: Option<u16>,
    /// `true` if the response is stored for replay.
    retained: bool,
    /// `true` if an effect owes the response.
    owed: bool,
    /// `true` if the request was accepted to run later.
    #[serde(rename = "async")]
    asynchronous: bool,
    /// Number of attempts so far.
    attempt: u32,
    tenant: String,
    method: String,
    path: String,
    key: String,
    /// Version of the last write. An action that names it is refused if the record has changed since.
    version: String,
    /// Number of the last committed phase.
    recovery_point: u16,
    created_at: String,
    /// Start of the last attempt.
    ran_at: Option<String>,
    /// End of the lease, next lookup or deadline of a pending request, depending on the state.
    due_at: Option<String>,
    completed_at: Option<String>,
    /// End of replay: the record expires.
    expires_at: Option<String>,
    /// Time at which the row is removed.
    purge_at: Option<String>,
    /// Reason that the last attempt did not complete.
    last_error: Option<&'static str>,
    /// The provider's id of the operation.
    provider_id: Option<String>,
    /// Number of lapsed leases.
    lapses: u32,
    /// Number of lookups by a reconciler.
    tries: u32,
    /// Trace id of the first execution.
    trace: Option<String>,
}

impl RecordView {
    pub(crate) fn of(stored: &StoredRecord) -> RecordView {
        let record = &stored.record;
        let (identity, note) = (&record.identity, &record.note);
        RecordView {
            id: record.id.to_string(),
            state: StateWord(record.state),
            dead_letter: record.is_dead_letter(stored.now),
            outcome: record.outcome(),
            status: note.status,
            retained: !record.flags.not_retained,
            owed: record.flags.owed,
            asynchronous: record.flags.asynchronous,
            attempt: record.attempt,
            tenant: identity.tenant.as_str().to_owned(),
            method: identity.operation.method.to_string(),
            path: identity.operation.path.to_string(),
            key: identity.key.as_str().to_owned(),
            version: format!("{}:{:016x}", record.version.count, record.version.nonce.0),
            recovery_point: record.point,
            created_at: rfc3339(record.created_at),
            ran_at: record.ran_at.map(rfc3339),
            due_at: record.due_at.map(rfc3339),
            completed_at: record.completed_at.map(rfc3339),
            expires_at: record.expires_at.map(rfc3339),
            purge_at: record.purge_at.map(rfc3339),
            last_error: note.last_error.map(|error| error.name()),
            provider_id: note.provider_id.clone(),
            lapses: note.lapses,
            tries: note.tries,
            trace: note.trace.clone(),
        }
    }
}

/// One line of a record's history.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = History)]
pub(crate) struct HistoryView {
    at: String,
    /// `lapse`, `takeover`, `unknown`, `reconcile try`, `late answer`, `settled` or `operator`.
    what: &'static str,
    /// Description. For an operator's action: what, before, after, who and why.
    detail: String,
}

impl HistoryView {
    pub(crate) fn of(line: &HistoryLine) -> HistoryView {
        HistoryView { at: rfc3339(line.at), what: line.what.name(), detail: line.detail.clone() }
    }
}

/// An effect: a call to another service, made or still to be made.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Effect)]
pub(crate) struct EffectView {
    /// Position in the outbox, which identifies the effect.
    seq: i64,
    /// Id of the record that enqueued the effect. The record may have been removed.
    record: String,
    tenant: String,
    /// Name of the effect within its record.
    name: String,
    /// Kind, which selects the handler.
    kind: String,
    state: EffectWord,
    /// Number of tries so far.
    tries: u32,
    /// Next try, end of the claim or next verification, depending on the state.
    due_at: Option<String>,
    created_at: String,
    /// Time just before the first call.
    called_at: Option<String>,
    done_at: Option<String>,
    /// Effects with the same aggregate run one after the other.
    aggregate: Option<String>,
    /// Key that the provider gets, the same for every try.
    downstream_key: String,
    /// `true` if the effect owes its record the response.
    owes: bool,
    /// `true` if a call now may be executed a second time, because the provider may have forgotten the key.
    may_be_second: bool,
    provider_id: Option<String>,
    last_error: Option<String>,
}

impl EffectView {
    pub(crate) fn of(effect: &StoredEffect) -> EffectView {
        EffectView {
            seq: effect.seq,
            record: effect.record.to_string(),
            tenant: effect.tenant.clone(),
            name: effect.name.clone(),
            kind: effect.kind.clone(),
            state: EffectWord(effect.state),
            tries: effect.tries,
            due_at: effect.due_at.map(rfc3339),
            created_at: rfc3339(effect.created_at),
            called_at: effect.called_at.map(rfc3339),
            done_at: effect.done_at.map(rfc3339),
            aggregate: effect.aggregate.clone(),
            downstream_key: effect.downstream_key.clone(),
            owes: effect.owes,
            may_be_second: effect.may_be_second(),
            provider_id: effect.provider_id.clone(),
            last_error: effect.last_error.clone(),
        }
    }
}

/// Formats an instant as the API writes it, to the millisecond: enough to compare with a log, short enough for a table.
pub fn rfc3339(at: Timestamp) -> String {
    match jiff::Timestamp::from_microsecond(at.as_micros()) {
        Ok(instant) => format!("{instant:.3}"),
        // A saturated sum, past the year 9999.
        Err(_) => "never".to_owned(),
    }
}
