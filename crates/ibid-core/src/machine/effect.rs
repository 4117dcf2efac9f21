//! Decides the states of effects. An effect is one outbox row: an external call that has to be made. Pure, like the
//! rest of the machine.

use std::time::Duration;

use super::backoff;
use crate::change::InstantChange;
use crate::effect::{EffectChange, StoredEffect};
use crate::record::Nonce;

/// The state of an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum EffectState {
    /// The call has to be made.
    Queued = 1,
    /// A worker holds the effect under a lease.
    Claimed = 2,
    /// The call was made and its result recorded.
    Done = 3,
    /// It is not known whether the call was made.
    Unknown = 4,
    /// The provider refused, or the tries are used up. An operator must look at it.
    Dead = 5,
    /// An operator decided that the call will not be made.
    Discarded = 6,
}

impl EffectState {
    /// All states, in the order of their codes.
    pub const ALL: [EffectState; 6] = [
        EffectState::Queued,
        EffectState::Claimed,
        EffectState::Done,
        EffectState::Unknown,
        EffectState::Dead,
        EffectState::Discarded,
    ];

    /// Names of the states, in the order of [`ALL`](Self::ALL).
    pub const NAMES: [&'static str; 6] = ["queued", "claimed", "done", "unknown", "dead", "discarded"];

    /// State of an effect that has just been enqueued.
    pub const ENQUEUED: EffectState = EffectState::Queued;

    /// The states in which an effect may need an operator: `unknown` and `dead`.
    pub const NEED_OPERATOR: [EffectState; 2] = [EffectState::Unknown, EffectState::Dead];

    /// State of a new dead letter that is not a call of ours, but a notice to an operator.
    pub const LETTER: EffectState = EffectState::Dead;

    /// States of dead letters: the first always is one, the second while it is not due
    /// ([`is_dead_letter`](Self::is_dead_letter)).
    pub const DEAD_LETTERS: (EffectState, EffectState) = (EffectState::Dead, EffectState::Unknown);

    /// The state in which a worker holds a lease.
    pub const LEASED: EffectState = EffectState::Claimed;

    /// Returns the code that stores keep.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Returns the state with this code.
    pub fn from_code(code: u8) -> Option<EffectState> {
        EffectState::ALL.into_iter().find(|state| state.code() == code)
    }

    /// Returns the state's name, as in the contract.
    pub fn name(self) -> &'static str {
        EffectState::NAMES[self as usize - 1]
    }

    /// Returns the state with this name.
    pub fn from_name(name: &str) -> Option<EffectState> {
        EffectState::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Returns whether the call was made and its result recorded.
    pub fn is_done(self) -> bool {
        self == EffectState::Done
    }

    /// Returns whether it is not known if the call was made.
    pub fn is_unknown(self) -> bool {
        self == EffectState::Unknown
    }

    /// Returns whether evidence from outside may settle the effect now: no worker holds it, and it is neither over nor dead.
    pub fn waits_for_evidence(self) -> bool {
        matches!(self, EffectState::Queued | EffectState::Unknown)
    }

    /// Returns whether an operator discarded the effect, so that its call will not be made.
    pub fn is_discarded(self) -> bool {
        self == EffectState::Discarded
    }

    /// Returns whether the effect is over: no call will be made, and no operator has to look at it.
    pub fn is_final(self) -> bool {
        matches!(self, EffectState::Done | EffectState::Discarded)
    }

    /// Returns whether an effect in this state is a dead letter: only an operator, or evidence from outside, changes
    /// it.
    ///
    /// An unknown effect is a dead letter while no verification is due.
    pub fn is_dead_letter(self, is_due: bool) -> bool {
        let (always, unless_due) = EffectState::DEAD_LETTERS;
        self == always || (self == unless_due && !is_due)
    }
}

/// Reason for which a worker claims an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimReason {
    /// The lease of the previous claim has lapsed.
    Lapsed,
    /// The provider has to be asked whether the call was made.
    Verify,
    /// The call has to be made.
    Call,
}

