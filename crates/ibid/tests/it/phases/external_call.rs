//! Phases that make an external call.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ibid::attempt::Attempt;
use ibid::outcome::{Begin, Outcome};
use ibid::phase::{CallVerification, Care, DownstreamKey, OutsideCallError, PhaseError};
use ibid::upkeep;
use ibid_core::record::{Record, State};

use super::in_transaction::crash;
use crate::adapters::Adapter;
use crate::transaction::harness::{NodeOnDatabase, answer, is_stored, until};

pub(super) type Charge = Result<String, PhaseError<&'static str>>;

pub(super) async fn every_rule<A: Adapter>(world: &NodeOnDatabase<A>) {
    a_repeatable_call_is_made_again_under_the_same_key(world).await;
    a_call_of_its_own_is_made_once_or_nobody_knows(world).await;
    a_call_that_was_not_made_is_made_by_the_next(world).await;
    a_provider_is_asked_before_it_is_called_again(world).await;
    one_attempt_does_not_call_again_blindly(world).await;
    keys_differ_between_phases_and_generations(world).await;
    an_uncertain_call_is_not_freed_by_an_answer(world).await;
}

/// A provider that remembers the keys it was called with.
#[derive(Default)]
pub(super) struct Provider(Mutex<Vec<String>>);

impl Provider {
    pub(super) async fn charge(&self, key: DownstreamKey) -> Result<String, OutsideCallError<&'static str>> {
        let key = key.into_string();
        self.0.lock().unwrap().push(key.clone());
        Ok(key)
    }

    /// Takes the call and never answers.
    pub(super) async fn hangs(&self, key: DownstreamKey) -> Result<String, OutsideCallError<&'static str>> {
        self.0.lock().unwrap().push(key.into_string());
        Err(OutsideCallError::Uncertain("time-out"))
    }

    pub(super) fn calls(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// Drops an attempt, and returns its record once the release is written.
pub(super) async fn let_go<A: Adapter>(
    world: &NodeOnDatabase<A>,
    attempt: Attempt,
    key: &str,
) -> Arc<Record> {
    drop(attempt);
    until(async || world.record(key).await.unwrap().state != State::InProgress).await;
    world.record(key).await.unwrap()
}

async fn a_repeatable_call_is_made_again_under_the_same_key<A: Adapter>(world: &NodeOnDatabase<A>) {
    let provider = Provider::default();
    let mut attempt = world.begin("repeatable").await;
    let uncertain: Charge = attempt.outside("charge", Care::Repeatable, |key| provider.hangs(key)).await;
    assert!(matches!(uncertain, Err(PhaseError::Uncertain("time-out"))));
    crash(world, attempt, "repeatable").await;
    let mut attempt = world.begin("repeatable").await;
    let charge: Charge = attempt.outside("charge", Care::Repeatable, |key| provider.charge(key)).await;
    let calls = provider.calls();
    assert_eq!(calls, [charge.unwrap(), calls[0].clone()]);
    crash(world, attempt, "repeatable").await;

    let mut attempt = world.begin("repeatable").await;
    assert_eq!((attempt.number(), attempt.after()), (3, 1));
    let stored: Charge = attempt.outside("charge", Care::Repeatable, |key| provider.charge(key)).await;
    assert_eq!(stored.unwrap(), calls[0]);
    assert_eq!(provider.calls().len(), 2, "what is recorded is not called again");
    assert!(is_stored(&attempt.finish(answer(201)).await, 201));

    // Dropped, as after a disconnected client: the same, without a wait for the lapse.
    let mut attempt = world.begin("let go").await;
    let _: Charge = attempt.outside("charge", Care::Repeatable, |key| provider.hangs(key)).await;
    let record = let_go(world, attempt, "let go").await;
    assert_eq!((record.state, record.note.calling), (State::Retryable, None));
}

async fn a_call_of_its_own_is_made_once_or_nobody_knows<A: Adapter>(world: &NodeOnDatabase<A>) {
    // Settled by the next request, and by the sweeper.
    for swept in [false, true] {
        let key = format!("once, swept: {swept}");
        let provider = Provider::default();
        let mut attempt = world.begin(&key).await;
        let _: Charge = attempt.outside("charge", Care::Once, |key| provider.hangs(key)).await;
        assert_eq!(world.record(&key).await.unwrap().note.calling, Some(1));
        crash(world, attempt, &key).await;
        if swept {
            upkeep::sweep_once(&world.ibid).await.unwrap();
        }
        let outcome = world.ibid.begin(world.ask(&key)).await.unwrap();
        assert!(matches!(outcome, Begin::Skip(Outcome::Unknown { .. })), "{outcome:?}");
        assert_eq!(world.record(&key).await.unwrap().state, State::Unknown);
        assert_eq!(provider.calls().len(), 1);
    }
    let provider = Provider::default();
    let mut attempt = world.begin("once, dropped").await;
    let _: Charge = attempt.outside("charge", Care::Once, |key| provider.hangs(key)).await;
    assert_eq!(let_go(world, attempt, "once, dropped").await.state, State::Unknown);

    let mut attempt = world.begin("once").await;
    let made: Charge = attempt.outside("charge", Care::Once, |key| provider.charge(key)).await;
    made.unwrap();
    let record = world.record("once").await.unwrap();
    assert_eq!((record.point, record.note.calling), (1, None));
    crash(world, attempt, "once").await;
    assert_eq!(world.begin("once").await.after(), 1, "what is recorded may be resumed");
}

async fn a_call_that_was_not_made_is_made_by_the_next<A: Adapter>(world: &NodeOnDatabase<A>) {
    for care in [Care::Once, Care::Repeatable] {
        let (key, provider) = (format!("not made, {care:?}"), Provider::default());
        let mut attempt = world.begin(&key).await;
        let refused: Charge =
            attempt.outside("charge", care, async |_| Err(OutsideCallError::NotMade("refused"))).await;
        assert!(matches!(refused, Err(PhaseError::NotMade("refused"))));
        assert_eq!(world.record(&key).await.unwrap().note.calling, None);
        // Called again by the same attempt, and by the next.
        if care == Care::Once {
            crash(world, attempt, &key).await;
            attempt = world.begin(&key).await;
            assert_eq!(attempt.number(), 2);
        }
        let made: Charge = attempt.outside("charge", care, |key| provider.charge(key)).await;
        assert_eq!(provider.calls(), [made.unwrap()]);
        assert!(is_stored(&attempt.finish(answer(201)).await, 201));
    }
}

async fn a_provider_is_asked_before_it_is_called_again<A: Adapter>(world: &NodeOnDatabase<A>) {
    for says in ["made", "not made", "unsure"] {
        let (key, provider) = (format!("verified: {says}"), Provider::default());
        let mut attempt = world.begin(&key).await;
        let first: Charge = attempt
            .outside_verified(
                "charge",
                Duration::ZERO,
                async |_| unreachable!("no call was made before the first"),
                |key| provider.hangs(key),
            )
            .await;
        assert!(matches!(first, Err(PhaseError::Uncertain("time-out"))));
        crash(world, attempt, &key).await;
        let mut attempt = world.begin(&key).await;
        let verify = async |asked: DownstreamKey| {
            assert_eq!(asked.to_string(), provider.calls()[0]);
            match says {
                "made" => CallVerification::Made("found".to_owned()),
                "not made" => CallVerification::NotMade,
                _ => CallVerification::Unsure,
            }
        };
        let second: Charge =
            attempt.outside_verified("charge", Duration::ZERO, verify, |key| provider.charge(key)).await;
        match says {
            "made" => {
                assert_eq!(second.unwrap(), "found");
                assert_eq!(provider.calls().len(), 1);
                assert_eq!(world.record(&key).await.unwrap().point, 1);
            }
            "not made" => {
                assert_eq!(second.unwrap(), provider.calls()[0]);
                assert_eq!(provider.calls().len(), 2);
            }
            _ => {
                assert!(matches!(second, Err(PhaseError::Unsure)));
                assert_eq!(provider.calls().len(), 1);
                let record = let_go(world, attempt, &key).await;
                assert_eq!(record.state, State::Unknown, "dropping it does not set it free");
                continue;
            }
        }
        assert!(is_stored(&attempt.finish(answer(201)).await, 201));
    }
}

async fn one_attempt_does_not_call_again_blindly<A: Adapter>(world: &NodeOnDatabase<A>) {
    let provider = Provider::default();
    let mut attempt = world.begin("blind once").await;
    let _: Charge = attempt.outside("charge", Care::Once, |key| provider.hangs(key)).await;
    let again: Charge = attempt.outside("charge", Care::Once, |key| provider.charge(key)).await;
    assert!(matches!(again, Err(PhaseError::Unsure)), "{again:?}");
    assert_eq!(provider.calls().len(), 1);
    drop(attempt);

    let mut attempt = world.begin("blind verified").await;
    let asked = Mutex::new(0);
    for _ in 0..2 {
        let verify = async |_| {
            *asked.lock().unwrap() += 1;
            CallVerification::Made("found".to_owned())
        };
        let _: Charge =
            attempt.outside_verified("charge", Duration::ZERO, verify, |key| provider.hangs(key)).await;
    }
    assert_eq!((provider.calls().len(), *asked.lock().unwrap()), (2, 1));
    assert_eq!(world.record("blind verified").await.unwrap().point, 1);
}

async fn keys_differ_between_phases_and_generations<A: Adapter>(world: &NodeOnDatabase<A>) {
    let provider = Provider::default();
    let mut attempt = world.begin("keys").await;
    for name in ["charge", "tip"] {
        let made: Charge = attempt.outside(name, Care::Repeatable, |key| provider.charge(key)).await;
        made.unwrap();
    }
    assert!(is_stored(&attempt.finish(answer(201)).await, 201));
    // Its time is over, and a node without it in the cache begins a new generation.
    world.age("key = 'keys'").await;
    let mut attempt = world.begin_on(&world.other_node().await, "keys").await;
    assert_eq!((attempt.number(), attempt.after()), (1, 0));
    let made: Charge = attempt.outside("charge", Care::Repeatable, |key| provider.charge(key)).await;
    made.unwrap();
    let mut calls = provider.calls();
    calls.sort();
    calls.dedup();
    assert_eq!(calls.len(), 3);
}

/// The handler's response does not prove the outcome of its call.
async fn an_uncertain_call_is_not_freed_by_an_answer<A: Adapter>(world: &NodeOnDatabase<A>) {
    for status in [500, 503] {
        let (key, provider) = (format!("answered {status}"), Provider::default());
        let mut attempt = world.begin(&key).await;
        let _: Charge = attempt.outside("charge", Care::Once, |key| provider.hangs(key)).await;
        let finished = attempt.finish(answer(status)).await;
        assert!(matches!(finished, Outcome::Unknown { .. }), "{finished:?}");
        assert_eq!(world.record(&key).await.unwrap().state, State::Unknown);
    }
}
