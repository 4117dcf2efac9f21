//! The error of operator actions.

use ibid_core::change::{HistoryLine, StoredRecord};
use ibid_core::machine::EffectState;
use ibid_core::store::StoreError;

use super::RecordList;

/// Error of an operator's action, which was not done unless the variant says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OperatorError {
    /// No record has this id or id prefix.
    #[error("there is no such record")]
    NoSuchRecord,
    /// Several records have an id with this prefix.
    #[error("several records have an id with this prefix")]
    Ambiguous(RecordList),
    /// The record's state does not allow it; perhaps another action was first.
    #[error("the record is {}{}", state(.stored), last_line(.last))]
    NotNow {
        /// The record as it is now.
        stored: Box<StoredRecord>,
        /// The last entry of its history that settled it.
        last: Option<Box<HistoryLine>>,
    },
    /// The record has changed since the version that the operator saw.
    #[error("the record has changed since it was looked at: it is {}{}", state(.stored), last_line(.last))]
    Changed {
        /// The record as it is now.
        stored: Box<StoredRecord>,
        /// The last entry of its history that settled it.
        last: Option<Box<HistoryLine>>,
    },
    /// The given response is larger than the record's route stores.
    #[error(
        "the response has {bytes} bytes, but the record's policy stores at most {max} (`max_response_body`)"
    )]
    TooLarge {
        /// Size of the response's body.
        bytes: u64,
        /// The limit of the record's policy.
        max: u64,
    },
    /// The store has no outbox.
    #[error("the store has no outbox: it is no SQL store")]
    NoOutbox,
    /// No effect has this number.
    #[error("there is no effect {0}")]
    NoSuchEffect(i64),
    /// The effect's state does not allow it: operators act only on dead or unknown effects.
    #[error("the effect is {}: only one that is dead or unknown can be retried or discarded", .0.name())]
    EffectNotNow(EffectState),
    /// The effect is a dead letter without a call, so it can only be discarded.
    #[error("the effect has no call that could be made: discard it once it is dealt with")]
    NothingToMake,
    /// Another process changed the effect at the same moment. Load it again before you retry.
    #[error("the effect has just changed: look at it again before you retry")]
    EffectChanged,
    /// The store failed. The action may have been written nevertheless: check before you retry.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn state(stored: &StoredRecord) -> String {
    let record = &stored.record;
    let expired = if record.is_expired(stored.now) { "expired " } else { "" };
    match record.note.status {
        Some(status) => format!("{expired}{} ({status})", record.state.name()),
        None => format!("{expired}{}", record.state.name()),
    }
}

fn last_line(last: &Option<Box<HistoryLine>>) -> String {
    last.as_ref().map_or(String::new(), |last| format!("; last: {}", last.detail))
}
