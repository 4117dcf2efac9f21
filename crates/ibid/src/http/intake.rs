//! Intake of a guarded request: tenant, key, body within limits, fingerprint; or a refusal, and then no record exists.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, header};
use http_body::Body;
use http_body_util::BodyExt;
use ibid_core::fingerprint::RequestView;
use ibid_core::key::{Key, KeyForm};
use ibid_core::key_source::HeadSearch;
use ibid_core::machine::BeginRequest;
use ibid_core::policy::{AnswerRule, InFlight, KeyRule, OnLapse, Policy, Profile};
use ibid_core::refusal::Refusal;
use ibid_core::scope::{Identity, Operation, Tenant};

use super::admission::{AdmissionPermit, BodyBytes, OverCapacityError};
use super::layer::LayerState;
use super::routes::{ReservedBy, Route};
use super::{MissingIdentityError, TraceContext, original_uri, prefer, repeatability, stored_request};

/// Result of the intake.
pub(super) enum Intake<B> {
    /// The request can be begun.
    Taken(Box<TakenRequest>),
    /// The request has no key and needs none: it passes unguarded.
    Unguarded(Request<B>),
    /// The request is refused.
    Refused(Refusal),
}

/// A request whose body was read.
pub(super) struct TakenRequest {
    /// The request as the client sent it; `ask` holds it too.
    pub(super) asked: Arc<HttpRequestView>,
    pub(super) ask: BeginRequest,
    /// Longest wait of the client as a duplicate, or before it gets 202.
    pub(super) wait: Duration,
    /// Set if the request runs later because its client preferred that.
    pub(super) preferred: bool,
    /// Set if the client first sent it so long ago that it must not run under a new key.
    pub(super) too_old: bool,
    /// The resources that it holds while its client waits; `None` without an [`Admission`](super::Admission).
    pub(super) admitted: Option<AdmissionPermit>,
}

/// Takes in one request, whose record is named by `operation`.
pub(super) async fn take<B>(
    shared: &LayerState,
    route: &Route,
    operation: Operation,
    request: Request<B>,
) -> Intake<B>
where
    B: Body<Data = Bytes> + From<Bytes> + Unpin,
{
    try_take(shared, route, operation, request).await.unwrap_or_else(Intake::Refused)
}

async fn try_take<B>(
    shared: &LayerState,
    route: &Route,
    operation: Operation,
    request: Request<B>,
) -> Result<Intake<B>, Refusal>
where
    B: Body<Data = Bytes> + From<Bytes> + Unpin,
{
    let policy = &route.policy;
    // An attacker can replay early data any number of times. Only the value `1` is defined, and several lines count as one
    // (RFC 8470, 5.1), so any value counts.
    if request.headers().contains_key("early-data") {
        return Err(Refusal::TooEarly);
    }
    if !policy.repeatable {
        return match repeatability::is_asked_for(policy, request.headers()) {
            true => Err(Refusal::NotRepeatable),
            false => Ok(Intake::Unguarded(request)),
        };
    }
    let form = if policy.strict_key { KeyForm::QuotedOnly } else { KeyForm::QuotedOrBare };
    let (head, body) = request.into_parts();
    let mut asked = HttpRequestView { head, body: Bytes::new(), operation };
    let in_head = policy.key_from.find_in_head(&asked, form).map_err(Refusal::KeyInvalid)?;
    let first_sent = repeatability::first_sent(policy, &asked.head.headers)?;
    // In profile `repeatability`, the first-sent field without a key is an error, even if keys are optional.
    let needs_key = policy.profile == Profile::Repeatability && first_sent.is_some();
    let is_optional = policy.key == KeyRule::Optional && !needs_key;
    // A request whose key is in the source of a previous identity must not run unguarded.
    let may_be_previous = is_optional && shared.previous.may_find_key(&asked);
    if in_head == HeadSearch::Absent && !may_be_previous {
        return match is_optional {
            true => Ok(Intake::Unguarded(Request::from_parts(asked.head, body))),
            false => Err(Refusal::KeyMissing),
        };
    }
    // The tenant is looked up before the body is read, because a caller without a tenant must not fill the memory. The
    // exception is a request whose key is optional and may be in the body: without a key it needs no tenant.
    let owner = match in_head {
        HeadSearch::NeedsBody | HeadSearch::Absent if is_optional => None,
        _ => Some(RequestOwner::find(shared, policy, &asked.head)?),
    };
    let (body, admitted) = read_admitted(shared, policy, &asked.head, body).await?;
    asked.body = body;
    let key = match in_head {
        HeadSearch::Found(key) => Some(key),
        _ => policy.key_from.find(&asked, form).map_err(Refusal::KeyInvalid)?,
    };
    let Some(key) = key else {
        return match is_optional {
            true if may_be_previous && shared.previous.finds_key(&asked) => Err(Refusal::KeyMissing),
            true => Ok(Intake::Unguarded(asked.into_request())),
            false => Err(Refusal::KeyMissing),
        };
    };
    let owner = owner.map_or_else(|| RequestOwner::find(shared, policy, &asked.head), Ok)?;
    if policy.profile == Profile::Repeatability && first_sent.is_none() {
        return Err(Refusal::FirstSentInvalid);
    }
    let key = policy.compared_key(key);
    let too_old = repeatability::is_too_old(policy, first_sent);
    Ok(Intake::Taken(Box::new(TakenRequest {
        too_old,
        admitted,
        ..to_guarded(shared, route, asked, owner, key)
    })))
}

