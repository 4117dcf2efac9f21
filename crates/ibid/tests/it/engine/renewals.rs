//! Leases of live attempts: renewed before the first byte and until `max_run`, many together, and never held up by a store
//! that hangs.

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
        attempt.ensure_lease().await.expect("the lease was renewed all the time");
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
    attempt.ensure_lease().await.expect("the lease was renewed");
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
    attempt.ensure_lease().await.expect("renewed in time");
    assert!(world.only_record().await.record.due_at > before);
    let _ = attempt.release(ErrorCode::ClientGone).await;

    let mut late = world.run("k").await;
    tokio::time::advance(Duration::from_secs(61)).await;
    assert!(late.ensure_lease().await.is_err());
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
    attempt.ensure_lease().await.expect("the lease was renewed all the time");
    let _ = attempt.release(ErrorCode::ClientGone).await;
    renewal.await.expect("it ends with the attempt");

    // Renewals that the store does not confirm do not extend the lease.
    let mut silent = world.run("k").await;
    let renewal = tokio::spawn(silent.keep_alive());
    world.store.set(StoreFault::Down);
    tokio::time::sleep(Duration::from_secs(61)).await;
    world.store.set(StoreFault::None);
    assert!(silent.ensure_lease().await.is_err());
    renewal.abort();
    drop(silent);
}
