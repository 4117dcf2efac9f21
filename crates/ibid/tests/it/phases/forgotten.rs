//! Calls that may be repeated, and a provider that may have forgotten their key.

use std::time::Duration;

use ibid::attempt::Finished;
use ibid::engine::Begun;
use ibid::phase::{Care, PhaseError, Verified};
use ibid_core::record::State;

use super::outside::{Charge, Provider, let_go};
use super::within::crash;
use crate::adapters::Adapter;
use crate::transaction::world::{World, answer, is_stored};

pub(super) async fn every_rule<A: Adapter>(world: &World<A>) {
    a_call_is_made_again_as_long_as_its_key_is_remembered(world).await;
    a_call_whose_key_may_be_forgotten_is_left_to_a_person(world).await;
    a_provider_that_can_be_asked_need_not_remember_the_key(world).await;
}

/// How old the key is in hours, and what was said of the provider's memory.
const REMEMBERED: [(i64, Care); 2] = [(23, Care::Repeatable), (1, Care::RepeatableFor(hours(2)))];
const FORGOTTEN: [(i64, Care); 3] =
    [(25, Care::Repeatable), (2, Care::RepeatableFor(hours(1))), (25, Care::RepeatableFor(hours(1000)))];

const fn hours(hours: u64) -> Duration {
    Duration::from_secs(hours * 3600)
}

/// A first Attempt calls and dies with its call; so long ago.
async fn called<A: Adapter>(world: &World<A>, key: &str, provider: &Provider, age: i64) {
    let mut attempt = world.begin(key).await;
    let first: Charge = attempt.outside("charge", Care::Repeatable, |key| provider.hangs(key)).await;
    assert!(matches!(first, Err(PhaseError::Uncertain(_))), "{first:?}");
    crash(world, attempt, key).await;
    world.grow_older(key, age).await;
}

async fn a_call_is_made_again_as_long_as_its_key_is_remembered<A: Adapter>(world: &World<A>) {
    for (age, care) in REMEMBERED {
        let (key, provider) = (format!("remembered {age}"), Provider::default());
        called(world, &key, &provider, age).await;
        let mut attempt = world.begin(&key).await;
        let second: Charge = attempt.outside("charge", care, |key| provider.charge(key)).await;
        let calls = provider.calls();
        assert_eq!(calls, [second.unwrap(), calls[0].clone()]);
        assert!(is_stored(&attempt.finish(answer(201), false).await, 201));
    }
}

async fn a_call_whose_key_may_be_forgotten_is_left_to_a_person<A: Adapter>(world: &World<A>) {
    for (age, care) in FORGOTTEN {
        for dropped in [false, true] {
            let (key, provider) = (format!("forgotten {age} {care:?} {dropped}"), Provider::default());
            called(world, &key, &provider, age).await;
            let mut attempt = world.begin(&key).await;
            let second: Charge = attempt.outside("charge", care, |key| provider.charge(key)).await;
            assert!(matches!(second, Err(PhaseError::Unsure)), "{second:?}");
            assert_eq!(provider.calls().len(), 1, "it may be a second charge");
            // Whatever the handler makes of it.
            if dropped {
                let_go(world, attempt, &key).await;
            } else {
                let finished = attempt.finish(answer(503), false).await;
                assert!(matches!(finished, Finished::Unsettled { .. }), "{finished:?}");
            }
            assert_eq!(world.record(&key).await.unwrap().state, State::Unknown);
            let begun = world.ibid.begin(world.ask(&key)).await.unwrap();
            assert!(matches!(begun, Begun::Unknown { .. }), "{begun:?}");
        }
    }
}

async fn a_provider_that_can_be_asked_need_not_remember_the_key<A: Adapter>(world: &World<A>) {
    let (key, provider) = ("asked after 25 h", Provider::default());
    called(world, key, &provider, 25).await;
    let mut attempt = world.begin(key).await;
    let verify = async |_| Verified::NotMade;
    let second: Charge =
        attempt.outside_verified("charge", Duration::ZERO, verify, |key| provider.charge(key)).await;
    assert_eq!(provider.calls()[1..], [second.unwrap()]);
    assert!(is_stored(&attempt.finish(answer(201), false).await, 201));
}
