//! `pass_timeout`: bounds the time that an unguarded request may wait for the response head.
//!
//! The time counts from the last piece of the request's body, so a long upload does not count as waiting. Once the head has
//! arrived, the rest of the response may take any time.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Time of a request's last progress.
#[derive(Clone, Debug)]
pub(crate) struct PassProgress(Arc<Mutex<Instant>>);

impl PassProgress {
    /// Returns the progress of a request that starts now.
    pub(crate) fn start() -> PassProgress {
        PassProgress(Arc::new(Mutex::new(Instant::now())))
    }

    fn record(&self) {
        *self.0.lock() = Instant::now();
    }

    fn last(&self) -> Instant {
        *self.0.lock()
    }

    /// Waits for `head`. Returns `None` if there was no progress for `limit`.
    pub(crate) async fn bound<T>(&self, limit: Option<Duration>, head: impl Future<Output = T>) -> Option<T> {
        let Some(limit) = limit else { return Some(head.await) };
        let mut head = std::pin::pin!(head);
        loop {
            let until = self.last() + limit;
            if let Ok(head) = tokio::time::timeout_at(until, &mut head).await {
                return Some(head);
            }
            if self.last() + limit <= until {
                return None;
            }
        }
    }
}

/// A request body that records its progress.
pub(crate) struct ProgressBody<B> {
    body: B,
    progress: PassProgress,
}

impl<B> ProgressBody<B> {
    pub(crate) fn new(body: B, progress: PassProgress) -> ProgressBody<B> {
        ProgressBody { body, progress }
    }
}

impl<B: Body + Unpin> Body for ProgressBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if polled.is_ready() {
            self.progress.record();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_the_wait_without_progress_counts() {
        let (limit, step) = (Duration::from_secs(10), Duration::from_secs(6));
        let progress = PassProgress::start();
        let uploading = async {
            for _ in 0..5 {
                tokio::time::sleep(step).await;
                progress.record();
            }
            "head"
        };
        assert_eq!(progress.bound(Some(limit), uploading).await, Some("head"));
        let start = Instant::now();
        assert_eq!(progress.bound(Some(limit), std::future::pending::<()>()).await, None);
        assert_eq!(start.elapsed(), limit);
        let long = tokio::time::sleep(1000 * step);
        assert_eq!(progress.bound(None, long).await, Some(()));
    }
}
