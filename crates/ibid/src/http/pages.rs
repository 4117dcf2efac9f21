//! The pages under `/.ibid/`: the state of a key for the client that sent it, its stored response, the published policy, and the
//! meaning of each refusal. Read-only, and under the same tenant rules as the guarded requests.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use ibid_core::change::StoredRecord;
use ibid_core::key::Key;
use ibid_core::machine::{self, ClientView};
use ibid_core::policy::{AfterExpiry, AnswerRule, KeyRule, PathRule, Policy, Profile};
use ibid_core::refusal::{self, Refusal};
use ibid_core::scope::{Identity, Operation, RecordId};
use ibid_core::store::Durability;
use tokio::time::Instant;

use super::body::ReplyBody;
use super::cors::MadeBy;
use super::layer::LayerState;
use super::render::Reply;
use super::routes::{self, Ruling, upper_case};
use super::{original_uri, prefer, render};
use crate::engine::retry_after_for_duplicate;

/// Returns whether this path is one of ibid's own.
pub(super) fn is_own(path: &str) -> bool {
    path.starts_with("/.ibid/")
}

/// Serves one of ibid's own pages.
pub(super) async fn serve<B, R>(shared: &LayerState, request: Request<R>) -> Reply<B> {
    if request.method() == Method::OPTIONS
        && let Some(allowed) = shared.cors.preflight(request.headers())
    {
        return allowed;
    }
    if request.method() != Method::GET {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "only GET\n".to_owned());
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
        return response;
    }
    let path = original_uri(request.extensions(), request.uri()).path().to_owned();
    match path.strip_prefix("/.ibid/").unwrap_or_default() {
        "policy" => plain(StatusCode::OK, "application/json", policy(shared)),
        page => match (page.strip_prefix("problems/"), page.strip_prefix("keys/")) {
            (Some(code), _) => problem(code),
            (_, Some(rest)) => key(shared, request, rest).await,
            _ => not_found(),
        },
    }
}

/// Serves `keys/{key}` and `keys/{key}/response`.
async fn key<B, R>(shared: &LayerState, request: Request<R>, rest: &str) -> Reply<B> {
    let (head, _) = request.into_parts();
    let Ok(tenant) = shared.tenants.find(&head) else {
        return render::refusal(Refusal::TenantMissing, Profile::Ietf, None);
    };
    let (key, wants_response) = match rest.strip_suffix("/response") {
        Some(key) => (key, true),
        None => (rest, false),
    };
    let query = head.uri.query().unwrap_or_default();
    let operation = (parameter(query, "method"), parameter(query, "path"));
    let (Some(key), (Some(method), Some(path))) = (percent_decode(key), operation) else {
        return plain(StatusCode::BAD_REQUEST, "text/plain", "needs ?method=…&path=…\n".to_owned());
    };
    let (Ok(key), Ok(parsed)) = (Key::stored(&key), Method::from_bytes(method.as_bytes())) else {
        return not_found();
    };
    let Ruling::Guarded { route, path } = shared.routes.judge(&parsed, &path) else { return not_found() };
    let key = route.policy.compared_key(key);
    let operation = Operation { method: upper_case(&parsed).as_str().into(), path: path.into() };
    let identity = Identity { tenant, operation, key };
    let Ok(principal) = shared.principal(&route.policy, &head) else {
        return render::refusal(Refusal::TenantMissing, Profile::Ietf, None);
    };
    let id = RecordId::bound(&identity, route.policy.scope, principal.as_deref());
    let previous = shared.previous.ids(&identity, || shared.principals.find(&head).ok());
    let profile = route.policy.profile;
    let up_to = prefer::wait(&head.headers).map_or(Duration::ZERO, |wait| wait.min(route.policy.wait));
    let asked_at = Instant::now();
    let lookup = match shared.ibid.engine().find_stored_id(id, &previous).await {
        Ok(id) => shared.ibid.engine().watch(id, &identity.tenant, up_to).await,
        Err(error) => Err(error),
    };
    let stored = match lookup {
        Err(_) => return render::refusal(render::store_unavailable(), profile, None),
        Ok(None) => return not_found(),
        Ok(Some(stored)) => stored,
    };
    match machine::describe(&stored.record, stored.now) {
        // A tombstone no longer names its tenant. Its id does, because it was made from this tenant.
        ClientView::Expired => render::refusal(Refusal::KeyExpired, profile, None),
        _ if stored.record.identity.tenant != identity.tenant => not_found(),
        view if wants_response => response(shared, &view, stored, asked_at),
        view => {
            let mut response = plain(StatusCode::OK, "application/json", state(&stored, &view));
            if let Some(seconds) = look_again_in(&view, &stored) {
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
            }
            response
        }
    }
}

