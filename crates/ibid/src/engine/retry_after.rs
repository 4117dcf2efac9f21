//! Estimates `Retry-After` for a request that is turned away, as exactly as this process can: a value that is too short
//! costs another refusal, and one that is too long costs the client's time.

use std::time::Duration;

use ibid_core::record::Record;
use ibid_core::time::Timestamp;

/// The record could not be reserved. Nothing was executed, and nothing will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}", if *overloaded { "too many requests run at once" } else { "the store did not answer in time" })]
pub struct UnavailableError {
    retry_after: Duration,
    /// `true` if the store is well, and this process has no room for another attempt.
    overloaded: bool,
    /// `true` if the request reached the store. Only then does the refusal say something about the store.
    pub(super) asked: bool,
}

impl UnavailableError {
    /// Refuses a request before it reaches the store.
    pub(crate) fn refused_early(retry_after: Duration) -> UnavailableError {
        UnavailableError { retry_after, overloaded: false, asked: false }
    }

    /// Refuses a request to which the store did not reply.
    pub(crate) fn no_reply() -> UnavailableError {
        UnavailableError { retry_after: RETRY_AFTER_MIN, overloaded: false, asked: true }
    }

    /// Refuses a new key because too many attempts run. One of them ends every moment; which one is not known.
    pub(super) fn no_room() -> UnavailableError {
        UnavailableError { retry_after: RETRY_AFTER_MIN, overloaded: true, asked: false }
    }

    /// Sends the client away until the breaker's pause is over, if the breaker is open.
    pub(super) fn with_breaker_pause(self, pause: Option<Duration>) -> UnavailableError {
        UnavailableError { retry_after: pause.unwrap_or(self.retry_after).max(RETRY_AFTER_MIN), ..self }
    }

    /// Returns how long the client should wait before it retries.
    pub fn retry_after(&self) -> Duration {
        self.retry_after
    }

    /// Returns whether this process, or the tenant in it, runs too many attempts. Otherwise the store did not answer.
    pub fn is_overloaded(&self) -> bool {
        self.overloaded
    }

    /// Returns `true`: nothing was executed, so a retry is safe and may succeed.
    pub fn is_retryable(&self) -> bool {
        true
    }
}

/// Returns when a duplicate of a running request should retry.
///
/// An attempt that has run for some time is as likely as not to run for the same time again. When its lease ends, it has
/// either ended or been renewed, so the rest of the lease is the upper bound.
pub(crate) fn retry_after_for_duplicate(record: &Record, now: Timestamp) -> Duration {
    let ran_for = now.since(record.ran_at.unwrap_or(record.created_at));
    let lease_left = record.due_at.map_or(RETRY_AFTER_MAX, |due| due.since(now));
    ran_for.min(lease_left).clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX)
}

/// Shortest `Retry-After`: the field counts in seconds.
pub(crate) const RETRY_AFTER_MIN: Duration = Duration::from_secs(1);

/// Longest `Retry-After` for a duplicate: a client that retries once a minute costs nothing and learns of the end soon
/// enough.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use ibid_core::change::{Draft, InstantChange, Stamp};
    use ibid_core::record::State;
    use ibid_testkit::contract;

    #[test]
    fn retry_after_is_run_time_capped_by_remaining_lease() {
        let begun_at = Timestamp::from_micros(1_700_000_000_000_000);
        let after = |secs| begun_at.after(Duration::from_secs(secs));
        let name = contract::TestRecord::of("t", "k");
        let lease = Duration::from_secs(60);
        let draft = Draft {
            due_in: Some(lease),
            created: InstantChange::Now,
            ..contract::draft(&name, State::InProgress)
        };
        let change = contract::insert(&name, draft);
        let record = change.apply(Stamp { now: begun_at }, None).expect("a record");
        let retry_after = |secs| retry_after_for_duplicate(&record, after(secs)).as_secs();
        assert_eq!([0, 1, 7, 29, 45, 59, 70].map(retry_after), [1, 1, 7, 29, 15, 1, 1]);
    }
}
