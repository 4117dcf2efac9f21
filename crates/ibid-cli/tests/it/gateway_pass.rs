//! Unguarded requests pass untouched: upgrades, long polls, streams in both directions. Also guarded streams.

use std::process::Command;

use ibid_testkit::client::{Client, TestRequest};
use ibid_testkit::program::{Launch, Program, tools};
use ibid_testkit::tls::{Authority, TlsFront, TlsOptions};
use ibid_testkit::upstream::Upstream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::{Gateway, Setup, assert_problem, connections_to, until_async};

async fn world(config: &str) -> (Upstream, Gateway) {
    let upstream = Upstream::start().await;
    let gateway = Setup::before(&upstream.url()).config(config).start();
    (upstream, gateway)
}

fn websocket() -> TestRequest {
    TestRequest::get("/socket")
        .header("Connection", "keep-alive, Upgrade")
        .header("Upgrade", "websocket")
        .header("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
        .fixture("upgrade;header=Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
}

/// Upgrades a connection and sends a few bytes in both directions.
async fn tunnel(gateway: &Gateway) -> Client {
    let mut client = gateway.client().await;
    client.send(&websocket()).await;
    let head = client.read_head().await.expect("a head");
    let field = |name: &str| {
        let line = head.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name.as_bytes()));
        line.map(|(_, value)| String::from_utf8_lossy(value).into_owned())
    };
    assert_eq!(head.status, 101, "{head:?}");
    assert_eq!(
        (field("connection").as_deref(), field("upgrade").as_deref()),
        (Some("upgrade"), Some("echo"))
    );
    assert_eq!(field("sec-websocket-accept").as_deref(), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    for said in ["\u{81}\u{5}hello", "again"] {
        client.send_bytes(said.as_bytes()).await;
        read_until(&mut client, said).await;
    }
    client
}

/// Reads until these words have arrived.
async fn read_until(client: &mut Client, words: &str) {
    let mut received = Vec::new();
    while !String::from_utf8_lossy(&received).contains(words) {
        let more = client.read_some(1024).await;
        assert!(
            !more.is_empty(),
            "`{words}` comes before the end, after {:?}",
            String::from_utf8_lossy(&received)
        );
        received.extend(more);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_websocket_passes_and_holds_its_connection() {
    let (upstream, gateway) = world("[server]\nmax_connections = 1\n").await;
    let client = tunnel(&gateway).await;
    let delivered = upstream.requests().pop().expect("a request");
    assert_eq!(delivered.header_lines("upgrade"), ["websocket"]);
    assert_eq!(delivered.header_lines("connection"), ["upgrade"]);
    let mut second = gateway.client().await;
    second.send(&TestRequest::get("/second")).await;
    assert_eq!(upstream.total(), 1, "the tunnel has the only slot");
    client.hang_up();
    assert_eq!(second.read().await.expect("its turn has come").status, 200);
    upstream.until(|tally| tally.closed >= 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tunnel_takes_only_a_slot_for_unguarded_requests() {
    let (upstream, gateway) = world("[server]\nmax_passed = 1\n").await;
    let client = tunnel(&gateway).await;
    assert_problem(&gateway.call(&TestRequest::get("/")).await, 503, "overloaded");
    let guarded = TestRequest::post("/payments").key("k").body("five").fixture("status=201");
    assert_eq!(gateway.call(&guarded).await.status, 201);
    client.hang_up();
    upstream.until(|tally| tally.closed >= 1).await;
    until_async("the slot is free", async || {
        (gateway.call(&TestRequest::get("/")).await.status == 200).then_some(())
    })
    .await;
}

/// Uses a real WebSocket client and server, with compression, a large frame and a closing handshake.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_websocket_of_pythons_library_is_echoed() {
    let packages = tools().join("websockets-16.1.1");
    let server = Program::start(|_, port| {
        Launch::new("python3", ["-c", ECHO_SERVER, &port.to_string()]).env("PYTHONPATH", &packages)
    });
    let gateway = Setup::before(&server.url()).start();
    let url = format!("ws://{}/socket", gateway.addr());
    let output =
        Command::new("python3").args(["-c", ECHO_CLIENT, &url]).env("PYTHONPATH", &packages).output();
    let output = output.expect("`python3` is missing: run scripts/setup");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "echoed, closed with 1000", "{output:?}");
}

const ECHO_SERVER: &str = "
import asyncio, sys
from websockets.asyncio.server import serve

async def echo(socket):
    async for message in socket:
        await socket.send(message)

async def main():
    async with serve(echo, '127.0.0.1', int(sys.argv[1])) as server:
        await server.serve_forever()

asyncio.run(main())
";

const ECHO_CLIENT: &str = "
import sys
from websockets.sync.client import connect

with connect(sys.argv[1]) as socket:
    for message in ['hello', bytes(range(256)) * 300]:
        socket.send(message)
        assert socket.recv(timeout=30) == message
print('echoed, closed with', socket.close_code)
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_goes_by_http1_where_tls_would_choose_http2() {
    let (authority, upstream) = (Authority::new(), Upstream::start().await);
    // The upstream would not understand HTTP/2 here.
    let options = TlsOptions { alpn: &["h2", "http/1.1"], ..TlsOptions::default() };
    let front = TlsFront::start(upstream.addr(), &authority.certificate(&["127.0.0.1"]), options).await;
    let setup = Setup::before(&front.url()).config("[upstream_tls]\nca = \"ca.pem\"\n");
    std::fs::write(setup.folder().join("ca.pem"), authority.pem()).expect("a file");
    tunnel(&setup.start()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guarded_requests_and_http_inside_are_not_upgraded() {
    let (upstream, gateway) = world("").await;
    let guarded = TestRequest::post("/payments").key("k").body("five").fixture("status=201");
    let h2c = TestRequest::get("/").header("HTTP2-Settings", "AAMAAABkAAQAAP__");
    for (request, to, connection) in
        [(guarded, "websocket", "Upgrade"), (h2c, "h2c", "Upgrade, HTTP2-Settings")]
    {
        let answer = gateway.call(&request.header("Connection", connection).header("Upgrade", to)).await;
        assert!([200, 201].contains(&answer.status), "{answer:?}");
        let delivered = upstream.requests().pop().expect("a request");
        assert_eq!((delivered.header("upgrade"), delivered.header("http2-settings")), (None, None), "{to}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_ends_tunnels_at_once() {
    let (upstream, mut gateway) = world("[server]\ndrain_for = \"1h\"\n").await;
    let mut client = tunnel(&gateway).await;
    gateway.signal("TERM");
    client.closed().await;
    assert_eq!(gateway.wait_for_exit().await.code(), Some(0), "{}", gateway.log());
    upstream.until(|tally| tally.closed >= 1).await;
    assert_eq!(connections_to(upstream.addr()), 0);
}

/// Waits for longer than `upstream_timeout`, which is 300 ms here: a guarded request runs into it.
async fn outlast_upstream_timeout(gateway: &Gateway, key: &str) {
    let request = TestRequest::post("/payments").key(key).body("five").fixture("gate");
    assert_problem(&gateway.call(&request).await, 504, "outcome-unknown");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_poll_outlasts_upstream_timeout() {
    let (upstream, gateway) = world("[defaults]\nupstream_timeout = \"300ms\"\nlinger = \"0s\"\n").await;
    let mut client = gateway.client().await;
    client.send(&TestRequest::get("/poll").fixture("gate;body=news")).await;
    upstream.until(|tally| tally.held == 1).await;
    outlast_upstream_timeout(&gateway, "k").await;
    upstream.gate().open();
    assert_eq!(client.read().await.expect("an answer").text(), "news");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pass_timeout_bounds_the_head_and_not_the_answer() {
    let (upstream, gateway) = world("[defaults]\npass_timeout = \"300ms\"\n").await;
    let mut streaming = gateway.client().await;
    streaming.send(&TestRequest::get("/feed").fixture("events;header=Content-Type: text/csv")).await;
    read_until(&mut streaming, "data: 1").await;
    let late = gateway.call(&TestRequest::get("/poll").fixture("gate")).await;
    assert_problem(&late, 504, "outcome-unknown");
    upstream.gate().open();
    read_until(&mut streaming, "data: 2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_and_answer_stream_at_the_same_time() {
    // An upstream that responds to each chunk as it arrives.
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let upstream = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut received = Vec::new();
        read_raw(&mut stream, &mut received, "\r\n\r\n").await;
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await.expect("a head");
        for (asked, said) in [("one", "5\r\nfirst\r\n"), ("two", "6\r\nsecond\r\n0\r\n\r\n")] {
            read_raw(&mut stream, &mut received, asked).await;
            stream.write_all(said.as_bytes()).await.expect("a chunk");
        }
    });
    let gateway = Setup::before(&url).start();
    let mut client = gateway.client().await;
    client
        .send_bytes(b"PUT /feed HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        .await;
    read_until(&mut client, "first").await;
    client.send_bytes(b"3\r\ntwo\r\n0\r\n\r\n").await;
    read_until(&mut client, "second").await;
    upstream.await.expect("the upstream has seen all of it");
}

/// Reads until these words are among the bytes that have arrived.
async fn read_raw(stream: &mut TcpStream, received: &mut Vec<u8>, words: &str) {
    let mut buffer = [0; 1024];
    while !String::from_utf8_lossy(received).contains(words) {
        let more = stream.read(&mut buffer).await.expect("bytes");
        assert!(more > 0, "`{words}` comes before the end");
        received.extend_from_slice(&buffer[..more]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_route_passes_ndjson_as_it_comes() {
    let (upstream, gateway) = world(
        "[defaults]\nupstream_timeout = \"300ms\"\nlinger = \"0s\"\n[[route]]\nmatch = \"POST /export\"\nstream = true\n",
    )
    .await;
    let export = |key: &str| TestRequest::post("/export").key(key).body("all");
    let request = export("k").fixture("events;header=Content-Type: application/x-ndjson");
    let mut client = gateway.client().await;
    client.send(&request).await;
    let head = client.read_head().await.expect("the head comes before the stream ends");
    let has = |name: &[u8], value: &[u8]| head.headers.iter().any(|(n, v)| n == name && v == value);
    assert!(head.status == 200 && has(b"idempotency-stored", b"false"), "{head:?}");
    read_until(&mut client, "data: 1").await;
    assert_problem(&gateway.call(&request).await, 410, "response-not-retained");
    outlast_upstream_timeout(&gateway, "other").await;
    upstream.gate().open();
    read_until(&mut client, "data: 2").await;
    assert_eq!(upstream.executions("k"), 1);
    // A small response is a stream, too. A response that reports a failure is not.
    let small = export("small").fixture("status=201;body=done");
    let first = gateway.call(&small).await;
    assert_eq!((first.status, first.header("idempotency-stored").as_deref()), (201, Some("false")));
    assert_problem(&gateway.call(&small).await, 410, "response-not-retained");
    let failed = export("failed").fixture("status=500;body=oops");
    assert_eq!(gateway.call(&failed).await.status, 500);
    assert_problem(&gateway.call(&failed).await, 409, "outcome-unknown");
    assert_eq!((upstream.executions("small"), upstream.executions("failed")), (1, 1));
}
