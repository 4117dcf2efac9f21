//! The `policy` line: a preset, then changes.

use std::time::Duration;

use ibid_core::policy::{AfterExpiry, AnswerRule, OnLapse, OnServerError, Policy, Reconcile};

use super::parse_words::duration;

/// Parses the rules of a `policy` line.
pub(super) fn parse_policy(rules: &str) -> Result<Policy, String> {
    let mut policy = default_policy();
    for rule in rules.split_whitespace() {
        let Some((field, value)) = rule.split_once('=') else {
            let preset = Policy::preset(rule).ok_or_else(|| format!("no preset `{rule}`"))?;
            policy = preset.with(|p| p.lease = policy.lease);
            continue;
        };
        match field {
            "lease" => policy.lease = duration(value)?,
            "max_run" => policy.max_run = duration(value)?,
            "retention" => policy.retention = duration(value)?,
            "tombstone" => policy.tombstone = duration(value)?,
            "unknown_retention" => policy.unknown_retention = Some(duration(value)?),
            "upstream_timeout" => policy.upstream_timeout = duration(value)?,
            "linger" => policy.linger = duration(value)?,
            "pending_deadline" => policy.pending_deadline = duration(value)?,
            "max_attempts" => policy.max_attempts = value.parse().map_err(|_| "a number, please")?,
            "settle" => {
                let attempts = policy.reconcile.as_ref().map_or(10, |rule| rule.attempts);
                policy.reconcile = Some(Reconcile::new(duration(value)?, attempts));
            }
            "tries" => {
                let settle = policy.reconcile.as_ref().map_or(SETTLE, |rule| rule.settle);
                let attempts = value.parse().map_err(|_| "a number, please")?;
                policy.reconcile = Some(Reconcile::new(settle, attempts));
            }
            _ => set_word(&mut policy, field, value)?,
        }
    }
    policy.check().map_err(|error| error.to_string())?;
    Ok(policy)
}

fn set_word(policy: &mut Policy, field: &str, value: &str) -> Result<(), String> {
    match (field, value) {
        ("on_lapse", "unknown") => policy.on_lapse = OnLapse::Unknown,
        ("on_lapse", "retry") => policy.on_lapse = OnLapse::Retry,
        ("on_lapse", "resume") => policy.on_lapse = OnLapse::Resume,
        ("on_lapse", "fail") => policy.on_lapse = OnLapse::Fail,
        ("on_server_error", "unknown") => policy.on_server_error = OnServerError::Unknown,
        ("on_server_error", "retry") => policy.on_server_error = OnServerError::Retry,
        ("on_server_error", "store") => policy.on_server_error = OnServerError::Store,
        ("after_expiry", "execute") => policy.after_expiry = AfterExpiry::Execute,
        ("after_expiry", "refuse") => policy.after_expiry = AfterExpiry::Refuse,
        ("answer", "sync") => policy.answer = AnswerRule::Sync,
        ("answer", "async") => policy.answer = AnswerRule::Async,
        _ => return Err(format!("no rule `{field}={value}`")),
    }
    Ok(())
}

/// The contract's defaults, with a lease of 30s.
pub(super) fn default_policy() -> Policy {
    Policy::default().with(|policy| policy.lease = Duration::from_secs(30))
}

/// Pause between two lookups of the reconciler, unless a story sets it.
const SETTLE: Duration = Duration::from_secs(60);
