//! Servers that die under load: nothing that a single server confirmed is lost, and what a failover loses is declared.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ibid::store::redis::RedisStore;
use ibid_core::change::Commit;
use ibid_core::record::Version;
use ibid_core::scope::RecordId;
use ibid_core::store::{Durability, Store};
use ibid_testkit::contract::{finish_with, load};
use ibid_testkit::redis::{Redis, RedisCluster};
use tokio::sync::Mutex;

use super::{begin, commit, open, open_weak, put, until_replicated};

/// Versions that the store has confirmed, by id.
type ConfirmedVersions = Arc<Mutex<HashMap<RecordId, Version>>>;

/// Begins and finishes records on many tasks until told to stop, and returns what was confirmed.
async fn write_until(store: &Arc<RedisStore>, stop: &Arc<AtomicBool>, confirmed: &ConfirmedVersions) {
    let writers = (0..16).map(|_| {
        let (store, stop, confirmed) = (store.clone(), stop.clone(), confirmed.clone());
        tokio::spawn(async move {
            while !stop.load(Ordering::SeqCst) {
                let change = begin();
                if !matches!(commit(&store, &change).await, Ok(Commit::Done(_))) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    continue;
                }
                confirmed.lock().await.insert(change.id, change.version());
                let Ok(Some(stored)) = store.load(change.id).await else { continue };
                let finish = finish_with(&stored.record, b"done");
                if matches!(commit(&store, &finish).await, Ok(Commit::Done(_))) {
                    confirmed.lock().await.insert(finish.id, finish.version());
                }
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.expect("a writer ends");
    }
}

async fn wait_for(confirmed: &ConfirmedVersions, count: usize) {
    while confirmed.lock().await.len() < count {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_loses_nothing_that_it_confirmed() {
    let mut server = Redis::start();
    let store = open(&server.url()).await;
    let (stop, confirmed) = (Arc::new(AtomicBool::new(false)), ConfirmedVersions::default());
    let control = async {
        for round in 1..=3 {
            wait_for(&confirmed, 300 * round).await;
            server.kill();
            server.start_again();
        }
        wait_for(&confirmed, 1200).await;
        stop.store(true, Ordering::SeqCst);
    };
    tokio::join!(write_until(&store, &stop, &confirmed), control);
    for (id, version) in confirmed.lock().await.iter() {
        let stored = load(&*store, *id).await.expect("a confirmed record is there").record;
        // A finish whose reply was lost may have been written as well.
        assert!(stored.version == *version || stored.version.count == version.count + 1, "{stored:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_promoted_replica_lacks_only_the_newest_writes() {
    let mut primary = Redis::start();
    let replica = primary.replica();
    let store = open_weak(&primary.url()).await;
    assert!(matches!(store.facts().durability, Durability::Weak { .. }), "the loss is declared");
    let first = put(&store, &begin()).await;
    let (stop, confirmed) = (Arc::new(AtomicBool::new(false)), ConfirmedVersions::default());
    let control = async {
        wait_for(&confirmed, 300).await;
        let early = confirmed.lock().await.clone();
        until_replicated(&primary, &replica).await;
        // The replica loses sight of its primary: what is confirmed from here on does not reach it.
        assert_eq!(replica.cli(&["REPLICAOF", "127.0.0.1", "1"]), "OK");
        let before = confirmed.lock().await.len();
        wait_for(&confirmed, before + 300).await;
        primary.kill();
        stop.store(true, Ordering::SeqCst);
        early
    };
    let ((), early) = tokio::join!(write_until(&store, &stop, &confirmed), control);
    assert_eq!(replica.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    let promoted = open_weak(&replica.url()).await;
    put(&promoted, &finish_with(&first, b"resumes")).await;
    let (mut lost, mut older) = (0, 0);
    let confirmed = confirmed.lock().await;
    for (id, version) in confirmed.iter() {
        match load(&*promoted, *id).await {
            None => {
                assert!(!early.contains_key(id), "what the replica had is there");
                lost += 1;
            }
            Some(stored) if stored.record.version.count < version.count => older += 1,
            Some(_) => {}
        }
    }
    println!("of {} confirmed: {lost} records lost, {older} at an older version", confirmed.len());
    assert!(lost > 0, "a replica that lags lacks writes: this is what weak means");
}

/// A cluster promotes a replica by itself, and the open store follows.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_fails_over_takes_writes_again() {
    let mut cluster = RedisCluster::start_with(3, 1, &[("cluster-node-timeout", "500")]);
    let store = open_weak(&cluster.url()).await;
    let (stop, confirmed) = (Arc::new(AtomicBool::new(false)), ConfirmedVersions::default());
    let control = async {
        wait_for(&confirmed, 300).await;
        cluster.node(0).kill();
        // The replica has the slots of the dead primary once a key of each bucket is written.
        let mut missing: HashSet<u8> = (0..=u8::MAX).collect();
        while !missing.is_empty() {
            let change = begin();
            if missing.contains(&change.id.as_bytes()[0]) && commit(&store, &change).await.is_ok() {
                missing.remove(&change.id.as_bytes()[0]);
            }
        }
        stop.store(true, Ordering::SeqCst);
    };
    tokio::join!(write_until(&store, &stop, &confirmed), control);
    let (mut lost, mut older) = (0, 0);
    let confirmed = confirmed.lock().await;
    for (id, version) in confirmed.iter() {
        match load(&*store, *id).await {
            None => lost += 1,
            Some(stored) if stored.record.version.count < version.count => older += 1,
            Some(_) => continue,
        }
        // The first of three servers has the first third of the slots.
        assert!(cluster.slot(&format!("{{{:02x}}}", id.as_bytes()[0])) < 5461, "the others lose nothing");
    }
    println!("of {} confirmed: {lost} records lost, {older} at an older version", confirmed.len());
    assert!(matches!(store.facts().durability, Durability::Weak { .. }), "the loss is declared");
}
