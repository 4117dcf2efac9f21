//! Runs arbitrary interleavings of all actors on one record, and checks the invariants after every step.
//!
//! Each actor reads, decides and commits in separate steps, so every commit may depend on a stale read. Requests and
//! replies get lost, writes arrive late, callers crash, the store's clock jumps, rows are lost and inserted again. The
//! upstream of this model knows what was really executed. Longer than most files, because world and watch belong
//! together.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ibid_core::change::{Change, Commit, Draft, Expect};
use ibid_core::effect::KEY_WINDOW;
use ibid_core::machine::{
    AttemptResponse, BeginRequest, Decision, Event, Intent, Observation, ObservedBy, PhaseStep, Verdict,
    decide,
};
use ibid_core::policy::{AfterExpiry, AnswerRule, OnLapse, OnServerError, Policy, Reconcile};
use ibid_core::record::{ErrorCode, Nonce, Record, State, Version};
use ibid_core::response::SavedResponse;
use ibid_core::time::Timestamp;
use ibid_testkit::story::{StoryStore, act, answer, ask};
use proptest::prelude::*;

proptest! {
    // Enough to shrink a failure to its core; the fixed run below is the thorough one.
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_interleaving_breaks_an_invariant(
        start in 0..POLICIES,
        jumpy: bool,
        steps in prop::collection::vec(any::<(u8, u8, u8)>(), 0..160),
    ) {
        let mut world = World::new(start, jumpy);
        for (who, how, luck) in steps {
            world.step(who, how, luck);
        }
    }
}

#[test]
fn a_fixed_run_meets_every_situation_that_matters() {
    let mut dice = Dice(0x1b1d);
    let mut situation_counts = BTreeMap::new();
    for run in 0..RUNS {
        let mut world = World::new(run % POLICIES, run % 3 == 0);
        for _ in 0..STEPS {
            let [who, how, luck, ..] = dice.roll().to_le_bytes();
            world.step(who, how, luck);
        }
        for (situation, times) in world.situation_counts {
            *situation_counts.entry(situation).or_insert(0u32) += times;
        }
    }
    let missing: Vec<_> = SITUATIONS.iter().filter(|known| !situation_counts.contains_key(*known)).collect();
    assert!(missing.is_empty(), "never reached: {missing:?}\nreached: {situation_counts:#?}");
}

/// Situations that a run must reach to prove anything.
const SITUATIONS: [&str; 40] = [
    "a first request ran",
    "a first request was accepted to run later",
    "an insert lost to another",
    "a retryable record was run again",
    "a run again lost to another",
    "a takeover ran",
    "a takeover was refused because the lease was renewed",
    "a careful request did not take over",
    "a waiter was refused on a retryable record",
    "a request met another fingerprint",
    "a request met an unknown record",
    "an expired key began a new generation",
    "a new generation lost to another",
    "an expired key was refused",
    "a response was replayed",
    "an own lost reply was recognised",
    "a late write came after its sender had given up",
    "a given-up begin was replaced by a placeholder",
    "a given-up placeholder was beaten by the begin",
    "a given-up begin was released",
    "a late finish was accepted",
    "a late finish found another owner",
    "a late finish found a stored response",
    "a finish found no record",
    "a sweep settled",
    "a sweep was refused",
    "a lapse was poison",
    "a reconciler settled as executed",
    "a reconciler settled as not executed",
    "a reconciler lost to the late owner",
    "old evidence was ignored",
    "an operator forgot a response",
    "an effect settled an owed response",
    "a phase was committed",
    "a phase of a lost lease was refused",
    "an unclaimed request was timed out",
    "a row was purged and its key begun again",
    "a record with an in-doubt call was run again",
    "a record with an in-doubt call became unknown",
    "a sweeper resumed a record with an in-doubt call",
];

/// Runs and steps of the fixed run: some seconds in a development build.
const RUNS: usize = 15_000;
const STEPS: usize = 240;

/// One key, all actors that use it, and the upstream behind it.
struct World {
    shelf: StoryStore,
    /// Real time since the start, in seconds; the store's clock is this plus its error.
    real: u64,
    /// `true` if the store's clock may jump.
    jumpy: bool,
    /// Time, in real seconds, until which all actors are careful after a jump.
    careful_until: u64,
    actors: Vec<Actor>,
    configured: usize,
    policies: Vec<Arc<Policy>>,
    nonces: u64,
    /// Writes in flight whose sender no longer waits for them.
    late: Vec<(Arc<Change>, Op)>,
    upstream: Upstream,
    watch: Watch,
    situation_counts: BTreeMap<&'static str, u32>,
    purged: bool,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Client,
    Worker,
    Sweeper,
    Reaper,
    Reconciler,
    Webhook,
    Operator,
    Effect,
}