impl ClaimReason {
    /// All reasons, in the order in which a worker looks for them. Lapsed claims and verifications come first: they are
    /// few, and a full queue must not starve them.
    pub const ALL: [ClaimReason; 3] = [ClaimReason::Lapsed, ClaimReason::Verify, ClaimReason::Call];

    /// Returns the state of due effects that are claimed for this reason, and their state while a worker holds them.
    pub fn states(self) -> (EffectState, EffectState) {
        match self {
            ClaimReason::Lapsed => (EffectState::Claimed, EffectState::Claimed),
            ClaimReason::Verify => (EffectState::Unknown, EffectState::Unknown),
            ClaimReason::Call => (EffectState::Queued, EffectState::Claimed),
        }
    }

    /// Returns whether the claim counts as a try. Verifications count, so that they end.
    pub fn is_try(self) -> bool {
        self != ClaimReason::Lapsed
    }
}

/// The part of an effect that its next state depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effect {
    /// State of the effect now.
    pub state: EffectState,
    /// Number of claims so far.
    pub tries: u32,
    /// Number of claims after which it is dead.
    pub tries_max: u32,
    /// Safe way to treat an uncertain call, as of now.
    pub doubt: InDoubtRule,
}

impl Effect {
    /// Returns whether it is only a letter, a notice to an operator: it may not be tried even once.
    pub fn is_letter(&self) -> bool {
        self.tries_max == 0
    }
}

/// Safe way to treat a call that may have been made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InDoubtRule {
    /// Repeat the call: the provider deduplicates by our key, and still remembers it.
    Repeat,
    /// Ask whether it was made, after this pause.
    Verify {
        /// Time for which a call may still be in flight.
        settle: Duration,
    },
    /// Only an operator can find out.
    Stop,
}

/// An event in the life of an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EffectEvent {
    /// A worker claims the effect.
    Claim,
    /// The call was made and its result recorded.
    Made,
    /// The call certainly had no effect.
    NotMade {
        /// The provider's `Retry-After`, if it sent one.
        after: Option<Duration>,
    },
    /// The provider refused permanently.
    Refused,
    /// The call may have been made.
    Uncertain,
    /// The lease of the claim has lapsed.
    Lapsed,
    /// `verify` was asked whether an uncertain or lapsed call was made. `None`: it could not tell.
    Verified(Option<bool>),
    /// An operator wants the call made.
    Retry,
    /// An operator wants the effect discarded.
    Discard,
}

/// Next state of an effect, and the pause after which it is due there. `None` leaves the effect alone.
pub type EffectVerdict = Option<(EffectState, Option<Duration>)>;

/// Returns the next state of an effect.
pub fn decide_effect(effect: &Effect, event: EffectEvent) -> EffectVerdict {
    use EffectEvent::{Claim, Discard, Lapsed, Made, NotMade, Refused, Retry, Uncertain, Verified};
    use EffectState::{Claimed, Dead, Discarded, Done, Queued, Unknown};
    match (effect.state, event) {
        (Queued, Claim) => Some((Claimed, None)),
        (Claimed | Unknown, Made) => Some((Done, None)),
        (Claimed, NotMade { after }) => Some(requeue(effect, after)),
        (Claimed, Refused) => Some((Dead, None)),
        (Claimed, Uncertain | Lapsed) => Some(match effect.doubt {
            // The last try may have made the call, so the effect is unknown, not dead.
            InDoubtRule::Repeat if effect.tries >= effect.tries_max => (Unknown, None),
            InDoubtRule::Repeat => requeue(effect, None),
            InDoubtRule::Verify { settle } => (Unknown, Some(settle)),
            // If the provider does not deduplicate, an uncertain call is never repeated blindly.
            InDoubtRule::Stop => (Unknown, None),
        }),
        // Also while it waits for its next try: whichever try made the call, the effect is done.
        (Queued | Claimed | Unknown, Verified(Some(true))) => Some((Done, None)),
        (Claimed | Unknown, Verified(Some(false))) => Some(requeue(effect, None)),
        (Claimed | Unknown, Verified(None)) if effect.tries >= effect.tries_max => Some((Unknown, None)),
        (Claimed | Unknown, Verified(None)) => Some((Unknown, Some(backoff(effect.tries)))),
        // A letter was never enqueued, so there is no call to make.
        (_, Retry) if effect.is_letter() => None,
        // The operator vouches for making the call (again).
        (Dead | Unknown, Retry) => Some((Queued, Some(Duration::ZERO))),
        (Dead | Unknown, Discard) => Some((Discarded, None)),
        _ => None,
    }
}

