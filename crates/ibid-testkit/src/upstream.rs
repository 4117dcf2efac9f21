//! The fixture upstream: a real HTTP/1.1 server that counts what it executes and misbehaves on demand.
//!
//! It is written on raw sockets, because the faults that matter to a gateway happen below HTTP: a reset
//! within the head of a response, a pooled connection closed without notice. It does not depend on ibid.
//! It is longer than most files, so that each directive's row, its parsing and its effect are together.
//!
//! The `x-fixture` field of a request says how to treat it; without one, [`Upstream::behave`] does. Both take
//! directives joined by `;`:
//!
//! | directive | effect |
//! | --- | --- |
//! | `status=201` `body=text` `bytes=N` `header=Name: value` | the response; `bytes` is a body of N bytes |
//! | `echo` | the body is the request as JSON: method, path, query, headers, body |
//! | `retry-after=N` | add the field |
//! | `odd` | repeated lines, a value that is no UTF-8, `Connection: x-a` with `X-A`, cookies, hop-by-hop fields |
//! | `chunked` `trailers` `until-close` | the response's framing, instead of a `Content-Length` |
//! | `events` | a `text/event-stream`, or the type that `header` gives: sends one event and stays open until the gate lets it end |
//! | `upgrade` | `101`, then every byte comes back |
//! | `gate` `delay=MS` | respond when the gate opens, or after a delay |
//! | `cut=unread` | close before reading: the body, or as default the connection's first byte |
//! | `cut=read` `cut=head` `cut=body` `cut=chunk` | close before the response, within its head, body, last chunk |
//! | `cut=after` `cut=next` | close without notice after the response, or on the next request's first byte |
//! | `rst` | close with RST instead of FIN |
//! | `garbage` | respond with bytes that are no HTTP, and close |
//! | `pause=MS` | wait before a close, so that the peer has read what was sent |
//! | `once` | the rest applies to the first execution of this target; later ones get a plain 201 |

use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::client::{Fields, Framing, Wire, fields, lines_named, put_chunk, put_fields};

/// A running fixture; dropping it stops it and cuts its connections.
#[derive(Debug)]
pub struct Upstream {
    addr: SocketAddr,
    ledger: Arc<Ledger>,
    serving: JoinHandle<()>,
}

impl Upstream {
    /// Start on a free loopback port.
    pub async fn start() -> Upstream {
        ReservedPort::port().start()
    }

    /// Returns the address that it listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `http://address`, without a path.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Sets how requests without an `x-fixture` field are treated from now on. Panics on a bad directive.
    pub fn behave(&self, directives: &str) {
        self.ledger.behave(Behaviour::parse(directives).unwrap_or_else(|e| panic!("{e}")));
    }

    /// Returns how often requests with this key were executed, that is, read to their end.
    pub fn executions(&self, key: &str) -> usize {
        self.ledger.tally().per_key.get(key).copied().unwrap_or_default()
    }

    /// Returns how often this target was executed, with any key; as far back as the log goes.
    pub fn executions_of(&self, target: &str) -> usize {
        self.ledger.executions_of(target)
    }

    /// Returns the number of executed requests.
    pub fn total(&self) -> usize {
        self.ledger.tally().total
    }

    /// Returns how many requests had their head read: more than [`Upstream::total`] when bodies were cut.
    pub fn deliveries_begun(&self) -> usize {
        self.ledger.tally().begun
    }

    /// Returns all the counts at this moment.
    pub fn tally(&self) -> Tally {
        self.ledger.tally()
    }

    /// Waits until the counts satisfy `enough`; panics if they do not within half a minute.
    pub async fn until(&self, enough: impl FnMut(&Tally) -> bool) -> Tally {
        self.ledger.until(enough).await
    }

    /// Returns the executed requests, oldest first: the newest thousand or so.
    pub fn requests(&self) -> Vec<SeenRequest> {
        self.ledger.requests()
    }

    /// The gate that requests with the directive `gate` wait at.
    pub fn gate(&self) -> &RunGate {
        &self.ledger.gate
    }

