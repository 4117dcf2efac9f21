//! Refusals under load, and their `Retry-After`: the breaker, the queue of begins, and duplicates.

use ibid::store::sqlite::{SqliteOptions, SqliteStore};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::*;

/// Too short for a second try: one begin sends one change.
const ONE_TRY: Duration = Duration::from_millis(5);

async fn failing() -> NodeOnFaultyStore {
    let world =
        world_with(Policy::default(), Settings::default().with(|settings| settings.begin_timeout = ONE_TRY))
            .await;
    world.store.set(StoreFault::Down);
    for n in 0..5 {
        assert!(!world.ibid.is_breaker_open());
        assert!(world.ibid.begin(world.ask(&format!("down-{n}"))).await.is_err());
    }
    assert!(world.ibid.is_breaker_open());
    world
}

/// Begins `many` at once and returns how many ran, and the `Retry-After` of each that was refused.
async fn begin_many(world: &NodeOnFaultyStore, many: usize) -> (usize, Vec<Duration>) {
    let begins = (0..many).map(|n| world.ibid.begin(world.ask(&format!("many-{n}"))));
    let outcomes = futures_util::future::join_all(begins).await;
    let refused: Vec<_> = outcomes
        .iter()
        .filter_map(|outcome| outcome.as_ref().err())
        .map(|refused| refused.retry_after())
        .collect();
    (many - refused.len(), refused)
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_sends_one_probe_at_a_time() {
    let world = failing().await;
    let mut longest = Duration::from_secs(1);
    for _ in 0..5 {
        let before = world.store.commits();
        let started = Instant::now();
        let (begun, told) = begin_many(&world, 100).await;
        assert_eq!((begun, started.elapsed()), (0, Duration::ZERO), "at once");
        assert_eq!(world.store.commits(), before, "unasked");
        let next = told[0];
        assert!(told.iter().all(|told| *told == next && *told <= longest), "{told:?}");
        tokio::time::advance(next).await;
        let (begun, _) = begin_many(&world, 100).await;
        assert_eq!((begun, world.store.commits()), (0, before + 1), "one finds out for all");
        longest = (longest * 2).min(Duration::from_secs(8));
    }
    world.store.set(StoreFault::None);
    tokio::time::advance(longest).await;
    assert!(world.ibid.begin(world.ask("back")).await.is_ok());
    assert!(!world.ibid.is_breaker_open());
    assert_eq!(begin_many(&world, 100).await.0, 100);
}

#[tokio::test(start_paused = true)]
async fn a_probe_whose_reply_is_lost_does_not_close_the_breaker() {
    let world = failing().await;
    world.store.set(StoreFault::LosesReplies);
    tokio::time::advance(Duration::from_secs(1)).await;
    let before = world.store.commits();
    let refused = world.ibid.begin(world.ask("ambiguous")).await.expect_err("no reply");
    assert!(world.store.commits() > before, "it was sent");
    assert!(world.ibid.is_breaker_open() && refused.retry_after() > Duration::from_secs(1), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn begins_dropped_unsent_cost_the_store_nothing_more() {
    let world = world(Policy::default()).await;
    world.store.set(StoreFault::DropsBegins);
    let (begun, _) = begin_many(&world, 100).await;
    assert_eq!(begun, 0);
    world.ibid.settled().await;
    assert_eq!((world.store.commits(), world.store.loads()), (100, 0), "no write over what was never sent");
    assert!(!world.ibid.is_breaker_open(), "an overloaded store answers");
}

#[tokio::test]
async fn begins_queued_behind_a_stalled_write_are_not_written_over() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("ibid.db");
    let sqlite = Arc::new(SqliteStore::open(&path, SqliteOptions::default()).expect("it opens"));
    let store = FaultyStore::new(sqlite.clone());
    let settings = Settings::default().with(|settings| settings.begin_timeout = Duration::from_millis(20));
    let ibid = Ibid::start(store.clone(), settings).await.expect("it starts");
    let (_, hands) = Clock::manual(Timestamp::default());
    let world = NodeOnFaultyStore { ibid, store, hands, policy: Arc::new(Policy::default()) };
    let (stalled, is_stalled) = oneshot::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let stall = tokio::spawn(async move {
        let work = move |_: &mut rusqlite::Connection| {
            stalled.send(()).expect("the test waits");
            released.recv()
        };
        sqlite.run(work).await
    });
    is_stalled.await.expect("it runs");
    let (begun, _) = begin_many(&world, 50).await;
    assert_eq!(begun, 0);
    assert!(world.ibid.is_breaker_open(), "a store that moves nothing does not answer");
    release.send(()).expect("it waits");
    assert_eq!(stall.await.expect("no panic").expect("it is written"), Ok(()));
    world.ibid.settled().await;
    assert_eq!(world.store.commits(), 50, "no write over what was never sent");
    let browse = world.store.browse().expect("a store that can be browsed");
    let stored = browse.list(RecordFilter::default()).await.expect("a list").items;
    assert_eq!(stored.len(), 0, "{stored:?}");
}

#[tokio::test(start_paused = true)]
async fn the_breaker_gates_begins_only() {
    let world =
        world_with(Policy::default(), Settings::default().with(|settings| settings.begin_timeout = ONE_TRY))
            .await;
    let (finished, released) = (world.run("finished").await, world.run("released").await);
    world.store.set(StoreFault::Down);
    for n in 0..5 {
        assert!(world.ibid.begin(world.ask(&format!("down-{n}"))).await.is_err());
    }
    assert!(world.ibid.is_breaker_open());
    world.store.set(StoreFault::None);
    assert!(matches!(finished.finish(created_response()).await, Outcome::Completed(_)));
    assert!(matches!(released.release(ErrorCode::NotSent).await, Outcome::Released));
    assert!(world.ibid.is_breaker_open(), "no begin has probed the store yet");
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_run_time_capped_by_the_remaining_lease() {
    let world = world(Policy::default()).await;
    let attempt = world.run("slow").await;
    for (passes, told) in [(0, 1), (7, 7), (20, 27), (23, 10)] {
        world.hands.advance(Duration::from_secs(passes));
        tokio::time::advance(Duration::from_secs(passes)).await;
        // The same whether or not it waited before.
        let Begin::Skip(Outcome::InFlight { retry_in }) = world.begin("slow").await else {
            panic!("it runs")
        };
        assert_eq!(retry_in, Duration::from_secs(told), "{passes} s later");
        let waited = world.ibid.wait(world.ask("slow"), Duration::ZERO).await;
        assert!(matches!(waited, Ok(Outcome::InFlight { retry_in: again }) if again == retry_in));
    }
    let _ = attempt.finish(created_response()).await;
}
