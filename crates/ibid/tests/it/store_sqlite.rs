//! The SQLite store, tested by the contract suite and against what only a file can do to it.

mod open;
mod rival_writers;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::join_all;
use ibid::store::clock::{Clock, ClockSetter};
use ibid::store::sqlite::{SqliteOptions, SqliteStore};
use ibid_core::change::{Change, Commit, Draft, HistoryKind};
use ibid_core::reap::ReapTarget;
use ibid_core::record::State;
use ibid_core::store::{BoxFuture, RecordFilter, Store, StoreError};
use ibid_core::time::Timestamp;
use ibid_testkit::contract::{
    self, LONG, StoreUnderTest, TICK, TestRecord, answering, browse, commit_all, draft, due, expect_conflict,
    history, insert, load, put, reap_all, replace, response, telling,
};
use rusqlite::Connection;

pub(crate) struct Sqlite {
    pub(crate) store: Arc<SqliteStore>,
    pub(crate) hands: ClockSetter,
    /// Removes the directory when the test ends.
    pub(crate) file: Arc<File>,
}

pub(crate) struct File(pub(crate) tempfile::TempDir);

impl File {
    pub(crate) fn fresh() -> Arc<File> {
        Arc::new(File(tempfile::tempdir().expect("a temporary directory")))
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().join("ibid.db")
    }

    pub(crate) fn other_connection(&self) -> Connection {
        Connection::open(self.path()).expect("a second connection")
    }
}

pub(crate) fn sqlite_on(file: &Arc<File>, change: impl FnOnce(&mut SqliteOptions)) -> Sqlite {
    let (clock, hands) = Clock::manual(Timestamp::from_micros(1_800_000_000_000_000));
    // Other tests keep the disk busy; that should not fail a test.
    let mut options = SqliteOptions::default().with(|options| {
        options.clock = clock;
        options.busy_timeout = Duration::from_secs(30);
    });
    change(&mut options);
    let store = Arc::new(SqliteStore::open(&file.path(), options).expect("the store opens"));
    Sqlite { store, hands, file: file.clone() }
}

pub(crate) fn sqlite() -> Sqlite {
    sqlite_on(&File::fresh(), |_| {})
}

