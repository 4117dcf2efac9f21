//! One chain: a gateway in front of an upstream or a proxy, and the requests sent through it.

use std::net::SocketAddr;
use std::path::Path;

use ibid_testkit::client::{Client, TestRequest, TestResponse};
use ibid_testkit::hop::{Proxy, ProxyHop, ProxyHopOptions};
use ibid_testkit::program::{Launch, Program};
use ibid_testkit::upstream::Upstream;

/// A running gateway with a store in its own folder.
pub(crate) struct Gateway(Program);

impl Gateway {
    /// Starts the binary in front of `upstream` with default settings, or with the given `[defaults]`.
    pub(crate) fn start(ibid: &Path, upstream: SocketAddr, defaults: &str) -> Gateway {
        Gateway(Program::start(|folder, port| {
            let config = folder.join("ibid.toml");
            std::fs::write(&config, format!("[defaults]\n{defaults}\n")).expect("a file in our own folder");
            let (listen, upstream) = (format!("127.0.0.1:{port}"), format!("http://{upstream}"));
            let store = format!("sqlite:{}", folder.join("ibid.db").display());
            let words = ["gateway", "--tenant", "none", "--admin-listen", "127.0.0.1:0"];
            let mut launch = Launch::new(ibid, words);
            for (flag, value) in [("--upstream", upstream), ("--listen", listen), ("--store", store)] {
                launch.args.extend([flag.into(), value.into()]);
            }
            launch.args.extend(["--config".into(), config.into()]);
            launch
        }))
    }

    /// Sends a request over a new connection. The gateway always answers.
    pub(crate) async fn call(&self, request: &TestRequest) -> TestResponse {
        Client::connect(self.0.addr()).await.call(request).await
    }

    /// Returns the state of the record that a POST to this path with this key created.
    pub(crate) async fn state(&self, path: &str, key: &str) -> String {
        let page = self.call(&TestRequest::get(&format!("/.ibid/keys/{key}?method=POST&path={path}"))).await;
        let json: serde_json::Value = serde_json::from_slice(&page.body).unwrap_or_default();
        json["state"].as_str().unwrap_or("none").to_owned()
    }
}

/// Sends a request straight to a hop, without the gateway. Returns `None` if the hop closes or refuses the connection.
pub(crate) async fn ask(addr: SocketAddr, request: &TestRequest) -> Option<TestResponse> {
    Client::try_connect(addr).await?.try_call(request).await
}

/// Describes a response: status, problem type, and whether it was replayed or broken off.
pub(crate) fn describe(answer: Option<&TestResponse>) -> String {
    let Some(answer) = answer else { return "nothing".to_owned() };
    let problem = match answer.header("content-type").as_deref() {
        Some("application/problem+json") => {
            let json: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
            let kind = json["type"].as_str().unwrap_or_default().to_owned();
            format!(" {}", kind.rsplit(['/', ':', '#']).next().unwrap_or_default())
        }
        _ => String::new(),
    };
    let end = if answer.cut { ", broken off" } else { "" };
    let replayed = if answer.header("idempotent-replayed").is_some() { " replayed" } else { "" };
    format!("{}{problem}{replayed}{end}", answer.status)
}

/// The fault that is present for the first request, and gone before its retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Nothing listens at the upstream's address.
    Refused,
    /// Another request occupies the only slot of the hop.
    Full,
    /// The connection to the upstream has carried a request before.
    Reused,
    /// Only the fault that the request's `x-fixture` field names.
    Fixture,
}

/// One request and its retry: straight to the hop, and through the gateway.
pub(crate) struct Story {
    /// The hop's response without the gateway.
    pub(crate) alone: Option<TestResponse>,
    /// Number of executions of the first request by the upstream.
    pub(crate) delivered: usize,
    /// The gateway's response to the first request.
    pub(crate) answer: TestResponse,
    /// The record's state after that response.
    pub(crate) state: String,
    /// The gateway's response to the retry.
    pub(crate) retry: TestResponse,
    /// Number of executions of the request and its retry by the upstream.
    pub(crate) in_all: usize,
}

