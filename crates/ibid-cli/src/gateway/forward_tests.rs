//! Tests of the forwarder: which parts of a request it forwards, and what its failures prove. Every upstream here is a
//! real socket.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::{Request, Response, StatusCode, Uri, Version};
use http_body_util::{BodyExt, Empty, Full};
use ibid_testkit::upstream::{ReservedPort, Upstream};
use ibid_testkit::upstream_h2::UpstreamH2;
use tower::ServiceExt;

use super::bounds::Bound;
use super::forward::{ForwardBody, Forwarder};
use super::upstream_connections::UpstreamConnections;
use super::upstream_tls::TlsSettings;
use ibid::http::ExecutionHint;

#[tokio::test]
async fn the_target_goes_out_byte_for_byte_behind_the_base_path() {
    let upstream = Upstream::start().await;
    for (base, asked, sent) in [
        ("", "/pay", "/pay"),
        ("/", "/pay?", "/pay?"),
        ("/v1/", "//a/../b%2Fc;d?x=1&x=2%20", "/v1//a/../b%2Fc;d?x=1&x=2%20"),
        ("/v1", "http://elsewhere.test/pay", "/v1/pay"),
    ] {
        let forwarder = forwarder(&format!("{}{base}", upstream.url()), false);
        let request = Request::get(asked).body(Empty::<Bytes>::new()).unwrap();
        assert_eq!(forwarder.oneshot(request).await.unwrap().status(), 200);
        assert_eq!(upstream.requests().last().unwrap().target, sent);
    }
}

#[tokio::test]
async fn fields_of_one_connection_end_here_in_both_directions() {
    let upstream = Upstream::start().await;
    let request = post("k", "odd")
        .header("connection", "x-mine, close, idempotency-key, content-length")
        .header("x-mine", "1")
        .header("keep-alive", "timeout=9")
        .header("te", "gzip, trailers")
        .header("upgrade", "websocket")
        .header("proxy-authorization", "Basic abc")
        .header("expect", "100-continue")
        .header("x-kept", "1")
        .header("x-kept", "2");
    let answer = send(&forwarder(&upstream.url(), false), request).await;

    let received = upstream.requests().pop().unwrap();
    for gone in ["x-mine", "keep-alive", "upgrade", "proxy-authorization", "expect", "transfer-encoding"] {
        assert_eq!(received.header(gone), None, "{gone}");
    }
    assert_eq!(received.header_lines("x-kept"), ["1", "2"]);
    assert_eq!(
        (received.header("te"), received.header("connection")),
        (Some("trailers".into()), Some("TE".into()))
    );
    assert_eq!(received.key().as_deref(), Some("k"), "a client cannot have its key stripped");
    assert_eq!(received.header("content-length").as_deref(), Some("4"));

    for gone in ["connection", "x-a", "keep-alive", "proxy-connection", "proxy-authenticate", "upgrade"] {
        assert!(!answer.headers().contains_key(gone), "{gone}");
    }
    let lines = |name| answer.headers().get_all(name).iter().map(|v| v.as_bytes()).collect::<Vec<_>>();
    assert_eq!(lines("link"), [b"</a>; rel=\"next\"", b"</b>; rel=\"prev\""]);
    assert_eq!(lines("x-bytes"), [b"caf\xe9"]);
    assert_eq!(lines("set-cookie").len(), 2);
    assert_eq!(lines("content-disposition"), [b"attachment; filename=\"a,b.txt\""]);
}

#[tokio::test]
async fn the_upstream_learns_on_whose_behalf_we_ask() {
    let upstream = Upstream::start().await;
    let forwarder = forwarder(&upstream.url(), false);
    let from_us = |request: http::request::Builder| {
        let mut request = request.header("host", "shop.test").header("connection", "x-forwarded-for");
        super::forward::mark_peer(
            request.headers_mut().unwrap(),
            &http::HeaderValue::from_static("192.0.2.7"),
        );
        request
    };
    send(&forwarder, from_us(post("a", ""))).await;
    let behind_proxy = post("b", "")
        .header("x-forwarded-for", "198.51.100.1")
        .header("x-forwarded-for", "198.51.100.2")
        .header("x-forwarded-proto", "https")
        .header("x-forwarded-host", "outer.test");
    send(&forwarder, from_us(behind_proxy)).await;

    let [first, second] = &upstream.requests()[..] else { panic!("two requests") };
    assert_eq!(first.header("host"), Some(upstream.addr().to_string()));
    let lines = |name| (first.header_lines(name).concat(), second.header_lines(name).concat());
    assert_eq!(
        lines("x-forwarded-for"),
        ("192.0.2.7".into(), "198.51.100.1, 198.51.100.2, 192.0.2.7".into())
    );
    assert_eq!(lines("x-forwarded-proto"), ("http".into(), "https".into()));
    assert_eq!(lines("x-forwarded-host"), ("shop.test".into(), "outer.test".into()));
    assert_eq!(lines("via"), (String::new(), String::new()));
}

