//! The fixture upstream: a real HTTP/1.1 server that counts what it executes and misbehaves on demand.
//!
//! It is written on raw sockets, because the faults that matter to a gateway happen below HTTP: a reset
//! within the head of a response, a pooled connection closed without notice. It does not depend on ibid.
//! Each directive has a row below, its parsing in `behaviour` and its effect in `connection`.
//!
//! The `x-fixture` field of a request says how to treat it; without one, [`Upstream::behave`] does. Both take
//! directives joined by `;`:
//!
//! | directive | effect |
//! | --- | --- |
//! | `status=201` `body=text` `bytes=N` `header=Name: value` | the response; `bytes` is a body of N bytes |
//! | `echo` | the body is the request as JSON: method, path, query, headers, body |
//! | `retry-after=N` | add the field |
//! | `odd` | repeated lines, a value that is no UTF-8, `Connection: x-a` with `X-A`, cookies, hop-by-hop fields |
//! | `chunked` `trailers` `until-close` | the response's framing, instead of a `Content-Length` |
//! | `events` | a `text/event-stream`, or the type that `header` gives: sends one event and stays open until the gate lets it end |
//! | `upgrade` | `101`, then every byte comes back |
//! | `gate` `delay=MS` | respond when the gate opens, or after a delay |
//! | `cut=unread` | close before reading: the body, or as default the connection's first byte |
//! | `cut=read` `cut=head` `cut=body` `cut=chunk` | close before the response, within its head, body, last chunk |
//! | `cut=after` `cut=next` | close without notice after the response, or on the next request's first byte |
//! | `rst` | close with RST instead of FIN |
//! | `garbage` | respond with bytes that are no HTTP, and close |
//! | `pause=MS` | wait before a close, so that the peer has read what was sent |
//! | `once` | the rest applies to the first execution of this target; later ones get a plain 201 |

mod behaviour;
mod connection;
mod ledger;
mod reserved_port;

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::task::JoinHandle;

pub(crate) use behaviour::Behaviour;
pub(crate) use connection::content;
pub(crate) use ledger::Ledger;
pub use ledger::{RunGate, SeenRequest, Tally};
pub use reserved_port::ReservedPort;

/// A running fixture; dropping it stops it and cuts its connections.
#[derive(Debug)]
pub struct Upstream {
    addr: SocketAddr,
    ledger: Arc<Ledger>,
    serving: JoinHandle<()>,
}

impl Upstream {
    /// Start on a free loopback port.
    pub async fn start() -> Upstream {
        ReservedPort::port().start()
    }

    /// Returns the address that it listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `http://address`, without a path.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Sets how requests without an `x-fixture` field are treated from now on. Panics on a bad directive.
    pub fn behave(&self, directives: &str) {
        self.ledger.behave(Behaviour::parse(directives).unwrap_or_else(|e| panic!("{e}")));
    }

    /// Returns how often requests with this key were executed, that is, read to their end.
    pub fn executions(&self, key: &str) -> usize {
        self.ledger.tally().per_key.get(key).copied().unwrap_or_default()
    }

    /// Returns how often this target was executed, with any key; as far back as the log goes.
    pub fn executions_of(&self, target: &str) -> usize {
        self.ledger.executions_of(target)
    }

    /// Returns the number of executed requests.
    pub fn total(&self) -> usize {
        self.ledger.tally().total
    }

    /// Returns how many requests had their head read: more than [`Upstream::total`] when bodies were cut.
    pub fn deliveries_begun(&self) -> usize {
        self.ledger.tally().begun
    }

    /// Returns all the counts at this moment.
    pub fn tally(&self) -> Tally {
        self.ledger.tally()
    }

    /// Waits until the counts satisfy `enough`; panics if they do not within half a minute.
    pub async fn until(&self, enough: impl FnMut(&Tally) -> bool) -> Tally {
        self.ledger.until(enough).await
    }

    /// Returns the executed requests, oldest first: the newest thousand or so.
    pub fn requests(&self) -> Vec<SeenRequest> {
        self.ledger.requests()
    }

