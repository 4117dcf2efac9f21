//! The contract suite.

use std::sync::Arc;
use std::time::Duration;

use ibid_core::store::{BoxFuture, Store, Tiers};
use ibid_dynamodb::{DynamoStore, NodeClock};
use ibid_testkit::contract::{self, StoreUnderTest};
use ibid_testkit::dynamodb::DynamoDb;

use crate::fixture::{SKEW_MAX, open};

struct Subject(Arc<DynamoStore>, NodeClock);

impl StoreUnderTest for Subject {
    fn store(&self) -> Arc<dyn Store> {
        self.0.clone()
    }

    fn advance(&self, by: Duration) -> BoxFuture<'_, ()> {
        self.1.advance(by + SKEW_MAX);
        Box::pin(std::future::ready(()))
    }

    /// DynamoDB Local takes some milliseconds of the processor for each request.
    fn racers(&self) -> usize {
        if std::env::var_os("IBID_SOAK").is_some() { 200 } else { 40 }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_dynamodb_store_keeps_the_contract_of_writes() {
    contract::exercise_writes(&subject().await.1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_dynamodb_store_keeps_the_contract_of_upkeep() {
    contract::exercise_upkeep(&subject().await.1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_dynamodb_store_keeps_the_contract_of_races() {
    contract::exercise_races(&subject().await.1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_dynamodb_store_keeps_the_contract_of_the_hot_path() {
    contract::exercise_hot_path(&subject().await.1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_dynamodb_store_keeps_the_contract_of_its_other_tiers() {
    let (_server, subject) = subject().await;
    let tiers = Tiers::of(&*subject.0);
    assert_eq!(tiers, Tiers { sql: false, ..Tiers::ALL }, "each of them is exercised");
    contract::exercise_bodies(&subject).await;
    contract::exercise_browse(&subject).await;
    contract::exercise_evidence(&subject).await;
    contract::exercise_copy(&subject).await;
}

async fn subject() -> (DynamoDb, Subject) {
    let server = DynamoDb::shared();
    let clock = NodeClock::default();
    let store = open(&server, &clock).await;
    (server, Subject(Arc::new(store), clock))
}