#[tokio::test]
async fn a_request_of_http2_is_put_into_http1() {
    let upstream = Upstream::start().await;
    let request = Request::post("http://shop.test/pay")
        .version(Version::HTTP_2)
        .header("cookie", "a=1")
        .header("cookie", "b=2")
        .body(Full::from("body"))
        .unwrap();
    assert_eq!(forwarder(&upstream.url(), false).oneshot(request).await.unwrap().status(), 200);
    let received = upstream.requests().pop().unwrap();
    assert_eq!(received.header_lines("cookie"), ["a=1; b=2"]);
    assert_eq!(received.header("x-forwarded-host").as_deref(), Some("shop.test"));
}

#[tokio::test]
async fn every_kind_of_answer_passes_whole() {
    let upstream = Upstream::start().await;
    let forwarder = forwarder(&upstream.url(), false);
    for (fixture, status, body) in [
        ("status=204", 204, ""),
        ("status=304", 304, ""),
        ("status=503;retry-after=7;body=later", 503, "later"),
        ("status=409;retry-after=1;body=", 409, ""),
        ("until-close;body=to the end", 200, "to the end"),
        ("chunked;body=in chunks", 200, "in chunks"),
    ] {
        let answer = send(&forwarder, post("k", fixture)).await;
        assert_eq!((answer.status().as_u16(), hint_of(&answer)), (status, None), "{fixture}");
        assert_eq!(text(answer).await.unwrap(), body, "{fixture}");
    }
    let big = send(&forwarder, post("k", "bytes=3000000")).await;
    assert_eq!(text(big).await.unwrap().len(), 3_000_000);
    let trailers = send(&forwarder, post("k", "trailers")).await.into_body().collect().await.unwrap();
    assert_eq!(trailers.trailers().unwrap()["x-sum"], "1");
}

#[tokio::test]
async fn an_event_stream_is_passed_on_while_it_runs() {
    let upstream = Upstream::start().await;
    let mut answer = send(&forwarder(&upstream.url(), false), post("k", "events")).await;
    let first = answer.body_mut().frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(first, "data: 1\n\n");
    upstream.until(|t| t.held == 1).await;
    upstream.gate().release(1);
    assert_eq!(text(answer).await.unwrap(), "data: 2\n\n");
}

#[tokio::test]
async fn a_refused_connection_proves_that_nothing_was_executed() {
    let reserved = ReservedPort::port();
    let forwarder = forwarder(&reserved.url(), false);
    let answer = send(&forwarder, post("k", "")).await;
    assert_eq!((answer.status().as_u16(), hint_of(&answer)), (503, Some(ExecutionHint::NotExecuted)));
    assert_eq!(answer.headers()["content-type"], "application/problem+json");
    assert_eq!(answer.headers()["cache-control"], "no-store");
    let problem: serde_json::Value = serde_json::from_str(&text(answer).await.unwrap()).unwrap();
    assert_eq!(problem["type"], "urn:ibid:problem:upstream-unavailable");
    assert_eq!(problem["status"], 503);

    let upstream = reserved.start();
    assert_eq!(text(send(&forwarder, post("k", "cut=after")).await).await.unwrap(), "done");
    // Otherwise the next request could see the close of the old connection instead of the refusal.
    upstream.until(|t| t.closed == 1).await;
    let reserved = upstream.stop().await;
    assert_eq!(hint_of(&send(&forwarder, post("k", "")).await), Some(ExecutionHint::NotExecuted));
    drop(reserved);
}

#[tokio::test]
async fn a_pooled_connection_found_closed_costs_nothing() {
    let upstream = Upstream::start().await;
    let forwarder = forwarder(&upstream.url(), false);
    let first = send(&forwarder, post("a", "cut=after")).await;
    assert_eq!(text(first).await.unwrap(), "done");
    upstream.until(|t| t.closed == 1).await;
    let second = send(&forwarder, post("b", "status=201")).await;
    assert_eq!((second.status().as_u16(), hint_of(&second)), (201, None));
    assert_eq!((upstream.executions("b"), upstream.tally().connections), (1, 2));
}

