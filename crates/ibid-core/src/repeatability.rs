//! The rules of profile `repeatability` (OASIS Repeatable Requests 1.0), and of `max_request_age` in any profile.

use std::time::Duration;

use crate::key::Key;
use crate::key_source::KeyFrom;
use crate::policy::{AfterExpiry, Policy, Profile};
use crate::refusal::Refusal;
use crate::time::Timestamp;

/// Field in which a client says when it first sent a request.
pub const FIRST_SENT: &str = "repeatability-first-sent";

/// Field that carries the key in profile `repeatability`.
pub const REQUEST_ID: &str = "repeatability-request-id";

impl Policy {
    /// Returns the name of the field that says when a request was first sent, in lower case.
    pub fn first_sent_field(&self) -> &str {
        self.first_sent.as_deref().unwrap_or(FIRST_SENT)
    }

    /// Returns the largest age of a request under a new key, since it was first sent; `None` if the age is not checked.
    ///
    /// Profile `repeatability` checks by default, with the retention as the limit: an older request may have been
    /// executed and its record removed.
    pub fn request_age_max(&self) -> Option<Duration> {
        let retention = (self.profile == Profile::Repeatability).then_some(self.retention);
        self.max_request_age.or(retention)
    }

    /// Returns the time after its completion for which a record replays its response to a retry or refuses it.
    pub(crate) fn remembered_for(&self) -> Duration {
        match self.after_expiry {
            AfterExpiry::Execute => self.retention,
            AfterExpiry::Refuse => self.retention.saturating_add(self.tombstone),
        }
    }

    /// Returns whether requests under this policy pass unguarded, with or without keys: `repeatable = false` outside of
    /// profile `repeatability`, which refuses them with 501.
    pub fn is_exempt(&self) -> bool {
        !self.repeatable && self.profile != Profile::Repeatability
    }

    /// Returns the key as it is compared under this policy: OASIS compares UUIDs without regard to case.
    ///
    /// This depends on `key_from`, not on the profile, because the key is part of a record's id. The store keeps the
    /// settings that determine an id, and `key_from` is one of them.
    pub fn compared_key(&self, key: Key) -> Key {
        self.key_from.normalize_key(key)
    }
}

impl KeyFrom {
    /// Returns the key as it is compared for these sources: OASIS compares the UUIDs of its field without regard to
    /// case.
    pub fn normalize_key(&self, key: Key) -> Key {
        match self.header_names().any(|name| name == REQUEST_ID) {
            true => key.with_uuid_case_folded(),
            false => key,
        }
    }
}

/// Returns whether a request was first sent longer ago than `age_max`. A request from a client whose clock is ahead is
/// never too old.
pub fn is_too_old(first_sent: Timestamp, now: Timestamp, age_max: Duration) -> bool {
    now.since(first_sent) > age_max
}

impl Refusal {
    /// Returns whether the refusal means that this request was not executed and won't be (`Repeatability-Result:
    /// rejected`).
    ///
    /// The others are about a request that was accepted: it is running, it ran, or that is not known.
    pub fn is_rejection(self) -> bool {
        !matches!(
            self,
            Refusal::RequestInProgress { .. }
                | Refusal::OutcomeUnknown { .. }
                | Refusal::ResponseNotRetained
                | Refusal::UpstreamUncertain { .. }
                | Refusal::HandlerFailed
                | Refusal::Abandoned
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn a_request_is_too_old_a_moment_after_its_age() {
        let age_max = Duration::from_secs(300);
        let too_old = |first_sent: i64| is_too_old(at(first_sent), at(1_000_000), age_max);
        assert!(!too_old(1_000_000 - 299) && !too_old(1_000_000 - 300));
        assert!(too_old(1_000_000 - 301) && too_old(0));
        assert!(!too_old(1_000_000 + 3600), "a clock that is ahead");
    }

    #[test]
    fn the_profile_asks_for_the_age_that_records_are_kept() {
        let mut policy = Policy::repeatability();
        assert_eq!(policy.request_age_max(), Some(policy.retention));
        policy.max_request_age = Some(Duration::from_secs(300));
        assert_eq!(policy.request_age_max(), Some(Duration::from_secs(300)));
        assert_eq!(Policy::default().request_age_max(), None);
    }

    #[test]
    fn an_age_longer_than_the_memory_can_not_be_kept() {
        let hours = |hours: u64| Some(Duration::from_secs(hours * 3600));
        let invalid_field = |policy: Policy| policy.check().expect_err("it can't be kept").field;
        assert_eq!(
            invalid_field(Policy { max_request_age: hours(25), ..Policy::default() }),
            "max_request_age"
        );
        assert_eq!(
            invalid_field(Policy { max_request_age: hours(0), ..Policy::default() }),
            "max_request_age"
        );
        assert_eq!(Policy { max_request_age: hours(24), ..Policy::default() }.check(), Ok(()));
        // A tombstone that refuses remembers the key, too.
        assert_eq!(Policy { max_request_age: hours(300 * 24), ..Policy::payments() }.check(), Ok(()));
        assert_eq!(
            invalid_field(Policy { max_request_age: hours(400 * 24), ..Policy::payments() }),
            "max_request_age"
        );
    }

    #[test]
    fn uuids_have_no_case_where_the_field_of_oasis_carries_them() {
        let key = |text: &str| Key::stored(text).unwrap();
        let upper = "0C9AE5EA-980F-4EBD-A027-04529942B95E";
        let policy = Policy::repeatability();
        assert_eq!(policy.compared_key(key(upper)), key(&upper.to_lowercase()));
        assert_eq!(Policy::default().compared_key(key(upper)), key(upper));
        let ietf = Policy { profile: Profile::Ietf, ..Policy::repeatability() };
        assert_eq!(ietf.compared_key(key(upper)), key(&upper.to_lowercase()), "whatever the profile");
        for other in ["0C9AE5EA980F4EBDA02704529942B95E", "0C9AE5EA-980F-4EBD-A027-04529942B95G", "Order-7"] {
            assert_eq!(policy.compared_key(key(other)), key(other));
        }
    }

    #[test]
    fn an_accepted_request_is_never_reported_as_rejected() {
        for refusal in crate::refusal::ALL {
            let may_have_run = matches!(
                refusal.code(),
                "request-in-progress"
                    | "outcome-unknown"
                    | "response-not-retained"
                    | "handler-failed"
                    | "abandoned"
            );
            assert_eq!(refusal.is_rejection(), !may_have_run, "{refusal:?}");
            assert!(refusal.status(Profile::Repeatability) >= 400);
        }
        assert_eq!(Refusal::KeyReused.status(Profile::Repeatability), 400);
    }
}
