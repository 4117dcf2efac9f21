//! Tests of the accept loop over real connections: admission, time-outs and drain.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode, Version};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use ibid_testkit::client::{Client, TestRequest};
use ibid_testkit::upstream::Upstream;
use tokio::net::TcpListener;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tower::ServiceExt;

use super::connections::Connection;
use super::forward::Forwarder;
use super::server::{DrainStats, ListenerState, ServerLimits, serve, serve_behind};
use super::upstream_tls::TlsSettings;

#[tokio::test]
async fn one_port_serves_both_http_versions_with_the_peer_address() {
    let server = Server::start(ServerLimits::default()).await;
    let mut first = Client::connect(server.addr).await;
    let answer = first.call(&TestRequest::post("/peer").body("x")).await;
    assert_eq!((answer.status, answer.text()), (200, format!("HTTP/1.1 {}", first.local_addr())));

    let second =
        Forwarder::new(format!("http://{}", server.addr).parse().unwrap(), true, &TlsSettings::default())
            .unwrap();
    let request = http::Request::post("/peer").body(Full::<Bytes>::from("x")).unwrap();
    let answer = second.oneshot(request).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let text = answer.into_body().collect().await.unwrap().to_bytes();
    assert!(text.starts_with(b"HTTP/2.0 127.0.0.1:"), "{text:?}");
}