#[tokio::test]
async fn a_close_after_the_request_was_written_leaves_it_uncertain() {
    let upstream = Upstream::start().await;
    let forwarder = forwarder(&upstream.url(), false);
    let first = send(&forwarder, post("a", "cut=next")).await;
    assert_eq!(text(first).await.unwrap(), "done");
    let second = send(&forwarder, post("b", "")).await;
    assert_eq!((second.status().as_u16(), hint_of(&second)), (502, Some(ExecutionHint::Uncertain)));
    let problem: serde_json::Value = serde_json::from_str(&text(second).await.unwrap()).unwrap();
    assert_eq!(problem["type"], "urn:ibid:problem:outcome-unknown");
    upstream.until(|t| t.closed == 1).await;
    let tally = upstream.tally();
    assert_eq!((tally.connections, tally.begun, tally.total), (1, 1, 1), "it was not sent again");
}

#[tokio::test]
async fn a_response_cut_before_its_head_ends_is_uncertain() {
    for reused in [false, true] {
        for fixture in ["cut=unread", "cut=read", "cut=read;rst", "cut=head", "cut=head;rst", "upgrade"] {
            let upstream = Upstream::start().await;
            let forwarder = forwarder(&upstream.url(), false);
            if reused {
                assert_eq!(text(send(&forwarder, post("first", "")).await).await.unwrap(), "done");
            }
            let answer = send(&forwarder, post("k", fixture)).await;
            assert_eq!(
                (answer.status().as_u16(), hint_of(&answer)),
                (502, Some(ExecutionHint::Uncertain)),
                "{fixture}"
            );
            let tally = upstream.tally();
            assert_eq!((tally.begun, tally.connections), (1 + usize::from(reused), 1), "{fixture}");
            assert_eq!(upstream.executions("k"), usize::from(fixture != "cut=unread"), "{fixture}");
        }
    }
}

#[tokio::test]
async fn an_answer_cut_in_its_body_is_an_error_of_the_body() {
    let upstream = Upstream::start().await;
    let forwarder = forwarder(&upstream.url(), false);
    for fixture in ["cut=body", "cut=chunk", "cut=body;rst"] {
        let answer = send(&forwarder, post("k", fixture)).await;
        // With an RST even the head may be lost in transit, which is just as uncertain.
        if answer.status() == StatusCode::OK {
            assert!(text(answer).await.is_err(), "{fixture}");
        } else {
            assert_eq!(hint_of(&answer), Some(ExecutionHint::Uncertain), "{fixture}");
        }
    }
    assert_eq!(upstream.total(), 3);
}

#[tokio::test]
async fn an_immediately_closed_connection_is_not_an_answer() {
    let upstream = Upstream::start().await;
    let forwarder = forwarder(&upstream.url(), false);
    for behaviour in ["cut=unread", "cut=unread;rst"] {
        upstream.behave(behaviour);
        let answer = send(&forwarder, post("k", "")).await;
        // Either the close or our request may come first, so either hint may be right.
        assert!(hint_of(&answer).is_some());
    }
    assert_eq!(upstream.deliveries_begun(), 0);
}

/// Connections close without notice while requests are in flight, in any order. No response may carry a hint that the
/// upstream's count contradicts.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_race_with_a_closing_upstream_never_executes_twice() {
    let upstream = Upstream::start().await;
    let forwarder = forwarder(&upstream.url(), false);
    for round in 0..20 {
        let keys: Vec<_> = (0..20).map(|n| format!("{round}-{n}")).collect();
        let answers = join_all(keys.iter().zip(0..).map(|(key, n)| {
            let fixture = ["cut=after", "cut=after;rst", "cut=next", ""][(n + round) % 4];
            let forwarder = forwarder.clone();
            async move { send(&forwarder, post(key, fixture)).await }
        }));
        for (key, answer) in keys.iter().zip(answers.await) {
            let executed = upstream.executions(key);
            match hint_of(&answer) {
                None => assert_eq!((answer.status().as_u16(), executed), (200, 1), "{key}"),
                Some(ExecutionHint::NotExecuted) => assert_eq!(executed, 0, "{key}"),
                Some(ExecutionHint::Uncertain | ExecutionHint::Executed) => assert!(executed <= 1, "{key}"),
            }
            let _ = text(answer).await;
        }
    }
    assert_eq!(upstream.tally().repeated_keys(), [""; 0]);
}

