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
        // A view shows names instead of codes.
        let is_view = path.contains("/schema/");
        for (at, line) in text.lines().enumerate() {
            let code = line.split("--").next().unwrap_or_default();
            if is_rule(code, is_view) {
                let text = code.trim().to_owned();
                findings.push(Finding { rule, path: (*path).to_owned(), line: at + 1, text, weight: 0 });
            }
        }
    }
    findings
}

/// Returns whether a line compares a state with a literal or chooses between states, or compares anything with a list of codes.
fn is_rule(code: &str, is_view: bool) -> bool {
    // A state may also be a byte of a record in Redis, or a member of a row in JSON.
    let code = code.replace("byte(STATE)", "state").replace("->> 'state'", "->> state");
    let words = code.split(|c: char| c.is_whitespace() || ['(', ')', ','].contains(&c));
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    words.iter().enumerate().any(|(at, word)| {
        let is_state = word.rsplit('.').next().is_some_and(|name| name.ends_with("state"));
        let [next, second] = [1, 2].map(|behind| words.get(at + behind).copied().unwrap_or_default());
        let is_literal = |word: &str| word.starts_with(|c: char| c.is_ascii_digit() || c == '\'');
        let is_compared = ["=", "<>", "!=", "==", "~="].contains(&next) && is_literal(second);
        let is_choice = next == "in" || [next, second] == ["not", "in"] || next == "when" && !is_view;
        let is_code_list = *word == "in" && next.starts_with(|c: char| c.is_ascii_digit());
        is_state && (is_compared || is_choice) || is_code_list
    })
}

/// Files that define the states and decide about them.
fn is_exempt(path: &str) -> bool {
    path.starts_with("crates/ibid-core/src/machine") || MACHINE.contains(&path)
}

/// The declarations of the states, with their names and codes.
const MACHINE: &[&str] = &["crates/ibid-core/src/record.rs", "crates/ibid-core/src/effect.rs"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_rule_in_sql_is_seen() {
        for code in [
            "where r.state not in (2, 3)",
            "case when $7::int8 not in (2, 3) then $7::int8::int2 end",
            "iif(v ->> 'state' <> 3, 1, null)",
            "case e.state when 1 then 2 end",
        ] {
            assert!(is_rule(code, false), "{code}");
        }
        for code in [
            "select v ->> 'state', 3",
            "where r.state = $3::int8",
            "set state = $7::int8",
            "e.seq in (select 1)",
        ] {
            assert!(!is_rule(code, false), "{code}");
        }
        assert!(!is_rule("case e.state when 1 then 'queued' end", true), "a view");
        assert!(is_rule("where e.state not in (1, 2)", true), "a rule in a view");
    }
}
