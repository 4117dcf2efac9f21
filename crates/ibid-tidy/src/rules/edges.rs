//! Rules on the modules and crates that a module or crate may name.

use crate::Finding;
use crate::tree::Tree;

pub(super) fn modules(rule: &'static str, tree: &Tree<'_>) -> Vec<Finding> {
    find(rule, tree, EDGES)
}

pub(super) fn stores(rule: &'static str, tree: &Tree<'_>) -> Vec<Finding> {
    find(rule, tree, &[("ibid::store", &["ibid::transaction", "ibid_core::machine"])])
}

fn find(rule: &'static str, tree: &Tree<'_>, edges: &[Edge]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust.iter().filter(|file| file.path.contains("/src/")) {
        let module = file.module().join("::");
        for (from, forbidden) in edges.iter().filter(|(from, _)| is_within(&module, from)) {
            for path in file.paths.iter().filter(|path| !file.is_test_line(path.line)) {
                let named = path.segments.join("::");
                if forbidden.iter().any(|target| is_within(&named, target)) {
                    let text = format!("`{from}` names `{named}`");
                    findings.push(Finding {
                        rule,
                        path: file.path.to_owned(),
                        line: path.line,
                        text,
                        weight: 0,
                    });
                }
            }
        }
    }
    findings
}

pub(super) fn crates(rule: &'static str, tree: &Tree<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.others.iter().filter(|(path, _)| path.ends_with("/Cargo.toml")) {
        let package = path.split('/').nth(1).unwrap_or_default();
        let allowed = CRATES.iter().find(|(name, _)| *name == package).map(|(_, allowed)| *allowed);
        let mut in_dependencies = false;
        for (at, line) in text.lines().enumerate() {
            if line.starts_with('[') {
                in_dependencies = line == "[dependencies]" || line == "[build-dependencies]";
            }
            let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
            let is_ours = name == "ibid" || name.starts_with("ibid-");
            if in_dependencies && is_ours && !allowed.is_some_and(|allowed| allowed.contains(&name)) {
                let text = format!("`{package}` depends on `{name}`");
                findings.push(Finding { rule, path: (*path).to_owned(), line: at + 1, text, weight: 0 });
            }
        }
    }
    findings
}

/// Returns whether a path is the module or inside it.
fn is_within(path: &str, module: &str) -> bool {
    path.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// A module, and what it must not name.
type Edge = (&'static str, &'static [&'static str]);

/// The layers. Code for tests is exempt.
const EDGES: &[Edge] = &[
    ("ibid_core::machine", &["ibid_core::store", "ibid_core::sql"]),
    ("ibid_core::store", &["ibid_core::machine"]),
    ("ibid_core", &["ibid"]),
    (
        "ibid::engine",
        &[
            "ibid::attempt",
            "ibid::axum",
            "ibid::copy",
            "ibid::evidence",
            "ibid::http",
            "ibid::operator",
            "ibid::outbox",
            "ibid::outcome",
            "ibid::phase",
            "ibid::record_sql",
            "ibid::store",
            "ibid::transaction",
            "ibid::upkeep",
        ],
    ),
    (
        "ibid::store",
        &[
            "ibid::attempt",
            "ibid::axum",
            "ibid::copy",
            "ibid::engine",
            "ibid::evidence",
            "ibid::http",
            "ibid::operator",
            "ibid::outbox",
            "ibid::upkeep",
        ],
    ),
    ("ibid::http", &["ibid::axum", "ibid::store", "ibid::operator"]),
    ("ibid::outbox", &["ibid::axum", "ibid::http", "ibid::store", "ibid::upkeep", "ibid::operator"]),
    ("ibid::transaction", &["ibid::axum", "ibid::http", "ibid::upkeep", "ibid::operator"]),
    ("ibid::upkeep", &["ibid::axum", "ibid::http", "ibid::store", "ibid::operator"]),
    ("ibid::operator", &["ibid::axum", "ibid::http"]),
    ("ibid::copy", &["ibid::axum", "ibid::http", "ibid::operator", "ibid::store"]),
    ("ibid::evidence", &["ibid::axum", "ibid::http", "ibid::operator", "ibid::store", "ibid::upkeep"]),
    ("ibid::phase", &["ibid::axum", "ibid::http", "ibid::operator", "ibid::store", "ibid::upkeep"]),
    ("ibid::identity", LAYERS),
    ("ibid::axum", &["ibid::engine", "ibid::store", "ibid_core::machine"]),
    // These serve the stores and callers' transactions, and know neither.
    ("ibid::driver", LAYERS),
    ("ibid::record_sql", LAYERS),
    ("ibid::front", LAYERS),
    ("ibid::slot_shares", LAYERS),
    ("ibid::telemetry", LAYERS),
    ("ibid::trace", LAYERS),
    ("ibid::failpoint", LAYERS),
    ("ibid::random", LAYERS),
    ("ibid::backoff", LAYERS),
    ("ibid_dynamodb", &["ibid", "ibid_core::machine::decide", "ibid_core::machine::EffectState"]),
    ("ibid_console", &["ibid::store", "ibid_core::machine::decide", "ibid_core::store::Store"]),
    ("ibid_cli", &["ibid_core::machine::decide"]),
    ("ibid_cli::gateway", &["ibid::store"]),
    ("payments", &["ibid_core", "ibid::store::postgres::sql"]),
];

/// Everything in `ibid` above the leaf modules.
const LAYERS: &[&str] = &[
    "ibid::attempt",
    "ibid::axum",
    "ibid::engine",
    "ibid::evidence",
    "ibid::http",
    "ibid::operator",
    "ibid::outbox",
    "ibid::store",
    "ibid::transaction",
    "ibid::upkeep",
];

/// Packages, and the packages of the workspace that they may depend on.
const CRATES: &[(&str, &[&str])] = &[
    ("ibid-core", &[]),
    ("ibid", &["ibid-core"]),
    ("ibid-ledger", &["ibid", "ibid-core"]),
    ("ibid-console", &["ibid", "ibid-core"]),
    ("ibid-dynamodb", &["ibid-core"]),
    ("ibid-cli", &["ibid", "ibid-core", "ibid-console", "ibid-dynamodb", "ibid-ledger"]),
    ("ibid-testkit", &["ibid-core"]),
    ("ibid-bench", &["ibid", "ibid-core", "ibid-dynamodb", "ibid-testkit"]),
    ("ibid-chains", &["ibid-testkit"]),
    ("ibid-tidy", &[]),
    ("payments", &["ibid"]),
];
