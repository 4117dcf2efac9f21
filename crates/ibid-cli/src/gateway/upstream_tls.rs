//! TLS to the upstream: trusted authorities, client certificate, and handshake.
//!
//! Every failure here happens before the first byte of a request is sent, so the forwarder takes it as proof that
//! nothing was executed. One case needs care. In TLS 1.3 a client has finished the handshake before the server has
//! checked the client's certificate, and the server's refusal may arrive after the request was sent, when it no
//! longer proves anything. Therefore a connection whose server asked for a certificate is handed over only after the
//! server's verdict, or after [`VERDICT_MAX`]; see [`await_verdict`].

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustls::client::ResolvesClientCert;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ProtocolVersion, RootCertStore, SignatureScheme};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::tls_error::TlsError;

/// The parsed and checked `[upstream_tls]`. The default is the system's roots and no client certificate.
#[derive(Clone, Debug, Default)]
pub(crate) struct TlsSettings {
    /// Authorities to trust instead of the system's.
    pub(crate) roots: Option<Arc<RootCertStore>>,
    /// The client certificate with its key.
    pub(crate) identity: Option<Arc<CertifiedKey>>,
    /// The name to send (SNI) and to check, if it is not the URL's host.
    pub(crate) server_name: Option<ServerName<'static>>,
}

/// The application protocols that a connection offers (ALPN).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offer {
    /// HTTP/2 if the upstream accepts it, HTTP/1.1 otherwise.
    Either,
    /// HTTP/2 or no connection.
    Http2Only,
    /// HTTP/1.1 only, which an upgrade needs.
    Http1Only,
}

/// A TLS client of one upstream. Clones share its sessions.
#[derive(Clone, Debug)]
pub(crate) struct UpstreamTls {
    config: Arc<ClientConfig>,
    server_name: ServerName<'static>,
    offer: Offer,
    declined_http2: Arc<AtomicBool>,
}

impl UpstreamTls {
    /// Returns a client for the upstream on `host`, which may be a name or an address.
    pub(crate) fn new(
        host: &str,
        settings: &TlsSettings,
        offer: Offer,
    ) -> Result<UpstreamTls, TlsSetupError> {
        let host = host.trim_matches(['[', ']']);
        let server_name = match &settings.server_name {
            Some(name) => name.clone(),
            None => {
                ServerName::try_from(host.to_owned()).map_err(|_| TlsSetupError::Host(host.to_owned()))?
            }
        };
        let roots = match &settings.roots {
            Some(roots) => Arc::clone(roots),
            None => Arc::new(system_roots()?),
        };
        let provider = provider();
        let verifier: Arc<dyn ServerCertVerifier> =
            WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider))
                .build()
                .map_err(|_| TlsSetupError::NoRoots)?;
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(TlsSetupError::Rustls)?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_cert_resolver(Arc::new(ClientIdentity(settings.identity.clone())));
        config.alpn_protocols = offer.protocols();
        Ok(UpstreamTls { config: Arc::new(config), server_name, offer, declined_http2: Arc::default() })
    }

    /// Returns a client that differs from this one only in its offer.
    pub(crate) fn offering(&self, offer: Offer) -> UpstreamTls {
        let mut config = ClientConfig::clone(&self.config);
        config.alpn_protocols = offer.protocols();
        UpstreamTls { config: Arc::new(config), offer, ..self.clone() }
    }

    /// Returns a flag that becomes `true` when the upstream is offered HTTP/2 and does not choose it.
    pub(crate) fn declined_http2(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.declined_http2)
    }

    /// Returns the name that the upstream's certificate must be for.
    pub(crate) fn server_name(&self) -> &ServerName<'static> {
        &self.server_name
    }

    /// Performs the TLS handshake on a new connection. An error proves that no byte of a request was sent.
    pub(crate) async fn handshake(&self, tcp: TcpStream) -> Result<TlsStream<TcpStream>, TlsError> {
        let failed = |error: io::Error| TlsError::explain(&error, &self.server_name);
        let started = Instant::now();
        let shake = async {
            let connecting =
                TlsConnector::from(Arc::clone(&self.config)).connect(self.server_name.clone(), tcp);
            let (mut tls, asked) = CLIENT_CERTIFICATE_ASKED
                .scope(std::cell::Cell::new(false), async {
                    let tls = connecting.await?;
                    Ok::<_, io::Error>((tls, CLIENT_CERTIFICATE_ASKED.with(std::cell::Cell::get)))
                })
                .await?;
            if asked && tls.get_ref().1.protocol_version() == Some(ProtocolVersion::TLSv1_3) {
                await_verdict(&mut tls, started.elapsed()).await?;
            }
            Ok(tls)
        };
        let tls = match tokio::time::timeout(HANDSHAKE_FOR, shake).await {
            Ok(result) => result.map_err(failed)?,
            Err(_) => return Err(TlsError::too_slow(HANDSHAKE_FOR)),
        };
        if self.offer == Offer::Http2Only && !speaks_http2(&tls) {
            return Err(TlsError::no_http2());
        }
        if self.offer == Offer::Either && !speaks_http2(&tls) {
            self.declined_http2.store(true, Ordering::Relaxed);
        }
        Ok(tls)
    }
}

