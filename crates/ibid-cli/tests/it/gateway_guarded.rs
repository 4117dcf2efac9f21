//! Selection of the guarded requests, however their method and path are spelt, and the fields that the upstream gets.
//! Uses real sockets, and a real client and framework where these disagree on spelling.

use std::process::Command;

use ibid_testkit::client::{TestRequest, TestResponse};
use ibid_testkit::program::{Launch, Program, tools};
use ibid_testkit::upstream::{SeenRequest, Upstream};

use crate::h2_client::H2Client;
use crate::harness::{Gateway, Setup, assert_problem, is_replay};

async fn world(config: &str) -> (Upstream, Gateway) {
    let upstream = Upstream::start().await;
    let gateway = Setup::before(&upstream.url()).config(config).start();
    (upstream, gateway)
}

fn last(upstream: &Upstream) -> SeenRequest {
    upstream.requests().pop().expect("a request was delivered")
}

/// Sends bytes on a new connection and reads the response.
async fn raw(gateway: &Gateway, bytes: &str) -> TestResponse {
    let mut client = gateway.client().await;
    client.send_bytes(bytes.as_bytes()).await;
    client.read().await.expect("an answer")
}

#[tokio::test]
async fn a_method_in_any_case_is_guarded_and_upper_case_upstream() {
    let (upstream, gateway) = world("").await;
    let h2 = H2Client::connect(gateway.addr()).await;
    for method in ["post", "Post", "patch", "pUrge"] {
        let bare = TestRequest::new(method, "/payments").body("five");
        assert_problem(&gateway.call(&bare).await, 400, "key-missing");
        assert_problem(&h2.send(method, "/payments", &[], "five").await.await, 400, "key-missing");
        let key = format!("{method}-h1");
        assert_eq!(gateway.call(&bare.clone().key(&key)).await.status, 200);
        assert_eq!(last(&upstream).method, method.to_uppercase());
        let upper = TestRequest::new(&method.to_uppercase(), "/payments").body("five").key(&key);
        assert!(is_replay(&gateway.call(&upper).await), "{method}: one scope in any case");
        let over_h2 =
            async || h2.send(method, "/payments", &[("idempotency-key", method)], "five").await.await;
        assert!(!is_replay(&over_h2().await));
        assert_eq!(last(&upstream).method, method.to_uppercase());
        assert!(is_replay(&over_h2().await));
        let page = TestRequest::get(&format!("/.ibid/keys/{key}?method={method}&path=/payments"));
        assert_eq!(gateway.call(&page).await.status, 200, "{method}");
    }
    assert_eq!(gateway.call(&TestRequest::new("get", "/payments")).await.status, 200);
    assert_eq!((last(&upstream).method.as_str(), upstream.total()), ("GET", 9));
    assert_eq!(gateway.call(&TestRequest::new("connect", "/payments")).await.status, 501);
}

#[tokio::test]
async fn an_override_field_makes_a_get_guarded() {
    let (upstream, gateway) = world("").await;
    let get = TestRequest::get("/payments").header("X-HTTP-Method-Override", "post");
    assert_problem(&gateway.call(&get).await, 400, "key-missing");
    let keyed = get.key("k");
    assert!(!is_replay(&gateway.call(&keyed).await));
    assert!(is_replay(&gateway.call(&keyed).await));
    assert_eq!((upstream.total(), last(&upstream).method.as_str()), (1, "GET"));
    let page = TestRequest::get("/.ibid/keys/k?method=POST&path=/payments");
    assert_eq!(gateway.call(&page).await.status, 200, "it is kept under the method that made it guarded");
    let other = TestRequest::get("/payments").header("X-HTTP-Method-Override", "patch").key("k");
    assert!(!is_replay(&gateway.call(&other).await));
    let post = TestRequest::post("/payments").key("k");
    assert_problem(&gateway.call(&post).await, 422, "key-reused");
}

