//! Corner cases of HTTP over real sockets: what the gateway forwards, stores, replays and bounds.

use ibid_testkit::client::{TestRequest, TestResponse};
use ibid_testkit::upstream::Upstream;

use crate::harness::{Gateway, On, Setup, assert_problem, is_replay, on_every_store, until_async};

async fn world_on(on: On, config: &str) -> (Upstream, Gateway) {
    let upstream = Upstream::start().await;
    let gateway = Setup::before(&upstream.url()).on(on).config(config).start();
    (upstream, gateway)
}

async fn world_with(config: &str) -> (Upstream, Gateway) {
    world_on(On::Sqlite, config).await
}

async fn world() -> (Upstream, Gateway) {
    world_with("").await
}

fn pay(key: &str) -> TestRequest {
    TestRequest::post("/payments").key(key).body("five")
}

fn bytes_of(answer: &TestResponse, name: &str) -> Vec<Vec<u8>> {
    let named = |line: &&(Vec<u8>, Vec<u8>)| line.0.eq_ignore_ascii_case(name.as_bytes());
    answer.headers.iter().filter(named).map(|(_, value)| value.clone()).collect()
}

#[tokio::test]
async fn a_body_is_requested_only_when_it_is_needed() {
    let (upstream, gateway) = world_with("[defaults]\nmax_request_body = \"1KiB\"\n").await;
    let wanted = gateway.call(&pay("wanted").expect_continue()).await;
    assert_eq!((wanted.status, wanted.interim), (200, vec![100]));
    let replay = gateway.call(&pay("wanted").expect_continue()).await;
    assert!(is_replay(&replay) && replay.interim == [100], "the body is compared: {replay:?}");
    let bad_key =
        TestRequest::post("/payments").header("Idempotency-Key", "\"a").body("five").expect_continue();
    let refused = gateway.call(&bad_key).await;
    assert_problem(&refused, 400, "key-invalid");
    assert_eq!(refused.interim, Vec::<u16>::new());
    let no_key = gateway.call(&TestRequest::post("/payments").body("five").expect_continue()).await;
    assert_problem(&no_key, 400, "key-missing");
    assert_eq!(no_key.interim, Vec::<u16>::new());
    let large = gateway.call(&pay("large").body("x".repeat(1025)).expect_continue()).await;
    assert_problem(&large, 413, "body-too-large");
    assert_eq!(large.interim, Vec::<u16>::new());
    assert_eq!(upstream.deliveries_begun(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_chunked_body_is_the_same_request_as_one_with_a_length() {
    let (upstream, gateway) = world_with("[defaults]\nmax_request_body = \"1KiB\"\n").await;
    let chunked = gateway.call(&pay("chunked").body("five pounds").chunked().fixture("echo")).await;
    assert_eq!(chunked.status, 200);
    let with_length = gateway.call(&pay("chunked").body("five pounds")).await;
    assert!(is_replay(&with_length) && with_length.body == chunked.body, "{with_length:?}");
    let delivered = &upstream.requests()[0];
    assert_eq!(delivered.body, b"five pounds");
    assert_eq!(
        (delivered.header("content-length").as_deref(), delivered.header("transfer-encoding")),
        (Some("11"), None)
    );
    let large = gateway.call(&pay("large").body("x".repeat(1025)).chunked()).await;
    assert_problem(&large, 413, "body-too-large");
    let page = gateway.call(&TestRequest::get("/.ibid/keys/large?method=POST&path=/payments")).await;
    assert_eq!(page.status, 404, "no record");
    assert_eq!(upstream.deliveries_begun(), 1);
}

#[tokio::test]
async fn a_key_in_the_trailers_is_no_key() {
    let (upstream, gateway) = world().await;
    let trailing =
        TestRequest::post("/payments").body("five").chunked().trailer("Idempotency-Key", "\"late\"");
    assert_problem(&gateway.call(&trailing).await, 400, "key-missing");
    let both = pay("early").chunked().trailer("Idempotency-Key", "\"late\"").trailer("X-Sum", "1");
    assert_eq!(gateway.call(&both).await.status, 200);
    assert_eq!((upstream.executions("early"), upstream.executions("late"), upstream.total()), (1, 0, 1));
}

on_every_store!(an_odd_response_is_replayed_byte_for_byte and mysql);
async fn an_odd_response_is_replayed_byte_for_byte(on: On) {
    let (upstream, gateway) = world_on(on, "").await;
    let request = pay("odd").fixture("odd;status=201;body=paid;header=Content-Encoding: gzip");
    let first = gateway.call(&request).await;
    let second = gateway.call(&request).await;
    assert!(!is_replay(&first) && is_replay(&second));
    for answer in [&first, &second] {
        assert_eq!((answer.status, answer.text().as_str()), (201, "paid"));
        let links = [&b"</a>; rel=\"next\""[..], b"</b>; rel=\"prev\""];
        assert_eq!(bytes_of(answer, "link"), links, "{answer:?}");
        assert_eq!(bytes_of(answer, "x-bytes"), [b"caf\xe9"], "{answer:?}");
        assert_eq!(bytes_of(answer, "x-empty"), [b""], "{answer:?}");
        assert_eq!(bytes_of(answer, "content-encoding"), [b"gzip"], "{answer:?}");
        assert_eq!(bytes_of(answer, "content-disposition").len(), 1);
        for name in ["x-a", "keep-alive", "proxy-connection", "proxy-authenticate", "upgrade"] {
            assert_eq!(answer.header(name), None, "{name} in {answer:?}");
        }
    }
    // A cookie belongs to one client, and the retry may come from another.
    assert_eq!((bytes_of(&first, "set-cookie").len(), bytes_of(&second, "set-cookie").len()), (2, 0));
    assert_eq!(upstream.total(), 1);
}

#[tokio::test]
async fn compressed_bytes_are_replayed_as_they_came() {
    let (upstream, gateway) = world().await;
    let request = pay("packed")
        .fixture("header=Content-Encoding: br;body=not really brotli")
        .header("Accept-Encoding", "br");
    let first = gateway.call(&request).await;
    let second = gateway.call(&request).await;
    assert!(is_replay(&second) && second.body == first.body && second.text() == "not really brotli");
    assert_eq!(second.header("content-encoding").as_deref(), Some("br"));
    // A retry may accept other codings than the first request, so the gateway asks for none.
    assert_eq!(upstream.requests()[0].header("accept-encoding").as_deref(), Some("identity"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn trailers_of_an_answer_arrive_and_are_replayed() {
    let (_upstream, gateway) = world().await;
    let request = pay("trailers").fixture("trailers;status=201").header("TE", "trailers");
    for replayed in [false, true] {
        let answer = gateway.call(&request).await;
        assert_eq!((answer.status, answer.text().as_str(), is_replay(&answer)), (201, "done", replayed));
        assert_eq!(answer.trailers, [(b"x-sum".to_vec(), b"1".to_vec())], "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn answers_without_a_body_stay_without_one() {
    let (upstream, gateway) = world().await;
    for status in [204, 304] {
        let request = pay(&format!("s{status}")).fixture(&format!("status={status};header=ETag: \"v1\""));
        let mut client = gateway.client().await;
        for replayed in [false, true] {
            // All on one connection: a stray body byte would corrupt the next head.
            let answer = client.call(&request).await;
            assert_eq!((answer.status, is_replay(&answer)), (status, replayed), "{answer:?}");
            assert_eq!(answer.header("etag").as_deref(), Some("\"v1\""));
            assert_eq!(answer.header("transfer-encoding"), None);
        }
        assert_eq!(client.call(&TestRequest::get("/after")).await.text(), "done");
    }
    assert_eq!(upstream.total(), 4);
}

#[tokio::test]
async fn unguarded_requests_pass_untouched_with_any_key() {
    let (upstream, gateway) = world().await;
    let garbage: &[u8] = b"\"unclosed, \xff;;";
    let mut client = gateway.client().await;
    for method in ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"] {
        let request = TestRequest::new(method, "/things?a=%2F&b")
            .header("Idempotency-Key", garbage)
            .header("Idempotency-Key", "again")
            .header("Accept-Encoding", "gzip")
            .fixture("status=203;body=thing");
        for _ in 0..2 {
            let answer = client.call(&request).await;
            assert_eq!((answer.status, is_replay(&answer)), (203, false), "{method}");
            assert_eq!(answer.text(), if method == "HEAD" { "" } else { "thing" });
            assert_eq!(answer.header("content-length").as_deref(), Some("5"), "{method}");
        }
    }
    let delivered = upstream.requests();
    assert_eq!(delivered.len(), 10);
    for request in delivered {
        assert_eq!(request.target, "/things?a=%2F&b");
        let keys: Vec<_> =
            request.headers.iter().filter(|line| line.0.eq_ignore_ascii_case(b"idempotency-key")).collect();
        assert_eq!((keys.len(), keys[0].1.as_slice()), (2, garbage), "{request:?}");
        assert_eq!(request.header("accept-encoding").as_deref(), Some("gzip"));
    }
}

#[tokio::test]
async fn the_key_reaches_the_upstream_as_it_was_sent() {
    let (upstream, gateway) = world().await;
    gateway.call(&TestRequest::post("/a").header("Idempotency-Key", "bare-key").body("x")).await;
    gateway.call(&TestRequest::post("/a").header("Idempotency-Key", "\"bare-key\"").body("x")).await;
    gateway.call(&TestRequest::post("/b").header("Idempotency-Key", "\"quoted key\"").body("x")).await;
    let keys: Vec<_> =
        upstream.requests().iter().map(|request| request.header_lines("idempotency-key")).collect();
    assert_eq!(keys, [["bare-key"], ["\"quoted key\""]], "both spellings are one key");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_oversized_response_passes_whole_but_is_not_retained() {
    let (upstream, gateway) = world_with("[defaults]\nmax_response_body = \"64KiB\"\n").await;
    for (key, framing) in [("length", ""), ("chunked", ";chunked"), ("until-close", ";until-close")] {
        let request = pay(key).fixture(&format!("status=201;bytes=300000{framing}"));
        let first = gateway.call(&request).await;
        assert_eq!((first.status, first.body.len(), first.cut), (201, 300_000, false), "{key}");
        assert_eq!(first.header("idempotency-stored").as_deref(), Some("false"), "{key}");
        assert_problem(&gateway.call(&request).await, 410, "response-not-retained");
        assert_eq!(upstream.executions(key), 1);
    }
    let fits = pay("fits").fixture("bytes=65536;chunked");
    assert_eq!(gateway.call(&fits).await.header("idempotency-stored"), None);
    let replay = gateway.call(&fits).await;
    assert!(is_replay(&replay) && replay.body.len() == 65_536);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_event_stream_passes_through_without_being_kept() {
    let (upstream, gateway) = world().await;
    let request = pay("stream").fixture("events");
    let mut client = gateway.client().await;
    client.send(&request).await;
    let head = client.read_head().await.expect("the head comes before the stream ends");
    assert_eq!(head.status, 200);
    assert!(
        head.headers.iter().any(|(name, value)| name == b"idempotency-stored" && value == b"false"),
        "{head:?}"
    );
    let mut bytes = Vec::new();
    while !String::from_utf8_lossy(&bytes).contains("data: 1") {
        let more = client.read_some(1024).await;
        assert!(!more.is_empty(), "the first event comes before the stream ends");
        bytes.extend(more);
    }
    assert_eq!(upstream.tally().held, 1, "the stream is still open");
    // The record was durable before the first byte of the response left.
    assert_problem(&gateway.call(&request).await, 410, "response-not-retained");
    upstream.gate().open();
    while !String::from_utf8_lossy(&bytes).contains("data: 2") {
        let more = client.read_some(1024).await;
        assert!(!more.is_empty(), "the stream continues");
        bytes.extend(more);
    }
    assert_eq!(upstream.executions("stream"), 1);
}

#[tokio::test]
async fn a_missing_request_head_times_out() {
    let (upstream, gateway) =
        world_with("[server]\nheader_timeout = \"500ms\"\nidle_timeout = \"500ms\"\n").await;
    let mut silent = gateway.client().await;
    let mut slow = gateway.client().await;
    slow.send_bytes(b"POST /payments HTTP/1.1\r\nHost: api.test\r\nIdempo").await;
    let mut idle = gateway.client().await;
    assert_eq!(idle.call(&pay("idle")).await.status, 200);
    let mut second_head = gateway.client().await;
    assert_eq!(second_head.call(&pay("second")).await.status, 200);
    second_head.send_bytes(b"POST /payments HTTP/1.1\r\nHost:").await;
    for client in [&mut silent, &mut slow, &mut idle, &mut second_head] {
        // The gateway closes the connection, with or without a response.
        let farewell = client.read_some(4096).await;
        assert!(farewell.is_empty() || farewell.starts_with(b"HTTP/1.1 408"), "{farewell:?}");
    }
    assert_eq!(upstream.total(), 2);
}

#[tokio::test]
async fn a_body_that_never_arrives_is_refused_without_a_record() {
    let (upstream, gateway) = world_with("[server]\nbody_timeout = \"400ms\"\n").await;
    let request = pay("slow").body("a body of some length");
    let bytes = request.to_bytes();
    let mut client = gateway.client().await;
    client.send_bytes(&bytes[..bytes.len() - 5]).await;
    assert_problem(&client.read().await.expect("an answer"), 408, "body-timeout");
    let page = gateway.call(&TestRequest::get("/.ibid/keys/slow?method=POST&path=/payments")).await;
    assert_eq!((page.status, upstream.deliveries_begun()), (404, 0));
    assert!(!is_replay(&gateway.call(&request).await));
    assert_eq!(upstream.executions("slow"), 1);
}

#[tokio::test]
async fn connections_beyond_the_cap_wait_their_turn() {
    let (upstream, gateway) = world_with("[server]\nmax_connections = 2\n").await;
    let (mut one, mut two) = (gateway.client().await, gateway.client().await);
    one.send(&pay("one").fixture("gate")).await;
    two.send(&pay("two").fixture("gate")).await;
    upstream.until(|tally| tally.total == 2).await;
    let mut third = gateway.client().await;
    third.send(&TestRequest::get("/third")).await;
    let reached = async || gateway.metric("ibid_limit_reached_total", "max_connections").await > 0.0;
    // The admin listener is not affected.
    until_async("the third one waits", async || reached().await.then_some(())).await;
    assert!(!upstream.requests().iter().any(|request| request.target == "/third"), "it waits outside");
    upstream.gate().open();
    assert_eq!(one.read().await.expect("an answer").status, 200);
    assert_eq!(third.read().await.expect("its turn has come").status, 200);
}

#[tokio::test]
async fn hop_by_hop_fields_of_a_request_end_at_the_gateway() {
    let (upstream, gateway) = world().await;
    let request = pay("hops")
        .header("Connection", "close, x-mine, idempotency-key, content-type")
        .header("X-Mine", "1")
        .header("Keep-Alive", "timeout=5")
        .header("Content-Type", "text/plain");
    assert_eq!(gateway.call(&request).await.status, 200);
    let delivered = upstream.requests().remove(0);
    assert_eq!((delivered.header("x-mine"), delivered.header("keep-alive")), (None, None), "{delivered:?}");
    assert_eq!(delivered.key().as_deref(), Some("hops"), "a client cannot have its key removed");
    assert_eq!(delivered.header("content-type").as_deref(), Some("text/plain"));
    assert_eq!(delivered.header("x-forwarded-for").as_deref(), Some("127.0.0.1"));
}
