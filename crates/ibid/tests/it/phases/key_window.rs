//! Repeatable calls, and a provider that may have forgotten their key.

use std::time::Duration;

use ibid::operator::{Observation, Operator, OperatorAction};
use ibid::outcome::{Begin, Outcome};
use ibid::phase::{CallVerification, Care, OutsideCallError, PhaseError};
use ibid::transaction::TxError;
use ibid::upkeep;
use ibid_core::record::{ErrorCode, State};

use super::external_call::{Charge, Provider, let_go};
use super::in_transaction::crash;
use crate::adapters::Adapter;
use crate::transaction::harness::{NodeOnDatabase, answer, is_stored};

pub(super) async fn every_rule<A: Adapter>(world: &NodeOnDatabase<A>) {
    a_call_is_made_again_as_long_as_its_key_is_remembered(world).await;
    a_call_whose_key_may_be_forgotten_is_left_to_a_person(world).await;
    a_call_that_was_never_made_may_be_made_however_late(world).await;
    a_doubt_that_the_provider_ends_does_not_come_back(world).await;
    a_provider_that_can_be_asked_need_not_remember_the_key(world).await;
    a_call_in_doubt_is_made_again_by_whoever_comes_to_it(world).await;
    a_call_in_doubt_is_unknown_and_not_begun_anew(world).await;
    nothing_that_comes_next_hides_a_call_in_doubt(world).await;
}

/// Age of the key in hours, and the declared memory of the provider.
const REMEMBERED: [(i64, Care); 2] = [(23, Care::Repeatable), (1, Care::RepeatableFor(hours(2)))];
const FORGOTTEN: [(i64, Care); 3] =
    [(25, Care::Repeatable), (2, Care::RepeatableFor(hours(1))), (25, Care::RepeatableFor(hours(1000)))];

const fn hours(hours: u64) -> Duration {
    Duration::from_secs(hours * 3600)
}

/// A first attempt calls and crashes during its call, `age` hours ago.
async fn crash_during_call<A: Adapter>(world: &NodeOnDatabase<A>, key: &str, provider: &Provider, age: i64) {
    let mut attempt = world.begin(key).await;
    let first: Charge = attempt.outside("charge", Care::Repeatable, |key| provider.hangs(key)).await;
    assert!(matches!(first, Err(PhaseError::Uncertain(_))), "{first:?}");
    crash(world, attempt, key).await;
    world.grow_older(key, age).await;
}

async fn a_call_is_made_again_as_long_as_its_key_is_remembered<A: Adapter>(world: &NodeOnDatabase<A>) {
    for (age, care) in REMEMBERED {
        let (key, provider) = (format!("remembered {age}"), Provider::default());
        crash_during_call(world, &key, &provider, age).await;
        let mut attempt = world.begin(&key).await;
        let second: Charge = attempt.outside("charge", care, |key| provider.charge(key)).await;
        let calls = provider.calls();
        assert_eq!(calls, [second.unwrap(), calls[0].clone()]);
        assert!(is_stored(&attempt.finish(answer(201)).await, 201));
    }
}

async fn a_call_whose_key_may_be_forgotten_is_left_to_a_person<A: Adapter>(world: &NodeOnDatabase<A>) {
    for (age, care) in FORGOTTEN {
        for dropped in [false, true] {
            let (key, provider) = (format!("forgotten {age} {care:?} {dropped}"), Provider::default());
            crash_during_call(world, &key, &provider, age).await;
            let mut attempt = world.begin(&key).await;
            let second: Charge = attempt.outside("charge", care, |key| provider.charge(key)).await;
            assert!(matches!(second, Err(PhaseError::Unsure)), "{second:?}");
            assert_eq!(provider.calls().len(), 1, "it may be a second charge");
            // Whatever the handler does with the error.
            if dropped {
                let_go(world, attempt, &key).await;
            } else {
                let finished = attempt.finish(answer(503)).await;
                assert!(matches!(finished, Outcome::Unknown { .. }), "{finished:?}");
            }
            assert_eq!(world.record(&key).await.unwrap().state, State::Unknown);
            let outcome = world.ibid.begin(world.ask(&key)).await.unwrap();
            assert!(matches!(outcome, Begin::Skip(Outcome::Unknown { .. })), "{outcome:?}");
            // An operator who found that nothing was executed makes the key as good as new.
            let id = world.record(&key).await.unwrap().id;
            let act = OperatorAction::new("ann", "asked the provider").unwrap();
            Operator::new(&world.ibid).resolve(id, None, &Observation::NotExecuted, &act).await.unwrap();
            let mut attempt = world.begin(&key).await;
            let third: Charge = attempt.outside("charge", care, |key| provider.charge(key)).await;
            assert_eq!(provider.calls()[1..], [third.unwrap()]);
            assert!(is_stored(&attempt.finish(answer(201)).await, 201));
        }
    }
}

async fn a_call_that_was_never_made_may_be_made_however_late<A: Adapter>(world: &NodeOnDatabase<A>) {
    let (key, provider) = ("never made", Provider::default());
    let attempt = world.begin(key).await;
    assert!(matches!(attempt.release(ErrorCode::NotSent).await, Outcome::Released));
    world.grow_older(key, 25).await;
    let mut attempt = world.begin(key).await;
    let made: Charge = attempt.outside("charge", Care::Repeatable, |key| provider.charge(key)).await;
    assert_eq!(provider.calls(), [made.unwrap()]);
}

