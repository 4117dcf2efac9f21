//! The accept loop: serves HTTP/1.1 and HTTP/2 (with prior knowledge) on one port, and drains at shutdown.
//!
//! It bounds what a client can hold: connections, half-sent heads, streams. It knows nothing of keys, routes or the
//! upstream.

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
use super::connections::{Connection, ConnectionGuard, ConnectionVerdict, Connections, IdleLimits, Socket};
use super::replies::{Buffers, StreamExecutor, counted_reply};
use super::upgrade::Tunnel;
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

/// Serves until `shutdown` resolves, then drains: it accepts no new connections, lets running requests finish within
/// [`ServerLimits::drain_for`], and cuts the rest.
///
/// Each request carries its [`Connection`] as an extension.
pub(crate) async fn serve<S, B>(
    listener: TcpListener,
    service: S,
    limits: ServerLimits,
    shutdown: impl Future<Output = ()>,
) -> DrainStats
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    serve_behind(ListenerState::new(&limits), listener, service, limits, shutdown).await
}

/// Like [`serve`], with a [`ListenerState`] that the caller shares.
pub(crate) async fn serve_behind<S, B>(
    door: ListenerState,
    listener: TcpListener,
    service: S,
    limits: ServerLimits,
    shutdown: impl Future<Output = ()>,
) -> DrainStats
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
        // The socket first and the slot second, so that an idle connection is closed only when a client waits. At most one
        // socket waits here without a slot; the others wait in the kernel's accept queue, where they cost nothing.
        //
        // Invariant: only a shutdown drops this future, because an accepted socket that waits for its slot is closed with
        // it, and its client gets no response.
        let next = async {
            let accepted = accept(&listener).await;
            (accepted, door.connections.slot().await)
        };
        let ((stream, peer), slot) = tokio::select! {
            biased;
            () = &mut shutdown => break,
            next = next => next,
        };
        // Reap the tasks that have ended. Otherwise the set would grow with every connection.
        while connections.try_join_next().is_some() {}
        let conversation =
            Conversation { stream, slot, registered: door.connections.open(peer), drains: drains.clone() };
        connections.spawn(conversation.run(
            Arc::clone(&builder),
            service.clone(),
            limits,
            Arc::clone(&door.buffers),
        ));
    }
    drop(listener);
    drop(drains);
    drain(draining, connections, limits.drain_for).await
}

/// Result of a drain, in numbers of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DrainStats {
    /// Connections that were open at shutdown and ended by themselves.
    pub(crate) finished: usize,
    /// Connections that were still busy at the deadline and were cut.
    pub(crate) cut: usize,
}

/// Limits of one server. [`ServerLimits::of`] gives the reason for each default.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerLimits {
    /// Most connections open at once; the next one waits for a slot.
    pub(crate) connections_max: usize,
    /// Longest time from connecting to the end of the first request's head.
    pub(crate) first_head_for: Duration,
    /// Longest time from the last response to the end of the next request's head (HTTP/1.1), and so the longest time that
    /// an idle connection is kept.
    pub(crate) next_head_for: Duration,
    /// Longest HTTP/1.1 head, and largest HTTP/2 header list.
    pub(crate) head_bytes_max: u32,
    /// Most requests open at once on one HTTP/2 connection.
    pub(crate) h2_streams_max: u32,
    /// Interval of pings to an HTTP/2 client.
    pub(crate) h2_ping_every: Duration,
    /// Longest time that an HTTP/2 client may take to answer a ping.
    pub(crate) h2_pong_within: Duration,
    /// Most resets on one HTTP/2 connection: streams that the client reset before they were accepted, or that we reset
    /// because of the client's errors.
    pub(crate) h2_resets_max: usize,
    /// Most bytes of request bodies and replies in memory.
    pub(crate) buffered_bytes_max: u64,
    /// Most bytes of replies in memory.
    pub(crate) reply_bytes_max: u64,
    /// Longest time that a client may read nothing of its reply.
    pub(crate) stall_for: Duration,
    /// Longest time that requests may still run after a shutdown was requested.
    pub(crate) drain_for: Duration,
}

impl Default for ServerLimits {
    fn default() -> ServerLimits {
        ServerLimits::of(&ServerConfig::default())
    }
}

