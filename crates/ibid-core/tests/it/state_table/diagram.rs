//! The diagram of the states.

use std::collections::BTreeMap;
use std::fmt::Write;

use ibid_core::machine::Verdict;
use ibid_core::record::State;

use super::after;
use super::situations::Scene;

/// Arrows of the diagram: from, to, and their labels.
#[derive(Default)]
pub(super) struct Arrows(BTreeMap<(String, String), Vec<&'static str>>);

impl Arrows {
    pub(super) fn note(&mut self, scene: &Scene, verdict: &Verdict, group: &'static str) {
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

    pub(super) fn diagram(&self) -> String {
        let mut out = String::from("```mermaid\nstateDiagram-v2\n");
        for ((from, to), labels) in &self.0 {
            writeln!(out, "    {from} --> {to}: {}", labels.join(", ")).expect("a String takes every byte");
        }
        out + "    completed --> [*]: expires\n    retryable --> [*]: expires\n```\n"
    }
}
