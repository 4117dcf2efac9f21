//! Records, effects and history as the API shows them. Payloads and bodies are not shown: they are the clients'.

use ibid_core::change::{History, StoredRecord};
use ibid_core::effect::StoredEffect;
use ibid_core::time::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::dto::{EffectWord, StateWord};

/// A record.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Record)]
pub(crate) struct RecordView {
    /// Its id in full, 64 hex digits; elsewhere the first 4 or more will do.
    id: String,
    /// Where it stands.
    state: StateWord,
    /// Whether a person must look at it.
    dead_letter: bool,
    /// `success` or `error`, once it is completed.
    outcome: Option<&'static str>,
    /// The status of its answer.
    status: Option<u16>,
    /// Whether its answer is kept for replay.
    retained: bool,
    /// Whether its answer is owed by an effect.
    owed: bool,
    /// Whether it was accepted to be run later.
    #[serde(rename = "async")]
    asynchronous: bool,
    /// How many attempts there were.
    attempt: u32,
    tenant: String,
    method: String,
    path: String,
    key: String,
    /// Names the last write. An act may name it, and is then refused if the record has changed since.
    version: String,
    /// The last phase committed.
    recovery_point: u16,
    created_at: String,
    /// When the last attempt began.
    ran_at: Option<String>,
    /// Lease end, next reconciliation or pending deadline, by state.
    due_at: Option<String>,
    completed_at: Option<String>,
    /// When replay ends.
    expires_at: Option<String>,
    /// When the row goes.
    purge_at: Option<String>,
    /// Why the last attempt did not complete.
    last_error: Option<&'static str>,
    /// The provider's own id of what was done.
    provider_id: Option<String>,
    /// How often its lease lapsed.
    lapses: u32,
    /// How often a reconciler has asked.
    tries: u32,
    /// The trace id of the first execution.
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
    /// In words; of an operator's act: what, before, after, who and why.
    detail: String,
}

impl HistoryView {
    pub(crate) fn of((at, line): &(Timestamp, History)) -> HistoryView {
        HistoryView { at: rfc3339(*at), what: line.what.name(), detail: line.detail.clone() }
    }
}

/// An effect: a call to the outside, still to be made or made.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Effect)]
pub(crate) struct EffectView {
    /// Its place in the outbox, by which it is named.
    seq: i64,
    /// The record that asked for it, which may be gone.
    record: String,
    tenant: String,
    /// Its name within the record.
    name: String,
    /// Which handler carries it out.
    kind: String,
    state: EffectWord,
    /// How often it was tried.
    tries: u32,
    /// Next try, end of the claim or next verification, by state.
    due_at: Option<String>,
    created_at: String,
    /// When the first call was about to be made.
    called_at: Option<String>,
    done_at: Option<String>,
    /// What it is kept in order with.
    aggregate: Option<String>,
    /// The key that the provider is given, the same at every try.
    downstream_key: String,
    /// Whether the record's answer waits for it.
    owes: bool,
    /// Whether calling now may do it a second time, for the provider may have forgotten the key.
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

/// An instant as the API writes it, to the millisecond: enough to compare with a log, short enough for a table.
pub fn rfc3339(at: Timestamp) -> String {
    match jiff::Timestamp::from_microsecond(at.as_micros()) {
        Ok(instant) => format!("{instant:.3}"),
        // A saturated sum: past the year 9999.
        Err(_) => "never".to_owned(),
    }
}
