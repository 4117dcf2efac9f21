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
        let [id, _, proof] = cells[..] else { panic!("three cells: {line}") };
        ids.push(id.to_owned());
        let named: Vec<_> = proof.split('`').skip(1).step_by(2).filter(|word| word.contains('_')).collect();
        for name in &named {
            assert!(tests.all.contains(*name), "{id} names `{name}`, and no such test is run");
        }
        let excuse = ["later: ", "refused: "].into_iter().find_map(|word| proof.split_once(word));
        assert!(excuse.is_none_or(|(_, why)| why.len() > 20), "{id} does not say what is missing or why");
        assert!(excuse.is_some() || !named.is_empty(), "{id} names no test and no reason");
        if id.starts_with('F') && excuse.is_none() {
            let on_postgres = named.iter().any(|name| tests.on_postgres.contains(*name));
            assert!(on_postgres, "{id} is about PostgreSQL, and none of its tests runs there");
        }
        for link in proof.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
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
    for (path, source) in files(&["crates/ibid/src", "crates/ibid-ledger/src"], "sql") {
        let code: Vec<_> = source.lines().filter_map(|line| line.split("--").next()).collect();
        let words: Vec<_> = code.iter().flat_map(|line| line.split_whitespace()).collect();
        let text = words.join(" ").to_ascii_lowercase().replace(" (", "(");
        let words: Vec<_> = text.split(' ').collect();
        for (at, word) in words.iter().enumerate() {
            let keyword = word.rsplit('(').next().unwrap_or_default();
            // `is distinct from`, and MySQL's `on duplicate key update`.
            let names_no_table = at > 0 && ["distinct", "key"].contains(&words[at - 1]);
            if !["from", "join", "into", "update"].contains(&keyword) || names_no_table {
                continue;
            }
            let next = words.get(at + 1).copied().unwrap_or_default();
            let name =
                next.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default();
            let is_system =
                ["pg_", "sqlite_", "pragma_", "information_schema"].iter().any(|own| name.starts_with(own));
            let is_no_table = name.is_empty() || name.parse::<u32>().is_ok() || NO_TABLE.contains(&name);
            // The name of a common table expression in the statement, or a function.
            let is_part = text.contains(&format!("{name} as")) || text.contains(&format!("{name}("));
            // effect.sql is the end of several statements, which name these parts.
            let is_part = is_part || path.ends_with("effect.sql") && ["e", "t"].contains(&name);
            // `$with` stands for the rows of a flight, under this name.
            let is_part = is_part || text.contains("$with") && name == "w";
            if !is_system && !is_no_table && !is_part {
                assert!(name.starts_with("ibid_"), "{} touches `{name}`", path.display());
                tables += 1;
            }
        }
    }
    assert!(tables > 300, "statements are found: {tables}");
    // A script of Redis names no key itself. It gets them from `key.rs`, which begins each with `ibid{`.
    let mut calls = 0;
    for (path, source) in files(&["crates/ibid/src"], "lua") {
        for call in source.split("redis.call(").skip(1).filter(|call| !call.starts_with("'TIME'")) {
            let key = call.split_once(", ").map_or("", |(_, rest)| rest);
            let is_given = ["KEYS[", "order", "key"].iter().any(|given| key.starts_with(given));
            assert!(is_given, "{} names a key itself: {}", path.display(), &call[..call.len().min(40)]);
            calls += 1;
        }
    }
    assert!(calls > 30, "scripts are found: {calls}");
}

#[test]
fn every_test_that_the_architecture_names_is_run() {
    let page = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the page");
    let (_, absences) = page.split_once("## What is absent").expect("the section");
    let tests = Tests::find();
    let words = absences.split('`').skip(1).step_by(2);
    let names: Vec<_> = words.filter(|word| word.contains('_') && !word.contains(['/', '.'])).collect();
    for name in &names {
        assert!(tests.all.contains(*name), "ARCHITECTURE.md names `{name}`, and no such test is run");
    }
    assert!(names.len() > 15, "names are found: {names:?}");
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

/// Returns the names in the lists of the macros that make a test per database, store or release, without ` and mysql` behind some.
fn listed_tests(source: &str) -> BTreeSet<String> {
    let words = ["on_both_databases!(", "on_every_store!(", "on_every_database!(", "on_every_release!("];
    let lists = words.into_iter().flat_map(|word| source.split(word).skip(1));
    let names = lists.filter_map(|rest| rest.split(')').next()).flat_map(|list| list.split(','));
    names.filter_map(|name| name.split_whitespace().next()).map(str::to_owned).collect()
}