struct Actor {
    kind: Kind,
    doing: Option<(Op, Stage)>,
    run: Option<Run>,
}

/// An event that an actor wants to report to the machine.
#[derive(Clone)]
enum Op {
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

enum Stage {
    /// Nothing has been read yet.
    Start,
    /// The record was read, perhaps long ago.
    Read(Option<Box<Record>>, Timestamp),
    /// The decision was made; the write was perhaps sent already.
    Decided { change: Arc<Change>, decision: Decision, sent_at: u64, sent: bool },
}

/// A running attempt, from its own view.
struct Run {
    begun: Record,
    version: Version,
    /// Start of its lease on its own clock.
    lease_from: u64,
    delivery: Option<Delivery>,
}

#[derive(Clone, Copy, PartialEq)]
enum Delivery {
    /// The response has arrived.
    Answered(u16),
    /// The connection broke.
    Broken,
    /// No response yet; the flag says whether it was reported as uncertain.
    Slow { reported: bool },
}

/// The requests that were really executed, per generation.
#[derive(Default)]
struct Upstream {
    executed: HashMap<Nonce, u16>,
    /// Deliveries that have not decided yet: owner, birth, time of the decision, whether it executes.
    slow: Vec<(Nonce, Nonce, u64, bool)>,
    /// Responses to slow deliveries, by owner.
    answers: HashMap<Nonce, u16>,
    /// Effects that owe a response, by birth, and whether the call was made.
    effects: HashMap<Nonce, bool>,
}

/// History of the world to check against.
#[derive(Default)]
struct Watch {
    versions: HashMap<Version, Draft>,
    answers: HashMap<Nonce, Option<SavedResponse>>,
    given_up: HashSet<Nonce>,
    /// Latest time that the store's clock ever showed: a record that was read as expired stays so if the clock steps
    /// back.
    furthest: Timestamp,
}

impl World {
    fn new(configured: usize, jumpy: bool) -> World {
        use Kind::{Client, Effect, Operator, Reaper, Reconciler, Sweeper, Webhook, Worker};
        let kinds = [
            Client, Client, Client, Client, Worker, Worker, Sweeper, Sweeper, Reaper, Reconciler, Reconciler,
            Webhook, Operator, Effect,
        ];
        World {
            shelf: StoryStore::new(),
            real: 0,
            jumpy,
            careful_until: 0,
            actors: kinds.map(|kind| Actor { kind, doing: None, run: None }).into(),
            configured,
            policies: policies().map(Arc::new).into(),
            nonces: 0,
            late: Vec::new(),
            upstream: Upstream::default(),
            watch: Watch::default(),
            situation_counts: BTreeMap::new(),
            purged: false,
        }
    }

    /// Makes one step of one actor, or of the world itself.
    fn step(&mut self, who: u8, how: u8, luck: u8) {
        let (who, all) = (usize::from(who) % 64, self.actors.len());
        // All actors move; clients, workers and those that settle move most, and time moves often.
        let index = match who {
            _ if who < all => who,
            14..28 => who % 4,
            28..30 => 6 + who % 2,
            30..36 => 4 + who % 2,
            36..42 => 9 + who % 2,
            _ => return self.advance_world(how, luck),
        };
        let mut actor =
            std::mem::replace(&mut self.actors[index], Actor { kind: Kind::Client, doing: None, run: None });
        match actor.doing.take() {
            Some((op, stage)) => self.continue_op(&mut actor, op, stage, how, luck),
            None if actor.run.is_some() => self.work(&mut actor, how, luck),
            None => self.start_op(&mut actor, how, luck),
        }
        self.actors[index] = actor;
    }

    fn count(&mut self, situation: &'static str) {
        *self.situation_counts.entry(situation).or_default() += 1;
    }

    fn draw(&mut self) -> Nonce {
        self.nonces += 1;
        Nonce(self.nonces)
    }

    /// Moves time, the store, the network or the configuration.
    fn advance_world(&mut self, how: u8, luck: u8) {
        match how % 16 {
            0..=2 => self.pass(1 + u64::from(luck) % 10),
            3..=4 => self.pass(LEASE / 2),
            5 => self.pass(LEASE),
            6..=7 => self.pass(SETTLE),
            8 if luck.is_multiple_of(4) => self.pass(RETENTION),
            9 if luck.is_multiple_of(2) => self.configured = usize::from(luck / 2) % POLICIES,
            10..=12 if !self.late.is_empty() => {
                let (change, op) = self.late.swap_remove(usize::from(luck) % self.late.len());
                self.count("a late write came after its sender had given up");
                self.commit(&change, &op);
            }
            13 if self.jumpy => {
                let by = [2, 31, 61, 3601][usize::from(luck / 2) % 4];
                let by = if luck.is_multiple_of(2) { by } else { -by };
                self.shelf.now = Timestamp::from_micros(self.shelf.now.as_micros() + by * 1_000_000);
                self.watch.furthest = self.watch.furthest.max(self.shelf.now);
                self.careful_until = self.real + LEASE;
            }
            14 if luck < 4 => {
                // A lost row: the response that an attempt then inserts again is its own, whatever was stored before.
                // The row that made late begins lose is gone, too.
                self.watch.answers.clear();
                self.watch.given_up.clear();
                self.shelf.lose();
            }
            15 if luck < 8 => self.pass(KEY_WINDOW.as_secs()),
            _ => self.pass(1),
        }
    }

