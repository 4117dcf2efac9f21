//! The engine on the memory store: leases, batches, the cache and the chores, without HTTP.

mod attempt_slots;
mod background;
mod backpressure;
mod chores;
mod joined_begins;
mod locked_rows;
mod lost_replies;
mod read_deadlines;
mod readiness;
mod rejected_writes;
mod renewals;
mod unreadable_record;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ibid::attempt::Attempt;
use ibid::engine::StartError;
use ibid::identity::StoreIdentity;
use ibid::outcome::{Begin, Outcome};
use ibid::store::clock::{Clock, ClockSetter};
use ibid::store::memory::MemoryStore;
use ibid::upkeep::Retention;
use ibid::{Ibid, Settings, upkeep};
use ibid_core::change::StoredRecord;
use ibid_core::fingerprint::Secret;
use ibid_core::key::Key;
use ibid_core::machine::BeginRequest;
use ibid_core::policy::{OnLapse, Policy};
use ibid_core::record::{ErrorCode, State};
use ibid_core::response::Response;
use ibid_core::scope::{Identity, Operation, Tenant};
use ibid_core::store::{RecordFilter, Store};
use ibid_core::time::Timestamp;
use ibid_testkit::faults::{FaultyStore, StoreFault};
use metrics_exporter_prometheus::PrometheusBuilder;

use crate::request_fixture::{Payment, takes_over_at_start};

struct World {
    ibid: Ibid,
    store: Arc<FaultyStore>,
    hands: ClockSetter,
    policy: Arc<Policy>,
}

async fn world(policy: Policy) -> World {
    world_with(policy, takes_over_at_start()).await
}

async fn world_with(policy: Policy, settings: Settings) -> World {
    let (clock, hands) = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let store = FaultyStore::new(Arc::new(MemoryStore::new(clock)));
    let ibid = Ibid::start(store.clone(), settings).await.expect("it starts");
    World { ibid, store, hands, policy: Arc::new(policy) }
}

