//! A cluster whose slots move and whose servers die while clients write.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ibid::store::redis::RedisStore;
use ibid_core::change::{Change, Commit, HistoryKind};
use ibid_core::evidence::{EventName, Evidence, EvidenceQuery, EvidenceStore, EvidenceSubject};
use ibid_core::machine::Observation;
use ibid_core::reap::ReapTarget;
use ibid_core::record::{Record, State, Version};
use ibid_core::scope::RecordId;
use ibid_core::store::{BrowseStore, RecordFilter, RenewOutcome, RowCount, Store};
use ibid_testkit::contract::{LONG, TestRecord, finish_with, fresh, load, telling};
use ibid_testkit::redis::{Redis, RedisCluster};

use super::faults::{assert_unwritten, open_watching};
use super::{begin, commit, commit_surely, open_weak, put, try_begin};

#[tokio::test(flavor = "multi_thread")]
async fn slots_that_move_under_load_lose_and_double_nothing() {
    let cluster = Arc::new(RedisCluster::start());
    let store = open_weak(&cluster.url()).await;
    // Half of the records are in buckets that move.
    let moving = Arc::new(moving_buckets(&cluster));
    assert!(!moving.is_empty());
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..6)
        .map(|_| {
            let (store, stop, moving) = (store.clone(), stop.clone(), moving.clone());
            tokio::spawn(async move {
                let mut written: Vec<Change> = Vec::new();
                while !stop.load(Ordering::SeqCst) {
                    let mut change = begin();
                    while written.len().is_multiple_of(2) && !moving.contains(&change.id.as_bytes()[0]) {
                        change = begin();
                    }
                    assert!(commit_surely(&store, &change).await, "its nonce is its own");
                    let running = load_confirmed(&store, change.id).await;
                    let finish = finish_with(&running, b"done");
                    assert!(commit_surely(&store, &finish).await, "its lease is its own");
                    written.push(finish);
                }
                written
            })
        })
        .collect();
    let mover = cluster.clone();
    let moves = tokio::task::spawn_blocking(move || mover.reshard(0, 1, 500));
    moves.await.expect("the slots move");
    stop.store(true, Ordering::SeqCst);
    let mut count = 0;
    for writer in writers {
        for finish in writer.await.expect("a writer ends") {
            let stored = load(&*store, finish.id).await.expect("a confirmed record is there");
            assert!(finish.is_stored_as(&stored), "at the confirmed version");
            assert_eq!(stored.body(), Some(&b"done"[..]));
            count += 1;
        }
    }
    println!("{count} records while {} buckets moved", moving.len());
    let counts = store.count().await.expect("they are counted").by_state;
    assert_eq!(
        counts[usize::from(State::Completed.code()) - 1],
        RowCount::Exact(count),
        "each is once in an order"
    );
    assert_eq!(counts[usize::from(State::InProgress.code()) - 1], RowCount::Exact(0));
}

/// Bodies, history and orders of a record are keys besides its own, and all of them are in its slot.
#[tokio::test(flavor = "multi_thread")]
async fn slots_that_move_take_all_keys_of_a_record_along() {
    let cluster = Arc::new(RedisCluster::start());
    let store = open_weak(&cluster.url()).await;
    let moving = moving_buckets(&cluster);
    let MovingRecords { leases, lapsed, expired } = put_moving_records(&store, &moving).await;
    let is_moving = AtomicBool::new(true);
    let mover = cluster.clone();
    let moves = async {
        let moved = tokio::task::spawn_blocking(move || mover.reshard(0, 1, 500)).await;
        is_moving.store(false, Ordering::SeqCst);
        moved.expect("the slots move");
    };
    let writes = write_during_move(&store, &moving, &is_moving);
    let renewals = renew_during_move(&store, &leases, &is_moving);
    let upkeep = upkeep_during_move(&store, &is_moving);
    let ((), written, renewed, (due_ids, removed)) = tokio::join!(moves, writes, renewals, upkeep);
    println!("{} records and {renewed} renewals while {} buckets moved", written.len(), moving.len());
    assert_eq!(due_ids, lapsed, "every lapsed lease is found, and no other");
    assert_eq!(removed, expired, "every expired record is removed, once");
    for id in &written {
        let stored = load(&*store, *id).await.expect("a confirmed record is there");
        assert_eq!(stored.body(), Some(LARGE));
        assert_eq!(store.history(*id).await.expect("it answers").len(), 1, "one line");
    }
    for outcome in store.renew(leases).await.expect("it answers") {
        assert!(matches!(outcome, RenewOutcome::Until(_)), "{outcome:?}");
    }
    let counts = store.count().await.expect("they are counted").by_state;
    let count = |state: State| counts[usize::from(state.code()) - 1];
    assert_eq!(count(State::Completed), RowCount::Exact(written.len() as u64));
    assert_eq!(count(State::InProgress), RowCount::Exact(80));
}

