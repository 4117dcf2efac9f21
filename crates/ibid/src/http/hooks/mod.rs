//! Webhooks, `POST /.ibid/hooks/{source}`: a provider reports the outcome of a request or a call, which settles an unknown
//! record or effect without a lookup. Only the signature authenticates the provider.

mod mapping;
mod signature;
mod timestamp;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body;
use ibid_core::evidence::EvidenceSubject;
use ibid_core::policy::{BindRule, Policy, Profile};
use ibid_core::refusal::Refusal;
use ibid_core::scope::RecordId;
use ibid_core::time::Timestamp;

pub use mapping::{HookMapping, HookTarget, ProviderIdAt, TenantAt};
pub use signature::{
    HookSecret, HookSecretError, PlainSignature, SignatureEncoding, SignatureScheme, SignedContent,
};

use super::body::ReplyBody;
use super::layer::LayerState;
use super::routes::{Routes, Ruling};
use super::{counters, intake, original_uri, render};
use crate::evidence::{EvidenceReport, EvidenceResult};
use mapping::EventTarget;

/// One source of webhooks.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Hook {
    /// The source's name: the last part of its address, and its label in metrics.
    pub name: String,
    /// The signature scheme of the source.
    pub scheme: SignatureScheme,
    /// The secrets that the source may sign with; more than one while a secret is being changed.
    pub secrets: Vec<HookSecret>,
    /// The pointers to each fact in its payload.
    pub mapping: HookMapping,
}

impl Hook {
    /// Creates a source of webhooks.
    pub fn new(
        name: impl Into<String>,
        scheme: SignatureScheme,
        secrets: Vec<HookSecret>,
        mapping: HookMapping,
    ) -> Hook {
        Hook { name: name.into(), scheme, secrets, mapping }
    }
}

/// Every source whose webhooks are accepted.
#[derive(Clone, Debug, Default)]
pub struct Hooks(Arc<BTreeMap<String, HookEntry>>);

#[derive(Clone, Debug)]
struct HookEntry {
    hook: Hook,
    policy: Arc<Policy>,
}

/// A source that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the hook `{hook}` {problem}")]
pub struct HookError {
    /// The name of the source.
    pub hook: String,
    /// The problem, as a phrase that follows the name.
    pub problem: &'static str,
}

impl Hooks {
    /// Checks the sources of webhooks. `routes` are those under which their records are begun. A source that reports on
    /// effects needs an outbox, which is not checked here.
    ///
    /// # Errors
    ///
    /// Fails if two sources have one name, or if a source cannot be used: its name, its secrets or its mapping is not valid,
    /// or its operation is not guarded.
    pub fn new(hooks: Vec<Hook>, routes: &Routes) -> Result<Hooks, HookError> {
        let mut entries = BTreeMap::new();
        for hook in hooks {
            let name = hook.name.clone();
            let policy = check(&hook, routes).map_err(|problem| HookError { hook: name.clone(), problem })?;
            if entries.insert(name.clone(), HookEntry { hook, policy }).is_some() {
                return Err(HookError { hook: name, problem: "is there twice" });
            }
        }
        Ok(Hooks(Arc::new(entries)))
    }

    /// Returns the name of one source, if there is any.
    pub(super) fn any(&self) -> Option<&str> {
        self.0.values().next().map(|entry| entry.hook.name.as_str())
    }

    /// Returns the name of a source that reports on effects, if there is one.
    pub(super) fn of_effects(&self) -> Option<&str> {
        let is_of_effects =
            |entry: &&HookEntry| !matches!(entry.hook.mapping.target, HookTarget::Record { .. });
        self.0.values().find(is_of_effects).map(|entry| entry.hook.name.as_str())
    }
}

/// Checks a source, and returns the policy under which its records are begun. For a source that reports on effects it is the
/// default policy, because records of any policy may have effects.
fn check(hook: &Hook, routes: &Routes) -> Result<Arc<Policy>, &'static str> {
    let is_name =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_');
    if hook.name.is_empty() || hook.name.len() > NAME_LEN_MAX || !hook.name.bytes().all(is_name) {
        return Err("must be named by 1 to 64 of `a-z`, `0-9`, `-` and `_`: its name is part of its address");
    }
    if hook.secrets.is_empty() || hook.secrets.len() > SECRETS_MAX {
        return Err("needs 1 to 8 secrets");
    }
    let mapping = &hook.mapping;
    if hook.scheme != SignatureScheme::Standard && mapping.event.is_none() {
        return Err("needs a pointer to the event's id: this scheme signs no id outside the payload");
    }
    let values = mapping.executed.iter().map(|(value, _)| value).chain(&mapping.not_executed);
    let mut outcomes = std::collections::BTreeSet::new();
    if !values.clone().all(|value| outcomes.insert(value)) {
        return Err("names one outcome twice");
    }
    if outcomes.is_empty() {
        return Err("names no outcome for `executed` or `not_executed`");
    }
    if !mapping.not_executed.is_empty() && mapping.event_time.is_none() {
        return Err(
            "releases keys by `not_executed` and needs a pointer to the event's instant (`event_time`): without it \
                    an old event, delivered late, would release a key that a later attempt executes under",
        );
    }
    let operation = match &mapping.target {
        HookTarget::Record { operation, .. } => operation,
        HookTarget::ProviderId(at) | HookTarget::Either { provider_id: at, .. } if at.kind.is_empty() => {
            return Err("finds effects by the provider's id and must name their kind");
        }
        _ => return Ok(Arc::default()),
    };
    let method = Method::from_bytes(operation.method.as_bytes()).map_err(|_| "names no method")?;
    let Ruling::Guarded { route, path } = routes.judge(&method, &operation.path) else {
        return Err("names an operation that is not guarded: it has no records");
    };
    if path != *operation.path {
        return Err(
            "names its operation by another spelling of the path than records have: decode `%41` and the like",
        );
    }
    if route.policy.bind == BindRule::Principal {
        return Err("names an operation with `bind = \"principal\"`, and a webhook names no principal");
    }
    Ok(route.policy.clone())
}

