//! The fixture upstream for HTTP/2 with prior knowledge: it refuses, resets and goes away on demand.
//!
//! Built on the `h2` crate, except for GOAWAY: `h2` only ever names the last stream it has seen, and the tests need
//! one below it. That frame is written by hand on a second handle to the socket.
//!
//! Directives in `x-fixture`, next to `status`, `body`, `bytes`, `header`, `echo`, `gate` and `delay` of
//! [`crate::upstream`]:
//!
//! | directive | effect |
//! | --- | --- |
//! | `refuse` | RST_STREAM with REFUSED_STREAM before the body is read; counts as `refused`, not as executed |
//! | `goaway=below` | GOAWAY whose last stream is the one before this; later requests on the connection are `refused` |
//! | `goaway=at` | read the request, GOAWAY whose last stream is the newest accepted, then close |
//! | `reset=internal` `reset=cancel` | read the request, then RST_STREAM with that code |

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{HeaderName, HeaderValue, Request, Response};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

use crate::upstream::{Behaviour, Ledger, ReservedPort, RunGate, SeenRequest, Tally, content};

/// A running HTTP/2 fixture; dropping it stops it and cuts its connections.
#[derive(Debug)]
pub struct UpstreamH2 {
    addr: SocketAddr,
    ledger: Arc<Ledger>,
    serving: JoinHandle<()>,
}

impl UpstreamH2 {
    /// Starts on a free loopback port.
    pub async fn start() -> UpstreamH2 {
        let (addr, listener) = ReservedPort::port().listen();
        let ledger = Arc::new(Ledger::default());
        let serving = tokio::spawn(accept(listener, Arc::clone(&ledger)));
        UpstreamH2 { addr, ledger, serving }
    }

    /// Returns the address that it listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `http://address`, without a path.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Returns how often requests with this key were executed, that is, read to their end.
    pub fn executions(&self, key: &str) -> usize {
        self.tally().per_key.get(key).copied().unwrap_or_default()
    }

