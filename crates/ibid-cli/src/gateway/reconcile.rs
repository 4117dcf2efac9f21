//! Looks up the outcome of an unknown record at the upstream, with the lookup request stored in the record's policy.
//!
//! Clients choose the values that are filled in. If an intermediary could read the resulting path as a different one,
//! nothing is sent, and the record is left to an operator. This module only reports what it finds; it decides nothing.

use bytes::Bytes;
use http::header::ACCEPT_ENCODING;
use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue, Request, StatusCode};
use http_body_util::Empty;
use ibid::http::ExecutionHint;
use ibid::upkeep::{LookupResult, OutcomeLookup, UnknownRequest};
use ibid_core::path;
use ibid_core::policy::{Question, Reconcile};
use ibid_core::store::BoxFuture;
use tower_service::Service;

use super::forward::Forwarder;

/// The lookup of outcomes at one upstream.
pub(crate) struct UpstreamLookup(pub(crate) Forwarder);

impl OutcomeLookup for UpstreamLookup {
    fn asks(&self, rule: &Reconcile) -> bool {
        rule.question.is_some()
    }

    fn find(&self, doubtful: UnknownRequest) -> BoxFuture<'static, LookupResult> {
        let forwarder = self.0.clone();
        Box::pin(async move { ask(forwarder, &doubtful).await.unwrap_or(LookupResult::Nothing) })
    }
}

async fn ask(mut forwarder: Forwarder, doubtful: &UnknownRequest) -> Option<LookupResult> {
    let rule = doubtful.policy.reconcile.as_ref()?;
    let question = rule.question.as_ref()?;
    let pattern = rule.route.as_deref().unwrap_or_default();
    let Some(request) = request(question, &Filling::new(doubtful, pattern)) else {
        tracing::warn!(record = %doubtful.short, "record can't be looked up: its key, tenant or path does not fit the request safely");
        return None;
    };
    let Ok(mut response) = forwarder.call(request).await;
    // A problem response of the forwarder: the upstream did not answer.
    if response.extensions().get::<ExecutionHint>().is_some() {
        return None;
    }
    let status = response.status().as_u16();
    if question.executed.contains(&status) {
        if let Some(status) = question.status.and_then(|status| StatusCode::from_u16(status).ok()) {
            *response.status_mut() = status;
        }
        return Some(ibid::http::read_lookup(response, &doubtful.policy).await);
    }
    if question.not_executed.contains(&status) {
        // A response whose body was cut off proves nothing, whatever its status.
        let result = ibid::http::read_lookup(response, &doubtful.policy).await;
        return (result != LookupResult::Nothing).then_some(LookupResult::NotExecuted);
    }
    tracing::warn!(record = %doubtful.short, status, "upstream answered neither `executed` nor `not_executed`");
    None
}

/// Builds the lookup request. Returns `None` if that can't be done safely.
fn request(question: &Question, filling: &Filling) -> Option<Request<Empty<Bytes>>> {
    let (path, query) = match question.path.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (question.path.as_str(), None),
    };
    let mut target = fill(path, |name| filling.in_path(name))?;
    // Checked on the whole path, because one segment may consist of several values.
    if !target.split('/').all(is_plain_segment) {
        return None;
    }
    if let Some(query) = query {
        target.push('?');
        target.push_str(&fill(query, |name| Some(percent_encode(&filling.value(name)?)))?);
    }
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = PathAndQuery::try_from(target).ok()?.into();
    for (name, value) in &question.headers {
        let name = HeaderName::try_from(name).ok()?;
        let value = fill(value, |name| String::from_utf8(filling.value(name)?).ok())?;
        if value.chars().any(char::is_control) {
            return None;
        }
        request.headers_mut().append(name, HeaderValue::from_bytes(value.as_bytes()).ok()?);
    }
    // The response is replayed to every retry, and not every client may be able to decode it.
    request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    Some(request)
}