    fn pass(&mut self, seconds: u64) {
        self.real += seconds;
        self.shelf.now = self.shelf.now.after(Duration::from_secs(seconds));
        self.watch.furthest = self.watch.furthest.max(self.shelf.now);
        let (due, slow) = std::mem::take(&mut self.upstream.slow).into_iter().partition(|d| d.2 <= self.real);
        self.upstream.slow = slow;
        for (owner, birth, _, does) in Vec::from_iter::<Vec<_>>(due) {
            if does {
                self.execute(birth, 201, None);
            }
            self.upstream.answers.insert(owner, if does { 201 } else { 429 });
        }
    }

    /// Lets the upstream execute the request. Without a policy the check is strict.
    fn execute(&mut self, birth: Nonce, status: u16, policy: Option<&Policy>) {
        let before = self.upstream.executed.insert(birth, status);
        let strict = policy.is_none_or(is_strict);
        assert!(
            !strict || before.is_none(),
            "executed twice in one generation under a policy that forbids it"
        );
    }

    /// Lets an idle actor start an operation.
    fn start_op(&mut self, actor: &mut Actor, how: u8, luck: u8) {
        let nonce = self.draw();
        let row = self.shelf.record();
        let state = row.map(|row| row.state);
        let due = row.is_some_and(|row| row.is_due(self.shelf.now));
        let op = match actor.kind {
            Kind::Client => {
                let policy = self.policies[self.configured].clone();
                let body = if how.is_multiple_of(8) { "B" } else { "A" };
                let role = match luck % 8 {
                    _ if self.real < self.careful_until => Intent::MayRunNoTakeover,
                    0 | 1 => Intent::ReadOnly,
                    _ => Intent::MayRun,
                };
                let later = (policy.answer == AnswerRule::Async).then(|| Bytes::from_static(b"asked"));
                let mut ask = ask("shop", body, policy, nonce);
                ask.later = later;
                Op::Request(ask, role)
            }
            Kind::Worker if state == Some(State::Pending) => Op::Claim(nonce),
            Kind::Sweeper if due && matches!(state, Some(State::InProgress | State::Retryable)) => {
                if how.is_multiple_of(2) {
                    actor.doing = Some((Op::Resume(nonce, self.real < self.careful_until), Stage::Start));
                    return;
                }
                Op::Lapsed(nonce, self.real < self.careful_until)
            }
            Kind::Reaper if due && state == Some(State::Pending) && how.is_multiple_of(2) => {
                Op::NeverClaimed(nonce)
            }
            Kind::Reaper => {
                let birth = self.shelf.record().map(|row| row.birth);
                if self.shelf.purge() {
                    self.purged = true;
                    self.watch.answers.retain(|known, _| Some(*known) != birth);
                    // No write is in flight for as long as a retention.
                    self.late.clear();
                }
                return;
            }
            Kind::Reconciler if due && state == Some(State::Unknown) => {
                Op::Found(nonce, ObservedBy::Reconciler, self.look_up(luck), self.shelf.now)
            }
            Kind::Webhook if state == Some(State::Unknown) || how.is_multiple_of(4) => {
                Op::Found(nonce, ObservedBy::Webhook, self.truth(), self.shelf.now)
            }
            Kind::Operator if how.is_multiple_of(8) => Op::Forget(nonce),
            Kind::Operator if state == Some(State::Unknown) && how.is_multiple_of(4) => {
                Op::Found(nonce, ObservedBy::Operator(act()), self.truth(), self.shelf.now)
            }
            Kind::Effect => match self.effect(how, luck, nonce) {
                Some(op) => op,
                None => return,
            },
            _ => return,
        };
        actor.doing = Some((op, Stage::Start));
    }

