//! Finds the tenant of a request: in a header that a trusted hop set, or from the credential; or there is only one tenant.
//!
//! It knows heads and addresses, not policies or records. It never reads the body, because a client could name any tenant
//! there.

use std::net::IpAddr;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, request};
use ibid_core::fingerprint::Secret;
use ibid_core::scope::Tenant;
use ipnet::IpNet;

/// The source of the tenant, and the hops that are trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TenantConfig {
    /// The source of the tenant's name.
    pub(crate) from: TenantFrom,
    /// Networks of hops that may name the tenant and the origin of a request.
    pub(crate) trusted: Vec<IpNet>,
}

/// The part of a request that names the tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TenantFrom {
    /// This header, set by a trusted hop that authenticated the client.
    Header(HeaderName),
    /// The credential, from whose bytes the name is derived: for static credentials.
    Authorization,
    /// No part of the request: there is one tenant.
    None,
}

/// The reason why a guarded request has no known tenant. No variant carries a value, because it may be a credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RequestTenantError {
    /// No trusted source names the tenant.
    #[error("the request does not say whose it is")]
    Missing,
    /// The field has more than one line, and picking one would be a guess.
    #[error("the request says more than once whose it is")]
    Repeated,
    /// The value is empty, too long, has control characters, or is not a credential.
    #[error("the request says unreadably whose it is")]
    Invalid,
    /// The credential is a JWT. It changes on every refresh, and so would the tenant: a retry would run again.
    #[error(
        "the credential is a JWT, which changes on every refresh: let a trusted hop name the tenant \
         (`header:NAME`) instead of `authorization`"
    )]
    Jwt,
    /// The credential signs each request, so every retry would belong to another tenant.
    #[error(
        "the credential changes with every request: let a trusted hop name the tenant (`header:NAME`) \
         instead of `authorization`"
    )]
    PerRequest,
}

/// An invalid value of `--tenant`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TenantConfigError {
    /// The value is planned for a later release.
    #[error("`{0}` is not in this release")]
    NotYet(&'static str),
    /// The value names no tenant source.
    #[error("`{0}` is not a tenant source")]
    Unknown(String),
    /// The text after `header:` is not a valid header name.
    #[error("`{0}` is not a header name")]
    HeaderName(String),
    /// The header holds a secret or has another meaning, and tenant names are stored in plain text in every record.
    #[error(
        "`{0}` can't name the tenant: it has another purpose, and tenant names are stored in plain text in every record"
    )]
    HeaderTaken(String),
}

impl TenantConfig {
    /// Parses a value of `--tenant`. The result trusts only loopback; the caller may replace that.
    pub(crate) fn parse(text: &str) -> Result<TenantConfig, TenantConfigError> {
        let from = match text.split_once(':') {
            None if text == "none" => TenantFrom::None,
            None if text == "authorization" => TenantFrom::Authorization,
            None if text == "jwt" => return Err(TenantConfigError::NotYet("jwt")),
            Some(("header", name)) => TenantFrom::Header(header_name(name.trim())?),
            Some(("forward-auth", _)) => return Err(TenantConfigError::NotYet("forward-auth")),
            _ => return Err(TenantConfigError::Unknown(text.to_owned())),
        };
        let trusted = TRUSTED.iter().filter_map(|net| parse_net(net)).collect();
        Ok(TenantConfig { from, trusted })
    }

    /// Returns the tenant of a request. `secret` is the store's tenant secret.
    pub(crate) fn tenant_of(
        &self,
        head: &request::Parts,
        peer: IpAddr,
        secret: &Secret,
    ) -> Result<Tenant, RequestTenantError> {
        match &self.from {
            TenantFrom::None => Ok(Tenant::only()),
            TenantFrom::Header(_) if !self.trusts(peer) => Err(RequestTenantError::Missing),
            TenantFrom::Header(name) => {
                let name = std::str::from_utf8(only_line(&head.headers, name)?);
                Tenant::new(name.map_err(|_| RequestTenantError::Invalid)?)
                    .map_err(|_| RequestTenantError::Invalid)
            }
            TenantFrom::Authorization => TenantConfig::principal_of(head, secret),
        }
    }

