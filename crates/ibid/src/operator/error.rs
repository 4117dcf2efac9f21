//! Why an operator's action was not done.

use ibid_core::change::{History, StoredRecord};
use ibid_core::machine::EffectState;
use ibid_core::store::StoreError;
use ibid_core::time::Timestamp;

use super::RecordList;

/// Why an operator's action was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OperatorError {
    /// No record has this id, or an id that begins so.
    #[error("there is no such record")]
    NoSuchRecord,
    /// Several records have an id that begins so.
    #[error("several records begin so")]
    Ambiguous(RecordList),
    /// The record's state does not allow it; perhaps another action was first.
    #[error("the record is {}{}", state(.stored), said(.last))]
    NotNow {
        /// The record as it is now.
        stored: Box<StoredRecord>,
        /// The last entry of its history that settled it.
        last: Option<Box<(Timestamp, History)>>,
    },
    /// The record has changed since the version that the operator saw.
    #[error("the record has changed since it was looked at: it is {}{}", state(.stored), said(.last))]
    Changed {
        /// The record as it is now.
        stored: Box<StoredRecord>,
        /// The last entry of its history that settled it.
        last: Option<Box<(Timestamp, History)>>,
    },
    /// The given response is larger than the record's route stores.
    #[error("the answer has {bytes} bytes, and the record's rules keep {max} (`max_response_body`)")]
    TooLarge {
        /// Size of the response's body.
        bytes: u64,
        /// The limit of the record's rules.
        max: u64,
    },
    /// The store has no outbox.
    #[error("the store has no outbox: it is no SQL store")]
    NoOutbox,
    /// No effect has this number.
    #[error("there is no effect {0}")]
    NoSuchEffect(i64),
    /// The effect's state does not allow it: only a dead or unknown effect is an operator's to decide.
    #[error("the effect is {}: only one that is dead or unknown can be retried or discarded", .0.name())]
    EffectNotNow(EffectState),
    /// The effect is a letter to an operator, and no call: it can only be discarded.
    #[error("the effect is no call of ours, so there is nothing to make: discard it once it is dealt with")]
    NothingToMake,
    /// The effect changed at the same moment: look again.
    #[error("the effect has just changed: look again")]
    EffectChanged,
    /// The store failed. The action may have been written all the same: look again.
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

fn said(last: &Option<Box<(Timestamp, History)>>) -> String {
    last.as_ref().map_or(String::new(), |last| format!("; last: {}", last.1.detail))
}