impl World {
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
async fn a_caller_dropped_during_begin_leaves_no_reservation() {
    let world = world(Policy::default()).await;
    world.store.set(StoreFault::Hangs);
    let begin = tokio::spawn({
        let (ibid, ask) = (world.ibid.clone(), world.ask("k"));
        async move { ibid.begin(ask).await }
    });
    while world.store.commits() == 0 {
        tokio::task::yield_now().await;
    }
    begin.abort();
    assert!(begin.await.is_err());
    world.store.set(StoreFault::None);
    loop {
        match world.begin("k").await {
            Begin::Run(attempt) => {
                let _ = attempt.finish(created_response()).await;
                break;
            }
            Begin::Skip(Outcome::InFlight { .. }) => tokio::task::yield_now().await,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(world.state().await, State::Completed);
}

#[tokio::test]
async fn a_caller_dropped_during_finish_still_stores_its_response() {
    let world = world(Policy::default()).await;
    let (attempt, begun) = (world.run("k").await, world.store.commits());
    world.store.set(StoreFault::Hangs);
    let finish = tokio::spawn(async move { attempt.finish(created_response()).await });
    while world.store.commits() == begun {
        tokio::task::yield_now().await;
    }
    finish.abort();
    assert!(finish.await.is_err());
    world.store.set(StoreFault::Down);
    while world.store.commits() == begun + 1 {
        tokio::task::yield_now().await;
    }
    world.store.set(StoreFault::None);
    world.ibid.settled().await;
    assert_eq!(world.state().await, State::Completed);
}

#[tokio::test]
async fn an_attempt_dropped_after_its_first_byte_is_unknown() {
    let world = world(Policy::default()).await;
    let mut attempt = world.run("k").await;
    attempt.ready().await.expect("a fresh lease");
    drop(attempt);
    world.ibid.settled().await;
    assert_eq!(world.state().await, State::Unknown);
}

#[tokio::test]
async fn an_attempt_dropped_without_a_word_is_unknown() {
    let world = world(Policy::default()).await;
    // Its caller may have done the work and forgotten to ask before.
    drop(world.run("k").await);
    world.ibid.settled().await;
    assert_eq!(world.state().await, State::Unknown);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_may_not_send_is_released_when_dropped() {
    let world = world(Policy::default()).await;
    let mut attempt = world.run("k").await;
    world.store.set(StoreFault::HangsRenewals);
    tokio::time::advance(world.policy.lease / 2).await;
    // The client leaves while the attempt asks.
    let asked = tokio::time::timeout(Duration::from_secs(1), attempt.ready()).await;
    assert!(asked.is_err(), "the store does not answer");
    drop(attempt);
    world.ibid.settled().await;
    assert_eq!(world.state().await, State::Retryable);
}

#[tokio::test(start_paused = true)]
async fn a_live_attempt_keeps_its_lease_until_max_run() {
    let policy = Policy::default().with(|policy| {
        policy.on_lapse = OnLapse::Retry;
        policy.max_run = Duration::from_secs(600);
    });
    let world = world(policy).await;
    let attempt = world.run("k").await;
    let renewal = tokio::spawn(attempt.keep_alive());
    for _ in 0..25 {
        world.hands.advance(Duration::from_secs(20));
        tokio::time::sleep(Duration::from_secs(20)).await;
        let record = world.only_record().await;
        assert!(!record.record.is_due(record.now), "renewed");
        assert!(matches!(world.begin("k").await, Begin::Skip(Outcome::InFlight { .. })));
        assert_eq!(upkeep::sweep_once(&world.ibid).await.unwrap(), 0);
    }
    let (so_far, started) = (Duration::from_secs(500), tokio::time::Instant::now());
    renewal.await.expect("it ends at max_run");
    assert!(so_far + started.elapsed() <= Duration::from_secs(600));
    tokio::time::sleep(Duration::from_secs(200)).await;
    world.hands.advance(started.elapsed());
    let taken = world.run("k").await;
    assert_eq!(taken.number(), 2);
    // The first attempt returns. It no longer owns the record, and learns that another response counts.
    assert!(matches!(attempt.finish(created_response()).await, Outcome::Superseded(_)));
    assert!(matches!(taken.finish(created_response()).await, Outcome::Completed(_)));
    let history = world
        .store
        .browse()
        .expect("a store that can be browsed")
        .history(world.only_record().await.record.id)
        .await
        .unwrap();
    let kinds: Vec<_> = history.iter().map(|line| line.what.name()).collect();
    assert_eq!(kinds, ["takeover", "late answer"]);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_past_half_its_lease_renews_before_its_first_byte() {
    let world = world(Policy::default()).await;
    let mut attempt = world.run("k").await;
    let before = world.only_record().await.record.due_at;
    world.hands.advance(Duration::from_secs(31));
    tokio::time::advance(Duration::from_secs(31)).await;
    attempt.ready().await.expect("renewed in time");
    assert!(world.only_record().await.record.due_at > before);
    let _ = attempt.release(ErrorCode::ClientGone).await;

    let mut late = world.run("k").await;
    tokio::time::advance(Duration::from_secs(61)).await;
    assert!(late.ready().await.is_err());
    assert!(matches!(late.release(ErrorCode::NotSent).await, Outcome::Released));
}

#[tokio::test(start_paused = true)]
async fn only_a_renewed_attempt_may_send_its_first_byte_late() {
    let world = world(Policy::default()).await;
    let mut attempt = world.run("k").await;
    let renewal = tokio::spawn(attempt.keep_alive());
    for _ in 0..10 {
        world.hands.advance(Duration::from_secs(20));
        tokio::time::sleep(Duration::from_secs(20)).await;
    }
    attempt.ready().await.expect("the lease was renewed all the time");
    let _ = attempt.release(ErrorCode::ClientGone).await;
    renewal.await.expect("it ends with the attempt");

    // Renewals that the store does not confirm do not extend the lease.
    let mut silent = world.run("k").await;
    let renewal = tokio::spawn(silent.keep_alive());
    world.store.set(StoreFault::Down);
    tokio::time::sleep(Duration::from_secs(61)).await;
    world.store.set(StoreFault::None);
    assert!(silent.ready().await.is_err());
    renewal.abort();
    drop(silent);
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
async fn a_finish_whose_caller_leaves_is_written_all_the_same() {
    let world = world(Policy::default()).await;
    let mut attempt = world.run("k").await;
    attempt.ready().await.expect("a fresh lease");
    world.store.set(StoreFault::Hangs);
    let before = world.store.commits();
    let finish = tokio::spawn(attempt.finish(created_response()));
    while world.store.commits() == before {
        tokio::task::yield_now().await;
    }
    finish.abort();
    assert!(finish.await.is_err());
    world.store.set(StoreFault::Down);
    tokio::task::yield_now().await;
    world.store.set(StoreFault::None);
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
async fn a_sweep_that_is_the_first_to_see_a_clock_jump_frees_nothing() {
    let world = world(Policy::default().with(|policy| policy.on_lapse = OnLapse::Retry)).await;
    let attempt = world.run("k").await;
    world.hands.advance(Duration::from_secs(3600));
    assert_eq!(upkeep::sweep_once(&world.ibid).await.unwrap(), 0);
    assert_eq!(world.state().await, State::InProgress);
    drop(attempt);
}

#[tokio::test]
async fn a_node_whose_secrets_were_taken_away_does_not_start() {
    let secret = Secret::new("an old secret of some length").expect("long enough");
    let world =
        world_with(Policy::default(), Settings::default().with(|settings| settings.secrets = vec![secret]))
            .await;
    let _ = world.run("k").await.finish(created_response()).await;
    let refused = Ibid::start(world.store.clone(), Settings::default()).await.err();
    assert!(matches!(refused, Some(StartError::MissingSecret(_))));
}

#[tokio::test]
async fn a_start_searches_records_only_for_a_secret_that_was_removed() {
    let secret = |text: &str| Secret::new(text).expect("long enough");
    let with = |secrets: Vec<Secret>| Settings::default().with(|settings| settings.secrets = secrets);
    let (old, new) = ("an old secret of some length", "a new secret of some length");
    let world = world_with(Policy::default(), with(vec![secret(old)])).await;
    let _ = world.run("k").await.finish(created_response()).await;
    for secrets in [vec![secret(old)], vec![secret(new), secret(old)]] {
        Ibid::start(world.store.clone(), with(secrets)).await.expect("it starts");
    }
    assert_eq!(world.store.secret_searches(), 0, "this reads the whole table");
    assert!(Ibid::start(world.store.clone(), with(vec![secret(new)])).await.is_err());
    assert_eq!(world.store.secret_searches(), 1);
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
async fn a_store_used_with_another_identity_is_refused() {
    let world = world(Policy::default()).await;
    let other = Settings::default().with(|settings| settings.identity = StoreIdentity::new("header:x"));
    let refused = Ibid::start(world.store.clone(), other).await.err();
    assert!(matches!(refused, Some(StartError::Identity(_))));
}

#[tokio::test]
async fn the_secret_is_made_once_and_every_node_of_the_store_uses_it() {
    let world = world(Policy::default()).await;
    let _ = world.run("k").await.finish(created_response()).await;
    let second = Ibid::start(world.store.clone(), Settings::default()).await.expect("it starts");
    let identity = world.ask("k").identity;
    let ask = second.ask((*identity).clone(), world.policy.clone(), Arc::new(Payment("b")));
    assert!(matches!(second.begin(ask).await, Ok(Begin::Skip(Outcome::Completed(_)))));
    let other = second.ask((*identity).clone(), world.policy.clone(), Arc::new(Payment("other")));
    assert!(matches!(second.begin(other).await, Ok(Begin::Skip(Outcome::Mismatch))));
}

#[tokio::test]
async fn a_node_without_a_secret_that_records_name_does_not_start() {
    let secret = |text: &str| Secret::new(text).expect("long enough");
    let (old, new) = ("an old secret of some length", "a new secret of some length");
    let with = |texts: &[&str]| {
        Settings::default().with(|settings| settings.secrets = texts.iter().map(|t| secret(t)).collect())
    };
    let world = world_with(Policy::default(), with(&[old])).await;
    let _ = world.run("k").await.finish(created_response()).await;
    let refused = Ibid::start(world.store.clone(), with(&[new])).await.err();
    assert!(matches!(refused, Some(StartError::MissingSecret(id)) if id == secret(old).id()));
    let both = Ibid::start(world.store.clone(), with(&[new, old])).await.expect("it starts");
    let ask = both.ask((*world.ask("k").identity).clone(), world.policy.clone(), Arc::new(Payment("b")));
    assert!(matches!(both.begin(ask).await, Ok(Begin::Skip(Outcome::Completed(_)))));
    world.hands.advance(Duration::from_secs(24 * 3600));
    upkeep::reap_once(&both, Retention::default()).await.expect("the store answers");
    assert!(Ibid::start(world.store.clone(), with(&[new])).await.is_ok(), "once its records have gone");
}

#[tokio::test]
async fn the_sweeper_applies_the_rule_of_the_records_begin() {
    let rules = [
        (OnLapse::Unknown, State::Unknown),
        (OnLapse::Retry, State::Retryable),
        (OnLapse::Resume, State::Retryable),
        (OnLapse::Fail, State::Completed),
    ];
    for (on_lapse, settled) in rules {
        let world = world(Policy::default().with(|policy| policy.on_lapse = on_lapse)).await;
        let attempt = world.run("k").await;
        assert_eq!(upkeep::sweep_once(&world.ibid).await.unwrap(), 0, "a live lease is left alone");
        // Small steps, which the clock watch does not take for a jump, would be too slow. A fresh node has seen no jump.
        world.hands.advance(Duration::from_secs(61));
        let sweeper = Ibid::start(world.store.clone(), takes_over_at_start()).await.expect("it starts");
        assert_eq!(upkeep::sweep_once(&sweeper).await.unwrap(), 1);
        assert_eq!(world.state().await, settled, "{on_lapse:?}");
        assert_eq!(upkeep::sweep_once(&sweeper).await.unwrap(), 0);
        drop(attempt);
    }
}

#[tokio::test]
async fn many_sweepers_at_once_settle_each_lapse_once() {
    let world = world(Policy::default().with(|policy| policy.on_lapse = OnLapse::Unknown)).await;
    let mut attempts = Vec::new();
    for n in 0..50 {
        attempts.push(world.run(&format!("k{n}")).await);
    }
    world.hands.advance(Duration::from_secs(61));
    let sweepers: Vec<Ibid> =
        (0..8).map(|_| Ibid::for_upkeep(world.store.clone(), takes_over_at_start())).collect();
    let sweeps = sweepers.iter().map(|sweeper| async move { upkeep::sweep_once(sweeper).await.unwrap() });
    let swept: u64 = futures_util::future::join_all(sweeps).await.into_iter().sum();
    assert_eq!(swept, 50);
    for stored in world
        .store
        .browse()
        .expect("a store that can be browsed")
        .list(RecordFilter::default())
        .await
        .unwrap()
        .items
    {
        assert_eq!((stored.record.state, stored.record.note.lapses), (State::Unknown, 1));
    }
    drop(attempts);
}

#[tokio::test(start_paused = true)]
async fn after_the_store_was_away_a_lapse_is_left_alone_for_one_lease() {
    let world = world(Policy::default().with(|policy| policy.on_lapse = OnLapse::Retry)).await;
    let attempt = world.run("k").await;
    // Both clocks advance together, so neither jumps.
    let pass = async |length| {
        world.hands.advance(length);
        tokio::time::sleep(length).await;
    };
    world.store.set(StoreFault::Down);
    pass(Duration::from_secs(30)).await;
    assert!(upkeep::sweep_once(&world.ibid).await.is_err());
    pass(Duration::from_secs(31)).await;
    world.store.set(StoreFault::None);
    assert_eq!(upkeep::sweep_once(&world.ibid).await.unwrap(), 0, "its holder could not renew");
    assert!(matches!(world.begin("k").await, Begin::Skip(Outcome::InFlight { .. })));
    pass(Duration::from_secs(59)).await;
    assert_eq!(upkeep::sweep_once(&world.ibid).await.unwrap(), 0);
    pass(Duration::from_secs(1)).await;
    assert_eq!(upkeep::sweep_once(&world.ibid).await.unwrap(), 1);
    assert_eq!(world.state().await, State::Retryable);
    drop(attempt);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_has_just_started_takes_over_after_one_lease() {
    let world = world(Policy::default().with(|policy| policy.on_lapse = OnLapse::Retry)).await;
    let attempt = world.run("k").await;
    // The owner is cut off: it runs, and can't renew.
    world.store.set(StoreFault::HangsRenewals);
    // The store fails over to a server whose clock is ahead of the old one by more than a lease. The next
    // node starts only now, so it can't see the jump.
    world.hands.advance(Duration::from_secs(3600));
    let store: Arc<dyn Store> = world.store.clone();
    let sweeper = Ibid::for_upkeep(store.clone(), Settings::default());
    let node = Ibid::start(store, Settings::default()).await.expect("it starts");
    let begin = async || node.begin(world.ask("k")).await.expect("the store answers");
    let pass = async |length| {
        world.hands.advance(length);
        tokio::time::sleep(length).await;
    };
    let lease = world.policy.lease;
    for wait in [Duration::ZERO, lease - Duration::from_secs(1)] {
        pass(wait).await;
        assert!(matches!(begin().await, Begin::Skip(Outcome::InFlight { .. })));
        let swept = upkeep::sweep_with_progress(&sweeper, |_| {}).await.expect("the store answers");
        assert_eq!((swept.settled, swept.held_back), (0, Some(lease)));
    }
    // In a whole lease the owner neither renewed nor ended its attempt.
    pass(Duration::from_secs(1)).await;
    assert!(matches!(begin().await, Begin::Run(_)));
    drop(attempt);
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

#[tokio::test]
async fn after_a_clock_jump_no_lapsed_request_runs_again() {
    let world = world(Policy::default().with(|policy| policy.on_lapse = OnLapse::Retry)).await;
    let attempt = world.run("k").await;
    world.hands.advance(Duration::from_secs(3600));
    // The first look shows the jump. From then on the lapse may not be real.
    assert!(matches!(world.begin("other").await, Begin::Run(_)));
    assert!(matches!(world.begin("k").await, Begin::Skip(Outcome::InFlight { .. })));
    assert_eq!(upkeep::sweep_once(&world.ibid).await.unwrap(), 0);
    assert_eq!(world.store.due(State::InProgress, None, 10).await.unwrap().items.len(), 1);
    assert!(matches!(attempt.finish(created_response()).await, Outcome::Completed(_)));
}

#[tokio::test]
async fn an_overlong_lease_after_a_clock_step_is_corrected() {
    let world = world(Policy::default()).await;
    let attempt = world.run("k").await;
    let start = world.only_record().await.now;
    world.hands.set(Timestamp::from_micros(start.as_micros() - 3_600_000_000));
    assert!(matches!(world.begin("k").await, Begin::Skip(Outcome::InFlight { .. })));
    loop {
        let stored = world.only_record().await;
        if stored.record.due_at.expect("a lease").since(stored.now) <= Duration::from_secs(60) {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert!(matches!(attempt.finish(created_response()).await, Outcome::Completed(_)));
}

#[tokio::test]
async fn every_lapse_is_counted_once() {
    // A recorder for this thread only, on which all tasks of this test run.
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let _counts = metrics::set_default_local_recorder(&recorder);
    let counted = || {
        let page = page.render();
        let line = page.lines().find_map(|line| line.strip_prefix("ibid_zombie_keys_total "));
        line.map_or(0, |count| count.parse::<u64>().expect("a counter"))
    };
    let mut lapses = 0;
    for on_lapse in [OnLapse::Unknown, OnLapse::Retry, OnLapse::Fail] {
        let world = world(Policy::default().with(|policy| policy.on_lapse = on_lapse)).await;
        for (key, by_request) in [("request", true), ("sweeper", false)] {
            // Its process is gone: nothing renews or ends it.
            std::mem::forget(world.run(key).await);
            world.hands.advance(world.policy.lease);
            assert_eq!(counted(), lapses, "{on_lapse:?}: not noticed yet");
            lapses += 1;
            // A node that has seen no clock jump.
            let node = Ibid::start(world.store.clone(), takes_over_at_start()).await.expect("it starts");
            if by_request {
                let outcome = node.begin(world.ask(key)).await.expect("the store answers");
                assert!(
                    !matches!(outcome, Begin::Skip(Outcome::InFlight { .. })),
                    "{on_lapse:?}: {outcome:?}"
                );
                assert_eq!(counted(), lapses, "{on_lapse:?}: by the request");
                if let Begin::Run(attempt) = outcome {
                    let _ = attempt.finish(created_response()).await;
                }
            }
            upkeep::sweep_once(&node).await.expect("the store answers");
            assert_eq!(counted(), lapses, "{on_lapse:?}: once, by {key}");
            let _ = node.begin(world.ask(key)).await.expect("the store answers");
            assert_eq!(counted(), lapses, "{on_lapse:?}: it is not counted again");
            node.settled().await;
        }
    }
}
