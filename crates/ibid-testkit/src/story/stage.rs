//! Plays the steps of a story: decides with the machine, writes, and describes the outcome.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use ibid_core::change::{Change, Commit, Stamp};
use ibid_core::machine::{
    BeginRequest, Decision, Event, Intent, Observation, ObservedBy, PhaseStep, Verdict, decide,
};
use ibid_core::policy::Policy;
use ibid_core::record::{ErrorCode, Nonce, Record, Version};
use ibid_core::response::SavedResponse;
use ibid_core::time::Timestamp;

use super::inputs::{act, ask};
use super::parse_words::{duration, evidence, given_answer, phase_point};
use super::policy::{default_policy, parse_policy};
use super::record_check::check_record;
use super::store::StoryStore;

/// The state of a running story.
pub(super) struct Stage {
    pub(super) store: StoryStore,
    policy: Policy,
    actors: HashMap<String, Actor>,
    /// Phases by their order of first mention: the first is recovery point 1.
    phases: Vec<String>,
    births: Vec<Nonce>,
    drawn: u64,
}

#[derive(Clone, Default)]
struct Actor {
    ask: Option<BeginRequest>,
    /// The record as its attempt began it.
    begun: Option<Record>,
    /// The version of its last write.
    holds: Option<Version>,
    /// Changes that were decided but not written, or written with the reply lost; oldest first.
    open: VecDeque<(Arc<Change>, Decision)>,
}

/// Timing of a step's write, and of its reply.
#[derive(Clone, Copy, PartialEq)]
enum Send {
    Now,
    NotYet,
    ReplyLost,
}

impl Stage {
    pub(super) fn new() -> Stage {
        Stage {
            store: StoryStore::new(),
            policy: default_policy(),
            actors: HashMap::new(),
            phases: Vec::new(),
            births: Vec::new(),
            drawn: 0,
        }
    }

    /// Runs one step and returns its outcome in words.
    pub(super) fn play(&mut self, step: &str) -> Result<String, String> {
        if let Some(by) = step.strip_prefix('+') {
            self.store.now = self.store.now.after(duration(by)?);
            return Ok("later".into());
        }
        if let Some(by) = step.strip_prefix('-') {
            let back = i64::try_from(duration(by)?.as_micros()).map_err(|e| e.to_string())?;
            self.store.now = Timestamp::from_micros(self.store.now.as_micros() - back);
            return Ok("earlier".into());
        }
        let (actor, rest) =
            step.split_once(char::is_whitespace).ok_or("an actor and what it does, please")?;
        let rest = rest.trim();
        match actor {
            "policy" => {
                self.policy = parse_policy(rest)?;
                Ok("set".into())
            }
            "record" => check_record(&self.store, self.births.len(), rest).map(|()| "so it is".into()),
            _ => self.act(actor, rest),
        }
    }

    fn act(&mut self, name: &str, verb: &str) -> Result<String, String> {
        let mut actor = self.actors.remove(name).unwrap_or_default();
        let came = match verb {
            "commits what it decided" | "sends it again" => {
                let (change, decision) = actor.open.pop_front().ok_or("it has decided nothing")?;
                self.send(&mut actor, change, decision)
            }
            "renews" => {
                let version = actor.holds.ok_or("it holds nothing")?;
                Ok(if self.store.renew(version) { "renewed" } else { "lost" }.into())
            }
            "doubts its call" => {
                let point = self.store.record().map_or(0, |record| record.point) + 1;
                actor.begun.as_mut().ok_or("it does not run")?.note.doubt = Some(point);
                Ok("noted".into())
            }
            "purges" => Ok(if self.store.purge() { "purged" } else { "ignored" }.into()),
            "loses the row" => {
                self.store.lose();
                Ok("lost".into())
            }
            _ => match (verb.strip_prefix("decides:"), verb.strip_prefix("loses the reply:")) {
                (Some(verb), _) => self.step(name, &mut actor, verb.trim(), Send::NotYet),
                (_, Some(verb)) => self.step(name, &mut actor, verb.trim(), Send::ReplyLost),
                _ => self.step(name, &mut actor, verb, Send::Now),
            },
        };
        self.actors.insert(name.to_owned(), actor);
        came
    }

