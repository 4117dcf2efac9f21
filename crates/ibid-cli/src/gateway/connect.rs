//! Connections to the upstream, plain or with TLS, for the HTTP client.

use std::error::Error as StdError;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tower_service::Service;

use super::upstream_tls::{UpstreamTls, speaks_http2};

/// A connector to the upstream. Its errors prove that nothing was sent.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    tcp: HttpConnector,
    tls: Option<Arc<UpstreamTls>>,
}

impl Connector {
    /// Returns a connector, with TLS if `tls` is given.
    pub(crate) fn new(tls: Option<UpstreamTls>) -> Connector {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_FOR));
        tcp.set_keepalive(Some(TCP_KEEPALIVE_AFTER));
        // By default `HttpConnector` refuses `https`, because it would speak plain text there.
        tcp.enforce_http(tls.is_none());
        Connector { tcp, tls: tls.map(Arc::new) }
    }
}

impl Service<Uri> for Connector {
    type Response = UpstreamStream;
    type Error = Box<dyn StdError + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<UpstreamStream, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let (connecting, tls) = (self.tcp.call(to), self.tls.clone());
        Box::pin(async move {
            let tcp = connecting.await?;
            match tls {
                None => Ok(UpstreamStream::Plain(tcp)),
                Some(tls) => {
                    let tls = tls.handshake(tcp.into_inner()).await?;
                    Ok(UpstreamStream::Tls(Box::new(TokioIo::new(tls))))
                }
            }
        })
    }
}

/// A connection to the upstream.
pub(crate) enum UpstreamStream {
    Plain(TokioIo<TcpStream>),
    Tls(Box<TokioIo<TlsStream<TcpStream>>>),
}

impl Connection for UpstreamStream {
    fn connected(&self) -> Connected {
        match self {
            UpstreamStream::Plain(tcp) => tcp.connected(),
            UpstreamStream::Tls(tls) => {
                let connected = tls.inner().get_ref().0.connected();
                if speaks_http2(tls.inner()) { connected.negotiated_h2() } else { connected }
            }
        }
    }
}

impl Read for UpstreamStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            UpstreamStream::Plain(tcp) => Pin::new(tcp).poll_read(cx, buffer),
            UpstreamStream::Tls(tls) => Pin::new(tls).poll_read(cx, buffer),
        }
    }
}

impl Write for UpstreamStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            UpstreamStream::Plain(tcp) => Pin::new(tcp).poll_write(cx, data),
            UpstreamStream::Tls(tls) => Pin::new(tls).poll_write(cx, data),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            UpstreamStream::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            UpstreamStream::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            UpstreamStream::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            UpstreamStream::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            UpstreamStream::Plain(tcp) => Pin::new(tcp).poll_write_vectored(cx, pieces),
            UpstreamStream::Tls(tls) => Pin::new(tls).poll_write_vectored(cx, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            UpstreamStream::Plain(tcp) => tcp.is_write_vectored(),
            UpstreamStream::Tls(tls) => tls.is_write_vectored(),
        }
    }
}

/// Time-out for connecting. A SYN that is lost twice is sent a third time after 3 s. An upstream that needs longer is down,
/// and giving up here still proves that nothing was sent.
pub(crate) const CONNECT_FOR: Duration = Duration::from_secs(5);

/// Silence after which the kernel starts to probe the peer, for responses that take minutes.
const TCP_KEEPALIVE_AFTER: Duration = Duration::from_secs(60);
