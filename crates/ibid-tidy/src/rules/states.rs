//! States that are chosen or interpreted outside the machine.

use crate::Finding;
use crate::lexer::Token;
use crate::tree::Tree;

pub(super) fn literals(rule: &'static str, tree: &Tree<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust.iter().filter(|file| !is_exempt(file.path)) {
        let code: Vec<&Token<'_>> = file.tokens.iter().filter(|token| !token.is_comment()).collect();
        for window in code.windows(4) {
            let [state, colon, colons, variant] = window else { continue };
            let is_state = ["State", "EffectState"].contains(&state.text) && colon.is(":") && colons.is(":");
            // `State::ALL` and `State::name` choose nothing.
            let is_variant =
                variant.text.starts_with(char::is_uppercase) && variant.text.chars().any(char::is_lowercase);
            if is_state && is_variant && !file.is_test_line(state.line) {
                let text = format!("`{}::{}`", state.text, variant.text);
                findings.push(Finding {
                    rule,
                    path: file.path.to_owned(),
                    line: state.line,
                    text,
                    weight: 0,
                });
            }
        }
    }
    findings
}

/// Finds comparisons of a state with a literal, and choices between states, in SQL and in scripts of Redis.
pub(super) fn sql(rule: &'static str, tree: &Tree<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_statement =
        |path: &str| (path.ends_with(".sql") || path.ends_with(".lua")) && path.contains("/src/");
    for (path, text) in tree.others.iter().filter(|(path, _)| is_statement(path)) {
        for (at, line) in text.lines().enumerate() {
            let code = line.split("--").next().unwrap_or_default().replace("byte(STATE)", "state");
            let words: Vec<&str> = code.split(|c: char| c.is_whitespace() || c == '(' || c == ')').collect();
            let is_rule = words.windows(3).any(|words| {
                let is_state = words[0].rsplit('.').next().is_some_and(|name| name.ends_with("state"));
                let is_literal = words[2].starts_with(|c: char| c.is_ascii_digit() || c == '\'');
                is_state
                    && (["=", "<>", "!=", "==", "~="].contains(&words[1]) && is_literal || words[1] == "in")
            });
            if is_rule {
                let text = code.trim().to_owned();
                findings.push(Finding { rule, path: (*path).to_owned(), line: at + 1, text, weight: 0 });
            }
        }
    }
    findings
}

/// Files that define the states and decide about them.
fn is_exempt(path: &str) -> bool {
    path.starts_with("crates/ibid-core/src/machine") || MACHINE.contains(&path)
}

/// The declarations of the states, with their names and codes.
const MACHINE: &[&str] = &["crates/ibid-core/src/record.rs", "crates/ibid-core/src/effect.rs"];
