//! `ibid reconcile ledger`, run as a shell or a monitoring system runs it.

use std::io::Write as _;
use std::process::{Output, Stdio};

use ibid_testkit::client::{Client, TestRequest};
use serde_json::Value;

use crate::harness::{On, Setup, bare, on_every_store, until_async};

/// Sets up a folder with these files.
fn setup(files: &[(&str, &str)]) -> Setup {
    let setup = Setup::before("");
    for (name, text) in files {
        write(&setup, name, text);
    }
    setup
}

fn write(setup: &Setup, name: &str, text: &str) {
    // Rename it into place, because a running comparison may be reading the file.
    let path = setup.folder().join(name);
    std::fs::write(path.with_extension("new"), text).expect("a file");
    std::fs::rename(path.with_extension("new"), path).expect("a file");
}

fn ledger(setup: &Setup, words: &[&str]) -> Output {
    setup.ibid(&[&["reconcile", "ledger"], words].concat())
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the kind and the key of each difference.
#[track_caller]
fn differences(output: &Output) -> Vec<String> {
    let json: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let word = |finding: &Value, name: &str| finding[name].as_str().expect("a text").to_owned();
    let all = json["differences"].as_array().expect("a list").iter();
    all.map(|finding| format!("{} {}", word(finding, "kind"), word(finding, "key"))).collect()
}

const FILES: [&str; 4] = ["--ours", "ours.csv", "--theirs", "theirs.jsonl"];

#[test]
fn equal_ledgers_in_two_formats_have_no_differences() {
    let ours = "key,amount,currency,note\na,12.50,EUR,x\nb,3,USD,y\n";
    let theirs = "{\"id\":1,\"currency\":\"USD\",\"amount\":3.00,\"key\":\"b\"}\n{\"id\":2,\"currency\":\"EUR\",\"amount\":\"12.5\",\"key\":\"a\"}\n";
    let setup = setup(&[("ours.csv", ours), ("theirs.jsonl", theirs)]);
    let equal = ledger(&setup, &FILES);
    assert_eq!((equal.status.code(), out(&equal).as_str()), (Some(0), ""), "{equal:?}");
    assert_eq!(err(&equal), "ours 2, theirs 2, alike 2\n");
    let json = ledger(&setup, &[&FILES[..], &["--json"]].concat());
    let value: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(
        (&value["equal"], &value["compared"]),
        (&true.into(), &serde_json::json!(["amount", "currency"]))
    );
    assert_eq!(json.status.code(), Some(0));
}

#[test]
fn differences_are_shown_with_double_charges_first() {
    let ours = "key,amount\na,1\nb,2\nc,3\nd,4\nd,4\n";
    let theirs = "key,amount\na,1\nx,9\nb,2.01\na,1\nd,4\n";
    let setup = setup(&[("ours.csv", ours), ("theirs.csv", theirs)]);
    let words = ["--ours", "ours.csv", "--theirs", "theirs.csv"];
    let differs = ledger(&setup, &words);
    assert_eq!(differs.status.code(), Some(1), "{differs:?}");
    let table = out(&differs);
    let lines: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split("  ").filter(|word| !word.is_empty()).map(str::trim).collect())
        .collect();
    assert_eq!(
        lines,
        [
            vec!["difference", "key", "ours", "theirs"],
            vec!["theirs_twice", "a", "line 2", "line 5, number 2 after line 2"],
            vec!["theirs_only", "x", "-", "line 3"],
            vec!["differs", "b", "line 3, amount `2`", "line 4, amount `2.01`"],
            vec!["ours_only", "c", "line 4", "-"],
            vec!["ours_twice", "d", "line 6, number 2 after line 5", "-"],
        ]
    );
    let stderr = err(&differs);
    assert!(
        stderr.contains(
            "error: the books differ: 1 theirs_twice, 1 theirs_only, 1 differs, 1 ours_only, 1 ours_twice"
        ),
        "{stderr}"
    );
    let json = ledger(&setup, &[&words[..], &["--json"]].concat());
    assert_eq!(
        differences(&json),
        ["theirs_twice a", "theirs_only x", "differs b", "ours_only c", "ours_twice d"]
    );
    let only_key = ledger(&setup, &[&words[..], &["--key", "amount", "--json"]].concat());
    assert!(err(&only_key).starts_with("error: the books differ"), "{only_key:?}");
}

