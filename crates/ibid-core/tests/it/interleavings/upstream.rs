//! The upstream of the model: it executes requests, and knows which.

use std::collections::HashMap;

use ibid_core::machine::Observation;
use ibid_core::policy::Policy;
use ibid_core::record::{Nonce, Record};
use ibid_testkit::story::answer;

use super::operation::Op;
use super::policies::{LEASE, UPSTREAM, is_strict};
use super::simulation::{Actor, Run, Simulation, Stage};

/// The requests that were really executed, per generation.
#[derive(Default)]
pub(super) struct Upstream {
    pub(super) executed: HashMap<Nonce, u16>,
    /// Deliveries that have not decided yet: owner, birth, time of the decision, whether it executes.
    pub(super) slow: Vec<(Nonce, Nonce, u64, bool)>,
    /// Responses to slow deliveries, by owner.
    pub(super) answers: HashMap<Nonce, u16>,
    /// Effects that owe a response, by birth, and whether the call was made.
    pub(super) effects: HashMap<Nonce, bool>,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Delivery {
    /// The response has arrived.
    Answered(u16),
    /// The connection broke.
    Broken,
    /// No response yet; the flag says whether it was reported as uncertain.
    Slow { reported: bool },
}

impl Simulation {
    /// Lets the upstream execute the request. Without a policy the check is strict.
    pub(super) fn execute(&mut self, birth: Nonce, status: u16, policy: Option<&Policy>) {
        let before = self.upstream.executed.insert(birth, status);
        let strict = policy.is_none_or(is_strict);
        assert!(
            !strict || before.is_none(),
            "executed twice in one generation under a policy that forbids it"
        );
    }

    /// Delivers the request to the upstream.
    pub(super) fn deliver(&mut self, begun: &Record, luck: u8) -> Delivery {
        match luck % 9 {
            0 | 1 => {
                self.execute(begun.birth, 201, Some(&begun.policy));
                Delivery::Answered(201)
            }
            2 => {
                self.execute(begun.birth, 402, Some(&begun.policy));
                Delivery::Answered(402)
            }
            3 => Delivery::Answered(429),
            4 => Delivery::Answered(401),
            // A 500 proves nothing, and the request may have been executed.
            5 => {
                if luck >= 128 {
                    self.execute(begun.birth, 201, Some(&begun.policy));
                }
                Delivery::Answered(500)
            }
            6 => {
                if luck >= 128 {
                    self.execute(begun.birth, 201, Some(&begun.policy));
                }
                Delivery::Broken
            }
            _ if !is_strict(&begun.policy) || self.jumpy => Delivery::Answered(429),
            _ => {
                let does = luck >= 128;
                self.upstream.slow.push((begun.owner, begun.birth, self.real + UPSTREAM, does));
                Delivery::Slow { reported: false }
            }
        }
    }

    /// Makes the call of an effect of the current generation, or reports the effect dead.
    pub(super) fn effect(&mut self, how: u8, luck: u8, nonce: Nonce) -> Option<Op> {
        let (birth, policy) = self.shelf.record().map(|row| (row.birth, row.policy.clone()))?;
        let made = *self.upstream.effects.get(&birth)?;
        if !made && how.is_multiple_of(4) {
            return Some(Op::EffectDead(nonce));
        }
        if !made {
            self.upstream.effects.insert(birth, true);
            self.execute(birth, 201, Some(&policy));
        }
        Some(Op::EffectDone(nonce, answer(201, &format!("effect {luck}"))))
    }

    /// Asks the upstream for the outcome. It may not have received the request yet.
    pub(super) fn look_up(&self, luck: u8) -> Observation {
        let birth = self.shelf.record().map(|row| row.birth);
        match birth.and_then(|birth| self.upstream.executed.get(&birth)) {
            _ if luck.is_multiple_of(8) => Observation::Nothing,
            Some(status) => Observation::Executed(answer(*status, "looked up")),
            // The store's clock separates two lookups; a clock that jumps proves nothing.
            None if self.jumpy => Observation::Nothing,
            None => Observation::NotExecuted,
        }
    }

    /// Returns the true outcome, or nothing while the request may still be executed.
    pub(super) fn truth(&self) -> Observation {
        let Some(birth) = self.shelf.record().map(|row| row.birth) else {
            return Observation::Nothing;
        };
        let may_deliver = |run: &Run| {
            run.begun.birth == birth && run.delivery.is_none() && self.real < run.lease_from + LEASE
        };
        let open = self.upstream.slow.iter().any(|(_, b, ..)| *b == birth)
            || self.actors.iter().filter_map(|actor| actor.run.as_ref()).any(may_deliver)
            || self.actors.iter().any(Self::may_begin)
            || self.upstream.effects.get(&birth) == Some(&false);
        match self.upstream.executed.get(&birth) {
            Some(status) => Observation::Executed(answer(*status, "known")),
            None if open => Observation::Nothing,
            None => Observation::NotExecuted,
        }
    }

    /// Returns whether an actor may learn at any moment that its begin was committed, and run.
    fn may_begin(actor: &Actor) -> bool {
        let begins = |op: &Op| matches!(op, Op::Request(..) | Op::Claim(_) | Op::Resume(..));
        matches!(&actor.doing, Some((op, Stage::Decided { sent: true, .. })) if begins(op))
    }
}
