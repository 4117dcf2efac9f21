//! `ibid doctor` on real stores: healthy ones, ones that the gateway refuses, and ones that may lose stored responses.

use std::process::Output;

use ibid_testkit::client::TestRequest;
use ibid_testkit::postgres::{Postgres, PostgresPair};
use ibid_testkit::upstream::Upstream;
use serde_json::Value;

use crate::harness::{On, Setup, on_every_store};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs `ibid doctor` with a table as output.
fn doctor(setup: &Setup, url: &str) -> Output {
    setup.ibid(&["doctor", "--store", url])
}

/// Returns the exit code, and the line of one check in the table.
fn line(output: &Output, check: &str) -> (Option<i32>, String) {
    let table = text(&output.stdout);
    let line = table.lines().find(|line| line.starts_with(check));
    (output.status.code(), line.unwrap_or_else(|| panic!("no line `{check}` in {output:?}")).to_owned())
}

/// Panics unless the check has this result and its line contains these words.
#[track_caller]
fn says(output: &Output, code: i32, check: &str, result: &str, words: &str) {
    let (exit_code, line) = line(output, check);
    let rest = line.strip_prefix(check).unwrap_or_default().trim_start();
    assert!(rest.starts_with(result) && rest.contains(words), "{line}");
    assert_eq!(exit_code, Some(code), "{output:?}");
}

fn results(json: &Output) -> (Value, Vec<(String, String)>) {
    let value: Value = serde_json::from_slice(&json.stdout).expect("one JSON object");
    let word = |check: &Value, name: &str| check[name].as_str().expect("a text").to_owned();
    let checks = value["checks"].as_array().expect("a list").iter();
    let results = checks.map(|check| (word(check, "check"), word(check, "result"))).collect();
    (value, results)
}

#[test]
fn a_healthy_file_is_well() {
    let setup = Setup::before("");
    let url = setup.store();
    assert!(setup.ibid(&["migrate", "--store", &url]).status.success());
    let table = doctor(&setup, &url);
    says(&table, 0, "store", "ok", "SQLite 3.");
    says(&table, 0, "schema", "ok", "current");
    says(&table, 0, "clock", "ok", "this node's own");
    says(&table, 0, "durability", "ok", "synchronous = full, journal_mode = wal");
    says(&table, 0, "role", "ok", "takes writes");
    says(&table, 0, "fingerprint secret", "ok", "none made yet");
    says(&table, 0, "identity", "ok", "the first start writes it");
    says(&table, 0, "open cases", "ok", "nothing waits for an operator");
    assert!(table.stderr.is_empty(), "{table:?}");

    let (json, results) = results(&setup.ibid(&["doctor", "--json", "--store", &url]));
    assert_eq!((&json["store"], &json["well"]), (&Value::from(url), &Value::from(true)));
    assert_eq!(results.len(), 10);
    let is_expected =
        |(check, result): &(String, String)| result == if check == "lease" { "unseen" } else { "ok" };
    assert!(results.iter().all(is_expected), "{results:?}");
}

#[test]
fn each_unusable_store_has_its_own_message() {
    let setup = Setup::before("");
    let missing = doctor(&setup, &setup.store());
    says(&missing, 3, "store", "bad", "there is no database");
    assert!(text(&missing.stderr).contains("hint: name the database"), "{missing:?}");
    assert!(!setup.database().exists(), "a look makes nothing");
    assert_eq!(doctor(&setup, "memory:").status.code(), Some(2));

    std::fs::write(setup.database(), "").expect("a file");
    says(&doctor(&setup, &setup.store()), 1, "schema", "warning", "no tables of ibid");
    std::fs::write(setup.database(), "this is no database at all").expect("a file");
    says(&doctor(&setup, &setup.store()), 3, "store", "bad", "is not a SQLite database");
    let json = setup.ibid(&["doctor", "--json", "--store", "postgres://u:hunter2@127.0.0.1:1/d"]);
    assert_eq!(json.status.code(), Some(3), "{json:?}");
    assert_eq!(results(&json).1, [("store".to_owned(), "bad".to_owned())]);
    assert!(!format!("{json:?}").contains("hunter2"), "{json:?}");
}

#[test]
fn a_file_from_the_future_is_bad() {
    let setup = Setup::before("");
    assert!(setup.ibid(&["migrate", "--store", &setup.store()]).status.success());
    let file = rusqlite::Connection::open(setup.database()).expect("the file opens");
    file.execute("update ibid_meta set value = cast('99' as blob) where name = 'schema'", []).expect("a row");
    says(&doctor(&setup, &setup.store()), 0, "schema", "ok", "this ibid can use it");
    let contracts = "update ibid_meta set value = cast('99' as blob) where name = 'schema_needs'";
    file.execute(contracts, []).expect("a row");
    says(&doctor(&setup, &setup.store()), 1, "schema", "bad", "from the future");
}

