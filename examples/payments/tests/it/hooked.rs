//! The processor's own webhook settles charges whose answer was lost: real processes, real sockets, a real signature. The
//! processor here does not know keys, so a second call would be a second charge.

use std::net::SocketAddr;
use std::sync::Arc;

use ibid_testkit::client::TestRequest;
use ibid_testkit::processor::{CardProcessor, ChargeFaults, ProcessorOptions, WebhookSecret};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{RwLock, watch};

use crate::armed::Armed;
use crate::harness::Program;
use crate::world::{Node, Place, World, eventually, json, on_both_databases, payment};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A world whose processor tells of its charges through a wire that the story holds.
struct Told {
    world: World,
    node_at: watch::Sender<Option<SocketAddr>>,
    /// Held by each connection that is carried.
    carried: Arc<RwLock<()>>,
}

impl Told {
    async fn new(place: Place) -> Told {
        let wire = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let wire_at = wire.local_addr().expect("an address");
        let (node_at, at) = watch::channel(None);
        let carried = Arc::new(RwLock::new(()));
        let held = carried.clone();
        // Ends with the test's runtime.
        tokio::spawn(async move {
            while let Ok((from, _)) = wire.accept().await {
                tokio::spawn(carry(from, at.clone(), held.clone()));
            }
        });
        let secret = WebhookSecret::parse(SECRET).expect("a secret");
        let provider = CardProcessor::start(ProcessorOptions {
            faults: ChargeFaults::parse("reset=every-1").expect("faults"),
            ignore_keys: true,
            webhook: Some((wire_at, "/.ibid/hooks/processor".to_owned(), secret)),
            ..ProcessorOptions::default()
        });
        Told { world: World { place, provider }, node_at, carried }
    }

    fn serve(&self) -> std::process::Command {
        let mut command = self.world.serve("3s", "100ms", "100ms");
        command.args(["--charge-once"]).env("PAYMENTS_HOOK_SECRET", SECRET);
        command
    }

    /// From now on, until told otherwise, webhooks come to this node.
    fn connect(&self, node: &Node) {
        self.node_at.send_replace(Some(node.0.address));
    }

    /// From now on webhooks wait.
    async fn disconnect(&self) {
        self.node_at.send_replace(None);
        drop(self.carried.write().await);
    }

    async fn pay(&self, node: &Node, key: &str, amount_cents: i64) -> String {
        let paid = node.post("/payments", "ann", key, &payment("c", amount_cents)).await;
        assert_eq!(paid.status, 201, "{paid:?}");
        json(&paid)["paymentId"].as_str().expect("an id").to_owned()
    }

    /// One charge was asked for by every payment, and made.
    async fn charged_once(&self, payments: &[&String]) {
        let mut wanted: Vec<String> = payments.iter().map(|id| (*id).clone()).collect();
        wanted.sort();
        assert_eq!(self.world.charged().await, wanted);
        let (_, list) = self.world.provider.get("/charges").await;
        assert_eq!(list["requests"], payments.len(), "nothing was asked for twice");
    }
}

/// Carries one connection to the node, once and for as long as there is one to carry it to. A webhook that is cut off is
/// sent again.
async fn carry(mut from: TcpStream, mut at: watch::Receiver<Option<SocketAddr>>, carried: Arc<RwLock<()>>) {
    let Ok(node) = at.wait_for(Option::is_some).await.map(|node| *node) else { return };
    let _held = carried.read().await;
    // It may have gone meanwhile.
    let (Some(node), true) = (node, at.borrow().is_some()) else { return };
    let Ok(mut to) = TcpStream::connect(node).await else { return };
    tokio::select! {
        _ = copy_bidirectional(&mut from, &mut to) => {}
        _ = at.wait_for(Option::is_none) => {}
    }
}

const UNKNOWN: &str = "select 'unknown' from ibid_effect where state = 4";

on_both_databases!(
    a_charge_whose_answer_was_reset_is_settled_by_the_processors_webhook,
    a_node_killed_between_keeping_a_webhook_and_using_it_loses_nothing,
);

async fn a_charge_whose_answer_was_reset_is_settled_by_the_processors_webhook(place: Place) {
    let told = Told::new(place).await;
    let node = Node(Program::of(told.serve()));
    // As it comes: during the call or after it.
    told.connect(&node);
    let taken = told.pay(&node, "one", 500).await;
    let declined = told.pay(&node, "two", 613).await;
    let settled = node.settled("ann", &taken).await;
    assert_eq!(settled["status"], "succeeded", "{settled}");
    assert!(settled["chargeId"].is_string(), "{settled}");
    assert_eq!(node.settled("ann", &declined).await["status"], "failed", "a decline is an answer");

    // And only when the node has given up on the answer.
    told.disconnect().await;
    let late = told.pay(&node, "three", 700).await;
    told.world.comes_to(UNKNOWN, &["unknown"]).await;
    let (_, waits) = node.get(&format!("/payments/{late}"), "ann").await;
    assert_eq!(waits["status"], "pending", "{waits}");
    told.connect(&node);
    assert_eq!(node.settled("ann", &late).await["status"], "succeeded");
    told.charged_once(&[&taken, &declined, &late]).await;

    let unsigned = TestRequest::post("/.ibid/hooks/processor").body("{}");
    assert_eq!(node.0.call(&unsigned).await.status, 401, "the signature is the only way in");
    assert!(node.0.stop());
}

async fn a_node_killed_between_keeping_a_webhook_and_using_it_loses_nothing(place: Place) {
    let told = Told::new(place).await;
    let mut armed = Armed::of(told.serve(), "hear.kept=1*return(kill)").await;
    let paid = told.pay(&armed.node, "k", 500).await;
    told.world.comes_to(UNKNOWN, &["unknown"]).await;
    told.connect(&armed.node);
    armed.dies().await;
    // The processor can tell nobody any more: what was kept is all there is.
    told.disconnect().await;
    told.world.comes_to(UNKNOWN, &["unknown"]).await;
    let node = Node(Program::of(told.serve()));
    assert_eq!(node.settled("ann", &paid).await["status"], "succeeded");
    told.charged_once(&[&paid]).await;
    let used = "select event from ibid_evidence where not open";
    let used_on_sqlite = "select event from ibid_evidence where open = 0";
    let used = if matches!(told.world.place, Place::Sqlite(_)) { used_on_sqlite } else { used };
    eventually("the event is used up", async || (told.world.texts(used).await.len() == 1).then_some(()))
        .await;
}
