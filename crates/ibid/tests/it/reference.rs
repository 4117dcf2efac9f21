//! The reference pages that are generated from the library's code or checked against its tests; `IBID_BLESS=1` rewrites
//! the generated ones.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use ibid::telemetry::METRICS;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_page_of_metrics_matches_the_code() {
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
fn every_line_of_the_checklist_names_its_tests_or_says_why_not() {
    let page = std::fs::read_to_string(root().join("docs/reference/checklist.md")).expect("the checklist");
    let tests = Tests::find();
    let mut ids = Vec::new();
    for line in page
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| line") && !line.starts_with("| ---"))
    {
        let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [id, _, answer] = cells[..] else { panic!("three cells: {line}") };
        ids.push(id.to_owned());
        let named: Vec<_> = answer.split('`').skip(1).step_by(2).filter(|word| word.contains('_')).collect();
        for name in &named {
            assert!(tests.all.contains(*name), "{id} names `{name}`, and no such test is run");
        }
        let excuse = ["later: ", "refused: "].into_iter().find_map(|word| answer.split_once(word));
        assert!(excuse.is_none_or(|(_, why)| why.len() > 20), "{id} does not say what is missing or why");
        assert!(excuse.is_some() || !named.is_empty(), "{id} names no test and no reason");
        if id.starts_with('F') && excuse.is_none() {
            let on_postgres = named.iter().any(|name| tests.on_postgres.contains(*name));
            assert!(on_postgres, "{id} is about PostgreSQL, and none of its tests runs there");
        }
        for link in answer.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
            assert!(root().join("docs/reference").join(link).exists(), "{id} links `{link}`");
        }
    }
    let sections = [("A", 17), ("B", 13), ("C", 9), ("D", 12), ("E", 19), ("F", 6)];
    let demanded: Vec<_> = sections
        .into_iter()
        .flat_map(|(section, lines)| (1..=lines).map(move |line| format!("{section}{line}")))
        .collect();
    assert_eq!(ids, demanded, "no demand is dropped");
}

/// A store's statements name only its own tables: records, bodies, effects and evidence, never an application's.
#[test]
fn stores_touch_only_their_own_tables() {
    let mut tables = 0;
    for (path, source) in files(&["crates/ibid/src"], "sql") {
        if !path.to_string_lossy().contains("/sql/") {
            continue;
        }
        let code: Vec<_> = source.lines().filter_map(|line| line.split("--").next()).collect();
        let words: Vec<_> = code.iter().flat_map(|line| line.split_whitespace()).collect();
        let text = words.join(" ").to_ascii_lowercase().replace(" (", "(");
        let words: Vec<_> = text.split(' ').collect();
        for (at, word) in words.iter().enumerate() {
            let keyword = word.rsplit('(').next().unwrap_or_default();
            let is_comparison = at > 0 && words[at - 1] == "distinct";
            if !["from", "join", "into", "update"].contains(&keyword) || is_comparison {
                continue;
            }
            let next = words.get(at + 1).copied().unwrap_or_default();
            let name =
                next.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default();
            let is_system = ["pg_", "sqlite_", "pragma_"].iter().any(|own| name.starts_with(own));
            let is_no_table = name.is_empty() || name.parse::<u32>().is_ok() || NO_TABLE.contains(&name);
            // The name of a common table expression in the statement, or a function.
            let is_part = text.contains(&format!("{name} as")) || text.contains(&format!("{name}("));
            // effect.sql is the end of several statements, which name these parts.
            let is_part = is_part || path.ends_with("effect.sql") && ["e", "t"].contains(&name);
            if !is_system && !is_no_table && !is_part {
                assert!(name.starts_with("ibid_"), "{} touches `{name}`", path.display());
                tables += 1;
            }
        }
    }
    assert!(tables > 100, "statements are found: {tables}");
}

/// Words after `from`, `join`, `into` or `update` that name no table.
const NO_TABLE: &[&str] = &["is", "lateral", "of", "set", "skip"];

/// The names of all test functions.
#[derive(Default)]
struct Tests {
    all: BTreeSet<String>,
    /// Tests in files that start a PostgreSQL, or that run on every store.
    on_postgres: BTreeSet<String>,
}

impl Tests {
    fn find() -> Tests {
        let mut tests = Tests::default();
        for (path, source) in files(&["crates", "examples"], "rs") {
            let names = tests_in(&source);
            if source.contains("Postgres") || path.to_string_lossy().contains("postgres") {
                tests.on_postgres.extend(names.iter().cloned());
            }
            tests.on_postgres.extend(listed_tests(&source));
            tests.all.extend(names);
        }
        tests
    }
}

/// Returns all files with this extension below some folders of the project, with their text.
fn files(folders: &[&str], extension: &str) -> Vec<(PathBuf, String)> {
    let (mut folders, mut found): (Vec<_>, _) =
        (folders.iter().map(|f| root().join(f)).collect(), Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry")) {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|of| of == extension) {
                let source = std::fs::read_to_string(&path).expect("a source file");
                found.push((path, source));
            }
        }
    }
    found
}

/// Returns the functions that are marked as tests, or listed in a macro that makes tests of them. Ignored tests don't count.
fn tests_in(source: &str) -> BTreeSet<String> {
    let mut names = listed_tests(source);
    let mut marked = false;
    for line in source.lines().map(str::trim_start) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            marked = true;
        } else if line.starts_with("#[ignore") {
            marked = false;
        } else if let Some((_, rest)) = line.split_once("fn ").filter(|_| marked) {
            names.insert(rest.split(['(', '<']).next().unwrap_or_default().to_owned());
            marked = false;
        }
    }
    names
}

/// Returns the names in `on_every_store!(…)` and `on_both_databases!(…)`.
fn listed_tests(source: &str) -> BTreeSet<String> {
    let lists =
        ["on_every_store!(", "on_both_databases!("].into_iter().flat_map(|word| source.split(word).skip(1));
    let names = lists.filter_map(|rest| rest.split(')').next()).flat_map(|list| list.split(','));
    names.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
}
