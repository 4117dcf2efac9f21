//! The policies that the model uses in turn, and its times.

use std::time::Duration;

use ibid_core::policy::{AfterExpiry, AnswerRule, OnLapse, OnServerError, Policy, Reconcile};

/// Returns whether the policy promises at most one execution. With the others the operator vouches that a second one is
/// harmless.
pub(super) fn is_strict(policy: &Policy) -> bool {
    matches!(policy.on_lapse, OnLapse::Unknown | OnLapse::Fail)
        && policy.on_server_error != OnServerError::Retry
}

pub(super) fn policies() -> [Policy; POLICIES] {
    let plain = Policy::default().with(|policy| {
        policy.lease = Duration::from_secs(LEASE);
        policy.retention = Duration::from_secs(RETENTION);
        policy.pending_deadline = Duration::from_secs(2 * LEASE);
        policy.upstream_timeout = Duration::from_secs(UPSTREAM);
        policy.reconcile = Some(Reconcile::new(Duration::from_secs(SETTLE), 4));
    });
    let all = [
        plain.clone(),
        plain.clone().with(|policy| {
            policy.reconcile = None;
            policy.tombstone = Duration::from_secs(RETENTION);
            policy.after_expiry = AfterExpiry::Refuse;
        }),
        plain.clone().with(|policy| policy.answer = AnswerRule::Async),
        plain.clone().with(|policy| {
            policy.on_lapse = OnLapse::Fail;
            policy.on_server_error = OnServerError::Store;
        }),
        plain.clone().with(|policy| {
            policy.on_lapse = OnLapse::Retry;
            policy.max_attempts = 2;
        }),
        plain.clone().with(|policy| {
            policy.on_lapse = OnLapse::Resume;
            policy.on_server_error = OnServerError::Retry;
        }),
        plain.with(|policy| {
            policy.on_lapse = OnLapse::Retry;
            policy.answer = AnswerRule::Async;
        }),
    ];
    for policy in &all {
        assert_eq!(policy.check(), Ok(()));
    }
    all
}

pub(super) const POLICIES: usize = 7;

/// Times of the model, in seconds. The upstream's response fits twice into `settle`, as every policy requires.
pub(super) const LEASE: u64 = 30;
pub(super) const UPSTREAM: u64 = 20;
pub(super) const SETTLE: u64 = 60;
pub(super) const RETENTION: u64 = 3600;
