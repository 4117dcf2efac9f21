//! Spans as a collector gets them: a real socket receives the gateway's exports, and the test decodes the OTLP bytes.

use ibid_testkit::client::TestRequest;
use ibid_testkit::upstream::Upstream;

use crate::harness::{Setup, is_replay};

/// One span, with the fields that these tests need.
#[derive(Debug, Default)]
struct Span {
    trace: String,
    id: String,
    parent: String,
    name: String,
    /// Trace and span that it links to.
    links: Vec<(String, String)>,
}

fn spans(collector: &Upstream) -> Vec<Span> {
    let mut collected = Vec::new();
    for request in collector.requests() {
        assert_eq!((request.method.as_str(), request.target.as_str()), ("POST", "/v1/traces"));
        assert_eq!(request.header("content-type").as_deref(), Some("application/x-protobuf"));
        // ExportTraceServiceRequest → ResourceSpans → ScopeSpans → Span.
        for resource in parts(&request.body, 1) {
            for scope in parts(resource, 2) {
                collected.extend(parts(scope, 2).into_iter().map(span));
            }
        }
    }
    collected
}

fn span(bytes: &[u8]) -> Span {
    let first = |field| parts(bytes, field).first().copied().unwrap_or_default();
    let link = |link| (hex(parts(link, 1)[0]), hex(parts(link, 2)[0]));
    Span {
        trace: hex(first(1)),
        id: hex(first(2)),
        parent: hex(first(4)),
        name: String::from_utf8_lossy(first(5)).into_owned(),
        links: parts(bytes, 13).into_iter().map(link).collect(),
    }
}

/// Returns the length-delimited fields with this number in a protobuf message.
fn parts(mut bytes: &[u8], wanted: u64) -> Vec<&[u8]> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let length = match tag & 7 {
            0 => {
                varint(&mut bytes);
                continue;
            }
            1 => 8,
            2 => varint(&mut bytes) as usize,
            5 => 4,
            other => panic!("no wire type: {other}"),
        };
        let (part, rest) = bytes.split_at(length);
        if tag >> 3 == wanted {
            fields.push(part);
        }
        bytes = rest;
    }
    fields
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let (mut number, mut shift) = (0, 0);
    loop {
        let (byte, rest) = bytes.split_first().expect("a whole number");
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            return number;
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_span_links_to_the_first_execution() {
    let (upstream, collector) = (Upstream::start().await, Upstream::start().await);
    let mut gateway = Setup::before(&upstream.url())
        .variable("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url())
        .variable("OTEL_BSP_SCHEDULE_DELAY", "100")
        .start();
    let (first, second) = ("4bf92f3577b34da6a3ce929d0e0e4736", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
    let pay = TestRequest::post("/payments").key("canary-key").body("canary-body");
    let from = |trace: &str| pay.clone().header("traceparent", format!("00-{trace}-00f067aa0ba902b7-01"));
    assert_eq!(gateway.call(&from(first)).await.status, 200);
    assert!(is_replay(&gateway.call(&from(second)).await));
    // Without a trace of the client, the gateway starts one and sends it to the upstream.
    assert_eq!(gateway.call(&TestRequest::post("/payments").key("own").body("five")).await.status, 200);
    gateway.signal("TERM");
    assert!(gateway.wait_for_exit().await.success());

    let spans = spans(&collector);
    let of = |trace: &str, name: &str| {
        let matching: Vec<&Span> =
            spans.iter().filter(|span| span.trace == trace && span.name == name).collect();
        assert_eq!(matching.len(), 1, "{name} in {trace}: {spans:#?}");
        matching[0]
    };
    let request = of(first, "ibid.request");
    assert_eq!(request.parent, "00f067aa0ba902b7");
    for name in ["ibid.intake", "ibid.begin", "ibid.run", "ibid.finish", "ibid.reply"] {
        let span = of(first, name);
        let within = spans.iter().find(|other| other.id == span.parent).expect("its parent is there too");
        assert!(within.name == "ibid.request" || within.name == "ibid.finish", "{span:?} in {within:?}");
    }
    let delivered = upstream.requests();
    let sent = delivered[0].header("traceparent").expect("a context");
    assert_eq!(
        sent,
        format!("00-{first}-{}-01", of(first, "ibid.run").id),
        "the upstream's parent is the run"
    );

    assert_eq!(of(second, "ibid.reply").links, [(first.to_owned(), request.id.clone())]);
    assert!(!spans.iter().any(|span| span.trace == second && span.name == "ibid.run"), "{spans:#?}");

    let own = delivered[1].header("traceparent").expect("a context");
    let own: Vec<&str> = own.split('-').collect();
    assert_eq!(of(own[1], "ibid.request").parent, "", "it begins the trace");
    let sent: Vec<u8> = collector.requests().into_iter().flat_map(|request| request.body).collect();
    for canary in ["canary-key", "canary-body"] {
        assert!(!sent.windows(canary.len()).any(|bytes| bytes == canary.as_bytes()), "{canary}");
    }
}

#[tokio::test]
async fn an_unreachable_collector_costs_no_request() {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url());
    let mut gateway = setup.clone().variable("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1").start();
    let pay = TestRequest::post("/payments").key("k").body("five");
    assert_eq!(gateway.call(&pay).await.status, 200);
    assert!(is_replay(&gateway.call(&pay).await));
    gateway.signal("TERM");
    assert!(gateway.wait_for_exit().await.success());
    let refused = setup.variable("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector:4318").expect_refusal();
    refused.assert_error(2, "OTEL_EXPORTER_OTLP_ENDPOINT", "plain HTTP", "collector next to");
}