/// Returns in how many seconds the state may have changed; `None` if nothing changes it without a request.
fn look_again_in(view: &ClientView, stored: &StoredRecord) -> Option<u64> {
    match view {
        ClientView::Open => Some(render::ACCEPTED_RETRY_AFTER.as_secs()),
        ClientView::Unknown { settles_by: Some(until) } => {
            Refusal::OutcomeUnknown { retry_after: Some(until.since(stored.now)) }
                .render(Profile::Ietf)
                .retry_after
        }
        _ => None,
    }
}

/// Returns what a client should do about an unknown outcome, in the word of the refusals; `None` for other outcomes.
fn advice(view: &ClientView) -> Option<&'static str> {
    match view {
        ClientView::Unknown { settles_by: Some(_) } => Some("same-key"),
        ClientView::Unknown { settles_by: None } => Some("never"),
        _ => None,
    }
}

/// Renders the stored response, or the refusal that a retry would get.
fn response<B>(shared: &LayerState, view: &ClientView, stored: StoredRecord, read_at: Instant) -> Reply<B> {
    let profile = stored.record.policy.profile;
    let reason = match view {
        ClientView::Stored => match shared.ibid.engine().replay(stored, read_at) {
            Some(stored) => return render::stored_page(&stored),
            None => Refusal::ResponseNotRetained,
        },
        ClientView::NotRetained => Refusal::ResponseNotRetained,
        ClientView::Unknown { settles_by: until } => {
            Refusal::OutcomeUnknown { retry_after: until.map(|until| until.since(stored.now)) }
        }
        ClientView::Open => {
            Refusal::RequestInProgress { retry_after: retry_after_for_duplicate(&stored.record, stored.now) }
        }
        _ => return not_found(),
    };
    render::refusal(reason, profile, None)
}

/// Renders the state of a record for its client. Every value is a number, a date or a word of ibid's, so nothing needs escaping.
fn state(stored: &StoredRecord, view: &ClientView) -> String {
    let record = &stored.record;
    let date = |at: Option<ibid_core::time::Timestamp>| {
        at.map_or("null".to_owned(), |at| format!("\"{}\"", render::http_date(at)))
    };
    let word = |word: Option<&str>| word.map_or("null".to_owned(), |word| format!("\"{word}\""));
    format!(
        "{{\"state\":\"{}\",\"outcome\":{},\"status\":{},\"attempts\":{},\"needs_a_person\":{},\"retry\":{},\"last_error\":{},\
         \"created_at\":{},\"ran_at\":{},\"completed_at\":{},\"expires_at\":{}}}",
        record.state.name(),
        word(record.outcome()),
        record.note.status.map_or("null".to_owned(), |status| status.to_string()),
        record.attempt,
        record.is_dead_letter(stored.now),
        word(advice(view)),
        word(record.note.last_error.map(|error| error.name())),
        date(Some(record.created_at)),
        date(record.ran_at),
        date(record.completed_at),
        date(record.expires_at),
    )
}

