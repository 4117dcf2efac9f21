//! Closures that run on the SQLite store's writer thread.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ibid::store::sqlite::{SqliteOptions, SqliteStore};
use ibid_core::record::State;
use ibid_core::store::StoreError;
use ibid_testkit::contract::{TestRecord, commit_all, draft, insert, load, put};
use rusqlite::Connection;

use crate::store_sqlite::{File, Sqlite, sqlite, sqlite_on};

type Outcome<T> = Result<rusqlite::Result<T>, StoreError>;

const PAYMENT: &str = "create table payment (id integer primary key, cents integer not null) strict";
const PAY: &str = "insert into payment (cents) values (1)";

async fn shop() -> Sqlite {
    let subject = sqlite();
    subject
        .store
        .run(|connection| connection.execute_batch(PAYMENT))
        .await
        .expect("it runs")
        .expect("a table");
    subject
}

async fn pay(store: &SqliteStore) -> Outcome<usize> {
    store.run(|connection| connection.execute(PAY, [])).await
}

fn payments(subject: &Sqlite) -> i64 {
    let count = "select count(*) from payment";
    subject.file.other_connection().query_row(count, [], |row| row.get(0)).expect("they are counted")
}

/// Checks that the store still takes writes.
async fn still_works(subject: &Sqlite) {
    let name = TestRecord::fresh();
    put(&*subject.store, &insert(&name, draft(&name, State::InProgress))).await;
    let before = payments(subject);
    pay(&subject.store).await.expect("it runs").expect("a payment");
    assert_eq!(payments(subject), before + 1);
}

#[tokio::test]
async fn a_returned_closures_writes_are_visible_to_others() {
    let subject = shop().await;
    let run = subject.store.run(|connection| {
        assert!(!connection.is_autocommit(), "a transaction is open");
        let mut inner = connection.savepoint()?;
        inner.execute(PAY, [])?;
        inner.rollback()?;
        inner.finish()?;
        connection.execute(PAY, [])?;
        Ok::<_, rusqlite::Error>("paid")
    });
    assert_eq!(run.await.expect("it runs").expect("it succeeds"), "paid");
    assert_eq!(payments(&subject), 1);
}

#[tokio::test]
async fn a_closure_that_fails_leaves_nothing() {
    let subject = shop().await;
    let run = subject.store.run(|connection| {
        connection.execute(PAY, []).expect("a payment is written");
        Err::<(), _>("no such card")
    });
    assert_eq!(run.await.expect("it runs"), Err("no such card"));
    assert_eq!(payments(&subject), 0);
    // SQLite itself ends the transaction here.
    let run = subject.store.run(|connection| {
        connection.execute(PAY, [])?;
        connection.execute("insert or rollback into payment (id, cents) values (1, 1)", [])
    });
    run.await.expect("it runs").expect_err("the number is taken");
    assert_eq!(payments(&subject), 0);
    still_works(&subject).await;
}

#[tokio::test]
async fn a_closure_that_panics_leaves_nothing() {
    let subject = shop().await;
    let run = subject.store.run(|connection| -> Result<(), ()> {
        connection.execute(PAY, []).expect("a payment is written");
        panic!("no card {}", 4711);
    });
    let error = run.await.expect_err("it panicked");
    assert!(error.is_unwritten() && !error.is_transient(), "{error:?}");
    let cause = std::error::Error::source(&error).map(ToString::to_string);
    assert_eq!(cause.as_deref(), Some("the closure panicked: no card 4711"));
    assert_eq!(payments(&subject), 0);
    still_works(&subject).await;
}

#[tokio::test]
async fn a_commit_that_is_refused_wrote_nothing() {
    let subject = shop().await;
    let run = subject.store.run(|connection| {
        connection.execute_batch(
            "create table receipt (payment integer references payment(id) deferrable initially deferred);
             insert into receipt values (7)",
        )
    });
    let error = run.await.expect_err("there is no payment 7");
    assert!(error.is_unwritten() && !error.is_transient(), "{error:?}");
    still_works(&subject).await;
}

#[test]
fn a_commit_cut_short_by_the_disk_may_have_been_written() {
    // In a process that may write files of one or two megabytes at most: COMMIT is what fails when it does not fit.
    let file = File::fresh();
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 2048; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().expect("this test's binary"))
        .args(["--exact", "store_sqlite_run::the_limited_process", "--nocapture", "--test-threads=1"])
        .env(LIMITED_PROCESS, file.path())
        .output()
        .expect("a second process starts");
    let output_text = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output_text.contains("it continued"), "{output_text}{complained}");
}

