//! Servers that cannot take a write: the error that each reports, and that nothing was written then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ibid::store::redis::{RedisOptions, RedisStore};
use ibid_core::change::{Change, Commit, Expect, History, HistoryKind};
use ibid_core::evidence::{EventName, Evidence, EvidenceQuery, EvidenceStore, EvidenceSubject};
use ibid_core::machine::Observation;
use ibid_core::scope::RecordId;
use ibid_core::store::{BrowseStore, Durability, RenewOutcome, SetOutcome, Store, StoreError};
use ibid_testkit::contract::{LONG, finish_with, load};
use ibid_testkit::redis::{Redis, RedisCluster};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::{begin, commit, commit_surely, open, open_weak, put, try_begin, until_replicated};

/// Asserts that the error proves that nothing was written, and that the same call may succeed later.
pub(super) fn assert_unwritten(error: &StoreError, code: &str) {
    assert!(error.is_transient() && error.is_unwritten(), "{error:?}");
    assert!(format!("{error:?}").contains(code), "{error:?}");
}

#[tokio::test]
async fn a_full_server_refuses_begins_and_takes_finishes() {
    let server = Redis::start();
    let store = open(&server.url()).await;
    let running = put(&store, &begin()).await;
    let completed = put(&store, &finish_with(&running, b"done")).await;
    let (first, second) = (put(&store, &begin()).await, put(&store, &begin()).await);
    server.set("maxmemory", "1mb");
    let fresh = begin();
    let refused = try_begin(&store, &fresh).await.expect_err("there is no room");
    assert_unwritten(&refused, "OOM");
    assert!(refused.is_unsent(), "the store is well, so the breaker stays closed");
    assert_eq!(load(&*store, fresh.id).await, None, "and nothing was written");
    let renewed = store.renew(vec![(first.id, first.version)]).await.expect("a lease is renewed");
    assert!(matches!(renewed[..], [RenewOutcome::Until(_)]), "{renewed:?}");
    put(&store, &finish_with(&first, b"paid")).await;
    // A node that can't write a setting is not ready, and gets no retries of keys that are stored.
    let ready = store.compare_and_set("ready", None, Bytes::from_static(b"1")).await;
    assert_eq!(ready.expect("a small setting is taken"), SetOutcome::Won);
    // A retry of a request that is stored is answered: its begin finds the record.
    let again = Change { id: completed.id, ..begin() };
    let Ok(Commit::Conflict(Some(stored))) = try_begin(&store, &again).await else { panic!("it is stored") };
    assert_eq!(stored.body(), Some(&b"done"[..]));
    // A finish whose record was lost inserts it again.
    put(&store, &begin()).await;
    server.set("maxmemory", "0");
    put(&store, &fresh).await;
    put(&store, &finish_with(&second, b"late")).await;
}

