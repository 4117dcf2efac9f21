//! Replies that never arrive: the write may have happened, and the writer finds out by its nonce.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ibid_core::change::{Change, Commit, HistoryKind};
use ibid_core::store::{BrowseStore, Store};
use ibid_dynamodb::NodeClock;
use ibid_testkit::contract::{TestRecord, commit, finish_with, fresh, load, response, telling};
use ibid_testkit::dynamodb::{DynamoDb, ProxyAction};

use crate::fixture::{items, open_via};

#[tokio::test(flavor = "multi_thread")]
async fn a_write_whose_reply_is_lost_finds_itself_and_writes_once() {
    let server = DynamoDb::shared();
    let loses = Arc::new(AtomicBool::new(false));
    let armed = loses.clone();
    let proxy = server.proxy(move |request| {
        let is_write = matches!(request.operation.as_str(), "UpdateItem" | "TransactWriteItems");
        match is_write && armed.swap(false, Ordering::SeqCst) {
            true => ProxyAction::LoseReply,
            false => ProxyAction::Pass,
        }
    });
    let store = open_via(&proxy, &server, &NodeClock::default()).await;
    let send_lost = async |change: &Change| {
        loses.store(true, Ordering::SeqCst);
        let error = store.commit(Arc::new(change.clone()), None).await.expect_err("no reply came");
        assert!(error.is_transient() && !error.is_unwritten(), "it may have been written: {error:?}");
        assert!(!loses.load(Ordering::SeqCst), "the reply of this write was lost");
        let Commit::Conflict(Some(stored)) = commit(&store, change).await else {
            panic!("the same change was written twice")
        };
        assert!(change.is_stored_as(&stored), "it finds its own nonce");
    };
    let begin = fresh(&TestRecord::fresh(), Duration::from_secs(60));
    send_lost(&begin).await;
    let running = load(&store, begin.id).await.expect("it is there").record;
    let finish = telling(finish_with(&running, b"once"), HistoryKind::Settled, "once");
    send_lost(&finish).await;
    assert_eq!(load(&store, begin.id).await.expect("it is there").body(), Some(&b"once"[..]));
    assert_eq!(store.history(begin.id).await.expect("it answers").len(), 1, "one line");
    // A response in parts, which are written before the record.
    let begin = fresh(&TestRecord::fresh(), Duration::from_secs(60));
    send_lost(&begin).await;
    let running = load(&store, begin.id).await.expect("it is there").record;
    let large = vec![b'x'; 800_000];
    let mut finish = finish_with(&running, b"");
    finish.response = Some(response(large.clone()));
    send_lost(&finish).await;
    assert_eq!(load(&store, begin.id).await.expect("it is there").body(), Some(&large[..]));
    assert_eq!(items(&server, "b#").await.len(), 3, "its parts, once");
}
