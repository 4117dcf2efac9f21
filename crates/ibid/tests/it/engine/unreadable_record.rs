//! A record on SQLite that this program can't read: its key is refused, and nothing else suffers.

use ibid::store::sqlite::{SqliteOptions, SqliteStore};

use super::*;
use crate::request_fixture::ask;

#[tokio::test]
async fn begins_on_an_unreadable_record_leave_nothing_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("ibid.db");
    let open = || Arc::new(SqliteStore::open(&path, SqliteOptions::default()).expect("it opens"));
    let owner = Ibid::start(open(), takes_over_at_start()).await.expect("it starts");
    let begin = owner.begin(ask(&owner, "shop", "k", Policy::default())).await.expect("the store answers");
    std::mem::forget(begin);
    let file = rusqlite::Connection::open(&path).expect("it opens");
    file.execute_batch("update ibid_record set policy = 0").expect("its policy is lost");
    let node = Ibid::start(open(), takes_over_at_start()).await.expect("it starts");
    for _ in 0..20 {
        assert!(node.begin(ask(&node, "shop", "k", Policy::default())).await.is_err());
    }
    // If tasks kept retrying, they would do so for a day.
    node.settled().await;
    assert!(!node.is_breaker_open(), "one record says nothing about the store");
    let other = node.begin(ask(&node, "shop", "other", Policy::default())).await;
    assert!(matches!(other, Ok(Begin::Run(_))), "{other:?}");
}
