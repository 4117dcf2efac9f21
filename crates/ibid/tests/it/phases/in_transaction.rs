//! Phases that work in the database.

use ibid::attempt::Attempt;
use ibid::phase::PhaseError;
use ibid::transaction::TxError;
use ibid::upkeep;
use ibid_core::effect::NewEffect;
use ibid_core::record::{ErrorCode, State};
use serde::{Deserialize, Serialize};

use crate::adapters::{Adapter, PATIENT};
use crate::lossy_database::{Lossy, Reply};
use crate::transaction::harness::{NodeOnDatabase, answer, is_stored, pay, until};
use ibid::outcome::Outcome;
use ibid::transaction::Database;

pub(super) async fn every_rule<A: Adapter>(world: &NodeOnDatabase<A>) {
    results_are_kept_and_come_back_as_they_were(world).await;
    a_crash_after_any_phase_goes_on_after_the_last_committed_one(world).await;
    a_phase_that_fails_leaves_nothing_and_may_be_run_again(world).await;
    another_order_is_refused_before_anything_runs(world).await;
    later_phases_may_be_added(world).await;
    what_nobody_can_resume_waits_for_its_client(world).await;
    a_lost_reply_of_a_phase_is_settled_by_the_record(world).await;
    a_zombie_does_not_advance(world).await;
    the_last_phase_may_be_the_completion(world).await;
}

/// A result as a handler would store it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Ride {
    id: u64,
    from: String,
    stops: Vec<Option<String>>,
}

/// Runs one phase that writes its name, and returns its result.
async fn step<D: Database>(
    attempt: &mut Attempt,
    db: &D,
    key: &str,
    name: &str,
) -> Result<String, PhaseError<TxError>> {
    let phase = attempt.phase(name, db, async |mut inside| {
        pay(&mut *inside, key, name).await?;
        inside.enqueue(NewEffect::new(format!("mail {name}"), "mail", "")).await?;
        Ok(format!("{name} by attempt {}", inside.number()))
    });
    phase.await
}

/// Simulates a crash: nothing is released, and the lease lapses.
pub(super) async fn crash<A: Adapter>(world: &NodeOnDatabase<A>, attempt: Attempt, key: &str) {
    std::mem::forget(attempt);
    world.lapse(key).await;
}

async fn results_are_kept_and_come_back_as_they_were<A: Adapter>(world: &NodeOnDatabase<A>) {
    let ride =
        Ride { id: u64::MAX, from: "café \u{1f6b2} \"x\"".into(), stops: vec![None, Some(String::new())] };
    let mut attempt = world.begin("kept").await;
    let first: Result<Ride, PhaseError<TxError>> = attempt
        .phase("ride", &world.db, async |mut inside| {
            pay(&mut *inside, "kept", "ann").await?;
            Ok(ride.clone())
        })
        .await;
    assert_eq!(first.unwrap(), ride);
    assert_eq!(world.record("kept").await.unwrap().point, 1);
    assert!(matches!(attempt.release(ErrorCode::NotSent).await, Outcome::Released));

    let mut attempt = world.begin("kept").await;
    assert_eq!((attempt.number(), attempt.after()), (2, 1));
    let again: Result<Ride, PhaseError<TxError>> =
        attempt.phase("ride", &world.db, async |_| unreachable!("it is not run again")).await;
    assert_eq!(again.unwrap(), ride);
    // Read as another type than it was stored as.
    let mut attempt = crash_and_resume(world, attempt, "kept").await;
    let other: Result<u8, PhaseError<TxError>> =
        attempt.phase("ride", &world.db, async |_| unreachable!("it is not run again")).await;
    assert!(matches!(other, Err(PhaseError::Result(_))), "{other:?}");
    assert_eq!(world.payments("kept").await, 1);
}

async fn crash_and_resume<A: Adapter>(world: &NodeOnDatabase<A>, attempt: Attempt, key: &str) -> Attempt {
    crash(world, attempt, key).await;
    world.begin(key).await
}

async fn a_crash_after_any_phase_goes_on_after_the_last_committed_one<A: Adapter>(world: &NodeOnDatabase<A>) {
    const PHASES: [&str; 3] = ["ride", "charge", "receipt"];
    for crashes_after in 0..=PHASES.len() {
        let key = format!("crash {crashes_after}");
        let mut attempt = world.begin(&key).await;
        for name in &PHASES[..crashes_after] {
            assert_eq!(
                step(&mut attempt, &world.db, &key, name).await.unwrap(),
                format!("{name} by attempt 1")
            );
        }
        // Half-way into the next phase.
        if let Some(name) = PHASES.get(crashes_after) {
            let mut inside = attempt.join_tx(world.tx().await).await.unwrap();
            pay(&mut *inside, &key, name).await.unwrap();
            drop(inside);
        }
        let mut attempt = crash_and_resume(world, attempt, &key).await;
        assert_eq!((attempt.number(), usize::from(attempt.after())), (2, crashes_after));
        for (index, name) in PHASES.iter().enumerate() {
            let by = if index < crashes_after { 1 } else { 2 };
            assert_eq!(
                step(&mut attempt, &world.db, &key, name).await.unwrap(),
                format!("{name} by attempt {by}")
            );
        }
        assert!(is_stored(&attempt.finish(answer(201)).await, 201));
        assert_eq!((world.payments(&key).await, world.effects(&key).await.len()), (3, 3));
        assert_eq!(world.replay(&key).await, answer(201));
    }
}

