//! Webhooks of the processor settle charges whose response was lost. The processor ignores keys here, so a second call
//! would be a second charge.

use std::net::SocketAddr;
use std::sync::Arc;

use ibid_testkit::client::TestRequest;
use ibid_testkit::processor::{CardProcessor, ChargeFaults, ProcessorOptions, WebhookSecret};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{RwLock, watch};

use crate::armed_node::ArmedNode;
use crate::fixture::{DatabaseAndProcessor, Node, TestDatabase, json, on_both_databases, payment, wait_for};
use crate::harness::Program;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A database, and a processor that sends its webhooks through a relay that the test connects and disconnects.
struct RelayedWebhooks {
    world: DatabaseAndProcessor,
    /// Address of the node that the relay forwards to.
    relay_target: watch::Sender<Option<SocketAddr>>,
    /// Read-locked by each connection that the relay forwards.
    relayed: Arc<RwLock<()>>,
}

impl RelayedWebhooks {
    async fn new(database: TestDatabase) -> RelayedWebhooks {
        let relay = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let relay_address = relay.local_addr().expect("an address");
        let (relay_target, target) = watch::channel(None);
        let relayed = Arc::new(RwLock::new(()));
        let lock = relayed.clone();
        // Ends with the test's runtime.
        tokio::spawn(async move {
            while let Ok((from, _)) = relay.accept().await {
                tokio::spawn(forward(from, target.clone(), lock.clone()));
            }
        });
        let secret = WebhookSecret::parse(SECRET).expect("a secret");
        let provider = CardProcessor::start(ProcessorOptions {
            faults: ChargeFaults::parse("reset=every-1").expect("faults"),
            ignore_keys: true,
            webhook: Some((relay_address, "/.ibid/hooks/processor".to_owned(), secret)),
            ..ProcessorOptions::default()
        });
        RelayedWebhooks { world: DatabaseAndProcessor { database, provider }, relay_target, relayed }
    }

    fn serve(&self) -> std::process::Command {
        let mut command = self.world.serve("3s", "100ms", "100ms");
        command.args(["--charge-once"]).env("PAYMENTS_HOOK_SECRET", SECRET);
        command
    }

    /// Lets the relay forward webhooks to this node.
    fn connect(&self, node: &Node) {
        self.relay_target.send_replace(Some(node.0.address));
    }

    /// Lets webhooks wait in the relay, and returns once no connection is forwarded any more.
    async fn disconnect(&self) {
        self.relay_target.send_replace(None);
        drop(self.relayed.write().await);
    }

    async fn pay(&self, node: &Node, key: &str, amount_cents: i64) -> String {
        let response = node.post("/payments", "ann", key, &payment("c", amount_cents)).await;
        assert_eq!(response.status, 201, "{response:?}");
        json(&response)["paymentId"].as_str().expect("an id").to_owned()
    }

    /// Asserts that each payment made one call to the processor and was charged once.
    async fn assert_charged_once(&self, payments: &[&String]) {
        let mut ids: Vec<String> = payments.iter().map(|id| (*id).clone()).collect();
        ids.sort();
        assert_eq!(self.world.charged_references().await, ids);
        let (_, list) = self.world.provider.get("/charges").await;
        assert_eq!(list["requests"], payments.len(), "one call per payment");
    }
}

/// Waits for a target, then forwards one connection until it ends or the relay is disconnected. The processor sends a
/// webhook again if its connection was cut.
async fn forward(
    mut from: TcpStream,
    mut target: watch::Receiver<Option<SocketAddr>>,
    relayed: Arc<RwLock<()>>,
) {
    let Ok(node) = target.wait_for(Option::is_some).await.map(|node| *node) else { return };
    let _guard = relayed.read().await;
    // The relay may have been disconnected before the lock was acquired.
    let (Some(node), true) = (node, target.borrow().is_some()) else { return };
    let Ok(mut to) = TcpStream::connect(node).await else { return };
    tokio::select! {
        _ = copy_bidirectional(&mut from, &mut to) => {}
        _ = target.wait_for(Option::is_none) => {}
    }
}

const UNKNOWN: &str = "select state from ibid_effects where state = 'unknown'";

on_both_databases!(
    a_webhook_settles_a_charge_whose_response_was_lost,
    a_stored_webhook_survives_a_kill_before_it_is_applied,
);

#[cfg(feature = "mysql")]
#[tokio::test]
async fn a_webhook_settles_a_charge_on_mariadb() {
    a_webhook_settles_a_charge_whose_response_was_lost(TestDatabase::mariadb()).await;
    a_stored_webhook_survives_a_kill_before_it_is_applied(TestDatabase::mariadb()).await;
}

async fn a_webhook_settles_a_charge_whose_response_was_lost(database: TestDatabase) {
    let hooks = RelayedWebhooks::new(database).await;
    let node = Node(Program::from_command(hooks.serve()));
    // First, webhooks arrive as the processor sends them: during the call or after it.
    hooks.connect(&node);
    let taken = hooks.pay(&node, "one", 500).await;
    let declined = hooks.pay(&node, "two", 613).await;
    let settled = node.wait_until_settled("ann", &taken).await;
    assert_eq!(settled["status"], "succeeded", "{settled}");
    assert!(settled["chargeId"].is_string(), "{settled}");
    assert_eq!(node.wait_until_settled("ann", &declined).await["status"], "failed", "a decline is a result");

    // Then, a webhook arrives only after the effect has become `unknown`.
    hooks.disconnect().await;
    let late = hooks.pay(&node, "three", 700).await;
    hooks.world.wait_for_rows(UNKNOWN, &["unknown"]).await;
    let (_, pending) = node.get(&format!("/payments/{late}"), "ann").await;
    assert_eq!(pending["status"], "pending", "{pending}");
    hooks.connect(&node);
    assert_eq!(node.wait_until_settled("ann", &late).await["status"], "succeeded");
    hooks.assert_charged_once(&[&taken, &declined, &late]).await;

    let unsigned = TestRequest::post("/.ibid/hooks/processor").body("{}");
    assert_eq!(node.0.call(&unsigned).await.status, 401, "a webhook needs a signature");
    assert!(node.0.stop());
}

async fn a_stored_webhook_survives_a_kill_before_it_is_applied(database: TestDatabase) {
    let hooks = RelayedWebhooks::new(database).await;
    let mut armed = ArmedNode::from_command(hooks.serve(), "hear.kept=1*return(kill)").await;
    let payment_id = hooks.pay(&armed.node, "k", 500).await;
    hooks.world.wait_for_rows(UNKNOWN, &["unknown"]).await;
    hooks.connect(&armed.node);
    armed.wait_until_killed().await;
    // No further webhook arrives, so the stored one is the only evidence.
    hooks.disconnect().await;
    hooks.world.wait_for_rows(UNKNOWN, &["unknown"]).await;
    let node = Node(Program::from_command(hooks.serve()));
    assert_eq!(node.wait_until_settled("ann", &payment_id).await["status"], "succeeded");
    hooks.assert_charged_once(&[&payment_id]).await;
    let used = "select event from ibid_evidence where not open";
    let used_on_sqlite = "select event from ibid_evidence where open = 0";
    let used = if matches!(hooks.world.database, TestDatabase::Sqlite(_)) { used_on_sqlite } else { used };
    wait_for("the evidence is used", async || (hooks.world.texts(used).await.len() == 1).then_some(())).await;
}
