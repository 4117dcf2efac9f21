//! What the client gets: the handler's answer, a stored one, or a Refusal in the profile's words.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderName, LAST_MODIFIED, LINK, LOCATION, RETRY_AFTER,
};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use ibid_core::policy::Profile;
use ibid_core::record::Record;
use ibid_core::refusal::Refusal;
use ibid_core::response::{Line, Response as Kept};
use ibid_core::scope::Identity;

use super::body::ReplyBody;
use super::cors::{self, MadeBy};
use super::repeatability;
use crate::random::random;

/// Renders a refusal for a service that turns requests away before they reach the guard.
#[doc(hidden)]
pub fn refused<B>(reason: Refusal, profile: Profile) -> Response<ReplyBody<B>> {
    refusal(reason, profile, None)
}

/// A refusal. With an identity, 409 says where the record can be watched.
pub(super) fn refusal<B>(
    refusal: Refusal,
    profile: Profile,
    watched: Option<&Identity>,
) -> Response<ReplyBody<B>> {
    let rendered = refusal.render(profile);
    let mut response = Response::new(ReplyBody::whole(Bytes::from(rendered.body), None));
    *response.status_mut() =
        StatusCode::from_u16(rendered.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.extensions_mut().insert(MadeBy::Ibid);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(rendered.content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(seconds) = rendered.retry_after {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    append(headers, LINK, &format!("</.ibid/problems/{}>; rel=\"describedby\"", refusal.code()));
    if let Some(identity) = watched.filter(|_| rendered.status == 409) {
        append(headers, LINK, &format!("<{}>; rel=\"monitor\"", status_page(identity)));
    }
    repeatability::mark(headers, profile, !refusal.is_rejection());
    if profile == Profile::Stripe {
        set(headers, "request-id", &request_id());
        // Stripe's clients go by this field alone; where it is absent, they go by the status. It gives the same advice
        // as `retry` in the other profiles.
        match refusal {
            Refusal::UpstreamUncertain { may_settle: true, .. } => {
                set(headers, "stripe-should-retry", "true")
            }
            Refusal::UpstreamUncertain { may_settle: false, .. }
            | Refusal::OutcomeUnknown { retry_after: None } => set(headers, "stripe-should-retry", "false"),
            _ => {}
        }
    }
    response
}

/// Accepted: the answer comes later, and this is where to look for it. The same for every retry until then.
pub(super) fn accepted<B>(identity: &Identity, profile: Profile) -> Response<ReplyBody<B>> {
    let page = status_page(identity);
    // The page is percent-encoded, so it is a JSON string as it stands.
    let body = format!("{{\"accepted\":true,\"monitor\":\"{page}\"}}");
    let mut response = Response::new(ReplyBody::whole(Bytes::from(body), None));
    *response.status_mut() = StatusCode::ACCEPTED;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(RETRY_AFTER, HeaderValue::from(ACCEPTED_RETRY_AFTER.as_secs()));
    append(headers, LOCATION, &page);
    repeatability::mark(headers, profile, true);
    append(headers, LINK, &format!("<{page}>; rel=\"monitor\""));
    if profile == Profile::Stripe {
        set(headers, "request-id", &request_id());
    }
    response.extensions_mut().insert(Accepted);
    response.extensions_mut().insert(MadeBy::Ibid);
    response
}

/// Says to a client that preferred 202 that this is what it got.
pub(super) fn as_preferred<B>(response: &mut Response<B>) {
    if response.extensions().get::<Accepted>().is_some() {
        set(response.headers_mut(), "preference-applied", "respond-async");
    }
}

/// On a 202 of ours, not the handler's own.
#[derive(Clone, Copy)]
struct Accepted;

/// The store gave no answer to this one request; what that means for the next nobody has found out yet.
pub(super) fn unavailable() -> Refusal {
    Refusal::StoreUnavailable { retry_after: Duration::from_secs(1) }
}

/// An answer that was stored in the handler's own transaction.
pub(super) fn stored<B>(record: &Record, kept: &Kept) -> Response<ReplyBody<B>> {
    let mut response = of(kept);
    first(response.headers_mut(), record, record.policy.profile);
    cors::expose(response.headers_mut());
    response
}

/// An answer as it is kept.
fn of<B>(kept: &Kept) -> Response<ReplyBody<B>> {
    let trailers = (!kept.trailers.is_empty()).then(|| header_map(&kept.trailers));
    let mut response = Response::new(ReplyBody::whole(kept.body.clone(), trailers));
    *response.status_mut() = StatusCode::from_u16(kept.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    *response.headers_mut() = header_map(&kept.headers);
    let headers = response.headers_mut();
    // Not kept with the rest, for it names only what still follows; over HTTP/1.1 what is not named is not sent.
    if !kept.trailers.is_empty() {
        let names: Vec<&str> = kept.trailers.iter().map(|(name, _)| name.as_str()).collect();
        set(headers, "trailer", &names.join(", "));
    }
    response
}

/// A stored answer, again.
pub(super) fn replay<B>(record: &Record, kept: &Kept) -> Response<ReplyBody<B>> {
    let mut response = of(kept);
    response.extensions_mut().insert(MadeBy::Replay);
    let headers = response.headers_mut();
    uncached(headers);
    headers.insert(REPLAYED, HeaderValue::from_static("true"));
    expires(headers, record);
    repeatability::mark(headers, record.policy.profile, true);
    if record.policy.profile == Profile::Stripe {
        if let Some(first) = headers.get("request-id").cloned() {
            headers.insert("original-request", first);
        }
        set(headers, "request-id", &request_id());
        set(headers, "idempotency-key", record.identity.key.as_str());
        set(headers, "stripe-should-retry", "false");
    }
    response
}

/// A stored answer as a page of ibid's own. Its address does not name the tenant, so nothing about it may help a cache
/// to keep it or to ask whether it has changed, and who may read it is for ibid to say.
pub(super) fn stored_page<B>(record: &Record, kept: &Kept) -> Response<ReplyBody<B>> {
    let mut response = replay(record, kept);
    response.extensions_mut().insert(MadeBy::Ibid);
    let headers = response.headers_mut();
    headers.remove(ETAG);
    headers.remove(LAST_MODIFIED);
    cors::remove(headers);
    response
}

/// Keeps a stored answer out of every cache. Whatever the first answer said about freshness was said of that moment,
/// and a replay may come a day later.
fn uncached(headers: &mut HeaderMap) {
    let is_for_caches = |name: &&HeaderName| {
        let name = name.as_str();
        name.ends_with("-cache-control") || FOR_CACHES.contains(&name)
    };
    let names: Vec<HeaderName> = headers.keys().filter(is_for_caches).cloned().collect();
    for name in names {
        headers.remove(name);
    }
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
}

/// Whether the reply is a stored answer, again.
pub(super) fn is_replay<B>(response: &Response<B>) -> bool {
    response.headers().contains_key(REPLAYED)
}

/// Marks a first answer with how long it will be repeated.
pub(super) fn first(headers: &mut HeaderMap, record: &Record, profile: Profile) {
    expires(headers, record);
    repeatability::mark(headers, profile, true);
    // Its retries would only get it again; an upstream that knows better has said so itself.
    if profile == Profile::Stripe && !headers.contains_key("stripe-should-retry") {
        set(headers, "stripe-should-retry", "false");
    }
}

/// What Stripe's clients expect on a first answer; done before it is kept, so that a replay can name the first request.
pub(super) fn stripe(headers: &mut HeaderMap, key: &str) {
    if !headers.contains_key("request-id") {
        set(headers, "request-id", &request_id());
    }
    if let Some(id) = headers.get("request-id").cloned() {
        headers.insert("original-request", id);
    }
    set(headers, "idempotency-key", key);
}

/// Marks the upstream's own answer that leaves the outcome unknown, and says where the record can be watched.
pub(super) fn outcome_unknown(headers: &mut HeaderMap, identity: &Identity) {
    headers.insert(OUTCOME, HeaderValue::from_static("unknown"));
    append(headers, LINK, &format!("<{}>; rel=\"monitor\"", status_page(identity)));
}

/// Marks an answer that no retry will get.
pub(super) fn not_stored(headers: &mut HeaderMap) {
    headers.insert(STORED, HeaderValue::from_static("false"));
}

/// Where a record can be watched: for the client that knows its own key.
pub(super) fn status_page(identity: &Identity) -> String {
    format!(
        "/.ibid/keys/{}?method={}&path={}",
        encoded(identity.key.as_str()),
        encoded(&identity.operation.method),
        encoded(&identity.operation.path)
    )
}

/// An instant as HTTP writes it.
pub(super) fn http_date(at: ibid_core::time::Timestamp) -> String {
    let since = Duration::from_secs(u64::try_from(at.as_secs()).unwrap_or(0)).min(HTTP_DATE_MAX);
    httpdate::fmt_http_date(UNIX_EPOCH.checked_add(since).unwrap_or(SystemTime::UNIX_EPOCH))
}

fn expires(headers: &mut HeaderMap, record: &Record) {
    if let Some(at) = record.expires_at {
        set(headers, EXPIRES, &http_date(at));
    }
}

fn header_map(lines: &[Line]) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(lines.len() + 2);
    for (name, value) in lines {
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_maybe_shared(value.clone()))
        {
            headers.append(name, value);
        }
    }
    headers
}

fn set(headers: &mut HeaderMap, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

fn append(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.append(name, value);
    }
}

fn request_id() -> String {
    format!("req_{:016x}", u64::from_be_bytes(random()))
}

/// Everything but unreserved characters as %XX, so that any key fits into a path segment or a query.
fn encoded(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut out, byte| {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
        out
    })
}

/// When to look for an answer that comes later: most are there by then, and a look is cheap.
pub(super) const ACCEPTED_RETRY_AFTER: Duration = Duration::from_secs(1);

/// Fields by which caches and CDNs are told to keep an answer, besides `Cache-Control` and `…-Cache-Control` (RFC 9213).
const FOR_CACHES: [&str; 5] = ["expires", "pragma", "surrogate-control", "edge-control", "x-accel-expires"];

/// Marks a replay.
const REPLAYED: &str = "idempotent-replayed";
/// Until when the answer is repeated.
const EXPIRES: &str = "idempotency-expires";
/// `unknown`: this answer does not tell whether the request was executed.
const OUTCOME: &str = "idempotency-outcome";
/// `false`: no retry will get this answer.
const STORED: &str = "idempotency-stored";

/// The last second of the year 9999: HTTP dates have four digits.
const HTTP_DATE_MAX: Duration = Duration::from_secs(253_402_300_799);
