//! A raw HTTP/1.1 client for tests: it sends exactly the given bytes and reports what the server sent.
//!
//! A real client library hides what these tests are about: it retries, follows redirects, folds repeated lines and
//! turns a truncated response into an error. This client does none of that and knows nothing of keys or records. A send
//! or read that fails is a bug in the test, so it panics instead of returning errors.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// One connection, open until it is closed or dropped.
#[derive(Debug)]
pub struct Client {
    wire: Wire,
    /// Responses to HEAD have a length and no body, so the reader must know the method of the request.
    asked_head: bool,
}

impl Client {
    /// Connects to a server under test.
    pub async fn connect(addr: SocketAddr) -> Client {
        let stream = TcpStream::connect(addr).await.unwrap_or_else(|e| panic!("connect to `{addr}`: {e}"));
        // Small writes must leave at once: tests wait until the other side has seen them.
        stream.set_nodelay(true).expect("nodelay on a fresh socket");
        Client { wire: Wire::new(stream), asked_head: false }
    }

    /// Connects to a server that may be down at this moment.
    pub async fn try_connect(addr: SocketAddr) -> Option<Client> {
        let stream = TcpStream::connect(addr).await.ok()?;
        stream.set_nodelay(true).ok()?;
        Some(Client { wire: Wire::new(stream), asked_head: false })
    }

    /// Returns our end of the connection: what the server sees as its peer.
    pub fn local_addr(&self) -> SocketAddr {
        self.wire.stream.local_addr().expect("the address of a connected socket")
    }

    /// Sends a request and reads its response; panics if the connection closes before the response's head.
    pub async fn call(&mut self, request: &TestRequest) -> TestResponse {
        match self.try_call(request).await {
            Some(response) => response,
            None => panic!("no response on {:?}: {}", self.wire.stream, self.wire.end()),
        }
    }

    /// Sends a request and reads its response, or returns `None` if the connection closes before a whole head.
    pub async fn try_call(&mut self, request: &TestRequest) -> Option<TestResponse> {
        if request.expects_continue {
            if !self.try_send_bytes(&request.head()).await {
                return None;
            }
            self.asked_head = request.method == "HEAD";
            let first = self.read_head().await?;
            if first.status != 100 {
                return Some(self.read_rest(first, Vec::new()).await);
            }
            self.try_send_bytes(&request.payload()).await;
            return self.read_after(vec![100]).await;
        }
        // A server may respond and close before it has read everything, so look for the response even after a
        // failed write.
        self.asked_head = request.method == "HEAD";
        self.try_send_bytes(&request.to_bytes()).await;
        self.read().await
    }

    /// Sends a request and does not wait for its response.
    pub async fn send(&mut self, request: &TestRequest) {
        self.asked_head = request.method == "HEAD";
        self.send_bytes(&request.to_bytes()).await;
    }

    /// Sends bytes as they are.
    pub async fn send_bytes(&mut self, bytes: &[u8]) {
        assert!(self.try_send_bytes(bytes).await, "the server closed while the request was written");
    }

    /// Reads exactly one response, past interim ones; `None` if the connection closes before a whole head.
    pub async fn read(&mut self) -> Option<TestResponse> {
        self.read_after(Vec::new()).await
    }

    /// Reads one head only, interim or final, and leaves its body unread. For `100 Continue` by hand and for responses
    /// that never end.
    pub async fn read_head(&mut self) -> Option<Head> {
        let lines = with_timeout(self.wire.read_head()).await?;
        let first = lines.split(|&b| b == b'\n').next().unwrap_or_default();
        let status = std::str::from_utf8(first.get(9..12).unwrap_or_default()).ok()?.parse().ok()?;
        Some(Head { status, headers: fields(&lines) })
    }

    /// Reads up to `limit` more bytes as they arrive and ignores framing. Empty when the server has closed.
    pub async fn read_some(&mut self, limit: usize) -> Vec<u8> {
        with_timeout(self.wire.read_some(limit)).await
    }

    /// Waits until the server closes; panics if it sends anything more.
    pub async fn closed(&mut self) {
        let more = self.read_some(1024).await;
        assert!(more.is_empty(), "expected a close, got {:?}", String::from_utf8_lossy(&more));
    }

