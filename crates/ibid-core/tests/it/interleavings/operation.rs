//! The operations of the actors: the events that they report to the machine.

use bytes::Bytes;
use ibid_core::machine::{AttemptResponse, BeginRequest, Event, Intent, Observation, ObservedBy, PhaseStep};
use ibid_core::record::{ErrorCode, Nonce, Record};
use ibid_core::time::Timestamp;
use ibid_testkit::story::act;

/// An event that an actor wants to report to the machine.
#[derive(Clone)]
pub(super) enum Op {
    Request(BeginRequest, Intent),
    GaveUp(BeginRequest, Nonce),
    Answered(Box<Record>, Nonce, AttemptResponse),
    NotExecuted(Box<Record>, Nonce),
    Uncertain(Box<Record>, Nonce),
    Owes(Box<Record>, Nonce),
    Phase(Box<Record>, Nonce, u16, Bytes),
    Claim(Nonce),
    /// The flag says whether the sweeper is careful.
    Lapsed(Nonce, bool),
    Resume(Nonce, bool),
    NeverClaimed(Nonce),
    EffectDone(Nonce, AttemptResponse),
    EffectDead(Nonce),
    Found(Nonce, ObservedBy<'static>, Observation, Timestamp),
    Forget(Nonce),
}

impl Op {
    pub(super) fn with_nonce(mut self, drawn: Nonce) -> Op {
        match &mut self {
            Op::Request(ask, _) => ask.nonce = drawn,
            Op::GaveUp(_, nonce)
            | Op::Answered(_, nonce, _)
            | Op::NotExecuted(_, nonce)
            | Op::Uncertain(_, nonce)
            | Op::Owes(_, nonce)
            | Op::Phase(_, nonce, ..)
            | Op::Claim(nonce)
            | Op::Lapsed(nonce, _)
            | Op::Resume(nonce, _)
            | Op::NeverClaimed(nonce)
            | Op::EffectDone(nonce, _)
            | Op::EffectDead(nonce)
            | Op::Found(nonce, ..)
            | Op::Forget(nonce) => *nonce = drawn,
        }
        self
    }

    pub(super) fn event(&self) -> Event<'_> {
        let why = ErrorCode::NotSent;
        match self {
            Op::Request(ask, role) => Event::Request { ask, role: *role },
            Op::GaveUp(ask, nonce) => Event::GaveUp { ask, nonce: *nonce },
            Op::Answered(begun, nonce, answer) => Event::Answered { begun, nonce: *nonce, answer },
            Op::NotExecuted(begun, nonce) => Event::NotExecuted { begun, nonce: *nonce, why },
            Op::Uncertain(begun, nonce) => Event::Uncertain { begun, nonce: *nonce, why: ErrorCode::Broken },
            Op::Owes(begun, nonce) => Event::Owes { begun, nonce: *nonce },
            Op::Phase(begun, nonce, point, result) => Event::Phase {
                begun,
                nonce: *nonce,
                step: PhaseStep { point: *point, phases: 1 },
                name: "work",
                result,
            },
            Op::Claim(nonce) => Event::Claim { nonce: *nonce },
            Op::Lapsed(nonce, careful) => Event::Lapsed { nonce: *nonce, careful: *careful },
            Op::Resume(nonce, careful) => Event::Resume { nonce: *nonce, careful: *careful },
            Op::NeverClaimed(nonce) => Event::NeverClaimed { nonce: *nonce },
            Op::EffectDone(nonce, answer) => Event::EffectDone { nonce: *nonce, answer },
            Op::EffectDead(nonce) => Event::EffectDead { nonce: *nonce },
            Op::Found(nonce, by, what, as_of) => {
                Event::Observed { nonce: *nonce, by: *by, what, as_of: *as_of, jitter: 0.0 }
            }
            Op::Forget(nonce) => Event::Forget { nonce: *nonce, act: act() },
        }
    }
}
