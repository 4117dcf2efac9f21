//! `ibid config check`: prints the effective configuration, route by route.

use std::io::Write;

use ibid::http::hooks::{Hook, HookTarget};
use ibid_core::policy::{Policy, Reconcile};
use serde_json::{Map, Value, json};

use crate::args::ConfigCheckArgs;
use crate::config::units::{show_duration, show_size};
use crate::config::{self, Config, EnvVars, RouteConfig, policy};
use crate::output::{Failure, Failures, print_fields, print_json, print_line, print_table};

/// Checks the configuration and prints it to `out`; warnings go to `talk`.
pub(crate) fn run(
    args: &ConfigCheckArgs,
    variables: &EnvVars,
    out: &mut dyn Write,
    talk: &mut dyn Write,
) -> Result<(), Failures> {
    let config = Config::load(&args.gateway, variables)?;
    if args.json {
        print_json(out, &as_json(&config))?;
    } else {
        print(&config, out)?;
    }
    for warning in &config.warnings {
        print_line(talk, format_args!("warning: {warning}"))?;
    }
    Ok(())
}

fn print(config: &Config, out: &mut dyn Write) -> Result<(), Failure> {
    let file = config.file.as_ref().map_or("none".to_owned(), |path| path.display().to_string());
    let fields = [
        ("file", file),
        ("upstream", format!("{}{}", config.upstream, if config.upstream_http2 { " (HTTP/2)" } else { "" })),
        ("listen", config.listen.to_string()),
        ("admin_listen", config.admin_listen.to_string()),
        ("store", config.store.to_string()),
        ("front", config.front.as_ref().map_or("none".to_owned(), |front| front.url.to_string())),
        ("tenant", config.tenant.word()),
    ];
    print_fields(out, &fields)?;
    print_line(out, "")?;

    let mut columns = vec!["route"];
    columns.extend(COLUMNS);
    columns.extend(["reconcile", "besides"]);
    let guarded = config.routes.iter().filter(|route| route.guard);
    let mut rows: Vec<Vec<String>> = guarded.map(|route| row(&name(route), &route.policy)).collect();
    rows.push(row(config::EVERY_OTHER, &config.defaults));
    print_table(out, &columns, rows)?;

    print_line(out, "\nnot guarded:")?;
    for route in config.routes.iter().filter(|route| !route.guard) {
        print_line(out, format_args!("  {} (line {})", name(route), route.line))?;
    }
    print_line(out, format_args!("  {}", config::PASSES))?;
    if !config.hooks.is_empty() {
        print_line(out, "\nsettled by webhook:")?;
    }
    for hook in &config.hooks {
        print_line(out, format_args!("  {} by `/.ibid/hooks/{}`", target(hook), hook.name))?;
    }
    Ok(())
}

/// Returns the row of one policy: the rules that routes are compared by, and all others that differ from the built-in ones.
fn row(name: &str, policy: &Policy) -> Vec<String> {
    let fields = policy::fields(policy);
    let built_in = policy::fields(&Policy::default());
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let of = |key: &&str| {
        fields.iter().find(|(name, _)| name == key).map_or(String::new(), |(_, value)| plain(value))
    };
    let besides = fields
        .iter()
        .zip(&built_in)
        .filter(|((key, value), (_, usual))| value != usual && !COLUMNS.contains(key));
    let besides: Vec<String> = besides.map(|((key, value), _)| format!("{key}={}", plain(value))).collect();
    let mut row = vec![name.to_owned()];
    row.extend(COLUMNS.iter().map(of));
    row.push(if policy.reconcile.is_some() { "yes" } else { "no" }.to_owned());
    row.push(besides.join(" "));
    row
}

/// Returns the route as it is written in the file: `POST,PUT /orders/{id}`.
fn name(route: &RouteConfig) -> String {
    let methods: Vec<&str> = route.methods.iter().map(http::Method::as_str).collect();
    format!("{} {}", methods.join(","), route.pattern)
}