/// Returns whether the two sides agreed on HTTP/2.
pub(crate) fn speaks_http2(tls: &TlsStream<TcpStream>) -> bool {
    tls.get_ref().1.alpn_protocol() == Some(HTTP2)
}

/// Returns the cryptography provider, the same as for PostgreSQL.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// The reason why TLS can't be set up. No connection was attempted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsSetupError {
    #[error("`{0}` is neither a host name nor an address, so no certificate can be for it")]
    Host(String),
    #[error("this system has no certificates to trust; name a file as `ca` in `[upstream_tls]`")]
    NoRoots,
    #[error(transparent)]
    Rustls(rustls::Error),
}

fn system_roots() -> Result<RootCertStore, TlsSetupError> {
    let mut roots = RootCertStore::empty();
    let certificates: Vec<CertificateDer<'static>> = rustls_native_certs::load_native_certs().certs;
    let (added, _) = roots.add_parsable_certificates(certificates);
    if added == 0 { Err(TlsSetupError::NoRoots) } else { Ok(roots) }
}

/// Waits until the server has accepted or refused the client's certificate, or until a time-out.
///
/// The server may send a session ticket only after it has checked the client's `Finished` message, and so the
/// certificate before it (RFC 8446, 4.6.1). A refusal is an alert or a close. Both arrive one round trip after the end
/// of our handshake, which itself took at least one. A server without tickets sends no sign of acceptance: the wait times
/// out, and a refusal that arrives later leaves the request's outcome unknown.
async fn await_verdict(tls: &mut TlsStream<TcpStream>, handshake: Duration) -> io::Result<()> {
    let verdict = async {
        let (tcp, session) = tls.get_mut();
        while session.tls13_tickets_received() == 0 {
            tcp.readable().await?;
            match session.read_tls(&mut TryRead(tcp)) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error),
            }
            let state = session
                .process_new_packets()
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            if state.peer_has_closed() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            // The server's first HTTP/2 frames. They stay in the session until the HTTP client reads them.
            if state.plaintext_bytes_to_read() > 0 {
                break;
            }
        }
        Ok(())
    };
    let wait = (handshake * 3).clamp(VERDICT_MIN, VERDICT_MAX);
    tokio::time::timeout(wait, verdict).await.unwrap_or(Ok(()))
}

/// A reader of the bytes that a socket has available right now.
struct TryRead<'a>(&'a TcpStream);

impl io::Read for TryRead<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buffer)
    }
}

/// The client's certificate, if there is one. Also records that the server asked for it.
#[derive(Debug)]
struct ClientIdentity(Option<Arc<CertifiedKey>>);

impl ResolvesClientCert for ClientIdentity {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        // rustls calls this within the poll of its handshake, so a task-local works. A resolver per connection could hold
        // the flag itself, but rustls resumes a session only under the resolver that the session began with.
        let _ = CLIENT_CERTIFICATE_ASKED.try_with(|asked| asked.set(true));
        self.0.clone()
    }

    fn has_certs(&self) -> bool {
        self.0.is_some()
    }
}

tokio::task_local! {
    static CLIENT_CERTIFICATE_ASKED: std::cell::Cell<bool>;
}

impl Offer {
    fn protocols(self) -> Vec<Vec<u8>> {
        match self {
            Offer::Either => vec![HTTP2.to_vec(), HTTP1.to_vec()],
            Offer::Http2Only => vec![HTTP2.to_vec()],
            Offer::Http1Only => vec![HTTP1.to_vec()],
        }
    }
}

const HTTP1: &[u8] = b"http/1.1";
const HTTP2: &[u8] = b"h2";

/// Time-out of the handshake after the TCP connection was made: the same as for connecting. Giving up here still proves
/// that nothing was sent.
const HANDSHAKE_FOR: Duration = Duration::from_secs(5);

/// Bounds of the wait for a server's verdict on the client's certificate. Between them, the wait is three times as long as
/// the handshake was. A verdict on the same host arrives within milliseconds even if the machine is busy, and one from the
/// other end of the world within a second. A server that never sends one delays each new connection by this much.
const VERDICT_MIN: Duration = Duration::from_millis(50);
const VERDICT_MAX: Duration = Duration::from_secs(1);
