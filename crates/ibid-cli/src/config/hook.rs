//! One `[[hook]]`: a source of signed webhooks, and pointers to the outcome of a request or a call in its payload.

use std::io::Read as _;

use http::HeaderName;
use ibid::http::hooks::{
    Hook, HookMapping, HookSecret, HookTarget, Hooks, PlainSignature, SignatureEncoding, SignatureScheme,
    SignedContent,
};
use ibid::http::{Routes, Rule};
use ibid_core::fingerprint::Pointer;
use ibid_core::policy::Policy;
use serde_json::json;

use super::defaults::KeyDefaults;
use super::toml_reader::{Reader, Section};
use super::units::word_of;
use super::{RouteConfig, hook_target};

/// Reads every `[[hook]]` and checks it against the routes.
pub(super) fn read_all(
    root: &mut Section<'_, '_>,
    reader: &Reader<'_>,
    one_tenant: bool,
    defaults: &Policy,
    routes: &[RouteConfig],
    has_outbox: bool,
) -> Vec<Hook> {
    let sections = root.sections("hook", "hook");
    if sections.is_empty() {
        return Vec::new();
    }
    let rule = |route: &RouteConfig| {
        let policy = route.guard.then(|| route.policy.clone());
        Rule::new(route.methods.clone(), &route.pattern, policy)
    };
    // Routes that can't be used have been refused already.
    let routes = Routes::new(defaults.clone(), routes.iter().map(rule).collect()).ok();
    let mut hooks: Vec<Hook> = Vec::new();
    for section in sections {
        let line = section.line;
        let Some(hook) = read(section, reader, one_tenant) else { continue };
        if hooks.iter().any(|other| other.name == hook.name) {
            reader.refuse(line, format!("the hook `{}` is there twice", hook.name));
        }
        if let Some(Err(error)) = routes.as_ref().map(|routes| Hooks::new(vec![hook.clone()], routes)) {
            reader.refuse(line, error.to_string());
        }
        if !has_outbox && !matches!(hook.mapping.target, HookTarget::Record { .. }) {
            let hint = "use the database of the service whose outbox makes the calls: `sqlite:PATH` or `postgres://…`";
            let problem = format!("the hook `{}` speaks of effects, and the store has no outbox", hook.name);
            reader.refuse_with_hint(line, problem, hint);
        }
        hooks.push(hook);
    }
    hooks
}

fn read(mut section: Section<'_, '_>, reader: &Reader<'_>, one_tenant: bool) -> Option<Hook> {
    let line = section.line;
    let name =
        required_text(&mut section, reader, "name", "the last part of its address: `/.ibid/hooks/{name}`");
    let scheme = read_scheme(&mut section, reader);
    let secrets = read_secrets(&mut section, reader, scheme.as_ref());
    let provider_id = pointer(&mut section, reader, "provider_id");
    let target = hook_target::read(&mut section, reader, one_tenant, provider_id.as_ref());
    let outcome = required_pointer(&mut section, reader, "outcome", "where the payload has the outcome");
    let status = section.status("status").unwrap_or(STATUS);
    let statuses = section.statuses_by("statuses").unwrap_or_default();
    let executed = section.texts("executed").unwrap_or_default();
    if let Some((value, _)) = statuses.iter().find(|(value, _)| !executed.contains(value)) {
        let at = section.line_of("statuses").unwrap_or(line);
        reader.refuse(at, format!("`statuses` holds `{value}`, which is not among `executed`"));
    }
    let of = |value: &String| statuses.iter().find(|(known, _)| known == value).map_or(status, |(_, of)| *of);
    let executed = executed.into_iter().map(|value| (value.clone(), of(&value))).collect();
    let not_executed = section.texts("not_executed").unwrap_or_default();
    let body = pointer(&mut section, reader, "body").unwrap_or_else(Pointer::whole);
    let event = pointer(&mut section, reader, "event").or_else(|| default_event(scheme.as_ref()));
    let event_time = pointer(&mut section, reader, "event_time");
    section.finish();
    let mapping = HookMapping::new(target?, outcome?).with(|mapping| {
        mapping.executed = executed;
        mapping.not_executed = not_executed;
        mapping.body = body;
        mapping.provider_id = provider_id;
        mapping.event = event;
        mapping.event_time = event_time;
    });
    Some(Hook::new(name?, scheme?, secrets, mapping))
}

