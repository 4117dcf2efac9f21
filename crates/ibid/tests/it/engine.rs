//! The engine on the memory store: leases, batches, the cache and the chores, without HTTP.

mod attempt_slots;
mod background;
mod backpressure;
mod chores;
mod dropped_callers;
mod evidence;
mod joined_begins;
mod lapses;
mod locked_rows;
mod lost_replies;
mod read_deadlines;
mod readiness;
mod rejected_writes;
mod renewals;
mod start_checks;
mod unreadable_record;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ibid::attempt::Attempt;
use ibid::outcome::{Begin, Outcome};
use ibid::store::clock::{Clock, ClockSetter};
use ibid::store::memory::MemoryStore;
use ibid::upkeep::Retention;
use ibid::{Ibid, Settings, upkeep};
use ibid_core::change::StoredRecord;
use ibid_core::key::Key;
use ibid_core::machine::BeginRequest;
use ibid_core::policy::{OnLapse, Policy};
use ibid_core::record::{ErrorCode, State};
use ibid_core::response::Response;
use ibid_core::scope::{Identity, Operation, Tenant};
use ibid_core::store::{RecordFilter, Store};
use ibid_core::time::Timestamp;
use ibid_testkit::faults::{FaultyStore, StoreFault};

use crate::request_fixture::{Payment, takes_over_at_start};

/// A node on a store in memory that the test can make fail.
struct NodeOnFaultyStore {
    ibid: Ibid,
    store: Arc<FaultyStore>,
    hands: ClockSetter,
    policy: Arc<Policy>,
}

async fn world(policy: Policy) -> NodeOnFaultyStore {
    world_with(policy, takes_over_at_start()).await
}

async fn world_with(policy: Policy, settings: Settings) -> NodeOnFaultyStore {
    let (clock, hands) = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let store = FaultyStore::new(Arc::new(MemoryStore::new(clock)));
    let ibid = Ibid::start(store.clone(), settings).await.expect("it starts");
    NodeOnFaultyStore { ibid, store, hands, policy: Arc::new(policy) }
}

impl NodeOnFaultyStore {
    fn ask(&self, key: &str) -> BeginRequest {
        let identity = Identity {
            tenant: Tenant::only(),
            operation: Operation { method: "POST".into(), path: "/pay".into() },
            key: Key::stored(key).expect("a good key"),
        };
        self.ibid.ask(identity, self.policy.clone(), Arc::new(Payment("b")))
    }

    async fn begin(&self, key: &str) -> Begin {
        self.ibid.begin(self.ask(key)).await.expect("the store answers")
    }

    async fn run(&self, key: &str) -> Attempt {
        match self.begin(key).await {
            Begin::Run(attempt) => *attempt,
            other => panic!("not to be run: {other:?}"),
        }
    }

    async fn only_record(&self) -> StoredRecord {
        let mut all = self
            .store
            .browse()
            .expect("a store that can be browsed")
            .list(RecordFilter::default())
            .await
            .expect("a list")
            .items;
        assert_eq!(all.len(), 1, "one record");
        all.remove(0)
    }

    async fn state(&self) -> State {
        self.only_record().await.record.state
    }
}

fn created_response() -> Response {
    Response { status: 201, headers: vec![], body: Bytes::from_static(b"done"), trailers: vec![] }
}

