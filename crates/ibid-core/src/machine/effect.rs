//! The life of an Effect, one outbox row: a call to the outside still to be made. Pure, like the rest.

use std::time::Duration;

use super::backoff;

/// Where an Effect stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum EffectState {
    /// To be made.
    Queued = 1,
    /// A worker holds it under a lease.
    Claimed = 2,
    /// Made, and its result recorded.
    Done = 3,
    /// Nobody knows whether it was made.
    Unknown = 4,
    /// Tries used up; a person must look.
    Dead = 5,
    /// A person decided that it will not be made.
    Discarded = 6,
}

impl EffectState {
    /// Every state, in the order of its codes.
    pub const ALL: [EffectState; 6] = [
        EffectState::Queued,
        EffectState::Claimed,
        EffectState::Done,
        EffectState::Unknown,
        EffectState::Dead,
        EffectState::Discarded,
    ];

    /// The word for it, as in the contract.
    pub fn name(self) -> &'static str {
        match self {
            EffectState::Queued => "queued",
            EffectState::Claimed => "claimed",
            EffectState::Done => "done",
            EffectState::Unknown => "unknown",
            EffectState::Dead => "dead",
            EffectState::Discarded => "discarded",
        }
    }
}

/// What the machine must know of an Effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effect {
    /// Where it stands.
    pub state: EffectState,
    /// How often it was claimed.
    pub tries: u32,
    /// Claims before a person is asked.
    pub tries_max: u32,
    /// The provider deduplicates by our key, so an uncertain call may be made again.
    pub repeatable: bool,
}

/// What happened to an Effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EffectEvent {
    /// A worker takes it.
    Claim,
    /// The call was made and its result recorded.
    Made,
    /// The call certainly had no effect; `after` is the provider's `Retry-After`.
    NotMade {
        /// When the provider wants to be asked again.
        after: Option<Duration>,
    },
    /// The provider refused for good.
    Refused,
    /// The call may have been made.
    Uncertain,
    /// The claim's lease ran out.
    Lapsed,
    /// `verify` was asked whether an uncertain or lapsed call was made.
    Verified(bool),
    /// An operator wants it made.
    Retry,
    /// An operator wants it gone.
    Discard,
}

/// Where the Effect goes, and from when it may be claimed; `None` leaves it alone.
pub type EffectVerdict = Option<(EffectState, Option<Duration>)>;

/// What becomes of the Effect.
pub fn decide_effect(effect: &Effect, event: EffectEvent) -> EffectVerdict {
    use EffectEvent::{Claim, Discard, Lapsed, Made, NotMade, Refused, Retry, Uncertain, Verified};
    use EffectState::{Claimed, Dead, Discarded, Done, Queued, Unknown};
    match (effect.state, event) {
        (Queued, Claim) => Some((Claimed, None)),
        (Claimed | Unknown, Made) => Some((Done, None)),
        (Claimed, NotMade { after }) => Some(again(effect, after)),
        (Claimed, Refused) => Some((Dead, None)),
        // Where the provider does not deduplicate, an uncertain call is never made again blindly.
        (Claimed, Uncertain | Lapsed) if effect.repeatable => Some(again(effect, None)),
        (Claimed, Uncertain | Lapsed) => Some((Unknown, None)),
        (Claimed | Unknown, Verified(true)) => Some((Done, None)),
        (Claimed | Unknown, Verified(false)) => Some(again(effect, None)),
        (Dead, Retry) => Some((Queued, None)),
        (Dead, Discard) => Some((Discarded, None)),
        _ => None,
    }
}

/// Queued again with backoff, never sooner than the provider wishes; dead once the tries are used up.
fn again(effect: &Effect, after: Option<Duration>) -> (EffectState, Option<Duration>) {
    if effect.tries >= effect.tries_max {
        return (EffectState::Dead, None);
    }
    (EffectState::Queued, Some(backoff(effect.tries).max(after.unwrap_or_default())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use EffectEvent::*;
    use EffectState::*;

    fn effect(state: EffectState, repeatable: bool, tries: u32) -> Effect {
        Effect { state, tries, tries_max: 5, repeatable }
    }

    fn goes(state: EffectState, repeatable: bool, event: EffectEvent) -> Option<EffectState> {
        decide_effect(&effect(state, repeatable, 1), event).map(|(to, _)| to)
    }

    #[test]
    fn a_lapsed_claim_is_made_again_only_if_that_is_safe() {
        assert_eq!(goes(Claimed, true, Lapsed), Some(Queued));
        assert_eq!(goes(Claimed, false, Lapsed), Some(Unknown));
        assert_eq!(goes(Claimed, false, Verified(true)), Some(Done));
        assert_eq!(goes(Claimed, false, Verified(false)), Some(Queued));
        assert_eq!(goes(Unknown, false, Verified(true)), Some(Done));
        assert_eq!(goes(Unknown, false, Verified(false)), Some(Queued));
    }

    #[test]
    fn a_call_whose_result_is_uncertain_is_never_made_again_blindly() {
        assert_eq!(goes(Claimed, false, Uncertain), Some(Unknown));
        for event in [Claim, NotMade { after: None }, Lapsed, Uncertain, Retry, Discard] {
            assert_eq!(goes(Unknown, false, event), None, "{event:?}");
        }
    }

    #[test]
    fn tries_end_in_a_dead_letter_that_only_an_operator_moves() {
        assert_eq!(decide_effect(&effect(Claimed, true, 5), NotMade { after: None }), Some((Dead, None)));
        assert_eq!(goes(Claimed, true, Refused), Some(Dead));
        assert_eq!((goes(Dead, true, Retry), goes(Dead, true, Discard)), (Some(Queued), Some(Discarded)));
        assert_eq!(goes(Dead, true, Claim), None);
    }

    #[test]
    fn done_and_discarded_are_final() {
        let all = [
            Claim,
            Made,
            NotMade { after: None },
            Refused,
            Uncertain,
            Lapsed,
            Verified(false),
            Retry,
            Discard,
        ];
        for event in all {
            assert_eq!(goes(Done, true, event), None, "{event:?}");
            assert_eq!(goes(Discarded, true, event), None, "{event:?}");
        }
    }

    #[test]
    fn the_provider_may_ask_for_a_longer_pause_than_ours_and_not_for_a_shorter_one() {
        let pause = |secs| {
            decide_effect(&effect(Claimed, true, 3), NotMade { after: Some(Duration::from_secs(secs)) })
        };
        assert_eq!(pause(90), Some((Queued, Some(Duration::from_secs(90)))));
        assert_eq!(pause(0), Some((Queued, Some(Duration::from_secs(8)))));
    }
}
