//! The node's clock against the service's `Date`, which a proxy adds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use ibid_core::change::{Change, Commit, Draft};
use ibid_core::reap::ReapTarget;
use ibid_core::record::{Record, State};
use ibid_core::store::{RenewOutcome, Store};
use ibid_dynamodb::{ClockState, DynamoOpenError, DynamoOptions, DynamoStore, NodeClock, create_table};
use ibid_testkit::contract::{TestRecord, commit, draft, finish_with, fresh, insert, load, put};
use ibid_testkit::dynamodb::{DynamoDb, DynamoProxy, ProxyAction};

use crate::fixture::{SECOND, open, open_with, options, sdk_config, sdk_config_via};

const LEASE: Duration = Duration::from_secs(60);

/// The default retention, in microseconds.
const DAY: i64 = 24 * 3600 * SECOND;

#[tokio::test(flavor = "multi_thread")]
async fn without_a_date_the_clock_is_not_known_and_the_store_works() {
    let server = DynamoDb::shared();
    let store = open(&server, &NodeClock::default()).await;
    assert_eq!(store.clock_state(), ClockState::Unknown);
    put(&store, &fresh(&TestRecord::fresh(), LEASE)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_clock_is_off_does_not_start() {
    let server = DynamoDb::shared();
    let (proxy, date) = proxy_with_date(&server);
    let (config, options) = (sdk_config_via(&proxy, &server), patient(&NodeClock::default()));
    create_table(&config, &options).await.expect("the table is created");
    for (shift, starts) in [(0, true), (120, false), (-120, false), (0, true)] {
        date.store(shift, Ordering::SeqCst);
        match (DynamoStore::open_with(&config, options.clone()).await, starts) {
            (Ok(store), true) => assert!(matches!(store.clock_state(), ClockState::Within(_))),
            (Err(DynamoOpenError::ClockOff { micros, .. }), false) => {
                assert!(micros.abs() > 90_000_000 && micros.signum() == -shift.signum(), "{micros}");
            }
            (other, _) => panic!("{shift}: {other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_clock_goes_off_gives_no_lease_and_takes_none() {
    let server = DynamoDb::shared();
    let (proxy, date) = proxy_with_date(&server);
    let clock = NodeClock::default();
    let store = open_with(&sdk_config_via(&proxy, &server), patient(&clock)).await;
    let running = put(&store, &fresh(&TestRecord::fresh(), LEASE)).await.record;
    // Once the service's clock moves, once the node's, forward and back.
    for (service, node) in [(120, 0), (-120, 0), (0, 120), (0, -120)] {
        date.store(service, Ordering::SeqCst);
        clock.set_shift(node * SECOND);
        let (begin, accepted) = (Arc::new(fresh(&TestRecord::fresh(), LEASE)), accepted_request());
        // A reply shows it.
        assert_eq!(store.load(begin.id).await.expect("a load succeeds"), None);
        for change in [&begin, &accepted] {
            let error = store.commit(change.clone(), None).await.expect_err("no new reservations");
            assert!(error.is_transient() && error.is_unsent() && error.is_unwritten(), "{error:?}");
            assert_eq!(store.load(change.id).await.expect("a load succeeds"), None);
        }
        assert!(store.renew(vec![(running.id, running.version)]).await.is_err(), "no lease moves");
        assert!(store.due(State::InProgress, None, 10).await.is_err(), "none counts as lapsed");
        assert!(store.reap(ReapTarget::Records, None, 10).await.is_err(), "nothing is removed");
        let ready = store.compare_and_set("ready", None, Bytes::from_static(b"1")).await;
        assert!(ready.is_err(), "it is not ready, and not elected for upkeep");
        // The clock is right again, and the store has to notice by itself.
        date.store(0, Ordering::SeqCst);
        clock.set_shift(0);
        for change in [&begin, &accepted] {
            assert!(matches!(commit(&store, change).await, Commit::Done(_)), "{service} {node}: it recovers");
        }
    }
    clock.set_shift(120 * SECOND);
    let finish = commit(&store, &finish_with(&running, b"done")).await;
    assert!(matches!(finish, Commit::Done(_)), "a result is always stored");
}

/// A machine was suspended for five minutes, and both of its clocks with it. It wakes and begins: its lease has lapsed
/// already for every other node, and the reply is the first to show it.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_not_used_if_its_own_reply_shows_a_wrong_clock() {
    let server = DynamoDb::shared();
    let (proxy, date) = proxy_with_date(&server);
    let (clock, other_clock) = (NodeClock::default(), NodeClock::default());
    let store = open_with(&sdk_config_via(&proxy, &server), patient(&clock)).await;
    let running = put(&store, &fresh(&TestRecord::fresh(), LEASE)).await.record;
    date.store(300, Ordering::SeqCst);
    other_clock.set_shift(300 * SECOND);
    let begin = Arc::new(fresh(&TestRecord::fresh(), LEASE));
    let error = store.commit(begin.clone(), None).await.expect_err("its lease is over already");
    assert!(error.is_transient() && !error.is_unwritten() && !error.is_unsent(), "{error:?}");
    let other = open_with(&sdk_config(&server), patient(&other_clock)).await;
    let loaded = load(&other, begin.id).await.expect("it was written");
    assert!(loaded.record.is_due(loaded.now), "another node may take it over");
    store.commit(begin.clone(), None).await.expect_err("and still it must not run");

    // The clock is set right, and the same begin is sent again: it finds itself, and its lease counts from now.
    clock.set_shift(300 * SECOND);
    let Commit::Conflict(Some(stored)) = commit(&store, &begin).await else {
        panic!("it was written before")
    };
    assert!(begin.is_stored_as(&stored));
    let loaded = load(&other, begin.id).await.expect("it was written");
    assert_eq!(loaded.record, stored.record);
    assert!(!loaded.record.is_due(loaded.now.after(LEASE / 2)), "its lease is whole again");

    // A renewal after a pause: the lease may be shorter than it should be.
    clock.set_shift(0);
    date.store(0, Ordering::SeqCst);
    load(&store, running.id).await;
    date.store(300, Ordering::SeqCst);
    let renewed = store.renew(vec![(running.id, running.version)]).await.expect("it answers");
    assert_eq!(renewed, [RenewOutcome::Busy], "it does not count");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_never_expires_by_a_wrong_clock() {
    let server = DynamoDb::shared();
    let (proxy, date) = proxy_with_date(&server);
    let clock = NodeClock::default();
    let store = open_with(&sdk_config_via(&proxy, &server), patient(&clock)).await;
    let mut running = Vec::new();
    for _ in 0..3 {
        running.push(put(&store, &fresh(&TestRecord::fresh(), LEASE)).await.record);
    }
    let other_clock = NodeClock::default();
    let other = open_with(&sdk_config(&server), patient(&other_clock)).await;
    let ends_after_its_retention = async |record: &Record| {
        let stored = load(&other, record.id).await.expect("it is there");
        let left = stored.record.expires_at.expect("it ends").since(stored.now);
        let retention = stored.record.policy.retention;
        assert!(left > retention && left < retention + 10 * LEASE, "{left:?}");
    };
    // The clock was set back by the retention, and no reply has shown it yet; and then one has.
    clock.set_shift(-DAY);
    let done = commit(&store, &finish_with(&running[0], b"set back")).await;
    assert!(matches!(done, Commit::Done(_)), "{done:?}");
    ends_after_its_retention(&running[0]).await;
    assert!(matches!(store.clock_state(), ClockState::Off(_)));
    let done = commit(&store, &finish_with(&running[1], b"known to be off")).await;
    assert!(matches!(done, Commit::Done(_)), "{done:?}");
    ends_after_its_retention(&running[1]).await;

    // The machine is suspended for a day, and the reply to its finish is the first to show it.
    clock.set_shift(0);
    load(&store, running[2].id).await;
    assert!(matches!(store.clock_state(), ClockState::Within(_)));
    date.store(DAY / SECOND, Ordering::SeqCst);
    other_clock.set_shift(DAY);
    let done = commit(&store, &finish_with(&running[2], b"suspended")).await;
    assert!(matches!(done, Commit::Done(_)), "{done:?}");
    ends_after_its_retention(&running[2]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_clock_is_off_answers_for_keys_of_others() {
    let server = DynamoDb::shared();
    let (proxy, date) = proxy_with_date(&server);
    let off = open_with(&sdk_config_via(&proxy, &server), patient(&NodeClock::default())).await;
    let other = open_with(&sdk_config(&server), patient(&NodeClock::default())).await;
    let name = TestRecord::fresh();
    let running = put(&other, &fresh(&name, LEASE)).await.record;
    put(&other, &finish_with(&running, b"theirs")).await;
    date.store(120, Ordering::SeqCst);
    off.load(TestRecord::fresh().id).await.expect("a reply shows it");
    let Commit::Conflict(Some(stored)) = commit(&off, &fresh(&name, LEASE)).await else {
        panic!("the key is taken")
    };
    assert_eq!(stored.body(), Some(&b"theirs"[..]), "it is replayed");
    let new = off.commit(Arc::new(fresh(&TestRecord::fresh(), LEASE)), None).await;
    assert!(new.is_err_and(|error| error.is_unsent()), "a new key is not begun");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_clock_is_fast_finds_no_live_result_expired() {
    const HOUR: Duration = Duration::from_secs(3600);
    let server = DynamoDb::shared();
    let (proxy, _) = proxy_with_date(&server);
    let clock = NodeClock::default();
    let fast = open_with(&sdk_config_via(&proxy, &server), patient(&clock)).await;
    let other = open_with(&sdk_config(&server), patient(&NodeClock::default())).await;
    let name = TestRecord::fresh();
    let done = Draft { expires_in: Some(HOUR), purge_in: Some(2 * HOUR), ..draft(&name, State::Completed) };
    put(&other, &insert(&name, done)).await;
    clock.set_shift(2 * 3600 * SECOND);
    let stored = load(&fast, name.id).await.expect("it is there");
    assert!(matches!(fast.clock_state(), ClockState::Off(_)));
    assert!(!stored.record.is_expired(stored.now), "{:?} {:?}", stored.now, stored.record.expires_at);
    let left = stored.record.expires_at.expect("it ends").since(stored.now);
    assert!(left < HOUR + 10 * LEASE, "it counts from the service's time: {left:?}");
}

/// The service refuses a signature whose time is five minutes off, before it looks at the request.
#[tokio::test(flavor = "multi_thread")]
async fn a_signature_refused_because_of_the_clock_is_tried_again() {
    let server = DynamoDb::shared();
    let refusals = Arc::new(AtomicI64::new(0));
    let (left, shift) = (refusals.clone(), Arc::new(AtomicI64::new(0)));
    let date = shift.clone();
    let proxy = server.proxy(move |_| {
        let shift = date.load(Ordering::SeqCst);
        match left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| (left > 0).then(|| left - 1)) {
            Ok(_) => ProxyAction::error_at("InvalidSignatureException", shift),
            Err(_) => ProxyAction::date(shift),
        }
    });
    let (config, options) = (sdk_config_via(&proxy, &server), patient(&NodeClock::default()));
    create_table(&config, &options).await.expect("the table is created");
    let store = DynamoStore::open_with(&config, options.clone()).await.expect("it opens");
    let running = put(&store, &fresh(&TestRecord::fresh(), LEASE)).await.record;
    shift.store(600, Ordering::SeqCst);
    refusals.store(1, Ordering::SeqCst);
    let finish = Arc::new(finish_with(&running, b"done"));
    let error = store.commit(finish.clone(), None).await.expect_err("its signature is refused");
    assert!(error.is_transient() && error.is_unwritten(), "{error:?}");
    assert!(matches!(commit(&store, &finish).await, Commit::Done(_)), "the next one is signed right");

    // A node that starts says what is wrong.
    refusals.store(1, Ordering::SeqCst);
    let refused = DynamoStore::open_with(&config, options.clone()).await;
    assert!(matches!(refused, Err(DynamoOpenError::ClockOff { .. })), "{refused:?}");

    // With a clock that is right, the secret key is wrong, and no later try helps.
    shift.store(0, Ordering::SeqCst);
    let store = DynamoStore::open_with(&config, options).await.expect("it opens");
    refusals.store(1, Ordering::SeqCst);
    let error = store.load(running.id).await.expect_err("its signature is refused");
    assert!(!error.is_transient(), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_replies_lose_their_date_gives_no_lease() {
    let server = DynamoDb::shared();
    let has_date = Arc::new(AtomicBool::new(true));
    let dated = has_date.clone();
    let proxy = server.proxy(move |_| match dated.load(Ordering::SeqCst) {
        true => ProxyAction::date(0),
        false => ProxyAction::Pass,
    });
    let clock = NodeClock::default();
    let options = patient(&clock).with(|options| options.clock_proven_for = Duration::from_millis(200));
    let store = open_with(&sdk_config_via(&proxy, &server), options).await;
    let begin = || Arc::new(fresh(&TestRecord::fresh(), LEASE));
    // On a busy machine a reply may take longer than the proof counts.
    let running = loop {
        let change = begin();
        match store.commit(change.clone(), None).await {
            Ok(_) => break load(&store, change.id).await.expect("it is there").record,
            Err(error) => assert!(error.is_transient(), "{error:?}"),
        }
    };
    has_date.store(false, Ordering::SeqCst);
    while store.commit(begin(), None).await.is_ok() {}
    for _ in 0..3 {
        let error = store.commit(begin(), None).await.expect_err("nothing proves the clock right");
        assert!(error.is_transient() && error.is_unsent(), "{error:?}");
    }
    assert_eq!(store.clock_state(), ClockState::Unproven);
    let done = commit(&store, &finish_with(&running, b"done")).await;
    assert!(matches!(done, Commit::Done(_)), "a result is always stored: {done:?}");
    has_date.store(true, Ordering::SeqCst);
    while store.commit(begin(), None).await.is_err() {}
}

/// Returns an accepted request: due at once, without a lease.
fn accepted_request() -> Arc<Change> {
    let name = TestRecord::fresh();
    Arc::new(insert(&name, Draft { due_in: Some(Duration::ZERO), ..draft(&name, State::Pending) }))
}

/// Options with a large skew: a busy machine answers slowly, and a slow reply proves little.
fn patient(clock: &NodeClock) -> DynamoOptions {
    options(clock).with(|options| options.skew_max = Duration::from_secs(60))
}

/// A proxy whose replies have a `Date` that is this many seconds off.
fn proxy_with_date(server: &DynamoDb) -> (DynamoProxy, Arc<AtomicI64>) {
    let shift = Arc::new(AtomicI64::new(0));
    let of_proxy = shift.clone();
    (server.proxy(move |_| ProxyAction::date(of_proxy.load(Ordering::SeqCst))), shift)
}