#[tokio::test]
async fn a_connection_over_the_bound_waits_while_all_are_busy() {
    let server = Server::start(ServerLimits { connections_max: 1, ..ServerLimits::default() }).await;
    let mut first = Client::connect(server.addr).await;
    first.send(&TestRequest::get("/held")).await;
    server.held.notified().await;

    // The second client can send, and gets no response yet.
    let mut second = Client::connect(server.addr).await;
    second.send(&TestRequest::get("/")).await;
    server.until(|door| door.connections.has_waiter()).await;
    assert_eq!(server.calls.load(Ordering::SeqCst), 1);

    server.release.notify_one();
    assert_eq!(first.read().await.unwrap().status, 200);
    assert_eq!(second.read().await.unwrap().status, 200);
    assert_eq!(server.calls.load(Ordering::SeqCst), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_client_over_the_bound_gets_its_response() {
    let server = Server::start(ServerLimits { connections_max: 2, ..ServerLimits::default() }).await;
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let addr = server.addr;
        clients.spawn(async move {
            for _ in 0..100 {
                // Leaves at once, so that slots become free while other clients wait for one.
                assert_eq!(Client::connect(addr).await.call(&TestRequest::get("/")).await.status, 200);
            }
        });
    }
    while let Some(ended) = clients.join_next().await {
        ended.expect("every client got its response");
    }
    assert_eq!(server.calls.load(Ordering::SeqCst), 1600);
}

#[tokio::test]
async fn a_client_without_a_request_is_hung_up_on() {
    let limits = ServerLimits { first_head_for: SHORT, ..ServerLimits::default() };
    let server = Server::start(limits).await;
    // Nothing at all; the byte that both protocols begin with; a head that does not end.
    for beginning in ["", "P", "GET / HTTP/1.1\r\nhost: a"] {
        let mut client = Client::connect(server.addr).await;
        client.send_bytes(beginning.as_bytes()).await;
        client.closed().await;
    }
    assert_eq!(server.calls.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_request_may_take_longer_than_its_head_had() {
    let limits = ServerLimits { first_head_for: SHORT, ..ServerLimits::default() };
    let server = Server::start(limits).await;
    let mut busy = Client::connect(server.addr).await;
    busy.send(&TestRequest::get("/held")).await;
    server.held.notified().await;
    // A silent client that connected later: when the server closes it, the time-out of the busy one is over too.
    Client::connect(server.addr).await.closed().await;
    server.release.notify_one();
    assert_eq!(busy.read().await.unwrap().status, 200);
    assert_eq!(busy.call(&TestRequest::get("/")).await.status, 200);
}

#[tokio::test]
async fn an_idle_connection_is_closed_in_time() {
    let limits = ServerLimits { next_head_for: SHORT, ..ServerLimits::default() };
    let server = Server::start(limits).await;
    let mut client = Client::connect(server.addr).await;
    assert_eq!(client.call(&TestRequest::get("/")).await.status, 200);
    client.closed().await;
}

#[tokio::test]
async fn a_drain_finishes_requests_and_closes_idle_connections() {
    let server = Server::start(ServerLimits::default()).await;
    let mut idle = Client::connect(server.addr).await;
    idle.call(&TestRequest::get("/")).await;
    let mut busy = Client::connect(server.addr).await;
    busy.send(&TestRequest::get("/held")).await;
    server.held.notified().await;

    let release = Arc::clone(&server.release);
    let ending = server.stop();
    idle.closed().await;
    release.notify_one();
    let answer = busy.read().await.unwrap();
    assert_eq!((answer.status, answer.header("connection").as_deref()), (200, Some("close")));
    busy.closed().await;
    assert_eq!(ending.await.unwrap(), DrainStats { finished: 2, cut: 0 });
}

#[tokio::test]
async fn a_drain_cuts_connections_still_busy_at_its_deadline() {
    let server = Server::start(ServerLimits { drain_for: SHORT, ..ServerLimits::default() }).await;
    let addr = server.addr;
    let mut idle = Client::connect(addr).await;
    idle.call(&TestRequest::get("/")).await;
    let mut busy = Client::connect(addr).await;
    busy.send(&TestRequest::get("/held")).await;
    server.held.notified().await;

    assert_eq!(server.stop().await.unwrap(), DrainStats { finished: 1, cut: 1 });
    assert!(busy.read().await.is_none());
    let refused = tokio::net::TcpStream::connect(addr).await.map(|_| ());
    assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn a_request_with_two_lengths_reaches_the_upstream_with_one() {
    let (upstream, mut client) = through_to_upstream().await;
    let smuggled = "POST /pay HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n\
                    5\r\nwhole\r\n0\r\n\r\n";
    client.send_bytes(smuggled.as_bytes()).await;
    match client.read().await.map(|answer| answer.status) {
        Some(200) => {
            let request = upstream.requests().pop().unwrap();
            assert_eq!(request.body, b"whole");
            assert_eq!(
                request.header_lines("content-length").len()
                    + request.header_lines("transfer-encoding").len(),
                1
            );
        }
        refused => assert_eq!((refused, upstream.total()), (Some(400), 0)),
    }
}

#[tokio::test]
async fn requests_and_responses_pass_the_gateway_unchanged() {
    let (upstream, mut client) = through_to_upstream().await;
    let expecting = TestRequest::post("/pay").key("a").body("held back").expect_continue();
    let answer = client.call(&expecting).await;
    assert_eq!((answer.status, answer.interim), (200, vec![100]));

    let chunked = TestRequest::post("/pay").key("b").body("in chunks").chunked().header("trailer", "x-t");
    assert_eq!(client.call(&chunked.trailer("x-t", "1")).await.status, 200);
    let request = upstream.requests().pop().unwrap();
    assert_eq!((request.body.as_slice(), request.trailers.len()), (&b"in chunks"[..], 1));

    let head = client.call(&TestRequest::new("HEAD", "/pay").fixture("bytes=10")).await;
    assert_eq!((head.header("content-length").as_deref(), head.body.len()), (Some("10"), 0));
    let trailers = client.call(&TestRequest::get("/").header("te", "trailers").fixture("trailers")).await;
    assert_eq!((trailers.text(), trailers.trailers.len(), trailers.cut), ("done".into(), 1, false));

    // A response that the upstream cuts must be cut here too, so that the client does not take a part for the whole.
    assert!(client.call(&TestRequest::get("/").fixture("cut=body")).await.cut);
}

/// A server whose service holds `/held`, answers `/endless`, `/quiet` and `/large` with bodies of that kind, and anything
/// else with the HTTP version and the peer's address. It counts all calls.
pub(super) struct Server {
    pub(super) addr: SocketAddr,
    pub(super) door: ListenerState,
    pub(super) calls: Arc<AtomicUsize>,
    pub(super) held: Arc<Notify>,
    pub(super) release: Arc<Notify>,
    stop: oneshot::Sender<()>,
    ending: JoinHandle<DrainStats>,
}

impl Server {
    pub(super) async fn start(limits: ServerLimits) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (calls, held, release) =
            (Arc::<AtomicUsize>::default(), Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (stop, stopped) = oneshot::channel::<()>();
        let service = tower::service_fn({
            let (calls, held, release) = (Arc::clone(&calls), Arc::clone(&held), Arc::clone(&release));
            move |request: http::Request<Incoming>| {
                let (calls, held, release) = (Arc::clone(&calls), Arc::clone(&held), Arc::clone(&release));
                async move {
                    calls.fetch_add(1, Ordering::SeqCst);
                    if request.uri().path() == "/held" {
                        held.notify_one();
                        release.notified().await;
                    }
                    let body = match request.uri().path() {
                        "/endless" => endless(),
                        "/quiet" => quiet(release),
                        "/large" => Full::from(vec![0; LARGE]).boxed_unsync(),
                        _ => Full::from(describe_peer(&request)).boxed_unsync(),
                    };
                    Ok::<_, Infallible>(Response::new(body))
                }
            }
        });
        let door = ListenerState::new(&limits);
        let ending = tokio::spawn(serve_behind(door.clone(), listener, service, limits, async {
            let _ = stopped.await;
        }));
        Server { addr, door, calls, held, release, stop, ending }
    }

    /// Waits until the listener's state satisfies `enough`.
    pub(super) async fn until(&self, mut enough: impl FnMut(&ListenerState) -> bool) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while !enough(&self.door) {
            assert!(tokio::time::Instant::now() < deadline, "waited in vain");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn stop(self) -> JoinHandle<DrainStats> {
        self.stop.send(()).unwrap();
        self.ending
    }
}

type TestBody = UnsyncBoxBody<Bytes, Infallible>;

fn endless() -> TestBody {
    let frames = futures_util::stream::repeat_with(|| Ok(Frame::data(Bytes::from_static(&[0; 10_000]))));
    StreamBody::new(frames).boxed_unsync()
}

/// A body with one frame at once and the last one after `release`.
fn quiet(release: Arc<Notify>) -> TestBody {
    let first = futures_util::stream::once(async { Ok(Frame::data(Bytes::from_static(b"first"))) });
    let last = futures_util::stream::once(async move {
        release.notified().await;
        Ok(Frame::data(Bytes::from_static(b" last")))
    });
    StreamBody::new(futures_util::StreamExt::chain(first, last)).boxed_unsync()
}

fn describe_peer(request: &http::Request<Incoming>) -> String {
    let connection: &Arc<Connection> = request.extensions().get().unwrap();
    let version: Version = request.version();
    format!("{version:?} {}", connection.peer)
}

/// Starts an upstream and a server that forwards to it, and connects a client. The server lasts as long as the test.
async fn through_to_upstream() -> (Upstream, Client) {
    let upstream = Upstream::start().await;
    let forwarder = Forwarder::new(upstream.url().parse().unwrap(), false, &TlsSettings::default()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, forwarder, ServerLimits::default(), std::future::pending()));
    (upstream, Client::connect(addr).await)
}

/// Value for limits that a test lets run out. Tests wait for the close that the limit causes, never for the time itself.
/// Long enough for a request to get through on a busy machine.
pub(super) const SHORT: Duration = Duration::from_millis(500);

/// Size of a body that is larger than the piece a connection gets at once, and no multiple of it.
pub(super) const LARGE: usize = 40_000;

const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(10);