/// fetch upper-cases only DELETE, GET, HEAD, OPTIONS, POST and PUT; Werkzeug upper-cases every method.
#[tokio::test]
async fn a_lower_case_patch_of_node_runs_once_in_flask() {
    let app = flask();
    let gateway = Setup::before(&app.url()).start();
    let fetches = format!(
        "const bodies = [];
         for (let i = 0; i < 3; i++) {{
           const answer = await fetch('http://{}/orders/1', {{
             method: 'patch', body: 'five', headers: {{ 'Idempotency-Key': 'order-1' }},
           }});
           bodies.push(`${{answer.status}} ${{await answer.text()}} ${{answer.headers.get('idempotent-replayed')}}`);
         }}
         console.log(bodies.join('; '));",
        gateway.addr()
    );
    let output = Command::new("node").args(["--input-type=module", "-e", &fetches]).output();
    let output = output.expect("`node` is missing: run scripts/setup");
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(printed.trim(), "200 PATCH run 1 null; 200 PATCH run 1 true; 200 PATCH run 1 true");
}

/// Starts a Flask application that counts its runs.
fn flask() -> Program {
    Program::start(|_, port| {
        Launch::new("python3", ["-c", FLASK, &port.to_string()])
            .env("PYTHONPATH", tools().join("flask-3.1.3"))
    })
}

const FLASK: &str = "
import sys
from flask import Flask, request
from werkzeug.serving import make_server
app, runs = Flask('app'), []

@app.route('/orders/<id>', methods=['PATCH'])
def change(id):
    runs.append(id)
    return f'{request.method} run {len(runs)}'

make_server('127.0.0.1', int(sys.argv[1]), app, threaded=True).serve_forever()
";

const ROUTES: &str = "
[[route]]
match = \"PUT /orders/{id}\"
[[route]]
match = \"POST /open/{*rest}\"
guard = \"off\"
";

#[tokio::test]
async fn an_ambiguous_path_is_refused_and_never_delivered() {
    let (upstream, gateway) = world(ROUTES).await;
    for path in
        ["//payments", "/a/../payments", "/open/..;/payments", "/open/%252e%252e/x", "/a%00", "/%c0%ae"]
    {
        let answer = gateway.call(&TestRequest::post(path).key("k").body("five")).await;
        assert_problem(&answer, 400, "path-ambiguous");
    }
    for path in ["/orders//1", "//orders/1", "/x/../orders/1", "/orders%2f1", "/orders\\1"] {
        assert_problem(
            &gateway.call(&TestRequest::new("PUT", path).body("five")).await,
            400,
            "path-ambiguous",
        );
    }
    assert_problem(
        &gateway.call(&TestRequest::post("/open/a%2Fb").body("five")).await,
        400,
        "path-ambiguous",
    );
    assert_eq!(upstream.deliveries_begun(), 0);
    for path in ["//payments", "/a/../payments", "/a%2Fb"] {
        assert_eq!(gateway.call(&TestRequest::get(path)).await.status, 200);
        assert_eq!(last(&upstream).target, path, "what is not guarded passes as it was sent");
        assert_eq!(
            gateway.call(&TestRequest::new("DELETE", path)).await.status,
            200,
            "no route guards DELETE"
        );
    }
    assert_eq!(
        gateway.call(&TestRequest::post("/open/sessions/ann%40example.com").body("x")).await.status,
        200
    );
    let long = TestRequest::post(&format!("/{}", "a".repeat(2048))).key("k").body("five");
    assert_problem(&gateway.call(&long).await, 414, "path-too-long");
}

#[tokio::test]
async fn unguarded_routes_are_listed_at_start_and_in_the_policy() {
    let (_upstream, gateway) = world(ROUTES).await;
    gateway.wait_for_log("ibid: not guarded: POST /open/{*rest}").await;
    gateway.wait_for_log("ibid: not guarded: GET, HEAD, OPTIONS, TRACE and QUERY, and PUT and DELETE").await;
    let policy = gateway.call(&TestRequest::get("/.ibid/policy")).await;
    let policy: serde_json::Value = serde_json::from_slice(&policy.body).expect("JSON");
    assert_eq!(
        (&policy["routes"][1]["path"], &policy["routes"][1]["guard"]),
        (&"/open/{*rest}".into(), &"off".into())
    );
    assert_eq!(policy["unguarded_methods"], serde_json::json!(["GET", "HEAD", "OPTIONS", "TRACE", "QUERY"]));
    assert_eq!(policy["unguarded_without_a_route"], serde_json::json!(["PUT", "DELETE"]));
    assert_eq!(policy["defaults"]["path_rule"], "strict");
}

