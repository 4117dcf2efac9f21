//! Official SDKs through the gateway, with lost responses: each call is executed once, however the SDK retries.
//!
//! Every SDK makes two calls. The response to the first is lost between the gateway and the SDK, whose retry gets it
//! again. The response to the second is lost between the upstream and the gateway, so its outcome is unknown: the SDK
//! ends with an error, and the upstream still executed the call once.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ibid_testkit::program::tools;
use ibid_testkit::upstream::Upstream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::{Gateway, Setup};

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_to_stripes_sdk_is_executed_once() {
    let answer = r#"header=Content-Type: application/json;body={"id":"done-1","object":"payment_intent"}"#;
    let config = "[defaults]\nprofile = \"stripe\"\n";
    let executed =
        calls("stripe-16.1.0", &["stripe_sdk.py"], "authorization", config, answer, Loss::Closed).await;
    assert_eq!(executed.len(), 2, "{executed:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_to_squares_sdk_is_executed_once() {
    let answer = r#"header=Content-Type: application/json;body={"payment":{"id":"done-1"}}"#;
    let config = "[defaults]\nkey_from = \"square\"\n";
    let executed = calls(
        "squareup-46.0.0.20260916",
        &["square_sdk.py"],
        "authorization",
        config,
        answer,
        Loss::TimedOut,
    )
    .await;
    assert_eq!(executed.len(), 2, "{executed:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_to_azures_sdk_is_executed_once() {
    let answer = r#"status=201;header=Content-Type: application/json;body={"id":"done-1","createdAt":"2026-01-01T00:00:00Z","validFrom":"2026-01-01T00:00:00Z","validUntil":"2026-02-01T00:00:00Z","pstnDialOutEnabled":false}"#;
    let config = "[defaults]\nprofile = \"repeatability\"\n";
    let executed =
        calls("azure-communication-rooms-1.2.0", &["azure_sdk.py"], "none", config, answer, Loss::TimedOut)
            .await;
    assert_eq!(executed.len(), 2, "{executed:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_to_boto3_is_executed_once_in_json() {
    let answer = r#"header=Content-Type: application/x-amz-json-1.1;body={"tasks":[{"taskArn":"done-1"}],"failures":[]}"#;
    let executed =
        calls(BOTO3, &["aws_sdk.py", "ecs"], "header:x-tenant-id", AWS, answer, Loss::Closed).await;
    assert_eq!(executed.len(), 2, "{executed:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_to_boto3_is_executed_once_in_a_form() {
    let answer = "header=Content-Type: text/xml;body=<RunInstancesResponse><reservationId>r-1</reservationId>\
                  <instancesSet><item><instanceId>done-1</instanceId></item></instancesSet></RunInstancesResponse>";
    let executed =
        calls(BOTO3, &["aws_sdk.py", "ec2"], "header:x-tenant-id", AWS, answer, Loss::Closed).await;
    assert_eq!(executed.len(), 2, "{executed:#?}");
}

const BOTO3: &str = "boto3-1.44.3";

/// AWS also has operations without a token; `optional` lets these pass.
const AWS: &str = "[defaults]\nkey_from = \"aws\"\nkey = \"optional\"\n";

/// Makes the two calls and returns the requests that the upstream executed.
async fn calls(
    package: &str,
    script: &[&str],
    tenant: &str,
    config: &str,
    answer: &str,
    loss: Loss,
) -> Vec<String> {
    let upstream = Upstream::start().await;
    upstream.behave(answer);
    let gateway = Setup::before(&upstream.url()).tenant(tenant).config(config).start();
    let hop = LossyHop::before(&gateway, loss).await;
    let mut sdk = Sdk::start(package, script, hop.addr);
    hop.lose.store(1, Ordering::SeqCst);
    assert_eq!(sdk.call(), "ok done-1", "the retry gets the first answer");
    assert_eq!((upstream.total(), hop.lose.load(Ordering::SeqCst)), (1, 0), "{:#?}", upstream.requests());
    upstream.behave("cut=read");
    let outcome = sdk.call();
    assert!(outcome.starts_with("error "), "{outcome}");
    upstream.requests().iter().map(|request| format!("{} {}", request.method, request.target)).collect()
}

/// Ways to lose a response between the gateway and its client.
#[derive(Clone, Copy)]
enum Loss {
    /// The connection is closed.
    Closed,
    /// A load balancer times out and responds with 504. SDKs that do not retry a closed connection retry this.
    TimedOut,
}

/// A hop before the gateway that drops responses after they have arrived.
struct LossyHop {
    addr: SocketAddr,
    /// Number of responses to drop.
    lose: Arc<AtomicUsize>,
    serving: tokio::task::JoinHandle<()>,
}

impl LossyHop {
    async fn before(gateway: &Gateway, loss: Loss) -> LossyHop {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("a bound socket has an address");
        let (to, lose) = (gateway.addr(), Arc::new(AtomicUsize::new(0)));
        let left = Arc::clone(&lose);
        let serving = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, to, Arc::clone(&left), loss));
            }
        });
        LossyHop { addr, lose, serving }
    }
}

impl Drop for LossyHop {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Forwards bytes in both directions until a response is to be dropped. Its first byte leaves the gateway only after
/// the record is complete, so the record is stored by then.
async fn pass(client: TcpStream, to: SocketAddr, lose: Arc<AtomicUsize>, loss: Loss) {
    let server = TcpStream::connect(to).await.expect("the gateway listens");
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let requests = tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
    let mut bytes = vec![0; 16 * 1024];
    while let Ok(read) = from_server.read(&mut bytes).await {
        let is_lost = read > 0
            && lose.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        if is_lost {
            if let Loss::TimedOut = loss {
                let _ = to_client.write_all(GATEWAY_TIMEOUT).await;
            }
            break;
        }
        if read == 0 || to_client.write_all(&bytes[..read]).await.is_err() {
            break;
        }
    }
    // Drop both halves, and the connections with them.
    requests.abort();
}

const GATEWAY_TIMEOUT: &[u8] =
    b"HTTP/1.1 504 Gateway Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// A script of `tests/sdk`, which makes one call for each line on its stdin.
struct Sdk {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Sdk {
    fn start(package: &str, script: &[&str], to: SocketAddr) -> Sdk {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdk");
        let packages = tools().join(package);
        assert!(packages.is_dir(), "`{}` is missing: run scripts/setup", packages.display());
        let mut command = Command::new("python3");
        command.arg("-B").arg(folder.join(script[0])).arg(format!("http://{to}")).args(&script[1..]);
        // Proxies and profiles in the tester's environment must not affect the test.
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("PYTHONPATH", packages);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("Python starts");
        let stdin = child.stdin.take().expect("stdin is piped");
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        Sdk { child, stdin, stdout }
    }

    /// Makes one call and returns its result.
    fn call(&mut self) -> String {
        self.stdin.write_all(b"\n").expect("the script reads");
        let mut outcome = String::new();
        tokio::task::block_in_place(|| self.stdout.read_line(&mut outcome)).expect("the script answers");
        outcome.trim_end().to_owned()
    }
}

impl Drop for Sdk {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