    /// The gate that requests with the directive `gate` wait at.
    pub fn gate(&self) -> &RunGate {
        &self.ledger.gate
    }

    /// Stops and keeps the port, on which connections are refused until it is started again.
    pub async fn stop(mut self) -> ReservedPort {
        self.serving.abort();
        // The listener is closed only once the task has ended. Then the port is free for us to bind.
        let _ = (&mut self.serving).await;
        ReservedPort::bind(self.addr)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;

    use super::*;
    use crate::client::{Client, TestRequest};

    #[tokio::test]
    async fn a_request_counts_when_its_body_was_read() {
        let upstream = Upstream::start().await;
        let mut client = Client::connect(upstream.addr()).await;
        let pay = TestRequest::post("/pay?x=1").key("k").body("all of it").fixture("status=201;echo");
        let half = pay.to_bytes().len() - 3;
        client.send_bytes(&pay.to_bytes()[..half]).await;
        upstream.until(|t| t.begun == 1).await;
        assert_eq!(upstream.total(), 0);
        client.send_bytes(&pay.to_bytes()[half..]).await;
        let answer = client.read().await.expect("an answer");
        assert_eq!((answer.status, answer.cut), (201, false));
        assert!(answer.text().contains("\"query\":\"x=1\""), "{}", answer.text());
        assert_eq!((upstream.executions("k"), upstream.total()), (1, 1));
        // The connection is kept alive.
        assert_eq!(client.call(&TestRequest::get("/").fixture("status=204")).await.status, 204);
        assert_eq!(upstream.tally().connections, 1);
    }

    #[tokio::test]
    async fn each_cut_is_seen_where_it_was_made() {
        let upstream = Upstream::start().await;
        for (fixture, expected) in [
            ("cut=unread", None),
            ("cut=read", None),
            ("cut=read;rst", None),
            ("cut=head", None),
            ("cut=body", Some((true, "do"))),
            ("cut=chunk", Some((true, "done"))),
            ("cut=after", Some((false, "done"))),
            ("until-close", Some((false, "done"))),
            ("trailers", Some((false, "done"))),
            ("garbage", None),
        ] {
            let mut client = Client::connect(upstream.addr()).await;
            let answer = client.try_call(&TestRequest::post("/").fixture(fixture)).await;
            let outcome = answer.map(|a| (a.cut, a.text()));
            assert_eq!(outcome, expected.map(|(cut, text)| (cut, text.to_owned())), "{fixture}");
        }
        assert_eq!((upstream.deliveries_begun(), upstream.total()), (10, 9));
    }

    #[tokio::test]
    async fn once_holds_for_the_first_execution_of_a_target() {
        let upstream = Upstream::start().await;
        let mut client = Client::connect(upstream.addr()).await;
        for (target, status) in [("/a", 503), ("/a", 201), ("/b", 503)] {
            let answer = client.call(&TestRequest::post(target).fixture("once;status=503")).await;
            assert_eq!(answer.status, status, "{target}");
        }
        assert_eq!((upstream.executions_of("/a"), upstream.executions_of("/b")), (2, 1));
    }

    #[tokio::test]
    async fn a_stopped_upstream_refuses_and_comes_back_on_its_port() {
        let upstream = Upstream::start().await;
        let addr = upstream.addr();
        let reserved = upstream.stop().await;
        let refused = TcpStream::connect(addr).await.map(|_| ());
        assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
        let upstream = reserved.start();
        assert_eq!(Client::connect(addr).await.call(&TestRequest::get("/")).await.text(), "done");
        assert_eq!(upstream.total(), 1);
    }

    #[tokio::test]
    async fn a_mistyped_directive_is_answered_with_599() {
        let upstream = Upstream::start().await;
        let answer =
            Client::connect(upstream.addr()).await.call(&TestRequest::get("/").fixture("cutt=head")).await;
        assert_eq!(answer.status, 599);
    }
}