    /// Returns a name for the credential that sent this request, for policies with `bind = "principal"`.
    pub(crate) fn principal_of(head: &request::Parts, secret: &Secret) -> Result<Tenant, RequestTenantError> {
        tenant_of_credential(only_line(&head.headers, &AUTHORIZATION)?, secret)
    }

    /// Removes the tenant's header from a request if its hop may not set it, because the upstream trusts that header too.
    ///
    /// Returns the header's name if anything was removed.
    pub(crate) fn strip_untrusted(&self, headers: &mut HeaderMap, peer: IpAddr) -> Option<&HeaderName> {
        let TenantFrom::Header(name) = &self.from else { return None };
        if self.trusts(peer) {
            return None;
        }
        // CGI and its successors read `x_tenant_id` and `x-tenant-id` as one name, so both spellings are removed.
        let plain = |name: &HeaderName| name.as_str().replace('_', "-");
        let spellings: Vec<HeaderName> =
            headers.keys().filter(|other| plain(other) == plain(name)).cloned().collect();
        let removed_name = (!spellings.is_empty()).then_some(name);
        for spelling in spellings {
            headers.remove(spelling);
        }
        removed_name
    }

    /// Returns whether there is only one tenant.
    pub(crate) fn is_none(&self) -> bool {
        self.from == TenantFrom::None
    }

    /// Returns this tenant source as a value of `--tenant`.
    pub(crate) fn word(&self) -> String {
        match &self.from {
            TenantFrom::Header(name) => format!("header:{name}"),
            TenantFrom::Authorization => "authorization".to_owned(),
            TenantFrom::None => "none".to_owned(),
        }
    }

    /// Returns whether this hop may name the tenant and the origin of a request.
    pub(crate) fn trusts(&self, peer: IpAddr) -> bool {
        // A dual-stack listener reports IPv4 peers as `::ffff:a.b.c.d`.
        let peer = peer.to_canonical();
        self.trusted.iter().any(|net| net.contains(&peer))
    }
}

/// Parses a network such as `10.0.0.0/8`, or one address.
pub(crate) fn parse_net(text: &str) -> Option<IpNet> {
    let net = text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))?;
    // Peers are compared in canonical form, so an IPv4-mapped network must be converted too.
    match net {
        IpNet::V6(v6) if v6.prefix_len() >= 96 => match v6.addr().to_ipv4_mapped() {
            Some(v4) => IpNet::new(IpAddr::V4(v4), v6.prefix_len() - 96).ok(),
            None => Some(net),
        },
        _ => Some(net),
    }
}

fn header_name(name: &str) -> Result<HeaderName, TenantConfigError> {
    let parsed: HeaderName = name.parse().map_err(|_| TenantConfigError::HeaderName(name.to_owned()))?;
    if HEADERS_TAKEN.contains(&parsed.as_str()) {
        return Err(TenantConfigError::HeaderTaken(parsed.to_string()));
    }
    Ok(parsed)
}

fn only_line<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<&'h [u8], RequestTenantError> {
    let mut lines = headers.get_all(name).iter();
    let line = lines.next().ok_or(RequestTenantError::Missing)?;
    match lines.next() {
        Some(_) => Err(RequestTenantError::Repeated),
        None => Ok(line.as_bytes()),
    }
}

/// Returns `cred-` and a digest under the store's tenant secret. The credential itself is not stored.
fn tenant_of_credential(line: &[u8], secret: &Secret) -> Result<Tenant, RequestTenantError> {
    let line = line.trim_ascii();
    // Schemes are case-insensitive: if an update of a client library changes the case, the tenant stays the same.
    let (scheme, credential) = match line.iter().position(|byte| matches!(byte, b' ' | b'\t')) {
        Some(end) => (line[..end].to_ascii_lowercase(), line[end..].trim_ascii_start()),
        // `Authorization: sk_live_…`: many APIs accept a key without a scheme.
        None if !line.is_empty() && !is_scheme(line) => (Vec::new(), line),
        None => return Err(RequestTenantError::Invalid),
    };
    if PER_REQUEST_SCHEMES.iter().any(|known| known.as_bytes() == scheme) {
        return Err(RequestTenantError::PerRequest);
    }
    if is_jwt_shaped(credential) {
        return Err(RequestTenantError::Jwt);
    }
    // Keyed, because the name is readable in every record: without the secret, a weak password can't be guessed from it.
    let digest = secret.digest(&[b"ibid tenant of credential 2", &scheme, credential]);
    // 128 bits: finding a second credential with the same name is infeasible, and the name stays short in tables.
    let hex = ibid_core::hex::encode(&digest[..16]);
    Tenant::new(&format!("cred-{hex}")).map_err(|_| RequestTenantError::Invalid)
}

