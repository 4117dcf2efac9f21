//! Servers that are refused at start, and the reasons in the message.

use std::time::Duration;

use ibid::store::redis::{RedisOpenError, RedisOptions, RedisStore};
use ibid_core::store::{Durability, Store};
use ibid_testkit::redis::{Redis, RedisCluster};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{begin, commit, open, open_weak, put};

async fn refusal(url: &str) -> RedisOpenError {
    RedisStore::open(url, RedisOptions::default()).await.expect_err("it is refused")
}

#[tokio::test]
async fn a_single_server_that_flushes_every_write_is_durable() {
    let server = Redis::start();
    assert_eq!(open(&server.url()).await.facts().durability, Durability::Durable);
}

#[tokio::test]
async fn a_server_that_may_lose_writes_needs_the_word_weak() {
    for (name, value) in
        [("appendonly", "no"), ("appendfsync", "everysec"), ("no-appendfsync-on-rewrite", "yes")]
    {
        let server = Redis::start_with(&[(name, value)]);
        let error = refusal(&server.url()).await;
        assert!(matches!(error, RedisOpenError::WeakDurability { .. }), "{error:?}");
        assert!(error.to_string().contains(&format!("`{name} {value}`")), "{error}");
        let Durability::Weak { reason } = open_weak(&server.url()).await.facts().durability else {
            panic!("it is weak although that was accepted");
        };
        assert!(reason.contains(name), "{reason}");
    }
}

#[tokio::test]
async fn a_server_that_can_fail_over_is_weak() {
    let primary = Redis::start();
    let replica = primary.replica();
    assert!(matches!(refusal(&primary.url()).await, RedisOpenError::WeakDurability { .. }));
    let facts = open_weak(&primary.url()).await.facts();
    assert!(matches!(facts.durability, Durability::Weak { reason } if reason.contains("replica")));
    let replica_url = format!("{}?durability=weak", replica.url());
    assert!(matches!(refusal(&replica_url).await, RedisOpenError::Replica { .. }), "a replica never");

    let cluster = RedisCluster::start();
    assert!(matches!(refusal(&cluster.url()).await, RedisOpenError::WeakDurability { .. }));
    let facts = open_weak(&cluster.url()).await.facts();
    assert!(matches!(facts.durability, Durability::Weak { reason } if reason.contains("cluster")));
}

/// Each of the servers alone would be durable. After a restart the other one may answer first, and every key would be new there.
#[tokio::test]
async fn several_servers_outside_one_cluster_are_refused() {
    let (mut first, second) = (Redis::start(), Redis::start());
    let url = format!("{},127.0.0.1:{}?durability=weak", first.url(), second.port());
    assert!(matches!(refusal(&url).await, RedisOpenError::SeveralServers { .. }));
    first.kill();
    assert!(matches!(refusal(&url).await, RedisOpenError::SeveralServers { .. }), "also if one is away");
    assert_eq!(second.cli(&["DBSIZE"]), "0", "no store was made");

    let (mut one, mut other) = (RedisCluster::start_with(1, 0, &[]), RedisCluster::start_with(1, 0, &[]));
    let url = format!("{},127.0.0.1:{}?durability=weak", one.url(), other.node(0).port());
    assert!(matches!(refusal(&url).await, RedisOpenError::SeveralServers { .. }), "nor of two clusters");
    assert_eq!(one.node(0).cli(&["DBSIZE"]), "0");
}

