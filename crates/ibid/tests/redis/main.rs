//! The Redis store, tested by the contract suite and against what only a server can do to it.

mod cluster;
mod copy;
mod faults;
mod kills;
mod open;
mod shared_scripts;
#[cfg(feature = "redis-tls")]
mod tls;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ibid::store::redis::{RedisOptions, RedisStore};
use ibid_core::change::{Change, Commit};
use ibid_core::record::Record;
use ibid_core::store::{BoxFuture, Store, StoreError};
use ibid_testkit::contract::{self, LONG, StoreUnderTest, TestRecord, fresh, load};
use ibid_testkit::redis::{Redis, RedisCluster};

struct RedisUnderTest(Arc<RedisStore>);

impl StoreUnderTest for RedisUnderTest {
    fn store(&self) -> Arc<dyn Store> {
        self.0.clone()
    }

    /// Waits, because the clock is the server's.
    fn advance(&self, by: Duration) -> BoxFuture<'_, ()> {
        Box::pin(tokio::time::sleep(by))
    }
}

async fn open(url: &str) -> Arc<RedisStore> {
    Arc::new(RedisStore::open(url, RedisOptions::default()).await.expect("the store opens"))
}

async fn open_weak(url: &str) -> Arc<RedisStore> {
    open(&format!("{url}?durability=weak")).await
}

/// A begin under a fresh name, as the engine writes it.
fn begin() -> Change {
    fresh(&TestRecord::fresh(), LONG)
}

async fn commit(store: &RedisStore, change: &Change) -> Result<Commit, StoreError> {
    store.commit(Arc::new(change.clone()), None).await
}

/// Commits a begin as the engine does, with a deadline.
async fn try_begin(store: &RedisStore, change: &Change) -> Result<Commit, StoreError> {
    store.commit(Arc::new(change.clone()), Some(Instant::now() + LONG)).await
}

/// Commits a change that must be taken, and returns the record that it leads to.
async fn put(store: &RedisStore, change: &Change) -> Arc<Record> {
    let done = commit(store, change).await.expect("it is committed");
    assert!(matches!(done, Commit::Done(_)), "{done:?}");
    load(store, change.id).await.expect("it is stored").record
}

/// Sends the same change until the store answers, as the engine does. Returns whether it is stored.
async fn commit_surely(store: &RedisStore, change: &Change) -> bool {
    loop {
        match commit(store, change).await {
            Ok(Commit::Done(_)) => return true,
            Ok(Commit::Conflict(stored)) => return stored.is_some_and(|stored| change.is_stored_as(&stored)),
            Err(error) if error.is_transient() => tokio::time::sleep(Duration::from_millis(5)).await,
            Err(error) => panic!("{error}: {:?}", std::error::Error::source(&error)),
        }
    }
}

/// Waits until a replica has everything that its primary has written.
async fn until_replicated(primary: &Redis, replica: &Redis) {
    let offset = |server: &Redis, name| server.info(name).parse::<u64>().expect("an offset");
    let written = offset(primary, "master_repl_offset");
    while offset(replica, "slave_repl_offset") < written {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_redis_store_keeps_the_contract() {
    let server = Redis::start();
    contract::exercise(&RedisUnderTest(open(&server.url()).await)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_redis_store_keeps_the_contract_on_a_cluster() {
    let cluster = RedisCluster::start();
    contract::exercise(&RedisUnderTest(open_weak(&cluster.url()).await)).await;
}
