//! A real TLS server in front of a plain fixture, with certificates made at run time.
//!
//! It terminates TLS and passes the bytes on, so every directive of the fixture works behind it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use crate::upstream::ReservedPort;

/// An authority that signs certificates.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
#[derive(Clone, Debug)]
pub struct TlsIdentity {
    /// The certificate, in PEM.
    pub certificate_pem: String,
    /// Its private key, in PEM.
    pub key_pem: String,
}

impl Authority {
    /// Makes a new authority.
    #[expect(clippy::new_without_default, reason = "each is another one")]
    pub fn new() -> Authority {
        let mut params = CertificateParams::new(vec![]).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // A client would confuse two authorities of one name, and then fail in a different way.
        let nth = AUTHORITIES.fetch_add(1, Ordering::Relaxed);
        params.distinguished_name.push(DnType::CommonName, format!("authority {nth}"));
        let key = KeyPair::generate().expect("a key");
        Authority(CertifiedIssuer::self_signed(params, key).expect("an authority"))
    }

    /// Returns the authority's certificate.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Issues a certificate for these names and addresses, valid now.
    pub fn certificate(&self, names: &[&str]) -> TlsIdentity {
        self.sign(names, |_| {})
    }

    /// Issues a certificate whose last day was in 2021.
    pub fn expired_certificate(&self, names: &[&str]) -> TlsIdentity {
        self.sign(names, |params| {
            params.not_before = rcgen::date_time_ymd(2020, 1, 1);
            params.not_after = rcgen::date_time_ymd(2021, 1, 1);
        })
    }

    fn sign(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> TlsIdentity {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("parameters");
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        TlsIdentity { certificate_pem: certificate.pem(), key_pem: key.serialize_pem() }
    }
}

static AUTHORITIES: AtomicUsize = AtomicUsize::new(0);

/// Options of a TLS server.
#[derive(Default)]
pub struct TlsOptions<'a> {
    /// Protocols it takes (ALPN), its favourite first; if empty, it does not negotiate ALPN.
    pub alpn: &'a [&'a str],
    /// Requires a client certificate of this authority.
    pub clients_of: Option<&'a Authority>,
    /// Offers nothing newer than TLS 1.2.
    pub tls12: bool,
    /// Sends no session tickets.
    pub ticketless: bool,
}

/// A TLS server that passes bytes to a plain one; dropping it stops it and cuts its connections.
#[derive(Debug)]
pub struct TlsFront {
    addr: SocketAddr,
    handshakes: Arc<AtomicUsize>,
    serving: JoinHandle<()>,
}

impl TlsFront {
    /// Starts on a free loopback port, in front of the server at `behind`.
    pub async fn start(behind: SocketAddr, identity: &TlsIdentity, options: TlsOptions<'_>) -> TlsFront {
        let acceptor = TlsAcceptor::from(Arc::new(server_config(identity, &options)));
        let (addr, listener) = ReservedPort::port().listen();
        let handshakes = Arc::new(AtomicUsize::new(0));
        let done = Arc::clone(&handshakes);
        let serving = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let Ok((tcp, _)) = listener.accept().await else { continue };
                while connections.try_join_next().is_some() {}
                let (acceptor, done) = (acceptor.clone(), Arc::clone(&done));
                connections.spawn(async move {
                    let Ok(mut tls) = acceptor.accept(tcp).await else { return };
                    done.fetch_add(1, Ordering::SeqCst);
                    let Ok(mut plain) = TcpStream::connect(behind).await else { return };
                    let _ = tokio::io::copy_bidirectional(&mut tls, &mut plain).await;
                });
            }
        });
        TlsFront { addr, handshakes, serving }
    }

    /// Returns the address that it listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `https://address`, without a path.
    pub fn url(&self) -> String {
        format!("https://{}", self.addr)
    }

    /// Returns how many handshakes it completed.
    pub fn handshakes(&self) -> usize {
        self.handshakes.load(Ordering::SeqCst)
    }
}

impl Drop for TlsFront {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn server_config(identity: &TlsIdentity, options: &TlsOptions<'_>) -> ServerConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let versions: &[&SupportedProtocolVersion] =
        if options.tls12 { &[&rustls::version::TLS12] } else { rustls::ALL_VERSIONS };
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .expect("known versions");
    let builder = match options.clients_of {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            roots
                .add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).expect("PEM"))
                .expect("a root");
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.expect("a verifier"))
        }
    };
    let certificate = CertificateDer::from_pem_slice(identity.certificate_pem.as_bytes()).expect("PEM");
    let key = PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes()).expect("PEM");
    let mut config = builder.with_single_cert(vec![certificate], key).expect("a key that fits");
    config.alpn_protocols = options.alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    if options.ticketless {
        config.send_tls13_tickets = 0;
    }
    config
}
