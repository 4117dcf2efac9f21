//! W3C trace context: parsed strictly, stored with the record, and forwarded. If a context cannot be parsed, none of it is
//! used, and a new trace starts.
//!
//! It must not depend on a collector of spans: only `otel` does.

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue, Request};
use ibid_core::record::Record;
use tracing::Span;

use crate::random::random;
use crate::telemetry;

mod otel;

/// The position of a request in a trace. It is in the extensions of a guarded request if its client sent one, or if its spans
/// are collected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    trace_id: u128,
    span_id: u64,
    flags: u8,
    /// The lines of `tracestate`, joined into one.
    state: Option<String>,
}

impl TraceContext {
    /// Reads the context from these headers. Returns `None` without a `traceparent`, and a new trace if that cannot be parsed.
    pub fn of(headers: &HeaderMap) -> Option<TraceContext> {
        let mut lines = headers.get_all(PARENT).iter();
        let first = lines.next()?;
        let parent = match lines.next() {
            None => first.to_str().ok().and_then(|line| TraceContext::parse(trim(line))),
            Some(_) => None,
        };
        Some(match parent {
            Some(parent) => TraceContext { state: state(headers), ..parent },
            None => TraceContext::restart(),
        })
    }

    /// Parses a `traceparent`: strictly for version 00, and for a later version the fields that version 00 has.
    pub fn parse(line: &str) -> Option<TraceContext> {
        let bytes = line.as_bytes();
        let version = hex(bytes.get(..2)?)?;
        let ends = match bytes.get(55) {
            None => bytes.len() == 55,
            Some(after) => version != 0 && *after == b'-',
        };
        let dashes = [2, 35, 52].iter().all(|at| bytes.get(*at) == Some(&b'-'));
        if version == 0xff || !ends || !dashes {
            return None;
        }
        let (trace_id, span_id) = (hex(&bytes[3..35])?, hex(&bytes[36..52])?);
        let flags = hex(&bytes[53..55])? as u8 & FLAGS_KNOWN;
        let context = TraceContext { trace_id, span_id: span_id as u64, flags, state: None };
        (trace_id != 0 && span_id != 0).then_some(context)
    }

    /// Starts a new trace. It is sampled, because the client tried to send one.
    fn restart() -> TraceContext {
        let trace_id = u128::from_be_bytes(random()).max(1);
        TraceContext { trace_id, span_id: new_span_id(), flags: SAMPLED, state: None }
    }

    /// Returns the context for a call that is made within this one, under a new span id.
    pub fn next(&self) -> TraceContext {
        otel::own(&Span::current()).unwrap_or_else(|| TraceContext { span_id: new_span_id(), ..self.clone() })
    }

    /// Writes the context into the headers of a call, and removes any other.
    pub fn write(&self, headers: &mut HeaderMap) {
        // Neither conversion fails: one text is digits and dashes, the other came from a header field.
        if let Ok(parent) = HeaderValue::from_str(&self.to_string()) {
            headers.insert(PARENT, parent);
        }
        headers.remove(STATE);
        if let Some(state) = self.state.as_deref().and_then(|state| HeaderValue::from_str(state).ok()) {
            headers.insert(STATE, state);
        }
    }

    /// Returns the id of the trace.
    pub fn trace_id(&self) -> u128 {
        self.trace_id
    }

    #[cfg(feature = "opentelemetry")]
    pub(super) fn new(trace_id: u128, span_id: u64, flags: u8, state: String) -> TraceContext {
        TraceContext { trace_id, span_id, flags, state: Some(state).filter(|state| !state.is_empty()) }
    }

    #[cfg(feature = "opentelemetry")]
    pub(super) fn parts(&self) -> (u128, u64, u8, Option<&str>) {
        (self.trace_id, self.span_id, self.flags, self.state.as_deref())
    }
}

/// Formats the context as a `traceparent` of version 00.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, self.flags)
    }
}

/// Opens the span of a guarded request, within the trace that its client sent, and puts its context into the request's
/// extensions.
pub(crate) fn begin<B>(request: &mut Request<B>, route: &str) -> Span {
    let span = tracing::debug_span!(telemetry::SPAN_REQUEST, otel.kind = "server", route);
    let sent = TraceContext::of(request.headers());
    if let Some(parent) = &sent {
        otel::adopt(&span, parent);
    }
    if let Some(context) = otel::own(&span).or(sent) {
        request.extensions_mut().insert(context);
    }
    span
}

/// Makes a span of later work part of the trace of the request that caused it, if `traceparent` can be parsed.
#[cfg(feature = "opentelemetry")]
pub(crate) fn continue_trace(span: &Span, traceparent: &str) {
    if let Some(parent) = TraceContext::parse(traceparent) {
        otel::adopt(span, &parent);
    }
}