/// Not a test by itself: the test above runs it in a second process.
#[tokio::test]
async fn the_limited_process() {
    let Some(path) = std::env::var_os(LIMITED_PROCESS) else { return };
    let store = SqliteStore::open(Path::new(&path), SqliteOptions::default()).expect("the store opens");
    let table = store.run(|connection| connection.execute_batch(PAYMENT)).await;
    table.expect("it runs").expect("a table");
    let run = store.run(|connection| {
        connection.execute_batch("create table large (data blob)")?;
        connection.execute("insert into large values (zeroblob(4194304))", [])
    });
    let error = run.await.expect_err("it does not fit");
    assert!(!error.is_unwritten() && error.is_transient(), "{error:?}");
    pay(&store).await.expect("it runs").expect("a small one fits");
    println!("it continued");
}

const LIMITED_PROCESS: &str = "IBID_TEST_LIMITED_PROCESS";

#[tokio::test]
async fn a_closure_that_ends_its_transaction_may_have_written() {
    let subject = shop().await;
    let run = subject.store.run(|connection| {
        connection.execute(PAY, [])?;
        connection.execute_batch("commit")
    });
    let error = run.await.expect_err("it is not its to end");
    assert!(!error.is_unwritten() && !error.is_transient(), "{error:?}");
    assert_eq!(payments(&subject), 1);
    still_works(&subject).await;
}

#[tokio::test]
async fn a_closure_that_gets_no_lock_does_not_run() {
    let shop = shop().await;
    let subject = sqlite_on(&shop.file, |options| options.busy_timeout = Duration::from_millis(10));
    let other = shop.file.other_connection();
    other.execute_batch("begin immediate").expect("the lock is free");
    let error = pay(&subject.store).await.expect_err("the lock is not to be had");
    assert!(error.is_unwritten() && error.is_transient(), "{error:?}");
    other.execute_batch("rollback").expect("the lock is given back");
    still_works(&subject).await;
    assert_eq!(payments(&subject), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn closures_and_commits_interleave_and_none_is_lost() {
    let subject = shop().await;
    let mut payers = tokio::task::JoinSet::new();
    for payer in 0..8 {
        let store = subject.store.clone();
        payers.spawn(async move {
            for turn in 0..25 {
                let run = store.run(move |connection| {
                    connection.execute(PAY, [])?;
                    if turn % 5 == 0 { Err(rusqlite::Error::InvalidQuery) } else { Ok(()) }
                });
                assert_eq!(run.await.expect("it runs").is_err(), turn % 5 == 0);
            }
        });
        let store = subject.store.clone();
        payers.spawn(async move {
            for _ in 0..25 {
                let names: Vec<TestRecord> = (0..payer + 1).map(|_| TestRecord::fresh()).collect();
                let begin = names.iter().map(|name| insert(name, draft(name, State::InProgress)));
                commit_all(&*store, begin.collect()).await;
                for name in &names {
                    assert!(load(&*store, name.id).await.is_some());
                }
            }
        });
    }
    payers.join_all().await;
    assert_eq!(payments(&subject), 8 * 20);
}

#[tokio::test]
async fn a_closure_runs_to_its_end_without_its_caller() {
    let Sqlite { store, file, .. } = shop().await;
    let (told, done) = tokio::sync::oneshot::channel();
    let slot = Arc::new(Mutex::new(Some(store)));
    let inside = slot.clone();
    let run = slot.lock().expect("no thread panicked").as_ref().map(|store| {
        let work = move |connection: &mut Connection| {
            connection.execute(PAY, [])?;
            // Dropped here, on the writer thread, after the future outside has gone.
            drop(inside.lock().expect("no thread panicked").take());
            told.send(()).expect("the test waits");
            Ok::<_, rusqlite::Error>(())
        };
        futures_util::FutureExt::now_or_never(store.run(work))
    });
    assert!(run.flatten().is_none(), "no disk is that fast");
    drop(slot);
    done.await.expect("it ran");
    // The writer closes the file when it is done; a second store has to wait only for the lock.
    let again = sqlite_on(&file, |_| {});
    pay(&again.store).await.expect("it runs").expect("a payment");
    assert_eq!(payments(&again), 2);
}
