//! Several nodes on one table.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;
use futures_util::future::join_all;
use ibid_core::change::{Change, Commit, Draft, Expect, HistoryKind};
use ibid_core::policy::Policy;
use ibid_core::reap::ReapTarget;
use ibid_core::record::{Record, State};
use ibid_core::scope::RecordId;
use ibid_core::store::{BrowseStore, RecordFilter, RenewOutcome, Store};
use ibid_dynamodb::{NodeClock, Shards};
use ibid_testkit::contract::{
    TestRecord, commit, commit_all, draft, finish_with, fresh, insert, put, replace, take_over, telling,
};
use ibid_testkit::dynamodb::{DynamoDb, ProxyAction};

use crate::fixture::{SKEW_MAX, open, open_via, open_with, options, sdk_config, sdk_config_via};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_begins_on_many_nodes_one_wins() {
    let server = DynamoDb::shared();
    let mut nodes = Vec::new();
    for _ in 0..4 {
        nodes.push(open(&server, &NodeClock::default()).await);
    }
    for _ in 0..2 {
        let name = TestRecord::fresh();
        let begins: Vec<_> = (0..40).map(|_| fresh(&name, Duration::from_secs(60))).collect();
        let fates =
            begins.iter().enumerate().map(|(index, begin)| commit(&nodes[index % nodes.len()], begin));
        let fates = join_all(fates).await;
        assert_eq!(fates.iter().filter(|fate| matches!(fate, Commit::Done(_))).count(), 1);
        let stored = nodes[0].load(name.id).await.expect("it answers").expect("one won");
        let winner = fates.iter().position(|fate| matches!(fate, Commit::Done(_))).expect("one won");
        assert!(begins[winner].is_stored_as(&stored), "the reported winner is the stored one");
    }
}