impl StoreUnderTest for Sqlite {
    fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    fn advance(&self, by: Duration) -> BoxFuture<'_, ()> {
        self.hands.advance(by);
        Box::pin(std::future::ready(()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_sqlite_store_keeps_the_contract() {
    contract::exercise(&sqlite()).await;
}

#[tokio::test]
async fn a_store_that_is_opened_again_has_kept_everything() {
    let file = File::fresh();
    let first = sqlite_on(&file, |_| {});
    let name = TestRecord::fresh();
    let begin = telling(insert(&name, draft(&name, State::InProgress)), HistoryKind::Operator, "begun");
    let stored = put(&*first.store, &begin).await;
    let finish = answering(replace(&stored.record, draft(&name, State::Completed)), b"201");
    let finished = put(&*first.store, &finish).await;
    let secret = first.store.put_if_absent("secret", Bytes::from_static(b"s")).await.expect("it is kept");
    drop(first);
    assert_eq!(files(&file), ["ibid.db"], "a closed store leaves one file");
    let second = sqlite_on(&file, |options| options.create = false);
    let loaded = load(&*second.store, name.id).await.expect("it is still there");
    assert_eq!((loaded.record, loaded.response), (finished.record, finished.response));
    assert_eq!(history(&*second.store, name.id).await.len(), 1);
    assert_eq!(
        second.store.put_if_absent("secret", Bytes::from_static(b"t")).await.expect("it is kept"),
        secret
    );
}

#[tokio::test]
async fn a_lock_that_another_holds_too_long_is_transient_and_passes() {
    let subject = sqlite_on(&File::fresh(), |options| options.busy_timeout = Duration::from_millis(10));
    let store = &*subject.store;
    let name = TestRecord::fresh();
    let first =
        put(store, &insert(&name, Draft { due_in: Some(LONG), ..draft(&name, State::InProgress) })).await;
    let finish = replace(&first.record, draft(&name, State::Completed));
    let other = subject.file.other_connection();
    other.execute_batch("begin immediate").expect("the lock is free");
    for _ in 0..3 {
        let outcome = send(store, &finish).await;
        assert!(outcome.is_err_and(|error| error.is_transient() && error.is_unwritten()));
        let renewal = store.renew(vec![(name.id, first.record.version)]).await;
        assert!(renewal.is_err_and(|error| error.is_transient()));
        let reaping = store.reap(ReapTarget::Records, None, 1).await;
        assert!(reaping.is_err_and(|error| error.is_transient()));
    }
    assert_eq!(load(store, name.id).await.map(|stored| stored.record), Some(first.record), "reads go on");
    other.execute_batch("rollback").expect("the lock is given back");
    put(store, &finish).await;
}

#[tokio::test]
async fn a_full_disk_is_transient_and_passes() {
    let subject = sqlite_on(&File::fresh(), |options| options.file_bytes_max = Some(1 << 20));
    let store = &*subject.store;
    let mut stored = Vec::new();
    let full = loop {
        let name = TestRecord::fresh();
        let going = Draft { purge_in: Some(Duration::ZERO), ..draft(&name, State::Completed) };
        let change =
            Change { response: Some(response(vec![7; 64 << 10])), ..answering(insert(&name, going), b"") };
        match send(store, &change).await {
            Ok(_) => stored.push(name),
            Err(error) => break (change, error),
        }
        assert!(stored.len() < 16, "a megabyte does not hold this much");
    };
    assert!(stored.len() > 8, "it held only {}", stored.len());
    assert!(full.1.is_transient(), "{:?}", full.1);
    assert_eq!(load(store, full.0.id).await, None, "what failed left nothing");
    for name in &stored {
        assert!(
            load(store, name.id).await.is_some_and(|stored| stored.response.is_some()),
            "every acknowledged change is stored"
        );
    }
    let reaped = reap_all(store, ReapTarget::Records).await;
    assert_eq!(reaped.removed, stored.len() as u64, "a reaping needs no room");
    put(store, &full.0).await;
}

#[tokio::test]
async fn a_change_that_cannot_be_stored_fails_alone() {
    let subject = sqlite();
    let store = &*subject.store;
    subject
        .file
        .other_connection()
        .execute_batch(
            "create trigger poison before insert on ibid_record when new.tenant = 'poison'
             begin select raise(abort, 'poison'); end",
        )
        .expect("a trigger is made");
    let tenants = ["shop", "poison", "shop", "shop", "poison", "shop"];
    let mut batch: Vec<_> = tenants
        .iter()
        .enumerate()
        .map(|(index, tenant)| {
            let name = TestRecord::of(tenant, &format!("key-{index}"));
            Arc::new(telling(insert(&name, draft(&name, State::InProgress)), HistoryKind::Operator, "told"))
        })
        .collect();
    batch.sort_by_key(|change| change.id);
    let fates = join_all(batch.iter().map(|change| send(store, change))).await;
    for (change, fate) in batch.iter().zip(fates) {
        let poison = change.draft.as_ref().is_some_and(|draft| draft.identity.tenant.as_str() == "poison");
        let lines = history(store, change.id).await.len();
        match fate {
            Ok(Commit::Done(_)) => assert!(!poison && load(store, change.id).await.is_some() && lines == 1),
            Err(error) => assert!(poison && !error.is_transient() && error.is_unwritten() && lines == 0),
            Ok(Commit::Conflict(_)) => panic!("no row was in its way"),
        }
    }
}

#[tokio::test]
async fn a_store_works_again_once_its_file_is_whole() {
    let subject = sqlite();
    let store = &*subject.store;
    let name = TestRecord::fresh();
    let running = put(store, &insert(&name, draft(&name, State::InProgress))).await;
    let finish = replace(&running.record, draft(&name, State::Completed));
    let other = subject.file.other_connection();
    other.execute_batch("alter table ibid_record rename to lost").expect("a table is renamed");
    for _ in 0..2 {
        let fate = send(store, &finish).await;
        assert!(fate.is_err_and(|error| !error.is_transient()), "an operator must look");
        assert!(store.load(name.id).await.is_err());
    }
    other.execute_batch("alter table lost rename to ibid_record").expect("a table is renamed");
    put(store, &finish).await;
}

#[tokio::test]
async fn a_commit_whose_caller_left_is_done_and_found_again() {
    let subject = sqlite();
    let store = &*subject.store;
    let name = TestRecord::fresh();
    let begin = insert(&name, draft(&name, State::InProgress));
    // Polled once, so it is queued; then it is dropped, and no caller waits for its reply.
    assert!(store.commit(Arc::new(begin.clone()), None).now_or_never().is_none(), "no disk is that fast");
    let own = expect_conflict(store, &begin, "it was queued before").await.expect("a row exists");
    assert!(begin.is_stored_as(&own), "the repetition finds the first");
}

#[tokio::test]
async fn a_policy_of_a_failed_transaction_is_written_again() {
    let subject = sqlite_on(&File::fresh(), |options| options.file_bytes_max = Some(256 << 10));
    let store = &*subject.store;
    let name = TestRecord::fresh();
    let small = insert(&name, draft(&name, State::Completed));
    let large = Change { response: Some(response(vec![7; 1 << 20])), ..small.clone() };
    let fate = send(store, &large).await;
    assert!(fate.is_err_and(|error| error.is_transient()), "it does not fit");
    // The same policy, at the same address: the rollback removed its number.
    put(store, &small).await;
}

#[tokio::test]
async fn bodies_go_with_their_records() {
    let subject = sqlite();
    let store = &*subject.store;
    let names: Vec<TestRecord> = (0..700).map(|_| TestRecord::fresh()).collect();
    let going = |name: &TestRecord| {
        let draft = Draft { purge_in: Some(Duration::ZERO), ..draft(name, State::Completed) };
        Change { response: Some(response(vec![7; 2000])), ..answering(insert(name, draft), b"") }
    };
    commit_all(store, names.iter().map(going).collect()).await;
    subject.hands.advance(TICK);
    let step = store.reap(ReapTarget::Records, None, 600).await.expect("a reaping succeeds");
    assert_eq!(step.removed, 600);
    assert_eq!(list_len(store, 1000).await, 100);
    let step = store.reap(ReapTarget::Records, None, u32::MAX).await.expect("a reaping succeeds");
    assert_eq!((step.removed, step.next), (100, None));
    let bodies: i64 = subject
        .file
        .other_connection()
        .query_row("select count(*) from ibid_body", [], |row| row.get(0))
        .expect("the bodies are counted");
    assert_eq!(bodies, 0, "bodies go with their records");
}

#[tokio::test]
async fn only_a_file_made_by_ibid_shrinks_in_steps() {
    let (ours, theirs) = (File::fresh(), File::fresh());
    sql(&theirs.path(), "create table theirs (n integer)");
    let pages = |file: &File| {
        let pages = file.other_connection().query_row("pragma page_count", [], |row| row.get::<_, i64>(0));
        pages.expect("the pages are counted")
    };
    for (file, shrinks) in [(ours, true), (theirs, false)] {
        let subject = sqlite_on(&file, |_| {});
        let store = &*subject.store;
        for _ in 0..6 {
            let going = (0..500).map(|_| {
                let name = TestRecord::fresh();
                let going = Draft { purge_in: Some(Duration::ZERO), ..draft(&name, State::Completed) };
                Change { response: Some(response(vec![7; 8 << 10])), ..answering(insert(&name, going), b"") }
            });
            commit_all(store, going.collect()).await;
        }
        subject.hands.advance(TICK);
        let full = pages(&file);
        assert_eq!(reap_all(store, ReapTarget::Records).await.removed, 3000);
        assert_eq!(pages(&file), full, "what is free is free for others first");
        let room = reap_all(store, ReapTarget::Room).await;
        assert_eq!(room.removed > 0, shrinks);
        assert!(pages(&file) <= full - room.removed.cast_signed(), "with the pages that told of them");
        let spare = 1100;
        assert_eq!(pages(&file) < spare, shrinks, "some stay for what is written next: {}", pages(&file));
        assert_eq!(reap_all(store, ReapTarget::Room).await.removed, 0, "and no more goes");
        let fine = file.other_connection().query_row("pragma integrity_check", [], |row| row.get(0));
        assert_eq!(fine, Ok("ok".to_owned()));
    }
}

#[tokio::test]
async fn a_lease_of_any_length_can_be_renewed() {
    let subject = sqlite();
    let store = &*subject.store;
    let name = TestRecord::fresh();
    let mut running = Draft { due_in: Some(LONG), ..draft(&name, State::InProgress) };
    running.policy =
        Arc::new(((*running.policy).clone()).with(|policy| policy.lease = Duration::from_micros(u64::MAX)));
    let first = put(store, &insert(&name, running)).await;
    let renewed = store.renew(vec![(name.id, first.record.version)]).await.expect("a renewal succeeds");
    let end = first.record.created_at.after(ibid_core::change::INTERVAL_MAX);
    assert_eq!(renewed, [ibid_core::store::RenewOutcome::Until(end)], "it ends in a thousand years");
}

#[tokio::test]
async fn a_record_that_can_not_be_read_hides_no_other() {
    let Sqlite { store, hands, file } = sqlite();
    let mut ids = Vec::new();
    for _ in 0..4 {
        let name = TestRecord::fresh();
        let due = Draft { due_in: Some(TICK), ..draft(&name, State::InProgress) };
        put(&*store, &insert(&name, due)).await;
        ids.push(name.id);
        hands.advance(TICK);
    }
    sql(&file.path(), &format!("update ibid_record set policy = 99 where id = x'{}'", ids[0]));
    let due_ids = async |limit| {
        let records = due(&*store, State::InProgress, limit).await;
        records.into_iter().map(|stored| stored.record.id).collect::<Vec<_>>()
    };
    assert_eq!((due_ids(100).await, due_ids(1).await), (ids[1..].to_vec(), ids[1..2].to_vec()));
    assert_eq!(list_len(&store, 3).await, 3);
    assert!(!store.load(ids[0]).await.expect_err("it can't be read").is_transient());
}

/// Commits one change and returns the store's own answer.
async fn send(store: &SqliteStore, change: &Change) -> Result<Commit, StoreError> {
    store.commit(Arc::new(change.clone()), None).await
}

/// Returns how many records a list of `limit` has.
async fn list_len(store: &SqliteStore, limit: u32) -> usize {
    let filter = RecordFilter::default().with(|filter| filter.limit = limit);
    browse(store).list(filter).await.expect("a list").items.len()
}

pub(crate) fn sql(path: &Path, sql: &str) {
    Connection::open(path).and_then(|connection| connection.execute_batch(sql)).expect("the file is made");
}

pub(crate) fn files(file: &File) -> Vec<String> {
    let entries = std::fs::read_dir(file.0.path()).expect("the directory is read");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
