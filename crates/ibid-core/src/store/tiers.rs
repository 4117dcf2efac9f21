//! The capabilities of a store, compared with what a route needs.

use super::Store;
use crate::policy::{AnswerRule, OnLapse, Policy};

/// The capabilities that a store has besides records and settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiers {
    /// Requests and results of phases ([`BodyStore`](super::BodyStore)).
    pub bodies: bool,
    /// Lists, history and counts ([`BrowseStore`](super::BrowseStore)).
    pub browse: bool,
    /// Evidence from webhooks ([`EvidenceStore`](crate::evidence::EvidenceStore)).
    pub evidence: bool,
    /// Callers' transactions and the outbox ([`SqlStore`](super::SqlStore)).
    pub sql: bool,
}

impl Tiers {
    /// All of the capabilities.
    pub const ALL: Tiers = Tiers { bodies: true, browse: true, evidence: true, sql: true };

    /// Returns the capabilities of a store.
    pub fn of(store: &dyn Store) -> Tiers {
        Tiers {
            bodies: store.bodies().is_some(),
            browse: store.browse().is_some(),
            evidence: store.evidence().is_some(),
            sql: store.sql().is_some(),
        }
    }

    /// Returns why a store with these capabilities cannot serve a route with this policy; `None` if it can.
    pub fn refusal(self, policy: &Policy) -> Option<&'static str> {
        if self.bodies {
            return None;
        }
        match (policy.answer, policy.on_lapse) {
            (AnswerRule::Async | AnswerRule::Prefer, _) => {
                Some("accepts requests to run them later, and the store keeps no requests")
            }
            (_, OnLapse::Resume) => Some("resumes requests, and the store keeps no requests"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_that_stores_requests_needs_a_store_that_keeps_them() {
        let without = Tiers { bodies: false, ..Tiers::ALL };
        let policies = [
            Policy { answer: AnswerRule::Async, ..Policy::default() },
            Policy { answer: AnswerRule::Prefer, ..Policy::default() },
            Policy { on_lapse: OnLapse::Resume, ..Policy::default() },
        ];
        for policy in &policies {
            assert!(without.refusal(policy).is_some() && Tiers::ALL.refusal(policy).is_none());
        }
        assert_eq!(without.refusal(&Policy::default()), None);
    }
}
