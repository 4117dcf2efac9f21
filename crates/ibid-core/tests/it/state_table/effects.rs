//! The table of effects.

use std::fmt::Write;
use std::time::Duration;

use ibid_core::machine::{Effect, EffectEvent, EffectState, InDoubtRule, decide_effect};

use super::conditions::group_outcomes;

/// Returns the table of effects.
pub(super) fn effects() -> String {
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
            for (doubt_name, doubt) in [
                ("repeat", InDoubtRule::Repeat),
                ("verify", InDoubtRule::Verify { settle }),
                ("stop", InDoubtRule::Stop),
            ] {
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
