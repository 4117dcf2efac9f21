//! One `[[route]]`: the requests that it matches, and its reconcile rule.

use std::collections::BTreeMap;
use std::time::Duration;

use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue, Method};
use ibid_core::policy::{Policy, Question, Reconcile};
use serde_json::json;

use super::defaults::{KeyDefaults, duration};
use super::policy::Overlay;
use super::toml_reader::{Reader, Section};
use super::units::near_miss;
use crate::gateway::reconcile::fill;

/// A `[route.reconcile]` as written in the file.
#[derive(Debug)]
pub(super) struct RuleDraft {
    pub(super) question: Question,
    /// `None` derives it from `upstream_timeout`.
    settle: Option<Duration>,
    attempts: u32,
}

impl RuleDraft {
    /// Returns the rule as records store it.
    pub(super) fn build(&self, pattern: &str, policy: &Policy) -> Reconcile {
        let settle = self.settle.unwrap_or_else(|| SETTLE.max(2 * policy.upstream_timeout));
        Reconcile::new(settle, self.attempts).with(|rule| {
            rule.route = Some(pattern.to_owned());
            rule.question = Some(self.question.clone());
        })
    }

    /// Returns whether the lookup request contains `{name}`.
    pub(super) fn carries(&self, name: &str) -> bool {
        texts(&self.question).any(|text| placeholders(text).iter().any(|held| held == name))
    }
}

/// A route as written in the file, before the layers are combined.
pub(super) struct RouteDraft {
    pub(super) methods: Vec<Method>,
    pub(super) pattern: String,
    pub(super) guard: bool,
    pub(super) preset: Option<String>,
    pub(super) preset_rules: Overlay,
    pub(super) rules: Overlay,
    pub(super) reconcile: Option<RuleDraft>,
    pub(super) reconcile_line: usize,
    pub(super) line: usize,
}

impl RouteDraft {
    /// Reads the route in this table. Returns `None` if it has no valid `match`.
    pub(super) fn read(
        mut section: Section<'_, '_>,
        reader: &Reader<'_>,
        one_tenant: bool,
    ) -> Option<RouteDraft> {
        let rules = Overlay::read(&mut section, reader);
        if section.positive("pass_timeout").is_some() {
            let line = section.line_of("pass_timeout").unwrap_or(section.line);
            let problem =
                "`pass_timeout` belongs into `[defaults]`: it applies to every request that is not guarded";
            reader.refuse(line, problem);
        }
        let target = section.text("match");
        let line = section.line_of("match").unwrap_or(section.line);
        let guard = section.choice("guard", &[("on", true), ("off", false)], &[]).unwrap_or(true);
        let preset = section.text("preset");
        let preset_rules = match &preset {
            Some(name) => preset_of(name, section.line_of("preset").unwrap_or(line), reader),
            None => Overlay::default(),
        };
        let inner = section.section("reconcile", "route.reconcile");
        let reconcile_line = if inner.is_there() { inner.line } else { line };
        section.finish();
        let Some(target) = target else {
            let hint = "write for example `match = \"POST /payments\"`";
            reader.refuse_with_hint(
                line,
                "`match` is missing: a route must say which requests it is for",
                hint,
            );
            return None;
        };
        let (methods, pattern) = match parse_match(&target) {
            Ok(read) => read,
            Err((problem, hint)) => {
                reader.refuse_with_hint(line, format!("`match` {problem}"), hint);
                return None;
            }
        };
        let names = placeholders(&pattern);
        let reconcile = inner.is_there().then(|| read_rule(inner, reader, &names, one_tenant)).flatten();
        Some(RouteDraft {
            methods,
            pattern,
            guard,
            preset,
            preset_rules,
            rules,
            reconcile,
            reconcile_line,
            line,
        })
    }

    /// Returns the name of the route in messages: `POST,PUT /orders/{id}`.
    pub(super) fn name(&self) -> String {
        let methods: Vec<&str> = self.methods.iter().map(Method::as_str).collect();
        format!("{} {}", methods.join(","), self.pattern)
    }
}