/// Returns whether a single word is the name of a scheme, which means that its credential was lost in transit.
fn is_scheme(word: &[u8]) -> bool {
    SCHEMES.iter().chain(&PER_REQUEST_SCHEMES).any(|known| word.eq_ignore_ascii_case(known.as_bytes()))
}

/// Returns whether the credential looks like a JWT: base64url parts separated by dots, the first a JSON object.
///
/// A signed token has three parts, an encrypted one five. The last part of an unsigned token is empty.
fn is_jwt_shaped(credential: &[u8]) -> bool {
    let base64url =
        |part: &[u8]| part.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'='));
    let parts = credential.split(|byte| *byte == b'.');
    credential.starts_with(JSON_OBJECT_BASE64)
        && parts.clone().all(base64url)
        && matches!(parts.count(), 3 | 5)
}

/// First characters of a JSON object (`{"`) in base64.
const JSON_OBJECT_BASE64: &[u8] = b"eyJ";

/// Networks that are trusted by default: this host.
pub(crate) const TRUSTED: [&str; 2] = ["127.0.0.0/8", "::1"];

/// Schemes that sign each request or answer a challenge, so that the credential differs between retries.
const PER_REQUEST_SCHEMES: [&str; 8] =
    ["digest", "negotiate", "ntlm", "hawk", "oauth", "signature", "aws4-hmac-sha256", "scram-sha-256"];

/// Schemes whose name alone is not a credential.
const SCHEMES: [&str; 10] =
    ["apikey", "basic", "bearer", "dpop", "gnap", "hoba", "mutual", "privatetoken", "token", "vapid"];

