//! The URL of Redis servers: addresses, credentials and parameters. Nothing that is shown contains a user or a password.

use std::fmt;

use redis::{Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

/// The servers of a URL, and how to connect to them.
#[derive(Clone)]
pub(crate) struct RedisTarget {
    /// Credentials, database and TLS of every server.
    template: ConnectionInfo,
    addresses: Vec<String>,
    scheme: &'static str,
    pub(crate) accept_weak_durability: bool,
    /// Connect to a server that opening would refuse, to describe it.
    pub(crate) only_looks: bool,
}

/// A URL that can't be used. No message contains a password or a user's name.
#[derive(Debug)]
pub(crate) enum RedisUrlError {
    /// Mistake in the URL, without its text.
    Wrong(String),
    /// TLS cannot be set up.
    #[cfg_attr(not(feature = "redis-tls"), expect(dead_code, reason = "only TLS fails like this"))]
    Tls(Box<dyn std::error::Error + Send + Sync>),
}

impl RedisTarget {
    /// Parses `redis://USER:PASSWORD@HOST:PORT,HOST:PORT/DATABASE?durability=weak`, or with TLS
    /// `rediss://…?sslrootcert=PATH`.
    pub(crate) fn parse(url: &str) -> Result<RedisTarget, RedisUrlError> {
        let bad = |why: &str| RedisUrlError::Wrong(why.to_owned());
        // The driver takes `#insecure` for "check no certificate".
        if url.contains('#') {
            return Err(bad("it contains `#`; in a password write `%23`"));
        }
        let (scheme, rest) = url.split_once("://").ok_or_else(|| bad("it begins with `redis://`"))?;
        let scheme = match scheme {
            "redis" => "redis",
            "rediss" => "rediss",
            _ => return Err(bad("it begins with `redis://` or `rediss://`")),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (mut accept_weak_durability, mut roots) = (false, None);
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            match parameter.split_once('=').unwrap_or((parameter, "")) {
                ("durability", "weak") => accept_weak_durability = true,
                ("durability", _) => return Err(bad("`durability` can only be `weak`")),
                ("sslrootcert", path) if scheme == "rediss" => roots = Some(path.to_owned()),
                _ => {
                    return Err(bad(
                        "it has an unknown parameter; `durability=weak` is one, and for `rediss://` also `sslrootcert=PATH`",
                    ));
                }
            }
        }
        if scheme == "rediss" && cfg!(not(feature = "redis-tls")) {
            return Err(bad("this program was built without TLS to Redis (feature `redis-tls`)"));
        }
        let user = if user.is_empty() { String::new() } else { format!("{user}@") };
        let mut infos = Vec::new();
        for host in hosts.split(',') {
            // The driver's message may repeat parts of the URL.
            let info = format!("{scheme}://{user}{host}/{path}").as_str().into_connection_info();
            infos.push(info.map_err(|_| {
                bad("special characters in a password are written as `%40` and the like, and a database is a number")
            })?);
        }
        let addresses = infos.iter().filter_map(|info| address_of(info.addr())).collect();
        let template = infos.into_iter().next().ok_or_else(|| bad("it names no server"))?;
        let template = match roots {
            Some(path) => trusting(template, &path)?,
            None => template,
        };
        Ok(RedisTarget { template, addresses, scheme, accept_weak_durability, only_looks: false })
    }

    /// Returns the addresses that the URL names.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = &str> {
        self.addresses.iter().map(String::as_str)
    }

    /// Returns a client for one server.
    pub(crate) fn client(&self, address: &str) -> Result<Client, RedisUrlError> {
        let bad = || RedisUrlError::Wrong(format!("`{address}` is not the address of a server"));
        let (host, port) = address.rsplit_once(':').ok_or_else(bad)?;
        let (host, port) = (host.to_owned(), port.parse().map_err(|_| bad())?);
        let address = match self.template.addr().clone() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure, tls_params }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        Client::open(self.template.clone().set_addr(address)).map_err(|_| bad())
    }
}

/// Returns a template that trusts the certificates in a file, and no other.
#[cfg(feature = "redis-tls")]
fn trusting(template: ConnectionInfo, path: &str) -> Result<ConnectionInfo, RedisUrlError> {
    let failed = |source: Box<dyn std::error::Error + Send + Sync>| RedisUrlError::Tls(source);
    let pem = std::fs::read(path).map_err(|error| failed(Box::new(error)))?;
    let certificates = redis::TlsCertificates { client_tls: None, root_cert: Some(pem) };
    let client = Client::build_with_tls(template, certificates).map_err(|error| failed(Box::new(error)))?;
    Ok(client.get_connection_info().clone())
}

#[cfg(not(feature = "redis-tls"))]
fn trusting(template: ConnectionInfo, _: &str) -> Result<ConnectionInfo, RedisUrlError> {
    // `RedisTarget::parse` refuses the scheme before.
    Ok(template)
}

fn address_of(address: &ConnectionAddr) -> Option<String> {
    match address {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            Some(format!("{host}:{port}"))
        }
        _ => None,
    }
}

/// The URL without user, password and parameters.
impl fmt::Display for RedisTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.addresses.join(","))?;
        match self.template.redis_settings().db() {
            0 => Ok(()),
            database => write!(f, "/{database}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_shown_without_its_password() {
        let cases = [
            ("redis://cache.internal", "redis://cache.internal:6379"),
            ("redis://ann:se%40cret@a:7000,b:7001/0?durability=weak", "redis://a:7000,b:7001"),
            ("redis://:secret@[::1]:7000/3", "redis://::1:7000/3"),
        ];
        for (url, shown) in cases {
            let target = RedisTarget::parse(url).unwrap_or_else(|error| panic!("{url}: {error:?}"));
            assert_eq!(target.to_string(), shown);
            assert_eq!(target.accept_weak_durability, url.contains("weak"));
        }
    }

    #[test]
    fn a_wrong_url_is_refused_without_its_password() {
        for url in [
            "redis:secret@a",
            "http://:secret@a",
            "redis://:secret@a/x",
            "redis://:secret@a?durability=none",
            "redis://:secret@a?secret=1",
            "redis://:secret@a:port",
            "redis://:secret@a/0#insecure",
        ] {
            let Err(error) = RedisTarget::parse(url) else { panic!("{url} was taken") };
            assert!(!format!("{error:?}").contains("secret"), "{error:?}");
        }
    }
}
