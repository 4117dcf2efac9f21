//! Cleans the fields of a request, so that the upstream executes exactly what was guarded, for the same caller.
//!
//! Otherwise a client could make other programs read a different request: `Connection` names a field, and the next hop
//! drops it; CGI and its successors read `x_tenant_id` and `x-tenant-id` as one name; a trailer repeats a field; a client
//! claims to be a proxy. The rules are built once from the configuration. Ambiguous requests are refused.

use std::borrow::Cow;

use http::header::{CONNECTION, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Version, request};
use ibid_core::policy::Policy;
use ibid_core::refusal::Refusal;

use super::tenant::{TenantConfig, TenantFrom};

/// The rules for one gateway's request fields.
#[derive(Debug, Default)]
pub(crate) struct RequestFields {
    /// Fields that this configuration depends on: of the key, of the tenant, and fingerprinted ones. There are few, so
    /// comparing each is faster than hashing.
    configured: Vec<HeaderName>,
    /// Names of configured fields as CGI reads them, where that differs.
    folded: Vec<String>,
}

impl RequestFields {
    /// Returns rules that protect the fields which identify the caller and the request under any of these policies.
    pub(crate) fn new<'p>(
        tenant: &TenantConfig,
        policies: impl Iterator<Item = &'p Policy>,
    ) -> RequestFields {
        let names = policies.flat_map(|policy| {
            let names = policy.recipe.headers().iter().chain(&policy.first_sent).map(String::as_str);
            policy.key_from.header_names().chain(names)
        });
        let mut configured: Vec<HeaderName> = Vec::new();
        let tenant = match &tenant.from {
            TenantFrom::Header(name) => Some(name.clone()),
            _ => None,
        };
        for name in names.filter_map(|name| name.parse().ok()).chain(tenant) {
            if !configured.contains(&name) {
                configured.push(name);
            }
        }
        let folded = configured.iter().filter_map(|name| match fold(name.as_str()) {
            Cow::Owned(folded) => Some(folded),
            Cow::Borrowed(_) => None,
        });
        RequestFields { folded: folded.collect(), configured }
    }

    /// Removes fields that must not reach the upstream, and removes protected names from `Connection`.
    ///
    /// Returns the last field that was removed because its hop is not trusted.
    pub(crate) fn clean(&self, headers: &mut HeaderMap, is_trusted: bool) -> Option<HeaderName> {
        remove(headers, |name| self.is_other_spelling(name));
        self.clean_connection(headers);
        if is_trusted { None } else { remove(headers, |name| is_forwarded(name.as_str())) }
    }

    /// Removes protected fields from the trailers, because a server may merge trailers into the header fields.
    pub(crate) fn clean_trailers(&self, trailers: &mut HeaderMap) {
        remove(trailers, |name| self.is_protected(name) || self.is_other_spelling(name));
    }

    /// Removes protected names from the value of `Connection`.
    fn clean_connection(&self, headers: &mut HeaderMap) {
        let lines = headers.get_all(CONNECTION);
        let names: Vec<&[u8]> = lines
            .iter()
            .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
            .map(<[u8]>::trim_ascii)
            .collect();
        let may_be_named =
            |name: &&&[u8]| HeaderName::from_bytes(name).is_ok_and(|name| !self.is_protected(&name));
        let left: Vec<&[u8]> = names.iter().filter(may_be_named).copied().collect();
        if left.len() < names.len() {
            let line = HeaderValue::from_bytes(&left.join(&b", "[..])).expect("made of field values");
            headers.insert(CONNECTION, line);
        }
    }

    fn is_protected(&self, name: &HeaderName) -> bool {
        self.configured.contains(name) || is_end_to_end(name.as_str())
    }

    /// Returns whether this is a different name that CGI reads as that of a protected field.
    fn is_other_spelling(&self, name: &HeaderName) -> bool {
        if self.configured.contains(name) {
            return false;
        }
        match fold(name.as_str()) {
            // Most names: CGI reads them unchanged, so they can collide only with a configured name that it reads differently.
            Cow::Borrowed(name) => self.folded.iter().any(|folded| folded == name),
            Cow::Owned(folded) => {
                self.folded.contains(&folded)
                    || self.configured.iter().any(|name| name.as_str() == folded)
                    || END_TO_END.contains(&&*folded)
                    || is_forwarded(&folded)
                    || folded == "transfer-encoding"
            }
        }
    }
}

