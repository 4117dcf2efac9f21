//! Replies that never arrive: the write may have happened, and the writer finds out by its nonce.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ibid_core::change::{Change, Commit, Expect, HistoryKind};
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

/// A line without a record has no condition that would refuse it the second time.
#[tokio::test(flavor = "multi_thread")]
async fn a_line_whose_reply_is_lost_is_written_once() {
    let server = DynamoDb::shared();
    let loses = Arc::new(AtomicBool::new(false));
    let armed = loses.clone();
    let proxy = server.proxy(move |request| {
        match request.operation == "TransactWriteItems" && armed.swap(false, Ordering::SeqCst) {
            true => ProxyAction::LoseReply,
            false => ProxyAction::Pass,
        }
    });
    let clock = NodeClock::default();
    let store = open_via(&proxy, &server, &clock).await;
    let begin = fresh(&TestRecord::fresh(), Duration::from_secs(60));
    assert!(matches!(commit(&store, &begin).await, Commit::Done(_)));
    let line = |detail: &str| {
        let change =
            Change { draft: None, expect: Expect::Anything, ..fresh(&TestRecord::fresh(), Duration::ZERO) };
        telling(Change { id: begin.id, ..change }, HistoryKind::LateAnswer, detail)
    };
    let late = line("first");
    loses.store(true, Ordering::SeqCst);
    let error = store.commit(Arc::new(late.clone()), None).await.expect_err("no reply came");
    assert!(!error.is_unwritten(), "{error:?}");
    // Another line comes before the first one is sent again.
    clock.advance(Duration::from_secs(1));
    assert!(matches!(commit(&store, &line("second")).await, Commit::Done(_)));
    clock.advance(Duration::from_secs(1));
    assert!(matches!(commit(&store, &late).await, Commit::Done(_)));
    let history = store.history(begin.id).await.expect("it answers");
    let details: Vec<&str> = history.iter().map(|line| &line.detail[..]).collect();
    assert_eq!(details, ["first", "second"], "each once, in the order in which they were first sent");
}