    /// Closes our sending half and keeps reading, as `nc` does.
    pub async fn finish_sending(&mut self) {
        self.wire.stream.shutdown().await.expect("half-close");
    }

    /// Closes the connection with a FIN.
    pub fn hang_up(self) {}

    /// Closes the connection with an RST.
    pub fn reset(self) {
        self.wire.stream.set_zero_linger().expect("linger on an open socket");
    }

    async fn try_send_bytes(&mut self, bytes: &[u8]) -> bool {
        with_timeout(self.wire.stream.write_all(bytes)).await.is_ok()
    }

    async fn read_after(&mut self, mut interim: Vec<u16>) -> Option<TestResponse> {
        loop {
            let head = self.read_head().await?;
            // 101 ends HTTP on this connection, so it is a final response.
            if (100..200).contains(&head.status) && head.status != 101 {
                interim.push(head.status);
                continue;
            }
            return Some(self.read_rest(head, interim).await);
        }
    }

    async fn read_rest(&mut self, head: Head, interim: Vec<u16>) -> TestResponse {
        let bodiless = self.asked_head || matches!(head.status, 101 | 204 | 304);
        let framing = if bodiless { Framing::Length(0) } else { Framing::of_answer(&head.headers) };
        let payload = with_timeout(self.wire.read_payload(framing)).await;
        TestResponse {
            status: head.status,
            headers: head.headers,
            body: payload.body,
            trailers: payload.trailers,
            cut: payload.cut,
            interim,
        }
    }
}

/// A request to be written byte for byte.
#[derive(Clone, Debug)]
pub struct TestRequest {
    method: String,
    target: String,
    headers: Fields,
    body: Option<Vec<u8>>,
    trailers: Fields,
    chunked: bool,
    expects_continue: bool,
}

impl TestRequest {
    /// A request with a `Host` line and nothing else.
    pub fn new(method: &str, target: &str) -> TestRequest {
        TestRequest {
            method: method.to_owned(),
            target: target.to_owned(),
            headers: vec![(b"Host".to_vec(), b"api.test".to_vec())],
            body: None,
            trailers: Vec::new(),
            chunked: false,
            expects_continue: false,
        }
    }

    /// A GET without a body.
    pub fn get(target: &str) -> TestRequest {
        TestRequest::new("GET", target)
    }

    /// A POST, with an empty body until [`TestRequest::body`] gives it one.
    pub fn post(target: &str) -> TestRequest {
        TestRequest::new("POST", target).body("")
    }

    /// Adds a field line; repeating a name repeats the line.
    #[must_use]
    pub fn header(mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> TestRequest {
        self.headers.push((name.as_ref().to_vec(), value.as_ref().to_vec()));
        self
    }

    /// Adds an `Idempotency-Key`, quoted as RFC 9651 wants it.
    #[must_use]
    pub fn key(self, key: &str) -> TestRequest {
        self.header("Idempotency-Key", format!("\"{key}\""))
    }

    /// Sets the behaviour of the fixture upstream; see [`crate::upstream`].
    #[must_use]
    pub fn fixture(self, behaviour: &str) -> TestRequest {
        self.header("x-fixture", behaviour)
    }

    /// Sets the body, sent with a `Content-Length` unless [`TestRequest::chunked`].
    #[must_use]
    pub fn body(mut self, body: impl AsRef<[u8]>) -> TestRequest {
        self.body = Some(body.as_ref().to_vec());
        self
    }

    /// Sends the body in chunks (two, when it has two bytes to split).
    #[must_use]
    pub fn chunked(mut self) -> TestRequest {
        self.chunked = true;
        self
    }

    /// Adds a trailer line; only a chunked body can carry it.
    #[must_use]
    pub fn trailer(mut self, name: &str, value: &str) -> TestRequest {
        self.trailers.push((name.as_bytes().to_vec(), value.as_bytes().to_vec()));
        self
    }

    /// Sends `Expect: 100-continue` and holds the body back until the server asks for it.
    #[must_use]
    pub fn expect_continue(mut self) -> TestRequest {
        self.expects_continue = true;
        self
    }

    /// Returns request line and field lines, up to and with the empty line.
    pub fn head(&self) -> Vec<u8> {
        let mut out = format!("{} {} HTTP/1.1\r\n", self.method, self.target).into_bytes();
        put_fields(&mut out, &self.headers);
        if self.expects_continue {
            out.extend_from_slice(b"Expect: 100-continue\r\n");
        }
        match &self.body {
            Some(_) if self.chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
            Some(body) => out.extend_from_slice(format!("Content-Length: {}\r\n", body.len()).as_bytes()),
            None => {}
        }
        out.extend_from_slice(b"\r\n");
        out
    }

    /// Returns the body as it is sent over the wire.
    pub fn payload(&self) -> Vec<u8> {
        let body = self.body.as_deref().unwrap_or_default();
        if !self.chunked {
            return body.to_vec();
        }
        let (first, second) = body.split_at(body.len() / 2);
        let mut out = Vec::new();
        put_chunk(&mut out, first);
        put_chunk(&mut out, second);
        out.extend_from_slice(b"0\r\n");
        put_fields(&mut out, &self.trailers);
        out.extend_from_slice(b"\r\n");
        out
    }

    /// Returns head and payload.
    pub fn to_bytes(&self) -> Vec<u8> {
        [self.head(), self.payload()].concat()
    }
}

/// A response, with field lines in order and as bytes, because both can matter.
#[derive(Clone, Debug)]
pub struct TestResponse {
    /// Status code of the response.
    pub status: u16,
    /// The field lines, in order.
    pub headers: Fields,
    /// The body, as much of it as arrived.
    pub body: Vec<u8>,
    /// The trailer lines of a chunked response.
    pub trailers: Fields,
    /// `true` if the connection closed before the response was complete by its framing.
    pub cut: bool,
    /// The interim (1xx) responses before this one.
    pub interim: Vec<u16>,
}

impl TestResponse {
    /// Returns the first field of that name, as text.
    pub fn header(&self, name: &str) -> Option<String> {
        self.header_lines(name).into_iter().next()
    }

