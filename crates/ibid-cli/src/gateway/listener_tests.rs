//! Tests of the limits on idle clients and on clients that do not read, over real connections of both protocols.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::client::SendRequest;
use http::{Request as HttpRequest, StatusCode};
use ibid_testkit::client::{Client, TestRequest};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::server::ServerLimits;
use super::server_tests::{LARGE, SHORT, Server};

#[tokio::test]
async fn the_longest_idle_connection_makes_room_for_the_next() {
    let server = Server::start(ServerLimits { connections_max: 2, ..ServerLimits::default() }).await;
    let mut first = Client::connect(server.addr).await;
    assert_eq!(first.call(&TestRequest::get("/")).await.status, 200);
    let mut second = Client::connect(server.addr).await;
    assert_eq!(second.call(&TestRequest::get("/")).await.status, 200);

    let mut third = Client::connect(server.addr).await;
    assert_eq!(third.call(&TestRequest::get("/")).await.status, 200);
    first.closed().await;
    assert_eq!(second.call(&TestRequest::get("/")).await.status, 200, "it was idle for less time");
}

#[tokio::test]
async fn idle_http2_connections_make_room_although_they_answer_ping() {
    let server = Server::start(ServerLimits { connections_max: 4, ..ServerLimits::default() }).await;
    let mut idle = Vec::new();
    for _ in 0..4 {
        let mut client = Streams::open(server.addr, WINDOW).await;
        assert_eq!(client.get("/").await.0, StatusCode::OK);
        idle.push(client);
    }
    for _ in 0..4 {
        assert_eq!(Client::connect(server.addr).await.call(&TestRequest::get("/")).await.status, 200);
    }
    idle.remove(0).closed_by_server().await;
}

#[tokio::test]
async fn an_idle_http2_connection_gets_a_goaway_in_time() {
    let server = Server::start(ServerLimits { next_head_for: SHORT, ..ServerLimits::default() }).await;
    let mut client = Streams::open(server.addr, WINDOW).await;
    assert_eq!(client.get("/").await.0, StatusCode::OK);
    client.closed_by_server().await;
    server.until(|door| door.connections.in_use() == 0).await;
}

#[tokio::test]
async fn an_http1_client_that_stops_reading_is_cut_off() {
    let server = Server::start(ServerLimits { stall_for: SHORT, ..ServerLimits::default() }).await;
    let mut client = Client::connect(server.addr).await;
    client.send(&TestRequest::get("/endless")).await;
    assert_eq!(client.read_head().await.unwrap().status, 200);
    server.until(|door| door.connections.in_use() == 0).await;
    assert_eq!(server.door.buffers.bytes_in_use(), (0, 0), "its bytes were freed");
}

#[tokio::test]
async fn an_http2_stream_that_is_not_read_is_reset_alone() {
    let server = Server::start(ServerLimits { stall_for: SHORT, ..ServerLimits::default() }).await;
    // Nothing of the body, a part of a piece, and all but the end of the last piece.
    for (path, window) in [("/endless", 0), ("/endless", 1000), ("/large", LARGE as u32 - 1)] {
        let mut client = Streams::open(server.addr, window).await;
        let other = client.get("/held");
        server.held.notified().await;
        let (status, body) = client.get(path).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(reset(body).await, Some(h2::Reason::CANCEL), "{path} with {window}");
        server.until(|door| door.buffers.bytes_in_use() == (0, 0)).await;
        server.release.notify_one();
        assert_eq!(other.await.0, StatusCode::OK, "the connection lives");
    }
}

#[tokio::test]
async fn an_answer_whose_service_is_quiet_is_not_stalled() {
    let server = Server::start(ServerLimits { stall_for: SHORT, ..ServerLimits::default() }).await;
    let mut patient = Client::connect(server.addr).await;
    patient.send(&TestRequest::get("/quiet")).await;
    let mut patient_too = Streams::open(server.addr, WINDOW).await;
    let (_, body) = patient_too.get("/quiet").await;
    // A client that connected later and does not read: when it is cut off, the time-out of the others would be over too.
    let mut stalled = Client::connect(server.addr).await;
    stalled.send(&TestRequest::get("/endless")).await;
    server.until(|door| door.connections.in_use() == 3).await;
    server.until(|door| door.connections.in_use() == 2).await;

    server.release.notify_waiters();
    assert_eq!(patient.read().await.unwrap().text(), "first last");
    assert_eq!(reset(body).await, None);
}

