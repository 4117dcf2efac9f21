//! The body of a response: bytes in memory, the handler's body passed through, or its first part from memory and the rest
//! passed through.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

/// The body of a response of the layer.
#[derive(Debug)]
pub struct ReplyBody<B>(Inner<B>);

#[derive(Debug)]
enum Inner<B> {
    Whole { data: Bytes, trailers: Option<HeaderMap> },
    Passed(B),
    Spliced { head: VecDeque<Bytes>, rest: B },
}

impl<B> ReplyBody<B> {
    /// Returns how many bytes of the body are in memory.
    pub(super) fn in_memory(&self) -> u64 {
        match &self.0 {
            Inner::Whole { data, .. } => data.len() as u64,
            Inner::Passed(_) => 0,
            Inner::Spliced { head, .. } => head.iter().map(|data| data.len() as u64).sum(),
        }
    }

    pub(super) fn whole(data: Bytes, trailers: Option<HeaderMap>) -> Self {
        ReplyBody(Inner::Whole { data, trailers })
    }

    pub(super) fn pass_through(body: B) -> Self {
        ReplyBody(Inner::Passed(body))
    }

    pub(super) fn splice(head: VecDeque<Bytes>, rest: B) -> Self {
        ReplyBody(Inner::Spliced { head, rest })
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for ReplyBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match &mut self.0 {
            Inner::Whole { data, .. } if !data.is_empty() => {
                Poll::Ready(Some(Ok(Frame::data(std::mem::take(data)))))
            }
            Inner::Whole { trailers, .. } => {
                Poll::Ready(trailers.take().map(|lines| Ok(Frame::trailers(lines))))
            }
            Inner::Passed(body) => Pin::new(body).poll_frame(cx),
            Inner::Spliced { head, rest } => match head.pop_front() {
                Some(data) => Poll::Ready(Some(Ok(Frame::data(data)))),
                None => Pin::new(rest).poll_frame(cx),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Inner::Whole { data, trailers } => data.is_empty() && trailers.is_none(),
            Inner::Passed(body) => body.is_end_stream(),
            Inner::Spliced { head, rest } => head.is_empty() && rest.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            // With trailers the length is left open, so that HTTP/1.1 sends chunks, which trailers can follow.
            Inner::Whole { data, trailers: None } => SizeHint::with_exact(data.len() as u64),
            Inner::Whole { .. } => SizeHint::default(),
            Inner::Passed(body) => body.size_hint(),
            Inner::Spliced { head, rest } => {
                let read: u64 = head.iter().map(|data| data.len() as u64).sum();
                let (hint, mut all) = (rest.size_hint(), SizeHint::new());
                all.set_lower(hint.lower().saturating_add(read));
                if let Some(upper) = hint.upper().and_then(|upper| upper.checked_add(read)) {
                    all.set_upper(upper);
                }
                all
            }
        }
    }
}
