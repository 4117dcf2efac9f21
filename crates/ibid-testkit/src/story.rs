//! Stories: rules of the state machine written as steps of named actors, each with its expected outcome.
//!
//! A story runs on the pure machine and on a [`StoryStore`], a store with room for one record. It uses no HTTP, no I/O and
//! no real clock. The file is longer than most, so that the language's reference, its parser and its effect are together.
//! The story language has one line per step:
//!
//! ```text
//! policy  payments lease=30s on_lapse=retry           rules of the requests that follow (a preset, then changes)
//! ann     begins  -> run                              an actor, what it does, and the outcome
//! +31s                                                advances the store's clock; -5s sets it back
//! record  is in_progress                              checks the stored record
//! ```
//!
//! Without a `policy` line the contract's defaults apply, with a lease of 30s. Text in parentheses or after `#` is a
//! remark. A step without `->` may have any outcome.
//!
//! **Requests**: `begins`, and after it any of `with body B` (another fingerprint), `as waiter`, `carefully`, `async`,
//! `as tenant T` (a row of another tenant under the same id). Outcomes: `run`, `run attempt 2`, ``resume after
//! `charged` ``, `accepted`, `replay 201`, `not retained`, `wait`, `wait, overlong`, `free`, `unknown`, `unknown, dead
//! letter`, `mismatch`, `expired`. `gave up`: the begin's reply never arrived and the client got 503.
//!
//! **Attempts**: `finishes 201`, and after it `as executed` or `as not executed` (what its fields prove), `not retained` or
//! `with retry-after`; `proves nothing was sent`, `times out`, `breaks off`, `panics`, `calls the outside` (an external
//! call that nothing can confirm later), `did not call`, ``commits `charged` ``, `owes the answer`, `claims`. Outcomes:
//! `stored`, `freed`, `unsettled`, `advanced`, `owed`, `superseded`. `renews` gives `renewed` or `lost`. `doubts its
//! call`: the attempt made an external call under a key, does not know the outcome, and reports that when it ends.
//!
//! **The others**: `sweeps`, `resumes` (a sweeper that can run the handler), `finds it never claimed`, `finds it outlived`, `purges`; `effect  is done 201` or `is dead`; `finds`
//! (reconciler), `hears` (webhook), `resolves` (operator), each with `executed 201`, `not executed` or `nothing`, and
//! `as of 10s ago` for old evidence; `forgets`. Outcomes: `settled`, `unsettled`, `later`, `forgotten`, `ignored`,
//! `purged`.
//!
//! **Races**: `decides: STEP` reads and decides now but writes nothing yet; `commits what it decided` writes it, as
//! stale as it then is, with `refused` if it lost the race. `loses the reply: STEP` writes, and the actor does not
//! learn it; `sends it again` issues the same write again. Of several such writes the oldest goes first.
//!
//! **Looks**: `record  is STATE` (or `absent`, also `STATE, dead letter`), `has attempt 2`, `has generation 2`,
//! `has point 1`, `has history lapse`, `has no fingerprint`, `answers 201`, `is due in 30s`, `expires in 1h`, `goes in
//! 2h`, `never expires`, `keeps its request`, `keeps no request`.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use ibid_core::change::{BodyKind, Change, Commit, Expect, History, Stamp, StoredRecord};
use ibid_core::fingerprint::{RequestView, Secret, Secrets};
use ibid_core::key::{Key, KeyForm};
use ibid_core::machine::{
    AttemptResponse, BeginRequest, Decision, Event, Intent, Observation, ObservedBy, PhaseStep, Verdict,
    decide,
};
use ibid_core::operator_action::OperatorAction;
use ibid_core::policy::{AfterExpiry, AnswerRule, OnLapse, OnServerError, Policy, Reconcile};
use ibid_core::proof::Proof;
use ibid_core::record::{ErrorCode, Nonce, Record, RecoveryPoint, Version};
use ibid_core::response::{Response, SavedResponse};
use ibid_core::scope::{Identity, Operation, Tenant};
use ibid_core::time::Timestamp;

/// Plays a story; panics at the first line whose outcome is not the expected one.
#[track_caller]
pub fn story(text: &str) {
    let mut stage = Stage::new();
    for (number, line) in text.lines().enumerate() {
        let text_line = remark_free(line);
        if text_line.is_empty() {
            continue;
        }
        let (step, expected) = match text_line.split_once("->") {
            Some((step, expected)) => (step.trim(), Some(expected.trim())),
            None => (text_line, None),
        };
        let came = match stage.play(step) {
            Ok(came) => came,
            Err(problem) => panic!("line {}: `{}`: {problem}", number + 1, line.trim()),
        };
        if let Some(expected) = expected
            && came != expected
        {
            panic!(
                "line {}: `{}`\n  expected: {expected}\n  came:     {came}\n  record:   {}",
                number + 1,
                line.trim(),
                sketch(stage.shelf.record(), stage.shelf.now)
            );
        }
    }
}

