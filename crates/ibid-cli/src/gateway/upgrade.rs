//! Upgrades of unguarded requests (WebSocket and others): once the upstream agrees, the gateway only copies bytes between
//! client and upstream.
//!
//! The tunnel belongs to the client's connection and keeps the slots of that connection and of its request. It is cut when
//! a drain starts, because it has no end that a drain could wait for. It has no time-out: a quiet WebSocket is not stalled.
//!
//! Guarded requests are never upgraded, and an upgrade to another version of HTTP is never forwarded: the tunnel would
//! carry requests that no guard has seen.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;

use super::connections::Connection;
use super::pass_slots::PassSlot;

/// The protocols that a request may be upgraded to. As an extension of the request, it makes the forwarder forward the
/// upgrade.
#[derive(Clone, Debug)]
pub(crate) struct UpgradeTo(pub(crate) HeaderValue);

/// Slot in which a request leaves the tunnel that its connection will become.
#[derive(Default)]
pub(crate) struct TunnelSlot(Mutex<Option<Tunnel>>);

impl TunnelSlot {
    /// Takes the tunnel out of the slot. There is one if the connection has been upgraded.
    pub(crate) fn take(&self) -> Option<Tunnel> {
        self.0.lock().take()
    }

    fn put(&self, tunnel: Tunnel) {
        *self.0.lock() = Some(tunnel);
    }
}

/// The two connections of an upgrade: the client's and the upstream's.
pub(crate) struct Tunnel {
    client: OnUpgrade,
    upstream: OnUpgrade,
    /// The slot of the request, held until the tunnel ends.
    _slot: Arc<PassSlot>,
}

impl Tunnel {
    /// Copies bytes both ways until both sides have ended.
    pub(crate) async fn run(self) {
        let (client, upstream) = match tokio::try_join!(self.client, self.upstream) {
            Ok(both) => both,
            Err(error) => return tracing::debug!(%error, "upgrade failed"),
        };
        let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
        if let Err(error) = tokio::io::copy_bidirectional(&mut client, &mut upstream).await {
            tracing::debug!(%error, "tunnel ended with an error");
        }
    }
}

/// A client's request for an upgrade, with the client's side of the tunnel.
pub(crate) struct UpgradeRequest {
    connection: Arc<Connection>,
    client: OnUpgrade,
}

impl UpgradeRequest {
    /// Takes the client's side out of an unguarded request and marks the request for the forwarder.
    ///
    /// Returns `None` if the request asks for no upgrade that may be forwarded.
    pub(crate) fn take<B>(request: &mut Request<B>) -> Option<UpgradeRequest> {
        let to = requested_protocols(request.version(), request.headers())?;
        let connection = Arc::clone(request.extensions().get::<Arc<Connection>>()?);
        // The connection can't be upgraded without it.
        request.extensions().get::<OnUpgrade>()?;
        let client = hyper::upgrade::on(&mut *request);
        request.extensions_mut().insert(UpgradeTo(to));
        Some(UpgradeRequest { connection, client })
    }

    /// Joins the two sides if the upstream has agreed.
    pub(crate) fn fulfil<B>(self, response: &mut Response<B>, slot: Arc<PassSlot>) {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let upstream = hyper::upgrade::on(response);
            self.connection.tunnel.put(Tunnel { client: self.client, upstream, _slot: slot });
        }
    }
}

/// Returns the requested protocols, if the request asks for an upgrade that may be forwarded.
fn requested_protocols(version: Version, headers: &HeaderMap) -> Option<HeaderValue> {
    let has_option = super::forward::names_in(headers, header::CONNECTION).any(|name| name == "upgrade");
    if version != Version::HTTP_11 || !has_option {
        return None;
    }
    // Several lines would form one list, but more than one line is too unusual to guess at.
    let mut lines = headers.get_all(header::UPGRADE).iter();
    let (Some(line), None) = (lines.next(), lines.next()) else { return None };
    let protocols: Vec<String> = super::forward::names_in(headers, header::UPGRADE).collect();
    let is_http = |protocol: &String| {
        let name = protocol.split('/').next().unwrap_or_default();
        name.is_empty() || HTTP_PROTOCOLS.contains(&name)
    };
    (!protocols.is_empty() && !protocols.iter().any(is_http)).then(|| line.clone())
}

/// Protocols whose tunnel carries HTTP requests: HTTP/2 in plain text, and TLS with HTTP inside (RFC 2817).
const HTTP_PROTOCOLS: [&str; 5] = ["h2c", "h2", "h3", "http", "tls"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upgrade_is_passed_on_unless_it_would_carry_http() {
        for (connection, upgrade, passed) in [
            ("Upgrade", "websocket", true),
            ("keep-alive, upgrade", "WebSocket", true),
            ("upgrade", "echo/1.0, chat", true),
            ("keep-alive", "websocket", false),
            ("upgrade", "", false),
            ("upgrade, HTTP2-Settings", "h2c", false),
            ("upgrade", "websocket, H2C", false),
            ("upgrade", "TLS/1.0", false),
            ("upgrade", "HTTP/2.0", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONNECTION, HeaderValue::from_static(connection));
            headers.insert(header::UPGRADE, HeaderValue::from_static(upgrade));
            assert_eq!(
                requested_protocols(Version::HTTP_11, &headers).is_some(),
                passed,
                "{connection}: {upgrade}"
            );
            assert_eq!(requested_protocols(Version::HTTP_2, &headers), None);
        }
        let mut twice = HeaderMap::new();
        twice.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        twice.append(header::UPGRADE, HeaderValue::from_static("websocket"));
        twice.append(header::UPGRADE, HeaderValue::from_static("echo"));
        assert_eq!(requested_protocols(Version::HTTP_11, &twice), None);
    }
}