    /// Stops and keeps the port, on which connections are refused until it is started again.
    pub async fn stop(mut self) -> ReservedPort {
        self.serving.abort();
        // The listener is closed only once the task has ended. Then the port is free for us to bind.
        let _ = (&mut self.serving).await;
        ReservedPort::bind(self.addr)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// A port that we hold and do not listen on: connecting is refused, and no other test can take it.
#[derive(Debug)]
pub struct ReservedPort {
    addr: SocketAddr,
    socket: TcpSocket,
}

impl ReservedPort {
    /// Reserves a free loopback port.
    pub fn port() -> ReservedPort {
        ReservedPort::bind((Ipv4Addr::LOCALHOST, 0).into())
    }

    /// Returns the address at which connections are refused for now.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `http://address`, without a path.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Starts listening on the reserved port.
    pub fn start(self) -> Upstream {
        let (addr, listener) = self.listen();
        let ledger = Arc::new(Ledger::default());
        let serving = tokio::spawn(accept(listener, Arc::clone(&ledger)));
        Upstream { addr, ledger, serving }
    }

    pub(crate) fn listen(self) -> (SocketAddr, TcpListener) {
        (self.addr, self.socket.listen(BACKLOG).expect("listen on a bound socket"))
    }

    fn bind(addr: SocketAddr) -> ReservedPort {
        let socket = TcpSocket::new_v4().expect("a socket");
        // Connections of the fixture that had this port before may still be in TIME_WAIT.
        socket.set_reuseaddr(true).expect("reuseaddr on a fresh socket");
        socket.bind(addr).unwrap_or_else(|e| panic!("bind `{addr}`: {e}"));
        ReservedPort { addr: socket.local_addr().expect("the address of a bound socket"), socket }
    }
}

/// The counts that a fixture keeps.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Number of connections accepted.
    pub connections: usize,
    /// Connections that have ended, whichever side closed them.
    pub closed: usize,
    /// Requests whose head was read.
    pub begun: usize,
    /// Requests read to their end: these count as executed.
    pub total: usize,
    /// Requests that wait at the gate at this moment.
    pub held: usize,
    /// Requests refused without being executed (HTTP/2 only).
    pub refused: usize,
    /// Executions per key. Not bounded: load runs are checked with it.
    pub per_key: BTreeMap<String, usize>,
}

impl Tally {
    /// Returns the keys executed more than once: what ibid exists to prevent.
    pub fn repeated_keys(&self) -> Vec<&str> {
        self.per_key.iter().filter(|(_, n)| **n > 1).map(|(key, _)| key.as_str()).collect()
    }
}

/// One request as it arrived.
#[derive(Clone, Debug)]
pub struct SeenRequest {
    /// The method, as it was sent.
    pub method: String,
    /// Path and query as sent.
    pub target: String,
    /// The field lines, in order.
    pub headers: Fields,
    /// The body; of a huge one only the start.
    pub body: Vec<u8>,
    /// The trailer lines of a chunked request.
    pub trailers: Fields,
    /// Number of the connection it arrived on; the first is 1.
    pub connection: usize,
}

impl SeenRequest {
    /// Returns the first field of that name, as text.
    pub fn header(&self, name: &str) -> Option<String> {
        self.header_lines(name).into_iter().next()
    }

    /// Returns every field of that name, in order, as text.
    pub fn header_lines(&self, name: &str) -> Vec<String> {
        lines_named(&self.headers, name).map(|v| String::from_utf8_lossy(v).into_owned()).collect()
    }

    /// Returns the key it carried, quoted or bare; a request without a body carries it in another field.
    pub fn key(&self) -> Option<String> {
        self.header("idempotency-key")
            .or_else(|| self.header("ibid-key"))
            .map(|value| value.trim_matches('"').to_owned())
    }

    fn to_json(&self) -> Vec<u8> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (path, query) = self.target.split_once('?').unwrap_or((&self.target, ""));
        let headers: Vec<_> = self.headers.iter().map(|(n, v)| [text(n), text(v)]).collect();
        let json = serde_json::json!({
            "method": self.method, "path": path, "query": query, "headers": headers, "body": text(&self.body),
        });
        json.to_string().into_bytes()
    }
}

/// Blocks requests until the test releases them, so that no test has to sleep.
#[derive(Debug)]
pub struct RunGate(Semaphore);

impl RunGate {
    /// Lets `n` requests pass, now or when they arrive.
    pub fn release(&self, n: usize) {
        self.0.add_permits(n);
    }

