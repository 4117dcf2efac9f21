//! Sizes of files and functions.

use crate::Finding;
use crate::rust_file::ItemKind;
use crate::tree::Tree;

pub(super) fn files(rule: &'static str, tree: &Tree<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.rust {
        let lines = file.code_lines();
        if lines > FILE_LINES_MAX {
            let text = format!("{lines} lines of code");
            findings.push(Finding { rule, path: file.path.to_owned(), line: 1, text, weight: lines });
        }
    }
    findings
}

pub(super) fn functions(rule: &'static str, tree: &Tree<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.rust {
        for item in file.items.iter().filter(|item| item.kind == ItemKind::Function) {
            let lines = item.last_line - item.line + 1;
            if lines > FUNCTION_LINES_MAX {
                let text = format!("`{}` has {lines} lines", item.name);
                findings.push(Finding {
                    rule,
                    path: file.path.to_owned(),
                    line: item.line,
                    text,
                    weight: lines,
                });
            }
        }
    }
    findings
}

/// Longest file, in lines of code: what a reader can hold in mind.
const FILE_LINES_MAX: usize = 500;

/// Longest function: one screen.
const FUNCTION_LINES_MAX: usize = 70;