    /// Decides on the stored record, and writes the change as `how` says.
    fn step(&mut self, name: &str, actor: &mut Actor, verb: &str, how: Send) -> Result<String, String> {
        let verdict = self.decide_step(name, actor, verb)?;
        match verdict {
            Verdict::Keep(decision) => Ok(self.describe(&decision, self.store.record().cloned().as_ref())),
            Verdict::Write(change, decision) => match how {
                Send::Now => self.send(actor, change, decision),
                Send::NotYet => {
                    let row = change.apply(Stamp { now: self.store.now }, self.store.record());
                    let words = self.describe(&decision, row.as_deref());
                    actor.open.push_back((change, decision));
                    Ok(words)
                }
                Send::ReplyLost => {
                    let came = match self.store.commit(&change) {
                        Commit::Done(_) => "lost",
                        Commit::Conflict(_) => "refused",
                    };
                    self.note_birth();
                    actor.open.push_back((change, decision));
                    Ok(came.into())
                }
            },
        }
    }

    /// Writes a change. If the stored row already is this change, its first reply was lost, and it counts as written.
    fn send(&mut self, actor: &mut Actor, change: Arc<Change>, decision: Decision) -> Result<String, String> {
        if let Commit::Conflict(newer) = self.store.commit(&change)
            && !newer.is_some_and(|newer| change.is_stored_as(&newer))
        {
            return Ok("refused".into());
        }
        self.note_birth();
        let row = self.store.record().cloned();
        if change.draft.is_some() {
            actor.holds = row.as_ref().map(|row| row.version);
        }
        if matches!(decision, Decision::Run { .. }) {
            actor.begun = row.clone();
        }
        Ok(self.describe(&decision, row.as_ref()))
    }

    fn note_birth(&mut self) {
        if let Some(row) = self.store.record()
            && self.births.last() != Some(&row.birth)
        {
            self.births.push(row.birth);
        }
    }

    fn draw(&mut self) -> Nonce {
        self.drawn += 1;
        Nonce(self.drawn)
    }

    /// Returns the machine's verdict on the step.
    fn decide_step(&mut self, name: &str, actor: &mut Actor, verb: &str) -> Result<Verdict, String> {
        let nonce = self.draw();
        let now = self.store.now;
        let (first, rest) = verb.split_once(' ').map_or((verb, ""), |(first, rest)| (first, rest.trim()));
        if first == "begins" {
            return self.begins(actor, rest, nonce);
        }
        if verb == "gave up" {
            let ask = actor.ask.clone().ok_or("it has not begun")?;
            return Ok(decide(self.store.record(), &Event::GaveUp { ask: &ask, nonce }, now));
        }
        let (given, found, reason, result);
        let running = || actor.begun.as_ref().ok_or("it does not run");
        let uncertain = |why| Ok::<_, &str>(Event::Uncertain { begun: running()?, nonce, why });
        let event = match (first, rest) {
            ("finishes", rest) => {
                given = given_answer(rest, name)?;
                Event::Answered { begun: running()?, nonce, answer: &given }
            }
            ("proves", "nothing was sent") => {
                Event::NotExecuted { begun: running()?, nonce, why: ErrorCode::NotSent }
            }
            ("times", "out") => uncertain(ErrorCode::TimedOut)?,
            ("breaks", "off") => uncertain(ErrorCode::Broken)?,
            ("panics", "") => uncertain(ErrorCode::Panicked)?,
            ("owes", "the answer") => Event::Owes { begun: running()?, nonce },
            ("commits", phase) => {
                let point = phase_point(&mut self.phases, phase)?;
                reason = phase.to_owned();
                result = Bytes::from(reason.clone());
                let step = PhaseStep { point, phases: 1 };
                Event::Phase { begun: running()?, nonce, step, name: &reason, result: &result }
            }
            ("claims", "") => Event::Claim { nonce },
            ("sweeps", "") => Event::Lapsed { nonce, careful: false },
            ("sweeps", "carefully") => Event::Lapsed { nonce, careful: true },
            ("resumes", "") => Event::Resume { nonce, careful: false },
            ("resumes", "carefully") => Event::Resume { nonce, careful: true },
            ("calls", "the outside") => {
                let point = self.store.record().map_or(0, |record| record.point) + 1;
                Event::Calling { begun: running()?, nonce, point: Some(point) }
            }
            ("did", "not call") => Event::Calling { begun: running()?, nonce, point: None },
            ("finds", "it never claimed") => Event::NeverClaimed { nonce },
            ("finds", "it outlived") => Event::Outlived { nonce },
            ("is", "dead") => Event::EffectDead { nonce },
            ("is", done) if done.starts_with("done ") => {
                given = given_answer(&done[5..], name)?;
                Event::EffectDone { nonce, answer: &given }
            }
            ("finds" | "hears" | "resolves", what) => {
                let by = match first {
                    "finds" => ObservedBy::Reconciler,
                    "hears" => ObservedBy::Webhook,
                    _ => ObservedBy::Operator(act()),
                };
                let (what, as_of) = evidence(what, now)?;
                found = match what.strip_prefix("executed ") {
                    Some(status) => Observation::Executed(given_answer(status, name)?),
                    None if what == "not executed" => Observation::NotExecuted,
                    None if what == "nothing" => Observation::Nothing,
                    None => return Err(format!("unknown evidence `{what}`")),
                };
                Event::Observed { nonce, by, what: &found, as_of, jitter: 0.0 }
            }
            ("forgets", "") => Event::Forget { nonce, act: act() },
            _ => return Err(format!("unknown word `{verb}`")),
        };
        Ok(decide(self.store.record(), &event, now))
    }

