//! Generates `docs/reference/states.md` by asking the machine about every situation and event.
//!
//! Run with `IBID_BLESS=1` to write the page again after a change of the rules. Longer than most files, because the
//! situations, the events and the page that they fill are read together.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ibid_core::change::{Change, Stamp};
use ibid_core::effect::KEY_WINDOW;
use ibid_core::machine::{
    AttemptResponse, BeginRequest, Decision, Doubt, Effect, EffectEvent, EffectState, Event, Intent,
    Observation, ObservedBy, PhaseStep, Verdict, decide, decide_effect,
};
use ibid_core::policy::{AfterExpiry, OnLapse, OnServerError, Policy, Reconcile};
use ibid_core::record::{ErrorCode, Nonce, Record, State};
use ibid_core::time::Timestamp;
use ibid_testkit::story::{StoryStore, act, answer, ask};

#[test]
fn the_page_of_states_matches_the_machine() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/states.md");
    let page = page();
    if std::env::var_os("IBID_BLESS").is_some() {
        std::fs::write(path, &page).expect("docs/reference can be written");
    }
    let stored = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        stored == page,
        "docs/reference/states.md is stale: run this test with IBID_BLESS=1 and read the change"
    );
}

fn page() -> String {
    let mut arrows = Arrows::default();
    let mut sections = String::new();
    for situation in situations() {
        section(&situation, &mut sections, &mut arrows).expect("a String takes every byte");
    }
    format!("{HEAD}{}{TABLE}{sections}{EFFECTS}{}", arrows.diagram(), effects())
}

/// One heading of the page: a situation of a record.
struct Situation {
    title: &'static str,
    make: fn(Arc<Policy>) -> Option<Scene>,
}

/// A record in some situation, with the attempt that owns it and an earlier one.
struct Scene {
    record: Option<Record>,
    begun: Option<Record>,
    earlier: Option<Record>,
    now: Timestamp,
}

/// Outcome of an event: the next state and the decision.
#[derive(Clone, PartialEq)]
struct Row {
    to: String,
    decision: String,
}

/// Writes one section: a row per outcome, and a line for events that change nothing.
fn section(situation: &Situation, out: &mut String, arrows: &mut Arrows) -> std::fmt::Result {
    let mut rows: Vec<(Row, Happenings)> = Vec::new();
    for event in events() {
        let outcomes: Vec<_> = variants()
            .into_iter()
            .filter_map(|(values, policy)| {
                let scene = (situation.make)(Arc::new(policy))?;
                let verdict = (event.play)(&scene)?;
                arrows.note(&scene, &verdict, event.arrow);
                Some((values, row(&scene, &verdict)))
            })
            .collect();
        for (when, row) in group_outcomes(&DIMENSIONS, &outcomes) {
            let at = rows.iter().position(|(known, _)| *known == row).unwrap_or_else(|| {
                rows.push((row, Happenings::default()));
                rows.len() - 1
            });
            rows[at].1.add(event.who, event.what, when);
        }
    }
    writeln!(out, "\n### {}\n", situation.title)?;
    writeln!(out, "| what happens | to | decision |\n| --- | --- | --- |")?;
    for (row, what) in rows.iter().filter(|(row, _)| row.decision != IGNORED) {
        writeln!(out, "| {} | {} | {} |", what.describe(), row.to, row.decision)?;
    }
    if let Some((_, what)) = rows.iter().find(|(row, _)| row.decision == IGNORED) {
        writeln!(out, "\nChanges nothing: {}.", what.describe())?;
    }
    Ok(())
}

/// Events that lead to one outcome, grouped by actor and rule.
#[derive(Default)]
struct Happenings(Vec<(&'static str, String, Vec<&'static str>)>);

impl Happenings {
    fn add(&mut self, who: &'static str, what: &'static str, when: String) {
        match self.0.iter_mut().find(|(known, rule, _)| *known == who && *rule == when) {
            Some((.., all)) => all.push(what),
            None => self.0.push((who, when, vec![what])),
        }
    }

