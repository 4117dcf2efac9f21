//! Calls to the outside, each sent at most once, and what a failed one proves.
//!
//! It retries nothing by itself. The one exception is hyper's: a request that a pooled connection hands back
//! unsent goes out on another. What to do about a failure is for whoever knows what was asked.

use std::error::Error as StdError;
use std::time::Duration;

use bytes::Bytes;
use http::uri::{PathAndQuery, Scheme};
use http::{HeaderMap, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{self, Client};
use hyper_util::rt::{TokioExecutor, TokioTimer};

/// `http://host[:port][/path]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpUrl(Uri);

/// A URL that can't be called. It is not repeated: it may hold a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be `http://host[:port][/path]`, without user, query or TLS")]
pub struct BadUrl;

impl HttpUrl {
    /// Reads a URL.
    pub fn parse(text: &str) -> Result<HttpUrl, BadUrl> {
        let uri: Uri = text.parse().map_err(|_| BadUrl)?;
        let plain = uri.scheme() == Some(&Scheme::HTTP)
            && uri.query().is_none()
            && uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
        plain.then_some(HttpUrl(uri)).ok_or(BadUrl)
    }

    /// The URL itself.
    pub fn uri(&self) -> &Uri {
        &self.0
    }

    /// With a path and a query, which begin with a slash, behind its own path.
    pub fn join(&self, rest: &str) -> Result<Uri, http::Error> {
        let path = format!("{}{rest}", self.0.path().trim_end_matches('/'));
        let mut parts = self.0.clone().into_parts();
        parts.path_and_query = Some(PathAndQuery::try_from(path)?);
        Ok(Uri::from_parts(parts)?)
    }
}

/// A client that keeps its connections. Clones share them.
#[derive(Clone, Debug)]
pub struct Outgoing(Client<HttpConnector, Full<Bytes>>);

/// An answer that was read to its end.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its fields.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

/// A call without an answer. The texts hold no key and no body.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Certainly no byte of it was read by the other side.
    #[error("not sent: {0}")]
    NotSent(String),
    /// It may have been carried out.
    #[error("no answer: {0}")]
    Uncertain(String),
}

impl Outgoing {
    /// A client without connections yet.
    pub fn new() -> Outgoing {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_FOR));
        let mut builder = Client::builder(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(POOL_IDLE_FOR)
            .pool_max_idle_per_host(POOL_IDLE_MAX)
            // Only what hyper hands back whole, never written to a connection.
            .retry_canceled_requests(true);
        Outgoing(builder.build(connector))
    }

    /// Sends one request and reads its answer to the end, within a bound.
    pub async fn call(&self, request: Request<Full<Bytes>>, within: Duration) -> Result<Answer, CallError> {
        let exchange = async {
            let answer = self.0.request(request).await.map_err(|error| what_it_proves(&error))?;
            let (head, body) = answer.into_parts();
            // The head says that it was carried out in some way, the body in which: half of it is no answer.
            let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|error| CallError::Uncertain(format!("the answer is cut: {error}")))?;
            Ok(Answer { status: head.status, headers: head.headers, body: body.to_bytes() })
        };
        match tokio::time::timeout(within, exchange).await {
            Ok(answered) => answered,
            // How far it came can't be told. Connecting has a shorter bound of its own, so most likely it was sent.
            Err(_) => Err(CallError::Uncertain("no answer in time".to_owned())),
        }
    }
}

impl Default for Outgoing {
    fn default() -> Outgoing {
        Outgoing::new()
    }
}

/// Not sent are: what found no connection; what has no connection to name, as every later error has; and what hyper
/// calls canceled, which it hands back whole. Everything else may have been read by the other side.
fn what_it_proves(error: &legacy::Error) -> CallError {
    let why = chain(error);
    let canceled = error
        .source()
        .and_then(|source| source.downcast_ref::<hyper::Error>())
        .is_some_and(hyper::Error::is_canceled);
    match error.is_connect() || error.connect_info().is_none() || canceled {
        true => CallError::NotSent(why),
        false => CallError::Uncertain(why),
    }
}

fn chain(error: &(dyn StdError + 'static)) -> String {
    let all = std::iter::successors(Some(error), |error| (*error).source());
    all.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// A processor on the same continent accepts within a few round trips; two lost SYNs fit in.
const CONNECT_FOR: Duration = Duration::from_secs(4);

/// Shorter than load balancers keep an idle connection (60 s and more): we close first, so few requests meet a
/// connection that is just going.
const POOL_IDLE_FOR: Duration = Duration::from_secs(30);

/// As many as a worker has calls in flight; more would lie idle.
const POOL_IDLE_MAX: usize = 32;

/// A charge is a few hundred bytes; the rest is room for a proxy's error page.
const ANSWER_BYTES_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_plain_http_and_takes_a_path_behind_its_own() {
        let url = HttpUrl::parse("http://127.0.0.1:9/base/").unwrap();
        assert_eq!(url.join("/charges?a=b").unwrap(), "http://127.0.0.1:9/base/charges?a=b");
        let url = HttpUrl::parse("http://127.0.0.1:9").unwrap();
        assert_eq!(url.join("/charges").unwrap(), "http://127.0.0.1:9/charges");
        for text in ["", "127.0.0.1:9", "https://a", "http://user:secret@a", "http://a/?b", "/charges"] {
            assert_eq!(HttpUrl::parse(text), Err(BadUrl), "{text}");
        }
    }
}
