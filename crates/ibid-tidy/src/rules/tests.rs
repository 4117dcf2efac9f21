//! An example that each rule catches, and one that it lets pass.

use super::*;
use crate::findings;
use crate::tree::Sources;

/// Checks which lines of a file a rule reports.
fn check(rule: &str, path: &str, text: &str, lines: &[usize]) {
    check_all(rule, &[(path, text)], lines);
}

fn check_all(rule: &str, files: &[(&str, &str)], lines: &[usize]) {
    let rule = RULES.iter().find(|known| known.name == rule).unwrap();
    let sources = Sources::of(files);
    let mut found: Vec<usize> = findings(rule, &sources.tree()).iter().map(|finding| finding.line).collect();
    found.sort_unstable();
    assert_eq!(found, lines, "{}: {files:?}", rule.name);
}

const ENGINE: &str = "crates/ibid/src/engine/wait.rs";
const CORE: &str = "crates/ibid-core/src/key.rs";
const STORE: &str = "crates/ibid/src/store/memory.rs";

#[test]
fn names_must_be_nouns_of_the_field() {
    check("module-name", "crates/ibid/src/engine/apart.rs", "", &[1]);
    check("module-name", "crates/ibid/src/outbox/told/mod.rs", "", &[1]);
    check("module-name", "crates/ibid/src/retry_after.rs", "mod kept {\n}\nmod told;", &[1]);
    check(
        "type-name",
        ENGINE,
        "struct Kept;\nenum Asked {}\nstruct KeptRow;\nstruct Seed;\ntype Joined = u8;",
        &[1, 2, 5],
    );
    check("function-name", ENGINE, "fn told() {}\nfn tell() {}\nfn apply() {}\nfn ask() {}", &[1, 2]);
    check("function-participle", ENGINE, "fn encoded() {}\nfn loosely() {}\nfn apply() {}", &[1, 2]);
    check(
        "function-participle",
        ENGINE,
        "impl A {\nfn verified(self) -> A {}\nfn used(&self) -> u8 {}\n}",
        &[3],
    );
    check("function-participle", ENGINE, "async fn closed() {}\nasync fn closed() -> u8 {}", &[2]);
    check(
        "local-name",
        ENGINE,
        "fn f() {\nlet found = 1;\nlet mut place = 2;\nlet rows = found;\n}",
        &[2, 3],
    );
}

#[test]
fn type_names_are_unique() {
    let files = [
        ("crates/a/src/lib.rs", "pub struct Host;"),
        ("crates/b/src/lib.rs", "\npub struct Host;\nstruct A;"),
    ];
    check_all("public-type-unique", &files, &[2]);
    let files = [
        ("crates/a/src/b.rs", "struct Host;"),
        ("crates/a/src/c.rs", "\nstruct Host;"),
        ("crates/b/src/c.rs", "struct Host;"),
    ];
    check_all("type-unique-in-crate", &files, &[2]);
}

#[test]
fn test_names_fit_on_a_line() {
    let long = "a_silent_owner_is_resumed_by_the_next_request_and_cannot_finish_late";
    check(
        "test-name",
        ENGINE,
        &format!("#[test]\nfn {long}() {{}}\n#[test]\nfn short() {{}}\nfn {long}() {{}}"),
        &[2],
    );
    check("test-name", "crates/ibid/tests/it/a.rs", &format!("on_every_store! {{\n    {long},\n}}"), &[2]);
}

#[test]
fn banned_words_are_found_in_all_prose() {
    check("pronoun", ENGINE, "// Nobody asks.\nfn nobody() {}\nconst A: &str = \"somebody's\";", &[1, 3]);
    check("pronoun", "crates/ibid/src/a.sql", "-- Whoever asks.\nselect 1", &[1]);
    check("pronoun", "docs/a.md", "a `nobody`\n\nEverybody\n", &[3]);
    check("pronoun", STORE, "// Nobody asks.", &[1]);
    check("pronoun", "crates/ibid-tidy/src/rules.rs", "// Nobody asks.", &[]);
    check("come-again", ENGINE, "// It reads anew.\n\n// Clients come\n// again.", &[1, 3]);
    check("of-its-own", ENGINE, "// A file of its own", &[1]);
    check("stands", ENGINE, "// The row stands there.\n\n// It stands for a row.", &[1]);
    check("what-becomes-of", ENGINE, "// What became of it", &[1]);
    check("goes-on", ENGINE, "// The attempt goes on.", &[1]);
    check("under-way", ENGINE, "// A call under way, refused for good", &[1, 1]);
    check("person", ENGINE, "// A person is asked.", &[1]);
    check("beside", ENGINE, "// It is kept beside the record, besides others.", &[1]);
    check(
        "for-because",
        ENGINE,
        "// It waits, for the row is locked.\n\n// One timer, for begins and finishes",
        &[1],
    );
    check("passive-told", ENGINE, "// The caller is told.", &[1]);
}