    /// Returns every field of that name, in order, as text.
    pub fn header_lines(&self, name: &str) -> Vec<String> {
        lines_named(&self.headers, name).map(|v| String::from_utf8_lossy(v).into_owned()).collect()
    }

    /// Returns the body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Head of a response whose body has not been read.
#[derive(Clone, Debug)]
pub struct Head {
    /// Status code of the response.
    pub status: u16,
    /// The field lines, in order.
    pub headers: Fields,
}

/// Field lines in order, names and values as they were on the wire.
pub type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// Returns the values of all lines with that name.
pub(crate) fn lines_named<'a>(fields: &'a Fields, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
    fields.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name.as_bytes())).map(|(_, v)| v.as_slice())
}

/// Parses the field lines of a head or a trailer section; skips a status line.
pub(crate) fn fields(lines: &[u8]) -> Fields {
    lines
        .split(|&b| b == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
        .filter(|line| !line.starts_with(b"HTTP/"))
        .filter_map(|line| {
            let colon = line.iter().position(|&b| b == b':')?;
            Some((line[..colon].to_vec(), line[colon + 1..].trim_ascii().to_vec()))
        })
        .collect()
}

/// The framing of a message's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    Length(usize),
    Chunked,
    UntilClose,
}

impl Framing {
    pub(crate) fn of_answer(headers: &Fields) -> Framing {
        Framing::from_headers(headers).unwrap_or(Framing::UntilClose)
    }

    pub(crate) fn of_request(headers: &Fields) -> Framing {
        Framing::from_headers(headers).unwrap_or(Framing::Length(0))
    }

    fn from_headers(headers: &Fields) -> Option<Framing> {
        if lines_named(headers, "transfer-encoding").any(|v| v.to_ascii_lowercase().ends_with(b"chunked")) {
            return Some(Framing::Chunked);
        }
        let length = lines_named(headers, "content-length").next()?;
        std::str::from_utf8(length).ok()?.parse().ok().map(Framing::Length)
    }
}

/// A body as read, complete or not.
#[derive(Debug, Default)]
pub(crate) struct Payload {
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Fields,
    pub(crate) cut: bool,
}

/// A socket with its read-ahead buffer: the small HTTP/1.1 reader that both sides of the tests share.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) stream: TcpStream,
    ahead: Vec<u8>,
    /// Error of the last read that failed.
    error: Option<io::Error>,
}

impl Wire {
    pub(crate) fn new(stream: TcpStream) -> Wire {
        Wire { stream, ahead: Vec::new(), error: None }
    }

