//! Reads the handler's response: whole if it may be stored, otherwise just far enough to know that it may not.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Response, StatusCode, header, response};
use http_body::Body;
use http_body_util::BodyExt;
use ibid_core::policy::Policy;
use ibid_core::response::{Line, Response as CoreResponse, may_be_repeated};

use crate::upkeep::LookupResult;

/// A handler's response, as far as it was read.
pub(super) enum CapturedResponse<B> {
    /// Read to its end.
    Whole { head: response::Parts, body: Bytes, trailers: Option<HeaderMap> },
    /// Too large, a stream or an upgrade: the part that was read, and the rest.
    Unkept { head: response::Parts, read: VecDeque<Bytes>, rest: B },
    /// The body broke off.
    Broken,
}

/// Reads a response up to `limit` bytes. With `stream` it is not read at all, unless its status is 500 or above: such a response
/// counts only if it was read to its end.
pub(super) async fn read<B: Body<Data = Bytes> + Unpin>(
    response: Response<B>,
    limit: u64,
    stream: bool,
) -> CapturedResponse<B> {
    let (head, mut rest) = response.into_parts();
    let streams = is_stream(&head) || (stream && !head.status.is_server_error());
    if streams || rest.size_hint().lower() > limit {
        return CapturedResponse::Unkept { head, read: VecDeque::new(), rest };
    }
    let (mut read, mut length, mut trailers) = (VecDeque::new(), 0, None);
    while let Some(frame) = rest.frame().await {
        let Ok(frame) = frame else { return CapturedResponse::Broken };
        match frame.into_data() {
            Ok(data) => {
                length += data.len() as u64;
                read.push_back(data);
                if length > limit {
                    return CapturedResponse::Unkept { head, read, rest };
                }
            }
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    CapturedResponse::Whole { head, body: join(read), trailers }
}

/// Turns the response to a lookup into the result for the request that was looked up. The response is read whole within the
/// policy's limits and stored without the header lines that no retry may get. A response that breaks off proves nothing.
///
/// # Cancel safety
///
/// Dropping the future drops the response with what was read of it. Nothing is stored: the lookup has to be sent again.
pub async fn read_lookup<B: Body<Data = Bytes> + Unpin>(
    answer: Response<B>,
    policy: &Policy,
) -> LookupResult {
    match read(answer, policy.max_response_body, false).await {
        CapturedResponse::Whole { head, body, trailers } => {
            LookupResult::Executed(to_stored(&head, &body, trailers.as_ref(), policy).repeatable(policy))
        }
        CapturedResponse::Unkept { head, .. } => LookupResult::ExecutedNotKept(head.status.as_u16()),
        CapturedResponse::Broken => LookupResult::Nothing,
    }
}

/// Copies the part of a response that retries may get, and `Retry-After`, which the attempt reads and removes when it ends.
pub(super) fn to_stored(
    head: &response::Parts,
    body: &Bytes,
    trailers: Option<&HeaderMap>,
    policy: &Policy,
) -> CoreResponse {
    let named: Vec<&str> = head
        .headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(',').map(str::trim))
        .collect();
    let may_be_kept = |name: &str| {
        name == header::RETRY_AFTER
            || may_be_repeated(name, &policy.not_replayed)
                && !named.iter().any(|named| named.eq_ignore_ascii_case(name))
    };
    let lines = |headers: &HeaderMap| -> Vec<Line> {
        headers
            .iter()
            .filter(|(name, _)| may_be_kept(name.as_str()))
            .map(|(name, value)| (name.as_str().to_owned(), Bytes::copy_from_slice(value.as_bytes())))
            .collect()
    };
    CoreResponse {
        status: head.status.as_u16(),
        headers: lines(&head.headers),
        // A copy: these bytes are often a slice of a connection's read buffer, and a stored response would keep the whole
        // buffer, many times its size.
        body: Bytes::copy_from_slice(body),
        trailers: trailers.map(lines).unwrap_or_default(),
    }
}

/// Returns whether the response is a stream or an upgrade, which has no end to wait for.
fn is_stream(head: &response::Parts) -> bool {
    let content_type = head.headers.get(header::CONTENT_TYPE).map(|value| value.as_bytes());
    head.status == StatusCode::SWITCHING_PROTOCOLS
        || content_type.is_some_and(|kind| {
            kind.len() >= EVENT_STREAM.len() && kind[..EVENT_STREAM.len()].eq_ignore_ascii_case(EVENT_STREAM)
        })
}

fn join(mut read: VecDeque<Bytes>) -> Bytes {
    match read.len() {
        0 => Bytes::new(),
        1 => read.pop_front().unwrap_or_default(),
        _ => {
            let mut whole = BytesMut::with_capacity(read.iter().map(Bytes::len).sum());
            read.iter().for_each(|data| whole.extend_from_slice(data));
            whole.freeze()
        }
    }
}

const EVENT_STREAM: &[u8] = b"text/event-stream";
