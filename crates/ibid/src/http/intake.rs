//! A guarded request is taken in: tenant, key, body within limits, fingerprint; or a Refusal, and then no record exists.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, header};
use http_body::Body;
use http_body_util::BodyExt;
use ibid_core::fingerprint::Asked;
use ibid_core::key::{Key, KeyForm};
use ibid_core::machine::Ask;
use ibid_core::policy::{AnswerRule, InFlight, KeyRule, OnLapse};
use ibid_core::refusal::Refusal;
use ibid_core::scope::{Identity, Operation};

use super::layer::Shared;
use super::routes::{Begins, Route};
use super::{TraceContext, prefer, resume, sent};

/// What came of the intake.
pub(super) enum Intake<B> {
    /// To be begun.
    Taken(Box<Taken>),
    /// No key where none is needed: it runs unguarded.
    Unguarded(Request<B>),
    /// Turned away.
    Refused(Refusal),
}

/// A request with its body read.
pub(super) struct Taken {
    /// As the client sent it; the ask holds it too.
    pub(super) asked: Arc<HttpAsked>,
    pub(super) ask: Ask,
    /// How long the client is held as a duplicate, or before it is told 202.
    pub(super) wait: Duration,
    /// Whether it is answered later because it preferred that.
    pub(super) preferred: bool,
}

/// Takes one request in.
pub(super) async fn take<B>(shared: &Shared, route: &Route, request: Request<B>) -> Intake<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    let policy = &route.policy;
    let headers = request.headers();
    // An attacker may send early data again as often as he likes (RFC 8470).
    if headers.get("early-data").is_some_and(|value| value == "1") {
        return Intake::Refused(Refusal::TooEarly);
    }
    let form = if policy.strict_key { KeyForm::QuotedOnly } else { KeyForm::QuotedOrBare };
    let lines = headers.get_all(KEY).iter().map(HeaderValue::as_bytes);
    let key = match Key::from_lines(lines, form) {
        Ok(Some(key)) => key,
        Ok(None) if policy.key == KeyRule::Optional => return Intake::Unguarded(request),
        Ok(None) => return Intake::Refused(Refusal::KeyMissing),
        Err(error) => return Intake::Refused(Refusal::KeyInvalid(error)),
    };
    let (head, body) = request.into_parts();
    let Ok(tenant) = shared.tenants.find(&head) else {
        return Intake::Refused(Refusal::TenantMissing);
    };
    let Ok(principal) = shared.principal(policy, &head) else {
        return Intake::Refused(Refusal::TenantMissing);
    };
    if declared_length(&head.headers).is_some_and(|length| length > policy.max_request_body) {
        return Intake::Refused(Refusal::BodyTooLarge);
    }
    let body = match tokio::time::timeout(shared.body_timeout, read(body, policy.max_request_body)).await {
        Ok(Ok(body)) => body,
        Ok(Err(refusal)) => return Intake::Refused(refusal),
        Err(_) => return Intake::Refused(Refusal::BodyTimeout),
    };
    let path = sent(&head.extensions, &head.uri).path();
    let operation = Operation { method: head.method.as_str().into(), path: path.into() };
    let asked = Arc::new(HttpAsked { head, body });
    let headers = &asked.head.headers;
    let identity = Identity { tenant, operation, key };
    let mut ask = shared.ibid.ask(identity, policy.clone(), asked.clone());
    if let Some(principal) = principal {
        ask = ask.bound_to(&principal);
    }
    ask.trace = asked.head.extensions.get::<TraceContext>().map(TraceContext::to_string);
    let preferred = prefer::respond_async(headers);
    let later = match policy.answer {
        // What the handler begins in its own transaction is the handler's to run.
        _ if route.begins == Begins::Handler => false,
        AnswerRule::Sync => false,
        AnswerRule::Async => true,
        AnswerRule::Prefer => preferred,
    };
    if later {
        ask.later = Some(resume::kept_whole(&asked));
    } else if policy.on_lapse == OnLapse::Resume {
        ask.request = Some(resume::kept(&asked));
    }
    let wait = match policy.in_flight {
        // Who is answered now and then waits asked for it.
        _ if later => prefer::wait(headers).map_or(Duration::ZERO, |wait| wait.min(policy.wait)),
        InFlight::Wait => prefer::wait(headers).map_or(policy.wait, |wait| wait.min(policy.wait)),
        InFlight::Conflict | InFlight::Accepted => Duration::ZERO,
    };
    Intake::Taken(Box::new(Taken { asked, ask, wait, preferred: later && preferred }))
}

/// Reads a body to its end, or up to the limit. Trailers are dropped: a key in them is no key.
pub(super) async fn read<B: Body<Data = Bytes> + Unpin>(mut body: B, limit: u64) -> Result<Bytes, Refusal> {
    let mut first: Option<Bytes> = None;
    let mut rest = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return Err(Refusal::BodyBroken) };
        let Ok(data) = frame.into_data() else { continue };
        let so_far = first.as_ref().map_or(0, Bytes::len) + rest.len();
        if (so_far + data.len()) as u64 > limit {
            return Err(Refusal::BodyTooLarge);
        }
        match first {
            // Most bodies come in one piece, which then need not be copied.
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

/// A request as the fingerprint sees it: what the client sent, before anything was added or removed.
pub(super) struct HttpAsked {
    pub(super) head: Parts,
    pub(super) body: Bytes,
}

impl Asked for HttpAsked {
    fn method(&self) -> &str {
        self.head.method.as_str()
    }

    fn path(&self) -> &str {
        sent(&self.head.extensions, &self.head.uri).path()
    }

    fn query(&self) -> Option<&str> {
        sent(&self.head.extensions, &self.head.uri).query()
    }

    fn header_lines(&self, name: &str, each: &mut dyn FnMut(&[u8])) {
        self.head.headers.get_all(name).iter().for_each(|value| each(value.as_bytes()));
    }

    fn body(&self) -> &[u8] {
        &self.body
    }
}

/// The field that carries the key.
pub(super) const KEY: &str = "idempotency-key";
