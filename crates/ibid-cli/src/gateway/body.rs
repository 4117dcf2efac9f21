//! The body of a client's request: still arriving, read completely by the guard, or inspected while it passes.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;
use ibid::http::WithoutKey;

use super::GateRules;

/// The body of a client's request.
pub(crate) enum ClientBody {
    /// A body that is still arriving, with the rules for its trailers.
    Arriving(Incoming, Arc<GateRules>),
    /// A body that was read completely.
    Whole(Full<Bytes>),
    /// A body that passes unguarded and is inspected once it has passed.
    Watched(Box<WatchedBody>),
}

/// A small body of a request without a key. Each piece is copied while it passes; no piece waits for the rest.
pub(crate) struct WatchedBody {
    body: ClientBody,
    copied: Vec<u8>,
    /// Number of bytes that the request declared.
    declared: usize,
    /// `None` once the body has been inspected.
    watcher: Option<WithoutKey>,
}

impl ClientBody {
    /// Prepares a request without a key so that its body is searched for one while it passes.
    ///
    /// Does so only if the route has not been reported yet and the declared length is small.
    pub(crate) fn watch(request: Request<ClientBody>) -> Request<ClientBody> {
        let declared = request.headers().get(header::CONTENT_LENGTH);
        let declared = declared.and_then(|value| value.to_str().ok()?.parse().ok());
        let watcher = request.extensions().get::<WithoutKey>().filter(|watcher| watcher.is_open()).cloned();
        match (declared, watcher) {
            (Some(declared @ 1..=WATCHED_BYTES_MAX), Some(watcher)) => request.map(|body| {
                let copied = Vec::with_capacity(declared);
                let watched = WatchedBody { body, copied, declared, watcher: Some(watcher) };
                ClientBody::Watched(Box::new(watched))
            }),
            _ => request,
        }
    }
}

impl WatchedBody {
    fn copy_piece(&mut self, data: &Bytes) {
        if self.watcher.is_some() && self.copied.len() + data.len() <= self.declared {
            self.copied.extend_from_slice(data);
        }
        // Inspect it here: a sender that has written the declared length may never poll again.
        if self.copied.len() == self.declared
            && let Some(watcher) = self.watcher.take()
        {
            watcher.look_into(&std::mem::take(&mut self.copied));
        }
    }
}

impl From<Bytes> for ClientBody {
    fn from(bytes: Bytes) -> ClientBody {
        ClientBody::Whole(Full::new(bytes))
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut *self {
            ClientBody::Arriving(body, rules) => {
                let mut polled = Pin::new(body).poll_frame(cx);
                if let Poll::Ready(Some(Ok(frame))) = &mut polled
                    && let Some(trailers) = frame.trailers_mut()
                {
                    rules.clean_trailers(trailers);
                }
                polled
            }
            ClientBody::Whole(body) => Pin::new(body).poll_frame(cx).map_err(|never| match never {}),
            ClientBody::Watched(watched) => {
                let polled = Pin::new(&mut watched.body).poll_frame(cx);
                if let Poll::Ready(Some(Ok(frame))) = &polled
                    && let Some(data) = frame.data_ref()
                {
                    watched.copy_piece(data);
                }
                polled
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ClientBody::Arriving(body, _) => body.is_end_stream(),
            ClientBody::Whole(body) => body.is_end_stream(),
            ClientBody::Watched(watched) => watched.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ClientBody::Arriving(body, _) => body.size_hint(),
            ClientBody::Whole(body) => body.size_hint(),
            ClientBody::Watched(watched) => watched.body.size_hint(),
        }
    }
}

/// Largest body that is searched for a key. Requests of APIs that use keys are small, and a copy of this size costs less
/// than the head.
const WATCHED_BYTES_MAX: usize = 8 * 1024;