#[test]
fn doc_comments_make_sense_alone() {
    let text = "/// What a commit does to a row.\nfn a() {}\n/// Returns what a commit did.\nfn b() {}";
    check("doc-starts-with-question", ENGINE, text, &[1]);
    check("doc-starts-with-the-same", ENGINE, "/// The same, but later.\nfn a() {}", &[1]);
    check(
        "doc-too-short",
        ENGINE,
        "/// Of this write.\nfn a() {}\n/// Nonce of this write.\nfn b() {}",
        &[1],
    );
    let text = "/// Waits.\npub async fn a() -> Result<(), E> {}\n/// Waits.\n///\n/// # Errors\npub async fn b() -> Result<(), E> {}";
    check("doc-errors", ENGINE, text, &[2]);
    check("doc-errors", CORE, "/// Reads it.\npub fn a() -> Result<(), E> {}", &[2]);
    check("doc-errors", ENGINE, "/// Asks it.\npub async fn a() -> LookupResult {}", &[]);
}

#[test]
fn layers_do_not_look_up() {
    check(
        "module-edge",
        ENGINE,
        "use crate::outbox::Worker;\nuse crate::telemetry;\nfn f() { super::super::http::g() }",
        &[1, 3],
    );
    check("module-edge", ENGINE, "#[cfg(test)]\nmod tests {\n    use crate::store::memory;\n}", &[]);
    check("module-edge", STORE, "use crate::{\n    telemetry,\n    engine::Ibid,\n};", &[3]);
    check("module-edge", "crates/ibid-core/src/machine/mod.rs", "use crate::store::Store;", &[1]);
    check("module-edge", "crates/ibid/src/http/layer.rs", "use crate::store::memory;", &[1]);
    check("module-edge", "crates/ibid-console/src/lib.rs", "use ibid_core::machine::decide;", &[1]);
    check("module-edge", "crates/ibid-dynamodb/src/lib.rs", "use ibid::Ibid;\nuse ibid_core::sql;", &[1]);
    check("module-edge", ENGINE, "use crate::attempt::Attempt;\nuse crate::identity;", &[1]);
    check("store-edge", STORE, "use ibid_core::machine::EffectState;\nuse ibid_core::record::Record;", &[1]);
    let manifest = "[dependencies]\nibid.workspace = true\nibid-testkit.workspace = true\n[dev-dependencies]\nibid-testkit.workspace = true";
    check("crate-edge", "crates/ibid-console/Cargo.toml", manifest, &[3]);
    check("crate-edge", "crates/ibid-core/Cargo.toml", "[dependencies]\nibid = { path = \"..\" }", &[2]);
}

#[test]
fn only_the_machine_names_states() {
    check(
        "state-outside-machine",
        ENGINE,
        "let a = State::Completed;\nlet b = State::ALL;\nlet c = EffectState::Dead;",
        &[1, 3],
    );
    check("state-outside-machine", "crates/ibid-core/src/machine/request.rs", "State::Completed", &[]);
    let text = "select 1 where state = 4\n  and r.state = $1 -- state = 4\n  or watch_state in (1, 2)\n";
    check("state-in-sql", "crates/ibid-cli/src/a.sql", text, &[1, 3]);
    let text = "if old:byte(STATE) == 3 then\nlocal state = old:byte(STATE)\nif state ~= KEYS then";
    check("state-in-sql", "crates/ibid/src/a.lua", text, &[1]);
}

#[test]
fn long_files_and_functions_are_found() {
    check("file-size", ENGINE, &"f();\n".repeat(501), &[1]);
    check("file-size", ENGINE, &"f();\n// a comment\n\n".repeat(500), &[]);
    check("function-size", ENGINE, &format!("fn f() {{\n{}}}\nfn g() {{}}", "a();\n".repeat(69)), &[1]);
}

#[test]
fn every_rule_says_what_to_write_instead() {
    for rule in RULES {
        assert!(rule.instead.len() > 20 && rule.instead.ends_with(['.', '`']), "{}", rule.name);
    }
}
