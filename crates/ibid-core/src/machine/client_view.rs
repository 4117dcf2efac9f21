//! Translates a record into what its client may know about it.
//!
//! It does not decide who may run the request next; `request` does.

use crate::record::{Record, State};
use crate::time::Timestamp;

/// A record as its client may see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientView {
    /// The retention is over, and the record no longer counts.
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
        /// Time until which a late response or a reconciler may settle it. `None`: only an operator can.
        settles_by: Option<Timestamp>,
    },
}

/// Returns the client's view of `record` at the store's time `now`.
pub fn describe(record: &Record, now: Timestamp) -> ClientView {
    // Expiry comes before every other check, even if the reaper has not removed the record yet.
    if record.is_expired(now) {
        return ClientView::Expired;
    }
    match record.state {
        State::Pending | State::InProgress => ClientView::Open,
        State::Completed if record.flags.not_retained => ClientView::NotRetained,
        State::Completed => ClientView::Stored,
        State::Retryable => ClientView::Retryable,
        State::Unknown => ClientView::Unknown { settles_by: record.settles_by(now) },
    }
}
