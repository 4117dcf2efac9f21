//! Forwards one request to the upstream, at most once, and reports what a failure proves.
//!
//! The forwarder never retries a request. The one exception is hyper's: a request that a pooled connection hands back
//! unsent is sent on another connection. Every failure becomes a response with an [`ExecutionHint`], because the guard
//! has to know whether it may release the key.
//!
//! The forwarder knows nothing of keys and records and sets no deadline. The caller must set one and drop the future:
//! the upstream may stay silent, and a request queued on an HTTP/2 connection that ends at that moment can be lost
//! inside the HTTP client, so that its future never resolves. The outcome is then unknown, as with any other time-out.
//!
//! `Upgrade` is stripped like every other hop-by-hop field, unless the request carries [`UpgradeTo`].

use std::collections::HashSet;
use std::convert::Infallible;
use std::error::Error as StdError;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header};
use http_body::Body;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Either, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::{CaptureConnection, capture_connection};
use hyper_util::client::legacy::{self, Client};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use parking_lot::Mutex;
use tower_service::Service;

use ibid::http::{ExecutionHint, TraceContext};

use super::forward_key::KeyChange;

use super::connect::Connector;
use super::fields;
use super::next_hop::HopNotice;
use super::tls_error::TlsError;
use super::upgrade::UpgradeTo;
use super::upstream_connections::{BoundedConnector, UpstreamConnections};
use super::upstream_tls::{Offer, TlsSettings, TlsSetupError, UpstreamTls};

/// An HTTP client of one upstream. Clones share its connections.
#[derive(Clone, Debug)]
pub(crate) struct Forwarder {
    // One `Arc`: each request clones the forwarder several times, and a client has a dozen parts.
    client: Arc<UpstreamClient>,
    /// A client that offers only HTTP/1.1; `None` unless TLS negotiates the version.
    http1: Option<Http1Client>,
    base: Arc<Base>,
    /// Logs the proxies that responses come through.
    notice: Option<Arc<HopNotice>>,
}

/// A client for upgrades, which only HTTP/1.1 has, and for every request once the upstream has declined HTTP/2.
///
/// Its connections need no [`OneAtATime`]. If the upstream starts to offer HTTP/2, the gateway uses it after a restart.
#[derive(Clone, Debug)]
struct Http1Client {
    client: Arc<UpstreamClient>,
    declined_http2: Arc<AtomicBool>,
}

type UpstreamClient = Client<BoundedConnector<Connector>, UnsyncBoxBody<Bytes, BoxError>>;

/// The body of the upstream's response, or of a [`Problem`] made here.
pub(crate) type ForwardBody = Either<Incoming, Full<Bytes>>;

/// The reason why an upstream cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadUpstreamError {
    #[error("an upstream is `http[s]://host[:port][/path]`, not `{0}`")]
    Address(Uri),
    #[error(transparent)]
    Tls(#[from] TlsSetupError),
}

/// The HTTP version that the gateway speaks to the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Http1,
    /// HTTP/2 with prior knowledge in plain text; over TLS the upstream has to agree.
    Http2,
    /// The version that TLS negotiates for each connection.
    Negotiated,
}

impl Forwarder {
    /// Returns a forwarder to `upstream`, whose path is prefixed to that of every request.
    ///
    /// `http2` demands HTTP/2, in plain text with prior knowledge. Without it a plain upstream gets HTTP/1.1, and one with
    /// TLS gets the version that it chooses.
    pub(crate) fn new(upstream: Uri, http2: bool, tls: &TlsSettings) -> Result<Forwarder, BadUpstreamError> {
        Forwarder::with_connections(upstream, http2, tls, UpstreamConnections::unbounded())
    }

