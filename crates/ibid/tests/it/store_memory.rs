//! The memory store, tested by the contract suite.

use std::sync::Arc;
use std::time::Duration;

use ibid::store::clock::{Clock, ClockSetter};
use ibid::store::memory::MemoryStore;
use ibid_core::store::{BoxFuture, Store};
use ibid_core::time::Timestamp;
use ibid_testkit::contract::{self, StoreUnderTest};

struct Memory(Arc<MemoryStore>, ClockSetter);

impl StoreUnderTest for Memory {
    fn store(&self) -> Arc<dyn Store> {
        self.0.clone()
    }

    fn advance(&self, by: Duration) -> BoxFuture<'_, ()> {
        self.1.advance(by);
        Box::pin(std::future::ready(()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_memory_store_keeps_the_contract() {
    let (clock, hands) = Clock::manual(Timestamp::from_micros(1_800_000_000_000_000));
    contract::exercise(&Memory(Arc::new(MemoryStore::new(clock)), hands)).await;
}
