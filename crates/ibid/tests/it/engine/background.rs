//! Ends of attempts that are written without their caller.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_queued_finish_counts_the_bytes_that_it_holds() {
    let world = world(Policy::default().with(|policy| policy.max_response_body = 64 << 20)).await;
    let attempts = [world.run("first").await, world.run("second").await];
    world.store.set(StoreFault::Down);
    for attempt in attempts {
        // Two of these are more than may wait.
        let body = Bytes::from(vec![b'x'; 40 << 20]);
        let finished = attempt.finish(Response { body, ..created_response() }).await;
        assert!(matches!(finished, Outcome::NotDurable));
    }
    world.store.set(StoreFault::None);
    world.ibid.settled().await;
    let stored = world
        .store
        .browse()
        .expect("a store that can be browsed")
        .list(RecordFilter::default())
        .await
        .expect("a list")
        .items;
    let states = stored.iter().map(|stored| (stored.record.identity.key.as_str(), stored.record.state));
    let mut states: Vec<_> = states.collect();
    states.sort_unstable_by_key(|(key, _)| key.to_owned());
    assert_eq!(states, [("first", State::Completed), ("second", State::InProgress)]);
}

#[tokio::test]
async fn an_attempt_dropped_outside_of_every_runtime_is_recorded() {
    let world = world(Policy::default()).await;
    let attempt = world.run("k").await;
    std::thread::spawn(move || drop(attempt)).join().expect("no panic");
    world.ibid.settled().await;
    assert_eq!(world.state().await, State::Unknown);
}