/// Records in buckets that move, written before the move.
struct MovingRecords {
    /// Records whose leases last longer than the test.
    leases: Vec<(RecordId, Version)>,
    /// Records whose leases have lapsed.
    lapsed: HashSet<RecordId>,
    /// Number of ended records that the reaper may remove.
    expired: u64,
}

async fn put_moving_records(store: &RedisStore, moving: &[u8]) -> MovingRecords {
    let (mut leases, mut lapsed, mut expired) = (Vec::new(), HashSet::new(), 0);
    for _ in 0..40 {
        let running = put(store, &fresh(&moving_name(moving), LONG)).await;
        leases.push((running.id, running.version));
        lapsed.insert(put(store, &fresh(&moving_name(moving), Duration::from_millis(1))).await.id);
        let mut finish = finish_with(&*put(store, &fresh(&moving_name(moving), LONG)).await, LARGE);
        let draft = finish.draft.as_mut().expect("a finish writes the record");
        (draft.expires_in, draft.purge_in) = (Some(Duration::ZERO), Some(Duration::from_millis(1)));
        put_unread(store, &finish).await;
        expired += 1;
    }
    MovingRecords { leases, lapsed, expired }
}

/// Begins and finishes records until the slots have moved. Returns their ids.
async fn write_during_move(store: &RedisStore, moving: &[u8], is_moving: &AtomicBool) -> Vec<RecordId> {
    let mut written = Vec::new();
    while is_moving.load(Ordering::SeqCst) {
        let begin = fresh(&moving_name(moving), LONG);
        assert!(commit_surely(store, &begin).await, "its nonce is its own");
        let running = load_confirmed(store, begin.id).await;
        let finish = telling(finish_with(&running, LARGE), HistoryKind::Settled, "once");
        assert!(commit_surely(store, &finish).await, "its lease is its own");
        written.push(finish.id);
    }
    written
}

/// Renews the leases until the slots have moved. Returns the number of renewals.
async fn renew_during_move(
    store: &RedisStore,
    leases: &[(RecordId, Version)],
    is_moving: &AtomicBool,
) -> usize {
    let mut renewed = 0;
    while is_moving.load(Ordering::SeqCst) {
        match store.renew(leases.to_vec()).await {
            Ok(outcomes) => {
                assert!(!outcomes.contains(&RenewOutcome::Lost), "{outcomes:?}");
                renewed += outcomes.len();
            }
            Err(error) => assert!(error.is_transient(), "{error:?}"),
        }
    }
    renewed
}

/// Looks for due records and removes expired ones until the slots have moved. Returns the ids of all that were due, and
/// the number of those removed.
async fn upkeep_during_move(store: &RedisStore, is_moving: &AtomicBool) -> (HashSet<RecordId>, u64) {
    let (mut due_ids, mut removed) = (HashSet::new(), 0);
    // The last round comes after the move.
    let mut is_last = false;
    while !is_last {
        is_last = !is_moving.load(Ordering::SeqCst);
        match store.due(State::InProgress, None, 1000).await {
            Ok(due) => due_ids.extend(due.items.iter().map(|stored| stored.record.id)),
            Err(error) => assert!(error.is_transient() && !is_last, "{error:?}"),
        }
        match store.reap(ReapTarget::Records, None, 1000).await {
            Ok(step) => removed += step.removed,
            Err(error) => assert!(error.is_transient() && !is_last, "{error:?}"),
        }
    }
    (due_ids, removed)
}

