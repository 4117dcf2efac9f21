//! The answer kept for replay, and its bytes. The bytes begin with a format number: a node that does not know
//! the format says so instead of guessing.

use bytes::Bytes;
use minicbor::{Decode, Encode};
use serde::Serialize;

use crate::policy::Policy;
use crate::proof::OUTCOME_FIELD;

/// The answer kept for replay: status, the header lines that may be repeated, body and trailers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The HTTP status.
    pub status: u16,
    /// Header lines in their order; values are bytes, for not all are UTF-8.
    pub headers: Vec<Line>,
    /// The body as it went over the wire, without transfer coding.
    pub body: Bytes,
    /// Trailer lines in their order.
    pub trailers: Vec<Line>,
    /// The API's own response shape at the time (`response_version`).
    pub version: u32,
}

/// One field line: name in lower case, value as bytes.
pub type Line = (String, Bytes);

/// Whether a field of this name, in lower case, may be given to a retry: it speaks of the answer, and not of the
/// connection, the moment or the one who asked first. `not_replayed` are the route's own, in lower case.
pub fn may_be_repeated(name: &str, not_replayed: &[String]) -> bool {
    name != OUTCOME_FIELD
        && !NOT_REPLAYED.contains(&name)
        && !NOT_REPLAYED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        && !not_replayed.iter().any(|own| own == name)
}

impl Response {
    /// Only what every retry may be given under `policy`.
    pub fn repeatable(mut self, policy: &Policy) -> Response {
        // Names from HTTP are in lower case already; only those of library callers may need a copy.
        self.headers.retain(|(name, _)| match name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            true => may_be_repeated(&name.to_ascii_lowercase(), &policy.not_replayed),
            false => may_be_repeated(name, &policy.not_replayed),
        });
        self
    }

    /// An answer of ibid's own, in place of one that never came.
    pub fn plain(status: u16, content_type: &str, body: String) -> Response {
        Response {
            status,
            headers: vec![("content-type".to_owned(), Bytes::copy_from_slice(content_type.as_bytes()))],
            body: Bytes::from(body),
            trailers: Vec::new(),
            version: 0,
        }
    }

    /// A response with `value` as JSON.
    ///
    /// A value that JSON can't express becomes a 500: in a transaction that rolls the work back.
    pub fn json(status: u16, value: &impl Serialize) -> Response {
        match serde_json::to_string(value) {
            Ok(body) => Response::plain(status, "application/json", body),
            Err(error) => Response::plain(500, "text/plain", error.to_string()),
        }
    }

    /// The same response with another header line.
    #[must_use]
    pub fn with_header(mut self, name: &str, value: impl Into<Bytes>) -> Response {
        self.headers.push((name.to_ascii_lowercase(), value.into()));
        self
    }

    /// The bytes that a store keeps.
    pub fn to_bytes(&self) -> Bytes {
        let lines = |lines: &[Line]| -> usize {
            lines.iter().map(|(name, value)| name.len() + value.len() + LINE_HEAD).sum()
        };
        let mut bytes =
            Vec::with_capacity(HEAD + lines(&self.headers) + lines(&self.trailers) + self.body.len());
        bytes.push(FORMAT);
        let stored = EncodedResponse {
            status: self.status,
            headers: stored_lines(&self.headers),
            body: &self.body,
            trailers: stored_lines(&self.trailers),
            version: self.version,
        };
        // Writing into a Vec has no way to fail.
        minicbor::encode(&stored, &mut bytes).expect("a Vec takes every byte");
        Bytes::from(bytes)
    }

    /// The answer in these bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Response, ResponseError> {
        let (format, rest) = bytes.split_first().ok_or(ResponseError::Damaged)?;
        if *format != FORMAT {
            return Err(ResponseError::Format(*format));
        }
        let mut decoder = minicbor::Decoder::new(rest);
        let stored: EncodedResponse<'_> = decoder.decode().map_err(|_| ResponseError::Damaged)?;
        if decoder.position() != rest.len() {
            return Err(ResponseError::Damaged);
        }
        let line = |line: EncodedLine<'_>| (line.name.to_owned(), Bytes::copy_from_slice(line.value));
        let lines = |lines: Vec<EncodedLine<'_>>| -> Vec<Line> { lines.into_iter().map(line).collect() };
        Ok(Response {
            status: stored.status,
            headers: lines(stored.headers),
            body: Bytes::copy_from_slice(stored.body),
            trailers: lines(stored.trailers),
            version: stored.version,
        })
    }
}

/// Stored bytes that are no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ResponseError {
    /// Written by a newer ibid.
    #[error("the stored answer has format {0}, and this ibid knows only format 1")]
    Format(u8),
    /// Not what any ibid wrote.
    #[error("the stored answer is damaged")]
    Damaged,
}

/// The only format so far: CBOR with numbered fields. Fields may be added under new numbers; a change of
/// meaning needs a new format.
const FORMAT: u8 = 1;

