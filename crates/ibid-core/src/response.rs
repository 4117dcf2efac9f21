//! The response stored for replay, and its two encodings.
//!
//! A record keeps its response as plain columns: status, header lines ([`Response::lines`]) and body. Evidence and results
//! that are not yet recorded keep it as one value ([`Response::to_bytes`]), which begins with a format number, so that a
//! node which does not know the format reports it instead of guessing.

use std::sync::Arc;

use bytes::Bytes;
use minicbor::{Decode, Encode};
use serde::Serialize;

use crate::policy::Policy;
use crate::proof::OUTCOME_FIELD;

/// A response stored for replay: status, replayable header lines, body and trailers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// HTTP status of the response.
    pub status: u16,
    /// Header lines in their order. Values are bytes, because not all are UTF-8.
    pub headers: Vec<Line>,
    /// Body as it was sent, without transfer coding.
    pub body: Bytes,
    /// Trailer lines in their order.
    pub trailers: Vec<Line>,
}

/// The response of a record as a store returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "every store has to handle every variant")]
pub enum SavedResponse {
    /// Status, header lines and body, as they were stored.
    Plain(Arc<Response>),
    /// One value that is encrypted under a key. This version of ibid has no such keys and cannot open it.
    Sealed {
        /// Id of the encryption key.
        key_id: String,
        /// Encrypted status, header lines and body.
        data: Bytes,
    },
}

impl SavedResponse {
    /// Returns the response if it can be read.
    pub fn plain(&self) -> Option<&Arc<Response>> {
        match self {
            SavedResponse::Plain(response) => Some(response),
            SavedResponse::Sealed { .. } => None,
        }
    }
}

/// One field line: name in lower case, value as bytes.
pub type Line = (String, Bytes);

/// Returns whether a field of this name, in lower case, may be replayed: it describes the response, and not the
/// connection, the moment or the first caller.
///
/// `not_replayed` are the route's own exceptions, in lower case.
pub fn may_be_repeated(name: &str, not_replayed: &[String]) -> bool {
    name != OUTCOME_FIELD
        && !NOT_REPLAYED.contains(&name)
        && !NOT_REPLAYED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        && !not_replayed.iter().any(|own| own == name)
}

impl Response {
    /// Removes the header lines that no retry may get under `policy`, and lines that HTTP cannot carry.
    pub fn repeatable(mut self, policy: &Policy) -> Response {
        self.headers.retain(is_field_line);
        self.trailers.retain(is_field_line);
        // Names from HTTP are in lower case already; only those of library callers may need to be copied.
        self.headers.retain(|(name, _)| match name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            true => may_be_repeated(&name.to_ascii_lowercase(), &policy.not_replayed),
            false => may_be_repeated(name, &policy.not_replayed),
        });
        self
    }

    /// Creates a response of ibid's own, in place of one that never came.
    pub fn plain(status: u16, content_type: &str, body: String) -> Response {
        Response {
            status,
            headers: vec![("content-type".to_owned(), Bytes::copy_from_slice(content_type.as_bytes()))],
            body: Bytes::from(body),
            trailers: Vec::new(),
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

    /// Adds a header line.
    #[must_use]
    pub fn with_header(mut self, name: &str, value: impl Into<Bytes>) -> Response {
        self.headers.push((name.to_ascii_lowercase(), value.into()));
        self
    }

    /// Encodes the header lines as a record keeps them: `name: value` and a line feed each, then, if there are trailers, an
    /// empty line and the trailers.
    ///
    /// The form is the one that people know. HTTP allows no line feed in a name or value; lines that have one are left
    /// out, because no client could get them.
    pub fn lines(&self) -> Vec<u8> {
        let size = |lines: &[Line]| -> usize {
            lines.iter().map(|(name, value)| name.len() + value.len() + 3).sum()
        };
        let mut text = Vec::with_capacity(size(&self.headers) + size(&self.trailers) + 1);
        let add = |text: &mut Vec<u8>, lines: &[Line]| {
            for (name, value) in lines.iter().filter(|line| is_field_line(line)) {
                text.extend_from_slice(name.as_bytes());
                text.extend_from_slice(b": ");
                text.extend_from_slice(value);
                text.push(b'\n');
            }
        };
        add(&mut text, &self.headers);
        if !self.trailers.is_empty() {
            text.push(b'\n');
            add(&mut text, &self.trailers);
        }
        text
    }

    /// Builds a response from the columns of a record; `None` if the lines cannot be read.
    pub fn from_columns(status: u16, lines: &[u8], body: Bytes) -> Option<Response> {
        let (mut headers, mut trailers, mut in_trailers) = (Vec::new(), Vec::new(), false);
        for line in lines.strip_suffix(b"\n").unwrap_or(lines).split(|byte| *byte == b'\n') {
            if line.is_empty() {
                // Of no lines at all, `split` returns one that is empty.
                in_trailers = true;
                continue;
            }
            let colon = line.iter().position(|byte| *byte == b':')?;
            let name = std::str::from_utf8(&line[..colon]).ok()?.to_owned();
            let value = line[colon + 1..].strip_prefix(b" ").unwrap_or(&line[colon + 1..]);
            let parsed = (name, Bytes::copy_from_slice(value));
            if in_trailers { trailers.push(parsed) } else { headers.push(parsed) }
        }
        Some(Response { status, headers, body, trailers })
    }

    /// Encodes the response as one value.
    pub fn to_bytes(&self) -> Bytes {
        let lines = |lines: &[Line]| -> usize {
            lines.iter().map(|(name, value)| name.len() + value.len() + LINE_HEAD).sum()
        };
        let mut bytes =
            Vec::with_capacity(HEAD + lines(&self.headers) + lines(&self.trailers) + self.body.len());
        bytes.push(FORMAT);
        let stored = EncodedResponse {
            status: self.status,
            headers: encode_lines(&self.headers),
            body: &self.body,
            trailers: encode_lines(&self.trailers),
        };
        // Writing into a `Vec` cannot fail.
        minicbor::encode(&stored, &mut bytes).expect("a Vec takes every byte");
        Bytes::from(bytes)
    }

    /// Decodes what [`Response::to_bytes`] wrote.
    ///
    /// # Errors
    ///
    /// Fails if the bytes have another format, or none.
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
        })
    }
}