/// A store with room for one record: it compares versions and instants, and does not interpret states.
#[derive(Clone, Debug)]
pub struct StoryStore {
    /// The time of the store's clock.
    pub now: Timestamp,
    row: Option<Record>,
    response: Option<SavedResponse>,
    bodies: BTreeMap<(Nonce, u32), Bytes>,
    history: Vec<History>,
}

impl StoryStore {
    /// Makes an empty store, at an instant long after the epoch.
    pub fn new() -> StoryStore {
        StoryStore {
            now: Timestamp::from_micros(1_700_000_000_000_000),
            row: None,
            response: None,
            bodies: BTreeMap::new(),
            history: Vec::new(),
        }
    }

    /// Returns the stored row, if there is one.
    pub fn record(&self) -> Option<&Record> {
        self.row.as_ref()
    }

    /// Returns the row with its response, as a store would.
    pub fn load(&self) -> Option<StoredRecord> {
        let record = self.row.clone()?;
        Some(StoredRecord { record: Arc::new(record), response: self.response.clone(), now: self.now })
    }

    /// Returns the body of this kind that one generation stored.
    pub fn body(&self, birth: Nonce, kind: BodyKind) -> Option<&Bytes> {
        self.bodies.get(&(birth, kind.code()))
    }

    /// Returns every history line written so far.
    pub fn history(&self) -> &[History] {
        &self.history
    }

    /// Applies the change, or returns the conflicting row.
    pub fn commit(&mut self, change: &Change) -> Commit {
        let fits = match (change.expect, &self.row) {
            (Expect::Absent, row) => row.is_none(),
            (Expect::Version(version), Some(row)) => row.version == version,
            (Expect::Due(version), Some(row)) => row.version == version && row.is_due(self.now),
            (Expect::Version(_) | Expect::Due(_), None) => false,
            (Expect::Anything, _) => change.draft.is_none(),
        };
        if !fits {
            return Commit::Conflict(self.load().map(Box::new));
        }
        let stamp = Stamp { now: self.now };
        if change.clears_bodies {
            self.bodies.clear();
        }
        if let Some(stored) = change.stored_after(stamp, self.load().as_ref()) {
            let birth = stored.record.birth;
            self.bodies.extend(change.bodies.iter().map(|b| ((birth, b.kind.code()), b.data.clone())));
            self.response = stored.response;
            self.row = Some(Arc::unwrap_or_clone(stored.record));
        }
        self.history.extend(change.history.iter().cloned());
        Commit::Done(stamp)
    }

    /// Moves the due instant to now plus the row's lease and returns `true`, if the row is still at `version`.
    pub fn renew(&mut self, version: Version) -> bool {
        match &mut self.row {
            Some(row) if row.version == version => {
                row.due_at = Some(self.now.after(row.policy.lease));
                true
            }
            _ => false,
        }
    }

    /// Removes the row and returns `true`, if it is due for removal.
    pub fn purge(&mut self) -> bool {
        let goes = self.row.as_ref().is_some_and(|row| row.is_purgeable(self.now));
        if goes {
            self.lose();
        }
        goes
    }

    /// Drops the row, as an asynchronous failover may.
    pub fn lose(&mut self) {
        self.row = None;
        self.response = None;
        self.bodies.clear();
    }
}

impl Default for StoryStore {
    fn default() -> Self {
        StoryStore::new()
    }
}

/// Builds a payment request with this body, as the machine takes it.
pub fn ask(tenant: &str, body: &str, policy: Arc<Policy>, nonce: Nonce) -> BeginRequest {
    let identity = Identity {
        tenant: Tenant::new(tenant).expect("a story's tenants have plain names"),
        operation: Operation { method: "POST".into(), path: "/payments".into() },
        key: Key::parse(b"the-key", KeyForm::QuotedOrBare).expect("a plain key"),
    };
    let secret = Secret::new(b"stories need a secret of some length").expect("long enough");
    let secrets = Secrets::new(vec![secret]).expect("one secret is enough");
    BeginRequest::new(identity, policy, Arc::new(secrets), Arc::new(Payment(body.to_owned())), nonce)
}

/// Builds a response with this status; its body names the actor that gave it.
pub fn answer(status: u16, from: &str) -> AttemptResponse {
    let response = Response::plain(status, "text/plain", from.to_owned());
    AttemptResponse {
        status,
        retry_after: false,
        kept: Some(Arc::new(response)),
        provider_id: None,
        proof: None,
    }
}

