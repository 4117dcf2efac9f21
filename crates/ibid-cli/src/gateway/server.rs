//! The accept loop: sockets in, requests to a service, and an orderly end.
//!
//! It speaks HTTP/1.1 and HTTP/2 with prior knowledge on one port, and bounds what a client can hold: a
//! connection, a half-sent head, a pile of streams. It knows nothing of keys, routes or the upstream.

use std::convert::Infallible;
use std::error::Error as StdError;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tower::ServiceExt;
use tower_service::Service;

use super::bounds::{self, Bound};
use super::connections::{ConnectionGuard, ConnectionVerdict, Connections, IdleLimits, Socket};
use super::replies::{Buffers, StreamExecutor, counted_reply};
use crate::config::ServerConfig;

/// The state that the connections of one listener share.
#[derive(Clone)]
pub(crate) struct ListenerState {
    pub(crate) connections: Arc<Connections>,
    pub(crate) buffers: Arc<Buffers>,
}

impl ListenerState {
    pub(crate) fn new(limits: &ServerLimits) -> ListenerState {
        let connections = Arc::new(Connections::new(limits.connections_max));
        let buffers = Buffers::new(
            Arc::clone(&connections),
            limits.buffered_bytes_max,
            limits.reply_bytes_max,
            limits.stall_for,
        );
        ListenerState { connections, buffers: Arc::new(buffers) }
    }
}

/// Serves until `shutdown` is ready, then drains: no new connections, what runs may finish until
/// [`ServerLimits::drain_for`] is over, and what is left then is cut.
///
/// Each request carries its [`Connection`](super::connections::Connection) as an extension.
pub(crate) async fn serve<S, B>(
    listener: TcpListener,
    service: S,
    limits: ServerLimits,
    shutdown: impl Future<Output = ()>,
) -> Drained
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    serve_behind(ListenerState::new(&limits), listener, service, limits, shutdown).await
}

/// As [`serve`], with what the connections hold together in the caller's hands.
pub(crate) async fn serve_behind<S, B>(
    door: ListenerState,
    listener: TcpListener,
    service: S,
    limits: ServerLimits,
    shutdown: impl Future<Output = ()>,
) -> Drained
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    let builder = Arc::new(limits.builder());
    let (draining, drains) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        // The socket first and the slot second: only when a client waits is an idle connection closed for it. At most
        // one socket waits here without a slot; the others wait in the kernel's queue, where they cost nothing.
        let next = async {
            let accepted = accept(&listener).await;
            (accepted, door.connections.slot().await)
        };
        let ((stream, peer), slot) = tokio::select! {
            biased;
            () = &mut shutdown => break,
            next = next => next,
            // Reap as they end, or the set would grow with every connection ever made.
            Some(_) = connections.join_next() => continue,
        };
        let ours =
            Conversation { stream, slot, registered: door.connections.open(peer), drains: drains.clone() };
        connections.spawn(ours.run(Arc::clone(&builder), service.clone(), limits, Arc::clone(&door.buffers)));
    }
    drop(listener);
    drop(drains);
    drain(draining, connections, limits.drain_for).await
}

/// How the serving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Drained {
    /// Connections that were open at shutdown and ended by themselves.
    pub(crate) finished: usize,
    /// Connections that were still busy at the deadline and were cut.
    pub(crate) cut: usize,
}

/// What one server holds at most. Every default has its reason beside it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerLimits {
    /// Connections open at once; the next one waits to be accepted.
    pub(crate) connections_max: usize,
    /// How long a client may take from connecting to the end of its first request's head.
    pub(crate) first_head_for: Duration,
    /// How long it may take from the last answer to the end of the next head (HTTP/1.1). So it is also how
    /// long an idle connection is kept.
    pub(crate) next_head_for: Duration,
    /// Longest HTTP/1.1 head, and largest HTTP/2 header list.
    pub(crate) head_bytes_max: u32,
    /// Requests open at once on one HTTP/2 connection.
    pub(crate) h2_streams_max: u32,
    /// How often an HTTP/2 client is asked whether it is still there.
    pub(crate) h2_ping_every: Duration,
    /// How long it may take to say yes.
    pub(crate) h2_pong_within: Duration,
    /// Streams reset by the client before they were taken up, or by us for the client's errors, on one HTTP/2 connection.
    pub(crate) h2_resets_max: usize,
    /// Bytes of request bodies and replies in memory.
    pub(crate) buffered_bytes_max: u64,
    /// Bytes of replies in memory.
    pub(crate) reply_bytes_max: u64,
    /// How long a client may read nothing of its reply.
    pub(crate) stall_for: Duration,
    /// How long requests may go on after shutdown was asked for.
    pub(crate) drain_for: Duration,
}