#[tokio::test]
async fn a_completed_record_is_cached_for_cache_ttl_at_most() {
    let settings = || Settings::default().with(|settings| settings.begin_timeout = Duration::from_millis(20));
    let cached = world_with(Policy::default(), settings()).await;
    let _ = cached.run("k").await.finish(created_response()).await;
    cached.store.set(StoreFault::Down);
    assert!(matches!(cached.begin("k").await, Begin::Skip(Outcome::Completed(_))));

    let uncached =
        world_with(Policy::default(), settings().with(|settings| settings.cache_ttl = Duration::ZERO)).await;
    let _ = uncached.run("k").await.finish(created_response()).await;
    uncached.store.set(StoreFault::Down);
    assert!(uncached.ibid.begin(uncached.ask("k")).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_cached_record_is_read_again_after_cache_ttl() {
    let world = world(Policy::default()).await;
    let _ = world.run("k").await.finish(created_response()).await;
    world.store.set(StoreFault::Down);
    let ttl = Settings::default().cache_ttl;
    tokio::time::advance(ttl - Duration::from_millis(1)).await;
    assert!(matches!(world.begin("k").await, Begin::Skip(Outcome::Completed(_))));
    tokio::time::advance(Duration::from_millis(1)).await;
    assert!(world.ibid.begin(world.ask("k")).await.is_err(), "the store is asked, and it is down");
}

#[tokio::test]
async fn one_ask_begun_twice_at_once_runs_once() {
    let world = world(Policy::default()).await;
    let ask = world.ask("k");
    let (a, b) = tokio::join!(world.ibid.begin(ask.clone()), world.ibid.begin(ask));
    let runs = [&a, &b].iter().filter(|begun| matches!(begun, Ok(Begin::Run(_)))).count();
    assert_eq!(runs, 1, "{a:?} / {b:?}");
}

#[tokio::test]
async fn a_begin_repeated_after_a_refusal_keeps_its_reservation() {
    let settings = Settings::default().with(|settings| settings.begin_timeout = Duration::from_millis(30));
    let world = world_with(Policy::default(), settings).await;
    let ask = world.ask("k");
    world.store.set(StoreFault::Hangs);
    assert!(world.ibid.begin(ask.clone()).await.is_err());
    world.store.set(StoreFault::None);
    let attempt = loop {
        match world.ibid.begin(ask.clone()).await {
            Ok(Begin::Run(attempt)) => break attempt,
            Ok(Begin::Skip(Outcome::InFlight { .. })) | Err(_) => tokio::task::yield_now().await,
            other => panic!("{other:?}"),
        }
    };
    // The release of the first begin finds a record that it does not own, and leaves it alone.
    assert!(matches!(world.begin("k").await, Begin::Skip(Outcome::InFlight { .. })));
    let _ = attempt.finish(created_response()).await;
    world.ibid.settled().await;
    assert_eq!(world.state().await, State::Completed);
}

#[tokio::test]
async fn a_superseded_finish_gets_the_stored_response() {
    let world = world(Policy::default().with(|policy| policy.on_lapse = OnLapse::Retry)).await;
    let first = world.run("k").await;
    world.hands.advance(Duration::from_secs(61));
    let other = Ibid::start(world.store.clone(), takes_over_at_start()).await.expect("it starts");
    let ask = other.ask((*world.ask("k").identity).clone(), world.policy.clone(), Arc::new(Payment("b")));
    let Ok(Begin::Run(second)) = other.begin(ask).await else { panic!("a takeover") };
    assert!(matches!(second.finish(created_response()).await, Outcome::Completed(_)));
    let finished = first.finish(Response { status: 200, ..created_response() }).await;
    let Outcome::Superseded(begun) = finished else { panic!("{finished:?}") };
    assert!(matches!(&*begun, Outcome::Completed(kept) if kept.response.status == 201));
    assert!(world.only_record().await.record.flags.dead_letter, "two responses need an operator");
}

#[tokio::test]
async fn a_shutdown_waits_for_begins_under_way() {
    let world = world(Policy::default()).await;
    world.store.set(StoreFault::Hangs);
    let begin = tokio::spawn({
        let (ibid, ask) = (world.ibid.clone(), world.ask("k"));
        async move { ibid.begin(ask).await.map(drop) }
    });
    while world.store.commits() == 0 {
        tokio::task::yield_now().await;
    }
    let mut settled = Box::pin(world.ibid.settled());
    let done = std::future::poll_fn(|cx| std::task::Poll::Ready(settled.as_mut().poll(cx).is_ready())).await;
    assert!(!done, "a begin is in flight");
    world.store.set(StoreFault::None);
    settled.await;
    begin.await.unwrap().expect("the store answers");
}

#[tokio::test]
async fn the_reaper_removes_what_is_past_its_time_and_nothing_else() {
    let world = world(Policy::default()).await;
    let _ = world.run("done").await.finish(created_response()).await;
    let running = world.run("running").await;
    let (_, _late) = world.run("unknown").await.unknown(ErrorCode::Broken).await;
    world.hands.advance(Duration::from_secs(24 * 3600 - 1));
    assert_eq!(upkeep::reap_once(&world.ibid, Retention::default()).await.unwrap().removed, 0);
    world.hands.advance(Duration::from_secs(1));
    assert_eq!(upkeep::reap_once(&world.ibid, Retention::default()).await.unwrap().removed, 1);
    let left = world
        .store
        .browse()
        .expect("a store that can be browsed")
        .list(RecordFilter::default())
        .await
        .unwrap()
        .items;
    let mut keys: Vec<_> = left.iter().map(|stored| stored.record.identity.key.as_str()).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["running", "unknown"]);
    drop(running);
}