/// T1 has the slow clock and runs; T2 has the fast one. T1 stops counting on its lease after `LEASE`, so T2 must not take over
/// before that time has really passed.
#[tokio::test(flavor = "multi_thread")]
async fn a_fast_node_takes_over_no_live_lease_of_a_slow_one() {
    const LEASE: i64 = 10;
    let server = DynamoDb::shared();
    // The clocks differ by less than `SKEW_MAX`, which is 5 s.
    for (owner_shift, taker_shift, taken_at) in [(-2, 2, 11), (2, -2, 19), (0, 0, 15)] {
        let start = NodeClock::default().now();
        let (owner_clock, taker_clock) = (NodeClock::standing_at(start), NodeClock::standing_at(start));
        let owner = open(&server, &owner_clock).await;
        let taker = open(&server, &taker_clock).await;
        // Time passes for both nodes alike.
        let pass = |secs: i64| {
            owner_clock.set_shift((owner_shift + secs) * 1_000_000);
            taker_clock.set_shift((taker_shift + secs) * 1_000_000);
        };
        pass(0);
        let lease = Duration::from_secs(LEASE.unsigned_abs());
        let running = put(&owner, &fresh(&TestRecord::fresh(), lease)).await.record;
        let next = Draft { due_in: Some(lease), ..draft(&name_of(&running), State::InProgress) };
        pass(taken_at - 1);
        assert!(taken_at > LEASE, "the lease has really passed");
        let early = commit(&taker, &take_over(&running, next.clone())).await;
        assert!(
            matches!(early, Commit::Conflict(Some(_))),
            "{owner_shift} {taker_shift}: taken over too early"
        );
        assert!(due(&taker).await.is_empty(), "{owner_shift} {taker_shift}: due too early");
        let read = taker.load(running.id).await.expect("it answers").expect("it is there");
        assert!(!read.record.is_due(read.now), "and no rule takes it for lapsed");
        pass(taken_at);
        assert_eq!(due(&taker).await, [running.id]);
        assert!(matches!(commit(&taker, &take_over(&running, next)).await, Commit::Done(_)));
        let renewed = owner.renew(vec![(running.id, running.version)]).await.expect("it answers");
        assert_eq!(renewed, [RenewOutcome::Lost], "the owner learns that it lost the record");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_reaped_before_its_time_on_every_node() {
    let server = DynamoDb::shared();
    let start = NodeClock::default().now();
    let (writer_clock, reaper_clock) = (NodeClock::standing_at(start), NodeClock::standing_at(start));
    let writer = open(&server, &writer_clock).await;
    let reaper = open(&server, &reaper_clock).await;
    let name = TestRecord::fresh();
    let minute = Duration::from_secs(60);
    put(&writer, &insert(&name, Draft { purge_in: Some(minute), ..draft(&name, State::Completed) })).await;
    let removed = async || {
        let step = reaper.reap(ReapTarget::Records, None, 10).await;
        step.expect("it answers").removed
    };
    reaper_clock.advance(minute + SKEW_MAX - Duration::from_secs(1));
    assert_eq!(removed().await, 0);
    reaper_clock.advance(Duration::from_secs(1));
    assert_eq!(removed().await, 1);
}

/// The service returns the stored item with a failed condition; DynamoDB Local does so for transactions only, and the
/// proxy adds it to others.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_change_needs_no_read_if_the_item_is_returned() {
    let server = DynamoDb::shared();
    let (reads, adds_item) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let (counter, adds, last_read) = (reads.clone(), adds_item.clone(), Arc::new(Mutex::default()));
    let proxy = server.proxy(move |request| {
        let last_read: Arc<Mutex<String>> = last_read.clone();
        match request.operation.as_str() {
            "GetItem" => {
                counter.fetch_add(1, Ordering::SeqCst);
                ProxyAction::edit(move |reply| {
                    last_read.lock().expect("no panic").clone_from(&reply);
                    reply
                })
            }
            "UpdateItem" if adds.load(Ordering::SeqCst) => ProxyAction::edit(move |reply| {
                // The reply to a read is `{"Item":{…}}`.
                let read = last_read.lock().expect("no panic").clone();
                let item = read.strip_suffix('}').expect("an object").to_owned();
                reply.strip_prefix('{').map(|rest| format!("{item},{rest}")).expect("an object")
            }),
            _ => ProxyAction::Pass,
        }
    });
    let store = open_via(&proxy, &server, &NodeClock::default()).await;
    let name = TestRecord::fresh();
    let first = put(&store, &insert(&name, draft(&name, State::InProgress))).await.record;
    let done = put(&store, &replace(&first, draft(&name, State::Completed))).await.record;
    let late = || replace(&first, draft(&name, State::Unknown));
    let refuse = async |change: &Change| {
        reads.store(0, Ordering::SeqCst);
        let Commit::Conflict(Some(stored)) = commit(&store, change).await else { panic!("too late") };
        assert_eq!(stored.record, done);
        reads.load(Ordering::SeqCst)
    };
    let transaction = telling(late(), HistoryKind::Unknown, "late");
    assert_eq!(refuse(&transaction).await, 0, "the item came with the refusal of a transaction");
    assert_eq!(refuse(&late()).await, 1, "otherwise it is read");
    adds_item.store(true, Ordering::SeqCst);
    assert_eq!(refuse(&late()).await, 0, "the item came with the refusal");
}

/// An index is behind: it still has entries of records that were renewed, finished or begun again since.
#[tokio::test(flavor = "multi_thread")]
async fn an_entry_of_an_index_is_never_proof() {
    let server = DynamoDb::shared();
    let (is_behind, earlier) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(HashMap::new())));
    let behind = is_behind.clone();
    let proxy = server.proxy(move |request| {
        // The shard is what tells the queries of one index apart.
        let shard = request.body.split(r#"":h":{"S":""#).nth(1).and_then(|rest| rest.split('"').next());
        let Some(shard) = shard.map(str::to_owned) else { return ProxyAction::Pass };
        let (earlier, is_behind): (Arc<Mutex<HashMap<String, String>>>, _) =
            (earlier.clone(), behind.load(Ordering::SeqCst));
        ProxyAction::edit(move |reply| {
            let mut earlier = earlier.lock().expect("no panic");
            if is_behind {
                return earlier.get(&shard).cloned().unwrap_or(reply);
            }
            earlier.insert(shard.clone(), reply.clone());
            reply
        })
    });
    let clock = NodeClock::default();
    let store = open_via(&proxy, &server, &clock).await;
    let names = [(); 3].map(|()| TestRecord::fresh());
    let lease = Duration::from_secs(60);
    let policy = Arc::new(Policy::default().with(|policy| policy.lease = lease));
    let expiring = Draft {
        policy: policy.clone(),
        expires_in: Some(lease),
        purge_in: Some(lease),
        ..draft(&names[2], State::Completed)
    };
    let renewed = put(&store, &fresh(&names[0], lease)).await.record;
    let ended = put(&store, &fresh(&names[1], lease)).await.record;
    let expired = put(&store, &insert(&names[2], expiring)).await.record;
    clock.advance(lease + SKEW_MAX);
    assert_eq!(due(&store).await.len(), 2);
    let preview = store.count_reapable(ReapTarget::Records).await.expect("it answers");
    assert_eq!(preview.remove, 1);

    is_behind.store(true, Ordering::SeqCst);
    let renewal = store.renew(vec![(renewed.id, renewed.version)]).await.expect("it answers");
    assert!(matches!(renewal[..], [RenewOutcome::Until(_)]), "{renewal:?}");
    assert!(matches!(commit(&store, &finish_with(&ended, b"done")).await, Commit::Done(_)));
    let mut next = insert(&names[2], Draft { policy, ..draft(&names[2], State::InProgress) });
    next.expect = Expect::Version(expired.version);
    assert!(matches!(commit(&store, &next).await, Commit::Done(_)));
    assert!(due(&store).await.is_empty(), "the records say that they are not due");
    let step = store.reap(ReapTarget::Records, None, 10).await.expect("it answers");
    assert_eq!((step.removed, step.stripped), (0, 0), "and not to be removed");
    assert!(store.load(names[2].id).await.expect("it answers").is_some());
}

