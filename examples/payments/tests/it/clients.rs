//! Clients that send each request under its key until it is carried out, to whichever node is said to be there, and
//! remember every answer they were given.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use ibid_testkit::client::TestResponse;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::harness::PATIENCE;
use crate::world::{eventually, payment, ride, try_post_to};

/// One request, which is to be carried out once.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) target: &'static str,
    pub(crate) key: String,
    pub(crate) body: Value,
}

/// So many payments and rides.
pub(crate) fn wishes(payments: usize, rides: usize) -> Vec<Wish> {
    let payments =
        (0..payments).map(|n| Wish { target: "/payments", key: format!("p{n}"), body: payment("c", 500) });
    let rides = (0..rides).map(|n| Wish { target: "/rides", key: format!("r{n}"), body: ride(900) });
    payments.chain(rides).collect()
}

/// What a client was told.
pub(crate) struct Told {
    pub(crate) wish: Wish,
    pub(crate) body: Vec<u8>,
    /// Requests to nodes that have gone or gone silent. A client that still listens may be answered yet.
    late: Vec<JoinHandle<Option<TestResponse>>>,
}

impl Told {
    pub(crate) fn new(wish: Wish, body: Vec<u8>) -> Told {
        Told { wish, body, late: Vec::new() }
    }

    /// Whose id it was given.
    pub(crate) fn id(&self) -> String {
        let answer: Value = serde_json::from_slice(&self.body).expect("JSON");
        let id = answer["paymentId"].as_str().or(answer["rideId"].as_str());
        id.unwrap_or_else(|| panic!("no id in {answer}")).to_owned()
    }

    /// Waits for the answers that are still to come: whatever success they tell of is the one that is known.
    pub(crate) async fn hears_the_rest(&mut self) {
        for answer in join_all(self.late.drain(..)).await {
            let answer = answer.expect("no panic").filter(|answer| !is_later(answer));
            if let Some(answer) = answer {
                assert_eq!((answer.status, &answer.body), (201, &self.body), "{}", answer.text());
            }
        }
    }

    /// Asks again: a replay of the same bytes.
    pub(crate) async fn is_told_again(&self, node: SocketAddr) {
        let answer = eventually("the answer is given again", || async {
            let again = try_post_to(node, self.wish.target, TOKEN, &self.wish.key, &self.wish.body).await?;
            (!is_later(&again)).then_some(again)
        })
        .await;
        assert_eq!((answer.status, &answer.body), (201, &self.body), "{}", answer.text());
        assert_eq!(answer.header("idempotent-replayed").as_deref(), Some("true"), "{:?}", self.wish);
    }
}

/// Sends all at once, each again and again until it is carried out. When `node` changes, everybody turns to the new one.
pub(crate) async fn carried_out(wishes: Vec<Wish>, node: &watch::Receiver<SocketAddr>) -> Vec<Told> {
    join_all(wishes.into_iter().map(|wish| one(wish, node.clone()))).await
}

async fn one(wish: Wish, mut node: watch::Receiver<SocketAddr>) -> Told {
    let mut late = Vec::new();
    let asking = async {
        loop {
            let address = *node.borrow_and_update();
            let Wish { target, key, body } = wish.clone();
            let mut asking =
                tokio::spawn(async move { try_post_to(address, target, TOKEN, &key, &body).await });
            tokio::select! {
                answer = &mut asking => match answer.expect("no panic") {
                    Some(answer) if !is_later(&answer) => return answer,
                    // Asking does not slow down what is asked for.
                    _ => tokio::time::sleep(ASK_EVERY).await,
                },
                Ok(()) = node.changed() => late.push(asking),
            }
        }
    };
    let answer = tokio::time::timeout(PATIENCE, asking).await;
    let answer = answer.unwrap_or_else(|_| panic!("in vain: {wish:?}"));
    assert_eq!(answer.status, 201, "{wish:?}: {}", answer.text());
    Told { wish, body: answer.body, late }
}

/// "The same again, later."
pub(crate) fn is_later(answer: &TestResponse) -> bool {
    matches!(answer.status, 409 | 503)
}

/// Whose payments they are.
pub(crate) const TOKEN: &str = "ann";

/// A client that was told "later" and does not heed `Retry-After`.
const ASK_EVERY: Duration = Duration::from_millis(50);
