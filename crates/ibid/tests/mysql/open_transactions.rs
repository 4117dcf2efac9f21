//! The mark that a change of the identity waits for: no open transaction is missing from it.

use std::sync::atomic::{AtomicBool, Ordering};

use mysql_async::prelude::Queryable;

use super::*;

/// The server renews its list of transactions only while no session reads it, so a monitor that reads all the time keeps it old.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_mark_is_never_taken_from_an_old_list() {
    let server = MariaDb::start();
    let database = server.create_database();
    let store = open(&server, &database).await;
    let sql = store.sql().expect("a SQL store");
    let mut monitor = stranger(&server, &database).await;
    let list = "select count(*) from information_schema.innodb_trx";
    monitor.query_drop(list).await.expect("it reads the list");
    let is_done = Arc::new(AtomicBool::new(false));
    let done = is_done.clone();
    let reading = tokio::spawn(async move {
        while !done.load(Ordering::SeqCst) {
            monitor.query_drop(list).await.expect("it reads the list");
        }
    });
    let mut writer = stranger(&server, &database).await;
    writer
        .query_drop("start transaction; insert into ibid_meta (name, value) values ('w', 'w')")
        .await
        .unwrap();
    let meanwhile = sql.transaction_mark().await;
    is_done.store(true, Ordering::SeqCst);
    reading.await.expect("it ends");
    // The monitor may have paused for long enough that the list was renewed.
    let mark = match meanwhile {
        Ok(mark) => mark,
        Err(old) => {
            assert!(old.is_transient(), "{old:?}");
            sql.transaction_mark().await.expect("a mark")
        }
    };
    assert!(!sql.is_settled_before(mark).await.expect("an answer"), "the writer is open");
    writer.query_drop("rollback").await.expect("it goes");
    while !sql.is_settled_before(mark).await.expect("an answer") {
        tokio::task::yield_now().await;
    }
}