async fn a_phase_that_fails_leaves_nothing_and_may_be_run_again<A: Adapter>(world: &NodeOnDatabase<A>) {
    let mut attempt = world.begin("fails").await;
    step(&mut attempt, &world.db, "fails", "ride").await.unwrap();
    let failed: Result<(), PhaseError<&str>> = attempt
        .phase("charge", &world.db, async |mut inside| {
            pay(&mut *inside, "fails", "half").await.unwrap();
            Err("no seat")
        })
        .await;
    assert!(matches!(failed, Err(PhaseError::Work("no seat"))), "{failed:?}");
    assert_eq!(world.payments("fails").await, 1);
    step(&mut attempt, &world.db, "fails", "charge").await.unwrap();
    assert_eq!(world.record("fails").await.unwrap().point, 2);
    assert_eq!(world.payments("fails").await, 2);
    drop(attempt);
}

async fn another_order_is_refused_before_anything_runs<A: Adapter>(world: &NodeOnDatabase<A>) {
    for (key, now) in [("swapped", ["charge", "ride"]), ("renamed", ["ride", "pay"])] {
        let mut attempt = world.begin(key).await;
        for name in ["ride", "charge"] {
            step(&mut attempt, &world.db, key, name).await.unwrap();
        }
        let mut attempt = crash_and_resume(world, attempt, key).await;
        let mut refused = None;
        for name in now {
            match step(&mut attempt, &world.db, key, name).await {
                Ok(result) => assert_eq!(result, format!("{name} by attempt 1")),
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        let wrong = if key == "swapped" { ("charge", 1) } else { ("pay", 2) };
        match refused {
            Some(PhaseError::Reordered { name, point }) => assert_eq!((name.as_str(), point), wrong),
            other => panic!("{key}: {other:?}"),
        }
        assert_eq!(world.payments(key).await, 2, "nothing was run");
    }
}

async fn later_phases_may_be_added<A: Adapter>(world: &NodeOnDatabase<A>) {
    let mut attempt = world.begin("added").await;
    step(&mut attempt, &world.db, "added", "ride").await.unwrap();
    let mut attempt = crash_and_resume(world, attempt, "added").await;
    for (name, by) in [("ride", 1), ("tip", 2), ("charge", 2)] {
        assert_eq!(
            step(&mut attempt, &world.db, "added", name).await.unwrap(),
            format!("{name} by attempt {by}")
        );
    }
    assert!(is_stored(&attempt.finish(answer(201)).await, 201));
}

/// A sweeper without a handler releases the record after its last recovery point.
async fn what_nobody_can_resume_waits_for_its_client<A: Adapter>(world: &NodeOnDatabase<A>) {
    let mut attempt = world.begin("waits").await;
    step(&mut attempt, &world.db, "waits", "ride").await.unwrap();
    crash(world, attempt, "waits").await;
    until(async || upkeep::sweep_once(&world.ibid).await.unwrap() == 1).await;
    let record = world.record("waits").await.unwrap();
    assert_eq!((record.state, record.point), (State::Retryable, 1));
    let mut attempt = world.begin("waits").await;
    assert_eq!((attempt.number(), attempt.after()), (2, 1));
    assert_eq!(step(&mut attempt, &world.db, "waits", "ride").await.unwrap(), "ride by attempt 1");
    assert_eq!(world.payments("waits").await, 1);
}

async fn a_lost_reply_of_a_phase_is_settled_by_the_record<A: Adapter>(world: &NodeOnDatabase<A>) {
    for reply in [Reply::Lost, Reply::NeverSent] {
        let key = format!("{reply:?}");
        let lossy = Lossy::new(A::open(&world.test_db, 2, PATIENT).await, &[Reply::Comes, reply]);
        let mut attempt = world.begin(&key).await;
        for name in ["ride", "charge", "receipt"] {
            assert_eq!(step(&mut attempt, &lossy, &key, name).await.unwrap(), format!("{name} by attempt 1"));
        }
        assert!(is_stored(&attempt.finish(answer(201)).await, 201));
        assert_eq!((world.payments(&key).await, world.effects(&key).await.len()), (3, 3), "{key}");
    }
}

async fn a_zombie_does_not_advance<A: Adapter>(world: &NodeOnDatabase<A>) {
    let mut zombie = world.begin("zombie").await;
    step(&mut zombie, &world.db, "zombie", "ride").await.unwrap();
    world.lapse("zombie").await;
    let mut bob = world.begin_on(&world.other_node().await, "zombie").await;
    let refused = step(&mut zombie, &world.db, "zombie", "charge").await;
    assert!(matches!(refused, Err(PhaseError::LeaseLost)), "{refused:?}");
    assert_eq!(step(&mut bob, &world.db, "zombie", "ride").await.unwrap(), "ride by attempt 1");
    assert_eq!(step(&mut bob, &world.db, "zombie", "charge").await.unwrap(), "charge by attempt 2");
    assert!(is_stored(&bob.finish(answer(201)).await, 201));
    assert_eq!(world.payments("zombie").await, 2);
}

async fn the_last_phase_may_be_the_completion<A: Adapter>(world: &NodeOnDatabase<A>) {
    let mut attempt = world.begin("completes").await;
    step(&mut attempt, &world.db, "completes", "ride").await.unwrap();
    let mut inside = attempt.join_tx(world.tx().await).await.unwrap();
    pay(&mut *inside, "completes", "last").await.unwrap();
    assert!(is_stored(&inside.finish(answer(201)).await.unwrap(), 201));
    let record = world.record("completes").await.unwrap();
    assert_eq!((record.state, record.point), (State::Completed, 1));
    assert_eq!(world.payments("completes").await, 2);
}