impl Default for ServerLimits {
    fn default() -> ServerLimits {
        ServerLimits::of(&ServerConfig::default())
    }
}

impl ServerLimits {
    /// The limits that `[server]` sets, whose list of keys has the reasons, and those that it doesn't.
    pub(crate) fn of(server: &ServerConfig) -> ServerLimits {
        ServerLimits {
            connections_max: server.max_connections as usize,
            first_head_for: server.header_timeout,
            next_head_for: server.idle_timeout,
            // Cookies and tokens fit 8 KiB nearly everywhere; common servers take 16 to 64.
            head_bytes_max: 64 * 1024,
            h2_streams_max: server.max_streams,
            h2_resets_max: server.max_resets as usize,
            // NAT tables forget a silent connection after some minutes; this is well before.
            h2_ping_every: Duration::from_secs(20),
            h2_pong_within: Duration::from_secs(20),
            buffered_bytes_max: server.max_buffered_bytes,
            reply_bytes_max: server.max_reply_bytes,
            stall_for: server.stall_timeout,
            drain_for: server.drain_for,
        }
    }

    fn builder(&self) -> Builder<StreamExecutor> {
        let mut builder = Builder::new(StreamExecutor);
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(self.next_head_for)
            .max_buf_size((self.head_bytes_max as usize).max(H1_BUFFER_MIN));
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(self.h2_streams_max)
            .max_pending_accept_reset_streams(self.h2_resets_max)
            .max_local_error_reset_streams(self.h2_resets_max)
            .initial_stream_window_size(H2_STREAM_WINDOW)
            .initial_connection_window_size(H2_CONNECTION_WINDOW)
            .max_send_buf_size(H2_SEND_BUFFER)
            .max_header_list_size(self.head_bytes_max)
            .keep_alive_interval(self.h2_ping_every)
            .keep_alive_timeout(self.h2_pong_within);
        builder
    }

    fn patience(&self) -> IdleLimits {
        IdleLimits {
            first_head_for: self.first_head_for,
            idle_for: self.next_head_for,
            stall_for: self.stall_for,
        }
    }
}

/// One accepted connection and what it holds while it lasts.
struct Conversation {
    stream: TcpStream,
    slot: OwnedSemaphorePermit,
    registered: ConnectionGuard,
    /// True once a drain has begun.
    drains: watch::Receiver<bool>,
}