/// Returns the parameters of a pattern with their values in a path, or `None` if the path does not match, with or without
/// a trailing slash.
fn names_in(pattern: &str, sent: &str) -> Option<Vec<(String, String)>> {
    let mut router = matchit::Router::new();
    router.insert(path::normalized_pattern(pattern), ()).ok()?;
    let path = path::normalize(sent);
    let other = path::other_trailing_slash(&path).unwrap_or_default();
    let route = router.at(&path).or_else(|_| router.at(&other)).ok()?;
    Some(route.params.iter().map(|(name, raw)| (name.to_owned(), raw.to_owned())).collect())
}

/// Values for the placeholders in a lookup request.
struct Filling {
    key: String,
    tenant: String,
    /// Parameters of the route's pattern, with their undecoded values in the request's path.
    names: Vec<(String, String)>,
}

impl Filling {
    fn new(doubtful: &UnknownRequest, pattern: &str) -> Filling {
        let names = names_in(pattern, &doubtful.path).unwrap_or_default();
        Filling { key: doubtful.key.as_str().to_owned(), tenant: doubtful.tenant.as_str().to_owned(), names }
    }

    /// Returns the value of a placeholder, percent-decoded.
    fn value(&self, name: &str) -> Option<Vec<u8>> {
        match name {
            "key" => Some(self.key.as_bytes().to_vec()),
            "tenant" => Some(self.tenant.as_bytes().to_vec()),
            name => Some(percent_decode(self.raw(name)?)),
        }
    }

    /// Returns the value of a placeholder for use in a path, or `None` if it is unsafe there.
    ///
    /// The value must fit into one segment, except that the route's wildcard may span several.
    fn in_path(&self, name: &str) -> Option<String> {
        let segments = match self.raw(name) {
            Some(raw) => raw.split('/').map(percent_decode).collect(),
            None => vec![self.value(name)?],
        };
        let fits = |bytes: &Vec<u8>| {
            !bytes.is_empty()
                && ![&b"."[..], b".."].contains(&bytes.as_slice())
                && !bytes.iter().any(|byte| [b'/', b'\\'].contains(byte) || byte.is_ascii_control())
        };
        let whole = segments.iter().all(fits);
        whole.then(|| segments.iter().map(|bytes| percent_encode(bytes)).collect::<Vec<_>>().join("/"))
    }

    fn raw(&self, name: &str) -> Option<&str> {
        self.names.iter().find(|(known, _)| known == name).map(|(_, raw)| raw.as_str())
    }
}

/// Replaces every `{name}` in a text. Returns `None` if a name has no value or a brace is left open.
pub(crate) fn fill(text: &str, mut value: impl FnMut(&str) -> Option<String>) -> Option<String> {
    let (mut filled, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}')?;
        filled.push_str(before);
        filled.push_str(&value(name)?);
        rest = after;
    }
    filled.push_str(rest);
    Some(filled)
}

/// Returns whether no server reads the segment as `.` or `..`.
fn is_plain_segment(segment: &str) -> bool {
    !matches!(segment.to_ascii_lowercase().replace("%2e", ".").as_str(), "." | "..")
}

/// Percent-encodes everything except RFC 3986's unreserved characters.
fn percent_encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                text.push(char::from(*byte))
            }
            byte => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