#[test]
fn a_healthy_server_is_well_and_its_password_is_never_said() {
    let server = Postgres::start();
    let setup = Setup::before("http://127.0.0.1:1");
    let url = server.url().replace("postgres@", "postgres:hunter2@");
    assert!(setup.ibid(&["migrate", "--store", &url]).status.success());
    let table = doctor(&setup, &url);
    says(&table, 0, "store", "ok", "PostgreSQL ");
    says(&table, 0, "schema", "ok", "current");
    says(&table, 0, "clock", "ok", "the store's time decides");
    says(&table, 0, "durability", "ok", "fsync = on, synchronous_commit = on, full_page_writes = on");
    says(&table, 0, "replication", "ok", "no standby");
    says(&table, 0, "pooler", "ok", "none seen");
    let json = setup.ibid(&["doctor", "--json", "--store", &url]);
    assert!(results(&json).0["well"].as_bool().expect("a word"), "{json:?}");

    // The gateway has no secret configured, so it makes one and stores it.
    drop(setup.clone().store_at(&url).start());
    says(&doctor(&setup, &url), 0, "fingerprint secret", "ok", "made by the store itself");
    let file = setup.folder().join("with-secret.toml");
    let secret = "correct horse battery staple";
    std::fs::write(&file, format!("[fingerprint]\nsecrets = [\"{secret}\"]\n")).expect("a file");
    let configured =
        setup.ibid(&["doctor", "--store", &url, "--config", file.to_str().expect("a path in UTF-8")]);
    says(&configured, 0, "fingerprint secret", "ok", "configured: 1");
    for output in [table, json, configured] {
        let printed = format!("{}{}", text(&output.stdout), text(&output.stderr));
        assert!(!printed.contains("hunter2") && !printed.contains(secret), "{printed}");
    }
}

#[test]
fn a_server_that_the_gateway_refuses_is_described() {
    let server = Postgres::start_with(&[("synchronous_commit", "off")]);
    let setup = Setup::before("");
    let weak = doctor(&setup, &server.url());
    says(&weak, 1, "durability", "bad", "`synchronous_commit = off`");
    says(&weak, 1, "schema", "warning", "no tables of ibid");
    assert!(
        text(&weak.stderr).starts_with("error: 2 things are not as they should be at `postgres://"),
        "{weak:?}"
    );
    let accepted = doctor(&setup, &format!("{}?durability=weak", server.url()));
    says(&accepted, 1, "durability", "warning", "what ran once may run again");
}

#[test]
fn doctor_warns_of_an_asynchronous_standby() {
    let pair = PostgresPair::asynchronous();
    let setup = Setup::before("http://127.0.0.1:1");
    let url = pair.url_for("postgres");
    assert!(setup.ibid(&["migrate", "--store", &url]).status.success());
    let warned = doctor(&setup, &url);
    says(&warned, 1, "replication", "warning", "asynchronous only: `second`");
    says(&warned, 1, "replication", "warning", "a request whose response was replayed may run again");
    assert!(text(&warned.stderr).starts_with("error: one thing is not as it should be"), "{warned:?}");

    says(&doctor(&setup, &pair.standby.url()), 1, "role", "bad", "a standby");
    let refused = setup.clone().store_at(&pair.standby.url()).expect_refusal();
    refused.assert_error(3, "cannot open the store", "is a replica or read-only", "name the primary");

    pair.make_synchronous();
    says(&doctor(&setup, &url), 0, "replication", "ok", "synchronous: `second`");
}

#[test]
fn commits_that_wait_for_a_missing_standby_are_bad() {
    let server = Postgres::start();
    let setup = Setup::before("");
    assert!(setup.ibid(&["migrate", "--store", &server.url()]).status.success());
    server.set("synchronous_standby_names", "absent");
    says(&doctor(&setup, &server.url()), 1, "replication", "bad", "every commit waits");
}

/// Runs one request per key, and then changes the store as if every run had taken `took_ms`.
async fn run_requests(setup: &Setup, keys: std::ops::Range<u32>, took_ms: u64) {
    let gateway = setup.start();
    let mut client = gateway.client().await;
    for n in keys {
        let answer = client.call(&TestRequest::post("/payments").key(&format!("k{n}")).body("five")).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    drop(gateway);
    setup.sql(&format!("update ibid_record set ran_at = completed_at - {took_ms}000"));
}

async fn a_lease_below_three_times_the_run_time_is_a_warning(on: On) {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url()).on(on).config("[defaults]\nlease = \"30s\"\n");
    let url = setup.store();
    run_requests(&setup, 0..19, 11_000).await;
    says(&doctor(&setup, &url), 0, "lease", "unseen", "fewer than 20 runs");
    run_requests(&setup, 19..25, 9_000).await;
    says(&doctor(&setup, &url), 0, "lease", "ok", "`POST /payments`: lease 30s, p99 9000 ms of 25 runs");
    run_requests(&setup, 0..1, 11_000).await;
    let warned = doctor(&setup, &url);
    says(&warned, 1, "lease", "warning", "`POST /payments`: lease 30s, p99 11000 ms of 25 runs");
    says(&warned, 1, "lease", "warning", "set `lease` to 33s or more");
}
on_every_store!(a_lease_below_three_times_the_run_time_is_a_warning and mysql);
