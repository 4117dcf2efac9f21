//! The tenant of a key: a header counts only from trusted hops, a credential counts by its bytes, and neither is
//! logged.

use ibid_testkit::client::TestRequest;
use ibid_testkit::upstream::Upstream;
use ibid_testkit::upstream_h2::UpstreamH2;

use crate::h2_client::H2Client;
use crate::harness::{Setup, assert_problem, is_replay};

fn pay(key: &str) -> TestRequest {
    TestRequest::post("/payments").key(key).body("five")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_tenant_header_from_loopback_keeps_tenants_apart() {
    let upstream = Upstream::start().await;
    let gateway = Setup::before(&upstream.url()).tenant("header:x-tenant-id").start();
    let of = |tenant: &str| pay("shared").header("X-Tenant-Id", tenant).fixture(&format!("body={tenant}"));
    assert_eq!(gateway.call(&of("ann")).await.text(), "ann");
    assert_eq!(gateway.call(&of("bob")).await.text(), "bob");
    let again = gateway.call(&of("ann")).await;
    assert!(is_replay(&again) && again.text() == "ann", "{again:?}");
    let page = |tenant: &str| {
        TestRequest::get("/.ibid/keys/shared?method=POST&path=/payments").header("X-Tenant-Id", tenant)
    };
    assert_eq!(gateway.call(&page("ann")).await.status, 200);
    assert_eq!(gateway.call(&page("eve")).await.status, 404);
    assert_problem(&gateway.call(&pay("shared")).await, 401, "tenant-missing");
    assert_problem(&gateway.call(&of("ann").header("X-Tenant-Id", "bob")).await, 401, "tenant-missing");
    assert_eq!(upstream.total(), 2);
    assert_eq!(upstream.requests()[0].header("x-tenant-id").as_deref(), Some("ann"), "trusted: passed on");
}

#[tokio::test]
async fn a_tenant_header_from_an_untrusted_hop_is_dropped() {
    let upstream = Upstream::start().await;
    let config = "[tenant]\ntrusted = [\"10.0.0.0/8\"]\n";
    let gateway = Setup::before(&upstream.url()).tenant("header:x-tenant-id").config(config).start();
    assert_problem(&gateway.call(&pay("k").header("X-Tenant-Id", "ann")).await, 401, "tenant-missing");
    assert_eq!(upstream.total(), 0);
    let line = "`x-tenant-id` came from 127.0.0.1, which is not in `tenant.trusted`";
    gateway.wait_for_log(line).await;
    let unguarded =
        TestRequest::get("/").header("X-Tenant-Id", "ann").header("x_tenant_id", "ann").header("X-Else", "1");
    assert_eq!(gateway.call(&unguarded).await.status, 200);
    let delivered = upstream.requests().remove(0);
    assert_eq!(
        (delivered.header("x-tenant-id"), delivered.header("x_tenant_id")),
        (None, None),
        "{delivered:?}"
    );
    assert_eq!(delivered.header("x-else").as_deref(), Some("1"));
    assert_eq!(gateway.log().matches(line).count(), 1, "once a minute for each address");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn only_a_static_credential_is_a_tenant() {
    let upstream = Upstream::start().await;
    let gateway = Setup::before(&upstream.url()).tenant("authorization").start();
    let of = |credential: &str| pay("shared").header("Authorization", credential);
    assert!(!is_replay(&gateway.call(&of("Bearer sk_live_ann")).await));
    assert!(!is_replay(&gateway.call(&of("Bearer sk_live_bob")).await));
    assert!(is_replay(&gateway.call(&of("bearer sk_live_ann")).await), "the scheme has no case");
    assert!(!is_replay(&gateway.call(&of("sk_live_ann")).await), "without a scheme it is another credential");
    assert!(is_replay(&gateway.call(&of("sk_live_ann")).await));
    assert_problem(&gateway.call(&pay("shared")).await, 401, "tenant-missing");
    let jwt = "Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln";
    assert_problem(&gateway.call(&of(jwt)).await, 401, "tenant-missing");
    gateway.wait_for_log("the credential is a JWT").await;
    assert!(!gateway.log().contains("eyJ") && !gateway.log().contains("sk_live"), "{}", gateway.log());
    assert_eq!(upstream.total(), 3);
}

/// Texts that must never be in a log.
const CANARIES: [&str; 5] =
    ["canary-key", "canary-credential", "canary-body", "canary-answer", "canary-cookie"];

#[tokio::test]
async fn logs_hold_no_key_no_credential_and_no_body_at_any_level() {
    for level in ["debug", "trace"] {
        for http2 in [false, true] {
            let (h1, h2) = (Upstream::start().await, UpstreamH2::start().await);
            let url = if http2 { h2.url() } else { h1.url() };
            let config = "[defaults]\nlease = \"1s\"\nupstream_timeout = \"300ms\"\nlinger = \"0s\"\n";
            let setup = Setup::before(&url)
                .tenant("authorization")
                .config(&format!("upstream_http2 = {http2}\n{config}"))
                .variable("IBID_LOG", level);
            let gateway = setup.start();
            let faults: &[&str] = match http2 {
                true => &[
                    "status=201;body=canary-answer",
                    "status=500;body=canary-answer",
                    "refuse",
                    "goaway=at",
                    "reset=cancel",
                    "gate",
                ],
                false => &[
                    "status=201;body=canary-answer",
                    "status=500;body=canary-answer",
                    "cut=read",
                    "cut=head",
                    "cut=body;body=canary-answer",
                    "gate",
                ],
            };
            for (n, fault) in faults.iter().enumerate() {
                let key = format!("canary-key-{n}");
                let request = TestRequest::post("/payments")
                    .key(&key)
                    .body("canary-body")
                    .fixture(fault)
                    .header("Authorization", "Bearer canary-credential")
                    .header("Cookie", "a=canary-cookie");
                gateway.call(&request).await;
                gateway.call(&request).await;
                gateway.call(&request.clone().body("canary-body too")).await;
                let lines = [
                    ("idempotency-key", key.as_str()),
                    ("authorization", "Bearer canary-credential"),
                    ("cookie", "a=canary-cookie"),
                ];
                H2Client::connect(gateway.addr()).await.post("/payments", &lines, "canary-body").await.await;
            }
            let bad = TestRequest::post("/payments")
                .header("Idempotency-Key", "\"canary-key")
                .header("Authorization", "Bearer canary-credential")
                .body("canary-body");
            assert_problem(&gateway.call(&bad).await, 400, "key-invalid");
            let no_http = b"POST /payments HTTP/9.9\r\nIdempotency-Key: canary-key\r\nAuthorization: Bearer canary-credential\r\n\r\ncanary-body";
            let mut client = gateway.client().await;
            client.send_bytes(no_http).await;
            client.read_some(4096).await;
            gateway.signal("TERM");
            let mut gateway = gateway;
            assert!(gateway.wait_for_exit().await.success());
            let log = gateway.log();
            assert!(log.contains("key misuse"), "the log is not empty: {log}");
            for canary in CANARIES {
                let leak = log.lines().find(|line| line.contains(canary));
                assert_eq!(leak, None, "{canary} at {level}, HTTP/2 upstream: {http2}");
            }
        }
    }
}
