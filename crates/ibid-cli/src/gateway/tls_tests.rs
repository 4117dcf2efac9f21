//! Tests of an upstream with TLS: the negotiated protocol, trust, and that every refused handshake proves that nothing was
//! sent. Every server here is a real rustls server on a real socket.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use ibid::http::ExecutionHint;
use ibid_testkit::tls::{Authority, TlsFront, TlsIdentity, TlsOptions};
use ibid_testkit::upstream::{ReservedPort, Upstream};
use ibid_testkit::upstream_h2::UpstreamH2;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceExt;

use super::forward::{ForwardBody, Forwarder};
use super::upstream_tls::{Offer, TlsSettings, UpstreamTls, provider};

#[tokio::test]
async fn alpn_chooses_the_version_and_host_follows_it() {
    let authority = Authority::new();
    let identity = authority.certificate(&["127.0.0.1"]);
    let (first, second) = (Upstream::start().await, UpstreamH2::start().await);
    let options = |alpn: &'static [&'static str]| TlsOptions { alpn, ..TlsOptions::default() };

    for alpn in [&["http/1.1"][..], &[]] {
        let front = TlsFront::start(first.addr(), &identity, options(alpn)).await;
        let forwarder = forwarder(&front.url(), false, &trusting(&authority));
        // The second request uses the client that offers only HTTP/1.1, and so does the third.
        for connections in [1, 2, 2] {
            let answer = send(&forwarder, post("one", "status=201").header("te", "trailers")).await;
            assert_eq!((answer.status().as_u16(), hint_of(&answer)), (201, None));
            assert_eq!(text(answer).await, "done");
            let request = first.requests().pop().unwrap();
            assert_eq!(request.header_lines("host"), [front.addr().to_string()]);
            assert_eq!(front.handshakes(), connections);
        }
    }
    let front = TlsFront::start(second.addr(), &identity, options(&["h2", "http/1.1"])).await;
    for demanded in [false, true] {
        let forwarder = forwarder(&front.url(), demanded, &trusting(&authority));
        for _ in 0..2 {
            let answer = send(&forwarder, post("two", "status=201").header("te", "trailers")).await;
            assert_eq!((answer.status().as_u16(), hint_of(&answer)), (201, None));
            let request = second.requests().pop().unwrap();
            assert_eq!((request.header("host"), request.header("te").as_deref()), (None, Some("trailers")));
        }
    }
    assert_eq!(second.tally().connections, 2, "requests of one forwarder share a connection");
}

#[tokio::test]
async fn a_refused_handshake_proves_that_nothing_was_sent() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let good = authority.certificate(&["127.0.0.1"]);
    let expired = authority.expired_certificate(&["127.0.0.1"]);
    let other = authority.certificate(&["other.test"]);
    let (ours, theirs) =
        (with_client_certificate(&authority, &authority), with_client_certificate(&authority, &stranger));
    let clients = || TlsOptions { clients_of: Some(&authority), ..TlsOptions::default() };
    let clients12 = || TlsOptions { tls12: true, ..clients() };
    let ticketless = || TlsOptions { ticketless: true, ..clients() };
    let http1 = || TlsOptions { alpn: &["http/1.1"], ..TlsOptions::default() };
    let plain = TlsOptions::default;
    let trusting_us = trusting(&authority);

    for (identity, options, settings, http2, words) in [
        (&good, plain(), &trusting(&stranger), false, "not signed by an authority"),
        (&expired, plain(), &trusting_us, false, "expired on 2021-01-01"),
        (&other, plain(), &trusting_us, false, "is for `other.test`, not for `127.0.0.1`"),
        (&good, http1(), &trusting_us, true, "ALPN"),
        (&good, plain(), &trusting_us, true, "does not offer HTTP/2"),
        (&good, clients(), &trusting_us, false, "demands a client certificate"),
        (&good, ticketless(), &trusting_us, false, "demands a client certificate"),
        (&good, clients12(), &trusting_us, false, "it "),
        (&good, clients(), &theirs, false, "refused the gateway's client certificate"),
        (&good, clients12(), &theirs, false, "refused the gateway's client certificate"),
    ] {
        let upstream = Upstream::start().await;
        let front = TlsFront::start(upstream.addr(), identity, options).await;
        let answer = send(&forwarder(&front.url(), http2, settings), post("k", "")).await;
        assert_eq!(
            (answer.status().as_u16(), hint_of(&answer)),
            (503, Some(ExecutionHint::NotExecuted)),
            "{words}"
        );
        assert!(text(answer).await.contains("upstream-unavailable"), "{words}");
        let offer = if http2 { Offer::Http2Only } else { Offer::Either };
        let tls = UpstreamTls::new("127.0.0.1", settings, offer).unwrap();
        let failure = tls.handshake(TcpStream::connect(front.addr()).await.unwrap()).await.unwrap_err();
        assert!(failure.cause.contains(words), "{failure:?}");
        assert_eq!(upstream.deliveries_begun(), 0, "{words}");
    }
    for options in [clients(), clients12(), ticketless()] {
        let upstream = Upstream::start().await;
        let front = TlsFront::start(upstream.addr(), &good, options).await;
        let answer = send(&forwarder(&front.url(), false, &ours), post("k", "status=201")).await;
        assert_eq!((answer.status().as_u16(), upstream.executions("k")), (201, 1));
    }
}

