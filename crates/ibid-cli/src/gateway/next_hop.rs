//! Recognises the proxy behind the gateway by the fields of its responses, and logs once what its operator can do.

use std::sync::atomic::{AtomicU8, Ordering};

use http::{HeaderMap, HeaderName, header};
use ibid_core::proof::Hop;

/// A proxy that names itself in its responses. HAProxy doesn't.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NamedProxy {
    Nginx,
    Envoy,
    Apache,
    Varnish,
    Caddy,
}

impl NamedProxy {
    const ALL: [NamedProxy; 5] =
        [NamedProxy::Nginx, NamedProxy::Envoy, NamedProxy::Apache, NamedProxy::Varnish, NamedProxy::Caddy];

    /// Returns the proxies that a response came through, as far as `Server` and `Via` name them.
    pub(crate) fn in_response(headers: &HeaderMap) -> impl Iterator<Item = NamedProxy> {
        let lines =
            |name: HeaderName| headers.get_all(name).into_iter().filter_map(|line| line.to_str().ok());
        // `Server: nginx/1.22.1` starts with the product, `Via: 1.1 varnish (Varnish/7.1), 1.1 edge (Apache/2.4)` has it
        // anywhere.
        let server = lines(header::SERVER).map(|line| line.split(['/', ' ']).next().unwrap_or_default());
        let via = lines(header::VIA).flat_map(|line| line.split(['/', ' ', ',', '(', ')']));
        let words: Vec<&str> = server.chain(via).collect();
        NamedProxy::ALL.into_iter().filter(move |proxy| {
            words.iter().any(|word| proxy.products().iter().any(|product| product.eq_ignore_ascii_case(word)))
        })
    }

    /// Returns its name, as it is usually written.
    pub(crate) fn name(self) -> &'static str {
        match self {
            NamedProxy::Nginx => "nginx",
            NamedProxy::Envoy => "Envoy",
            NamedProxy::Apache => "Apache",
            NamedProxy::Varnish => "Varnish",
            NamedProxy::Caddy => "Caddy",
        }
    }

    /// Returns the preset for this proxy, if there is one.
    fn preset(self) -> Option<Hop> {
        match self {
            NamedProxy::Nginx => Some(Hop::Nginx),
            NamedProxy::Envoy => Some(Hop::Envoy),
            NamedProxy::Apache => Some(Hop::Apache),
            NamedProxy::Varnish => Some(Hop::Varnish),
            NamedProxy::Caddy => None,
        }
    }

    /// Returns whether this proxy may deliver a request twice by itself.
    pub(crate) fn has_warning(self) -> bool {
        self.preset().is_some_and(|preset| preset.preset().warning.is_some())
    }

    /// Returns advice for the operator of this proxy.
    pub(crate) fn advice(self) -> String {
        let Some(preset) = self.preset().map(Hop::preset) else {
            return "its 502 may mean that nothing was sent, and proves nothing: such a key stays unknown"
                .to_owned();
        };
        match preset.warning {
            Some(warning) => warning.to_owned(),
            None => format!(
                "with `behind = \"{}\"`, and the lines for it in its own configuration, a connection that was refused \
                 leaves the key free (docs/concepts/outcomes.md)",
                preset.name
            ),
        }
    }

    fn products(self) -> &'static [&'static str] {
        match self {
            NamedProxy::Nginx => &["nginx", "openresty"],
            NamedProxy::Envoy => &["envoy", "istio-envoy"],
            NamedProxy::Apache => &["apache"],
            NamedProxy::Varnish => &["varnish"],
            NamedProxy::Caddy => &["caddy"],
        }
    }
}

/// Logs each proxy that responses come through, once per process.
#[derive(Debug)]
pub(crate) struct HopNotice {
    /// One bit for each proxy that was logged or needs no log line.
    known: AtomicU8,
}

impl HopNotice {
    /// Returns a notice that stays silent about the hops that the configuration names.
    pub(crate) fn besides(configured: impl Iterator<Item = Hop>) -> HopNotice {
        let configured: Vec<Hop> = configured.collect();
        let known = NamedProxy::ALL
            .into_iter()
            .filter(|proxy| proxy.preset().is_some_and(|preset| configured.contains(&preset)));
        HopNotice { known: AtomicU8::new(known.map(bit).sum()) }
    }

    /// Logs the proxies that a response with these headers came through, unless they were logged before.
    pub(crate) fn look_at(&self, headers: &HeaderMap) {
        for proxy in NamedProxy::in_response(headers) {
            if self.known.fetch_or(bit(proxy), Ordering::Relaxed) & bit(proxy) == 0 {
                tracing::info!(
                    hop = proxy.name(),
                    "upstream answers through {}: {}",
                    proxy.name(),
                    proxy.advice()
                );
            }
        }
    }
}

fn bit(proxy: NamedProxy) -> u8 {
    1 << proxy as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_known_by_server_or_via() {
        for (name, value, found) in [
            ("server", "nginx/1.22.1", &["nginx"][..]),
            ("server", "openresty", &["nginx"]),
            ("server", "istio-envoy", &["Envoy"]),
            ("server", "Apache/2.4.71 (Debian)", &["Apache"]),
            ("server", "Caddy", &["Caddy"]),
            ("via", "1.1 varnish (Varnish/7.1)", &["Varnish"]),
            ("via", "1.1 Caddy, 1.1 edge.example (Apache/2.4.71)", &["Apache", "Caddy"]),
            ("server", "uvicorn", &[]),
            ("server", "not-nginx", &[]),
            ("x-server", "nginx", &[]),
        ] {
            let headers = HeaderMap::from_iter([(
                HeaderName::from_static(name),
                http::HeaderValue::from_static(value),
            )]);
            let names: Vec<_> = NamedProxy::in_response(&headers).map(NamedProxy::name).collect();
            assert_eq!(names, found, "{name}: {value}");
        }
    }

    #[test]
    fn a_preset_is_advised_by_its_line() {
        assert!(NamedProxy::Nginx.advice().contains("`behind = \"nginx\"`"));
        assert!(NamedProxy::Varnish.advice().contains("without a body again"));
    }
}