/// Returns the source that a path names, if the path is for webhooks.
pub(super) fn source(path: &str) -> Option<&str> {
    path.strip_prefix("/.ibid/hooks/")
}

/// Verifies, maps and applies one webhook.
pub(super) async fn serve<B, R>(shared: &LayerState, request: Request<R>) -> Response<ReplyBody<B>>
where
    R: Body<Data = Bytes> + Unpin,
{
    if request.method() != Method::POST {
        let mut response = answer(StatusCode::METHOD_NOT_ALLOWED, "only POST");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
        return response;
    }
    let (head, body) = request.into_parts();
    let path = original_uri(&head.extensions, &head.uri).path().to_owned();
    let refused = |refusal| render::refusal(refusal, Profile::Ietf, None);
    // The body is read before the source is looked up, so that a refusal takes as long for an unknown source as for a
    // known one.
    let Ok(admitted) = shared.admit(&head) else { return refused(Refusal::Overloaded) };
    let read = intake::read(body, BODY_MAX, admitted.as_ref().map(|admitted| &*admitted.body));
    let body = match tokio::time::timeout(shared.body_timeout, read).await {
        Ok(Ok(body)) => body,
        Ok(Err(refusal)) => return refused(refusal),
        Err(_) => return refused(Refusal::BodyTimeout),
    };
    let entry = source(&path).and_then(|name| shared.hooks.0.get(name));
    let now = now();
    let verified = entry.and_then(|HookEntry { hook, .. }| {
        hook.scheme.verify(&hook.secrets, &head.headers, &body, now).map(|verified| (hook, verified))
    });
    let (Some(entry), Some((hook, verified))) = (entry, verified) else {
        let source = entry.map_or("-", |entry| entry.hook.name.as_str());
        counters::count_hook(source, "refused");
        tracing::warn!(target: "ibid::security", source, "webhook refused: unknown source or bad signature");
        return refused(Refusal::HookRefused);
    };
    let event = match hook.mapping.read(&hook.name, &verified, &body, now.as_secs()) {
        Ok(Some(event)) => event,
        Ok(None) => {
            counters::count_hook(&hook.name, "ignored");
            return answer(StatusCode::OK, "ignored");
        }
        Err(mapping::MissingField(what)) => {
            counters::count_hook(&hook.name, "unreadable");
            tracing::warn!(source = hook.name, what, "signed webhook refused: field missing or invalid");
            return refused(Refusal::HookUnreadable);
        }
    };
    let about = match event.named {
        EventTarget::Record(identity) => {
            let id = RecordId::of(&identity, entry.policy.scope);
            match shared.ibid.engine().find_stored_id(id, &shared.previous.ids(&identity, || None)).await {
                Ok(id) => EvidenceSubject::Record(id),
                // Nothing is stored, so the source has to deliver it again.
                Err(_) => {
                    counters::count_hook(&hook.name, "failed");
                    return refused(render::store_unavailable());
                }
            }
        }
        EventTarget::Effect(at) => EvidenceSubject::Effect(at),
    };
    let report = EvidenceReport { name: event.name, about, what: event.what, age: event.age };
    match tokio::time::timeout(APPLY_TIMEOUT, shared.ibid.report_evidence(report)).await {
        Ok(Ok(result)) => respond(&hook.name, result),
        // It is not known whether the event is stored, so the source has to deliver it again.
        Ok(Err(_)) | Err(_) => {
            counters::count_hook(&hook.name, "failed");
            refused(render::store_unavailable())
        }
    }
}

fn respond<B>(source: &str, result: EvidenceResult) -> Response<ReplyBody<B>> {
    let (status, outcome, result) = match result {
        EvidenceResult::Settled => (StatusCode::OK, "accepted", "settled"),
        EvidenceResult::Early => (StatusCode::ACCEPTED, "early", "kept"),
        EvidenceResult::Premature => (StatusCode::OK, "premature", "premature"),
        EvidenceResult::Stale => (StatusCode::OK, "stale", "stale"),
        EvidenceResult::Known => (StatusCode::OK, "known", "settled already"),
        EvidenceResult::Contradicts => (StatusCode::OK, "contradicts", "settled otherwise"),
        EvidenceResult::Duplicate => (StatusCode::OK, "duplicate", "duplicate"),
    };
    counters::count_hook(source, outcome);
    answer(status, result)
}

/// Renders a result as JSON, for the provider's delivery log.
fn answer<B>(status: StatusCode, result: &'static str) -> Response<ReplyBody<B>> {
    let body = format!("{{\"result\":\"{result}\"}}");
    let mut response = Response::new(ReplyBody::whole(Bytes::from(body), None));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Returns the time by this node's clock. A wrong clock can only cause refusals; the store's clock decides what a webhook
/// proves.
pub(super) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// Largest webhook that is read. Published advice is to stay below 20 kB; some sources send the whole object.
const BODY_MAX: u64 = 256 << 10;

/// Longest time to apply a webhook. Sources give up after 15 to 30 s, and then deliver again.
const APPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest name of a source, in bytes.
const NAME_LEN_MAX: usize = 64;

/// Secrets of one source: the old one and the new one, and room for a mistake.
const SECRETS_MAX: usize = 8;
