//! Leases of live attempts: renewed together, and never held up by a store that hangs.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn leases_of_many_attempts_are_renewed_together() {
    let world = world(Policy::default().with(|policy| policy.on_lapse = OnLapse::Retry)).await;
    let mut attempts = Vec::new();
    for n in 0..200 {
        let attempt = world.run(&format!("k{n}")).await;
        let renewal = attempt.keep_alive();
        attempts.push((attempt, renewal));
        // Begun one after another, as requests are.
        tokio::time::sleep(SECOND / 50).await;
        world.hands.advance(SECOND / 50);
    }
    for _ in 0..20 {
        world.hands.advance(10 * SECOND);
        tokio::time::sleep(10 * SECOND).await;
    }
    // Three renewals per lease and attempt, in one call for all that are due at about the same time.
    assert!(world.store.renewals() >= 10 && world.store.renewals() <= 40, "{} calls", world.store.renewals());
    for (mut attempt, renewal) in attempts {
        attempt.ready().await.expect("the lease was renewed all the time");
        drop(renewal);
        let _ = attempt.release(ErrorCode::ClientGone).await;
    }
    assert_eq!(upkeep::sweep_once(&world.ibid).await.expect("the store answers"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_hangs_is_repeated_before_the_lease_ends() {
    let world = world(Policy::default()).await;
    let mut attempt = world.run("k").await;
    let _renewal = attempt.keep_alive();
    world.store.set(StoreFault::HangsRenewals);
    // Sent after 20 s, unanswered after 30 s, repeated after 35 s: that one is answered.
    tokio::time::sleep(32 * SECOND).await;
    assert_eq!(world.store.renewals(), 1);
    world.store.set(StoreFault::None);
    tokio::time::sleep(32 * SECOND).await;
    assert!(world.store.renewals() >= 2);
    attempt.ready().await.expect("the lease was renewed");
    let _ = attempt.release(ErrorCode::ClientGone).await;
}

#[tokio::test(start_paused = true)]
async fn an_ended_attempt_is_not_renewed() {
    let world = world(Policy::default()).await;
    let attempt = world.run("k").await;
    drop(attempt.keep_alive());
    let _ = attempt.finish(created_response()).await;
    tokio::time::sleep(120 * SECOND).await;
    assert_eq!(world.store.renewals(), 0);
}