#[tokio::test]
async fn a_reader_that_stopped_makes_room_when_memory_is_short() {
    let limits = ServerLimits {
        reply_bytes_max: 64 * 1024,
        stall_for: Duration::from_secs(600),
        ..ServerLimits::default()
    };
    let server = Server::start(limits).await;
    let mut client = Client::connect(server.addr).await;
    client.send(&TestRequest::get("/endless")).await;
    server.until(|door| door.buffers.bytes_in_use().1 >= 60_000).await;
    // Not at once, because a client may pause. The stall time-out itself is far away.
    server.until(|door| door.buffers.has_room_for_reply(32 * 1024)).await;
    server.until(|door| door.connections.in_use() == 0).await;
}

#[tokio::test]
async fn a_reader_that_stopped_is_cut_off_while_others_are_answered() {
    let limits = ServerLimits {
        reply_bytes_max: 64 * 1024,
        stall_for: Duration::from_secs(600),
        ..ServerLimits::default()
    };
    let server = Server::start(limits).await;
    let mut stopped = Client::connect(server.addr).await;
    stopped.send(&TestRequest::get("/endless")).await;
    server.until(|door| door.buffers.bytes_in_use().1 >= 60_000).await;
    let mut honest = Client::connect(server.addr).await;
    assert_eq!(honest.call(&TestRequest::get("/")).await.status, 200);
    while server.door.connections.in_use() > 1 {
        assert_eq!(honest.call(&TestRequest::get("/large")).await.body.len(), LARGE);
    }
    assert_eq!(honest.call(&TestRequest::get("/large")).await.body.len(), LARGE);
}

#[tokio::test]
async fn a_client_that_resets_in_bulk_loses_its_connection() {
    let limits = ServerLimits { h2_resets_max: 8, ..ServerLimits::default() };
    let server = Server::start(limits).await;
    let frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let length = (payload.len() as u32).to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    };
    let mut flood = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    flood.extend(frame(SETTINGS, 0, 0, &[]));
    for stream in (1..400).step_by(2) {
        // `GET`, `http` and `/`, as indexes into HPACK's static table.
        flood.extend(frame(HEADERS, END_STREAM | END_HEADERS, stream, &[0x82, 0x86, 0x84]));
        flood.extend(frame(RST_STREAM, 0, stream, &CANCEL));
    }
    let mut client = Client::connect(server.addr).await;
    client.send_bytes(&flood).await;
    server.until(|door| door.connections.in_use() == 0).await;
    assert!(server.calls.load(Ordering::SeqCst) < 200, "not every stream reached the service");
    assert_eq!(Client::connect(server.addr).await.call(&TestRequest::get("/")).await.status, 200);
}

/// An HTTP/2 client that gives each stream a window and answers every PING.
struct Streams {
    sender: SendRequest<Bytes>,
    addr: SocketAddr,
    connection: JoinHandle<Result<(), h2::Error>>,
}

impl Streams {
    async fn open(addr: SocketAddr, window: u32) -> Streams {
        let stream = TcpStream::connect(addr).await.unwrap();
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(window);
        let (sender, connection) = builder.handshake(stream).await.unwrap();
        Streams { sender, addr, connection: tokio::spawn(connection) }
    }

    /// Sends a request on a new stream and does not read the body of its response.
    fn get(&mut self, path: &str) -> impl Future<Output = (StatusCode, RecvStream)> + Send + use<> {
        let request = HttpRequest::get(format!("http://{}{path}", self.addr)).body(()).unwrap();
        let sender = self.sender.clone();
        let request = tokio::spawn(async move {
            let (answer, _) = sender.ready().await.unwrap().send_request(request, true).unwrap();
            answer.await.unwrap()
        });
        async move {
            let answer = request.await.unwrap();
            (answer.status(), answer.into_body())
        }
    }

    /// Waits until the server ends the connection.
    async fn closed_by_server(self) {
        let result = tokio::time::timeout(Duration::from_secs(30), self.connection).await;
        result.expect("the server ends the connection").unwrap().unwrap();
    }
}

/// Waits for the end of a body without releasing flow-control capacity. Returns the reason if the stream was reset.
async fn reset(mut body: RecvStream) -> Option<h2::Reason> {
    let read_to_end = async {
        while let Some(data) = body.data().await {
            if let Err(error) = data {
                return Some(error.reason().expect("a reset"));
            }
        }
        None
    };
    tokio::time::timeout(Duration::from_secs(30), read_to_end).await.expect("the body ends")
}

const WINDOW: u32 = 65_535;

// Frame types and flags of HTTP/2 (RFC 9113, sections 6 and 7).
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const CANCEL: [u8; 4] = [0, 0, 0, 8];
