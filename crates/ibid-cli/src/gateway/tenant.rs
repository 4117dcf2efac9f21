//! Who a request is for: from a header that a trusted hop set, from the credential, or nobody in particular.
//!
//! It knows heads and addresses, not policies or records. The body is never asked: whoever writes a body could
//! name any tenant.

use std::net::IpAddr;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, request};
use ibid_core::fingerprint::Secret;
use ibid_core::scope::Tenant;
use ipnet::IpNet;

/// How the tenant is found, and which hops are believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TenantConfig {
    /// Where the tenant stands.
    pub(crate) from: TenantFrom,
    /// Hops that may say who the tenant is and where a request came from.
    pub(crate) trusted: Vec<IpNet>,
}

/// Where the tenant stands in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TenantFrom {
    /// In this header, set by a trusted hop that authenticated the client.
    Header(HeaderName),
    /// It follows the credential's bytes: for static credentials.
    Authorization,
    /// There is one tenant.
    None,
}

/// A guarded request whose tenant can't be told. No variant carries a value: it may be a credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TenantRefusal {
    /// Nobody whom we believe said who it is.
    #[error("the request does not say whose it is")]
    Missing,
    /// More than one line: which one would be right is a guess.
    #[error("the request says more than once whose it is")]
    Repeated,
    /// Empty, too long, control characters, or not a credential.
    #[error("the request says unreadably whose it is")]
    Invalid,
    /// A JWT changes on every refresh, and the tenant would change with it: a retry would run again.
    #[error(
        "the credential is a JWT, which changes on every refresh: let a trusted hop name the tenant \
         (`header:NAME`) instead of `authorization`"
    )]
    Jwt,
    /// A signature over each request makes every retry another tenant's.
    #[error(
        "the credential changes with every request: let a trusted hop name the tenant (`header:NAME`) \
         instead of `authorization`"
    )]
    PerRequest,
}

/// A word after `--tenant` that names no way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TenantConfigError {
    /// Planned.
    #[error("`{0}` is not in this release")]
    NotYet(&'static str),
    /// Not a way.
    #[error("`{0}` is no way to find the tenant")]
    Unknown(String),
    /// `header:` with a name that no header has.
    #[error("`{0}` is not a header name")]
    HeaderName(String),
    /// The header holds a secret or means something else, and tenants stand readable in every record.
    #[error(
        "`{0}` can't name the tenant: it holds something else, and a tenant is kept readable in every record"
    )]
    HeaderTaken(String),
}

impl TenantConfig {
    /// The way that this word names; loopback is trusted until told otherwise.
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

    /// Whose request this is.
    /// `secret` is the store's tenant secret.
    pub(crate) fn tenant_of(
        &self,
        head: &request::Parts,
        peer: IpAddr,
        secret: &Secret,
    ) -> Result<Tenant, TenantRefusal> {
        match &self.from {
            TenantFrom::None => Ok(Tenant::only()),
            TenantFrom::Header(_) if !self.trusts(peer) => Err(TenantRefusal::Missing),
            TenantFrom::Header(name) => {
                let name = std::str::from_utf8(only_line(&head.headers, name)?);
                Tenant::new(name.map_err(|_| TenantRefusal::Invalid)?).map_err(|_| TenantRefusal::Invalid)
            }
            TenantFrom::Authorization => TenantConfig::principal_of(head, secret),
        }
    }

    /// Which credential sent this request, for policies with `bind = "principal"`.
    pub(crate) fn principal_of(head: &request::Parts, secret: &Secret) -> Result<Tenant, TenantRefusal> {
        tenant_of_credential(only_line(&head.headers, &AUTHORIZATION)?, secret)
    }

