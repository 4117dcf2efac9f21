//! The reference pages that are made from the library's code or checked against its tests; `IBID_BLESS=1` writes the
//! made ones anew.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use ibid::telemetry::METRICS;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_page_of_metrics_says_what_the_code_says() {
    let mut page = String::from(
        "# Metrics\n\nFor Prometheus, at `/metrics` on the admin listener. Labels are `route` (the matched pattern, `*` \
         when none), `profile`, `outcome`, `state`, `chore`, `source` and `kind`; never a key, a tenant or a path.\n\n\
         | name | kind | what it counts |\n| --- | --- | --- |\n",
    );
    for (name, kind, meaning) in METRICS {
        writeln!(page, "| `{name}` | {kind} | {meaning} |").expect("a String takes every character");
    }
    let path = root().join("docs/reference/metrics.md");
    if std::env::var_os("IBID_BLESS").is_some() {
        std::fs::write(&path, &page).expect("the page can be written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page, "docs/reference/metrics.md is stale: run with IBID_BLESS=1");
}

#[test]
fn every_test_that_the_checklist_names_exists_and_every_line_names_one_or_says_why_not() {
    let page = std::fs::read_to_string(root().join("docs/reference/checklist.md")).expect("the checklist");
    let tests = test_names();
    let mut lines = 0;
    for line in page
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| line") && !line.starts_with("| ---"))
    {
        let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [id, _, answer] = cells[..] else { panic!("three cells: {line}") };
        lines += 1;
        let named: Vec<_> = answer.split('`').skip(1).step_by(2).filter(|word| word.contains('_')).collect();
        for name in &named {
            assert!(tests.contains(*name), "{id} names `{name}`, and there is no such test");
        }
        let excused = answer.starts_with("later:") || answer.starts_with("refused:");
        assert!(excused || !named.is_empty(), "{id} names no test and no reason");
    }
    assert!(lines > 70, "the checklist has {lines} lines");
}

/// The names of all functions marked as tests.
fn test_names() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut folders = vec![root().join("crates"), root().join("examples")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry")) {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                collect(&std::fs::read_to_string(path).expect("a source file"), &mut names);
            }
        }
    }
    names
}

fn collect(source: &str, names: &mut BTreeSet<String>) {
    let mut marked = false;
    for line in source.lines().map(str::trim_start) {
        if let Some(name) = line.strip_prefix("on_every_store!(").and_then(|rest| rest.strip_suffix(");")) {
            names.insert(name.to_owned());
        } else if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            marked = true;
        } else if let Some((_, rest)) = line.split_once("fn ").filter(|_| marked) {
            names.insert(rest.split(['(', '<']).next().unwrap_or_default().to_owned());
            marked = false;
        }
    }
}
