//! Classifies responses by their status.

use super::{OnServerError, Policy};
use crate::proof::Proof;

/// Meaning of a response for the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "every ending of an attempt has to handle every class")]
pub enum ResponseClass {
    /// The response is the final outcome.
    Stored,
    /// The response says that the work was not done, so the key is released.
    Free {
        /// `true` after 401 and 403: the fingerprint is cleared too, so the client may retry the key with a different
        /// request.
        forget_fingerprint: bool,
    },
    /// The work may have been done.
    Ambiguous,
}

/// The free list: statuses by which servers refuse a request before any work. 409 and 423 belong to it if they carry
/// `Retry-After`.
///
/// 503 and 408 are not here: proxies and timeout middleware send them while the request is executed.
pub const FREE_ON: [u16; 5] = [401, 403, 425, 429, 501];

/// Statuses that belong to the free list if they carry `Retry-After`.
pub(super) const FREE_WITH_RETRY_AFTER: [u16; 2] = [409, 423];

impl Policy {
    /// Classifies a response under this policy.
    ///
    /// The first of these that applies decides: proof, `store_on`, `free_on`, the free list, `on_server_error`.
    pub fn classify(&self, status: u16, retry_after: bool, proof: Option<Proof>) -> ResponseClass {
        let free = ResponseClass::Free { forget_fingerprint: matches!(status, 401 | 403) };
        match proof {
            Some(Proof::Executed) => return ResponseClass::Stored,
            Some(Proof::NotExecuted) => return free,
            None if self.store_on.contains(&status) => return ResponseClass::Stored,
            None if self.free_on.contains(&status) || FREE_ON.contains(&status) => return free,
            None => {}
        }
        match status {
            _ if retry_after && FREE_WITH_RETRY_AFTER.contains(&status) => free,
            500 => match self.on_server_error {
                OnServerError::Unknown => ResponseClass::Ambiguous,
                OnServerError::Retry => free,
                OnServerError::Store => ResponseClass::Stored,
            },
            // A proxy or a middleware may send these while the first run is still working.
            408 | 501.. => ResponseClass::Ambiguous,
            _ => ResponseClass::Stored,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: ResponseClass = ResponseClass::Free { forget_fingerprint: false };

    #[test]
    fn every_status_has_the_class_that_the_contract_gives_it() {
        let policy = Policy::default();
        for status in [200, 201, 204, 301, 304, 400, 404, 409, 410, 422, 423] {
            assert_eq!(policy.classify(status, false, None), ResponseClass::Stored, "{status}");
        }
        for status in [425, 429, 501] {
            assert_eq!(policy.classify(status, false, None), FREE, "{status}");
        }
        for status in [401, 403] {
            let forgotten = ResponseClass::Free { forget_fingerprint: true };
            assert_eq!(policy.classify(status, false, None), forgotten, "{status}");
        }
        for status in [409, 423] {
            assert_eq!(policy.classify(status, true, None), FREE, "{status}");
        }
        for status in [408, 500, 502, 503, 504, 505, 507, 520, 530, 599] {
            assert_eq!(policy.classify(status, false, None), ResponseClass::Ambiguous, "{status}");
            assert_eq!(
                policy.classify(status, true, None),
                ResponseClass::Ambiguous,
                "{status} with Retry-After"
            );
        }
    }

    #[test]
    fn on_server_error_speaks_of_500_alone() {
        assert_eq!(Policy::stripe().classify(500, false, None), ResponseClass::Stored);
        assert_eq!(Policy::one_transaction().classify(500, false, None), FREE);
        for status in [408, 502, 503, 504, 520] {
            assert_eq!(Policy::stripe().classify(status, false, None), ResponseClass::Ambiguous, "{status}");
            assert_eq!(
                Policy::one_transaction().classify(status, false, None),
                ResponseClass::Ambiguous,
                "{status}"
            );
        }
    }

    #[test]
    fn the_first_rule_that_speaks_decides() {
        let policy = Policy {
            free_on: vec![402, 500, 503],
            store_on: vec![409, 429],
            on_server_error: OnServerError::Store,
            ..Policy::default()
        };
        for (status, retry_after, proof, class) in [
            (503, false, Some(Proof::Executed), ResponseClass::Stored),
            (429, false, Some(Proof::NotExecuted), FREE),
            (201, false, Some(Proof::NotExecuted), FREE),
            (401, false, Some(Proof::NotExecuted), ResponseClass::Free { forget_fingerprint: true }),
            (429, false, None, ResponseClass::Stored),
            (409, true, None, ResponseClass::Stored),
            (402, false, None, FREE),
            (503, false, None, FREE),
            (500, false, None, FREE),
            (425, false, None, FREE),
            (423, true, None, FREE),
            (502, false, None, ResponseClass::Ambiguous),
        ] {
            assert_eq!(
                policy.classify(status, retry_after, proof),
                class,
                "{status} {retry_after} {proof:?}"
            );
        }
    }
}