#[tokio::test]
async fn a_server_that_became_a_replica_answers_nothing() {
    let server = Redis::start();
    let store = open(&server.url()).await;
    let running = put(&store, &begin()).await;
    // Nothing listens there, so the server keeps its data.
    assert_eq!(server.cli(&["REPLICAOF", "127.0.0.1", "1"]), "OK");
    assert_unwritten(&store.load(running.id).await.expect_err("its data may be old"), "ReadOnly");
    // The name in the URL may lead to another server by now, so each of these tries another connection, some time apart.
    assert_unwritten(&commit(&store, &begin()).await.expect_err("a replica"), "");
    assert_unwritten(&commit(&store, &finish_with(&running, b"x")).await.expect_err("a replica"), "");
    assert_eq!(server.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    assert!(commit_surely(&store, &finish_with(&running, b"x")).await);
}

/// A planned failover: the primary becomes a replica and keeps its connections, and the name in the URL leads to the promoted one.
#[tokio::test(flavor = "multi_thread")]
async fn a_demoted_server_is_left_for_the_promoted_one() {
    let primary = Redis::start();
    let replica = primary.replica();
    let proxy = LossyProxy::start(primary.port()).await;
    let store = open_weak(&format!("redis://127.0.0.1:{}", proxy.port)).await;
    let running = put(&store, &begin()).await;
    until_replicated(&primary, &replica).await;
    assert_eq!(replica.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
    assert_eq!(primary.cli(&["REPLICAOF", "127.0.0.1", &replica.port().to_string()]), "OK");
    proxy.server.store(replica.port(), Ordering::SeqCst);
    let finish = finish_with(&running, b"done");
    let moved = timeout(LONG, commit_surely(&store, &finish)).await;
    assert!(moved.expect("it finds the promoted server"), "its lease is its own");
    assert!(commit_surely(&store, &begin()).await, "and it begins there");
}

/// The server came back without its disk. A key that was completed there is new to it, and must not run again.
#[tokio::test]
async fn nothing_begins_on_a_server_that_restarted_empty() {
    let mut server = Redis::start();
    let store = open(&server.url()).await;
    let completed = put(&store, &finish_with(&*put(&store, &begin()).await, b"done")).await;
    let settings = server.cli(&["CONFIG", "GET", "dir"]);
    let directory = settings.lines().last().expect("a folder").to_owned();
    server.kill();
    std::fs::remove_dir_all(format!("{directory}/appendonlydir")).expect("it is removed");
    server.start_again();
    let again = Change { id: completed.id, ..begin() };
    let refused = loop {
        match try_begin(&store, &again).await {
            Err(error) if error.is_unsent() => break error,
            // The first call meets the connection that broke.
            Err(error) => assert!(error.is_transient(), "{error:?}"),
            Ok(outcome) => panic!("it runs again: {outcome:?}"),
        }
    };
    assert_unwritten(&refused, "lost the data of this store");
    // A process that starts now begins a new store there. That is not the store of the first one.
    let other = open(&server.url()).await;
    put(&other, &begin()).await;
    until_refused(&store, "data").await;
    server.kill();
    server.start_again();
    until_refused(&store, "the data of another store").await;
    assert!(commit_surely(&other, &begin()).await);
}

/// The server closes a connection at an argument that is longer than its settings allow, and with it every other call.
#[tokio::test]
async fn a_body_too_long_for_the_server_fails_alone() {
    for setting in ["proto-max-bulk-len", "client-query-buffer-limit"] {
        let server = Redis::start_with(&[(setting, "1mb")]);
        let store = open(&server.url()).await;
        let (first, second) = (put(&store, &begin()).await, put(&store, &begin()).await);
        let connections = server.info("total_connections_received");
        for body in [&[b'x'; 2 << 20][..], &[b'x'; (1 << 20) + 1]] {
            let error = commit(&store, &finish_with(&first, body)).await.expect_err("it is too long");
            assert!(!error.is_transient() && error.is_unwritten(), "{setting}: {error:?}");
        }
        put(&store, &finish_with(&second, &[b'x'; 900 << 10])).await;
        put(&store, &finish_with(&first, b"short")).await;
        // Each look at the server's statistics is a connection as well.
        let since = |count: &str| count.parse::<u64>().expect("a number");
        let after = server.info("total_connections_received");
        assert_eq!(since(&after) - since(&connections), 1, "the store's connection lives");
    }
}

#[tokio::test]
async fn scripts_are_sent_again_after_a_flush() {
    let server = Redis::start();
    let store = open(&server.url()).await;
    for _ in 0..3 {
        assert_eq!(server.cli(&["SCRIPT", "FLUSH"]), "OK");
        let running = put(&store, &begin()).await;
        assert_eq!(server.cli(&["SCRIPT", "FLUSH"]), "OK");
        put(&store, &finish_with(&running, b"done")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_busy_with_a_script_refuses_for_now() {
    let server = Arc::new(Redis::start_with(&[("busy-reply-threshold", "50")]));
    let store = open(&server.url()).await;
    let other = server.clone();
    let script = std::thread::spawn(move || other.cli(&["EVAL", "while true do end", "0"]));
    let change = begin();
    let error = loop {
        match commit(&store, &change).await {
            // The script has not begun yet.
            Ok(_) => continue,
            Err(error) => break error,
        }
    };
    assert_unwritten(&error, "BUSY");
    assert_eq!(server.cli(&["SCRIPT", "KILL"]), "OK");
    let _ = script.join();
    assert!(commit_surely(&store, &begin()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_loads_its_data_refuses_for_now() {
    // Each command of the log takes 20 ms to load.
    let mut server =
        Redis::start_with(&[("key-load-delay", "20000"), ("loading-process-events-interval-bytes", "1024")]);
    let store = open(&server.url()).await;
    let mut records = Vec::new();
    for _ in 0..20 {
        records.push(put(&store, &begin()).await);
    }
    server.kill();
    server.start_again_loading();
    let change = finish_with(&records[0], b"done");
    let error = commit(&store, &change).await.expect_err("it loads");
    assert!(error.is_transient(), "{error:?}");
    assert!(commit_surely(&store, &change).await, "once it has loaded");
    for record in &records[1..] {
        assert_eq!(load(&*store, record.id).await.map(|stored| stored.record), Some(record.clone()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_is_resolved_by_the_nonce() {
    let server = Redis::start();
    let proxy = LossyProxy::start(server.port()).await;
    let store = open(&format!("redis://127.0.0.1:{}", proxy.port)).await;
    // The server learns the scripts.
    let first = put(&store, &begin()).await;
    put(&store, &finish_with(&first, b"done")).await;
    for _ in 0..10 {
        let running = put(&store, &begin()).await;
        let change = finish_with(&running, b"once");
        proxy.loses_replies.store(true, Ordering::SeqCst);
        let error = commit(&store, &change).await.expect_err("the reply is lost");
        assert!(error.is_transient() && !error.is_unwritten(), "it may be written: {error:?}");
        proxy.loses_replies.store(false, Ordering::SeqCst);
        let Ok(Commit::Conflict(Some(stored))) = commit(&store, &change).await else {
            panic!("it was written");
        };
        assert!(change.is_stored_as(&stored), "the same change meets itself");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_of_history_is_sent_once() {
    let server = Redis::start();
    let proxy = LossyProxy::start(server.port()).await;
    sends_history_once(&proxy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_of_history_is_sent_once_to_a_cluster() {
    let proxy = LossyProxy::start(0).await;
    // The server names the proxy as its address.
    let announced = proxy.port.to_string();
    let mut cluster = RedisCluster::start_with(1, 0, &[("cluster-announce-port", &announced)]);
    proxy.server.store(cluster.node(0).port(), Ordering::SeqCst);
    sends_history_once(&proxy).await;
}

async fn sends_history_once(proxy: &LossyProxy) {
    let store = open_weak(&format!("redis://127.0.0.1:{}", proxy.port)).await;
    let running = put(&store, &begin()).await;
    put(&store, &finish_with(&running, b"done")).await;
    // Nothing tells a second line from the first, so a driver that resends would show here.
    let line = History { what: HistoryKind::LateAnswer, detail: "late".to_owned() };
    let change = Change { draft: None, expect: Expect::Anything, history: vec![line], ..begin() };
    proxy.loses_replies.store(true, Ordering::SeqCst);
    let error = commit(&store, &change).await.expect_err("the reply is lost");
    assert!(!error.is_unwritten(), "{error:?}");
    proxy.loses_replies.store(false, Ordering::SeqCst);
    assert_eq!(store.history(change.id).await.expect("a history").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hung_server_is_left_after_a_time_limit() {
    let server = Redis::start();
    let store = open(&server.url()).await;
    let running = put(&store, &begin()).await;
    server.pause();
    let (change, late) = (finish_with(&running, b"slow"), begin());
    let (outcome, never) = tokio::join!(commit(&store, &change), async {
        let past = Instant::now().checked_sub(Duration::from_millis(1));
        store.commit(Arc::new(late.clone()), past).await
    });
    assert_unwritten(&never.expect_err("its client has given up"), "waiting");
    let error = outcome.expect_err("no reply");
    assert!(error.is_transient() && !error.is_unwritten(), "{error:?}");
    server.resume();
    assert!(commit_surely(&store, &change).await, "the next connection works");
}

#[tokio::test]
async fn nothing_begins_on_a_server_restarted_with_weaker_settings() {
    let mut server = Redis::start();
    let store = open(&server.url()).await;
    let running = put(&store, &begin()).await;
    server.kill();
    server.change_setting("appendfsync", "no");
    server.start_again();
    until_refused(&store, "appendfsync no").await;
    assert!(commit_surely(&store, &finish_with(&running, b"done")).await, "what runs ends");
    let weak = open_weak(&server.url()).await;
    let outcome = try_begin(&weak, &begin()).await;
    assert!(matches!(outcome, Ok(Commit::Done(_))), "the loss was accepted: {outcome:?}");
}

#[tokio::test]
async fn nothing_begins_on_a_server_that_became_weaker() {
    let server = Redis::start();
    let store = open_watching(&server.url()).await;
    let completed = put(&store, &finish_with(&*put(&store, &begin()).await, b"done")).await;
    for (name, weaker, before) in [
        ("appendonly", "no", "yes"),
        ("appendfsync", "everysec", "always"),
        ("no-appendfsync-on-rewrite", "yes", "no"),
        ("maxmemory-policy", "allkeys-lru", "noeviction"),
    ] {
        let running = put(&store, &begin()).await;
        server.set(name, weaker);
        until_refused(&store, &format!("{name} {weaker}")).await;
        let Durability::Weak { reason } = store.facts().durability else { panic!("the facts say so") };
        assert!(reason.contains(weaker), "{reason}");
        let renewed = store.renew(vec![(running.id, running.version)]).await.expect("it is renewed");
        assert!(matches!(renewed[..], [RenewOutcome::Until(_)]), "{renewed:?}");
        put(&store, &finish_with(&running, b"done")).await;
        let again = Change { id: completed.id, ..begin() };
        let stored = try_begin(&store, &again).await;
        assert!(matches!(stored, Ok(Commit::Conflict(Some(_)))), "a stored key is answered: {stored:?}");
        server.set(name, before);
        while try_begin(&store, &begin()).await.is_err() {
            tokio::task::yield_now().await;
        }
        assert_eq!(store.facts().durability, Durability::Durable);
    }
    let _replica = server.replica();
    until_refused(&store, "has replicas").await;
}

/// A server whose append-only file is switched on at run time starts without it if it dies before the file is complete.
#[tokio::test]
async fn nothing_begins_until_the_append_only_file_is_complete() {
    let server = Redis::start();
    let store = open_watching(&server.url()).await;
    for _ in 0..10 {
        put(&store, &begin()).await;
    }
    server.set("appendonly", "no");
    until_refused(&store, "appendonly no").await;
    // Microseconds for each key.
    server.set("rdb-key-save-delay", "20000");
    server.set("appendonly", "yes");
    let mut is_seen = false;
    loop {
        let tried = try_begin(&store, &begin()).await;
        if server.info("aof_rewrite_in_progress") == "0" {
            break;
        }
        let refused = tried.expect_err("a crash now would lose it");
        is_seen |= format!("{refused:?}").contains("its file is not complete yet");
    }
    assert!(is_seen, "the server was inspected meanwhile");
    while try_begin(&store, &begin()).await.is_err() {
        tokio::task::yield_now().await;
    }
    assert_eq!(store.facts().durability, Durability::Durable);
}

#[tokio::test]
async fn a_weak_server_that_evicts_since_begins_nothing() {
    let server = Redis::start_with(&[("appendfsync", "everysec")]);
    let store = open_watching(&format!("{}?durability=weak", server.url())).await;
    assert!(matches!(try_begin(&store, &begin()).await, Ok(Commit::Done(_))));
    server.set("maxmemory-policy", "volatile-lru");
    until_refused(&store, "maxmemory-policy volatile-lru").await;
}

/// T1 notes which record an event is about, and dies before it stores the evidence.
#[tokio::test]
async fn the_pointer_of_evidence_that_was_never_stored_expires() {
    let server = Redis::start();
    let store = open(&server.url()).await;
    let (about, what) = (EvidenceSubject::Record(begin().id), Observation::NotExecuted);
    let name = EventName { source: "psp".into(), event: "event".into() };
    let one = Evidence { name, about, owner: None, what, age: Duration::ZERO };
    store.insert_evidence(one, LONG).await.expect("it is stored");
    let script = "local n, pointers = 0, redis.call('KEYS', 'ibid{??}n*') \
                  for _, key in ipairs(pointers) do if redis.call('PTTL', key) > 0 then n = n + 1 end end \
                  return n .. ' of ' .. #pointers";
    assert_eq!(server.cli(&["EVAL", script, "0"]), "1 of 1");
}

/// T1 purges evidence, and dies after it has removed the pointer. The event is delivered again, about another record.
#[tokio::test]
async fn a_purge_that_ended_midway_leaves_the_next_event_alone() {
    let server = Redis::start();
    let store = open(&server.url()).await;
    let name = EventName { source: "psp".into(), event: "event".into() };
    let about = |id: RecordId| Evidence {
        name: name.clone(),
        about: EvidenceSubject::Record(id),
        owner: None,
        what: Observation::NotExecuted,
        age: Duration::ZERO,
    };
    let (first, second, third) = (about(begin().id), about(begin().id), about(begin().id));
    store.insert_evidence(first, Duration::from_millis(1)).await.expect("it is stored");
    let script = "return redis.call('DEL', redis.call('KEYS', 'ibid{??}n*')[1])";
    assert_eq!(server.cli(&["EVAL", script, "0"]), "1");
    let (stored, is_new) = store.insert_evidence(second.clone(), LONG).await.expect("it is stored");
    assert!(is_new, "its event was forgotten");
    while store.purge_evidence(10).await.expect("a purge succeeds") == 0 {
        tokio::task::yield_now().await;
    }
    let known = store.insert_evidence(third, LONG).await.expect("it answers");
    assert_eq!(known, (stored, false), "the event counts once");
    store.dismiss_evidence(vec![name]).await.expect("it is dismissed");
    let open = store.open_evidence(EvidenceQuery::Of(second.about.id()), None, 10).await.expect("it answers");
    assert!(open.items.is_empty(), "{open:?}");
}

/// Opens a store that looks at its server again all the time.
pub(super) async fn open_watching(url: &str) -> Arc<RedisStore> {
    let options = RedisOptions::default().with(|options| options.inspect_every = Duration::from_millis(5));
    Arc::new(RedisStore::open(url, options).await.expect("the store opens"))
}

/// Begins until that is refused for a reason.
async fn until_refused(store: &RedisStore, reason: &str) {
    let refused = loop {
        match try_begin(store, &begin()).await {
            Err(error) if error.is_unsent() => break error,
            // It has not been noticed yet, or the first call meets a connection that broke.
            Ok(_) => tokio::task::yield_now().await,
            Err(error) => assert!(error.is_transient(), "{error:?}"),
        }
    };
    assert_unwritten(&refused, reason);
}

/// Passes bytes on to a server, and instead of a reply closes the connection, while that is set.
pub(super) struct LossyProxy {
    pub(super) port: u16,
    /// Port of the server.
    server: Arc<AtomicU16>,
    pub(super) loses_replies: Arc<AtomicBool>,
}

impl LossyProxy {
    pub(super) async fn start(server: u16) -> LossyProxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let loses_replies = Arc::new(AtomicBool::new(false));
        let server = Arc::new(AtomicU16::new(server));
        let (target, loses) = (server.clone(), loses_replies.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (server, loses) = (target.load(Ordering::SeqCst), loses.clone());
                tokio::spawn(async move {
                    let server = TcpStream::connect(("127.0.0.1", server)).await.expect("the server runs");
                    let (mut from_client, mut to_client) = client.into_split();
                    let (mut from_server, mut to_server) = server.into_split();
                    let requests =
                        tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
                    let mut buffer = vec![0; 1 << 16];
                    while let Ok(length @ 1..) = from_server.read(&mut buffer).await {
                        if loses.load(Ordering::SeqCst)
                            || to_client.write_all(&buffer[..length]).await.is_err()
                        {
                            break;
                        }
                    }
                    requests.abort();
                });
            }
        });
        LossyProxy { port, server, loses_replies }
    }
}
