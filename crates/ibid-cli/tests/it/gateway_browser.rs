//! A real browser before the gateway: a page's script reads a first response, a replay, a refusal and a status page of
//! another origin.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use axum::extract::State;
use axum::response::Html;
use axum::routing::{get, post};
use ibid_testkit::upstream::Upstream;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::harness::Setup;

#[tokio::test]
async fn a_browser_reads_replays_refusals_and_status_pages() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let origin = format!("http://{}", listener.local_addr().expect("a bound port"));
    let upstream = Upstream::start().await;
    upstream.behave(&format!(
        "status=201;body=paid;header=Access-Control-Allow-Origin: {origin};\
         header=Access-Control-Allow-Headers: idempotency-key"
    ));
    let setup = Setup::before(&upstream.url())
        .config(&format!("[cors]\norigins = [\"{origin}\"]\nmax_age = \"1m\"\n"));
    let gateway = setup.start();
    let mut results = serve_page(listener, &format!("http://{}", gateway.addr()));

    let browser = Browser::open(&origin, &setup);
    let report = tokio::time::timeout(PATIENCE, results.recv()).await;
    let report =
        report.unwrap_or_else(|_| panic!("no result from the page; the gateway said {}", gateway.log()));
    drop(browser);

    let report: Value = serde_json::from_str(&report.expect("the page's server runs")).expect("JSON");
    let answered = |status: u16, replayed: Option<&str>, text: &str| json!({ "status": status, "replayed": replayed, "text": text });
    assert_eq!(report["first"], answered(201, None, "paid"), "{report:#}");
    assert_eq!(report["retry"], answered(201, Some("true"), "paid"), "{report:#}");
    assert_eq!(report["reused"], answered(422, None, "urn:ibid:problem:key-reused"), "{report:#}");
    assert_eq!(report["status"], answered(200, None, "completed"), "{report:#}");
    assert_eq!(report["stored"], answered(201, Some("true"), "paid"), "{report:#}");
    assert_eq!(upstream.executions("browser"), 1);
}

/// Serves the page that calls the gateway, and returns what the page reports.
fn serve_page(listener: TcpListener, gateway: &str) -> mpsc::Receiver<String> {
    let (reports, results) = mpsc::channel(1);
    let page = Html(PAGE.replace("GATEWAY", gateway));
    let report = async |State(reports): State<mpsc::Sender<String>>, body: String| {
        let _ = reports.send(body).await;
    };
    let routes = axum::Router::new()
        .route("/", get(async move || page))
        .route("/report", post(report))
        .with_state(reports);
    tokio::spawn(async move { axum::serve(listener, routes).await });
    results
}

/// A headless Chromium with a temporary profile; killed when dropped.
struct Browser {
    child: Child,
}

impl Browser {
    fn open(url: &str, setup: &Setup) -> Browser {
        let mut command = Command::new("chromium");
        command.args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--disable-dev-shm-usage",
        ]);
        command.args(["--no-first-run", "--disable-background-networking", "--disable-component-update"]);
        command.args(["--disable-sync", "--no-proxy-server"]);
        command.arg(format!("--user-data-dir={}", setup.folder().join("chromium").display())).arg(url);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("`chromium` starts: scripts/setup installs it");
        Browser { child }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Chromium's helper processes end with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A page that makes five requests to another origin. The last two send a custom header, so the browser sends a
/// preflight first.
const PAGE: &str = r#"<!doctype html><script>
const ask = async (path, init, text) => {
  try {
    const answer = await fetch("GATEWAY" + path, init);
    return { status: answer.status, replayed: answer.headers.get("idempotent-replayed"), text: await text(answer) };
  } catch (error) {
    return { error: String(error) };
  }
};
const pay = body => ({ method: "POST", headers: { "idempotency-key": "browser" }, body });
const page = "/.ibid/keys/browser";
const about = "?method=POST&path=/payments";
const traced = { headers: { "x-trace-me": "1" } };
(async () => {
  const seen = {
    first: await ask("/payments", pay("5"), answer => answer.text()),
    retry: await ask("/payments", pay("5"), answer => answer.text()),
    reused: await ask("/payments", pay("6"), async answer => (await answer.json()).type),
    status: await ask(page + about, traced, async answer => (await answer.json()).state),
    stored: await ask(page + "/response" + about, traced, answer => answer.text()),
  };
  await fetch("/report", { method: "POST", body: JSON.stringify(seen) });
})();
</script>"#;

/// Longest wait. A cold start of the browser on a loaded machine takes seconds; only a hang reaches this.
const PATIENCE: Duration = Duration::from_secs(90);
