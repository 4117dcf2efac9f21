//! What evidence from outside means for an Effect. It settles what is unknown, keeps what was done from being done again, and
//! changes nothing else.
//!
//! "Executed" is never stale. A downstream key belongs to one Effect of one generation of one Record, and an id of the
//! provider to one call of it, so whichever try did it, it is done, and no other may be made.
//!
//! "Not executed" proves something only of an instant at which no call could come any more: [`Rules::settle_ms`] after
//! the last call was over or its worker given up. That instant is replaced by each later try and is gone while the
//! outcome is known, so what was said before the present try never counts. An Effect that is claimed has its next word from
//! its worker: no webhook takes it out of a worker's hands. One that was never claimed was not called, so what is said of
//! it is kept.
//!
//! [`Rules::settle_ms`]: crate::effect::Rules::settle_ms

use std::time::Duration;

use super::{Bearing, EffectState, Found};
use crate::effect::StoredEffect;
use crate::evidence::Kept;
use crate::time::Timestamp;

/// What the evidence means for the Effect; none: it is not there, or not yet.
pub fn bearing_on_effect(effect: Option<&StoredEffect>, kept: &Kept) -> Bearing {
    let frees = kept.evidence.what == Found::NotExecuted;
    let Some(effect) = effect else { return if frees { Bearing::Premature } else { Bearing::Early } };
    match effect.state {
        EffectState::Unknown if frees && !is_over(effect, kept.as_of) => Bearing::Premature,
        EffectState::Unknown => Bearing::Settles,
        EffectState::Queued | EffectState::Claimed if frees => Bearing::Premature,
        EffectState::Queued if effect.version.count > FIRST => Bearing::Settles,
        EffectState::Queued | EffectState::Claimed => Bearing::Early,
        EffectState::Done if frees || is_another(effect, &kept.evidence.what) => Bearing::Contradicts,
        EffectState::Done => Bearing::Known,
        // A person must hear that it was made after all.
        EffectState::Dead | EffectState::Discarded if !frees => Bearing::Contradicts,
        EffectState::Dead | EffectState::Discarded => Bearing::Known,
    }
}

/// Whether no call of it could be under way at that instant.
fn is_over(effect: &StoredEffect, as_of: Timestamp) -> bool {
    let settle = Duration::from_millis(effect.rules.settle_ms);
    // A process that does not know of it leaves the instant of an earlier call.
    let ended_at =
        effect.ended_at.filter(|ended_at| effect.called_at.is_none_or(|called_at| called_at <= *ended_at));
    ended_at.is_some_and(|ended_at| ended_at.after(settle) <= as_of)
}

/// Whether the provider did two things for one Effect.
fn is_another(effect: &StoredEffect, what: &Found) -> bool {
    match (what, &effect.provider_id) {
        (Found::Executed(answer), Some(known)) => answer.provider_id.as_ref().is_some_and(|id| id != known),
        _ => false,
    }
}

