//! The procedure of docs/operate/backup.md, once for real: back up, lose the store, restore it, and mark the keys that were
//! completed after the backup before clients come back.

use std::path::Path;
use std::process::Output;

use ibid_testkit::client::TestRequest;
use ibid_testkit::upstream::Upstream;
use serde_json::Value;

use crate::harness::{Setup, assert_problem, is_replay};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_restored_store_runs_later_keys_again_unless_marked() {
    let upstream = Upstream::start().await;
    upstream.behave("status=201;body=paid");
    let setup = Setup::before(&upstream.url());
    let mut gateway = setup.start();
    for key in ["before-1", "before-2"] {
        assert_eq!(gateway.call(&pay(key)).await.status, 201);
    }
    let backup = setup.folder().join("backup.db");
    // While the gateway runs. A copy of the file alone would lack what is only in the WAL.
    vacuum_into(setup.database(), &backup);
    for key in AFTER {
        assert_eq!(gateway.call(&pay(key)).await.status, 201);
    }
    gateway.kill();
    lose(setup.database());

    // The danger, on a copy of the backup: a key from before is replayed, one from after runs a second time.
    let careless = setup.folder().join("careless.db");
    std::fs::copy(&backup, &careless).expect("a copy");
    let mut gateway = setup.clone().database_at(&careless).start();
    assert!(is_replay(&gateway.call(&pay("before-1")).await));
    assert!(!is_replay(&gateway.call(&pay(AFTER[0])).await));
    assert_eq!((upstream.executions("before-1"), upstream.executions(AFTER[0])), (1, 2), "a double charge");
    gateway.kill();

    // The procedure. No gateway runs, and the comparison names the keys that the restored store lacks.
    std::fs::copy(&backup, setup.database()).expect("a restored file");
    let executed: String =
        ["before-1", "before-2"].iter().chain(&AFTER).map(|key| format!("{key}\n")).collect();
    std::fs::write(setup.folder().join("executed.csv"), format!("key\n{executed}")).expect("an export");
    let differs = compare(&setup);
    assert_eq!(differs.status.code(), Some(1), "{differs:?}");
    assert_eq!(missing(&differs), AFTER);

    // A gateway that clients do not reach, before an upstream that reads and hangs up: each key becomes `unknown`, whatever
    // the policy makes of a 500.
    let stub = Upstream::start().await;
    stub.behave("cut=read");
    let mut marker = Setup::before(&stub.url()).database_at(setup.database()).start();
    for key in AFTER {
        assert_problem(&marker.call(&pay(key)).await, 502, "outcome-unknown");
    }
    marker.kill();
    let equal = compare(&setup);
    assert_eq!(equal.status.code(), Some(0), "{equal:?}");

    // Clients may come back: a retry is refused until an operator gives the response, and then replayed.
    let gateway = setup.start();
    for key in AFTER {
        assert_problem(&gateway.call(&pay(key)).await, 409, "outcome-unknown");
    }
    let resolve = [
        "keys", "resolve", "--key", AFTER[1], "--status", "201", "--body", "paid", "--reason", "T-9", "--yes",
    ];
    let store = setup.store();
    let resolved = setup.ibid(&[&resolve[..], &["--store", &store]].concat());
    assert_eq!(resolved.status.code(), Some(0), "{resolved:?}");
    let replayed = gateway.call(&pay(AFTER[1])).await;
    assert_eq!((replayed.status, replayed.text().as_str(), is_replay(&replayed)), (201, "paid", true));
    assert_eq!(gateway.call(&pay("new")).await.status, 201);
    assert_eq!(upstream.executions(AFTER[1]), 1, "the marked keys never ran again");
}

fn pay(key: &str) -> TestRequest {
    TestRequest::post("/payments").key(key).body(format!("{{\"order\":\"{key}\"}}"))
}

fn vacuum_into(database: &Path, backup: &Path) {
    let connection = rusqlite::Connection::open(database).expect("it opens while the gateway runs");
    connection.execute("vacuum into ?1", [backup.to_str().expect("a path in UTF-8")]).expect("a backup");
}

fn lose(database: &Path) {
    for suffix in ["", "-wal", "-shm"] {
        let path = format!("{}{suffix}", database.display());
        // The WAL is there or not, depending on when the gateway was killed.
        drop(std::fs::remove_file(path));
    }
}

fn compare(setup: &Setup) -> Output {
    let ours = "sql:select key from ibid_records where path = '/payments'";
    let store = setup.store();
    let words =
        ["reconcile", "ledger", "--ours", ours, "--theirs", "executed.csv", "--json", "--store", &store];
    setup.ibid(&words)
}

/// Returns the keys that only the upstream has.
fn missing(output: &Output) -> Vec<String> {
    let json: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let all = json["differences"].as_array().expect("a list").iter();
    let theirs = all.filter(|finding| finding["kind"] == "theirs_only");
    theirs.map(|finding| finding["key"].as_str().expect("a key").to_owned()).collect()
}

/// Keys that were completed after the backup.
const AFTER: [&str; 2] = ["after-1", "after-2"];
