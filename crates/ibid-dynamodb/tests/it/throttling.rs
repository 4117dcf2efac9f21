//! A service that throttles: the store backs off for a while, and then says that nothing was written.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ibid_core::change::{Commit, HistoryKind};
use ibid_core::store::{RenewOutcome, Store};
use ibid_dynamodb::{DynamoStore, NodeClock};
use ibid_testkit::contract::{TestRecord, commit, finish_with, fresh, load, put, telling};
use ibid_testkit::dynamodb::{DynamoDb, DynamoProxy, ProxyAction};

use crate::fixture::open_via;

const LEASE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn a_throttled_write_is_repeated_and_not_lost() {
    let server = DynamoDb::shared();
    for code in [
        "ProvisionedThroughputExceededException",
        "ThrottlingException",
        "RequestLimitExceeded",
        "TransactionConflictException",
    ] {
        let (_proxy, throttled, store) = throttling(&server, ProxyAction::error(code)).await;
        let name = TestRecord::fresh();
        throttled.store(3, Ordering::SeqCst);
        assert!(matches!(commit(&store, &fresh(&name, LEASE)).await, Commit::Done(_)), "{code}");
        assert_eq!(throttled.load(Ordering::SeqCst), 0, "{code}: all three were answered");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_stays_throttled_is_transient_and_unwritten() {
    let server = DynamoDb::shared();
    let (_proxy, throttled, store) = throttling(&server, ProxyAction::error("ThrottlingException")).await;
    let begin = Arc::new(fresh(&TestRecord::fresh(), LEASE));
    throttled.store(u32::MAX, Ordering::SeqCst);
    let error = store.commit(begin.clone(), None).await.expect_err("it stays throttled");
    assert!(error.is_transient() && error.is_unwritten(), "{error:?}");
    let tries = u32::MAX - throttled.load(Ordering::SeqCst);
    assert_eq!(tries, 6, "it gives up");
    let late = store.commit(begin.clone(), Some(Instant::now())).await.expect_err("its client is gone");
    assert!(late.is_unwritten() && u32::MAX - throttled.load(Ordering::SeqCst) == tries, "it was not sent");
    throttled.store(0, Ordering::SeqCst);
    assert_eq!(load(&store, begin.id).await, None, "nothing was written");
    assert!(matches!(commit(&store, &begin).await, Commit::Done(_)), "and the same change fits later");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_meets_another_is_repeated() {
    let server = DynamoDb::shared();
    let body = r#"{"__type":"com.amazonaws.dynamodb.v20120810#TransactionCanceledException","Message":"by the proxy","CancellationReasons":[{"Code":"TransactionConflict","Message":"by the proxy"},{"Code":"None"}]}"#;
    let (_proxy, throttled, store) = throttling(&server, ProxyAction::Answer(400, body.to_owned())).await;
    let running = put(&store, &fresh(&TestRecord::fresh(), LEASE)).await.record;
    throttled.store(2, Ordering::SeqCst);
    let finish = telling(finish_with(&running, b"done"), HistoryKind::Settled, "done");
    assert!(matches!(commit(&store, &finish).await, Commit::Done(_)));
    assert_eq!(throttled.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_throttled_renewal_leaves_the_others_alone() {
    let server = DynamoDb::shared();
    let begins = [(); 3].map(|()| fresh(&TestRecord::fresh(), LEASE));
    // The key of the second record, as a request has it.
    let throttled = aws_smithy_types::base64::encode(begins[1].id.as_bytes());
    let is_armed = Arc::new(AtomicBool::new(false));
    let armed = is_armed.clone();
    let proxy = server.proxy(move |request| {
        match armed.load(Ordering::SeqCst) && request.body.contains(&throttled) {
            true => ProxyAction::error("ThrottlingException"),
            false => ProxyAction::Pass,
        }
    });
    let store = open_via(&proxy, &server, &NodeClock::default()).await;
    let mut leases = Vec::new();
    for begin in &begins {
        let record = put(&store, begin).await.record;
        leases.push((record.id, record.version));
    }
    is_armed.store(true, Ordering::SeqCst);
    let renewed = store.renew(leases.clone()).await.expect("two are renewed");
    assert!(
        matches!(renewed[..], [RenewOutcome::Until(_), RenewOutcome::Busy, RenewOutcome::Until(_)]),
        "{renewed:?}"
    );
    store.renew(vec![leases[1]]).await.expect_err("none is renewed");
}

/// Opens a store behind a proxy that gives `answer` to as many writes as the counter says.
async fn throttling(server: &DynamoDb, answer: ProxyAction) -> (DynamoProxy, Arc<AtomicU32>, DynamoStore) {
    let left = Arc::new(AtomicU32::new(0));
    let counter = left.clone();
    let proxy = server.proxy(move |request| {
        let is_write = matches!(request.operation.as_str(), "UpdateItem" | "TransactWriteItems");
        let take = |left: u32| left.checked_sub(1);
        match is_write && counter.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok() {
            true => answer.clone(),
            false => ProxyAction::Pass,
        }
    });
    let store = open_via(&proxy, server, &NodeClock::default()).await;
    (proxy, left, store)
}
