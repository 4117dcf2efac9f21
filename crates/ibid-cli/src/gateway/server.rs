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
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tower::ServiceExt;
use tower_service::Service;

use super::upgrade::TunnelSlot;

/// Serve until `shutdown` is ready, then drain: no new connections, what runs may finish until
/// [`ServerLimits::drain_for`] is over, and what is left then is cut.
///
/// Each request carries its [`PeerAddr`] as an extension.
pub(crate) async fn serve<S, B>(
    listener: TcpListener,
    service: S,
    limits: ServerLimits,
    shutdown: impl Future<Output = ()>,
) -> Drained
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    let builder = Arc::new(limits.builder());
    let slots = Arc::new(Semaphore::new(limits.connections_max));
    let graceful = GracefulShutdown::new();
    let (draining, drains) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        // The slot first and the socket second: a connection beyond the bound waits in the kernel's
        // queue, where it costs us nothing.
        let next = async {
            let slot = Arc::clone(&slots).acquire_owned().await.expect("nobody closes the semaphore");
            (accept(&listener).await, slot)
        };
        let ((stream, peer), slot) = tokio::select! {
            biased;
            () = &mut shutdown => break,
            next = next => next,
            // Reap as they end, or the set would grow with every connection ever made.
            Some(_) = connections.join_next() => continue,
        };
        let ours = Conversation { stream, peer, slot, watcher: graceful.watcher(), drains: drains.clone() };
        connections.spawn(ours.run(Arc::clone(&builder), service.clone(), limits.first_head_for));
    }
    drop(listener);
    draining.send_replace(true);
    drain(graceful, connections, limits.drain_for).await
}

/// The address a request came from: the other end of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerAddr(pub(crate) SocketAddr);

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
    /// How long requests may go on after shutdown was asked for.
    pub(crate) drain_for: Duration,
}

impl Default for ServerLimits {
    fn default() -> ServerLimits {
        ServerLimits {
            // Each takes a descriptor here and perhaps one towards the upstream: below ten thousand in all.
            // Under a soft limit of 1024 files accepting will wait long before this bound does.
            connections_max: 4096,
            // A head is one or two packets. This leaves time for several lost ones, and a client that only
            // connects cannot hold its slot for longer.
            first_head_for: Duration::from_secs(15),
            // Above the 60 s of the usual load balancers: whoever sends requests should be the one to close,
            // or a request meets a connection that is just going away.
            next_head_for: Duration::from_secs(75),
            // Cookies and tokens fit 8 KiB nearly everywhere; common servers take 16 to 64.
            head_bytes_max: 64 * 1024,
            // RFC 9113 advises at least 100. Each stream may hold a buffered body, so not many more.
            h2_streams_max: 128,
            // NAT tables forget a silent connection after some minutes; this is well before.
            h2_ping_every: Duration::from_secs(20),
            h2_pong_within: Duration::from_secs(20),
            // Orchestrators kill after 30 s by default; 5 s are left to close the store.
            drain_for: Duration::from_secs(25),
        }
    }
}

impl ServerLimits {
    fn builder(&self) -> Builder<TokioExecutor> {
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(self.next_head_for)
            .max_buf_size((self.head_bytes_max as usize).max(H1_BUFFER_MIN));
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(self.h2_streams_max)
            .max_header_list_size(self.head_bytes_max)
            .keep_alive_interval(self.h2_ping_every)
            .keep_alive_timeout(self.h2_pong_within);
        builder
    }
}

/// One accepted connection and what it holds while it lasts.
struct Conversation {
    stream: TcpStream,
    peer: SocketAddr,
    slot: OwnedSemaphorePermit,
    watcher: Watcher,
    /// True once a drain has begun.
    drains: watch::Receiver<bool>,
}

impl Conversation {
    async fn run<S, B>(self, builder: Arc<Builder<TokioExecutor>>, service: S, first_head_for: Duration)
    where
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        let Conversation { stream, peer, slot, watcher, mut drains } = self;
        // Answers are written whole; waiting to fill a packet would only delay them.
        let _ = stream.set_nodelay(true);
        let heard = Arc::new(AtomicBool::new(false));
        let hearing = Arc::clone(&heard);
        let tunnel = TunnelSlot::default();
        let tunnelling = tunnel.clone();
        let service = service_fn(move |mut request: Request<Incoming>| {
            hearing.store(true, Ordering::Relaxed);
            request.extensions_mut().insert(PeerAddr(peer));
            request.extensions_mut().insert(tunnelling.clone());
            service.clone().oneshot(request)
        });
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
        let mut conversation = pin!(watcher.watch(connection));
        // hyper's own timer starts once the protocol is known, so a client that sends nothing, or only
        // the `P` that POST and the HTTP/2 preface share, would hold its slot for ever.
        let ended = tokio::time::timeout(first_head_for, &mut conversation).await;
        let ended = match ended {
            Err(_) if !heard.load(Ordering::Relaxed) => {
                tracing::debug!(%peer, "no request in time, connection closed");
                return;
            }
            Err(_) => conversation.await,
            Ok(ended) => ended,
        };
        if let Err(error) = ended {
            // The client's doing in nearly every case: hung up, timed out, spoke no HTTP.
            tracing::debug!(%peer, error, "connection ended early");
        }
        if let Some(tunnel) = tunnel.take() {
            tokio::select! {
                () = tunnel.run() => {}
                // An error means that the server is gone, which is also an end.
                _ = drains.wait_for(|draining| *draining) => {}
            }
        }
        drop(slot);
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

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

async fn drain(graceful: GracefulShutdown, mut connections: JoinSet<()>, drain_for: Duration) -> Drained {
    while connections.try_join_next().is_some() {}
    let open = connections.len();
    let finishing = async {
        graceful.shutdown().await;
        while connections.join_next().await.is_some() {}
    };
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
