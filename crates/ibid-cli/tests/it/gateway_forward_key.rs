//! The key on its way to the upstream, and how the hops between treat it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use ibid_testkit::client::TestRequest;
use ibid_testkit::hop::{Proxy, ProxyHop, ProxyHopOptions};
use ibid_testkit::upstream::Upstream;
use tokio::net::TcpListener;

use crate::harness::Setup;

#[tokio::test]
async fn a_go_proxy_gets_no_leave_to_send_a_bodyless_request_twice() {
    let upstream = Upstream::start().await;
    let caddy = ProxyHop::start(Proxy::Caddy, upstream.addr(), ProxyHopOptions::default());
    // If the key is forwarded as the client sent it, Caddy sends the request twice. This is why the default renames
    // the header.
    for (config, deliveries) in [("", 1), ("[defaults]\nforward_key = \"as-sent\"\n", 2)] {
        let gateway = Setup::before(&caddy.url()).config(config).start();
        // Leaves Caddy a pooled connection, which the upstream closes on the next request.
        let first =
            gateway.call(&TestRequest::post("/payments").key("p").body("{}").fixture("status=201")).await;
        assert_eq!(first.status, 201, "{first:?} {}", caddy.output());
        let target = format!("/payments/{deliveries}/capture");
        gateway.call(&TestRequest::post(&target).key("c").fixture("cut=read;once")).await;
        assert_eq!(upstream.executions_of(&target), deliveries, "{config}");
    }
}

#[tokio::test]
async fn an_upstream_that_finds_records_by_their_key_still_gets_it() {
    let keys: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let create = async |State(keys): State<Arc<Mutex<BTreeSet<String>>>>, headers: HeaderMap| {
        let key = headers.get("idempotency-key").or_else(|| headers.get("ibid-key"));
        let key = key.and_then(|key| key.to_str().ok()).unwrap_or_default().trim_matches('"');
        keys.lock().expect("no panic").insert(key.to_owned());
        StatusCode::CREATED
    };
    let find = async |State(keys): State<Arc<Mutex<BTreeSet<String>>>>, Path(key): Path<String>| {
        if keys.lock().expect("no panic").contains(&key) { StatusCode::OK } else { StatusCode::NOT_FOUND }
    };
    let routes = axum::Router::new()
        .route("/captures", post(create))
        .route("/captures/by-key/{key}", get(find))
        .with_state(keys);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("a bound port"));
    tokio::spawn(async move { axum::serve(listener, routes).await });
    let gateway = Setup::before(&url).start();
    for (key, body) in [("with-body", "{}"), ("without-body", "")] {
        assert_eq!(gateway.call(&TestRequest::post("/captures").key(key).body(body)).await.status, 201);
        let response = gateway.call(&TestRequest::get(&format!("/captures/by-key/{key}"))).await;
        assert_eq!(response.status, 200, "{key}");
    }
}

#[tokio::test]
async fn a_client_can_neither_claim_nor_remove_the_forwarded_key() {
    let upstream = Upstream::start().await;
    let config = "[[route]]\nmatch = \"POST /orders\"\nforward_key = \"header:Order-Key\"\n";
    let gateway = Setup::before(&upstream.url()).config(config).start();
    for (path, field) in [("/captures", "ibid-key"), ("/orders", "order-key")] {
        let request = TestRequest::post(path).key("k").header(field, "other").header("Connection", field);
        assert_eq!(gateway.call(&request).await.status, 200);
        let delivered = upstream.requests().into_iter().next_back().expect("a request");
        assert_eq!(delivered.header_lines(field), ["\"k\""], "{delivered:?}");
        assert_eq!(delivered.header("idempotency-key"), None, "{delivered:?}");
    }
}
