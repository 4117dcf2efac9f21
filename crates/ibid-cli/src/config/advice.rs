//! What a configuration may say and its author should know.

use std::time::Duration;

use ibid_core::policy::{OnLapse, OnServerError, Policy};

use super::DAY;
use super::read::Reader;
use super::route::RouteDraft;
use super::value::show_duration;

/// Collects what is allowed and should be known.
pub(super) struct Advice<'a> {
    pub(super) reader: &'a Reader<'a>,
    warnings: &'a mut Vec<String>,
    dead_letters: Vec<String>,
}

impl<'a> Advice<'a> {
    pub(super) fn new(reader: &'a Reader<'a>, warnings: &'a mut Vec<String>) -> Advice<'a> {
        Advice { reader, warnings, dead_letters: Vec::new() }
    }

    fn warn(&mut self, line: usize, text: String) {
        self.warnings.push(format!("{}: {text}", self.reader.place(line)));
    }

    pub(super) fn route(&mut self, draft: &RouteDraft, policy: &Policy, horizon: Option<Duration>) {
        let name = format!("`{}`", draft.name());
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
        if let Some(rule) = &draft.reconcile {
            let text = format!(
                "{name} has a reconcile rule, and this release does not ask by it yet: an unknown record stays \
                 unknown until an operator or a later release settles it"
            );
            self.warn(draft.reconcile_line, text);
            if !rule.path.contains("{key}") && !rule.headers.iter().any(|(_, value)| value.contains("{key}"))
            {
                let text = format!(
                    "the reconcile rule of {name} does not carry {{key}}: does it find the right one?"
                );
                self.warn(draft.reconcile_line, text);
            }
        }
        self.policy(&name, draft.line, policy, horizon);
    }

    pub(super) fn policy(&mut self, name: &str, line: usize, policy: &Policy, horizon: Option<Duration>) {
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
        let ends_unknown =
            policy.on_lapse == OnLapse::Unknown || policy.on_server_error == OnServerError::Unknown;
        if policy.reconcile.is_none() && ends_unknown {
            self.dead_letters.push(name.to_owned());
        }
    }

    /// One line for all: the default configuration has this property, and a line per route would hide the rest.
    pub(super) fn finish(self) {
        if !self.dead_letters.is_empty() {
            self.warnings.push(format!(
                "no reconcile rule for {}: a request whose outcome is unknown becomes a dead letter, which a \
                 person must settle",
                self.dead_letters.join(", ")
            ));
        }
    }
}
