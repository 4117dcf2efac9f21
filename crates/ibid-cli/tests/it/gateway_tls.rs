//! A gateway before an `https` upstream, as an operator runs it: PEM files, the log, and `ibid doctor`.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use ibid_testkit::client::TestRequest;
use ibid_testkit::tls::{Authority, TlsFront, TlsOptions};
use ibid_testkit::upstream::{ReservedPort, Upstream};

use crate::harness::{Setup, assert_problem, is_replay, until_async};

fn pay(key: &str) -> TestRequest {
    TestRequest::post("/payments").key(key).body("{\"amount\": 5}").fixture("status=201;body=paid")
}

/// Writes a file into the gateway's folder, which is its working directory.
fn file(setup: &Setup, name: &str, text: &str) -> PathBuf {
    let path = setup.folder().join(name);
    std::fs::write(&path, text).expect("a file");
    path
}

fn trusting(setup: Setup, authority: &Authority) -> Setup {
    file(&setup, "ca.pem", &authority.pem());
    setup.config("[upstream_tls]\nca = \"ca.pem\"\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_to_an_https_upstream_runs_once() {
    let (authority, upstream) = (Authority::new(), Upstream::start().await);
    let identity = authority.certificate(&["127.0.0.1"]);
    let front = TlsFront::start(upstream.addr(), &identity, TlsOptions::default()).await;
    let gateway = trusting(Setup::before(&front.url()), &authority).start();
    let (first, second) = (gateway.call(&pay("k")).await, gateway.call(&pay("k")).await);
    assert_eq!((first.status, is_replay(&first)), (201, false), "{first:?}");
    assert_eq!((second.status, is_replay(&second)), (201, true), "{second:?}");
    assert_eq!(upstream.executions("k"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_https_upstream_is_asked_over_https() {
    let (authority, upstream) = (Authority::new(), Upstream::start().await);
    upstream.behave("status=200;body=paid");
    let identity = authority.certificate(&["127.0.0.1"]);
    let front = TlsFront::start(upstream.addr(), &identity, TlsOptions::default()).await;
    let setup = Setup::before(&front.url());
    file(&setup, "ca.pem", &authority.pem());
    let gateway = setup
        .config(
            "[upstream_tls]\nca = \"ca.pem\"\n[upkeep]\nreconcile_every = \"100ms\"\n\
             [defaults]\nupstream_timeout = \"2s\"\nlinger = \"0s\"\n[[route]]\nmatch = \"POST /payments\"\n\
             [route.reconcile]\nrequest = \"GET /payments/by-key/{key}\"\nsettle = \"4s\"\n",
        )
        .start();
    let lost = TestRequest::post("/payments").key("k").body("{\"amount\": 5}").fixture("cut=read");
    assert_problem(&gateway.call(&lost).await, 502, "outcome-unknown");
    let known = until_async("the outcome is known", async || {
        let answer = gateway.call(&pay("k")).await;
        (answer.status != 409).then_some(answer)
    })
    .await;
    assert_eq!((known.text().as_str(), is_replay(&known)), ("paid", true), "{known:?}");
    let asked: Vec<_> = upstream.requests().into_iter().filter(|request| request.method == "GET").collect();
    assert_eq!((asked.len(), asked[0].target.as_str()), (1, "/payments/by-key/k"));
    assert_eq!(upstream.executions("k"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_untrusted_certificate_leaves_the_key_free() {
    let (authority, upstream) = (Authority::new(), Upstream::start().await);
    let identity = authority.certificate(&["127.0.0.1"]);
    let front = TlsFront::start(upstream.addr(), &identity, TlsOptions::default()).await;
    let setup = trusting(Setup::before(&front.url()), &Authority::new());
    let gateway = setup.start();
    assert_problem(&gateway.call(&pay("k")).await, 503, "upstream-unavailable");
    gateway.wait_for_log("not signed by an authority that the gateway trusts").await;
    gateway.wait_for_log("as `ca` in `[upstream_tls]`").await;
    drop(gateway);
    assert_eq!(upstream.deliveries_begun(), 0);
    // The same key works once the operator has fixed the configuration.
    let answer = trusting(setup, &authority).start().call(&pay("k")).await;
    assert_eq!((answer.status, is_replay(&answer), upstream.executions("k")), (201, false, 1), "{answer:?}");
}

#[test]
fn a_wrong_upstream_tls_is_an_error_at_start_with_its_line() {
    let setup = Setup::before("https://127.0.0.1:1").config("[upstream_tls]\nca = \"missing.pem\"\n");
    let refused = setup.expect_refusal();
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.output.contains(":2: `ca` names `missing.pem`, which can't be read"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_looks_at_the_upstream() {
    let (authority, upstream) = (Authority::new(), Upstream::start().await);
    let setup = Setup::before("");
    assert!(setup.ibid(&["migrate", "--store", &setup.store()]).status.success());
    let doctor = |url: &str, table: &str| {
        file(&setup, "ibid.toml", &format!("upstream = \"{url}\"\n{table}"));
        setup.ibid(&["doctor", "--store", &setup.store()])
    };
    let ca = "[upstream_tls]\nca = \"ca.pem\"\n";
    file(&setup, "ca.pem", &authority.pem());

    let plain = doctor(&upstream.url(), "");
    assert_eq!(plain.status.code(), Some(0), "{plain:?}");
    assert!(line(&plain, "upstream").contains("it takes connections"));
    let refused = doctor(&ReservedPort::port().url(), "");
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(line(&refused, "upstream").contains("refused"), "{refused:?}");

    let options = TlsOptions { alpn: &["h2", "http/1.1"], ..TlsOptions::default() };
    let front = TlsFront::start(upstream.addr(), &authority.certificate(&["127.0.0.1"]), options).await;
    let well = doctor(&front.url(), ca);
    assert_eq!(well.status.code(), Some(0), "{well:?}");
    assert!(line(&well, "upstream TLS").contains("TLS 1.3, ALPN h2"), "{well:?}");
    assert!(
        line(&well, "upstream certificate").contains("for `127.0.0.1`, signed by CN=authority"),
        "{well:?}"
    );
    assert!(line(&well, "upstream expiry").contains("days left"), "{well:?}");

    let expired = authority.expired_certificate(&["127.0.0.1"]);
    let front = TlsFront::start(upstream.addr(), &expired, TlsOptions::default()).await;
    let bad = doctor(&front.url(), ca);
    assert_eq!(bad.status.code(), Some(1), "{bad:?}");
    assert!(line(&bad, "upstream TLS").contains("expired on 2021-01-01"), "{bad:?}");
    let stderr = String::from_utf8_lossy(&bad.stderr);
    assert!(
        stderr.contains("  cause: its certificate expired") && stderr.contains("hint: renew"),
        "{stderr}"
    );
    // `PRI` is the beginning of HTTP/2, sent to a fixture that speaks HTTP/1.1 only.
    let methods: Vec<_> = upstream.requests().into_iter().map(|request| request.method).collect();
    assert!(methods.iter().all(|method| ["HEAD", "PRI"].contains(&method.as_str())), "{methods:?}");
}

/// Returns the line of one check in the table.
fn line(output: &Output, check: &str) -> String {
    let table = String::from_utf8_lossy(&output.stdout);
    let row = table.lines().find(|line| line.strip_prefix(check).is_some_and(|rest| rest.starts_with("  ")));
    row.unwrap_or_else(|| panic!("no line `{check}` in {output:?}")).to_owned()
}

/// A real nginx that terminates TLS, demands client certificates and speaks HTTP/2.
struct Nginx {
    child: Child,
    url: String,
}

impl Nginx {
    async fn start(setup: &Setup, upstream: &Upstream, authority: &Authority) -> Nginx {
        let identity = authority.certificate(&["127.0.0.1"]);
        file(setup, "server.pem", &identity.certificate_pem);
        file(setup, "server.key", &identity.key_pem);
        // The port is free once this is dropped, and nginx takes it next.
        let addr = ReservedPort::port().addr();
        let behind = upstream.addr();
        let config = format!(
            "pid nginx.pid; error_log nginx.log; events {{}}
             http {{ access_log off; client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3;
                     uwsgi_temp_path t4; scgi_temp_path t5;
               server {{ listen {addr} ssl http2; ssl_certificate server.pem; ssl_certificate_key server.key;
                 ssl_client_certificate ca.pem; ssl_verify_client on;
                 location / {{ proxy_pass http://{behind}; proxy_pass_request_headers on; }} }} }}"
        );
        let path = file(setup, "nginx.conf", &config);
        let mut command = Command::new("nginx");
        command.arg("-p").arg(setup.folder()).arg("-c").arg(path).args([
            "-e",
            "nginx.log",
            "-g",
            "daemon off;",
        ]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("nginx is installed: run scripts/setup");
        until_async("nginx listens", async || tokio::net::TcpStream::connect(addr).await.ok()).await;
        Nginx { child, url: format!("https://{addr}") }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // The nginx master ends its workers only on SIGTERM.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nginx_with_client_certificates_is_spoken_to_in_http2() {
    let (authority, upstream) = (Authority::new(), Upstream::start().await);
    let setup = Setup::before("");
    file(&setup, "ca.pem", &authority.pem());
    let own = authority.certificate(&["gateway.test"]);
    file(&setup, "own.pem", &own.certificate_pem);
    file(&setup, "own.key", &own.key_pem);
    let nginx = Nginx::start(&setup, &upstream, &authority).await;
    let table =
        "upstream_http2 = true\n[upstream_tls]\nca = \"ca.pem\"\ncert = \"own.pem\"\nkey = \"own.key\"\n";
    let gateway = setup.config(&format!("upstream = \"{}\"\n{table}", nginx.url)).start();
    for (key, replayed) in [("a", false), ("b", false), ("a", true)] {
        let answer = gateway.call(&pay(key)).await;
        assert_eq!((answer.status, is_replay(&answer)), (201, replayed), "{answer:?}");
    }
    assert_eq!((upstream.executions("a"), upstream.total()), (1, 2));
}