impl Story {
    /// Runs the story. Starts everything for this story only, so that none sees the connections of another.
    pub(crate) async fn play(
        ibid: &Path,
        hop: Option<(Proxy, ProxyHopOptions)>,
        defaults: &str,
        trouble: Trouble,
        request: impl Fn(&str) -> TestRequest,
    ) -> Story {
        let mut upstream = Upstream::start().await;
        let hop = hop.map(|(proxy, options)| ProxyHop::start(proxy, upstream.addr(), options));
        let to = hop.as_ref().map_or(upstream.addr(), ProxyHop::addr);
        let gateway = Gateway::start(ibid, to, defaults);
        let (straight, through) = (request("/straight"), request("/through"));

        if trouble == Trouble::Refused {
            let port = upstream.stop().await;
            let alone = ask(to, &straight).await;
            let (answer, state) = gateway.first(&through).await;
            upstream = port.start();
            let retry = gateway.call(&through).await;
            let in_all = upstream.executions_of("/through");
            return Story { alone, delivered: 0, answer, state, retry, in_all };
        }
        let busy = match trouble {
            Trouble::Full => Some(occupy(&upstream, to).await),
            _ => None,
        };
        let warm = trouble == Trouble::Reused;
        let alone = ask_reusing(&upstream, to, warm, ask(to, &straight)).await;
        let (answer, state) = ask_reusing(&upstream, to, warm, gateway.first(&through)).await;
        let delivered = upstream.executions_of("/through");
        upstream.gate().open();
        if let Some(busy) = busy {
            busy.await.expect("the request that kept others out ends");
        }
        let retry = gateway.call(&through).await;
        Story { alone, delivered, answer, state, retry, in_all: upstream.executions_of("/through") }
    }

    /// Returns the promise of the record's state that was broken, if one was.
    pub(crate) fn problem(&self) -> Option<String> {
        let status = self.retry.status;
        let retried = self.in_all - self.delivered;
        let is_kept = match self.state.as_str() {
            "unknown" => (status, retried) == (409, 0),
            "retryable" => (status, self.delivered, retried) == (201, 0, 1),
            "completed" => retried == 0,
            _ => false,
        };
        (!is_kept).then(|| {
            format!(
                "the key was left {}, the retry got {status} and was delivered {retried} times",
                self.state
            )
        })
    }
}

impl Gateway {
    /// Returns the response to the first request with this key, and the record's state after it.
    async fn first(&self, request: &TestRequest) -> (TestResponse, String) {
        (self.call(request).await, self.state("/through", "through").await)
    }
}

/// Awaits `asking`. If `warm`, first sends another request, which opens the connection to be reused.
async fn ask_reusing<T>(
    upstream: &Upstream,
    hop: SocketAddr,
    warm: bool,
    asking: impl Future<Output = T>,
) -> T {
    if !warm {
        return asking.await;
    }
    let opened = ask(hop, &TestRequest::post("/warm").body("x").fixture("status=201")).await;
    assert_eq!(opened.map(|answer| answer.status), Some(201), "the hop passes a plain request");
    let before = upstream.requests().len();
    let answer = asking.await;
    let requests = upstream.requests();
    let (warm, first) = (&requests[before - 1], &requests[before]);
    // Without a proxy, the gateway uses a separate connection, not the one that was opened here.
    assert!(
        warm.connection == first.connection || hop == upstream.addr(),
        "the hop did not reuse its connection"
    );
    answer
}

/// Sends a request that stays in the hop until the gate opens.
async fn occupy(upstream: &Upstream, hop: SocketAddr) -> tokio::task::JoinHandle<()> {
    let busy = tokio::spawn(async move {
        ask(hop, &TestRequest::post("/busy").body("x").fixture("gate;status=201")).await;
    });
    upstream.until(|tally| tally.held == 1).await;
    busy
}