/// Reads the body within the policy's limit, once the request is admitted.
async fn read_admitted<B: Body<Data = Bytes> + Unpin>(
    shared: &LayerState,
    policy: &Policy,
    head: &Parts,
    body: B,
) -> Result<(Bytes, Option<AdmissionPermit>), Refusal> {
    if declared_length(&head.headers).is_some_and(|length| length > policy.max_request_body) {
        return Err(Refusal::BodyTooLarge);
    }
    let admitted = shared.admit(head).map_err(|OverCapacityError| Refusal::Overloaded)?;
    let read = read(body, policy.max_request_body, admitted.as_ref().map(|admitted| &*admitted.body));
    let body = tokio::time::timeout(shared.body_timeout, read).await.unwrap_or(Err(Refusal::BodyTimeout))?;
    Ok((body, admitted))
}

/// The tenant that sent the request and, where the policy asks for it, the principal within the tenant.
struct RequestOwner {
    tenant: Tenant,
    principal: Option<String>,
}

impl RequestOwner {
    fn find(shared: &LayerState, policy: &Policy, head: &Parts) -> Result<RequestOwner, Refusal> {
        let tenant = shared.tenants.find(head).map_err(|MissingIdentityError| Refusal::TenantMissing)?;
        let principal =
            shared.principal(policy, head).map_err(|MissingIdentityError| Refusal::TenantMissing)?;
        Ok(RequestOwner { tenant, principal })
    }
}

/// Builds the request that is begun.
fn to_guarded(
    shared: &LayerState,
    route: &Route,
    asked: HttpRequestView,
    owner: RequestOwner,
    key: Key,
) -> TakenRequest {
    let policy = &route.policy;
    let RequestOwner { tenant, principal } = owner;
    let asked = Arc::new(asked);
    let operation = asked.operation.clone();
    let headers = &asked.head.headers;
    let identity = Identity { tenant, operation, key };
    let mut ask = shared.ibid.ask(identity, policy.clone(), asked.clone());
    if let Some(principal) = principal {
        ask = ask.bound_to(&principal);
    }
    ask.previous = shared.previous.names(shared, &asked, &ask);
    ask.trace = asked.head.extensions.get::<TraceContext>().map(TraceContext::to_string);
    let preferred = prefer::respond_async(headers);
    let later = match policy.answer {
        // A handler that reserves the key in its own transaction has to run the request itself.
        _ if route.reserved_by == ReservedBy::Handler => false,
        AnswerRule::Sync => false,
        AnswerRule::Async => true,
        AnswerRule::Prefer => preferred,
    };
    if later {
        ask.later = Some(stored_request::encode(&asked));
    } else if policy.on_lapse == OnLapse::Resume {
        ask.request = Some(stored_request::encode_without_credentials(&asked));
    }
    let wait = match policy.in_flight {
        // A client that gets a 202 waits only if it asked to.
        _ if later => prefer::wait(headers).map_or(Duration::ZERO, |wait| wait.min(policy.wait)),
        InFlight::Wait => prefer::wait(headers).map_or(policy.wait, |wait| wait.min(policy.wait)),
        InFlight::Conflict | InFlight::Accepted => Duration::ZERO,
    };
    TakenRequest { asked, ask, wait, preferred: later && preferred, too_old: false, admitted: None }
}