impl ServerLimits {
    /// Returns the limits that `[server]` sets (its schema gives the reasons), and those that no key sets.
    pub(crate) fn of(server: &ServerConfig) -> ServerLimits {
        ServerLimits {
            connections_max: server.max_connections as usize,
            first_head_for: server.header_timeout,
            next_head_for: server.idle_timeout,
            // Cookies and tokens fit into 8 KiB nearly everywhere; common servers accept 16 to 64 KiB.
            head_bytes_max: 64 * 1024,
            h2_streams_max: server.max_streams,
            h2_resets_max: server.max_resets as usize,
            // NAT tables drop a silent connection after some minutes; this is well before that.
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

/// One accepted connection with its slot and its registration.
struct Conversation {
    stream: TcpStream,
    slot: OwnedSemaphorePermit,
    registered: ConnectionGuard,
    /// Becomes `true` when a drain starts.
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
        // Responses are written in one piece, so waiting to fill a packet would only delay them.
        let _ = stream.set_nodelay(true);
        let request_connection = Arc::clone(&connection);
        let service = service_fn(move |mut request: Request<Incoming>| {
            let (busy, buffers) = (request_connection.begin(), Arc::clone(&buffers));
            // A single extension for everything about the connection, because each costs an allocation per request.
            request.extensions_mut().insert(Arc::clone(&request_connection));
            let response = service.clone().oneshot(request);
            async move { response.await.map(|response| counted_reply(response, busy, buffers)) }
        });
        let socket = Socket::new(stream, Arc::clone(&connection), slot);
        let mut conversation = pin!(builder.serve_connection_with_upgrades(TokioIo::new(socket), service));
        // hyper has a timer only for HTTP/1.1 heads, and starts it only when the protocol is known. So every connection is
        // also checked from here: it may send nothing, only answer pings, or read nothing.
        let mut look = pin!(tokio::time::sleep(patience.first_check_after()));
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
                order = connection.wait_for_order(is_leaving) => order,
                () = &mut look => judge(&connection, &patience, is_leaving),
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
            report_early_end(peer, &*error);
        }
        if let Some(tunnel) = connection.tunnel.take() {
            run_tunnel(tunnel, &connection, drains).await;
        }
    }
}

/// Decides what to do with a connection whose turn to be checked has come.
fn judge(connection: &Connection, patience: &IdleLimits, is_leaving: bool) -> ConnectionVerdict {
    match connection.look(patience) {
        _ if is_leaving && !connection.is_busy() => ConnectionVerdict::Close("it was asked to leave"),
        ConnectionVerdict::GoAway => {
            bounds::count_reached(Bound::Idle);
            ConnectionVerdict::GoAway
        }
        verdict => verdict,
    }
}

fn report_early_end(peer: SocketAddr, error: &(dyn StdError + Send + Sync + 'static)) {
    if has_too_many_resets(error) {
        bounds::count_reached(Bound::Resets);
    }
    // Nearly always caused by the client: it hung up, timed out or did not speak HTTP.
    tracing::debug!(%peer, error, "connection ended early");
}

/// Runs the tunnel that a connection has become, until it ends or a drain starts.
async fn run_tunnel(tunnel: Tunnel, connection: &Arc<Connection>, mut drains: watch::Receiver<bool>) {
    // Busy, so that a quiet tunnel is not closed to make room.
    let _busy = connection.begin();
    tokio::select! {
        () = tunnel.run() => {}
        // An error means that the server was dropped, which also ends the tunnel.
        _ = drains.wait_for(|draining| *draining) => {}
    }
}

/// Accepts one connection, however long that takes.
async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            // The client left before we accepted its connection; the next one is unaffected.
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                // Out of file descriptors or memory. Ending here would turn a shortage into an outage, and an immediate
                // retry would burn the CPU time that could relieve it.
                tracing::error!(%error, "cannot accept connections, trying again");
                tokio::time::sleep(ACCEPT_RETRY_AFTER).await;
            }
        }
    }
}

/// Returns whether h2 closed the connection because of too many resets, by the client or because of its errors.
fn has_too_many_resets(error: &(dyn StdError + 'static)) -> bool {
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

async fn drain(
    draining: watch::Sender<bool>,
    mut connections: JoinSet<()>,
    drain_for: Duration,
) -> DrainStats {
    while connections.try_join_next().is_some() {}
    let open = connections.len();
    draining.send_replace(true);
    let finishing = async { while connections.join_next().await.is_some() {} };
    let cut = match tokio::time::timeout(drain_for, finishing).await {
        Ok(()) => 0,
        Err(_) => {
            // Connections that ended at the last moment stay in the set until they are reaped.
            while connections.try_join_next().is_some() {}
            let cut = connections.len();
            connections.shutdown().await;
            cut
        }
    };
    DrainStats { finished: open - cut, cut }
}

/// Pause after an accept that failed for lack of resources: long enough for a connection to end, too short to be
/// noticed as an outage.
const ACCEPT_RETRY_AFTER: Duration = Duration::from_millis(100);

/// Smallest read buffer that hyper accepts; it panics below this.
const H1_BUFFER_MIN: usize = 8192;

/// Bytes of a request body that an HTTP/2 client may send before we read them: a few round trips of a fast line. The
/// second limit covers all streams of a connection, so it is the most that one connection holds unread.
const H2_STREAM_WINDOW: u32 = 256 * 1024;
const H2_CONNECTION_WINDOW: u32 = 1024 * 1024;

/// Bytes of a reply that h2 buffers before it sends them: enough to fill a round trip, and small enough that a hundred
/// slow streams stay below what one connection may hold unread.
const H2_SEND_BUFFER: usize = 64 * 1024;

/// Time that an idle connection has to close after it was asked to: a few round trips, for GOAWAY and its PING.
const LEAVE_WITHIN: Duration = Duration::from_secs(1);