/// Links the span of a replay to the first execution.
pub(crate) fn link_to_first(span: &Span, record: &Record) {
    if span.is_disabled() {
        return;
    }
    if let Some(id) = record.note.trace_id() {
        span.record("first_trace", id);
    }
    if let Some(first) = record.note.trace.as_deref().and_then(TraceContext::parse) {
        otel::link(span, &first);
    }
}

/// Joins the lines of `tracestate` into one; `None` if any part of it cannot be parsed.
fn state(headers: &HeaderMap) -> Option<String> {
    let mut members: Vec<&str> = Vec::new();
    for line in headers.get_all(STATE) {
        for member in line.to_str().ok()?.split(',').map(trim).filter(|member| !member.is_empty()) {
            let (key, value) = member.split_once('=')?;
            let known = members.iter().any(|other| other.split_once('=').is_some_and(|(k, _)| k == key));
            if known || !is_state_key(key) || !is_state_value(value) || members.len() == STATE_MEMBERS_MAX {
                return None;
            }
            members.push(member);
        }
    }
    (!members.is_empty()).then(|| members.join(","))
}

fn is_state_key(key: &str) -> bool {
    let of_key = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'*' | b'/' | b'@');
    key.len() <= STATE_PART_MAX
        && key.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && key.bytes().all(of_key)
}

fn is_state_value(value: &str) -> bool {
    let of_value = |b: u8| matches!(b, b' '..=b'~') && b != b'=';
    !value.is_empty() && value.len() <= STATE_PART_MAX && value.bytes().all(of_value)
}

fn trim(text: &str) -> &str {
    text.trim_matches([' ', '\t'])
}

/// Parses lower-case hexadecimal digits and nothing else: `from_str_radix` alone would accept a sign and upper case.
pub(crate) fn hex(digits: &[u8]) -> Option<u128> {
    let digits = str::from_utf8(digits).ok()?;
    let is_hex = digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    u128::from_str_radix(digits, 16).ok().filter(|_| is_hex)
}

fn new_span_id() -> u64 {
    u64::from_be_bytes(random()).max(1)
}

const PARENT: HeaderName = HeaderName::from_static("traceparent");
const STATE: HeaderName = HeaderName::from_static("tracestate");

/// Flag of a trace that the caller may have recorded.
const SAMPLED: u8 = 0x01;

/// The flags `sampled` and `random`. Flags that a later version adds are not forwarded under version 00.
const FLAGS_KNOWN: u8 = 0x03;

/// Most members of `tracestate`, by the W3C recommendation.
const STATE_MEMBERS_MAX: usize = 32;

/// Longest key or value of a member, by the W3C recommendation.
const STATE_PART_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn with(lines: &[(&'static str, &str)]) -> HeaderMap {
        lines
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap()))
            .collect()
    }

    #[test]
    fn a_trace_context_is_forwarded_under_a_new_span() {
        let headers = with(&[("traceparent", LINE), ("tracestate", "a=1, b=2"), ("tracestate", ",c@d=3 ")]);
        let context = TraceContext::of(&headers).unwrap();
        assert_eq!(context.to_string(), LINE);
        let mut out = with(&[("traceparent", "other"), ("tracestate", "x=1"), ("tracestate", "y=2")]);
        context.next().write(&mut out);
        let parent = out["traceparent"].to_str().unwrap();
        assert_eq!((&parent[..36], &parent[52..]), (&LINE[..36], "-01"));
        assert_ne!(&parent[36..52], &LINE[36..52]);
        assert_eq!(out.get_all("tracestate").iter().collect::<Vec<_>>(), ["a=1,b=2,c@d=3"]);
    }

    #[test]
    fn an_unreadable_tracestate_does_not_end_the_trace() {
        let many: Vec<String> = (0..33).map(|n| format!("k{n}=v")).collect();
        for bad in ["a", "A=1", "a=", "a=1=2", "a=1,a=2", "=1", "a b=1", &many.join(","), "é=1"] {
            let context = TraceContext::of(&with(&[("traceparent", LINE), ("tracestate", bad)])).unwrap();
            assert_eq!((context.to_string().as_str(), context.state), (LINE, None), "{bad}");
        }
        let context = TraceContext::of(&with(&[("traceparent", "bad"), ("tracestate", "a=1")])).unwrap();
        assert!(context.state.is_none(), "it belongs to the trace that could not be parsed");
    }

    #[test]
    fn flags_of_later_versions_are_not_forwarded() {
        let later = TraceContext::parse(&LINE.replace("00-4", "cc-4").replace("-01", "-ff")).unwrap();
        assert_eq!(later.to_string(), LINE.replace("-01", "-03"));
    }
}