#[tokio::test]
async fn a_path_has_one_scope_and_goes_out_as_it_was_sent() {
    let (upstream, gateway) = world(ROUTES).await;
    let pay = |path: &str| TestRequest::post(path).key("k").body("five");
    assert!(!is_replay(&gateway.call(&pay("/%70ayments/a%2fb")).await));
    assert_eq!(last(&upstream).target, "/%70ayments/a%2fb");
    assert!(is_replay(&gateway.call(&pay("/payments/a%2Fb")).await));
    for path in ["/payments/a%252Fb", "/%2570ayments/a%252fb"] {
        let page = TestRequest::get(&format!("/.ibid/keys/k?method=POST&path={path}"));
        assert_eq!(gateway.call(&page).await.status, 200, "{path}");
    }
    // Django redirects from one to the other, so the slash is part of the scope.
    assert!(!is_replay(&gateway.call(&pay("/payments/a%2fb/")).await));
    assert!(is_replay(&gateway.call(&pay("/payments/a%2fb/")).await));
    let order = |path: &str| TestRequest::new("PUT", path).body("five");
    for path in ["/orders/1", "/orders/1/", "/%6frders/1"] {
        assert_problem(&gateway.call(&order(path)).await, 400, "key-missing");
    }
    assert_eq!(upstream.total(), 2);
    assert!(!is_replay(&gateway.call(&order("/orders/1/").key("k")).await));
    assert!(is_replay(&gateway.call(&order("/orders/1/").key("k")).await));
}

#[tokio::test]
async fn as_sent_takes_a_path_as_the_operator_says() {
    let (upstream, gateway) = world("[defaults]\npath = \"as-sent\"\n").await;
    for path in ["/a//b", "/a/../b", "/%70ayments", "/payments"] {
        assert!(!is_replay(&gateway.call(&TestRequest::post(path).key("k").body("five")).await), "{path}");
        assert_eq!(last(&upstream).target, path);
    }
}

#[tokio::test]
async fn connection_and_other_spellings_change_no_guarded_field() {
    let upstream = Upstream::start().await;
    let config = "[defaults]\nfingerprint_headers = [\"x-amount\"]\n";
    let gateway = Setup::before(&upstream.url()).tenant("header:x-tenant-id").config(config).start();
    let request = TestRequest::post("/payments")
        .key("k")
        .header("X-Tenant-Id", "acme")
        .header("X-Amount", "5")
        .header("X-Forwarded-Proto", "https")
        .header("X-Mine", "1")
        .header("X_Tenant_Id", "victim")
        .header("Idempotency_Key", "other")
        .header("x.amount", "6")
        .header("Connection", "close, x-tenant-id, X-Amount, idempotency-key, x-forwarded-proto, x-mine")
        .body("five");
    assert_eq!(gateway.call(&request).await.status, 200);
    let delivered = last(&upstream);
    for (name, value) in [("x-tenant-id", "acme"), ("x-amount", "5"), ("x-forwarded-proto", "https")] {
        assert_eq!(delivered.header_lines(name), [value], "{delivered:?}");
    }
    assert_eq!(delivered.key().as_deref(), Some("k"));
    for gone in ["x-mine", "x_tenant_id", "idempotency_key", "x.amount"] {
        assert_eq!(delivered.header(gone), None, "{gone}");
    }
    let trailing = TestRequest::new("PUT", "/things")
        .body("five")
        .chunked()
        .header("Trailer", "x-tenant-id, x-sum")
        .trailer("X-Tenant-Id", "victim")
        .trailer("X_Tenant_Id", "victim")
        .trailer("X-Sum", "1");
    assert_eq!(gateway.call(&trailing).await.status, 200);
    let delivered = last(&upstream);
    let trailers: Vec<String> =
        delivered.trailers.iter().map(|(name, _)| String::from_utf8_lossy(name).to_lowercase()).collect();
    assert_eq!(trailers, ["x-sum"], "{delivered:?}");
}