    /// Like [`Forwarder::new`], with a bound on its connections.
    pub(crate) fn with_connections(
        upstream: Uri,
        http2: bool,
        tls: &TlsSettings,
        connections: UpstreamConnections,
    ) -> Result<Forwarder, BadUpstreamError> {
        let with_tls = upstream.scheme() == Some(&Scheme::HTTPS);
        let (protocol, offer) = match (http2, with_tls) {
            (true, _) => (Protocol::Http2, Offer::Http2Only),
            (false, true) => (Protocol::Negotiated, Offer::Either),
            (false, false) => (Protocol::Http1, Offer::Http1Only),
        };
        let Some(base) = Base::new(&upstream, protocol) else {
            return Err(BadUpstreamError::Address(upstream));
        };
        let tls = match with_tls {
            true => Some(UpstreamTls::new(base.authority.host(), tls, offer)?),
            false => None,
        };
        let http1 = tls.as_ref().filter(|_| protocol == Protocol::Negotiated).map(|tls| Http1Client {
            client: Arc::new(client(
                Protocol::Http1,
                Some(tls.offering(Offer::Http1Only)),
                connections.clone(),
            )),
            declined_http2: tls.declined_http2(),
        });
        let client = Arc::new(client(protocol, tls, connections));
        Ok(Forwarder { client, http1, base: Arc::new(base), notice: None })
    }

    /// Passes the headers of every response to `notice`, which logs the proxies that it came through.
    pub(crate) fn naming_hops(self, notice: Arc<HopNotice>) -> Forwarder {
        Forwarder { notice: Some(notice), ..self }
    }

    async fn forward(self, request: Request<UnsyncBoxBody<Bytes, BoxError>>) -> Response<ForwardBody> {
        // A gateway in front of one upstream offers no tunnel to a destination that the client chooses.
        if request.method() == Method::CONNECT {
            return Problem::CONNECT_REFUSED.response(ExecutionHint::NotExecuted);
        }
        let upgrades = request.extensions().get::<UpgradeTo>().is_some();
        let key_change = KeyChange::of(&request);
        let Some(mut request) = self.base.outgoing(request) else {
            return Problem::TARGET_TOO_LONG.response(ExecutionHint::NotExecuted);
        };
        if let Some(key_change) = key_change {
            key_change.apply(request.headers_mut());
        }
        let connection = capture_connection(&mut request);
        let client = match &self.http1 {
            Some(http1) if upgrades || http1.declined_http2.load(Ordering::Relaxed) => &http1.client,
            _ => &self.client,
        };
        match client.request(request).await {
            Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS && upgrades => {
                switch_protocols(response)
            }
            // The request asked for no upgrade, so this upstream does not speak proper HTTP. It may still have executed
            // the request.
            Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                Problem::OUTCOME_UNKNOWN.response(ExecutionHint::Uncertain)
            }
            Ok(response) => {
                retire_after_error(&response, &connection);
                if let Some(notice) = &self.notice {
                    notice.look_at(response.headers());
                }
                incoming(response)
            }
            Err(error) => {
                let fate = fate_of(&error);
                match tls_error(&error) {
                    Some(failure) => {
                        tracing::warn!(
                            ?fate,
                            cause = failure.cause,
                            hint = failure.hint,
                            "no TLS with the upstream"
                        );
                    }
                    None => {
                        tracing::warn!(?fate, error = &error as &dyn StdError, "upstream did not answer");
                    }
                }
                if fate == ExecutionHint::NotExecuted {
                    Problem::UPSTREAM_UNAVAILABLE.response(fate)
                } else {
                    Problem::OUTCOME_UNKNOWN.response(fate)
                }
            }
        }
    }
}

/// Builds a client that speaks `protocol`, over `tls` if there is one.
fn client(protocol: Protocol, tls: Option<UpstreamTls>, connections: UpstreamConnections) -> UpstreamClient {
    let mut builder = match protocol {
        // With `Negotiated`, a connection may turn out to be HTTP/2 after the executor has been chosen.
        Protocol::Http2 | Protocol::Negotiated => Client::builder(OneAtATime::default()),
        Protocol::Http1 => Client::builder(TokioExecutor::new()),
    };
    builder
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(POOL_IDLE_FOR)
        .pool_max_idle_per_host(POOL_IDLE_MAX)
        .retry_canceled_requests(true)
        // Only an HTTP/1.1 connection gets a `Host`. The client knows the version of its connection; we don't.
        .set_host(true)
        .http2_only(protocol == Protocol::Http2)
        .http2_keep_alive_interval(H2_PING_EVERY)
        .http2_keep_alive_timeout(H2_PONG_WITHIN)
        .http1_max_headers(H1_ANSWER_LINES_MAX)
        .http2_max_header_list_size(H2_HEADER_LIST_BYTES_MAX)
        .build(BoundedConnector::new(Connector::new(tls), connections))
}