/// Refuses routes that match the same requests.
pub(super) fn check_conflicts(routes: &[RouteDraft], reader: &Reader<'_>) {
    let mut routers: BTreeMap<String, matchit::Router<()>> = BTreeMap::new();
    for (at, route) in routes.iter().enumerate() {
        for method in &route.methods {
            let router = routers.entry(method.to_string()).or_default();
            if router.insert(route.pattern.as_str(), ()).is_ok() {
                continue;
            }
            // Finds the other route, and so its line, by inserting each pair into a new router.
            let rival = routes[..at].iter().find(|other| {
                let mut pair = matchit::Router::new();
                let first = pair.insert(other.pattern.as_str(), ());
                other.methods.contains(method)
                    && first.is_ok()
                    && pair.insert(route.pattern.as_str(), ()).is_err()
            });
            let (with, line) = rival.map_or((route.name(), route.line), |rival| (rival.name(), rival.line));
            let problem =
                format!("`{}` takes the same {method} requests as `{with}` on line {line}", route.name());
            reader.refuse_with_hint(
                route.line,
                problem,
                "a request must fit one route: join them, or change one path",
            );
        }
    }
}

pub(super) type Complaint = (String, String);

/// Parses methods and a path pattern: `POST,PUT /orders/{id}`.
pub(super) fn parse_match(target: &str) -> Result<(Vec<Method>, String), Complaint> {
    let form = || "write for example \"POST /payments\" or \"POST,PUT /orders/{id}\"".to_owned();
    let Some((words, pattern)) = target.trim().split_once(char::is_whitespace) else {
        return Err((format!("is `{target}`, not methods and a path"), form()));
    };
    let mut methods = Vec::new();
    for word in words.split(',') {
        let method = parse_method(word)?;
        if methods.contains(&method) {
            return Err((format!("names `{word}` twice"), form()));
        }
        methods.push(method);
    }
    let pattern = pattern.trim();
    if !pattern.starts_with('/') {
        return Err((format!("has the path `{pattern}`, which does not begin with `/`"), form()));
    }
    if pattern.contains(['?', '#']) || pattern.contains(char::is_whitespace) {
        let hint = "a route is chosen by its path alone".to_owned();
        return Err((format!("has the path `{pattern}`, which holds more than a path"), hint));
    }
    if let Some(old) = pattern.split('/').find(|segment| segment.starts_with([':', '*'])) {
        let new = old.trim_start_matches(':');
        return Err((
            format!("has the segment `{old}`, which would be taken literally"),
            format!("write `{{{new}}}`"),
        ));
    }
    matchit::Router::new().insert(pattern, ()).map_err(|error| {
        let hint = "`{name}` takes one whole segment, `{*rest}` stands at the end".to_owned();
        (format!("has a path that can't be matched: {}", error.to_string().to_lowercase()), hint)
    })?;
    Ok((methods, pattern.to_owned()))
}

fn parse_method(word: &str) -> Result<Method, Complaint> {
    if let Some(method) = METHODS.iter().find(|method| **method == word) {
        return Ok(method.parse().expect("every name of the table is a method"));
    }
    let hint = "a route is for POST, PATCH, PUT, DELETE or another method that changes something".to_owned();
    if ["GET", "HEAD", "OPTIONS", "TRACE", "QUERY"].contains(&word) {
        return Err((format!("names `{word}`, which is never guarded: it changes nothing"), hint));
    }
    if word == "CONNECT" {
        return Err((format!("names `{word}`, which the gateway refuses"), hint));
    }
    // A method that is nearly a known one is a typing error, and no request would match this route.
    let problem = || format!("names `{word}`, which is no method that can be guarded");
    if let Some(near) = near_miss(word, METHODS) {
        return Err((problem(), format!("did you mean `{near}`?")));
    }
    let is_upper = !word.bytes().any(|byte| byte.is_ascii_lowercase());
    Method::from_bytes(word.as_bytes()).ok().filter(|_| is_upper).ok_or_else(|| (problem(), hint))
}

