//! The forwarder: passes one request to the upstream, at most once, and says what a failure proves.
//!
//! It never sends a request again on its own. The one exception is hyper's: a request that a pooled
//! connection hands back unsent goes out on another. Whatever fails becomes an answer that carries a
//! [`ExecutionHint`], because whoever holds the key needs one thing of an error: may it be left free?
//!
//! It knows nothing of keys and records, and sets no deadline: the caller drops the future. And it must:
//! besides a silent upstream, a request queued on an HTTP/2 connection that ends just then can be lost
//! within the client and never come back. Its outcome is then as unknown as that of any other time-out.
//!
//! `Upgrade` is stripped like every other field of one connection, unless the request carries [`UpgradeTo`].

use std::collections::HashSet;
use std::convert::Infallible;
use std::error::Error as StdError;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
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
use tower_service::Service;

use ibid::http::{ExecutionHint, TraceContext};

use super::forward_key::KeyChange;

use super::connect::Connector;
use super::fields;
use super::next_hop::HopNotice;
use super::tls_failure::TlsFailure;
use super::upgrade::UpgradeTo;
use super::upstream_connections::{BoundedConnector, UpstreamConnections};
use super::upstream_tls::{Offer, TlsSettings, TlsSetupError, UpstreamTls};

/// A client of one upstream. Clones share its connections.
#[derive(Clone, Debug)]
pub(crate) struct Forwarder {
    // Every request clones it some times, and a client is a dozen of parts.
    client: Arc<UpstreamClient>,
    /// Where the version is negotiated: a client that offers HTTP/1.1 only.
    http1: Option<Http1Client>,
    base: Arc<Base>,
    /// Reports the proxies that answers come through.
    notice: Option<Arc<HopNotice>>,
}

/// A client for upgrades, which only HTTP/1.1 has, and for every request once the upstream has declined HTTP/2: its
/// connections need no [`OneAtATime`]. An upstream that learns HTTP/2 later is spoken to in it after a restart.
#[derive(Clone, Debug)]
struct Http1Client {
    client: Arc<UpstreamClient>,
    declined_http2: Arc<AtomicBool>,
}

type UpstreamClient = Client<BoundedConnector<Connector>, UnsyncBoxBody<Bytes, BoxError>>;

/// The upstream's body, or that of a problem of our own.
pub(crate) type ForwardBody = Either<Incoming, Full<Bytes>>;

/// The address of an upstream that cannot be one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadUpstream {
    #[error("an upstream is `http[s]://host[:port][/path]`, not `{0}`")]
    Address(Uri),
    #[error(transparent)]
    Tls(#[from] TlsSetupError),
}

/// Which version of HTTP the upstream is spoken to in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Http1,
    /// With prior knowledge in plain text; over TLS the upstream has to agree.
    Http2,
    /// As TLS negotiates it, connection by connection.
    Negotiated,
}

impl Forwarder {
    /// Forwards to `upstream`, whose path is put before that of every request. `http2` demands HTTP/2, in plain text
    /// with prior knowledge. Without it a plain upstream gets HTTP/1.1, and one with TLS gets what it chooses.
    pub(crate) fn new(upstream: Uri, http2: bool, tls: &TlsSettings) -> Result<Forwarder, BadUpstream> {
        Forwarder::with_connections(upstream, http2, tls, UpstreamConnections::unbounded())
    }

