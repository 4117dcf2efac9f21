//! The bound on attempts: it refuses what would run, and nothing else.

use super::*;
use crate::request_fixture::ask;

async fn world_for(attempts_max: usize) -> NodeOnFaultyStore {
    let settings = Settings::default().with(|settings| {
        settings.attempts_max = attempts_max;
        settings.cache_ttl = Duration::ZERO;
    });
    world_with(Policy::default(), settings).await
}

#[tokio::test]
async fn attempts_that_live_at_once_are_bounded() {
    let world = world_for(2).await;
    let (first, second) = (world.run("a").await, world.run("b").await);
    let refused = world.ibid.begin(world.ask("c")).await.expect_err("no room");
    assert!(refused.is_overloaded(), "{refused}");
    let _ = first.finish(created_response()).await;
    let _ = world.run("c").await.finish(created_response()).await;
    drop(second);
}

#[tokio::test]
async fn stored_records_answer_while_there_is_no_room() {
    let world = world_for(2).await;
    let _ = world.run("done").await.finish(created_response()).await;
    let _ = world.run("unknown").await.unknown(ErrorCode::Broken).await;
    let _ = world.run("released").await.release(ErrorCode::NotSent).await;
    let _attempts = [world.run("running").await, world.run("other").await];
    assert!(matches!(world.begin("done").await, Begin::Skip(Outcome::Completed(_))));
    assert!(matches!(world.begin("running").await, Begin::Skip(Outcome::InFlight { .. })));
    assert!(matches!(world.begin("unknown").await, Begin::Skip(Outcome::Unknown { .. })));
    let identity = world.ask("done").identity;
    let other = world.ibid.ask((*identity).clone(), world.policy.clone(), Arc::new(Payment("other")));
    assert!(matches!(world.ibid.begin(other).await, Ok(Begin::Skip(Outcome::Mismatch))));
    for key in ["new", "released"] {
        let refused = world.ibid.begin(world.ask(key)).await.expect_err("no room");
        assert!(refused.is_overloaded(), "{key}: {refused}");
    }
    assert!(!world.ibid.is_breaker_open());
}

#[tokio::test]
async fn a_tenant_with_half_of_the_attempts_leaves_room_for_others() {
    let world = world_for(4).await;
    let begin = async |tenant, key| world.ibid.begin(ask(&world.ibid, tenant, key, Policy::default())).await;
    let _greedy = [begin("greedy", "a").await, begin("greedy", "b").await];
    assert!(begin("greedy", "c").await.is_err_and(|refused| refused.is_overloaded()));
    assert!(matches!(begin("other", "c").await, Ok(Begin::Run(_))));
}

#[tokio::test(start_paused = true)]
async fn an_ending_attempt_counts_once() {
    let world = world_for(3).await;
    let (attempt, uncertain) = (world.run("a").await, world.run("b").await);
    let commits_before = world.store.commits();
    world.store.set(StoreFault::Hangs);
    let ends = tokio::spawn(async move {
        let unknown = uncertain.unknown(ErrorCode::TimedOut);
        tokio::join!(attempt.finish(created_response()), unknown)
    });
    while world.store.commits() == commits_before {
        tokio::task::yield_now().await;
    }
    // A read decides while there is no room, and a write while there is.
    let third = tokio::spawn({
        let (ibid, ask) = (world.ibid.clone(), world.ask("c"));
        async move { ibid.begin(ask).await }
    });
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    world.store.set(StoreFault::None);
    assert!(matches!(third.await.expect("no panic"), Ok(Begin::Run(_))));
    let _ = ends.await.expect("no panic");
}

#[tokio::test]
async fn begins_at_the_same_moment_do_not_exceed_the_bound() {
    let world = world_for(4).await;
    world.store.set(StoreFault::Hangs);
    let mut begins = tokio::task::JoinSet::new();
    for n in 0..100 {
        let (ibid, ask) = (world.ibid.clone(), world.ask(&format!("k{n}")));
        begins.spawn(async move { ibid.begin(ask).await });
    }
    // Those that are refused end while the others wait for the store.
    for _ in 0..96 {
        let outcome = begins.join_next().await.expect("one of them").expect("no panic");
        assert!(outcome.as_ref().is_err_and(|refused| refused.is_overloaded()), "{outcome:?}");
    }
    assert_eq!(world.store.commits(), 4);
    world.store.set(StoreFault::None);
    let runs = begins.join_all().await;
    assert!(runs.iter().all(|begun| matches!(begun, Ok(Begin::Run(_)))) && runs.len() == 4, "{runs:?}");
    drop(runs);
    world.ibid.settled().await;
    assert!(matches!(world.begin("again").await, Begin::Run(_)), "their slots are free again");
}

#[tokio::test]
async fn duplicates_of_a_begin_on_its_way_take_no_slots() {
    let world = world_for(2).await;
    world.store.set(StoreFault::Hangs);
    let mut begins = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let (ibid, ask) = (world.ibid.clone(), world.ask("k"));
        begins.spawn(async move { ibid.begin(ask).await });
    }
    while world.store.commits() == 0 {
        tokio::task::yield_now().await;
    }
    world.store.set(StoreFault::None);
    let _other = world.run("other").await;
    let outcomes = begins.join_all().await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
}
