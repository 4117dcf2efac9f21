//! Asks the upstream what became of an unknown record, by the question that the record carries.
//!
//! What is filled in was chosen by clients, so nothing is sent that another server on the way could read as another
//! path: such a record is not asked about, and becomes a person's. It decides nothing: it finds.

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

/// Asks one upstream.
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
        tracing::warn!(record = %doubtful.short, "can't be asked about: its key, tenant or path does not fit the question safely");
        return None;
    };
    let Ok(mut answer) = forwarder.call(request).await;
    // A problem of ours, in place of an answer that never came.
    if answer.extensions().get::<ExecutionHint>().is_some() {
        return None;
    }
    let status = answer.status().as_u16();
    if question.executed.contains(&status) {
        if let Some(status) = question.status.and_then(|status| StatusCode::from_u16(status).ok()) {
            *answer.status_mut() = status;
        }
        return Some(ibid::http::executed(answer, &doubtful.policy).await);
    }
    if question.not_executed.contains(&status) {
        // What was cut off is no word, whatever it began with.
        let read = ibid::http::executed(answer, &doubtful.policy).await;
        return (read != LookupResult::Nothing).then_some(LookupResult::NotExecuted);
    }
    tracing::warn!(record = %doubtful.short, status, "the upstream answered neither `executed` nor `not_executed`");
    None
}

/// The request that asks; none if it can't be made safely.
fn request(question: &Question, filling: &Filling) -> Option<Request<Empty<Bytes>>> {
    let (path, query) = match question.path.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (question.path.as_str(), None),
    };
    let mut target = fill(path, |name| filling.in_path(name))?;
    // Also where several pieces have made one segment.
    if !target.split('/').all(is_plain_segment) {
        return None;
    }
    if let Some(query) = query {
        target.push('?');
        target.push_str(&fill(query, |name| Some(encoded(&filling.value(name)?)))?);
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
    // What is found is given to every retry, and not all of them may read what this one could.
    request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    Some(request)
}

/// The names of a pattern and what stands for them in a path; none if it does not match, with or without a last slash.
fn names_in(pattern: &str, sent: &str) -> Option<Vec<(String, String)>> {
    let mut router = matchit::Router::new();
    router.insert(path::normalized_pattern(pattern), ()).ok()?;
    let path = path::normalized(sent);
    let other = path::other_trailing_slash(&path).unwrap_or_default();
    let found = router.at(&path).or_else(|_| router.at(&other)).ok()?;
    Some(found.params.iter().map(|(name, raw)| (name.to_owned(), raw.to_owned())).collect())
}

/// What stands for the names in a question's texts.
struct Filling {
    key: String,
    tenant: String,
    /// Of the route's pattern, as they stand in the request's path.
    names: Vec<(String, String)>,
}

impl Filling {
    fn new(doubtful: &UnknownRequest, pattern: &str) -> Filling {
        let names = names_in(pattern, &doubtful.path).unwrap_or_default();
        Filling { key: doubtful.key.as_str().to_owned(), tenant: doubtful.tenant.as_str().to_owned(), names }
    }

    /// The bytes that a name stands for.
    fn value(&self, name: &str) -> Option<Vec<u8>> {
        match name {
            "key" => Some(self.key.as_bytes().to_vec()),
            "tenant" => Some(self.tenant.as_bytes().to_vec()),
            name => Some(decoded(self.raw(name)?)),
        }
    }

    /// As it may stand in a path: within one segment, but for the segments that the route's own rest brings.
    fn in_path(&self, name: &str) -> Option<String> {
        let segments = match self.raw(name) {
            Some(raw) => raw.split('/').map(decoded).collect(),
            None => vec![self.value(name)?],
        };
        let fits = |bytes: &Vec<u8>| {
            !bytes.is_empty()
                && ![&b"."[..], b".."].contains(&bytes.as_slice())
                && !bytes.iter().any(|byte| [b'/', b'\\'].contains(byte) || byte.is_ascii_control())
        };
        let whole = segments.iter().all(fits);
        whole.then(|| segments.iter().map(|bytes| encoded(bytes)).collect::<Vec<_>>().join("/"))
    }

    fn raw(&self, name: &str) -> Option<&str> {
        self.names.iter().find(|(known, _)| known == name).map(|(_, raw)| raw.as_str())
    }
}

/// The text with every `{name}` replaced; none if one can't be, or a brace is left open.
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

/// Whether no server takes the segment for a way up or nowhere.
fn is_plain_segment(segment: &str) -> bool {
    !matches!(segment.to_ascii_lowercase().replace("%2e", ".").as_str(), "." | "..")
}

/// Everything but RFC 3986's unreserved characters as `%XX`.
fn encoded(bytes: &[u8]) -> String {
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

/// The bytes that a piece of a path stands for; a `%` without two hex digits stands for itself.
fn decoded(raw: &str) -> Vec<u8> {
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

    fn asked(path: &str, header: &str, key: &str, sent: &str) -> Option<(String, String)> {
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
        asked(path, "{tenant}", key, sent).map(|(target, _)| target)
    }

    #[test]
    fn what_clients_chose_stays_within_its_place() {
        let sent = "/orders/7/a/b";
        assert_eq!(
            asked("/t/{tenant}/by-key/{key}?id={id}", "{tenant}", "k?x=1&y#z%", sent),
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
        let (_, header) = asked("/o", "{id}-{tenant}", "k", "/orders/a%20b/x").unwrap();
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
            assert_eq!(asked("/o", "{id}", "k", sent), None, "{sent}");
        }
    }

    #[test]
    fn a_name_that_stands_for_nothing_or_an_open_brace_is_not_asked() {
        assert_eq!(target("/o/{other}", "k", "/orders/7/a"), None);
        assert_eq!(target("/o/{key", "k", "/orders/7/a"), None);
    }
}