#[test]
fn every_line_that_can_not_be_read_is_named() {
    let setup = setup(&[
        ("ours.csv", "key,amount,open\na,1,false\nb\nc,1,perhaps\n"),
        ("theirs.jsonl", "{\"key\":\"a\",\"amount\":1}\nnonsense\n{\"key\":\"b\"}\n"),
    ]);
    let bad = ledger(&setup, &[&FILES[..], &["--open", "open"]].concat());
    let stderr = err(&bad);
    assert_eq!(bad.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("error: ours.csv, line 3: 1 cells, and the header has 3"), "{stderr}");
    assert!(stderr.contains("error: ours.csv, line 4: `perhaps` is neither true nor false"), "{stderr}");
    write(&setup, "ours.csv", "key,amount\na,1\n");
    let bad = ledger(&setup, &FILES);
    let stderr = err(&bad);
    assert!(stderr.contains("error: theirs.jsonl, line 2: "), "{stderr}");
    assert!(stderr.contains("error: theirs.jsonl, line 3: there is no field `amount`"), "{stderr}");
    assert_eq!((bad.status.code(), out(&bad).as_str()), (Some(2), ""));
}

#[test]
fn usage_errors_and_missing_files_have_different_exit_codes() {
    let setup = setup(&[("a.csv", "key,amount\n"), ("a.txt", "key\n")]);
    let ask = |ours: &str, theirs: &str, more: &[&str]| {
        let output = ledger(&setup, &[&["--ours", ours, "--theirs", theirs], more].concat());
        (output.status.code(), err(&output))
    };
    assert_eq!(ask("a.csv", "a.csv", &[]).0, Some(0));
    assert_eq!(ask("a.csv", "missing.csv", &[]).0, Some(3));
    assert_eq!(ask("a.csv", "a.txt", &[]).0, Some(2));
    assert_eq!(ask("a.csv", "a.txt", &["--format", "csv"]).0, Some(0));
    for (ours, more) in [
        ("-", &["--every", "1h", "--format", "csv"][..]),
        ("a.csv", &["--since", "24h"]),
        ("a.csv", &["--every", "0s"]),
        ("a.csv", &["--admin-listen", "127.0.0.1:0"]),
        ("sql:", &[]),
        ("effects:", &[]),
        ("effects", &["--store", "memory:"]),
    ] {
        assert_eq!(ask(ours, "a.csv", more).0, Some(2), "{ours} {more:?}");
    }
    let (code, stderr) = ask("a.csv", "a.csv", &["--key", "id"]);
    assert!(code == Some(2) && stderr.contains("hint: its columns are `key`, `amount`"), "{stderr}");
    let (code, stderr) = ask("effects", "a.csv", &[]);
    assert!(code == Some(3) && stderr.contains("there is no database"), "{stderr}");
}

