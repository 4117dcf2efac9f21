//! Replies that are being sent to clients: counts their bytes in memory and ends those that their clients stopped reading.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{AbortHandle, abortable};
use futures_util::task::AtomicWaker;
use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};

use super::bounds::{self, Bound};
use super::connections::{Busy, Connection, Connections};

/// The bytes that requests and replies hold in memory, and their bounds.
pub(crate) struct Buffers {
    connections: Arc<Connections>,
    requests: AtomicU64,
    replies: AtomicU64,
    max_buffered_bytes: u64,
    max_reply_bytes: u64,
    /// A reply without progress for this long may be ended to make room.
    leave_after: Duration,
    last_eased: AtomicU64,
}

impl Buffers {
    pub(crate) fn new(
        connections: Arc<Connections>,
        max_buffered_bytes: u64,
        max_reply_bytes: u64,
        stall_for: Duration,
    ) -> Buffers {
        Buffers {
            connections,
            requests: AtomicU64::new(0),
            replies: AtomicU64::new(0),
            max_buffered_bytes,
            max_reply_bytes,
            leave_after: LEAVE_AFTER.min(stall_for / 2),
            last_eased: AtomicU64::new(0),
        }
    }

    /// Returns the bytes of request bodies and of replies, in this order.
    pub(crate) fn bytes_in_use(&self) -> (u64, u64) {
        (self.requests.load(Ordering::Relaxed), self.replies.load(Ordering::Relaxed))
    }

    /// Returns the bound on all bytes and the bound on replies, in this order.
    pub(crate) fn max(&self) -> (u64, u64) {
        (self.max_buffered_bytes, self.max_reply_bytes)
    }

    /// Returns whether `bytes` more of request bodies fit. If they don't, tries to make room by ending stalled replies.
    pub(crate) fn has_room_for_request(&self, bytes: u64) -> bool {
        let (requests, replies) = self.bytes_in_use();
        let over = (requests + replies + bytes).saturating_sub(self.max_buffered_bytes);
        over == 0 || self.end_stalled_replies(over) >= over || {
            bounds::count_reached(Bound::BufferedBytes);
            false
        }
    }

    /// Returns whether a reply of `bytes` fits. If it doesn't, tries to make room by ending stalled replies.
    pub(crate) fn has_room_for_reply(&self, bytes: u64) -> bool {
        let (requests, replies) = self.bytes_in_use();
        let over_replies = (replies + bytes).saturating_sub(self.max_reply_bytes);
        let over = over_replies.max((requests + replies + bytes).saturating_sub(self.max_buffered_bytes));
        over == 0 || self.end_stalled_replies(over) >= over || {
            bounds::count_reached(Bound::ReplyBytes);
            false
        }
    }

    pub(crate) fn add_request(&self, bytes: u64) {
        self.requests.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn remove_request(&self, bytes: u64) {
        self.requests.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Ends stalled replies if there are too many bytes. Called for each frame of a reply, so it scans all replies at most
    /// once per [`EASE_EVERY`].
    fn ease(&self, now: u64) {
        let (requests, replies) = self.bytes_in_use();
        let over = replies.saturating_sub(self.max_reply_bytes);
        let over = over.max((requests + replies).saturating_sub(self.max_buffered_bytes));
        let last = self.last_eased.load(Ordering::Relaxed);
        if over > 0
            && Duration::from_micros(now.saturating_sub(last)) >= EASE_EVERY
            && self.last_eased.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            self.end_stalled_replies(over);
        }
    }

    /// Ends stalled replies, the longest-stalled first, until `wanted` bytes will be free. Returns how many will be.
    ///
    /// A reply's memory is freed when its connection's task runs, so replies that were ended earlier count too.
    fn end_stalled_replies(&self, wanted: u64) -> u64 {
        let mut free = 0;
        let mut stalled = Vec::new();
        for reply in self.connections.replies() {
            match reply.ended.load(Ordering::Acquire) {
                true => free += reply.held_bytes(),
                false if reply.is_stalled_for(self.leave_after) => stalled.push(reply),
                false => {}
            }
        }
        stalled.sort_by_key(|reply| reply.progress.load(Ordering::Relaxed));
        for reply in stalled {
            if free >= wanted {
                break;
            }
            free += reply.held_bytes();
            bounds::count_reached(Bound::ReplyBytes);
            if !reply.end() {
                reply.busy.connection().close();
            }
        }
        free
    }
}

/// One reply, from its head until its last byte has left memory.
pub(crate) struct Reply {
    id: u64,
    busy: Busy,
    buffers: Arc<Buffers>,
    /// The task of its HTTP/2 stream; `None` on HTTP/1.1.
    stream: Option<AbortHandle>,
    held: AtomicU64,
    /// Time at which the client last read something.
    progress: AtomicU64,
    ended: AtomicBool,
    reader: AtomicWaker,
    /// Dropped when the reply ends.
    _kept: Option<KeptForReply>,
}

impl Reply {
    /// Returns the bytes of this reply in memory.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held.load(Ordering::Acquire)
    }

