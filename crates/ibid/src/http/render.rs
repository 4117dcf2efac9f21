//! Renders the responses that ibid makes: refusals, 202, stored responses, and the header fields that it adds to a handler's.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderName, LAST_MODIFIED, LINK, LOCATION, RETRY_AFTER,
};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use ibid_core::policy::Profile;
use ibid_core::record::Record;
use ibid_core::refusal::Refusal;
use ibid_core::response::{Line, Response as CoreResponse};
use ibid_core::scope::Identity;

use super::body::ReplyBody;
use super::cors::{self, MadeBy};
use super::repeatability;
use crate::outcome::StoredResponse;
use crate::random::random;

/// The response to the client.
pub(super) type Reply<B> = Response<ReplyBody<B>>;

/// Renders a refusal for a service that turns requests away before they reach the layer.
#[doc(hidden)]
pub fn render_refusal<B>(reason: Refusal, profile: Profile) -> Response<ReplyBody<B>> {
    refusal(reason, profile, None)
}

/// Renders a refusal. With an identity, a 409 links to the page that shows the record.
pub(super) fn refusal<B>(refusal: Refusal, profile: Profile, watched: Option<&Identity>) -> Reply<B> {
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

/// Renders the 202 of a request that runs without its client, with the page that shows its result. Every retry gets the same
/// until the result is there.
pub(super) fn render_accepted<B>(identity: &Identity, profile: Profile) -> Reply<B> {
    let page = status_page(identity);
    // The page is percent-encoded, so it needs no escaping in JSON.
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
    response.extensions_mut().insert(AcceptedMarker);
    response.extensions_mut().insert(MadeBy::Ibid);
    response
}

/// Confirms the preference of a client that asked for a 202 and gets one.
pub(super) fn confirm_preference<B>(response: &mut Response<B>) {
    if response.extensions().get::<AcceptedMarker>().is_some() {
        set(response.headers_mut(), "preference-applied", "respond-async");
    }
}

/// Marks a 202 of ibid's own, in its extensions.
#[derive(Clone, Copy)]
struct AcceptedMarker;

/// Returns the refusal of a request that got no answer from the store. It asks for a retry in one second, because it is not
/// known when the store answers again.
pub(super) fn store_unavailable() -> Refusal {
    Refusal::StoreUnavailable { retry_after: Duration::from_secs(1) }
}

/// Renders a response that was stored just now, for the client whose request it answers.
pub(super) fn just_stored<B>(stored: &StoredResponse) -> Reply<B> {
    let mut response = to_http(&stored.response);
    mark_stored(response.headers_mut(), &stored.record, stored.record.policy.profile);
    cors::expose_fields(response.headers_mut());
    response
}

/// Renders a stored response for a retry.
pub(super) fn replay<B>(stored: &StoredResponse) -> Reply<B> {
    let record = &stored.record;
    let mut response = to_http(&stored.response);
    response.extensions_mut().insert(MadeBy::Replay);
    let headers = response.headers_mut();
    forbid_caching(headers);
    headers.insert(REPLAYED, HeaderValue::from_static("true"));
    mark_expiry(headers, record);
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

/// Renders a stored response as one of ibid's own pages. The page's address does not name the tenant, so no field may let a
/// cache keep or revalidate it, and ibid decides which origins may read it.
pub(super) fn stored_page<B>(stored: &StoredResponse) -> Reply<B> {
    let mut response = replay(stored);
    response.extensions_mut().insert(MadeBy::Ibid);
    let headers = response.headers_mut();
    headers.remove(ETAG);
    headers.remove(LAST_MODIFIED);
    cors::remove(headers);
    response
}

/// Renders a response as it is stored.
fn to_http<B>(stored: &CoreResponse) -> Reply<B> {
    let trailers = (!stored.trailers.is_empty()).then(|| header_map(&stored.trailers));
    let mut response = Response::new(ReplyBody::whole(stored.body.clone(), trailers));
    *response.status_mut() = StatusCode::from_u16(stored.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    *response.headers_mut() = header_map(&stored.headers);
    // `Trailer` is not stored, because it names only what still follows. HTTP/1.1 sends no trailer that it does not name.
    if !stored.trailers.is_empty() {
        let names: Vec<&str> = stored.trailers.iter().map(|(name, _)| name.as_str()).collect();
        set(response.headers_mut(), "trailer", &names.join(", "));
    }
    response
}

/// Keeps a replay out of every cache. The freshness that the first response declared was that of its moment, and a replay may
/// come a day later.
fn forbid_caching(headers: &mut HeaderMap) {
    let is_for_caches = |name: &&HeaderName| {
        let name = name.as_str();
        name.ends_with("-cache-control") || FOR_CACHES.contains(&name)
    };
    while let Some(name) = headers.keys().find(is_for_caches).cloned() {
        headers.remove(name);
    }
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
}

/// Returns whether the response is a replay.
pub(super) fn is_replay<B>(response: &Response<B>) -> bool {
    response.headers().contains_key(REPLAYED)
}

/// Marks a first response with the time until which it is replayed.
pub(super) fn mark_stored(headers: &mut HeaderMap, record: &Record, profile: Profile) {
    mark_expiry(headers, record);
    repeatability::mark(headers, profile, true);
    // A retry would only get the same response. An upstream that knows better has set the field itself.
    if profile == Profile::Stripe && !headers.contains_key("stripe-should-retry") {
        set(headers, "stripe-should-retry", "false");
    }
}

/// Adds the fields that Stripe's clients expect on a first response. Called before the response is stored, so that a replay can
/// name the first request.
pub(super) fn add_stripe_fields(headers: &mut HeaderMap, key: &str) {
    if !headers.contains_key("request-id") {
        set(headers, "request-id", &request_id());
    }
    if let Some(id) = headers.get("request-id").cloned() {
        headers.insert("original-request", id);
    }
    set(headers, "idempotency-key", key);
}

/// Marks a response of the upstream that leaves the outcome unknown, with a link to the page that shows the record.
pub(super) fn mark_unknown(headers: &mut HeaderMap, identity: &Identity) {
    headers.insert(OUTCOME, HeaderValue::from_static("unknown"));
    append(headers, LINK, &format!("<{}>; rel=\"monitor\"", status_page(identity)));
}

/// Marks a response that no retry will get.
pub(super) fn mark_not_stored(headers: &mut HeaderMap) {
    headers.insert(STORED, HeaderValue::from_static("false"));
}

/// Returns the path of the page that shows a record to the client that knows its key.
pub(super) fn status_page(identity: &Identity) -> String {
    format!(
        "/.ibid/keys/{}?method={}&path={}",
        percent_encode(identity.key.as_str()),
        percent_encode(&identity.operation.method),
        percent_encode(&identity.operation.path)
    )
}

/// Formats an instant as an HTTP date.
pub(super) fn http_date(at: ibid_core::time::Timestamp) -> String {
    let since = Duration::from_secs(u64::try_from(at.as_secs()).unwrap_or(0)).min(HTTP_DATE_MAX);
    httpdate::fmt_http_date(UNIX_EPOCH.checked_add(since).unwrap_or(SystemTime::UNIX_EPOCH))
}

fn mark_expiry(headers: &mut HeaderMap, record: &Record) {
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

/// Encodes everything but unreserved characters as %XX, so that any key fits into a path segment or a query.
fn percent_encode(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut out, byte| {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
        out
    })
}

/// `Retry-After` of an accepted request. Most have a result by then, and a look at the page is cheap.
pub(super) const ACCEPTED_RETRY_AFTER: Duration = Duration::from_secs(1);

/// Fields that let caches and CDNs store a response, besides `Cache-Control` and `…-Cache-Control` (RFC 9213).
const FOR_CACHES: [&str; 5] = ["expires", "pragma", "surrogate-control", "edge-control", "x-accel-expires"];

/// Field that marks a replay.
const REPLAYED: &str = "idempotent-replayed";
/// The date until which the response is replayed.
const EXPIRES: &str = "idempotency-expires";
/// `unknown`: this response does not tell whether the request was executed.
const OUTCOME: &str = "idempotency-outcome";
/// `false`: no retry will get this response.
const STORED: &str = "idempotency-stored";

/// The last second of the year 9999: HTTP dates have four digits.
const HTTP_DATE_MAX: Duration = Duration::from_secs(253_402_300_799);
