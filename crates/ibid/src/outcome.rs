//! The result of a request, as its caller sees it: one type for `begin`, `wait` and `finish`.
//!
//! [`Ibid::begin`](crate::Ibid::begin) returns a [`Begin`]: an attempt to run, or the [`Outcome`] that makes running
//! unnecessary or unsafe. [`Ibid::wait`](crate::Ibid::wait) and the methods that end an [`Attempt`] return an [`Outcome`].

use std::sync::Arc;
use std::time::Duration;

use ibid_core::record::Record;
use ibid_core::response::Response;

use crate::attempt::Attempt;

/// Whether a request has to run.
///
/// `R` is what runs it: an [`Attempt`], or the open transaction that holds one.
#[derive(Debug)]
pub enum Begin<R = Box<Attempt>> {
    /// Run the request. Its record is reserved.
    Run(R),
    /// Don't run the request. This is its outcome so far.
    Skip(Outcome),
}

/// What is known about a request.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The request was executed, and its response is stored durably.
    Completed(StoredResponse),
    /// The request was executed, durably recorded, and its response is not available for replay.
    NotRetained(Arc<Record>),
    /// The request was accepted and runs without its client.
    Accepted {
        /// Whether this very request was the one that was accepted, and not an earlier one with the same key.
        new: bool,
    },
    /// Another attempt runs the request.
    InFlight {
        /// Estimated time until a retry finds a result.
        retry_in: Duration,
    },
    /// The attempt has ended, and an effect owes the response. Callers wait for it as for an attempt that runs.
    AwaitingEffect,
    /// Nothing was executed, and the key is released: a new request may run.
    Released,
    /// It is not known whether the request was executed. That is recorded durably.
    Unknown {
        /// Time until the next reconciliation. `None`: an operator has to resolve it.
        settled_in: Option<Duration>,
    },
    /// The key was used with a different request.
    Mismatch,
    /// The retention of the key is over.
    Expired,
    /// The end of the attempt was not durable within `finish_wait`.
    ///
    /// The write is retried in the background, unless the store rejects it permanently. In that case the lease lapses.
    NotDurable,
    /// The record was changed without this attempt, so its end was not written. Holds what is stored now.
    Superseded(Box<Outcome>),
}

/// A stored response and its record.
#[derive(Clone, Debug)]
pub struct StoredResponse {
    /// The completed record.
    pub record: Arc<Record>,
    /// The response that retries get.
    pub response: Arc<Response>,
}

impl Begin {
    /// The outcome for a caller that must not run the request. An attempt is dropped, which releases the key.
    pub(crate) fn into_outcome(self) -> Outcome {
        match self {
            Begin::Run(_) => Outcome::Released,
            Begin::Skip(outcome) => outcome,
        }
    }
}