/// T1 renews, and its request is held up on its way; T1 renews again, and that arrives. Then the first arrives.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_arrives_late_shortens_no_lease() {
    let server = DynamoDb::shared();
    let (holds, arrived) = (Arc::new(AtomicBool::new(false)), Arc::new(Barrier::new(2)));
    let (hold, release) = (holds.clone(), arrived.clone());
    let proxy = server.proxy(move |request| {
        if request.operation == "UpdateItem" && hold.swap(false, Ordering::SeqCst) {
            // It has arrived here, and continues when the test says so.
            release.wait();
            release.wait();
        }
        ProxyAction::Pass
    });
    let clock = NodeClock::default();
    let store = Arc::new(open_via(&proxy, &server, &clock).await);
    let running = put(&*store, &fresh(&TestRecord::fresh(), Duration::from_secs(60))).await.record;
    let renew = || {
        let (store, lease) = (store.clone(), (running.id, running.version));
        async move { store.renew(vec![lease]).await.expect("it answers") }
    };
    holds.store(true, Ordering::SeqCst);
    let late = tokio::spawn(renew());
    tokio::task::block_in_place(|| arrived.wait());
    clock.advance(Duration::from_secs(20));
    let in_time = renew().await;
    tokio::task::block_in_place(|| arrived.wait());
    assert_eq!(late.await.expect("it ends"), in_time, "the lease lasts longer than it asked for");
    let stored = store.load(running.id).await.expect("it answers").expect("it is there").record;
    assert_eq!([RenewOutcome::Until(stored.due_at.expect("it is leased"))], in_time[..]);
}