/// Headers that hold a secret, or that have another meaning in ibid or in HTTP.
const HEADERS_TAKEN: [&str; 7] = [
    "authorization",
    "proxy-authorization",
    "cookie",
    "idempotency-key",
    "connection",
    "host",
    "content-type",
];

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    const LOOPBACK: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn secret() -> Secret {
        Secret::new([7; 32]).unwrap()
    }

    fn head(lines: &[(&str, &str)]) -> request::Parts {
        let mut parts = http::Request::new(()).into_parts().0;
        for (name, value) in lines {
            let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
            parts.headers.append(name.parse::<HeaderName>().unwrap(), value);
        }
        parts
    }

    fn by_header(lines: &[(&str, &str)], peer: &str) -> Result<String, RequestTenantError> {
        let how = TenantConfig::parse("header:X-Tenant-Id").unwrap();
        how.tenant_of(&head(lines), peer.parse().unwrap(), &secret()).map(|tenant| tenant.as_str().to_owned())
    }

    fn by_credential(credential: &str) -> Result<String, RequestTenantError> {
        let how = TenantConfig::parse("authorization").unwrap();
        how.tenant_of(&head(&[("authorization", credential)]), LOOPBACK, &secret())
            .map(|t| t.as_str().to_owned())
    }

    #[test]
    fn a_tenant_header_is_believed_only_from_loopback() {
        let lines = [("x-tenant-id", "acme")];
        for peer in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(by_header(&lines, peer), Ok("acme".into()), "{peer}");
        }
        for peer in ["10.0.0.1", "128.0.0.1", "::2", "::ffff:10.0.0.1", "::"] {
            assert_eq!(by_header(&lines, peer), Err(RequestTenantError::Missing), "{peer}");
        }
    }

    #[test]
    fn a_network_that_is_trusted_replaces_loopback() {
        let mut how = TenantConfig::parse("header:x-tenant-id").unwrap();
        how.trusted =
            ["10.1.0.0/16", "fd00::/8", "192.0.2.7"].iter().filter_map(|net| parse_net(net)).collect();
        let ask = |peer: &str| {
            how.tenant_of(&head(&[("x-tenant-id", "a")]), peer.parse().unwrap(), &secret()).is_ok()
        };
        assert!(ask("10.1.2.3") && ask("::ffff:10.1.2.3") && ask("fd12::1") && ask("192.0.2.7"));
        assert!(!ask("127.0.0.1") && !ask("10.2.0.1") && !ask("fe80::1") && !ask("192.0.2.8"));
    }

    #[test]
    fn an_ipv4_mapped_network_is_the_ipv4_network() {
        assert_eq!(parse_net("::ffff:10.0.0.0/104"), parse_net("10.0.0.0/8"));
        assert_eq!(parse_net("::1"), Some("::1/128".parse().unwrap()));
        assert_eq!(parse_net("10.0.0.0/33"), None);
        assert_eq!(parse_net("localhost"), None);
    }

    #[test]
    fn two_lines_an_empty_one_and_unprintable_ones_are_refused() {
        assert_eq!(by_header(&[], "::1"), Err(RequestTenantError::Missing));
        let twice = [("x-tenant-id", "a"), ("x-tenant-id", "a")];
        assert_eq!(by_header(&twice, "::1"), Err(RequestTenantError::Repeated));
        for value in ["", "a\tb", &"a".repeat(256)] {
            assert_eq!(
                by_header(&[("x-tenant-id", value)], "::1"),
                Err(RequestTenantError::Invalid),
                "{value:?}"
            );
        }
        let mut latin = head(&[]);
        latin.headers.insert("x-tenant-id", HeaderValue::from_bytes(b"caf\xe9").unwrap());
        let how = TenantConfig::parse("header:x-tenant-id").unwrap();
        assert_eq!(how.tenant_of(&latin, LOOPBACK, &secret()), Err(RequestTenantError::Invalid));
    }

    #[test]
    fn only_an_untrusted_hop_loses_its_tenant_header_lines() {
        let how = TenantConfig::parse("header:x-tenant-id").unwrap();
        let lines = [("x-tenant-id", "a"), ("x-tenant-id", "b"), ("x-other", "c")];
        let mut headers = head(&lines).headers;
        how.strip_untrusted(&mut headers, "::ffff:127.0.0.1".parse().unwrap());
        assert_eq!(headers.len(), 3);
        how.strip_untrusted(&mut headers, "203.0.113.1".parse().unwrap());
        assert_eq!(headers.len(), 1);
        let mut headers = head(&[("x_tenant_id", "a"), ("X_Tenant-Id", "b"), ("x-tenant-id2", "c")]).headers;
        how.strip_untrusted(&mut headers, "203.0.113.1".parse().unwrap());
        assert_eq!(headers.len(), 1);
        let mut headers = head(&[("authorization", "Bearer x")]).headers;
        TenantConfig::parse("authorization")
            .unwrap()
            .strip_untrusted(&mut headers, "203.0.113.1".parse().unwrap());
        assert_eq!(headers.len(), 1);
    }

    #[test]
    fn the_tenant_follows_the_credential_and_never_shows_it() {
        let tenant = by_credential("Bearer sk_live_hunter2").unwrap();
        assert!(tenant.starts_with("cred-") && tenant.len() == 5 + 32, "{tenant}");
        assert!(!tenant.contains("hunter2"));
        assert_eq!(by_credential("Bearer sk_live_hunter2"), Ok(tenant.clone()));
        assert_eq!(by_credential("bearer   sk_live_hunter2 "), Ok(tenant.clone()));
        assert_ne!(by_credential("Bearer sk_live_Hunter2"), Ok(tenant.clone()));
        assert_ne!(by_credential("Basic sk_live_hunter2"), Ok(tenant));
    }

    #[test]
    fn the_digest_of_a_credential_stays_what_it_is() {
        // A different digest would rename every tenant, and every retry across an update would run again.
        assert_eq!(by_credential("Bearer token"), Ok("cred-ed8b4aca11307401f4d895d2f9bd8d5f".into()));
    }

    #[test]
    fn without_the_secret_a_credential_can_not_be_guessed() {
        let head = head(&[("authorization", "Basic dXNlcjpwYXNz")]);
        let other = Secret::new([8; 32]).unwrap();
        assert_ne!(TenantConfig::principal_of(&head, &secret()), TenantConfig::principal_of(&head, &other));
    }

    #[test]
    fn the_digest_frames_scheme_and_credential() {
        assert_ne!(by_credential("a bc"), by_credential("ab c"));
    }

    #[test]
    fn a_jwt_shaped_credential_is_refused_by_its_own_name() {
        for jwt in [
            "Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
            "bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiIxIn0.",
            "DPoP eyJhbGciOiJFUzI1NiJ9.e30.c2ln_-",
            "Bearer eyJhbGciOiJkaXIifQ..aXY.Y2lwaGVy.dGFn",
            "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
        ] {
            assert_eq!(by_credential(jwt), Err(RequestTenantError::Jwt), "{jwt}");
        }
        for opaque in
            ["Bearer eyJhbGciOi", "Bearer a.b.c", "Bearer eyJh.b c.d", "Bearer eyJ.b", "Basic dXNlcjpwYXNz"]
        {
            assert!(by_credential(opaque).is_ok(), "{opaque}");
        }
        assert!(RequestTenantError::Jwt.to_string().contains("header:NAME"));
    }

    #[test]
    fn a_credential_that_signs_each_request_is_refused() {
        for line in
            ["Digest username=\"a\", response=\"b\"", "AWS4-HMAC-SHA256 Credential=x", "OAuth realm=\"x\""]
        {
            assert_eq!(by_credential(line), Err(RequestTenantError::PerRequest), "{line}");
        }
    }

    #[test]
    fn a_credential_without_a_scheme_is_a_credential() {
        let tenant = by_credential("sk_live_hunter2").unwrap();
        assert_eq!(by_credential(" sk_live_hunter2\t"), Ok(tenant.clone()));
        assert_ne!(by_credential("sk_live_Hunter2"), Ok(tenant.clone()));
        assert_ne!(by_credential("Bearer sk_live_hunter2"), Ok(tenant));
    }

    #[test]
    fn only_a_single_whole_credential_names_a_tenant() {
        let how = TenantConfig::parse("authorization").unwrap();
        assert_eq!(how.tenant_of(&head(&[]), LOOPBACK, &secret()), Err(RequestTenantError::Missing));
        let twice = head(&[("authorization", "Bearer a"), ("authorization", "Bearer a")]);
        assert_eq!(how.tenant_of(&twice, LOOPBACK, &secret()), Err(RequestTenantError::Repeated));
        for line in ["", "Bearer", "basic ", "Digest", "TOKEN"] {
            assert_eq!(by_credential(line), Err(RequestTenantError::Invalid), "{line:?}");
        }
    }

    #[test]
    fn with_one_tenant_nothing_is_asked() {
        let how = TenantConfig::parse("none").unwrap();
        let anyone = "203.0.113.1".parse().unwrap();
        assert_eq!(how.tenant_of(&head(&[("x-tenant-id", "a")]), anyone, &secret()), Ok(Tenant::only()));
        assert!(how.is_none());
    }

    #[test]
    fn a_way_that_is_not_there_says_so() {
        assert_eq!(TenantConfig::parse("jwt"), Err(TenantConfigError::NotYet("jwt")));
        assert_eq!(
            TenantConfig::parse("forward-auth:http://a"),
            Err(TenantConfigError::NotYet("forward-auth"))
        );
        for text in ["", "header", "Header:x", "other", "jwt:x", "none:x"] {
            assert_eq!(TenantConfig::parse(text), Err(TenantConfigError::Unknown(text.into())), "{text}");
        }
        assert!(matches!(TenantConfig::parse("header:"), Err(TenantConfigError::HeaderName(_))));
        assert!(matches!(TenantConfig::parse("header:a b"), Err(TenantConfigError::HeaderName(_))));
        assert!(matches!(
            TenantConfig::parse("header:Authorization"),
            Err(TenantConfigError::HeaderTaken(_))
        ));
        for word in ["header:x-tenant-id", "authorization", "none"] {
            assert_eq!(TenantConfig::parse(word).unwrap().word(), word);
        }
    }
}
