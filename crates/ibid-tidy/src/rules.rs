//! The table of rules.
//!
//! To turn a debt into a ban, mend its findings and set its `ceiling` to 0. A false positive that can't be written
//! otherwise goes into `allow`, with the reason.

mod docs;
mod edges;
mod names;
mod phrases;
mod sizes;
mod states;

#[cfg(test)]
mod tests;

use crate::Finding;
use crate::tree::Tree;

/// A rule about the source tree.
pub(crate) struct Rule {
    /// Its name, in reports and on the command line.
    pub(crate) name: &'static str,
    /// Advice on what to write instead.
    pub(crate) instead: &'static str,
    /// Findings that the tree may have. Zero denies; more is a debt that may only shrink.
    pub(crate) ceiling: usize,
    /// Beginnings of paths that are exempt, each with the reason.
    pub(crate) allow: &'static [&'static [(&'static str, &'static str)]],
    /// Finds what breaks the rule, exempt files included. It is given the rule's name.
    pub(crate) check: fn(&'static str, &Tree<'_>) -> Vec<Finding>,
}

/// All rules, in the order of reports.
pub(crate) const RULES: &[Rule] = &[
    // Names.
    Rule {
        name: "module-name",
        instead: "Name a module by a noun of the field or verb_noun: `retry_after`, `record_result`.",
        ceiling: 0,
        allow: &[],
        check: names::modules,
    },
    Rule {
        name: "type-name",
        instead: "Name a type by a noun and its role: `HeldAttempt`, `ReapStats`, `StoredEvidence`.",
        ceiling: 0,
        allow: &[],
        check: names::types,
    },
    Rule {
        name: "function-name",
        instead: "Name a function by a verb: `apply_change`, `notify_waiters`; a bool by `is_`, `has_`, `may_`.",
        ceiling: 0,
        allow: &[],
        check: names::functions,
    },
    Rule {
        name: "function-participle",
        instead: "Name a function by a verb: `encode`, `mark_lapsed`; a bool by `is_`, `has_`, `may_`.",
        ceiling: 0,
        allow: &[HYPER_CONNECTIONS],
        check: names::function_participles,
    },
    Rule {
        name: "local-name",
        instead: "Name a local by what it holds: `rows`, `record`, `evidence`, `outcome`, `index`, `lock`.",
        ceiling: 0,
        allow: &[TIDY_ITSELF],
        check: names::locals,
    },
    Rule {
        name: "public-type-unique",
        instead: "Rename one: a public type name means one thing in the workspace.",
        ceiling: 0,
        allow: &[],
        check: names::public_duplicates,
    },
    Rule {
        name: "type-unique-in-crate",
        instead: "Rename one: a type name means one thing in a crate.",
        ceiling: 0,
        allow: &[],
        check: names::crate_duplicates,
    },
    Rule {
        name: "test-name",
        instead: "One clause of at most 60 characters, true when the test passes; two clauses are two tests.",
        ceiling: 0,
        allow: &[],
        check: names::tests,
    },
    // Prose.
    Rule {
        name: "pronoun",
        instead: "Name the actor: another process, the caller, an operator, no worker; or drop it.",
        ceiling: 0,
        allow: &[TIDY_ITSELF],
        check: phrases::find_pronouns,
    },
    Rule {
        name: "come-again",
        instead: "Write retry, again, from scratch, new generation.",
        ceiling: 0,
        allow: &[TIDY_ITSELF],
        check: phrases::find_come_again,
    },
    Rule {
        name: "of-its-own",
        instead: "Write separate, or one per …; usually nothing.",
        ceiling: 0,
        allow: &[TIDY_ITSELF],
        check: phrases::find_of_its_own,
    },
    Rule {
        name: "stands",
        instead: "Write is stored, is in, queues behind.",
        ceiling: 0,
        allow: &[TIDY_ITSELF],
        check: phrases::find_stands,
    },
    Rule {
        name: "what-becomes-of",
        instead: "Write result, outcome, the stored row.",
        ceiling: 0,
        allow: &[TIDY_ITSELF],
        check: phrases::find_what_becomes_of,
    },
    Rule {
        name: "goes-on",
        instead: "Write continues, resumes, was taken over, changed since.",
        ceiling: 0,
        allow: &[TIDY_ITSELF],
        check: phrases::find_goes_on,
    },
    Rule {
        name: "under-way",
        instead: "Write in flight, running; permanently.",
        ceiling: 0,
        allow: &[TIDY_ITSELF],
        check: phrases::find_under_way,
    },
    Rule {
        name: "person",
        instead: "Write operator, dead letter, manual attention.",
        ceiling: 0,
        allow: &[TIDY_ITSELF],
        check: phrases::find_person,
    },
    Rule {
        name: "beside",
        instead: "Write with, next to, in the same process; a body that is kept beside a record is an attachment.",
        ceiling: 0,
        allow: &[TIDY_ITSELF],
        check: phrases::find_beside,
    },
    Rule {
        name: "for-because",
        instead: "Write `, because`, or begin a new sentence.",
        ceiling: 0,
        allow: &[TIDY_ITSELF],
        check: phrases::find_for_because,
    },
    Rule {
        name: "passive-told",
        instead: "Write it active, with an agent: the store returns, the reaper skips.",
        ceiling: 0,
        allow: &[TIDY_ITSELF],
        check: phrases::find_passive_told,
    },
    Rule {
        name: "doc-starts-with-question",
        instead: "Start with a verb (Returns whether…, Applies…) or a noun phrase (Outcome of a commit.).",
        ceiling: 0,
        allow: &[],
        check: docs::questions,
    },
    Rule {
        name: "doc-starts-with-the-same",
        instead: "Write `Like [`x`], but …`, or repeat the sentence: a doc comment is read alone.",
        ceiling: 0,
        allow: &[],
        check: docs::the_same,
    },
    Rule {
        name: "doc-too-short",
        instead: "Write a full noun phrase of at least four words: `Nonce of this write, drawn by the caller.`",
        ceiling: 0,
        allow: &[],
        check: docs::too_short,
    },
    Rule {
        name: "doc-errors",
        instead: "Add a section `# Errors` that says when it fails and whether a retry may help.",
        ceiling: 0,
        allow: &[],
        check: docs::errors,
    },
    // Layers.
    Rule {
        name: "module-edge",
        instead: "Move the code to the layer that owns it, or pass what it needs from above.",
        ceiling: 0,
        allow: &[],
        check: edges::modules,
    },
    Rule {
        name: "store-edge",
        instead: "A store compares versions and instants; what it needs of the drivers is passed to it.",
        ceiling: 0,
        allow: &[],
        check: edges::stores,
    },
    Rule {
        name: "crate-edge",
        instead: "Dependencies point cli → console → ibid → ibid-core; the testkit is for tests.",
        ceiling: 0,
        allow: &[],
        check: edges::crates,
    },
    Rule {
        name: "state-outside-machine",
        instead: "Ask `ibid_core::machine` for the decision; only it chooses or interprets a state.",
        ceiling: 0,
        allow: &[&[("crates/ibid-bench/", "it fills stores with rows in given states")]],
        check: states::literals,
    },
    Rule {
        name: "state-in-sql",
        instead: "Pass the state as a parameter from the machine; SQL compares versions and instants.",
        ceiling: 0,
        allow: &[],
        check: states::sql,
    },
    // Sizes.
    Rule {
        name: "file-size",
        instead: "At 500 lines of code a file wants to be two.",
        ceiling: 0,
        allow: &[],
        check: sizes::files,
    },
    Rule {
        name: "function-size",
        instead: "A function fits on a screen: at most 70 lines.",
        ceiling: 0,
        allow: &[&[("crates/ibid-core/src/refusal/table.rs", "the table of refusals is one `match`")]],
        check: sizes::functions,
    },
];

/// The lists of banned words and the examples of faults.
const TIDY_ITSELF: &[(&str, &str)] = &[("crates/ibid-tidy/", "it has to write what it bans")];

/// The files that implement a trait of hyper-util whose method is named by a participle.
const HYPER_CONNECTIONS: &[(&str, &str)] = &[
    ("crates/ibid-cli/src/gateway/connect.rs", "hyper-util names `Connection::connected`"),
    ("crates/ibid-cli/src/gateway/upstream_connections.rs", "hyper-util names `Connection::connected`"),
];
