//! A client's body: still arriving, or read whole by the guard.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;

/// A client's body.
pub(crate) enum ClientBody {
    /// Still arriving.
    Arriving(Incoming),
    /// Read.
    Whole(Full<Bytes>),
}

impl From<Bytes> for ClientBody {
    fn from(bytes: Bytes) -> ClientBody {
        ClientBody::Whole(Full::new(bytes))
    }
}

impl From<Incoming> for ClientBody {
    fn from(incoming: Incoming) -> ClientBody {
        ClientBody::Arriving(incoming)
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
            ClientBody::Arriving(body) => Pin::new(body).poll_frame(cx),
            ClientBody::Whole(body) => Pin::new(body).poll_frame(cx).map_err(|never| match never {}),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ClientBody::Arriving(body) => body.is_end_stream(),
            ClientBody::Whole(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ClientBody::Arriving(body) => body.size_hint(),
            ClientBody::Whole(body) => body.size_hint(),
        }
    }
}