fn as_json(config: &Config) -> Value {
    let routes: Vec<Value> = config.routes.iter().map(route_json).collect();
    json!({
        "file": config.file.as_ref().map(|path| path.display().to_string()),
        "upstream": config.upstream.to_string(),
        "upstream_http2": config.upstream_http2,
        "listen": config.listen.to_string(),
        "admin_listen": config.admin_listen.to_string(),
        "store": {
            "url": config.store.to_string(),
            "begin_timeout": show_duration(config.store_options.begin_timeout),
            "finish_wait": show_duration(config.store_options.finish_wait),
            "cache_bytes": show_size(config.store_options.cache_bytes),
            "cache_ttl": show_duration(config.store_options.cache_ttl),
            "identity_valid_for": show_duration(config.store_options.identity_valid_for),
        },
        "front": config.front.as_ref().map(|front| json!({
            "url": front.url.to_string(),
            "timeout": show_duration(front.timeout),
        })),
        "tenant": {
            "from": config.tenant.word(),
            "trusted": config.tenant.trusted.iter().map(ToString::to_string).collect::<Vec<_>>(),
        },
        "admin_api": config.admin_token.is_some(),
        // The number only, never the secrets.
        "fingerprint": { "secrets": config.secrets.len() },
        "defaults": policy_json(&config.defaults),
        "pass_timeout": config.pass_timeout.map(show_duration),
        "routes": routes,
        "hooks": config.hooks.iter().map(hook_json).collect::<Vec<_>>(),
        "upkeep": {
            "run": config.upkeep.run,
            "sweep_every": show_duration(config.upkeep.sweep_every),
            "reap_every": show_duration(config.upkeep.reap_every),
            "keep_effects": show_duration(config.upkeep.keep.effects),
            "keep_history": show_duration(config.upkeep.keep.history),
            "reconcile_every": show_duration(config.upkeep.reconcile_every),
            "duplicate_percent": config.upkeep.duplicate_percent,
        },
        "cors": {
            "origins": config.cors.origins(),
            "credentials": config.cors.allows_credentials(),
            "max_age": show_duration(config.cors.remembered_for()),
        },
        "server": {
            "max_connections": config.server.max_connections,
            "header_timeout": show_duration(config.server.header_timeout),
            "idle_timeout": show_duration(config.server.idle_timeout),
            "body_timeout": show_duration(config.server.body_timeout),
            "drain_for": show_duration(config.server.drain_for),
        },
        "warnings": config.warnings,
    })
}

fn route_json(route: &RouteConfig) -> Value {
    json!({
        "match": name(route),
        "guard": if route.guard { "on" } else { "off" },
        "line": route.line,
        "policy": policy_json(&route.policy),
        "reconcile": route.policy.reconcile.as_ref().and_then(rule_json),
    })
}

/// Describes the records or effects that a hook settles.
fn target(hook: &Hook) -> String {
    match &hook.mapping.target {
        HookTarget::Record { operation, .. } => format!("{} {}", operation.method, operation.path),
        HookTarget::DownstreamKey(_) => "effects found by their key".to_owned(),
        HookTarget::ProviderId(at) => format!("effects of kind `{}` found by the provider's id", at.kind),
        HookTarget::Either { provider_id: at, .. } => {
            format!("effects found by their key, or of kind `{}` by the provider's id", at.kind)
        }
    }
}

fn hook_json(hook: &Hook) -> Value {
    let (is_record, kind) = match &hook.mapping.target {
        HookTarget::Record { .. } => (true, None),
        HookTarget::DownstreamKey(_) => (false, None),
        HookTarget::ProviderId(at) | HookTarget::Either { provider_id: at, .. } => (false, Some(&at.kind)),
    };
    json!({
        "name": hook.name,
        "match": is_record.then(|| target(hook)),
        "by_downstream_key": matches!(hook.mapping.target, HookTarget::DownstreamKey(_) | HookTarget::Either { .. }),
        "kind": kind,
        // The number only, never the secrets.
        "secrets": hook.secrets.len(),
        "executed": hook.mapping.executed.iter().map(|(value, _)| value).collect::<Vec<_>>(),
        "not_executed": hook.mapping.not_executed,
    })
}

fn rule_json(rule: &Reconcile) -> Option<Value> {
    let question = rule.question.as_ref()?;
    let headers: Map<String, Value> =
        question.headers.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    Some(json!({
        "request": format!("GET {}", question.path),
        "headers": headers,
        "executed": question.executed,
        "not_executed": question.not_executed,
        "settle": show_duration(rule.settle),
        "attempts": rule.attempts,
        "status": question.status,
    }))
}

/// Returns every rule of a policy, by its key.
pub(super) fn policy_json(policy: &Policy) -> Value {
    policy::fields(policy)
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect::<Map<_, _>>()
        .into()
}

/// Keys of the rules that routes are usually compared by.
const COLUMNS: [&str; 8] =
    ["profile", "key", "scope", "in_flight", "lease", "retention", "on_lapse", "on_server_error"];