#[tokio::test]
async fn a_server_without_tls_gets_no_request() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let plain = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let _ = client.read(&mut [0; 512]).await;
            let _ = client.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    let settings = trusting(&Authority::new());
    let refused = ReservedPort::port();
    for addr in [plain, refused.addr()] {
        let answer = send(&forwarder(&format!("https://{addr}"), false, &settings), post("k", "")).await;
        assert_eq!(
            (answer.status().as_u16(), hint_of(&answer)),
            (503, Some(ExecutionHint::NotExecuted)),
            "{addr}"
        );
    }
    let tls = UpstreamTls::new("127.0.0.1", &settings, Offer::Either).unwrap();
    let failure = tls.handshake(TcpStream::connect(plain).await.unwrap()).await.unwrap_err();
    assert!(failure.cause.contains("not TLS") && failure.hint.contains("`http://`"), "{failure:?}");
}

#[tokio::test]
async fn server_name_is_asked_for_and_checked_instead_of_the_host() {
    let authority = Authority::new();
    let upstream = Upstream::start().await;
    let identity = authority.certificate(&["api.internal"]);
    let front = TlsFront::start(upstream.addr(), &identity, TlsOptions::default()).await;
    let server_name = Some(ServerName::try_from("api.internal").unwrap());
    let settings = TlsSettings { server_name, ..trusting(&authority) };
    let answer = send(&forwarder(&front.url(), false, &settings), post("k", "status=201")).await;
    assert_eq!(answer.status(), 201);
    let host = upstream.requests().pop().unwrap().header("host");
    assert_eq!(host, Some(front.addr().to_string()), "the URL's, not the certificate's");
}

/// A server that refuses the client's certificate after the request was sent: its refusal proves nothing.
#[tokio::test]
async fn a_refusal_after_the_request_was_sent_is_uncertain() {
    let authority = Authority::new();
    let upstream = Upstream::start().await;
    let options = TlsOptions { clients_of: Some(&authority), ..TlsOptions::default() };
    let front = TlsFront::start(upstream.addr(), &authority.certificate(&["127.0.0.1"]), options).await;
    let relay = HoldingRelay::start(front.addr()).await;
    let forwarder = forwarder(&format!("https://{relay}"), false, &trusting(&authority));
    let request = post("k", "").body(Full::from(vec![b'x'; HELD_BYTES])).unwrap();
    let answer = forwarder.oneshot(request).await.unwrap();
    assert_eq!((answer.status().as_u16(), hint_of(&answer)), (502, Some(ExecutionHint::Uncertain)));
    assert_eq!(upstream.total(), 0);
}

#[tokio::test]
async fn a_pooled_tls_connection_found_closed_costs_nothing() {
    let authority = Authority::new();
    let upstream = Upstream::start().await;
    let identity = authority.certificate(&["127.0.0.1"]);
    let front = TlsFront::start(upstream.addr(), &identity, TlsOptions::default()).await;
    let forwarder = forwarder(&front.url(), false, &trusting(&authority));
    assert_eq!(text(send(&forwarder, post("a", "cut=after")).await).await, "done");
    upstream.until(|t| t.closed == 1).await;
    let second = send(&forwarder, post("b", "status=201")).await;
    // The close may cross the request inside the TLS server. Then the outcome is uncertain; it is never sent twice.
    match hint_of(&second) {
        None => assert_eq!((second.status().as_u16(), upstream.executions("b")), (201, 1)),
        Some(ExecutionHint::NotExecuted) => assert_eq!(upstream.executions("b"), 0),
        Some(ExecutionHint::Uncertain | ExecutionHint::Executed) => assert!(upstream.executions("b") <= 1),
    }
}

