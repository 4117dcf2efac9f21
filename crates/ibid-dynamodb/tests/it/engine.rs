//! Two nodes with their own clocks, each a whole engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use ibid::outcome::{Begin, Outcome};
use ibid::{Ibid, Settings};
use ibid_core::fingerprint::RequestView;
use ibid_core::key::Key;
use ibid_core::machine::BeginRequest;
use ibid_core::policy::{InFlight, OnLapse, Policy};
use ibid_core::record::State;
use ibid_core::response::Response;
use ibid_core::scope::{Identity, Operation, Tenant};
use ibid_core::store::Store;
use ibid_dynamodb::{DynamoOptions, DynamoStore, NodeClock};
use ibid_testkit::dynamodb::{DynamoDb, ProxyAction};

use crate::fixture::{SECOND, SKEW_MAX, open, open_with, options, sdk_config, sdk_config_via};

#[tokio::test(flavor = "multi_thread")]
async fn a_fast_node_waits_for_the_lease_of_a_slow_one_and_then_runs() {
    let server = DynamoDb::shared();
    let (slow, fast) = (NodeClock::default(), NodeClock::default());
    slow.set_shift(-2 * SECOND);
    fast.set_shift(2 * SECOND);
    let owner = node(open(&server, &slow).await).await;
    let taker = node(open(&server, &fast).await).await;
    let Begin::Run(attempt) = owner.begin(ask(&owner, "key-1")).await.expect("it answers") else {
        panic!("it is new")
    };
    let id = attempt.record_id();
    // The owner dies without a word: it neither renews nor finishes.
    std::mem::forget(attempt);
    let due_at = taker.store().load(id).await.expect("it answers").expect("it is there").record.due_at;
    // Time passes in steps that do not look like a jump of the clock.
    let step = Duration::from_millis(500);
    let attempt = loop {
        match taker.begin(ask(&taker, "key-1")).await.expect("it answers") {
            Begin::Run(attempt) => break attempt,
            Begin::Skip(Outcome::InFlight { .. }) => {}
            other => panic!("{other:?}"),
        }
        let stored = taker.store().load(id).await.expect("it answers").expect("it is there").record;
        assert_eq!((stored.due_at, stored.attempt), (due_at, 1), "a duplicate leaves the lease alone");
        slow.advance(step);
        fast.advance(step);
    };
    let taken = taker.store().load(id).await.expect("it answers").expect("it is there").record;
    let (taken_at, due_at) = (taken.ran_at.expect("it runs"), due_at.expect("it was leased"));
    assert!(taken_at.since(due_at) >= SKEW_MAX, "the taker's clock may be ahead of the owner's by as much");
    assert!(matches!(attempt.finish(Response::json(201, &"once")).await, Outcome::Completed(_)));
    let replay = owner.begin(ask(&owner, "key-1")).await.expect("it answers");
    assert!(matches!(replay, Begin::Skip(Outcome::Completed(_))), "{replay:?}");
}

/// A machine was suspended, and the reply to its begin is the first to show it: nothing runs, and the key is free again.
#[tokio::test(flavor = "multi_thread")]
async fn a_begin_with_a_wrong_clock_runs_nothing_and_frees_its_key() {
    let server = DynamoDb::shared();
    let date = Arc::new(AtomicI64::new(0));
    let of_proxy = date.clone();
    let proxy = server.proxy(move |request| {
        if request.operation == "UpdateItem" && request.body.contains("key-2") {
            of_proxy.store(300, Ordering::SeqCst);
        }
        ProxyAction::date(of_proxy.load(Ordering::SeqCst))
    });
    let skew = |options: &mut DynamoOptions| options.skew_max = Duration::from_secs(60);
    let config = sdk_config_via(&proxy, &server);
    let woken = node(open_with(&config, options(&NodeClock::default()).with(skew)).await).await;
    let first = woken.begin(ask(&woken, "key-1")).await.expect("it answers");
    assert!(matches!(first, Begin::Run(_)), "{first:?}");
    let second = ask(&woken, "key-2");
    let id = second.id;
    woken.begin(second).await.expect_err("the clock is wrong");
    let config = sdk_config(&server);
    let other = open_with(&config, options(&NodeClock::default()).with(skew)).await;
    while other.load(id).await.expect("it answers").expect("it was written").record.state != State::Retryable
    {
    }
}

const LEASE: Duration = Duration::from_secs(2);

async fn node(store: DynamoStore) -> Ibid {
    let mut settings = Settings::default();
    settings.may_take_over_at_start = true;
    Ibid::start(Arc::new(store), settings).await.expect("it starts")
}

fn ask(ibid: &Ibid, key: &str) -> BeginRequest {
    let identity = Identity {
        tenant: Tenant::new("shop").expect("a good name"),
        operation: Operation { method: "POST".into(), path: "/pay".into() },
        key: Key::stored(key).expect("a good key"),
    };
    let policy = Policy::default().with(|policy| {
        policy.lease = LEASE;
        policy.on_lapse = OnLapse::Retry;
        policy.in_flight = InFlight::Conflict;
    });
    ibid.ask(identity, Arc::new(policy), Arc::new(Payment))
}

struct Payment;

impl RequestView for Payment {
    fn method(&self) -> &str {
        "POST"
    }
    fn path(&self) -> &str {
        "/pay"
    }
    fn query(&self) -> Option<&str> {
        None
    }
    fn header_lines(&self, _: &str, _: &mut dyn FnMut(&[u8])) {}
    fn body(&self) -> &[u8] {
        b"{}"
    }
}