    /// Takes the tenant's header off a request that came from a hop which may not set it, before it is forwarded:
    /// the upstream believes that header, too.
    ///
    /// Returns the header's name if there was anything to take off.
    pub(crate) fn strip_untrusted(&self, headers: &mut HeaderMap, peer: IpAddr) -> Option<&HeaderName> {
        let TenantFrom::Header(name) = &self.from else { return None };
        if self.trusts(peer) {
            return None;
        }
        // CGI and its heirs read `x_tenant_id` and `x-tenant-id` as one name, so both spellings go.
        let plain = |name: &HeaderName| name.as_str().replace('_', "-");
        let spelt: Vec<HeaderName> =
            headers.keys().filter(|other| plain(other) == plain(name)).cloned().collect();
        let stripped = (!spelt.is_empty()).then_some(name);
        for name in spelt {
            headers.remove(name);
        }
        stripped
    }

    /// Whether there is one tenant only.
    pub(crate) fn is_none(&self) -> bool {
        self.from == TenantFrom::None
    }

    /// The word for it, as after `--tenant`.
    pub(crate) fn word(&self) -> String {
        match &self.from {
            TenantFrom::Header(name) => format!("header:{name}"),
            TenantFrom::Authorization => "authorization".to_owned(),
            TenantFrom::None => "none".to_owned(),
        }
    }

    /// Whether this hop may say whose request it is and where it came from.
    pub(crate) fn trusts(&self, peer: IpAddr) -> bool {
        // A dual-stack listener reports IPv4 peers as `::ffff:a.b.c.d`.
        let peer = peer.to_canonical();
        self.trusted.iter().any(|net| net.contains(&peer))
    }
}

/// A network such as `10.0.0.0/8`, or one address.
pub(crate) fn parse_net(text: &str) -> Option<IpNet> {
    let net = text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))?;
    // Peers are compared in their canonical form, so an IPv4-mapped network must be in it as well.
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

fn only_line<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<&'h [u8], TenantRefusal> {
    let mut lines = headers.get_all(name).iter();
    let line = lines.next().ok_or(TenantRefusal::Missing)?;
    match lines.next() {
        Some(_) => Err(TenantRefusal::Repeated),
        None => Ok(line.as_bytes()),
    }
}

/// `cred-` and a digest under the store's tenant secret: the credential itself stands nowhere.
fn tenant_of_credential(line: &[u8], secret: &Secret) -> Result<Tenant, TenantRefusal> {
    let line = line.trim_ascii();
    // A scheme has no case: a client library that writes it otherwise after an update stays the same tenant.
    let (scheme, credential) = match line.iter().position(|byte| matches!(byte, b' ' | b'\t')) {
        Some(end) => (line[..end].to_ascii_lowercase(), line[end..].trim_ascii_start()),
        // `Authorization: sk_live_…`: many APIs take their key without a scheme.
        None if !line.is_empty() && !is_scheme(line) => (Vec::new(), line),
        None => return Err(TenantRefusal::Invalid),
    };
    if PER_REQUEST_SCHEMES.iter().any(|known| known.as_bytes() == scheme) {
        return Err(TenantRefusal::PerRequest);
    }
    if is_jwt_shaped(credential) {
        return Err(TenantRefusal::Jwt);
    }
    // Keyed: the name can be read in every record, and without the secret a weak password can't be guessed from it.
    let digest = secret.digest(&[b"ibid tenant of credential 2", &scheme, credential]);
    // 128 bits of it: nobody finds a second credential with the same, and the name stays short in tables.
    let hex: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    Tenant::new(&format!("cred-{hex}")).map_err(|_| TenantRefusal::Invalid)
}

/// Whether a word without anything after it is the name of a scheme, whose credential was lost on the way.
fn is_scheme(word: &[u8]) -> bool {
    SCHEMES.iter().chain(&PER_REQUEST_SCHEMES).any(|known| word.eq_ignore_ascii_case(known.as_bytes()))
}

/// Base64url parts with dots between, the first a JSON object: three of a signed token, five of an encrypted one.
/// An unsigned one has an empty last part.
fn is_jwt_shaped(credential: &[u8]) -> bool {
    let base64url =
        |part: &[u8]| part.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'='));
    let parts = credential.split(|byte| *byte == b'.');
    credential.starts_with(JSON_OBJECT_BASE64)
        && parts.clone().all(base64url)
        && matches!(parts.count(), 3 | 5)
}