/// Stored bytes that cannot be decoded as a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResponseError {
    /// A newer ibid wrote it.
    #[error("the stored response has format {0}, and this ibid knows only format 1")]
    Format(u8),
    /// No version of ibid wrote these bytes.
    #[error("the stored response is damaged")]
    Damaged,
}

/// Number of the only format so far: CBOR with numbered fields. Fields may be added under new numbers; a change of
/// meaning needs a new format.
const FORMAT: u8 = 1;

/// The encoded fields, borrowed from the response or from the bytes: both may be large.
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
}

#[derive(Encode, Decode)]
struct EncodedLine<'b> {
    #[b(0)]
    name: &'b str,
    #[cbor(b(1), with = "minicbor::bytes")]
    value: &'b [u8],
}

fn encode_lines(lines: &[Line]) -> Vec<EncodedLine<'_>> {
    lines.iter().map(|(name, value)| EncodedLine { name, value }).collect()
}

/// Returns whether HTTP can carry the line: a name that is not empty, and no control characters that end a line.
fn is_field_line((name, value): &Line) -> bool {
    let ends_line = |byte: &u8| matches!(byte, b'\n' | b'\r' | 0);
    !name.is_empty()
        && !name.bytes().any(|byte| ends_line(&byte) || byte == b':')
        && !value.iter().any(ends_line)
}

/// Upper bound for the bytes of a response besides lines and body.
const HEAD: usize = 32;

/// Upper bound for the bytes of a line besides name and value, except for enormous ones.
const LINE_HEAD: usize = 12;

/// Fields that belong to one connection, one caller or one moment, and so to no retry.
///
/// `content-length` is set again from the stored bytes. CORS fields are not here: whether a retry gets them depends on
/// its `Origin`.
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

/// Prefixes of quota fields, which tell what is left now.
const NOT_REPLAYED_PREFIXES: [&str; 3] = ["ratelimit", "x-ratelimit", "x-rate-limit"];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Any value that HTTP can carry.
    fn value() -> impl Strategy<Value = Vec<u8>> {
        let byte = any::<u8>().prop_filter("it ends a line", |byte| !matches!(byte, b'\n' | b'\r' | 0));
        prop::collection::vec(byte, 0..24)
    }

    #[test]
    fn the_stored_lines_are_the_golden_ones() {
        assert_eq!(
            sample().lines().escape_ascii().to_string(),
            r"location: /payments/7\nlink: <a>\nlink: \xff\n\nx-sum: 9\n"
        );
        let damaged = Response::from_columns(201, b"no colon\n", Bytes::new());
        assert_eq!(damaged, None);
    }

    #[test]
    fn a_line_that_http_cannot_carry_is_not_stored() {
        let split = Response::json(201, &1).with_header("x", "a\nset-cookie: b").with_header("y", "c");
        assert_eq!(split.lines(), b"content-type: application/json\ny: c\n");
        assert_eq!(split.repeatable(&Policy::default()).headers.len(), 2);
    }

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
        }
    }

    #[test]
    fn the_stored_bytes_are_the_golden_ones() {
        let hex: String = sample().to_bytes().iter().map(|b| format!("{b:02x}")).collect();
        let golden = "018418c98382686c6f636174696f6e4b2f7061796d656e74732f3782646c696e6b433c613e82646c696e6b41ff42\
                      7b7d818265782d73756d4139";
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
        fn every_response_survives_its_encoding(
            status in 100u16..600,
            headers in prop::collection::vec(("[a-z-]{1,12}", prop::collection::vec(any::<u8>(), 0..24)), 0..6),
            body in prop::collection::vec(any::<u8>(), 0..256),
        ) {
            let headers = headers.into_iter().map(|(name, value)| (name, Bytes::from(value))).collect();
            let response = Response { status, headers, body: body.into(), trailers: vec![] };
            prop_assert_eq!(Response::from_bytes(&response.to_bytes()), Ok(response));
        }

        #[test]
        fn every_response_survives_its_columns(
            status in 100u16..600,
            headers in prop::collection::vec(("[a-z-]{1,12}", value()), 0..6),
            trailers in prop::collection::vec(("[a-z-]{1,12}", value()), 0..3),
            body in prop::collection::vec(any::<u8>(), 0..256),
        ) {
            let lines = |lines: Vec<(String, Vec<u8>)>| -> Vec<Line> {
                lines.into_iter().map(|(name, value)| (name, Bytes::from(value))).collect()
            };
            let response = Response { status, headers: lines(headers), body: body.into(), trailers: lines(trailers) };
            let read = Response::from_columns(status, &response.lines(), response.body.clone());
            prop_assert_eq!(read, Some(response));
        }

        #[test]
        fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
            let _ = Response::from_bytes(&bytes);
        }
    }
}
