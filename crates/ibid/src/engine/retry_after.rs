//! When to come again: what a client that is turned away is told. As near to the truth as this process knows it, because
//! a time that is too short costs another refusal, and one that is too long costs the client's time.

use std::time::Duration;

use ibid_core::record::Record;
use ibid_core::time::Timestamp;

/// The record could not be reserved. Nothing was executed, and nothing will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the store did not answer in time")]
pub struct Unavailable {
    retry_after: Duration,
    /// Whether the store was asked: only then was something found out about it.
    pub(super) asked: bool,
}

impl Unavailable {
    /// Turned away without asking the store.
    pub(crate) fn unasked(retry_after: Duration) -> Unavailable {
        Unavailable { retry_after, asked: false }
    }

    /// The store was asked, and gave no answer.
    pub(crate) fn unanswered() -> Unavailable {
        Unavailable { retry_after: AGAIN_MIN, asked: true }
    }

    /// The same, and begins are refused for so long.
    pub(super) fn shut_for(self, shut_for: Option<Duration>) -> Unavailable {
        Unavailable { retry_after: shut_for.unwrap_or(self.retry_after).max(AGAIN_MIN), ..self }
    }

    /// How long until it is worth asking again.
    pub fn retry_after(&self) -> Duration {
        self.retry_after
    }
}

/// When a duplicate of a request that is being worked on should come again. What has run for so long is as likely as not
/// to run as long again; when its lease ends, it is over in any case, or somebody renewed it.
pub(crate) fn come_again(record: &Record, now: Timestamp) -> Duration {
    let ran_for = now.since(record.ran_at.unwrap_or(record.created_at));
    let lease_left = record.due_at.map_or(AGAIN_MAX, |due| due.since(now));
    ran_for.min(lease_left).clamp(AGAIN_MIN, AGAIN_MAX)
}

/// Least that a client is told: the field counts in seconds.
pub(crate) const AGAIN_MIN: Duration = Duration::from_secs(1);

/// Most that a duplicate is told: a client that comes once a minute costs nothing, and learns of an end soon enough.
const AGAIN_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use ibid_core::change::{Draft, Mark, Stamp};
    use ibid_core::record::State;
    use ibid_testkit::contract;

    #[test]
    fn a_duplicate_is_told_as_long_as_the_first_has_run_and_at_most_what_is_left_of_its_lease() {
        let begun_at = Timestamp::from_micros(1_700_000_000_000_000);
        let after = |secs| begun_at.after(Duration::from_secs(secs));
        let name = contract::Name::of("t", "k");
        let lease = Duration::from_secs(60);
        let draft =
            Draft { due_in: Some(lease), created: Mark::Now, ..contract::draft(&name, State::InProgress) };
        let change = contract::insert(&name, draft);
        let record = change.applied(Stamp { now: begun_at }, None).expect("a record");
        let told = |secs| come_again(&record, after(secs)).as_secs();
        assert_eq!([0, 1, 7, 29, 45, 59, 70].map(told), [1, 1, 7, 29, 15, 1, 1]);
    }
}
