//! `kill -9` of the server under load: what was acknowledged is there afterwards, and what was not is resolved by its nonce.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ibid_testkit::contract::load;
use tokio::task::JoinSet;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_killed_server_loses_no_acknowledged_write() {
    let mut server = MariaDb::start();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let (over, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        callers.spawn(work(store.clone(), over.clone(), done.clone()));
    }
    for kill in 1..=KILLS {
        until(&done, kill * WRITES).await;
        server.restart();
    }
    until(&done, (KILLS + 1) * WRITES).await;
    over.store(true, Ordering::SeqCst);
    let acknowledged: Vec<Change> = callers.join_all().await.into_iter().flatten().collect();
    assert!(acknowledged.len() >= (KILLS + 1) * WRITES);
    for finish in acknowledged {
        let stored = load(&*store, finish.id).await.expect("an acknowledged record is there");
        assert!(finish.is_stored_as(&stored), "an acknowledged write was lost");
    }
    // A fresh session and a recovered server agree.
    let open = "select count(*) from ibid_record where state <> 3";
    assert_eq!(server.sql(&database, open), "0", "every begin was finished");
}

/// Begins and finishes records until it is over. A write whose reply was lost is sent again.
async fn work(store: Arc<MysqlStore>, over: Arc<AtomicBool>, done: Arc<AtomicUsize>) -> Vec<Change> {
    let mut finished = Vec::new();
    while !over.load(Ordering::SeqCst) {
        let begin = Arc::new(fresh(&TestRecord::fresh(), LONG));
        let record = match commit_patiently(&store, &begin).await {
            Commit::Done(stamp) => begin.apply(stamp, None).expect("it writes a record"),
            Commit::Conflict(Some(stored)) if begin.is_stored_as(&stored) => stored.record,
            other => panic!("a fresh name was taken: {other:?}"),
        };
        let finish = Arc::new(finish(&record));
        match commit_patiently(&store, &finish).await {
            Commit::Done(_) => {}
            Commit::Conflict(Some(stored)) if finish.is_stored_as(&stored) => {}
            other => panic!("the lease was lost: {other:?}"),
        }
        done.fetch_add(1, Ordering::SeqCst);
        finished.push(Arc::unwrap_or_clone(finish));
    }
    finished
}

async fn until(done: &AtomicUsize, count: usize) {
    while done.load(Ordering::SeqCst) < count {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

const CALLERS: usize = 24;
const KILLS: usize = 2;

/// Writes between two kills: enough that batches are in the air when the server dies.
const WRITES: usize = 400;