    /// Lets every request pass from now on.
    pub fn open(&self) {
        self.0.close();
    }

    async fn pass(&self) {
        // An error means that the gate was opened permanently.
        if let Ok(permit) = self.0.acquire().await {
            permit.forget();
        }
    }
}

/// State shared by the connections of one fixture, which its owner can query.
#[derive(Debug)]
pub(crate) struct Ledger {
    tally: watch::Sender<Tally>,
    log: Mutex<VecDeque<SeenRequest>>,
    behaviour: Mutex<Behaviour>,
    pub(crate) gate: RunGate,
}

impl Default for Ledger {
    fn default() -> Ledger {
        Ledger {
            tally: watch::Sender::new(Tally::default()),
            log: Mutex::default(),
            behaviour: Mutex::new(Behaviour::default()),
            gate: RunGate(Semaphore::new(0)),
        }
    }
}

impl Ledger {
    pub(crate) fn count(&self, change: impl FnOnce(&mut Tally)) {
        self.tally.send_modify(change);
    }

    pub(crate) fn tally(&self) -> Tally {
        self.tally.borrow().clone()
    }

    pub(crate) async fn until(&self, enough: impl FnMut(&Tally) -> bool) -> Tally {
        let mut watching = self.tally.subscribe();
        let reached = tokio::time::timeout(PATIENCE, watching.wait_for(enough)).await;
        match reached {
            Ok(tally) => tally.expect("the sender is in self").clone(),
            Err(_) => panic!("the upstream stayed at {:?}", self.tally()),
        }
    }

    /// Logs a request that was read to its end.
    pub(crate) fn log_executed(&self, mut request: SeenRequest) {
        let key = request.key();
        request.body.truncate(BODY_KEPT_MAX);
        {
            let mut log = self.log.lock().expect("no one panics with the log");
            if log.len() == LOG_MAX {
                log.pop_front();
            }
            log.push_back(request);
        }
        // After the log, so that a test that waits for the count finds the request in it.
        self.count(|tally| {
            tally.total += 1;
            if let Some(key) = key {
                *tally.per_key.entry(key).or_default() += 1;
            }
        });
    }

    pub(crate) fn requests(&self) -> Vec<SeenRequest> {
        self.log.lock().expect("no one panics with the log").iter().cloned().collect()
    }

    /// Returns how often this target was executed, as far back as the log goes.
    fn executions_of(&self, target: &str) -> usize {
        self.log
            .lock()
            .expect("no one panics with the log")
            .iter()
            .filter(|request| request.target == target)
            .count()
    }

    pub(crate) fn behave(&self, behaviour: Behaviour) {
        *self.behaviour.lock().expect("no one panics with it") = behaviour;
    }

    pub(crate) fn behaviour(&self) -> Behaviour {
        self.behaviour.lock().expect("no one panics with it").clone()
    }

    /// Returns the behaviour that this request asks for, else the default. A directive with a typo must not pass as a
    /// default response, so it becomes a response that no test expects.
    pub(crate) fn behaviour_for(&self, headers: &Fields) -> Behaviour {
        let Some(asked) = lines_named(headers, "x-fixture").next() else { return self.behaviour() };
        Behaviour::parse(&String::from_utf8_lossy(asked)).unwrap_or_else(|problem| Behaviour {
            status: 599,
            body: Body::Given(problem.into_bytes()),
            ..Behaviour::default()
        })
    }

    pub(crate) async fn hold(&self, behaviour: &Behaviour) {
        if behaviour.gated {
            self.wait_at_gate().await;
        }
        if !behaviour.delay.is_zero() {
            tokio::time::sleep(behaviour.delay).await;
        }
    }

    async fn wait_at_gate(&self) {
        self.count(|tally| tally.held += 1);
        self.gate.pass().await;
        self.count(|tally| tally.held -= 1);
    }
}

/// The parsed directives of the table at the top of this file.
#[derive(Clone, Debug)]
pub(crate) struct Behaviour {
    pub(crate) status: u16,
    pub(crate) body: Body,
    pub(crate) headers: Fields,
    framing: Frame,
    cut: Option<Cut>,
    rst: bool,
    gated: bool,
    delay: Duration,
    upgrade: bool,
    garbage: bool,
    pause: Duration,
    once: bool,
    /// A directive that only the HTTP/2 server knows.
    pub(crate) h2: Option<String>,
}

