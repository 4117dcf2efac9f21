//! Forwards the key of a guarded request to the upstream, under the name that the route's rule sets.
//!
//! Go's HTTP client takes `Idempotency-Key` on a request without a body as permission to resend it when a reused connection
//! closes. ibid can't see that: the upstream executes twice, and one response comes back. See
//! `docs/decisions/0008-forwarded-key.md` for the measurements.

use http::{HeaderMap, HeaderName, HeaderValue, Request};
use http_body::Body;
use ibid::http::GuardedRequest;
use ibid_core::forward_key::{FORWARDED_KEY, ForwardKey, LEAVE_TO_RESEND};
use ibid_core::key::{Key, KeyForm};

/// Changes to a request's fields before it is forwarded.
///
/// Computed from the request as the client sent it, and applied after the fields that `Connection` names were removed, so
/// that no client can remove the field again.
pub(super) struct KeyChange {
    remove: Vec<HeaderName>,
    insert: Option<(HeaderName, HeaderValue)>,
}

impl KeyChange {
    /// Returns the change that the route's rule demands, or `None` for an unguarded request.
    pub(super) fn of<B: Body>(request: &Request<B>) -> Option<KeyChange> {
        let guarded = request.extensions().get::<GuardedRequest>()?;
        let has_body = request.body().size_hint().exact() != Some(0);
        Some(change(guarded, request.headers(), has_body))
    }

    pub(super) fn apply(self, headers: &mut HeaderMap) {
        for name in self.remove {
            headers.remove(name);
        }
        if let Some((name, value)) = self.insert {
            headers.insert(name, value);
        }
    }
}

fn change(guarded: &GuardedRequest, headers: &HeaderMap, has_body: bool) -> KeyChange {
    let policy = &guarded.policy;
    let leave = || LEAVE_TO_RESEND.into_iter().map(HeaderName::from_static);
    let key_fields = || leave().chain(policy.key_from.header_names().filter_map(|name| name.parse().ok()));
    let (remove, insert): (Vec<HeaderName>, _) = match &policy.forward_key {
        ForwardKey::Auto if !has_body => {
            let sent = leave().find_map(|name| headers.get(name));
            (leave().collect(), sent.cloned().map(|value| (HeaderName::from_static(FORWARDED_KEY), value)))
        }
        ForwardKey::Auto | ForwardKey::AsSent => (Vec::new(), None),
        ForwardKey::Off => (key_fields().collect(), None),
        ForwardKey::Header(name) => {
            let named: Option<HeaderName> = name.parse().ok();
            (key_fields().collect(), named.zip(key_as_sent(guarded, headers)))
        }
    };
    // No client may set the gateway's field, neither in this spelling nor in one that CGI reads the same way.
    let own = policy.forward_key.header().unwrap_or(FORWARDED_KEY);
    let claimed = headers.keys().filter(|name| read_alike(name.as_str(), own)).cloned();
    KeyChange { remove: remove.into_iter().chain(claimed).collect(), insert }
}

/// Returns whether CGI, which writes both `-` and `_` as `_`, reads these names as one.
fn read_alike(one: &str, other: &str) -> bool {
    let dashed = |byte: u8| if byte == b'_' { b'-' } else { byte };
    one.len() == other.len() && one.bytes().map(dashed).eq(other.bytes().map(dashed))
}

/// Returns the key as the client wrote it in its field, quoted or bare; or the key itself if it came in the body.
fn key_as_sent(guarded: &GuardedRequest, headers: &HeaderMap) -> Option<HeaderValue> {
    let is_key = |line: &&HeaderValue| {
        let read = Key::from_lines([line.as_bytes()], KeyForm::QuotedOrBare);
        matches!(read, Ok(Some(key)) if key == guarded.key)
    };
    let mut fields = guarded.policy.key_from.header_names();
    let sent = fields.find_map(|name| headers.get(name).filter(is_key));
    sent.cloned().or_else(|| HeaderValue::from_str(guarded.key.as_str()).ok())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ibid_core::key_source::KeyFrom;
    use ibid_core::policy::Policy;
    use ibid_core::scope::Tenant;

    use super::*;

    /// Applies the rule to a request with the fields `sent`, and returns the resulting fields in order.
    fn apply_rule(rule: &str, key_from: &str, sent: &[(&str, &str)], has_body: bool) -> Vec<String> {
        let policy = Policy::default().with(|policy| {
            policy.forward_key = ForwardKey::parse(rule).unwrap();
            policy.key_from = KeyFrom::parse([key_from]).unwrap();
        });
        let (tenant, key) = (Tenant::new("t").unwrap(), Key::stored("k").unwrap());
        let guarded = GuardedRequest::new(tenant, key, Arc::new(policy));
        let mut headers = HeaderMap::new();
        for (name, value) in sent {
            headers.append(name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap());
        }
        change(&guarded, &headers.clone(), has_body).apply(&mut headers);
        headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect()
    }

    #[test]
    fn each_rule_forwards_the_key_in_its_own_way() {
        let (standard, paypal, body) = ("header:Idempotency-Key", "header:PayPal-Request-Id", "body:/key");
        let quoted = &[("idempotency-key", "\"k\"")][..];
        let x = &[("x-idempotency-key", "k")][..];
        let pay = &[("paypal-request-id", "k")][..];
        let claims = &[("idempotency-key", "k"), ("ibid-key", "other"), ("ibid_key", "other")][..];
        for (rule, key_from, sent, has_body, arrives) in [
            ("auto", standard, quoted, true, &["idempotency-key: \"k\""][..]),
            ("auto", standard, quoted, false, &["ibid-key: \"k\""]),
            ("auto", "header:X-Idempotency-Key", x, false, &["ibid-key: k"]),
            // A field that permits a resend, although the key is elsewhere.
            ("auto", body, quoted, false, &["ibid-key: \"k\""]),
            ("auto", paypal, pay, false, &["paypal-request-id: k"]),
            ("auto", standard, claims, true, &["idempotency-key: k"]),
            ("auto", standard, claims, false, &["ibid-key: k"]),
            ("as-sent", standard, quoted, false, &["idempotency-key: \"k\""]),
            ("as-sent", standard, claims, true, &["idempotency-key: k"]),
            ("off", standard, quoted, true, &[]),
            ("off", paypal, pay, false, &[]),
            ("header:Order-Key", standard, quoted, true, &["order-key: \"k\""]),
            ("header:Order-Key", paypal, pay, false, &["order-key: k"]),
            ("header:Order-Key", body, &[("order-key", "other")], true, &["order-key: k"]),
            ("header:Idempotency-Key", paypal, pay, true, &["idempotency-key: k"]),
        ] {
            let case = format!("{rule}, {key_from}, {sent:?}, body: {has_body}");
            assert_eq!(apply_rule(rule, key_from, sent, has_body), arrives, "{case}");
        }
    }
}