/// Renders the published policy: what is guarded, how, and for how long.
fn policy(shared: &LayerState) -> String {
    let rules: Vec<String> = shared
        .routes
        .rules()
        .map(|rule| {
            let methods: Vec<_> = rule.methods.iter().map(|method| format!("\"{method}\"")).collect();
            let what = rule.policy.as_ref().map_or("\"guard\":\"off\"".to_owned(), describe_policy);
            format!("{{\"methods\":[{}],\"path\":{},{what}}}", methods.join(","), quote(&rule.pattern))
        })
        .collect();
    let defaults = describe_policy(shared.routes.defaults());
    let unguarded = list(routes::UNGUARDED_METHODS.into_iter());
    let unless_routed = list(routes::UNGUARDED_UNLESS_ROUTED.iter().map(Method::as_str));
    let is_durable = shared.ibid.store().facts().durability == Durability::Durable;
    let durability = if is_durable { "durable" } else { "weak" };
    format!(
        "{{\"durability\":\"{durability}\",\"unguarded_methods\":[{unguarded}],\"unguarded_without_a_route\":[{unless_routed}],\
         \"defaults\":{{{defaults}}},\"routes\":[{}]}}",
        rules.join(",")
    )
}

fn describe_policy(policy: &Policy) -> String {
    let key = if policy.key == KeyRule::Required { "required" } else { "optional" };
    let answer = match policy.answer {
        AnswerRule::Sync => "sync",
        AnswerRule::Async => "async",
        AnswerRule::Prefer => "prefer",
    };
    let path = if policy.path == PathRule::Strict { "strict" } else { "as-sent" };
    let after = if policy.after_expiry == AfterExpiry::Execute { "execute" } else { "refuse" };
    format!(
        "\"guard\":\"on\",\"profile\":\"{}\",\"key\":\"{key}\",\"key_from\":[{}],\"path_rule\":\"{path}\",\"answer\":\"{answer}\",\"retention_seconds\":{},\"tombstone_seconds\":{},\
         \"after_expiry\":\"{after}\",\"response_version\":{},\"fingerprint\":{{\"headers\":[{}],\"include\":[{}],\
         \"exclude\":[{}]}}",
        policy.profile.name(),
        list(policy.key_from.sources().iter().map(ToString::to_string)),
        policy.retention.as_secs(),
        policy.tombstone.as_secs(),
        policy.response_version,
        list(policy.recipe.headers().iter()),
        list(policy.recipe.include().iter().map(|pointer| pointer.as_str())),
        list(policy.recipe.exclude().iter().map(|pointer| pointer.as_str())),
    )
}

fn list(items: impl Iterator<Item = impl AsRef<str>>) -> String {
    items.map(|item| quote(item.as_ref())).collect::<Vec<_>>().join(",")
}

/// Quotes text as a JSON string.
fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Renders the meaning of one refusal, for a developer who follows its link.
fn problem<B>(code: &str) -> Reply<B> {
    match refusal::ALL.iter().find(|refusal| refusal.code() == code) {
        Some(refusal) => {
            let text = format!("{}\n\n{}\n", refusal.title(), refusal.detail());
            plain(StatusCode::OK, "text/plain; charset=utf-8", text)
        }
        None => not_found(),
    }
}

fn not_found<B>() -> Reply<B> {
    plain(StatusCode::NOT_FOUND, "text/plain", "not found\n".to_owned())
}

fn plain<B>(status: StatusCode, content_type: &'static str, body: String) -> Reply<B> {
    let mut response = Response::new(ReplyBody::whole(Bytes::from(body), None));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response.extensions_mut().insert(MadeBy::Ibid);
    response
}

/// Returns one parameter of a query string, decoded.
fn parameter(query: &str, name: &str) -> Option<String> {
    query
        .split('&')
        .find_map(|pair| pair.split_once('=').filter(|(n, _)| *n == name))
        .and_then(|(_, v)| percent_decode(v))
}

/// Decodes %XX. Returns `None` if it is malformed or not UTF-8.
fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let digit = |b: u8| char::from(b).to_digit(16);
                let (high, low) = (digit(bytes.next()?)?, digit(bytes.next()?)?);
                u8::try_from(high * 16 + low).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_percent_encoding_is_refused() {
        assert_eq!(percent_decode("a%2Fb%20c").as_deref(), Some("a/b c"));
        assert_eq!(percent_decode("%c3%a9").as_deref(), Some("é"));
        for bad in ["%", "%4", "%zz", "%ff"] {
            assert_eq!(percent_decode(bad), None, "{bad}");
        }
    }

    #[test]
    fn any_text_is_quoted_as_a_json_string() {
        assert_eq!(quote("a\"b\\c\n"), r#""a\"b\\c\u000a""#);
    }
}