#[derive(Clone, Debug)]
pub(crate) enum Body {
    Given(Vec<u8>),
    Echo,
    Events,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frame {
    Length,
    Chunked { trailers: bool },
    UntilClose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    Unread,
    Read,
    Head,
    Body,
    Chunk,
    After,
    Next,
}

impl Default for Behaviour {
    fn default() -> Behaviour {
        Behaviour {
            status: 200,
            body: Body::Given(b"done".to_vec()),
            headers: Vec::new(),
            framing: Frame::Length,
            cut: None,
            rst: false,
            gated: false,
            delay: Duration::ZERO,
            upgrade: false,
            garbage: false,
            pause: Duration::ZERO,
            once: false,
            h2: None,
        }
    }
}

impl Behaviour {
    pub(crate) fn parse(directives: &str) -> Result<Behaviour, String> {
        let mut it = Behaviour::default();
        for directive in directives.split(';').map(str::trim).filter(|d| !d.is_empty()) {
            it.take(directive).ok_or_else(|| format!("unknown x-fixture directive `{directive}`"))?;
        }
        Ok(it)
    }

    fn take(&mut self, directive: &str) -> Option<()> {
        let (word, value) = directive.split_once('=').unwrap_or((directive, ""));
        match word {
            "status" => self.status = value.parse().ok()?,
            "body" => self.body = Body::Given(value.as_bytes().to_vec()),
            "bytes" => self.body = Body::Given(vec![b'x'; value.parse().ok()?]),
            "echo" => self.body = Body::Echo,
            "events" => self.body = Body::Events,
            "header" => self.headers.extend(fields(value.as_bytes())),
            "retry-after" => self.headers.push((b"Retry-After".to_vec(), value.as_bytes().to_vec())),
            "odd" => self.headers.extend(odd_headers()),
            "chunked" => self.framing = Frame::Chunked { trailers: false },
            "trailers" => self.framing = Frame::Chunked { trailers: true },
            "until-close" => self.framing = Frame::UntilClose,
            "upgrade" => (self.status, self.upgrade) = (101, true),
            "gate" => self.gated = true,
            "delay" => self.delay = Duration::from_millis(value.parse().ok()?),
            "rst" => self.rst = true,
            "garbage" => self.garbage = true,
            "pause" => self.pause = Duration::from_millis(value.parse().ok()?),
            "once" => self.once = true,
            "cut" => self.cut = Some(Cut::parse(value)?),
            "refuse" | "goaway" | "reset" => self.h2 = Some(directive.to_owned()),
            _ => return None,
        }
        Some(())
    }
}

impl Cut {
    fn parse(word: &str) -> Option<Cut> {
        Some(match word {
            "unread" => Cut::Unread,
            "read" => Cut::Read,
            "head" => Cut::Head,
            "body" => Cut::Body,
            "chunk" => Cut::Chunk,
            "after" => Cut::After,
            "next" => Cut::Next,
            _ => return None,
        })
    }
}

async fn accept(listener: TcpListener, ledger: Arc<Ledger>) {
    // Dropped with this task, and every connection with it.
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        while connections.try_join_next().is_some() {}
        ledger.count(|tally| tally.connections += 1);
        let number = ledger.tally.borrow().connections;
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

/// Returns fields that a gateway gets wrong: see `odd` in the table above.
fn odd_headers() -> Fields {
    let lines: [(&str, &[u8]); 13] = [
        ("Link", b"</a>; rel=\"next\""),
        ("Link", b"</b>; rel=\"prev\""),
        ("X-Bytes", b"caf\xe9"),
        ("Content-Disposition", b"attachment; filename=\"a,b.txt\""),
        ("Connection", b"x-a, keep-alive"),
        ("X-A", b"for this connection only"),
        ("Keep-Alive", b"timeout=5"),
        ("Proxy-Connection", b"keep-alive"),
        ("Proxy-Authenticate", b"Basic"),
        ("Upgrade", b"h2c"),
        ("Set-Cookie", b"a=1; Path=/"),
        ("Set-Cookie", b"b=2; Expires=Wed, 09 Jun 2027 10:18:14 GMT"),
        ("X-Empty", b""),
    ];
    lines.map(|(name, value)| (name.as_bytes().to_vec(), value.to_vec())).to_vec()
}

const FIRST_EVENT: &[u8] = b"data: 1\n\n";
const LAST_EVENT: &[u8] = b"data: 2\n\n";

/// Output of a program that does not speak HTTP.
const GARBAGE: &[u8] = b"\x00\x01\x02 not HTTP at all\r\n\r\n";

/// Connections that may wait to be accepted: load runs open some hundred at once.
const BACKLOG: u32 = 1024;

/// Number of requests in the log. No test looks further back, and a load run must not fill memory.
const LOG_MAX: usize = 1024;

/// Bytes of each body in the log: all that tests compare.
const BODY_KEPT_MAX: usize = 1 << 20;

/// Time that a test waits for a count: only a real hang reaches it.
const PATIENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Client, TestRequest};

