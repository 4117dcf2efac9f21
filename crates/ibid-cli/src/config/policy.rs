//! The keys that make up a policy: read from a table, combined in layers, and written out again.
//!
//! Precedence, weakest first: built-in default, the profile's own defaults, `[defaults]`, the route's preset, the
//! route's own keys.

use std::collections::BTreeMap;
use std::time::Duration;

use ibid_core::forward_key::ForwardKey;
use ibid_core::key_source::KeyFrom;
use ibid_core::policy::{
    AfterExpiry, AnswerRule, BindRule, InFlight, KeyRule, OnLapse, OnServerError, PathRule, Policy,
    PolicyError, Profile,
};
use ibid_core::proof::{Hop, NotExecutedWhen};
use ibid_core::scope::ScopeRule;
use serde_json::{Value, json};

use super::fingerprint::{self, RecipeKeys};
use super::forward_key;
use super::header_names;
use super::key_from;
use super::proof;
use super::toml_reader::{Reader, Section};
use super::units::{show_duration, show_size, word_of};

/// Declares a struct of optional rules that can be applied to a `Policy` or computed as the difference of two.
macro_rules! overlay {
    ($($field:ident: $type:ty,)*) => {
        /// The rules that one table sets, with their lines.
        #[derive(Clone, Debug, Default)]
        pub(super) struct Overlay {
            $($field: Option<$type>,)*
            recipe: RecipeKeys,
            /// Time for which clients retry; used only for a warning.
            pub(super) retry_horizon: Option<Duration>,
            /// The line of each key in the file.
            pub(super) lines: BTreeMap<&'static str, usize>,
        }

        impl Overlay {
            /// Returns the rules in which `to` differs from `from`.
            pub(super) fn between(from: &Policy, to: &Policy) -> Overlay {
                Overlay {
                    $($field: (from.$field != to.$field).then(|| to.$field.clone()),)*
                    ..Overlay::default()
                }
            }

            fn apply(&self, policy: &mut Policy) {
                $(if let Some(value) = &self.$field { policy.$field = value.clone(); })*
                self.recipe.apply(&mut policy.recipe);
            }
        }
    };
}

overlay! {
    profile: Profile,
    key: KeyRule,
    strict_key: bool,
    scope: ScopeRule,
    bind: BindRule,
    path: PathRule,
    in_flight: InFlight,
    wait: Duration,
    answer: AnswerRule,
    lease: Duration,
    max_run: Duration,
    retention: Duration,
    tombstone: Duration,
    after_expiry: AfterExpiry,
    on_lapse: OnLapse,
    on_server_error: OnServerError,
    max_attempts: u32,
    pending_deadline: Duration,
    upstream_timeout: Duration,
    linger: Duration,
    max_request_body: u64,
    max_response_body: u64,
    free_on: Vec<u16>,
    store_on: Vec<u16>,
    not_executed_when: Vec<NotExecutedWhen>,
    behind: Option<Hop>,
    unknown_retention: Option<Duration>,
    response_version: u32,
    key_from: KeyFrom,
    max_request_age: Option<Duration>,
    repeatable: bool,
    first_sent: Option<String>,
    not_replayed: Vec<String>,
    stream: bool,
    forward_key: ForwardKey,
}