/// Returns the write that `event` leads to, or `None` if it leaves the effect alone.
///
/// The caller fills in result, provider id and error.
///
/// `jitter` is from 0 to 1, drawn by the caller. It spreads the pause over 0.75 to 1.25 of its length, so that effects
/// which failed together do not retry together.
pub fn change_effect(
    effect: &StoredEffect,
    event: EffectEvent,
    nonce: Nonce,
    jitter: f64,
) -> Option<EffectChange> {
    let (state, pause) = decide_effect(&effect.to_decide(), event)?;
    let pause_min = match event {
        EffectEvent::NotMade { after } => after.unwrap_or_default(),
        // A call may be in flight for the whole of this pause, so it is never shortened.
        EffectEvent::Uncertain | EffectEvent::Lapsed if state == EffectState::Unknown => {
            pause.unwrap_or_default()
        }
        _ => Duration::ZERO,
    };
    Some(EffectChange {
        state,
        tries: if event == EffectEvent::Retry { 0 } else { effect.tries },
        due_in: pause.map(|pause| pause.mul_f64(0.75 + 0.5 * jitter).max(pause_min)),
        called: match event {
            // No call was made, or an operator vouches for the next one: the provider's memory counts from that call.
            EffectEvent::Verified(Some(false)) | EffectEvent::Retry => InstantChange::Clear,
            _ => InstantChange::Keep,
        },
        ended: match (effect.state, state) {
            (EffectState::Unknown, EffectState::Unknown) => InstantChange::Keep,
            (_, EffectState::Unknown) => InstantChange::Now,
            _ => InstantChange::Clear,
        },
        ..EffectChange::touch(effect, nonce)
    })
}