/// `{"` in base64.
const JSON_OBJECT_BASE64: &[u8] = b"eyJ";

/// Believed until told otherwise: what runs on this host.
pub(crate) const TRUSTED: [&str; 2] = ["127.0.0.0/8", "::1"];

/// Schemes that sign each request or answer a challenge: their credential differs from retry to retry.
const PER_REQUEST_SCHEMES: [&str; 8] =
    ["digest", "negotiate", "ntlm", "hawk", "oauth", "signature", "aws4-hmac-sha256", "scram-sha-256"];

/// Schemes whose name alone is no credential.
const SCHEMES: [&str; 10] =
    ["apikey", "basic", "bearer", "dpop", "gnap", "hoba", "mutual", "privatetoken", "token", "vapid"];

/// Headers that hold a secret, or that mean something else to ibid or to HTTP.
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

    fn by_header(lines: &[(&str, &str)], peer: &str) -> Result<String, TenantRefusal> {
        let how = TenantConfig::parse("header:X-Tenant-Id").unwrap();
        how.tenant_of(&head(lines), peer.parse().unwrap(), &secret()).map(|tenant| tenant.as_str().to_owned())
    }

    fn by_credential(credential: &str) -> Result<String, TenantRefusal> {
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
            assert_eq!(by_header(&lines, peer), Err(TenantRefusal::Missing), "{peer}");
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
        assert_eq!(by_header(&[], "::1"), Err(TenantRefusal::Missing));
        let twice = [("x-tenant-id", "a"), ("x-tenant-id", "a")];
        assert_eq!(by_header(&twice, "::1"), Err(TenantRefusal::Repeated));
        for value in ["", "a\tb", &"a".repeat(256)] {
            assert_eq!(by_header(&[("x-tenant-id", value)], "::1"), Err(TenantRefusal::Invalid), "{value:?}");
        }
        let mut latin = head(&[]);
        latin.headers.insert("x-tenant-id", HeaderValue::from_bytes(b"caf\xe9").unwrap());
        let how = TenantConfig::parse("header:x-tenant-id").unwrap();
        assert_eq!(how.tenant_of(&latin, LOOPBACK, &secret()), Err(TenantRefusal::Invalid));
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
        // Another digest would give every tenant another name, and every retry across an update would run again.
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
            assert_eq!(by_credential(jwt), Err(TenantRefusal::Jwt), "{jwt}");
        }
        for opaque in
            ["Bearer eyJhbGciOi", "Bearer a.b.c", "Bearer eyJh.b c.d", "Bearer eyJ.b", "Basic dXNlcjpwYXNz"]
        {
            assert!(by_credential(opaque).is_ok(), "{opaque}");
        }
        assert!(TenantRefusal::Jwt.to_string().contains("header:NAME"));
    }

    #[test]
    fn a_credential_that_signs_each_request_is_refused() {
        for line in
            ["Digest username=\"a\", response=\"b\"", "AWS4-HMAC-SHA256 Credential=x", "OAuth realm=\"x\""]
        {
            assert_eq!(by_credential(line), Err(TenantRefusal::PerRequest), "{line}");
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
        assert_eq!(how.tenant_of(&head(&[]), LOOPBACK, &secret()), Err(TenantRefusal::Missing));
        let twice = head(&[("authorization", "Bearer a"), ("authorization", "Bearer a")]);
        assert_eq!(how.tenant_of(&twice, LOOPBACK, &secret()), Err(TenantRefusal::Repeated));
        for line in ["", "Bearer", "basic ", "Digest", "TOKEN"] {
            assert_eq!(by_credential(line), Err(TenantRefusal::Invalid), "{line:?}");
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
        for text in ["", "header", "Header:x", "nobody", "jwt:x", "none:x"] {
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
