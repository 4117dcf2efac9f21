//! An operator at the command line settles many records with one filter.

use std::process::Output;
use std::sync::Arc;

use ibid::store::postgres::{PostgresOptions, PostgresStore};
use ibid::store::sqlite::{SqliteOptions, SqliteStore};
use ibid_core::record::State;
use ibid_core::store::Store;
use ibid_testkit::client::TestRequest;
use ibid_testkit::contract::{TestRecord, commit_all, draft, insert};
use ibid_testkit::upstream::Upstream;
use serde_json::{Value, json};

use crate::harness::{On, Setup, assert_problem, is_replay, on_every_store};

fn run(setup: &Setup, words: &[&str]) -> (i32, String, String) {
    let store = setup.store();
    let because = ["--reason", "their outage of Monday", "--who", "ann", "--store", &store];
    let Output { status, stdout, stderr } = setup.ibid(&[&["keys"], words, &because].concat());
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (status.code().unwrap_or(-1), text(stdout), text(stderr))
}

fn pay(key: &str, fixture: &str) -> TestRequest {
    TestRequest::post("/payments").key(key).body("five").fixture(fixture)
}

async fn matching_records_are_settled_only_with_yes(on: On) {
    let upstream = Upstream::start().await;
    let setup = Setup::before(&upstream.url()).on(on);
    let gateway = setup.start();
    for key in ["a", "b", "c"] {
        assert_problem(&gateway.call(&pay(key, "cut=read")).await, 502, "outcome-unknown");
    }
    assert_eq!(gateway.call(&pay("done", "status=201")).await.status, 201);

    let resolve = ["resolve", "--not-executed", "--route", "/payments", "--older-than", "0s"];
    let (code, out, stderr) = run(&setup, &resolve);
    assert_eq!((code, out.lines().count()), (1, 1 + 3), "a line for each: {out}{stderr}");
    let would =
        "3 records would be resolved as not executed, by ann: their outage of Monday; 1 that fit can't be";
    assert!(stderr.contains(would) && stderr.contains("error: nothing was done yet"), "{stderr}");
    let (_, out, _) = run(&setup, &[&resolve[..], &["--json"]].concat());
    assert_eq!(serde_json::from_str::<Value>(&out).expect("JSON"), json!({ "count": 3, "left_alone": 1 }));
    assert_problem(&gateway.call(&pay("a", "status=201")).await, 409, "outcome-unknown");

    let (code, out, stderr) = run(&setup, &[&resolve[..], &["--yes"]].concat());
    assert_eq!((code, out.as_str()), (0, "3 records: resolved as not executed\n"), "{stderr}");
    assert!(stderr.contains("3 records would be"), "the count comes first: {stderr}");
    for key in ["a", "b", "c"] {
        let retry = gateway.call(&pay(key, "status=201")).await;
        assert_eq!((retry.status, is_replay(&retry)), (201, false), "{key} runs");
    }
    let (code, out, stderr) = run(&setup, &[&resolve[..], &["--yes"]].concat());
    assert_eq!((code, out.as_str()), (1, ""), "{stderr}");
    assert!(stderr.contains("no record that fits can be changed so"), "{stderr}");

    let forget = ["forget", "--state", "completed", "--key", "b", "--yes", "--json"];
    let (code, out, stderr) = run(&setup, &forget);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(serde_json::from_str::<Value>(&out).expect("JSON"), json!({ "done": 1, "refused": [] }));
    assert!(stderr.contains("cache_ttl"), "when it is final: {stderr}");
}
on_every_store!(matching_records_are_settled_only_with_yes and mysql);

async fn one_command_resolves_more_than_a_page_of_records(on: On) {
    let setup = Setup::before("http://127.0.0.1:9").on(on);
    let store: Arc<dyn Store> = match on {
        On::Sqlite => {
            Arc::new(SqliteStore::open(setup.database(), SqliteOptions::default()).expect("it opens"))
        }
        On::Postgres => {
            let store = PostgresStore::open(&setup.store(), PostgresOptions::default()).await;
            Arc::new(store.expect("it opens"))
        }
        #[cfg(feature = "mysql")]
        On::Mysql => {
            use ibid::store::mysql::{MysqlOptions, MysqlStore};
            let store = MysqlStore::open(&setup.store(), MysqlOptions::default()).await;
            Arc::new(store.expect("it opens"))
        }
        #[cfg(feature = "redis")]
        On::Redis => {
            use ibid::store::redis::{RedisOptions, RedisStore};
            let store = RedisStore::open(&setup.store(), RedisOptions::default()).await;
            Arc::new(store.expect("it opens"))
        }
        #[cfg(feature = "dynamodb")]
        On::Dynamodb => unreachable!("no such test runs on it"),
    };
    let names: Vec<TestRecord> = (0..1100).map(|_| TestRecord::fresh()).collect();
    for some in names.chunks(250) {
        let unknown = |name: &TestRecord| insert(name, draft(name, State::Unknown));
        commit_all(&*store, some.iter().map(unknown).collect()).await;
    }
    let resolve = ["resolve", "--state", "unknown", "--status", "201", "--body", "{}", "--json"];
    let (code, out, stderr) = run(&setup, &resolve);
    let shown: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((code, shown), (1, json!({ "count": 1100, "left_alone": 0 })), "{stderr}");
    let (code, out, stderr) = run(&setup, &[&resolve[..], &["--yes"]].concat());
    let done: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((code, done), (0, json!({ "done": 1100, "refused": [] })), "{stderr}");
    for name in &names {
        let history =
            store.browse().expect("a store that can be browsed").history(name.id).await.expect("a history");
        let line = "resolved as executed (201), unknown to completed, by ann: their outage of Monday";
        assert_eq!(history.iter().map(|line| line.detail.as_str()).collect::<Vec<_>>(), [line]);
    }
}
on_every_store!(one_command_resolves_more_than_a_page_of_records and mysql and redis);

#[test]
fn all_records_of_a_store_are_never_meant_by_saying_nothing() {
    let setup = Setup::before("http://127.0.0.1:9");
    drop(SqliteStore::open(setup.database(), SqliteOptions::default()).expect("it opens"));
    let cases: [(&[&str], &str); 4] = [
        (&["resolve", "--not-executed", "--yes"], "which records?"),
        (&["forget", "--yes"], "which records?"),
        (&["forget", "abcdef", "--state", "completed", "--yes"], "an id names one record"),
        (&["forget", "--state", "complete", "--yes"], "did you mean `completed`?"),
    ];
    for (words, message) in cases {
        let (code, out, stderr) = run(&setup, words);
        assert!(code == 2 && out.is_empty() && stderr.contains(message), "{words:?}: {code} {stderr}");
    }
}