impl Overlay {
    /// Reads the rules of `[defaults]` or of one `[[route]]`. The caller reads the other keys and finishes the section.
    pub(super) fn read(section: &mut Section<'_, '_>, reader: &Reader<'_>) -> Overlay {
        let overlay = Overlay {
            profile: section.choice("profile", &PROFILES, &[]),
            key: section.choice("key", &KEY_RULES, &[]),
            strict_key: section.boolean("strict_key"),
            scope: section.choice("scope", &SCOPES, &[]),
            bind: section.choice("bind", &BINDS, &[]),
            path: section.choice("path", &PATHS, &[]),
            in_flight: section.choice("in_flight", &IN_FLIGHTS, &[]),
            wait: section.duration("wait"),
            answer: section.choice("answer", &ANSWERS, &[]),
            lease: section.positive("lease"),
            max_run: section.positive("max_run"),
            retention: section.positive("retention"),
            tombstone: section.duration("tombstone"),
            after_expiry: section.choice("after_expiry", &AFTER_EXPIRIES, &[]),
            on_lapse: section.choice("on_lapse", &ON_LAPSES, &[("resume", RESUME_LATER)]),
            on_server_error: section.choice("on_server_error", &ON_SERVER_ERRORS, &[]),
            max_attempts: section.count("max_attempts"),
            pending_deadline: section.positive("pending_deadline"),
            upstream_timeout: section.positive("upstream_timeout"),
            linger: section.duration("linger"),
            max_request_body: section.size("max_request_body"),
            max_response_body: section.size("max_response_body"),
            free_on: section.statuses("free_on"),
            store_on: section.statuses("store_on"),
            not_executed_when: proof::read_rules(section, reader),
            behind: section.choice("behind", &proof::HOPS, &[]),
            unknown_retention: section.positive_or("unknown_retention", "never"),
            response_version: section.count("response_version"),
            key_from: key_from::read(section, reader),
            max_request_age: section.positive("max_request_age").map(Some),
            repeatable: section.boolean("repeatable"),
            first_sent: key_from::read_first_sent(section, reader),
            not_replayed: header_names::read("not_replayed", section, reader),
            stream: section.boolean("stream"),
            forward_key: forward_key::read(section, reader),
            recipe: RecipeKeys::read(section, reader),
            retry_horizon: section.positive("retry_horizon"),
            lines: section.lines().clone(),
        };
        let bodies = [
            ("max_request_body", overlay.max_request_body),
            ("max_response_body", overlay.max_response_body),
        ];
        for (key, size) in bodies {
            if size.is_some_and(|size| size > BODY_MAX) {
                let problem =
                    format!("`{key}` must be at most {}: bodies are held in memory", show_size(BODY_MAX));
                reader.refuse(section.line_of(key).unwrap_or(section.line), problem);
            }
        }
        overlay
    }

    /// Replaces the rule about missing keys by the named one. Returns `None` if no rule has this name.
    pub(super) fn with_key(self, word: &str) -> Option<Overlay> {
        let (_, rule) = KEY_RULES.iter().find(|(known, _)| *known == word)?;
        Some(Overlay { key: Some(*rule), ..self })
    }

    /// Returns the rules that a preset changes, or `None` if no preset has this name.
    pub(super) fn preset(name: &str) -> Option<Overlay> {
        Some(Overlay::between(&Policy::default(), &Policy::preset(name)?))
    }
}

/// Combines layers, the weakest first, into a policy.
pub(super) fn resolve(layers: &[&Overlay]) -> Policy {
    let profile = layers.iter().rev().find_map(|layer| layer.profile).unwrap_or(Profile::Ietf);
    let mut policy = Policy::from(profile);
    layers.iter().for_each(|layer| layer.apply(&mut policy));
    policy
}

/// Returns the line to report for an invalid rule: that of its key, or of the key that it conflicts with, in the strongest
/// layer that sets either.
pub(super) fn line_of(error: &PolicyError, layers: &[&Overlay]) -> Option<usize> {
    let other = match error.field {
        "retention" | "max_run" => "lease",
        "max_request_age" => "retention",
        "after_expiry" => "tombstone",
        "store_on" => "free_on",
        "unknown_retention" => "max_run",
        "settle" => "upstream_timeout",
        "stream" => "answer",
        _ => "",
    };
    layers
        .iter()
        .rev()
        .find_map(|layer| layer.lines.get(error.field).or_else(|| layer.lines.get(other)).copied())
}

/// Returns every rule by its key, as it would be written in a file.
pub(crate) fn fields(policy: &Policy) -> Vec<(&'static str, Value)> {
    let duration = |length: Duration| Value::from(show_duration(length));
    let mut fields = vec![
        ("profile", json!(word_of(&PROFILES, &policy.profile))),
        ("key", json!(word_of(&KEY_RULES, &policy.key))),
        ("strict_key", json!(policy.strict_key)),
        ("scope", json!(word_of(&SCOPES, &policy.scope))),
        ("bind", json!(word_of(&BINDS, &policy.bind))),
        ("path", json!(word_of(&PATHS, &policy.path))),
        ("in_flight", json!(word_of(&IN_FLIGHTS, &policy.in_flight))),
        ("wait", duration(policy.wait)),
        ("answer", json!(word_of(&ANSWERS, &policy.answer))),
        ("lease", duration(policy.lease)),
        ("max_run", duration(policy.max_run)),
        ("retention", duration(policy.retention)),
        ("tombstone", duration(policy.tombstone)),
        ("after_expiry", json!(word_of(&AFTER_EXPIRIES, &policy.after_expiry))),
        ("on_lapse", json!(word_of(&ON_LAPSES, &policy.on_lapse))),
        ("on_server_error", json!(word_of(&ON_SERVER_ERRORS, &policy.on_server_error))),
        ("max_attempts", json!(policy.max_attempts)),
        ("pending_deadline", duration(policy.pending_deadline)),
        ("upstream_timeout", duration(policy.upstream_timeout)),
        ("linger", duration(policy.linger)),
        ("max_request_body", json!(show_size(policy.max_request_body))),
        ("max_response_body", json!(show_size(policy.max_response_body))),
        ("free_on", json!(policy.free_on)),
        ("stream", json!(policy.stream)),
        ("store_on", json!(policy.store_on)),
        ("not_executed_when", proof::show_rules(&policy.not_executed_when)),
        ("behind", json!(policy.behind.map(|hop| hop.preset().name))),
        ("unknown_retention", policy.unknown_retention.map_or(json!("never"), duration)),
        ("response_version", json!(policy.response_version)),
        ("key_from", json!(policy.key_from.sources().iter().map(ToString::to_string).collect::<Vec<_>>())),
        ("max_request_age", policy.request_age_max().map_or(Value::Null, duration)),
        ("first_sent", json!(policy.first_sent_field())),
        ("repeatable", json!(policy.repeatable)),
        ("not_replayed", json!(policy.not_replayed)),
        ("forward_key", json!(policy.forward_key.to_string())),
    ];
    fields.extend(fingerprint::fields(&policy.recipe));
    fields
}