    /// Returns whether the client has read nothing for this long although there was something to read.
    pub(crate) fn is_stalled_for(&self, time: Duration) -> bool {
        let since = self.now().saturating_sub(self.progress.load(Ordering::Relaxed));
        self.held_bytes() > 0 && Duration::from_micros(since) >= time
    }

    /// Resets the stream of this reply. Returns `false` if that is impossible, so that the connection has to be closed.
    pub(crate) fn end(&self) -> bool {
        let first = !self.ended.swap(true, Ordering::AcqRel);
        match &self.stream {
            // Only the first reset helps: bytes that a stream still holds after it have been handed to the connection.
            Some(stream) if first => {
                stream.abort();
                true
            }
            _ => false,
        }
    }

    fn hold(self: &Arc<Self>, data: Bytes) -> Bytes {
        let bytes = data.len() as u64;
        self.held.fetch_add(bytes, Ordering::AcqRel);
        self.buffers.replies.fetch_add(bytes, Ordering::Relaxed);
        let now = self.now();
        self.progress.store(now, Ordering::Relaxed);
        self.buffers.ease(now);
        Bytes::from_owner(HeldReply { data, counted: bytes, reply: Arc::clone(self) })
    }

    fn now(&self) -> u64 {
        self.busy.connection().clock().now()
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.busy.connection().forget_reply(self.id);
    }
}

/// Bytes of a reply, counted until the connection has written and dropped them.
struct HeldReply {
    data: Bytes,
    counted: u64,
    reply: Arc<Reply>,
}

impl AsRef<[u8]> for HeldReply {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for HeldReply {
    fn drop(&mut self) {
        let reply = &self.reply;
        reply.progress.store(reply.now(), Ordering::Relaxed);
        if self.counted > 0 {
            reply.held.fetch_sub(self.counted, Ordering::AcqRel);
            reply.buffers.replies.fetch_sub(self.counted, Ordering::Relaxed);
            reply.reader.wake();
        }
    }
}

/// A response extension that is kept until the client has read the reply or has disconnected.
#[derive(Clone)]
pub(crate) struct KeptForReply(
    #[expect(dead_code, reason = "held only for its drop")] pub(crate) Arc<dyn Send + Sync>,
);

/// The body of a reply, given to the connection in pieces and counted until it is written.
pub(crate) struct CountedBody<B> {
    body: B,
    /// The rest of the current frame.
    rest: Bytes,
    is_over: bool,
    is_large: bool,
    count: Count,
}

/// The way in which the bytes of a reply are counted.
enum Count {
    /// Counts each byte until it is written.
    Counted(Arc<Reply>),
    /// Counts nothing, because the reply is small and the only one of its connection. The request counts as busy until its
    /// last byte is handed over; a client that does not read it blocks the socket, which is watched separately.
    Small { _busy: Busy },
}

/// Counts the body of a response to the request that `busy` belongs to.
pub(crate) fn counted_reply<B: Body>(
    response: Response<B>,
    busy: Busy,
    buffers: Arc<Buffers>,
) -> Response<CountedBody<B>> {
    let (mut head, body) = response.into_parts();
    let mut guard = head.extensions.remove::<KeptForReply>();
    let stream = STREAM.try_with(AbortHandle::clone).ok();
    if stream.is_none()
        && guard.is_none()
        && body.size_hint().exact().is_some_and(|bytes| bytes <= SMALL_BYTES)
    {
        let count = Count::Small { _busy: busy };
        let body = CountedBody { body, rest: Bytes::new(), is_over: false, is_large: false, count };
        return Response::from_parts(head, body);
    }
    let connection: Arc<Connection> = Arc::clone(busy.connection());
    if head.status == StatusCode::SWITCHING_PROTOCOLS
        && let Some(guard) = guard.take()
    {
        connection.keep_for_tunnel(guard);
    }
    let reply = connection.list_reply(|id| Reply {
        id,
        progress: connection.clock().now().into(),
        busy,
        buffers,
        stream,
        held: AtomicU64::new(0),
        ended: AtomicBool::new(false),
        reader: AtomicWaker::new(),
        _kept: guard,
    });
    let count = Count::Counted(reply);
    let body = CountedBody { body, rest: Bytes::new(), is_over: false, is_large: false, count };
    Response::from_parts(head, body)
}

impl<B> CountedBody<B> {
    fn next_piece(&mut self) -> Bytes {
        let Count::Counted(reply) = &self.count else { return std::mem::take(&mut self.rest) };
        if self.rest.len() <= PIECE_BYTES {
            return std::mem::take(&mut self.rest);
        }
        let data = self.rest.split_to(PIECE_BYTES);
        Bytes::from_owner(HeldReply { data, counted: 0, reply: Arc::clone(reply) })
    }

