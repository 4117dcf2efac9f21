//! Generates `docs/reference/states.md` by asking the machine about every situation and event.
//!
//! Run with `IBID_BLESS=1` to write the page again after a change of the rules.

mod conditions;
mod diagram;
mod effects;
mod events;
mod situations;

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use ibid_core::change::{Change, Stamp};
use ibid_core::machine::{Decision, Verdict};
use ibid_core::policy::{OnLapse, OnServerError, Policy, Reconcile};
use ibid_core::record::{Record, State};
use ibid_core::time::Timestamp;

use conditions::group_outcomes;
use diagram::Arrows;
use effects::effects;
use events::events;
use situations::{Scene, Situation, situations};

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
        section(situation, &mut sections, &mut arrows).expect("a String takes every byte");
    }
    format!("{HEAD}{}{TABLE}{sections}{EFFECTS}{}", arrows.diagram(), effects())
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

/// Name of the decision that is listed separately from the others.
const IGNORED: &str = "ignored";

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
