//! A request goes on without its client, with the request that was kept: the sweeper takes a lapsed record over and runs
//! the handler after the last recovery point; the deliverer runs what was accepted to be run later.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri, header};
use http_body::Body;
use ibid_core::machine::Ask;
use ibid_core::record::Record;
use ibid_core::scope::Operation;
use ibid_core::store::Pending;
use minicbor::{Decode, Encode};
use tower_service::Service;

use super::intake::{HttpAsked, Taken};
use super::layer::{self, Shared};
use crate::attempt::Attempt;
use crate::upkeep::Resume;

/// Runs requests without their clients on the service that a guard stands before.
pub(super) struct Resumer<S, Q> {
    pub(super) shared: Arc<Shared>,
    pub(super) service: S,
    pub(super) request: std::marker::PhantomData<fn() -> Q>,
}

impl<S, Q, A> Resume for Resumer<S, Q>
where
    S: Service<Request<Q>, Response = Response<A>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send,
    Q: Body<Data = Bytes> + From<Bytes> + Unpin + Send + 'static,
    A: Body<Data = Bytes> + Unpin + Send + 'static,
{
    fn ask(&self, record: &Record, request: &Bytes) -> Option<Ask> {
        let asked = Arc::new(read(request, &record.identity.operation)?);
        let mut ask = self.shared.ibid.ask((*record.identity).clone(), record.policy.clone(), asked);
        ask.id = record.id;
        Some(ask)
    }

    fn run(&self, attempt: Attempt, ask: Arc<Ask>, request: Bytes) -> Pending<'static, ()> {
        let (shared, service) = (self.shared.clone(), self.service.clone());
        Box::pin(async move {
            let Some(asked) = read(&request, &ask.identity.operation) else { return };
            let taken = Taken {
                asked: Arc::new(asked),
                ask: (*ask).clone(),
                wait: Duration::ZERO,
                preferred: false,
                too_old: false,
                admitted: None,
            };
            layer::resume(&shared, service, attempt, taken).await;
        })
    }
}

/// The request as it is kept to be resumed: what the handler may need, without what the client proved itself by.
pub(super) fn kept(asked: &HttpAsked) -> Bytes {
    kept_but(asked, &NOT_KEPT)
}

/// The request as it is kept to be run at all: whole, for whoever runs it must be able to let the client in. It goes in the
/// commit that ends the need for it.
pub(super) fn kept_whole(asked: &HttpAsked) -> Bytes {
    kept_but(asked, &[])
}

fn kept_but(asked: &HttpAsked, without: &[HeaderName]) -> Bytes {
    let head = &asked.head;
    let headers = head.headers.iter().filter(|(name, _)| !without.contains(name));
    let kept = Kept {
        method: head.method.as_str().to_owned(),
        uri: head.uri.to_string(),
        sent: super::sent(&head.extensions, &head.uri).to_string(),
        headers: headers
            .map(|(name, value)| Line { name: name.as_str().to_owned(), value: value.as_bytes().to_vec() })
            .collect(),
        body: asked.body.to_vec(),
    };
    // Writing into a Vec has no way to fail.
    Bytes::from(minicbor::to_vec(kept).expect("a Vec takes every byte"))
}

/// The request that was kept for a record of this operation.
fn read(kept: &Bytes, operation: &Operation) -> Option<HttpAsked> {
    let kept: Kept = minicbor::decode(kept).ok()?;
    let mut headers = HeaderMap::with_capacity(kept.headers.len());
    for line in kept.headers {
        headers.append(
            HeaderName::from_bytes(line.name.as_bytes()).ok()?,
            HeaderValue::from_bytes(&line.value).ok()?,
        );
    }
    let (mut head, ()) = Request::new(()).into_parts();
    head.method = Method::from_bytes(kept.method.as_bytes()).ok()?;
    head.uri = kept.uri.parse::<Uri>().ok()?;
    super::was_sent(&mut head.extensions, kept.sent.parse::<Uri>().ok()?);
    head.headers = headers;
    Some(HttpAsked { head, body: Bytes::from(kept.body), operation: operation.clone() })
}

#[derive(Encode, Decode)]
struct Kept {
    #[n(0)]
    method: String,
    /// As the guarded service sees it: a nested router sees only the rest of the path.
    #[n(1)]
    uri: String,
    /// As the client sent it.
    #[n(4)]
    sent: String,
    #[n(2)]
    headers: Vec<Line>,
    #[cbor(n(3), with = "minicbor::bytes")]
    body: Vec<u8>,
}

#[derive(Encode, Decode)]
struct Line {
    #[n(0)]
    name: String,
    #[cbor(n(1), with = "minicbor::bytes")]
    value: Vec<u8>,
}

/// A stored credential is one that can be stolen; the handler knows the tenant from [`Guarded`](super::Guarded).
const NOT_KEPT: [HeaderName; 4] =
    [header::AUTHORIZATION, header::PROXY_AUTHORIZATION, header::COOKIE, header::CONNECTION];

#[cfg(test)]
mod tests {
    use super::*;

    fn rides() -> Operation {
        Operation { method: "POST".into(), path: "/rides".into() }
    }

    #[test]
    fn a_kept_request_comes_back_without_its_credentials() {
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
        let asked = HttpAsked { head, body: Bytes::from_static(b"{\"a\":1}"), operation: rides() };
        let bytes = kept(&asked);
        assert!(!bytes.windows(6).any(|window| window == b"s3cret"));
        let back = read(&bytes, &rides()).unwrap();
        assert_eq!(
            (back.head.method.as_str(), back.head.uri.to_string().as_str()),
            ("POST", "/rides?fast=1")
        );
        assert_eq!(back.head.headers.get_all("x-a").iter().count(), 2);
        assert_eq!(back.body, asked.body);
        assert!(read(&bytes.slice(1..), &rides()).is_none());
        let whole = read(&kept_whole(&asked), &rides()).unwrap();
        assert_eq!(whole.head.headers, asked.head.headers);
    }
}