fn preset_of(name: &str, line: usize, reader: &Reader<'_>) -> Overlay {
    let known = || ibid_core::policy::PRESETS.iter().map(|(known, _)| *known);
    Overlay::preset(name).unwrap_or_else(|| {
        let hint = match near_miss(name, known()) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => format!("there are {}", known().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ")),
        };
        reader.refuse_with_hint(
            line,
            format!("`preset` is \"{name}\", and there is no preset of that name"),
            hint,
        );
        Overlay::default()
    })
}

fn read_rule(
    mut section: Section<'_, '_>,
    reader: &Reader<'_>,
    names: &[String],
    one_tenant: bool,
) -> Option<RuleDraft> {
    let request = section.text("request");
    let request_line = section.line_of("request").unwrap_or(section.line);
    let question = Question {
        path: request
            .as_deref()
            .and_then(|request| request.strip_prefix("GET "))
            .unwrap_or("")
            .trim()
            .to_owned(),
        headers: section.pairs("headers").unwrap_or_default(),
        executed: section.statuses("executed").unwrap_or_else(|| EXECUTED.to_vec()),
        not_executed: section.statuses("not_executed").unwrap_or_else(|| NOT_EXECUTED.to_vec()),
        status: section.status("status"),
    };
    let settle = section.positive("settle");
    let attempts = section.count("attempts").unwrap_or(ATTEMPTS);
    let lines = section.lines().clone();
    let line_of = |key: &str| lines.get(key).copied().unwrap_or(section.line);
    if request.is_none() && !lines.contains_key("request") {
        reader.refuse(section.line, "`request` is missing: how is the upstream asked?");
    } else if request.is_some() && !question.path.starts_with('/') {
        let hint = "write for example \"GET /payments/by-key/{key}\"";
        reader.refuse_with_hint(
            request_line,
            "`request` must be GET and a path: asking must change nothing",
            hint,
        );
    } else if request.is_some() && !is_target(&question.path) {
        reader.refuse(request_line, "`request` can't be sent: its path is no path of a URL");
    }
    for (name, value) in &question.headers {
        if let Some(problem) = header_problem(name, value) {
            reader.refuse(line_of("headers"), format!("`headers` holds `{name}`, {problem}"));
        }
    }
    for name in texts(&question).flat_map(placeholders) {
        if !["key", "tenant"].contains(&name.as_str()) && !names.contains(&name) {
            let hint = "there are {key}, {tenant} and the names in `match`";
            reader.refuse_with_hint(
                request_line,
                format!("`{{{name}}}` is nothing that can be filled in"),
                hint,
            );
        }
    }
    if !one_tenant && !texts(&question).any(|text| text.contains("{tenant}")) {
        let problem = "the reconcile rule does not carry {tenant} in `request` or `headers`";
        let hint = "without it one tenant's response could settle another's record; with `tenant = none` it may be left out";
        reader.refuse_with_hint(section.line, problem, hint);
    }
    if let Some(both) = question.executed.iter().find(|status| question.not_executed.contains(status)) {
        reader.refuse(
            line_of("not_executed"),
            format!("`{both}` can't mean both `executed` and `not_executed`"),
        );
    }
    section.finish();
    Some(RuleDraft { question, settle, attempts })
}

/// Returns every text of a lookup request that may contain placeholders.
fn texts(question: &Question) -> impl Iterator<Item = &str> {
    let values = question.headers.iter().map(|(_, value)| value.as_str());
    std::iter::once(question.path.as_str()).chain(values)
}

/// Returns whether the path is a valid request target once its placeholders are filled in.
fn is_target(path: &str) -> bool {
    let filled = fill(path, |_| Some("x".to_owned()));
    !path.contains('#') && filled.is_some_and(|path| PathAndQuery::try_from(path).is_ok())
}

/// Returns the problem of a header in a lookup request, if it has one.
fn header_problem(name: &str, value: &str) -> Option<&'static str> {
    let Ok(name) = name.parse::<HeaderName>() else { return Some("which is not a header name") };
    let filled = fill(value, |_| Some("x".to_owned()));
    if NOT_ASKED_WITH.contains(&name.as_str()) {
        return Some("which the gateway sets by itself");
    }
    let fits = filled.is_some_and(|value| HeaderValue::from_str(&value).is_ok());
    (!fits).then_some("whose value can't be sent")
}