    fn describe(&self) -> String {
        let events = events();
        let each = self.0.iter().map(|(who, when, what)| {
            let event_count = events.iter().filter(|event| event.who == *who).count();
            let what = if what.len() == event_count && event_count > 2 {
                "anything".into()
            } else {
                what.join(", ")
            };
            if when.is_empty() { format!("**{who}** {what}") } else { format!("**{who}** {what} ({when})") }
        });
        each.collect::<Vec<_>>().join(" · ")
    }
}

fn row(scene: &Scene, verdict: &Verdict) -> Row {
    let (change, decision) = match verdict {
        Verdict::Keep(decision) => (None, decision),
        Verdict::Write(change, decision) => (Some(change), decision),
    };
    let to = match change.map(|change| after(scene, change)) {
        None => "–".to_owned(),
        Some(None) => "– (noted in the history)".to_owned(),
        Some(Some(row)) => describe_row(scene, &row),
    };
    Row { to, decision: describe_decision(decision, scene.now) }
}

fn after(scene: &Scene, change: &Change) -> Option<Arc<Record>> {
    change.apply(Stamp { now: scene.now }, scene.record.as_ref())
}

/// Describes a row after a write, with the details that a reader looks for.
fn describe_row(scene: &Scene, row: &Record) -> String {
    let before = scene.record.as_ref();
    let mut notes = Vec::new();
    let is_new = before.is_some_and(|before| before.birth != row.birth);
    if is_new {
        notes.push("new generation".to_owned());
    } else if before.is_some_and(|before| before.attempt != row.attempt) {
        notes.push("next attempt".to_owned());
    }
    if before.is_some_and(|before| !is_new && before.point != row.point) {
        notes.push(format!("point {}", row.point));
    }
    if row.flags.owed {
        notes.push("response owed".to_owned());
    }
    if let (State::Completed, Some(status)) = (row.state, row.note.status) {
        notes.push(status.to_string());
    }
    if row.note.doubt.is_some() {
        notes.push("in-doubt call".to_owned());
    }
    if row.flags.dead_letter {
        notes.push("dead letter".to_owned());
    }
    if row.fingerprint.is_none() {
        notes.push("key unclaimed".to_owned());
    }
    if row.is_expired(scene.now) {
        notes.push("expired".to_owned());
    }
    let notes = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join(", ")) };
    format!("`{}`{notes}", row.state.name())
}

fn describe_decision(decision: &Decision, now: Timestamp) -> String {
    match decision {
        Decision::Run { after: 0 } => "run".into(),
        Decision::Run { after } => format!("run after point {after}"),
        Decision::Accepted => "accepted".into(),
        Decision::Replay => "replay".into(),
        Decision::NotRetained => "not retained".into(),
        Decision::Wait { overlong: false } => "wait".into(),
        Decision::Wait { overlong: true } => "wait, and reset the lease".into(),
        Decision::Free => "free for the next request".into(),
        Decision::Unknown { until: Some(until) } => format!("unknown for {}s", until.since(now).as_secs()),
        Decision::Unknown { until: None } => "unknown, an operator must look".into(),
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
        Decision::Ignored => IGNORED.into(),
    }
}

/// One event: who does what, its label in the diagram, and how to ask the machine.
struct Happening {
    who: &'static str,
    what: &'static str,
    arrow: &'static str,
    play: Play,
}

type Play = Box<dyn Fn(&Scene) -> Option<Verdict>>;