const PROFILES: [(&str, Profile); 3] =
    [("ietf", Profile::Ietf), ("stripe", Profile::Stripe), ("repeatability", Profile::Repeatability)];
const KEY_RULES: [(&str, KeyRule); 2] = [("required", KeyRule::Required), ("optional", KeyRule::Optional)];
const SCOPES: [(&str, ScopeRule); 2] = [("operation", ScopeRule::Operation), ("tenant", ScopeRule::Tenant)];
const BINDS: [(&str, BindRule); 2] = [("tenant", BindRule::Tenant), ("principal", BindRule::Principal)];
const PATHS: [(&str, PathRule); 2] = [("strict", PathRule::Strict), ("as-sent", PathRule::AsSent)];
const IN_FLIGHTS: [(&str, InFlight); 3] =
    [("wait", InFlight::Wait), ("conflict", InFlight::Conflict), ("accepted", InFlight::Accepted)];
const ANSWERS: [(&str, AnswerRule); 3] =
    [("sync", AnswerRule::Sync), ("async", AnswerRule::Async), ("prefer", AnswerRule::Prefer)];
const AFTER_EXPIRIES: [(&str, AfterExpiry); 2] =
    [("execute", AfterExpiry::Execute), ("refuse", AfterExpiry::Refuse)];
const ON_LAPSES: [(&str, OnLapse); 4] = [
    ("unknown", OnLapse::Unknown),
    ("retry", OnLapse::Retry),
    ("resume", OnLapse::Resume),
    ("fail", OnLapse::Fail),
];
const ON_SERVER_ERRORS: [(&str, OnServerError); 3] =
    [("unknown", OnServerError::Unknown), ("retry", OnServerError::Retry), ("store", OnServerError::Store)];

const RESUME_LATER: &str = "a gateway sees no recovery points to resume after; use \"unknown\", or \"retry\" if the upstream deduplicates";

/// Largest body limit: whole bodies are held in memory, and SQLite accepts no value of a gigabyte.
const BODY_MAX: u64 = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preset_changes_what_it_names_and_nothing_else() {
        let defaults = Overlay { wait: Some(Duration::from_secs(1)), ..Overlay::default() };
        let preset = Overlay::preset("payments").unwrap();
        let policy = resolve(&[&defaults, &preset]);
        assert_eq!(policy, Policy::payments().with(|policy| policy.wait = Duration::from_secs(1)));
        assert!(Overlay::preset("paymnets").is_none());
    }

    #[test]
    fn the_defaults_of_the_profile_yield_to_all_other_settings() {
        let stripe = Overlay { profile: Some(Profile::Stripe), ..Overlay::default() };
        let ietf = Overlay { profile: Some(Profile::Ietf), ..Overlay::default() };
        let unknown = Overlay { on_server_error: Some(OnServerError::Unknown), ..Overlay::default() };
        assert_eq!(resolve(&[&stripe]), Policy::stripe());
        assert_eq!(resolve(&[&stripe, &ietf]), Policy::default());
        assert_eq!(resolve(&[&unknown, &stripe]).on_server_error, OnServerError::Unknown);
        assert_eq!(resolve(&[&unknown, &stripe]).scope, ScopeRule::Tenant);
        assert_eq!(resolve(&[&ietf, &Overlay::preset("stripe").unwrap()]), Policy::stripe());
    }

    #[test]
    fn every_rule_has_its_word() {
        for (_, policy) in ibid_core::policy::PRESETS {
            assert!(fields(&policy()).iter().all(|(_, value)| value != "?"));
        }
    }
}
