//! The result of a request, as its caller sees it: one type for `begin`, `wait` and `finish`.
//!
//! [`Ibid::begin`](crate::Ibid::begin) returns a [`Begin`]: an attempt to run, or the [`Outcome`] that makes running
//! unnecessary or unsafe. [`Ibid::wait`](crate::Ibid::wait) and the methods that end an [`Attempt`] return an [`Outcome`].

use std::sync::Arc;
use std::time::Duration;

use ibid_core::record::Record;

use crate::attempt::Attempt;
use crate::engine::Arrival;

pub use crate::engine::StoredResponse;

/// The result of a begin: the request has to run, or has an outcome already.
///
/// `R` runs the request: an [`Attempt`], or the open transaction that holds one.
#[derive(Debug)]
#[must_use = "dropped, an attempt leaves its outcome unknown"]
#[expect(clippy::exhaustive_enums, reason = "there is a run or there is none")]
pub enum Begin<R = Box<Attempt>> {
    /// Run the request. Its record is reserved.
    Run(R),
    /// Don't run the request. This is its outcome so far.
    Skip(Outcome),
}

/// The outcome of a request, as far as it is known.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[must_use = "the outcome is the response to the client"]
pub enum Outcome {
    /// The request was executed, and its response is stored durably.
    Completed(StoredResponse),
    /// The request was executed, durably recorded, and its response is not available for replay.
    NotRetained(Arc<Record>),
    /// The request was accepted and runs without its client.
    Accepted {
        /// Set if this very request was accepted, and not an earlier one with the same key.
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

impl Begin {
    /// Returns the outcome for a caller that must not run the request. An attempt is dropped, which releases the key.
    pub(crate) fn into_outcome(self) -> Outcome {
        match self {
            Begin::Run(_) => Outcome::Released,
            Begin::Skip(outcome) => outcome,
        }
    }
}

impl Begin {
    /// Returns how the request counts for its tenant's duplicate rate.
    pub(crate) fn arrival(&self) -> Arrival {
        match self {
            Begin::Run(attempt) => Arrival::of_run(attempt.number()),
            Begin::Skip(outcome) => outcome.arrival(),
        }
    }
}

impl Outcome {
    /// Returns how a request that does not run counts for its tenant's duplicate rate.
    pub(crate) fn arrival(&self) -> Arrival {
        match self {
            Outcome::Accepted { new: true } => Arrival::First,
            Outcome::Mismatch => Arrival::Misuse,
            _ => Arrival::Duplicate,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_accepted_request_is_no_duplicate() {
        let arrivals = [true, false].map(|new| Outcome::Accepted { new }.arrival());
        assert_eq!(arrivals, [Arrival::First, Arrival::Duplicate]);
    }
}