#[test]
fn one_side_may_come_from_stdin() {
    let setup = setup(&[("ours.csv", "key,amount\na,1\n")]);
    let mut command = bare(setup.folder());
    command.args(["reconcile", "ledger", "--ours", "ours.csv", "--theirs", "-", "--format", "csv", "--json"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the binary starts");
    child.stdin.take().expect("a pipe").write_all(b"key,amount\na,1\nb,2\n").expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(differences(&output), ["theirs_only b"]);
}

async fn our_side_may_be_a_statement_that_writes_nothing(on: On) {
    let setup = setup(&[("theirs.csv", "key,amount\na,12.50\nb,7\n")]).on(on);
    assert!(setup.ibid(&["migrate", "--store", &setup.store()]).status.success());
    setup.sql(
        "create table sale (id text, amount int, pending boolean); insert into sale values ('a', 1250, false), ('b', 700, true), ('c', 1, true)",
    );
    let ask = |statement: &str| {
        let ours = format!("sql:{statement}");
        ledger(
            &setup,
            &[
                "--ours",
                &ours,
                "--theirs",
                "theirs.csv",
                "--store",
                &setup.store(),
                "--open",
                "pending",
                "--json",
            ],
        )
    };
    let amount = match setup.mariadb() {
        Some(_) => "concat(amount div 100, '.', amount % 100)",
        None => "(amount / 100) || '.' || (amount % 100)",
    };
    // `key` is a word of MySQL's language.
    let equal = ask(&format!("select id as \"key\", {amount} as amount, pending from sale"));
    assert_eq!(differences(&equal), ["differs b"; 0], "{equal:?}");
    let json: Value = serde_json::from_slice(&equal.stdout).expect("JSON");
    assert_eq!((&json["lines"]["open_found"], &json["lines"]["open_missing"]), (&1.into(), &1.into()));
    for statement in ["delete from sale", "select 1; delete from sale", "select nothing from sale"] {
        let refused = ask(statement);
        assert_eq!(refused.status.code(), Some(2), "{statement}: {refused:?}");
        assert!(err(&refused).contains("is refused"), "{refused:?}");
    }
    let after = ask("select id as \"key\", pending from sale");
    assert_eq!(differences(&after), [""; 0], "{after:?}");
}
on_every_store!(our_side_may_be_a_statement_that_writes_nothing and mysql);

/// Inserts an effect into the outbox. States: 1 is queued, 3 done, 4 unknown, 6 discarded.
fn effect(setup: &Setup, key: &str, kind: &str, state: u8, provider_id: Option<&str>) {
    let bytes =
        if setup.server().is_some() { "'00000000-0000-0000-0000-000000000000'::uuid" } else { "x'00'" };
    let provider_id = provider_id.map_or("null".to_owned(), |id| format!("'{id}'"));
    let done_at = if state == 3 { "1000000" } else { "null" };
    // Only MySQL's tables have this column.
    let (column, instant) = if setup.mariadb().is_some() { ("written_at, ", "1, ") } else { ("", "") };
    setup.sql(&format!(
        "insert into ibid_effect_call (record, birth, name, owes, letter, downstream_key, rules) \
         values ({bytes}, 1, '{key}', false, false, '{key}', '{{}}'); \
         insert into ibid_effect (seq, count, nonce, kind, state, blocked, dead_letter, tries, lease_us, created_at, \
         done_at, {column}tenant, provider_id) \
         select seq, 1, 1, '{kind}', {state}, false, false, 0, 1, 1, {done_at}, {instant}'t', {provider_id} \
         from ibid_effect_call where name = '{key}'"
    ));
}

async fn our_side_may_be_the_calls_in_the_outbox(on: On) {
    let theirs =
        "key,provider_id,amount\ndone,ch_1,5\nlost,ch_2,5\nlet-go,ch_3,5\nno-id,ch_4,5\nother,ch_9,5\n";
    let setup = setup(&[("theirs.csv", theirs)]).on(on);
    let url = setup.store();
    assert!(setup.ibid(&["migrate", "--store", &url]).status.success());
    effect(&setup, "done", "charge", 3, Some("ch_1"));
    effect(&setup, "lost", "charge", 4, None);
    effect(&setup, "queued", "charge", 1, None);
    effect(&setup, "let-go", "charge", 6, None);
    effect(&setup, "no-id", "charge", 3, None);
    effect(&setup, "missing", "charge", 3, Some("ch_5"));
    effect(&setup, "other", "mail", 3, Some("ch_8"));
    let ask = |ours: &str, more: &[&str]| {
        let words = ["--ours", ours, "--theirs", "theirs.csv", "--store", &url, "--json"];
        ledger(&setup, &[&words[..], more].concat())
    };
    assert_eq!(
        differences(&ask("effects", &[])),
        ["theirs_only let-go", "differs other", "ours_only missing"]
    );
    assert_eq!(
        differences(&ask("effects:charge", &[])),
        ["theirs_only let-go", "theirs_only other", "ours_only missing"]
    );
    // An effect of 1970 need not be in today's export.
    assert_eq!(differences(&ask("effects", &["--since", "24h"])), ["theirs_only let-go", "differs other"]);

    let written = |output: &Output| {
        let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        json["new_dead_letters"].as_u64()
    };
    assert_eq!(written(&ask("effects", &[])), None);
    let letters = ["--dead-letters", "--source", "acme"];
    assert_eq!(written(&ask("effects", &letters)), Some(1));
    // The dead letter does not count as one of our calls, and it is not written again.
    let again = ask("effects", &letters);
    assert_eq!((written(&again), differences(&again).len()), (Some(0), 3));
    let doctor = setup.ibid(&["doctor", "--store", &url]);
    assert!(out(&doctor).contains("effects: 1 unknown, 1 dead"), "{doctor:?}");
}
on_every_store!(our_side_may_be_the_calls_in_the_outbox and mysql);

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_comparison_turns_discrepancies_into_dead_letters() {
    let setup = setup(&[("ours.csv", "key,amount\na,1\n"), ("theirs.csv", "key,amount\na,1\nx,9\n")]);
    let url = setup.store();
    assert!(setup.ibid(&["migrate", "--store", &url]).status.success());
    let mut command = bare(setup.folder());
    command.args(["reconcile", "ledger", "--ours", "ours.csv", "--theirs", "theirs.csv", "--store", &url]);
    command.args(["--source", "acme", "--every", "100ms", "--admin-listen", "127.0.0.1:0", "--json"]);
    let log = setup.folder().join("log");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(std::fs::File::create(&log).expect("a file"));
    let mut child = KilledOnDrop(command.spawn().expect("the binary starts"));
    let admin: std::net::SocketAddr = until_async("it says where its metrics are", async || {
        let lines = std::fs::read_to_string(&log).expect("a log");
        lines.lines().find_map(|line| line.rsplit_once("admin on ")?.1.parse().ok())
    })
    .await;
    let shows = async |line: &str| {
        until_async(line, async || {
            let page = Client::connect(admin).await.call(&TestRequest::get("/metrics")).await.text();
            page.lines().any(|shown| shown == line).then_some(page)
        })
        .await
    };
    let page = shows("ibid_ledger_differences{source=\"acme\",kind=\"theirs_only\"} 1").await;
    assert!(page.contains("ibid_chore_last_run_seconds{chore=\"ledger\"}"), "{page}");
    write(&setup, "theirs.csv", "key,amount\na,1\na,1\n");
    shows("ibid_ledger_differences{source=\"acme\",kind=\"theirs_twice\"} 1").await;
    // A round that fails is reported, and the next one still runs.
    write(&setup, "theirs.csv", "key,amount\na\n");
    until_async("it says what is wrong", async || {
        std::fs::read_to_string(&log).expect("a log").contains("theirs.csv, line 2").then_some(())
    })
    .await;
    write(&setup, "theirs.csv", "key,amount\na,1\n");
    shows("ibid_ledger_differences{source=\"acme\",kind=\"theirs_twice\"} 0").await;
    let letters: u32 = rusqlite::Connection::open(setup.database())
        .and_then(|file| {
            file.query_row("select count(*) from ibid_effect where state = 5", [], |row| row.get(0))
        })
        .expect("a count");
    assert_eq!(letters, 2);
    let signal = std::process::Command::new("kill").args(["-s", "TERM", &child.0.id().to_string()]).status();
    assert!(signal.expect("`kill` can be run").success());
    let status = until_async("it ends", async || child.0.try_wait().expect("a child can be asked")).await;
    assert_eq!(status.code(), Some(0));
}

/// A child process that is killed at the end of the test.
struct KilledOnDrop(std::process::Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        // The process may have ended already; then this does nothing.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
