//! The default of each key, as it would be written in a file.
//!
//! A default is defined once, by the code that uses it: `Settings`, `Schedule`, `Retention`, `Policy`, `Cors`, `ServerConfig`, or a
//! constant of the reader. This module only writes it out, for the reference page and for hints.

use std::time::Duration;

use ibid::http::Cors;
use ibid_core::policy::Policy;
use serde_json::{Value, json};

use super::units::{show_duration, show_size};
use super::{ADMIN_LISTEN, LISTEN, ServerConfig, StoreOptions, StoreUrl, Upkeep, hook, policy, route};
use crate::gateway::tenant::TRUSTED;

/// Returns the default of a key in the notation of the file; `None` if the key has none.
pub(crate) fn default_of(section: &str, key: &str) -> Option<String> {
    let defaults = match section {
        "" => vec![
            ("listen", json!(LISTEN)),
            ("admin_listen", json!(ADMIN_LISTEN)),
            ("upstream_http2", json!(false)),
        ],
        "store" => store(),
        "front" => vec![("timeout", duration(ibid::front::TIMEOUT))],
        "tenant" => vec![("trusted", json!(TRUSTED))],
        "defaults" => rules(),
        "route" => vec![("guard", json!("on"))],
        "route.reconcile" => route::reconcile_defaults(),
        "hook" => hook::defaults(),
        "upkeep" => upkeep(),
        "cors" => cors(),
        "server" => server(),
        _ => Vec::new(),
    };
    let (_, value) = defaults.into_iter().find(|(known, _)| *known == key)?;
    (!value.is_null()).then(|| to_toml(&value))
}

fn store() -> KeyDefaults {
    let options = StoreOptions::default();
    vec![
        ("url", json!(StoreUrl::default().to_string())),
        ("durability", json!("durable")),
        ("begin_timeout", duration(options.begin_timeout)),
        ("finish_wait", duration(options.finish_wait)),
        ("cache_bytes", json!(show_size(options.cache_bytes))),
        ("cache_ttl", duration(options.cache_ttl)),
        ("identity_valid_for", duration(options.identity_valid_for)),
    ]
}

fn rules() -> KeyDefaults {
    let policy = Policy::default();
    let mut fields = policy::fields(&policy);
    for (key, value) in &mut fields {
        match *key {
            // One source is usually written without brackets.
            "key_from" => *value = field_names(&value[0]),
            "first_sent" => *value = field_names(value),
            _ => {}
        }
    }
    fields
}

fn upkeep() -> KeyDefaults {
    let upkeep = Upkeep::default();
    vec![
        ("run", json!(upkeep.run)),
        ("sweep_every", duration(upkeep.sweep_every)),
        ("reap_every", duration(upkeep.reap_every)),
        ("keep_effects", duration(upkeep.keep.effects)),
        ("keep_history", duration(upkeep.keep.history)),
        ("reconcile_every", duration(upkeep.reconcile_every)),
        ("duplicate_percent", json!(upkeep.duplicate_percent)),
    ]
}

fn cors() -> KeyDefaults {
    let cors = Cors::default();
    vec![
        ("origins", json!(cors.origins())),
        ("credentials", json!(cors.allows_credentials())),
        ("max_age", duration(cors.remembered_for())),
    ]
}

fn server() -> KeyDefaults {
    let server = ServerConfig::default();
    vec![
        ("max_connections", json!(server.max_connections)),
        ("max_streams", json!(server.max_streams)),
        ("max_resets", json!(server.max_resets)),
        ("max_guarded", json!(server.max_guarded)),
        ("max_guarded_per_connection", json!(server.max_guarded_per_connection)),
        ("max_passed", json!(server.max_passed)),
        ("max_upstream_connections", json!(server.max_upstream_connections)),
        ("max_buffered_bytes", json!(show_size(server.max_buffered_bytes))),
        ("max_reply_bytes", json!(show_size(server.max_reply_bytes))),
        ("header_timeout", duration(server.header_timeout)),
        ("idle_timeout", duration(server.idle_timeout)),
        ("body_timeout", duration(server.body_timeout)),
        ("stall_timeout", duration(server.stall_timeout)),
        ("drain_for", duration(server.drain_for)),
    ]
}

pub(super) fn duration(length: Duration) -> Value {
    Value::from(show_duration(length))
}

/// Writes a value as TOML. No default is a non-empty table.
fn to_toml(value: &Value) -> String {
    match value {
        Value::Array(values) => format!("[{}]", values.iter().map(to_toml).collect::<Vec<_>>().join(", ")),
        value => value.to_string(),
    }
}

/// Returns header names in their usual case; the code has them in lower case.
fn field_names(value: &Value) -> Value {
    let text = value.as_str().unwrap_or_default();
    let (prefix, name) =
        text.split_once(':').map_or(("", text), |(_, name)| (&text[..text.len() - name.len()], name));
    let words = name.split('-').map(|word| {
        let (first, rest) = word.split_at(word.len().min(1));
        first.to_ascii_uppercase() + rest
    });
    json!(format!("{prefix}{}", words.collect::<Vec<_>>().join("-")))
}

/// Keys of one table with their defaults.
pub(super) type KeyDefaults = Vec<(&'static str, Value)>;