/// A node with a larger `skew_max` starts while another runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_node_judges_by_a_difference_that_was_raised() {
    let server = DynamoDb::shared();
    let valid_for = Duration::from_millis(50);
    let start = NodeClock::default().now();
    let clocks = [(); 2].map(|()| NodeClock::standing_at(start));
    let options = |clock: &NodeClock, skew_max: Duration| {
        options(clock).with(|options| (options.skew_max, options.skew_valid_for) = (skew_max, valid_for))
    };
    let running = open_with(&sdk_config(&server), options(&clocks[0], SKEW_MAX)).await;
    let began_at = Instant::now();
    let raised = open_with(&sdk_config(&server), options(&clocks[1], 4 * SKEW_MAX)).await;
    assert!(began_at.elapsed() >= 2 * valid_for, "it waits until every node knows");
    let lease = Duration::from_secs(60);
    let leased = put(&raised, &fresh(&TestRecord::fresh(), lease)).await.record;
    let next = || {
        let draft = Draft { due_in: Some(lease), ..draft(&name_of(&leased), State::InProgress) };
        take_over(&leased, draft)
    };
    // The new node's clock is slower than the old one's by more than the old difference.
    clocks[0].advance(lease + 3 * SKEW_MAX);
    assert!(due(&running).await.is_empty(), "due too early");
    assert!(matches!(commit(&running, &next()).await, Commit::Conflict(Some(_))), "taken over too early");
    assert_eq!(running.facts().clock.skew_max(), 4 * SKEW_MAX);
    clocks[0].advance(SKEW_MAX);
    assert!(matches!(commit(&running, &next()).await, Commit::Done(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_accepted_request_is_due_at_once_and_costs_few_looks() {
    let server = DynamoDb::shared();
    let queries = Arc::new(AtomicU32::new(0));
    let counter = queries.clone();
    let proxy = server.proxy(move |request| {
        counter.fetch_add(u32::from(request.operation == "Query"), Ordering::SeqCst);
        ProxyAction::Pass
    });
    let all_shards = options(&NodeClock::default()).with(|options| options.shards = None);
    let store = open_with(&sdk_config_via(&proxy, &server), all_shards).await;
    let name = TestRecord::fresh();
    let accepted = insert(&name, Draft { due_in: Some(Duration::ZERO), ..draft(&name, State::Pending) });
    assert!(matches!(commit(&store, &accepted).await, Commit::Done(_)));
    queries.store(0, Ordering::SeqCst);
    let records = store.due(State::Pending, None, 10).await.expect("it answers").items;
    assert_eq!(records.len(), 1, "no clock has to move");
    assert!(records[0].record.is_due(records[0].now), "every node may claim it");
    assert_eq!(
        queries.load(Ordering::SeqCst),
        16,
        "a node looks once a second, and each shard costs a query"
    );
}

/// A page of an order has a piece of every shard, and ends where one of them does.
#[tokio::test(flavor = "multi_thread")]
async fn pages_of_many_shards_are_whole_and_in_order() {
    let server = DynamoDb::shared();
    let clock = NodeClock::default();
    let shards = options(&clock).with(|options| options.shards = Shards::new(8));
    let store = open_with(&sdk_config(&server), shards).await;
    let lease = Duration::from_secs(1);
    let begins: Vec<Change> = (0..60).map(|_| fresh(&TestRecord::fresh(), lease)).collect();
    commit_all(&store, begins.clone()).await;
    clock.advance(lease + SKEW_MAX);
    let (mut dues, mut after) = (Vec::new(), None);
    loop {
        let page = store.due(State::InProgress, after, 7).await.expect("it answers");
        assert!(page.items.len() <= 7);
        dues.extend(page.items.into_iter().map(|stored| (stored.record.due_at, stored.record.id)));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert!(dues.is_sorted(), "longest due first");
    let mut ids: Vec<RecordId> = dues.into_iter().map(|(_, id)| id).collect();
    ids.sort_unstable();
    let mut all: Vec<RecordId> = begins.iter().map(|begin| begin.id).collect();
    all.sort_unstable();
    assert_eq!(ids, all, "each once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_passes_over_a_record_that_it_cannot_read() {
    let server = DynamoDb::shared();
    let store = open(&server, &NodeClock::default()).await;
    let names = [(); 2].map(|()| TestRecord::fresh());
    for name in &names {
        put(&store, &fresh(name, Duration::from_secs(60))).await;
    }
    let client = aws_sdk_dynamodb::Client::new(&sdk_config(&server));
    let key = HashMap::from([
        ("i".to_owned(), AttributeValue::B(Blob::new(names[0].id.as_bytes()))),
        ("k".to_owned(), AttributeValue::S("r".to_owned())),
    ]);
    let update = client.update_item().table_name("ibid").set_key(Some(key)).update_expression("SET s = :s");
    let update = update.expression_attribute_values(":s", AttributeValue::N("99".to_owned()));
    update.send().await.expect("a newer version writes a state that this one does not know");
    let page = store.list(RecordFilter::default()).await.expect("it answers");
    let listed: Vec<RecordId> = page.items.iter().map(|stored| stored.record.id).collect();
    assert_eq!(listed, [names[1].id]);
}

async fn due(store: &dyn Store) -> Vec<RecordId> {
    let page = store.due(State::InProgress, None, 10).await.expect("it answers");
    page.items.iter().map(|stored| stored.record.id).collect()
}

fn name_of(record: &Record) -> TestRecord {
    TestRecord { id: record.id, identity: record.identity.clone() }
}