/// Returns the names in braces.
pub(super) fn placeholders(text: &str) -> Vec<String> {
    let opened = text.split('{').skip(1);
    opened.filter_map(|rest| Some(rest.split_once('}')?.0.trim_start_matches('*').to_owned())).collect()
}

/// Returns the defaults of `[route.reconcile]` by their keys.
pub(super) fn reconcile_defaults() -> KeyDefaults {
    vec![
        ("headers", json!({})),
        ("executed", json!(EXECUTED)),
        ("not_executed", json!(NOT_EXECUTED)),
        ("settle", duration(SETTLE)),
        ("attempts", json!(ATTEMPTS)),
    ]
}

/// Default statuses of a lookup that mean that the request was executed.
const EXECUTED: [u16; 1] = [200];

/// Default statuses of a lookup that mean that it was not executed: a resource that was never created is not found.
const NOT_EXECUTED: [u16; 1] = [404];

/// Default number of lookups before the record is a dead letter. With growing pauses they span a longer outage.
const ATTEMPTS: u32 = 10;

/// Default time between two "not executed" results: twice the default time-out of the upstream.
const SETTLE: Duration = Duration::from_secs(60);

/// Header fields that control how a request is sent or what may come back; the gateway sets them.
const NOT_ASKED_WITH: [&str; 8] = [
    "accept-encoding",
    "connection",
    "content-length",
    "expect",
    "host",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// Known methods that a route may name. Others are accepted unless they look like a misspelling of one of these.
const METHODS: [&str; 20] = [
    "POST",
    "PATCH",
    "PUT",
    "DELETE",
    "ACL",
    "BIND",
    "CHECKOUT",
    "COPY",
    "LINK",
    "LOCK",
    "MERGE",
    "MKCOL",
    "MOVE",
    "PROPFIND",
    "PROPPATCH",
    "PURGE",
    "REPORT",
    "SEARCH",
    "UNLINK",
    "UNLOCK",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_match_is_methods_and_a_path() {
        let (methods, pattern) = parse_match("POST,PUT  /orders/{id}").unwrap();
        assert_eq!((methods, pattern.as_str()), (vec![Method::POST, Method::PUT], "/orders/{id}"));
        assert_eq!(parse_match("DELETE /a/{*rest}").unwrap().1, "/a/{*rest}");
        for method in ["PURGE", "MKCOL", "X-REINDEX"] {
            assert_eq!(parse_match(&format!("{method} /a")).unwrap().0[0].as_str(), method);
        }
    }

    #[test]
    fn what_can_not_be_matched_says_why() {
        for (target, problem) in [
            ("/payments", "not methods and a path"),
            ("POST payments", "does not begin with `/`"),
            ("GET /payments", "never guarded"),
            ("POST,OPTIONS /payments", "never guarded"),
            ("QUERY /payments", "never guarded"),
            ("CONNECT /payments", "refuses"),
            ("POTS /payments", "no method"),
            ("PO(ST /payments", "no method"),
            ("reindex /payments", "no method"),
            ("post /payments", "no method"),
            ("POST,POST /payments", "twice"),
            ("POST /payments?x=1", "more than a path"),
            ("POST /payments/:id", "literally"),
            ("POST /payments/*", "literally"),
            ("POST /{a}-{b}", "one parameter"),
            ("POST /{*rest}/x", "end of a route"),
            ("POST /{}", "valid name"),
        ] {
            let (message, hint) = parse_match(target).unwrap_err();
            assert!(message.contains(problem), "{target}: {message}");
            assert!(!hint.is_empty());
        }
        assert_eq!(parse_match("post /x").unwrap_err().1, "did you mean `POST`?");
        assert_eq!(parse_match("POST /a/:id").unwrap_err().1, "write `{id}`");
        assert_eq!(parse_match("POST /a/*rest").unwrap_err().1, "write `{*rest}`");
    }
}