#[tokio::test]
async fn refused_streams_prove_the_same_over_tls() {
    let authority = Authority::new();
    let upstream = UpstreamH2::start().await;
    let options = TlsOptions { alpn: &["h2"], ..TlsOptions::default() };
    let front = TlsFront::start(upstream.addr(), &authority.certificate(&["127.0.0.1"]), options).await;
    let forwarder = forwarder(&front.url(), false, &trusting(&authority));
    for (fixture, proven, executed) in [
        ("refuse", ExecutionHint::NotExecuted, 0),
        ("reset=internal", ExecutionHint::Uncertain, 1),
        ("goaway=at", ExecutionHint::Uncertain, 1),
        ("goaway=below", ExecutionHint::NotExecuted, 0),
    ] {
        let answer = send(&forwarder, post(fixture, fixture)).await;
        assert_eq!(hint_of(&answer), Some(proven), "{fixture}");
        assert_eq!(upstream.executions(fixture), executed, "{fixture}");
    }
}

/// Streams open while a connection that ALPN made HTTP/2 receives GOAWAY.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_race_with_a_goaway_over_tls_proves_nothing_false() {
    let authority = Authority::new();
    let upstream = UpstreamH2::start().await;
    let options = TlsOptions { alpn: &["h2"], ..TlsOptions::default() };
    let front = TlsFront::start(upstream.addr(), &authority.certificate(&["127.0.0.1"]), options).await;
    let forwarder = forwarder(&front.url(), false, &trusting(&authority));
    super::forward_tests::race_with_goaway(&upstream, &forwarder, 5).await;
}

fn forwarder(upstream: &str, http2: bool, settings: &TlsSettings) -> Forwarder {
    Forwarder::new(upstream.parse().unwrap(), http2, settings).unwrap()
}

fn trusting(authority: &Authority) -> TlsSettings {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
    TlsSettings { roots: Some(Arc::new(roots)), ..TlsSettings::default() }
}

/// Settings that trust one authority and have a client certificate of the other.
fn with_client_certificate(trusted: &Authority, signer: &Authority) -> TlsSettings {
    let TlsIdentity { certificate_pem, key_pem } = signer.certificate(&["gateway.test"]);
    let chain = vec![CertificateDer::from_pem_slice(certificate_pem.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).unwrap();
    let identity = CertifiedKey::from_der(chain, key, &provider()).unwrap();
    TlsSettings { identity: Some(Arc::new(identity)), ..trusting(trusted) }
}

fn post(key: &str, fixture: &str) -> http::request::Builder {
    let request = Request::post("/pay").header("idempotency-key", format!("\"{key}\""));
    if fixture.is_empty() { request } else { request.header("x-fixture", fixture) }
}

async fn send(forwarder: &Forwarder, request: http::request::Builder) -> Response<ForwardBody> {
    forwarder.clone().oneshot(request.body(Full::<Bytes>::from("body")).unwrap()).await.unwrap()
}

fn hint_of(answer: &Response<ForwardBody>) -> Option<ExecutionHint> {
    answer.extensions().get().copied()
}

async fn text(answer: Response<ForwardBody>) -> String {
    let body = answer.into_body().collect().await.expect("a whole body").to_bytes();
    String::from_utf8_lossy(&body).into_owned()
}

/// A relay that passes the client's first message on at once and holds back the rest until [`HELD_BYTES`] have arrived, so
/// that the server checks the client's certificate only after the request was sent.
struct HoldingRelay;

impl HoldingRelay {
    async fn start(behind: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (client, _) = listener.accept().await.unwrap();
            let server = TcpStream::connect(behind).await.unwrap();
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = server.into_split();
            tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
            let mut buffer = vec![0; 64 * 1024];
            let hello = from_client.read(&mut buffer).await.unwrap();
            to_server.write_all(&buffer[..hello]).await.unwrap();
            let mut pending = Vec::new();
            while pending.len() < HELD_BYTES {
                let more = from_client.read(&mut buffer).await.unwrap();
                pending.extend_from_slice(&buffer[..more]);
            }
            to_server.write_all(&pending).await.unwrap();
            // An error means that the server has refused and closed.
            let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
        });
        addr
    }
}

/// Bytes that the relay holds back: more than the second half of a handshake, less than a socket buffers unread.
const HELD_BYTES: usize = 16 * 1024;