#[tokio::test]
async fn a_server_whose_replicas_are_away_is_weak() {
    let primary = Redis::start();
    let mut replica = primary.replica();
    replica.kill();
    while primary.info("connected_slaves") != "0" {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let error = refusal(&primary.url()).await;
    assert!(error.to_string().contains("has had replicas"), "{error}");

    let promoted = primary.replica();
    assert_eq!(promoted.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    assert!(matches!(refusal(&promoted.url()).await, RedisOpenError::WeakDurability { .. }));

    let wants_replicas = Redis::start_with(&[("min-replicas-to-write", "1")]);
    let error = refusal(&wants_replicas.url()).await;
    assert!(error.to_string().contains("`min-replicas-to-write 1`"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_opened_through_a_replica() {
    let cluster = RedisCluster::start_with(3, 1, &[]);
    let store = open_weak(&cluster.replica_of(0).url()).await;
    for _ in 0..10 {
        put(&store, &begin()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_owner_in_a_cluster_is_checked() {
    let mut cluster = RedisCluster::start();
    cluster.node(2).set("maxmemory-policy", "allkeys-lru");
    let first = format!("{}?durability=weak", cluster.node(0).url());
    let error = refusal(&first).await;
    assert!(matches!(&error, RedisOpenError::Evicts { policy, .. } if policy == "allkeys-lru"), "{error:?}");
}

#[tokio::test]
async fn a_server_that_a_sentinel_watches_is_weak() {
    let server = Redis::start();
    // A Sentinel subscribes to this channel of every server that it watches.
    let mut sentinel = TcpStream::connect(("127.0.0.1", server.port())).await.expect("a connection");
    sentinel.write_all(b"SUBSCRIBE __sentinel__:hello\r\n").await.expect("it is sent");
    sentinel.read_u8().await.expect("it is subscribed");
    let error = refusal(&server.url()).await;
    assert!(error.to_string().contains("Sentinel"), "{error}");
}

#[tokio::test]
async fn settings_that_cannot_be_read_count_as_weak() {
    let server = Redis::start();
    for user in ["ann on >secret ~* &* +@all -config", "bob on >secret ~* &* +@all -config -pubsub"] {
        let mut words = vec!["ACL", "SETUSER"];
        words.extend(user.split(' '));
        assert_eq!(server.cli(&words), "OK");
    }
    for user in ["ann", "bob"] {
        let url = server.url().replace("redis://", &format!("redis://{user}:secret@"));
        let error = refusal(&url).await;
        assert!(matches!(error, RedisOpenError::WeakDurability { .. }), "{error:?}");
        let store = open_weak(&url).await;
        assert!(
            matches!(store.facts().durability, Durability::Weak { reason } if reason.contains("can't be read"))
        );
        commit(&store, &begin()).await.expect("it works all the same");
    }
}

#[tokio::test]
async fn a_server_that_evicts_is_refused_even_as_weak() {
    let server = Redis::start();
    for policy in ["allkeys-lru", "volatile-ttl"] {
        server.set("maxmemory-policy", policy);
        let error = refusal(&format!("{}?durability=weak", server.url())).await;
        assert!(
            matches!(&error, RedisOpenError::Evicts { policy: found, .. } if found == policy),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn a_refusal_shows_no_password() {
    let server = Redis::start();
    server.set("requirepass", "hunter2");
    let url = |user: &str| server.url().replace("redis://", &format!("redis://{user}@"));
    for wrong in [server.url(), url(":letmein"), url("ann:letmein")] {
        let error = refusal(&wrong).await;
        assert!(matches!(error, RedisOpenError::Refused { .. }), "{error:?}");
        assert!(!format!("{error} {error:?}").contains("letmein"), "{error:?}");
    }
    let store = open(&url(":hunter2")).await;
    assert!(!format!("{store:?}").contains("hunter2"));
    assert_eq!(RedisStore::display_url_of(&url("ann:hunter2")).expect("a URL"), server.url());
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named() {
    let mut server = Redis::start();
    server.kill();
    let error = refusal(&server.url()).await;
    assert!(matches!(error, RedisOpenError::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains(&server.url()), "{error}");
}

#[tokio::test]
async fn records_of_another_layout_are_left_alone() {
    let server = Redis::start();
    let look = RedisOptions::default().with(|options| options.create = false);
    let error = RedisStore::open(&server.url(), look.clone()).await.expect_err("nothing is there");
    assert!(matches!(error, RedisOpenError::Empty { .. }), "{error:?}");
    assert_eq!(server.cli(&["DBSIZE"]), "0", "a look changes nothing");
    open(&server.url()).await;
    RedisStore::open(&server.url(), look).await.expect("now it is a store");
    server.cli(&["HSET", "ibid{m}s", "redis layout", "2/256"]);
    let error = refusal(&server.url()).await;
    assert!(matches!(&error, RedisOpenError::OtherLayout { found, .. } if found == "2/256"), "{error:?}");
}
