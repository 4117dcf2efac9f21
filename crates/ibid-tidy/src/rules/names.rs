//! Names of modules, types, functions, locals and tests.

use std::collections::BTreeMap;

use crate::Finding;
use crate::lexer::Kind;
use crate::rust_file::{Item, ItemKind, RustFile, is_test_path};
use crate::tree::Tree;

pub(super) fn modules(rule: &'static str, tree: &Tree<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.rust {
        // The file's own name is the declaration that a reader sees; `mod x;` would count it twice.
        let name = file.path.trim_end_matches("/mod.rs").rsplit('/').next().unwrap_or_default();
        let name = name.trim_end_matches(".rs");
        if is_banned(name) {
            findings.push(finding(rule, file.path, 1, format!("the module `{name}`")));
        }
        let inline =
            file.items.iter().filter(|item| item.kind == ItemKind::Module && item.last_line > item.line);
        for item in inline.filter(|item| is_banned(item.name)) {
            findings.push(finding(rule, file.path, item.line, format!("the module `{}`", item.name)));
        }
    }
    findings
}

pub(super) fn types(rule: &'static str, tree: &Tree<'_>) -> Vec<Finding> {
    items(rule, tree, ItemKind::Type, |item| is_banned(item.name))
}

pub(super) fn functions(rule: &'static str, tree: &Tree<'_>) -> Vec<Finding> {
    let is_found =
        |name: &str| (BANNED.contains(&name) && !VERBS.contains(&name)) || FUNCTIONS.contains(&name);
    items(rule, tree, ItemKind::Function, |item| is_action(item) && is_found(item.name))
}

pub(super) fn function_participles(rule: &'static str, tree: &Tree<'_>) -> Vec<Finding> {
    let is_found = |name: &str| is_banned(name) && !BANNED.contains(&name);
    items(rule, tree, ItemKind::Function, |item| is_action(item) && is_found(item.name))
}

/// Returns whether a function should be named by a verb. A constructor or a builder's method may be an adjective
/// (`Tenant::only`, `NewEffect::verified`), and so may a wait for a state (`closed().await`).
fn is_action(item: &Item<'_>) -> bool {
    let waits = item.is_async && item.returns.is_empty();
    !item.is_test && !item.is_constructor && !waits
}

pub(super) fn tests(rule: &'static str, tree: &Tree<'_>) -> Vec<Finding> {
    let mut findings = items(rule, tree, ItemKind::Function, |item| {
        item.is_test && item.name.chars().count() > TEST_NAME_MAX
    });
    // Tests that a macro declares: their names are its arguments.
    for file in tree.rust.iter().filter(|file| is_test_path(file.path)) {
        for token in file.tokens.iter().filter(|token| token.kind == Kind::Ident) {
            let length = token.text.chars().count();
            let is_item = file.items.iter().any(|item| item.is_test && item.line == token.line);
            let is_sentence = token.text.matches('_').count() >= SENTENCE_WORDS;
            if length > TEST_NAME_MAX && is_sentence && !is_item {
                findings.push(finding(rule, file.path, token.line, format!("the test `{}`", token.text)));
            }
        }
    }
    for finding in &mut findings {
        finding.weight = finding.text.len();
    }
    // A macro's argument is the name of a function in the same file, too.
    findings.sort_by(|a, b| (&a.path, &a.text, a.line).cmp(&(&b.path, &b.text, b.line)));
    findings.dedup_by(|a, b| (&a.path, &a.text) == (&b.path, &b.text));
    findings
}

pub(super) fn locals(rule: &'static str, tree: &Tree<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.rust {
        let mut previous = ["", ""];
        for token in file.tokens.iter().filter(|token| !token.is_comment()) {
            let is_let = previous[1] == "let" || previous == ["let", "mut"];
            if is_let && token.kind == Kind::Ident && LOCALS.contains(&token.text) {
                findings.push(finding(rule, file.path, token.line, format!("the local `{}`", token.text)));
            }
            previous = [previous[1], token.text];
        }
    }
    findings
}

pub(super) fn public_duplicates(rule: &'static str, tree: &Tree<'_>) -> Vec<Finding> {
    duplicates(rule, tree, |file, item| {
        (item.is_public && !is_test_path(file.path)).then(|| item.name.to_owned())
    })
}

pub(super) fn crate_duplicates(rule: &'static str, tree: &Tree<'_>) -> Vec<Finding> {
    duplicates(rule, tree, |file, item| {
        let is_product = file.path.contains("/src/") && !file.is_test_line(item.line);
        is_product.then(|| format!("{}::{}", file.module()[0], item.name))
    })
}

