//! Serves the connections of a fixture, and cuts them where a directive says so.

use std::sync::Arc;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::behaviour::{Behaviour, Body, Cut, Frame};
use super::ledger::{Ledger, SeenRequest};
use crate::client::{Framing, Wire, fields, lines_named, put_chunk, put_fields};

pub(super) async fn accept(listener: TcpListener, ledger: Arc<Ledger>) {
    // Dropped with this task, and every connection with it.
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        while connections.try_join_next().is_some() {}
        ledger.count(|tally| tally.connections += 1);
        let number = ledger.connections();
        let ledger = Arc::clone(&ledger);
        connections.spawn(async move {
            converse(stream, number, &ledger).await;
            ledger.count(|tally| tally.closed += 1);
        });
    }
}

/// Serves one connection until either side ends it. The socket is closed on return.
async fn converse(stream: TcpStream, number: usize, ledger: &Ledger) {
    let _ = stream.set_nodelay(true);
    let default = ledger.behaviour();
    if default.cut == Some(Cut::Unread) {
        return close(stream, default.rst);
    }
    let mut wire = Wire::new(stream);
    while let Some(head) = wire.read_head().await {
        let Some((method, target)) = request_line(&head) else { return };
        let headers = fields(after_first_line(&head));
        ledger.count(|tally| tally.begun += 1);
        let mut behaviour = ledger.behaviour_for(&headers);
        if behaviour.cut == Some(Cut::Unread) {
            return close(wire.stream, behaviour.rst);
        }
        if lines_named(&headers, "expect").next().is_some()
            && wire.stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.is_err()
        {
            return;
        }
        let payload = wire.read_payload(Framing::of_request(&headers)).await;
        if payload.cut {
            return;
        }
        let (body, trailers) = (payload.body, payload.trailers);
        let request = SeenRequest { method, target, headers, body, trailers, connection: number };
        ledger.log_executed(request.clone());
        if behaviour.once && ledger.executions_of(&request.target) > 1 {
            behaviour = Behaviour { status: 201, ..Behaviour::default() };
        }
        ledger.hold(&behaviour).await;
        if answer(&mut wire, &behaviour, &request, ledger).await.is_none() {
            tokio::time::sleep(behaviour.pause).await;
            return close(wire.stream, behaviour.rst);
        }
    }
}

/// Responds as `behaviour` says; `None` if the connection is to be closed.
async fn answer(
    wire: &mut Wire,
    behaviour: &Behaviour,
    request: &SeenRequest,
    ledger: &Ledger,
) -> Option<()> {
    if behaviour.cut == Some(Cut::Read) {
        return None;
    }
    if behaviour.garbage {
        wire.stream.write_all(GARBAGE).await.ok()?;
        return None;
    }
    let (head, payload) = encode(behaviour, request);
    let stream = &mut wire.stream;
    match behaviour.cut {
        Some(Cut::Head) => {
            stream.write_all(&head[..head.len() / 2]).await.ok()?;
            return None;
        }
        // For `Cut::Chunk`, `encode` leaves out the last chunk, so the payload is written whole here.
        Some(Cut::Body) => {
            stream.write_all(&[&head[..], &payload[..payload.len() / 2]].concat()).await.ok()?;
            return None;
        }
        _ => stream.write_all(&[head, payload].concat()).await.ok()?,
    }
    if behaviour.upgrade {
        loop {
            let bytes = wire.read_some(1024).await;
            if bytes.is_empty() {
                return None;
            }
            wire.stream.write_all(&bytes).await.ok()?;
        }
    }
    if matches!(behaviour.body, Body::Events) {
        ledger.wait_at_gate().await;
        let mut rest = Vec::new();
        put_chunk(&mut rest, LAST_EVENT);
        rest.extend_from_slice(b"0\r\n\r\n");
        stream.write_all(&rest).await.ok()?;
    }
    match behaviour.cut {
        Some(Cut::After) if !behaviour.rst => {
            // Wait until the peer has closed too, so that `closed` in the tally means that the peer has noticed. A peer
            // that sends instead has its bytes dropped with the socket.
            let _ = wire.stream.shutdown().await;
            let _ = wire.read_some(1).await;
            None
        }
        Some(Cut::Next) => {
            // Peeking leaves the byte unread, so the kernel always closes with RST.
            let _ = wire.stream.peek(&mut [0]).await;
            None
        }
        Some(_) => None,
        None if behaviour.framing == Frame::UntilClose => None,
        None => Some(()),
    }
}

