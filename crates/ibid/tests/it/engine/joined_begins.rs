//! Begins that arrive while another begin of the same key is on its way: they wait for its result and send nothing.

use tokio::task::JoinSet;

use super::*;

type Begins = JoinSet<Result<Begin, ibid::engine::UnavailableError>>;

/// Starts `many` begins of one key on a store that hangs, and returns once all of them wait.
async fn start_begins(world: &NodeOnFaultyStore, many: usize) -> Begins {
    world.store.set(StoreFault::Hangs);
    let mut begins = JoinSet::new();
    for _ in 0..many {
        let (ibid, ask) = (world.ibid.clone(), world.ask("k"));
        begins.spawn(async move { ibid.begin(ask).await });
    }
    while world.store.commits() == 0 {
        tokio::task::yield_now().await;
    }
    // Each begin is polled once in this time: the runtime of a test has one thread.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    begins
}

/// Counts begins that run, that found the key in use, and that were refused. Attempts are returned.
async fn outcomes(begins: Begins) -> (Vec<Attempt>, usize, usize) {
    let (mut runs, mut in_use, mut refused) = (Vec::new(), 0, 0);
    for begun in begins.join_all().await {
        match begun {
            Ok(Begin::Run(attempt)) => runs.push(*attempt),
            Ok(Begin::Skip(Outcome::InFlight { .. })) => in_use += 1,
            Ok(other) => panic!("{other:?}"),
            Err(_) => refused += 1,
        }
    }
    (runs, in_use, refused)
}

#[tokio::test]
async fn a_burst_of_duplicates_costs_one_write() {
    let world = world(Policy::default()).await;
    let begins = start_begins(&world, 5_000).await;
    world.store.set(StoreFault::None);
    let (mut runs, in_use, refused) = outcomes(begins).await;
    assert_eq!((runs.len(), in_use, refused), (1, 4_999, 0));
    assert_eq!(world.store.commits(), 1, "one write for all");

    // Most of them may not wait, because waits are bounded. None of them is refused for that.
    let mut waits = JoinSet::new();
    for _ in 0..5_000 {
        let (ibid, ask) = (world.ibid.clone(), world.ask("k"));
        waits.spawn(async move { ibid.wait(ask, Duration::from_secs(60)).await });
    }
    while world.ibid.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    let _ = runs.pop().expect("an attempt").finish(created_response()).await;
    for waited in waits.join_all().await {
        assert!(matches!(waited, Ok(Outcome::Completed(_) | Outcome::InFlight { .. })), "{waited:?}");
    }
    assert!(!world.ibid.is_breaker_open());
}

#[tokio::test]
async fn a_burst_of_retries_of_a_released_key_runs_one() {
    let world = world(Policy::default()).await;
    let _ = world.run("k").await.release(ErrorCode::NotSent).await;
    let before = world.store.commits();
    let begins = start_begins(&world, 1_000).await;
    world.store.set(StoreFault::None);
    let (runs, in_use, refused) = outcomes(begins).await;
    assert_eq!((runs.len(), in_use, refused), (1, 999, 0));
    assert!(world.store.commits() - before <= 3, "{} writes", world.store.commits() - before);
}

#[tokio::test]
async fn a_joined_request_is_compared_by_its_own_body() {
    let world = world(Policy::default()).await;
    let begins = start_begins(&world, 2).await;
    let identity = world.ask("k").identity;
    let other = world.ibid.ask((*identity).clone(), world.policy.clone(), Arc::new(Payment("other")));
    let other = tokio::spawn({
        let ibid = world.ibid.clone();
        async move { ibid.begin(other).await }
    });
    tokio::task::yield_now().await;
    world.store.set(StoreFault::None);
    assert!(matches!(other.await.expect("no panic"), Ok(Begin::Skip(Outcome::Mismatch))));
    let (runs, in_use, _) = outcomes(begins).await;
    assert_eq!((runs.len(), in_use, world.store.commits()), (1, 1, 1));
}

#[tokio::test]
async fn joined_begins_outlive_the_client_of_the_first() {
    let world = world(Policy::default()).await;
    world.store.set(StoreFault::Hangs);
    let first = tokio::spawn({
        let (ibid, ask) = (world.ibid.clone(), world.ask("k"));
        async move { ibid.begin(ask).await.map(drop) }
    });
    let begins = start_begins(&world, 100).await;
    first.abort();
    assert!(first.await.is_err());
    world.store.set(StoreFault::None);
    let (runs, in_use, refused) = outcomes(begins).await;
    // The first begin continues without its client, and releases the key: a joined begin may be early or late for that.
    assert!(runs.len() <= 1 && refused == 0, "{} {in_use} {refused}", runs.len());
    for attempt in runs {
        let _ = attempt.finish(created_response()).await;
    }
    world.ibid.settled().await;
    assert!(matches!(world.state().await, State::Retryable | State::Completed));
}

#[tokio::test]
async fn joined_begins_outlive_a_lost_reply() {
    let world = world(Policy::default()).await;
    let begins = start_begins(&world, 100).await;
    world.store.set(StoreFault::LosesReplies);
    while world.store.commits() < 3 {
        tokio::task::yield_now().await;
    }
    world.store.set(StoreFault::None);
    let (runs, in_use, refused) = outcomes(begins).await;
    assert_eq!((runs.len(), in_use, refused), (1, 99, 0));
    assert_eq!(runs[0].number(), 1);
    assert!(matches!(world.begin("k").await, Begin::Skip(Outcome::InFlight { .. })));
}

#[tokio::test(start_paused = true)]
async fn joined_begins_do_not_count_against_the_store() {
    let timeout = Duration::from_millis(50);
    let world =
        world_with(Policy::default(), Settings::default().with(|settings| settings.begin_timeout = timeout))
            .await;
    let first = start_begins(&world, 1).await;
    tokio::time::sleep(timeout / 2).await;
    let sent = world.store.commits();
    let later = start_begins(&world, 100).await;
    assert_eq!(world.store.commits(), sent, "they join the first");
    let (_, _, refused) = outcomes(first).await;
    assert_eq!(refused, 1);
    assert_eq!(outcomes(later).await.2, 100);
    assert!(
        !world.ibid.is_breaker_open(),
        "two begins were sent, and the others say nothing about the store"
    );
    world.store.set(StoreFault::None);
    world.ibid.settled().await;
    // The abandoned begin is released, so the key is free.
    assert!(matches!(world.begin("k").await, Begin::Run(_)));
}