/// The server came back without its data, and another one has the settings of the store.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_begins_on_a_cluster_server_that_restarted_empty() {
    let mut cluster = RedisCluster::start_with(3, 0, &[("appendonly", "no")]);
    let store = open_weak(&cluster.url()).await;
    assert!(cluster.slot("{m}") > FIRST_SERVER_MAX, "the settings");
    let completed = put(&store, &finish_with(&*put(&store, &begin_on(&cluster, true)).await, b"done")).await;
    cluster.node(0).kill();
    cluster.node(0).start_again();
    let again = Change { id: completed.id, ..begin() };
    let refused = loop {
        match try_begin(&store, &again).await {
            Err(error) if error.is_unsent() => break error,
            // The server waits a while before it serves its slots again.
            Err(error) => assert!(error.is_transient(), "{error:?}"),
            Ok(outcome) => panic!("it runs again: {outcome:?}"),
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    assert_unwritten(&refused, "lost the data of this store");
    assert!(commit_surely(&store, &begin_on(&cluster, false)).await, "the other servers have theirs");
    // A process that starts now takes every key there for new. That is not the store of the first one.
    let other = open_weak(&cluster.url()).await;
    assert!(commit_surely(&other, &again).await);
    let refused = try_begin(&store, &begin_on(&cluster, true)).await.expect_err("its data is lost");
    assert_unwritten(&refused, "the data of");
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_that_move_are_not_taken_for_lost_data() {
    let cluster = Arc::new(RedisCluster::start());
    let store = open_watching(&format!("{}?durability=weak", cluster.url())).await;
    let moving = moving_buckets(&cluster);
    let mover = cluster.clone();
    let moves = tokio::task::spawn_blocking(move || mover.reshard(0, 1, 500));
    while !moves.is_finished() {
        match try_begin(&store, &fresh(&moving_name(&moving), LONG)).await {
            Ok(_) => {}
            Err(error) => assert!(error.is_transient() && !error.is_unsent(), "{error:?}"),
        }
    }
    moves.await.expect("the slots move");
    for bucket in &moving {
        put(&store, &fresh(&moving_name(&[*bucket]), LONG)).await;
    }
    // The server that has got them is inspected many times.
    let mut cluster = Arc::into_inner(cluster).expect("the move is over");
    let reads = |server: &Redis| -> u64 {
        let stats = server.info("cmdstat_hget");
        let calls = stats.strip_prefix("calls=").and_then(|rest| rest.split(',').next());
        calls.expect("it was read").parse().expect("a number")
    };
    let before = reads(cluster.node(1));
    while reads(cluster.node(1)) < before + 1_000 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for bucket in &moving {
        put(&store, &fresh(&moving_name(&[*bucket]), LONG)).await;
    }
    // One bucket is lost.
    cluster.node(1).cli(&["DEL", &format!("ibid{{{:02x}}}i", moving[0])]);
    let refused = loop {
        match try_begin(&store, &fresh(&moving_name(&moving), LONG)).await {
            Ok(_) => tokio::task::yield_now().await,
            Err(error) => break error,
        }
    };
    assert_unwritten(&refused, "lost the data of this store");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_a_cluster_that_returns_is_used_again() {
    let mut cluster = RedisCluster::start();
    let store = open_weak(&cluster.url()).await;
    let mut records = Vec::new();
    for _ in 0..30 {
        records.push(put(&store, &begin()).await);
    }
    cluster.node(0).kill();
    // Until the others notice, the keys of two servers work; then all refuse. A refusal proves that nothing was written,
    // and only a connection that broke midway does not.
    let mut failures = 0;
    for _ in 0..30 {
        if let Err(error) = commit(&store, &begin()).await {
            assert!(error.is_transient(), "{error:?}");
            failures += 1;
        }
    }
    assert!(failures > 0, "a third of the keys is on the server that died");
    cluster.node(0).start_again();
    for record in &records {
        assert!(commit_surely(&store, &finish_with(record, b"after all")).await);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_lease_that_cannot_be_renewed_is_busy() {
    let mut cluster = RedisCluster::start();
    let store = open_weak(&cluster.url()).await;
    let mut leases = Vec::new();
    for _ in 0..30 {
        let record = put(&store, &begin()).await;
        leases.push((record.id, record.version));
    }
    let on_first = |cluster: &mut RedisCluster, id: &RecordId| {
        let slot = cluster.slot(&format!("{{{:02x}}}", id.as_bytes()[0]));
        slot < 5461 && cluster.node(0).cli(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]) != "0"
    };
    let stopped: Vec<bool> = leases.iter().map(|(id, _)| on_first(&mut cluster, id)).collect();
    assert!(stopped.contains(&true) && stopped.contains(&false), "{stopped:?}");
    // It keeps its connections and answers nothing.
    cluster.node(0).pause();
    let renewed = store.renew(leases.clone()).await.expect("the others are renewed");
    for (renewed, is_stopped) in renewed.iter().zip(&stopped) {
        assert_eq!(matches!(renewed, RenewOutcome::Busy), *is_stopped, "{renewed:?}");
    }
    let only_stopped: Vec<_> =
        leases.iter().zip(&stopped).filter(|(_, is_stopped)| **is_stopped).map(|(lease, _)| *lease).collect();
    let error = store.renew(only_stopped).await.expect_err("none is renewed");
    assert!(error.is_transient(), "{error:?}");
    cluster.node(0).resume();
}

#[tokio::test(flavor = "multi_thread")]
async fn upkeep_goes_on_without_a_server_of_the_cluster() {
    let mut cluster = RedisCluster::start_with(3, 0, &[("cluster-require-full-coverage", "no")]);
    let store = open_weak(&cluster.url()).await;
    let is_away = |id: &RecordId| cluster.slot(&format!("{{{:02x}}}", id.as_bytes()[0])) < 5461;
    let (mut lapsed, mut expired, mut events) = (Vec::new(), 0, 0);
    let mut secrets = Vec::new();
    for _ in 0..30 {
        let record = put(&store, &fresh(&TestRecord::fresh(), Duration::from_millis(1))).await;
        secrets.extend(record.fingerprint.map(|fingerprint| fingerprint.secret()));
        let is_there = !is_away(&record.id);
        lapsed.extend(is_there.then_some(record.id));
        let name = EventName { source: "psp".into(), event: record.id.to_string() };
        let (about, what) = (EvidenceSubject::Record(record.id), Observation::NotExecuted);
        let one = Evidence { name, about, owner: None, what, age: Duration::ZERO };
        store.insert_evidence(one, LONG).await.expect("it is stored");
        events += usize::from(is_there);
        let ended = put(&store, &begin()).await;
        let mut finish = finish_with(&ended, b"done");
        let draft = finish.draft.as_mut().expect("a finish writes the record");
        (draft.expires_in, draft.purge_in) = (Some(Duration::ZERO), Some(Duration::from_millis(1)));
        put_unread(&store, &finish).await;
        expired += u64::from(!is_away(&finish.id));
    }
    cluster.node(0).kill();
    // Until the others notice, the first calls may meet a broken connection.
    let mut due_ids = HashSet::new();
    while due_ids.len() < lapsed.len() {
        let due = store.due(State::InProgress, None, 100).await.expect("those on the others are found");
        due_ids.extend(due.items.iter().map(|stored| stored.record.id));
    }
    assert!(lapsed.iter().all(|id| due_ids.contains(id)));
    let mut removed = 0;
    while removed < expired {
        removed += store.reap(ReapTarget::Records, None, 100).await.expect("those on the others go").removed;
    }
    let counts = store.count().await.expect("those on the others are counted");
    let running = counts.by_state[usize::from(State::InProgress.code()) - 1];
    assert_eq!(running, RowCount::Estimated(lapsed.len() as u64), "and the number is not called exact");
    let open =
        store.open_evidence(EvidenceQuery::All, None, 100).await.expect("those on the others are found");
    assert_eq!(open.items.len(), events);
    store.purge_evidence(100).await.expect("the others are purged");
    // A list and a search must be complete, so they fail.
    store.list(RecordFilter::default()).await.expect_err("a list without some of the records");
    store.find_unknown_secret(secrets).await.expect_err("a search that saw only a part");
}

/// Returns a begin of a record on the first server, or on another one.
fn begin_on(cluster: &RedisCluster, is_first: bool) -> Change {
    loop {
        let begin = begin();
        let slot = cluster.slot(&format!("{{{:02x}}}", begin.id.as_bytes()[0]));
        if (slot <= FIRST_SERVER_MAX) == is_first {
            return begin;
        }
    }
}

/// Returns the buckets that move: `redis-cli` moves the lowest slots first, and the tests move 500.
fn moving_buckets(cluster: &RedisCluster) -> Vec<u8> {
    (0..=255).filter(|bucket| cluster.slot(&format!("{{{bucket:02x}}}")) < 500).collect()
}

/// Draws a fresh name in a bucket that moves.
fn moving_name(moving: &[u8]) -> TestRecord {
    loop {
        let name = TestRecord::fresh();
        if moving.contains(&name.id.as_bytes()[0]) {
            return name;
        }
    }
}

/// Loads a record whose commit was confirmed, as often as the move makes it necessary.
async fn load_confirmed(store: &RedisStore, id: RecordId) -> Arc<Record> {
    loop {
        match store.load(id).await {
            Ok(stored) => return stored.expect("a confirmed record is there").record,
            Err(error) => assert!(error.is_transient(), "{error:?}"),
        }
    }
}

/// Commits a change whose record may be gone at once.
async fn put_unread(store: &RedisStore, change: &Change) {
    let done = commit(store, change).await.expect("it is committed");
    assert!(matches!(done, Commit::Done(_)), "{done:?}");
}

/// Last slot of the first of three servers.
const FIRST_SERVER_MAX: u16 = 5460;

/// A body too large for its record's own key, so it is stored in another.
const LARGE: &[u8] = &[b'x'; 5_000];
