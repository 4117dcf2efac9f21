//! The simulation: all actors that use one key, the store, the network and time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ibid_core::change::{Change, Commit};
use ibid_core::effect::KEY_WINDOW;
use ibid_core::machine::{Decision, Intent, ObservedBy, Verdict, decide};
use ibid_core::policy::{AnswerRule, Policy};
use ibid_core::record::{Nonce, Record, State, Version};
use ibid_core::time::Timestamp;
use ibid_testkit::story::{StoryStore, act, answer, ask};

use super::operation::Op;
use super::policies::{LEASE, POLICIES, RETENTION, SETTLE, policies};
use super::upstream::{Delivery, Upstream};
use super::watch::{Watch, check_decision};

/// One key, all actors that use it, and the upstream behind it.
pub(super) struct Simulation {
    pub(super) shelf: StoryStore,
    /// Real time since the start, in seconds; the store's clock is this plus its error.
    pub(super) real: u64,
    /// `true` if the store's clock may jump.
    pub(super) jumpy: bool,
    /// Time, in real seconds, until which all actors are careful after a jump.
    pub(super) careful_until: u64,
    pub(super) actors: Vec<Actor>,
    pub(super) configured: usize,
    pub(super) policies: Vec<Arc<Policy>>,
    pub(super) nonces: u64,
    /// Writes in flight whose sender no longer waits for them.
    pub(super) late: Vec<(Arc<Change>, Op)>,
    pub(super) upstream: Upstream,
    pub(super) watch: Watch,
    pub(super) situation_counts: BTreeMap<&'static str, u32>,
    pub(super) purged: bool,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Kind {
    Client,
    Worker,
    Sweeper,
    Reaper,
    Reconciler,
    Webhook,
    Operator,
    Effect,
}

pub(super) struct Actor {
    pub(super) kind: Kind,
    pub(super) doing: Option<(Op, Stage)>,
    pub(super) run: Option<Run>,
}

pub(super) enum Stage {
    /// Nothing has been read yet.
    Start,
    /// The record was read, perhaps long ago.
    Read(Option<Box<Record>>, Timestamp),
    /// The decision was made; the write was perhaps sent already.
    Decided { change: Arc<Change>, decision: Decision, sent_at: u64, sent: bool },
}

/// A running attempt, from its own view.
pub(super) struct Run {
    pub(super) begun: Record,
    pub(super) version: Version,
    /// Start of its lease on its own clock.
    pub(super) lease_from: u64,
    pub(super) delivery: Option<Delivery>,
}

impl Simulation {
    pub(super) fn new(configured: usize, jumpy: bool) -> Simulation {
        use Kind::{Client, Effect, Operator, Reaper, Reconciler, Sweeper, Webhook, Worker};
        let kinds = [
            Client, Client, Client, Client, Worker, Worker, Sweeper, Sweeper, Reaper, Reconciler, Reconciler,
            Webhook, Operator, Effect,
        ];
        Simulation {
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

    /// Makes one step of one actor, or of the simulated surroundings.
    pub(super) fn step(&mut self, who: u8, how: u8, luck: u8) {
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
                check_decision(&op, row.as_deref(), read_at, &verdict);
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
}