/// Returns all events.
fn events() -> Vec<Happening> {
    let mut all = Vec::new();
    let requests = [
        ("the same", "A", Intent::MayRun, false),
        ("the same to be run later", "A", Intent::MayRun, true),
        ("the same carefully", "A", Intent::MayRunNoTakeover, false),
        ("the same as a waiter", "A", Intent::ReadOnly, false),
        ("another", "B", Intent::MayRun, false),
    ];
    for (what, body, role, later) in requests {
        let play: Play = Box::new(move |scene| {
            let ask = asking(scene, body, later);
            Some(decide(scene.record.as_ref(), &Event::Request { ask: &ask, role }, scene.now))
        });
        all.push(Happening { who: "request", what, arrow: "request", play });
    }
    for (what, own) in [("its own", true), ("another's", false)] {
        let play: Play = Box::new(move |scene| {
            let mut ask = asking(scene, "A", false);
            if own {
                // Only a record that the request itself began, and that is still unsettled, can be its own.
                let record = scene.record.as_ref().filter(|record| !record.flags.asynchronous)?;
                let open = matches!(record.state, State::InProgress | State::Unknown);
                ask.nonce = open.then_some(record.owner)?;
            }
            Some(decide(scene.record.as_ref(), &Event::GaveUp { ask: &ask, nonce: WRITE }, scene.now))
        });
        all.push(Happening { who: "begin given up", what, arrow: "given up", play });
    }
    for (who, own) in [("its attempt", true), ("an earlier attempt", false)] {
        for (index, (what, arrow)) in SAYINGS.into_iter().enumerate() {
            let play: Play = Box::new(move |scene| attempt_says(scene, own, index));
            all.push(Happening { who, what, arrow, play });
        }
    }
    type Make = fn(&AttemptResponse) -> Event<'_>;
    let chores: [(&'static str, &'static str, &'static str, Make); 9] = [
        ("worker", "claims it", "claimed", |_| Event::Claim { nonce: WRITE }),
        ("sweeper", "finds it", "lapse", |_| Event::Lapsed { nonce: WRITE, careful: false }),
        ("sweeper", "finds it just after a clock jump", "lapse", |_| Event::Lapsed {
            nonce: WRITE,
            careful: true,
        }),
        ("sweeper", "can run the handler", "resume", |_| Event::Resume { nonce: WRITE, careful: false }),
        ("sweeper", "could run the handler just after a clock jump", "resume", |_| Event::Resume {
            nonce: WRITE,
            careful: true,
        }),
        ("reaper", "looks for requests that were never claimed", "never claimed", |_| Event::NeverClaimed {
            nonce: WRITE,
        }),
        ("its effect", "is done", "effect done", |answer| Event::EffectDone { nonce: WRITE, answer }),
        ("its effect", "is dead", "effect dead", |_| Event::EffectDead { nonce: WRITE }),
        ("operator", "forgets it", "forgotten", |_| Event::Forget { nonce: WRITE, act: act() }),
    ];
    for (who, what, arrow, make) in chores {
        let play: Play = Box::new(move |scene| {
            Some(decide(scene.record.as_ref(), &make(&answer(201, "effect")), scene.now))
        });
        all.push(Happening { who, what, arrow, play });
    }
    let finders = [
        ("reconciler", ObservedBy::Reconciler),
        ("webhook", ObservedBy::Webhook),
        ("operator", ObservedBy::Operator(act())),
    ];
    for (who, by) in finders {
        let finds = [
            ("finds it executed", Observation::Executed(answer(201, "found")), false),
            ("finds it not executed", Observation::NotExecuted, false),
            ("cannot tell", Observation::Nothing, false),
            ("finds it executed before its attempt began", Observation::Executed(answer(201, "found")), true),
        ];
        for (what, observation, old) in finds {
            let play: Play = Box::new(move |scene| {
                let as_of = if old { Timestamp::default() } else { scene.now };
                let event = Event::Observed { nonce: WRITE, by, what: &observation, as_of, jitter: 0.0 };
                Some(decide(scene.record.as_ref(), &event, scene.now))
            });
            all.push(Happening { who, what, arrow: "found", play });
        }
    }
    all
}

/// Reports of an attempt, each with its label in the diagram.
const SAYINGS: [(&str, &str); 12] = [
    ("responds 201", "response"),
    ("responds 402", "response"),
    ("responds 429", "response"),
    ("responds 401", "response"),
    ("responds 500", "response"),
    ("responds 503", "response"),
    ("proves that nothing was executed", "not executed"),
    ("cannot know", "uncertain"),
    ("owes the response", "response owed"),
    ("commits the next phase", "phase"),
    ("commits a phase out of turn", "phase"),
    ("is about to make an external call", "calling"),
];

/// Asks the machine about the report at `index`.
fn attempt_says(scene: &Scene, own: bool, index: usize) -> Option<Verdict> {
    let record = if own { scene.begun.as_ref()? } else { scene.earlier.as_ref()? };
    let answers = [201, 402, 429, 401, 500, 503].map(|status| answer(status, "attempt"));
    let result = Bytes::from_static(b"result");
    let next = scene.record.as_ref().map_or(0, |record| record.point) + 1;
    let (nonce, point) = (WRITE, if index == 10 { next + 1 } else { next });
    let event = match index {
        0..6 => Event::Answered { begun: record, nonce, answer: &answers[index] },
        6 => Event::NotExecuted { begun: record, nonce, why: ErrorCode::NotSent },
        7 => Event::Uncertain { begun: record, nonce, why: ErrorCode::TimedOut },
        8 => Event::Owes { begun: record, nonce },
        9 | 10 => Event::Phase {
            begun: record,
            nonce,
            step: PhaseStep { point, phases: 1 },
            name: "work",
            result: &result,
        },
        _ => Event::Calling { begun: record, nonce, point: Some(point) },
    };
    Some(decide(scene.record.as_ref(), &event, scene.now))
}

/// Returns a request that finds the scene's record, under the rules that the record carries.
fn asking(scene: &Scene, body: &str, later: bool) -> BeginRequest {
    let policy = scene.record.as_ref().map(|record| record.policy.clone());
    let mut ask = ask("shop", body, policy.unwrap_or_default(), ASKED);
    ask.later = later.then(|| Bytes::from_static(b"request"));
    ask
}

/// Returns all situations that the machine distinguishes.
fn situations() -> Vec<Situation> {
    vec![
        Situation {
            title: "absent",
            make: |policy| {
                let mut set = Set::new(policy, false);
                set.run();
                Some(Scene { record: None, earlier: None, ..set.scene() })
            },
        },
        Situation { title: "`pending`, to be claimed", make: |policy| Some(Set::new(policy, true).scene()) },
        Situation {
            title: "`pending`, never claimed and past its deadline",
            make: |policy| {
                let mut set = Set::new(policy, true);
                set.wait(3600);
                Some(set.scene())
            },
        },
        Situation {
            title: "`pending`, waiting for its next run",
            make: |policy| {
                let mut set = Set::new(policy, true);
                set.run();
                set.says(5);
                Some(set.scene())
            },
        },
        Situation {
            title: "`pending`, its response owed by an effect",
            make: |policy| {
                let mut set = Set::new(policy, false);
                set.run();
                set.says(7);
                Some(set.scene())
            },
        },
        Situation {
            title: "`in_progress`, its lease live",
            make: |policy| {
                let mut set = Set::new(policy, false);
                set.run();
                Some(set.scene())
            },
        },
        Situation {
            title: "`in_progress`, its lease longer than its length (the clock stepped back)",
            make: |policy| {
                let mut set = Set::new(policy, false);
                set.run();
                let micros = set.shelf.now.as_micros();
                set.shelf.now = Timestamp::from_micros(micros - 60_000_000);
                Some(set.scene())
            },
        },
        Situation {
            title: "`in_progress`, its lease lapsed",
            make: |policy| {
                let mut set = Set::new(policy, false);
                set.run();
                set.says(8);
                set.wait(60);
                Some(set.scene())
            },
        },
        Situation {
            title: "`in_progress`, its lease lapsed for the last time (`max_attempts`)",
            make: |policy| {
                let mut set =
                    Set::new(Arc::new(((*policy).clone()).with(|policy| policy.max_attempts = 1)), false);
                set.run();
                set.wait(60);
                Some(set.scene())
            },
        },
        Situation {
            title: "`in_progress`, async, its lease lapsed",
            make: |policy| {
                let mut set = Set::new(policy, true);
                set.run();
                set.wait(60);
                Some(set.scene())
            },
        },
        Situation {
            title: "`retryable`",
            make: |policy| {
                let mut set = Set::new(policy, false);
                set.run();
                set.says(5);
                Some(set.scene())
            },
        },
        Situation {
            title: "`retryable`, after 401 or 403",
            make: |policy| {
                let mut set = Set::new(policy, false);
                set.run();
                set.says(3);
                Some(set.scene())
            },
        },
        Situation {
            title: "`retryable`, an in-doubt call",
            make: |policy| {
                let mut set = leave_in_doubt(policy);
                // Long enough for the sweeper to find it due.
                set.wait(60);
                Some(set.scene())
            },
        },
        Situation {
            title: "`retryable`, an in-doubt call whose key may be forgotten",
            make: |policy| {
                let mut set = leave_in_doubt(policy);
                set.wait(KEY_WINDOW.as_secs());
                Some(set.scene())
            },
        },
        Situation {
            title: "`unknown`, its attempt possibly not over yet",
            make: |policy| {
                policy.reconcile.as_ref()?;
                let mut set = Set::new(policy, false);
                set.run();
                set.says(6);
                Some(set.scene())
            },
        },
        Situation {
            title: "`unknown`, to be reconciled",
            make: |policy| {
                policy.reconcile.as_ref()?;
                let mut set = Set::new(policy, false);
                set.run();
                set.says(6);
                set.wait(60);
                Some(set.scene())
            },
        },
        Situation {
            title: "`unknown`, not found by a first lookup",
            make: |policy| {
                policy.reconcile.as_ref()?;
                let mut set = Set::new(policy, false);
                set.run();
                set.says(6);
                set.wait(60);
                let (what, as_of) = (Observation::NotExecuted, set.shelf.now);
                let by = ObservedBy::Reconciler;
                set.happens(&Event::Observed { nonce: Nonce(90), by, what: &what, as_of, jitter: 0.0 });
                set.wait(60);
                Some(set.scene())
            },
        },
        Situation {
            title: "`unknown`, a dead letter",
            make: |policy| {
                if policy.reconcile.is_some() {
                    return None;
                }
                let mut set = Set::new(policy, false);
                set.run();
                set.says(6);
                Some(set.scene())
            },
        },
        Situation { title: "`completed`, a success", make: |policy| finish(policy, 0) },
        Situation { title: "`completed`, a failure", make: |policy| finish(policy, 1) },
        Situation {
            title: "`completed`, its response not retained",
            make: |policy| {
                let mut set = Set::new(policy, false);
                set.run();
                let record = set.begun.clone()?;
                let answer = AttemptResponse { kept: None, ..answer(200, "") };
                set.happens(&Event::Answered { begun: &record, nonce: Nonce(90), answer: &answer });
                Some(set.scene())
            },
        },
        Situation {
            title: "expired, `after_expiry = \"execute\"`",
            make: |policy| {
                let scene = finish(policy, 0)?;
                Some(Scene { now: scene.now.after(Duration::from_secs(24 * 3600)), ..scene })
            },
        },
        Situation {
            title: "expired, `after_expiry = \"refuse\"`, its tombstone kept",
            make: |policy| {
                let policy = ((*policy).clone()).with(|policy| {
                    policy.after_expiry = AfterExpiry::Refuse;
                    policy.tombstone = Duration::from_secs(3600);
                });
                let scene = finish(Arc::new(policy), 0)?;
                Some(Scene { now: scene.now.after(Duration::from_secs(24 * 3600)), ..scene })
            },
        },
    ]
}

/// Returns a record whose attempt made the report at `index`.
fn finish(policy: Arc<Policy>, index: usize) -> Option<Scene> {
    let mut set = Set::new(policy, false);
    set.run();
    set.says(index);
    Some(set.scene())
}

/// Returns a record whose attempt left an in-doubt call and proved that it did nothing else.
fn leave_in_doubt(policy: Arc<Policy>) -> Set {
    let mut set = Set::new(policy, false);
    set.run();
    if let Some(begun) = &mut set.begun {
        begun.note.doubt = Some(1);
    }
    set.says(5);
    set
}

/// Brings a record into a situation by the events that lead there.
struct Set {
    shelf: StoryStore,
    begun: Option<Record>,
    drawn: u64,
}

impl Set {
    fn new(policy: Arc<Policy>, later: bool) -> Set {
        let mut set = Set { shelf: StoryStore::new(), begun: None, drawn: 100 };
        let mut ask = ask("shop", "A", policy, Nonce(1));
        ask.later = later.then(|| Bytes::from_static(b"request"));
        set.happens(&Event::Request { ask: &ask, role: Intent::MayRun });
        set
    }

    fn happens(&mut self, event: &Event<'_>) {
        if let Verdict::Write(change, _) = decide(self.shelf.record(), event, self.shelf.now) {
            self.shelf.commit(&change);
        }
    }

    /// Runs the first request, or lets a worker claim it.
    fn run(&mut self) {
        self.drawn += 1;
        self.happens(&Event::Claim { nonce: Nonce(self.drawn) });
        self.begun = self.shelf.record().cloned();
    }

    fn says(&mut self, index: usize) {
        if let Some(Verdict::Write(change, _)) = attempt_says(&self.scene(), true, index) {
            self.shelf.commit(&change);
        }
    }

    fn wait(&mut self, seconds: u64) {
        self.shelf.now = self.shelf.now.after(Duration::from_secs(seconds));
    }

    fn scene(&self) -> Scene {
        let record = self.shelf.record().cloned();
        // A record that was never run has neither attempt.
        let earlier = self.begun.clone().map(|begun| Record { owner: Nonce(50), ..begun });
        Scene { earlier, begun: self.begun.clone(), record, now: self.shelf.now }
    }
}

/// Rules by which outcomes may differ.
const DIMENSIONS: [&str; 3] = ["on_lapse", "on_server_error", "reconcile"];

fn variants() -> Vec<(Vec<&'static str>, Policy)> {
    let lapses = [
        ("unknown", OnLapse::Unknown),
        ("retry", OnLapse::Retry),
        ("resume", OnLapse::Resume),
        ("fail", OnLapse::Fail),
    ];
    let errors = [
        ("unknown", OnServerError::Unknown),
        ("retry", OnServerError::Retry),
        ("store", OnServerError::Store),
    ];
    let asks = [("set", Some(Reconcile::new(Duration::from_secs(60), 10))), ("not set", None)];
    let mut all = Vec::new();
    for (lapse, on_lapse) in lapses {
        for (error, on_server_error) in errors {
            for (asked, reconcile) in asks.clone() {
                let policy = Policy::default().with(|policy| {
                    policy.on_lapse = on_lapse;
                    policy.on_server_error = on_server_error;
                    policy.reconcile = reconcile;
                });
                all.push((vec![lapse, error, asked], policy));
            }
        }
    }
    all
}

/// Returns the different outcomes, each with the rules under which it occurs. Only rules that make a difference are
/// named.
fn group_outcomes<R: Clone + PartialEq>(
    names: &[&str],
    outcomes: &[(Vec<&'static str>, R)],
) -> Vec<(String, R)> {
    let matters: Vec<usize> = (0..names.len())
        .filter(|dimension| {
            outcomes.iter().any(|(values, row)| {
                outcomes.iter().any(|(others, other)| {
                    let alike = (0..names.len()).all(|d| d == *dimension || values[d] == others[d]);
                    alike && row != other
                })
            })
        })
        .collect();
    let mut groups: Vec<(Vec<Vec<&'static str>>, R)> = Vec::new();
    for (values, row) in outcomes {
        let chosen: Vec<_> = matters.iter().map(|d| values[*d]).collect();
        match groups.iter_mut().find(|(_, known)| known == row) {
            Some((combinations, _)) if combinations.contains(&chosen) => {}
            Some((combinations, _)) => combinations.push(chosen),
            None => groups.push((vec![chosen], row.clone())),
        }
    }
    let mut all: Vec<Vec<&'static str>> = Vec::new();
    for (combinations, _) in &groups {
        all.extend(combinations.iter().cloned());
    }
    let names: Vec<_> = matters.iter().map(|d| names[*d]).collect();
    let each = groups.into_iter().flat_map(|(combinations, row)| {
        conditions(&names, &combinations, &all).into_iter().map(move |when| (when.join(", "), row.clone()))
    });
    each.collect()
}

/// Reduces combinations to few conditions: values of one rule that leave the same choices to the other rules are
/// merged.
fn conditions(names: &[&str], chosen: &[Vec<&'static str>], all: &[Vec<&'static str>]) -> Vec<Vec<String>> {
    let Some((name, names)) = names.split_first() else {
        return vec![Vec::new()];
    };
    let rest_of = |combinations: &[Vec<&'static str>], value: &str| -> Vec<Vec<&'static str>> {
        combinations.iter().filter(|c| c[0] == value).map(|c| c[1..].to_vec()).collect()
    };
    let mut groups: Vec<(Vec<&str>, Vec<Vec<&'static str>>)> = Vec::new();
    for value in chosen.iter().map(|combination| combination[0]) {
        let rest = rest_of(chosen, value);
        match groups.iter_mut().find(|(_, known)| *known == rest) {
            Some((values, _)) if values.contains(&value) => {}
            Some((values, _)) => values.push(value),
            None => groups.push((vec![value], rest)),
        }
    }
    let mut possible: Vec<_> = all.iter().map(|combination| combination[0]).collect();
    possible.sort_unstable();
    possible.dedup();
    let mut lines = Vec::new();
    for (values, rest) in groups {
        let own = (values.len() < possible.len()).then(|| format!("`{name}` {}", values.join(" or ")));
        for more in conditions(names, &rest, &rest_of(all, values[0])) {
            lines.push(own.iter().cloned().chain(more).collect());
        }
    }
    lines
}

/// Arrows of the diagram: from, to, and their labels.
#[derive(Default)]
struct Arrows(BTreeMap<(String, String), Vec<&'static str>>);

impl Arrows {
    fn note(&mut self, scene: &Scene, verdict: &Verdict, group: &'static str) {
        let Verdict::Write(change, _) = verdict else { return };
        let Some(row) = after(scene, change) else { return };
        let from = scene.record.as_ref().filter(|record| !record.is_expired(scene.now));
        let from = from.map_or("[*]".to_owned(), |record| record.state.name().to_owned());
        let to = if row.is_expired(scene.now) { "[*]".to_owned() } else { row.state.name().to_owned() };
        if from == to {
            return;
        }
        let group = match (group, row.state) {
            // A request that writes here has found the lapse.
            ("request", _) if from == State::InProgress.name() => "lapse",
            ("response", State::Retryable | State::Pending) => "free response",
            ("response", State::Unknown) => "ambiguous response",
            _ => group,
        };
        let labels = self.0.entry((from, to)).or_default();
        if !labels.contains(&group) {
            labels.push(group);
        }
    }

    fn diagram(&self) -> String {
        let mut out = String::from("```mermaid\nstateDiagram-v2\n");
        for ((from, to), labels) in &self.0 {
            writeln!(out, "    {from} --> {to}: {}", labels.join(", ")).expect("a String takes every byte");
        }
        out + "    completed --> [*]: expires\n    retryable --> [*]: expires\n```\n"
    }
}

/// Returns the table of effects.
fn effects() -> String {
    let events = [
        ("a worker claims it", EffectEvent::Claim),
        ("the call is made", EffectEvent::Made),
        ("the call certainly had no effect", EffectEvent::NotMade { after: None }),
        ("the provider refuses permanently", EffectEvent::Refused),
        ("the call may have been made", EffectEvent::Uncertain),
        ("the claim lapses", EffectEvent::Lapsed),
        ("`verify` says that it happened", EffectEvent::Verified(Some(true))),
        ("`verify` says that it did not", EffectEvent::Verified(Some(false))),
        ("`verify` cannot tell", EffectEvent::Verified(None)),
        ("an operator retries it", EffectEvent::Retry),
        ("an operator discards it", EffectEvent::Discard),
    ];
    let mut out = String::new();
    for state in EffectState::ALL {
        let mut ignored = Vec::new();
        for (name, event) in events {
            let mut outcomes = Vec::new();
            let settle = Duration::from_secs(60);
            for (doubt_name, doubt) in
                [("repeat", Doubt::Repeat), ("verify", Doubt::Verify { settle }), ("stop", Doubt::Stop)]
            {
                for (left, tries) in [("left", 1), ("used up", 5)] {
                    let effect = Effect { state, tries, tries_max: 5, doubt };
                    let to = decide_effect(&effect, event).map(|(to, after)| match (to, after) {
                        (_, Some(after)) if after.is_zero() => format!("`{}`, at once", to.name()),
                        (_, Some(after)) if after == settle => {
                            format!("`{}`, verified after `settle`", to.name())
                        }
                        (_, Some(_)) => format!("`{}`, with backoff", to.name()),
                        (EffectState::Unknown, None) => format!("`{}`, a dead letter", to.name()),
                        (_, None) => format!("`{}`", to.name()),
                    });
                    outcomes.push((vec![doubt_name, left], to));
                }
            }
            for (when, to) in group_outcomes(&["in doubt", "tries"], &outcomes) {
                let what = if when.is_empty() { name.to_owned() } else { format!("{name}, {when}") };
                match to {
                    Some(to) => writeln!(out, "| `{}` | {what} | {to} |", state.name())
                        .expect("a String takes every byte"),
                    None => ignored.push(what),
                }
            }
        }
        if ignored.len() == events.len() {
            writeln!(out, "| `{}` | anything | stays |", state.name()).expect("a String takes every byte");
        }
    }
    out
}

/// Name of the decision that is listed separately from the others.
const IGNORED: &str = "ignored";

/// Nonces of the writes that the page asks about.
const WRITE: Nonce = Nonce(1000);
const ASKED: Nonce = Nonce(1001);

const HEAD: &str = "\
# States

<!-- Generated by the state machine itself: crates/ibid-core/tests/it/state_table.rs. Don't edit; run that test with IBID_BLESS=1. -->

For each situation of a record, the events and their outcomes. Every row is a verdict of `ibid_core::machine::decide`. A write
counts only if the record is still as it was read; the loser of a race decides again.

";

const TABLE: &str = "
## Records

*Its attempt* is the one that runs or ran last; *an earlier attempt* is one that no longer owns the record. A request comes
*carefully* just after the store's clock jumped, and *as a waiter* if it waited for another attempt's response. *Begin given up*:
the store did not reply in time, and the client got 503, which means that nothing was executed. A rule is named where it makes a
difference, and is the one that the record was begun with. `–`: the record stays as it is.
";

const EFFECTS: &str = "
## Effects

*in doubt*: an uncertain call is repeated (`repeat`: the provider deduplicates by our key, and the key window is not over),
verified (`verify`) or left to an operator (`stop`). Events that are not listed change nothing.

| from | what happens | to |
| --- | --- | --- |
";