impl<B> Service<Request<B>> for Forwarder
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<ForwardBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let request = request.map(|body| body.map_err(Into::into).boxed_unsync());
        let forwarder = self.clone();
        Box::pin(async move { Ok(forwarder.forward(request).await) })
    }
}

/// Response to an unguarded request that the upstream did not answer in time.
pub(crate) fn timeout_response() -> Response<ForwardBody> {
    Problem::TIMED_OUT.response(ExecutionHint::Uncertain)
}

/// Returns the TLS handshake's failure, if that is why the request was not sent.
fn tls_error(error: &legacy::Error) -> Option<&TlsError> {
    error.source().and_then(|source| source.downcast_ref())
}

/// Response to an unguarded request that found no free slot.
pub(crate) fn overload_response() -> Response<ForwardBody> {
    let mut response = Problem::OVERLOADED.response(ExecutionHint::NotExecuted);
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// Response to an unguarded request whose client stopped sending in the middle of the body.
pub(crate) fn stall_response() -> Response<ForwardBody> {
    Problem::BODY_STALLED.response(ExecutionHint::Uncertain)
}

/// Returns what an error of the HTTP client proves about the request.
///
/// Written against hyper-util 0.1, hyper 1 and h2 0.4. `forward_tests` has one test per line here, and one for each
/// similar error that must not be mistaken for it.
fn fate_of(error: &legacy::Error) -> ExecutionHint {
    // Either connecting failed and no byte was sent, or the connection closed before it was given the request: every
    // later error names its connection.
    if error.is_connect() || error.connect_info().is_none() {
        return ExecutionHint::NotExecuted;
    }
    let Some(error) = error.source().and_then(|source| source.downcast_ref::<hyper::Error>()) else {
        return ExecutionHint::Uncertain;
    };
    // hyper reports `canceled` only for a request that was still queued, unsent, when its connection ended. On a reused
    // connection the client sends it again and this error never gets here; on a fresh one it does.
    if error.is_canceled() {
        return ExecutionHint::NotExecuted;
    }
    match error.source().and_then(|source| source.downcast_ref::<h2::Error>()) {
        Some(error) if is_refusal(error) => ExecutionHint::NotExecuted,
        _ => ExecutionHint::Uncertain,
    }
}

/// Returns whether a frame from the peer states that it has not processed the stream (RFC 9113, 8.7).
///
/// A reset must be REFUSED_STREAM; any other code, including CANCEL, may follow execution. A stream gets a GOAWAY as a
/// remote error only if its id is above the last one that the frame names: h2 leaves the others open, and when the
/// connection then ends they get an I/O error. The exception is a stream that opens while the GOAWAY arrives; see
/// [`OneAtATime`].
fn is_refusal(error: &h2::Error) -> bool {
    let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    error.is_remote() && (refused || error.is_go_away())
}

/// The upstream's URL, parsed once.
#[derive(Debug)]
struct Base {
    scheme: Scheme,
    authority: Authority,
    /// Path prefix without a trailing slash, because every request path starts with one.
    path: String,
    protocol: Protocol,
}

impl Base {
    fn new(upstream: &Uri, protocol: Protocol) -> Option<Base> {
        let (scheme, authority) = (upstream.scheme()?.clone(), upstream.authority()?.clone());
        let is_usable = [Scheme::HTTP, Scheme::HTTPS].contains(&scheme)
            && upstream.query().is_none()
            && !authority.as_str().contains('@');
        let path = upstream.path().trim_end_matches('/').to_owned();
        is_usable.then_some(Base { scheme, authority, path, protocol })
    }

    /// Returns the request as the upstream gets it, or `None` if its target would be too long for a URI.
    fn outgoing<B: Body>(&self, request: Request<B>) -> Option<Request<B>> {
        let (mut head, body) = request.into_parts();
        // The target's authority wins over `Host` (RFC 9112, 3.2.2).
        let asked_host = head.uri.authority().map_or_else(
            || head.headers.get(header::HOST).cloned(),
            |authority| HeaderValue::from_str(authority.as_str()).ok(),
        );
        head.uri = self.target(&head.uri)?;
        head.version = match self.protocol {
            Protocol::Http2 => Version::HTTP_2,
            // The client replaces it with the negotiated version.
            Protocol::Http1 | Protocol::Negotiated => Version::HTTP_11,
        };
        head.headers = self.request_fields(head.headers);
        match head.extensions.remove() {
            // HTTP/2 has no such upgrade.
            Some(UpgradeTo(protocols)) if self.protocol != Protocol::Http2 => {
                upgrade_fields(&mut head.headers, protocols);
            }
            _ => {}
        }
        mark_forwarded(&mut head.headers, asked_host.filter(|host| !host.is_empty()));
        // Without this field, hyper omits the body of a GET or HEAD whose length it does not know.
        if self.protocol != Protocol::Http2 && !body.is_end_stream() && body.size_hint().exact().is_none() {
            head.headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        // Only a guarded request has a trace context; others keep the trace fields that they came with.
        if let Some(trace) = head.extensions.get::<TraceContext>() {
            trace.next().write(&mut head.headers);
        }
        // Our extensions are internal, and hyper would interpret some of them.
        head.extensions = http::Extensions::new();
        Some(Request::from_parts(head, body))
    }

    /// Returns the base path followed by the request's path and query, byte for byte.
    ///
    /// The upstream must execute exactly the request that was guarded.
    fn target(&self, asked: &Uri) -> Option<Uri> {
        let asked = asked.path_and_query().map_or("/", PathAndQuery::as_str);
        // `*` of OPTIONS means the server as a whole; here that is the base path.
        let asked = if asked.starts_with('/') { asked } else { "/" };
        let path = PathAndQuery::try_from(format!("{}{asked}", self.path)).ok()?;
        let to = Uri::builder().scheme(self.scheme.clone()).authority(self.authority.clone());
        to.path_and_query(path).build().ok()
    }

    fn request_fields(&self, mut headers: HeaderMap) -> HeaderMap {
        let takes_trailers = names_in(&headers, header::TE).any(|name| name == "trailers");
        // Sending both allows request smuggling. Our server read the body by the transfer encoding.
        if headers.contains_key(header::TRANSFER_ENCODING) {
            headers.remove(header::CONTENT_LENGTH);
        }
        let mut headers = end_to_end(headers);
        // Our server has already answered `Expect`, and the client is sending the body.
        headers.remove(header::EXPECT);
        headers.remove(header::HOST);
        if takes_trailers {
            headers.insert(header::TE, HeaderValue::from_static("trailers"));
        }
        if self.protocol == Protocol::Http2 {
            return headers;
        }
        // Left out where HTTP/2 may be negotiated: there hyper would remove `TE`, which gRPC needs, because this option
        // names it. HTTP/1.1 servers read `TE` without the option.
        if takes_trailers && self.protocol == Protocol::Http1 {
            headers.insert(header::CONNECTION, HeaderValue::from_static("TE"));
        }
        join_lines(&mut headers, header::COOKIE, b"; ");
        headers
    }
}

/// Keeps an HTTP/1.1 connection from being reused after a 5xx response.
///
/// uvicorn closes it 0.2 ms after the 500 of an unhandled exception, without `Connection: close`. T1 gets the 500 and
/// returns the connection to the pool; T2 writes its request to it; the close arrives; therefore the outcome of T2 is
/// unknown.
fn retire_after_error<B>(response: &Response<B>, connection: &CaptureConnection) {
    if response.status().is_server_error()
        && response.version() < Version::HTTP_2
        && let Some(connection) = connection.connection_metadata().as_ref()
    {
        connection.poison();
    }
}

/// Returns the upstream's response as the client gets it.
fn incoming(response: Response<Incoming>) -> Response<ForwardBody> {
    let (mut head, body) = response.into_parts();
    // The version is that of the connection to the upstream. The client's connection may use another one.
    head.version = Version::HTTP_11;
    head.headers = end_to_end(head.headers);
    Response::from_parts(head, Either::Left(body))
}

/// Returns a response that turns the client's connection into a tunnel.
fn switch_protocols(response: Response<Incoming>) -> Response<ForwardBody> {
    let protocol = response.headers().get(header::UPGRADE).cloned();
    let mut response = incoming(response);
    if let Some(protocol) = protocol {
        upgrade_fields(response.headers_mut(), protocol);
    }
    response
}

/// Sets the two fields of an upgrade. They are hop-by-hop, so each hop has to set them.
fn upgrade_fields(headers: &mut HeaderMap, protocols: HeaderValue) {
    headers.insert(header::UPGRADE, protocols);
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
}

/// Returns all fields except hop-by-hop ones (RFC 9110, 7.6.1), in their order.
///
/// `Trailer` stays, because trailers are forwarded and hyper sends only those that it announces.
fn end_to_end(headers: HeaderMap) -> HeaderMap {
    let named: HashSet<String> = names_in(&headers, header::CONNECTION).collect();
    let is_hop_by_hop = |name: &HeaderName| {
        HOP_BY_HOP.contains(name)
            || name.as_str().starts_with("proxy-")
            || (named.contains(name.as_str()) && !fields::is_end_to_end(name.as_str()))
    };
    let mut forwarded = HeaderMap::with_capacity(headers.len());
    for (name, value) in &headers {
        if !is_hop_by_hop(name) {
            forwarded.append(name, value.clone());
        }
    }
    forwarded
}

/// Appends the client's address to `X-Forwarded-For`, which grows with each hop.
pub(crate) fn mark_peer(headers: &mut HeaderMap, address: &HeaderValue) {
    let had_one = headers.append(X_FORWARDED_FOR, address.clone());
    if had_one {
        join_lines(headers, X_FORWARDED_FOR, b", ");
    }
}

/// Sets `X-Forwarded-Proto` and `X-Forwarded-Host`, unless a proxy before us has set them.
///
/// Both describe the outermost hop.
fn mark_forwarded(headers: &mut HeaderMap, asked_host: Option<HeaderValue>) {
    headers.entry(X_FORWARDED_PROTO).or_insert(HeaderValue::from_static("http"));
    if let Some(host) = asked_host {
        headers.entry(X_FORWARDED_HOST).or_insert(host);
    }
}

/// Joins the lines of a field into one. HTTP/2 may split `Cookie`, HTTP/1.1 may not (RFC 9113, 8.2.3).
fn join_lines(headers: &mut HeaderMap, name: HeaderName, by: &[u8]) {
    let lines: Vec<&[u8]> = headers.get_all(&name).iter().map(HeaderValue::as_bytes).collect();
    if lines.len() > 1 {
        let line = HeaderValue::from_bytes(&lines.join(by)).expect("made of field values");
        headers.insert(name, line);
    }
}

/// Returns the members of a comma-separated field, in lower case.
pub(super) fn names_in(headers: &HeaderMap, field: HeaderName) -> impl Iterator<Item = String> {
    headers
        .get_all(field)
        .iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
}

/// A problem response of the gateway itself (RFC 9457). It reveals nothing of the upstream except that it failed.
struct Problem {
    status: StatusCode,
    kind: &'static str,
    title: &'static str,
    detail: &'static str,
}

impl Problem {
    const UPSTREAM_UNAVAILABLE: Problem = Problem {
        status: StatusCode::SERVICE_UNAVAILABLE,
        kind: "urn:ibid:problem:upstream-unavailable",
        title: "Upstream unavailable",
        detail: "The request was not executed. It may be sent again.",
    };
    const OUTCOME_UNKNOWN: Problem = Problem {
        status: StatusCode::BAD_GATEWAY,
        kind: "urn:ibid:problem:outcome-unknown",
        title: "Outcome unknown",
        detail: "The response of the upstream can not be used. The request may have been executed.",
    };
    const TIMED_OUT: Problem = Problem {
        status: StatusCode::GATEWAY_TIMEOUT,
        kind: "urn:ibid:problem:outcome-unknown",
        title: "The outcome of the request is unknown",
        detail: "The request was sent, and no response came in time.",
    };
    const OVERLOADED: Problem = Problem {
        status: StatusCode::SERVICE_UNAVAILABLE,
        kind: "urn:ibid:problem:overloaded",
        title: "There are too many requests at once",
        detail: "The request was not executed. It may be sent again.",
    };
    const BODY_STALLED: Problem = Problem {
        status: StatusCode::REQUEST_TIMEOUT,
        kind: "urn:ibid:problem:body-timeout",
        title: "The request body did not arrive in time",
        detail: "The part of it that arrived was sent on.",
    };
    const CONNECT_REFUSED: Problem = Problem {
        status: StatusCode::NOT_IMPLEMENTED,
        kind: "about:blank",
        title: "Not Implemented",
        detail: "CONNECT is not forwarded.",
    };
    const TARGET_TOO_LONG: Problem = Problem {
        status: StatusCode::URI_TOO_LONG,
        kind: "about:blank",
        title: "URI Too Long",
        detail: "The target is too long to be forwarded.",
    };

    fn response(&self, fate: ExecutionHint) -> Response<ForwardBody> {
        let body = serde_json::json!({
            "type": self.kind, "title": self.title, "status": self.status.as_u16(), "detail": self.detail,
        });
        let mut response = Response::new(Either::Right(Full::from(body.to_string())));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response.extensions_mut().insert(fate);
        response
    }
}

/// An executor that polls only one of hyper's tasks at a time.
///
/// hyper opens a stream and then checks the connection for an error. T1 opens a stream; T2 reads a GOAWAY; T1 checks and
/// gets that error for its stream, whatever the stream's id; therefore a stream that the peer did process would look
/// unprocessed. T1 and T2 both run on this executor. With one lock around every poll, no frame is read between the two
/// steps, so a GOAWAY means what [`is_refusal`] assumes. The polls are short, and h2 already locks around most of them.
#[derive(Clone, Debug, Default)]
struct OneAtATime(Arc<Mutex<()>>);

impl<F> hyper::rt::Executor<F> for OneAtATime
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, task: F) {
        let turn = Arc::clone(&self.0);
        let mut task = Box::pin(task);
        tokio::spawn(std::future::poll_fn(move |cx| {
            // Poison is harmless: the lock guards no data.
            let _turn = turn.lock();
            task.as_mut().poll(cx)
        }));
    }
}