#[tokio::test]
async fn forwarded_fields_are_believed_from_trusted_hops_only() {
    let upstream = Upstream::start().await;
    let request = TestRequest::get("/things")
        .header("X-Forwarded-For", "198.51.100.1")
        .header("X-Forwarded-Host", "evil.test")
        .header("X-Forwarded-Proto", "https")
        .header("Forwarded", "for=198.51.100.1");
    for (config, expected) in [
        ("", ["198.51.100.1, 127.0.0.1", "evil.test", "https", "for=198.51.100.1"]),
        ("[tenant]\ntrusted = [\"10.0.0.0/8\"]\n", ["127.0.0.1", "api.test", "http", ""]),
    ] {
        let gateway = Setup::before(&upstream.url()).config(config).start();
        assert_eq!(gateway.call(&request).await.status, 200);
        let delivered = last(&upstream);
        let names = ["x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "forwarded"];
        assert_eq!(names.map(|name| delivered.header_lines(name).concat()), expected);
        if !config.is_empty() {
            gateway.wait_for_log("which is not in `tenant.trusted`").await;
        }
    }
}

#[tokio::test]
async fn a_head_that_can_be_read_in_two_ways_is_refused() {
    let (upstream, gateway) = world("").await;
    for (head, status, code) in [
        ("POST /p HTTP/1.1\r\n", 400, "host-invalid"),
        ("GET /p HTTP/1.1\r\nHost: a\r\nHost: b\r\n", 400, "host-invalid"),
        ("GET /p HTTP/1.1\r\nHost: a/b\r\n", 400, "host-invalid"),
        ("GET /p HTTP/1.1\r\nHost: a@b\r\n", 400, "host-invalid"),
        ("POST * HTTP/1.1\r\nHost: a\r\n", 400, "target-invalid"),
        ("POST p HTTP/1.1\r\nHost: a\r\n", 400, "target-invalid"),
        ("POST gw.test:80 HTTP/1.1\r\nHost: a\r\n", 400, "target-invalid"),
        ("POST /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n", 501, "transfer-coding"),
        ("POST /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n", 501, "transfer-coding"),
        ("POST /p HTTP/1.1\r\nHost: a\r\nEarly-Data: 0\r\nEarly-Data: 1\r\n", 425, "too-early"),
    ] {
        let body = if head.contains("Transfer-Encoding") { "0\r\n\r\n" } else { "" };
        let answer = raw(&gateway, &format!("{head}Idempotency-Key: \"k\"\r\n\r\n{body}")).await;
        assert_problem(&answer, status, code);
    }
    assert_eq!(upstream.deliveries_begun(), 0);
    assert_eq!(raw(&gateway, "GET /healthz HTTP/1.0\r\n\r\n").await.status, 200, "a health check");
    let absolute = "GET http://shop.test/p HTTP/1.1\r\nHost: gw.test\r\n\r\n";
    assert_eq!(raw(&gateway, absolute).await.status, 200);
    assert_eq!(last(&upstream).header("x-forwarded-host").as_deref(), Some("shop.test"));
}

#[tokio::test]
async fn the_body_of_a_get_arrives_whatever_its_framing() {
    let (upstream, gateway) = world("").await;
    for request in
        [TestRequest::get("/search").body("all"), TestRequest::get("/search").body("all").chunked()]
    {
        assert_eq!(gateway.call(&request).await.status, 200);
        assert_eq!(last(&upstream).body, b"all");
    }
    let h2 = H2Client::connect(gateway.addr()).await;
    assert_eq!(h2.send("GET", "/search", &[], "all").await.await.status, 200);
    assert_eq!(last(&upstream).body, b"all");
    assert_eq!(gateway.call(&TestRequest::get("/search")).await.status, 200);
    let delivered = last(&upstream);
    assert_eq!(
        (delivered.body.len(), delivered.header("transfer-encoding")),
        (0, None),
        "no body, no framing"
    );
}

#[tokio::test]
async fn only_the_gateway_says_that_an_answer_is_a_replay() {
    let (upstream, gateway) = world("").await;
    let fixture = "header=Idempotent-Replayed: true;header=Idempotency-Stored: false;header=X-Else: 1";
    let request = TestRequest::post("/payments").key("k").body("five").fixture(fixture);
    let first = gateway.call(&request).await;
    assert_eq!((is_replay(&first), first.header("idempotency-stored")), (false, None), "{first:?}");
    assert_eq!(first.header("x-else").as_deref(), Some("1"));
    assert!(is_replay(&gateway.call(&request).await));
    // A response with many header lines must not turn an executed request into a failure.
    let many = "header=X-Line: 1;".repeat(300);
    let many = gateway.call(&TestRequest::post("/payments").key("many").body("five").fixture(&many)).await;
    assert_eq!((many.status, many.header_lines("x-line").len()), (200, 300));
    assert_eq!(upstream.total(), 2);
}