    /// Makes the call of an effect of the current generation, or reports the effect dead.
    fn effect(&mut self, how: u8, luck: u8, nonce: Nonce) -> Option<Op> {
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
    fn look_up(&self, luck: u8) -> Observation {
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
    fn truth(&self) -> Observation {
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

    /// Continues an actor's operation: reads, decides, commits.
    fn continue_op(&mut self, actor: &mut Actor, op: Op, stage: Stage, how: u8, luck: u8) {
        // Any actor may crash at any step. A write that was sent may still arrive.
        if luck == 255 {
            if let Stage::Decided { change, sent: true, .. } = stage {
                self.late.push((change, op));
            }
            actor.run = None;
            return;
        }
        match stage {
            Stage::Start => {
                let read = Stage::Read(self.shelf.record().cloned().map(Box::new), self.shelf.now);
                actor.doing = Some((op, read));
            }
            Stage::Read(row, read_at) => {
                let verdict = decide(row.as_deref(), &op.event(), read_at);
                self.check_decision(&op, row.as_deref(), read_at, &verdict);
                match verdict {
                    Verdict::Keep(decision) => {
                        self.outcome(actor, op, decision, row.map(|row| *row), self.real)
                    }
                    Verdict::Write(change, decision) => {
                        let stage = Stage::Decided { change, decision, sent_at: self.real, sent: false };
                        actor.doing = Some((op, stage));
                    }
                }
            }
            Stage::Decided { change, decision, sent_at, sent } => {
                let sent_at = if sent { sent_at } else { self.real };
                match how % 8 {
                    // The request is lost or late, and the same change is sent again.
                    0 => {
                        if luck.is_multiple_of(2) {
                            self.late.push((change.clone(), op.clone()));
                        }
                        actor.doing = Some((op, Stage::Decided { change, decision, sent_at, sent: true }));
                    }
                    // The reply is lost.
                    1 => {
                        self.commit(&change, &op);
                        actor.doing = Some((op, Stage::Decided { change, decision, sent_at, sent: true }));
                    }
                    2 if sent && matches!(op, Op::Request(..)) => self.give_up(actor, op, change, luck),
                    _ => self.send(actor, op, change, decision, sent_at),
                }
            }
        }
    }

    /// Gives up a begin without a reply: the client gets 503, and a write must make the begin lose.
    fn give_up(&mut self, actor: &mut Actor, op: Op, change: Arc<Change>, luck: u8) {
        let Op::Request(ask, _) = &op else { return };
        let nonce = self.draw();
        actor.doing = Some((Op::GaveUp(ask.clone(), nonce), Stage::Start));
        if luck.is_multiple_of(2) {
            self.late.push((change, op));
        }
    }

    fn send(&mut self, actor: &mut Actor, op: Op, change: Arc<Change>, decision: Decision, sent_at: u64) {
        let before = self.shelf.record().cloned();
        match self.commit(&change, &op) {
            Commit::Done(_) => {
                let row = self.shelf.record().cloned();
                self.count_commit(&op, &change, &decision, before.as_ref());
                self.outcome(actor, op, decision, row, sent_at);
            }
            Commit::Conflict(newer) => {
                let newer = newer.map(|newer| *newer);
                if newer.as_ref().is_some_and(|newer| change.is_stored_as(newer)) {
                    self.count("an own lost reply was recognised");
                    self.outcome(
                        actor,
                        op,
                        decision,
                        newer.map(|newer| Arc::unwrap_or_clone(newer.record)),
                        sent_at,
                    );
                    return;
                }
                self.count_lost_race(&op, &change, newer.as_ref().map(|newer| &*newer.record));
                // Decide again on the newer record. That is another write, so it draws another nonce.
                let op = op.with_nonce(self.draw());
                let read = newer.map(|newer| Box::new(Arc::unwrap_or_clone(newer.record)));
                actor.doing = Some((op, Stage::Read(read, self.shelf.now)));
            }
        }
    }

    /// Applies a definite decision to the actor.
    fn outcome(&mut self, actor: &mut Actor, op: Op, decision: Decision, row: Option<Record>, sent_at: u64) {
        match (&op, &decision) {
            (_, Decision::Run { .. }) => {
                let record = row.expect("a run has a row");
                actor.run =
                    Some(Run { version: record.version, begun: record, lease_from: sent_at, delivery: None });
            }
            (Op::Phase(..), Decision::Advanced) => {
                if let (Some(run), Some(row)) = (&mut actor.run, row) {
                    (run.version, run.lease_from) = (row.version, sent_at);
                }
            }
            // Its response may still arrive.
            (Op::Uncertain(..), _) => {}
            (Op::GaveUp(ask, _), Decision::Freed) => {
                self.watch.given_up.insert(ask.nonce);
            }
            (Op::Found(.., as_of), Decision::Ignored) => {
                let ran_at = row.filter(|row| row.state == State::Unknown).and_then(|row| row.ran_at);
                if ran_at.is_some_and(|ran_at| *as_of < ran_at) {
                    self.count("old evidence was ignored");
                }
            }
            (Op::Answered(begun, ..), Decision::Superseded) => {
                match row {
                    Some(row) if row.owner != begun.owner => self.count("a late finish found another owner"),
                    Some(row) if row.state == State::Completed => {
                        self.count("a late finish found a stored response")
                    }
                    _ => {}
                }
                actor.run = None;
            }
            (Op::Phase(..), Decision::Superseded) => {
                self.count("a phase of a lost lease was refused");
                actor.run = None;
            }
            (Op::Answered(..) | Op::NotExecuted(..) | Op::Owes(..), _) => actor.run = None,
            (Op::Request(_, role), decision) => self.count_request(*role, decision, row.as_ref()),
            _ => {}
        }
    }

    fn count_request(&mut self, role: Intent, decision: &Decision, row: Option<&Record>) {
        let state = row.map(|row| row.state);
        match decision {
            Decision::Free if role == Intent::ReadOnly && state == Some(State::Retryable) => {
                self.count("a waiter was refused on a retryable record");
            }
            Decision::Wait { .. }
                if role == Intent::MayRunNoTakeover && row.is_some_and(|row| row.is_due(self.shelf.now)) =>
            {
                self.count("a careful request did not take over");
            }
            Decision::Mismatch => self.count("a request met another fingerprint"),
            Decision::Unknown { .. } => self.count("a request met an unknown record"),
            Decision::Expired => self.count("an expired key was refused"),
            Decision::Replay => self.count("a response was replayed"),
            _ => {}
        }
    }

    /// Lets a running attempt do the next piece of its work.
    fn work(&mut self, actor: &mut Actor, how: u8, luck: u8) {
        let nonce = self.draw();
        let run = actor.run.as_mut().expect("it runs");
        let record = Box::new(run.begun.clone());
        let who = format!("attempt {:?}", record.owner);
        let held_for = self.real - run.lease_from;
        let op = match (run.delivery, how % 16) {
            (_, 0) => {
                actor.run = None; // crashed
                return;
            }
            (Some(Delivery::Answered(status)), _) => Op::Answered(record, nonce, answer(status, &who)),
            (Some(Delivery::Broken), _) => {
                actor.run = None;
                Op::Uncertain(record, nonce)
            }
            (Some(Delivery::Slow { reported }), _) => match self.upstream.answers.get(&record.owner) {
                Some(status) => Op::Answered(record, nonce, answer(*status, &who)),
                None if !reported && how.is_multiple_of(2) => {
                    run.delivery = Some(Delivery::Slow { reported: true });
                    Op::Uncertain(record, nonce)
                }
                None => return,
            },
            // After the end of its lease it sends nothing.
            (None, _) if held_for >= LEASE => Op::NotExecuted(record, nonce),
            // After half of its lease it renews first.
            (None, how) if how == 1 || held_for > LEASE / 2 => {
                if self.shelf.renew(run.version) && !luck.is_multiple_of(4) {
                    run.lease_from = self.real;
                }
                return;
            }
            (None, 2) => Op::NotExecuted(record, nonce),
            (None, 3) => Op::Owes(record, nonce),
            (None, 4 | 5) => {
                let point = self.shelf.record().map_or(0, |row| row.point) + 1;
                Op::Phase(record, nonce, point, Bytes::from_static(b"result"))
            }
            // It makes an external call and gets no result. It may end at once, or continue.
            (None, 6) => {
                let point = self.shelf.record().map_or(0, |row| row.point) + 1;
                run.begun.note.doubt = Some(point);
                if luck.is_multiple_of(2) {
                    return;
                }
                Op::NotExecuted(Box::new(run.begun.clone()), nonce)
            }
            (None, _) => {
                run.delivery = Some(self.deliver(&record, luck));
                return;
            }
        };
        actor.doing = Some((op, Stage::Start));
    }

    /// Delivers the request to the upstream.
    fn deliver(&mut self, begun: &Record, luck: u8) -> Delivery {
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

    /// Sends one change to the store and checks the result.
    fn commit(&mut self, change: &Change, op: &Op) -> Commit {
        let before = self.shelf.load();
        let commit = self.shelf.commit(change);
        let after = self.shelf.load();
        match &commit {
            Commit::Conflict(_) => assert_eq!(before, after, "a refused write changes nothing"),
            Commit::Done(_) if change.draft.is_none() => assert_eq!(before, after, "history only"),
            Commit::Done(_) => {
                let after = after.expect("a draft leaves a row");
                if before.is_none() && self.purged {
                    self.purged = false;
                    self.count("a row was purged and its key begun again");
                }
                let now = self.shelf.now;
                // The very same write may be sent again after its row was lost or removed.
                let draft = change.draft.clone().expect("it has a draft");
                if let Some(first) = self.watch.versions.insert(after.record.version, draft.clone()) {
                    assert_eq!(first, draft, "two writes under one version");
                }
                if after.record.flags.owed {
                    self.upstream.effects.entry(after.record.birth).or_insert(false);
                }
                self.watch.check(before.as_ref().map(|b| &*b.record), &after.record, after.response, op, now);
            }
        }
        commit
    }

    /// Checks a decision before anything is written.
    fn check_decision(&self, op: &Op, row: Option<&Record>, now: Timestamp, verdict: &Verdict) {
        let (Verdict::Keep(decision) | Verdict::Write(_, decision)) = verdict;
        let Op::Request(ask, role) = op else { return };
        let runs = matches!(decision, Decision::Run { .. } | Decision::Accepted);
        assert!(!runs || *role != Intent::ReadOnly, "a waiter never starts an attempt");
        let Some(row) = row else { return };
        let takes_over = runs && row.state == State::InProgress;
        assert!(!takes_over || *role == Intent::MayRun, "a careful request takes nothing over");
        if row.is_expired(now) {
            let fits = runs || matches!(decision, Decision::Expired | Decision::Free);
            assert!(fits, "an expired record counts as absent: {decision:?}");
            return;
        }
        if row.fingerprint.as_ref().is_some_and(|stored| *stored != ask.fingerprint) {
            assert_eq!(*decision, Decision::Mismatch, "another fingerprint, in {:?}", row.state);
        }
        if row.state == State::Unknown {
            let fits = matches!(decision, Decision::Unknown { .. } | Decision::Mismatch);
            assert!(fits && matches!(verdict, Verdict::Keep(_)), "no request changes an unknown record");
        }
    }

    /// Counts the situations that a committed change shows.
    fn count_commit(&mut self, op: &Op, change: &Change, decision: &Decision, before: Option<&Record>) {
        let state = before.map(|before| before.state);
        let expired = before.is_some_and(|before| before.is_expired(self.shelf.now));
        let draft = change.draft.as_ref();
        if before.is_some_and(|before| before.state == State::Retryable && before.note.doubt.is_some()) {
            match draft.map(|draft| draft.state) {
                Some(State::InProgress) if matches!(op, Op::Resume(..)) => {
                    self.count("a sweeper resumed a record with an in-doubt call");
                }
                Some(State::InProgress | State::Pending) => {
                    self.count("a record with an in-doubt call was run again");
                }
                Some(State::Unknown) => self.count("a record with an in-doubt call became unknown"),
                _ => {}
            }
        }
        match (op, decision) {
            (Op::Request(..), Decision::Run { .. } | Decision::Accepted) => match state {
                None if *decision == Decision::Accepted => {
                    self.count("a first request was accepted to run later");
                }
                None => self.count("a first request ran"),
                Some(_) if expired => self.count("an expired key began a new generation"),
                Some(State::Retryable) => self.count("a retryable record was run again"),
                Some(_) => self.count("a takeover ran"),
            },
            (Op::GaveUp(..), Decision::Freed) if before.is_none() => {
                self.count("a given-up begin was replaced by a placeholder");
            }
            (Op::GaveUp(ask, _), Decision::Freed) if before.is_some_and(|b| b.owner == ask.nonce) => {
                self.count("a given-up begin was released");
            }
            (Op::Answered(..), Decision::Stored) => match state {
                None => self.count("a finish found no record"),
                Some(State::InProgress) => {}
                Some(_) => self.count("a late finish was accepted"),
            },
            (Op::Phase(..), _) => self.count("a phase was committed"),
            (Op::Lapsed(..), _) => {
                self.count("a sweep settled");
                if draft.is_some_and(|d| d.state == State::Unknown && d.policy.on_lapse == OnLapse::Retry) {
                    self.count("a lapse was poison");
                }
            }
            (Op::NeverClaimed(_), _) => self.count("an unclaimed request was timed out"),
            (Op::EffectDone(..), _) => self.count("an effect settled an owed response"),
            (Op::Found(_, ObservedBy::Reconciler, Observation::Executed(_), _), Decision::Settled) => {
                self.count("a reconciler settled as executed");
            }
            (Op::Found(_, ObservedBy::Reconciler, Observation::NotExecuted, _), Decision::Settled) => {
                self.count("a reconciler settled as not executed");
            }
            (Op::Forget(_), _) => self.count("an operator forgot a response"),
            _ => {}
        }
    }

    /// Counts the situations that a refused change shows.
    fn count_lost_race(&mut self, op: &Op, change: &Change, newer: Option<&Record>) {
        match (op, change.expect, newer) {
            (Op::Request(..), Expect::Absent, Some(_)) => self.count("an insert lost to another"),
            (Op::Request(..) | Op::Lapsed(..), Expect::Due(version), Some(newer))
                if newer.version == version =>
            {
                self.count("a takeover was refused because the lease was renewed");
            }
            (Op::Request(..), Expect::Version(_), Some(newer)) => match change.draft.as_ref() {
                Some(draft) if draft.birth != newer.birth => self.count("a new generation lost to another"),
                _ => self.count("a run again lost to another"),
            },
            (Op::GaveUp(..), Expect::Absent, _) => {
                self.count("a given-up placeholder was beaten by the begin");
            }
            (Op::Lapsed(..), ..) => self.count("a sweep was refused"),
            (Op::Found(_, ObservedBy::Reconciler, ..), _, Some(newer)) if newer.state == State::Completed => {
                self.count("a reconciler lost to the late owner");
            }
            _ => {}
        }
    }
}

impl Watch {
    /// Checks the invariants of a committed write.
    fn check(
        &mut self,
        before: Option<&Record>,
        after: &Record,
        response: Option<SavedResponse>,
        op: &Op,
        now: Timestamp,
    ) {
        let begins =
            matches!(op, Op::Request(..) | Op::Claim(_) | Op::Resume(..)) && after.state == State::InProgress;
        assert!(
            !(after.state == State::InProgress && self.given_up.contains(&after.owner)),
            "a begin that was given up holds the record"
        );
        if let Op::Request(ask, role) = op
            && begins
        {
            assert!(*role != Intent::ReadOnly && after.owner == ask.nonce);
            assert_eq!(after.fingerprint.as_ref(), Some(&ask.fingerprint), "it runs the request it was sent");
        }
        // Retention counts from here; an open record has none.
        let counts = after.expires_at.zip(after.purge_at);
        let tombstone = before.filter(|before| {
            matches!(op, Op::GaveUp(..)) && before.is_expired(now) && before.birth == after.birth
        });
        match after.state {
            State::Retryable if after.note.doubt.is_some() => {
                assert!(
                    counts.is_none() && after.due_at.is_some(),
                    "a record with an in-doubt call never expires"
                );
            }
            // Refused at its first run: no request holds the key, and the row is deleted within minutes.
            State::Retryable
                if after.fingerprint.is_none()
                    && after.note.last_error == Some(ErrorCode::Refused)
                    && !after.flags.dead_letter
                    && tombstone.is_none() =>
            {
                let ends = now.after(after.policy.retention.min(Duration::from_secs(600)));
                assert_eq!(counts, Some((ends, ends)));
            }
            State::Completed | State::Retryable if !matches!(op, Op::Forget(_)) => {
                // A tombstone is not revived: it has expired, and is deleted no later than one that is made now.
                let goes_by = now.after(after.policy.tombstone);
                let stays = tombstone.is_some()
                    && after.expires_at == Some(now)
                    && after.purge_at.is_some_and(|at| at <= goes_by);
                let ends = now.after(after.policy.retention);
                assert!(stays || counts == Some((ends, ends.after(after.policy.tombstone))), "{counts:?}");
            }
            State::Completed | State::Retryable => assert_eq!(counts, Some((now, now))),
            _ => assert!(after.expires_at.is_none() && after.purge_at.is_none(), "it never expires silently"),
        }
        if after.state == State::Completed {
            assert!(after.fingerprint.is_some(), "a response belongs to a request");
            assert_eq!(response.is_none(), after.flags.not_retained);
            let first = self.answers.entry(after.birth).or_insert_with(|| response.clone());
            assert_eq!(*first, response, "a stored response never changes");
        }
        if let Some(before) = before {
            check_step(before, after, op, now, self.furthest);
        }
    }
}

/// Checks the invariants from one row to the next.
fn check_step(before: &Record, after: &Record, op: &Op, now: Timestamp, furthest: Timestamp) {
    let same_generation = before.birth == after.birth;
    let by_its_owner = match op {
        Op::Answered(begun, ..)
        | Op::NotExecuted(begun, _)
        | Op::Uncertain(begun, _)
        | Op::Owes(begun, _)
        | Op::Phase(begun, ..) => begun.owner == before.owner,
        Op::GaveUp(ask, _) => ask.nonce == before.owner,
        _ => false,
    };
    if before.state == State::InProgress && !by_its_owner {
        assert!(before.is_due(now), "a live lease was taken away");
    }
    if let Op::Found(_, by, what, as_of) = op {
        assert!(before.ran_at.is_none_or(|ran_at| ran_at <= *as_of), "evidence older than the attempt");
        let first =
            before.note.absent_at.map(|at| Timestamp::from_micros(at).after(Duration::from_secs(SETTLE)));
        let over_at = before.ran_at.map(|ran_at| ran_at.after(before.policy.over_in()));
        let proven = match by {
            ObservedBy::Reconciler => first.is_some_and(|first| first <= *as_of),
            ObservedBy::Webhook => over_at.is_some_and(|over_at| over_at <= *as_of),
            ObservedBy::Operator(_) => true,
        };
        let frees = *what == Observation::NotExecuted && after.state != State::Unknown;
        assert!(!frees || proven, "a request that may still be executed was released");
    }
    if before.state == State::Unknown {
        assert!(same_generation, "an unknown record never begins a new generation");
        let may = by_its_owner || matches!(op, Op::Found(..));
        assert!(may || after.state == State::Unknown, "only its owner or an observation leaves unknown");
    }
    check_doubt(before, after, op, by_its_owner);
    if !same_generation {
        let free = before.is_expired(furthest) || before.fingerprint.is_none();
        assert!(free, "a generation ends by expiry, or if no request holds the key");
        return;
    }
    assert_eq!(before.policy, after.policy, "a record keeps its policy");
    if before.state == State::Completed {
        assert_eq!(after.state, State::Completed, "a completed record stays completed");
        assert_eq!((before.note.status, before.completed_at), (after.note.status, after.completed_at));
    }
    assert!(
        after.attempt >= before.attempt && after.point >= before.point && after.point <= before.point + 1
    );
    if after.owner != before.owner {
        assert!(after.state == State::InProgress && after.attempt == before.attempt + 1);
    }
    let is_unchanged = after.fingerprint == before.fingerprint;
    assert!(is_unchanged || after.fingerprint.is_none(), "a fingerprint is kept or cleared, never changed");
    assert!(is_unchanged || after.state == State::Retryable, "only a released key has no fingerprint");
}

/// Checks the invariants of an in-doubt call.
fn check_doubt(before: &Record, after: &Record, op: &Op, by_its_owner: bool) {
    let settles = after.state == State::Completed || matches!(op, Op::Phase(..) | Op::Found(..));
    if before.note.doubt.is_some() {
        assert_eq!(before.birth, after.birth, "the next generation would call under another key");
        assert!(
            settles || after.note.doubt == before.note.doubt,
            "an in-doubt call stays until it is settled"
        );
    }
    if let Op::Answered(begun, ..) | Op::NotExecuted(begun, _) | Op::Uncertain(begun, _) = op
        && by_its_owner
        && begun.note.doubt.is_some_and(|point| point > before.point)
    {
        assert!(settles || after.note.doubt.is_some(), "the end of an attempt stores its in-doubt call");
    }
}

impl Op {
    fn with_nonce(mut self, drawn: Nonce) -> Op {
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

    fn event(&self) -> Event<'_> {
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

/// Returns whether the policy promises at most one execution. With the others the operator vouches that a second one is
/// harmless.
fn is_strict(policy: &Policy) -> bool {
    matches!(policy.on_lapse, OnLapse::Unknown | OnLapse::Fail)
        && policy.on_server_error != OnServerError::Retry
}

fn policies() -> [Policy; POLICIES] {
    let plain = Policy::default().with(|policy| {
        policy.lease = Duration::from_secs(LEASE);
        policy.retention = Duration::from_secs(RETENTION);
        policy.pending_deadline = Duration::from_secs(2 * LEASE);
        policy.upstream_timeout = Duration::from_secs(UPSTREAM);
        policy.reconcile = Some(Reconcile::new(Duration::from_secs(SETTLE), 4));
    });
    let all = [
        plain.clone(),
        plain.clone().with(|policy| {
            policy.reconcile = None;
            policy.tombstone = Duration::from_secs(RETENTION);
            policy.after_expiry = AfterExpiry::Refuse;
        }),
        plain.clone().with(|policy| policy.answer = AnswerRule::Async),
        plain.clone().with(|policy| {
            policy.on_lapse = OnLapse::Fail;
            policy.on_server_error = OnServerError::Store;
        }),
        plain.clone().with(|policy| {
            policy.on_lapse = OnLapse::Retry;
            policy.max_attempts = 2;
        }),
        plain.clone().with(|policy| {
            policy.on_lapse = OnLapse::Resume;
            policy.on_server_error = OnServerError::Retry;
        }),
        plain.with(|policy| {
            policy.on_lapse = OnLapse::Retry;
            policy.answer = AnswerRule::Async;
        }),
    ];
    for policy in &all {
        assert_eq!(policy.check(), Ok(()));
    }
    all
}

/// A deterministic random generator (splitmix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

const POLICIES: usize = 7;

/// Times of the model, in seconds. The upstream's response fits twice into `settle`, as every policy requires.
const LEASE: u64 = 30;
const UPSTREAM: u64 = 20;
const SETTLE: u64 = 60;
const RETENTION: u64 = 3600;
