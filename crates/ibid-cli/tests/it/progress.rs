//! Long commands show their progress on a terminal, and only there.

use std::process::{Command, Stdio};

use ibid::store::sqlite::{SqliteOptions, SqliteStore};

use crate::harness::{Setup, bare};

/// Returns what a command prints to a terminal, and what to a pipe: stderr and stdout together.
fn shown(setup: &Setup, words: &[&str]) -> (String, String) {
    let mut piped = bare(setup.folder());
    let program = piped.get_program().to_owned();
    let line = [program.to_str().expect("a path")].into_iter().chain(words.iter().copied());
    // `script` gives its child a terminal, and prints its output.
    let terminal = Command::new("script")
        .args(["--quiet", "--return", "--command", &line.collect::<Vec<_>>().join(" "), "/dev/null"])
        .current_dir(setup.folder())
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .output()
        .expect("`script` can be run");
    let piped = piped.args(words).output().expect("the binary starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(terminal.status.code(), piped.status.code(), "{}", text(&terminal.stdout));
    (text(&terminal.stdout), text(&piped.stderr) + &text(&piped.stdout))
}

#[test]
fn only_a_terminal_shows_progress() {
    let setup = Setup::before("http://127.0.0.1:9");
    drop(SqliteStore::open(setup.database(), SqliteOptions::default()).expect("it opens"));
    std::fs::write(setup.folder().join("ours.csv"), "key,amount\na,1\n").expect("a file");
    std::fs::write(setup.folder().join("theirs.csv"), "key,amount\na,1\n").expect("a file");
    let store = setup.store();
    let chores: [(&[&str], &str); 3] = [
        (&["sweep", "--store", &store], "lapsed leases settled:"),
        (&["reconcile", "--store", &store, "--upstream", "http://127.0.0.1:9"], "questions asked:"),
        (&["reconcile", "ledger", "--ours", "ours.csv", "--theirs", "theirs.csv"], "their lines read:"),
    ];
    for (words, sign) in chores {
        let (terminal, piped) = shown(&setup, words);
        assert!(terminal.contains(sign), "{words:?}: {terminal}");
        assert!(!piped.contains(sign), "{words:?}: {piped}");
        let (terminal, piped) = shown(&setup, &[words, &["--json"]].concat());
        assert!(!terminal.contains(sign) && !piped.contains(sign), "{words:?}: {terminal}{piped}");
    }
}
