//! Clients that send each request under its key until it is done, to the node whose address the test publishes, and check
//! every response that they get.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use ibid_testkit::client::TestResponse;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::fixture::{payment, ride, try_post_to, wait_for};
use crate::harness::PATIENCE;

/// A payment or ride that must be executed once.
#[derive(Clone, Debug)]
pub(crate) struct PlannedRequest {
    pub(crate) target: &'static str,
    pub(crate) key: String,
    pub(crate) body: Value,
}

/// Plans so many payments and rides, each under a separate key.
pub(crate) fn plan_requests(payments: usize, rides: usize) -> Vec<PlannedRequest> {
    let payments = (0..payments).map(|n| PlannedRequest {
        target: "/payments",
        key: format!("p{n}"),
        body: payment("c", 500),
    });
    let rides =
        (0..rides).map(|n| PlannedRequest { target: "/rides", key: format!("r{n}"), body: ride(900) });
    payments.chain(rides).collect()
}

/// A planned request and the body of its 201 response.
pub(crate) struct CompletedRequest {
    pub(crate) request: PlannedRequest,
    pub(crate) body: Vec<u8>,
    /// Requests to nodes that died or stopped. The connection is still open, so a response may still arrive.
    unanswered: Vec<JoinHandle<Option<TestResponse>>>,
}

impl CompletedRequest {
    pub(crate) fn new(request: PlannedRequest, body: Vec<u8>) -> CompletedRequest {
        CompletedRequest { request, body, unanswered: Vec::new() }
    }

    /// Returns the id of the payment or ride in the response.
    pub(crate) fn id(&self) -> String {
        let body: Value = serde_json::from_slice(&self.body).expect("JSON");
        let id = body["paymentId"].as_str().or(body["rideId"].as_str());
        id.unwrap_or_else(|| panic!("no id in {body}")).to_owned()
    }

    /// Waits for the outstanding responses, and asserts that each success equals the known response.
    pub(crate) async fn assert_late_responses_agree(&mut self) {
        for answer in join_all(self.unanswered.drain(..)).await {
            let answer = answer.expect("no panic").filter(|answer| !is_later(answer));
            if let Some(answer) = answer {
                assert_eq!((answer.status, &answer.body), (201, &self.body), "{}", answer.text());
            }
        }
    }

    /// Sends the request again, and asserts that the response is replayed byte for byte.
    pub(crate) async fn assert_replayed(&self, node: SocketAddr) {
        let answer = wait_for("the response is replayed", || async {
            let again =
                try_post_to(node, self.request.target, TOKEN, &self.request.key, &self.request.body).await?;
            (!is_later(&again)).then_some(again)
        })
        .await;
        assert_eq!((answer.status, &answer.body), (201, &self.body), "{}", answer.text());
        assert_eq!(answer.header("idempotent-replayed").as_deref(), Some("true"), "{:?}", self.request);
    }
}

/// Sends all requests at once and retries each until it is done. When `node` changes, all clients turn to the new node.
pub(crate) async fn send_until_done(
    planned: Vec<PlannedRequest>,
    node: &watch::Receiver<SocketAddr>,
) -> Vec<CompletedRequest> {
    join_all(planned.into_iter().map(|request| send_one(request, node.clone()))).await
}

async fn send_one(request: PlannedRequest, mut node: watch::Receiver<SocketAddr>) -> CompletedRequest {
    let mut unanswered = Vec::new();
    let asking = async {
        loop {
            let address = *node.borrow_and_update();
            let PlannedRequest { target, key, body } = request.clone();
            let mut asking =
                tokio::spawn(async move { try_post_to(address, target, TOKEN, &key, &body).await });
            tokio::select! {
                answer = &mut asking => match answer.expect("no panic") {
                    Some(answer) if !is_later(&answer) => return answer,
                    // Pause, so that retries do not slow down the request that they wait for.
                    _ => tokio::time::sleep(ASK_EVERY).await,
                },
                Ok(()) = node.changed() => unanswered.push(asking),
            }
        }
    };
    let answer = tokio::time::timeout(PATIENCE, asking).await;
    let answer = answer.unwrap_or_else(|_| panic!("no result in time: {request:?}"));
    assert_eq!(answer.status, 201, "{request:?}: {}", answer.text());
    CompletedRequest { request, body: answer.body, unanswered }
}

/// Returns whether the response asks for a retry of the same request.
pub(crate) fn is_later(answer: &TestResponse) -> bool {
    matches!(answer.status, 409 | 503)
}

/// Token of the account that makes all payments.
pub(crate) const TOKEN: &str = "ann";

/// Pause between two tries of a client. It is shorter than any `Retry-After`, like that of an impatient client.
const ASK_EVERY: Duration = Duration::from_millis(50);