/// Borrowed from the answer or from the bytes: both may be large.
#[derive(Encode, Decode)]
struct EncodedResponse<'b> {
    #[n(0)]
    status: u16,
    #[b(1)]
    headers: Vec<EncodedLine<'b>>,
    #[cbor(b(2), with = "minicbor::bytes")]
    body: &'b [u8],
    #[b(3)]
    trailers: Vec<EncodedLine<'b>>,
    #[n(4)]
    version: u32,
}

#[derive(Encode, Decode)]
struct EncodedLine<'b> {
    #[b(0)]
    name: &'b str,
    #[cbor(b(1), with = "minicbor::bytes")]
    value: &'b [u8],
}

fn stored_lines(lines: &[Line]) -> Vec<EncodedLine<'_>> {
    lines.iter().map(|(name, value)| EncodedLine { name, value }).collect()
}

/// At most what the rest of an answer takes besides lines and body.
const HEAD: usize = 32;

/// At most what a line takes besides its name and value, but for enormous ones.
const LINE_HEAD: usize = 12;

/// Fields that belong to one connection, one caller or one moment, and so to no retry. `content-length` is made anew
/// from the kept bytes. CORS fields are not here: whether a retry gets them depends on its `Origin`.
const NOT_REPLAYED: [&str; 33] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-authorization",
    "content-length",
    "set-cookie",
    "set-cookie2",
    "cookie",
    "set-login",
    "clear-site-data",
    "dpop-nonce",
    "www-authenticate",
    "authentication-info",
    "authorization",
    "retry-after",
    "age",
    "date",
    "server-timing",
    "alt-svc",
    "idempotent-replayed",
    "idempotency-expires",
    "idempotency-stored",
    "idempotency-outcome",
    "ibid-outcome",
    "idempotency-key",
    "original-request",
    "stripe-should-retry",
];

/// Quota fields say what is left now.
const NOT_REPLAYED_PREFIXES: [&str; 3] = ["ratelimit", "x-ratelimit", "x-rate-limit"];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Response {
        Response {
            status: 201,
            headers: vec![
                ("location".into(), Bytes::from_static(b"/payments/7")),
                ("link".into(), Bytes::from_static(b"<a>")),
                ("link".into(), Bytes::from_static(b"\xff")),
            ],
            body: Bytes::from_static(b"{}"),
            trailers: vec![("x-sum".into(), Bytes::from_static(b"9"))],
            version: 3,
        }
    }

    #[test]
    fn the_stored_bytes_are_the_golden_ones() {
        let hex: String = sample().to_bytes().iter().map(|b| format!("{b:02x}")).collect();
        let golden = "018518c98382686c6f636174696f6e4b2f7061796d656e74732f3782646c696e6b433c613e82646c696e6b41ff42\
                      7b7d818265782d73756d413903";
        assert_eq!(hex, golden);
    }

    #[test]
    fn a_value_becomes_a_json_response() {
        let created = Response::json(201, &["p1"]).with_header("Location", "/payments/p1");
        assert_eq!((created.status, &created.body[..]), (201, &br#"["p1"]"#[..]));
        assert_eq!(created.headers[0], ("content-type".to_owned(), Bytes::from_static(b"application/json")));
        assert_eq!(created.headers[1], ("location".to_owned(), Bytes::from_static(b"/payments/p1")));
    }

    #[test]
    fn a_value_that_json_can_not_express_becomes_a_500() {
        let keys_are_no_strings = std::collections::BTreeMap::from([(vec![1], 2)]);
        assert_eq!(Response::json(201, &keys_are_no_strings).status, 500);
    }

    #[test]
    fn a_malformed_stored_response_is_refused() {
        let good = sample().to_bytes();
        let mut newer = good.to_vec();
        newer[0] = 2;
        assert_eq!(Response::from_bytes(&newer), Err(ResponseError::Format(2)));
        let mut longer = good.to_vec();
        longer.push(0);
        assert_eq!(Response::from_bytes(&longer), Err(ResponseError::Damaged));
        for cut in 0..good.len() {
            assert_eq!(Response::from_bytes(&good[..cut]), Err(ResponseError::Damaged), "cut at {cut}");
        }
    }

    proptest! {
        #[test]
        fn every_answer_comes_back_from_its_bytes_as_it_was(
            status in 100u16..600,
            headers in prop::collection::vec(("[a-z-]{1,12}", prop::collection::vec(any::<u8>(), 0..24)), 0..6),
            body in prop::collection::vec(any::<u8>(), 0..256),
            version: u32,
        ) {
            let headers = headers.into_iter().map(|(name, value)| (name, Bytes::from(value))).collect();
            let response = Response { status, headers, body: body.into(), trailers: vec![], version };
            prop_assert_eq!(Response::from_bytes(&response.to_bytes()), Ok(response));
        }

        #[test]
        fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
            let _ = Response::from_bytes(&bytes);
        }
    }
}