/// Refuses a head whose host or body framing is ambiguous.
pub(crate) fn check(head: &request::Parts) -> Result<(), Refusal> {
    let mut codings = head.headers.get_all(TRANSFER_ENCODING).iter();
    if let Some(coding) = codings.next() {
        let is_chunked = coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
        if !is_chunked || codings.next().is_some() {
            return Err(Refusal::TransferCoding);
        }
    }
    let mut hosts = head.headers.get_all(HOST).iter();
    let in_field = hosts.next().map(HeaderValue::as_bytes);
    let in_target = head.uri.authority().map(|authority| authority.as_str().as_bytes());
    let is_named = in_field.is_some() || in_target.is_some() || head.version <= Version::HTTP_10;
    let are_well_formed = [in_field, in_target].into_iter().flatten().all(is_host);
    if hosts.next().is_some() || !is_named || !are_well_formed {
        return Err(Refusal::HostInvalid);
    }
    Ok(())
}

/// Returns whether a field stays although `Connection` names it.
///
/// If a client could remove it this way, the upstream would execute a different request from the guarded one, without its
/// key, or for another caller. HTTP demands that every named field is removed (RFC 9110, 7.6.1), but the fields here are
/// end-to-end by definition.
pub(crate) fn is_end_to_end(name: &str) -> bool {
    END_TO_END.contains(&name) || END_TO_END_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Removes every line of the fields that match, and returns the name of the last one.
fn remove(headers: &mut HeaderMap, matches: impl Fn(&HeaderName) -> bool) -> Option<HeaderName> {
    let mut last = None;
    while let Some(name) = headers.keys().find(|name| matches(name)).cloned() {
        headers.remove(&name);
        last = Some(name);
    }
    last
}

/// Returns whether proxies use this field to state where a request came from.
fn is_forwarded(name: &str) -> bool {
    name == "forwarded" || name == "x-real-ip" || name.starts_with("x-forwarded-")
}

/// Returns the name as CGI reads it, but with hyphens: everything except letters and digits becomes one.
fn fold(name: &str) -> Cow<'_, str> {
    let is_usual = |c: char| c.is_ascii_alphanumeric() || c == '-';
    match name.bytes().all(|byte| is_usual(byte.into())) {
        true => Cow::Borrowed(name),
        false => Cow::Owned(name.chars().map(|c| if is_usual(c) { c } else { '-' }).collect()),
    }
}

/// Returns whether this is a name or address with an optional port. Empty is well-formed, because a target URI may have
/// no authority (RFC 9112, 3.2).
fn is_host(host: &[u8]) -> bool {
    let Ok(host) = std::str::from_utf8(host) else { return false };
    let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) => {
            let is_address = address.parse::<std::net::Ipv6Addr>().is_ok();
            return is_address && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port));
        }
        None => host.split_once(':').unwrap_or((host, "")),
    };
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)) && is_port(port)
}

fn is_port(port: &str) -> bool {
    port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit())
}

/// Fields that identify the caller, the request or its origin.
const END_TO_END: [&str; 33] = [
    "accept",
    "authorization",
    "content-encoding",
    "content-length",
    "content-type",
    "cookie",
    "date",
    "digest",
    "dpop",
    "early-data",
    "forwarded",
    "host",
    "idempotency-key",
    "origin",
    "paypal-request-id",
    "prefer",
    "range",
    "repeatability-first-sent",
    "repeatability-request-id",
    "signature",
    "signature-input",
    "soapaction",
    "stripe-account",
    "stripe-context",
    "traceparent",
    "tracestate",
    "x-amz-target",
    "x-api-key",
    "x-http-method",
    "x-http-method-override",
    "x-idempotency-key",
    "x-method-override",
    "x-real-ip",
];