/// The count of the version that an Effect is enqueued at.
const FIRST: u32 = 1;

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::effect::Rules;
    use crate::evidence::{About, EffectAt, EventName, Evidence};
    use crate::machine::Answer;
    use crate::record::{Nonce, Version};
    use crate::scope::RecordId;
    use EffectState::{Claimed, Dead, Discarded, Done, Queued, Unknown};

    #[test]
    fn what_was_executed_settles_what_is_unknown_however_old_it_is() {
        for as_of in [0, 5, ENDED_AT, i64::MAX] {
            assert_eq!(
                bearing_on_effect(Some(&effect(Unknown)), &told(paid("ch_1"), as_of)),
                Bearing::Settles
            );
        }
    }

    #[test]
    fn not_executed_counts_only_once_no_call_can_come_any_more() {
        let over_at = ENDED_AT + 60_000_000;
        let says = |as_of| bearing_on_effect(Some(&effect(Unknown)), &told(Found::NotExecuted, as_of));
        assert_eq!((says(over_at - 1), says(over_at)), (Bearing::Premature, Bearing::Settles));
        let nobody_knows_when = StoredEffect { ended_at: None, ..effect(Unknown) };
        let later = told(Found::NotExecuted, i64::MAX);
        assert_eq!(bearing_on_effect(Some(&nobody_knows_when), &later), Bearing::Premature);
        for state in [Queued, Claimed] {
            assert_eq!(bearing_on_effect(Some(&effect(state)), &later), Bearing::Premature, "{state:?}");
        }
        assert_eq!(bearing_on_effect(None, &later), Bearing::Premature);
    }

    #[test]
    fn what_a_worker_will_tell_of_is_left_to_it() {
        let early = told(paid("ch_1"), i64::MAX);
        for effect in [None, Some(effect(Queued)), Some(effect(Claimed))] {
            assert_eq!(bearing_on_effect(effect.as_ref(), &early), Bearing::Early, "{effect:?}");
        }
    }

    #[test]
    fn what_was_executed_is_not_made_again_by_a_try_that_waits() {
        let again = StoredEffect { version: Version { count: 3, nonce: Nonce(3) }, ..effect(Queued) };
        assert_eq!(bearing_on_effect(Some(&again), &told(paid("ch_1"), 0)), Bearing::Settles);
        let not = told(Found::NotExecuted, i64::MAX);
        assert_eq!(bearing_on_effect(Some(&again), &not), Bearing::Premature);
    }

    #[test]
    fn the_end_of_a_call_before_the_last_proves_nothing() {
        let called_since =
            StoredEffect { called_at: Some(Timestamp::from_micros(ENDED_AT + 1)), ..effect(Unknown) };
        let not = told(Found::NotExecuted, i64::MAX);
        assert_eq!(bearing_on_effect(Some(&called_since), &not), Bearing::Premature);
    }

    #[test]
    fn what_is_settled_stays_so_and_a_contradiction_is_seen() {
        let says = |state, what| bearing_on_effect(Some(&effect(state)), &told(what, i64::MAX));
        assert_eq!(says(Done, paid("ch_1")), Bearing::Known);
        assert_eq!(says(Done, paid("ch_2")), Bearing::Contradicts, "two charges under one key");
        assert_eq!(says(Done, Found::NotExecuted), Bearing::Contradicts);
        for state in [Dead, Discarded] {
            assert_eq!(says(state, paid("ch_1")), Bearing::Contradicts);
            assert_eq!(says(state, Found::NotExecuted), Bearing::Known);
        }
    }

    const ENDED_AT: i64 = 1_000_000_000;

    fn effect(state: EffectState) -> StoredEffect {
        StoredEffect {
            seq: 1,
            record: RecordId::from_bytes([7; 32]),
            birth: Nonce(1),
            tenant: "ann".into(),
            name: "charge".into(),
            kind: "charge".into(),
            version: Version { count: 1, nonce: Nonce(1) },
            state,
            tries: 1,
            due_at: None,
            created_at: Timestamp::from_micros(0),
            called_at: Some(Timestamp::from_micros(10)),
            ended_at: Some(Timestamp::from_micros(ENDED_AT)),
            done_at: None,
            aggregate: None,
            downstream_key: "ibid-1".into(),
            rules: Rules::default(),
            owes: false,
            trace: None,
            payload: Bytes::new(),
            result: None,
            provider_id: Some("ch_1".into()),
            last_error: None,
            now: Timestamp::from_micros(ENDED_AT),
        }
    }

    fn told(what: Found, as_of: i64) -> Kept {
        let evidence = Evidence {
            name: EventName { source: "psp".into(), event: "evt".into() },
            about: About::Effect(EffectAt::DownstreamKey("ibid-1".into())),
            owner: None,
            what,
            age: Duration::ZERO,
        };
        Kept { seq: 1, evidence, as_of: Timestamp::from_micros(as_of), open: true }
    }

    fn paid(id: &str) -> Found {
        Found::Executed(Answer {
            status: 201,
            retry_after: false,
            kept: None,
            provider_id: Some(id.into()),
            proof: None,
        })
    }
}
