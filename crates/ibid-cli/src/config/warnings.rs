//! Warnings about settings that are allowed but risky.

use std::time::Duration;

use ibid_core::policy::Policy;

use crate::gateway::tenant::{TenantConfig, TenantFrom};

use super::policy::Overlay;
use super::route::{RouteDraft, placeholders};
use super::toml_reader::Reader;
use super::units::show_duration;
use super::{DAY, RouteConfig};

/// Collects the warnings about one configuration.
pub(super) struct ConfigWarning<'a> {
    pub(super) reader: &'a Reader<'a>,
    warnings: &'a mut Vec<String>,
    dead_letters: Vec<String>,
}

impl<'a> ConfigWarning<'a> {
    pub(super) fn new(reader: &'a Reader<'a>, warnings: &'a mut Vec<String>) -> ConfigWarning<'a> {
        ConfigWarning { reader, warnings, dead_letters: Vec::new() }
    }

    fn warn(&mut self, line: usize, text: String) {
        self.warnings.push(format!("{}: {text}", self.reader.position(line)));
    }

    pub(super) fn route(&mut self, draft: &RouteDraft, policy: &Policy, horizon: Option<Duration>) {
        let name = format!("`{}`", draft.name());
        if policy.is_exempt() && draft.guard {
            let why = "`repeatable = false` outside of profile `repeatability`";
            self.warn(draft.line, format!("{name} is not guarded ({why}): its retries run again"));
            return;
        }
        if !draft.guard {
            self.warn(
                draft.line,
                format!("{name} is not guarded (`guard = \"off\"`): its retries run again"),
            );
            if !draft.rules.lines.is_empty() || draft.preset.is_some() || draft.reconcile.is_some() {
                self.warn(draft.line, format!("{name} is not guarded, so its other keys have no effect"));
            }
            return;
        }
        if draft.preset.as_deref() == Some("one-transaction") {
            let text = format!(
                "{name} has the preset `one-transaction`, which does not fit a gateway: it can't see the \
                 upstream's transaction, so a retry is safe only if the upstream deduplicates"
            );
            self.warn(draft.line, text);
        }
        self.rule(&name, draft, policy);
        self.hop(&name, &draft.rules, policy);
        self.policy(&name, draft.line, policy, horizon);
    }

    /// Adds the warning about the next hop, if these rules name one.
    pub(super) fn hop(&mut self, name: &str, rules: &Overlay, policy: &Policy) {
        let warning = policy.behind.and_then(|hop| hop.preset().warning);
        if let (Some(line), Some(warning)) = (rules.lines.get("behind"), warning) {
            self.warn(*line, format!("{name}: {warning}"));
        }
    }

    fn rule(&mut self, name: &str, draft: &RouteDraft, policy: &Policy) {
        let (Some(rule), Some(reconcile)) = (&draft.reconcile, &policy.reconcile) else { return };
        let mut warn = |text: &str| {
            self.warn(draft.reconcile_line, format!("the reconcile rule of {name} {text}"));
        };
        // The same key on another path (say, another order) is another record.
        let names = placeholders(&draft.pattern);
        for missing in ["key"].into_iter().chain(names.iter().map(String::as_str)) {
            if !rule.carries(missing) {
                warn(&format!("does not carry {{{missing}}}: does it find the right one?"));
            }
        }
        if reconcile.attempts == 1 {
            warn("has one attempt, and `not_executed` is believed only when seen twice");
        }
        let over = policy.over_in();
        if reconcile.settle < over {
            let over = show_duration(over);
            warn(&format!(
                "makes its first lookup after {over} (upstream_timeout and linger): until then the attempt may still run"
            ));
        }
    }

    pub(super) fn policy(&mut self, name: &str, line: usize, policy: &Policy, horizon: Option<Duration>) {
        if let Some(age) = policy.max_request_age.filter(|age| *age < REQUEST_AGE_MIN) {
            let age = show_duration(age);
            self.warn(
                line,
                format!("{name}: max_request_age is {age}, and Azure's guidelines promise clients 5m"),
            );
        }
        let retention = show_duration(policy.retention);
        if policy.retention < DAY {
            self.warn(line, format!("{name}: retention is {retention}, and clients expect 24h or more"));
        }
        if let Some(horizon) = horizon.filter(|horizon| *horizon > policy.retention) {
            let horizon = show_duration(horizon);
            self.warn(
                line,
                format!("{name}: clients retry for {horizon}, and retention is only {retention}"),
            );
        }
        if policy.upstream_timeout > policy.max_run {
            let text =
                format!("{name}: max_run is shorter than upstream_timeout, so a slow attempt lapses first");
            self.warn(line, text);
        }
        // Regardless of the other rules, a response that does not arrive in time leaves the outcome unknown.
        if policy.reconcile.is_none() {
            self.dead_letters.push(name.to_owned());
        }
    }

    /// Adds one warning for all routes without a reconcile rule. One per route would hide the other warnings, because the
    /// default configuration has none.
    pub(super) fn finish(self) {
        if !self.dead_letters.is_empty() {
            self.warnings.push(format!(
                "no reconcile rule for {}: a request whose outcome is unknown becomes a dead letter, which an \
                 operator must settle",
                self.dead_letters.join(", ")
            ));
        }
    }
}

/// Warns about reconcile rules that name a tenant by a digest that the upstream may not know.
pub(super) fn tenants(how: Option<&TenantConfig>, routes: &[RouteConfig], warnings: &mut Vec<String>) {
    let hashed = how.is_some_and(|how| how.from == TenantFrom::Authorization);
    if hashed && routes.iter().any(|route| route.policy.reconcile.is_some()) {
        warnings.push(
            "with tenant `authorization` a reconcile rule's {tenant} is a digest of the credential: the upstream must \
             know tenants by that"
                .to_owned(),
        );
    }
}

/// Shortest time for which Azure's guidelines let a client rely on a repeatable request.
const REQUEST_AGE_MIN: Duration = Duration::from_secs(5 * 60);
