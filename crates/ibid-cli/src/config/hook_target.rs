//! The target of a `[[hook]]`: a record, found by tenant, operation and key, or an effect, found by its downstream key or
//! the provider's id. A hook without a target is refused, because it could give one tenant's payment to another.

use http::Method;
use ibid::http::hooks::{HookTarget, ProviderIdAt, TenantAt};
use ibid_core::fingerprint::Pointer;
use ibid_core::scope::{Operation, Tenant};

use super::hook::pointer;
use super::route::parse_match;
use super::toml_reader::{Reader, Section};

/// Reads `match`, `tenant` and `key`, or `downstream_key` and `kind`. With `kind`, effects of that kind are also found by
/// `provider_id`.
pub(super) fn read(
    section: &mut Section<'_, '_>,
    reader: &Reader<'_>,
    one_tenant: bool,
    provider_id: Option<&Pointer>,
) -> Option<HookTarget> {
    // All keys are read, so that none is refused as unknown.
    let (downstream_key, kind) = (pointer(section, reader, "downstream_key"), section.text("kind"));
    let (operation, tenant, key) =
        (section.text("match"), pointer(section, reader, "tenant"), pointer(section, reader, "key"));
    let is_of = |keys: &[&'static str]| keys.iter().find_map(|key| section.line_of(key));
    match (is_of(&["match", "tenant", "key"]), is_of(&["downstream_key", "kind"])) {
        (None, None) => {
            let problem = "a hook must say what the payload speaks of: a record or an effect";
            reader.refuse_with_hint(section.line, problem, NOTHING_HINT);
            None
        }
        (_, None) => {
            let tenant = tenant.map(TenantAt::Pointer).or_else(|| only_tenant(section, reader, one_tenant));
            let operation = operation_of(section, reader, operation);
            if section.line_of("key").is_none() {
                reader.refuse(section.line, "`key` is missing: where the payload has the client's key");
            }
            Some(HookTarget::Record { tenant: tenant?, operation: operation?, key: key? })
        }
        (None, Some(line)) => effect(section, reader, line, downstream_key, kind.zip(provider_id.cloned())),
        (Some(line), Some(_)) => {
            let hint = "a source that tells of both needs two hooks; an effect has its tenant";
            reader.refuse_with_hint(line, "a hook speaks of records or of effects, not of both", hint);
            None
        }
    }
}

/// Returns the only tenant if there is one, and refuses a hook that has to name its tenant.
fn only_tenant(section: &Section<'_, '_>, reader: &Reader<'_>, one_tenant: bool) -> Option<TenantAt> {
    // A key that exists and can't be read has been refused.
    let is_named = section.line_of("tenant").is_some();
    if !is_named && !one_tenant {
        reader.refuse_with_hint(
            section.line,
            "`tenant` is missing: a hook must say whose record its payload speaks of",
            "without it one tenant's payment could settle another's record; have the provider keep the tenant in its \
             metadata and point at it",
        );
    }
    (!is_named && one_tenant).then(|| TenantAt::Only(Tenant::only()))
}

fn effect(
    section: &Section<'_, '_>,
    reader: &Reader<'_>,
    line: usize,
    downstream_key: Option<Pointer>,
    by_id: Option<(String, Pointer)>,
) -> Option<HookTarget> {
    if section.line_of("kind").is_some() && section.line_of("provider_id").is_none() {
        reader.refuse(
            line,
            "`provider_id` is missing: with `kind`, effects are found by the provider's own id",
        );
    }
    let by_id = by_id.map(|(kind, id)| ProviderIdAt::new(kind, id));
    match (downstream_key, by_id) {
        (Some(downstream_key), Some(provider_id)) => Some(HookTarget::Either { downstream_key, provider_id }),
        (Some(downstream_key), None) => Some(HookTarget::DownstreamKey(downstream_key)),
        (None, Some(provider_id)) => Some(HookTarget::ProviderId(provider_id)),
        // A key that exists and can't be read has been refused.
        (None, None) => None,
    }
}

fn operation_of(section: &Section<'_, '_>, reader: &Reader<'_>, target: Option<String>) -> Option<Operation> {
    let line = section.line_of("match").unwrap_or(section.line);
    let Some(target) = target else {
        if section.line_of("match").is_none() {
            reader.refuse(line, "`match` is missing: the requests that it speaks of, as `POST /payments`");
        }
        return None;
    };
    let (methods, path) = match parse_match(&target) {
        Ok(read) => read,
        Err((problem, hint)) => {
            reader.refuse_with_hint(line, format!("`match` {problem}"), hint);
            return None;
        }
    };
    let ([method], false): (&[Method], bool) = (&methods, path.contains('{')) else {
        let hint = "write one method and the path that clients send, such as \"POST /payments\"";
        reader.refuse_with_hint(line, "`match` of a hook must name one operation", hint);
        return None;
    };
    Some(Operation { method: method.as_str().into(), path: path.into() })
}

const NOTHING_HINT: &str = "of a record: `match`, `tenant` and `key`; of an effect: `downstream_key`, or `kind` and \
    `provider_id`, or all three. Without them one tenant's payment could settle another's";