/// Encodes the response. Head and payload are separate, so that either can be cut.
fn encode(behaviour: &Behaviour, request: &SeenRequest) -> (Vec<u8>, Vec<u8>) {
    let (body, framing) = match (&behaviour.body, behaviour.cut) {
        (Body::Events, _) => (FIRST_EVENT.to_vec(), Frame::Chunked { trailers: false }),
        (body, Some(Cut::Chunk)) => (content(body, request), Frame::Chunked { trailers: false }),
        (body, _) => (content(body, request), behaviour.framing),
    };
    let mut head = format!("HTTP/1.1 {} Fixture\r\n", behaviour.status).into_bytes();
    put_fields(&mut head, &behaviour.headers);
    let bodiless = matches!(behaviour.status, 101 | 204 | 304);
    let line: &[u8] = match framing {
        _ if behaviour.upgrade => b"Connection: upgrade\r\nUpgrade: echo\r\n",
        _ if bodiless => b"",
        Frame::Length => &format!("Content-Length: {}\r\n", body.len()).into_bytes(),
        Frame::Chunked { trailers: true } => b"Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n",
        Frame::Chunked { trailers: false } => b"Transfer-Encoding: chunked\r\n",
        Frame::UntilClose => b"Connection: close\r\n",
    };
    head.extend_from_slice(line);
    match lines_named(&behaviour.headers, "content-type").next() {
        None if matches!(behaviour.body, Body::Events) => {
            head.extend_from_slice(b"Content-Type: text/event-stream\r\n");
        }
        None if !bodiless => head.extend_from_slice(b"Content-Type: text/plain\r\n"),
        _ => {}
    }
    head.extend_from_slice(b"\r\n");
    if bodiless || request.method == "HEAD" {
        return (head, Vec::new());
    }
    let Frame::Chunked { trailers } = framing else { return (head, body) };
    let mut payload = Vec::new();
    put_chunk(&mut payload, &body);
    let whole = behaviour.cut != Some(Cut::Chunk) && !matches!(behaviour.body, Body::Events);
    if whole {
        payload.extend_from_slice(if trailers { b"0\r\nX-Sum: 1\r\n\r\n" } else { b"0\r\n\r\n" });
    }
    (head, payload)
}

pub(crate) fn content(body: &Body, request: &SeenRequest) -> Vec<u8> {
    match body {
        Body::Given(bytes) => bytes.clone(),
        Body::Echo => request.to_json(),
        Body::Events => FIRST_EVENT.to_vec(),
    }
}

fn close(stream: TcpStream, rst: bool) {
    if rst {
        let _ = stream.set_zero_linger();
    }
}

fn request_line(head: &[u8]) -> Option<(String, String)> {
    let line = head.split(|&b| b == b'\r').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    Some((words.next()?.to_owned(), words.next()?.to_owned()))
}

fn after_first_line(head: &[u8]) -> &[u8] {
    let end = head.iter().position(|&b| b == b'\n').map_or(head.len(), |at| at + 1);
    &head[end..]
}

const FIRST_EVENT: &[u8] = b"data: 1\n\n";
const LAST_EVENT: &[u8] = b"data: 2\n\n";

/// Output of a program that does not speak HTTP.
const GARBAGE: &[u8] = b"\x00\x01\x02 not HTTP at all\r\n\r\n";