#[tokio::test]
async fn over_http2_requests_share_a_connection() {
    let upstream = UpstreamH2::start().await;
    let forwarder = forwarder(&upstream.url(), true);
    let request = || post("k", "status=201;echo").header("te", "trailers").header("host", "shop.test");
    let answers = join_all((0..3).map(|_| send(&forwarder, request()))).await;
    for answer in answers {
        assert_eq!((answer.status().as_u16(), answer.version()), (201, Version::HTTP_11));
        assert!(text(answer).await.unwrap().contains("\"body\":\"body\""));
    }
    let received = upstream.requests().pop().unwrap();
    assert_eq!((received.header("te").as_deref(), received.header("host")), (Some("trailers"), None));
    assert_eq!((upstream.total(), upstream.tally().connections), (3, 1));
}

#[tokio::test]
async fn a_refused_stream_proves_that_nothing_was_executed() {
    let upstream = UpstreamH2::start().await;
    let forwarder = forwarder(&upstream.url(), true);
    let answer = send(&forwarder, post("k", "refuse")).await;
    assert_eq!((answer.status().as_u16(), hint_of(&answer)), (503, Some(ExecutionHint::NotExecuted)));
    assert_eq!((upstream.tally().begun, upstream.executions("k")), (1, 0), "and we do not try again");
    assert_eq!(send(&forwarder, post("k", "")).await.status(), 200);
}

#[tokio::test]
async fn a_stream_reset_for_any_other_reason_is_uncertain() {
    let upstream = UpstreamH2::start().await;
    let forwarder = forwarder(&upstream.url(), true);
    for (sent, fixture) in ["reset=internal", "reset=cancel"].into_iter().enumerate() {
        let answer = send(&forwarder, post("k", fixture)).await;
        assert_eq!(
            (answer.status().as_u16(), hint_of(&answer)),
            (502, Some(ExecutionHint::Uncertain)),
            "{fixture}"
        );
        assert_eq!(upstream.executions("k"), sent + 1);
    }
}

#[tokio::test]
async fn a_goaway_proves_non_execution_only_above_its_last_stream() {
    let upstream = UpstreamH2::start().await;
    let forwarder = forwarder(&upstream.url(), true);
    let before = tokio::spawn({
        let forwarder = forwarder.clone();
        async move { send(&forwarder, post("before", "gate;body=whole")).await }
    });
    upstream.until(|t| t.held == 1).await;

    let above = send(&forwarder, post("above", "goaway=below")).await;
    assert_eq!((above.status().as_u16(), hint_of(&above)), (503, Some(ExecutionHint::NotExecuted)));
    assert_eq!(upstream.executions("above"), 0);

    upstream.gate().release(1);
    assert_eq!(text(before.await.unwrap()).await.unwrap(), "whole");
    let again = send(&forwarder, post("above", "")).await;
    assert_eq!((again.status().as_u16(), upstream.executions("above")), (200, 1));
}

#[tokio::test]
async fn a_goaway_proves_nothing_for_its_last_stream() {
    let upstream = UpstreamH2::start().await;
    let answer = send(&forwarder(&upstream.url(), true), post("k", "goaway=at")).await;
    assert_eq!((answer.status().as_u16(), hint_of(&answer)), (502, Some(ExecutionHint::Uncertain)));
    assert_eq!(upstream.executions("k"), 1);
}

/// The HTTP/2 counterpart of `a_race_with_a_closing_upstream_never_executes_twice`: the upstream sends GOAWAY and refuses
/// while streams open.
///
/// The HTTP client sometimes loses a request that is queued while its connection ends, and its future never resolves
/// (about one in ten thousand here, more with the usual executor). So each request has a deadline, as every caller of the
/// forwarder must set one. A request that reaches it is uncertain.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_race_with_a_goaway_proves_nothing_false() {
    let upstream = UpstreamH2::start().await;
    race_with_goaway(&upstream, &forwarder(&upstream.url(), true), 20).await;
}

