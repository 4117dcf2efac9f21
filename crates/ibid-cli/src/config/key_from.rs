//! The key `key_from`: the sources of a request's idempotency key.

use ibid_core::key_source::{KeyFrom, KeySourceError, PRESETS};
use ibid_core::policy::Policy;
use ibid_core::repeatability::FIRST_SENT;

use super::RouteConfig;
use super::toml_reader::{Reader, Section};
use super::units::near_miss;
use crate::gateway::tenant::{TenantConfig, TenantFrom};

/// Reads the key sources of one table.
pub(super) fn read(section: &mut Section<'_, '_>, reader: &Reader<'_>) -> Option<KeyFrom> {
    let texts = section.text_or_texts("key_from")?;
    match KeyFrom::parse(texts.iter().map(String::as_str)) {
        Ok(key_from) => Some(key_from),
        Err(error) => {
            let line = section.line_of("key_from").unwrap_or(section.line);
            reader.refuse_with_hint(line, format!("`key_from`: {error}"), hint(&error));
            None
        }
    }
}

/// Reads the name of the field that has the time at which a request was first sent.
pub(super) fn read_first_sent(section: &mut Section<'_, '_>, reader: &Reader<'_>) -> Option<Option<String>> {
    let name = section.text("first_sent")?;
    if name.parse::<http::HeaderName>().is_err() {
        let line = section.line_of("first_sent").unwrap_or(section.line);
        reader.refuse(line, format!("`first_sent` is `{name}`, which is not a header name"));
        return None;
    }
    Some(Some(name.to_ascii_lowercase()).filter(|name| name != FIRST_SENT))
}

/// Refuses a header that would carry both the tenant and the key.
pub(super) fn check_tenant(
    tenant: Option<&TenantConfig>,
    defaults: &Policy,
    routes: &[RouteConfig],
    reader: &Reader<'_>,
) {
    let Some(TenantFrom::Header(name)) = tenant.map(|how| &how.from) else { return };
    let policies = routes.iter().map(|route| (&route.policy, route.line)).chain([(defaults, 0)]);
    let carries_key = |policy: &Policy| {
        let mut names = policy.key_from.header_names().chain(policy.forward_key.header());
        names.any(|other| other == name.as_str())
    };
    if let Some((_, line)) = policies.into_iter().find(|(policy, _)| carries_key(policy)) {
        let problem = format!("`{name}` can't carry both the tenant and the key");
        let hint = "give `key_from` or `forward_key` another header";
        reader.keep(line, crate::output::Failure::usage(problem).hint(hint));
    }
}

fn hint(error: &KeySourceError) -> String {
    let known = || PRESETS.iter().map(|(name, _)| *name);
    match error {
        KeySourceError::Unknown(text) => match near_miss(text, known()) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => {
                let names: Vec<String> = known().map(|name| format!("\"{name}\"")).collect();
                format!("write \"header:NAME\", \"body:/pointer\", or a preset: {}", names.join(", "))
            }
        },
        KeySourceError::Pointer(_) | KeySourceError::WholeBody => {
            "write for example \"body:/idempotency_key\"".to_owned()
        }
        _ => "write for example \"header:Idempotency-Key\"".to_owned(),
    }
}