impl Conversation {
    async fn run<S, B>(
        self,
        builder: Arc<Builder<StreamExecutor>>,
        service: S,
        limits: ServerLimits,
        buffers: Arc<Buffers>,
    ) where
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
        B: Body<Data = Bytes> + Unpin + Send + 'static,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        let Conversation { stream, slot, registered, mut drains } = self;
        let (connection, patience) = (Arc::clone(&registered.connection), limits.patience());
        let peer = connection.peer;
        // Answers are written whole; waiting to fill a packet would only delay them.
        let _ = stream.set_nodelay(true);
        let ours = Arc::clone(&connection);
        let service = service_fn(move |mut request: Request<Incoming>| {
            let (busy, buffers) = (ours.begin(), Arc::clone(&buffers));
            // One extension for all that is known of the connection: each costs an allocation at every request.
            request.extensions_mut().insert(Arc::clone(&ours));
            let answer = service.clone().oneshot(request);
            async move { answer.await.map(|answer| counted_reply(answer, busy, buffers)) }
        });
        let socket = Socket::new(stream, Arc::clone(&connection), slot);
        let mut conversation = pin!(builder.serve_connection_with_upgrades(TokioIo::new(socket), service));
        // hyper has a timer for the heads of HTTP/1.1 only, and that one starts once the protocol is known. So every
        // connection is looked at from here, too: one that sends nothing, one that only answers PING, one that reads
        // nothing.
        let mut look = pin!(tokio::time::sleep(patience.shortest()));
        let (mut is_draining, mut is_leaving) = (false, false);
        let ended = loop {
            let verdict = tokio::select! {
                biased;
                ended = &mut conversation => break ended,
                _ = drains.changed(), if !is_draining => {
                    is_draining = true;
                    conversation.as_mut().graceful_shutdown();
                    continue;
                }
                told = connection.told(is_leaving) => told,
                () = &mut look => match connection.look(&patience) {
                    _ if is_leaving && !connection.is_busy() => ConnectionVerdict::Close("it was asked to leave"),
                    ConnectionVerdict::GoAway => {
                        bounds::reached(Bound::Idle);
                        ConnectionVerdict::GoAway
                    }
                    verdict => verdict,
                },
            };
            match verdict {
                ConnectionVerdict::Close(why) => {
                    tracing::debug!(%peer, why, "connection closed");
                    return;
                }
                ConnectionVerdict::GoAway => {
                    is_leaving = true;
                    conversation.as_mut().graceful_shutdown();
                    look.as_mut().reset(Instant::now() + LEAVE_WITHIN);
                }
                ConnectionVerdict::LookAgainIn(time) => look.as_mut().reset(Instant::now() + time),
            }
        };
        if let Err(error) = ended {
            if is_calmed(&*error) {
                bounds::reached(Bound::Resets);
            }
            // The client's doing in nearly every case: hung up, timed out, spoke no HTTP.
            tracing::debug!(%peer, error, "connection ended early");
        }
        if let Some(tunnel) = connection.tunnel.take() {
            // Not idle, however quiet it is: it isn't closed to make room.
            let _busy = connection.begin();
            tokio::select! {
                () = tunnel.run() => {}
                // An error means that the server is gone, which is also an end.
                _ = drains.wait_for(|draining| *draining) => {}
            }
        }
    }
}

/// Accept one connection, however long that takes.
async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            // The client was gone before we took its connection: nothing is wrong with the next one.
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                // Out of file descriptors or memory. Ending here would turn a shortage into an outage;
                // trying again at once would burn the core that could relieve it.
                tracing::error!(%error, "cannot accept connections, trying again");
                tokio::time::sleep(ACCEPT_RETRY_AFTER).await;
            }
        }
    }
}

/// Whether h2 has closed the connection because its client reset too many streams, or had them reset.
fn is_calmed(error: &(dyn StdError + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            return error.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM);
        }
        cause = error.source();
    }
    false
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

async fn drain(draining: watch::Sender<bool>, mut connections: JoinSet<()>, drain_for: Duration) -> Drained {
    while connections.try_join_next().is_some() {}
    let open = connections.len();
    draining.send_replace(true);
    let finishing = async { while connections.join_next().await.is_some() {} };
    let cut = match tokio::time::timeout(drain_for, finishing).await {
        Ok(()) => 0,
        Err(_) => {
            // Those that ended in the last moment are in the set until they are reaped.
            while connections.try_join_next().is_some() {}
            let cut = connections.len();
            connections.shutdown().await;
            cut
        }
    };
    Drained { finished: open - cut, cut }
}

/// How long to wait after an accept that failed for want of resources: long enough for some connection
/// to end, short enough not to be felt as an outage.
const ACCEPT_RETRY_AFTER: Duration = Duration::from_millis(100);

/// hyper panics below this size of read buffer.
const H1_BUFFER_MIN: usize = 8192;

/// How much of a request's body an HTTP/2 client may send before it is read: a few round trips of a fast line. The
/// second is for all streams of a connection, and so the most that one connection holds unread.
const H2_STREAM_WINDOW: u32 = 256 * 1024;
const H2_CONNECTION_WINDOW: u32 = 1024 * 1024;

/// How much of a reply h2 takes before it is sent: enough to fill a round trip, and little enough that a hundred slow
/// streams stay below what one connection may hold unread.
const H2_SEND_BUFFER: usize = 64 * 1024;

/// How long an idle connection that was asked to leave may take: some round trips, for GOAWAY and its PING.
const LEAVE_WITHIN: Duration = Duration::from_secs(1);
