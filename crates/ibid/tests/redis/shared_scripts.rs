//! Many changes in one script: each has its own outcome, and none needs a key that the script does not declare.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use ibid::store::redis::RedisStore;
use ibid_core::change::{Change, Commit, Expect};
use ibid_core::record::{Record, State};
use ibid_core::scope::RecordId;
use ibid_core::store::{BrowseStore, RowCount, Store, StoreError};
use ibid_testkit::contract::{LONG, TestRecord, draft, finish_with, fresh, insert, load, nonce};
use ibid_testkit::redis::Redis;

use super::{begin, open, put, try_begin};

/// Begins a record in every bucket, so that each has the policy and the next begins go together.
async fn warm_up(store: &RedisStore) {
    for bucket in 0..=u8::MAX {
        put(store, &fresh(&in_bucket(bucket), LONG)).await;
    }
}

fn in_bucket(bucket: u8) -> TestRecord {
    let name = TestRecord::fresh();
    let mut id = *name.id.as_bytes();
    id[0] = bucket;
    TestRecord { id: RecordId::from_bytes(id), ..name }
}

async fn commit_together(store: &RedisStore, changes: &[Change]) -> Vec<Result<Commit, StoreError>> {
    join_all(changes.iter().map(|change| store.commit(Arc::new(change.clone()), None))).await
}

/// Asserts that each change was written, and that exactly what it says is stored.
async fn assert_written(store: &RedisStore, changes: &[Change], before: &[Option<Arc<Record>>]) {
    for ((change, before), outcome) in changes.iter().zip(before).zip(commit_together(store, changes).await) {
        let Ok(Commit::Done(stamp)) = outcome else { panic!("{outcome:?}") };
        let stored = load(store, change.id).await.expect("it is stored");
        assert_eq!(change.apply(stamp, before.as_deref()), Some(stored.record.clone()));
        let response = change.response.as_ref().map(|response| &response.body[..]);
        assert_eq!(stored.body(), response);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_in_one_script_are_written_as_if_alone() {
    let server = Redis::start();
    let store = open(&server.url()).await;
    warm_up(&store).await;
    let before = store.batch_counts();
    let begins: Vec<Change> = (0..200).map(|_| begin()).collect();
    assert_written(&store, &begins, &vec![None; begins.len()]).await;
    let mut running = Vec::new();
    for change in &begins {
        running.push(Some(load(&*store, change.id).await.expect("it is stored").record));
    }
    let finish = |record: &Option<Arc<Record>>| finish_with(record.as_ref().expect("a record"), b"done");
    let finishes: Vec<Change> = running.iter().map(finish).collect();
    assert_written(&store, &finishes, &running).await;
    let counts = store.batch_counts();
    assert_eq!(counts.changes - before.changes, 400, "all of them went together with others");
    assert!(counts.batches - before.batches < 100, "{counts:?}");
    let by_state = store.count().await.expect("they are counted").by_state;
    assert_eq!(by_state[usize::from(State::Completed.code()) - 1], RowCount::Exact(200), "each in its order");
    assert_eq!(by_state[usize::from(State::InProgress.code()) - 1], RowCount::Exact(256));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_in_a_script_has_its_own_outcome() {
    let server = Redis::start();
    let store = open(&server.url()).await;
    warm_up(&store).await;
    const LARGE: &[u8] = &[7; 5000];
    let small = put(&store, &finish_with(&*put(&store, &begin()).await, b"small")).await;
    let outdated = put(&store, &begin()).await;
    let large = put(&store, &finish_with(&outdated, LARGE)).await;
    let running = put(&store, &begin()).await;
    let unknown = {
        let name = TestRecord::fresh();
        put(&store, &insert(&name, draft(&name, State::Unknown))).await
    };
    let missing = Record { id: TestRecord::fresh().id, ..(*running).clone() };
    let changes = [
        begin(),
        Change { id: small.id, ..begin() },
        Change { id: large.id, ..begin() },
        finish_with(&running, b"done"),
        finish_with(&running, b"a second end"),
        finish_with(&outdated, b"late"),
        finish_with(&missing, b"lost"),
        // Not from the state in which an attempt holds a lease: another script has its keys.
        finish_with(&unknown, b"settled"),
    ];
    let outcomes = commit_together(&store, &changes).await;
    let conflict = |at: usize| match &outcomes[at] {
        Ok(Commit::Conflict(Some(stored))) => (stored.record.version, stored.body().map(<[u8]>::to_vec)),
        other => panic!("{at}: {other:?}"),
    };
    for at in [0, 3, 7] {
        assert!(matches!(outcomes[at], Ok(Commit::Done(_))), "{at}: {:?}", outcomes[at]);
    }
    assert_eq!(conflict(1), (small.version, Some(b"small".to_vec())));
    assert_eq!(conflict(2), (large.version, Some(LARGE.to_vec())));
    assert_eq!(conflict(4).0, changes[3].version(), "only one of them ends the attempt");
    assert_eq!(conflict(5), (large.version, Some(LARGE.to_vec())));
    assert!(matches!(outcomes[6], Ok(Commit::Conflict(None))), "{:?}", outcomes[6]);
    let settled = load(&*store, unknown.id).await.expect("it is stored");
    assert_eq!((settled.record.state, settled.body()), (State::Completed, Some(&b"settled"[..])));
}

/// T1 knows that the policy is in every bucket; the server is replaced by one with earlier data; T1 begins a record there, which
/// others must be able to read.
#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_a_server_lost_is_stored_again() {
    let server = Redis::start();
    let store = open(&server.url()).await;
    warm_up(&store).await;
    // The data from before the first record: the store was opened, so it has its id.
    let script = "for _, key in ipairs(redis.call('KEYS', 'ibid*')) do \
                  if key ~= 'ibid{m}s' then redis.call('DEL', key) end end return redis.call('DBSIZE')";
    assert_eq!(server.cli(&["EVAL", script, "0"]), "1");
    server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    let change = begin();
    while try_begin(&store, &change).await.is_err() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let other = open(&server.url()).await;
    assert_eq!(load(&*other, change.id).await.expect("it can be read").record.version, change.version());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_refuses_each_begin_of_a_script() {
    let server = Redis::start();
    let store = open(&server.url()).await;
    warm_up(&store).await;
    let completed = put(&store, &finish_with(&*put(&store, &begin()).await, b"done")).await;
    server.set("maxmemory", "1mb");
    let mut begins: Vec<Change> = (0..20).map(|_| begin()).collect();
    begins.push(Change { id: completed.id, nonce: nonce(), ..begin() });
    assert!(begins.iter().all(|change| change.expect == Expect::Absent));
    let outcomes = join_all(begins.iter().map(|change| try_begin(&store, change))).await;
    let (stored, refused) = outcomes.split_last().expect("some");
    assert!(matches!(stored, Ok(Commit::Conflict(Some(_)))), "{stored:?}");
    for refused in refused {
        assert!(refused.as_ref().is_err_and(StoreError::is_unsent), "{refused:?}");
    }
}