    /// Returns the reply if its stream may end only after the client has read everything.
    ///
    /// Until then the stream can be reset. Once it has ended, its bytes belong to the connection, and only closing the
    /// connection would free them.
    fn waiting_reply(&self) -> Option<&Arc<Reply>> {
        match &self.count {
            Count::Counted(reply) if self.is_large && reply.stream.is_some() => Some(reply),
            _ => None,
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for CountedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        if !this.rest.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(this.next_piece()))));
        }
        this.is_over |= this.waiting_reply().is_some() && this.body.is_end_stream();
        if !this.is_over {
            match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if data.is_empty() => return Poll::Ready(Some(Ok(Frame::data(data)))),
                    Ok(data) => {
                        this.is_large |= data.len() > PIECE_BYTES;
                        this.rest = match &this.count {
                            Count::Counted(reply) => reply.hold(data),
                            Count::Small { .. } => data,
                        };
                        return Poll::Ready(Some(Ok(Frame::data(this.next_piece()))));
                    }
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => {}
            }
        }
        this.is_over = true;
        if let Some(reply) = this.waiting_reply() {
            reply.reader.register(cx.waker());
            if reply.held_bytes() > 0 {
                return Poll::Pending;
            }
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
            && self.body.is_end_stream()
            && self.waiting_reply().is_none_or(|reply| reply.held_bytes() == 0)
    }

    fn size_hint(&self) -> SizeHint {
        match self.rest.is_empty() {
            true => self.body.size_hint(),
            // hyper asks for it only before the first frame, when `rest` is empty.
            false => SizeHint::default(),
        }
    }
}

/// Runs the streams of HTTP/2 connections so that each can be ended separately.
///
/// hyper polls a body for a frame and then waits, with that frame, for the peer's flow-control window. It does not poll
/// the body while it waits, so a body can't end its stream. Dropping the stream's task does: h2 then sends RST_STREAM and
/// drops the queued bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamExecutor;

impl<F> hyper::rt::Executor<F> for StreamExecutor
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, stream: F) {
        let (stream, handle) = abortable(stream);
        tokio::spawn(STREAM.scope(handle, stream));
    }
}

tokio::task_local! {
    /// The HTTP/2 stream that is being polled.
    static STREAM: AbortHandle;
}

/// Bytes that are handed to a connection at once: one HTTP/2 frame of the usual size. It is also the least that a client
/// has to read within the stall time-out.
const PIECE_BYTES: usize = 16 * 1024;

/// Largest reply over HTTP/1.1 that is not counted. A connection has one at a time, because hyper takes the next pipelined
/// request only after the reply was written to the socket, and hyper's buffers for the connection are larger.
const SMALL_BYTES: u64 = 4 * 1024;

/// Time after which, when memory is short, a client that has not read a piece counts as stalled: 16 KiB/s is slower than
/// any line that API clients use.
const LEAVE_AFTER: Duration = Duration::from_secs(1);

/// Interval at which all replies are scanned while memory is short.
const EASE_EVERY: Duration = Duration::from_millis(100);