    fn begins(&mut self, actor: &mut Actor, how: &str, nonce: Nonce) -> Result<Verdict, String> {
        let mut words = how.split_whitespace();
        let (mut body, mut tenant, mut role, mut later) = ("A", "shop", Intent::MayRun, None);
        while let Some(word) = words.next() {
            match (word, words.clone().next()) {
                ("with", Some("body")) => {
                    words.next();
                    body = words.next().ok_or("with which body?")?;
                }
                ("as", Some("waiter")) => {
                    words.next();
                    role = Intent::ReadOnly;
                }
                ("as", Some("tenant")) => {
                    words.next();
                    tenant = words.next().ok_or("as which tenant?")?;
                }
                ("carefully", _) => role = Intent::MayRunNoTakeover,
                ("async", _) => later = Some(Bytes::from_static(b"the request")),
                _ => return Err(format!("unknown word `{word}` after `begins`")),
            }
        }
        let mut ask = ask(tenant, body, Arc::new(self.policy.clone()), nonce);
        ask.later = later;
        let verdict = decide(self.store.record(), &Event::Request { ask: &ask, role }, self.store.now);
        actor.ask = Some(ask);
        Ok(verdict)
    }

    /// Returns the decision in a story's words. `row` is the record as the decision leaves it.
    fn describe(&self, decision: &Decision, row: Option<&Record>) -> String {
        let attempt = row.map_or(0, |row| row.attempt);
        match decision {
            Decision::Run { after: 0 } if attempt == 1 => "run".into(),
            Decision::Run { after: 0 } => format!("run attempt {attempt}"),
            Decision::Run { after } => match self.phases.get(usize::from(*after) - 1) {
                Some(phase) => format!("resume after {phase}"),
                None => format!("resume after point {after}"),
            },
            Decision::Accepted => "accepted".into(),
            Decision::Replay => match self.store.load().and_then(|stored| stored.response) {
                Some(SavedResponse::Plain(response)) => format!("replay {}", response.status),
                Some(SavedResponse::Sealed { .. }) => "replay of a sealed response".into(),
                None => "replay of nothing".into(),
            },
            Decision::NotRetained => "not retained".into(),
            Decision::Wait { overlong: false } => "wait".into(),
            Decision::Wait { overlong: true } => "wait, overlong".into(),
            Decision::Free => "free".into(),
            Decision::Unknown { until: Some(_) } => "unknown".into(),
            Decision::Unknown { until: None } => "unknown, dead letter".into(),
            Decision::Mismatch => "mismatch".into(),
            Decision::Expired => "expired".into(),
            Decision::Stored => "stored".into(),
            Decision::Freed => "freed".into(),
            Decision::Unsettled => "unsettled".into(),
            Decision::Owed => "owed".into(),
            Decision::Advanced => "advanced".into(),
            Decision::Superseded => "superseded".into(),
            Decision::Settled => "settled".into(),
            Decision::Later => "later".into(),
            Decision::Forgotten => "forgotten".into(),
            Decision::Ignored => "ignored".into(),
        }
    }
}