    #[tokio::test]
    async fn a_request_counts_when_its_body_was_read() {
        let upstream = Upstream::start().await;
        let mut client = Client::connect(upstream.addr()).await;
        let pay = TestRequest::post("/pay?x=1").key("k").body("all of it").fixture("status=201;echo");
        let half = pay.to_bytes().len() - 3;
        client.send_bytes(&pay.to_bytes()[..half]).await;
        upstream.until(|t| t.begun == 1).await;
        assert_eq!(upstream.total(), 0);
        client.send_bytes(&pay.to_bytes()[half..]).await;
        let answer = client.read().await.expect("an answer");
        assert_eq!((answer.status, answer.cut), (201, false));
        assert!(answer.text().contains("\"query\":\"x=1\""), "{}", answer.text());
        assert_eq!((upstream.executions("k"), upstream.total()), (1, 1));
        // The connection is kept alive.
        assert_eq!(client.call(&TestRequest::get("/").fixture("status=204")).await.status, 204);
        assert_eq!(upstream.tally().connections, 1);
    }

    #[tokio::test]
    async fn each_cut_is_seen_where_it_was_made() {
        let upstream = Upstream::start().await;
        for (fixture, expected) in [
            ("cut=unread", None),
            ("cut=read", None),
            ("cut=read;rst", None),
            ("cut=head", None),
            ("cut=body", Some((true, "do"))),
            ("cut=chunk", Some((true, "done"))),
            ("cut=after", Some((false, "done"))),
            ("until-close", Some((false, "done"))),
            ("trailers", Some((false, "done"))),
            ("garbage", None),
        ] {
            let mut client = Client::connect(upstream.addr()).await;
            let answer = client.try_call(&TestRequest::post("/").fixture(fixture)).await;
            let outcome = answer.map(|a| (a.cut, a.text()));
            assert_eq!(outcome, expected.map(|(cut, text)| (cut, text.to_owned())), "{fixture}");
        }
        assert_eq!((upstream.deliveries_begun(), upstream.total()), (10, 9));
    }

    #[tokio::test]
    async fn once_holds_for_the_first_execution_of_a_target() {
        let upstream = Upstream::start().await;
        let mut client = Client::connect(upstream.addr()).await;
        for (target, status) in [("/a", 503), ("/a", 201), ("/b", 503)] {
            let answer = client.call(&TestRequest::post(target).fixture("once;status=503")).await;
            assert_eq!(answer.status, status, "{target}");
        }
        assert_eq!((upstream.executions_of("/a"), upstream.executions_of("/b")), (2, 1));
    }

    #[tokio::test]
    async fn a_stopped_upstream_refuses_and_comes_back_on_its_port() {
        let upstream = Upstream::start().await;
        let addr = upstream.addr();
        let reserved = upstream.stop().await;
        let refused = TcpStream::connect(addr).await.map(|_| ());
        assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
        let upstream = reserved.start();
        assert_eq!(Client::connect(addr).await.call(&TestRequest::get("/")).await.text(), "done");
        assert_eq!(upstream.total(), 1);
    }

    #[tokio::test]
    async fn a_mistyped_directive_is_answered_with_599() {
        let upstream = Upstream::start().await;
        let answer =
            Client::connect(upstream.addr()).await.call(&TestRequest::get("/").fixture("cutt=head")).await;
        assert_eq!(answer.status, 599);
    }
}