/// Queues the effect again with backoff, never sooner than the provider's `Retry-After`. If the tries are used up, the
/// effect is dead.
fn requeue(effect: &Effect, after: Option<Duration>) -> (EffectState, Option<Duration>) {
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

    fn effect(state: EffectState, doubt: InDoubtRule, tries: u32) -> Effect {
        Effect { state, tries, tries_max: 5, doubt }
    }

    fn next_state(state: EffectState, doubt: InDoubtRule, event: EffectEvent) -> Option<EffectState> {
        decide_effect(&effect(state, doubt, 1), event).map(|(to, _)| to)
    }

    #[test]
    fn a_lapsed_claim_is_made_again_only_if_that_is_safe() {
        assert_eq!(next_state(Claimed, InDoubtRule::Repeat, Lapsed), Some(Queued));
        assert_eq!(next_state(Claimed, InDoubtRule::Stop, Lapsed), Some(Unknown));
        let verify = InDoubtRule::Verify { settle: SETTLE };
        assert_eq!(decide_effect(&effect(Claimed, verify, 1), Lapsed), Some((Unknown, Some(SETTLE))));
        for state in [Claimed, Unknown] {
            assert_eq!(next_state(state, verify, Verified(Some(true))), Some(Done));
            assert_eq!(next_state(state, verify, Verified(Some(false))), Some(Queued));
            assert_eq!(next_state(state, verify, Verified(None)), Some(Unknown));
        }
    }

    #[test]
    fn a_verification_that_never_tells_ends_in_a_dead_letter() {
        let verify = InDoubtRule::Verify { settle: SETTLE };
        assert_eq!(decide_effect(&effect(Unknown, verify, 5), Verified(None)), Some((Unknown, None)));
        assert!(decide_effect(&effect(Unknown, verify, 4), Verified(None)).unwrap().1.is_some());
    }

    #[test]
    fn a_call_whose_result_is_uncertain_is_never_made_again_blindly() {
        assert_eq!(decide_effect(&effect(Claimed, InDoubtRule::Stop, 1), Uncertain), Some((Unknown, None)));
        for event in [Claim, NotMade { after: None }, Lapsed, Uncertain] {
            assert_eq!(next_state(Unknown, InDoubtRule::Stop, event), None, "{event:?}");
        }
    }

    #[test]
    fn a_last_try_that_may_have_made_it_is_not_dead() {
        for event in [Uncertain, Lapsed] {
            assert_eq!(decide_effect(&effect(Claimed, InDoubtRule::Repeat, 5), event), Some((Unknown, None)));
        }
    }

    #[test]
    fn tries_end_in_a_dead_letter_that_only_an_operator_moves() {
        assert_eq!(
            decide_effect(&effect(Claimed, InDoubtRule::Repeat, 5), NotMade { after: None }),
            Some((Dead, None))
        );
        assert_eq!(next_state(Claimed, InDoubtRule::Repeat, Refused), Some(Dead));
        assert_eq!(
            (next_state(Dead, InDoubtRule::Repeat, Retry), next_state(Dead, InDoubtRule::Repeat, Discard)),
            (Some(Queued), Some(Discarded))
        );
        assert_eq!(next_state(Dead, InDoubtRule::Repeat, Claim), None);
    }

    #[test]
    fn a_letter_can_be_discarded_and_never_made() {
        let letter = Effect { tries_max: 0, ..effect(EffectState::LETTER, InDoubtRule::Stop, 0) };
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
            assert_eq!(next_state(Done, InDoubtRule::Repeat, event), None, "{event:?}");
            assert_eq!(next_state(Discarded, InDoubtRule::Repeat, event), None, "{event:?}");
        }
    }

    #[test]
    fn an_effect_waits_for_evidence_where_a_webhook_may_settle_it() {
        for state in EffectState::ALL {
            let settles = next_state(state, InDoubtRule::Stop, Verified(Some(true))) == Some(Done);
            // A worker that holds the effect looks for evidence itself, at the end of its claim.
            assert_eq!(state.waits_for_evidence(), settles && state != EffectState::LEASED, "{state:?}");
        }
    }

    #[test]
    fn a_provider_may_only_lengthen_the_pause() {
        let pause = |secs| {
            decide_effect(
                &effect(Claimed, InDoubtRule::Repeat, 3),
                NotMade { after: Some(Duration::from_secs(secs)) },
            )
        };
        assert_eq!(pause(90), Some((Queued, Some(Duration::from_secs(90)))));
        assert_eq!(pause(0), Some((Queued, Some(Duration::from_secs(8)))));
    }

    #[test]
    fn a_claim_for_a_call_is_the_transition_of_a_claim() {
        for reason in ClaimReason::ALL {
            let (from, to) = reason.states();
            let claimed = (reason == ClaimReason::Call).then_some(to);
            assert_eq!(next_state(from, InDoubtRule::Stop, Claim), claimed, "{reason:?}");
            assert_eq!(from == to, claimed.is_none(), "no other claim changes the state: {reason:?}");
        }
    }

    #[test]
    fn every_state_has_its_name() {
        for (state, name) in EffectState::ALL.into_iter().zip(EffectState::NAMES) {
            assert_eq!(state.name(), name);
            assert_eq!(format!("{state:?}").to_lowercase(), name);
            assert_eq!(EffectState::from_name(name), Some(state));
        }
        assert_eq!(EffectState::from_name("lost"), None);
    }
}
