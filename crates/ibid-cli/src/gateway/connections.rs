//! The client connections of one listener: counts them, finds idle and stalled ones, and ends one from outside its task.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::HeaderValue;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::bounds::{self, Bound};
use super::replies::{KeptForReply, Reply};
use super::upgrade::TunnelSlot;

/// Every connection of one listener.
pub(crate) struct Connections {
    slots: Arc<Semaphore>,
    connections_max: usize,
    open: Mutex<HashMap<u64, Arc<Connection>>>,
    next_id: AtomicU64,
    clock: ConnectionClock,
    became_idle: Notify,
    /// Number of callers that wait in [`Connections::slot`]. A connection that becomes idle notifies only if there are any.
    waiting: AtomicUsize,
    relief: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Connections {
    pub(crate) fn new(connections_max: usize) -> Connections {
        Connections {
            slots: Arc::new(Semaphore::new(connections_max.min(Semaphore::MAX_PERMITS))),
            connections_max,
            open: Mutex::default(),
            next_id: AtomicU64::new(0),
            clock: ConnectionClock(Instant::now()),
            became_idle: Notify::new(),
            waiting: AtomicUsize::new(0),
            relief: OnceLock::new(),
        }
    }

    /// Sets a function to call when every connection is busy and another one waits for a slot.
    pub(crate) fn when_all_are_busy(&self, relief: impl Fn() + Send + Sync + 'static) {
        // Set once, when the gateway starts; a second call has no meaning and is ignored.
        let _ = self.relief.set(Box::new(relief));
    }

    /// Waits for a slot. While none is free, closes the connection that has been idle longest.
    pub(crate) async fn slot(&self) -> OwnedSemaphorePermit {
        if let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() {
            return slot;
        }
        bounds::count_reached(Bound::Connections);
        let _waiting = SlotWaiter::count(&self.waiting);
        loop {
            // Registered before the search, so that a connection that becomes idle during the search wakes us.
            let mut became_idle = std::pin::pin!(self.became_idle.notified());
            became_idle.as_mut().enable();
            if !self.end_longest_idle()
                && let Some(relief) = self.relief.get()
            {
                relief();
            }
            let freed = Arc::clone(&self.slots).acquire_owned();
            tokio::select! {
                slot = freed => return slot.expect("the semaphore is never closed"),
                () = became_idle => {}
                () = tokio::time::sleep(LOOK_AGAIN_AFTER) => {}
            }
        }
    }

    /// Registers an accepted connection until the returned guard is dropped.
    pub(crate) fn open(self: &Arc<Self>, peer: SocketAddr) -> ConnectionGuard {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let now = self.clock.now();
        let connection = Arc::new(Connection {
            peer,
            // An address is plain ASCII.
            peer_field: HeaderValue::try_from(peer.ip().to_string()).expect("plain ASCII"),
            clock: self.clock,
            all: Arc::clone(self),
            opened: now,
            busy: AtomicUsize::new(0),
            idle_since: AtomicU64::new(now),
            has_request: AtomicBool::new(false),
            runs: AtomicUsize::new(0),
            write_blocked_since: AtomicU64::new(NEVER),
            next_reply: AtomicU64::new(0),
            replies: Mutex::default(),
            order: AtomicU8::new(ORDER_NONE),
            ordered: Notify::new(),
            tunnel: TunnelSlot::default(),
            kept_for_tunnel: OnceLock::new(),
        });
        self.open.lock().insert(id, Arc::clone(&connection));
        ConnectionGuard { id, connections: Arc::clone(self), connection }
    }

    /// Returns whether a connection waits for a slot.
    #[cfg(test)]
    pub(crate) fn has_waiter(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    pub(crate) fn in_use(&self) -> usize {
        self.connections_max.saturating_sub(self.slots.available_permits())
    }

    pub(crate) fn max(&self) -> usize {
        self.connections_max
    }

    /// Returns the counted replies of all open connections.
    pub(crate) fn replies(&self) -> Vec<Arc<Reply>> {
        let open: Vec<Arc<Connection>> = self.open.lock().values().cloned().collect();
        open.iter().flat_map(|connection| connection.replies()).collect()
    }

    /// Asks the connection that has been idle longest to close. Returns `false` if none is idle.
    fn end_longest_idle(&self) -> bool {
        let longest = {
            let open = self.open.lock();
            let idle = open.values().filter(|connection| connection.may_make_room());
            idle.min_by_key(|connection| connection.idle_since.load(Ordering::Relaxed)).cloned()
        };
        match longest {
            Some(connection) => {
                tracing::debug!(peer = %connection.peer, "idle connection closed to make room");
                connection.order(ORDER_LEAVE);
                true
            }
            None => false,
        }
    }
}

/// Counts a caller of [`Connections::slot`] while it waits.
struct SlotWaiter<'a>(&'a AtomicUsize);

impl SlotWaiter<'_> {
    fn count(waiting: &AtomicUsize) -> SlotWaiter<'_> {
        waiting.fetch_add(1, Ordering::SeqCst);
        SlotWaiter(waiting)
    }
}