/// Returns the default pointer to the event's id: `/id` for Stripe.
fn default_event(scheme: Option<&SignatureScheme>) -> Option<Pointer> {
    matches!(scheme, Some(SignatureScheme::Stripe)).then(|| Pointer::parse("/id").ok())?
}

fn read_scheme(section: &mut Section<'_, '_>, reader: &Reader<'_>) -> Option<SignatureScheme> {
    let line = section.line;
    let words = [("standard", "standard"), ("stripe", "stripe"), ("hmac", "hmac")];
    let word = section.choice("scheme", &words, &[]);
    let header = header(section, reader, "header");
    let prefix = section.text("prefix").unwrap_or_default();
    let encoding = section.choice("encoding", &ENCODINGS, &[]).unwrap_or(ENCODING);
    let timestamp = section.text("timestamp");
    let signed = section.text("signed");
    let only_hmac = ["header", "prefix", "encoding", "timestamp", "signed"];
    match word {
        None if section.line_of("scheme").is_none() => {
            reader.refuse(line, "`scheme` is missing: how does the source sign?");
            None
        }
        None => None,
        Some("hmac") => {
            let signed = read_signed(section, reader, timestamp, signed);
            if header.is_none() && section.line_of("header").is_none() {
                reader.refuse(line, "`header` is missing: which field has the signature?");
            }
            let signature = PlainSignature::new(header?, signed?);
            Some(SignatureScheme::Hmac(signature.with(|signature| {
                signature.prefix = prefix;
                signature.encoding = encoding;
            })))
        }
        Some(word) => {
            for key in only_hmac {
                if let Some(at) = section.line_of(key) {
                    reader.refuse(at, format!("`{key}` has no effect with `scheme = \"{word}\"`"));
                }
            }
            Some(if word == "stripe" { SignatureScheme::Stripe } else { SignatureScheme::Standard })
        }
    }
}

/// Reads what a plain signature covers. A signature without a timestamp must be configured explicitly, because nothing
/// then bounds a replay in time.
fn read_signed(
    section: &Section<'_, '_>,
    reader: &Reader<'_>,
    timestamp: Option<String>,
    signed: Option<String>,
) -> Option<SignedContent> {
    let line = section.line_of("timestamp").unwrap_or(section.line);
    let Some(timestamp) = timestamp else {
        if section.line_of("timestamp").is_none() {
            reader.refuse_with_hint(
                line,
                "`timestamp` is missing: which field says when it was signed?",
                "if the source signs no instant write `timestamp = \"none\"`: an intercepted webhook can then be sent again \
                 at any time, and only its event's id stops it",
            );
        }
        return None;
    };
    let at = section.line_of("signed").unwrap_or(line);
    if timestamp == "none" {
        if signed.is_some_and(|signed| signed != "{body}") {
            reader.refuse(at, "`signed` must be \"{body}\" with `timestamp = \"none\"`");
        }
        return Some(SignedContent::BodyAlone);
    }
    let Ok(header) = timestamp.parse::<HeaderName>() else {
        reader.refuse(line, format!("`timestamp` is `{timestamp}`, which is not a header name"));
        return None;
    };
    let signed = signed.unwrap_or_else(|| SIGNED.to_owned());
    let parts = signed.strip_suffix("{body}").and_then(|rest| rest.split_once("{timestamp}"));
    match parts {
        Some((before, between)) if !between.contains('{') => Some(SignedContent::Timestamped {
            header,
            before: before.to_owned(),
            between: between.to_owned(),
        }),
        _ => {
            let hint = "write for example \"{timestamp}.{body}\" or \"v0:{timestamp}:{body}\"";
            reader.refuse_with_hint(at, "`signed` must hold {timestamp} and end with {body}", hint);
            None
        }
    }
}

