//! The events that may happen to a record, and how to ask the machine about each.

use bytes::Bytes;
use ibid_core::machine::{
    AttemptResponse, BeginRequest, Event, Intent, Observation, ObservedBy, PhaseStep, Verdict, decide,
};
use ibid_core::record::{ErrorCode, Nonce, State};
use ibid_core::time::Timestamp;
use ibid_testkit::story::{act, answer, ask};

use super::situations::Scene;

/// One event: who does what, its label in the diagram, and how to ask the machine.
pub(super) struct Happening {
    pub(super) who: &'static str,
    pub(super) what: &'static str,
    pub(super) arrow: &'static str,
    pub(super) play: Play,
}

pub(super) type Play = Box<dyn Fn(&Scene) -> Option<Verdict>>;

/// Returns all events.
pub(super) fn events() -> Vec<Happening> {
    let groups = [requests(), given_up_begins(), attempt_reports(), chores(), observations()];
    groups.into_iter().flatten().collect()
}

/// A request finds the record.
fn requests() -> Vec<Happening> {
    let requests = [
        ("the same", "A", Intent::MayRun, false),
        ("the same to be run later", "A", Intent::MayRun, true),
        ("the same carefully", "A", Intent::MayRunNoTakeover, false),
        ("the same as a waiter", "A", Intent::ReadOnly, false),
        ("another", "B", Intent::MayRun, false),
    ];
    let happenings = requests.into_iter().map(|(what, body, role, later)| {
        let play: Play = Box::new(move |scene| {
            let ask = asking(scene, body, later);
            Some(decide(scene.record.as_ref(), &Event::Request { ask: &ask, role }, scene.now))
        });
        Happening { who: "request", what, arrow: "request", play }
    });
    happenings.collect()
}

/// A begin is given up: this record's own, or another's.
fn given_up_begins() -> Vec<Happening> {
    let happenings = [("its own", true), ("another's", false)].into_iter().map(|(what, own)| {
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
        Happening { who: "begin given up", what, arrow: "given up", play }
    });
    happenings.collect()
}

/// An attempt reports: the one that owns the record, or an earlier one.
fn attempt_reports() -> Vec<Happening> {
    let mut all = Vec::new();
    for (who, own) in [("its attempt", true), ("an earlier attempt", false)] {
        for (index, (what, arrow)) in SAYINGS.into_iter().enumerate() {
            let play: Play = Box::new(move |scene| attempt_says(scene, own, index));
            all.push(Happening { who, what, arrow, play });
        }
    }
    all
}

/// A worker, the sweeper, the reaper, an effect or an operator acts on the record.
fn chores() -> Vec<Happening> {
    let happenings = CHORES.into_iter().map(|(who, what, arrow, make)| {
        let play: Play = Box::new(move |scene| {
            Some(decide(scene.record.as_ref(), &make(&answer(201, "effect")), scene.now))
        });
        Happening { who, what, arrow, play }
    });
    happenings.collect()
}

type MakeEvent = fn(&AttemptResponse) -> Event<'_>;

/// Chores: who does what, the label in the diagram, and the event.
const CHORES: [(&str, &str, &str, MakeEvent); 9] = [
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

/// An observer finds out about the outcome.
fn observations() -> Vec<Happening> {
    let finders = [
        ("reconciler", ObservedBy::Reconciler),
        ("webhook", ObservedBy::Webhook),
        ("operator", ObservedBy::Operator(act())),
    ];
    let mut all = Vec::new();
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
pub(super) fn attempt_says(scene: &Scene, own: bool, index: usize) -> Option<Verdict> {
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

/// Nonces of the writes that the page asks about.
const WRITE: Nonce = Nonce(1000);

const ASKED: Nonce = Nonce(1001);