impl Drop for SlotWaiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A registration of one connection in its listener's list; dropping it removes the connection.
pub(crate) struct ConnectionGuard {
    id: u64,
    connections: Arc<Connections>,
    pub(crate) connection: Arc<Connection>,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.connections.open.lock().remove(&self.id);
    }
}

/// One client connection, as seen from outside its task.
pub(crate) struct Connection {
    pub(crate) peer: SocketAddr,
    /// The peer's address, as a value for `X-Forwarded-For`.
    pub(crate) peer_field: HeaderValue,
    /// Slot in which a request leaves the tunnel that the connection will become.
    pub(crate) tunnel: TunnelSlot,
    clock: ConnectionClock,
    /// The listener's list. Not a lasting cycle: dropping the [`ConnectionGuard`] removes the connection from the list.
    all: Arc<Connections>,
    opened: u64,
    /// Number of requests whose reply has not been fully written.
    busy: AtomicUsize,
    idle_since: AtomicU64,
    has_request: AtomicBool,
    /// Number of guarded runs that this connection started and that have not ended.
    runs: AtomicUsize,
    write_blocked_since: AtomicU64,
    next_reply: AtomicU64,
    replies: Mutex<HashMap<u64, Weak<Reply>>>,
    order: AtomicU8,
    ordered: Notify,
    kept_for_tunnel: OnceLock<KeptForReply>,
}

/// Time-outs for a connection that makes no progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdleLimits {
    pub(crate) first_head_for: Duration,
    pub(crate) idle_for: Duration,
    pub(crate) stall_for: Duration,
}

impl IdleLimits {
    /// Returns the interval between two checks of a connection, short enough that none much outlives its time-outs.
    fn check_interval(&self) -> Duration {
        (self.stall_for / 4).max(CHECK_INTERVAL_MIN)
    }

    /// Returns the time after which a new connection is checked for the first time.
    pub(crate) fn first_check_after(&self) -> Duration {
        self.check_interval().min(self.first_head_for).min(self.idle_for)
    }
}

/// The next step for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionVerdict {
    /// Drop the connection, for this reason.
    Close(&'static str),
    /// Let it finish its requests, accept no more, and close.
    GoAway,
    /// Check the connection again after this time.
    LookAgainIn(Duration),
}

impl Connection {
    /// Counts a request until its reply is written.
    pub(crate) fn begin(self: &Arc<Self>) -> Busy {
        self.has_request.store(true, Ordering::Relaxed);
        self.busy.fetch_add(1, Ordering::AcqRel);
        Busy(Arc::clone(self))
    }

    /// Counts a guarded run. Returns `None` if the connection already has `runs_max` of them.
    pub(crate) fn begin_run(self: &Arc<Self>, runs_max: usize) -> Option<ConnectionRun> {
        let more = |runs: usize| (runs < runs_max).then_some(runs + 1);
        self.runs.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(ConnectionRun(Arc::clone(self)))
    }

    /// Closes the connection at once.
    pub(crate) fn close(&self) {
        self.order(ORDER_CLOSE);
    }

    /// Waits for an order to end the connection and returns it. A connection that is leaving only obeys `Close`.
    pub(crate) async fn wait_for_order(&self, is_leaving: bool) -> ConnectionVerdict {
        loop {
            let next = self.ordered.notified();
            match self.order.load(Ordering::Acquire) {
                ORDER_CLOSE => return ConnectionVerdict::Close("made room"),
                ORDER_LEAVE if !is_leaving => return ConnectionVerdict::GoAway,
                _ => next.await,
            }
        }
    }