/// Prefixes of fields that identify the caller, the request or its origin.
const END_TO_END_PREFIXES: [&str; 8] =
    ["content-", "if-", "sec-", "x-amz-", "x-auth-", "x-forwarded-", "x-request-", "x-user-"];

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;
    use ibid_core::fingerprint::Recipe;
    use ibid_core::key_source::KeyFrom;

    fn rules() -> RequestFields {
        let tenant = TenantConfig::parse("header:X-Tenant-Id").unwrap();
        let recipe = Recipe::default().with_header("x-amount").with_header("api.version");
        let key_from = KeyFrom::parse(["header:X-Order-Token"]).unwrap();
        let policy = Policy::default().with(|policy| {
            policy.recipe = recipe;
            policy.key_from = key_from;
        });
        RequestFields::new(&tenant, [&Policy::default(), &policy].into_iter())
    }

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        headers
    }

    fn clean_lines(lines: &[(&str, &str)], is_trusted: bool) -> Vec<String> {
        let mut headers = headers(lines);
        rules().clean(&mut headers, is_trusted);
        headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect()
    }

    #[test]
    fn connection_names_no_field_that_matters() {
        for (line, left) in [
            ("close, x-tenant-id", "close"),
            ("X-Amount,keep-alive,api.version", "keep-alive"),
            ("idempotency-key, authorization, x-forwarded-proto, if-match, origin, traceparent", ""),
            ("x-user-id, X-HTTP-Method-Override, soapaction, forwarded", ""),
            ("upgrade, x-mine", "upgrade, x-mine"),
            ("x-order-token, te", "te"),
            ("close, b(d", "close"),
        ] {
            assert_eq!(clean_lines(&[("connection", line)], true), [format!("connection: {left}")], "{line}");
        }
        let two = [("connection", "close"), ("connection", "x-tenant-id, te")];
        assert_eq!(clean_lines(&two, true), ["connection: close, te"]);
    }

    #[test]
    fn other_spellings_pass_from_no_hop() {
        for name in [
            "x_tenant_id",
            "X_Tenant-Id",
            "x.tenant.id",
            "idempotency_key",
            "x_amount",
            "x_order_token",
            "api-version",
            "api_version",
            "x_http_method_override",
            "x_forwarded_for",
            "content_length",
            "transfer_encoding",
            "x_idempotency_key",
        ] {
            assert_eq!(clean_lines(&[(name, "1"), ("x-else", "1")], true), ["x-else: 1"], "{name}");
        }
        let own =
            [("x-tenant-id", "a"), ("x-amount", "1"), ("api.version", "2"), ("x_else", "3"), ("a.b", "4")];
        assert_eq!(clean_lines(&own, true).len(), own.len());
    }

    #[test]
    fn forwarded_fields_are_believed_from_trusted_hops_only() {
        let lines = [
            ("x-forwarded-for", "198.51.100.1"),
            ("x-forwarded-host", "evil.test"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-prefix", "/a"),
            ("forwarded", "for=198.51.100.1"),
            ("x-real-ip", "198.51.100.1"),
            ("x-else", "1"),
        ];
        assert_eq!(clean_lines(&lines, true).len(), lines.len());
        assert_eq!(clean_lines(&lines, false), ["x-else: 1"]);
    }

    #[test]
    fn trailers_hold_no_field_that_matters() {
        let mut trailers = headers(&[
            ("x-tenant-id", "a"),
            ("x_tenant_id", "a"),
            ("x-amount", "1"),
            ("idempotency-key", "k"),
            ("authorization", "Bearer a"),
            ("x-forwarded-for", "::1"),
            ("grpc-status", "0"),
        ]);
        rules().clean_trailers(&mut trailers);
        assert_eq!(trailers, headers(&[("grpc-status", "0")]));
    }

    #[test]
    fn a_request_names_one_well_formed_host() {
        let (h10, h11, h2) = (Version::HTTP_10, Version::HTTP_11, Version::HTTP_2);
        for (version, target, hosts, is_good) in [
            (h11, "/p", &["shop.test"][..], true),
            (h11, "/p", &["shop.test:8080"], true),
            (h11, "/p", &["127.0.0.1:80"], true),
            (h11, "/p", &["[::1]:80"], true),
            (h11, "/p", &["[::1]"], true),
            (h11, "/p", &[""], true),
            (h11, "/p", &[], false),
            (h10, "/p", &[], true),
            (h10, "/p", &["a", "a"], false),
            (h11, "/p", &["a", "a"], false),
            (h11, "/p", &["a/b"], false),
            (h11, "/p", &["a@b"], false),
            (h11, "/p", &["a b"], false),
            (h11, "/p", &["a, b"], false),
            (h11, "/p", &["a:b"], false),
            (h11, "/p", &["a:1:2"], false),
            (h11, "/p", &["[::1"], false),
            (h11, "/p", &["[a]"], false),
            (h11, "http://a.test/p", &["gw.test"], true),
            (h11, "http://a@b.test/p", &["gw.test"], false),
            (h2, "http://a.test/p", &[], true),
            (h2, "/p", &[], false),
        ] {
            let mut request = Request::post(target).version(version);
            for host in hosts {
                request = request.header("host", *host);
            }
            let (head, ()) = request.body(()).unwrap().into_parts();
            let expected = if is_good { Ok(()) } else { Err(Refusal::HostInvalid) };
            assert_eq!(check(&head), expected, "{version:?} {target} {hosts:?}");
        }
    }

    #[test]
    fn chunked_is_the_only_transfer_coding() {
        for (lines, is_good) in [
            (&["chunked"][..], true),
            (&["Chunked"], true),
            (&["gzip, chunked"], false),
            (&["chunked, chunked"], false),
            (&["identity, chunked"], false),
            (&[",chunked"], false),
            (&["chunked", "chunked"], false),
            (&["identity"], false),
        ] {
            let mut request = Request::post("/p").header("host", "a");
            for line in lines {
                request = request.header("transfer-encoding", *line);
            }
            let (head, ()) = request.body(()).unwrap().into_parts();
            let expected = if is_good { Ok(()) } else { Err(Refusal::TransferCoding) };
            assert_eq!(check(&head), expected, "{lines:?}");
        }
    }
}