/// Reads a body to its end, or up to the limit. Trailers are dropped: a key in them is no key.
///
/// Each frame is counted in `room` before it is buffered.
pub(super) async fn read<B: Body<Data = Bytes> + Unpin>(
    mut body: B,
    limit: u64,
    room: Option<&dyn BodyBytes>,
) -> Result<Bytes, Refusal> {
    let mut first: Option<Bytes> = None;
    let mut rest = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return Err(Refusal::BodyBroken) };
        let Ok(data) = frame.into_data() else { continue };
        let so_far = first.as_ref().map_or(0, Bytes::len) + rest.len();
        if (so_far + data.len()) as u64 > limit {
            return Err(Refusal::BodyTooLarge);
        }
        if let Some(room) = room {
            room.grow(data.len() as u64).map_err(|OverCapacityError| Refusal::Overloaded)?;
        }
        match first {
            // Most bodies arrive in one piece, which needs no copy.
            None => first = Some(data),
            Some(_) => rest.extend_from_slice(&data),
        }
    }
    match first {
        Some(first) if rest.is_empty() => Ok(first),
        first => {
            let mut whole = BytesMut::from(&first.unwrap_or_default()[..]);
            whole.extend_from_slice(&rest);
            Ok(whole.freeze())
        }
    }
}

fn declared_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// A request as the fingerprint sees it: as the client sent it, before anything was added or removed.
pub(super) struct HttpRequestView {
    pub(super) head: Parts,
    pub(super) body: Bytes,
    /// The scope of its key. Another spelling of the same path is the same request.
    pub(super) operation: Operation,
}

impl HttpRequestView {
    /// Rebuilds the request for the handler that runs it, with its whole body.
    ///
    /// The copy is made here, because only a run needs one; a replay does not.
    pub(super) fn to_request<B: From<Bytes>>(&self) -> Request<B> {
        let (mut head, body) = (self.head.clone(), self.body.clone());
        // A stored response must be readable by every retry, whichever codings that one accepts.
        head.headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        set_whole_length(&mut head.headers, body.len());
        Request::from_parts(head, B::from(body))
    }

    /// Rebuilds the request for a handler that runs it unguarded.
    pub(super) fn into_request<B: From<Bytes>>(mut self) -> Request<B> {
        set_whole_length(&mut self.head.headers, self.body.len());
        Request::from_parts(self.head, B::from(self.body))
    }
}

/// Sets the length of a body that was read whole, whichever way it was framed.
fn set_whole_length(headers: &mut HeaderMap, length: usize) {
    if headers.remove(header::TRANSFER_ENCODING).is_some() {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
}

impl RequestView for HttpRequestView {
    fn method(&self) -> &str {
        self.head.method.as_str()
    }

    fn path(&self) -> &str {
        &self.operation.path
    }

    fn query(&self) -> Option<&str> {
        original_uri(&self.head.extensions, &self.head.uri).query()
    }

    fn header_lines(&self, name: &str, each: &mut dyn FnMut(&[u8])) {
        // Faster than a lookup, which would parse and hash the name first: a request has a handful of lines.
        for (line, value) in &self.head.headers {
            if line.as_str().eq_ignore_ascii_case(name) {
                each(value.as_bytes());
            }
        }
    }

    fn body(&self) -> &[u8] {
        &self.body
    }
}