type BoxError = Box<dyn StdError + Send + Sync>;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// Fields that end at the next hop whether or not `Connection` names them. `Proxy-…` is matched by prefix.
const HOP_BY_HOP: [HeaderName; 5] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Time after which an idle pooled connection is closed. Many servers close theirs after 5 s (Node's default), and a
/// request that is written while their close is in transit has an unknown outcome.
const POOL_IDLE_FOR: Duration = Duration::from_secs(4);

/// Most idle connections in the pool: enough for the next burst, an eighth of the most that we serve.
/// With [`POOL_IDLE_FOR`], more would only be closed again.
const POOL_IDLE_MAX: usize = 512;

/// Interval of keep-alive pings. HTTP/2 multiplexes everything over one connection: if that is dead, ten seconds of
/// requests hang.
const H2_PING_EVERY: Duration = Duration::from_secs(10);
const H2_PONG_WITHIN: Duration = Duration::from_secs(10);

/// Most header lines of a response over HTTP/1.1. Rejecting a response leaves an executed request with an unknown outcome,
/// and hyper's default of 100 is less than some servers send.
const H1_ANSWER_LINES_MAX: usize = 1000;

/// Largest field section of a response over HTTP/2. Rejecting a response leaves an executed request with an unknown
/// outcome, so the limit is generous: hyper's default of 16 KiB is less than common servers send.
const H2_HEADER_LIST_BYTES_MAX: u32 = 256 * 1024;
