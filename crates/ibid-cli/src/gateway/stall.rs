//! The body of an unguarded request, which fails if the client stops sending before the response head has arrived.

use std::error::Error as StdError;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

/// A body that fails when its client sends nothing for too long.
///
/// Only the client's silence counts: while the upstream reads nothing, the body is not polled.
pub(crate) struct StallingBody<B> {
    body: B,
    stall_for: Duration,
    watch: StallWatch,
    /// Timer that runs while the client is silent.
    silence: Option<Pin<Box<Sleep>>>,
}

/// A handle to the body for the task that handles the request.
#[derive(Clone, Debug, Default)]
pub(crate) struct StallWatch(Arc<AtomicU8>);

impl StallWatch {
    /// Ends the watch because the response head has arrived: from now on the client may pause.
    pub(crate) fn stop_watching(&self) {
        let _ = self.0.compare_exchange(WATCHED, UNWATCHED, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Returns whether the body failed because the client had stopped sending.
    pub(crate) fn has_stalled(&self) -> bool {
        self.0.load(Ordering::Acquire) == STALLED
    }
}

impl<B> StallingBody<B> {
    pub(crate) fn new(body: B, stall_for: Duration, watch: StallWatch) -> StallingBody<B> {
        StallingBody { body, stall_for, watch, silence: None }
    }

    /// Returns `Ready` once the client has been silent for too long.
    fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.watch.0.load(Ordering::Acquire) != WATCHED {
            self.silence = None;
            return Poll::Pending;
        }
        let until = Instant::now() + self.stall_for;
        let silence = self.silence.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        std::task::ready!(silence.as_mut().poll(cx));
        let stalls = self.watch.0.compare_exchange(WATCHED, STALLED, Ordering::AcqRel, Ordering::Acquire);
        if stalls.is_ok() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl<B> Body for StallingBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    type Data = Bytes;
    type Error = Box<dyn StdError + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            this.silence = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        match this.poll_silence(cx) {
            Poll::Ready(()) => Poll::Ready(Some(Err("the client stopped sending its body".into()))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

const WATCHED: u8 = 0;
const UNWATCHED: u8 = 1;
const STALLED: u8 = 2;