/// Sends requests while the upstream sends GOAWAY and refuses, and checks every hint against the upstream's count.
pub(super) async fn race_with_goaway(upstream: &UpstreamH2, forwarder: &Forwarder, rounds: usize) {
    for round in 0..rounds {
        let keys: Vec<_> = (0..20).map(|n| format!("{round}-{n}")).collect();
        let sending = keys.iter().cloned().zip(0..).map(|(key, n)| {
            let fixture = ["", "", "refuse", "", "goaway=at", "", "goaway=below", ""][(n + round) % 8];
            let forwarder = forwarder.clone();
            tokio::spawn(async move {
                let sent = send(&forwarder, post(&key, fixture));
                (tokio::time::timeout(DEADLINE, sent).await.ok(), key)
            })
        });
        for sent in join_all(sending.collect::<Vec<_>>()).await {
            let (answer, key) = sent.unwrap();
            let executed = upstream.executions(&key);
            match answer.map(|answer| (answer.status().as_u16(), hint_of(&answer))) {
                Some((status, None)) => assert_eq!((status, executed), (200, 1), "{key}"),
                Some((_, Some(ExecutionHint::NotExecuted))) => assert_eq!(executed, 0, "{key}"),
                Some((_, Some(ExecutionHint::Uncertain | ExecutionHint::Executed))) | None => {
                    assert!(executed <= 1, "{key}")
                }
            }
        }
    }
    assert_eq!(upstream.tally().repeated_keys(), [""; 0]);
}

#[tokio::test]
async fn a_tunnel_is_not_offered() {
    let upstream = Upstream::start().await;
    let request = Request::connect("elsewhere.test:443").body(Empty::<Bytes>::new()).unwrap();
    let answer = forwarder(&upstream.url(), false).oneshot(request).await.unwrap();
    assert_eq!((answer.status().as_u16(), upstream.tally().connections), (501, 0));
}

#[tokio::test]
async fn a_wait_for_a_connection_is_bounded_and_proves_nothing_sent() {
    let upstream = Upstream::start().await;
    let connections = UpstreamConnections::new(1, Bound::UpstreamConnections);
    let connections = connections.waiting_for(Duration::from_millis(100));
    let forwarder = {
        let (url, tls) = (upstream.url().parse().unwrap(), TlsSettings::default());
        Forwarder::with_connections(url, false, &tls, connections.clone()).unwrap()
    };
    let first = tokio::spawn({
        let forwarder = forwarder.clone();
        async move { send(&forwarder, post("a", "gate")).await.into_body().collect().await.unwrap() }
    });
    upstream.until(|tally| tally.total == 1).await;
    let refused = send(&forwarder, post("b", "")).await;
    assert_eq!((refused.status().as_u16(), hint_of(&refused)), (503, Some(ExecutionHint::NotExecuted)));
    assert_eq!((connections.in_use(), upstream.executions("b")), (1, 0));

    // The connection that the first request returns is reused.
    upstream.gate().open();
    first.await.unwrap();
    assert_eq!(send(&forwarder, post("b", "")).await.status(), StatusCode::OK);
    assert_eq!((connections.in_use(), upstream.tally().connections), (1, 1));
}

#[test]
fn an_upstream_needs_an_http_address() {
    for bad in ["/path", "ftp://pay.test", "http://a:b@pay.test", "http://pay.test/?q", "pay.test:80"] {
        assert!(Forwarder::new(bad.parse().unwrap(), false, &TlsSettings::default()).is_err(), "{bad}");
    }
}

fn forwarder(upstream: &str, http2: bool) -> Forwarder {
    Forwarder::new(upstream.parse::<Uri>().unwrap(), http2, &TlsSettings::default()).unwrap()
}

fn post(key: &str, fixture: &str) -> http::request::Builder {
    let request = Request::post("/pay").header("idempotency-key", format!("\"{key}\""));
    if fixture.is_empty() { request } else { request.header("x-fixture", fixture) }
}

async fn send(forwarder: &Forwarder, request: http::request::Builder) -> Response<ForwardBody> {
    let request = request.body(Full::<Bytes>::from("body")).unwrap();
    forwarder.clone().oneshot(request).await.unwrap()
}

fn hint_of(answer: &Response<ForwardBody>) -> Option<ExecutionHint> {
    answer.extensions().get().copied()
}

async fn text(answer: Response<ForwardBody>) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    let body = answer.into_body().collect().await?.to_bytes();
    Ok(String::from_utf8_lossy(&body).into_owned())
}

/// Deadline of one request: far longer than any response here takes, and short enough to wait for when none comes.
const DEADLINE: Duration = Duration::from_secs(3);