async fn a_doubt_that_the_provider_ends_does_not_come_back<A: Adapter>(world: &NodeOnDatabase<A>) {
    let (key, provider) = ("ended", Provider::default());
    freed_in_doubt(world, key, &provider, Some(503)).await;
    assert!(world.record(key).await.unwrap().note.doubt.is_some());
    let mut attempt = world.begin(key).await;
    let verify = async |_| CallVerification::NotMade;
    let call = async |_| Err(OutsideCallError::NotMade("down"));
    let asked: Charge = attempt.outside_verified("charge", Duration::ZERO, verify, call).await;
    assert!(matches!(asked, Err(PhaseError::NotMade(_))), "{asked:?}");
    assert!(matches!(attempt.finish(answer(503)).await, Outcome::Released));
    assert_eq!(world.record(key).await.unwrap().note.doubt, None);
}

async fn a_provider_that_can_be_asked_need_not_remember_the_key<A: Adapter>(world: &NodeOnDatabase<A>) {
    let (key, provider) = ("asked after 25 h", Provider::default());
    crash_during_call(world, key, &provider, 25).await;
    let mut attempt = world.begin(key).await;
    let verify = async |_| CallVerification::NotMade;
    let second: Charge =
        attempt.outside_verified("charge", Duration::ZERO, verify, |key| provider.charge(key)).await;
    assert_eq!(provider.calls()[1..], [second.unwrap()]);
    assert!(is_stored(&attempt.finish(answer(201)).await, 201));
}

/// An attempt calls, does not learn the outcome, and releases its key with the status `end`; or it is dropped.
async fn freed_in_doubt<A: Adapter>(
    world: &NodeOnDatabase<A>,
    key: &str,
    provider: &Provider,
    end: Option<u16>,
) {
    let mut attempt = world.begin(key).await;
    let first: Charge = attempt.outside("charge", Care::Repeatable, |key| provider.hangs(key)).await;
    assert!(matches!(first, Err(PhaseError::Uncertain(_))), "{first:?}");
    match end {
        Some(status) => {
            let finished = attempt.finish(answer(status)).await;
            assert!(matches!(finished, Outcome::Released), "{finished:?}");
        }
        None => drop(let_go(world, attempt, key).await),
    }
    is_in_doubt(world, key).await;
}

async fn is_in_doubt<A: Adapter>(world: &NodeOnDatabase<A>, key: &str) {
    let record = world.record(key).await.unwrap();
    assert_eq!((record.state, record.note.doubt), (State::Retryable, Some(1)));
    assert_eq!((record.expires_at, record.purge_at), (None, None), "it does not expire");
    assert!(record.fingerprint.is_some(), "it is this request's");
}

/// Statuses with which an attempt releases its key; `None` if it is dropped.
const ENDS: [Option<u16>; 4] = [Some(503), Some(500), Some(401), None];

async fn a_call_in_doubt_is_made_again_by_whoever_comes_to_it<A: Adapter>(world: &NodeOnDatabase<A>) {
    for end in ENDS {
        let (key, provider) = (format!("in doubt, {end:?}"), Provider::default());
        freed_in_doubt(world, &key, &provider, end).await;
        // An attempt that does not reach the call, or certainly does not make it, does not end the doubt about the first.
        let _ = world.begin(&key).await.release(ErrorCode::ClientGone).await;
        is_in_doubt(world, &key).await;
        let mut attempt = world.begin(&key).await;
        let refused: Charge = attempt
            .outside("charge", Care::Repeatable, async |_| Err(OutsideCallError::NotMade("refused")))
            .await;
        assert!(matches!(refused, Err(PhaseError::NotMade(_))), "{refused:?}");
        let _ = attempt.finish(answer(503)).await;
        is_in_doubt(world, &key).await;

        let mut attempt = world.begin(&key).await;
        let made: Charge = attempt.outside("charge", Care::Repeatable, |key| provider.charge(key)).await;
        let calls = provider.calls();
        assert_eq!(calls, [made.unwrap(), calls[0].clone()]);
        let _ = attempt.finish(answer(503)).await;
        let record = world.record(&key).await.unwrap();
        assert_eq!((record.point, record.note.doubt), (1, None));
        assert!(record.expires_at.is_some());
    }
}

async fn a_call_in_doubt_is_unknown_and_not_begun_anew<A: Adapter>(world: &NodeOnDatabase<A>) {
    for end in ENDS {
        let (key, provider) = (format!("in doubt for 25 h, {end:?}"), Provider::default());
        freed_in_doubt(world, &key, &provider, end).await;
        world.grow_older(&key, 25).await;
        upkeep::reap_once(&world.ibid, upkeep::Retention::default()).await.unwrap();
        let outcome = world.ibid.begin(world.ask(&key)).await.unwrap();
        assert!(matches!(outcome, Begin::Skip(Outcome::Unknown { .. })), "{outcome:?}");
        let record = world.record(&key).await.unwrap();
        assert_eq!((record.state, record.attempt), (State::Unknown, 1));
        assert!(record.flags.dead_letter);
    }
}

/// A phase of another name at the same position would be taken for the call.
async fn nothing_that_comes_next_hides_a_call_in_doubt<A: Adapter>(world: &NodeOnDatabase<A>) {
    let (key, provider) = ("hidden", Provider::default());
    for run in 1..=2 {
        let mut attempt = world.begin(key).await;
        if run == 1 {
            let _: Charge = attempt.outside("charge", Care::Repeatable, |key| provider.hangs(key)).await;
        }
        let other: Charge = attempt.outside("tip", Care::Repeatable, |key| provider.charge(key)).await;
        assert!(matches!(other, Err(PhaseError::Unsure)), "{other:?}");
        let other: Result<(), PhaseError<TxError>> =
            attempt.phase("give up", &world.db, async |_| unreachable!("it would hide the call")).await;
        assert!(matches!(other, Err(PhaseError::Unsure)), "{other:?}");
        let_go(world, attempt, key).await;
        is_in_doubt(world, key).await;
    }
    assert_eq!(provider.calls().len(), 1);
}
