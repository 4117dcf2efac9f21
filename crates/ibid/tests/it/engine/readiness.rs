//! The check for orchestrators: it is true when begins have a chance.

use ibid::engine::NotReadyError;

use super::*;

const WITHIN: Duration = Duration::from_millis(900);

#[tokio::test(start_paused = true)]
async fn a_store_that_takes_no_writes_is_not_ready() {
    let world = world(Policy::default()).await;
    assert_eq!(world.ibid.check_ready(WITHIN).await, Ok(()));
    world.store.set(StoreFault::Refuses);
    assert!(
        matches!(world.ibid.wait(world.ask("k"), Duration::ZERO).await, Ok(Outcome::Released)),
        "it answers reads"
    );
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(world.ibid.check_ready(WITHIN).await, Err(NotReadyError::NotWritable));
    assert!(!world.ibid.is_breaker_open(), "only begins open it");
    world.store.set(StoreFault::None);
    assert_eq!(world.ibid.check_ready(WITHIN).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_process_without_requests_becomes_ready_again() {
    let timeout = Duration::from_millis(5);
    let world =
        world_with(Policy::default(), Settings::default().with(|settings| settings.begin_timeout = timeout))
            .await;
    assert_eq!(world.ibid.check_ready(WITHIN).await, Ok(()));
    world.store.set(StoreFault::Down);
    for n in 0..5 {
        assert!(world.ibid.begin(world.ask(&format!("down-{n}"))).await.is_err());
    }
    assert_eq!(
        world.ibid.check_ready(WITHIN).await,
        Err(NotReadyError::BreakerOpen),
        "although it was ready"
    );
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(world.ibid.check_ready(WITHIN).await, Err(NotReadyError::NotWritable), "it probed the store");
    world.store.set(StoreFault::None);
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(world.ibid.check_ready(WITHIN).await, Ok(()));
    assert!(!world.ibid.is_breaker_open());
}