    /// Decides whether the connection has been idle or stalled for too long.
    pub(crate) fn look(&self, patience: &IdleLimits) -> ConnectionVerdict {
        let now = self.clock.now();
        let since = |then: u64| Duration::from_micros(now.saturating_sub(then));
        let blocked = self.write_blocked_since.load(Ordering::Relaxed);
        if blocked != NEVER && since(blocked) >= patience.stall_for {
            bounds::count_reached(Bound::Stall);
            return ConnectionVerdict::Close("the client does not read");
        }
        for reply in self.replies() {
            if reply.is_stalled_for(patience.stall_for) {
                bounds::count_reached(Bound::Stall);
                if !reply.end() {
                    return ConnectionVerdict::Close("the client does not read a reply");
                }
            }
        }
        let often = patience.check_interval();
        if !self.has_request.load(Ordering::Relaxed) {
            return match patience.first_head_for.checked_sub(since(self.opened)) {
                None | Some(Duration::ZERO) => ConnectionVerdict::Close("no request in time"),
                Some(left) => ConnectionVerdict::LookAgainIn(left.min(often)),
            };
        }
        if self.busy.load(Ordering::Acquire) > 0 {
            return ConnectionVerdict::LookAgainIn(often);
        }
        match patience.idle_for.checked_sub(since(self.idle_since.load(Ordering::Relaxed))) {
            None | Some(Duration::ZERO) => ConnectionVerdict::GoAway,
            Some(left) => ConnectionVerdict::LookAgainIn(left.min(often)),
        }
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire) > 0
    }

    pub(crate) fn clock(&self) -> ConnectionClock {
        self.clock
    }

    /// Stores what an upgraded request holds until the connection ends.
    pub(super) fn keep_for_tunnel(&self, kept: KeptForReply) {
        // A connection is upgraded once.
        let _ = self.kept_for_tunnel.set(kept);
    }

    /// Lists a reply until [`Connection::forget_reply`].
    pub(super) fn list_reply(&self, make: impl FnOnce(u64) -> Reply) -> Arc<Reply> {
        let id = self.next_reply.fetch_add(1, Ordering::Relaxed);
        let reply = Arc::new(make(id));
        self.replies.lock().insert(id, Arc::downgrade(&reply));
        reply
    }

    pub(super) fn forget_reply(&self, id: u64) {
        self.replies.lock().remove(&id);
    }

    fn replies(&self) -> Vec<Arc<Reply>> {
        // Upgraded into a list first: the last owner of a reply takes this lock when it drops the reply.
        let replies = self.replies.lock();
        let live: Vec<Arc<Reply>> = replies.values().filter_map(Weak::upgrade).collect();
        drop(replies);
        live
    }

    /// Returns whether this connection may be closed to make room for another.
    fn may_make_room(&self) -> bool {
        let idle_for = self.clock.now().saturating_sub(self.idle_since.load(Ordering::Relaxed));
        !self.is_busy()
            && Duration::from_micros(idle_for) >= IDLE_AT_LEAST
            && self.order.load(Ordering::Acquire) == ORDER_NONE
    }

    fn order(&self, order: u8) {
        self.order.fetch_max(order, Ordering::AcqRel);
        self.ordered.notify_one();
    }
}

/// A request that is being answered on a connection.
pub(crate) struct Busy(Arc<Connection>);

impl Busy {
    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.0
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let connection = &self.0;
        // Invariant: `idle_since` is set before `busy` drops to zero. Otherwise the connection could be seen as idle since an
        // earlier pause.
        connection.idle_since.store(connection.clock.now(), Ordering::Relaxed);
        // Sequentially consistent with `SlotWaiter::count`: T1 (here) counts down and sees no waiter; T2 counts itself as
        // waiting and searches; therefore T2 sees the connection idle. Notifying after every request would make all
        // connections contend for one lock.
        if connection.busy.fetch_sub(1, Ordering::SeqCst) == 1
            && connection.all.waiting.load(Ordering::SeqCst) > 0
        {
            connection.all.became_idle.notify_waiters();
        }
    }
}

/// A guarded run that counts towards its connection's limit until it is dropped.
pub(crate) struct ConnectionRun(Arc<Connection>);

impl Drop for ConnectionRun {
    fn drop(&mut self) {
        self.0.runs.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A clock in microseconds since the listener started, which fit an atomic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionClock(Instant);

impl ConnectionClock {
    pub(crate) fn now(self) -> u64 {
        // Far below `NEVER`: half a million years.
        self.0.elapsed().as_micros() as u64
    }
}

/// The socket of a connection, with the slot that it occupies while it is open.
///
/// The slot is here and not in the connection's task, because an upgraded connection leaves that task.
pub(crate) struct Socket {
    stream: TcpStream,
    connection: Arc<Connection>,
    _slot: OwnedSemaphorePermit,
}

impl Socket {
    pub(crate) fn new(stream: TcpStream, connection: Arc<Connection>, slot: OwnedSemaphorePermit) -> Socket {
        Socket { stream, connection, _slot: slot }
    }

    fn track_write<T>(&self, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let blocked = &self.connection.write_blocked_since;
        match written {
            Poll::Pending if blocked.load(Ordering::Relaxed) == NEVER => {
                blocked.store(self.connection.clock.now(), Ordering::Relaxed);
            }
            Poll::Ready(_) if blocked.load(Ordering::Relaxed) != NEVER => {
                blocked.store(NEVER, Ordering::Relaxed);
            }
            _ => {}
        }
        written
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, data);
        self.track_write(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.track_write(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Timestamp that stands for "never".
const NEVER: u64 = u64::MAX;

const ORDER_NONE: u8 = 0;
const ORDER_LEAVE: u8 = 1;
const ORDER_CLOSE: u8 = 2;

/// Least idle time before a connection is closed to make room: a client that sends one request after another keeps its
/// connection.
const IDLE_AT_LEAST: Duration = Duration::from_secs(1);

/// Time that an accepted connection waits before another idle one is closed for it, in case the first one lingers.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(250);

/// Shortest interval between two checks of a connection, however short its time-outs are.
const CHECK_INTERVAL_MIN: Duration = Duration::from_millis(10);
