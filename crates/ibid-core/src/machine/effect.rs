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

    /// The code that stores keep.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The state with this code.
    pub fn from_code(code: u8) -> Option<EffectState> {
        EffectState::ALL.into_iter().find(|state| state.code() == code)
    }

    /// Whether it is over: neither made any more nor a person's to look at.
    pub fn is_final(self) -> bool {
        matches!(self, EffectState::Done | EffectState::Discarded)
    }

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
    /// What may be done about an uncertain call, as of now.
    pub doubt: Doubt,
}

impl Effect {
    /// Whether it is only a letter to a person: it may be tried not even once.
    pub fn is_letter(&self) -> bool {
        self.tries_max == 0
    }
}

/// Where a letter begins that is no call of ours but something that a person must see.
pub fn letter_state() -> EffectState {
    EffectState::Dead
}

/// What may be done about a call that may have been made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// Make it again: the provider deduplicates by our key, and still remembers it.
    Repeat,
    /// Ask whether it was made, after this pause.
    Verify {
        /// So long a call may still be under way.
        settle: Duration,
    },
    /// Nothing but to ask a person.
    Stop,
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
    /// `verify` was asked whether an uncertain or lapsed call was made; none: it could not tell.
    Verified(Option<bool>),
    /// An operator wants it made.
    Retry,
    /// An operator wants it gone.
    Discard,
}

/// Where the Effect goes, and after which pause it is due there; `None` leaves it alone. Unknown without a pause is a
/// person's.
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
        (Claimed, Uncertain | Lapsed) => Some(match effect.doubt {
            // The last try may have made it: that is not known, and not dead.
            Doubt::Repeat if effect.tries >= effect.tries_max => (Unknown, None),
            Doubt::Repeat => again(effect, None),
            Doubt::Verify { settle } => (Unknown, Some(settle)),
            // Where the provider does not deduplicate, an uncertain call is never made again blindly.
            Doubt::Stop => (Unknown, None),
        }),
        // Also while it waits to be made again: whichever try did it, it is done.
        (Queued | Claimed | Unknown, Verified(Some(true))) => Some((Done, None)),
        (Claimed | Unknown, Verified(Some(false))) => Some(again(effect, None)),
        (Claimed | Unknown, Verified(None)) if effect.tries >= effect.tries_max => Some((Unknown, None)),
        (Claimed | Unknown, Verified(None)) => Some((Unknown, Some(backoff(effect.tries)))),
        // Nobody ever asked for it, so there is nothing to make.
        (_, Retry) if effect.is_letter() => None,
        // An operator's word that making it (again) is right.
        (Dead | Unknown, Retry) => Some((Queued, Some(Duration::ZERO))),
        (Dead | Unknown, Discard) => Some((Discarded, None)),
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

    const SETTLE: Duration = Duration::from_secs(60);

    fn effect(state: EffectState, doubt: Doubt, tries: u32) -> Effect {
        Effect { state, tries, tries_max: 5, doubt }
    }

    fn goes(state: EffectState, doubt: Doubt, event: EffectEvent) -> Option<EffectState> {
        decide_effect(&effect(state, doubt, 1), event).map(|(to, _)| to)
    }

    #[test]
    fn a_lapsed_claim_is_made_again_only_if_that_is_safe() {
        assert_eq!(goes(Claimed, Doubt::Repeat, Lapsed), Some(Queued));
        assert_eq!(goes(Claimed, Doubt::Stop, Lapsed), Some(Unknown));
        let asked = Doubt::Verify { settle: SETTLE };
        assert_eq!(decide_effect(&effect(Claimed, asked, 1), Lapsed), Some((Unknown, Some(SETTLE))));
        for state in [Claimed, Unknown] {
            assert_eq!(goes(state, asked, Verified(Some(true))), Some(Done));
            assert_eq!(goes(state, asked, Verified(Some(false))), Some(Queued));
            assert_eq!(goes(state, asked, Verified(None)), Some(Unknown));
        }
    }

    #[test]
    fn a_verification_that_never_tells_ends_with_a_person() {
        let asked = Doubt::Verify { settle: SETTLE };
        assert_eq!(decide_effect(&effect(Unknown, asked, 5), Verified(None)), Some((Unknown, None)));
        assert!(decide_effect(&effect(Unknown, asked, 4), Verified(None)).unwrap().1.is_some());
    }

    #[test]
    fn a_call_whose_result_is_uncertain_is_never_made_again_blindly() {
        assert_eq!(decide_effect(&effect(Claimed, Doubt::Stop, 1), Uncertain), Some((Unknown, None)));
        for event in [Claim, NotMade { after: None }, Lapsed, Uncertain] {
            assert_eq!(goes(Unknown, Doubt::Stop, event), None, "{event:?}");
        }
    }

    #[test]
    fn a_last_try_that_may_have_made_it_is_not_dead() {
        for event in [Uncertain, Lapsed] {
            assert_eq!(decide_effect(&effect(Claimed, Doubt::Repeat, 5), event), Some((Unknown, None)));
        }
    }

    #[test]
    fn tries_end_in_a_dead_letter_that_only_an_operator_moves() {
        assert_eq!(
            decide_effect(&effect(Claimed, Doubt::Repeat, 5), NotMade { after: None }),
            Some((Dead, None))
        );
        assert_eq!(goes(Claimed, Doubt::Repeat, Refused), Some(Dead));
        assert_eq!(
            (goes(Dead, Doubt::Repeat, Retry), goes(Dead, Doubt::Repeat, Discard)),
            (Some(Queued), Some(Discarded))
        );
        assert_eq!(goes(Dead, Doubt::Repeat, Claim), None);
    }

    #[test]
    fn a_letter_can_be_discarded_and_never_made() {
        let letter = Effect { tries_max: 0, ..effect(letter_state(), Doubt::Stop, 0) };
        assert_eq!(decide_effect(&letter, Retry), None);
        assert_eq!(decide_effect(&letter, Claim), None);
        assert_eq!(decide_effect(&letter, Discard), Some((Discarded, None)));
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
            Verified(Some(false)),
            Retry,
            Discard,
        ];
        for event in all {
            assert_eq!(goes(Done, Doubt::Repeat, event), None, "{event:?}");
            assert_eq!(goes(Discarded, Doubt::Repeat, event), None, "{event:?}");
        }
    }

    #[test]
    fn the_provider_may_ask_for_a_longer_pause_than_ours_and_not_for_a_shorter_one() {
        let pause = |secs| {
            decide_effect(
                &effect(Claimed, Doubt::Repeat, 3),
                NotMade { after: Some(Duration::from_secs(secs)) },
            )
        };
        assert_eq!(pause(90), Some((Queued, Some(Duration::from_secs(90)))));
        assert_eq!(pause(0), Some((Queued, Some(Duration::from_secs(8)))));
    }
}