/// Percent-decodes a part of a path. A `%` without two hex digits is kept as it is.
fn percent_decode(raw: &str) -> Vec<u8> {
    let (bytes, mut out, mut at) = (raw.as_bytes(), Vec::with_capacity(raw.len()), 0);
    while let Some(byte) = bytes.get(at) {
        let digits = raw.get(at + 1..at + 3).filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()));
        match digits.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(value) if *byte == b'%' => {
                out.push(value);
                at += 3;
            }
            _ => {
                out.push(*byte);
                at += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(path: &str, header: &str, key: &str, sent: &str) -> Option<(String, String)> {
        let question = Question {
            path: path.to_owned(),
            headers: vec![("x-tenant-id".to_owned(), header.to_owned())],
            ..Question::default()
        };
        let names = names_in("/orders/{id}/{*rest}", sent).unwrap();
        let filling = Filling { key: key.to_owned(), tenant: "ann & co".to_owned(), names };
        let request = request(&question, &filling)?;
        assert_eq!(request.headers()[ACCEPT_ENCODING], "identity");
        let tenant = request.headers()["x-tenant-id"].to_str().unwrap().to_owned();
        Some((request.uri().to_string(), tenant))
    }

    fn target(path: &str, key: &str, sent: &str) -> Option<String> {
        build(path, "{tenant}", key, sent).map(|(target, _)| target)
    }

    #[test]
    fn what_clients_chose_stays_within_its_place() {
        let sent = "/orders/7/a/b";
        assert_eq!(
            build("/t/{tenant}/by-key/{key}?id={id}", "{tenant}", "k?x=1&y#z%", sent),
            Some(("/t/ann%20%26%20co/by-key/k%3Fx%3D1%26y%23z%25?id=7".to_owned(), "ann & co".to_owned()))
        );
        // In a query a slash is only a character.
        assert_eq!(target("/p?key={key}", "../../other", sent).unwrap(), "/p?key=..%2F..%2Fother");
        assert_eq!(target("/p?key={key}", "a\"b", sent).unwrap(), "/p?key=a%22b");
    }

    #[test]
    fn the_names_of_a_route_stand_for_what_was_sent() {
        assert_eq!(target("/o/{id}/{rest}", "k", "/orders/a%20b/x/y%3F").unwrap(), "/o/a%20b/x/y%3F");
        assert_eq!(target("/o?id={id}", "k", "/orders/%E2%82%AC/x").unwrap(), "/o?id=%E2%82%AC");
        assert_eq!(target("/o?id={id}", "k", "/orders/100%/x").unwrap(), "/o?id=100%25");
        let (_, header) = build("/o", "{id}-{tenant}", "k", "/orders/a%20b/x").unwrap();
        assert_eq!(header, "a b-ann & co");
    }

    #[test]
    fn a_route_is_found_with_and_without_its_last_slash() {
        let id = || Some(vec![("id".to_owned(), "7".to_owned())]);
        assert_eq!(names_in("/orders/{id}", "/orders/7/"), id());
        assert_eq!(names_in("/orders/{id}/", "/%6frders/7"), id());
        assert_eq!(names_in("/orders/{id}", "/carts/7"), None);
    }

    #[test]
    fn what_could_be_read_as_another_path_is_not_asked() {
        let sent = "/orders/7/a";
        for key in [".", "..", "a/b", "../ann", "a\\b", "/"] {
            assert_eq!(target("/by-key/{key}", key, sent), None, "{key}");
        }
        assert_eq!(target("/by-key/{key}{key}", ".", sent), None);
        assert_eq!(target("/by-key/.{key}", "%2e", sent).unwrap(), "/by-key/.%252e");
        for sent in ["/orders/%2e%2E/a", "/orders/a%2Fb/a", "/orders/a%5cb/a", "/orders/a%00/a"] {
            assert_eq!(target("/o/{id}", "k", sent), None, "{sent}");
        }
        for sent in ["/orders/7/a/../b", "/orders/7/a//b", "/orders/7/%2e./b"] {
            assert_eq!(target("/o/{rest}", "k", sent), None, "{sent}");
        }
    }

    #[test]
    fn a_header_takes_no_control_bytes() {
        for sent in ["/orders/a%0d%0ax-admin:1/b", "/orders/a%09b/b", "/orders/a%7f/b", "/orders/%ff/b"] {
            assert_eq!(build("/o", "{id}", "k", sent), None, "{sent}");
        }
    }

    #[test]
    fn a_name_that_stands_for_nothing_or_an_open_brace_is_not_asked() {
        assert_eq!(target("/o/{other}", "k", "/orders/7/a"), None);
        assert_eq!(target("/o/{key", "k", "/orders/7/a"), None);
    }
}
