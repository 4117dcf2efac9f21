//! What a record means to the client that sent its request. It says nothing about who may run the request next: that is
//! `request`'s to decide.

use crate::record::{Record, State};
use crate::time::Timestamp;

/// What a client may be told about its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusView {
    /// The retention is over: the record says nothing any more.
    Expired,
    /// A response will come: an attempt runs, a worker will run the request, or an effect owes the response.
    Open,
    /// The response is final and stored.
    Stored,
    /// The request was executed once. Its response was too large, a stream or an upgrade, and is not stored.
    NotRetained,
    /// The client may send the request again.
    Retryable,
    /// It is not known whether the request was executed.
    Unknown {
        /// Until when a late response or a reconciler may settle it. None: only an operator can.
        settles_by: Option<Timestamp>,
    },
}

/// Returns what the client may be told about `record` at the store's time `now`.
pub fn describe(record: &Record, now: Timestamp) -> StatusView {
    // Expiry comes before every other question, also where the reaper has not come yet.
    if record.is_expired(now) {
        return StatusView::Expired;
    }
    match record.state {
        State::Pending | State::InProgress => StatusView::Open,
        State::Completed if record.flags.not_retained => StatusView::NotRetained,
        State::Completed => StatusView::Stored,
        State::Retryable => StatusView::Retryable,
        State::Unknown => StatusView::Unknown { settles_by: record.settles_by(now) },
    }
}