    /// As [`Forwarder::new`], with a bound on its connections.
    pub(crate) fn with_connections(
        upstream: Uri,
        http2: bool,
        tls: &TlsSettings,
        connections: UpstreamConnections,
    ) -> Result<Forwarder, BadUpstream> {
        let with_tls = upstream.scheme() == Some(&Scheme::HTTPS);
        let (protocol, offer) = match (http2, with_tls) {
            (true, _) => (Protocol::Http2, Offer::Http2Only),
            (false, true) => (Protocol::Negotiated, Offer::Either),
            (false, false) => (Protocol::Http1, Offer::Http1Only),
        };
        let Some(base) = Base::new(&upstream, protocol) else { return Err(BadUpstream::Address(upstream)) };
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

    /// Lets every answer be looked at for the proxies that it came through.
    pub(crate) fn naming_hops(self, notice: Arc<HopNotice>) -> Forwarder {
        Forwarder { notice: Some(notice), ..self }
    }

    async fn forward(self, request: Request<UnsyncBoxBody<Bytes, BoxError>>) -> Response<ForwardBody> {
        // A tunnel to wherever the client likes is not what a gateway in front of one upstream offers.
        if request.method() == Method::CONNECT {
            return Problem::CONNECT_REFUSED.answer(ExecutionHint::NotExecuted);
        }
        let upgrades = request.extensions().get::<UpgradeTo>().is_some();
        let key_change = KeyChange::of(&request);
        let Some(mut request) = self.base.outgoing(request) else {
            return Problem::TARGET_TOO_LONG.answer(ExecutionHint::NotExecuted);
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
            Ok(answer) if answer.status() == StatusCode::SWITCHING_PROTOCOLS && upgrades => upgraded(answer),
            // Nobody asked for an upgrade, so this upstream speaks something that is no HTTP. It has read
            // the request all the same.
            Ok(answer) if answer.status() == StatusCode::SWITCHING_PROTOCOLS => {
                Problem::OUTCOME_UNKNOWN.answer(ExecutionHint::Uncertain)
            }
            Ok(answer) => {
                retire_after_error(&answer, &connection);
                if let Some(notice) = &self.notice {
                    notice.look_at(answer.headers());
                }
                incoming(answer)
            }
            Err(error) => {
                let fate = fate_of(&error);
                match tls_failure(&error) {
                    Some(failure) => {
                        tracing::warn!(
                            ?fate,
                            cause = failure.cause,
                            hint = failure.hint,
                            "no TLS with the upstream"
                        );
                    }
                    None => {
                        tracing::warn!(?fate, error = &error as &dyn StdError, "the upstream did not answer");
                    }
                }
                if fate == ExecutionHint::NotExecuted {
                    Problem::UPSTREAM_UNAVAILABLE.answer(fate)
                } else {
                    Problem::OUTCOME_UNKNOWN.answer(fate)
                }
            }
        }
    }
}

/// A client that speaks this protocol, over TLS if it is given some.
fn client(protocol: Protocol, tls: Option<UpstreamTls>, connections: UpstreamConnections) -> UpstreamClient {
    let mut builder = match protocol {
        // One of its connections may be HTTP/2, and the executor is chosen before that is known.
        Protocol::Http2 | Protocol::Negotiated => Client::builder(OneAtATime::default()),
        Protocol::Http1 => Client::builder(TokioExecutor::new()),
    };
    builder
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(POOL_IDLE_FOR)
        .pool_max_idle_per_host(POOL_IDLE_MAX)
        .retry_canceled_requests(true)
        // Only an HTTP/1.1 connection gets a `Host`, and the client knows when it has one.
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

/// No answer in time to a request that nobody guards.
pub(crate) fn timed_out() -> Response<ForwardBody> {
    Problem::TIMED_OUT.answer(ExecutionHint::Uncertain)
}

/// The handshake's failure, if that is why a request was not sent.
fn tls_failure(error: &legacy::Error) -> Option<&TlsFailure> {
    error.source().and_then(|source| source.downcast_ref())
}

/// No slot for a request that nobody guards.
pub(crate) fn overloaded() -> Response<ForwardBody> {
    let mut answer = Problem::OVERLOADED.answer(ExecutionHint::NotExecuted);
    answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    answer
}

/// The client of a request that nobody guards stopped in the middle of its body.
pub(crate) fn body_stalled() -> Response<ForwardBody> {
    Problem::BODY_STALLED.answer(ExecutionHint::Uncertain)
}

/// What an error of the client proves.
///
/// Read together with hyper-util 0.1, hyper 1 and h2 0.4; `forward_tests` holds one test per line here,
/// and one for each neighbour that must not be taken for it.
fn fate_of(error: &legacy::Error) -> ExecutionHint {
    // Not connected: no byte was sent. Or connected and closed before the request was given to the
    // connection: every error after that names the connection it happened on.
    if error.is_connect() || error.connect_info().is_none() {
        return ExecutionHint::NotExecuted;
    }
    let Some(error) = error.source().and_then(|source| source.downcast_ref::<hyper::Error>()) else {
        return ExecutionHint::Uncertain;
    };
    // hyper calls canceled only what it hands back whole, still queued when its connection ended. On a
    // reused connection it went out again and this is never seen; on a fresh one it is ours to tell.
    if error.is_canceled() {
        return ExecutionHint::NotExecuted;
    }
    match error.source().and_then(|source| source.downcast_ref::<h2::Error>()) {
        Some(error) if is_refusal(error) => ExecutionHint::NotExecuted,
        _ => ExecutionHint::Uncertain,
    }
}

/// Whether the peer said, in a frame of its own, that it has not processed the stream (RFC 9113, 8.7).
///
/// A reset must be REFUSED_STREAM; any other code, CANCEL too, may follow execution. A GOAWAY reaches a
/// stream as a remote error only if its id is above the last one the frame names: h2 leaves the others
/// open, and when the connection then ends they get an I/O error. The exception is a stream that opens
/// while the GOAWAY arrives, for which see [`OneAtATime`].
fn is_refusal(error: &h2::Error) -> bool {
    let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    error.is_remote() && (refused || error.is_go_away())
}

/// Where requests go, taken apart once.
#[derive(Debug)]
struct Base {
    scheme: Scheme,
    authority: Authority,
    /// Without a slash at its end, so that it can stand before any path.
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

    /// The request as the upstream gets it, or `None` if its target would be too long to be one.
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
            // What was negotiated replaces it.
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
        // hyper leaves out the body of a GET or HEAD whose length it does not know, unless this says that there is one.
        if self.protocol != Protocol::Http2 && !body.is_end_stream() && body.size_hint().exact().is_none() {
            head.headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        // Only what is guarded has one; the rest passes with the fields it came with.
        if let Some(trace) = head.extensions.get::<TraceContext>() {
            trace.next().write(&mut head.headers);
        }
        // Ours are for us; hyper would take some as orders of its own.
        head.extensions = http::Extensions::new();
        Some(Request::from_parts(head, body))
    }

    /// Base path, then path and query byte for byte: what was guarded is what is executed.
    fn target(&self, asked: &Uri) -> Option<Uri> {
        let asked = asked.path_and_query().map_or("/", PathAndQuery::as_str);
        // `*` of OPTIONS asks about the server, and to us that is the base.
        let asked = if asked.starts_with('/') { asked } else { "/" };
        let path = PathAndQuery::try_from(format!("{}{asked}", self.path)).ok()?;
        let to = Uri::builder().scheme(self.scheme.clone()).authority(self.authority.clone());
        to.path_and_query(path).build().ok()
    }

    fn request_fields(&self, mut headers: HeaderMap) -> HeaderMap {
        let takes_trailers = names_in(&headers, header::TE).any(|name| name == "trailers");
        // Both at once is how requests are smuggled; the encoding is what our server went by.
        if headers.contains_key(header::TRANSFER_ENCODING) {
            headers.remove(header::CONTENT_LENGTH);
        }
        let mut headers = end_to_end(headers);
        // Our server has answered it, and the body is on its way.
        headers.remove(header::EXPECT);
        headers.remove(header::HOST);
        if takes_trailers {
            headers.insert(header::TE, HeaderValue::from_static("trailers"));
        }
        if self.protocol == Protocol::Http2 {
            return headers;
        }
        // Where HTTP/2 may be negotiated it is left out: hyper would take the option as an order to remove `TE`, which
        // gRPC needs, and HTTP/1.1 servers read `TE` without it.
        if takes_trailers && self.protocol == Protocol::Http1 {
            headers.insert(header::CONNECTION, HeaderValue::from_static("TE"));
        }
        join_lines(&mut headers, header::COOKIE, b"; ");
        headers
    }
}

/// Keeps an HTTP/1.1 connection from being used again after a 5xx answer.
///
/// uvicorn closes it 0.2 ms after the 500 of an unhandled exception, without `Connection: close`. T1 gets the 500 and puts
/// the connection back; T2 writes its request into it; the close arrives; therefore the outcome of T2 is unknown.
fn retire_after_error<B>(answer: &Response<B>, connection: &CaptureConnection) {
    if answer.status().is_server_error()
        && answer.version() < Version::HTTP_2
        && let Some(connection) = connection.connection_metadata().as_ref()
    {
        connection.poison();
    }
}

/// The answer as the client gets it.
fn incoming(answer: Response<Incoming>) -> Response<ForwardBody> {
    let (mut head, body) = answer.into_parts();
    // The version is that of the upstream's connection; ours has its own.
    head.version = Version::HTTP_11;
    head.headers = end_to_end(head.headers);
    Response::from_parts(head, Either::Left(body))
}

/// An answer that turns the connection into a tunnel.
fn upgraded(answer: Response<Incoming>) -> Response<ForwardBody> {
    let protocol = answer.headers().get(header::UPGRADE).cloned();
    let mut answer = incoming(answer);
    if let Some(protocol) = protocol {
        upgrade_fields(answer.headers_mut(), protocol);
    }
    answer
}

/// The two fields of an upgrade, which end at each hop and are made again there.
fn upgrade_fields(headers: &mut HeaderMap, protocols: HeaderValue) {
    headers.insert(header::UPGRADE, protocols);
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
}

/// All fields but those of one connection (RFC 9110, 7.6.1), in their order.
///
/// `Trailer` stays: trailers are passed on, and hyper sends only those it announces.
fn end_to_end(headers: HeaderMap) -> HeaderMap {
    let named: HashSet<String> = names_in(&headers, header::CONNECTION).collect();
    let of_one_connection = |name: &HeaderName| {
        HOP_BY_HOP.contains(name)
            || name.as_str().starts_with("proxy-")
            || (named.contains(name.as_str()) && !fields::is_end_to_end(name.as_str()))
    };
    let mut kept = HeaderMap::with_capacity(headers.len());
    for (name, value) in &headers {
        if !of_one_connection(name) {
            kept.append(name, value.clone());
        }
    }
    kept
}

/// Say on whose behalf we ask: the list of addresses grows with each hop.
pub(crate) fn mark_peer(headers: &mut HeaderMap, address: &HeaderValue) {
    let had_one = headers.append(X_FORWARDED_FOR, address.clone());
    if had_one {
        join_lines(headers, X_FORWARDED_FOR, b", ");
    }
}

/// Say how we were asked. Protocol and host are those of the outermost hop, so what a proxy before us said about them
/// stands.
fn mark_forwarded(headers: &mut HeaderMap, asked_host: Option<HeaderValue>) {
    headers.entry(X_FORWARDED_PROTO).or_insert(HeaderValue::from_static("http"));
    if let Some(host) = asked_host {
        headers.entry(X_FORWARDED_HOST).or_insert(host);
    }
}

/// Make one line of several. HTTP/2 may split `Cookie`, HTTP/1.1 may not (RFC 9113, 8.2.3).
fn join_lines(headers: &mut HeaderMap, name: HeaderName, by: &[u8]) {
    let lines: Vec<&[u8]> = headers.get_all(&name).iter().map(HeaderValue::as_bytes).collect();
    if lines.len() > 1 {
        let line = HeaderValue::from_bytes(&lines.join(by)).expect("made of field values");
        headers.insert(name, line);
    }
}

/// The lower-case members of a comma-separated field.
pub(super) fn names_in(headers: &HeaderMap, field: HeaderName) -> impl Iterator<Item = String> {
    headers
        .get_all(field)
        .iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
}

/// A problem of ours (RFC 9457). It tells the client nothing of the upstream but that it failed.
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
        detail: "The upstream did not answer as it should. The request may have been executed.",
    };
    const TIMED_OUT: Problem = Problem {
        status: StatusCode::GATEWAY_TIMEOUT,
        kind: "urn:ibid:problem:outcome-unknown",
        title: "The outcome of the request is unknown",
        detail: "The request was sent, and no answer came in time.",
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

    fn answer(&self, fate: ExecutionHint) -> Response<ForwardBody> {
        let body = serde_json::json!({
            "type": self.kind, "title": self.title, "status": self.status.as_u16(), "detail": self.detail,
        });
        let mut answer = Response::new(Either::Right(Full::from(body.to_string())));
        *answer.status_mut() = self.status;
        let headers = answer.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        answer.extensions_mut().insert(fate);
        answer
    }
}

/// Runs hyper's tasks with never two of them at work at the same moment.
///
/// hyper opens a stream, and in its next line asks the connection whether it is still good. If a GOAWAY
/// was read in between, the stream gets that error whatever its id, and one that the peer did take could
/// pass for one that it did not. Streams are opened and frames are read by different tasks, all of them
/// run by this executor; with one lock around every poll nothing is read in between, and a GOAWAY means
/// what [`is_refusal`] takes it to mean. The polls are short, and h2 has a lock of its own around most.
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
            // A panic of another task leaves nothing half-done here: the lock guards no data.
            let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
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

/// How long an unused connection is kept. Many servers close theirs after 5 s (Node's default), and a
/// request written while the close is on its way is a request of unknown outcome.
const POOL_IDLE_FOR: Duration = Duration::from_secs(4);

/// How many unused connections are kept: enough for the next burst, an eighth of what we serve at most.
/// With the time above, more would only be closed again.
const POOL_IDLE_MAX: usize = 512;

/// HTTP/2 multiplexes everything over one connection: if that is dead, ten seconds of requests hang.
const H2_PING_EVERY: Duration = Duration::from_secs(10);
const H2_PONG_WITHIN: Duration = Duration::from_secs(10);

/// Most header lines of an answer over HTTP/1.1. An answer refused for them is an executed request of unknown outcome,
/// and hyper's own 100 is less than some servers send.
const H1_ANSWER_LINES_MAX: usize = 1000;

/// Largest field section of an answer over HTTP/2. An answer refused for its size is an executed request
/// of unknown outcome, so it is generous: hyper's own 16 KiB is less than common servers send.
const H2_HEADER_LIST_BYTES_MAX: u32 = 256 * 1024;