/// Reports every declaration of a type name after its first.
fn duplicates(
    rule: &'static str,
    tree: &Tree<'_>,
    key: impl Fn(&RustFile<'_>, &Item<'_>) -> Option<String>,
) -> Vec<Finding> {
    let mut declared: BTreeMap<String, Vec<(&str, usize)>> = BTreeMap::new();
    for file in &tree.rust {
        for item in file.items.iter().filter(|item| item.kind == ItemKind::Type) {
            if let Some(key) = key(file, item) {
                declared.entry(key).or_default().push((file.path, item.line));
            }
        }
    }
    let mut findings = Vec::new();
    for (name, declarations) in declared.iter().filter(|(_, declarations)| declarations.len() > 1) {
        let (path, line) = declarations[0];
        for (again, at) in &declarations[1..] {
            findings.push(finding(rule, again, *at, format!("`{name}` is also declared at {path}:{line}")));
        }
    }
    findings
}

fn items(
    rule: &'static str,
    tree: &Tree<'_>,
    kind: ItemKind,
    is_found: impl Fn(&Item<'_>) -> bool,
) -> Vec<Finding> {
    let word = match kind {
        ItemKind::Module => "module",
        ItemKind::Type => "type",
        ItemKind::Function => "function",
    };
    let mut findings = Vec::new();
    for file in &tree.rust {
        for item in file.items.iter().filter(|item| item.kind == kind && is_found(item)) {
            findings.push(finding(rule, file.path, item.line, format!("the {word} `{}`", item.name)));
        }
    }
    findings
}

fn finding(rule: &'static str, path: &str, line: usize, text: String) -> Finding {
    Finding { rule, path: path.to_owned(), line, text, weight: 0 }
}

/// Returns whether a name is one word and that word a participle, an adverb or a metaphor.
fn is_banned(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let is_one_word = !name.contains('_') && name.chars().skip(1).all(|c| !c.is_uppercase());
    let is_participle =
        lower.ends_with("ed") && lower.len() > 3 && !NOT_PARTICIPLES.contains(&lower.as_str());
    let is_adverb = lower.ends_with("ly") && !NOT_ADVERBS.contains(&lower.as_str());
    is_one_word && (BANNED.contains(&lower.as_str()) || is_participle || is_adverb)
}

/// Irregular participles, adverbs and metaphors that say nothing alone.
const BANNED: &[&str] = &[
    "again", "apart", "anew", "ask", "began", "begun", "bearing", "beside", "both", "carry", "course",
    "deed", "desk", "desks", "doubtful", "ending", "errand", "fate", "flight", "flights", "found", "given",
    "gone", "hands", "harvest", "heard", "held", "hooked", "instead", "inside", "kept", "known", "late",
    "legible", "letters", "life", "living", "loose", "made", "mark", "met", "once", "outlook", "owing",
    "pace", "place", "places", "ran", "rivals", "ripe", "said", "saw", "seen", "sent", "shut", "sighting",
    "stumble", "taken", "told", "together", "went", "witness", "words", "wrong", "wrote",
];

/// Words that end like a participle and are good names.
const NOT_PARTICIPLES: &[&str] =
    &["seed", "feed", "need", "speed", "embed", "shed", "shared", "exceed", "proceed"];

/// Words that end like an adverb and are good names.
const NOT_ADVERBS: &[&str] =
    &["reply", "apply", "supply", "multiply", "tally", "family", "assembly", "anomaly"];

/// Banned as nouns, and good as verbs.
const VERBS: &[&str] = &["ask", "carry", "mark", "place"];

/// Functions that a reader can't guess, besides those that are banned by their form.
const FUNCTIONS: &[&str] = &[
    "come_again",
    "one_writers",
    "begin_here",
    "saw",
    "tell",
    "tell_breaker",
    "hears",
    "says_when",
    "stand_in",
    "goes_on_as",
    "doubts",
    "conceal",
    "expose",
    "was_sent",
    "as_sent",
    "weigh",
    "weigh_once",
    "forestall",
    "testify",
    "settle_patiently",
    "settle_stubbornly",
    "load_patiently",
    "loosely_with",
    "sweep_telling",
    "reconcile_telling",
    "to_keep",
    "begins_fly",
    "fly",
    "met_a_rival",
    "is_again",
    "other_secret",
];

/// Locals that say that there is a value and not which.
const LOCALS: &[&str] = &["found", "begun", "told", "said", "kept", "place", "held", "met", "got", "seen"];

/// Longest test name: it fits on one line of a report, with its module.
const TEST_NAME_MAX: usize = 60;

/// Underscores from which on a long identifier in a test file is a test's name and not a constant.
const SENTENCE_WORDS: usize = 6;
