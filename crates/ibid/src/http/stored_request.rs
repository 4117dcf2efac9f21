//! Codec for a request that is stored with its record, so that it can run without its client.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, header};
use ibid_core::scope::Operation;
use minicbor::{Decode, Encode};

use super::intake::HttpRequestView;

/// Encodes a request that may be resumed: everything that the handler may need, without the client's credentials.
pub(super) fn encode_without_credentials(asked: &HttpRequestView) -> Bytes {
    encode_without(asked, &CREDENTIALS)
}

/// Encodes an accepted request, with its credentials: the handler or upstream that runs it has to authenticate the client. The
/// commit that ends the need for the request deletes it.
pub(super) fn encode(asked: &HttpRequestView) -> Bytes {
    encode_without(asked, &[])
}

fn encode_without(asked: &HttpRequestView, without: &[HeaderName]) -> Bytes {
    let head = &asked.head;
    let headers = head.headers.iter().filter(|(name, _)| !without.contains(name));
    let encoded = EncodedRequest {
        method: head.method.as_str().to_owned(),
        uri: head.uri.to_string(),
        sent: super::original_uri(&head.extensions, &head.uri).to_string(),
        headers: headers
            .map(|(name, value)| EncodedLine {
                name: name.as_str().to_owned(),
                value: value.as_bytes().to_vec(),
            })
            .collect(),
        body: asked.body.to_vec(),
    };
    // Writing into a Vec has no way to fail.
    Bytes::from(minicbor::to_vec(encoded).expect("a Vec takes every byte"))
}

/// Decodes the request that was stored with a record of this operation. `None` if the bytes are not such a request.
pub(super) fn decode(bytes: &Bytes, operation: &Operation) -> Option<HttpRequestView> {
    let encoded: EncodedRequest = minicbor::decode(bytes).ok()?;
    let mut headers = HeaderMap::with_capacity(encoded.headers.len());
    for line in encoded.headers {
        headers.append(
            HeaderName::from_bytes(line.name.as_bytes()).ok()?,
            HeaderValue::from_bytes(&line.value).ok()?,
        );
    }
    let (mut head, ()) = Request::new(()).into_parts();
    head.method = Method::from_bytes(encoded.method.as_bytes()).ok()?;
    head.uri = encoded.uri.parse::<Uri>().ok()?;
    super::set_original_uri(&mut head.extensions, encoded.sent.parse::<Uri>().ok()?);
    head.headers = headers;
    Some(HttpRequestView { head, body: Bytes::from(encoded.body), operation: operation.clone() })
}

#[derive(Encode, Decode)]
struct EncodedRequest {
    #[n(0)]
    method: String,
    /// The URI that the guarded service sees: a nested router sees only the rest of the path.
    #[n(1)]
    uri: String,
    /// The URI that the client sent.
    #[n(4)]
    sent: String,
    #[n(2)]
    headers: Vec<EncodedLine>,
    #[cbor(n(3), with = "minicbor::bytes")]
    body: Vec<u8>,
}

#[derive(Encode, Decode)]
struct EncodedLine {
    #[n(0)]
    name: String,
    #[cbor(n(1), with = "minicbor::bytes")]
    value: Vec<u8>,
}

/// A stored credential can be stolen. The handler knows the tenant from [`Guarded`](super::Guarded).
const CREDENTIALS: [HeaderName; 4] =
    [header::AUTHORIZATION, header::PROXY_AUTHORIZATION, header::COOKIE, header::CONNECTION];

#[cfg(test)]
mod tests {
    use super::*;

    fn rides() -> Operation {
        Operation { method: "POST".into(), path: "/rides".into() }
    }

    #[test]
    fn a_stored_request_is_decoded_without_its_credentials() {
        let request = Request::builder()
            .method("POST")
            .uri("/rides?fast=1")
            .header("x-a", "1")
            .header("x-a", HeaderValue::from_bytes(b"\xff").unwrap())
            .header("authorization", "Bearer s3cret")
            .header("cookie", "session=s3cret")
            .body(())
            .unwrap();
        let (head, ()) = request.into_parts();
        let asked = HttpRequestView { head, body: Bytes::from_static(b"{\"a\":1}"), operation: rides() };
        let bytes = encode_without_credentials(&asked);
        assert!(!bytes.windows(6).any(|window| window == b"s3cret"));
        let back = decode(&bytes, &rides()).unwrap();
        assert_eq!(
            (back.head.method.as_str(), back.head.uri.to_string().as_str()),
            ("POST", "/rides?fast=1")
        );
        assert_eq!(back.head.headers.get_all("x-a").iter().count(), 2);
        assert_eq!(back.body, asked.body);
        assert!(decode(&bytes.slice(1..), &rides()).is_none());
        let whole = decode(&encode(&asked), &rides()).unwrap();
        assert_eq!(whole.head.headers, asked.head.headers);
    }
}