fn read_secrets(
    section: &mut Section<'_, '_>,
    reader: &Reader<'_>,
    scheme: Option<&SignatureScheme>,
) -> Vec<HookSecret> {
    let texts = section.texts("secrets");
    let line = section.line_of("secrets").unwrap_or(section.line);
    if texts.as_ref().is_none_or(Vec::is_empty) {
        let hint = "write `secrets = [\"env:NAME\"]`, `[\"file:PATH\"]` or the secret itself";
        reader.refuse_with_hint(line, "`secrets` is missing: what are its webhooks signed with?", hint);
    }
    let mut secrets = Vec::new();
    for (nth, text) in (1..).zip(texts.into_iter().flatten()) {
        // Messages never repeat the text, because it may be the secret.
        let parsed = fetch(&text).and_then(|secret| match scheme {
            Some(scheme) => HookSecret::parse(scheme, &secret).map(Some).map_err(|error| error.to_string()),
            None => Ok(None),
        });
        match parsed {
            Ok(secret) => secrets.extend(secret),
            Err(problem) => reader.refuse(line, format!("secret {nth} of `secrets` {problem}")),
        }
    }
    secrets
}

/// Returns the secret that a setting names: the text itself, or the contents of a variable, or of a file without its line
/// end.
fn fetch(text: &str) -> Result<String, String> {
    if let Some(name) = text.strip_prefix("env:") {
        return std::env::var(name).map_err(|_| format!("is in the variable `{name}`, which is not set"));
    }
    let Some(path) = text.strip_prefix("file:") else { return Ok(text.to_owned()) };
    let mut secret = String::new();
    let file =
        std::fs::File::open(path).and_then(|file| file.take(SECRET_BYTES_MAX).read_to_string(&mut secret));
    file.map_err(|error| format!("is in the file `{path}`, which can't be read: {error}"))?;
    Ok(secret.trim_end_matches(['\r', '\n']).to_owned())
}

fn required_text(
    section: &mut Section<'_, '_>,
    reader: &Reader<'_>,
    key: &'static str,
    what: &str,
) -> Option<String> {
    let text = section.text(key);
    if text.is_none() && section.line_of(key).is_none() {
        reader.refuse(section.line, format!("`{key}` is missing: {what}"));
    }
    text
}

fn required_pointer(
    section: &mut Section<'_, '_>,
    reader: &Reader<'_>,
    key: &'static str,
    what: &str,
) -> Option<Pointer> {
    let pointer = pointer(section, reader, key);
    if pointer.is_none() && section.line_of(key).is_none() {
        reader.refuse(section.line, format!("`{key}` is missing: {what}"));
    }
    pointer
}

pub(super) fn pointer(
    section: &mut Section<'_, '_>,
    reader: &Reader<'_>,
    key: &'static str,
) -> Option<Pointer> {
    let text = section.text(key)?;
    let line = section.line_of(key).unwrap_or(section.line);
    Pointer::parse(&text).inspect_err(|error| reader.refuse(line, format!("`{key}`: {error}"))).ok()
}

fn header(section: &mut Section<'_, '_>, reader: &Reader<'_>, key: &'static str) -> Option<HeaderName> {
    let text = section.text(key)?;
    let line = section.line_of(key).unwrap_or(section.line);
    let problem = || reader.refuse(line, format!("`{key}` is `{text}`, which is not a header name"));
    text.parse().inspect_err(|_| problem()).ok()
}

/// Returns the defaults of a `[[hook]]` by their keys.
pub(super) fn defaults() -> KeyDefaults {
    vec![
        ("prefix", json!("")),
        ("encoding", json!(word_of(&ENCODINGS, &ENCODING))),
        ("signed", json!(SIGNED)),
        ("executed", json!([])),
        ("not_executed", json!([])),
        ("status", json!(STATUS)),
        ("statuses", json!({})),
        ("body", json!(Pointer::whole().as_str())),
    ]
}

/// Words for the encoding of a digest.
const ENCODINGS: [(&str, SignatureEncoding); 2] =
    [("hex", SignatureEncoding::Hex), ("base64", SignatureEncoding::Base64)];

/// Default encoding of a digest: most senders without a standard write hex.
const ENCODING: SignatureEncoding = SignatureEncoding::Hex;

/// Default signed text. The sender's time makes an old webhook recognisable.
const SIGNED: &str = "{timestamp}.{body}";

/// Default status of a response that a provider reported: it is a report, not the result of a handler.
const STATUS: u16 = 200;

/// Largest file that a secret is read from.
const SECRET_BYTES_MAX: u64 = 4 << 10;
