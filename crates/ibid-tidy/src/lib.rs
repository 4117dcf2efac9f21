//! Checks over the source tree that the compiler and clippy don't have: names, prose, layers and sizes.
//!
//! `rules::RULES` is the table of rules. Each has a ceiling, the number of findings that the tree may have: zero
//! denies, anything else is a debt that may only shrink. `cargo run -q -p ibid-tidy` prints every finding with its file
//! and line and what to write instead.

mod lexer;
mod prose;
mod rules;
mod rust_file;
mod tree;

use rules::{RULES, Rule};
use tree::{Sources, Tree};

/// A place in the tree that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Name of the rule.
    pub(crate) rule: &'static str,
    /// Path from the root of the workspace.
    pub(crate) path: String,
    /// Line in that file, from 1.
    pub(crate) line: usize,
    /// The text that breaks the rule.
    pub(crate) text: String,
    /// Weight among findings of the same rule; the heaviest are printed first.
    pub(crate) weight: usize,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {} [{}]", self.path, self.line, self.text, self.rule)
    }
}

/// Returns what breaks a rule outside the rule's allow-list, worst first.
pub(crate) fn findings(rule: &Rule, tree: &Tree<'_>) -> Vec<Finding> {
    let mut findings = (rule.check)(rule.name, tree);
    findings.retain(|finding| {
        !rule.allow.iter().flat_map(|list| list.iter()).any(|(path, _)| finding.path.starts_with(path))
    });
    findings.sort_by(|a, b| b.weight.cmp(&a.weight).then_with(|| (&a.path, a.line).cmp(&(&b.path, b.line))));
    findings
}

/// Compares the findings of every rule with its ceiling.
///
/// # Errors
///
/// A report of the rules that have more findings than they may have, with the worst places and what to write instead; or
/// an I/O error, as text, if the tree can't be read.
pub fn check() -> Result<(), String> {
    let sources = Sources::of_workspace().map_err(|error| error.to_string())?;
    let tree = sources.tree();
    let mut report = String::new();
    for rule in RULES {
        let findings = findings(rule, &tree);
        if findings.len() <= rule.ceiling {
            continue;
        }
        report.push_str(&summary(rule, findings.len()));
        for finding in findings.iter().take(SHOWN_MAX) {
            report.push_str(&format!("  {finding}\n"));
        }
        if findings.len() > SHOWN_MAX {
            report.push_str(&format!("  … all of them: cargo run -q -p ibid-tidy -- {}\n", rule.name));
        }
    }
    if report.is_empty() { Ok(()) } else { Err(report) }
}

/// Lists the findings of every rule. A rule's name or the beginning of a path selects; `--counts` leaves out the places.
///
/// # Errors
///
/// An I/O error, if the tree can't be read.
pub fn list(arguments: &[String]) -> std::io::Result<String> {
    let is_rule = |argument: &&&String| RULES.iter().any(|rule| rule.name == **argument);
    let (names, paths): (Vec<&String>, Vec<&String>) =
        arguments.iter().filter(|argument| *argument != "--counts").partition(|argument| is_rule(&argument));
    let is_counting = arguments.iter().any(|argument| argument == "--counts");
    let sources = Sources::of_workspace()?;
    let tree = sources.tree();
    let mut report = String::new();
    for rule in RULES.iter().filter(|rule| names.is_empty() || names.iter().any(|name| *name == rule.name)) {
        let mut findings = findings(rule, &tree);
        findings
            .retain(|finding| paths.is_empty() || paths.iter().any(|path| finding.path.starts_with(*path)));
        report.push_str(&summary(rule, findings.len()));
        for finding in findings.iter().filter(|_| !is_counting) {
            report.push_str(&format!("  {finding}\n"));
        }
    }
    Ok(report)
}

fn summary(rule: &Rule, count: usize) -> String {
    format!("{:<24} {count:>5} found, {:>5} allowed. {}\n", rule.name, rule.ceiling, rule.instead)
}

/// Findings that a failing rule prints. A fresh fault is usually among few; a long list is for the command.
const SHOWN_MAX: usize = 20;