    /// Returns the number of executed requests.
    pub fn total(&self) -> usize {
        self.tally().total
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
}

impl Drop for UpstreamH2 {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn accept(listener: TcpListener, ledger: Arc<Ledger>) {
    // Dropped with this task, and every connection with it.
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        while connections.try_join_next().is_some() {}
        ledger.count(|tally| tally.connections += 1);
        let ledger = Arc::clone(&ledger);
        connections.spawn(async move {
            let _ = converse(stream, &ledger).await;
            ledger.count(|tally| tally.closed += 1);
        });
    }
}

async fn converse(stream: TcpStream, ledger: &Arc<Ledger>) -> Result<(), h2::Error> {
    stream.set_nodelay(true).expect("nodelay on a fresh socket");
    let (stream, mut by_hand) = two_handles(stream);
    let number = ledger.tally().connections;
    let mut connection = h2::server::handshake(stream).await?;
    // Streams are served on tasks, because the connection must be polled for their frames to move. The tasks are
    // dropped with it, so that no stream outlives its connection.
    let mut streams = JoinSet::new();
    // The stream that a truthful GOAWAY names: every stream up to it may have been executed.
    let mut newest = 0;
    // Set once a GOAWAY declared later streams lost. Executing one of them would make the frame untrue.
    let mut gone = false;
    loop {
        let accepted = tokio::select! {
            accepted = connection.accept() => accepted,
            Some(served) = streams.join_next() => {
                // `goaway=at`: the frame first, then our return closes the connection.
                if let Ok(Some(GoAway)) = served {
                    let _ = by_hand.write_all(&goaway_frame(newest)).await;
                    return Ok(());
                }
                continue;
            }
        };
        let Some(accepted) = accepted else { return Ok(()) };
        let (request, mut respond) = accepted?;
        ledger.count(|tally| tally.begun += 1);
        let behaviour = ledger.behaviour_for(&fields_of(&request));
        let asked = behaviour.h2.as_deref();
        if asked == Some("goaway=below") && !gone {
            let _ = by_hand.write_all(&goaway_frame(newest)).await;
            gone = true;
        }
        if gone {
            // Kept, not dropped: a dropped stream is reset, and the reset would race the GOAWAY.
            streams.spawn(async move {
                std::future::pending::<()>().await;
                drop((request, respond));
                None
            });
            ledger.count(|tally| tally.refused += 1);
            continue;
        }
        newest = u32::from(respond.stream_id());
        match asked {
            Some("refuse") => {
                respond.send_reset(Reason::REFUSED_STREAM);
                ledger.count(|tally| tally.refused += 1);
            }
            _ => {
                let ledger = Arc::clone(ledger);
                streams.spawn(serve(request, respond, behaviour, number, ledger));
            }
        }
    }
}

/// Tells the connection to close, with all streams it has accepted.
struct GoAway;

async fn serve(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    behaviour: Behaviour,
    connection: usize,
    ledger: Arc<Ledger>,
) -> Option<GoAway> {
    let headers = fields_of(&request);
    let (head, mut stream) = request.into_parts();
    let mut body = Vec::new();
    while let Some(data) = stream.data().await {
        let data = data.ok()?;
        body.extend_from_slice(&data);
        let _ = stream.flow_control().release_capacity(data.len());
    }
    let target = head.uri.path_and_query().map_or("*", |it| it.as_str()).to_owned();
    let method = head.method.to_string();
    let logged = SeenRequest { method, target, headers, body, trailers: Vec::new(), connection };
    ledger.log_executed(logged.clone());
    ledger.hold(&behaviour).await;
    match behaviour.h2.as_deref() {
        Some("goaway=at") => return Some(GoAway),
        Some("reset=internal") => respond.send_reset(Reason::INTERNAL_ERROR),
        Some("reset=cancel") => respond.send_reset(Reason::CANCEL),
        Some(_) => respond.send_reset(Reason::PROTOCOL_ERROR),
        None => answer(&mut respond, &behaviour, &logged).await?,
    }
    None
}

async fn answer(
    respond: &mut SendResponse<Bytes>,
    behaviour: &Behaviour,
    logged: &SeenRequest,
) -> Option<()> {
    let mut response = Response::new(());
    *response.status_mut() = behaviour.status.try_into().ok()?;
    for (name, value) in &behaviour.headers {
        let name = HeaderName::from_bytes(name).ok()?;
        response.headers_mut().append(name, HeaderValue::from_bytes(value).ok()?);
    }
    let mut body = Bytes::from(content(&behaviour.body, logged));
    let mut stream = respond.send_response(response, body.is_empty()).ok()?;
    // In steps that fit the peer's window, or a big body would be in memory twice.
    while !body.is_empty() {
        stream.reserve_capacity(body.len());
        let room = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await?.ok()?;
        let step = body.split_to(room.min(body.len()));
        stream.send_data(step, body.is_empty()).ok()?;
    }
    Some(())
}

fn fields_of(request: &Request<RecvStream>) -> crate::client::Fields {
    request.headers().iter().map(|(n, v)| (n.as_str().as_bytes().to_vec(), v.as_bytes().to_vec())).collect()
}

/// Returns the socket for `h2`, and a second handle on it for the frame that `h2` would not write.
fn two_handles(stream: TcpStream) -> (TcpStream, TcpStream) {
    let first = stream.into_std().expect("a socket without pending use");
    let second = first.try_clone().expect("a second handle");
    let tokio = |it| TcpStream::from_std(it).expect("the socket is non-blocking already");
    (tokio(first), tokio(second))
}

/// Encodes a GOAWAY (RFC 9113, 6.8): length 8, type 7, no flags, stream 0, then the last stream and NO_ERROR.
fn goaway_frame(last_stream: u32) -> Vec<u8> {
    let mut frame = vec![0, 0, 8, 7, 0, 0, 0, 0, 0];
    frame.extend_from_slice(&last_stream.to_be_bytes());
    frame.extend_from_slice(&[0; 4]);
    frame
}