    /// Describes how the stream ended, for the message of a failed test.
    fn end(&self) -> String {
        let how = self.error.as_ref().map_or("closed by the peer".to_owned(), io::Error::to_string);
        format!("{how}, after {:?}", String::from_utf8_lossy(&self.ahead))
    }

    /// Returns the lines before the empty one, or `None` if the peer closed before it.
    pub(crate) async fn read_head(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(end) = find(&self.ahead, b"\r\n\r\n") {
                let mut head: Vec<u8> = self.ahead.drain(..end + 4).collect();
                head.truncate(end + 2);
                return Some(head);
            }
            assert!(self.ahead.len() <= HEAD_BYTES_MAX, "a head of over {HEAD_BYTES_MAX} bytes");
            if !self.fill().await {
                return None;
            }
        }
    }

    pub(crate) async fn read_payload(&mut self, framing: Framing) -> Payload {
        let mut payload = Payload::default();
        match framing {
            Framing::Length(length) => {
                payload.cut = !self.want(length).await;
                let have = length.min(self.ahead.len());
                payload.body = self.ahead.drain(..have).collect();
            }
            Framing::UntilClose => {
                while self.fill().await {}
                payload.body = std::mem::take(&mut self.ahead);
            }
            Framing::Chunked => payload.cut = self.read_chunks(&mut payload).await.is_none(),
        }
        payload
    }

    /// Returns up to `limit` bytes as soon as there are any; empty at the end of the stream.
    pub(crate) async fn read_some(&mut self, limit: usize) -> Vec<u8> {
        if self.ahead.is_empty() {
            self.fill().await;
        }
        let have = limit.min(self.ahead.len());
        self.ahead.drain(..have).collect()
    }

    async fn read_chunks(&mut self, payload: &mut Payload) -> Option<()> {
        loop {
            let line = self.read_line().await?;
            let digits = line.split(|&b| b == b';').next().unwrap_or_default().trim_ascii();
            let size = usize::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
            if size == 0 {
                break;
            }
            let whole = self.want(size + 2).await;
            let have = size.min(self.ahead.len());
            payload.body.extend(self.ahead.drain(..have));
            if !whole {
                return None;
            }
            self.ahead.drain(..2);
        }
        loop {
            let line = self.read_line().await?;
            if line.is_empty() {
                return Some(());
            }
            payload.trailers.extend(fields(&line));
        }
    }

    async fn read_line(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(end) = find(&self.ahead, b"\r\n") {
                let mut line: Vec<u8> = self.ahead.drain(..end + 2).collect();
                line.truncate(end);
                return Some(line);
            }
            if !self.fill().await {
                return None;
            }
        }
    }

    async fn want(&mut self, length: usize) -> bool {
        while self.ahead.len() < length {
            if !self.fill().await {
                return false;
            }
        }
        true
    }

    /// Reads once more; `false` at the end of the stream or after a reset, which tests treat alike.
    async fn fill(&mut self) -> bool {
        match self.stream.read_buf(&mut self.ahead).await {
            Ok(count) => count > 0,
            Err(error) => {
                self.error = Some(error);
                false
            }
        }
    }
}

pub(crate) fn put_fields(out: &mut Vec<u8>, fields: &Fields) {
    for (name, value) in fields {
        out.extend_from_slice(name);
        out.extend_from_slice(b": ");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
}

/// Writes one chunk; nothing for no bytes, because an empty chunk would end the body.
pub(crate) fn put_chunk(out: &mut Vec<u8>, bytes: &[u8]) {
    if !bytes.is_empty() {
        out.extend_from_slice(format!("{:x}\r\n", bytes.len()).as_bytes());
        out.extend_from_slice(bytes);
        out.extend_from_slice(b"\r\n");
    }
}

/// Waits for `what` for at most [`PATIENCE`], so that a hang fails with a line number instead of blocking the run.
async fn with_timeout<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("the server said nothing for too long")
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

/// Longest wait for one read or write. Far above what a loaded two-core machine needs, so that only a real hang
/// reaches it.
const PATIENCE: Duration = Duration::from_secs(30);

/// Longest head that the reader takes. Tests send heads of some hundred bytes; this stops a runaway reader.
const HEAD_BYTES_MAX: usize = 256 * 1024;
