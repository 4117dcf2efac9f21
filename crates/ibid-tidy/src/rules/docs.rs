//! Doc comments: how they begin, how long their summary is, and which sections they have.

use crate::Finding;
use crate::lexer::Kind;
use crate::rust_file::ItemKind;
use crate::tree::Tree;

pub(super) fn questions(rule: &'static str, tree: &Tree<'_>) -> Vec<Finding> {
    summaries(rule, tree, |words| {
        words.first().is_some_and(|word| QUESTIONS.contains(&word.trim_end_matches([',', '.', ':'])))
    })
}

pub(super) fn the_same(rule: &'static str, tree: &Tree<'_>) -> Vec<Finding> {
    summaries(rule, tree, |words| words.starts_with(&["The", "same"]) || words.starts_with(&["The", "same,"]))
}

pub(super) fn too_short(rule: &'static str, tree: &Tree<'_>) -> Vec<Finding> {
    summaries(rule, tree, |words| words.len() < SUMMARY_WORDS_MIN)
}

pub(super) fn errors(rule: &'static str, tree: &Tree<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_library = |path: &str| LIBRARIES.iter().any(|library| path.starts_with(library));
    for file in tree.rust.iter().filter(|file| is_library(file.path)) {
        for item in file.items.iter().filter(|item| item.kind == ItemKind::Function) {
            let is_fallible = item.is_public && item.returns.split(' ').any(|word| word == "Result");
            let has_section = item.docs.iter().any(|line| line.trim() == "# Errors");
            if is_fallible && !has_section && !file.is_test_line(item.line) {
                findings.push(Finding {
                    rule,
                    path: file.path.to_owned(),
                    line: item.line,
                    text: format!("`{}` returns a `Result` and does not say when it fails", item.name),
                    weight: 0,
                });
            }
        }
    }
    findings
}

/// Reports doc comments of items by the words of their first paragraph. Test code has its own readers and is left out.
fn summaries(rule: &'static str, tree: &Tree<'_>, is_found: impl Fn(&[&str]) -> bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust.iter().filter(|file| !file.path.contains("/tests/")) {
        let mut last = None;
        for (at, token) in file.tokens.iter().enumerate() {
            let is_doc = matches!(token.kind, Kind::OuterDoc | Kind::InnerDoc);
            let begins = is_doc && last != Some(token.kind);
            last = is_doc.then_some(token.kind);
            if !begins {
                continue;
            }
            let lines = file.tokens[at..].iter().take_while(|next| next.kind == token.kind);
            let paragraph = lines.map(|line| line.text).take_while(|text| !text.trim().is_empty());
            let words: Vec<&str> = paragraph.flat_map(str::split_whitespace).collect();
            if is_found(&words) && !file.is_in_test_module(token.line) {
                let text = words.iter().take(SHOWN_WORDS).copied().collect::<Vec<_>>().join(" ");
                findings.push(Finding {
                    rule,
                    path: file.path.to_owned(),
                    line: token.line,
                    text,
                    weight: 0,
                });
            }
        }
    }
    findings
}

/// The crates that others build on, whose functions are documented for them.
const LIBRARIES: &[&str] = &[
    "crates/ibid/src/",
    "crates/ibid-core/src/",
    "crates/ibid-console/src/",
    "crates/ibid-dynamodb/src/",
    "crates/ibid-ledger/src/",
];

const QUESTIONS: &[&str] = &[
    "What", "Whatever", "Who", "Whoever", "Whom", "Whose", "Whether", "Where", "When", "Which", "Why", "How",
];

/// Shortest summary: fewer words only repeat the name.
const SUMMARY_WORDS_MIN: usize = 4;

/// Words of a summary that a report shows.
const SHOWN_WORDS: usize = 8;