struct Payment(String);

impl RequestView for Payment {
    fn method(&self) -> &str {
        "POST"
    }
    fn path(&self) -> &str {
        "/payments"
    }
    fn query(&self) -> Option<&str> {
        None
    }
    fn header_lines(&self, _: &str, _: &mut dyn FnMut(&[u8])) {}
    fn body(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// The state of a running story.
struct Stage {
    shelf: StoryStore,
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
    fn new() -> Stage {
        Stage {
            shelf: StoryStore::new(),
            policy: default_policy(),
            actors: HashMap::new(),
            phases: Vec::new(),
            births: Vec::new(),
            drawn: 0,
        }
    }

    /// Runs one step and returns its outcome in words.
    fn play(&mut self, step: &str) -> Result<String, String> {
        if let Some(by) = step.strip_prefix('+') {
            self.shelf.now = self.shelf.now.after(duration(by)?);
            return Ok("later".into());
        }
        if let Some(by) = step.strip_prefix('-') {
            let back = i64::try_from(duration(by)?.as_micros()).map_err(|e| e.to_string())?;
            self.shelf.now = Timestamp::from_micros(self.shelf.now.as_micros() - back);
            return Ok("earlier".into());
        }
        let (actor, rest) =
            step.split_once(char::is_whitespace).ok_or("an actor and what it does, please")?;
        let rest = rest.trim();
        match actor {
            "policy" => self.set_policy(rest).map(|()| "set".into()),
            "record" => self.look(rest).map(|()| "so it is".into()),
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
                Ok(if self.shelf.renew(version) { "renewed" } else { "lost" }.into())
            }
            "doubts its call" => {
                let point = self.shelf.record().map_or(0, |record| record.point) + 1;
                actor.begun.as_mut().ok_or("it does not run")?.note.doubt = Some(point);
                Ok("noted".into())
            }
            "purges" => Ok(if self.shelf.purge() { "purged" } else { "ignored" }.into()),
            "loses the row" => {
                self.shelf.lose();
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
            Verdict::Keep(decision) => Ok(self.describe(&decision, self.shelf.record().cloned().as_ref())),
            Verdict::Write(change, decision) => match how {
                Send::Now => self.send(actor, change, decision),
                Send::NotYet => {
                    let row = change.apply(Stamp { now: self.shelf.now }, self.shelf.record());
                    let words = self.describe(&decision, row.as_deref());
                    actor.open.push_back((change, decision));
                    Ok(words)
                }
                Send::ReplyLost => {
                    let came = match self.shelf.commit(&change) {
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
        if let Commit::Conflict(newer) = self.shelf.commit(&change)
            && !newer.is_some_and(|newer| change.is_stored_as(&newer))
        {
            return Ok("refused".into());
        }
        self.note_birth();
        let row = self.shelf.record().cloned();
        if change.draft.is_some() {
            actor.holds = row.as_ref().map(|row| row.version);
        }
        if matches!(decision, Decision::Run { .. }) {
            actor.begun = row.clone();
        }
        Ok(self.describe(&decision, row.as_ref()))
    }

    fn note_birth(&mut self) {
        if let Some(row) = self.shelf.record()
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
        let now = self.shelf.now;
        let (first, rest) = verb.split_once(' ').map_or((verb, ""), |(first, rest)| (first, rest.trim()));
        if first == "begins" {
            return self.begins(actor, rest, nonce);
        }
        if verb == "gave up" {
            let ask = actor.ask.clone().ok_or("it has not begun")?;
            return Ok(decide(self.shelf.record(), &Event::GaveUp { ask: &ask, nonce }, now));
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
                let point = self.shelf.record().map_or(0, |record| record.point) + 1;
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
        Ok(decide(self.shelf.record(), &event, now))
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
        let verdict = decide(self.shelf.record(), &Event::Request { ask: &ask, role }, self.shelf.now);
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
            Decision::Replay => match self.shelf.load().and_then(|stored| stored.response) {
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

    /// Compares the stored record with the story's claim.
    fn look(&self, said: &str) -> Result<(), String> {
        let row = self.shelf.record();
        let now = self.shelf.now;
        let remaining = |at: Option<Timestamp>| match at {
            Some(at) => format!("{:?}", at.since(now)),
            None => "never".into(),
        };
        let expected = |length: &str| duration(length).map(|length| format!("{length:?}"));
        let number = |text: &str| text.parse::<u64>().map(|n| n.to_string()).map_err(|e| e.to_string());
        let state = row.map_or("absent".to_owned(), |row| {
            row.state.name().to_owned() + if row.flags.dead_letter { ", dead letter" } else { "" }
        });
        let (first, rest) = said.split_once(' ').map_or((said, ""), |(first, rest)| (first, rest.trim()));
        let (is, should) = match (first, rest.split_once(' ').unwrap_or((rest, ""))) {
            ("is", ("due", at)) => (remaining(row.and_then(|r| r.due_at)), expected(in_what(at)?)?),
            ("is", _) => (state, rest.to_owned()),
            ("never", ("expires", _)) => (remaining(row.and_then(|r| r.expires_at)), "never".into()),
            ("expires", _) => (remaining(row.and_then(|r| r.expires_at)), expected(in_what(rest)?)?),
            ("goes", _) => (remaining(row.and_then(|r| r.purge_at)), expected(in_what(rest)?)?),
            ("answers", (status, _)) => {
                let is = row.and_then(|r| r.note.status).map_or("nothing".into(), |s| s.to_string());
                (is, status.to_owned())
            }
            ("has", ("attempt", n)) => (row.map_or(0, |r| r.attempt).to_string(), number(n)?),
            ("has", ("point", n)) => (row.map_or(0, |r| r.point).to_string(), number(n)?),
            ("has", ("generation", n)) => (self.births.len().to_string(), number(n)?),
            ("has", ("no", "fingerprint")) => {
                (row.is_some_and(|r| r.fingerprint.is_none()).to_string(), "true".into())
            }
            ("keeps", (whose, "request")) => {
                let request = row.and_then(|row| self.shelf.body(row.birth, BodyKind::Request));
                let is = if request.is_some_and(|request| !request.is_empty()) { "its" } else { "no" };
                (is.to_owned(), whose.to_owned())
            }
            ("has", ("history", what)) => {
                let names: Vec<_> = self.shelf.history().iter().map(|line| line.what.name()).collect();
                match names.contains(&what) {
                    true => return Ok(()),
                    false => (format!("history of {names:?}"), what.to_owned()),
                }
            }
            _ => return Err(format!("unknown check `record {said}`")),
        };
        match is == should {
            true => Ok(()),
            false => {
                let sketch = sketch(row, now);
                Err(format!("\n  expected: {should}\n  came:     {is}\n  record:   {sketch}"))
            }
        }
    }

    fn set_policy(&mut self, rules: &str) -> Result<(), String> {
        self.policy = default_policy();
        for rule in rules.split_whitespace() {
            let Some((field, value)) = rule.split_once('=') else {
                let preset = Policy::preset(rule).ok_or_else(|| format!("no preset `{rule}`"))?;
                self.policy = preset.with(|p| p.lease = self.policy.lease);
                continue;
            };
            let policy = &mut self.policy;
            match field {
                "lease" => policy.lease = duration(value)?,
                "max_run" => policy.max_run = duration(value)?,
                "retention" => policy.retention = duration(value)?,
                "tombstone" => policy.tombstone = duration(value)?,
                "unknown_retention" => policy.unknown_retention = Some(duration(value)?),
                "upstream_timeout" => policy.upstream_timeout = duration(value)?,
                "linger" => policy.linger = duration(value)?,
                "pending_deadline" => policy.pending_deadline = duration(value)?,
                "max_attempts" => policy.max_attempts = value.parse().map_err(|_| "a number, please")?,
                "settle" => {
                    let attempts = policy.reconcile.as_ref().map_or(10, |rule| rule.attempts);
                    policy.reconcile = Some(Reconcile::new(duration(value)?, attempts));
                }
                "tries" => {
                    let settle = policy.reconcile.as_ref().map_or(SETTLE, |rule| rule.settle);
                    let attempts = value.parse().map_err(|_| "a number, please")?;
                    policy.reconcile = Some(Reconcile::new(settle, attempts));
                }
                _ => set_word(policy, field, value)?,
            }
        }
        self.policy.check().map_err(|error| error.to_string())
    }
}

/// Formats the record in one line for failure messages.
fn sketch(record: Option<&Record>, now: Timestamp) -> String {
    let Some(record) = record else {
        return "none".into();
    };
    let from_now = |at: Option<Timestamp>| at.map(|at| at.since(now));
    format!(
        "{} {:?} attempt {} point {} {:?} due in {:?} expires in {:?} goes in {:?} {:?}",
        record.state.name(),
        record.version,
        record.attempt,
        record.point,
        record.flags,
        from_now(record.due_at),
        from_now(record.expires_at),
        from_now(record.purge_at),
        record.note,
    )
}

fn set_word(policy: &mut Policy, field: &str, value: &str) -> Result<(), String> {
    match (field, value) {
        ("on_lapse", "unknown") => policy.on_lapse = OnLapse::Unknown,
        ("on_lapse", "retry") => policy.on_lapse = OnLapse::Retry,
        ("on_lapse", "resume") => policy.on_lapse = OnLapse::Resume,
        ("on_lapse", "fail") => policy.on_lapse = OnLapse::Fail,
        ("on_server_error", "unknown") => policy.on_server_error = OnServerError::Unknown,
        ("on_server_error", "retry") => policy.on_server_error = OnServerError::Retry,
        ("on_server_error", "store") => policy.on_server_error = OnServerError::Store,
        ("after_expiry", "execute") => policy.after_expiry = AfterExpiry::Execute,
        ("after_expiry", "refuse") => policy.after_expiry = AfterExpiry::Refuse,
        ("answer", "sync") => policy.answer = AnswerRule::Sync,
        ("answer", "async") => policy.answer = AnswerRule::Async,
        _ => return Err(format!("no rule `{field}={value}`")),
    }
    Ok(())
}

/// Parses `201`, optionally followed by `as executed` or `as not executed`, and by `not retained` or `with retry-after`.
fn given_answer(words: &str, from: &str) -> Result<AttemptResponse, String> {
    let (status, how) = words.split_once(' ').unwrap_or((words, ""));
    let status = status.parse().map_err(|_| format!("`{status}` is no status"))?;
    let mut answer = answer(status, from);
    let mut how = how.trim();
    for (word, proof) in [("as executed", Proof::Executed), ("as not executed", Proof::NotExecuted)] {
        if let Some(rest) = how.strip_prefix(word) {
            (answer.proof, how) = (Some(proof), rest);
        }
    }
    match how.trim() {
        "" => Ok(answer),
        "not retained" => Ok(AttemptResponse { kept: None, ..answer }),
        "with retry-after" => Ok(AttemptResponse { retry_after: true, ..answer }),
        other => Err(format!("unknown words `{other}` after the status")),
    }
}

/// An operator action for stories in which the operator does not matter.
pub fn act() -> &'static OperatorAction {
    static ACT: LazyLock<OperatorAction> =
        LazyLock::new(|| OperatorAction::new("ann", "asked to").expect("a name and a reason"));
    &ACT
}

/// Splits evidence into the claim and the instant it is about.
fn evidence(what: &str, now: Timestamp) -> Result<(&str, Timestamp), String> {
    let Some((what, ago)) = what.split_once(" as of ") else {
        return Ok((what, now));
    };
    let ago = duration(ago.strip_suffix(" ago").ok_or("how long ago?")?)?;
    let micros = i64::try_from(ago.as_micros()).map_err(|error| error.to_string())?;
    Ok((what, Timestamp::from_micros(now.as_micros() - micros)))
}

fn phase_point(phases: &mut Vec<String>, phase: &str) -> Result<RecoveryPoint, String> {
    if !phase.starts_with('`') {
        return Err(format!("a phase has its name in backticks, not `{phase}`"));
    }
    if let Some(digits) = phase.strip_prefix("`point ") {
        return digits.trim_end_matches('`').parse().map_err(|_| "a point is a number".to_owned());
    }
    let at = phases.iter().position(|known| known == phase).unwrap_or_else(|| {
        phases.push(phase.to_owned());
        phases.len() - 1
    });
    RecoveryPoint::try_from(at + 1).map_err(|error| error.to_string())
}

fn in_what(words: &str) -> Result<&str, String> {
    words.strip_prefix("in ").map(str::trim).ok_or_else(|| format!("in how long? `{words}`"))
}

/// Parses durations such as `31s`, `1h` and `250ms`.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().map_err(|_| format!("`{text}` is no duration"))?;
    match &text[digits.len()..] {
        "us" => Ok(Duration::from_micros(number)),
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        "m" => Ok(Duration::from_secs(number * 60)),
        "h" => Ok(Duration::from_secs(number * 3600)),
        "d" => Ok(Duration::from_secs(number * 86_400)),
        unit => Err(format!("`{unit}` is no unit of time")),
    }
}

/// Strips remarks from a line.
fn remark_free(line: &str) -> &str {
    let line = line.split('#').next().unwrap_or_default();
    line.split(" (").next().unwrap_or_default().trim()
}

/// The contract's defaults, with a lease of 30s.
fn default_policy() -> Policy {
    Policy::default().with(|policy| policy.lease = Duration::from_secs(30))
}

/// Pause between two lookups of the reconciler, unless a story sets it.
const SETTLE: Duration = Duration::from_secs(60);
